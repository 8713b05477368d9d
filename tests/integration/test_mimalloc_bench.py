# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The real programs of mimalloc-bench under the preload give the results they give on libc.

Needs a build of mimalloc-bench outside the repository: MIMALLOC_BENCH=DIR.
"""

import json
import os
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, environment

BENCH = os.environ.get("MIMALLOC_BENCH")


@pytest.mark.slow
@pytest.mark.skipif(not BENCH, reason="MIMALLOC_BENCH names no build of mimalloc-bench")
@pytest.mark.parametrize("program", ["cfrac", "espresso", "barnes"])
def test_same_results(program, tmp_path):
    report = tmp_path / "report.json"
    argv = [sys.executable, ROOT / "scripts" / "mimalloc-bench", BENCH, f"--programs={program}"]
    done = subprocess.run(
        [*argv, "--runs=1", f"--json={report}"],
        env=environment(preload=False) | {"BUILD": str(BUILD)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    allocators = json.loads(report.read_text())["programs"][program]["allocators"]
    assert {"glibc", "pmalloc"} <= allocators.keys(), allocators
