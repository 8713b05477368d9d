// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Roots of this process are found: its own variables, libc's, libm's, and those of copies of libm
// in a temporary directory. The test also starts itself again: by the dynamic linker, and from a
// file that is deleted.
#define _GNU_SOURCE
#include "roots/loaded_object.h"
#include "roots/locate.h"
#include "tests/unit/check.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

// Counts allocations, to show that resolving a root makes none. Not under ASan, which brings its
// own malloc.
static volatile unsigned long allocations;
#if !ASAN
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *malloc(size_t n) {
    allocations++;
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t m) {
    allocations++;
    return __libc_calloc(n, m);
}
void *realloc(void *p, size_t n) {
    allocations++;
    return __libc_realloc(p, n);
}
#endif

#define KEEP __attribute__((used, noinline))
#define VARIABLE __attribute__((used))
VARIABLE long test_global[3] = {1, 2, 3};
VARIABLE static long test_static[5];
VARIABLE long test_zeroed;
VARIABLE __thread int test_tls = 4;
VARIABLE const int test_constant[2] = {1, 2};
VARIABLE static void *const test_relro[4] = {&test_zeroed, &test_global, &test_zeroed};
VARIABLE static long test_names_1, test_names_2;
KEEP void test_function(void) {}
__asm__(".data\n.globl test_nosize\ntest_nosize: .quad 0\n.previous\n");

static struct pm_error err;
static struct pm_location ranges[16];
static size_t count;

static int resolve_into(const char *text, size_t cap) {
    struct pm_spec spec;
    memset(&spec, 0, sizeof spec);
    CHECK_EQ(pm_spec_parse_one(text, strlen(text), &spec, &err), PM_OK);
    err = (struct pm_error){.status = PM_OK};
    errno = 77;
    unsigned long before = allocations;
    int r = pm_locate(&spec, ranges, cap, &count, &err);
    CHECK_EQ(allocations, before);
    CHECK_EQ(errno, 77);
    CHECK((r == PM_OK) == (count != 0));
    CHECK(r == PM_OK || (r == err.status && err.text[0] != '\0'));
    CHECK(strchr(err.text, '\n') == NULL);
    return r;
}

static int resolve(const char *text) { return resolve_into(text, 16); }

static void found(const char *text, const volatile void *addr, size_t length) {
    CHECK_EQ(resolve(text), 0);
    CHECK_EQ(count, 1);
    CHECK_EQ(ranges[0].addr, (uintptr_t)addr);
    if (!ASAN) // ASan counts its red zones as part of the variable
        CHECK_EQ(ranges[0].length, length);
    CHECK(ranges[0].length >= length);
}

static void refused(const char *text, const char *part) {
    CHECK(resolve(text) != 0);
    CHECK_HAS(err.text, part);
    CHECK_HAS(err.text, text);
}

// Finds the loaded object that holds an address: its name and load bias. False: there is none.
struct address_search {
    uintptr_t addr;
    struct pm_object found;
};

static int address_step(const struct pm_object *o, void *arg) {
    struct address_search *s = arg;
    s->found = *o;
    return pm_object_holds(o, s->addr);
}

static bool object_at(uintptr_t addr, char *name, size_t len, uintptr_t *base) {
    struct address_search s = {.addr = addr};
    bool found = pm_object_each(address_step, &s) != 0;
    snprintf(name, len, "%s", s.found.name);
    *base = s.found.base;
    return found;
}

static const char *self_name(void) {
    static char name[PM_ROOT_OBJECT_LEN];
    uintptr_t base;
    CHECK(object_at((uintptr_t)&test_zeroed, name, sizeof name, &base));
    return name;
}

static const char *with(const char *object, const char *rest) {
    static char text[4][PM_SPEC_TEXT_LEN];
    static unsigned turn;
    char *t = text[turn++ % 4];
    snprintf(t, PM_SPEC_TEXT_LEN, "%s%s", object, rest);
    return t;
}

static void test_program_symbols(void) {
    found("test_global", test_global, sizeof test_global);
    CHECK_STR(ranges[0].object, self_name());
    found("test_static", test_static, sizeof test_static);
    found("test_zeroed", &test_zeroed, sizeof test_zeroed);
    found(with(self_name(), ":test_static"), test_static, sizeof test_static);
    char where[PM_ROOT_OBJECT_LEN];
    uintptr_t base;
    // A copy relocation puts libc's variable into the program. Without one it lies in libc, which
    // is searched only when it is named.
    CHECK(object_at((uintptr_t)&stdout, where, sizeof where, &base));
    if (strcmp(where, self_name()) == 0)
        found("stdout", &stdout, sizeof stdout);
    else
        refused("stdout", "no such variable");
}

static void test_no_variables(void) {
    refused("test_tls", "thread-local");
    refused("test_function", "a function");
    refused("test_constant", "constant");
    refused("test_relro", "constant");
    refused("test_nosize", "/LENGTH instead");
    refused("test_missing", "no such variable in");
    refused("test_names", "did you mean test_names_");
    CHECK_HAS(err.text, "test_names_1");
    CHECK_HAS(err.text, "test_names_2");
    refused("TEST_GLOBAL", "did you mean test_global?");
    refused("nosuchlib:x", "no program or library nosuchlib is loaded; loaded: ");
    CHECK_HAS(err.text, self_name());
    CHECK_HAS(err.text, "libc.so.6");
    refused("linux-vdso:*", "is loaded");
}

static void test_ranges(void) {
    char text[128];
    struct pm_object o;
    pm_object_main(&o);
    CHECK(o.is_main);
    uintptr_t off = (uintptr_t)test_static - o.base;
    snprintf(text, sizeof text, "+0x%lx/40", (unsigned long)off);
    found(text, test_static, 40);
    snprintf(text, sizeof text, "%s:+%lu/16", self_name(), (unsigned long)off);
    CHECK_EQ(resolve(text), 0);
    CHECK_EQ(ranges[0].addr, (uintptr_t)test_static);
    snprintf(text, sizeof text, "+0x%lx/1073741824", (unsigned long)off);
    refused(text, "not inside one writable segment");
    refused("+0xffffffffffffff00/16", "not inside one writable segment");
    snprintf(text, sizeof text, "+0x%lx/16", (unsigned long)((uintptr_t)test_function - o.base));
    refused(text, "read-only memory");
    snprintf(text, sizeof text, "+0x%lx/8", (unsigned long)((uintptr_t)test_relro - o.base));
    refused(text, "constant");
}

static bool covered(const volatile void *p, size_t n) {
    for (size_t i = 0; i < count; i++)
        if ((uintptr_t)p >= ranges[i].addr && (uintptr_t)p + n <= ranges[i].addr + ranges[i].length)
            return true;
    return false;
}

static void test_whole_objects(void) {
    CHECK_EQ(resolve("*"), 0);
    CHECK(covered(test_global, sizeof test_global));
    CHECK(covered(test_static, sizeof test_static));
    CHECK(!covered(test_relro, sizeof test_relro));
    CHECK(!covered(test_constant, sizeof test_constant));
    for (size_t i = 0; i < count; i++) { // writes every byte back: the memory is writable
        volatile unsigned char *p = (volatile unsigned char *)ranges[i].addr;
        if (!ASAN)
            for (size_t k = 0; k < ranges[i].length; k += 64)
                p[k] = p[k];
    }
    CHECK_EQ(resolve(with(self_name(), ":*")), 0);
    CHECK(covered(&test_zeroed, sizeof test_zeroed));
    CHECK_EQ(resolve("libc.so.6:*"), 0);
    CHECK_STR(ranges[0].object, "libc.so.6");
    CHECK(resolve_into("*", 0) != 0);
    CHECK_HAS(err.text, "more than 0 ranges");
}

// Makes a copy of the file `from` at `path`.
static void copy_file(const char *from, const char *path) {
    char buf[65536];
    ssize_t n;
    int in = open(from, O_RDONLY), out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0700);
    CHECK(in >= 0 && out >= 0);
    while ((n = read(in, buf, sizeof buf)) > 0)
        CHECK_EQ(write(out, buf, (size_t)n), n);
    close(in);
    close(out);
}

static char dir[] = "/tmp/pmalloc-elf-XXXXXX";
static char one[64], two[64];
static char libm_path[512];
static void *libm_signgam;

static void test_libraries(void) {
    struct link_map *map = NULL;
    void *handle = dlopen("libm.so.6", RTLD_NOW), *h;
    CHECK(handle != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
    if (map == NULL)
        return;
    libm_signgam = dlsym(handle, "signgam");
    snprintf(libm_path, sizeof libm_path, "%s", map->l_name);
    found("libm.so.6:signgam", libm_signgam, sizeof(int));
    CHECK_STR(ranges[0].object, "libm.so.6");
    found("libm:signgam", libm_signgam, sizeof(int));
    found("libm.so:signgam", libm_signgam, sizeof(int));
    found("signgam", libm_signgam, sizeof(int)); // names no object: every library is searched
    found("libc.so.6:stdout", &stdout, sizeof stdout);
    refused("libm:stdout", "no such variable in libm.so.6");
    refused("libm:sin", "a function");
    refused("libm.so.7:*", "no program or library");
    refused("li:*", "no program or library");
    // This variable lies in libc, which is searched only when it is named.
    refused("obstack_alloc_failed_handler", "no such variable");
    CHECK_EQ(resolve("libc.so.6:obstack_alloc_failed_handler"), 0);

    h = dlopen(one, RTLD_NOW | RTLD_LOCAL);
    CHECK(h == NULL);
    copy_file(libm_path, one);
    h = dlopen(one, RTLD_NOW | RTLD_LOCAL);
    CHECK(h != NULL);
    found("libone:signgam", dlsym(h, "signgam"), sizeof(int));
    CHECK_STR(ranges[0].object, "libone.so.3");
    refused("signgam", "in both ");
    CHECK_HAS(err.text, "libone.so.3:signgam");
    CHECK_HAS(err.text, "libm.so.6:signgam");
    copy_file(libm_path, two);
    CHECK(dlopen(two, RTLD_NOW | RTLD_LOCAL) != NULL);
    refused("libone:signgam", "is both libone.so.3 and libone.so.4");
    CHECK_EQ(resolve("libone.so.4:signgam"), 0);
    CHECK_STR(ranges[0].object, "libone.so.4");
}

// Replaces the file at `path` as a package manager does: a new inode under the old name.
static void replace(const char *path, const char *from) {
    copy_file(from, with(dir, "/new"));
    CHECK_EQ(rename(with(dir, "/new"), path), 0);
}

static void test_replaced_library(void) {
    struct link_map *map = NULL;
    void *h = dlopen("libc.so.6", RTLD_NOW);
    CHECK(h != NULL && dlinfo(h, RTLD_DI_LINKMAP, &map) == 0);
    if (map == NULL)
        return;
    CHECK_EQ(resolve("libone.so.4:signgam"), 0);
    uintptr_t addr = ranges[0].addr;
    replace(two, libm_path); // a copy of the same build will do
    CHECK_EQ(resolve("libone.so.4:signgam"), 0);
    CHECK_EQ(ranges[0].addr, addr);
    replace(two, map->l_name);
    refused("libone.so.4:signgam", "libone.so.4 was replaced since the program started");
    unlink(two);
    refused("libone.so.4:signgam", "No such file or directory");
    CHECK_EQ(resolve("libone.so.4:*"), 0);  // `*` needs no symbols, so no file
    refused("test_missing", "libone.so.4"); // the message names what could not be searched
}

static void test_identity(void) {
    struct pm_program id, again;
    char path[4096], *sanity = realpath("/proc/self/exe", path);
    memset(&id, 0xff, sizeof id);
    errno = 77;
    unsigned long before = allocations;
    CHECK(pm_locate_program(&id));
    CHECK_EQ(allocations, before);
    CHECK_EQ(errno, 77);
    CHECK(pm_locate_program(&again));
    CHECK(memcmp(&id, &again, sizeof id) == 0);
    CHECK(sanity != NULL && (getenv("TEST_ELF_LOADER") != NULL || strcmp(path, id.path) == 0));
    uintptr_t base;
    char name[64];
    CHECK(object_at((uintptr_t)&test_zeroed, name, sizeof name, &base));
    CHECK_EQ(base, id.main_base);
    CHECK_STR(name, strrchr(id.path, '/') + 1);
    CHECK(object_at((uintptr_t)dlsym(RTLD_DEFAULT, "getpid"), name, sizeof name, &base));
    CHECK_EQ(base, id.libc_base);
    CHECK_STR(name, "libc.so.6");
    int local = 0;
    CHECK(!object_at((uintptr_t)&local, name, sizeof name, &base));
    CHECK(!object_at(0, name, sizeof name, &base) || id.main_base == 0);
    CHECK(id.build_id_len <= sizeof id.build_id);
    struct pm_elf f;
    uint8_t build_id[PM_BUILD_ID_MAX];
    CHECK_EQ(pm_elf_open(&f, id.path, &err), PM_OK);
    CHECK_EQ(pm_elf_build_id(&f, build_id), id.build_id_len);
    CHECK(memcmp(build_id, id.build_id, id.build_id_len) == 0);
    pm_elf_close(&f);
}

static int find_linker(const struct pm_object *o, void *arg) {
    if (!pm_object_is_linker(o))
        return 0;
    snprintf(arg, 256, "%s", o->dl_name);
    return 1;
}

static int run_child(char *const argv[]) {
    int status = -1;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        execv(argv[0], argv);
        _exit(99);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    return status;
}

// The dynamic linker is started with the program as its argument. Then /proc/self/exe is the
// linker.
static void test_started_by_loader(void) {
    static char linker[256], path[4096], mode[] = "child";
    CHECK(pm_object_each(find_linker, linker) == 1);
    CHECK(pm_object_program_path(path, sizeof path));
    char *argv[] = {linker, path, mode, NULL};
    setenv("TEST_ELF_LOADER", "1", 1);
    CHECK_EQ(run_child(argv), 0);
    unsetenv("TEST_ELF_LOADER");
}

// The program's file is deleted while it runs. /proc/self/exe still opens it.
static void test_deleted_program(void) {
    static char path[4096], copy[64], mode[] = "child", gone[] = "delete";
    snprintf(copy, sizeof copy, "%s/prog", dir);
    CHECK(pm_object_program_path(path, sizeof path));
    copy_file(path, copy);
    char *argv[] = {copy, mode, gone, NULL};
    CHECK_EQ(run_child(argv), 0);
    CHECK(access(copy, F_OK) != 0);
}

static int child(char **argv) {
    char path[4096];
    CHECK(pm_object_program_path(path, sizeof path));
    if (argv[2] != NULL) {
        CHECK_EQ(unlink(path), 0);
        found("test_static", test_static, sizeof test_static);
        CHECK(pm_object_program_path(path, sizeof path) && strstr(path, "deleted") == NULL);
        return CHECK_DONE();
    }
    test_program_symbols();
    test_no_variables();
    test_ranges();
    test_identity();
    return CHECK_DONE();
}

int main(int argc, char **argv) {
    if (argc > 1)
        return child(argv);
    CHECK(mkdtemp(dir) != NULL);
    snprintf(one, sizeof one, "%s/libone.so.3", dir);
    snprintf(two, sizeof two, "%s/libone.so.4", dir);
    RUN(program_symbols);
    RUN(no_variables);
    RUN(ranges);
    RUN(whole_objects);
    RUN(identity);
    RUN(started_by_loader);
    RUN(deleted_program);
    RUN(libraries);
    RUN(replaced_library);
    unlink(one);
    unlink(two);
    CHECK_EQ(rmdir(dir), 0);
    return CHECK_DONE();
}
