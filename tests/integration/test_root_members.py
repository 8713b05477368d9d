# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Roots that are members of variables, such as server.db and table[3].head: the tools find them in
the program's debug information, and the heap keeps them as offsets."""

import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import uuid

import pytest
from conftest import HERE, compiled, refuses, run, succeeds
from tool_heaps import BUILD, INFO, RECOVER, RUN, call, fingerprint, one_line

# The names of members.c and members_cxx.cc, and what these print of them.
C_ROOTS = {
    "server.db": "db", "server.one": "one", "server.inner.deep": "deep",
    "server.rows[1][2]": "row", "table[3].head": "head", "grid[1][2]": "grid",
}
CXX_ROOTS = {
    "app::current.index": "index", "app::current.inherited": "inherited",
    "app::current.second": "second", "app::current.hidden": "hidden",
    "app::current.inside.nested": "nested", "app::state::shared.index": "shared",
    "(anonymous namespace)::quiet.index": "quiet",
}


def built(folder, compiler, *flags, sources=("members.c",)):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    argv = [compiler, "-O1", *flags, "-o", folder / "app", *(HERE / one for one in sources)]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and any(flag.startswith("-flto") for flag in flags):
        pytest.skip("this compiler has no plugin for -flto")
    assert done.returncode == 0, done.stderr
    return folder / "app"


def found(output):
    """Which of the values the program found: they were restored."""
    lines = [line.split() for line in output.splitlines()]
    return {name for name, count in lines if count != "0"}


def keeps(program, heap, roots):
    """The roots are restored, and nothing else is."""
    names = ",".join(roots)
    assert found(succeeds(call(RUN, "-H", heap, "-r", names, program))) == set()
    for more in (["-r", names], []):  # the heap knows them, too
        output = succeeds(call(RUN, "-H", heap, *more, program))
        assert found(output) == set(roots.values()), output


def listed(heap):
    table = json.loads(succeeds(call(INFO, "--json", heap)))["root_table"]
    return {root["root"]: root.get("member") for root in table}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return built(tmp_path_factory.mktemp("app"), "gcc", "-g")


@pytest.mark.check
@pytest.mark.parametrize("compiler, version", [("gcc", 4), ("gcc", 5), ("clang", 4), ("clang", 5)])
def test_members_of_c(compiler, version, tmp_path, heap):
    program = built(tmp_path, compiler, f"-gdwarf-{version}")
    keeps(program, heap, C_ROOTS)
    roots = listed(heap)
    assert set(roots.values()) == set(C_ROOTS)
    assert roots["server+0x8/8"] == "server.db" and roots["table+0x38/8"] == "table[3].head"


@pytest.mark.parametrize(
    "compiler, version", [("g++", 4), ("g++", 5), ("clang++", 4), ("clang++", 5)]
)
def test_members_of_cxx(compiler, version, tmp_path, heap):
    program = built(tmp_path, compiler, f"-gdwarf-{version}", sources=["members_cxx.cc"])
    keeps(program, heap, CXX_ROOTS)
    assert set(listed(heap).values()) == set(CXX_ROOTS)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_members_after_optimization_of_the_whole_program(compiler, tmp_path, heap):
    """Where the linker gives static variables other names."""
    sources = ["members.c", "members_twin.c"]
    program = built(tmp_path, compiler, "-g", "-O2", "-flto", "-DTWIN", sources=sources)
    keeps(program, heap, C_ROOTS)


@pytest.mark.parametrize("when", ["idle", "call"])
def test_late_members(when, heap):
    program = compiled("late_server.c")
    roots = f"server.first@{when},server.count@{when}"
    for expected in ("a nothing .", "b a nothing ."):
        output = succeeds(call(RUN, "-H", heap, "-r", roots, program,
                               stdin=f"restore\nadd {expected[0]}\nlist\nend\n"))
        assert expected in output.replace("\n", " "), output
    assert listed(heap)[f"server+0x40/8@{when}"] == "server.first"


# ---- where the names stand ----------------------------------------------------------------------


@pytest.fixture
def debug_file():
    """Where the debug file of a program with this build id belongs. Folders that were made for it
    go again, so one test at a time has such a file."""
    number = uuid.uuid4().hex
    path = pathlib.Path(f"/usr/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug")
    if os.geteuid() != 0:
        pytest.skip("debug files are put where root alone may write")
    with open(BUILD / "debug-files.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        yield number, path
        path.unlink(missing_ok=True)
        for folder in made:
            folder.rmdir()


def stripped(program, debug):
    """As a package of Debian has it: compressed, and what several files share in a third one."""
    if shutil.which("dwz"):
        other = shutil.copy(program, program.with_name("other"))
        shared = program.with_name("shared.debug")
        subprocess.run(["dwz", "-m", shared, program, other], check=True)
    keep = ["objcopy", "--only-keep-debug", "--compress-debug-sections", program, debug]
    subprocess.run(keep, check=True)
    subprocess.run(["strip", program], check=True)


@pytest.mark.check
@pytest.mark.parametrize("version", [4, 5])
def test_a_stripped_program_with_its_debug_file(version, debug_file, tmp_path, heap):
    number, debug = debug_file
    program = built(tmp_path, "gcc", f"-gdwarf-{version}", f"-Wl,--build-id=0x{number}")
    stripped(program, debug)
    keeps(program, heap, C_ROOTS)
    roots = listed(heap)
    assert set(roots.values()) == set(C_ROOTS)
    assert all(re.fullmatch(r"\+0x[0-9a-f]+/8", root) for root in roots), roots
    tree = json.loads(succeeds(call(INFO, "--tree", "server.db", "--json", heap)))
    assert tree == {"server.db": {"value": 3}}
    other = heap.with_name("whole")  # whole variables, and statics of functions, have names there
    keeps(program, other, {"grid": "grid", "kept.0.head": "local", "server+0x8/8": "db"})
    assert list(listed(other).values()) == ["grid", "local()::kept", "server.db"]
    for root in ("sever.db", "servr.rows[1]"):
        refused = call(RUN, "-H", heap, "-r", root, program)
        one_line(refused, "pmalloc-run", 125, "did you mean server?")
    assert "struct server" in succeeds(call(RUN, "--roots", program))
    debug.unlink()
    assert found(succeeds(call(RUN, "-H", heap, program))) == set(C_ROOTS.values())
    assert set(listed(heap).values()) == {None}
    refused = call(RUN, "-H", heap, "-r", "grid[1]", program)
    one_line(refused, "pmalloc-run", 125, "build it with -g", "-dbgsym", str(debug))
    refused = call(RUN, "-H", heap, "-r", "server.db", program)
    one_line(refused, "pmalloc", 125, "-g", "-dbgsym", "OFFSET/LENGTH")


def test_a_stripped_program_of_cxx(debug_file, tmp_path, heap):
    number, debug = debug_file
    program = built(tmp_path, "g++", "-g", f"-Wl,--build-id=0x{number}", sources=["members_cxx.cc"])
    stripped(program, debug)
    keeps(program, heap, CXX_ROOTS)
    assert set(listed(heap).values()) == set(CXX_ROOTS)
    for root in ("shop::instance()::stock", "shop::instance()::stock.index"):
        refused = call(RUN, "-H", heap, "-r", root, program)
        one_line(refused, "pmalloc-run", 125, "restored with its guard", "stripped program")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("how", ["split", "dwz"])
def test_a_part_of_the_debug_information_is_missing(how, version, tmp_path, heap):
    split = ["-gsplit-dwarf"] if how == "split" else []
    program = built(tmp_path, "gcc", f"-gdwarf-{version}", *split)
    if how == "dwz":
        if not shutil.which("dwz"):
            pytest.skip("dwz is not installed")
        other, shared = shutil.copy(program, tmp_path / "other"), tmp_path / "shared.debug"
        subprocess.run(["dwz", "-m", shared, program, other], check=True)
    else:
        (shared,) = tmp_path.glob("*.dwo")
    keeps(program, heap, {"server.db": "db"})
    shared.unlink()
    for root in ("server.db", "grid[1]"):
        refused = call(RUN, "-H", heap, "-r", root, program)
        one_line(refused, "pmalloc-run", 125, shared.name, "is missing")


def test_a_program_without_types(tmp_path, heap):
    program = built(tmp_path, "gcc")
    refused = call(RUN, "-H", heap, "-r", "server.db", program)
    one_line(refused, "pmalloc-run", 125, "has no types", "build it with -g",
             "name server+OFFSET/LENGTH")
    assert not heap.exists()


# ---- how roots are given ------------------------------------------------------------------------


def test_a_file_of_roots(app, tmp_path, heap):
    names = tmp_path / "roots.txt"
    names.write_text("# mine\n\nserver.db   # a member\ntable[3].head\nserver+0x20/8\n")
    for _ in range(2):
        output = succeeds(call(RUN, "-H", heap, "-r", "@roots.txt", app, cwd=tmp_path))
    assert found(output) == {"db", "head", "one"}
    names.write_text("server.db\n\ntable[4].head\n")
    refused = call(RUN, "-H", heap, "-r", "@roots.txt", app, cwd=tmp_path)
    one_line(refused, "pmalloc-run", 125, "roots.txt line 3", "table has 4 elements")


@pytest.mark.parametrize("way", ["-s", "environment", "wrapper", "PROGRAM"])
def test_ways_to_name_them(way, app, heap):
    for _ in range(2):
        if way == "-s":
            done = call(RUN, "-H", heap, "-s", "ROOTS=server.db", app)
        elif way == "environment":
            done = call(RUN, "-H", heap, app, PMALLOC_ROOTS="server.db")
        elif way == "wrapper":
            done = call(RUN, "-H", heap, "-r", "server.db", "env", "-u", "X", app)
        else:
            done = call(RUN, "-H", heap, "-r", "server.db", "-s", "PROGRAM=a*", "nice", app)
        assert done.returncode == 0, done
    assert found(done.stdout) == {"db"}


def test_a_program_that_is_not_known(app, heap):
    """The shell starts it, so nobody knows which file it is."""
    done = call(RUN, "-H", heap, "-r", "grid[1]", "-s", "PROGRAM=app", "sh", "-c", app)
    one_line(done, "pmalloc-run", 125, "PMALLOC_PROGRAM=app", "SYMBOL+OFFSET/LENGTH")
    done = call(RUN, "-H", heap, "-r", "server.db", "-s", "PROGRAM=app", "sh", "-c", app)
    assert done.returncode == 125 and "server+OFFSET/LENGTH" in done.stderr, done


WRONG = [
    ("server.dbb", "server (struct server) has no member dbb; did you mean db?"),
    ("server.inner.depe", "server.inner (struct {...}) has no member depe; did you mean deep?"),
    ("server.nothing", "has no member nothing, but port, db, commands, ..."),
    ("server.", "the name of a member is missing behind server."),
    ("server.db.value", "server.db is a pointer (struct number *)", "kept anyway: name server.db"),
    ("server.db->value", "server.db is a pointer (struct number *)", "kept anyway"),
    ("elsewhere->db", "elsewhere is a pointer (struct server *)", "name elsewhere"),
    ("elsewhere[0]", "elsewhere is a pointer"),
    ("server->db", "server is no pointer: a '.' stands before a member"),
    ("server.flag", "server.flag is a bit field", "name server, or"),
    ("server.port.x", "server.port (long int) has no members"),
    ("table[4].head", "table has 4 elements, [0] to [3]"),
    ("grid[1][3]", "grid[1] has 3 elements, [0] to [2]"),
    ("grid[1].x", "grid[1] is an array: name an element, as grid[1][0]"),
    ("table.head", "table is an array", "name an element, as table[0]"),
    ("server[0]", "server is no array (struct server)"),
    ("table[x]", "an index is a number"),
    ("table[-1]", "an index is a number"),
    ("table[99999999999999999999]", "table has 4 elements"),
    ("sever.db", "no variable sever", "did you mean server?"),
    ("kept.head", "no variable kept", "did you mean kept.0?"),
    ("nowhere[1]", "no variable nowhere", "--roots", "LIBRARY:SYMBOL+OFFSET/LENGTH"),
    ("own.db", "thread-local"),
    ("main.db", "main is a function"),
    ("server.db+0x0/4", "no +OFFSET/LENGTH stands behind a member"),
    ("grid[1]+0x0/8", "stray '+0x0/8' behind grid[1]"),
    ("libx.so:grid[1]", "libx.so:grid+OFFSET/LENGTH"),
    ("server.db@later", "@idle or @call"),
    ("server.db,server+0x8/8", "named twice"),
]


@pytest.mark.parametrize("root, parts", [(root, parts) for root, *parts in WRONG])
def test_wrong_members(root, parts, app, heap):
    one_line(call(RUN, "-H", heap, "-r", root, app), "pmalloc-run", 125, *parts)
    assert not heap.exists()


TAKEN_APART = r"""
#include <stdio.h>
#include <stdlib.h>
#ifndef KEPT
#define KEPT
#endif
struct state { long runs; };
KEPT static struct state *state;
int main(void) {
    if (!state)
        state = calloc(1, sizeof *state);
    printf("%ld\n", ++state->runs);
}
"""

WRONG_CXX = [
    ("app::pair.same", "in several base classes"),
    ("app::moved.inherited", "virtual base class"),
    ("app::current.shared", "a static member, a variable of its own"),
    ("app::current.indx", "did you mean index?"),
    ("shop::instance()::stock.index", "static of a function", "name shop::instance()::stock"),
    ("current.index", "did you mean app::current?"),
]


@pytest.mark.parametrize("how", ["-O2", "-DKEPT=__attribute__((used))"])
def test_a_variable_that_the_compiler_has_taken_apart(how, tmp_path, heap):
    """clang has the only block of a static pointer in the program itself: state.init, state.body.
    Neither of them is meant."""
    source = tmp_path / "app.c"
    source.write_text(TAKEN_APART)
    program = built(tmp_path, "clang", "-g", "-O2", how, sources=[source])
    first, second = (call(RUN, "-H", heap, "-r", "state", program) for _ in range(2))
    if how != "-O2":
        assert (succeeds(first), succeeds(second)) == ("1\n", "2\n")
        return
    reason = r"for the compiler has made state\.(init|body) of it; declare it __attribute__\(\(used"
    by_name = run([program], HEAP=heap, ROOTS="state")
    of_member = call(RUN, "-H", heap, "-r", "state.runs", program)
    for done, says in ((first, "no such variable in app"), (of_member, "no variable state in"),
                       (by_name, "no such variable in app")):
        assert done.returncode == 125 and says in done.stderr, done
        assert re.search(reason, done.stderr) and "did you mean" not in done.stderr, done
    assert not heap.exists()


SPLIT = r"""
#include <stdio.h>
#include <stdlib.h>
struct shop { long runs; char *name; int open; };
#ifdef __cplusplus
namespace app {
#endif
FILE_LOCAL struct shop server;
long server_port = 80;
#ifdef __cplusplus
}
using app::server;
#endif
int main(int argc, char **argv) {
    if (!server.name)
        server.name = (char *)calloc(100, (size_t)argc);
    server.open += argc;
    printf("%ld %d %s\n", ++server.runs, server.open, server.name);
}
"""


@pytest.mark.parametrize("language, flags", [
    ("c", ("-DFILE_LOCAL=static",)), ("c", ("-DFILE_LOCAL=", "-flto")),
    ("c++", ("-DFILE_LOCAL=static",)), ("c++", ("-DFILE_LOCAL=", "-flto"))])
def test_a_struct_that_the_compiler_has_split(language, flags, tmp_path, heap):
    """clang makes a variable of each member that is used: server.0, server.1."""
    source = tmp_path / "app.c"
    source.write_text(SPLIT)
    program = built(tmp_path, "clang", "-O2", "-x", language, *flags, sources=[source])
    name = {"c": "server", "c++": "app::server"}[language]
    part = r"for the compiler has made (server|_ZN3appL?6serverE)\.[0-2] of it; declare it __attr"
    for root in (name, f"{name}.name"):
        refused = call(RUN, "-H", heap, "-r", root, program)
        assert refused.returncode == 125 and re.search(part, refused.stderr), refused
        assert "did you mean" not in refused.stderr
    assert not heap.exists()
    used = "-DFILE_LOCAL=static __attribute__((used))"
    kept = built(tmp_path, "clang", "-O2", "-x", language, *flags[1:], used, sources=[source])
    counts = [succeeds(call(RUN, "-H", heap, "-r", name, kept)) for _ in range(2)]
    assert counts == ["1 1 \n", "2 2 \n"]


@pytest.mark.parametrize("root, parts", [(root, parts) for root, *parts in WRONG_CXX])
def test_wrong_members_of_cxx(root, parts, heap):
    program = compiled("members_cxx.cc", compiler="g++")
    one_line(call(RUN, "-H", heap, "-r", root, program), "pmalloc-run", 125, *parts)
    assert not heap.exists()


def test_a_library_has_no_members(tmp_path, heap):
    library = tmp_path / "libshelf.so"
    argv = ["gcc", "-g", "-shared", "-fPIC", "-DLIBRARY", "-o", library, HERE / "members_twin.c"]
    subprocess.run(argv, check=True)
    argv = ["gcc", "-g", "-DTWIN", "-o", tmp_path / "app", HERE / "members.c", library,
            f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(argv, check=True)
    program = tmp_path / "app"
    for root in ("libshelf.so:shelf.book", "libshelf.so:shelf.bock"):
        refused = call(RUN, "-H", heap, "-r", root, program)
        one_line(refused, "pmalloc", 125, "shelf+OFFSET/LENGTH")
    refused = call(RUN, "-H", heap, "-r", "shelf.book", program)
    one_line(refused, "pmalloc", 125, "no such variable", "SYMBOL+OFFSET/LENGTH")
    keeps(program, heap, {"libshelf.so:shelf+0x8/8": "other", "twin.head": "twin"})


def test_the_library_itself_knows_no_types(app, heap):
    for root, *parts in (
        ("server.db", "server is one", "server+OFFSET/LENGTH", "pmalloc-run"),
        ("server.db@idle", "server is one", "server+OFFSET/LENGTH", "pmalloc-run"),
        ("nowhere.db", "no such variable", "pmalloc-run", "-dbgsym"),
        ("grid[1]", "pmalloc-run", "SYMBOL+OFFSET/LENGTH"),
        ("server.db->value", "kept anyway"),
    ):
        refuses(run([app], HEAP=heap, ROOTS=root), *parts)
        assert not heap.exists()


# ---- the other tools ----------------------------------------------------------------------------


@pytest.fixture
def filled(app, heap):
    roots = "server+0x8/16,server.inner,table[3],grid[1],server.rows[1][1]"
    succeeds(call(RUN, "-H", heap, "-r", roots, app))
    return heap


def test_info_shows_members(filled):
    roots = listed(filled)
    assert list(roots.values()) == [
        "server.db to server.commands", "server.inner", "table[3]", "grid[1]", "server.rows[1][1]"
    ]
    text = succeeds(call(INFO, filled))
    for root, member in roots.items():
        assert f"  {root} ({member})\n" in text


def tree(heap, root):
    return json.loads(succeeds(call(INFO, "--tree", root, "--json", heap)))[root]


def test_trees_of_members(filled):
    value = {"value": 1}
    both = {"server.db": value, "server.commands": value}
    assert tree(filled, "server+0x8/16") == both
    assert tree(filled, "server.db") == value
    assert tree(filled, "server.inner") == {"before": 0, "deep": value}
    assert tree(filled, "server+0x28/16") == {"before": 0, "deep": value}
    assert tree(filled, "table[3]") == {"count": 1, "head": value}
    assert tree(filled, "table[3].count") == 1
    row = {"grid[1][0]": "NULL", "grid[1][1]": "NULL", "grid[1][2]": value}
    assert tree(filled, "grid[1]") == row and tree(filled, "grid[1][2]") == value
    for root, status, part in (
        ("server.port", 8, "in no root"),
        ("table[2]", 8, "in no root"),
        ("server.dbb", 16, "did you mean db?"),
        ("server.db->value", 16, "is a pointer"),
        ("server+0x8/24", 16, "has no root named"),
        ("server", 16, "has no root named"),
    ):
        one_line(call(INFO, "--tree", root, filled), "pmalloc-info", status, part)


def test_words_that_lead_out_of_members(tmp_path, heap):
    """Where a part of a variable holds them, they have the member's name."""
    source = tmp_path / "out.c"
    source.write_text("""
#include <stdlib.h>
struct { long a; struct { const char *out; const char **block; } in; } held;
int main(void) {
    held.in.out = "constant";
    held.in.block = calloc(2, 8);
    held.in.block[1] = "another";
}""")
    program = tmp_path / "out"
    subprocess.run(["gcc", "-g", "-O0", "-o", program, source], check=True)
    succeeds(call(RUN, "-H", heap, "-r", "held.in", program))
    text = succeeds(call(INFO, "--out", heap))
    assert " held.in.out (a root)\n" in text and " held.in.block[1] (" in text, text


def test_the_tree_of_a_member_of_a_root(app, heap):
    succeeds(call(RUN, "-H", heap, "-r", "server", app))
    assert tree(heap, "server.db") == {"value": 1} and tree(heap, "server.port") == 6379
    assert tree(heap, "server.rows[1]")["server.rows[1][2]"] == {"value": 1}
    one_line(call(INFO, "--tree", "table[3]", heap), "pmalloc-info", 8, "in no root")


def test_trees_of_late_members(app, heap):
    succeeds(call(RUN, "-H", heap, "-r", "server.db", app))
    succeeds(call(RECOVER, "--rename-root", "server.db", "server.db@idle", heap))
    assert list(listed(heap)) == ["server+0x8/8@idle"]
    for name in ("server.db", "server+0x8/8", "server+0x8/8@idle"):
        assert tree(heap, name) == {"value": 1}


def test_roots_that_are_renamed_and_dropped(app, filled):
    before = fingerprint(filled)
    for names, status, part in (
        (("server.inner", "server.inne"), 16, "did you mean inner?"),
        (("server.innre", "server.one"), 16, "did you mean inner?"),
        (("server.inner", "server.db"), 16, "16 bytes"),
        (("server.one", "server.db"), 16, "has no root named 'server.one'"),
    ):
        done = call(RECOVER, "--rename-root", *names, filled)
        assert done.returncode == status and part in done.stderr, done
    assert fingerprint(filled) == before
    succeeds(call(RECOVER, "--rename-root", "grid[1]", "grid[0]", filled))
    assert "grid[0]" in listed(filled).values() and "grid[1]" not in listed(filled).values()
    done = call(RECOVER, "--drop-root", "table[3]", filled)
    assert "'dropped:table+0x30/16'" in done.stdout, done
    assert "table[3]" not in listed(filled).values()
    succeeds(call(RECOVER, "--rename-root", "dropped:table+0x30/16", "table[3]", filled))
    assert "head" in found(succeeds(call(RUN, "-H", filled, app)))


def test_a_member_that_lies_elsewhere_in_a_new_build(app, tmp_path, heap):
    program = shutil.copy(app, tmp_path / "app")
    keeps(program, heap, {"server.db": "db"})
    built(tmp_path, "gcc", "-g", "-DGROWN")
    done = call(RUN, "-H", heap, program)
    assert done.returncode == 125 and "--rename-root 'server+0x8/8'" in done.stderr, done
    refused = call(RECOVER, "--rename-root", "server.db", "server.db", heap)
    one_line(refused, "pmalloc-recover", 8, "another build")  # OLD is a name of the old one
    succeeds(call(RECOVER, "--rename-root", "server+0x8/8", "server.db", heap))
    assert found(succeeds(call(RUN, "-H", heap, program))) == {"db"}
    assert listed(heap) == {"server+0x18/8": "server.db"}
