# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --leaks PID: what nothing reaches in a program that runs, and that the program does
not notice. The programs are leaks.c, as in test_leaks, and leaks_running.c."""

import contextlib
import ctypes
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from conftest import BUILD, busy, compiled, environment, needs, run, said, start, succeeds, tool
from test_backup_live import MODES, application, call, can_record
from test_backup_live import running as at_moments
from test_leaks import LOST, THREADS, WAYS

KILLS = int(os.environ.get("LEAK_KILLS", "25"))
LOOKS = int(os.environ.get("LEAK_LOOKS", "50"))


@pytest.fixture(scope="module")
def leaks():
    return compiled("leaks.c", "-O1", "-g", "-fno-inline")


@pytest.fixture(scope="module")
def running():
    return compiled("leaks_running.c", "-O2", "-D_GNU_SOURCE")


@contextlib.contextmanager
def begun(argv, **settings):
    """A program that has said its line. It is told something at the end, and must end well."""
    process = start(argv, **settings)
    try:
        assert process.stdout.readline() in ("\n", "busy\n"), process.stderr.read()
        yield process
        output, errors = process.communicate("x", timeout=60 * busy())
        assert process.returncode == 0 and "wrong" not in output, (output, errors)
    finally:
        process.kill()
        process.communicate()


def look(pid, *arguments):
    return run([tool("pmalloc-info"), "--leaks", *arguments, pid], preload=False)


def found(pid):
    report = json.loads(succeeds(look(pid, "--json")))
    assert report["blocks"] == sum(row["blocks"] for row in report["sizes"])
    assert report["bytes"] == sum(row["bytes"] for row in report["sizes"])
    assert report["process"] == pid
    return report


def sizes(report):
    return {row["from"]: (row["blocks"], row["bytes"]) for row in report["sizes"]}


@pytest.mark.parametrize("way", WAYS + THREADS)
def test_the_same_as_at_the_end(leaks, way):
    with begun([leaks, way, "stay"], BACKING="volatile") as process:
        assert sizes(found(process.pid)) == LOST
        assert sizes(found(process.pid)) == LOST  # nothing was freed, no mark is left


def test_what_is_lost_is_a_leak(leaks):
    with begun([leaks, "lost", "stay"], BACKING="volatile") as process:
        assert sizes(found(process.pid)) == {**LOST, 5120: (1, 5120)}
        text = succeeds(look(process.pid))
        head = rf"nothing reaches 13 of \d+ blocks, \d+ of \d+ bytes of process {process.pid}\n"
        assert re.match(head, text) and re.search(r"\n +5120 +1 +5120  0x\w+\n", text), text


@pytest.mark.parametrize("way", ["chain", "sleep", "register"])
@pytest.mark.parametrize("settings", [{}, {"ROOTS": "global"}, {"COMMIT": "20ms"}], ids=str)
def test_a_heap_on_media(leaks, heap, way, settings):
    with begun([leaks, way, "stay"], HEAP=heap, **settings) as process:
        assert sizes(found(process.pid)) == LOST


def test_registers_of_a_thread_that_a_commit_held(leaks, heap):
    """It has been let go and does not run yet, because others do: its handler has what it had."""
    core = [needs("taskset"), "-c", str(min(os.sched_getaffinity(0)))]
    spin = [*core, sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(2)]
    try:
        with begun([*core, leaks, "register", "stay"], HEAP=heap, COMMIT="5ms") as process:
            for _ in range(LOOKS // 4):
                assert sizes(found(process.pid)) == LOST
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_where_they_were_allocated(leaks):
    with begun([leaks, "sleep", "stay"], BACKING="volatile", LEAKS="stack") as process:
        report = found(process.pid)
        text = succeeds(look(process.pid))
    assert sizes(report) == LOST
    assert sorted(site["bytes"] for site in report["sites"]) == sorted(n for _, n in LOST.values())
    for site in report["sites"]:
        calls = [c["offset"] - 1 for c in site["calls"] if c["object"] == str(leaks)]
        addresses = [hex(at) for at in calls]
        names = succeeds(run(["addr2line", "-f", "-e", leaks, *addresses], preload=False))
        assert names.splitlines()[:4:2] == ["lose", "main"], names
    assert re.search(rf"allocated by:\n    #0 {leaks}\+0x[0-9a-f]+\n", text), text


@pytest.mark.parametrize("persistent", [False, True])
def test_a_forked_child(leaks, heap, persistent):
    """The child has lost some blocks, its parent none."""
    settings = {"HEAP": heap} if persistent else {"BACKING": "volatile"}
    with begun([leaks, "child", "stay"], **settings) as process:
        with open(f"/proc/{process.pid}/task/{process.pid}/children", encoding="ascii") as children:
            child = int(children.read())
        assert sizes(found(child)) == LOST
        assert sizes(found(process.pid)) == {}


# ---- the program does not notice -------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sleepers", "busy"])
@pytest.mark.parametrize("settings", [{}, {"COMMIT": "20ms"}], ids=str)
def test_looks_again_and_again(running, heap, mode, settings):
    """No call fails with EINTR, no signal is lost, no register or block changes."""
    with begun([running, mode], HEAP=heap, **settings) as process:
        for _ in range(LOOKS):
            assert found(process.pid)["in_use_blocks"] >= 64


@pytest.mark.parametrize("settings", [{}, {"COMMIT": "20ms"}], ids=str)
def test_a_program_that_is_told_to_go_on(running, heap, settings):
    """SIGCONT stops a thread that is traced, as the tool does, also amid its work for the tool."""
    with begun([running, "busy"], HEAP=heap, **settings) as process:
        for _ in range(LOOKS // 12):
            argv = [tool("pmalloc-info"), "--leaks", "--json", str(process.pid)]
            with subprocess.Popen(argv, stdout=-1, stderr=-1, text=True) as one:
                while one.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    time.sleep(0.0005)
                report = json.loads(one.stdout.read())
            assert report["heap"] and report["in_use_blocks"] >= 64, report
        if not settings:
            leaves_nothing(process.pid)


# ---- marked beside the program ---------------------------------------------------------------


def is_recorded(pid):
    """Whether the kernel keeps a record of stores to any of its mappings."""
    maps = pathlib.Path(f"/proc/{pid}/smaps").read_text(encoding="ascii")
    return re.search(r"^VmFlags:.* uw\b", maps, re.M) is not None


def leaves_nothing(pid):
    """No child, no mapping, and no descriptor more."""
    assert not is_recorded(pid)
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as children:
            assert children.read() == ""


LATE = {"HEAP": True, "ROOTS": "first_of@call"}  # its roots are never restored
# Commits that never look at the record, and such that do, and keep it.
LENT = {"HEAP": True, "COMMIT": "100ms", "COMMIT_WATCH": "1000000"}
SHARED = [{"HEAP": True, "COMMIT": commit} for commit in ("100ms", "idle", "output")]


@pytest.mark.parametrize(
    "settings", [{"BACKING": "volatile"}, {"HEAP": True}, LATE, LENT, *SHARED], ids=str
)
def test_what_moves_is_no_leak(running, heap, settings):
    """Addresses move between blocks that were marked and blocks that were not."""
    settings = {name: heap if value is True else value for name, value in settings.items()}
    with begun([running, "moving"], **settings) as process:
        before = os.listdir(f"/proc/{process.pid}/fd")
        for _ in range(LOOKS // (50 if "COMMIT" in settings else 5)):
            report = found(process.pid)
            assert report["blocks"] == 0, report
            assert report["beside"] == can_record() and report["in_use_blocks"] > 80000
        assert os.listdir(f"/proc/{process.pid}/fd") == before
        if "COMMIT" not in settings or "COMMIT_WATCH" in settings:
            leaves_nothing(process.pid)


@pytest.mark.parametrize("mode", [mode for mode in MODES if "options" in MODES[mode]])
def test_no_commit_loses_what_a_look_has_taken(shm, mode):
    """The heap of a program that was killed while it was looked at is of one instant."""
    how = dict(MODES[mode])
    options = [*how.pop("options"), "-s", "COMMIT_WATCH=1"]
    for _ in range(LOOKS // 50):
        with at_moments(shm / "heap", *options, pages=3000, **how) as process:
            time.sleep(0.2)
            for _ in range(random.randint(1, 2) if LOOKS > 50 else 1):
                done = look(process.pid, "--json")
                report = json.loads(done.stdout)
                busily = "try again" in done.stderr
                assert busily or (report["blocks"], report["beside"]) == (0, can_record()), report
                time.sleep(random.uniform(0, 0.1))
        argv = [tool("pmalloc-run"), "-H", shm / "heap", "-r", "world", "--"]
        done = call(*argv, application(), "check")
        assert done.returncode == 0 or done.stdout == "nothing\n", done
        shutil.rmtree(shm / "heap")


@pytest.mark.parametrize("way", ["kill", "exec"])
def test_the_program_ends_while_it_is_marked(running, heap, way):
    """The tool ends, too, and the heap is free at once. Another program in its place is let be."""
    for _ in range(LOOKS // 16):
        process = start([running, "moving"], HEAP=heap)
        assert process.stdout.readline() == "busy\n"
        argv = [tool("pmalloc-info"), "--leaks", str(process.pid)]
        with subprocess.Popen(argv, stdout=-1, stderr=-1, text=True) as one:
            time.sleep(random.uniform(0, 0.3))
            if way == "kill":
                process.kill()
            process.communicate("e", timeout=60 * busy())
            done = run([tool("pmalloc-recover"), "--check", heap], preload=False)
            assert "in use" not in said(done) and done.returncode != 8, said(done)
            one.communicate(timeout=60 * busy())
            assert one.returncode in (0, 8)
            assert process.returncode == (-signal.SIGKILL if way == "kill" else 0)


@pytest.mark.parametrize("mode", ["sleepers", "busy", "moving"])
def test_kills_of_the_tool(running, mode):
    """At any instant. What it has begun is ended by a process of its own."""
    with begun([running, mode], BACKING="volatile") as process:
        for _ in range(KILLS):
            argv = [tool("pmalloc-info"), "--leaks", str(process.pid)]
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as one:
                time.sleep(random.uniform(0, 0.02))
                one.send_signal(random.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
        found(process.pid)


def runs(pid):
    """Not one that has ended, and nobody has asked how."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def children_of(pid):
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    texts = [children.read_text(encoding="ascii") for children in threads]
    return [int(n) for text in texts for n in text.split() if runs(n)]


def status(pid, thread, field):
    text = pathlib.Path(f"/proc/{pid}/task/{thread}/status").read_text(encoding="ascii")
    return re.search(rf"^{field}:\t(\S+)", text, re.MULTILINE)[1]


def halted(pid):
    """Whether a thread is: who halts it must let it go on."""
    threads = os.listdir(f"/proc/{pid}/task")
    return any(status(pid, thread, "TracerPid") != "0" for thread in threads)


def stopped_beside(one, pid):
    """The tool, when the marker is at work and no thread is halted. False: the tool was faster."""
    while one.poll() is None:
        one.send_signal(signal.SIGSTOP)
        while one.poll() is None and status(one.pid, one.pid, "State") != "T":
            pass
        if one.returncode is None and children_of(pid) and not halted(pid):
            return True
        one.send_signal(signal.SIGCONT)
        time.sleep(0.002)
    return False


def test_a_look_ends_after_its_tool(running):
    """The tool is killed, and so is the process that would end its work. The marker ends by itself
    after half a minute; that of the library for tests does so after a third of a second."""
    if not can_record():
        pytest.skip("this kernel keeps no record of stores")
    library = f"LD_PRELOAD={BUILD / 'soon' / 'libpmalloc_preload.so'}"
    argv = ["/usr/bin/env", library, running, "moving"]
    with begun(argv, preload=False, BACKING="volatile") as process:
        left = []
        while not left:  # the tool may be done already
            argv = [tool("pmalloc-info"), "--leaks", str(process.pid)]
            with subprocess.Popen(argv, stdout=-1, stderr=-1) as one:
                beside = stopped_beside(one, process.pid)
                for helper in children_of(one.pid) if beside else []:
                    os.kill(helper, signal.SIGKILL)
                one.kill()
            left = children_of(process.pid)
        end = time.monotonic() + 20 * busy()
        while children_of(process.pid) or is_recorded(process.pid):
            assert time.monotonic() < end, "the marker is still there, or what it has begun"
            time.sleep(0.05)


def test_kills_of_the_program(running):
    """At any instant. The tool ends, although it has stopped the threads that end."""
    for _ in range(KILLS):
        process = start([running, "busy"], BACKING="volatile")
        assert process.stdout.readline() == "busy\n"
        argv = [tool("pmalloc-info"), "--leaks", str(process.pid)]
        with subprocess.Popen(argv, stdout=-1, stderr=-1, text=True) as one:
            time.sleep(random.uniform(0, 0.02))
            process.kill()
            output, errors = one.communicate(timeout=60 * busy())
            assert one.returncode in (0, 8), errors
            assert "nothing reaches" in output or errors.startswith("pmalloc-info: "), errors
        process.communicate(timeout=60 * busy())


def test_two_at_once(running):
    with begun([running, "sleepers"], BACKING="volatile") as process:
        argv = [tool("pmalloc-info"), "--leaks", str(process.pid)]
        tools = [subprocess.Popen(argv, stdout=-1, stderr=-1, text=True) for _ in range(4)]
        for one in tools:
            output, errors = one.communicate(timeout=60 * busy())
            assert one.returncode in (0, 8), errors
            assert "nothing reaches" in output or "cannot be held" in errors, errors
        found(process.pid)


# ---- what is refused -----------------------------------------------------------------------------


def refused(pid, *parts):
    done = look(pid)
    assert done.returncode == 8 and done.stdout == "", said(done)
    assert len(done.stderr.splitlines()) == 1, said(done)
    for part in parts:
        assert part in done.stderr, said(done)
    error = json.loads(look(pid, "--json").stdout)["error"]
    assert done.stderr == f"pmalloc-info: {error}\n"


def test_no_such_process():
    refused(4194303, "there is no process 4194303")


def test_a_program_without_the_library(running):
    with begun([running, "busy"], preload=False) as process:
        refused(process.pid, "does not run under PMAlloc")


def test_another_build(running):
    with begun([running, "other"], preload=False) as process:
        refused(process.pid, "under another build of PMAlloc")


def test_a_filter(running):
    with begun([running, "filtered"], BACKING="volatile") as process:
        refused(process.pid, "has a seccomp filter")


def test_a_stopped_process(running):
    with begun([running, "busy"], BACKING="volatile") as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        refused(process.pid, "is stopped", f"kill -CONT {process.pid}")
        process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def traced(thread):
    """A thread that this process traces, as a debugger does."""
    seize, interrupt, detach, any_thread = 0x4206, 0x4207, 17, 0x40000000
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert ptrace(seize, thread, None, None) == 0
    yield
    ptrace(interrupt, thread, None, None)
    os.waitpid(thread, any_thread)
    assert ptrace(detach, thread, None, None) == 0


def test_a_debugged_process(running):
    with begun([running, "busy"], BACKING="volatile") as process, traced(process.pid):
        refused(process.pid, f"process {os.getpid()} traces it")


def test_a_thread_that_is_traced(running):
    """The tool gives up at this thread. It has asked others to stop, whose calls go on."""
    with begun([running, "sleepers"], BACKING="volatile") as process:
        last = max(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))
        with traced(last):
            for _ in range(LOOKS // 2):
                done = look(process.pid)
                assert done.returncode == 8, said(done)
                assert f"cannot be held: its thread {last}" in done.stderr, said(done)


def test_another_users_process(running):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with begun([running, "busy"], BACKING="volatile") as process:
        other = ["setpriv", "--reuid=65534", "--clear-groups"]
        done = run([*other, tool("pmalloc-info"), "--leaks", process.pid], preload=False)
        if done.returncode == 127 or "setpriv" in done.stderr:
            pytest.skip("another user cannot run the tool here")
        assert done.returncode == 8 and "CAP_SYS_PTRACE" in done.stderr, done


def test_a_program_that_has_no_heap_yet():
    with subprocess.Popen(["sleep", "60"], env=environment()) as process:
        time.sleep(0.2)
        try:
            done = look(process.pid)
            assert "has no heap yet" in succeeds(done), said(done)
            assert found(process.pid)["heap"] is False
        finally:
            process.kill()


def test_a_directory_goes_first(leaks, heap):
    """A number is a heap where there is a directory of this name."""
    with begun([leaks, "none", "stay"], BACKING="volatile") as process:
        pid = str(process.pid)
        succeeds(run([leaks, "none"], HEAP=heap.parent / pid, ROOTS="global"))
        argv = [tool("pmalloc-info"), "--leaks", pid]
        text = succeeds(run(argv, preload=False, cwd=heap.parent))
        assert text.startswith("no root reaches 12 "), text
