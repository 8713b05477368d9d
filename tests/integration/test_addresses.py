# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The addresses of the program and its libraries are kept from run to run also without pmalloc-run:
the start executes the program once more, without address randomisation. All else is as it was."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from conftest import (
    BUILD,
    TIMEOUT,
    compiled,
    environment,
    needs,
    one_message,
    run,
    said,
    succeeds,
    tool,
)

AGAIN = "addresses kept: executed again without randomisation"
LOADER = next(pathlib.Path("/lib64").glob("ld-linux-x86-64.so.2"), None)
NO_RANDOMISATION = 0x40000


@pytest.fixture(scope="module")
def program():
    needs("g++")
    return compiled("addresses.cc", "-std=c++17", "-fPIE", "-pie", compiler="g++")


@pytest.fixture(scope="module")
def identity():
    return compiled("identity.c", "-fPIE", "-pie")


@pytest.fixture(autouse=True)
def randomised():
    """Nothing can be shown where randomisation is off, or cannot be switched off."""
    now = ctypes.CDLL(None).personality(0xFFFFFFFF)
    space = pathlib.Path("/proc/sys/kernel/randomize_va_space").read_text().strip()
    switched = subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False)
    if now & NO_RANDOMISATION or space != "2" or switched.returncode:
        pytest.skip("address randomisation is off, or cannot be switched off")


def starts(program, heap, count, **settings):
    """So many starts one after the other, with the program's own check in each."""
    for n in range(1, count + 1):
        done = run([program], HEAP=heap, ROOTS="store" if n == 1 else None, **settings)
        assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)
        assert not done.stderr, said(done)


# ---- the heap ------------------------------------------------------------------------------------


@pytest.mark.check
def test_a_heap_that_leads_into_its_program(program, heap):
    starts(program, heap, 10)


@pytest.mark.parametrize("commit", [None, "output"])
def test_after_a_kill(program, heap, commit):
    for n in range(1, 5):
        done = run([program, "kill"], HEAP=heap, ROOTS="store", COMMIT=commit, VERBOSE=1)
        assert done.returncode == -signal.SIGKILL, said(done)
        assert done.stdout == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)
        one_message(done, AGAIN, "new;" if n == 1 else "recovered")


def test_a_default_heap(program):
    heap = pathlib.Path(f"/dev/shm/pmalloc-{os.geteuid()}/{program.name}")
    shutil.rmtree(heap, ignore_errors=True)
    try:
        for n in range(1, 4):
            done = run([program], ROOTS="store" if n == 1 else None)
            assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)
    finally:
        shutil.rmtree(heap)


def test_readers_of_a_heap(program, heap):
    starts(program, heap, 1)
    for _ in range(3):
        done = run([program], HEAP=heap, OPEN="private", VERBOSE=1)
        assert succeeds(done) == "ok 2\n"
        one_message(done, "private", AGAIN)


def test_pmalloc_run_gives_the_same_addresses(program, heap):
    for n in range(1, 7):
        if n % 2:
            done = run([tool("pmalloc-run"), program], False, HEAP=heap, ROOTS="store")
        else:
            done = run([program], HEAP=heap)
        assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)


def test_randomised_on_request(program, heap):
    """As it is without all this, if words are not changed: nothing is right, and a line says so."""
    done = run([program], HEAP=heap, ROOTS="store", RANDOMIZE=1, VERBOSE=1)
    assert succeeds(done) == "new 1\n"
    one_message(done, "addresses as they are: PMALLOC_RANDOMIZE=1")
    done = run([program], HEAP=heap, RANDOMIZE=1, REBASE="report")
    assert done.returncode != 0 and "ok" not in done.stdout, said(done)
    one_message(done, "not valid any more", "unset PMALLOC_RANDOMIZE")
    done = run([tool("pmalloc-run"), "-s", "RANDOMIZE=1", program], False, HEAP=heap)
    assert done.returncode != 0, said(done)


def test_what_the_tools_say(program, heap, shm):
    def addresses(of):
        info = tool("pmalloc-info")
        text = succeeds(run([info, of], False))
        how = json.loads(succeeds(run([info, "--json", of], False)))["program"]["addresses"]
        return how, re.search(r"libc at \w+(.*)", text)[1]

    starts(program, heap, 2)
    assert addresses(heap) == ("again", "; kept: it was executed again without randomisation")
    for how, prefix, settings in (
        ("fixed", ["setarch", "-R"], {}),
        ("random", [], {"RANDOMIZE": "1"}),
    ):
        other = shm / how
        settings |= {"HEAP": other, "ROOTS": "store", "PROGRAM": "addresses"}
        succeeds(run([*prefix, program], **settings))
        assert addresses(other)[0] == how


# ---- the program sees nothing of it --------------------------------------------------------------


def asked(argv, heap, randomize, shm, prepare=None, pass_fds=(), executable=None, **settings):
    """What a program sees of its start, and what the last line says of its addresses."""
    env = environment(HEAP=heap, RANDOMIZE=randomize, **settings)
    done = subprocess.run(
        [str(a) for a in argv],
        executable=executable,
        env=env,
        preexec_fn=prepare,
        pass_fds=pass_fds,
        cwd=shm,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, said(done)
    lines = re.sub(r"pipe:\[\d+\]", "pipe", done.stdout)
    lines = lines.replace(f"PMALLOC_RANDOMIZE={randomize}", "PMALLOC_RANDOMIZE")
    lines = re.sub(r"PMALLOC_OWNER=\S+", "PMALLOC_OWNER", lines).splitlines()
    return lines[:-1], lines[-1]


def same(argv, shm, **more):
    seen, where = {}, {}
    for randomize in 1, 0:
        heap = shm / "seen"
        shutil.rmtree(heap, ignore_errors=True)
        seen[randomize], where[randomize] = asked(argv, heap, randomize, shm, **more)
    assert seen[0] == seen[1]
    assert where == {0: "kept", 1: "random"}
    return seen[0]


def ignore_signals():
    for number in signal.SIGBUS, signal.SIGPIPE, signal.SIGSEGV, signal.SIGUSR2:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGBUS, signal.SIGRTMIN])
    os.kill(os.getpid(), signal.SIGTERM)
    os.umask(0o137)


@pytest.mark.check
def test_arguments_environment_and_signals(identity, shm):
    argv = [identity, "", "a b", "", "\x01\n"]
    lines = same(argv, shm, prepare=ignore_signals, foo="a=b", bar="")
    assert "argument 1: " in lines and "argument 2: a b" in lines and "argument 3: " in lines
    assert "name identity" in lines and f"file {identity}" in lines


def test_another_name_than_the_path(identity, shm):
    lines = same(["-other name"], shm, executable=identity)
    assert "argument 0: -other name" in lines and f"file {identity}" in lines


def test_a_relative_path_and_a_link(identity, shm):
    (shm / "link").symlink_to(identity)
    lines = same(["link"], shm, executable="./link")
    assert "name link" in lines and "file ./link" in lines


def test_many_arguments(identity, shm):
    lines = same([identity, *["x" * 1000] * 700], shm)
    assert "argument 700: " + "x" * 1000 in lines


def test_no_argument_at_all(identity, shm):
    same([], shm, executable=identity)


@pytest.mark.parametrize("closed", [(0,), (0, 2), (1,), (0, 1, 2)])
def test_closed_descriptors(identity, shm, closed):
    out = shm / "out"

    def close():
        for fd in closed:
            os.close(fd)
        if 1 in closed:
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 9)

    if 1 not in closed:
        lines = same([identity], shm, prepare=close)
        assert not [line for line in lines if line.startswith(f"fd {closed[0]}: ")]
        return
    script = f"{identity} >&- | cat; true"  # nothing can be said: it must not end otherwise
    assert "fd 3" not in succeeds(run(["sh", "-c", script], HEAP=shm / "seen", PROGRAM="identity"))


def test_descriptors_of_the_program(identity, shm):
    """Flags, positions and numbers. One that closes on exec has gone at the first one."""
    (shm / "data").write_bytes(b"x" * 100)
    fd = os.open(shm / "data", os.O_RDWR | os.O_APPEND)
    os.lseek(fd, 42, os.SEEK_SET)
    try:
        lines = same([identity], shm, pass_fds=(fd,))
    finally:
        os.close(fd)
    assert re.search(rf"^fd {fd}: {shm}/data flags 0 .* at 42$", "\n".join(lines), re.M)


@pytest.mark.parametrize("option", ["", " -option"])
def test_scripts(identity, shm, option):
    script = shm / "script"
    script.write_text(f"#!{identity}{option}\n")
    script.chmod(0o700)
    lines = same([script, "one", "two words"], shm)
    assert "name script" in lines and f"file {script}" in lines
    assert f"argument {2 if option else 1}: {script}" in lines
    outer = shm / "outer"
    outer.write_text(f"#!{script} -more\n")
    outer.chmod(0o700)
    lines = same([outer, "one"], shm)
    assert "name outer" in lines and f"file {outer}" in lines


def test_a_script_by_env(identity, shm, monkeypatch):
    script = shm / "script"
    script.write_text("#!/usr/bin/env identity\n")
    script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{identity.parent}:{os.environ['PATH']}")
    lines = same([script, "one"], shm, PROGRAM="identity")
    assert "argument 0: identity" in lines and f"argument 1: {script}" in lines


@pytest.mark.skipif(not LOADER, reason="the loader of glibc")
@pytest.mark.parametrize("options", [[], ["--argv0", "other"], ["--inhibit-cache"]])
def test_an_explicit_loader(identity, program, shm, heap, options):
    lines = same([LOADER, *options, identity, "one"], shm)
    assert "argument 1: one" in lines and "name ld-linux-x86-64" in " ".join(lines)
    for n in range(1, 4):
        done = run([LOADER, *options, program], HEAP=heap, ROOTS="store")
        assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)


@pytest.mark.parametrize("closes", [True, False])
def test_a_program_in_memory(identity, program, heap, shm, closes):
    """fexecve() of a memfd. If its descriptor is closed on exec, only /proc leads to the program,
    and the kernel names the process after that."""

    def execute(of, *arguments, **settings):
        code = (
            "import os,shutil,sys\n"
            f"fd = os.memfd_create('inside', {int(closes)})\n"
            "shutil.copyfileobj(open(sys.argv[1], 'rb'), open(fd, 'wb', closefd=False))\n"
            "env = dict(v.split('=', 1) for v in sys.argv[3:])\n"
            "os.execve(fd, ['inside', *sys.argv[2].split()], env)"
        )
        env = environment(HEAP=heap, **settings)
        del env["PATH"]
        variables = [f"{k}={v}" for k, v in env.items() if k.startswith(("PMALLOC_", "LD_"))]
        return run(
            ["/usr/bin/python3", "-c", code, of, " ".join(arguments), *variables], preload=False
        )

    for n in range(1, 4):
        done = execute(program, ROOTS="store")
        assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)
    shutil.rmtree(heap)
    lines = succeeds(execute(identity, "one")).splitlines()
    assert lines[-1] == "kept" and "argument 0: inside" in lines and "argument 1: one" in lines
    if not closes:
        assert [line for line in lines if line.startswith("file /dev/fd/")]


def test_a_program_that_was_replaced(identity, shm):
    """Between its execution and its start: the program that runs is executed, not the new one."""
    copy = shm / "copy"
    code = (
        "import os,sys\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "os.unlink(sys.argv[1])\n"
        "os.execve(fd, ['gone'], os.environ)"
    )
    shutil.copy(identity, copy)
    done = run(["/usr/bin/python3", "-c", code, copy], HEAP=shm / "seen", PROGRAM="copy*")
    assert succeeds(done).splitlines()[-1] == "kept", said(done)


# ---- once, and for this process only -------------------------------------------------------------


def executions(trace):
    return re.findall(r"execve(?:at)?\(.*= 0$", trace.read_text(), re.M)


@pytest.mark.parametrize("how", ["plain", "off", "asked", "volatile", "child"])
def test_how_often_it_is_executed(identity, shm, how):
    trace = shm / "trace"
    library = f"LD_PRELOAD={BUILD}/libpmalloc_preload.so"
    argv = [needs("strace"), "-f", "-e", "trace=execve,execveat", "-o", trace, "-E", library]
    argv += ["setarch", "-R"] if how == "off" else []
    argv += [identity, "child"] if how == "child" else [identity]
    settings = {"asked": {"RANDOMIZE": 1}, "volatile": {"HEAP": None, "BACKING": "volatile"}}
    settings = {"HEAP": shm / "heap", "PROGRAM": "identity"} | settings.get(how, {})
    succeeds(run(argv, preload=False, **settings))
    expected = {"plain": 2, "off": 2, "asked": 1, "volatile": 1, "child": 4}[how]
    assert len(executions(trace)) == expected, trace.read_text()


def test_children_get_no_heap_and_are_executed_once(identity, shm):
    """They have inherited the settings. The heap's program runs, so they are on volatile memory."""
    trace = shm / "trace"
    library = f"LD_PRELOAD={BUILD}/libpmalloc_preload.so"
    argv = [needs("strace"), "-f", "-e", "trace=execve,execveat", "-o", trace, "-E", library]
    succeeds(run([*argv, identity, "child"], preload=False, HEAP=shm / "heap"))
    assert len(executions(trace)) == 4, trace.read_text()  # twice itself, sh and cat


def test_children_are_randomised_as_before(identity, heap):
    assert int(succeeds(run([identity, "child"], HEAP=heap)), 16) == 0
    done = run(["setarch", "-R", identity, "child"], HEAP=heap, PROGRAM="identity")
    assert int(succeeds(done), 16) == NO_RANDOMISATION


def test_other_bits_of_the_personality_stay(identity, heap):
    done = run(["setarch", "-Z", identity, "child"], HEAP=heap, PROGRAM="identity")
    assert int(succeeds(done), 16) == 0x100000 or "setarch" in done.stderr


def test_a_program_that_executes_itself(identity, heap):
    lines = succeeds(run([identity, "one", "again"], HEAP=heap)).splitlines()
    assert lines[-1] == "kept" and "argument 1: one" in lines


def test_a_heap_of_a_program_that_another_heap_starts(program, shm):
    """It descends from the owner of a heap, and so looks first whether it gets one itself."""
    outer, inner = shm / "outer", shm / "inner"
    for n in range(1, 4):
        script = f"PMALLOC_HEAP={inner} PMALLOC_ROOTS=store PMALLOC_VERBOSE=1 {program}"
        done = run(["bash", "-c", f"{script}; exit"], HEAP=outer)
        assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)
        one_message(done, AGAIN, "roots: 1 (store); new;" if n == 1 else "roots: 1 (store); clean")


# ---- where it cannot be done ---------------------------------------------------------------------

# A filter for x86-64: the call fails with EPERM, personality(2) not if it only asks and `asks`.
FILTER = """
import ctypes,os,struct,sys
def stmt(code, k, jt=0, jf=0): return struct.pack("HBBI", code, jt, jf, k)
number, asks = int(sys.argv[1]), sys.argv[2] == "asks"
prog = stmt(0x20, 0) + stmt(0x15, number, 0, 3) + stmt(0x20, 16)
prog += stmt(0x15, 0xffffffff if asks else 0xfffffffe, 1, 0) + stmt(0x06, 0x00050001)
prog += stmt(0x06, 0x7fff0000)
buf = ctypes.create_string_buffer(prog)
fprog = struct.pack("HxxxxxxQ", len(prog) // 8, ctypes.addressof(buf))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, fprog, 0, 0) == 0
os.execv(sys.argv[3], sys.argv[3:])
"""


def filtered(program, number, asks, heap, **settings):
    env = environment(HEAP=heap, **settings)
    variables = [f"{k}={v}" for k, v in env.items() if k.startswith(("PMALLOC_", "LD_"))]
    argv = ["/usr/bin/python3", "-c", FILTER, str(number), asks]
    return run([*argv, "/usr/bin/env", *variables, program], preload=False)


def test_where_it_is_forbidden_to_a_program_that_another_heap_starts(program, shm):
    """It has a heap already when that shows, gives it back, and takes it once more."""
    argv = ["/usr/bin/python3", "-c", FILTER, "135", "asks", "/usr/bin/env"]
    argv += [f"PMALLOC_HEAP={shm}/inner", "PMALLOC_ROOTS=store", "PMALLOC_VERBOSE=1", str(program)]
    done = run(["bash", "-c", '"$@"; exit', "bash", *argv], HEAP=shm / "outer")
    assert succeeds(done) == "new 1\n", said(done)
    assert re.search(r"roots: 1 \(store\); new;.*addresses random: personality", done.stderr)
    assert done.stderr.count("\n") == 1, said(done)


@pytest.mark.parametrize("asks", ["asks", "never"])
def test_where_personality_is_forbidden(program, heap, asks):
    """The program goes on as it is. One line says so, once something leads elsewhere."""
    done = filtered(program, 135, asks, heap, ROOTS="store", VERBOSE=1)
    assert succeeds(done) == "new 1\n"
    one_message(done, "addresses random: personality(2) is forbidden")
    done = filtered(program, 135, asks, heap, REBASE="report")
    assert done.returncode != 0, said(done)
    one_message(done, "not valid any more", "allow personality(2)")


def test_where_it_cannot_be_executed_again(program, heap):
    """Without /proc nobody knows the arguments of an explicit loader."""
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$0"']
    if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode:
        pytest.skip("may not mount")
    done = run([*hide, program], HEAP=heap, ROOTS="store", PROGRAM="addresses", VERBOSE=1)
    assert "new 1\n" in done.stdout, said(done)
    assert "addresses random: the program cannot be executed again" in done.stderr, said(done)


def test_no_new_privileges(program, heap):
    for n in range(1, 4):
        argv = ["setpriv", "--no-new-privs", program]
        done = run(argv, HEAP=heap, ROOTS="store", PROGRAM="addresses")
        assert succeeds(done) == ("new 1\n" if n == 1 else f"ok {n}\n"), said(done)


def test_a_program_that_root_starts_as_itself(identity, shm):
    """The kernel takes the bit away where a program has the set-user-ID bit, also from root, who
    needs none. It is executed again once, and goes on."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    copy = shm / "identity"
    shutil.copy(identity, copy)
    copy.chmod(0o4755)
    done = run([copy], HEAP=shm / "heap", VERBOSE=1)
    assert succeeds(done).splitlines()[-1] == "random"
    one_message(done, "addresses random: the kernel randomises this program in any case")
