# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Every entry point of libc's malloc family under the preload, on persistent and on volatile
memory."""

import re
import shutil
import signal
import subprocess

import pytest
from conftest import BUILD, CC, DEFAULT_HEAPS, HERE, ROOT
from conftest import compiled, one_message, run, said, succeeds

MISUSE = {
    "double_free_small": "free",
    "double_free_large": "free",
    "double_free_huge": "free",
    "interior_small": "middle",
    "interior_large": "middle",
    "interior_huge": "middle",
    "misaligned_small": "misaligned",
    "misaligned_large": "misaligned",
    "realloc_freed": "realloc(",
    "usable_freed": "malloc_usable_size(",
    "never_allocated": "unused range",
}
FOREIGN = ["foreign_stack", "foreign_mapping"]
CHECKS = [
    "malloc_zero",
    "usable_size",
    "free_keeps_errno",
    "huge_sizes",
    "calloc_overflow",
    "calloc_zeroes",
    "realloc_contents",
    "realloc_special",
    "sized_frees",
    "realloc_in_place",
    "alignment",
    "posix_memalign_all",
    "posix_memalign_fails",
    "odd_alignment",
    "page_alignment",
    "introspection",
    "info_xml",
    "trim_gives_back",
    "random_calls",
    "threads",
    "tls_destructors",
    "many_threads",
]

# It uses blocks after free, to see what happens. clang has no such warning, and would say so.
WRONG_ON_PURPOSE = [f"-Wno-{w}" for w in ("unknown-warning-option", "use-after-free")]
WRONG_ON_PURPOSE += ["-Wno-free-nonheap-object"]

# What a check may print. Checks that are not listed must print nothing.
CHATTY = {"introspection": "malloc_stats"}


@pytest.fixture(scope="module")
def contract():
    sources = ("contract.c", "contract_threads.c", "contract_misuse.c")
    return compiled(sources, *WRONG_ON_PURPOSE)


def test_every_check_is_run(contract):
    names = succeeds(run([contract], preload=False)).split()
    assert sorted(names) == sorted([*CHECKS, *MISUSE, *FOREIGN])


@pytest.mark.parametrize("backing", ["file", "volatile", "waiting", "no decay"])
@pytest.mark.parametrize("name", CHECKS)
def test_contract(contract, heap, name, backing):
    """waiting: the program has asked for so little when the check begins that it has no heap, not
    even a volatile one."""
    settings = {"HEAP": heap}
    if backing in ("volatile", "waiting"):
        settings = {"BACKING": "volatile", "many": 0 if backing == "waiting" else 1000}
    if backing == "no decay":  # freed space goes back to the file system at once
        settings["DECAY_MS"] = 0
    done = run([contract, name], **settings)
    assert done.returncode == 0, said(done)
    assert done.stdout == ""
    assert done.stderr == "" or name in CHATTY, said(done)


@pytest.mark.parametrize("name", CHECKS)
def test_libc_itself_keeps_the_contract(contract, name):
    """glibc itself passes the checks, except for those that are the allocator's own business."""
    if name in ("realloc_in_place", "introspection", "trim_gives_back", "many_threads"):
        pytest.skip("the check is about PMAlloc alone")
    if name in ("odd_alignment", "page_alignment", "tls_destructors"):
        pytest.skip("differs between versions of glibc")
    succeeds(run([contract, name], preload=False))


@pytest.mark.parametrize("backing", ["file", "waiting"])
@pytest.mark.parametrize("name", MISUSE)
def test_misuse_aborts_with_one_line(contract, heap, name, backing):
    settings = {"HEAP": heap} if backing == "file" else {"BACKING": "volatile"}
    if backing == "waiting" and name == "never_allocated":
        pytest.skip("without a heap there is no range for the pointer to lie in")
    done = run([contract, name], **settings)
    assert done.returncode == -signal.SIGABRT, said(done)
    assert "went on" not in done.stdout
    one_message(done, MISUSE[name], "(0x")
    assert len(done.stderr.splitlines()) == 1, said(done)


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_reported_and_ignored(contract, heap, name):
    done = run([contract, name], HEAP=heap, CHECK="report")
    assert done.returncode == 0 and done.stdout == "went on\n", said(done)
    one_message(done, MISUSE[name], "ignored")


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_aborts_when_strict(contract, heap, name):
    done = run([contract, name], HEAP=heap, CHECK="strict")
    assert done.returncode == -signal.SIGABRT, said(done)


@pytest.mark.parametrize("check", ["abort", "report", "strict"])
@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_pointer(contract, heap, name, check):
    """Such a pointer is never touched, and reported once. It ends the program only under strict."""
    done = run([contract, name], HEAP=heap, CHECK=check)
    if check == "strict":
        assert done.returncode == -signal.SIGABRT, said(done)
    else:
        assert done.returncode == 0 and done.stdout == "went on\n", said(done)
    one_message(done, "outside the heap")


@pytest.mark.parametrize("backing", ["file", "volatile"])
def test_before_constructors_and_after_destructors(heap, backing):
    library = compiled("early.c", "-fPIC", "-shared", "-DLIBRARY", name="libpmtest_early.so")
    program = compiled(
        "early.c",
        name="pmtest_early",
        libraries=[str(library), f"-Wl,-rpath,{library.parent}"],
    )
    done = run([program], BACKING=backing, HEAP=heap if backing == "file" else None)
    assert done.returncode == 0 and (done.stdout, done.stderr) == ("fine\n", ""), said(done)


def test_new_and_delete(heap):
    if not shutil.which("g++"):
        pytest.skip("no g++")
    program = compiled("newdelete.cc", "-std=c++17", name="pmtest_newdelete", compiler="g++")
    succeeds(run([program], HEAP=heap))


def test_everyday_programs_with_no_setting_at_all(shm):
    """They get no heap, because nothing could find it again."""
    name = {tool: shm / f"pmtest_{tool}" for tool in ("ls", "sort", "cat", "sh")}
    for tool, path in name.items():
        shutil.copy(shutil.which(tool), path)
    script = f"echo b a | {name['cat']} - /etc/passwd; {name['ls']} /usr | {name['cat']}; true"
    for argv in (
        [name["ls"], "-la", "/usr/bin"],
        [name["sort"], "--parallel=2", "/etc/passwd"],
        [name["sh"], "-c", script],
    ):
        plain, done = run(argv, preload=False), run(argv)
        assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, "", 0), said(done)
    made = {path.name for path in DEFAULT_HEAPS.iterdir()} if DEFAULT_HEAPS.is_dir() else set()
    assert not made & {path.name for path in name.values()}


def test_exports_are_libcs_names_and_our_own():
    done = subprocess.run(
        ["nm", "-D", "--defined-only", BUILD / "libpmalloc_preload.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[-1] for line in done.stdout.splitlines()}
    libc = (
        "malloc free calloc realloc reallocarray aligned_alloc memalign posix_memalign valloc "
        "pvalloc free_sized free_aligned_sized"
    )
    libc += " malloc_usable_size mallopt mallinfo mallinfo2 malloc_trim malloc_stats malloc_info"
    assert set(libc.split()) <= names
    others = (
        names
        - set(libc.split())
        - {"__libc_start_main", "__cxa_atexit", "__cxa_finalize", "_exit", "_Exit"}
    )
    others -= {"dlopen", "dlmopen", "unshare", "setns", "clone", "_Fork", "call_once", "prctl"}
    others -= {"madvise", "mprotect", "pkey_mprotect", "mremap", "mseal"}  # advice.c
    others -= {"mmap", "mmap64", "munmap"}  # the same
    others -= {"tss_create", "tss_delete"}  # keys.c
    others -= set(
        "close dup2 dup3 fclose freopen freopen64 pclose setsockopt ioctl close_range "
        "closefrom".split()
    )  # closes.c
    others -= {"thrd_create"}  # threads.c
    others -= set(
        "sigaction __sigaction sigaltstack signal bsd_signal ssignal sysv_signal __sysv_signal "
        "sigset sigignore siginterrupt sigvec".split()
    )  # handlers.c
    others -= {"dprintf", "vdprintf", "__dprintf_chk", "__vdprintf_chk"}  # streams.c
    waits = (ROOT / "preload" / "names" / "waits.c").read_text()
    others -= {"syscall", *re.findall(r"\bX\(\w+, (\w+),", waits)}  # the calls that may sleep
    others -= {"sync"}  # the same: it returns nothing
    others -= {"setrlimit", "setrlimit64", "getrlimit", "getrlimit64", "prlimit", "prlimit64"}
    rings = (ROOT / "preload" / "names" / "rings.c").read_text()
    others -= set(re.findall(r"\bX\((\w+),", rings))
    says = (ROOT / "preload" / "names" / "says.c").read_text()
    others -= {"vfork", "syslog", "__syslog_chk"}
    others -= set(re.findall(r"X\([\w *()]+, [-()\w]+, (\w+),", says))
    execs = (ROOT / "preload" / "names" / "execs.c").read_text()
    others -= set(re.findall(r"(?:\bX|DEFINE_LISTED)\((exec\w+|fexecve),", execs))
    foreign = (ROOT / "preload" / "names" / "foreign_locks.c").read_text()
    others -= set(re.findall(r"\bX\((\w+), \(", foreign))
    others -= set(re.findall(r"^EXPORT \w+ (\w+)[;(]", foreign, re.MULTILINE))
    others -= set(re.findall(r'"(\w+)"', foreign))
    abseil = re.compile(r"_ZN4absl[78]debian\d+(5Mutex|7CondVar)\w+")
    others -= {name for name in others if abseil.fullmatch(name)}
    others -= {"sem_wait", "sem_timedwait", "sem_clockwait", "sem_trywait", "sem_post"}
    others -= {name for name in others if name.startswith(("pmalloc_", "PMALLOC_"))}
    assert all(name.startswith(("pthread_", "mtx_", "cnd_")) for name in others), others
