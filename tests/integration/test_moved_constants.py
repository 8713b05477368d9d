# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Words of a heap that lead to constants without a name, which another build lacks: text is copied,
as well aligned as any constant; what is no text is refused, and never taken for it."""

import signal
import subprocess

import pytest
from conftest import CC, run, said

SOURCE = r"""
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const unsigned char constant[] __attribute__((aligned(16))) = CONSTANT;
const unsigned char **root;
int main(void) {
    if (!root) {
        root = malloc(sizeof *root);
        *root = constant;
        raise(SIGKILL);
    }
    printf("%d %s\n", (int)((uintptr_t)*root % 16), (const char *)*root);
    return 0;
}
"""
TEXTS = ["plain", "gr\\303\\274n", "\\342\\202\\254 100\\n", "\\360\\237\\230\\200"]
OTHERS = [
    "{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0}",
    '"gr\\374n"',  # Latin-1: what is not UTF-8 is not known to be text
    '"\\303"',
    '"\\300\\200x"',
    '"\\355x"',
    '"\\1\\2\\3"',
]


@pytest.fixture
def runs(shm):
    """A build that has this constant, and exports nothing but its root; with what it said."""
    program, source = shm / "program", shm / "program.c"

    def go(constant):
        source.write_text(SOURCE.replace("CONSTANT", constant))
        program.unlink(missing_ok=True)
        flags = ["-O1", "-s", "-rdynamic"]
        subprocess.run([CC, *flags, "-o", program, source], check=True, timeout=60)
        return run([program], HEAP=shm / "heap", ROOTS="root")

    return go


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_copied(runs, text):
    assert runs(f'"{text}"').returncode == -signal.SIGKILL
    for _ in range(2):
        done = runs('"another"')
        shown = subprocess.run(["printf", text], capture_output=True, text=True, check=True).stdout
        assert (done.returncode, done.stdout) == (0, f"0 {shown}\n"), said(done)


@pytest.mark.parametrize("constant", OTHERS)
def test_what_is_no_text_is_refused(runs, constant):
    assert runs(constant).returncode == -signal.SIGKILL
    done = runs('"another"')
    assert done.returncode == 125 and "data without a name" in done.stderr, said(done)
    done = runs(constant)
    assert done.returncode == 0 and done.stdout.startswith("0 "), said(done)
