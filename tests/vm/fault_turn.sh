# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# A step of which one sync or read meets a disk that fails: the N-th, for each N in turn. turn.c
# stops the program there. fault_turn.py knows what must be there after the power cut.

# MODE: once - the disk fails during that call; on - from then on, until the program ends or
# turn_heals is called. What follows `$turn` is watched.
turn_begin() { # sync|read N PREFIX MODE TARGET
    [ -p "$tmp/turn.to" ] || mkfifo "$tmp/turn.to" "$tmp/turn.from"
    rm -f "$tmp/turn.healed"
    export TURN_TO="$tmp/turn.to" TURN_FROM="$tmp/turn.from"
    turn="turn $1 $2 $3"
    (
        exec 6<>"$TURN_TO" 7<>"$TURN_FROM" 8>&- # a program waits for the end of its input
        turn_watch "$1" "$3" "$4" "$5"
    ) &
    turning=$!
}

turn_watch() { # sync|read PREFIX MODE TARGET
    failing=
    while read -r word rest <&6; do
        case "$word" in
        now) turn_fails "$1" "$2" "$4" ;;
        over) [ "$3" = on ] || turn_well ;;
        kind) say "kind $rest" ;;
        heal) turn_well && echo >"$tmp/turn.healed" ;;
        end) turn_well && say "calls $rest" && return ;;
        esac
        case "$word" in now | over) echo go >&7 ;; esac
    done
}

turn_fails() { # sync|read PREFIX TARGET
    failing=yes
    case "$1 $3" in
    *pool | "sync all") disk_fails "$3" ;;
    "read all") disk_fails all-reads ;;
    sync*) disk_fails write 0 $(turn_files "$2") ;;
    read*) disk_fails read 0 $(turn_files "$2") ;;
    esac
    [ "$1" != read ] || echo 3 >/proc/sys/vm/drop_caches
}

# All that the step works on: a heap, its backup, a file.
turn_files() { # PREFIX
    find "$1"* -type f -size +0
}

turn_well() {
    [ -z "$failing" ] || disk_heals
    failing=
}

# The program lives, and its disk is well again.
turn_heals() {
    echo heal >"$TURN_TO"
    until [ -e "$tmp/turn.healed" ]; do
        usleep 10000
    done
}

# The program has ended.
turn_end() {
    wait "$turning"
    turn=
}

# A page that is clean can be forgotten, and so be read again.
turn_settle() { # sync|read
    [ "$1" != read ] || sync
}

# Again, on a disk that is well. Where it has shut itself down, it is mounted anew first.
turn_again() { # COMMAND...
    tool step1 $turn "$@"
    turn_end
    for time in 2 3; do
        [ "$ended" != 0 ] || return
        mount_if_shut
        tool "step$time" "$@"
    done
}

turn_start() { # HEAP "SETTINGS" "BEFORE" KEYS KIND N MODE TARGET
    step_heap "$1" "$3" "$4"
    kill_program
    turn_settle "$5"
    turn_begin "$5" "$6" "$1" "$7" "$8"
    begin step1 "HEAP=$1 $2" $turn kvshell
    ask "get c"
    alive && turn_heals
    turn_finish
    for time in 2 3; do
        [ -n "$unfinished" ] || return
        mount_if_shut
        begin "step$time" "HEAP=$1 $2" kvshell
        ask "get c"
        turn_finish
    done
}

# A heap that could not be closed says so, whatever the program's status is.
turn_finish() {
    finish
    [ -z "$turn" ] || turn_end
    unfinished=
    [ "$ended" = 0 ] && ! grep -q "^pmalloc" "$tmp/out" || unfinished=yes
}

turn_close() { # HEAP "SETTINGS" "BEFORE" KEYS KIND N MODE TARGET
    step_heap "$1" "$2" "$4"
    turn_begin "$5" "$6" "$1" "$7" "$8"
    $turn "$worker"
    turn_finish
    for time in 1 2; do
        [ -n "$unfinished" ] || return
        mount_if_shut
        begin "step$time" "HEAP=$1 $2" kvshell
        ask "get c"
        turn_finish
    done
}

turn_recover() { # HEAP "SETTINGS" "BEFORE" KEYS KIND N MODE TARGET
    step_heap "$1" "$3" "$4"
    kill_program
    turn_settle "$5"
    turn_begin "$5" "$6" "$1" "$7" "$8"
    turn_again pmalloc-recover "$1"
}

# The first round of a backup, or the next one.
turn_first() { # HEAP "SETTINGS" "BEFORE" KEYS KIND N MODE TARGET
    step_heap "$1" "$3" "$4"
    ask "set d five"
    finish
    turn_settle "$5"
    turn_begin "$5" "$6" "$1" "$7" "$8"
    turn_again pmalloc-backup "$1" "$1.copy"
}

turn_next() { # as turn_first
    step_heap "$1" "$3" "$4"
    tool first pmalloc-backup "$1" "$1.copy"
    ask "set d five"
    finish
    turn_settle "$5"
    turn_begin "$5" "$6" "$1" "$7" "$8"
    turn_again pmalloc-backup "$1" "$1.copy"
}

turn_grow() { # FILE "SETTINGS" "BEFORE" KEYS KIND N MODE TARGET
    tool make pmalloc-recover --make --size 32M --journal 8M "$1"
    step_heap "$1" "$3" "$4"
    finish
    sync
    fallocate -l 50331648 "$1"
    turn_begin "$5" "$6" "$1" "$7" "$8"
    turn_again pmalloc-recover --grow --size 48M "$1"
}
