// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "store_record.h"

#include <linux/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// As linux/userfaultfd.h has it.
#define FEATURE_WRITE_PROTECT ((uint64_t)1 << 0)
#define FEATURE_WRITE_PROTECT_FILES ((uint64_t)1 << 12)
#define FEATURE_WRITE_PROTECT_UNPOPULATED ((uint64_t)1 << 13) // anonymous memory, too
#define FEATURE_WRITE_PROTECT_ASYNC ((uint64_t)1 << 15)
#define MODE_WRITE_PROTECT ((uint64_t)1 << 1)
struct api {
    uint64_t api, features, ioctls;
};
struct watch {
    uint64_t start, len, mode, ioctls;
};
struct range {
    uint64_t start, len;
};
#define CALL_API _IOWR(0xaa, 0x3f, struct api)
#define CALL_REGISTER _IOWR(0xaa, 0x00, struct watch)
#define CALL_UNREGISTER _IOR(0xaa, 0x01, struct range)

bool pm_store_record_prepare(int faults) {
    struct api api = {.api = 0xaa,
                      .features = FEATURE_WRITE_PROTECT | FEATURE_WRITE_PROTECT_FILES |
                                  FEATURE_WRITE_PROTECT_UNPOPULATED | FEATURE_WRITE_PROTECT_ASYNC};
    return syscall(SYS_ioctl, faults, CALL_API, &api) == 0;
}

bool pm_store_record_watch(int faults, uint64_t start, uint64_t len) {
    struct watch range = {.start = start, .len = len, .mode = MODE_WRITE_PROTECT};
    return syscall(SYS_ioctl, faults, CALL_REGISTER, &range) == 0;
}

// The kernel refuses where a mapping of a disk's file is not watched, so all are, first.
bool pm_store_record_end(int faults, uint64_t start, uint64_t len) {
    struct range range = {start, len};
    return pm_store_record_watch(faults, start, len) &&
           syscall(SYS_ioctl, faults, CALL_UNREGISTER, &range) == 0;
}
