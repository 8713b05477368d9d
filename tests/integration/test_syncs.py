# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""docs/syncs.md has an entry for each sync in the sources, and no other."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "syncs.md"
FOLDERS = ("core", "threads", "gc", "preload", "tools")

# Calls that make files or names durable, those of the kernel and those that lead there.
SYNC = re.compile(
    r"(?<![\w\"])(fsync|fdatasync|syncfs|msync|sync_file_range|pm_file_sync|pm_os_sync_parent"
    r"|pm_volumes?_sync|pm_target_sync|target_sync_parent|pm_journal_sync_touched"
    r"|pm_journal_files\.sync|io->sync)\("
    r"|\bSYS_(?:fsync|fdatasync|syncfs|msync|sync_file_range)\b"
    r"|\bO_D?SYNC\b|\bRWF_D?SYNC\b"
)
# What goes through the table of persist.h: lines, words and pages of a mapping.
LINES = re.compile(r"\b(pm_make_durable|pm_gather_durable|pm_commit_u64|pm_flush|pm_drain)\(")
# A definition begins in the first column, and its name stands before the first parenthesis.
BEGINS = re.compile(r"^(?:[A-Za-z_].*?[ *])?(\w+)\(")
OWN = {"core/media/persist.h"}  # defines them
# Syncs of the program's that pass here; and inner.c, where those of the library pass.
PASSED = {"preload/commit/triggers.c", "preload/names/inner.c", "preload/names/raw_calls.c"}


def sources():
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8").splitlines()


def code(line):
    return line.split("//")[0]


def calls(pattern):
    """(file, function) of each call, and what defines a function of such a name is none."""
    found = set()
    for name, lines in sources():
        function = None
        for line in lines:
            begins = BEGINS.match(line)
            body = code(line)
            if begins and not line.endswith(";"):
                function = begins.group(1)
                body = body[begins.end() :]
            elif begins or line.startswith(("#", "//")):
                continue
            if pattern.search(body) and name not in OWN:
                found.add((name, function))
    return found


def entries(heading):
    """What the entries below a heading begin with: files, and their functions."""
    part = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    named = set()
    for entry in re.findall(r"^- (.*?):\s", part, re.MULTILINE | re.DOTALL):
        for cell in entry.split(";"):
            file, *functions = re.findall(r"`([^`]+)`", cell)
            named |= {(file, one) for one in functions or [None]}
    return named


@pytest.mark.check
def test_each_sync_has_an_entry():
    assert entries("Files and names") == {one for one in calls(SYNC) if one[0] not in PASSED}


def test_each_file_that_makes_words_durable_has_an_entry():
    files = {(name, None) for name, _ in calls(LINES)}
    assert entries("Words, lines and pages") == files


def test_the_lists_find_what_they_look_for():
    assert ("core/media/backing/file.c", "pm_file_sync") in calls(SYNC)
    assert ("core/media/persist.c", "flush_pages") in calls(SYNC)
    assert len(calls(SYNC)) > 25 and len(calls(LINES)) > 25
