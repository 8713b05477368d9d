# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Words of live blocks that lead out of the heap, into what the next run will not have: the line at
a clean end, and at the start after a kill."""

import re

import pytest
from conftest import compiled, recover, run, said, succeeds, tool

# What each kind is called.
INTO = {
    "stack": "a stack of the first thread",
    "tls": "thread-local memory",
    "thread": "a stack of another thread",
    "file": "a mapping of {file}",
    "anonymous": "anonymous memory",
}
WAY = "root -> +24 of 32 bytes -> +0 of 32 bytes -> +0 of 32 bytes -> +16 of 32 bytes"


def out(heap, mode, kind, file="none", **settings):
    argv = [tool("pmalloc-run"), "--", compiled("out.c"), mode, kind, file]
    return run(argv, preload=False, HEAP=heap, ROOTS="root", **settings)


def line_of(done, gone):
    """The one line of a run, without what lists them."""
    lines = [line for line in done.stderr.splitlines() if gone in line]
    assert len(lines) == 1, said(done)
    text = re.fullmatch(r"pmalloc: (\S+): (.*); `pmalloc-info --out (\S+)` lists them", lines[0])
    assert text and text[1] == text[3], lines[0]
    return text[2]


GONE, WILL = " that is not there: ", " that will not be there at the next start: "


@pytest.mark.parametrize("commit", [None, "api"])
@pytest.mark.parametrize("kind", INTO)
def test_after_a_kill(heap, tmp_path, kind, commit):
    file = str(tmp_path / "orders.index")
    # With commits, a kill leaves the last one.
    mode = "end" if commit else "kill"
    done = out(heap, mode, kind, file, COMMIT=commit)
    assert done.returncode == (0 if commit else -9), said(done)
    if commit and kind != "thread":
        assert line_of(done, WILL) == f"3 words point into {INTO[kind]}{WILL}`{WAY}`".format(
            file=file
        )
        return
    assert "leads out  3 words into" in succeeds(recover(heap, "--dry-run"))
    done = out(heap, "end", kind, file)
    assert line_of(done, GONE) == f"3 words point into {INTO[kind]}{GONE}`{WAY}`".format(file=file)


@pytest.mark.parametrize("kind", [kind for kind in INTO if kind != "thread"])
def test_at_a_clean_end(heap, tmp_path, kind):
    """The start after it says nothing again."""
    file = str(tmp_path / "orders.index")
    done = out(heap, "end", kind, file)
    assert line_of(done, WILL) == f"3 words point into {INTO[kind]}{WILL}`{WAY}`".format(file=file)
    assert GONE not in out(heap, "end", kind, file).stderr


def test_a_root_itself(heap):
    assert out(heap, "kill", "root").returncode == -9
    line = line_of(out(heap, "end", "root"), GONE)
    assert line == f"1 word points into {INTO['anonymous']}{GONE}`root+8`"


@pytest.mark.parametrize("mode", ["kill", "end"])
@pytest.mark.parametrize("kind", ["code", "lost", "heap"])
def test_what_stays_is_not_told_of(heap, mode, kind):
    """Code lies where it lay, what no root reaches is nobody's, and blocks are in the heap."""
    for _ in range(2):
        assert out(heap, mode, kind).stderr == ""
