# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What a process has a limited amount of: a program can use as much as without PMAlloc.

The programs print what they find. Under the preload, on each kind of memory, that is what they
print with libc's malloc."""

import os
import shutil
import subprocess

import pytest
from conftest import BUILD, compiled, environment, recover, run, said, succeeds

MODES = {
    "volatile": {},
    "heap": {"HEAP": "heap"},
    "commit": {"HEAP": "heap", "COMMIT": "20ms"},
    "output": {"HEAP": "heap", "COMMIT": "output"},
}


def placed(settings, shm):
    settings = dict(settings)
    if "HEAP" in settings:
        settings |= {"HEAP": shm / settings["HEAP"], "ROOTS": "root"}
    return settings


@pytest.mark.parametrize("mode", MODES)
def test_keys(shm, mode):
    """All keys can be created, by several threads' use and again after they were deleted."""
    program = compiled("keys.c", "-O1")
    right = succeeds(run([program], preload=False))
    assert right.startswith("1024 keys of 1024\n")
    settings = placed(MODES[mode], shm)
    assert succeeds(run([program], **settings)) == right
    if "HEAP" in settings:
        done = recover(settings["HEAP"], "--check")
        assert done.returncode == 0, said(done)


SMALL = "limit 4194304, below 1, above -1 EFBIG"


@pytest.mark.parametrize("mode", [*MODES, "copy in memory"])
def test_file_size(shm, mode):
    """A program that limits its files has as much memory as before, and its files are limited."""
    program = compiled("own_files.c", "-D_GNU_SOURCE=", "-O1")
    modes = MODES | {"copy in memory": {"HEAP": "heap", "COMMIT": "20ms", "COMMIT_DIR": shm / "j"}}
    settings = placed(modes[mode], shm)
    if mode == "copy in memory":
        settings["HEAP"] = None
    assert succeeds(run([program], **settings)) == f"all\n{SMALL}\n"
    if "HEAP" in settings:
        assert succeeds(run([program, "check"], **settings)) == "all blocks\n"
        done = recover(shm / ("j" if mode == "copy in memory" else "heap"), "--check")
        assert done.returncode == 0, said(done)


@pytest.mark.parametrize("mode", ["heap", "commit", "output"])
def test_file_size_for_good(shm, mode):
    """Where the kernel does not let the limit be lifted, a line says so, and nothing is lost."""
    program = compiled("own_files.c", "-D_GNU_SOURCE=", "-O1")
    settings = placed(MODES[mode], shm)
    done = run([program, "hard"], **settings)
    assert (done.returncode, done.stdout) == (0, f"some\n{SMALL}\n"), said(done)
    assert "RLIMIT_FSIZE" in done.stderr and "hard limit" in done.stderr, said(done)
    assert succeeds(run([program], **settings)) == f"all\n{SMALL}\n"
    assert succeeds(run([program, "check"], **settings)) == "all blocks\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("soft, hard", [(64, 1024), (1024, 4096)])
def test_descriptors(shm, mode, soft, hard):
    """All numbers below the limit are the program's. What it closes, as a range or one by one, are
    its own."""
    program = compiled("fds.c", "-D_GNU_SOURCE=", "-O1")
    script = f"ulimit -Sn {soft}; ulimit -Hn {hard}; exec {program}"
    right = succeeds(run(["sh", "-c", script], preload=False))
    assert right.startswith(f"opened {soft - 3}, EMFILE\nclosed -1 0\n")
    settings = placed(MODES[mode], shm)
    done = run(["sh", "-c", script], PROGRAM="fds", **settings)
    assert (done.returncode, done.stdout, done.stderr) == (0, right, ""), said(done)
    if "HEAP" in settings:
        assert succeeds(run([program, "check"], **settings)) == "100\n"


@pytest.mark.parametrize("collect", ["always", "later", "background"])
def test_no_low_number_is_taken(shm, collect):
    """Not while a collection beside the program goes on either: a program that closed its number,
    and opened another file there, lost that one at the end of the collection."""
    program = compiled("fds.c", "-D_GNU_SOURCE=", "-O1")
    env = {"HEAP": shm / "heap", "ROOTS": "root", "COMMIT": "1s", "COLLECT": collect}
    for _ in range(3):
        done = run([program, "low"], **env)
        assert (done.returncode, done.stdout) == (-9, "3\n"), said(done)


@pytest.mark.parametrize("mode", MODES)
def test_addresses(shm, mode):
    """A limit of addresses that the program sets is for its own: threads, memory, children."""
    program = compiled("addresses.c", "-D_GNU_SOURCE=", "-O1")
    right = succeeds(run([program], preload=False))
    assert "own 167772160\nthreads 20\nas much" in right
    done = run([program], **placed(MODES[mode], shm))
    assert (done.returncode, done.stdout, done.stderr) == (0, right, ""), said(done)


USER = 23457  # nobody else's: the kernel counts the threads of all its processes


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can start a process of another user")
@pytest.mark.parametrize("mode", MODES)
def test_tasks(shm, mode):
    """A limit of threads that the program sets is for its own."""
    shm.chmod(0o755)
    (shm / "own").mkdir()
    os.chown(shm / "own", USER, USER)
    for path in BUILD / "libpmalloc_preload.so", compiled("tasks.c", "-D_GNU_SOURCE=", "-pthread"):
        shutil.copy(path, shm)

    def done(env):
        argv = [shm / "tasks"]
        return subprocess.run(
            argv, env=env, user=USER, group=USER, capture_output=True, text=True, check=False
        )

    right = succeeds(done(environment(preload=False)))
    assert right.splitlines()[2:] == [
        "own 8 12",
        "threads 7, Resource temporarily unavailable",
        "executed 8 12",
    ]
    env = environment(**placed(MODES[mode], shm / "own"))
    found = done(env | {"LD_PRELOAD": str(shm / "libpmalloc_preload.so")})
    assert (found.returncode, found.stdout, found.stderr) == (0, right, ""), said(found)
