// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Threads that change pairs of numbers under locks of abseil, as sections_foreign.c.
//
//   sections_absl KIND     mutex, reader, cond, await, or when
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <new>

#include "sections_pair.h"

struct store {
    long a, b;
    absl::Mutex mutex;
    absl::CondVar changed;
};
extern "C" {
struct store *root;
}

static void burn() {
    for (volatile unsigned i = 0; i < 2000; i = i + 1) {
    }
}

static void change() {
    *(volatile long *)&root->a += 1;
    burn();
    *(volatile long *)&root->b += 1;
}

static bool is_odd(store *s) { return s->a % 2; }
static const absl::Duration moment = absl::Microseconds(50);

static void once(const char *kind) {
    absl::Mutex &mutex = root->mutex;
    const absl::Condition odd(is_odd, root);
    if (strcmp(kind, "mutex") == 0) {
        while (!mutex.TryLock())
            burn();
        change();
        mutex.Unlock();
        absl::MutexLock lock(&mutex);
        change();
    } else if (strcmp(kind, "reader") == 0) {
        absl::WriterMutexLock lock(&mutex);
        change();
    } else if (strcmp(kind, "cond") == 0) {
        absl::MutexLock lock(&mutex);
        change();
        root->changed.SignalAll();
        root->changed.WaitWithTimeout(&mutex, moment);
        change();
        root->changed.Signal();
    } else if (strcmp(kind, "await") == 0) {
        absl::MutexLock lock(&mutex);
        change();
        mutex.AwaitWithTimeout(odd, moment);
        change();
    } else {
        mutex.LockWhenWithTimeout(odd, moment);
        change();
        mutex.Unlock();
        mutex.LockWhen(absl::Condition::kTrue);
        change();
        mutex.Unlock();
    }
}

// A reader that finds the two different has been let in amid a change.
static void read_both() {
    absl::ReaderMutexLock lock(&root->mutex);
    if (root->a != root->b)
        fprintf(stderr, "torn for a reader\n");
}

static void *work(void *kind) {
    for (;;) {
        once(static_cast<const char *>(kind));
        read_both();
        burn();
    }
    return nullptr;
}

int main(int argc, char **argv) {
    pthread_t id;
    if (argc != 2)
        return 16;
    if (!root)
        root = new store{};
    else
        say_pair(root->a, root->b);
    for (int i = 0; i < 3; i++)
        if (pthread_create(&id, nullptr, work, argv[1]) != 0)
            return 1;
    return answer_for_ever();
}
