# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Running a program to its end and measuring it: time, memory, page faults."""

import collections
import mmap
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time

# In bytes. peak: the most memory of the process and its heap's files; anon: the most anonymous.
Result = collections.namedtuple(
    "Result", "seconds user system faults peak anon status stdout stderr"
)


class Failure(Exception):
    """Something that the caller must put right. Its text is for people."""


def field(path, key):
    """The value of "key: value" in a file of the kernel's, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(key):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


class Watch(threading.Thread):
    """Samples the memory of a process every few milliseconds until told to stop.

    The blocks of the files in the heap's folder count too, because they take memory even if no
    page of them is mapped. A process that takes longer than the timeout is killed.
    """

    def __init__(self, process, folder, timeout):
        super().__init__(daemon=True)
        self.process, self.folder = process, folder
        self.deadline = time.monotonic() + timeout
        self.peak, self.anon, self.ended = 0, 0, threading.Event()

    def run(self):
        pause = 0.001
        while not self.ended.wait(pause):
            self.look()
            pause = min(1.2 * pause, 0.01)
            if time.monotonic() >= self.deadline:
                # Popen.kill() may reap it.
                os.kill(self.process.pid, signal.SIGKILL)

    def look(self):
        try:
            with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
                lines = dict(
                    line.split(":", 1) for line in file if line.startswith(("Rss", "VmHWM"))
                )
        except OSError:
            return
        size = {name: int(text.split()[0]) * 1024 for name, text in lines.items()}
        if size:
            shared = max(size["RssShmem"], file_blocks(self.folder) if self.folder else 0)
            self.anon = max(self.anon, size["RssAnon"])
            self.peak = max(self.peak, size["VmHWM"], size["RssAnon"] + size["RssFile"] + shared)

    def stop(self):
        self.ended.set()
        self.join()


def file_blocks(folder):
    """Bytes that the files below a folder take."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(base, name)).st_blocks * 512
            except OSError:
                pass
    return total


MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it


def warm(size):
    """Touches `size` bytes of memory and gives them back.

    So the next run finds pages that the hypervisor has already provided. This happens in a process
    of its own, because its memory would otherwise count as the peak of the run.
    """
    if not size:
        return
    available = field("/proc/meminfo", "MemAvailable")
    available = int(available.split()[0]) * 1024 if available else size
    if size > available:
        raise Failure(f"cannot touch {size >> 20} MB, only {available >> 20} MB are available")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            area = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            try:
                area.madvise(MADV_POPULATE_WRITE)
            except OSError:
                for offset in range(0, size, mmap.PAGESIZE):
                    area[offset] = 1
            status = 0
        finally:
            os._exit(status)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if status:
        raise Failure(f"could not touch {size >> 20} MB")


def end_children(but):
    """Kills every child, and reaps all of them `but` one.

    An interrupt may arrive within Popen(), after the fork. Then only the kernel knows the child.
    """
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
            children = [int(child) for child in file.read().split()]
        for child in children:
            os.kill(child, signal.SIGKILL)
            if child != but:
                os.waitpid(child, 0)


def start(argv, **how):
    try:
        return subprocess.Popen(argv, **how)
    except OSError as error:
        raise Failure(f"cannot run {argv[0]}: {error.strerror}") from error


def run(argv, env=None, stdin=None, cwd=None, timeout=600, folder=None):
    """Runs a program to its end and measures it. A negative status is a signal."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(
        stdin or os.devnull, "rb"
    ) as source:
        begin = time.perf_counter()
        process = watch = None
        try:
            process = start(argv, env=env, stdin=source, stdout=out, stderr=err, cwd=cwd)
            watch = Watch(process, folder, timeout)
            watch.start()
            # The process is reaped only after the watch, so that its number is not reused.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            seconds = time.perf_counter() - begin
        except BaseException:
            end_children(but=process and process.pid)
            raise
        finally:
            if watch and watch.ident:
                watch.stop()
            if process:
                _, raw, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(raw)
        # wait4 has the exact peak of resident memory, if that is above the interpreter's own.
        exact = usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        out.seek(0)
        err.seek(0)
        return Result(
            seconds,
            usage.ru_utime,
            usage.ru_stime,
            usage.ru_minflt,
            max(watch.peak, usage.ru_maxrss * 1024 if exact else 0),
            watch.anon,
            process.returncode,
            out.read().decode(errors="replace"),
            err.read().decode(errors="replace"),
        )


def status_text(result, timeout=None):
    """How a process ended, and the first line of its errors."""
    how = f"signal {-result.status}" if result.status < 0 else f"exit status {result.status}"
    if timeout and result.seconds >= timeout:
        how += f" after {timeout} s"
    complaint = next((line for line in result.stderr.splitlines() if line.strip()), "")
    return f"{how}: {complaint}" if complaint else how


def interleaved(items, rounds):
    """Yields (round, item). Each round takes all items and starts one item later."""
    items = list(items)
    for number in range(rounds):
        shift = number % len(items) if items else 0
        for item in items[shift:] + items[:shift]:
            yield number, item
