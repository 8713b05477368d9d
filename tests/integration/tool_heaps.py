# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the tests of the tools share: how to run a tool, and heaps to run it on."""

import hashlib
import os
import pathlib
import signal
import subprocess
import tempfile

import pytest
from conftest import busy, copy_heap

ROOT = pathlib.Path(__file__).resolve().parents[2]

BUILD = pathlib.Path(os.environ.get("BUILD") or ROOT / "build").resolve()
RECOVER, INFO, RUN = (str(BUILD / f"pmalloc-{name}") for name in ("recover", "info", "run"))
SHELL = str(BUILD / "apps" / "kvshell")


def clean_environment(**extra):
    keep = {
        k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("PMALLOC_")
    }
    return {**keep, "PMALLOC_ROOTLESS": "quiet", **extra}


def call(*argv, stdin="", cwd=None, **env):
    return subprocess.run(
        [str(a) for a in argv],
        input=stdin,
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60 * busy(),
        check=False,
    )


def one_line(done, tool, status, *parts):
    """The tool failed as it should: with the status, nothing on standard output, and one line that
    has `parts`."""
    assert done.returncode == status, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(tool + ": "), done
    assert done.stdout == "", done
    for part in parts:
        assert part in lines[0], done


def fingerprint(directory):
    digest = hashlib.sha256()
    for path in [directory, *sorted(directory.rglob("*"))]:
        info = path.lstat()
        digest.update(
            f"{path.name} {info.st_mode} {info.st_size} {info.st_blocks} "
            f"{info.st_mtime_ns} ".encode()
        )
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def start_shell(heap, commands, *options):
    """Starts the key-value shell on a heap, and returns once it has answered."""
    shell = subprocess.Popen(
        [RUN, "-H", str(heap), "-r", "store", *options, SHELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )
    shell.stdin.write(commands)
    shell.stdin.flush()
    assert shell.stdout.readline()
    return shell


def killed_shell(heap, commands):
    """Runs the key-value shell on a heap, and kills it once it has answered."""
    shell = start_shell(heap, commands)
    shell.kill()
    assert shell.wait(60 * busy()) == -signal.SIGKILL
    shell.stdin.close()
    shell.stdout.close()


@pytest.fixture(scope="module")
def originals():
    """A clean heap and a dirty one with the same data. Tests copy them."""
    with tempfile.TemporaryDirectory(prefix="pmalloc-test-", dir="/dev/shm") as path:
        folder = pathlib.Path(path)
        # Two processes, so that both root tables are used.
        for commands in ("fill 3000 7\nquit\n", "verify\nquit\n"):
            done = call(RUN, "-H", folder / "clean", "-r", "store", SHELL, stdin=commands)
            assert done.returncode == 0, done
        killed_shell(folder / "dirty", "fill 3000 7\n")
        yield folder


@pytest.fixture(name="clean")
def clean_heap(originals, shm):
    return copy_heap(originals / "clean", shm / "heap")


@pytest.fixture(name="dirty")
def dirty_heap(originals, shm):
    return copy_heap(originals / "dirty", shm / "heap")


# ---- Heaps that are none, or not good.


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)
