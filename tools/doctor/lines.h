// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The report's lines: a word, and what is to be said, as wide as a terminal.
#ifndef PM_TOOLS_LINES_H
#define PM_TOOLS_LINES_H

__attribute__((format(printf, 2, 3))) void line(const char *word, const char *format, ...);
// The same below the line before.
__attribute__((format(printf, 1, 2))) void line_go_on(const char *format, ...);

#endif
