# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""libpmalloc_gc.so in the place of libgc: programs compiled with Debian's gc.h, and Debian's own
programs. What they do must be what they do with Debian's libgc."""

import pathlib
import re
import subprocess

import pytest

from conftest import BUILD, compiled, recover, run, said, succeeds, tool

CASES = (
    "churn sizes large chain interiors typed kinds lists lists_without_pointers uncollectable "
    "threads dlopened calls limit forked finalizers order self on_demand weak long_links dying "
    "toggles"
).split()
HEADER = pathlib.Path("/usr/include/gc/gc.h")
LIBGC = next(pathlib.Path("/usr/lib").glob("*/libgc.so.1"), None)

needs_headers = pytest.mark.skipif(not HEADER.exists(), reason="libgc-dev is missing")


@pytest.fixture(scope="module")
def boehm():
    return compiled(["boehm.c", "boehm_weak.c"], libraries=["-lgc"])


@pytest.fixture(scope="module")
def library():
    return compiled("boehm_library.c", "-fPIC", "-shared", name="boehm_library.so")


def with_gc(argv, **settings):
    settings.setdefault("BACKING", None if "HEAP" in settings else "volatile")
    return run([tool("pmalloc-run"), "--gc", "--", *argv], preload=False, **settings)


@needs_headers
@pytest.mark.parametrize("case", CASES)
def test_a_case_of_gc_h(boehm, library, case):
    for done in (
        run([boehm, case], preload=False, boehm_library=library),
        with_gc([boehm, case], boehm_library=library),
    ):
        assert done.returncode == 0 and done.stdout == "right\n", said(done)


# Blocks without pointers lie in slabs of their own there.
@needs_headers
@pytest.mark.parametrize("case", "churn sizes threads weak dying typed kinds forked".split())
def test_on_media(boehm, heap, case):
    done = with_gc([boehm, case], HEAP=heap)
    assert done.returncode == 0 and done.stdout == "right\n", said(done)
    assert recover(heap, "--check").returncode in (0, 1)


# The tables of the collector are reserved for the most there can ever be, but of a limited address
# space they take a part.
@needs_headers
@pytest.mark.parametrize("case", ["churn", "finalizers", "weak", "long_links", "toggles"])
def test_little_address_space(boehm, case):
    done = with_gc(["sh", "-c", 'ulimit -v 1000000; exec "$0" "$1"', boehm, case])
    assert done.returncode == 0 and done.stdout == "right\n", said(done)
    assert not done.stderr, said(done)


# The thread that commits has thread-local variables of libc, wherever this library's lie.
@needs_headers
@pytest.mark.parametrize("case, every", [("churn", "20ms"), ("asleep", "1ms")])
def test_in_commit_mode(boehm, heap, case, every):
    done = with_gc([boehm, case], HEAP=heap, COMMIT=every)
    assert done.returncode == 0 and done.stdout == "right\n", said(done)


@needs_headers
@pytest.mark.parametrize("how", ["alone", "threads", "says"])
@pytest.mark.parametrize("commit", ["20ms", "output"])
def test_a_commit_waits_for_a_collection(heap, how, commit):
    """A commit gives up on a thread that does not stop. A collection ends, so it is waited for."""
    program = compiled("boehm_long.c", libraries=["-lgc"])
    done = with_gc([program, how], HEAP=heap, ROOTS="kept", COMMIT=commit)
    assert succeeds(done) == ("amid\n1\n" if how == "says" else "1\n")
    assert "failed" not in done.stderr, said(done)


@needs_headers
def test_a_persistent_list_is_killed_and_goes_on(heap):
    program, length = compiled("boehm_list.c", libraries=["-lgc"]), 0
    for _ in range(3):
        done = with_gc([program, 200_000], HEAP=heap, ROOTS="list")
        found = re.findall(r"^(\d+)$", done.stdout, re.M)
        assert done.returncode == -9 and len(found) == 2, said(done)
        assert int(found[0]) == length, said(done)
        length = int(found[1])


def exported(path):
    text = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in text.splitlines()]
    return {row[-1] for row in rows if row[-2] not in "Uw" and "GC_" in row[-1]}


@pytest.mark.skipif(LIBGC is None, reason="libgc1 is missing")
def test_every_name_of_libgc_is_there():
    theirs = exported(LIBGC)
    assert len(theirs) > 280
    assert theirs <= exported(BUILD / "pmalloc-libgc" / "libpmalloc_gc.so")


# glibc 2.42 puts guard pages below the stacks of threads, in the mapping of the stack. To the
# kernel they look like pages on swap, so the collector went there.
@pytest.mark.parametrize("shared", ["MAP_PRIVATE", "MAP_SHARED"])
def test_guard_pages_are_not_read(tmp_path, shared):
    source = tmp_path / "guard.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n#include <sys/mman.h>\n"
        "int main(void) {\n"
        "void *(*take)(size_t) = dlsym(RTLD_DEFAULT, \"GC_malloc\");\n"
        "void (*collect)(void) = dlsym(RTLD_DEFAULT, \"GC_gcollect\");\n"
        f"int how = MAP_ANONYMOUS | {shared};\n"
        "int **p = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, how, -1, 0);\n"
        "p[0] = p[512] = NULL; p[1024] = take(64); *p[1024] = 7;\n"
        "if (madvise(p + 512, 4096, 102) != 0) { puts(\"none\"); return 0; }\n"
        "for (int i = 0; i < 3; i++) collect();\n"
        "for (int i = 0; i < 10000; i++) *(int *)take(64) = 8;\n"
        "printf(\"%d\\n\", *p[1024]); return 0; }\n"
    )
    done = with_gc([compiled(source)])
    if succeeds(done) == "none\n":
        pytest.skip("this kernel has no guard pages")
    assert done.stdout == "7\n"


def test_stacks_that_are_one_mapping():
    done = with_gc([compiled("boehm_stacks.c")])
    if done.returncode == 77:
        pytest.skip("this kernel has no guard pages")
    assert succeeds(done) == "1 0\n" * 3, said(done)


# Its name is younger than Debian 12's libgc, so the program looks for it.
def test_a_corrector_of_stack_pointers_is_kept(tmp_path):
    source = tmp_path / "corrector.c"
    source.write_text(
        "#include <dlfcn.h>\n#include <stdio.h>\n"
        "static void correct(void **stack, void *thread) { *stack = thread; }\n"
        "int main(void) { void (*set)(void *) = dlsym(RTLD_DEFAULT, \"GC_set_sp_corrector\");\n"
        "void *(*get)(void) = dlsym(RTLD_DEFAULT, \"GC_get_sp_corrector\");\n"
        "if (!set || !get || get()) return 1;\n"
        "set(correct); printf(\"%d\\n\", get() == correct); return 0; }\n"
    )
    done = with_gc([compiled(source)])
    assert succeeds(done) == "1\n"


# A link that nobody would ever clear is not taken in silence. Debian's libgc ends the program, too.
# The program is told first.
@needs_headers
def test_a_link_in_no_block_says_so(tmp_path):
    source = tmp_path / "no_block.c"
    source.write_text(
        "#include <gc/gc.h>\n#include <stdio.h>\nvoid *link;\n"
        "static void told(const char *what) { printf(\"told: %s\\n\", what); fflush(stdout); }\n"
        "int main(void) { GC_INIT(); GC_set_abort_func(told);\n"
        "GC_register_disappearing_link(&link); return 0; }\n"
    )
    done = with_gc([compiled(source, libraries=["-lgc"])])
    assert done.returncode == -6, said(done)
    assert done.stderr.count("\n") == 1 and "the link lies in no block" in done.stderr
    assert done.stdout.startswith("told: ") and "the link lies in no block" in done.stdout


@needs_headers
def test_boehm_masks(heap):
    """What the program says of its pointers holds for its next start, before it says it again, and
    for a recovery without it."""
    program = compiled("boehm_masks.c", libraries=["-lgc"])
    done = with_gc([program, "make"], HEAP=heap, ROOTS="kept")
    assert done.stdout == "1000\n", said(done)
    succeeds(recover(heap))
    assert succeeds(with_gc([program, "look"], HEAP=heap)) == "1000 4\n"
    done = with_gc([program, "odd"])
    assert done.returncode == 0 and "is not one row of bits" in done.stderr, said(done)
