# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# A step that brings a heap to its disk, while that fails from some instant on and for a while: it
# is done again when the disk is well. fault_step.py knows what must be there after the power cut.

# A heap that was killed with all this in it; the disk has the first half.
step_heap() { # HEAP "SETTINGS" KEYS
    begin old "HEAP=$1 ROOTS=store $2" kvshell
    ask "fill $3 1"
    finish
    sync
    begin new "HEAP=$1 ROOTS=store $2" kvshell
    ask "fill $3 2"
    ask "set c new"
}

# The disk fails so many microseconds later, or at once, and for so many.
step_fails() { # "WAIT WHILE" FILE...
    wait=${1% *} while=${1#* }
    shift
    case "$1" in
    all | pool) disk_will_fail "$1" ;;
    *) disk_will_fail write 0 "$@" ;;
    esac
    [ "$wait" != 0 ] || disk_turns
    (
        [ "$wait" = 0 ] || { usleep "$wait" && disk_turns; }
        usleep "$while"
        disk_heals
    ) &
    failing=$!
}

# Until it has worked; only the first time meets the disk that fails.
step_again() { # COMMAND...
    tool step1 "$@"
    wait "$failing"
    for time in 2 3; do
        [ "$ended" != 0 ] || return
        mount_if_shut
        tool "step$time" "$@"
    done
}

step_targets() { # HEAP TARGET
    case "$2" in
    all | pool) echo "$2" ;;
    *) files_of "$1" "$2" ;;
    esac
}

step_recover() { # HEAP "SETTINGS" KEYS "WHEN" TARGET
    step_heap "$1" "$2" "$3"
    kill_program
    step_fails "$4" $(step_targets "$1" "$5")
    step_again pmalloc-recover "$1"
}

# Here the second time is a start, and a close, of what the first one has left.
step_close() { # HEAP "SETTINGS" KEYS "WHEN" TARGET
    step_heap "$1" "$2" "$3"
    step_fails "$4" $(step_targets "$1" "$5")
    finish
    wait "$failing"
    for time in 1 2; do
        [ "$ended" != 0 ] || grep -q "^pmalloc" "$tmp/out" || return # it has said what was wrong
        mount_if_shut
        begin "step$time" "HEAP=$1 $2" kvshell
        finish
    done
}

# Of the heap or of the backup, as the target says: heap.0, copy/heap.0.
step_backup() { # HEAP "SETTINGS" KEYS "WHEN" TARGET
    step_heap "$1" "$2" "$3"
    tool first pmalloc-backup "$1" "$1.copy"
    ask "set d five"
    finish
    case "$5" in
    copy/*) step_fails "$4" $(step_targets "$1.copy" "${5#copy/}") ;;
    *) step_fails "$4" $(step_targets "$1" "$5") ;;
    esac
    step_again pmalloc-backup "$1" "$1.copy"
}

step_grow() { # FILE "SETTINGS" KEYS "WHEN" TARGET
    tool make pmalloc-recover --make --size 32M --journal 8M "$1"
    step_heap "$1" "$2" "$3"
    finish
    sync
    fallocate -l 50331648 "$1"
    step_fails "$4" "$1"
    step_again pmalloc-recover --grow --size 48M "$1"
}

step_after() { # HEAP recover|start backup|...
    at=$1
    [ "$3" != backup ] || at=$1.copy
    [ "$3" != backup ] || tool verify pmalloc-backup --verify "$at"
    [ "$2" = start ] || tool recover pmalloc-recover "$at"
    begin after "HEAP=$at" kvshell
    ask verify
    ask "get c"
    finish
    say "list $(list_of "$at")"
    rm -rf "$1" "$1.copy"
}
