# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Commits of programs that do not see /proc: from the start, or once they have jailed themselves by
chroot() or Landlock. Commits go on, and no call of the program's ends early because of them."""

import os
import signal
import subprocess

import pytest
from conftest import busy, compiled, environment, run, said, succeeds

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: chroot, mounts")
JAILS = ["none", "chroot", "landlock"]
NO_PROC = 'mount -t tmpfs tmpfs /proc || exit 77; L=$P; unset P; export LD_PRELOAD=$L; exec "$@"'
COMMIT = ["20ms", "output"]


@pytest.fixture(scope="module")
def program():
    return str(compiled("jail.c"))


def launch(argv, where, blind=False, **settings):
    """`blind`: without /proc from the start."""
    env = environment(True, **settings)
    if blind:
        env["P"] = env.pop("LD_PRELOAD")
        argv = ["unshare", "-m", "sh", "-c", NO_PROC, "sh", *argv]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, cwd=where, stdout=pipe, stderr=pipe, text=True)


def numbers(line):
    return [int(word) for word in line.split()[1:]]


def killed_in_jail(argv, where, rounds, **settings):
    """What it said when it had entered the jail, what it said last, and what PMAlloc said."""
    with launch(argv, where, **settings) as process:
        lines = [process.stdout.readline() for _ in range(rounds)]
        process.kill()
        lines += process.stdout.readlines()
        errors = process.stderr.read()
    if process.returncode == 77:
        pytest.skip("no such jail here")
    assert process.returncode == -signal.SIGKILL, (lines, errors)
    lines = [line for line in lines if line.endswith("\n")]
    return numbers(lines[1])[0], numbers(lines[-1])[0], errors


def found(program, where, **settings):
    a, b = numbers(succeeds(run([program, "none", "0"], cwd=where, **settings)).splitlines()[0])
    assert a - b in (0, 1)
    return a


@pytest.mark.parametrize("how", JAILS)
@pytest.mark.parametrize("mode", [None, "heap", *COMMIT])
def test_a_program_in_a_jail_goes_on(program, heap, tmp_path, how, mode):
    settings = {} if mode is None else {"HEAP": heap, "ROOTS": "state"}
    if mode in COMMIT:
        settings["COMMIT"] = mode
    with launch([program, how, "10"], tmp_path, **settings) as process:
        out, errors = process.communicate(timeout=60 * busy())
    if process.returncode == 77:
        pytest.skip("no such jail here")
    assert process.returncode == 0 and out.endswith("ok\n") and not errors, (out, errors)
    if mode:
        assert found(program, tmp_path, **settings) >= numbers(out.splitlines()[-2])[0]


@pytest.mark.parametrize("how", JAILS)
def test_answers_from_a_jail_outlive_a_kill(program, heap, tmp_path, how):
    settings = {"HEAP": heap, "ROOTS": "state", "COMMIT": "output"}
    jailed, last, errors = killed_in_jail([program, how, "1000"], tmp_path, 12, **settings)
    assert not errors and last > jailed
    assert found(program, tmp_path, **settings) >= last


@pytest.mark.parametrize("mode", COMMIT)
def test_no_proc_from_the_start(program, heap, tmp_path, mode):
    """One line says what cannot be promised. The heap opens again, with and without /proc."""
    settings = {"HEAP": heap, "ROOTS": "state", "COMMIT": mode}
    jailed, last, errors = killed_in_jail(
        [program, "none", "1000"], tmp_path, 30, blind=True, **settings
    )
    assert errors.count("\n") == 1 and "/proc is not to be seen" in errors
    kept = found(program, tmp_path, **settings)
    assert kept >= (last if mode == "output" else jailed)
    _, last, _ = killed_in_jail([program, "none", "1000"], tmp_path, 12, blind=True, **settings)
    assert last > kept
    with launch([program, "none", "10"], tmp_path, blind=True, **settings) as process:
        out, errors = process.communicate(timeout=60 * busy())
    assert process.returncode == 0 and out.endswith("ok\n"), (out, errors)
    assert errors.count("\n") == 1, errors
