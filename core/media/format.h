// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// The format: what PMAlloc writes to media. This file has the structs of the superblock, slab
// headers, index tables and the log, and the crash protocol of all. The other structs stand in:
//
//   bitmaps_format.h           the file bitmaps.0
//   dealloc_format.h           frees of other nodes' pinned blocks, in the header of booklog.0
//   kind_format.h              kinds of blocks; tables of pinned blocks, in morph.0
//   lane_format.h              the lanes of publishes, after the root tables
//   origin_format.h            which file a heap is, in page 1
//   outside_format.h           what the process had mapped outside of the heap, in page 1
//   recovered_format.h         the last recovery, in page 1
//   rebased_format.h           how often words were led to another build or place, in page 1
//   typed_words_format.h       which words of a type's blocks are transient, in page 1
//   objects_format.h           the program and its libraries, in objects.a or objects.b
//   types_format.h             what the roots are in a build of the program, in types
//   journal/journal_format.h   the file journal
//   journal/instants_format.h  at which instants commits were taken, there and in page 1
//   backing/fixed_format.h     what a fixed medium has beside the parts of a heap
//   backup/backup_format.h     what a backup has beside its heap
//
// feature_format.h has the bits of features. No other file describes a struct on media.
//
//   HEAP/superblock   identity and geometry | state | root slots | two root tables [| lanes]
//   HEAP/heap.0       the program's data, no metadata; heap offset 0 is PM_HEAP_BASE
//   HEAP/slabs.0      struct pm_slab_header[], indexed by (address - base) / 64 KiB
//   HEAP/morph.0      index tables of slabs of two classes, tables of pinned blocks
//   HEAP/booklog.0    bookkeeping log: header page, with deallocation logs; then 1 KiB chunks
//   HEAP/roots        images of captured root pages, two areas used in turn
//   HEAP/bitmaps.0    allocation bitmaps, present only after a clean close
//   HEAP/journal      pages of commits, under PMALLOC_COMMIT; and of a rewriting
//   HEAP/objects.a    where the program and its libraries lay, and what they are; or objects.b
//   HEAP/types        which types the roots reach, as tools have found it in the program
//
// On a fixed medium HEAP is one file or device, and these are parts of it. heap.0 and the four
// files with its number are shard 0. A heap that has outgrown it has heap.1, slabs.1 and so on:
// shard n lies n * PM_SHARD_RANGE after PM_HEAP_BASE. In its files offsets, pages and slabs count
// from the shard's first byte, so they look like the files of shard 0.
//
// Rules: no runtime pointer, lock or volatile state lives in these structs. Every multi-byte field
// is little endian and naturally aligned. A commit is a single aligned 8-byte store. Each commit
// word checks itself, so that damage is not taken for content. A sealed word has 32 bits and
// their CRC (pm_seal(), salted with PM_SALT_*). Entries of the log and root slots have check bits
// of their own. A word of zeroes is valid only where nothing was ever written.
//
// ---- the crash protocol -------------------------------------------------------------------------
//
// A kill or a power failure may end a process between any two stores. It always leaves the state
// before some commit or the state after it. Three rules make it so:
//
//   1  Everything that a commit word puts into force is durable before the word is stored.
//   2  Nobody builds on a commit that is not durable: no pointer is handed out, no byte reused.
//   3  A process that opens a heap first makes durable what it found. A killed process may have
//      left its last stores in the caches alone, and a power failure could still undo them
//      [killed killedmorph killedsync killedcap unrooted early].
//
// What comes before what. `-->` is a drain or an fsync. `..>` is the order of a directory's names.
//
//   make     all files --> the superblock's name --> first store
//   open     doubt --> data, roots, origin --> slots, headers, index tables, "dirty" --> the log
//            --> first store
//   roots    images, next table --> root epoch --> stores to the roots
//   grow     length of heap.0 --> entry
//   malloc   slab header, chunk --> entry --> the pointer is handed out
//   ahead    headers of a group --> its entries --> one is handed out, the others later
//   morph    index table --> current --> blocks of the new class are handed out
//   free     tombstone --> the pages are reused, made a hole, or leave the end of heap.0
//   uncache  all entries erased --> the same of all their pages
//   far free bits of a log's entries --> its generation --> the blocks are handed out
//   publish  blocks, stores of the lane --> its commit --> the stores --> its end --> frees
//   close    bitmaps.0 --> close record --> all files --> "clean"
//   remove   the superblock's name ..> the other names
//
// The commit words: which function stores each, and in brackets the crash scenarios that prove it
// (`make crash`, tests/crash/scenarios.c). `needs`: what is durable before the store. `before`,
// `after`: what an end of the process or of the power leaves before and after it.
//
//   name of the superblock       name_superblock()                                        [create]
//     needs   the other files, the superblock's bytes
//     before  a remnant, from which the next start makes a heap  after  an empty, dirty heap
//   its name taken away          empty_dir()                                             [removed]
//     before  the whole heap              after  a remnant
//   seal of the origin           pm_origin_record()                                       [copied]
//     needs   the words before it in its line
//     before  the old origin, or none     after  the new one; it says nothing of a clean heap
//   state "dirty"                pm_heap_dirty()                           [reopen slots unrooted]
//     needs   data, roots (fsync), origin. In the same drain: slab headers, index tables, slots,
//             epoch
//     before  the clean heap, unchanged   after  a dirty heap: recovery marks
//   pointers                     pm_forms_record()              [test_recovery_without_the_program]
//                                pm_forms_set_mask()                           [test_boehm_masks]
//     before  the forms of an earlier run: what only new ones reach is stored later
//     after   a recovery without the program looks for the same
//   lap                          pm_commit_first()             [test_a_journal_of_another_time]
//     before  a journal of an earlier run   after  only one that begins now
//   applied, 0                   check_empty()          [test_a_journal_that_was_removed_is_damage]
//     before  damage: the journal is gone  after  the files are taken as they are (`--at good`)
//   doubt                        pm_doubt_settle()          [test_a_first_commit_needs_its_sync]
//     needs   to be 0: all files (fsync), each page written again where it was set before
//     before  who opens the heap writes all once more    after  the files are on the medium
//   state "clean"                pm_heap_clean()                                          [reopen]
//     needs   close record, all files (fsync). In the same line: bitmaps_tag
//     before  a dirty heap                after  a clean heap, compared with its record
//   close record                 pm_close_record_write()                                  [reopen]
//     needs   the log. It is valid only under "clean", and only for its own number of `opens`
//   bitmaps_tag                  pm_bitmaps_write()                                       [reopen]
//     needs   bitmaps.0 (fsync). It is valid only under "clean"; without it recovery marks
//   transient words of a line    pm_typed_word_set()                      [test_declared_by_type]
//     before  a start keeps these words   after  each start stores 0 in them (pm_clear_typed())
//   root epoch                   pm_roots_switch()                  [capture recovercap killedcap]
//     needs   images (fsync), root table
//     before  the old roots               after  the new roots
//   feature bit, crc             pm_feature_set()                                [shards publish]
//     needs   the word `shards`, with the count; the space of the lanes (fsync); others: nothing
//     before  older builds open the heap   after  they refuse it. Between the two stores the crc is
//     that of the superblock without the bit, which opening accepts
//   shards                       say_shards()                                            [shards]
//     needs   the files of the new shard, empty, and their names (fsync); the feature bit
//     before  files that are ignored, and are emptied   after   a shard without extents
//   link to a volume             make_link()                   [test_another_directory_comes_later]
//     needs   the directory, with its file `volume` (fsync)
//     before  a directory that the next opening takes    after  the heap has one volume more
//   the volume of a shard        pm_shard_moved()                 [test_kills_while_data_files_go]
//     needs   its files in the other volume, and their names (fsync); the heap is closed
//     before  copies that nobody reads    after  the heap's files; those before are not read
//   the limit that a tool sets   pm_own_limit_set()            [test_the_limit_rises_while_it_runs]
//     before  the limit before        after  the new one, also for a program that runs
//   root slot                    pmalloc_set_root()                               [slots unrooted]
//     needs   the block's entry, by malloc
//     before  the old pointer             after  the new pointer
//   commit of a lane             pm_lanes_publish()               [publish publishers recoverpub]
//     needs   its stores and their crc (those in its own line lie before it); the blocks that they
//     make reachable
//     before  none of the stores is made  after  all are: recovery makes them again
//   word of pinned blocks        pm_pin_change(), by pm_pin() and pm_unpin()             [publish]
//     needs   the slab's table and entry, or the large block's header and entry
//     before  the block is free, or still allocated     after  it is allocated, or free; a large
//     one's extent may stand for another block
//   end of a lane                pm_lanes_publish()                           [publish killedpub]
//     needs   the stores themselves
//     before  recovery makes them again   after  the program may change the same words
//   the same, by recovery        pm_lanes_finish()                           [recoverpub heirpub]
//     needs   the stores themselves
//     before  the next recovery makes them again     after  every thread may change the same words
//   entry of a deallocation log  append_freed()                         [far killedfar farthreads]
//     needs   the log's generation
//     before  the block is still allocated   after  it is free: recovery clears its bit
//   generation of one            next_generation()                      [far killedfar farthreads]
//     needs   the bits of all its entries, clear; once in 1,024 times the entries, set to 0
//     before  recovery clears these bits again   after  the blocks may be handed out again
//   entry                        pm_log_append() by put()                       [small large huge]
//     needs   length of heap.0, slab header, the chunk's zeroes and generation
//     before  the extent is free          after  it stands; recovery frees it if it is unreachable
//   entry over an erased one     pm_log_append_group(), on a plain file    [small large log cached]
//     needs   the same; the chunk's erased entries instead of its zeroes
//     before  any of the group's extents are free   after  all stand
//   two entries, one start       pm_extent_relog()                                        [resize]
//     needs   the entry with the new length, before the tombstone of the old one
//     between them, both stand: opening keeps the longer and erases the other
//   tombstone                    pm_log_end() by put()                      [small large standing]
//     before  the extent stands           after  it is free
//   entry erased in place        pm_log_erase()                           [logfull emptied capture]
//     needs   nothing: the entry is of a freed extent, or the shorter one of a resize
//     before  it stands, to be found again   after  it is free
//   many entries, at once        pm_log_forgotten(), pm_log_forgotten_between()      [swept cached]
//     needs   nothing: recovery has found these extents unreachable, or they are cached
//     before  any of the entries stand, to be found again   after  all are free
//   epoch of a chunk             enter_chunk()                                               [log]
//     needs   the chunk, empty, or (pm_places_more()) erased; its first entry shares the flush
//     before  the chunk is free           after  it is of the log
//   the same, set to free        drop_chunk(), drop_future_chunks()           [logfull recoverlog]
//     needs   nothing in it stands, and no tombstone in it is needed
//     before  the chunk is of the log, or of an unfinished compaction     after  it is free
//   number of chunks             pm_chunks_count()                                  [log logexact]
//     needs   the added chunks, as free ones
//     before  what lies beyond is not read   after  it is read, as free
//   epoch of the log             pm_log_compact(), pm_log_reset()           [log logexact emptied]
//     needs   the chunks of the new list, then their epochs; after pm_log_reset() there are none
//     before  the old list                after  the new list
//   current                      pm_slab_commit_class()           [morph recovermorph killedmorph]
//     needs   the index table, when a morph begins
//     before  the class before            after  the new class; line 0 ends the morph
//   word of an index table       pm_morph_media_change()                        [morph killedsync]
//     before  a freed old block is still listed; recovery ends that     after  its bytes are free
//   length of heap.0             pm_shard_set_frontier()                              [large huge]
//     needs   to shrink: the tombstones of all beyond the new end
//     before  the old length   after  the new one; opening cuts a free end off, mends slabs.0
//   heap.0 replaced by nothing   discard_data()                                    [emptied slots]
//     needs   the empty log
//     before  free pages, which opening gives back     after  an empty file
//   magic of a fixed medium      store_magic()                                   [remade from pair]
//     needs   everything before heap.N (fsync); the first medium's: the magics of the others
//     before  no heap                     after  an empty, dirty heap
//   the same, set to 0           store_magic()                                             [remade]
//     needs   nothing: nothing of the old heap is overwritten before it (fsync)
//     before  the heap that is overwritten   after  no heap
//   length of a part of one      pm_fixed_set_length()                        [full log killedpair]
//     needs   nothing: beyond the old one nothing is used
//     before  the old length              after  the new one, for later stores there
//   grown size of one            grow_medium()                                              [grown]
//     needs   zeroes in what is new, if the heap counts on them (fsync)
//     before  the old size                after  the new one, for heap.0
//   last group of a commit       pm_commit_enforce()                     [test_killed_under_time]
//     needs   the journal (fsync), all groups of it and of the commits before it in its lap
//     before  the last commit             after  this one, which opening applies again
//   first header of the journal  pm_journal_end_lap()                         [test_commit_crash]
//     needs   the files of all commits in it (fsync)
//     before  these are applied again     after  the journal may be written from its start
//   length 0 of the journal      pm_journal_retire()                             [test_clean_end]
//     needs   the files of all commits in it, and the end of its lap (fsync)
//     before  these are applied again     after  files may change without a journal
//   program                      pm_program_record()                                     [capture]
//     needs   nothing: a hint with its own crc. A torn one is ignored
//   generation of the objects    pm_record_renew()                 [test_a_record_that_is_gone]
//     needs   the record of that generation and its name (fsync)
//     before  the record before it        after  this one. In a rewriting it is a page of the
//     commit that changes the words              [test_killed_while_it_changes_words]
//   table of types               type_file_write()     [test_what_stays_in_the_heap_with_its_files]
//     needs   the file under its other name (fsync)
//     before  the table of the build before           after  that of a build that is as that one
//   a fork's copy gets its name  give_name()     [test_copy_killed_on_the_way_leaves_no_half_heap]
//     needs   all its files (fsync), the superblock last
//     before  a remnant                   after  a dirty heap, the child's
//   two heaps exchange names     pm_heap_copy_take_place()          [test_a_daemon_keeps_its_heap]
//     before  the child's heap under its own name     after  under its parent's
//   a backup gets its name       finish_first()          [test_killed_at_each_step_a_backup_stands]
//     needs   all its files and checksums (fsync)
//     before  an unfinished backup, which no program opens      after  a heap
//   magic of an increment        commit()                [test_killed_at_each_step_a_backup_stands]
//     needs   its index and data (fsync); the superblock set aside, so that who opens it folds
//     before  the backup of the round before                    after  the new one
//   a slot of a backup's ledger  pm_backup_write_ledger()           [test_lost_rounds_are_noticed]
//     needs   the increment of its round (fsync), which is in force already
//     before  who reads it lets the newest round be missing     after  it may not be
//   backup.checksums             merge_checksums()   [test_killed_while_many_increments_are_folded]
//     needs   all increments folded (fsync), the checksums of all rounds under another name (fsync)
//     before  checksums of the first round, and increments      after  all in one file
//   the superblock of a backup   pm_backup_fold()        [test_killed_at_each_step_a_backup_stands]
//     needs   all increments written to the files (fsync); they stay, so folding can be repeated
//     before  the next opening folds again                      after  a heap
//
// More is proved. [later] starts again and again without a collection: pages are free then that
// the log does not name. [late killedlate] capture a root when the program is ready for it.
// [holes] makes holes of pages that no block in use lies on: of them nothing stands on media.
// [threads] does all this from several threads. Recovery is interrupted in
// [swept recover recovermorph recovercap recoverlog]. The simulator takes changes of names and
// lengths as durable at once and in order; tests/vm, which cuts a guest's power, does not. Under
// PMALLOC_COMMIT all words are pages of a journal: tests/unit/test_journal_crash.c tears them.
#ifndef PM_FORMAT_H
#define PM_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/geometry.h"
#include "bitmaps_format.h"
#include "dealloc_format.h"
#include "feature_format.h"
#include "origin_format.h"

#define PM_FORMAT_VERSION 1u

// The heap range lies at 64 TiB: above Java's and Go's arenas, below ASan's allocator (0x6000...)
// and clear of the PIE, brk and mmap areas that address randomisation uses (0x55..., 0x7f...).
#define PM_HEAP_BASE 0x400000000000ull
#define PM_HEAP_RANGE (1ull << 40)

#define PM_MAX_NODES 8
#define PM_ROOT_SLOTS 512
#define PM_ROOT_MAX 256
#define PM_ROOT_OBJECT_LEN 96 // of a root's object and symbol, with the final NUL
#define PM_ROOT_NAME_LEN 160
#define PM_BUILD_ID_MAX 32

// ---- superblock ---------------------------------------------------------------------------------

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

// The state word. The two values differ in many bits, so that no flipped bit turns dirty into
// clean.
#define PM_STATE_CLEAN 0x6e61656c632d6d70ull // "pm-clean"
#define PM_STATE_DIRTY 0x7974726964216d70ull // "pm!dirty"

// Whether the addresses of the program on record come again. A hint.
enum pm_addresses {
    PM_ADDRESSES_UNKNOWN, // an older build has written the record
    PM_ADDRESSES_RANDOM,
    PM_ADDRESSES_FIXED, // randomisation was off when the program was started
    PM_ADDRESSES_AGAIN  // the start executed the program again without randomisation
};

// The program to which the heap's pointers into code and globals belong.
struct pm_program {
    char path[256];
    uint8_t build_id[PM_BUILD_ID_MAX]; // GNU build id, cut to 32 bytes, zero-padded
    uint32_t build_id_len;             // 0: the program has none
    uint32_t addresses;                // enum pm_addresses
    uint64_t main_base;                // load bias: 0 for a program linked at fixed addresses
    uint64_t libc_base;                // 0: no libc.so
    // Where the segments of the program and of all its libraries lay; 0: not recorded.
    uint64_t main_start;
    uint64_t main_end;
    uint64_t libs_start;
    uint64_t libs_end;
    // The other build that has used the heap since no word pointed into a program; 0: there is none
    uint8_t mixed[PM_BUILD_ID_MAX];
    uint8_t pad[8];
};
_Static_assert(sizeof(struct pm_program) == 384, "frozen");

// The close record: what a clean close vouches for, written before the state. Some damage cannot be
// found by the check of a single word, such as a chunk of the log that was replaced by an older
// one. The next opening finds it by comparison with this record.
struct pm_clean {
    uint64_t opens;       // pm_state.opens at the close; a record of another opening means nothing
    uint64_t heap_bytes;  // length of heap.0
    uint64_t log_entries; // number of entries that stand
    uint64_t log_sum;     // a sum over these entries
    uint64_t bitmaps_tag;
    uint32_t images_crc;   // of the bytes of captured roots
    uint32_t images_known; // 1: images_crc is set; 0: the heap had no roots
    uint8_t reserved[12];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_clean) == 64, "one cache line");

// Page 1. Each 64-bit word is a commit word of its own. `program` is a hint and has its own crc.
struct pm_state {
    uint64_t state;       // PM_STATE_*
    uint64_t root_epoch;  // sealed; root table [root_epoch & 1] is in force
    uint64_t opens;       // times opened for writing
    uint64_t owner_pid;   // last owner; a hint for messages, the lock is flock(2)
    uint64_t bitmaps_tag; // equals the tag in bitmaps.0 when that file belongs to this close
    uint64_t owner_start; // when it started: tells it from a later process with the same number
    uint64_t kept;        // a hint, sealed: see gc/recovery/kept.h; 0: nothing was kept
    uint64_t doubt;       // not 0: the medium may not have what the files show (see doubt.h)
    struct pm_program program;
    uint32_t program_crc;
    uint32_t lap;      // which lap of the journal may follow: see journal_format.h
    uint64_t applied;  // sealed: commits of the journal's lap that the files have; 0: none
    uint64_t pointers; // sealed: the forms of pointers that it was used with; 0: the default
    uint64_t live;     // a hint, sealed: see gc/recovery/kept.h; 0: not known
    struct pm_origin origin;
    struct pm_clean clean; // means something while the state is clean
    uint8_t reserved[4096 - 512 - 64];
};
_Static_assert(sizeof(struct pm_state) == 4096, "state is one page");
_Static_assert(offsetof(struct pm_state, program) == 64, "frozen; the words before are one line");
_Static_assert(offsetof(struct pm_state, doubt) == 56, "in the line of `state`");
_Static_assert(offsetof(struct pm_state, origin) == 480, "within a line");
_Static_assert(offsetof(struct pm_state, clean) == 512, "a line of its own");

// At the beginning of pm_state.reserved. All zero in a heap that was never opened on a machine with
// several NUMA nodes, and never had a second shard.
struct pm_shard_state {
    uint64_t shards;           // sealed: how many there are; 0 only without PM_INCOMPAT_SHARDS: one
    uint8_t node[PM_SHARDS];   // by shard: the number of its NUMA node + 1; 0: not known
    uint8_t volume[PM_SHARDS]; // by shard: the directory that has its files (volume.h)
    uint8_t reserved[24];
    struct pm_clean clean[PM_SHARDS - 1]; // as pm_state.clean, of the shards from 1 on
};
_Static_assert(sizeof(struct pm_shard_state) == 1024, "frozen");
_Static_assert(offsetof(struct pm_shard_state, volume) + PM_SHARDS <= 64,
               "in the line of `shards`");
_Static_assert(offsetof(struct pm_shard_state, clean) == 64, "each a line of its own");
_Static_assert(offsetof(struct pm_state, reserved) % 64 == 0, "likewise");

// What pmalloc_set_root() stores: 48 bits of pointer, and above them 16 bits of check. An empty
// slot has check bits, too (pm_slot_word()).
struct pm_slots {
    uint64_t slot[PM_ROOT_SLOTS];
};
_Static_assert(sizeof(struct pm_slots) == 4096, "slots are one page");

// The file `volume` in each directory of the heap but the first (volume.h).
#define PM_VOLUME_MAGIC 0x31454d554c4f564dull // "MVOLUME1"

struct pm_volume {
    uint64_t magic;
    uint8_t uuid[16]; // of the superblock
    uint32_t number;
    uint8_t reserved[32];
    uint32_t crc; // of all bytes before it
};
_Static_assert(sizeof(struct pm_volume) == 64, "frozen");

enum pm_root_kind { PM_ROOT_SYMBOL = 1, PM_ROOT_OBJECT = 2, PM_ROOT_RANGE = 3 };

#define PM_ROOT_BUILD 20
// A root that was dropped and is kept, so that it can be had back: `object` is this word, perhaps a
// number, and after a dash what it was. No program finds it, and no start restores it.
#define PM_ROOT_DROPPED "dropped"
// When a start restores the root, and captures it.
enum pm_root_when {
    PM_ROOT_AT_START, // before main
    PM_ROOT_AT_IDLE,  // when each thread of the program waits
    PM_ROOT_AT_CALL,  // when the program calls pmalloc_restore()
};
struct pm_root {
    uint32_t kind;                   // enum pm_root_kind
    uint32_t part;                   // segment number of a whole-object root, else 0
    uint64_t spec_offset;            // PM_ROOT_RANGE only: the offset that the spec names
                                     // in the symbol, or from the load base
    uint64_t length;                 // bytes captured for this root
    uint64_t image;                  // offset of its first byte in the roots file
    uint64_t address;                // where it was at capture
    char object[PM_ROOT_OBJECT_LEN]; // "" is the main program
    char name[PM_ROOT_NAME_LEN];     // symbol, or ""
    uint8_t build[PM_ROOT_BUILD];    // of a range: its object's build id, cut, or its
                                     // symbol's size; 0: not known
    uint8_t when;                    // enum pm_root_when
    uint8_t waits; // 1: the last start has not restored it yet, so the image is of an earlier run
    uint8_t reserved[2];
};
_Static_assert(sizeof(struct pm_root) == 320, "frozen");

// `crc` covers everything from `count` up to root[count].
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

// ---- slab headers -------------------------------------------------------------------------------

#define PM_SLAB_MAGIC 0x4c53u

// A header is durable before its slab's log entry. It means nothing if the log has no slab there.
// While the slab stands, only `current` changes: one 8-byte store names class and index table, and
// is the commit of a morph.
struct pm_slab_header {
    uint16_t magic;
    uint8_t size_class; // 1 .. PM_CLASSES, as it was made
    uint8_t kind;       // enum pm_kind; a slab that morphs keeps it
    uint32_t data_offset;
    // Sealed: size class << 26 | first line of the index table in morph.0, or 0 where there is
    // none.
    uint64_t current;
    uint16_t type; // of typed blocks (kind_format.h); else 0
    uint8_t reserved[42];
    uint32_t crc; // of the slab's number and all bytes before it, `current` taken as 0
};
_Static_assert(sizeof(struct pm_slab_header) == 64, "one cache line");
_Static_assert(offsetof(struct pm_slab_header, crc) == 60, "frozen");
_Static_assert(offsetof(struct pm_slab_header, current) == 8, "frozen");
_Static_assert(offsetof(struct pm_slab_header, type) == 16, "frozen");

#define PM_CURRENT_SHIFT 26
#define PM_SALT_CURRENT(slab) (0x80000000u | (slab))

// ---- morph.0 ------------------------------------------------------------------------------------

// An index table: which blocks of the class before the morph may be in use. A sealed word for every
// 32 of these blocks follows: bit i of word w is for block 32 * w + i. After the morph bits are
// only cleared. Each word is a commit word of its own.
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

// ---- bookkeeping log ----------------------------------------------------------------------------

#define PM_LOG_MAGIC 0x474f4c4b4f4f4221ull
#define PM_CHUNK_SIZE 1024u
#define PM_CHUNK_ENTRIES 126u

#define PM_SALT_ROOT_EPOCH 0xffffffffu
#define PM_SALT_LOG_EPOCH 0xfffffffeu
#define PM_SALT_LOG_CHUNKS 0xfffffffdu
#define PM_SALT_SHARDS 0xfffffffcu
#define PM_SALT_KEPT 0xfffffffbu
#define PM_SALT_APPLIED 0xfffffff9u
#define PM_SALT_POINTERS 0xfffffff7u
#define PM_SALT_LIVE 0xfffffff6u
#define PM_SALT_OBJECTS 0xfffffff5u
#define PM_SALT_TYPED_WORDS 0xfffffff4u
#define PM_SALT_CHUNK_EPOCH(id) ((id) << 1)
#define PM_SALT_CHUNK_GENERATION(id) ((id) << 1 | 1)

// A chunk belongs to the log exactly while chunk.epoch == header.epoch. So one 8-byte store frees a
// chunk, and one 8-byte store switches to the list of a compaction (the papers' alt bit).
struct pm_log_header {
    uint64_t magic;
    uint32_t version;
    uint32_t chunk_size;
    uint64_t epoch;  // sealed
    uint64_t chunks; // sealed: how many chunks were ever used; those beyond mean nothing
    uint8_t reserved[32];
    struct pm_dealloc_log dealloc[PM_DEALLOC_LOGS];
};
_Static_assert(sizeof(struct pm_log_header) == 4096, "log header is one page");
_Static_assert(offsetof(struct pm_log_header, dealloc) == 64, "lines of their own");

struct pm_log_chunk {
    uint64_t epoch;      // sealed; 0 is free
    uint64_t generation; // sealed; rises with every use of the chunk; tombstones name it
    uint64_t entry[PM_CHUNK_ENTRIES];
};
_Static_assert(sizeof(struct pm_log_chunk) == PM_CHUNK_SIZE, "frozen");
_Static_assert(offsetof(struct pm_log_chunk, entry) < 64, "the first entry is in the epoch's line");

// An entry, from its highest bit down:
//
//   extent, slab   26 bits number of pages                     8 check   28 page         2 type
//   tombstone      26 bits generation of the ended entry's chunk   8 check   28 position    2 type
//
// The position of an entry is chunk * 128 + entry. The check is a CRC of the other bits, of the
// entry's own position and of the generation of its own chunk. A zero word is no entry. Entries are
// appended in a fixed order (pm_entry_slot()), and all chunks but the last are full. So an entry
// that is lost leaves a hole.
enum pm_entry_type {
    PM_ENTRY_NONE = 0,
    PM_ENTRY_EXTENT = 1,
    PM_ENTRY_SLAB = 2, // or a large block of a kind (kind_format.h)
    PM_ENTRY_TOMBSTONE = 3
};
#define PM_ENTRY_CHECK_SHIFT 30

#endif
