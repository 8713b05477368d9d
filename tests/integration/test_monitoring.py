# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""tools/monitoring: the exporter, the alerts and the dashboard, beside Debian's Prometheus."""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from conftest import ROOT, busy, run, said, tool
from figures_program import Figures, program as figures_program  # noqa: F401
from programs import program as debians
from test_metrics import families, metrics
from test_moved import build, place  # noqa: F401

FOLDER = ROOT / "tools" / "monitoring"
NAME = re.compile(r"\bpmalloc_[a-z_]+")
RULES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'pmalloc_up{{heap="a"}}', values: '1+0x700'}}
      - {{series: 'pmalloc_up{{heap="gone"}}', values: '0+0x700'}}
      - {{series: 'pmalloc_in_use{{heap="a"}}', values: '1+0x100 0+0x600'}}
      - {{series: 'pmalloc_clean{{heap="a"}}', values: '0+0x700'}}
      - {{series: 'pmalloc_in_use{{heap="rests"}}', values: '0+0x700'}}
      - {{series: 'pmalloc_clean{{heap="rests"}}', values: '1+0x700'}}
      - {{series: 'pmalloc_commit_timestamp_seconds{{heap="a"}}', values: '0+60x50 3000+0x650'}}
      - {{series: 'pmalloc_medium_bytes{{heap="a"}}', values: '1000+0x700'}}
      - {{series: 'pmalloc_medium_free_bytes{{heap="a"}}', values: '200+0x200 90+0x500'}}
      - {{series: 'pmalloc_pause_seconds_bucket{{heap="a",le="0.05"}}', values: '0+100x700'}}
      - series: 'pmalloc_pause_seconds_bucket{{heap="a",le="0.1"}}'
        values: '0+100x300 30000+102x400'
      - series: 'pmalloc_pause_seconds_bucket{{heap="a",le="+Inf"}}'
        values: '0+100x300 30000+102x400'
      - {{series: 'pmalloc_recoveries_total{{heap="a"}}', values: '7+0x500 7+1x200'}}
      - {{series: 'pmalloc_recovery_freed_bytes{{heap="a"}}', values: '17e6+0x100 64e6+0x600'}}
      - {{series: 'pmalloc_recovery_reached_bytes{{heap="a"}}', values: '90e6+0x700'}}
      - series: 'pmalloc_backup_timestamp_seconds{{heap="a",backup="old"}}'
        values: '-90000+0x700'
      - series: 'pmalloc_backup_timestamp_seconds{{heap="a",backup="new"}}'
        values: '-70000+0x690 41000'
      - {{series: 'pmalloc_commits_failed_total{{heap="a"}}', values: '0+0x600 0+1x100'}}
    alert_rule_test:
{expected}
"""
# (alert, minute, heaps that it names then)
FIRES = [
    ("HeapCannotBeRead", 4, []),
    ("HeapCannotBeRead", 6, ["gone"]),
    ("HeapWaitsForRecovery", 100, []),
    ("HeapWaitsForRecovery", 104, []),
    ("HeapWaitsForRecovery", 110, ["a"]),
    ("HeapRecoversOften", 490, []),
    ("HeapRecoversOften", 510, ["a"]),
    ("RecoveryFreedMuch", 50, []),
    ("RecoveryFreedMuch", 150, ["a"]),
    ("CommitsFail", 590, []),
    ("CommitsFail", 605, ["a"]),
    ("CommitsAreOld", 58, []),
    ("CommitsAreOld", 65, ["a"]),
    ("CommitsAreOld", 110, []),
    ("MediumNearlyFull", 205, []),
    ("MediumNearlyFull", 215, ["a"]),
    ("BackupIsOld", 390, []),
    ("BackupIsOld", 410, ["a"]),
    ("BackupIsOld", 691, []),
    ("PausesAreLong", 290, []),
    ("PausesAreLong", 400, ["a"]),
]


class Exporter:
    def __init__(self, processes, *arguments, listen="0"):
        argv = [FOLDER / "pmalloc-exporter", "--listen", listen, *arguments]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(self.process)
        line = self.process.stdout.readline()
        self.url = re.fullmatch(r"pmalloc-exporter: (http://\S+/metrics)\n", line)[1]
        self.target = self.url.split("/")[2]

    def get(self):
        with urllib.request.urlopen(self.url, timeout=30 * busy()) as answer:
            assert "openmetrics-text" in answer.headers["Content-Type"]
            return families(answer.read().decode())


@pytest.fixture
def running(figures_program, processes, heap):  # noqa: F811
    figures = Figures(figures_program, processes, HEAP=heap, ROOTS="held")
    figures.ask("small 100 100")
    figures.process.kill()
    figures.process.wait()
    figures = Figures(figures_program, processes, HEAP=heap, ROOTS="held", COMMIT="20ms")
    figures.ask("small 100 100")
    figures.ask("large 5 100000")
    until = time.monotonic() + 30 * busy()
    while not metrics(heap).get(("pmalloc_large_blocks", str(heap))):
        assert time.monotonic() < until
    return heap


@pytest.fixture
def backup(running, shm):
    done = run([tool("pmalloc-backup"), running, shm / "backup"], preload=False)
    assert done.returncode == 0, said(done)
    return shm / "backup"


def test_the_exporter_serves_what_the_tool_says(running, backup, processes):
    exporter = Exporter(processes, "--backup", backup, running)
    found, told = exporter.get(), metrics("--backup", backup, running)
    assert set(found) == set(told) and found["pmalloc_up", str(running)] == 1
    figure = "pmalloc_backup_timestamp_seconds", str(running), str(backup)
    assert found[figure] == told[figure] > 0
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(exporter.url.replace("/metrics", "/"), timeout=30)
    exporter.process.send_signal(signal.SIGTERM)
    _, errors = exporter.process.communicate(timeout=30)
    assert (exporter.process.returncode, errors) == (0, "")


def test_a_heap_that_is_gone(shm, processes):
    """It is down, and the exporter's messages say why."""
    exporter = Exporter(processes, shm / "none")
    assert exporter.get()["pmalloc_up", str(shm / "none")] == 0
    exporter.process.kill()
    assert "none" in exporter.process.communicate()[1]


@pytest.mark.parametrize(
    "argv, says",
    [
        ([], "name a heap"),
        (["--listen", "here", "/x"], "write [ADDRESS:]PORT"),
        (["--listen", "70000", "/x"], "write [ADDRESS:]PORT"),
        (["--listen", "192.0.2.1:0", "/x"], "192.0.2.1"),
    ],
)
def test_wrong_lines(argv, says):
    done = subprocess.run(
        [FOLDER / "pmalloc-exporter", *argv], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and says in done.stderr, said(done)


def asked():
    """The questions of the dashboard."""
    board = json.loads((FOLDER / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_figures_that_are_asked_for_exist(running, backup, place):  # noqa: F811
    for _ in range(2):
        place.runs(build(1), HEAP=place.program.with_name("moved"), RANDOMIZE=1)
    moved = place.program.with_name("moved")
    known = {key[0] for key in metrics("--backup", backup, running, moved)}
    for text in [*asked(), (FOLDER / "alerts.yml").read_text()]:
        assert set(NAME.findall(text)) <= known, (text, set(NAME.findall(text)) - known)
    page = (ROOT / "docs" / "operations.md").read_text()
    alerts = re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text())
    assert re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE) == alerts
    part = page.split("\n## Monitoring\n")[1].split("\n## ")[0]
    figures = set(re.findall(r"`(pmalloc_[a-z_]+)", part))
    shown = {re.sub("_(bucket|count|sum)$", "", name) for name in known}
    assert figures == shown, figures ^ shown


def test_when_alerts_fire(shm):
    """By Prometheus' own tests of rules."""
    tool = debians("promtool")
    argv = [tool, "check", "rules", FOLDER / "alerts.yml"]
    assert subprocess.run(argv, timeout=60).returncode == 0
    expected = ""
    for alert, minute, heaps in FIRES:
        expected += f"      - {{eval_time: {minute}m, alertname: {alert}, exp_alerts: ["
        for name in heaps:
            says = SUMMARY[alert].replace("HEAP", name)
            expected += f"{{exp_labels: {{heap: {name}}}, exp_annotations: {{summary: '{says}'}}}}"
        expected += "]}\n"
    file = shm / "test.yml"
    file.write_text(RULES.format(rules=FOLDER / "alerts.yml", expected=expected))
    done = subprocess.run([tool, "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, said(done)


SUMMARY = {
    "HeapCannotBeRead": "HEAP cannot be looked at: see pmalloc-info''s message",
    "HeapWaitsForRecovery": "HEAP is in use by no program, and was not closed",
    "HeapRecoversOften": "HEAP was recovered 9 times in an hour",
    "RecoveryFreedMuch": "the last recovery of HEAP freed 61.04MiB",
    "CommitsFail": "commits of HEAP fail, although others succeed",
    "CommitsAreOld": "the last commit of HEAP is 15m 0s old",
    "PausesAreLong": "commits hold threads of HEAP for 74.5ms",
    "BackupIsOld": "the newest backup of HEAP is 1d 2h 16m 40s old",
    "MediumNearlyFull": "90B are free below HEAP",
}


def ask(port, what):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{what}", timeout=30) as answer:
        return json.load(answer)


def query(port, expression):
    text = urllib.parse.urlencode({"query": expression})
    found = ask(port, f"query?{text}")
    assert found["status"] == "success", found
    return found["data"]["result"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_prometheus_reads_it(running, backup, shm, processes):
    """A server scrapes the exporter, and answers each question of the dashboard."""
    server = debians("prometheus")
    exporter, port = Exporter(processes, "--backup", backup, running), free_port()
    config = shm / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{FOLDER}/alerts.yml']\n"
        "scrape_configs: [{job_name: heaps, static_configs: [{targets: "
        f"['{exporter.target}']}}]}}]\n"
    )
    argv = [server, f"--config.file={config}", f"--storage.tsdb.path={shm}/data"]
    argv.append(f"--web.listen-address=127.0.0.1:{port}")
    with open(shm / "log", "w") as log:
        processes.append(subprocess.Popen(argv, stdout=log, stderr=log))
    until, found = time.monotonic() + 60 * busy(), []
    while not found:
        assert time.monotonic() < until, (shm / "log").read_text()[-2000:]
        time.sleep(0.2)
        try:
            found = query(port, 'rate(pmalloc_commits_total{job="heaps"}[5m])')
        except (urllib.error.URLError, ConnectionError):
            pass
    assert query(port, "pmalloc_up")[0]["metric"]["heap"] == str(running)
    for expression in asked():
        result = query(port, expression.replace("$heap", ".*"))
        assert result, expression
    groups = ask(port, "rules")["data"]["groups"]
    assert all(rule["health"] in ("ok", "unknown") for group in groups for rule in group["rules"])
    assert not [a for a in query(port, "ALERTS") if a["metric"]["alertstate"] == "firing"]
