# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The journal of a killed heap cannot be read for a while, from some place on. Each tool and each
start says so, changes nothing, and all that was answered is there when the disk is well again."""

from fault_round import REFUSED, UNABLE, Round, Wrong, listing

PAGE = 4096


class ReadRound(Round):
    kind = "read"

    def __init__(self, number, medium, rng):
        super().__init__(number, medium, rng)
        self.keys = rng.randrange(3, 60)
        self.begins = PAGE * rng.choice((0, 1, rng.randrange(2, 2 * self.keys)))
        self.first = rng.choice(("power_fails", "sync"))
        self.place = rng.choice(("HEAP", "HEAP", "COMMIT_DIR"))

    def label(self):
        return f"{self.first}, journal from {self.begins}, PMALLOC_{self.place}, {self.keys} keys"

    def body(self):
        settings = f"{self.place}={self.heap} COMMIT=output"
        words = (self.keys, self.first, self.begins, "journal")
        return self.call("read_round", self.heap, settings, *words)

    def after(self):
        return self.call("read_after", self.heap, self.how)

    def judge(self, told):
        if "readable" in told.facts:
            self.tally["missed"] += 1
        else:
            self.tally["hit"] += 1
            self.insist_on_refusal(told.sessions["check"], UNABLE, count=False)
            self.insist_on_refusal(told.sessions["recover"], UNABLE, count=False)
            self.insist_on_refusal(told.sessions["start"], REFUSED)
            if told.facts["before"] != told.facts["behind"]:
                self.wrong.append("the files have changed where the journal could not be read")
        self.insist_on_recovery(told, "mended")
        commands = tuple(f"set k{key} v{key}" for key in range(1, self.keys + 1))
        if told.facts.get("list") != listing(commands):
            found = told.sessions["after"].answers()
            raise Wrong(f"{self.keys} keys were answered, the heap says {found}")
        self.tally["verified"] += 1
