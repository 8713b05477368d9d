# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/bootstrap on systems that are not this one: their tools are stubs that say what was asked
of them. And what `make test` says where there is no chroot of another release."""

import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import time

import pytest
from conftest import ROOT, said, succeeds

TOOLS = ("sh", "dirname", "sed", "tr", "cut", "head", "env", "cat", "mkdir", "rm")
SERVERS = ("dnsmasq", "memcached", "mosquitto", "nbdkit", "nginx", "ngircd", "opentracker")
SERVERS += ("podman", "postgresql", "prometheus")


class System:
    """A tree with the script, and a PATH of nothing but stubs and a few tools."""

    def __init__(self, folder):
        self.folder, self.bin, self.log = folder, folder / "bin", folder / "log"
        self.bin.mkdir()
        (folder / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "bootstrap", folder / "scripts")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.log.touch()
        self.stub("id", "echo 0")

    def stub(self, name, body="exit 0"):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def debian(self, known, broken=()):
        """`known`: what apt has, a pattern of sh; `broken`: what cannot be installed."""
        self.stub("dpkg-query", "exit 1")
        has = f'case "$name" in {known}) candidate=1;; *) candidate="(none)";; esac'
        tell = 'echo "$name:"; echo "  Candidate: $candidate"'
        self.stub("apt-cache", f"shift; for name; do {has}; {tell}; done")
        fails = "".join(f'*" {name} "*) exit 100;; ' for name in broken)
        log = f'echo "$*" >> {self.log}'
        self.stub("apt-get", f'{log}; case "$* " in {fails}*) exit 0;; esac')
        for server in SERVERS:
            path = self.folder / "build-programs" / "usr" / "bin" / server
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(0o755)

    def bootstrap(self, *options):
        return subprocess.run(
            [self.folder / "scripts" / "bootstrap", *options],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self, what):
        return [line for line in self.log.read_text().splitlines() if f" {what} " in f" {line} "]


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


@pytest.mark.parametrize(
    "known, taken",
    [
        ("*", "libclang-rt-dev"),
        ("libclang-rt-dev) candidate='(none)';; *", "libclang-rt-18-dev"),
        ("libclang-rt-dev|libclang-rt-18-dev) candidate='(none)';; *", "libclang-rt-14-dev"),
    ],
)
def test_the_first_name_that_the_release_has(system, known, taken):
    system.debian(known)
    succeeds(system.bootstrap())
    (install,) = system.asked("install")
    assert [name for name in install.split() if "clang-rt" in name] == [taken]
    wanted = {"gcc", "libpmem-dev", "libdw-dev", "libnuma-dev", "clang-format", "pkg-config"}
    assert wanted <= set(install.split())


def test_what_a_release_lacks_is_left_out_with_a_line(system):
    system.debian("neko|parser3-cgi) candidate='(none)';; *")
    done = system.bootstrap("--test")
    succeeds(done)
    lines = done.stderr.splitlines()
    assert [line.split()[3] for line in lines] == ["neko", "parser3-cgi"], said(done)
    assert all("the tests that need it are skipped" in line for line in lines)
    installed = " ".join(system.asked("install")).split()
    assert "gawk" in installed and "neko" not in installed


def test_the_build_needs_its_packages(system):
    system.debian("libpmem-dev) candidate='(none)';; *")
    done = system.bootstrap()
    assert done.returncode == 1 and "no package libpmem-dev" in done.stderr, said(done)
    assert not system.asked("install")


def test_one_package_does_not_keep_back_the_others(system):
    system.debian("*", broken=["lilypond"])
    done = system.bootstrap("--test")
    succeeds(done)
    assert done.stderr.count("\n") == 1 and "left out: lilypond" in done.stderr, said(done)
    assert system.asked("gawk")[-1].endswith(" gawk")  # by itself


@pytest.mark.parametrize(
    "tool, package", [("dnf", "compiler-rt"), ("pacman", "python-pytest"), ("apk", "build-base")]
)
def test_other_systems_get_their_own_command(system, tool, package):
    system.stub(tool)
    done = system.bootstrap()
    assert done.returncode == 1 and package in done.stderr, said(done)
    assert f"sudo {tool} " in done.stderr
    # And go on once all is there.
    for name in ("gcc", "make", "pkg-config", "python3"):
        system.stub(name)
    done = system.bootstrap()
    assert done.returncode == 0 and "what the build needs is there" in done.stderr, said(done)
    # The tests need more.
    done = system.bootstrap("--test")
    assert done.returncode == 1 and f"sudo {tool} " in done.stderr, said(done)
    for name in ("g++", "clang"):
        system.stub(name)
    done = system.bootstrap("--test")
    assert done.returncode == 0 and "tests are skipped whose programs" in done.stderr, said(done)
    system.stub("python3", "exit 1")  # has no pytest
    assert system.bootstrap("--test").returncode == 1
    assert system.bootstrap().returncode == 0


def test_another_formatter_is_no_failure(tmp_path):
    other = tmp_path / "clang-format"
    other.write_text("#!/bin/sh\necho clang-format version 19.1.7; exit 1\n")
    other.chmod(0o755)
    make = ["make", "-s", "-C", ROOT, f"CLANG_FORMAT={other}"]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run([*make, "format-check"], capture_output=True, text=True, env=env)
    assert "skipped" in succeeds(done) and "clang-format==14" in done.stdout
    done = subprocess.run([*make, "format"], capture_output=True, text=True, env=env)
    assert done.returncode == 2 and "no clang-format 14" in done.stderr, said(done)


def test_no_chroot_no_part(tmp_path):
    argv = [ROOT / "scripts" / "distro-test", "--cache", tmp_path, "--if-made", "--part", "trixie"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert succeeds(done).startswith("distro-test: skipped: no chroot of trixie")
    assert "scripts/distro-test --part trixie" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.fixture
def distro(monkeypatch):
    """scripts/distro-test as a module."""
    loader = importlib.machinery.SourceFileLoader("distro", str(ROOT / "scripts" / "distro-test"))
    spec = importlib.util.spec_from_loader("distro", loader)
    module = sys.modules["distro"] = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    return module


def test_figures_of_a_step(distro):
    """Each kind of closing that the table of releases takes its cells from."""
    ok = "ok   build/unit/test_words\n"
    for text, cell in (
        (ok + "255 passed, 8 skipped, 3 failed in 490.93s\n", "255 passed, 8 skipped, 3 failed"),
        ("297 passed, 1629 deselected in 160.62s (0:02:40)\n", "297 passed"),
        (ok + ok, "2 passed"),
        (ok + "FAIL build/unit/test_x (status 1)\n", "1 passed, 1 failed"),
        (
            "crash: 44 scenarios, seeds 1 to 1: 33490 images opened, recovered and checked\n"
            "fences: 49 of 57 call sites reached, 86016 passed, 22551 images taken at them\n",
            "33490 images",
        ),
        (
            "vm-test: 6 boots, 1 of them ended by the guest's own kernel in 118 s, 0 failures\n"
            "vm-test: commit mode, Linux 6.12.117+deb13-cloud-amd64: 2 cuts of each medium, 37 s\n"
            "ext4     api         1 cuts,    0 copies,    2 instants verified\n",
            "6 boots, 0 failures; commit mode: 2 cuts",
        ),
        ("tests/x.c:1: error: 3 arguments\n", ""),
    ):
        assert distro.figures(text) == cell


def test_a_step_that_ran_nothing(distro):
    """`make vm` ends with 0 where a guest cannot run; its row must not say that it passed."""
    skip = "vm-test: skipped: there is no busybox: install Debian's busybox\n"
    assert distro.cell(0, skip) == "skipped"
    assert distro.cell(1, skip) == "FAIL"
    assert distro.cell(0, "format-check: skipped: another clang-format\nok   x\n") == "ok 1 passed"
    assert distro.cell(0, "") == "ok"


def test_sources_that_are_older_than_what_was_built(distro, tmp_path, monkeypatch):
    """A chroot keeps its objects: a source that has changed is newer than these, whatever its time
    in the work tree, and one that has not keeps them."""
    tree, chroot = tmp_path / "tree", distro.Chroot("other", tmp_path)
    monkeypatch.setattr(distro, "ROOT", tree)
    tree.mkdir()
    for name in ("same.c", "other.c", "gone.c"):
        (tree / name).write_text(name)
        os.utime(tree / name, (1000, 1000))
    for argv in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *argv], cwd=tree, check=True)
    chroot.put_sources()
    source = chroot.root / "src"
    built = time.time() - 500
    for name in ("same.c", "other.c"):
        os.utime(source / name, (built - 100, built - 100))
    (tree / "other.c").write_text("OTHER.C")
    os.utime(tree / "other.c", (1000, 1000))
    (tree / "gone.c").unlink()
    subprocess.run(["git", "add", "."], cwd=tree, check=True)
    chroot.put_sources()
    assert {path.name for path in source.iterdir()} == {"same.c", "other.c"}
    assert (source / "other.c").read_text() == "OTHER.C"
    assert (source / "other.c").stat().st_mtime > built > (source / "same.c").stat().st_mtime
