// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMALLOC_ON=EVENT:COMMAND: a command that is started when the library says something.
//
// What is said is often said with locks held, or with all threads halted. The command is started
// when its thread is outside of the allocator, where handlers that have waited arrive, too
// (cancel.h); at once if the thread is outside already, or the process is about to end.
//
//   the thread     sleeps, until the child has ended
//   a child        has the process' memory (bare_child.h): reserves the event's name, and makes
//   its child      which executes the command, and then belongs to init, or to a subreaper
//
// So the program gets no SIGCHLD, and its waits see nothing. The event's name is an address of an
// abstract socket, which the command has as descriptor 3: while it is open, no other command is
// started for the event. Of the program's descriptors the command has standard error alone, twice.
#ifndef PM_EVENT_HOOK_H
#define PM_EVENT_HOOK_H

#include "message.h"

// Once, after the settings were read. PM_USAGE: the setting is wrong.
int pm_event_hooks_begin(char *const *environ_list, struct pm_error *err);
// A thread that is outside: starts what waits.
void pm_event_hooks_run(void);

#endif
