# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Locks that a killed run held, in the heap and in roots. The next run uses them as if nobody held
them.

Each time, PMALLOC_LOCKS=keep shows that the lock was indeed held: it is busy, or the program waits
for ever."""

import signal
import time

import pytest
from conftest import compiled, figures, run, said, start, succeeds

SOURCES = ("locks.c", "locks_objects.c")
MUTEXES = "normal recursive errorcheck adaptive shared robust cut inherit protect".split()
TRIED = [*MUTEXES, "read", "write", "spin", "mtx"]
WAITED = ["cond", "cnd", "barrier", "once", "flag"]
ROUNDS = 40
PATIENCE = 60  # seconds that a program without anything to wait for may take


def locks(heap, *arguments, begin=run, **settings):
    settings.setdefault("ROOTS", "store,root,root_made")
    return begin([compiled(SOURCES), *arguments], HEAP=heap, **settings)


def killed_holding(heap, place, name, **settings):
    done = locks(heap, "hold", place, name, **settings)
    assert done.returncode == -signal.SIGKILL, said(done)


@pytest.mark.parametrize("place", ["heap", "root"])
@pytest.mark.parametrize("name", TRIED)
def test_a_lock_of_the_dead_is_free(heap, place, name):
    killed_holding(heap, place, name)
    assert succeeds(locks(heap, "use", place, name)) == "free\n"


@pytest.mark.parametrize("name", sorted(set(TRIED) - {"robust"}))  # the kernel frees a robust mutex
def test_a_lock_of_the_dead_is_kept_on_request(heap, name):
    killed_holding(heap, "heap", name)
    assert succeeds(locks(heap, "use", "heap", name, LOCKS="keep")) == "held\n"


@pytest.mark.parametrize("place", ["heap", "root"])
@pytest.mark.parametrize("name", WAITED)
def test_nobody_waits_for_the_dead(heap, place, name):
    killed_holding(heap, place, name)
    succeeds(locks(heap, "use", place, name))


@pytest.mark.parametrize("name", WAITED)
def test_one_waits_for_the_dead_on_request(heap, name):
    killed_holding(heap, "root", name)
    done = locks(heap, "use", "root", name, LOCKS="keep")
    assert done.returncode == -signal.SIGALRM, said(done)


@pytest.mark.parametrize("place", ["heap", "root"])
def test_the_value_of_a_semaphore_is_data(heap, place):
    killed_holding(heap, place, "sem")
    succeeds(locks(heap, "use", place, "sem"))


@pytest.mark.parametrize("place", ["heap", "root"])
def test_what_is_done_once_stays_done(heap, place):
    for _ in range(3):
        succeeds(locks(heap, "use", place, "done"))


def test_a_lock_that_was_held_at_a_clean_end_is_free(heap):
    """The holder may also have ended without a kill."""
    succeeds(locks(heap, "use", "heap", "spin"))  # leaves the lock held
    assert succeeds(locks(heap, "use", "heap", "spin", LOCKS="keep")) == "held\n"
    assert succeeds(locks(heap, "use", "heap", "spin")) == "free\n"


def test_first_use_by_all_threads_at_once(heap):
    done = locks(heap, "take")
    assert done.returncode == -signal.SIGKILL, said(done)
    for _ in range(3):
        succeeds(locks(heap, "race"))
        assert locks(heap, "take").returncode == -signal.SIGKILL


def test_eight_threads_killed_at_work(heap, processes, rng):
    """The threads take every lock all the time. After each kill everything is whole, except for the
    step that each thread was at."""
    succeeds(locks(heap, "check"))
    held = steps = 0
    for number in range(ROUNDS):
        print(f"round {number}")
        process = locks(heap, "work", begin=start)
        processes.append(process)
        found = figures(process.stdout.readline() or process.stderr.read())
        assert found["steps"] >= steps
        steps = found["steps"]
        held += found["torn"]
        time.sleep(rng.uniform(0, 0.05))
        assert process.poll() is None, process.stdout.read()
        process.kill()
        process.wait()
    found = figures(succeeds(locks(heap, "check", timeout=PATIENCE)))
    assert (
        found["steps"] > 0 and held + found["torn"] > 0
    ), "in no round did the kill meet a thread that held a lock"


@pytest.mark.parametrize("name", ["normal", "once"])
def test_a_forked_child_goes_by_what_its_parent_knows(heap, name):
    """The kind of fork does not matter: the child has the parent's memory at the parent's
    addresses."""
    killed_holding(heap, "heap", name)
    for fork in ("private", "copy", "follow"):
        succeeds(locks(heap, "fork", FORK=fork))


def test_cxx(heap):
    program = compiled("locks_cxx.cc", compiler="g++")
    roots = "in_heap,slow()::instance"
    settings = {"HEAP": heap, "ROOTS": roots}
    assert run([program, "hold"], **settings).returncode == -signal.SIGKILL
    kept = run([program, "use"], LOCKS="keep", **settings)
    assert kept.returncode == -signal.SIGALRM, said(kept)
    assert succeeds(run([program, "use"], **settings)) == "ok runs=1 value=42\n"


def test_a_static_in_the_making_is_made_again(heap):
    """Only the guard of the static matters here, not the locks in the heap."""
    program = compiled("locks_cxx.cc", compiler="g++")
    settings = {"HEAP": heap, "ROOTS": "slow()::instance"}
    assert run([program, "hold"], **settings).returncode == -signal.SIGKILL
    kept = run([program, "use"], LOCKS="keep", **settings)
    assert kept.returncode == -signal.SIGALRM, said(kept)
    assert succeeds(run([program, "use"], **settings)) == "ok runs=1 value=42\n"


def test_generation(heap):
    """Each run has another generation. There is none where nothing is kept."""
    seen = [int(succeeds(locks(heap, "generation"))) for _ in range(3)]
    assert 0 < seen[0] < seen[1] < seen[2]
    assert succeeds(locks(heap, "generation", BACKING="volatile", ROOTS=None)) == "0\n"
