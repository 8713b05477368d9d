// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Every setting, once: the parser, --help and the man pages are made from this table.
#ifndef PM_OPTIONS_H
#define PM_OPTIONS_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

enum pm_option_type { PM_TYPE_TEXT, PM_TYPE_SIZE, PM_TYPE_NUMBER, PM_TYPE_CHOICE };

// X(field, NAME, type, default, choices or "min-max" in words, help)
#define PM_OPTION_TABLE(X)                                                                         \
    X(heap, "PMALLOC_HEAP", PM_TYPE_TEXT, "", "DIR",                                               \
      "The heap directory; made if missing. Unset: /dev/shm/pmalloc-UID/PROGRAM, or PROGRAM.2, "   \
      "PROGRAM.3, ... while those are busy")                                                       \
    X(roots, "PMALLOC_ROOTS", PM_TYPE_TEXT, "", "SPEC[,SPEC...]|@FILE",                            \
      "Where the collector starts: [object:]symbol, [object:]* or [object:]+OFFSET/LENGTH")        \
    X(limit, "PMALLOC_LIMIT", PM_TYPE_SIZE, "1T", "4M to 1T",                                      \
      "The heap grows no further than this; malloc then fails with ENOMEM")                        \
    X(markers, "PMALLOC_MARKERS", PM_TYPE_NUMBER, "0", "0 to 64",                                  \
      "Threads that mark during recovery; 0 means one for each core")                              \
    X(collect, "PMALLOC_COLLECT", PM_TYPE_CHOICE, "always", "always|crash",                        \
      "When opening marks and sweeps: always, or only after a crash, for programs that free "      \
      "everything themselves")                                                                     \
    X(check, "PMALLOC_CHECK", PM_TYPE_CHOICE, "abort", "abort|report|strict",                      \
      "On a bad free or realloc: abort, or report it and ignore the request; strict also aborts "  \
      "on pointers from outside the heap")                                                         \
    X(reserve, "PMALLOC_RESERVE", PM_TYPE_CHOICE, "lazy", "lazy|strict",                           \
      "Blocks over 2 MiB: lazy checks that the file system has room, strict allocates it at once") \
    X(busy, "PMALLOC_BUSY", PM_TYPE_CHOICE, "fail", "fail|wait",                                   \
      "When another process has the heap open: fail, or wait for it")                              \
    X(program, "PMALLOC_PROGRAM", PM_TYPE_TEXT, "", "GLOB",                                        \
      "Only programs whose name matches use a persistent heap; the others run on volatile memory") \
    X(backing, "PMALLOC_BACKING", PM_TYPE_CHOICE, "file", "file|volatile",                         \
      "volatile: the same allocator over anonymous memory, nothing is kept")                       \
    X(persist, "PMALLOC_PERSIST", PM_TYPE_CHOICE, "auto", "auto|none|cache|line|page",             \
      "What makes a store durable: found out by itself, or forced (for measurements)")             \
    X(decay_ms, "PMALLOC_DECAY_MS", PM_TYPE_NUMBER, "10000", "0 to 3600000",                       \
      "Milliseconds over which freed space goes back to the file system; 0 is at once")            \
    X(morph, "PMALLOC_MORPH", PM_TYPE_NUMBER, "20", "0 to 90",                                     \
      "A slab less full than this percentage may take up blocks of another size; 0 is never")      \
    X(fork, "PMALLOC_FORK", PM_TYPE_CHOICE, "private", "private|copy|follow",                      \
      "What a forked child gets: private memory, at the same addresses; a persistent heap of its " \
      "own, HEAP.PID; or, for daemons, the heap itself, and the parent private memory")            \
    X(verbose, "PMALLOC_VERBOSE", PM_TYPE_NUMBER, "0", "0 to 1",                                   \
      "1: one line at start with heap, guarantee, roots and recovery result")                      \
    X(stats, "PMALLOC_STATS", PM_TYPE_NUMBER, "0", "0 to 1", "1: heap statistics at exit")

// TEXT fields point into the environment or the caller's argument.
struct pm_options {
#define FIELD(field, name, type, dflt, values, help)                                               \
    union {                                                                                        \
        const char *text;                                                                          \
        uint64_t number; /* SIZE: bytes; CHOICE: index into the choices */                         \
    } field;
    PM_OPTION_TABLE(FIELD)
#undef FIELD
};

// Indices of the choices, in the order of the table.
enum { PM_COLLECT_ALWAYS, PM_COLLECT_CRASH };
enum { PM_CHECK_ABORT, PM_CHECK_REPORT, PM_CHECK_STRICT };
enum { PM_RESERVE_LAZY, PM_RESERVE_STRICT };
enum { PM_BUSY_FAIL, PM_BUSY_WAIT };
enum { PM_BACKING_FILE, PM_BACKING_VOLATILE };
enum { PM_FORK_PRIVATE, PM_FORK_COPY, PM_FORK_FOLLOW };
enum { PM_PERSIST_AUTO }; // then enum pm_durability + 1

struct pm_option_info {
    const char *name, *fallback, *values, *help;
    enum pm_option_type type;
    size_t offset;
};
extern const struct pm_option_info pm_option_table[];
extern const size_t pm_option_count;

extern struct pm_options pm_options; // written once at start, read-only afterwards

// Sets every field to its default.
void pm_options_default(void);
// Sets one option by its full name. PM_OK, or PM_USAGE with a line that has variable, value and remedy.
int pm_option_set(const char *name, const char *value, struct pm_error *err);
// Defaults, then every PMALLOC_ variable of `environ_list` (NULL-terminated); unknown names are errors.
int pm_options_load(char *const *environ_list, struct pm_error *err);
// "4K", "16M", "1T" or plain bytes; 0 on success.
int pm_parse_size(const char *text, uint64_t *out);

#endif
