// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "event_text.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOG_USER_BITS (1 << 3) // a program's facility, as of syslog(3)
#define HEAP_ROOM 400          // of a line, for the heap and the end

struct line {
    char *text;
    size_t length, room;
};

static const char level_name[][9] = {
    [PM_LEVEL_CRITICAL] = "critical", [PM_LEVEL_ERROR] = "error", [PM_LEVEL_WARNING] = "warning",
    [PM_LEVEL_NOTICE] = "notice",     [PM_LEVEL_INFO] = "info",   [PM_LEVEL_REPORT] = "info",
};

static int priority_of(enum pm_event event) {
    int level = pm_event_info[event].level;
    return level == PM_LEVEL_REPORT ? PM_LEVEL_INFO : level;
}

static bool add_bytes(struct line *l, const char *bytes, size_t n) {
    if (n > l->room - l->length)
        return false;
    memcpy(l->text + l->length, bytes, n);
    l->length += n;
    return true;
}

static bool add(struct line *l, const char *text) { return add_bytes(l, text, strlen(text)); }

static void add_number(struct line *l, uint64_t number, unsigned digits) {
    char text[24];
    add_bytes(l, text, (size_t)snprintf(text, sizeof text, "%0*lu", (int)digits, number));
}

// ---- the time -----------------------------------------------------------------------------------

// Years that begin in March have their odd day at the end. 400 of them always have as many days.
#define DAYS_400 146097
#define DAYS_100 36524
#define DAYS_4 1461
#define BEFORE_1970 719468 // days from the first of March of the year 0

static void add_date(struct line *l, int64_t days) {
    days += BEFORE_1970;
    int64_t era = days / DAYS_400, day = days % DAYS_400;
    int64_t year = (day - day / (DAYS_4 - 1) + day / DAYS_100 - day / (DAYS_400 - 1)) / 365;
    int64_t of_year = day - (365 * year + year / 4 - year / 100);
    int64_t month = (5 * of_year + 2) / 153, of_month = of_year - (153 * month + 2) / 5 + 1;
    month += month < 10 ? 3 : -9;
    add_number(l, (uint64_t)(era * 400 + year + (month <= 2)), 4);
    add(l, "-");
    add_number(l, (uint64_t)month, 2);
    add(l, "-");
    add_number(l, (uint64_t)of_month, 2);
}

static void add_now(struct line *l) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t seconds = now.tv_sec > 0 ? now.tv_sec : 0, day = 24 * 60 * 60;
    add_date(l, seconds / day);
    add(l, "T");
    add_number(l, (uint64_t)(seconds % day / 3600), 2);
    add(l, ":");
    add_number(l, (uint64_t)(seconds / 60 % 60), 2);
    add(l, ":");
    add_number(l, (uint64_t)(seconds % 60), 2);
    add(l, ".");
    add_number(l, (uint64_t)now.tv_nsec / 1000000, 3);
    add(l, "Z");
}

// ---- JSON ---------------------------------------------------------------------------------------

// The length of the character of UTF-8 there, as RFC 3629 has them; 0: it is none.
static size_t utf8(const unsigned char *c) {
    size_t n = c[0] < 0x80 ? 1 : c[0] < 0xc2 ? 0 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    if (c[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    bool wrong = (c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) ||
                 (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f);
    return wrong ? 0 : n;
}

// Bytes of a path that are no text become U+FFFD.
static void add_string(struct line *l, const char *text, size_t kept) {
    const unsigned char *at = (const unsigned char *)text;
    char escape[8];
    size_t room = l->room;
    l->room -= kept + 1;
    add(l, "\"");
    for (bool good = true; *at && good;) {
        size_t n = utf8(at);
        if (n == 1 && (*at < ' ' || *at == 127 || *at == '"' || *at == '\\')) {
            snprintf(escape, sizeof escape, *at < ' ' || *at == 127 ? "\\u%04x" : "\\%c", *at);
            good = add(l, escape);
        } else {
            good = n ? add_bytes(l, (const char *)at, n) : add(l, "\\ufffd");
        }
        at += n ? n : 1;
    }
    l->room = room;
    add(l, "\"");
}

static void add_json(struct line *l, const struct pm_event_said *said) {
    add(l, "{\"time\":\"");
    add_now(l);
    add(l, "\",\"pid\":");
    add_number(l, (uint64_t)getpid(), 1);
    add(l, ",\"event\":\"");
    add(l, pm_event_info[said->event].name);
    add(l, "\",\"level\":\"");
    add(l, level_name[pm_event_info[said->event].level]);
    add(l, "\",\"message\":");
    add_string(l, said->message, HEAP_ROOM);
    add(l, ",\"heap\":");
    add_string(l, said->heap, 4);
    add(l, "}");
}

// ---- the other forms ----------------------------------------------------------------------------

static void add_text(struct line *l, const struct pm_event_said *said) {
    add_now(l);
    add(l, " pmalloc[");
    add_number(l, (uint64_t)getpid(), 1);
    add(l, "] ");
    add(l, pm_event_info[said->event].name);
    add(l, ": ");
    add(l, said->message);
}

static void add_syslog(struct line *l, const struct pm_event_said *said, bool json) {
    add(l, "<");
    add_number(l, (uint64_t)(LOG_USER_BITS | priority_of(said->event)), 1);
    add(l, ">pmalloc[");
    add_number(l, (uint64_t)getpid(), 1);
    add(l, "]: ");
    if (json) {
        add_json(l, said);
    } else {
        add(l, pm_event_info[said->event].name);
        add(l, ": ");
        add(l, said->message);
    }
}

// NAME=VALUE in a line each. A value with the end of a line in it would need another form.
static void add_field(struct line *l, const char *name, const char *value) {
    add(l, name);
    size_t from = l->length, n = strlen(value), room = l->room - l->length - 1;
    add_bytes(l, value, n < room ? n : room);
    for (size_t i = from; i < l->length; i++)
        if ((unsigned char)l->text[i] < ' ')
            l->text[i] = '?';
    add(l, "\n");
}

static void add_journal(struct line *l, const struct pm_event_said *said) {
    char priority[] = {(char)('0' + priority_of(said->event)), '\0'};
    add_field(l, "PRIORITY=", priority);
    add_field(l, "SYSLOG_IDENTIFIER=", "pmalloc");
    add_field(l, "PMALLOC_EVENT=", pm_event_info[said->event].name);
    add_field(l, "MESSAGE=", said->message);
    if (said->heap[0])
        add_field(l, "PMALLOC_HEAP=", said->heap);
}

size_t pm_event_write(enum pm_event_form form, const struct pm_event_said *said,
                      char text[PM_EVENT_LINE]) {
    struct line l = {text, 0, PM_EVENT_LINE - 1};
    if (form == PM_EVENT_TEXT)
        add_text(&l, said);
    else if (form == PM_EVENT_JSON)
        add_json(&l, said);
    else if (form == PM_EVENT_JOURNAL)
        add_journal(&l, said);
    else
        add_syslog(&l, said, form == PM_EVENT_SYSLOG_JSON);
    l.room++;
    if (form == PM_EVENT_TEXT || form == PM_EVENT_JSON)
        add(&l, "\n");
    return l.length;
}
