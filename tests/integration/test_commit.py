# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT: after a kill the heap is as of a commit, one instant of all threads. Programs of
commit.c check themselves: contents of blocks, and an order between threads that only one instant
keeps. tests/unit/test_journal_crash.c tries power failures."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from conftest import (
    BUILD,
    ROOT,
    busy,
    compiled,
    environment,
    linked,
    needs,
    on_media,
    recover,
    recovered,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

ROOTS = "store,tickets"


@pytest.fixture(scope="module")
def program():
    return compiled("commit.c", "-D_GNU_SOURCE")


@pytest.mark.check
@pytest.mark.parametrize("library", ["libpmalloc_preload.so", "libpmalloc.so"])
def test_own_calls_are_led_past_names_of_libc(library):
    """By --wrap, which LTO passes over where it knows the definition. Our own calls would
    then look like the program's, and commits would lose all that the program had stored."""
    argv = ["make", "-s", "print-inner-calls"]
    calls = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    done = subprocess.run(["nm", BUILD / library], capture_output=True, text=True, check=True)
    assert not {f"__wrap_{name}" for name in calls.split()} - set(done.stdout.split())


def checked(program, heap, least=0):
    """What the heap holds is right. Returns how many tickets there are."""
    done = run([program, "check", least], HEAP=heap, ROOTS=ROOTS)
    text = succeeds(done)
    return int(text.split()[-2]) if text else 0


def kill_at(process, seconds):
    """Kills the program after a while. Returns what it has said."""
    time.sleep(seconds)
    process.kill()
    out, errors = process.communicate()
    assert errors == "", errors
    return out


@pytest.mark.parametrize("decay", (0, 10000))
@pytest.mark.parametrize("threads", (1, 3))
def test_killed_under_time(program, place, rng, processes, threads, decay):
    made = rounds = 0
    while rounds < 5 or (not made and rounds < 30):  # a busy machine may not come to a commit
        rounds += 1
        process = start(
            [program, "churn", threads, 20000],
            HEAP=place,
            ROOTS=ROOTS,
            COMMIT="3ms",
            DECAY_MS=decay,
        )
        processes.append(process)
        kill_at(process, rng.uniform(0.02, 0.4) * max(1, rounds - 5))
        now = checked(program, place)
        assert now >= made
        made = now
    assert made


@pytest.mark.parametrize("threads", (1, 3))
def test_killed_after_its_own_commits(program, place, rng, processes, threads):
    """What pmalloc_commit() has returned for is there."""
    for number in range(5):
        process = start(
            [program, "churn", threads, 20000], HEAP=place, ROOTS=ROOTS, COMMIT="api", DECAY_MS=0
        )
        processes.append(process)
        lines = kill_at(process, rng.uniform(0.02, 0.3)).splitlines()
        # Before a thread's first commit the rows' own lines come: "N blocks, M tickets".
        said_so = [int(line) for line in lines if re.fullmatch(r"\d+", line)]
        least = max(said_so, default=0)
        assert checked(program, place, least) >= least, number


@pytest.mark.check
def test_clean_end(program, place):
    done = run([program, "churn", 3, 300], HEAP=place, ROOTS=ROOTS, COMMIT="20ms")
    last = int(succeeds(done).split()[-2])
    assert recover(place, "--check").returncode == 0
    assert not (place / "journal").exists()
    assert checked(program, place) == last


@pytest.mark.parametrize("how, commits", [("alone", 600), ("sleeps", 100)])
@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_copies_that_may_not_be_dropped_cost_no_syncs(how, commits, place, tmp_path):
    """To have the files durable sooner is of no use while they may not. Else it is, after some
    commits: the more, the longer a sync takes here."""
    trace = tmp_path / "trace"
    argv = [needs("strace"), "-f", "--seccomp-bpf", "-qq", "-e", "trace=fdatasync", "-o", trace]
    argv += [linked("sleeping_copies.c"), how, commits]
    succeeds(run(argv, preload=False, HEAP=place, ROOTS="memory", COMMIT="api"))
    syncs = trace.read_text().count("fdatasync(")
    assert (syncs < commits + 30) == (how == "sleeps") and syncs >= commits, syncs


@pytest.mark.parametrize("refused", [None, "ENOSYS"])
@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_nobody_asks_for_the_times_of_the_journal(refused, place, tmp_path):
    """Whoever has seen them makes the next write change them, and the sync write the inode, too.
    Where the other call is refused the descriptors are asked for all the same."""
    trace = tmp_path / "trace"
    calls = "trace=statx,newfstatat,fstat,pwrite64"
    argv = [needs("strace"), "-f", "-qq", "-y", "-e", calls, "-o", trace]
    argv += ["-e", f"inject=statx:error={refused}"] if refused else []
    argv += [linked("sleeping_copies.c"), "alone", 100]
    succeeds(run(argv, preload=False, HEAP=place, ROOTS="memory", COMMIT="api"))
    made = re.findall(r"(statx|fstat\w*|pwrite64)\(\d+<[^>]*/journal>", trace.read_text())
    asked = [before for before, call in zip(made, made[1:]) if call == "pwrite64" != before]
    whole = sum(call != "statx" for call in asked)
    assert len(asked) > 100 and whole == (len(asked) if refused else 0), asked


def test_statistics_say_what_commits_cost(program, place):
    done = run([program, "shrink"], HEAP=place, ROOTS=ROOTS, COMMIT="api", STATS=1)
    line = re.search(
        r"stats: commits: (\d+) of (\d+) pages in all, \d+ of them before the instant; "
        r"microseconds: (\d+) for one, (\d+) of them "
        r"with the threads held, at most (\d+)",
        done.stderr,
    )
    made, pages, took, held, longest = map(int, line.groups())
    assert made >= 9 and pages > 16384 and longest >= held > 0 and took > 0, said(done)
    done = run([program, "errors"], HEAP=place, ROOTS=ROOTS, STATS=1)
    assert "stats: commits" not in done.stderr, said(done)


@pytest.mark.parametrize("commit", ("api", "5ms"))
def test_end_among_running_threads(program, place, commit):
    """What they had stored when the program ended is there."""
    for _ in range(3):
        done = run([program, "leave", 3, 50], HEAP=place, ROOTS=ROOTS, COMMIT=commit)
        known = int(succeeds(done).split()[-1])
        assert done.stderr == "", said(done)
        assert checked(program, place, known) >= known


@pytest.mark.check
def test_space_goes_back(program, place):
    """What is released is zero again, leaves the file after a commit, and may be used anew."""
    done = run([program, "shrink"], HEAP=place, ROOTS=ROOTS, COMMIT="api", DECAY_MS=0)
    lines = succeeds(done).splitlines()
    assert all(line == "0 " for line in lines[:-1]), said(done)
    assert on_media(place) < 40 << 20
    assert checked(program, place) == 0


def test_sleeping_calls_do_not_notice(heap):
    """One thread for each call that may sleep: none fails with EINTR, none sleeps for too long."""
    program = compiled("holds_sleeping.c", libraries=["-lrt"])
    done = run([program, 2], HEAP=heap, COMMIT="3ms")
    assert "never" not in succeeds(done) and done.stderr == "", said(done)


@pytest.mark.check
def test_without_commit_mode(program, heap):
    done = run([program, "errors"], HEAP=heap, ROOTS=ROOTS)
    assert succeeds(done) == "-1 Operation not supported\n"


@pytest.mark.parametrize("commit", ("api", "1h"))
def test_too_many_changed_pages(program, place, commit):
    """Memory is bounded: commits are made that nobody asked for, and count."""
    settings = {"HEAP": place, "ROOTS": ROOTS, "COMMIT": commit}
    done = run([program, "sweep"], **settings)
    assert int(done.stdout) > 60 << 10 and done.stderr == "", said(done)
    shutil.rmtree(place)
    done = run([program, "sweep"], COMMIT_PAGES=3000, **settings)
    assert int(done.stdout) < 55 << 10, said(done)
    # Under idle it may lie within an operation, under api the program chooses the instant.
    told = commit in ("api", "idle")
    assert done.stderr.count("PMALLOC_COMMIT_PAGES") == told, said(done)
    commit = json.loads(succeeds(recover(place, "--json")))["commit"]
    assert commit["journal"] == "torn" or commit["forced"], commit


def test_too_many_changed_pages_beside_other_work(program, heap):
    """What was stored while the commits waited for a processor stayed in memory for good."""
    cpu = set(sorted(os.sched_getaffinity(0))[:2])
    loop = ["sh", "-c", "while :; do :; done"]
    others = [
        subprocess.Popen(loop, preexec_fn=lambda: os.sched_setaffinity(0, cpu)) for _ in range(14)
    ]
    try:
        env = environment(HEAP=heap, ROOTS=ROOTS, COMMIT="1h", COMMIT_PAGES=3000)
        done = subprocess.run(
            [program, "sweep"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: os.sched_setaffinity(0, cpu),
        )
    finally:
        for each in others:
            each.kill()
            each.wait()
    assert int(done.stdout) < 55 << 10 and done.stderr == "", said(done)


WRONG = ("", "5", "0s", "25h", "apis", "1 s", "-1s", "idle:", "idle:5", "idle1s", "outputs")


@pytest.mark.parametrize("value", WRONG)
def test_wrong_values(program, heap, value):
    refuses(run([program, "errors"], HEAP=heap, ROOTS=ROOTS, COMMIT=value), "PMALLOC_COMMIT=")
    assert not heap.exists()


@pytest.mark.parametrize("value", ("1s", "idle:1s", "output"))
def test_start_line(program, heap, value):
    done = run([program, "errors"], HEAP=heap, ROOTS=ROOTS, COMMIT=value, VERBOSE=1)
    assert "commit mode" in done.stderr and f"; commits: {value})" in done.stderr, said(done)


def test_the_tools_say_which_commit(program, place, processes):
    """Of a heap in use, and after a kill; the next start says it, too."""
    settings = {"HEAP": place, "ROOTS": ROOTS}
    process = start([program, "churn", 1, 20000], COMMIT="20ms", **settings)
    processes.append(process)
    argv = [tool("pmalloc-info"), "--follow", "--json", "--interval", 0.05, "--count", 40, place]
    for _ in range(10):
        looks = [json.loads(line) for line in run(argv, preload=False).stdout.splitlines()]
        numbers = [look["commit"]["number"] for look in looks if "commit" in look]
        if len(set(numbers)) > 1:
            break
    assert len(set(numbers)) > 1 and numbers == sorted(numbers), numbers
    kill_at(process, 0)
    done = run([program, "check", 0], VERBOSE=1, **settings)
    assert re.search(r"as of (a commit \d|the commit before)", done.stderr), said(done)


@pytest.mark.parametrize("mode", ("private", "copy", "follow"))
@pytest.mark.parametrize("commit", ("api", "5ms", "idle", "output"))
def test_forks(forks, place, mode, commit):
    """A child has no part in its parent's commits."""
    settings = {"HEAP": place, "ROOTS": "blocks,generation", "COMMIT": commit}
    for name in ("isolation", "hasty") if mode == "private" else ("isolation",):
        done = run([forks, name, 4], FORK=mode, **settings)
        assert done.returncode == 0, said(done)
        for heap in place.parent.glob("heap*"):
            recovered(heap)
            shutil.rmtree(heap)


def small_medium(tmp_path, script, program):
    """Runs a script that has a tmpfs of 48 MiB of its own at $1, where PMAlloc is $2, `program` $3,
    and pmalloc-recover $4."""
    mount = tmp_path / "mount"
    mount.mkdir()
    script = 'mount -t tmpfs -o size=48m tmpfs "$1" || exit 77\n' + script
    argv = ["unshare", "-rm", "bash", "-c", script, "-", mount]
    argv += [BUILD / "libpmalloc_preload.so", program, tool("pmalloc-recover")]
    done = subprocess.run(
        [str(a) for a in argv],
        env=environment(False),
        capture_output=True,
        text=True,
        timeout=60 * busy(),
        check=False,
    )
    if done.returncode in (1, 77) and "unshare" in done.stderr + "mount" in done.stderr:
        pytest.skip("needs a namespace of its own")
    assert done.returncode == 0, said(done)
    return done


@pytest.mark.parametrize("name", ("HEAP", "COMMIT_DIR"))
def test_full_medium(program, tmp_path, name):
    """The program goes on, the last commit stands, one line says so; later commits succeed. A
    failed commit makes room for the next one, until the medium is filled again: a line each. None
    fails if the journal is as long as they need before the medium is full, as on a busy machine;
    one that must fail is in test_triggers."""
    script = r"""
        export PMALLOC_NAME="$1/heap"
        PMALLOC_ROOTS=store,tickets PMALLOC_COMMIT=5ms PMALLOC_DECAY_MS=0 \
            PMALLOC_RESERVE=strict \
            LD_PRELOAD="$2" "$3" churn 1 20000 2> "$1.errors" &
        sleep 0.5
        for i in {1..30}; do
            dd if=/dev/zero bs=4k 2> /dev/null >> "$1/fill"
            sleep 0.03
        done
        "$3" check 0 > /dev/null
        rm "$1/fill"
        sleep 1
        kill -9 $! || exit 3
        wait
        "$4" --json "$1/heap" || exit 4
        PMALLOC_HEAP="$1/heap" PMALLOC_ROOTS=store,tickets LD_PRELOAD="$2" "$3" check 1 || exit 5
        cat "$1.errors" >&2
    """
    script = script.replace("PMALLOC_NAME", f"PMALLOC_{name}")
    script = script.replace("wait\n", f"wait\n        unset PMALLOC_{name}\n")
    done = small_medium(tmp_path, script, program)
    lines = done.stdout.splitlines()
    assert json.loads(lines[-2])["result"] == "recovered" and "tickets" in lines[-1], said(done)
    failed = re.findall("a commit has failed: (.*?);", done.stderr)
    reasons = {"No space left on device", "a thread does not stop"}  # the latter if it is starved
    assert len(failed) <= 30 and set(failed) <= reasons, said(done)


def test_huge_block_on_a_full_medium(program, tmp_path):
    """A block that was given out while there was room is touched when there is none: no SIGBUS. The
    commit fails, and the next one succeeds."""
    script = r"""
        mkfifo "$1/go"
        PMALLOC_HEAP="$1/heap" PMALLOC_ROOTS=store,tickets PMALLOC_COMMIT=api \
            LD_PRELOAD="$2" "$3" late < "$1/go" > "$1/said" &
        exec 9> "$1/go"
        until [ -s "$1/said" ]; do sleep 0.01; done
        dd if=/dev/zero bs=4k 2> /dev/null > "$1/fill"
        echo >&9
        until [ $(wc -l < "$1/said") = 2 ]; do kill -0 $! || exit 3; sleep 0.01; done
        rm "$1/fill"
        mount -o remount,size=128m "$1"
        echo >&9
        wait
        cat "$1/said"
        "$4" --json "$1/heap" || exit 4
        PMALLOC_HEAP="$1/heap" PMALLOC_ROOTS=store,tickets LD_PRELOAD="$2" "$3" check 2 || exit 5
    """
    lines = small_medium(tmp_path, script, program).stdout.splitlines()
    assert lines[:3] == ["0 ", "-1 No space left on device", "0 "], lines
    assert lines[-1] == "1 blocks, 2 tickets"


IO = {"aio": "api", "uring": "api", "unshare": "20ms", "zombie": "output", "closed": "api"}
IO |= {"vectors": "20ms"}


@pytest.mark.parametrize("watch", [1, 1024])
@pytest.mark.parametrize("how, mode", IO.items())
def test_the_kernel_stores_on_its_own(place, how, mode, watch):
    """What devices store to heap pages across commits arrives, and the next commit has it."""
    program = compiled("commit_io.c", "-D_GNU_SOURCE")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir=BUILD))
    settings = {"HEAP": place, "ROOTS": "buffer", "COMMIT_WATCH": watch}
    try:
        done = run([program, how, folder / "file"], COMMIT=mode, **settings)
    finally:
        shutil.rmtree(folder)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    assert done.returncode == -signal.SIGKILL and done.stderr == "", said(done)
    succeeds(run([program, "check"], **settings))
