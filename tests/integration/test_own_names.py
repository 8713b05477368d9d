# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Programs that define functions of their own under names of libc's. C reserves few of them, and
the dynamic linker leads every library's calls to the program. The library must not call them."""

import re
import subprocess

import pytest
from conftest import BUILD, HERE, run, said, succeeds

MODES = {"no heap": {}, "heap": {"ROOTS": "kept"}, "commit": {"ROOTS": "kept", "COMMIT": "5ms"}}
MODES["output"] = MODES["heap"] | {"COMMIT": "output"}
# Variables; they have no code. A program that has one of its own is asked for by libc, too.
DATA = {"environ", "__environ", "__libc_single_threaded"}


def imports():
    """The names that the library takes from glibc. musl's linker lets no program change its own."""
    lines = subprocess.run(
        ["nm", "-D", "--undefined-only", BUILD / "libpmalloc_preload.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted(set(re.findall(r" (\w+)@GLIBC", lines)) - DATA)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Links the program with a function of that name."""
    folder = tmp_path_factory.mktemp("own")
    argv = ["gcc", "-O1", "-fno-builtin", "-c", HERE / "own_name.c", "-o", folder / "own.o"]
    subprocess.run(argv, check=True)

    def linked(name):
        define = f"-Wl,--defsym={name}=own_function,--export-dynamic"
        argv = ["gcc", "-o", folder / "own", folder / "own.o", define]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return folder / "own"

    return linked


def test_each_import(program, shm):
    names = imports()
    if not names:
        pytest.skip("not glibc")
    assert len(names) > 100 and "flock" in names and "memcpy" in names
    wrong = []
    for name in [*names, "read", "write", "malloc_usable_size_of_mine"]:
        one = program(name)
        if succeeds(run([one], preload=False)) != "ok":
            continue  # libc or the loader calls it, too
        for mode, settings in MODES.items():
            heap = {"HEAP": shm / f"{name} {mode}"} if settings else {}
            done = run([one], **heap, **settings)
            if done.returncode != 0 or done.stdout != "ok":
                wrong.append((name, mode, said(done)))
    assert not wrong
