// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A variable of a library, for holders.c.
struct node *library_head;
