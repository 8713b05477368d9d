# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The suites that foreign-tests knows: where each comes from, how it is built, and its tests.

A suite's sources come from Debian (apt-get source), or lie in a folder that is given. They are read
only: everything that is built goes to a folder of the cache.
"""

import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


class SuiteError(Exception):
    """A suite cannot be fetched or built; the text says what to do."""


@dataclasses.dataclass
class Test:
    name: str
    argv: list
    cwd: str = None
    env: dict = dataclasses.field(default_factory=dict)
    turn: str = None  # tests of one turn run one after the other


def call(argv, cwd, log, **env):
    """Runs a command of a build. What it says goes to the end of the file `log`."""
    with open(log, "ab") as out:
        out.write(f"$ {shlex.join(map(str, argv))}\n".encode())
        out.flush()
        done = subprocess.run(
            [str(one) for one in argv],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **env},
            check=False,
        )
    return done.returncode


def must(argv, cwd, log, **env):
    if call(argv, cwd, log, **env) != 0:
        raise SuiteError(f"{argv[0]} failed: see the end of {log}")


def output_of(argv, cwd=None, **env):
    env = {**os.environ, **env}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    return done.stdout


def words_of(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


# ---- Debian's sources ----------------------------------------------------------------------------


def release():
    with open("/etc/os-release", encoding="utf-8") as rows:
        names = dict(row.rstrip("\n").split("=", 1) for row in rows if "=" in row)
    if names.get("ID") != "debian":
        raise SuiteError("this is no Debian: give each suite's sources by --source SUITE=DIR")
    return names["VERSION_CODENAME"].strip('"')


class Debian:
    """Lists of source packages of its own, so that nobody needs deb-src lines in /etc/apt."""

    def __init__(self, cache):
        self.folder = cache / "apt"
        self.log = cache / "apt.log"

    def options(self):
        parts, lists = self.folder / "parts", self.folder / "lists"
        lists.mkdir(parents=True, exist_ok=True)
        parts.mkdir(exist_ok=True)
        (self.folder / "cache").mkdir(exist_ok=True)
        (parts / "debian.sources").write_text(
            "Types: deb deb-src\nURIs: http://deb.debian.org/debian\n"
            f"Suites: {release()}\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        )
        where = {
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": parts,
            "Dir::State::lists": lists,
            "Dir::Cache": self.folder / "cache",
            "APT::Sandbox::User": "root",
        }
        options = [part for key, value in where.items() for part in ("-o", f"{key}={value}")]
        if not any(lists.glob("*Sources*")):
            must(["apt-get", *options, "update"], None, self.log)
        return options

    def source(self, package, to):
        folder = to.with_name(to.name + ".part")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = self.options()
        must(["apt-get", *options, "source", "--download-only", package], folder, self.log)
        described = next(folder.glob("*.dsc"))
        must(["dpkg-source", "--no-check", "-x", described, folder / "tree"], folder, self.log)
        (folder / "tree").rename(to)
        shutil.rmtree(folder)

    def unpacked(self, package, to):
        """The files of a binary package, which is not installed."""
        to.mkdir(parents=True, exist_ok=True)
        must(["apt-get", *self.options(), "download", package], to, self.log)
        must(["dpkg-deb", "-x", next(to.glob("*.deb")), to], to, self.log)


# ---- suites --------------------------------------------------------------------------------------


class Suite:
    """`package`: Debian's source package; None: sources must be given. `serial`: its tests use
    fixed ports or names, so one runs at a time. `gc`: its programs are libgc's."""

    name = package = None
    serial = gc = False
    slowest = 1  # times the time limit

    def fetch(self, debian, to):
        if not self.package:
            raise SuiteError(f"Debian has no sources of {self.name}: give --source {self.name}=DIR")
        debian.source(self.package, to)

    def build(self, source, work, jobs, log):
        raise NotImplementedError

    def tests(self, source, work):
        raise NotImplementedError


def compile_all(commands, jobs, log):
    """Compiles each by itself; those that cannot be compiled are left out, and counted in the
    log."""
    with ThreadPoolExecutor(jobs) as pool:
        done = list(pool.map(lambda command: compile_one(*command), commands))
    with open(log, "a", encoding="utf-8") as out:
        out.writelines(text for text in done if text)


def compile_one(argv, cwd):
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    return f"$ {shlex.join(map(str, argv))}\n{done.stderr}\n" if done.returncode else ""


class Bdwgc(Suite):
    name, package, gc, slowest = "bdwgc", "libgc", True, 5
    LEFT_OUT = {"staticrootslib.c", "staticrootstest.c"}

    def build(self, source, work, jobs, log):
        must([source / "configure", "--with-libatomic-ops=none"], work, log)  # for config.h
        flags = ["-O2", "-w", "-DHAVE_CONFIG_H", "-Iinclude", f"-I{source}/include"]
        tests, libraries = source / "tests", ["-lgc", "-lpthread", "-ldl"]
        commands = []
        for path in sorted([*tests.glob("*.c"), *tests.glob("*.cc")]):
            if path.name not in self.LEFT_OUT:
                compiler = ["gcc"] if path.suffix == ".c" else ["g++"]
                plus = ["-lgccpp"] if path.suffix == ".cc" else []
                commands.append([*compiler, *flags, "-o", path.stem, path, *plus, *libraries])
        for number, more in ("1", []), ("2", ["-DSTATICROOTSLIB2"]):
            commands.append(
                ["gcc", *flags, *more, "-fPIC", "-shared", "-o", f"libroots{number}.so"]
                + [tests / "staticrootslib.c", *libraries]
            )
        compile_all([(one, work) for one in commands], jobs, log)
        last = ["gcc", *flags, "-DSTATICROOTSLIB2", "-o", "staticrootstest"]
        last += [tests / "staticrootstest.c", "-L.", "-lroots1", "-lroots2", *libraries]
        compile_all([([*last, f"-Wl,-rpath,{work}"], work)], 1, log)

    def tests(self, source, work):
        names = [path.stem for path in [*(source / "tests").glob("*.c*")]]
        return [
            Test(name, [str(work / name)]) for name in sorted(names) if (work / name).is_file()
        ]


class Libevent(Suite):
    name, package, serial = "libevent", "libevent", True

    def build(self, source, work, jobs, log):
        flags = ["-DEVENT__DISABLE_OPENSSL=ON", "-DEVENT__LIBRARY_TYPE=STATIC"]
        must(["cmake", "-S", source, "-B", work, *flags], work, log)
        must(["make", f"-j{jobs}", "regress"], work, log)

    def tests(self, source, work):
        regress = str(work / "bin" / "regress")
        names = [row.split()[0] for row in words_of(output_of([regress, "--list-tests"]))]
        return [Test(name, [regress, "--quiet", name]) for name in names if "/" in name]


class Libuv(Suite):
    name, package, serial = "libuv", "libuv1", True

    def build(self, source, work, jobs, log):
        must(["cmake", "-S", source, "-B", work, "-DBUILD_TESTING=ON"], work, log)
        must(["make", f"-j{jobs}", "uv_run_tests"], work, log)
        shutil.copytree(source / "test", work / "test", dirs_exist_ok=True)

    # Its fixtures are looked for from the current folder.
    def tests(self, source, work):
        runner = str(work / "uv_run_tests")
        env = {"UV_TEST_TIMEOUT_MULTIPLIER": "4", "UV_RUN_AS_ROOT": "1"}
        names = words_of(output_of([runner, "--list"], cwd=work, **env))
        return [Test(name, [runner, name], cwd=str(work), env=env) for name in names]


class OpenPosix(Suite):
    """Of LTP. A test is one file. What does not compile by itself is left out, what sets the
    machine's clock, and what busies the whole machine for minutes."""

    name = "openposix"
    HEAVY = {"shm_open/23-1"}  # 1,000 processes that spin
    ONE_NAME = {"sem_init/3-2", "sem_init/3-3"}  # of shared memory

    def fetch(self, debian, to):
        raise SuiteError("Debian has no sources of LTP: give --source openposix=DIR, LTP's tree")

    @staticmethod
    def root(source):
        inner = source / "testcases" / "open_posix_testsuite"
        return inner if inner.is_dir() else source

    def build(self, source, work, jobs, log):
        root = self.root(source)
        interfaces = root / "conformance" / "interfaces"
        if not interfaces.is_dir():
            raise SuiteError(f"{interfaces} is no folder: is --source openposix=DIR LTP's tree?")
        commands = []
        for path in sorted(interfaces.glob("*/[0-9]*-[0-9]*.c")):
            text = path.read_text(encoding="latin-1")
            if path.stem.endswith("buildonly") or "clock_settime(" in text:
                continue
            if f"{path.parent.name}/{path.stem}" in self.HEAVY:
                continue
            out = work / path.parent.name / path.stem
            out.parent.mkdir(exist_ok=True)
            flags = "-O1 -w -std=gnu99 -D_POSIX_C_SOURCE=200809L -D_XOPEN_SOURCE=700".split()
            flags += [f"-I{root}/include", "-o", out, path, *sorted(root.glob("lib/*.c"))]
            commands.append((["gcc", *flags, "-lpthread", "-lrt", "-lm"], path.parent))
        compile_all(commands, jobs, log)

    def tests(self, source, work):
        found = sorted(path for path in work.glob("*/*") if os.access(path, os.X_OK))
        tests = [Test(f"{path.parent.name}/{path.name}", [str(path)]) for path in found]
        for test in tests:
            test.turn = "one name" if test.name in self.ONE_NAME else None
        return tests


class Ltp(Suite):
    """Those of LTP's tests of system calls that have to do with memory, processes and signals."""

    name = "ltp"
    CALLS = (
        "abort brk clone clone3 close_range execve exit exit_group fork futex getrlimit kill "
        "madvise mincore mlock mlock2 mmap mprotect mremap msync munlock munmap pause pipe poll "
        "pselect read rt_sigaction rt_sigprocmask rt_sigsuspend sbrk setrlimit sigaction "
        "sigaltstack signal sigprocmask tgkill tkill unshare vfork wait wait4 waitid waitpid write"
    ).split()

    def build(self, source, work, jobs, log):
        tree = work / "tree"
        if not tree.exists():
            shutil.copytree(source, tree)
        must(["make", "autotools"], tree, log)
        must(["./configure"], tree, log)
        must(["make", f"-j{jobs}", "-C", "include", "all"], tree, log)
        must(["make", f"-j{jobs}", "-C", "lib", "all"], tree, log)
        must(["make", f"-j{jobs}", "-C", "libs", "all"], tree, log)
        for name in self.CALLS:
            folder = tree / "testcases" / "kernel" / "syscalls" / name
            if folder.is_dir():
                call(["make", f"-j{jobs}", "-k", "-C", folder], tree, log)

    def tests(self, source, work):
        calls = work / "tree" / "testcases" / "kernel" / "syscalls"
        found = [
            path
            for name in self.CALLS
            for path in sorted((calls / name).glob("*"))
            if path.is_file() and os.access(path, os.X_OK) and path.with_suffix(".c").exists()
        ]
        # Some look for helpers by PATH.
        return [
            Test(path.name, [str(path)], env={"PATH": f"{path.parent}:{os.environ['PATH']}"})
            for path in found
        ]


class LibcTest(Suite):
    """The tests of musl's authors, in folders by subject; each is a program."""

    name = "libc-test"

    def build(self, source, work, jobs, log):
        common = sorted((source / "src" / "common").glob("*.c"))
        common = [path for path in common if path.stem not in ("runtest", "mtest")]
        if not common:
            raise SuiteError(f"{source}/src/common has no sources: give --source libc-test=DIR")
        commands = []
        for path in sorted(source.glob("src/*/*.c")):
            if path.parent.name not in ("functional", "regression"):
                continue
            if path.stem.endswith("_dso"):
                continue
            flags = ["-O1", "-w", "-D_GNU_SOURCE", f"-I{source}/src/common"]
            flags += ["-o", f"{path.parent.name}-{path.stem}", path, *common]
            commands.append((["gcc", *flags, "-lpthread", "-lm", "-lrt", "-ldl"], work))
        compile_all(commands, jobs, log)

    def tests(self, source, work):
        found = sorted(path for path in work.iterdir() if os.access(path, os.X_OK))
        return [Test(path.name, [str(path)]) for path in found if path.is_file()]


class Cpython(Suite):
    """Of the Python that Debian has installed; a test is a module."""

    name, slowest = "cpython", 5

    def fetch(self, debian, to):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        part = to.with_name(to.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        debian.unpacked(f"libpython{version}-testsuite", part)
        library = f"usr/lib/python{version}/test"
        shutil.copytree(f"/{library}", part / "all" / "test", dirs_exist_ok=True)
        shutil.copytree(part / library, part / "all" / "test", dirs_exist_ok=True)
        (part / "all").rename(to)
        shutil.rmtree(part)

    def build(self, source, work, jobs, log):
        must(["/usr/bin/python3", "-c", "import test.libregrtest"], work, log, PYTHONPATH=source)

    def tests(self, source, work):
        names = [path.stem for path in (source / "test").glob("test_*") if path.stem != "test_pg"]
        python = ["/usr/bin/python3", "-m", "test"]
        return [
            Test(name, [*python, name], env={"PYTHONPATH": str(source)})
            for name in sorted(set(names))
        ]


class Jemalloc(Suite):
    """jemalloc as a second allocator in the process, by names of its own."""

    name, package = "jemalloc", "jemalloc"

    def build(self, source, work, jobs, log):
        shutil.copytree(source, work, dirs_exist_ok=True)
        if not (work / "configure").exists():
            must(["autoconf"], work, log)
        must(["./configure", "--with-jemalloc-prefix=je_", "--disable-cxx"], work, log)
        must(["make", f"-j{jobs}", "tests_unit", "tests_integration"], work, log)

    def tests(self, source, work):
        found = [
            path
            for kind in ("unit", "integration")
            for path in sorted((work / "test" / kind).iterdir())
            if path.is_file() and os.access(path, os.X_OK)
        ]
        env = {"LD_LIBRARY_PATH": str(work / "lib")}
        return [Test(f"{path.parent.name}/{path.name}", [str(path)], env=env) for path in found]


class Snmalloc(Suite):
    """snmalloc as a second allocator in the process. Its measurements are left out."""

    name = "snmalloc"

    def build(self, source, work, jobs, log):
        must(["cmake", "-S", source, "-B", work, "-DCMAKE_BUILD_TYPE=Release"], work, log)
        targets = re.findall(r"^\.\.\. (func-\S+)$", output_of(["make", "help"], cwd=work), re.M)
        if not targets:
            raise SuiteError(f"{work}/Makefile makes no tests: see {log}")
        must(["make", f"-j{jobs}", *targets], work, log)

    def tests(self, source, work):
        found = sorted(pathlib.Path(work).glob("func-*"))
        return [
            Test(path.name, [str(path)])
            for path in found
            if path.is_file() and os.access(path, os.X_OK)
        ]


class Glibc(Suite):
    """glibc's own tests, against the glibc that is installed: glibc itself is not built. A test is
    one file. What needs other parts of that build (its insides, modules, a container of its own)
    does not compile or does not pass, and is left out, and so is what sets the machine's clock.
    tst-arc4random-fork forks 220,500 times, within a limit of its own."""

    name, package, slowest = "glibc", "glibc", 10
    FOLDERS = (
        "argp assert debug dirent io libio malloc misc nptl posix resource rt setjmp signal socket "
        "stdio-common stdlib support sysdeps/nptl sysdeps/pthread "
        "sysdeps/unix/sysv/linux sysdeps/x86 sysdeps/x86_64 time"
    ).split()
    # Behind the system's own headers: where those have none of that name.
    HEADERS = (
        "include . sysdeps/x86_64/nptl sysdeps/x86_64 sysdeps/x86 sysdeps/unix/sysv/linux/x86_64 "
        "sysdeps/unix/sysv/linux/x86 sysdeps/unix/sysv/linux sysdeps/nptl sysdeps/pthread "
        "sysdeps/unix/x86_64 sysdeps/unix sysdeps/posix sysdeps/wordsize-64 sysdeps/generic"
    ).split()
    # What glibc's build defines, and its tests use.
    PRELUDE = """
    #include <limits.h>
    #include <stdint.h>
    #include <sys/syscall.h>
    #include <time.h>
    #define __timespec64 timespec
    #define attribute_hidden
    #define attribute_relro
    #define libc_hidden_def(...)
    #define libc_hidden_proto(...)
    #define TIMEOUTFACTOR 1
    """
    PATHS = {
        "SRCDIR": "/nowhere",
        "OBJDIR": "/nowhere",
        "OBJDIR_ELF_LDSO": "/lib64/ld-linux-x86-64.so.2",
        "INSTDIR": "/nowhere",
        "LIBDIR": "/usr/lib",
        "SLIBDIR": "/usr/lib",
        "BINDIR": "/usr/bin",
        "SBINDIR": "/usr/sbin",
        "ROOTSBINDIR": "/sbin",
        "COMPLOCALEDIR": "/usr/lib/locale",
        "SYSCONFDIR": "/etc",
    }
    CLOCK = re.compile(r"\b(clock_settime|settimeofday|stime|adjtimex?|clock_adjtime) *\(")

    def flags(self, source, work):
        flags = "-std=gnu11 -O2 -w -D_GNU_SOURCE -D_ISOMAC -DMODULE_NAME=testsuite".split()
        flags += [f'-D{name}_PATH="{path}"' for name, path in self.PATHS.items()]
        flags += ["-include", "prelude.h", f"-I{work}", f"-I{source}/support"]
        return flags + [part for one in self.HEADERS for part in ("-idirafter", source / one)]

    @staticmethod
    def settings(source):
        """What the Makefiles say: {test: its arguments}, and the tests that want a container."""
        arguments, contained = {}, set()
        for path in [*source.glob("*/Makefile"), *source.glob("sysdeps/**/Makefile")]:
            text = path.read_text(encoding="latin-1").replace("\\\n", " ")
            for name, value in re.findall(r"^([\w-]+)-ARGS *[:+]?= *(.*)$", text, re.M):
                arguments[name] = value
            for value in re.findall(r"^tests-container *[:+]?= *(.*)$", text, re.M):
                contained.update(value.split())
        return arguments, contained

    def sources(self, source):
        _, contained = self.settings(source)
        for folder in self.FOLDERS:
            for pattern in "tst-*.c", "test-*.c", "bug*.c":
                for path in sorted((source / folder).glob(pattern)):
                    text = path.read_text(encoding="latin-1")
                    if path.stem not in contained and not self.CLOCK.search(text):
                        yield folder, path

    def build(self, source, work, jobs, log):
        (work / "prelude.h").write_text(self.PRELUDE)
        (work / "config.h").write_text("")  # parts of support/ include the build's
        (work / "support").unlink(missing_ok=True)
        (work / "support").symlink_to(source / "support")
        parts = work / "parts"
        parts.mkdir(exist_ok=True)
        flags = self.flags(source, work)
        found = [one for one in (source / "support").glob("*.c") if "tst-" not in one.name]
        commands = [["gcc", *flags, "-c", "-o", parts / f"{one.stem}.o", one] for one in found]
        compile_all([(one, work) for one in commands], jobs, log)
        objects = sorted(one for one in parts.glob("*.o") if "container" not in one.name)
        must(["ar", "rcs", "libsupport.a", *objects], work, log)
        commands = []
        for folder, path in self.sources(source):
            out = work / "tests" / folder / path.stem
            out.parent.mkdir(exist_ok=True, parents=True)
            more = ["-fexceptions"] if re.search(r"x\d+$", path.stem) else []
            more += ["-fno-builtin"] if "cleanup" in path.stem else []
            more += ["-o", out, path, "libsupport.a", "-lm", "-lpthread", "-lrt"]
            commands.append((["gcc", *flags, *more], work))
        compile_all(commands, jobs, log)

    def arguments_of(self, path, arguments):
        """The words after the program's name; none where they name parts of glibc's build."""
        value = re.sub(
            r"\$\(([\w-]+)-ARGS\)",
            lambda found: arguments.get(found[1], ""),
            arguments.get(path.name, ""),
        )
        value = value.replace("$(host-test-program-cmd)", str(path))
        return [] if "$" in value or "`" in value else shlex.split(value)

    def tests(self, source, work):
        arguments, _ = self.settings(source)
        root = work / "tests"
        found = sorted(path for path in root.rglob("*") if path.is_file())
        env = {"TIMEOUTFACTOR": str(self.slowest)}
        return [
            Test(
                str(path.relative_to(root)),
                [str(path), *self.arguments_of(path, arguments)],
                env=env,
            )
            for path in found
        ]


SUITES = {
    suite.name: suite
    for suite in (
        Glibc(),
        Bdwgc(),
        Libevent(),
        Libuv(),
        OpenPosix(),
        Ltp(),
        LibcTest(),
        Cpython(),
        Jemalloc(),
        Snmalloc(),
    )
}
