// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A server. Each thread replaces objects, chosen at random, by new objects of random sizes. Then it
// starts another thread, hands its objects to it, and ends. So most objects are freed by another
// thread than the one that made them.
#include "bench.h"

static const char *const modes[] = {"one", "small", "medium", "large", NULL};
static const struct range {
    uint32_t from, to;
    uint64_t replacements;
} ranges[] = {
    {64, 64, 24000000}, {64, 256, 24000000}, {1024, 4096, 16000000}, {32 << 10, 512 << 10, 200000}};

static const struct range *range;
static uint64_t slots = 1000, rounds = 20, replacements;

struct server {
    void **held;
    uint64_t slots, replacements, random, answer;
};

static void *new_object(struct server *s) {
    uint64_t size = range->from + bench_below(&s->random, range->to - range->from + 1);
    return bench_new(size, (uint32_t)bench_random(&s->random));
}

static void *serve(void *argument) {
    struct server *s = argument;
    for (uint64_t i = 0; i < s->replacements; i++) {
        uint64_t victim = bench_below(&s->random, s->slots);
        s->answer += bench_drop(s->held[victim]);
        s->held[victim] = new_object(s);
    }
    bench_leave();
    return NULL;
}

static uint64_t work(unsigned worker) {
    struct server s = {.slots = bench_part(slots, worker), .random = bench_stream(worker)};
    s.replacements = bench_part(replacements, worker) / rounds;
    s.held = bench_table(s.slots * sizeof *s.held);
    for (uint64_t i = 0; i < s.slots; i++)
        s.held[i] = new_object(&s);
    for (uint64_t round = 0; round < rounds; round++) {
        pthread_t id;
        if (pthread_create(&id, NULL, serve, &s) != 0)
            bench_exit(BENCH_WRONG, "cannot start a thread");
        pthread_join(id, NULL);
    }
    for (uint64_t i = 0; i < s.slots; i++)
        s.answer += bench_drop(s.held[i]);
    return s.answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {
        {'o', "objects in use, all threads together", &slots},
        {'r', "rounds: how often a thread hands its objects to another", &rounds},
        {'n', "replacements, all threads together; 0: chosen by the sizes", &replacements},
        {0}};
    range = &ranges[bench_begin(argc, argv, modes, options)];
    if (slots < bench_threads || !rounds)
        bench_exit(BENCH_USAGE, "at least one object per thread, and one round");
    if (!replacements)
        replacements = range->replacements;
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * (slots + replacements), seconds, answer);
}
