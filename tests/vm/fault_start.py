# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap that was last used without commit mode, and killed, is started while its disk fails.

Linux forgets a page that could not be written once it has said so. So the heap in memory is new,
and on the disk it is old in part, and a later sync says that all is well. As soon as a program has
started in commit mode, or was closed without it, all must be there: a round of one instant."""

from fault_round import ABORTED, REFUSED, Round, Wrong, listing

KEYS = 2000
OLD = (f"fill {KEYS} 1", "set c old", f"fill {KEYS} 2", "set c new")
NEXT = ("set d five", "set e six")
# PMALLOC_COLLECT, and PMALLOC_COMMIT or none
SETTINGS = {
    "later": "COMMIT=output COLLECT=later",
    "background": "COMMIT=output COLLECT=background",
    "api": "COMMIT=output COLLECT=api",
    "always": "COMMIT=output",
    "no commit mode": "",
    "no commit mode, later": "COLLECT=later",
}
TARGETS = ("heap.0",) * 4 + ("all", "superblock", "booklog.0", "slabs.0", "roots", "none")


class StartRound(Round):
    kind = "start"

    def __init__(self, number, medium, rng):
        super().__init__(number, medium, rng)
        self.setting = rng.choice(list(SETTINGS))
        self.commits = "COMMIT" in SETTINGS[self.setting]
        self.last = rng.choice(("quit", "cut")) if self.commits else "quit"
        self.failing = rng.choice((1, 1, 2))
        self.target = self.target_of(TARGETS)
        self.begins = rng.choice((0, 0, 1 << 20, 3 << 20)) if self.target == "heap.0" else 0

    def label(self):
        fault = f"{self.target} from {self.begins}, {self.failing} starts"
        return f"{self.setting}, {fault}, {self.last}"

    def body(self):
        words = (self.last, self.failing, self.begins, self.target)
        return self.call("start_round", self.heap, KEYS, SETTINGS[self.setting], *words)

    def after(self):
        return self.call("start_after", self.heap, self.how)

    def judge(self, told):
        tries = [told.sessions[name] for name in told.sessions if name.startswith("try")]
        for session in tries[:-1]:
            self.insist_on_end(session)
        last = tries[-1]
        if not last.answers():
            self.insist_on_end(last)
            self.tally["not started"] += 1
            if told.disk["well"]:
                raise Wrong(f"the disk is well, and no start goes on: {last.messages()}")
            return self.insist_on_recovery(told)
        self.insist_on_recovery(told)
        if self.commits or last.status == 0:
            self.compare(told, last)

    def insist_on_end(self, session):
        """A start is refused; a program that works without commit mode is aborted."""
        works = session.status == ABORTED and not self.commits
        self.insist_on_refusal(session, ABORTED if works else REFUSED)

    def compare(self, told, last):
        """The program has started: all until then is there, and what it has promised since."""
        answers = last.answers()
        found = answers[:1] if self.may_be_older(told) else ["new"]
        if answers != [*found, "ok", "ok"][: len(answers)]:
            raise Wrong(f"the program that started said {answers}")
        promised = promises(last.events) if self.commits else len(answers)
        promised = len(answers) if last.status == 0 and not last.messages() else promised
        least = max(promised - 1, 0)
        if self.may_be_older(told):
            return self.compare_older(told, answers, least)
        right = {listing(OLD + NEXT[:count]): count for count in range(least, len(NEXT) + 1)}
        after = told.sessions["after"]
        said = after.answers() or [f"status {after.status}"]
        found = told.facts.get("list")
        if found not in right:
            raise Wrong(f"after the cut: {said}, where {answers} was answered and c was new")
        if said[0] != f"ok {KEYS + 1 + right[found]} keys":
            raise Wrong(f"after the cut: {said}")
        self.tally["verified"] += 1

    def compare_older(self, told, answers, least):
        """What the program found when it started is there after the cut, and what it has promised
        since. No list: it found a mixture of old and new pages, as after a power cut."""
        after = told.sessions["after"].answers()
        if after[1:2] != answers[:1] or after[2 : 2 + least] != ["five", "six"][:least]:
            raise Wrong(f"after the cut: {after}, where {answers} was answered")
        self.tally["older"] += 1
        self.tally["verified"] += 1


def promises(events):
    """How many answers hold: the first N. After a failed commit none does, until the disk was well
    and one more answer has come: that one may have been under way."""
    kept, late, count, promised = True, False, 0, 0
    for kind, line in events:
        if kind == "message" and "commit has failed" in line:
            kept = late = False
        elif kind == "disk" and line == "well":
            late = True
        elif kind == "answer":
            count += 1
            if kept:
                promised = count
            kept = kept or late
    return promised
