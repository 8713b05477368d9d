// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Which accesses go to memory. Reads a trace of valgrind's lackey (--trace-mem=yes) from its
// standard input, and lets it go through one cache: loads MEGABYTES, 16 ways, lines of 64 bytes,
// least recently used. A store that misses loads the line, too. Prints, for each page with misses,
//   PAGE MISSES
// where PAGE is its address in hexadecimal, over 4096. A program may say which part of it counts
// (bench_mark in bench.h), by an access to one of three lines at a fixed place.
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../marks.h"

enum { WAYS = 16, LINE = 64, PAGE = 4096, PLACE_BITS = 22 };
#define PLACES (1u << PLACE_BITS) // pages that may have misses

static uint64_t (*set)[WAYS]; // the newest first; lines begin at 1
static uint64_t sets;
static bool counting = true;

static struct { uint64_t page, misses; } place[PLACES];

static void count(uint64_t page) {
    uint64_t i = page * 0x9e3779b97f4a7c15u >> (64 - PLACE_BITS);
    unsigned tried = 0;
    while (place[i].misses && place[i].page != page) {
        i = (i + 1) % PLACES;
        if (++tried == PLACES) {
            fprintf(stderr, "loads: over %u pages\n", PLACES);
            exit(1);
        }
    }
    place[i].page = page;
    place[i].misses++;
}

static void obey(uint64_t line) {
    switch (line - BENCH_MARKS / LINE) {
    case BENCH_ON:
        counting = true;
        break;
    case BENCH_OFF:
        counting = false;
        break;
    case BENCH_ZERO:
        memset(place, 0, sizeof place);
        break;
    default:
        break;
    }
}

static void touch(uint64_t line) {
    uint64_t *ways = set[line % sets], key = line + 1;
    unsigned at = 0;
    while (at < WAYS - 1 && ways[at] != key)
        at++;
    if (ways[at] != key && counting)
        count(line * LINE / PAGE);
    memmove(ways + 1, ways, at * sizeof *ways);
    ways[0] = key;
}

int main(int argc, char **argv) {
    static char text[256];
    sets = argc == 2 ? (strtoull(argv[1], NULL, 10) << 20) / (LINE * WAYS) : 0;
    set = sets ? calloc(sets, sizeof *set) : NULL;
    if (!set) {
        fprintf(stderr, "usage: loads MEGABYTES\n");
        return 2;
    }
    while (fgets(text, sizeof text, stdin)) {
        if (text[0] != ' ' || !text[1] || !strchr("LSM", text[1]) || text[2] != ' ')
            continue;
        char *comma;
        uint64_t at = strtoull(text + 3, &comma, 16), size = strtoull(comma + 1, NULL, 10);
        if (at / PAGE == BENCH_MARKS / PAGE)
            obey(at / LINE);
        else
            for (uint64_t line = at / LINE; size && line <= (at + size - 1) / LINE; line++)
                touch(line);
    }
    for (unsigned i = 0; i < PLACES; i++)
        if (place[i].misses)
            printf("%llx %llu\n", (unsigned long long)place[i].page,
                   (unsigned long long)place[i].misses);
    return 0;
}
