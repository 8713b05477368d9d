# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The demo, which README.md names first. It checks each of its steps itself."""

import os
import re
import subprocess

from conftest import BUILD, ROOT, busy


def test_every_step_gives_the_right_result():
    done = subprocess.run(
        [ROOT / "scripts" / "run-demo"],
        env=os.environ | {"BUILD": str(BUILD)},
        capture_output=True,
        text=True,
        timeout=300 * busy(),
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert done.stdout.endswith("demo: all steps gave the right results.\n")
    confirmed = re.search(r"the last update that it confirmed: counter = (\d+)", done.stdout)
    after = [int(value) for value in re.findall(r"^    \| (\d+)$", done.stdout, re.MULTILINE)]
    # What was confirmed is there, and perhaps the update that the kill came amid; then one more.
    assert int(confirmed[1]) <= after[0] <= int(confirmed[1]) + 1 and after[1] == after[0] + 1
