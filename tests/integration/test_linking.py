# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What the dynamic linker makes of malloc's name: in programs at fixed addresses, and in libraries
that look it up elsewhere first."""

import re
import subprocess

import pytest

from conftest import BUILD, CC, run, said, succeeds, tool

POINTER = r"""
#include <stdio.h>
#include <stdlib.h>
int *kept;
int main(void) {
    void *(*volatile take)(size_t) = malloc; /* at a fixed address: the program's own stub */
    if (!kept)
        kept = take(sizeof *kept), *kept = 0;
    printf("%d\n", ++*kept);
    return 0;
}
"""

PLUGIN = r"""
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
char *duplicate(const char *s) { return strcpy(malloc(strlen(s) + 1), s); }
void drop(void *p) { free(p); }
size_t usable(void *p) { return malloc_usable_size(p); }
"""

HOST = r"""
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    void *library = dlopen(argc > 1 ? argv[1] : "libplugin.so", RTLD_NOW | RTLD_DEEPBIND);
    if (!library)
        return puts(dlerror()), 1;
    char *(*duplicate)(const char *) = (char *(*)(const char *))dlsym(library, "duplicate");
    void (*drop)(void *) = (void (*)(void *))dlsym(library, "drop");
    for (int i = 1; i < 2000; i++) {
        char *mine = malloc((size_t)i), *theirs = duplicate("from the library");
        if (!mine || strcmp(theirs, "from the library"))
            return 2;
        free(theirs);
        drop(mine);
    }
    puts("freed");
    return 0;
}
"""


def built(folder, name, text, *flags):
    source = folder / f"{name}.c"
    source.write_text(text)
    subprocess.run([CC, "-O1", "-o", folder / name, source, *flags], check=True)
    return folder / name


@pytest.mark.parametrize(
    "flags", (("-no-pie", "-fno-pie"), ("-pie", "-fPIE"), ("-no-pie", "-fno-pie", "-Wl,-z,now"))
)
def test_roots_of_a_program_that_takes_mallocs_address(tmp_path, heap, flags):
    program = built(tmp_path, "pointer", POINTER, *flags)
    for count in (1, 2, 3):
        done = run([program], HEAP=heap, ROOTS="kept")
        assert succeeds(done) == f"{count}\n" and done.stderr == "", said(done)


def test_a_library_loaded_with_deepbind_uses_our_malloc(tmp_path):
    built(tmp_path, "libplugin.so", PLUGIN, "-shared", "-fPIC")
    host = built(tmp_path, "host", HOST, "-ldl")
    assert succeeds(run([host, tmp_path / "libplugin.so"])) == "freed\n"


def test_dlopen_searches_where_its_caller_would(tmp_path):
    """dlopen searches the DT_RUNPATH of its caller, not that of the preloaded library."""
    (tmp_path / "place").mkdir()
    built(tmp_path, "place/libplugin.so", PLUGIN, "-shared", "-fPIC")
    host = built(tmp_path, "host", HOST, "-ldl", "-Wl,-rpath,$ORIGIN/place")
    assert succeeds(run([host])) == "freed\n"
    other = built(tmp_path, "other", HOST, "-ldl")
    done = run([other])
    assert done.returncode == 1 and "libplugin.so: cannot open" in done.stdout, said(done)


UNWINDS = r"""
#include <execinfo.h>
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void start(void) {
    void *frames[64];
    int count = backtrace(frames, 64);
    char **names = backtrace_symbols(frames, count);
    for (int i = 0; i < count; i++)
        if (strstr(names[i], "(loads_it+"))
            puts("whole");
}
"""
LOADS = r"""
#include <dlfcn.h>
int leaf(int x) { return x * 3; }
__attribute__((noinline)) void *loads_it(const char *n) { return dlopen(n, RTLD_NOW); }
int main(void) { return loads_it("libunwinds.so") == NULL; }
"""


def test_who_unwinds_amid_dlopen_comes_to_its_caller(tmp_path):
    """Also where libc is called by way of a place in the caller's object."""
    built(tmp_path, "libunwinds.so", UNWINDS, "-shared", "-fPIC")
    flags = ["-rdynamic", f"-Wl,-rpath,{tmp_path}", "-fno-optimize-sibling-calls"]
    host = built(tmp_path, "host", "#include <stddef.h>\n" + LOADS, *flags)
    assert succeeds(run([host])) == "whole\n"


@pytest.mark.parametrize("name, libpmem", [("run", 0), ("info", 0), ("backup", 0), ("recover", 1)])
def test_libpmem_is_linked_where_it_is_used(name, libpmem):
    """Its constructors take ten times what the rest of a start takes: 5.5 million instructions."""
    done = run(["readelf", "-d", tool(f"pmalloc-{name}")], preload=False)
    assert succeeds(done).count("Shared library: [libpmem.so") == libpmem, said(done)


@pytest.mark.parametrize("name, libnuma", [("run", 0), ("info", 1), ("backup", 0), ("recover", 1)])
def test_libnuma_is_linked_where_it_is_used(name, libnuma):
    """pmalloc-run starts every program, and does without."""
    done = run(["readelf", "-d", tool(f"pmalloc-{name}")], preload=False)
    assert succeeds(done).count("Shared library: [libnuma.so") == libnuma, said(done)


def test_the_libraries_need_libc_alone():
    for name in ("libpmalloc_preload.so", "libpmalloc.so"):
        done = run(["readelf", "-d", BUILD / name], preload=False)
        needed = re.findall(r"Shared library: \[(.*?)\]", succeeds(done))
        assert set(needed) <= {"libc.so.6", "ld-linux-x86-64.so.2"}, said(done)
