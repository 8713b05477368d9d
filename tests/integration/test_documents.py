# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""README.md, CONTRIBUTING.md and docs/: what they show runs, and what they name exists. The README
of a folder names every file of the folder.

A fenced block ```console is a session. A line that begins with "$ " is a command; a backslash at
its end continues it. The lines after a command are its standard output, in which "..." stands for
anything. A comment "# status N" says that the command ends with that exit status. A block ```c that
begins with "// NAME.c" is a file that the commands find. The sessions of a page run in one shell,
in order. Their folder looks like the project's; /dev/shm and HOME are elsewhere."""

import dataclasses
import os
import re
import runpy
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, busy, environment, said

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
FOLDERS = ("core", "threads", "gc", "preload", "tools", "tests", "scripts")
READMES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("README.md"))
WIDTH = 100

# Commands that do not run here, by their beginning, and the reason.
NOT_RUN = {
    "./scripts/demo": "installs packages; `make demo` is the same without that",
    "./scripts/test": "would run this test again",
    "./scripts/bootstrap": "installs packages",
    "make -j": "the build is what the tests run on",
    "make CC=": "a second build",
    "make check": "runs tests of this suite",
    "make test": "would run this test again",
    "make unit": "part of make test",
    "build/unit/": "part of make unit, and built by it alone",
    "make crash": "part of make test, and takes minutes",
    "make soak": "takes minutes",
    "make deb": "test_packages.py builds the packages",
    "apt-get": "installs packages; test_packages.py does that in a system of its own",
    "/usr/bin/python3 -m pytest": "would run this test again, or others of the suite",
    "scripts/counters": "test_counters.py runs it",
    "scripts/bench": "test_bench.py runs it",
    "unshare -rm": "needs user namespaces, which a sandbox may forbid; test_core_dump.py runs it",
    "gdb ": "needs a core file; test_core_dump.py and test_debuggers.py run gdb",
    "PMALLOC_PROGRAM=app LD_PRELOAD=": "is about a program of the reader's",
    "build/pmalloc-recover --purge --yes": "would remove the user's own; test_tools_cli.py runs it",
    "mkfs": "makes a file system",
    "pmalloc-info --follow": "runs until the program ends; test_introspection.py runs it",
}
# Output that differs each time.
VARIES = {"1064896": r"\d+"}


@dataclasses.dataclass
class Command:
    """A command of a session, and its expected result."""

    line: int
    text: str
    output: list
    status: int


def fenced(page):
    """(kind, number of its first line, lines) of each fenced block."""
    kind, block = None, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"( *)```(\w*)$", line)
        if not mark:
            block.append(line[indent:] if kind is not None else line)
        elif kind is None:
            kind, indent, start, block = mark[2], len(mark[1]), number + 1, []
        else:
            yield kind, start, block
            kind = None


def session(start, lines):
    """The commands of a block."""
    commands, lines = [], list(enumerate(lines, start))
    while lines:
        number, line = lines.pop(0)
        if not line.startswith("$ "):
            assert commands, f"line {number}: output without a command"
            commands[-1].output.append(line)
            continue
        text = line[2:]
        while text.endswith("\\"):
            text = text[:-1] + lines.pop(0)[1].strip()
        status = re.search(r"# status (\d+)$", text)
        commands.append(Command(number, text, [], int(status[1]) if status else 0))
    return commands


def commands_of(page):
    return [
        command
        for kind, start, lines in fenced(page)
        if kind == "console"
        for command in session(start, lines)
    ]


def debians_dc():
    """Whether dc is the build whose variable the guide names."""
    done = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Version} ${Architecture}", "dc"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout == "1.07.1-3+b1 amd64"


def not_run(command):
    return next((known for known in NOT_RUN if command.text.startswith(known)), None)


def pattern(lines):
    """A pattern for the output that is shown."""
    text = re.escape("\n".join(lines)).replace(re.escape("..."), "(?s:.*)")
    for shown, meant in VARIES.items():
        text = text.replace(shown, meant)
    return re.compile(text)


def furnish(folder, page):
    """Makes `folder` look like the project's, with the files that the page shows."""
    for path in ROOT.iterdir():
        if not path.name.startswith((".", "build")):
            (folder / path.name).symlink_to(path)
    (folder / "build").symlink_to(BUILD)
    for kind, _, lines in fenced(page):
        name = re.match(r"// (\w+\.cc?)\b", lines[0]) if kind in ("c", "cpp") else None
        if name:
            (folder / name[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_all(commands, folder, shm):
    """Runs the commands in one shell. Returns a list of (standard output, exit status)."""
    out = shm / "output"
    out.mkdir()
    script = [
        f"{{ {command.text}\n}} > OUT/{i}; echo $? > OUT/{i}.status"
        for i, command in enumerate(commands)
    ]
    text = "\n".join(script).replace("/dev/shm/", f"{shm}/").replace("OUT/", f"{out}/")
    home = shm / "home"
    home.mkdir()
    env = environment(preload=False, HOME=None) | {"HOME": str(home)}
    env.pop("MAKEFLAGS", None)
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60 * busy(),
        stdin=subprocess.DEVNULL,
        check=False,
    )
    results = []
    for i, command in enumerate(commands):
        assert (out / f"{i}.status").exists(), f"{command.text}: did not end\n{said(done)}"
        results.append(((out / str(i)).read_text(), int((out / f"{i}.status").read_text())))
    return results, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_do_what_the_page_says(page, shm, tmp_path):
    furnish(tmp_path, page)
    commands = [command for command in commands_of(page) if not not_run(command)]
    if not debians_dc():
        commands = [command for command in commands if "/dev/shm/dc" not in command.text]
    results, errors = run_all(commands, tmp_path, shm)
    for command, (output, status) in zip(commands, results):
        where = f"{page.name}:{command.line}: $ {command.text}\n{output}\n{errors}"
        assert status == command.status, f"status {status}: {where}"
        if command.output:
            shown = output.replace(f"{shm}/", "/dev/shm/").rstrip("\n")
            assert pattern(command.output).fullmatch(shown), f"{where}\nis not\n{command.output}"


def test_exceptions_are_needed():
    met = {not_run(command) for page in PAGES for command in commands_of(page)}
    assert set(NOT_RUN) - met == set()


@pytest.mark.check
def test_reference_is_what_the_tools_say():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "make-reference", "--check"],
        env={**os.environ, "BUILD": str(BUILD)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, said(done)


# The reference says what each setting does; another page says when to set it.
@pytest.mark.check
def test_each_setting_has_a_reason():
    table = (ROOT / "core" / "base" / "options.h").read_text(encoding="utf-8")
    settings = set(re.findall(r'"(PMALLOC_\w+)", PM_TYPE', table))
    pages = [page for page in PAGES if page.name != "reference.md"]
    named = set(re.findall(r"PMALLOC_[A-Z_]+", "".join(map(prose, pages))))
    assert len(settings) > 30 and not settings - named
    assert "PMALLOC_NOTHING" not in named


def test_sizes():
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(readme) <= 120
    for page in PAGES + READMES:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= WIDTH, f"{page.name}:{number}: {len(line)} columns"


def prose(page):
    """The page without its fenced blocks."""
    return re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES + READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paragraphs_end(page):
    # a slip of an editor left a sentence as "it may lie\nX\n"
    assert not re.search(r"(?m)^\w+\n\n", prose(page))


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    for heading in re.findall(r"(?m)^#+ (.*)$", prose(page)):
        yield re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.check
@pytest.mark.parametrize("page", PAGES + READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def names(page, expression):
    return {
        name
        for code in re.findall(r"`([^`]+)`", prose(page))
        for name in re.findall(expression, code)
    }


@pytest.mark.parametrize("page", PAGES + READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_exist(page):
    wrong = [
        name
        for name in names(page, r"\b(?:core|gc|preload|tools|tests|scripts|docs)/[\w./-]+")
        if not (ROOT / name.rstrip("./")).exists()
    ]
    assert not wrong, f"{page.relative_to(ROOT)}: {wrong}"


@pytest.mark.parametrize("page", PAGES + READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_functions_exist(page):
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("core", "threads", "gc", "preload", "tools")
        for path in (ROOT / folder).rglob("*.[ch]")
    )
    known = set(re.findall(r"\b(?:pm|PM)_\w+", sources))
    assert names(page, r"\b(?:pm|PM)_\w+") - known == set(), page.name


@pytest.mark.check
@pytest.mark.parametrize("readme", READMES, ids=lambda page: str(page.parent.relative_to(ROOT)))
def test_readmes_name_every_file(readme):
    """By its name or its stem. Those of tests/unit need no words."""
    named = names(readme, r"[\w.@-]+\*?")
    stems = tuple(name.rstrip("*") for name in named if name.endswith("*"))
    missing = [
        path.name
        for path in readme.parent.iterdir()
        if path.is_file()
        and path.name not in named | {"README.md"}
        and path.stem not in named
        and not (stems and path.name.startswith(stems))
    ]
    assert not missing, f"name them in {readme.relative_to(ROOT)}"


def test_the_questions_lead_to_every_page():
    asked = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\((\w[\w-]*\.md)", asked)) & pages


def test_contributing_lists_the_layers():
    """The folders of scripts/check-layers, in an order in which each uses only folders above it."""
    rules = runpy.run_path(str(ROOT / "scripts" / "check-layers"))["FOLDERS"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.findall(r"(?m)^    ([\w/]+)/  +\S", page)
    assert sorted(listed) == sorted(rules)
    for folder in listed:
        above = listed[: listed.index(folder)]
        assert set(rules[folder]) <= set(above), folder


def test_messages_exist():
    """The messages that docs/operations.md explains. "...", N and NAME stand for what differs."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`[^|]*) \|", page.split("## Messages")[1].split("\n## ")[0])
    assert rows
    sources = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("core", "threads", "gc", "preload", "tools")
        for path in (ROOT / folder).rglob("*.c")
    )
    sources = re.sub(r'"\s*\n\s*"', "", sources)
    for message in re.findall(r"`([^`]+)`", " ".join(rows)):
        for piece in re.split(r"\.\.\.|\bN\b|\bNAME\b", message):
            assert piece.strip(": ") in sources, message


@pytest.mark.check
def test_words_are_defined_once():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"(?m)^\*\*(.+?)\*\*", text)
    assert len(words) == len({word.lower() for word in words})
    for part in text.split("\n## ")[1:]:
        inside = [word.lower() for word in re.findall(r"(?m)^\*\*(.+?)\*\*", part)]
        assert inside == sorted(inside), part.splitlines()[0]
