# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""What vm-test prints: a line of progress on a terminal, and tables at the end."""

import collections
import sys

from ledger import CONDITIONS, Census
from rig import KINDS, WRITE_BACK


def progress(rig, seconds):
    if sys.stderr.isatty():
        lost = sum(len(slot.failures) for slot in rig.slots.values())
        line = (
            f"vm-test: {rig.domain}, {rig.kernel.version}: {rig.boots} boots, {lost} failures, "
            f"{seconds:.0f} s"
        )
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def clear():
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def table(rows):
    widths = [max(len(str(row[i])) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())


def summary(rigs, seconds):
    head = [
        "medium",
        "domain",
        "kernel",
        "cuts",
        *KINDS,
        "kills",
        "acknowledged",
        "verified",
        "failed",
    ]
    rows = [head]
    for rig in rigs:
        for name, slot in rig.slots.items():
            tally = slot.ledger.tally
            verified = tally["verified after cut"] + tally["verified after kill"]
            rows.append(
                [name, rig.domain, rig.kernel.version, sum(slot.cuts.values())]
                + [slot.cuts[kind] for kind in KINDS]
                + [tally["kills"], tally["acknowledged"], verified, len(slot.failures)]
            )
    table(rows)
    census(rigs)
    boots = sum(rig.boots for rig in rigs)
    panics = sum(rig.panics for rig in rigs)
    note = f", {panics} of them ended by the guest's own kernel" if panics else ""
    failures = sum(len(slot.failures) for rig in rigs for slot in rig.slots.values())
    print(f"vm-test: {boots} boots{note} in {seconds:.0f} s, {failures} failures")


def census(rigs):
    """What came back on media that do not promise the program's data, for all rigs together."""
    whole = collections.defaultdict(lambda: Census(WRITE_BACK))
    for rig in rigs:
        for name, slot in rig.slots.items():
            if slot.medium.survives and not slot.ledger.promised:
                for kind, part in slot.ledger.census.items():
                    whole[name, kind].merge(part)
    rows = [["medium", "cut", "age / write-back time", "objects", *(f"{c} %" for c in CONDITIONS)]]
    for (name, kind), part in whole.items():
        for age, total, percents in part.rows():
            rows.append(
                [name, f"{part.cuts} by {kind}", age, total, *(f"{p:.1f}" for p in percents)]
            )
    if len(rows) > 1:
        print(
            f"\nPlain files: acknowledged objects after a cut. "
            f"Pages are written back after {WRITE_BACK} s here, after 40 s elsewhere:"
        )
        table(rows)
