// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Linked behind sections.c: musl puts thread-local variables into what is left of the last page of
// its variables, and no root may lie there.
char filler[8192];
