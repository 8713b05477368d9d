# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""`pmalloc-recover --drop-root`: the data is had back, until it is dropped once more."""

import json
import re
import shlex
import subprocess

import pytest
from conftest import succeeds
from tool_heaps import (
    BUILD,
    INFO,
    RECOVER,
    RUN,
    SHELL,
    call,
    clean_environment,
    one_line,
    start_shell,
)

LOUD = {"PMALLOC_ROOTLESS": "say"}


def the_way_back(said, word):
    """The command that a report prints, as a user would paste it."""
    (line,) = [line for line in said.splitlines() if line.startswith(f"to {word} it ")]
    name, *options = shlex.split(line.split(maxsplit=3)[3])
    return call(BUILD / name, *options)


def heap_to_drop(shm, kind):
    heap = shm / "heap"
    options = ("-s", "COMMIT=output") if kind == "commits" else ()
    if kind == "file":
        succeeds(call(RECOVER, "--make", "--size", "32M", heap))
    said = call(RUN, "-H", heap, "-r", "store", *options, SHELL,
                stdin="fill 3000 7\n")
    succeeds(said)
    return heap, options


@pytest.mark.check
@pytest.mark.parametrize("kind", ["files", "file", "commits"])
def test_a_dropped_root_is_had_back(shm, kind):
    """Also after its program has begun anew, after a kill, and after it was dropped twice."""
    heap, options = heap_to_drop(shm, kind)
    succeeds(call(RECOVER, "--drop-root", "store", "--yes", heap))
    assert succeeds(call(RUN, "-H", heap, *options, SHELL, stdin="set a b\n")) == "ok\n"
    succeeds(call(RUN, "-H", heap, "/bin/true"))
    assert f"program    {SHELL}" in call(INFO, heap).stdout  # it still is the program of that data
    done = call(RUN, "-H", heap, SHELL, stdin="set a b\n", **LOUD)
    assert "has none: the next run will find nothing" in done.stderr, done
    assert "has no root but dropped ones" in done.stderr, done
    first = start_shell(heap, "set a b\n", "-r", "store", *options)
    first.kill()
    first.communicate()
    assert "a root named 'store' already; --drop-root that first" in call(
        RECOVER, "--rename-root", "dropped:store", "store", heap).stderr
    assert succeeds(call(RUN, "-H", heap, *options, SHELL, stdin="get a\ncount\n")) == "b\n1\n"
    second = succeeds(call(RECOVER, "--drop-root", "store", "--yes", heap))
    succeeds(call(RECOVER, "--rename-root", "dropped:store", "store", heap))
    assert "ok 3000 keys" in succeeds(call(RUN, "-H", heap, *options, SHELL, stdin="verify\n"))
    one_line(call(RECOVER, "--drop-root", "dropped2:store", heap), "pmalloc-recover", 16,
             "a root that was dropped", "cannot be had back", "give --yes")
    succeeds(the_way_back(second, "free"))
    assert "dropped" not in call(INFO, heap).stdout
    assert "ok 3000 keys" in succeeds(call(RUN, "-H", heap, *options, SHELL, stdin="verify\n"))


@pytest.mark.parametrize("kind", ["symbol", "range", "one of two"])
def test_the_way_back_is_a_command_to_paste(shm, kind):
    """A range is that of its build still."""
    heap, other = shm / "heap", shm / "kvshell"
    place = subprocess.run(["nm", SHELL], capture_output=True, text=True, check=True).stdout
    offset = re.search(r"^(\w+) \w store$", place, re.M)[1]
    roots = {"symbol": "store", "range": f"+{int(offset, 16):#x}/8", "one of two": "store,*"}[kind]
    root = roots.removesuffix(",*")
    succeeds(call(RUN, "-H", heap, "-r", roots, SHELL, stdin="fill 3000 7\n"))
    yes = () if kind == "one of two" else ("--yes",)
    said = succeeds(call(RECOVER, "--drop-root", root, *yes, heap))
    assert succeeds(call(RUN, "-H", heap, SHELL, stdin="count\n")) == "0\n"
    succeeds(the_way_back(said, "have"))
    assert "ok 3000 keys" in succeeds(call(RUN, "-H", heap, SHELL, stdin="verify\n"))
    subprocess.run(["objcopy", "--remove-section=.note.gnu.build-id", SHELL, other], check=True)
    refused = "names bytes of another build" in call(RUN, "-H", heap, other).stderr
    assert refused == (kind == "range")


@pytest.mark.parametrize("options", [(), ("-r", "store")])
def test_what_it_leads_to_is_not_lost_to_a_process(shm, options):
    heap, _ = heap_to_drop(shm, "files")
    succeeds(call(RECOVER, "--drop-root", "store", "--yes", heap))
    shell = subprocess.Popen([RUN, "-H", heap, *options, SHELL], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, env=clean_environment(), text=True)
    try:
        shell.stdin.write("set a b\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "ok\n"
        found = json.loads(succeeds(call(INFO, "--leaks", "--json", heap)))
        assert found["in_use_blocks"] > 3000 and found["blocks"] < 10, found
    finally:
        shell.kill()
        shell.communicate()
