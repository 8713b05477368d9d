# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Roots that are named from outside: by symbol, range, whole object or slot. What is restored and
what is not."""

import shutil
import subprocess

import pytest
from conftest import (
    BUILD,
    ROOT,
    compiled,
    fingerprint,
    recover,
    recovered,
    refuses,
    run,
    said,
    succeeds,
)

# What the program prints in its first run: all lists are empty, and it has added one to each number
# that the linker put there.
FRESH = {
    "head": 0,
    "hidden": 0,
    "table": 0,
    "in_bss": 0,
    "wide": 0,
    "lib_head": 0,
    "lib_hidden": 0,
    "before": 11,
    "after": 21,
    "generation": 101,
}


def library():
    return compiled("roots.c", "-DLIBRARY", "-fPIC", "-shared", name="libpmtest_roots.so")


def program(*flags, name="pmtest_roots"):
    lib = library()
    return compiled("roots.c", *flags, name=name, libraries=[str(lib), f"-Wl,-rpath,{lib.parent}"])


@pytest.fixture(scope="module")
def prog():
    return program()


def go(argv, heap, roots=None, **settings):
    """One run. Returns what it printed."""
    done = run(argv, HEAP=heap, ROOTS=roots, **settings)
    assert done.returncode == (-9 if "-k" in map(str, argv) else 0) and not done.stderr, said(done)
    return {k: int(v) for k, v in (word.split("=") for word in done.stdout.split())}


def address(binary, symbol):
    """Link-time address and size of a symbol, which may be local."""
    text = subprocess.run(["nm", "-S", binary], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        words = line.split()
        if words[-1] == symbol and len(words) == 4:
            return int(words[0], 16), int(words[1], 16)
    raise AssertionError(f"no symbol {symbol}")


@pytest.mark.check
@pytest.mark.parametrize("end", ["exit", "kill", "recover"])
@pytest.mark.parametrize(
    "name", ["head", "hidden", "in_bss", "table", "wide", "lib_head", "lib_hidden"]
)
def test_by_symbol(prog, heap, name, end):
    """Global and file-local variables, of the program and of its library, in .data and .bss."""
    spec = f"{library().name}:{name}" if name.startswith("lib_") else name
    expected = dict(FRESH)
    for count in range(1, 5):
        expected[name] = count
        if name == "table":  # the whole variable is restored, including its other field
            expected["generation"] = 100 + count
        arguments = ["-k", name] if end != "exit" else [name]
        assert go([prog, *arguments], heap, spec if count == 1 else None) == expected
        if end == "recover":
            assert recovered(heap)["roots"] == 1


def test_a_symbol_of_a_library_may_go_without_its_name(prog, heap):
    assert go([prog, "lib_head"], heap, "lib_head")["lib_head"] == 1
    assert go([prog, "lib_head"], heap)["lib_head"] == 2


def test_several_roots_and_their_neighbours_in_the_page(prog, heap):
    """Only the named bytes are restored. before, after and hidden lie in the same page as head."""
    places = [address(prog, name)[0] for name in ("before", "head", "hidden", "after")]
    assert len({place >> 12 for place in places}) == 1, "the test needs these variables in one page"
    for count in range(1, 4):
        expected = dict(FRESH, head=count, in_bss=count, hidden=1, lib_head=count)
        argv = [prog, "head", "in_bss", "hidden", "lib_head"]
        assert go(argv, heap, "head,in_bss,lib_head") == expected


def test_roots_can_be_added_later(prog, heap):
    assert go([prog, "head"], heap, "head")["head"] == 1
    assert go([prog, "head", "in_bss"], heap, "in_bss")["in_bss"] == 1
    found = go([prog, "head", "in_bss"], heap)
    assert (found["head"], found["in_bss"]) == (3, 2)


@pytest.mark.check
def test_dropped_root(prog, heap):
    go([prog, "head", "in_bss"], heap, "head,in_bss")
    done = recover(heap, "--drop-root", "in_bss", "--yes")
    assert done.returncode == 0, said(done)
    found = go([prog, "head"], heap)
    assert (found["head"], found["in_bss"]) == (2, 0)
    before = fingerprint(heap)
    assert recover(heap, "--drop-root", "in_bss").returncode == 16
    assert fingerprint(heap) == before


@pytest.mark.parametrize("flags", ["-pie -fPIE", "-no-pie -fno-pie"])
def test_by_range_in_a_stripped_program(heap, flags):
    name = "pmtest_roots" + flags.split()[0].replace("-", "_")
    whole = program(*flags.split(), name=name)
    stripped = whole.with_name(name + "_stripped")
    shutil.copy(whole, stripped)
    subprocess.run(["strip", stripped], check=True)
    head, size = address(whole, "head")
    wide, wide_size = address(whole, "wide")
    refuses(run([stripped], HEAP=heap, ROOTS="hidden"), "PMALLOC_ROOTS", "hidden")
    assert not heap.exists()
    spec = f"+{head:#x}/{size},+{wide}/{wide_size:#x}"
    for count in range(1, 4):
        argv = [stripped, "-k", "head", "wide", "hidden"]
        expected = dict(FRESH, head=count, wide=count, hidden=1)
        assert go(argv, heap, spec if count == 1 else None) == expected


def test_range_of_a_library(prog, heap):
    place, size = address(library(), "lib_hidden")
    for count in range(1, 4):
        found = go([prog, "lib_hidden"], heap, f"{library().name}:+{place}/{size}")
        assert found == dict(FRESH, lib_hidden=count)


@pytest.mark.parametrize("flags", ["-pie -fPIE", "-no-pie -fno-pie"])
def test_by_symbol_pie_and_not(heap, flags):
    prog = program(*flags.split(), name="pmtest_roots" + flags.split()[0].replace("-", "_"))
    for count in range(1, 4):
        found = go([prog, "-k", "hidden"], heap, "hidden" if count == 1 else None)
        assert found == dict(FRESH, hidden=count)


@pytest.mark.parametrize("object_name", ["", "libpmtest_roots.so:"])
def test_whole_object_is_scanned_and_not_restored(prog, heap, object_name):
    """Its variables keep alive what they point to, until the next run starts with fresh ones."""
    names = ["lib_head", "lib_hidden"] if object_name else ["head", "hidden", "in_bss", "wide"]
    argv = [prog, "-k", *names * 3]
    expected = dict(FRESH, **{name: 3 for name in names})
    assert go(argv, heap, object_name + "*") == expected
    assert recovered(heap)["live_objects"] >= 3 * len(names)
    assert go(argv, heap) == expected
    live = recovered(heap)["live_objects"]
    assert 3 * len(names) <= live < 3 * 2 * len(names), "the objects of the run before must be gone"


def test_whole_object_and_a_symbol_of_it(prog, heap):
    for count in range(1, 4):
        found = go([prog, "-k", "head", "hidden"], heap, "*,head")
        assert found == dict(FRESH, head=count, hidden=1)


def test_from_a_file(prog, heap, shm):
    file = shm / "roots.txt"
    file.write_text(
        "# what the program is about\n\nhead   # its list\r\n  libpmtest_roots.so:lib_hidden\n"
    )
    for count in range(1, 4):
        found = go([prog, "head", "lib_hidden"], heap, f"@{file}")
        assert (found["head"], found["lib_hidden"]) == (count, count)
    refuses(run([prog], HEAP=heap, ROOTS=f"@{file}.not"), "PMALLOC_ROOTS", "roots.txt.not")


@pytest.mark.check
@pytest.mark.parametrize(
    "spec, part",
    [
        ("heed", "heed"),
        ("head,heed", "heed"),
        ("libpmtest_roots.so:head", "head"),
        ("libnothing.so:head", "libnothing.so"),
        ("libnothing.so:*", "libnothing.so"),
        ("main", "main"),
        ("+0x10/8", "+0x10/8"),
        ("+0x7fffffff000/8", "0x7fffffff000"),
        ("head,,in_bss", "head,,in_bss"),
        ("+12", "+12"),
        ("head extra", "head extra"),
        ("", "empty"),
    ],
)
@pytest.mark.parametrize("state", ["no heap", "a heap"])
def test_wrong_root_changes_nothing(prog, heap, state, spec, part):
    if state == "a heap":
        go([prog, "-k", "head"], heap, "head")
        before = fingerprint(heap)
    refuses(run([prog, "head"], HEAP=heap, ROOTS=spec), "PMALLOC_ROOTS", part)
    if state == "a heap":
        assert fingerprint(heap) == before
        assert go([prog, "head"], heap)["head"] == 2
    else:
        assert not heap.exists()


def test_symbol_whose_size_changed(prog, heap):
    other = program("-DENTRIES=9", name="pmtest_roots_9")
    go([prog, "-k", "table"], heap, "table")
    before = fingerprint(heap)
    refuses(run([other, "table"], HEAP=heap), "table", "changed")
    refuses(run([other, "table"], HEAP=heap, ROOTS="table"), "table", "changed")
    assert fingerprint(heap) == before
    assert go([prog, "table"], heap)["table"] == 2


def test_another_program_on_a_heap_with_roots(prog, heap):
    go([prog, "-k", "head"], heap, "head")
    before = fingerprint(heap)
    line = refuses(run(["true"], HEAP=heap), "head", f"{heap} belongs to {prog.name}: run that")
    assert f"-s PROGRAM={prog.name}" in line and "--rename-root 'head' NEW" in line
    assert "--drop-root" not in line  # it would lose the data
    refuses(run(["ls", "/"], HEAP=heap, ROOTS="*"), "head")
    assert fingerprint(heap) == before
    assert go([prog, "head"], heap)["head"] == 2


def test_a_rebuilt_program_is_told(prog, heap):
    """The same variables lie at other places. The data are restored, and a message says how many
    pointers point into code."""
    other = program(
        "-O2", "-fno-inline", "-Wl,--build-id=0x1234567890", name="pmtest_roots_rebuilt"
    )
    go([prog, "head"], heap, "head")
    done = run([other, "head"], HEAP=heap)
    assert done.returncode == 0 and "head=2 " in done.stdout, said(done)
    assert len(done.stderr.splitlines()) == 1 and "build id differs" in done.stderr
    assert go([other, "head"], heap)["head"] == 3


def test_cpp_global_with_a_constructor(heap):
    """It is restored after its constructor ran, so the constructor does not wipe it."""
    if not shutil.which("g++"):
        pytest.skip("no g++")
    prog = compiled("newdelete.cc", "-std=c++17", name="pmtest_newdelete", compiler="g++")
    for count in range(1, 5):
        done = run([prog, "count"], HEAP=heap, ROOTS="holder" if count == 1 else None)
        assert succeeds(done) == f"{count} 5\n"


# ---- slots ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slots():
    flags = ["-iquote", str(ROOT), f"-Wl,-rpath,{BUILD}"]
    return compiled("slots.c", *flags, name="pmtest_slots", libraries=[f"-L{BUILD}", "-lpmalloc"])


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("end", [[], ["-k"]])
def test_by_slot(slots, heap, preload, end):
    """The program is linked with the library, and also runs with the preload before it."""
    for count in range(1, 5):
        done = run([slots, *end], preload, HEAP=heap)
        assert done.returncode == (-9 if end else 0) and not done.stderr, said(done)
        assert done.stdout == f"1 {heap} {count} {count}\n"
        if end and count % 2:
            figures = recovered(heap)
            assert figures["roots"] == 2 and figures["live_objects"] >= 2 * count
    # Both use one heap, with and without the preload.
    assert succeeds(run([slots], not preload, HEAP=heap)) == f"1 {heap} 5 5\n"
    succeeds(run([slots, "empty"], preload, HEAP=heap))
    assert succeeds(run([slots], preload, HEAP=heap)) == f"1 {heap} 1 1\n"


@pytest.mark.parametrize("preload", [True, False])
def test_a_cancelled_thread_sets_its_slot(slots, heap, preload):
    """On a plain file setting a slot calls msync, which is a cancellation point."""
    succeeds(run([slots, "cancel"], preload, HEAP=heap, PERSIST="page"))


def test_slots_on_volatile_memory(slots):
    done = run([slots], BACKING="volatile")
    assert done.returncode == 5 and "supported" in done.stderr, said(done)


def test_slots_and_symbols_in_one_heap(slots, prog, heap):
    succeeds(run([slots], HEAP=heap))
    assert go([prog, "head"], heap, "head")["head"] == 1
    refuses(run([slots], HEAP=heap), "head")
    assert recovered(heap)["roots"] == 3


@pytest.mark.parametrize("where", ("memory", "disk"))
@pytest.mark.parametrize("how", (None, "unheard", "deaf"))
def test_a_thread_of_a_constructor_stores_while_its_page_is_captured(heap, tmp_path, where, how):
    """No store of the thread beside the root is lost. If the thread blocks every signal, stores may
    be lost, but the thread goes on."""
    lib = compiled("counting.c", "-DLIBRARY", "-fPIC", "-shared", name="libcounting.so")
    prog = compiled("counting.c", f"-Wl,-rpath,{lib.parent}", name="counting", libraries=(lib,))
    heap = tmp_path / "heap" if where == "disk" else heap
    for i in range(1, 11):
        done = run([prog], HEAP=heap, ROOTS="libcounting.so:root", counting=how)
        assert (done.stdout, done.stderr) == (f"{i}\n", ""), said(done)
        assert done.returncode == 0 or (done.returncode == 3 and how == "deaf"), said(done)
