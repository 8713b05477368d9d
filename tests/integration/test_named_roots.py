# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc.hpp: roots by name and type, and containers of std::pmr, in programs of both compilers
and two standards. They are killed at random instants, and go on with each other's heaps."""

import json
import os
import shutil
import time

import pytest
from conftest import linked, needs, recover, run, said, start, succeeds

STRICT = ["-Wpedantic", "-Wshadow", "-Wconversion"]
BUILDS = [(compiler, std) for compiler in ("g++", "clang++") for std in ("17", "20")]
KILLS = int(os.environ.get("ROOT_KILLS", "6"))


def build(compiler, std):
    needs(compiler)
    flags, name = [f"-std=c++{std}", *STRICT], f"named-roots-{compiler}-{std}"
    return linked("named_roots.cc", *flags, compiler=compiler, name=name)


@pytest.fixture(params=BUILDS, ids=lambda pair: "-".join(pair))
def program(request):
    return build(*request.param)


def ask(program, *arguments, **settings):
    return succeeds(run([program, *arguments], preload=False, **settings))


@pytest.mark.check
def test_in_this_run_and_in_later_ones(program, heap):
    for number in range(42, 45):
        assert ask(program, HEAP=heap) == f"number {number}\n"
    assert recover(heap, "--check").returncode == 0
    kept = (heap / "superblock").read_bytes()[8192:12288]
    private = [ask(program, HEAP=heap, OPEN="private") for _ in range(2)]
    assert private == ["number 45\n"] * 2
    assert (heap / "superblock").read_bytes()[8192:12288] == kept
    assert ask(program, BACKING="volatile") == "number 42\n"


def killed(program, processes, rng, *arguments, least=0.0, most=0.05, **settings):
    """What it had said until a random instant after its first line. Behind what a text or a vector
    uses, its block may have what it held before: addresses in a stack, of which a start tells."""
    process = start([program, *arguments], preload=False, **settings)
    processes.append(process)
    first = process.stdout.readline()
    time.sleep(rng.uniform(least, most))
    process.kill()
    out, errors = process.stdout.read(), process.stderr.read().splitlines()
    others = [line for line in errors if "into a stack" not in line]
    assert process.wait() == -9 and not others, (first, out, errors)
    return first + out


def test_roots_that_come_and_go_are_whole(program, heap, processes, rng):
    """Without commits: a kill leaves each root whole or not there, and nothing is leaked."""
    seen = set()
    for _ in range(KILLS):
        line = killed(program, processes, rng, "things", HEAP=heap)
        assert line.startswith("ok "), line
        seen.add(line)
    there = int(ask(program, "look", HEAP=heap).split()[1])
    assert len(seen) > 2 and there > 0, seen
    found = json.loads(recover(heap, "--json").stdout)
    # each has seven blocks or so: itself, its entry, two texts, numbers, a map, its node
    assert 6 * there <= found["live_objects"] < 8 * there + 50, (found, there)


def test_containers_are_whole(program, heap, processes, rng):
    """In commit mode: all that was said is there, and no container has half of a change."""
    last = 0
    for _ in range(KILLS):
        lines = killed(program, processes, rng, "tally", HEAP=heap, COMMIT="output").split("\n")
        numbers = [int(line) for line in lines[:-1]]
        assert numbers[0] in (last + 1, last + 2), (last, numbers[:3])
        last = numbers[-1]
        assert int(ask(program, "whole", HEAP=heap, COMMIT="output")) in (last, last + 1)
    assert last > 2 * KILLS


@pytest.mark.parametrize("settings", [{}, {"REBASE": "report"}], ids=["rebased", "as-they-are"])
def test_builds_go_on_with_each_other_s_heaps(heap, shm, settings):
    """Types have one name for all of them, and a resource leads to the functions of the build that
    runs; also where no start makes words lead there."""
    builds = [build(*each) for each in BUILDS]
    for number in range(8):
        shutil.copy(builds[number % 4], shm / "program")
        done = run([shm / "program", "tally", 3], preload=False, HEAP=heap, **settings)
        lines = [str(3 * number + n) for n in (1, 2, 3)]
        assert done.returncode == 0 and done.stdout.split() == lines, said(done)
        (shm / "program").unlink()


@pytest.mark.check
def test_another_type_is_refused(program, heap):
    """By a message with both types; and the heap is as before."""
    ask(program, HEAP=heap)
    for what in ("other", "find"):
        text = ask(program, what, HEAP=heap)
        assert 'the root "number" is a int (4 bytes, aligned to 4), and not a ' in text, text
        assert "large (100 bytes, aligned to 1)" in text
    assert "and not a unsigned int (4 bytes" in ask(program, "drop", HEAP=heap)
    assert ask(program, HEAP=heap) == "number 43\n"


def test_another_size_is_refused(heap, tmp_path):
    (tmp_path / "sized.cc").write_text("""#include "preload/pmalloc.hpp"
#include <cstdio>
struct sized { long numbers[COUNT]; };
int main() {
    try {
        std::printf("%ld\\n", ++pm::root<sized>().numbers[0]);
    } catch (const pm::wrong_type &e) {
        std::puts(e.what());
    }
}
""")
    one, two = [
        linked(
            tmp_path / "sized.cc",
            *["-std=c++17", *STRICT, f"-DCOUNT={count}"],
            compiler="g++",
            name=f"named-sized{count}",
        )
        for count in (1, 2)
    ]
    assert ask(one, HEAP=heap) == "1\n"
    text = ask(two, HEAP=heap)
    assert 'the root "5sized" is a sized (8 bytes, aligned to 8), and not a sized (16' in text
    assert ask(one, HEAP=heap) == "2\n"


def test_without_rtti(heap, tmp_path):
    """Types have the names that the program gives; also in several files of one program."""
    source = """#include "preload/pmalloc.hpp"
#include <string>
struct mine { long n = 0; };
template <> struct pm::type_name<mine> { static const char *get() { return "mine, 2"; } };
"""
    for name, rest in (
        ("first.cc", "long more() { return ++pm::root<mine>().n; }\n"),
        (
            "second.cc",
            "#include <cstdio>\nlong more();\nint main() { more();\n"
            'std::pmr::string text("x", pm::resource());\n'
            'std::printf("%ld %d\\n", more(), pm::find_root<mine>("mine, 2") != nullptr); }\n',
        ),
    ):
        (tmp_path / name).write_text(source + rest)
    files = [tmp_path / "first.cc", tmp_path / "second.cc"]
    flags = ["-std=c++17", "-fno-rtti", *STRICT]
    program = linked(files, *flags, compiler="g++", name="named-roots-no-rtti")
    assert [ask(program, HEAP=heap) for _ in range(2)] == ["2 1\n", "4 1\n"]


def test_a_heap_that_is_opened_by_a_call(heap, tmp_path):
    """What was made before is of the process; resources of earlier runs are renewed after it."""
    (tmp_path / "opens.cc").write_text("""#include "preload/pmalloc.hpp"
#include <cstdio>
#include <vector>
struct kept { std::pmr::vector<int> all{pm::resource()}; };
int main(int, char **argv) {
    pm::root<kept>().all.assign(100, 1);
    if (pmalloc_open(argv[1], 0) != 0)
        return 1;
    auto &all = pm::root<kept>().all;
    for (int i = 0; i < 100; i++)
        all.push_back(i);
    std::printf("%zu\\n", all.size());
}
""")
    flags = ["-std=c++17", *STRICT]
    builds = [
        linked(tmp_path / "opens.cc", *flags, level, compiler="g++", name=f"named-opens{level}")
        for level in ("-O0", "-O2")
    ]
    for number in range(4):
        shutil.copy(builds[number % 2], tmp_path / "opens")
        done = run([tmp_path / "opens", heap], preload=False, REBASE="report")
        assert done.stdout == f"{100 * number + 100}\n", said(done)


def test_a_slot_of_the_program_s_own(program, heap):
    assert ask(program, "slot", HEAP=heap) == "\n"
    text = ask(program, "again", HEAP=heap)
    assert "root slot 511 is that of pm::root<T>(name), and has another pointer" in text
