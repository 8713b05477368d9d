// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "descent.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "base/os.h"
#include "media/heap.h"

extern char **environ;

static uint64_t own_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

static bool is_owner_variable(const char *variable) {
    size_t len = strlen(PM_OWNER_VARIABLE);
    return strncmp(variable, PM_OWNER_VARIABLE, len) == 0 && variable[len] == '=';
}

// What an ancestor has said is not true any more. A program may change the list, so it is a copy.
void pm_descent_tell(char **before) {
    const char *dir = pm_options.heap.text[0] ? pm_options.heap.text : pm_heap.dir;
    const struct pm_state *state = &pm_heap.super->state;
    size_t count = 0, kept = 0, room = strlen(dir) + 128;
    int saved = errno;
    if (environ != before) // a root has restored what an earlier process had there
        return;
    while (environ && environ[count])
        count++;
    // Not as our own memory: a constructor may have put blocks into the list.
    char **list = pm_os_reserve((count + 2) * sizeof *list + room);
    if (list) {
        char *text = (char *)(list + count + 2);
        snprintf(text, room, "%s=%llu,%llu,%llu,%s", PM_OWNER_VARIABLE,
                 (unsigned long long)own_namespace(), (unsigned long long)state->owner_pid,
                 (unsigned long long)state->owner_start, dir);
        for (size_t i = 0; i < count; i++)
            if (!is_owner_variable(environ[i]))
                list[kept++] = environ[i];
        list[kept] = text;
        environ = list;
    }
    errno = saved;
}

struct told {
    uint64_t namespace, pid, start;
};

// The heap of the process that has set the environment; NULL: none has.
static const char *find_any(struct told *told) {
    char *const *list = pm_os_environ();
    while (list && *list && !is_owner_variable(*list))
        list++;
    if (!list || !*list)
        return NULL;
    char *at = *list + sizeof PM_OWNER_VARIABLE;
    uint64_t *number[] = {&told->namespace, &told->pid, &told->start};
    for (unsigned i = 0; i < 3; i++) {
        *number[i] = strtoull(at, &at, 10);
        if (*at++ != ',')
            return NULL;
    }
    return at;
}

static bool find(const char *dir, struct told *told) {
    const char *its = find_any(told);
    return its && strcmp(its, dir) == 0;
}

// This process may have set it itself, before it executed this program.
static bool is_own(const struct told *told) {
    return told->pid == (uint64_t)getpid() && told->start == pm_os_start_time(pm_os_proc_pid());
}

bool pm_descent_was_told(void) {
    struct told told;
    return find_any(&told) && !is_own(&told);
}

bool pm_descends_from_owner(const char *dir) {
    struct told told;
    return find(dir, &told) && !is_own(&told);
}

bool pm_descends_from_hidden_owner(const char *dir, const struct pm_holder *owner) {
    struct told told;
    return find(dir, &told) && told.namespace && told.namespace != own_namespace() &&
           told.pid == (uint64_t)owner->pid && told.start == owner->start;
}
