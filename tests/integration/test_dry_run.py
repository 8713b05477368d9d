# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-recover --dry-run: it says what a recovery would reclaim, and writes no byte."""

import json
import re
import shutil

import pytest
from conftest import fingerprint, recover, recovered, run, said, succeeds, tool


def traces(heap):
    """All that a look could leave: contents, lengths, modes, space and times."""
    times = [(p.name, p.stat().st_blocks, p.stat().st_mtime_ns) for p in sorted(heap.iterdir())]
    return fingerprint(heap), times


@pytest.fixture
def leaked(workload, rng):
    """A heap whose program was killed when it had leaked slabs and large blocks."""
    work = workload("list")
    succeeds(work.run("run", 500, rng.randrange(1 << 30)))
    done = work.run("leak", 2000, "-k")
    assert done.returncode == -9, said(done)
    return work, int(done.stdout.split("bytes=")[1])


def test_it_foretells_what_is_reclaimed(leaked):
    work, size = leaked
    before = traces(work.heap)
    text = succeeds(recover(work.heap, "--dry-run"))
    line = re.search(
        r"^to reclaim +(\S+ \S+), in ([\d,]+) whole slabs? and ([\d,]+) large blocks?", text, re.M
    )
    assert line, text
    told = json.loads(succeeds(recover(work.heap, "--dry-run", "--json")))
    assert traces(work.heap) == before
    assert told["reclaimed_bytes"] > size * 0.9
    assert told["reclaimed_slabs"] > 0 and told["reclaimed_extents"] > 0
    assert told["vacant_bytes"] > 0
    assert [int(n.replace(",", "")) for n in line.groups()[1:]] == [
        told["reclaimed_slabs"],
        told["reclaimed_extents"],
    ]
    classes = told["classes"]
    assert sum(c["live"] for c in classes) <= told["live_objects"]
    assert all(f"of {c['size']} bytes: " in text for c in classes if c["free"]), text
    whole = told["reclaimed_slabs"] * 65536 * 0.9
    assert sum(c["free_bytes"] for c in classes) >= told["vacant_bytes"] + whole
    assert sum(c["slabs"] for c in classes) == told["slabs"] + told["reclaimed_slabs"]
    found = recovered(work.heap)
    for key in told:
        if key.startswith(("reclaimed", "vacant", "live", "leaked")):
            assert told[key] == found[key], key
    again = recovered(work.heap)
    assert again["reclaimed_bytes"] == again["reclaimed_slabs"] == again["reclaimed_extents"] == 0


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("option", ["--dry-run", "--check"])
def test_it_opens_nothing_for_writing(leaked, tmp_path, option):
    work, _ = leaked
    before = traces(work.heap)
    calls = "openat,ftruncate,fallocate,pwrite64,renameat,unlinkat,mmap"
    trace = tmp_path / "trace"
    watch = ["strace", "-f", "-y", "-o", trace, "-e", "trace=" + calls]
    done = run([*watch, tool("pmalloc-recover"), option, work.heap], preload=False)
    assert done.returncode == (1 if option == "--check" else 0), said(done)
    assert traces(work.heap) == before
    heap = re.escape(str(work.heap))
    lines = [line for line in trace.read_text().splitlines() if re.search(heap, line)]
    assert lines
    for line in lines:
        assert not re.search(r"O_RDWR|O_WRONLY|O_CREAT|ftruncate|fallocate|pwrite|rename|unlink",
                             line), line
        assert not ("MAP_SHARED" in line and "PROT_WRITE" in line), line
