#!/bin/bash
# SPDX-License-Identifier: MIT
# The Scheme of hosts/scheme where memory, address space, threads or room for code are short: an error that a program can
# catch, or a message and exit code 1, and never a signal. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
read -ra scheme <<< "${CODEHEAP_TEST_EMULATOR:-} ${CODEHEAP_BUILD:-build}/scheme"
make_work
ulimit -c 0

cases="memory_that_ends_is_an_error:600 memory_that_ended_is_there_again:600
address_space_that_ended_is_there_again:600 memory_ends_as_often_as_it_is_used_up:120 little_address_space_is_told:300
a_full_arena_is_an_error:120 thread_without_stack_is_an_error:120 symbols_die:120 both_recurse_as_deep:120"

# What grows without end, by what it is made of.
kinds() {
  cat << 'END'
lists (define keep '()) (define (grow) (let loop () (set! keep (cons keep keep)) (loop)))
vectors (define (grow) (let loop ((l '())) (loop (cons (make-vector 10000 0) l))))
one_vector (define (grow) (let loop ((n 1000)) (make-vector n 0) (loop (* n 2))))
strings (define (grow) (let loop ((s "abcdefgh")) (loop (string-append s s))))
small_strings (define (grow) (let loop ((l '())) (loop (cons (make-string 20 #\a) l))))
closures (define (grow) (let loop ((f (lambda () 0))) (loop (lambda () f))))
flonums (define (grow) (let loop ((l '()) (x 1.5)) (loop (cons (+ x 0.5) l) (+ x 1.5))))
symbols (define (grow) (let loop ((l '()) (n 0)) (loop (cons (string->symbol (number->string n)) l) (+ n 1))))
ports (define p (open-output-string)) (define (grow) (let loop () (write '(some data of some length) p) (loop)))
recursion (define (grow) (let down ((n 0)) (+ 1 (let ((v (make-vector 100 n))) (+ (down (+ n 1)) (vector-ref v 0))))))
continuations (define (grow) (let loop ((l '())) (loop (cons (call/cc (lambda (k) k)) l))))
records (define-record-type thing (make-thing a b) thing? (a thing-a)) (define (grow) (let loop ((l '())) (loop (make-thing l 1.5))))
bytevectors (define (grow) (let loop ((l '())) (loop (cons (make-bytevector 100000 1) l))))
compiler (define (grow) (let loop ((l '()) (n 0)) (loop (cons (eval `(lambda (x) (+ x ,n))) l) (+ n 1))))
reader (define (grow) (let loop ((l '())) (loop (cons (read (open-input-string "(a 1.5 \"text\" #(1 2))")) l))))
eval (define (grow) (let loop ((l '(1 2 3 4))) (eval (list 'length (list 'quote l))) (loop (append l l))))
append (define (grow) (let loop ((l '(1 2 3 4))) (loop (append l l))))
END
}

modes() { [ "${CODEHEAP_TEST_LONG:-}" = 1 ] && echo --interp --jit --arena || echo --interp --jit; }

# Uncaught it is a message with a line, and exit code 1.
memory_that_ends_is_an_error() {
  local name program mode status
  while read -r name program; do
    printf '%s\n(grow)\n' "$program" > "$work/p.scm"
    for mode in $(modes); do
      GC_MAXIMUM_HEAP_SIZE=40M "${scheme[@]}" "$mode" "$work/p.scm" > "$work/out" 2> "$work/err" < /dev/null
      status=$?
      [ $status = 1 ] || fail "$name $mode: exit $status: $(head -c 300 "$work/err")"
      grep -q 'p.scm:[0-9]*: .*out of memory\|p.scm:[0-9]*: .*too large' "$work/err" ||
        fail "$name $mode: $(head -c 300 "$work/err")"
    done
  done < <(kinds)
}

# Caught it is an error like others, and what it held can be used again.
catches() {
  cat > "$work/p.scm" << END
$1
(write (guard (e ((error-object? e) (error-kind e))) (grow)))
(define keep '())
(define p '())
(define (check n) (if (= n 0) '() (cons (list n (* n 1.5)) (check (- n 1)))))
(write (length (check 10000)))
END
}
# goes_on NAME MODE [SAID]: the program ends well, and has said that; without it what a program that `catches` wrote says.
goes_on() {
  "${scheme[@]}" "$2" "$work/p.scm" > "$work/out" 2> "$work/err" < /dev/null || fail "$1 $2: exit $?: $(head -c 300 "$work/err")"
  [ "$(cat "$work/out")" = "${3:-memory10000}" ] || fail "$1 $2: $(head -c 300 "$work/out")"
}
memory_that_ended_is_there_again() {
  local name program mode
  while read -r name program; do
    catches "$program"
    for mode in $(modes); do GC_MAXIMUM_HEAP_SIZE=40M goes_on "$name" "$mode"; done
  done < <(kinds)
}

# The collector's records take of the same address space as its heap.
address_space_that_ended_is_there_again() {
  local name program mode
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || { echo 'an emulator needs room of its own'; exit 77; }
  while read -r name program; do
    catches "$program"
    for mode in $(modes); do (ulimit -v 200000 && goes_on "$name" "$mode") || exit 1; done
  done < <(kinds)
}

# Handlers have memory to run in, each time anew once what was used up is free again.
memory_ends_as_often_as_it_is_used_up() {
  local mode
  cat > "$work/p.scm" << 'END'
(define (grow l) (grow (cons 1 l)))
(define (again n) (if (> n 0) (begin (write (guard (e (#t (error-kind e))) (grow '()))) (again (- n 1)))))
(again 5)
(define kept '())
(define (keep) (set! kept (cons 1 kept)) (keep))
(write (guard (e (#t (list (error-kind e) (length (vector->list (make-vector 5000 0)))))) (keep)))
(set! kept '())
(write (length (vector->list (make-vector 10000 0))))
END
  for mode in $(modes); do
    GC_MAXIMUM_HEAP_SIZE=40M goes_on again "$mode" 'memorymemorymemorymemorymemory(memory 5000)10000'
  done
}

# From too little to begin with to enough: either all is right, or it is told.
little_address_space_is_told() {
  local kib mode status began=0 refused=0
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || { echo 'an emulator needs room of its own'; exit 77; }
  for ((kib = 20000; kib <= 190000; kib += 5000)); do
    for mode in --interp --jit --arena; do
      (ulimit -v $kib && exec "${scheme[@]}" $mode -e '(vector-length (make-vector 100 1.5))') \
        > "$work/out" 2> "$work/err" < /dev/null
      status=$?
      if [ $status = 0 ] && [ "$(cat "$work/out")" = 100 ]; then
        began=$((began + 1))
      elif [ $status = 1 ] && [ -s "$work/err" ]; then
        refused=$((refused + 1))
      else
        fail "$mode, $kib KiB: exit $status: $(head -c 300 "$work/out" "$work/err")"
      fi
    done
  done
  [ $began -gt 0 ] && [ $refused -gt 0 ] || fail "$began began, $refused were refused"
}

a_full_arena_is_an_error() {
  cat > "$work/p.scm" << 'END'
(define (loop i) (if (< i 500000) (begin (eval '(define (test) 1)) (eval '(test)) (loop (+ i 1)))))
(loop 0)
END
  "${scheme[@]}" --arena "$work/p.scm" > "$work/out" 2>&1 < /dev/null
  [ $? = 1 ] || fail "another end: $(head -c 300 "$work/out")"
  grep -q 'the arena is full' "$work/out" || fail "$(head -c 300 "$work/out")"
}

# Each has a stack of values of its own: joining one that found no room for it tells so.
thread_without_stack_is_an_error() {
  local got
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || { echo 'an emulator needs room of its own'; exit 77; }
  cat > "$work/p.scm" << 'END'
(define lock (make-mutex))
(define (wait) (mutex-lock! lock) (mutex-unlock! lock) 'ran)
(define (start n) (if (= n 0) '() (let ((t (guard (e (#t (error-kind e))) (spawn wait)))) (cons t (start (- n 1))))))
(mutex-lock! lock)
(define started (start 30))
(mutex-unlock! lock)
(define (end t) (if (symbol? t) t (guard (e (#t (error-kind e))) (thread-join t))))
(define (count what l) (cond ((null? l) 0) ((eq? (car l) what) (+ 1 (count what (cdr l)))) (else (count what (cdr l)))))
(define ends (map end started))
(write (list (= 30 (+ (count 'ran ends) (count 'thread ends) (count 'memory ends))) (> (count 'ran ends) 0)
             (< (count 'ran ends) 30)))
END
  local mode
  for mode in --interp --jit; do
    got=$(ulimit -v 800000 && "${scheme[@]}" $mode "$work/p.scm" 2>&1 < /dev/null)
    [ "$got" = '(#t #t #t)' ] || fail "$mode: $got"
  done
}

# A million names that nothing holds, and as many that are held: in a table of fixed size it is minutes.
symbols_die() {
  local n=300000 got
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || n=20000
  cat > "$work/p.scm" << END
(define (go n) (if (> n 0) (begin (string->symbol (string-append (number->string n) (make-string 60 #\a))) (go (- n 1)))))
(go (* 4 $n))
(define (held n l) (if (> n 0) (held (- n 1) (cons (string->symbol (number->string n)) l)) l))
(define all (held $n '()))
(define again (held $n '()))
(define (same? a b) (or (null? a) (and (eq? (car a) (car b)) (same? (cdr a) (cdr b)))))
(write (list (length all) (same? all again) (eq? (string->symbol "if") 'if) (eval '(if #t 1 2))))
END
  got=$(GC_MAXIMUM_HEAP_SIZE=150M "${scheme[@]}" "$work/p.scm" 2>&1 < /dev/null)
  [ "$got" = "($n #t #t 1)" ] || fail "$got"
}

both_recurse_as_deep() {
  local mode got
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || { echo 'an emulator has a stack of its own'; exit 77; }
  [ "$(ulimit -H -s)" = unlimited ] || { echo 'the stack has a hard limit'; exit 77; }
  cat > "$work/p.scm" << 'END'
(define (count n) (if (= n 0) 0 (+ 1 (count (- n 1)))))
(write (count 1000000))
(define (build n) (if (= n 0) '() (cons n (build (- n 1)))))
(write (length (build 1000000)))
(define (down n) (+ 1 (down n)))
(write (guard (e (#t (error-kind e))) (down 0)))
END
  for mode in --interp --jit --arena; do
    got=$("${scheme[@]}" $mode "$work/p.scm" 2>&1 < /dev/null)
    [ "$got" = 10000001000000stack ] || fail "$mode: $got"
  done
}

if [ $# = 0 ]; then
  for c in $cases; do
    IFS=: read -r name limit mode <<< "$c"
    echo "scheme_$name $limit 0 ${mode:--}"
  done
  exit 0
fi
"${1#scheme_}"
