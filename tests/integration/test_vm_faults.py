# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Failing disks of vm-test without a guest: the rounds run here on a disk that never fails, and
what a power cut may have lost is noticed."""

import os
import random
import re
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, environment, said

sys.path.insert(0, str(ROOT / "tests/vm"))
import faults  # noqa: E402
import machine  # noqa: E402
from fault_round import Told, Wrong, listing  # noqa: E402
from fault_run import RunLedger  # noqa: E402
from fault_start import promises  # noqa: E402
from fault_step import TARGETS  # noqa: E402
from fault_turn import STEPS, Turns  # noqa: E402

SEED = 7

# A disk that is well all the time, and a power cut that only kills: here the heap lies in a folder.
INSTEAD = """
usleep() { busybox usleep $1; }
disk_begin() { mnt=$1 tmp=$1/tmp; mkdir $tmp; mkfifo $tmp/commands $tmp/answers; trap '' PIPE; }
disk_fails() { say "fails $*"; }
disk_will_fail() { disk_fails "$@"; }
disk_turns() { :; }
disk_heals() { say "errors 0"; say "well"; }
power_fails() { [ -z "$worker" ] || kill_program; say "power"; spoil; }
spoil() { :; }
"""


def run_here(round_, folder, spoil="", more=""):
    """Runs a round in a folder; `spoil` is a command that damages the heap at the cut. `more` are
    functions that are others than on a disk."""
    names = ["guest.sh", *faults.FILES]
    text = "".join((ROOT / "tests/vm" / name).read_text(encoding="utf-8") for name in names)
    text += INSTEAD + (f"spoil() {{ {spoil}; }}\n" if spoil else "")
    text += f"{more}worker=\ndisk_begin {folder}\n{round_.script('power_fails')}{round_.rest()}"
    text = text.replace("/mnt/ext4/", f"{folder}/")
    text = text.replace("/lib/libpmalloc_preload.so", str(BUILD / "libpmalloc_preload.so"))
    text = re.sub("echo [13] >/proc/sys/vm/drop_caches", ":", text)
    path = f"{BUILD}:{BUILD}/apps:{BUILD}/vm:{os.environ['PATH']}"
    done = subprocess.run(
        ["busybox", "sh", "-c", f"exec 9>{folder}/said\n{text}"],
        env={**environment(False), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, said(done)
    return (folder / "said").read_text(encoding="utf-8")


def disk(kind, **choices):
    """A disk whose next round is of this kind, and that round with some choices made."""
    made = faults.Disk(machine.MAPPED["ext4"], SEED, [kind])
    round_ = made.next_round()
    for name, value in choices.items():
        setattr(round_, name, value)
    return made, round_


CALM = {
    "run": {"waits": [100000, 100000, 100000], "forget": "no"},
    "step": {"when": "0 1000"},
}


@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_round_on_a_good_disk_is_right(shm, kind):
    made, round_ = disk(kind, **CALM.get(kind, {}))
    made.read(run_here(round_, shm), [round_])
    if kind == "read":  # its journal could be read, and was
        made.wrong = [text for text in made.wrong if "ended with status" not in text]
    assert made.wrong == [] and made.tally[kind]["rounds"] == 1
    assert made.tally[kind]["verified"] == 1


@pytest.mark.parametrize("step", TARGETS)
def test_a_step_on_a_good_disk_is_right(shm, step):
    made, round_ = disk("step", step=step, target=TARGETS[step][0], when="0 1000")
    made.read(run_here(round_, shm), [round_])
    assert made.wrong == [] and made.tally["step"]["verified"] == 1


@pytest.mark.parametrize("step", range(len(STEPS)))
@pytest.mark.parametrize("what", ["sync", "read"])
def test_the_calls_of_a_step_are_counted(shm, step, what):
    """Then each of them is the one that fails, once."""
    made, round_ = disk(f"{what}s")
    turns = Turns(STEPS[step], what, made.medium, random.Random(SEED))
    made.plans[f"{what}s"].turns = [turns]
    round_ = made.next_round()
    round_.target = "files"
    made.read(run_here(round_, shm), [round_])
    assert made.wrong == [] and made.tally[f"{what}s"]["verified"] == 1
    assert turns.calls is not None and (turns.calls > 1 or what == "sync")
    taken = [turns.take() for _ in range(len(turns.left))]
    assert len(turns.kinds) == turns.calls and len(set(taken)) == len(taken)
    assert set(taken).issuperset(range(1, turns.calls + 1, 1 if what == "sync" else 3))
    assert turns.take() == 0
    kinds = list(dict.fromkeys(turns.kinds))[::3]
    assert sorted(map(turns.kind, taken[: len(kinds)])) == sorted(kinds)


def test_a_plan_goes_on_where_another_ended(tmp_path):
    """What was taken and not judged comes again; what failed, or was not there, does not."""

    def run(count):
        made = faults.Disk(machine.MAPPED["xfs"], SEED, ["syncs"])
        saved = faults.Saved(tmp_path / "plan", [made])
        plan = made.plans["syncs"]
        for number, turns in enumerate(plan.turns):
            if turns.calls is None:
                turns.learn(number, ["fsync /heap.0"] * number)
        rounds = [made.next_round() for _ in range(count)]
        for round_ in rounds[:-5]:
            (round_.turns.missed if round_.at == 2 else round_.turns.done).add(round_.at)
        saved.write()
        return [(round_.step, round_.settings, round_.before, round_.at) for round_ in rounds]

    first, second, third = run(25), run(46), run(6)
    assert not set(first[:-5]) & set(second) and set(first[-5:]) <= set(second)
    assert len({*first, *second}) == 66
    assert set(third[:5]) == set(second[-5:]) and third[5][-1] == 0


# The disk of these tests never fails, so the call is made to fail by what is at hand.
@pytest.mark.parametrize("at", [1, 9, 40])
def test_the_program_stops_at_its_turn(shm, at):
    """The whole heap is gone while the call is made."""
    made, round_ = disk("reads")
    made.plans["reads"].turns = [Turns(("start", "", ""), "read", made.medium, random.Random(SEED))]
    round_ = made.next_round()
    round_.at, round_.mode, round_.target = at, "once", "files"
    heap = f"{shm}/reads{round_.number}"
    lines = f"disk_fails() {{ say fails; mv {heap} {heap}.away; }}\n"
    lines += f'disk_heals() {{ mv {heap}.away {heap}; say "errors 1"; say "well"; }}\n'
    text = run_here(round_, shm, more=lines)
    assert text.count("fails\nerrors 1\nwell\n") == 1, text
    made.read(text, [round_])
    turns = made.plans["reads"].turns[0]
    assert made.wrong == [] and turns.done == {at} and len(turns.hit) == 1


def test_a_later_state_than_the_promised_one_is_noticed(shm):
    """A close has worked, and then the heap has pages of zeroes."""
    made, round_ = disk("syncs")
    made.plans["syncs"].turns = [Turns(("close", "", ""), "sync", made.medium, random.Random(SEED))]
    round_ = made.next_round()
    heap = f"{shm}/syncs{round_.number}"
    spoil = f"dd if=/dev/zero of={heap}/heap.0 bs=4096 seek=60 count=40 conv=notrunc 2>/dev/null"
    made.read(run_here(round_, shm, spoil), [round_])
    assert len(made.wrong) == 1 and "after close has worked" in made.wrong[0], made.wrong


@pytest.mark.parametrize("setting", ["later", "always", "no commit mode"])
def test_an_older_page_after_the_cut_is_noticed(shm, setting):
    """What the disk has is the heap with a run of pages of zeroes."""
    made, round_ = disk("start", setting=setting, commits=setting in ("later", "always"))
    heap = shm / f"start{round_.number}"
    spoil = f"dd if=/dev/zero of={heap}/heap.0 bs=4096 seek=60 count=40 conv=notrunc 2>/dev/null"
    round_.last = "quit"
    made.read(run_here(round_, shm, spoil), [round_])
    assert len(made.wrong) == 1 and "after the cut" in made.wrong[0], made.wrong


def test_a_lost_heap_is_noticed(shm):
    made, round_ = disk("run", **CALM["run"])
    made.read(run_here(round_, shm, f"rm -rf {shm}/run{round_.number}"), [round_])
    assert made.tally["run"]["wrong"] == 1


# ---- what is promised


def events(*words):
    told = Told("open try1\n" + "".join(f"{word}\n" for word in words) + "ended try1 0\n")
    return told.sessions["try1"].events


FAILED = "pmalloc: PMALLOC_COMMIT: a commit has failed: Input/output error; the program goes on"


def test_answers_after_a_failed_commit_are_no_promises():
    assert promises(events("new", "ok", "ok")) == 3
    assert promises(events("new", FAILED, "ok", "ok")) == 1
    assert promises(events(FAILED, "new", "errors 3", "well", "ok")) == 0
    assert promises(events(FAILED, "new", "errors 3", "well", "ok", "ok")) == 3


def test_threads_promise_again_when_each_has_said_one_thing():
    ledger = RunLedger(promised=True)
    ledger.feed("instant 0 0 0 0\nsaid 0 1\nsaid 1 1\n")
    ledger.failed()
    ledger.feed("said 0 2\nsaid 1 2\n")
    ledger.well()
    ledger.feed("said 0 3\nsaid 1 3\nsaid 0 4\n")
    assert ledger.least == [1, 1, 0]
    ledger.feed("said 2 1\nsaid 0 5\n")
    assert ledger.least == [5, 1, 0]


def test_a_refusal_needs_its_status_and_one_line():
    told = Told("open try1\npmalloc: a\nended try1 125\nopen try2\npmalloc: a\nended try2 134\n")
    assert told.sessions["try1"].not_refused(125, True) == []
    assert "status 134" in told.sessions["try2"].not_refused(125, True)[0]
    told = Told("open try1\nended try1 125\n")
    assert "0 lines" in told.sessions["try1"].not_refused(125, True)[0]


def test_half_a_line_and_half_a_round_wait_for_the_next_boot():
    made, round_ = disk("start")
    made.read(f"round {round_.number}\nopen old\nended old 0\ncut\nope", [round_])
    assert made.waiting is round_ and round_.text == "open old\nended old 0\ncut\n"
    made.read(f"after {round_.number}\nover {round_.number}\n", [round_])
    assert made.waiting is None and len(made.wrong) == 1, "it said nothing of its starts"


def test_a_disk_without_a_round_is_done_at_once():
    assert faults.is_over(b"finished\n") and faults.is_over(b"over 3\nfinished\n")
    assert faults.is_over(b"round 3\ncut\nsaid 1 4\n")
    assert not faults.is_over(b"") and not faults.is_over(b"round 3\nopen run\nsaid 1 4\n")


def test_an_unmountable_file_system_is_wrong():
    _, round_ = disk("start")
    round_.text = "unmountable bad magic\n"
    with pytest.raises(Wrong, match="cannot be mounted"):
        round_.verify()


def test_the_model_is_kvshell_itself():
    digest = listing(("fill 3 1", "set c new"))
    assert digest != listing(("fill 3 2", "set c new"))
    assert digest == listing(("fill 3 2", "fill 3 1", "set c new"))


# ---- the table of a disk that fails


def table(*words):
    done = subprocess.run(
        [BUILD / "vm/fault_map", "/dev/disk", "/dev/bad", "1000000", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [line.split() for line in done.stdout.splitlines()]


def test_a_table_covers_the_disk_once(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(os.urandom(1 << 20))
    os.sync()
    for kind, target in (("write", "delay"), ("read", "linear")):
        status, lines = table(kind, 4096, file)
        if status != 0:
            pytest.skip("this file system tells no extents")
        at = 0
        for line in lines:
            assert int(line[0]) == at, lines
            at += int(line[1])
            assert line[2] in ("linear", target)
        assert at == 1000000


def test_no_file_is_a_disk_that_is_well():
    assert table("write", 0) == (0, [["0", "1000000", "linear", "/dev/disk", "0"]])
    assert table("drop", 0)[0] == 2


def test_rounds_differ_and_repeat():
    def labels():
        made = faults.Disk(machine.MAPPED["xfs"], SEED, list(faults.KINDS))
        return [made.next_round().label() for _ in range(40)]

    assert labels() == labels() and len(set(labels())) > 30
