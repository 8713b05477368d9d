// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The layout of version 1, frozen: every later build reads a heap that an earlier build wrote. A
// number in this file never changes; a new layout needs a new format version.
#include "media/format.h"
#include "media/journal/journal_format.h"

#include "base/crc.h"
#include "base/sizeclass.h"
#include "check.h"
#include "media/backup/backup_format.h"
#include "media/heap.h"
#include "media/kind_format.h"
#include "media/lane_format.h"
#include "media/log/log.h"
#include "media/outside_format.h"
#include "media/rebased_format.h"
#include "media/recovered_format.h"
#include "media/typed_words_format.h"

#define SIZE(type, size) CHECK_EQ(sizeof(struct type), size)
#define FIELD(type, field, offset, size)                                                           \
    do {                                                                                           \
        CHECK_EQ(offsetof(struct type, field), offset);                                            \
        CHECK_EQ(sizeof(((struct type *)0)->field), size);                                         \
    } while (0)

static void test_constants(void) {
    CHECK_EQ(PM_FORMAT_VERSION, 1);
    CHECK_EQ(PM_HEAP_BASE, 0x400000000000);
    CHECK_EQ(PM_HEAP_RANGE, 1099511627776);
    CHECK_EQ(PM_PAGE_SIZE, 4096);
    CHECK_EQ(PM_SLAB_SIZE, 65536);
    CHECK_EQ(PM_REGION_SIZE, 4194304);
    CHECK_EQ(PM_GRANULE_SHIFT, 4);
    CHECK_EQ(PM_SLAB_BLOCKS_MAX, 4096);
    CHECK_EQ(PM_MAX_NODES, 8);
    CHECK_EQ(PM_ROOT_SLOTS, 512);
    CHECK_EQ(PM_ROOT_MAX, 256);
    CHECK_EQ(PM_CHUNK_SIZE, 1024);
    CHECK_EQ(PM_CHUNK_ENTRIES, 126);
    CHECK_EQ(PM_ENTRY_PAGES_MAX, 67108863);
}

static void test_magic_numbers(void) {
    CHECK(memcmp(&(uint64_t){PM_SUPER_MAGIC}, "MALLOC1", 8) == 0);
    CHECK(memcmp(&(uint64_t){PM_STATE_CLEAN}, "pm-clean", 8) == 0);
    CHECK(memcmp(&(uint64_t){PM_STATE_DIRTY}, "pm!dirty", 8) == 0);
    CHECK_EQ(PM_SLAB_MAGIC, 0x4c53);
    CHECK_EQ(PM_LOG_MAGIC, 0x474f4c4b4f4f4221);
    CHECK_EQ(PM_BITMAPS_MAGIC, 0x2150414d5449426d);
    // only eight flipped bits or more turn dirty into clean
    CHECK(__builtin_popcountll(PM_STATE_CLEAN ^ PM_STATE_DIRTY) >= 8);
}

static void test_enums(void) {
    CHECK_EQ(PM_KIND_CONSERVATIVE, 0);
    CHECK_EQ(PM_KIND_POINTER_FREE, 1);
    CHECK_EQ(PM_KIND_TYPED, 2);
    CHECK_EQ(PM_ROOT_SYMBOL, 1);
    CHECK_EQ(PM_ROOT_OBJECT, 2);
    CHECK_EQ(PM_ROOT_RANGE, 3);
    CHECK_EQ(PM_ENTRY_NONE, 0);
    CHECK_EQ(PM_ENTRY_EXTENT, 1);
    CHECK_EQ(PM_ENTRY_SLAB, 2);
    CHECK_EQ(PM_ENTRY_TOMBSTONE, 3);
}

static void test_superblock(void) {
    SIZE(pm_node_range, 16);
    FIELD(pm_node_range, offset, 0, 8);
    FIELD(pm_node_range, length, 8, 8);
    SIZE(pm_superblock, 4096);
    FIELD(pm_superblock, magic, 0, 8);
    FIELD(pm_superblock, version, 8, 4);
    FIELD(pm_superblock, node_count, 12, 4);
    FIELD(pm_superblock, compat, 16, 8);
    FIELD(pm_superblock, incompat, 24, 8);
    FIELD(pm_superblock, base, 32, 8);
    FIELD(pm_superblock, range, 40, 8);
    FIELD(pm_superblock, page_size, 48, 4);
    FIELD(pm_superblock, slab_size, 52, 4);
    FIELD(pm_superblock, created, 56, 8);
    FIELD(pm_superblock, uuid, 64, 16);
    FIELD(pm_superblock, node, 80, 128);
    FIELD(pm_superblock, reserved, 208, 3880);
    FIELD(pm_superblock, reserved_tail, 4088, 4);
    FIELD(pm_superblock, crc, 4092, 4);
}

static void test_volume(void) {
    SIZE(pm_volume, 64);
    FIELD(pm_volume, magic, 0, 8);
    FIELD(pm_volume, uuid, 8, 16);
    FIELD(pm_volume, number, 24, 4);
    FIELD(pm_volume, crc, 60, 4);
    CHECK_EQ(PM_VOLUME_MAGIC, 0x31454d554c4f564d);
}

static void test_recovered(void) {
    SIZE(pm_recovered, 64);
    FIELD(pm_recovered, time, 0, 8);
    FIELD(pm_recovered, took_us, 8, 8);
    FIELD(pm_recovered, live_bytes, 16, 8);
    FIELD(pm_recovered, freed_bytes, 24, 8);
    FIELD(pm_recovered, count, 32, 4);
    FIELD(pm_recovered, freed_extents, 36, 4);
    FIELD(pm_recovered, freed_slabs, 40, 4);
    FIELD(pm_recovered, kept_all, 44, 4);
    FIELD(pm_recovered, crc, 60, 4);
}

static void test_typed_words(void) {
    SIZE(pm_typed_words, 64);
    FIELD(pm_typed_words, line, 0, 64);
}

static void test_rebased(void) {
    SIZE(pm_rebased, 64);
    FIELD(pm_rebased, time, 0, 8);
    FIELD(pm_rebased, words, 8, 8);
    FIELD(pm_rebased, words_ever, 16, 8);
    FIELD(pm_rebased, count, 24, 4);
    FIELD(pm_rebased, other_build, 28, 4);
    FIELD(pm_rebased, crc, 60, 4);
}

static void test_journal(void) {
    SIZE(pm_journal_entry, 16);
    FIELD(pm_journal_entry, first, 0, 8);
    FIELD(pm_journal_entry, pages, 8, 4);
    FIELD(pm_journal_entry, kind, 12, 1);
    FIELD(pm_journal_entry, member, 13, 1);
    FIELD(pm_journal_entry, shard, 14, 1);
    SIZE(pm_instants, 64);
    FIELD(pm_instants, between, 0, 8);
    FIELD(pm_instants, waited, 8, 8);
    FIELD(pm_instants, any, 16, 8);
    FIELD(pm_instants, time, 24, 8);
    FIELD(pm_instants, lock, 32, 8);
    FIELD(pm_instants, thread, 40, 4);
    FIELD(pm_instants, unseen, 44, 4);
    FIELD(pm_instants, name, 48, 16);
    CHECK_EQ(offsetof(struct pm_journal_group, entry[PM_JOURNAL_AT_INSTANTS]), 4016);
    CHECK_EQ(offsetof(struct pm_journal_group, entry[PM_JOURNAL_AT_PAUSES]), 3792);
    CHECK_EQ(PM_JOURNAL_ENTRIES_NOW, 233);
    SIZE(pm_pauses, 224);
    FIELD(pm_pauses, of, 0, 160);
    FIELD(pm_pauses, held_ns, 160, 8);
    FIELD(pm_pauses, longest_ns, 168, 8);
    FIELD(pm_pauses, round, 176, 32);
    FIELD(pm_pauses, instant, 208, 8);
    FIELD(pm_pauses, failed, 216, 8);
    SIZE(pm_instants_state, 128);
    FIELD(pm_instants_state, instants, 0, 64);
    FIELD(pm_instants_state, time, 64, 8);
    FIELD(pm_instants_state, crc, 124, 4);
    SIZE(pm_journal_group, 4096);
    FIELD(pm_journal_group, magic, 0, 8);
    FIELD(pm_journal_group, uuid, 8, 16);
    FIELD(pm_journal_group, epoch, 24, 8);
    FIELD(pm_journal_group, time, 32, 8);
    FIELD(pm_journal_group, number, 40, 4);
    FIELD(pm_journal_group, last, 44, 4);
    FIELD(pm_journal_group, entries, 48, 4);
    FIELD(pm_journal_group, pages, 52, 4);
    FIELD(pm_journal_group, crc, 60, 4);
    FIELD(pm_journal_group, entry, 64, 4016);
    FIELD(pm_journal_group, lap, 4080, 8);
    FIELD(pm_journal_group, before, 4088, 4);
    FIELD(pm_journal_group, follows, 4092, 4);
    CHECK_EQ(PM_JOURNAL_MAGIC, 0x314c4e52554f4a4d);
    CHECK_EQ(PM_INCOMPAT_JOURNAL, 4);
    CHECK_EQ(PM_JOURNAL_PAGE * 100 + PM_JOURNAL_ZERO * 10 + PM_JOURNAL_LENGTH, 123);
    CHECK_EQ(PM_JOURNAL_SUPER, 1);
    CHECK_EQ(PM_JOURNAL_ROOTS, 2);
    CHECK_EQ(PM_JOURNAL_DATA, 3);
    CHECK_EQ(PM_JOURNAL_SLABS, 4);
    CHECK_EQ(PM_JOURNAL_LOG, 5);
    CHECK_EQ(PM_JOURNAL_MORPH, 6);
}

static void test_shard_state(void) {
    SIZE(pm_shard_state, 1024);
    FIELD(pm_shard_state, shards, 0, 8);
    FIELD(pm_shard_state, node, 8, 16);
    FIELD(pm_shard_state, volume, 24, 16);
    FIELD(pm_shard_state, reserved, 40, 24);
    FIELD(pm_shard_state, clean, 64, 960);
    CHECK_EQ(PM_INCOMPAT_SHARDS, 1);
    CHECK_EQ(PM_SALT_SHARDS, 0xfffffffc);
    CHECK_EQ(PM_SHARDS, 16);
    CHECK_EQ(PM_SHARD_RANGE, 1099511627776);
}

static void test_state(void) {
    SIZE(pm_program, 384);
    FIELD(pm_program, path, 0, 256);
    FIELD(pm_program, build_id, 256, 32);
    FIELD(pm_program, build_id_len, 288, 4);
    FIELD(pm_program, addresses, 292, 4);
    FIELD(pm_program, main_base, 296, 8);
    FIELD(pm_program, libc_base, 304, 8);
    FIELD(pm_program, main_start, 312, 8);
    FIELD(pm_program, main_end, 320, 8);
    FIELD(pm_program, libs_start, 328, 8);
    FIELD(pm_program, libs_end, 336, 8);
    FIELD(pm_program, mixed, 344, 32);
    FIELD(pm_program, pad, 376, 8);
    SIZE(pm_state, 4096);
    FIELD(pm_state, state, 0, 8);
    FIELD(pm_state, root_epoch, 8, 8);
    FIELD(pm_state, opens, 16, 8);
    FIELD(pm_state, owner_pid, 24, 8);
    FIELD(pm_state, bitmaps_tag, 32, 8);
    FIELD(pm_state, owner_start, 40, 8);
    FIELD(pm_state, kept, 48, 8);
    FIELD(pm_state, doubt, 56, 8);
    FIELD(pm_state, program, 64, 384);
    FIELD(pm_state, program_crc, 448, 4);
    FIELD(pm_state, lap, 452, 4);
    FIELD(pm_state, applied, 456, 8);
    FIELD(pm_state, pointers, 464, 8);
    FIELD(pm_state, live, 472, 8);
    CHECK_EQ(PM_SALT_LIVE, 0xfffffff6);
    CHECK_EQ(PM_SALT_POINTERS, 0xfffffff7);
    FIELD(pm_state, origin, 480, 32);
    CHECK_EQ(PM_SALT_APPLIED, 0xfffffff9);
    FIELD(pm_state, clean, 512, 64);
    FIELD(pm_state, reserved, 576, 3520);
    SIZE(pm_origin, 32);
    FIELD(pm_origin, ino, 0, 8);
    FIELD(pm_origin, birth, 8, 8);
    FIELD(pm_origin, birth_ns, 16, 4);
    FIELD(pm_origin, reserved, 20, 4);
    FIELD(pm_origin, seal, 24, 8);
    CHECK_EQ(PM_SALT_ORIGIN, 0xfffffff8);
    SIZE(pm_clean, 64);
    FIELD(pm_clean, opens, 0, 8);
    FIELD(pm_clean, heap_bytes, 8, 8);
    FIELD(pm_clean, log_entries, 16, 8);
    FIELD(pm_clean, log_sum, 24, 8);
    FIELD(pm_clean, bitmaps_tag, 32, 8);
    FIELD(pm_clean, images_crc, 40, 4);
    FIELD(pm_clean, images_known, 44, 4);
    FIELD(pm_clean, reserved, 48, 12);
    FIELD(pm_clean, crc, 60, 4);
}

static void test_outside(void) {
    SIZE(pm_outside_range, 128);
    FIELD(pm_outside_range, from, 0, 8);
    FIELD(pm_outside_range, to, 8, 8);
    FIELD(pm_outside_range, kind, 16, 4);
    FIELD(pm_outside_range, name, 20, 104);
    FIELD(pm_outside_range, crc, 124, 4);
    SIZE(pm_outside, 2112);
    FIELD(pm_outside, looked, 0, 8);
    FIELD(pm_outside, forgotten_from, 8, 8);
    FIELD(pm_outside, forgotten_to, 16, 8);
    FIELD(pm_outside, reserved, 24, 40);
    FIELD(pm_outside, range, 64, 2048);
    CHECK_EQ(PM_OUTSIDE_STACK, 1);
    CHECK_EQ(PM_OUTSIDE_TLS, 2);
    CHECK_EQ(PM_OUTSIDE_THREADS, 3);
    CHECK_EQ(PM_OUTSIDE_FILE, 4);
    CHECK_EQ(PM_OUTSIDE_ANONYMOUS, 5);
}

static void test_roots(void) {
    SIZE(pm_slots, 4096);
    FIELD(pm_slots, slot, 0, 4096);
    SIZE(pm_root, 320);
    FIELD(pm_root, kind, 0, 4);
    FIELD(pm_root, part, 4, 4);
    FIELD(pm_root, spec_offset, 8, 8);
    FIELD(pm_root, length, 16, 8);
    FIELD(pm_root, image, 24, 8);
    FIELD(pm_root, address, 32, 8);
    FIELD(pm_root, object, 40, 96);
    FIELD(pm_root, name, 136, 160);
    FIELD(pm_root, build, 296, 20);
    FIELD(pm_root, when, 316, 1);
    FIELD(pm_root, waits, 317, 1);
    FIELD(pm_root, reserved, 318, 2);
    SIZE(pm_root_table, 86016);
    FIELD(pm_root_table, crc, 0, 4);
    FIELD(pm_root_table, count, 4, 4);
    FIELD(pm_root_table, epoch, 8, 8);
    FIELD(pm_root_table, area_offset, 16, 8);
    FIELD(pm_root_table, area_length, 24, 8);
    FIELD(pm_root_table, reserved, 32, 32);
    FIELD(pm_root_table, root, 64, 81920);
    FIELD(pm_root_table, pad, 81984, 4032);
    SIZE(pm_super_file, 184320);
    FIELD(pm_super_file, super, 0, 4096);
    FIELD(pm_super_file, state, 4096, 4096);
    FIELD(pm_super_file, slots, 8192, 4096);
    FIELD(pm_super_file, roots, 12288, 172032);
}

static void test_slab_header(void) {
    SIZE(pm_slab_header, 64);
    FIELD(pm_slab_header, magic, 0, 2);
    FIELD(pm_slab_header, size_class, 2, 1);
    FIELD(pm_slab_header, kind, 3, 1);
    FIELD(pm_slab_header, data_offset, 4, 4);
    FIELD(pm_slab_header, current, 8, 8);
    FIELD(pm_slab_header, type, 16, 2);
    FIELD(pm_slab_header, reserved, 18, 42);
    FIELD(pm_slab_header, crc, 60, 4);
}

static void test_morph(void) {
    CHECK_EQ(PM_CURRENT_SHIFT, 26);
    CHECK_EQ(PM_SALT_CURRENT(5u), 0x80000005);
    CHECK(PM_CLASSES < 1u << (32 - PM_CURRENT_SHIFT));
    CHECK_EQ(PM_MORPH_LINE, 64);
    CHECK_EQ(PM_MORPH_WORD_BLOCKS, 32);
    CHECK_EQ(PM_SALT_MORPH(5u, 3u), 5 * 128 + 3);
    CHECK_EQ(PM_BITMAP_OLD, 256);
    SIZE(pm_morph_table, 16);
    FIELD(pm_morph_table, slab, 0, 4);
    FIELD(pm_morph_table, old_class, 4, 1);
    FIELD(pm_morph_table, new_class, 5, 1);
    FIELD(pm_morph_table, old_count, 6, 2);
    FIELD(pm_morph_table, reserved, 8, 4);
    FIELD(pm_morph_table, crc, 12, 4);
}

static void test_booklog(void) {
    SIZE(pm_log_header, 4096);
    FIELD(pm_log_header, magic, 0, 8);
    FIELD(pm_log_header, version, 8, 4);
    FIELD(pm_log_header, chunk_size, 12, 4);
    FIELD(pm_log_header, epoch, 16, 8);
    FIELD(pm_log_header, chunks, 24, 8);
    FIELD(pm_log_header, reserved, 32, 32);
    FIELD(pm_log_header, dealloc, 64, 4032);
    SIZE(pm_dealloc_log, 576);
    FIELD(pm_dealloc_log, generation, 0, 8);
    FIELD(pm_dealloc_log, entry, 8, 568);
    SIZE(pm_log_chunk, 1024);
    FIELD(pm_log_chunk, epoch, 0, 8);
    FIELD(pm_log_chunk, generation, 8, 8);
    FIELD(pm_log_chunk, entry, 16, 1008);
}

static void test_log_entries(void) {
    CHECK_EQ(pm_entry_make(PM_ENTRY_EXTENT, 0, 1), 0x4000000001);
    CHECK_EQ(pm_entry_make(PM_ENTRY_SLAB, 0x3456789, 0x2abcdef), 0xaaf37bc00d159e26);
    uint64_t most = pm_entry_make(PM_ENTRY_TOMBSTONE, (1ull << 28) - 1, PM_ENTRY_PAGES_MAX);
    CHECK_EQ(most, ~(0xffull << PM_ENTRY_CHECK_SHIFT));
    CHECK_EQ(pm_entry_page(most), (1ull << 28) - 1);
    CHECK_EQ(pm_entry_pages(most), PM_ENTRY_PAGES_MAX);
    CHECK_EQ(pm_entry_type(most), PM_ENTRY_TOMBSTONE);
}

static void test_kinds(void) {
    CHECK_EQ(PM_INCOMPAT_KINDS, 8);
    CHECK_EQ(PM_INCOMPAT_PINNED, 16);
    CHECK_EQ(PM_INCOMPAT_TYPES, 64);
    CHECK_EQ(PM_INCOMPAT_DEALLOC, 128);
    CHECK_EQ(sizeof(struct pm_pinned_table), 64);
    CHECK_EQ(PM_KIND_POINTER_FREE, 1);
    CHECK_EQ(PM_KIND_TYPED, 2);
    uint64_t e = pm_entry_of(false, PM_KIND_POINTER_FREE, 5, 9);
    CHECK_EQ(e, pm_entry_make(PM_ENTRY_SLAB, 5, 9 | 1 << 23));
    CHECK(!pm_entry_is_slab(e) && pm_entry_kind(e) == PM_KIND_POINTER_FREE);
    CHECK_EQ(pm_entry_length(e), 9);
    e = pm_entry_of(true, PM_KIND_POINTER_FREE, 16, 16); // the header says the kind
    CHECK_EQ(e, pm_entry_make(PM_ENTRY_SLAB, 16, 16));
    CHECK(pm_entry_is_slab(e) && pm_entry_length(e) == 16);
    e = pm_entry_of(false, PM_KIND_CONSERVATIVE, 5, PM_ENTRY_PAGES_MAX);
    CHECK(!pm_entry_is_slab(e) && pm_entry_kind(e) == PM_KIND_CONSERVATIVE);
    CHECK_EQ(pm_entry_length(e), PM_ENTRY_PAGES_MAX);
}

static void test_lanes(void) {
    SIZE(pm_lane_store, 16);
    FIELD(pm_lane_store, where, 0, 8);
    FIELD(pm_lane_store, value, 8, 8);
    SIZE(pm_lane, 2048);
    FIELD(pm_lane, commit, 0, 8);
    FIELD(pm_lane, crc, 8, 4);
    FIELD(pm_lane, reserved, 12, 4);
    FIELD(pm_lane, store, 16, 1984);
    FIELD(pm_lane, unused, 2000, 40);
    FIELD(pm_lane, ended, 2040, 8);
    CHECK_EQ(PM_LANES, 32);
    CHECK_EQ(PM_LANES_BYTES, 65536);
    CHECK_EQ(PM_INCOMPAT_LANES, 256);
    CHECK_EQ(PM_PLACE_HEAP, 1);
    CHECK_EQ(PM_PLACE_SLOT, 2);
    CHECK_EQ(PM_PLACE_IMAGE, 3);
    CHECK_EQ(PM_PLACE_SHIFT, 62);
    CHECK_EQ(PM_SALT_LANE(31u), 0xffffff1f);
}

static void test_bitmaps(void) {
    SIZE(pm_bitmaps_header, 64);
    FIELD(pm_bitmaps_header, magic, 0, 8);
    FIELD(pm_bitmaps_header, tag, 8, 8);
    FIELD(pm_bitmaps_header, slabs, 16, 8);
    FIELD(pm_bitmaps_header, bytes, 24, 8);
    FIELD(pm_bitmaps_header, crc, 32, 4);
    FIELD(pm_bitmaps_header, header_crc, 36, 4);
    FIELD(pm_bitmaps_header, reserved, 40, 24);
    SIZE(pm_bitmap_record, 8);
    FIELD(pm_bitmap_record, slab, 0, 4);
    FIELD(pm_bitmap_record, size_class, 4, 2);
    FIELD(pm_bitmap_record, words, 6, 2);
}

static void test_backups(void) {
    CHECK(memcmp(&(uint64_t){PM_BACKUP_MAGIC}, "MBACKUP1", 8) == 0);
    CHECK_EQ(PM_BACKUP_BLOCK, 4096);
    CHECK_EQ(PM_BACKUP_HOLE, 0x80000000);
    SIZE(pm_backup_record, 64);
    FIELD(pm_backup_record, magic, 0, 8);
    FIELD(pm_backup_record, uuid, 8, 16);
    FIELD(pm_backup_record, round, 24, 8);
    FIELD(pm_backup_record, when, 32, 8);
    FIELD(pm_backup_record, entries, 40, 8);
    FIELD(pm_backup_record, files, 48, 4);
    FIELD(pm_backup_record, ledger, 52, 4);
    FIELD(pm_backup_record, index_crc, 56, 4);
    FIELD(pm_backup_record, crc, 60, 4);
    SIZE(pm_backup_stamp, 64);
    FIELD(pm_backup_stamp, magic, 0, 8);
    FIELD(pm_backup_stamp, uuid, 8, 16);
    FIELD(pm_backup_stamp, round, 24, 8);
    FIELD(pm_backup_stamp, when, 32, 8);
    FIELD(pm_backup_stamp, crc, 60, 4);
    CHECK_EQ(PM_BACKUP_STAMP_MAGIC, 0x31504d415453424d);
    SIZE(pm_backup_ledger, 64);
    FIELD(pm_backup_ledger, magic, 0, 8);
    FIELD(pm_backup_ledger, uuid, 8, 16);
    FIELD(pm_backup_ledger, round, 24, 8);
    FIELD(pm_backup_ledger, end, 32, 8);
    FIELD(pm_backup_ledger, head_crc, 40, 4);
    FIELD(pm_backup_ledger, reserved, 44, 16);
    FIELD(pm_backup_ledger, crc, 60, 4);
    SIZE(pm_backup_file, 32);
    FIELD(pm_backup_file, name, 0, 16);
    FIELD(pm_backup_file, length, 16, 8);
    FIELD(pm_backup_file, entries, 24, 8);
    SIZE(pm_backup_entry, 12);
    FIELD(pm_backup_entry, block, 0, 4);
    FIELD(pm_backup_entry, sum, 4, 8);
}

// Sealed words, against values computed before.
static void test_sealed_words(void) {
    CHECK_EQ(PM_ENTRY_CHECK_SHIFT, 30);
    CHECK_EQ(PM_SALT_ROOT_EPOCH, 0xffffffff);
    CHECK_EQ(PM_SALT_LOG_EPOCH, 0xfffffffe);
    CHECK_EQ(PM_SALT_LOG_CHUNKS, 0xfffffffd);
    CHECK_EQ(PM_SALT_CHUNK_EPOCH(5u), 10);
    CHECK_EQ(PM_SALT_CHUNK_GENERATION(5u), 11);
    CHECK_EQ(pm_seal(0, PM_SALT_ROOT_EPOCH), 0xffffffff00000000);
    CHECK_EQ(pm_seal(77, PM_SALT_LOG_EPOCH), 0x4d4625920000004d);
    CHECK_EQ(pm_slot_word(0, 0), 0xc614000000000000);
    CHECK_EQ(pm_slot_word(511, 0x400000001230), 0xeff7400000001230);
    CHECK_EQ(pm_crc8(0, 0x3132333435363738), 0xc7); // "12345678"
}

// Block sizes are part of the format, because slab headers name classes by number.
static void test_classes(void) {
    static const unsigned sizes[] = {
        16,   32,   48,   64,   80,   96,   112,  128,  144,   160,   176,   192,  208,  224,
        240,  256,  320,  384,  448,  512,  640,  768,  896,   1024,  1280,  1536, 1792, 2048,
        2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384};
    CHECK_EQ(PM_CLASSES, sizeof sizes / sizeof sizes[0]);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        CHECK_EQ(pm_classes[i + 1].size, sizes[i]);
}

int main(void) {
    RUN(constants);
    RUN(magic_numbers);
    RUN(enums);
    RUN(superblock);
    RUN(state);
    RUN(volume);
    RUN(lanes);
    RUN(kinds);
    RUN(recovered);
    RUN(rebased);
    RUN(typed_words);
    RUN(journal);
    RUN(shard_state);
    RUN(outside);
    RUN(roots);
    RUN(slab_header);
    RUN(morph);
    RUN(booklog);
    RUN(log_entries);
    RUN(bitmaps);
    RUN(backups);
    RUN(sealed_words);
    RUN(classes);
    return CHECK_DONE();
}
