// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A module that is loaded with RTLD_LOCAL, and so are the libraries that it is linked with: libaio
// and liburing. Their headers need not be there.
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "holds.h"

struct ring;
struct cqe;
extern int io_setup(int n, void **context);
extern int io_destroy(void *context);
extern int io_getevents(void *context, long least, long n, void *events, struct timespec *until);
extern int io_uring_queue_init(unsigned n, struct ring *ring, unsigned flags);
extern void io_uring_queue_exit(struct ring *ring);
extern int io_uring_wait_cqe_timeout(struct ring *ring, struct cqe **found, void *time);

#define RING_BYTES 4096 // more than the library's struct has

static void wait_for_event(struct timespec time) {
    char events[32];
    void *context = NULL;
    REQUIRE(io_setup(4, &context) == 0);
    REQUIRE(io_getevents(context, 1, 1, events, &time) == 0);
    io_destroy(context);
}

// Negative: rings are forbidden here.
static int wait_for_completion(struct timespec time) {
    long long ring[RING_BYTES / sizeof(long long)] = {0}, until[2] = {time.tv_sec, time.tv_nsec};
    struct cqe *found;
    if (io_uring_queue_init(4, (struct ring *)ring, 0) != 0)
        return -1;
    REQUIRE(io_uring_wait_cqe_timeout((struct ring *)ring, &found, until) == -ETIME);
    io_uring_queue_exit((struct ring *)ring);
    return 0;
}

int module_waits(const char *library, const struct timespec *time);
int module_waits(const char *library, const struct timespec *time) {
    if (strcmp(library, "liburing") == 0)
        return wait_for_completion(*time);
    wait_for_event(*time);
    return 0;
}
