// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A server as most are: main sets its globals up, and then it waits for requests, each a line.
//
//   add TEXT   puts it first in the list       list   all of them, the last one first
//   restore    calls pmalloc_restore()         end    returns from main
//
//   late_server [threads N] [busy] [daemon] [globals] [looks] [slow] [fds] [netlink]
//               [pipe or eventfd] [asks]
//
// `threads`: so many wait for work that never comes. `busy`: one never waits. `daemon`: a forked
// child serves. `globals`: main leaves the variable as it is, as a program does that knows PMAlloc.
// `looks`: it does not wait for requests, but looks again and again for one. `slow`: it takes four
// seconds to set itself up. `fds`: for a second or two it closes a file and opens it again, and
// ends if the number is another one. `netlink`: it asks the kernel for the machine's addresses
// before it sets itself up. `pipe`: it tells itself by a pipe to empty its list once it waits for
// requests, as dnsmasq does; `eventfd`: by that. `asks`: in between it asks somebody who does not
// answer, for a third of a second.
//
// Built with STILL, nothing on the variable's page changes once it is set up, and the heap grows
// before main, and with the argument `grows` in main.
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct item {
    struct item *next;
    unsigned long number;
    char text[40];
};

#ifdef ELSEWHERE
char before[5000] = "another build"; // so that the variable lies elsewhere
#endif

#ifdef LARGE
char large[LARGE];
#endif

// The head stands in the middle, as in many a server: a root need not be the whole variable.
struct {
    char name[64];
    struct item *first;
    unsigned long count;
    char *configuration; // of this process
#ifdef STILL
    char rest[8192];
#endif
#ifdef GROWN
    long more[4];
#endif
} server
#ifdef STILL
    __attribute__((aligned(4096)))
#endif
    ;

extern int pmalloc_restore(void) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;

static void *wait_for_work(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;)
        pthread_cond_wait(&work, &lock);
    return unused;
}

volatile unsigned long turns;
static void *turn(void *unused) {
    for (;;)
        turns++;
    return unused;
}

static void set_up(void) {
    snprintf(server.name, sizeof server.name, "server of process %d", (int)getpid());
    server.first = malloc(sizeof *server.first);
    server.first->next = NULL;
    server.first->number = 0;
    strcpy(server.first->text, "nothing");
    server.count = 0;
}

#ifdef STILL
#define BLOCK ((size_t)9 << 20)
static void *volatile much;
static __attribute__((constructor)) void grow(void) { much = malloc(BLOCK); }

#define PLACE server.first->next
#define COUNT server.first->number
#else
#define PLACE server.first
#define COUNT server.count
#endif

static void add(const char *text) {
    struct item *item = malloc(sizeof *item);
    snprintf(item->text, sizeof item->text, "%.39s", text);
    item->number = COUNT + 1;
    item->next = PLACE;
    PLACE = item;
    COUNT++;
    printf("ok %lu\n", COUNT);
}

static void list(void) {
    unsigned long expected = COUNT;
    for (const struct item *item = PLACE; item; item = item->next, expected--) {
        if (item->number != expected)
            printf("wrong ");
        printf("%s ", item->text);
    }
    puts(server.configuration && strcmp(server.configuration, "mine") == 0 ? "." : "wrong");
}

static void serve(char *line) {
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "add ", 4) == 0)
        add(line + 4);
    else if (strcmp(line, "list") == 0)
        list();
    else if (strcmp(line, "restore") == 0)
        puts(!pmalloc_restore ? "none" : pmalloc_restore() == 0 ? "restored" : strerror(errno));
}

static void look(void) {
    struct pollfd input = {.fd = 0, .events = POLLIN};
    fcntl(0, F_SETFL, O_NONBLOCK);
    while (poll(&input, 1, 0) == 0)
        turns++;
}

static void ask_the_kernel(void) {
    struct {
        struct nlmsghdr header;
        struct rtgenmsg family;
    } request = {.header = {.nlmsg_len = NLMSG_LENGTH(sizeof(struct rtgenmsg)),
                            .nlmsg_type = RTM_GETLINK,
                            .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP}};
    static union {
        struct nlmsghdr header;
        char bytes[65536];
    } answer;
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
    if (fd < 0 || send(fd, &request, request.header.nlmsg_len, 0) < 0)
        abort();
    do {
        if (recv(fd, &answer, sizeof answer, 0) <= 0)
            abort();
    } while (answer.header.nlmsg_type != NLMSG_DONE);
    close(fd);
}

static void open_again(void) {
    int fd = open("/dev/null", O_RDONLY);
    for (time_t end = time(NULL) + 2; time(NULL) < end;) {
        close(fd);
        if (open("/dev/null", O_RDONLY) != fd)
            _exit(9);
    }
}

// Waits for requests, and first of all for what it has told itself.
static void tell_itself(int by_pipe, int asks) {
    struct pollfd wait[] = {{.fd = 0, .events = POLLIN}, {.events = POLLIN}};
    struct pollfd answer = {.events = POLLIN};
    uint64_t word = 1;
    int end[2];
    if (by_pipe ? pipe(end) != 0 : (end[0] = end[1] = eventfd(0, 0)) < 0)
        abort();
    if (write(end[1], &word, sizeof word) != sizeof word)
        abort();
    answer.fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (asks && poll(&answer, 1, 333) != 0)
        abort();
    wait[1].fd = end[0];
    while (poll(wait, 2, -1) > 0) {
        if (wait[1].revents == 0)
            return;
        if (read(end[0], &word, sizeof word) != sizeof word)
            abort();
        set_up();
    }
}

int main(int argc, char **argv) {
    char line[100];
    const char *tells = NULL;
    pthread_t thread;
    int threads = 0, busy = 0, globals = 0, looks = 0, asks = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "threads") == 0)
            threads = atoi(argv[++i]);
        busy |= strcmp(argv[i], "busy") == 0;
        looks |= strcmp(argv[i], "looks") == 0;
        asks |= strcmp(argv[i], "asks") == 0;
        globals |= strcmp(argv[i], "globals") == 0;
        if (strcmp(argv[i], "pipe") == 0 || strcmp(argv[i], "eventfd") == 0)
            tells = argv[i];
        if (strcmp(argv[i], "slow") == 0)
            sleep(4);
        if (strcmp(argv[i], "fds") == 0)
            open_again();
        if (strcmp(argv[i], "netlink") == 0)
            ask_the_kernel();
#ifdef STILL
        if (strcmp(argv[i], "grows") == 0) {
            grow();
            puts("grown"); // an answer, and a commit under `output`
        }
#endif
        if (strcmp(argv[i], "daemon") == 0 && fork() != 0)
            _exit(0);
    }
    if (!globals || !server.first)
        set_up();
    server.configuration = strdup("mine");
    for (int i = 0; i < threads; i++)
        pthread_create(&thread, NULL, wait_for_work, NULL);
    if (busy)
        pthread_create(&thread, NULL, turn, NULL);
    if (looks)
        look();
    if (tells)
        tell_itself(strcmp(tells, "pipe") == 0, asks);
    while (fgets(line, sizeof line, stdin) && strcmp(line, "end\n") != 0) {
        serve(line);
        if (looks)
            look();
    }
    return 0;
}
