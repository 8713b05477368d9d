// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "to_node.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/nodes.h"
#include "figures.h"
#include "files_go.h"
#include "machine_nodes.h"
#include "media/backing/file.h"
#include "media/backing/fixed.h"
#include "media/backing/volume.h"
#include "media/open/shard_make.h"
#include "media/persist.h"

#define CHUNK 4096ul // pages that the kernel is asked about at a time

// An injected node is none of the kernel's: files have it on record, and no page moves.
static bool is_there(unsigned id) {
    struct machine_node node;
    if (!pm_nodes.injected)
        return machine_node_look(id, &node) && node.bytes;
    for (unsigned i = 0; i < pm_nodes.count; i++)
        if (pm_node_has(i, id))
            return true;
    return false;
}

int to_node_check(const struct to_node *t, struct pm_error *err) {
    unsigned id = t->id;
    int status = machine_nodes_find(err);
    if (status != PM_OK || !t->wanted)
        return status;
    if (!pm_nodes.injected && machine_nodes_end() == 0)
        return pm_fail(err, PM_OPERATIONAL,
                       "--to-node %u: the kernel does not tell of nodes here; it may be built "
                       "without NUMA, or a sandbox forbids get_mempolicy(2)",
                       id);
    if (!is_there(id))
        return pm_fail(err, PM_USAGE,
                       "--to-node %u: this machine has no such node with memory; `pmalloc-info "
                       "--nodes HEAP` lists the nodes",
                       id);
    return PM_OK;
}

// ---- what cannot go -----------------------------------------------------------------------------

static bool on_dax(void) {
    return pm_durability == PM_DURABLE_CACHE || pm_durability == PM_DURABLE_LINE;
}

static int first_device_node(void) {
    struct stat st;
    return fstat(pm_heap.dir_fd, &st) == 0 ? pm_node_of_device(st.st_dev) : -1;
}

int to_node_begin(const struct to_node *t, struct pm_error *err) {
    if (!t->wanted)
        return PM_OK;
    unsigned node = machine_node_group(t->id);
    if (pm_fixed_is_open() && on_dax())
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: what lies on a device stays there; to take the heap to another: "
                       "pmalloc-backup it, and `pmalloc-recover --make --from` the backup there",
                       pm_heap.dir);
    int first = first_device_node();
    if (on_dax() && first >= 0 && (unsigned)first != node)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: the heap's first directory is on DAX of another node, and pages of "
                       "a device stay there; recover the heap, and move the directory to a device "
                       "of node %u, with mv",
                       pm_heap.dir, t->id);
    pm_shards_go(node);
    return PM_OK;
}

// ---- pages --------------------------------------------------------------------------------------

struct mapped {
    char *at;
    size_t len;
    int fd; // of a file that was mapped here; or -1
};

// The heap's own mapping, if it has one: a page that a process has mapped twice does not move. A
// file that has gone to another directory is another one there.
static struct mapped map_of(const struct pm_heap_file *row) {
    struct pm_file *file = pm_heap_file(row);
    struct mapped m = {file->map, file->length ? *file->length : file->size, -1};
    struct stat st;
    if (file->length)
        return m;
    int fd = openat(pm_heap.dir_fd, row->held ? file->name : row->name,
                    O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool good = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size;
    m.len = good ? (size_t)st.st_size : 0;
    if (good && (!file->map || st.st_ino != file->ino || st.st_dev != file->dev)) {
        m.at = mmap(NULL, m.len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        m.fd = fd;
        return m;
    }
    if (fd >= 0)
        close(fd);
    return m;
}

// How many of the pages that are in memory lie on another node. They are mapped after that.
static void look(char *at, size_t pages, unsigned id, uint64_t *all, uint64_t *elsewhere) {
    unsigned char in_memory[CHUNK];
    if (mincore(at, pages << PM_PAGE_SHIFT, in_memory) != 0)
        return;
    for (size_t i = 0; i < pages; i++) {
        if (!(in_memory[i] & 1))
            continue;
        *all += PM_PAGE_SIZE;
        (void)*(volatile char *)(at + (i << PM_PAGE_SHIFT));
        int node = machine_page_node(at + (i << PM_PAGE_SHIFT));
        *elsewhere += node >= 0 && (unsigned)node != id ? PM_PAGE_SIZE : 0;
    }
}

static void look_at(const struct pm_file *file, const struct mapped *m, unsigned id, uint64_t *all,
                    uint64_t *elsewhere) {
    uint64_t pages = m->len >> PM_PAGE_SHIFT;
    const struct pm_file other = {.fd = m->fd};
    for (uint64_t page = 0; page < pages; page += CHUNK) {
        uint64_t data = pm_file_next_data(m->fd >= 0 ? &other : file, page << PM_PAGE_SHIFT);
        if (data >= m->len)
            return;
        page = data >> PM_PAGE_SHIFT;
        look(m->at + (page << PM_PAGE_SHIFT), pages - page < CHUNK ? pages - page : CHUNK, id, all,
             elsewhere);
    }
}

// Returns how many bytes of the file lie elsewhere still.
static uint64_t move_pages_of(const struct pm_heap_file *row, struct to_node *t) {
    struct mapped m = map_of(row);
    const struct pm_file *file = pm_heap_file(row);
    uint64_t before = 0, after = 0, ignored = 0;
    if (m.len && m.at && m.at != MAP_FAILED) {
        look_at(file, &m, t->id, &t->bytes, &before);
        machine_pages_move(m.at, m.len, t->id);
        if (before)
            look_at(file, &m, t->id, &ignored, &after);
        t->moved_bytes += before > after ? before - after : 0;
    }
    if (m.fd >= 0) {
        if (m.at != MAP_FAILED)
            munmap(m.at, m.len);
        close(m.fd);
    }
    return after;
}

int to_node_go(struct to_node *t, struct pm_error *err) {
    uint64_t left = 0;
    char size[32];
    pm_volumes_tidy();
    if (!t->wanted)
        return PM_OK;
    int status = files_go(machine_node_group(t->id), t->id, &t->files, err);
    if (status != PM_OK || pm_nodes.injected || on_dax())
        return status;
    for (size_t i = 0; i < pm_heap_file_count(); i++)
        left += move_pages_of(&pm_heap_files[i], t);
    if (!left)
        return PM_OK;
    return pm_fail(
        err, PM_OPERATIONAL,
        "%.300s: node %u has no room for all of it, and %s lie on other nodes still; the "
        "heap is whole: free memory of that node, and run this again",
        pm_heap.dir, t->id, figure_bytes(left, size));
}

// ---- the report ---------------------------------------------------------------------------------

void to_node_json(struct json *j, const struct to_node *t) {
    if (!t->wanted)
        return;
    json_number(j, "node", t->id);
    json_number(j, "node_moved_bytes", t->moved_bytes);
    json_number(j, "node_moved_files", t->files);
}

void to_node_text(const struct to_node *t) {
    char moved[32], all[32];
    if (!t->wanted)
        return;
    printf("node       %u, for all data files; ", t->id);
    if (t->files)
        printf("%u of them went to another directory\n", t->files);
    else
        printf("of %s in memory %s moved there\n", figure_bytes(t->bytes, all),
               figure_bytes(t->moved_bytes, moved));
}
