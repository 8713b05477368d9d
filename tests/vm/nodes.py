# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""NUMA in the guest: every block lies on the node of the thread that gets it (placed.c)."""

import json
import re
import time

from machine import FIXED, Boot, Medium, make_image

ROUNDS = 3
SECONDS = 420
# The kernel places the files of a heap on tmpfs by mbind(2). On DAX each lies on its device.
MEDIA = [
    Medium("nodes", "none", "tmpfs", "size=400M"),
    Medium("dax-0", "pmem", "ext4", "dax=always", 0),
    Medium("dax-1", "pmem", "ext4", "dax=always", 1),
    *(medium for medium in FIXED.values() if medium.device == "dax"),
]
HEAPS = {
    "tmpfs": "/mnt/nodes/heap",
    "dax": "/mnt/dax-0/heap:/mnt/dax-1/heap",
    "dax-other": "/mnt/dax-1/other:/mnt/dax-0/other",
    "devices": "/dev/dax-4k:/dev/dax-2m",  # captured roots need 4 KiB
}
MAKE = f"pmalloc-recover --make --force --yes {HEAPS['devices']} >/dev/port/devices 2>&1\n"
VISITS = 8  # of one run of placed, of both nodes


def complaints(text):
    """What is wrong with the answers of place() in guest.sh."""
    wrong = []
    visits = [tuple(map(int, m)) for m in re.findall(r"placed (\d) (\d+) (\d+)", text)]
    kept = [tuple(map(int, m)) for m in re.findall(r"kept (\d+) wrong (\d+)", text)]
    moves = [int(m) for m in re.findall(r"2 nodes: (\d+) times", text)]
    held = [int(m) for m in re.findall(r"caches hold (\d+) blocks", text)]
    for node, blocks, misplaced in visits:
        if misplaced:
            wrong.append(f"{misplaced} of {blocks} blocks are not on node {node}")
    if [node for node, *_ in visits].count(1) * 2 != len(visits) or len(visits) != VISITS * ROUNDS:
        wrong.append(f"{len(visits)} visits instead of {VISITS * ROUNDS}, or not half on each node")
    if len(kept) != ROUNDS or any(strayed for _, strayed in kept) or not all(
        found for found, _ in kept[1:]
    ):
        wrong.append(f"blocks of earlier runs, and those on another node than before: {kept}")
    if len(moves) != ROUNDS or min(moves) < 3 or any(held):
        wrong.append(f"threads moved {moves} times, caches hold {held} blocks of another node")
    for line in text.splitlines():
        if line.startswith("{"):
            wrong += misplaced_files(json.loads(line))
    if '"shards"' not in text:
        wrong.append("pmalloc-info --nodes said nothing")
    if "ended 0" not in text:
        wrong.append("the last run failed")
    return wrong


def misplaced_files(report):
    """What pmalloc-info --nodes counts on wrong nodes."""
    shards = report["shards"]
    wrong = [
        f"{shard['file']}: {shard['misplaced_bytes']} bytes are not on node {shard['node']}"
        for shard in shards
        if shard["misplaced_bytes"] or shard["unknown_pages"]
    ]
    if report["nodes"] != 2 or sorted(shard["recorded_node"] for shard in shards) != [0, 1]:
        wrong.append(f"the data files are {shards}")
    return wrong


def check(kernel, base, folder):
    """Boots with both processors, and returns what is wrong."""
    folder.mkdir()
    for medium in MEDIA:
        make_image(medium, folder)
    script = MAKE + "\n".join(
        f"place {HEAPS[name]} {ROUNDS} >>/dev/port/{name} 2>&1" for name in HEAPS
    )
    boot = Boot(kernel, base, folder, MEDIA, "cpu", script, list(HEAPS), both_cores=True)
    end = time.monotonic() + SECONDS
    while boot.running() and time.monotonic() < end:
        time.sleep(0.05)
    late = boot.running()
    boot.cut()
    found = []
    for name in HEAPS:
        text = boot.ports[name].read_text(encoding="utf-8", errors="replace")
        found += [f"{name}: {complaint}" for complaint in complaints(text)]
    if late:
        found.append(f"it did not end in {SECONDS} s; the console ends: {boot.console()[-1000:]}")
    return found
