# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The guest's kernel. It is fetched from Debian and unpacked beside the build, not installed."""

import pathlib
import re
import shutil
import subprocess

META = "linux-image-cloud-amd64"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
BACKPORTS = "deb [signed-by={key}] {archive} {codename}-backports main\n"


class Skip(Exception):
    """This machine cannot run the guest. The message says why."""


def codename():
    for line in pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.split("=", 1)[1].strip('"')
    raise Skip("this is not Debian: no VERSION_CODENAME in /etc/os-release")


def run(*command, cwd=None):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def archive():
    """The archive that this machine's release comes from. It has the backports, too."""
    targets = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"
    )
    for line in targets.stdout.splitlines():
        uri, _, release = line.partition(" ")
        if release == codename():
            return uri
    raise Skip(f"apt knows no archive of {codename()}; run apt-get update")


def private_apt(folder):
    """Options that give apt its own lists and sources, so that the machine's do not change."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(
        BACKPORTS.format(key=KEYRING, archive=archive(), codename=codename()), encoding="utf-8"
    )
    settings = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    updated = run("apt-get", "-qq", *options, "update")
    if updated.returncode != 0:
        raise Skip(f"cannot reach {codename()}-backports: {last_line(updated.stderr)}")
    return options


def last_line(text):
    return (text.strip().splitlines() or ["no reason given"])[-1]


def newest_package(options):
    """The package that the metapackage names today."""
    answer = run("apt-cache", *options, "depends", META)
    found = re.search(r"Depends: (linux-image-\d\S*)", answer.stdout)
    if not found:
        raise Skip(f"apt knows no {META}; run apt-get update")
    return found.group(1)


def download(package, options, cache):
    got = run("apt-get", "-q", *options, "download", package, cwd=cache)
    debs = sorted(cache.glob(f"{package}_*.deb"))
    if got.returncode != 0 or not debs:
        raise Skip(f"cannot fetch {package}: {last_line(got.stderr)}")
    return debs[-1]


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, tree):
        self.tree = tree
        images = [*tree.glob("boot/vmlinuz-*"), *tree.glob("usr/lib/modules/*/vmlinuz")]
        if not images:
            raise Skip(f"{tree} has no kernel")
        self.image = images[0]
        in_boot = self.image.parent.name == "boot"
        name = self.image.name.removeprefix("vmlinuz-")
        self.version = name if in_boot else self.image.parent.name


# Since Linux 7 Debian's image package has neither the image nor the modules, but depends on
# packages of the same version that have.
def parts(package, options):
    version = re.escape(package.removeprefix("linux-image-"))
    answer = run("apt-cache", *options, "depends", package)
    return re.findall(rf"Depends: (linux-(?:binary|modules)-{version})", answer.stdout)


def unpack(deb, cache):
    """The package, and its parts that lie beside it."""
    tree = cache / deb.name.removesuffix(".deb")
    if not tree.exists():
        unfinished = cache / "unpacking"
        shutil.rmtree(unfinished, ignore_errors=True)
        name = deb.name.removeprefix("linux-image-")
        for each in (deb, *(deb.parent / f"linux-{part}-{name}" for part in ("binary", "modules"))):
            if each != deb and not each.exists():
                continue
            done = run("dpkg-deb", "--extract", str(each), str(unfinished))
            if done.returncode != 0:
                raise Skip(f"cannot unpack {each}: {last_line(done.stderr)}")
        unfinished.rename(tree)
    return Kernel(tree)


def fetch(which, cache):
    """`which` is stable, backports, or the path of a .deb. An earlier download is used again."""
    cache.mkdir(parents=True, exist_ok=True)
    if which not in ("stable", "backports"):
        return unpack(pathlib.Path(which).resolve(), cache)
    folder = cache / which
    folder.mkdir(exist_ok=True)
    fetched = sorted(folder.glob("linux-image-*.deb"), key=lambda deb: deb.stat().st_mtime)
    if fetched:
        return unpack(fetched[-1], folder)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Skip("this is not Debian: no apt-get")
    options = private_apt(folder / "apt") if which == "backports" else []
    package = newest_package(options)
    for part in parts(package, options):
        download(part, options, folder)
    return unpack(download(package, options, folder), folder)
