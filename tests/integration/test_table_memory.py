# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The memory that the allocator's tables take beside a full heap, by the size of the blocks."""

import pytest
from conftest import compiled, run, succeeds

FULL = 64 << 20
# Per cent of the blocks' bytes: tags, free bits, vslabs, extents, page map. Of a block of 64 bytes
# the tag alone is 1.56.
BOUNDS = {16: 7.5, 32: 4.3, 48: 7.5, 64: 2.0, 128: 1.25, 256: 0.85, 1024: 0.85}


@pytest.fixture(scope="module")
def program():
    return compiled("table_memory.c", name="pmtest_table_memory")


@pytest.mark.parametrize("size", BOUNDS)
def test_tables_of_a_full_heap(program, heap, size):
    done = run([program, size, FULL], HEAP=heap)
    share = 100 * int(succeeds(done)) / FULL
    assert 0.2 < share < BOUNDS[size], f"{share:.2f} per cent for blocks of {size} bytes"
