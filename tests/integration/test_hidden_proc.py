# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""/proc mounted with hidepid: what the tools say of a heap in use. The same user sees the process
and everything works; another user gets one clear line."""

import contextlib
import os
import subprocess

import pytest
from tool_heaps import BUILD, INFO, RUN, SHELL, call, clean_environment, one_line

BACKUP = BUILD / "pmalloc-backup"
USER, OTHER = 12345, 12346
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, other users")


def becomes(user):
    return ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]


def hidden(how, user, *argv):
    """What a tool says to this user, where /proc is mounted so."""
    mount = f'mount --make-rprivate / && mount -t proc -o hidepid={how} proc /proc || exit 99; "$@"'
    done = call("unshare", "-m", "sh", "-c", mount, "sh", *becomes(user), *argv)
    if done.returncode == 99:
        pytest.skip("mounting /proc is forbidden, or this kernel has no such hidepid")
    return done


@contextlib.contextmanager
def owner(heap):
    """A shell of USER that has the heap open."""
    argv = [*becomes(USER), RUN, "-H", heap, "-r", "store", SHELL]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(a) for a in argv], env=clean_environment(), **pipe) as process:
        try:
            process.stdin.write("set a b\n")
            process.stdin.flush()
            assert process.stdout.readline() == "ok\n"
            yield process.pid  # setpriv and pmalloc-run become the program
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["1", "2", "4"])  # noaccess, invisible, ptraceable
def test_tools_where_processes_are_hidden(shm, how):
    reach = [*becomes(USER), "test", "-x", BUILD]
    if subprocess.run([str(a) for a in reach], check=False).returncode:
        pytest.skip("the build directory cannot be reached by others")
    os.chmod(shm, 0o777)
    heap = shm / "heap"
    with owner(heap) as pid:
        subprocess.run(["chmod", "-R", "a+rX", heap], check=True)
        done = hidden(how, USER, BACKUP, heap, shm / "backup")
        assert done.returncode == 0 and f"in use by process {pid}" in done.stdout, done
        done = hidden(how, USER, INFO, heap)
        assert done.returncode == 0 and f"in use by process {pid}" in done.stderr, done
        assert f"process {pid} " in done.stdout
        for user in (USER, 0):
            done = hidden(how, user, INFO, "--leaks", pid)
            assert done.returncode == 0 and f"of process {pid}" in done.stdout, done
        done = hidden(how, OTHER, BACKUP, heap, shm / "none")
        one_line(done, "pmalloc-backup", 8, f"belongs to user {USER}, not to user {OTHER}")
        done = hidden(how, OTHER, INFO, "--leaks", pid)
        one_line(done, "pmalloc-info", 8, f"process {pid} ", "run pmalloc-info as root")
        done = hidden(how, OTHER, INFO, heap)
        one_line(done, "pmalloc-info", 8, f"belongs to user {USER}, not to user {OTHER}")
        assert not (shm / "none").exists()
