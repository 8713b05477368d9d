# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""NUMA in the guest: every block lies on the node of the thread that gets it (placed.c), and a heap
goes to another node (pmalloc-recover --to-node). With eight nodes: what many nodes add to that
(distant.c)."""

import json
import re
import time

from machine import EIGHT, FIXED, TWO, Boot, Medium, make_image

ROUNDS = {2: 3, 8: 2}
SECONDS = {2: 420, 8: 900}
GUESTS = {2: TWO, 8: EIGHT}
# The kernel places the files of a heap on tmpfs by mbind(2). On DAX each lies on its device.
TMPFS = Medium("nodes", "none", "tmpfs", "size=400M")
MEDIA = {
    2: [
        TMPFS,
        Medium("dax-0", "pmem", "ext4", "dax=always", 0),
        Medium("dax-1", "pmem", "ext4", "dax=always", 1),
        *(medium for medium in FIXED.values() if medium.device == "dax"),
    ],
    8: [TMPFS],
}
HEAPS = {
    2: {
        "tmpfs": "/mnt/nodes/heap",
        "dax": "/mnt/dax-0/heap:/mnt/dax-1/heap",
        "dax-other": "/mnt/dax-1/other:/mnt/dax-0/other",
        "devices": "/dev/dax-4k:/dev/dax-2m",  # captured roots need 4 KiB
    },
    8: {"tmpfs": "/mnt/nodes/heap"},
}
MAKE = f"pmalloc-recover --make --force --yes {HEAPS[2]['devices']} >/dev/port/devices 2>&1\n"
# What --to-node must say: heap, node, status, words of it. Node 8 has no cores and little memory.
TAKES = {
    2: [
        ("tmpfs", 1, 0, '"node_moved_files":0'),
        ("tmpfs", 0, 0, '"node_moved_files":0'),
        ("dax", 1, 8, "on DAX of another node"),
        ("dax", 0, 0, '"node_moved_files":1'),
        ("devices", 0, 8, "stays there"),
    ],
    8: [
        ("tmpfs", 2, 0, '"node":2'),
        ("tmpfs", 8, 8, "node 8 has no room"),
        ("tmpfs", 5, 0, '"node":5'),
        ("tmpfs", 9, 16, "no such node"),
    ],
}
# With eight nodes, after that: the heap of node 5 is used by threads of all, on files of theirs.
DISTANT = """
export LD_PRELOAD=/lib/libpmalloc_preload.so PMALLOC_BACKING=volatile PMALLOC_STATS=0
unset PMALLOC_HEAP
PMALLOC_LIMIT=128M distant near 5 8
PMALLOC_LIMIT=128M distant near 0 8
distant memory
PMALLOC_NUMA=off distant memory
distant migrate
"""
PLACED = "200 8 300000"  # blocks of a visit, nodes, bytes that a visit keeps: node 8 has fewer
ONE_NODE_MORE = 128  # KiB that a process may have more of its own where there are eight nodes


def complaints(text, count):
    """What is wrong with the answers of place() in guest.sh."""
    wrong = []
    visits = [tuple(map(int, m)) for m in re.findall(r"placed (\d+) (\d+) (\d+)", text)]
    kept = [tuple(map(int, m)) for m in re.findall(r"kept (\d+) wrong (\d+)", text)]
    moves = [int(m) for m in re.findall(rf"{count} nodes: (\d+) times", text)]
    held = [int(m) for m in re.findall(r"caches hold (\d+) blocks", text)]
    for node, blocks, misplaced in visits:
        if misplaced:
            wrong.append(f"{misplaced} of {blocks} blocks are not on node {node}")
    each = 4 * ROUNDS[count]  # twice by the first thread of a run, and twice by another
    if any([node for node, *_ in visits].count(node) != each for node in range(count)):
        wrong.append(f"{len(visits)} visits, which are not {each} of each node")
    if len(kept) != ROUNDS[count] or any(strayed for _, strayed in kept) or not all(
        found for found, _ in kept[1:]
    ):
        wrong.append(f"blocks of earlier runs, and those on another node than before: {kept}")
    if len(moves) != ROUNDS[count] or min(moves) < 2 * count - 1 or any(held):
        wrong.append(f"threads moved {moves} times, caches hold {held} blocks of another node")
    for line in text.splitlines():
        if line.startswith("{"):
            wrong += misplaced_files(json.loads(line), range(count))
    if '"shards"' not in text:
        wrong.append("pmalloc-info --nodes said nothing")
    if "ended 0" not in text:
        wrong.append("the last run failed")
    return wrong


def misplaced_files(report, nodes):
    """What pmalloc-info --nodes counts on wrong nodes. `nodes` are those of the data files."""
    shards = report["shards"]
    wrong = [
        f"{shard['file']}: {shard['misplaced_bytes']} bytes are not on node {shard['node']}"
        for shard in shards
        if shard["misplaced_bytes"] or shard["unknown_pages"]
    ]
    if sorted(shard["recorded_node"] for shard in shards) != list(nodes):
        wrong.append(f"the data files are {shards}")
    return wrong


def take_complaints(text, takes):
    """What is wrong with the answers of take_to() in guest.sh, of one heap."""
    wrong = []
    parts = re.split(r"^take (\d+)\n", text, flags=re.MULTILINE)[1:]
    answers = [(int(node), answer) for node, answer in zip(parts[::2], parts[1::2])]
    if [node for node, _ in answers] != [node for _, node, *_ in takes]:
        wrong.append(f"--to-node: {text[-500:]}")
    for (node, answer), (*_, status, words) in zip(answers, takes):
        if f"took {status}\n" not in answer or words not in answer:
            wrong.append(f"--to-node {node}: {answer}")
        elif status == 0:
            report = json.loads(answer.splitlines()[-1])
            wrong += misplaced_files(report, [node] * len(report["shards"]))
    return wrong


def distant_complaints(text, guest):
    """What is wrong with the answers of distant.c."""
    wrong = []
    near = re.findall(r"near (\d+):([ \d]*)", text)
    for node, others in ((int(node), list(map(int, others.split()))) for node, others in near):
        order = [guest.distance(node, other) if node != other else 10 for other in others]
        if order != sorted(order) or sorted(others) != list(range(guest.cores)):
            wrong.append(f"requests on node {node} took memory of {others}, {order} away")
    memory = list(map(int, re.findall(r"memory (\d+)", text)))
    if len(near) != 2 or len(memory) != 2 or memory[0] > memory[1] + ONE_NODE_MORE:
        wrong.append(f"{memory} KiB with nodes and without: {text}")
    if "migrate 1 1\n" not in text:
        wrong.append(f"pmalloc_migrate: {text}")
    return wrong


def script_of(count):
    lines = [MAKE] if count == 2 else []
    size = "" if count == 2 else PLACED
    for name, heap in HEAPS[count].items():
        lines.append(f"place {heap} {ROUNDS[count]} {size} >>/dev/port/{name} 2>&1")
    for name, node, *_ in TAKES[count]:
        heap = HEAPS[count][name] if name == "devices" else HEAPS[count][name].split(":")[0]
        lines.append(f"take_to {heap} {node} >>/dev/port/takes-{name}")
    if count == 8:
        lines.append(
            f"PMALLOC_HEAP={HEAPS[8]['tmpfs']} PMALLOC_ROOTS=kept LD_PRELOAD=/lib/"
            f"libpmalloc_preload.so placed {PLACED} >>/dev/port/after 2>&1"
        )
        lines.append(f"({DISTANT}) >>/dev/port/distant 2>&1")
    return "\n".join(lines)


def found_in(texts, count):
    found = []
    for name in HEAPS[count]:
        found += [f"{name}: {wrong}" for wrong in complaints(texts[name], count)]
        takes = [take for take in TAKES[count] if take[0] == name]
        if takes:
            found += [f"{name}: {w}" for w in take_complaints(texts[f"takes-{name}"], takes)]
    if count == 8:
        found += distant_complaints(texts["distant"], GUESTS[count])
        again = re.findall(r"placed (\d+) \d+ 0\n", texts["after"])
        if sorted(map(int, again)) != sorted(list(range(count)) * 4):
            found.append(f"after --to-node: {texts['after']}")
    return found


def check(kernel, base, folder, count=2):
    """Boots with all processors, and returns what is wrong."""
    folder.mkdir()
    for medium in MEDIA[count]:
        make_image(medium, folder)
    ports = [*HEAPS[count], *{f"takes-{take[0]}" for take in TAKES[count]}]
    ports += ["after", "distant"] if count == 8 else []
    boot = Boot(
        kernel, base, folder, MEDIA[count], "cpu", script_of(count), ports, nodes=GUESTS[count]
    )
    end = time.monotonic() + SECONDS[count]
    while boot.running() and time.monotonic() < end:
        time.sleep(0.05)
    late = boot.running()
    boot.cut()
    texts = {
        port: boot.ports[port].read_text(encoding="utf-8", errors="replace") for port in ports
    }
    found = found_in(texts, count)
    if late:
        found.append(
            f"it did not end in {SECONDS[count]} s; the console ends: {boot.console()[-1000:]}"
        )
    return found
