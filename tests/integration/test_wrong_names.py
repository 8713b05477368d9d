# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Names that a new user types wrong: of settings, options, roots, programs and heaps."""

import os
import shutil
import subprocess

import pytest
from conftest import succeeds, tmpfs
from tool_heaps import (
    BUILD,
    INFO,
    RECOVER,
    RUN,
    SHELL,
    call,
    clean_environment,
    clean_heap,
    one_line,
    originals,
)  # noqa: F401

# ---- Misspelt names.


@pytest.mark.check
@pytest.mark.parametrize(
    "setting, meant",
    [
        ("COMIT=output", "PMALLOC_COMMIT"),
        ("LIMTI=1G", "PMALLOC_LIMIT"),
        ("ROOT=store", "PMALLOC_ROOTS"),
        ("heap=/x", "PMALLOC_HEAP"),
        ("VERBSE=1", "PMALLOC_VERBOSE"),
    ],
)
def test_a_misspelt_setting(setting, meant):
    one_line(call(RUN, "-s", setting, SHELL), "pmalloc-run", 125, f"did you mean {meant}?")


@pytest.mark.parametrize("option, meant", [("-h", "-H"), ("--heep", "--heap"), ("-R", "-r")])
def test_a_misspelt_option(option, meant):
    one_line(call(RUN, option, "x", SHELL), "pmalloc-run", 125, f"did you mean {meant}?")


def test_an_option_that_is_like_no_other():
    assert "did you mean" not in call(RUN, "-x", SHELL).stderr + call(RUN, "--xyz", SHELL).stderr


def test_roots_with_a_comma_too_much_or_too_few(shm):
    for roots, what in (("store,", "is a comma too much?"), ("a b", "a comma stands between two")):
        one_line(call(RUN, "-H", shm / "heap", "-r", roots, SHELL), "pmalloc-run", 125, what)


def test_a_program_that_lies_here_and_not_in_the_path(shm):
    shutil.copy(SHELL, shm / "own")
    done = subprocess.run([RUN, "own"], cwd=shm, capture_output=True, text=True, check=False,
                          env=clean_environment())
    assert done.returncode == 127 and "is ./own meant?" in done.stderr, done
    one_line(call(RUN, "no-such"), "pmalloc-run", 127, "no-such: no such program in PATH")


def test_a_setting_that_is_like_no_other():
    one_line(call(RUN, "-s", "XYZZY=1", SHELL), "pmalloc-run", 125, "--help` lists them")


@pytest.mark.parametrize(
    "root, meant",
    [("stoer", "store"), ("sotre", "store"), ("Store", "store"), ("stores", "store")],
)
def test_a_misspelt_root(shm, root, meant):
    done = call(RUN, "-H", shm / "heap", "-r", root, SHELL)
    assert done.returncode == 125 and f"did you mean {meant}?" in done.stderr, done
    assert not (shm / "heap").exists()


BOOK = """#include <map>
namespace app { std::map<int, int> book; }
int main() { app::book[1] = 2; }
"""


def test_a_misspelt_root_of_cxx(shm):
    (shm / "book.cc").write_text(BOOK)
    subprocess.run(["g++", "-O1", "-o", shm / "book", shm / "book.cc"], check=True)
    for root, meant in (("app::boook", "app::book"), ("book", "app::book")):
        done = call(RUN, "-H", shm / "heap", "-r", root, shm / "book")
        assert f"did you mean {meant}?" in done.stderr, done


# ---- The name of a heap.


def test_names_that_are_no_heap(shm):
    def said(*argv, status=125):
        done = call(*argv)
        assert done.returncode == status and len(done.stderr.splitlines()) == 1, done
        return done.stderr

    start = ("-r", "store", SHELL)
    line = said(RUN, "-H", shm / "no" / "such" / "heap", *start)
    assert "No such file or directory" in line
    assert f"make its parent first: mkdir -p '{shm}/no/such'" in line
    (shm / "heap").mkdir(mode=0o700)
    (shm / "link").symlink_to(shm / "heap")
    line = said(RUN, "-H", shm / "link", *start)
    assert f"a symbolic link, which is not followed; name what it points to: {shm}/heap" in line
    line = said(INFO, shm / "none", status=8)
    assert "is the name right? The first program that is started on a heap makes it" in line
    line = said(RUN, "-H", shm / "a:b", *start)
    assert "a colon separates two directories, and 'b' names none" in line
    done = call(SHELL, LD_PRELOAD=f"{BUILD}/libpmalloc_preload.so", PMALLOC_ROOTS="store",
                PMALLOC_HEAP=str(shm / "a:b"))
    assert done.returncode == 125 and "'b' names none" in done.stderr, done
    assert [path.name for path in shm.iterdir() if path.name in ("a", "b")] == []
    line = said(RUN, "-H", shm / "heap", "-r", "app:book", SHELL)
    assert "no program or library app is loaded" in line
    assert "(a variable of a C++ scope is app::book)" in line


def test_a_directory_with_a_colon_is_one_heap(shm):
    (shm / "a:b").mkdir(mode=0o700)
    succeeds(call(RUN, "-H", shm / "a:b", "-r", "store", SHELL, stdin="set a b\n"))
    assert succeeds(call(RUN, "-H", shm / "a:b", SHELL, stdin="get a\n")) == "b\n"


def test_a_heap_that_cannot_be_made(shm):
    """For lack of space, or by a limit of the shell."""
    with tmpfs(shm / "small", 5) as small:
        line = call(RUN, "-H", small / "heap", "-r", "store", SHELL).stderr
        assert "No space left on device; make room there, or name a directory on" in line, line
    done = call("prlimit", "--fsize=1000", RUN, "-H", shm / "heap", "-r", "store", SHELL)
    assert done.returncode == 125 and "File too large; see `ulimit -f`" in done.stderr, done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_heap_where_the_user_may_not(shm):
    shm.chmod(0o755)
    succeeds(call(RUN, "-H", shm / "mine", "-r", "store", SHELL))
    other = ("setpriv", "--reuid", "12345", "--clear-groups")
    for tool in ("new", "mine"):
        done = call(*other, SHELL, LD_PRELOAD=f"{BUILD}/libpmalloc_preload.so",
                    PMALLOC_HEAP=str(shm / tool), PMALLOC_ROOTS="store", PMALLOC_PROGRAM="kvshell")
        if done.returncode != 125:
            pytest.skip("the build directory cannot be reached by others")
        assert "Permission denied; user 12345 may not: " in done.stderr, done
        assert "of your own" in done.stderr


def test_a_heap_without_its_superblock_is_no_misspelt_name(clean):
    """The start and the tool that it names say the same."""
    (clean / "superblock").unlink()
    lines = [call(RUN, "-H", clean, SHELL), call(RECOVER, "--check", clean), call(INFO, clean)]
    for line, status in zip(lines, (125, 8, 8)):
        assert line.returncode == status, line
        assert "superblock is missing, but heap.0 holds data; restore the file" in line.stderr
