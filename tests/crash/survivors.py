# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What `run` accepts: call sites that no scenario reaches, and mutants that survive; each with the
reason. The texts are those of the source lines."""

# Call sites that no scenario can reach: (function, text of the line) -> reason.
UNREACHED = {
    (
        "next_generation",
        "pm_make_durable(m->entry, sizeof m->entry);",
    ): "every 1,024th sync of a log; tests/unit/test_dealloc.c goes round and looks at the order",
    (
        "give_name",
        "if (renameat(other.dir_fd, from, other.dir_fd, to) != 0 ||",
    ): "the copy of a fork; tests/integration/test_fork.py kills it at random instants",
    (
        "pm_backup_fold",
        "(fsync(dir_fd) != 0 || renameat(dir_fd, PM_BACKUP_SUPERBLOCK, dir_fd, super) != 0 ||",
    ): "of a backup; tests/integration/test_backup_power.py cuts the power there",
    (
        "check_window",
        "pm_flush(map, len);",
    ): "zeroes that somebody has written there, not only allocated; test_lost_writes.py",
    (
        "pm_commit_first",
        "pm_make_durable(&state->doubt, sizeof state->doubt);",
    ): "the begin of commit mode; a cut before it leaves doubt, which costs time alone",
    (
        "pm_commit_first",
        "pm_make_durable(&state->lap, sizeof state->lap);",
    ): "the begin of commit mode; a cut before it leaves a lap of which there is no journal",
    (
        "pm_instants_keep",
        "pm_make_durable(s, sizeof *s);",
    ): "a clean close in commit mode; a cut before it leaves a record that its sum refuses",
    (
        "pm_forms_set_mask",
        "pm_commit_u64(&pm_heap.super->state.pointers,",
    ): "GC_set_pointer_mask(); a cut before it leaves the mask of the run before",
    (
        "pm_forms_record",
        "pm_commit_u64(&state->pointers, word);",
    ): "PMALLOC_POINTERS is set; a cut before it leaves the forms of the run before",
    (
        "look_at",
        "pm_flush(word, sizeof *word);",
    ): "a library that comes elsewhere; a cut leaves words of both places, and a record with both",
    (
        "pm_late_words",
        "pm_drain();",
    ): "the same",
    (
        "flush",
        "pm_flush(g->from, (size_t)(g->to - g->from));",
    ): "PMALLOC_TRANSIENT; a cut leaves words that the next recovery clears; test_transient.py",
    (
        "clear_shard",
        "pm_drain();",
    ): "the same",
    (
        "pm_typed_word_set",
        "pm_commit_u64(entry, words ? pm_seal(line | words, PM_SALT_TYPED_WORDS) : 0);",
    ): "pmalloc_transient(); a cut before it leaves the words that were declared before",
    (
        "clear_extent",
        "pm_flush(b.stored.from, (size_t)(b.stored.to - b.stored.from));",
    ): "pmalloc_transient(); a cut leaves words that the next start clears; test_transient.py",
    (
        "pm_clear_typed",
        "pm_drain();",
    ): "the same",
    (
        "pm_copies_make",
        "pm_make_durable(at, c->bytes);",
    ): "strings that a new build lacks; no word leads to them before a later commit",
    (
        "pm_own_limit_set",
        "renameat(pm_heap.dir_fd, new, pm_heap.dir_fd, name) == 0 &&",
    ): "a tool's limit, which no data depend on; a cut before it leaves the one before",
    (
        "pm_shard_moved",
        "pm_make_durable(word, sizeof *word);",
    ): "a tool moves a data file; test_nodes.py kills it there, and both copies are whole",
    (
        "check_empty",
        "pm_commit_u64(&pm_heap.super->state.applied, 0);",
    ): "`--at good` of a removed journal; a cut before it leaves the heap refused, as it was",
}

# Mutants that survive: (operation, function, text of the line) -> why that is harmless.
FUTURE = (
    "drop_future_chunks",
    "pm_commit_u64(&pm_chunk_at(s, id)->epoch, pm_chunk_free_epoch(id));",
)
ERASE = ("pm_log_erase", "pm_make_durable(mark_erased(s, pos), sizeof(uint64_t));")
PROGRAM = (
    "pm_program_record",
    "pm_make_durable(&state->program, sizeof state->program + sizeof state->program_crc);",
)
DIRTY = (
    "pm_heap_dirty",
    "pm_make_durable(state, sizeof *state + sizeof(struct pm_slots));",
)
INHERITED = ("pm_slab_flush_inherited", "pm_flush(s->slabs.map, s->slabs.size);")
INHERITED_TABLES = ("pm_slab_flush_inherited", "pm_flush(s->morph.map, s->morph.size);")
CHECKSUM = ("pm_feature_set", "pm_make_durable(&super->crc, sizeof crc);")
FEATURE = (
    "pm_feature_flush_inherited",
    "pm_flush(&pm_heap.super->super, sizeof pm_heap.super->super);",
)
BLOCKS = ("flush_blocks", "pm_flush(op[i].at, op[i].value);")
OLD_CHECKSUM = "the checksum without the feature bit is accepted, too"
OWN_DATA = "blocks are durable at once here; tests/unit/test_publish.c sees each flush"
HINT = "a hint with a checksum of its own: without it only a warning is missing"
NEXT_DRAIN = "the next drain comes before the commit that could bring the chunk into force"
NO_ROOM = "the log had no room, so the next entry first needs a new chunk, and that drains"
DRAINED_NEXT = "nothing is stored before the drain of the log, or in pm_roots_drop() of the table"
HARMLESS = {
    ("drop-drain", *DIRTY): DRAINED_NEXT,
    ("late-flush", *DIRTY): DRAINED_NEXT,
    ("late-flush", *INHERITED): "the log's drain comes before anything is freed",
    ("late-flush", *INHERITED_TABLES): "the log's drain comes before anything is freed",
    ("drop-drain", *FUTURE): NEXT_DRAIN,
    ("late-flush", *FUTURE): NEXT_DRAIN,
    ("drop-drain", *ERASE): NO_ROOM,
    ("late-flush", *ERASE): NO_ROOM,
    ("drop-drain", *CHECKSUM): OLD_CHECKSUM,
    ("drop-flush", *CHECKSUM): OLD_CHECKSUM,
    ("late-flush", *CHECKSUM): OLD_CHECKSUM,
    ("late-flush", *FEATURE): "the log's drain comes before anything of a feature is made",
    ("drop-flush", *BLOCKS): OWN_DATA,
    ("late-flush", *BLOCKS): OWN_DATA,
    ("drop-flush", *PROGRAM): HINT,
    ("drop-drain", *PROGRAM): HINT,
    ("late-flush", *PROGRAM): HINT,
}
