// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A program that keeps its blocks by addresses in some form, for test_forms.py.
//
//   forms make FORM N     makes N blocks that only words of that form reach, and kills itself
//   forms clean FORM N    the same, and ends
//   forms look FORM N     allocates as much again, and says how many of them have their contents
//   forms list            names the forms
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define SIZE 96u
#define LARGE 100000u // no slab has it
#define BASE_BITS 3u

struct packed {
    char type;
    void *p;
    char tail[3];
} __attribute__((packed));

// What is reached. The root reaches `table` by a plain pointer, and nothing else is plain.
struct kept {
    unsigned char *table;
    size_t stride;
};
struct kept *kept;

static uint64_t heap_base(const void *p) { return (uintptr_t)p & ~(((uint64_t)1 << 40) - 1); }

struct form {
    const char *name;
    size_t stride; // bytes of the table that one address takes
    void (*put)(unsigned char *at, unsigned char *p, size_t i);
    unsigned char *(*get)(const unsigned char *at, size_t i);
    enum { OF_SIZE, OF_LARGE, OF_NOTHING } size; // of its blocks
};

static size_t size_of(const struct form *f) {
    return f->size == OF_LARGE ? LARGE : f->size == OF_NOTHING ? 0 : SIZE;
}

static void put_word(unsigned char *at, uint64_t word) { memcpy(at, &word, sizeof word); }
static uint64_t get_word(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static void put_plain(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p);
}
static unsigned char *get_plain(const unsigned char *at, size_t i) {
    (void)i;
    return (unsigned char *)(uintptr_t)get_word(at);
}

// A counter above, as boost::lockfree has it.
static void put_counted(unsigned char *at, unsigned char *p, size_t i) {
    put_word(at, (uintptr_t)p | (uint64_t)(i % 0xffff + 1) << 48);
}
static unsigned char *get_counted(const unsigned char *at, size_t i) {
    (void)i;
    return (unsigned char *)(uintptr_t)(get_word(at) << 16 >> 16);
}

// A NaN, as engines of scripts box their values.
static void put_nan(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p | 0xfffcull << 48);
}

// Types in both ends.
static void put_both(unsigned char *at, unsigned char *p, size_t i) {
    put_word(at, (uintptr_t)p | (i % 15 + 1) | (uint64_t)(i % 99 + 1) << 48);
}
static unsigned char *get_both(const unsigned char *at, size_t i) {
    (void)i;
    return (unsigned char *)(uintptr_t)((get_word(at) << 16 >> 16) & ~15ull);
}

static void put_low(unsigned char *at, unsigned char *p, size_t i) {
    put_word(at, (uintptr_t)p | (i % 15 + 1));
}

static void put_inside(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p + SIZE - 1); // the last byte
}
static unsigned char *get_inside(const unsigned char *at, size_t i) {
    return get_plain(at, i) - (SIZE - 1);
}

// A counter above an address inside the block.
static void put_counted_inside(unsigned char *at, unsigned char *p, size_t i) {
    put_counted(at, p + SIZE / 2, i);
}
static unsigned char *get_counted_inside(const unsigned char *at, size_t i) {
    return get_counted(at, i) - SIZE / 2;
}

static void put_packed(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    struct packed record = {.type = 'p', .p = p};
    memcpy(at, &record, sizeof record);
}
static unsigned char *get_packed(const unsigned char *at, size_t i) {
    struct packed record;
    (void)i;
    memcpy(&record, at, sizeof record);
    return record.p;
}

static void put_relative(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p - (uintptr_t)at);
}
static unsigned char *get_relative(const unsigned char *at, size_t i) {
    (void)i;
    return (unsigned char *)((uintptr_t)at + get_word(at));
}

static void put_base32(unsigned char *at, unsigned char *p, size_t i) {
    uint32_t word = (uint32_t)(((uintptr_t)p - heap_base(p)) >> BASE_BITS);
    (void)i;
    memcpy(at, &word, sizeof word);
}
static unsigned char *get_base32(const unsigned char *at, size_t i) {
    uint32_t word;
    (void)i;
    memcpy(&word, at, sizeof word);
    return (unsigned char *)(uintptr_t)(heap_base(at) + ((uint64_t)word << BASE_BITS));
}

// One byte before the block: an address that belongs to another one, or to none.
static void put_before(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p - 8);
}
static unsigned char *get_before(const unsigned char *at, size_t i) { return get_plain(at, i) + 8; }

// Further than the block is long, amid one that is let go.
static void put_far_before(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p - (3 * SIZE - 16));
}
static unsigned char *get_far_before(const unsigned char *at, size_t i) {
    return get_plain(at, i) + (3 * SIZE - 16);
}

static void put_amid_large(unsigned char *at, unsigned char *p, size_t i) {
    put_word(at, (uintptr_t)p + i * 4099 % LARGE);
}
static unsigned char *get_amid_large(const unsigned char *at, size_t i) {
    return get_plain(at, i) - i * 4099 % LARGE;
}

static void put_last_of_large(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p + LARGE - 1);
}
static unsigned char *get_last_of_large(const unsigned char *at, size_t i) {
    return get_plain(at, i) - (LARGE - 1);
}

static void put_past(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p + SIZE);
}
static unsigned char *get_past(const unsigned char *at, size_t i) {
    return get_plain(at, i) - SIZE;
}

static void put_xor(unsigned char *at, unsigned char *p, size_t i) {
    (void)i;
    put_word(at, (uintptr_t)p ^ 0x5a5a5a5a5a5a5a5aull);
}
static unsigned char *get_xor(const unsigned char *at, size_t i) {
    (void)i;
    return (unsigned char *)(uintptr_t)(get_word(at) ^ 0x5a5a5a5a5a5a5a5aull);
}

// Plain, but the blocks hold numbers that look a little like addresses.
static void put_number(unsigned char *at, unsigned char *p, size_t i) {
    uint64_t *record = (uint64_t *)(void *)p;
    record[0] = 64 * i;              // an offset
    record[1] = (uint64_t)0 - i * 8; // one that is negative
    record[2] = 65536 * (i % 7);     // a length
    record[3] = i << 32 | 0x4000;
    record[4] = i * 1000003;
    record[5] = i * 4096;
    put_word(at, (uintptr_t)p);
}

// Registers as getcontext() and setjmp() save them. Those that setjmp() mangles are not here.
static void put_context(unsigned char *at, unsigned char *p, size_t i) {
    ucontext_t context = {0};
    (void)i;
    getcontext(&context);
    context.uc_mcontext.gregs[REG_R12] = (greg_t)(uintptr_t)p;
    memcpy(at, &context, sizeof context);
}
static unsigned char *get_context(const unsigned char *at, size_t i) {
    ucontext_t context;
    (void)i;
    memcpy(&context, at, sizeof context);
    return (unsigned char *)(uintptr_t)context.uc_mcontext.gregs[REG_R12];
}

static void put_jump(unsigned char *at, unsigned char *p, size_t i) {
    jmp_buf buffer;
    memset(buffer, 0, sizeof buffer);
    if (setjmp(buffer) != 0)
        return;
    memcpy(at, buffer, sizeof buffer);
    put_plain(at + 2 * sizeof(uint64_t), p, i); // where glibc has saved r12
}
static unsigned char *get_jump(const unsigned char *at, size_t i) {
    return get_plain(at + 2 * sizeof(uint64_t), i);
}

static const struct form forms[] = {
    {"plain", 8, put_plain, get_plain, OF_SIZE},
    {"low", 8, put_low, get_both, OF_SIZE},
    {"inside", 8, put_inside, get_inside, OF_SIZE},
    {"context", sizeof(ucontext_t), put_context, get_context, OF_SIZE},
    {"jump", sizeof(jmp_buf), put_jump, get_jump, OF_SIZE},
    {"counted", 8, put_counted, get_counted, OF_SIZE},
    {"nan", 8, put_nan, get_counted, OF_SIZE},
    {"both", 8, put_both, get_both, OF_SIZE},
    {"counted-inside", 8, put_counted_inside, get_counted_inside, OF_SIZE},
    {"packed", sizeof(struct packed), put_packed, get_packed, OF_SIZE},
    {"relative", 8, put_relative, get_relative, OF_SIZE},
    {"base32", 4, put_base32, get_base32, OF_SIZE},
    {"before", 8, put_before, get_before, OF_SIZE},
    {"far-before", 8, put_far_before, get_far_before, OF_SIZE},
    {"past", 8, put_past, get_past, OF_SIZE},
    {"xor", 8, put_xor, get_xor, OF_SIZE},
    {"numbers", 8, put_number, get_plain, OF_SIZE},
    {"large", 8, put_plain, get_plain, OF_LARGE},
    {"large-low", 8, put_low, get_both, OF_LARGE},
    {"large-amid", 8, put_amid_large, get_amid_large, OF_LARGE},
    {"large-last", 8, put_last_of_large, get_last_of_large, OF_LARGE},
    {"large-counted", 8, put_counted, get_counted, OF_LARGE},
    {"nothing", 8, put_plain, get_plain, OF_NOTHING},
    {"nothing-low", 8, put_low, get_both, OF_NOTHING},
    {"nothing-counted", 8, put_counted, get_counted, OF_NOTHING},
};
#define FORMS (sizeof forms / sizeof *forms)

static const struct form *form_of(const char *name) {
    for (size_t i = 0; i < FORMS; i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    fprintf(stderr, "%s: no such form\n", name);
    exit(2);
}

static void fill(unsigned char *p, size_t i, size_t size) {
    memset(p, 0, size);
    for (size_t k = 0; k < size; k += 4) {
        uint32_t value = (uint32_t)(i * 2654435761u + k) | 1u << 31; // no address, nor half of one
        memcpy(p + k, &value, sizeof value);
    }
}

// Blocks of no bytes have nothing to compare: nobody may get the same address again.
static bool is_right(const unsigned char *p, size_t i, size_t size, unsigned char **fresh,
                     size_t count) {
    static unsigned char want[LARGE];
    for (size_t k = 0; size == 0 && k < count; k++)
        if (fresh[k] == p)
            return false;
    fill(want, i, size);
    return memcmp(p, want, size) == 0;
}

// Every other block is let go, so that blocks that are kept do not lie side by side.
// A stack and registers that still have addresses of blocks would reach these (docs/leaks.md).
__attribute__((noinline)) static void clear_stack(void) {
    volatile unsigned char bytes[16384];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = 0;
}

__attribute__((noinline)) static void make(const struct form *f, size_t count) {
    struct kept *k = calloc(1, sizeof *k);
    unsigned char **other = calloc(count, sizeof *other);
    k->table = calloc(count + 1, f->stride);
    k->stride = f->stride;
    for (size_t i = 0; i < count; i++) {
        unsigned char *p = malloc(size_of(f));
        other[i] = malloc(size_of(f));
        fill(p, i, size_of(f));
        f->put(k->table + i * f->stride, p, i);
    }
    for (size_t i = 0; i < count; i++)
        free(other[i]);
    memset(other, 0, count * sizeof *other);
    free(other);
    kept = k;
}

static void look(const struct form *f, size_t count) {
    size_t right = 0, size = size_of(f);
    unsigned char **fresh = calloc(2 * count, sizeof *fresh);
    for (size_t i = 0; kept && i < 2 * count; i++) {
        fresh[i] = malloc(size);
        memset(fresh[i], 0xee, size);
    }
    for (size_t i = 0; kept && i < count; i++)
        right += is_right(f->get(kept->table + i * f->stride, i), i, size, fresh, 2 * count);
    printf("%zu\n", right);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (size_t i = 0; i < FORMS; i++)
            printf("%s\n", forms[i].name);
        return 0;
    }
    if (argc != 4)
        return 2;
    const struct form *f = form_of(argv[2]);
    size_t count = strtoul(argv[3], NULL, 10);
    if (strcmp(argv[1], "look") == 0) {
        look(f, count);
        return 0;
    }
    make(f, count);
    clear_stack();
    if (strcmp(argv[1], "make") == 0)
        raise(SIGKILL);
    return 0;
}
