// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// A look at leaks beside the program (preload/process/leaks_marker.h), and commits, which use the
// same record of stores (core/media/commit/stored_pages.h), as a model for spin.
//
//   program     has the address of a block in a root, or in pages of blocks that are reached. It
//               moves and copies it, loses it, frees the block, and allocates it again
//   marker      marks what roots and pages name, while the program runs; then looks at what was
//               stored to since, at last while the program is halted
//   committer   makes commits of the pages: those that look at the record, or at all pages
//
// `written` is the kernel's record. Who looks at it begins it anew: `owed` and `told` have what the
// commits and the marker are to see of what the other has taken.
//
// Checked: a block that is in use and named is not reported, and at the instant of a commit the
// file has what memory has. tests/integration/test_models.py runs it, and each mutant, which must
// be found:
//
//   NO_AGAIN       a page that was stored to is not looked at again
//   NOT_HALTED     the last look is not taken while the program is halted
//   NO_ROOTS       the last look does not take the roots again
//   READS_FIRST    the pages are marked from before the record begins
//   NOT_TOLD       a commit begins the record anew, and does not tell the marker
//   NOT_OWED       the marker does, and does not tell the commits
//   TAKES_BESIDE   the marker takes from the record while a commit may be made
//   GIVES_BACK     a commit gives a page back, which takes it out of the record
#define PAGES 2
#define COMMITS 1
#define LOOKS 1

bool root = true, used = true, marked;
bool has[PAGES], file[PAGES]; // a page has the address; so has its file
bool written[PAGES], owed[PAGES], told[PAGES], seen[PAGES];
bool watch;  // commits look at the record
bool ready;  // that is settled
bool halted; // by the tool
bool held;   // by a commit
bool lock;   // of the commits
byte m, c;   // the marker's page, the committer's

#define EACH(p, what) p = 0; do :: p < PAGES -> what; p++ :: else -> break od

inline store(at, value) { has[at] = value; written[at] = true }

active proctype program() {
    byte page;
    do
    :: atomic {
           !halted && !held ->
           if :: page = 0 :: page = 1 fi;
           if
           :: root -> store(page, true); root = false
           :: root -> store(page, true)
           :: root -> root = false
           :: has[page] -> root = true; store(page, false)
           :: has[page] -> root = true
           :: has[page] -> store(page, false); store(1 - page, true)
           :: !used -> used = true; root = true
           :: used -> used = false; root = false; store(0, false); store(1, false)
           fi
       }
    od
}

// ---- the marker ---------------------------------------------------------------------------------

// The tool halts the program while nobody makes a commit.
inline halt() { atomic { !lock && !held -> halted = true } }

inline take() {
    EACH(m, atomic {
        seen[m] = written[m] || told[m];
        told[m] = false;
#ifndef TAKES_BESIDE
#ifndef NOT_OWED
        owed[m] = owed[m] || (watch && written[m]);
#endif
        written[m] = false
#endif
    });
#ifdef TAKES_BESIDE
    halted = false;
    EACH(m, {
        atomic { seen[m] = seen[m] || written[m]; written[m] = false };
        owed[m] = owed[m] || (watch && seen[m])
    })
#endif
}

inline mark(all) {
    EACH(m, atomic {
        if
        :: (all || seen[m]) && has[m] && used -> marked = true
        :: else
        fi
    })
}

inline look() {
    take();
#ifdef NO_AGAIN
    EACH(m, seen[m] = false)
#endif
}

active proctype marker() {
    byte looks;
    ready;
    halt();
    marked = root && used;
#ifdef READS_FIRST
    halted = false;
    mark(true);
    halt();
    take();
    halted = false;
#else
    take();
    halted = false;
    mark(true);
#endif
    do
    :: looks < LOOKS -> looks++; halt(); look(); halted = false; mark(false)
    :: break
    od;
#ifndef NOT_HALTED
    halt();
#endif
    look();
#ifndef NO_ROOTS
    marked = marked || (root && used);
#endif
    mark(false);
    assert(marked || !used || !(root || has[0] || has[1]));
    halted = false
}

// ---- the committer ------------------------------------------------------------------------------

bool looked[PAGES];

inline begin_record() {
    EACH(c, atomic {
        looked[c] = written[c] || owed[c];
        owed[c] = false;
#ifndef NOT_TOLD
        told[c] = told[c] || written[c];
#endif
        written[c] = false
    })
}

inline write_pages(all) {
    EACH(c, atomic { if :: all || looked[c] -> file[c] = has[c] :: else fi })
}

active proctype committer() {
    byte commits;
    atomic { if :: watch = true :: watch = false fi; ready = true };
    do
    :: commits < COMMITS ->
       commits++;
       atomic { !halted && !lock -> lock = true };
       if
       :: watch -> begin_record(); write_pages(false) // a round
       :: true
       fi;
       held = true;
       if
       :: watch -> begin_record(); write_pages(false)
       :: else -> write_pages(true)
       fi;
       EACH(c, assert(file[c] == has[c]));
#ifdef GIVES_BACK
       EACH(c, written[c] = false);
#endif
       held = false;
       lock = false
    :: else -> break
    od
}
