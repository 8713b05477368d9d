// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A key-value shell: one command per line on standard input, one or more lines of answer.
//
// All data are reached from `store`, an open-addressed table of entries. A command completes each
// new object before it stores a pointer to it, and frees the replaced object only afterwards:
//
//     store -> table -> slots -> entry (key) -> value (length, checksum, bytes)
//
// A new key is stored into a slot. A new value replaces the entry's pointer. A deletion stores GONE
// into the slot. A full table is replaced by a larger one with the same entries.
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The fence keeps the compiler from moving a later free before the store.
#define PUBLISH(place, value)                                                                      \
    do {                                                                                           \
        __atomic_store_n((place), (value), __ATOMIC_RELEASE);                                      \
        __atomic_signal_fence(__ATOMIC_SEQ_CST);                                                   \
    } while (0)

struct value {
    uint64_t check; // checksum of the key and the bytes
    size_t length;
    char bytes[]; // ends in NUL
};

struct entry {
    struct value *value;
    uint64_t hash;
    char key[];
};

struct table {
    size_t slots; // a power of two
    struct entry *slot[];
};

struct store {
    struct table *table;
};

struct store *store;

// A slot from which an entry was deleted. Searches go on past it.
#define GONE ((struct entry *)-1)

// The number of slots that are not NULL. It only says when to grow, so each start counts it anew.
static size_t used;

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "kvshell: out of memory\n");
        exit(1);
    }
    return p;
}

// FNV-1a with a final mix.
static uint64_t hash_of(const char *bytes, size_t length, uint64_t h) {
    h ^= 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static bool present(const struct entry *e) { return e && e != GONE; }

static struct table *table_new(size_t slots) {
    struct table *t = must(calloc(1, sizeof *t + slots * sizeof t->slot[0]));
    t->slots = slots;
    return t;
}

static void start(void) {
    if (!store) {
        struct store *s = must(malloc(sizeof *s));
        s->table = table_new(64);
        PUBLISH(&store, s);
    }
    used = 0;
    for (size_t i = 0; i < store->table->slots; i++)
        used += store->table->slot[i] != NULL;
}

// The slot of the key, or the first slot of its probe sequence that was never used.
static struct entry **find(struct table *t, const char *key, uint64_t hash) {
    size_t i = hash & (t->slots - 1);
    for (;; i = (i + 1) & (t->slots - 1)) {
        struct entry *e = t->slot[i];
        if (!e || (e != GONE && e->hash == hash && !strcmp(e->key, key)))
            return &t->slot[i];
    }
}

static struct entry *lookup(const char *key) {
    return *find(store->table, key, hash_of(key, strlen(key), 0));
}

static size_t count_entries(void) {
    size_t n = 0;
    for (size_t i = 0; i < store->table->slots; i++)
        n += present(store->table->slot[i]);
    return n;
}

// Keeps at most 3/4 of the slots in use, GONE ones included. A new table has no GONE slots.
static void make_room(void) {
    struct table *old = store->table;
    if ((used + 1) * 4 <= old->slots * 3)
        return;
    size_t live = count_entries(), slots = 64;
    while (slots < live * 2 + 2)
        slots *= 2;
    struct table *t = table_new(slots);
    for (size_t i = 0; i < old->slots; i++)
        if (present(old->slot[i]))
            *find(t, old->slot[i]->key, old->slot[i]->hash) = old->slot[i];
    PUBLISH(&store->table, t);
    used = live;
    free(old);
}

static struct value *value_new(const struct entry *e, const char *bytes, size_t length) {
    struct value *v = must(malloc(sizeof *v + length + 1));
    v->length = length;
    memcpy(v->bytes, bytes, length);
    v->bytes[length] = 0;
    v->check = hash_of(bytes, length, e->hash);
    return v;
}

static bool value_good(const struct entry *e) {
    return e->hash == hash_of(e->key, strlen(e->key), 0) && !e->value->bytes[e->value->length] &&
           e->value->check == hash_of(e->value->bytes, e->value->length, e->hash);
}

static void set(const char *key, const char *bytes, size_t length) {
    struct entry *e = lookup(key);
    if (e) {
        struct value *old = e->value;
        PUBLISH(&e->value, value_new(e, bytes, length));
        free(old);
        return;
    }
    make_room();
    size_t size = strlen(key) + 1;
    e = must(malloc(sizeof *e + size));
    memcpy(e->key, key, size);
    e->hash = hash_of(key, size - 1, 0);
    e->value = value_new(e, bytes, length);
    PUBLISH(find(store->table, key, e->hash), e);
    used++;
}

static bool delete (const char *key) {
    struct entry **slot = find(store->table, key, hash_of(key, strlen(key), 0)), *e = *slot;
    if (!e)
        return false;
    PUBLISH(slot, GONE);
    free(e->value);
    free(e);
    return true;
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(struct entry *const *)a)->key, (*(struct entry *const *)b)->key);
}

static void list(const char *prefix) {
    size_t n = 0, length = strlen(prefix);
    struct entry **all = must(malloc((count_entries() + 1) * sizeof *all));
    for (size_t i = 0; i < store->table->slots; i++) {
        struct entry *e = store->table->slot[i];
        if (present(e) && !strncmp(e->key, prefix, length))
            all[n++] = e;
    }
    qsort(all, n, sizeof *all, by_key);
    for (size_t i = 0; i < n; i++)
        printf("%s %s\n", all[i]->key, all[i]->value->bytes);
    free(all);
}

// Sets key00000001 to keyN. Each value is made of words that depend on the seed. Most values are
// short, some have many kilobytes.
static void fill(uint64_t n, uint64_t seed) {
    static const char words[8][6] = {"alder", "birch", "cedar", "elder",
                                     "hazel", "larch", "maple", "rowan"};
    static char bytes[65536];
    for (uint64_t i = 1; i <= n; i++) {
        char key[32];
        int key_length = snprintf(key, sizeof key, "key%08llu", (unsigned long long)i);
        uint64_t h = hash_of(key, (size_t)key_length, seed);
        size_t count = 1 + (h % 64 ? (h >> 8) % 30 : (h >> 8) % 10000);
        size_t length = 0;
        for (size_t w = 0; w < count; w++) {
            h = h * 6364136223846793005u + 1442695040888963407u;
            memcpy(bytes + length, words[h >> 61], 5);
            bytes[length + 5] = ' ';
            length += 6;
        }
        set(key, bytes, length - 1);
    }
    printf("filled %llu\n", (unsigned long long)n);
}

static bool verify(void) {
    struct table *t = store->table;
    size_t keys = 0;
    for (size_t i = 0; i < t->slots; i++) {
        struct entry *e = t->slot[i];
        if (!present(e))
            continue;
        if (!value_good(e) || *find(t, e->key, e->hash) != e) {
            printf("bad key in slot %zu\n", i);
            return false;
        }
        keys++;
    }
    printf("ok %zu keys\n", keys);
    return true;
}

static void bump(const char *key) {
    struct entry *e = lookup(key);
    char *end = NULL, text[24];
    errno = 0;
    long long n = e ? strtoll(e->value->bytes, &end, 10) : 0;
    if (e && (*end || end == e->value->bytes || errno || n == INT64_MAX)) {
        printf("not a number\n");
        return;
    }
    int length = snprintf(text, sizeof text, "%lld", n + 1);
    set(key, text, (size_t)length);
    printf("%s\n", text);
}

static const char help[] =
    "set KEY VALUE | get KEY | del KEY | list [PREFIX] | count | fill N [SEED] | verify | "
    "bump KEY | quit\n";

static bool number(const char *text, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && !errno;
}

static void get(const char *key) {
    struct entry *e = lookup(key);
    printf("%s\n", e ? e->value->bytes : "none");
}

// A line is COMMAND [KEY [REST]]; false ends the shell.
static bool command(char *line, int *status) {
    char *word = strtok(line, " "), *key = strtok(NULL, " "), *rest = strtok(NULL, "");
    uint64_t n, seed = 1;
    if (!word)
        return true;
    if (!strcmp(word, "quit"))
        return false;
    if (!strcmp(word, "list") && !rest) {
        list(key ? key : "");
    } else if (!strcmp(word, "count") && !key) {
        printf("%zu\n", count_entries());
    } else if (!strcmp(word, "verify") && !key) {
        *status = verify() ? *status : 1;
    } else if (!strcmp(word, "set") && rest) {
        set(key, rest, strlen(rest));
        printf("ok\n");
    } else if (!strcmp(word, "get") && key && !rest) {
        get(key);
    } else if (!strcmp(word, "del") && key && !rest) {
        printf("%s\n", delete (key) ? "ok" : "none");
    } else if (!strcmp(word, "bump") && key && !rest) {
        bump(key);
    } else if (!strcmp(word, "fill") && key && number(key, &n) && (!rest || number(rest, &seed))) {
        fill(n, seed);
    } else {
        fputs(help, stdout);
    }
    return true;
}

int main(void) {
    bool prompt = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    int status = 0;
    start();
    for (;;) {
        if (prompt)
            fputs("> ", stdout);
        fflush(stdout);
        if ((length = getline(&line, &size, stdin)) < 0)
            break;
        if (length && line[length - 1] == '\n')
            line[length - 1] = 0;
        if (!command(line, &status))
            break;
    }
    free(line);
    return status;
}
