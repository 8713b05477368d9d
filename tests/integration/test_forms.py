# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Addresses as programs keep them: which forms a recovery sees, by which setting, in a start,
beside the program, offline and among the leaks; and what each form that is not seen does."""

import json
import re

import pytest
from conftest import compiled, recover, refuses, run, said, succeeds, tool

COUNT = 3000
EVER = ("plain", "low", "inside", "context", "jump")
TAGGED = ("counted", "nan", "both")
# What keeps blocks that have such words: a setting, or None where none does.
SETTING = {
    **{form: "plain" for form in EVER},
    **{form: "tagged" for form in TAGGED},
    "packed": "unaligned",
    "relative": "relative",
    "base32": "base32",
    "counted-inside": None,
    "past": "end",
    "before": "before",
    "far-before": None,
    "xor": None,
}
# The same of large blocks, and of those that were asked for with 0 bytes.
OTHER_SIZES = {
    "large": "plain",
    "large-low": "plain",
    "large-amid": "plain",
    "large-last": "plain",
    "large-counted": "tagged",
    "nothing": "plain",
    "nothing-low": "plain",
    "nothing-counted": "tagged",
}
# What is noticed, and kept until somebody has settled it.
LOOKS_LIKE = {"packed": "unaligned", "relative": "relative"}
# Without the one that keeps the neighbours of all blocks.
ALL = "tagged,unaligned,relative,base32"


def forms(heap, what, form, count=COUNT, **settings):
    settings = {"HEAP": heap, "ROOTS": "kept"} | settings
    return run([compiled("forms.c"), what, form, count], **settings)


def made(heap, form, **settings):
    done = forms(heap, "make", form, **settings)
    assert done.returncode == -9, said(done)


def found(heap, form, **settings):
    done = forms(heap, "look", form, **settings)
    return int(succeeds(done)), done.stderr


def test_the_table_has_every_form():
    names = succeeds(run([compiled("forms.c"), "list"], preload=False)).split()
    assert set(names) == {"numbers", *SETTING, *OTHER_SIZES}


@pytest.mark.parametrize("form", SETTING)
def test_what_a_start_keeps(heap, form):
    """By default, as little as possible, and all."""
    for setting in (None, "plain", ALL):
        made(heap.with_name(f"{setting}"), form, POINTERS=setting)
        kept, _ = found(heap.with_name(f"{setting}"), form, POINTERS=setting)
        sees = SETTING[form] in ("plain", *(setting or "tagged").split(","))
        if sees or (setting is None and form in LOOKS_LIKE):
            assert kept == COUNT, setting
        else:
            assert kept < COUNT / 50, setting


@pytest.mark.parametrize("form", OTHER_SIZES)
def test_blocks_of_other_sizes(heap, form):
    for setting in ("tagged", "plain"):
        place, count = heap.with_name(setting), 100
        done = forms(place, "make", form, count=count, POINTERS=setting)
        assert done.returncode == -9, said(done)
        live = json.loads(succeeds(recover(place, "--dry-run", "--json")))["live_objects"]
        kept = int(succeeds(forms(place, "look", form, count=count)))
        if setting in (OTHER_SIZES[form], "tagged"):
            assert kept == count and live >= count + 2
        else:
            assert live < count / 2


@pytest.mark.parametrize("form", [form for form, setting in SETTING.items() if setting])
def test_its_own_setting_is_enough(heap, form):
    made(heap, form, POINTERS=SETTING[form])
    assert found(heap, form, POINTERS=SETTING[form])[0] == COUNT


@pytest.mark.parametrize("form", LOOKS_LIKE)
def test_what_looks_referenced_is_kept(heap, form):
    """For each start, until the setting says whether it counts. The tool says the same."""
    name = LOOKS_LIKE[form]
    made(heap, form)
    report = recover(heap, "--dry-run")
    assert f"look like {name} pointers" in report.stderr, said(report)
    row = next(ln for ln in report.stdout.splitlines() if ln.startswith("kept "))
    assert f"look like {name} pointers reach, as in kept -> +0 of 16 bytes -> +" in row
    shown = json.loads(succeeds(recover(heap, "--dry-run", "--json")))
    assert shown["disguised_form"] == name and shown["disguised_blocks"] >= COUNT
    assert shown["disguised_way"] in row
    for _ in range(2):
        kept, line = found(heap, form)
        assert kept == COUNT
        blocks, size = re.search(r": (\d+) blocks of (\d+) bytes are reached only", line).groups()
        assert COUNT <= int(blocks) < COUNT + 20 and 96 * COUNT <= int(size) < 97 * COUNT, line
        assert f"PMALLOC_POINTERS=tagged,{name} to keep" in line and len(line.splitlines()) == 1
        at, size = re.search(r"as at byte (\d+) of the block of (\d+) bytes", line).groups()
        assert f"(kept -> +0 of 16 bytes -> +{at} of {size} bytes)" in line
    kept, line = found(heap, form, POINTERS=f"tagged,{name}")
    assert kept == COUNT and "until now" in line
    assert found(heap, form) == (COUNT, "")
    kept, line = found(heap, form, POINTERS="tagged")
    assert kept < COUNT / 50 and "is freed" in line
    assert found(heap, form)[1] == ""


@pytest.mark.parametrize("markers", ["1", "4"])
@pytest.mark.parametrize("form", ["counted", "packed", "relative", "base32"])
def test_recovery_without_the_program(heap, form, markers):
    """The heap has on record which forms count."""
    made(heap, form, POINTERS=ALL)
    report = json.loads(succeeds(recover(heap, "--json", "--threads", markers)))
    assert report["live_objects"] >= COUNT + 2 and report["state"] == "dirty"
    assert found(heap, form) == (COUNT, "")


def test_the_tool_may_be_told(heap):
    made(heap, "relative", POINTERS=ALL)
    report = json.loads(succeeds(recover(heap, "--json", "--dry-run", "--pointers", "tagged")))
    assert report["live_objects"] < COUNT / 50
    report = json.loads(succeeds(recover(heap, "--json", "--pointers", "relative")))
    assert report["live_objects"] >= COUNT
    assert found(heap, "relative") == (COUNT, "")
    wrong = recover(heap, "--pointers", "tags")
    assert wrong.returncode == 16 and "unaligned" in wrong.stderr, said(wrong)


@pytest.mark.parametrize("collect", ["later", "api", "crash"])
def test_starts_that_collect_otherwise(heap, collect):
    for form in ("both", "packed"):
        place = heap.with_name(form)
        assert forms(place, "clean", form, COLLECT=collect, POINTERS=ALL).returncode == 0
        assert found(place, form, COLLECT=collect)[0] == COUNT


def test_beside_the_program(heap):
    made(heap, "both")
    assert found(heap, "both", COLLECT="background", COMMIT="5ms")[0] == COUNT


@pytest.mark.parametrize("form", ["counted", "packed", "relative", "base32"])
def test_leaks(heap, form):
    """What only such words reach is no leak; by default it is one, but for tags."""
    for setting, leaks in ((ALL, False), (None, form != "counted")):
        place = heap.with_name(f"{setting}")
        done = forms(place, "clean", form, LEAKS="1", POINTERS=setting)
        assert done.returncode == 0, said(done)
        assert (f"reaches {COUNT} of" in done.stderr) == leaks, said(done)


def test_a_change_is_said(heap):
    made(heap, "plain", POINTERS="tagged,relative")
    kept, line = found(heap, "plain", POINTERS="tagged,relative")
    assert (kept, line) == (COUNT, "")
    kept, line = found(heap, "plain", POINTERS="unaligned")
    assert "pointers that are tagged,relative until now" in line and "is freed" in line
    assert "without pointers that are unaligned until now" in line and "may be gone" in line
    assert len(line.splitlines()) == 2 and kept == COUNT
    assert found(heap, "plain") == (COUNT, "")
    shown = succeeds(run([tool("pmalloc-info"), heap], preload=False))
    assert "unaligned" in next(ln for ln in shown.splitlines() if ln.startswith("pointers"))
    shown = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert shown["pointers"] == "unaligned"


@pytest.mark.parametrize("value", ["tags", "tagged,", ",tagged", "plain,tagged", "tagged relative"])
def test_wrong_settings(heap, value):
    made(heap, "plain")
    refuses(forms(heap, "look", "plain", POINTERS=value), "PMALLOC_POINTERS", value, "unaligned")
    assert found(heap, "plain") == (COUNT, "")


def test_a_heap_that_shrank(heap):
    """Most of what was reached is not reached any more: a root is missing, or a form is not seen.
    What the program left behind at its end is no loss."""
    done = run([compiled("forms.c"), "make", "counted", 60000], HEAP=heap, ROOTS="kept")
    assert done.returncode == -9, said(done)
    assert json.loads(succeeds(recover(heap, "--json")))["reached_before"] == 0
    said_so = "before     the last recovery reached 5."
    assert said_so in succeeds(recover(heap, "--dry-run", "--pointers", "plain"))
    assert said_so not in succeeds(recover(heap, "--dry-run"))
    _, lines = found(heap, "counted", POINTERS="plain", VERBOSE="1")
    assert "bytes that the last recovery had reached, half is not reached any more" in lines
    assert "any more" not in found(heap, "counted", VERBOSE="1")[1]


def test_numbers_are_no_pointers(heap):
    """Lengths, identifiers, offsets and packed numbers, beside garbage that they could name."""
    made(heap, "numbers")
    done = recover(heap)
    assert done.returncode == 0 and done.stderr == "", said(done)


def ends(heap, what, size, count, **settings):
    return run([compiled("ends.c"), what, size, count], HEAP=heap, ROOTS="tops", **settings)


@pytest.mark.parametrize("collect", ["always", "later"])
@pytest.mark.parametrize("size", [16, 112, 1024, 16384, 65536])
def test_one_past_the_end(heap, size, collect):
    """By the setting, whatever lies behind the block."""
    done = ends(heap, "make", size, 100, POINTERS="end", COLLECT=collect)
    assert done.returncode == -9, said(done)
    assert succeeds(ends(heap, "look", size, 100, POINTERS="end")) == "100\n"


@pytest.mark.parametrize("markers", ["1", "3"])
def test_one_past_the_end_where_nothing_begins(heap, markers):
    """The blocks behind have gone back: without a setting, the address can only mean the one."""
    done = ends(heap, "make", 65536, 100, DECAY_MS="0")
    assert done.returncode == -9, said(done)
    assert succeeds(ends(heap, "look", 65536, 100, DECAY_MS="0", MARKERS=markers)) == "100\n"


def test_one_past_the_end_is_no_leak(heap):
    def lost(size, **settings):
        place = heap.with_name(f"{size}-{len(settings)}")
        done = ends(place, "clean", size, 100, DECAY_MS="0", LEAKS="1", **settings)
        assert done.returncode == 0, said(done)
        return "reaches 100 of" in done.stderr

    assert not lost(65536)
    assert lost(1024) and not lost(1024, POINTERS="end")
