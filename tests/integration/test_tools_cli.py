# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The command lines of the tools: what they take, say and return, and that looking changes nothing."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import struct
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("BUILD") or ROOT / "build").resolve()
RECOVER, INFO, RUN = (str(BUILD / f"pmalloc-{name}") for name in ("recover", "info", "run"))
SHELL = str(BUILD / "apps" / "kvshell")
TOOLS = {"pmalloc-recover": 16, "pmalloc-info": 16, "pmalloc-run": 125}  # status of a wrong line

REPORT = {
    "heap": str,
    "state": str,
    "result": str,
    "roots": int,
    "live_objects": int,
    "live_bytes": int,
    "leaked_objects": int,
    "leaked_bytes": int,
    "reclaimed_bytes": int,
    "slabs": int,
    "morphing": int,
    "extents": int,
    "markers": int,
    "seconds": float,
    "mark_seconds": float,
    "guarantee": str,
}


def clean_environment(**extra):
    keep = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("PMALLOC_")}
    return {**keep, **extra}


def call(*argv, stdin="", cwd=None, **env):
    return subprocess.run(
        [str(a) for a in argv],
        input=stdin,
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )


def one_line(done, tool, status, *parts):
    """The tool failed as it should: status, nothing on standard output, one line that has `parts`."""
    assert done.returncode == status, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith(tool + ": "), done
    assert done.stdout == "", done
    for part in parts:
        assert part in lines[0], done


def fingerprint(directory):
    digest = hashlib.sha256()
    for path in [directory, *sorted(directory.rglob("*"))]:
        info = path.lstat()
        digest.update(f"{path.name} {info.st_mode} {info.st_size} {info.st_blocks} {info.st_mtime_ns} ".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def killed_shell(heap, commands):
    """Runs the key-value shell on a heap and kills it once it has answered."""
    shell = subprocess.Popen(
        [RUN, "-H", str(heap), "-r", "store", SHELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )
    shell.stdin.write(commands)
    shell.stdin.flush()
    assert shell.stdout.readline()
    shell.kill()
    assert shell.wait(60) == -signal.SIGKILL
    shell.stdin.close()
    shell.stdout.close()


@pytest.fixture(name="shm")
def shm_directory():
    with tempfile.TemporaryDirectory(prefix="pmalloc-test-", dir="/dev/shm") as path:
        yield pathlib.Path(path)


@pytest.fixture(scope="module")
def originals():
    """A clean and a dirty heap with the same data, to be copied."""
    with tempfile.TemporaryDirectory(prefix="pmalloc-test-", dir="/dev/shm") as path:
        folder = pathlib.Path(path)
        for commands in ("fill 3000 7\nquit\n", "verify\nquit\n"):  # twice: both root tables are used
            done = call(RUN, "-H", folder / "clean", "-r", "store", SHELL, stdin=commands)
            assert done.returncode == 0, done
        killed_shell(folder / "dirty", "fill 3000 7\n")
        yield folder


@pytest.fixture(name="clean")
def clean_heap(originals, shm):
    return shutil.copytree(originals / "clean", shm / "heap")


@pytest.fixture(name="dirty")
def dirty_heap(originals, shm):
    return shutil.copytree(originals / "dirty", shm / "heap")


# ---- Help, manual pages, wrong lines.


@pytest.mark.parametrize("name", TOOLS)
def test_help_and_man_have_every_option(name):
    helped, man = call(BUILD / name, "--help"), call(BUILD / name, "--man")
    assert helped.returncode == man.returncode == 0
    assert helped.stderr == man.stderr == ""
    options = set(re.findall(r"--[a-z-]+", helped.stdout))
    assert {"--help", "--man", "--version"} < options
    in_man = man.stdout.replace("\\-", "-")
    assert not [option for option in options if option not in in_man]
    assert all(len(line) < 90 for line in helped.stdout.splitlines())
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "SEE ALSO"):
        assert f'.SH "{section}"' in man.stdout


@pytest.mark.parametrize("name", TOOLS)
def test_version(name):
    done = call(BUILD / name, "--version")
    assert done.returncode == 0
    assert re.fullmatch(rf"{name} \(PMAlloc\) \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("argv", [(name, "--man") for name in TOOLS] + [("pmalloc-run", "--man-env")])
@pytest.mark.skipif(not shutil.which("groff"), reason="groff is not installed")
def test_man_pages_are_sound(argv):
    page = call(BUILD / argv[0], argv[1])
    done = call("groff", "-man", "-Tascii", "-ww", "-z", stdin=page.stdout)
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_settings_are_in_help_and_in_their_page():
    page = call(RUN, "--man-env").stdout.replace("\\-", "-")
    settings = set(re.findall(r"PMALLOC_[A-Z_]+", call(RUN, "--help").stdout))
    assert {"PMALLOC_HEAP", "PMALLOC_ROOTS", "PMALLOC_LIMIT", "PMALLOC_STATS"} < settings
    assert page.startswith(".TH LIBPMALLOC 7")
    assert not [name for name in settings if name not in page]


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    "argv, part",
    [
        (["--nonsense"], "--nonsense"),
        (["-X"], "-X"),
        (["--hel"], "--hel"),  # names are not to be cut short
        (["--help=1"], "--help"),
    ],
)
def test_unknown_options(name, argv, part):
    one_line(call(BUILD / name, *argv), name, TOOLS[name], part, f"{name} --help")


@pytest.mark.parametrize(
    "argv",
    [
        ["--check", "--dry-run", "/x"],
        ["--check"],
        ["--dry-run"],
        ["--threads", "2"],
        ["--threads", "0", "/x"],
        ["--threads", "65", "/x"],
        ["--threads", "2x", "/x"],
        ["--threads", "-1", "/x"],
        ["--threads"],
        ["--purge", "/x"],
        ["--purge=most"],
        ["--drop-root", "a"],
        ["--drop-root", "a", "--check", "/x"],
        ["/x", "/y"],
        [""],
    ],
)
def test_wrong_lines_of_recover(argv):
    one_line(call(RECOVER, *argv), "pmalloc-recover", 16)


@pytest.mark.parametrize("argv", [[], ["/x", "/y"], [""], ["--map"]])
def test_wrong_lines_of_info(argv):
    one_line(call(INFO, *argv), "pmalloc-info", 16)


# ---- Reports.


def check_report(text, heap, **wanted):
    report = json.loads(text)
    assert {k: type(v) for k, v in report.items()} == REPORT
    assert report["heap"] == str(heap)
    assert {k: report[k] for k in wanted} == wanted
    return report


def test_check_tells_clean_from_dirty(originals):
    for name, status in (("clean", 0), ("dirty", 1)):
        heap = originals / name
        before = fingerprint(heap)
        done = call(RECOVER, "--check", heap)
        assert (done.returncode, done.stderr) == (status, ""), done
        done = call(RECOVER, "--check", "--json", heap)
        assert done.returncode == status
        result = "clean" if status == 0 else "needs-recovery"
        check_report(done.stdout, heap, state=name, result=result, roots=1)
        assert fingerprint(heap) == before


@pytest.mark.parametrize("name", ["clean", "dirty"])
def test_looking_changes_nothing(originals, name):
    heap = originals / name
    before = fingerprint(heap)
    for argv in ([RECOVER, "--dry-run"], [RECOVER, "--dry-run", "--json"], [INFO], [INFO, "--json", "--map"]):
        done = call(*argv, heap)
        assert (done.returncode, done.stderr) == (0, ""), done
    assert fingerprint(heap) == before


def test_dry_run_foretells_recovery(dirty):
    told = check_report(call(RECOVER, "--dry-run", "--json", dirty).stdout, dirty, result="needs-recovery")
    done = call(RECOVER, "--json", "--threads", "1", dirty)
    assert (done.returncode, done.stderr) == (0, ""), done
    found = check_report(done.stdout, dirty, state="dirty", result="recovered", roots=1, markers=1)
    for key in ("live_objects", "live_bytes", "leaked_objects", "leaked_bytes", "reclaimed_bytes", "slabs"):
        assert told[key] == found[key], key
    again = call(RECOVER, "--json", dirty)
    after = check_report(again.stdout, dirty, state="clean", result="clean", reclaimed_bytes=0)
    assert after["live_objects"] == found["live_objects"] > 6000
    assert call(RECOVER, "--check", dirty).returncode == 0


def test_text_report_names_what_matters(dirty):
    done = call(RECOVER, dirty)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("heap", "state", "roots", "store", "live", "leaked", "reclaimed", "time", "guarantee", "tmpfs"):
        assert word in done.stdout
    data = call(RUN, "-H", dirty, SHELL, stdin="verify\nquit\n")
    assert "ok 3000 keys" in data.stdout, data


def test_dropping_a_root(clean):
    one = call(RECOVER, "--drop-root", "nonsense", clean)
    one_line(one, "pmalloc-recover", 16, "nonsense")
    assert call(RECOVER, "--check", clean).returncode == 0
    done = call(RECOVER, "--drop-root", "store", "--json", clean)
    assert done.returncode == 0, done
    check_report(done.stdout, clean, roots=0, live_objects=0, result="clean")
    assert (clean / "heap.0").stat().st_size == 0


def test_a_damaged_heap_keeps_its_roots(clean):
    patch(clean / "slabs.0", 1, b"\xff")  # of the header of the first slab
    before = fingerprint(clean)
    one_line(call(RECOVER, "--drop-root", "store", clean), "pmalloc-recover", 4, "slabs.0")
    assert fingerprint(clean) == before


def test_info_counts_what_recovery_counts(dirty):
    report = json.loads(call(RECOVER, "--dry-run", "--json", dirty).stdout)
    info = json.loads(call(INFO, "--json", dirty).stdout)
    for key in ("heap", "state", "roots", "live_objects", "live_bytes", "leaked_objects", "guarantee"):
        assert info[key] == report[key], key
    small = sum(c["live"] for c in info["classes"])
    large = sum(b["live"] for b in info["large"])
    assert small + large == info["live_objects"]
    bytes_live = sum(c["live"] * c["size"] for c in info["classes"]) + sum(b["live_bytes"] for b in info["large"])
    assert bytes_live == info["live_bytes"]
    assert info["slabs"] == sum(c["slabs"] for c in info["classes"])
    assert info["extents"] == sum(b["blocks"] for b in info["large"])
    assert info["slab_bytes"] + info["extent_bytes"] + info["free_bytes"] == info["heap_bytes"]
    assert info["heap_bytes"] == (dirty / "heap.0").stat().st_size
    assert info["log_live_entries"] == info["slabs"] + info["extents"]
    assert [root["root"] for root in info["root_table"]] == ["store"]
    assert info["program"]["path"] == SHELL
    assert info["data_bytes"] == (dirty / "heap.0").stat().st_blocks * 512


def test_info_text_and_map(dirty):
    plain, mapped = call(INFO, dirty).stdout, call(INFO, "--map", dirty).stdout
    assert "store" in plain and "format version 1" in plain and "tmpfs" in plain
    assert "\nmap: " not in plain
    cells = mapped.split("\nmap: ")[1].splitlines()[1:]
    assert cells and all(re.fullmatch(r"  [.0-9#LH?]{1,64}", line) for line in cells)


@pytest.mark.parametrize("argv", [[RECOVER, "--check"], [RECOVER], [INFO], [INFO, "--json"]])
def test_a_full_standard_output_is_noticed(clean, argv):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [*argv, str(clean)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(),
            timeout=60,
            check=False,
        )
    assert done.returncode == 8 and "standard output" in done.stderr


# ---- Heaps that are none, or not good.

LOOKS = [[RECOVER, "--check"], [RECOVER, "--dry-run"], [RECOVER], [RECOVER, "--drop-root", "store"], [INFO]]


def refused(heap, status, part):
    """Every way to look at or recover the heap gives one line and the status, and changes nothing."""
    watched = heap.parent
    before = fingerprint(watched)
    for argv in LOOKS:
        one_line(call(*argv, heap), pathlib.Path(argv[0]).name, status, part)
    for tool in (RECOVER, INFO):
        done = call(tool, "--json", heap)
        answer = json.loads(done.stdout)
        assert done.returncode == status
        assert set(answer) == {"heap", "result", "error"}
        assert answer["heap"] == str(heap)
        assert answer["result"] == ("damaged" if status == 4 else "error")
        assert part in answer["error"]
    assert fingerprint(watched) == before


def test_missing(shm):
    refused(shm / "none", 8, "No such file")


def test_no_directory(shm):
    (shm / "file").write_text("x")
    refused(shm / "file", 8, "Not a directory")


def test_empty_and_foreign_directories(shm):
    heap = shm / "other"
    heap.mkdir(mode=0o700)
    refused(heap, 8, "not a PMAlloc heap")
    (heap / "letter.txt").write_text("dear reader")
    refused(heap, 8, "not a PMAlloc heap")


@pytest.mark.parametrize("end", ["", "/", "///"])
def test_symbolic_links(clean, end):
    link = clean.parent / "link"
    link.symlink_to(clean)
    for argv in LOOKS:
        name = pathlib.Path(argv[0]).name
        one_line(call(*argv, f"{link}{end}"), name, 8, "symbolic link")


def test_linked_files(clean):
    (clean / "heap.0").rename(clean.parent / "elsewhere")
    (clean / "heap.0").symlink_to(clean.parent / "elsewhere")
    refused(clean, 8, "heap.0")


def test_writable_by_others(clean):
    clean.chmod(0o777)
    refused(clean, 8, "chmod 700")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_of_another_user(clean):
    os.chown(clean, 12345, 12345)
    refused(clean, 8, "12345")


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


STATE, EPOCH, TABLES = 4096, 4104, 3 * 4096  # in the superblock
CHUNK = 4096  # the first one of the log


@pytest.mark.parametrize("name", ["heap.0", "slabs.0", "booklog.0", "roots", "morph.0"])
def test_missing_files(clean, name):
    (clean / name).unlink()
    refused(clean, 4, name)


@pytest.mark.parametrize(
    "name, size",
    [
        ("superblock", 0),
        ("superblock", 4096),
        ("superblock", 184319),
        ("booklog.0", 0),
        ("booklog.0", 100),
        ("heap.0", 4096),
        ("heap.0", 5000),
        ("slabs.0", 0),
        ("roots", 0),
    ],
)
def test_short_files(clean, name, size):
    os.truncate(clean / name, size)
    refused(clean, 4, str(clean))


@pytest.mark.parametrize(
    "name, offset, data, part",
    [
        ("superblock", 0, b"NOTMINE!", "not PMAlloc's"),
        ("superblock", 8, struct.pack("<I", 2), "version 2"),
        ("superblock", 24, struct.pack("<Q", 2), "features 2"),
        ("superblock", 60, b"\xaa", "checksum"),
        ("superblock", STATE, b"\x00", "neither clean nor dirty"),
        ("superblock", EPOCH, struct.pack("<Q", 77), "root table"),
        ("superblock", STATE + 16, b"\x77", "no such record"),
        ("superblock", 8192, struct.pack("<Q", 0), "root slot 0"),
        ("superblock", EPOCH, struct.pack("<Q", 0), "root table"),
        ("booklog.0", 0, b"\x00", "bookkeeping log"),
        ("booklog.0", 16, struct.pack("<Q", 5), "epoch"),
        ("booklog.0", CHUNK + 7, b"\x01", "epoch"),
        ("booklog.0", CHUNK + 8, struct.pack("<I", 9), "chunk"),
        ("booklog.0", CHUNK + 16, struct.pack("<Q", 1 << 40), "entry"),
        ("booklog.0", CHUNK + 16, struct.pack("<Q", (1 << 60) | 1), "entry"),
        ("slabs.0", 0, b"\x00", "slab 0"),
        ("slabs.0", 2, b"\x25", "slab 0"),
        ("slabs.0", 8, b"\x01", "slab 0"),
    ],
)
def test_damage(clean, name, offset, data, part):
    patch(clean / name, offset, data)
    refused(clean, 4, part)


def test_root_table_damage(clean):
    with open(clean / "superblock", "rb") as file:
        epoch = struct.unpack_from("<Q", file.read(), EPOCH)[0]
    table = TABLES + 86016 * (epoch & 1)
    patch(clean / "superblock", table + 64 + 20, b"\x55")
    refused(clean, 4, "root table")


def test_busy(shm):
    heap = shm / "heap"
    shell = subprocess.Popen(
        [RUN, "-H", str(heap), "-r", "store", SHELL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
        text=True,
    )
    try:
        shell.stdin.write("set a b\n")
        shell.stdin.flush()
        shell.stdout.readline()
        for argv in LOOKS:
            name = pathlib.Path(argv[0]).name
            one_line(call(*argv, heap), name, 8, f"process {shell.pid};")
    finally:
        shell.communicate("quit\n", timeout=60)
    assert call(RECOVER, "--check", heap).returncode == 0


def test_tools_do_not_run_on_a_heap_of_their_own(clean):
    before = fingerprint(clean)
    for tool in (RECOVER, INFO):
        done = call(tool, clean, LD_PRELOAD=f"{BUILD}/libpmalloc_preload.so", PMALLOC_BACKING="volatile")
        one_line(done, os.path.basename(tool), 8, "LD_PRELOAD")
    assert fingerprint(clean) == before


# ---- The default heaps, in a /dev/shm of the test's own.


def private_shm(script):
    """Runs a shell script where /dev/shm is empty and nobody else's; its output."""
    inner = f"mount -t tmpfs tmpfs /dev/shm && umask 077 && {{ {script}\n}}"
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        if call(*how, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm").returncode == 0:
            done = call(*how, "sh", "-ec", inner)
            assert done.returncode == 0, done
            return done.stdout
    return pytest.skip("no mount namespaces here: the user's own default heaps are not for tests")


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
$preload sh -c 'kill -9 $$' 2>/dev/null || :      # dirty, without roots: late, as a later start would take it away
mkdir $heaps/remnant && : > $heaps/remnant/heap.0 # and this
finish() {{ exec 3>&-; wait; }}
"""


def states(line):
    found = json.loads(line)
    return {os.path.basename(heap["heap"]): (heap["state"], heap["removed"]) for heap in found["heaps"]}


def test_list_of_default_heaps():
    text = private_shm(f"{HEAPS} {RECOVER}; echo =; {RECOVER} --json; finish; {RECOVER} --json; ls $heaps/*")
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
    text = private_shm(f"{HEAPS} {RECOVER} --purge --json; finish; {RECOVER} --purge=all --json; ls $heaps")
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


def test_no_default_heaps():
    text = private_shm(f"{RECOVER}; {RECOVER} --purge; {RECOVER} --json; ls /dev/shm")
    lines = text.splitlines()
    assert lines[0].startswith("no default heaps") and lines[1] == lines[0]
    assert json.loads(lines[2])["heaps"] == [] and len(lines) == 3


# ---- pmalloc-run.


def compiled(path, *flags):
    source = path.with_suffix(".c")
    source.write_text("int main(void) { return 7; }\n")
    subprocess.run([os.environ.get("CC") or "gcc", "-o", path, source, *flags], check=True, timeout=60)
    return path


@pytest.mark.parametrize(
    "argv, part",
    [
        ([], "program"),
        (["-s", "LIMIT", "true"], "NAME=VALUE"),
        (["-s", "=1", "true"], "NAME=VALUE"),
        (["-s", "LIMIT=lots", "true"], "PMALLOC_LIMIT=lots"),
        (["-s", "NONSENSE=1", "true"], "PMALLOC_NONSENSE"),
        (["-s", "limit=1G", "true"], "PMALLOC_limit"),
        (["-H", "", "true"], "PMALLOC_HEAP"),
        (["-r", "a,,b", "true"], "PMALLOC_ROOTS"),
        (["-r", "@/nonexistent", "true"], "PMALLOC_ROOTS"),
        (["-H"], "-H"),
    ],
)
def test_own_failures_of_run(argv, part):
    one_line(call(RUN, *argv), "pmalloc-run", 125, part)


def test_wrong_settings_of_the_environment():
    one_line(call(RUN, "true", PMALLOC_NONSENSE="1"), "pmalloc-run", 125, "PMALLOC_NONSENSE")
    one_line(call(RUN, "true", PMALLOC_LIMIT="1"), "pmalloc-run", 125, "PMALLOC_LIMIT=1")


def test_programs_not_found(shm):
    for name in ("no-such-program", "./no-such-program", shm / "none", ""):
        one_line(call(RUN, "--", name, cwd=shm), "pmalloc-run", 127)


def test_programs_that_cannot_run(shm):
    plain = shm / "plain"
    plain.write_text("x")
    plain.chmod(0o600)
    one_line(call(RUN, plain), "pmalloc-run", 126, "Permission denied")
    one_line(call(RUN, "plain", PATH=str(shm)), "pmalloc-run", 126, "Permission denied")
    one_line(call(RUN, shm), "pmalloc-run", 126, "Permission denied")
    script = shm / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    one_line(call(RUN, script), "pmalloc-run", 126, "/no/such/interpreter")


def test_static_programs_are_refused(shm):
    for flags in (["-static"], ["-static-pie"]):
        one_line(call(RUN, compiled(shm / "static", *flags)), "pmalloc-run", 126, "static")
    assert call(RUN, "-s", "BACKING=volatile", compiled(shm / "dynamic")).returncode == 7


def test_setuid_programs_are_refused(shm):
    for bit, part in ((stat.S_ISUID, "set-user-ID"), (stat.S_ISGID, "set-group-ID")):
        program = compiled(shm / "privileged")
        program.chmod(0o755 | bit)
        one_line(call(RUN, program), "pmalloc-run", 126, part)


def test_status_and_arguments_pass_through():
    done = call(RUN, "-s", "BACKING=volatile", "sh", "-c", 'echo "$0|$1|$2"; exit 42', "-H", "--help", "a b")
    assert (done.returncode, done.stdout, done.stderr) == (42, "-H|--help|a b\n", "")
    done = call(RUN, "-s", "BACKING=volatile", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == -signal.SIGKILL


def test_environment_of_the_program(shm):
    (shm / "roots.txt").write_text("# none\n")
    done = call(
        *[RUN, "-H", "heap", "-r", "@roots.txt", "-s", "LIMIT=1G", "-s", "PMALLOC_MARKERS=2", "env"],
        cwd=shm,
        PMALLOC_STATS="0",
        LD_PRELOAD="libdl.so.2",
    )
    assert done.returncode == 0, done
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["PMALLOC_HEAP"] == str(shm / "heap")
    assert seen["PMALLOC_ROOTS"] == f"@{shm}/roots.txt"
    assert seen["PMALLOC_LIMIT"] == "1G" and seen["PMALLOC_MARKERS"] == "2"
    assert seen["PMALLOC_STATS"] == "0"
    assert seen["LD_PRELOAD"] == f"{BUILD}/libpmalloc_preload.so:libdl.so.2"
    nested = call(RUN, "-s", "BACKING=volatile", RUN, "env")
    assert nested.stdout.count("libpmalloc_preload.so") == 1, nested


def test_addresses_are_not_randomised():
    done = call(RUN, "-s", "BACKING=volatile", "cat", "/proc/self/personality")
    if "cannot be switched off" in done.stderr:
        pytest.skip("personality(2) is forbidden here")
    assert int(done.stdout, 16) & 0x40000, done


def test_scripts_run_with_a_note(shm):
    script = shm / "script"
    script.write_text("#!/bin/sh\nexit 9\n")
    script.chmod(0o700)
    done = call(RUN, "-H", shm / "heap", script)
    assert done.returncode == 9
    assert done.stderr.count("\n") == 1 and "/bin/sh" in done.stderr
    shell = os.path.basename(os.path.realpath("/bin/sh"))
    done = call(RUN, "-H", shm / "heap", "-s", f"PROGRAM={shell}", script)
    assert (done.returncode, done.stderr) == (9, "")


def test_finds_its_library_when_installed(shm):
    (shm / "bin").mkdir()
    run = shutil.copy(RUN, shm / "bin")
    one_line(call(run, "true"), "pmalloc-run", 125, "libpmalloc_preload.so")
    (shm / "lib").mkdir()
    library = shutil.copy(BUILD / "libpmalloc_preload.so", shm / "lib")
    done = call(run, "-s", "BACKING=volatile", "env")
    assert done.returncode == 0, done
    preloaded = re.search(r"^LD_PRELOAD=(.*)$", done.stdout, re.MULTILINE)[1]
    assert os.path.samefile(preloaded, library)
