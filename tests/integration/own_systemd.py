# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A systemd of the test's own: the first process of a PID namespace, with its journal, in a root
made of the system's /usr and an installation of PMAlloc. It needs root and control groups of
version 2."""

import json
import os
import pathlib
import pty
import shutil
import subprocess
import threading
import time

import pytest
from conftest import BUILD, ROOT, busy, environment, lacks, said

SYSTEMD = pathlib.Path("/usr/lib/systemd/systemd")
LIBRARIES = "usr/lib/x86_64-linux-gnu"
PATIENCE = 10  # seconds for what takes less than one

# $1: the root, $2: an installation, $3: a terminal. What the host has is seen, and not changed.
BOOT = r"""
set -e
R=$1
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$R"
mkdir -p "$R/usr" "$R/etc/pmalloc" "$R/units" "$R/proc" "$R/sys" "$R/dev" "$R/run" "$R/tmp" \
    "$R/var/lib" "$R/var/log" "$R/root"
ln -s ../run "$R/var/run"
mount -t overlay -o "lowerdir=$2/usr:/usr" overlay "$R/usr"
for link in bin sbin lib lib64; do ln -s "usr/$link" "$R/$link"; done
for name in passwd group nsswitch.conf ld.so.cache ld.so.conf ld.so.conf.d; do
    [ ! -e "/etc/$name" ] || cp -a "/etc/$name" "$R/etc"
done
echo 0123456789abcdef0123456789abcdef > "$R/etc/machine-id"
printf '[Unit]\nDescription=test\nWants=systemd-journald.service\n' > "$R/units/default.target"
mount -t tmpfs tmpfs "$R/run"
mount -t tmpfs -o mode=755 tmpfs "$R/dev"
mkdir "$R/dev/shm" "$R/dev/pts"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
for name in null zero full random urandom tty; do
    touch "$R/dev/$name"
    mount --bind "/dev/$name" "$R/dev/$name"
done
touch "$R/dev/console"
mount --bind "$3" "$R/dev/console"
ln -s /proc/self/fd "$R/dev/fd"
mount -t proc proc "$R/proc"
mount --bind "$R/proc/sys" "$R/proc/sys"
mount -o remount,ro,bind "$R/proc/sys"
mount -t sysfs -o ro sysfs "$R/sys"
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
mkdir "$R/before"
cd "$R"
pivot_root . before
umount -l before
exec env -i container=pmalloc-test SYSTEMD_UNIT_PATH=/units: PATH=/usr/sbin:/usr/bin \
    /usr/lib/systemd/systemd --system --log-target=journal
"""

def installed(folder):
    """PMAlloc as `make install` puts it below a folder."""
    make = ["make", "-s", "-C", ROOT, "-o", "installed-files", f"BUILD={BUILD}",
            f"PC={folder}/libpmalloc.pc", "PREFIX=/usr", f"LIBDIR=/{LIBRARIES}",
            f"DESTDIR={folder}"]
    for goal in (f"{folder}/libpmalloc.pc", "install"):
        subprocess.run([str(word) for word in [*make, goal]], check=True,
                       stdout=subprocess.DEVNULL)
    return folder


class System:
    def __init__(self, folder, programs):
        if os.geteuid() != 0:
            pytest.skip("another systemd needs root")
        if not SYSTEMD.exists():
            lacks("systemd")
        self.root = folder / "root"
        self.root.mkdir()
        stage = installed(folder / "stage")
        for program in programs:
            shutil.copy(program, stage / "usr" / "bin")
        self.terminal, end = pty.openpty()
        self.console = b""
        threading.Thread(target=self.drain, daemon=True).start()
        command = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--fork",
                   "--kill-child", "sh", "-c", BOOT, "sh", self.root, stage, os.ttyname(end)]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                        stdout=end, stderr=end, env=environment(preload=False))
        os.close(end)
        self.first = self.await_first()

    def drain(self):
        while True:
            try:
                self.console += os.read(self.terminal, 4096)
            except OSError:
                return

    def await_first(self):
        """The process id, outside, of the one that is 1 inside."""
        end = time.monotonic() + PATIENCE * busy()
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while time.monotonic() < end and self.process.poll() is None:
            first = children.read_text().split()
            if first:
                self.first = first[0]
                if self.run("systemctl", "is-active", "default.target").stdout == "active\n":
                    return self.first
            time.sleep(0.05)
        console = self.console.decode(errors="replace")
        self.end()
        pytest.skip(f"no systemd can run here: {console[-500:]}")

    def run(self, *argv):
        enter = ["nsenter", "--target", self.first, "--mount", "--pid", "--net", "--uts", "--ipc",
                 "--cgroup", "--root"]
        return subprocess.run([str(word) for word in [*enter, *argv]], capture_output=True,
                              text=True, check=False, timeout=60,
                              env={"PATH": "/usr/sbin:/usr/bin"})

    def ok(self, *argv):
        done = self.run(*argv)
        assert done.returncode == 0, said(done)
        return done.stdout

    def path(self, name):
        """A file of that system, from outside."""
        return pathlib.Path(f"/proc/{self.first}/root/{name}")

    def write(self, name, text):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def show(self, unit, *names):
        text = self.ok("systemctl", "show", unit, *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in text.splitlines())

    def journal(self, *match):
        text = self.ok("journalctl", "--directory=/run/log/journal", "--output=json", "--quiet",
                       *match)
        return [json.loads(line) for line in text.splitlines()]

    def await_(self, look, what):
        end = time.monotonic() + PATIENCE * busy()
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"{what}: {self.ok('journalctl', '-D/run/log/journal', '-n50')}")

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)
