// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Every setting, once. The parser, --help, the manual pages and docs/reference.md are made from
// this table.
#ifndef PM_OPTIONS_H
#define PM_OPTIONS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "message.h"

// A PERCENT is a number that may have a % behind it.
enum pm_option_type { PM_TYPE_TEXT, PM_TYPE_SIZE, PM_TYPE_NUMBER, PM_TYPE_PERCENT, PM_TYPE_CHOICE };

// Not a setting: what a process with a heap tells those that it starts (preload/process/descent.h).
#define PM_OWNER_VARIABLE "PMALLOC_OWNER"
// Nor what a command of PMALLOC_ON is told (event_hook.h). PMALLOC_HEAP is one, for it, too.
#define PM_EVENT_VARIABLE "PMALLOC_EVENT"
#define PM_MESSAGE_VARIABLE "PMALLOC_MESSAGE"

// X(field, NAME, type, default, choices or "MIN to MAX", help)
#define PM_OPTION_TABLE(X)                                                                         \
    X(heap, "PMALLOC_HEAP", PM_TYPE_TEXT, "", "PATH[:PATH...]",                                    \
      "The heap directory. It is made if it is missing and its parent exists. Or a preallocated "  \
      "file, or a DAX device, that pmalloc-recover --make has laid out. Further paths of the "     \
      "same sort, for other devices, hold further data files. Unset: "                             \
      "/dev/shm/pmalloc-UID/PROGRAM, or PROGRAM.2, PROGRAM.3, ... while those are in use; "        \
      "volatile memory if there are no roots either")                                              \
    X(roots, "PMALLOC_ROOTS", PM_TYPE_TEXT, "", "SPEC[,SPEC...]|@FILE",                            \
      "The memory from which the collector starts: [object:]symbol, [object:]* or "                \
      "[object:][symbol]+OFFSET/LENGTH. With @idle behind it a root is restored when the "         \
      "program waits for the first time, not before main; with @call, when it calls "              \
      "pmalloc_restore()")                                                                         \
    X(rootless, "PMALLOC_ROOTLESS", PM_TYPE_CHOICE, "say", "say|quiet",                            \
      "What is said of a named heap that no root reaches, of which nothing is found again, and "   \
      "of a root that the program sets up anew, so that nothing reaches what it led to. say: one " \
      "line that counts what is thrown away. quiet: nothing")                                      \
    X(limit, "PMALLOC_LIMIT", PM_TYPE_SIZE, "1T", "4M to 16T",                                     \
      "The largest size of the heap. Beyond it malloc fails with ENOMEM. pmalloc-recover --grow "  \
      "can raise it")                                                                              \
    X(warn, "PMALLOC_WARN", PM_TYPE_PERCENT, "0", "0 to 99",                                       \
      "A line says when more than so many percent of PMALLOC_LIMIT, of a fixed medium or of the "  \
      "file system are used, and again when half of what was left then is; 0: never")              \
    X(spare, "PMALLOC_SPARE", PM_TYPE_SIZE, "0", "0 to 16T",                                       \
      "The start keeps so much space of the file system in reserve, in the file `spare` of the "   \
      "heap's directory, if twice as much is free. `pmalloc-recover --spare 0` gives it up when "  \
      "the file system is full")                                                                   \
    X(shard, "PMALLOC_SHARD", PM_TYPE_SIZE, "1T", "4M to 1T",                                      \
      "The largest size of one data file. Beyond it the heap gets another one, up to 16. From "    \
      "then on older versions of PMAlloc refuse the heap")                                         \
    X(markers, "PMALLOC_MARKERS", PM_TYPE_NUMBER, "0", "0 to 64",                                  \
      "The number of threads that mark during recovery; 0: one for each core")                     \
    X(collect, "PMALLOC_COLLECT", PM_TYPE_CHOICE, "always", "always|crash|later|background|api",   \
      "When a start marks and sweeps: always, or only after a crash. crash suits programs that "   \
      "free everything themselves. later: a start after a crash does not wait for it either; all " \
      "that was allocated stays so, and what leaked waits for a later collection. background: as " \
      "later, and under PMALLOC_COMMIT the collection runs beside the program. api: as later, "    \
      "until the program calls pmalloc_collect()")                                                 \
    X(pointers, "PMALLOC_POINTERS", PM_TYPE_TEXT, "", "plain|FORM[,FORM...]",                      \
      "Which words count as pointers, beside plain addresses. tagged: the upper 16 bits hold "     \
      "something else, and the rest names the start of a block, or one of the next 15 bytes. "     \
      "unaligned: at any byte. relative: the distance from the word itself. base32: 32 bits, an "  \
      "eighth of the distance from the start of the heap. end: one past the end of a block, "      \
      "where another one begins; this keeps many dead blocks. before: an address before a block, " \
      "by no more than the block is long. Unset: what the heap was used with last, or tagged")     \
    X(check, "PMALLOC_CHECK", PM_TYPE_CHOICE, "abort", "abort|report|strict",                      \
      "What happens on a bad free or realloc. abort: the program aborts. report: one line, and "   \
      "the request is ignored. strict: as abort, also for pointers from outside the heap")         \
    X(reserve, "PMALLOC_RESERVE", PM_TYPE_CHOICE, "lazy", "lazy|strict",                           \
      "Blocks over 2 MiB. lazy: check that the file system has room. strict: allocate the space "  \
      "at once")                                                                                   \
    X(busy, "PMALLOC_BUSY", PM_TYPE_CHOICE, "fail", "fail|wait",                                   \
      "What a start does if another process has the heap open: fail, or wait for that process")    \
    X(open, "PMALLOC_OPEN", PM_TYPE_CHOICE, "write", "write|private",                              \
      "write: one process has the heap and changes it. private: any number of processes share a "  \
      "heap; each keeps what it stores to itself, and nothing of it is kept")                      \
    X(randomize, "PMALLOC_RANDOMIZE", PM_TYPE_NUMBER, "0", "0 to 1",                               \
      "0: the program and its libraries lie at the same addresses in each run, for what of the "   \
      "heap leads there; if address randomisation is on, the start executes the program again "    \
      "without it. 1: addresses stay as random as they are")                                       \
    X(rebase, "PMALLOC_REBASE", PM_TYPE_CHOICE, "auto", "auto|refuse|report|look|only",            \
      "Words of the heap that lead into the program or its libraries, where these are "            \
      "another build or lie elsewhere. auto: the start makes each lead to the same thing, "        \
      "and refuses if one cannot be proved. refuse: the start is refused if there are any. "       \
      "report: a line says how many there are, and they stay as they are. look: a line says "      \
      "what auto would do, and the program is not run. only: as auto, and the program is "         \
      "not run")                                                                                   \
    X(rebase_trust, "PMALLOC_REBASE_TRUST", PM_TYPE_TEXT, "", "WORD[,WORD...]",                    \
      "What is taken for granted there, though it cannot be proved. exact: in a program "          \
      "that is linked to fixed addresses, words that are the address of a function or a "          \
      "variable lead there, and others do not. hashed: the program makes tables anew that "        \
      "are hashed by an address that has moved. numbered: lambdas and statics of one name "        \
      "are the same in the same order, if there are as many as before. stale: a word of "          \
      "which it cannot be proved where it should lead is one that nobody reads; it becomes 0")     \
    X(transient, "PMALLOC_TRANSIENT", PM_TYPE_CHOICE, "keep", "keep|stacks|clear",                 \
      "Words of blocks that lead into what the last run had mapped beside its heap, and which is " \
      "gone. keep: a line says that there are some. stacks: those that lead into its stacks and "  \
      "thread-local memory become NULL at the start. clear: also those that lead into files and "  \
      "memory that it had mapped itself. A number that looks like such an address becomes 0, too") \
    X(program, "PMALLOC_PROGRAM", PM_TYPE_TEXT, "", "GLOB",                                        \
      "Only programs whose name matches use a persistent heap. Others run on volatile memory")     \
    X(backing, "PMALLOC_BACKING", PM_TYPE_CHOICE, "file", "file|volatile",                         \
      "What lies under the heap: files, or volatile anonymous memory, of which nothing is kept")   \
    X(persist, "PMALLOC_PERSIST", PM_TYPE_CHOICE, "auto", "auto|none|cache|line|page",             \
      "What makes a store durable. auto finds it out; the others force it, for measurements. On "  \
      "DAX, cache says that the caches are in the power-fail domain, even if the kernel does "     \
      "not say so")                                                                                \
    X(decay_ms, "PMALLOC_DECAY_MS", PM_TYPE_NUMBER, "10000", "0 to 3600000",                       \
      "The milliseconds in which freed space goes back to the file system; 0: at once")            \
    X(background, "PMALLOC_BACKGROUND", PM_TYPE_CHOICE, "none", "none|decay",                      \
      "none: freed space goes back while the program asks for memory. decay: a thread of "         \
      "PMAlloc's gives it back also while the program rests; it sleeps if there is nothing to do") \
    X(commit, "PMALLOC_COMMIT", PM_TYPE_TEXT, "", "TIME|idle[:TIME]|output[:TIME|:0|:strict]|api", \
      "After a kill or a power failure the heap is as of the last commit: one instant of all "     \
      "threads. TIME, such as 100ms, 5s, 2m or 1h: a commit is made that often. idle: while the "  \
      "program waits, but not more often than each TIME. output: before what the program says to " \
      "a pipe, socket or terminal leaves it, or to standard output, and before it makes a file "   \
      "durable; an answer to a socket or pipe may wait for others, TIME or 5ms at most, and "      \
      "one commit is for all of them; not under output:0 and output:strict. api: when the "        \
      "program calls pmalloc_commit(). Also at the end of the program")                            \
    X(commit_patience, "PMALLOC_COMMIT_PATIENCE", PM_TYPE_NUMBER, "5", "0 to 10000",               \
      "With PMALLOC_COMMIT: the milliseconds for which a commit waits until other threads hold "   \
      "no lock; time in which they find no processor does not count. 0: it does not wait")         \
    X(commit_memory, "PMALLOC_COMMIT_MEMORY", PM_TYPE_SIZE, "256M", "0 to 64G",                    \
      "With PMALLOC_COMMIT: how much of what has changed is copied to memory while the threads "   \
      "are held, and written to the journal when they run again. What is beyond it is written "    \
      "while they are held")                                                                       \
    X(commit_watch, "PMALLOC_COMMIT_WATCH", PM_TYPE_NUMBER, "1024", "0 to 4294967295",             \
      "With PMALLOC_COMMIT: from this number of 4 KiB pages on that the process has copied, the "  \
      "kernel's record of stores tells a commit which have changed, so that little is left to do " \
      "while the threads are held. It needs Linux 6.7, and costs a fault for each page between "   \
      "commits. 0: never")                                                                         \
    X(commit_semaphores, "PMALLOC_COMMIT_SEMAPHORES", PM_TYPE_CHOICE, "wait", "wait|lock",         \
      "With PMALLOC_COMMIT: what the program uses its POSIX semaphores for. wait: threads tell "   \
      "each other something by them. lock: all of them are locks, which the thread that has "      \
      "waited for one holds until it posts it; those that a kill left held are free")              \
    X(commit_dir, "PMALLOC_COMMIT_DIR", PM_TYPE_TEXT, "", "DIR[:DIR...]",                          \
      "With PMALLOC_COMMIT: the heap's directory, on a disk, in place of PMALLOC_HEAP. The "       \
      "program works on a copy of its data in memory, and commits bring it back there")            \
    X(commit_pages, "PMALLOC_COMMIT_PAGES", PM_TYPE_NUMBER, "0", "0 to 4294967295",                \
      "With PMALLOC_COMMIT: the number of 4 KiB pages that may differ from the files in memory. "  \
      "When there are more, a commit is made that nothing else asked for; 0: a quarter of the "    \
      "machine's memory")                                                                          \
    X(morph, "PMALLOC_MORPH", PM_TYPE_PERCENT, "20", "0 to 90",                                    \
      "A slab that is less full than this percentage may take up blocks of another size; 0: "      \
      "never")                                                                                     \
    X(fork, "PMALLOC_FORK", PM_TYPE_CHOICE, "private", "private|copy|follow",                      \
      "What a forked child gets. private: private memory at the same addresses. copy: a "          \
      "persistent heap of its own, HEAP.PID. follow, for daemons: the heap itself; the parent "    \
      "gets private memory")                                                                       \
    X(locks, "PMALLOC_LOCKS", PM_TYPE_CHOICE, "reset", "reset|keep",                               \
      "What becomes of a lock in the heap or in a root that an earlier run held. reset: it is "    \
      "free at its first use. keep: it stays held")                                                \
    X(numa, "PMALLOC_NUMA", PM_TYPE_CHOICE, "local", "local|bind|off",                             \
      "Where a machine has several NUMA nodes, the heap gets a data file for each, and a thread "  \
      "gets blocks of its own node. local: while that node has memory. bind: also the pages of a " \
      "data file in memory come from no other node. off: nodes do not count")                      \
    X(topology, "PMALLOC_TOPOLOGY", PM_TYPE_TEXT, "", "NODESxCORES[/MOVES]|/FOLDER/",              \
      "For tests: as if the machine had so many NUMA nodes with so many cores each, or those of "  \
      "a folder that is like /sys/devices/system/node/. Threads are dealt to nodes in turn. With " \
      "MOVES, a thread moves on each time when it has asked its arena for blocks so often")        \
    X(verbose, "PMALLOC_VERBOSE", PM_TYPE_NUMBER, "0", "0 to 1",                                   \
      "1: print one line at start: heap, guarantee, roots and recovery result, or why there is "   \
      "no heap")                                                                                   \
    X(log, "PMALLOC_LOG", PM_TYPE_TEXT, "", "stderr|journal|syslog|FILE|fd:N",                     \
      "Where the library says what it has to say. stderr: on standard error, as when it is "       \
      "unset, but no more than 20 lines of a kind in a minute. journal: where standard error is "  \
      "systemd's journal, with fields, else as stderr. syslog: by /dev/log. FILE: at the end of "  \
      "that file, a whole path. fd:N: to a descriptor that is open at the start")                  \
    X(log_format, "PMALLOC_LOG_FORMAT", PM_TYPE_CHOICE, "text", "text|json",                       \
      "How: lines of text, or an object of JSON in each line, with time, pid, event, level, "      \
      "message and heap. The journal has fields for that")                                         \
    X(on, "PMALLOC_ON", PM_TYPE_TEXT, "", "EVENT:COMMAND[;EVENT:COMMAND...]",                      \
      "A command of the shell that is started when the library says this: commit-failed, "         \
      "no-space, heap-in-use, ... It has PMALLOC_EVENT, PMALLOC_HEAP and PMALLOC_MESSAGE in its "  \
      "environment, and no LD_PRELOAD. No other one is started for an event while its command "    \
      "runs")                                                                                      \
    X(stats, "PMALLOC_STATS", PM_TYPE_NUMBER, "0", "0 to 1",                                       \
      "1: print heap statistics at exit, as malloc_stats() prints them at any time")               \
    X(leaks, "PMALLOC_LEAKS", PM_TYPE_CHOICE, "0", "0|1|stack",                                    \
      "Print at exit which blocks nothing in the program points to any more. 1: by size. stack: "  \
      "also by the calls that have allocated them, for which malloc takes much longer. Nothing "   \
      "is freed")

// TEXT fields point into the environment or the caller's argument.
struct pm_options {
#define FIELD(field, name, type, dflt, values, help)                                               \
    union {                                                                                        \
        const char *text;                                                                          \
        uint64_t number; /* SIZE: bytes; CHOICE: index into the choices */                         \
    } field;
    PM_OPTION_TABLE(FIELD)
#undef FIELD
};

// Indices of the choices, in the order of the table.
enum {
    PM_COLLECT_ALWAYS,
    PM_COLLECT_CRASH,
    PM_COLLECT_LATER,
    PM_COLLECT_BACKGROUND,
    PM_COLLECT_API
};
enum { PM_ROOTLESS_SAY, PM_ROOTLESS_QUIET };
enum { PM_CHECK_ABORT, PM_CHECK_REPORT, PM_CHECK_STRICT };
enum { PM_RESERVE_LAZY, PM_RESERVE_STRICT };
enum { PM_BUSY_FAIL, PM_BUSY_WAIT };
enum { PM_OPEN_WRITE, PM_OPEN_PRIVATE };
enum { PM_BACKING_FILE, PM_BACKING_VOLATILE };
enum { PM_BACKGROUND_NONE, PM_BACKGROUND_DECAY };
enum { PM_FORK_PRIVATE, PM_FORK_COPY, PM_FORK_FOLLOW };
enum { PM_LOCKS_RESET, PM_LOCKS_KEEP };
enum { PM_REBASE_AUTO, PM_REBASE_REFUSE, PM_REBASE_REPORT, PM_REBASE_LOOK, PM_REBASE_ONLY };
enum { PM_TRANSIENT_KEEP, PM_TRANSIENT_STACKS, PM_TRANSIENT_CLEAR };
enum { PM_SEMAPHORES_WAIT, PM_SEMAPHORES_LOCK };
enum { PM_LEAKS_OFF, PM_LEAKS_SIZES, PM_LEAKS_STACKS };
enum { PM_LOG_TEXT, PM_LOG_JSON };
enum { PM_NUMA_LOCAL, PM_NUMA_BIND, PM_NUMA_OFF };
enum { PM_PERSIST_AUTO }; // the other choices are enum pm_durability + 1

// A word of a list such as "tagged,end". The bit is not 0.
struct pm_option_word {
    const char *name;
    unsigned bit;
};
// The bits of the words, with commas between them. False: one of them is not among `words`.
bool pm_option_words(const char *text, const struct pm_option_word *words, size_t count,
                     unsigned *bits);

struct pm_option_info {
    const char *name, *fallback, *values, *help;
    enum pm_option_type type;
    size_t offset;
};
extern const struct pm_option_info pm_option_table[];
extern const size_t pm_option_count;

// Two settings of which one would be passed over without a word. PMALLOC_BACKING=volatile is not
// one of them: it switches all off that is about media.
struct pm_option_pair {
    const char *name, *value;    // set to this; NULL: to anything but the default
    const char *other, *against; // the same; "": not set
    const char *remedy;
};
extern const struct pm_option_pair pm_option_pairs[];
extern const size_t pm_option_pair_count;

extern struct pm_options pm_options; // written once at start, read-only afterwards

// Sets every field to its default.
void pm_options_default(void);
// Sets one option by its full name. PM_OK; or PM_USAGE, and `err` names variable, value and remedy.
int pm_option_set(const char *name, const char *value, struct pm_error *err);
// Sets the defaults, then every PMALLOC_ variable of `environ_list` (NULL-terminated). An unknown
// name is an error, and so is a pair that contradicts itself. NULL: the environment is not to be
// trusted, and the process runs on volatile memory.
int pm_options_load(char *const *environ_list, struct pm_error *err);
// Reads "4K", "16M", "1T" or plain bytes. False: the text is none of these.
bool pm_parse_size(const char *text, uint64_t *out);

#endif
