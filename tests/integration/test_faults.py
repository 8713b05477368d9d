# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Every system call of the library and the tools fails in turn, and nothing is lost.

faults.c is preloaded before the library. It numbers the calls that the library or a tool makes, and
fails one. A scenario runs once to see its calls. Then it runs again for each fault: on a fresh copy
of its heap, with another call failing in another way. Afterwards, without the fault, the heap must
open, be whole, and hold what the program had.

The test takes a sample with a fixed seed, each call site at least once. FAULTS=N sets its size, and
FAULTS=all takes all (`make faults`). build/faults.txt lists how often each site failed."""

import collections
import concurrent.futures
import os
import random
import re
import signal
import subprocess

import pytest
from conftest import BUILD, compiled
from fault_bench import Bench, E, Fault, LIBRARY, READS, SHORT, scenarios

# Faults of all scenarios together, beside one per call site: a number, or FAULTS=all.
SAMPLE = os.environ.get("FAULTS") or "50"
SEED = 20
ERRORS = {
    "access": [E.EIO],
    "close": [E.EIO, E.EINTR],
    "copy_file_range": [E.EIO, E.ENOSPC, E.EXDEV],
    "faccessat": [E.EIO],
    "fallocate": [E.EIO, E.ENOSPC, E.ENOMEM, E.EINTR, E.EOPNOTSUPP],
    "fcntl": [E.EMFILE, E.EINTR],
    "flock": [E.EINTR, E.ENOMEM, E.EIO],
    "fork": [E.EAGAIN, E.ENOMEM],
    "fstat": [E.EIO, E.ENOMEM],
    "fstatat": [E.EIO, E.ENOMEM],
    "fstatfs": [E.EIO, E.ENOMEM, E.EINTR],
    "fstatvfs": [E.EIO, E.ENOMEM, E.EINTR],
    "fdatasync": [E.EIO, E.ENOSPC, E.EINTR],
    "fsync": [E.EIO, E.ENOSPC, E.EINTR],
    "ftruncate": [E.EIO, E.ENOSPC, E.ENOMEM, E.EINTR],
    "getdents64": [E.EIO, E.ENOMEM, E.EINTR],
    "getrandom": [E.EIO, E.EINTR],
    "linkat": [E.EIO, E.ENOSPC, E.ENOMEM],
    "lseek": [E.EIO],
    "lstat": [E.EIO, E.ENOMEM],
    "madvise": [E.EIO, E.ENOMEM, E.EINTR],
    "mkdir": [E.EIO, E.ENOSPC, E.ENOMEM],
    "mmap": [E.ENOMEM],
    "mmap+file": [E.EIO, E.ENOMEM],
    "mprotect": [E.ENOMEM],
    "mremap": [E.ENOMEM],
    "msync": [E.EIO, E.ENOMEM],
    "munmap": [E.ENOMEM],
    "open": [E.EIO, E.ENOMEM, E.EINTR, E.EMFILE, E.ENFILE],
    "openat": [E.EIO, E.ENOMEM, E.EINTR, E.EMFILE, E.ENFILE],
    "openat+creat": [E.EIO, E.ENOSPC, E.ENOMEM, E.EINTR, E.EMFILE],
    "personality": [E.EPERM, E.ENOMEM],
    "pipe2": [E.EMFILE, E.ENOMEM],
    "pread": [E.EIO, E.EINTR, SHORT],
    "process_vm_readv": [E.EPERM],
    "process_vm_writev": [E.EPERM],
    "pthread_create": [E.EAGAIN, E.ENOMEM],
    "__pthread_key_create": [E.EAGAIN, E.ENOMEM],
    "pwrite": [E.EIO, E.ENOSPC, E.EINTR, SHORT],
    "read": [E.EIO, E.EINTR, SHORT],
    "readlink": [E.EIO, E.ENOMEM],
    "readlinkat": [E.EIO, E.ENOMEM],
    "rename": [E.EIO, E.ENOSPC],
    "renameat": [E.EIO, E.ENOSPC, E.ENOMEM],
    "rmdir": [E.EIO],
    "stat": [E.EIO, E.ENOMEM],
    "statvfs": [E.EIO, E.ENOMEM, E.EINTR],
    "symlinkat": [E.EIO, E.ENOSPC, E.ENOMEM],
    "syncfs": [E.EIO, E.ENOSPC],
    "unlinkat": [E.EIO, E.ENOMEM],
    "waitpid": [E.EINTR],
    "write": [E.EIO, E.ENOSPC, E.EINTR, SHORT],
}
# A full disk stays full.
LASTING = {"fallocate", "ftruncate", "openat+creat", "pwrite", "write", "mmap"}


# ---- all of them


def faults_of(bench):
    """Every fault that makes sense, per call site. Of a site that is called very often, only some
    calls fail."""
    by_site = collections.defaultdict(list)
    for number, function, site in bench.calls:
        by_site[function, site].append(number)
    rng = random.Random(f"{SEED} {bench.scenario.name}")
    for (function, site), numbers in by_site.items():
        most = 12
        if len(numbers) > most:
            numbers = numbers[:5] + numbers[-3:] + sorted(rng.sample(numbers[5:-3], most - 8))
        for number in numbers:
            for error in ERRORS.get(function, [E.EIO]):
                yield Fault(number, function, site, error)
            if function in LASTING:
                yield Fault(number, function, site, E.ENOMEM if function == "mmap" else E.ENOSPC, 1)
            if function == "fallocate":  # a file system without fallocate
                yield Fault(number, function, site, E.EOPNOTSUPP, 1)
            yield Fault(number, function, site, E.EIO, 2)


def chosen(benches):
    """(bench, fault) pairs: all of them, or one per call site and a sample of the others."""
    rng = random.Random(SEED)
    sure, rest = {}, []
    for bench in benches:
        for fault in faults_of(bench):
            objects = bench.scenario.objects
            where = bench.scenario.where if fault.function in READS else ""
            key = (objects, where, fault.function, fault.site)
            if key not in sure:
                sure[key] = (bench, fault)
            else:
                rest.append((bench, fault))
    if SAMPLE != "all":
        rest = rng.sample(rest, min(int(SAMPLE), len(rest)))
    return [*sure.values(), *rest]


def source_of(objects, sites):
    """The place of each site in the source, as far as addr2line knows it."""
    path = BUILD / objects
    done = subprocess.run(
        ["addr2line", "-f", "-s", "-e", path, *sites], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    return {
        site: f"{lines[2 * i]} ({lines[2 * i + 1]})"
        for i, site in enumerate(sites)
        if 2 * i + 1 < len(lines)
    }


# Imports that make no system call, or none that can fail; and futexes, signals, and the messages of
# a process that ends.
HARMLESS = set(
    """
    _IO_list_lock _IO_list_resetlock _IO_list_unlock __pthread_register_cancel
    __pthread_unregister_cancel __pthread_unwind_next __sigsetjmp mincore
    abort __asan_init backtrace bcmp clock_gettime __cxa_at_quick_exit __cxa_atexit __cxa_finalize
    dl_iterate_phdr dlclose dladdr dladdr1 dlsym dlvsym __environ environ __errno_location _exit
    ferror fflush fnmatch fprintf fwrite getauxval getcpu getcwd getenv geteuid getpid getppid
    getrlimit getsid getsockopt __gmon_start__ __isoc99_sscanf _ITM_deregisterTMCloneTable
    _ITM_registerTMCloneTable __lsan_init kill __libc_single_threaded memchr memcmp memcpy memmem
    memmove memset munlockall nanosleep on_exit pause pthread_attr_destroy pthread_attr_getstacksize
    pthread_attr_init pthread_attr_setstack pthread_barrierattr_init
    pthread_barrierattr_setpshared pthread_condattr_init pthread_condattr_setclock
    pthread_condattr_setpshared pthread_join pthread_rwlockattr_init
    pthread_rwlockattr_setkind_np pthread_rwlockattr_setpshared pthread_self
    pthread_setcancelstate pthread_setcanceltype pthread_setspecific pthread_sigmask
    __register_atfork __rseq_offset __rseq_size __sched_cpucount sched_getaffinity
    sched_setaffinity sched_yield secure_getenv sem_getvalue sigaction sigaddset sigdelset
    sigemptyset sigfillset sigismember sigprocmask snprintf stpcpy strchr strchrnul strcmp strcpy
    strcspn strerror
    strerrordesc_np strlen strncasecmp strncat strncmp strncpy strnlen strpbrk strrchr strspn
    strstr strtol
    strtoul strtoull time __tsan_init vsnprintf __x86_get_cpuid_feature_leaf
    """.split()
)


@pytest.mark.check
def test_every_import_can_fail():
    """A call that faults.c does not know would never fail."""
    done = subprocess.run(
        ["nm", "-D", "--undefined-only", BUILD / LIBRARY],
        capture_output=True,
        text=True,
        check=True,
    )
    imports = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    layer = compiled("faults.c", "-D_GNU_SOURCE", "-shared", "-fPIC", name="faults.so")
    done = subprocess.run(
        ["nm", "-D", "--defined-only", layer], capture_output=True, text=True, check=True
    )
    known = {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}
    assert not imports - known - HARMLESS, "teach faults.c these, or name them in HARMLESS"


def all_sites(objects, functions):
    """The places where the code calls one of the functions, named as faults.c names them."""
    path, slots, sites, call = BUILD / objects, {}, set(), None
    done = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        match = re.match(r"([0-9a-f]+) +\S+ +R_X86_64_(?:GLOB_DAT|JUMP_SLO\S*) +\S+ +(\w+)@", line)
        if match:
            slots[int(match[1], 16)] = match[2]
    done = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
    )
    for line in done.stdout.splitlines():
        match = re.match(r" *([0-9a-f]+):\t(.*)", line)
        if not match:
            continue
        if call:
            sites.add((call, f"{int(match[1], 16) - 1:x}"))
        target = re.match(r"call +\*.*# ([0-9a-f]+)", match[2])
        call = slots.get(int(target[1], 16)) if target else None
        call = call if call in functions else None
    return sites


def report(benches, met, wrong):
    """Writes how often each site was reached. Returns the sum, and the sites that never failed."""
    called, counted = collections.defaultdict(collections.Counter), collections.Counter(met)
    for bench in benches:
        for _, function, site in bench.calls:
            called[bench.scenario.objects][function, site] += 1
    lines = []
    there = all_sites(LIBRARY, {name.split("+")[0] for name in ERRORS})
    reached = {site for _, site in called[LIBRARY]} | {
        site for objects, _, site in counted if objects == LIBRARY
    }
    where = source_of(LIBRARY, sorted(site for _, site in there))
    for function, site in sorted(there):
        if site not in reached:
            lines.append(f"{LIBRARY:22} {function:18} {where[site]:58}      not reached")
    for objects, calls in sorted(called.items()):
        where = source_of(objects, sorted({site for _, site in calls}))
        for (function, site), times in sorted(calls.items()):
            failed = counted[objects, function, site]
            lines.append(
                f"{objects:22} {function:18} {where.get(site, site):58} {times:6} calls "
                f"{failed:6} failed"
            )
    missing = sum(line.endswith("not reached") for line in lines)
    total = f"{len(lines) - missing} call sites, {sum(counted.values())} calls failed; "
    total += f"of {len(there)} sites in {LIBRARY} {missing} were not reached"
    (BUILD / "faults.txt").write_text("\n".join([*lines, total, *wrong]) + "\n")
    return total, [line for line in lines if line.endswith(" 0 failed")]


def inject_again(benches, met):
    """Which calls a run makes may depend on time: one was listed, and not made when it was to fail.
    Their sites get another list of calls. Returns the sites that failed now, and what was wrong."""
    again, wrong = [], []
    for bench in benches:
        objects = bench.scenario.objects
        missed = {tuple(call[1:]) for call in bench.calls} - {
            (function, site) for where, function, site in met + again if where == objects
        }
        seen = {call[1:]: call for call in reversed(bench.observe())} if missed else {}
        bench.calls = [call for call in bench.calls if call[1:] not in missed]
        for number, function, site in (seen[call] for call in sorted(missed & seen.keys())):
            bench.calls.append((number, function, site))
            fault = Fault(number, function, site, ERRORS.get(function, [E.EIO])[0])
            sites, failure = bench.inject(fault)
            again += [(objects, *met_now) for met_now in sites]
            wrong += [failure] if failure else []
    return again, wrong


def test_every_call_fails_in_turn(shm):
    signal.alarm(0)  # each run has a time limit of its own
    benches = []
    for number, scenario in enumerate(scenarios()):
        folder = shm / str(number)
        folder.mkdir()
        benches.append(Bench(scenario, folder))
    pairs = chosen(benches)
    met, wrong = [], []
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for (bench, _), (sites, failure) in zip(
            pairs, pool.map(lambda pair: pair[0].inject(pair[1]), pairs)
        ):
            met += [(bench.scenario.objects, function, site) for function, site in sites]
            wrong += [failure] if failure else []
    # A call that only a slow run makes may be listed again, and not be made again.
    for _ in range(4):
        again, more = inject_again(benches, met)
        met, wrong = met + again, wrong + more
    total, missed = report(benches, met, wrong)
    print(f"{len(pairs)} runs; {total}")
    assert not wrong, f"{len(wrong)} of {len(pairs)}:\n" + "\n".join(wrong[:40])
    assert not missed, "call sites that never failed:\n" + "\n".join(missed)
