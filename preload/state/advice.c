// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "advice.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/bare_thread.h"
#include "base/cancel.h"
#include "blocks/extent_cache.h"
#include "media/backing/marks.h"
#include "pages/extent_empty.h"

// Younger than the oldest headers that this is built with.
#define NR_MSEAL 462
#define ADVICE_COLD 20
#define ADVICE_POPULATE_READ 22
#define ADVICE_POPULATE_WRITE 23
#define ADVICE_DONTNEED_LOCKED 24
#define REMAP_DONTUNMAP 4

#define OFFSET_MASK (PM_PAGE_SIZE - 1)

static long madvise_raw(uint64_t at, uint64_t len, int advice) {
    return pm_bare_call(SYS_madvise, (long)at, (long)len, advice, 0);
}

static uint64_t whole(uint64_t len) { return (len + OFFSET_MASK) & ~OFFSET_MASK; }

static bool anonymous(void) {
    return pm_heap_state() == PM_HEAP_VOLATILE || pm_heap_state() == PM_HEAP_CLOSED;
}

// ---- marks --------------------------------------------------------------------------------------

// A signal handler that interrupts the allocator cannot wait for the lock of the marks.
static long change_marks(uint64_t from, uint64_t to, unsigned add, unsigned remove, int access) {
    if (pm_nested())
        return 0;
    struct pm_cancel held = pm_cancel_hold();
    int saved = errno;
    bool first = add && !pm_marks_any();
    bool good = pm_marks_change(from, to, add, remove, access);
    if (first && good)
        pm_extent_caches_watch();
    errno = saved;
    pm_cancel_release(held);
    return good ? 0 : -ENOMEM;
}

// Whether the program has sealed a page of [from, to), of those only that have this access.
static bool sealed(uint64_t from, uint64_t to, bool unwritable) {
    struct pm_mark m;
    if (pm_nested())
        return false;
    for (uint64_t at = from; pm_marks_next(at, &m) && m.from < to; at = m.to)
        if (m.kinds & PM_MARK_SEALED &&
            (!unwritable || (m.kinds & PM_MARK_ACCESS && !(m.access & PROT_WRITE))))
            return true;
    return false;
}

// ---- madvise ------------------------------------------------------------------------------------

// What the kernel says to the advice for no memory at all: 0, if it knows the advice.
static bool known(int advice) { return madvise_raw(0, 0, advice) == 0; }

// What it would say to MADV_DONTNEED: EINVAL for locked pages, ENOMEM where nothing is mapped.
// MADV_COLD asks the same and changes nothing.
static long may_discard(uint64_t at, uint64_t len) {
    return known(ADVICE_COLD) ? madvise_raw(at, len, ADVICE_COLD) : 0;
}

static long discard(uint64_t at, uint64_t len, int advice) {
    long result = 0;
    if (advice != PM_GUARD_INSTALL && advice != ADVICE_DONTNEED_LOCKED)
        result = may_discard(at, len);
    if (result == 0 || result == -ENOMEM)
        pm_extent_empty(at - pm_base, len);
    return result;
}

static bool discards(int advice) {
    switch (advice) {
    case MADV_DONTNEED:
    case MADV_FREE:
    case MADV_REMOVE:
    case MADV_DONTFORK:
    case MADV_WIPEONFORK:
    case ADVICE_DONTNEED_LOCKED:
    case PM_GUARD_INSTALL:
        return true;
    }
    return false;
}

// Where the kernel sees a file or a device, it may refuse what anonymous memory grants.
static long by_kernel(uint64_t at, uint64_t len, int advice) {
    long result = madvise_raw(at, len, advice);
    bool populates = advice == ADVICE_POPULATE_READ || advice == ADVICE_POPULATE_WRITE;
    bool hint = advice == MADV_HUGEPAGE || advice == MADV_NOHUGEPAGE || advice == MADV_DODUMP;
    if (result == -EFAULT && populates)
        return -ENOMEM;
    return result == -EINVAL && hint && known(advice) ? 0 : result;
}

// What the advice makes a mark, and whether it takes one away.
static unsigned mark_of(int advice, bool *away) {
    *away = advice == MADV_KEEPONFORK || advice == MADV_DOFORK || advice == MADV_DODUMP ||
            advice == PM_GUARD_REMOVE;
    switch (advice) {
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
        return PM_MARK_WIPED;
    case MADV_DONTFORK:
    case MADV_DOFORK:
        return PM_MARK_NO_CHILD;
    case MADV_DONTDUMP:
    case MADV_DODUMP:
        return PM_MARK_NO_DUMP;
    case PM_GUARD_INSTALL:
    case PM_GUARD_REMOVE:
        return PM_MARK_GUARD;
    }
    return 0;
}

static long note(uint64_t from, uint64_t to, int advice) {
    bool away;
    unsigned kind = mark_of(advice, &away);
    return kind ? change_marks(from, to, away ? 0 : kind, away ? kind : 0, 0) : 0;
}

// In a private mapping of a file the guard has taken the zeroes away: the file's bytes are left.
static long remove_guards(uint64_t at, uint64_t len) {
    uint64_t from = at - pm_base, to = from + len;
    long result = by_kernel(at, len, PM_GUARD_REMOVE);
    struct pm_mark m;
    if (result || pm_nested())
        return result;
    for (uint64_t next = from; pm_marks_next(next, &m) && m.from < to; next = m.to) {
        uint64_t begin = m.from > from ? m.from : from, end = m.to < to ? m.to : to;
        if (!(m.kinds & PM_MARK_GUARD))
            continue;
        note(begin, end, PM_GUARD_REMOVE);
        if (pm_heap_is_journaled())
            pm_extent_empty(begin, end - begin);
    }
    return 0;
}

// Of a range that lies in the heap.
static long advise(uint64_t at, uint64_t len, int advice) {
    uint64_t from = at - pm_base, to = from + len;
    if (discards(advice) && sealed(from, to, true))
        return -EPERM;
    switch (advice) {
    case MADV_REMOVE:
        return -EINVAL;
    case MADV_DONTNEED:
    case MADV_FREE:
    case ADVICE_DONTNEED_LOCKED:
        return discard(at, len, advice);
    case PM_GUARD_INSTALL:
        discard(at, len, advice);
        break;
    case PM_GUARD_REMOVE:
        return remove_guards(at, len);
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
    case MADV_DONTFORK:
    case MADV_DOFORK:
        return note(from, to, advice);
    }
    long result = by_kernel(at, len, advice);
    return result ? result : note(from, to, advice);
}

// What lies in the heap. The kernel is asked about what the program has mapped there itself.
// As in the kernel, pages where nothing is mapped are an error that ends nothing.
static long advise_parts(uint64_t at, uint64_t len, int advice) {
    uint64_t offset = at - pm_base, end = offset + len, part;
    long missing = 0;
    if (pm_nested() || !pm_marks_any())
        return advise(at, len, advice);
    for (uint64_t from = offset; from < end; from = offset + part, offset = from) {
        part = pm_marks_free_of(PM_MARK_AWAY, &offset, end);
        offset = part ? offset : end;
        long result = offset > from ? madvise_raw(pm_base + from, offset - from, advice) : 0;
        if (part && (!result || result == -ENOMEM)) {
            missing = result ? result : missing;
            result = advise(pm_base + offset, part, advice);
        }
        if (result && result != -ENOMEM)
            return result;
        missing = result ? result : missing;
    }
    return missing;
}

// Of the part of [from, to) that lies in the heap, from pm_base.
static void clip(uint64_t *from, uint64_t *to) {
    uint64_t end = pm_base + pm_range;
    *from = (*from > pm_base ? *from : pm_base) - pm_base;
    *to = (*to < end ? *to : end) - pm_base;
}

// Volatile memory. The marks are for the end of the block.
static long advise_volatile(uint64_t from, uint64_t len, int advice) {
    uint64_t to = from + whole(len);
    long result = madvise_raw(from, len, advice);
    if (result || to <= from || pm_heap_state() != PM_HEAP_VOLATILE)
        return result;
    clip(&from, &to);
    return note(from, to, advice);
}

// The part before the heap, the part in it and the part behind it.
long pm_advice_madvise(void *at, size_t len, int advice) {
    uint64_t from = (uint64_t)(uintptr_t)at, to = from + whole(len), end = pm_base + pm_range;
    if (anonymous())
        return advise_volatile(from, len, advice);
    if (from & OFFSET_MASK || to <= from || !known(advice))
        return madvise_raw(from, len, advice);
    uint64_t cut[] = {from, from > pm_base ? from : pm_base, to < end ? to : end, to};
    long missing = 0;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t part = cut[i + 1] - cut[i];
        long result = !part    ? 0
                      : i == 1 ? advise_parts(cut[i], part, advice)
                               : madvise_raw(cut[i], part, advice);
        if (result == -ENOMEM)
            missing = result;
        else if (result)
            return result;
    }
    return missing;
}

// ---- mprotect, mseal ----------------------------------------------------------------------------

long pm_advice_mprotect(void *at, size_t len, int access, int key) {
    const int plain = PROT_READ | PROT_WRITE;
    int mark = access | (key < 0 ? PM_KEY_STAYS : key << PM_KEY_SHIFT);
    uint64_t from = (uint64_t)(uintptr_t)at, to = from + whole(len);
    bool ours = pm_heap_state() != PM_HEAP_CLOSED && !(from & OFFSET_MASK) && to > from;
    clip(&from, &to);
    if (ours && sealed(from, to, false))
        return -EPERM;
    long result =
        pm_bare_call(key < 0 ? SYS_mprotect : SYS_pkey_mprotect, (long)at, (long)len, access, key);
    if (result == 0 && ours && (access != plain || key > 0 || pm_marks_any()))
        result = change_marks(from, to, PM_MARK_ACCESS, 0, mark);
    return result;
}

long pm_advice_mseal(void *at, size_t len, unsigned long flags) {
    uint64_t from = (uint64_t)(uintptr_t)at, to = from + whole(len), end = pm_base + pm_range;
    long result = pm_bare_call(NR_MSEAL, 0, 0, 0, 0);
    if (anonymous() || result || flags || from & OFFSET_MASK || to <= from)
        return pm_bare_call(NR_MSEAL, (long)at, (long)len, (long)flags, 0);
    if (from < pm_base)
        result = pm_bare_call(NR_MSEAL, (long)from, (long)(pm_base - from), 0, 0);
    if (!result && to > end)
        result = pm_bare_call(NR_MSEAL, (long)end, (long)(to - end), 0, 0);
    clip(&from, &to);
    return result ? result : change_marks(from, to, PM_MARK_SEALED, 0, 0);
}

// ---- mmap, munmap -------------------------------------------------------------------------------

// Earlier requests about these pages are over.
static long note_away(uint64_t from, uint64_t to, enum pm_mark_kind kind) {
    if (pm_heap_state() == PM_HEAP_CLOSED)
        return 0;
    clip(&from, &to);
    return from < to ? change_marks(from, to, kind, UINT16_MAX & ~(unsigned)kind, 0) : 0;
}

static bool away_is_sealed(uint64_t from, uint64_t to) {
    if (pm_heap_state() == PM_HEAP_CLOSED || from & OFFSET_MASK || to <= from)
        return false;
    clip(&from, &to);
    return from < to && sealed(from, to, false);
}

// `at` may be a hint alone. So the kernel says where the mapping lies.
long pm_advice_mmap(void *at, size_t len, int access, int flags, int fd, long offset) {
    uint64_t from = (uint64_t)(uintptr_t)at;
    if (flags & MAP_FIXED && away_is_sealed(from, from + whole(len)))
        return -EPERM;
    long result = pm_bare_call6(SYS_mmap, (long)at, (long)len, access, flags, fd, offset);
    if (result < 0 && result > -4096)
        return result;
    from = (uint64_t)result;
    long error = note_away(from, from + whole(len), PM_MARK_MAPPED);
    return error ? error : result;
}

long pm_advice_munmap(void *at, size_t len) {
    uint64_t from = (uint64_t)(uintptr_t)at;
    if (away_is_sealed(from, from + whole(len)))
        return -EPERM;
    long result = pm_bare_call(SYS_munmap, (long)at, (long)len, 0, 0);
    return result ? result : note_away(from, from + whole(len), PM_MARK_HOLE);
}

// ---- mremap -------------------------------------------------------------------------------------

struct move {
    uint64_t from, old, to, len; // addresses; whole pages
    int flags;
};

// What the kernel refuses for anonymous memory, too.
static long refused(const struct move *m) {
    bool may_move = m->flags & MREMAP_MAYMOVE, fixed = m->flags & MREMAP_FIXED;
    bool stays = m->flags & REMAP_DONTUNMAP;
    if (m->flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED | REMAP_DONTUNMAP) || m->from & OFFSET_MASK ||
        !m->len || !m->old || ((fixed || stays) && !may_move) || (stays && m->old != m->len))
        return -EINVAL;
    if (fixed && (m->to & OFFSET_MASK || (m->to < m->from + m->old && m->from < m->to + m->len)))
        return -EINVAL;
    return 0;
}

static bool inside(uint64_t at, uint64_t len) {
    return at >= pm_base && at + len <= pm_base + pm_range;
}

// Fresh memory for the move, or the part of the heap where it goes, empty. Negative: an error.
static long destination(const struct move *m) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    bool fixed = m->flags & MREMAP_FIXED;
    if (fixed && inside(m->to, m->len)) {
        pm_extent_empty(m->to - pm_base, m->len);
        return (long)m->to;
    }
    if (fixed && pm_advice_ours((void *)m->to, m->len))
        return -ENOMEM; // half of it
    return pm_bare_call6(SYS_mmap, fixed ? (long)m->to : 0, (long)m->len, PROT_READ | PROT_WRITE,
                         flags | (fixed ? MAP_FIXED : 0), -1, 0);
}

// The program's own mapping moves as anywhere else.
static bool is_away(uint64_t at) {
    struct pm_mark m;
    return inside(at, PM_PAGE_SIZE) && !pm_nested() && pm_marks_next(at - pm_base, &m) &&
           m.from <= at - pm_base && m.kinds & PM_MARK_AWAY;
}

static long move_away(const struct move *m) {
    long to = pm_bare_call6(SYS_mremap, (long)m->from, (long)m->old, (long)m->len, m->flags,
                            (long)m->to, 0);
    if (to < 0 && to > -4096)
        return to;
    if ((uint64_t)to != m->from && !(m->flags & REMAP_DONTUNMAP))
        note_away(m->from, m->from + m->old, PM_MARK_HOLE);
    else if (m->len < m->old)
        note_away(m->from + m->len, m->from + m->old, PM_MARK_HOLE);
    long error = note_away((uint64_t)to, (uint64_t)to + m->len, PM_MARK_MAPPED);
    return error ? error : to;
}

// The bytes move. The pages of a heap stay where they are, empty: as with MREMAP_DONTUNMAP.
static long move(const struct move *m) {
    uint64_t len = m->old < m->len ? m->old : m->len;
    bool from_heap = inside(m->from, m->old);
    uint64_t offset = m->from - pm_base;
    long to = destination(m);
    if (to < 0 && to > -4096)
        return to;
    if (from_heap && !pm_nested())
        pm_marks_lift(offset, offset + m->old);
    memcpy((void *)to, (void *)m->from, len);
    if (from_heap)
        pm_extent_empty(offset, m->old);
    if (from_heap && !pm_nested())
        pm_marks_renew(offset, offset + m->old);
    else if (!from_heap && m->flags & REMAP_DONTUNMAP)
        madvise_raw(m->from, m->old, MADV_DONTNEED);
    else if (!from_heap)
        pm_bare_call(SYS_munmap, (long)m->from, (long)m->old, 0, 0);
    return to;
}

long pm_advice_mremap(void *from, size_t old, size_t len, int flags, void *to) {
    struct move m = {(uint64_t)(uintptr_t)from, whole(old), (uint64_t)(uintptr_t)to, whole(len),
                     flags};
    if (anonymous())
        return pm_bare_call6(SYS_mremap, (long)from, (long)old, (long)len, flags, (long)to, 0);
    long error = refused(&m);
    if (error)
        return error;
    bool ours = pm_advice_ours(from, m.old);
    if (is_away(m.from))
        return move_away(&m);
    if (ours && !inside(m.from, m.old))
        return -EFAULT;
    if (ours && sealed(m.from - pm_base, m.from + m.old - pm_base, false))
        return -EPERM;
    if (ours && m.len <= m.old && !(flags & (MREMAP_FIXED | REMAP_DONTUNMAP))) {
        if (m.len < m.old)
            pm_extent_empty(m.from + m.len - pm_base, m.old - m.len);
        return (long)m.from;
    }
    return flags & MREMAP_MAYMOVE ? move(&m) : -ENOMEM;
}

// ---- a forked child -----------------------------------------------------------------------------

// It cannot touch a block that its parent has kept from it. If it frees such a block, that ends.
void pm_advice_forked(void) {
    struct pm_mark m;
    if (anonymous())
        return;
    for (uint64_t at = 0; pm_marks_next(at, &m); at = m.to) {
        if (m.kinds & PM_MARK_WIPED)
            pm_extent_empty(m.from, m.to - m.from);
        if (m.kinds & PM_MARK_NO_CHILD)
            pm_marks_change(m.from, m.to, PM_MARK_ACCESS, PM_MARK_NO_CHILD, PROT_NONE);
    }
    pm_marks_renew(0, pm_range);
}
