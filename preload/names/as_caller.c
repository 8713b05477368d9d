// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "as_caller.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "roots/loaded_object.h"

// ---- who has called -----------------------------------------------------------------------------

struct caller {
    uintptr_t address;
    bool matters;
};

static int look_for_path(const struct pm_object *o, void *arg) {
    struct caller *c = arg;
    c->matters |= (!o->is_main && pm_object_has_entry(o, DT_RPATH)) ||
                  (pm_object_holds(o, c->address) && pm_object_has_entry(o, DT_RUNPATH));
    return c->matters;
}

bool pm_caller_matters(const char *file, const void *caller) {
    struct caller c = {.address = (uintptr_t)caller};
    if (!file || (strchr(file, '/') && !strchr(file, '$')))
        return false;
    return strchr(file, '$') || pm_object_each(look_for_path, &c);
}

// ---- what .eh_frame says of a function ----------------------------------------------------------

// Whoever unwinds the stack amid the call, as for an exception or a backtrace, comes by the `ret`.
// So it stands where .eh_frame has the return address on top of the stack: in a function that has
// pushed nothing yet. Or in one that .eh_frame does not know, where unwinding ends.

// Its table in .eh_frame_hdr, which the linker has sorted (gc/moved/frames.h).
struct frames {
    const struct pm_object *object;
    uintptr_t header;
    const int32_t *pair; // where a function begins, and where it is described
    uint32_t count;
};

struct header {
    uint8_t version, pointer_encoding, count_encoding, table_encoding;
    int32_t pointer;
    uint32_t count;
};

static bool find_frames(const struct pm_object *o, struct frames *f) {
    *f = (struct frames){.object = o};
    for (size_t i = 0; i < o->phnum; i++)
        if (o->phdr[i].p_type == PT_GNU_EH_FRAME)
            f->header = o->base + o->phdr[i].p_vaddr;
    const struct header *head =
        f->header ? pm_object_bytes(o, f->header, sizeof(struct header)) : NULL;
    if (!head)
        return !f->header; // that there are none is known as well
    if (head->version != 1 || (head->pointer_encoding & 0x0f) != 0x0b ||
        head->count_encoding != 0x03 || head->table_encoding != 0x3b)
        return false;
    f->count = head->count;
    f->pair = pm_object_bytes(o, f->header + sizeof *head, (size_t)head->count * 8);
    return f->pair != NULL;
}

// A function's description: after its length the distance to what all have in common, then its
// start and its size, no bytes more, and what it does to the stack.
struct description {
    uint32_t length, before;
    int32_t start;
    uint32_t size;
    uint8_t more, step[7];
};

#define RET 0xc3
#define STEPS (offsetof(struct description, step) - sizeof(uint32_t))

// What gcc and clang have in common: the return address lies 8 bytes below, where the stack was.
static const uint8_t common[] = {0,    0,    0, 0,    1,    'z', 'R', 0,    1,
                                 0x78, 0x10, 1, 0x1b, 0x0c, 7,   8,   0x90, 1};

// How many bytes of a function come before it first changes the stack. 0: it is not known.
static uint64_t unchanged(const struct frames *f, uint32_t i) {
    uintptr_t at = f->header + (uintptr_t)(intptr_t)f->pair[2 * (size_t)i + 1];
    const struct description *d = pm_object_bytes(f->object, at, sizeof *d);
    if (!d || d->length < STEPS || d->length > 4096 || d->more ||
        !pm_object_bytes(f->object, at, sizeof d->length + d->length))
        return 0;
    const uint8_t *all = pm_object_bytes(f->object, at + 4 - d->before, 4 + sizeof common);
    if (!all || memcmp(all + 4, common, sizeof common) != 0)
        return 0;
    for (size_t k = 0; k < d->length - STEPS; k++) {
        uint8_t step = d->step[k];
        if (step == 0)
            continue;
        if (step >> 6 == 1) // advance by so many bytes
            return step & 0x3f;
        return step == 2 && k + 1 < d->length - STEPS ? d->step[k + 1] : 0;
    }
    return d->size;
}

// ---- a place to return to -----------------------------------------------------------------------

static const uint8_t *code(const struct pm_object *o, uintptr_t from, uint64_t size) {
    for (size_t i = 0; i < o->phnum; i++) {
        const ElfW(Phdr) *p = &o->phdr[i];
        uintptr_t off = from - (o->base + p->p_vaddr);
        if (p->p_type == PT_LOAD && (p->p_flags & (PF_R | PF_X)) == (PF_R | PF_X) &&
            off <= p->p_filesz && size <= p->p_filesz - off)
            return (const uint8_t *)from; // NOLINT(performance-no-int-to-ptr)
    }
    return NULL;
}

// Not its first byte: who unwinds looks up the byte before.
static const void *ret_in_function(const struct frames *f) {
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t size = unchanged(f, i);
        uintptr_t from = f->header + (uintptr_t)(intptr_t)f->pair[2 * (size_t)i];
        const uint8_t *bytes = size > 1 ? code(f->object, from, size) : NULL;
        const void *ret = bytes ? memchr(bytes + 1, RET, size - 1) : NULL;
        if (ret)
            return ret;
    }
    return NULL;
}

// Where functions begin that .eh_frame knows; 0: none in this object.
static uintptr_t first_known(const struct frames *f) {
    return f->count ? f->header + (uintptr_t)(intptr_t)f->pair[0] : 0;
}

// Before all that .eh_frame knows stands .init, with a `ret`.
static const void *ret_before_functions(const struct frames *f) {
    uintptr_t known = first_known(f);
    for (size_t i = 0; i < f->object->phnum; i++) {
        const ElfW(Phdr) *p = &f->object->phdr[i];
        uintptr_t from = f->object->base + p->p_vaddr;
        if (p->p_type != PT_LOAD || !(p->p_flags & PF_X))
            continue;
        uint64_t size = known - from < p->p_filesz ? known - from : f->count ? 0 : p->p_filesz;
        const uint8_t *bytes = code(f->object, from, size);
        const void *ret = bytes ? memchr(bytes, RET, size) : NULL;
        if (ret)
            return ret;
    }
    return NULL;
}

struct look {
    uintptr_t caller;
    const void *ret;
};

static int look_at(const struct pm_object *o, void *arg) {
    struct look *look = arg;
    struct frames frames;
    if (!pm_object_holds(o, look->caller))
        return 0;
    if (!find_frames(o, &frames))
        return 1;
    look->ret = ret_in_function(&frames);
    if (!look->ret)
        look->ret = ret_before_functions(&frames);
    return 1;
}

// A processor that keeps return addresses beside the stack, too, stops at one that has changed.
static bool returns_are_kept(void) {
    uint64_t kept = 0;
    __asm__ volatile("rdsspq %0" : "+r"(kept)); // does nothing without such
    return kept != 0;
}

const void *pm_return_in(const void *caller) {
    struct look look = {.caller = (uintptr_t)caller};
    if (!returns_are_kept())
        pm_object_each(look_at, &look);
    return look.ret;
}

// The function returns to the `ret`, which returns to us.
__asm__(".text\n"
        ".globl pm_call_by_way_of\n"
        ".hidden pm_call_by_way_of\n"
        ".type pm_call_by_way_of, @function\n"
        "pm_call_by_way_of:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    mov %rdi, %r10\n"
        "    mov %rsi, %rax\n"
        "    mov %rdx, %rdi\n"
        "    mov %rcx, %rsi\n"
        "    mov %r8, %rdx\n"
        "    lea 1f(%rip), %r11\n"
        "    push %r11\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    push %r10\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    jmp *%rax\n"
        ".cfi_adjust_cfa_offset -16\n"
        "    nop\n" // who unwinds looks up the byte before
        "1:  ret\n"
        ".cfi_endproc\n"
        ".size pm_call_by_way_of, . - pm_call_by_way_of\n");
