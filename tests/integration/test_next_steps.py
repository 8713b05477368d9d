# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What a new user does wrong, command by command: the line says what is wrong and what to do next,
and no line advises a step that loses data without saying so."""

import os
import pty
import shutil
import subprocess

import pytest
from conftest import app, succeeds
from tool_heaps import (
    INFO,
    RECOVER,
    RUN,
    SHELL,
    call,
    clean_environment,
    clean_heap,
    fingerprint,
    one_line,
    originals,
)  # noqa: F401


def on_terminal(answer, *argv):
    """Runs a tool on a terminal where the user types an answer. Returns status and what it said."""
    master, slave = pty.openpty()
    tool = subprocess.Popen(
        [str(a) for a in argv],
        stdin=slave,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=clean_environment(),
    )
    os.close(slave)
    text = b""
    while b"[yes/no] " not in text:
        text += os.read(master, 4096)
    os.write(master, answer.encode() + b"\n")
    status = tool.wait(60)
    os.close(master)
    return status, text.decode()


# ---- Steps that lose data.


def test_the_only_root_is_not_dropped_unasked(clean):
    before = fingerprint(clean)
    one_line(
        call(RECOVER, "--drop-root", "store", clean),
        "pmalloc-recover",
        16,
        f"'store' is the only root of {clean}: without it all data of the heap is lost",
        "objects of",
        f"`pmalloc-backup {clean} DIR` keeps a copy",
        "--rename-root",
        "nothing was changed: give --yes",
    )
    assert fingerprint(clean) == before
    assert "ok 3000 keys" in succeeds(call(RUN, "-H", clean, SHELL, stdin="verify\n"))


@pytest.mark.parametrize("answer, status", [("no", 16), ("", 16), ("yes", 0)])
def test_a_user_at_a_terminal_is_asked(clean, answer, status):
    got, text = on_terminal(answer, RECOVER, "--drop-root", "store", clean)
    assert got == status and "all data of the heap is lost" in text
    roots = call(INFO, clean).stdout
    assert ("store" in roots) == (status != 0)


def test_one_of_two_roots_is_dropped_unasked(shm):
    heap = shm / "heap"
    succeeds(call(RUN, "-H", heap, "-r", "store,*", SHELL, stdin="set a b\n"))
    succeeds(call(RECOVER, "--drop-root", "*", heap))
    assert succeeds(call(RUN, "-H", heap, SHELL, stdin="get a\n")) == "b\n"


def test_a_heap_is_not_made_over_another_one_unasked(shm):
    path = shm / "medium"
    succeeds(call(RECOVER, "--make", "--size", "16M", path))
    succeeds(call(RUN, "-H", path, "-r", "store", SHELL, stdin="set a b\n"))
    one_line(call(RECOVER, "--make", path), "pmalloc-recover", 8, "to lose that", "--force")
    one_line(
        call(RECOVER, "--make", "--force", path),
        "pmalloc-recover",
        16,
        f"{path} holds a heap: a new one there loses all its data",
        "--yes",
    )
    assert succeeds(call(RUN, "-H", path, SHELL, stdin="get a\n")) == "b\n"
    succeeds(call(RECOVER, "--make", "--force", "--yes", path))
    assert succeeds(call(RUN, "-H", path, "-r", "store", SHELL, stdin="get a\n")) == "none\n"


def test_yes_alone_is_no_command(clean):
    one_line(call(RECOVER, "--yes", clean), "pmalloc-recover", 16, "--yes goes with")


# ---- Wrappers, and other programs on a heap.

WRAPPERS = [
    "timeout 50",
    "timeout -k 5 --signal KILL 50",
    "env A=b",
    "env -u HOME LANG=C",
    "nice -n 1",
    "nohup",
    "setsid -w",
    "stdbuf -oL",
    "taskset -c 0",
    "timeout 50 nice env A=b",
    "strace -f -o /dev/null",
    "gdb -q -batch -ex run --args",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_is_seen_through(clean, wrapper):
    argv = wrapper.split()
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not installed")
    commands = clean.parent / "commands"
    commands.write_text("count\n")
    with open(commands, encoding="ascii") as stdin:
        done = subprocess.run(
            [RUN, "-H", clean, *argv, SHELL],
            stdin=stdin,
            capture_output=True,
            text=True,
            env=clean_environment(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 0 and "3000" in done.stdout.split(), done
    note = [line for line in done.stderr.splitlines() if line.startswith("pmalloc")]
    assert len(note) == 1 and f"{argv[0]} starts " in note[0], done
    assert "the heap is that one's (PMALLOC_PROGRAM=kvshell)" in note[0]


def test_what_stands_behind_a_wrapper_is_checked(shm):
    one_line(call(RUN, "timeout", "5", "no-such"), "pmalloc-run", 127, "timeout starts no-such: ")
    (shm / "data").write_bytes(b"\0\0")
    (shm / "data").chmod(0o700)
    one_line(call(RUN, "nice", shm / "data"), "pmalloc-run", 126, "nice starts", "neither an ELF")
    one_line(call(RUN, "env", "-i", SHELL), "pmalloc-run", 125, "env clears the environment",
             "`env ... pmalloc-run ...")
    done = call(RUN, "-H", shm / "heap", "-s", "PROGRAM=other", "timeout", "5", SHELL)
    assert (done.returncode, done.stderr) == (0, ""), done  # the user knows better
    assert call(RUN, "env").returncode == 0  # starts nothing: it is the program


def test_sudo_goes_first(shm):
    sudo = shm / "sudo"
    shutil.copy("/bin/true", sudo)
    sudo.chmod(0o4755)
    one_line(call(RUN, sudo, SHELL), "pmalloc-run", 126, "set-user-ID", "`sudo ... pmalloc-run ")


def test_another_program_names_the_one_on_record(clean):
    """As by a wrapper that pmalloc-run does not know."""
    line = call(RUN, "-H", clean, app("tree"), "check")
    assert line.returncode == 125 and line.stdout == "", line
    assert f"The heap {clean} belongs to kvshell: run that." in line.stderr
    assert "If tree starts it: -s PROGRAM=kvshell (PMALLOC_PROGRAM)." in line.stderr
    assert f"`pmalloc-recover --rename-root 'store' NEW {clean}`" in line.stderr
    assert "drop-root" not in line.stderr and "nothing was changed" in line.stderr
