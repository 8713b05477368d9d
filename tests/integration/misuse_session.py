# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""misuse.c as a process that takes commands, on a heap that must stay whole."""

import resource
import select
import subprocess

import pytest
from conftest import busy, compiled, environment, recover, said

MEGABYTE = 1 << 20


@pytest.fixture(scope="session")
def program():
    return compiled("misuse.c", "-D_GNU_SOURCE")


class Session:
    """The program with its pipes. ask() waits for the answer."""

    def __init__(self, process):
        self.process = process
        self.kept = None

    def answer(self, timeout=60):
        assert select.select([self.process.stdout], [], [], timeout * busy())[
            0
        ], f"no answer after {timeout} s"
        return self.process.stdout.readline().strip()

    def ready(self):
        line = self.answer()
        assert line.startswith("ready "), line + self.process.stderr.read()
        return int(line.split()[1])

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def does(self, command):
        line = self.ask(command)
        assert line.startswith("ok "), f"{command}: {line!r} {self.end()}"
        return int(line.split()[1])

    def end(self, command="quit"):
        """Ends the program. Returns its status and standard error."""
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdin = None
        status = self.process.wait(60 * busy())
        return status, self.process.stderr.read()


@pytest.fixture
def session(program, heap, processes):
    """Starts the program on the heap. The settings are PMALLOC_ ones."""

    def begin(limits=(), cwd=None, **settings):
        env = environment(**{"HEAP": heap, "ROOTS": "table", **settings})

        def confine():
            for which, value in limits:
                resource.setrlimit(which, (value, value))

        process = subprocess.Popen(
            [str(program)],
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=confine,
        )
        processes.append(process)
        return Session(process)

    return begin


def whole(heap, *statuses):
    done = recover(heap, "--check")
    assert done.returncode in (statuses or (0, 1)), said(done)
    return done


def goes_on(session, kept):
    """A new process finds the heap whole, with its blocks, and can work on it."""
    again = session()
    assert again.ready() == kept
    again.does("grow 2")
    assert again.end() == (0, "")
