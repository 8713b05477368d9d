# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""pmalloc-recover without a heap: the list of a user's default heaps, and --purge."""

import json
import os
import re
import shlex
import shutil

import pytest
from tool_heaps import BUILD, INFO, RECOVER, SHELL, call


def private_shm(script):
    """Runs a shell script with a /dev/shm of its own, empty at first. Returns its output."""
    inner = f"mount -t tmpfs tmpfs /dev/shm && umask 077 && {{ {script}\n}}"
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        if call(*how, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm").returncode == 0:
            done = call(*how, "sh", "-ec", inner)
            assert done.returncode == 0, done
            return done.stdout
    return pytest.skip(
        "no mount namespaces here, and the test must not touch the user's own default heaps"
    )


HEAPS = f"""
preload="env LD_PRELOAD={BUILD}/libpmalloc_preload.so"
heaps=/dev/shm/pmalloc-$(id -u)
printf 'set a b\\nquit\\n' | $preload PMALLOC_ROOTS=store {SHELL} >/dev/null   # clean, with a root
mkdir $heaps/broken && echo x > $heaps/broken/superblock
mkdir $heaps/foreign && echo x > $heaps/foreign/letter && echo x > $heaps/foreign/heap.0
mkfifo /dev/shm/wait
$preload PMALLOC_ROOTS=store {SHELL} < /dev/shm/wait >/dev/null &   # busy
exec 3>/dev/shm/wait
until [ -e $heaps/kvshell/superblock ]; do sleep 0.01; done
until {RECOVER} --json | grep -q '"busy"'; do sleep 0.01; done
# Late, because a later start would take both of them away: a dirty heap without roots, a remnant.
env PMALLOC_FORK=copy LD_PRELOAD={BUILD}/libpmalloc.so sh -c 'kill -9 $$' 2>/dev/null || :
mkdir $heaps/remnant && : > $heaps/remnant/heap.0
finish() {{ exec 3>&-; wait; }}
"""


def states(line):
    found = json.loads(line)
    return {
        os.path.basename(heap["heap"]): (heap["state"], heap["removed"]) for heap in found["heaps"]
    }


def test_list_of_default_heaps():
    text = private_shm(
        f"{HEAPS} {RECOVER}; echo =; {RECOVER} --json; finish; {RECOVER} --json; ls $heaps/*"
    )
    table, rest = text.split("=\n")
    first, second, *files = rest.splitlines()
    assert len(table.splitlines()) == 5
    assert re.search(r"^busy \(process \d+\) .*/kvshell$", table, re.MULTILINE), table
    want = {
        "broken": ("damaged", False),
        "foreign": ("error", False),
        "remnant": ("remnant", False),
        "kvshell": ("busy", False),
    }
    shell = os.path.basename(os.path.realpath("/bin/sh"))
    assert states(first) == {**want, shell: ("dirty", False)}
    assert states(second)["kvshell"] == ("clean", False)
    assert "heap.0" in files


def test_purge_keeps_what_may_hold_data():
    text = private_shm(
        f"{HEAPS} {RECOVER} --purge --yes --json; finish;"
        f"{RECOVER} --purge=all --yes --json; ls $heaps"
    )
    first, second, *left = text.splitlines()
    shell = os.path.basename(os.path.realpath("/bin/sh"))
    assert states(first) == {
        shell: ("dirty", True),
        "remnant": ("remnant", True),
        "broken": ("damaged", False),
        "foreign": ("error", False),
        "kvshell": ("busy", False),
    }
    assert states(second) == {
        "broken": ("damaged", True),
        "kvshell": ("clean", True),
        "foreign": ("error", False),
    }
    assert left == ["foreign"]


def test_purging_asks_first():
    text = private_shm(
        f"""{HEAPS} finish; for what in --purge --purge=all; do
        {RECOVER} $what 2>&1 || echo status $?; done; ls $heaps"""
    )
    rootless, status, all_of_them, again, *left = text.splitlines()
    assert "--purge removes 1 heap of " in rootless and "no root reaches what" in rootless
    assert "--purge=all removes 3 heaps of " in all_of_them, text
    assert "of which 2 may hold data: they are lost" in all_of_them
    assert "nothing was changed: give --yes" in rootless and "give --yes" in all_of_them
    assert status == again == "status 16" and len(left) == 5


def test_a_default_heap_that_is_busy():
    """Without roots a second run has volatile memory, and says why. With them it is refused."""
    text = private_shm(
        f"""{HEAPS}
        echo get a | $preload {SHELL} 2>&1
        echo get a | $preload PMALLOC_VERBOSE=1 {SHELL} 2>&1
        echo get a | $preload PMALLOC_ROOTS=store {SHELL} 2>&1 || echo status $?
        finish; echo get a | $preload {SHELL} 2>&1; ls $heaps"""
    )
    quiet, none, verbose, _, refused, status, value, *heaps = text.splitlines()
    assert re.search(r"/kvshell is in use by process \d+;.* running on volatile memory$", quiet)
    assert re.search(r"volatile memory: .*/kvshell is in use by process \d+", verbose), verbose
    assert "/kvshell is in use by process" in refused and status == "status 125"
    assert none == "none" and value == "b" and "kvshell.2" not in heaps


def test_a_default_heap_of_an_ancestor_is_missed_silently():
    text = private_shm(
        f"""cat > /dev/shm/inner <<'END'
        env -u PMALLOC_ROOTS PMALLOC_VERBOSE=1 $0 -c : 2>&1
        env -u PMALLOC_ROOTS $0 -c : 2>&1
END
        cp $(command -v bash) /dev/shm/shell
        env LD_PRELOAD={BUILD}/libpmalloc_preload.so PMALLOC_PROGRAM=shell \
            'PMALLOC_ROOTS=*' /dev/shm/shell -c '. /dev/shm/inner' /dev/shm/shell"""
    )
    (line,) = text.splitlines()
    assert "volatile memory" in line and "/shell is in use by process" in line, line


def test_programs_whose_names_begin_with_a_dot(tmp_path):
    """A wrapper is often the program, and the program is .NAME-wrapped. Its heap is listed and
    purged, and a later start tidies up what a killed one has left."""
    kept, dead = tmp_path / ".kvshell-wrapped", tmp_path / ".sh-wrapped"
    shutil.copy(SHELL, kept)
    shutil.copy("/bin/sh", dead)
    text = private_shm(f"""
        preload="env LD_PRELOAD={BUILD}/libpmalloc_preload.so"
        heaps=/dev/shm/pmalloc-$(id -u)
        printf 'set a b\\nquit\\n' | $preload PMALLOC_ROOTS=store {kept} >/dev/null
        env PMALLOC_FORK=copy LD_PRELOAD={BUILD}/libpmalloc.so {dead} -c 'kill -9 $$' || :
        {RECOVER} --json
        printf 'get a\\nquit\\n' | $preload PMALLOC_ROOTS=store {kept}
        ls -A $heaps
        {RECOVER} | grep -c '^clean, has roots .*/{kept.name}$'
        {RECOVER} --purge --yes --json
        {RECOVER} --purge=all --yes --json
        ls -A $heaps""")
    first, *got, purged, all_purged = text.splitlines()
    assert states(first) == {kept.name: ("clean", False), dead.name: ("dirty", False)}
    assert got == ["b", kept.name, "1"]
    assert states(purged) == {kept.name: ("clean", False)}
    assert states(all_purged) == {kept.name: ("clean", True)}


def test_names_that_command_a_terminal(tmp_path):
    """In the list and in messages a heap is one line, without the control characters of a path.
    JSON has the name itself."""
    odd = tmp_path / "\x1b[31mred\nline\x7f"
    shutil.copy(SHELL, odd)
    text = private_shm(f"""
        preload="env LD_PRELOAD={BUILD}/libpmalloc_preload.so PMALLOC_VERBOSE=1"
        echo 'set a b' | $preload PMALLOC_ROOTS=store {shlex.quote(str(odd))} 2>&1 >/dev/null
        {RECOVER}
        {INFO} /dev/shm/pmalloc-$(id -u)/*line* | grep ^program
        {RECOVER} --json
        rm /dev/shm/pmalloc-$(id -u)/*line*/superblock
        {RECOVER}""")
    started, listed, program, found, damaged = text.splitlines()
    shown = "?[31mred?line?"
    assert started.startswith("pmalloc: heap /dev/shm/pmalloc-") and f"/{shown} (" in started
    assert re.fullmatch(rf"clean, has roots .*/{re.escape(shown)}", listed)
    assert program == f"program    {tmp_path}/{shown}"
    assert states(found) == {odd.name: ("clean", False)}
    assert re.fullmatch(rf"\w+ .*/{re.escape(shown)}  \(.*{re.escape(shown)}.*\)", damaged), damaged


def test_no_default_heaps():
    text = private_shm(f"{RECOVER}; {RECOVER} --purge; {RECOVER} --json; ls /dev/shm")
    lines = text.splitlines()
    assert lines[0].startswith("no default heaps") and lines[1] == lines[0]
    assert json.loads(lines[2])["heaps"] == [] and len(lines) == 3


needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace is not installed")
ONE = f"""
heaps=/dev/shm/pmalloc-$(id -u)
shell() {{ env LD_PRELOAD={BUILD}/libpmalloc_preload.so PMALLOC_VERBOSE=1 "$@"; }}
printf 'set a b\\nquit\\n' | shell PMALLOC_ROOTS=store {SHELL} > /dev/null 2>&1
"""


@needs_strace
@pytest.mark.parametrize("call_name", ["access", "newfstatat"])
def test_a_heap_that_cannot_be_looked_at_is_not_missing(call_name):
    """A start that took an error for "there is none" would run without the program's data."""
    text = private_shm(
        f"{ONE} for path in $heaps $heaps/kvshell; do for n in 1 2 3; do\n"
        f"strace -f -o /dev/null -P $path -e trace={call_name} "
        f"-e inject={call_name}:error=EIO:when=$n -E LD_PRELOAD={BUILD}/libpmalloc_preload.so "
        f"-E PMALLOC_VERBOSE=1 {SHELL} < /dev/null 2>&1 | grep -v mounted; done; done"
    )
    lines = text.splitlines()
    assert len(lines) == 6, text
    for line in lines:
        assert "/kvshell" in line or "Input/output error" in line, text
        assert "nothing could find" not in line and "neither PMALLOC_HEAP" not in line, text
