# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Servers under the preload: what clients get is what they get from a server without it, and each server has
been seen to have its memory on our heap."""

import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import pathlib
import threading
import urllib.request

import pytest

from conftest import BUILD
from programs import (
    PATIENCE,
    Server,
    answers,
    children,
    free_port,
    has_our_copy,
    nothing_is_left,
    on_our_heap,
    postgres_folder,
    program,
    surroundings,
    wait_until,
)


def modes(test):
    """The test as a function of `preload`, to be run with and without; compares what it returns."""

    def both(tmp_path):
        results = []
        for preload in (False, True):
            folder = tmp_path / ("ours" if preload else "plain")
            folder.mkdir()
            results.append(test(folder, preload))
        assert results[0] == results[1]

    both.__doc__ = test.__doc__
    return both


# ---- redis -------------------------------------------------------------------------------------------


def redis_cli(port, *command, stdin=None):
    """Client and server are compared as one: the client runs plain."""
    argv = [program("redis-cli"), "-p", port, *command]
    done = subprocess.run(
        [str(a) for a in argv], input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done
    return done.stdout.strip()


def redis_server(folder, preload, port):
    # The server, its checkers and its sentinel are one file; the name it is called by decides.
    server = folder / "redis-server"
    if not server.exists():
        server.symlink_to(program("redis-check-rdb"))
    argv = [
        server,
        "--port",
        port,
        "--bind",
        "127.0.0.1",
        "--dir",
        folder,
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    argv += ["--enable-debug-command", "local"]
    started = Server("redis", argv, folder, surroundings(preload, folder))
    wait_until(
        lambda: answers(port) and redis_cli(port, "ping") == "PONG", "redis", started.process, started.log
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


@modes
def test_redis(folder, preload):
    """Debian's redis links jemalloc; the preload comes before it, and jemalloc serves nothing. BGSAVE forks."""
    port = free_port()
    with redis_server(folder, preload, port) as server:
        redis_fill(port)
        benchmark = [
            program("redis-benchmark"),
            "-p",
            port,
            "-n",
            20000,
            "-c",
            20,
            "-P",
            8,
            "-d",
            100,
            "-r",
            5000,
            "-q",
        ]
        done = subprocess.run(
            [str(a) for a in [*benchmark, "-t", "set,get,lpush,sadd,hset,zadd,mset"]],
            env=surroundings(preload, folder),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0 and done.stdout.count("requests per second") == 7, done
        for key in ("mylist", "myset", "myhash", "myzset", "counter:__rand_int__"):
            redis_cli(port, "del", key)
        redis_cli(
            port, "eval", "for _, k in ipairs(redis.call('keys', 'key:0000*')) do redis.call('del', k) end", 0
        )
        memory = dict(re.findall(r"^(\w+):(\d+)\r?$", redis_cli(port, "info", "memory"), re.MULTILINE))
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
            for words in (["dbsize"], ["hlen", "hash:7"], ["zrevrange", "board", 0, 3], ["memory", "doctor"])
        ]
        assert redis_cli(port, "debug", "digest") == before
        redis_cli(port, "save")
        redis_cli(port, "shutdown", "nosave")
        server.ends()
    with redis_server(folder, preload, port) as server:
        assert redis_cli(port, "debug", "digest") == before, "what was saved is not what was there"
        redis_cli(port, "shutdown", "nosave")
        server.ends()
    return before, sizes[:3]


# ---- memcached ---------------------------------------------------------------------------------------


class Memcached:
    """The text protocol, as far as needed."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
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
    argv = [
        program("memcached"),
        "-l",
        "127.0.0.1",
        "-p",
        port,
        "-U",
        "0",
        "-t",
        "3",
        "-m",
        "64",
        "-u",
        "root",
    ]
    if os.geteuid() != 0:
        argv = argv[:-2]
    with Server("memcached", argv, folder, surroundings(preload, folder)) as server:
        server.wait_until(lambda: answers(port))
        assert on_our_heap(server.process.pid) == preload
        answers_seen = []

        def client(n):
            connection = Memcached(port)
            for i in range(1500):
                assert connection.set(f"k{n}:{i}", bytes([65 + i % 26]) * (i * 13 % 9000)) == b"STORED\r\n"
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


# ---- nginx -------------------------------------------------------------------------------------------

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
        location /again/ {{ proxy_pass http://127.0.0.1:{port}/; add_header X-Generation {generation}; }}
    }}
}}
{user}
"""


def fetch(port, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
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
            fetch(port, path) for path in ("/small.txt", "/large.bin", "/again/small.txt") for _ in range(20)
        ]
        got.append(fetch(port, "/small.txt", **{"Accept-Encoding": "gzip"})[0])
        configure(2)
        server.process.send_signal(signal.SIGHUP)
        server.wait_until(lambda: fetch(port, "/again/small.txt")[1] == "2")
        server.wait_until(lambda: len(children(master)) == 2 and not set(children(master)) & set(old))
        got += [fetch(port, "/again/large.bin"), [os.path.exists(f"/proc/{pid}") for pid in old]]
        server.process.send_signal(signal.SIGQUIT)
        server.ends()
    log = (folder / "error.log").read_text()
    assert not re.search(r"\[(alert|emerg|crit)\]", log), log
    return got


# ---- postgres ----------------------------------------------------------------------------------------

SQL = """
create table t (k serial primary key, v text, n numeric); create index on t (v); create index on t using brin (n);
insert into t (v, n) select md5(i::text), i / 7.0 from generate_series(1, 20000) i;
update t set v = v || 'x' where k % 3 = 0; delete from t where k % 5 = 0;
select count(*), sum(length(v)), round(avg(n), 6), max(v) from t;
select v, count(*) over (partition by k % 4 order by v) from t order by v limit 3;
with recursive f(a, b) as (values (0::numeric, 1::numeric) union all select b, a + b from f where b < 1e50) select max(b) from f;
select string_agg(j->>'name', ',' order by 1) from (select jsonb_build_object('name', v) j from t limit 50) x;
create function f(i int) returns int language plpgsql as $$ begin return case when i < 2 then i else f(i - 1) + f(i - 2) end; end $$;
select f(15); vacuum analyze t; select count(*) from t a join t b on a.v = b.v;
select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts;
"""


@pytest.fixture
def postgres_home():
    """A folder, a copy of the library and a user for a server that refuses to run as root."""
    user = None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-postgres-", dir="/tmp"))
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody").pw_uid
        os.chown(folder, user, user)
    folder.chmod(0o755)
    library = folder / "libpmalloc_preload.so"
    shutil.copy(BUILD / "libpmalloc_preload.so", library)
    yield folder, library, user
    shutil.rmtree(folder, ignore_errors=True)
    heaps = pathlib.Path(f"/dev/shm/pmalloc-{os.geteuid() if user is None else user}")
    if user is not None and heaps.is_dir() and not any(heaps.iterdir()):
        heaps.rmdir()


def postgres_run(home, preload):
    folder, library, user = home
    where = folder / ("ours" if preload else "plain")
    where.mkdir()
    if user is not None:
        os.chown(where, user, user)
    binaries = postgres_folder()
    env = surroundings(preload, where, variables={"PGHOST": str(where), "PGUSER": "tester", "PGPORT": "5432"})
    if preload:
        env["LD_PRELOAD"] = str(library)
    as_user = {} if user is None else {"user": user, "group": user, "extra_groups": ()}

    def call(name, *arguments, stdin=None):
        done = subprocess.run(
            [str(a) for a in (binaries / name, *arguments)],
            input=stdin,
            env=env,
            cwd=where,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            **as_user,
        )
        log = where / "log"
        text = log.read_text()[-3000:] if log.exists() else ""
        assert done.returncode == 0, f"{done}\n{text}"
        return done.stdout

    data = where / "data"
    call("initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
    options = f"-k {where} -c listen_addresses= -c fsync=off -c max_parallel_workers_per_gather=2 -c jit=off"
    options += " -c min_parallel_table_scan_size=0 -c shared_buffers=16MB"
    call("pg_ctl", "-D", data, "-w", "-t", PATIENCE, "-l", where / "log", "-o", options, "start")
    try:
        master = int((data / "postmaster.pid").read_text().split()[0])
        # pg_ctl's child executes a shell that executes the server: a descendant with a heap of its own
        assert on_our_heap(master) == preload
        assert any(has_our_copy(pid) for pid in children(master)) == preload
        call("pgbench", "-i", "-q", "postgres")
        done = call("pgbench", "-c", 2, "-j", 2, "-t", 150, "postgres")
        assert "number of transactions actually processed: 300/300" in done, done
        result = call("psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", stdin=SQL)
    finally:
        call("pg_ctl", "-D", data, "-w", "-t", PATIENCE, "-m", "fast", "stop")
    log = (where / "log").read_text()
    assert (
        "database system is shut down" in log and "PANIC" not in log and "terminated by signal" not in log
    ), log
    return result


def test_postgres(postgres_home):
    """initdb, pg_ctl, server, pgbench and psql: processes that fork without exec and share memory."""
    plain = postgres_run(postgres_home, False)
    assert postgres_run(postgres_home, True) == plain and plain.endswith("t\n")


# ---- openssl -----------------------------------------------------------------------------------------


@modes
def test_openssl_server(folder, preload):
    """s_server and s_client, and Python's ssl module as a client."""
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
    argv = [
        openssl,
        "s_server",
        "-accept",
        f"127.0.0.1:{port}",
        "-key",
        "key.pem",
        "-cert",
        "cert.pem",
        "-rev",
        "-quiet",
    ]
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
                timeout=PATIENCE,
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
        server.process.wait(PATIENCE)
    assert seen[-1] == b"fedcba\n" and "0 olleh" in seen[0][1], (seen, server.text())
    return seen
