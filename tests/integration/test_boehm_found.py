# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""libpmalloc_gc.so: what collections have found, who is asked before a block goes, and threads that
the program holds itself. What happens must be what happens with Debian's libgc."""

import re

import pytest

from conftest import compiled, recover, run, said
from test_boehm import needs_headers, with_gc

CASES = (
    "finalized disclaim chain_of_asked marks taken_back reached suspended suspended_asleep stopped"
).split()
MODES = {"volatile": {}, "heap": {"HEAP": ""}}
MODES |= {f"commit {how}": {"HEAP": "", "COMMIT": how} for how in ("5ms", "output")}

pytestmark = needs_headers


@pytest.fixture(scope="module")
def found():
    return compiled("boehm_found.c", libraries=["-lgc"])


def settings_of(mode, heap):
    return {key: value or heap for key, value in MODES[mode].items()}


@pytest.mark.parametrize("case", CASES)
def test_a_case_as_with_libgc(found, case):
    done = run([found, case], preload=False)
    assert done.returncode == 0 and done.stdout == "right\n", said(done)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_case(found, heap, case, mode):
    done = with_gc([found, case], boehm_is_pmalloc="1", **settings_of(mode, heap))
    assert done.returncode == 0 and done.stdout == "right\n", said(done)
    assert not done.stderr, said(done)


# What it says may itself need a commit, for which all threads are held once more; and so does the
# end.
@pytest.mark.parametrize("mode", MODES)
def test_a_program_ends_while_it_holds_its_threads(found, heap, mode):
    settings = settings_of(mode, heap)
    done = with_gc([found, "ends_stopped"], **settings)
    assert done.returncode == 3 and done.stdout == "stopped\n", said(done)
    if settings:
        assert recover(heap, "--check").returncode in (0, 1)


def test_leaks_are_told(found):
    done = with_gc([found, "leaks"])
    told = re.findall(r"GC: leaked object at (\w+) of appr\. (\d+) bytes \((\w+)\)", done.stderr)
    held, called = re.search(r"held (\w+), called (\d+)", done.stdout).groups()
    assert done.returncode == 0 and called == "0", said(done)
    assert held not in [address for address, _, _ in told]
    for kind, least in ("composite", 48), ("atomic", 200):
        count = sum(of == kind and int(size) >= least for _, size, of in told)
        assert 40 <= count <= 51, said(done)


def test_free_blocks_are_listed(found):
    done = with_gc([found, "free_list"])
    listed = re.findall(r"Free object in heap block 0x\w+ \[\d+\]: (0x\w+)", done.stdout)
    pairs = re.findall(r"freed (\w+), held (\w+)", done.stdout)
    assert len(pairs) == 10 and len(set(listed)) == len(listed), said(done)
    for freed, held in pairs:
        assert freed in listed and held not in listed, said(done)
