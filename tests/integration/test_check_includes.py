# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""scripts/check-includes accepts this tree and refuses each kind of wrong arrow."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A small tree in which every arrow is right.
GOOD = {
    "core/layout.h": "#include <stdint.h>\n",
    "core/os.h": '#include "layout.h"\n',
    "core/heap.h": '#include "os.h"\n',
    "core/slab.h": '#include "core/heap.h"\n',
    "core/slab_check.c": '#include "slab.h"\n',
    "core/pmalloc.h": "#include <stddef.h>\n",
    "gc/mark.h": '#include "core/slab.h"\n',
    "gc/mark.c": '#include "mark.h"\n',
    "preload/interpose.c": '#include "core/pmalloc.h"\n',
    "tools/pmalloc-info.c": '#include "gc/mark.h"\n',
    "tests/unit/test_slab.c": '#include "core/slab.h"\n#include "gc/mark.h"\n',
    "tests/apps/workload.h": "#include <stdio.h>\n",
    "tests/apps/list.c": '#include "workload.h"\n',
}


def check(root):
    command = [sys.executable, str(ROOT / "scripts" / "check-includes"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def plant(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_this_tree_is_clean():
    result = check(ROOT)
    assert result.returncode == 0, result.stderr


def test_good_tree_is_clean(tmp_path):
    plant(tmp_path, GOOD)
    result = check(tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_empty_tree_is_no_success(tmp_path):
    assert check(tmp_path).returncode == 2


@pytest.mark.parametrize(
    "name, text, complaint",
    [
        ("core/heap.h", '#include "slab.h"\n', "core/heap.h:1: upward: core/slab.h"),
        ("core/heap.c", '\n#  include "core/pmalloc.h"\n', "core/heap.c:2: upward"),
        ("core/slab.c", '#include "gc/mark.h"\n', "core may not include gc/mark.h"),
        ("core/slab.c", '#include "../gc/mark.h"\n', "core may not include gc/mark.h"),
        ("core/novel.h", "", "core/novel.h:1: in no layer"),
        ("core/novel.c", "", "core/novel.c:1: in no layer"),
        ("core/os.h", '#include "layout.h"\n#include "os2.h"\n', "os2.h: no such file"),
        ("core/layout.h", '#include "os.h"\n', "a cycle: core/os.h -> core/layout.h"),
        ("core/slab.c", "#include <libpmem.h>\n", "libpmem.h is not for this file"),
        ("gc/mark.c", '#include "preload/names.h"\n', "no such file"),
        ("preload/interpose.c", '#include "core/slab.h"\n', "preload may not include core/slab.h"),
        ("preload/interpose.c", '#include "gc/mark.h"\n', "preload may not include gc/mark.h"),
        ("tools/pmalloc-info.c", '#include "tests/apps/workload.h"\n', "tools may not include"),
        ("tests/apps/list.c", '#include "../../core/pmalloc.h"\n', "tests/apps may not include"),
        ("tests/unit/test_slab.c", "#include <core/slab.h>\n", "include it with quotes"),
    ],
)
def test_wrong_arrow_is_refused(tmp_path, name, text, complaint):
    plant(tmp_path, {**GOOD, name: text})
    result = check(tmp_path)
    assert result.returncode == 1
    assert complaint in result.stderr
