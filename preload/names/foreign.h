// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Makes functions that stand in for those of other libraries' locks. They count as libc's do
// (threads/sections.h), and what an earlier run held is free at its first use (locks.h).
//
// `name` is for this code alone, `symbol` is what programs call. `adopted` is what is done to a
// lock that may be an earlier run's. What a function returns is what the library's returns.
#ifndef PM_FOREIGN_H
#define PM_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>

#include "export.h"
#include "locks.h"
#include "media/adopt.h"
#include "other_library.h"
#include "threads/sections.h"

static inline void foreign_adopt(const volatile void *object, void reset(void *)) {
    if (__builtin_expect(!pm_surely_adopted((const void *)(uintptr_t)object), 0))
        pm_locks_adopt((void *)(uintptr_t)object, reset);
}

// The lock is free meanwhile.
static inline bool foreign_leave(void) {
    return pm_sections_counted() && pm_section_end(pm_gate());
}

static inline void *foreign_next(struct pm_other *other, const char *name, const void *caller) {
    void *next = pm_other(other, name, caller);
    if (__builtin_expect(!next, 0))
        pm_other_missing(name);
    return next;
}

#define FOREIGN_CALLER __builtin_return_address(0)

#define FOREIGN_FIND(type, name, symbol, parameters)                                               \
    typedef type name##_fn parameters;                                                             \
    static inline name##_fn *next_##name(const void *caller) {                                     \
        static struct pm_other other;                                                              \
        name##_fn *next;                                                                           \
        *(void **)&next = foreign_next(&other, symbol, caller);                                    \
        return next;                                                                               \
    }                                                                                              \
    EXPORT type pm_foreign_##name parameters __asm__(symbol);

#define FOREIGN_TAKE(name, symbol, parameters, arguments, adopted)                                 \
    FOREIGN_FIND(void, name, symbol, parameters)                                                   \
    void pm_foreign_##name parameters {                                                            \
        name##_fn *next = next_##name(FOREIGN_CALLER);                                             \
        adopted;                                                                                   \
        if (!pm_sections_counted()) {                                                              \
            next arguments;                                                                        \
            return;                                                                                \
        }                                                                                          \
        struct pm_section section = pm_section_before(pm_gate());                                  \
        next arguments;                                                                            \
        pm_section_begin(section, FOREIGN_CALLER);                                                 \
    }

// It takes the lock, whatever it returns, ..
#define FOREIGN_TAKE_ALWAYS(type, name, symbol, parameters, arguments, adopted)                    \
    FOREIGN_TAKE_IF(type, name, symbol, parameters, arguments, adopted, true)
// .. or if it returns something else than 0.
#define FOREIGN_TRY(type, name, symbol, parameters, arguments, adopted)                            \
    FOREIGN_TAKE_IF(type, name, symbol, parameters, arguments, adopted, result)
#define FOREIGN_TAKE_IF(type, name, symbol, parameters, arguments, adopted, taken)                 \
    FOREIGN_FIND(type, name, symbol, parameters)                                                   \
    type pm_foreign_##name parameters {                                                            \
        name##_fn *next = next_##name(FOREIGN_CALLER);                                             \
        adopted;                                                                                   \
        if (!pm_sections_counted())                                                                \
            return next arguments;                                                                 \
        struct pm_section section = pm_section_before(pm_gate());                                  \
        type result = next arguments;                                                              \
        if (taken)                                                                                 \
            pm_section_begin(section, FOREIGN_CALLER);                                             \
        return result;                                                                             \
    }

#define FOREIGN_GIVE(name, symbol, parameters, arguments)                                          \
    FOREIGN_FIND(void, name, symbol, parameters)                                                   \
    void pm_foreign_##name parameters {                                                            \
        name##_fn *next = next_##name(FOREIGN_CALLER);                                             \
        foreign_leave();                                                                           \
        next arguments;                                                                            \
    }

// It neither takes a lock nor waits.
#define FOREIGN_CALL(name, symbol, parameters, arguments, adopted)                                 \
    FOREIGN_FIND(void, name, symbol, parameters)                                                   \
    void pm_foreign_##name parameters {                                                            \
        adopted;                                                                                   \
        next_##name(FOREIGN_CALLER) arguments;                                                     \
    }

// A wait for a condition, in which the lock is free, ..
#define FOREIGN_WAIT(name, symbol, parameters, arguments, adopted)                                 \
    FOREIGN_FIND(void, name, symbol, parameters)                                                   \
    void pm_foreign_##name parameters {                                                            \
        name##_fn *next = next_##name(FOREIGN_CALLER);                                             \
        adopted;                                                                                   \
        bool left = foreign_leave();                                                               \
        next arguments;                                                                            \
        if (left)                                                                                  \
            pm_section_again(FOREIGN_CALLER);                                                      \
    }
// .. that tells whether it was in vain.
#define FOREIGN_WAIT_UNTIL(type, name, symbol, parameters, arguments, adopted)                     \
    FOREIGN_FIND(type, name, symbol, parameters)                                                   \
    type pm_foreign_##name parameters {                                                            \
        name##_fn *next = next_##name(FOREIGN_CALLER);                                             \
        adopted;                                                                                   \
        bool left = foreign_leave();                                                               \
        type result = next arguments;                                                              \
        if (left)                                                                                  \
            pm_section_again(FOREIGN_CALLER);                                                      \
        return result;                                                                             \
    }

#endif
