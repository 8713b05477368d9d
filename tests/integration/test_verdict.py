# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""One verdict: `pmalloc-recover --check` says what a recovery by the tool and a start of the
program would say.

The heaps have forged fields whose checks are right (tests/fuzz/forge.py), so a reader must judge
the value itself. All readers must agree that a heap is sound, damaged, or another build's. What is
refused stays as it is. A program may refuse a sound heap for a reason of its own: it lacks a root
that the heap names.

PMALLOC_VERDICTS sets how many heaps of each kind are forged; PMALLOC_SEED sets which."""

import collections
import os
import random
import re
import shutil
import signal
import sys

import pytest
from conftest import API, DEADLINE, ROOT, app, linked, run, said, start, tool

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from forge import forge, groups, near_misses, number, put_right, seal  # noqa: E402
from heap_layout import read, read_to_write, write  # noqa: E402

COUNT = int(os.environ.get("PMALLOC_VERDICTS") or 40)
KINDS = ("clean", "dirty", "recovered", "unrooted", "pinned")
# What the program lacks of a heap's roots. No tool can know that.
LACKS = re.compile(
    r"The heap \S+ has this root|has no root .*\. The heap|in this program, but \d+ in the heap"
    r"|is not constructed in this program"
)
DAMAGE = "nothing was changed: copy the heap"
FOREIGN = "made by another build of PMAlloc"
COPY = "is a copy of a heap"  # by a forged origin; pmalloc-info shows it


def shell(heap, commands, kind, **settings):
    roots = None if kind in ("unrooted", "pinned") else "store"
    return run(
        [app("kvshell")], stdin=commands, HEAP=heap, ROOTS=roots, VERBOSE=1, timeout=20, **settings
    )


def morphing():
    """Commands that leave slabs hardly used, and then need some of them for values of another size.
    They make extents, too."""
    yield from (f"set long{i} {'x' * 980}" for i in range(200))
    yield from (f"del long{i}" for i in range(200) if i % 8)
    yield from (f"set short{i} {'y' * 600}" for i in range(150))
    yield from (f"set large{i} {'z' * 30000}" for i in range(12))
    yield from (f"del large{i}" for i in range(0, 12, 3))
    yield "get large1"


def kill_after(heap, commands, kind):
    """Kills the program once it has answered the last command, which is a `get`."""
    roots = None if kind == "unrooted" else "store"
    process = start([app("kvshell")], HEAP=heap, ROOTS=roots, MORPH=60)
    process.stdin.write("\n".join(commands) + "\n")
    process.stdin.flush()
    while (line := process.stdout.readline()) and "zzzz" not in line:
        pass
    assert line
    process.kill()
    process.communicate()


def make_pinned(heap):
    """Lists of pinned nodes, of a program that was killed."""
    program = linked("pinned.c")
    argv = [program, "xor"]
    assert run([*argv, "leave"], preload=API, HEAP=heap).returncode == 0
    process = start([*argv, "hang"], preload=API, HEAP=heap)
    assert process.stdout.readline().startswith("ok ")
    process.kill()
    process.communicate()


@pytest.fixture
def original(request, shm):
    """The files of a heap of each kind."""
    kind, heap = request.param, shm / "original"
    # Two processes, so that both root tables are used.
    assert shell(heap, "fill 200\nquit\n", "clean").returncode == 0
    if kind in ("unrooted", "pinned"):
        shutil.rmtree(heap)
    if kind == "clean":
        # An odd number in all, so that the next root area lies after this one.
        for commands in ("fill 300 2\nquit\n", "quit\n"):
            assert shell(heap, commands, kind).returncode == 0
    elif kind == "pinned":
        make_pinned(heap)
    else:
        kill_after(heap, morphing(), kind)
    if kind == "recovered":
        assert run([tool("pmalloc-recover"), heap], preload=False).returncode == 0
    files = read_to_write(heap)
    shutil.rmtree(heap)
    return kind, files


def verdict_of_tool(done):
    assert done.returncode in (0, 1, 4, 8), said(done)
    if done.returncode == 8 and COPY in done.stderr:
        return "copy"
    assert (FOREIGN in done.stderr) == (done.returncode == 8), said(done)
    return {0: "sound", 1: "sound", 4: "damaged", 8: "foreign"}[done.returncode]


def verdict_of_program(done):
    """A program that has got its heap may end in any way, because its data were forged."""
    if "pmalloc: heap " in done.stderr:
        return "sound"
    assert done.returncode == 125, said(done)
    if COPY in done.stderr:
        return "copy"
    verdict = (
        "lacks" if LACKS.search(done.stderr) else "damaged" if DAMAGE in done.stderr else "foreign"
    )
    assert (FOREIGN in done.stderr) == (verdict == "foreign"), said(done)
    return verdict


def judge(heap, files, kind):
    """The verdict of each reader, and where the verdicts disagree."""
    says = {}
    write(heap, files)
    for name, argv in (("check", ["pmalloc-recover", "--check"]), ("info", ["pmalloc-info"])):
        says[name] = (
            done := run([tool(argv[0]), *argv[1:], heap], preload=False, timeout=20),
            verdict_of_tool(done),
        )
    wrong = [] if read(heap) == files else ["a look changed it"]
    for name in ("recover", "program"):
        if name == "recover":
            done = run([tool("pmalloc-recover"), heap], preload=False, timeout=20)
        else:
            done = shell(heap, "quit\n", kind)
        verdict = verdict_of_tool(done) if name == "recover" else verdict_of_program(done)
        says[name] = (done, verdict)
        if verdict == "sound":
            write(heap, files)
        elif read(heap) != files:
            wrong.append(f"{name} refused it and changed it")
    verdicts = {name: verdict for name, (_, verdict) in says.items()}
    if verdicts["check"] == "copy":
        del verdicts["info"]
    if len(set(verdicts.values()) - {"lacks"}) > 1:
        wrong.append(str(verdicts))
    if says["check"][0].returncode == 0 and not says["recover"][0].stdout.count("was clean"):
        wrong.append("clean for --check alone")
    texts = "".join(
        f"  {name}: {(done.stderr.strip() or 'no message')[:300]}\n"
        for name, (done, _) in says.items()
    )
    return verdicts["check"], [f"{text}\n{texts}" for text in wrong]


@pytest.mark.check
@pytest.mark.parametrize("original", ["clean"], indirect=True)
def test_forged_class_is_sealed(original):
    """Else readers see a wrong check, and never judge the value."""
    _, files = original
    forged = {name: bytearray(data) for name, data in files.items()}
    field = next(f for f in groups(files)["slabs[].current"] if any(f.get(files[f.file])))
    value, salt = 5 << 26, 0x80000000 | field.offset // 64
    put_right(forged, field, value)
    assert number(forged[field.file], field.offset) == seal(value, salt)


@pytest.mark.parametrize("original", KINDS, indirect=True)
def test_forged_fields(original, shm, rng):
    kind, files = original
    known = groups(files)
    signal.alarm(max(DEADLINE, 2 * COUNT))
    base, wrong, tally = rng.randrange(1 << 32), [], collections.Counter()
    for i in range(COUNT):
        forged = {name: bytearray(data) for name, data in files.items()}
        what = forge(forged, known, random.Random(f"{base} {i}"))
        verdict, bad = judge(shm / "heap", forged, kind)
        tally[verdict] += 1
        wrong += [f"{kind} {base} {i}: {what}: {text}" for text in bad]
    print(kind, dict(tally))
    assert not wrong, f"{len(wrong)} of {COUNT}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("original", KINDS, indirect=True)
def test_measures_wrong_by_little(original, shm):
    """Changes every length, offset and count by one, and by one bit."""
    kind, files = original
    misses = sorted(near_misses(files, groups(files)), key=lambda miss: (miss[0].name, miss[1]))
    signal.alarm(max(DEADLINE, 2 * len(misses)))
    wrong, tally = [], collections.Counter()
    for field, new in misses:
        forged = {name: bytearray(data) for name, data in files.items()}
        what = put_right(forged, field, new)
        verdict, bad = judge(shm / "heap", forged, kind)
        tally[verdict] += 1
        wrong += [f"{kind}: {what}: {text}" for text in bad]
    print(kind, dict(tally))
    assert len(misses) > 20
    assert not wrong, f"{len(wrong)} of {len(misses)}:\n" + "\n".join(wrong)
