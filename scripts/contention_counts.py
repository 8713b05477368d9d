# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What tests/bench/contention.c counts, for counters."""

import functools

import benchlib

THREADS = (1, 2, 4, 8, 16, 32, 64)
LOCKS = ("own", "other", "extent", "rest")
KINDS = ("malloc", "local", "remote")
LOCAL = ("malloc", "local")
# Without anybody's settings.
ENVIRONMENT = benchlib.environment(benchlib.Variant(benchlib.LIBC, None))


@functools.cache
def counts(workload, threads):
    """{kind of operation: {figure: count}}"""
    argv = [str(benchlib.built("bench/contention", "make study-built")), workload, str(threads)]
    result = benchlib.run(argv, env=ENVIRONMENT)
    if result.status != 0:
        status = benchlib.status_text(result)
        raise benchlib.Failure(f"contention {workload} {threads}: {status}\n{result.stderr}")
    table = {}
    for line in result.stdout.splitlines():
        kind, *pairs = line.split()
        table[kind] = {key: int(value) for key, _, value in (p.partition("=") for p in pairs)}
    return table


def per_operation(workload, threads, figures, kinds=KINDS):
    """How many of the figures together an operation of these kinds has; 0 where there are none."""
    table = counts(workload, threads)
    operations = sum(table[kind]["ops"] for kind in kinds)
    total = sum(table[kind][figure] for kind in kinds for figure in figures)
    return total / operations if operations else 0


def worst(workload, figures, kinds=KINDS):
    """The most an operation has, of 1 to 64 threads."""
    return max(per_operation(workload, threads, figures, kinds) for threads in THREADS)
