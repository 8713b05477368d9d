// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Pages of a block that the program has protected, or over which it has mapped something else. It
// prints what it finds, which is the same with each malloc.
//
//   protected PART...
//   protected unseen PART...   by system calls of its own, which no library sees
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define SIZE (16 * PAGE)
#define CHECK(condition) ((condition) ? (void)0 : (printf("line %d\n", __LINE__), _exit(3)))

char *root;
static bool unseen;

static long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void protect(char *at, size_t len, int access) {
    CHECK((unseen ? call(SYS_mprotect, (long)at, (long)len, access, 0, 0, 0)
                  : mprotect(at, len, access)) == 0);
}

// What a load and a store at an address do: "rw", "r-", "--".
static sigjmp_buf back;
static void jump(int number) { siglongjmp(back, number); }

static const char *access_of(char *at) {
    static char text[3];
    volatile char byte = 0;
    struct sigaction before, ours = {.sa_handler = jump};
    sigaction(SIGSEGV, &ours, &before);
    strcpy(text, "--");
    if (!sigsetjmp(back, 1)) {
        byte = *(volatile char *)at;
        text[0] = 'r';
        *(volatile char *)at = byte;
        text[1] = 'w';
    }
    sigaction(SIGSEGV, &before, NULL);
    return text;
}

// A commit, where there is one; and one more, which finds that nothing has changed.
static void commit(void) {
    int (*fn)(void);
    *(void **)&fn = dlsym(RTLD_DEFAULT, "pmalloc_commit");
    for (int i = 0; fn && i < 2; i++)
        fn();
}

static char *block(size_t size, char with) {
    void *p;
    CHECK(posix_memalign(&p, PAGE, size) == 0);
    return memset(p, with, size);
}

static int status_of(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// The bytes of a block, as runs.
static void say_bytes(const char *p, size_t size) {
    for (size_t from = 0, to; from < size; from = to) {
        for (to = from; to < size && p[to] == p[from]; to++)
            ;
        printf(" %zu of %d", to - from, p[from]);
    }
    puts("");
    fflush(stdout);
}

// ---- access -------------------------------------------------------------------------------------

static void three_pages(void) {
    root = block(SIZE, 'a');
    protect(root, PAGE, PROT_NONE);
    protect(root + 2 * PAGE, PAGE, PROT_READ);
    protect(root + 4 * PAGE, PAGE, PROT_EXEC);
}

static void say_pages(const char *when) {
    printf("%s %s", when, access_of(root));
    for (int i = 1; i < 5; i++)
        printf(" %s", i == 4 ? "" : access_of(root + (size_t)i * PAGE));
    puts("");
    fflush(stdout);
}

static void guard(void) {
    three_pages();
    for (int i = 0; i < 10; i++) {
        memset(root + 8 * PAGE, 'b' + i, PAGE);
        commit();
    }
    say_pages("program");
    protect(root, SIZE, PROT_READ | PROT_WRITE);
    say_bytes(root, SIZE);
    free(root);
    root = NULL;
}

static void grandchild(void) {
    say_pages("grandchild");
    protect(root, SIZE, PROT_READ | PROT_WRITE);
    say_bytes(root, SIZE);
    _exit(7);
}

static void children(void) {
    three_pages();
    commit();
    pid_t pid = fork();
    if (pid == 0) {
        say_pages("child");
        root[8 * PAGE] = 'c';
        pid = fork();
        if (pid == 0)
            grandchild();
        _exit(status_of(pid));
    }
    printf("status %d\n", status_of(pid));
    say_pages("parent");
    protect(root, SIZE, PROT_READ | PROT_WRITE);
    say_bytes(root, SIZE);
}

// The pages keep their bytes for the next start.
static void killed(void) {
    three_pages();
    commit();
    kill(getpid(), SIGKILL);
}

static void waits(void) {
    three_pages();
    commit();
    puts("ready");
    fflush(stdout);
    getchar();
}

static void again(void) {
    say_bytes(root, SIZE);
    say_pages("again");
}

// A pointer in a page that cannot be read, in a block of several of them.
static void leaks(void) {
    root = block(SIZE, 0);
    memcpy(root + PAGE, &(void *){block(2 * PAGE, 'k')}, sizeof(void *));
    memcpy(root + 3 * PAGE, &(void *){malloc(100)}, sizeof(void *));
    protect(root + PAGE, PAGE, PROT_NONE);
    protect(root + 3 * PAGE, PAGE, PROT_EXEC);
    CHECK(munmap(root + 6 * PAGE, PAGE) == 0);
    madvise(root + 9 * PAGE, PAGE, 102); // a guard, where there are any
}

// ---- guards -------------------------------------------------------------------------------------

static void light_guards(void) {
    root = block(SIZE, 'a');
    commit();
    if (madvise(root + PAGE, 2 * PAGE, 102) != 0) {
        puts("none");
        return;
    }
    madvise(root + 2 * PAGE, PAGE, 103);
    printf("%s", access_of(root + PAGE));
    printf(" %s", access_of(root + 2 * PAGE));
    commit();
    printf(" %s", access_of(root + PAGE));
    CHECK(madvise(root + PAGE, PAGE, 103) == 0);
    say_bytes(root, SIZE);
}

// ---- mapped over --------------------------------------------------------------------------------

static char *over(char *at, size_t len, int flags, int fd) {
    const int prot = PROT_READ | PROT_WRITE;
    char *p = mmap(at, len, prot, flags | MAP_FIXED, fd, 0);
    CHECK(p == at);
    return p;
}

static void mapped(void) {
    int file = memfd_create("over", 0);
    CHECK(ftruncate(file, PAGE) == 0);
    root = block(SIZE, 'a');
    commit();
    memset(over(root + 2 * PAGE, PAGE, MAP_SHARED, file), 's', PAGE);
    memset(over(root + 4 * PAGE, PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 'p', PAGE);
    for (int i = 0; i < 3; i++) {
        root[8 * PAGE] = (char)('0' + i);
        commit();
    }
    say_bytes(root, SIZE);
    pid_t pid = fork();
    if (pid == 0) {
        say_bytes(root, SIZE);
        memset(root + 2 * PAGE, 't', PAGE);
        root[4 * PAGE] = root[10 * PAGE] = 'c';
        CHECK(madvise(root + 2 * PAGE, 2 * PAGE, MADV_DONTNEED) == 0);
        say_bytes(root, SIZE);
        _exit(5);
    }
    printf("status %d\n", status_of(pid));
    say_bytes(root, SIZE);
    CHECK(madvise(root + 4 * PAGE, PAGE, MADV_DONTNEED) == 0);
    CHECK(madvise(root + 2 * PAGE, PAGE, MADV_DONTNEED) == 0);
    commit();
    say_bytes(root, SIZE);
    char byte;
    CHECK(pread(file, &byte, 1, 0) == 1);
    printf("file %c\n", byte);
}

// A block is freed over which something was mapped, or of which a part is gone. What comes next in
// its place is memory as any.
static void freed(void) {
    size_t size = 2 << 20;
    int file = memfd_create("over", 0);
    CHECK(ftruncate(file, PAGE) == 0);
    for (int round = 0; round < 4; round++) {
        char *p = block(size, 'f');
        memset(over(p + PAGE, PAGE, MAP_SHARED, file), 's', PAGE);
        CHECK(munmap(p + 4 * PAGE, PAGE) == 0);
        free(p);
    }
    root = block(size, 'n');
    commit();
    say_bytes(root, size);
    char byte;
    CHECK(pread(file, &byte, 1, 0) == 1);
    printf("file %c\n", byte);
}

static void holes(void) {
    root = block(SIZE, 'a');
    CHECK(munmap(root + 2 * PAGE, PAGE) == 0);
    commit();
    printf("%s", access_of(root + 2 * PAGE));
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        printf(" %s", access_of(root + 2 * PAGE));
        printf(" %s", access_of(root + 3 * PAGE));
        memset(over(root + 2 * PAGE, PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1), 'h', PAGE);
        say_bytes(root, SIZE);
        _exit(6);
    }
    printf("status %d\n", status_of(pid));
}

// ---- the end ------------------------------------------------------------------------------------

static bool says_end;

__attribute__((destructor)) static void last(void) {
    if (says_end)
        say_pages("destructor");
    if (says_end && root[6 * PAGE] != 'a')
        say_bytes(root + 6 * PAGE, PAGE);
    fflush(stdout);
}

static void ends(void) {
    three_pages();
    if (!unseen)
        memset(over(root + 6 * PAGE, PAGE, MAP_SHARED | MAP_ANONYMOUS, -1), 'm', PAGE);
    says_end = true;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*fn)(void);
    } part[] = {{"guard", guard}, {"children", children},  {"killed", killed}, {"again", again},
                {"leaks", leaks}, {"light", light_guards}, {"mapped", mapped}, {"freed", freed},
                {"holes", holes}, {"ends", ends},          {"waits", waits}};
    for (int a = 1; a < argc; a++) {
        unseen |= strcmp(argv[a], "unseen") == 0;
        for (size_t i = 0; i < sizeof part / sizeof *part; i++)
            if (strcmp(argv[a], part[i].name) == 0)
                part[i].fn();
    }
    return 0;
}
