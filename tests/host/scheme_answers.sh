#!/bin/bash
# SPDX-License-Identifier: MIT
# What the Scheme of hosts/scheme answers is one thing in every mode, and what R7RS asks for. Without arguments it lists its
# cases, with a name it runs one.
. tests/support/script.sh
. tests/support/scheme_breaks.sh
read -ra scheme <<< "${CODEHEAP_TEST_EMULATOR:-} ${SCHEME:-${CODEHEAP_BUILD:-build}/scheme}"
make_work

cases="pairs_of_operands_have_one_answer:180 comparisons_are_exact:60 symbols_are_read_as_written:60
surrogates_are_no_characters:60 what_cannot_be_read_is_an_error:60 call_cc_calls_its_receiver_in_tail_position:120
escapes_that_were_left_are_errors:60 wrong_counts_are_told:60
flonums_divide_exactly:60 all_fixnums_are_read:60 text_that_is_no_number_is_none:60 bytes_of_a_character_stay_together:60
a_forced_chain_runs_once:60 conditions_go_on_to_outer_handlers:60 left_files_are_closed:60 lost_output_is_told:60 low_stack_limits_are_raised:60
signed_zeros_are_kept:60 values_are_bound_at_once:60 improper_lists_are_copied:60 names_of_files_have_no_zero:60
deep_code_is_an_error:120 handlers_are_nested_deep:120 emergency_exit_runs_no_thunk:60
fibers_stay_with_their_thread:60 fibers_keep_their_values:60 symbols_of_threads_are_one:120
handlers_recurse_too_deep:300 accessors_of_another_type_are_errors:60 output_beside_a_reader_is_written_once:180
closed_ports_are_no_defaults:60 lists_shorten_under_their_readers:180
files_are_written_at_the_end:60 exit_runs_thunks_to_their_end:60 definitions_hold_in_the_whole_file:60
wrong_data_are_errors:60 numbers_keep_their_kind:120 lists_are_taken_whole:240"
# Half a minute, for the names of 66,000 variables.
[ "${CODEHEAP_TEST_LONG:-}" != 1 ] || [ -n "${CODEHEAP_TEST_EMULATOR:-}" ] || cases+=" a_closure_of_too_many_variables_is_refused:400"

# says WANTED: the program on standard input prints WANTED, in each mode.
says() {
  local mode got
  cat > "$work/p.scm"
  for mode in --interp --jit --arena '--jit --gc-every-stub'; do
    # shellcheck disable=SC2086
    got=$("${scheme[@]}" $mode "$work/p.scm" 2>&1)
    [ $? -lt 128 ] && [ "$got" = "$1" ] || fail "$mode: wanted: $1"$'\n'"got: $got"
  done
}

# Each operator on each pair of operands: the code is that of the types which came first, then of any. An error is an
# answer, too.
pairs_of_operands_have_one_answer() {
  local mode few='(lambda (l) l)'
  # An emulator is slow: every third operand.
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] ||
    few='(lambda (l) (let loop ((l l)) (if (< (length l) 3) l (cons (car l) (loop (cdddr l))))))'
  printf "(define (few l) (%s l))\n" "$few" > "$work/pairs.scm"
  cat >> "$work/pairs.scm" << 'END'
(define operands
  (few (list 0 1 -1 2 3 -7 10 1000003 4294967296 -4294967297 9007199254740991 9007199254740992 9007199254740993
             -9007199254740992 -9007199254740993 18014398509481985 4503599627370497 4611686018427387903
             -4611686018427387904 4611686018427387902 4000000000000000001 0.0 -0.0 1.0 -1.0 1.5 -2.5 0.1
             9007199254740992.0 9007199254740994.0 -9007199254740992.0 4611686018427387904.0 -4611686018427387904.0
             4e18 1e19 1e300 -1e300 5e-324 +inf.0 -inf.0 +nan.0 #f #t '() 'a "text" #\a '(1) (vector 1))))
(define operators
  '((+ a b) (- a b) (* a b) (/ a b) (quotient a b) (remainder a b) (modulo a b)
    (< a b) (<= a b) (> a b) (>= a b) (= a b)
    (if (< a b) 1 2) (if (<= a b) 1 2) (if (> a b) 1 2) (if (>= a b) 1 2) (if (= a b) 1 2)
    (if (not (< a b)) 1 2) (if (not (>= a b)) 1 2) (if (not (= a b)) 1 2)
    (+ a 1) (- a 1) (< a 3) (= b 0) (>= b -7) (eq? a b) (eqv? a b) (equal? a b) (cons a b) (min a b) (max a b)
    (car a) (vector-ref a b) (string-ref a b) (list a b)
    (let loop ((i 0) (s a)) (if (< i 3) (loop (+ i 1) (+ s b)) s))))
(define (show thunk)
  (write (guard (e ((error-object? e) (cons (error-object-message e) (error-object-irritants e)))) (thunk))))
; One procedure sees all pairs, in two orders; one each those with one left operand, and each of them again.
(define (run form)
  (let ((all (eval `(lambda (a b) ,form))))
    (write form)
    (for-each (lambda (a)
                (let ((own (eval `(lambda (a b) ,form))))
                  (newline)
                  (write a)
                  (for-each (lambda (b)
                              (show (lambda () (all a b)))
                              (show (lambda () (own a b)))
                              (show (lambda () (own a b))))
                            operands)))
              operands)
    (for-each (lambda (b)
                (newline)
                (for-each (lambda (a) (show (lambda () (all a b)))) operands))
              operands)))
(for-each run operators)
END
  "${scheme[@]}" --interp "$work/pairs.scm" > "$work/wanted" 2>&1 || fail "--interp: exit $?: $(tail -c 300 "$work/wanted")"
  for mode in --jit --arena; do
    "${scheme[@]}" $mode "$work/pairs.scm" > "$work/out" 2>&1 || fail "$mode: exit $?: $(tail -c 300 "$work/out")"
    diff "$work/wanted" "$work/out" > "$work/differences" || fail "$mode: $(head -c 600 "$work/differences")"
  done
}

# A double may be both of two fixnums beyond 2^53; exact 0 is no divisor.
comparisons_are_exact() {
  says '(#f #t #t #f)(#t #t #f)(#f #f #t)(range range)(+inf.0 -inf.0 0.75)' << 'END'
(define (compare a b) (list (= a b) (< a b) (<= a b) (> a b)))
(compare 1.5 2) (compare 2 1.5) (compare 9007199254740992.0 5)
(write (compare 9007199254740992.0 9007199254740993))
(define (less a b) (< a b))
(write (list (less 4611686018427387903 4611686018427387904.0) (less -9007199254740993 -9007199254740992.0)
             (less 9007199254740993 9007199254740992.0)))
(define (same a b) (= a b))
(write (list (same 4000000000000000001 4e18) (same 4611686018427387903 4611686018427387904.0) (same 4e18 4000000000000000000)))
(define (over a b) (/ a b))
(over 1.5 2)
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(write (list (kind (lambda () (over 1.5 0))) (kind (lambda () (over 3 0)))))
(write (list (over 1.5 0.0) (over -1 0.0) (over 1.5 2)))
END
}

symbols_are_read_as_written() {
  says '(|a\|b| |a b| |x\\y| abc || |1|)#t' << 'END'
(define all (list '|a\|b| '|a b| '|x\\y| 'abc (string->symbol "") (string->symbol "1")))
(write all)
(define longs (map (lambda (c) (make-string 70 c)) '(#\1 #\# #\a)))
(set! all (append (map string->symbol (append '("-.5" "..." "." "1/2" "1/-2") longs)) all))
(define port (open-output-string))
(write all port)
(write (equal? all (read (open-input-string (get-output-string port)))))
END
}

surrogates_are_no_characters() {
  says '(range range 57344 read)' << 'END'
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(define last (string #\" #\\ #\x #\d #\f #\f #\f #\; #\"))
(write (list (kind (lambda () (integer->char 55296))) (kind (lambda () (integer->char 57343))) (char->integer (integer->char 57344))
             (kind (lambda () (read (open-input-string last))))))
END
}

call_cc_calls_its_receiver_in_tail_position() {
  says 'done(first)newest' << 'END'
(define (loop n) (if (= n 0) 'done (call/cc (lambda (k) (loop (- n 1))))))
(write (loop 1000000))
(define (first n k) (if (= n 0) (k 'first) (apply call/cc (list (lambda (j) (first (- n 1) (or k j)))))))
(write (list (first 1000000 #f)))
(define escape call/ec)
(define (newest n k) (if (= n 0) (k 'newest) (escape (lambda (j) (newest (- n 1) j)))))
(write (newest 1000000 #f))
END
}

# Its call/cc is gone from the C stack, whoever it was that went past it.
escapes_that_were_left_are_errors() {
  says 'error(error)error' << 'END'
(define kept #f)
(define (deep n) (if (= n 0) (kept 1) (+ 1 (deep (- n 1)))))
(define (kind) (guard (e (#t (error-kind e))) (deep 20)))
(guard (e (#t #f)) (+ 1 (call/cc (lambda (k) (set! kept k) (+ 1 (error "past it"))))))
(write (kind))
(call/cc (lambda (out) (+ 1 (call/cc (lambda (k) (set! kept k) (+ 1 (out 1)))))))
(write (list (kind)))
(call/cc (lambda (k) (set! kept k) (call/cc (lambda (j) 1))))
(write (kind))
END
}

what_cannot_be_read_is_an_error() {
  "${scheme[@]}" "$work" > "$work/out" 2>&1
  [ $? = 1 ] || fail "a directory as program: $(cat "$work/out")"
  grep -q 'cannot read: Is a directory' "$work/out" || fail "$(cat "$work/out")"
  says '(ok read read read read)' << 'END'
(define (kind text) (guard (e (#t (error-kind e))) (read (open-input-string text)) 'ok))
(write (map kind '("(a #; b . c)" "(a #; . b)" "#\\x-ffffffffffffffbf" "#\\x0x41" "#\\x+41")))
END
}

# An instruction names a free variable by 16 bits.
a_closure_of_too_many_variables_is_refused() {
  local got
  cat > "$work/p.scm" << 'END'
(define (names letter) (map (lambda (i) (string->symbol (string-append letter (number->string i)))) (iota 33000)))
(define a (names "a"))
(define b (names "b"))
(define uses (map (lambda (name) (list 'void name)) (append b a)))
(define (last-of n)
  (let ((outer (eval `(lambda ,a (lambda ,b (lambda () ,@(list-tail uses (- 66000 n)) ,(car (reverse a))))))))
    ((apply (apply outer (iota 33000)) (iota 33000 1)))))
(write (last-of 65536))
(write (guard (e (#t (error-object-message e))) (last-of 65537)))
END
  got=$("${scheme[@]}" --interp "$work/p.scm" 2>&1)
  [ "$got" = '32999"procedure has too many variables"' ] || fail "$got"
}

wrong_counts_are_told() {
  "${scheme[@]}" --pool=1M -e 1 > "$work/out" 2>&1
  [ $? = 2 ] || fail "--pool=1M: $(cat "$work/out")"
  head -n 1 "$work/out" | grep -qx 'scheme: --pool=1M: a whole number is wanted, as in --pool=1048576' || fail "$(cat "$work/out")"
}

# x / y, rounded, may be the next integer.
flonums_divide_exactly() {
  says '(1.0 2.0 1.0 -1.0 9007199254740991.0 3002399751580330.0 3002399751580330.0)' << 'END'
(write (list (modulo 1e20 3) (modulo -1e20 3) (remainder 1e20 3.) (remainder -1e20 3) (modulo -1 9007199254740992.)
             (floor-quotient 9007199254740991. 3) (quotient 9007199254740991. 3.)))
END
}

all_fixnums_are_read() {
  says '(#t #t #t #f -4.611686018427388e19 -4.611686018427388e19 0)' << 'END'
(define least (- -4611686018427387903 1))
(write (list (eqv? least -4611686018427387904) (eqv? least (exact -4611686018427387904.)) (eqv? least (arithmetic-shift -1 62))
             (exact? 4611686018427387904) -46116860184273879040 (* -10. 4611686018427387904) (arithmetic-shift 0 100)))
END
}

text_that_is_no_number_is_none() {
  says '(#f 12 read |#%x| "b" syntax (#f #f -0.5))' << 'END'
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(write (list (string->number (string #\1 #\2 #\null #\3)) (string->number "12")
             (kind (lambda () (read (open-input-string (string-append "#b" (make-string 70 #\1))))))
             (string->symbol "#%x") (vector->string (vector #\a #\b #\c) 1 2) (kind (lambda () (eval '(let* 5 7))))
             (map string->number '("1/-2" "-4611686018427387904/-1" "-1/2"))))
END
}

# As code, where 0 is a constant or not, and called as a procedure.
signed_zeros_are_kept() {
  says '(-0.0 -0.0 -0.0 -0.0 -0.0 0.0 -0.0)("+: not a number:" "*: not a number:")' << 'END'
(define (less a b) (- a b))
(define (same a) (- a 0))
(less 1.5 2) (less 1 2) (same 1.5) (same 1)
(write (list (same -0.0) (less -0.0 0) (apply - '(-0.0 0)) (apply + '(-0.0 -0.0)) (+ -0.0) (+ -0.0 0) (apply * '(-0.0))))
(define (message f) (guard (e (#t (error-object-message e))) (f 'a)))
(write (list (message +) (message *)))
END
}

# let-values: no expression is in the scope of a name; let*-values: each but the first.
values_are_bound_at_once() {
  says '(x y a b)(x y x y)(1 (2 3) (4 5))5(1 2 (3 4))' << 'END'
(define-values (a b x y) (values 'a 'b 'x 'y))
(write (let-values (((a b) (values x y)) ((x y) (values a b))) (list a b x y)))
(write (let*-values (((a b) (values x y)) ((x y) (values a b))) (list a b x y)))
(write (let-values (((a . r) (values 1 2 3)) (all (values 4 5)) (() (values))) (list a r all)))
(write (let-values () 5))
(write (let () (define-values (p q . r) (values 1 2 3 4)) (list p q r)))
END
}

improper_lists_are_copied() {
  says '((1 2 . 3) 5 () #f (type type))("" "" "abc")' << 'END'
(define proper (list 1 2))
(define (circle n) (let ((l (iota n))) (set-cdr! (last-pair l) l) l))
(define (kind l) (guard (e (#t (error-kind e))) (list-copy l)))
(write (list (list-copy '(1 2 . 3)) (list-copy 5) (list-copy '()) (eq? proper (list-copy proper)) (map kind (map circle '(1 2)))))
(define (read-some n text) (read-string n (open-input-string text)))
(write (list (read-some 0 "abc") (read-some 0 "") (read-some 5 "abc")))
END
}

# The system would take what is in front of the zero byte.
names_of_files_have_no_zero() {
  : > "$work/kept"
  says '(type type type type type #t)' << END
(define name (string-append "$work/kept" (string #\\null) ".txt"))
(define (kind f) (guard (e (#t (error-kind e))) (f name)))
(write (append (map kind (list open-output-file open-input-file file-exists? delete-file load)) (list (file-exists? "$work/kept"))))
END
}

# Loops whose bodies enter one another are deeper than the form is.
deep_code_is_an_error() {
  says 'stackstack' << 'END'
(define (repeat n wrap x) (if (= n 0) x (repeat (- n 1) wrap (wrap x))))
(define (kind form) (guard (e (#t (error-kind e))) (eval form)))
(write (kind (list 'cond-expand (list (repeat 3000000 (lambda (x) (list 'not x)) 'r7rs) 1))))
(define (name i) (string->symbol (string-append "f" (number->string i))))
(define (loop i)
  (list 'define (list (name i) 'x) (repeat 40 (lambda (x) (list 'let '((x x)) x)) (list (name (+ i 1)) 'x))))
(define loops `(lambda () ,@(map loop (iota 800)) (define (f800 x) x) (f0 1)))
(write (fiber-resume (make-fiber (lambda () (kind loops)))))
END
}

# 100,000 deep, a look at all handlers for each would be five thousand million steps.
handlers_are_nested_deep() {
  says '100000(100000 stack)' << 'END'
(define (deep n) (if (= n 0) 0 (+ 1 (with-exception-handler raise (lambda () (deep (- n 1)))))))
(write (deep 100000))
(write (list (deep 100000) (guard (e (#t (error-kind e))) (let loop () (+ 1 (with-exception-handler void loop))))))
END
}

emergency_exit_runs_no_thunk() {
  local out
  out=$("${scheme[@]}" -e '(dynamic-wind void (lambda () (emergency-exit 3)) (lambda () (display "after")))')
  [ "$?$out" = 3 ] || fail "emergency-exit: $out"
  out=$("${scheme[@]}" -e '(dynamic-wind void (lambda () (exit 4)) (lambda () (display "after")))')
  [ "$?$out" = 4after ] || fail "exit: $out"
}

# A file is read by 16,384 bytes.
bytes_of_a_character_stay_together() {
  printf '%016383d\303\251b' 0 > "$work/text"
  says '(#\é #\é #\b)(237 160 128)1' << END
(define port (open-input-file "$work/text"))
(read-string 16383 port)
(define peeked (peek-char port))
(define next (read-char port))
(write (list peeked next (peek-char port)))
(define half (open-input-bytevector (bytevector 237 160 128)))
(write (map (lambda (i) (char->integer (read-char half))) '(1 2 3)))
(write (string-length "\é"))
END
}

a_forced_chain_runs_once() {
  says 'x(1 1)' << 'END'
(define inner (delay (begin (display 'x) 1)))
(define outer (delay-force inner))
(define first (force outer))
(write (list first (force inner)))
END
}

conditions_go_on_to_outer_handlers() {
  says '(inner "first")' << 'END'
(define seen '())
(write (guard (e (#t (append seen (list (error-object-message e)))))
  (with-exception-handler (lambda (e) (set! seen (cons 'inner seen))) (lambda () (error "first")))))
END
}

left_files_are_closed() {
  echo '(error "left")' > "$work/left.scm"
  says '(left read)' << END
(define (kind file) (guard (e (#t (or (and (file-error? e) (error-object-message e)) 'left))) (load file) 'read))
(define (again n) (let ((last (kind "$work/left.scm"))) (if (= n 0) last (again (- n 1)))))
(define last (again 1100))
(write (list last (if (file-exists? "$work/left.scm") 'read 'gone)))
END
}

lost_output_is_told() {
  "${scheme[@]}" -e 1 > /dev/full 2> "$work/out"
  [ $? = 1 ] && grep -qx 'scheme: output was lost: No space left on device' "$work/out" || fail "/dev/full: $(cat "$work/out")"
  says '(file "cannot write: No space left on device:")' << 'END'
(define port (open-output-file "/dev/full"))
(write 1 port)
(write (guard (e (#t (list (error-kind e) (error-object-message e)))) (close-port port)))
END
}

low_stack_limits_are_raised() {
  local out
  out=$(ulimit -S -s 128 && "${scheme[@]}" -e '(+ 40 2)' 2>&1)
  [ "$out" = 42 ] || fail "128 KiB: $out"
}

# Also when the thread has ended, and a new one has got its memory.
fibers_stay_with_their_thread() {
  says '(1 "fiber belongs to another thread" 1 "fiber belongs to another thread")' << 'END'
(define (in-thread thunk) (thread-join! (spawn thunk)))
(define (resume fiber)
  (guard (e ((error-object? e) (error-object-message e))) (fiber-resume fiber)))
(define (try)
  (let ((fiber #f))
    (let ((first (in-thread (lambda () (set! fiber (make-fiber (lambda () (fiber-yield 1) 2))) (resume fiber)))))
      (list first (in-thread (lambda () (resume fiber)))))))
(write (append (try) (try)))
END
}

# What only slots of suspended fibers lead to, over a collection, when fibers made before and after these have ended.
fibers_keep_their_values() {
  says '((#t #t #t #t #t) (#t #t #t))' << 'END'
(define (hold n)
  (let ((fiber (make-fiber (lambda () (let ((l (list n (vector n (+ n 0.5))))) (fiber-yield n) l)))))
    (fiber-resume fiber)
    (cons n fiber)))
(define fibers (map hold '(1 2 3 4 5 6 7 8)))
(define (kept? n) (equal? (fiber-resume (cdr (assv n fibers))) (list n (vector n (+ n 0.5)))))
(define (churn n) (if (> n 0) (begin (vector n (+ n 0.25)) (list n n) (churn (- n 1)))))
(define first (map kept? '(8 7 1 2 5)))
(gc)
(churn 100000)
(write (list first (map kept? '(3 4 6))))
END
}

# Threads that intern the same names at the same time.
symbols_of_threads_are_one() {
  says '(#t #t #t #t)' << 'END'
(define (intern i from) (string->symbol (string-append "name-" from (number->string i))))
(define (names from) (let loop ((i 3000) (l '())) (if (= i 0) l (loop (- i 1) (cons (intern i from) l)))))
(define (in-threads from) (map thread-join! (map (lambda (k) (spawn (lambda () (names from)))) '(1 2 3 4))))
(define (same? a b) (or (null? a) (and (eq? (car a) (car b)) (same? (cdr a) (cdr b)))))
(define (all-same? lists) (or (null? (cdr lists)) (and (same? (car lists) (cadr lists)) (all-same? (cdr lists)))))
(write (map (lambda (from) (all-same? (in-threads from))) '("a" "b" "c" "d")))
END
}

# What is left of the stack for a handler ends like the stack: in a fiber and in the main program.
handlers_recurse_too_deep() {
  local mode
  cat > "$work/p.scm" << 'END'
(define (deep n) (+ 1 (deep (+ n 1))))
(define (rec n) (let ((a (list n)) (b (* n 2)) (c (+ n 3)) (d (- n 1))) (+ (rec (+ n 1)) (car a) b c d)))
(define (body) (call/cc (lambda (k) (with-exception-handler (lambda (e) (k (rec 0))) (lambda () (deep 0))))))
(define first (make-fiber body))
(define second (make-fiber (lambda () (fiber-yield 1) 2)))
(fiber-resume second)
(write (guard (e (#t (error-kind e))) (fiber-resume first)))
(write (fiber-resume second))
(newline)
(body)
END
  for mode in --interp --jit --arena '--jit --trampolines'; do
    # shellcheck disable=SC2086
    "${scheme[@]}" $mode "$work/p.scm" > "$work/out" 2>&1
    [ $? = 1 ] || fail "$mode: exit $?: $(head -c 300 "$work/out")"
    [ "$(cat "$work/out")" = $'stack2\n'"$work/p.scm:2: recursion too deep" ] || fail "$mode: $(head -c 300 "$work/out")"
  done
}

# An accessor takes the type from the name, which a later definition gives to a type of fewer fields.
accessors_of_another_type_are_errors() {
  says '(range range range range range 1)' << 'END'
(define-record-type thing (make a b c d e f) thing? (a thing-a) (f thing-f set-f!))
(define-record-type thing (make a) thing? (a thing-a))
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(define one (make 1))
(define (get) (thing-f one))
(define (set) (set-f! one 5))
(write (list (kind get) (kind set) (kind get) (kind set) (kind (lambda () (%record-ref one thing 40000))) (thing-a one)))
END
}

# Who waits for input flushes the output first, also while another thread's write waits for room in a pipe.
output_beside_a_reader_is_written_once() {
  local mode
  cat > "$work/p.scm" << END
(define (writer) (display (make-string 2000000 #\\a)))
(define (reader) (if (file-exists? "$work/go") (with-input-from-file "/dev/null" read-char) (reader)))
(for-each thread-join! (map spawn (list writer reader)))
END
  cat > "$work/drain.py" << 'END'
import fcntl, glob, os, struct, sys, termios
process, folder = sys.argv[1:]
def count(): return struct.unpack("i", fcntl.ioctl(0, termios.FIONREAD, b"0123"))[0]
def waits(task):
    with open(task, encoding="ascii") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "S"
while count() < fcntl.fcntl(0, 1032): # F_GETPIPE_SZ
    os.sched_yield()
open(folder + "/go", "w").close()
asleep = 0
while asleep < 100: # the reader too, in its write or for the lock
    asleep = asleep + 1 if all(map(waits, glob.glob(f"/proc/{process}/task/*/stat"))) else 0
print(len(sys.stdin.read()))
END
  mkfifo "$work/pipe"
  for mode in --interp --jit; do
    rm -f "$work/go"
    "${scheme[@]}" $mode "$work/p.scm" > "$work/pipe" &
    [ "$(python3 "$work/drain.py" $! "$work" < "$work/pipe")" = 2000000 ] || fail "$mode: a text of another length"
    wait $! || fail "$mode: exit $?"
  done
}

# The descriptor of a port that was shut is the next file's.
closed_ports_are_no_defaults() {
  says '(file file)#t"other"' << END
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(define (closed thunk) (lambda () (close-port (current-output-port)) (thunk)))
(define (in-other) (kind (lambda () (display "secret"))))
(define other #f)
(define (second) (set! other (open-output-file "$work/other")) (let ((first (in-other))) (list first (in-other))))
(write (with-output-to-file "$work/one" (closed second)))
(write 'other other)
(close-port other)
(write (file-exists? "$work/one"))
(write (symbol->string (with-input-from-file "$work/other" read)))
END
}

# A storm: another thread makes a list shorter between a look at its length and the walk.
lists_shorten_under_their_readers() {
  says 'right' << 'END'
(define l (make-list 2000 #\a))
(define middle (list-tail l 900))
(define kept (cdr middle))
(define stop #f)
(define (cut) (if (not stop) (begin (set-cdr! middle '()) (set-cdr! middle kept) (cut))))
(define cutting (spawn cut))
(define caught 0)
(define (read-by copy) (guard (e (#t (set! caught (+ caught 1)))) (copy l)))
(define (again n copy) (if (and (> n 0) (< caught 3)) (begin (read-by copy) (again (- n 1) copy))))
(again 2000 list->vector)
(set! caught 0)
(again 2000 list->string)
(define (measure n) (if (> n 0) (begin (list? l) (measure (- n 1)))))
(measure 20000)
(set! stop #t)
(thread-join! cutting)
(write 'right)
END
}

files_are_written_at_the_end() {
  local end mode
  for end in 1 '(exit 0)' '(car 1)' '(thread-join! (spawn (lambda () (exit 0))))'; do
    for mode in --interp --jit; do
      rm -f "$work/one" "$work/two"
      cat > "$work/p.scm" << END
(define one (open-output-file "$work/one"))
(close-port (open-output-file "$work/none"))
(define two (open-output-file "$work/two"))
(write 'first one)
(write 'second two)
$end
END
      "${scheme[@]}" $mode "$work/p.scm" > /dev/null 2>&1
      [ "$(cat "$work/one" "$work/two")" = firstsecond ] || fail "$mode, $end: $(cat "$work/one" "$work/two")"
    done
  done
}

# Handlers of the thunk's own work, and those of the place that the program leaves do not.
exit_runs_thunks_to_their_end() {
  local out mode
  cat > "$work/p.scm" << 'END'
(define (guarded) (guard (e (#t (display "caught "))) (raise 'x)))
(with-exception-handler (lambda (e) (display "outside ")) (lambda ()
  (dynamic-wind void
    (lambda () (dynamic-wind void (lambda () (exit 4)) (lambda () (guarded) (display "inner "))))
    (lambda () (display "outer ") (car 1)))))
END
  for mode in --interp --jit --arena; do
    out=$("${scheme[@]}" $mode "$work/p.scm" 2>&1)
    [ "$?$out" = '4caught inner outer ' ] || fail "$mode: $out"
  done
  "${scheme[@]}" -e '(exit 256)'
  [ $? = 255 ] || fail '(exit 256)'
  "${scheme[@]}" -e '(exit -1)'
  [ $? = 255 ] || fail '(exit -1)'
  "${scheme[@]}" -e '(exit 254)'
  [ $? = 254 ] || fail '(exit 254)'
}

# Wherever the definition of a built-in's name stands; a name that nothing defines is the built-in.
definitions_hold_in_the_whole_file() {
  says '(mine mine mine 5 mine 1)' << 'END'
(define (f x) (list (car x) (cdr x) (cons 1 2) (vector-ref x) (vector-length x) (length '(1))))
  (define (car x) 'mine)
(begin (define x 1) (begin (define (cdr x) 'mine)))
(define-values (unused cons) (values 1 (lambda (a b) 'mine)))
(define-record-type thing (make length) thing? (length vector-ref))
(set! vector-length (lambda (x) 'mine))
(write (f (make 5)))
END
  says 'seenread' << 'END'
(display "seen")
(write (guard (e (#t (error-kind e))) (read (open-input-string "(1"))))
END
  printf '%s\n' '(display "seen")' '(car' > "$work/open.scm"
  says 'seenread' << END
(write (guard (e (#t (error-kind e))) (load "$work/open.scm")))
END
}

wrong_data_are_errors() {
  says '(read read read (1 2) read "ab" syntax type type type type type)#<a x: 1>' << 'END'
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(define (text . chars) (lambda () (read (open-input-string (apply string chars)))))
(define circle (list 1 2))
(set-cdr! (cdr circle) circle)
(define port (open-output-file "/dev/null"))
(write (list (kind (text #\( #\1 #\])) (kind (text #\[ #\1 #\))) (kind (text #\# #\( #\1 #\])) (kind (text #\[ #\1 #\space #\2 #\]))
             (kind (text #\" #\\ #\space #\" #\")) (kind (text #\" #\a #\\ #\space #\newline #\space #\b #\"))
             (kind (lambda () (eval '(let ((x 1) (x 2)) x)))) (kind (lambda () (string=? 5))) (kind (lambda () (char=? 5)))
             (kind (lambda () (make-list -1))) (kind (lambda () (last-pair circle))) (kind (lambda () (get-output-string port)))))
(define names (list 'x 'y))
(define record (%record (%make-rtd 'a names) 1 2))
(set-cdr! names '())
(write record)
END
}

numbers_keep_their_kind() {
  says '(+nan.0 +nan.0 +nan.0)(#f #f 100 type "2.5" range 1 -1 1 0.25 0.0)("-: not a number:" "+: not a number:")((r7rs) no)' << 'END'
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(define (message thunk) (guard (e (#t (error-object-message e))) (thunk)))
(write (list (max +nan.0 1 2) (max 1 +nan.0) (min 2 +nan.0 1)))
(write (list (string->number "#e1.5") (string->number "#e1e30") (string->number "#e1e2") (kind (lambda () (number->string 2.5 2)))
             (number->string 2.5 10) (kind (lambda () (expt 0 -1))) (expt 1 -5) (expt -1 -3) (expt -1 -4) (expt 2 -2) (expt 10 -400)))
(define (less a) (- a 1))
(define (more a) (+ a 1))
(write (list (message (lambda () (less 'a))) (message (lambda () (more 'a)))))
(write (list (features) (cond-expand (full-unicode 'yes) (else 'no))))
END
}

lists_are_taken_whole() {
  says '(6 9 3 2 #t #t #f 5 (error error error))#f' << 'END'
(define (kind thunk) (guard (e (#t (error-kind e))) (thunk)))
(define (third f) (kind (lambda () (f '(1) '(2) '(3)))))
(write (list (fold + 0 '(1 2 3)) (fold + 0 '(1 2) '(2 4 5)) (every + '(1 2) '(1 1)) (every (lambda (x) (+ x 1)) '(0 1))
             (every car '()) (every + '(1) '()) (every < '(1 3 0) '(2 2 1)) (any + '(2) '(3))
             (list (third (lambda l (apply fold + 0 l))) (third (lambda l (apply any + l))) (third (lambda l (apply every + l))))))
(define (down n) (every (lambda (n) (and (> n 0) (down (- n 1)))) (list n)))
(write (down 1000000))
END
}

mutants() {
  breaks errors 's/ - SMALL_FRAME - FRAME_HEADER;/;/' scheme_handlers_recurse_too_deep
  breaks interp 's/UNLIKELY(index >= .*/0) {/' scheme_accessors_of_another_type_are_errors
  breaks jit_ops 's/DO_CMP, R1, pc.1..a);/DO_CMP, R1, -1);/' scheme_accessors_of_another_type_are_errors
  breaks ports 's/flush_shared(ctx, ctx->vm->output)/port_flush(ctx->vm->output)/' scheme_output_beside_a_reader_is_written_once
  breaks ports 's/if (!AS(port, port)->is_open)/if (0)/' scheme_closed_ports_are_no_defaults
  breaks lists 's/if (!is_pair(.at))/if (0)/' scheme_lists_shorten_under_their_readers
  breaks lists 's/is_pair(slow) ? CDR(slow) : list/CDR(slow)/' scheme_lists_shorten_under_their_readers
  breaks vm 's/file = vm->files; file/file = NULL; file/' scheme_files_are_written_at_the_end
  breaks errors 's/ctx->exit_code < 0 ? CAR(winder) : V_NIL/CAR(winder)/' scheme_exit_runs_thunks_to_their_end
}

if [ $# = 0 ]; then
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=mutants:600
  for c in $cases; do
    IFS=: read -r name limit mode <<< "$c"
    echo "scheme_$name $limit 0 ${mode:--}"
  done
  exit 0
fi
"${1#scheme_}"
