# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Small and strange surroundings: seccomp filters, limits, containers that lack something, memory
cgroups."""

import contextlib
import os
import pathlib
import re
import resource
import signal
import subprocess

import pytest
from conftest import (
    API,
    BUILD,
    app,
    busy,
    compiled,
    environment,
    one_message,
    recovered,
    refuses,
    run,
    said,
    succeeds,
    tool,
)

# What the library may need once the heap is open, beside write(2) for a message. docs/operations.md
# lists these calls.
VOLATILE = "mmap,munmap,madvise,futex"
PERSISTENT = VOLATILE + ",fallocate,ftruncate,newfstatat,fstat,fstatfs,prlimit64,flock"
# What the program needs itself.
PROGRAM = ",write,read,close,exit,exit_group,brk,rt_sigprocmask,clock_gettime"


# ---- seccomp -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forbid():
    return compiled("forbid.c")


def sandboxed(forbid, when, how, calls, heap=None, rounds=3000, **settings):
    where = {"HEAP": heap, "ROOTS": "kept"} if heap else {"BACKING": "volatile"}
    return run([forbid, when, how, calls, rounds], DECAY_MS=1, **where, **settings)


def refused_requests(done):
    word, number = succeeds(done).split()
    assert word == "ok" and not done.stderr, said(done)
    return int(number)


# Another call can replace each of these, or the library can do without it.
SPARE = [
    "fallocate",
    "ftruncate",
    "fstatfs",
    "madvise",
    "prlimit64",
    "fcntl",
    "futex",
    "munmap",
    "mremap",
    "readlink",
]
SPARE += [
    "sched_getaffinity",
    "getrandom",
    "geteuid,getpid,getppid",
    "openat,unlinkat,renameat",
    "lseek",
    "mmap",
    "flock",
]
AT_START = [
    "fallocate",
    "ftruncate",
    "fstatfs",
    "madvise",
    "prlimit64",
    "fcntl",
    "munmap",
    "mremap",
    "readlink",
]
AT_START += [
    "sched_getaffinity",
    "getrandom",
    "lseek",
    "getppid",
    "sysinfo",
    "fallocate,fstatfs,prlimit64,fcntl",
]


@pytest.mark.parametrize("how", ["EPERM", "ENOSYS", "EACCES"])
@pytest.mark.parametrize("calls", SPARE)
def test_call_forbidden_amid_the_work(forbid, heap, calls, how):
    assert refused_requests(sandboxed(forbid, "later", how, calls, heap)) == 0
    assert refused_requests(sandboxed(forbid, "later", how, calls)) == 0
    assert recovered(heap)["roots"] == 1


@pytest.mark.parametrize("how", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("calls", AT_START)
def test_call_forbidden_from_the_start(forbid, heap, calls, how):
    assert refused_requests(sandboxed(forbid, "start", how, calls, heap)) == 0
    assert refused_requests(sandboxed(forbid, "start", how, calls)) == 0
    assert recovered(heap)["roots"] == 1


@pytest.mark.parametrize("how", ["EPERM", "ENOSYS", "EACCES"])
@pytest.mark.parametrize("calls", ["newfstatat,fstat", "fallocate,ftruncate", "+write,exit_group"])
def test_where_nothing_else_will_do_requests_fail(forbid, heap, calls, how):
    """malloc fails with ENOMEM, and the heap is whole."""
    assert refused_requests(sandboxed(forbid, "later", how, calls, heap)) > 0
    assert recovered(heap)["roots"] == 1


def test_lock_that_is_forbidden(forbid, heap):
    refuses(sandboxed(forbid, "start", "EPERM", "flock", heap), "lock", "Operation not permitted")
    assert recovered(heap)["roots"] == 1  # the process made it before it forbade itself the calls


def test_forbidden_calls_are_not_tried_again(forbid, heap):
    log = heap.parent / "strace"
    command = [
        "strace",
        "-f",
        "-e",
        "trace=fallocate,ftruncate",
        "-o",
        log,
        "--",
        forbid,
        "later",
        "EPERM",
    ]
    done = run([*command, "fallocate", 3000], HEAP=heap, ROOTS="kept", PROGRAM="forbid", DECAY_MS=1)
    if "PTRACE" in done.stderr:
        pytest.skip("ptrace is forbidden here")
    assert refused_requests(done) == 0
    assert log.read_text().count("fallocate(") > 10
    assert (
        sum("EPERM" in line and "fallocate(" in line for line in log.read_text().splitlines()) == 1
    )


@pytest.mark.parametrize("backing, calls", [("volatile", VOLATILE), ("file", PERSISTENT)])
def test_calls_needed_after_start(forbid, heap, backing, calls):
    """The list is complete. A call that only the list of persistent heaps has does not end a
    volatile one."""
    done = sandboxed(
        forbid, "later", "kill", "+" + calls + PROGRAM, heap if backing == "file" else None
    )
    assert refused_requests(done) == 0


@pytest.mark.parametrize("when", ["start", "later"])
@pytest.mark.parametrize("commit", [None, "output:0", "output", "20ms"])
@pytest.mark.parametrize(
    "calls", ["mincore", "mincore,process_vm_readv,process_madvise,kcmp,userfaultfd"]
)
def test_calls_that_end_a_service(heap, when, commit, calls):
    """What systemd's @system-service lacks, and what other filters do: PMAlloc can do without.
    After a kill the start asks which file a heap is by statx; a commit can do without that, too."""
    calls += ",statx" if when == "later" else ""
    program = compiled("expelled.c")
    preload = str(BUILD / "libpmalloc_preload.so")
    for number in range(1, 4):
        settings = {"HEAP": heap, "ROOTS": "runs", "COMMIT": commit, "PERSIST": "page"}
        command = ["env", f"EXPELLED_PRELOAD={preload}"] if when == "start" else []
        argv = [*command, program, when, *calls.split(",")]
        done = run(argv, preload=when == "later", **settings)
        assert done.returncode == -signal.SIGKILL, said(done)
        assert done.stdout.split() == [str(number)] and not done.stderr, said(done)


@pytest.mark.parametrize("call", ["fallocate", "ftruncate"])
def test_a_kill_by_the_sandbox_is_recovered_from(forbid, heap, call):
    done = sandboxed(forbid, "later", "kill", call, heap)
    assert done.returncode == -signal.SIGSYS, said(done)
    assert recovered(heap)["roots"] == 1


def test_randomisation_that_cannot_be_switched_off(heap):
    """Containers forbid it. The library prints a note, and the program runs."""
    inside = (
        "import ctypes,os,sys; libc=ctypes.CDLL(None); exec(sys.argv[1]); "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    # A filter for x86-64: personality(2) fails with EPERM unless it only asks.
    code = """
import struct
def stmt(code, k, jt=0, jf=0): return struct.pack("HBBI", code, jt, jf, k)
prog = stmt(0x20, 0) + stmt(0x15, 135, 0, 3) + stmt(0x20, 16) + stmt(0x15, 0xffffffff, 1, 0) \\
    + stmt(0x06, 0x00050001) + stmt(0x06, 0x7fff0000)
buf = ctypes.create_string_buffer(prog)
fprog = struct.pack("HxxxxxxQ", len(prog) // 8, ctypes.addressof(buf))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, fprog, 0, 0) == 0
"""
    argv = [
        "/usr/bin/python3",
        "-c",
        inside,
        code,
        tool("pmalloc-run"),
        "-H",
        heap,
        "-r",
        "store",
        app("kvshell"),
    ]
    done = run(argv, preload=False, stdin="set a 1\n")
    assert succeeds(done) == "ok\n"
    assert (
        done.stderr.count("\n") == 1 and "randomisation cannot be switched off" in done.stderr
    ), said(done)


# ---- limits --------------------------------------------------------------------------------------


def limited(argv, limits, **settings):
    def apply():
        for which, value in limits.items():
            both = value if isinstance(value, tuple) else (value, resource.getrlimit(which)[1])
            resource.setrlimit(which, both)

    return subprocess.run(
        [str(a) for a in argv],
        env=environment(**settings),
        stdin=subprocess.DEVNULL,
        preexec_fn=apply,
        capture_output=True,
        text=True,
        timeout=100 * busy(),
        check=False,
    )


MB = 1 << 20
LIMITS = {
    "address space": {resource.RLIMIT_AS: 60 * MB},
    "more address space": {resource.RLIMIT_AS: 4000 * MB},
    "data, as under overcommit 2": {resource.RLIMIT_DATA: 100 * MB},
    "data and address space": {resource.RLIMIT_DATA: 100 * MB, resource.RLIMIT_AS: 4000 * MB},
    "locked memory": {resource.RLIMIT_MEMLOCK: 0},
    "endless stack": {resource.RLIMIT_STACK: resource.RLIM_INFINITY},
    "descriptors": {resource.RLIMIT_NOFILE: 11},
}


@pytest.mark.parametrize("backing", ["file", "volatile"])
@pytest.mark.parametrize("which", LIMITS)
def test_limits(heap, which, backing):
    where = {"HEAP": heap, "ROOTS": "list_state"} if backing == "file" else {"BACKING": "volatile"}
    done = limited([app("list"), "run", 2000, 1, "-t", 1], LIMITS[which], **where)
    assert done.returncode == 0 and "ok keys=1678 " in done.stdout and not done.stderr, said(done)
    if backing == "file":
        done = limited([app("list"), "check"], LIMITS[which], HEAP=heap)
        assert "ok keys=1678 " in succeeds(done) and not done.stderr
        # And without the limit.
        assert "ok keys=1678 " in succeeds(run([app("list"), "check"], HEAP=heap))


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_data_limit_is_an_end_of_memory(heap, backing):
    """The limit counts memory as it is used. malloc returns NULL at the limit, and all of the
    memory is there again after free."""
    where = {"HEAP": heap} if backing == "file" else {"BACKING": "volatile"}
    program = compiled("limits.c", name="pmtest_limits")
    done = limited([program, "fill", 1000], {resource.RLIMIT_DATA: 80 * MB}, LIMIT="512M", **where)
    blocks = int(succeeds(done))
    assert blocks * 1000 > (400 if backing == "file" else 50) * MB, said(done)


@pytest.mark.parametrize("how", ["alone", "threads", "exec"])
def test_fork_under_a_data_limit(heap, how):
    program = compiled("limits.c", name="pmtest_limits")
    for _ in range(2):
        done = limited(
            [program, "fork", how],
            {resource.RLIMIT_DATA: 200 * MB},
            HEAP=heap,
            ROOTS="items,large,captured",
        )
        assert done.returncode == 0 and not done.stderr, said(done)


@pytest.fixture(scope="module")
def exhaust():
    return compiled("exhaust.c", name="pmtest_exhaust")


def of_kind(kind, heap):
    return {"default": {}, "volatile": {"BACKING": "volatile"}, "named": {"HEAP": heap}}[kind]


@pytest.mark.parametrize("kind", ["glibc", "default", "volatile", "named"])
def test_no_addresses_and_no_data(exhaust, heap, kind):
    """Reserved addresses do not help malloc where the kernel grants nothing more."""
    where = {} if kind == "glibc" else of_kind(kind, heap)
    assert int(succeeds(run([exhaust, "nothing"], preload=kind != "glibc", **where))) < 40


@pytest.mark.parametrize("kind", ["default", "volatile", "named"])
def test_address_limit_set_on_the_way(exhaust, heap, kind):
    """The kernel applies the limit to new mappings only. The heap is mapped already, so it applies
    the limit itself."""
    megabytes = int(succeeds(run([exhaust, "addresses"], **of_kind(kind, heap))))
    assert 200 <= megabytes <= 256


@pytest.mark.skipif(os.geteuid() != 0, reason="needs no limit of locked memory")
@pytest.mark.parametrize("kind", ["default", "named"])  # a default heap of nothing is volatile
def test_locking_what_is_there(exhaust, heap, kind):
    """What is only reserved takes no memory, locked or not."""
    assert int(succeeds(run([exhaust, "lock"], **of_kind(kind, heap)))) < 200


def test_too_few_descriptors(heap):
    few = limited(["true"], {resource.RLIMIT_NOFILE: 5}, HEAP=heap)
    assert (few.returncode, few.stderr) == (0, ""), said(few)  # ours lie above the soft limit
    heap = heap.with_name("other")
    refuses(limited(["true"], {resource.RLIMIT_NOFILE: (5, 5)}, HEAP=heap), "Too many open files")
    assert not heap.exists()
    done = limited(["true"], {resource.RLIMIT_NOFILE: 5})
    assert (done.returncode, done.stderr) == (0, ""), said(done)
    done = limited(["true"], {resource.RLIMIT_NOFILE: (5, 5)}, preload=API, VERBOSE=1)
    assert done.returncode == 0, said(done)
    one_message(done, "volatile memory: nothing is kept", "Too many open files")


def test_silence_is_for_heaps_that_keep_nothing():
    """A default heap that has captured a root is missed when it cannot be opened, so a message says
    it."""
    script = "mount -t tmpfs tmpfs /dev/shm && export LD_PRELOAD=$PMALLOC_P; unset PMALLOC_P; "
    script += (
        'printf "set a 1\\nquit\\n" | PMALLOC_ROOTS=store "$1"; echo get a | "$1"; ulimit -n 8; '
        'echo get a | "$1"'
    )
    done = inside(script, app("kvshell"))
    assert succeeds(done) == "ok\n1\nnone\n"
    one_message(done, "Too many open files", "running on volatile memory")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs no limit of locked memory")
@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_locked_memory(shm, heap, backing):
    """mlockall locks later mappings, too: those of a volatile heap, which the first large request
    makes. The kernel provides no page for what is only reserved of them. It would have to make page
    tables for all of that if it locked existing ones."""
    source = shm / "locked.c"
    source.write_text(
        """
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        #include <sys/resource.h>
        int main(void) {
            struct rusage use;
            if (mlockall(MCL_FUTURE) != 0) return 1;
            for (int i = 0; i < 3000; i++) { char *p = malloc(5000 + i); if (!p) return 2;
                                             memset(p, 1, 5000); }
            if (!malloc(9 << 20)) return 3;
            getrusage(RUSAGE_SELF, &use);
            return use.ru_minflt > 100000 ? 4 : 0;
        }
    """
    )
    subprocess.run(["gcc", "-O0", "-o", shm / "locked", source], check=True)
    where = {"HEAP": heap} if backing == "file" else {"BACKING": "volatile"}
    succeeds(run([shm / "locked"], **where))


# ---- containers ----------------------------------------------------------------------------------


def inside(script, *arguments, library="libpmalloc_preload.so", **settings):
    """Runs a shell script with mounts of its own. The script sets the preload itself."""
    preload = BUILD / library
    done = run(
        ["unshare", "-m", "sh", "-c", script, "sh", *arguments],
        preload=False,
        P=preload,
        **settings,
    )
    if done.returncode and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    return done


PYTHON = (
    "/usr/bin/python3 -c 'print(sum(len(bytes(i)) for i in range(2000)), "
    "len([bytes(i) for i in range(9000)]))'"
)


@pytest.mark.parametrize("size", ["4k", "64k", "1m", "4m", "64m"])
def test_small_shm(size):
    """Programs that ask for nothing run as they do without PMAlloc, and print nothing."""
    script = (
        f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm && export LD_PRELOAD=$PMALLOC_P; "
        "unset PMALLOC_P; "
    )
    for library in ("libpmalloc_preload.so", API):
        done = inside(script + PYTHON + "; ls -A /dev/shm/pmalloc-* || :", library=library)
        assert (done.returncode, done.stdout) == (0, "1999000 9000\n"), said(done)
        assert "pmalloc:" not in done.stderr, said(done)


@pytest.mark.parametrize("size", ["12k", "1m", "16m"])
def test_small_shm_for_a_heap_with_roots(size):
    """The heap fills up. malloc returns NULL, which the program reports. What is there is kept. The
    tool closes the heap cleanly when there is no space left at all."""
    script = (
        f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm && L=$PMALLOC_P; unset PMALLOC_P; "
    )
    script += "export PMALLOC_HEAP=/dev/shm/heap PMALLOC_ROOTS=list_state; "
    script += (
        'LD_PRELOAD=$L "$1" run 20000 1 -t 2; echo "status $?"; LD_PRELOAD=$L "$1" check; '
        'rm -f /dev/shm/heap/bitmaps.*; dd if=/dev/zero bs=4k of=/dev/shm/all 2> /dev/null; '
        '"$2" --json /dev/shm/heap'
    )
    done = inside(script, app("list"), tool("pmalloc-recover"))
    if size == "12k":
        assert "status 125" in done.stdout and "No space left" in done.stderr, said(done)
    else:
        assert "status 1\n" in done.stdout and "out of memory" in done.stdout, said(done)
        # The check needs memory itself, and there may be none.
        assert re.match("ok keys=|wrong: out of memory", done.stdout.split("status 1\n")[1]), said(
            done
        )
        assert '"live_objects"' in done.stdout, said(done)


def test_no_shm():
    script = (
        "mount -t tmpfs -o size=64k tmpfs /dev && export LD_PRELOAD=$PMALLOC_P; unset PMALLOC_P; "
    )
    done = inside(script + PYTHON, library=API)
    assert succeeds(done) == "1999000 9000\n" and not done.stderr, said(done)
    one_message(
        inside(script + "export PMALLOC_VERBOSE=1; exec ls /", library=API),
        "/dev/shm",
        "No such file",
        "volatile memory",
    )
    done = inside(script + "export PMALLOC_ROOTS=list_state; exec $1 check", app("list"))
    assert done.returncode == 125, said(done)
    one_message(done, "/dev/shm", "No such file")


def test_read_only_shm():
    script = (
        "mount -t tmpfs -o ro tmpfs /dev/shm && export LD_PRELOAD=$PMALLOC_P; unset PMALLOC_P; "
    )
    done = inside(script + "exec ls /dev/shm")
    assert succeeds(done) == "" and not done.stderr, said(done)
    one_message(
        inside(script + "PMALLOC_VERBOSE=1 exec ls /dev/shm", library=API),
        "Read-only file system",
        "volatile memory",
    )
    done = inside(script + "PMALLOC_HEAP=/dev/shm/heap exec ls /dev/shm")
    assert done.returncode == 125, said(done)
    one_message(done, "/dev/shm/heap", "Read-only file system")


def test_no_proc(heap):
    """Roots are found and kept all the same, and also under pmalloc-run."""
    script = "mount -t tmpfs tmpfs /proc && unset PMALLOC_P; "
    for _ in range(2):
        more = 'printf "get a\\nset a 1\\n" | "$1" -H "$2" -r store -s PROGRAM=kvshell "$3"'
        done = inside(script + more, tool("pmalloc-run"), heap, app("kvshell"))
        assert done.returncode == 0, said(done)
    assert done.stdout == "1\nok\n" and not done.stderr, said(done)


def test_missing_directory(shm):
    refuses(run(["true"], HEAP=shm / "no" / "heap"), "No such file")


# ---- memory cgroups ------------------------------------------------------------------------------


@contextlib.contextmanager
def memory_group(limit):
    """Makes a cgroup, of version 2 or 1. Returns a function that puts the calling process into
    it."""
    for top, name in (
        ("/sys/fs/cgroup", "memory.max"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ):
        group = pathlib.Path(top) / f"pmalloc-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            try:
                if (group / name).exists():
                    (group / name).write_text(str(limit))
                    yield lambda path=group / "cgroup.procs": path.write_text(str(os.getpid()))
                    return
            finally:
                group.rmdir()
    pytest.skip("no memory cgroup can be made here")


def test_memory_cgroup(heap):
    """A process that uses more is killed, as without PMAlloc. The heap recovers outside of the
    cgroup."""
    with memory_group(96 * MB) as enter:

        def go(*argv):
            env = environment(HEAP=heap, ROOTS="blocks")
            return subprocess.run(
                argv, env=env, preexec_fn=enter, capture_output=True, text=True, check=False
            )

        program = str(compiled("limits.c", name="pmtest_limits"))
        assert go(program, "count").stdout == "0\n"
        done = go(program, "grow", "1000")
        assert done.returncode == -signal.SIGKILL and not done.stderr, said(done)
    assert recovered(heap)["live_objects"] > 30_000
    assert int(succeeds(run([program, "count"], HEAP=heap))) > 30_000
