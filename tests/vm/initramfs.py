# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The guest's first file system: a cpio archive ("newc").

It holds busybox, kernel modules and test programs. The kernel unpacks several archives one after
the other. So the large archive is made once, and the job of each boot is appended.
"""

import lzma
import os
import pathlib
import re
import stat
import subprocess
import tempfile

ALIGN = 4


def entry(name, mode, data, number):
    """One member of a newc archive."""
    name = name.lstrip("/").encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    return pad(head) + pad(data)


def pad(data):
    return data + bytes(-len(data) % ALIGN)


class Archive:
    """Files by their path in the guest. Folders are made as needed."""

    def __init__(self):
        self.members = {}

    def add(self, path, data=b"", mode=stat.S_IFREG | 0o755):
        path = path.lstrip("/")
        for parent in reversed(pathlib.PurePosixPath(path).parents):
            if str(parent) != ".":
                self.members.setdefault(str(parent), (stat.S_IFDIR | 0o755, b""))
        self.members[path] = (mode, data if isinstance(data, bytes) else data.encode())

    def folder(self, path):
        self.add(path, mode=stat.S_IFDIR | 0o755)

    def link(self, path, target):
        self.add(path, target, stat.S_IFLNK | 0o777)

    def program(self, path, source):
        """Adds a program of the host and the shared libraries that it needs."""
        self.add(path, stripped(pathlib.Path(source).read_bytes()))
        listing = subprocess.run(["ldd", str(source)], capture_output=True, text=True, check=False)
        for library in re.findall(r"(/\S+) \(0x", listing.stdout):
            if library.lstrip("/") not in self.members:
                self.add(library, pathlib.Path(library).read_bytes())

    def image(self):
        parts = [
            entry(path, mode, data, number)
            for number, (path, (mode, data)) in enumerate(self.members.items(), 1)
        ]
        return b"".join(parts) + entry("TRAILER!!!", 0, b"", 0)


def stripped(data):
    """The program without debug information, which is half of what the guest would unpack."""
    with tempfile.NamedTemporaryFile(prefix="vm-test-") as copy:
        copy.write(data)
        copy.flush()
        done = subprocess.run(
            ["strip", "--strip-debug", copy.name], capture_output=True, check=False
        )
        return pathlib.Path(copy.name).read_bytes() if done.returncode == 0 else data


def read_module(path):
    data = pathlib.Path(path).read_bytes()
    return stripped(lzma.decompress(data) if str(path).endswith(".xz") else data)


def module_needs(data):
    """The modules that must be loaded before this one, from its .modinfo section."""
    found = re.search(rb"\0depends=([^\0]*)\0", data)
    return [name for name in found.group(1).decode().split(",") if name] if found else []


def in_load_order(wanted, read):
    """The wanted modules and all that they need, each after the modules that it needs.

    read(name) returns the contents of a module, or None when it is built into the kernel.
    """
    order = {}

    def visit(name):
        name = name.replace("-", "_")
        data = None if name in order else read(name)
        if data is None:
            return
        for need in module_needs(data):
            visit(need)
        order[name] = data

    for name in wanted:
        visit(name)
    return order


def find_modules(tree):
    """Finds the file of each module in an unpacked kernel package: {name: file}."""
    found = {}
    for folder, _, files in os.walk(tree):
        for file in files:
            match = re.fullmatch(r"(.+)\.ko(\.xz)?", file)
            if match:
                found[match.group(1).replace("-", "_")] = pathlib.Path(folder) / file
    return found
