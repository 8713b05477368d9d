# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT_DIR: the heap lies in that directory, the program works on a copy in memory. What
ends the program or the machine takes the copy, and the directory is as of the last commit."""

import pathlib
import shutil
import tempfile

import pytest
from conftest import BUILD, compiled, recover, recovered, refuses, run, said, start, succeeds
from test_commit import ROOTS, checked, kill_at

SETTINGS = {"ROOTS": ROOTS}


@pytest.fixture(scope="module")
def program():
    return compiled("commit.c", "-D_GNU_SOURCE")


@pytest.fixture
def folder():
    """On a disk."""
    made = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-test-", dir=BUILD))
    yield made
    shutil.rmtree(made)


def with_dir(heap, folder, commit):
    return {"HEAP": heap, "COMMIT_DIR": folder / "heap", "COMMIT": commit, "ROOTS": ROOTS}


@pytest.mark.parametrize("what", (("churn", 3), ("bare",)))
def test_killed(program, heap, folder, rng, processes, what):
    """Each start finds the last commit there, with the same settings and without the copy. On a
    busy disk the first one may come late: then the next run gets more time."""
    made = rounds = 0
    while rounds < 3 or (not made and rounds < 30):
        argv = [program, *what, 20000]
        process = start(argv, DECAY_MS=0, **with_dir(heap, folder, "3ms"))
        processes.append(process)
        kill_at(process, rng.uniform(0.1, 0.4) + 0.1 * rounds)
        rounds += 1
        text = succeeds(run([program, "check", made], **with_dir(heap, folder, "api")))
        now = int(text.split()[-2]) if text else 0
        assert checked(program, folder / "heap") == now
        assert now >= made
        made = now
    assert made and not heap.exists()


@pytest.mark.check
def test_clean_end(program, heap, folder):
    done = run([program, "churn", 3, 300], VERBOSE=1, **with_dir(heap, folder, "20ms"))
    last = int(succeeds(done).split()[-2])
    assert "copy in memory" in done.stderr, said(done)
    assert recover(folder / "heap", "--check").returncode == 0
    assert checked(program, folder / "heap") == last


def test_space_goes_back(program, heap, folder):
    done = run([program, "shrink"], DECAY_MS=0, **with_dir(heap, folder, "api"))
    assert all(line == "0 " for line in succeeds(done).splitlines()[:-1]), said(done)
    assert checked(program, folder / "heap") == 0


@pytest.mark.parametrize("mode", ("private", "copy", "follow"))
def test_forks(forks, heap, folder, mode):
    """A child with a heap of its own has it beside its parent's, on the disk."""
    settings = with_dir(heap, folder, "5ms") | {"ROOTS": "blocks,generation"}
    done = run([forks, "isolation", 4], FORK=mode, **settings)
    assert done.returncode == 0, said(done)
    made = list(folder.glob("heap*"))
    assert len(made) > (mode == "copy")
    for one in made:
        recovered(one)


def test_refusals(program, heap, folder):
    done = run([program, "errors"], COMMIT_DIR=folder / "heap")
    refuses(done, "PMALLOC_COMMIT_DIR=", "set PMALLOC_COMMIT")
    succeeds(run([program, "churn", 1, 50], HEAP=heap, ROOTS=ROOTS))
    done = run([program, "errors"], **with_dir(heap, folder, "api"))
    refuses(done, f"PMALLOC_HEAP={heap} holds a heap", "pmalloc-backup")
    assert not (folder / "heap").exists()
    # As the line says. Then the heap goes on there.
    succeeds(run([BUILD / "pmalloc-backup", heap, folder / "heap"], preload=False))
    shutil.rmtree(heap)
    assert "tickets" in succeeds(run([program, "check", 1], **with_dir(heap, folder, "api")))


def test_the_same_directory_by_another_path(program, folder):
    """PMALLOC_HEAP does no harm then. The line of another heap says that it may be removed."""
    where = folder / "heap"
    succeeds(run([program, "churn", 1, 600], HEAP=where, ROOTS=ROOTS))
    (folder / "link").symlink_to(folder)
    for other in (f"{where}/", folder / "link" / "heap"):
        settings = with_dir(other, folder, "api")
        assert "tickets" in succeeds(run([program, "check", 1], **settings))


def test_no_address_space(program, folder):
    """The copy needs as many addresses as the heap may come to have."""
    script = f'ulimit -f 1000; exec "{program}" errors'
    done = run(["bash", "-c", script], COMMIT_DIR=folder / "heap", COMMIT="api", PROGRAM="commit")
    refuses(done, "PMALLOC_COMMIT_DIR", "cannot be copied to memory")
