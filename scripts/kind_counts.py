# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What blocks of kinds cost, for counters."""

import contention_counts

INSTRUCTIONS = "instructions of "


def rows(instructions_of, flushed):
    """The fields of each counter, given how instructions and flushes are counted."""
    return [
        # A block without pointers takes at most 1.2 of malloc's.
        (
            "pair-pointer-free",
            INSTRUCTIONS + "POINTER_FREE and free, 64 B, cached",
            66,
            instructions_of("pointer-free", 64),
            False,
        ),
        (
            "refill-pointer-free",
            INSTRUCTIONS + "POINTER_FREE and free, 64 B, 2000 held",
            68,
            instructions_of("pointer-free", 64, 2000),
            False,
        ),
        # On tmpfs, where a flush and a fence are calls of empty functions: an allocation takes 265,
        # and 250 beside these. A free takes 28 more.
        (
            "pair-pinned",
            INSTRUCTIONS + "PINNED and free, 64 B, cached",
            590,
            instructions_of("pinned", 64, 2),
            False,
        ),
        (
            "flush-pinned",
            "flushes of a PINNED block of 64 to 128 B, or its free",
            1.002,
            flushed("pinned", "flushes"),
            False,
        ),
        ("fence-pinned", "fences of the same", 1.002, flushed("pinned", "fences"), False),
        ("reflush-pinned", "reflushes of the same", 0.01, flushed("pinned", "reflushes"), False),
        (
            "shared-pinned",
            "stores to a line another thread wrote last, by 2000 PINNED blocks of 64 B, then freed",
            0,
            lambda _: contention_counts.worst("pinned", ("writes",)),
            False,
        ),
        (
            "handed-pinned",
            "locks another thread held last, 2000 PINNED blocks of 64 B, then freed",
            0.001,
            lambda _: contention_counts.worst("pinned", ("handed",)),
            False,
        ),
    ]


def standing_rows(instructions_of, flushed):
    """The same of huge blocks and of large ones of a kind, whose extents stand between two rounds
    (core/pages/extent_standing.h)."""
    return [
        (
            "huge",
            INSTRUCTIONS + "malloc and free, 4 MiB",
            1000,
            instructions_of("malloc", 4 << 20),
            True,
        ),
        (
            "flush-huge-again",
            "flushes of a 4 MiB block, freed and allocated again",
            0,
            flushed("huge-again", "flushes"),
            False,
        ),
        (
            "large-pointer-free",
            INSTRUCTIONS + "POINTER_FREE and free, 200 KB",
            1100,
            instructions_of("pointer-free", 200_000),
            False,
        ),
        (
            "flush-large-pointer-free",
            "flushes of a POINTER_FREE block of 200 KiB",
            0,
            flushed("large-pointer-free", "flushes"),
            False,
        ),
        (
            "large-pinned",
            INSTRUCTIONS + "PINNED and free, 200 KB",
            1800,
            instructions_of("pinned", 200_000),
            False,
        ),
        (
            "flush-large-pinned",
            "flushes of a PINNED block of 200 KiB, or its free",
            1,
            flushed("large-pinned", "flushes"),
            False,
        ),
    ]
