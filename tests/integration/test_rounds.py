# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Commits of many copied pages: in rounds while the program runs, by the kernel's record of stores.
What is found after a kill is one instant, page by page."""

import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import pytest
from conftest import (
    BUILD,
    DEADLINE,
    busy,
    compiled,
    environment,
    linked,
    needs,
    run,
    said,
    succeeds,
    tool,
)
from test_copies import file_system

KILLS = int(os.environ.get("ROUNDS_KILLS", "2"))


@pytest.fixture(scope="module")
def program():
    return compiled("rounds.c", "-D_GNU_SOURCE", libraries=["-lpthread"])


def settings(heap, commit="5ms", **more):
    return {"HEAP": heap, "ROOTS": "areas", "COMMIT": commit, "STATS": 1, **more}


def made(lines, threads=2):
    """How far each thread was. What it had stored to is as of one instant."""
    found = [re.fullmatch(r"(\d+) wrong, (\d+) made", line) for line in lines[:threads]]
    assert len(found) == threads and all(found), lines
    assert [int(f[1]) for f in found] == [0] * threads, lines
    return [int(f[2]) for f in found]


def in_rounds(done):
    """Pages that were found before the instants of their commits."""
    found = re.findall(r"of \d+ pages in all, (\d+) of them before the instant", done.stderr)
    assert found, said(done)
    return sum(map(int, found))


def told_pauses(heap):
    told = succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False))
    return json.loads(told).get("pauses", {})


def pauses(heap):
    """Of a running program: how many pages its instants and its rounds have found."""
    found = told_pauses(heap)
    return found.get("pages_at_instants", 0), sum(found.get("pages_in_rounds", []))


def commits_of(heap):
    return told_pauses(heap).get("count", 0)


def has_record(program, heap):
    """Whether this kernel keeps a record of stores here."""
    done = run([program, 0.5], **settings(heap))
    made(succeeds(done).splitlines())
    return in_rounds(done) > 0


def at_rest(done):
    """Each thread waits after 16 stores, and was in a wait at the instant."""
    assert all(n % 16 == 0 for n in done), done
    return done


def no_less(now, before):
    return all(n >= b for n, b in zip(now, before, strict=True))


def await_pages(process, heap, in_rounds):
    """Until so many were found that rounds are worth it, in rounds or at instants."""
    end = time.monotonic() + DEADLINE / 4
    while (found := pauses(heap))[in_rounds] < 1024:
        assert process.poll() is None and time.monotonic() < end, found
        time.sleep(0.05)


def await_commits(process, heap, count):
    end = time.monotonic() + DEADLINE / 2
    while commits_of(heap) < count:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)


def killed(program, env, mode, threads=2, after=(0.1, 0.6), until=None):
    command = [program, "0", mode]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = [process.stdout.readline().strip() for _ in range(threads)]
            if until:
                until(process, env["PMALLOC_HEAP"])
            time.sleep(random.uniform(*after) * busy())
        finally:
            process.kill()
    return made(lines, threads)


def kills(count, program, env, mode, threads=2, look=list, after=(0.1, 0.6), **more):
    """At least so many, and until a commit was made that has something of each thread: each kill
    that was too early for one lets the next one wait for longer."""
    before = [0] * threads
    for n in range(count + 20):
        patience = max(1, n + 2 - count)
        waits = [patience * seconds for seconds in after]
        now = look(killed(program, env, mode, threads, after=waits, **more))
        assert no_less(now, before), "what a commit had is gone"
        before = now
        if n >= count and min(now) > 0:
            return
    raise AssertionError("no commit was made")


# Each two of these settings meet here. From ROUNDS_KILLS=10 on all are tried.
PAIRS = [("5ms", "", "1"), ("5ms", "churn", "1024"), ("50ms", "", "1024"), ("50ms", "churn", "1")]
ALL = list(itertools.product(["5ms", "50ms"], ["", "churn"], ["1", "1024"]))


@pytest.mark.parametrize("commit, mode, watch", PAIRS if KILLS < 10 else ALL)
def test_killed(program, place, mode, watch, commit):
    """One thread counts, another brings pages to what they were: both are at one instant."""
    env = environment(True, **settings(place, commit, COMMIT_WATCH=watch, STATS=None))
    kills(KILLS, program, env, mode)


@pytest.mark.parametrize("memory", ["4M", "256M"])
def test_killed_in_a_storm(program, heap, memory):
    """Four threads store to 500 MB of pages a second. Rounds leave much of it to the instant, which
    has memory for a part of that, or for all."""
    env = environment(True, **settings(heap, "20ms", COMMIT_MEMORY=memory, STATS=None))
    kills((KILLS + 2) // 3, program, env, "storm", 4)


@pytest.mark.parametrize(
    "commit, mode, look",
    [
        ("100ms", "storm", list),
        ("idle:100ms", "storm", at_rest),
        ("100ms", "sections", at_rest),
        ("output", "sections", at_rest),
    ],
)
def test_killed_in_a_storm_between_operations(program, heap, commit, mode, look):
    """Four threads at this rate, all of which are in a wait, or in no section, at the instant. Each
    kill comes after rounds."""
    record = has_record(program, heap.with_name("record"))

    def until(process, heap):
        await_pages(process, heap, in_rounds=record)

    env = environment(True, **settings(heap, commit, COMMIT_PATIENCE=5000, STATS=None))
    kills((KILLS + 2) // 3, program, env, mode, 4, look, after=(0, 0.2), until=until)


@pytest.mark.parametrize("watch", ["1", "1024"])
def test_killed_at_rest(program, place, watch):
    """Rounds come before the instant, which lies between two operations of each thread."""
    env = environment(True, **settings(place, "idle:5ms", COMMIT_WATCH=watch, STATS=None))
    kills(KILLS, program, env, "", look=at_rest)


def test_killed_at_rest_where_waits_are_short(program, heap):
    """They are over at once, and hold on for an instant a second after the commit before."""

    def until(process, heap):
        await_commits(process, heap, 1)

    env = environment(True, **settings(heap, "idle:5ms", COMMIT_WATCH=1, STATS=None))
    kills((KILLS + 2) // 3, program, env, "busy", look=at_rest, after=(0, 0.3), until=until)


def test_commits_come_between_long_turns(program, heap):
    """Rounds are of no use for the next instant, which is long after them, and do not put it
    off."""
    env = environment(True, **settings(heap, "idle:5ms", COMMIT_WATCH=1))
    with subprocess.Popen([program, "0", "slow"], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        try:
            await_commits(process, heap, 2)
        finally:
            process.kill()
    assert min(made(succeeds(run([program, 0.1, "slow"], **settings(heap))).splitlines(), 1)) > 0


@pytest.mark.parametrize("mode", ["loads", "works"])
def test_what_a_program_has_loaded_is_found_before_it_is_held(program, heap, mode):
    """300 MB, by a program that waits then, and by one that is never idle: a client of it would
    wait for the instant only."""
    if not has_record(program, heap.with_name("record")):
        pytest.skip("this kernel keeps no record of stores")
    env = environment(True, **settings(heap, "idle:100ms"))
    with subprocess.Popen([program, "0", mode], env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() and process.stdout.readline() == b"loaded\n"
        end = time.monotonic() + DEADLINE / 2
        try:
            while (found := pauses(heap)) and sum(found) < 76800:
                assert process.poll() is None and time.monotonic() < end, found
                time.sleep(0.05)
        finally:
            process.kill()
    at_instants, in_rounds_of_all = found
    assert at_instants < 8 * 1024 and in_rounds_of_all > 60000, found


def test_few_pages_are_left_for_the_instant(program, place):
    done = run([program, 1, "churn"], **settings(place, COMMIT_WATCH=1))
    made(succeeds(done).splitlines())
    if not in_rounds(done):
        pytest.skip("this kernel keeps no record of stores")


def test_it_can_be_turned_off(program, place):
    done = run([program, 0.5], **settings(place, COMMIT_WATCH=0))
    made(succeeds(done).splitlines())
    assert in_rounds(done) == 0


def test_without_rounds_no_memory_is_made_ready(program, heap):
    """Each commit made some for copies of its instant, and gave all of the journal's back."""
    calls = heap.with_name("calls")
    env = environment(True, **settings(heap, COMMIT_WATCH=0))
    preload = env.pop("LD_PRELOAD")
    traced = [needs("strace"), "-f", "-qq", "-e", "trace=madvise", "-o", calls]
    traced += ["-E", f"LD_PRELOAD={preload}", program, "1"]
    done = subprocess.run(traced, env=env, capture_output=True, text=True, check=True)
    made(done.stdout.splitlines())
    commits = int(re.search(r"commits: (\d+) of", done.stderr)[1])
    given_back = re.findall(r"madvise\(\w+, (\d+), MADV_DONTNEED\)", calls.read_text())
    large = [size for size in given_back if int(size) > 64 << 20]  # one is after the first commit
    assert commits > 4 and len(large) < commits / 2, (commits, given_back)


def test_pages_that_the_kernel_may_store_to(program, place):
    """Rounds rest: such a store would leave no trace in the record."""
    done = run([program, 0.5, "direct"], **settings(place))
    made(succeeds(done).splitlines())
    assert in_rounds(done) == 0
    made(succeeds(run([program, 0.1], **settings(place))).splitlines())


def test_the_program_keeps_a_record_itself(program, heap):
    """Ours gives way, or the kernel would refuse the program's."""
    if not has_record(program, heap):
        pytest.skip("this kernel keeps no record of stores")
    done = run([program, 1, "record"], **settings(heap))
    lines = succeeds(done).splitlines()
    assert len(lines) == 2, lines
    assert min(made(lines)) > 0
    assert min(made(succeeds(run([program, 0.1], **settings(heap))).splitlines())) > 0


def test_under_a_filter_of_before_the_start(program, heap):
    """Such a filter may end the process for userfaultfd(), so it is not called."""
    filtered = compiled("filtered.c", "-D_GNU_SOURCE")
    preload = f"LD_PRELOAD={BUILD / 'libpmalloc_preload.so'}"
    command = [filtered, "/usr/bin/env", preload, program, 0.5]
    done = run(command, preload=False, **settings(heap))
    made(succeeds(done).splitlines())
    assert in_rounds(done) == 0


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_the_record_is_given_up_for_a_while(program, shm, kind):
    """Rounds begin again. The kernel refuses to end the record over a mapping of a disk's file that
    is not watched, and then it would be closed for good."""
    with file_system(kind, shm) as system:
        if not has_record(program, system.at / "record"):
            pytest.skip("this kernel keeps no record of stores")
        heap = system.at / "heap"
        env = environment(True, **settings(heap, "20ms", COMMIT_WATCH=1, STATS=None))
        argv = [program, "0", "passing"]
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline()
            end = time.monotonic() + DEADLINE / 2
            try:
                while pauses(heap)[1] == 0:
                    assert process.poll() is None and time.monotonic() < end
                    time.sleep(0.1)
            finally:
                process.kill()


def cut(heap):
    """A program of 128 MiB of changed pages, and its settings."""
    how = {"HEAP": heap, "ROOTS": "pages", "COMMIT": "300ms", "COMMIT_WATCH": 1}
    return compiled("rounds_cut.c", "-D_GNU_SOURCE"), how


def test_rounds_give_way_to_a_fork(program, heap):
    """It waits for the 8 MiB of 128 that are being written, and the next round has the rest."""
    if not has_record(program, heap.with_name("record")):
        pytest.skip("this kernel keeps no record of stores")
    for n in range(5):  # on a machine that is busy fork() may come too late
        forks, how = cut(heap.with_name(f"fork{n}"))
        before, after = map(int, succeeds(run([forks, "fork"], **how)).split())
        assert succeeds(run([forks, "fork"], **how)) == "0\n"
        if before < 32 << 20:
            break
    assert before < 32 << 20 and before <= after < before + (24 << 20)


def committer(process):
    """The thread that makes commits by time."""
    while process.poll() is None:
        for task in pathlib.Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if "pmalloc-commit" in (task / "comm").read_text(encoding="utf-8"):
                    return task
    raise AssertionError("there is no such thread")


def written_at_the_end(ends, how):
    """How much longer the journal becomes before the program has stopped its commits by time. None:
    the program came to its end when most of it was written, or nobody has looked meanwhile."""
    longest, journal = 0, how["HEAP"] / "journal"
    with subprocess.Popen(
        [ends, "end"], env=environment(True, **how), stdout=subprocess.PIPE, text=True
    ) as process:
        task = committer(process)
        while task.exists():
            longest = max(longest, journal.stat().st_size)
        before = int(process.stdout.read())
    assert process.returncode == 0
    assert succeeds(run([ends, "end"], **how)) == "0\n"
    return longest - before if before < 32 << 20 and before <= longest else None


def test_rounds_give_way_to_the_end(program, heap):
    """The program makes its last commit itself, and does not wait for rounds of the one before. On
    a machine that is busy they may be over when it comes to its end."""
    if not has_record(program, heap.with_name("record")):
        pytest.skip("this kernel keeps no record of stores")
    found = []
    while len(found) < 5 and all(more is None or more >= 24 << 20 for more in found):
        ends, how = cut(heap.with_name(f"end{len(found)}"))
        found.append(written_at_the_end(ends, how))
    assert found[-1] is not None and found[-1] < 24 << 20, found


@pytest.mark.parametrize("watch", [1, 1024])
def test_a_daemon_has_a_record_of_its_own(program, heap, watch):
    if not has_record(program, heap):
        pytest.skip("this kernel keeps no record of stores")
    done = run([program, 1, "daemon"], **settings(heap, FORK="follow", COMMIT_WATCH=watch))
    made(succeeds(done).splitlines())
    assert in_rounds(done) > 0
    made(succeeds(run([program, 0.1], **settings(heap))).splitlines())


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_store_to_a_huge_page_is_one_page(rounds, heap):
    """The kernel makes 512 pages for it, all but one of zeroes, as the file has there. They went to
    the journal, up to 4,096 in a commit."""
    program = linked("huge_pages.c")
    env = {"HEAP": heap, "ROOTS": "root", "COMMIT": "api"}
    done = run([program, rounds], **env)
    assert done.returncode == -signal.SIGKILL, said(done)
    if int(done.stdout) < 16 << 11:
        pytest.skip("the kernel gives no huge pages here")
    told = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert 16 <= told["commit"]["pages"] <= 24, told["commit"]
    assert succeeds(run([program], **env)) == f"{rounds} rounds\n"
