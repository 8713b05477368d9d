# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Every field of a heap spoiled, one at a time: nothing crashes, hangs or eats memory, nothing is lost silently.

The fields come from core/layout.h (tests/fuzz/heap_layout.py). Of arrays a few elements stand for all; of the log, all
entries in use. After each change all tools and the program must agree: either the heap is refused, with
one line, and its files are untouched; or the program finds exactly the data it had.
"""

import concurrent.futures
import fcntl
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
from conftest import ROOT, app, environment, on_media, succeeds, tool

sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
from heap_layout import FILES, Layout, fields, read  # noqa: E402

LIMIT_KB = 96 * 1024  # of any process, more than what it was before its exec: this one; a heap here has 4 MiB
SECONDS = 20
SAMPLES = 1  # elements of an array, beside the first and the last in use

# What may change without a refusal: fields, heap states, reason. The data must be the same all the same.
ALL, DIRTY = {"clean", "recovered", "dirty"}, {"dirty"}
INFORMATIVE = [
    (r"state\.(owner_pid|owner_start|program.*|reserved.*)", ALL, "for messages only"),
    (r"state\.(opens|bitmaps_tag)|state\.clean\..*", DIRTY, "mean something after a clean close"),
    (r"state\.state", ALL - DIRTY, "clean read as dirty is recovered as after a crash"),
    (r"booklog\.header\.reserved", ALL, "not used"),
    (r"booklog\.chunk\[FREE\].*", ALL, "not in the log"),
    (r"slabs\[FREE\].*", ALL, "of no slab"),
    (r"morph\.word\[FREE\]", ALL, "of no slab's index table"),
    (r"bitmaps\..*", ALL, "rebuilt by marking"),
    (r"roots\.table\[OTHER\].*|roots\.table\[\d\]\.pad", ALL, "the table that is not in force"),
    (r"roots\.table\[\d\]\.root\[FREE\].*", ALL, "behind the last root"),
    (r"images\.word\[OTHER\]", ALL, "no root's bytes"),
    (r"superblock\.size", ALL, "bytes behind the last field"),
    (r"(slabs\.0|morph\.0|booklog\.0|roots|bitmaps\.0)\.size", ALL, "longer than it needs to be"),
    (r"heap\.0\.size", DIRTY, "free pages come and go at its end"),
]
# Slots of a chunk in the order of appending: one cache line after the other, and line 0 has six.
ORDER = [6 + (line - 1) * 8 + row if line else row for row in range(6) for line in range(16)]
ORDER += [6 + line * 8 + row for row in (6, 7) for line in range(15)]


class Case:
    def __init__(self, heap, files, expected):
        self.heap, self.files, self.expected = heap, files, expected
        self.state = heap.name
        layout = Layout()
        number = lambda file, at, size: int.from_bytes(files[file][at : at + size], "little")
        self.epoch = number("superblock", 4096 + layout.offset("pm_state", "root_epoch"), 4)
        self.log_epoch = number("booklog.0", layout.offset("pm_log_header", "epoch"), 4)
        table = layout.offset("pm_super_file", "roots") + layout.structs["pm_root_table"].size * (self.epoch & 1)
        self.roots = number("superblock", table + layout.offset("pm_root_table", "count"), 4)
        self.fields = fields(files, layout)
        self.by_name = {f.name: f for f in self.fields}
        self.slabs = self.slabs_in_use()
        self.tables = {word for slab in self.slabs for word in self.index_table(slab)}
        self.captured = set()
        for i in range(self.roots):
            root = f"roots.table[{self.epoch & 1}].root[{i}]"
            first, length = (self.get(f"{root}.{name}") for name in ("image", "length"))
            self.captured |= set(range(first // 8, (first + length - 1) // 8 + 1))

    def get(self, name):
        field = self.by_name[name]
        return int.from_bytes(field.get(self.files[field.file]), "little")

    def slabs_in_use(self):
        """The log replayed: slabs whose entry no tombstone ends."""
        entries, ended = {}, set()
        for chunk in range(len(self.files["booklog.0"]) // 1024 - 4):
            if self.get(f"booklog.chunk[{chunk}].epoch") & 0xFFFFFFFF != self.log_epoch:
                continue
            generation = self.get(f"booklog.chunk[{chunk}].generation") & 0x3FFFFFF
            for slot in range(126):
                entry = self.get(f"booklog.chunk[{chunk}].entry[{slot}]")
                entries[chunk * 128 + slot, generation] = entry
                if entry & 3 == 3:
                    ended.add((entry >> 2 & 0xFFFFFFF, entry >> 38))
        return {e >> 6 & 0xFFFFFF for at, e in entries.items() if e & 3 == 2 and at not in ended}

    def index_table(self, slab):
        """The words of morph.0 that a slab's header names: the table's head, then one for 32 old blocks each."""
        first = (self.get(f"slabs[{slab}].now") & 0x3FFFFFF) * 8
        if not first:
            return range(0)
        old_class = self.files["morph.0"][first * 8 + 4]
        step = max(0, (old_class - 5) // 4)
        size = 16 * old_class if old_class <= 8 else 16 * (old_class - 4 * step) << step
        return range(first, first + 2 + -(-(65536 // size) // 32))

    def shape(self, name):
        """The name with what its indices mean in their place."""
        if match := re.match(r"booklog\.chunk\[(\d+)\]", name):
            epoch = self.get(f"booklog.chunk[{match[1]}].epoch") & 0xFFFFFFFF
            return name if epoch == self.log_epoch else re.sub(r"chunk\[\d+\]", "chunk[FREE]", name)
        if match := re.match(r"slabs\[(\d+)\]", name):
            return name if int(match[1]) in self.slabs else re.sub(r"\[\d+\]", "[FREE]", name)
        if match := re.match(r"morph\.word\[(\d+)\]", name):
            return name if int(match[1]) in self.tables else "morph.word[FREE]"
        if match := re.match(r"images\.word\[(\d+)\]", name):
            return name if int(match[1]) in self.captured else "images.word[OTHER]"
        if match := re.match(r"roots\.table\[(\d)\]", name):
            if int(match[1]) != self.epoch & 1:
                return name.replace(match[0], "roots.table[OTHER]", 1)
            root = re.search(r"root\[(\d+)\]", name)
            if root and int(root[1]) >= self.roots:
                return name.replace(root[0], "root[FREE]", 1)
        return name

    def may_change(self, name):
        shape = self.shape(name)
        return any(re.fullmatch(p, shape) and self.state in states for p, states, _ in INFORMATIVE)

    def newest_entry(self):
        """The log without its last entry is a log: in a dirty heap nothing can tell. A clean close vouches for it."""
        for i in range(len(self.files["booklog.0"]) // 1024 - 4):
            chunk = f"booklog.chunk[{i}]"
            used = [slot for slot in ORDER if self.get(f"{chunk}.entry[{slot}]")]
            if self.shape(chunk) == chunk and 0 < len(used) < 126:
                return f"{chunk}.entry[{used[-1]}]"
        return None

    def unprotected(self, field, value):
        if field.name.startswith("images.") and self.state == "dirty":
            return True  # the program's own variables, to which it stored until its very end
        return self.state == "dirty" and not any(value) and field.name == self.newest_entry()

    def chosen(self, rng):
        """Of every shape of field some; all entries of the log that are in use."""
        groups = {}
        for field in self.fields:
            shape = re.sub(r"\[\d+\]", "[]", self.shape(field.name))
            if ".entry[" in field.name and any(field.get(self.files[field.file])) and "FREE" not in shape:
                shape = field.name
            groups.setdefault(shape, []).append(field)
        for group in groups.values():
            some = {group[0].name: group[0], group[-1].name: group[-1]}
            some |= {f.name: f for f in rng.sample(group, min(SAMPLES, len(group)))}
            yield from some.values()

    def values(self, field, rng):
        """What to put there instead, all different from what is there; other ones in each run."""
        now = field.get(self.files[field.file])
        all_ones = b"\xff" * field.size
        flip = lambda bit: bytes(b ^ (1 << bit % 8 if i == bit // 8 else 0) for i, b in enumerate(now))
        data = self.files[field.file]
        neighbours = [data[field.offset + field.size :][: field.size], data[: field.offset][-field.size :]]
        found = [bytes(field.size), all_ones, flip(0), flip(field.size * 8 - 1), flip(rng.randrange(field.size * 8))]
        wild = rng.randbytes(field.size)
        if ".entry[" in field.name:
            # Eight check bits notice every change of up to three; of any others one in 256 gets past them, by design.
            bits = sum(1 << bit for bit in rng.sample(range(field.size * 8), 3))
            wild = (int.from_bytes(now, "little") ^ bits).to_bytes(field.size, "little")
        found += [wild] + [bytes(n) for n in neighbours if len(n) == field.size]
        found = [v for v in dict.fromkeys(found) if v != now]
        return rng.sample(found, min(len(found), 3 if ".entry[" in field.name else 5))


# ---- running -----------------------------------------------------------------------------------------


def call(argv, stdin="", kill=False, **settings):
    """Status, output, errors and peak memory in KiB of a process that must end by itself, or, killed, after an answer."""
    process = subprocess.Popen(
        [str(a) for a in argv],
        env=environment(preload=bool(settings), **settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    alarm = threading.Timer(SECONDS, process.kill)
    alarm.start()
    try:
        process.stdin.write(stdin)
        process.stdin.flush()
        if kill:
            assert process.stdout.readline()
            process.kill()
        process.stdin.close()
    except BrokenPipeError:  # it refused
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
        assert len(lines) == 1 and re.match(r"(pmalloc|pmalloc-recover|pmalloc-info): ", lines[0]), (what, errors)
    return status


def same_files(heap, size_only, files):
    for name in FILES:
        path = heap / name
        assert path.exists() == (name in files), f"{name} came or went"
        if name in files and name not in size_only:
            assert path.read_bytes() == files[name], f"{name} was changed"


def tried(case, heap, what, files, everything, size_only=()):
    """All tools and the program on the spoilt copy; whether it was accepted."""
    verdict = healthy(look([tool("pmalloc-recover"), "--check"], heap), (0, 1, 4), f"{what}: --check")
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
    assert healthy(look([tool("pmalloc-recover"), "--check"], heap), (0,), f"{what}: afterwards") == 0
    return True


def restore(heap, files):
    shutil.rmtree(heap, ignore_errors=True)
    heap.mkdir(mode=0o700)
    for name, data in files.items():
        with open(heap / name, "wb") as out:
            if name == "heap.0":  # keep it sparse
                for at in range(0, len(data), 65536):
                    if any(data[at : at + 65536]):
                        out.seek(at)
                        out.write(data[at : at + 65536])
                out.truncate(len(data))
            else:
                out.write(data)


def spoil_all(case, directory, jobs):
    """Runs (name, changes) jobs on a copy of the heap; what was wrong, and the names that were accepted."""
    heap, wrong, accepted = directory / "heap", [], []
    restore(heap, case.files)
    for number, (field, value) in enumerate(jobs):
        what = f"{case.state}: {field.name}={value.hex()}"
        files = {**case.files, field.file: bytearray(case.files[field.file])}
        field.put(files[field.file], value)
        with open(heap / field.file, "r+b") as out:
            out.seek(field.offset)
            out.write(value)
        try:
            if tried(case, heap, what, files, number % 8 == 0):
                accepted.append(field.name)
                restore(heap, case.files)
            else:
                with open(heap / field.file, "r+b") as out:
                    out.seek(field.offset)
                    out.write(field.get(case.files[field.file]))
        except AssertionError as error:
            wrong.append(str(error))
            restore(heap, case.files)
    return wrong, accepted


# ---- the tests ---------------------------------------------------------------------------------------


def morphing():
    """Commands that leave slabs hardly used, and then need some for values of another size."""
    yield from (f"set long{i} {'x' * 980}" for i in range(200))
    yield from (f"del long{i}" for i in range(200) if i % 8)
    yield from (f"set short{i} {'y' * 600}" for i in range(150))


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A heap that its program closed, one that recovery closed, and one whose program was killed."""
    folder = pathlib.Path("/dev/shm") / f"pmalloc-test-damage-{os.getpid()}"
    folder.mkdir(mode=0o700)
    cases = {}
    for state in ("clean", "dirty", "recovered"):
        heap = folder / state
        for ops in (500, 60):  # two processes: both root tables are used
            if state == "dirty":
                commands = [*(morphing() if ops == 500 else ()), f"fill {ops} {ops}", ""]
                call([app("kvshell")], "\n".join(commands), kill=ops == 60, HEAP=heap, ROOTS="store", MORPH=60)
            else:
                call([app("list"), "run", ops, 7], HEAP=heap, ROOTS="list_state")
        if state == "recovered":
            assert look([tool("pmalloc-recover")], heap)[0] == 0
        cases[state] = Case(heap, read(heap), None)
        assert look([tool("pmalloc-recover"), "--check"], heap)[0] == (state == "dirty")
        assert bool(cases[state].tables) == (state == "dirty")
        done = program(cases[state], heap)
        assert done[0] == 0 and done[1].count("ok ") == 1, done
        cases[state].expected = done[1]
    yield cases
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "dirty", "recovered"])
def test_every_field(originals, state, shm, rng):
    case = originals[state]
    jobs = [(f, v) for f in case.chosen(rng) for v in case.values(f, rng) if not case.unprotected(f, v)]
    print(f"{len(jobs)} changes of {len({f.name for f, _ in jobs})} fields")
    halves = [shm / "a", shm / "b"]
    for half in halves:
        half.mkdir(mode=0o700)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(spoil_all, [case] * 2, halves, [jobs[::2], jobs[1::2]]))
    wrong = [text for result in results for text in result[0]]
    assert not wrong, f"{len(wrong)} of {len(jobs)}:\n" + "\n".join(wrong[:20])
    unknown = sorted({n for result in results for n in result[1] if not case.may_change(n)})
    assert not unknown, f"changes that nobody noticed: {unknown}"


def sizes(name, now):
    yield from (0, now // 2, max(now - 4096, 0), max(now - 1, 0), now + 1, now + 1024, now + 4096, now + (4 << 20), 1 << 30)
    if name == "heap.0":  # the whole range, and beyond
        yield from (1 << 40, (1 << 40) + 4096)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["clean", "dirty"])
def test_every_length(originals, state, shm):
    case, heap = originals[state], shm / "heap"
    for name, data in case.files.items():
        for size in dict.fromkeys(sizes(name, len(data))):
            restore(heap, case.files)
            os.truncate(heap / name, size)
            what = f"{state}: {name}.size={size}"
            if tried(case, heap, what, case.files, True, {name}):
                assert case.may_change(f"{name}.size"), f"{what}: nobody noticed"
            elif not (heap / name).stat().st_size == size:
                raise AssertionError(f"{what}: its length was changed")


@pytest.mark.parametrize("name", ["superblock", "heap.0", "slabs.0", "booklog.0", "roots"])
def test_files_replaced(originals, name, shm):
    """A file of another heap, of an older state of the same, or of noise, in the place of one."""
    clean, dirty, heap = originals["clean"], originals["dirty"], shm / "heap"
    noise = random.Random(name).randbytes(len(clean.files[name]))
    for case, other in ((clean, dirty.files[name]), (dirty, clean.files[name]), (clean, noise), (dirty, noise)):
        if name in ("heap.0", "roots"):  # the program's own data: what it makes of it is its business
            continue
        restore(heap, case.files)
        (heap / name).write_bytes(other)
        for argv in [["pmalloc-recover", "--check"], *LOOKS]:
            healthy(look([tool(argv[0]), *argv[1:]], heap), (0, 1, 4), f"{case.state}: other {name}: {argv}")
        assert (heap / name).read_bytes() == other


@pytest.mark.parametrize("state", ["clean", "recovered"])
def test_captured_roots_are_vouched_for_by_a_clean_close(originals, state, shm):
    """Zeroed, every variable would be as good as new, and all data gone at the next opening."""
    case, heap = originals[state], shm / "heap"
    restore(heap, case.files)
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
    """Nobody waits for the other end of a pipe."""
    case, heap = originals["clean"], shm / "heap"
    restore(heap, case.files)
    (heap / name).unlink()
    os.mkfifo(heap / name, 0o600)
    accepted = (0,) if name == "bitmaps.0" else (8,)
    for argv in [["pmalloc-recover", "--check"], *LOOKS]:
        healthy(look([tool(argv[0]), *argv[1:]], heap), accepted, f"{name}: {argv}")
    healthy(program(case, heap), (0,) if name == "bitmaps.0" else (125,), f"{name}: program")


def test_a_pipe_in_the_place_of_a_busy_heap_s_superblock(originals, shm):
    """Nor when it is asked who holds the heap."""
    case, heap = originals["clean"], shm / "heap"
    restore(heap, case.files)
    (heap / "superblock").unlink()
    os.mkfifo(heap / "superblock", 0o600)
    held = os.open(heap, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        healthy(look([tool("pmalloc-recover"), "--check"], heap), (8,), "--check")
        healthy(program(case, heap), (125,), "program")
    finally:
        os.close(held)


# ---- the tool ----------------------------------------------------------------------------------------

SPOIL = ROOT / "tests" / "fuzz" / "spoil"


def test_spoil(originals, shm):
    case, heap = originals["clean"], shm / "heap"
    restore(heap, case.files)
    listed = dict(line.split("=") for line in succeeds(spoil(heap)).splitlines())
    assert listed["superblock.base"] == "0x400000000000" and listed["heap.0.size"] == str(len(case.files["heap.0"]))
    assert len(listed) > 5000
    changes = ["slabs[0].size_class^=3", "booklog.chunk[0].entry[5]=booklog.chunk[0].entry[6]", "roots.size=0x10"]
    succeeds(spoil(heap, *changes))
    after = dict(line.split("=") for line in succeeds(spoil(heap)).splitlines())
    changed = {name for name in listed if listed[name] != after.get(name) and not name.startswith("images.")}
    assert changed == {"slabs[0].size_class", "booklog.chunk[0].entry[5]", "roots.size"}
    assert int(after["slabs[0].size_class"], 0) == int(listed["slabs[0].size_class"], 0) ^ 3
    for wrong in ("superblock.bse=1", "superblock.base=x", "superblock.base"):
        done = spoil(heap, wrong)
        assert done.returncode == 16 and done.stderr.count("\n") == 1, done


def spoil(*argv):
    command = [sys.executable, "-B", SPOIL, *argv]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)


def test_fields_are_the_header_s():
    """The parser agrees with every size and offset that layout.h asserts, and sees every struct of it."""
    layout = Layout()
    text = (ROOT / "core" / "layout.h").read_text(encoding="utf-8")
    assert set(re.findall(r"^struct (\w+) \{", text, re.MULTILINE)) == set(layout.structs)
    assert layout.structs["pm_super_file"].size == 3 * 4096 + 2 * 86016
    assert layout.offset("pm_state", "clean") == 512
