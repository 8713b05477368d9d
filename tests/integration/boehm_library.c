// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A library that is loaded late, and keeps a block of the collector's: a case of boehm.c.
static void *kept;
void **slot(void);
void **slot(void) { return &kept; }
