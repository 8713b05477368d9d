# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Load by clients of other projects beside the client whose record is the oracle: they are at work
when the server is killed, on keys of their own. One script of the shell each; its first changes
have a mark, by which a test sees that they are at work. Their keys are few, so that some hundred
kills need no more room than one."""

import contextlib
import os
import signal
import subprocess
import urllib.parse

from programs import program

PART = 16 << 20  # of the disk: nobody else has it


@contextlib.contextmanager
def at_work(scripts, folder):
    """They run until the block ends, however that may be."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    started = []
    try:
        for script in scripts:
            argv = ["/bin/sh", "-c", script]
            started.append(subprocess.Popen(argv, cwd=folder, start_new_session=True, **quiet))
        yield
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def redis(port):
    """All its tests, over and over, in another database."""
    benchmark = f"{program('redis-benchmark')} -p {port} --dbnum 1 -l -q"
    return [
        f"{benchmark} -n 300 -c 4 -r 500",
        f"{benchmark} -n 2000 -c 6 -r 200 -P 8 -d 300",
    ]


def memcached(port, folder, mark):
    """Files of many sizes are stored, touched and removed; others are stored and asked for."""
    files = folder / "files"
    files.mkdir(exist_ok=True)
    for i in range(60):
        (files / f"f{i}").write_text(f"{mark}." * (1 + i * 97 % 1500))
    (files / "load").write_text(str(mark))
    there = f"--servers=127.0.0.1:{port}"
    names = "files/f[0-4]*"
    copy, remove = program("memccp"), program("memcrm")
    again = f"while {copy} {there} {names}; do {remove} {there} f7 f17 f27 f37 f47 f5; done"
    slap = f"{program('memcslap')} -q {there} -c 3 -e 100"
    return [
        f"{copy} {there} files/load && {again}",
        f"while {slap} -t set && {slap} -t mget; do {program('memctouch')} {there} f1 f2; done",
    ]


def mosquitto(port, mark):
    """Retained messages at each quality of service, one that is removed again, a subscriber."""
    publish = f"{program('mosquitto_pub')} -p {port} -r -t load"
    return [
        f"exec {program('mosquitto_sub')} -p {port} -q 1 -t 'load/#'",
        f"exec {publish}/mark -q 1 -m {mark} --repeat 1000000",
        f"seq 1000000 | sed 's/$/ of some length that varies/' | {publish}/0 -q 0 -l",
        f"seq 1000000 | {publish}/2 -q 2 -l",
        f"while {publish}/gone -m x; do {publish}/gone -n; done",
    ]


def dnsmasq(port, folder, mark):
    """Questions for names that are there, and for names that are not."""
    names = [f"load-{mark}", *(f"load{i}" for i in range(300))]
    (folder / "names").write_text("".join(f"{name}.example.org A\n" for name in names))
    return [f"exec {program('dnsperf')} -s 127.0.0.1 -p {port} -d names -q 4 -c 2 -l 3600 -t 1"]


def ngircd(port, mark):
    """Users that come to channels, give them topics, modes and bans, and leave."""
    client = f"{program('sic')} -h 127.0.0.1 -p {port} -n"
    turn = r"""
        echo ":JOIN #load,#load$1" && echo ":TOPIC #load :$2"
        while i=$((i + 1)); do
            echo ":TOPIC #load$1 :$i" && echo ":MODE #load$1 +b *!*@host$((i % 50))" &&
            echo ":MODE #load$1 -b *!*@host$(((i + 25) % 50))" && echo ":PART #load$1" &&
            echo ":JOIN #load$1" && echo ":TOPIC #load$1 :again" || break
            [ $((i % 20)) != 0 ] || sleep 0.01
        done"""
    return [f"set -- {i} {mark}; {{ {turn}\n}} | {client} user{i}" for i in range(3)]


def opentracker(port, torrents, mark):
    """A peer that is new, and others that come to torrents and complete them, ever again."""

    def peers(torrent, ports, left, event):
        name = urllib.parse.quote_from_bytes(torrent)
        return (
            f"{program('curl')} -s 'http://127.0.0.1:{port}/announce?info_hash={name}"
            f"&peer_id=-XX0000-{mark:012}&port={ports}&uploaded=0&downloaded=0&left={left}"
            f"&event={event}&compact=1'"
        )

    marked, *others = torrents
    scripts = [f"{peers(marked, 1000 + mark, 5, 'started')}; {peers(marked, 9, 0, 'started')}"]
    for i, torrent in enumerate(others):
        ports = f"[{1000 + i}-30000:7]"
        here = " && ".join(
            peers(torrent, ports, *what)
            for what in ((5, "started"), (0, "completed"), (0, "stopped"))
        )
        scripts.append(f"while {here}; do :; done")
    return scripts


def nbdkit(port, mark):
    """Writes, zeroes and discards."""
    commands = [f"write -P {1 + mark % 255} {PART} 64k"]
    for i in range(200):
        at = PART + (4 + i * 37 % 64 << 18)
        commands.append(f"write -P {1 + i} {at} 256k")
        commands.append((f"discard {at} 128k", f"write -z {at} 4k", f"read {at} 64k")[i % 3])
    text = " ".join(f'-c "{command}"' for command in commands)
    return [f"while {program('qemu-io')} -f raw {text} nbd://127.0.0.1:{port}; do :; done"]
