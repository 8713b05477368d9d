# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The crash protocol in core/media/format.h, compared with the code and the crash scenarios."""

import re

import pytest
from conftest import ROOT

COMMITS = re.compile(r"\b(?:pm_commit_u64|renameat)\(")
ENTRY = re.compile(r"//   (?! )(.+?) {2,}(.*\(\).*)")


def page():
    text = (ROOT / "core/media/format.h").read_text()
    start = text.index("---- the crash protocol")
    return text[start : text.index("#ifndef", start)]


def sources():
    for top in ("core", "threads", "gc", "preload", "tools"):
        yield from sorted((ROOT / top).rglob("*.c"))


def scenarios():
    found = set()
    for path in (ROOT / "tests/crash").glob("scenarios*.c"):
        found |= set(re.findall(r'\.name = "(\w+)"', path.read_text()))
    return found


def named(text):
    """What stands in brackets: scenarios, and tests of whole processes."""
    return {name for group in re.findall(r"\[([a-z_ ]+)\]", text) for name in group.split()}


def integration_tests():
    text = "".join(path.read_text() for path in (ROOT / "tests/integration").glob("test_*.py"))
    return set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE))


def unit_tests():
    return {path.stem for path in (ROOT / "tests/unit").glob("test_*.c")}


def functions():
    """(function, whether it commits) for every function of the library."""
    for path in sources():
        name = ""
        for line in path.read_text().splitlines():
            start = re.match(r"[a-zA-Z].*?(\w+)\(", line)
            if start:
                name = start[1]
                yield name, False
            if COMMITS.search(line):
                yield name, True


def complaints(text):
    names, every = named(text), scenarios()
    known = {name for name, _ in functions()}
    called = set(re.findall(r"\b(\w+)\(\)", text))
    proofs = every | integration_tests() | unit_tests()
    found = [f"{name}: no such scenario" for name in names - proofs]
    found += [f"{name}: not on the page" for name in every - names]
    found += [f"{name}(): no such function" for name in called - known]
    found += [
        f"{name}(): commits, and is not on the page"
        for name in {name for name, commits in functions() if commits} - called
    ]
    found += [
        f"{entry[1]}: nothing proves it"
        for entry in map(ENTRY.fullmatch, text.splitlines())
        if entry and not named(entry[2])
    ]
    return sorted(found)


def test_scenarios_and_functions_are_those_of_the_page():
    assert len(scenarios()) > 20
    assert complaints(page()) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("[reopen]", "[reopened]", "reopened: no such scenario"),
        ("[threads]", "", "threads: not on the page"),
        ("pm_heap_clean()", "pm_heap_cleaned()", "pm_heap_cleaned(): no such function"),
        ("pm_roots_switch()", "it", "pm_roots_switch(): commits, and is not on the page"),
        ("[create]", "", "name of the superblock: nothing proves it"),
    ],
)
def test_each_kind_of_disagreement_is_seen(old, new, complaint):
    assert old in page()
    assert complaint in complaints(page().replace(old, new))
