# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What is promised to programs that were built with an earlier release (scripts/check-abi), and
where the number of a release stands. Each kind of break is made, and must be noticed."""

import re
import shutil
import subprocess

import pytest

from conftest import BUILD, CC, ROOT, run, tool

CHECK = ROOT / "scripts" / "check-abi"
RECORD = ROOT / "preload" / "libpmalloc.abi"
EXPORTS = re.findall(r"^export (.*)$", RECORD.read_text(), re.MULTILINE)
LIBRARIES = ("libpmalloc.so", "libpmalloc_preload.so", "pmalloc-libgc/libpmalloc_gc.so")
NODE = "@@PMALLOC_1.0"


def release():
    return re.search(r'PM_VERSION "(.*)"', (ROOT / "preload/version.h").read_text())[1]


def check(*options):
    done = subprocess.run([CHECK, *map(str, options)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert (done.returncode == 0) == (done.stdout == ""), done
    return done.stdout.splitlines()


@pytest.mark.check
def test_what_is_built_is_what_is_recorded():
    assert check("--libraries", BUILD) == []


def test_what_cannot_be_looked_at_is_no_success(tmp_path):
    done = subprocess.run([CHECK, "--libraries", tmp_path], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("check-abi: readelf failed")


# ---- libraries that are none of ours, with the names of ours ------------------------------------


def make_library(path, exports, soname):
    """Names with versions, and without, as the record has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source, script = path.with_suffix(".c"), path.with_suffix(".map")
    split = [name.partition("@@")[::2] for name in exports]
    source.write_text("".join(f"void {name}(void) {{}}\n" for name, _ in split))
    nodes = sorted({node for _, node in split} - {""})
    script.write_text("".join(
        f"{node} {{ global: {' '.join(f'{name};' for name, of in split if of == node)} }};\n"
        for node in nodes
    ))
    options = [f"-Wl,--version-script={script}"] if nodes else []
    subprocess.run([CC, "-w", "-fno-builtin", "-nostdlib", "-shared", "-fPIC",
                    f"-Wl,-soname,{soname}", *options, "-o", path, source], check=True)


def make_libraries(folder, exports, soname="libpmalloc.so.0", others=None):
    names = (soname, "libpmalloc_preload.so", "libgc.so.1")
    for at, (library, name) in enumerate(zip(LIBRARIES, names)):
        make_library(folder / library, exports if at == 0 else others or exports, name)
    return check("--libraries", folder)


def renamed(old, new):
    assert old in EXPORTS
    return [new if name == old else name for name in EXPORTS]


def test_libraries_with_all_names_pass(tmp_path):
    assert make_libraries(tmp_path, EXPORTS) == []


@pytest.mark.parametrize("name", ["pmalloc_walk" + NODE, "malloc_usable_size"])
def test_a_name_that_is_gone_is_noticed(tmp_path, name):
    left = [other for other in EXPORTS if other != name]
    assert f"check-abi: gone or changed: export {name}" in make_libraries(tmp_path, left)


def test_a_name_without_a_version_is_noticed(tmp_path):
    said = make_libraries(tmp_path, renamed("pmalloc_walk" + NODE, "pmalloc_walk"))
    assert "check-abi: pmalloc_walk has no version: add it to preload/preload.map" in said
    said = make_libraries(tmp_path, renamed("malloc", "malloc" + NODE))
    assert any(line.startswith(f"check-abi: malloc{NODE} has a version") for line in said)


def test_a_name_in_another_version_is_noticed(tmp_path):
    """Programs ask for the name in the version that they were linked with."""
    said = make_libraries(tmp_path, renamed("pmalloc_walk" + NODE, "pmalloc_walk@@PMALLOC_1.9"))
    assert f"check-abi: gone or changed: export pmalloc_walk{NODE}" in said
    assert any("PMALLOC_1.9: this is release" in line for line in said)


def test_a_new_name_and_another_soname_are_noticed(tmp_path):
    said = make_libraries(tmp_path, [*EXPORTS, "pmalloc_new" + NODE], soname="libpmalloc.so.7")
    assert "check-abi: gone or changed: soname libpmalloc.so libpmalloc.so.0" in said
    assert any(f"export pmalloc_new{NODE}" in line for line in said)


def test_libraries_with_different_names_are_noticed(tmp_path):
    said = make_libraries(tmp_path, EXPORTS, others=EXPORTS[1:])
    assert said == [
        f"check-abi: libpmalloc_preload.so and libpmalloc.so differ: {EXPORTS[0]}",
        f"check-abi: libpmalloc_gc.so lacks {EXPORTS[0]}",
    ]


# ---- headers ------------------------------------------------------------------------------------

FIELDS = "    uint64_t value;\n    uint64_t reserved[5];\n"
HEADERS = {
    "a longer struct": (FIELDS, FIELDS + "    int more;\n", "type pmalloc_op: 64 bytes"),
    "an earlier field": (FIELDS, "    uint64_t reserved[5];\n    uint64_t value;\n",
                         "member pmalloc_op::value at 16: uint64_t"),
    "another type": ("    uint64_t value;\n", "    double value;\n",
                     "member pmalloc_op::value at 16: uint64_t"),
    "an alignment": ("typedef struct pmalloc_op {", "typedef struct __attribute__((aligned(64))) "
                     "pmalloc_op {", "type pmalloc_op: 64 bytes"),
    "a parameter": ("void pmalloc_flush(const void *p, size_t n);",
                    "void pmalloc_flush(const void *p, int n);",
                    "function void pmalloc_flush (const void *, size_t)"),
    "a result": ("void pmalloc_drain(void);", "int pmalloc_drain(void);",
                 "function void pmalloc_drain (void)"),
    "a callback": ("pmalloc_walk_fn(void *p, size_t size, unsigned flags",
                   "pmalloc_walk_fn(void *p, size_t size, size_t flags",
                   "type pmalloc_walk_fn: int (void *, size_t, unsigned int, void *)"),
    "a constant": ("#define PMALLOC_PINNED 8u", "#define PMALLOC_PINNED 16u",
                   "constant PMALLOC_PINNED 8u"),
    "a name": ("#define PMALLOC_FLUSHED 2u", "#define PMALLOC_DURABLE 2u",
               "constant PMALLOC_FLUSHED 2u"),
}


def copied_headers(folder):
    shutil.copytree(ROOT / "preload", folder, ignore=lambda _, names: [
        name for name in names if not name.endswith((".h", ".hpp"))])
    return folder


def change(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))


def test_a_copy_of_the_headers_passes(tmp_path):
    headers = copied_headers(tmp_path / "headers")
    assert check("--libraries", BUILD, "--headers", headers) == []


@pytest.mark.parametrize("what", HEADERS)
def test_a_changed_header_is_noticed(tmp_path, what):
    headers = copied_headers(tmp_path / "headers")
    old, new, line = HEADERS[what]
    change(headers / "pmalloc.h", old, new)
    said = check("--libraries", BUILD, "--headers", headers)
    assert f"check-abi: gone or changed: {line}" in said, said


def test_a_changed_class_is_noticed(tmp_path):
    headers = copied_headers(tmp_path / "headers")
    change(headers / "pmalloc.hpp", "    T *p_;\n", "    int more_ = 0;\n    T *p_;\n")
    change(headers / "pmalloc.hpp", "sizeof(ptr<int>) ==", "sizeof(ptr<int>) >=")
    said = check("--libraries", BUILD, "--headers", headers)
    assert "check-abi: gone or changed: type pm::ptr<int>: 8 bytes" in said
    assert "check-abi: gone or changed: member pm::ptr<int>::p_ at 0: int *" in said


# ---- the record ---------------------------------------------------------------------------------


def record_with(tmp_path, number, exports, **more):
    """What --record says of libraries with these names in release `number`; the record then."""
    headers = copied_headers(tmp_path / "headers")
    change(headers / "version.h", f'"{release()}"', f'"{number}"')
    file = tmp_path / "record"
    shutil.copy(RECORD, file)
    make_libraries(tmp_path, exports, **more)
    said = check("--record", "--libraries", tmp_path, "--headers", headers, "--file", file)
    if said:
        assert file.read_bytes() == RECORD.read_bytes()
    return said, file.read_text()


def test_a_minor_release_may_add_names_in_a_version_of_their_own(tmp_path):
    said, text = record_with(tmp_path, "1.1.0", [*EXPORTS, "pmalloc_new@@PMALLOC_1.1"])
    assert said == [] and "\nexport pmalloc_new@@PMALLOC_1.1\n" in text
    assert set(RECORD.read_text().splitlines()) < set(text.splitlines())


@pytest.mark.parametrize("number, node, why", [
    ("1.0.1", "1.0", "new in a patch release"),
    ("1.1.0", "1.0", "new in the version of an earlier release"),
    ("1.1.0", "1.2", "this is release 1.1.0"),
])
def test_names_are_added_nowhere_else(tmp_path, number, node, why):
    said, _ = record_with(tmp_path, number, [*EXPORTS, f"pmalloc_new@@PMALLOC_{node}"])
    assert len(said) == 1 and why in said[0] and "pmalloc_new" in said[0]


def test_names_go_with_another_soname_alone(tmp_path):
    left = EXPORTS[1:]
    said, _ = record_with(tmp_path / "same", "1.1.0", left)
    assert said == [f"check-abi: gone or changed: export {EXPORTS[0]}"]
    said, text = record_with(tmp_path / "other", "2.0.0", left, soname="libpmalloc.so.1")
    assert said == [] and f"export {EXPORTS[0]}\n" not in text


# ---- the number of the release ------------------------------------------------------------------


def test_debians_list_has_each_name_since_its_version():
    text = (ROOT / "scripts/debian/libpmalloc0.symbols").read_text()
    listed = re.findall(r"^ (pmalloc_\w+)@(PMALLOC_[\d.]+) (\S+)$", text, re.MULTILINE)
    assert [f"{name}@@{node}" for name, node, _ in listed] == [
        name for name in EXPORTS if name.startswith("pmalloc_")]
    assert all(node == f"PMALLOC_{since.removesuffix('.0')}" for _, node, since in listed)


def test_the_number_of_the_release_is_one_everywhere(tmp_path):
    """Tools, their manual pages and libpmalloc.pc: test_heap_files.py."""
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == release()
    newest = re.match(r"pmalloc \((.*)-\d+\)", (ROOT / "scripts/debian/changelog").read_text())[1]
    assert newest == release()
    source, program = tmp_path / "says.c", tmp_path / "says"
    source.write_text("#include <pmalloc.h>\n#include <stdio.h>\n"
                      "int main(void) { return puts(pmalloc_version()) < 0; }\n")
    subprocess.run([CC, source, "-I", ROOT / "preload", "-L", BUILD, "-lpmalloc",
                    f"-Wl,-rpath,{BUILD}", "-o", program], check=True)
    assert run([program], preload=False).stdout == release() + "\n"
    page = run([tool("pmalloc-run"), "--man-env"], preload=False).stdout
    assert page.splitlines()[0] == f'.TH LIBPMALLOC 7 "" "PMAlloc {release()}" "PMAlloc Manual"'
