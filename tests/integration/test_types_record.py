# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What is on record of the types of a heap's data: when it is written, what pmalloc-info shows of
it, what becomes of a damaged one."""

import re
import shutil
import subprocess

import pytest
from conftest import needs
from forge import crc32c
from tool_heaps import INFO, RECOVER, RUN, call, fingerprint, one_line
from type_pairs import MAIN, PAIRS, Place


@pytest.fixture
def place(shm):
    return Place(shm)


# ---- builds without types ------------------------------------------------------------------------


def test_without_debug_information(place):
    """Nothing is compared with a build that has none, and one line says so. What is on record
    stays, and the next build is compared with that."""
    _, first, second, says = PAIRS["member-added"]
    place.put(first, debug="-g0")
    place.goes_on(found="new")
    assert not (place.heap / "types").exists()
    done = call(INFO, "--types", place.heap)
    one_line(done, "pmalloc-info", 8, "has no types on record", "-g")
    place.put(first, "-O1", debug="-g0")
    place.goes_on("-s", "VERBOSE=1", says="has no debug information .* nothing was compared")
    place.put(first)
    place.goes_on("-s", "VERBOSE=1", says="nothing is on record of the build before")
    place.goes_on()
    assert place.types()["last"]
    place.put(second, debug="-g0")
    place.goes_on(says=r"note: .*program has no debug information \(build it with -g\), so its")
    place.goes_on()
    place.put(second)
    place.refused(says)


def test_a_build_that_was_started_without_pmalloc_run(place):
    """Nobody has compared it, and its data are in the heap: so it goes on, and is on record."""
    _, first, second, _ = PAIRS["member-added"]
    place.put(first)
    place.goes_on(found="new")
    place.put(second)
    place.goes_on("--types", "off")
    place.goes_on()
    assert place.types()["last"]
    place.put(first)
    place.refused("struct order has 16 bytes, it had 24: discount is gone")


def test_another_program(place):
    """It is refused as ever, and does not take the place of what is on record."""
    _, first, second, says = PAIRS["member-added"]
    place.put(first)
    place.goes_on(found="new")
    record = (place.heap / "types").read_bytes()
    place.put("struct other { int a; } *root2;\n#define root root2\n")
    done = place.run()
    assert done.returncode == 125 and "root" in done.stderr, done
    assert (place.heap / "types").read_bytes() == record
    place.put(second)
    place.refused(says)


def test_ways_to_go_on(place):
    _, first, second, says = PAIRS["member-added"]
    place.put(first)
    place.goes_on(found="new")
    place.put(second)
    place.refused(says, "-s", "REBASE=look")
    place.refused(says, "-s", "REBASE=only")
    place.refused(says, "-s", "OPEN=private")
    place.refused(says, "--types=check")
    place.goes_on("-s", "REBASE=report", says="note: struct order has 24 bytes")
    assert not place.types()["last"]
    place.put(first)
    place.goes_on()
    place.put(second)
    place.goes_on("--types=ignore", says="note: struct order has 24 bytes, it had 16")
    place.goes_on()
    done = call(RUN, "--types", "perhaps", place.program)
    one_line(done, "pmalloc-run", 125, "--types perhaps: use check, ignore or off")


def test_a_rebase_writes_the_new_types(place):
    _, first, second, _ = PAIRS["same"]
    place.put(first)
    place.goes_on(found="new")
    place.put(second, "-O1")
    before = fingerprint(place.heap)
    done = call(RECOVER, "--rebase", "--dry-run", place.program, place.heap)
    assert done.returncode == 0 and fingerprint(place.heap) == before, done
    record = (place.heap / "types").read_bytes()
    done = call(RECOVER, "--rebase", place.program, place.heap)
    assert done.returncode == 0 and (place.heap / "types").read_bytes() != record, done


# ---- roots ---------------------------------------------------------------------------------------


MEMBERS = """
#include <stdio.h>
#include <stdlib.h>
#include <poll.h>
struct entry { %s };
struct server { int port; %s struct entry *db; struct entry *rows[2]; } server;
int main(void) {
    poll(&(struct pollfd){.fd = -1}, 1, 1);
    int found = server.db != NULL;
    if (!server.db)
        server.db = calloc(1, sizeof *server.db);
    puts(found ? "old" : "new");
    return 0;
}
"""


@pytest.mark.parametrize("when", ["", "@idle"])
def test_members(place, when):
    place.put(MEMBERS % ("int a;", ""))
    place.goes_on(found="new", roots=f"server.db{when},server.rows[1]")
    place.goes_on()
    found = {root["root"]: root for root in place.types()["roots"]}
    assert found["server+0x8/8"]["variable"] == "server.db"
    assert found["server+0x8/8"]["type"] == "struct entry *"
    place.put(MEMBERS % ("int a, b;", ""))
    place.refused(r"struct entry has 8 bytes, it had 4: b is new, reached as \*server\.")
    # The member lies elsewhere: what the root's name says is another one now.
    place.put(MEMBERS % ("int a, b;", "int *more;"))
    root = f"server+0x8/8{when}"
    says = place.refused("the root server.0x8/8 is server.more in this build, it was server.db")
    assert "--rename-root 'server+0x8/8' server.db" in says
    other = f"server+0x18/8{when}"
    for old, new in [(root, f"server.db{when}"), (other, "server.rows[1]")]:
        done = call(RECOVER, "--rename-root", old, new, place.heap)
        assert done.returncode == 0 or old == other, done
    place.refused(r"struct entry has 8 bytes, it had 4: b is new, reached as \*server\.db")
    if not when:
        renamed = Place(place.folder / "renamed")
        renamed.folder.mkdir()
        renamed.put(MEMBERS % ("int a;", ""))
        renamed.goes_on(found="new", roots="server.db")
        renamed.put(MEMBERS.replace("*db", "*store").replace("server.db", "server.store")
                    % ("int a;", ""))
        renamed.goes_on()


def test_whole_objects(place):
    """The root * restores no variable: nothing that only it reaches is read as an old type."""
    both = "struct root { int a; } *root;\nstruct scanned { %s } *scanned;"
    place.put(both % "int a;")
    place.goes_on(found="new", roots="root,*")
    found = {root["root"]: root for root in place.types()["roots"]}
    assert found["*"]["reason"] == "no variable is restored by it"
    assert found["root"]["reaches"]
    place.put(both % "int a, b;")
    place.goes_on()
    place.put("struct root { float a; } *root;")
    place.refused("root->a is a floating-point number")


def test_roots_that_come_later(place):
    text = "struct root { int a; } *root;\nstruct second { int b; } *second;\n"
    place.put(text)
    place.goes_on(found="new")
    assert [root["root"] for root in place.types()["roots"]] == ["root"]
    place.goes_on("-r", "root,second")
    assert {root["root"] for root in place.types()["roots"]} == {"root", "second"}
    place.put(text.replace("int b", "float b"))
    place.refused("second->b is a floating-point number")


# ---- the table -----------------------------------------------------------------------------------


@pytest.mark.check
def test_the_table(place):
    place.put(
        "union u { int i; };\nstruct part { int x : 3, y : 5; double z; };\n"
        "struct root { struct root *next; struct part part[2]; void *p; union u u;"
        " int (*call)(void); } *root;"
    )
    place.goes_on(found="new")
    (root,) = place.types()["roots"]
    ends = {end["at"]: end["why"] for end in root["ends"]}
    assert ends == {"*root->p": "a void pointer", "root->u": "a union",
                    "*root->call": "a function"}
    found = {one["name"]: one for one in place.types()["types"]}
    assert {name: one["size"] for name, one in found.items()} == {
        "struct root": 64, "struct part": 16}
    assert found["struct part"]["members"][1] == {
        "is": "member", "name": "y", "type": "int", "offset": 0, "size": 4, "bit": 3, "bits": 5}
    assert re.fullmatch("[0-9a-f]{16}", found["struct part"]["hash"])
    text = call(INFO, "--types", place.heap).stdout
    assert "root       root: struct root *, 8 bytes\n" in text
    assert "           ends at *root->p: a void pointer\n" in text
    assert "struct part, 16 bytes\n         0  x:3  int\n       0.3  y:5  int\n" in text


def test_a_start_of_the_same_build_reads_no_types(place):
    """Its build id is read, and the table: the debug information is not."""
    needs("strace")
    _, first, second, _ = PAIRS["same"]
    place.put(first)
    place.goes_on(found="new")

    def calls(*arguments):
        log = place.folder / "log"
        call("strace", "-o", log, RUN, *arguments, "-H", place.heap, place.program)
        lines = log.read_text().split("execve(")[1].splitlines()
        return [line for line in lines if not re.search(r"\.so|/etc/ld", line)]

    def reads(lines):
        """The program is mapped whole, once for its names and once more for debug information."""
        return sum(f'"{place.program}"' in line for line in lines if line.startswith("open"))

    off, same = calls("--types=off"), calls()
    assert reads(same) - reads(off) == 1 and len(same) - len(off) < 25
    place.put(second, "-O1")
    assert reads(calls()) - reads(off) == 2


@pytest.mark.check
def test_a_damaged_table(place, rng):
    """A clear line, and never a crash. The data are not damaged."""
    language, first, second, _ = PAIRS["map"]
    place.put(first, language=language)
    place.goes_on(found="new")
    path = place.heap / "types"
    whole = path.read_bytes()
    damaged = [b"", whole[:100], whole[:-1], whole + b"\0", bytes(len(whole))]
    for _ in range(40):
        spoiled = bytearray(whole)
        spoiled[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(spoiled))
    for contents in damaged:
        path.write_bytes(contents)
        done = call(INFO, "--types", place.heap)
        one_line(done, "pmalloc-info", 4, "types is damaged")
    check = call(RECOVER, "--check", place.heap)
    assert check.returncode == 0 and "types is damaged" in check.stdout + check.stderr, check
    place.put(second, language=language)
    place.refused("types, which says of which types the data are: is damaged")
    place.put(first, language=language)
    place.goes_on(says="note: .*types: is damaged, so types are not compared")
    assert path.read_bytes() == whole
    place.goes_on()


def test_a_table_that_cannot_be_read(place):
    """That is not taken for one that is not there."""
    _, first, second, _ = PAIRS["same"]
    place.put(first)
    place.goes_on(found="new")
    path = place.heap / "types"
    whole = path.read_bytes()
    path.unlink()
    path.symlink_to("elsewhere")
    place.put(second, "-O1")
    place.refused("the data are: Too many levels of symbolic links")
    done = call(INFO, "--types", place.heap)
    one_line(done, "pmalloc-info", 8, "types: Too many levels of symbolic links")
    place.put(first)
    place.goes_on(says="note: .*types: Too many levels of symbolic links, so types are not")
    assert path.read_bytes() == whole


def test_a_heap_without_data_has_no_types(place):
    """All its roots were dropped, so nothing is read as another type."""
    _, first, second, _ = PAIRS["member-added"]
    place.put(first)
    place.goes_on(found="new")
    done = call(RECOVER, "--drop-root", "root", "--yes", place.heap)
    assert done.returncode == 0, done
    place.put(second)
    done = place.run("-r", "root", "-s", "ROOTLESS=quiet")
    assert "struct order" not in done.stderr, done


def test_too_much_debug_information(place):
    """It is not read, and a line says so. The program is one whose header says that it is long."""
    _, first, second, _ = PAIRS["member-added"]
    place.put(first)
    place.goes_on(found="new")
    place.put(second)
    data = bytearray(place.program.read_bytes())
    table, size, count = (int.from_bytes(data[at : at + n], "little")
                          for at, n in ((0x28, 8), (0x3A, 2), (0x3C, 2)))
    headers = [table + size * i for i in range(count)]
    names = subprocess.run(["readelf", "-SW", place.program], capture_output=True, text=True,
                           check=True).stdout
    number = int(re.search(r"\[ *(\d+)\] \.debug_info", names)[1])
    data[headers[number] + 32 : headers[number] + 40] = (600 << 20).to_bytes(8, "little")
    place.program.write_bytes(data)
    place.goes_on(says="note: .* 600.0 MiB of debug information, which is too much to read")


def test_a_misspelt_root_makes_no_heap(place):
    place.put(PAIRS["same"][1])
    done = place.run(roots="rooot")
    assert done.returncode == 125 and "rooot" in done.stderr, done
    assert not place.heap.exists()


def test_a_folder_of_others_is_left_alone(place):
    """The library refuses it, and nothing is put into it before."""
    _, first, _, _ = PAIRS["member-added"]
    place.put(first)
    place.heap.mkdir()
    (place.heap / "letter").write_text("dear")
    done = place.run()
    assert done.returncode == 125 and "is not a PMAlloc heap and not empty" in done.stderr, done
    assert [path.name for path in place.heap.iterdir()] == ["letter"]


def test_a_table_of_another_version(place):
    place.put(PAIRS["same"][1])
    place.goes_on(found="new")
    path = place.heap / "types"
    data = bytearray(path.read_bytes())
    data[16] = 9
    data[124:128] = crc32c(bytes(data[:124])).to_bytes(4, "little")
    path.write_bytes(data)
    one_line(call(INFO, "--types", place.heap), "pmalloc-info", 8, "another version of PMAlloc")
    place.goes_on()
    assert place.types()["last"]


def test_forged_numbers(place, rng):
    """With the right checksums: no number in the table is trusted."""
    language, first, second, _ = PAIRS["map"]
    place.put(first, language=language)
    place.goes_on(found="new")
    path = place.heap / "types"
    whole = path.read_bytes()
    place.put(second, language=language)
    for _ in range(60):
        data = bytearray(whole)
        where = rng.choice([rng.randrange(24, 56, 4), rng.randrange(128, len(data) - 4, 4)])
        data[where : where + 4] = rng.choice([b"\xff" * 4, rng.randbytes(4), b"\x05\0\0\0"])
        data[20:24] = crc32c(bytes(data[128:])).to_bytes(4, "little")
        data[124:128] = crc32c(bytes(data[:124])).to_bytes(4, "little")
        path.write_bytes(data)
        assert call(INFO, "--types", place.heap).returncode in (0, 4, 8)
        done = place.run("-s", "REBASE=look")
        assert done.returncode in (0, 125), done


def test_what_stays_in_the_heap_with_its_files(place):
    """A backup has the table, and a heap that is gone has none."""
    _, first, second, says = PAIRS["member-added"]
    place.put(first)
    place.goes_on(found="new")
    copy = Place(place.folder / "copy")
    copy.folder.mkdir()
    backup = shutil.which("pmalloc-backup") or RUN.replace("pmalloc-run", "pmalloc-backup")
    done = call(backup, place.heap, copy.heap)
    assert done.returncode == 0, done
    assert (copy.heap / "types").read_bytes() == (place.heap / "types").read_bytes()
    copy.put(second)
    copy.refused(says)
    copy.put(first)
    copy.goes_on()
    # What an interruption has left is no stranger in the directory of a new heap.
    new = Place(place.folder / "fresh")
    new.folder.mkdir()
    new.heap.mkdir(mode=0o700)
    (new.heap / "types.new").write_bytes(b"part")
    new.put(first)
    new.goes_on(found="new")
    assert not (new.heap / "types.new").exists() and new.types()["last"]


def test_in_use(place):
    """A heap that a process has is not written to; what is on record can be seen."""
    text = MAIN["c"].replace("return 0;", "getchar();\n    return 0;") % PAIRS["same"][1]
    place.put(text)
    place.goes_on(found="new")
    argv = [RUN, "-H", place.heap, place.program]
    with subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as owner:
        owner.stdin.flush()
        record = (place.heap / "types").read_bytes()
        while not call(INFO, place.heap).stderr.startswith("pmalloc-info: note"):
            pass
        assert place.types()["last"]
        other = Place(place.folder / "elsewhere")
        other.folder.mkdir()
        other.put(text, "-O1")
        other.heap = place.heap
        done = other.run()
        assert done.returncode == 125 and "is in use by process" in done.stderr, done
        assert (place.heap / "types").read_bytes() == record
        owner.communicate("\n")


def test_a_fork_that_copies(place):
    """PMALLOC_FORK=copy: the child has a heap of its own, with the same types."""
    text = MAIN["c"].replace("return 0;", "if (fork() == 0) _exit(0);\n    wait(0);\n    return 0;")
    text = text.replace("#include <stdlib.h>",
                        "#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>")
    place.put(text % PAIRS["same"][1])
    place.goes_on("-s", "FORK=copy", found="new")
    (copy,) = place.folder.glob("heap.*")
    assert (copy / "types").read_bytes() == (place.heap / "types").read_bytes()


def test_more_types_than_a_table_has_room_for(place):
    """The nearest to the roots are there, and the rest is said to be left out."""
    count = 17000
    chain = "".join(f"struct s{i} {{ struct s{i + 1} *p; }};\n" for i in range(count))
    place.put("struct s%d;\n" % count + chain + "struct s0 *root;")
    place.goes_on(found="new")
    types = place.types()
    assert types["limited"] and len(types["types"]) > 7000
    assert types["roots"][0]["ends"][0]["why"] == "too many types"


def test_no_heap_is_named(place):
    """Volatile memory and default heaps have no table."""
    place.put(PAIRS["same"][1])
    done = call(RUN, "-s", "BACKING=volatile", "-r", "root", place.program)
    assert done.returncode == 0 and done.stdout == "new\n", done
    assert not place.heap.exists()
