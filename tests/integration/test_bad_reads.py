# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A file of the heap that cannot be read through its mapping: a bad block, or a file that was cut.
Both are a SIGBUS. cut.c cuts a file just after it was mapped and measured, so that the pages are
missing wherever the heap is looked at next."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOTS, app, busy, compiled, environment, forget_origin, linked
from conftest import refuses, run, said, start, tool

SEEN = BUILD / "seen" / "libpmalloc_preload"
SBIN = "/usr/sbin:/usr/bin:/sbin:/bin"
# Each file that is mapped, what is left of it, and how many mappings of it come before. The first
# mapping of `roots` only tries whether it can be mapped.
FILES = {
    "superblock": (0, 0),
    "booklog.0": (0, 0),
    "slabs.0": (0, 0),
    "morph.0": (0, 0),
    "roots": (0, 1),
    "heap.0": (4096, 0),
    "heap.0 middle": (1 << 23, 0),
}
TOOLS = {
    "recover": ["pmalloc-recover", "HEAP"],
    "threads": ["pmalloc-recover", "--threads", "4", "HEAP"],
    "check": ["pmalloc-recover", "--check", "HEAP"],
    "dry run": ["pmalloc-recover", "--dry-run", "--json", "HEAP"],
    "drop root": ["pmalloc-recover", "--drop-root", "hash_state", "--yes", "HEAP"],
    "info": ["pmalloc-info", "HEAP"],
    "html": ["pmalloc-info", "--html", "HEAP"],
    "leaks": ["pmalloc-info", "--leaks", "HEAP"],
    "diff": ["pmalloc-info", "--diff", "HEAP", "HEAP"],
    "backup": ["pmalloc-backup", "HEAP", "BACKUP"],
}
STARTS = {
    "start": {},
    "markers": {"MARKERS": 4},
    "private": {"OPEN": "private"},
    "commits": {"COMMIT": "output"},
    "later": {"COLLECT": "later", "COMMIT": "output"},
    "background": {"COLLECT": "background", "COMMIT": "output"},
}
# These are read by marking, when a process that recovers the heap has said in it that it does.
MARKED = {"roots", "heap.0", "heap.0 middle"}
WRITE = {*STARTS, "recover", "threads"} - {"private"}
# Not every process looks at every file.
UNREAD = {
    ("private", "heap.0"),  # neither marks
    ("private", "heap.0 middle"),
    ("later", "heap.0"),
    ("later", "heap.0 middle"),
    ("background", "heap.0"),
    ("background", "heap.0 middle"),
    ("check", "morph.0"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A killed heap with all its files."""
    heap = tmp_path_factory.mktemp("bad-reads") / "made"
    settings = {"HEAP": heap, "ROOTS": ROOTS["hashset"]}
    for arguments in (("run", "3000", "7"), ("leak", "300", "-k")):
        done = run([app("hashset"), *arguments], **settings)
        assert done.returncode in (0, -9), said(done)
    forget_origin(heap)  # its files are copied one by one
    return heap


@pytest.fixture
def copy(made, shm):
    """A copy of it in memory. Its name ends in heap."""
    return pathlib.Path(shutil.copytree(made, shm / "heap", symlinks=True))


def cut(name):
    """The environment that cuts a file of the heap."""
    left, skip = FILES[name]
    name = name.split()[0]
    layer = compiled("cut.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="cut.so")
    cuts = {"CUT_NAME": f"/heap/{name}", "CUT_AT": str(left), "CUT_SKIP": str(skip)}
    return str(layer), cuts


def under(argv, env, layer, cuts):
    env = {**env, **cuts}
    libraries = env.get("LD_PRELOAD", "").replace(f"{BUILD}/libpmalloc_preload", f"{SEEN}")
    env["LD_PRELOAD"] = ":".join(filter(None, [layer, libraries]))
    return subprocess.run(
        [str(a) for a in argv],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100 * busy(),
        check=False,
    )


def told(line, heap, name, changed):
    """Whether the line names the file, the byte, and what to do."""
    assert f": {heap}/{name.split()[0]} cannot be read" in line, line
    assert "mend the disk" in line and "from a backup" in line, line
    assert ("nothing was changed" in line) != changed, line
    byte = re.search(r" at byte (\d+):", line)
    assert byte or name == "superblock", line  # which is asked for as a whole
    assert not byte or int(byte[1]) >= FILES[name][0], line


def unchanged(heap, made, name):
    """Nothing of the heap has changed but the file that was cut."""
    for path in heap.iterdir():
        if path.name != name.split()[0]:
            assert path.read_bytes() == (made / path.name).read_bytes(), path


def whole_again(heap, made, name):
    """The file can be read again: the heap has everything."""
    name = name.split()[0]
    shutil.copy(made / name, heap / name)
    done = run([app("hashset"), "check"], HEAP=heap, ROOTS=ROOTS["hashset"])
    assert done.returncode == 0 and done.stdout.startswith("ok "), said(done)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", STARTS)
def test_a_start_is_refused(how, name, made, copy):
    layer, cuts = cut(name)
    # With the layer libraries lie elsewhere, which would be looked at first.
    env = environment(HEAP=copy, ROOTS=ROOTS["hashset"], REBASE="report", **STARTS[how])
    done = under([app("hashset"), "check"], env, layer, cuts)
    if (how, name) in UNREAD:
        return
    changed = how in WRITE and name in MARKED
    told(refuses(done), copy, name, changed)
    if not changed:
        unchanged(copy, made, name)
    whole_again(copy, made, name)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A killed heap of a shell, of which a start reads a little only."""
    heap = tmp_path_factory.mktemp("bad-reads") / "shop"
    program = start([app("kvshell")], HEAP=heap, ROOTS="store", COMMIT="output")
    program.stdin.write("fill 60000 1\nset colour red\n")
    program.stdin.flush()
    assert [program.stdout.readline() for _ in range(2)] == ["filled 60000\n", "ok\n"]
    program.kill()
    program.communicate()
    assert (heap / "heap.0").stat().st_size > 2 * FILES["heap.0 middle"][0]
    forget_origin(heap)
    return heap


@pytest.mark.check
def test_the_end_of_a_file_is_no_hole(shop, shm):
    """Large blocks are looked for holes, which have no addresses. What is cut off is none."""
    heap = pathlib.Path(shutil.copytree(shop, shm / "heap", symlinks=True))
    layer, cuts = cut("heap.0 middle")
    done = under([app("kvshell")], environment(HEAP=heap, ROOTS="store"), layer, cuts)
    told(refuses(done), heap, "heap.0 middle", changed=True)


def as_an_old_kernel():
    """uname() says 2.6."""
    ctypes.CDLL(None).personality(0x0020000)


@pytest.mark.parametrize("kernel", [None, as_an_old_kernel], ids=["", "old kernel"])
@pytest.mark.parametrize("data", ["HEAP", "COMMIT_DIR"])
def test_a_collection_beside_the_program(data, kernel, shop, shm):
    """The program does not look at what cannot be read, but waits for a command. What was answered
    is there. Before Linux 6.9 the kernel cannot be asked for all of it at once."""
    heap = pathlib.Path(shutil.copytree(shop, shm / "heap", symlinks=True))
    layer = compiled("bad_range.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="bad_range.so")
    from_byte = FILES["heap.0 middle"][0]
    env = environment(**{data: heap}, ROOTS="store", COMMIT="output", COLLECT="background")
    env |= {"BAD_NAME": "/heap/heap.0", "BAD_AT": str(from_byte), "BAD_HOW": "mapped"}
    env["LD_PRELOAD"] = f"{layer}:{BUILD / 'seen' / 'libpmalloc_preload.so'}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    program = subprocess.Popen([app("kvshell")], env=env, text=True, preexec_fn=kernel, **pipes)
    try:
        program.wait(60 * busy())
    finally:
        program.kill()
    out, err = program.communicate()
    assert (program.returncode, out) == (125, ""), err
    (line,) = err.splitlines()
    told(line, heap, "heap.0 middle", changed=True)
    done = run([app("kvshell")], HEAP=heap, ROOTS="store", stdin="verify\nget colour\n")
    assert done.stdout == "ok 60001 keys\nred\n", said(done)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", TOOLS)
def test_a_tool_gives_up(how, name, made, copy, shm):
    layer, cuts = cut(name)
    places = {"HEAP": copy, "BACKUP": shm / "backup"}
    program, *arguments = [places.get(word, word) for word in TOOLS[how]]
    done = under([tool(program), *arguments], environment(False), layer, cuts)
    assert done.returncode == 8, said(done)
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith(f"{program}: ") for line in lines), said(done)
    changed = how in WRITE and name in MARKED
    told(lines[0], copy, name, changed)
    if not changed:
        unchanged(copy, made, name)
    whole_again(copy, made, name)


@pytest.mark.parametrize("blocked", [(), ("blocked",)], ids=["", "blocked"])
@pytest.mark.parametrize("name", [None, "superblock", "booklog.0", "slabs.0"])
def test_a_call_returns_an_error(name, blocked, shm):
    """And the program has its own handler, mask and pending signal as before."""
    heap, bus = shm / "heap", linked("bus.c", "-pthread")
    program = start([linked("named.c", "-pthread"), "list", heap], preload=False)
    assert program.stdout.readline() == "0\n"
    program.kill()
    program.communicate()
    layer, cuts = cut(name) if name else ("", {})
    env = {**environment(False), "LD_LIBRARY_PATH": str(SEEN.parent)}
    done = under([bus, heap, shm / "own", *blocked], env, layer, cuts)
    assert done.returncode == 0, said(done)
    if not name:
        assert (done.stdout, done.stderr) == ("opened\n", ""), said(done)
        return
    assert done.stdout == "refused: Input/output error\n", said(done)
    (line,) = done.stderr.splitlines()
    told(line, heap, name, changed=False)


# heap.0 comes last, so the end of the disk is its end.
BAD_DISK = """
mkdir "$1" "$2" && truncate -s 96M "$3" && dev=$(losetup -f --show "$3") || exit 77
trap 'cd /; umount "$1" 2>/dev/null; losetup -d $dev' EXIT
mkfs.ext4 -qF -O ^has_journal -m 0 $dev && mount $dev "$1" && mkdir -m 700 "$1/heap" || exit 77
for file in $(ls -r "$4" | grep -v heap.0) heap.0; do cp --sparse=always "$4/$file" "$1/heap"; done
sync
block=$(filefrag -v -b4096 "$1/heap/heap.0" | tr -d .: | awk '$1 ~ /^[0-9]+$/ && $2 >= 2048 \
    {print $4; exit}')
umount "$1"
truncate -s $((block * 4096)) "$3"   # all from there on is gone from the disk
mount $dev "$1" || exit 77
seen() { cat "$1/heap/heap.0" > /dev/null 2>&1; true; }   # memory has what lies before it
for tool in "pmalloc-recover --dry-run" "pmalloc-recover" "pmalloc-info" "pmalloc-backup"; do
    last=""
    seen "$1"
    [ "$tool" = pmalloc-backup ] && last="$2/backup"
    $5/$tool "$1/heap" $last > "$2/printed" || echo "$tool $?"
done
export PMALLOC_HEAP="$1/heap" PMALLOC_ROOTS=hash_state
seen "$1"
LD_PRELOAD="$5/libpmalloc_preload.so" $5/apps/hashset check || echo "start $?"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a loop device")
@pytest.mark.skipif(not shutil.which("filefrag", path=SBIN), reason="needs e2fsprogs")
def test_a_disk_with_bad_blocks(made, tmp_path):
    """What a loop device has lost is EIO, to a read() and through a mapping."""
    places = [tmp_path / name for name in ("disk", "out", "image")]
    done = run(["sh", "-c", BAD_DISK, "sh", *places, made, BUILD], preload=False)
    if done.returncode == 77:
        pytest.skip("no loop device here")
    assert done.stdout.splitlines() == [
        "pmalloc-recover --dry-run 8",
        "pmalloc-recover 8",
        "pmalloc-info 8",
        "pmalloc-backup 8",
        "start 125",
    ], said(done)
    lines = done.stderr.splitlines()
    assert len(lines) == 5, said(done)
    for line in lines:
        assert f": {places[0]}/heap/heap.0 cannot be read at byte " in line, line
