# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the library says, under its identifiers: PMALLOC_LOG and PMALLOC_LOG_FORMAT say where and
how. docs/events.md lists the identifiers."""

import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import time

import pytest
from conftest import BUILD, ROOT, environment, refuses, run, said, start, succeeds, tmpfs
from event_program import PLAIN, SAYS, WELL, program_of_events, runner  # noqa: F401

def lines_of(file):
    return file.read_text(encoding="utf-8").splitlines()


def all_match(pattern, lines, count):
    assert len(lines) == count and all(re.fullmatch(pattern, line) for line in lines), lines


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"

# ---- Identifiers.


def sources():
    """The library's own sources. What a tool says has no identifier."""
    for folder in ("core", "threads", "gc", "preload"):
        for path in sorted((ROOT / folder).rglob("*.[ch]")):
            yield path, path.read_text(encoding="utf-8")


def table():
    text = (ROOT / "core" / "base" / "events.h").read_text(encoding="utf-8")
    return re.findall(r'X\((\w+), "([\w-]+)", (\w+)\)', text)


@pytest.mark.check
def test_each_identifier_is_explained():
    page = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| (\w+) \| \S.* \|$", page)
    assert sorted(rows) == rows and len(rows) > 60
    assert rows == sorted((name, level.lower()) for _, name, level in table())


@pytest.mark.check
def test_each_line_has_an_identifier():
    used = set()
    for path, text in sources():
        if path.stem == "message":
            continue
        assert not re.search(r"\bpm_say\(", text) or path.name == "event_log.c", path
        for first in re.findall(r"\bpm_(?:event|abort|refuse)\(\s*(\w+)", text):
            known = first.startswith("PM_EV_") or first in ("pm_event_of", "NO_MEMORY")
            assert known, (path, first)
        used |= set(re.findall(r"\bPM_EV_(\w+)", text))
    text = (ROOT / "core" / "base" / "message.c").read_text(encoding="utf-8")
    used |= set(re.findall(r"\bPM_EV_(\w+)", text))
    assert {name for name, _, _ in table()} == used - {"NONE"}


# A line of a sanitizer's, which comes before any setting is read; vsyslog and its kin are not ours.
WRITE = r"(syscall\(SYS_write, |write\w*\()STDERR_FILENO|\bperror\(|fprintf\(stderr"
WRITES = {"message.c", "event_log.c", "events.c"}


@pytest.mark.check
def test_nothing_else_writes_to_standard_error():
    found = {
        path.name
        for path, text in sources()
        if re.search(WRITE, text)
    }
    assert found == WRITES


# ---- Standard error.


def test_without_a_setting_lines_are_as_ever(go):
    done = go("free=30")
    all_match(PLAIN, done.stderr.splitlines(), 30)
    assert succeeds(done) == WELL


def test_standard_error_by_name_is_the_same_text(go):
    done = go("free=2", LOG="stderr")
    all_match(PLAIN, done.stderr.splitlines(), 2)


@pytest.mark.check
def test_json(go, heap):
    done = go("free", LOG_FORMAT="json")
    line = json.loads(done.stderr)
    assert list(line) == ["time", "pid", "event", "level", "message", "heap"]
    assert re.fullmatch(STAMP, line["time"]) and line["pid"] > 1
    assert (line["event"], line["level"], line["heap"]) == ("bad-free", "error", str(heap))
    assert re.fullmatch(SAYS, line["message"])
    assert abs(time.time() - calendar_time(line["time"])) < 600


def calendar_time(stamp):
    done = subprocess.run(["date", "-d", stamp, "+%s"], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    "name, shown",
    [
        (b'a"b\\c', 'a"b\\c'),
        (b"new\nline\x7f", "new\nline\x7f"),
        (b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "é€😀"),
        (b"\xff\xc3(\xed\xa0\x80", "\ufffd\ufffd(\ufffd\ufffd\ufffd"),
        (b"cut \xc3", "cut \ufffd"),
    ],
)
def test_json_of_odd_paths(program, shm, name, shown):
    heap = os.fsencode(shm) + b"/" + name
    env = {os.fsencode(k): os.fsencode(v) for k, v in environment(CHECK="report").items()}
    env.update({b"PMALLOC_HEAP": heap, b"PMALLOC_LOG_FORMAT": b"json", b"PMALLOC_VERBOSE": b"1"})
    done = subprocess.run([program, "free"], env=env, capture_output=True, timeout=60, check=True)
    lines = [json.loads(line) for line in done.stderr.decode("utf-8").splitlines()]
    assert [line["event"] for line in lines][:1] == ["started"] and len(lines) >= 2
    assert all(line["heap"] == f"{shm}/{shown}" for line in lines)


def test_json_of_a_long_path(program, shm):
    """What does not fit is cut, and the line is an object all the same."""
    heap = shm
    for _ in range(14):
        heap = heap / ('"' * 250)
    heap.parent.mkdir(parents=True)
    done = run([program, "free"], HEAP=heap, CHECK="report", LOG_FORMAT="json")
    line = json.loads(done.stderr.splitlines()[-1])
    assert line["event"] == "bad-free" and str(heap).startswith(line["heap"])
    assert len(line["heap"]) > 100


# ---- Files and descriptors.


@pytest.mark.check
def test_a_file(go, tmp_path):
    log = tmp_path / "log"
    for _ in range(2):
        done = go("free=2", LOG=log)
        assert done.stderr == "" and succeeds(done) == WELL
    all_match(rf"{STAMP} pmalloc\[\d+\] bad-free: {SAYS}", lines_of(log), 4)
    assert log.stat().st_mode & 0o037 == 0


def test_a_file_of_objects(go, tmp_path):
    log = tmp_path / "log"
    go("free=3", LOG=log, LOG_FORMAT="json")
    assert [json.loads(line)["event"] for line in lines_of(log)] == ["bad-free"] * 3


@pytest.mark.parametrize(
    "words",
    [
        ["close"],
        ["range"],
        ["none"],
        ["lowest", "close"],
        ["close", "fork"],
        ["fork", "close"],
        ["exec"],
    ],
    ids="-".join,
)
def test_a_file_stays_whatever_is_closed(go, tmp_path, words):
    """And no number is taken that the program counts on."""
    log = tmp_path / "log"
    count = 500 if "lowest" in words else 1
    done = go("free", *words, f"free={count}", LOG=log)
    assert done.stderr == "" and done.returncode == 0, said(done)
    assert done.stdout == ("" if "none" in words else WELL)
    assert len([line for line in lines_of(log) if " bad-free: " in line]) == min(1 + count, 20)


def test_a_file_that_is_kept_in_a_jail(go, tmp_path):
    """The descriptor leads there from everywhere."""
    if os.geteuid():
        pytest.skip("chroot needs root")
    log, jail = tmp_path / "log", tmp_path / "jail"
    jail.mkdir()
    done = go("free", f"root={jail}", "user=12345", "free", LOG=log)
    assert done.stderr == "" and succeeds(done) == WELL
    assert len(lines_of(log)) == 2
    done = go("free", "close", f"root={jail}", "user=12345", "free", LOG=log)
    all_match(PLAIN, done.stderr.splitlines(), 1)
    assert succeeds(done) == WELL and len(lines_of(log)) == 3


def test_a_number_that_is_the_programs_now(go, tmp_path):
    log, theirs = tmp_path / "log", tmp_path / "theirs"
    done = go("free", f"take={theirs}", "free", LOG=log)
    assert succeeds(done) == WELL and done.stderr == ""
    assert len(lines_of(log)) == 2 and theirs.read_bytes() == b""


@pytest.mark.parametrize("words", [["small"], ["filter"]], ids="-".join)
def test_what_cannot_be_written_goes_to_standard_error(go, tmp_path, words):
    """A limit that raises SIGXFSZ; a filter that ends the program for what the file takes."""
    log = tmp_path / "log"
    done = go("free", *words, "free=2", LOG=log)
    all_match(PLAIN, done.stderr.splitlines(), 2)
    assert succeeds(done) == WELL and len(lines_of(log)) == 1


def test_a_full_disk(go, tmp_path):
    with tmpfs(tmp_path / "small", 4) as small:
        (small / "rest").write_bytes(bytes(3 * 4096))
        (small / "log").write_bytes(bytes(4090))
        done = go("free=3", LOG=small / "log")
        assert succeeds(done) == WELL
        all_match(PLAIN, done.stderr.splitlines(), 3)


@pytest.mark.check
def test_a_descriptor(go, tmp_path):
    log = tmp_path / "log"
    shell = ["bash", "-c", f'exec 7>>{log}; exec "$@"', "bash"]
    done = go("free", "close", "free", before=shell, LOG="fd:7")
    assert succeeds(done) == WELL
    all_match(rf"{STAMP} pmalloc\[\d+\] bad-free: {SAYS}", lines_of(log), 1)
    all_match(PLAIN, done.stderr.splitlines(), 1)  # it cannot be had again
    done = go("free", "range", "free", before=shell, LOG="fd:7")
    assert succeeds(done) == WELL and done.stderr == ""
    assert len(lines_of(log)) == 3


def test_a_pipe_that_nobody_reads(go):
    shell = ["bash", "-c", 'exec 7> >(:); sleep 0.2; "$@"', "bash"]
    done = go("free=2", before=shell, LOG="fd:7")
    all_match(PLAIN, done.stderr.splitlines(), 2)
    assert succeeds(done) == WELL


def test_who_descends_from_the_owner_leaves_the_descriptor_alone(go, tmp_path):
    file = tmp_path / "file"
    shell = ["bash", "-c", f'exec 7>>{file}; exec "$@"', "bash"]
    done = go("free", "fork", "exec", "free", before=shell, LOG="fd:7")
    all_match(PLAIN, done.stderr.splitlines(), 1)
    assert succeeds(done) == WELL and len(lines_of(file)) == 1


# ---- Wrong values.


@pytest.mark.parametrize(
    "setting, value, parts",
    [
        ("LOG", "sylog", ["PMALLOC_LOG=sylog: not a valid value", "syslog"]),
        ("LOG", "var/log", ["a FILE by its whole path"]),
        ("LOG", "fd:", ["not a valid value"]),
        ("LOG", "fd:x", ["not a valid value"]),
        ("LOG", "", ["is set but empty"]),
        ("LOG_FORMAT", "xml", ["use text|json"]),
        ("ON", "commit-faild:true", ["no such event", "did you mean commit-failed"]),
        ("ON", "true", ["no such event", "EVENT:COMMAND"]),
        ("ON", "commit-failed", ["names no command"]),
        ("ON", "commit-failed: ", ["names no command"]),
        ("ON", "no-space:true;no-space:false", ["has a command already"]),
        ("ON", "stats:true", ["is a report"]),
        ("ON", ";", ["no such event"]),
    ],
)
def test_wrong_values(go, setting, value, parts):
    refuses(go(**{setting: value}), f"PMALLOC_{setting}=", *parts)


@pytest.mark.parametrize("where", ["/no/such/folder/log", "/", "fd:99", "syslog"])
def test_what_cannot_be_opened(go, where):
    """One line says it, also where the program executes itself again to keep its addresses."""
    if where == "syslog" and os.path.exists("/dev/log"):
        pytest.skip("there is a syslog")
    done = go("free", LOG=where)
    first, second = done.stderr.splitlines()
    assert first.startswith(f"pmalloc: PMALLOC_LOG={where} cannot be opened: "), first
    assert re.fullmatch(PLAIN, second) and succeeds(done) == WELL


# ---- Not too many.


@pytest.mark.check
def test_too_many_lines(go, tmp_path):
    log = tmp_path / "log"
    done = go("free=100", LOG=log, LOG_FORMAT="json")
    assert succeeds(done) == WELL and done.stderr == ""
    lines = [json.loads(line) for line in lines_of(log)]
    assert [line["event"] for line in lines] == ["bad-free"] * 20 + ["lines-left-out"] * 2
    notice = "20 lines of bad-free within a minute: the next ones are left out"
    assert lines[20]["message"] == notice
    assert re.fullmatch(r"80 lines of bad-free were left out within \d+ s", lines[21]["message"])


def test_reports_are_whole(go, tmp_path):
    log = tmp_path / "log"
    done = go("free=25", "sizes", LOG=log, LOG_FORMAT="json", STATS=1)
    assert done.stderr == "" and done.returncode == 0
    events = [json.loads(line)["event"] for line in lines_of(log)]
    whole = go("free", "sizes", STATS=1).stderr.count("stats: ")
    assert events.count("bad-free") == 20 and events.count("stats") == whole > 30


# ---- syslog and the journal.


class Listener:
    """A socket of datagrams, at a path of its own."""

    def __init__(self, folder):
        self.path = pathlib.Path(folder) / "socket"
        self.open()

    def open(self):
        self.path.unlink(missing_ok=True)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.path))
        self.socket.setblocking(False)

    def heard(self):
        datagrams = []
        with contextlib.suppress(BlockingIOError):
            while True:
                datagrams.append(self.socket.recv(1 << 16).decode())
        return datagrams


@pytest.fixture
def listener(shm):
    one = Listener(shm)
    yield one
    one.socket.close()


def inside(script):
    """argv of a shell that does this in a mount namespace, and then executes the rest."""
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        if run([*how, "mount", "-t", "tmpfs", "none", "/run"], preload=False).returncode == 0:
            return [*how, "sh", "-ec", script + '\nexec "$@"', "sh"]
    return pytest.skip("needs a namespace of its own")


DEVICES = """
    mount -t tmpfs none /run
    mkdir -p /run/dev/shm
    touch /run/dev/null
    mount --bind /dev/null /run/dev/null
    mount --rbind /dev/shm /run/dev/shm
    ln -s {socket} /run/dev/log
    mount --rbind /run/dev /dev
"""


def test_syslog(go, listener):
    shell = inside(DEVICES.format(socket=listener.path))
    done = go("free", "close", "free", before=shell, LOG="syslog")
    assert succeeds(done) == WELL and done.stderr == ""
    all_match(rf"<11>pmalloc\[\d+\]: bad-free: {SAYS}", listener.heard(), 2)
    done = go("free", before=shell, LOG="syslog", LOG_FORMAT="json")
    (line,) = listener.heard()
    assert json.loads(line.partition("]: ")[2])["event"] == "bad-free"


def test_syslog_that_begins_anew(program, heap, listener):
    shell = inside(DEVICES.format(socket=listener.path))
    preload = f"LD_PRELOAD={BUILD / 'libpmalloc_preload.so'}"
    argv = [*shell, "env", preload, program, "free", "pause=1000", "free"]
    session = start(argv, preload=False, HEAP=heap, CHECK="report", LOG="syslog")
    while not (heard := listener.heard()):
        assert session.poll() is None
        time.sleep(0.01)
    listener.socket.close()
    listener.open()
    _, errors = session.communicate()
    assert errors == "" and len(heard + listener.heard()) == 2


JOURNAL = """
    mount -t tmpfs none /run
    mkdir -p /run/systemd/journal
    ln -s {socket} /run/systemd/journal/socket
    export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2)
"""


def fields(datagram):
    return dict(line.split("=", 1) for line in datagram.splitlines())


@pytest.mark.parametrize("settings", [{}, {"LOG_FORMAT": "json"}])
def test_the_journal(go, heap, listener, settings):
    shell = inside(JOURNAL.format(socket=listener.path))
    done = go("free", "close", "free", before=shell, LOG="journal", **settings)
    assert succeeds(done) == WELL and done.stderr == ""
    heard = [fields(one) for one in listener.heard()]
    assert len(heard) == 2
    for one in heard:
        assert re.fullmatch(SAYS, one.pop("MESSAGE"))
        assert one == {
            "PRIORITY": "3",
            "SYSLOG_IDENTIFIER": "pmalloc",
            "PMALLOC_EVENT": "bad-free",
            "PMALLOC_HEAP": str(heap),
        }


def test_the_journal_is_used_only_where_it_is_asked_for(go, listener):
    shell = inside(JOURNAL.format(socket=listener.path))
    all_match(PLAIN, go("free", before=shell).stderr.splitlines(), 1)
    elsewhere = inside(JOURNAL.format(socket=listener.path) + "JOURNAL_STREAM=1:1\n")
    all_match(PLAIN, go("free", before=elsewhere, LOG="journal").stderr.splitlines(), 1)
    assert listener.heard() == []
