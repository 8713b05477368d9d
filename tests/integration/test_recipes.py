# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-run --recipe: how a recipe is found and read, and that each program goes on by its own,
killed at any instant under load. RECIPE_KILLS: how often, in each mode."""

import hashlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from conftest import compiled, environment, run, said, succeeds, tool
from programs import Server, free_port, program
from test_late_roots import Redis, redis_roots

KILLS = int(os.environ.get("RECIPE_KILLS", "4"))
RECIPES = pathlib.Path(__file__).parents[2] / "tools" / "recipes"
RUN = tool("pmalloc-run")

# ---- the file -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server():
    return compiled("late_server.c", "-rdynamic", "-Wl,--build-id", name="recipe_server")


def build_id_of(file):
    notes = subprocess.run(["readelf", "-n", file], capture_output=True, text=True, check=True)
    found = re.search(r"Build ID: (\w+)", notes.stdout)
    return found and found[1]


@pytest.fixture(scope="module")
def build_id(server):
    return build_id_of(server)


def recipe(folder, *lines, name="recipe_server"):
    folder.mkdir(exist_ok=True)
    text = "\n".join([f"program {name}", "keeps its list", "loses its name", *lines]) + "\n"
    (folder / f"{name}.recipe").write_text(text)
    return folder


def served(folder, heap, server, *requests, options=(), arguments=()):
    argv = [RUN, "--recipe", "--recipes", folder, "-H", heap, *options, server, *arguments]
    return run(argv, preload=False, stdin="".join(f"{line}\n" for line in requests))


def test_by_its_build(server, build_id, heap, tmp_path):
    folder = recipe(
        tmp_path / "recipes",
        "build 00112233445566778899aabbccddeeff00112233 another one",
        "roots nothing_of_that_name",
        f"build {build_id} the one that was built for this test",
        "  roots server+0x40/16@idle  ",
        "# a comment",
        "tried here",
    )
    for i in range(3):
        done = served(folder, heap, server, f"add {i}", "list")
        assert succeeds(done).splitlines()[0] == f"ok {i + 1}", said(done)
        note = "recipe for recipe_server, the one that was built for this test: keeps its list; "
        assert note in done.stderr and "; does not keep its name" in done.stderr


def test_any_build_that_has_the_variables(server, heap, tmp_path):
    folder = recipe(tmp_path / "recipes", "any with the symbol", "roots server@idle")
    assert succeeds(served(folder, heap, server, "add a")) == "ok 1\n"
    assert succeeds(served(folder, heap, server, "add b")) == "ok 2\n"
    recipe(folder, "any with the symbol", "roots no_such_variable@idle")
    done = served(folder, heap, server)
    assert done.returncode == 125 and f"{folder}/recipe_server.recipe does not know" in done.stderr
    assert "pmalloc-info --holders" in done.stderr and done.stderr.count("\n") == 1, said(done)


@pytest.mark.parametrize(
    "lines, roots",
    [
        (["any", "roots server@idle", "roots no_such_variable@idle"], None),
        (["any", "roots server@idle", "roots nosuch@idle", "any", "roots turns@idle"], "turns"),
        (["any", "roots server@idle", "{build}", "roots server+0x40/16@idle"], "server+0x40/16"),
        (["{build}", "roots server+0x40/16@idle", "any", "roots server@idle"], "server+0x40/16"),
        (["{build}", "roots server+0x40/8@idle", "roots turns@idle"], "server+0x40/8,turns"),
    ],
)
def test_all_roots_of_one_section(server, build_id, heap, tmp_path, lines, roots):
    """Never a part of them, nor those of two. Its own build comes before any."""
    lines = [line.format(build=f"build {build_id} x") for line in lines]
    folder = recipe(tmp_path / "r", *lines)
    done = served(folder, heap, server, "add a")
    if roots is None:
        assert done.returncode == 125 and "does not know" in done.stderr, said(done)
        assert not heap.exists()
        return
    succeeds(done)
    shown = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    found = {root["root"].removesuffix("@idle") for root in shown["root_table"]}
    assert found == set(roots.split(",")), said(done)


def test_behind_a_wrapper(server, build_id, heap, tmp_path):
    """The recipe and its arguments are the program's that it starts."""
    lines = [f"build {build_id} x", "roots server+0x40/16@idle", "argument threads", "argument 2"]
    folder = recipe(tmp_path / "r", *lines)
    wrappers = ["timeout", "-k", "1", "20", "nice", "-n", "1"]
    argv = [RUN, "--recipe", "--recipes", folder, "-H", heap, *wrappers, server]
    for i in range(2):
        done = run(argv, preload=False, stdin=f"add {i}\n")
        assert succeeds(done) == f"ok {i + 1}\n", said(done)
    done = run([*argv[:6], "timeout", "20", "true"], preload=False)
    assert done.returncode == 125 and "no recipe for true" in done.stderr, said(done)
    done = run([*argv[:6], "timeout", "20", "no-such-program"], preload=False)
    assert done.returncode == 127 and "no-such-program" in done.stderr, said(done)


def test_a_library_that_the_program_loads(build_id, heap, tmp_path):
    """It is there before main, so its variables can be roots. Only the build that is named will do,
    and nothing is made without it."""
    flags = ("-shared", "-fPIC", "-Dmain=run_server", "-Wl,--build-id")
    library = compiled("late_server.c", *flags, name="late_library.so")
    host = compiled("late_host.c", "-Wl,--build-id")
    own, its = build_id_of(host), build_id_of(library)

    def host_recipe(id, path):
        rest = [f"library {id} {path}", "roots late_library.so:server+0x40/16@idle"]
        return recipe(tmp_path / "r", f"build {own} x", *rest, name="late_host")

    (tmp_path / "text").write_text("no library")
    for line, why in {
        (build_id, library): f"{library.name} is a build ({its}) that",
        (its, "no_such.so"): "no_such.so",
        (its, tmp_path / "text"): "recipe:5: ",
        ("12", library): "write: library ID PATH",
        (its, ""): "write: library ID PATH",
    }.items():
        done = served(host_recipe(*line), heap, host, arguments=[library])
        assert done.returncode == 125 and done.stderr.count("\n") == 1, said(done)
        assert why in done.stderr and not heap.exists(), said(done)
    names = {its: library, its[:16]: library.name, its[:20]: f"../integration/{library.name}"}
    for i, (id, path) in enumerate(names.items()):
        done = served(host_recipe(id, path), heap, host, f"add {i}", "list", arguments=[library])
        assert succeeds(done).splitlines()[0] == f"ok {i + 1}", said(done)


def test_settings_and_arguments(server, build_id, heap, tmp_path):
    """Those of the user come after the recipe's, and win."""
    lines = [f"build {build_id} x", "roots server+0x40/16@idle"]
    folder = recipe(tmp_path / "r", *lines, "set COMMIT=20ms", "argument threads", "argument 2")
    for mode, options in {"20ms": [], "output": ["-s", "COMMIT=output"]}.items():
        done = served(folder, heap, server, "add a", options=["-s", "VERBOSE=1", *options])
        assert f"commits: {mode}" in succeeds(done) + done.stderr, said(done)


@pytest.mark.parametrize(
    "lines, why",
    [
        (["roots +8/8"], "does not know"),
        (["build abc short", "roots +8/8"], "write: build ID NAME"),
        (["build 00112233445566778899"], "write: build ID NAME"),
        (["{build}", "roots ++"], "recipe:5: "),
        (["{build}", "rots +8/8"], "unknown word"),
        (["any", "roots server+8/8"], "only whole variables"),
        (["{build}", "roots server@idle", "set COMMIT"], "write: set NAME=VALUE"),
        (["{build}", "roots server@idle", "set NO_SUCH=1"], "PMALLOC_NO_SUCH"),
        (["x" * 5000], "too long a line"),
    ],
)
def test_bad_recipes(server, build_id, heap, tmp_path, lines, why):
    """One line, and nothing is made."""
    lines = [line.format(build=f"build {build_id} x") for line in lines]
    done = served(recipe(tmp_path / "r", *lines), heap, server)
    assert done.returncode == 125 and done.stderr.count("\n") == 1, said(done)
    assert why in done.stderr and not heap.exists(), said(done)


def test_none_for_the_program(heap, server):
    done = run([RUN, "--recipe", "-H", heap, server], preload=False)
    assert done.returncode == 125 and "there is no recipe for recipe_server" in done.stderr
    assert not heap.exists()


def test_roots_beside_a_recipe(heap, server):
    done = run([RUN, "--recipe", "-H", heap, "-r", "server", server], preload=False)
    assert done.returncode == 125 and "leave out -r" in done.stderr, said(done)


def test_those_that_there_are():
    """Each is whole: it says what is kept, and what was tried."""
    listed = succeeds(run([RUN, "--recipe"], preload=False))
    files = sorted(RECIPES.glob("*.recipe"))
    assert files and [path.stem for path in files] == re.findall(r"^(\S+)", listed, re.M)
    for path in files:
        text = path.read_text()
        for word in ("program", "keeps", "loses", "tried"):
            assert re.search(rf"^{word}\b", text, re.M), (path, word)


# ---- redis --------------------------------------------------------------------------------------


def test_redis_by_default(shm):
    """The recipe's own mode, as the README has it: what was idle for a second is kept."""
    redis_roots(shm)
    argv = {"through": [RUN, "--recipe"]}
    redis = Redis(shm / "heap", None, shm, **argv)
    redis.ask("set", "greeting", "hello")
    time.sleep(2.5)
    redis.stop(signal.SIGKILL)
    redis = Redis(shm / "heap", None, shm, **argv)
    try:
        assert redis.ask("get", "greeting") == "hello"
    finally:
        redis.stop(signal.SIGKILL)


def test_redis_does_what_it_did(shm):
    """Also what main has spread by the seed of its own hash: subcommands, names of settings."""
    redis_roots(shm)
    for generation in range(3):
        redis = Redis(shm / "heap", None, shm, through=[RUN, "--recipe"], COMMIT="output")
        try:
            assert redis.ask("set", "x", "12") == "OK"
            assert redis.ask("object", "encoding", "x") == "int"
            assert redis.ask("config", "get", "maxmemory").split() == ["maxmemory", "0"]
            assert redis.ask("config", "set", "maxmemory-samples", "7") == "OK"
            assert redis.ask("config", "get", "maxmemory-samples").split()[1] == "7"
            assert int(redis.ask("client", "id")) > 0 and int(redis.ask("command", "count")) > 200
            assert redis.ask("xgroup", "create", f"s{generation}", "g", "$", "mkstream") == "OK"
            assert int(redis.ask("dbsize")) == generation + 2
        finally:
            redis.stop(signal.SIGKILL)


LIBRARY = """#!lua name=lib{0}
local n = {0}
redis.register_function('f{0}', function(keys, args)
    n = n + 1
    return {{n, redis.call('INCRBY', keys[1], args[1])}}
end)"""
SCRIPT = "return 'k is ' .. redis.call('GET', KEYS[1])"


def test_redis_keeps_its_functions_and_scripts(shm):
    """The Lua states with their variables; what is made anew in them, too."""
    redis_roots(shm)
    digest = hashlib.sha1(SCRIPT.encode()).hexdigest()
    for generation in range(4):
        redis = Redis(shm / "heap", None, shm, through=[RUN, "--recipe"], COMMIT="output")
        try:
            k = int(redis.ask("get", "k") or 0)
            if generation:
                assert redis.ask("evalsha", digest, "1", "k") == f"k is {k}"
            assert redis.ask("script", "load", SCRIPT) == digest
            name = f"lib{generation}"
            assert redis.ask("function", "load", LIBRARY.format(generation)) == name
            assert "Library" in redis.ask("function", "load", LIBRARY.format(generation))
            for i in range(generation + 1):
                k += 10
                n = i + 1 + generation - i
                assert redis.ask("fcall", f"f{i}", "1", "k", "10").split() == [str(n), str(k)]
            assert redis.ask("eval", "return redis.call('dbsize')", "0") == "1"
        finally:
            redis.stop(signal.SIGKILL)
    redis = Redis(shm / "heap", None, shm, through=[RUN, "--recipe"])
    try:
        assert redis.ask("function", "delete", "lib1") == "OK"
        assert "not found" in redis.ask("fcall", "f1", "1", "k", "1")
        assert redis.ask("function", "flush") == "OK" and redis.ask("script", "flush") == "OK"
        assert "NOSCRIPT" in redis.ask("evalsha", digest, "1", "k")
    finally:
        redis.stop(signal.SIGKILL)


# ---- mosquitto ----------------------------------------------------------------------------------


class Mosquitto(Server):
    def __init__(self, heap, folder, commit):
        self.port = str(free_port())
        configuration = folder / "conf"
        listener = f"listener {self.port} 127.0.0.1"
        configuration.write_text(f"{listener}\nallow_anonymous true\nuser root\n")
        argv = [RUN, "--recipe", "-H", heap, "-s", f"COMMIT={commit}", program("mosquitto")]
        argv += ["-c", configuration]
        super().__init__("mosquitto", argv, folder, environment(preload=False))

    def ready(self):
        self.wait_until(lambda: self.publish("ready", "yes"))

    def publish(self, topic, text):
        """Whether it was answered: the broker has it. A message without text removes one."""
        what = ["-m", text] if text else ["-n"]
        argv = [program("mosquitto_pub"), "-p", self.port, "-q", "1", "-r", "-t", topic, *what]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def retained(self):
        argv = [program("mosquitto_sub"), "-p", self.port, "-t", "t/#", "-v", "-W", "1"]
        text = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
        return dict(line.split(" ", 1) for line in text.splitlines())


def known(name):
    """Skips where the recipe does not know this build."""
    build = build_id_of(program(name))
    if not build or build not in (RECIPES / f"{name}.recipe").read_text():
        pytest.skip(f"the recipe of {name} does not know this build")


def test_mosquitto_is_killed_under_load(shm, tmp_path):
    """Each retained message that was answered is there, changed and removed ones too."""
    known("mosquitto")
    rng, expected, unsure = random.Random(1), {}, None
    for generation in range(KILLS + 1):
        with Mosquitto(shm / "heap", tmp_path, "output") as broker:
            broker.ready()
            found = broker.retained()
            if unsure and found.get(unsure[0]) == (unsure[1] or None):
                expected = {k: v for k, v in expected.items() if k != unsure[0]} | (
                    {unsure[0]: unsure[1]} if unsure[1] else {}
                )
            assert found == expected, (generation, unsure)
            killer = threading.Timer(rng.uniform(0, 0.3), broker.process.kill)
            killer.start()
            while True:
                text = "" if rng.random() < 0.2 else f"{generation} {rng.random()}"
                unsure = (f"t/{rng.randrange(9)}/{rng.randrange(9)}", text)
                if not broker.publish(*unsure):
                    break
                expected.pop(unsure[0], None)
                if text:
                    expected[unsure[0]] = text
            killer.join()


# ---- memcached ----------------------------------------------------------------------------------


class Memcached(Server):
    def __init__(self, heap, folder, commit, threads=2, **settings):
        self.port = free_port()
        argv = [RUN, "--recipe", "-H", heap]
        for name, value in {"COMMIT": commit, **settings}.items():
            argv += ["-s", f"{name}={value}"]
        argv += [program("memcached"), "-u", "root", "-p", str(self.port), "-U", "0"]
        argv += ["-l", "127.0.0.1", "-t", str(threads)]
        super().__init__("memcached", argv, folder, environment(preload=False))

    def ready(self):
        self.wait_until(self.connect)

    def connect(self):
        self.stream = socket.create_connection(("127.0.0.1", self.port)).makefile("rwb")
        return True

    def ask(self, request):
        """The first line of the answer; with what follows it, if that is a value."""
        self.stream.write(request + b"\r\n")
        self.stream.flush()
        line = self.stream.readline().rstrip()
        if not line.startswith(b"VALUE"):
            return line
        value = self.stream.readline().rstrip()
        assert self.stream.readline() == b"END\r\n"
        return value

    def items(self):
        line, count = self.ask(b"stats"), None
        while line != b"END":
            if line.startswith(b"STAT curr_items"):
                count = int(line.split()[2])
            line = self.stream.readline().rstrip()
        return count


def value_of(i):
    return f"{i}.".encode() * (1 + i % 40)


def write_items(server, i):
    """Writes until the server is gone. Returns how many it has answered."""
    try:
        while server.ask(b"set k%d 7 0 %d\r\n%s" % (i, len(value_of(i)), value_of(i))) == b"STORED":
            i += 1
    except OSError:
        pass
    return i


def test_memcached_is_killed_under_load(shm, tmp_path):
    """Each item that was answered is there, in its hash table and in its list."""
    known("memcached")
    rng, answered = random.Random(1), 0
    for generation in range(KILLS + 1):
        with Memcached(shm / "heap", tmp_path, "output") as server:
            server.ready()
            count = server.items()
            assert answered <= count <= answered + 1, (generation, answered, count)
            some = {rng.randrange(count) for _ in range(99) if count}
            for i in {*range(max(0, count - 100), count)} | some:
                assert server.ask(b"get k%d" % i) == value_of(i), (generation, i)
            assert server.ask(b"get k%d" % count) == b"END"
            killer = threading.Timer(rng.uniform(0, 0.5), server.process.kill)
            killer.start()
            answered = write_items(server, count)
            killer.join()
