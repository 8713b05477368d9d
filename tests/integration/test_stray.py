# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Children that a program makes by a system call instruction of its own, past the C library: they
have their parent's blocks and variables, and store nothing to its heap. What hears of their first
touch, a handler of SIGSEGV, is not to be seen by the program, and changes no end of it."""

import os
import signal

import pytest
from conftest import compiled, recovered, run, said, start, succeeds
from fork_modes import settings

MODES = ["libc", "volatile", "heap", "20ms", "output", "copy"]


@pytest.fixture(scope="module")
def program():
    return compiled("stray.c", "-pthread")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ("plain", "files", "handler"))
def test_a_child_has_its_own(program, heap, mode, how):
    done = run([program, "child", how], **settings(mode, heap))
    assert succeeds(done) == "right\n" and done.stderr == "", said(done)
    if heap.exists():
        recovered(heap)


@pytest.mark.parametrize("mode", ("heap", "output"))
def test_of_a_parent_that_allocates(program, heap, mode):
    done = run([program, "child", "threads"], **settings(mode, heap))
    assert succeeds(done) == "right\n" and done.stderr == "", said(done)
    if heap.exists():
        recovered(heap)


@pytest.mark.parametrize("mode", ("heap", "20ms"))
def test_the_heap_is_the_parents(program, heap, mode):
    """The child is alive when the next process opens the heap."""
    process = start([program, "owner"], **settings(mode, heap))
    lines = sorted([process.stdout.readline(), process.stdout.readline()])
    assert process.wait() == 0 and lines[1] == "right\n"
    word, pid = lines[0].split()
    done = run([program, "child", "plain"], **settings(mode, heap))
    os.kill(int(pid), signal.SIGKILL)
    assert word == "alone" and succeeds(done) == "right\n", said(done)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_program_sees(program, heap, mode):
    done = run([program, "seen"], **settings(mode, heap))
    assert succeeds(done) == "right\n" and done.stderr == "", said(done)


@pytest.mark.parametrize("mode", ("libc", "heap", "20ms"))
def test_ends_by_sigsegv(program, shm, mode):
    for how in "fault", "sent", "raised":
        done = run([program, "dies", how], **settings(mode, shm / how))
        assert done.returncode == -signal.SIGSEGV and done.stderr == "", said(done)
    done = run([program, "dies", "child"], **settings(mode, shm / "child"))
    assert succeeds(done) == "right\n", said(done)
