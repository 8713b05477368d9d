#!/bin/sh
# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Starts COUNT processes, one after the other: what a shell script full of small commands pays.
#   processes.sh COUNT
i=0
while [ "$i" -lt "$1" ]; do
    /bin/true || exit 1
    i=$((i + 1))
done
echo "$i processes"
