# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The ends of a process.

Destructors and threads that run after the end of the program, in difficult company: threads that do
not stop, no memory, an allocator that a signal interrupted. Exec of itself, and a namespace with
the same process numbers. A default heap that is in the way of another process."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from conftest import (
    API,
    app,
    busy,
    compiled,
    default_heaps,
    environment,
    one_message,
    recover,
    recovered,
    run,
    said,
    start,
    succeeds,
)
from programs import children, wait_until


@pytest.fixture(scope="module")
def late():
    library = compiled("late.c", "-DLIBRARY", "-shared", "-fPIC", name="liblate.so")
    return compiled("late.c", f"-Wl,-rpath,{library.parent}", name="late", libraries=(library,))


def is_clean(heap):
    return recover(heap, "--check").returncode == 0


@pytest.mark.check
def test_what_destructors_store_does_not_reach_the_heap(late, heap):
    for count in (0, 100, 200, 300):
        done = run([late], HEAP=heap, ROOTS="liblate.so:late_list")
        assert succeeds(done) == f"{count}\n"
        assert is_clean(heap)


@pytest.mark.parametrize("collect", ("always", "crash"))
def test_a_thread_that_works_while_the_program_ends(late, heap, collect):
    before = None
    for i in range(20):
        done = run([late, 20 * i], HEAP=heap, ROOTS="liblate.so:late_list", COLLECT=collect)
        count = int(succeeds(done))
        # main and the thread push without a lock, so one may lose what the other pushed, but never
        # the first hundred.
        assert count == 0 if before is None else before + 100 <= count <= before + 150, said(done)
        before = count
    assert recovered(heap)


@pytest.mark.parametrize("threads", ("", "unheard"))
def test_threads_that_work_while_the_program_ends_leave_what_a_kill_would(heap, threads):
    """This holds also for threads that block the signal that would hold or stop them; only then
    the heap is not clean."""
    program = compiled("race.c", name="race")
    for i in range(40 if not threads else 5):
        succeeds(run([program, i * 50, threads], HEAP=heap, ROOTS="stack"))
        assert is_clean(heap) == (not threads)
    assert recovered(heap)


@pytest.fixture(scope="module")
def ending():
    return compiled("ending.cc", name="ending", compiler="g++")


# The message of a process that must end without destructors, because they would free what the heap
# has to keep.
LAST_RESORT = {
    "deaf": "a thread does not stop",
    "no-space": "no memory",
    "data": "no memory",
    "alone-data": "no memory",
    "mappings": "no memory",
}


# A thread is not held: it blocks the signal, a debugger has stopped it, or a queue for the signal
# cannot be had.
NOT_HELD = {"unheard", "traced", "traced-locks", "late", "signals"} | {
    "handler-churn",
    "stack-unheard",
}


def is_said(done, mode):
    if mode in NOT_HELD:
        one_message(done, "is left as after a kill: a thread does not come to rest")
    else:
        assert done.stderr == "", said(done)


@pytest.mark.parametrize(
    "mode",
    (
        *("alone", "churn", "unheard", "deaf", "vfork", "traced", "traced-locks", "late"),
        *(
            "thousand",
            "space",
            "no-space",
            "data",
            "alone-tight",
            "alone-data",
            "descriptors",
            "signals",
            "mappings",
        ),
        *("handler", "handler-churn", "stack", "stack-unheard"),
    ),
)
def test_destructors_take_nothing_from_the_heap_whatever_the_end(ending, heap, mode):
    if mode == "mappings" and int(pathlib.Path("/proc/sys/vm/max_map_count").read_text()) > 100000:
        pytest.skip("a process may have too many mappings here to take them all")
    for count in range(0, 500 if mode == "handler" else 200 if mode in NOT_HELD else 300, 100):
        done = run(
            ["setarch", "-R", ending, mode], HEAP=heap, ROOTS="kept", PROGRAM="ending", BUSY="wait"
        )
        assert (done.returncode, done.stdout) == (7, f"{count}\n"), said(done)
        if mode in LAST_RESORT:
            one_message(done, "without its destructors", LAST_RESORT[mode])
        elif mode != "handler-churn" or done.stderr:
            is_said(done, mode)
    if mode in ("alone", "alone-tight", "churn", "vfork", "thousand", "stack"):
        assert is_clean(heap)
    assert recovered(heap)


COMMITS = ("churn", "unheard", "deaf", "traced", "late", "no-space", "data", "stack")


@pytest.mark.parametrize("mode", COMMITS)
def test_destructors_run_in_commit_mode(ending, heap, mode):
    """The last commit is made while nobody stores. Then memory can be written again, also where a
    thread could be stopped only by taking that away."""
    for count in (0, 100, 200):
        done = run(
            ["setarch", "-R", ending, mode], HEAP=heap, ROOTS="kept", PROGRAM="ending", COMMIT="api"
        )
        if mode == "deaf":
            assert (done.returncode, done.stdout) == (7, "0\n"), said(done)
            one_message(done, "without its destructors", "a thread does not stop")
        else:
            assert (done.returncode, done.stdout) == (7, f"{count}\n"), said(done)
            is_said(done, mode)
    assert recovered(heap)


@pytest.fixture(scope="module")
def twice():
    return compiled("twice.c", name="twice")


# From glibc 2.41 on another thread's exit() waits until the first one is through.
SERIAL_EXIT = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))) >= (2, 41)
of_a_thread = pytest.mark.skipif(SERIAL_EXIT, reason="libc lets the second exit wait")


@pytest.mark.parametrize("mode", ("handler", pytest.param("thread", marks=of_a_thread)))
def test_exit_again_while_the_first_one_is_held_up(twice, heap, mode):
    """Nobody reads the statistics that the first exit prints, so it waits. libc goes on with the
    next destructor."""
    for count in range(3):
        done = run([twice, mode], HEAP=heap, ROOTS="kept", PROGRAM="twice", STATS=1)
        assert (done.returncode, done.stdout) == (7, f"{count}\n"), said(done)
    assert recovered(heap)


def test_many_threads_exit_at_once(twice, heap):
    for count in range(40):
        done = run([twice, "threads"], HEAP=heap, ROOTS="kept", PROGRAM="twice")
        assert (done.returncode, done.stdout, done.stderr) == (7, f"{count}\n", ""), said(done)
    assert recovered(heap)


def test_a_library_that_a_constructor_loaded_is_unloaded_in_main(twice, heap):
    """The library's destructors run in main then. That is not the end of the program."""
    library = compiled("twice.c", "-DLIBRARY", "-shared", "-fPIC", name="libtwice.so")
    for count in range(3):
        done = run([twice, "unload", library], HEAP=heap, ROOTS="kept", PROGRAM="twice")
        assert (done.returncode, done.stdout, done.stderr) == (7, f"{count}\n", ""), said(done)
        assert is_clean(heap)


def test_without_proc_threads_stop_where_they_store(ending, heap):
    """The threads cannot be listed, so none is asked to stop."""
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec setarch -R "$0" churn']
    if (
        run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/proc"], preload=False).returncode
        != 0
    ):
        pytest.skip("no mount namespaces here")
    for count in range(0, 1000, 100):
        done = run([*hide, ending], HEAP=heap, ROOTS="kept", PROGRAM="ending")
        assert (done.returncode, done.stdout, done.stderr) == (7, f"{count}\n", ""), said(done)
    assert recovered(heap)


def test_a_child_forked_after_the_end_does_not_write_the_heap(late, heap, monkeypatch):
    monkeypatch.setenv("LATE_FORK", "1")
    for count in (0, 100):
        done = run([late], HEAP=heap, ROOTS="liblate.so:late_list")
        # The destructor's line bypasses stdio.
        assert sorted(succeeds(done).split("\n")) == sorted(
            [str(count), "0 blocks overwritten", ""]
        )
        assert is_clean(heap)
    assert recovered(heap)


def test_a_program_that_executes_itself_keeps_its_heap(heap):
    program = compiled("reexec.c", name="reexec")
    for rounds in (1, 2):
        done = run([program, 20], HEAP=heap, ROOTS="generations")
        assert succeeds(done) == f"{21 * rounds}\n"


def test_same_number_in_another_namespace_is_not_taken_for_the_owner(heap, processes):
    argv = ["unshare", "-pf", "--mount-proc", str(app("kvshell"))]
    if subprocess.run(["unshare", "-pf", "true"], check=False).returncode != 0:
        pytest.skip("no PID namespaces here")
    first = start(argv, HEAP=heap, ROOTS="store", PROGRAM="kvshell")
    processes.append(first)
    first.stdin.write("set a 1\n")
    first.stdin.flush()
    assert first.stdout.readline() == "ok\n"
    done = run(argv, stdin="set b 2\n", HEAP=heap, ROOTS="store", PROGRAM="kvshell")
    assert done.returncode == 125 and "in use" in done.stderr, said(done)


def has(pid, heap):
    """Whether a process has the heap's directory open."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            if os.readlink(f"/proc/{pid}/fd/{fd}") == str(heap):
                return True
    return False


def test_a_child_that_outlives_the_owner_is_not_called_by_its_name(ending, heap, processes):
    """A child of vfork has the owner's descriptors, and with them its lock."""
    first = start(
        ["setarch", "-R", ending, "vfork-stays"], HEAP=heap, ROOTS="kept", PROGRAM="ending"
    )
    processes.append(first)
    assert first.wait(20 * busy()) == 7
    child = next(pid for pid in os.listdir("/proc") if pid.isdigit() and has(pid, heap))
    done = run(["setarch", "-R", ending, "alone"], HEAP=heap, ROOTS="kept", PROGRAM="ending")
    assert done.returncode == 125, said(done)
    one_message(
        done,
        f"in use by process {child}, although",
        f"its last owner, process {first.pid}, has ended",
        "vfork",
    )
    first.stdin.close()
    done = run(
        ["setarch", "-R", ending, "alone"], HEAP=heap, ROOTS="kept", PROGRAM="ending", BUSY="wait"
    )
    assert (done.returncode, done.stdout) == (7, "100\n"), said(done)


def test_default_heap_with_roots_is_waited_for_not_doubled(processes):
    copy = compiled("../apps/kvshell.c", name="pmtest_kvshell")
    first = start([copy], ROOTS="store")
    processes.append(first)
    first.stdin.write("set a 1\n")
    first.stdin.flush()
    assert first.stdout.readline() == "ok\n"
    heap = next(path for path in default_heaps() if path.name == "pmtest_kvshell")
    try:
        done = run([copy], stdin="set b 2\n", ROOTS="store")
        assert done.returncode == 125 and "in use" in done.stderr, said(done)
    finally:
        first.stdin.close()
        first.wait(20 * busy())
        shutil.rmtree(heap)


def test_damaged_default_heap_does_not_stop_programs_that_ask_nothing_of_it(processes):
    copy = compiled("../apps/kvshell.c", name="pmtest_kvshell")
    done = run([copy], stdin="set a 1\n", ROOTS="store")
    assert succeeds(done) == "ok\n"
    heap = next(path for path in default_heaps() if path.name == "pmtest_kvshell")
    try:
        with open(heap / "superblock", "r+b") as file:
            file.write(b"\xff" * 8)
        done = run([copy], stdin="set b 2\nget a\n")
        assert (done.returncode, done.stdout) == (0, "ok\nnone\n"), said(done)
        assert done.stderr.count("\n") == 1 and "left as it is" in done.stderr
        assert run([copy], stdin="get a\n", ROOTS="store").returncode == 125
    finally:
        shutil.rmtree(heap)


def test_what_a_killed_program_left_in_a_rootless_default_heap_keeps_nobody_from_running(processes):
    """Nobody can reach what is in such a heap, so it is not even looked at."""
    copy = compiled("../apps/kvshell.c", name="pmtest_kvshell")
    process = start([copy], API, FORK="copy")
    processes.append(process)
    process.stdin.write("fill 100\n")
    process.stdin.flush()
    assert process.stdout.readline()
    heap = next(path for path in default_heaps() if path.name == "pmtest_kvshell")
    process.kill()
    process.wait()
    with open(heap / "booklog.0", "r+b") as file:
        file.write(b"\xff" * 8192)
    done = run([copy], stdin="set b 2\nget b\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n2\n", ""), said(done)
    assert not heap.exists()


def test_own_malloc_is_said_to_whoever_named_roots(heap):
    own = """
        #include <stddef.h>
        #include <string.h>
        static char memory[1 << 20]; static size_t used; int *kept;
        void *malloc(size_t n) { void *p = memory + used; used += (n + 31) & ~15ul; return p; }
        void free(void *p) { (void)p; }
        void *calloc(size_t a, size_t b) { return memset(malloc(a * b), 0, a * b); }
        void *realloc(void *p, size_t n) { void *q = malloc(n); if (p) memcpy(q, p, n); return q; }
        int main(void) { kept = malloc(4); return 0; }
    """
    source = heap.parent / "own.c"
    source.write_text(own)
    program = heap.parent / "own"
    subprocess.run(["cc", "-fno-builtin", "-rdynamic", "-o", program, source], check=True)
    done = run([program], HEAP=heap, ROOTS="kept")
    assert done.returncode == 0 and "own" in done.stderr and done.stderr.count("\n") == 1, said(
        done
    )
    assert not heap.exists()
    assert "PMALLOC" not in "".join(environment(preload=False))


@pytest.fixture(scope="module")
def leaving():
    return compiled("leaving.c", name="pmtest_leaving")


def heap_of_leaving():
    return {path for path in default_heaps() if path.name.startswith("pmtest_leaving")}


@pytest.mark.parametrize("fork", ("private", "copy"))
@pytest.mark.parametrize("how", ("exit", "Exit", "signal", "atexit", "vfork"))
def test_nothing_is_left_by_a_program_that_runs_no_destructor(leaving, how, fork):
    """The heap has no name, or one that goes."""
    done = run([leaving, how], API, FORK=fork)
    assert done.returncode == 5 and done.stderr == "", said(done)
    there = "gone" if fork == "private" else "there"
    lines = [f"start: {there}"] + (
        [f"after vfork: {there}", f"after fork: {there}"] if how == "vfork" else []
    )
    assert done.stdout.splitlines() == lines, said(done)
    assert not heap_of_leaving()


def test_a_parent_that_is_refused_leaves_its_heap_to_the_child(leaving):
    done = run([leaving, "refused"], API, FORK="follow")
    assert (done.returncode, done.stdout) == (125, "start: there\nchild: there\n"), said(done)
    one_message(done, "no memory")
    assert not heap_of_leaving()


def test_starts_take_away_what_killed_programs_left(leaving, processes):
    """A start removes no heap that is in use or has a root."""
    store = compiled("../apps/kvshell.c", name="pmtest_kvshell")
    assert succeeds(run([store], stdin="set a 1\n", ROOTS="store")) == "ok\n"
    victims = [start([leaving, "wait"], API, FORK="copy") for _ in range(3)]
    processes += victims
    try:
        assert len(heaps_of(victims)) == 3
        for victim in victims[:2]:
            victim.kill()
            victim.wait()
        for _ in range(2000):
            if len(heap_of_leaving()) == 1:
                break
            succeeds(run([shutil.which("true")], API, FORK="copy"))
        for _ in range(30):
            succeeds(run([shutil.which("true")], API, FORK="copy"))
        assert len(heap_of_leaving()) == 1, heap_of_leaving()
        assert succeeds(run([store], stdin="get a\n", ROOTS="store")) == "1\n"
    finally:
        end(victims)
        for heap in default_heaps():
            if heap.name == "pmtest_kvshell":
                shutil.rmtree(heap)


def heaps_of(victims):
    """Once each of them has told of its start."""
    for victim in victims:
        victim.stdout.readline()
    return heap_of_leaving()


def end(victims):
    for victim in victims:
        victim.kill()
        victim.wait()
    for heap in heap_of_leaving():
        shutil.rmtree(heap)


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
def test_two_starts_that_see_the_same_heap_missing(leaving, processes, tmp_path):
    """One gets it, the other one takes the next: it does not run without a heap."""
    victims = [start([leaving, "wait"], API, FORK="copy")]
    try:
        [first] = heaps_of(victims)
        log, second = tmp_path / "trace", first.with_suffix(".2")
        stop = ["strace", "-o", log, "-P", second, "-e", "trace=access"]
        stop += ["-e", "inject=access:signal=SIGSTOP:when=1", "-E", "PMALLOC_FORK=copy"]
        stop += ["-E", f"LD_PRELOAD={app('kvshell').parents[1]}/{API}", leaving, "wait"]
        tracer = start(stop, False)
        wait_until(lambda: "stopped by" in log.read_text(), "it has seen that there is no second")
        victims.append(start([leaving, "wait"], API, FORK="copy"))
        assert heaps_of(victims[1:]) == {first, second}
        os.kill(*children(tracer.pid), signal.SIGCONT)
        victims.append(tracer)
        assert len(heaps_of([tracer])) == 3, log.read_text()
        os.kill(*children(tracer.pid), signal.SIGKILL)
    finally:
        processes += victims
        end(victims)


@pytest.mark.parametrize("commit", [None, "20ms", "output"])
def test_the_end_wakes_nobody(heap, commit):
    """Threads that sleep when exit() is called are held, and sleep on. A handler wakes them."""
    weak = "-Wl,-z,dynamic-undefined-weak"
    program = compiled("naps.c", "-D_GNU_SOURCE=", "-pthread", weak)
    for _ in range(5):
        done = run([program, "ends"], HEAP=heap, ROOTS="root", COMMIT=commit)
        subprocess.run(["ipcrm", *done.stdout.split()], check=True)
        assert (done.returncode, done.stderr) == (7, ""), said(done)
    assert succeeds(run([program, "woken"], HEAP=heap, ROOTS="root", COMMIT=commit)) == "right\n"
