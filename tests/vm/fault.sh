# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# A disk below the device mapper that fails as it is told, and programs on it. faults.py writes the
# job, which calls these functions in one subshell for each disk. All that is said goes to the
# disk's port, descriptor 9. Needs guest.sh.

say() {
    echo "$@" >&9
}

# ---- the disk -----------------------------------------------------------------------------------

# Finds the disk and mounts it. Other functions go by what is set here.
disk_begin() { # NAME TYPE OPTIONS
    disk_find "$1"
    sectors=$(cat "/sys/block/${device##*/}/size")
    disk_ready "$@"
}

disk_find() { # NAME
    tries=0
    until device=$(device_of "$1") || [ "$tries" -gt 200 ]; do
        tries=$((tries + 1))
        usleep 20000
    done
}

disk_ready() { # NAME TYPE OPTIONS
    disk=$1 type=$2 options=$3
    mnt=/mnt/$disk tmp=/tmp/$disk
    mkdir -p "$mnt" "$tmp"
    mkfifo "$tmp/commands" "$tmp/answers"
    trap '' PIPE # the program at the other end may be gone
    good="0 $sectors linear $device 0"
    mapped=/dev/$(disk_made "$disk" "$good")
    bad=/dev/$(disk_made "$disk.bad" "0 $sectors error")
    disk_mount
}

disk_made() { # NAME TABLE
    dmsetup create --noudevsync --noudevrules --table "$2" "$1"
    disk_name "$1"
}

disk_name() { # NAME
    echo "dm-$(dmsetup info -c --noheadings -o minor "$1")"
}

device_of() { # SERIAL
    for at in /sys/block/vd*; do
        [ "$(cat "$at/serial")" = "$1" ] && echo "/dev/${at##*/}" && return
    done
    return 1
}

disk_mount() {
    mount -t "$type" -o "$options" "$mapped" "$mnt" && return
    say "unmountable $(dmesg | grep "${mapped##*/}" | tail -n 1)"
    sleep 1000
}

# No file system is told: it would write all that it has.
disk_is() { # the table on standard input
    dmsetup load "$disk" && disk_turns
}

# The table that was loaded comes into force.
disk_turns() {
    dmsetup suspend --nolockfs --noudevsync "$disk"
    dmsetup resume --noudevsync "$disk"
}

# Read errors come from the disk only after the page cache has forgotten what it holds. `all`: every
# write of the disk; `all-reads`: every read. `pool`: writes to new blocks of a thin volume.
disk_fails() { # write|read FROM FILE... | all | all-reads | pool
    disk_will_fail "$@"
    disk_turns
    [ "$1" != read ] || echo 1 >/proc/sys/vm/drop_caches
    say "fails $*"
}

disk_will_fail() { # as disk_fails
    errors_before=$(errors) type_of_fault=$1
    if [ "$1" = pool ]; then
        echo "$good"
        pool_fills
    elif [ "$1" = all ]; then
        echo "0 $sectors delay $device 0 0 $bad 0 0 $device 0 0"
    elif [ "$1" = all-reads ]; then
        echo "0 $sectors delay $bad 0 0 $device 0 0 $device 0 0"
    else
        fault_map "$device" "$bad" "$sectors" "$@"
    fi >"$tmp/table"
    dmsetup load "$disk" <"$tmp/table"
}

# Says whether the file system still takes what is written: it may have shut itself down.
disk_heals() {
    [ "$type_of_fault" != pool ] || pool_frees
    echo "$good" | disk_is
    say "errors $(($(errors) - errors_before))"
    if (echo probe >"$mnt/probe" && sync "$mnt/probe") 2>/dev/null; then
        say "well"
    else
        say "shut"
    fi
}

# How many errors of this disk the kernel has told of. It tells of a few at a time, and its own
# record is short.
errors() {
    dmesg -c >>/tmp/kernel.log
    grep "${mapped##*/}" /tmp/kernel.log | grep -ci error
}

# The power fails as the disk sees it: nothing reaches it any more, and memory is lost. The program
# at work is stopped first, so what it has said until then was said before.
power_fails() {
    [ -z "$worker" ] || kill -STOP "$worker"
    echo "0 $sectors flakey $device 0 0 36000 1 drop_writes" | disk_is
    [ -z "$worker" ] || kill_program
    tries=0
    until umount "$mnt"; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || { say "busy $(fuser -m "$mnt" 2>&1)" && sleep 1000; }
        usleep 50000
    done
    echo "$good" | disk_is
    say "power"
    disk_mount
}

# The power of the guest itself is cut by the host; the program stays at work meanwhile.
power_waits() {
    say "cut"
    sleep 1000
}

# A file system that has shut itself down is mounted anew, as an administrator would. No program is
# at work there.
mount_if_shut() {
    (echo probe >"$mnt/probe" && sync "$mnt/probe") 2>/dev/null && return
    umount "$mnt" && disk_mount && say "mounted"
}

# ---- programs -----------------------------------------------------------------------------------

worker= turn=

# Starts a program in the background. `ask` gives it lines.
begin() { # LABEL "NAME=VALUE..." PROGRAM ARGUMENT...
    label=$1 settings=$2 asked=0
    shift 2
    say "open $label"
    : >"$tmp/out"
    tee -a "$tmp/out" <"$tmp/answers" >&9 &
    teller=$!
    (
        exec 9>&-
        for setting in $settings; do
            export "PMALLOC_$setting"
        done
        preload=/lib/libpmalloc_preload.so
        [ -z "$turn" ] && export LD_PRELOAD=$preload || export TURN_PRELOAD=$preload
        exec "$@"
    ) <"$tmp/commands" >"$tmp/answers" 2>&1 &
    worker=$!
    exec 8>"$tmp/commands"
}

alive() {
    [ -n "$worker" ] && [ -d "/proc/$worker" ] && ! grep -q '^State:.*[ZX]' "/proc/$worker/status"
}

# Waits until the program has said so many lines of its own, or has ended.
said() { # NUMBER
    until [ "$(grep -vc -e "^pmalloc" "$tmp/out")" -ge "$1" ] || ! alive; do
        usleep 10000
    done
}

# One line, and one line of answer.
ask() { # COMMAND
    asked=$((asked + 1))
    echo "$1" >&8
    said "$asked"
}

# The end of its input, or of the program.
finish() {
    exec 8>&-
    wait "$worker"
    ended=$?
    wait "$teller"
    say "ended $label $ended"
    worker=
}

kill_program() {
    kill -9 "$worker"
    finish
}

# Runs a tool, and says its status and its lines.
tool() { # LABEL COMMAND...
    label=$1
    shift
    say "open $label"
    "$@" >"$tmp/out" 2>&1
    ended=$?
    cat "$tmp/out" >&9
    say "ended $label $ended"
}

# The files of the heap that there are, of these names.
files_of() { # HEAP NAME...
    heap=$1
    shift
    for name; do
        [ ! -f "$heap/$name" ] || echo "$heap/$name"
    done
}

# What all files of the heap hold.
sum_of() { # HEAP
    (cd "$1" && md5sum * 2>/dev/null | md5sum)
}

# All keys and values of kvshell, in short.
list_of() { # HEAP
    echo list | PMALLOC_HEAP=$1 LD_PRELOAD=/lib/libpmalloc_preload.so kvshell | md5sum
}
