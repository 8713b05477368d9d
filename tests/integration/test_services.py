# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Services of a real systemd: the locked-in unit, readiness, the watchdog, the drop-in, and lines
of the library in the real journal."""

import re
import shutil

import pytest
from conftest import ROOT, compiled, lacks, run, said
from own_systemd import System

UNIT = ROOT / "tools" / "services" / "pmalloc@.service"


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    booted = System(tmp_path_factory.mktemp("system"), [compiled("ready.c")])
    shutil.copy(booted.path("usr/share/pmalloc/services/pmalloc@.service"), booted.path("units"))
    yield booted
    booted.end()


@pytest.fixture
def service(request, system):
    """A service of its own for each test: its name, and functions to start it and to ask."""
    made = Service(system, re.sub(r"\W", "", request.node.name))
    yield made
    system.run("systemctl", "stop", made.unit)


class Service:
    def __init__(self, system, name):
        self.system, self.name, self.unit = system, name, f"pmalloc@{name}"
        self.heap = f"/var/lib/pmalloc/{name}/heap"
        self.configure("PMALLOC_ROOTS=list")

    def configure(self, *settings):
        lines = ["PROGRAM=/usr/bin/ready", "ARGUMENTS=serve", *settings]
        self.system.write(f"etc/pmalloc/{self.name}", "\n".join(lines) + "\n")

    def drop_in(self, *lines):
        self.system.write(f"units/{self.unit}.service.d/test.conf",
                          "\n".join(["[Service]", *lines]) + "\n")

    def start(self):
        self.system.ok("systemctl", "daemon-reload")
        done = self.system.run("systemctl", "start", self.unit)
        done.stdout += "\n".join(line["MESSAGE"] for line in self.lines()[-20:])
        return done

    def show(self, *names):
        return self.system.show(self.unit, *names)

    def lines(self, *match):
        return self.system.journal(f"--unit={self.unit}", *match)

    def starts(self):
        """What the program has said of itself at each start."""
        said = [line["MESSAGE"].split() for line in self.lines() if "executable" in line["MESSAGE"]]
        return [dict(zip(words[::2], words[1::2])) for words in said]

    def await_start(self, number):
        return self.system.await_(lambda: (self.starts() + [None] * number)[number - 1],
                                  f"start {number}")


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    """And little that it could reach: 0 is nothing, 10 is all."""
    if not shutil.which("systemd-analyze"):
        lacks("systemd-analyze")
    unit = tmp_path / "pmalloc@keeper.service"
    unit.write_text(UNIT.read_text().replace("/usr/bin/pmalloc-run", "/usr/bin/true"))
    done = run(["systemd-analyze", "verify", "--man=no", unit], preload=False)
    ours = [line for line in done.stderr.splitlines() if not line.startswith("/usr/lib/systemd/")]
    assert done.returncode == 0 and not ours, said(done)
    done = run(["systemd-analyze", "security", "--offline=true", unit], preload=False)
    assert float(re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)[1]) <= 2, said(done)


def test_a_locked_in_service_goes_on_with_its_data(system, service):
    done = service.start()
    assert done.returncode == 0, said(done)
    first = service.await_start(1)
    assert "\npmalloc_in_use{" in system.ok("pmalloc-info", "--metrics", service.heap)
    shown = service.show("ActiveState", "SubState", "MainPID", "StatusText", "NotifyAccess")
    assert shown["ActiveState"] == "active" and shown["MainPID"] == first["pid"], shown
    assert shown["StatusText"].startswith("its heap is ready"), shown
    assert first["executable"] == "EPERM" and first["root"] == "EROFS", first
    assert 61184 <= int(first["uid"]) <= 65519 and first["list"] == "1", first
    system.ok("kill", "-KILL", first["pid"])
    second = service.await_start(2)
    assert second["list"] == "2" and second["pid"] != first["pid"], second
    system.await_(lambda: service.show("ActiveState")["ActiveState"] == "active", "active again")
    system.ok("systemctl", "stop", service.unit)
    # As docs/services.md says. Root itself is refused, as on each heap of another user.
    as_service = ["systemd-run", "--quiet", "--pipe", "--wait", "--property=DynamicUser=yes",
                  f"--property=StateDirectory=pmalloc/{service.name}"]
    system.ok("systemctl", "start", "dbus.service")
    done = system.run(*as_service, "pmalloc-recover", "--check", service.heap)
    assert done.returncode == 1 and "needs recovery" in done.stdout, said(done)
    done = system.run("pmalloc-recover", "--check", service.heap)
    assert done.returncode == 8 and "do it as that user" in done.stderr, said(done)
    ours = ("pmalloc:", "pmalloc-run:")
    assert not [line for line in service.lines() if line["MESSAGE"].startswith(ours)]


def test_the_user_may_have_another_number_the_next_time(system, service):
    service.start()
    service.await_start(1)
    system.ok("systemctl", "stop", service.unit)
    system.ok("chown", "-R", "61234:61234", f"/var/lib/private/pmalloc/{service.name}")
    service.start()
    again = service.await_start(2)
    assert again["uid"] == "61234" and again["list"] == "2", again


def test_a_service_that_hangs_is_started_again(system, service):
    service.drop_in("WatchdogSec=1")
    service.start()
    first = service.await_start(1)
    system.ok("kill", "-STOP", first["pid"])
    assert service.await_start(2)["list"] == "2"
    assert any("Watchdog timeout" in line["MESSAGE"] for line in service.lines())


def test_a_service_that_lives_is_left_alone(system, service):
    """Though its watchdog waits for half a second only."""
    service.drop_in("WatchdogSec=500ms")
    service.start()
    service.await_start(1)
    at = service.show("WatchdogTimestampMonotonic")["WatchdogTimestampMonotonic"]
    system.await_(lambda: int(service.show("WatchdogTimestampMonotonic")
                              ["WatchdogTimestampMonotonic"]) > int(at) + 2000000, "keep-alives")
    assert len(service.starts()) == 1


def test_a_heap_that_is_refused_is_not_tried_again(system, service):
    service.start()
    service.await_start(1)
    system.ok("systemctl", "stop", service.unit)
    system.path(f"var/lib/private/pmalloc/{service.name}/heap/superblock").write_bytes(b"\1" * 8192)
    assert service.start().returncode != 0
    shown = service.show("ActiveState", "ExecMainStatus", "NRestarts")
    assert shown == {"ActiveState": "failed", "ExecMainStatus": "125", "NRestarts": "0"}
    # Of a process that has ended already the journal need not find out the unit.
    system.await_(lambda: said_of(system, service), "the line")
    assert len(said_of(system, service)) == 1


def said_of(system, service):
    lines = system.journal("PMALLOC_EVENT=heap-damaged")
    return [line for line in lines if line["PMALLOC_HEAP"].endswith(service.heap)]


def test_lines_reach_the_journal_with_their_fields(service):
    service.configure("PMALLOC_ROOTS=list", "PMALLOC_VERBOSE=1")
    service.start()
    service.await_start(1)
    (line,) = service.lines("PMALLOC_EVENT=started")
    assert line["SYSLOG_IDENTIFIER"] == "pmalloc" and line["PRIORITY"] == "6", line
    assert line["PMALLOC_HEAP"] == service.heap, line
    assert "list" in line["MESSAGE"] and line["_COMM"] == "ready", line


def test_with_a_locked_personality_it_runs(service):
    service.drop_in("LockPersonality=yes")
    for number in (1, 2):
        service.start()
        start = service.await_start(number)
        assert start["list"] == str(number) and start["personality"] == "EPERM", start
        service.system.ok("systemctl", "stop", service.unit)
    notes = [line for line in service.lines() if "randomisation" in line["MESSAGE"]]
    assert len(notes) == 2, notes


def test_the_drop_in_gives_a_service_a_heap(system, service):
    """Each instance of a template has one of its own."""
    unit = f"{service.name}@"
    system.write(f"units/{unit}.service", "[Service]\nDynamicUser=yes\nProtectSystem=strict\n"
                 "PrivateTmp=yes\nMemoryDenyWriteExecute=yes\nExecStart=/usr/bin/ready serve\n")
    system.write(f"units/{unit}.service.d/heap.conf",
                 (ROOT / "tools" / "persistent-heap.conf").read_text()
                 + "Environment=PMALLOC_ROOTS=list PMALLOC_LOG=journal PMALLOC_VERBOSE=1\n")
    system.ok("systemctl", "daemon-reload")
    counts = {}
    for instance in ("1", "2", "1"):
        name = f"{unit}{instance}"
        counts[instance] = counts.get(instance, 0) + 1
        system.ok("systemctl", "start", name)
        found = system.await_(lambda name=name, n=counts[instance]: [
            line["MESSAGE"] for line in system.journal(f"--unit={name}")
            if f" list {n} " in line["MESSAGE"]], f"{name}")
        assert "executable EPERM" in found[0], found
        system.ok("systemctl", "kill", "--signal=KILL", name)
        system.await_(lambda name=name: system.show(name, "ActiveState")["ActiveState"] == "failed",
                      f"{name} failed")
        system.ok("systemctl", "reset-failed", name)
