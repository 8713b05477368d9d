// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Rounds before the instant of a commit (core/media/commit/rounds.h), as a model for spin.
//
//   program     stores to pages, also what they had before
//   device      has a page pinned for a while, and stores to it past the kernel's record
//   committer   makes rounds and takes instants, at which the record begins anew, or goes on; each
//               commit may come to nothing
//
// For each page there are the memory, the file as of the last commit in force, the journal's page
// of the commit that is being made, the sum by which a look tells whether a page is new, and the
// kernel's record of stores.
//
// Checked: file and journal together are the memory of the instant, although the program stores
// before the copies of the instant are looked at; and a page that is given back has what its file
// has. tests/integration/test_models.py runs it, and each mutant, which must be
// found:
//
//   READ_FIRST     a round reads the pages, and begins the record anew afterwards
//   NO_LAST_LOOK   the instant does not look at what was stored to since the last round
//   NOT_TAKEN      a page of a round is compared with what the last commit left
//   NO_COPIES      what was found at the instant is looked at afterwards where it lies
//   DROPS_TAKEN    a page is given back although it is only in the journal
//   DROPS_FOUND    or only among the copies: the record has begun anew
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
byte copy[PAGES], instant[PAGES];
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

inline look(all, contents) {
    EACH(atomic {
        if
        :: (all || found[p]) && contents != sum[p] ->
           journal[p] = contents;
#ifndef NOT_TAKEN
           sum[p] = contents;
#endif
           taken[p] = true
        :: else
        fi;
        found[p] = false
    })
}

inline begin_record() { EACH(atomic { found[p] = written[p]; written[p] = false }) }

// The same pages are found again, until a look begins the record anew.
inline go_on() { EACH(found[p] = written[p]); unseen = false }

inline forget() { EACH(written[p] = true) }

#ifdef NO_QUESTION
#define ASK unseen = false
#else
#define ASK unseen = pinned
#endif

inline round() {
#ifdef READ_FIRST
    EACH(found[p] = written[p]);
    look(false, memory[p]);
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
    if :: unseen -> forget() :: else -> look(false, memory[p]) fi
#endif
}

inline drop() {
    EACH(if
         :: !written[p]
#ifndef DROPS_TAKEN
            && !taken[p]
#endif
            -> assert(memory[p] == file[p])
         :: else
         fi)
}

#ifdef NO_COPIES
#define COPIES memory
#else
#define COPIES copy
#endif

inline take() {
    held = true;
#ifndef DROPS_FOUND
    drop();
#endif
    if
    :: begin_record(); ASK
    :: go_on()
    fi;
#ifdef DROPS_FOUND
    drop();
#endif
    EACH(d_step { instant[p] = memory[p]; copy[p] = memory[p] });
#ifdef NO_LAST_LOOK
    EACH(found[p] = false);
#else
    if :: unseen -> forget(); look(true, memory[p]) :: else fi;
#endif
    held = false;
    look(false, COPIES[p]);
    EACH(assert(instant[p] == (journal[p] == NONE -> file[p] : journal[p])))
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
       take();
       if :: succeed() :: fail() fi
    :: else -> break
    od
}
