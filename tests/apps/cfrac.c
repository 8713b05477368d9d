// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Factors a number: finds small primes by division, and the others by the continued-fraction method
// of Morrison and Brillhart. Every number is a heap object of exactly its size, with a count of
// references. So the program has very many short-lived small blocks.
#include "bignum.h"

// ---- The continued fraction of sqrt(kN): (-1)^n Q(n) is the square of A(n-1) modulo N.

enum { MOST_PRIMES = 2000, EARLY_PART = 16 };

struct relation {
    num *a;
    uint64_t *bits, *history; // the reduced row of the matrix; the relations whose sum it is
    uint16_t *factors;        // the factors as columns, with repetition; column 0 stands for -1
    uint32_t factor_count;
};

// Neighbouring primes of the base, with their product. One long division by it tests them all.
struct group {
    uint32_t product, first, end;
};

struct search {
    num *n;
    uint32_t primes, prime[MOST_PRIMES]; // the factor base; prime[0] stands for -1
    uint32_t groups, early;
    struct group group[MOST_PRIMES];
    double early_limit, log_n;
    uint32_t count, words;
    struct relation *row_with_pivot[MOST_PRIMES];
    struct relation *relations[MOST_PRIMES + 1];
};

static bool small_prime(uint32_t p) {
    for (uint32_t d = 2; d * d <= p; d++)
        if (p % d == 0)
            return false;
    return p >= 2;
}

static bool square_modulo(uint64_t value, uint32_t p) {
    uint64_t result = 1;
    for (uint32_t e = (p - 1) / 2; e; e >>= 1, value = value * value % p)
        if (e & 1)
            result = result * value % p;
    return result == 1;
}

static void form_groups(struct search *s) {
    for (uint32_t i = 1; i < s->primes;) {
        struct group *g = &s->group[s->groups++];
        *g = (struct group){.product = 1, .first = i};
        while (i < s->primes && (uint64_t)g->product * s->prime[i] <= UINT32_MAX)
            g->product *= s->prime[i++];
        g->end = i;
    }
}

// Fills the base with the primes that can divide a Q: kN is a square modulo each of them.
static void choose_base(struct search *s, const num *kn) {
    double size = exp(0.33 * sqrt(s->log_n * log(s->log_n)));
    uint32_t wanted = size < 20 ? 20 : size > MOST_PRIMES ? MOST_PRIMES : (uint32_t)size;
    s->prime[0] = 1;
    s->primes = 1;
    for (uint32_t p = 2; s->primes < wanted; p++)
        if (small_prime(p) && (p == 2 || !rest_small(kn, p) || square_modulo(rest_small(kn, p), p)))
            s->prime[s->primes++] = p;
    form_groups(s);
    s->early = s->groups / EARLY_PART;
    // The first primes must divide at least this much out of a Q (as a logarithm). Otherwise the
    // rest of the primes are not tried.
    s->early_limit = 0.32 * s->log_n;
    s->words = (s->primes + 1 + 63) / 64;
}

// The score of a multiplier k: the expected logarithm of the part of Q that consists of small
// primes.
static double multiplier_score(const num *n, uint32_t k) {
    num *factor = from(k), *kn = multiply(n, factor);
    double score = -0.5 * log(k);
    for (uint32_t p = 2; p < 400; p++) {
        if (!small_prime(p))
            continue;
        uint32_t rest = rest_small(kn, p);
        if (p == 2)
            score += (rest_small(kn, 8) == 1 ? 2 : rest_small(kn, 8) == 5 ? 1 : 0.5) * log(2);
        else if (!rest)
            score += log(p) / (p + 1);
        else if (square_modulo(rest, p))
            score += 2 * p * log(p) / ((double)p * p - 1);
    }
    drop(factor);
    drop(kn);
    return score;
}

// Writes the factors of q in the base to `list`. Returns their number, or 0 when q has others.
static uint32_t smooth(const struct search *s, num *q, bool negative, uint16_t *list) {
    uint32_t count = 0, rest;
    if (negative)
        list[count++] = 0;
    q = hold(q);
    for (uint32_t g = 0; g < s->groups && !is(q, 1); g++) {
        const struct group *group = &s->group[g];
        uint32_t residue = rest_small(q, group->product);
        for (uint32_t i = group->first; i < group->end; i++)
            for (bool divides = residue % s->prime[i] == 0; divides;
                 divides = rest_small(q, s->prime[i]) == 0) {
                replace(&q, divide_small(q, s->prime[i], &rest));
                list[count++] = (uint16_t)i;
            }
        if (g == s->early && logarithm(q) > s->early_limit)
            break;
    }
    bool good = is(q, 1);
    drop(q);
    return good ? count : 0;
}

static void free_relation(struct relation *r) {
    drop(r->a);
    free(r->bits);
    free(r->history);
    free(r->factors);
    free(r);
}

static struct relation *new_relation(struct search *s, num *a, const uint16_t *list,
                                     uint32_t count) {
    struct relation *r = must(malloc(sizeof *r));
    r->a = hold(a);
    r->factor_count = count;
    r->factors = must(malloc((count + 1) * sizeof *list));
    memcpy(r->factors, list, count * sizeof *list);
    r->bits = must(calloc(s->words, sizeof *r->bits));
    r->history = must(calloc(s->words, sizeof *r->history));
    for (uint32_t i = 0; i < count; i++)
        r->bits[list[i] / 64] ^= 1ull << list[i] % 64;
    r->history[s->count / 64] |= 1ull << s->count % 64;
    return r;
}

// Adds rows to r until its bits are zero. True: they are, and the product of the relations in r's
// history is a square.
static bool eliminate(struct search *s, struct relation *r) {
    for (uint32_t column = 0; column < s->primes; column++) {
        if (!(r->bits[column / 64] >> column % 64 & 1))
            continue;
        const struct relation *row = s->row_with_pivot[column];
        if (!row) {
            s->row_with_pivot[column] = r;
            return false;
        }
        for (uint32_t w = 0; w < s->words; w++) {
            r->bits[w] ^= row->bits[w];
            r->history[w] ^= row->history[w];
        }
    }
    return true;
}

// Uses X^2 = Y^2 modulo N. Returns a divisor of N other than 1 and N, or NULL.
static num *divisor_from(struct search *s, const uint64_t *history) {
    uint32_t *exponent = must(calloc(s->primes, sizeof *exponent));
    num *x = from(1), *y = from(1);
    for (uint32_t i = 0; i <= s->count; i++) {
        const struct relation *r = s->relations[i];
        if (!(history[i / 64] >> i % 64 & 1))
            continue;
        replace(&x, multiply_modulo(x, r->a, s->n));
        for (uint32_t f = 0; f < r->factor_count; f++)
            exponent[r->factors[f]]++;
    }
    for (uint32_t i = 1; i < s->primes; i++) {
        num *p = from(s->prime[i]), *e = from(exponent[i] / 2), *power = power_modulo(p, e, s->n);
        replace(&y, multiply_modulo(y, power, s->n));
        drop(p);
        drop(e);
        drop(power);
    }
    num *sum = add(x, y), *d = greatest_common_divisor(sum, s->n);
    drop(sum);
    drop(x);
    drop(y);
    free(exponent);
    if (!is(d, 1) && compare(d, s->n))
        return d;
    drop(d);
    return NULL;
}

static num *use_relation(struct search *s, num *a, const uint16_t *list, uint32_t count) {
    struct relation *r = new_relation(s, a, list, count);
    s->relations[s->count] = r;
    if (!eliminate(s, r)) {
        s->count++;
        return NULL;
    }
    num *d = divisor_from(s, r->history);
    free_relation(r); // its row depends on the others, so it is of no more use
    return d;
}

struct expansion {
    num *root, *p, *q, *q_before, *a, *a_before;
};

// Goes from P(n) Q(n) Q(n-1) A(n-1) A(n-2) to the values for n + 1.
static void advance(struct expansion *x, const num *n) {
    num *sum = add(x->root, x->p), *rest, *digit = divide(sum, x->q, &rest);
    num *p = subtract(x->root, rest), *step, *q;
    if (compare(x->p, p) >= 0) {
        num *fall = subtract(x->p, p);
        step = multiply(digit, fall);
        q = add(x->q_before, step);
        drop(fall);
    } else {
        num *rise = subtract(p, x->p);
        step = multiply(digit, rise);
        q = subtract(x->q_before, step);
        drop(rise);
    }
    num *product = multiply(digit, x->a), *a = add(product, x->a_before);
    replace(&x->p, p);
    replace(&x->q_before, hold(x->q));
    replace(&x->q, q);
    replace(&x->a_before, hold(x->a));
    replace(&x->a, modulo(a, n));
    drop(sum);
    drop(rest);
    drop(digit);
    drop(step);
    drop(product);
    drop(a);
}

static num *search_expansion(struct search *s, const num *kn) {
    struct expansion x = {.root = square_root(kn), .q_before = from(1), .a_before = from(1)};
    uint16_t list[1024];
    num *square = multiply(x.root, x.root), *d = NULL;
    x.p = hold(x.root);
    x.q = subtract(kn, square);
    x.a = modulo(x.root, s->n);
    drop(square);
    // Q = 1 ends the period. Q = 0 where kN is a square.
    for (bool negative = true; x.q->size && !is(x.q, 1) && !d; negative = !negative) {
        uint32_t count = smooth(s, x.q, negative, list);
        if (count)
            d = use_relation(s, x.a, list, count);
        advance(&x, s->n);
    }
    num *all[] = {x.root, x.p, x.q, x.q_before, x.a, x.a_before};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        drop(all[i]);
    return d;
}

static num *divisor_with(num *n, uint32_t k) {
    struct search *s = must(calloc(1, sizeof *s));
    num *factor = from(k), *kn = multiply(n, factor);
    s->n = n;
    s->log_n = logarithm(n);
    choose_base(s, kn);
    num *d = search_expansion(s, kn);
    for (uint32_t i = 0; i < s->count; i++)
        free_relation(s->relations[i]);
    free(s);
    drop(factor);
    drop(kn);
    return d;
}

// Tries the best multipliers first. Some give no result, because their period is short.
static num *divisor(num *n) {
    enum { MULTIPLIERS = 100 };
    double score[MULTIPLIERS + 1];
    for (uint32_t k = 1; k <= MULTIPLIERS; k++)
        score[k] = multiplier_score(n, k);
    for (uint32_t tries = 0; tries < MULTIPLIERS; tries++) {
        uint32_t best = 1;
        for (uint32_t k = 2; k <= MULTIPLIERS; k++)
            if (score[k] > score[best])
                best = k;
        num *d = divisor_with(n, best);
        if (d)
            return d;
        score[best] = -INFINITY;
    }
    return NULL;
}

// ---- The whole factorization.

static bool probably_prime(num *n) {
    num *one = from(1), *last = subtract(n, one);
    bool prime = true;
    uint32_t twos = 0, rest;
    num *odd = hold(last);
    while (odd->limb[0] % 2 == 0) {
        replace(&odd, divide_small(odd, 2, &rest));
        twos++;
    }
    for (uint32_t base = 2; prime && base < 60; base++) {
        if (!small_prime(base))
            continue;
        num *b = from(base), *power = power_modulo(b, odd, n);
        bool witness = !is(power, 1);
        for (uint32_t i = 0; witness && i < twos; i++) {
            witness = compare(power, last) != 0;
            replace(&power, multiply_modulo(power, power, n));
        }
        prime = !witness;
        drop(b);
        drop(power);
    }
    drop(one);
    drop(last);
    drop(odd);
    return prime;
}

struct factors {
    num *all[1024];
    uint32_t count;
};

static bool split(struct factors *f, num *n) {
    if (is(n, 1))
        return true;
    if (probably_prime(n)) {
        f->all[f->count++] = hold(n);
        return true;
    }
    num *d = square_root(n), *square = multiply(d, d);
    if (compare(square, n))
        replace(&d, divisor(n));
    drop(square);
    if (!d)
        return false;
    num *other = divide(n, d, NULL);
    bool good = split(f, d) && split(f, other);
    drop(d);
    drop(other);
    return good;
}

static bool factor(struct factors *f, num *n) {
    enum { SMALL = 30000 };
    uint32_t rest;
    n = hold(n);
    for (uint32_t p = 2; p < SMALL && !is(n, 1); p += 1 + (p > 2))
        while (!rest_small(n, p)) {
            f->all[f->count++] = from(p);
            replace(&n, divide_small(n, p, &rest));
        }
    bool good = (n->size == 1 && n->limb[0] < SMALL) ? is(n, 1) : split(f, n);
    drop(n);
    return good;
}

static int by_size(const void *a, const void *b) {
    return compare(*(num *const *)a, *(num *const *)b);
}

int main(int argc, char **argv) {
    static struct factors f;
    num *n = argc == 2 ? parse(argv[1]) : NULL;
    if (!n || n->size == 0) {
        fprintf(stderr, "usage: cfrac NUMBER    positive, with at most 200 digits\n");
        return 2;
    }
    if (!factor(&f, n)) {
        fprintf(stderr, "cfrac: no divisor found\n");
        return 1;
    }
    qsort(f.all, f.count, sizeof f.all[0], by_size);
    num *product = from(1);
    print(n);
    fputs(" =", stdout);
    if (!f.count)
        fputs(" 1", stdout);
    for (uint32_t i = 0; i < f.count; i++) {
        fputs(i ? " * " : " ", stdout);
        print(f.all[i]);
        replace(&product, multiply(product, f.all[i]));
        drop(f.all[i]);
    }
    putchar('\n');
    bool good = compare(product, n) == 0;
    drop(product);
    drop(n);
    if (!good)
        fprintf(stderr, "cfrac: the product of the factors is another number\n");
    return good ? 0 : 1;
}
