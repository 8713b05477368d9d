# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What commit mode adds to a lock, and the gate to a commit: counts for scripts/counters, by
tests/bench/gatecost.c."""

import re
import tempfile

import benchlib

FEW, MANY = 20, 320  # answers


def program():
    return str(benchlib.built("bench/gatecost"))


def steps(variant):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        done = benchlib.run([program(), "steps"], env=benchlib.environment(variant, folder))
    found = re.fullmatch(r"instructions=([\d.]+)\n", done.stdout)
    if done.status != 0 or not found:
        raise benchlib.Failure(f"gatecost steps: {benchlib.status_text(done)}")
    return float(found[1])


def instructions(settings):
    """Of a lock and unlock, over plain. By single steps: in commit mode there is a thread that
    valgrind does not know."""

    def measure(variant):
        plain = benchlib.Variant(benchlib.LIBC, None)
        return steps(variant._replace(settings=settings | variant.settings)) - steps(plain)

    return measure


def calls(system_calls, settings):
    """Of an answer, and so of a commit, beside threads that wait."""

    def measure(variant):
        variant = variant._replace(settings=settings | variant.settings)
        runs = [system_calls(variant, [program(), "turns", str(n)]) for n in (FEW, MANY)]
        return (runs[1] - runs[0]) / (MANY - FEW)

    return measure


def calls_of_gate(system_calls, settings):
    """What it takes more than without a gate."""
    whole = calls(system_calls, settings)
    without = calls(system_calls, settings | {"PMALLOC_COMMIT_PATIENCE": "0"})
    return lambda variant: whole(variant) - without(variant)
