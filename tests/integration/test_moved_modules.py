# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Modules that a program finds by name, those that come along with others, and those of one name:
each word of the heap leads to the same thing in the next run, also if that is another build. See
test_moved.py for modules by their paths. moved_symbols.c is the program; it is killed."""

import signal
import subprocess

import pytest
from conftest import HERE, run, said

KILLED = -signal.SIGKILL
CODE = "int module_{0}(int x) {{ return x + {1}; }}\n"


def linked(output, source, *flags):
    """A library. The text of a source lies beside it."""
    output.parent.mkdir(exist_ok=True)
    text = output.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", output, text, *flags], check=True)
    return output


def goes(heap, program, *arguments, **settings):
    """The words that are right, and where they lead to; and what the library says."""
    done = run([program, *arguments], HEAP=heap, ROOTS="kept", **settings)
    assert done.returncode == KILLED, said(done)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines and all(right == "right" for right, _ in lines), said(done)
    return [place for _, place in lines], done.stderr


# ---- by name alone ------------------------------------------------------------------------------

LIBRARY = "#include <dlfcn.h>\nvoid *open_it(const char *n) { return dlopen(n, RTLD_NOW); }\n"


def caller(folder, how):
    """A program that finds modules in a folder of its own, or whose library does. "leaf": it has
    a function that does nothing to the stack."""
    program, path = folder / "program", f"-Wl,-rpath,{folder / 'modules'}"
    flags = {"leaf": ["-O2", "-DLEAF"], "none": ["-O0"], "dlmopen": ["-DSPACE"]}
    libraries = []
    if how not in flags:
        tag = "-Wl,--disable-new-dtags" if how == "rpath" else "-Wl,--enable-new-dtags"
        libraries = [linked(folder / "libopens.so", LIBRARY, path, tag)]
        path = f"-Wl,-rpath,{folder}"
    argv = ["gcc", "-D_GNU_SOURCE", *flags.get(how, ["-DOPEN=open_it"]), "-o", program]
    subprocess.run([*argv, HERE / "moved_symbols.c", *libraries, path], check=True)
    return program


@pytest.mark.parametrize("how", ["leaf", "none", "dlmopen", "runpath", "rpath"])
def test_found_by_the_path_of_who_calls(shm, how):
    """It is on record before the program has it, and has its place in the next run."""
    program = caller(shm, how)
    linked(shm / "modules" / "named.so", CODE.format("call", 1))
    word = "0=named.so:module_call"
    place, told = goes(shm / "heap", program, 0, word)
    assert not told
    for size in (4096, 40960, 8192):
        assert goes(shm / "heap", program, size, word) == (place, ""), size
    linked(shm / "modules" / "named.so", CODE.format("more", 3) + CODE.format("call", 1))
    assert "1 word of it led into a library" in goes(shm / "heap", program, 0, word)[1]
