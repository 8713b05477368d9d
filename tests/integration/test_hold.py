# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Threads are held without a trace (threads/hold.h).

The library under test is the whole of libpmalloc_preload.so, and holder.c in it, which holds all
threads again and again."""

import os
import re
import resource
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT, busy, compiled, said, succeeds
from conftest import run as run_program


def library_path(name):
    """Where ld.so finds a library; None if it is not installed."""
    text = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    found = re.search(rf"{re.escape(name)} \(.*x86-64.*\) => (.*)", text.stdout)
    return found and found.group(1)


@pytest.fixture(scope="session")
def holding():
    """What to preload."""
    exports = BUILD / "integration" / "holder.map"
    exports.parent.mkdir(parents=True, exist_ok=True)
    text = (ROOT / "preload" / "preload.map").read_text()
    more = "holder_start; holder_check; holder_held; holder_failed; pmalloc_version;"
    exports.write_text(text.replace("pmalloc_version;", more))
    objects = [
        path
        for folder in ("core", "threads", "gc", "preload")
        for path in sorted((BUILD / "obj" / folder).rglob("*.o"))
        if (ROOT / path.relative_to(BUILD / "obj")).with_suffix(".c").exists()
    ]
    inner = subprocess.run(
        ["make", "-s", "print-inner-calls"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    library = compiled(
        "holder.c",
        *["-std=gnu11", "-D_GNU_SOURCE=", "-fPIC", "-shared"],
        *[f"-iquote{ROOT / folder}" for folder in (".", "core", "preload")],
        "-nostartfiles",
        "-Wl,-z,now,-z,relro,-z,nodelete,-z,initfirst",
        f"-Wl,--version-script={exports}",
        *[f"-Wl,--wrap={name}" for name in inner],
        f"-DOBJECTS_OF={max(path.stat().st_mtime_ns for path in objects)}",  # or it looks new
        name="libholder.so",
        libraries=objects,
    )
    start = compiled("holder_start.c", "-D_GNU_SOURCE=", "-fPIC", "-shared", name="libholdstart.so")
    return f"{library} {start}"


def where_it_died(program, folder):
    """What each thread did, by the core in this folder, if there is one, and gdb."""
    core = next(iter(sorted(folder.glob("core*"))), None)
    if not core or not shutil.which("gdb"):
        return "no core, or no gdb\n"
    commands = ("info registers", "x/3i $pc", "thread apply all backtrace")
    asked = [word for command in commands for word in ("-ex", command)]
    argv = ["gdb", "-nx", "-batch", *asked, str(program), str(core)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60 * busy(), check=False
    )
    return done.stdout


def leave_a_core():
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))


def settings(holding, tmp_path, program):
    return {
        **os.environ,
        "LD_PRELOAD": holding,
        "HOLD_REPORT": str(tmp_path / "report"),
        "HOLD_PROGRAM": os.path.basename(program),
        "PMALLOC_HEAP": str(tmp_path / "heap"),
    }


def run(holding, tmp_path, *command, env=(), timeout=60, name=None):
    """Runs the program with its threads held. Returns its output, and how often that was done."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**settings(holding, tmp_path, name or command[0]), **dict(env)},
        capture_output=True,
        text=True,
        timeout=timeout * busy(),
        check=False,
        cwd=tmp_path,
        preexec_fn=leave_a_core,
    )
    died = where_it_died(name or command[0], tmp_path) if done.returncode < 0 else ""
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}{died}"
    held, failed = map(int, (tmp_path / "report").read_text().split())
    return done.stdout, held, failed


RINGS = [library_path(name) for name in ("libaio.so.1", "liburing.so.2")]
MODULE = ("holds_module.c", "-fPIC", "-shared")
SLEEPING = {
    "sleeping": "calls of libc by their names",
    "waiting": "what libc and the kernel resume by themselves",
    "raw": "system calls by their numbers",
}


@pytest.mark.parametrize("what", SLEEPING)
def test_calls_sleep_as_long_as_they_should_and_do_not_fail(what, holding, tmp_path):
    """One thread for each call that may sleep; a hold every millisecond."""
    program = compiled(f"holds_{what}.c", libraries=["-lrt", "-lresolv"])
    module = [compiled(*MODULE, name="holds_module.so", libraries=RINGS)] if all(RINGS) else []
    more = ["", *module] if what == "raw" else []
    out, held, failed = run(holding, tmp_path, program, 3, *more)
    assert "never" not in out
    assert held > 0 and failed <= held // 10, (held, failed)


MODES = {
    "count": "threads that run",
    "allocate": "threads inside malloc",
    "pauses": "signals end pause(), each one once",
    "handlers": "handlers run in threads that sleep, before, during and after a hold",
    "dispositions": "the program's handlers and masks are its own",
    "jumps": "siglongjmp() out of a call",
    "threads": "threads begin and end, with small stacks",
    "newcomers": "a handler is the first that a new thread runs",
    "children": "fork and posix_spawn, which is a vfork",
    "cancel": "threads are cancelled in a call",
}


@pytest.mark.parametrize("mode", MODES)
def test_memory_stands_still(mode, holding, tmp_path):
    """The holder looks at counters that all threads and handlers raise."""
    program = compiled("holds_running.c")
    out, held, failed = run(holding, tmp_path, program, mode, 1, env={"HOLD_US": "0"}.items())
    assert int(out.split()[1]) > 0, out
    assert failed <= held // 10, (held, failed)


BLIND = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /proc; exec "$@"', "sh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts")
@pytest.mark.parametrize("mode", ["handlers", "jumps", "newcomers", "pauses", "threads"])
def test_memory_stands_still_without_proc(mode, holding, tmp_path):
    """Threads are listed by our own record, and marks say which of them sleep."""
    program = compiled("holds_running.c")
    env = {"HOLD_US": "0"}.items()
    out, held, failed = run(holding, tmp_path, *BLIND, program, mode, 1, env=env, name=program)
    assert int(out.split()[1]) > 0, out
    assert failed <= held // 10, (held, failed)


ODD = {
    "interrupt": "a signal ends one call and runs one handler, as without holds",
    "restart": "the same where the kernel repeats the call",
    "stop": "SIGSTOP and SIGCONT",
    "setuid": "libc runs setuid() in all threads, by the signal of holds",
    "block": "a thread blocks all signals: no hold meanwhile",
    "coroutines": "swapcontext() between calls",
    "end": "threads end in destructors, in pthread_exit, cancelled at any instruction",
    "clone": "threads that libc does not know",
    "many": "1,000 threads",
    "exec": "a program executes another one",
}


@pytest.mark.parametrize("mode", ODD)
def test_odd_threads_and_signals(mode, holding, tmp_path):
    program = compiled("holds_odd.c")
    out, held, _ = run(holding, tmp_path, program, mode, 0.6)
    assert int(out.split()[1]) > 0 and held > 0, (out, held)


@pytest.mark.parametrize("turn", range(6))
def test_a_child_of_posix_spawn(turn, holding, tmp_path):
    """It begins with libc's own signals ignored, and libc takes them when a thread is cancelled."""
    program = compiled("holds_odd.c")
    arguments = [str(program), "end", "0.2"]
    child = os.posix_spawn(program, arguments, settings(holding, tmp_path, program))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, turn


OUT = {
    "handler": "a handler runs long",
    "asleep": "a handler sleeps in a call itself",
    "jump": "siglongjmp() from a handler",
    "stranger": "the same, and the kernel got the handler by an instruction of the program's",
    "redirect": "a handler returns to another place",
    "cancel": "pthread_cancel(), and a cleanup handler runs long",
    "exit": "pthread_exit() in a handler",
    "vfork": "a child that shares the stack is killed in a call",
    "clone": "a child that shares the memory makes calls meanwhile",
}


@pytest.mark.parametrize("way", OUT)
def test_ways_out_of_a_call(way, holding, tmp_path):
    """What is on record says that a thread sleeps; it has left the call otherwise."""
    out, held, _ = run(holding, tmp_path, compiled("holds_out.c"), way, 0.6 * busy())
    assert int(out.split()[3]) > 20 and held > 0, (out, held)


@pytest.mark.parametrize("where", ["", "child"])
def test_the_first_thread_is_made_amid_a_hold(where, heap):
    """glibc puts its handler in the place of ours, and our signal is on its way."""
    program = compiled("holds_first.c")
    settings = {"HEAP": heap, "ROOTS": "stores", "COMMIT": "1ms", "FORK": "copy"}
    done = run_program([program, where], **settings)
    assert int(succeeds(done)) > 0
    assert "does not stop" not in done.stderr, said(done)


@pytest.mark.parametrize("tracer", ["strace", "gdb"])
def test_a_debugger_sees_a_program_that_works(tracer, holding, tmp_path):
    """strace stops each thread at each call; gdb at a breakpoint, again and again."""
    if not shutil.which(tracer):
        pytest.skip(f"no {tracer} here")
    program = compiled("holds_odd.c")
    if tracer == "strace":
        preload = f"-ELD_PRELOAD={holding}"
        command = [tracer, "-f", "-o", tmp_path / "trace", preload, program, "interrupt", 1.0]
    else:
        # gdb runs the program without a shell, which would have the threads held as well.
        script = ["set startup-with-shell off", f"set environment LD_PRELOAD {holding}"]
        script += ["set breakpoint pending on", "handle SIGUSR1 SIGSYS nostop noprint pass"]
        script += ["break on_signal", "commands", "silent", "continue", "end", "run interrupt 1.0"]
        lines = tmp_path / "script"
        lines.write_text("\n".join(script) + "\n")
        command = [tracer, "-nx", "-batch", "-x", lines, program]
    out, held, _ = run(holding, tmp_path, *command, env={"LD_PRELOAD": ""}.items(), name=program)
    assert "turns" in out and held > 0, (out, held)
