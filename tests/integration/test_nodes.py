# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""NUMA nodes that PMALLOC_TOPOLOGY injects: threads that move, kills, heaps that come to a machine
with another number of nodes, nodes without memory. What pages really do is for scripts/vm-test."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import time

import pytest
from conftest import (
    BUILD,
    compiled,
    counted,
    data_files,
    fingerprint,
    linked,
    on_media,
    recover,
    recovered,
    refuses,
    room,
    run,
    said,
    start,
    succeeds,
    tmpfs,
    tool,
)


KILLS = int(os.environ.get("PINNED_KILLS", "0"))


@pytest.fixture(scope="module")
def roam():
    return compiled("roam.c")


@pytest.fixture(scope="module")
def freed_far():
    return linked("freed_far.c")


def figures(done):
    """What malloc_stats() says of nodes, and the blocks that the run has found."""
    assert done.returncode == 0, said(done)
    line = re.search(
        r"(\d+) nodes(?: in \d+ groups)?: (\d+) times .*; (\d+) blocks .* (\d+) large .*; "
        r"caches hold (\d+)",
        done.stderr,
    )
    assert line, said(done)
    names = ("nodes", "moves", "remote", "large_far", "misplaced")
    found = dict(zip(names, map(int, line.groups())))
    found["far"] = int(re.search(r"by other nodes (\d+)", done.stderr)[1])
    found["found"] = int(re.search(r"found (\d+)", done.stdout)[1])
    return found


@pytest.mark.parametrize("topology", ("2x1/7", "3x2/40", "16x1/3", "2x4"))
@pytest.mark.parametrize("backing", ("file", "volatile"))
def test_threads_that_move(roam, heap, topology, backing):
    where = {"HEAP": heap, "ROOTS": "shared"} if backing == "file" else {"BACKING": "volatile"}
    found = 0
    for seed in range(2):
        got = figures(run([roam, 8, 4000, seed], TOPOLOGY=topology, **where))
        nodes = int(topology.split("x")[0])
        assert got["nodes"] == nodes
        assert got["misplaced"] == 0
        assert got["far"] == got["large_far"] == 0
        assert got["remote"] > 1000
        assert (got["moves"] > 100) == ("/" in topology)
        assert got["found"] == found
        found = 256 if backing == "file" else 0
    if backing == "file":
        assert data_files(heap) == nodes
        assert recover(heap, "--check").returncode == 0
        assert recovered(heap)["live_objects"] >= 256


@pytest.mark.parametrize("name", ("list", "hashset"))
def test_kills(workload, processes, rng, name):
    """Each run has other nodes than the last one."""
    work = workload(name)
    topologies = ("2x1/5", "3x1/9", None, "2x2/30", "16x1/2")
    for number in range(10):
        settings = {"TOPOLOGY": topologies[number % 5]} if topologies[number % 5] else {}
        process = work.start("run", 0, rng.randrange(1 << 30), "-t", 2, **settings)
        processes.append(process)
        while "ready" not in process.stdout.readline():
            assert process.poll() is None, process.stderr.read()
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -9, process.stderr.read()
        if number % 3 == 0:
            recovered(work.heap)
        work.check("run", 300, rng.randrange(1 << 30), **settings)
    assert recover(work.heap, "--check").returncode == 0
    assert data_files(work.heap) >= 3
    # At the recovery after a kill a stale word may keep a chain of dead nodes. When the run after
    # it overwrites that word they are leaks: now and then some hundred.
    found = recovered(work.heap)
    assert found["leaked_objects"] <= found["live_objects"] // 10


@pytest.mark.parametrize("settings", ({}, {"COMMIT": "api"}, {"BACKGROUND": "decay"}))
@pytest.mark.parametrize("nodes", ("2x1", "3x2", "16x1"))
def test_kills_among_frees_of_pinned_blocks(freed_far, heap, processes, rng, nodes, settings):
    """A free on another node is durable, and what is in use again no old free takes away. Each kill
    may leave one block for each thread in no place, which the program frees at its next start."""
    settings = {"HEAP": heap, "preload": False, **settings}
    changes = 0
    for number in range(KILLS or 4):
        topology = {"TOPOLOGY": f"{nodes}/3"} if number % 4 < 3 else {}
        process = start([freed_far, "run", 4], **settings, **topology)
        processes.append(process)
        seen = counted(process.stdout.readline())[1]
        assert seen >= changes and "ready" in process.stdout.readline(), process.stderr.read()
        changes = seen
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() == -9, process.stderr.read()
        if number % 3 == 0:
            recovered(heap)
    blocks, last = counted(succeeds(run([freed_far, "check"], **settings)))
    assert last >= changes and 0 < blocks <= 512
    info = json.loads(succeeds(run([tool("pmalloc-info"), "--json", heap], preload=False)))
    assert info["pinned"] == blocks
    assert data_files(heap) >= 2


@pytest.mark.parametrize("collect", ("always", "crash"))
def test_another_number_of_nodes(roam, heap, collect):
    where = {"HEAP": heap, "ROOTS": "shared", "COLLECT": collect}
    two = {"TOPOLOGY": "2x2/20"}
    assert figures(run([roam, 4, 3000, 1], **where, **two))["found"] == 0
    assert data_files(heap) == 2
    done = run([roam, 4, 3000, 2], **where)
    assert "found 256" in succeeds_with_stats(done)
    assert data_files(heap) == 2
    assert figures(run([roam, 4, 3000, 3], **where, **two))["misplaced"] == 0
    assert data_files(heap) == 2
    assert figures(run([roam, 4, 3000, 3], **where, TOPOLOGY="4x1/9"))["misplaced"] == 0
    assert data_files(heap) == 4


def succeeds_with_stats(done):
    assert done.returncode == 0, said(done)
    return done.stdout


def test_a_heap_of_one_node_gets_others(roam, heap):
    where = {"HEAP": heap, "ROOTS": "shared"}
    succeeds_with_stats(run([roam, 2, 3000, 1], **where))
    assert data_files(heap) == 1
    got = figures(run([roam, 4, 3000, 1], **where, TOPOLOGY="2x2"))
    assert got["found"] == 256 and got["misplaced"] == 0 and data_files(heap) == 2


def test_the_tool(roam, heap):
    succeeds_with_stats(run([roam, 4, 3000, 1], HEAP=heap, ROOTS="shared", TOPOLOGY="3x1/9"))
    before, space = fingerprint(heap), on_media(heap)
    report = json.loads(
        succeeds(run([tool("pmalloc-info"), "--nodes", "--json", heap], preload=False))
    )
    assert sorted(shard["recorded_node"] for shard in report["shards"]) == [0, 1, 2]
    assert [shard["file"] for shard in report["shards"]] == ["heap.0", "heap.1", "heap.2"]
    for shard in report["shards"]:
        assert shard["length"] == (heap / shard["file"]).stat().st_size
        assert 0 < shard["written_bytes"] <= (heap / shard["file"]).stat().st_blocks * 512
        assert shard["misplaced_bytes"] == 0 or report["nodes"] > 1
        assert shard["unknown_pages"] == 0
    text = succeeds(run([tool("pmalloc-info"), "--nodes", heap], preload=False))
    assert "recorded" in text and "heap.2" in text
    assert fingerprint(heap) == before and on_media(heap) == space
    done = run([tool("pmalloc-info"), "--nodes", "--map", heap], preload=False)
    assert done.returncode == 16


def test_off(roam, heap):
    done = run([roam, 4, 500, 1], HEAP=heap, ROOTS="shared", TOPOLOGY="2x2/5", NUMA="off")
    succeeds_with_stats(done)
    assert "nodes:" not in done.stderr and data_files(heap) == 1


def test_a_wrong_topology(roam, heap):
    refuses(run([roam, 1, 1, 1], HEAP=heap, TOPOLOGY="two"), "PMALLOC_TOPOLOGY=two", "NODESxCORES")
    assert not heap.exists()


@pytest.mark.parametrize("mode", ("elsewhere", "thread", "half"))
@pytest.mark.parametrize("backing", ("file", "volatile"))
def test_other_nodes_are_within_reach(heap, mode, backing):
    """At the limit a thread gets what is free on another node, all of it."""
    program = compiled("reach.c", "-rdynamic")
    where = {"HEAP": heap} if backing == "file" else {"BACKING": "volatile"}
    done = run([program, mode], LIMIT="64M", TOPOLOGY="2x2", **where)
    assert done.returncode == 0, said(done)
    assert re.search(r"caches hold 0 blocks of another", done.stderr), said(done)
    assert int(re.search(r"by other nodes (\d+)", done.stderr)[1]) > 0 or mode == "elsewhere"


def test_races_between_nodes(heap):
    program = compiled("reach.c", "-rdynamic")
    done = run([program, "race", 6], HEAP=heap, LIMIT="64M", TOPOLOGY="2x2/11")
    assert done.returncode == 0, said(done)


@pytest.mark.parametrize("how", ("private", "copy", "follow"))
def test_forks(forks, heap, how):
    program = forks
    settings = {"HEAP": heap, "ROOTS": "blocks,generation", "TOPOLOGY": "2x2/3"}
    if how != "follow":
        succeeds(run([program, "isolation", 20], FORK=how, **settings))
    else:
        succeeds(run([program, "isolation", 20], **settings))
    assert succeeds(run([program, "check", 2], **settings)).endswith("blocks of 2\n")


def topology(folder, nodes, distance, memory_only=0):
    """A folder as /sys/devices/system/node/, of nodes with two cores each and others with none."""
    online = nodes + memory_only
    folder.mkdir()
    (folder / "has_cpu").write_text(f"0-{nodes - 1}\n")
    (folder / "online").write_text(f"0-{online - 1}\n")
    for node in range(online):
        files = folder / f"node{node}"
        files.mkdir()
        files.joinpath("cpulist").write_text(f"{2 * node},{2 * node + 1}\n" * (node < nodes))
        row = " ".join(str(distance(node, other)) for other in range(online))
        files.joinpath("distance").write_text(row + "\n")
    return f"{folder}/"


def clusters(a, b):
    """Sixteen sockets with four clusters each, numbered across the sockets."""
    return 10 if a == b else 12 if a % 16 == b % 16 else 21


def boards(a, b):
    """64 sockets on sixteen boards, numbered across both."""
    return 10 if a == b else 12 if a % 64 == b % 64 else 17 if a % 16 == b % 16 else 32


@pytest.mark.parametrize("nodes, distance", ((64, clusters), (256, boards)))
def test_more_nodes_than_data_files(roam, heap, tmp_path, nodes, distance):
    """Those that are near each other share a data file: 33 threads are on nodes 0 to 32 here, so
    every socket or board has some. By their numbers alone they would need nine files, or three."""
    where = {"HEAP": heap, "ROOTS": "shared"}
    folder = topology(tmp_path / "node", nodes, distance, memory_only=8)
    done = run([roam, 33, 300, 1], **where, TOPOLOGY=folder)
    got = figures(done)
    assert f"{nodes} nodes in 16 groups: " in done.stderr, said(done)
    assert got["misplaced"] == got["far"] == got["large_far"] == 0 and got["remote"] > 100
    assert data_files(heap) == 16
    assert figures(run([roam, 8, 300, 2], **where, TOPOLOGY="2x2/9"))["found"] == 256
    assert "found 256" in succeeds_with_stats(run([roam, 4, 300, 3], **where))
    got = figures(run([roam, 33, 300, 4], **where, TOPOLOGY=f"{nodes}x2/5"))
    assert got["found"] == 256 and got["misplaced"] == 0 and got["moves"] > 20
    assert data_files(heap) == 16 and recover(heap, "--check").returncode == 0


def test_a_heap_of_two_nodes_gets_the_files_of_many(roam, heap):
    where = {"HEAP": heap, "ROOTS": "shared"}
    figures(run([roam, 4, 3000, 1], **where, TOPOLOGY="2x2"))
    got = figures(run([roam, 33, 300, 2], **where, TOPOLOGY="33x1"))
    assert got["found"] == 256 and got["misplaced"] == 0 and data_files(heap) == 16


def own_memory(topology):
    """Bytes of memory, shared with no file, of a program with one thread."""
    done = run(["grep", "RssAnon", "/proc/self/status"], BACKING="volatile", TOPOLOGY=topology)
    return int(succeeds(done).split()[1]) << 10


def test_a_node_that_is_not_used_takes_no_memory():
    """The node of the thread has 16 cores, beside one more node or 240 cores of others. Tables of
    theirs would take more than 600 KiB."""
    few, many = own_memory("2x16"), own_memory("256x1")
    assert many - few < 128 << 10, (few, many)


def moved_by_call(heap, **settings):
    done = run([compiled("migrate.c")], HEAP=heap, **settings)
    lines = re.findall(r"before (-?\d+) moved (-?\d) after (-?\d+)", succeeds(done))
    assert len(lines) == 2, said(done)
    return [tuple(map(int, line)) for line in lines]


def test_a_thread_that_only_hits_its_cache(heap):
    """It never learns that it has moved, but by the call."""
    for before, moved, after in moved_by_call(heap, TOPOLOGY="2x1/1000"):
        assert moved == 1 and before >= 0 and after >= 0 and before != after
    for before, moved, after in moved_by_call(heap, TOPOLOGY="2x1"):
        assert moved == 0 and before == after >= 0
    assert moved_by_call(heap) == [(0, 0, 0)] * 2


# ---- pmalloc-recover --to-node -------------------------------------------------------------------


def nodes_of(heap, **settings):
    """The node on record of each data file."""
    done = run([tool("pmalloc-info"), "--nodes", "--json", heap], preload=False, **settings)
    return [shard["recorded_node"] for shard in json.loads(succeeds(done))["shards"]]


def test_a_heap_goes_to_a_node(roam, heap):
    where = {"HEAP": heap, "ROOTS": "shared"}
    succeeds_with_stats(run([roam, 4, 3000, 1], **where, TOPOLOGY="3x1/9"))
    assert nodes_of(heap) == [0, 1, 2]
    report = json.loads(succeeds(recover(heap, "--to-node", 2, "--json", TOPOLOGY="3x1")))
    assert report["node"] == 2 and report["live_objects"] >= 256
    assert nodes_of(heap, TOPOLOGY="3x1") == [2, 2, 2]
    assert recover(heap, "--check").returncode == 0
    got = figures(run([roam, 4, 3000, 1], **where, TOPOLOGY="3x1/9"))
    assert got["found"] == 256 and got["misplaced"] == 0
    assert sorted(nodes_of(heap)) == [0, 1, 2, 2, 2]


def test_the_node_that_this_machine_has(roam, heap):
    """After a kill, too: the heap is recovered first."""
    succeeds_with_stats(run([roam, 4, 3000, 1], HEAP=heap, ROOTS="shared", TOPOLOGY="2x1/9"))
    text = succeeds(recover(heap, "--to-node", 0))
    assert re.search(r"^node +0, for all data files; of \d+.* in memory 0 B moved", text, re.M)
    report = json.loads(succeeds(recover(heap, "--to-node", 0, "--json")))
    assert report["node_moved_bytes"] == report["node_moved_files"] == 0
    machine = json.loads(
        succeeds(run([tool("pmalloc-info"), "--nodes", "--json", heap], preload=False))
    )["machine"]
    online = pathlib.Path("/sys/devices/system/node/online").read_text().strip()
    for node in machine:
        files = pathlib.Path(f"/sys/devices/system/node/node{node['id']}")
        assert node["distances"] == list(map(int, (files / "distance").read_text().split()))
        assert f"{node['memory_bytes'] >> 10} kB" in (files / "meminfo").read_text()
    assert [node["id"] for node in machine][0] == int(re.match(r"\d+", online)[0])


def test_to_node_is_refused(roam, heap, processes):
    succeeds_with_stats(run([roam, 2, 300, 1], HEAP=heap, ROOTS="shared", TOPOLOGY="2x1/9"))
    before = fingerprint(heap)
    for node, words in ((2, "no such node"), (5000, "1023"), ("x", "--to-node")):
        done = recover(heap, "--to-node", node, TOPOLOGY="2x1")
        assert done.returncode == 16 and words in done.stderr, said(done)
    done = recover(heap, "--to-node", 900)
    assert done.returncode == 16 and "no such node" in done.stderr, said(done)
    for option in ("--check", "--dry-run"):
        done = recover(heap, "--to-node", 1, option, TOPOLOGY="2x1")
        assert done.returncode == 16 and "--to-node change the heap" in done.stderr, said(done)
    assert fingerprint(heap) == before
    busy = heap.parent / "busy"
    process = start([BUILD / "apps/kvshell"], HEAP=busy, ROOTS="store")
    processes.append(process)
    process.stdin.write("set colour blue\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ok\n"
    done = recover(busy, "--to-node", 1, TOPOLOGY="2x1")
    assert done.returncode == 8 and f"in use by process {process.pid}" in done.stderr, said(done)


@pytest.fixture
def devices(tmp_path):
    """Two file systems on devices of two nodes, and PMALLOC_TOPOLOGY that says so."""
    with tmpfs(tmp_path / "a", 1 << 16) as first, tmpfs(tmp_path / "b", 1 << 16) as second:
        folder = topology(tmp_path / "node", 3, lambda a, b: 10 + 5 * abs(a - b))
        for node, place in enumerate((first, second)):
            number = place.stat().st_dev
            files = tmp_path / "node" / "dev/block" / f"{os.major(number)}:{os.minor(number)}"
            (files / "device").mkdir(parents=True)
            (files / "device" / "numa_node").write_text(f"{node}\n")
        yield first / "heap", second / "heap", folder


def test_data_files_go_to_the_directory_on_the_node(roam, devices):
    first, second, folder = devices
    where = {"HEAP": f"{first}:{second}", "ROOTS": "shared", "TOPOLOGY": folder}
    succeeds_with_stats(run([roam, 4, 3000, 1], **where))
    assert not (first / "heap.1").exists() and (second / "heap.1").exists()
    recovered(first)
    space = (second / "heap.1").stat().st_blocks
    done = recover(first, "--to-node", 0, TOPOLOGY=folder)
    assert "; 1 of them went to another directory" in succeeds(done)
    assert (first / "heap.1").stat().st_blocks <= space  # holes are holes
    assert [path.name for path in second.iterdir()] == ["volume"]
    got = figures(run([roam, 4, 3000, 1], **where))
    assert got["found"] == 256 and got["misplaced"] == 0
    # The other directory is the heap's still: node 1 has its new data file there.
    assert sum("heap." in path.name for path in second.iterdir()) == 1


def test_a_place_without_room(roam, devices):
    first, second, folder = devices
    where = {"HEAP": f"{first}:{second}", "ROOTS": "shared", "TOPOLOGY": folder}
    succeeds_with_stats(run([roam, 4, 3000, 1], **where))
    recovered(first)  # what it frees is no room later
    taken = on_media(second)  # from 112 KiB to 12 MiB, as the threads went
    with open(first.parent / "full", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, room(first) - taken // 2)
    done = recover(first, "--to-node", 0, TOPOLOGY=folder)
    assert done.returncode == 8 and "cannot be copied" in done.stderr, said(done)
    assert not (first / "heap.1").exists() and (second / "heap.1").exists()
    (first.parent / "full").unlink()
    assert figures(run([roam, 4, 300, 1], **where))["found"] == 256


def traced(call, *more):
    """The command of a recovery whose system calls of one name strace writes to a file."""
    return ["strace", "-f", "-e", f"trace={call}", *more, tool("pmalloc-recover")]


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
@pytest.mark.parametrize("call", ("openat", "ftruncate", "pwrite64", "unlinkat"))
def test_kills_while_data_files_go(roam, devices, tmp_path, call):
    """Killed at each such call that a recovery alone does not make: the heap opens, and the next
    recovery removes what is left."""
    first, second, folder = devices
    where = {"HEAP": f"{first}:{second}", "ROOTS": "shared", "TOPOLOGY": folder}
    succeeds_with_stats(run([roam, 4, 1000, 1], **where))
    kept, calls = tmp_path / "kept", tmp_path / "calls"
    kept.mkdir()
    for number, place in enumerate((first, second)):
        subprocess.run(["cp", "-a", "--sparse=always", place, kept / str(number)], check=True)
    succeeds(run([*traced(call, "-o", calls), first], preload=False, TOPOLOGY=folder))
    when = before = max(calls.read_text().count(f"{call}(") - 3, 0)
    whole = 0
    while True:
        when += 1
        for number, place in enumerate((first, second)):
            shutil.rmtree(place)
            subprocess.run(["cp", "-a", kept / str(number), place], check=True)
        argv = traced(call, "-o", "/dev/null", "-e", f"inject={call}:signal=KILL:when={when}")
        done = run([*argv, "--to-node", 0, first], preload=False, TOPOLOGY=folder)
        assert done.returncode in (0, -9, 137), said(done)
        if done.returncode == 0:
            break
        whole += (first / "heap.1").exists()
        assert figures(run([roam, 4, 100, 1], **where))["found"] == 256
        if when % 2:
            succeeds(recover(first))
            names = [path.name for place in devices[:2] for path in place.iterdir()]
            for name in ("heap.1", "slabs.1", "booklog.1"):
                assert names.count(name) == 1
        else:
            succeeds(recover(first, "--to-node", 0, TOPOLOGY=folder))
            assert not list(second.glob("*.*"))
    assert whole and when > before + 2, (whole, when, before)
