// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A server whose clients do not wait for its answers, and these clients. Its root is `state`.
//
//     pipelined serve SOCKET     a server with one event loop
//     pipelined ask SOCKET SEED [said]   50 clients, until the server is gone
//     pipelined look             says "instant ..." of what it finds
//
// Client C asks "C N" with N = 1, 2, 3 ... and has up to some hundreds of questions on their way.
// The answer is "C N ALL", in which ALL counts the questions of all clients. So the clients see
// whether an answer is out of order, doubled or missing: on one connection; and of all connections
// together, because answers leave in the order of ALL. What they say is for instants.py:
//
//     instant 0 N...         so many questions of each client are done
//     said C N               this question was answered; with `said`, else at the end alone
//     answered ALL N...      at the end: the last answers
//
// Operation ALL replaces an object, so that the state is seen to be whole.
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CLIENTS = 50, SLOTS = 512, LINE = 64, MOST = 1 << 22, ROOM = 16384 };
enum { EXIT_USAGE = 2, EXIT_WRONG = 3 };

struct object {
    uint64_t all, client, number;
    char text[40];
};

struct state {
    uint64_t all, sum;
    uint64_t done[CLIENTS];
    struct object *slot[SLOTS]; // of the last operations
};

struct state *state; // the root

static _Noreturn void wrong(const char *what, uint64_t a, uint64_t b, uint64_t c) {
    printf("wrong: %s %lu %lu %lu\n", what, (unsigned long)a, (unsigned long)b, (unsigned long)c);
    fflush(stdout);
    _exit(EXIT_WRONG);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
    return x ^ x >> 29;
}

static int open_socket(const char *path, struct sockaddr_un *at) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (fd < 0 || strlen(path) >= sizeof at->sun_path)
        exit(EXIT_USAGE);
    strcpy(at->sun_path, path);
    return fd;
}

// ---- the state ----------------------------------------------------------------------------------

static void text_of(uint64_t all, char text[40]) {
    memset(text, 'a' + (int)(mix(all) % 26), 39);
    text[39] = 0;
}

static void operate(uint64_t client, uint64_t number) {
    if (client >= CLIENTS || state->done[client] + 1 != number)
        wrong("asked after", client, number, state->done[client < CLIENTS ? client : 0]);
    uint64_t all = ++state->all;
    struct object **slot = &state->slot[all % SLOTS], *o = malloc(sizeof *o);
    if (!o)
        exit(1);
    *o = (struct object){.all = all, .client = client, .number = number};
    text_of(all, o->text);
    free(*slot);
    *slot = o;
    state->sum += mix(client);
    state->done[client] = number;
}

static void check_slot(const struct object *o, uint64_t slot) {
    char text[40];
    uint64_t all = state->all - (state->all - slot) % SLOTS; // the last one of this slot
    if (state->all < slot || all == 0) {
        if (o)
            wrong("too early", slot, o->all, state->all);
        return;
    }
    text_of(all, text);
    if (!o || o->all != all || strcmp(o->text, text) != 0 || o->number > state->done[o->client])
        wrong("object", slot, o ? o->all : 0, all);
}

static void check(void) {
    uint64_t all = 0, sum = 0;
    for (uint64_t c = 0; c < CLIENTS; c++) {
        all += state->done[c];
        sum += mix(c) * state->done[c];
    }
    if (all != state->all || sum != state->sum)
        wrong("operations", all, state->all, state->sum);
    for (uint64_t slot = 0; slot < SLOTS; slot++)
        check_slot(state->slot[slot], slot);
}

static void say_state(FILE *out, const char *word, uint64_t all, const uint64_t done[CLIENTS]) {
    fprintf(out, "%s %lu", word, (unsigned long)all);
    for (unsigned c = 0; c < CLIENTS; c++)
        fprintf(out, " %lu", (unsigned long)done[c]);
    fputc('\n', out);
    fflush(out);
}

// ---- the server ---------------------------------------------------------------------------------

struct connection {
    int fd;
    bool waits; // for room
    size_t in, out, sent;
    char input[ROOM], *output; // what is to be sent
    size_t size;
};

static void answer(struct connection *c, const char *text, size_t len) {
    if (c->out + len > c->size && !(c->output = realloc(c->output, c->size = 2 * c->size + len)))
        exit(1);
    memcpy(c->output + c->out, text, len);
    c->out += len;
}

// What finds no room is sent when there is some.
static void send_answers(int loop, struct connection *c) {
    while (c->sent < c->out) {
        ssize_t n = send(c->fd, c->output + c->sent, c->out - c->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0)
            break;
        c->sent += (size_t)n;
    }
    if (c->sent == c->out)
        c->sent = c->out = 0;
    if (c->waits != (c->out != 0)) {
        c->waits = c->out != 0;
        struct epoll_event event = {.events = c->waits ? EPOLLOUT : EPOLLIN, .data.ptr = c};
        epoll_ctl(loop, EPOLL_CTL_MOD, c->fd, &event);
    }
}

// Every other client's answers to all that was read leave by one call, the others' one by one.
static void do_line(int loop, struct connection *c, char *line) {
    unsigned long client, number;
    char text[LINE], *all = NULL;
    size_t len = 0;
    if (strcmp(line, "state") == 0) {
        FILE *out = open_memstream(&all, &len);
        if (!out)
            exit(1);
        say_state(out, "instant", state->all, state->done);
        fclose(out);
        answer(c, all, len);
        free(all);
    } else if (sscanf(line, "%lu %lu", &client, &number) == 2) {
        operate(client, number);
        answer(c, text,
               (size_t)snprintf(text, LINE, "%lu %lu %lu\n", client, number,
                                (unsigned long)state->all));
        if (client % 2 == 0)
            send_answers(loop, c);
    }
}

static void do_lines(int loop, struct connection *c) {
    char *from = c->input, *end;
    while (!c->waits && (end = memchr(from, '\n', c->in - (size_t)(from - c->input)))) {
        *end = 0;
        do_line(loop, c, from);
        from = end + 1;
    }
    c->in -= (size_t)(from - c->input);
    memmove(c->input, from, c->in);
    send_answers(loop, c);
}

// False: the client is gone. Lines that had to wait for room are done before more are read.
static bool serve_one(int loop, struct connection *c) {
    send_answers(loop, c);
    do_lines(loop, c);
    if (c->waits)
        return true;
    ssize_t n = recv(c->fd, c->input + c->in, ROOM - 1 - c->in, MSG_DONTWAIT);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    c->in += (size_t)n;
    do_lines(loop, c);
    return true;
}

static int listen_at(const char *path) {
    struct sockaddr_un at;
    int fd = open_socket(path, &at);
    unlink(path);
    if (bind(fd, (void *)&at, sizeof at) != 0 || listen(fd, CLIENTS) != 0)
        exit(1);
    return fd;
}

// Of some connections the kernel has little room, so that answers have to wait.
static void accept_one(int loop, int listener) {
    static unsigned count;
    struct connection *c = calloc(1, sizeof *c);
    if (!c || (c->fd = accept(listener, NULL, NULL)) < 0)
        exit(1);
    if (++count % 10 == 0)
        setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &(int){4608}, sizeof(int));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(loop, EPOLL_CTL_ADD, c->fd, &event);
}

static _Noreturn void serve(const char *path) {
    int loop = epoll_create1(0), listener = listen_at(path);
    struct epoll_event event = {.events = EPOLLIN}, got[CLIENTS];
    epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(loop, got, CLIENTS, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = got[i].data.ptr;
            if (!c)
                accept_one(loop, listener);
            else if (!serve_one(loop, c)) {
                close(c->fd);
                free(c->output);
                free(c);
            }
        }
    }
}

// ---- the clients --------------------------------------------------------------------------------

struct client {
    int fd;
    uint64_t sent, answered, all, window;
    char text[ROOM];
    size_t len;
};

static struct client client[CLIENTS];
static bool seen[MOST]; // of each ALL since the start: it was answered
static uint64_t base, most, random_state;
static bool says;

static uint64_t draw(uint64_t below) {
    random_state += 0x9e3779b97f4a7c15u;
    return (mix(mix(random_state)) >> 8) % below;
}

static void one_answer(unsigned c, const char *line) {
    unsigned long who, number, all;
    struct client *k = &client[c];
    if (sscanf(line, "%lu %lu %lu", &who, &number, &all) != 3 || who != c)
        wrong("answer", c, k->answered, 0);
    if (number != k->answered + 1 || number > k->sent)
        wrong("order", c, number, k->answered);
    if (all <= k->all || all <= base || all - base >= MOST || seen[all - base])
        wrong("order of all", c, all, k->all);
    seen[all - base] = true;
    k->answered = number;
    k->all = all;
    most = all > most ? all : most;
}

// False: the server is gone.
static bool hear(unsigned c) {
    struct client *k = &client[c];
    ssize_t n = recv(k->fd, k->text + k->len, ROOM - k->len, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return true;
    if (n <= 0)
        return false;
    k->len += (size_t)n;
    char *from = k->text, *end;
    while ((end = memchr(from, '\n', k->len - (size_t)(from - k->text)))) {
        *end = 0;
        one_answer(c, from);
        from = end + 1;
    }
    k->len -= (size_t)(from - k->text);
    memmove(k->text, from, k->len);
    if (says)
        printf("said %u %lu\n", c, (unsigned long)k->answered);
    return true;
}

// Up to as many as may be on their way, by one call.
static void ask_more(unsigned c) {
    char text[ROOM];
    size_t len = 0;
    struct client *k = &client[c];
    for (uint64_t n = draw(k->window) + 1; n && k->sent < k->answered + k->window; n--)
        len += (size_t)snprintf(text + len, LINE, "%u %lu\n", c, (unsigned long)++k->sent);
    for (size_t done = 0; done < len;) {
        ssize_t n = send(k->fd, text + done, len - done, MSG_NOSIGNAL);
        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

// What the server has found.
static void begin(const char *path) {
    struct sockaddr_un at;
    size_t size = 0;
    char *line = NULL;
    for (unsigned c = 0; c < CLIENTS; c++) {
        client[c].fd = open_socket(path, &at);
        for (unsigned tries = 0; connect(client[c].fd, (void *)&at, sizeof at) != 0; tries++) {
            if (tries == 60000)
                wrong("no server", c, 0, 0);
            usleep(1000); // until it listens
        }
        client[c].window = c % 10 == 9 ? 400 : 1 + draw(16);
    }
    if (write(client[0].fd, "state\n", 6) != 6)
        _exit(1);
    FILE *in = fdopen(dup(client[0].fd), "r");
    if (!in || getline(&line, &size, in) <= 0 || strncmp(line, "instant ", 8) != 0)
        _exit(1);
    char *next = line + 8;
    base = most = strtoul(next, &next, 10);
    for (unsigned c = 0; c < CLIENTS; c++)
        client[c].sent = client[c].answered = strtoul(next, &next, 10);
    printf("instant 0 %s", strchr(line + 8, ' ') + 1);
    fflush(stdout);
}

// All answers up to the last one are there: they leave in their order.
static void end(void) {
    uint64_t done[CLIENTS];
    for (uint64_t all = base + 1; all <= most; all++)
        if (!seen[all - base])
            wrong("missing", base, all, most);
    for (unsigned c = 0; c < CLIENTS; c++)
        done[c] = client[c].answered;
    say_state(stdout, "answered", most, done);
}

static int ask(const char *path) {
    struct pollfd p[CLIENTS];
    unsigned open = CLIENTS;
    begin(path);
    for (unsigned c = 0; c < CLIENTS; c++) {
        p[c] = (struct pollfd){.fd = client[c].fd, .events = POLLIN};
        ask_more(c);
    }
    while (open) {
        poll(p, CLIENTS, -1);
        unsigned lazy = (unsigned)draw(4 * CLIENTS); // its answers wait for a while
        for (unsigned c = 0; c < CLIENTS; c++) {
            if (!p[c].revents || (c == lazy && open == CLIENTS))
                continue;
            if (hear(c))
                ask_more(c);
            else {
                p[c].fd = -1;
                open--;
            }
        }
        fflush(stdout);
    }
    end();
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (argc >= 4 && strcmp(mode, "ask") == 0) {
        random_state = strtoul(argv[3], NULL, 10);
        says = argc > 4;
        return ask(argv[2]);
    }
    if (!state && !(state = calloc(1, sizeof *state)))
        return 1;
    check();
    if (argc == 3 && strcmp(mode, "serve") == 0)
        serve(argv[2]);
    if (argc >= 2 && strcmp(mode, "look") == 0) {
        printf("instant 0");
        for (unsigned c = 0; c < CLIENTS; c++)
            printf(" %lu", (unsigned long)state->done[c]);
        puts("");
        return 0;
    }
    return EXIT_USAGE;
}
