# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""libpmalloc_gc.so defines each function as Debian's gc.h declares it: a compiler reads both."""

import re
import shutil
import subprocess

import pytest
from conftest import ROOT

FOLDER = ROOT / "preload" / "boehm"
HEADERS = ("gc", "gc_mark", "gc_typed", "gc_disclaim", "gc_gcj", "gc_inline", "gc_backptr")
FLAGS = ["-std=gnu11", "-D_GNU_SOURCE", "-fsyntax-only"]
HERE = ["-iquote", ".", "-iquote", "core", "-iquote", "gc", "-iquote", "preload"]
# Structs of the header that have other names here.
STRUCTS = {
    "stack_base": "GC_stack_base",
    "closure": "GC_finalizer_closure",
    "time_limit": "GC_timeval_s",
}
# What differs in C, and is the same in a call.
SAME = {
    **dict.fromkeys(
        (
            "GC_get_on_collection_event",
            "GC_set_on_collection_event",
            "GC_get_on_thread_event",
            "GC_set_on_thread_event",
        ),
        "an event is an int, there an enum",
    ),
    **dict.fromkeys(
        ("GC_get_toggleref_func", "GC_set_toggleref_func"), "a kind is an int, there an enum"
    ),
    **dict.fromkeys(
        ("GC_get_prof_stats", "GC_get_prof_stats_unsafe"), "of the struct only the bytes are known"
    ),
    **dict.fromkeys(
        ("GC_mark_and_push", "GC_new_proc", "GC_new_proc_inner"),
        "an entry of the mark stack is a void *",
    ),
    "GC_register_describe_type_fn": "a function is a void *",
    "GC_register_has_static_roots_callback": "a function is a void *",
}


def gcc(*arguments):
    return subprocess.run(
        ["gcc", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def definitions(folder):
    """As the compiler has understood them: (name, declaration)."""
    found = {}
    for source in sorted(FOLDER.glob("*.c")):
        out = folder / source.name
        extra = ["-include", "core/base/oldest_libc.h", "-aux-info", out]
        done = gcc(*FLAGS, *HERE, *extra, source.relative_to(ROOT))
        assert done.returncode == 0, done.stderr
        for line in out.read_text().splitlines():
            defined = re.match(r"/\* preload/boehm/\S+:\d+:NF \*/ (.*?;) /\*", line)
            name = re.search(r"\b(GC_\w+) \(", line)
            if defined and name:
                found[name[1]] = defined[1]
    return found


def typedefs():
    """Names for types that the definitions use."""
    lines = set()
    for path in sorted([*FOLDER.glob("*.[ch]"), ROOT / "gc" / "live" / "trace.h"]):
        lines |= set(re.findall(r"^typedef [^{};]*;", path.read_text(), re.MULTILINE))
    return sorted(lines)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
@pytest.mark.parametrize("broken", [False, True])
def test_definitions_are_as_gc_h_declares_them(tmp_path, broken):
    """And one that is not is found."""
    known = definitions(tmp_path)
    assert len(known) > 250, len(known)
    text = "#define GC_THREADS 1\n#include <pthread.h>\n#include <stdbool.h>\n#include <stdint.h>\n"
    text += "".join(f"#include <gc/{name}.h>\n" for name in HEADERS)
    text += "".join(f"#define {ours} {theirs}\n" for ours, theirs in STRUCTS.items())
    text += "\n".join([*typedefs(), *known.values()]) + "\n"
    if broken:
        text = text.replace("GC_malloc (size_t", "GC_malloc (int")
    source = tmp_path / "both.c"
    source.write_text(text)
    done = gcc(*FLAGS, source)
    if "gc/gc.h: No such file" in done.stderr:
        pytest.skip("needs Debian's package libgc-dev")
    errors = re.findall(r"error: (.*)", done.stderr)
    differ = set(re.findall(r"error: conflicting types for \W(GC_\w+)\W", done.stderr))
    assert len(errors) == len(differ), done.stderr
    assert differ == set(SAME) | ({"GC_malloc"} if broken else set()), differ ^ set(SAME)
