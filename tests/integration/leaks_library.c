// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A library that leaks.c opens: its data and its thread-local storage keep a block.
void *kept_data;
static __thread void *kept;
void **kept_tls(void);
void **kept_tls(void) { return &kept; }
