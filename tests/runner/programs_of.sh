#!/bin/bash
# SPDX-License-Identifier: MIT
# programs_of.sh NAME SOURCE...: which of the sources have the case of this name, or match this pattern of the shell's, or are
# the program of this name: unit_pages_pool is tests/unit/pages/pool.c. A script is asked. A C source may say only the first part of a name, to which macros add: those
# that may have it are printed, and the runner keeps what NAME means.
set -u
name=$1
shift
base=$(for source in "$@"; do
  of=${source#tests/} of=${of%.*}
  [ "${of//\//_}" != "$name" ] || echo "$source"
done)
[ -z "$base" ] || { echo "$base"; exit; }
code=() scripts=()
for source in "$@"; do
  case $source in *.sh) scripts+=("$source") ;; *) code+=("$source") ;; esac
done

found=$(for script in "${scripts[@]}"; do
  "$script" 2>/dev/null | while read -r case _; do
    # shellcheck disable=SC2254 # a pattern is meant
    case $case in $name) echo "$script" && break ;; esac
  done
done)
# Its cases are those of programs that are not built yet.
case $name in *_markers | *_incremental) found=$(printf '%s\n' "${scripts[@]}" | grep boehm_modes) ;; esac
[ -z "$found" ] || echo "$found"

literal=${name%%[*?[]*}
if [ "$literal" != "$name" ]; then
  [ -z "$literal" ] || grep -lwE -e "${literal}[a-z_0-9]*" "${code[@]}"
elif [ -z "$found" ]; then
  while :; do
    grep -lwF -e "$literal" "${code[@]}" && break
    case $literal in *_*_*) literal=${literal%_*} ;; *) break ;; esac
  done
fi
