// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// What the library says: one row for each kind of line. The identifier stays the same in all
// versions, so that whoever reads logs, or PMALLOC_ON, can count on it. docs/events.md says of
// each what to do; a test compares.
#ifndef PM_EVENTS_H
#define PM_EVENTS_H

// As syslog(3) numbers them.
enum pm_level {
    PM_LEVEL_CRITICAL = 2, // the process ends, or its heap is lost
    PM_LEVEL_ERROR,        // something that was asked for was not done
    PM_LEVEL_WARNING,      // something is otherwise than it may seem
    PM_LEVEL_NOTICE,       // worth a look
    PM_LEVEL_INFO,         // as it should be
    PM_LEVEL_REPORT,       // many lines that were asked for
};

// X(NAME, identifier, level)
#define PM_EVENT_TABLE(X)                                                                          \
    X(BAD_FREE, "bad-free", ERROR)                                                                 \
    X(BITMAPS_UNREAD, "bitmaps-unread", WARNING)                                                   \
    X(BLOCK_MAPPED_OVER, "block-mapped-over", CRITICAL)                                            \
    X(CALL_REFUSED, "call-refused", ERROR)                                                         \
    X(CLOSE_FAILED, "close-failed", ERROR)                                                         \
    X(COLLECT_FAILED, "collect-failed", ERROR)                                                     \
    X(COLLECT_WAITS, "collect-waits", WARNING)                                                     \
    X(COLLECTED, "collected", INFO)                                                                \
    X(COMMIT_FAILED, "commit-failed", ERROR)                                                       \
    X(COMMIT_FORCED, "commit-forced", WARNING)                                                     \
    X(COMMITS_GO_ON, "commits-go-on", NOTICE)                                                      \
    X(COMMITS_STOPPED, "commits-stopped", ERROR)                                                   \
    X(COPY_FAILED, "copy-failed", CRITICAL)                                                        \
    X(DEFAULT_HEAP_PASSED, "default-heap-passed", WARNING)                                         \
    X(DISK_IN_DOUBT, "disk-in-doubt", ERROR)                                                       \
    X(END_CUT_SHORT, "end-cut-short", CRITICAL)                                                    \
    X(END_NOT_HELD, "end-not-held", WARNING)                                                       \
    X(FILE_LIMIT, "file-limit", WARNING)                                                           \
    X(FILES_CLOSED, "files-closed", WARNING)                                                       \
    X(FILES_NOT_WRITTEN, "files-not-written", ERROR)                                               \
    X(FOREIGN_POINTER, "foreign-pointer", WARNING)                                                 \
    X(FORK_FAILED, "fork-failed", ERROR)                                                           \
    X(FORK_OWNER, "fork-owner", INFO)                                                              \
    X(FORK_REFUSED, "fork-refused", CRITICAL)                                                      \
    X(FORMS_CHANGED, "forms-changed", WARNING)                                                     \
    X(FORMS_MISSING, "forms-missing", WARNING)                                                     \
    X(GC_ABORT, "gc-abort", CRITICAL)                                                              \
    X(GC_LEAK, "gc-leak", REPORT)                                                                  \
    X(GC_REPORT, "gc-report", REPORT)                                                              \
    X(GC_WARNING, "gc-warning", WARNING)                                                           \
    X(HEAP_DAMAGED, "heap-damaged", CRITICAL)                                                      \
    X(HEAP_FOREIGN, "heap-foreign", CRITICAL)                                                      \
    X(HEAP_IN_USE, "heap-in-use", CRITICAL)                                                        \
    X(HEAP_LOST, "heap-lost", CRITICAL)                                                            \
    X(HEAP_MAY_GO, "heap-may-go", NOTICE)                                                          \
    X(HEAP_REWRITTEN, "heap-rewritten", WARNING)                                                   \
    X(HEAP_UNNAMED, "heap-unnamed", ERROR)                                                         \
    X(HOOK_FAILED, "hook-failed", WARNING)                                                         \
    X(INTERNAL_FAULT, "internal-fault", CRITICAL)                                                  \
    X(LAST_COMMIT_FAILED, "last-commit-failed", ERROR)                                             \
    X(LATE_ROOTS_LEFT, "late-roots-left", ERROR)                                                   \
    X(LATE_ROOTS_RESTORED, "late-roots-restored", INFO)                                            \
    X(LATE_ROOTS_WAIT, "late-roots-wait", WARNING)                                                 \
    X(LEAKS, "leaks", REPORT)                                                                      \
    X(LIBC_UNFIT, "libc-unfit", CRITICAL)                                                          \
    X(LIMIT_REACHED, "limit-reached", ERROR)                                                       \
    X(LINES_LEFT_OUT, "lines-left-out", WARNING)                                                   \
    X(LOG_FAILED, "log-failed", WARNING)                                                           \
    X(MALLOC_ELSEWHERE, "malloc-elsewhere", WARNING)                                               \
    X(NEARLY_FULL, "nearly-full", WARNING)                                                         \
    X(NO_ROOT, "no-root", WARNING)                                                                 \
    X(NO_SPACE, "no-space", ERROR)                                                                 \
    X(NO_SPACE_AT_STORE, "no-space-at-store", CRITICAL)                                            \
    X(NO_SPARE, "no-spare", WARNING)                                                               \
    X(NO_THREAD, "no-thread", WARNING)                                                             \
    X(ON_VOLATILE_MEMORY, "on-volatile-memory", WARNING)                                           \
    X(OPEN_FAILED, "open-failed", ERROR)                                                           \
    X(PROC_UNSEEN, "proc-unseen", WARNING)                                                         \
    X(PROGRAM_CHANGED, "program-changed", NOTICE)                                                  \
    X(REACHED_LESS, "reached-less", WARNING)                                                       \
    X(REBASE_LEFT, "rebase-left", WARNING)                                                         \
    X(REBASE_REASON, "rebase-reason", ERROR)                                                       \
    X(REBASED, "rebased", NOTICE)                                                                  \
    X(ROOT_REPLACED, "root-replaced", WARNING)                                                     \
    X(SETTING_WRONG, "setting-wrong", CRITICAL)                                                    \
    X(START_REFUSED, "start-refused", CRITICAL)                                                    \
    X(STARTED, "started", INFO)                                                                    \
    X(STATS, "stats", REPORT)                                                                      \
    X(STREAMS_NOT_COVERED, "streams-not-covered", WARNING)                                         \
    X(SYNC_FORBIDDEN, "sync-forbidden", WARNING)                                                   \
    X(WORDS_LEAD_OUT, "words-lead-out", WARNING)                                                   \
    X(WORDS_STALE, "words-stale", WARNING)                                                         \
    X(WRITE_FAILED, "write-failed", CRITICAL)

#define PM_EVENT_NAME(name, identifier, level) PM_EV_##name,
enum pm_event {
    // clang-format off
    PM_EVENT_TABLE(PM_EVENT_NAME)
    // clang-format on
    PM_EVENTS,
    PM_EV_NONE = PM_EVENTS, // a tool's line
};
#undef PM_EVENT_NAME

// Without pointers, so that the loader has nothing to store here at a start.
struct pm_event_info {
    char name[23];
    unsigned char level; // enum pm_level
};
extern const struct pm_event_info pm_event_info[];

#endif
