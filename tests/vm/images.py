# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""Makes disk and NVDIMM images with a file system, on the host and without root."""

import os
import struct
import subprocess
import uuid

MIB = 1 << 20
SIZE = 320 * MIB  # mkfs.xfs needs 300 MiB; larger images make boots slower
PMEM_DATA = 2 * MIB  # where the file system starts on an NVDIMM
STRIPE_EXT4 = "lazy_itable_init=0,root_owner=0:0,stride=512,stripe_width=512"
INFO_BLOCK = 4096  # where the kernel finds the description of a namespace


def fletcher64(block):
    """The checksum of libnvdimm over little-endian 32-bit words."""
    low = high = 0
    for (word,) in struct.iter_unpack("<I", block):
        low = (low + word) & 0xFFFFFFFF
        high = (high + low) & 0xFFFFFFFF
    return high << 32 | low


def info_block(size, signature=b"NVDIMM_PFN_INFO", align=PMEM_DATA):
    """Describes a namespace without labels as fsdax or devdax, with its page structs in RAM.

    drivers/nvdimm/pfn.h in Linux has the layout.
    """
    fields = struct.pack(
        "<16s16s16sIHHQQIIIIIHH",
        signature,
        uuid.uuid4().bytes,
        bytes(16),  # no parent: there are no labels
        0,  # flags
        1,  # version
        4,
        PMEM_DATA,
        (size - PMEM_DATA) // 4096,
        1,  # page structs in RAM
        0,
        0,
        align,
        4096,  # page size
        64,  # size of a page struct
        0,
    )
    block = fields.ljust(4096, b"\0")
    return block[:-8] + struct.pack("<Q", fletcher64(block))


def make_fs(path, fs, label):
    """Runs mkfs on a file that has its size already.

    Stripes of 2 MiB let the kernel map 2 MiB at once on DAX.
    """
    commands = {
        "ext4": ["mkfs.ext4", "-qF", "-b", "4096", "-E", STRIPE_EXT4, "-L", label],
        # DAX needs reflink=0 before Linux 6.0. Some kernels give pmem sectors of 4096 bytes.
        "xfs": [
            "mkfs.xfs",
            "-qf",
            "-s",
            "size=4096",
            "-d",
            "su=2m,sw=1,agcount=2",
            "-m",
            "reflink=0",
            "-L",
            label,
        ],
        "btrfs": ["mkfs.btrfs", "-qf", "-d", "single", "-m", "single", "-L", label],
    }
    env = dict(os.environ, PATH=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    subprocess.run([*commands[fs], str(path)], env=env, check=True, capture_output=True)


def copy_sparse(source, target, offset):
    """Copies what `source` holds to `offset` of `target`; holes stay holes."""
    end = os.fstat(source.fileno()).st_size
    at = 0
    while at < end:
        try:
            at = os.lseek(source.fileno(), at, os.SEEK_DATA)
        except OSError:  # the rest of the file is a hole
            return
        until = os.lseek(source.fileno(), at, os.SEEK_HOLE)
        while at < until:
            data = os.pread(source.fileno(), min(MIB, until - at), at)
            os.pwrite(target.fileno(), data, offset + at)
            at += len(data)


def make_disk(path, fs, label):
    with open(path, "wb") as disk:
        disk.truncate(SIZE)
    make_fs(path, fs, label)


def make_blank(path):
    with open(path, "wb") as disk:
        disk.truncate(SIZE)


def make_device(path, align):
    """An NVDIMM that becomes a device /dev/dax*, of zeroes."""
    with open(path, "wb") as pmem:
        pmem.truncate(SIZE)
        pmem.seek(INFO_BLOCK)
        pmem.write(info_block(SIZE, b"NVDIMM_DAX_INFO", align))


def make_pmem(path, fs, label):
    plain = path.with_suffix(".fs")
    with open(plain, "wb") as file:
        file.truncate(SIZE - PMEM_DATA)
    make_fs(plain, fs, label)
    with open(path, "wb") as pmem, open(plain, "rb") as source:
        pmem.truncate(SIZE)
        pmem.seek(INFO_BLOCK)
        pmem.write(info_block(SIZE))
        pmem.flush()
        copy_sparse(source, pmem, PMEM_DATA)
    plain.unlink()
