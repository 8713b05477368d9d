# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Containers of rootless podman, by the image recipe and with what the StatefulSet asks for: a
read-only root, no capabilities, a volume, the seccomp filter that is usual, and 64 MB of /dev/shm.

podman 4.3 may need 20 seconds until it knows that a container has ended, so one has all steps."""

import re

import pytest
import yaml
from conftest import ROOT, app, said
from own_podman import Podman

# Each step prints its name, and at last its status. `run` is the entry point of the image.
STEPS = r"""
run() { pmalloc-run --notify -- /usr/bin/program; }
step() { echo "== $1"; }
step first; printf 'get a\nset a 1\n' | run; echo "status $?"
step killed; (while echo 'bump visits'; do :; done | run > /dev/null) &
while ! pmalloc-info --json $PMALLOC_HEAP > /dev/null; do sleep 0.1; done
sleep 0.3; kill -9 $(pidof program); wait; echo "status 0"
step again; printf 'get a\nset visits 1\nget visits\n' | run; echo "status $?"
step check; pmalloc-recover --check $PMALLOC_HEAP | grep result; echo "status $?"
step shm; df -k /dev/shm | tail -n 1
fill() { i=0; while [ $i -lt 40000 ]; do echo "set key$i $1"; i=$((i + 1)); done; }
fill $(printf '%03000d' 0) | PMALLOC_HEAP=/dev/shm/heap run | uniq -c; echo "status 0"
step readonly; echo count | PMALLOC_HEAP=/heap run; echo "status $?"
step group; chmod -R g+rwX /data/heap; echo count | run; echo "status $?"
"""


@pytest.fixture(scope="module")
def podman():
    made = Podman()
    try:
        made.build(app("kvshell"))
        yield made
    finally:
        made.end()


def stateful_set():
    with open(ROOT / "tools/services/statefulset.yaml", encoding="utf-8") as file:
        service, made = yaml.safe_load_all(file)
    assert service["spec"]["selector"] == made["spec"]["selector"]["matchLabels"]
    return made["spec"]


def pod_options(spec):
    """What Kubernetes makes of the pod, in podman's words. A rootless user has one number only, so
    `runAsUser` is left out: inside it is root's, without any capability."""
    (claim,) = spec["volumeClaimTemplates"]
    (container,) = spec["template"]["spec"]["containers"]
    own = container["securityContext"]
    assert spec["template"]["spec"]["securityContext"]["runAsNonRoot"]
    assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
    (mount,) = container["volumeMounts"]
    assert mount["name"] == claim["metadata"]["name"]
    return ["--read-only", "--security-opt=no-new-privileges",
            *(f"--cap-drop={name}" for name in own["capabilities"]["drop"]),
            *(f"--env={one['name']}={one['value']}" for one in container["env"]),
            f"--volume={mount['name']}:{mount['mountPath']}"]


def test_what_a_locked_in_container_does(podman):
    options = pod_options(stateful_set())
    done = podman.run("run", "--rm", *options, "--entrypoint=sh", "kvserver", "-c",
                      f"exec 2>&1; {STEPS}")
    assert done.returncode == 0, said(done)
    steps = dict(re.findall(r"^== (\w+)\n(.*?)(?=^== |\Z)", done.stdout, re.M | re.S))

    def has(step, *parts, status=0):
        text = steps[step]
        assert text.endswith(f"status {status}\n"), said(done)
        for part in parts:
            assert part in text, said(done)
        return text

    has("first", "none\nok\n")
    has("again", "1\nok\n1\n")
    has("check", "clean")
    text = has("shm", "shm", " 64000 ", "no space for the heap /dev/shm/heap", "--shm-size",
               " of 65536000 bytes free", "out of memory")
    assert text.count("no space for") == 1 and '"event":"no-space"' in text.replace(": ", ":")
    has("readonly", "/heap: cannot make the heap directory: Read-only file system",
        "on a file system that can be written", status=125)
    # fsGroup without OnRootMismatch does this at each start.
    has("group", "can be written by others", "chmod 700", status=125)
