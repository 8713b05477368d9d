# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Recipes of servers whose state is a table of keys: memcached, mosquitto, dnsmasq, ngircd,
opentracker, nbdkit. Each is killed at any instant under load, which clients of other projects add
to (recipe_loads.py). Then it has what a client was answered (recipe_tables.py). RECIPE_KILLS: how
often."""

import contextlib
import hashlib
import re
import signal
import socket
import struct
import threading
import urllib.parse

import pytest
import recipe_loads
from conftest import run, said, succeeds
from programs import free_port, program
from recipe_tables import Table, kill_under_load, last_moment, told
from test_recipes import known

MODES = ("output", "idle")


def test_the_oracle():
    log = [("a", 1), ("b", 2), ("a", 3)]
    assert last_moment({}, log, {"a": None, "b": None}) == 0
    assert last_moment({}, log, {"a": 1, "b": 2}) == 2
    assert last_moment({"b": 2}, log, {"a": 1, "b": 2}) == 2
    assert last_moment({}, log, {"a": 3, "b": 2}) == 3
    assert last_moment({}, log, {"a": 3, "b": None}) is None
    assert last_moment({"c": 1}, log, {"a": 1, "b": 2, "c": None}) is None


# ---- memcached ----------------------------------------------------------------------------------


class Memcached(Table):
    name = "memcached"

    def __init__(self, heap, folder, commit):
        self.port = free_port()
        arguments = ["-u", "root", "-p", self.port, "-U", 0, "-l", "127.0.0.1", "-t", 2]
        arguments += ["-m", 1024]  # nothing is evicted, some hundred loads long
        super().__init__(heap, folder, commit, *arguments)

    def ask(self, request):
        self.stream.write(request + b"\r\n")
        self.stream.flush()
        return told(self.stream.readline()).rstrip()

    def stats(self, of=b""):
        lines = [self.ask(b"stats" + of)]
        while lines[-1] != b"END":
            lines.append(told(self.stream.readline()).rstrip())
        return b" ".join(line.removeprefix(b"STAT ") for line in lines).decode()

    def read(self, key):
        line = self.ask(b"get k%d" % key)
        if line == b"END":
            return None
        value = told(self.stream.readline()).rstrip()
        assert self.stream.readline() == b"END\r\n" and value == value[:7] * (len(value) // 7)
        return int(value[:7])

    def next(self, rng, key, old):
        return None if old and rng.random() < 0.2 else rng.randrange(1, 1 << 20)

    def write(self, key, value):
        """Of many sizes, so items go from one class to another."""
        if value is None:
            told_of = self.ask(b"delete k%d" % key)
            assert told_of == b"DELETED", (told_of, self.stats())
            return
        text = b"%07d" % value * (1 + value % 400)
        assert self.ask(b"set k%d 0 0 %d\r\n%s" % (key, len(text), text)) == b"STORED"

    def crowd(self, mark):
        return recipe_loads.memcached(self.port, self.log.parent, mark)

    def own_tests(self):
        done = run([program("memccapable"), "-h", "127.0.0.1", "-p", self.port], preload=False)
        assert succeeds(done).count("[pass]") > 50, said(done)

    def marked(self, mark):
        if self.ask(b"get load") == b"END":
            return False
        text = told(self.stream.readline()).rstrip()
        assert self.stream.readline() == b"END\r\n"
        return text == b"%d" % mark


@pytest.mark.parametrize("commit", MODES)
def test_memcached_is_killed_under_load(commit, shm, tmp_path):
    kill_under_load(Memcached, (shm / "heap", tmp_path, commit), commit)


def test_memcached_moves_nothing_of_its_own_accord(shm, tmp_path):
    """Neither pages of items, nor marks through their lists: an instant amid that is of no use."""
    known("memcached")
    with Memcached(shm / "heap", tmp_path, "idle") as server:
        settings = server.stats(b" settings")
        assert "slab_reassign no" in settings and "lru_crawler no" in settings


# ---- mosquitto ----------------------------------------------------------------------------------

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13


def text_of(text):
    return struct.pack(">H", len(text)) + text.encode()


class Mosquitto(Table):
    """The values are the retained messages of topics."""

    name = "mosquitto"

    def __init__(self, heap, folder, commit):
        self.port, self.number = free_port(), 0
        lines = (f"listener {self.port} 127.0.0.1", "allow_anonymous true", "user root")
        (folder / "conf").write_text("\n".join((*lines, "set_tcp_nodelay true\n")))
        super().__init__(heap, folder, commit, "-c", folder / "conf")

    def connect(self):
        super().connect()
        self.send(0x10, text_of("MQTT") + struct.pack(">BBH", 4, 2, 600) + text_of("client"))
        return self.receive() == (CONNACK, b"\0\0")

    def send(self, kind, body):
        assert len(body) < 128
        self.stream.write(bytes([kind, len(body)]) + body)
        self.stream.flush()

    def receive(self):
        kind, length = told(self.stream.read(1))[0] >> 4, told(self.stream.read(1))[0]
        body = self.stream.read(length)
        return (kind, body) if len(body) == length else told(b"")

    def next_number(self):
        self.number = self.number % 65535 + 1
        return struct.pack(">H", self.number)

    def read(self, key):
        """What comes between two answers is the message that was retained."""
        text = self.read_topic(f"t/{key}")
        return int(text) if text else None

    def read_topic(self, topic):
        number, value = self.next_number(), None
        self.send(0x82, number + text_of(topic) + b"\0")
        self.send(0xA2, self.next_number() + text_of(topic))
        self.send(0xC0, b"")
        while (got := self.receive())[0] != PINGRESP:
            if got[0] == PUBLISH:
                assert got[1].startswith(text_of(topic)), got
                assert value is None or topic.startswith("load/")  # which somebody writes to
                value = value or got[1][len(text_of(topic)) :]
            elif got[0] == SUBACK:
                assert got[1] == number + b"\0", got
        return value

    def next(self, rng, key, old):
        return None if old and rng.random() < 0.2 else rng.randrange(1, 1 << 20)

    def write(self, key, value):
        number = self.next_number()
        self.send(0x33, text_of(f"t/{key}") + number + str(value or "").encode())
        assert self.receive() == (PUBACK, number)

    def crowd(self, mark):
        return recipe_loads.mosquitto(self.port, mark)

    def marked(self, mark):
        return self.read_topic("load/mark") == b"%d" % mark


@pytest.mark.parametrize("commit", MODES)
def test_mosquitto_is_killed_under_load(commit, shm, tmp_path):
    kill_under_load(Mosquitto, (shm / "heap", tmp_path, commit), commit)


# ---- dnsmasq ------------------------------------------------------------------------------------


def question(number, name):
    labels = b"".join(bytes([len(x)]) + x.encode() for x in (name, "example", "org"))
    return struct.pack(">6H", number, 0x100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


class Upstream(threading.Thread):
    """The server that dnsmasq asks. It gives each name the address that is set now, or fails."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.address, self.asked = None, set()

    def run(self):
        while True:
            query, peer = self.socket.recvfrom(2048)
            self.asked.add(query[13 : 13 + query[12]])
            asked = query[12 : query.index(b"\0", 12) + 5]
            if self.address is None:
                answer = query[:2] + b"\x81\x82\0\1\0\0\0\0\0\0" + asked
            else:
                record = struct.pack(">HHHIHI", 0xC00C, 1, 1, 36000, 4, self.address)
                answer = query[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + asked + record
            self.socket.sendto(answer, peer)


class Dnsmasq(Table):
    name = "dnsmasq"

    def __init__(self, heap, folder, commit, upstream):
        self.upstream, self.port, self.asked = upstream, free_port(), 0
        there = f"127.0.0.1#{upstream.socket.getsockname()[1]}"
        arguments = ["-C", "/dev/null", "-u", "root", "-p", self.port, "-i", "lo", "-R"]
        arguments += ["-S", there, "--bind-interfaces", "-a", "127.0.0.1", "-c", 2000]
        arguments += ["--pid-file="]
        super().__init__(heap, folder, commit, *arguments)

    def connect(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", self.port))
        self.socket.settimeout(0.1)
        self.upstream.address = None
        self.ask("ready")
        return True

    def ask(self, name):
        self.asked += 1
        self.socket.send(question(self.asked % 65536, name))
        answer = self.receive()
        assert answer[:2] == struct.pack(">H", self.asked % 65536)
        return struct.unpack(">I", answer[-4:])[0] if answer[3] & 15 == 0 else None

    def receive(self):
        """Of a server that is killed with a question nothing more is heard, no error either."""
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                return self.socket.recv(2048)
            if self.process.poll() is not None:
                break
        raise ConnectionError

    def begin(self, table):
        """Its cache is emptied now and then: else there would be nothing new to ask. The entries of
        the hosts file are an earlier run's then."""
        if sum(value is not None for value in table.values()) < len(table) * 3 / 4:
            return table
        self.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: not any(self.read(key) for key in self.keys))
        return {}

    def read(self, key):
        self.upstream.address = None
        return self.ask(f"n{key}")

    def next(self, rng, key, old):
        return old or rng.randrange(1, 1 << 20)

    def write(self, key, value):
        self.upstream.address = value
        assert self.ask(f"n{key}") == value

    def crowd(self, mark):
        self.upstream.asked.clear()
        return recipe_loads.dnsmasq(self.port, self.log.parent, mark)

    def marked(self, mark):
        return f"load-{mark}".encode() in self.upstream.asked


@pytest.mark.parametrize("commit", MODES)
def test_dnsmasq_is_killed_under_load(commit, shm, tmp_path):
    upstream = Upstream()
    upstream.start()
    kill_under_load(Dnsmasq, (shm / "heap", tmp_path, commit, upstream), commit)


# ---- ngircd -------------------------------------------------------------------------------------

NGIRCD = """
[Global]
Name = irc.example.org
AdminEMail = nobody@example.org
Info = a test
Listen = 127.0.0.1
Ports = {port}
ServerUID = root
ServerGID = root
[Limits]
MaxConnectionsIP = 0
MaxJoins = 0
MaxPenaltyTime = 0
[Options]
DNS = no
Ident = no
PAM = no
"""


class Ngircd(Table):
    name = "ngircd"

    def __init__(self, heap, folder, commit):
        self.port = free_port()
        (folder / "conf").write_text(NGIRCD.format(port=self.port))
        super().__init__(heap, folder, commit, "--config", folder / "conf")

    def connect(self):
        super().connect()
        self.say("NICK somebody\r\nUSER somebody 0 * :x")
        return self.until(" 376 | 422 ")  # the message of the day, or that there is none

    def say(self, line):
        self.stream.write(f"{line}\r\n".encode())
        self.stream.flush()

    def until(self, pattern):
        """What it says, the line included that has the pattern."""
        lines = [told(self.stream.readline()).decode().rstrip()]
        while not re.search(pattern, lines[-1]):
            if lines[-1].startswith("PING"):
                self.say("PONG x")
            lines.append(told(self.stream.readline()).decode().rstrip())
        return lines

    def begin(self, table):
        for key in self.keys:
            self.say(f"JOIN #c{key}")
            self.until(f" 366 .* #c{key} ")
        return table

    def read(self, key):
        self.say(f"LIST #c{key}")
        for line in self.until(" 323 "):
            if re.search(f" 322 .* #c{key} ", line):
                return int(line.rpartition(":")[2] or 0) or None
        return None

    def write(self, key, value):
        self.say(f"TOPIC #c{key} :{value}")
        self.until(f"TOPIC #c{key} :{value}$")

    def crowd(self, mark):
        return recipe_loads.ngircd(self.port, mark)

    def marked(self, mark):
        self.say("LIST #load")
        return any(line.endswith(f":{mark}") for line in self.until(" 323 "))


@pytest.mark.parametrize("commit", MODES)
def test_ngircd_is_killed_under_load(commit, shm, tmp_path):
    kill_under_load(Ngircd, (shm / "heap", tmp_path, commit), commit)


def test_ngircd_keeps_modes_and_lists(shm, tmp_path):
    known("ngircd")
    for generation in range(3):
        with Ngircd(shm / "heap", tmp_path, "output") as server:
            if generation == 0:
                server.say("JOIN #c\r\nMODE #c +mnl 17\r\nMODE #c +be *!*@bad *!*@good")
                server.until("MODE #c .*good")
                continue
            server.say("JOIN #c\r\nMODE #c\r\nMODE #c b\r\nMODE #c e")
            text = "\n".join(server.until(" 349 "))
            assert re.search(r" 324 .*#c \+\w*l\w* 17", text), text
            assert re.search(" 367 .*bad", text) and re.search(" 348 .*good", text), text


# ---- opentracker --------------------------------------------------------------------------------


LOADS = (1000, 1001, 1002)  # torrents of the load


class Opentracker(Table):
    """The values are how many seeders a torrent has."""

    name = "opentracker"

    def __init__(self, heap, folder, commit):
        self.port = free_port()
        folder.chmod(0o755)  # it changes its root directory to it, as nobody
        names = "".join(f"{self.torrent(key).hex()}\n" for key in (*self.keys, *LOADS))
        (folder / "torrents").write_text(names)
        arguments = ["-i", "127.0.0.1", "-p", self.port, "-P", self.port]
        super().__init__(heap, folder, commit, *arguments, "-d", folder, "-w", "torrents")

    @staticmethod
    def torrent(key):
        return hashlib.sha1(b"%d" % key).digest()

    def ask(self, page, key, more=""):
        self.connect()  # a connection for each request, as its clients have
        name = urllib.parse.quote_from_bytes(self.torrent(key))
        self.stream.write(f"GET /{page}?info_hash={name}{more} HTTP/1.0\r\n\r\n".encode())
        self.stream.flush()
        answer = told(self.stream.read())
        assert answer.startswith(b"HTTP/1.0 200") or answer.startswith(b"HTTP/1.1 200"), answer
        return answer.partition(b"\r\n\r\n")[2]

    def read(self, key):
        return self.scraped("complete", key) or None

    def scraped(self, what, key):
        found = re.search(rb"\d:%si(\d+)e" % what.encode(), self.ask("scrape", key))
        return int(found[1]) if found else 0

    def next(self, rng, key, old):
        old = old or 0
        return old - 1 or None if old and rng.random() < 0.3 else old + 1

    def begin(self, table):
        self.seeders = dict(table)
        return table

    def write(self, key, value):
        """One more comes, or the last one goes."""
        old, new = self.seeders.get(key) or 0, value or 0
        event = "started" if new > old else "stopped"
        peer = f"&peer_id=-XX0000-{0:012}&port={max(old, new)}&left=0&uploaded=0&downloaded=0"
        self.ask("announce", key, f"{peer}&event={event}&compact=1")
        self.seeders[key] = value

    def crowd(self, mark):
        self.peers = self.scraped("incomplete", LOADS[0])
        return recipe_loads.opentracker(self.port, [self.torrent(key) for key in LOADS], mark)

    def marked(self, mark):
        return self.scraped("incomplete", LOADS[0]) != self.peers


@pytest.mark.parametrize("commit", MODES)
def test_opentracker_is_killed_under_load(commit, shm):
    kill_under_load(Opentracker, (shm / "heap", shm, commit), commit)


# ---- nbdkit -------------------------------------------------------------------------------------

READ, WRITE = 0, 1
BLOCK = 3 << 12  # three pages: a write is whole or has not been


class Nbdkit(Table):
    name = "nbdkit"

    def __init__(self, heap, folder, commit):
        self.port, self.number = free_port(), 0
        plugin = program("nbdkit").parent / "../lib/x86_64-linux-gnu/nbdkit/plugins"
        arguments = ["-i", "127.0.0.1", "-p", self.port, plugin / "nbdkit-memory-plugin.so", "64M"]
        super().__init__(heap, folder, commit, *arguments)

    def connect(self):
        super().connect()
        assert told(self.stream.read(18)).startswith(b"NBDMAGICIHAVEOPT")
        self.stream.write(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.stream.flush()
        assert len(told(self.stream.read(10))) == 10
        return True

    def ask(self, what, at, data=b""):
        self.number += 1
        head = struct.pack(">IHHQQI", 0x25609513, 0, what, self.number, at, BLOCK)
        self.stream.write(head + data)
        self.stream.flush()
        answer = self.stream.read(16)
        if len(answer) < 16:
            raise ConnectionError
        assert answer == struct.pack(">IIQ", 0x67446698, 0, self.number)
        return self.stream.read(BLOCK) if what == READ else None

    @staticmethod
    def place(key):
        return key * BLOCK * 10 + 512

    def read(self, key):
        data = self.ask(READ, self.place(key))
        assert data == data[:4] * (BLOCK // 4), f"the write of block {key} is halved"
        return struct.unpack(">I", data[:4])[0] or None

    def write(self, key, value):
        self.ask(WRITE, self.place(key), struct.pack(">I", value) * (BLOCK // 4))

    def crowd(self, mark):
        return recipe_loads.nbdkit(self.port, mark)

    def marked(self, mark):
        return self.ask(READ, recipe_loads.PART) == bytes([1 + mark % 255]) * BLOCK


@pytest.mark.parametrize("commit", MODES)
def test_nbdkit_is_killed_under_load(commit, shm, tmp_path):
    kill_under_load(Nbdkit, (shm / "heap", tmp_path, commit), commit)
