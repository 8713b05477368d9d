# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""C libraries: the glibc that the libraries need at least, and PMAlloc built against musl."""

import os
import re
import shutil
import subprocess

import pytest
from conftest import (
    BUILD,
    ROOT,
    ROOTS,
    compiled,
    figures,
    one_message,
    recovered,
    refuses,
    run,
    said,
    succeeds,
)
from test_locks import SOURCES, TRIED, WAITED
from test_sections import killed

OLDEST = (2, 34)  # as README.md says; Debian 12 has 2.36


@pytest.mark.parametrize("commit", ("idle", "output"))
def test_musl_streams_are_not_followed(musl, heap, commit):
    """And the program is told so, in one line."""
    done = musl("kvshell", stdin="set k v\n", HEAP=heap, ROOTS="store", COMMIT=commit)
    assert succeeds(done) == "ok\n"
    one_message(done, f"PMALLOC_COMMIT={commit}", "by stdio is not covered")
    assert succeeds(musl("kvshell", stdin="get k\n", HEAP=heap, ROOTS="store")) == "v\n"


@pytest.mark.parametrize("name", ["libpmalloc_preload.so", "libpmalloc.so"])
def test_oldest_glibc(name):
    done = subprocess.run(
        ["objdump", "-T", BUILD / name], capture_output=True, text=True, check=True
    )
    needed = re.findall(r"\*UND\*.*\(?GLIBC_([\d.]+)\)? +(\w+)", done.stdout)
    assert len(needed) > 40
    newer = {symbol: v for v, symbol in needed if tuple(map(int, v.split("."))) > OLDEST}
    assert not newer, f"glibc 2.34 lacks {newer}"
    assert "GLIBC_PRIVATE" not in done.stdout


def test_no_other_library_is_needed():
    """Any other library would be loaded into every program, too."""
    done = subprocess.run(
        ["readelf", "-d", BUILD / "libpmalloc_preload.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(re.findall(r"NEEDED.*\[(.*)\]", done.stdout)) <= {
        "libc.so.6",
        "ld-linux-x86-64.so.2",
    }


# ---- musl ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def musl():
    """Builds libraries and programs as CONTRIBUTING.md says. Returns a function that runs one of
    the programs."""
    folder = BUILD / "musl"
    command = ["make", "-s", "-j2", "-C", ROOT, "CC=musl-gcc", "CFLAGS=-O0", f"BUILD={folder}"]
    command += [
        folder / "libpmalloc_preload.so",
        *(folder / "apps" / name for name in ["cfrac", "kvshell", *ROOTS]),
    ]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr

    def call(program, *arguments, **settings):
        path = program if os.path.isabs(program) else folder / "apps" / program
        before = ["env", f"LD_PRELOAD={folder}/libpmalloc_preload.so"]
        return run([*before, path, *arguments], preload=False, **settings)

    return call


def test_musl_runs_a_program(musl):
    """cfrac prints its factors, and PMAlloc served its memory."""
    done = musl("cfrac", "17545186520507317056371138836327483792736", STATS=1, BACKING="volatile")
    assert done.returncode == 0 and " = " in done.stdout, said(done)
    assert done.stdout == run([BUILD / "apps" / "cfrac", *done.args[3:]], preload=False).stdout
    assert "pmalloc: " in done.stderr, said(done)


@pytest.mark.parametrize("name", ["list", "skiplist", "hashset", "tree"])
def test_musl_keeps_data(musl, heap, name):
    """Roots, threads, kills and recovery. The tools are linked with glibc and read the heap of a
    musl program."""
    where = {"HEAP": heap, "ROOTS": ROOTS[name]}
    assert figures(succeeds(musl(name, "run", 3000, 1, "-t", 2, **where)))["keys"] > 0
    done = musl(name, "run", 3000, 2, "-t", 2, "-k", **where)
    assert done.returncode == -9, said(done)
    before = figures(succeeds(musl(name, "check", **where)))
    assert recovered(heap)["roots"] == 1
    assert figures(succeeds(musl(name, "check", **where))) == before


@pytest.mark.parametrize("place", ["heap", "root"])
def test_musl_locks_of_the_dead(musl, heap, place):
    """musl's locks look different. test_locks.py has the details."""
    program = compiled(
        SOURCES, "-idirafter", BUILD / "musl/kernel", name="locks_musl", compiler="musl-gcc"
    )
    settings = {"ROOTS": "store,root,root_made", "PROGRAM": "locks_musl"}
    for number, name in enumerate([*TRIED, *WAITED, "sem"]):
        where = {"HEAP": heap.with_name(f"{name}{number}"), **settings}
        assert musl(str(program), "hold", place, name, **where).returncode == -9
        done = musl(str(program), "use", place, name, **where)
        assert succeeds(done) == ("free\n" if name in TRIED else ""), said(done)


LACKS = {
    "PTHREAD_MUTEX_ADAPTIVE_NP": "PTHREAD_MUTEX_NORMAL",
    "PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP": "{{{PTHREAD_MUTEX_ERRORCHECK}}}",
    "pthread_rwlockattr_setkind_np(attr, kind)": "(void)0",
}


# Without patience 6 of 20 kills are torn.
@pytest.mark.parametrize("mode", ["output", "1ms"])
def test_musl_sections_are_whole(musl, heap, mode):
    """musl's locks by their names, all of them. test_sections.py has the details."""
    flags = ["-idirafter", BUILD / "musl/kernel", *(f"-D{name}={LACKS[name]}" for name in LACKS)]
    sources = ["sections.c", "sections_musl.c"]
    program = compiled(sources, *flags, name="sections_musl", compiler="musl-gcc")
    library = BUILD / "musl/libpmalloc_preload.so"
    for number in range(13):
        # The first kill comes after a commit that has something.
        answers = 5 + 3 * number if mode == "output" else 1000 + 50 * number
        told = killed(program, heap, answers, 4, number, preload=library, COMMIT=mode)
        assert not number or ("whole\n" in told and "torn" not in told), told


@pytest.mark.parametrize("settings", [{}, {"RANDOMIZE": 1}, {"COMMIT": "output"}], ids=str)
def test_musl_modules(musl, shm, settings):
    """What musl's dlopen() has loaded is on record; it comes to its place, or words are changed.
    In two builds, which have no build ids. test_moved.py has the details."""
    host = compiled("moved_host.c", name="moved_host_musl", compiler="musl-gcc")
    builds = []
    for number, flags in enumerate(([], ["-O2", "-DNEW"])):
        flags = ["-shared", "-fPIC", *flags]
        name = f"moved_musl{number}.so"
        builds.append(compiled("moved_module.c", *flags, name=name, compiler="musl-gcc"))
    module, places = shm / "module.so", []
    for number, build in enumerate([0, 0, 0, 1, 1, 0, 1]):
        module.unlink(missing_ok=True)
        shutil.copy(builds[build], module)
        arguments = [module, (number + 1) * 4096]
        done = musl(str(host), *arguments, HEAP=shm / "heap", ROOTS="kept", **settings)
        assert done.returncode == -9, said(done)
        right, value, _, place = done.stdout.split()
        assert (right, value) == ("right", "1009"), said(done)
        places.append(place)
    if "RANDOMIZE" not in settings:
        assert len(set(places[:3])) == len(set(places[3:5])) == 1, places


def test_musl_fork(musl, heap):
    program = compiled(
        "limits.c", "-Wno-unused", "-Dmalloc_trim(pad)=0", name="limits_musl", compiler="musl-gcc"
    )
    last = None
    for how in ("alone", "threads"):  # the programs of Debian that "exec" would start need glibc
        done = musl(
            str(program),
            "fork",
            how,
            HEAP=heap,
            ROOTS="items,large,captured",
            PROGRAM="limits_musl",
        )
        found, left = succeeds(done).splitlines()
        assert not done.stderr and last in (None, found), said(done)
        last = left
    done = musl(str(program), "million", HEAP=heap.with_name("other"), ROOTS="million")
    assert (done.returncode, done.stdout, done.stderr) == (-9, "a million\n", ""), said(done)


# Of a library that is loaded with the program. What is more, musl puts elsewhere, and it may be a
# page of the program's that has roots.
MUSLS_PLACE = 104


def test_musl_has_a_place_for_our_thread_local_variables(musl):
    library = BUILD / "musl" / "libpmalloc_preload.so"
    text = subprocess.run(["readelf", "-lW", library], capture_output=True, text=True, check=True)
    (row,) = re.findall(r"(?m)^ +TLS .*$", text.stdout)
    assert int(row.split()[5], 16) <= MUSLS_PLACE


def test_musl_a_root_beside_thread_local_variables(musl, shm):
    """Where these lie in the page of the roots, the program is refused before main.

    musl puts them into a gap at the end of a mapping, the program's or the library's, whichever
    has a piece of their size. Where they come to lie is musl's choice, which changes with the
    library's length and with musl: so each size is refused, or a second run finds all."""
    source = (ROOT / "tests" / "integration" / "limits.c").read_text(encoding="utf-8")
    for size in (64, 160, 300, 512, 800, 1200):
        name = f"much{size}"
        (shm / f"{name}.c").write_text(source + f"_Thread_local char much[{size}];\n")
        command = ["musl-gcc", "-O2", "-w", "-Dmalloc_trim(pad)=0", f"-I{ROOT}/tests/integration"]
        subprocess.run([*command, "-o", shm / name, shm / f"{name}.c"], check=True)
        settings = {"HEAP": shm / f"heap{size}", "ROOTS": "items,large,captured", "PROGRAM": name}
        last = None
        for _ in range(2):
            done = musl(str(shm / name), "fork", "alone", **settings)
            if done.returncode != 0:
                assert (done.returncode, done.stdout) == (125, ""), said(done)
                one_message(done, "thread-local variables", "pmalloc_set_root()")
                continue
            found, left = done.stdout.splitlines()
            assert not done.stderr and last in (None, found), said(done)
            last = left


@pytest.mark.parametrize("commit", ("20ms", "output"))
def test_musl_commits_beside_many_thread_local_variables(musl, shm, commit):
    """The main thread's lie in a mapping of their own then, which begins right below ours."""
    source = shm / "much.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        "_Thread_local char much[16000];\nint *kept;\nint main(void) {\n"
        "    kept = kept ? kept : calloc(1, sizeof *kept);\n    much[15999] = 1;\n"
        '    usleep(100000);\n    printf("%d %d\\n", ++*kept, fork() == 0 ? 0 : 1);\n}\n'
    )
    subprocess.run(["musl-gcc", "-O1", "-o", shm / "much", source], check=True)
    for run_number in (1, 2):
        settings = {"HEAP": shm / "heap", "ROOTS": "kept", "PROGRAM": "much", "COMMIT": commit}
        text = succeeds(musl(str(shm / "much"), **settings))
        assert f"{run_number} 1\n" in text, text


def test_musl_misuse_is_noticed(musl, shm):
    source = shm / "bad.c"
    source.write_text(
        "#include <stdlib.h>\nint main(void) { char *p = malloc(100); free(p); free(p); }\n"
    )
    subprocess.run(["musl-gcc", "-fno-builtin", "-w", "-o", shm / "bad", source], check=True)
    done = musl(str(shm / "bad"), BACKING="volatile")
    assert done.returncode == -6 and "block is free already" in done.stderr, said(done)


def test_glibcs_library_in_a_musl_program_is_no_silence(musl, shm):
    source = shm / "plain.c"
    source.write_text("int main(void) { return 0; }\n")
    subprocess.run(["musl-gcc", "-o", shm / "plain", source], check=True)
    done = run([shm / "plain"], BACKING="volatile")
    assert done.returncode == 127 and "libpmalloc_preload.so" in done.stderr, said(done)


def test_musl_refuses_as_glibc_does(musl, heap):
    refuses(musl("kvshell", HEAP=heap, LIMIT="lots"), "PMALLOC_LIMIT=lots")
    refuses(musl("kvshell", HEAP=heap, ROOTS="no_such"), "no_such")
