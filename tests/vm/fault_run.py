# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A program at work while its disk fails for a moment: its memory never changes under it, and after
the power cut the heap is of one instant, with all that was answered."""

import instants
from fault_round import Round, Wrong

FILES = ("superblock", "booklog.0", "slabs.0", "roots", "journal")
TARGETS = ("heap.0",) * 6 + FILES + ("all", "none")
TRIGGERS = ("output",) * 3 + ("5ms", "idle")
MODES = {"output": "guard", "5ms": "guard", "idle": "guard"}
FORGET = ("no", "once", "often", "press")


class RunLedger(instants.Ledger):
    """Answers after a failed commit are no promises, until the disk is well, and each thread has
    said one more thing."""

    def __init__(self, promised):
        super().__init__(exact=False, promised=promised)
        self.late = None

    def failed(self):
        self.kept, self.late = False, None

    def well(self):
        if not self.kept:
            self.late = {0, 1, 2}

    def said(self, thread, done):
        super().said(thread, done)
        if self.late is not None:
            self.late.discard(thread)
            self.kept = self.kept or not self.late


class RunRound(Round):
    kind = "run"

    def __init__(self, number, medium, rng):
        super().__init__(number, medium, rng)
        self.trigger = rng.choice(TRIGGERS)
        self.place = rng.choice(("HEAP", "HEAP", "COMMIT_DIR"))
        self.target = self.target_of(TARGETS)
        self.begins = rng.choice((0, 0, 2 << 20)) if self.target == "heap.0" else 0
        self.forget = rng.choice(FORGET)
        self.seed = rng.randrange(1 << 32)
        self.waits = [rng.randrange(most) for most in (2000000, 4000000, 3000000)]

    def label(self):
        return (
            f"{self.trigger}, PMALLOC_{self.place}, {self.target} from {self.begins}, "
            f"waits {self.waits}, forgets {self.forget}"
        )

    def body(self):
        settings = f"{self.place}={self.heap} COMMIT={self.trigger} DECAY_MS=0"
        words = (" ".join(map(str, self.waits)), self.forget, self.begins, self.target)
        mode = MODES[self.trigger]
        return self.call("run_round", self.heap, settings, mode, self.seed, *words)

    def after(self):
        return self.call("run_after", self.heap, self.seed, self.how)

    def judge(self, told):
        ledger = RunLedger(self.trigger == "output")
        run = told.sessions["run"]
        try:
            for event in run.events:
                self.follow(ledger, event)
            self.insist_on_life(run, told)
            ledger.cut()
            for kind, line in told.loose:
                if kind != "disk":
                    ledger.feed(line + "\n")
        except instants.Wrong as wrong:
            raise Wrong(str(wrong)) from None
        if not ledger.tally["verified"] or told.facts.get("checked") != "0":
            lines = [line for kind, line in told.loose if kind != "disk"]
            raise Wrong(f"after the cut: status {told.facts.get('checked')}: {lines}")
        self.tally["verified"] += 1
        self.tally["promises"] += ledger.tally["said"]

    def follow(self, ledger, event):
        kind, line = event
        if kind == "disk":
            if line == "well":
                ledger.well()
        elif "a commit has failed" in line:
            self.tally["commits failed"] += 1
            ledger.failed()
        elif line == "wrong: out of memory" and self.target in ("all", "pool"):
            self.tally["no memory"] += 1
        elif kind == "answer":
            ledger.feed(line + "\n")

    def insist_on_life(self, run, told):
        """Where a file system has shut itself down, not even reads need be good. A program that
        gets no memory says so, and ends."""
        if run.status in (None, 137):
            return
        if not (told.disk["shut"] or self.tally["no memory"]):
            raise Wrong(f"the program ended with status {run.status}: {run.events[-3:]}")
        self.tally["ended"] += 1
