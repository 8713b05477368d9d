# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What people install: Debian's packages in a bare system, the tarball, bash completion, the
systemd drop-in.

PACKAGES=twice: build the packages with their own flags, and with their debug symbols; then a second
time, elsewhere and otherwise, and compare the bytes."""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile

import pytest

from conftest import BUILD, ROOT, lacks, needs

PACKAGE = ROOT / "scripts" / "package"
TOOLS = ("dpkg-buildpackage", "dh", "lintian")
OURS = ("libpmalloc0", "libpmalloc-dev", "pmalloc")
TWICE = os.environ.get("PACKAGES") == "twice"
# What is packed where is the same. With make's own flags there is nothing left to compile.
QUICK = {} if TWICE else {"DEB_CFLAGS_SET": "-O2 -g", "DEB_CPPFLAGS_SET": "", "DEB_LDFLAGS_SET": "",
                          "DEB_BUILD_OPTIONS": "noautodbgsym", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
BUILT = () if TWICE else ("--built", BUILD)
# These flags are Debian's.
OF_QUICK = () if TWICE else ("hardening-no-fortify-functions", "hardening-no-bindnow")


def environment(**more):
    """Only what a build may depend on; the test's own settings of make do not count."""
    kept = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    return {**kept, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **more}


def run(*argv, env=None):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False,
                          env=env or environment())


def succeeds(*argv, env=None):
    done = run(*argv, env=env)
    assert done.returncode == 0, done
    return done


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    for tool in TOOLS:
        needs(tool)
    unmet = run("dpkg-checkbuilddeps", ROOT / "scripts/debian/control")
    if unmet.returncode != 0:
        lacks(unmet.stderr.strip().rsplit(": ", 1)[-1])
    folder = tmp_path_factory.mktemp("packages")
    subprocess.run([PACKAGE, "--output", folder, *BUILT, "deb"], check=True,
                   env=environment(**QUICK), stdout=subprocess.DEVNULL)
    return {re.match(r"[^_]*", path.name)[0]: path for path in folder.glob("*.deb")}


def test_lintian_finds_nothing(packages):
    changes = next(packages["pmalloc"].parent.glob("*.changes"))
    # Each release's lintian knows its own standards version alone.
    suppressed = ("out-of-date-standards-version", "newer-standards-version", *OF_QUICK)
    done = run("lintian", "--allow-root", "--info", "--display-info", "--fail-on", "info",
               "--suppress-tags", ",".join(suppressed), changes)
    assert (done.returncode, done.stdout) == (0, ""), done
    named = set(packages) - {"libpmalloc0-dbgsym", "pmalloc-dbgsym"}
    assert named == set(OURS)


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.iterdir() if path.suffix in (".deb", ".gz", ".xz")}


@pytest.mark.skipif(not TWICE, reason="PACKAGES=twice builds again")
def test_the_same_sources_give_the_same_packages(packages, tmp_path):
    """Another folder, clock, language, mask and number of processors."""
    copy = tmp_path / "elsewhere"
    first = packages["pmalloc"].parent
    with tarfile.open(next(first.glob("*.orig.tar.gz"))) as tar:
        tar.extractall(copy)
    again = next(copy.iterdir()) / "scripts" / "package"
    out = tmp_path / "out"
    done = subprocess.run(
        ["taskset", "1", again, "--output", out, "deb"],
        capture_output=True,
        text=True,
        umask=0o077,
        env=environment(LC_ALL="C.UTF-8", TZ="Pacific/Kiritimati", USER="someone"),
    )
    assert done.returncode == 0, done.stderr
    assert digests(out) == digests(first)


# ---- a bare system ------------------------------------------------------------------------------


def copy_packages(packages, root):
    """Copies the files of installed packages to where a merged /usr has them."""
    names = succeeds("dpkg-query", "-L", *packages).stdout.splitlines()
    names = {re.sub(r"^/(bin|sbin|lib|lib64)/", r"/usr/\1/", name)[1:] for name in names if name}
    files = [name for name in sorted(names) if os.path.lexists(f"/{name}") and
             not UNNEEDED.match(name) and
             (os.path.islink(f"/{name}") or os.path.isfile(f"/{name}"))]
    tar = subprocess.run(["tar", "-C/", "-c", *files], stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-C", root, "-x"], input=tar.stdout, check=True)


def status_of(package):
    return succeeds("dpkg-query", "-s", package).stdout.rstrip("\n") + "\n\n"


UNNEEDED = re.compile(r"usr/share/(?!debconf)|usr/lib/x86_64-linux-gnu/gconv|lib(64)?$|s?bin$")
BARE = ("bash", "coreutils", "dash", "diffutils", "dpkg", "grep", "libc-bin", "sed", "tar")


def names_in(field):
    """[[name, alternative ...] ...] of a field of dependencies, without versions."""
    return [re.findall(r"(?:^|\|)\s*([a-z0-9][a-z0-9+.-]*)", one) for one in field.split(",")
            if one.strip()]


def with_dependencies(wanted):
    """The installed packages that these names need, by this release's own names."""
    form = "${Package}\t${db:Status-Status}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    depends, provider = {}, {}
    for line in succeeds("dpkg-query", "-W", "-f", form).stdout.splitlines():
        name, status, needed, provided = line.split("\t")
        if status == "installed":
            depends[name] = names_in(needed)
            provider.update((other[0], name) for other in names_in(provided))
    found, waiting = set(), [[name] for name in wanted]
    while waiting:
        here = [name if name in depends else provider.get(name) for name in waiting.pop()]
        here = next((name for name in here if name), None)
        if here and here not in found:
            found.add(here)
            waiting += depends[here]
    return sorted(found)


@pytest.fixture(scope="module")
def chroot(packages, tmp_path_factory):
    """A system with a shell, coreutils, dpkg and our packages, which dpkg has installed."""
    if os.geteuid() != 0:
        pytest.skip("chroot needs root")
    root = tmp_path_factory.mktemp("chroot")
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "dev/shm", "proc", "tmp",
                 "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    fields = [succeeds("dpkg-deb", "-f", packages[name], "Depends").stdout for name in OURS]
    needed = [names[0] for field in fields for names in names_in(field)]
    here = with_dependencies([*BARE, *(name for name in needed if name not in OURS)])
    copy_packages(here, root)
    (root / "var/lib/dpkg/status").write_text("".join(map(status_of, here)))
    (root / "var/lib/dpkg/available").touch()
    for name in here:
        (root / "var/lib/dpkg/info" / f"{name}.list").touch()
    wanted = [str(packages[name]) for name in OURS]
    done = run("dpkg", f"--root={root}", "--force-unsafe-io", "--install", *wanted)
    assert done.returncode == 0, done.stderr
    return root


def inside(root, script):
    return run("unshare", "--mount", "sh", "-c",
               f'mount -t proc proc "{root}/proc" && mount -t tmpfs tmpfs "{root}/dev/shm" && '
               f'exec chroot "{root}" sh -ec "$1"', "sh", script)


def test_works_in_a_bare_system(chroot):
    shutil.copy(BUILD / "apps" / "kvshell", chroot / "usr/bin")
    done = inside(chroot, """
        test "$(LD_PRELOAD=libpmalloc_preload.so ls -d .)" = .
        echo 'set colour blue' | pmalloc-run -H /dev/shm/shop -r store kvshell
        echo 'get colour' | pmalloc-run -H /dev/shm/shop kvshell
        pmalloc-recover --check /dev/shm/shop | grep result
        pmalloc-info /dev/shm/shop | grep -c store
        pmalloc-backup /dev/shm/shop /tmp/copy > /tmp/log
        pmalloc-recover --check /tmp/copy | grep -o clean
    """)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert lines[:2] == ["ok", "blue"] and "clean" in lines[2] and lines[-1] == "clean", lines


def test_stands_in_for_libgc_when_asked(chroot):
    """The system has no libgc, and nothing of ours is taken for it."""
    shutil.copy(needs("mmv"), chroot / "usr/bin")
    done = inside(chroot, """
        ldconfig
        cd /tmp && touch wash.txt iron.txt
        mmv '*.txt' '#1.done' && exit 9
        pmalloc-run --gc mmv '*.txt' '#1.done'
        ls *.txt *.done || true
    """)
    assert done.returncode == 0 and done.stderr.count("libgc.so.1") == 1, done
    assert done.stdout.split() == ["iron.done", "wash.done"], done


def test_a_program_is_built_with_the_package(chroot, packages, tmp_path):
    """By pkg-config alone; it runs where only the library is installed."""
    source = tmp_path / "generation.c"
    source.write_text(
        "#include <pmalloc.h>\n#include <stdio.h>\n"
        'int main(void) { return !printf("%s %d\\n", pmalloc_version(), !pmalloc_heap_path()); }\n'
    )
    env = environment(PKG_CONFIG_SYSROOT_DIR=str(chroot),
                      PKG_CONFIG_LIBDIR=f"{chroot}/usr/lib/x86_64-linux-gnu/pkgconfig")
    flags = succeeds("pkg-config", "--cflags", "--libs", "libpmalloc", env=env).stdout.split()
    program = chroot / "usr/bin/generation"
    succeeds("gcc", "-Wall", "-Werror", source, "-o", program, *flags)
    done = inside(chroot, "PMALLOC_HEAP=/dev/shm/own generation; dpkg-query -W libpmalloc0")
    version = re.search(r"libpmalloc0\S*\s(\S+)-", done.stdout)[1]
    assert done.stdout.splitlines()[0] == f"{version} 0", done


def test_each_example_is_built_with_the_package(chroot, packages, tmp_path):
    """And the one that uses pmalloc.h counts on after each run."""
    subprocess.run(["dpkg", "-x", packages["libpmalloc-dev"], tmp_path], check=True)
    folder = tmp_path / "usr/share/doc/libpmalloc-dev/examples"
    for packed in folder.glob("*.gz"):
        subprocess.run(["gunzip", packed], check=True)
    env = environment(PKG_CONFIG_SYSROOT_DIR=str(chroot),
                      PKG_CONFIG_LIBDIR=f"{chroot}/usr/lib/x86_64-linux-gnu/pkgconfig")
    flags = succeeds("pkg-config", "--cflags", "--libs", "libpmalloc", env=env).stdout.split()
    for source in folder.glob("*.c"):
        succeeds("gcc", "-Wall", "-Wextra", "-Werror", source, "-o", source.with_suffix(""),
                 *(flags if "pmalloc.h" in source.read_text() else ["-lm"]))
    for source in folder.glob("*.cc"):
        succeeds("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pthread", source, "-o",
                 source.with_suffix(""))
    shutil.copy(folder / "visits", chroot / "usr/bin")
    done = inside(chroot, """
        export PMALLOC_HEAP=/dev/shm/visits
        for name in Ada Grace Ada; do visits $name > /dev/null; done
        visits
        pmalloc-recover --check /dev/shm/visits | grep -o '^result.*clean' | grep -o clean
    """)
    assert done.stdout.splitlines() == ["Grace 1", "Ada 2", "3 in all", "clean"], done


def test_what_is_removed_leaves_nothing(packages, chroot, tmp_path):
    root = tmp_path / "removed"
    subprocess.run(["cp", "-a", chroot, root], check=True)
    done = run("dpkg", f"--root={root}", "--force-unsafe-io", "--purge",
               *reversed(OURS))
    assert done.returncode == 0, done.stderr
    left = [path for path in root.rglob("*pmalloc*") if not path.is_relative_to(root / "var")]
    assert left == []


# ---- what else is installed ---------------------------------------------------------------------


def test_make_install_from_the_tarball(tmp_path):
    """The tarball has all that a build needs, and nothing that is built."""
    done = succeeds(PACKAGE, "--output", tmp_path, "tarball")
    with tarfile.open(done.stdout.strip()) as tar:
        names = tar.getnames()
        tar.extractall(tmp_path / "tree")
    tree = next((tmp_path / "tree").iterdir())
    packed = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert len(packed) == len(names)
    known = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]
    kept = subprocess.run(known, capture_output=True, text=True, check=False)
    if kept.returncode == 0:  # else this is a tree from a tarball itself
        kept = set(kept.stdout.splitlines())
        assert packed <= kept, packed - kept
        assert all(name.startswith(".") for name in kept - packed), kept - packed
    stage = tmp_path / "stage"
    made = run("make", "-s", "-C", tree, "-n", "install", "PREFIX=/usr", f"DESTDIR={stage}")
    assert made.returncode == 0 and "install -m 755" in made.stdout, made
    for name in ("README.md", "LICENSE", "scripts/test", "tests/unit", "docs/reference.md"):
        assert (tree / name).exists(), name


def test_what_make_install_has_put_there_works_and_goes(tmp_path):
    """In places of the user's, and with nothing else; the links of the library lead to it."""
    version = re.search(r'PM_VERSION "(.*)"', (ROOT / "preload/version.h").read_text())[1]
    prefix, library = tmp_path / "pm", tmp_path / "pm" / "lib64"
    make = ("make", "-s", "-C", ROOT, "-o", "installed-files", f"BUILD={BUILD}",
            f"PC={tmp_path}/libpmalloc.pc", f"PREFIX={prefix}", f"LIBDIR={library}")
    succeeds(*make, tmp_path / "libpmalloc.pc")
    succeeds(*make, "install")
    real = library / f"libpmalloc.so.0.{version}"
    assert not real.is_symlink()
    for name in ("libpmalloc.so", "libpmalloc.so.0"):
        assert (library / name).resolve() == real
    env = environment(PKG_CONFIG_LIBDIR=str(library / "pkgconfig"))
    assert succeeds("pkg-config", "--modversion", "libpmalloc", env=env).stdout == version + "\n"
    flags = succeeds("pkg-config", "--cflags", "--libs", "libpmalloc", env=env).stdout.split()
    source = tmp_path / "says.c"
    source.write_text("#include <pmalloc.h>\n#include <stdio.h>\n"
                      "int main(void) { return puts(pmalloc_version()) < 0; }\n")
    succeeds("gcc", "-Wall", "-Werror", source, "-o", tmp_path / "says", *flags)
    env = environment(LD_LIBRARY_PATH=str(library), PMALLOC_HEAP=str(tmp_path / "heap"))
    assert succeeds(tmp_path / "says", env=env).stdout == version + "\n"
    succeeds(*make, "uninstall")
    left = [path for path in prefix.rglob("*") if not path.is_dir() or "pmalloc" in path.name]
    assert left == []


def complete(*words):
    """What bash offers for the last word."""
    script = f"""
        PATH={BUILD}:$PATH
        . {ROOT}/tools/completion.bash
        compopt() {{ :; }}
        COMP_WORDS=("$@")
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _pmalloc "$1"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return succeeds("bash", "-c", script, "bash", *words).stdout.split()


def test_completion_knows_options_settings_and_places(tmp_path):
    assert "--dry-run" in complete("pmalloc-recover", "--")
    assert complete("pmalloc-info", "--med") == ["--medium"]
    assert complete("pmalloc-run", "-s", "COLL") == ["COLLECT="]
    assert complete("pmalloc-run", "-s", "PMALLOC_B") == \
        [f"PMALLOC_{name}" for name in complete("pmalloc-run", "-s", "B")]
    assert {"PERSIST=", "PMALLOC_BUSY="} <= set(complete("pmalloc-run", "-s", "P"))
    assert not [name for name in complete("pmalloc-run", "-s", "") if "PMALLOC_" in name]
    for value in (("=",), ("=", "")):
        assert {"fail", "wait"} == set(complete("pmalloc-run", "-s", "BUSY", *value))
    assert complete("pmalloc-run", "-H", "x", "--set", "PMALLOC_COMMIT", "=", "o") == ["output"]
    assert complete("pmalloc-run", "-s", "LIMIT", "=", "l") == []
    assert complete("pmalloc-run", "-r", "l") == []
    (tmp_path / "heap").mkdir()
    (tmp_path / "hair").touch()
    places = [f"{tmp_path}/hair", f"{tmp_path}/heap"]
    for words in (["pmalloc-recover"], ["pmalloc-info"], ["pmalloc-run", "-H"]):
        assert sorted(complete(*words, f"{tmp_path}/h")) == places
    assert complete("pmalloc-info", f"{tmp_path}/ha") == [f"{tmp_path}/hair"]
    assert "sleep" in complete("pmalloc-run", "-H", "x", "slee")
    assert "sleep" in complete("pmalloc-run", "-s", "BUSY", "=", "wait", "slee")
    assert "--verify" not in complete("pmalloc-run", "-H", "x", "ls", "--ver")


def test_every_tool_is_completed():
    tools = {path.stem for path in (ROOT / "tools").glob("pmalloc-*.c")}
    last = (ROOT / "tools" / "completion.bash").read_text().rstrip().rsplit("\n", 1)[1]
    assert set(last.split()[3:]) == tools


def test_systemd_takes_the_drop_in(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    unit = tmp_path / "keeper.service"
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "keeper.service.d").mkdir()
    shutil.copy(ROOT / "tools" / "persistent-heap.conf", tmp_path / "keeper.service.d")
    done = run("systemd-analyze", "verify", "--man=no", unit)
    # Of the units that it reads besides, another package's may have settings of older releases.
    ours = [line for line in done.stderr.splitlines() if not line.startswith("/usr/lib/systemd/")]
    assert done.returncode == 0 and not ours, done.stderr


def heap_of(service):
    """The heap's path and the state directory, as systemd's specifiers name them."""
    text = (ROOT / "tools" / "persistent-heap.conf").read_text()
    for specifier, value in (("%N", service), ("%p", service.split("@")[0]), ("%S", "/var/lib")):
        text = text.replace(specifier, value)
    assert not re.search(r"^[^#].*%", text, re.MULTILINE)
    return (re.search(r"^Environment=PMALLOC_HEAP=(.*)$", text, re.MULTILINE)[1],
            "/var/lib/" + re.search(r"^StateDirectory=(.*)$", text, re.MULTILINE)[1])


def test_each_service_and_each_instance_has_a_heap_of_its_own():
    """One process at a time writes a heap."""
    for service in ("keeper", "keeper@1", "keeper@2"):
        place = f"/var/lib/pmalloc/{service}"
        assert heap_of(service) == (f"{place}/heap", place)
