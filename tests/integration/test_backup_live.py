# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-backup of a heap in use: each backup is of one instant, and the program notices nothing.

moments.c works in the heap with several threads. What it has stored tells whether a copy is
of one instant. LIVE_ROUNDS=N makes N rounds instead of a few, LIVE_KILLS=N so many kills, and
LIVE_FAULTS=N fails calls at so many places. Such runs need TEST_SECONDS=3600 or so."""

import contextlib
import ctypes
import errno
import fcntl
import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
import time

import pytest
from conftest import busy, compiled
from test_backup import BACKUP, BLOCK, back_up, changed_blocks, copied, shell, verified
from tool_heaps import BUILD, RECOVER, RUN, call, clean_environment, one_line, start_shell

ROUNDS = int(os.environ.get("LIVE_ROUNDS", "4"))
KILLS = int(os.environ.get("LIVE_KILLS", "12"))
FAULTS = int(os.environ.get("LIVE_FAULTS", "12"))


def application():
    return compiled("moments.c", "-D_GNU_SOURCE", "-rdynamic")


@contextlib.contextmanager
def running(heap, *options, words=(), threads=3, pages=400, before=()):
    """The application at work. Ends it, unless that was done."""
    work = [application(), "run", threads, pages]
    argv = [*before, RUN, "-H", heap, "-r", "world", *options, "--", *work]
    with subprocess.Popen(
        [str(a) for a in argv + list(words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "runs\n"
            yield process
        finally:
            process.kill()


def end(process, killed=0):
    """How far it has come. No call of its has failed, but where a tool was killed that held it, or
    where it was stopped, perhaps before any."""
    out, _ = process.communicate(timeout=60 * busy())
    words = out.replace(",", "").split()
    assert int(words[1]) <= killed and (killed or words[3] != "0"), out
    return int(words[-1])


def counted(shm, backup, begun=True):
    """How far the program was at the instant of the backup, which is checked."""
    used = copied(backup, shm / "used")
    done = call(RUN, "-H", used, "-r", "world", "--", application(), "check")
    assert done.returncode == 0 or (not begun and done.stdout == "nothing\n"), done
    assert call(RECOVER, "--check", used).returncode == 0
    shutil.rmtree(used)
    return 0 if done.returncode else int(done.stdout)


MODES = {
    "shared": {},
    "filtered": {"words": ["filter"]},  # no record of stores: everything is compared
    # Asleep whenever one looks, and yet at work.
    "napping": {"words": ["filter", "nap"], "threads": 1, "pages": 3000},
    "commit": {"options": ["-s", "COMMIT=50ms"]},
    "often": {"options": ["-s", "COMMIT=1ms"]},  # commits are missed: everything is read again
    "idle": {"options": ["-s", "COMMIT=idle"]},
    "output": {"options": ["-s", "COMMIT=output"], "words": ["tell"]},
    "api": {"options": ["-s", "COMMIT=api"], "words": ["ask"]},
}


@pytest.mark.parametrize("mode", MODES)
def test_each_round_is_one_instant(shm, mode):
    how, commits = dict(MODES[mode]), "options" in MODES[mode]
    with running(shm / "heap", *how.pop("options", []), **how) as process:
        last = further = number = 0
        while further < ROUNDS:
            number += 1
            time.sleep(0.2 * commits)  # for the next commit
            report = back_up(shm / "heap", shm / "backup", "--verify")
            assert report["round"] == number and report["state"] == "in use"
            assert report["recorded"] or mode != "shared" or not can_record()
            assert not report["recorded"] or "filter" not in MODES[mode].get("words", [])
            # The first commit is made before main.
            count = counted(shm, shm / "backup", begun=bool(last))
            assert count >= last
            further += commits or count > last  # on a busy machine it may not have run since
            last = count
        assert end(process) >= last
    assert back_up(shm / "heap", shm / "backup", "--verify")["state"] == "clean"
    assert counted(shm, shm / "backup") >= last


def test_many_processes_look_at_the_backup_of_a_living_program(shm):
    """PMALLOC_OPEN=private needs no recovery, so the rounds go on."""
    last = 0
    with running(shm / "heap") as process:
        for number in range(1, 4):
            assert back_up(shm / "heap", shm / "backup", "--verify")["round"] == number
            argv = [RUN, "-H", shm / "backup", "-s", "OPEN=private", "--", application(), "check"]
            done = [call(*argv) for _ in range(2)]
            assert [d.returncode for d in done] == [0, 0] and done[0].stdout == done[1].stdout, done
            assert int(done[0].stdout) > last
            last = int(done[0].stdout)
            verified(shm / "backup")
        end(process)
    assert counted(shm, shm / "backup") == last


def test_frequent_commits_are_followed(shm):
    """What was missed is read again while the program runs, so the hold stays short."""
    compared = []
    with running(shm / "heap", "-s", "COMMIT=10ms") as process:
        for number in range(1, 13):
            report = back_up(shm / "heap", shm / "backup")
            compared += [] if report["recorded"] else [number]
        count = counted(shm, shm / "backup")
        assert end(process) >= count
    assert len(compared) <= 1, compared


REASONS = {
    "shared": None,
    "filtered": "it runs under seccomp",
    "stopped": "it is stopped",
    "commit": None,
}


@pytest.mark.parametrize("mode", REASONS)
def test_the_report_says_why_all_was_compared(shm, mode):
    how = dict(MODES.get(mode, {}))
    with running(shm / "heap", *how.pop("options", []), **how) as process:
        if mode == "stopped":
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        done = call(BACKUP, shm / "heap", shm / "backup")
        process.send_signal(signal.SIGCONT)
        assert done.returncode == 0, done
        state = next(line for line in done.stdout.splitlines() if line.startswith("state"))
        why = REASONS[mode]
        if why and not can_record():
            why = "this kernel keeps no record of stores"
        if mode != "commit":
            assert (why in state) if why else ("(" not in state or not can_record()), state
        assert "(" not in state or "too fast" in state or mode != "commit", state
        end(process, killed=99 if mode == "stopped" else 0)  # a stop may show


def can_record():
    """Whether this kernel keeps a record of stores: Linux 6.7 or later."""
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 7)


# ---- the ends of tool and program


def stands_or_unfinished(shm, backup, begun=True):
    """A backup that verifies, and is of one instant; or none yet."""
    done = call(BACKUP, "--verify", backup)
    if done.returncode == 8:
        assert "unfinished" in done.stderr or "is empty" in done.stderr, done
        return
    assert done.returncode == 0, done
    counted(shm, backup, begun)


def start_tool(shm):
    return subprocess.Popen(
        [BACKUP, "--json", str(shm / "heap"), str(shm / "backup")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )


@pytest.mark.parametrize("mode", ["shared", "commit", "idle", "output", "api"])
def test_the_tool_is_killed_and_the_program_goes_on(shm, rng, mode):
    how, kills = dict(MODES[mode]), max(KILLS if mode == "shared" else KILLS // 3, 2)
    with running(shm / "heap", *how.pop("options", []), **how) as process:
        begin = time.monotonic()
        back_up(shm / "heap", shm / "other")
        usual = time.monotonic() - begin
        for number in range(kills):
            if number == kills // 2:
                back_up(shm / "heap", shm / "backup")
            with start_tool(shm) as tool:
                time.sleep(rng.uniform(0, usual))
                tool.kill()
            if (shm / "backup").exists():
                stands_or_unfinished(shm, shm / "backup", begun=mode == "shared")
        # Every thread goes on, and nobody traces any.
        before = back_up(shm / "heap", shm / "backup")
        count = counted(shm, shm / "backup", begun=mode == "shared")
        time.sleep(0.2 if mode == "shared" else 1.5)  # for the next commit
        assert back_up(shm / "heap", shm / "backup")["round"] == before["round"] + 1
        assert counted(shm, shm / "backup") > count
        end(process, killed=kills)


@pytest.mark.parametrize("how", ["kill", "end"])
def test_the_program_ends_during_a_backup(shm, rng, how):
    for _ in range(max(KILLS // 3, 2)):
        with running(shm / "heap") as process:
            if rng.random() < 0.5:
                back_up(shm / "heap", shm / "backup")
            with start_tool(shm) as tool:
                time.sleep(rng.uniform(0, 0.1))
                if how == "kill":
                    process.kill()
                else:
                    process.stdin.close()
                out, err = tool.communicate(timeout=60 * busy())
            assert tool.returncode == 0, (out, err)
            process.wait(60 * busy())
        verified(shm / "backup")
        counted(shm, shm / "backup")
        assert json.loads(out)["state"] in ("in use", "dirty", "clean")


@pytest.mark.parametrize("mode", ["shared", "often"])
def test_the_program_executes_itself_all_the_time(shm, mode):
    """What stands is of one instant of one of the programs; or the tool says that it found none:
    between two of them nobody has the heap."""
    how, last, good, rounds = dict(MODES[mode]), 0, 0, 0
    with running(shm / "heap", *how.get("options", []), words=["execute"]) as process:
        while rounds < ROUNDS or (not good and rounds < 10 * ROUNDS):
            rounds += 1
            done = call(BACKUP, shm / "heap", shm / "backup")
            assert process.poll() is None
            if done.returncode:
                one_line(done, "pmalloc-backup", 8)
                assert "changed hands" in done.stderr or "holds a commit" in done.stderr
            else:
                count = counted(shm, shm / "backup", begun=False)
                assert count >= last
                last = count
                good += 1
    assert good


# ---- what a round writes


def test_a_round_writes_what_has_changed_and_one_percent(shm):
    stop = compiled("stop.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="stop.so")
    owner = start_shell(shm / "heap", "fill 5000 7\n")
    back_up(shm / "heap", shm / "backup")
    old = copied(shm / "heap", shm / "old")
    owner.stdin.write("fill 3000 8\n")
    owner.stdin.flush()
    assert owner.stdout.readline()
    log = shm / "log"
    report = back_up(shm / "heap", shm / "backup", LD_PRELOAD=str(stop), STOP_LOG=str(log))
    written = int(log.read_text().split()[1])
    changed = changed_blocks(old, shm / "heap") * BLOCK
    assert report["state"] == "in use" and report["changed_bytes"] == changed > 0
    assert written == report["written_bytes"] <= changed * 1.01 + 300
    # Magic number and ledger of the round before, once more.
    assert back_up(shm / "heap", shm / "backup")["written_bytes"] == 72 + 64  # the stamp
    verified(shm / "backup")
    owner.kill()
    owner.communicate()
    assert shell(shm / "backup", "verify\n") == ["ok 5000 keys"]


@pytest.mark.parametrize("memory", ["enough", "little"])
@pytest.mark.parametrize("mode", ["shared", "commit", "filtered"])
def test_the_first_round_of_a_busy_program_writes_its_data_once(shm, mode, memory):
    """With little memory also what has changed since it was copied, and that once."""
    stop = compiled("stop.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="stop.so")
    how = dict(MODES[mode])
    little = ["prlimit", "--data=160000000"] if memory == "little" else []
    how["pages"] = 2000 if little else 400
    with running(shm / "heap", *how.pop("options", []), **how) as process:
        time.sleep(0.1)
        log = shm / "log"
        argv = [*little, BACKUP, "--json", shm / "heap", shm / "backup"]
        done = call(*argv, LD_PRELOAD=str(stop), STOP_LOG=str(log))
        assert done.returncode == 0, done
        report = json.loads(done.stdout)
        assert int(log.read_text().split()[1]) == report["written_bytes"]
        most = report["changed_bytes"] * 1.01 + 300
        assert report["written_bytes"] <= (2 * most if little else most), report
        verified(shm / "backup")
        count = counted(shm, shm / "backup", begun=mode != "commit")
        assert end(process) >= count


# ---- calls that fail


def faulty(shm, **settings):
    """Runs the tool with faults.c, and returns what it did and the calls it made."""
    layer = compiled("faults.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="faults.so")
    log = shm / "log"
    log.unlink(missing_ok=True)
    env = {"LD_PRELOAD": str(layer), "FAULT_OBJECTS": "pmalloc-backup", "FAULT_LOG": str(log)}
    done = call(BACKUP, shm / "heap", shm / "backup", **env, **settings)
    return done, [line.split() for line in log.read_text().splitlines()]


LEDGER_READS = 6


def test_a_read_that_fails_while_the_program_is_held(shm, rng):
    """The round fails, also where a thread wakes up and the look is repeated: what the kernel's
    record of stores has told once it does not tell again."""
    hits = 0
    with running(shm / "heap", pages=50):
        for _ in range(2):
            assert faulty(shm)[0].returncode == 0
        old = copied(shm / "backup", shm / "old")
        for _ in range(24):
            _, calls = faulty(shm)
            shutil.rmtree(shm / "backup")
            copied(old, shm / "backup")
            reads = [site for _, function, site, _ in calls if function == "pread"]
            site = max(set(reads), key=reads.count)  # of the heap's files
            at = str(reads.count(site) - rng.randrange(8, 24))
            fault = {"FAULT_SITE": site, "FAULT_AT": at, "FAULT_ERRNO": str(errno.EIO)}
            done, calls = faulty(shm, **fault)
            hit = [at, "pread", site, str(errno.EIO)] in calls
            after = calls[calls.index([at, "pread", site, str(errno.EIO)]) :] if hit else []
            # The last reads are of the backup's own ledger, which says less without them.
            if sum(call[1] == "pread" for call in after) < LEDGER_READS and done.returncode == 0:
                continue
            assert done.returncode == (8 if hit else 0), (at, done)
            hits += hit
    assert hits > 6


def test_any_call_of_the_tool_may_fail(shm, rng):
    """A round succeeds or says in one line why not. The old backup stands, the program goes on."""
    with running(shm / "heap", pages=50) as process:
        for rounds in (0, 1):
            for _ in range(rounds):
                assert faulty(shm)[0].returncode == 0
            old = copied(shm / "backup", shm / "old") if rounds else None
            done, calls = faulty(shm)
            assert done.returncode == 0, done
            sites = sorted({(function, site) for _, function, site, _ in calls})
            for function, site in rng.sample(sites, min(FAULTS, len(sites))):
                shutil.rmtree(shm / "backup", ignore_errors=True)
                if old:
                    copied(old, shm / "backup")
                here = [number for number, *where, _ in calls if where == [function, site]]
                at = rng.choice(here)
                error = str(errno.EINTR if function == "waitpid" else errno.EIO)
                done, _ = faulty(shm, FAULT_SITE=site, FAULT_AT=at, FAULT_ERRNO=error)
                what = (function, site, at, done)
                assert done.returncode in (0, 4, 8), what
                assert len(done.stderr.splitlines()) == (done.returncode != 0), what
                if (shm / "backup").exists() and any((shm / "backup").iterdir()):
                    stands_or_unfinished(shm, shm / "backup")
                elif old:
                    raise AssertionError(what)
        end(process, killed=FAULTS)  # a failing ptrace() mends nothing


def set_all(owner, begun, over):
    """Sets keys, one after the other. Each answer is a commit."""
    for number in itertools.count():
        owner.stdin.write(f"set key{number} {number}\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "ok\n"
        if over.is_set():
            return
        if number == 20:
            begun.set()


def test_a_commit_that_cannot_be_read_was_missed(shm):
    """The journal says which blocks have changed. What the tool cannot read of it, it does not take
    for the end."""
    layer = compiled("bad_range.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="bad_range.so")
    for number in range(12):
        heap, begun, over = shm / f"heap{number}", threading.Event(), threading.Event()
        owner = start_shell(heap, "fill 2000 7\n", "-s", "COMMIT=output")
        thread = threading.Thread(target=set_all, args=(owner, begun, over))
        thread.start()
        assert begun.wait(60 * busy())
        # The commits of this lap so far can be read, and none later.
        bad = {"BAD_NAME": "/journal", "BAD_HOW": "pread"}
        bad["BAD_AT"] = str(whole_commits(heap / "journal"))
        done = call(BACKUP, heap, shm / f"backup{number}", LD_PRELOAD=str(layer), **bad)
        over.set()
        thread.join()
        owner.kill()
        owner.communicate()
        assert done.returncode == 0, done
        verified(shm / f"backup{number}")
        count = int(shell(shm / f"backup{number}", "count\n")[0]) - 2000
        answers = shell(shm / f"backup{number}", "verify\n" + gets(count + 3))
        missing = ["none"] * 3
        assert answers == [f"ok {2000 + count} keys", *map(str, range(count)), *missing], answers


def gets(count):
    return "".join(f"get key{number}\n" for number in range(count))


def whole_commits(journal):
    """Where the last group ends that is there by now, of this lap."""
    data, at = journal.read_bytes(), 0
    while data[at : at + 8] == b"MJOURNL1" and data[at + 4080 : at + 4088] == data[4080:4088]:
        at += 4096 * (1 + struct.unpack_from("<I", data, at + 52)[0])
    return at


# ---- refusals


def test_refusals(shm):
    heap = shm / "heap"
    shell(heap, "set a b\n")
    back_up(heap, shm / "backup")
    with running(shm / "another") as process:
        with open(shm / "another" / "roots", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            argv = [BACKUP, shm / "another", shm / "new"]
            one_line(call(*argv), "pmalloc-backup", 8, "another pmalloc-backup", "wait")
        one_line(call(BACKUP, shm / "another", shm / "backup"), "pmalloc-backup", 8, "another heap")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(0x4206, process.pid, None, None) == 0:  # PTRACE_SEIZE; until this test ends
            me = f"process {os.getpid()} traces it"
            one_line(call(*argv), "pmalloc-backup", 8, f"process {process.pid}", me)
        assert not (shm / "new").exists()


OTHER = "--reuid 12345 --regid 12345 --clear-groups"
RIGHTS = {
    # The user of the tool, what ptrace_scope says ("": this kernel has none), and the line.
    "children": (12345, "1", ["ptrace_scope is 1; set it to 0", "CAP_SYS_PTRACE"]),
    "root": (12345, "2", ["ptrace_scope is 2; set it to 0", "CAP_SYS_PTRACE"]),
    "nobody": (12345, "3", ["ptrace_scope is 3", "nobody may trace", "has ended"]),
    "unknown": (12345, "", ["does not let this user trace it", "CAP_SYS_PTRACE"]),
    "unseen": (12345, "1", ["cannot be looked at from here", "as the same user"]),
    "other": (12346, "1", ["belongs to user 12345, not to user 12346"]),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: becomes other users")
@pytest.mark.parametrize("how", RIGHTS)
def test_a_user_who_may_not_hold_the_program(shm, how):
    """What a kernel with Yama refuses is mounted over, as this one may have none."""
    user, scope, words = RIGHTS[how]
    reach = ["setpriv", *OTHER.split(), "test", "-x", BUILD]
    if subprocess.run([str(a) for a in reach], check=False).returncode:
        pytest.skip("the build directory cannot be reached by others")
    os.chmod(shm, 0o777)
    with running(shm / "heap", before=["setpriv", *OTHER.split()]) as process:
        subprocess.run(["chmod", "-R", "a+rX", shm / "heap"], check=True)
        hidden = "maps" if how == "unseen" else f"task/{process.pid}/syscall"
        (shm / "fake" / "yama").mkdir(parents=True)
        (shm / "fake" / "yama" / "ptrace_scope").write_text(scope or "0")
        (shm / "closed").touch(0)
        script = f"""
            [ -z "{scope}" ] || mount --bind {shm}/fake /proc/sys/kernel || exit 99
            for file in {hidden}; do
                mount --bind {shm}/closed /proc/{process.pid}/$file || exit 99
            done
            exec setpriv --reuid {user} --regid 12345 --clear-groups {BACKUP} {shm}/heap {shm}/new
        """
        done = call("unshare", "-m", "sh", "-c", script)
        if done.returncode == 99:
            pytest.skip("mounting is forbidden")
        one_line(done, "pmalloc-backup", 8, *words)
        assert how == "other" or f"process {process.pid}" in done.stderr
        assert not (shm / "new").exists()
        end(process)
