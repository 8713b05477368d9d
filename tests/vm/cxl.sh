#!/bin/sh
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# In the guest: makes a region, a namespace and a device DAX of a CXL memory device, as `cxl
# create-region` and `ndctl create-namespace` do, through sysfs. Then a heap on it, a kill, and its
# recovery.
region_uuid=6f3a0a5e-1c3a-4a3e-9d56-0f3b64a6a001
device_uuid=6f3a0a5e-1c3a-4a3e-9d56-0f3b64a6a002
appears() { # PATH; drivers go on while the shell does
    n=100
    until [ -e "$1" ] || [ $((n -= 1)) = 0 ]; do sleep 0.1; done
}
make_region() {
    cd /sys/bus/cxl/devices || return
    appears decoder2.0
    size=$(cat mem0/pmem/size)
    region=$(cat decoder0.0/create_pmem_region)
    echo "$region" >decoder0.0/create_pmem_region
    echo 256 >"$region/interleave_granularity"
    echo 1 >"$region/interleave_ways"
    echo "$region_uuid" >"$region/uuid"
    echo pmem >decoder2.0/mode
    echo "$size" >decoder2.0/dpa_size
    echo "$size" >"$region/size"
    echo decoder2.0 >"$region/target0"
    echo 1 >"$region/commit"
    echo "$region" >/sys/bus/cxl/drivers/cxl_region/bind
}
make_dax() {
    cd /sys/bus/nd/devices || return
    appears namespace0.0
    cat /proc/sys/kernel/random/uuid >namespace0.0/uuid
    cat region0/available_size >namespace0.0/size
    echo "$device_uuid" >dax0.0/uuid
    echo 4096 >dax0.0/align
    echo ram >dax0.0/mode
    echo namespace0.0 >dax0.0/namespace
    echo dax0.0 >/sys/bus/nd/drivers/dax_pmem/bind
}
shell() { # COMMANDS
    printf "$1" | pmalloc-run -H /dev/dax0.0 -r store kvshell
}
work_and_kill() {
    (while i=$((i + 1)); do echo "set k$i v$i"; done) | pmalloc-run -H /dev/dax0.0 -r store \
        kvshell >/tmp/said &
    sleep 2
    kill -9 "$(pidof kvshell)"
    echo "acknowledged $(grep -c '^ok' /tmp/said)"
}
make_region
make_dax
if [ "$1" = first ]; then
    pmalloc-recover --make /dev/dax0.0
    shell 'set name Ada\nquit\n' >/dev/null
    work_and_kill
    pmalloc-recover /dev/dax0.0 | grep result
fi
shell 'get name\nverify\nquit\n'
