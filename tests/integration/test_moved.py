# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Heaps whose program or libraries are another build than in the last run, or lie elsewhere: words
that lead there are made to lead to the same things. moved.cc is the program, in several builds; it
is killed after each run, and says by a sum over all of its data whether they are right."""

import hashlib
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from conftest import compiled, copy_heap, environment, needs, recover, run, said, tool
from test_lost_writes import disk, each_sync  # noqa: F401

KILLED = -signal.SIGKILL
PAIRS = {
    "O1-O2": ("g++", ["-O1"], ["-O2"]),
    "O0-O3": ("g++", ["-O0"], ["-O3"]),
    "clang": ("clang++", ["-O2"], ["-O1"]),
    "lto": ("g++", ["-O2", "-flto"], ["-O2"]),
    "no-build-id": ("g++", ["-O1", "-Wl,--build-id=none"], ["-O2", "-Wl,--build-id=none"]),
    "static-libstdc++": ("g++", ["-O1", "-static-libstdc++", "-static-libgcc"], ["-O2"]),
    "sections": ("g++", ["-O2", "-ffunction-sections", "-Wl,--gc-sections"], ["-O2", "-g0"]),
}


def build(version, *flags, compiler="g++"):
    needs(compiler)
    name = "moved-" + hashlib.sha1(repr((version, flags, compiler)).encode()).hexdigest()[:8]
    return compiled("moved.cc", f"-DV={version}", *flags, name=name, compiler=compiler)


@pytest.fixture
def place(shm):
    """Where the program lies, whatever build it is; and its heap."""

    class Place:
        program, heap = shm / "program", shm / "heap"

        def put(self, built):
            self.program.unlink(missing_ok=True)
            shutil.copy(built, self.program)

        def run(self, *arguments, **settings):
            settings = {"HEAP": self.heap, "ROOTS": "world"} | settings
            return run([self.program, *arguments], **settings)

        def runs(self, built, *arguments, **settings):
            self.put(built)
            done = self.run(*arguments, **settings)
            assert done.returncode == KILLED, said(done)
            return done

        def refused(self, built, **settings):
            self.put(built)
            before = contents(self.heap)
            done = self.run(**settings)
            assert done.returncode == 125 and not done.stdout, said(done)
            assert contents(self.heap) == before, "it has changed the heap"
            return done.stderr

    return Place()


def contents(heap):
    return {path.name: path.read_bytes() for path in heap.iterdir()}


def lines_of(built, count):
    done = run([built, "plain", count], preload=False)
    assert done.returncode == 0, said(done)
    return done.stdout.splitlines()


@pytest.mark.parametrize("pair", PAIRS)
def test_to_another_build_and_back(place, pair):
    """v1 -> v2 -> v1 -> v2: the sums are those of a program that never ended."""
    compiler, first, second = PAIRS[pair]
    builds = [build(1, *first, compiler=compiler), build(2, *second, compiler=compiler)]
    expected = lines_of(builds[0], 6)
    for number, built in enumerate([0, 1, 1, 0, 0, 1]):
        done = place.runs(builds[built])
        assert done.stdout.splitlines() == [expected[number]], said(done)
        says = re.search(r"heap: \d+ words of it led into .*another build; each", done.stderr)
        assert bool(says) == (number in (1, 3, 5)), said(done)


@pytest.mark.check
def test_builds_of_one_size_without_build_ids(place):
    """A checksum tells them apart. A strip makes no other build of it."""
    builds, flags = [], ("-O1", "-fno-toplevel-reorder", "-Wl,--build-id=none")
    flags = (*flags, "-Wl,--export-dynamic-symbol=kept")
    for before in (16, 96):
        name = f"moved_same{before}"
        builds.append(compiled("moved_same.c", f"-DBEFORE={before}", *flags, name=name))
    loaded = [
        re.findall(r"LOAD +0x\w+ 0x\w+", said(run(["readelf", "-lW", built], preload=False)))
        for built in builds
    ]
    assert loaded[0] and loaded[0] == loaded[1], loaded
    for number in (0, 1, 1, 0, 1):
        done = place.runs(builds[number], ROOTS="kept")
        assert done.stdout == "right 1001\n", said(done)
    subprocess.run(["strip", place.program], check=True)
    done = place.run(ROOTS=None)
    assert done.stdout == "right 1001\n" and "pmalloc:" not in done.stderr, said(done)
    report = run([tool("pmalloc-info"), "--json", place.heap], preload=False).stdout
    (program,) = [each for each in json.loads(report)["objects"] if each["program"]]
    assert (program["build_id"], program["now"]) == ("", "same") and program["checksum"], program


def test_the_tools_tell_what_is_on_record(place):
    def told():
        report = run([tool("pmalloc-info"), "--json", place.heap], preload=False).stdout
        return {os.path.basename(each["path"]): each for each in json.loads(report)["objects"]}

    place.runs(build(1))
    first = told()
    assert first["program"]["program"] and first["program"]["now"] == "same", first
    assert first["libc.so.6"]["now"] == "same" and first["libc.so.6"]["build_id"], first
    place.put(build(2, "-O2"))
    assert told()["program"] == first["program"] | {"now": "another"}
    place.program.unlink()
    assert told()["program"]["now"] == "gone"
    text = run([tool("pmalloc-info"), place.heap], preload=False).stdout
    assert re.search(rf"objects +{len(first)} on record,.*\n +gone: {place.program}\n", text), text


@pytest.mark.check
def test_commit_mode(place):
    builds = [build(1), build(2, "-O2")]
    expected = lines_of(builds[0], 4)
    for number, built in enumerate([0, 1, 0, 1]):
        done = place.runs(builds[built], COMMIT="output")
        assert done.stdout.splitlines() == [expected[number]], said(done)


def test_at_random_places(place):
    """The same build, at other addresses each time."""
    built = build(1)
    expected = lines_of(built, 6)
    for number in range(6):
        done = place.runs(built, RANDOMIZE=1)
        assert done.stdout.splitlines() == [expected[number]], said(done)
        assert ("which lie elsewhere; each leads" in done.stderr) == (number > 0), said(done)


def test_stripped(place, shm):
    """Where functions have no names, the same build is found elsewhere, and another one not."""
    builds = []
    for version in (1, 2):
        path = shm / f"stripped{version}"
        built = build(version, "-Wl,--export-dynamic-symbol=world")
        subprocess.run(["strip", "-o", path, built], check=True)
        builds.append(path)
    expected = lines_of(builds[0], 2)
    place.runs(builds[0], RANDOMIZE=1)
    done = place.runs(builds[0], RANDOMIZE=1, ROOTS=None)
    assert done.stdout.splitlines() == [expected[1]], said(done)
    assert "a function without a name (stripped)" in place.refused(builds[1])


REFUSED = {
    "function": r"1 word: program: _ZN12_GLOBAL__N_1\w*freshEi\(\) is gone in this build",
    "class": r"1 word: program: _ZTVN12_GLOBAL__N_15ExtraE is gone in this build",
    "size": r"1 word: program: grows has 48 bytes in this build, it had 96",
    "middle": r"1 word: program: the middle of _Z14moves_all_codei\(\)",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_build_lacks_is_refused(place, what):
    """Nothing has changed then, and the old build goes on."""
    more, less = build(2, "-DHAS_MORE"), build(1)
    place.runs(more)
    place.runs(more, "use", what)
    said_of = place.refused(less)
    assert re.search(REFUSED[what], said_of), said_of
    assert re.search(r"of \d+ words that .* 1 cannot be made .*nothing was changed", said_of)
    assert place.runs(more, "use", "nothing")
    dry = recover("--rebase", "--dry-run", place.program, place.heap)
    assert dry.returncode == 0 and "no word of it is to be changed" in dry.stderr, said(dry)
    place.put(less)
    dry = recover("--rebase", "--dry-run", place.program, place.heap)
    assert dry.returncode == 125 and re.search(REFUSED[what], dry.stderr), said(dry)


def test_words_that_nobody_reads(place, shm):
    """A block that is used again has old words. The table says where one is, and the user that it
    is not read: it becomes 0, and all else is changed as ever."""
    more, less = build(2, "-DHAS_MORE"), build(1)
    place.runs(more)
    place.runs(more, "use", "middle")
    copy_heap(place.heap, shm / "twin")
    expected = run([more], HEAP=shm / "twin").stdout
    told = place.refused(less)
    assert re.search(REFUSED["middle"] + r"; at `world -> \+\d+ of \d+ bytes`\n", told), told
    dry = recover("--rebase", "--dry-run", place.program, place.heap, REBASE_TRUST="stale")
    assert dry.returncode == 0 and "1 word more, as listed, can be made 0" in dry.stderr, said(dry)
    assert place.refused(less) == told
    done = place.run(REBASE_TRUST="stale")
    assert done.returncode == KILLED and done.stdout == expected, said(done)
    assert re.search(REFUSED["middle"], done.stderr), said(done)
    assert "1 word more, as listed, is 0 now: PMALLOC_REBASE_TRUST=stale" in done.stderr
    assert re.search(r"\d+ words of it led .* each leads to the same thing now", done.stderr)
    assert place.runs(more, "use", "nothing").stdout == "nothing (nil)\n"


@pytest.mark.parametrize("commit", [None, "output"])
def test_a_string_that_is_gone(place, shm, commit):
    """It is copied into the heap, and stays there for all builds to come."""
    more, less = build(2, "-DHAS_MORE"), build(1)
    place.runs(more, COMMIT=commit)
    place.runs(more, "use", "literal", COMMIT=commit)
    copy_heap(place.heap, shm / "twin")
    expected = [run([more], HEAP=shm / "twin").stdout for _ in range(4)]
    recover(place.heap)
    place.put(less)
    before = contents(place.heap)
    dry = recover("--rebase", "--dry-run", place.program, place.heap)
    assert dry.returncode == 0 and "1 string that this build lacks can be copied" in dry.stderr
    assert contents(place.heap) == before
    for number, built in enumerate([less, less, more, less]):
        done = place.runs(built, COMMIT=commit)
        assert done.stdout == expected[number], (number, said(done))
        says = "heap: 1 string that this build lacks was copied into it" in done.stderr
        assert says == (number == 0), (number, said(done))


def test_settings(place):
    first, second = build(1), build(2)
    expected = lines_of(first, 3)
    place.runs(first)
    assert "PMALLOC_REBASE=refuse forbids" in place.refused(second, REBASE="refuse")
    assert "PMALLOC_OPEN=private cannot change them" in place.refused(second, OPEN="private")
    place.put(second)
    before = contents(place.heap)
    done = place.run(REBASE="look")
    assert done.returncode == 0 and not done.stdout and contents(place.heap) == before, said(done)
    assert re.search(r"\d+ words of it lead into .* each can be made to lead to", done.stderr)
    dry = recover("--rebase", "--dry-run", place.program, place.heap)
    assert dry.returncode == 0 and dry.stderr == done.stderr, said(dry)
    for other in ("--check", "--to-node=0", "--transient=clear"):
        done = recover(other, "--rebase", place.program, place.heap)
        assert done.returncode == 16 and "--dry-run alone" in done.stderr, said(done)
    assert contents(place.heap) == before
    done = recover("--rebase", place.program, place.heap)
    assert done.returncode == 0 and not done.stdout, said(done)
    assert re.search(r"\d+ words of it led into .* each leads to the same thing now", done.stderr)
    done = place.runs(second)
    assert done.stdout.splitlines() == [expected[1]] and "pmalloc:" not in done.stderr, said(done)


def test_after_a_run_that_only_reports(place):
    """Words of both builds are in the heap then, and nobody can tell which is which."""
    first, second = build(1), build(2, "-O2")
    place.runs(first)
    place.put(second)
    done = place.run("use", "nothing", REBASE="report")
    assert done.returncode == KILLED and "point into such a program" in done.stderr, said(done)
    assert "it has lain there in two ways" in place.refused(second)


def test_numbers_that_look_like_addresses(place):
    """0x555555555555 is what a third looks like; a program that is not randomised lies there."""
    first, second = build(1), build(2)
    assert place.runs(first, "thirds").stdout == "0 wrong\n"
    for built, settings in [(second, {}), (first, {"RANDOMIZE": 1}), (second, {})]:
        done = place.run("thirds", **settings) if place.put(built) else place.runs(
            built, "thirds", **settings
        )
        assert done.stdout == "0 wrong\n", said(done)


def test_tables_that_are_hashed_by_addresses(place):
    """No word says so: the symbol of the seed does, and pmalloc_moved() tells the program."""
    first, second = build(1, "-DSEED"), build(2, "-DSEED")
    assert place.runs(first, "use", "moved").stdout == "moved: 0\n"
    place.runs(first)
    assert "hashes by an address (Abseil's kSeed)" in place.refused(second)
    assert place.runs(second, "use", "moved", REBASE_TRUST="hashed").stdout == "moved: 1\n"
    assert place.runs(second, "use", "moved").stdout == "moved: 0\n"
    assert "hashes by an address" in place.refused(second, RANDOMIZE=1)


def test_fixed_addresses(place):
    """In a program that is no PIE ordinary numbers look like its addresses."""
    first, second = build(1, "-no-pie", "-fno-pie"), build(2, "-no-pie", "-fno-pie")
    expected = lines_of(first, 2)
    place.runs(first)
    assert "linked to fixed addresses" in place.refused(second)
    place.put(second)
    wrong = place.run(REBASE_TRUST="exact,hash")
    assert wrong.returncode and "exact, hashed, numbered and stale" in wrong.stderr, said(wrong)
    done = place.run(REBASE_TRUST="exact")
    # What is inside a variable is not changed, so what it leads to may be something else.
    assert re.search(r"\d+ words of it led into", done.stderr), said(done)
    assert done.returncode in (KILLED, -signal.SIGSEGV) or expected, said(done)


# ---- modules -------------------------------------------------------------------------------------


@pytest.fixture(params=["build-ids", "none"])
def modules(shm, request):
    """The program, where its module lies, and what the module is in two builds."""
    host = compiled("moved_host.c")
    flags = ("-shared", "-fPIC", *(["-Wl,--build-id=none"] * (request.param == "none")))
    builds = [
        compiled("moved_module.c", *flags, name=f"moved_{request.param}1.so"),
        compiled("moved_module.c", *flags, "-O2", "-DNEW", name=f"moved_{request.param}2.so"),
    ]

    def go(number, *mapped, **settings):
        module = shm / "module.so"
        module.unlink(missing_ok=True)
        shutil.copy(builds[number], module)
        done = run([host, module, *mapped], HEAP=shm / "heap", ROOTS="kept", **settings)
        assert done.returncode == KILLED, said(done)
        right, value, _, where = done.stdout.split()
        assert (right, value) == ("right", "1009"), said(done)
        return where, done.stderr

    return go


@pytest.mark.check
@pytest.mark.parametrize("commit", [None, "output"])
def test_a_module_comes_to_its_place(modules, commit):
    """Also where the program has mapped something before, so that it would come elsewhere."""
    place, said_of = modules(0, 40960, COMMIT=commit)
    assert not said_of
    for mapped in (0, 4096, 40960, 8192):
        assert modules(0, mapped, COMMIT=commit) == (place, "")


@pytest.mark.parametrize("commit", [None, "output"])
def test_a_module_whose_place_is_taken(modules, commit):
    """By a program that chooses addresses itself. Words are changed when it comes; also if it is
    another build."""
    first, _ = modules(0, 0, COMMIT=commit)
    taken = (4096, hex(int(first, 16) & ~0xFFF))
    second, line = modules(0, *taken, COMMIT=commit)
    assert first != second and "words of it led into a library that lies elsewhere" in line, line
    assert modules(0, *taken, COMMIT=commit) == (second, "")
    third, line = modules(1, *taken, COMMIT=commit)
    assert third != second and "led into a library that lies elsewhere" in line
    assert modules(1, *taken, COMMIT=commit) == (third, "")
    assert "led into a library" in modules(0, 4096, COMMIT=commit)[1]


def test_nothing_else_comes_to_the_place_of_a_module(modules):
    """Else a word that leads to it would be taken for an old one, and changed: here the program's
    own memory, which is mapped before the module comes in another build."""
    for number in (0, 1, 0, 1):
        for size in (4096, 16384, 40960):
            modules(number, size)


def test_modules_of_a_program_at_random_places(modules):
    for number in (0, 0, 1, 0):
        modules(number, 4096, RANDOMIZE=1)


@pytest.fixture
def limited():
    """Under a limit of address space no place of a module is kept, so each comes elsewhere."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 46, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_many_modules(shm, limited):
    """Each changes the record when it comes, and the next one still has its words changed. The
    record does not grow with the starts."""
    host = compiled("moved_many.c")
    modules = [shm / f"module{n}.so" for n in range(10)]
    for module in modules:
        built = compiled("moved_module.c", "-shared", "-fPIC", name="moved_module1.so")
        shutil.copy(built, module)
    for _ in range(30):
        done = run([host, *modules], HEAP=shm / "heap", ROOTS="kept", RANDOMIZE=1)
        assert done.returncode == KILLED and done.stdout == "5 right\n", said(done)
    report = run([tool("pmalloc-info"), "--json", shm / "heap"], preload=False).stdout
    assert len(json.loads(report)["objects"]) < 100


def test_what_the_linker_knows_of_a_module(shm):
    """glibc keeps an address before a module's first byte, in a block of the heap, if it uses many
    functions of others. There lay the library that comes with it."""
    names = [f"other{n}" for n in range(2000)]
    source = "".join(f"extern int {name}(void) __attribute__((weak));\n" for name in names)
    source += f"void *all[] = {{{', '.join(names)}}};\nint module_call(int x) {{ return x; }}\n"
    (shm / "module.c").write_text(source + "extern int lower(void);\nvoid *low = lower;\n")
    (shm / "lower.c").write_text("int lower(void) { return 1; }\n")
    flags = ["gcc", "-shared", "-fPIC", "-w", "-o"]
    subprocess.run([*flags, shm / "lower.so", shm / "lower.c"], check=True)
    linked = [shm / "module.so", shm / "module.c", shm / "lower.so"]
    subprocess.run([*flags, *linked], check=True)
    for randomize in 1, 1, 1, None, None, 1, None:
        host, where = compiled("moved_many.c"), {"HEAP": shm / "heap", "ROOTS": "kept"}
        done = run([host, shm / "module.so"], **where, RANDOMIZE=randomize)
        assert (done.returncode, done.stdout) == (KILLED, "1 right\n"), said(done)


# ---- what is read when it is needed -------------------------------------------------------------


def test_a_record_that_is_gone(place):
    """The program goes on, as one with a heap of an older build."""
    built = build(1)
    expected = lines_of(built, 2)
    place.runs(built)
    for record in place.heap.glob("objects.*"):
        record.unlink()
    done = place.runs(built)
    assert done.stdout.splitlines() == [expected[1]] and list(place.heap.glob("objects.*"))


def test_a_record_that_is_damaged(place):
    built = build(1)
    place.runs(built)
    (record,) = place.heap.glob("objects.*")
    whole = record.read_bytes()
    record.write_bytes(bytes(256) + whole[256:])
    assert "is damaged; if they are the same builds" in place.refused(built)
    record.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = recover("--check", place.heap)
    assert done.returncode == 4 and "is damaged; if" in done.stderr, said(done)


def test_an_entry_that_is_unfinished(place):
    """A kill came before its crc was stored: what is loaded is noted anew."""
    built = build(1)
    expected = lines_of(built, 2)
    place.runs(built)
    (record,) = place.heap.glob("objects.*")
    whole = record.read_bytes()
    count = next(n for n in itertools.count() if not any(whole[256 * n : 256 * n + 256]))
    end = 256 * count
    record.write_bytes(whole[: end - 4] + bytes(4) + whole[end:])
    assert place.runs(built).stdout.splitlines() == [expected[1]]
    again = record.read_bytes()
    assert again[: end - 256] == whole[: end - 256] and any(again[end - 4 : end])
    assert not any(again[end : end + 256]), "the unfinished one has kept its place"
    record.write_bytes(whole[: end - 4] + bytes([whole[end - 4] ^ 1]) + whole[end - 3 :])
    assert "is damaged; if they are the same builds" in place.refused(built)


def test_copies_have_it(place, shm):
    first, second = build(1), build(2)
    expected = lines_of(first, 2)
    place.runs(first)
    done = run([tool("pmalloc-backup"), place.heap, shm / "backup"], preload=False)
    assert done.returncode == 0, said(done)
    place.put(second)
    done = place.run(HEAP=shm / "backup")
    assert done.stdout.splitlines() == [expected[1]], said(done)


# ---- kills --------------------------------------------------------------------------------------


def killed_amid(place, builds, rng):
    """One to three starts that change the words, to either build by turns, each killed at a random
    moment. Returns how many were over before."""
    over = 0
    for built in itertools.islice(itertools.cycle([1, 0]), rng.randrange(1, 4)):
        place.put(builds[built])
        env = environment(HEAP=place.heap, ROOTS="world", REBASE="only")
        process = subprocess.Popen([place.program], env=env, stderr=subprocess.DEVNULL)
        time.sleep(rng.random() * 0.03)
        process.kill()
        over += process.wait() == 0
    return over


def child(pid):
    """The child that a process has just made."""
    try:
        made = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(made[0]) if made else None


def test_killed_as_it_makes_the_child_that_looks(place, shm, processes):
    """The child has the heap's lock, and has not asked yet for its parent's end to be its own. It
    does nothing then: who comes next does not find the heap in use."""
    needs("strace")
    place.runs(build(2, "-DHAS_MORE"))
    place.put(build(1, "-O2"))
    env = environment(HEAP=place.heap, ROOTS="world")
    library = env.pop("LD_PRELOAD")
    argv = ["strace", "-f", "-o", shm / "calls", "-e", "inject=prctl:delay_enter=300000"]
    argv += ["-E", f"LD_PRELOAD={library}", place.program]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
    processes.append(process)
    while not (looks := child(child(process.pid))):
        assert process.poll() is None
    os.kill(child(process.pid), signal.SIGKILL)
    done = place.run()
    assert done.returncode == KILLED, said(done)
    process.wait()
    lines = [line.split(None, 1) for line in (shm / "calls").read_text().splitlines()]
    calls = [re.sub(r"\(.*", "", call) for pid, call in lines if int(pid) == looks]
    assert calls[-3:] == ["getppid", "exit_group", "+++ exited with 0 +++"], calls


def test_killed_while_it_changes_words(place, rng, shm):
    """Each kill leaves a heap of one build or of the other; the next start goes on from there. A
    string of the first is gone in the second, and is copied."""
    builds = [build(2, "-DHAS_MORE"), build(1, "-O2")]
    place.runs(builds[0])
    place.runs(builds[0], "use", "literal")
    kept = shm / "kept"
    copy_heap(place.heap, kept)
    expected = place.runs(builds[0]).stdout
    kills = int(os.environ.get("MOVED_KILLS", "40"))
    done_before = 0
    for number in range(kills):
        shutil.rmtree(place.heap)
        copy_heap(kept, place.heap)
        done_before += killed_amid(place, builds, rng)
        done = place.runs(builds[rng.randrange(2)])
        assert done.stdout == expected, (number, said(done))
    assert done_before < 3 * kills, "no kill came early enough"


def test_syncs_that_fail_while_words_are_changed(disk):  # noqa: F811
    """Each sync fails in turn, or a kill comes before it; the start is made again; then the power
    fails. The words lead into the new build then, each of them."""
    builds = [build(2, "-DHAS_MORE"), build(1, "-O2")]
    program, heap = disk.tree / "program", disk.tree / "heap"

    def put(built):
        program.unlink(missing_ok=True)
        shutil.copy(builds[built], program)

    def prepare():
        put(0)
        for arguments in [], ["use", "literal"]:
            done = run([program, *arguments], HEAP=heap, ROOTS="world", COMMIT="output")
            assert done.returncode == KILLED, said(done)
        put(1)

    def step(fail):
        done = disk.run([program], fail, library=True, HEAP=heap, REBASE="only")
        if "was to look at it was killed" in done.stderr:  # and what waits for it goes on
            done.returncode = KILLED
        return done

    def verify(why):
        done = run([program], HEAP=heap)
        assert done.stdout == expected, f"{why}\n{said(done)}"

    prepare()
    put(0)
    expected = run([program], HEAP=heap).stdout
    shutil.rmtree(heap)

    assert each_sync(disk, prepare, step, verify) >= 3
