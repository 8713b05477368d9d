# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the tests of events share: a program that the library has something to say about."""

import pytest
from conftest import BUILD, compiled, run

SAYS = r"free\(0x[0-9a-f]+\): block is free already \(double free\?\); request ignored"
PLAIN = f"pmalloc: {SAYS}"
WELL = "waited -1 no child, signals 0, wrong numbers 0\n"


@pytest.fixture(name="program", scope="module")
def program_of_events():
    return compiled("events.c", "-D_GNU_SOURCE")


@pytest.fixture(name="go")
def runner(program, heap):
    """Runs the program on a heap, under settings."""

    def call(*words, before=(), **settings):
        """`before` is what executes it, without the preload."""
        settings = {"HEAP": heap, "CHECK": "report", **settings}
        if not before:
            return run([program, *words], **settings)
        preload = f"LD_PRELOAD={BUILD / 'libpmalloc_preload.so'}"
        return run([*before, "env", preload, program, *words], preload=False, **settings)

    return call
