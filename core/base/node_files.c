// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "node_files.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT 4608 // a page, which the kernel keeps to, and some
#define WORD (8 * sizeof(unsigned long))

const char *pm_node_folder;

bool pm_node_text(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

static bool read_in_folder(const char *name, char *text) {
    char path[320];
    snprintf(path, sizeof path, "%.255s%s",
             pm_node_folder ? pm_node_folder : "/sys/devices/system/node/", name);
    return pm_node_text(path, text, TEXT);
}

static bool read_of_node(unsigned id, const char *name, char *text) {
    char path[40];
    snprintf(path, sizeof path, "node%u/%s", id, name);
    return read_in_folder(path, text);
}

// Calls `each` for the numbers below `end` of a list of the kernel's, as "0-3,8".
static void each_of_list(const char *text, unsigned long end, void (*each)(unsigned, void *),
                         void *arg) {
    while (*text >= '0' && *text <= '9') {
        char *at;
        unsigned long first = strtoul(text, &at, 10), last = first;
        if (*at == '-')
            last = strtoul(at + 1, &at, 10);
        for (; first <= last && first < end; first++)
            each((unsigned)first, arg);
        text = *at == ',' ? at + 1 : at;
    }
}

static void add_node(unsigned id, void *arg) {
    struct pm_node_list *list = arg;
    if (list->count < PM_KERNEL_NODES)
        list->id[list->count++] = (uint16_t)id;
}

void pm_node_list(const char *name, struct pm_node_list *out) {
    char text[TEXT];
    out->count = 0;
    if (read_in_folder(name, text))
        each_of_list(text, PM_KERNEL_NODES, add_node, out);
}

static void add_core(unsigned core, void *arg) {
    struct pm_core_set *set = arg;
    set->bits[core / WORD] |= 1ul << core % WORD;
}

void pm_node_cores(unsigned id, struct pm_core_set *out) {
    char text[TEXT];
    if (read_of_node(id, "cpulist", text))
        each_of_list(text, PM_KERNEL_CORES, add_core, out);
}

// The file has a number for each node that is online, by rising number.
bool pm_node_distance(unsigned id, const struct pm_node_list *online,
                      const struct pm_node_list *list, uint8_t *row) {
    char text[TEXT], *at = text;
    unsigned found = 0;
    if (!read_of_node(id, "distance", text))
        return false;
    for (unsigned i = 0; i < online->count && found < list->count; i++) {
        char *end;
        unsigned long apart = strtoul(at, &end, 10);
        if (end == at)
            return false;
        at = end;
        if (online->id[i] == list->id[found])
            row[found++] = (uint8_t)(apart < 255 ? apart : 255);
    }
    return found == list->count;
}
