// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "event_hook.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "bare_child.h"
#include "bare_thread.h"
#include "cancel.h"
#include "event_log.h"
#include "options.h"
#include "os.h"
#include "own_memory.h"
#include "similar.h"

#define NR_CLOSE_RANGE 436 // younger than the oldest headers that this is built with
#define DESCRIPTORS 1024   // that are closed where the kernel has no such call
#define NAME_FD 3          // of the command, which holds the event's name by it
#define SIGNALS 64
#define STACK_BYTES 4096u

// Of one command. The second one is FREE in the eyes of a forked child, which has a copy.
enum state { FREE, FILLED, WAITS, STARTS };
struct hook {
    enum pm_event event;
    _Atomic uint64_t state; // enum state, and above it the process
    const char *command;
    char *argument[4]; // of execve()
    char **environment;
    int error; // of execve()
    socklen_t name_length;
    struct sockaddr_un name;
    char folder[32]; // the program's working directory: PMAlloc's threads keep their first one
    char event_text[64], heap[4096 + 16], message[1024 + 32];
    char stack[STACK_BYTES] __attribute__((aligned(16)));
    char command_stack[STACK_BYTES] __attribute__((aligned(16)));
};

static struct hook *hooks;
static unsigned hook_count;
static _Atomic bool waiting;

// ---- the children -------------------------------------------------------------------------------

// What the program ignores, the command would ignore, too.
PM_BARE static void forget_signals(void) {
    struct {
        uint64_t handler, flags, restorer, mask;
    } plain = {0, 0, 0, 0};
    uint64_t none = 0;
    for (long number = 1; number <= SIGNALS; number++)
        pm_bare_call(SYS_rt_sigaction, number, (long)&plain, 0, sizeof none);
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, sizeof none);
}

// Its output is no part of the program's, which may be a protocol.
PM_BARE static void leave_descriptors(void) {
    long none = pm_bare_call(SYS_openat, AT_FDCWD, (long)"/dev/null", O_RDWR, 0);
    if (none > 0)
        pm_bare_call(SYS_dup2, none, 0, 0, 0);
    if (pm_bare_call(SYS_dup2, 2, 1, 0, 0) < 0) { // it was closed
        pm_bare_call(SYS_dup2, 0, 1, 0, 0);
        pm_bare_call(SYS_dup2, 0, 2, 0, 0);
    }
    if (pm_bare_call(NR_CLOSE_RANGE, NAME_FD + 1, (long)~0u, 0, 0) == 0)
        return;
    for (long fd = NAME_FD + 1; fd < DESCRIPTORS; fd++)
        pm_bare_call(SYS_close, fd, 0, 0, 0);
}

PM_BARE static long execute(void *arg) {
    struct hook *h = arg;
    leave_descriptors();
    pm_bare_call(SYS_chdir, (long)h->folder, 0, 0, 0);
    pm_bare_call(SYS_setsid, 0, 0, 0, 0);
    forget_signals();
    h->error = -(int)pm_bare_call(SYS_execve, (long)h->argument[0], (long)h->argument,
                                  (long)h->environment, 0);
    return 127;
}

// Nobody has the name while no command of the event runs, whoever made it. Without sockets there is
// one command more.
PM_BARE static long start(void *arg) {
    struct hook *h = arg;
    long fd = pm_bare_call(SYS_socket, AF_UNIX, SOCK_DGRAM, 0, 0);
    if (fd >= 0 && pm_bare_call(SYS_bind, fd, (long)&h->name, h->name_length, 0) == -EADDRINUSE)
        return 0;
    if (fd >= 0 && fd != NAME_FD) {
        pm_bare_call(SYS_dup2, fd, NAME_FD, 0, 0);
        pm_bare_call(SYS_close, fd, 0, 0, 0);
    }
    long id = pm_bare_child(execute, h, h->command_stack + sizeof h->command_stack);
    if (id < 0)
        h->error = -(int)id;
    return 0;
}

// ---- one event ----------------------------------------------------------------------------------

static uint64_t in(enum state state) {
    return (uint64_t)pm_bare_call(SYS_getpid, 0, 0, 0, 0) << 8 | state;
}

// False: this process has it in another state.
static bool become(struct hook *h, enum state from, enum state to) {
    uint64_t seen = atomic_load(&h->state);
    bool strange = seen >> 8 != in(FREE) >> 8;
    return (seen == in(from) || (strange && from == FREE)) &&
           atomic_compare_exchange_strong(&h->state, &seen, in(to));
}

static void run(struct hook *h) {
    if (!become(h, WAITS, STARTS))
        return;
    h->error = 0;
    snprintf(h->folder, sizeof h->folder, "/proc/%d/cwd", (int)getpid());
    long id = pm_bare_child(start, h, h->stack + sizeof h->stack);
    if (id > 0)
        pm_bare_child_status(id);
    int error = id > 0 ? h->error : -(int)id;
    become(h, STARTS, FREE);
    if (error && h->event != PM_EV_HOOK_FAILED)
        pm_event(PM_EV_HOOK_FAILED, "PMALLOC_ON: the command of %s cannot be started: %s",
                 pm_event_info[h->event].name, pm_strerror(error));
}

void pm_event_hooks_run(void) {
    int saved = errno;
    if (atomic_exchange(&waiting, false))
        for (unsigned i = 0; i < hook_count; i++)
            run(&hooks[i]);
    errno = saved;
}

static void follow(enum pm_event event, const char *message) {
    struct hook *h = hooks;
    while (h < hooks + hook_count && h->event != event)
        h++;
    if (h == hooks + hook_count || !become(h, FREE, FILLED))
        return;
    snprintf(h->heap, sizeof h->heap, "PMALLOC_HEAP=%s", pm_event_heap());
    snprintf(h->message, sizeof h->message, PM_MESSAGE_VARIABLE "=%s", message);
    become(h, FILLED, WAITS);
    bool inside = pm_inside || pm_locks_held;
    if (!inside || pm_event_info[event].level == PM_LEVEL_CRITICAL) {
        run(h);
    } else {
        atomic_store(&waiting, true);
        pm_postponed = true;
    }
}

// ---- the start ----------------------------------------------------------------------------------

static bool is_left_out(const char *variable) {
    return strncmp(variable, "LD_PRELOAD=", 11) == 0 || strncmp(variable, "PMALLOC_", 8) == 0;
}

// A copy, because the program changes its environment. NULL: there is no memory.
static char **copy_environment(char *const *list, size_t *count) {
    size_t bytes = 0;
    *count = 0;
    for (char *const *v = list; v && *v; v++)
        if (!is_left_out(*v)) {
            bytes += strlen(*v) + 1;
            ++*count;
        }
    char **copy = pm_own_reserve(*count * sizeof *copy + bytes + 1), **to = copy;
    char *text = copy ? (char *)(copy + *count) : NULL;
    for (char *const *v = list; copy && v && *v; v++)
        if (!is_left_out(*v)) {
            *to++ = text;
            text = stpcpy(text, *v) + 1;
        }
    return copy;
}

static int wrong(struct pm_error *err, const char *text, const char *why, const char *more) {
    return pm_fail(err, PM_USAGE, "PMALLOC_ON=%.200s: %s%s", text, why, more);
}

static int find_event(const char *name, size_t length, enum pm_event *event, struct pm_error *err) {
    char given[64];
    const char *similar = NULL;
    snprintf(given, sizeof given, "%.*s", (int)(length < 60 ? length : 60), name);
    for (unsigned i = 0; i < PM_EVENTS; i++) {
        *event = (enum pm_event)i;
        if (strcmp(pm_event_info[i].name, given) == 0)
            return pm_event_info[i].level != PM_LEVEL_REPORT
                       ? PM_OK
                       : wrong(err, given, "is a report that is asked for, not an event", "");
        if (pm_similar(given, pm_event_info[i].name))
            similar = pm_event_info[i].name;
    }
    if (similar)
        return wrong(err, given, "no such event; did you mean ", similar);
    return wrong(err, given,
                 "no such event; docs/events.md lists them, and a command follows "
                 "its event: EVENT:COMMAND",
                 "");
}

// Where no shell is needed, none need be there.
static void choose_arguments(struct hook *h) {
    bool plain = h->command[0] == '/' && !strpbrk(h->command, " \t\n\"'\\$`&|<>()*?[]#~;{}!^");
    char *shell[] = {(char *)(uintptr_t) "/bin/sh", (char *)(uintptr_t) "-c",
                     (char *)(uintptr_t)h->command, NULL};
    memcpy(h->argument, plain ? shell + 2 : shell, plain ? 2 * sizeof *shell : sizeof shell);
}

// All hooks of this process, and of its forked children, share the names.
static void name_it(struct hook *h, uint64_t mark) {
    h->name.sun_family = AF_UNIX;
    int length = snprintf(h->name.sun_path + 1, sizeof h->name.sun_path - 1, "pmalloc-on/%lx/%s",
                          (unsigned long)mark, pm_event_info[h->event].name);
    h->name_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int add(struct hook *h, char *text, struct pm_error *err) {
    size_t length = strcspn(text, ":");
    int status = find_event(text, length, &h->event, err);
    if (status != PM_OK)
        return status;
    h->command = text + length + (text[length] == ':');
    h->command += strspn(h->command, " ");
    if (!*h->command)
        return wrong(err, text, "names no command; use EVENT:COMMAND", "");
    for (struct hook *other = hooks; other < h; other++)
        if (other->event == h->event)
            return wrong(err, text, "the event has a command already", "");
    return PM_OK;
}

// All that can be made before.
static void finish(struct hook *h, char **list, char *const *environment, size_t variables) {
    char *own[] = {h->event_text, h->heap, h->message, NULL};
    choose_arguments(h);
    snprintf(h->event_text, sizeof h->event_text, PM_EVENT_VARIABLE "=%s",
             pm_event_info[h->event].name);
    h->environment = list;
    memcpy(list, environment, variables * sizeof *list);
    memcpy(list + variables, own, sizeof own);
}

int pm_event_hooks_begin(char *const *environ_list, struct pm_error *err) {
    const char *value = pm_options.on.text;
    unsigned count = 1;
    size_t variables;
    if (!*value)
        return PM_OK;
    for (const char *at = value; *at; at++)
        count += *at == ';';
    char **environment = copy_environment(environ_list, &variables);
    char *text = pm_own_reserve(strlen(value) + 1);
    size_t each = variables + 4; // and three of ours, and the end
    char **lists = pm_own_reserve(count * each * sizeof *lists);
    hooks = pm_own_reserve(count * sizeof *hooks);
    if (!environment || !text || !lists || !hooks)
        return pm_fail(err, PM_OPERATIONAL, "PMALLOC_ON: %s", pm_strerror(ENOMEM));
    uint64_t mark = pm_os_now_ns() ^ (uint64_t)(uintptr_t)hooks ^ (uint64_t)getpid() << 40;
    char *end = strcpy(text, value) - 1;
    for (bool more = true; more;) {
        char *one = end + 1 + strspn(end + 1, " ");
        end = one + strcspn(one, ";");
        more = *end;
        *end = '\0';
        struct hook *h = &hooks[hook_count];
        if (!*one && hook_count) // the end of the list may have a semicolon
            continue;
        int status = add(h, one, err);
        if (status != PM_OK)
            return status;
        name_it(h, mark);
        finish(h, lists + hook_count++ * each, environment, variables);
    }
    pm_event_followed = follow;
    return PM_OK;
}
