# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Every field of a heap is spoiled, one at a time. Nothing crashes, hangs or eats memory, and
nothing is lost silently.

The fields come from core/media/format.h (tests/fuzz/heap_layout.py). A few elements of an array
stand for all; of the log, all entries in use are tried. After each change all tools and the program
must agree. Either the heap is refused with one line, and its files are untouched. Or the program
finds exactly the data it had."""

import concurrent.futures
import fcntl
import json
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import threading

import pytest
from conftest import API, ROOT, app, busy, environment, linked, on_media, succeeds, tool
from damage_case import Case

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from heap_layout import FILES, Layout, forget_origin, read, read_to_write, write  # noqa: E402

# Peak memory that any process may reach; a heap here has 4 MiB. The kernel counts a process from
# before its exec, when it was a copy of this one: healthy() allows for that.
LIMIT_KB = 96 * 1024
SECONDS = 20


# ---- running -------------------------------------------------------------------------------------


def call(argv, stdin="", kill=False, preload=None, **settings):
    """Runs a process that must end by itself, or is killed after an answer. Returns status, output,
    errors and peak memory in KiB."""
    process = subprocess.Popen(
        [str(a) for a in argv],
        env=environment(preload or bool(settings), **settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    alarm = threading.Timer(SECONDS * busy(), process.kill)
    alarm.start()
    try:
        process.stdin.write(stdin)
        process.stdin.flush()
        if kill:
            assert process.stdout.readline()
            process.kill()
        process.stdin.close()
    except BrokenPipeError:  # the program refused the heap
        pass
    with process.stdout as out, process.stderr as err:
        text, errors = out.read(), err.read()
    _, status, usage = os.wait4(process.pid, 0)
    alarm.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, text, errors, usage.ru_maxrss


def look(arguments, heap):
    return call([*arguments, heap])


def program(case, heap):
    if case.argv:
        return call(case.argv, HEAP=heap, preload=API)
    if case.state == "dirty":
        return call([app("kvshell")], "list\nverify\nquit\n", HEAP=heap, ROOTS="store")
    return call([app("list"), "check"], HEAP=heap, ROOTS="list_state")


LOOKS = [["pmalloc-recover", "--dry-run"], ["pmalloc-info"], ["pmalloc-info", "--json", "--map"]]


def healthy(done, statuses, what):
    status, _, errors, memory = done
    assert status in statuses, f"{what}: status {status}\n{errors}"
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert memory < max(LIMIT_KB, mine + 1024), f"{what}: {memory} KiB"
    if status in (4, 125):
        lines = errors.splitlines()
        assert len(lines) == 1 and re.match(
            r"(pmalloc|pmalloc-recover|pmalloc-info): ", lines[0]
        ), (what, errors)
    return status


def same_files(heap, size_only, files):
    for name in {*FILES, *files}:
        path = heap / name
        assert path.exists() == (name in files), f"{name} came or went"
        if name in files and name not in size_only:
            assert path.read_bytes() == files[name], f"{name} was changed"


def tried(case, heap, what, files, everything, size_only=()):
    """Runs all tools and the program on the spoilt copy. Returns whether they accepted it."""
    verdict = healthy(
        look([tool("pmalloc-recover"), "--check"], heap), (0, 1, 4), f"{what}: --check"
    )
    if verdict == 4:
        others = LOOKS + [["pmalloc-recover"]]
        for argv in others if everything else [random.Random(what).choice(others)]:
            healthy(look([tool(argv[0]), *argv[1:]], heap), (4,), f"{what}: {argv}")
        healthy(program(case, heap), (125,), f"{what}: program")
        same_files(heap, size_only, files)
        return False
    for argv in LOOKS if everything else []:
        healthy(look([tool(argv[0]), *argv[1:]], heap), (0,), f"{what}: {argv}")
    same_files(heap, size_only, files)
    if random.Random(what).random() < 0.5:
        healthy(look([tool("pmalloc-recover")], heap), (0,), f"{what}: recover")
    done = program(case, heap)
    healthy(done, (0,), f"{what}: program")
    assert done[1] == case.expected, f"{what}: other data"
    assert on_media(heap) < 16 << 20, f"{what}: {on_media(heap)} bytes on the file system"
    assert (
        healthy(look([tool("pmalloc-recover"), "--check"], heap), (0,), f"{what}: afterwards") == 0
    )
    return True


def spoil_all(case, directory, jobs):
    """Tries each (field, value) job on a copy of the heap. Returns what was wrong, and the names of
    the fields whose change was accepted."""
    heap, wrong, accepted = directory / "heap", [], []
    write(heap, case.media)
    for number, (field, value) in enumerate(jobs):
        name = case.on_media(field.file)
        what = f"{case.state}: {field.name} of {name}={value.hex()}"
        files = {**case.media, name: bytearray(case.media[name])}
        field.put(files[name], value)
        with open(heap / name, "r+b") as out:
            out.seek(field.offset)
            out.write(value)
        try:
            if tried(case, heap, what, files, number % 8 == 0):
                accepted.append(field.name)
                write(heap, case.media)
            else:
                with open(heap / name, "r+b") as out:
                    out.seek(field.offset)
                    out.write(field.get(case.media[name]))
        except AssertionError as error:
            wrong.append(str(error))
            write(heap, case.media)
    return wrong, accepted


# ---- the tests -----------------------------------------------------------------------------------


def morphing():
    """Commands that leave slabs hardly used, and then need some for values of another size."""
    yield from (f"set long{i} {'x' * 980}" for i in range(200))
    yield from (f"del long{i}" for i in range(200) if i % 8)
    yield from (f"set short{i} {'y' * 600}" for i in range(150))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Three heaps: its program closed one, recovery closed another, and the third one's program was
    killed."""
    folder = pathlib.Path("/dev/shm") / f"pmalloc-test-damage-{os.getpid()}"
    folder.mkdir(mode=0o700)
    cases = {}
    for state in ("clean", "dirty", "recovered"):
        heap = folder / state
        for ops in (500, 60):  # two processes, so that both root tables are used
            if state == "dirty":
                commands = [*(morphing() if ops == 500 else ()), f"fill {ops} {ops}", ""]
                call(
                    [app("kvshell")],
                    "\n".join(commands),
                    kill=ops == 60,
                    HEAP=heap,
                    ROOTS="store",
                    MORPH=60,
                )
            else:
                call([app("list"), "run", ops, 7], HEAP=heap, ROOTS="list_state", MORPH=0)
        if state == "recovered":
            assert look([tool("pmalloc-recover")], heap)[0] == 0
        cases[state] = Case(heap, read_to_write(heap), None)
        assert look([tool("pmalloc-recover"), "--check"], heap)[0] == (state == "dirty")
        assert bool(cases[state].tables) == (state == "dirty")
        done = program(cases[state], heap)
        assert done[0] == 0 and done[1].count("ok ") == 1, done
        cases[state].expected = done[1]
    yield cases
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def pinned():
    """A heap of pinned blocks, small and large, whose program was killed before a publish."""
    argv = [linked("pinned.c"), "tagged"]
    folder = pathlib.Path("/dev/shm") / f"pmalloc-test-pinned-{os.getpid()}"
    folder.mkdir(mode=0o700)
    heap = folder / "dirty"
    call([*argv, "leave"], HEAP=heap, preload=API)
    call([*argv, "hang"], kill=True, HEAP=heap, preload=API)
    assert json.loads(look([tool("pmalloc-info"), "--json"], heap)[1])["pinned"] > 500
    case = Case(heap, read_to_write(heap), None)
    assert case.tables
    case.argv = [*argv, "check"]
    done = program(case, heap)
    assert done[0] == 0 and done[1].startswith("ok "), done
    case.expected = done[1]
    yield case
    shutil.rmtree(folder)


@pytest.mark.parametrize("state", ["clean", "dirty", "recovered"])
def test_every_field(originals, state, shm, rng):
    case = originals[state]
    jobs = [
        (f, v) for f in case.chosen(rng) for v in case.values(f, rng) if not case.unprotected(f, v)
    ]
    print(f"{len(jobs)} changes of {len({f.name for f, _ in jobs})} fields")
    halves = [shm / "a", shm / "b"]
    for half in halves:
        half.mkdir(mode=0o700)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(spoil_all, [case] * 2, halves, [jobs[::2], jobs[1::2]]))
    wrong = [text for result in results for text in result[0]]
    assert not wrong, f"{len(wrong)} of {len(jobs)}:\n" + "\n".join(wrong[:20])
    unknown = sorted({n for result in results for n in result[1] if not case.may_change(n)})
    assert not unknown, f"no reader noticed changes of: {unknown}"


def sizes(name, now):
    yield from (
        0,
        now // 2,
        max(now - 4096, 0),
        max(now - 1, 0),
        now + 1,
        now + 1024,
        now + 4096,
        now + (4 << 20),
        1 << 30,
    )
    if name == "heap.0":  # the whole range, and beyond
        yield from (1 << 40, (1 << 40) + 4096)


def test_pinned_blocks(pinned, shm, rng):
    """Some words of their tables, their slabs' headers and their log entries."""
    jobs = [
        (f, v)
        for f in pinned.chosen(rng)
        for v in pinned.values(f, rng)
        if "FREE" not in pinned.shape(f.name) and not pinned.unprotected(f, v)
    ]
    tables = [job for job in jobs if job[0].file == "morph.0"]
    wanted = lambda f: f.file in ("slabs.0", "booklog.0") or f.name.startswith("lane")
    others = [job for job in jobs if wanted(job[0])]
    wrong, accepted = spoil_all(pinned, shm, tables + rng.sample(others, 30))
    assert not wrong and len(tables) > 5, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
    unknown = sorted({name for name in accepted if not pinned.may_change(name)})
    assert not unknown, f"no reader noticed changes of: {unknown}"


# ---- the second shard ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory):
    """A heap of two data files, closed by its program, and one whose program was killed."""
    folder = pathlib.Path("/dev/shm") / f"pmalloc-test-shards-{os.getpid()}"
    folder.mkdir(mode=0o700)
    cases = {}
    for state in ("clean", "dirty"):
        heap, killed = folder / state, state == "dirty"
        settings = {"HEAP": heap, "TOPOLOGY": "2x1/3", "MORPH": 60 if killed else 0}
        if killed:
            call([app("kvshell")], "\n".join([*morphing(), ""]), ROOTS="store", **settings)
            call([app("kvshell")], "fill 60 60\n", kill=True, ROOTS="store", **settings)
        else:
            call([app("list"), "run", 2000, 7], ROOTS="list_state", **settings)
        media = {path.name: bytearray(path.read_bytes()) for path in heap.iterdir()}
        forget_origin(media["superblock"])
        cases[state] = Case(heap, media, None, shard=1)
        assert cases[state].slabs, "no slab in the second data file"
        done = program(cases[state], heap)
        assert done[0] == 0 and done[1].count("ok ") == 1, done
        cases[state].expected = done[1]
    yield cases
    shutil.rmtree(folder)


@pytest.mark.parametrize("state", ["clean", "dirty"])
def test_the_second_shard(two_shards, state, shm, rng):
    """Some of the fields of its log, slab headers, index tables and bitmaps."""
    case = two_shards[state]
    jobs = [
        (f, v)
        for f in case.chosen(rng)
        for v in case.values(f, rng)
        if f.file.endswith(".0") and not case.unprotected(f, v)
    ]
    wrong, accepted = spoil_all(case, shm, rng.sample(jobs, min(len(jobs), 30)))
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:20])
    unknown = sorted({name for name in accepted if not case.may_change(name)})
    assert not unknown, f"no reader noticed changes of: {unknown}"


@pytest.mark.check
@pytest.mark.parametrize("state", ["clean", "dirty"])
def test_how_many_shards_there_are(two_shards, state, shm):
    """The word that counts them, the directory of the second one, its files' lengths."""
    case, heap, layout = two_shards[state], shm / "heap", Layout()
    shards = case.by_name["state.reserved"].offset
    volume = shards + layout.offset("pm_shard_state", "volume") + 1
    now = case.media["superblock"][shards]
    for at, value in ((shards, bytes(8)), (shards, b"\xff" * 8), (shards, bytes([now ^ 3])),
                      (volume, b"\x03")):
        files = {**case.media, "superblock": bytearray(case.media["superblock"])}
        files["superblock"][at : at + len(value)] = value
        write(heap, files)
        assert not tried(case, heap, f"{state}: superblock[{at}]={value.hex()}", files, True)
    for name in ("booklog.1", "slabs.1", "heap.1"):
        write(heap, case.media)
        os.truncate(heap / name, 0)
        assert not tried(case, heap, f"{state}: {name} of 0", case.media, True, {name})


@pytest.mark.parametrize("state", ["clean", "dirty"])
def test_every_length(originals, state, shm):
    case, heap = originals[state], shm / "heap"
    for name, data in case.files.items():
        for size in dict.fromkeys(sizes(name, len(data))):
            write(heap, case.files)
            os.truncate(heap / name, size)
            what = f"{state}: {name}.size={size}"
            if tried(case, heap, what, case.files, True, {name}):
                assert case.may_change(f"{name}.size"), f"{what}: no reader noticed"
            elif not (heap / name).stat().st_size == size:
                raise AssertionError(f"{what}: its length was changed")


@pytest.mark.check
@pytest.mark.parametrize("name", ["superblock", "heap.0", "slabs.0", "booklog.0", "roots"])
def test_files_replaced(originals, name, shm):
    """Replaces a file by that of another heap, by an older one of the same heap, or by noise."""
    clean, dirty, heap = originals["clean"], originals["dirty"], shm / "heap"
    noise = random.Random(name).randbytes(len(clean.files[name]))
    for case, other in (
        (clean, dirty.files[name]),
        (dirty, clean.files[name]),
        (clean, noise),
        (dirty, noise),
    ):
        # These hold the program's own data, and only the program can judge them.
        if name in ("heap.0", "roots"):
            continue
        write(heap, case.files)
        (heap / name).write_bytes(other)
        for argv in [["pmalloc-recover", "--check"], *LOOKS]:
            healthy(
                look([tool(argv[0]), *argv[1:]], heap),
                (0, 1, 4),
                f"{case.state}: other {name}: {argv}",
            )
        assert (heap / name).read_bytes() == other


@pytest.mark.check
@pytest.mark.parametrize("state", ["clean", "recovered"])
def test_captured_roots_are_vouched_for_by_a_clean_close(originals, state, shm):
    """If zeroes were accepted, every variable would be new, and the next opening would free all
    data."""
    case, heap = originals[state], shm / "heap"
    write(heap, case.files)
    (heap / "roots").write_bytes(bytes(len(case.files["roots"])))
    before = read(heap)
    for argv in [["pmalloc-recover", "--check"], *LOOKS]:
        done = look([tool(argv[0]), *argv[1:]], heap)
        healthy(done, (4,) if argv[0] == "pmalloc-recover" else (0, 4), f"{state}: {argv}")
    done = program(case, heap)
    healthy(done, (125,), state)
    assert "captured roots" in done[2]
    assert read(heap) == before


@pytest.mark.parametrize("name", FILES)
def test_pipes_in_the_place_of_files(originals, name, shm):
    """No tool waits for the other end of a pipe."""
    case, heap = originals["clean"], shm / "heap"
    if name not in case.files:  # the record of the other generation
        return
    write(heap, case.files)
    (heap / name).unlink()
    os.mkfifo(heap / name, 0o600)
    accepted = (0,) if name == "bitmaps.0" else (8,)
    for argv in [["pmalloc-recover", "--check"], *LOOKS]:
        healthy(look([tool(argv[0]), *argv[1:]], heap), accepted, f"{name}: {argv}")
    healthy(program(case, heap), (0,) if name == "bitmaps.0" else (125,), f"{name}: program")


def test_a_pipe_in_the_place_of_a_busy_heap_s_superblock(originals, shm):
    """A tool that asks who holds the heap does not wait for a pipe either."""
    case, heap = originals["clean"], shm / "heap"
    write(heap, case.files)
    (heap / "superblock").unlink()
    os.mkfifo(heap / "superblock", 0o600)
    held = os.open(heap, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        healthy(look([tool("pmalloc-recover"), "--check"], heap), (8,), "--check")
        healthy(program(case, heap), (125,), "program")
    finally:
        os.close(held)


# ---- the tool ------------------------------------------------------------------------------------

SPOIL = ROOT / "tests" / "fuzz" / "spoil"


def test_spoil(originals, shm):
    case, heap = originals["clean"], shm / "heap"
    write(heap, case.files)
    listed = dict(line.split("=") for line in succeeds(spoil(heap)).splitlines())
    assert listed["superblock.base"] == "0x400000000000" and listed["heap.0.size"] == str(
        len(case.files["heap.0"])
    )
    assert len(listed) > 5000
    changes = [
        "slabs[0].size_class^=3",
        "booklog.chunk[0].entry[5]=booklog.chunk[0].entry[6]",
        "roots.size=0x10",
    ]
    succeeds(spoil(heap, *changes))
    after = dict(line.split("=") for line in succeeds(spoil(heap)).splitlines())
    changed = {
        name
        for name in listed
        if listed[name] != after.get(name) and not name.startswith("images.")
    }
    assert changed == {"slabs[0].size_class", "booklog.chunk[0].entry[5]", "roots.size"}
    assert int(after["slabs[0].size_class"], 0) == int(listed["slabs[0].size_class"], 0) ^ 3
    for wrong in ("superblock.bse=1", "superblock.base=x", "superblock.base"):
        done = spoil(heap, wrong)
        assert done.returncode == 16 and done.stderr.count("\n") == 1, done


def spoil(*argv):
    command = [sys.executable, "-B", SPOIL, *argv]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=60 * busy(), check=False
    )


def test_fields_are_the_header_s():
    """The parser agrees with every size and offset that the headers assert, and finds every struct
    in them."""
    layout = Layout()
    media = ROOT / "core" / "media"
    FORMATS = ("format", "origin_format", "outside_format", "dealloc_format")
    FORMATS += ("bitmaps_format", "lane_format", "objects_format", "types_format")
    FORMATS += ("journal/instants_format", "recovered_format", "rebased_format")
    FORMATS += ("typed_words_format",)
    text = "".join((media / f"{name}.h").read_text("utf-8") for name in FORMATS)
    assert set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE)) == set(layout.structs)
    assert layout.structs["pm_super_file"].size == 3 * 4096 + 2 * 86016
    assert layout.offset("pm_state", "clean") == 512
