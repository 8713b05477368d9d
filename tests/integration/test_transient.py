# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_TRANSIENT: words of blocks that lead into what the last run had mapped become NULL, at a
start and by pmalloc-recover, and nothing else does."""

import json
import shutil

import pytest
from conftest import BUILD, ROOT, compiled, recover, recovered, run, said, succeeds, tool

WORDS = [
    *("stack", "tls", "thread", "file", "anonymous"),
    *("code", "loaded", "variable", "heap", "number", "tagged"),
]
STACKS = {"stack", "tls", "thread"}
GONE = {"keep": set(), "stacks": STACKS, "clear": STACKS | {"file", "anonymous"}}
ORDERS = 6000
HOLDERS = ORDERS + 1  # the large block is one


def transient(heap, mode, file="none", preload=None, **settings):
    program = compiled("transient.c", f"-I{ROOT}")
    argv = [tool("pmalloc-run"), "--", program, mode, file]
    if preload:
        settings |= {"preload": preload}
        argv = argv[2:]
    else:
        settings |= {"preload": False}
    return run(argv, HEAP=heap, ROOTS="root", **settings)


@pytest.fixture
def killed(heap, tmp_path):
    assert transient(heap, "kill", tmp_path / "index").returncode == -9
    return heap


def expected(gone):
    lines = [f"orders={ORDERS}"]
    for holder in ("small", "large", "pointer_free", "root"):
        cleared = gone if holder in ("small", "large") else ()
        words = (f"{word}={'NULL' if word in cleared else 'kept'}" for word in WORDS)
        lines.append(f"{holder} " + " ".join(words))
    return "\n".join(lines) + "\n"


def check(done, gone, status=0):
    assert done.returncode == status, said(done)
    assert done.stdout == expected(gone), said(done)


@pytest.mark.parametrize("how", GONE)
def test_after_a_kill(killed, how):
    done = transient(killed, "end", TRANSIENT=how, VERBOSE=1)
    check(done, GONE[how])
    words = f"; {len(GONE[how]) * HOLDERS} words that led into what is gone are NULL"
    assert (words in done.stderr) == (how != "keep"), said(done)


def test_the_lines_of_words_that_lead_out(killed):
    """They tell of what stays: words of the root, and under `stacks` those into files and memory
    that the program has mapped."""
    for how in GONE:
        report = json.loads(succeeds(recover(killed, "--json", "--dry-run", *option(how))))
        stays = (5 - len(GONE[how])) * HOLDERS if how != "clear" else 0
        assert report["words_out"] == stays + 5
        assert report["words_cleared"] == len(GONE[how]) * HOLDERS
    done = transient(killed, "end", TRANSIENT="clear")
    (line,) = [line for line in done.stderr.splitlines() if "that is not there" in line]
    assert "1 word points" in line and "`root+" in line and "and 4 into others" in line, line


def option(how):
    return [] if how == "keep" else ["--transient", how]


@pytest.mark.parametrize("how", ["keep", "stacks", "clear"])
def test_offline(killed, how):
    """A second recovery finds nothing to do, and the start after it needs no setting."""
    text = succeeds(recover(killed, "--dry-run", *option(how)))
    line = f"cleared    {len(GONE[how]) * HOLDERS:,} words"
    assert (line in text) == (how != "keep"), text
    assert (line in succeeds(recover(killed, *option(how)))) == (how != "keep")
    report = json.loads(succeeds(recover(killed, "--json", *option(how))))
    assert report["words_cleared"] == 0
    check(transient(killed, "end"), GONE[how])


def test_wrong_options(killed):
    for argument in ("keep", "all", ""):
        done = recover(killed, "--transient", argument)
        assert done.returncode == 16 and "--transient" in done.stderr, said(done)
    done = run([tool("pmalloc-recover"), "--transient", "clear"], preload=False)
    assert done.returncode == 16 and "name the heap" in done.stderr, said(done)


@pytest.mark.parametrize("collect", ["crash", "later", "api"])
@pytest.mark.parametrize("mode", ["kill", "end"])
def test_a_start_that_marks_nothing(heap, tmp_path, mode, collect):
    done = transient(heap, mode, tmp_path / "index", COLLECT=collect)
    assert done.returncode in (0, -9), said(done)
    check(transient(heap, "end", TRANSIENT="clear", COLLECT=collect), GONE["clear"])


def test_a_clean_end_does_not_tell_of_what_will_be_cleared(heap, tmp_path):
    for how, words in (("keep", HOLDERS + 1), ("clear", 1)):  # the root has one
        shutil.rmtree(heap, ignore_errors=True)
        done = transient(heap, "end", tmp_path / "index", TRANSIENT=how)
        assert f"heap: {words} word{'s' * (words > 1)} point" in done.stderr, said(done)
    check(transient(heap, "end", TRANSIENT="clear"), GONE["clear"])


@pytest.mark.parametrize("collect", ["always", "background"])
def test_commits(heap, tmp_path, collect):
    """A kill before the next commit loses nothing of it; neither does one after it."""
    settings = {"COMMIT": "api", "TRANSIENT": "clear", "COLLECT": collect}
    assert transient(heap, "commit", tmp_path / "index", **settings).returncode == -9
    for mode in ("kill", "kill", "commit", "kill"):
        check(transient(heap, mode, **settings), GONE["clear"], -9)
    check(transient(heap, "end", COMMIT="api"), GONE["clear"])


def test_a_copy_in_memory(heap, tmp_path):
    settings = {"COMMIT_DIR": heap, "COMMIT": "api", "TRANSIENT": "clear"}
    program = [tool("pmalloc-run"), "--", compiled("transient.c", f"-I{ROOT}")]
    for mode, status in (("commit", -9), ("kill", -9), ("end", 0)):
        argv = [*program, mode, tmp_path / "index"]
        done = run(argv, preload=False, ROOTS="root", **settings)
        assert done.returncode == status, said(done)
        if done.stdout:
            assert done.stdout == expected(GONE["clear"])


def test_a_private_heap_is_not_changed(killed):
    check(transient(killed, "end", OPEN="private", TRANSIENT="clear"), set())
    assert recovered(killed)["words_out"] > 0


def test_numbers_that_look_like_addresses(killed):
    """The reason why it is asked for: what is on record as the stack is 8 MiB."""
    report = json.loads(succeeds(recover(killed, "--json", "--transient", "stacks")))
    assert report["words_cleared"] == 3 * HOLDERS
    check(transient(killed, "end"), STACKS)


def test_kills_amid_it(heap, tmp_path):
    """Killed before each write to the medium of a start, after which another one does the rest."""
    layer = compiled("cut_msync.c", "-shared", "-fPIC", name="cut_msync.so")
    settings = {"preload": f"{layer}:{BUILD}/seen/libpmalloc_preload.so", "TRANSIENT": "clear"}
    amid = 0
    for cut in range(1, 200):
        shutil.rmtree(heap, ignore_errors=True)
        assert transient(heap, "kill", tmp_path / "index").returncode == -9
        done = transient(heap, "end", PERSIST="page", cut_msync=cut, **settings)
        if done.returncode == 0:
            check(done, GONE["clear"])
            break
        left = json.loads(succeeds(recover(heap, "--json", "--dry-run", "--transient", "clear")))
        amid += 0 < left["words_cleared"] < len(GONE["clear"]) * HOLDERS
        check(transient(heap, "end", TRANSIENT="clear"), GONE["clear"])
    assert cut > 10 and amid > 10
