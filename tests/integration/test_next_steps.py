# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What a new user does wrong, command by command: the line says what is wrong and what to do next,
and no line advises a step that loses data without saying so."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess

import pytest
from conftest import app, busy, compiled, linked, room, succeeds, tmpfs
from tool_heaps import (
    BUILD,
    INFO,
    RECOVER,
    RUN,
    SHELL,
    call,
    clean_environment,
    clean_heap,
    fingerprint,
    one_line,
    originals,
    start_shell,
)  # noqa: F401


def on_terminal(answer, *argv):
    """Runs a tool on a terminal where the user types an answer. Returns status and what it said."""
    master, slave = pty.openpty()
    tool = subprocess.Popen(
        [str(a) for a in argv],
        stdin=slave,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=clean_environment(),
    )
    os.close(slave)
    text = b""
    while b"[yes/no] " not in text:
        text += os.read(master, 4096)
    os.write(master, answer.encode() + b"\n")
    status = tool.wait(60 * busy())
    os.close(master)
    return status, text.decode()


# ---- Steps that lose data.


def test_the_only_root_is_not_dropped_unasked(clean):
    before = fingerprint(clean)
    one_line(
        call(RECOVER, "--drop-root", "store", clean),
        "pmalloc-recover",
        16,
        f"'store' is the only root of {clean}: without it no program finds the data of the heap",
        "objects of",
        "The heap keeps them",
        "--rename-root",
        "nothing was changed: give --yes",
    )
    assert fingerprint(clean) == before
    assert "ok 3000 keys" in succeeds(call(RUN, "-H", clean, SHELL, stdin="verify\n"))


@pytest.mark.parametrize("answer, status", [("no", 16), ("", 16), ("yes", 0)])
def test_a_user_at_a_terminal_is_asked(clean, answer, status):
    got, text = on_terminal(answer, RECOVER, "--drop-root", "store", clean)
    assert got == status and "no program finds the data of the heap" in text
    roots = call(INFO, clean).stdout
    assert "store" in roots and ("dropped:store" in roots) == (status == 0)


def test_one_of_two_roots_is_dropped_unasked(shm):
    heap = shm / "heap"
    succeeds(call(RUN, "-H", heap, "-r", "store,*", SHELL, stdin="set a b\n"))
    assert "dropped:*" in succeeds(call(RECOVER, "--drop-root", "*", heap))  # nothing is lost
    one_line(call(RECOVER, "--drop-root", "dropped:*", heap), "pmalloc-recover", 16, "give --yes")
    assert succeeds(call(RUN, "-H", heap, SHELL, stdin="get a\n")) == "b\n"


def test_a_heap_is_not_made_over_another_one_unasked(shm):
    path = shm / "medium"
    succeeds(call(RECOVER, "--make", "--size", "16M", path))
    succeeds(call(RUN, "-H", path, "-r", "store", SHELL, stdin="set a b\n"))
    one_line(call(RECOVER, "--make", path), "pmalloc-recover", 8, "to lose that", "--force")
    one_line(
        call(RECOVER, "--make", "--force", path),
        "pmalloc-recover",
        16,
        f"{path} holds a heap: a new one there loses all its data",
        "--yes",
    )
    assert succeeds(call(RUN, "-H", path, SHELL, stdin="get a\n")) == "b\n"
    succeeds(call(RECOVER, "--make", "--force", "--yes", path))
    assert succeeds(call(RUN, "-H", path, "-r", "store", SHELL, stdin="get a\n")) == "none\n"


def test_yes_alone_is_no_command(clean):
    one_line(call(RECOVER, "--yes", clean), "pmalloc-recover", 16, "--yes goes with")


# ---- Wrappers, and other programs on a heap.

WRAPPERS = [
    "timeout 50",
    "timeout -k 5 --signal KILL 50",
    "env A=b",
    "env -u HOME LANG=C",
    "nice -n 1",
    "nohup",
    "setsid -w",
    "stdbuf -oL",
    "taskset -c 0",
    "timeout 50 nice env A=b",
    "strace -f -o /dev/null",
    "gdb -q -batch -ex run --args",
]


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_is_seen_through(clean, wrapper):
    argv = wrapper.split()
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not installed")
    commands = clean.parent / "commands"
    commands.write_text("count\n")
    with open(commands, encoding="ascii") as stdin:
        done = subprocess.run(
            [RUN, "-H", clean, *argv, SHELL],
            stdin=stdin,
            capture_output=True,
            text=True,
            env=clean_environment(),
            timeout=60 * busy(),
            check=False,
        )
    assert done.returncode == 0 and "3000" in done.stdout.split(), done
    note = [line for line in done.stderr.splitlines() if line.startswith("pmalloc")]
    assert len(note) == 1 and f"{argv[0]} starts " in note[0], done
    assert "the heap is that one's (PMALLOC_PROGRAM=kvshell)" in note[0]


def test_what_stands_behind_a_wrapper_is_checked(shm):
    one_line(call(RUN, "timeout", "5", "no-such"), "pmalloc-run", 127, "timeout starts no-such: ")
    (shm / "data").write_bytes(b"\0\0")
    (shm / "data").chmod(0o700)
    one_line(call(RUN, "nice", shm / "data"), "pmalloc-run", 126, "nice starts", "neither an ELF")
    one_line(call(RUN, "env", "-i", SHELL), "pmalloc-run", 125, "env clears the environment",
             "`env ... pmalloc-run ...")
    done = call(RUN, "-H", shm / "heap", "-s", "PROGRAM=other", "timeout", "5", SHELL)
    assert (done.returncode, done.stderr) == (0, ""), done  # the user knows better
    assert call(RUN, "env").returncode == 0  # starts nothing: it is the program


def test_sudo_goes_first(shm):
    sudo = shm / "sudo"
    shutil.copy("/bin/true", sudo)
    sudo.chmod(0o4755)
    one_line(call(RUN, sudo, SHELL), "pmalloc-run", 126, "set-user-ID", "`sudo ... pmalloc-run ")


def test_another_program_names_the_one_on_record(clean):
    """As by a wrapper that pmalloc-run does not know."""
    line = call(RUN, "-H", clean, app("tree"), "check")
    assert line.returncode == 125 and line.stdout == "", line
    assert f"The heap {clean} belongs to kvshell: run that." in line.stderr
    assert "If tree starts it: -s PROGRAM=kvshell (PMALLOC_PROGRAM)." in line.stderr
    assert f"`pmalloc-recover --rename-root 'store' NEW {clean}`" in line.stderr
    assert "drop-root" not in line.stderr and "nothing was changed" in line.stderr


def test_another_program_by_exported_settings(clean):
    """Also a stripped one: nothing of its line is cut off, or about the other program."""
    for roots in ({}, {"PMALLOC_ROOTS": "store"}):
        done = call("/bin/true", LD_PRELOAD=f"{BUILD}/libpmalloc_preload.so",
                    PMALLOC_HEAP=str(clean), **roots)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 125 and line.endswith("; nothing was changed"), done
        assert f"The heap {clean} belongs to kvshell" in line
        assert "If true starts it: -s PROGRAM=kvshell (PMALLOC_PROGRAM)" in line
        assert ("is stripped" in line) == bool(roots)


# ---- A heap that nothing reaches.

LOUD = {"PMALLOC_ROOTLESS": "say"}


def test_a_heap_without_roots_is_told_of(shm):
    heap = shm / "heap"
    done = call(RUN, "-H", heap, SHELL, stdin="set a b\n", **LOUD)
    assert done.returncode == 0 and done.stdout == "ok\n", done
    start, end = done.stderr.splitlines()
    assert start.startswith("pmalloc-run: ") and end.startswith("pmalloc: "), done
    assert f"no root is named, and {heap} has none: the next run will find nothing" in start
    assert "give -r NAME, such as one of store (" in start and f"--roots {SHELL}`" in start
    assert re.search(rf"heap {heap} has no root: its \d+ blocks of \d+ bytes are thrown away", end)
    assert "(-r NAME, PMALLOC_ROOTS; " in end and "PMALLOC_ROOTLESS=quiet" in end
    done = call(RUN, "-H", heap, "-s", "COMMIT=output", SHELL, stdin="set a b\n", **LOUD)
    assert len(done.stderr.splitlines()) == 2, done  # commits do not help


def test_what_a_kill_has_left_without_roots_is_told_of(shm):
    heap = shm / "heap"
    shell = subprocess.Popen([RUN, "-H", heap, SHELL], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, env=clean_environment())
    shell.stdin.write("fill 3000 7\n")
    shell.stdin.flush()
    assert shell.stdout.readline()
    shell.kill()
    shell.communicate(timeout=60 * busy())
    done = call(RUN, "-H", heap, "-r", "store", SHELL, stdin="count\n", **LOUD)
    assert done.stdout == "0\n" and done.stderr == "", done  # it has a root now, and is told
    done = call(RUN, "-H", heap, SHELL, stdin="get a\n", **LOUD)
    assert done.stderr == "", done


def test_where_nothing_is_lost_nothing_is_said(shm, clean):
    quiet = [
        ["-H", shm / "a", "-r", "store"],
        ["-H", shm / "b", "-s", "ROOTLESS=quiet"],
        ["-H", clean],
        ["-H", clean, "-s", "OPEN=private"],
        ["-H", shm / "c", "-s", "BACKING=volatile"],
        [],
    ]
    for options in quiet:
        done = call(RUN, *options, SHELL, stdin="get a\n", **LOUD)
        assert (done.returncode, done.stderr) == (0, ""), done


def test_a_program_that_sets_its_roots_itself_is_left_alone(shm):
    slots = linked("slots.c")
    done = call(RUN, "-H", shm / "heap", slots, **LOUD)
    assert "no root is named" not in done.stderr, done


CXX = """#include <map>
#include <string>
#include <vector>
namespace app { std::map<int, std::string> book; static std::vector<int> v; long n; }
struct S {
    std::map<int, int> m;
    static S &instance() { static S store; return store; }
};
int *table[10];
static void (*handler)(int);
const char *names[] = {"a"};
int main() {
    app::book[1] = "x"; app::v.push_back(1); S::instance().m[1] = 2; table[0] = &app::v[0];
    if (handler) handler(1);
    return int(app::n++ + names[0][0] - 'a');
}
"""


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_what_can_be_named_is_listed(shm, compiler):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    (shm / "book.cc").write_text(CXX)
    subprocess.run([compiler, "-g", "-O1", "-o", shm / "book", shm / "book.cc"], check=True)
    listed = succeeds(call(RUN, "--roots", shm / "book"))
    likely, others = listed.split("other variables of book:\n")
    assert likely.startswith("likely roots of book, pointers and containers that are zero")
    rows = {}
    for line in likely.splitlines()[1:] + others.splitlines():
        size, name, kind = re.fullmatch(r" *(\d+)  (?:zero|    )  (\S+) +(.*)", line).groups()
        rows[name] = (int(size), kind)
    wanted = {"app::book": 48, "app::v": 24, "table": 80, "S::instance()::store": 48}
    assert {name for name in rows if name in likely} == set(wanted)
    assert {name: rows[name][0] for name in wanted} == wanted
    assert rows["table"][1] == "int *[10]" and rows["app::book"][1].startswith("map<int, ")
    assert rows["names"] == (8, "char *[1]") and "app::n" in rows and "handler" not in likely
    # Each name is taken as it stands.
    names = ",".join(wanted)
    assert call(RUN, "-H", shm / "heap", "-r", names, shm / "book").returncode == 0


def test_a_stripped_program_has_ranges(shm):
    done = call(RUN, "--roots", SHELL)
    assert "         8  zero  store                       struct store *\n" in done.stdout
    stripped = shm / "kvshell"
    subprocess.run(["strip", "-o", stripped, SHELL], check=True)
    listed = succeeds(call(RUN, "--roots", stripped))
    assert "kvshell is stripped" in listed and "`*` is not" in listed
    (bss,) = re.findall(r"zero  (\+0x\w+/\d+) +section \.bss", listed)
    done = call(RUN, "-H", shm / "heap", "-r", "store", stripped)
    assert done.returncode == 125 and "stripped; name a range, +OFFSET/LENGTH, which is restored" \
        in done.stderr and "* is not restored" in done.stderr, done
    succeeds(call(RUN, "-H", shm / "heap", "-r", bss, stripped, stdin="set a b\n"))
    assert succeeds(call(RUN, "-H", shm / "heap", stripped, stdin="get a\n")) == "b\n"


def test_a_root_that_is_only_scanned_is_told_of(shm):
    """`*` alone: the next run finds empty variables."""
    heap = shm / "heap"
    done = call(RUN, "-H", heap, "-r", "*", SHELL, stdin="set a b\n", **LOUD)
    note, *more = done.stderr.splitlines()
    assert done.stdout == "ok\n" and not more and "the root * keeps alive" in note, done
    assert "restores no variable" in note and "such as one of store (" in note
    assert call(RUN, "-H", heap, SHELL, stdin="get a\n").stdout == "none\n"  # it was right
    done = call(RUN, "-H", shm / "other", "-r", "store,*", SHELL, stdin="set a b\n", **LOUD)
    assert done.stderr == "", done


def test_what_has_no_names_is_told_of(shm):
    one_line(call(RUN, "--roots", "no-such"), "pmalloc-run", 127, "no-such")
    done = call(RUN, "-H", shm / "heap", "-r", "no_such", SHELL)
    assert "no such variable in kvshell; `pmalloc-run --roots PROGRAM` lists" in done.stderr, done


# ---- A root that main sets up anew.

LEFT = "root head led to 1003 objects of 64192 bytes at the start; the program has replaced its"


def anew(heap, *argv, **env):
    options = env.pop("options", ())
    return call(RUN, "-H", heap, *options, compiled("anew.c"), *argv, **LOUD, **env)


@pytest.mark.parametrize("options", [(), ("-s", "COMMIT=output"), ("-s", "COMMIT=idle:1ms")])
@pytest.mark.parametrize("how", ["anew", "late"])
def test_a_root_that_main_replaces_is_told_of(shm, how, options):
    heap = shm / "heap"
    assert succeeds(anew(heap, 1003, "keep", options=("-r", "head"))) == "1003\n"
    done = anew(heap, 2, how, options=options)
    assert done.stdout == "2\n" and LEFT in done.stderr, done
    assert len(done.stderr.splitlines()) == 1 and "the next start frees them" in done.stderr
    report = json.loads(call(RECOVER, "--json", heap).stdout)
    assert report["live_objects"] < 10  # the line was right


def test_a_root_that_is_replaced_is_told_of_while_the_program_runs(shm):
    heap = shm / "heap"
    succeeds(anew(heap, 1003, "keep", options=("-r", "head")))
    server = subprocess.Popen([RUN, "-H", heap, compiled("anew.c"), "0", "anew", "wait"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=clean_environment(**LOUD))
    try:
        assert select.select([server.stderr], [], [], 60)[0], "nothing was said"
        assert LEFT in server.stderr.readline()  # before it ends
    finally:
        server.kill()
        server.communicate()


def test_a_root_that_is_used_is_not_told_of(shm):
    heap = shm / "heap"
    succeeds(anew(heap, 1003, "keep", options=("-r", "head")))
    for count, how, total in ((7, "keep", 1010), (50000, "keep", 51010), (0, "keep", 51010),
                              (1003, "free", 1003), (0, "free", 0), (3, "keep", 3)):
        done = anew(heap, count, how)
        assert (done.stdout, done.stderr) == (f"{total}\n", ""), done


# ---- A full file system.


def test_a_full_file_system_is_told_of_once(shm):
    with tmpfs(shm / "small", 2000) as small:
        done = call(RUN, "-H", small / "heap", "-r", "store", SHELL, stdin="fill 100000 7\n" * 3)
        line = f"pmalloc: no space for the heap {small}/heap: its file system has "
        told = [text for text in done.stderr.splitlines() if text.startswith("pmalloc: ")]
        assert len(told) == 1 and told[0].startswith(line), done
        assert "bytes free, so malloc returns NULL; make room there, enlarge it" in told[0]
        assert f" of {2000 * 4096} bytes" in told[0] and "--shm-size" in told[0]


def test_space_of_a_huge_block_that_others_took(shm):
    with tmpfs(shm / "small", 12000) as small:
        huge = subprocess.Popen([RUN, "-H", small / "heap", "-r", "huge", compiled("huge.c"), "30"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=clean_environment())
        assert huge.stdout.readline() == "ready\n"
        (small / "others").write_bytes(bytes(room(small)))
        _, text = huge.communicate("go\n", timeout=60 * busy())
        assert huge.returncode == -signal.SIGBUS, text
        assert len(text.splitlines()) == 1 and "pmalloc: SIGBUS: a store to 0x" in text
        assert f"the heap {small}/heap found no space" in text and "PMALLOC_RESERVE=strict" in text


# ---- What the run keeps.


@pytest.mark.parametrize("commit", ["output", "output:strict"])
def test_output_that_nobody_reads_makes_no_commit_and_that_is_said(shm, commit):
    for target in ("/dev/null", shm / "out.txt"):
        with open(target, "w", encoding="ascii") as out:
            done = subprocess.run(
                [RUN, "-H", shm / "heap", "-r", "store", "-s", f"COMMIT={commit}", "-s",
                 "VERBOSE=1", SHELL],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True,
                env=clean_environment(), timeout=60 * busy(), check=True)
        (line,) = done.stderr.splitlines()
        no_commit = "; nobody reads standard output, so it makes no commit" in line
        assert no_commit == (target == "/dev/null"), line
    done = call(RUN, "-H", shm / "heap", "-s", f"COMMIT={commit}", "-s", "VERBOSE=1", SHELL)
    assert "standard output" not in done.stderr and "goes back to the last commit" in done.stderr


def test_the_start_line_says_what_a_kill_leaves(shm):
    done = call(RUN, "-H", shm / "heap", "-r", "store", "-s", "VERBOSE=1", SHELL)
    assert "a kill keeps each store before it, so an operation may be half done" in done.stderr


# ---- Looking at a heap in use.


def test_a_heap_in_use_is_looked_at(shm):
    heap = shm / "heap"
    shell = start_shell(heap, "set a b\n")
    try:
        done = call(INFO, heap)
        assert done.returncode == 0 and f"process {shell.pid} " in done.stdout, done
        assert f"note: {heap} is in use by process {shell.pid}" in done.stderr
        done = call(INFO, "--leaks", heap)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert f"bytes of process {shell.pid}" in done.stdout
        done = call(INFO, "--json", heap)
        look = json.loads(done.stdout)
        assert done.returncode == 0 and look["owner_pid"] == shell.pid, done
        assert f"note: {heap} is in use by process {shell.pid}" in done.stderr
        one_line(call(RECOVER, heap), "pmalloc-recover", 8, f"in use by process {shell.pid}",
                 f"`pmalloc-info {heap}` looks at it")
        for option in ("--html", "--map", "--tree=store"):
            done = call(INFO, option, heap)
            assert done.returncode == 8 and f"in use by process {shell.pid}; " in done.stderr, done
            assert f"`pmalloc-backup {heap} DIR` makes a copy to look at" in done.stderr
    finally:
        shell.kill()
        shell.communicate()


# ---- The page.


def test_the_page_fits_a_narrow_screen(clean):
    page = succeeds(call(INFO, "--html", clean))
    assert '<meta name="viewport" content="width=device-width">' in page
    assert "svg{max-width:100%;height:auto}" in page and "@media(max-width:600px)" in page


# ---- A new build.

POINTS = """#include <stdlib.h>
void (*work)(void *);
struct holder { void (*work)(void *); } *holder;
static void here(void *p) { (void)p; }
int main(void) {
    if (!holder) {
        holder = calloc(1, 64);
        holder->work = POINT ? here : NULL;
    }
    return 0;
}
"""


@pytest.mark.parametrize("points", [1, 0])
def test_each_start_of_another_build_says_so(shm, points):
    """Where its words are not changed: until no word points into a program; and it says nothing
    wrong after going back."""
    (shm / "app.c").write_text(POINTS)
    builds = []
    for number in (1, 2):
        builds.append(shm / f"app{number}")
        build_id = f"-Wl,--build-id=0x{number:02x}" + 15 * "11"
        subprocess.run(["cc", f"-DPOINT={points}", build_id, "-o", builds[-1], shm / "app.c"],
                       check=True)
    old, new = builds

    def start(program, *options):
        done = call(RUN, "-H", shm / "heap", "-s", "REBASE=report", *options, program)
        assert done.returncode == 0, done
        return done.stderr

    assert start(old, "-r", "holder") == start(old) == ""
    first, second, back = start(new), start(new), start(old)
    for line in (first, second, back) if points else ():
        assert "1 word in the heap points into such a program" in line
        assert "those that the other one has stored are not valid in this one" in line
        assert "How do I deploy a new build?" in line
    if not points:
        assert "nothing in the heap points into the other one, so that is no harm" in first
        assert second == "" and "nothing in the heap points" in back
