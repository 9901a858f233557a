# SPDX-License-Identifier: MIT
# What scripts that judge profiles by callgrind share; sourced in the folder of the project, with `build` set, an absolute
# path. It makes the folder $work and takes it away with the perf map of the process that was profiled last.
cc=${CC:-gcc}
names=$build/callgrind-names
here=$PWD/tests/callgrind
work=$(mktemp -d "${TMPDIR:-/tmp}/tool-callgrind-reader.XXXXXX") || exit 1
map=
trap 'rm -rf "$work" $map' EXIT
fail() { echo "callgrind: $*" >&2; exit 1; }
must() { "$@" 2>"$work/said" || fail "$*: $(tail -5 "$work/said")"; }
export LD_BIND_NOW=1 # no calls into the dynamic linker from anywhere
export PERL_HASH_SEED=0 PERL_PERTURB_KEYS=0 # one order of equal costs in callgrind_annotate

# ---- programs ----------------------------------------------------------------------------------------------------------

build_printer() { # build_printer SOURCES PROGRAM SWITCHES..
  local from=$1 to=$2
  shift 2
  must "$cc" -std=gnu11 -w -O0 "$@" -I"$from" -o "$to" "$here/print_graph.c" "$from"/tools/callgrind/{graph,reader,table,perf_map}.c
}
compile() { # compile PROGRAM FLAGS_AND_FILES..
  local to=$1
  shift
  must "$cc" -std=gnu11 -Wall -Wextra -Werror -O1 -g -fno-pie -no-pie -o "$work/$to" "$@"
}
# profile NAME PROGRAM SWITCHES..: $work/NAME is the profile.
profile() {
  local name=$1 program=$2
  shift 2
  must valgrind -q --tool=callgrind --callgrind-out-file="$work/$name" "$@" "$work/$program" </dev/null
}
# graph PROFILE..: what the printer says is what the judge reads, and what standard input says is true of it.
graph() {
  local -a paths=()
  for name; do paths+=("$work/$name"); done
  "$work/print_graph" "${paths[@]}" >"$work/printed" 2>"$work/said" || fail "$*: $(cat "$work/said")"
  python3 tests/callgrind/graph.py "$work/printed" "${paths[@]}" || fail "$*"
}
# The profile with names has the same graph. A profile without blocks stays as it is, but for positions that other
# readers count from elsewhere.
same_named() { # same_named PROFILE
  must "$names" --perf-map=/dev/null --output="$work/named" "$work/$1"
  "$work/print_graph" "$work/$1" >"$work/printed" && "$work/print_graph" "$work/named" >"$work/printed.named" ||
    fail "$1: the profile with names cannot be read"
  cmp "$work/printed" "$work/printed.named" || fail "$1: the profile with names has another graph"
  diff <(grep -v '^[0-9+*-]' "$work/$1") <(grep -v '^[0-9+*-]' "$work/named") >/dev/null ||
    grep -q '^jump' "$work/$1" || fail "$1: more than positions changed"
  [ "$(grep -c '^part:' "$work/$1")" -gt 1 ] && return
  ! cmp -s "$work/$1" "$work/named" || return 0 # callgrind_annotate reads the same
  # With callers and callees it says what is a function's own, too.
  for form in --inclusive=yes '--tree=both --inclusive=no'; do
    callgrind_annotate --threshold=100 --auto=no $form "$work/$1" 2>&1 | grep -v '^Profile data file' >"$work/annotated"
    grep -q 'PROGRAM TOTALS' "$work/annotated" || fail "$1: $(head -n 3 "$work/annotated")"
    callgrind_annotate --threshold=100 --auto=no $form "$work/named" 2>&1 | grep -v '^Profile data file' | cmp "$work/annotated" - ||
      fail "$1: callgrind_annotate $form sees a difference"
  done
}

need_map() {
  map=/tmp/perf-$(sed -n 's/^pid: //p' "$1" | head -1).map
  [ -s "$map" ] || fail "there is no $map"
}
# named_graph PROFILE [SWITCH]: the graph of the profile with names.
named_graph() {
  need_map "$work/$1"
  must "$names" ${2:+"$2"} --output="$work/$1.named" "$work/$1"
  graph "$1.named"
}
# The same edges, costs and positions, to callgrind_annotate, too.
judge() { # judge PROFILE WORDS..
  local profile=$1
  shift
  python3 tests/callgrind/judge.py "$work/$profile" "$work/$profile.named" "$map" "$@" || exit 1
}
