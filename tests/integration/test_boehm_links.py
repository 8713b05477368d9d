# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Disappearing links of gc.h in a heap: recovery clears those whose object died, and the others go
on in the next process."""

import json
import sys

import pytest

from conftest import ROOT, compiled, fingerprint, recover, run, said, tool
from test_boehm import needs_headers

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))

from forge import crc32c, link_word  # noqa: E402

pytestmark = needs_headers

ROOTS = "heap,variable,scanned"
LINKS_BIT = 32  # PM_INCOMPAT_LINKS


@pytest.fixture(scope="module")
def program():
    return compiled("boehm_links.c", libraries=["-lgc"])


def steps(program, heap, *words, killed=True, roots=ROOTS, **settings):
    """What the steps print."""
    argv = [tool("pmalloc-run"), "--gc", "--", program, *words, *["kill"] * killed]
    done = run(argv, preload=False, HEAP=heap, ROOTS=roots, **settings)
    assert done.returncode == (-9 if killed else 0), said(done)
    assert not done.stderr.replace("Killed\n", ""), said(done)
    return done.stdout.splitlines()


def report(heap, *options):
    done = recover(heap, "--json", *options)
    assert done.returncode in (0, 1), said(done)
    return json.loads(done.stdout)


def info(heap):
    done = run([tool("pmalloc-info"), "--json", heap], preload=False)
    assert done.returncode == 0, said(done)
    return json.loads(done.stdout)


def incompat(heap):
    return int.from_bytes((heap / "superblock").read_bytes()[24:32], "little")


def test_recovery_offline_clears_what_died(program, heap):
    steps(program, heap, "make=1000")
    assert info(heap)["links"] == 1000 and info(heap)["links_of_dead"] == 500
    before = fingerprint(heap)
    assert report(heap, "--dry-run")["links_cleared"] == 500
    assert report(heap, "--check")["links"] == 1000
    assert fingerprint(heap) == before
    found = report(heap)
    assert (found["links"], found["links_cleared"], found["links_lost"]) == (1000, 500, 0)
    assert info(heap)["links"] == 500 and info(heap)["links_of_dead"] == 0
    assert steps(program, heap, "show", "again") == ["500 cleared, 500 kept"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"COLLECT": "crash"},
        {"MARKERS": "2"},
        {"COLLECT": "background", "COMMIT": "api"},
        {"COMMIT": "1ms"},
    ],
    ids=str,
)
def test_a_start_clears_what_died(program, heap, settings):
    steps(program, heap, "make=200")
    assert steps(program, heap, "show", "again", "collect", "show", **settings) == [
        "100 cleared, 100 kept"
    ] * 2


def test_a_start_that_keeps_all_keeps_links(program, heap):
    steps(program, heap, "make=200")
    assert steps(program, heap, "show", COLLECT="later") == ["0 cleared, 100 kept"]
    assert info(heap)["links"] == 200
    assert steps(program, heap, "show") == ["100 cleared, 100 kept"]


def test_links_go_on_in_the_next_process(program, heap):
    steps(program, heap, "make=500")
    for at in (0, 500):
        assert steps(program, heap, f"show={at}", *["move"] * (at == 0)) == [
            "250 cleared, 250 kept"
        ]
    assert info(heap)["links"] == 250
    # They are where they were moved to, and are cleared there.
    steps(program, heap, "let-go")
    assert report(heap)["links_cleared"] == 250
    assert steps(program, heap, "show=500") == ["500 cleared, 0 kept"]


def test_a_collection_in_the_living_process_is_on_media(program, heap):
    steps(program, heap, "make=400", "collect")
    left = info(heap)["links"]
    assert 200 <= left < 240  # conservative: a few dead ones may be found on stacks
    steps(program, heap, "free", "collect", "show")
    assert info(heap)["links"] == 0


def test_withdrawn_links_are_not_cleared(program, heap):
    steps(program, heap, "make=400", "withdraw")
    assert info(heap)["links"] == 0
    assert steps(program, heap, "show") == ["0 cleared, 200 kept"]
    steps(program, heap, "let-go", "overwrite=4711")
    assert steps(program, heap, "show") == ["0 cleared, 0 kept"]


def test_a_link_is_about_its_last_object(program, heap):
    steps(program, heap, "make=400", "change")
    assert report(heap)["links_cleared"] == 0
    assert info(heap)["links"] == 400


def test_links_in_dead_blocks_go(program, heap):
    steps(program, heap, "make=400", "drop-weak")
    found = report(heap)
    assert (found["links_lost"], found["links_cleared"]) == (400, 0)
    assert info(heap)["links"] == 0


# The program may have freed the block that a word was in without a word to the collector.
def test_a_word_with_another_value_is_left(program, heap):
    steps(program, heap, "make=100", "overwrite=4711")
    found = report(heap)
    assert (found["links_foreign"], found["links_cleared"]) == (50, 0)
    assert steps(program, heap, "show") == ["0 cleared, 0 kept"]
    assert info(heap)["links"] == 50


def test_short_and_long_links_of_what_waits_for_its_finalizer(program, heap):
    steps(program, heap, "make=300", "finalizers", "collect")
    # Short ones are cleared as soon as the finalizer is due, long ones only when it has run.
    left = info(heap)["links"]
    assert 150 + 40 <= left <= 150 + 60
    assert report(heap)["links_cleared"] == left - 150
    assert steps(program, heap, "show") == ["150 cleared, 150 kept"]


def test_a_link_in_memory_that_is_scanned_holds_its_object(program, heap):
    steps(program, heap, "scanned")
    assert report(heap)["links_cleared"] == 0
    assert steps(program, heap, "show-scanned") == ["scanned 42"]


def test_a_link_in_a_captured_variable(program, heap):
    steps(program, heap, "variable")
    assert info(heap)["links"] == 1
    found = report(heap)
    assert (found["links_cleared"], found["links_lost"]) == (1, 0)
    assert steps(program, heap, "show-variable", "make=10", "variable", "hold-variable") == [
        "variable cleared"
    ]
    # The next processes have it at other addresses.
    for _ in range(2):
        assert steps(program, heap, "show-variable") == ["variable kept"]
    steps(program, heap, "let-go")
    assert steps(program, heap, "show-variable", "withdraw-variable=0") == ["variable cleared"]
    steps(program, heap, "variable")
    steps(program, heap, "withdraw-variable=0")  # cleared by the start


def test_a_link_in_a_variable_that_is_no_root_is_volatile(program, heap):
    steps(program, heap, "make=10", "variable", roots="heap")
    assert info(heap)["links"] == 10


def test_a_root_that_is_dropped_takes_its_links_with_it(program, heap):
    steps(program, heap, "make=10", "variable")
    assert info(heap)["links"] == 11
    for root in ("variable", "dropped:variable"):
        done = recover(heap, "--drop-root", root, "--yes")
        assert done.returncode == 0, said(done)
    steps(program, heap, "show", roots="heap")
    assert info(heap)["links"] == 5


def test_a_heap_without_links_stays_as_it_was(program, heap):
    steps(program, heap, "collect")
    assert not incompat(heap) & LINKS_BIT
    assert info(heap)["links"] == 0
    steps(program, heap, "make=10")
    assert incompat(heap) & LINKS_BIT


def test_a_private_heap_has_links_of_its_own(program, heap):
    steps(program, heap, "make=100", killed=False)
    assert report(heap)["links"] in (50, 100)
    steps(program, heap, "collect", killed=False)
    before = fingerprint(heap)
    held = steps(program, heap, "again", "free", "collect", "show", killed=False, OPEN="private")
    assert held == ["100 cleared, 0 kept"]
    assert fingerprint(heap) == before


# Its blocks went with the close, so links of the next process are new, and no old one is left.
def test_a_heap_without_roots_has_no_links_of_the_last_process(program, heap):
    for _ in range(2):
        steps(program, heap, "make=500", killed=False, roots=None, COLLECT="crash")
    assert report(heap)["links"] in (0, 500)
    assert info(heap)["links"] == 0


@pytest.mark.parametrize("fork", ["private", "copy"])
def test_a_child_withdraws_links_of_its_own(program, heap, fork):
    steps(program, heap, "make=100", "fork", FORK=fork)
    assert info(heap)["links"] == 100
    assert report(heap)["links_cleared"] == 50


def test_killed_again_and_again(program, heap, rng):
    steps(program, heap, "make=3000")
    for _ in range(6):
        step = rng.choice(["again", "move", "collect"])
        if step == "move":
            steps(program, heap, "move")
            steps(program, heap, "let-go" if rng.random() < 0.2 else "show=3000")
            break
        steps(program, heap, step, "show")
    assert report(heap)["links_foreign"] == 0


# ---- damage


def tables(data):
    """Offsets of the tables of links in morph.0."""
    return [at for at in range(0, len(data), 64) if data[at : at + 2] == b"LK"]


def checked(data, at, value):
    """The word at an offset of morph.0 that has this value and the right check."""
    word = bytearray(data)
    word[at : at + 8] = value.to_bytes(8, "little")
    return link_word(word, at // 8)


def forge(heap, place, value):
    """Gives a word of the first entry in use another value; `value` gets the old one."""
    path = heap / "morph.0"
    data = bytearray(path.read_bytes())
    for table in tables(data):
        for entry in range(table + 64, table + 32 * 64, 32):
            word = int.from_bytes(data[entry : entry + 8], "little")
            if word & (1 << 44) - 1:
                at = entry + place
                old = int.from_bytes(data[at : at + 8], "little")
                assert place == 16 or checked(data, at, old & (1 << 44) - 1) == old
                data[at : at + 8] = value(data, at, old).to_bytes(8, "little")
                path.write_bytes(data)
                return
    raise AssertionError("no entry is in use")


@pytest.mark.parametrize(
    "place, value",
    [
        (0, lambda data, at, old: old ^ 1 << 20),
        (8, lambda data, at, old: old ^ 1 << 20),
        (16, lambda data, at, old: 1),
        (0, lambda data, at, old: checked(data, at, (1 << 43) | 1)),
        (8, lambda data, at, old: checked(data, at, 1 << 43)),
        (8, lambda data, at, old: checked(data, at, (old & (1 << 44) - 1) | 8)),
        (0, lambda data, at, old: checked(data, at, old & (1 << 44) - 1 | 4)),
    ],
    ids="link object root far-link far-object odd-object no-root".split(),
)
def test_a_damaged_entry_is_refused(program, heap, place, value):
    steps(program, heap, "make=100")
    forge(heap, place, value)
    before = fingerprint(heap)
    for options in ((), ("--check",), ("--dry-run",)):
        done = recover(heap, *options)
        assert done.returncode == 4 and "link" in done.stderr, said(done)
    done = run([tool("pmalloc-run"), "--gc", "-H", heap, "--", program, "show"], preload=False)
    assert done.returncode == 125 and "link" in done.stderr, said(done)
    assert fingerprint(heap) == before


# A good check and an address in the heap: nothing is written but to a word that names a dead
# object.
def test_a_forged_entry_writes_to_no_other_word(program, heap):
    steps(program, heap, "make=100")
    dead = []
    forge(heap, 8, lambda data, at, old: dead.append(old & (1 << 44) - 1) or old)
    # Word 1 of a node that lives: its address is 16 * n + 8, below or above the dead one.
    forge(heap, 0, lambda data, at, old: checked(data, at, (dead[0] // 8 + 33 * 3) << 3 | 1))
    found = report(heap)
    assert found["links_cleared"] <= 50
    assert steps(program, heap, "show")[0].endswith("50 kept")


def test_a_chain_of_tables_that_comes_back_is_refused(program, heap):
    steps(program, heap, "make=300")
    path = heap / "morph.0"
    data = bytearray(path.read_bytes())
    oldest = next(at for at in tables(data) if data[at + 8 : at + 12] == bytes(4))
    newest = max(tables(data))
    data[oldest + 8 : oldest + 12] = (newest // 64).to_bytes(4, "little")
    data[oldest + 60 : oldest + 64] = crc32c(data[oldest : oldest + 60]).to_bytes(4, "little")
    path.write_bytes(data)
    done = recover(heap)
    assert done.returncode == 4 and "overlaps" in done.stderr, said(done)


def test_the_text_of_the_tools(program, heap):
    steps(program, heap, "make=100")
    done = run([tool("pmalloc-info"), heap], preload=False)
    assert "links      100 disappearing links, 50 of them of dead objects" in done.stdout
    done = recover(heap)
    assert "links      100, of these 50 of dead objects cleared" in done.stdout, said(done)
