# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""vm-test without a guest: what it concludes from a guest's answers, what it makes, and where it
skips."""

import argparse
import contextlib
import itertools
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import types

import pytest
from conftest import BUILD, ROOT, environment, said

sys.path.insert(0, str(ROOT / "tests/vm"))
import images  # noqa: E402
import initramfs  # noqa: E402
import instants  # noqa: E402
import machine  # noqa: E402
import recipes  # noqa: E402
import saved  # noqa: E402
from ledger import Census, Ledger, Operations, Walk, Wrong, check_strictly, classify  # noqa: E402
from rig import KINDS, Rig, Stop  # noqa: E402

SEED = 11
INTERVAL = 1.5


def table(number):
    """The contents of the table after so many operations."""
    objects = {}
    for n in range(1, number + 1):
        Operations(SEED).apply(objects, n)
    return objects


def walked(objects, done):
    return Walk("state", done, {slot: (serial, "whole") for slot, serial in objects.items()})


def strictly(objects, acked, walk):
    return check_strictly(objects, acked, walk, Operations(SEED))


# ---- every acknowledged object


def test_what_was_acknowledged_and_more_is_good():
    assert strictly(table(40), 40, walked(table(40), 40)) == 40
    assert (
        strictly(table(40), 40, walked(table(43), 43)) == 43
    ), "done, but not acknowledged in time"
    assert (
        strictly(table(40), 40, walked(table(44), 43)) == 43
    ), "operation 43 is published, but not done"
    assert strictly({}, 0, Walk("none", 0)) == 0


@pytest.mark.parametrize("word", ["zeroes", "torn", "foreign", "unreadable"])
def test_a_damaged_object_is_wrong(word):
    walk = walked(table(40), 40)
    slot = next(iter(walk.found))
    walk.found[slot] = (0, word)
    with pytest.raises(Wrong, match=f"1 objects are damaged: slot {slot}: {word}"):
        strictly(table(40), 40, walk)


def test_a_lost_stale_or_undead_object_is_wrong():
    ops = Operations(SEED)
    put = next(n for n in range(40, 1, -1) if table(40).get(ops.slot(n)) == n)
    gone = next(n for n in range(2, 4000) if ops.deletes(n) and ops.slot(n) in table(n - 1))
    for n, case in ((put, "lost"), (put, "stale"), (gone, "undead")):
        acked = 40 if n == put else gone
        walk = walked(table(acked), acked)
        before = table(n - 1).get(ops.slot(n), 1)
        if case == "lost":
            del walk.found[ops.slot(n)]
        else:
            walk.found[ops.slot(n)] = (before, "whole")
        with pytest.raises(Wrong, match="1 slots differ"):
            strictly(table(acked), acked, walk)


def test_an_older_table_or_none_is_wrong():
    with pytest.raises(Wrong, match="the heap is at 39"):
        strictly(table(40), 40, walked(table(39), 39))
    with pytest.raises(Wrong, match="the root is none"):
        strictly(table(40), 40, Walk("none", 0))


# ---- servers with recipes


@pytest.mark.parametrize("promised, first", [(True, 3), (False, 2)])
def test_what_a_server_must_have(promised, first):
    """Retained messages: as after all that was answered, or up to some moment behind the start."""
    for found in range(1, 30):
        ledger = recipes.Ledger("mosquitto")
        ledger.feed(f"phase open\nfound {' '.join(recipes.mosquitto_after(2))}\n")
        ledger.promised = promised
        ledger.feed("3\n4")  # the second answer is cut off
        ledger.cut()
        text = f"recover 0 x\nfound {' '.join(recipes.mosquitto_after(found))}\nchecked\n"
        if first <= found < 3 + recipes.AHEAD:
            ledger.feed(text)
            kept = recipes.mosquitto_after(found)
            assert recipes.mosquitto_after(ledger.answered) == kept and ledger.answered <= found
        else:
            with pytest.raises(recipes.Wrong, match="must be there"):
                ledger.feed(text)


def test_a_server_that_does_not_start_is_wrong():
    with pytest.raises(recipes.Wrong, match="ended: no heap"):
        recipes.Ledger("redis").feed("phase open\nended: no heap\n")


# ---- the census


def test_conditions():
    found = {
        1: (10, "whole"),
        2: (5, "whole"),
        3: (0, "zeroes"),
        5: (0, "torn"),
        6: (99, "whole"),
        7: (3, "whole"),
    }
    objects = {1: 10, 2: 11, 3: 12, 4: 13, 5: 14, 6: 15}
    assert classify(objects, 20, Walk("state", 20, found)) == {
        1: "whole",
        2: "stale",
        3: "zeroes",
        4: "gone",
        5: "other",
        7: "undead",
    }, "6 was overwritten by an operation that nobody had heard of yet"


def test_ages():
    census = Census(INTERVAL)
    census.add(
        {1: "whole", 2: "gone", 3: "gone", 4: "whole", 5: "whole"}, {1: 0.1, 2: 0.2, 3: 2.0, 4: 3.5}
    )
    other = Census(INTERVAL)
    other.add({1: "whole"}, {1: 0.0})
    census.merge(other)
    rows = {age: (total, percents[0], percents[2]) for age, total, percents in census.rows()}
    assert rows["younger"] == (3, pytest.approx(66.67, abs=0.01), pytest.approx(33.33, abs=0.01))
    assert (
        rows["1 to 2"] == (1, 0, 100)
        and rows["older"] == (1, 100, 0)
        and rows["closed"] == (1, 100, 0)
    )
    assert census.cuts == 2


# ---- what the guest says


def lines(*words):
    return "".join(word + "\n" for word in words)


def test_a_wrong_guarantee_is_noticed():
    ledger = Ledger(SEED, True, INTERVAL, "DAX")
    ledger.feed('recover 0 {"live_objects":1,"guarantee":"DAX with ADR"}\n', 0.0)
    with pytest.raises(Wrong, match="the tools say 'plain file'"):
        ledger.feed('recover 0 {"live_objects":1,"guarantee":"plain file"}\n', 0.0)


def told(promised, *words):
    """A ledger that was told of 40 operations, of a cut, and of the words."""
    ledger = Ledger(SEED, promised, INTERVAL)
    ledger.feed(
        lines("phase open", "new", "go 0", *(f"ack {n}" for n in range(1, 41))) + "ack 4", 100.0
    )
    ledger.power_cut(101.0, "run")
    ledger.feed(lines(*words), 102.0)
    return ledger


def walk_lines(objects, done, live=None, word="whole"):
    live = len(objects) + 1 if live is None else live
    return [
        "check 1",
        "phase recover",
        f'recover 0 {{"live_objects":{live}}}',
        f"walk state {done}",
        *(f"at {slot} {serial} {word}" for slot, serial in objects.items()),
        f"end {len(objects)}",
        "walked 0",
    ]


def test_half_a_line_is_no_acknowledgement():
    ledger = told(True, *walk_lines(table(40), 40))
    assert ledger.number == 40 and ledger.tally["acknowledged"] == 40
    assert ledger.tally["verified after cut"] == 1


@pytest.mark.parametrize(
    "words, message",
    [
        (["check 4 damaged"], "--check: status 4"),
        (["check 8 no such heap"], "--check: status 8"),
        (["check 1", "recover 4 {}"], "pmalloc-recover: status 4"),
        (walk_lines(table(40), 40, live=99), "recovery kept 99 blocks"),
        (["walk state 40", "pmalloc: something", "walked 125"], "status 125: pmalloc: something"),
        (["new"], "came back empty"),
        (["absent"], "the heap is gone"),
        (["ended 139"], "ended by itself with status 139"),
        (["app list 3 1 wrong: key 5"], "list, round 3, 0 operations before: status 1"),
        (
            ["app list 1 0 ok keys=9 bytes=1 ops=9 digest=c", "app list 2 3 none: no state"],
            "list, round 2, 9",
        ),
    ],
)
def test_what_is_wrong_on_dax(words, message):
    with pytest.raises(Wrong, match=message):
        told(True, *words)


def test_plain_files_are_counted_not_blamed():
    objects = table(40)
    half = dict(itertools.islice(objects.items(), len(objects) // 2))
    ledger = told(False, *walk_lines(half, 30))
    rows = list(ledger.census["power"].rows())
    assert sum(total for _, total, _ in rows) == len(objects)
    with pytest.raises(Wrong, match="status 4"):
        told(False, "check 4 damaged")


def test_what_was_done_and_never_acknowledged_counts_when_it_goes_on():
    """The guest is cut twice without a walk in between. Operations 41 to 43 are known, because the
    program goes on after them."""
    ledger = told(True, "phase open", "go 43", "ack 44")
    ledger.power_cut(103.0, "open")
    ledger.feed(lines(*walk_lines(table(44), 44)), 104.0)
    assert ledger.number == 44 and ledger.objects == table(44)


def test_a_kill_is_strict_on_any_medium():
    ledger = Ledger(SEED, False, INTERVAL)
    ledger.feed(lines("new", "go 0", *(f"ack {n}" for n in range(1, 41)), "killed"), 0.0)
    with pytest.raises(Wrong, match="slots differ|damaged"):
        ledger.feed(lines(*walk_lines(table(39), 40)), 0.0)


def test_a_line_that_a_kill_has_cut_short_says_nothing():
    """A write to a file stops between two pages when its process is killed."""
    ledger = Ledger(SEED, False, INTERVAL)
    ledger.feed(lines("new", "go 0", *(f"ack {n}" for n in range(1, 13))), 0.0)
    ledger.feed("ack 1\x18\nkilled\n", 0.0)
    assert ledger.number == 12 and ledger.event == "kill" and not ledger.noise
    ledger.feed("\x18\nkilled\n", 0.0)
    assert ledger.tally["kills"] == 2 and not ledger.noise


# ---- the program and the ledger agree


def test_churn_and_ledger_agree(shm):
    env = {**environment(True), "PMALLOC_HEAP": str(shm / "heap"), "PMALLOC_ROOTS": "state"}
    churn = str(BUILD / "vm/churn")
    ledger = Ledger(SEED, True, INTERVAL)
    for _ in range(3):
        number = str(ledger.next_number())
        command = [churn, "run", str(SEED), number]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as program:
            text = "".join(program.stdout.readline() for _ in range(1500))
            program.kill()
            text += program.stdout.read()
        ledger.feed(text + "killed\n", time.monotonic())
        recovered = subprocess.run(
            [BUILD / "pmalloc-recover", "--json", shm / "heap"],
            capture_output=True,
            text=True,
            check=True,
        )
        found = subprocess.run(
            [churn, "walk", str(SEED)], env=env, capture_output=True, text=True, check=True
        )
        assert found.stderr == ""
        ledger.feed(
            f"recover 0 {' '.join(recovered.stdout.split())}\n{found.stdout}walked 0\n",
            time.monotonic(),
        )
    assert ledger.tally["verified after kill"] == 3 and len(ledger.objects) > 100
    assert not ledger.noise


# ---- a rig without a guest: its jobs run here, and a cut is a kill of all they started


INSTEAD = """
usleep() { busybox usleep $1; }
restart() { kill -9 0; }
reset_at_once() { kill -9 0; }
unmount() { :; }
"""


class Here:
    """Replaces machine.Boot. A port is a file and a medium is a folder. All media keep what they
    have."""

    def __init__(self, _kernel, _base, folder, media, _domain, script, ports):
        self.ports = {port: folder / f"{port}.port" for port in ports}
        for path in self.ports.values():
            path.write_bytes(b"")
        for medium in media:
            (folder / "mnt" / medium.name).mkdir(parents=True, exist_ok=True)
        functions = (ROOT / "tests/vm/guest.sh").read_text(encoding="utf-8")
        text = f"{functions}\n{INSTEAD}\n{script}"
        text = text.replace("/dev/port/", f"{folder}/").replace("/mnt/", f"{folder}/mnt/")
        for name in ports:
            text = text.replace(f">{folder}/{name} ", f">>{folder}/{name}.port ")
        text = text.replace("/lib/libpmalloc_preload.so", str(BUILD / "libpmalloc_preload.so"))
        (folder / "job").write_text(text, encoding="utf-8")
        path = f"{BUILD}:{BUILD}/apps:{BUILD}/vm:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["busybox", "sh", folder / "job"],
            env={**environment(False), "PATH": path},
            start_new_session=True,
        )

    def running(self):
        return self.process.poll() is None

    def cut(self):
        """Waits until no process is left, because a process that is still dying still has its
        heap."""
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                time.sleep(0.001)

    def console(self):
        return ""


def no_state(*_, **__):
    raise saved.Broken("there is no guest")


@pytest.fixture
def rig(shm, monkeypatch):
    monkeypatch.setattr(machine, "Boot", Here)
    monkeypatch.setattr(saved, "Boot", no_state)
    monkeypatch.setattr(machine, "make_image", lambda medium, folder: None)
    monkeypatch.setattr(machine.Medium, "guarantee", lambda medium, domain: "tmpfs")
    options = argparse.Namespace(
        kills=1, work=0.1, rounds=2, apps=4, keep_going=False, snapshot=True
    )
    media = [machine.MEDIA["ext4-dax"], machine.MEDIA["ext4"]]
    return Rig(types.SimpleNamespace(version="none"), b"", shm, media, "cpu", SEED, options)


def test_every_kind_of_cut(rig):
    for kind in ("run", *KINDS, "open", "verify", "apps"):
        rig.boot(kind)
    for slot in rig.slots.values():
        assert dict(slot.cuts) == {kind: {"run": 2, "open": 2}.get(kind, 1) for kind in KINDS}
        assert slot.ledger.tally["acknowledged"] > 100 and not slot.failures
        assert slot.ledger.heap_number == 1, "a new heap must have been made"
        assert not slot.ledger.noise
    dax, plain = rig.slots["ext4-dax"].ledger, rig.slots["ext4"].ledger
    assert dax.tally["verified after cut"] >= 5 and dax.tally["verified after kill"] == 5
    rows = list(plain.census["power"].rows())
    assert rows and all(percents[0] == 100 for _, _, percents in rows), "a kill must lose nothing"
    assert dax.tally["kills"] == 5 + 2 * len(machine.APPS)


def test_what_a_cut_lost_is_noticed(rig, shm):
    rig.boot("run")
    slot = rig.slots["ext4-dax"]
    heap = shm / slot.heap().lstrip("/")
    with open(heap / "heap.0", "r+b") as data:  # a page of objects that never reached the medium
        size = os.fstat(data.fileno()).st_size
        os.pwrite(data.fileno(), bytes(size // 2), size // 4)
    with pytest.raises(
        Stop, match="ext4-dax, domain cpu, after a cut of kind run: .*(zeroes|differ|none|live)"
    ):
        rig.boot("verify")


def test_a_lost_heap_is_noticed(rig, shm):
    rig.boot("run")
    shutil.rmtree(shm / rig.slots["ext4-dax"].heap().lstrip("/"))
    with pytest.raises(Stop, match="the heap is gone"):
        rig.boot("verify")


@pytest.fixture
def storm(rig, shm):
    """Instead of that one: of commit mode, as of a guest whose kernel keeps a record of stores."""
    options = argparse.Namespace(
        work=0.3, copies=0, programs=1, triggers=["storm"], media=["ext4"], seed=SEED
    )
    options.long = options.commit = False
    return instants.Rig(types.SimpleNamespace(version="6.12.95+deb12"), b"", shm, options)


def test_cuts_of_a_storm(storm):
    storm.keeps_record = False  # whatever the host's kernel does
    for _ in range(3):
        storm.boot()
    storm.check()
    tally = storm.slots[0].ledger.tally
    assert tally["verified"] >= 2 and tally["commits"] >= 1, tally  # a cut may come early


def test_cuts_of_a_storm_without_rounds_prove_nothing(storm):
    slot = storm.slots[0]
    slot.cuts = 3
    slot.ledger.feed("rounds 0 0 0 0\n")
    slot.ledger.cut()
    with pytest.raises(instants.Wrong, match="none of 3 cuts came after rounds"):
        storm.check()
    slot.ledger.feed("rounds 20 1 0 0\nrounds 2000 100 10 0\n")
    slot.ledger.cut()
    storm.check()
    assert "1 cuts after rounds of 2110 pages, 110 of them in later ones" in storm.line()


# ---- what the guest is made of


def test_info_block():
    block = images.info_block(images.SIZE)
    assert len(block) == 4096 and block.startswith(b"NVDIMM_PFN_INFO\0")
    assert struct.unpack("<Q", block[-8:])[0] == images.fletcher64(block[:-8] + bytes(8))
    assert images.fletcher64(struct.pack("<3I", 1, 2, 3)) == (1 + 3 + 6) << 32 | 6


def test_sparse_copy(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    with open(source, "wb") as file:
        file.truncate(64 << 20)
        file.seek(20 << 20)
        file.write(b"here")
    with open(target, "wb") as file, open(source, "rb") as data:
        file.truncate(66 << 20)
        images.copy_sparse(data, file, 2 << 20)
    assert target.read_bytes()[22 << 20 :][:4] == b"here"
    assert target.stat().st_blocks * 512 < 4 << 20


def test_archive_is_one_that_cpio_reads(tmp_path):
    archive = initramfs.Archive()
    archive.add("a/b/file", "contents")
    archive.link("a/link", "b/file")
    listing = subprocess.run(
        ["busybox", "cpio", "-idm"],
        input=archive.image(),
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert listing.returncode == 0, listing.stderr
    assert (tmp_path / "a/link").read_text(encoding="ascii") == "contents"
    assert os.access(tmp_path / "a/b/file", os.X_OK)


def test_modules_come_after_what_they_need():
    def module(*needs):
        return b"\0license=GPL\0depends=" + ",".join(needs).encode() + b"\0name=x\0"

    there = {"libcrc32c": module(), "libnvdimm": module()}
    there |= {"xfs": module("libcrc32c", "built_in"), "nd_pmem": module("libnvdimm")}
    order = list(initramfs.in_load_order(["xfs", "nd-pmem", "gone"], there.get))
    assert order == ["libcrc32c", "xfs", "libnvdimm", "nd_pmem"]


# ---- where it cannot run


def vm_test(*arguments, path):
    return subprocess.run(
        ["/usr/bin/python3", ROOT / "scripts/vm-test", *arguments],
        env={**environment(False), "BUILD": str(BUILD), "PATH": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_skips_with_a_line(tmp_path):
    done = vm_test("--quick", path=tmp_path)
    assert done.returncode == 0 and done.stderr == "", said(done)
    assert (
        done.stdout.startswith("vm-test: skipped: there is no qemu-system-x86_64")
        and done.stdout.count("\n") == 1
    )


@pytest.mark.parametrize(
    "option, value", [("--media", "floppy"), ("--kernel", "no.deb"), ("--domain", "moon")]
)
def test_a_wrong_option_is_named(tmp_path, option, value):
    done = vm_test(option, value, path=tmp_path)
    assert done.returncode == 2 and option in done.stderr and value in done.stderr, said(done)
