// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// malloc(3) and its relatives as an ordinary program sees them. `contract NAME` runs one check,
// `contract` lists them.
#include "contract.h"

#include <stdbool.h>

void *(*volatile my_malloc)(size_t) = malloc;
void *(*volatile my_calloc)(size_t, size_t) = calloc;
void *(*volatile my_realloc)(void *, size_t) = realloc;
void *(*volatile my_reallocarray)(void *, size_t, size_t) = reallocarray;
void *(*volatile my_aligned_alloc)(size_t, size_t) = aligned_alloc;
void *(*volatile my_memalign)(size_t, size_t) = memalign;
static void *(*volatile my_valloc)(size_t) = valloc;
static void *(*volatile my_pvalloc)(size_t) = pvalloc;
void (*volatile my_free)(void *) = free;

// clang-format off
const size_t sizes[SIZES] = {
    0, 1, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257,
    1000, 1024, 1025, 4000, 4095, 4096, 4097, 8191, 8192, 8193, 12289, 14336, 14337, 16383,
    16384, 16385, 20000, 32768, 65535, 65536, 65537, 99999, 262144, 1 << 20, (2 << 20) - 1, 2 <<
    20, (2 << 20) + 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9 << 20
};
// clang-format on

static uint64_t random_state = 42;
static uint64_t random_next(void) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int all_are(const void *p, unsigned char value, size_t length) {
    const unsigned char *c = p;
    for (size_t i = 0; i < length; i++)
        if (c[i] != value)
            return 0;
    return 1;
}

// ---- malloc, free, usable size ------------------------------------------------------------------

static void malloc_zero(void) {
    enum { N = 1000 };
    static void *p[N];
    for (int i = 0; i < N; i++) {
        p[i] = my_malloc(0);
        CHECK(p[i] != NULL);
        for (int k = i - 20 > 0 ? i - 20 : 0; k < i; k++)
            CHECK(p[k] != p[i]);
    }
    for (int i = 0; i < N; i++)
        my_free(p[i]);
    void *c = my_calloc(0, 8), *d = my_calloc(8, 0);
    CHECK(c && d && c != d);
    my_free(c);
    my_free(d);
    my_free(NULL);
}

// Every byte that malloc_usable_size() promises can be written, and no block overlaps another.
static void usable_size(void) {
    unsigned char *p[SIZES];
    CHECK(malloc_usable_size(NULL) == 0);
    for (int i = 0; i < SIZES; i++) {
        p[i] = my_malloc(sizes[i]);
        CHECK(p[i] && (uintptr_t)p[i] % 16 == 0);
        CHECK(malloc_usable_size(p[i]) >= sizes[i]);
        memset(p[i], i, malloc_usable_size(p[i]));
    }
    for (int i = 0; i < SIZES; i++)
        CHECK(all_are(p[i], (unsigned char)i, malloc_usable_size(p[i])));
    for (int i = 0; i < SIZES; i++)
        my_free(p[i]);
}

static void free_keeps_errno(void) {
    for (int i = 0; i < SIZES; i++) {
        void *p = my_malloc(sizes[i]);
        CHECK(p);
        errno = 4321;
        my_free(p);
        CHECK(errno == 4321);
    }
    // The program must not notice either when whole slabs and extents go back to the file system.
    enum { N = 4096 };
    static void *p[N];
    for (int i = 0; i < N; i++)
        CHECK((p[i] = my_malloc(4096)));
    errno = 4321;
    for (int i = 0; i < N; i++)
        my_free(p[i]);
    my_free(NULL);
    CHECK(errno == 4321);
    void *q = my_malloc(100);
    CHECK(q && errno == 4321); // success keeps errno, too
    my_free(q);
}

static void huge_sizes(void) {
    static const size_t huge[] = {
        SIZE_MAX,         SIZE_MAX - 1,     SIZE_MAX - 15,       SIZE_MAX - 4095,
        SIZE_MAX - 65535, SIZE_MAX / 2 + 1, (size_t)PTRDIFF_MAX, (size_t)PTRDIFF_MAX - 4096,
        (size_t)1 << 48,  (size_t)1 << 41};
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
        char *kept = my_malloc(100);
        CHECK(kept);
        strcpy(kept, "kept");
        errno = 0;
        CHECK(my_malloc(huge[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(my_calloc(1, huge[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(my_realloc(kept, huge[i]) == NULL && errno == ENOMEM && !strcmp(kept, "kept"));
        errno = 0;
        CHECK(my_reallocarray(kept, huge[i], 1) == NULL && errno == ENOMEM &&
              !strcmp(kept, "kept"));
        errno = 0;
        CHECK(my_aligned_alloc(64, huge[i] & -64ul) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(my_memalign(1 << 20, huge[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(my_valloc(huge[i]) == NULL && errno == ENOMEM);
        errno = 0;
        CHECK(my_pvalloc(huge[i]) == NULL && errno == ENOMEM);
        my_free(kept);
    }
}

// ---- calloc, realloc ----------------------------------------------------------------------------

static void calloc_overflow(void) {
    static const size_t pair[][2] = {{SIZE_MAX, 2},         {2, SIZE_MAX},
                                     {SIZE_MAX / 2 + 1, 2}, {(size_t)1 << 32, (size_t)1 << 32},
                                     {SIZE_MAX, SIZE_MAX},  {SIZE_MAX / 16 + 1, 16}};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        errno = 0;
        CHECK(my_calloc(pair[i][0], pair[i][1]) == NULL && errno == ENOMEM);
        char *p = my_malloc(10);
        CHECK(p);
        strcpy(p, "same");
        errno = 0;
        CHECK(my_reallocarray(p, pair[i][0], pair[i][1]) == NULL && errno == ENOMEM);
        CHECK(!strcmp(p, "same"));
        my_free(p);
    }
}

static void calloc_zeroes(void) {
    for (int i = 0; i < SIZES; i++) {
        enum { N = 8 };
        unsigned char *p[N];
        for (int round = 0; round < 3; round++) {
            for (int k = 0; k < N; k++) {
                p[k] = my_calloc(1, sizes[i]);
                CHECK(p[k] && all_are(p[k], 0, sizes[i]));
                memset(p[k], 0xff, malloc_usable_size(p[k]));
            }
            for (int k = 0; k < N; k++)
                my_free(p[k]);
        }
    }
}

static void realloc_contents(void) {
    for (int from = 0; from < SIZES; from++)
        for (int to = 0; to < SIZES; to++) {
            size_t old = sizes[from], new = sizes[to] ? sizes[to] : 1;
            unsigned char *p = my_malloc(old);
            CHECK(p);
            memset(p, from + 1, old);
            p = my_realloc(p, new);
            CHECK(p && (uintptr_t)p % 16 == 0 && malloc_usable_size(p) >= new);
            CHECK(all_are(p, (unsigned char)(from + 1), old < new ? old : new));
            memset(p, 0x77, new);
            my_free(p);
        }
}

static void realloc_special(void) {
    void *p = my_realloc(NULL, 100);
    CHECK(p);
    CHECK(my_realloc(p, 0) == NULL); // as glibc does: the block is freed
    void *q = my_realloc(NULL, 0);
    CHECK(q);
    my_free(q);
    p = my_malloc(1000);
    CHECK(p && my_realloc(p, 1000) == p && my_realloc(p, 990) == p);
    CHECK(my_realloc(p, malloc_usable_size(p)) == p); // in place while it fits
    p = my_realloc(p, 10);
    CHECK(p);
    my_free(p);
    p = my_reallocarray(NULL, 10, 10);
    CHECK(p && malloc_usable_size(p) >= 100);
    my_free(p);
}

// C23's names, which only newer libcs have. A freed block is the next one of its size.
static void sized_frees(void) {
    void (*sized)(void *, size_t), (*aligned)(void *, size_t, size_t);
    *(void **)&sized = dlsym(RTLD_DEFAULT, "free_sized");
    *(void **)&aligned = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    if (!sized || !aligned)
        return; // libc's own; PMAlloc's names are all checked by their list
    void *p = my_malloc(100), *q;
    sized(p, 100);
    sized(NULL, 100);
    CHECK((q = my_malloc(100)) == p);
    aligned(q, 16, 100);
    aligned(NULL, 16, 100);
    CHECK((q = my_malloc(100)) == p);
    my_free(q);
}

// A large block grows in place while the pages after it are free. It shrinks in place.
static void realloc_in_place(void) {
    char *p = my_malloc(1 << 20);
    CHECK(p);
    memset(p, 1, 1 << 20);
    CHECK(my_realloc(p, 900 << 10) == p);
    CHECK(my_realloc(p, 1 << 20) == p);
    CHECK(all_are(p, 1, 900 << 10));
    CHECK(my_realloc(p, 64 << 10) == p);
    my_free(p);
    p = my_malloc(20 << 20);
    CHECK(p);
    CHECK(my_realloc(p, 5 << 20) == p);
    my_free(p);
}

// ---- alignment ----------------------------------------------------------------------------------

static void alignment(void) {
    for (size_t align = 1; align <= (size_t)64 << 20; align *= 2)
        for (int i = 0; i<SIZES; i += align> 1 << 20 ? 5 : 1) {
            char *p = my_memalign(align, sizes[i]), *q = my_aligned_alloc(align, sizes[i]);
            CHECK(p && (uintptr_t)p % align == 0 && malloc_usable_size(p) >= sizes[i]);
            CHECK(q && (uintptr_t)q % align == 0 && malloc_usable_size(q) >= sizes[i]);
            CHECK(p != q);
            memset(p, 1, sizes[i]);
            memset(q, 2, sizes[i]);
            CHECK(all_are(p, 1, sizes[i]) && all_are(q, 2, sizes[i]));
            my_free(q);
            p = my_realloc(p, sizes[i] + 1);
            CHECK(p && all_are(p, 1, sizes[i]));
            my_free(p);
        }
}

static void posix_memalign_all(void) {
    for (size_t align = sizeof(void *); align <= (size_t)64 << 20; align *= 2)
        for (int i = 0; i<SIZES; i += align> 1 << 20 ? 5 : 1) {
            void *p = NULL;
            errno = 4321;
            CHECK(posix_memalign(&p, align, sizes[i]) == 0 && errno == 4321);
            CHECK(p && (uintptr_t)p % align == 0);
            memset(p, 3, sizes[i]);
            my_free(p);
        }
}

// GCC takes it for granted that posix_memalign() leaves errno alone.
__attribute__((noinline)) static int error_now(void) {
    __asm__ volatile("" ::: "memory");
    return errno;
}

static void posix_memalign_fails(void) {
    static const size_t bad[] = {0, 1, 2, 3, 4, 7, 9, 12, 24, 48, 100, SIZE_MAX, SIZE_MAX / 2};
    void *untouched = &random_state;
    errno = 4321;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(posix_memalign(&untouched, bad[i], 10) == EINVAL && untouched == &random_state);
    CHECK(errno == 4321);
    CHECK(posix_memalign(&untouched, 64, SIZE_MAX) == ENOMEM && untouched == &random_state);
    CHECK(error_now() == ENOMEM);
    CHECK(posix_memalign(&untouched, 64, (size_t)PTRDIFF_MAX + 1) == ENOMEM);
    CHECK(posix_memalign(&untouched, (size_t)1 << 62, 10) == ENOMEM && untouched == &random_state);
}

static void odd_alignment(void) {
    static const size_t odd[] = {0, 3, 5, 24, 48, 100, 5000};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        errno = 0;
        void *p = my_memalign(odd[i], 100); // rounded up, as glibc does
        CHECK(p);
        if (odd[i]) {
            size_t power = 1;
            while (power < odd[i])
                power *= 2;
            CHECK((uintptr_t)p % power == 0);
        }
        my_free(p);
    }
    errno = 0;
    CHECK(my_aligned_alloc(48, 96) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(my_aligned_alloc((size_t)1 << 62, 64) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(my_memalign(SIZE_MAX, 64) == NULL && (errno == EINVAL || errno == ENOMEM));
}

static void page_alignment(void) {
    for (int i = 0; i < SIZES; i++) {
        char *p = my_valloc(sizes[i]), *q = my_pvalloc(sizes[i]);
        CHECK(p && (uintptr_t)p % 4096 == 0 && q && (uintptr_t)q % 4096 == 0);
        CHECK(malloc_usable_size(q) >= 4096);
        CHECK(malloc_usable_size(q) >= ((sizes[i] + 4095) & -4096ul));
        memset(p, 1, sizes[i]);
        memset(q, 2, malloc_usable_size(q));
        CHECK(all_are(p, 1, sizes[i]));
        my_free(p);
        my_free(q);
    }
}

// ---- introspection ------------------------------------------------------------------------------

static void introspection(void) {
    enum { N = 100 };
    void *p[N];
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < N; i++)
        CHECK((p[i] = my_malloc(1000)));
    void *large = my_malloc(1 << 20);
    CHECK(large);
    struct mallinfo2 after = mallinfo2();
    CHECK(after.uordblks >= before.uordblks + N * 1000);
    CHECK(after.hblkhd + after.uordblks >= before.hblkhd + before.uordblks + N * 1000 + (1 << 20));
    CHECK(after.arena == after.uordblks + after.fordblks);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    struct mallinfo small = mallinfo();
    CHECK((size_t)small.arena == mallinfo2().arena);
#pragma GCC diagnostic pop
    for (int i = 0; i < N; i++)
        my_free(p[i]);
    my_free(large);
    CHECK(mallinfo2().hblks == before.hblks);
    CHECK(mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    malloc_trim(0);
    CHECK(mallinfo2().hblks == before.hblks);
    malloc_stats();
}

static void info_xml(void) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    CHECK(out);
    CHECK(malloc_info(0, out) == 0);
    fclose(out);
    CHECK(length > 20 && strstr(text, "<malloc version=") == text && strstr(text, "</malloc>"));
    free(text);
    CHECK(malloc_info(1, stdout) != 0);
}

static bool gives_back(void) {
    enum { N = 64 };
    void *p[N];
    for (int i = 0; i < N; i++) {
        CHECK((p[i] = my_malloc(1 << 20)));
        memset(p[i], 1, 1 << 20);
    }
    for (int i = 0; i < N; i++)
        my_free(p[i]);
    return mallinfo2().keepcost == 0 || malloc_trim(0) == 1; // 0: everything has decayed already
}

// On a slow machine all may decay between the two questions.
static void trim_gives_back(void) {
    int i = 0;
    while (!gives_back() && i < 20)
        i++;
    CHECK(i < 20);
    CHECK(mallinfo2().keepcost == 0);
    CHECK(malloc_trim(0) == 0); // nothing is left to give back
}

// ---- many of everything -------------------------------------------------------------------------

struct slot {
    unsigned char *p;
    size_t size;
    unsigned char value;
};
enum { SLOTS = 512 };

static size_t random_size(void) {
    uint64_t r = random_next();
    return r % 64 ? (r >> 8) % 3000 : r % 128 ? (r >> 8) % 200000 : (r >> 8) % 5000000;
}

// Random calls, checked against a model of each block. The seed is fixed, so a failure repeats.
static void random_calls(void) {
    static struct slot slot[SLOTS];
    for (int step = 0; step < 60000; step++) {
        struct slot *s = &slot[random_next() % SLOTS];
        CHECK(!s->p || (s->p[0] == s->value && s->p[s->size - 1] == s->value));
        size_t size = random_size() + 1, kept;
        switch (random_next() % 8) {
        case 0:
        case 1:
            kept = s->p && s->size < size ? s->size : s->p ? size : 0;
            s->p = my_realloc(s->p, size);
            CHECK(s->p && all_are(s->p, s->value, kept));
            break;
        case 2:
            my_free(s->p);
            s->p = my_calloc(1, size);
            CHECK(s->p && all_are(s->p, 0, size));
            break;
        case 3: {
            size_t align = (size_t)16 << random_next() % 14;
            my_free(s->p);
            s->p = my_memalign(align, size);
            CHECK(s->p && (uintptr_t)s->p % align == 0);
            break;
        }
        default:
            CHECK(!s->p || all_are(s->p, s->value, s->size));
            my_free(s->p);
            s->p = my_malloc(size);
            CHECK(s->p);
        }
        s->size = size;
        s->value = (unsigned char)random_next();
        memset(s->p, s->value, size);
    }
    for (int i = 0; i < SLOTS; i++)
        my_free(slot[i].p);
}

// ---- the checks by their names ------------------------------------------------------------------

static const struct {
    const char *name;
    void (*run)(void);
} checks[] = {
#define ENTRY(f)                                                                                   \
    { #f, f }
    ENTRY(malloc_zero),          ENTRY(usable_size),       ENTRY(free_keeps_errno),
    ENTRY(huge_sizes),           ENTRY(calloc_overflow),   ENTRY(calloc_zeroes),
    ENTRY(sized_frees),          ENTRY(realloc_contents),  ENTRY(realloc_special),
    ENTRY(realloc_in_place),     ENTRY(alignment),         ENTRY(posix_memalign_all),
    ENTRY(posix_memalign_fails), ENTRY(odd_alignment),     ENTRY(page_alignment),
    ENTRY(introspection),        ENTRY(info_xml),          ENTRY(trim_gives_back),
    ENTRY(random_calls),         ENTRY(threads),           ENTRY(tls_destructors),
    ENTRY(many_threads),         ENTRY(double_free_small), ENTRY(double_free_large),
    ENTRY(double_free_huge),     ENTRY(interior_small),    ENTRY(interior_large),
    ENTRY(interior_huge),        ENTRY(misaligned_small),  ENTRY(misaligned_large),
    ENTRY(realloc_freed),        ENTRY(usable_freed),      ENTRY(never_allocated),
    ENTRY(foreign_stack),        ENTRY(foreign_mapping),
};

int main(int argc, char **argv) {
    const char *many = getenv("many"); // requests before the check
    for (int i = many ? atoi(many) : 0; i > 0; i--)
        free(malloc(1));
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (argc < 2)
            puts(checks[i].name);
        else if (!strcmp(argv[1], checks[i].name)) {
            checks[i].run();
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
