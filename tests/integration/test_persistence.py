# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Real programs whose state outlives them: C++ globals and their destructors, pointers into the
program, and unchanged programs of Debian that keep their state in a global."""

import re
import shutil
import signal
import subprocess

import pytest
from conftest import (
    BUILD,
    compiled,
    fingerprint,
    needs,
    recover,
    recovered,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)

GLOBALS = [
    "app::store",
    "app::shapes",
    "app::title",
    "(anonymous namespace)::names",
    "(anonymous namespace)::owner",
]
MANGLED = ["_ZN3app5storeB5cxx11E", "_ZN3app6shapesE", "_ZN3app5titleB5cxx11E"]


def cpp(*flags, name="pmtest_cpp"):
    needs("g++")
    return compiled("cpp.cc", "-std=c++17", *flags, name=name, compiler="g++")


@pytest.fixture(scope="module")
def program():
    return cpp()


def fixed(argv, heap, roots=None, **settings):
    """Runs a program by pmalloc-run, so that it gets the same addresses each time."""
    settings.setdefault("HEAP", heap)
    return run([tool("pmalloc-run"), "--", *argv], False, ROOTS=roots, **settings)


def figures(done, status=0):
    assert done.returncode == status and not done.stderr, said(done)
    return dict(word.split("=", 1) for word in done.stdout.split(" title=")[0].split())


def is_clean(heap):
    return recover(heap, "--check").returncode == 0


# ---- C++ -----------------------------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.parametrize("end", ["return", "exit", "thread", "quick", "signal", "busy", "kill"])
def test_cpp_globals(program, heap, end):
    """Containers, strings inside and outside of their object, virtual functions. Their destructors
    run and change nothing."""
    for count in range(1, 5):
        done = fixed([program, end], heap, ",".join(GLOBALS) if count == 1 else None)
        found = figures(done, -signal.SIGKILL if end == "kill" else 0)
        exits = (
            0 if end in ("kill", "quick") else count - 1
        )  # main's own handler still reaches the heap
        keys = count * 100 + 1 + (count > 1 and exits > 0 or exits == 0)
        expected = {
            "runs": count,
            "keys": keys,
            "names": count,
            "owned": count,
            "shapes": count,
            "exits": exits,
        }
        expected["sides"] = sum(3 if i % 2 else 4 for i in range(count))
        assert {k: int(found[k]) for k in expected} == expected, said(done)
        assert is_clean(heap) == (end != "kill")
    assert recovered(heap)["roots"] == 5


@pytest.mark.parametrize(
    "flags", ["-pie -fPIE", "-no-pie -fno-pie", "-static-libstdc++ -static-libgcc", "-O2"]
)
def test_cpp_however_built(heap, flags):
    program = cpp(*flags.split(), name="pmtest_cpp" + re.sub("[ =]", "_", flags))
    for count in range(1, 4):
        assert figures(fixed([program], heap, ",".join(MANGLED)))["runs"] == str(count)


def test_cpp_linked_with_the_library(heap):
    """Without the preload. The root is in a shared library of the program."""
    library = cpp("-shared", "-fPIC", "-Dmain=run", name="libpmtest_cpp.so")
    main = BUILD / "integration" / "pmtest_cpp_main.cc"
    main.write_text(
        "int run(int, char **);\nint main(int argc, char **argv) { return run(argc, argv); }\n"
    )
    program = main.with_suffix("")
    folders = [f"-Wl,-rpath,{library.parent}", f"-L{BUILD}", f"-Wl,-rpath,{BUILD}"]
    command = [
        "g++",
        "-o",
        program,
        main,
        library,
        *folders,
        "-Wl,--no-as-needed",
        "-lpmalloc",
        "-lpthread",
    ]
    subprocess.run(command, check=True)
    for count in range(1, 4):
        done = run(
            ["setarch", "-R", program],
            False,
            HEAP=heap,
            ROOTS="libpmtest_cpp.so:app::store,app::shapes",
        )
        assert figures(done)["runs"] == figures(done)["shapes"] == str(count)
        assert is_clean(heap)


def test_static_of_a_function(program, heap):
    """The static is constructed in the first run only, because its guard is restored with it. Its
    destructor waits for the end of the program."""
    for count in range(1, 4):
        found = figures(fixed([program], heap, "log_of()::log"))
        assert (found["lines"], found["built"]) == (str(count + 1), str(int(count == 1)))
        assert is_clean(heap)
    assert recovered(heap)["roots"] == 1  # the guard is a part of the root


def test_static_of_a_function_by_its_symbol_killed(program, heap):
    for count in range(1, 4):
        found = figures(fixed([program, "kill"], heap, "_ZZ6log_ofvE3log"), -signal.SIGKILL)
        assert (found["lines"], found["built"]) == (str(count + 1), str(int(count == 1)))


@pytest.mark.parametrize(
    "spec, part",
    [
        ("store", "did you mean app::store?"),
        ("names", "did you mean (anonymous namespace)::names?"),
        ("app::stores", "no such variable"),
        ("app:store", "no program or library app"),
        ("app::", "write a C++ variable as"),
        ("app::Shape", "no such variable"),
    ],
)
def test_wrong_cpp_names(program, heap, spec, part):
    refuses(run([program], HEAP=heap, ROOTS=spec), "PMALLOC_ROOTS", part)
    assert not heap.exists()


def test_file_local_variables_of_one_name(heap):
    """Two files have a variable of that name. One line names both places; either may be given."""
    folder = BUILD / "integration"
    sources = []
    for which in "ab":
        source = folder / f"pmtest_twice_{which}.c"
        source.write_text(
            f"""#include <stdlib.h>
            struct node {{ struct node *next; }};
            static struct node *list;
            int {which}(void);
            int {which}(void) {{
                int count = 0;
                struct node *new = malloc(sizeof *new);
                new->next = list;
                list = new;
                for (struct node *n = list; n; n = n->next)
                    count++;
                return count;
            }}
            """
        )
        sources.append(str(source))
    main = folder / "pmtest_twice.c"
    main.write_text(
        "#include <stdio.h>\nint a(void), b(void);\n"
        'int main(void) { printf("%d %d\\n", a(), b()); }\n'
    )
    program = folder / "pmtest_twice"
    subprocess.run(["gcc", "-O1", "-o", program, main, *sources], check=True)
    line = refuses(
        run([program], HEAP=heap, ROOTS="list"),
        "2 variables of that name",
        "use one of these ranges",
    )
    ranges = re.findall(r"\+0x[0-9a-f]+/8", line)
    assert len(ranges) == 2
    for count in range(1, 4):
        first, second = map(int, succeeds(run([program], HEAP=heap, ROOTS=ranges[1])).split())
        assert sorted((first, second)) == [1, count]


# ---- which program, and where --------------------------------------------------------------------


def randomised(program, shm):
    """Whether programs get other addresses at each start."""
    heaps = [shm / f"probe{i}" for i in range(2)]
    lines = []
    for heap in heaps:
        succeeds(run([program, "exit"], HEAP=heap, ROOTS="app::title", RANDOMIZE=1))
        lines.append(
            re.search("loaded at.*", succeeds(run([tool("pmalloc-info"), heap], False)))[0]
        )
    return lines[0] != lines[1]


def test_a_program_that_lies_elsewhere_is_told_where_it_matters(program, heap, shm):
    if not randomised(program, shm):
        pytest.skip("address randomisation is off here")
    # The root points to a map of numbers. Nothing points into the program, so nothing is said.
    for count in range(1, 4):
        done = run([program], HEAP=heap, ROOTS="(anonymous namespace)::owner", RANDOMIZE=1)
        assert figures(done)["owned"] == "1"
    shapes = shm / "shapes"
    assert figures(fixed([program], shapes, "app::store,app::shapes"))["shapes"] == "1"
    for _ in range(2):  # the heap remembers what the words mean
        done = run([program], HEAP=shapes, RANDOMIZE=1, REBASE="report")
        lines = [line for line in done.stderr.splitlines() if line.startswith("pmalloc: ")]
        assert len(lines) == 1 and "unset PMALLOC_RANDOMIZE" in lines[0], said(done)
        assert re.match(
            rf"pmalloc: [1-9]\d* words? in {shapes} points? to where {program} lay", lines[0]
        )


def test_a_rebuilt_program_is_told_what_it_breaks(program, heap):
    """The message counts the words that point into the program, or says that there are none. Here
    they stay as they are (test_moved.py: they are changed)."""
    other = cpp("-Wl,--build-id=0x1234567890", name="pmtest_cpp_rebuilt")
    assert figures(fixed([program], heap, "app::store,app::shapes"))["shapes"] == "1"
    done = fixed([other, "kill"], heap, REBASE="report")
    assert re.search(
        r"now 1234567890\): [1-9]\d* words? in the heap points? into such a program", done.stderr
    ), said(done)
    shutil.rmtree(heap)
    assert figures(fixed([program], heap, "(anonymous namespace)::owner"))["owned"] == "1"
    done = fixed([other], heap)
    assert done.returncode == 0 and " owned=1 " in done.stdout, said(done)
    assert (
        "nothing in the heap points into the other one" in done.stderr
        and len(done.stderr.splitlines()) == 1
    )
    figures(fixed([other], heap))


# ---- programs of Debian's ------------------------------------------------------------------------


@pytest.mark.check
def test_bash_keeps_functions_and_aliases(heap):
    """Two pointers to hash tables, which bash makes where they are NULL. bash exports their
    symbols."""
    bash = ["bash", "--norc", "--noprofile"]
    first = (
        'greet() { echo "hello $1 $(echo from a subshell)"; }\n'
        "alias say='echo aliased'\nkill -9 $$\n"
    )
    done = fixed(bash, heap, "shell_functions,aliases", stdin=first)
    assert done.returncode == -signal.SIGKILL and not done.stderr, said(done)
    for i in range(3):
        script = (
            f"shopt -s expand_aliases\nsay {i}\ngreet again | cat\nadded{i}() {{ echo {i}; }}\n"
        )
        script += "".join(f"added{j}\n" for j in range(i + 1)) + (
            "kill -9 $$\n" if i % 2 else "exit 3\n"
        )
        done = fixed(bash, heap, stdin=script)
        assert done.returncode == (-signal.SIGKILL if i % 2 else 3) and not done.stderr, said(done)
        lines = [f"aliased {i}", "hello again from a subshell", *map(str, range(i + 1))]
        assert done.stdout.splitlines() == lines


DC_ROOT = "+0xe8c0/8"  # docs/guide.md: dc 1.07.1-3+b1 of Debian 12 for amd64 ...
DC_BUILD_ID = "19856c2d7f0a61f3bba2136ec3ce9a567745ed61"


def own_variables(path):
    """The .bss of a stripped program, after the part that it shares with libc, as OFFSET/LENGTH."""
    sections = subprocess.run(
        ["readelf", "-SW", path], capture_output=True, text=True, check=True
    ).stdout
    start, size = (
        int(word, 16) for word in re.search(r"\.bss +NOBITS +(\w+) +\w+ +(\w+)", sections).groups()
    )
    shared = subprocess.run(["nm", "-DS", path], capture_output=True, text=True, check=True).stdout
    ends = [
        int(a, 16) + int(b, 16) for a, b in re.findall(r"^(\w{16}) (\w{16}) [BV] ", shared, re.M)
    ]
    first = max([end for end in ends if start <= end <= start + size], default=start)
    return f"+{first:#x}/{start + size - first}"


@pytest.mark.parametrize("root", ["README", "bss"])
def test_dc_keeps_its_stack(heap, root, processes):
    """Names one static pointer of a stripped program, or all its variables, by their place in the
    file."""
    dc = needs("dc")
    notes = subprocess.run(
        ["readelf", "-nW", dc], capture_output=True, text=True, check=True
    ).stdout
    if root == "README" and DC_BUILD_ID not in notes:
        pytest.skip("dc is not the build of Debian 12")
    spec = DC_ROOT if root == "README" else own_variables(dc)
    stack = ["a string", "3", "2", "1"]
    for power in (100, 101, 102):
        process = start([tool("pmalloc-run"), "--", dc], False, HEAP=heap, ROOTS=spec)
        processes.append(process)
        new = "1 2 3 [a string]" if power == 100 else ""
        process.stdin.write(f"{new} 2 {power} ^\n!echo ready\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        process.kill()
        process.wait()
        stack.insert(0, str(2**power))
        done = fixed([dc], heap, stdin="f\n")
        # One of all its variables leads into the stack of main, and that is said.
        lines = [line for line in done.stderr.splitlines() if "of the first thread" not in line]
        assert succeeds(done).split("\n")[:-1] == stack and not lines, said(done)
    before = fingerprint(heap)
    refuses(run(["true"], HEAP=heap), "belongs to dc: run that", "-s PROGRAM=dc")
    assert fingerprint(heap) == before
