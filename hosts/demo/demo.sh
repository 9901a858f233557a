#!/bin/bash
# SPDX-License-Identifier: MIT
# The report of `make demo`: one verdict per promise at the top, then the runs that they come from. Nothing in it is
# written down beforehand: every line is what a program printed or what was measured here. Exits 1 when a promise broke.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${CODEHEAP_BUILD:-build}
out=$build/demo
mkdir -p "$out"
scheme=$build/scheme
programs=hosts/scheme/programs
details=$out/details.txt
declare -A verdict how
: >"$details"

say() { printf '%s\n' "$*" >>"$details"; }
kept() { verdict[$1]=${verdict[$1]:-kept}; how[$1]=${2:-${how[$1]:-}}; }
broken() { verdict[$1]=BROKEN; how[$1]=$2; }
judge() { if [ "$2" = 0 ]; then kept "$1" "$3"; else broken "$1" "$3"; fi; }
seconds() { # seconds COMMAND...: runs it, prints user+system+waiting seconds on fd 3
  local from to status
  from=$(date +%s%N)
  "$@"
  status=$?
  to=$(date +%s%N)
  took=$(awk -v a="$from" -v b="$to" 'BEGIN { printf "%.2f", (b - a) / 1e9 }')
  return $status
}
limited() { timeout -s KILL "$@"; }
stat_of() { # stat_of NAME FILE: a number of the (code-stats) that a program printed
  grep -o "($1 \. [0-9]*)" "$2" | tail -n 1 | grep -o '[0-9]*'
}

# ---- 1. the shortest program, then the programs in three modes ----
programs_in_modes() {
  local name mode ok=0 line
  say "1. examples/min.c"
  limited 20 "$build/examples/min" 2>&1 | sed 's/^/   /' >>"$details"
  say ""
  say "   programs: seconds in interpreter, JIT and bump arena; what the JIT left"
  say "$(printf '   %-12s %7s %7s %7s %8s %10s %10s %6s' program interp jit arena blocks 'code B' 'metadata B' cycles)"
  for line in "$programs"/*.scm; do
    name=$(basename "$line" .scm)
    [ -f "$programs/$name.out" ] || continue
    local row=()
    for mode in interp jit arena; do
      seconds limited 60 "$scheme" --$mode "$line" >"$out/$name.$mode" 2>&1 </dev/null
      row+=("$took")
      cmp -s "$out/$name.$mode" "$programs/$name.out" || { ok=1; say "   $name: other output in --$mode"; }
    done
    { cat "$line"; echo; echo '(write (code-stats))'; } >"$out/$name.scm"
    limited 60 "$scheme" --jit "$out/$name.scm" >"$out/$name.stats" 2>&1 </dev/null
    say "$(printf '   %-12s %7s %7s %7s %8s %10s %10s %6s' "$name" "${row[@]}" \
      "$(stat_of blocks-now "$out/$name.stats")" "$(stat_of code-bytes-now "$out/$name.stats")" \
      "$(stat_of metadata-bytes-now "$out/$name.stats")" "$(stat_of cycles "$out/$name.stats")")"
  done
  say "   lines of the VM that call the library: $(cat hosts/scheme/*.c | grep -c '\bch_[a-z_]*(') of $(cat hosts/scheme/*.[ch] | wc -l)"
  judge P7 $ok "programs give the interpreter's output while their code is replaced under them"
  # A pool of four pages has to be collected again and again, and still serves.
  ok=0
  for name in fib tak queens deriv redefine; do
    limited 60 "$scheme" --jit --pool=65536 "$programs/$name.scm" 2>&1 </dev/null | cmp -s - "$programs/$name.out" || ok=1
  done
  judge P8 $ok "five programs in a pool of four pages"
}

# ---- 2. half a million procedures ----
churn_ours() {
  local n=$1 kb0 kb1
  CODEHEAP_PERF_MAP_DIR=$out CHURN=$n seconds limited 100 "$scheme" --jit --sinks=unwind,perfmap hosts/demo/churn.scm >"$out/churn.out" 2>&1 </dev/null
  kb0=$(awk '/^early VmRSS/ { print $3 }' "$out/churn.out")
  kb1=$(awk '/^late VmRSS/ { print $3 }' "$out/churn.out")
  local opened freed
  opened=$(stat_of blocks-opened "$out/churn.out")
  freed=$(stat_of blocks-freed "$out/churn.out")
  say "2. $n times: evaluate (define (test) 1) and call it, unwinder and perf map told of every block"
  say "   $took s; blocks made ${opened:-?}, freed ${freed:-?}, collections $(stat_of cycles "$out/churn.out"), pages now $(stat_of pages-now "$out/churn.out"), at peak $(stat_of pages-peak "$out/churn.out")"
  say "   resident: ${kb0:-?} KiB after 10,000, ${kb1:-?} KiB at the end"
  local ok=1
  [ -n "$kb1" ] && [ -n "$kb0" ] && [ $((kb1 - kb0)) -le 2048 ] && [ "${opened:-0}" -ge "$n" ] && ok=0
  judge P2 $ok "$n procedures: resident memory grew by $((kb1 - kb0)) KiB"
}
peer() { # peer NAME COMMAND...: the same loop elsewhere
  local name=$1
  shift
  command -v "$1" >/dev/null 2>&1 || { say "   $name: not installed"; return; }

  local from to
  from=$(date +%s%N)
  limited 60 "$@" >/dev/null 2>"$out/peer.err" || { say "   $name: did not end in 60 s"; return; }
  to=$(date +%s%N)
  say "   $name: $(awk -v a="$from" -v b="$to" 'BEGIN { printf "%.2f", (b - a) / 1e9 }') s, $(cat "$out/peer.err" | tail -n 1)"
}
churn_peers() {
  local n=$1
  local ruby="i=0; while i < $n; eval('def test; 1; end'); test; i+=1; end; \$stderr.puts File.read('/proc/self/status')[/VmHWM.*/]"
  peer "Ruby, no JIT" ruby -e "$ruby"
  peer "Ruby, YJIT" ruby --yjit -e "$ruby"
  peer "LuaJIT" luajit -e "for i=1,$n do loadstring('function test() return 1 end')() test() end; for l in io.lines('/proc/self/status') do if l:find('VmHWM') then io.stderr:write(l, '\n') end end"
  peer "Python 3.11" /usr/bin/python3.11 -c "
import sys
for i in range($n):
    exec('def test(): return 1'); test()
print([l.strip() for l in open('/proc/self/status') if 'VmHWM' in l][0], file=sys.stderr)"
}

# ---- 3 and 5. the chain and the wild jump; promises of short programs ----
chain() {
  limited 20 "$build/demo/chain" >"$out/chain.out" 2>&1
  say ""
  say "3. A -> B -> C -> D: B is invalidated; 5. a wild jump into freed code"
  sed 's/^/  /' "$out/chain.out" >>"$details"
  grep -q '^chain verdict: kept' "$out/chain.out"
  judge P2 $? "${how[P2]:-}; C and D, which only B led to, are freed while their methods live"
  grep -q '^names verdict: kept' "$out/chain.out"
  judge P5 $? "no name of a freed block is left in the perf map, every site decodes"
  grep -q '^trap verdict: kept' "$out/chain.out"
  judge P4 $? "$(grep -o 'block .*, freed.*executed at +0x[0-9a-f]*' "$out/chain.out" | head -n 1)"
}
promises() {
  limited 30 "$build/demo/promises" >"$out/promises.out" 2>&1
  say ""
  say "   other promises"
  sed 's/^/ /' "$out/promises.out" >>"$details"
  local p
  for p in P3 P6 P9 P10; do
    grep -q "^$p verdict: kept" "$out/promises.out"
    judge $p $? "$(grep -B 1 "^$p verdict" "$out/promises.out" | head -n 1 | sed 's/^ *//')"
  done
}

# ---- 4. the adversary ----
adversary() {
  limited 30 "$scheme" --jit hosts/demo/adversary.scm >"$out/adversary.out" 2>&1 </dev/null
  cmp -s "$out/adversary.out" hosts/demo/adversary.out
  judge P1 $? "a procedure removed itself while it ran: on its own stack, in a fiber, on another thread's"
  say ""
  say "4. the adversary (hosts/demo/adversary.scm)"
  sed 's/^/   /' "$out/adversary.out" >>"$details"
}

# ---- 6. the heap's picture ----
picture() {
  local list
  list=$(printf '"%s" ' "$programs"/{closures,escapes,flonums,generators,higher,matrix,quicksort,records,redefine,strings}.scm)
  limited 60 "$scheme" --jit -e "(begin (for-each load (list $list)) (code-discard!) (load \"$programs/queens.scm\") (load \"$programs/fib.scm\") (code-map \"$out/heap.svg\"))" >/dev/null 2>"$out/map.err" </dev/null
  say ""
  if [ -s "$out/heap.svg" ]; then say "6. $out/heap.svg: the pool before and after a collection"; else
    say "6. $out/heap.svg was not written: $(head -n 1 "$out/map.err")"
    broken P2 "the picture of the heap was not written"
  fi
}

# ---- 7. where the time went ----
profile() {
  local name=deriv file=$out/profile.svg
  limited 60 "$scheme" --jit --profile="$file" --profile-rate=250 -e "(begin (define (again n) (if (> n 0) (begin (load \"$programs/$name.scm\") (again (- n 1))))) (again 20))" \
    >/dev/null 2>"$out/profile.err" </dev/null
  say ""
  if [ -s "$file" ]; then say "7. $file: where the time of twenty runs of $name went; $(grep -o '[0-9]* samples.*' "$out/profile.err")"; else
    say "7. $file was not written: $(head -n 1 "$out/profile.err")"
    broken P6 "no picture of where the time went"
  fi
}

programs_in_modes
say ""
churn_ours 500000
churn_peers 500000
chain
promises
adversary
picture
profile

names=("" "code that a thread or fiber can return to is never freed" "unreachable blocks are freed one by one"
  "no mapping is writable and executable" "freed code traps, and the trap names it" "no table knows a freed block"
  "an address resolves from a signal handler" "any block may be invalidated at any time" "a full pool still serves"
  "fork isolates" "idle cost is nil")
{
  echo "libcodeheap: what was promised, and what this machine showed ($(uname -m), $(uname -r))"
  for i in 1 2 3 4 5 6 7 8 9 10; do
    printf 'P%-3s %-7s %s\n      %s\n' $i "${verdict[P$i]:-BROKEN}" "${names[$i]}" "${how[P$i]:-}"
  done
  echo
  cat "$details"
} | tee "$out/report.txt"
! grep -q '^P[0-9]* *BROKEN' "$out/report.txt"
