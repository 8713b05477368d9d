// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// PMAlloc for programs that cooperate. Ordinary programs need none of this: run them under
// libpmalloc_preload.so with PMALLOC_ROOTS. Linking with -lpmalloc puts malloc and free on the heap
// as the preload does; these functions work the same under either.
#ifndef PM_PMALLOC_H
#define PM_PMALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PMALLOC_ROOT_SLOTS 512

// Stores `p` in root slot `slot`. The blocks that `p` reaches survive the process. The store is one
// atomic store of 8 bytes and durable on return, so a crash leaves the old pointer or the new one.
// `p` is not checked: a block outside of the heap, such as another malloc's, does not survive. NULL
// empties the slot. Returns 0, or -1 with errno EINVAL (no such slot, or not an address of 48 bits)
// or ENOTSUP (the heap is volatile). Under PMALLOC_OPEN=private it is for this process alone. The
// first root gives a heap without a name (docs/operations.md) its directory. If that cannot be
// made, errno says why, and nothing has changed: EDEADLK in a signal handler that interrupts the
// allocator, EPERM if the program has changed its user. Thread-safe.
int pmalloc_set_root(unsigned slot, void *p);
// The pointer in `slot`. NULL if the slot is empty or out of range, or if the heap is volatile.
// Thread-safe.
void *pmalloc_get_root(unsigned slot);
// 1 when malloc'd memory survives this process, else 0.
int pmalloc_is_persistent(void);
// Directory of the heap, "" when it is volatile. A heap without a name gets one. Owned by the
// library, valid until exit.
const char *pmalloc_heap_path(void);
// 1 if the program or one of its libraries has moved since the heap's last run: it is another
// build, or lies elsewhere. Pointers into it are right; tables that are hashed or ordered by such
// addresses, as std::type_index and std::hash of a pointer do it, must be made anew. Else 0.
int pmalloc_moved(void);
// A number that grows with each opening of the heap for writing, so no earlier process had it. 0
// when the heap is volatile. A forked child keeps the number of its parent. Use it for locks of
// your own: store it in the lock when you take the lock, and treat a lock with another number as
// free.
uint64_t pmalloc_generation(void);
// Makes a commit: on return a kill or a power failure goes back to this instant, or to a later
// commit. Needs PMALLOC_COMMIT. Returns 0, or -1 with errno: ENOTSUP without PMALLOC_COMMIT, ENOSPC
// and others from the file system, EAGAIN if a thread could not be held. Then the last commit
// stands, and the call may be repeated. Thread-safe; waits for a commit that is being made.
int pmalloc_commit(void);
// Restores the late roots (PMALLOC_ROOTS=SPEC@call or SPEC@idle): on return their variables have
// what the last run left in them, and from now on what the program stores there is kept. All other
// threads are held meanwhile. Returns 0, or -1 with errno: ENOENT if no root waits, EAGAIN if a
// thread could not be held, EBUSY if a commit or a fork takes longer than a second, EDEADLK in a
// signal handler that interrupts the allocator. Thread-safe.
int pmalloc_restore(void);
// Looks on which NUMA node the calling thread runs now (docs/numa.md). If it has moved to another
// node since its cache was filled, the cached blocks return to their node, and its next requests
// get memory of the new one. Each request that the cache cannot answer does the same. So the call
// is for a thread that frees as much as it allocates and only hits its cache: after
// pthread_setaffinity_np(), or now and then. Returns 1 if the thread has moved, 0 if not, as always
// where there is one node; or -1 with errno: EDEADLK in a signal handler that interrupts the
// allocator, ENOMEM if there is no memory for another cache. Then the old one serves on. Blocks
// that the program holds stay where they are. Thread-safe; it speaks of the calling thread alone.
int pmalloc_migrate(void);
// Around what a lock of the program's own protects, where PMAlloc cannot see the lock because it is
// made of atomic operations. No commit that another thread makes is taken between the two calls,
// as with a mutex. pmalloc_begin() comes before the lock is taken: it may wait for a commit that is
// being made. The calls nest; both are made by the same thread. Without PMALLOC_COMMIT they do
// nothing.
void pmalloc_begin(void);
void pmalloc_end(void);
// Under PMALLOC_COLLECT=api a start keeps every block that was allocated, reachable or not, until
// this call frees the blocks that nothing reaches. So the program may first replay a log of its
// own, with pointers that only the log has, in whatever form. A block is alive if root slots,
// captured roots or blocks allocated since the start reach it, directly or over other blocks. An
// older block to which only registers, stacks or variables that are no roots point is freed. Call
// it while no other thread allocates or frees. The second call does nothing. Returns 0, or -1 with
// errno, and nothing has been freed: ENOTSUP without PMALLOC_COLLECT=api, on a volatile or private
// heap, and under PMALLOC_COMMIT; ENOMEM if there is no memory to mark with; EDEADLK in a signal
// handler.
int pmalloc_collect(void);
// "MAJOR.MINOR.PATCH"
const char *pmalloc_version(void);

// ---- a heap by a call, in place of PMALLOC_HEAP -------------------------------------------------

#define PMALLOC_EXISTING 1u // the heap is not made if it is missing

// Opens the heap at `path`, as PMALLOC_HEAP names one; makes it if it is missing and its parent
// exists. Once it returns, malloc() and the functions of this header use it. A program that was
// linked with this name gets no heap at its start. Its blocks from before the call are volatile,
// stay valid, and can be freed as ever. There is room for 32 MiB of them, freed blocks are seldom
// reused, and a block may have 8 MiB. The other functions of this header may come before the call,
// too: their blocks are volatile and have no flags, and there are no root slots. Whoever looks the
// name up with dlsym() calls it before any other function of this header.
//
// Roots are the root slots: variables are captured before main alone, by PMALLOC_ROOTS. So the heap
// must have no captured roots. PMALLOC_HEAP, PMALLOC_ROOTS, PMALLOC_COMMIT, PMALLOC_COMMIT_DIR and
// PMALLOC_OPEN=private open a heap at the start of any program: then this call succeeds only for
// that very heap, and does nothing. One process opens one heap, once. Other threads may run.
//
// Returns 0, or -1 with a line on standard error, the process is as before, and the call may be
// repeated, for this heap or another one. errno: EINVAL (no path, unknown flags), ENAMETOOLONG,
// EBUSY (another process has the heap; this one has or had a heap; or it is on volatile memory
// already, because it has allocated too much), ENOTSUP (captured roots; another build's heap; the
// user keeps this program without a heap), EIO (the heap is damaged), EDEADLK (in a signal handler
// that interrupts the allocator), and errors of the file system.
int pmalloc_open(const char *path, unsigned flags);
// Ends what pmalloc_open() began, as the end of the program would: the heap is clean and durable,
// and other processes may open it. A heap without roots is emptied. The blocks stay where they are,
// as private copies: later stores there are lost with the process, and so are the blocks that
// malloc() gives from then on. Each page of the heap that is in use is copied. Other threads are
// held between operations meanwhile, and go on in the copies. Returns 0, or -1 with errno and
// nothing has changed: EINVAL (no heap is open by pmalloc_open(), or this process is a forked child
// without it), EBUSY (another thread does not come to rest), EDEADLK (in a signal handler), EPERM
// (a seccomp filter forbids a call that it needs).
int pmalloc_close(void);

// ---- persistent data structures (docs/structures.md) --------------------------------------------
//
// A publish makes several changes at once: after a crash all of them are there, or none. Collect
// them in an array of pmalloc_op, one element each, in the order in which they are to be made:
//
//   pmalloc_op op[3];
//   struct node *n = pmalloc_reserve(&op[0], sizeof *n, 0, 0);
//   n->next = list->first;                       // nothing reaches n yet, so fill it as you like
//   pmalloc_store(&op[1], &list->first, (uintptr_t)n);
//   pmalloc_store(&op[2], &list->count, list->count + 1);
//   pmalloc_publish(op, 3);
//
// An element lives on the caller's stack. Until the publish it is forgotten by a crash, and a
// reserved block is then free. All functions are thread-safe, but two publishes that run at the
// same time may not store to the same word: use a lock of your own, and hold it until the publish
// returns. They may not be called in a signal handler. On a volatile heap all of them work, and
// nothing is durable.

typedef struct pmalloc_op {
    uint64_t kind; // the library's own; 0: the element is empty, and a publish skips it
    void *at;
    uint64_t value;
    uint64_t reserved[5];
} pmalloc_op;

// The most stores in one publish. A pinned block that it allocates or frees is one of them.
#define PMALLOC_PUBLISH_STORES 124

#define PMALLOC_ZERO 1u    // the block reads as zeroes
#define PMALLOC_FLUSHED 2u // the caller makes the block's bytes durable, with pmalloc_flush()
// The block has no pointers: the collector keeps it if something reaches it, and does not look
// for pointers in it. Versions of PMAlloc from before this flag refuse a heap with such blocks.
#define PMALLOC_POINTER_FREE 4u
// The block is alive until it is freed, whatever points to it: for programs that keep offsets, or
// pointers with tags in their high bits, or combined by XOR. A block to which it points with a
// plain pointer is alive, too. Media say that it is allocated: each allocation and each free
// flushes a line, unless a publish does it. A block that was reserved is free after a crash before
// the publish. A heap that has had such a block is treated as one with roots from then on.
#define PMALLOC_PINNED 8u

// A type: a number from 1 to 65535 that stays with the block, for pmalloc_walk_type() and
// pmalloc-info --blocks. It goes with the other flags, and costs malloc(), free() and the block
// itself nothing: blocks of a type and a size class have slabs of their own, of 64 KiB. 0: none.
// Versions of PMAlloc from before it refuse a heap with such blocks.
#define PMALLOC_TYPES 65536u
#define PMALLOC_TYPE(number) ((unsigned)(number) << 16)
#define PMALLOC_TYPE_OF(flags) ((unsigned)(flags) >> 16)

// `on`: the word at byte `offset` of each block of this type is transient: it leads to what only
// this process has, such as a thread, a file or a cache. From now on each start stores NULL in it,
// before it looks at anything else, so what only such words reach is freed. The heap keeps that,
// also when it was killed; a program may call it at each start. Not `on`: it is transient no more.
// A type whose blocks get another layout should get another number. pmalloc-recover does as a start
// does; with --dry-run, what such words lead to is taken for reached. Returns 0, or -1 with errno:
// EINVAL (no type, or no multiple of 8 below 16384), ENOMEM (there is room for such words in 8
// lines of 64 bytes, of all types together), ENOTSUP (the heap is volatile or private), EDEADLK (in
// a signal handler that interrupts the allocator). Durable on return; under PMALLOC_COMMIT with the
// next commit. Thread-safe.
int pmalloc_transient(unsigned type, size_t offset, int on);

// A block as malloc() gives it, with flags. `align` is a power of two; 0: as malloc. NULL with
// errno ENOMEM or EINVAL (a line on standard error says which argument is wrong). The flags stay
// with the block when realloc() moves it. A pinned block is allocated durably on return; a crash
// before the program has noted where it is leaves it allocated for good. So pmalloc_reserve() and
// pmalloc_realloc_at() are the better choice there, or pmalloc_walk() after a start.
void *pmalloc_alloc(size_t size, size_t align, unsigned flags);

// Returns a block that belongs to the caller from now on: other elements may store pointers to it.
// `align` is a power of two; 0: as malloc. The publish makes the block's bytes durable, unless
// PMALLOC_FLUSHED is given. NULL with errno ENOMEM or EINVAL; then the element is empty.
void *pmalloc_reserve(pmalloc_op *op, size_t size, size_t align, unsigned flags);
// The publish will store `value` at `where`: an aligned word of 8 bytes in a block of the heap or
// in a captured root. Returns 0, or -1 with errno EINVAL: `where` is not aligned.
int pmalloc_store(pmalloc_op *op, void *where, uint64_t value);
// The publish will store `p` in root slot `slot`, as pmalloc_set_root() does. Returns 0, or -1 with
// errno EINVAL.
int pmalloc_store_root(pmalloc_op *op, unsigned slot, void *p);
// The publish will free `p`, after its stores are durable. NULL does nothing. Two elements that
// free one block are a double free: the second one ends the program as free() would, after the
// stores.
void pmalloc_defer_free(pmalloc_op *op, void *p);
// Makes the changes of the `n` elements: all or none, durable on return. Then the elements are
// empty. Returns 0, or -1 and nothing has changed: errno EINVAL (an element was not filled in; its
// block is not allocated; there are too many stores; a store's target is outside heap and captured
// roots; a line on standard error says which), ENOSPC or another one of the file system (no space
// for the lanes, which a heap gets at its first publish of more than one store), EDEADLK (in a
// signal handler).
int pmalloc_publish(pmalloc_op *op, size_t n);
// Frees the blocks that the elements have reserved, and does nothing else. Then they are empty.
void pmalloc_cancel(pmalloc_op *op, size_t n);

// A publish of one store, in one call. `where` is the address of a pointer, in a block of the heap
// or in a captured root. They return the block that is stored there, or NULL with errno ENOMEM or
// EINVAL, and then nothing has changed.
//
// The block's bytes are as malloc() leaves them. The pointer is durable; later stores of the caller
// to the block are durable when it has called pmalloc_persist().
void *pmalloc_malloc_to(void *where, size_t size);
// The block's bytes are durable zeroes.
void *pmalloc_calloc_to(void *where, size_t count, size_t size);
// The block at *where, made larger or smaller: it stays, or its bytes are durable in another one
// before *where changes, and then the old one is freed. NULL in *where is a block of no bytes.
void *pmalloc_realloc_at(void *where, size_t size);
// Stores NULL, durably, and then frees the block that was there. Returns 0, or -1 with errno.
int pmalloc_free_from(void *where);

// Durability of the program's own stores to its heap and its captured roots. pmalloc_flush() begins
// to write [p, p + n) back; after pmalloc_drain() all that this thread has flushed is durable.
// pmalloc_persist() does both.
void pmalloc_flush(const void *p, size_t n);
void pmalloc_drain(void);
void pmalloc_persist(const void *p, size_t n);
// 0 when the three have nothing to write back: the processor's caches survive, or the medium does
// not, or the heap is volatile.
int pmalloc_needs_flush(void);

// From now on `taker` is called for each block of the heap that the program frees, by whatever
// name, and also for the old block of a realloc() that moves. If it returns 0, the block is freed
// as ever. Else the block stays as it is, and the caller of free() notices nothing: `taker` frees
// it later with pmalloc_free_now(), for which it is not asked. So a transaction library postpones
// frees until its transaction is durable. A crash meanwhile loses nothing: the collector finds the
// block if nothing reaches it. It is not asked about frees of a publish or a cancel, or frees of
// signal handlers that interrupt the allocator. Set it before the program starts threads. Each free
// then takes a slower path. NULL ends it.
void pmalloc_set_free_callback(int (*taker)(void *p));
void pmalloc_free_now(void *p);

// Calls `fn` for every allocated block of the heap, by rising address, with the bytes that it has
// room for and the flags that stay with it (POINTER_FREE, PINNED, the type). A block in a thread's
// cache is not allocated. Ends when `fn` returns another value than 0, and returns that. `fn` holds
// no lock of the allocator: it may free the block that it is given, and allocate. Other threads may
// allocate and free meanwhile. A block that is allocated all the time is given to `fn` exactly
// once; one that is allocated or freed meanwhile, once or not at all, and it may be free again when
// `fn` looks at it. A block that realloc() moves counts as two. In a signal handler that interrupts
// the allocator it returns -1 with errno EDEADLK.
typedef int pmalloc_walk_fn(void *p, size_t size, unsigned flags, void *arg);
int pmalloc_walk(pmalloc_walk_fn *fn, void *arg);
// The same for the blocks of one type alone; 0: for those without one. EINVAL: there is no such
// type.
int pmalloc_walk_type(unsigned type, pmalloc_walk_fn *fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
