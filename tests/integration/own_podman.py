# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Debian's podman for an ordinary user (rootless), in mounts of its own. Images are made of files
of this system, and no network is used. Such a user has one number, which is root's inside."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
from conftest import BUILD, ROOT, TIMEOUT, environment, lacks, said, tool
from own_systemd import LIBRARIES, installed
from programs import program

USER = 12345
BASE_PROGRAMS = "sh ls cat df mkdir chown chmod printf grep pidof kill rm echo sleep tail uniq"

# Lower ones than here: root may not raise any where it lacks CAP_SYS_RESOURCE.
LIMITS = ["nproc=4096:4096", "nofile=1024:1024"]

# $1: the work's folder, $2: where podman is unpacked. crun takes no mixture of both versions of
# control groups.
KEEP = """
set -e
mount --make-rprivate /
mount --make-rshared /
mount -t cgroup2 cgroup2 /sys/fs/cgroup
touch "$1/ready"
exec sleep 100000
"""


def libraries_of(*files):
    found = set()
    for path in files:
        text = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
        found.update(word for word in text.split() if word.startswith("/"))
    return found


def make_base(root):
    """A system that has a shell, and the libraries that the tools need."""
    for name in ("usr/bin", LIBRARIES, "usr/lib64", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    busybox = program("busybox")
    shutil.copy(busybox, root / "usr/bin/busybox")
    for name in BASE_PROGRAMS.split():
        (root / "usr/bin" / name).symlink_to("busybox")
    tools = [tool(f"pmalloc-{name}") for name in ("run", "info", "recover", "backup")]
    for name in libraries_of(busybox, *tools):
        folder = "usr/lib64" if "ld-linux" in name else LIBRARIES
        shutil.copy(os.path.realpath(name), root / folder / os.path.basename(name))
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")


class Podman:
    def __init__(self):
        if os.geteuid() != 0:
            pytest.skip("namespaces for podman are set up by root")
        # An ordinary user must reach it, which the folders of pytest do not allow.
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-podman-", dir="/dev/shm"))
        self.work.chmod(0o755)
        self.home = self.work / "home"
        where = pathlib.Path(program("podman")).parents[2]
        if where == pathlib.Path("/"):
            lacks("podman below build-programs (scripts/bootstrap --test)")
        self.programs = where
        self.keeper = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", KEEP, "sh", str(self.work), str(where)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment(preload=False))
        self.await_(lambda: (self.work / "ready").exists(), "namespaces")
        self.configure()

    def await_(self, look, what):
        end = time.monotonic() + TIMEOUT
        while not look():
            assert self.keeper.poll() is None and time.monotonic() < end, what
            time.sleep(0.05)

    def configure(self):
        """In the places that podman has without settings: what it starts in the end knows none."""
        home, programs = self.home, self.programs
        config = home / ".config/containers"
        config.mkdir(parents=True)
        (home / "run").mkdir()
        (config / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        (config / "storage.conf").write_text(
            '[storage]\ndriver = "vfs"\n[storage.options]\nignore_chown_errors = "true"\n')
        (config / "containers.conf").write_text(
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "crun"\n'
            f'conmon_path = ["{programs}/usr/bin/conmon"]\n'
            f'[engine.runtimes]\ncrun = ["{programs}/usr/bin/crun"]\n'
            f'[containers]\nseccomp_profile = "{programs}/usr/share/containers/seccomp.json"\n'
            'netns = "none"\ncgroups = "disabled"\n'
            f"default_ulimits = {json.dumps(LIMITS)}\n")
        for path in (home, *home.rglob("*")):
            os.chown(path, USER, USER)

    def run(self, *argv, stdin="", more=()):
        home = self.home
        env = {"HOME": str(home), "XDG_RUNTIME_DIR": f"{home}/run", "XDG_CONFIG_HOME":
               f"{home}/.config",
               "PATH": f"{self.programs}/usr/bin:/usr/sbin:/usr/bin:/sbin:/bin", **dict(more)}
        enter = ["nsenter", "--target", self.keeper.pid, "--mount", f"--wd={home}", "setpriv",
                 f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "podman",
                 "--log-level=error"]
        done = subprocess.run([str(word) for word in (*enter, *argv)],
                              env=env, input=stdin, capture_output=True, text=True, timeout=100,
                              check=False)
        # Of a user without a range of numbers: the one that she has is root's inside.
        done.stderr = "".join(line for line in done.stderr.splitlines(True)
                              if not line.startswith("time="))
        return done

    def ok(self, *argv, **more):
        done = self.run(*argv, **more)
        assert done.returncode == 0, said(done)
        return done.stdout

    def build(self, server):
        """An image by the recipe, of a base of this system's files."""
        make_base(self.work / "base")
        base, context = self.work / "base.tar", self.work / "context"
        subprocess.run(["tar", "-C", self.work / "base", "-cf", base, "."], check=True)
        installed(context / "stage")
        shutil.copy(ROOT / "tools/services/Containerfile", context)
        shutil.copy(server, context / "kvserver")
        subprocess.run(["chmod", "-R", "a+rX", base, context], check=True)
        done = self.run("import", base, "localhost/base")
        if done.returncode:
            self.end()
            pytest.skip(f"podman cannot make an image here: {done.stderr}")
        self.ok("build", "--network=none", "--layers=false", "--build-arg=BASE=localhost/base",
                "--build-arg=USER=0", "--tag=kvserver", context)

    def end(self):
        if self.keeper.poll() is not None:
            return
        self.run("rm", "--all", "--force", "--time=0")
        for pause in self.work.glob("home/run/**/pause.pid"):  # it has the user's namespaces
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(pause.read_text()), signal.SIGKILL)
        self.keeper.kill()
        self.keeper.wait()
        shutil.rmtree(self.work, ignore_errors=True)
