// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What madvise, mprotect, mremap and mseal answer for pages of the program's own blocks. Each line
// of the output is one answer, so the output under the preload is that of any other malloc.
//
//   advice zero | guard | fork | access | move | edges | seal   a block, by libc's names
//   advice ... raw                                             by syscall()
//   advice ... SIZE                                            in KiB
//   advice beyond               ranges that begin below the heap, or end behind it
//   advice keep | kept          stores, empties a part; the next start finds what is right
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define NR_MSEAL 462
#define CHECK(x) ((x) ? (void)0 : (void)(printf("line %d: %s\n", __LINE__, #x), exit(1)))

char *root;
static bool raw;
static size_t size = 64 << 10;

static const char *name_of(int error) {
    return error == 0        ? "0"
           : error == EINVAL ? "EINVAL"
           : error == ENOMEM ? "ENOMEM"
           : error == EPERM  ? "EPERM"
           : error == EFAULT ? "EFAULT"
           : error == EACCES ? "EACCES"
                             : strerror(error);
}

static const char *advise(void *at, size_t len, int advice) {
    errno = 0;
    long r = raw ? syscall(SYS_madvise, at, len, advice) : madvise(at, len, advice);
    return name_of(r ? errno : 0);
}

static const char *protect(void *at, size_t len, int access) {
    errno = 0;
    long r = raw ? syscall(SYS_mprotect, at, len, access) : mprotect(at, len, access);
    return name_of(r ? errno : 0);
}

static void *remap(void *at, size_t old, size_t len, int flags, void *to) {
    errno = 0;
    return raw ? (void *)syscall(SYS_mremap, at, old, len, flags, to)
               : mremap(at, old, len, flags, to);
}

// The bytes of each kind, as "3z 1A".
static const char *text_of(const char *at, size_t len) {
    static char text[256];
    size_t count[256] = {0};
    text[0] = '\0';
    for (size_t i = 0; i < len; i++)
        count[(unsigned char)at[i]]++;
    for (int c = 0; c < 256; c++)
        if (count[c])
            sprintf(text + strlen(text), "%zu of %d ", count[c], c);
    return text;
}

static char *block(size_t len) {
    char *p;
    CHECK(posix_memalign((void **)&p, PAGE, len) == 0);
    memset(p, 'A', len);
    return p;
}

// The status of a child that runs `fn`: its exit status, or 100 and its signal.
static int child(void (*fn)(char *p), char *p) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        fn(p);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

static void store(char *p) { *(volatile char *)p = 'S'; }
static void load(char *p) { (void)*(volatile char *)p; }
static void find_zero(char *p) { _exit(*(volatile char *)p == 0 ? 10 : 11); }

// ---- zeroes -------------------------------------------------------------------------------------

static void zero_with(int advice, const char *what) {
    size_t half = size / 2;
    root = block(size);
    printf("%s %s: ", what, advise(root + PAGE, half, advice));
    // What MADV_FREE leaves may be old or zero.
    if (advice == MADV_FREE)
        memset(root + PAGE, 'F', half);
    printf("%s\n", text_of(root, size));
    memset(root, 'C', size);
    printf("later %s\n", text_of(root, size));
    free(root);
    root = NULL;
}

static void zero(void) {
    zero_with(MADV_DONTNEED, "DONTNEED");
    zero_with(MADV_FREE, "FREE");
    zero_with(MADV_REMOVE, "REMOVE");
    zero_with(24, "DONTNEED_LOCKED");
    zero_with(MADV_HUGEPAGE, "HUGEPAGE");
    zero_with(MADV_NOHUGEPAGE, "NOHUGEPAGE");
    zero_with(MADV_DONTDUMP, "DONTDUMP");
    zero_with(MADV_DODUMP, "DODUMP");
    zero_with(MADV_WILLNEED, "WILLNEED");
    zero_with(MADV_COLD, "COLD");
    zero_with(22, "POPULATE_READ");
    zero_with(23, "POPULATE_WRITE");
    zero_with(77, "unknown");
    root = block(size);
    CHECK(mlock(root, size) == 0);
    printf("locked %s", advise(root, size, MADV_DONTNEED));
    printf(" %s", advise(root, size, MADV_FREE));
    printf(" %s\n", text_of(root, size));
    printf("as locked %s", advise(root, size, 24));
    printf(" %s\n", text_of(root, size));
    CHECK(munlock(root, size) == 0);
    memset(root, 'A', size);
    printf("unlocked %s", advise(root, size, MADV_DONTNEED));
    printf(" %s\n", text_of(root, size));
    memset(root, 'A', size);
    printf("read-only %s", protect(root, size, PROT_READ));
    printf(" %s", advise(root, size, MADV_DONTNEED));
    printf(" %s\n", text_of(root, size));
    printf("a store: %d\n", child(store, root + PAGE));
    printf("writable %s\n", protect(root, size, PROT_READ | PROT_WRITE));
    memset(root, 'A', size);
    free(root);
    root = NULL;
}

// Linux 6.13 and newer: a guard has no page, and leaves zeroes.
static void guard(void) {
    root = block(size);
    printf("guard %s", advise(root, PAGE, 102));
    printf(" %d", child(load, root));
    printf(" removed %s", advise(root, PAGE, 103));
    printf(" %d %s\n", child(find_zero, root), text_of(root, size));
    free(root);
    root = NULL;
}

// ---- forks --------------------------------------------------------------------------------------

static void wiped_and_again(char *p) {
    for (size_t i = 0; i < size; i++)
        if (p[i] != (i < PAGE || i >= 3 * PAGE ? 'A' : 0))
            _exit(12);
    memset(p, 'W', size);
    _exit(child(find_zero, p + PAGE) == 10 && p[PAGE] == 'W' ? 13 : 14);
}

static void store_all(char *p) {
    memset(p, 'c', size);
    for (size_t i = 0; i < size; i++)
        if (p[i] != 'c')
            _exit(7);
}

static void forks(void) {
    root = block(size);
    printf("WIPEONFORK %s", advise(root + PAGE, 2 * PAGE, MADV_WIPEONFORK));
    printf(" %d %s\n", child(wiped_and_again, root), text_of(root, size));
    printf("KEEPONFORK %s", advise(root + PAGE, 2 * PAGE, MADV_KEEPONFORK));
    printf(" %d\n", child(find_zero, root + PAGE));
    printf("DONTFORK %s", advise(root + PAGE, PAGE, MADV_DONTFORK));
    printf(" %d %d", child(load, root + PAGE), child(find_zero, root + 2 * PAGE));
    printf(" DOFORK %s", advise(root + PAGE, PAGE, MADV_DOFORK));
    printf(" %d\n", child(find_zero, root + PAGE));
    printf("DOFORK %s", advise(root, size, MADV_DOFORK));
    printf(" %d %s\n", child(store_all, root), text_of(root, size));
    printf("read-only %s", protect(root, PAGE, PROT_READ));
    printf(" %d %d\n", child(store, root), child(store, root + PAGE));
    printf("writable %s", protect(root, PAGE, PROT_READ | PROT_WRITE));
    printf(" %d %s\n", child(store, root), text_of(root, size));
    free(root);
    root = NULL;
}

// ---- access -------------------------------------------------------------------------------------

// A block whose pages were protected is freed as it is, as a large one may be.
static void access_of_freed(void) {
    size_t large = 2 << 20;
    for (int round = 0; round < 4; round++) {
        char *p = block(large);
        CHECK(mprotect(p, PAGE, round % 2 ? PROT_READ : PROT_NONE) == 0);
        CHECK(madvise(p + PAGE, PAGE, MADV_DONTDUMP) == 0);
        free(p);
    }
    root = block(large);
    printf("freed %s\n", text_of(root, large));
    free(root);
    root = NULL;
}

static void protections(void) {
    root = block(size);
    printf("unaligned %s", protect(root + 1, PAGE, PROT_READ));
    printf(" bad %s", protect(root, PAGE, 0x1000));
    printf(" nothing %s\n", protect(root, 0, PROT_NONE));
    printf("each page");
    for (size_t at = 0; at < size; at += PAGE)
        printf(" %s", protect(root + at, PAGE, at / PAGE % 2 ? PROT_READ : PROT_READ | PROT_WRITE));
    printf("\n%d %d\n", child(store, root), child(store, root + PAGE));
    printf("all %s", protect(root, size, PROT_READ | PROT_WRITE));
    memset(root, 'B', size);
    printf(" %s\n", text_of(root, size));
    free(root);
    access_of_freed();
}

// ---- moves --------------------------------------------------------------------------------------

static void moves(void) {
    char *beside = block(size);
    root = block(size);
    memset(beside, 'N', size);
    CHECK(remap(root, size, size, 0, NULL) == root);
    printf("longer %d", remap(root + 4 * PAGE, PAGE, 2 * PAGE, 0, NULL) == MAP_FAILED);
    printf(" %s\n", name_of(errno));
    printf("nothing %d", remap(root, 0, PAGE, MREMAP_MAYMOVE, NULL) == MAP_FAILED);
    printf(" %s\n", name_of(errno));
    char *moved = remap(root + 2 * PAGE, 2 * PAGE, 5 * PAGE, MREMAP_MAYMOVE, NULL);
    CHECK(moved != MAP_FAILED);
    printf("moved %s\n", text_of(moved, 5 * PAGE));
    char *other = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(other, 'O', 2 * PAGE);
    printf("into %d", remap(other, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
                            root + 2 * PAGE) == root + 2 * PAGE);
    printf(" %s\n", text_of(root, size));
    printf("beside %s\n", text_of(beside, size));
    memset(moved, 'M', 5 * PAGE);
    printf("apart %s\n", text_of(root, size));
    printf("shorter %d", remap(root, 2 * PAGE, PAGE, 0, NULL) == root);
    printf(" %s\n", text_of(root, PAGE));
    free(root);
    free(beside);
    root = NULL;
}

// ---- ranges -------------------------------------------------------------------------------------

static void edges(void) {
    char *p[8];
    root = block(size);
    printf("unaligned %s\n", advise(root + 16, PAGE, MADV_DONTNEED));
    printf("nothing %s\n", advise(root, 0, MADV_DONTNEED));
    printf("too long %s\n", advise(root, ~0ul, MADV_DONTNEED));
    printf("beyond all %s\n", advise(root, ~0ul << 13, MADV_DONTNEED));
    printf("a part of a page %s", advise(root + PAGE, 1, MADV_DONTNEED));
    printf(" %s\n", text_of(root, size));
    free(root);
    for (int i = 0; i < 8; i++)
        p[i] = block(4 * PAGE);
    for (int i = 0; i < 8; i++)
        CHECK(strcmp(advise(p[i] + PAGE, 2 * PAGE, MADV_DONTNEED), "0") == 0);
    for (int i = 0; i < 8; i++)
        printf("%s\n", text_of(p[i], 4 * PAGE));
    for (int i = 0; i < 8; i++)
        free(p[i]);
    root = NULL;
}

// A range that begins below the heap, and one that ends behind all of it. In the child of the first
// one nothing of the heap is left but what was behind that range.
static char *below;

static void look_beyond(char *p) {
    _exit(below[0] == 0 && below[PAGE - 1] == 0 && p[0] == 0 && p[PAGE] == 'A' ? 10 : 11);
}

static void beyond(void) {
    char *heap = (char *)0x400000000000;
    below = mmap(heap - PAGE, PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(below == heap - PAGE);
    memset(below, 'L', PAGE);
    root = block(8 << 20);
    CHECK(root >= heap);
    const char *answer = advise(below, (size_t)(root + PAGE - below), MADV_WIPEONFORK);
    printf("below %s %d %c%c\n", answer, child(look_beyond, root), below[0], root[0]);
    answer = advise(below, (size_t)(root + PAGE - below), MADV_KEEPONFORK);
    printf("kept %s %d\n", answer, child(look_beyond, root));
    for (int i = 0; i < 8; i++) { // nothing else lies behind the highest
        char *p = block(8 << 20);
        root = p > root ? p : root;
    }
    answer = advise(root + PAGE, 18ul << 40, MADV_DONTNEED); // the program lies higher
    printf("behind %s %s\n", answer, text_of(root, 8 << 20));
}

// ---- seals --------------------------------------------------------------------------------------

static void seals(void) {
    root = block(size);
    CHECK(protect(root, PAGE, PROT_READ)[0] == '0');
    if (syscall(NR_MSEAL, root, 2 * PAGE, 0) != 0) {
        puts("no mseal");
        return;
    }
    printf("readable %s", protect(root, PAGE, PROT_READ | PROT_WRITE));
    printf(" %s", advise(root, PAGE, MADV_DONTNEED));
    printf(" writable %s", protect(root + PAGE, PAGE, PROT_READ));
    printf(" %s", advise(root + PAGE, PAGE, MADV_DONTNEED));
    printf(" %s", text_of(root, size));
    printf(" %d", remap(root, PAGE, 2 * PAGE, MREMAP_MAYMOVE, NULL) == MAP_FAILED);
    printf(" %s,", name_of(errno));
    printf(" beside %s\n", protect(root + 2 * PAGE, PAGE, PROT_READ));
    printf("flags %ld", syscall(NR_MSEAL, root, PAGE, 1));
    printf(" %s\n", name_of(errno));
}

// ---- the next start -----------------------------------------------------------------------------

static void keep(void) {
    root = block(size);
    CHECK(strcmp(advise(root + PAGE, size / 2, MADV_DONTNEED), "0") == 0);
    memset(root + 2 * PAGE, 'K', PAGE);
    CHECK(strcmp(protect(root, PAGE, PROT_READ), "0") == 0);
}

static void kept(void) {
    printf("%s\n", text_of(root, size));
    store(root);
    printf("%c\n", root[0]);
    free(root);
    root = NULL;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*fn)(void);
    } part[] = {{"zero", zero},  {"guard", guard}, {"fork", forks}, {"access", protections},
                {"move", moves}, {"edges", edges}, {"seal", seals}, {"beyond", beyond},
                {"keep", keep},  {"kept", kept}};
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "raw") == 0)
            raw = true;
        else
            size = strtoul(argv[i], NULL, 10) << 10;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (argc > 1 && strcmp(argv[1], part[i].name) == 0)
            part[i].fn();
    return 0;
}
