// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A server of keys and values, in the shapes that servers have.
//
//     serve PORT SHAPE FOLDER
//
// `loop`: one event loop. `workers`: two threads with a loop each, that accept from one socket.
// `threads`: one for each connection. A mutex is held round the store. Requests are lines: "set KEY
// VALUE" is answered with "ok", and "get KEY" with the value, or "-". What was read in one turn is
// one transaction of the store, and its answers leave after that.
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "store.h"

enum { WORKERS = 2, EVENTS = 512, ROOM = 1 << 16, LINE_MOST = KEY_MOST + VALUE_MOST + 8 };

struct connection {
    int fd;
    size_t in, out;
    char input[ROOM], output[ROOM + LINE_MOST];
};

static int listener;
static pthread_mutex_t store_lock = PTHREAD_MUTEX_INITIALIZER;

static void check(bool good, const char *what) {
    if (!good)
        store_fails(what, strerror(errno));
}

static void *made(size_t bytes) {
    void *p = malloc(bytes);
    check(p != NULL, "malloc");
    return p;
}

// ---- requests -----------------------------------------------------------------------------------

static void answer(struct connection *c, const char *bytes, size_t len) {
    memcpy(c->output + c->out, bytes, len);
    c->out += len;
    c->output[c->out++] = '\n';
}

static void do_line(struct connection *c, char *line) {
    char value[VALUE_MOST], *key = line + 4, *space = strchr(key, ' ');
    if (strncmp(line, "set ", 4) == 0 && space) {
        *space = '\0';
        store_set(key, space + 1, strlen(space + 1));
        answer(c, "ok", 2);
    } else if (strncmp(line, "get ", 4) == 0) {
        size_t len = store_get(key, value);
        answer(c, len ? value : "-", len ? len : 1);
    } else {
        store_fails("request", line);
    }
}

// Those for whose answers there is room. True: there may be more.
static bool do_lines(struct connection *c) {
    char *from = c->input, *end;
    while (c->out < ROOM && (end = memchr(from, '\n', c->in - (size_t)(from - c->input)))) {
        *end = '\0';
        do_line(c, from);
        from = end + 1;
    }
    c->in -= (size_t)(from - c->input);
    memmove(c->input, from, c->in);
    return c->out >= ROOM;
}

static void send_answers(struct connection *c) {
    for (size_t done = 0; done < c->out;) {
        ssize_t n = send(c->fd, c->output + done, c->out - done, MSG_NOSIGNAL);
        if (n <= 0)
            break; // the client is gone, which the next read says
        done += (size_t)n;
    }
    c->out = 0;
}

// What was read of these connections: one transaction, and then the answers.
static void serve(struct connection **of, int count) {
    for (bool more = true; more;) {
        more = false;
        pthread_mutex_lock(&store_lock);
        for (int i = 0; i < count; i++)
            more |= do_lines(of[i]);
        store_commit();
        pthread_mutex_unlock(&store_lock);
        for (int i = 0; i < count; i++)
            send_answers(of[i]);
    }
}

// False: the client is gone.
static bool read_some(struct connection *c) {
    ssize_t n = recv(c->fd, c->input + c->in, ROOM - c->in, 0);
    c->in += n > 0 ? (size_t)n : 0;
    return n > 0;
}

static int accepted(void) {
    int fd = accept(listener, NULL, NULL);
    if (fd >= 0)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return fd;
}

// ---- event loops --------------------------------------------------------------------------------

static void add(int loop, int fd, struct connection *c, uint32_t how) {
    struct epoll_event event = {.events = EPOLLIN | how, .data.ptr = c};
    check(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void take_one(int loop) {
    int fd = accepted();
    if (fd < 0)
        return; // the other worker has it
    struct connection *c = made(sizeof *c);
    c->fd = fd;
    c->in = c->out = 0;
    add(loop, fd, c, 0);
}

static void turn(int loop, struct epoll_event *got, int count) {
    struct connection *ready[EVENTS];
    int many = 0;
    for (int i = 0; i < count; i++) {
        struct connection *c = got[i].data.ptr;
        if (!c) {
            take_one(loop);
        } else if (read_some(c)) {
            ready[many++] = c;
        } else {
            close(c->fd);
            free(c);
        }
    }
    serve(ready, many);
}

static void *run_loop(void *unused) {
    struct epoll_event got[EVENTS];
    int loop = epoll_create1(0);
    add(loop, listener, NULL, EPOLLEXCLUSIVE);
    for (;;) {
        int count = epoll_wait(loop, got, EVENTS, -1);
        check(count >= 0 || errno == EINTR, "epoll_wait");
        turn(loop, got, count);
    }
    return unused;
}

// ---- threads ------------------------------------------------------------------------------------

static void *run_connection(void *arg) {
    struct connection *c = arg;
    while (read_some(c))
        serve(&c, 1);
    close(c->fd);
    free(c);
    return NULL;
}

static void start(void *(*run)(void *), void *arg) {
    pthread_t thread;
    check(pthread_create(&thread, NULL, run, arg) == 0, "pthread_create");
    pthread_detach(thread);
}

static void run_threads(void) {
    for (;;) {
        struct connection *c = made(sizeof *c);
        c->in = c->out = 0;
        check((c->fd = accepted()) >= 0, "accept");
        start(run_connection, c);
    }
}

int main(int argc, char **argv) {
    if (argc != 4)
        store_fails("usage", "serve PORT loop|workers|threads FOLDER");
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(argv[1])),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    store_open(argv[3]);
    bool threads = strcmp(argv[2], "threads") == 0, workers = strcmp(argv[2], "workers") == 0;
    listener = socket(AF_INET, threads ? SOCK_STREAM : SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    check(listener >= 0 && bind(listener, (void *)&at, sizeof at) == 0 &&
              listen(listener, 1024) == 0,
          "listen");
    for (int i = 1; workers && i < WORKERS; i++)
        start(run_loop, NULL);
    if (threads)
        run_threads();
    run_loop(NULL);
}
