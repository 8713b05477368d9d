# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The line that PMALLOC_VERBOSE=1 prints at the start of a process, in each state of the heap."""

import os
import re
import shutil
import stat
import subprocess
import tempfile

import pytest
from conftest import API, BUILD, busy, environment, one_message, run, said, succeeds
from figures_program import Figures, program  # noqa: F401


def line_of(done, *parts):
    succeeds(done)
    one_message(done, *parts)
    return done.stderr


@pytest.mark.check
def test_start_line_of_each_state(program, heap):
    def once(**settings):
        return run([program], stdin="small 10 100\n", HEAP=heap, VERBOSE=1, **settings)

    line_of(once(), f"heap {heap} (tmpfs: ", "roots: 0 (none)", "; new")
    line_of(once(), "roots: 0 (none)", "; emptied")
    line_of(once(ROOTS="held"), "roots: 1 (held)", "; emptied")
    line_of(once(), "roots: 1 (held)", "; clean: ", " objects, ")
    for forced in ("page", "cache", "line"):
        # A forced way of flushing is for measurements. tmpfs stays what it is, so the line claims
        # no guarantee.
        line_of(once(PERSIST=forced), f"PMALLOC_PERSIST={forced}: ", "nothing is promised")
    line_of(once(PERSIST="none"), "tmpfs: ")


def test_start_line_on_plain_files(program):
    with tempfile.TemporaryDirectory(dir=BUILD) as directory:
        if (
            subprocess.check_output(["stat", "-f", "-c", "%T", directory], text=True).strip()
            == "tmpfs"
        ):
            pytest.skip("the build directory is on tmpfs")
        done = run([program], stdin="small 10 100\n", HEAP=f"{directory}/heap", VERBOSE=1)
        line_of(
            done, "plain file: the heap survives power loss, ", "page by page", "not one instant"
        )


def test_start_line_after_a_kill(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 1000 100")
    figures.process.kill()
    figures.process.wait()
    line = line_of(run([program], stdin="", HEAP=heap, VERBOSE=1), "; recovered: ")
    assert int(re.search(r"(\d+) objects", line)[1]) >= 1000


def test_start_line_names_kinds_of_roots(program, heap):
    done = run([program], stdin="", HEAP=heap, VERBOSE=1, ROOTS="held,libc.so.6:*")
    line_of(done, "roots: 2 (held, libc.so.6:*)")


def test_start_line_of_volatile_memory(program, processes, heap):
    line_of(
        run([program], stdin="", BACKING="volatile", VERBOSE=1),
        "volatile memory",
        "PMALLOC_BACKING",
    )
    done = run([program], stdin="", PROGRAM="another*", HEAP=heap, VERBOSE=1)
    line_of(done, "volatile memory", "PMALLOC_PROGRAM=another*", "pmtest_figures")
    assert not heap.exists()


def test_start_line_of_descendants(program, heap):
    """There is one line per process: the owner's, and one of each program that it starts."""
    done = run(["sh", "-c", f"{program} </dev/null; {program} </dev/null; :"], HEAP=heap, VERBOSE=1)
    succeeds(done)
    lines = done.stderr.splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"pmalloc: heap {heap} ("), said(done)
    for line in lines[1:]:
        assert "volatile memory" in line and "descends" in line and str(heap) in line


def test_no_start_line_in_forked_children(heap):
    done = run(["sh", "-c", "(:); (:) & wait"], HEAP=heap, VERBOSE=1)
    succeeds(done)
    one_message(done, "; new")


def test_start_line_where_the_range_is_taken(shm, program):
    """A library that is loaded first has mapped something there."""
    source = shm / "taker.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <sys/mman.h>\n"
        "__attribute__((constructor)) static void take(void) {\n"
        "    mmap((void *)0x400000000000, 1 << 20, PROT_READ,\n"
        "         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);\n}\n"
        "int main(int argc, char **argv) {\n    take();\n"
        "    extern int execv(const char *, char *const[]);\n"
        "    return argc < 0 ? execv(argv[1], argv + 1) : 0;\n}\n"
    )
    taker = shm / "taker.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,initfirst", "-o", taker, source], check=True)
    env = environment(API, VERBOSE=1)
    env["LD_PRELOAD"] += f":{taker}"  # loaded last, so its constructor runs first
    done = subprocess.run(
        [program],
        env=env,
        input="",
        capture_output=True,
        text=True,
        timeout=60 * busy(),
        check=False,
    )
    line_of(done, "volatile memory", "nothing is kept", "400000000000 is taken")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program to another user")
def test_setuid_programs_say_nothing(shm, program):
    copy = shm / "setuid"
    shutil.copy(program, copy)
    shm.chmod(0o755)
    os.chown(copy, 12345, 12345)
    copy.chmod(0o755 | stat.S_ISUID)
    folder = shm / "lib"
    folder.mkdir()
    done = run([copy], stdin="small 10 10\n", VERBOSE=1, STATS=1, HEAP=shm / "heap")
    assert (done.returncode, done.stdout) == (0, "done\n"), said(done)
    assert not (shm / "heap").exists()
    assert "pmalloc" not in done.stderr.replace("libpmalloc", "")
