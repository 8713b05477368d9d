# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What make does for those who change the sources: a hook for git, and commands for editors."""

import json
import os
import subprocess

import pytest
from conftest import BUILD, ROOT, needs


def make(*arguments, **env):
    argv = ["make", "-s", "-C", ROOT, *arguments]
    env = os.environ | env
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
        env.pop(name, None)
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def repository(tmp_path):
    subprocess.run([needs("git"), "init", "-q", tmp_path / "tree"], check=True)
    return tmp_path / "tree"


def test_the_hook_is_put_there_and_runs(repository, tmp_path):
    for _ in range(2):  # the second time it is there
        done = make("hooks", GIT_DIR=str(repository / ".git"))
        assert done.returncode == 0 and not done.stderr, done
    stub = tmp_path / "make"
    stub.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked; exit 3\n")
    stub.chmod(0o755)
    (repository / "file").write_text("text\n")
    subprocess.run(["git", "-C", repository, "add", "file"], check=True)
    commit = ["git", "-C", repository, "-c", "user.name=a", "-c", "user.email=a", "commit", "-qm-"]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert subprocess.run(commit, env=env, check=False).returncode != 0
    assert (tmp_path / "asked").read_text() == "-s format-check check-style\n"
    stub.write_text("#!/bin/sh\n")
    assert subprocess.run(commit, env=env, check=False).returncode == 0


def test_another_hook_stays(repository):
    hook = repository / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    done = make("hooks", GIT_DIR=str(repository / ".git"))
    assert done.returncode != 0 and "is there and is not ours" in done.stderr, done
    assert hook.read_text() == "#!/bin/sh\n"


def test_editors_get_commands_that_compile(tmp_path):
    commands = tmp_path / "commands.json"
    done = make("compile_commands.json", f"COMMANDS={commands}", f"BUILD={BUILD}")
    assert done.returncode == 0 and not done.stderr, done
    entries = {entry["file"]: entry for entry in json.loads(commands.read_text())}
    for folder in ("core", "gc", "preload", "tools", "tests/unit"):
        sources = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.c")}
        assert sources and not sources - entries.keys()
    entry = entries["core/blocks/slab.c"]
    argv = [word for word in entry["command"].split() if word not in ("-MMD", "-MP")]
    argv[argv.index("-o") + 1] = str(tmp_path / "slab.o")
    subprocess.run(argv, cwd=entry["directory"], check=True)
