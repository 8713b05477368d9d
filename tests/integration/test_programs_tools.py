# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Databases in a file, cryptography, pictures, version control, builds and stressors, under the
preload and without."""

import re
import shutil

import pytest

from conftest import ROOT
from programs import bash, nothing_is_left, program, runs_on_our_heap, same

SQLITE = r"""
pragma journal_mode = wal; create table t (k integer primary key, name text unique, n real, b blob);
with recursive c(i) as (select 1 union all select i + 1 from c where i < 30000)
    insert into t select i, 'name ' || (i * 7919 % 30011), i / 3.0, zeroblob(i % 400) from c;
create index t_n on t (n desc, length(b)); create table u as select k, name from t where k % 7 = 0;
select count(*), sum(length(b)), max(t.name) from t join u using (k);
explain query plan select * from t where n > 9000;
begin; delete from t where k % 3 = 0; savepoint s; update t set name = name || '!'; rollback to s;
commit;
create virtual table f using fts5(body);
insert into f select 'word' || k % 100 || ' and ' || name from t;
select count(*) from f where f match 'word42 OR "name 77"';
select json_group_array(name) from (select name from u limit 5);
select name, sum(n) over (order by k rows 3 preceding) from t order by k desc limit 3;
vacuum; pragma wal_checkpoint(truncate); pragma integrity_check; analyze;
.dump t
"""


@pytest.mark.check
@pytest.mark.parametrize("where", ("work.db", ":memory:"))
def test_sqlite(tmp_path, where):
    done = same(
        tmp_path,
        [program("sqlite3"), "-batch", where],
        stdin=SQLITE.replace("vacuum; ", "vacuum;\n"),
    )
    assert "\nok\n" in done.out


def test_sqlite_processes(tmp_path):
    """Several processes write to one database at once."""
    script = """sqlite3 w.db 'create table t (w, i)'
        for w in 1 2 3; do (for i in 1 2 3 4 5 6; do echo ".timeout 60000";
            echo "insert into t values ($w, $i);"; done | sqlite3 w.db) & done
        wait; sqlite3 w.db 'select w, count(*), sum(i) from t group by w; pragma integrity_check'"""
    bash(tmp_path, script, on="sqlite3", ignore=r"w\.db")


OPENSSL = r"""
set -e
head -c 3000000 /dev/zero | openssl enc -aes-256-ctr -K 00 -iv 00 > data
openssl dgst -sha256 data; openssl dgst -sha3-512 -hmac key data
openssl genrsa -out rsa.pem 2048; openssl rsa -in rsa.pem -pubout -out pub.pem
openssl dgst -sha256 -sign rsa.pem -out data.sig data;
openssl dgst -sha256 -verify pub.pem -signature data.sig data
for cipher in aes-256-cbc chacha20 camellia-128-cbc; do
    openssl enc -$cipher -pbkdf2 -k secret -in data -out data.enc;
    openssl enc -d -$cipher -pbkdf2 -k secret -in data.enc | cmp - data
done
openssl ecparam -name prime256v1 -genkey -noout -out ec.pem
openssl req -x509 -new -key ec.pem -subj /CN=test -days 1 -out cert.pem;
openssl verify -CAfile cert.pem cert.pem
openssl pkcs12 -export -in cert.pem -inkey ec.pem -passout pass:x -out p12;
openssl pkcs12 -in p12 -passin pass:x -nodes | grep -c BEGIN
openssl cms -sign -nodetach -in data -binary -signer cert.pem -inkey ec.pem -outform DER -out cms;
openssl cms -verify -in cms -inform DER -CAfile cert.pem -purpose any -binary | cmp - data
openssl prime 1000000007; echo 'not base64!' | openssl x509 -noout || echo refused
"""


def test_openssl(tmp_path):
    # The error line has a thread number.
    done = bash(tmp_path, OPENSSL, on="openssl", ignore=r".", compare_err=False)
    assert "Verified OK" in done.out and done.out.endswith("refused\n")


MAGICK = r"""
set -e
convert -seed 7 -size 160x120 plasma:fractal a.png
convert a.png -resize 150% -rotate 33 -blur 0x3 -modulate 110,80 -quality 80 b.jpg
convert a.png \( +clone -negate \) -append -colors 64 -dither FloydSteinberg c.gif
convert a.png b.jpg -resize 100x100! -average -depth 16 d.tif;
montage a.png b.jpg c.gif -tile 2x2 -geometry 90x90+2+2 e.png
compare -metric RMSE a.png a.png null: ; convert c.gif -fft -delete 1 f.miff || true
identify -format '%f %wx%h %k %#\n' a.png b.jpg c.gif d.tif e.png
"""


@pytest.mark.parametrize("threads", (1, 2))
def test_imagemagick(tmp_path, threads):
    # PNG and TIFF files hold the time.
    variables = {"MAGICK_THREAD_LIMIT": str(threads), "OMP_NUM_THREADS": str(threads)}
    # Debian 12 has convert-im6.q16 by this name, Debian 13 magick-im7.q16.
    name = program("convert").resolve().name
    bash(tmp_path, MAGICK, on=name, ignore=r"\.(png|tif|miff)$", variables=variables)


# ---- git -----------------------------------------------------------------------------------------

GIT = r"""
set -e
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=A GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
export GIT_CONFIG_NOSYSTEM=1 GIT_PAGER=cat
git -c init.defaultBranch=main init -q one; cd one; git config gc.autoDetach false
mkdir d; for i in $(seq 1 120); do seq $i $((i + 300)) > d/f$i; done; seq 1 40000 > big
git add .; git commit -qm first; git tag -a v1 -m tag
for i in 1 2 3 4 5 6; do seq $i 2 900 > d/f$i; echo $i >> big; git commit -qam "change $i"; done
git checkout -qb side HEAD~3; sed -i 's/^150$/side/' d/f90; git mv d/f91 d/g91; git commit -qam side
git checkout -q main; git merge -q -m merge side; sed -i 's/^200$/x/' d/f100; git diff --stat;
git stash -q; git stash pop -q
git commit -qam last; git checkout -qb conflict HEAD~1; sed -i 's/^200$/y/' d/f100;
git commit -qam other
git merge -q main > conflict.txt || echo "conflict $?"; git diff | head -n 20; git merge --abort
git log --oneline --graph --stat main | md5sum; git log -p --follow d/g91 | md5sum;
git blame big | tail -n 3
git rebase -q --onto main~1 main side || git rebase --abort; git grep -c 77 main -- d | head -n 5
git repack -adq --threads=2 --window=20; git gc -q --aggressive; git fsck --strict;
git count-objects -v | grep -v size
cd ..; git clone -q --no-local one two; git -C two log --format=%H -n 3;
git -C two archive v1 | md5sum
cd two; git remote update >/dev/null; echo more > more; git add more; git commit -qm more;
git push -q origin HEAD:refs/heads/pushed
git -C ../one rev-parse pushed; git bundle create -q ../bundle --all;
git bundle verify -q ../bundle; git format-patch -1 --stdout | git -C ../one am -q
"""


def test_git(tmp_path):
    # The index holds times and inodes. The packs depend on the order in which threads run.
    ignore = r"(^|/)(index|ORIG_HEAD|FETCH_HEAD)$|\.(pack|idx|rev|bitmap)$|/logs/|^bundle$"
    ignore += r"|objects/.*(pack-|multi|commit-graph|info)"
    bash(tmp_path, GIT, on="git", ignore=ignore, compare_err=False)


def test_git_on_a_heap(tmp_path, heap):
    done = bash(
        tmp_path,
        "git init -q a; cd a; seq 9999 >f; git add f; git status -s; git hash-object f",
        on="heap",
        HEAP=heap,
        PROGRAM="git",
        BUSY="wait",
        ignore=r"index$",
    )
    assert done.heaps.count("heap") == 4


# ---- builds --------------------------------------------------------------------------------------


def sources(folder):
    for name in ("Makefile", "core", "threads", "gc", "preload", "tools", "tests", "scripts"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)


def test_self_hosting(tmp_path):
    """make and gcc build every third file of the allocator, and a program, under its own preload:
    the same bytes as without it."""
    core = sorted(path.relative_to(ROOT) for path in (ROOT / "core").rglob("*.c"))
    products = [f"build/obj/{path.with_suffix('.o')}" for path in core[::3]]
    argv = [
        program("make"),
        "-s",
        "-j2",
        "CC=gcc",
        "CFLAGS=-O1 -g0",
        "BUILD=build",
        *products,
        "build/apps/kvshell",
    ]
    done = same(tmp_path, argv, prepare=sources, on="make", timeout=150)
    started = {re.sub(r"\.\d+$", "", heap) for heap in done.heaps}
    assert {"make", "cc1", "collect2"} <= started, started
    made = {name for name in done.files if name.endswith(".o") or name.endswith("kvshell")}
    assert len(products) > 40 and {*products, "build/apps/kvshell"} <= made, made


def test_clang(tmp_path):
    script = (
        "for f in core/media/heap.c gc/recovery/mark.c core/blocks/alloc.c; "
        "do clang -std=gnu11 -D_GNU_SOURCE= -iquote . -iquote core -iquote gc -O2 -c $f; done"
    )
    bash(tmp_path, script, prepare=sources, on=program("clang").resolve().name)


CPLUSPLUS = r"""
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
template <int N> struct fib {
    static constexpr long value = fib<N - 1>::value + fib<N - 2>::value; };
template <> struct fib<1> { static constexpr long value = 1; };
template <> struct fib<0> { static constexpr long value = 0; };
int main() {
    std::map<std::string, std::vector<std::unique_ptr<int>>> m;
    for (int i = 0; i < 50000; i++)
        m["k" + std::to_string(i % 1000)].push_back(std::make_unique<int>(i));
    long sum = 0; std::vector<std::thread> threads; std::vector<long> part(4);
    for (int t = 0; t < 4; t++) threads.emplace_back([&, t] {
        for (auto &[k, v] : m) for (auto &p : v) if (*p % 4 == t) part[t] += *p; });
    for (auto &t : threads) t.join();
    for (long p : part) sum += p;
    std::ostringstream out; out << sum << ' ' << fib<80>::value; std::string s = out.str();
    try { throw std::runtime_error(s); }
    catch (const std::exception &e) { std::cout << e.what() << '\n'; }
}
"""


@pytest.mark.parametrize("flags", ("-O2 -flto=2", "-O0 -g -static-libstdc++"))
def test_gplusplus(tmp_path, flags):
    """The compiler makes the same bytes, and they run."""
    script = f"g++ -std=c++17 {flags} -frandom-seed=1 -o p p.cc -lpthread && ./p"
    bash(
        tmp_path,
        script,
        prepare=lambda folder: (folder / "p.cc").write_text(CPLUSPLUS),
        on="cc1plus",
        timeout=100,
    )


def test_cmake(tmp_path):
    def prepare(folder):
        (folder / "a.c").write_text("int f(void) { return 42; }\n")
        (folder / "b.c").write_text(
            '#include <stdio.h>\nint f(void);\nint main(void) { printf("%d\\n", f()); }\n'
        )
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.13)\nproject(p C)\n"
            "add_library(a SHARED a.c)\nadd_executable(b b.c)\n"
            "target_link_libraries(b a)\nenable_testing()\nadd_test(NAME runs COMMAND b)\n"
        )

    runs_on_our_heap("cmake", [program("cmake"), "--version"])
    script = (
        "cmake -S . -B build >/dev/null && cmake --build build -j2 >/dev/null && build/b && "
        "ctest --test-dir build | grep -c Passed"
    )
    bash(tmp_path, script, prepare=prepare, ignore=r"^build/(?!b$|liba)", quiet=True)


# ---- stress-ng -----------------------------------------------------------------------------------

STRESSORS = (
    "--malloc 2 --malloc-ops 10000 --malloc-bytes 16M --malloc-max 4096",
    "--malloc 1 --malloc-ops 20000 --malloc-thresh 4096 --malloc-pthreads 3 --malloc-touch",
    "--bsearch 1 --bsearch-ops 5 --hsearch 1 --hsearch-ops 5 --tsearch 1 --tsearch-ops 2 "
    "--skiplist 1 --skiplist-ops 5",
    "--qsort 1 --qsort-ops 1 --mergesort 1 --mergesort-ops 1 --radixsort 1 --radixsort-ops 1 "
    "--judy 1 --judy-ops 1",
    "--list 1 --list-ops 5 --tree 1 --tree-ops 1 --tree-size 1000 --matrix 1 --matrix-ops 20",
    "--fork 2 --fork-ops 400 --vfork 1 --vfork-ops 200 --daemon 1 --daemon-ops 20",
    "--pthread 2 --pthread-ops 500 --exec 1 --exec-ops 50 --spawn 1 --spawn-ops 50",
    "--zlib 1 --zlib-ops 2 --str 1 --str-ops 200 --wcs 1 --wcs-ops 100 --dynlib 1 --dynlib-ops 200",
)


@pytest.mark.parametrize(
    "stressors", STRESSORS, ids=lambda text: "-".join(re.findall(r"--(\w+) ", text))
)
def test_stress_ng(tmp_path, stressors):
    """Only its own checks (--verify) and its status count. It prints times, which are not
    compared."""
    argv = [
        program("stress-ng"),
        *stressors.split(),
        "--verify",
        "--temp-path",
        ".",
        "--no-rand-seed",
        "-t",
        "60",
        "--oomable",
    ]

    def meaning(text):
        return sorted(
            re.sub(r"\[\d+\]|(?<=completed) in .*|\d+\.\d+ ?s(ecs)?", "", line)
            for line in text.splitlines()
            if re.search("fail|error|success", line)
        )

    same(tmp_path, argv, meaning=meaning)
