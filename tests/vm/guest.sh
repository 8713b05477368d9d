# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# What the guest does with one medium. vm-test writes /job, which calls these functions, and /init
# runs it. Each medium has a port to the host; ledger.py reads all that is said there.

# What its programs leave behind is meant so.
export PMALLOC_ROOTLESS=quiet

# Replaces the shell by the program, so that the process in the background is the program itself.
preloaded() { # HEAP COMMAND...
    export PMALLOC_HEAP="$1" PMALLOC_ROOTS=state LD_PRELOAD=/lib/libpmalloc_preload.so
    shift
    exec "$@"
}

recover() { # HEAP
    echo "phase recover"
    out=$(pmalloc-recover --json "$1" 2>&1)
    status=$?
    echo "recover $status" $out
}

# Checks, recovers and walks the heap. Says what each step answered.
verify() { # HEAP SEED
    [ -e "$1" ] || echo "absent"
    out=$(pmalloc-recover --check "$1" 2>&1)
    status=$?
    echo "check $status" $out
    recover "$1"
    (preloaded "$1" churn walk "$2")
    echo "walked $?"
}

# Runs churn for some time and kills it. On any medium every acknowledged object must be there.
kill_round() { # HEAP SEED FROM MICROSECONDS [-f]
    preloaded "$1" churn run $5 "$2" "$3" &
    worker=$!
    usleep "$4"
    kill -9 "$worker"
    wait "$worker" 2>/dev/null
    # A kill may cut a line short: where the port is a file, at the end of a page of it.
    printf '\030\nkilled\n'
    verify "$1" "$2"
}

# Works until the power is cut.
work() { # HEAP SEED FROM [-f]
    echo "phase open"
    (preloaded "$1" churn run $4 "$2" "$3")
    echo "ended $?"
}

# Works in commit mode until the power is cut. pmalloc-recover brings in the last commit, or the
# start of the program does.
commit_work() { # HEAP SEED recover|open TRIGGER MODE
    echo "phase $3"
    [ "$3" != recover ] || [ ! -d "$1" ] || recover "$1"
    export PMALLOC_COMMIT="$4" PMALLOC_DECAY_MS=0
    # An emulated guest is slow.
    case "$5" in sections* | serve) export PMALLOC_COMMIT_PATIENCE=5000 ;; esac
    if [ "$5" = serve ]; then
        serve_clients "$1" "$2"
    elif [ "$5" = storm ]; then
        work_in_rounds "$1" "$2"
    else
        (preloaded "$1" instants "$5" "$2")
    fi
    echo "ended $?: $(dmesg | grep segfault | tail -n 1)"
}

# Says again and again how many pages the rounds of a program's commits have found: first ones,
# second ones, third ones, all others.
watch_rounds() { # HEAP PID
    while usleep 300000; do
        pmalloc-info --follow --interval 0.2 --json "$1" 2>/dev/null | awk -v pid="$2" '
            $0 ~ "\"owner_pid\":" pid "," && match($0, /"pages_in_rounds":.[0-9,]*/) {
                pages = substr($0, RSTART + 19, RLENGTH - 19)
                gsub(",", " ", pages)
                if (pages != last) print "rounds " pages
                last = pages
                fflush()
            }'
    done
}

# There are no rounds while a program has a port open: the kernel might store to its pages for that
# device. So its lines come through a pipe, and it goes on when the port has them.
work_in_rounds() { # HEAP SEED
    heard=$1.heard
    rm -f "$heard"
    mkfifo "$heard"
    {
        (preloaded "$1" storm run "$2") <"$heard" &
        worker=$!
        watch_rounds "$1" "$worker" &
        wait "$worker"
        echo "ended $?"
    } 2>&1 | while read -r line; do
        echo "$line"
        case "$line" in instant* | commit*) echo >&3 ;; ended*) break ;; esac
    done 3>"$heard"
}

# A server, and clients outside of the heap, which say what they are answered.
serve_clients() { # HEAP SEED
    socket=/tmp/$(echo "$1" | tr / .)
    (preloaded "$1" pipelined serve "$socket") &
    pipelined ask "$socket" "$2" said
}

# Says which instant the heap holds.
commit_check() { # HEAP SEED PROGRAM MODE
    [ -d "$1" ] || { echo "absent" && return; }
    recover "$1"
    (preloaded "$1" "$3" "$4" "$2")
}

# Waits up to 10 seconds until the program that writes FILE is at work. Fails when it is not.
ready() { # FILE
    tries=0
    until grep -qs ready "$1"; do
        usleep 20000
        tries=$((tries + 1))
        [ "$tries" -lt 500 ] || return 1
    done
}

# Runs `placed` again and again, in a heap that is closed and killed in turn.
place() { # HEAP ROUNDS [BLOCKS NODES]
    heap=$1 rounds=$2
    shift 2
    export PMALLOC_HEAP="$heap" PMALLOC_ROOTS=kept PMALLOC_STATS=1
    for round in $(seq "$rounds"); do
        LD_PRELOAD=/lib/libpmalloc_preload.so placed "$@" 2>&1 |
            grep -e "^placed" -e "^kept" -e nodes:
        LD_PRELOAD=/lib/libpmalloc_preload.so placed "$@" >/dev/null 2>&1 &
        worker=$!
        usleep $((400000 * round))
        kill -9 "$worker"
        wait "$worker" 2>/dev/null
        [ $((round % 2)) = 0 ] || pmalloc-recover "$heap" >/dev/null
    done
    LD_PRELOAD=/lib/libpmalloc_preload.so placed "$@" >/dev/null 2>&1
    echo "ended $?"
    pmalloc-info --nodes --json "$heap"
}

# Takes a heap to a node, and asks where it is then.
take_to() { # HEAP NODE
    echo "take $2"
    pmalloc-recover --to-node "$2" --json "$1" 2>&1
    echo "took $?"
    pmalloc-info --nodes --json "$1"
}

# Kills a program of tests/apps again and again, and lets it check itself. Every other kill may come
# while the program starts.
kill_app() { # FOLDER PROGRAM ROOT ROUNDS MICROSECONDS
    export PMALLOC_HEAP="$1/$2" PMALLOC_ROOTS="$3"
    out=$1/$2.out
    for round in $(seq "$4"); do
        LD_PRELOAD=/lib/libpmalloc_preload.so "$2" run 0 "$round" >"$out" 2>&1 &
        worker=$!
        [ $((round % 2)) = 0 ] || ready "$out"
        usleep $((RANDOM * $5 / 32768))
        kill -9 "$worker"
        wait "$worker" 2>/dev/null
        if [ $((round % 3)) = 0 ] && [ -e "$1/$2" ]; then
            pmalloc-recover "$1/$2" >/dev/null
        fi
        said=$(LD_PRELOAD=/lib/libpmalloc_preload.so "$2" check 2>&1)
        echo "app $2 $round $?" $said
    done
    rm -rf "$1/$2" "$out"
}
