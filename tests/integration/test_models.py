# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The models of tests/models: spin finds each right, and each of its mutants wrong."""

import re
import subprocess

import pytest
from conftest import ROOT, needs

MODELS = sorted((ROOT / "tests" / "models").glob("*.pml"))
MUTANT = re.compile(r"^//   ([A-Z_]+)  ", re.MULTILINE)
CASES = [
    (model, mutant)
    for model in MODELS
    for mutant in ("", *MUTANT.findall(model.read_text(encoding="utf-8")))
]


def test_the_models_name_their_mutants():
    assert MODELS and len(CASES) > 2 * len(MODELS), CASES


@pytest.mark.parametrize(
    "model, mutant", CASES, ids=[f"{model.stem}-{mutant or 'right'}" for model, mutant in CASES]
)
def test_a_model(tmp_path, model, mutant):
    assert not mutant or f"def {mutant}\n" in model.read_text(encoding="utf-8"), mutant
    define = [f"-D{mutant}"] if mutant else []
    subprocess.run([needs("spin"), *define, "-a", model], cwd=tmp_path, check=True)
    # What is right takes longest. What is wrong is found sooner from the last transition on.
    how = ["-O0", "-DT_REVERSE"] if mutant else ["-O1"]
    subprocess.run(
        ["gcc", *how, "-w", "-DSAFETY", "-o", "pan", "pan.c"], cwd=tmp_path, check=True
    )
    done = subprocess.run(["./pan", "-m100000"], cwd=tmp_path, capture_output=True, text=True)
    errors = re.search(r"errors: (\d+)", done.stdout)
    assert errors and "max search depth too small" not in done.stdout, done.stdout
    assert (int(errors[1]) > 0) == bool(mutant), done.stdout
