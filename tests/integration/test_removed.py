# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The files of a heap are removed while a program uses it. The next commit, or the end of the
program, writes the heap again and says so in one line."""

import os
import shutil
import signal
import subprocess

import pytest
from conftest import app, environment, said, succeeds, run
from misuse_session import goes_on, program, session, whole  # noqa: F401

COMMIT = ["20ms", "output"]
SAYS = "the files of the heap were removed while the program used it"


class Shell:
    """kvshell on a heap."""

    def __init__(self, heap, **settings):
        pipe = subprocess.PIPE
        env = environment(HEAP=heap, ROOTS="store", **settings)
        argv = [str(app("kvshell"))]
        self.process = subprocess.Popen(
            argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self, kill=False):
        if kill:
            self.process.kill()
        _, errors = self.process.communicate()
        assert self.process.returncode == (-signal.SIGKILL if kill else 0), errors
        return errors


def filled(heap, **settings):
    shell = Shell(heap, **settings)
    for i in range(200):
        assert shell.ask(f"set key{i} value{i}") == "ok"
    return shell


def content(heap):
    done = run([app("kvshell")], stdin="count\nget key199\nget after\n", HEAP=heap, ROOTS="store")
    return succeeds(done).split()


def remove(heap, what):
    if what == "all":
        shutil.rmtree(heap)
    elif what == "parent":
        shutil.rmtree(heap.parent)
    else:
        (heap / what).unlink()


@pytest.fixture
def nested(shm):
    """A heap whose parent directory can go with it."""
    return shm / "user" / "heap"


def one_line(errors, heap):
    assert errors.count("\n") == 1 and SAYS in errors and errors.endswith(f" {heap}\n"), errors


@pytest.mark.parametrize("what", ["all", "parent", "superblock"])
@pytest.mark.parametrize("mode", [None, *COMMIT])
def test_the_end_of_the_program_writes_it_again(nested, what, mode):
    nested.parent.mkdir()
    settings = {"COMMIT": mode} if mode else {}
    shell = filled(nested, **settings)
    remove(nested, what)
    assert shell.ask("set after 1") == "ok"
    one_line(shell.end(), nested)
    assert content(nested) == ["201", "value199", "1"]
    assert os.listdir(nested.parent) == ["heap"]


@pytest.mark.parametrize("what", ["all", "heap.0", "roots"])
def test_a_commit_writes_it_again(nested, what):
    """What was answered is there after a kill."""
    nested.parent.mkdir()
    shell = filled(nested, COMMIT="output")
    remove(nested, what)
    assert shell.ask("set after 1") == "ok"
    one_line(shell.end(kill=True), nested)
    assert content(nested) == ["201", "value199", "1"]


def test_it_is_removed_again_and_again(nested):
    nested.parent.mkdir()
    shell = filled(nested, COMMIT="output")
    for i in range(3):
        remove(nested, "all")
        assert shell.ask(f"set after {i}") == "ok"
    assert shell.end(kill=True).count(SAYS) == 3
    assert content(nested) == ["201", "value199", "2"]


def test_it_cannot_be_written_again(shm):
    """A file stands in the way of the directory. Commits fail, and the line says why. Once the way
    is free, the next commit has all."""
    heap = shm / "user" / "heap"
    heap.parent.mkdir()
    shell = filled(heap, COMMIT="output")
    shutil.rmtree(heap.parent)
    heap.parent.write_text("in the way")
    assert shell.ask("set after 1") == "ok"
    assert shell.ask("get after") == "1"
    heap.parent.unlink()
    assert shell.ask("set after 2") == "ok"
    first, second = shell.end(kill=True).splitlines()
    assert "a commit has failed" in first and "Not a directory" in first, first
    assert SAYS in second
    assert content(heap) == ["201", "value199", "2"]


def test_with_threads_that_allocate(session, heap):  # noqa: F811
    """All blocks of two threads, with and without commits, at the same addresses."""
    for settings in {}, {"COMMIT": "20ms"}:
        work = session(**settings)
        work.ready()
        work.does("grow 5")
        shutil.rmtree(heap)
        kept = work.does("grow 20")
        status, errors = work.end()
        assert status == 0
        one_line(errors, heap)
        whole(heap, 0)
        goes_on(session, kept)
        shutil.rmtree(heap)


def test_somebody_else_has_the_name_by_then(heap):
    shell = filled(heap)
    shutil.rmtree(heap)
    other = Shell(heap)
    assert other.ask("set other 1") == "ok"
    errors = shell.end()
    beside = heap.with_name(f"heap.{shell.process.pid}")
    assert errors.count("\n") == 1 and SAYS in errors, errors
    assert errors.endswith(f"the heap is {beside} now\n"), errors
    assert not other.end()
    assert content(beside)[:2] == ["200", "value199"]
    assert content(heap)[0] == "1"


def test_no_root_no_word(heap):
    """Nothing would be kept anyway."""
    env = environment(HEAP=heap)
    argv = [str(app("kvshell"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as shell:
        shell.stdin.write("set a b\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "ok\n"
        shutil.rmtree(heap)
        _, errors = shell.communicate()
    assert (shell.returncode, errors) == (0, "") and not heap.exists()


SYSTEMD = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system || exit 77; "


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, other users")
@pytest.mark.parametrize(
    "where, user, says",
    [
        ("/dev/shm/pmalloc-test-line", 1234, "RemoveIPC=no"),
        ("/dev/shm/pmalloc-test-line", 0, None),
        ("/var/tmp/pmalloc-test-line", 0, "tmpfiles.d"),
        ("/var/lib/pmalloc-test-line", 0, None),
    ],
)
def test_the_start_line_says_what_removes_it(where, user, says):
    script = SYSTEMD + 'L=$P; unset P; exec setpriv --reuid $1 --regid $1 --clear-groups env '
    script += 'LD_PRELOAD=$L "$2"'
    env = environment(HEAP=where, ROOTS="store", VERBOSE=1)
    env["P"] = env.pop("LD_PRELOAD")
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(user), str(app("kvshell"))]
    try:
        done = subprocess.run(argv, env=env, input="", capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(where, ignore_errors=True)
    if done.returncode in (77, 126, 127):
        pytest.skip("no mounts here, or another user cannot reach the build")
    assert done.returncode == 0, said(done)
    lines = [line for line in done.stderr.splitlines() if "docs/operations.md" in line]
    assert len(lines) == (says is not None) and (not says or says in lines[0]), said(done)
