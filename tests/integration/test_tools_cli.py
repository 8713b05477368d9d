# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The command lines of the tools: what they take, say and return. Looking at a heap changes
nothing."""

import json
import re
import shutil
import subprocess

import pytest
from tool_heaps import (
    BUILD,
    INFO,
    RECOVER,
    RUN,
    SHELL,
    call,
    clean_environment,
    clean_heap,
    dirty_heap,
    fingerprint,
    one_line,
    originals,
    patch,
)  # noqa: F401

# The status of a wrong command line.
TOOLS = {"pmalloc-recover": 16, "pmalloc-info": 16, "pmalloc-backup": 16, "pmalloc-run": 125}

REPORT = {
    "heap": str,
    "state": str,
    "result": str,
    "copy": bool,
    "roots": int,
    "live_objects": int,
    "live_bytes": int,
    "leaked_objects": int,
    "reached_before": int,
    "disguised_blocks": int,
    "disguised_bytes": int,
    "disguised_form": str,
    "disguised_way": str,
    "words_out": int,
    "words_cleared": int,
    "words_declared": int,
    "leaked_bytes": int,
    "reclaimed_bytes": int,
    "reclaimed_slabs": int,
    "reclaimed_extents": int,
    "vacant_bytes": int,
    "kept_bytes": int,
    "unfinished": int,
    "slabs": int,
    "morphing": int,
    "extents": int,
    "markers": int,
    "seconds": float,
    "mark_seconds": float,
    "guarantee": str,
}


# ---- Help, manual pages, wrong lines.


@pytest.mark.check
@pytest.mark.parametrize("name", TOOLS)
def test_help_and_man_have_every_option(name):
    helped, man = call(BUILD / name, "--help"), call(BUILD / name, "--man")
    assert helped.returncode == man.returncode == 0
    assert helped.stderr == man.stderr == ""
    options = set(re.findall(r"--[a-z-]+", helped.stdout))
    assert {"--help", "--man", "--version"} < options
    in_man = man.stdout.replace("\\-", "-")
    assert not [option for option in options if option not in in_man]
    assert all(len(line) < 90 for line in helped.stdout.splitlines())
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert f'.SH "{section}"' in man.stdout


@pytest.mark.parametrize("name", TOOLS)
def test_version(name):
    done = call(BUILD / name, "--version")
    assert done.returncode == 0
    assert re.fullmatch(rf"{name} \(PMAlloc\) \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize(
    "argv", [(name, "--man") for name in TOOLS] + [("pmalloc-run", "--man-env")]
)
@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_man_pages_are_sound(argv):
    page = call(BUILD / argv[0], argv[1])
    done = call("groff", "-man", "-Tascii", "-ww", "-z", stdin=page.stdout)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_settings_are_in_help_and_in_their_page():
    page = call(RUN, "--man-env").stdout.replace("\\-", "-")
    settings = set(re.findall(r"PMALLOC_[A-Z_]+", call(RUN, "--help").stdout))
    assert {"PMALLOC_HEAP", "PMALLOC_ROOTS", "PMALLOC_LIMIT", "PMALLOC_STATS"} < settings
    assert page.startswith(".TH LIBPMALLOC 7")
    assert not [name for name in settings if name not in page]


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    "argv, part",
    [
        (["--nonsense"], "--nonsense"),
        (["-X"], "-X"),
        (["--hel"], "--hel"),  # names cannot be shortened
        (["--help=1"], "--help"),
    ],
)
def test_unknown_options(name, argv, part):
    one_line(call(BUILD / name, *argv), name, TOOLS[name], part, f"{name} --help")


@pytest.mark.parametrize(
    "argv",
    [
        ["--check", "--dry-run", "/x"],
        ["--check"],
        ["--dry-run"],
        ["--copy"],
        ["--copy", "--make", "/x"],
        ["--threads", "2"],
        ["--threads", "0", "/x"],
        ["--threads", "65", "/x"],
        ["--threads", "2x", "/x"],
        ["--threads", "-1", "/x"],
        ["--threads"],
        ["--purge", "/x"],
        ["--purge=most"],
        ["--drop-root", "a"],
        ["--drop-root", "a", "--check", "/x"],
        ["/x", "/y"],
        [""],
    ],
)
def test_wrong_lines_of_recover(argv):
    one_line(call(RECOVER, *argv), "pmalloc-recover", 16)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["/x", "/y"],
        [""],
        ["--map"],
        ["--medium", "--map", "/x"],
        ["--medium", "--follow", "/x"],
    ],
)
def test_wrong_lines_of_info(argv):
    one_line(call(INFO, *argv), "pmalloc-info", 16)


# ---- Reports.


def check_report(text, heap, also=(), **wanted):
    report = json.loads(text)
    assert {k: type(v) for k, v in report.items()} == REPORT | dict(also)
    assert report["heap"] == str(heap)
    assert {k: report[k] for k in wanted} == wanted
    return report


@pytest.mark.check
def test_check_tells_clean_from_dirty(originals):
    for name, status in (("clean", 0), ("dirty", 1)):
        heap = originals / name
        before = fingerprint(heap)
        done = call(RECOVER, "--check", heap)
        assert (done.returncode, done.stderr) == (status, ""), done
        done = call(RECOVER, "--check", "--json", heap)
        assert done.returncode == status
        result = "clean" if status == 0 else "needs-recovery"
        check_report(done.stdout, heap, state=name, result=result, roots=1)
        assert fingerprint(heap) == before


@pytest.mark.check
@pytest.mark.parametrize("name", ["clean", "dirty"])
def test_looking_changes_nothing(originals, name):
    heap = originals / name
    before = fingerprint(heap)
    for argv in (
        [RECOVER, "--dry-run"],
        [RECOVER, "--dry-run", "--json"],
        [INFO],
        [INFO, "--json", "--map"],
    ):
        done = call(*argv, heap)
        assert (done.returncode, done.stderr) == (0, ""), done
    assert fingerprint(heap) == before


@pytest.mark.check
def test_dry_run_foretells_recovery(dirty):
    done = call(RECOVER, "--dry-run", "--json", dirty)
    told = check_report(done.stdout, dirty, also={"classes": list}, result="needs-recovery")
    done = call(RECOVER, "--json", "--threads", "1", dirty)
    assert (done.returncode, done.stderr) == (0, ""), done
    found = check_report(done.stdout, dirty, state="dirty", result="recovered", roots=1, markers=1)
    for key in (
        "live_objects",
        "live_bytes",
        "leaked_objects",
        "leaked_bytes",
        "reclaimed_bytes",
        "reclaimed_slabs",
        "reclaimed_extents",
        "vacant_bytes",
        "slabs",
    ):
        assert told[key] == found[key], key
    again = call(RECOVER, "--json", dirty)
    after = check_report(again.stdout, dirty, state="clean", result="clean", reclaimed_bytes=0)
    assert after["live_objects"] == found["live_objects"] > 6000
    assert call(RECOVER, "--check", dirty).returncode == 0


def test_text_report_names_what_matters(dirty):
    done = call(RECOVER, dirty)
    assert (done.returncode, done.stderr) == (0, "")
    for word in (
        "heap",
        "state",
        "roots",
        "store",
        "live",
        "leaked",
        "reclaimed",
        "time",
        "guarantee",
        "tmpfs",
    ):
        assert word in done.stdout
    data = call(RUN, "-H", dirty, SHELL, stdin="verify\nquit\n")
    assert "ok 3000 keys" in data.stdout, data


def test_dropping_a_root(clean):
    one = call(RECOVER, "--drop-root", "nonsense", clean)
    one_line(one, "pmalloc-recover", 16, "nonsense")
    assert call(RECOVER, "--check", clean).returncode == 0
    done = call(RECOVER, "--drop-root", "store", "--yes", "--json", clean)
    assert done.returncode == 0, done
    kept = {"kept_root": str}
    found = check_report(done.stdout, clean, kept, roots=1, result="clean",
                         kept_root="dropped:store")
    assert found["live_objects"] > 3000 and found["reclaimed_bytes"] < 1 << 20
    done = call(RECOVER, "--drop-root", "dropped:store", "--yes", "--json", clean)
    assert done.returncode == 0, done
    check_report(done.stdout, clean, roots=0, live_objects=0, result="clean")
    assert (clean / "heap.0").stat().st_size == 0


def test_a_damaged_heap_keeps_its_roots(clean):
    patch(clean / "slabs.0", 1, b"\xff")  # in the header of the first slab
    before = fingerprint(clean)
    one_line(call(RECOVER, "--drop-root", "store", clean), "pmalloc-recover", 4, "slabs.0")
    assert fingerprint(clean) == before


def test_info_counts_what_recovery_counts(dirty):
    report = json.loads(call(RECOVER, "--dry-run", "--json", dirty).stdout)
    info = json.loads(call(INFO, "--json", dirty).stdout)
    for key in (
        "heap",
        "state",
        "roots",
        "live_objects",
        "live_bytes",
        "leaked_objects",
        "guarantee",
    ):
        assert info[key] == report[key], key
    small = sum(c["live"] for c in info["classes"])
    large = sum(b["live"] for b in info["large"])
    assert small + large == info["live_objects"]
    bytes_live = sum(c["live"] * c["size"] for c in info["classes"]) + sum(
        b["live_bytes"] for b in info["large"]
    )
    assert bytes_live == info["live_bytes"]
    assert info["slabs"] == sum(c["slabs"] for c in info["classes"])
    assert info["extents"] == sum(b["blocks"] for b in info["large"])
    assert info["slab_bytes"] + info["extent_bytes"] + info["free_bytes"] == info["heap_bytes"]
    assert info["heap_bytes"] == (dirty / "heap.0").stat().st_size
    assert info["log_live_entries"] == info["slabs"] + info["extents"]
    assert [root["root"] for root in info["root_table"]] == ["store"]
    assert info["program"]["path"] == SHELL
    assert info["data_bytes"] == (dirty / "heap.0").stat().st_blocks * 512


def test_info_text_and_map(dirty):
    plain, mapped = call(INFO, dirty).stdout, call(INFO, "--map", dirty).stdout
    assert "store" in plain and "format version 1" in plain and "tmpfs" in plain
    assert "\nmap: " not in plain
    cells = mapped.split("\nmap: ")[1].splitlines()[1:]
    assert cells and all(re.fullmatch(r"  [.0-9#LHP?]{1,64}", line) for line in cells)


@pytest.mark.parametrize("argv", [[RECOVER, "--check"], [RECOVER], [INFO], [INFO, "--json"]])
def test_a_full_standard_output_is_noticed(clean, argv):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [*argv, str(clean)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 8 and "standard output" in done.stderr
