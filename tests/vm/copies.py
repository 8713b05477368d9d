# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Cuts that need no boot: the guest stands still, its media are copied, and it goes on.

A copy holds what the media would hold if the power failed then: nothing of the guest's memory. The
host mounts the copy, so its file systems replay their logs, and opens the heaps as a boot would.
That takes a second instead of a boot, and root for the mount."""

import os
import pathlib
import shlex
import subprocess

import images

# What a boot does with a heap (commit_check of guest.sh). Paths and words come as arguments.
CHECK = """
mount -t "$1" -o "$2" "$3" "$4" || { echo "wrong: the copy cannot be mounted"; exit; }
[ -d "$5" ] || { echo absent; exit; }
out=$("$6/pmalloc-recover" --json "$5" 2>&1)
echo "recover $?" $out
export PMALLOC_HEAP="$5" PMALLOC_ROOTS=state
LD_PRELOAD="$6/libpmalloc_preload.so" "$6/vm/$7" "$8" "$9" 2>&1
umount "$4"
"""


class Unable(Exception):
    """The host may not mount."""


def insist_on_root():
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        raise Unable("--copies mounts images: it needs root and loop devices")


def take(media, folder):
    """Copies the images of a guest that stands still."""
    target = folder / "copy"
    target.mkdir(exist_ok=True)
    for medium in media:
        name = f"{medium.name}.img"
        with open(folder / name, "rb") as image, open(target / name, "wb") as copy:
            copy.truncate(images.SIZE)
            images.copy_sparse(image, copy, 0)


def verify(slot, program, folder, build):
    """`program`: its name and mode. What the heap of one medium's copy says, as its port would."""
    medium = slot.medium
    point = folder / "mnt"
    point.mkdir(exist_ok=True)
    options = ["loop"] + ["nouuid"] * (medium.fs == "xfs")
    if medium.device == "pmem":
        options.append(f"offset={images.PMEM_DATA}")
    image, heap = folder / "copy" / f"{medium.name}.img", point / slot.trigger
    words = [medium.fs, ",".join(options), image, point, heap, build, *program, slot.seed]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PMALLOC_")}
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", CHECK, "sh", *map(str, words)],
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 or done.stderr:
        return done.stdout + f"wrong: {shlex.join(done.args[4:])}: {done.stderr}\n"
    return done.stdout


def build_folder():
    root = pathlib.Path(__file__).resolve().parents[2]
    return pathlib.Path(os.environ.get("BUILD") or root / "build").resolve()
