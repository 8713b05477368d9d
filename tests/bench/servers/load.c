// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Clients of a server of keys and values: how fast it answers, and what it has kept.
//
//     load sets PROTOCOL PORT CLIENTS PIPELINE SECONDS BYTES FILE
//     load look PROTOCOL PORT FILE
//
// PROTOCOL is redis, memcached or lines (serve.c). Each client has so many requests on their way,
// sets keys of its own, drawn at random of 100,000 for all, and wants the right answer to each. The
// values have so many bytes. FILE gets what was answered last for each key. Printed: answers a
// second, and the median and the 99th percentile of the microseconds until the answer. `look` asks
// for the keys of FILE, and prints how many have that value, and how many there are.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { KEYS = 100000, PIPELINE_MOST = 1024, TEXT = 1 << 14, EVENTS = 512, ANSWERS = 1 << 24 };

static _Noreturn void fails(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static _Noreturn void wrong(const char *got) {
    fprintf(stderr, "load: not the right answer: %.100s\n", got);
    exit(1);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    return x ^ x >> 29;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int connected(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (void *)&at, sizeof at) != 0)
        fails("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

// ---- protocols ----------------------------------------------------------------------------------

static enum protocol { REDIS, MEMCACHED, LINES } protocol;
static const char *const set_answer[] = {"+OK\r\n", "STORED\r\n", "ok\n"};
static size_t value_bytes;

static void choose(const char *name) {
    protocol = strcmp(name, "redis") == 0       ? REDIS
               : strcmp(name, "memcached") == 0 ? MEMCACHED
                                                : LINES;
}

// The value of the key's set number `n`.
static void value_of(uint64_t key, uint64_t n, char *to) {
    int head = snprintf(to, 48, "%lu.%lu.", (unsigned long)key, (unsigned long)n);
    for (size_t i = (size_t)head; i < value_bytes; i++)
        to[i] = (char)('a' + mix(key * 31 + n + i / 16) % 26);
    to[value_bytes] = '\0';
}

static size_t put_set(char *to, uint64_t key, uint64_t n) {
    char name[32], value[TEXT];
    int len = snprintf(name, sizeof name, "key%lu", (unsigned long)key);
    value_of(key, n, value);
    switch (protocol) {
    case REDIS:
        return (size_t)sprintf(to, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n%s\r\n", len, name,
                               value_bytes, value);
    case MEMCACHED:
        return (size_t)sprintf(to, "set %s 0 0 %zu\r\n%s\r\n", name, value_bytes, value);
    case LINES:
        break;
    }
    return (size_t)sprintf(to, "set %s %s\n", name, value);
}

// ---- sets ---------------------------------------------------------------------------------------

struct client {
    int fd;
    unsigned number;
    uint64_t state;                // of its random numbers
    uint64_t sent, answered;       // requests
    uint64_t key[PIPELINE_MOST];   // of those on their way
    uint64_t since[PIPELINE_MOST]; // when they were sent
    size_t in;
    char input[TEXT];
};

static unsigned clients, pipeline;
static uint32_t sets[KEYS]; // of each key, on their way or answered
static uint32_t *took;      // microseconds, of each answer
static uint64_t answers;

static void ask(struct client *c, unsigned count) {
    static char text[PIPELINE_MOST * 64 + (1 << 24)];
    size_t len = 0;
    uint64_t now = now_ns();
    for (; count; count--, c->sent++) {
        c->state += 0x9e3779b97f4a7c15u;
        uint64_t own = KEYS / clients, key = c->number * own + mix(c->state) % own;
        len += put_set(text + len, key, ++sets[key]);
        c->key[c->sent % pipeline] = key;
        c->since[c->sent % pipeline] = now;
    }
    for (size_t done = 0; done < len;) {
        ssize_t n = send(c->fd, text + done, len - done, MSG_NOSIGNAL);
        if (n <= 0)
            fails("send");
        done += (size_t)n;
    }
}

// Returns how many answers came.
static unsigned hear(struct client *c) {
    const char *want = set_answer[protocol];
    size_t len = strlen(want), from = 0;
    ssize_t n = recv(c->fd, c->input + c->in, sizeof c->input - c->in, 0);
    if (n <= 0)
        fails("the server is gone");
    c->in += (size_t)n;
    uint64_t now = now_ns();
    unsigned count = 0;
    for (; c->in - from >= len; from += len, count++) {
        if (memcmp(c->input + from, want, len) != 0 || c->answered == c->sent)
            wrong(c->input + from);
        if (answers < ANSWERS)
            took[answers] = (uint32_t)((now - c->since[c->answered % pipeline]) / 1000);
        answers++;
        c->answered++;
    }
    c->in -= from;
    memmove(c->input, c->input + from, c->in);
    return count;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void report(double seconds) {
    uint64_t kept = answers < ANSWERS ? answers : ANSWERS;
    qsort(took, kept, sizeof *took, by_size);
    printf("%.1f %u %u\n", (double)answers / seconds, took[kept / 2], took[kept * 99 / 100]);
}

static void write_sets(const char *path) {
    FILE *out = fopen(path, "w");
    if (!out)
        fails(path);
    fprintf(out, "%zu\n", value_bytes);
    for (uint64_t key = 0; key < KEYS; key++)
        if (sets[key])
            fprintf(out, "%lu %u\n", (unsigned long)key, sets[key]);
    if (fclose(out))
        fails(path);
}

static void read_sets(const char *path) {
    unsigned long key;
    unsigned n;
    FILE *in = fopen(path, "r");
    if (!in) {
        if (errno == ENOENT)
            return;
        fails(path);
    }
    if (fscanf(in, "%zu", &value_bytes) != 1)
        fails(path);
    while (fscanf(in, "%lu %u", &key, &n) == 2)
        sets[key % KEYS] = n;
    fclose(in);
}

static int run_sets(int port, double seconds, const char *path) {
    struct client *all = calloc(clients, sizeof *all);
    struct epoll_event got[EVENTS];
    int loop = epoll_create1(0);
    took = calloc(ANSWERS, sizeof *took);
    if (!all || !took || loop < 0)
        fails("no memory");
    for (unsigned i = 0; i < clients; i++) {
        all[i].fd = connected(port);
        all[i].number = i;
        all[i].state = now_ns() + i;
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(loop, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9), on_way = 0;
    for (unsigned i = 0; i < clients; i++, on_way += pipeline)
        ask(&all[i], pipeline);
    while (on_way) {
        int count = epoll_wait(loop, got, EVENTS, 60000);
        if (count <= 0)
            fails("no answer in a minute");
        for (int i = 0; i < count; i++) {
            unsigned n = hear(got[i].data.ptr);
            on_way -= n;
            if (n && now_ns() < end) {
                ask(got[i].data.ptr, n);
                on_way += n;
            }
        }
    }
    report((double)(now_ns() - start) / 1e9);
    write_sets(path);
    return 0;
}

// ---- looks --------------------------------------------------------------------------------------

static void line_of(FILE *in, char line[TEXT]) {
    if (!fgets(line, TEXT, in))
        fails("the server is gone");
    line[strcspn(line, "\r\n")] = '\0';
}

static void put_get(FILE *to, uint64_t key) {
    char name[32];
    int len = snprintf(name, sizeof name, "key%lu", (unsigned long)key);
    if (protocol == REDIS)
        fprintf(to, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", len, name);
    else
        fprintf(to, protocol == LINES ? "get %s\n" : "get %s\r\n", name);
}

// Whether the server has this value of the key that was asked for.
static bool has(FILE *in, const char *value) {
    char line[TEXT];
    line_of(in, line);
    if (protocol == LINES)
        return strcmp(line, value) == 0;
    if (strcmp(line, "$-1") == 0 || strcmp(line, "END") == 0)
        return false;
    if (line[0] != '$' && strncmp(line, "VALUE ", 6) != 0)
        wrong(line);
    line_of(in, line);
    bool same = strcmp(line, value) == 0;
    if (protocol == MEMCACHED)
        line_of(in, line);
    return same;
}

// Up to so many keys at once: each answer may be a commit.
#define AT_ONCE 256u

static int look(int port) {
    char value[TEXT];
    unsigned long kept = 0, all = 0;
    uint64_t asked[AT_ONCE];
    int fd = connected(port);
    FILE *in = fdopen(fd, "r"), *to = fdopen(dup(fd), "w");
    if (!in || !to)
        fails("fdopen");
    for (uint64_t key = 0; key < KEYS;) {
        unsigned count = 0;
        for (; key < KEYS && count < AT_ONCE; key++)
            if (sets[key])
                put_get(to, asked[count++] = key);
        fflush(to);
        for (unsigned i = 0; i < count; i++) {
            value_of(asked[i], sets[asked[i]], value);
            kept += has(in, value);
        }
        all += count;
    }
    printf("%lu %lu\n", kept, all);
    return 0;
}

int main(int argc, char **argv) {
    bool looks = argc == 5 && strcmp(argv[1], "look") == 0;
    if (!looks && (argc != 9 || strcmp(argv[1], "sets") != 0)) {
        fputs("usage: load sets PROTOCOL PORT CLIENTS PIPELINE SECONDS BYTES FILE\n"
              "       load look PROTOCOL PORT FILE\n",
              stderr);
        return 2;
    }
    choose(argv[2]);
    read_sets(argv[argc - 1]);
    if (looks)
        return look(atoi(argv[3]));
    clients = (unsigned)atoi(argv[4]);
    pipeline = (unsigned)atoi(argv[5]);
    value_bytes = (size_t)atoi(argv[7]);
    if (!clients || clients > KEYS || !pipeline || pipeline > PIPELINE_MOST || value_bytes < 48 ||
        value_bytes >= 8192)
        return 2;
    return run_sets(atoi(argv[3]), atof(argv[6]), argv[8]);
}
