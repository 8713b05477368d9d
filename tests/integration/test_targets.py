# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Programs that a preloaded malloc cannot or must not get into: what pmalloc-run says of them, and
what the library does in them. Chains of exec."""

import os
import shutil
import stat
import subprocess

import pytest
from conftest import BUILD, compiled, one_message, recovered, run, said, succeeds, tool

LIBRARY = BUILD / "libpmalloc_preload.so"
PLAIN = "#include <stdlib.h>\nint main(void) { void *p = malloc(9); free(p); return p ? 7 : 1; }\n"
OWN_MALLOC = """
    #include <stddef.h>
    #include <string.h>
    static char memory[1 << 20]; static size_t used;
    void *malloc(size_t n) { void *p = memory + used; used += (n + 31) & ~15ul; return p; }
    void free(void *p) { (void)p; }
    void *calloc(size_t a, size_t b) { return memset(malloc(a * b), 0, a * b); }
    void *realloc(void *p, size_t n) { void *q = malloc(n); if (p) memcpy(q, p, n); return q; }
    int main(void) { return 7; }
"""


def built(folder, text=PLAIN, *flags, compiler="gcc", name="program"):
    source = folder / f"{name}.c"
    source.write_text(text)
    command = [compiler, "-fno-builtin", "-o", folder / name, source, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / name


def start(*argv, **settings):
    return run([tool("pmalloc-run"), "-s", "BACKING=volatile", *argv], preload=False, **settings)


def refused(done, *parts):
    assert done.returncode == 126 and done.stdout == "", said(done)
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("pmalloc-run: "), said(done)
    for part in parts:
        assert part in done.stderr, said(done)


# ---- what pmalloc-run says -----------------------------------------------------------------------


@pytest.mark.check
def test_a_plain_program_is_taken(shm):
    done = start(built(shm))
    assert (done.returncode, done.stderr) == (7, ""), said(done)


@pytest.mark.parametrize("flags", [["-static"], ["-static-pie"]])
def test_static(shm, flags):
    refused(start(built(shm, PLAIN, *flags)), "statically linked", "link it dynamically")


def test_musl(shm):
    refused(start(built(shm, compiler="musl-gcc")), "musl", "CC=musl-gcc")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    "which, name", [("address", "AddressSanitizer"), ("thread", "ThreadSanitizer")]
)
def test_sanitizers(shm, compiler, which, name):
    program = built(shm, PLAIN, f"-fsanitize={which}", compiler=compiler)
    assert run([program], preload=False).returncode == 7
    refused(start(program), name, "-fsanitize")


def test_own_malloc(shm):
    refused(start(built(shm, OWN_MALLOC, "-rdynamic")), "own malloc")


@pytest.mark.parametrize(
    "at, value, part",
    [
        (4, 1, "32-bit"),
        (18, 183, "another processor"),
        (5, 2, "another architecture"),
        (16, 4, "neither a program"),
    ],
)
def test_foreign_elf_files(shm, at, value, part):
    program = built(shm)
    image = bytearray(program.read_bytes())
    image[at] = value
    if value == 1:
        image[18] = 3
    program.write_bytes(image)
    refused(start(program), part)


def test_what_is_no_program(shm):
    program = shm / "program"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o700)
    assert start(program).returncode in (126, 127)
    program.write_bytes(b"MZ\x00\x00" * 50)
    refused(start(program), "neither an ELF program nor a script")
    program.write_bytes(built(shm, name="other").read_bytes()[:700])
    refused(start(program), str(program))


def test_dynamic_linker_that_is_not_there(shm):
    refused(
        start(built(shm, PLAIN, "-Wl,--dynamic-linker=/no/such/ld.so")),
        "/no/such/ld.so",
        "No such file",
    )


def test_file_capabilities(shm):
    program = built(BUILD / "integration", name="capable")
    if subprocess.run(
        ["setcap", "cap_net_raw+ep", program], check=False, capture_output=True
    ).returncode:
        pytest.skip("file capabilities need root and a file system that has them")
    refused(start(program), "file capabilities")


@pytest.mark.parametrize(
    "bit, part", [(stat.S_ISUID, "set-user-ID"), (stat.S_ISGID, "set-group-ID")]
)
def test_privileged(shm, bit, part):
    program = built(shm)
    program.chmod(0o755 | bit)
    refused(start(program), part)


def test_the_interpreter_of_a_script_is_looked_at(shm, monkeypatch):
    monkeypatch.setenv("PATH", f"{shm}:/usr/bin:/bin")
    static = built(shm, PLAIN, "-static", name="static")
    script, second = shm / "script", shm / "second"
    script.write_text(f"#!{static}\n")
    script.chmod(0o700)
    refused(start(script), "static", "statically linked")
    second.write_text(f"#!{script} -x\n")
    second.chmod(0o700)
    refused(start(second), "statically linked")
    script.write_text("#!/usr/bin/env -S static\n")
    refused(start(script), "statically linked")
    script.write_text("#!/usr/bin/env no-such-interpreter\n")
    refused(start(script), "no-such-interpreter", "No such file")


def test_script_by_env_gets_the_interpreters_heap(shm, heap, monkeypatch):
    monkeypatch.setenv("PATH", f"{shm}:/usr/bin:/bin")
    program = compiled("reexec.c", name="reexec")
    (shm / "interpreter").symlink_to(program)
    script = shm / "script"
    script.write_text("#!/usr/bin/env interpreter\n")
    script.chmod(0o700)
    for rounds in (1, 2):
        done = run([tool("pmalloc-run"), "-H", heap, "-r", "generations", script], preload=False)
        assert (done.returncode, done.stdout) == (0, f"{rounds}\n"), said(done)
        assert (
            done.stderr.count("\n") == 1 and "interpreter, reexec (PMALLOC_PROGRAM)" in done.stderr
        ), said(done)


# ---- what the library does -----------------------------------------------------------------------


@pytest.mark.parametrize("which", ["address", "thread", "leak"])
def test_sanitizer_under_the_preload_ends_in_one_line(shm, which, monkeypatch):
    done = run([built(shm, PLAIN, f"-fsanitize={which}")], BACKING="volatile")
    assert done.returncode not in (0, 7, -11, 139), said(done)
    assert done.stderr.count("\n") == 1, said(done)
    monkeypatch.setenv("ASAN_OPTIONS", "verify_asan_link_order=0")
    done = run([shm / "program"], BACKING="volatile")
    assert done.returncode == 125, said(done)
    one_message(done, "Sanitizer", "without PMAlloc")


def test_own_malloc_is_said_to_whoever_named_a_heap(shm, heap):
    program = built(shm, OWN_MALLOC, "-rdynamic")
    done = run([program], HEAP=heap)
    assert done.returncode == 7
    one_message(done, str(program), "nothing of it is on a persistent heap")
    for settings in ({}, {"HEAP": heap, "PROGRAM": "another"}):
        done = run([program], **settings)
        assert (done.returncode, done.stderr) == (7, ""), said(done)


# ---- set-user-ID ---------------------------------------------------------------------------------


@pytest.fixture
def setuid():
    """Runs a set-user-ID copy of a program as another user. Skips the test where that changes
    nothing."""
    folder = BUILD / "integration" / "setuid"
    folder.mkdir(exist_ok=True)

    def call(program, *before, **settings):
        copy = shutil.copy(program, folder / "copy")
        os.chmod(copy, 0o4755)
        script = f'exec setpriv --reuid 12345 --regid 12345 --clear-groups env -- "$@" {copy}'
        settings = [f"PMALLOC_{name}={value}" for name, value in settings.items()]
        done = run([*before, "sh", "-c", script, "sh", *settings], preload=False)
        assert done.returncode == 0, said(done)
        if "secure=0" in done.stdout:
            pytest.skip("set-user-ID has no effect on this file system")
        return done

    if os.geteuid() != 0:
        pytest.skip("making set-user-ID programs needs root")
    if run(["setpriv", "--reuid", "12345", "test", "-x", BUILD], preload=False).returncode:
        pytest.skip("the build directory cannot be reached by others")
    yield call
    shutil.rmtree(folder)
    # env(1) left it, which is not set-user-ID.
    shutil.rmtree("/dev/shm/pmalloc-12345", ignore_errors=True)


def test_setuid_programs_ignore_a_preload(setuid, heap):
    done = setuid(compiled("secure.c"), HEAP=heap, ROOTS="kept", LD_PRELOAD=None)
    assert done.stdout == "secure=1 pmalloc=0 persistent=0\n"


BAD = {
    "HEAP": "/dev/shm/pmalloc-test-setuid",
    "ROOTS": "no-such-variable",
    "NONSENSE": "1",
    "STATS": "1",
    "VERBOSE": "1",
    "LOG": "/dev/shm/pmalloc-test-setuid-log",
    "LOG_FORMAT": "json",
    "ON": "started:false",
}


def test_linked_setuid_programs_ignore_every_setting(setuid):
    folder = BUILD / "integration"
    program = compiled(
        "secure.c",
        f"-L{BUILD}",
        f"-Wl,-rpath,{BUILD}",
        name="secure_linked",
        libraries=["-lpmalloc"],
    )
    assert folder in program.parents
    done = setuid(program, **BAD)
    assert (done.stdout, done.stderr) == ("secure=1 pmalloc=1 persistent=0\n", ""), said(done)
    assert not os.path.exists(BAD["HEAP"]) and not os.path.exists(BAD["LOG"])


def test_preload_from_a_trusted_directory_ignores_every_setting(setuid):
    """Only a library that is set-user-ID itself is preloaded. For these processes alone it takes
    the place of a trusted library."""
    place = "/lib/x86_64-linux-gnu/libmemusage.so"
    copy = BUILD / "integration" / "libtrusted.so"
    shutil.copy(LIBRARY, copy)
    copy.chmod(0o4755)
    inside = f'mount --bind {copy} {place} && export LD_PRELOAD=libmemusage.so && exec "$@"'
    if not os.path.exists(place) or run(["unshare", "-m", "true"], preload=False).returncode:
        pytest.skip("no private mounts here")
    done = setuid(compiled("secure.c"), "unshare", "-m", "sh", "-c", inside, "sh", **BAD)
    lines = [line for line in done.stderr.splitlines() if "secure" in line or "copy" in line]
    assert done.stdout == "secure=1 pmalloc=1 persistent=0\n" and not lines, said(done)
    assert not os.path.exists(BAD["HEAP"])


# ---- exec ----------------------------------------------------------------------------------------


def test_exec_of_others_and_back_keeps_the_heap(heap):
    """The process stays the same, so the heap is free each time."""
    program = compiled("reexec.c", name="reexec")
    script = f"{program} 3; exec sh -c 'exec {program} 2'"
    done = run(["sh", "-c", script], HEAP=heap, ROOTS="generations", PROGRAM="reexec")
    assert succeeds(done) == "4\n7\n"
    assert recovered(heap)["roots"] == 1


def test_grandchildren_inherit_the_environment_but_not_the_heap(heap):
    program = compiled("reexec.c", name="reexec")
    script = 'sh -c "$0 0; env $0 1"; exec $0 4'
    shell = os.path.basename(os.path.realpath("/bin/sh"))
    done = run(["sh", "-c", script, program], HEAP=heap, ROOTS="generations", PROGRAM=shell)
    # The shell has no such variable.
    assert done.returncode == 125 and done.stderr.count("\n") == 1, said(done)
    done = run(["sh", "-c", script, program], HEAP=heap, PROGRAM=shell)
    assert succeeds(done) == "1\n1\n1\n"
    assert recovered(heap)["live_objects"] == 0
