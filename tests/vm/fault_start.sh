# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# A heap that was last used without commit mode, and killed; and a disk that fails while it is
# started. fault_start.py knows what must be there after the power cut.

# FAILING: so many starts come while the disk fails. Further ones come on a disk that is well.
start_round() { # HEAP KEYS "SETTINGS" quit|cut FAILING FROM TARGET...
    heap=$1 keys=$2 under="HEAP=$1 $3" last=$4 failing=$5 from=$6
    shift 6
    begin old "HEAP=$heap ROOTS=store" kvshell
    ask "fill $keys 1"
    ask "set c old"
    finish
    sync
    begin new "HEAP=$heap ROOTS=store" kvshell
    ask "fill $keys 2"
    ask "set c new"
    kill_program
    case "$1" in
    all | pool) disk_fails "$1" ;;
    *) disk_fails write "$from" $(files_of "$heap" "$@") ;;
    esac
    for try in 1 2 3; do
        [ "$try" -le "$failing" ] || [ "$healed" = "$heap" ] || start_heals
        begin "try$try" "$under" kvshell
        ask "get c"
        ! alive || break
        finish
    done
    [ "$healed" = "$heap" ] || start_heals
    if alive; then
        ask "set d five"
        ask "set e six"
        [ "$last" = cut ] || finish
    fi
}

start_heals() {
    disk_heals
    healed=$heap
    alive || mount_if_shut
}

start_after() { # HEAP recover|start
    [ "$2" = start ] || tool recover pmalloc-recover "$1"
    begin after "HEAP=$1" kvshell
    for command in verify "get c" "get d" "get e"; do
        ask "$command"
    done
    finish
    say "list $(list_of "$1")"
    rm -rf "$1"
}
