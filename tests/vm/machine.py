# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""The guest: its media, the contents of its first file system, QEMU's command line."""

import dataclasses
import pathlib
import shlex
import shutil
import subprocess

import images
import initramfs
from kernel import Skip

HERE = pathlib.Path(__file__).resolve().parent
# The guest loads these two lists one after the other. No device is seen before the second one.
MODULES = {
    "drivers": ["xfs", "virtio_blk", "virtio_console", "libnvdimm", "nd_btt", "nd_pmem"],
    "buses": ["virtio_pci", "nfit"],
}
DEVICE_MODULES = ["device_dax", "dax_pmem"]
FILE_SIZE = "200M"  # of a fixed medium on a file system
APPS = {
    "list": "list_state",
    "skiplist": "skip_state",
    "hashset": "hash_state",
    "tree": "tree_state",
}
# In an emulated guest, the self-tests of ciphers and interrupt routing by ACPI take a third of the
# boot, so they are off. Without the latter the guest has one processor; ONE_CORE leaves it out.
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 nokaslr mitigations=off sysrq_always_enabled cryptomgr.notests"
)
ONE_CORE = " acpi=noirq"
# QEMU 7.2 emulates cmpxchg16b wrongly, and Linux 6.12 crashes on it. Five levels of page tables
# only cost time.
CPU = "max,la57=off,cx16=off"
QEMU = "qemu-system-x86_64"


@dataclasses.dataclass(frozen=True)
class Nodes:
    """The guest's NUMA nodes: the first `cores` have a processor each, the others memory alone."""

    cores: int
    memory: tuple  # MiB of each node
    all_cores: bool = True  # else the guest uses one

    def distance(self, a, b):
        """Two sockets, or pairs of nodes in sockets, numbered across them. Memory alone is nearest
        to the last node but one."""
        a, b = sorted((a, b))
        if b >= self.cores:
            return 17 if a == self.cores - 2 else 28
        return 12 if self.cores > 2 and b - a == self.cores // 2 else 21


ONE_OF_TWO = Nodes(2, (512, 512), all_cores=False)
TWO = Nodes(2, (512, 512))
EIGHT = Nodes(8, (256,) + (160,) * 7 + (32,))


@dataclasses.dataclass(frozen=True)
class Medium:
    name: str
    device: str  # pmem, dax (a device without a file system), disk, mapped, or none
    fs: str
    options: str
    node: int = 0
    fixed: bool = False  # the heap is one file on the file system; a device always is

    @property
    def survives(self):
        """Whether the medium holds anything after a power cut."""
        return self.device != "none"

    @property
    def thin(self):
        """Whether the guest makes a thin volume of the disk, and the file system on it."""
        return self.name.endswith("-thin")

    @property
    def is_dax(self):
        return self.device in ("pmem", "dax")

    @property
    def heap_promised(self):
        """Whether every acknowledged object must be there after a power cut."""
        return self.is_dax

    def guarantee(self, domain):
        """How the guarantee that the tools print for this medium begins."""
        dax = "DAX with caches in the power-fail domain" if domain == "cpu" else "DAX with ADR"
        return {"pmem": dax, "dax": dax, "disk": "plain file", "none": "tmpfs"}[self.device]


MEDIA = {
    medium.name: medium
    for medium in (
        Medium("ext4-dax", "pmem", "ext4", "dax=always", 0),
        Medium("xfs-dax", "pmem", "xfs", "dax=always", 1),
        Medium("ext4", "disk", "ext4", "commit=1"),
        Medium("xfs", "disk", "xfs", "rw"),
        Medium("tmpfs", "none", "tmpfs", "mpol=bind:1,size=320M", 1),
    )
}


# Fixed media; only --media names them. NVDIMMs as devices: `options` is the alignment, and the
# guest gives each a node of its name in /dev. Files with all their space; on tmpfs as on famfs.
FIXED = {
    medium.name: medium
    for medium in (
        Medium("dax-2m", "dax", "", str(2 << 20), 0),
        Medium("dax-4k", "dax", "", "4096", 1),
        Medium("ext4-dax-file", "pmem", "ext4", "dax=always", 0, fixed=True),
        Medium("tmpfs-file", "none", "tmpfs", "huge=always,size=320M", fixed=True),
    )
}


# Disks below the device mapper, which can make them fail (faults.py); the job itself mounts them.
MAPPED = {
    medium.name: medium
    for medium in (
        Medium("ext4", "mapped", "ext4", "commit=1"),
        Medium("xfs", "mapped", "xfs", "rw"),
        Medium("btrfs", "mapped", "btrfs", "commit=1"),
        # Thin volumes, whose pools may be full.
        Medium("ext4-thin", "mapped", "ext4", "commit=1"),
        Medium("xfs-thin", "mapped", "xfs", "rw"),
        Medium("btrfs-thin", "mapped", "btrfs", "commit=1"),
    )
}


ALL = MEDIA | FIXED


def make_image(medium, folder):
    path = folder / f"{medium.name}.img"
    if medium.device == "dax":
        images.make_device(path, int(medium.options))
    elif medium.device == "pmem":
        images.make_pmem(path, medium.fs, medium.name)
    elif medium.thin:
        images.make_blank(path)
    elif medium.device in ("disk", "mapped"):
        images.make_disk(path, medium.fs, medium.name)


def base_archive(kernel, build, programs=(), modules=None, files=()):
    """The archive of all files that are the same in every boot."""
    found = initramfs.find_modules(kernel.tree)
    archive = initramfs.Archive()
    for folder in ("proc", "sys", "dev", "tmp", "mnt", "bin"):
        archive.folder(folder)
    busybox = shutil.which("busybox")
    if not busybox:
        raise Skip("there is no busybox; run scripts/bootstrap --test")
    archive.program("bin/busybox", busybox)
    archive.link("bin/sh", "busybox")
    tools = ("pmalloc-recover", "pmalloc-info", "pmalloc-run")
    programs_of_ours = ("churn", "instants", "pipelined", "storm", "placed", "distant", "pages")
    ours = [f"vm/{name}" for name in programs_of_ours]
    for name in (*tools, *ours, "apps/kvshell"):
        archive.program("bin/" + pathlib.Path(name).name, build / name)
    for name in APPS:
        archive.program("bin/" + name, build / "apps" / name)
    for path in programs:
        archive.program("bin/" + pathlib.Path(path).name, path)
    archive.program("lib/libpmalloc_preload.so", build / "libpmalloc_preload.so")
    numactl = shutil.which("numactl")
    if numactl:
        archive.program("bin/numactl", numactl)
    groups = modules or MODULES
    modules = initramfs.in_load_order(
        [name for group in groups.values() for name in group]
        + [name for name in DEVICE_MODULES if name in found],
        lambda name: initramfs.read_module(found[name]) if name in found else None,
    )
    for name, data in modules.items():
        archive.add(f"modules/{name}.ko", data)
    buses = [name for name in modules if name in groups["buses"]]
    for group, names in (
        ("drivers", [name for name in modules if name not in buses]),
        ("buses", buses),
    ):
        archive.add(f"modules/{group}", "".join(f"{name}.ko\n" for name in names))
    archive.add("init", (HERE / "init").read_bytes())
    for name in ("guest.sh", *files):
        archive.add(name, (HERE / name).read_bytes())
    return archive.image()


def job_text(media, script):
    """The job of a boot: mounts the media and runs `script` as start()."""
    mounts = "".join(
        f"make_device {m.name} {m.options} &\n"
        if m.device == "dax"
        else "mount_medium " + " ".join(map(shlex.quote, (m.name, m.fs, m.options)))
        + (f" && make_file {m.name} {FILE_SIZE}" if m.fixed else "")
        + " &\n"
        for m in media
        if m.device != "mapped"
    )
    return f". /guest.sh\n{mounts}start() {{\n{script}\n}}\n"


def job_archive(media, script):
    archive = initramfs.Archive()
    archive.add("job", job_text(media, script))
    return archive.image()


def node_arguments(nodes):
    """Of QEMU's command line."""
    count = len(nodes.memory)
    command = ["-smp", f"{nodes.cores},sockets={nodes.cores},cores=1,threads=1"]
    command += ["-m", f"{sum(nodes.memory)}M,slots=4,maxmem=8G"]
    for node, memory in enumerate(nodes.memory):
        command += ["-object", f"memory-backend-ram,id=ram{node},size={memory}M"]
        cpus = f",cpus={node}" if node < nodes.cores else ""
        command += ["-numa", f"node,nodeid={node}{cpus},memdev=ram{node}"]
    for a in range(count):
        for b in range(a + 1, count):
            command += ["-numa", f"dist,src={a},dst={b},val={nodes.distance(a, b)}"]
    return command


def qemu_command(
    kernel, folder, media, domain, ports, accelerator="tcg,thread=multi", nodes=ONE_OF_TWO
):
    command = [QEMU, "-accel", accelerator, "-cpu", CPU]
    command += ["-machine", f"pc,nvdimm=on,nvdimm-persistence={domain}", *node_arguments(nodes)]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
    command += ["-serial", f"file:{folder}/console.log"]
    for medium in media:
        path = folder / f"{medium.name}.img"
        if medium.device in ("pmem", "dax"):
            backend = (
                f"memory-backend-file,id={medium.name}-mem,share=on,mem-path={path},"
                f"size={images.SIZE}"
            )
            command += ["-object", backend]
            command += [
                "-device",
                f"nvdimm,id={medium.name},memdev={medium.name}-mem,node={medium.node}",
            ]
        elif medium.device in ("disk", "mapped"):
            command += [
                "-drive",
                f"file={path},if=none,id={medium.name},format=raw,cache=writeback",
            ]
            command += ["-device", f"virtio-blk-pci,drive={medium.name},serial={medium.name}"]
    command += ["-device", "virtio-serial-pci,max_ports=31"]
    for port in ports:
        command += ["-chardev", f"file,id=port-{port},path={folder}/{port}.port,append=on"]
        command += ["-device", f"virtserialport,chardev=port-{port},name={port}"]
    command += ["-kernel", str(kernel.image), "-initrd", f"{folder}/initrd"]
    return command + ["-append", KERNEL_LINE + ("" if nodes.all_cores else ONE_CORE)]


class Boot:
    """One run of the guest. Its ports are files that are empty at the start."""

    def __init__(self, kernel, base, folder, media, domain, script, ports, nodes=ONE_OF_TWO):
        self.folder = folder
        self.ports = {port: folder / f"{port}.port" for port in ports}
        for path in (*self.ports.values(), folder / "console.log"):
            path.write_bytes(b"")
        (folder / "initrd").write_bytes(base + job_archive(media, script))
        command = qemu_command(kernel, folder, media, domain, ports, nodes=nodes)
        (folder / "qemu.command").write_text(shlex.join(command) + "\n", encoding="utf-8")
        with open(folder / "qemu.log", "wb") as log:
            self.process = self.start(command, log)

    def start(self, command, log):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def running(self):
        return self.process.poll() is None

    def cut(self):
        """Cuts the power."""
        self.process.kill()
        self.process.wait()

    def console(self):
        return (self.folder / "console.log").read_text(encoding="utf-8", errors="replace")
