# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A recovery, a close, a round of a backup or the growth of a fixed medium, while the disk fails
for a moment. Whatever it says then: once it has worked, on a disk that is well, all is there."""

from fault_round import UNABLE, Round, Wrong, listing

KEYS = 1000
FILES = ("heap.0", "heap.0", "superblock", "booklog.0", "slabs.0", "roots", "all")
TARGETS = {
    "recover": FILES,
    "close": FILES,
    "backup": ("heap.0", "copy/heap.0", "copy/heap.0", "copy/superblock", "copy/slabs.0", "all"),
    "grow": ("medium",),
}
SETTINGS = ("", "COMMIT=output")


class StepRound(Round):
    kind = "step"

    def __init__(self, number, medium, rng):
        super().__init__(number, medium, rng)
        self.step = rng.choice(list(TARGETS))
        self.settings = rng.choice(SETTINGS)
        self.target = self.target_of(TARGETS[self.step])
        wait = rng.choice((0, rng.randrange(1, 600000)))
        self.when = f"{wait} {rng.randrange(50000, 1500000)}"

    def label(self):
        return f"{self.step}, {self.settings or 'no commit mode'}, {self.target}, at {self.when}"

    def body(self):
        words = (self.heap, self.settings, KEYS, self.when, self.target)
        return self.call(f"step_{self.step}", *words)

    def after(self):
        return self.call("step_after", self.heap, self.how, self.step)

    def judge(self, told):
        """A step that could not be done says so by its status, and changes nothing that counts."""
        done = [session for name, session in told.sessions.items() if name.startswith("step")]
        if self.step == "close":
            done.insert(0, told.sessions["new"])
        for session in done[:-1]:
            if self.step != "close":
                self.insist_on_refusal(session, UNABLE, count=False)
            self.tally[f"{self.step} again"] += 1
        if done[-1].status != 0:
            if told.disk["well"]:
                raise Wrong(f"on a disk that is well: status {done[-1].status}: {done[-1].events}")
            return self.insist_on_recovery(told)
        self.insist_on_recovery(told)
        if told.sessions.get("verify", done[-1]).status != 0:
            raise Wrong(f"pmalloc-backup --verify: {told.sessions['verify'].events}")
        commands = (f"fill {KEYS} 1", f"fill {KEYS} 2", "set c new")
        commands += ("set d five",) * (self.step == "backup")
        after = told.sessions["after"]
        if self.may_be_older(told) and self.step in ("recover", "close") and not self.settings:
            self.tally["older"] += 1  # and recovery has worked
        elif told.facts.get("list") != listing(commands):
            raise Wrong(f"after {self.step} has worked: {after.answers() or after.status}")
        self.tally["verified"] += 1
