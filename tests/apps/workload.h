// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What list, skiplist, hashset and tree share: payloads that describe themselves, a model of what
// the structure must hold, and the modes `run`, `check` and `leak`.
//
// A program keeps SHARDS structures, each with one writing thread. The steps of an operation are:
//
//     build the payload -> intent -> publish by ONE pointer store -> expected[key] -> done
//     -> free the old payload
//
// So the process may stop anywhere. Every key holds exactly the serial that the model expects. Only
// the key of a pending intent may hold its old or its new serial.
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARDS = 2, KEYS = 4096 };
enum { EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_NO_STATE = 3 };
enum { PAYLOAD_LIMIT = 4 << 20 };

// Publishes a pointer. Whoever sees it sees all earlier stores. No later store may move before it,
// above all no free(). A release store alone does not keep the compiler from such a move.
#define PUBLISH(place, value)                                                                      \
    do {                                                                                           \
        __atomic_store_n((place), (value), __ATOMIC_RELEASE);                                      \
        __atomic_signal_fence(__ATOMIC_SEQ_CST);                                                   \
    } while (0)

struct payload {
    uint32_t crc; // of all fields below and the bytes
    uint32_t key;
    uint64_t serial;
    uint32_t shard;
    uint32_t length;
    unsigned char bytes[];
};

enum op { OP_PUT = 1, OP_DROP = 2 };

// What a shard must hold. One thread writes it. An operation is pending when `intent_serial` is one
// more than `done`.
struct model {
    uint64_t done;
    uint64_t intent_serial; // written last; op and key mean nothing before that
    uint32_t intent_op;
    uint32_t intent_key;
    uint64_t expected[KEYS]; // serial of the key's payload; 0: no payload
};

struct block {
    uintptr_t at;
    size_t size;
};

// What a walk of the structure found.
struct census {
    uint64_t keys, bytes, ops, digest;
    struct block *blocks;
    size_t count, capacity;
    uint64_t seen[SHARDS][KEYS];
    char error[160];
};

// The functions that each program supplies.
struct structure {
    const char *name;
    const char *more_usage;             // usage of the program's own modes, or NULL
    void (*build)(void);                // makes the state and publishes the global
    struct model *(*model)(unsigned s); // NULL when there is no state
    bool (*walk)(unsigned s, struct census *c);
    // put returns the displaced payload, or NULL; drop returns the unlinked payload.
    struct payload *(*put)(unsigned s, uint32_t key, struct payload *p);
    struct payload *(*drop)(unsigned s, uint32_t key);
    void (*repair)(unsigned s); // NULL, or called after a good check and before the first operation
    void (*tend)(unsigned s, uint64_t random); // NULL, or called now and then between operations
    int (*more_modes)(int argc, char **argv);  // NULL, or returns -1 for a mode of another program
};

static inline uint64_t mix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t random_next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    return mix64(*state);
}

__attribute__((noreturn)) static inline void die(const char *what) {
    printf("wrong: %s\n", what);
    fflush(stdout);
    exit(EXIT_WRONG);
}

static inline void *must(void *p) {
    if (!p)
        die("out of memory");
    return p;
}

// CRC-32 (the reflected polynomial of zip), eight bytes a step.
static uint32_t crc_table[8][256];

static void crc_start(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (c & 1 ? 0xedb88320u : 0);
        crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) {
            uint32_t c = crc_table[t - 1][i];
            crc_table[t][i] = crc_table[0][c & 255] ^ (c >> 8);
        }
}

static uint32_t crc32_of(const void *data, size_t length) {
    const unsigned char *p = data;
    uint32_t c = ~0u;
    for (; length >= 8; length -= 8, p += 8) {
        uint32_t low =
            c ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        c = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^
            crc_table[4][low >> 24] ^ crc_table[3][p[4]] ^ crc_table[2][p[5]] ^ crc_table[1][p[6]] ^
            crc_table[0][p[7]];
    }
    while (length--)
        c = crc_table[0][(c ^ *p++) & 255] ^ (c >> 8);
    return ~c;
}

static inline size_t payload_size(const struct payload *p) { return sizeof *p + p->length; }

static uint32_t payload_crc(const struct payload *p) {
    return crc32_of(&p->key, payload_size(p) - offsetof(struct payload, key));
}

static bool small_payloads; // none over 3000 bytes: then all payloads together have less than 25 MB

// 8 to 3000 bytes. One payload in 128 has 20 KB to 3 MB, and each doubling in between is equally
// likely.
static uint32_t payload_length(uint64_t r) {
    if (small_payloads || r % 128)
        return 8 + (uint32_t)(r >> 8) % 2993;
    uint32_t base = 20480u << (r >> 8) % 8;
    return base + (uint32_t)((r >> 16) % (base / 8));
}

// Mostly malloc, now and then calloc, realloc or posix_memalign.
static void *payload_space(size_t size, uint64_t r) {
    void *p = NULL;
    switch (r % 16) {
    case 0:
        return must(calloc(1, size));
    case 1:
        p = must(malloc(size / 2 + 1));
        memset(p, 0x5a, size / 2 + 1);
        return must(realloc(p, size));
    case 2:
        return posix_memalign(&p, (size_t)16 << (r >> 4) % 9, size) ? must(NULL) : p;
    default:
        return must(malloc(size));
    }
}

static struct payload *payload_new(unsigned s, uint32_t key, uint64_t serial, uint64_t *rng) {
    uint32_t length = payload_length(random_next(rng));
    struct payload *p = payload_space(sizeof *p + length, random_next(rng));
    p->key = key;
    p->serial = serial;
    p->shard = s;
    p->length = length;
    uint32_t i = 0;
    for (; i + 8 <= length; i += 8) {
        uint64_t word = random_next(rng);
        memcpy(p->bytes + i, &word, 8);
    }
    memset(p->bytes + i, (int)key & 255, length - i);
    p->crc = payload_crc(p);
    return p;
}

static bool payload_good(const struct payload *p, unsigned s, uint32_t key) {
    return p->key == key && p->shard == s && p->length < PAYLOAD_LIMIT && p->crc == payload_crc(p);
}

// ---- Census: a walk reports what it finds, and this judges it.

__attribute__((format(printf, 2, 3))) static bool census_fail(struct census *c, const char *format,
                                                              ...) {
    va_list args;
    va_start(args, format);
    if (!c->error[0])
        vsnprintf(c->error, sizeof c->error, format, args);
    va_end(args);
    return false;
}

static bool census_block(struct census *c, const void *at, size_t size) {
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? c->capacity * 2 : 1024;
        c->blocks = must(realloc(c->blocks, c->capacity * sizeof *c->blocks));
    }
    c->blocks[c->count++] = (struct block){(uintptr_t)at, size};
    return true;
}

// A walk may report each key of a shard once. This also ends the walk of a structure that has
// become a circle.
static bool census_entry(struct census *c, unsigned s, uint32_t key, const struct payload *p) {
    if (key >= KEYS)
        return census_fail(c, "shard %u: key %u out of range", s, key);
    if (c->seen[s][key])
        return census_fail(c, "shard %u: key %u reached twice", s, key);
    if (!p)
        return census_fail(c, "shard %u: key %u has no payload", s, key);
    if (!payload_good(p, s, key) || !p->serial)
        return census_fail(
            c, "shard %u: key %u: payload at %p damaged (key %u serial %llu length %u)", s, key,
            (const void *)p, p->key, (unsigned long long)p->serial, p->length);
    c->seen[s][key] = p->serial;
    c->keys++;
    c->bytes += p->length;
    c->digest += mix64(p->serial ^ mix64((uint64_t)p->crc << 16 | key << 1 | s));
    return census_block(c, p, payload_size(p));
}

static int block_order(const void *a, const void *b) {
    const struct block *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static bool census_disjoint(struct census *c) {
    qsort(c->blocks, c->count, sizeof *c->blocks, block_order);
    for (size_t i = 1; i < c->count; i++)
        if (c->blocks[i - 1].at + c->blocks[i - 1].size > c->blocks[i].at)
            return census_fail(c, "blocks at %#zx (%zu bytes) and %#zx (%zu bytes) overlap",
                               (size_t)c->blocks[i - 1].at, c->blocks[i - 1].size,
                               (size_t)c->blocks[i].at, c->blocks[i].size);
    return true;
}

static bool model_pending(const struct model *m) { return m->intent_serial == m->done + 1; }

static bool model_agrees(struct census *c, const struct model *m, unsigned s) {
    if (m->intent_serial != m->done && !model_pending(m))
        return census_fail(c, "shard %u: done %llu but intent %llu", s, (unsigned long long)m->done,
                           (unsigned long long)m->intent_serial);
    for (uint32_t key = 0; key < KEYS; key++) {
        uint64_t found = c->seen[s][key];
        if (found == m->expected[key])
            continue;
        if (model_pending(m) && key == m->intent_key &&
            found == (m->intent_op == OP_PUT ? m->intent_serial : 0))
            continue;
        return census_fail(c, "shard %u: key %u has serial %llu, expected %llu", s, key,
                           (unsigned long long)found, (unsigned long long)m->expected[key]);
    }
    c->ops += m->done;
    return true;
}

static struct census *census_take(const struct structure *t) {
    struct census *c = must(calloc(1, sizeof *c));
    bool good = true;
    for (unsigned s = 0; good && s < SHARDS; s++)
        good = t->walk(s, c) && model_agrees(c, t->model(s), s);
    if (good)
        census_disjoint(c);
    return c;
}

static void census_free(struct census *c) {
    free(c->blocks);
    free(c);
}

static bool census_print(const struct census *c) {
    if (c->error[0])
        printf("wrong: %s\n", c->error);
    else
        printf("ok keys=%llu bytes=%llu ops=%llu digest=%016llx\n", (unsigned long long)c->keys,
               (unsigned long long)c->bytes, (unsigned long long)c->ops,
               (unsigned long long)c->digest);
    fflush(stdout);
    return !c->error[0];
}

// ---- Modes.

struct options {
    unsigned threads;
    bool verbose;
    bool kill; // end by SIGKILL instead of exit
};

struct worker {
    const struct structure *structure;
    const struct options *options;
    uint64_t ops, rng[SHARDS];
    unsigned first, step; // the worker's shards: first, first + step, ...
};

static void operation(const struct structure *t, unsigned s, uint64_t *rng, bool verbose) {
    struct model *m = t->model(s);
    uint64_t r = random_next(rng), serial = m->done + 1;
    uint32_t key = (uint32_t)r % KEYS;
    uint64_t before = m->expected[key];
    bool put = !before || r >> 63;
    if (t->tend && (r >> 32) % 2048 == 0)
        t->tend(s, mix64(r));
    struct payload *p = put ? payload_new(s, key, serial, rng) : NULL;

    m->intent_op = put ? OP_PUT : OP_DROP;
    m->intent_key = key;
    PUBLISH(&m->intent_serial, serial);
    struct payload *old = put ? t->put(s, key, p) : t->drop(s, key);
    PUBLISH(&m->expected[key], put ? serial : 0);
    PUBLISH(&m->done, serial);

    if ((old ? old->serial : 0) != before || (old && !payload_good(old, s, key)))
        die("an operation displaced a payload other than the expected one");
    free(old);
    if (verbose && serial % 1000 == 0) {
        printf("shard %u ops %llu\n", s, (unsigned long long)serial);
        fflush(stdout);
    }
}

static void *worker_main(void *argument) {
    struct worker *w = argument;
    unsigned s = w->first;
    for (uint64_t i = 0; !w->ops || i < w->ops; i++) {
        operation(w->structure, s, &w->rng[s], w->options->verbose);
        s += w->step;
        if (s >= SHARDS)
            s = w->first;
    }
    return NULL;
}

// Ends a pending operation in the model: it has happened when the census found it.
static void end_pending(const struct structure *t, const struct census *c) {
    for (unsigned s = 0; s < SHARDS; s++) {
        struct model *m = t->model(s);
        if (!model_pending(m))
            continue;
        PUBLISH(&m->expected[m->intent_key], c->seen[s][m->intent_key]);
        PUBLISH(&m->done, m->intent_serial);
    }
}

static bool resume(const struct structure *t) {
    struct census *c = census_take(t);
    bool good = census_print(c);
    if (good)
        end_pending(t, c);
    census_free(c);
    for (unsigned s = 0; good && t->repair && s < SHARDS; s++)
        t->repair(s);
    return good;
}

static int finish(const struct options *o, int status) {
    fflush(stdout);
    if (o->kill)
        raise(SIGKILL);
    return status;
}

static int mode_check(const struct structure *t) {
    if (!t->model(0)) {
        printf("none: there is no state\n");
        return EXIT_NO_STATE;
    }
    struct census *c = census_take(t);
    bool good = census_print(c);
    census_free(c);
    return good ? 0 : EXIT_WRONG;
}

static int mode_run(const struct structure *t, const struct options *o, uint64_t ops,
                    uint64_t seed) {
    if (!t->model(0))
        t->build();
    else if (!resume(t))
        return EXIT_WRONG;
    printf("ready\n");
    fflush(stdout);

    struct worker w[SHARDS] = {{0}};
    pthread_t id[SHARDS];
    for (unsigned i = 0; i < o->threads; i++) {
        w[i] = (struct worker){.structure = t, .options = o, .first = i, .step = o->threads};
        // When OPS is odd, the extra operation goes to shard 0, whatever the number of threads.
        w[i].ops = o->threads == 1 ? ops : (ops + SHARDS - 1 - i) / SHARDS;
        for (unsigned s = 0; s < SHARDS; s++)
            w[i].rng[s] = mix64(seed ^ mix64(t->model(s)->done << 1 | s));
    }
    for (unsigned i = 1; i < o->threads; i++)
        if ((ops == 0 || w[i].ops) && pthread_create(&id[i], NULL, worker_main, &w[i]))
            die("no thread");
    worker_main(&w[0]);
    for (unsigned i = 1; i < o->threads; i++)
        if (ops == 0 || w[i].ops)
            pthread_join(id[i], NULL);
    return finish(o, mode_check(t));
}

static int mode_leak(const struct options *o, uint64_t count) {
    uint64_t rng = 1, bytes = 0;
    for (uint64_t i = 0; i < count; i++) {
        size_t size = payload_length(random_next(&rng));
        unsigned char *volatile p = must(malloc(size));
        memset(p, 0x11, size);
        bytes += size;
        p = NULL;
    }
    printf("leaked blocks=%llu bytes=%llu\n", (unsigned long long)count, (unsigned long long)bytes);
    return finish(o, 0);
}

static bool parse_number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    *value = v;
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno;
}

static int usage(const struct structure *t) {
    fprintf(stderr,
            "usage: %s run OPS SEED [-t 1|2] [-s] [-v] [-k]   OPS 0: for ever\n"
            "       %s check\n"
            "       %s leak N [-s] [-k]   -s: small blocks only; -k: end by SIGKILL\n%s",
            t->name, t->name, t->name, t->more_usage ? t->more_usage : "");
    return EXIT_USAGE;
}

static bool parse_options(int argc, char **argv, struct options *o) {
    for (int i = 0; i < argc; i++) {
        uint64_t n;
        if (!strcmp(argv[i], "-v"))
            o->verbose = true;
        else if (!strcmp(argv[i], "-k"))
            o->kill = true;
        else if (!strcmp(argv[i], "-s"))
            small_payloads = true;
        else if (!strcmp(argv[i], "-t") && i + 1 < argc && parse_number(argv[i + 1], &n) &&
                 n >= 1 && n <= SHARDS)
            o->threads = (unsigned)n, i++;
        else
            return false;
    }
    return true;
}

static int workload_main(const struct structure *t, int argc, char **argv) {
    struct options o = {.threads = 1};
    uint64_t n = 0, seed = 0;
    crc_start();
    if (argc == 2 && !strcmp(argv[1], "check"))
        return mode_check(t);
    if (argc >= 4 && !strcmp(argv[1], "run") && parse_number(argv[2], &n) &&
        parse_number(argv[3], &seed) && parse_options(argc - 4, argv + 4, &o))
        return mode_run(t, &o, n, seed);
    if (argc >= 3 && !strcmp(argv[1], "leak") && parse_number(argv[2], &n) &&
        parse_options(argc - 3, argv + 3, &o))
        return mode_leak(&o, n);
    int status = t->more_modes && argc >= 2 ? t->more_modes(argc, argv) : -1;
    return status >= 0 ? status : usage(t);
}

#endif
