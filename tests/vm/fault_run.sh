# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Programs at work while their disk fails for a moment. fault_run.py knows what must be there.

# The page cache forgets what it may, once and again: pages that could not be written, too.
forget() { # once|often|press|no
    case "$1" in
    once) echo 1 >/proc/sys/vm/drop_caches ;;
    often)
        for time in 1 2 3 4 5 6 7 8; do
            echo 1 >/proc/sys/vm/drop_caches
            usleep 100000
        done
        ;;
    press) # by one at a time
        mkdir /tmp/pressing 2>/dev/null || return
        free=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
        dd if=/dev/zero of=/dev/shm/pressing bs=1M count=$((free - 250)) 2>/dev/null
        rm -f /dev/shm/pressing
        rmdir /tmp/pressing
        ;;
    esac
}

# WAITS: microseconds before the disk fails, while it fails, and after that.
run_round() { # HEAP "SETTINGS" MODE SEED "WAITS" FORGET FROM TARGET...
    heap=$1 under="$2 ROOTS=state" mode=$3 seed=$4 waits=$5 how=$6 from=$7
    shift 7
    begin run "$under" instants "$mode" "$seed"
    said 20
    set -- $waits "$@"
    usleep "$1"
    case "$4" in
    all | pool) disk_fails "$4" ;;
    *) run_fails "$@" ;;
    esac
    usleep "$2"
    [ "$how" = no ] || forget "$how"
    disk_heals
    [ "$how" = no ] || forget "$how"
    usleep "$3"
    alive || finish
}

run_fails() { # WAITS... TARGET...
    shift 3
    disk_fails write "$from" $(files_of "$heap" "$@")
}

run_after() { # HEAP SEED recover|start
    [ "$3" = start ] || recover "$1" >&9 2>&1
    (preloaded "$1" instants check "$2") >&9 2>&1
    say "checked $?"
    rm -rf "$1"
}
