# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Whether the kernel maps 2 MiB of a fixed medium at once, as its counter of faults says."""

import re
import time

from machine import FIXED, Boot, make_image

SECONDS = 120
HUGE, SMALL = 2 << 20, 4096
SPARE = 1.25  # ends of the block, and a fault or two of the program's own
HEAPS = {
    name: f"/dev/{name}" if medium.device == "dax" else f"/mnt/{name}/medium"
    for name, medium in FIXED.items()
}


def complaints(name, text):
    """What is wrong with the answer of pages.c. A device of 4 KiB shows that the counter counts."""
    found = re.search(r"^pages (\d+) (\d+)$", text, re.MULTILINE)
    if not found:
        return [f"{name}: no answer: {text[-300:]}"]
    size, faults = int(found[1]), int(found[2])
    if name == "dax-4k":
        few = faults < size // SMALL / SPARE
        return [f"{name}: {faults} faults for {size} bytes are too few"] if few else []
    many = faults > size // HUGE * SPARE
    return [f"{name}: {faults} faults for {size} bytes: it maps small pages"] if many else []


def check(kernel, base, folder):
    """Returns what is wrong, and a line of figures."""
    folder.mkdir()
    for medium in FIXED.values():
        make_image(medium, folder)
    script = "\n".join(
        f"PMALLOC_HEAP={heap} LD_PRELOAD=/lib/libpmalloc_preload.so pages >/dev/port/{name} 2>&1"
        for name, heap in HEAPS.items()
    )
    boot = Boot(kernel, base, folder, list(FIXED.values()), "cpu", script, list(HEAPS))
    end = time.monotonic() + SECONDS
    while boot.running() and time.monotonic() < end:
        time.sleep(0.05)
    late = boot.running()
    boot.cut()
    texts = {name: boot.ports[name].read_text(encoding="utf-8", errors="replace") for name in HEAPS}
    wrong = [line for name, text in texts.items() for line in complaints(name, text)]
    if late:
        wrong.append(f"it did not end in {SECONDS} s; the console ends: {boot.console()[-1000:]}")
    figures = ", ".join(f"{name} {text.split()[-1]}" for name, text in texts.items() if text)
    return wrong, f"faults for 64 MiB: {figures}"
