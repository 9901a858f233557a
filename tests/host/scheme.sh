#!/bin/bash
# SPDX-License-Identifier: MIT
# The Scheme of hosts/scheme: programs in every mode against the outputs beside them, and what its
# JIT promises. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
programs=hosts/scheme/programs
# Behind the words of an emulator, where the programs are another machine's.
read -ra scheme <<< "${CODEHEAP_TEST_EMULATOR:-} ${CODEHEAP_BUILD:-build}/scheme"
make_work

cases="interp:120 jit:120 arena:120 gc_every_stub:300 full_pools_change_no_output:120 discard_every:900
pages_of_64k:120 memfd:120 nothing_interpreted:120 errors_name_lines:60 errors_name_what_they_met:60 deep_recursion:60 mdwe:60
two_vms:180 forks_only_alone:60 trace_fires_once:60 disassembly:60 redefinition:60 loops_hear_of_redefinitions:120 eval_stays_flat:120
full_pool_serves:120 exits_stay_flat:60 mixed_types:60 wrong_use:60 malformed_text:60 code_checks_out:120
repl:60 listings_of_bytecode:120 trampolines:180 trampolines_keep_tail_calls_flat:60
trampolines_name_what_is_interpreted:60 trampolines_in_perf:300 trampolines_in_gdb:120 most_trampolines_in_perf:300:timed
code_is_named:60 lines_on_request:120 lines_of_the_source:120"

# judged WANTED PROGRAM SWITCHES: the program, and $behind after it, write what the file WANTED holds.
behind=''
judged() {
  local wanted=$1 p=$2
  shift 2
  "${scheme[@]}" "$@" "$p" ${behind:+-e "$behind"} > "$work/out" 2> "$work/err" < /dev/null || fail "$p $*: exit $?: $(head -c 300 "$work/err")"
  cmp "$work/out" "$wanted" || fail "$p $*: another output"
}

# all_programs SWITCHES: each program writes what its .out file holds.
all_programs() {
  local p
  for p in "$programs"/*.scm; do
    [ ! -f "${p%.scm}.out" ] || judged "${p%.scm}.out" "$p" "$@"
  done
}

# these_programs NAMES SWITCHES: the same of these; of all with LONG=1.
these_programs() {
  local name names=$1
  shift
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || { all_programs "$@"; return; }
  for name in $names; do judged "$programs/$name.out" "$programs/$name.scm" "$@"; done
}

# several_programs SWITCHES: those whose code moves, dies and is made again, or leaves its frames otherwise than by a return.
several_programs() { these_programs 'closures continuations escapes generators higher redefine tailcalls threads' "$@"; }

# says WANTED SWITCHES..: the program on standard input prints WANTED.
says() {
  local wanted=$1 got
  shift
  cat > "$work/p.scm"
  got=$("${scheme[@]}" "$@" "$work/p.scm" 2>&1)
  [ $? -lt 128 ] && [ "$got" = "$wanted" ] || fail "wanted: $wanted"$'\n'"got: $got"
}

interp() { all_programs --interp; }
jit() { all_programs --jit; }
arena() { all_programs --arena; }
full_pools_change_no_output() {
  several_programs --interp --trampolines --pool=8192 --page=4096
  local behind="(if (= 0 (cdr (assq 'opens-full (code-stats)))) (error \"the pool was never full\"))"
  several_programs --jit --pool=8192 --page=4096
  judged "$programs/redefine.out" "$programs/redefine.scm" --interp --trampolines --pool=8192 --page=4096
}
pages_of_64k() { several_programs --jit --page=65536; }
memfd() { CODEHEAP_WX=memfd several_programs --jit; }

# The program that defines anew 10,000 times does so 200 times, but with LONG=1: each is a collection.
gc_every_stub() {
  local p
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || { all_programs --jit --gc-every-stub; return; }
  for p in "$programs"/*.scm; do
    [ ! -f "${p%.scm}.out" ] || [ "${p##*/}" = redefine.scm ] || judged "${p%.scm}.out" "$p" --jit --gc-every-stub
  done
  sed 's/ 1000000)/ 20000)/; s/(evaluated 8000)/(evaluated 500)/' "$programs/redefine.scm" > "$work/redefine.scm"
  [ "$(diff "$programs/redefine.scm" "$work/redefine.scm" | grep -c '^>')" = 2 ] || fail 'redefine.scm has other loops'
  "${scheme[@]}" --interp "$work/redefine.scm" > "$work/wanted" 2>&1 < /dev/null || fail "redefine.scm: exit $?"
  judged "$work/wanted" "$work/redefine.scm" --jit --gc-every-stub
}

# Every 5,000th call all code goes, and is made again: every 100th with LONG=1. With threads a target may die eight times before
# a thread enters it: several tries, two at a time.
discard_every() {
  local i every=5000 tries=2
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || every=100 tries=8
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || every=5000 tries=2 # code is slow to make
  several_programs --discard-every=$every
  for ((i = 0; i < tries; i++)); do
    "${scheme[@]}" --discard-every=$every "$programs/threads.scm" > "$work/a" 2>&1 < /dev/null &
    "${scheme[@]}" --discard-every=$every "$programs/threads.scm" > "$work/b" 2>&1 < /dev/null ||
      fail "threads.scm: $(tail -n 1 "$work/b")"
    wait $! || fail "threads.scm: $(tail -n 1 "$work/a")"
    cmp "$work/a" "$programs/threads.out" || fail "threads.scm: another output"
  done
}

nothing_interpreted() {
  local p
  for p in "$programs"/*.scm; do
    [ -f "${p%.scm}.out" ] || continue
    cat "$p" - > "$work/p.scm" << 'END'
(newline)
(display "calls ")
(display (cdr (assq 'interpreted-calls (code-stats))))
END
    (set -o pipefail; "${scheme[@]}" "$work/p.scm" < /dev/null | tail -1 | grep -x 'calls 0') > "$work/err" || fail "$p"
  done
}

errors_name_lines() {
  local mode
  printf '%s\n' '(define (f x)' '(car x))' '(define (g x)' '(+ 1 (f x)))' '(g (list 1))' '(g 5)' \
    > "$work/e.scm"
  for mode in --interp --jit --arena "--jit --gc-every-stub"; do
    # shellcheck disable=SC2086
    "${scheme[@]}" $mode "$work/e.scm" > "$work/out" 2>&1
    [ $? = 1 ] || fail "$mode: the exit code"
    grep -q 'e.scm:2: car: not a pair: 5' "$work/out" || fail "$mode: $(cat "$work/out")"
  done
  says "$work/p.scm:3: unbound variable: nowhere" <<< $'1\n2\nnowhere\n4'
}

errors_name_what_they_met() {
  says '"odd?: not an integer: 1.5""bad 1 \"x\""' --jit << 'END'
(write (guard (e (#t (condition/report-string e))) (odd? 1.5)))
(write (guard (e (#t (condition/report-string e))) (error "bad" 1 "x")))
END
}

deep_recursion() {
  says '"recursion too deep"100000' --jit << 'END'
(define (down n) (+ 1 (down n)))
(write (guard (e (#t (error-object-message e))) (down 0)))
(define (count n) (if (= n 0) 0 (+ 1 (count (- n 1)))))
(write (count 100000))
END
}

mdwe() {
  cat > "$work/mdwe.py" << 'END'
import ctypes, os, sys
# PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
if ctypes.CDLL(None, use_errno=True).prctl(65, 1, 0, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
END
  python3 "$work/mdwe.py" /bin/true || { echo "the kernel has no PR_SET_MDWE"; exit 77; }
  python3 "$work/mdwe.py" "${scheme[@]}" --jit "$programs/fib.scm" > "$work/out"
  cmp "$work/out" "$programs/fib.out" || fail 'fib under MDWE'
  python3 "$work/mdwe.py" "${scheme[@]}" --arena "$programs/fib.scm" > "$work/out" 2>&1 &&
    fail '--arena was not refused'
  grep -q 'writable and executable' "$work/out" || fail "no message: $(cat "$work/out")"
}

two_vms() {
  local pair
  for pair in trees:redefine fib:generators threads:closures deriv:escapes; do
    "${scheme[@]}" --beside="$programs/${pair#*:}.scm" "$programs/${pair%:*}.scm" > "$work/out" \
      2> "$work/err" || fail "$pair: exit $?: $(cat "$work/err")"
    cmp "$work/out" "$programs/${pair%:*}.out" || fail "$pair"
    grep -q 'runs, 0 failures' "$work/err" || fail "$pair: $(cat "$work/err")"
  done
}

# A child would wait for ever for a lock that the other VM's thread holds.
forks_only_alone() {
  echo '(let loop ((i 0)) (if (< i 1000) (begin (string->symbol (number->string i)) (loop (+ i 1)))))' > "$work/beside.scm"
  echo '(write (guard (e (#t (condition/report-string e))) (if (= 0 (fork-process)) (emergency-exit 0) 1)))' > "$work/p.scm"
  "${scheme[@]}" --beside="$work/beside.scm" "$work/p.scm" > "$work/out" 2> "$work/err" || fail "$(cat "$work/err")"
  [ "$(cat "$work/out")" = '"fork-process: other threads are running"' ] || fail "$(cat "$work/out")"
}

# f is on the stack when it is traced, called from deep inside; its return is told once, no other.
trace_fires_once() {
  local mode
  for mode in --interp --jit; do
    says '788((f . 15))((f . 8))((deep . 0) (deep . 1) (deep . 2))' $mode << 'END'
(define (g k) (if (= k 0) (begin (trace! f) (code-collect!))) 5)
(define (f n k) (+ n (g k)))
(define (h n) (let ((v (f n 1))) (+ v 1)))
(write (h 1)) (write (h 2)) (write (f 3 1))
(define (call n) (if (= n 0) (begin (f 10 0) 0) (+ 1 (call (- n 1)))))
(call 10)
(write (trace-events))
(f 3 1)
(write (trace-events))
(define (deep n) (if (= n 0) (begin (trace! deep) 0) (+ 1 (deep (- n 1)))))
(deep 2)
(write (trace-events))
END
  done
}

disassembly() {
  command -v objdump > /dev/null || { echo 'objdump is missing'; exit 77; }
  cat > "$work/d.scm" << 'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(fib 10)
(code-disassemble fib)
END
  "${scheme[@]}" "$work/d.scm" > "$work/out" || fail "exit $?"
  local word
  for word in 'branch, linked' 'branch, not linked' stub 'ref 0x' 'patch point, not diverted'; do
    grep -qF "$word" "$work/out" || fail "no '$word'"
  done
}

# Loops by tail calls and recursions of other threads, which make no call to a procedure of another name, end when what
# they are is defined anew.
loops_hear_of_redefinitions() {
  local mode
  for mode in --jit --arena '--jit --discard-every=1000'; do
    # shellcheck disable=SC2086
    says '(out stopped)' $mode << 'END'
(define (spin n) (spin (+ n 1)))
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (forever) (if (> (fib 12) 0) (forever) 'stopped))
(define spinning (spawn (lambda () (spin 0))))
(define summing (spawn (lambda () (forever))))
(define (work n) (if (> n 0) (begin (make-vector 100 0) (work (- n 1)))))
(work 20000)
(set! spin (lambda (n) 'out))
(define out (thread-join spinning))
(set! fib (lambda (n) -1))
(write (list out (thread-join summing)))
END
  done
}

redefinition() {
  says '(0 10 20 30 40 50 60 70)(#t #t)done' << 'END'
(define (f x) x)
(define (user x) (f x))
(define (run k)
  (if (= k 8) '()
      (let ((v (user k))) (set! f (lambda (x) (* x 10))) (cons v (run (+ k 1))))))
(write (run 0))
(define (inner k)
  (set! outer (lambda (k) 'other)) (code-discard!) (code-collect!) k)
(define (outer k) (let ((v (inner k))) (= v k)))
(write (list (outer 1) (eq? (outer 1) 'other)))
(define (car2 x) (cdr x))
(set! car2 (lambda (x) 'done))
(display (car2 '(1 . 2)))
END
}

eval_stays_flat() {
  says '(0 #t #t)' << 'END'
(define (loop i) (if (< i 60000) (begin (eval '(define (test) 1)) (eval '(test)) (loop (+ i 1)))))
(loop 0)
(code-collect!)
(define stats (code-stats))
(define (stat name) (cdr (assq name stats)))
(write (list (stat 'interpreted-calls) (> (stat 'blocks-opened) 60000) (< (stat 'pages-now) 200)))
END
}

# Far more code than the pool holds: the rest is interpreted, and comes back when there is space.
full_pool_serves() {
  says '(7500 #t)' --pool=16384 --page=4096 << 'END'
(define (make n)
  (eval (list 'lambda '(x) (list '+ 'x n (list '* 'x 2) (list 'if '(< x 3) 1 2)))))
(define (from n) (if (= n 31) '() (cons n (from (+ n 1)))))
(define all (map make (from 1)))
(define (sum l) (if (null? l) 0 (+ ((car l) 5) (sum (cdr l)))))
(define (again k) (if (= k 0) 0 (begin (sum all) (again (- k 1)))))
(again 2000)
(write (list (- (* 10 (sum all)) 2250) (> (cdr (assq 'opens-full (code-stats))) 0)))
END
}

# Alternating between machine code and the interpreter needs no stack.
exits_stay_flat() {
  says '#t#f3000030.0' --pool=16384 --page=4096 << 'END'
(define (even2? n) (if (= n 0) #t (odd2? (- n 1))))
(define (odd2? n) (if (= n 0) #f (even2? (- n 1))))
(write (even2? 1000000))
(write (odd2? 1000000))
(define (mix i s) (if (= i 100000) s (mix (+ i 1) (+ s (if (even2? 3) 1 30.0003)))))
(write (round (mix 0 0)))
END
}

# Guards that fail for each mix of operand types, in every order; overflow in a loop.
mixed_types() {
  local mode
  for mode in --interp --jit --arena '--jit --gc-every-stub'; do
    # shellcheck disable=SC2086
    says '(3 3.5 3.5 4.0 3)#t(#t #f #t #f)24.0' $mode << 'END'
(define (add a b) (+ a b))
(define (less a b) (< a b))
(define (mixes k) (list (add 1 2) (add 1.5 2) (add 1 2.5) (add 1.5 2.5) (add 1 2)))
(define (all-same k) (or (= k 0) (and (equal? (mixes 0) (mixes k)) (all-same (- k 1)))))
(write (mixes 0))
(write (all-same 50))
(define (compares k)
  (if (= k 0)
      (list (less 1 2) (less 2.5 2) (less 1 2.5) (less 2.5 1.5))
      (begin (compares 0) (compares (- k 1)))))
(write (compares 20))
(define (grow k n) (if (= k 0) n (grow (- k 1) (* n 4611686018427387904))))
(write (let loop ((k 0) (s 0.0)) (if (= k 24) s (begin (grow 3 3) (loop (+ k 1) (+ s 1))))))
END
  done
}

# Forms one by one, over lines and after errors; what is defined anew is what runs from then on.
repl() {
  local mode got
  cat > "$work/forms" << 'END'
(define (square x)
  (* x
     x))
(define (sum n s) (if (= n 0) s (sum (- n 1) (+ s (square n)))))
(sum 1000 0) 'between
(car (square 2))
(define (square x) (+ x 0.5))
(sum 1000 0)
(undefined-here)
(let loop ((i 0)) (if (< i 100000) (loop (+ i 1)) i))
"last"
END
  for mode in --interp --jit --arena '--jit --gc-every-stub'; do
    # shellcheck disable=SC2086
    got=$(set -o pipefail; "${scheme[@]}" $mode < "$work/forms" 2> "$work/err" | tr '\n' ' ') || fail "$mode: exit $?"
    [ "$got" = '333833500 between 501000.0 100000 "last" ' ] || fail "$mode: $got"
    grep -q 'stdin:6: car: not a pair: 4' "$work/err" || fail "$mode: $(cat "$work/err")"
    grep -q 'stdin:9: .*undefined-here' "$work/err" || fail "$mode: $(cat "$work/err")"
  done
}

# Too long a form, a surrogate and what is behind the last character stand for their bytes; the ends of each length do not.
malformed_text() {
  printf '(write (map char->integer (string->list "%b")))' '\xe0\x80\xaf\xed\xa0\x80\xf4\x90\x80\x80' > "$work/wrong.scm"
  printf '(write (map char->integer (string->list "%b")))' \
    '\xc2\x80\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf' > "$work/right.scm"
  got=$("${scheme[@]}" --interp "$work/wrong.scm") || fail "exit $?"
  [ "$got" = '(224 128 175 237 160 128 244 144 128 128)' ] || fail "$got"
  got=$("${scheme[@]}" --interp "$work/right.scm") || fail "exit $?"
  [ "$got" = '(128 2048 55295 57344 65536 1114111)' ] || fail "$got"
}

wrong_use() {
  "${scheme[@]}" --nonsense > "$work/out" 2>&1
  [ $? = 2 ] && grep -q -- '--nonsense: no such switch' "$work/out" || fail '--nonsense'
  "${scheme[@]}" --help 2> "$work/out" | grep -q '^usage: scheme' && [ ! -s "$work/out" ] || fail '--help'
  "${scheme[@]}" --pool=x > /dev/null 2>&1
  [ $? = 2 ] || fail '--pool=x'
  "${scheme[@]}" --sinks=perfmap,nonsense -e 1 > "$work/out" 2>&1 && fail '--sinks=perfmap,nonsense'
  grep -q -- '--sinks: none' "$work/out" || fail "$(cat "$work/out")"
  "${scheme[@]}" --pool=12345 -e 1 > "$work/out" 2>&1 && fail '--pool=12345'
  grep -q 'pool_bytes is 12345' "$work/out" || fail "$(cat "$work/out")"
  "${scheme[@]}" --dump-ir=/nowhere/at/all -e 1 > "$work/out" 2>&1 && fail '--dump-ir=/nowhere/at/all'
  grep -q 'no folder' "$work/out" || fail "$(cat "$work/out")"
}

# A listing's first line is the procedure's, then comes one an instruction, and its number.
listings_of_bytecode() {
  # One that defines anew has a listing for each time.
  these_programs 'closures escapes generators strings tailcalls' --dump-ir="$work/ir"
  four_procedures
  "${scheme[@]}" --dump-ir="$work/ir" "$work/a dir/named.scm" > /dev/null || fail "exit $?"
  find "$work/ir" -name '*.bytecode' -exec awk '
    FNR == 1 { if (!/^scm::.* arguments/) exit 1; next }
    $1 != FNR - 2 || $2 !~ /^[A-Z]+$/ { print FILENAME ": " $0; exit 1 }' {} + > "$work/out" ||
    fail "$(cat "$work/out")"
  grep -rq 'CALLG .*line' "$work/ir" || fail 'no call has a line of the source'
}

# Every invariant of the heap holds after each program, with code discarded and collected.
code_checks_out() {
  local p
  for p in "$programs"/*.scm; do
    [ -f "${p%.scm}.out" ] || continue
    cat "$p" - > "$work/p.scm" << 'END'
(newline)
(code-collect!)
(code-check)
(code-discard!)
(code-collect!)
(display (code-check))
END
    (set -o pipefail; "${scheme[@]}" "$work/p.scm" < /dev/null 2>&1 | tail -1 | grep -x '#t') > "$work/err" || fail "$p"
  done
}

# four_procedures: a program in which a line stands for a procedure, or for one part of one.
four_procedures() {
  mkdir -p "$work/a dir"
  cat > "$work/a dir/named.scm" << 'END'
(define (deep x)
  (if (< x 1)
      0
      (+ 1
         (deep (- x 1)))))
(define anonymous (list (lambda (x) (deep x))))
(define (again k)
  (if (> k 0) (begin ((car anonymous) 9) ((eval '(car (list (lambda () 1))))) (again (- k 1)))))
(again 200)
END
}

# Also what a collection freed meanwhile has its name.
code_is_named() {
  local name
  four_procedures
  CODEHEAP_DEAD_NAMES=kept CODEHEAP_PERF_MAP_DIR=$work "${scheme[@]}" --sinks=unwind,perfmap "$work/a dir/named.scm" ||
    fail "exit $?"
  for name in 'scm::deep named.scm:1' 'scm::lambda named.scm:6' 'scm::again named.scm:7' \
    'scm::toplevel named.scm:9' 'scm::lambda eval'; do
    grep -qE "^[0-9a-f]+ [0-9a-f]+ $name\$" "$work"/perf-*.map ||
      fail "perf map: no '$name' in $(cut -d' ' -f3- "$work"/perf-*.map | sort -u | head -40)"
  done
  grep -qv -e ' scm::' -e ' codeheap_' "$work"/perf-*.map && fail 'perf map: a line of another kind'
  return 0
}

# Lines are side memory, so that no one has them who did not ask; programs are right with them.
lines_on_request() {
  local without with
  four_procedures
  echo "(display (cdr (assq 'metadata-bytes-now (code-stats))))" >> "$work/a dir/named.scm"
  without=$("${scheme[@]}" --sinks=none "$work/a dir/named.scm") || fail "exit $?"
  with=$("${scheme[@]}" --sinks=none --lines "$work/a dir/named.scm") || fail "--lines: exit $?"
  [ "$with" -gt "$without" ] || fail "side memory: $without bytes, $with with lines"
  several_programs --lines
}

# What ch_block_lines is given, seen from outside: its arguments at its first instruction.
lines_of_the_source() {
  four_procedures
  cat > "$work/gdb" << 'END'
set pagination off
set breakpoint pending on
break *ch_block_lines
commands
silent
output (char *)$rsi
set $i = 0
while $i < $rcx
printf " %u", *(unsigned *)($rdx + 16 * $i + 8)
set $i = $i + 1
end
printf "\n"
continue
end
run
END
  ln -s "$work/a dir" "$work/link"
  gdb -nx -batch -x "$work/gdb" --args "${scheme[@]}" --sinks=none --lines "$work/link/named.scm" \
    > "$work/out" 2> "$work/err" || fail "gdb: exit $?: $(cat "$work/err")"
  skip_where_ptrace_is_refused "$work/err"
  # The entry of a procedure and the frame of its body have its line, hot and cold; the test in front and what comes
  # behind have their own.
  local lines
  for lines in ' 1 1' ' 2 1( [45])+ 4 1( [245])+' ' 6 6' ' 8 7 8 7 8'; do
    grep -qE "/a dir/named.scm\"$lines\$" "$work/out" ||
      fail "no block with lines$lines: $(grep -F named.scm "$work/out" | sort -u)"
  done
  grep -v named.scm "$work/out" | grep -qE '"( [0-9]+)+$' && fail 'lines of another file'
  return 0
}

# The interpreter, each activation of it entered through a trampoline.
trampolines() {
  all_programs --interp --trampolines
  several_programs --jit --trampolines
  several_programs --interp --trampolines --discard-every=5000
  "${scheme[@]}" --arena --trampolines -e 1 > "$work/out" 2>&1 && fail '--arena was not refused'
  grep -q 'blocks of the code heap' "$work/out" || fail "no message: $(cat "$work/out")"
}

# A frame for each call, none for a tail call; what was recursion without end still says so.
trampolines_keep_tail_calls_flat() {
  local mode
  for mode in --interp --jit '--jit --pool=16384 --page=4096'; do
    # shellcheck disable=SC2086
    says '#t#f"recursion too deep"20000' --trampolines $mode << 'END'
(define (even2? n) (if (= n 0) #t (odd2? (- n 1))))
(define (odd2? n) (if (= n 0) #f (apply even2? (list (- n 1)))))
(write (even2? 1000000))
(write (odd2? 1000000))
(define (down n) (+ 1 (down n)))
(write (guard (e (#t (error-object-message e))) (down 0)))
(define (count n) (if (= n 0) 0 (+ 1 (count (- n 1)))))
(write (count 20000))
END
  done
}

# Each procedure has one, which dies with it.
trampolines_name_what_is_interpreted() {
  local name mode
  four_procedures
  CODEHEAP_PERF_MAP_DIR=$work "${scheme[@]}" --interp --trampolines --sinks=unwind,perfmap \
    "$work/a dir/named.scm" || fail "exit $?"
  for name in 'scm::deep named.scm:1' 'scm::lambda named.scm:6' 'scm::again named.scm:7' \
    'scm::toplevel named.scm:9'; do
    [ "$(grep -cE "^[0-9a-f]+ [0-9a-f]+ $name\$" "$work"/perf-*.map)" = 1 ] ||
      fail "perf map: not one '$name' in $(cut -d' ' -f3- "$work"/perf-*.map | sort -u | tail -40)"
  done
  for mode in --interp --jit; do
    says '#t' $mode --trampolines << 'END'
(define (loop i) (if (< i 20000) (begin (eval '((lambda (x) (+ x 1)) 1)) (loop (+ i 1)))))
(loop 0)
(code-collect!)
(code-collect!)
(write (< (cdr (assq 'owners-now (code-stats))) 2000))
END
  done
}

# Between two frames of the interpreter a profiler sees the procedure, and below it its callers.
stacks_of_perf() {
  cat > "$work/fib.scm" << 'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (start) (+ 0 (fib 31)))
(write (+ 0 (start)))
END
  # For its listener to BPF programs perf would wait for a second at the end.
  local record=(perf record -q --no-bpf-event -F 2000 -g -o "$work/perf.data")
  "${record[@]}" true 2> "$work/err" || { echo "perf record is refused: $(tail -n 1 "$work/err")"; exit 77; }
  "${record[@]}" "${scheme[@]}" --interp --trampolines --sinks=unwind,perfmap "$work/fib.scm" > "$work/out" 2> "$work/err" ||
    fail "it failed: $(tail -n 1 "$work/err")"
  [ "$(cat "$work/out")" = 1346269 ] || fail "another output: $(cat "$work/out")"
  perf script -i "$work/perf.data" -F ip,sym > "$work/stacks" 2> "$work/err" ||
    fail "perf script: $(cat "$work/err")"
  # perf looks there only, and reads the file when it reports.
  local pid
  pid=$(perf script -i "$work/perf.data" -F pid 2> /dev/null | awk 'NR == 1 { print $1 }')
  rm -f "/tmp/perf-$pid.map"
  awk 'BEGIN { RS = "" }
    /scm::fib fib.scm:1/ {
      n++
      whole += /interp_run\n.*scm::fib .*scm::start fib.scm:2\n.*scm::toplevel fib.scm:3\n.*main/
    }
    END { print n + 0, whole + 0 }' "$work/stacks" > "$work/counts"
  read -r n whole < "$work/counts"
}
# The shapes of stacks, however few perf takes while it waits for a processor.
trampolines_in_perf() {
  local n=0 whole=0
  while [ "$whole" = 0 ]; do stacks_of_perf; done
}
most_trampolines_in_perf() {
  local n whole
  stacks_of_perf
  [ "$n" -ge 20 ] && [ $((whole * 10)) -ge $((n * 9)) ] ||
    fail "of $n stacks with fib $whole reach main; $(grep -m 5 scm:: "$work/stacks")"
}

trampolines_in_gdb() {
  cat > "$work/fib.scm" << 'END'
(define (fib n) (if (< n 2) (exact->inexact n) (+ (fib (- n 1)) (fib (- n 2)))))
(define (start) (+ 0 (fib 12)))
(write (+ 0 (start)))
END
  printf '%s\n' 'set pagination off' 'break number_add' run backtrace > "$work/gdb"
  gdb -nx -batch -x "$work/gdb" --args "${scheme[@]}" --interp --trampolines --sinks=unwind,gdb \
    "$work/fib.scm" > "$work/out" 2> "$work/err" < /dev/null
  skip_where_ptrace_is_refused "$work/err"
  [ "$(grep -oE 'scm::[a-z]+ fib.scm:[0-9]|\bin main\b' "$work/out" | uniq | tr '\n' ' ')" = \
    'scm::fib fib.scm:1 scm::start fib.scm:2 scm::toplevel fib.scm:3 in main ' ] ||
    fail "$(grep '^#' "$work/out")"
}

if [ $# = 0 ]; then
  for c in $cases; do
    IFS=: read -r name limit mode <<< "$c"
    # perf would see the emulator's code.
    [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || [ "$name" != most_trampolines_in_perf ] || continue
    echo "scheme_$name $limit 0 ${mode:--}"
  done
  exit 0
fi
"${1#scheme_}"
