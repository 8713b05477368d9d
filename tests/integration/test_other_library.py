# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Libraries of which PMAlloc has names, and that not all of the program sees: each object gets the
functions that it would have got without PMAlloc."""

import pytest
from conftest import compiled, run, succeeds

SHARED = ("-shared", "-fPIC")


def module(number, *links):
    name = f"libother_module_{number}.so"
    flags = ("-DMODULE", "-Wl,-rpath,$ORIGIN")
    return compiled("other_library.c", *SHARED, *flags, name=name, libraries=links)


def library(number):
    flags = (*SHARED, f"-DLIBRARY={number}", f"-Wl,-soname,libother_{number}.so")
    return compiled("other_library.c", *flags, name=f"libother_{number}.so")


@pytest.fixture(scope="module")
def program():
    return compiled("other_library.c", name="other_library")


@pytest.mark.parametrize("commit", [{}, {"COMMIT": "10ms"}], ids=str)
def test_each_object_has_its_own(program, heap, commit):
    """Two modules that bring different libraries with the same names, which is no error."""
    modules = [module(n, library(n)) for n in (1, 2)]
    done = run([program, *modules], HEAP=heap, ROOTLESS="quiet", **commit)
    assert succeeds(done).split() == ["11", "22"] * 2
    assert succeeds(run([program, *modules], preload=False)).split() == ["11", "22"] * 2


def test_one_that_all_see_goes_first(program, heap):
    modules = [module(n, library(n)) for n in (1, 2)]
    done = run([compiled("other_library.c", "-Wl,--no-as-needed", name="other_library_linked",
                         libraries=[library(2), f"-Wl,-rpath,{library(2).parent}"]), *modules],
               HEAP=heap, ROOTLESS="quiet")
    assert succeeds(done).split() == ["22", "22"] * 2


def test_a_module_without_a_library_of_its_own(program, heap):
    """It would not have been loaded without PMAlloc. What another one has brought is found."""
    modules = [module(1, library(1)), module(3)]
    done = run([program, *modules], HEAP=heap, ROOTLESS="quiet")
    assert succeeds(done).split() == ["11", "11"] * 2


def test_nobody_has_it(program, heap):
    done = run([program, module(3)], HEAP=heap)
    assert done.returncode == 125
    assert "pmalloc: no library of this program has omp_test_lock;" in done.stderr


def test_openmp_in_a_module(program, heap):
    """libgomp itself, as Python's extensions bring it."""
    openmp = compiled("other_openmp.c", *SHARED, "-fopenmp", name="libother_openmp.so",
                      compiler="gcc")
    done = run([program, openmp], HEAP=heap, COMMIT="10ms", ROOTLESS="quiet")
    assert succeeds(done).split() == ["1000", "2000"]
