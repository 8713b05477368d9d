# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_ON: a command that is started when the library says something. The program does not
notice, and there is one at a time for each event."""

import json
import os
import re
import shutil
import signal
import sys
import time

import pytest
from conftest import BUILD, one_message, refuses, run, start, succeeds, tmpfs
from event_program import PLAIN, SAYS, WELL, program_of_events, runner  # noqa: F401

# Python ignores these in itself.
PYTHONS = sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGXFSZ))


def awaited(condition):
    """The command belongs to nobody, so its end is seen by what it leaves."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def hook(tmp_path):
    """A script that leaves what it sees of itself, and takes a while."""
    script = tmp_path / "hook"
    script.write_text(
        f"""#!{sys.executable}
import json, os, time
masks = [line.split()[1] for line in open("/proc/self/status") if line[:6] in ("SigBlk", "SigIgn")]
fds = {{}}
for fd in range(1024):
    try:
        fds[fd] = os.readlink(f"/proc/self/fd/{{fd}}")
    except OSError:
        pass
part = f"{tmp_path}/part-{{os.getpid()}}"
with open(part, "w") as file:
    json.dump({{"env": dict(os.environ), "fds": fds, "masks": masks, "folder": os.getcwd(),
               "session": os.getsid(0) in (os.getpid(), os.getppid())}}, file)
while os.path.exists("{tmp_path}/stay"):
    time.sleep(0.05)
os.rename(part, part.replace("part-", "done-"))
"""
    )
    script.chmod(0o755)
    return script


def done_by(hook, count=1):
    found = []

    def all_there():
        found[:] = sorted(hook.parent.glob("done-*"))
        return len(found) >= count

    awaited(all_there)
    assert len(found) == count
    return [json.loads(one.read_text()) for one in found]


@pytest.mark.check
@pytest.mark.parametrize("command", ["{}", "{} with words"], ids=["program", "shell"])
def test_a_command(go, heap, hook, command):
    done = go("ignore", "free", ON="bad-free:" + command.format(hook), LOG_FORMAT="text")
    assert succeeds(done) == WELL
    (seen,) = done_by(hook)
    env = seen["env"]
    assert env["PMALLOC_EVENT"] == "bad-free" and env["PMALLOC_HEAP"] == str(heap)
    assert re.fullmatch(SAYS, env["PMALLOC_MESSAGE"])
    assert "LD_PRELOAD" not in env and env["PATH"] == os.environ["PATH"]
    ours = {"PMALLOC_EVENT", "PMALLOC_HEAP", "PMALLOC_MESSAGE"}
    assert {name for name in env if name.startswith("PMALLOC_")} == ours
    assert sorted(seen["fds"]) == list("0123") and seen["fds"]["0"] == "/dev/null"
    assert seen["fds"]["1"] == seen["fds"]["2"] and seen["fds"]["3"].startswith("socket:")
    blocked, ignored = (int(mask, 16) for mask in seen["masks"])
    assert blocked == 0 and ignored == PYTHONS and seen["session"]


def test_one_at_a_time(go, hook):
    stay = hook.parent / "stay"
    stay.touch()
    quiet = ["bash", "-c", 'exec "$@" 2> /dev/null', "bash"]  # the command has its end
    done = go("free=50", "fork", "free=50", before=quiet, ON=f"bad-free:{hook}")
    assert succeeds(done) == WELL
    awaited(lambda: list(hook.parent.glob("part-*")))
    stay.unlink()
    done_by(hook, 1)


def test_the_next_one_is_started(program, heap, hook):
    stop = hook.parent / "stop"
    argv = ["bash", "-c", 'exec "$@" 2> /dev/null', "bash", "env"]
    argv += [f"LD_PRELOAD={BUILD / 'libpmalloc_preload.so'}", program, f"until={stop}"]
    session = start(argv, preload=False, HEAP=heap, CHECK="report", ON=f"bad-free:{hook}")
    awaited(lambda: len(list(hook.parent.glob("done-*"))) >= 3)
    stop.touch()
    output, _ = session.communicate()
    assert output == WELL


def test_several_commands(go, tmp_path):
    on = f"no-space:false; bad-free: echo $PMALLOC_EVENT > {tmp_path}/one && true ;"
    assert succeeds(go("free", ON=on)) == WELL
    awaited((tmp_path / "one").exists)


def test_a_command_of_a_start_that_is_refused(go, program, heap, hook):
    session = start([program, "pause=60000"], HEAP=heap, ROOTS="nothing", VERBOSE=1)
    session.communicate()
    session = start([program, "pause=60000"], HEAP=heap, VERBOSE=1)
    assert "heap " in session.stderr.readline()
    done = go(ON=f"heap-in-use:{hook}")
    session.kill()
    session.communicate()
    refuses(done, "in use by process")
    env = done_by(hook)[0]["env"]
    assert env["PMALLOC_EVENT"] == "heap-in-use" and env["PMALLOC_HEAP"] == str(heap)


def test_a_command_of_a_full_medium(program, hook, tmp_path):
    """The line is said with locks held, and the command is started after they are released."""
    with tmpfs(tmp_path / "small", 2000) as small:
        done = run([program, "full", "full"], HEAP=small / "heap", ON=f"no-space:{hook}")
        assert succeeds(done) == WELL
        one_message(done, "no space for the heap")
        assert done_by(hook)[0]["env"]["PMALLOC_EVENT"] == "no-space"


def test_a_command_of_a_commit_that_fails(shm, hook):
    heap = shm / "user" / "heap"
    heap.parent.mkdir()
    settings = {"HEAP": heap, "ROOTS": "store", "COMMIT": "output"}
    shell = start([BUILD / "apps" / "kvshell"], ON=f"commit-failed:{hook}", **settings)

    def ask(command):
        shell.stdin.write(command + "\n")
        shell.stdin.flush()
        return shell.stdout.readline()

    assert ask("set before 1") == "ok\n"
    shutil.rmtree(heap.parent)
    heap.parent.write_text("in the way")
    assert ask("set after 1") == "ok\n"
    env = done_by(hook)[0]["env"]
    assert env["PMALLOC_EVENT"] == "commit-failed" and "Not a directory" in env["PMALLOC_MESSAGE"]
    shell.kill()
    shell.communicate()


def test_the_working_directory_is_the_programs(program, shm, tmp_path, hook):
    """PMAlloc's threads keep the first one: a program that shared it with them could not enter
    another mount namespace."""
    heap, folder, stop = shm / "user" / "heap", tmp_path / "folder", tmp_path / "stop"
    heap.parent.mkdir()
    folder.mkdir()
    settings = {"HEAP": heap, "ROOTS": "*", "COMMIT": "20ms", "CHECK": "report"}
    argv = [program, f"folder={folder}", f"until={stop}"]
    session = start(argv, ON=f"commit-failed:{hook}", **settings)
    awaited(lambda: os.readlink(f"/proc/{session.pid}/cwd") == str(folder))
    shutil.rmtree(heap.parent)
    heap.parent.write_text("in the way")
    (seen,) = done_by(hook)
    assert seen["folder"] == str(folder)
    stop.touch()
    session.communicate()


def test_a_command_that_is_not_there(go):
    done = go("free", ON="bad-free:/no/such/program")
    first, second = done.stderr.splitlines()
    assert re.fullmatch(PLAIN, first) and succeeds(done) == WELL
    assert second.startswith("pmalloc: PMALLOC_ON: the command of bad-free cannot be started: No ")


def test_a_filter_forbids_commands(go, hook):
    done = go("filter", "free", ON=f"bad-free:{hook}")
    assert re.match(PLAIN, done.stderr) and "Operation not permitted" in done.stderr
    assert succeeds(done) == WELL


def test_a_command_of_a_program_without_descriptors(go, hook):
    done = go("none", "free", ON=f"bad-free:{hook}")
    assert done.returncode == 0
    fds = done_by(hook)[0]["fds"]
    assert [fds[fd] for fd in "012"] == ["/dev/null"] * 3
