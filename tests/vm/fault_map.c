// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Prints a table for the device mapper: a disk of which some sectors fail.
//
//     fault_map DEVICE BAD SECTORS write|read FROM [FILE...]
//
// The blocks of the files fail, from byte FROM of each on. `write`: reads are good. `read`: all
// fails. BAD is a device of the same size that fails (target `error`). A flush is good: it is
// sent to each part of a disk, and a part of the target `flakey` would fail it for all. So writes
// are sent elsewhere by the target `delay`, without a delay.
//
// The blocks are those that the file system has given to the files by now. btrfs writes changes to
// other places, unless a file is marked (chattr +C): there the writes of all files' data fail, and
// those of metadata are good.
#include <fcntl.h>
#include <inttypes.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { SECTOR = 512, MOST = 4096, AT_ONCE = 64, CHUNKS = 64, EXIT_USAGE = 2 };

static struct range {
    uint64_t at, end; // bytes of the device
} ranges[MOST];
static size_t range_count;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void add(uint64_t at, uint64_t len) {
    if (range_count == MOST) {
        fprintf(stderr, "fault_map: more than %d extents\n", MOST);
        exit(1);
    }
    ranges[range_count++] = (struct range){at, at + len};
}

// ---- btrfs: its extents lie at logical addresses, which chunks bring to places of the device ----

static struct chunk {
    uint64_t logical, len, at;
    bool data;
} chunks[CHUNKS];
static size_t chunk_count;

static void read_chunks(int fd) {
    static struct btrfs_ioctl_search_args search;
    search.key = (struct btrfs_ioctl_search_key){
        .tree_id = BTRFS_CHUNK_TREE_OBJECTID,
        .min_objectid = BTRFS_FIRST_CHUNK_TREE_OBJECTID,
        .max_objectid = BTRFS_FIRST_CHUNK_TREE_OBJECTID,
        .max_offset = UINT64_MAX,
        .max_transid = UINT64_MAX,
        .min_type = BTRFS_CHUNK_ITEM_KEY,
        .max_type = BTRFS_CHUNK_ITEM_KEY,
        .nr_items = CHUNKS,
    };
    if (ioctl(fd, BTRFS_IOC_TREE_SEARCH, &search) != 0)
        fail("fault_map: chunks");
    const char *at = search.buf;
    chunk_count = 0;
    for (uint32_t i = 0; i < search.key.nr_items && i < CHUNKS; i++) {
        struct btrfs_ioctl_search_header head;
        struct btrfs_chunk chunk;
        memcpy(&head, at, sizeof head);
        memcpy(&chunk, at + sizeof head, sizeof chunk);
        chunks[chunk_count++] = (struct chunk){head.offset, chunk.length, chunk.stripe.offset,
                                               chunk.type & BTRFS_BLOCK_GROUP_DATA};
        at += sizeof head + head.len;
    }
}

static void add_data_chunks(void) {
    for (size_t i = 0; i < chunk_count; i++)
        if (chunks[i].data)
            add(chunks[i].at, chunks[i].len);
}

static uint64_t place_of(uint64_t logical) {
    for (size_t i = 0; i < chunk_count; i++)
        if (logical - chunks[i].logical < chunks[i].len)
            return logical - chunks[i].logical + chunks[i].at;
    fprintf(stderr, "fault_map: no chunk holds %" PRIu64 "\n", logical);
    exit(1);
}

// ---- the blocks of a file -----------------------------------------------------------------------

static const uint32_t nowhere = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DATA_INLINE;

// Without FIEMAP_FLAG_SYNC, which would write what is to fail. Returns where to go on.
static uint64_t add_extents(int fd, uint64_t from, bool btrfs) {
    static _Alignas(
        struct fiemap) char buffer[sizeof(struct fiemap) + AT_ONCE * sizeof(struct fiemap_extent)];
    struct fiemap *map = (struct fiemap *)buffer;
    *map = (struct fiemap){
        .fm_start = from, .fm_length = UINT64_MAX - from, .fm_extent_count = AT_ONCE};
    if (ioctl(fd, FS_IOC_FIEMAP, map) != 0)
        fail("fault_map: extents");
    for (uint32_t i = 0; i < map->fm_mapped_extents; i++) {
        const struct fiemap_extent *e = &map->fm_extents[i];
        uint64_t skip = e->fe_logical < from ? from - e->fe_logical : 0;
        if (!(e->fe_flags & nowhere))
            add((btrfs ? place_of(e->fe_physical) : e->fe_physical) + skip, e->fe_length - skip);
        from = e->fe_logical + e->fe_length;
        if (e->fe_flags & FIEMAP_EXTENT_LAST)
            return UINT64_MAX;
    }
    return map->fm_mapped_extents ? from : UINT64_MAX;
}

static void add_file(const char *path, uint64_t from, bool writes) {
    struct statfs on;
    int flags = 0, fd = open(path, O_RDONLY);
    if (fd < 0 || fstatfs(fd, &on) != 0)
        fail(path);
    bool btrfs = on.f_type == BTRFS_SUPER_MAGIC;
    if (btrfs)
        read_chunks(fd);
    if (btrfs && writes && ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && !(flags & FS_NOCOW_FL))
        add_data_chunks();
    else
        while (from != UINT64_MAX)
            from = add_extents(fd, from, btrfs);
    close(fd);
}

// ---- the table ----------------------------------------------------------------------------------

static int by_place(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

static const char *device, *bad;

static void print_line(uint64_t at, uint64_t end, bool fails, bool writes) {
    if (at >= end)
        return;
    printf("%" PRIu64 " %" PRIu64 " ", at, end - at);
    if (!fails)
        printf("linear %s %" PRIu64 "\n", device, at);
    else if (!writes)
        printf("linear %s %" PRIu64 "\n", bad, at);
    else // device, offset and delay of reads, of writes, of flushes
        printf("delay %s %" PRIu64 " 0 %s %" PRIu64 " 0 %s %" PRIu64 " 0\n", device, at, bad, at,
               device, at);
}

static void print_table(uint64_t sectors, bool writes) {
    uint64_t done = 0;
    qsort(ranges, range_count, sizeof ranges[0], by_place);
    for (size_t i = 0; i < range_count; i++) {
        uint64_t at = ranges[i].at / SECTOR, end = ranges[i].end / SECTOR;
        if (at < done)
            at = done;
        if (end > sectors)
            end = sectors;
        if (at >= end)
            continue;
        print_line(done, at, false, writes);
        print_line(at, end, true, writes);
        done = end;
    }
    print_line(done, sectors, false, writes);
}

int main(int argc, char **argv) {
    bool writes = argc > 4 && strcmp(argv[4], "write") == 0;
    if (argc < 6 || (!writes && strcmp(argv[4], "read") != 0)) {
        fprintf(stderr, "usage: fault_map DEVICE BAD SECTORS write|read FROM [FILE...]\n");
        return EXIT_USAGE;
    }
    device = argv[1];
    bad = argv[2];
    for (int i = 6; i < argc; i++)
        add_file(argv[i], strtoull(argv[5], NULL, 10), writes);
    print_table(strtoull(argv[3], NULL, 10), writes);
    return 0;
}
