# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""How long tests take, for scripts/run-tests: a plugin of pytest that measures them, and the table
of what was measured.

A test is named "test_file::test_function", with all its parameters together. Seconds are by the
clock; processor time counts this process and all it has waited for."""

import json
import pathlib
import re
import resource
import time

import pytest

TABLE = pathlib.Path(__file__).with_name("times.txt")
HEAD = """\
# Written by scripts/run-tests --record: seconds by the clock, and of processor time, of each job,
# and of the tests in it that take longer than 1.5 seconds.
"""
NAMED = 1.5  # tests of fewer seconds have no line in times.txt
UNKNOWN = 5.0  # what is taken for the seconds of a target that never ran
EACH = 1.0  # and of each test of a file, where nothing at all was measured


def processor_time():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def test_name(nodeid):
    """tests/integration/test_x.py::test_y[z] -> test_x::test_y"""
    path, _, rest = nodeid.partition("::")
    return f"{pathlib.Path(path).stem}::{rest.partition('[')[0]}"


def tests_in(path, mark=None):
    """The names of the tests of a file; of those with a mark alone."""
    before = rf"^@pytest\.mark\.{mark}\n(?:(?!def ).*\n)*?" if mark else "^"
    found = re.findall(rf"{before}def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    return {f"{path.stem}::{name}" for name in found}


class Measure:
    """The plugin: leaves tests out, and writes what each one took and which ones failed."""

    def __init__(self, file, left_out):
        self.file, self.left_out = file, left_out
        self.tests, self.failed = {}, []

    def pytest_collection_modifyitems(self, config, items):
        out = [item for item in items if test_name(item.nodeid) in self.left_out]
        items[:] = [item for item in items if item not in out]
        if out:
            config.hook.pytest_deselected(items=out)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        begun, cpu = time.monotonic(), processor_time()
        yield
        took = self.tests.setdefault(test_name(item.nodeid), [0, 0])
        took[0] += time.monotonic() - begun
        took[1] += processor_time() - cpu

    def pytest_runtest_logreport(self, report):
        if report.failed:
            path, _, rest = report.nodeid.partition("::")
            name = f"{pathlib.Path(path).stem}::{rest}"
            self.failed += [name] if name not in self.failed else []

    def pytest_sessionfinish(self):
        self.file.write_text(json.dumps({"tests": self.tests, "failed": self.failed}))


def result(file):
    """What the plugin wrote, if pytest came so far."""
    return json.loads(file.read_text()) if file.exists() else {"tests": {}, "failed": []}


def read_table():
    """Name -> (seconds, processor time), as times.txt says."""
    known = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        if not line.startswith("#"):
            name, took, cpu = line.rsplit(maxsplit=2)
            known[name.strip()] = (float(took), float(cpu))
    return known


class Times:
    """What was measured in this build, else elsewhere. Jobs and tests are in one table: only the
    name of a test has "::". What is not there any more is forgotten. `files`: all files of
    tests."""

    def __init__(self, file, files):
        self.file = file
        self.tests = {path.stem: tests_in(path) for path in files}
        known = read_table()
        if file.exists():
            known |= {name: tuple(took) for name, took in json.loads(file.read_text()).items()}
        self.known = {name: took for name, took in known.items() if self.is_there(name)}
        measured = [job for job in self.tests if job in self.known]
        count = sum(len(self.tests[job]) for job in measured)
        self.each = sum(self.known[job][0] for job in measured) / count if count else EACH

    def is_there(self, name):
        job = name.partition("::")[0]
        tests = {job, *self.tests[job]} if job in self.tests else ()
        return name.startswith("make ") or name in tests

    def unknown(self):
        return sorted(job for job in self.tests if job not in self.known)

    def add(self, job, took, cpu, tests, whole):
        """`whole`: the job ran with all its tests, so those that it has not run are gone."""
        if whole:
            self.known = {
                name: took for name, took in self.known.items() if not name.startswith(f"{job}::")
            }
            self.known[job] = (took, cpu)
        self.known |= {name: tuple(took) for name, took in tests.items()}

    def save(self):
        lines = {name: [round(each, 2) for each in took] for name, took in self.known.items()}
        self.file.write_text(json.dumps(lines, indent=0, sort_keys=True))

    def seconds(self, job, left_out=(), chosen=None):
        """Of a job, or of the tests of it that are chosen. A file that never ran is taken for as
        long, by the number of its tests, as the others."""
        if chosen is not None:
            whole = EACH + sum(self.known.get(name, (0,))[0] for name in chosen)
        elif job in self.tests:
            whole = self.known.get(job, (len(self.tests[job]) * self.each,))[0]
        else:
            whole = self.known.get(job, (UNKNOWN,))[0]
        return max(0.1, whole - sum(self.known[name][0] for name in left_out))

    def left_out(self, jobs, room):
        """Job -> its tests that are left out, so that all others together take `room` seconds: the
        longest ones, as few of them as will do. `jobs`: job -> the tests that are chosen, or None:
        all of them."""

        def runs(name):
            job = name.partition("::")[0]
            return name != job and job in jobs and (jobs[job] is None or name in jobs[job])

        over = sum(self.seconds(job, (), chosen) for job, chosen in jobs.items()) - room
        tests = [(took, name) for name, (took, _) in self.known.items() if runs(name)]
        out = {}
        for took, name in sorted(tests, reverse=True):
            if over <= 0:
                break
            out.setdefault(name.partition("::")[0], []).append(name)
            over -= took
        return out

    def lines(self):
        """Jobs, the longest first, each with its longest tests."""
        jobs = sorted((took, name) for name, took in self.known.items() if "::" not in name)
        for took, job in reversed(jobs):
            yield f"{job:58} {took[0]:6.1f} {took[1]:6.1f}"
            tests = sorted(
                (took, name) for name, took in self.known.items() if name.startswith(f"{job}::")
            )
            for took, name in reversed(tests):
                if took[0] >= NAMED:
                    yield f"  {name:56} {took[0]:6.1f} {took[1]:6.1f}"

    def show(self):
        print(*self.lines(), sep="\n")
        return 0

    def record(self):
        TABLE.write_text(HEAD + "".join(f"{line}\n" for line in self.lines()))
        return 0
