// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A module that moved_host.c loads. -DNEW is another build of it.
#ifdef NEW
int fresh(int x) { return x * x * 3; }
static int more[4000];
int *module_more(void) { return more; }
#endif
static int state[4];

int module_call(int x) { return x + 1000; }
typedef int call_fn(int);
call_fn *module_get(void) { return module_call; }
int *module_state(void) { return &state[2]; }
const char *module_name(void) { return "the module's own name"; }
