# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# A disk that is a thin volume. Its pool is full for a while, because another volume has taken all:
# writes to new blocks fail with ENOSPC, although the file system has room.

thin_meta=8192 thin_data=409600 # sectors: 4 MiB, 200 MiB

# As disk_begin. `device` is the volume, and the pool lies on the disk. Makes both, and the file
# system, in the first boot.
thin_begin() { # NAME TYPE OPTIONS
    disk_find "$1"
    under=$device sectors=$(cat "/sys/block/${device##*/}/size")
    meta=$(disk_made "$1.meta" "0 $thin_meta linear $under 0")
    data=$(disk_made "$1.data" "0 $thin_data linear $under $thin_meta")
    words="128 0 2 skip_block_zeroing error_if_no_space"
    disk_made "$1.pool" "0 $thin_data thin-pool /dev/$meta /dev/$data $words" >/dev/null
    fresh=
    dmsetup message "$1.pool" 0 "create_thin 0" 2>/dev/null && fresh=yes
    dmsetup message "$1.pool" 0 "delete 1" 2>/dev/null # a power cut has left it
    pool=$1.pool pool_device=/dev/$(disk_name "$1.pool")
    device=/dev/$(disk_made "$1.thin" "0 $sectors thin $pool_device 0")
    [ -z "$fresh" ] || "mkfs.$2" -q -L "$1" "$device"
    # ext4 takes new blocks while there are any. What a round has removed goes back to the pool, or
    # that is full for good.
    [ "$2" != ext4 ] || set -- "$1" "$2" "$3,discard"
    disk_ready "$@"
}

# The other volume takes what is free, block by block.
pool_fills() {
    dmsetup message "$pool" 0 "create_thin 1"
    other=$(disk_made "$pool.other" "0 $thin_data thin $pool_device 1")
    dd if=/dev/zero of="/dev/$other" bs=1M oflag=direct 2>/dev/null
}

pool_frees() {
    dmsetup status "$pool" | grep -q out_of_data_space && say "errors 1"
    dmsetup remove --noudevsync "$pool.other"
    dmsetup message "$pool" 0 "delete 1"
}
