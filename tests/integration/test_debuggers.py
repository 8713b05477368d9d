# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Debuggers and tracers around the preload, and programs that are built as Debian hardens them."""

import os
import re
import shlex
import subprocess

import pytest
from conftest import (
    BUILD,
    ROOTS,
    app,
    busy,
    compiled,
    fingerprint,
    run,
    said,
    start,
    succeeds,
    tool,
)

LIBRARY = BUILD / "libpmalloc_preload.so"


def settings(heap):
    """The settings of docs/operations.md. PMALLOC_PROGRAM keeps shells and tracers off the heap."""
    return {"HEAP": heap, "ROOTS": "store", "PROGRAM": "kvshell"}


def gdb(*commands, program, preload=True, **more):
    argv = [
        "gdb",
        "-nx",
        "-q",
        "-batch",
        *(word for c in commands for word in ("-ex", c)),
        "--args",
        *program,
    ]
    done = run(argv, preload=preload, **more)
    if "ptrace" in done.stdout + done.stderr:
        pytest.skip("ptrace is forbidden here")
    return done


def test_gdb_runs_and_stops_in_malloc(heap, shm):
    (shm / "in").write_text("set a 1\nget a\n")
    done = gdb(
        "set breakpoint pending on",
        "break main",
        f"run < {shm}/in",
        "break libpmalloc_preload.so:malloc",
        "break pm_malloc_slow",
        "continue",
        "bt",
        "print pm_heap_state_word",
        "delete",
        "continue",
        program=[app("kvshell")],
        **settings(heap),
    )
    assert "Breakpoint 1, main" in done.stdout and re.search(r"#\d+ .* main ", done.stdout), said(
        done
    )
    assert "$1 = 1" in done.stdout and "exited normally" in done.stdout, said(done)
    assert "ok\n" in done.stdout and "\n1\n" in done.stdout, said(done)


def test_gdb_through_pmalloc_run(heap):
    """pmalloc-run replaces itself, so the debugger follows. The program gets the addresses that the
    heap knows."""
    run_it = [
        tool("pmalloc-run"),
        "-H",
        heap,
        "-r",
        "store",
        "-s",
        "PROGRAM=kvshell",
        app("kvshell"),
    ]
    script = (
        "set breakpoint pending on",
        "break start",
        "run",
        "print store",
        "delete",
        "continue",
    )
    seen = []
    for _ in range(2):
        done = gdb(*script, program=run_it, preload=False, stdin="set a 1\n")
        assert "exited normally" in done.stdout and "ok\n" in done.stdout, said(done)
        seen.append(re.search(r"\$1 = .* (0x\w+)", done.stdout)[1])
    assert seen[0] == "0x0" and seen[1].startswith("0x4000"), seen


def test_gdb_attaches(heap, processes):
    process = start([app("kvshell")], HEAP=heap, ROOTS="store")
    processes.append(process)
    process.stdin.write("set a 1\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ok\n"
    done = run(
        ["gdb", "-nx", "-q", "-batch", "-p", process.pid, "-ex", "print *store", "-ex", "detach"],
        preload=False,
    )
    if "ptrace" in done.stdout + done.stderr:
        pytest.skip("ptrace is forbidden here")
    assert "$1 = {" in done.stdout, said(done)
    process.stdin.write("get a\n")
    process.stdin.close()
    assert process.stdout.read() == "1\n" and process.wait(20 * busy()) == 0


def test_each_thread_has_a_stack_of_its_own(heap, processes):
    """For the library's work and its signals. PMAlloc's thread begins with its maker's thread-local
    variables; with the maker's stack, too, the two would take each other's frames. A thread that
    shares the thread pointer of another one never calls the library."""
    settings = {"HEAP": heap, "ROOTS": "store", "COMMIT": "output"}
    process = start([app("kvshell")], **settings)
    processes.append(process)
    process.stdin.write("set a 1\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ok\n"
    script = ["thread 1", "set $away = (long)&pm_signal_stack_own - (long)$fs_base"]
    script += ['thread apply all printf "at %lx %lx\\n", $fs_base, *(long *)($fs_base + $away)']
    words = [word for line in script for word in ("-ex", line)]
    done = run(["gdb", "-nx", "-q", "-batch", "-p", process.pid, *words], preload=False)
    if "ptrace" in done.stdout + done.stderr:
        pytest.skip("ptrace is forbidden here")
    found = dict(re.findall(r"^at (\w+) (\w+)$", done.stdout, re.MULTILINE))
    stacks = [stack for stack in found.values() if stack != "0"]
    assert len(found) == 2 and stacks and len(set(stacks)) == len(stacks), said(done)


@pytest.mark.parametrize("tracer", [["strace", "-f", "-o", "LOG"], ["ltrace", "-f", "-o", "LOG"]])
def test_tracers(heap, shm, tracer):
    tracer = [str(shm / "log") if word == "LOG" else word for word in tracer]
    for expected in ("none", "1"):
        script = f"{shlex.join(tracer)} {app('kvshell')}"
        done = run(["sh", "-c", script], stdin="get a\nset a 1\n", **settings(heap))
        if "ptrace" in done.stderr:
            pytest.skip("ptrace is forbidden here")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\nok\n", ""), said(
            done
        )
    assert "exited" in (shm / "log").read_text()


VALGRIND = "valgrind -q --error-exitcode=9 --leak-check=full"


def test_valgrind_leaves_a_heap_alone(heap):
    """Valgrind replaces malloc. A root that was restored or captured would point into valgrind's
    memory in the next run."""
    assert succeeds(run([app("kvshell")], stdin="set a 1\n", **settings(heap))) == "ok\n"
    before = fingerprint(heap)
    done = run(["sh", "-c", f"exec {VALGRIND} {app('kvshell')}"], stdin="get a\n", **settings(heap))
    assert done.stdout == "none\n" and done.stderr.count("pmalloc: ") == 1, said(done)
    assert "valgrind" in done.stderr and fingerprint(heap) == before, said(done)


def test_valgrind_on_volatile_memory_checks_the_program(shm):
    source = shm / "bad.c"
    source.write_text(
        "#include <stdlib.h>\n"
        "int main(void) { char *volatile p = malloc(10); p[10] = 1; return 0; }\n"
    )
    subprocess.run(["gcc", "-g", "-o", shm / "bad", source], check=True)
    done = run([*VALGRIND.split(), shm / "bad"], BACKING="volatile")
    assert done.returncode == 9 and "Invalid write of size 1" in done.stderr, said(done)
    done = run(
        [
            *VALGRIND.split(),
            "--trace-children=yes",
            tool("pmalloc-run"),
            "-s",
            "BACKING=volatile",
            shm / "bad",
        ],
        False,
    )
    assert done.returncode == 9 and "Invalid write of size 1" in done.stderr, said(done)


def test_valgrind_runs_our_malloc_when_told_to():
    ours = "--soname-synonyms=somalloc=nouserintercepts"
    done = run(
        ["valgrind", "-q", ours, app("cfrac"), "17545186520507317056371138836327483792736"],
        BACKING="volatile",
        STATS=1,
    )
    assert " = " in succeeds(done) and "pmalloc: " in done.stderr, said(done)
    assert (
        not re.search(r"0 objects|0 allocations", done.stderr) and "Invalid" not in done.stderr
    ), said(done)


# ---- hardening -----------------------------------------------------------------------------------


def hardening():
    """The flags of hardening=+all from dpkg-buildflags, where there is dpkg-dev, and those that
    newer Debians add."""
    words = []
    for kind in ("CPPFLAGS", "CFLAGS", "LDFLAGS"):
        env = os.environ | {"DEB_BUILD_MAINT_OPTIONS": "hardening=+all"}
        with_dpkg = ["dpkg-buildflags", "--get", kind]
        done = subprocess.run(with_dpkg, env=env, capture_output=True, text=True, check=True)
        words += done.stdout.split()
    more = [
        "-fcf-protection=full",
        "-fstack-clash-protection",
        "-ftrivial-auto-var-init=zero",
        "-U_FORTIFY_SOURCE",
    ]
    return [*words, *more, "-D_FORTIFY_SOURCE=3", "-D_GLIBCXX_ASSERTIONS", "-Wl,-z,separate-code"]


@pytest.mark.parametrize("name", ["kvshell", "list", "tree"])
def test_hardened_programs(heap, name):
    program = compiled(
        f"../apps/{name}.c", *hardening(), "-pie", name=f"hardened_{name}", libraries=["-lm"]
    )
    header = subprocess.run(
        ["readelf", "-dWl", program], capture_output=True, text=True, check=True
    ).stdout
    assert "BIND_NOW" in header and "GNU_RELRO" in header and "PIE" in header
    where = {"HEAP": heap, "ROOTS": ROOTS[name]}
    if name == "kvshell":
        assert succeeds(run([program], stdin="set a 1\n", **where)) == "ok\n"
        assert succeeds(run([program], stdin="get a\n", **where)) == "1\n"
        return
    run([program, "run", 3000, 1, "-t", 2, "-k"], **where)
    first = succeeds(run([program, "check"], **where))
    assert first.startswith("ok keys=") and succeeds(run([program, "check"], **where)) == first


def test_malloc_object_sizes_of_fortified_code(shm):
    """_FORTIFY_SOURCE=3 goes by the size that malloc was asked for. malloc_usable_size() may return
    more, and all of that must be usable."""
    source = shm / "fortified.c"
    source.write_text(
        """
        #include <malloc.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        int main(int argc, char **argv) {
            (void)argv;
            for (size_t n = 1; n < 70000; n = n * 3 + (size_t)argc) {
                char *p = malloc(n);
                memset(p, 'x', n);
                snprintf(p, n, "%s", "some text");
                p = realloc(p, malloc_usable_size(p));
                memset(p, 'y', malloc_usable_size(p));
                free(p);
            }
            char *small = malloc((size_t)argc * 8);
            memset(small, 0, (size_t)argc * 9);
            puts("not noticed");
        }
    """
    )
    flags = ["-O2", "-D_FORTIFY_SOURCE=3", "-w"]
    subprocess.run(["gcc", *flags, "-o", shm / "fortified", source], check=True)
    done = run([shm / "fortified"], BACKING="volatile")
    assert done.returncode == -6 and "buffer overflow detected" in done.stderr, said(done)


def test_our_own_library_is_hardened():
    """Full RELRO, no segment that is both writable and executable, no executable stack, no text
    relocations. Code and constants are one segment (see SO_LDFLAGS)."""
    text = subprocess.run(
        ["readelf", "-dlW", LIBRARY], capture_output=True, text=True, check=True
    ).stdout
    assert "GNU_RELRO" in text and re.search(r"BIND_NOW|FLAGS.*NOW", text) and "TEXTREL" not in text
    segments = re.findall(r"^ +(LOAD|GNU_STACK) .* ([R ][W ][E ]) 0x", text, re.MULTILINE)
    assert segments == [("LOAD", "R E"), ("LOAD", "RW "), ("GNU_STACK", "RW ")], text
