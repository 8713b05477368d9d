// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Natural numbers of any size, for cfrac. Each is an immutable heap object of exactly its size,
// with a count of references. Functions borrow their arguments and return a new reference.
#ifndef BIGNUM_H
#define BIGNUM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct num {
    uint32_t references;
    uint32_t size;   // limbs in use. The highest limb is not 0; the number zero has none.
    uint32_t limb[]; // least significant first
} num;

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "cfrac: out of memory\n");
        exit(1);
    }
    return p;
}

static num *num_new(uint32_t size) {
    num *n = must(malloc(sizeof *n + size * sizeof n->limb[0]));
    n->references = 1;
    n->size = size;
    return n;
}

static num *hold(num *n) {
    n->references++;
    return n;
}

static void drop(num *n) {
    if (n && --n->references == 0)
        free(n);
}

static void replace(num **place, num *value) {
    drop(*place);
    *place = value;
}

static num *trimmed(num *n) {
    while (n->size && !n->limb[n->size - 1])
        n->size--;
    return n;
}

static num *from(uint64_t value) {
    num *n = num_new(2);
    n->limb[0] = (uint32_t)value;
    n->limb[1] = (uint32_t)(value >> 32);
    return trimmed(n);
}

static bool is(const num *n, uint32_t value) {
    return n->size == (value != 0) && (!value || n->limb[0] == value);
}

static int compare(const num *a, const num *b) {
    if (a->size != b->size)
        return a->size > b->size ? 1 : -1;
    for (uint32_t i = a->size; i-- > 0;)
        if (a->limb[i] != b->limb[i])
            return a->limb[i] > b->limb[i] ? 1 : -1;
    return 0;
}

static num *add(const num *a, const num *b) {
    if (a->size < b->size)
        return add(b, a);
    num *sum = num_new(a->size + 1);
    uint64_t carry = 0;
    for (uint32_t i = 0; i < a->size; i++) {
        carry += (uint64_t)a->limb[i] + (i < b->size ? b->limb[i] : 0);
        sum->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    sum->limb[a->size] = (uint32_t)carry;
    return trimmed(sum);
}

// a - b; a is not less than b.
static num *subtract(const num *a, const num *b) {
    num *difference = num_new(a->size);
    int64_t borrow = 0;
    for (uint32_t i = 0; i < a->size; i++) {
        borrow += (int64_t)a->limb[i] - (i < b->size ? b->limb[i] : 0);
        difference->limb[i] = (uint32_t)borrow;
        borrow >>= 32;
    }
    return trimmed(difference);
}

static num *multiply(const num *a, const num *b) {
    num *product = num_new(a->size + b->size);
    memset(product->limb, 0, product->size * sizeof product->limb[0]);
    for (uint32_t i = 0; i < a->size; i++) {
        uint64_t carry = 0;
        for (uint32_t j = 0; j < b->size; j++) {
            carry += (uint64_t)a->limb[i] * b->limb[j] + product->limb[i + j];
            product->limb[i + j] = (uint32_t)carry;
            carry >>= 32;
        }
        product->limb[i + b->size] = (uint32_t)carry;
    }
    return trimmed(product);
}

static num *divide_small(const num *a, uint32_t b, uint32_t *rest) {
    num *quotient = num_new(a->size);
    uint64_t r = 0;
    for (uint32_t i = a->size; i-- > 0;) {
        r = r << 32 | a->limb[i];
        quotient->limb[i] = (uint32_t)(r / b);
        r %= b;
    }
    *rest = (uint32_t)r;
    return trimmed(quotient);
}

static uint32_t rest_small(const num *a, uint32_t b) {
    uint64_t r = 0;
    for (uint32_t i = a->size; i-- > 0;)
        r = (r << 32 | a->limb[i]) % b;
    return (uint32_t)r;
}

static num *shifted_left(const num *a, uint32_t bits) { // with one limb more, not trimmed
    num *n = num_new(a->size + 1);
    uint64_t carry = 0;
    for (uint32_t i = 0; i < a->size; i++) {
        carry |= (uint64_t)a->limb[i] << bits;
        n->limb[i] = (uint32_t)carry;
        carry >>= 32;
    }
    n->limb[a->size] = (uint32_t)carry;
    return n;
}

static void shift_right(num *a, uint32_t bits) {
    for (uint32_t i = 0; i < a->size; i++) {
        uint64_t two = a->limb[i] | (i + 1 < a->size ? (uint64_t)a->limb[i + 1] << 32 : 0);
        a->limb[i] = (uint32_t)(two >> bits);
    }
    trimmed(a);
}

// One step of Knuth's algorithm D: returns the quotient digit of u[0 .. n] by v[0 .. n-1], and
// subtracts that multiple of v from u.
static uint32_t divide_step(uint32_t *u, const uint32_t *v, uint32_t n) {
    uint64_t top = (uint64_t)u[n] << 32 | u[n - 1], digit = top / v[n - 1], rest = top % v[n - 1];
    while (digit >> 32 || digit * v[n - 2] > (rest << 32 | u[n - 2])) {
        digit--;
        rest += v[n - 1];
        if (rest >> 32)
            break;
    }
    uint64_t carry = 0;
    int64_t borrow = 0;
    for (uint32_t i = 0; i < n; i++) {
        carry += digit * v[i];
        borrow += (int64_t)u[i] - (uint32_t)carry;
        u[i] = (uint32_t)borrow;
        carry >>= 32;
        borrow >>= 32;
    }
    borrow += (int64_t)u[n] - (int64_t)carry;
    u[n] = (uint32_t)borrow;
    if (borrow < 0) { // the digit was one too large, which is rare
        digit--;
        carry = 0;
        for (uint32_t i = 0; i < n; i++) {
            carry += (uint64_t)u[i] + v[i];
            u[i] = (uint32_t)carry;
            carry >>= 32;
        }
        u[n] += (uint32_t)carry;
    }
    return (uint32_t)digit;
}

// Returns the quotient. *rest, unless NULL, gets the remainder.
static num *divide(const num *a, const num *b, num **rest) {
    if (b->size == 1) {
        uint32_t r;
        num *quotient = divide_small(a, b->limb[0], &r);
        if (rest)
            *rest = from(r);
        return quotient;
    }
    if (compare(a, b) < 0) {
        if (rest)
            *rest = add(a, &(num){.size = 0});
        return from(0);
    }
    uint32_t bits = (uint32_t)__builtin_clz(b->limb[b->size - 1]), n = b->size;
    num *u = shifted_left(a, bits), *v = shifted_left(b, bits),
        *quotient = num_new(a->size - n + 1);
    for (uint32_t j = quotient->size; j-- > 0;)
        quotient->limb[j] = divide_step(u->limb + j, v->limb, n);
    drop(v);
    if (rest) {
        u->size = n;
        shift_right(u, bits);
        *rest = hold(u);
    }
    drop(u);
    return trimmed(quotient);
}

static num *modulo(const num *a, const num *b) {
    num *rest;
    drop(divide(a, b, &rest));
    return rest;
}

static num *multiply_modulo(const num *a, const num *b, const num *n) {
    num *product = multiply(a, b), *rest = modulo(product, n);
    drop(product);
    return rest;
}

static num *power_modulo(num *base, const num *exponent, const num *n) {
    num *result = from(1);
    for (uint32_t i = exponent->size * 32; i-- > 0;) {
        replace(&result, multiply_modulo(result, result, n));
        if (exponent->limb[i / 32] >> i % 32 & 1)
            replace(&result, multiply_modulo(result, base, n));
    }
    return result;
}

static num *greatest_common_divisor(num *a, num *b) {
    a = hold(a);
    b = hold(b);
    while (b->size) {
        num *rest = modulo(a, b);
        drop(a);
        a = b;
        b = rest;
    }
    drop(b);
    return a;
}

// The integer part of the square root, by Newton's method from above.
static num *square_root(const num *n) {
    num *x = num_new(n->size / 2 + 1);
    memset(x->limb, 0, x->size * sizeof x->limb[0]);
    x->limb[x->size - 1] = UINT32_MAX;
    for (;;) {
        uint32_t r;
        num *quotient = divide(n, x, NULL), *sum = add(x, quotient),
            *next = divide_small(sum, 2, &r);
        drop(quotient);
        drop(sum);
        if (compare(next, x) >= 0) {
            drop(next);
            return x;
        }
        replace(&x, next);
    }
}

static double logarithm(const num *n) {
    double value = 0;
    for (uint32_t i = n->size; i-- > 0;)
        value = value * 0x1p32 + n->limb[i];
    return log(value);
}

static num *parse(const char *text) {
    num *n = from(0);
    if (!*text || strlen(text) > 200) {
        drop(n);
        return NULL;
    }
    for (; *text; text++) {
        if (*text < '0' || *text > '9') {
            drop(n);
            return NULL;
        }
        num *digit = from((uint64_t)(*text - '0')), *ten = from(10);
        replace(&n, multiply(n, ten));
        replace(&n, add(n, digit));
        drop(digit);
        drop(ten);
    }
    return n;
}

static void print(num *n) {
    char digits[2048], *p = digits + sizeof digits;
    uint32_t r;
    n = hold(n);
    *--p = 0;
    do {
        replace(&n, divide_small(n, 10, &r));
        *--p = (char)('0' + r);
    } while (n->size);
    drop(n);
    fputs(p, stdout);
}

#endif
