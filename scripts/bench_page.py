# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The page that scripts/bench makes of its results: Markdown that says on which machine and by
which command they were measured."""

import os
import re
import shlex
import sys

MACHINE = (
    ("processor", "{cpu}, {cpus} CPUs"),
    ("memory", "{memory_gb} GB"),
    ("system", "Linux {kernel}, {libc}"),
    ("/dev/shm", "{dev_shm}; huge pages: {shmem_huge}"),
    ("huge pages of anonymous memory", "{anon_huge}"),
    ("load before the first run", "{load}"),
    ("date", "{date}"),
)


def command():
    return shlex.join([f"scripts/{os.path.basename(sys.argv[0])}", *sys.argv[1:]])


def chosen(text):
    """The word in brackets, of those that a file of the kernel lists."""
    match = re.search(r"\[(.+)\]", str(text))
    return match[1] if match else text


def page(machine, versions, how, sections, plots):
    """versions: {allocator: version}. how: a line about the runs. sections: (title, table) pairs,
    those without a table left out. plots: {title of a section: file of its picture}."""
    machine = {name: chosen(value) for name, value in machine.items()}
    lines = ["# Benchmarks", "", f"Made by `{command()}`.", ""]
    lines += ["| the machine | |", "|---|---|"]
    lines += [f"| {name} | {text.format(**machine)} |" for name, text in MACHINE]
    lines += ["", "| allocator | version |", "|---|---|"]
    lines += [f"| {name} | {version} |" for name, version in versions.items()]
    lines += ["", how]
    for title, table in sections:
        if table:
            lines += ["", f"## {title}", ""]
            lines += [f"![{title}]({plots[title]})", ""] if title in plots else []
            lines += ["```", table, "```"]
    return "\n".join(lines) + "\n"
