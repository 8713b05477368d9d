// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// One line of error text for a caller that may not allocate. glibc's vsnprintf does not allocate
// for %s %c %zu %lu %lx with modest widths; keep to those.
#ifndef PMALLOC_GC_ERRLINE_H
#define PMALLOC_GC_ERRLINE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

// glibc's strerror() may allocate; others have no other.
#ifndef __GLIBC__
#define strerrordesc_np strerror
#endif

// err may be NULL, or of length 0.
__attribute__((format(printf, 3, 4))) static inline void errline_fill(char *err, size_t errlen,
                                                                      const char *fmt, ...) {
    if (err != NULL && errlen != 0) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(err, errlen, fmt, ap);
        va_end(ap);
    }
}

// For `return errline(...)`: a macro, so that compilers and analyzers see the -1.
#define errline(...) (errline_fill(__VA_ARGS__), -1)

#endif
