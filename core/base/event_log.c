// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "event_log.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "bare_child.h"
#include "bare_thread.h"
#include "event_text.h"
#include "options.h"
#include "os.h"

#define MINUTE_MS 60000u
#define SYSLOG_SOCKET "/dev/log"
#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define OPEN_FLAGS (O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)
#define SOCKET_TYPE (SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK)

const char *pm_event_heap_dir = "";

static struct {
    enum { TO_ERROR, TO_FILE, TO_SOCKET, TO_FD } kind;
    enum pm_event_form form;
    int fd;
    dev_t dev;
    ino_t ino;
    const char *path;           // of the file
    struct sockaddr_un address; // of the socket
    bool forbidden;
} to;

const char *pm_event_heap(void) {
    if (*pm_event_heap_dir)
        return pm_event_heap_dir;
    return pm_options.heap.text ? pm_options.heap.text : "";
}

// ---- writing ------------------------------------------------------------------------------------

static bool is_ours(void) {
    struct stat st;
    return to.fd >= 0 && pm_bare_call(SYS_fstat, to.fd, (long)&st, 0, 0) == 0 &&
           st.st_dev == to.dev && st.st_ino == to.ino;
}

PM_BARE static bool write_whole(long fd, const char *line, size_t length) {
    long got;
    do
        got = pm_bare_call(SYS_write, fd, (long)line, (long)length, 0);
    while (got == -EINTR);
    return got == (long)length;
}

// A pipe that nobody reads and a file at the process' limit (RLIMIT_FSIZE) raise a signal, of which
// the program would end.
static bool write_quietly(const char *line, size_t length) {
    uint64_t both = 1ull << (SIGPIPE - 1) | 1ull << (SIGXFSZ - 1), mask, before = both;
    const struct timespec none = {0, 0};
    pm_bare_call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&both, (long)&mask, sizeof mask);
    pm_bare_call(SYS_rt_sigpending, (long)&before, sizeof before, 0, 0);
    bool good = write_whole(to.fd, line, length);
    uint64_t raised = both & ~before;
    if (!good && raised)
        pm_bare_call(SYS_rt_sigtimedwait, (long)&raised, 0, (long)&none, sizeof raised);
    pm_bare_call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&mask, 0, sizeof mask);
    return good;
}

struct line {
    const char *text;
    size_t length;
};

// In the child.
PM_BARE static long open_and_write(void *arg) {
    const struct line *line = arg;
    long fd;
    if (to.kind == TO_FILE) {
        fd = pm_bare_call(SYS_openat, AT_FDCWD, (long)to.path, OPEN_FLAGS, 0640);
    } else {
        fd = pm_bare_call(SYS_socket, AF_UNIX, SOCKET_TYPE, 0, 0);
        if (fd >= 0 && pm_bare_call(SYS_connect, fd, (long)&to.address, sizeof to.address, 0) != 0)
            return 1;
    }
    return fd < 0 || !write_whole(fd, line->text, line->length);
}

// One at a time has the stack. Where another one has it for long, it is stopped, or this is a
// handler that has interrupted it: then the line goes to standard error.
static bool write_by_child(const char *text, size_t length) {
    static _Atomic uint32_t owner; // a process: a forked child has a copy
    static char stack[4096] __attribute__((aligned(16)));
    struct line line = {text, length};
    uint32_t self = (uint32_t)pm_bare_call(SYS_getpid, 0, 0, 0, 0), seen;
    for (unsigned tries = 0; tries < 1000; tries++) {
        seen = atomic_load(&owner);
        if (seen != self && atomic_compare_exchange_strong(&owner, &seen, self)) {
            long id = pm_bare_child(open_and_write, &line, stack + sizeof stack);
            int status = id > 0 ? pm_bare_child_status(id) : -1;
            atomic_store(&owner, 0);
            return status == 0;
        }
        pm_bare_call(SYS_sched_yield, 0, 0, 0, 0);
    }
    return false;
}

// Not inlined: what a thread says without these settings takes no more of its stack.
__attribute__((noinline)) static bool deliver(enum pm_event event, const char *message) {
    char line[PM_EVENT_LINE];
    if (to.forbidden || (to.kind == TO_ERROR && to.form == PM_EVENT_TEXT))
        return false;
    const struct pm_event_said said = {event, message, pm_event_heap()};
    size_t length = pm_event_write(to.form, &said, line);
    if (to.kind == TO_ERROR)
        return write_whole(STDERR_FILENO, line, length);
    bool ours = is_ours();
    if (ours && write_quietly(line, length))
        return true;
    // Who listens to a socket may have begun anew.
    return (to.kind == TO_SOCKET || (to.kind == TO_FILE && !ours)) && write_by_child(line, length);
}

// ---- not too many -------------------------------------------------------------------------------

static struct {
    _Atomic uint64_t since; // when the first of them was said, in milliseconds; 0: none was
    _Atomic uint32_t said, left_out;
} of[PM_EVENTS];

__attribute__((format(printf, 1, 2))) static void say_of_lines(const char *format, ...) {
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!deliver(PM_EV_LINES_LEFT_OUT, text))
        pm_say("%s", text);
}

static void end_minutes(uint64_t now, bool all) {
    for (unsigned i = 0; i < PM_EVENTS; i++) {
        uint64_t since = atomic_load_explicit(&of[i].since, memory_order_relaxed);
        if (!since || (!all && now - since < MINUTE_MS) ||
            !atomic_compare_exchange_strong(&of[i].since, &since, 0))
            continue;
        atomic_store(&of[i].said, 0);
        uint32_t left_out = atomic_exchange(&of[i].left_out, 0);
        if (left_out)
            say_of_lines("%u lines of %s were left out within %lu s", left_out,
                         pm_event_info[i].name, (unsigned long)((now - since) / 1000 + 1));
    }
}

static bool is_one_too_many(enum pm_event event) {
    unsigned char level = pm_event_info[event].level;
    uint64_t now = pm_os_now_ms() + 1, none = 0;
    end_minutes(now, false);
    if (level == PM_LEVEL_CRITICAL || level == PM_LEVEL_REPORT)
        return false;
    atomic_compare_exchange_strong(&of[event].since, &none, now);
    if (atomic_fetch_add(&of[event].said, 1) < PM_EVENT_MOST)
        return false;
    if (atomic_fetch_add(&of[event].left_out, 1) == 0)
        say_of_lines("%u lines of %s within a minute: the next ones are left out", PM_EVENT_MOST,
                     pm_event_info[event].name);
    return true;
}

static bool take(enum pm_event event, const char *message) {
    return is_one_too_many(event) || deliver(event, message);
}

void pm_event_log_end(void) {
    int saved = errno;
    if (pm_event_taken)
        end_minutes(pm_os_now_ms() + 1, true);
    errno = saved;
}

void pm_event_log_forbid(void) { to.forbidden = true; }

void pm_event_log_fd(void (*fn)(int fd, void *arg), void *arg) {
    if (pm_event_log_has_fd() && is_ours())
        fn(to.fd, arg);
}

bool pm_event_log_has_fd(void) { return to.kind != TO_ERROR; }

// ---- the start ----------------------------------------------------------------------------------

// Keeps it, at a high number.
static bool hold(int fd) {
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0)
        return false;
    to.fd = pm_os_fd_high(fd);
    to.dev = st.st_dev;
    to.ino = st.st_ino;
    return true;
}

static bool connect_to(const char *path) {
    to.kind = TO_SOCKET;
    to.address.sun_family = AF_UNIX;
    strcpy(to.address.sun_path, path);
    int fd = (int)syscall(SYS_socket, AF_UNIX, SOCKET_TYPE, 0);
    if (fd >= 0 && syscall(SYS_connect, fd, &to.address, sizeof to.address) == 0)
        return hold(fd);
    int saved = errno;
    if (fd >= 0)
        close(fd);
    errno = saved;
    return false;
}

// systemd says by JOURNAL_STREAM=DEVICE:INODE what standard error is where it leads to the journal.
static bool error_is_journal(void) {
    char is[64];
    struct stat st;
    if (fstat(STDERR_FILENO, &st) != 0)
        return false;
    snprintf(is, sizeof is, "JOURNAL_STREAM=%lu:%lu", (unsigned long)st.st_dev,
             (unsigned long)st.st_ino);
    char *const *list = pm_os_environ();
    while (list && *list && strcmp(*list, is) != 0)
        list++;
    return list && *list;
}

// "fd:N". -1: it is no number.
static int number_of(const char *text) {
    int number = 0;
    for (; *text >= '0' && *text <= '9' && number < 100000000; text++)
        number = 10 * number + *text - '0';
    return *text ? -1 : number;
}

static bool open_it(const char *where, bool descends) {
    if (strcmp(where, "syslog") == 0)
        return connect_to(SYSLOG_SOCKET);
    if (strcmp(where, "journal") == 0)
        return !error_is_journal() || connect_to(JOURNAL_SOCKET);
    if (where[0] == '/') {
        to.kind = TO_FILE;
        to.path = where;
        return hold(open(where, OPEN_FLAGS, 0640));
    }
    if (strncmp(where, "fd:", 3) != 0 || descends)
        return true;
    to.kind = TO_FD;
    return hold(fcntl(number_of(where + 3), F_DUPFD_CLOEXEC, 3));
}

static bool is_known(const char *where) {
    return where[0] == '/' || strcmp(where, "stderr") == 0 || strcmp(where, "syslog") == 0 ||
           strcmp(where, "journal") == 0 ||
           (strncmp(where, "fd:", 3) == 0 && where[3] && number_of(where + 3) >= 0);
}

static int failure; // errno

void pm_event_log_say_failure(void) {
    if (failure)
        pm_event(
            PM_EV_LOG_FAILED,
            "PMALLOC_LOG=%.200s cannot be opened: %s; what is to be said goes to standard error",
            pm_options.log.text, pm_strerror(failure));
    failure = 0;
}

int pm_event_log_begin(bool descends, struct pm_error *err) {
    const char *where = pm_options.log.text;
    bool json = pm_options.log_format.number == PM_LOG_JSON;
    if (*where && !is_known(where))
        return pm_fail(err, PM_USAGE,
                       "PMALLOC_LOG=%.200s: not a valid value; use stderr, journal, syslog, fd:N, "
                       "or a FILE by its whole path",
                       where);
    if (!pm_event_log_wanted())
        return PM_OK;
    pm_event_taken = take;
    to.form = json ? PM_EVENT_JSON : PM_EVENT_TEXT;
    if (!open_it(where, descends)) {
        failure = descends ? 0 : errno;
        to.kind = TO_ERROR;
    }
    if (to.kind == TO_SOCKET && strcmp(where, "journal") == 0)
        to.form = PM_EVENT_JOURNAL;
    else if (to.kind == TO_SOCKET)
        to.form = json ? PM_EVENT_SYSLOG_JSON : PM_EVENT_SYSLOG;
    return PM_OK;
}
