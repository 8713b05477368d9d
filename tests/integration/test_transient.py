# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_TRANSIENT: words of blocks that lead into what the last run had mapped become NULL, at a
start and by pmalloc-recover, and nothing else does."""

import json
import shutil

import pytest
from conftest import BUILD, ROOT, compiled, linked, recover, recovered, run, said, succeeds, tool

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


def test_more_files_than_are_on_record(heap, tmp_path):
    """Those that the record has no room for lie where other threads' stacks may lie. `stacks` is
    for a program that maps files again: words into them stay."""
    argv = [compiled("transient_files.c"), tmp_path / "index"]
    settings = {"HEAP": heap, "ROOTS": "root", "TRANSIENT": "stacks"}
    assert run(argv, **settings).returncode == -9
    done = run(argv, **settings)
    assert done.stdout == "files=14 stacks=0\n", said(done)


# ---- words that the program has declared, by type -----------------------------------------------

TYPED = {"typed": 3000, "pointer_free": 3000, "pinned": 3000, "large": 3}
OTHERS = {"other_type": 3000, "untyped": 3000}


def typed(heap, mode, *what, **settings):
    program = linked("transient_types.c")
    done = run([program, mode, *what], preload=False, HEAP=heap, **settings)
    assert done.returncode == (-9 if mode == "kill" else 0), said(done)
    return done.stdout


def became(**null):
    """What a look says: of these sorts all transient words are NULL."""
    lines = []
    for sort, count in (TYPED | OTHERS).items():
        cleared = null.get(sort, 0)
        lines.append(f"{sort} null={cleared} kept={count - cleared} wrong=0\n")
    return "".join(lines)


@pytest.mark.parametrize("collect", ["always", "crash", "later", "api"])
@pytest.mark.parametrize("mode", ["kill", "end"])
def test_declared_by_type(heap, mode, collect):
    settings = {"COLLECT": collect}
    assert typed(heap, mode, "declare", "make", "look", **settings) == became()
    assert typed(heap, mode, "look", **settings) == became(**TYPED)


def test_what_only_such_words_reach_is_freed(heap):
    typed(heap, "kill", "declare", "make")
    foretold = json.loads(succeeds(recover(heap, "--json", "--dry-run")))
    report = recovered(heap)
    declared = sum(TYPED.values())
    assert (foretold["words_declared"], report["words_declared"]) == (0, declared)
    pointed = declared - TYPED["pointer_free"]
    assert foretold["live_objects"] - report["live_objects"] == pointed
    assert recovered(heap)["words_declared"] == 0
    assert typed(heap, "end", "look") == became(**TYPED)


def test_a_declaration_ends(heap):
    typed(heap, "end", "declare", "declare", "make", "undeclare")
    assert typed(heap, "kill", "look", "declare") == became()
    assert typed(heap, "kill", "look") == became(**TYPED)


def test_blocks_that_come_where_typed_ones_were(heap):
    typed(heap, "kill", "declare", "make", "reuse", DECAY_MS=0)
    assert typed(heap, "end", "look") == became(**(TYPED | {"typed": 0}))


def test_blocks_that_move(heap):
    typed(heap, "kill", "declare", "make", "move")
    assert typed(heap, "end", "look") == became(**TYPED)


def test_declared_under_commits(heap):
    typed(heap, "kill", "make", "commit", "declare", COMMIT="api")
    assert typed(heap, "kill", "look", "declare", "commit", COMMIT="api") == became()
    for _ in range(2):
        assert typed(heap, "kill", "look", COMMIT="api") == became(**TYPED)


def test_declared_in_a_heap_that_is_shared(heap):
    typed(heap, "kill", "declare", "make")
    said_no = typed(heap, "end", "look", "declare", OPEN="private")
    assert said_no == became(**TYPED) + "Operation not supported\n"
    assert recovered(heap)["words_declared"] == sum(TYPED.values())


def test_a_clean_end_does_not_tell_of_declared_words(heap):
    program = linked("transient_types.c")
    for more, words in ((["declare"], "1 word points"), (["undeclare"], "3 words point")):
        done = run([program, "end", "stack", *more], preload=False, HEAP=heap)
        assert f"heap: {words} into a stack of the first thread" in done.stderr, said(done)


def test_wrong_declarations(heap, tmp_path):
    assert typed(heap, "end", "wrong", "full", "declare") == "-1 -1 -1 -1\n8 1\n"
    program = linked("transient_types.c")
    done = run([program, "end", "declare"], preload=False, BACKING="volatile")
    assert done.stdout == "Operation not supported\n", said(done)


def test_kills_amid_declared_words(heap):
    layer = compiled("cut_msync.c", "-shared", "-fPIC", name="cut_msync.so")
    amid = 0
    for cut in range(1, 400):
        shutil.rmtree(heap, ignore_errors=True)
        typed(heap, "kill", "declare", "make")
        program = linked("transient_types.c")
        preload = f"{layer}:{BUILD}/seen/libpmalloc_preload.so"
        settings = {"HEAP": heap, "PERSIST": "page", "cut_msync": cut}
        done = run([program, "end", "look"], preload=preload, **settings)
        if done.returncode == 0:
            assert done.stdout == became(**TYPED)
            break
        assert done.returncode == -9, said(done)
        assert typed(heap, "end", "look") == became(**TYPED)
        amid += 1
    assert cut > 10 and amid > 10


@pytest.mark.parametrize("bit", [0, 20, 40])
def test_a_damaged_declaration(heap, bit):
    typed(heap, "end", "declare")
    file = heap / "superblock"
    data = bytearray(file.read_bytes())
    word = (7 << 16 | 1 << 16 // 8).to_bytes(4, "little")
    at = data.index(word, 4096)
    data[at + bit // 8] ^= 1 << bit % 8
    file.write_bytes(data)
    done = recover(heap, "--check")
    assert done.returncode == 4 and "transient words is damaged" in done.stderr, said(done)
