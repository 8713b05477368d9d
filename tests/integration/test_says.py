# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT=output: every call that tells somebody something or makes a file durable, by its
name and by its number, and what looks like one. test_triggers.py has the writes to a pipe and a
socket, test_durable_calls.py more of those that make a file durable."""

import contextlib
import os
import re
import select
import signal
import subprocess
import time

import pytest
from conftest import HERE, ROOT, busy, compiled, environment, run, succeeds

PATIENCE = 60  # sync() writes what the whole machine has changed
FOREIGN = {77}  # the kernel does not allow it here


@pytest.fixture(scope="module")
def program():
    return compiled("tells.c", "-Wno-nonnull", libraries=["-lrt", "-ldl"])


@pytest.fixture(scope="module")
def names(program):
    told, silent = succeeds(run([program, "names"], preload=False)).split("-\n")
    return told.split(), silent.split()


def number_of(name):
    return 1 + sum(ord(c) << 8 * (i % 7) for i, c in enumerate(name))


def launch(program, name, heap):
    return subprocess.Popen(
        [str(program), name, str(number_of(name))],
        env=environment(True, HEAP=heap, ROOTS="value", COMMIT="output"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def told(process):
    """Waits until the program has done it. Its status, if it has ended."""
    end = time.monotonic() + PATIENCE * busy()
    while time.monotonic() < end:
        if select.select([process.stdout], [], [], 0.05)[0]:
            break
        if process.poll() is not None:
            break
    else:
        raise AssertionError(f"{process.args}: nothing heard")
    return process.poll()


def finished(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.communicate()[1].decode()


def found(program, which, shm):
    """What is in the heaps of programs that were killed when they had done it."""
    values, skipped, running = {}, [], {}
    for some in range(0, len(which), 8):
        running = {name: launch(program, name, shm / name) for name in which[some : some + 8]}
        try:
            for name, process in running.items():
                if told(process) in FOREIGN:
                    skipped.append(name)
        finally:
            errors = {name: finished(process) for name, process in running.items()}
        assert not any(errors.values()), errors
        for name in running:
            if name not in skipped:
                done = run([program, "check"], HEAP=shm / name, ROOTS="value")
                values[name] = int(succeeds(done))
    return values, skipped


def test_what_is_told_is_kept(program, names, shm):
    values, skipped = found(program, names[0], shm)
    lost = [name for name, value in values.items() if value != number_of(name)]
    assert not lost, f"nothing was committed before {lost}"
    assert len(skipped) < len(names[0]) / 4, f"not tried: {skipped}"


def test_what_is_silent_makes_no_commit(program, names, shm):
    values, skipped = found(program, names[1], shm)
    assert not skipped
    assert not any(values.values()), values


def test_every_such_call_is_tried(names):
    """Each name and number of which PMAlloc thinks that it says something."""
    folder = ROOT / "preload" / "names"
    source = {file: (folder / file).read_text() for file in os.listdir(folder)}
    triggers = (HERE / "triggers.c").read_text()
    tried = set(names[0]) | set(re.findall(r"static void say_(\w+)\(void\)", triggers))
    said_by_name = set()
    for file in ("waits.c", "says.c", "rings.c"):
        for row in re.split(r"\bX\(|#define|// clang-format on", source[file]):
            if re.search(r"\b(SAY\w*\(|SEND\w*\(|TELL)", row.split(" EXPORT ")[0]):
                before = r"\A(?:[^,()]+, |\(void\)0, )*?(?!void)"
                said_by_name |= set(re.findall(before + r"(\w+), *\\?\s*\(", row))
    said_by_name |= {"exec" + n for n in ("ve", "v", "vp", "vpe", "veat", "l", "lp", "le")}
    assert {"msgsnd", "pwritev2", "popen", "write", "io_submit"} <= said_by_name
    # The same function by a second name.
    same = {name for name in said_by_name if name.startswith(("__", "io_uring_"))}
    same |= {name for name in said_by_name if name.removesuffix("64") in tried}
    assert said_by_name - same <= tried, said_by_name - same - tried
    numbers = re.findall(r"\{(?:SYS|NR)_(\w+), \d\},", source["raw_calls.c"])
    raw = {name.removeprefix("raw_") for name in tried if name.startswith("raw_")}
    known = {n.lower().removeprefix("rt_").removesuffix("info") for n in numbers}
    assert len(numbers) > 30
    assert known - {n.removesuffix("info") for n in raw} <= {"vfork"}, known - raw


def test_docs_name_them(names):
    """docs/commit.md says it of each function and of each kind of number."""
    text = (ROOT / "docs" / "commit.md").read_text()
    output = text[text.index("### output") : text.index("## On a disk")]
    for name in names[0]:
        if not name.startswith(("raw_", "write_", "exec", "fsync_")):
            assert f"`{name.removesuffix('64v2')}" in output, name
