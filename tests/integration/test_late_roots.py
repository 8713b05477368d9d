# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Late roots: a server that sets its globals up in main goes on with its data (SPEC@idle,
SPEC@call). Until they are restored, whatever ends the process, it is as if it had not started."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import (
    busy,
    compiled,
    environment,
    recover,
    refuses,
    run,
    said,
    start,
    succeeds,
    tool,
)
from programs import free_port, program as found
from test_metrics import metrics

# The words `first` and `count` of it: main's own pointer beside them is no root.
HEAD = 64


@pytest.fixture(scope="module")
def program():
    return compiled("late_server.c")


def words_of(program):
    """The root's spec, without when."""
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    at = next(int(line.split()[0], 16) for line in names.splitlines() if line.endswith(" server"))
    return f"+{at + HEAD:#x}/16"


@pytest.fixture(scope="module")
def words(program):
    return words_of(program)


class Server:
    def __init__(self, program, heap, roots, *arguments, **settings):
        self.process = start(
            [program, *arguments], HEAP=heap, ROOTS=roots, **settings
        )

    def ask(self, request):
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        return self.process.communicate()[1]

    def end(self):
        return self.process.communicate("end\n")[1]


MODES = {
    "none": {},
    "output": {"COMMIT": "output"},
    "idle": {"COMMIT": "idle"},
    "time": {"COMMIT": "20ms"},
    "api": {"COMMIT": "api"},
}


def settled(mode):
    """What is answered under these is committed a little later."""
    time.sleep({"idle": 0.3, "time": 0.5}.get(mode, 0) * busy())


@pytest.mark.parametrize("threads", (0, 3))
@pytest.mark.parametrize("mode", ["none", "output", "idle", "time"])
def test_a_server_goes_on_with_its_data(mode, threads, program, words, place):
    expected = ["nothing"]
    for generation in range(4):
        server = Server(program, place, f"{words}@idle", "threads", threads, **MODES[mode])
        if generation:
            assert server.ask("list").split() == [*expected, "."]
        for i in range(3):
            expected.insert(0, f"{generation}-{i}")
            assert server.ask(f"add {expected[0]}") == f"ok {len(expected) - 1}"
        settled(mode)
        if generation % 2:
            server.end()
        else:
            server.kill()


@pytest.mark.parametrize("mode", ["none", "output"])
def test_a_request_that_is_found_without_a_wait(mode, program, words, heap):
    """As by redis, whose first look at its sockets does not wait. It has the old data."""
    expected = []
    for generation in range(4):
        server = Server(program, heap, f"{words}@idle", "looks", **MODES[mode])
        assert not generation or server.ask("list").split() == [*expected, "nothing", "."]
        expected.insert(0, f"g{generation}")
        assert server.ask(f"add {expected[0]}") == f"ok {len(expected)}"
        server.kill()


def test_one_that_takes_long_to_set_itself_up(program, words, heap):
    """What has come meanwhile is answered from the old data, too."""
    server = Server(program, heap, f"{words}@idle")
    assert server.ask("add a") == "ok 1"
    server.kill()
    server = Server(program, heap, f"{words}@idle", "slow")
    assert server.ask("list").split() == ["a", "nothing", "."]
    server.kill()


def test_its_descriptors_have_the_lowest_numbers(program, words, heap):
    """As in nbdkit, which puts others in the place of its standard input and output."""
    server = Server(program, heap, f"{words}@idle", "fds")
    assert server.ask("add a") == "ok 1", server.process.wait()
    server.end()


@pytest.mark.parametrize("mode", ["none", "output", "idle"])
@pytest.mark.parametrize("how", ["netlink", "pipe", "eventfd", "pipe asks", "eventfd asks"])
def test_what_it_asks_and_tells_itself_is_its_set_up(how, mode, program, words, heap):
    """As by dnsmasq, which asks the kernel before it makes its cache, and empties it after that."""
    expected = []
    for generation in range(4):
        server = Server(program, heap, f"{words}@idle", *how.split(), **MODES[mode])
        if generation:
            assert server.ask("list").split() == [*expected, "nothing", "."]
        expected.insert(0, f"g{generation}")
        assert server.ask(f"add {expected[0]}") == f"ok {len(expected)}"
        settled(mode)
        server.kill()


@pytest.mark.parametrize("mode", ["none", "output", "idle", "time"])
@pytest.mark.parametrize("grows", [False, True])
def test_the_image_is_in_a_commit_of_its_own(mode, grows, place):
    """Nothing on its page changes after the moment, and the journal has a commit from before it."""
    program = compiled("late_server.c", "-DSTILL", name="late_server_still")
    count = 0
    for generation in range(4):
        arguments = ["grows"] if grows else []
        root = f"{words_of(program)}@idle"
        server = Server(program, place, root, *arguments, **MODES[mode])
        assert not grows or server.process.stdout.readline() == "grown\n"
        for _ in range(1 + generation % 2):
            count += 1
            assert server.ask("add x") == f"ok {count}"
        settled(mode)
        server.kill()


@pytest.mark.check
def test_without_it_the_data_are_lost(program, words, heap):
    """So that the tests here can fail: main replaces what was restored before it."""
    server = Server(program, heap, words)
    server.ask("add a")
    server.kill()
    server = Server(program, heap, words)
    assert server.ask("list") == "nothing ."
    server.kill()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["kill", "end"])
def test_before_the_moment_it_is_as_if_it_had_not_started(mode, end, program, words, place):
    first = Server(program, place, f"{words}@call", **MODES[mode])
    assert first.ask("restore") == "restored"
    first.ask("add a")
    first.ask("add b")
    settled(mode)
    first.end()
    for _ in range(3):
        other = Server(program, place, f"{words}@call", "threads", 1, **MODES[mode])
        assert other.ask("list") == "nothing ."
        other.ask("add x")
        settled(mode)
        line = getattr(other, end)()
        assert ("were not restored" in line) == (end == "end"), line
    last = Server(program, place, f"{words}@call", **MODES[mode])
    assert last.ask("restore") == "restored"
    assert last.ask("restore") == "No such file or directory"
    assert last.ask("list").split() == ["b", "a", "nothing", "."]
    last.end()
    assert recover(place).returncode == 0


@pytest.mark.parametrize("mode", ["none", "output"])
def test_kills_at_any_instant(mode, program, words, place, rng):
    """Also while the roots are being restored. What was answered is there."""
    expected, added = ["nothing"], 0
    for _ in range(25):
        threads = rng.choice((0, 2))
        server = Server(program, place, f"{words}@idle", "threads", threads, **MODES[mode])
        if rng.random() < 0.6:
            time.sleep(rng.random() * 0.05)
        else:
            found = server.ask("list").split()
            assert found in ([*expected, "."], [f"t{added}", *expected, "."])
            expected = found[:-1]
            for _ in range(rng.randrange(4)):
                added += 1
                assert server.ask(f"add t{added}").startswith("ok")
                expected.insert(0, f"t{added}")
        server.kill()


def test_a_program_that_is_never_idle_is_told(program, words, heap):
    server = Server(program, heap, f"{words}@idle")
    server.ask("add a")
    server.end()
    busy = Server(program, heap, f"{words}@idle", "busy")
    assert busy.ask("list") == "nothing ."
    time.sleep(5.5)
    assert busy.ask("list") == "nothing ."
    line = busy.end()
    assert line.count("late roots wait") == 1 and "pmalloc_restore()" in line, line
    server = Server(program, heap, f"{words}@idle")
    assert server.ask("list").split() == ["a", "nothing", "."]
    server.end()


def late(heap):
    """How many late roots the metrics tell, and how many of them wait."""
    found = metrics(heap)
    return tuple(found[f"pmalloc_late_roots{end}", str(heap)] for end in ("", "_waiting"))


def test_the_heap_says_when(program, words, heap):
    """PMALLOC_ROOTS need not say it again, and --rename-root changes it."""
    server = Server(program, heap, f"{words}@idle")
    server.ask("add a")
    server.kill()
    for roots in (None, words):
        server = Server(program, heap, roots, VERBOSE="1")
        assert server.ask("list").split() == ["a", "nothing", "."]
        assert "when it is idle" in server.end()
    shown = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    (root,) = shown["root_table"]
    assert root["root"].endswith("@idle") and root["waits"] is False
    done = recover(heap, "--rename-root", root["root"], root["root"].replace("@idle", "@call"))
    assert done.returncode == 0, said(done)
    assert late(heap) == (1, 0)
    server = Server(program, heap, None)
    assert server.ask("list") == "nothing ."
    assert late(heap) == (1, 1)
    server.kill()
    assert late(heap) == (1, 1)
    shown = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert shown["root_table"][0]["waits"] is True
    assert "not restored" in succeeds(run([tool("pmalloc-info"), heap], preload=False))
    server = Server(program, heap, None)
    assert server.ask("restore") == "restored"
    assert server.ask("list").split() == ["a", "nothing", "."]
    assert late(heap) == (1, 0)
    server.end()


@pytest.mark.parametrize("when, told", [("idle", "when it is idle"), ("call", "at its call")])
def test_the_start_line_of_a_new_heap(when, told, program, words, heap):
    """It has no late root yet, and will have them. What it says is no news for itself."""
    early = f"+{int(words[1:].split('/')[0], 16) - HEAD:#x}/32"
    for state in ("new", "clean"):
        roots = f"{early},{words}@{when}" if state == "new" else None
        server = Server(program, heap, roots, VERBOSE="1")
        assert server.ask("list") == "nothing ."
        assert when == "idle" or server.ask("restore") == "restored"
        line = server.end()
        assert f"roots: 2 ({early}, {words} {told}); {state}" in line, line
        assert "the late roots are restored" in line, line


@pytest.mark.parametrize("mode", ["none", "output"])
def test_one_that_has_no_room(mode, shm):
    """The start is refused, not the moment at which it would be captured."""
    program = compiled("late_server.c", f"-DLARGE={20 << 20}", name="late_server_large")
    words, medium = words_of(program), shm / "medium"
    done = recover(medium, "--make", "--size", "64M", "--journal", "8M")
    assert done.returncode == 0, said(done)
    refuses(run([program], HEAP=medium, ROOTS="large@idle", **MODES[mode]), "no room can be made")
    server = Server(program, medium, f"{words}@idle", **MODES[mode])
    assert server.ask("add a") == "ok 1"
    server.kill()
    done = run([program], HEAP=medium, ROOTS=f"{words}@idle,large@call", **MODES[mode])
    refuses(done, "no room can be made")
    server = Server(program, medium, None, **MODES[mode])
    assert server.ask("list").split() == ["a", "nothing", "."]
    server.kill()


def test_an_early_root_beside_a_late_one(program, words, heap):
    """They may lie on one page."""
    early = f"+{int(words[1:].split('/')[0], 16) - HEAD:#x}/32"
    for generation in range(3):
        server = Server(program, heap, f"{early},{words}@idle")
        expected = [f"g{i}" for i in reversed(range(generation))]
        if generation:
            assert server.ask("list").split() == [*expected, "nothing", "."]
        server.ask(f"add g{generation}")
        server.kill()


@pytest.mark.parametrize("collect", ["later", "background", "always"])
def test_collections(collect, program, words, heap):
    expected = []
    for generation in range(3):
        server = Server(program, heap, f"{words}@idle", COMMIT="output", COLLECT=collect)
        assert not generation or server.ask("list").split() == [*expected, "nothing", "."]
        expected.insert(0, f"g{generation}")
        server.ask(f"add {expected[0]}")
        server.kill()
    assert recover(heap).returncode == 0


def test_a_collection_beside_the_program_does_not_delay_them(shm):
    """It takes some seconds here, and a client would be answered from an empty database."""
    roots = redis_roots(shm)
    settings = {"COMMIT": "idle", "COLLECT": "background", "VERBOSE": "1"}
    redis = Redis(shm / "heap", roots, shm, **settings)
    redis.ask("debug", "populate", "300000", "key", "30")
    time.sleep(2 * busy())
    redis.stop(signal.SIGKILL)
    redis = Redis(shm / "heap", roots, shm, **settings)
    try:
        assert redis.ask("dbsize") == "300000"
    finally:
        said = redis.stop(signal.SIGKILL)[1].decode()
    assert "collected beside" not in said.partition("late roots are restored")[0], said


def test_a_copy_in_memory(program, words, shm):
    """PMALLOC_COMMIT_DIR."""
    settings = {"COMMIT": "output", "COMMIT_DIR": shm / "there"}
    (shm / "there").mkdir()
    for generation in range(3):
        server = Server(program, None, f"{words}@idle", **settings)
        expected = [f"g{i}" for i in reversed(range(generation))]
        assert not generation or server.ask("list").split() == [*expected, "nothing", "."]
        server.ask(f"add g{generation}")
        server.kill()


def test_a_private_opening_keeps_nothing(program, words, heap):
    server = Server(program, heap, f"{words}@idle")
    server.ask("add a")
    server.kill()
    for _ in range(2):
        server = Server(program, heap, f"{words}@idle", OPEN="private")
        assert server.ask("list").split() == ["a", "nothing", "."]
        server.ask("add b")
        server.end()


@pytest.mark.parametrize("mode", ["none", "output"])
def test_a_fixed_medium(mode, program, words, shm):
    medium, expected = shm / "medium", []
    done = recover(medium, "--make", "--size", "64M", "--journal", "8M")
    assert done.returncode == 0, said(done)
    for generation in range(3):
        server = Server(program, medium, f"{words}@idle", **MODES[mode])
        assert not generation or server.ask("list").split() == [*expected, "nothing", "."]
        expected.insert(0, f"g{generation}")
        server.ask(f"add {expected[0]}")
        server.kill()
    assert recover(medium).returncode == 0


@pytest.mark.parametrize("fork", ["private", "copy"])
def test_a_child_has_no_part_in_it(fork, program, words, heap):
    """Unless it goes on with the heap: what serves here is the child."""
    server = Server(program, heap, f"{words}@idle")
    server.ask("add a")
    server.kill()
    child = Server(program, heap, None, "daemon", FORK=fork)
    assert "a" not in child.ask("list").split() or fork == "copy"
    child.ask("add x")
    child.end()
    server = Server(program, heap, None)
    assert server.ask("list").split() == ["a", "nothing", "."]
    server.end()


@pytest.mark.parametrize("mode", ["none", "output"])
def test_a_backup_is_of_the_last_run_until_then(mode, program, words, heap, shm):
    for name in ("a", "b"):
        server = Server(program, heap, f"{words}@call", **MODES[mode])
        assert server.ask("restore") == "restored"
        server.ask(f"add {name}")
        server.end()
    waiting = Server(program, heap, f"{words}@call", **MODES[mode])
    waiting.ask("add x")
    succeeds(run([tool("pmalloc-backup"), heap, shm / "copy"], preload=False))
    waiting.kill()
    server = Server(program, shm / "copy", None)
    assert server.ask("restore") == "restored"
    assert server.ask("list").split() == ["b", "a", "nothing", "."]
    server.end()


def test_a_daemon(program, words, heap):
    """The child that goes on with the heap restores them."""
    for generation in range(3):
        server = Server(program, heap, f"{words}@idle", "daemon", FORK="follow")
        expected = [f"g{i}" for i in reversed(range(generation))]
        assert not generation or server.ask("list").split() == [*expected, "nothing", "."]
        assert server.ask(f"add g{generation}").startswith("ok")
        server.end()


def test_a_part_of_a_variable(program, heap):
    """By the symbol: another build, in which the variable lies elsewhere, finds it."""
    other = compiled("late_server.c", "-DELSEWHERE", name="late_server_elsewhere")
    grown = compiled("late_server.c", "-DGROWN", name="late_server_grown")
    for generation in range(4):
        roots = f"server+{HEAD:#x}/16@idle" if generation == 0 else None
        one = (program, other)[generation % 2]
        server = Server(one, heap, roots, VERBOSE="1")
        expected = [f"g{i}" for i in reversed(range(generation))]
        assert not generation or server.ask("list").split() == [*expected, "nothing", "."]
        server.ask(f"add g{generation}")
        assert generation == 0 or f"server+{HEAD:#x}/16" in server.end()
        server.kill()
    refuses(run([grown], HEAP=heap), f"server+{HEAD:#x}/16@idle", "another build", "--rename-root")
    refuses(run([program], HEAP=heap.with_name("x"), ROOTS="server+90/16"), "the variable has 88")


WRONG = {
    "server@idel": "@idle or @call",
    "*@idle": "a whole object is never restored",
    "server@idle,server": "named twice",
    "@idle": "cannot open idle",
}


@pytest.mark.check
@pytest.mark.parametrize("roots", WRONG)
def test_wrong_specs(roots, program, heap):
    refuses(run([program], HEAP=heap, ROOTS=roots), WRONG[roots])


def starve(pid, seconds):
    """PMAlloc's own thread of the process gets no processor for so long."""
    own, cores = [], os.sched_getaffinity(0)
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith(("pmalloc-late", "pmalloc-decay")):
            own.append(int(task.name))
    core = min(cores)
    burn = f"import os\nos.nice(-20)\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", burn])
    for thread in own:
        os.sched_setaffinity(thread, {core})
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))

    def end():
        for thread in own:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(thread, cores)
        other.kill()
        other.wait()

    timer = threading.Timer(seconds, end)
    timer.start()
    return timer


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a thread that gives way to no other")
def test_who_looks_for_the_moment_may_find_no_processor(program, words, heap):
    """The request had waited for three seconds, and was answered from what main had set up."""
    server = Server(program, heap, f"{words}@idle")
    assert server.ask("add a") == "ok 1"
    server.kill()
    server = Server(program, heap, f"{words}@idle", "slow")
    time.sleep(3)
    starved = starve(server.process.pid, 5.5)
    assert server.ask("list").split() == ["a", "nothing", "."]
    starved.join()
    server.kill()


# ---- redis, as Debian has it --------------------------------------------------------------------

# Its build of bookworm: the seed of its hash, and server.db, .commands, .orig_commands.
REDIS = {"7.0.15": "+0x247400/16@idle,+0x2474e0/24@idle"}


class Redis:
    def __init__(self, heap, roots, folder, through=(), **settings):
        """`through`: what starts it under the preload, if that is not this test."""
        self.port = str(free_port())
        argv = [*through, redis_server(folder), "--save", "", "--port", self.port]
        argv += ["--dir", str(folder)]
        self.process = subprocess.Popen(
            [*argv, "--enable-debug-command", "local"],
            env=environment(preload=not through, HEAP=heap, ROOTS=roots, **settings),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        until = time.monotonic() + 60 * busy()
        while self.ask("ping") != "PONG":
            assert time.monotonic() < until and self.process.poll() is None
            time.sleep(0.02)

    def ask(self, *words):
        argv = [found("redis-cli"), "-p", self.port, *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()

    def stop(self, number):
        self.process.send_signal(number)
        return self.process.communicate(timeout=60 * busy())


def redis_server(folder):
    """The server and its checkers are one file; its name decides."""
    server = folder / "redis-server"
    if not server.exists():
        server.symlink_to(found("redis-check-rdb"))
    return server


def redis_roots(folder):
    argv = [redis_server(folder), "-v"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    version = text.partition("v=")[2].split()[0]
    if version not in REDIS:
        pytest.skip(f"where the roots of redis {version} lie is not known")
    return REDIS[version]


@pytest.mark.parametrize("mode", ["none", "output", "idle", "time"])
def test_redis_goes_on(mode, shm):
    """Strings, lists, hashes, sorted sets, times to live: DEBUG DIGEST is as before the kill."""
    roots, seen = redis_roots(shm), None
    rng = random.Random(0)
    for generation in range(4):
        redis = Redis(shm / "heap", roots, shm, **MODES[mode])
        if seen:
            assert (redis.ask("dbsize"), redis.ask("debug", "digest")) == seen
        else:
            redis.ask("debug", "populate", "3000", "key", "30")
        for i in range(5):
            redis.ask("rpush", f"list{generation}", str(i), str(rng.random()))
            redis.ask("hset", "hash", f"{generation}-{i}", "value")
            redis.ask("zadd", "zset", str(rng.random()), f"m{generation}-{i}")
            redis.ask("set", f"ttl{i}", "x", "ex", "1000")
            redis.ask("del", f"key:{generation * 5 + i}")
        seen = redis.ask("dbsize"), redis.ask("debug", "digest")
        settled(mode)
        redis.stop(signal.SIGKILL)
    assert recover(shm / "heap").returncode == 0
