# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Words that lead to one of several things of one name, which compilers number: in another build
the same number may be another thing's. numbered.c and numbered.cc are the programs."""

import hashlib
import shutil
import subprocess

import pytest
from conftest import HERE, compiled, needs, run, said

SEVERAL = "is one of several of its name"


def build(shm, compiler, order, *flags, turned=False):
    """The program, of two objects in their order, or turned."""
    needs(compiler)
    name = hashlib.sha1(repr((compiler, order, flags, turned)).encode()).hexdigest()[:8]
    objects = []
    for file, other in (("first", []), ("second", ["-DOTHER"])):
        source = shutil.copy(HERE / "numbered.c", shm / f"{file}.c")
        objects.append(shm / f"{name}-{file}.o")
        argv = [compiler, "-O2", "-w", f"-DORDER={order}", *flags, *other]
        subprocess.run([*argv, "-c", "-o", objects[-1], source], check=True)
    program = shm / name
    linked = [compiler, "-O2", *flags, "-o", program, *(objects[::-1] if turned else objects)]
    if subprocess.run(linked, capture_output=True, check=False).returncode:
        pytest.skip("this compiler has no plugin for -flto")
    return program


def carried(shm, first, second, what):
    """What the second build says of a heap of the first one."""
    program, heap = shm / "program", shm / "heap"
    shutil.copy(first, program)
    done = run([program, what], HEAP=heap, ROOTS="box+0/8")
    assert done.returncode == 0, said(done)
    program.unlink()
    shutil.copy(second, program)
    after = run([program, what], HEAP=heap)
    return done.stdout.strip(), after


def refuses(shm, first, second, what, why=SEVERAL):
    _, after = carried(shm, first, second, what)
    assert after.returncode == 125 and why in after.stderr and not after.stdout, said(after)


def finds(shm, first, second, what):
    before, after = carried(shm, first, second, what)
    assert after.returncode == 0 and after.stdout.strip() == before, said(after)
    assert "each leads to the same thing now" in after.stderr, said(after)


@pytest.mark.check
@pytest.mark.parametrize("orders", [(1, 2), (1, 1), (0, 1), (1, 0)])
def test_statics_of_functions(orders, shm):
    """gcc has anchor.0 and anchor.1, whichever function stands first."""
    first, second = (build(shm, "gcc", order, *flag)
                     for order, flag in zip(orders, ([], ["-O1"])))
    refuses(shm, first, second, "anchor")


def test_a_static_that_is_alone(shm):
    finds(shm, build(shm, "gcc", 0), build(shm, "gcc", 0, "-O1"), "anchor")


def test_constants_have_their_bytes(shm):
    finds(shm, build(shm, "gcc", 1), build(shm, "gcc", 2, "-DLATER"), "word")


def test_names_with_their_function(shm):
    """clang has one.anchor and two.anchor."""
    finds(shm, build(shm, "clang", 1), build(shm, "clang", 2, "-DLATER"), "anchor")


@pytest.mark.parametrize("what", ["table", "helper"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_names_of_two_files(compiler, what, shm):
    """clang's LTO calls the second one table.1, gcc's table.lto_priv.1."""
    plain = [build(shm, compiler, 1, turned=turned) for turned in (False, True)]
    finds(shm, *plain, what)
    shutil.rmtree(shm / "heap")
    whole = [build(shm, compiler, 1, "-flto", turned=turned) for turned in (False, True)]
    refuses(shm, *whole, what)
    shutil.rmtree(shm / "heap")
    why = SEVERAL if compiler == "clang" else "is gone in this build"
    refuses(shm, plain[0], whole[1], what, why)


def test_what_clang_has_taken_apart(shm):
    """Another file has something whole of that name: words were led there."""
    whole, apart = build(shm, "clang", 0), build(shm, "clang", 0, "-DAPART")
    symbols = subprocess.run(["nm", apart], capture_output=True, text=True, check=True).stdout
    assert " table.0\n" in symbols and " table\n" in symbols
    refuses(shm, whole, apart, "table", "table is gone in this build")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_one_function_of_two_names(compiler, shm):
    """A linker folds functions of equal code. Which of them a word meant is not known."""
    one = build(shm, compiler, 0)
    finds(shm, one, build(shm, compiler, 0, "-DLATER"), "left")
    shutil.rmtree(shm / "heap")
    refuses(shm, one, build(shm, compiler, 0, "-DPARTED"), "left", "has another name, too")


FILES = {
    "renamed": (["a/one.c", "a/two.c"], ["a/other.c"]),
    "directories": (["a/one.c", "b/one.c"], ["a/one.c"]),
}


@pytest.mark.parametrize("how", FILES)
@pytest.mark.parametrize("wanted", [0, 1])
def test_one_is_left_of_two(how, wanted, shm):
    """It may be either of them, or neither."""

    def put(files, number=None):
        for index, name in enumerate(files):
            (shm / name).parent.mkdir(exist_ok=True)
            value = 100 if number is None else 100 * index
            code = f"static int value = {value}; static int f(int x) {{ return x + value; }}\n"
            get = f"int (*get{index}(void))(int) {{ return f; }}\n"
            (shm / name).write_text(code + get + f"int *at{index}(void) {{ return &value; }}\n")
        (shm / "main.c").write_text(ONE_LEFT.replace("NUMBER", str(number or 0)))
        argv = ["gcc", "-O0", "-o", shm / "program", shm / "main.c"]
        subprocess.run([*argv, *(shm / name for name in files)], check=True)
        return run([shm / "program"], HEAP=shm / "heap", ROOTS="kept")

    before, after = FILES[how]
    assert put(before, wanted).stdout == f"{100 * wanted}\n"
    done = put(after)
    assert done.returncode == 125 and not done.stdout, said(done)
    assert done.stderr.count("was one of several of its name") == 2, said(done)


ONE_LEFT = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
int (*getNUMBER(void))(int);
int *atNUMBER(void);
struct { int (*call)(int), *at; } *kept;
int main(void) {
    if (!kept) {
        kept = malloc(sizeof *kept);
        kept->call = getNUMBER();
        kept->at = atNUMBER();
    }
    printf("%d\\n", kept->call(0));
    fflush(stdout);
    return raise(SIGKILL);
}
"""


# ---- C++ ----------------------------------------------------------------------------------------


def built(compiler, *flags):
    needs(compiler)
    name = "numbered-" + hashlib.sha1(repr((compiler, flags)).encode()).hexdigest()[:8]
    return compiled("numbered.cc", *flags, name=name, compiler=compiler)


@pytest.fixture
def goes_on(shm):
    """Starts a build on the heap of the one before it."""
    def start(build, *flags, **settings):
        program = shm / "program"
        program.unlink(missing_ok=True)
        shutil.copy(built(*build, *flags), program)
        done = run([program], HEAP=shm / "heap", ROOTS="box", **settings)
        if done.returncode == 0:
            several = "-DSEVERAL" in build + flags
            expected = ["alpha xalpha 21 alpha"] + ["beta xbeta 31 beta"] * several
            assert done.stdout.splitlines() == expected, said(done)
        return done

    return start


COMPILERS = ["g++", "clang++"]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("change", ["-DRENUMBERED", "-fno-inline"])
def test_one_of_a_kind_may_have_another_number(compiler, change, goes_on):
    """One more lambda of another kind before it changes gcc's numbers, and clang's."""
    assert goes_on((compiler, "-O1")).returncode == 0
    done = goes_on((compiler, "-O2"), change)
    assert done.returncode == 0 and "each leads to the same thing now" in done.stderr, said(done)


@pytest.mark.check
@pytest.mark.parametrize("compiler", COMPILERS)
def test_one_more_of_a_kind(compiler, goes_on):
    """Its numbers were taken for names: functions of the new one were called, without a word."""
    assert goes_on((compiler, "-O1")).returncode == 0
    for setting in ({}, {"REBASE_TRUST": "hashed,numbered"}):
        done = goes_on((compiler, "-O1"), "-DNEWER", **setting)
        assert done.returncode == 125 and not done.stdout, said(done)
        assert "there are more or fewer of them in this build" in done.stderr, said(done)
    assert goes_on((compiler, "-O1")).returncode == 0  # the old build goes on


@pytest.mark.parametrize("compiler", COMPILERS)
def test_several_of_a_kind(compiler, goes_on):
    several = (compiler, "-DSEVERAL")
    assert goes_on(several, "-O1").returncode == 0
    done = goes_on(several, "-O2")
    assert done.returncode == 125 and "PMALLOC_REBASE_TRUST=numbered" in done.stderr, said(done)
    done = goes_on(several, "-O2", REBASE_TRUST="numbered")
    assert done.returncode == 0 and "each leads to the same thing now" in done.stderr, said(done)
    done = goes_on(several, "-O2", "-DNEWER", REBASE_TRUST="numbered")
    assert done.returncode == 125 and "there are more or fewer of them" in done.stderr, said(done)
