# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-info --metrics: figures for a monitoring system, of heaps in use, at rest, and others."""

import json
import os
import re

import pytest
from conftest import default_heaps, recover, remove_unless_busy, run, said, succeeds
from figures_program import Figures, INFO, program  # noqa: F401

LABEL = r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"(\w+)\{{({LABEL}(?:,{LABEL})*)\}} (-?[0-9.e+-]+)")
ENDS = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}


def families(text):
    """Every sample, as {(name, label values...): value}. Fails where OpenMetrics would."""
    lines = text.split("\n")
    assert lines[-2:] == ["# EOF", ""], lines[-3:]
    found, seen, name = {}, set(), None
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in seen and kind in ("gauge", "counter", "histogram"), line
            seen.add(name)
        elif line.startswith("# HELP "):
            assert line.startswith(f"# HELP {name} ") and line.endswith("."), line
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match[1] in [name + end for end in ENDS[kind]], line
            key = match[1], *(value for _, value in re.findall(LABEL, match[2]))
            assert key not in found, line
            found[key] = float(match[match.lastindex])
    return found


def metrics(*arguments, status=0):
    done = run([INFO, "--metrics", *arguments], preload=False)
    assert done.returncode == status and bool(done.stderr) == bool(status), said(done)
    return families(done.stdout)


def looked(heap):
    done = run([INFO, "--follow", "--count", "1", "--json", heap], preload=False)
    return json.loads(succeeds(done))


def still(look):
    """What of a look stays so while nothing happens."""
    commit = {key: value for key, value in look.get("commit", {}).items() if key != "age"}
    return look | {"time": 0, "owner": "", "commit": commit}


@pytest.mark.check
@pytest.mark.parametrize("commit", [None, "20ms"])
def test_of_a_heap_in_use(program, processes, heap, commit):
    """The figures are those of --follow."""
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", COMMIT=commit)
    figures.ask("small 100 100")
    figures.ask("large 5 100000")
    at = str(heap)
    while commit and looked(heap)["extents"] == 0:  # the first commit of these
        pass
    look, found, again = looked(heap), metrics(heap), looked(heap)
    while still(look) != still(again):  # a commit came between
        look, found, again = again, metrics(heap), looked(heap)
    assert found["pmalloc_up", at] == found["pmalloc_in_use", at] == 1
    assert found["pmalloc_clean", at] == 0 and found["pmalloc_opens_total", at] == 1
    for key, name in ("extents", "large_blocks"), ("roots", "roots"), ("slabs", "slabs"):
        assert found["pmalloc_" + name, at] == look[key], key
    if not commit:
        for key in "heap_bytes", "data_bytes", "metadata_bytes":
            assert found["pmalloc_" + key, at] == look[key], key
    sizes = {key[2]: value for key, value in found.items() if key[0] == "pmalloc_class_slabs"}
    assert sizes == {str(c["size"]): c["slabs"] for c in look["classes"]}
    assert (("pmalloc_commits_total", at) in found) == bool(commit)
    if commit:
        assert found["pmalloc_commits_total", at] >= look["commit"]["number"] > 0
        assert found["pmalloc_commit_timestamp_seconds", at] >= look["commit"]["time"] - 1e-5
    file_system = os.statvfs(heap)
    assert found["pmalloc_medium_bytes", at] == file_system.f_blocks * file_system.f_frsize
    assert 0 < found["pmalloc_medium_free_bytes", at] < found["pmalloc_medium_bytes", at]


def test_at_rest_killed_and_gone(program, processes, shm):
    """All heaps in one text; one that cannot be looked at is down, and says why."""
    heaps = [shm / name for name in ("rest", "killed", "cut", "none")]
    for heap in heaps[:3]:
        figures = Figures(program, processes, HEAP=heap, ROOTS="held")
        figures.ask("small 10 10")
        if heap.name == "killed":
            figures.process.kill()
            figures.process.wait()
        else:
            figures.end()
    (heaps[2] / "superblock").write_bytes(b"")
    rest, killed, cut, none = map(str, heaps)
    found = metrics(*heaps, status=4)
    assert [found["pmalloc_up", at] for at in (rest, killed, cut, none)] == [1, 1, 0, 0]
    assert found["pmalloc_clean", rest] == 1 and found["pmalloc_clean", killed] == 0
    assert found["pmalloc_in_use", rest] == found["pmalloc_in_use", killed] == 0
    assert ("pmalloc_slabs", cut) not in found and ("pmalloc_opens_total", none) not in found
    assert recover(heaps[0], "--check").returncode == 0, "it has changed the heap"
    assert metrics(none, status=8)["pmalloc_up", none] == 0


def test_of_a_fixed_medium_and_a_directory(program, processes, shm):
    """One after the other, in either order."""
    medium, folder = shm / "medium", shm / "folder"
    succeeds(recover("--make", "--size", "96M", medium))
    for heap in (medium, folder):
        figures = Figures(program, processes, HEAP=heap, ROOTS="held")
        figures.ask("small 10 10")
        figures.end()
    for order in [medium, folder, medium], [folder, medium]:
        found = metrics(*dict.fromkeys(order))
        room = found["pmalloc_medium_bytes", str(medium)]
        assert room % (2 << 20) == 0 and room < 96 << 20
        used = found["pmalloc_heap_bytes", str(medium)]
        assert found["pmalloc_medium_free_bytes", str(medium)] == room - used
        assert found["pmalloc_slabs", str(folder)] > 0


def guarantee(found):
    """Row, file system and commits of the one heap."""
    (labels,) = [key[2:] for key in found if key[0] == "pmalloc_guarantee_info"]
    return labels


@pytest.mark.parametrize("where", ["folder", "medium"])
def test_the_journal_and_the_guarantee(program, processes, heap, where):
    at, room = str(heap), 16 << 20
    if where == "medium":
        succeeds(recover("--make", "--size", "256M", "--journal", room, heap))
    Figures(program, processes, HEAP=heap, ROOTS="held").end()
    found = metrics(heap)
    assert not [key for key in found if "journal" in key[0]]
    assert guarantee(found) == ("tmpfs", "tmpfs", "no")
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", COMMIT="20ms")
    figures.ask("large 5 100000")
    for killed in (False, True):
        if killed:
            figures.process.kill()
            figures.process.wait()
        found = metrics(heap)
        while not killed and ("pmalloc_journal_bytes", at) not in found:  # it begins anew
            found = metrics(heap)
        size = found["pmalloc_journal_size_bytes", at]
        assert 0 < found["pmalloc_journal_bytes", at] <= size
        assert size == room if where == "medium" else size == (heap / "journal").stat().st_size
        assert guarantee(found) == ("tmpfs", "tmpfs", "yes")
    succeeds(recover(heap))
    assert guarantee(metrics(heap)) == ("tmpfs", "tmpfs", "no")


def test_the_row_of_a_disk(program, processes, tmp_path):
    figures = Figures(program, processes, HEAP=tmp_path / "heap", ROOTS="held")
    figures.end()
    report = json.loads(succeeds(run([INFO, "--medium", "--json", tmp_path], preload=False)))
    rows = {"none": "tmpfs", "page": "plain file"}
    rows |= {"line": "DAX with ADR", "cache": "caches survive"}
    row, file_system, _ = guarantee(metrics(tmp_path / "heap"))
    assert (row, file_system) == (rows[report["persist"]], report["file_system"])


def test_names(program, processes, shm):
    """Any name is a label."""
    for name in ['quo"te', "back\\slash", "new\nline", os.fsdecode(b"no\xffutf8"), "grün"]:
        heap = shm / name
        figures = Figures(program, processes, HEAP=heap, ROOTS="held")
        figures.ask("small 10 10")
        figures.end()
        done = run([INFO, "--metrics", heap], preload=False)
        (label,) = {key[1] for key in families(done.stdout) if key[0] == "pmalloc_up"}
        plain = label.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
        assert plain == os.fsencode(heap).decode(errors="replace"), label


def test_into_a_file(program, processes, heap, shm):
    """A collector sees the file before or the new one, and never a part of it."""
    figures = Figures(program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 10 10")
    file = shm / "pmalloc.prom"
    for _ in range(2):
        done = run([INFO, "--metrics", "--output", file, heap], preload=False)
        assert succeeds(done) == "" and families(file.read_text())["pmalloc_up", str(heap)] == 1
    assert sorted(path.name for path in shm.iterdir()) == sorted([heap.name, "pmalloc.prom"])
    done = run([INFO, "--metrics", "--output", shm / "no" / "file", heap], preload=False)
    assert done.returncode == 8 and "cannot be written: No such file" in done.stderr, said(done)
    kept = file.read_text()
    (shm / "pmalloc.prom.new").mkdir()
    done = run([INFO, "--metrics", "--output", file, heap], preload=False)
    assert done.returncode == 8 and file.read_text() == kept, said(done)


def test_default_heaps(program, processes):
    """--all has the heap that a program gets which names none."""
    figures = Figures(program, processes, ROOTS="held")
    figures.ask("small 10 10")
    (heap,) = default_heaps()
    done = run([INFO, "--metrics", "--all"], preload=False)  # others may be there
    assert families(done.stdout)["pmalloc_in_use", str(heap)] == 1, said(done)
    figures.process.kill()
    figures.process.wait()
    remove_unless_busy(heap)


def test_wrong_lines(heap):
    for arguments, part in (
        (["--metrics"], "name the heap's directory"),
        (["--metrics", "--json", heap], "--metrics goes with --all, --backup and --output only"),
        (["--output", "x", heap], "--all, --backup and --output go with --metrics"),
    ):
        done = run([INFO, *arguments], preload=False)
        assert done.returncode == 16 and part in done.stderr, said(done)


def test_another_reader(program, processes, heap):
    """Prometheus' own library for Python reads it."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    figures = Figures(program, processes, HEAP=heap, ROOTS="held", COMMIT="20ms")
    figures.ask("small 10 10")
    done = run([INFO, "--metrics", heap], preload=False)
    read = {f.name: f for f in parser.text_string_to_metric_families(done.stdout)}
    assert read["pmalloc_up"].samples[0].value == 1
    assert read["pmalloc_opens"].type == "counter" and len(read) > 20
