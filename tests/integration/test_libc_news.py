# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What newer libcs do otherwise is done under the preload, too: glibc 2.41 to 2.43, musl 1.2.6.

The table in scripts/README.md names each. A part that this libc has not is left out by both."""

import shutil

import pytest
from conftest import compiled, run, said, succeeds

PARTS = ("random", "cancel", "abort", "offsets", "threads", "stack", "names", "fortify")
ROOTS = "target"
MODES = {
    "none": {},
    "heap": {"ROOTS": ROOTS},
    "time": {"ROOTS": ROOTS, "COMMIT": "20ms"},
    "output": {"ROOTS": ROOTS, "COMMIT": "output"},
}
SOURCE, MODULE = "libc_news.c", "libc_news_tls.c"
SHARED = ("-fPIC", "-shared")


@pytest.fixture(scope="module")
def program():
    flags = ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", "-D_GNU_SOURCE", "-O2")
    return compiled(SOURCE, *flags)


@pytest.fixture(scope="module")
def modules():
    return {
        "libtls.so": compiled(MODULE, *SHARED, name="libnews_tls.so"),
        "libexecstack.so": compiled(
            MODULE, *SHARED, "-Wl,-z,execstack", name="libnews_execstack.so"
        ),
    }


def found(program, modules, folder, part, **how):
    folder.mkdir()
    for name, library in modules.items():
        shutil.copy(library, folder / name)
    done = run([program, part, folder], **how)
    text = succeeds(done).replace(f"{folder}/", "")
    assert text.endswith("done\n"), said(done)
    return text, done.stderr


def same(program, modules, tmp_path, shm, part, settings):
    plain = found(program, modules, tmp_path / "plain", part, preload=False)
    heap = {"HEAP": shm / "heap"} if settings else {}
    ours = found(program, modules, tmp_path / "ours", part, **heap, **settings)
    assert ours == plain
    return plain[0]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", PARTS)
def test_the_same_is_found(program, modules, tmp_path, shm, part, mode):
    text = same(program, modules, tmp_path, shm, part, MODES[mode])
    assert part != "random" or ", 0 alike" in text
    assert part != "threads" or ": 6 right" in text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("allowed", (0, 1, 2))
def test_executable_stacks_by_the_tunable(
    program, modules, tmp_path, shm, monkeypatch, allowed, mode
):
    """0: none, 1: the program's own alone, 2: libraries, too, where glibc knows it (2.42)."""
    monkeypatch.setenv("GLIBC_TUNABLES", f"glibc.rtld.execstack={allowed}")
    same(program, modules, tmp_path, shm, "stack", MODES[mode])
