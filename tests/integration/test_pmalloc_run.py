# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-run: its own failures, the environment that it makes, programs that it refuses."""

import os
import re
import shutil
import signal
import stat
import subprocess

import pytest
from tool_heaps import BUILD, RUN, call, one_line


def compiled(path, *flags):
    source = path.with_suffix(".c")
    source.write_text("int main(void) { return 7; }\n")
    subprocess.run(
        [os.environ.get("CC") or "gcc", "-o", path, source, *flags], check=True, timeout=60
    )
    return path


@pytest.mark.parametrize(
    "argv, part",
    [
        ([], "program"),
        (["-s", "LIMIT", "true"], "NAME=VALUE"),
        (["-s", "=1", "true"], "NAME=VALUE"),
        (["-s", "LIMIT=lots", "true"], "PMALLOC_LIMIT=lots"),
        (["-s", "NONSENSE=1", "true"], "PMALLOC_NONSENSE"),
        (["-s", "limit=1G", "true"], "PMALLOC_limit"),
        (["-H", "", "true"], "PMALLOC_HEAP"),
        (["-r", "a,,b", "true"], "PMALLOC_ROOTS"),
        (["-r", "@/nonexistent", "true"], "PMALLOC_ROOTS"),
        (["-H"], "-H"),
    ],
)
def test_own_failures_of_run(argv, part):
    one_line(call(RUN, *argv), "pmalloc-run", 125, part)


def test_wrong_settings_of_the_environment():
    one_line(call(RUN, "true", PMALLOC_NONSENSE="1"), "pmalloc-run", 125, "PMALLOC_NONSENSE")
    one_line(call(RUN, "true", PMALLOC_LIMIT="1"), "pmalloc-run", 125, "PMALLOC_LIMIT=1")


def test_programs_not_found(shm):
    for name in ("no-such-program", "./no-such-program", shm / "none", ""):
        one_line(call(RUN, "--", name, cwd=shm), "pmalloc-run", 127)


def test_programs_that_cannot_run(shm):
    plain = shm / "plain"
    plain.write_text("x")
    plain.chmod(0o600)
    one_line(call(RUN, plain), "pmalloc-run", 126, "Permission denied")
    one_line(call(RUN, "plain", PATH=str(shm)), "pmalloc-run", 126, "Permission denied")
    one_line(call(RUN, shm), "pmalloc-run", 126, "Permission denied")
    script = shm / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    one_line(call(RUN, script), "pmalloc-run", 126, "/no/such/interpreter")


def test_static_programs_are_refused(shm):
    for flags in (["-static"], ["-static-pie"]):
        one_line(call(RUN, compiled(shm / "static", *flags)), "pmalloc-run", 126, "static")
    assert call(RUN, "-s", "BACKING=volatile", compiled(shm / "dynamic")).returncode == 7


def test_setuid_programs_are_refused(shm):
    for bit, part in ((stat.S_ISUID, "set-user-ID"), (stat.S_ISGID, "set-group-ID")):
        program = compiled(shm / "privileged")
        program.chmod(0o755 | bit)
        one_line(call(RUN, program), "pmalloc-run", 126, part)


@pytest.mark.check
def test_status_and_arguments_pass_through():
    done = call(
        RUN, "-s", "BACKING=volatile", "sh", "-c", 'echo "$0|$1|$2"; exit 42', "-H", "--help", "a b"
    )
    assert (done.returncode, done.stdout, done.stderr) == (42, "-H|--help|a b\n", "")
    done = call(RUN, "-s", "BACKING=volatile", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == -signal.SIGKILL


def test_environment_of_the_program(shm):
    (shm / "roots.txt").write_text("# none\n")
    done = call(
        *[
            RUN,
            "-H",
            "heap",
            "-r",
            "@roots.txt",
            "-s",
            "LIMIT=1G",
            "-s",
            "PMALLOC_MARKERS=2",
            "env",
        ],
        cwd=shm,
        PMALLOC_STATS="0",
        LD_PRELOAD="libdl.so.2",
    )
    assert done.returncode == 0, done
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["PMALLOC_HEAP"] == str(shm / "heap")
    assert seen["PMALLOC_ROOTS"] == f"@{shm}/roots.txt"
    assert seen["PMALLOC_LIMIT"] == "1G" and seen["PMALLOC_MARKERS"] == "2"
    assert seen["PMALLOC_STATS"] == "0"
    assert seen["LD_PRELOAD"] == f"{BUILD}/libpmalloc_preload.so:libdl.so.2"
    nested = call(RUN, "-s", "BACKING=volatile", RUN, "env")
    assert nested.stdout.count("libpmalloc_preload.so") == 1, nested


def test_addresses_are_not_randomised():
    done = call(RUN, "-s", "BACKING=volatile", "cat", "/proc/self/personality")
    if "cannot be switched off" in done.stderr:
        pytest.skip("personality(2) is forbidden here")
    assert int(done.stdout, 16) & 0x40000, done


def test_scripts_run_with_a_note(shm):
    script = shm / "script"
    script.write_text("#!/bin/sh\nexit 9\n")
    script.chmod(0o700)
    done = call(RUN, "-H", shm / "heap", script)
    assert done.returncode == 9
    assert done.stderr.count("\n") == 1 and "/bin/sh" in done.stderr
    shell = os.path.basename(os.path.realpath("/bin/sh"))
    done = call(RUN, "-H", shm / "heap", "-s", f"PROGRAM={shell}", script)
    assert (done.returncode, done.stderr) == (9, "")


def test_finds_its_library_when_installed(shm):
    (shm / "bin").mkdir()
    run = shutil.copy(RUN, shm / "bin")
    one_line(call(run, "true"), "pmalloc-run", 125, "libpmalloc_preload.so")
    (shm / "lib").mkdir()
    library = shutil.copy(BUILD / "libpmalloc_preload.so", shm / "lib")
    done = call(run, "-s", "BACKING=volatile", "env")
    assert done.returncode == 0, done
    preloaded = re.search(r"^LD_PRELOAD=(.*)$", done.stdout, re.MULTILINE)[1]
    assert os.path.samefile(preloaded, library)
