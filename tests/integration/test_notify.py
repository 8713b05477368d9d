# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""`pmalloc-run --notify`: a service manager is told when a program is ready and that it lives,
though the program knows nothing of that. test_services.py has a real systemd."""

import contextlib
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import time

import pytest
from conftest import TIMEOUT, app, compiled, environment, run, said, tool
from test_late_roots import words_of

RUN = tool("pmalloc-run")


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.name = str(address).replace("\0", "@")
        self.senders = set()
        self.said = []

    def hear(self, seconds):
        """The next message, by lines; None: there was none in this time."""
        if not select.select([self.socket], [], [], seconds)[0]:
            return None
        data, more, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
        self.senders.add(struct.unpack("3i", more[0][2])[0])
        message = dict(line.split("=", 1) for line in data.decode().splitlines())
        self.said.append(message)
        return message

    def await_(self, key, value="1", seconds=TIMEOUT):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            message = self.hear(end - time.monotonic())
            if message and message.get(key, "").startswith(value):
                return message
        raise AssertionError(f"no {key}={value} in {self.said}")

    def hears_no(self, key, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = self.hear(left)
            assert not message or key not in message, self.said


@pytest.fixture
def manager(shm):
    return Manager(str(shm / "notify"))


@pytest.fixture(scope="module")
def service():
    return compiled("ready.c")


def begin(manager, heap, *command, options=(), watchdog=None, processes=None, **settings):
    env = environment(preload=False, **settings)
    env["NOTIFY_SOCKET"] = manager.name
    if watchdog:
        env["WATCHDOG_USEC"] = str(watchdog)
    argv = [RUN, "--notify", *options, *(["-H", heap] if heap else []), "--", *command]
    process = subprocess.Popen([str(a) for a in argv], env=env, text=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if processes is not None:
        processes.append(process)
    return process


def is_alive(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def has_ended(pid):
    end = time.monotonic() + TIMEOUT
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_alive(pid)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_program_is_ready_and_knows_nothing_of_it(service, heap, shm, processes, abstract):
    """Another process says so, which is no child of the program's and ends with it."""
    manager = Manager(f"\0pmalloc-{os.getpid()}" if abstract else str(shm / "notify"))
    process = begin(manager, heap, service, options=["-r", "list"], watchdog=1000000,
                    processes=processes)
    ready = manager.await_("READY")
    assert ready["STATUS"].startswith("its heap is ready"), ready
    line = process.stdout.readline().split()
    assert line == ["pid", str(process.pid), "socket", "-", "watchdog", "-", "children", "none",
                    "list", "0"]
    (sender,) = manager.senders
    assert sender != process.pid and is_alive(sender)
    assert not [message for message in manager.said if "MAINPID" in message]
    assert process.communicate("")[1] == "" and process.returncode == 0
    assert has_ended(sender)


def test_progress_of_a_recovery_is_its_status(service, heap, manager, processes):
    """And the manager has patience meanwhile."""
    count = 1000000
    done = run([service, "fill", count], HEAP=heap, ROOTS="list")
    assert done.returncode == -signal.SIGKILL, said(done)
    process = begin(manager, heap, service, processes=processes, MARKERS=1)
    manager.await_("READY")
    assert process.stdout.readline().split()[-1] == str(count)
    told = [message for message in manager.said
            if message.get("STATUS", "").startswith("recovering the heap: marking, ")]
    assert told and all(int(message["EXTEND_TIMEOUT_USEC"]) > 0 for message in told), manager.said
    process.kill()


def test_not_ready_while_the_heap_is_not(service, heap, manager, processes):
    """The start waits for another process that has the heap."""
    first = subprocess.Popen([service], env=environment(HEAP=heap, ROOTS="list"),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    processes.append(first)
    first.stdout.readline()
    begin(manager, heap, service, processes=processes, BUSY="wait")
    manager.await_("STATUS", "opening the heap")
    manager.hears_no("READY", 0.5)
    first.kill()
    manager.await_("READY")


def test_not_ready_while_late_roots_wait(heap, manager, processes):
    program = compiled("late_server.c")
    process = begin(manager, heap, program, options=["-r", f"{words_of(program)}@call"],
                    processes=processes)
    manager.await_("STATUS", "late roots wait")
    manager.hears_no("READY", 0.3)
    process.stdin.write("restore\n")
    process.stdin.flush()
    manager.await_("READY")
    assert process.stdout.readline() == "restored\n"


def test_a_heap_that_is_refused_is_never_ready(service, heap, manager):
    heap.mkdir()
    (heap / "superblock").write_bytes(b"\1" * 4096)
    process = begin(manager, heap, service, options=["-r", "list"])
    error = process.communicate()[1]
    assert process.returncode == 125 and str(heap) in error, error
    manager.hears_no("READY", 0.3)


def test_a_program_that_is_stopped_is_not_alive(service, heap, manager, processes):
    process = begin(manager, heap, service, options=["-r", "list"], watchdog=200000,
                    processes=processes)
    manager.await_("READY")
    for _ in range(3):
        manager.await_("WATCHDOG")
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    manager.hear(0.1)  # one that was on its way
    manager.hears_no("WATCHDOG", 0.5)
    process.send_signal(signal.SIGCONT)
    manager.await_("WATCHDOG")


@pytest.mark.parametrize("ill", ["false", "sleep 1000"])
def test_a_command_says_whether_it_is_healthy(service, heap, shm, manager, processes, ill):
    """It is not started on the heap, and has an end."""
    sign = shm / "sign"
    command = f'test -z "$LD_PRELOAD" && test -e {sign} || {ill}'
    sign.touch()
    begin(manager, heap, service, options=["-r", "list", "--healthy", command], watchdog=200000,
          processes=processes)
    manager.await_("READY")
    manager.await_("WATCHDOG")
    sign.unlink()
    manager.hear(0.1)  # one that was on its way
    manager.hears_no("WATCHDOG", 0.5)
    sign.touch()
    manager.await_("WATCHDOG")


def test_what_is_not_healthy_yet_is_not_ready(service, heap, shm, manager, processes):
    sign = shm / "sign"
    begin(manager, heap, service, options=["-r", "list", "--healthy", f"test -e {sign}"],
          processes=processes)
    manager.await_("STATUS", "waiting for --healthy")
    manager.hears_no("READY", 0.3)
    sign.touch()
    manager.await_("READY")


def test_a_program_behind_others_is_waited_for(service, heap, shm, manager, processes):
    """The manager's process is timeout(1); the one with the heap is what that starts, later."""
    gate = shm / "gate"
    os.mkfifo(gate)
    script = f'read line < {gate}; exec {service}'
    begin(manager, heap, "timeout", "100", "sh", "-c", script,
          options=["-s", f"PROGRAM={service.name}", "-r", "list"], processes=processes)
    manager.hears_no("READY", 0.5)
    gate.write_text("go\n")
    assert manager.await_("READY")["STATUS"].startswith("its heap is ready")


def test_no_descriptor_of_the_program_stays_open(service, heap, manager, processes):
    """Who waits for the end of a pipe waits for the program alone."""
    process = begin(manager, heap, "sh", "-c", f"exec {service} > /dev/null",
                    options=["-s", f"PROGRAM={service.name}", "-r", "list"], processes=processes)
    manager.await_("READY")
    assert process.stdout.read() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_a_program_that_may_not_be_looked_at(service, heap, shm, manager, processes):
    """The kernel shows nothing of a program that its user may execute but not read."""
    hidden = shm / "hidden"
    hidden.write_bytes(service.read_bytes())
    hidden.chmod(0o711)
    for path in (shm, manager.name):
        os.chown(path, 12345, 12345)
    user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    argv = [*user, RUN, "--notify", "-s", "ROOTLESS=quiet", "-H", heap, "--", hidden]
    env = {**environment(preload=False), "NOTIFY_SOCKET": manager.name}
    process = subprocess.Popen([str(a) for a in argv], env=env, stdin=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    processes.append(process)
    if process.poll() is None:
        manager.await_("READY")
    error = process.communicate("")[1]
    assert "cannot be looked at (Permission denied)" in error, error


@pytest.mark.parametrize("name, why", [("/nowhere/socket", "No such file"), ("vsock:2:1", "vsock"),
                                       ("@", "not supported")])
def test_a_manager_that_is_not_there(service, heap, name, why):
    env = {**environment(preload=False), "NOTIFY_SOCKET": name}
    done = subprocess.run([RUN, "--notify", "-H", heap, "-r", "list", service], env=env,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 125 and done.stderr.count("\n") == 1, said(done)
    assert why in done.stderr and "NOTIFY_SOCKET" in done.stderr, said(done)


def test_without_a_manager_nothing_is_told(service, heap):
    done = run([RUN, "--notify", "--healthy", "false", "-H", heap, "-r", "list", service],
               preload=False)
    assert done.returncode == 0 and not done.stderr, said(done)
    assert run([RUN, "--healthy", "true", app("kvshell")], preload=False).returncode == 125
