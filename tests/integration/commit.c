// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Programs under PMALLOC_COMMIT. Each thread keeps a row of blocks, of all sizes, with contents
// that check themselves; it replaces them one by one. It also takes tickets from one counter, and
// notes the last one it took: at no instant has a note more than the counter. The roots are `store`
// and `tickets`.
//
//   commit churn THREADS MILLISECONDS   until it is killed, or the time is over; with api it makes
//                                       commits, and says after each how many tickets there were
//   commit bare MILLISECONDS            the same as `churn 1`, with all descriptors closed first
//   commit leave THREADS MILLISECONDS   ends while its threads run; says how many tickets
//   commit check LEAST                  all blocks are right, and there are LEAST tickets or more
//   commit shrink                       takes much, commits, frees it, commits
//   commit steps COUNT                  COUNT commits, each of changes to all of 15 MiB
//   commit sweep                        stores to each page of 64 MiB once; says how much memory is
//                                       private, and is killed
//   commit late                         takes a huge block, and fills it once it is told to
//   commit fill BYTES ROUNDS            takes blocks until there is no memory, and commits; then
//                                       changes some, commits, changes all, commits, and frees
//                                       every second one; again
//   commit errors                       what pmalloc_commit() says
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int pmalloc_commit(void) __attribute__((weak));

#define ROWS 8
#define BLOCKS 48

struct block {
    size_t size;
    uint64_t seed;
    unsigned char bytes[];
};
struct row {
    uint64_t ticket;
    struct block *block[BLOCKS];
};
struct store {
    struct row *row[ROWS];
};
struct store *store;
uint64_t tickets;

static uint64_t rnd(uint64_t *seed) {
    *seed ^= *seed << 13, *seed ^= *seed >> 7, *seed ^= *seed << 17;
    return *seed;
}

static unsigned char byte_of(uint64_t seed, size_t i) {
    return (unsigned char)(seed >> (i % 7 * 8) ^ i);
}

static struct block *make_block(uint64_t *seed) {
    uint64_t kind = rnd(seed) % 16;
    size_t size = kind < 12   ? rnd(seed) % 2000
                  : kind < 15 ? rnd(seed) % 100000
                              : rnd(seed) % 3000000;
    struct block *b = malloc(sizeof *b + size);
    if (!b)
        return NULL;
    b->size = size;
    b->seed = rnd(seed);
    for (size_t i = 0; i < size; i++)
        b->bytes[i] = byte_of(b->seed, i);
    return b;
}

static void make_store(void) {
    struct store *s = calloc(1, sizeof *s);
    for (unsigned i = 0; i < ROWS; i++)
        s->row[i] = calloc(1, sizeof *s->row[i]);
    __atomic_store_n(&store, s, __ATOMIC_RELEASE);
}

static struct timespec until;

static int is_over(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > until.tv_sec ||
           (now.tv_sec == until.tv_sec && now.tv_nsec >= until.tv_nsec);
}

static int says; // commits are made, and said

static void *churn(void *arg) {
    struct row *row = arg;
    uint64_t seed = (uint64_t)(uintptr_t)row ^ (uint64_t)getpid() << 32 ^ 88172645463325252ull;
    for (unsigned n = 1; !is_over(); n++) {
        struct block **place = &row->block[rnd(&seed) % BLOCKS], *old = *place;
        struct block *fresh = rnd(&seed) % 5 ? make_block(&seed) : NULL;
        __atomic_store_n(place, fresh, __ATOMIC_RELEASE);
        free(old);
        uint64_t ticket = __atomic_add_fetch(&tickets, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&row->ticket, ticket, __ATOMIC_SEQ_CST);
        if (says && n % 64 == 0) {
            uint64_t before = __atomic_load_n(&tickets, __ATOMIC_SEQ_CST);
            if (pmalloc_commit() == 0)
                printf("%lu\n", (unsigned long)before), fflush(stdout);
        }
    }
    return NULL;
}

static int check(uint64_t least) {
    uint64_t blocks = 0;
    if (!store)
        return least ? 3 : 0;
    for (unsigned i = 0; i < ROWS; i++) {
        const struct row *row = store->row[i];
        if (row->ticket > tickets) {
            printf("row %u has ticket %lu of %lu\n", i, (unsigned long)row->ticket,
                   (unsigned long)tickets);
            return 1;
        }
        for (unsigned k = 0; k < BLOCKS; k++) {
            const struct block *b = row->block[k];
            for (size_t at = 0; b && at < b->size; at++)
                if (b->bytes[at] != byte_of(b->seed, at)) {
                    printf("row %u block %u byte %zu of %zu is wrong\n", i, k, at, b->size);
                    return 1;
                }
            blocks += b != NULL;
        }
    }
    printf("%lu blocks, %lu tickets\n", (unsigned long)blocks, (unsigned long)tickets);
    return tickets < least ? 2 : 0;
}

static int run_churn(unsigned threads, unsigned ms, int leaves) {
    pthread_t thread[ROWS];
    if (!store)
        make_store();
    if (check(0) != 0)
        return 1;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000L;
    until.tv_sec += leaves ? 60 : 0;
    for (unsigned i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, churn, store->row[i]);
    if (leaves) {
        usleep(ms * 1000);
        printf("%lu\n", (unsigned long)__atomic_load_n(&tickets, __ATOMIC_SEQ_CST));
        exit(0);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    return check(0);
}

#define LARGE 64
#define LARGE_BYTES (1u << 20)

static void say_commit(void) {
    int status = pmalloc_commit();
    printf("%d %s\n", status, status ? strerror(errno) : "");
}

static int shrink(void) {
    make_store();
    struct block **kept = store->row[0]->block;
    void *large[LARGE];
    uint64_t seed = 4711;
    for (unsigned i = 0; i < LARGE; i++) {
        large[i] = malloc(LARGE_BYTES);
        memset(large[i], 0xa5, LARGE_BYTES);
        kept[i % BLOCKS] = i < BLOCKS ? make_block(&seed) : kept[i % BLOCKS];
    }
    say_commit();
    for (unsigned i = 0; i < LARGE; i++)
        free(large[i]);
    say_commit();
    // What was released reads as zeroes, and is used again.
    for (unsigned i = 0; i < LARGE / 2; i++) {
        char *zeroes = calloc(1, LARGE_BYTES);
        for (unsigned at = 0; at < LARGE_BYTES; at++)
            if (zeroes[at])
                return 1;
        memset(zeroes, 1, LARGE_BYTES);
        free(zeroes);
        if (i % 8 == 0)
            say_commit();
    }
    for (unsigned i = 0; i < 3; i++)
        say_commit();
    return check(0);
}

#define STEP_BYTES 40000u

// Every row changes in place, and has one block replaced.
static void change_row(struct row *row, uint64_t *seed) {
    for (unsigned k = 0; k < BLOCKS; k++) {
        struct block *b = row->block[k];
        if (b && rnd(seed) % 8)
            continue;
        if (!b || rnd(seed) % 4 == 0) {
            b = row->block[k] = malloc(sizeof *b + STEP_BYTES);
            b->size = STEP_BYTES;
        }
        b->seed = rnd(seed);
        for (size_t i = 0; i < b->size; i++)
            b->bytes[i] = byte_of(b->seed, i);
    }
}

static int run_steps(unsigned count) {
    uint64_t seed = 4711;
    if (!store)
        make_store();
    for (unsigned n = 0; n < count; n++) {
        for (unsigned i = 0; i < ROWS; i++) {
            change_row(store->row[i], &seed);
            store->row[i]->ticket = tickets + 1;
        }
        tickets++;
        if (pmalloc_commit() != 0)
            return 1;
        printf("%lu\n", (unsigned long)tickets), fflush(stdout);
    }
    return check(count);
}

static int sweep(void) {
    char line[256];
    make_store();
    struct block *b = malloc((64u << 20) - 64);
    store->row[0]->block[0] = b;
    b->size = 0;
    for (size_t at = 0; at < (64u << 20) - 4096; at += 4096) {
        b->bytes[at] = 1;
        if (at % (1u << 20) == 0)
            usleep(4000);
    }
    unsigned long least = ~0ul;
    for (int i = 0; i < 100 && least > 45 << 10; i++, usleep(20000)) {
        FILE *status = fopen("/proc/self/status", "r");
        while (status && fgets(line, sizeof line, status))
            if (strncmp(line, "RssAnon:", 8) == 0 && strtoul(line + 8, NULL, 10) < least)
                least = strtoul(line + 8, NULL, 10);
        fclose(status);
    }
    printf("%lu\n", least);
    fflush(stdout);
    raise(SIGKILL);
    return 1;
}

#define HUGE_BYTES ((size_t)16 << 20)

static int late(void) {
    make_store();
    struct block *b = malloc(sizeof *b + HUGE_BYTES);
    say_commit();
    fflush(stdout);
    getchar(); // meanwhile the medium gets full
    b->size = HUGE_BYTES;
    b->seed = 4711;
    for (size_t i = 0; i < b->size; i++)
        b->bytes[i] = byte_of(b->seed, i);
    store->row[0]->block[0] = b;
    tickets = 1;
    say_commit();
    fflush(stdout);
    getchar(); // meanwhile there is room again
    tickets = 2;
    say_commit();
    fflush(stdout);
    raise(SIGKILL);
    return 1;
}

static void fill_block(struct block *b, size_t size, uint64_t seed) {
    b->size = size;
    b->seed = seed;
    for (size_t i = 0; i < size; i++)
        b->bytes[i] = byte_of(seed, i);
}

static void change_blocks(unsigned count, uint64_t seed) {
    for (unsigned at = 0; at < count; at++) {
        struct block *b = store->row[at / BLOCKS]->block[at % BLOCKS];
        if (b)
            fill_block(b, b->size, at + seed);
    }
}

// Too little to end a lap of the journal: the commit of all blocks would go behind it.
#define PART_BYTES ((size_t)3900 << 10)

// Says how many blocks there are, and what three commits have said.
static int fill(size_t size, unsigned rounds) {
    if (!store)
        make_store();
    for (unsigned n = 0; n < rounds; n++) {
        unsigned blocks = 0;
        for (unsigned at = 0; at < ROWS * BLOCKS; at++, blocks++) {
            struct block **place = &store->row[at / BLOCKS]->block[at % BLOCKS];
            struct block *b = *place ? *place : malloc(sizeof *b + size);
            if (!b)
                break;
            if (!*place)
                fill_block(b, size, at + 4711);
            *place = b;
        }
        printf("%u ", blocks);
        say_commit();
        change_blocks(PART_BYTES / size, n);
        say_commit();
        change_blocks(ROWS * BLOCKS, n + 1);
        tickets++;
        say_commit();
        fflush(stdout);
        for (unsigned at = 0; at < ROWS * BLOCKS && n + 1 < rounds; at += 2) {
            free(store->row[at / BLOCKS]->block[at % BLOCKS]);
            store->row[at / BLOCKS]->block[at % BLOCKS] = NULL;
        }
    }
    raise(SIGKILL);
    return 1;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    const char *mode = getenv("PMALLOC_COMMIT");
    says = mode && strcmp(mode, "api") == 0 && strcmp(what, "leave") != 0;
    if (strcmp(what, "churn") == 0 && argc == 4)
        return run_churn((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]), 0);
    if (strcmp(what, "leave") == 0 && argc == 4)
        return run_churn((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]), 1);
    if (strcmp(what, "check") == 0 && argc == 3)
        return check(strtoull(argv[2], NULL, 10));
    if (strcmp(what, "shrink") == 0)
        return shrink();
    if (strcmp(what, "bare") == 0 && argc == 3) {
        for (int fd = 3; fd < 65536; fd++)
            close(fd);
        return run_churn(1, (unsigned)atoi(argv[2]), 0);
    }
    if (strcmp(what, "steps") == 0 && argc == 3)
        return run_steps((unsigned)atoi(argv[2]));
    if (strcmp(what, "sweep") == 0)
        return sweep();
    if (strcmp(what, "late") == 0)
        return late();
    if (strcmp(what, "fill") == 0 && argc == 4)
        return fill(strtoul(argv[2], NULL, 10), (unsigned)atoi(argv[3]));
    if (strcmp(what, "errors") == 0) {
        say_commit();
        return 0;
    }
    return 64;
}
