# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PMALLOC_COMMIT=output[:TIME]: answers that wait for one commit. What a program sees of its
sockets and pipes is what it sees without the preload, no answer leaves before its commit, and one
commit is for all. trigger_kills.py kills servers; OUTBOX_KILLS=2000 makes that many kills of
each."""

import os
import random
import re
import socket
import ssl
import subprocess

import pytest
import trigger_kills
from conftest import busy, compiled, environment, needs, run, said, start, succeeds
from programs import free_port, wait_until
from programs import program as program_of

KILLS = int(os.environ.get("OUTBOX_KILLS", "12"))
CLIENTS, TURNS = 40, 10

# Where another process is at the other end of a connection by TCP, its reset may come a little
# later than a plain program's: after an answer that waited, not before it.
WAYS = (
    "to_another by_close by_number by_dup2 by_fclose by_closefrom by_copy by_fork by_exec by_exit "
    "by_leave at_the_end bad_arguments from_blocks full never_waits handler by_freopen to_be_read"
).split()
OF_SOCKETS = (
    "all_calls descriptor_after by_shutdown waiting_bytes spins "
    "shut_by_itself small_room many_small"
).split()
OF_NO_TCP = "other_end_is_gone other_end_goes".split()
CASES = [("unix", way) for way in WAYS + OF_SOCKETS + OF_NO_TCP]
CASES += [("tcp", way) for way in WAYS + OF_SOCKETS]
CASES += [("pipe", way) for way in [*WAYS, *OF_NO_TCP, "all_calls", "packets", "by_pclose"]]
CASES += [("unix", "shut_by_the_other"), ("unix", "by_many_copies"), ("tcp", "by_option")]


# outbox_rules.c. A connection by TCP is reset where a socket pair only ends.
RULES = (
    "by_other_calls by_oob by_linger by_reset by_late_linger error_by_option error_by_write "
    "room_comes_back by_spawn by_dup3 by_range_by_number"
).split()
RULES = [(kind, way) for kind in ("unix", "tcp") for way in RULES]
RULES += [("tcp", "by_zerocopy"), ("unix", "thread_closes"), ("unix", "thread_replaces")]


@pytest.fixture(scope="module")
def program():
    return compiled("outbox.c", "-D_GNU_SOURCE", "-pthread")


@pytest.fixture(scope="module")
def rules():
    return compiled("outbox_rules.c", "-D_GNU_SOURCE", "-pthread")


def compare(program, heap, kind, way, *commits):
    plain = run([program, way, kind], preload=False)
    assert plain.returncode == 0 and plain.stdout, said(plain)
    for commit in commits:
        done = run([program, way, kind], HEAP=heap, ROOTS="value", COMMIT=commit)
        assert (done.stdout, done.stderr) == (plain.stdout, ""), (commit, said(done))
        assert done.returncode == 0


@pytest.mark.parametrize("kind, way", CASES)
def test_what_a_program_sees(program, heap, kind, way):
    """Each rule of docs/commit.md: results, errors, and what the other end gets."""
    compare(program, heap, kind, way, "output", "output:20ms", "output:0")


@pytest.mark.parametrize("kind, way", RULES)
def test_more_rules(rules, heap, kind, way):
    """Calls that come after an answer, options, other programs, threads that close."""
    compare(rules, heap, kind, way, "output")


def test_what_left_is_committed(program, heap):
    """Each way counts its answers."""
    for way, answers in (("to_another", 3), ("spins", 100), ("by_close", 1)):
        before = int(succeeds(run([program, "check"], HEAP=heap, ROOTS="value")))
        settings = {"HEAP": heap, "ROOTS": "value", "COMMIT": "output:20ms"}
        succeeds(run([program, way, "unix"], **settings))
        after = int(succeeds(run([program, "check"], HEAP=heap, ROOTS="value")))
        assert after == before + answers


def commits_of(program, heap, commit):
    settings = {"HEAP": heap, "ROOTS": "value", "COMMIT": commit, "STATS": 1}
    done = run([program, "turns", "unix"], **settings)
    assert done.stdout == "answered\n", said(done)
    return int(re.search(r"stats: commits: (\d+) of", done.stderr)[1]), done.stderr


def test_one_commit_for_all(program, heap):
    """An event loop that answers many clients in one turn."""
    each, _ = commits_of(program, heap, "output:0")
    assert each > CLIENTS * TURNS
    together, errors = commits_of(program, heap, "output")
    found = re.search(r"that waited for others: (\d+), which left in (\d+) turns", errors)
    answers, left = found.groups()
    assert (int(answers), int(left)) == (CLIENTS * TURNS, TURNS), errors
    assert together <= TURNS + 5  # its start, its end, and what it says


def test_one_commit_where_syncs_take_long(program, heap, shm):
    """Longer than answers may wait. Those whose commit is being made wait for no other one, so the
    next turn's first answer does not leave at once, with a commit of its own."""
    needs("strace")
    ms = int(100 * busy())
    env = environment(HEAP=heap, ROOTS="value", COMMIT=f"output:{ms}ms", STATS=1)
    inject = f"inject=fdatasync:delay_enter={1300 * ms}"
    argv = ["strace", "-f", "-o", shm / "calls", "-e", inject]
    argv += ["-E", f"LD_PRELOAD={env.pop('LD_PRELOAD')}", program, "turns", "unix"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60 * busy())
    assert done.stdout == "answered\n", said(done)
    assert (shm / "calls").read_text().count("fdatasync") > TURNS
    assert int(re.search(r"stats: commits: (\d+) of", done.stderr)[1]) <= TURNS + 5, done.stderr


@pytest.mark.parametrize("commit", ["output:1ms", "output"])
def test_kills(shm, commit):
    for subject in trigger_kills.programs(shm, commit, random.Random(KILLS)):
        if isinstance(subject, trigger_kills.Loops):
            answered, lost = trigger_kills.torment(subject, commit, KILLS, subject.rng)
            assert answered > KILLS and (lost == 0 or subject.threads > 1)


def connected(port, process):
    """By TLS. The server serves one connection."""
    got = []
    wait_until(
        lambda: got.append(socket.create_connection(("127.0.0.1", port))) or True,
        "openssl",
        process,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(got[0])


def test_tls(heap, tmp_path):
    """A client of openssl's server that does not wait for answers. The library numbers what it
    sends: nothing may be lost, doubled or out of order."""
    openssl, port, pem = program_of("openssl"), free_port(), tmp_path / "pem"
    key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes".split()
    made = [openssl, "req", "-x509", *key, "-subj", "/CN=x", "-keyout", pem, "-out", f"{pem}.2"]
    subprocess.run(made, check=True, capture_output=True)
    served = [openssl, "s_server", "-accept", f"127.0.0.1:{port}", "-naccept", 1]
    served += ["-key", pem, "-cert", f"{pem}.2", "-rev", "-quiet"]
    with start(served, HEAP=heap, COMMIT="output", STATS=1) as server:
        with connected(port, server) as connection, connection.makefile("rb") as answers:
            for first in range(0, 100, 10):
                lines = [b"line %d" % n for n in range(first, first + 10)]
                for line in lines:
                    connection.sendall(line + b"\n")
                assert [answers.readline() for _ in lines] == [one[::-1] + b"\n" for one in lines]
            connection.sendall(b"CLOSE\n")
            assert answers.read() == b""
        errors = server.communicate(timeout=60 * busy())[1]
    assert int(re.search(r"that waited for others: (\d+)", errors)[1]) >= 100, errors


@pytest.mark.parametrize("value", ["output:", "output:x", "output:2s", "output:5", "output:0ms"])
def test_wrong_values(program, heap, value):
    done = run([program, "check"], HEAP=heap, COMMIT=value)
    assert done.returncode == 125 and value in done.stderr, said(done)
    assert done.stderr.count("\n") == 1
