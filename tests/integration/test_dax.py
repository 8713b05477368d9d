# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What a kernel with DAX file systems grants a heap: in the guest of scripts/vm-test, where that
can run."""

import json
import re
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, busy, environment

VM_TEST = ROOT / "scripts" / "vm-test"
MAPFLAGS = BUILD / "vm" / "mapflags"
MEDIA = ("ext4-dax", "xfs-dax")
GUARANTEES = {"cpu": "DAX with caches in the power-fail domain: ", "mem-ctrl": "DAX with ADR: "}
# One line of JSON per medium: of a directory, then of the heap.
JOB = """
failed=0
for medium in ext4-dax xfs-dax; do
    heap=/mnt/$medium/flags
    pmalloc-info --medium --json /mnt/$medium || failed=1
    (export PMALLOC_HEAP=$heap PMALLOC_ROOTS=kept LD_PRELOAD=/lib/libpmalloc_preload.so;
    exec mapflags --huge) >/tmp/out 2>&1 || failed=1
    pmalloc-info --medium --json $heap || failed=1
    cat /tmp/out
    rm -r $heap
done
exit $failed
"""


@pytest.mark.parametrize("domain", GUARANTEES)
def test_every_file_is_mapped_with_map_sync(domain):
    if not VM_TEST.exists() or not MAPFLAGS.exists():
        pytest.skip("there is no guest")
    done = subprocess.run(
        [
            sys.executable,
            VM_TEST,
            "--run",
            JOB,
            "--program",
            MAPFLAGS,
            "--media",
            ",".join(MEDIA),
            "--domain",
            domain,
        ],
        env={**environment(preload=False), "BUILD": str(BUILD)},
        capture_output=True,
        text=True,
        timeout=180 * busy(),
        check=False,
    )
    if "vm-test: skipped" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [answer["heap"] for answer in answers] == [False, True] * len(MEDIA), done.stdout
    for answer in answers:
        assert answer["file_system"] == MEDIA[answers.index(answer) // 2].split("-")[0]
        assert all(answer["map_sync"].values()) and len(answer["map_sync"]) == (
            6 if answer["heap"] else 1
        )
        assert answer["guarantee"].startswith(GUARANTEES[domain])
        assert answer["flush"] == ("none" if domain == "cpu" else "clwb")
        assert [region["behind"] for region in answer["regions"]].count(True) == 1
        assert "dax=always" in answer["options"].split(",")
    whole = re.findall(
        r"mapflags: (\d+) mappings of the heap, 0 without MAP_SYNC, 0 after a fork", done.stdout
    )
    assert len(whole) == len(MEDIA) and all(int(count) >= 6 for count in whole), done.stdout
