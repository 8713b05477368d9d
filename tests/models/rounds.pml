// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Rounds before the instant of a commit (core/media/commit/rounds.h), as a model for spin.
//
//   program     stores to pages, also what they had before
//   device      has a page pinned for a while, and stores to it past the kernel's record
//   committer   makes rounds and takes instants; each commit may come to nothing
//
// For each page there are the memory, the file as of the last commit in force, the journal's page
// of the commit that is being made, the sum by which a look tells whether a page is new, and the
// kernel's record of stores.
//
// Checked: at an instant file and journal together are the memory, and a page that is given back
// has what its file has. tests/integration/test_models.py runs it, and each mutant, which must be
// found:
//
//   READ_FIRST     a round reads the pages, and begins the record anew afterwards
//   NO_LAST_LOOK   the instant does not look at what was stored to since the last round
//   NOT_TAKEN      a page of a round is compared with what the last commit left
//   DROPS_TAKEN    a page is given back although it is only in the journal
//   NO_UNDO        after a commit that came to nothing its sums stay
//   NO_FORGET      and so does its record
//   NO_QUESTION    nobody asks who may store past the record
//   ASKS_FIRST     that is asked before the record begins anew
#define PAGES 2
#define COMMITS 3
#define ROUNDS 2
#define NONE 9

byte memory[PAGES], file[PAGES], sum[PAGES], journal[PAGES] = NONE;
bool written[PAGES] = true; // in the record; a page that was never looked at is
bool found[PAGES], taken[PAGES];
bool held, pinned;
bool unseen; // somebody may store past the record
byte p;      // the committer's

#define EACH(what) p = 0; do :: p < PAGES -> what; p++ :: else -> break od

active proctype program() {
    byte page, value;
    do
    :: atomic {
           !held ->
           if :: page = 0 :: page = 1 fi;
           if :: value = 0 :: value = 1 fi;
           memory[page] = value;
           written[page] = true
       }
    od
}

// To pin a page is a store for the record.
active proctype device() {
    byte times;
    do
    :: atomic { !held && !pinned && times < 2 -> pinned = true; written[1] = true; times++ }
    :: atomic { !held && pinned -> memory[1] = 1 - memory[1] }
    :: atomic { !held && pinned -> pinned = false }
    od
}

inline look(all) {
    EACH(atomic {
        if
        :: (all || found[p]) && memory[p] != sum[p] ->
           journal[p] = memory[p];
#ifndef NOT_TAKEN
           sum[p] = memory[p];
#endif
           taken[p] = true
        :: else
        fi;
        found[p] = false
    })
}

inline begin_record() { EACH(atomic { found[p] = written[p]; written[p] = false }) }

inline forget() { EACH(written[p] = true) }

#ifdef NO_QUESTION
#define ASK unseen = false
#else
#define ASK unseen = pinned
#endif

inline round() {
#ifdef READ_FIRST
    EACH(found[p] = written[p]);
    look(false);
    begin_record();
    ASK;
    if :: unseen -> forget() :: else fi
#else
#ifdef ASKS_FIRST
    ASK;
    begin_record();
#else
    begin_record();
    ASK;
#endif
    if :: unseen -> forget() :: else -> look(false) fi
#endif
}

inline instant() {
    held = true;
    begin_record();
    ASK;
#ifndef NO_LAST_LOOK
    if :: unseen -> forget(); look(true) :: else -> look(false) fi;
#endif
    EACH(assert(memory[p] == (journal[p] == NONE -> file[p] : journal[p])));
    EACH(if
         :: !written[p]
#ifndef DROPS_TAKEN
            && !taken[p]
#endif
            -> assert(memory[p] == file[p])
         :: else
         fi);
    held = false
}

inline succeed() {
    EACH(d_step {
        file[p] = (journal[p] == NONE -> file[p] : journal[p]);
        sum[p] = file[p];
        journal[p] = NONE;
        taken[p] = false
    })
}

inline fail() {
    EACH(d_step {
#ifndef NO_UNDO
        sum[p] = file[p];
#endif
        journal[p] = NONE;
        taken[p] = false
    });
#ifndef NO_FORGET
    forget()
#endif
}

active proctype committer() {
    byte commits, rounds;
    do
    :: commits < COMMITS ->
       commits++;
       rounds = 0;
       do
       :: rounds < ROUNDS -> rounds++; round()
       :: break
       od;
       instant();
       if :: succeed() :: fail() fi
    :: else -> break
    od
}
