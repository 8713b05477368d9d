# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-backup of a heap in one file that a process is using (test_backup_live.py: in a
directory): each backup is of one instant, and comes back by `--make --from`. LIVE_ROUNDS=N makes N
rounds instead of a few, LIVE_KILLS=N so many kills."""

import fcntl
import json
import os
import shutil
import struct
import time

import pytest
from conftest import busy
from test_backup import BACKUP, back_up, verified
from test_backup_live import (
    MODES,
    application,
    can_record,
    counted,
    end,
    running,
    stands_or_unfinished,
    start_tool,
)
from tool_heaps import RECOVER, RUN, call, one_line

ROUNDS = int(os.environ.get("LIVE_ROUNDS", "2"))
KILLS = int(os.environ.get("LIVE_KILLS", "6"))


@pytest.fixture
def fixed(shm):
    """It has the name that test_backup_live's heap has, so that its functions work here."""
    path = shm / "heap"
    done = call(RECOVER, "--make", "--size", "96M", "--journal", "32M", path)
    assert done.returncode == 0, done
    return path


def back(shm, backup):
    """The backup on another medium: how far the program was."""
    path = shm / "again"
    path.unlink(missing_ok=True)
    done = call(RECOVER, "--make", "--size", "64M", "--from", backup, path)
    assert done.returncode == 0, done
    done = call(RUN, "-H", path, "-r", "world", "--", application(), "check")
    assert done.returncode == 0, done
    path.unlink()
    return int(done.stdout)


@pytest.mark.parametrize("mode", ["shared", "filtered", "commit", "often", "api"])
def test_each_round_is_one_instant(shm, fixed, mode):
    how, commits = dict(MODES[mode]), "options" in MODES[mode]
    with running(fixed, *how.pop("options", []), **how) as process:
        last = further = number = 0
        while further < ROUNDS:
            number += 1
            time.sleep(0.2 * commits)  # for the next commit
            report = back_up(fixed, shm / "backup", "--verify")
            assert report["round"] == number and report["state"] == "in use"
            assert report["recorded"] or mode != "shared" or not can_record()
            count = counted(shm, shm / "backup", begun=bool(last))
            assert count >= last
            further += commits or count > last  # on a busy machine it may not have run since
            last = count
        if last:
            copy = shm / "copy"
            shutil.copytree(shm / "backup", copy)
            assert back(shm, copy) == last
        assert end(process) >= last
    assert back_up(fixed, shm / "backup", "--verify")["state"] == "clean"
    assert counted(shm, shm / "backup") >= last


def test_commits_are_followed_in_the_journal(shm, fixed):
    """So little is left for the moment in which the program is held."""
    compared = 0
    with running(fixed, "-s", "COMMIT=20ms") as process:
        for _ in range(6):
            compared += not back_up(fixed, shm / "backup")["recorded"]
        count = counted(shm, shm / "backup")
        assert end(process) >= count
    assert compared <= 1


def test_a_round_writes_what_has_changed(shm, fixed):
    with running(fixed, threads=1, pages=100) as process:
        first = back_up(fixed, shm / "backup")
        second = back_up(fixed, shm / "backup")
        assert second["changed_bytes"] < first["changed_bytes"], (first, second)
        end(process)
    back_up(fixed, shm / "backup")
    # Magic number and ledger of the round before, once more.
    assert back_up(fixed, shm / "backup")["written_bytes"] == 72 + 64  # the stamp
    verified(shm / "backup")


@pytest.mark.parametrize("mode", ["shared", "commit"])
def test_the_tool_is_killed_and_the_program_goes_on(shm, fixed, rng, mode):
    how = dict(MODES[mode])
    with running(fixed, *how.pop("options", []), **how) as process:
        begin = time.monotonic()
        back_up(fixed, shm / "other")
        usual = time.monotonic() - begin
        for number in range(KILLS):
            if number == KILLS // 2:
                back_up(fixed, shm / "backup")
            with start_tool(shm) as tool:
                time.sleep(rng.uniform(0, usual))
                tool.kill()
            if (shm / "backup").exists():
                stands_or_unfinished(shm, shm / "backup", begun=mode == "shared")
        before = back_up(fixed, shm / "backup")
        count = counted(shm, shm / "backup", begun=mode == "shared")
        time.sleep(0.2 if mode == "shared" else 1)  # for the next commit
        assert back_up(fixed, shm / "backup")["round"] == before["round"] + 1
        assert counted(shm, shm / "backup") > count
        end(process, killed=KILLS)


@pytest.mark.parametrize("how", ["kill", "end"])
def test_the_program_ends_during_a_backup(shm, fixed, rng, how):
    for _ in range(max(KILLS // 3, 1)):
        with running(fixed) as process:
            if rng.random() < 0.5:
                back_up(fixed, shm / "backup")
            with start_tool(shm) as tool:
                time.sleep(rng.uniform(0, 0.1))
                if how == "kill":
                    process.kill()
                else:
                    process.stdin.close()
                out, err = tool.communicate(timeout=60)
            assert tool.returncode == 0, (out, err)
            process.wait(60 * busy())
        verified(shm / "backup")
        counted(shm, shm / "backup")
        assert json.loads(out)["state"] in ("in use", "dirty", "clean")


def test_two_backups_at_once_are_refused(shm, fixed):
    with running(fixed) as process:
        with open(fixed, "r+b") as file:
            head = file.read(8192)
            (at,) = struct.unpack_from("<Q", head, 48 + 16 * 2)  # the roots
            lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, at, 1, 0)
            fcntl.fcntl(file, 37, lock)  # F_OFD_SETLK
            done = call(BACKUP, fixed, shm / "new")
            one_line(done, "pmalloc-backup", 8, "another pmalloc-backup", "wait")
        assert not (shm / "new").exists()
        end(process)
