#!/bin/sh
# SPDX-License-Identifier: MIT
# tools/counted.sh DOING COMMAND...: runs the command and shows how many lines it has printed, on one line; all of them where it
# fails. Its exit code is the command's.
doing=$1
shift
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
{ "$@" 2>&1; echo "exit code $?"; } | tee "$said" | awk -v doing="$doing" -v each="$([ -t 1 ] && echo 1)" '
  each { printf "\r%s: %d steps", doing, NR - 1; fflush() }
  END { printf "%s%s: %d steps\n", each ? "\r" : "", doing, NR - 1 }'
code=$(sed -n '$s/^exit code //p' "$said")
[ "$code" = 0 ] || sed '$d' "$said" >&2
exit "${code:-1}"
