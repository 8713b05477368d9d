# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-run --doctor: what it says of programs, places and this system; and the line that it
prints starts the program."""

import os
import re
import shlex
import shutil
import subprocess

import pytest
from conftest import BUILD, said
from tool_heaps import RUN

KVSHELL = BUILD / "apps/kvshell"

SERVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>
char *data;
int main(int argc, char **argv) {
    (void)argv;
    if (argc < 9)
        return 7;
    return accept(0, 0, 0) + daemon(0, 0) + setgid(1) + (dlopen("x", 1) != 0);
}
"""
FORKS = "#include <unistd.h>\nint count; int main(void) { return fork() > 0; }\n"


def doctor(*words, status=0, **variables):
    """The report, by its words."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PMALLOC_")} | variables
    done = subprocess.run(
        [RUN, "--doctor", *map(str, words)], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status and not done.stderr, said(done)
    report, word = {}, None
    for line in done.stdout.splitlines():
        assert len(line) <= 100 or line.startswith("start"), line
        word = line[:12].strip() or word
        report[word] = report.get(word, "") + " " + line[12:].strip()
    return report


def built(path, source, *flags):
    file = path.with_suffix(".c")
    file.write_text(source)
    subprocess.run(
        [os.environ.get("CC") or "gcc", "-g", "-o", path, file, *flags], check=True, timeout=60
    )
    return path


@pytest.mark.check
def test_its_line_starts_the_program(shm):
    """As it is printed, twice: the second start has what the first one has stored."""
    report = doctor("-H", shm / "store", "-s", "COMMIT=output", KVSHELL)
    assert report["served"].startswith(" yes") and " store" in report["roots"]
    assert "is new" in report["heap"] and "reboot" in report["guarantee"]
    env = os.environ | {"PATH": f"{BUILD}:{os.environ['PATH']}"}
    for typed, answer in ("set a b\n", "ok\n"), ("get a\n", "b\n"):
        done = subprocess.run(
            report["start"], shell=True, env=env, input=typed, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, answer), said(done)
    assert "is a heap" in doctor("-H", shm / "store", KVSHELL)["heap"]


def test_nothing_is_made_or_run(shm):
    witness = built(shm / "witness", "int main(void) { return __builtin_printf(\"ran\"); }\n")
    before = sorted(path.name for path in shm.iterdir())
    report = doctor("-H", shm / "heap", "-r", "x", witness, PMALLOC_VERBOSE="1")
    assert sorted(path.name for path in shm.iterdir()) == before
    assert "ran" not in report and "x is no variable of" in report["roots"], report


def test_manners(shm):
    """What the file tells of forks, rights, modules and answers; and of none of them."""
    report = doctor(built(shm / "server", SERVER))
    assert "(daemon)" in report["processes"] and "FORK=follow" in report["processes"]
    assert "(setgid)" in report["rights"] and "(dlopen)" in report["modules"]
    assert "(accept)" in report["commits"] and "-r data -s COMMIT=output" in report["start"]
    follows = doctor("-s", "FORK=follow", "-s", "COMMIT=1s", shm / "server")
    assert "goes with it" in follows["processes"] and follows["commits"] == " 1s"
    assert "-s COMMIT=1s -s FORK=follow" in follows["start"]
    forks = doctor(built(shm / "forks", FORKS))
    assert "private copy" in forks["processes"] and "-r ROOTS" in forks["start"]
    plain = doctor(built(shm / "plain", "int main(void) { return 0; }\n"))
    assert not {"processes", "rights", "modules", "limits"} & set(plain), plain


def test_programs_that_cannot_be_served(shm):
    static = built(shm / "static", FORKS, "-static")
    assert "statically linked" in doctor(static, status=126)["served"]
    checked = built(shm / "checked", FORKS, "-fsanitize=address")
    assert "AddressSanitizer" in doctor(checked, status=126)["served"]
    assert "no such program" in doctor("no-such-program", status=127)["served"]
    right = built(shm / "right", FORKS)
    right.chmod(0o4755)
    assert "set-user-ID" in doctor(right, status=126)["served"]


def test_other_allocators(shm):
    """A malloc in a library gives way; a runtime's objects are not malloc's."""
    stand_in = shm / "libjemalloc.so.2"
    built(stand_in, "int jemalloc_is_here;\n", "-shared", "-fPIC", "-Wl,-soname,libjemalloc.so.2")
    source = "extern int jemalloc_is_here; int main(void) { return jemalloc_is_here; }\n"
    program = built(shm / "linked", source, f"-Wl,-rpath,{shm}", stand_in)
    assert "libjemalloc.so.2 gives way" in doctor(program)["served"]
    runtime = shm / "libjli.so"
    built(runtime, "int jemalloc_is_here;\n", "-shared", "-fPIC", "-Wl,-soname,libjli.so")
    program = built(shm / "java", source, f"-Wl,-rpath,{shm}", runtime)
    assert "in part: the Java runtime" in doctor(program)["served"]
    python = shm / "python3.99"
    shutil.copy(built(shm / "some", FORKS), python)
    assert "PYTHONMALLOC=malloc" in doctor(python)["served"]


def test_scripts_and_wrappers(shm):
    script = shm / "script"
    script.write_text("#!/bin/sh\n:\n")
    script.chmod(0o755)
    report = doctor(script)
    assert "its interpreter, /bin/sh" in report["program"] and "--holders" in report["roots"]
    report = doctor("timeout", "5", KVSHELL)
    assert "timeout only starts it" in report["program"] and " store" in report["roots"]
    assert report["start"].endswith(f"-r store timeout 5 {KVSHELL}")
    assert "clears the environment" in doctor("env", "-i", KVSHELL)["program"]


def test_a_recipe(shm):
    program = built(shm / "kept", "char *data; int main(void) { return data != 0; }\n")
    notes = subprocess.run(["readelf", "-n", program], capture_output=True, text=True, check=True)
    build_id = re.search(r"Build ID: (\w+)", notes.stdout)[1]
    (shm / "kept.recipe").write_text(
        f"program kept\nbuild {build_id} 1.0 of here\nroots data\nkeeps all of it\n"
        "loses the time of day\n"
    )
    report = doctor("--recipes", shm, program)
    assert "kept.recipe" in report["roots"] and "keeps all of it" in report["roots"], report
    assert "does not keep the time of day" in report["roots"]
    assert report["start"].startswith(" pmalloc-run --recipe -H /dev/shm/kept")


def test_places(shm):
    strange, missing = shm / "strange", shm / "no" / "heap"
    strange.mkdir()
    (strange / "letter").write_text("dear")
    assert "it holds 'letter'" in doctor("-H", strange, KVSHELL, status=1)["heap"]
    report = doctor("-H", missing, KVSHELL, status=1)
    assert f"{missing.parent} is not there" in report["heap"] and "start" not in report
    empty = shm / "empty"
    empty.mkdir()
    assert "is empty" in doctor("-H", empty, KVSHELL)["heap"]
    disk = doctor("-H", BUILD / "heap-of-doctor", KVSHELL)
    assert "reboot" not in disk["guarantee"] or "tmpfs" in disk["guarantee"], disk
    assert not (BUILD / "heap-of-doctor").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_place_that_cannot_be_written(shm):
    """Also for a user who is not root."""
    shm.chmod(0o755)
    other = ["setpriv", "--reuid=65534", "--clear-groups"]
    if subprocess.run([*other, "test", "-x", RUN], timeout=60).returncode:
        pytest.skip(f"no other user reaches {RUN}")
    argv = [*other, RUN, "--doctor", "-H", shm / "heap", "cat"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Permission denied" in done.stdout, said(done)


def test_limits():
    argv = f"ulimit -v 4000000; ulimit -f 1000000; exec {RUN} --doctor {KVSHELL}"
    done = subprocess.run(argv, shell=True, capture_output=True, text=True, timeout=60)
    assert "`ulimit -v` is" in done.stdout and "`ulimit -f` is" in done.stdout, said(done)
    assert "`ulimit -d`" not in done.stdout


def test_words_with_blanks(shm):
    """The line can be typed whatever the words have in them."""
    words = ["it's", "a b", "$HOME", "", "-x"]
    report = doctor("-H", shm / "a heap", "--", KVSHELL, *words)
    typed = shlex.split(report["start"])
    assert typed[-len(words) :] == words and typed[typed.index("-H") + 1] == str(shm / "a heap")
