# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Containers of other projects, as their users build them, after a kill: each element is there.

PMALLOC_TEST_ELEMENTS=1000000 makes them large."""

import os
import signal

import pytest
from conftest import compiled, lacks, one_message, recover, run, said, start, succeeds, tool

ELEMENTS = int(os.environ.get("PMALLOC_TEST_ELEMENTS", "20000"))
# The sources, a header without which the library is not there, its package, and what is linked.
CONTAINERS = {
    "lockfree_queue.cc": ("boost/lockfree/queue.hpp", "libboost-dev", ""),
    "lockfree_stack.cc": ("boost/lockfree/stack.hpp", "libboost-dev", ""),
    "interprocess.cc": ("boost/interprocess/offset_ptr.hpp", "libboost-dev", ""),
    "judy.c": ("Judy.h", "libjudy-dev", "-lJudy"),
    "lfht.c": ("urcu/rculfhash.h", "liburcu-dev", "-lurcu-cds -lurcu-memb"),
    "tbb.cc": ("tbb/concurrent_map.h", "libtbb-dev", "-ltbb"),
    "libcds.cc": ("cds/init.h", "libcds-dev", "-lcds"),
    "uthash.c": ("uthash.h", "uthash-dev", ""),
    "ck.c": ("ck_hs.h", "libck-dev", "-lck"),
}
HEADERS = ("/usr/include", "/usr/include/x86_64-linux-gnu")
NEEDS = {"interprocess.cc": "tagged,relative", "tbb.cc": "tagged,before"}


def program(source):
    header, package, libraries = CONTAINERS[source]
    if not any(os.path.exists(f"{folder}/{header}") for folder in HEADERS):
        lacks(f"{header} of {package}")
    cxx = source.endswith(".cc")
    flags = ["-std=c++17"] if cxx else ["-D_GNU_SOURCE"]
    compiler = "g++" if cxx else None
    name = "container_" + source.partition(".")[0]
    path = f"containers/{source}"
    return compiled(path, *flags, name=name, compiler=compiler, libraries=libraries.split())


def filled(source, heap, **settings):
    """pmalloc-run, because some containers name functions and so need the same addresses."""
    options = [tool("pmalloc-run"), "-H", heap, "-r", "store"]
    process = start([*options, program(source), "fill", ELEMENTS], preload=False, **settings)
    try:
        assert process.stdout.readline() == "filled\n", process.communicate()
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()


def checked(source, heap, **settings):
    argv = [tool("pmalloc-run"), "-H", heap, program(source), "check", ELEMENTS]
    return run(argv, preload=False, **settings)


@pytest.mark.parametrize("by", ["start", "tool", "background"])
@pytest.mark.parametrize("source", CONTAINERS)
def test_each_element_is_there(heap, source, by):
    forms = {"POINTERS": NEEDS.get(source)}
    filled(source, heap, **forms)
    if by == "tool":
        done = recover(heap)
        assert done.returncode == 0 and not done.stderr, said(done)
    settings = {"COLLECT": "background"} if by == "background" else {}
    done = checked(source, heap, **forms, **settings)
    assert succeeds(done) == f"all {ELEMENTS}\n"
    assert "look like" not in done.stderr


def test_distances_are_noticed(heap):
    """Nobody has named the form: it is kept, and a line says what to do."""
    filled("interprocess.cc", heap)
    done = checked("interprocess.cc", heap)
    assert succeeds(done) == f"all {ELEMENTS}\n"
    one_message(done, "look like relative pointers", "set PMALLOC_POINTERS=tagged,relative")
