# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT on heaps of several data files, in one directory and in two, and on a fixed medium
(0 directories): the program is killed between any two steps by which a commit changes files, or in
the midst of a write (stop_commit.c). The heap is then as of the last commit that the program knew
of, or of the one being made. The tools say which, and what the next opening has to do. STOPS is the
number of steps tried."""

import json
import os
import shutil
import signal
import subprocess

import pytest
from conftest import (
    BUILD,
    busy,
    compiled,
    environment,
    fingerprint,
    recover,
    recovered,
    run,
    said,
    succeeds,
    tool,
)

ROOTS = "store,tickets"
STOPS = int(os.environ.get("STOPS", "4"))


@pytest.fixture(scope="module")
def program():
    return compiled("commit.c", "-D_GNU_SOURCE")


@pytest.fixture(scope="module")
def stopper():
    return compiled("stop_commit.c")


def stopped(program, stopper, heap, name, log, at=0):
    shard = {} if heap.endswith("medium") else {"SHARD": "4M"}
    env = environment(False, ROOTS=ROOTS, COMMIT="api", **shard, **{name: heap})
    env["preload"] = str(BUILD / "libpmalloc_preload.so")
    argv = [stopper, str(at), log, program, "steps", "3"]
    return subprocess.run(
        argv, env=env, capture_output=True, text=True, timeout=60 * busy(), check=False
    )


def state_of(heap):
    """What --check says of a heap that was killed, and --json of its journal."""
    done = recover(heap, "--check", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == (1 if answer["result"] == "needs-recovery" else 0), said(done)
    return answer.get("commit", {"journal": "none"})


def places(shm, directories):
    return [shm / f"heap{i}" for i in range(directories)] or [shm / "medium"]


def begin_anew(folders):
    for place in folders:
        if place.name != "medium":
            shutil.rmtree(place, ignore_errors=True)
            continue
        place.unlink(missing_ok=True)
        how = ("--make", "--size", "96M", "--journal", "44M")
        succeeds(run([tool("pmalloc-recover"), *how, place], preload=False))


@pytest.mark.parametrize(
    "name, directories", (("HEAP", 1), ("HEAP", 2), ("COMMIT_DIR", 2), ("HEAP", 0))
)
def test_killed_at_each_step(program, stopper, shm, rng, name, directories):
    folders = places(shm, directories)
    heap = ":".join(map(str, folders))
    begin_anew(folders)
    done = stopped(program, stopper, heap, name, shm / "log")
    succeeds(done)
    if directories:
        assert sum(1 for folder in folders for _ in folder.glob("heap.*")) >= 4
    steps = int((shm / "log").read_text())
    assert steps > 100
    seen = set()
    for stop in sorted(rng.sample(range(1, steps + 1), min(STOPS, steps))):
        begin_anew(folders)
        done = stopped(program, stopper, heap, name, shm / "log", stop)
        assert done.returncode == 128 + signal.SIGKILL, said(done)
        known = max(map(int, done.stdout.split()), default=0)
        found = state_of(folders[0])
        seen.add(found["journal"])
        check = run([program, "check", known], HEAP=heap, ROOTS=ROOTS, VERBOSE=1)
        assert check.returncode == 0, (stop, said(check))
        now = int(check.stdout.split()[-2]) if check.stdout else 0
        assert known <= now <= known + 1, (stop, said(check))
        if found["journal"] in ("applied", "pending"):
            assert "as of a commit" in check.stderr, (stop, said(check))
    assert {"torn", "applied", "pending"} <= seen or STOPS < 100, seen


def pending(program, stopper, folders, log, rng):
    """Heaps whose last commit counts, and is not in the files, or in part of them only."""
    heap = ":".join(map(str, folders))
    begin_anew(folders)
    succeeds(stopped(program, stopper, heap, "HEAP", log))
    steps = int(log.read_text())
    for stop in rng.sample(range(1, steps + 1), steps):
        begin_anew(folders)
        done = stopped(program, stopper, heap, "HEAP", log, stop)
        if state_of(folders[0])["journal"] == "pending":
            yield max(map(int, done.stdout.split()), default=0)


def info(heap, *options):
    return succeeds(run([tool("pmalloc-info"), *options, heap], preload=False))


def looks(heap):
    """What each tool says of a heap that it only looks at."""
    texts = [recover(heap, "--check").stdout, recover(heap, "--dry-run").stdout]
    assert all("guarantee  commit mode: the heap goes back to the commit of " in t for t in texts)
    texts += [info(heap, *how) for how in ((), ("--map",), ("--html",), ("--leaks",))]
    assert all(len(text) > 50 for text in texts), texts
    check = recover(heap, "--check", "--json")
    assert check.returncode == 1, said(check)
    dry = json.loads(succeeds(recover(heap, "--dry-run", "--json")))
    return json.loads(check.stdout), dry, json.loads(info(heap, "--json"))


@pytest.mark.parametrize("directories", (1, 2, 0))
def test_a_look_sees_what_a_recovery_would_make(program, stopper, shm, rng, directories):
    folders = places(shm, directories)
    known = next(pending(program, stopper, folders, shm / "log", rng))
    heap, before = folders[0], fingerprint(shm)
    check, dry, shown = looks(heap)
    borrowed = run([program, "check", known], HEAP=heap, ROOTS=ROOTS, OPEN="private")
    assert borrowed.returncode == 0, said(borrowed)
    assert fingerprint(shm) == before
    assert check["commit"]["journal"] == dry["commit"]["journal"] == "pending"
    found = recovered(heap)
    after = json.loads(info(heap, "--json"))
    for key in ("live_objects", "live_bytes", "reclaimed_bytes", "reclaimed_slabs", "vacant_bytes"):
        assert check[key] == dry[key] == found[key], key
    for key in ("roots", "live_objects", "live_bytes"):
        assert shown[key] == after[key], key
    check = run([program, "check", known], HEAP=heap, ROOTS=ROOTS)
    assert check.returncode == 0 and check.stdout == borrowed.stdout, said(check)


def test_what_is_not_in_the_files_is_not_copied_without(program, stopper, shm, rng):
    """A backup and --make --from copy files. So the commit must be brought into them before."""
    folders = places(shm, 1)
    known = next(pending(program, stopper, folders, shm / "log", rng))
    heap, media = folders[0], [shm / f"medium{i}" for i in range(5)]
    made = [tool("pmalloc-recover"), "--make", "--size", "16M", "--from", heap, *media]
    for argv in (made, [tool("pmalloc-backup"), heap, shm / "backup"]):
        done = run(argv, preload=False)
        assert done.returncode == 8 and f"run `pmalloc-recover {heap}`" in done.stderr, said(done)
        assert len(done.stderr.splitlines()) == 1 and not media[0].exists()
    recovered(heap)
    succeeds(run(made, preload=False))
    check = run([program, "check", known], HEAP=":".join(map(str, media)), ROOTS=ROOTS)
    assert check.returncode == 0, said(check)
