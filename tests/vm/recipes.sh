# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# What the guest does with a server that has a recipe: it goes on with its heap, says what is there,
# and serves a client until the power is cut. Lines that are a number are what was answered.
# recipes.py reads all this.

# Replaces the shell by the server.
serve() { # HEAP MODE LOG COMMAND...
    heap=$1 mode=$2 log=$3
    shift 3
    exec pmalloc-run --recipe -H "$heap" -s "COMMIT=$mode" "$@" >"$log" 2>&1 </dev/null
}

# Waits until the command succeeds. Fails, with what the server has said, when that has ended, or
# after many tries. Each is said: on a host that is overloaded they take long.
served() { # PROCESS LOG COMMAND...
    process=$1 log=$2 tries=0
    shift 2
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        { kill -0 "$process" 2>/dev/null && [ "$tries" -lt 500 ]; } || {
            echo "ended: $(tail -n 4 "$log" | tr '\n' ' ')"
            return 1
        }
        echo "phase waits"
        usleep 50000
    done
}

redis_work() { # HEAP PORT MODE
    ask="redis-cli -e -h 127.0.0.1 -p $2"
    serve "$1" "$3" "/tmp/log.$2" redis-server --save '' --bind 127.0.0.1 --port "$2" --dir /tmp \
        --enable-debug-command local &
    served $! "/tmp/log.$2" $ask ping || return
    at=$($ask get at)
    echo "found ${at:-0} $($ask dbsize) $($ask debug digest)"
    script=$($ask script load "$(cat /redis.lua)")
    [ "$4" = check ] || seq $((at + 1)) 99999999 | sed "s/^/evalsha $script 0 /" | $ask
}

# The n-th message goes to one of 23 topics, and each fifth one removes what is there. What was
# published last may be published once more.
mosquitto_work() { # HEAP PORT MODE
    printf 'listener %s 127.0.0.1\nallow_anonymous true\nuser root\n' "$2" >"/tmp/conf.$2"
    serve "$1" "$3" "/tmp/log.$2" mosquitto -c "/tmp/conf.$2" &
    publish="mosquitto_pub -h 127.0.0.1 -p $2 -q 1"
    served $! "/tmp/log.$2" $publish -t ready -m yes || return
    all=$(mosquitto_sub -h 127.0.0.1 -p "$2" -t 't/#' -v -W 3 2>/dev/null | sed 's/^t.//; s/ /=/')
    n=$(for one in 0=0 $all; do echo "${one#*=}"; done | sort -n | tail -n 1)
    echo found $all
    while n=$((n + 1)); [ "$4" != check ]; do
        what="-m $n"
        [ $((n % 5)) != 0 ] || what=-n
        $publish -r -t t/$((n * 7 % 23)) $what || {
            echo "ended: $(tail -n 4 "/tmp/log.$2" | tr '\n' ' ')"
            return
        }
        echo "$n"
    done
}

recipe_work() { # PROGRAM HEAP PORT MODE recover|open|check
    echo "phase $5"
    [ "$5" = open ] || [ ! -d "$2" ] || recover "$2"
    "$1_work" "$2" "$3" "$4" "$5"
    [ "$5" != check ] || echo checked
}
