// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "cli_pages.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "preload/version.h"

enum { WIDTH = 79, HELP_COLUMN = 24 };

// ---- plain text ---------------------------------------------------------------------------------

// Prints `text`, broken into lines between two columns. The first line starts at column `at`.
static void wrapped(const char *text, int indent, int at) {
    for (; at < indent; at++)
        putchar(' ');
    for (bool first = true; *text; first = false) {
        int length = (int)strcspn(text, " ");
        if (!first && at + 1 + length > WIDTH) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (!first) {
            putchar(' ');
            at++;
        }
        printf("%.*s", length, text);
        at += length;
        text += length;
        text += *text == ' ';
    }
    putchar('\n');
}

// Prints a term, and its text beside it, or below it if the term is too long.
static void entry(const char *term, const char *text) {
    int at = printf("  %s", term);
    if (at > HELP_COLUMN - 2) {
        putchar('\n');
        at = 0;
    }
    wrapped(text, HELP_COLUMN, at);
}

static const char *option_term(const struct cli_option *o, char *term, size_t size) {
    char letter[8] = "";
    if (o->key < 256)
        snprintf(letter, sizeof letter, "-%c, ", o->key);
    if (!o->argument)
        snprintf(term, size, "%s--%s", letter, o->name);
    else if (*o->argument == '[')
        snprintf(term, size, "%s--%s[=%.*s]", letter, o->name, (int)strlen(o->argument) - 2,
                 o->argument + 1);
    else
        snprintf(term, size, "%s--%s %s", letter, o->name, o->argument);
    return term;
}

static void help_options(const struct cli_option *o) {
    char term[128];
    for (; o->name; o++)
        entry(option_term(o, term, sizeof term), o->help);
}

static const char *setting_text(const struct pm_option_info *o, char *text, size_t size) {
    if (*o->fallback)
        snprintf(text, size, "%s. Values: %s; default %s.", o->help, o->values, o->fallback);
    else
        snprintf(text, size, "%s. Value: %s.", o->help, o->values);
    return text;
}

static void help_settings(void) {
    char text[1024];
    printf("\nSettings (in the environment, or with -s):\n");
    for (size_t i = 0; i < pm_option_count; i++)
        entry(pm_option_table[i].name, setting_text(&pm_option_table[i], text, sizeof text));
}

void cli_help(const struct cli_tool *tool) {
    for (size_t i = 0; tool->synopsis[i]; i++) {
        int at = printf("%s %s ", i ? "      " : "usage:", tool->name);
        wrapped(tool->synopsis[i], at, at);
    }
    putchar('\n');
    wrapped(tool->summary, 0, 0);
    printf("\nOptions:\n");
    help_options(tool->options);
    help_options(cli_standard);
    if (tool->lists_settings)
        help_settings();
    printf("\nExit status:\n");
    for (const struct cli_status *s = tool->statuses; s->meaning; s++) {
        char number[16];
        snprintf(number, sizeof number, "%d", s->status);
        entry(number, s->meaning);
    }
}

// ---- roff ---------------------------------------------------------------------------------------

static void roff(const char *text) {
    for (const char *at = text; *at; at++) {
        if (at == text && (*at == '.' || *at == '\''))
            fputs("\\&", stdout);
        if (*at == '-' || *at == '\\')
            fputs(*at == '-' ? "\\-" : "\\e", stdout);
        else if (*at == '\'' || *at == '`' || *at == '^' || *at == '~')
            fputs(*at == '\''  ? "\\(aq"
                  : *at == '`' ? "\\(ga"
                  : *at == '^' ? "\\(ha"
                               : "\\(ti",
                  stdout);
        else
            putchar(*at);
    }
    putchar('\n');
}

static void roff_with(const char *macro, const char *text) {
    printf("%s ", macro);
    roff(text);
}

static void section(const char *title) { printf(".SH \"%s\"\n", title); }

static void paragraphs(const char *const *text) {
    for (; *text; text++) {
        puts(".PP");
        roff(*text);
    }
}

static void definition(const char *term, const char *text) {
    puts(".TP");
    roff_with(".B", term);
    roff(text);
}

static void man_head(const char *name, const char *number, const char *summary) {
    char upper[64] = "";
    for (size_t i = 0; name[i] && i < sizeof upper - 1; i++)
        upper[i] = (char)toupper((unsigned char)name[i]);
    printf(".TH %s %s \"\" \"PMAlloc %s\" \"PMAlloc Manual\"\n", upper, number, PM_VERSION);
    section("NAME");
    printf("%s \\- ", name);
    char text[256];
    snprintf(text, sizeof text, "%s", summary);
    text[0] = (char)tolower((unsigned char)text[0]);
    if (*text && text[strlen(text) - 1] == '.')
        text[strlen(text) - 1] = '\0';
    roff(text);
}

static void man_settings(void) {
    char text[1024];
    for (size_t i = 0; i < pm_option_count; i++)
        definition(pm_option_table[i].name, setting_text(&pm_option_table[i], text, sizeof text));
}

static void man_options(const struct cli_option *o) {
    char term[128];
    for (; o->name; o++)
        definition(option_term(o, term, sizeof term), o->help);
}

static void man_examples(const struct cli_example *e) {
    if (!e || !e->command)
        return;
    section("EXAMPLES");
    for (; e->command; e++)
        definition(e->command, e->what);
}

void cli_man(const struct cli_tool *tool) {
    man_head(tool->name, "1", tool->summary);
    section("SYNOPSIS");
    for (size_t i = 0; tool->synopsis[i]; i++) {
        printf("%s.B %s\n", i ? ".br\n" : "", tool->name);
        roff(tool->synopsis[i]);
    }
    section("DESCRIPTION");
    paragraphs(tool->description);
    section("OPTIONS");
    man_options(tool->options);
    man_options(cli_standard);
    if (tool->lists_settings) {
        section("SETTINGS");
        man_settings();
    }
    section("EXIT STATUS");
    for (const struct cli_status *s = tool->statuses; s->meaning; s++) {
        char number[16];
        snprintf(number, sizeof number, "%d", s->status);
        definition(number, s->meaning);
    }
    man_examples(tool->examples);
    section("SEE ALSO");
    roff(tool->see_also);
}

static const char *const library_description[] = {
    "Under libpmalloc_preload.so every malloc and free of an unmodified program is served from a "
    "heap on persistent memory: CXL memory, NVDIMMs, DAX mounts, tmpfs or plain files. After a "
    "crash a conservative parallel collector finds what the roots still reach and frees the rest. "
    "This happens before main, or offline by pmalloc-recover(1).",
    "Programs that cooperate link with libpmalloc and include pmalloc.h. `pkg-config --cflags "
    "--libs libpmalloc` prints the flags.",
    NULL,
};

static const char *const roots_description[] = {
    "PMALLOC_ROOTS names the memory from which the collector starts: SPEC[,SPEC...], or @FILE "
    "with one SPEC a line and # comments. The heap remembers its roots until pmalloc-recover "
    "--drop-root removes them.",
    NULL,
};

static const struct cli_example root_kinds[] = {
    {"[object:]symbol",
     "A global variable of the program, or of the named library. Its bytes are restored before "
     "main. The name is as nm prints it, or as C++ writes it: app::store, "
     "(anonymous namespace)::store, Class::function()::store for a static of a function."},
    {"[object:]*", "All writable data of the program or library. It is scanned, but not restored."},
    {"[object:]+OFFSET/LENGTH",
     "A range of bytes at a link-time address, for stripped programs. It is restored."},
    {"[object:]symbol+OFFSET/LENGTH",
     "Bytes of a variable, from an offset in it. They are restored. pmalloc-run makes this of a "
     "member, server.db or table[3].head, by the program's debug information."},
    {0},
};

void cli_man_settings(void) {
    man_head("libpmalloc", "7", "The heap of an unmodified program on persistent memory");
    section("SYNOPSIS");
    puts(".B LD_PRELOAD=libpmalloc_preload.so");
    roff("[PMALLOC_HEAP=DIR] [PMALLOC_ROOTS=SPEC[,SPEC...]] program [argument ...]");
    section("DESCRIPTION");
    paragraphs(library_description);
    section("ENVIRONMENT");
    puts(".PP");
    roff("A value that is not valid ends the program before main, with one line on standard error "
         "and exit status 125. So does a PMALLOC_ name that is not listed here. Sizes take the "
         "units K, M, G and T. Set-user-ID programs ignore all settings.");
    man_settings();
    section("ROOTS");
    paragraphs(roots_description);
    for (const struct cli_example *e = root_kinds; e->command; e++)
        definition(e->command, e->what);
    section("SEE ALSO");
    roff("pmalloc-run(1), pmalloc-recover(1), pmalloc-info(1), malloc(3)");
}
