# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A guest that is saved once, before it has seen a device, and begins each boot from there.

Starting the kernel takes most of a boot. So `init` stops before it loads the drivers of the media,
and QEMU writes the guest's memory to a file (`state`). A boot reads that file, gets its job through
the second serial line, and finds its media as any machine does: nothing of them is in the state.
What an NVDIMM holds is no part of it either (x-ignore-shared)."""

import json
import socket
import subprocess
import time

import machine

PATIENCE = 240  # for the kernel to start, and for the state to be read
WAITING = "init: waits for its job"


class Broken(Exception):
    """QEMU, or the guest in it, did not do as it was told."""


class Monitor:
    """The connection to QEMU's monitor, in its language QMP."""

    def __init__(self, connection, process):
        self.connection, self.process = connection, process
        self.lines = connection.makefile("r", encoding="utf-8")
        self.lines.readline()  # the greeting
        self.ask("qmp_capabilities")
        capability = {"capability": "x-ignore-shared", "state": True}
        self.ask("migrate-set-capabilities", capabilities=[capability])

    def ask(self, command, **arguments):
        text = json.dumps({"execute": command, "arguments": arguments})
        self.connection.sendall(text.encode() + b"\n")
        while True:
            line = self.lines.readline()
            if not line:
                raise Broken(f"QEMU has ended at {command}")
            answer = json.loads(line)
            if "error" in answer:
                raise Broken(f"QEMU: {command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def migrated(self):
        """Waits until the state is written or read."""
        late = time.monotonic() + PATIENCE
        while (status := self.ask("query-migrate").get("status")) != "completed":
            if status == "failed" or time.monotonic() > late:
                raise Broken(f"QEMU's migration: {status}")
            time.sleep(0.01)


class Boot(machine.Boot):
    """A boot that begins with the saved state; with `save` one that makes it."""

    def __init__(self, kernel, base, folder, media, domain, script, ports, save=False):
        self.state = folder / "state"
        self.save = save
        self.pairs = {name: socket.socketpair() for name in ("job", "monitor")}
        super().__init__(kernel, base, folder, media, domain, script, ports)
        for _, theirs in self.pairs.values():
            theirs.close()
        try:
            self.monitor = Monitor(self.pairs["monitor"][0], self.process)
            if save:
                self.write_state()
            else:
                self.read_state(machine.job_text(media, script))
        except BaseException:
            self.cut()
            raise

    def start(self, command, log):
        command = [*command[:-1], command[-1] + " wait_for_job"]
        for name, (_, theirs) in self.pairs.items():
            command += ["-chardev", f"socket,id={name},fd={theirs.fileno()}"]
        command += ["-serial", "chardev:job", "-mon", "chardev=monitor,mode=control"]
        if not self.save:
            command += ["-incoming", "defer"]
        fds = [theirs.fileno() for _, theirs in self.pairs.values()]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=fds
        )

    def write_state(self):
        late = time.monotonic() + PATIENCE
        while WAITING not in self.console():
            if not self.running() or time.monotonic() > late:
                raise Broken(f"the guest does not start: {self.console()[-1500:]}")
            time.sleep(0.02)
        self.monitor.ask("stop")
        self.monitor.ask("migrate", uri=f"exec:cat >'{self.state}'")
        self.monitor.migrated()
        self.cut()

    def read_state(self, job):
        self.monitor.ask("migrate-incoming", uri=f"exec:cat '{self.state}'")
        self.monitor.migrated()
        self.monitor.ask("cont")
        text = f"date -s @{int(time.time())} >/dev/null\n{job}\n# END\n"
        self.pairs["job"][0].sendall(text.encode())

    def cut(self):
        super().cut()
        for ours, _ in self.pairs.values():
            ours.close()


class Guest:
    """A guest that can be booted with one job after the other."""

    def __init__(self, *setup):
        self.kernel, self.base, self.folder, self.media, self.domain, self.ports = setup
        self.boots_from = Boot
        try:
            self.make(Boot, "", save=True)
        except Broken as broken:
            print(f"vm-test: each boot starts the kernel anew: {broken}", flush=True)
            self.boots_from = machine.Boot

    def make(self, kind, job, **how):
        return kind(
            self.kernel, self.base, self.folder, self.media, self.domain, job, self.ports, **how
        )

    def boot(self, job):
        return self.make(self.boots_from, job)
