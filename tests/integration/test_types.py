# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Another build of a program must have the types that the heap's data are of: pmalloc-run compares
them, and refuses a build that would read old data in another way. test_types_record.py is about
what is on record."""

import re
import shutil
import subprocess

import pytest
from conftest import needs
from test_root_members import debug_file, stripped  # noqa: F401
from tool_heaps import RECOVER, call
from type_pairs import MAIN, PAIRS, Place


@pytest.fixture
def place(shm):
    return Place(shm)


@pytest.mark.parametrize("pair", PAIRS)
def test_another_version(place, pair):
    language, first, second, says = PAIRS[pair]
    place.put(first, language=language)
    place.goes_on(found="new")
    record = (place.heap / "types").read_bytes()
    place.put(second, "-O1", language=language)
    if says:
        place.refused(says)
        dry = call(RECOVER, "--rebase", "--dry-run", place.program, place.heap)
        assert dry.returncode == 125 and re.search(says, dry.stderr), dry
        assert (place.heap / "types").read_bytes() == record
        place.put(first, language=language)
    place.goes_on()
    build = place.types()
    assert build["last"] and (says or (place.heap / "types").read_bytes() != record)


@pytest.mark.check
@pytest.mark.parametrize("compiler, other", [("gcc", "clang"), ("clang", "gcc")])
@pytest.mark.parametrize("language", ["c", "cc"])
def test_another_compiler(place, compiler, other, language):
    """The names of templates, of tables of functions and of parts without a name differ, and the
    form of the debug information. The types are the same."""
    names = {"gcc": "gcc", "clang": "clang"}
    if language == "cc":
        names = {"gcc": "g++", "clang": "clang++"}
    text = (
        "struct part { unsigned a : 3, b : 7; struct { int x; union { int y; float z; }; }; };\n"
        "struct root { struct part all[3][2]; enum { A } kind; _Bool flag; } *root;"
        if language == "c"
        else "struct Shape { virtual ~Shape() = default; int a; };\n"
        "template <class T, int n> struct Box : Shape { T all[n]; std::map<T, std::string> m; };\n"
        "struct Root { std::shared_ptr<Box<unsigned long, 3>> box; std::vector<bool> v; };\n"
        "Root *root;"
    )
    place.put(text, language=language, compiler=names[compiler])
    place.goes_on(found="new")
    place.put(text, "-gdwarf-4", "-O2", language=language, compiler=names[other])
    place.goes_on()


FORMS = {
    "dwarf-4": ["-gdwarf-4"],
    "type-units": ["-gdwarf-4", "-fdebug-types-section"],
    "type-units-5": ["-gdwarf-5", "-fdebug-types-section"],
    "lto": ["-flto"],
    "split": ["-gsplit-dwarf"],
    "compressed": ["-gz"],
    "no-build-id": ["-Wl,--build-id=none"],
    "static": ["-static-libgcc", "-fno-pie", "-no-pie"],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_debug_information(place, form):
    """Each says the same of both versions."""
    language, first, second, says = PAIRS["map"]
    place.put(first, *FORMS[form], language=language)
    place.goes_on(found="new")
    place.put(second, *FORMS[form], language=language)
    place.refused(says)
    place.put(first, language=language)
    place.goes_on()


def test_debug_information_in_other_files(place):
    """As in Debian's packages: stripped, with what dwz has shared. Where a part is not there, that
    is said."""
    needs("dwz")
    language, first, _, _ = PAIRS["vector"]
    place.put(first, "-gdwarf-4", language=language)
    shutil.copy(place.program, place.folder / "other")
    subprocess.run(
        ["dwz", "-m", place.folder / "shared.debug", place.program, place.folder / "other"],
        check=True,
        capture_output=True,
    )
    place.goes_on(found="new")
    before = place.types()
    assert "struct Item" in {one["name"] for one in before["types"]} and not before["missing"]
    (place.folder / "shared.debug").unlink()
    (place.heap / "types").unlink()
    place.goes_on()
    assert place.types()["missing"].endswith("shared.debug")


def test_a_stripped_program_with_its_debug_file(place, debug_file):  # noqa: F811
    """As an upgrade of a package and of its debug symbols is; or of the package alone."""
    number, debug = debug_file
    other = number[:-1] + ("1" if number[-1] == "0" else "0")
    second = debug.with_name(f"{other[2:]}.debug")
    flags = ["-Wl,--export-dynamic-symbol=root"]
    language, *texts, says = PAIRS["vector"]
    try:
        place.put(texts[0], *flags, f"-Wl,--build-id=0x{number}", language=language)
        stripped(place.program, debug)
        place.goes_on(found="new")
        assert "struct Item" in {one["name"] for one in place.types()["types"]}
        place.put(texts[1], *flags, f"-Wl,--build-id=0x{other}", language=language)
        stripped(place.program, second)
        place.refused(says)
        second.unlink()
        place.goes_on(says="note: .* has no debug information")
    finally:
        second.unlink(missing_ok=True)


def test_split_debug_information_that_is_gone(place):
    language, first, _, _ = PAIRS["member-added"]
    place.put(first, "-gsplit-dwarf", language=language)
    for path in place.folder.glob("*.dwo"):
        path.unlink()
    place.goes_on(found="new")
    (root,) = place.types()["roots"]
    assert "does not have it" in root["reason"] and place.types()["missing"].endswith(".dwo")


def test_what_is_only_declared_where_the_root_is(place):
    """The definition lies in another source file. One name of two types is said, not guessed."""
    main = MAIN["c"] % "struct order;\nstruct root { struct order *p; } *root;"
    one = "struct order { int a; %s }; struct order *%s;\n"
    other = place.folder / "other.c"
    other.write_text(one % ("", "x"))
    place.put(main, str(other))
    place.goes_on(found="new")
    assert place.types()["roots"][0]["ends"] == []
    other.write_text(one % ("int b;", "x"))
    place.put(main, str(other))
    place.refused("struct order has 8 bytes, it had 4: b is new, reached as .root->p")
    second = place.folder / "second.c"
    second.write_text(one % ("int c;", "y"))
    place.put(main, str(other), str(second))
    place.goes_on()
    ends = place.types()["roots"][0]["ends"]
    assert ends == [{"at": "*root->p", "why": "a name that several types have"}]


def test_local_types_of_one_name(place):
    """Two source files may have a struct of one name each. Each root has its own."""
    other = place.folder / "other.c"
    other.write_text("struct local { long a, b; }; struct local *second;\n")
    text = "struct local { int a; };\nstruct root { struct local *p; } *root;\nint n = %d;"
    place.put(text % 1, str(other))
    place.goes_on(found="new", roots="root,second")
    sizes = {one["size"] for one in place.types()["types"] if one["name"] == "struct local"}
    assert sizes == {4, 16}
    place.put(text % 2, str(other))
    place.goes_on()


def test_blocks_are_counted(place):
    language, first, second, _ = PAIRS["member-added"]
    more = "\nstruct order *more(void) { return 0; }"
    main = (MAIN[language] % (first + more)).replace(
        "puts(", "for (int i = 0; !found && i < 1234; i++) { struct order *o = malloc(sizeof *o);"
        " o->next = root->first; root->first = o; }\n    puts("
    )
    place.put(main)
    place.goes_on(found="new")
    place.put(second)
    assert "; 1,235 live blocks have its size (16 bytes)" in place.refused("has 24 bytes")
