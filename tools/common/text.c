// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "text.h"

#include <stdio.h>

size_t text_utf8_length(const unsigned char *s) {
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xf0 && s[0] < 0xf5   ? 4
                    : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                    : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                                                  : 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return length;
}

void text_print(const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        putchar(*c < ' ' || *c == 127 ? '?' : *c);
}
