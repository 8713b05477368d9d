# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Core dumps: what a debugger finds in them, and how much reserved memory the kernel looks at.

The length of a core file is the sum of the mappings that the kernel walked page by page, holes
included."""

import pathlib
import re
import resource
import shutil
import signal

import pytest
from conftest import API, DEFAULT_HEAPS, compiled, run, said, start

MB = 1 << 20
SPARE = 32 * MB  # libraries, stacks, and the steps in which tables grow
PATTERN = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()
FILES_TOO = "0x3b"  # coredump_filter with bit 3: shared file mappings, too
HEAPS = {
    "default": {"preload": API},
    "without": {},
    "named": {"HEAP": "heap"},
    "with a root": {"HEAP": "heap", "ROOTS": "first,last"},
}


@pytest.fixture(scope="module")
def program():
    return compiled("core_dump.c", name="pmtest_core_dump")


@pytest.fixture(autouse=True)
def tidy():
    yield
    if DEFAULT_HEAPS.is_dir():
        for heap in DEFAULT_HEAPS.glob("pmtest_core_dump*"):
            shutil.rmtree(heap, ignore_errors=True)


@pytest.fixture
def dumping():
    """Makes the kernel write core files to the working directory, or skips the test."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    if before[1] != resource.RLIM_INFINITY or "/" in PATTERN or not PATTERN.startswith("core"):
        pytest.skip(
            f"no core files in the working directory here: core_pattern {PATTERN}, hard limit "
            f"{before[1]}"
        )
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, before)


def placed(settings, shm):
    return {k: shm / v if k == "HEAP" else v for k, v in settings.items()}


def crash(program, shm, how, megabytes, settings, coredump_filter=None):
    """Runs the program until it dumps core. Returns the core file; `shm` is the working
    directory."""
    argv = [program, how, megabytes]
    if coredump_filter:
        argv = [
            "sh",
            "-c",
            f'echo {coredump_filter} > /proc/self/coredump_filter; exec "$@"',
            "sh",
            *argv,
        ]
        settings = {**settings, "PROGRAM": "pmtest_core_dump"}
    done = run(argv, cwd=shm, **placed(settings, shm))
    assert done.returncode == (0 if how == "child" else -signal.SIGABRT), said(done)
    cores = list(shm.glob("core*"))
    assert len(cores) == 1, said(done)
    return cores[0]


def seen_by_gdb(program, core):
    """The label of the first block and of the last one, as gdb reads them."""
    argv = [
        "gdb",
        "-nx",
        "-q",
        "-batch",
        "-ex",
        "print first->text[0]@12",
        "-ex",
        "print last->text[0]@16",
        program,
        core,
    ]
    done = run(argv, preload=False)
    labels = re.findall(r'^\$\d = "([^\\"]*)', done.stdout, re.M)
    assert len(labels) == 2, said(done)
    return labels


@pytest.mark.parametrize("megabytes", [0, 100])
@pytest.mark.parametrize("kind", HEAPS)
def test_gdb_reads_the_heap(dumping, program, shm, kind, megabytes):
    """gdb reads from the core file, or from the heap's files, which the core file names. Files
    without names are in the core file."""
    core = crash(program, shm, "abort", megabytes, HEAPS[kind])
    first, last = seen_by_gdb(program, core)
    assert first == "item 0" and last.startswith("item ")
    assert (int(last.split()[1]) > 1000) == (megabytes > 0)
    in_core = megabytes * MB if kind in ("without", "default") else 0
    assert in_core <= core.stat().st_size <= in_core * 5 / 4 + SPARE
    assert core.stat().st_blocks * 512 <= in_core * 5 / 4 + SPARE


@pytest.mark.parametrize("kind", ["named", "with a root"])
def test_core_with_file_mappings_needs_no_heap(dumping, program, shm, kind):
    core = crash(program, shm, "abort", 40, HEAPS[kind], FILES_TOO)
    shutil.rmtree(shm / "heap")
    first, last = seen_by_gdb(program, core)
    assert first == "item 0" and last.startswith("item ")
    assert 40 * MB <= core.stat().st_size <= 50 * MB + SPARE


@pytest.mark.parametrize("kind", HEAPS)
def test_forked_child(dumping, program, shm, kind):
    """A forked child has memory of its own. The core file holds it."""
    core = crash(program, shm, "child", 20, HEAPS[kind])
    shutil.rmtree(shm / "heap", ignore_errors=True)
    first, last = seen_by_gdb(program, core)
    assert first == "child's 0" and last.startswith("child's ")
    assert 20 * MB <= core.stat().st_size <= 25 * MB + SPARE


def mappings(pid):
    """(name, flags, bytes, anonymous bytes) of each mapping that a dump would include."""
    name = mode = ""
    size = anonymous = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \d+\s*(.*)", line)
        if head:
            mode, name = head[1], head[2]
        elif line.startswith("Size:"):
            size = int(line.split()[1]) << 10
        elif line.startswith("Anonymous:"):
            anonymous = int(line.split()[1]) << 10
        elif line.startswith("VmFlags:") and "dd" not in line.split():
            yield name, mode, size, anonymous


@pytest.mark.parametrize("megabytes", [0, 100])
@pytest.mark.parametrize("kind", HEAPS)
def test_reserved_memory_is_not_looked_at(program, shm, processes, kind, megabytes):
    """Uses the kernel's own figures, so it works without core files, too. A dump holds private
    memory that may have been stored to, and files under their names."""
    process = start([program, "wait", megabytes], **placed(HEAPS[kind], shm))
    processes.append(process)
    assert process.stdout.readline().strip().isdigit()
    private = files = 0
    for name, mode, size, anonymous in mappings(process.pid):
        if mode[3] == "p":
            private += size if "w" in mode or anonymous else 0
        elif name.startswith("/dev/shm"):
            files += size
    in_files = 0 if kind == "without" else megabytes * MB
    assert private <= (megabytes * MB - in_files) * 5 / 4 + SPARE
    assert in_files <= files <= in_files * 5 / 4 + SPARE


@pytest.mark.parametrize("kind", [*HEAPS, "private"])
def test_gcore_writes_no_reserved_memory(program, shm, processes, kind):
    """gdb writes each mapping that is not marked, whether anything was stored there or not."""
    settings = placed(HEAPS["named" if kind == "private" else kind], shm)
    if kind == "private":
        assert run([program, "none", 30], ROOTS="first,last", **settings).returncode < 0
        settings = {**settings, "OPEN": "private"}
    process = start([program, "wait", 30], **settings)
    processes.append(process)
    assert process.stdout.readline().strip().isdigit()
    private = sum(size for _, mode, size, _ in mappings(process.pid) if mode[3] == "p")
    assert private <= 90 * MB
    written = sum(anonymous for *_, anonymous in mappings(process.pid))
    assert written >= 30 * MB or kind not in ("without", "private")
    core = shm / "core"
    argv = ["gdb", "-nx", "-batch", "-p", process.pid, "-ex", f"gcore {core}"]
    done = run(argv, preload=False)
    if "ptrace" in done.stderr:
        pytest.skip("ptrace is forbidden here")
    assert core.stat().st_size <= 130 * MB, said(done)
    if kind == "without":
        first, last = seen_by_gdb(program, core)
        assert first == "item 0" and last.startswith("item "), said(done)


def test_second_start_holds_no_more(program, shm, processes):
    """Several threads recover a heap that exists already. Neither their stacks nor their
    allocations remain in the core file."""
    used = []
    for _ in range(2):
        process = start([program, "wait", 0], HEAP=shm / "heap", ROOTS="first,last", MARKERS=4)
        processes.append(process)
        assert process.stdout.readline().strip().isdigit()
        used.append(
            sum(
                size
                for _, mode, size, anonymous in mappings(process.pid)
                if mode[3] == "p" and "w" in mode
            )
        )
        process.kill()
        process.wait()
    assert used[1] <= used[0] + 2 * MB
