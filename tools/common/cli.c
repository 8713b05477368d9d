// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/message.h"
#include "base/similar.h"
#include "cli_pages.h"
#include "preload/version.h"

enum { OPTIONS_MAX = 32 };

void cli_wrong(const struct cli_tool *tool, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pm_say("%s; `%s --help` explains", text, tool->name);
    exit(tool->usage_status);
}

unsigned long cli_number(const struct cli_tool *tool, const char *what, const char *value,
                         unsigned long low, unsigned long high) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(value, &end, 10);
    // strtoul() would accept blanks and signs, too
    if (errno || *end || *value < '0' || *value > '9' || number < low || number > high)
        cli_wrong(tool, "%s: '%s' is not a number from %lu to %lu", what, value, low, high);
    return number;
}

int cli_flush(int status, int failed) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    pm_say("cannot write to standard output: %s", pm_strerror(errno));
    return failed;
}

struct parser {
    struct option longs[OPTIONS_MAX + 1];
    char shorts[2 * OPTIONS_MAX + 3];
    size_t count, length;
};

static void add_options(struct parser *p, const struct cli_option *o) {
    for (; o->name && p->count < OPTIONS_MAX; o++) {
        int kind = !o->argument          ? no_argument
                   : *o->argument == '[' ? optional_argument
                                         : required_argument;
        p->longs[p->count++] = (struct option){o->name, kind, NULL, o->key};
        if (o->key > 255)
            continue;
        p->shorts[p->length++] = (char)o->key;
        if (kind == required_argument)
            p->shorts[p->length++] = ':';
    }
}

// Refuses a shortened name. getopt_long() accepts any beginning that fits one option only; a script
// that uses one would break when an option is added.
static void demand_full_name(const struct cli_tool *tool, const char *name, char **argv) {
    const char *word = argv[optind - 1];
    if (optarg == word) // the value is a word of its own
        word = argv[optind - 2];
    size_t length = strcspn(word + 2, "=");
    if (strlen(name) != length || memcmp(name, word + 2, length) != 0)
        cli_wrong(tool, "there is no option %.*s; --%s was meant?", (int)length + 2, word, name);
}

// The option that may be meant: -H for -h, --heap for --heep.
static bool look_alike(const struct cli_tool *tool, const char *name, int length, char *out,
                       size_t size) {
    char word[48];
    snprintf(word, sizeof word, "%.*s", length, name);
    for (const struct cli_option *o = tool->options; o->name; o++) {
        snprintf(out, size, "--%s", o->name);
        if (word[1] == '-' && pm_similar(word, out))
            return true;
        snprintf(out, size, "-%c", o->key < 128 ? (char)o->key : ' ');
        if (word[1] != '-' && strcasecmp(word, out) == 0)
            return true;
    }
    return false;
}

__attribute__((noreturn)) static void complain(const struct cli_tool *tool, int kind, char **argv) {
    const char *word = argv[optind - 1];
    bool is_long = word[0] == '-' && word[1] == '-';
    char letter[3] = {'-', (char)optopt, 0};
    const char *name = is_long || optopt == 0 || optopt > 255 ? word : letter;
    int length = (int)strcspn(name, "=");
    if (kind == ':')
        cli_wrong(tool, "%.*s needs a value", length, name);
    if (optopt != 0 && is_long)
        cli_wrong(tool, "%.*s takes no value", length, name);
    char meant[48];
    if (look_alike(tool, is_long ? name : letter, length, meant, sizeof meant))
        cli_wrong(tool, "there is no option %.*s (did you mean %s?)", length, name, meant);
    cli_wrong(tool, "there is no option %.*s", length, name);
}

const char *cli_version(void) { return PM_VERSION; }

static void serve(const struct cli_tool *tool, int key) {
    if (key == CLI_KEY_HELP)
        cli_help(tool);
    else if (key == CLI_KEY_MAN)
        cli_man(tool);
    else
        printf("%s (PMAlloc) %s\n", tool->name, cli_version());
    exit(cli_flush(0, tool->usage_status == 16 ? 8 : tool->usage_status));
}

int cli_parse(const struct cli_tool *tool, int argc, char **argv, cli_take *take, void *arg) {
    struct parser p = {0};
    if (tool->stops_at_operand)
        p.shorts[p.length++] = '+';
    p.shorts[p.length++] = ':';
    add_options(&p, tool->options);
    add_options(&p, cli_standard);
    opterr = 0;
    for (int key, index = -1; (key = getopt_long(argc, argv, p.shorts, p.longs, &index)) != -1;
         index = -1) {
        if (key == '?' || key == ':')
            complain(tool, key, argv);
        const char *name = index >= 0 ? p.longs[index].name : NULL;
        if (name)
            demand_full_name(tool, name, argv);
        if (key >= CLI_KEY_HELP)
            serve(tool, key);
        else
            take(key, optarg, arg);
    }
    return optind;
}
