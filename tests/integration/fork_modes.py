# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The kinds of memory that a program which forks is tried on."""

MODES = {
    "libc": None,
    "volatile": {"BACKING": "volatile"},
    "heap": {},
    "20ms": {"COMMIT": "20ms"},
    "output": {"COMMIT": "output"},
    "copy": {"FORK": "copy"},
    "copy, 20ms": {"FORK": "copy", "COMMIT": "20ms"},
    "copy, output": {"FORK": "copy", "COMMIT": "output"},
    "follow": {"FORK": "follow"},
}


def settings(mode, heap):
    """What conftest.run() takes."""
    if MODES[mode] is None:
        return {"preload": False}
    return MODES[mode] if mode == "volatile" else {"HEAP": heap, "ROOTS": "*", **MODES[mode]}
