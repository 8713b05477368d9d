// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "wrapper.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct wrapper {
    const char *name;
    const char *letters; // the options of one letter that have a value
    const char *longs;   // long ones whose value may be the next word, with a blank around each
    unsigned operands;   // words before the program
    const char *none;    // letters with which it starts no program that could be found
};

static const struct wrapper wrappers[] = {
    {"timeout", "ks", " kill-after signal ", 1, ""},
    {"env", "uC", " unset chdir ", 0, "S"},
    {"nice", "n", " adjustment ", 0, ""},
    {"nohup", "", " ", 0, ""},
    {"setsid", "", " ", 0, ""},
    {"stdbuf", "ioe", " input output error ", 0, ""},
    {"taskset", "", " ", 1, "p"},
    {"numactl", "imNCp", " interleave membind cpunodebind physcpubind preferred preferred-many ", 0,
     "sH"},
    {"strace", "aeEIoOPsSuUXb", " output trace ", 0, "p"},
    {"ltrace", "aAeFlnosuwxX", " output library ", 0, "p"},
    {"gdb", "xps",
     " ex eval-command iex init-eval-command x command ix init-command cd directory d se symbols s "
     "tty ",
     0, ""},
    {"chrt", "TPD", " sched-runtime sched-period sched-deadline ", 1, "p"},
    {"ionice", "cn", " class classdata ", 0, "pPu"},
    {"time", "fo", " format output ", 0, ""},
};

static const struct wrapper *find(const char *path) {
    const char *slash = strrchr(path, '/');
    for (size_t i = 0; i < sizeof wrappers / sizeof wrappers[0]; i++)
        if (strcmp(slash ? slash + 1 : path, wrappers[i].name) == 0)
            return &wrappers[i];
    return NULL;
}

static bool in_words(const char *words, const char *name) {
    size_t len = strlen(name);
    for (const char *at = words; (at = strstr(at, name)); at++)
        if (at[-1] == ' ' && at[len] == ' ')
            return true;
    return false;
}

// How many words an option takes; 0: there is no program behind it.
static unsigned words_of(const struct wrapper *w, const char *option, bool *clears) {
    bool gdb = strcmp(w->name, "gdb") == 0; // its long options may begin with one dash
    if (option[1] == '-' || gdb) {
        const char *name = option + (option[1] == '-' ? 2 : 1);
        *clears |= strcmp(name, "ignore-environment") == 0;
        return 1 + in_words(w->longs, name);
    }
    *clears |= option[1] == '\0' && strcmp(w->name, "env") == 0;
    for (const char *letter = option + 1; *letter; letter++) {
        if (strchr(w->none, *letter))
            return 0;
        if (strchr(w->letters, *letter))
            return letter[1] ? 1 : 2;
        *clears |= *letter == 'i' && strcmp(w->name, "env") == 0;
    }
    return 1;
}

enum wrapper_kind wrapper_find(char *const *argv, const char **program) {
    const struct wrapper *w = find(argv[0]);
    bool clears = false;
    size_t i = 1, count = 0;
    if (!w)
        return WRAPPER_NONE;
    while (argv[count])
        count++;
    while (i < count && argv[i][0] == '-') {
        unsigned words = words_of(w, argv[i], &clears);
        bool last = strcmp(argv[i], "--") == 0;
        if (words == 0)
            return WRAPPER_NONE;
        i += words;
        if (last)
            break;
    }
    while (i < count && strcmp(w->name, "env") == 0 && strchr(argv[i], '='))
        i++;
    i += w->operands;
    if (i >= count)
        return WRAPPER_NONE;
    enum wrapper_kind inner = wrapper_find(argv + i, program);
    if (inner == WRAPPER_NONE)
        *program = argv[i];
    return clears || inner == WRAPPER_CLEARS ? WRAPPER_CLEARS : WRAPPER_STARTS;
}
