// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Every byte that PMAlloc writes to media is described here and nowhere else.
//
//   HEAP/superblock   identity and geometry | state | root slots | two root tables
//   HEAP/heap.0       the program's data, nothing of ours; heap offset 0 is PM_HEAP_BASE
//   HEAP/slabs.0      struct pm_slab_header[], indexed by (address - base) / 64 KiB
//   HEAP/morph.0      index tables of slabs that hold blocks of two classes, in lines of 64 bytes
//   HEAP/booklog.0    bookkeeping log: header page, then 1 KiB chunks of 8-byte entries
//   HEAP/roots        images of captured root pages, two areas used in turn
//   HEAP/bitmaps.0    allocation bitmaps, present only after a clean close
//
// Rules: no runtime pointer, lock or volatile state lives in these structs; every multi-byte field is
// little endian and naturally aligned; commit points are single aligned 8-byte stores. So that damage is not
// taken for content, each of these words checks itself: "sealed" ones hold 32 bits and their CRC (pm_seal(),
// salted with PM_SALT_*), entries of the log and root slots have check bits of their own. A zero word is never a
// good one, except where nothing was ever written.
#ifndef PM_LAYOUT_H
#define PM_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define PM_FORMAT_VERSION 1u

// The heap range lies at 64 TiB: above Java's and Go's arenas, below ASan's allocator (0x6000...) and clear
// of the PIE, brk and mmap areas that address randomisation uses (0x55..., 0x7f...).
#define PM_HEAP_BASE 0x400000000000ull
#define PM_HEAP_RANGE (1ull << 40)

#define PM_PAGE_SHIFT 12
#define PM_PAGE_SIZE ((size_t)1 << PM_PAGE_SHIFT)
#define PM_SLAB_SHIFT 16
#define PM_SLAB_SIZE ((size_t)1 << PM_SLAB_SHIFT)
#define PM_REGION_SIZE ((size_t)4 << 20)
#define PM_GRANULE_SHIFT 4 // every block starts on a multiple of 16 bytes
#define PM_SLAB_BLOCKS_MAX (PM_SLAB_SIZE >> PM_GRANULE_SHIFT)

#define PM_MAX_NODES 8
#define PM_ROOT_SLOTS 512
#define PM_ROOT_MAX 256

// Features whose bit in `incompat` a reader must know. A heap without PM_INCOMPAT_MORPH, from before there was
// morphing, has no morph.0 and only zeroes in pm_slab_header.now; it is used as it is, and its slabs never morph.
#define PM_INCOMPAT_MORPH 1ull
#define PM_INCOMPAT_KNOWN PM_INCOMPAT_MORPH

// What the collector may assume of an object's words; only PM_KIND_CONSERVATIVE is handed out today.
enum pm_kind { PM_KIND_CONSERVATIVE = 0, PM_KIND_POINTER_FREE = 1, PM_KIND_TYPED = 2 };

// ---- superblock --------------------------------------------------------------------------------------

#define PM_SUPER_MAGIC 0x0031434f4c4c414dull // "MALLOC1"

struct pm_node_range {
    uint64_t offset; // from PM_HEAP_BASE, bytes
    uint64_t length;
};

// Page 0. Written once, when the heap is made; `crc` is CRC-32C of all bytes before it.
struct pm_superblock {
    uint64_t magic;
    uint32_t version;
    uint32_t node_count;
    uint64_t compat;   // unknown bits here: open freely
    uint64_t incompat; // unknown bits here: refuse
    uint64_t base;
    uint64_t range;
    uint32_t page_size;
    uint32_t slab_size;
    uint64_t created; // seconds since the epoch
    uint8_t uuid[16];
    struct pm_node_range node[PM_MAX_NODES];
    uint8_t reserved[4096 - 80 - 16 * PM_MAX_NODES - 8];
    uint32_t reserved_tail;
    uint32_t crc;
};
_Static_assert(sizeof(struct pm_superblock) == 4096, "superblock is one page");
_Static_assert(offsetof(struct pm_superblock, base) == 32, "frozen");
_Static_assert(offsetof(struct pm_superblock, node) == 80, "frozen");
_Static_assert(offsetof(struct pm_superblock, crc) == 4092, "frozen");

// The state word: far apart in Hamming distance, so that no flipped bit turns dirty into clean.
#define PM_STATE_CLEAN 0x6e61656c632d6d70ull // "pm-clean"
#define PM_STATE_DIRTY 0x7974726964216d70ull // "pm!dirty"

// Which program the heap's pointers into code and globals belong to.
struct pm_program {
    char path[256];
    uint8_t build_id[32];  // GNU build id, cut to 32 bytes, zero-padded
    uint32_t build_id_len; // 0: the program has none
    uint32_t reserved;
    uint64_t main_base; // load bias: 0 for a program linked at fixed addresses
    uint64_t libc_base; // 0: no libc.so
    // Where its segments and those of all its libraries lay; 0: not recorded.
    uint64_t main_start;
    uint64_t main_end;
    uint64_t libs_start;
    uint64_t libs_end;
    uint8_t pad[40];
};
_Static_assert(sizeof(struct pm_program) == 384, "frozen");

// What a clean close vouches for, written before the state: damage that no check of a single word can find, such
// as a chunk of the log replaced by an older one, is found by comparison.
struct pm_clean {
    uint64_t opens;       // the close belongs to this opening
    uint64_t heap_bytes;  // length of heap.0
    uint64_t log_entries; // that stand, and a sum over them
    uint64_t log_sum;
    uint64_t bitmaps_tag;
    uint32_t images_crc;   // of the captured roots' bytes ...
    uint32_t images_known; // 1; 0 after the close of a heap without roots
    uint8_t reserved[12];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_clean) == 64, "one cache line");

// Page 1. Each 64-bit word is a commit point of its own; `program` is informative and has its own crc.
struct pm_state {
    uint64_t state;       // PM_STATE_*
    uint64_t root_epoch;  // sealed; root table [root_epoch & 1] is in force
    uint64_t opens;       // times opened for writing
    uint64_t owner_pid;   // last owner; a hint for messages, the lock is flock(2)
    uint64_t bitmaps_tag; // equals the tag in bitmaps.0 when that file belongs to this close
    uint64_t
        owner_start; // when the owner started, so that its number is not taken for another process's
    uint64_t reserved0[2];
    struct pm_program program;
    uint32_t program_crc;
    uint8_t reserved1[60];
    struct pm_clean clean; // means something while the state is clean
    uint8_t reserved[4096 - 512 - 64];
};
_Static_assert(sizeof(struct pm_state) == 4096, "state is one page");
_Static_assert(offsetof(struct pm_state, program) == 64, "frozen; the words before are one line");
_Static_assert(offsetof(struct pm_state, clean) == 512, "a line of its own");

// pmalloc_set_root(): 48 bits of pointer below 16 bits of check, which an empty slot has too (pm_slot_word()).
struct pm_slots {
    uint64_t slot[PM_ROOT_SLOTS];
};
_Static_assert(sizeof(struct pm_slots) == 4096, "slots are one page");

enum pm_root_kind { PM_ROOT_SYMBOL = 1, PM_ROOT_OBJECT = 2, PM_ROOT_RANGE = 3 };

struct pm_root {
    uint32_t kind;        // enum pm_root_kind
    uint32_t part;        // segment number of a whole-object root, else 0
    uint64_t spec_offset; // as named, PM_ROOT_RANGE only
    uint64_t length;      // bytes captured for this root
    uint64_t image;       // offset of its first byte in the roots file
    uint64_t address;     // where it was at capture
    char object[96];      // "" is the main program
    char name[160];       // symbol, or "" for ranges and whole objects
    uint8_t reserved[24];
};
_Static_assert(sizeof(struct pm_root) == 320, "frozen");

// `crc` covers everything after it up to root[count].
struct pm_root_table {
    uint32_t crc;
    uint32_t count;
    uint64_t epoch; // the root_epoch this table was written for
    uint64_t area_offset;
    uint64_t area_length;
    uint8_t reserved[32];
    struct pm_root root[PM_ROOT_MAX];
    uint8_t pad[4032];
};
_Static_assert(sizeof(struct pm_root_table) == 86016, "21 pages");
_Static_assert(offsetof(struct pm_root_table, root) == 64, "frozen");

struct pm_super_file {
    struct pm_superblock super;
    struct pm_state state;
    struct pm_slots slots;
    struct pm_root_table roots[2];
};
_Static_assert(sizeof(struct pm_super_file) == 3 * 4096 + 2 * 86016, "frozen");

// ---- slab headers ------------------------------------------------------------------------------------

#define PM_SLAB_MAGIC 0x4c53u

// Flushed when the slab is made, before its log entry; meaningless where the log has no slab. `now` alone changes
// while the slab stands: one 8-byte store that names class and index table is the whole of a morph's commit.
struct pm_slab_header {
    uint16_t magic;
    uint8_t size_class; // 1 .. PM_CLASSES, as it was made
    uint8_t kind;       // enum pm_kind
    uint32_t data_offset;
    uint64_t now; // sealed: size class << 26 | first line of the index table in morph.0, 0: none
    uint8_t reserved[44];
    uint32_t crc; // of the slab's number and all bytes before it, `now` taken as 0
};
_Static_assert(sizeof(struct pm_slab_header) == 64, "one cache line");
_Static_assert(offsetof(struct pm_slab_header, crc) == 60, "frozen");
_Static_assert(offsetof(struct pm_slab_header, now) == 8, "frozen");

#define PM_NOW_SHIFT 26
#define PM_SALT_NOW(slab) (0x80000000u | (slab))

// ---- morph.0 -----------------------------------------------------------------------------------------

// Which blocks of the class before the morph may be in use. Followed by a sealed word for every 32 of them, bit i of
// word w for block 32 * w + i. Bits are only ever cleared; each word is a commit point of its own.
struct pm_morph_table {
    uint32_t slab;
    uint8_t old_class;
    uint8_t new_class;
    uint16_t old_count; // bits set at the morph
    uint32_t reserved;
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_morph_table) == 16, "frozen");
#define PM_MORPH_LINE 64u
#define PM_MORPH_WORD_BLOCKS 32u
#define PM_SALT_MORPH(slab, word) ((slab) << 7 | (word))

// ---- bookkeeping log ---------------------------------------------------------------------------------

#define PM_LOG_MAGIC 0x474f4c4b4f4f4221ull
#define PM_CHUNK_SIZE 1024u
#define PM_CHUNK_ENTRIES 126u

#define PM_SALT_ROOT_EPOCH 0xffffffffu
#define PM_SALT_LOG_EPOCH 0xfffffffeu
#define PM_SALT_LOG_CHUNKS 0xfffffffdu
#define PM_SALT_CHUNK_EPOCH(id) ((id) << 1)
#define PM_SALT_CHUNK_GENERATION(id) ((id) << 1 | 1)

// A chunk belongs to the log exactly while chunk.epoch == header.epoch: freeing a chunk and switching to
// the compacted list after a slow GC (the papers' alt bit) are each one 8-byte store.
struct pm_log_header {
    uint64_t magic;
    uint32_t version;
    uint32_t chunk_size;
    uint64_t epoch;  // sealed
    uint64_t chunks; // sealed: how many were ever used; what lies behind them means nothing
    uint8_t reserved[4096 - 32];
};
_Static_assert(sizeof(struct pm_log_header) == 4096, "log header is one page");

struct pm_log_chunk {
    uint64_t epoch; // sealed; 0 is free
    uint64_t
        generation; // sealed; rises with every reuse: a tombstone names the generation it means
    uint64_t entry[PM_CHUNK_ENTRIES];
};
_Static_assert(sizeof(struct pm_log_chunk) == PM_CHUNK_SIZE, "frozen");
_Static_assert(offsetof(struct pm_log_chunk, entry) < 64, "the first entry is in the epoch's line");

// Extent or slab: 26 bits size in pages | 8 bits check | 28 bits page number | 2 bits type. Tombstone: 26 bits of
// the chunk's generation | 8 bits check | 28 bits position (chunk * 128 + entry) of the entry it ends | 2 bits.
// The check is a CRC of the rest, the entry's own position and its chunk's generation. Zero is empty; entries are
// appended in a fixed order (slot_of() in booklog.c) and all chunks but the last are full, so that one that was
// lost leaves a hole.
enum pm_entry_type {
    PM_ENTRY_NONE = 0,
    PM_ENTRY_EXTENT = 1,
    PM_ENTRY_SLAB = 2,
    PM_ENTRY_TOMBSTONE = 3
};
#define PM_ENTRY_PAGES_MAX ((1ull << 26) - 1)
#define PM_ENTRY_CHECK_SHIFT 30

// ---- bitmaps.0 ---------------------------------------------------------------------------------------

#define PM_BITMAPS_MAGIC 0x2150414d5449426dull

struct pm_bitmaps_header {
    uint64_t magic;
    uint64_t tag;   // equals pm_state.bitmaps_tag
    uint64_t slabs; // records
    uint64_t bytes; // of the records that follow
    uint32_t crc;   // of the records
    uint32_t header_crc;
    uint8_t reserved[24];
};
_Static_assert(sizeof(struct pm_bitmaps_header) == 64, "frozen");

// One record a slab, by rising slab number, and behind it one with PM_BITMAP_OLD for what a morphed slab holds of its
// class before. Each is followed by `words` 64-bit words: bit i set = block i allocated.
struct pm_bitmap_record {
    uint32_t slab;
    uint16_t size_class;
    uint16_t words;
};
_Static_assert(sizeof(struct pm_bitmap_record) == 8, "frozen");
#define PM_BITMAP_OLD 0x100u // in size_class

#endif
