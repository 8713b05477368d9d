// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What glibc 2.41 to 2.43 and musl 1.2.6 do otherwise than before. Each part prints what it finds,
// and the same must be found without the preload (test_libc_news.py). What a libc has not is left
// out with a line. Built with _FORTIFY_SOURCE=3 where the headers know it.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUIRE(condition)                                                                         \
    ((condition) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #condition), _exit(1)))
#define THREADS 6
#ifndef SYS_mseal
#define SYS_mseal 462
#endif

static const char *folder;

static void *name(const char *what) {
    void *found = dlsym(RTLD_DEFAULT, what);
    if (!found)
        printf("%s: none here\n", what);
    return found;
}

// Runs a part in a child. Returns its wait status.
static int child_of(void (*part)(void)) {
    fflush(stdout);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        part();
        fflush(stdout);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    return status;
}

static char *path_of(const char *file) {
    char *path;
    REQUIRE(asprintf(&path, "%s/%s", folder, file) > 0);
    return path;
}

// ---- random numbers: the kernel's page has a state for each thread ------------------------------

#define DRAWS (THREADS * 4)
struct draws {
    _Atomic unsigned count;
    unsigned char bytes[DRAWS][16];
};
static struct draws *draws; // shared with the children
static void (*fill)(void *, size_t);

static void by_getrandom(void *to, size_t len) { REQUIRE(getrandom(to, len, 0) == (ssize_t)len); }

static void draw(void) { fill(draws->bytes[draws->count++], sizeof draws->bytes[0]); }

// Before and after a fork, in both.
static void *draw_beside_a_fork(void *unused) {
    draw();
    pid_t child = fork();
    if (child == 0) {
        draw();
        _exit(0);
    }
    REQUIRE(waitpid(child, NULL, 0) == child);
    draw();
    draw();
    return unused;
}

static void draws_differ(const char *how) {
    pthread_t thread[THREADS];
    draws->count = 0;
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_create(&thread[i], NULL, draw_beside_a_fork, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        REQUIRE(pthread_join(thread[i], NULL) == 0);
    unsigned same = 0;
    for (unsigned i = 0; i < draws->count; i++)
        for (unsigned k = 0; k < i; k++)
            same += memcmp(draws->bytes[i], draws->bytes[k], sizeof draws->bytes[0]) == 0;
    printf("%s: %u draws, %u alike\n", how, draws->count, same);
}

static void random_numbers(void) {
    draws = mmap(NULL, sizeof *draws, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(draws != MAP_FAILED);
    fill = by_getrandom;
    draws_differ("getrandom");
    *(void **)&fill = name("arc4random_buf");
    if (fill)
        draws_differ("arc4random_buf");
    // Into a block, in pieces and as a whole; 0 bytes are no error.
    unsigned char *block = calloc(1, 300000), none[64] = {0};
    REQUIRE(block && getrandom(block, 256, GRND_NONBLOCK) == 256);
    REQUIRE(memcmp(block, none, sizeof none) != 0);
    REQUIRE(getrandom(block, 0, 0) == 0 && getrandom(block, 300000, 0) > 0);
    errno = 0;
    ssize_t bad = getrandom(block, 1, 0xffff);
    printf("bad flags: %zd %s\n", bad, strerror(errno));
    free(block);
}

// ---- cancellation -------------------------------------------------------------------------------

static int pipes[2];
static _Atomic bool about;
static void mark(void *what) { printf("%s: cleaned up\n", (char *)what); }

static void in_read(void) {
    char byte;
    REQUIRE(read(pipes[0], &byte, 1) == 1);
}
static void in_nap(void) { REQUIRE(sleep(100) == 0); }
static void in_pause(void) { pause(); }
static long (*open_how)(int, const char *, struct open_how *, size_t);
static void in_openat2(void) { // of a named pipe that nobody writes
    struct open_how how = {.flags = O_RDONLY};
    open_how(AT_FDCWD, path_of("fifo"), &how, sizeof how);
}

struct cancelled {
    const char *name;
    void (*call)(void);
};

static void *sleeper(void *argument) {
    const struct cancelled *one = argument;
    pthread_cleanup_push(mark, (void *)one->name);
    about = true;
    one->call();
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(const struct cancelled *one) {
    pthread_t thread;
    void *result;
    about = false;
    REQUIRE(pthread_create(&thread, NULL, sleeper, (void *)one) == 0);
    while (!about)
        usleep(1000);
    usleep(30000);
    REQUIRE(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    printf("%s: %s\n", one->name, result == PTHREAD_CANCELED ? "cancelled" : "ended");
}

static void cancellation(void) {
    static const struct cancelled calls[] = {
        {"read", in_read}, {"sleep", in_nap}, {"pause", in_pause}};
    REQUIRE(pipe(pipes) == 0);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        cancelled(&calls[i]);
    REQUIRE(mkfifo(path_of("fifo"), 0600) == 0);
    *(void **)&open_how = name("openat2");
    if (open_how)
        cancelled(&(struct cancelled){"openat2", in_openat2});
}

// ---- abort --------------------------------------------------------------------------------------

static jmp_buf plain;
static sigjmp_buf with_mask;
static void jump(int number) { (void)number, longjmp(plain, 1); }
static void jump_with_mask(int number) { (void)number, siglongjmp(with_mask, 1); }

static void abort_setjmp(void) {
    signal(SIGABRT, jump);
    if (setjmp(plain) == 0)
        abort();
    _exit(2);
}

static void abort_sigsetjmp(void) {
    signal(SIGABRT, jump_with_mask);
    if (sigsetjmp(with_mask, 1) == 0)
        abort();
    _exit(3);
}

static void aborts(void) {
    printf("setjmp: %d\n", child_of(abort_setjmp));
    printf("sigsetjmp: %d\n", child_of(abort_sigsetjmp));
    printf("plain: %d\n", child_of(abort));
}

// ---- streams that are read: where the descriptor stands afterwards ------------------------------

static int shared_fd;

static FILE *read_a_little(void) {
    FILE *file = fdopen(dup(shared_fd), "r");
    REQUIRE(file && lseek(shared_fd, 0, SEEK_SET) == 0);
    for (int i = 0; i < 10; i++)
        REQUIRE(fgetc(file) != EOF);
    return file;
}

static void stands(const char *after) {
    printf("%s: %ld\n", after, (long)lseek(shared_fd, 0, SEEK_CUR));
}

static void read_and_exit(void) {
    read_a_little();
    exit(0);
}

static void offsets(void) {
    char *path = path_of("read");
    shared_fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    REQUIRE(shared_fd >= 0 && ftruncate(shared_fd, 100) == 0);
    FILE *file = read_a_little();
    REQUIRE(fflush(file) == 0);
    stands("fflush of a stream");
    fclose(file);
    file = read_a_little();
    REQUIRE(fflush(NULL) == 0);
    stands("fflush of all");
    fclose(file);
    fclose(read_a_little());
    stands("fclose");
    file = read_a_little();
    REQUIRE(ungetc('x', file) == 'x' && fflush(file) == 0);
    stands("fflush after ungetc");
    fclose(file);
    int status = child_of(read_and_exit);
    stands("exit of a child");
    printf("its status: %d\n", status);
    free(path);
}

// ---- threads: their stacks, TLS, rseq, numbers --------------------------------------------------

#define OWN 4000
static _Thread_local unsigned own[OWN];
static unsigned *(*of_module)(unsigned); // a library's thread-local array
static pid_t (*number_of)(pthread_t);

// The structure of linux/rseq.h begins with two numbers of the processor.
static bool has_rseq(void) {
    const ptrdiff_t *offset = dlsym(RTLD_DEFAULT, "__rseq_offset");
    const unsigned *size = dlsym(RTLD_DEFAULT, "__rseq_size");
    if (!offset || !size || !*size)
        return false;
    const uint32_t *area = (const void *)((char *)__builtin_thread_pointer() + *offset);
    return (int32_t)__atomic_load_n(&area[1], __ATOMIC_RELAXED) >= 0;
}

static void *in_thread(void *argument) {
    unsigned value = *(unsigned *)argument;
    unsigned *more = of_module ? of_module(OWN) : own, *block = malloc(OWN);
    for (unsigned i = 0; i < OWN; i++)
        own[i] = more[i] = value + i;
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        _exit(own[OWN - 1] == value + OWN - 1 && more[7] == value + 7 ? has_rseq() : 99);
    REQUIRE(waitpid(child, &status, 0) == child);
    free(realloc(block, (size_t)2 * OWN));
    bool number = !number_of || number_of(pthread_self()) == syscall(SYS_gettid);
    *(unsigned *)argument =
        (unsigned)(number && own[5] == value + 5 && more[OWN - 1] == value + OWN - 1 &&
                   has_rseq() == WEXITSTATUS(status));
    return NULL;
}

static void stacks(size_t size, size_t guard) {
    pthread_t thread[THREADS];
    unsigned value[THREADS], right = 0;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    REQUIRE(pthread_attr_setstacksize(&attr, size) == 0);
    REQUIRE(pthread_attr_setguardsize(&attr, guard) == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        value[i] = 1000 * i;
        REQUIRE(pthread_create(&thread[i], &attr, in_thread, &value[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        REQUIRE(pthread_join(thread[i], NULL) == 0);
        right += value[i];
    }
    printf("stack %zu, guard %zu: %u right\n", size, guard, right);
}

static void thread_memory(void) {
    *(void **)&number_of = name("pthread_gettid_np");
    void *module = dlopen(path_of("libtls.so"), RTLD_NOW);
    REQUIRE(module);
    *(void **)&of_module = dlsym(module, "of_this_thread");
    REQUIRE(of_module);
    printf("rseq: %d\n", has_rseq());
    for (size_t guard = 0; guard <= 65536; guard = guard ? guard * 16 : 4096) {
        stacks(98304, guard);
        stacks((size_t)8 << 20, guard);
    }
}

// ---- executable stacks --------------------------------------------------------------------------

static bool stack_is_executable(void) {
    char line[512];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "[stack]") && strstr(line, "rwxp");
    if (maps)
        fclose(maps);
    return found;
}

static void executable_stack(void) {
    printf("before: %d\n", stack_is_executable());
    void *module = dlopen(path_of("libexecstack.so"), RTLD_NOW);
    printf("loaded: %d\n", module != NULL);
    if (!module) {
        const char *why = dlerror(), *end = strrchr(why, ':');
        printf("%s\n", end ? end : why);
    }
    printf("after: %d\n", stack_is_executable());
}

// ---- names and checks ---------------------------------------------------------------------------

static volatile size_t length; // unknown to the compiler
char *volatile target;         // the root
static void fill_too_much(void) {
    size_t asked = length;
    char *to = malloc(asked);
    target = to;
    memset(to, 1, asked + 8);
}

static void new_names(void) {
    void (*sized)(void *, size_t), (*aligned_sized)(void *, size_t, size_t);
    size_t (*alignment)(const void *);
    *(void **)&sized = dlsym(RTLD_DEFAULT, "free_sized"); // ours, where libc has none
    *(void **)&aligned_sized = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    *(void **)&alignment = name("memalignment");
    for (size_t size = 1; size < 3000000; size = size * 3 + 1) {
        void *p = malloc(size), *q = aligned_alloc(64, (size + 63) & ~(size_t)63);
        REQUIRE(p && q);
        memset(p, 1, size);
        REQUIRE(!alignment || (alignment(p) >= 16 && alignment(q) >= 64 && alignment(NULL) == 0));
        sized ? sized(p, size) : free(p);
        aligned_sized ? aligned_sized(q, 64, (size + 63) & ~(size_t)63) : free(q);
    }
    int (*seal)(void *, size_t, unsigned long);
    *(void **)&seal = dlsym(RTLD_DEFAULT, "mseal");
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    long sealed = seal ? seal(page, 4096, 0) : syscall(SYS_mseal, page, 4096, 0);
    int result = munmap(page, 4096);
    printf("sealed %ld: munmap %d %s\n", sealed, result, result ? strerror(errno) : "");
}

static void checked_fills(void) {
    length = 40;
    int status = child_of(fill_too_much);
    printf("too much: signal %d\n", WTERMSIG(status));
    target = malloc(length);
    REQUIRE(target);
    memset(target, 2, length);
    free(target);
}

int main(int count, char **argument) {
    static const struct {
        const char *name;
        void (*part)(void);
    } parts[] = {{"random", random_numbers}, {"cancel", cancellation},
                 {"abort", aborts},          {"offsets", offsets},
                 {"threads", thread_memory}, {"stack", executable_stack},
                 {"names", new_names},       {"fortify", checked_fills}};
    REQUIRE(count == 3);
    folder = argument[2];
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].name, argument[1]) == 0)
            parts[i].part();
    puts("done");
    return 0;
}
