# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Completion for bash, of options, settings, heaps and programs. What it knows of a tool comes from
# the tool's own --help, so it is never older than the tool.

_pmalloc_options() {
    "$1" --help 2>/dev/null | sed -n '/^Options:/,/^[A-Z].*:$/p' |
        grep -oE '^  (-[a-zA-Z], )?--[a-z-]+' | grep -oE -- '--[a-z-]+'
}

# NAME= of each setting, without PMALLOC_; for a word $2 that is begun, with it, too.
_pmalloc_settings() {
    "$1" --help 2>/dev/null | sed -n 's/^  PMALLOC_\([A-Z_]*\) .*/\1=/p' |
        sed "${2:+p;s/^/PMALLOC_/}"
}

# The words that the setting $2 has as values: "Values: lazy|strict; default lazy."
_pmalloc_values() {
    "$1" --help 2>/dev/null | awk -v "name=PMALLOC_${2#PMALLOC_}" '
        /^  ?[^ ]/ { ours = $1 == name }
        ours { text = text " " $0 }
        END { print text }' |
        sed -nE 's/.*Values?: +([^ ;]*).*/\1/p' | tr '|' '\n' | grep -oE '^[a-z]+'
}

# Sets `setting` to NAME if the word to complete is the value in -s NAME=VALUE. Readline makes words
# of the parts, unless the user has taken = out of COMP_WORDBREAKS.
_pmalloc_find_setting() {
    local at=$COMP_CWORD
    setting=
    if [ "${COMP_WORDS[at]}" != '=' ]; then ((at--)); fi
    if [ "$at" -ge 3 ] && [ "${COMP_WORDS[at]}" = '=' ]; then
        case ${COMP_WORDS[at - 2]} in
        -s | --set) setting=${COMP_WORDS[at - 1]} ;;
        esac
    fi
}

# The program to run and what it wants to complete, from word $1 on.
_pmalloc_program() {
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif [ "$COMP_CWORD" -eq "$1" ]; then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    else
        compopt -o default
    fi
}

# Sets `program` to the index of the first word that is pmalloc-run's operand, if there is one.
_pmalloc_find_program() {
    local at
    program=
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
        -H | --heap | -r | --roots | -s | --set)
            ((at++))
            [ "${COMP_WORDS[at]}" != '=' ] || ((at++)) # readline makes a word of it
            if [ "${COMP_WORDS[at + 1]}" = '=' ]; then ((at += 2)); fi
            ;;
        --) program=$((at + 1)) && return ;;
        -*) ;;
        *) program=$at && return ;;
        esac
    done
}

_pmalloc() {
    local tool=$1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local program setting
    COMPREPLY=()
    case ${tool##*/} in
    pmalloc-run)
        _pmalloc_find_program
        if [ -n "$program" ]; then
            _pmalloc_program "$program"
            return
        fi
        _pmalloc_find_setting
        if [ -n "$setting" ]; then
            setting=$(_pmalloc_values "$tool" "$setting")
            mapfile -t COMPREPLY < <(compgen -W "$setting" -- "${word#=}")
            return
        fi
        ;;
    esac
    case $before in
    -r | --roots) return ;; # names in a program that may not be named yet
    -s | --set)
        mapfile -t COMPREPLY < <(compgen -W "$(_pmalloc_settings "$tool" "$word")" -- "$word")
        compopt -o nospace
        return
        ;;
    esac
    case $word in
    -*) mapfile -t COMPREPLY < <(compgen -W "$(_pmalloc_options "$tool")" -- "$word") ;;
    *)
        compopt -o filenames
        if [ "${tool##*/}" = pmalloc-run ] && [[ $before != -H && $before != --heap ]]; then
            mapfile -t COMPREPLY < <(compgen -c -- "$word")
        else
            # A heap lies in a directory, or in a file or device.
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        ;;
    esac
}

complete -F _pmalloc pmalloc-run pmalloc-recover pmalloc-info pmalloc-backup
