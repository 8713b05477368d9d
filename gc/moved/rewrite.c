// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
#include "rewrite.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/crc.h"
#include "base/options.h"
#include "base/os.h"
#include "base/os_file.h"
#include "found_words.h"
#include "media/backing/fixed.h"
#include "media/commit/commit.h"
#include "media/commit/journal_files.h"
#include "media/heap.h"
#include "rebased.h"
#include "recovery/block_around.h"
#include "recovery/way.h"
#include "roots/objects_record.h"
#include "roots/program.h"
#include "trust.h"
#include "verdict.h"

// ---- verdicts -----------------------------------------------------------------------------------

#define REASONS 20u
#define WAY 400u

static struct {
    char text[PM_VERDICT_WHY];
    uint64_t words, first; // where the first of them is
} reason[REASONS];
static unsigned reasons;
static uint64_t other_reasons;

static void count_reason(const char *why, uint64_t where) {
    for (unsigned i = 0; i < reasons; i++)
        if (strcmp(reason[i].text, why) == 0) {
            reason[i].words++;
            return;
        }
    if (reasons == REASONS) {
        other_reasons++;
        return;
    }
    snprintf(reason[reasons].text, sizeof reason[0].text, "%s", why);
    reason[reasons].first = where;
    reason[reasons++].words = 1;
}

// "": no block has it.
static void find_way(uint64_t where, char out[WAY]) {
    struct pm_block b;
    *out = '\0';
    if (where && !(where & PM_WORD_IN_ROOT) && pm_block_around(where - pm_base, false, &b))
        pm_way_find_text(b.start, where - pm_base - b.start, out, WAY);
}

static void say_reasons(void) {
    static char way[WAY];
    for (unsigned i = 0; i < reasons; i++) {
        bool one = reason[i].words == 1;
        find_way(reason[i].first, way);
        pm_event(PM_EV_REBASE_REASON, "%lu word%s: %s%s%s%s", (unsigned long)reason[i].words,
                 one ? "" : "s", reason[i].text,
                 !*way ? ""
                 : one ? "; at `"
                       : "; the first at `",
                 way, *way ? "`" : "");
    }
    if (other_reasons)
        pm_event(PM_EV_REBASE_REASON, "%lu more words, for other reasons",
                 (unsigned long)other_reasons);
}

// Few things are pointed to by many words.
#define REMEMBERED 8192u

static struct remembered {
    uint64_t address, to;
    enum pm_verdict verdict;
    char why[PM_VERDICT_WHY];
} * remembered;

static void judge_anew(uint64_t address, struct remembered *r, struct pm_copies *copies) {
    struct pm_matched to;
    r->address = address;
    r->verdict = pm_verdict_of(address, &to, r->why);
    r->to = r->verdict == PM_VERDICT_STALE ? 0 : to.at;
    if (r->verdict != PM_VERDICT_COPIED)
        return;
    r->to = pm_copy_of(copies, to.text, to.size);
    if (!r->to && !pm_copy_add(copies, to.text, to.size)) {
        r->verdict = PM_VERDICT_UNSURE;
        snprintf(r->why, sizeof r->why, "strings of more than %u bytes are gone in this build",
                 PM_COPIES_BYTES);
    }
}

static const struct remembered *judge(uint64_t address, struct pm_copies *copies) {
    struct remembered *r = &remembered[(address ^ address >> 13) % REMEMBERED];
    if (r->address != address)
        judge_anew(address, r, copies);
    return r;
}

static bool is_change(const struct remembered *r) {
    return r->verdict == PM_VERDICT_CHANGES || r->verdict == PM_VERDICT_COPIED ||
           r->verdict == PM_VERDICT_STALE;
}

static void judge_all(const struct pm_found_words *f, struct pm_rewritten *done) {
    for (uint64_t i = 0; i < f->count; i++) {
        const struct remembered *r = judge(*pm_word_at(f, f->where[i]), &done->copies);
        done->changed += is_change(r);
        done->stale += r->verdict == PM_VERDICT_STALE;
        done->waits += r->verdict == PM_VERDICT_WAITS;
        done->unsure += r->verdict == PM_VERDICT_UNSURE;
        if (r->verdict == PM_VERDICT_UNSURE || r->verdict == PM_VERDICT_STALE)
            count_reason(r->why, f->where[i]);
    }
    if (f->elsewhere) {
        done->unsure++;
        count_reason("a root slot, or a publish that was not finished: start the old build once, "
                     "which finishes it",
                     0);
    }
}

// ---- the commit ---------------------------------------------------------------------------------

struct commit {
    struct pm_journal journal;
    unsigned file;
    uint64_t page; // of the file
    bool open;     // `bytes` are of that page
    _Alignas(8) char bytes[PM_PAGE_SIZE];
};

static void close_page(struct commit *c) {
    if (c->open)
        pm_journal_add_pages(&c->journal, c->file, c->page, c->bytes, 1);
    c->open = false;
}

static void open_page(struct commit *c, unsigned file, uint64_t page, const void *from) {
    if (c->open && c->file == file && c->page == page)
        return;
    close_page(c);
    memcpy(c->bytes, from, sizeof c->bytes);
    c->file = file;
    c->page = page;
    c->open = true;
}

static bool read_root_page(uint64_t page, char out[PM_PAGE_SIZE]) {
    memset(out, 0, PM_PAGE_SIZE); // the last one may be short
    return pm_os_read_at(pm_heap.roots.fd, out, PM_PAGE_SIZE, page << PM_PAGE_SHIFT) > 0;
}

static bool put_root_word(struct commit *c, uint64_t at, uint64_t to) {
    static char page[PM_PAGE_SIZE];
    uint64_t number = at >> PM_PAGE_SHIFT;
    if (!(c->open && c->file == pm_journal_file(PM_JOURNAL_ROOTS, 0) && c->page == number) &&
        !read_root_page(number, page))
        return false;
    open_page(c, pm_journal_file(PM_JOURNAL_ROOTS, 0), number, page);
    memcpy(c->bytes + (at & (PM_PAGE_SIZE - 1)), &to, sizeof to);
    return true;
}

static void put_word(struct commit *c, uint64_t at, uint64_t to) {
    uint64_t offset = at - pm_base;
    unsigned shard = (unsigned)(offset >> PM_SHARD_SHIFT);
    uint64_t page = (offset & (PM_SHARD_RANGE - 1)) >> PM_PAGE_SHIFT;
    open_page(c, pm_journal_file(PM_JOURNAL_DATA, shard), page,
              (const char *)(uintptr_t)(at & ~(uint64_t)(PM_PAGE_SIZE - 1)));
    memcpy(c->bytes + (at & (PM_PAGE_SIZE - 1)), &to, sizeof to);
}

static bool put_words(struct commit *c, const struct pm_found_words *f, struct pm_copies *copies) {
    for (uint64_t i = 0; i < f->count; i++) {
        const struct remembered *r = judge(*pm_word_at(f, f->where[i]), copies);
        uint64_t at = f->where[i];
        if (!is_change(r))
            continue;
        if (!(at & PM_WORD_IN_ROOT))
            put_word(c, at, r->to);
        else if (!put_root_word(c, at & ~PM_WORD_IN_ROOT, r->to))
            return false;
    }
    return true;
}

// What a clean close vouches for is no longer so. Opening recovers the heap.
static void put_state(struct commit *c, uint32_t generation, const struct pm_rewritten *done) {
    open_page(c, pm_journal_file(PM_JOURNAL_SUPER, 0), 1, &pm_heap.super->state);
    struct pm_state *state = (struct pm_state *)(void *)c->bytes;
    state->state = PM_STATE_DIRTY;
    pm_record_switch(state, generation);
    pm_rebased_count(state, done->changed, done->other_build);
    if (pm_program_now(&state->program))
        state->program_crc = pm_crc32c(0, &state->program, sizeof state->program);
    close_page(c);
}

static bool begin(struct commit *c, struct pm_error *err) {
    c->journal = (struct pm_journal){.io = &pm_journal_files,
                                     .most = PM_JOURNAL_PAGES,
                                     .first = pm_os_reserve(PM_JOURNAL_BUFFER)};
    if (!c->journal.first || pm_commit_first(err) != PM_OK)
        return false;
    c->journal.follows = pm_heap.super->state.lap;
    pm_journal_begin(&c->journal, pm_heap.super->super.uuid, 1, pm_commit_clock());
    return true;
}

// A device cannot be written but by stores, which a journal does not make.
static int lacks_journal(uint64_t words, struct pm_error *err) {
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s: %lu word%s of it lead%s into the program or its libraries, which are "
                   "another build or lie elsewhere; to change them takes a journal, and this heap "
                   "%s; nothing was changed: go on with the old build, or copy the heap to a "
                   "directory (pmalloc-backup), and use it there or bring it from there to a file "
                   "by `pmalloc-recover --make --journal SIZE --from DIRECTORY FILE`",
                   pm_heap.dir, (unsigned long)words, words == 1 ? "" : "s", words == 1 ? "s" : "",
                   pm_fixed_device() ? "lies on a device" : "has no room for one");
}

static int commit(const struct pm_found_words *f, struct pm_rewritten *done, struct pm_error *err) {
    static struct commit c;
    uint32_t next = pm_record_generation() + 1;
    err->text[0] = '\0';
    bool good = pm_record_write_next(next, pm_verdicts_kept()) && begin(&c, err) &&
                put_words(&c, f, &done->copies);
    if (good)
        put_state(&c, next, done);
    if (good && pm_journal_end(&c.journal) && pm_journal_files.sync(PM_JOURNAL_SELF))
        return PM_OK;
    int error = errno;
    if (c.journal.first)
        pm_journal_remove();
    return err->text[0] ? err->status
                        : pm_fail(err, PM_OPERATIONAL,
                                  "%s: its words cannot be made to lead into this build: %s; "
                                  "nothing was changed",
                                  pm_heap.dir, pm_strerror(error));
}

// ---- all of it ----------------------------------------------------------------------------------

static int refuse(const struct pm_rewritten *done, struct pm_error *err) {
    say_reasons();
    return pm_fail(err, PM_OPERATIONAL,
                   "%.300s: of %lu words that lead into the program or its libraries %lu cannot be "
                   "made to lead to the same things now; nothing was changed: go on with the old "
                   "build, or set PMALLOC_REBASE=report to start with all of them as they are",
                   pm_heap.dir, (unsigned long)(done->changed + done->unsure),
                   (unsigned long)done->unsure);
}

int pm_rewrite(bool dry, struct pm_rewritten *done, struct pm_error *err) {
    const struct pm_range_of_words *range;
    struct pm_found_words found;
    done->changed = done->stale = done->waits = done->unsure = 0;
    pm_copies_check(&done->copies);
    unsigned ranges = pm_verdicts_begin(&range);
    remembered = pm_os_reserve(REMEMBERED * sizeof *remembered);
    if (!remembered)
        return pm_fail(err, PM_OPERATIONAL, "%s: no memory to judge words; see `ulimit -v`",
                       pm_heap.dir);
    int status = pm_words_find(range, ranges, &found, err);
    if (status != PM_OK)
        return status;
    judge_all(&found, done);
    const char *seed = pm_trusts(PM_TRUST_HASHED) ? NULL : pm_verdicts_seed();
    if (seed)
        return pm_fail(
            err, PM_OPERATIONAL,
            "%.300s: %.100s hashes by an address (Abseil's kSeed), which is another one "
            "in this build or place: its tables would find nothing; nothing was changed: "
            "go on with the old build, or set PMALLOC_REBASE_TRUST=hashed if the program makes "
            "such tables anew",
            pm_heap.dir, seed);
    done->other_build = pm_verdicts_other_build();
    if (done->unsure)
        return refuse(done, err);
    if (pm_options.rebase.number == PM_REBASE_REFUSE && done->changed)
        return pm_fail(err, PM_OPERATIONAL,
                       "%.300s: %lu words lead into the program or its libraries, which are "
                       "another build or lie elsewhere, and PMALLOC_REBASE=refuse forbids to "
                       "change them; nothing was changed",
                       pm_heap.dir, (unsigned long)done->changed);
    if (done->changed && pm_fixed_is_open() && (pm_fixed_device() || !pm_heap.journal.length))
        return lacks_journal(done->changed, err);
    if (!pm_rewrite_lacks_copies(done) || dry)
        say_reasons();
    bool later = dry || !done->changed || pm_rewrite_lacks_copies(done);
    return later ? PM_OK : commit(&found, done, err);
}
