# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What people ask of a running allocator: statistics, mallinfo, malloc_info, the start line, pmalloc-info --follow."""

import errno
import json
import os
import pty
import re
import shutil
import signal
import stat
import subprocess
import time
import xml.etree.ElementTree

import pytest

from conftest import compiled, environment, fingerprint, one_message, recover, run, said, start, succeeds, tool

INFO = tool("pmalloc-info")


@pytest.fixture(scope="module")
def program():
    return compiled("figures.c", "-Wno-deprecated-declarations", name="pmtest_figures")


class Figures:
    """The program, waiting for the next order."""

    def __init__(self, program, processes, **settings):
        self.process = start([program], **settings)
        processes.append(self.process)

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != "done\n":
            assert line, f"{order}: the program has ended\n{self.process.stderr.read()}"
            lines.append(line)
        return "".join(lines)

    def info(self):
        m = json.loads(self.ask("info"))
        assert m["arena"] == m["uordblks"] + m["fordblks"]
        assert m["keepcost"] <= m["fordblks"] and m["fsmblks"] <= m["fordblks"]
        assert m["old_arena"] == m["arena"]
        return m

    def end(self):
        _, errors = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, errors
        return errors


def look(heap, *arguments):
    return json.loads(succeeds(run([INFO, "--follow", "--count", 1, "--json", *arguments, heap], preload=False)))


# ---- mallinfo, malloc_info ---------------------------------------------------------------------------


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_mallinfo_moves_by_what_is_allocated(program, processes, heap, backing):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", BACKING=backing)
    first = figures.info()
    figures.ask("small 1000 100")  # blocks of 112 bytes
    second = figures.info()
    assert second["uordblks"] - first["uordblks"] == 112 * 1000
    assert (second["hblks"], second["hblkhd"]) == (first["hblks"], first["hblkhd"])
    figures.ask("large 10 100000")
    third = figures.info()
    assert third["uordblks"] == second["uordblks"]
    assert third["hblks"] - second["hblks"] == 10
    assert 10 * 100000 <= third["hblkhd"] - second["hblkhd"] <= 10 * 115000
    figures.ask("free")
    last = figures.info()
    for field in ("uordblks", "hblks", "hblkhd"):
        assert last[field] == first[field], field
    figures.end()


def test_mallinfo_with_threads(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    before = figures.info()
    figures.ask("threads 8")
    amid = figures.info()
    least = 8 * sum(i * 7 % 3000 for i in range(1, 500, 2))
    assert least <= amid["uordblks"] - before["uordblks"] <= least * 1.3 + 8 * 4096
    assert amid["fsmblks"] > before["fsmblks"]
    stats = figures.ask("xml")
    assert int(re.search(r'caches count="(\d+)"', stats)[1]) == 9
    figures.ask("join")
    after = figures.info()
    assert after["fsmblks"] <= before["fsmblks"] + 32768
    # glibc keeps stacks, and with them the threads' thread-local tables
    assert after["uordblks"] <= before["uordblks"] + 8 * 4096
    figures.end()


def test_mallinfo_agrees_with_what_is_on_media(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    for order in ("small 3000 700", "large 5 50000", "large 2 9000000", "trim"):
        figures.ask(order)
        m, seen = figures.info(), look(heap)
        assert seen["settled"] and seen["owner_pid"] == figures.process.pid
        assert seen["slab_bytes"] + m["keepcost"] == m["arena"]
        assert seen["extents"] == m["hblks"] and seen["extent_bytes"] == m["hblkhd"]
        assert seen["slab_bytes"] + seen["extent_bytes"] + seen["free_bytes"] == seen["heap_bytes"]
        assert seen["slabs"] == sum(c["slabs"] for c in seen["classes"])
        assert seen["log_live_entries"] == seen["slabs"] + seen["extents"]
        assert seen["heap_bytes"] == (heap / "heap.0").stat().st_size
    used, large = m["uordblks"], m["hblkhd"]
    figures.process.kill()
    figures.process.wait()
    info = json.loads(succeeds(run([INFO, "--json", heap], preload=False)))
    assert info["slab_bytes"] == seen["slab_bytes"] and info["extent_bytes"] == large
    live = sum(c["live"] * c["size"] for c in info["classes"])
    assert 0.9 * used <= live <= used, "the process knew of blocks that no root reaches, but of few"


def test_malloc_info_is_xml_that_adds_up(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 5000 48")
    figures.ask("large 3 70000")
    m = figures.info()
    root = xml.etree.ElementTree.fromstring(figures.ask("xml"))
    assert root.tag == "malloc"
    sizes = [{k: int(v) for k, v in size.attrib.items()} for size in root.iter("size")]
    assert sum(size["bytes"] * size["used"] for size in sizes) == m["uordblks"]
    assert all(size["used"] <= size["total"] for size in sizes)
    assert next(size for size in sizes if size["bytes"] == 48)["used"] >= 5000
    totals = {total.attrib["type"]: total.attrib for total in root.iter("total")}
    assert int(totals["large"]["size"]) == m["hblkhd"] and int(totals["large"]["count"]) == m["hblks"]
    figures.end()


# ---- statistics --------------------------------------------------------------------------------------


def check_statistics(text):
    """Every sum in the lines is one; the table's columns are those sums."""
    lines = text.splitlines()
    assert lines and all(line.startswith("pmalloc: stats: ") for line in lines), text
    used = [int(n) for n in re.search(r"in use (\d+) bytes = (\d+) in (\d+) small.* \+ (\d+) in (\d+) large", text).groups()]
    assert used[0] == used[1] + used[3]
    heap = [int(n) for n in re.search(r"heap (\d+) bytes = (.*)", text)[0].replace("heap ", "", 1).split() if n.isdigit()]
    assert heap[0] == sum(heap[1:])
    slabs = re.search(r"slabs (\d+) bytes = in use (\d+) \+ cached by (\d+) threads (\d+) \+ free (\d+) \+ .* (\d+)", text)
    total, in_use, _, cached, free, ends = (int(n) for n in slabs.groups())
    assert total == in_use + cached + free + ends == heap[1]
    assert in_use == used[1]
    rows = [[int(n) for n in line.split()[2:]] for line in lines if re.fullmatch(r"pmalloc: stats: [ \d]+", line)]
    assert rows
    for _, _, blocks, row_used, row_cached, row_free in rows:
        assert blocks == row_used + row_cached + row_free
    for column, sum_of in ((3, in_use), (4, cached), (5, free)):
        assert sum(row[0] * row[column] for row in rows) == sum_of
    assert sum(row[1] for row in rows) * 65536 == total
    assert sum(row[3] for row in rows) == used[2]
    arenas = re.findall(r"arena \d+: \d+ threads, (\d+) slabs", text)
    assert sum(map(int, arenas)) == sum(row[1] for row in rows)
    return {"small": used[1], "large": used[3], "slabs": total}


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_statistics_add_up(program, processes, heap, backing):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", BACKING=backing, STATS=1)
    figures.ask("small 20000 33")
    figures.ask("threads 6")
    figures.ask("large 7 123456")
    figures.ask("join")
    m = figures.info()
    stats = check_statistics(text := figures.end())
    assert stats["small"] >= 20000 * 48 and stats["large"] == m["hblkhd"]
    assert ("log" in text and "flushes" in text) == (backing == "file")


def test_malloc_stats_says_the_same(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 100 5000")
    m = figures.info()
    figures.ask("stats")
    stats = check_statistics(figures.end())
    assert stats["small"] == m["uordblks"] and stats["large"] == m["hblkhd"]


def test_entries_that_stand_and_write_backs_are_counted(program, heap):
    done = run([program], stdin="large 50 20000\n", HEAP=heap, ROOTS="held", STATS=1, PERSIST="cache")
    succeeds(done)
    assert int(re.search(r"(\d+) entries stand", done.stderr)[1]) >= 50
    assert int(re.search(r"(\d+) flushes", done.stderr)[1]) >= 50


# ---- the start line ----------------------------------------------------------------------------------


def line_of(done, *parts):
    succeeds(done)
    one_message(done, *parts)
    return done.stderr


def test_start_line_of_each_state(program, heap):
    def once(**settings):
        return run([program], stdin="small 10 100\n", HEAP=heap, VERBOSE=1, **settings)

    line_of(once(), f"heap {heap} (tmpfs: ", "roots: 0 (none)", "; new")
    line_of(once(), "roots: 0 (none)", "; emptied")
    line_of(once(ROOTS="held"), "roots: 1 (held)", "; emptied")
    line_of(once(), "roots: 1 (held)", "; clean: ", " objects, ")
    line_of(once(PERSIST="page"), "plain file: ")
    line_of(once(PERSIST="cache"), "DAX with caches ")
    line_of(once(PERSIST="line"), "DAX with ADR: ")


def test_start_line_after_a_kill(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 1000 100")
    figures.process.kill()
    figures.process.wait()
    line = line_of(run([program], stdin="", HEAP=heap, VERBOSE=1), "; recovered: ")
    assert int(re.search(r"(\d+) objects", line)[1]) >= 1000


def test_start_line_names_kinds_of_roots(program, heap):
    done = run([program], stdin="", HEAP=heap, VERBOSE=1, ROOTS="held,libc.so.6:*")
    line_of(done, "roots: 2 (held, libc.so.6:*)")


def test_start_line_of_volatile_memory(program, processes, heap):
    line_of(run([program], stdin="", BACKING="volatile", VERBOSE=1), "volatile memory", "PMALLOC_BACKING")
    done = run([program], stdin="", PROGRAM="another*", HEAP=heap, VERBOSE=1)
    line_of(done, "volatile memory", "PMALLOC_PROGRAM=another*", "pmtest_figures")
    assert not heap.exists()


def test_start_line_of_descendants(program, heap):
    """One line a process: the owner's, and one of each program that it starts."""
    done = run(["sh", "-c", f"{program} </dev/null; {program} </dev/null; :"], HEAP=heap, VERBOSE=1)
    succeeds(done)
    lines = done.stderr.splitlines()
    assert len(lines) == 3 and lines[0].startswith(f"pmalloc: heap {heap} ("), said(done)
    for line in lines[1:]:
        assert "volatile memory" in line and "descends" in line and str(heap) in line


def test_no_start_line_in_forked_children(heap):
    done = run(["sh", "-c", "(:); (:) & wait"], HEAP=heap, VERBOSE=1)
    succeeds(done)
    one_message(done, "; new")


def test_start_line_where_the_range_is_taken(shm, program):
    """By a library that comes first and has mapped something there."""
    source = shm / "taker.c"
    source.write_text(
        "#define _GNU_SOURCE\n#include <sys/mman.h>\n"
        "__attribute__((constructor)) static void take(void) {\n"
        "    mmap((void *)0x400000000000, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);\n}\n"
        "int main(int argc, char **argv) {\n    take();\n    extern int execv(const char *, char *const[]);\n"
        "    return argc < 0 ? execv(argv[1], argv + 1) : 0;\n}\n"
    )
    taker = shm / "taker.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-z,initfirst", "-o", taker, source], check=True)
    env = environment(VERBOSE=1)
    env["LD_PRELOAD"] += f":{taker}"  # loaded last, so that it is the first
    done = subprocess.run([program], env=env, input="", capture_output=True, text=True, timeout=60, check=False)
    line_of(done, "volatile memory", "nothing is kept", "400000000000 is taken")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a program of another user")
def test_setuid_programs_say_nothing(shm, program):
    copy = shm / "setuid"
    shutil.copy(program, copy)
    shm.chmod(0o755)
    os.chown(copy, 12345, 12345)
    copy.chmod(0o755 | stat.S_ISUID)
    folder = shm / "lib"
    folder.mkdir()
    done = run([copy], stdin="small 10 10\n", VERBOSE=1, STATS=1, HEAP=shm / "heap")
    assert (done.returncode, done.stdout) == (0, "done\n"), said(done)
    assert not (shm / "heap").exists()
    assert "pmalloc" not in done.stderr.replace("libpmalloc", "")


# ---- pmalloc-info --follow ---------------------------------------------------------------------------


def follower(heap, processes, *arguments, **how):
    command = [str(INFO), "--follow", "--interval", "0.05", *arguments, str(heap)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    process = subprocess.Popen(command, env=environment(preload=False), stdin=subprocess.DEVNULL, **how)
    processes.append(process)
    return process


def test_follow_shows_what_happens_and_ends_with_the_owner(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes, "--json")
    first = json.loads(watch.stdout.readline())
    assert first["owner"] in ("sleeping", "running") and first["state"] == "dirty" and first["settled"]
    figures.ask("large 20 1000000")
    while json.loads(watch.stdout.readline())["extents"] != first["extents"] + 20:
        pass
    figures.end()
    *_, last = watch.stdout.read().splitlines()
    last = json.loads(last)
    assert watch.wait(20) == 0 and not watch.stderr.read()
    assert last["state"] == "clean" or last["owner"] == "gone"
    assert recover(heap, "--check").returncode == 0


def test_follow_says_how_the_owner_ended(program, processes, heap):
    for kill, part in ((True, "without a clean close"), (False, "closed cleanly")):
        figures = Figures(program, processes, HEAP=heap, ROOTS="held")
        figures.ask("small 10 10")
        watch = follower(heap, processes)
        assert re.match(r"\d\d:\d\d:\d\d process \d+ \w+; heap ", watch.stdout.readline())
        if kill:
            figures.process.kill()
            figures.process.wait()
        else:
            figures.end()
        assert part in watch.stdout.read().splitlines()[-1]
        assert watch.wait(20) == 0


def test_follow_ends_when_the_heap_goes(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes)
    watch.stdout.readline()
    shutil.rmtree(heap)
    assert "removed" in watch.stdout.read().splitlines()[-1]
    assert watch.wait(20) == 0
    figures.process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_follow_ends_at_an_interrupt(program, processes, heap, number):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes)
    watch.stdout.readline()
    watch.send_signal(number)
    assert watch.wait(20) == 0 and not watch.stderr.read()
    figures.end()


def test_follow_redraws_a_terminal(program, processes, heap):
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 1000 100")
    master, slave = pty.openpty()
    watch = follower(heap, processes, "--count", "2", stdout=slave)
    os.close(slave)
    shown = b""
    try:  # until nobody has the other end open any more
        while piece := os.read(master, 65536):
            shown += piece
    except OSError as error:
        assert error.errno == errno.EIO
    os.close(master)
    assert watch.wait(20) == 0
    shown = shown.decode()
    screens = shown.split("\x1b[H\x1b[J")[1:]
    assert len(screens) == 2
    for screen in screens:
        assert str(heap) in screen and re.search(r"^ *112 +\d", screen, re.MULTILINE), screen
    figures.end()


def test_follow_of_a_heap_that_nobody_has(program, heap):
    done = run([INFO, "--follow", heap], preload=False)
    assert done.returncode == 8 and done.stderr.count("\n") == 1, said(done)
    run([program], stdin="small 10 10\n", HEAP=heap, ROOTS="held")
    before = fingerprint(heap)
    done = run([INFO, "--follow", "--json", heap], preload=False)
    assert done.returncode == 8 and "no process" in json.loads(done.stdout)["error"], said(done)
    assert fingerprint(heap) == before


@pytest.mark.parametrize(
    "arguments",
    [["--interval", "0"], ["--interval", "x"], ["--interval", "1x"], ["--count", "0"], ["--count", "-1"], ["--map"]],
)
def test_follow_with_wrong_arguments(heap, arguments):
    assert run([INFO, "--follow", *arguments, heap], preload=False).returncode == 16
    assert run([INFO, "--count", "1", heap], preload=False).returncode == 16


def test_follow_a_heap_that_changes_beneath_it(processes, heap):
    """Busy threads make and drop extents and slabs, are killed and started anew, while three look on without a pause."""
    churn = compiled("signals.c", name="pmtest_signals")
    end = time.monotonic() + 8
    watchers, kills, settled, looks = [], 0, 0, 0
    while time.monotonic() < end:
        busy = start([churn, "large", 30, 2], HEAP=heap, ROOTS="keep")
        processes.append(busy)
        deadline = time.monotonic() + 20
        while run([INFO, "--follow", "--count", 1, heap], preload=False).returncode and time.monotonic() < deadline:
            assert busy.poll() is None, busy.stderr.read()
        watchers = [follower(heap, processes, "--json", "--interval", "0.01") for _ in range(3)]
        time.sleep(0.7)
        assert busy.poll() is None, busy.stderr.read()
        busy.kill()
        busy.wait()
        kills += 1
        for watch in watchers:
            out, errors = watch.communicate(timeout=30)
            assert watch.returncode == 0 and not errors, errors
            seen = [json.loads(line) for line in out.splitlines()]
            assert seen[-1]["owner"] == "gone" and seen[-1]["state"] == "dirty"
            looks += len(seen)
            settled += sum(line["settled"] for line in seen)
            for line in seen:
                assert line["slab_bytes"] + line["extent_bytes"] <= line["heap_bytes"] or not line["settled"]
    assert kills >= 3 and looks >= 30 and settled >= looks / 2, (kills, looks, settled)
    assert recover(heap, "--check").returncode == 1
    assert recover(heap).returncode == 0


def test_follow_takes_no_lock(program, processes, heap):
    """The next owner finds the heap free while somebody looks on, and the one before is not in his way."""
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    watch = follower(heap, processes)
    watch.stdout.readline()
    held = {line.split()[5] for line in open("/proc/locks", encoding="ascii") if f" {watch.pid} " in line}
    assert not held
    opened = {os.readlink(f"/proc/{watch.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{watch.pid}/fd")}
    flags = [
        int(re.search(r"flags:\s*(\d+)", open(f"/proc/{watch.pid}/fdinfo/{fd}", encoding="ascii").read())[1], 8) & 3
        for fd in os.listdir(f"/proc/{watch.pid}/fd")
        if os.path.exists(f"/proc/{watch.pid}/fd/{fd}")
        and os.readlink(f"/proc/{watch.pid}/fd/{fd}").startswith(str(heap))
    ]
    assert str(heap) in opened and not any(flags), "open for reading only"
    figures.end()
    assert watch.wait(20) == 0
