# SPDX-License-Identifier: MIT
# What the scripts of tests/tool and tests/host share; sourced first of all, in the folder of the project.
set -u
build=${CODEHEAP_BUILD:-build}
cc=${CC:-gcc}

# What a killed script leaves behind ends, too: no program of a case computes as long.
ulimit -t 1800

fail() { echo "$*" >&2; exit 1; }
must() { "$@" || fail "failed: $*"; }
# Whether a test of mutants has these words for the first time: their case first runs where nothing is broken.
tried=
is_new() { [[ "$tried|" != *"|$*|"* ]] && tried+="|$*"; }
# gdb 13 leaves the registers of AMX out, and Linux takes no part of a state (EFAULT): there gdb calls no function.
skip_where_gdb_writes_no_registers() { # skip_where_gdb_writes_no_registers FILE: with what gdb said
  grep -qs "Couldn't write extended state status" "$1" || return 0
  echo 'skip: gdb writes no registers of this processor'
  exit 77
}
skip_where_ptrace_is_refused() { # skip_where_ptrace_is_refused FILE: with what a debugger said
  grep -qiE 'ptrace.*(not permitted|denied)|could not trace the inferior|failed to launch' "$1" || return 0
  echo 'skip: the kernel refuses ptrace'
  exit 77
}
# The flags as a shell splits them: pkg-config quotes a blank in a path.
flags_of() { # flags_of [--static] PACKAGE...: into the array flags
  local text
  text=$(pkg-config --cflags --libs "$@") || fail "pkg-config does not know $*"
  eval "flags=($text)"
}
make_work() { # a folder $work, which goes with the script
  work=$(mktemp -d "${TMPDIR:-/tmp}/codeheap-script.XXXXXX") || exit 1
  trap 'rm -rf "$work"' EXIT
}

# ---- what the runner is told of cases: name, seconds, signal, mode -----------------------------------------------------

list_cases() { # list_cases NAME:SECONDS[:MODE]..
  local listed name seconds mode
  for listed; do
    IFS=: read -r name seconds mode <<<"$listed"
    echo "$name $seconds 0 ${mode:--}"
  done
}
list_functions() { # list_functions SECONDS: each function case_NAME is a case
  declare -F | sed -n "s/^declare -f case_\(.*\)/\1 $1 0 -/p"
}
run_listed() { # run_listed NAME CASE..: runs the function of that name, if it is among the cases as list_cases takes them
  local name=$1 listed
  shift
  for listed; do
    [ "${listed%%:*}" != "$name" ] || { "$name"; return; }
  done
  fail "no case $name"
}
