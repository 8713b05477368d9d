# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Servers under the preload: clients get what they get without it. Each server has been seen with
its memory on our heap."""

import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import urllib.request

from conftest import busy
from programs import (  # noqa: F401
    PATIENCE,
    Server,
    answers,
    children,
    free_port,
    has_our_copy,
    nothing_is_left,
    on_our_heap,
    program,
    surroundings,
    wait_until,
)


def modes(test):
    """Makes the test a function that runs without and with the preload, and compares what both runs
    return."""

    def both(tmp_path):
        results = []
        for preload in (False, True):
            folder = tmp_path / ("ours" if preload else "plain")
            folder.mkdir()
            results.append(test(folder, preload))
        assert results[0] == results[1]

    both.__doc__ = test.__doc__
    return both


# ---- redis ---------------------------------------------------------------------------------------


def redis_cli(port, *command, stdin=None):
    """Runs the client plain: only the server is under test."""
    argv = [program("redis-cli"), "-p", port, *command]
    done = subprocess.run(
        [str(a) for a in argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE * busy(),
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout.strip()


def redis_server(folder, preload, port):
    # The server, its checkers and its sentinel are one file. Its name decides which one runs.
    server = folder / "redis-server"
    if not server.exists():
        server.symlink_to(program("redis-check-rdb"))
    argv = [server, *f"--port {port} --bind 127.0.0.1 --dir {folder} --appendonly no".split()]
    argv += ["--save", "", "--enable-debug-command", "local"]
    started = Server("redis", argv, folder, surroundings(preload, folder))
    wait_until(
        lambda: answers(port) and redis_cli(port, "ping") == "PONG",
        "redis",
        started.process,
        started.log,
    )
    assert on_our_heap(started.process.pid) == preload
    return started


def redis_fill(port):
    commands = [f"SET key:{i} {'v' * (i % 500)}{i}" for i in range(20000)]
    commands += [f"HSET hash:{i % 50} field{i} {i * i}" for i in range(10000)]
    commands += [f"ZADD board {i * 7919 % 10007} member{i}" for i in range(5000)]
    commands += [f"RPUSH list:{i % 9} y{'x' * (i % 40)}" for i in range(5000)] + [
        f"SADD set {i}" for i in range(3000)
    ]
    commands += [f"DEL key:{i}" for i in range(0, 20000, 3)] + [
        f"APPEND key:{i} more" for i in range(1, 20000, 7)
    ]
    redis_cli(port, "--pipe", stdin="\r\n".join(commands) + "\r\n")


def redis_benchmark(folder, preload, port):
    """Runs redis's own benchmark. Its keys are random, so they are removed again."""
    options = (
        f"-p {port} -n 20000 -c 20 -P 8 -d 100 -r 5000 -q -t set,get,lpush,sadd,hset,zadd,mset"
    )
    done = subprocess.run(
        [str(program("redis-benchmark")), *options.split()],
        env=surroundings(preload, folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE * busy(),
        check=False,
    )
    assert done.returncode == 0 and done.stdout.count("requests per second") == 7, done
    for key in ("mylist", "myset", "myhash", "myzset", "counter:__rand_int__"):
        redis_cli(port, "del", key)
    script = "for _, k in ipairs(redis.call('keys', 'key:0000*')) do redis.call('del', k) end"
    redis_cli(port, "eval", script, 0)


@modes
def test_redis(folder, preload):
    """Debian's redis is linked with jemalloc. The preload comes before it, so jemalloc serves
    nothing. BGSAVE forks."""
    port = free_port()
    with redis_server(folder, preload, port) as server:
        redis_fill(port)
        redis_benchmark(folder, preload, port)
        memory = dict(
            re.findall(r"^(\w+):(\d+)\r?$", redis_cli(port, "info", "memory"), re.MULTILINE)
        )
        used, jemalloc = int(memory["used_memory"]), int(memory["allocator_allocated"])
        assert used > 4 << 20 and (jemalloc < used / 4) == preload, memory
        before = redis_cli(port, "debug", "digest")
        redis_cli(port, "bgsave")
        redis_cli(port, "set", "written", "while saving")
        wait_until(
            lambda: "rdb_bgsave_in_progress:0" in redis_cli(port, "info", "persistence"),
            "bgsave",
            server.process,
            server.log,
        )
        assert "rdb_last_bgsave_status:ok" in redis_cli(port, "info", "persistence"), server.text()
        redis_cli(port, "del", "written")
        sizes = [
            redis_cli(port, *words)
            for words in (
                ["dbsize"],
                ["hlen", "hash:7"],
                ["zrevrange", "board", 0, 3],
                ["memory", "doctor"],
            )
        ]
        assert redis_cli(port, "debug", "digest") == before
        redis_cli(port, "save")
        redis_cli(port, "shutdown", "nosave")
        server.ends()
    with redis_server(folder, preload, port) as server:
        assert (
            redis_cli(port, "debug", "digest") == before
        ), "the saved data differ from the data before"
        redis_cli(port, "shutdown", "nosave")
        server.ends()
    return before, sizes[:3]


# ---- memcached -----------------------------------------------------------------------------------


class Memcached:
    """As much of the text protocol as the test needs."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE * busy())
        self.file = self.socket.makefile("rwb")

    def set(self, key, value):
        self.file.write(f"set {key} 0 0 {len(value)}\r\n".encode() + value + b"\r\n")
        self.file.flush()
        return self.file.readline()

    def get(self, *keys):
        self.file.write(f"get {' '.join(keys)}\r\n".encode())
        self.file.flush()
        found = {}
        while (line := self.file.readline()) != b"END\r\n":
            _, key, _, length = line.split()
            found[key.decode()] = self.file.read(int(length) + 2)[:-2]
        return found

    def stats(self):
        self.file.write(b"stats\r\n")
        self.file.flush()
        pairs = {}
        while (line := self.file.readline()) != b"END\r\n":
            _, name, value = line.decode().split()
            pairs[name] = value
        return pairs


@modes
def test_memcached(folder, preload):
    port = free_port()
    argv = [program("memcached"), *f"-l 127.0.0.1 -p {port} -U 0 -t 3 -m 64 -u root".split()]
    if os.geteuid() != 0:
        argv = argv[:-2]
    with Server("memcached", argv, folder, surroundings(preload, folder)) as server:
        server.wait_until(lambda: answers(port))
        assert on_our_heap(server.process.pid) == preload
        answers_seen = []

        def client(n):
            connection = Memcached(port)
            for i in range(1500):
                assert (
                    connection.set(f"k{n}:{i}", bytes([65 + i % 26]) * (i * 13 % 9000))
                    == b"STORED\r\n"
                )
            got = connection.get(*(f"k{n}:{i}" for i in range(0, 1500, 20)), "missing")
            answers_seen.append((n, len(got), sum(len(v) for v in got.values())))

        threads = [threading.Thread(target=client, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = Memcached(port).stats()
        server.process.terminate()
        server.ends()
    assert "pmalloc" not in server.text()
    return sorted(answers_seen), stats["curr_items"], stats["cmd_set"], stats["bytes"]


# ---- nginx ---------------------------------------------------------------------------------------

NGINX = """
worker_processes 2;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    types {{ text/plain txt; application/octet-stream bin; }}
    gzip on; gzip_types text/plain; gzip_min_length 100;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/www;
        location /again/ {{
            proxy_pass http://127.0.0.1:{port}/; add_header X-Generation {generation}; }}
    }}
}}
{user}
"""


def fetch(port, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE * busy()) as answer:
        return answer.status, answer.headers.get("X-Generation"), answer.read()


@modes
def test_nginx(folder, preload):
    port = free_port()
    www = folder / "www"
    www.mkdir()
    (www / "small.txt").write_text("small\n" * 400)
    (www / "large.bin").write_bytes(bytes(range(256)) * 16384)

    def configure(generation):
        user = "user root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(
            NGINX.format(folder=folder, port=port, generation=generation, user=user)
        )

    configure(1)
    argv = [program("nginx"), "-p", folder, "-c", folder / "nginx.conf", "-e", folder / "error.log"]
    with Server("nginx", argv, folder, surroundings(preload, folder)) as server:
        server.wait_until(lambda: answers(port))
        master = server.process.pid
        server.wait_until(lambda: len(children(master)) == 2)
        assert on_our_heap(master) == preload
        old = children(master)
        server.wait_until(lambda: [has_our_copy(pid) for pid in old] == [preload] * 2)
        got = [
            fetch(port, path)
            for path in ("/small.txt", "/large.bin", "/again/small.txt")
            for _ in range(20)
        ]
        got.append(fetch(port, "/small.txt", **{"Accept-Encoding": "gzip"})[0])
        configure(2)
        server.process.send_signal(signal.SIGHUP)
        server.wait_until(lambda: fetch(port, "/again/small.txt")[1] == "2")
        server.wait_until(
            lambda: len(children(master)) == 2 and not set(children(master)) & set(old)
        )
        got += [fetch(port, "/again/large.bin"), [os.path.exists(f"/proc/{pid}") for pid in old]]
        server.process.send_signal(signal.SIGQUIT)
        server.ends()
    log = (folder / "error.log").read_text()
    assert not re.search(r"\[(alert|emerg|crit)\]", log), log
    return got


# ---- openssl -------------------------------------------------------------------------------------


@modes
def test_openssl_server(folder, preload):
    """s_server with s_client as its client, and with Python's ssl module."""
    env = surroundings(preload, folder)
    openssl, port = program("openssl"), free_port()
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    subprocess.run(
        [*request, "-keyout", "key.pem", "-out", "cert.pem", "-days", "2"],
        cwd=folder,
        env=env,
        check=True,
        capture_output=True,
    )
    options = f"-accept 127.0.0.1:{port} -key key.pem -cert cert.pem -rev -quiet"
    argv = [openssl, "s_server", *options.split()]
    with Server("openssl", argv, folder, env) as server:
        server.wait_until(lambda: answers(port))
        assert on_our_heap(server.process.pid) == preload
        seen = []
        for i in range(10):
            done = subprocess.run(
                [
                    openssl,
                    "s_client",
                    "-connect",
                    f"127.0.0.1:{port}",
                    "-CAfile",
                    "cert.pem",
                    "-verify_return_error",
                    "-quiet",
                    *(["-tls1_2"] if i % 2 else []),
                ],
                input=f"hello {i} {'x' * 100}\nCLOSE\n",
                cwd=folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=PATIENCE * busy(),
                check=False,
            )
            seen.append((done.returncode, done.stdout))
        context = ssl.create_default_context(cafile=folder / "cert.pem")
        with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(
            raw, server_hostname="localhost"
        ) as tls:
            tls.sendall(b"abcdef\n")
            seen.append(tls.recv(100))
        server.process.terminate()
        server.process.wait(PATIENCE * busy())
    assert seen[-1] == b"fedcba\n" and "0 olleh" in seen[0][1], (seen, server.text())
    return seen
