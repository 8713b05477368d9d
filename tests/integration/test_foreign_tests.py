# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/foreign-tests, with a small suite in the form of libc-test's."""

import json
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, environment

# Each program notes its mode in a file, then does what its name says.
PROLOGUE = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int ignored(int number) { return signal(number, SIG_DFL) == SIG_IGN; }
static int is(const char *name, const char *value) {
    const char *is = getenv(name);
    return value ? is && !strcmp(is, value) : is != NULL;
}
static int runs(const char *file, int add) {
    char path[500];
    int count = 0, c;
    snprintf(path, sizeof path, "%s/%s", getenv("noted"), file);
    FILE *f = fopen(path, add ? "a" : "r");
    if (f && add)
        fputs("x", f);
    while (f && !add && (c = getc(f)) != EOF)
        count++;
    if (f)
        fclose(f);
    return count;
}
int main(void) {
    runs(NAME, 1);
"""
PROGRAMS = {
    "right": "return 0;",
    "never_right": "return 1;",
    "hangs_on_a_heap": 'return is("PMALLOC_HEAP", NULL) ? pause() : 0;',
    "wrong_in_commit_mode": 'return is("PMALLOC_COMMIT", NULL) ? 3 : 0;',
    "dies_under_output": 'if (is("PMALLOC_COMMIT", "output")) abort(); return 0;',
    "wrong_once": "return runs(NAME, 0) == 2;",
    "listed": 'return is("LD_PRELOAD", NULL);',
    "hears": "return ignored(SIGINT) || ignored(SIGQUIT) || ignored(SIGHUP);",
}


@pytest.fixture
def suite(tmp_path):
    """The folder of a suite's sources."""
    functional, common = (tmp_path / "suite" / "src" / name for name in ("functional", "common"))
    functional.mkdir(parents=True)
    common.mkdir()
    (common / "none.c").write_text("extern int nothing;\n")
    for name, body in PROGRAMS.items():
        (functional / f"{name}.c").write_text(f'#define NAME "{name}"\n{PROLOGUE}{body}\n}}\n')
    (tmp_path / "noted").mkdir()
    (tmp_path / "exceptions").write_text("# why\nlibc-test *listed none,heap,50ms,output known\n")
    return tmp_path


# As in a background job of a shell, and under nohup.
DEAF = ["sh", "-c", 'trap "" INT QUIT HUP; exec "$0" "$@"']


def foreign(suite, *options):
    argv = [*DEAF, sys.executable, ROOT / "scripts" / "foreign-tests", "--cache", suite / "cache"]
    argv += ["--only", "libc-test", "--source", f"libc-test={suite / 'suite'}", "--timeout", "5"]
    argv += ["--exceptions", suite / "exceptions", "--jobs", "1", *options]
    env = {**environment(preload=False), "noted": str(suite / "noted"), "BUILD": str(BUILD)}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env)


def count(suite, name):
    return len((suite / "noted" / name).read_text())


def test_what_fails_is_named_and_counted(suite):
    done = foreign(suite)
    lines = {line.split(",")[0] for line in done.stdout.splitlines() if "see" in line}
    assert lines == {
        "libc-test functional-hangs_on_a_heap heap: time",
        "libc-test functional-hangs_on_a_heap 50ms: time",
        "libc-test functional-hangs_on_a_heap output: time",
        "libc-test functional-wrong_in_commit_mode 50ms: 3",
        "libc-test functional-wrong_in_commit_mode output: 3",
        "libc-test functional-dies_under_output output: signal 6",
        "libc-test functional-wrong_once none: once: 1",
    }, done.stdout + done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("libc-test  "))
    assert row.split() == "libc-test 8 7 0 1 2 3 1 4".split()
    assert done.returncode == 1
    logs = {path.name for path in (suite / "cache" / "libc-test" / "logs").iterdir()}
    assert "functional-wrong_once.none.log" in logs
    assert "functional-wrong_once.none.again.log" not in logs
    assert "functional-right.heap.log" not in logs
    assert count(suite, "never_right") == 1 and count(suite, "right") == 5
    assert count(suite, "dies_under_output") == 7  # twice in that mode, and once more under glibc


def test_a_run_goes_on_where_it_was(suite):
    first = foreign(suite, "--tests", "*commit*")
    assert count(suite, "wrong_in_commit_mode") == 9
    (results,) = (suite / "cache").glob("*/results.jsonl")
    rows = results.read_text().splitlines(keepends=True)
    assert len(rows) == 5
    results.write_text("".join(rows[:-1]) + rows[-1][:20])  # killed while it wrote the last one
    second = foreign(suite, "--tests", "*commit*")
    assert first.stdout == second.stdout
    assert count(suite, "wrong_in_commit_mode") == 12
    assert foreign(suite, "--tests", "*commit*").stdout == first.stdout
    assert count(suite, "wrong_in_commit_mode") == 12
    assert json.loads(rows[0])["mode"] == "plain"
    again = foreign(suite, "--tests", "none,*commit*", "--again", "--modes", "heap,50ms")
    assert again.returncode == 1 and count(suite, "wrong_in_commit_mode") == 15


def test_what_it_cannot_do_it_says(suite):
    inside = foreign(suite, "--cache", ROOT / "cache")
    assert inside.returncode == 2 and "outside of the repository" in inside.stderr
    (suite / "suite" / "src" / "common" / "none.c").unlink()
    unbuilt = foreign(suite)
    assert unbuilt.returncode == 8 and "src/common has no sources" in unbuilt.stderr
    (suite / "exceptions").write_text("libc-test *listed never\n")
    assert "exceptions:1: not `SUITE TEST MODES REASON`" in foreign(suite).stderr


# In the form of glibc's sources. What passes shows that it was built and called as there.
GLIBC = {
    "support/check.h": "int fine(void);\n",
    "support/support.c": "#include <support/check.h>\nint fine(void) { return 7; }\n",
    "support/inner.c": "#error for glibc's own build\n",
    "include/array_length.h": "#define array_length(a) (sizeof(a) / sizeof((a)[0]))\n",
    "malloc/Makefile": "tst-args-ARGS = --direct -- $(host-test-program-cmd)\n"
    "tst-again-ARGS = $(tst-args-ARGS)\ntst-built-ARGS = $(objpfx)tst-built\n"
    "tests-container := \\\n  tst-contained \\\n  # tests-container\n",
    "malloc/tst-args.c": "#include <array_length.h>\n#include <string.h>\n"
    "#include <support/check.h>\nint main(int argc, char **argv) {\n"
    "    int a[7];\n    return !(argc == 4 && !strcmp(argv[1], \"--direct\") &&\n"
    "             strstr(argv[3], argv[0]) && fine() == array_length(a));\n}\n",
    "malloc/tst-again.c": '#include "tst-args.c"\n',
    "malloc/tst-built.c": "int main(int argc, char **argv) { return argc != 1; }\n",
    "malloc/tst-contained.c": "int main(void) { return 0; }\n",
    "malloc/tst-clock.c": "#include <time.h>\n"
    "int main(void) { return clock_settime(0, 0) < -1; }\n",
    "malloc/tst-inside.c": "#error for glibc's own build\n",
    "elf/tst-other.c": "int main(void) { return 0; }\n",
}


def test_glibc_is_not_built(tmp_path):
    for name, text in GLIBC.items():
        path = tmp_path / "glibc" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    argv = [sys.executable, ROOT / "scripts" / "foreign-tests", "--cache", tmp_path / "cache"]
    argv += ["--only", "glibc", "--source", f"glibc={tmp_path / 'glibc'}", "--modes", "none,output"]
    env = {**environment(preload=False), "BUILD": str(BUILD)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    results = (tmp_path / "cache" / "glibc" / "results.jsonl").read_text().splitlines()
    rows = sorted((row["test"], row["mode"], row["status"]) for row in map(json.loads, results))
    names = [f"malloc/tst-{name}" for name in ("again", "args", "built")]
    assert rows == [(name, mode, "0") for name in names for mode in ("none", "output", "plain")]


def test_two_tests_of_one_name_do_not_meet(tmp_path):
    folder = tmp_path / "ltp" / "conformance" / "interfaces" / "sem_init"
    folder.mkdir(parents=True)
    (tmp_path / "ltp" / "include").mkdir()
    name = json.dumps(str(tmp_path / "name"))
    for test in "3-2", "3-3":
        (folder / f"{test}.c").write_text(
            "#include <fcntl.h>\n#include <unistd.h>\nint main(void) {\n"
            f"    if (open({name}, O_CREAT | O_EXCL, 0600) < 0)\n        return 1;\n"
            f"    sleep(1);\n    return unlink({name}) != 0;\n}}\n"
        )
    argv = [sys.executable, ROOT / "scripts" / "foreign-tests", "--cache", tmp_path / "cache"]
    argv += ["--only", "openposix", "--source", f"openposix={tmp_path / 'ltp'}", "--jobs", "2"]
    env = {**environment(preload=False), "BUILD": str(BUILD)}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    row = next(line for line in done.stdout.splitlines() if line.startswith("openposix  "))
    assert row.split() == "openposix 2 2 0 0 0 0 0 0".split(), done.stdout + done.stderr
