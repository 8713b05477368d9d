// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

const char *pm_message_prefix = "pmalloc";
bool (*pm_event_taken)(enum pm_event event, const char *message);
void (*pm_event_followed)(enum pm_event event, const char *message);

#define INFO(name, identifier, level) {identifier, PM_LEVEL_##level},
const struct pm_event_info pm_event_info[] = {PM_EVENT_TABLE(INFO)};
#undef INFO

static void write_line(char *line, size_t length) {
    line[length] = '\n';
    while (write(STDERR_FILENO, line, length + 1) < 0 && errno == EINTR) {
    } // any other failure is ignored: there is nowhere left to report it
}

// glibc's vsnprintf allocates only for wide characters and huge widths. Our messages use neither.
__attribute__((format(printf, 2, 0))) static void say(enum pm_event event, const char *format,
                                                      va_list args) {
    int saved = errno;
    char line[1024];
    int head = snprintf(line, sizeof line, "%s: ", pm_message_prefix);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, args);
    size_t len = (size_t)head + (body < 0 ? 0 : (size_t)body);
    if (len > sizeof line - 2)
        len = sizeof line - 2;
    // A path may have any bytes. They must not end the line or command a terminal.
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < ' ' || line[i] == 127)
            line[i] = '?';
    bool known = event != PM_EV_NONE;
    line[len] = '\0';
    if (!known || !pm_event_taken || !pm_event_taken(event, line + head))
        write_line(line, len);
    line[len] = '\0';
    if (known && pm_event_followed)
        pm_event_followed(event, line + head);
    errno = saved;
}

void pm_event(enum pm_event event, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(event, format, args);
    va_end(args);
}

void pm_say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(PM_EV_NONE, format, args);
    va_end(args);
}

void pm_abort(enum pm_event event, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(event, format, args);
    va_end(args);
    abort();
}

void pm_refuse(enum pm_event event, const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(event, format, args);
    va_end(args);
    // Not _exit(): PMAlloc's own would remove a default heap, which a forked child may have by now.
    for (;;)
        syscall(SYS_exit_group, PM_EXIT_START);
}

enum pm_event pm_event_of(const struct pm_error *err) {
    if (pm_is_busy(err))
        return PM_EV_HEAP_IN_USE;
    if (err->why == PM_WHY_FOREIGN)
        return PM_EV_HEAP_FOREIGN;
    if (err->status == PM_DAMAGE)
        return PM_EV_HEAP_DAMAGED;
    return err->status == PM_USAGE ? PM_EV_SETTING_WRONG : PM_EV_START_REFUSED;
}

int pm_fail(struct pm_error *err, enum pm_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    err->status = (int)status;
    err->why = PM_WHY_TEXT;
    err->holder = (struct pm_holder){0};
    return (int)status;
}

int pm_fail_anew(struct pm_error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return err->status;
}

// Appends as much as fits. Returns the new length.
static size_t append(struct pm_error *err, size_t length, const char *more) {
    size_t room = sizeof err->text - 1 - length, n = strnlen(more, room);
    memcpy(err->text + length, more, n);
    err->text[length + n] = '\0';
    return length + n;
}

int pm_fail_in(struct pm_error *err, const char *format, ...) {
    char reason[sizeof err->text];
    va_list args;
    memcpy(reason, err->text, sizeof reason);
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    append(err, append(err, strlen(err->text), ": "), reason);
    return err->status;
}

const char *pm_strerror(int error) {
    switch (error) {
    case EMFILE:
        return "Too many open files; raise `ulimit -n`";
    case ENFILE:
        return "Too many open files in system; raise fs.file-max";
    case ENOMEM:
        return "Cannot allocate memory; see `ulimit -v` and `ulimit -d`";
    case EIO:
        return "Input/output error; see the kernel's log";
    }
#ifdef __GLIBC__
    const char *text = strerrordesc_np(error);
    return text ? text : "unknown error";
#else
    return strerror(error);
#endif
}
