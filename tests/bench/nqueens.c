// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Places eight queens. The board, a block of 128 bytes, is allocated for one solution and then
// freed.
#include "bench.h"

enum { QUEENS = 8 };

static uint64_t boards = 1000000;

struct board {
    int8_t row[QUEENS];                                    // the row of the queen in each column
    int8_t rows[QUEENS], up[2 * QUEENS], down[2 * QUEENS]; // the rows and diagonals under attack
    char rest[128 - 6 * QUEENS];
};
_Static_assert(sizeof(struct board) == 128, "the size that is measured");

static bool place(struct board *b, int column, int first) {
    if (column == QUEENS)
        return true;
    for (int i = 0; i < QUEENS; i++) {
        int row = (first + i) % QUEENS;
        int8_t *attacked[] = {&b->rows[row], &b->up[row + column], &b->down[row - column + QUEENS]};
        if (*attacked[0] | *attacked[1] | *attacked[2])
            continue;
        *attacked[0] = *attacked[1] = *attacked[2] = 1;
        b->row[column] = (int8_t)row;
        if (place(b, column + 1, first))
            return true;
        *attacked[0] = *attacked[1] = *attacked[2] = 0;
    }
    return false;
}

static uint64_t work(unsigned worker) {
    uint64_t random = bench_stream(worker), answer = 0, mine = bench_part(boards, worker);
    for (uint64_t i = 0; i < mine; i++) {
        struct board *b = bench_block(sizeof *b);
        memset(b, 0, sizeof *b);
        if (!place(b, 0, (int)bench_below(&random, QUEENS)))
            bench_exit(BENCH_WRONG, "wrong: no place was found for eight queens");
        for (unsigned column = 0; column < QUEENS; column++)
            answer += (uint64_t)b->row[column] << 4 * column;
        bench_free(b);
    }
    return answer;
}

int main(int argc, char **argv) {
    static const struct bench_option options[] = {{'n', "boards, all threads together", &boards},
                                                  {0}};
    bench_begin(argc, argv, NULL, options);
    uint64_t answer = 0;
    double seconds = bench_run((unsigned)bench_threads, work, &answer);
    return bench_report(2 * boards, seconds, answer);
}
