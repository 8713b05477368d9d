# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Modules that a program finds by name, those that come along with others, and those of one name:
each word of the heap leads to the same thing in the next run, also if that is another build. See
test_moved.py for modules by their paths. moved_symbols.c is the program; it is killed."""

import signal
import subprocess

import pytest
from conftest import HERE, compiled, run, said

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


def test_found_in_the_list_of_libraries(shm):
    """glibc maps its list before the library, which must not take the place of that."""
    program = caller(shm, "none")
    places = [goes(shm / "heap", program, 0, "0=libm.so.6:cos") for _ in range(4)]
    assert all(said == "" for _, said in places), places
    assert len({place for found, _ in places for place in found}) == 1, places


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


# ---- several of one name ------------------------------------------------------------------------


@pytest.fixture
def program():
    return compiled("moved_symbols.c", "-D_GNU_SOURCE")


@pytest.mark.parametrize("then", ["copies", "others"])
@pytest.mark.parametrize("now", ["same", "upgraded"])
@pytest.mark.parametrize("order", ["0 1", "1 0", "0", "1"])
def test_two_of_one_name(shm, program, then, now, order):
    """In two directories: what leads into one of them leads into that, also when the other one
    alone has come; and if both are one build."""

    def put(*more):
        for number, folder in enumerate("ab"):
            value = number if then == "others" else 0
            code = CODE.format("call", value) + "int module_state[4];\n"
            linked(shm / folder / "module.so", "".join(more) + code)

    def words(numbers):
        return [
            f"{2 * number + k}={shm / 'ab'[number] / 'module.so'}:module_{name}"
            for number in numbers
            for k, name in enumerate(["call", "state"])
        ]

    put()
    goes(shm / "heap", program, 0, *words([0, 1]))
    if now == "upgraded":
        put(CODE.format("more", 5), "int module_table[3000];\n")
    goes(shm / "heap", program, 0, *words(map(int, order.split())), RANDOMIZE=1)
    goes(shm / "heap", program, 4096, *words([1, 0]))


def test_another_directory(shm, program):
    """The next version may come from one."""
    for number in range(3):
        module = linked(shm / f"v{number}" / "module.so", CODE.format("call", number))
        told = goes(shm / "heap", program, 0, f"0={module}:module_call")[1]
        assert ("1 word of it led into a library" in told) == (number > 0), told


# ---- libraries that come along ------------------------------------------------------------------


@pytest.fixture
def family(shm):
    """A module that needs two libraries, one of which needs another one."""

    def put(last="", size=4):
        lowest = linked(shm / "liblowest.so", CODE.format("lowest", 1) + last)
        needed = f"-Wl,--no-as-needed,-rpath,{shm}"
        lower = linked(shm / "liblower.so", CODE.format("lower", 2), needed, lowest)
        beside = linked(shm / "libbeside.so", f"int module_beside[{size << 10}];\n")
        return linked(shm / "module.so", CODE.format("call", 3), needed, lower, beside)

    return put


NAMES = ["call", "lower", "lowest", "beside"]


@pytest.mark.parametrize("how", ["path", "name"])
def test_they_come_to_their_places(shm, family, program, how):
    """All of them, whatever was mapped before: so values computed from addresses stay right."""
    module = family()
    if how == "name":
        program, module = caller(shm, "leaf"), family().name
        (shm / "modules").symlink_to(shm)
    words = [f"{n}={module}:module_{name}" for n, name in enumerate(NAMES)]
    places, told = goes(shm / "heap", program, 0, *words)
    assert not told
    for size in (4096, 16384, 65536, 40960):
        assert goes(shm / "heap", program, size, *words) == (places, ""), size


def test_one_of_them_is_another_build(shm, family, program):
    """Its words are changed; all others are where they were."""
    words = [f"{n}={family()}:module_{name}" for n, name in enumerate(NAMES)]
    places = goes(shm / "heap", program, 0, *words)[0]
    family("int module_table[9000];\n" + CODE.format("more", 7))
    now, told = goes(shm / "heap", program, 16384, *words)
    assert "1 word of it led into a library" in told, told
    assert [now[n] == places[n] for n in range(4)] == [True, True, False, True], (places, now)
    assert goes(shm / "heap", program, 4096, *words) == (now, "")
    for number in range(3):
        family()
        goes(shm / "heap", program, 4096 * number, *words, RANDOMIZE=1)
