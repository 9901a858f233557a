#!/bin/sh
# SPDX-License-Identifier: MIT
# compare-guile.sh: run each portable program in Guile and compare with its .out file.
# usage: compare-guile.sh [--write]; --write replaces the .out files by what Guile printed.
# exit codes: 0 all equal, 1 one differs, 2 no guile.
here=$(cd "$(dirname "$0")" && pwd)
guile=$(command -v guile-3.0 || command -v guile) || { echo "guile is not installed"; exit 2; }
portable="fib tak queens sieve deriv quicksort matrix strings trees flonums closures records
tailcalls higher escapes redefine"
status=0
got=$(mktemp)
trap 'rm -f "$got"' EXIT
for name in $portable; do
	GUILE_AUTO_COMPILE=0 "$guile" --r7rs -l "$here/guile-prelude.scm" -s "$here/$name.scm" \
		>"$got" 2>/dev/null </dev/null
	if [ "$1" = --write ]; then
		cp "$got" "$here/$name.out"
	elif ! cmp -s "$got" "$here/$name.out"; then
		echo "$name: differs"
		status=1
	fi
done
[ $status = 0 ] && echo "guile agrees"
exit $status
