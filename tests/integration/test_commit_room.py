# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap in commit mode that fills a small medium: the journal keeps its room, so malloc fails and
commits go on."""

import json
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, busy, compiled, environment, said, tool

MEDIA = {
    "tmpfs": 'mount -t tmpfs -o size=SIZEm tmpfs "$1"',
    "ext4": 'truncate -s SIZEm "$1.image" && mkfs.ext4 -qF -O ^has_journal -m 0 "$1.image" && '
    'mount -o loop "$1.image" "$1"',
}


@pytest.fixture(scope="module")
def program():
    return compiled("commit.c", "-D_GNU_SOURCE")


@pytest.fixture(params=MEDIA)
def on_a_small_medium(request, program, tmp_path):
    """Runs a script with a medium of its own at $1, of 20 MiB or another size. PMAlloc is $2,
    `program` $3, and pmalloc-recover $4."""
    if request.param == "ext4" and not shutil.which("mkfs.ext4", path="/sbin:/usr/sbin"):
        pytest.skip("needs mkfs.ext4")

    def go(script, size=20, **settings):
        mount = tmp_path / "mount"
        mount.mkdir()
        make = MEDIA[request.param].replace("SIZE", str(size))
        script = f"PATH=$PATH:/sbin:/usr/sbin; {make} || exit 77\n" + script
        argv = ["unshare", "-m", "bash", "-c", script, "-", mount]
        argv += [BUILD / "libpmalloc_preload.so", program, tool("pmalloc-recover")]
        done = subprocess.run(
            [str(a) for a in argv],
            env=environment(False, **settings),
            capture_output=True,
            text=True,
            timeout=60 * busy(),
            check=False,
        )
        if done.returncode in (1, 77) and re.search("unshare|mount", done.stderr):
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        assert done.returncode == 0, said(done)
        return done

    return go


FILL = r"""
    H="PMALLOC_HEAP=$1/heap PMALLOC_ROOTS=store,tickets LD_PRELOAD=$2"
    env $H "$3" fill SIZE 2
    [ $? = 137 ] || exit 3
    unset PMALLOC_COMMIT
    "$4" --json "$1/heap" || exit 4
    env $H "$3" check 2 || exit 5
"""


@pytest.mark.parametrize("size, commit", ((60000, "api"), (60000, "5ms"), (3000000, "api")))
def test_memory_ends_before_the_room_of_commits(on_a_small_medium, size, commit):
    """Blocks are freed and taken again, and each time some of them change, and then all."""
    done = on_a_small_medium(FILL.replace("SIZE", str(size)), COMMIT=commit)
    *rounds, found, checked = done.stdout.splitlines()
    commits = [line.split() for line in rounds]
    assert [line[-1] for line in commits] == ["0"] * 6, said(done)
    lines = [line for line in done.stderr.splitlines() if "pmalloc:" in line]
    assert all("no space for the heap" in line for line in lines), said(done)
    # So much room is not wasted.
    assert min(int(line[0]) for line in commits[::3]) * size > 5 << 20, commits
    assert json.loads(found)["result"] == "recovered" and checked.endswith(" 2 tickets")


@pytest.mark.parametrize("on_a_small_medium", ("tmpfs",), indirect=True)
@pytest.mark.parametrize("pages, least, most", ((0, 20, 32), (300, 33, 52)))
def test_a_lower_bound_of_pages_leaves_more_room_to_the_heap(
    on_a_small_medium, pages, least, most
):
    """Of 64 MiB. The bound is soft, so later commits may fail here. It is kept by a thread that a
    busy machine may start late: one of some runs shows the room."""
    fill = 'PMALLOC_HEAP="$1/heap" PMALLOC_ROOTS=store LD_PRELOAD="$2" "$3" fill 140000 1'
    script = f'for n in 1 2 3 4; do {fill} > "$1.said"; head -1 "$1.said"; rm -r "$1/heap"; done'
    done = on_a_small_medium(script, size=64, COMMIT="api", COMMIT_PAGES=pages)
    rooms = [int(line.split()[0]) * 140000 for line in done.stdout.splitlines()]
    assert len(rooms) == 4 and least << 20 < max(rooms) < most << 20, said(done)
