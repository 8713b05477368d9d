// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The program that runs in the guest when the power is cut: an ordinary program with one root,
// `state`.
//
//     churn run SEED FROM [-f]   works for ever; says "ack N" after operation N
//     churn walk SEED            says what is there, in lines that ledger.py reads
//     churn clear                forgets all objects; the heap stays
//
// Operation N stores a new object into a slot, or NULL, and frees the old object. Slot, size and
// bytes follow from SEED and N alone. So the reader of the acknowledgements knows what must be
// there. -f flushes the program's own data, as programs must where caches do not survive (ADR). A
// run goes on after the last operation in the heap, or after operation FROM where FROM is greater.
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SLOTS = 256, PAGE = 4096, LINE = 64 };
enum { EXIT_USAGE = 2 };

struct object {
    uint64_t serial, size; // size counts the bytes of the whole object
    uint64_t words[];
};

struct state {
    uint64_t done;
    struct object *slot[SLOTS];
};

struct state *state;

static bool flushes;
static uint64_t seed;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// ledger.py repeats this arithmetic: dice(), slot_of() and deletes().
static uint64_t dice(uint64_t n) { return mix(seed ^ mix(n)); }

// There are eight groups of slots. Each is used half as often as the group before, so that there
// are objects of all ages.
static unsigned slot_of(uint64_t n) {
    uint64_t r = dice(n);
    unsigned group = 0;
    while (group < 7 && (r >> (56 + group)) & 1)
        group++;
    return group * (SLOTS / 8) + (unsigned)(r % (SLOTS / 8));
}

static bool deletes(uint64_t n) { return (dice(n) >> 8) % 8 == 0; }

// Most objects are small. One in 16 has 16 KiB to 1 MiB, one in 128 has 2 to 5 MiB.
static uint64_t size_of(uint64_t n) {
    uint64_t r = dice(n) >> 16, pick = r % 128, size = r >> 8;
    if (pick == 0)
        size = (2u << 20) + size % (3u << 20);
    else if (pick <= 8)
        size = (16u << 10 << pick % 7) + size % (16u << 10);
    else if (pick <= 32)
        size = 1024 + size % (15u << 10);
    else
        size = 16 + size % 1008;
    return size & ~(uint64_t)7;
}

// Never 0, so that a page of zeroes differs from any contents.
static uint64_t word_of(uint64_t n, uint64_t i) { return (n * 0x9e3779b97f4a7c15u + i) | 1; }

__attribute__((target("clwb"))) static void persist(const void *p, size_t size) {
    if (!flushes)
        return;
    uintptr_t end = (uintptr_t)p + size;
    for (uintptr_t at = (uintptr_t)p & ~(uintptr_t)(LINE - 1); at < end; at += LINE)
        _mm_clwb((void *)at);
    _mm_sfence();
}

static void *must(void *p) {
    if (!p) {
        printf("wrong: out of memory\n");
        fflush(stdout);
        exit(1);
    }
    return p;
}

static struct object *object_new(uint64_t n) {
    uint64_t size = size_of(n);
    struct object *o = must(malloc(size));
    o->serial = n;
    o->size = size;
    for (uint64_t i = 0; i < (size - sizeof *o) / 8; i++)
        o->words[i] = word_of(n, i);
    persist(o, size);
    return o;
}

#define PUBLISH(place, value)                                                                      \
    do {                                                                                           \
        __atomic_store_n((place), (value), __ATOMIC_RELEASE);                                      \
        __atomic_signal_fence(__ATOMIC_SEQ_CST);                                                   \
        persist((place), sizeof *(place));                                                         \
    } while (0)

static void operate(uint64_t n) {
    struct object **slot = &state->slot[slot_of(n)], *old = *slot;
    struct object *fresh = deletes(n) ? NULL : object_new(n);
    PUBLISH(slot, fresh);
    PUBLISH(&state->done, n);
    free(old);
}

static void say(const char *text, size_t length) {
    while (length) {
        ssize_t n = write(STDOUT_FILENO, text, length);
        if (n < 0)
            _exit(1);
        text += n;
        length -= (size_t)n;
    }
}

static void say_number(const char *word, uint64_t n) {
    char line[64];
    say(line, (size_t)snprintf(line, sizeof line, "%s %llu\n", word, (unsigned long long)n));
}

static void run(uint64_t from) {
    if (!state) {
        say("new\n", 4);
        struct state *s = must(calloc(1, sizeof *s));
        persist(s, sizeof *s);
        PUBLISH(&state, s);
    }
    uint64_t n = state->done > from ? state->done : from;
    say_number("go", n);
    for (;;) {
        operate(++n);
        say_number("ack", n);
    }
}

// ---- the walk -----------------------------------------------------------------------------------
//
// After a power cut on a plain file any pointer may be wrong. So the walk reads through the kernel,
// which reports a bad address as an error.

// After a power cut on a plain file any pointer may be wrong, so all reading goes through the
// kernel.
static bool fetch(void *to, const void *from, size_t size) {
    struct iovec local = {to, size}, remote = {(void *)(uintptr_t)from, size};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size;
}

// Says what the bytes after the header are: whole, zeroes (some pages are zero), torn or
// unreadable.
static const char *body(const struct object *at, uint64_t n, uint64_t size) {
    uint64_t words[PAGE / 8], zeroes = 0, others = 0, count = (size - sizeof *at) / 8;
    for (uint64_t i = 0; i < count;) {
        // Compares up to the end of the page, because the file system writes back whole pages.
        uint64_t left = PAGE / 8 - ((uintptr_t)(at->words + i) & (PAGE - 1)) / 8;
        if (left > count - i)
            left = count - i;
        if (!fetch(words, at->words + i, left * 8))
            return "unreadable";
        uint64_t zero = 0, wrong = 0;
        for (uint64_t k = 0; k < left; k++) {
            zero += words[k] == 0;
            wrong += words[k] != word_of(n, i + k);
        }
        zeroes += wrong && zero == left;
        others += wrong && zero != left;
        i += left;
    }
    return others ? "torn" : zeroes ? "zeroes" : "whole";
}

static const char *condition(const struct object *at, unsigned slot, uint64_t *serial) {
    struct object head;
    *serial = 0;
    if (!fetch(&head, at, sizeof head))
        return "unreadable";
    if (!head.serial && !head.size)
        return "zeroes";
    if (slot_of(head.serial) != slot || deletes(head.serial) || size_of(head.serial) != head.size)
        return "foreign";
    *serial = head.serial;
    return body(at, head.serial, head.size);
}

static int walk(void) {
    static struct state copy;
    unsigned objects = 0;
    if (!state) {
        say_number("walk none", 0);
    } else if (!fetch(&copy, state, sizeof copy)) {
        say_number("walk unreadable", 0);
    } else {
        say_number("walk state", copy.done);
        for (unsigned i = 0; i < SLOTS; i++) {
            uint64_t serial;
            if (!copy.slot[i])
                continue;
            objects++;
            const char *word = condition(copy.slot[i], i, &serial);
            char line[96];
            say(line, (size_t)snprintf(line, sizeof line, "at %u %llu %s\n", i,
                                       (unsigned long long)serial, word));
        }
    }
    say_number("end", objects);
    return 0;
}

int main(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "f")) != -1;)
        flushes |= option == 'f';
    argv += optind;
    argc -= optind;
    const char *mode = argc ? argv[0] : "";
    if (argc >= 2)
        seed = strtoull(argv[1], NULL, 10);
    if (argc == 2 && !strcmp(mode, "walk"))
        return walk();
    if (argc == 1 && !strcmp(mode, "clear")) {
        say("clearing\n", 9);
        PUBLISH(&state, NULL);
        return 0;
    }
    if (argc == 3 && !strcmp(mode, "run"))
        run(strtoull(argv[2], NULL, 10));
    fprintf(stderr, "usage: churn run SEED FROM [-f] | churn walk SEED | churn clear\n");
    return EXIT_USAGE;
}
