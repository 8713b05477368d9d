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


LONGER = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
struct methods { int version; int (*call)(int); MORE };
static int call(int x) { return x + sizeof(struct methods); }
KIND struct methods methods[1 + IN] = {{3, call}};
struct { const struct methods *methods; } *root;
int main(void) {
    if (!root) {
        root = calloc(1, sizeof *root);
        root->methods = methods + IN;
    }
    printf("%d %d\n", root->methods == methods + IN, methods->call(0));
    fflush(stdout);
    return raise(SIGKILL);
}
"""


@pytest.mark.parametrize("kind", ["static const", "const", "static", ""])
@pytest.mark.parametrize("inside", [0, 1])
@pytest.mark.parametrize("relocated", [True, False])
def test_a_constant_that_is_longer(shm, kind, inside, relocated):
    """Its start is where it was. A place within it need not be, nor what has become shorter; and a
    variable has the program's data."""
    program = shm / "program"

    def runs(more):
        source = LONGER.replace("KIND", kind).replace("MORE", more).replace("IN", str(inside))
        if not relocated:
            source = source.replace("int (*call)(int);", "long number;").replace("{3, call}", "{3}")
            source = source.replace("methods->call(0)", "call(0)")
        (shm / "program.c").write_text(source)
        program.unlink(missing_ok=True)
        argv = [CC, "-O1", "-w", "-o", program, shm / "program.c"]
        subprocess.run(argv, check=True, timeout=60)
        return run([program], HEAP=shm / "heap", ROOTS="root")

    assert runs("").stdout == "1 16\n"
    done = runs("long more[4];")
    if "const" in kind and not inside:
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, "1 48\n"), said(done)
        done = runs("")
        assert "methods has 16 bytes in this build, it had 48" in done.stderr, said(done)
    assert done.returncode == 125 and "methods has " in done.stderr, said(done)
