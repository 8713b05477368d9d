// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A small server with an event loop: epolld SOCKET [THREADS]. Each thread has an event loop of its
// own on the same Unix socket, and a shelf of its own. A connection stays with the thread that has
// accepted it. One more thread sleeps in a condition variable until somebody wants the checksum.
//
//   put KEY      takes a number, and adds an item to both structures of the shelf. Answer: that
//                number, and the shelf's
//   check        whether the structures of all shelves agree. Answer: ok and each shelf's number
//
// The structures of a shelf are a list and a tree of the same items, and their count and sum. For
// much of an operation they do not agree. At no instant between two operations do they differ.
#define _GNU_SOURCE // accept4
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SHELVES 4
#define KEPT 400 // items of a shelf; older ones are removed
#define WORK 2000

struct item {
    struct item *newer, *left, *right;
    uint64_t number, key;
    char *text; // "KEY"
};

struct shelf {
    struct item *oldest, *newest; // the list
    struct item *root;            // the tree, by mix(number)
    uint64_t puts;                // the number of the newest item
    uint64_t count, sum;          // of keys
};

struct state {
    struct shelf shelf[SHELVES];
};

struct state *state; // the root

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "epolld: %s\n", strerror(errno));
        exit(1);
    }
    return p;
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    return x ^ x >> 29;
}

// So that a commit in the middle of an operation is likely, if one is made there.
static void work(void) {
    static volatile uint64_t result;
    for (unsigned i = 0; i < WORK; i++)
        result = mix(result + i);
}

// ---- a shelf ------------------------------------------------------------------------------------

static struct item **place(struct shelf *s, uint64_t number) {
    struct item **at = &s->root;
    while (*at && (*at)->number != number)
        at = mix(number) < mix((*at)->number) ? &(*at)->left : &(*at)->right;
    return at;
}

static void remove_from_tree(struct shelf *s, struct item *item) {
    struct item **at = place(s, item->number), **low = &item->right;
    if (!item->right) {
        *at = item->left;
        return;
    }
    while ((*low)->left)
        low = &(*low)->left;
    struct item *next = *low;
    *low = next->right;
    next->left = item->left;
    next->right = item->right;
    *at = next;
}

static void remove_oldest(struct shelf *s) {
    struct item *item = s->oldest;
    s->oldest = item->newer;
    work();
    remove_from_tree(s, item);
    s->count--;
    s->sum -= item->key;
    free(item->text);
    free(item);
}

static void put(struct shelf *s, uint64_t key) {
    struct item *item = must(calloc(1, sizeof *item));
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)key);
    item->number = ++s->puts;
    item->key = key;
    if (s->newest)
        s->newest->newer = item;
    else
        s->oldest = item;
    s->newest = item;
    work();
    item->text = must(strdup(text));
    *place(s, item->number) = item;
    work();
    s->count++;
    s->sum += key;
    if (s->count > KEPT)
        remove_oldest(s);
}

static uint64_t count_tree(const struct item *item) {
    return item ? 1 + count_tree(item->left) + count_tree(item->right) : 0;
}

static const char *disagreement(struct shelf *s) {
    uint64_t count = 0, sum = 0, number = s->puts - s->count;
    for (struct item *item = s->oldest; item; item = item->newer) {
        if (item->number != ++number)
            return "list";
        if (*place(s, item->number) != item)
            return "tree";
        if (!item->text || strtoull(item->text, NULL, 10) != item->key)
            return "text";
        count++;
        sum += item->key;
    }
    return count != s->count || number != s->puts || count_tree(s->root) != count ? "count"
           : sum != s->sum                                                        ? "sum"
                                                                                  : NULL;
}

// ---- the thread that checks ---------------------------------------------------------------------

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, busy[SHELVES];
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER, made = PTHREAD_COND_INITIALIZER;
static unsigned asked, answered;
static char answer[200];

static void check(void) {
    size_t used = 0;
    for (unsigned i = 0; i < SHELVES; i++)
        pthread_mutex_lock(&busy[i]);
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *s = &state->shelf[i];
        const char *wrong = disagreement(s);
        used += (size_t)snprintf(answer + used, sizeof answer - used, " %s%llu", wrong ? wrong : "",
                                 (unsigned long long)s->puts);
    }
    for (unsigned i = 0; i < SHELVES; i++)
        pthread_mutex_unlock(&busy[i]);
}

static void *checker(void *unused) {
    pthread_mutex_lock(&lock);
    for (;; answered++, pthread_cond_broadcast(&made)) {
        while (asked == answered)
            pthread_cond_wait(&wanted, &lock);
        check();
    }
    return unused;
}

static void ask(char *text, size_t size) {
    pthread_mutex_lock(&lock);
    unsigned mine = ++asked;
    pthread_cond_signal(&wanted);
    while ((int)(answered - mine) < 0)
        pthread_cond_wait(&made, &lock);
    snprintf(text, size, "ok%s\n", answer);
    pthread_mutex_unlock(&lock);
}

// ---- event loops --------------------------------------------------------------------------------

struct connection {
    int fd;
    size_t used;
    char line[256];
};

static int listener;

static void obey(unsigned number, struct connection *c, char *line) {
    char text[256] = "what?\n";
    struct shelf *s = &state->shelf[number];
    if (strncmp(line, "put ", 4) == 0) {
        pthread_mutex_lock(&busy[number]);
        put(s, strtoull(line + 4, NULL, 10));
        snprintf(text, sizeof text, "%llu %u\n", (unsigned long long)s->puts, number);
        pthread_mutex_unlock(&busy[number]);
    } else if (strcmp(line, "check") == 0) {
        ask(text, sizeof text);
    }
    (void)!send(c->fd, text, strlen(text), MSG_NOSIGNAL);
}

// False: the connection is over.
static bool serve(unsigned number, struct connection *c) {
    ssize_t got = read(c->fd, c->line + c->used, sizeof c->line - 1 - c->used);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    c->used += (size_t)got;
    c->line[c->used] = '\0';
    char *from = c->line, *end;
    for (; (end = strchr(from, '\n')) != NULL; from = end + 1) {
        *end = '\0';
        obey(number, c, from);
    }
    c->used = strlen(from);
    memmove(c->line, from, c->used);
    return c->used < sizeof c->line - 1;
}

static void add(int loop, int fd, void *data) {
    struct epoll_event event = {EPOLLIN, {.ptr = data}};
    epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
}

static void *run(void *arg) {
    unsigned number = (unsigned)(uintptr_t)arg;
    int loop = epoll_create1(EPOLL_CLOEXEC);
    add(loop, listener, NULL);
    for (;;) {
        struct epoll_event event[16];
        int count = epoll_wait(loop, event, 16, -1);
        for (int i = 0; i < count; i++) {
            struct connection *c = event[i].data.ptr;
            if (c && !serve(number, c)) {
                close(c->fd);
                free(c);
            }
            int fd = c ? -1 : accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd >= 0) {
                c = must(calloc(1, sizeof *c));
                c->fd = fd;
                add(loop, fd, c);
            }
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    unsigned threads = argc == 3 ? (unsigned)atoi(argv[2]) : 1;
    if (argc < 2 || threads < 1 || threads > SHELVES ||
        strlen(argv[1]) >= sizeof address.sun_path) {
        fprintf(stderr, "usage: epolld SOCKET [THREADS, at most %d]\n", SHELVES);
        return 64;
    }
    if (!state)
        state = must(calloc(1, sizeof *state));
    strcpy(address.sun_path, argv[1]);
    unlink(argv[1]);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 64) != 0) {
        perror("epolld");
        return 1;
    }
    pthread_t thread;
    for (unsigned i = 0; i < SHELVES; i++)
        pthread_mutex_init(&busy[i], NULL);
    must(pthread_create(&thread, NULL, checker, NULL) ? NULL : &thread);
    for (unsigned i = 1; i < threads; i++)
        must(pthread_create(&thread, NULL, run, (void *)(uintptr_t)i) ? NULL : &thread);
    run(NULL);
    return 0;
}
