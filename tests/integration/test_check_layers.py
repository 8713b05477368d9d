# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/check-layers accepts this tree and refuses each kind of wrong arrow: includes, calls,
circles."""

import pathlib
import subprocess
import sys

import pytest

from conftest import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A small tree in which every arrow is right.
GOOD = {
    "core/base/os.h": "int pm_os(void);\n",
    "core/base/os.c": '#include "os.h"\nint pm_os(void) { return 1; }\n',
    "core/media/heap.h": '#include "base/os.h"\nint pm_heap(void);\n',
    "core/media/heap.c": '#include "heap.h"\nint pm_heap(void) { return pm_os(); }\n',
    "core/blocks/slab.h": '#include "media/heap.h"\nint pm_slab(void);\n',
    "core/blocks/slab.c": '#include "slab.h"\nint pm_slab(void) { return pm_heap(); }\n',
    "gc/roots/spec.h": "int pm_spec(void);\n",
    "gc/recovery/mark.h": '#include "blocks/slab.h"\nint pm_mark(void);\n',
    "gc/recovery/mark.c": '#include "mark.h"\n#include "roots/spec.h"\n'
    "int pm_mark(void) { return pm_slab(); }\n",
    "preload/pmalloc.h": "int pmalloc_version(void);\n",
    "preload/process/start.h": '#include "recovery/mark.h"\n'
    "void pm_preload_check(void) __attribute__((weak));\n",
    "preload/process/start.c": '#include "start.h"\nint pm_start(void);\n'
    "int pm_start(void) { if (pm_preload_check) pm_preload_check(); return pm_mark(); }\n",
    "preload/names/events.c": '#include "process/start.h"\nvoid pm_preload_check(void) {}\n'
    "int malloc_info(void);\nint malloc_info(void) { return 0; }\n",
    "tools/pmalloc-info.c": '#include "recovery/mark.h"\n#include "preload/pmalloc.h"\n',
    "tests/unit/test_slab.c": '#include "blocks/slab.h"\n#include "recovery/mark.h"\n',
    "tests/apps/workload.h": "#include <stdio.h>\n",
    "tests/apps/list.c": '#include "workload.h"\n',
}


def check(root, objects):
    command = [
        sys.executable,
        str(ROOT / "scripts" / "check-layers"),
        "--objects",
        str(objects),
        str(root),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def compile_all(root, objects):
    for path in sorted(root.rglob("*.c")):
        name = path.relative_to(root)
        if name.parts[0] in ("core", "gc", "preload", "tools"):
            target = (objects / name).with_suffix(".o")
            target.parent.mkdir(parents=True, exist_ok=True)
            quote = [
                flag
                for folder in ("", "core", "gc", "preload")
                for flag in ("-iquote", root / folder)
            ]
            command = [
                "gcc",
                "-c",
                "-w",
                *quote,
                "-Werror=implicit-function-declaration",
                "-o",
                target,
                path,
            ]
            subprocess.run(command, check=True)


def checked(tmp_path, files):
    tree, objects = tmp_path / "tree", tmp_path / "objects"
    plant(tree, files)
    compile_all(tree, objects)
    return check(tree, objects)


@pytest.mark.check
def test_this_tree_is_clean():
    result = check(ROOT, BUILD / "obj")
    assert result.returncode == 0, result.stderr


def test_good_tree_is_clean(tmp_path):
    result = checked(tmp_path, GOOD)
    assert (result.returncode, result.stderr) == (0, "")
    assert "all downward" in result.stdout


def test_empty_tree_is_no_success(tmp_path):
    assert check(tmp_path, "none").returncode == 2


def test_objects_that_are_not_built_are_said(tmp_path):
    plant(tmp_path, GOOD)
    result = check(tmp_path, tmp_path / "nothing")
    assert result.returncode == 1 and "run make first" in result.stderr


@pytest.mark.parametrize(
    "name, text, complaint",
    [
        (
            "core/media/heap.h",
            '#include "blocks/slab.h"\n',
            "core/media includes core/blocks/slab.h: upward",
        ),
        (
            "core/blocks/slab.c",
            '#include "recovery/mark.h"\n',
            "core/blocks includes gc/recovery/mark.h: upward",
        ),
        (
            "core/blocks/slab.c",
            '#include "../../gc/recovery/mark.h"\n',
            "core/blocks includes gc/recovery/mark.h",
        ),
        (
            "gc/roots/spec.h",
            '#include "recovery/mark.h"\n',
            "gc/roots includes gc/recovery/mark.h: upward",
        ),
        (
            "gc/recovery/mark.c",
            '#include "process/start.h"\n',
            "gc/recovery includes preload/process/start.h",
        ),
        (
            "tools/pmalloc-info.c",
            '#include "process/start.h"\n',
            "tools includes preload/process/start.h: upward",
        ),
        (
            "tools/pmalloc-info.c",
            '#include "tests/apps/workload.h"\n',
            "tools includes tests/apps/workload.h",
        ),
        (
            "tests/apps/list.c",
            '#include "preload/pmalloc.h"\n',
            "tests/apps includes preload/pmalloc.h: upward",
        ),
        ("core/novel/file.h", "", "core/novel/file.h:1: in no folder"),
        ("core/novel.c", "", "core/novel.c:1: in no folder"),
        ("core/base/os.h", '#include "os2.h"\n', "os2.h: no such file"),
        ("core/blocks/slab.c", "#include <libpmem.h>\n", "libpmem.h is not for this file"),
        ("gc/roots/x.c", "#include <numaif.h>\n", "numaif.h is not for this file"),
        ("tools/common/x.c", "#include <numa.h>\n", "numa.h is not for this file"),
        ("gc/roots/x.c", "#include <elfutils/libdw.h>\n", "libdw.h is not for this file"),
        ("tests/unit/test_slab.c", "#include <core/blocks/slab.h>\n", "include it with quotes"),
        ("core/base/os.h", '#include "more.h"\n', "a circle: core/base/more -> core/base/os"),
    ],
)
def test_wrong_include_is_refused(tmp_path, name, text, complaint):
    plant(tmp_path, {**GOOD, "core/base/more.h": '#include "os.h"\n', name: text})
    result = check(tmp_path, "none")
    assert result.returncode == 1
    assert complaint in result.stderr, result.stderr


@pytest.mark.parametrize(
    "files, complaint",
    [
        (
            {"core/base/os.c": "int pm_slab(void);\nint pm_os(void) { return pm_slab(); }\n"},
            "core/base uses pm_slab of core/blocks/slab.c: upward",
        ),
        (
            {
                "gc/recovery/mark.c": "int pm_start(void);\n"
                "int pm_mark(void) { return pm_start(); }\n"
            },
            "gc/recovery uses pm_start of preload/process/start.c: upward",
        ),
        (
            {
                "core/media/heap.c": "extern int pm_table;\n"
                "int pm_heap(void) { return pm_table; }\n",
                "core/blocks/table.c": "int pm_table = 1;\n",
            },
            "core/media uses pm_table of core/blocks/table.c: upward",
        ),
        (
            {
                "core/base/os.c": "int pm_slab(void) __attribute__((weak));\n"
                "int pm_os(void) { return pm_slab(); }\n"
            },
            "refers to pm_slab weakly",
        ),
        (
            {
                "core/base/one.c": "int pm_two(void);\nint pm_one(void) { return pm_two(); }\n",
                "core/base/two.c": "int pm_one(void);\nint pm_two(void) { return pm_one(); }\n",
            },
            "a circle: core/base/one -> core/base/two -> core/base/one",
        ),
    ],
)
def test_wrong_call_is_refused(tmp_path, files, complaint):
    result = checked(tmp_path, {**GOOD, **files})
    assert result.returncode == 1
    assert complaint in result.stderr, result.stderr


def test_a_call_of_libcs_name_is_no_arrow(tmp_path):
    calls = "int malloc_info(void);\nint pm_os(void) { return malloc_info(); }\n"
    assert checked(tmp_path, {**GOOD, "core/base/os.c": calls}).returncode == 0
