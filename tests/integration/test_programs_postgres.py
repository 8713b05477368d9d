# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""PostgreSQL under the preload: clients get what they get without it. The server has been seen with
its memory on our heap."""

import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile

import pytest
from conftest import API, BUILD, busy
from programs import (  # noqa: F401
    PATIENCE,
    children,
    has_our_copy,
    nothing_is_left,
    on_our_heap,
    postgres_folder,
    surroundings,
)

SQL = """
create table t (k serial primary key, v text, n numeric); create index on t (v);
create index on t using brin (n);
insert into t (v, n) select md5(i::text), i / 7.0 from generate_series(1, 20000) i;
update t set v = v || 'x' where k % 3 = 0; delete from t where k % 5 = 0;
select count(*), sum(length(v)), round(avg(n), 6), max(v) from t;
select v, count(*) over (partition by k % 4 order by v) from t order by v limit 3;
with recursive f(a, b) as
    (values (0::numeric, 1::numeric) union all select b, a + b from f where b < 1e50)
    select max(b) from f;
select string_agg(j->>'name', ',' order by 1) from
    (select jsonb_build_object('name', v) j from t limit 50) x;
create function f(i int) returns int language plpgsql as
    $$ begin return case when i < 2 then i else f(i - 1) + f(i - 2) end; end $$;
select f(15); vacuum analyze t; select count(*) from t a join t b on a.v = b.v;
select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts;
"""


@pytest.fixture
def postgres_home():
    """A folder, a copy of the library and a user, because the server refuses to run as root."""
    user = None
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody").pw_uid
        reach = ["setpriv", "--reuid", str(user), "test", "-x", str(postgres_folder() / "initdb")]
        if subprocess.run(reach, check=False).returncode:
            pytest.skip("the server's programs cannot be reached by others")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pmalloc-postgres-", dir="/tmp"))
    if user is not None:
        os.chown(folder, user, user)
    folder.chmod(0o755)
    library = folder / API
    shutil.copy(BUILD / API, library)
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
    env = surroundings(
        preload, where, variables={"PGHOST": str(where), "PGUSER": "tester", "PGPORT": "5432"}
    )
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
            timeout=100 * busy(),
            check=False,
            **as_user,
        )
        log = where / "log"
        text = log.read_text()[-3000:] if log.exists() else ""
        assert done.returncode == 0, f"{done}\n{text}"
        return done.stdout

    data = where / "data"
    call(
        "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
    )
    options = f"-k {where} -c listen_addresses= -c fsync=off -c jit=off"
    options += " -c max_parallel_workers_per_gather=2"
    options += " -c min_parallel_table_scan_size=0 -c shared_buffers=16MB"
    call("pg_ctl", "-D", data, "-w", "-t", PATIENCE, "-l", where / "log", "-o", options, "start")
    try:
        master = int((data / "postmaster.pid").read_text().split()[0])
        # pg_ctl's child executes a shell, which executes the server. So the server is a descendant
        # with a heap of its own.
        assert on_our_heap(master) == preload
        assert any(has_our_copy(pid) for pid in children(master)) == preload
        call("pgbench", "-i", "-q", "postgres")
        done = call("pgbench", "-c", 2, "-j", 2, "-t", 150, "postgres")
        assert "number of transactions actually processed: 300/300" in done, done
        result = call(
            "psql", "-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", "postgres", stdin=SQL
        )
    finally:
        call("pg_ctl", "-D", data, "-w", "-t", PATIENCE, "-m", "fast", "stop")
    log = (where / "log").read_text()
    assert (
        "database system is shut down" in log
        and "PANIC" not in log
        and "terminated by signal" not in log
    ), log
    return result


def test_postgres(postgres_home):
    """initdb, pg_ctl, server, pgbench and psql: processes that fork without exec and share
    memory."""
    plain = postgres_run(postgres_home, False)
    assert postgres_run(postgres_home, True) == plain and plain.endswith("t\n")
