# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Tests that may fail and pass the second time, each with the reason: what in the machine does it,
and what would end it. A test that is not named here fails the run (scripts/run-tests)."""

KNOWN = {
    "test_counters::test_no_counter_passes_its_bound": "page faults of a start depend on where the "
    "kernel puts its mappings: 54 to 61 in 11 runs at a load of 9 to 20, where the bound is 60; a "
    "count at fixed addresses would end it",
}


def reason(name):
    """Why the test may fail once, or None. Names are those of test functions: "test_x::test_y"."""
    return KNOWN.get(name.partition("[")[0])
