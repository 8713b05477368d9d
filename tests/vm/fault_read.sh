# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# A killed heap in commit mode, of which blocks cannot be read for a while. fault_read.py knows what
# each tool must say.

# After a power cut the journal alone has what was answered; after a sync the files have it, too.
read_round() { # HEAP "SETTINGS" KEYS power_fails|sync FROM TARGET...
    heap=$1 under=$2 keys=$3 first=$4 from=$5
    shift 5
    begin work "$under ROOTS=store" kvshell
    for key in $(seq "$keys"); do
        ask "set k$key v$key"
    done
    kill_program
    "$first"
    say "before $(sum_of "$heap")"
    disk_fails read "$from" $(files_of "$heap" "$@")
    cat $(files_of "$heap" "$@") >/dev/null 2>&1 && say "readable"
    echo 1 >/proc/sys/vm/drop_caches
    tool check pmalloc-recover --check "$heap"
    echo 1 >/proc/sys/vm/drop_caches
    tool recover pmalloc-recover "$heap"
    echo 1 >/proc/sys/vm/drop_caches
    begin start "$under" kvshell
    ask count
    ! alive || kill_program
    [ -z "$worker" ] || finish
    disk_heals
    echo 1 >/proc/sys/vm/drop_caches
    say "behind $(sum_of "$heap")"
}

read_after() { # HEAP recover|start
    [ "$2" = start ] || tool mended pmalloc-recover "$1"
    begin after "HEAP=$1" kvshell
    ask verify
    finish
    say "list $(list_of "$1")"
    rm -rf "$1"
}
