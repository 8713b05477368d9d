// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that start, allocate, hand blocks to each other, and end in every way there is. `threads
// MODE [N]` prints what the test compares; status 3: a block has wrong contents.
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WAVE = 50, BLOCKS = 40, MAILBOXES = 256 };

void *keep; // a root, so that what is left at the end stays live

static void wrong(const char *what) {
    fprintf(stderr, "threads: %s\n", what);
    _exit(3);
}

// ---- blocks that check themselves ---------------------------------------------------------------

struct block {
    size_t size;
    uint64_t seal; // made from its own address and size
};

static uint64_t seal_of(const struct block *b) { return (uint64_t)(uintptr_t)b * 31 + b->size; }

static struct block *take(unsigned *seed) {
    static const size_t sizes[] = {24, 64, 200, 1000, 5000, 16384, 40000};
    size_t size = sizes[(unsigned)rand_r(seed) % 7];
    struct block *b = malloc(size);
    if (!b)
        wrong("out of memory");
    b->size = size;
    b->seal = seal_of(b);
    memset(b + 1, (int)(b->seal & 0xff), size - sizeof *b);
    return b;
}

static void give(struct block *b) {
    if (!b)
        return;
    const unsigned char *byte = (const unsigned char *)(b + 1);
    size_t len = b->size - sizeof *b;
    if (b->seal != seal_of(b))
        wrong("a block was overwritten");
    for (size_t i = 0; i < len; i++)
        if (byte[i] != (unsigned char)b->seal)
            wrong("a block's contents were overwritten");
    b->seal = 0;
    free(b);
}

static _Atomic(struct block *) mailbox[MAILBOXES];

// Of a crowd that meets, every thread holds all its blocks at once: no later crowd needs more
// caches or a larger heap, however its threads take turns.
static bool meets;
static pthread_barrier_t all_hold;

// Frees half of the blocks here. Another thread frees the rest, when it comes to the mailbox.
static void *work(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    struct block *mine[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        mine[i] = take(&seed);
    if (meets)
        pthread_barrier_wait(&all_hold);
    for (int i = 0; i < BLOCKS; i++)
        give(i % 2 ? mine[i] : atomic_exchange(&mailbox[rand_r(&seed) % MAILBOXES], mine[i]));
    return NULL;
}

static void *work_forever(void *arg) {
    for (unsigned seed = (unsigned)(uintptr_t)arg;; seed++)
        work((void *)(uintptr_t)seed);
    return NULL;
}

// ---- growth -------------------------------------------------------------------------------------

static long field(const char *file, const char *name) {
    char line[256];
    long value = -1;
    FILE *in = fopen(file, "r");
    while (in && fgets(line, sizeof line, in))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    if (in)
        fclose(in);
    return value;
}

static long mappings(void) {
    long count = 0;
    FILE *in = fopen("/proc/self/maps", "r");
    for (int c; (c = getc(in)) != EOF;)
        count += c == '\n';
    fclose(in);
    return count;
}

static void empty_mailboxes(void) {
    for (int i = 0; i < MAILBOXES; i++)
        give(atomic_exchange(&mailbox[i], NULL));
}

static void say_size(const char *when) {
    empty_mailboxes();
    malloc_trim(0);
    struct mallinfo2 m = mallinfo2();
    printf("%s rss=%ld maps=%ld used=%zu threads=%ld\n", when, field("/proc/self/status", "VmRSS:"),
           mappings(), m.uordblks + m.hblkhd, field("/proc/self/status", "Threads:"));
}

static void start(pthread_t *thread, void *(*fn)(void *), uintptr_t arg) {
    if (pthread_create(thread, NULL, fn, (void *)arg) != 0)
        wrong("pthread_create");
}

static void crowd(int count, int wave, void *(*fn)(void *)) {
    for (int done = 0; done < count; done += wave) {
        pthread_t thread[WAVE];
        for (int i = 0; i < wave; i++)
            start(&thread[i], fn, (uintptr_t)(done + i));
        for (int i = 0; i < wave; i++)
            pthread_join(thread[i], NULL);
    }
}

// Whatever is made once is made here.
static void warm_up(int count, int wave, void *(*fn)(void *)) {
    pthread_barrier_init(&all_hold, NULL, (unsigned)wave);
    meets = true;
    crowd(count, wave, fn);
    meets = false;
}

static void grow(int count, int wave) {
    warm_up(count / 10, wave, work);
    say_size("before");
    crowd(count, wave, work);
    say_size("after");
    malloc_info(0, stdout);
}

// ---- ends ---------------------------------------------------------------------------------------

static void exit_amid(int count) {
    pthread_t thread;
    for (int i = 0; i < 8; i++)
        start(&thread, work_forever, (uintptr_t)i);
    usleep((useconds_t)count);
    printf("the end\n");
}

static void *cancelled(void *arg) {
    int asynchronous = (uintptr_t)arg & 1;
    pthread_setcanceltype(asynchronous ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED,
                          NULL);
    for (unsigned seed = (unsigned)(uintptr_t)arg;; seed++) {
        struct block *b[8];
        for (int i = 0; i < 8; i++)
            b[i] = take(&seed);
        free(malloc(6000000));
        for (int i = 0; i < 8; i++)
            give(b[i]);
        if (!asynchronous)
            pthread_testcancel();
    }
    return NULL;
}

// If the other threads can still allocate afterwards, no lock was left held.
static void cancel(int count, int asynchronous) {
    for (int i = 0; i < count; i++) {
        pthread_t thread[4];
        unsigned seed = (unsigned)i;
        for (int k = 0; k < 4; k++)
            start(&thread[k], cancelled, (uintptr_t)(i * 8 + k * 2 + asynchronous));
        usleep((useconds_t)rand_r(&seed) % 300);
        for (int k = 0; k < 4; k++)
            pthread_cancel(thread[k]);
        for (int k = 0; k < 4; k++)
            pthread_join(thread[k], NULL);
        for (int k = 0; k < 200; k++)
            give(take(&seed));
        if (i == count / 10)
            say_size("before");
    }
    say_size("after");
    malloc_info(0, stdout);
}

// ---- destructors --------------------------------------------------------------------------------

static pthread_key_t key[4];
static atomic_long destroyed;

// Runs again as often as POSIX promises, each time with another block, and allocates in between.
static void destructor(void *value) {
    struct block *old = value;
    unsigned seed = (unsigned)(uintptr_t)value;
    static _Thread_local int again = 3; // fewer than the rounds that libc promises
    for (int i = 0; i < BLOCKS; i++)
        give(take(&seed));
    for (int i = 0; again && i < 4; i++)
        if (!pthread_getspecific(key[i])) { // its own key, or one whose round is over
            pthread_setspecific(key[i], take(&seed));
            again--;
            break;
        }
    give(old);
    atomic_fetch_add(&destroyed, 1);
}

static void *with_keys(void *arg) {
    unsigned seed = (unsigned)(uintptr_t)arg;
    for (int i = 0; i < 4; i++)
        pthread_setspecific(key[i], take(&seed));
    return work(arg);
}

static void keys(int count) {
    for (int i = 0; i < 4; i++)
        pthread_key_create(&key[i], destructor);
    warm_up(count / 4, WAVE, with_keys);
    say_size("before");
    crowd(count, WAVE, with_keys);
    say_size("after");
    printf("destructors: %d\n", atomic_load(&destroyed) >= count * 5);
    malloc_info(0, stdout);
}

// Ends as a thread of a runtime without libpthread would: without destructor or cleanup.
static void *without_a_word(void *arg) {
    work(arg);
    return (void *)syscall(SYS_exit, 0);
}

static void raw(int count) {
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        start(&thread, without_a_word, (uintptr_t)i);
        pthread_join(thread, NULL); // the kernel clears the number that this waits for
    }
    crowd(WAVE, WAVE, work);
    empty_mailboxes();
    printf("raw\n");
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    int count = argc > 2 ? atoi(argv[2]) : 1000;
    setvbuf(stdout, NULL, _IOFBF, 4096);
    keep = malloc(100);
    if (!strcmp(mode, "waves"))
        grow(count, WAVE);
    else if (!strcmp(mode, "sequence"))
        grow(count, 1);
    else if (!strcmp(mode, "exit"))
        exit_amid(count);
    else if (!strcmp(mode, "cancel"))
        cancel(count, 0);
    else if (!strcmp(mode, "cancel-async"))
        cancel(count, 1);
    else if (!strcmp(mode, "keys"))
        keys(count);
    else if (!strcmp(mode, "raw"))
        raw(count);
    else
        wrong("which mode?");
    return 0;
}
