# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
"""A heap on a CXL memory device (cxl-type3): made, killed, recovered, and there after a power cut.

QEMU 7.2 and Linux 6.1 do this under two conditions. The host bridge has a second root port: with
one the kernel leaves the bridge's decoder alone, and QEMU then drops all stores. And the labels are
made anew in each boot, with the same places: the kernel does not take up those of a boot before.
On a processor that says that it is a guest's, Linux 6.12 commits no region, since it cannot empty
caches there: so this one does not say so. Linux 7.2 makes no namespace of a device without a serial
number: so this one has one."""

import pathlib
import re
import subprocess
import time

import initramfs
import machine

SECONDS = 150
SIZE, LABELS = 256 << 20, 1 << 20
MODULES = {
    "drivers": ["virtio_console", "libnvdimm", "nd_btt", "nd_pmem"],
    "buses": ["virtio_pci", "cxl_acpi", "cxl_pmem", "cxl_pci", "cxl_mem"],
}


def command(kernel, folder):
    backend = "memory-backend-file,share=on"
    return [
        *(machine.QEMU, "-accel", "tcg,thread=multi", "-smp", "1"),
        *("-cpu", f"{machine.CPU},hypervisor=off"),
        *("-machine", "q35,cxl=on,cxl-fmw.0.targets.0=cxl,cxl-fmw.0.size=4G"),
        *("-m", "1G,slots=4,maxmem=8G", "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-serial", f"file:{folder}/console.log"),
        *("-object", f"{backend},id=memory,mem-path={folder}/cxl.img,size={SIZE}"),
        *("-object", f"{backend},id=labels,mem-path={folder}/labels.img,size={LABELS}"),
        *("-device", "pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl"),
        *("-device", "cxl-rp,port=0,bus=cxl,id=root0,chassis=0,slot=2"),
        *("-device", "cxl-rp,port=1,bus=cxl,id=root1,chassis=0,slot=3"),
        *("-device", "cxl-type3,bus=root0,memdev=memory,lsa=labels,id=module,sn=1"),
        *("-device", "virtio-serial-pci,bus=pcie.0"),
        *("-chardev", f"file,id=output,path={folder}/output.port"),
        *("-device", "virtserialport,chardev=output,name=output"),
        *("-kernel", str(kernel.image), "-initrd", f"{folder}/initrd"),
        *("-append", machine.KERNEL_LINE),
    ]


def boot(kernel, base, folder, which):
    """What the guest has said when it ends, or when its power is cut."""
    archive = initramfs.Archive()
    text = (pathlib.Path(__file__).parent / "cxl.sh").read_bytes()
    archive.add("cxl.sh", text)
    script = f"sh /cxl.sh {which} >/dev/port/output 2>&1; echo finished >>/dev/port/output"
    script += "\nsleep 100" * (which == "first")
    (folder / "initrd").write_bytes(base + archive.image() + machine.job_archive([], script))
    with open(folder / "labels.img", "wb") as labels:
        labels.truncate(LABELS)
    port = folder / "output.port"
    port.write_bytes(b"")
    with subprocess.Popen(command(kernel, folder), stdin=subprocess.DEVNULL) as process:
        end = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < end:
            if b"finished" in port.read_bytes():
                break
            time.sleep(0.1)
        process.kill()
    return port.read_text(encoding="utf-8", errors="replace")


def check(kernel, build, folder):
    """Returns what is wrong, and a line of figures."""
    folder.mkdir()
    with open(folder / "cxl.img", "wb") as image:
        image.truncate(SIZE)
    base = machine.base_archive(kernel, build, modules=MODULES)
    first, second = (boot(kernel, base, folder, which) for which in ("first", "second"))
    said = int((re.findall(r"acknowledged (\d+)", first) or [0])[0])
    keys = [int(number) for number in re.findall(r"^ok (\d+) keys", first + second, re.MULTILINE)]
    good = said > 0 and len(keys) == 2 and keys[0] == keys[1] and said < keys[0] <= said + 2
    if not good or (first + second).count("Ada") != 2:
        return [f"after a kill: {first}; after a power cut: {second}"], "failed"
    return [], f"{said} acknowledged before a kill, {keys} keys after it and after a power cut"
