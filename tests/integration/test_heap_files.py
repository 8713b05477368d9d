# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The heap's files and the version: each stands in one place, and the tools know every row."""

import json
import re
import sys

from conftest import BUILD, ROOT, app, run, succeeds, tool

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from heap_layout import ROWS, TABLE  # noqa: E402

SOURCES = [
    path
    for folder in ("core", "threads", "gc", "preload", "tools")
    for path in sorted((ROOT / folder).rglob("*.[ch]"))
]


def literals(path):
    """The string literals of a source, without the comments."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)


def test_the_table_is_read():
    assert len(ROWS) >= 9 and len({row.name for row in ROWS}) == len(ROWS)
    assert {row.name for row in ROWS} >= {"superblock", "heap.0", "roots", "superblock.new"}
    assert [row.name for row in ROWS if row.feature != "0"] == ["journal"]


def test_names_stand_nowhere_else():
    # "roots" and "types" are words of the tools' output, too, "journal" one of mount options, and
    # "spare" and "limit" are settings.
    names = {row.name for row in ROWS} - {"roots", "types", "journal", "spare", "limit"}
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in SOURCES
        if path != TABLE
        for text in literals(path)
        if text in names
    ]
    assert found == [], "take these names from core/media/heap_files.h"


def test_the_tools_count_every_file(heap):
    succeeds(run([app("kvshell")], HEAP=heap, ROOTS="store", stdin="set a b\nquit\n"))
    there = {path.name: path.stat() for path in heap.iterdir()}
    others = {"objects.a", "types"}  # of the other generation; and what only pmalloc-run makes
    assert set(there) == {row.name for row in ROWS if row.lasts} - others
    info = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert info["files"] == {
        name: {"length": stat.st_size, "allocated": stat.st_blocks * 512}
        for name, stat in there.items()
    }
    metadata = [row.name for row in ROWS if row.holds == "PM_FILE_METADATA"]
    assert info["metadata_bytes"] == sum(there[name].st_blocks * 512 for name in metadata)
    done = run([tool("pmalloc-info"), "--medium", "--json", heap], preload=False)
    assert list(json.loads(succeeds(done))["map_sync"]) == [row.name for row in ROWS if row.held]


def test_the_version_stands_in_one_place():
    version = re.search(r'PM_VERSION "(.*)"', (ROOT / "preload" / "version.h").read_text())[1]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert [str(path.relative_to(ROOT)) for path in SOURCES if version in literals(path)] == [
        "preload/version.h"
    ]
    assert version not in (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"\nVersion: {version}\n" in (BUILD / "libpmalloc.pc").read_text(encoding="utf-8")
    for name in ("pmalloc-info", "pmalloc-recover", "pmalloc-backup", "pmalloc-run"):
        done = run([tool(name), "--version"], preload=False)
        assert succeeds(done) == f"{name} (PMAlloc) {version}\n"
        done = run([tool(name), "--man"], preload=False)
        assert f'"PMAlloc {version}"' in succeeds(done)
