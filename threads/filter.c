// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "filter.h"

#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>

#define OPERATION(code) ((code)&0xf0)

struct run {
    const struct seccomp_data *data;
    uint32_t a, x, memory[BPF_MEMWORDS];
};

static bool compute(struct run *r, const struct sock_filter *at) {
    uint32_t by = BPF_SRC(at->code) == BPF_X ? r->x : at->k;
    switch (OPERATION(at->code)) {
    case BPF_ADD:
        r->a += by;
        return true;
    case BPF_SUB:
        r->a -= by;
        return true;
    case BPF_MUL:
        r->a *= by;
        return true;
    case BPF_DIV:
        r->a = by ? r->a / by : 0;
        return by != 0;
    case BPF_OR:
        r->a |= by;
        return true;
    case BPF_AND:
        r->a &= by;
        return true;
    case BPF_XOR:
        r->a ^= by;
        return true;
    case BPF_LSH:
        r->a = by < 32 ? r->a << by : 0;
        return true;
    case BPF_RSH:
        r->a = by < 32 ? r->a >> by : 0;
        return true;
    case BPF_NEG:
        r->a = -r->a;
        return true;
    default:
        return false;
    }
}

// How far to jump. Forward only, so each filter ends.
static uint32_t distance(const struct run *r, const struct sock_filter *at) {
    uint32_t with = BPF_SRC(at->code) == BPF_X ? r->x : at->k;
    switch (OPERATION(at->code)) {
    case BPF_JA:
        return at->k;
    case BPF_JEQ:
        return r->a == with ? at->jt : at->jf;
    case BPF_JGT:
        return r->a > with ? at->jt : at->jf;
    case BPF_JGE:
        return r->a >= with ? at->jt : at->jf;
    default: // BPF_JSET
        return r->a & with ? at->jt : at->jf;
    }
}

static bool load(const struct run *r, const struct sock_filter *at, uint32_t *value) {
    bool known = true;
    switch (BPF_MODE(at->code)) {
    case BPF_IMM:
        *value = at->k;
        break;
    case BPF_LEN:
        *value = sizeof *r->data;
        break;
    case BPF_MEM:
        known = at->k < BPF_MEMWORDS;
        *value = known ? r->memory[at->k] : 0;
        break;
    case BPF_ABS:
        known = at->k % sizeof *value == 0 && at->k < sizeof *r->data;
        if (known)
            memcpy(value, (const char *)r->data + at->k, sizeof *value);
        break;
    default:
        known = false;
    }
    return known;
}

// One instruction that is neither a jump nor the last one.
static bool step(struct run *r, const struct sock_filter *at) {
    switch (BPF_CLASS(at->code)) {
    case BPF_LD:
        return load(r, at, &r->a);
    case BPF_LDX:
        return load(r, at, &r->x);
    case BPF_ST:
    case BPF_STX:
        if (at->k < BPF_MEMWORDS)
            r->memory[at->k] = BPF_CLASS(at->code) == BPF_ST ? r->a : r->x;
        return at->k < BPF_MEMWORDS;
    case BPF_ALU:
        return compute(r, at);
    case BPF_MISC:
        if (BPF_MISCOP(at->code) == BPF_TAX)
            r->x = r->a;
        else
            r->a = r->x;
        return BPF_MISCOP(at->code) == BPF_TAX || BPF_MISCOP(at->code) == BPF_TXA;
    default:
        return false;
    }
}

// The kernel refuses what is no filter. To be on the safe side we take it for one that kills.
static uint32_t result_of(const struct sock_fprog *filter, const struct seccomp_data *data) {
    struct run r = {.data = data};
    for (uint32_t i = 0; i < filter->len; i++) {
        const struct sock_filter *at = &filter->filter[i];
        if (BPF_CLASS(at->code) == BPF_RET)
            return BPF_RVAL(at->code) == BPF_A ? r.a : at->k;
        if (BPF_CLASS(at->code) == BPF_JMP) {
            uint32_t by = distance(&r, at);
            if (by >= filter->len - i)
                break;
            i += by;
        } else if (!step(&r, at)) {
            break;
        }
    }
    return SECCOMP_RET_KILL_PROCESS;
}

static enum pm_filter_verdict strict(long number) {
    bool allowed = number == SYS_read || number == SYS_write || number == SYS_exit ||
                   number == SYS_rt_sigreturn;
    return allowed ? PM_FILTER_ALLOWS : PM_FILTER_ENDS;
}

enum pm_filter_verdict pm_filter_asks(const struct sock_fprog *filter, long number,
                                      uint64_t second) {
    if (!filter)
        return strict(number);
    const struct seccomp_data data = {
        .nr = (int)number, .arch = AUDIT_ARCH_X86_64, .args = {0, second}};
    switch (result_of(filter, &data) & SECCOMP_RET_ACTION_FULL) {
    case SECCOMP_RET_ALLOW:
    case SECCOMP_RET_LOG:
        return PM_FILTER_ALLOWS;
    case SECCOMP_RET_ERRNO:
    case SECCOMP_RET_TRACE:
    case 0x7fc00000U: // SECCOMP_RET_USER_NOTIF, younger than the oldest headers
        return PM_FILTER_FAILS;
    default:
        return PM_FILTER_ENDS;
    }
}
