# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The counters of scripts/counters within their bounds: no timing, so it holds on a loaded machine, too."""

import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, environment, said


def counters(*arguments, **settings):
    argv = [sys.executable, ROOT / "scripts/counters", *arguments]
    env = environment(preload=False) | {"BUILD": str(BUILD)} | settings
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_no_counter_passes_its_bound():
    done = counters()
    assert done.returncode == 0, said(done)


def test_a_bound_that_is_passed_is_said():
    # With no decay every large block goes back to the file system as soon as it is free.
    done = counters("--only=steady-large-calls,steady-calls", "--set=PMALLOC_DECAY_MS=0")
    assert done.returncode == 1, said(done)
    assert "steady-large-calls: " in done.stdout and "the bound is 0" in done.stdout, said(done)
    assert "  steady-calls: " not in done.stdout and "raise the bound" in done.stdout


def test_what_is_missing_is_said(tmp_path):
    done = counters("--only=pair-16", BUILD=str(tmp_path))
    assert done.returncode == 2 and "run make" in done.stderr, said(done)
    done = counters("--only=nonsense")
    assert done.returncode == 2 and "there is no counter nonsense" in done.stderr, said(done)
    done = counters("--only=pair-16", PATH="/nowhere")
    assert done.returncode == 2 and "valgrind is missing: run scripts/bootstrap --test" in done.stderr
