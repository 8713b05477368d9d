# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Words of live blocks that lead out of the heap, into what the next run will not have: the line at
a clean end, and at the start after a kill; and pmalloc-info --out, which lists them."""

import contextlib
import json
import re

import pytest
from conftest import busy, compiled, recover, run, said, start, succeeds, tool

# What each kind is called.
INTO = {
    "stack": "a stack of the first thread",
    "tls": "thread-local memory",
    "thread": "a stack of another thread",
    "file": "a mapping of {file}",
    "anonymous": "anonymous memory",
}
WAY = "root -> +24 of 32 bytes -> +0 of 32 bytes -> +0 of 32 bytes -> +16 of 32 bytes"


def command(mode, kind, file):
    return [tool("pmalloc-run"), "--", compiled("out.c"), mode, kind, file]


def out(heap, mode, kind, file="none", **settings):
    return run(command(mode, kind, file), preload=False, HEAP=heap, ROOTS="root", **settings)


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
    if commit:
        assert line_of(done, WILL) == f"3 words point into {INTO[kind]}{WILL}`{WAY}`".format(
            file=file
        )
        return
    assert "leads out  3 words into" in succeeds(recover(heap, "--dry-run"))
    done = out(heap, "end", kind, file)
    assert line_of(done, GONE) == f"3 words point into {INTO[kind]}{GONE}`{WAY}`".format(file=file)


@pytest.mark.parametrize("kind", INTO)
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


# ---- pmalloc-info --out -------------------------------------------------------------------------

MEMBER = "root.shop->orders->next->next->index"
KINDS = {"stack": "stack", "tls": "thread-local", "thread": "stack", "file": "file"} | {
    "anonymous": "anonymous"
}


def listed(*of):
    return json.loads(succeeds(run([tool("pmalloc-info"), "--out", "--json", *of], preload=False)))


def check(report, kind, file, name):
    assert report["words"] == 3 and report["all_holders"]
    (place,) = [place for place in report["places"] if place["kind"] != "module"]
    assert place["kind"] == KINDS[kind] and place["words"] == 3
    assert name in place["name"] and (kind != "file" or file in place["name"])
    (holder,) = place["holders"]
    assert holder["words"] == 3 and holder["size"] == 32 and holder["at"] == 16
    assert holder["path"] == MEMBER


@pytest.mark.parametrize("kind", KINDS)
def test_a_heap_at_rest(heap, tmp_path, kind):
    file = str(tmp_path / "orders.index")
    assert out(heap, "kill", kind, file).returncode == -9
    check(listed(heap), kind, file, INTO[kind].format(file=file))
    text = succeeds(run([tool("pmalloc-info"), "--out", heap], preload=False))
    assert text.startswith("3 words lead out of the heap, into what will not be there\n3 into ")
    assert f" 3  {MEMBER} (32 bytes at 0x400000" in text


@contextlib.contextmanager
def waiting(heap, kind, file, **settings):
    process = start(command("wait", kind, file), preload=False, HEAP=heap, ROOTS="root", **settings)
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield process
        process.communicate("x", timeout=60 * busy())
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("kind", KINDS)
def test_a_process(heap, tmp_path, kind):
    """Twice, by its number and by its heap; it goes on."""
    file = str(tmp_path / "orders.index")
    with waiting(heap, kind, file) as process:
        name = "a stack of thread" if kind == "thread" else INTO[kind].format(file=file)
        for of in (process.pid, heap):
            report = listed(of)
            check(report, kind, file, name)
            assert report["process"] == process.pid and report["held_ns"] > 0


def test_a_process_with_commits(heap):
    """What its last commit has."""
    with waiting(heap, "anonymous", "none", COMMIT="1ms") as process:
        for _ in range(1000):
            report = listed(process.pid)
            if report["words"]:
                break
        check(report, "anonymous", "none", INTO["anonymous"])


def test_what_leads_into_modules_is_apart(heap):
    with waiting(heap, "code", "none") as process:
        report = listed(process.pid)
        (place,) = report["places"]
        assert report["words"] == 0 and report["module_words"] == place["words"] == 3
        assert place["kind"] == "module" and "libc" in place["name"]
    report = listed(heap)
    assert report["words"] == 0 and report["module_words"] == 3


def test_a_root_is_a_holder(heap):
    assert out(heap, "kill", "root").returncode == -9
    (place,) = listed(heap)["places"]
    assert [(h["path"], h["root"], h["words"]) for h in place["holders"]] == [
        ("root.note", True, 1)
    ]


def test_without_types_the_way_is_in_bytes(heap, tmp_path):
    """The program is another build by now."""
    program = tmp_path / "shop"
    program.write_bytes(compiled("out.c").read_bytes())
    program.chmod(0o755)
    argv = [tool("pmalloc-run"), "--", program, "kill", "anonymous", "none"]
    assert run(argv, preload=False, HEAP=heap, ROOTS="root").returncode == -9
    program.unlink()
    (place,) = listed(heap)["places"]
    assert place["holders"][0]["path"] == WAY


def test_wrong_commands(heap, tmp_path):
    assert out(heap, "end", "heap").returncode == 0
    for more in (["--leaks"], ["--svg"], ["--tree", "root"], ["--nodes"], ["--follow"]):
        done = run([tool("pmalloc-info"), "--out", *more, heap], preload=False)
        assert done.returncode == 16 and "goes with" in done.stderr, said(done)
    missing = run([tool("pmalloc-info"), "--out", tmp_path / "none"], preload=False)
    assert missing.returncode == 8 and str(tmp_path / "none") in missing.stderr, said(missing)
    process = start(["/bin/sleep", "60"], preload=False)
    try:
        done = run([tool("pmalloc-info"), "--out", process.pid], preload=False)
        assert done.returncode == 8 and "has no heap on media" in done.stderr, said(done)
    finally:
        process.kill()
        process.communicate()
