# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Where a range of a data file without holes ends, the file system finds out page by page. A look
at the whole heap asks that once, however many large blocks lie in the range."""

import signal
import subprocess

from conftest import BUILD, busy, environment, said, tool

FEW, MANY = 20, 200


def asked(heap, blocks):
    """How often a recovery asks where a range ends."""
    env = environment(HEAP=heap, ROOTS="objects_table")
    program = [BUILD / "bench" / "objects", str(blocks), "200000"]
    killed = subprocess.run(program, env=env, timeout=60 * busy(), check=False)
    assert killed.returncode == -signal.SIGKILL
    trace = heap.with_name("trace")
    argv = ["strace", "-f", "-qq", "-e", "trace=lseek", "-o", trace, tool("pmalloc-recover")]
    done = subprocess.run(
        [*argv, heap], capture_output=True, text=True, timeout=60 * busy(), check=False
    )
    assert done.returncode == 0, said(done)
    return trace.read_text().count("SEEK_HOLE")


def test_ends_of_ranges_are_looked_for_once(heap):
    few = asked(heap.with_name("few"), FEW)
    assert few > 0
    assert asked(heap.with_name("many"), MANY) - few < FEW
