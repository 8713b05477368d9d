# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""figures.c as a process that takes orders and prints what malloc reports."""

import json

import pytest
from conftest import busy, compiled, start, tool

INFO = tool("pmalloc-info")


@pytest.fixture(scope="module")
def program():
    return compiled("figures.c", "-Wno-deprecated-declarations", name="pmtest_figures")


class Figures:
    """The program, waiting for its next order."""

    def __init__(self, program, processes, **settings):
        self.process = start([program], **settings)
        processes.append(self.process)

    def ask(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline()) != "done\n":
            assert line, f"{order}: the program has ended\n{self.process.stderr.read()}"
            lines.append(line)
        return "".join(lines)

    def info(self):
        m = json.loads(self.ask("info"))
        assert m["arena"] == m["uordblks"] + m["fordblks"]
        assert m["keepcost"] <= m["fordblks"] and m["fsmblks"] <= m["fordblks"]
        assert m["old_arena"] == m["arena"]
        return m

    def end(self):
        _, errors = self.process.communicate(timeout=60 * busy())
        assert self.process.returncode == 0, errors
        return errors
