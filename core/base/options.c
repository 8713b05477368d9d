// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "options.h"

#include <string.h>

#include "similar.h"

#define INFO(field, env, kind, dflt, allowed, text)                                                \
    {.name = (env),                                                                                \
     .fallback = (dflt),                                                                           \
     .values = (allowed),                                                                          \
     .help = (text),                                                                               \
     .type = (kind),                                                                               \
     .offset = offsetof(struct pm_options, field)},
const struct pm_option_info pm_option_table[] = {PM_OPTION_TABLE(INFO)};
const size_t pm_option_count = sizeof pm_option_table / sizeof pm_option_table[0];

struct pm_options pm_options;

// The digits at the start of `text`. Not strtoull(): each start parses all defaults, and in most
// small programs nothing else would touch that part of libc. NULL: there is none, or too much.
static const char *parse_digits(const char *text, uint64_t *out) {
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            return NULL;
    *out = value;
    return at == text ? NULL : at;
}

bool pm_parse_size(const char *text, uint64_t *out) {
    uint64_t value;
    const char *end = parse_digits(text, &value);
    if (!end)
        return false;
    static const char units[] = "KMGT";
    unsigned shift = 0;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
    }
    if (*end || (shift && value >> (64 - shift)))
        return false;
    *out = value << shift;
    return true;
}

// The bounds of a SIZE or NUMBER stand in its `values` text as "A to B".
static bool within(const struct pm_option_info *info, uint64_t value) {
    char low[24] = "";
    const char *sep = strstr(info->values, " to ");
    uint64_t min, max;
    memcpy(low, info->values, (size_t)(sep - info->values));
    return pm_parse_size(low, &min) && pm_parse_size(sep + 4, &max) && value >= min && value <= max;
}

static unsigned bit_of(const char *text, size_t len, const struct pm_option_word *words,
                       size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strlen(words[i].name) == len && memcmp(words[i].name, text, len) == 0)
            return words[i].bit;
    return 0;
}

bool pm_option_words(const char *text, const struct pm_option_word *words, size_t count,
                     unsigned *bits) {
    for (*bits = 0;;) {
        size_t len = strcspn(text, ",");
        unsigned bit = bit_of(text, len, words, count);
        *bits |= bit;
        if (!bit || !text[len])
            return bit;
        text += len + 1;
    }
}

static bool find_choice(const char *choices, const char *value, uint64_t *out) {
    size_t len = strlen(value);
    uint64_t index = 0;
    for (const char *at = choices;; index++) {
        const char *bar = strchrnul(at, '|');
        if (len && len == (size_t)(bar - at) && memcmp(at, value, len) == 0) {
            *out = index;
            return true;
        }
        if (!*bar)
            return false;
        at = bar + 1;
    }
}

static bool parse(const struct pm_option_info *info, const char *value, uint64_t *out) {
    const char *end;
    switch (info->type) {
    case PM_TYPE_CHOICE:
        return find_choice(info->values, value, out);
    case PM_TYPE_SIZE:
        return pm_parse_size(value, out) && within(info, *out);
    case PM_TYPE_NUMBER:
    case PM_TYPE_PERCENT:
        end = parse_digits(value, out);
        end += end && *end == '%' && info->type == PM_TYPE_PERCENT;
        return end && !*end && within(info, *out);
    case PM_TYPE_TEXT:
        break;
    }
    return false;
}

static const struct pm_option_info *find(const char *name, size_t len) {
    for (size_t i = 0; i < pm_option_count; i++)
        if (strlen(pm_option_table[i].name) == len && !memcmp(pm_option_table[i].name, name, len))
            return &pm_option_table[i];
    return NULL;
}

static int set(const struct pm_option_info *info, const char *value, struct pm_error *err) {
    char *field = (char *)&pm_options + info->offset;
    if (info->type == PM_TYPE_TEXT) {
        if (!*value && value != info->fallback)
            return pm_fail(err, PM_USAGE, "%s=: is set but empty; give it a value (%s) or unset it",
                           info->name, info->values);
        memcpy(field, &value, sizeof value);
        return PM_OK;
    }
    uint64_t number;
    if (!parse(info, value, &number))
        return pm_fail(err, PM_USAGE, "%s=%.200s: not a valid value; use %s (default %s)",
                       info->name, value, info->values, info->fallback);
    memcpy(field, &number, sizeof number);
    return PM_OK;
}

void pm_options_default(void) {
    struct pm_error ignored;
    for (size_t i = 0; i < pm_option_count; i++)
        set(&pm_option_table[i], pm_option_table[i].fallback, &ignored);
}

static const char *similar_to(const char *name) {
    static const char prefix[] = "PMALLOC_";
    for (size_t i = 0; i < pm_option_count; i++)
        if (strncmp(name, prefix, sizeof prefix - 1) == 0 &&
            pm_similar(name + sizeof prefix - 1, pm_option_table[i].name + sizeof prefix - 1))
            return pm_option_table[i].name;
    return NULL;
}

int pm_option_set(const char *name, const char *value, struct pm_error *err) {
    const struct pm_option_info *info = find(name, strlen(name));
    const char *similar = info ? NULL : similar_to(name);
    if (similar)
        return pm_fail(err, PM_USAGE, "%.100s=%.200s: no such setting; did you mean %s?", name,
                       value, similar);
    if (!info)
        return pm_fail(err, PM_USAGE,
                       "%.100s=%.200s: no such setting; `pmalloc-run --help` lists them", name,
                       value);
    return set(info, value, err);
}

#define NO_COMMITS "there are no commits; set PMALLOC_COMMIT, too"
#define NOT_COLLECTED "a heap that is opened private is never collected; unset one of the two"
#define NOT_WRITTEN "a heap that is opened private is not written; unset one of the two"
const struct pm_option_pair pm_option_pairs[] = {
    {"PMALLOC_COMMIT_DIR", NULL, "PMALLOC_COMMIT", "", NO_COMMITS},
    {"PMALLOC_COMMIT_PAGES", NULL, "PMALLOC_COMMIT", "", NO_COMMITS},
    {"PMALLOC_COMMIT_SEMAPHORES", "lock", "PMALLOC_COMMIT", "", NO_COMMITS},
    {"PMALLOC_COMMIT", NULL, "PMALLOC_OPEN", "private", NOT_WRITTEN},
    {"PMALLOC_COLLECT", "background", "PMALLOC_OPEN", "private", NOT_COLLECTED},
    {"PMALLOC_SPARE", NULL, "PMALLOC_OPEN", "private", NOT_WRITTEN},
    {"PMALLOC_FORK", "copy", "PMALLOC_OPEN", "private", NOT_WRITTEN},
    {"PMALLOC_FORK", "follow", "PMALLOC_OPEN", "private", NOT_WRITTEN},
};
const size_t pm_option_pair_count = sizeof pm_option_pairs / sizeof pm_option_pairs[0];

static uint64_t word_of(const struct pm_option_info *info) {
    uint64_t word;
    memcpy(&word, (char *)&pm_options + info->offset, sizeof word);
    return word;
}

// Whether the setting has this value; NULL: another one than the default, "": the default.
static bool has(const char *name, const char *value) {
    const struct pm_option_info *info = find(name, strlen(name));
    uint64_t word = word_of(info), number;
    if (value && *value)
        return parse(info, value, &number) && word == number;
    bool set = info->type == PM_TYPE_TEXT ? *(const char *)(uintptr_t)word != '\0'
                                          : parse(info, info->fallback, &number) && word != number;
    return set == (value == NULL);
}

// As it was set, for the message.
static const char *value_of(char *const *environ_list, const char *name) {
    size_t len = strlen(name);
    for (char *const *var = environ_list; var && *var; var++)
        if (strncmp(*var, name, len) == 0 && (*var)[len] == '=')
            return *var + len + 1;
    return "";
}

static int check_pairs(char *const *environ_list, struct pm_error *err) {
    for (size_t i = 0; i < pm_option_pair_count; i++) {
        const struct pm_option_pair *pair = &pm_option_pairs[i];
        if (!has(pair->name, pair->value) || !has(pair->other, pair->against))
            continue;
        const char *value = value_of(environ_list, pair->name);
        if (!*pair->against)
            return pm_fail(err, PM_USAGE, "%s=%.200s: %s", pair->name, value, pair->remedy);
        return pm_fail(err, PM_USAGE, "%s=%.200s: %s=%.100s: %s", pair->name, value, pair->other,
                       value_of(environ_list, pair->other), pair->remedy);
    }
    return PM_OK;
}

static bool is_no_setting(const char *variable, size_t len) {
    static const char none[][16] = {PM_OWNER_VARIABLE, PM_EVENT_VARIABLE, PM_MESSAGE_VARIABLE};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (len == strlen(none[i]) && memcmp(variable, none[i], len) == 0)
            return true;
    return false;
}

int pm_options_load(char *const *environ_list, struct pm_error *err) {
    pm_options_default();
    if (!environ_list)
        pm_options.backing.number = PM_BACKING_VOLATILE;
    for (char *const *var = environ_list; var && *var; var++) {
        const char *equals = strchrnul(*var, '=');
        if (strncmp(*var, "PMALLOC_", 8) != 0 || is_no_setting(*var, (size_t)(equals - *var)))
            continue;
        char name[128];
        size_t len = (size_t)(equals - *var);
        len = len < sizeof name ? len : sizeof name - 1;
        memcpy(name, *var, len);
        name[len] = '\0';
        int status = pm_option_set(name, *equals ? equals + 1 : equals, err);
        if (status != PM_OK)
            return status;
    }
    return check_pairs(environ_list, err);
}
