#!/bin/bash
# SPDX-License-Identifier: MIT
# Images of the Scheme (--save, --load): one process writes what another begins with, whose pool lies
# elsewhere and which has compiled nothing yet. Without arguments it lists its cases, with a name it
# runs one.
. tests/support/script.sh
programs=hosts/scheme/programs
# Behind the words of an emulator, where the programs are another machine's.
read -ra scheme <<< "${CODEHEAP_TEST_EMULATOR:-} ${CODEHEAP_BUILD:-build}/scheme"
make_work
image=$work/image

cases="image_programs_go_on_in_other_processes:240 image_modes_share_images:240
image_collections_everywhere:600 image_keep_identity:120 image_keep_state:120 image_errors_name_lines:120
image_are_the_same_bytes_each_time:240 image_name_code_elsewhere:120
image_name_trampolines_elsewhere:120 image_unwind_in_gdb:120 image_refuse_what_is_of_a_process:120
image_leave_files_alone:120 image_refuse_each_wrong_byte:300 image_survive_sealed_damage:300
image_are_flat_for_deep_data:120 image_wait_for_no_thread:120 image_begin_vms_beside:120
image_show_traces:120"

# run SWITCHES..: standard output goes to out, standard error to err.
run() {
  "${scheme[@]}" "$@" > "$work/out" 2> "$work/err" < /dev/null ||
    fail "$*: exit $?: $(head -c 300 "$work/err")"
}

# refused TEXT SWITCHES..: exit code 1, and an error that holds the text.
refused() {
  local text=$1 status
  shift
  "${scheme[@]}" "$@" > "$work/out" 2> "$work/err" < /dev/null
  status=$?
  [ $status = 1 ] || fail "$*: exit $status, not 1: $(head -c 300 "$work/err")"
  grep -qF -- "$text" "$work/err" || fail "$*: no '$text' in: $(head -c 500 "$work/err")"
}

# shown WANTED: what the last run wrote.
shown() {
  [ "$(cat "$work/out")" = "$1" ] || fail "wanted: $1"$'\n'"got: $(cat "$work/out")"
}

# in_three PROGRAM SWITCHES..: the program cut between its forms, each part in a process of its own
# that begins with the image of the part before; together they write what the program writes.
in_three() {
  local program=$1 name parts
  shift
  name=${program%.scm}
  rm -f "$work"/part.*
  # A fiber that waits, in a global, is in no image: that program's later parts are one.
  parts=$(awk '/^\(define echo/ { exit } /^\(/ { n++ } END { print n }' "$program")
  awk -v forms="$parts" -v file="$work/part." '
    /^\(/ && part < 2 && ++n > (part + 1) * forms / 3 { part++ }
    { print > (file part + 0) }' "$program"
  run "$@" --save="$image.0" "$work/part.0"
  cp "$work/out" "$work/all"
  run "$@" --load="$image.0" --save="$image.1" "$work/part.1"
  cat "$work/out" >> "$work/all"
  run "$@" --load="$image.1" "$work/part.2"
  cat "$work/out" >> "$work/all"
  cmp "$work/all" "$name.out" || fail "$program $*: another output"
}

all_in_three() {
  local p
  for p in "$programs"/*.scm; do
    [ ! -f "${p%.scm}.out" ] || in_three "$p" "$@"
  done
}

image_programs_go_on_in_other_processes() { all_in_three --jit; }

image_modes_share_images() {
  local mode
  for mode in --interp --arena '--jit --pool=65536 --page=16384' '--jit --trampolines'; do
    # shellcheck disable=SC2086
    for p in closures records strings; do in_three "$programs/$p.scm" $mode; done
  done
  run --interp --save="$image" "$programs/deriv.scm"
  run --jit --load="$image" -e "(deriv '(+ (* 3 x x) 5))"
  cp "$work/out" "$work/jit"
  run --interp --load="$image" -e "(deriv '(+ (* 3 x x) 5))"
  cmp "$work/jit" "$work/out" || fail 'another derivative'
}

# While objects are made, and while the programs run that use them.
image_collections_everywhere() {
  local p often='higher trees'
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || often="$often closures quicksort"
  for p in deriv records; do in_three "$programs/$p.scm" --jit --gc-every-stub; done
  export GC_FREE_SPACE_DIVISOR=400
  for p in $often; do in_three "$programs/$p.scm" --jit; done
  cat > "$work/p.scm" << 'END'
(define (make i) (if (= i 0) '() (cons (vector i (number->string i) (* i 1.5)) (make (- i 1)))))
(define (sum l)
  (let loop ((l l) (n 0))
    (if (null? l) n
        (loop (cdr l)
              (+ n (vector-ref (car l) 0) (string->number (vector-ref (car l) 1))
                 (vector-ref (car l) 2))))))
(define data (make 3000))
END
  run --save="$image" "$work/p.scm"
  run --interp --gc-every-call=50 --load="$image" --save="$image.1" -e '(begin (gc) (sum data))'
  shown 15755250.0
  cmp "$image" "$image.1" || fail 'collections changed the image'
}

# One object stays one, in cycles too; each kind of object is what it was.
image_keep_identity() {
  cat > "$work/a.scm" << 'END'
(define s (string-copy "shared"))
(define cycle (list 1 2 3))
(set-cdr! (cddr cycle) cycle)
(define v (vector s s 1.5 cycle car 'sym #\λ '() #t (if #f #f) (eof-object) -4611686018427387904))
(vector-set! v 3 v)
(define flo (* 1.0 2.5))
(define both (cons flo flo))
(define-record-type point (make-point x y) point? (x point-x set-point-x!) (y point-y))
(define here (make-point s '(1 . 2)))
(set-point-x! here here)
(define other-point? point?)
(define condition (guard (e (#t e)) (error "told" 1 'two "three")))
(define many (values 1 2 3))
(define bytes (bytevector 1 2 255))
(define odd (string->symbol "a symbol (odd) λ"))
(define later (delay (begin (set! runs (+ runs 1)) (* 6 7))))
(define runs 0)
(define out (current-output-port))
(define lock (make-mutex))
(define made (gensym))
(define numbers (list 0 -1 4611686018427387903 1e300 -0.0 (/ 0. 0.) (/ 1. 0.)))
(define text "λ𝄞\x0; end")
(define my-car car)
(set! cadddr cadddr)
(define (car x) (list 'mine x))
(define-values (even2? odd2?)
  (let () (define (e n) (if (= n 0) #t (o (- n 1)))) (define (o n) (if (= n 0) #f (e (- n 1))))
    (values e o)))
END
  cat > "$work/b.scm" << 'END'
(define (check name ok) (if (not ok) (begin (write name) (newline))))
(check 'string (and (equal? s "shared") (eq? s (vector-ref v 0)) (eq? s (vector-ref v 1))))
(string-set! s 0 #\S)
(check 'mutable (equal? (vector-ref v 1) "Shared"))
(check 'cycle (and (eq? cycle (cdddr cycle)) (eq? v (vector-ref v 3))))
(check 'prim (and (eq? my-car (vector-ref v 4)) (= 1 (my-car '(1)))))
(check 'symbol (eq? 'sym (vector-ref v 5)))
(check 'immediates (equal? (list (vector-ref v 6) (vector-ref v 7) (vector-ref v 8))
                           (list #\λ '() #t)))
(check 'eof (eof-object? (vector-ref v 10)))
(check 'fixnum (= (vector-ref v 11) -4611686018427387904))
(check 'flonum (and (eq? flo (my-car both)) (eq? flo (cdr both)) (= flo 2.5)))
(check 'record (and (point? here) (other-point? here) (eq? here (point-x here))
                    (equal? (point-y here) '(1 . 2))))
(check 'type (point? (make-point 1 2)))
(check 'condition (and (equal? (error-object-message condition) "told")
                       (equal? (error-object-irritants condition) '(1 two "three"))))
(check 'values (equal? (call-with-values (lambda () many) list) '(1 2 3)))
(check 'bytes (equal? bytes (bytevector 1 2 255)))
(check 'odd (eq? odd (string->symbol "a symbol (odd) λ")))
(check 'promise (and (= runs 0) (= (force later) 42) (= (force later) 42) (= runs 1)))
(check 'port (eq? out (current-output-port)))
(check 'mutex (begin (mutex-lock! lock) (mutex-unlock! lock) #t))
(check 'gensym (let loop ((i 0)) (or (= i 5000) (and (not (eq? made (gensym))) (loop (+ i 1))))))
(define (fourth l) (cadddr l))
(set! cadddr (lambda (l) 'mine))
(check 'builtin (eq? (fourth '()) 'mine))
(write numbers)
(newline)
(check 'text (equal? text "λ𝄞\x0; end"))
(check 'redefined (equal? (car 5) '(mine 5)))
(check 'mutual (and (even2? 1000) (not (odd2? 1000))))
(check 'eval (= 3 (eval '(+ 1 2) (interaction-environment))))
(check 'prelude (equal? (map + '(1 2) '(10 20)) '(11 22)))
(check 'caught (equal? 'handled (guard (e ((error-object? e) 'handled)) (my-car 5))))
END
  local wanted='(0 -1 4611686018427387903 1.0e300 -0.0 +nan.0 +inf.0)' mode
  for mode in --jit --interp; do
    run $mode --save="$image" "$work/a.scm"
    run $mode --load="$image" --save="$image.1" -e '#t'
    run $mode --load="$image" "$work/b.scm"
    shown "$wanted"
    run $mode --load="$image.1" "$work/b.scm"
    shown "$wanted"
  done
}

# What closures hold goes on where it was; what was in progress does not.
image_keep_state() {
  cat > "$work/a.scm" << 'END'
(define (make-counter) (let ((n 0)) (lambda () (set! n (+ n 1)) n)))
(define a (make-counter))
(define b (make-counter))
(define pair (let ((n 100)) (cons (lambda () (set! n (+ n 1)) n) (lambda () n))))
(define depth (make-parameter 10 (lambda (x) (* x 2))))
(define image #f)
(a) (a) (b) ((car pair))
(define (inside k) (if (= k 0) (begin (save-image image) 0) (+ 1 (inside (- k 1)))))
END
  run --jit "$work/a.scm" -e "(begin (set! image \"$image\") (parameterize ((depth 1)) (inside 50)))" \
    -e '(list (a) (b))'
  shown '50
(3 2)'
  run --jit --load="$image" --save="$image" -e '(list (a) (b) ((cdr pair)) ((car pair)) ((cdr pair)) (depth))'
  shown '(3 2 101 102 102 2)'
  run --jit --load="$image" -e '(list (a) (b) ((cdr pair)) (inside 0))'
  shown '(4 3 102 0)'
}

# Errors are told with the file and the line of the source that the image was made from.
image_errors_name_lines() {
  local mode
  printf '%s\n' '(define (f x)' '(car x))' '(define (g x)' '(+ 1 (f x)))' '(define (rest x . more) more)' \
    '(define seen (guard (e (#t e)) (error "seen" 1)))' > "$work/e.scm"
  run --save="$image" "$work/e.scm"
  for mode in --interp --jit --arena; do
    refused 'e.scm:2: car: not a pair: 5' $mode --load="$image" -e '(g 5)'
    run $mode --load="$image" -e "(g '(6))"
    shown 7
    refused 'e.scm:6: seen 1' $mode --load="$image" -e '(raise seen)'
    run $mode --load="$image" -e '(list (rest 1 2) (rest 1))'
    shown '((2) ())'
  done
}

# Nothing of addresses, of hash tables or of the architecture's code is in a file.
image_are_the_same_bytes_each_time() {
  local p
  for p in deriv records closures redefine matrix; do
    run --jit --save="$image" "$programs/$p.scm"
    run --interp --stack=1048576 --save="$image.1" "$programs/$p.scm"
    cmp "$image" "$image.1" || fail "$p: two processes, two images"
    run --jit --load="$image" --save="$image.2" -e '#t'
    cmp "$image" "$image.2" || fail "$p: the second generation is another"
    run --jit --load="$image.2" -e "(begin (save-image \"$image.3\") (save-image \"$image.4\"))"
    cmp "$image" "$image.3" && cmp "$image" "$image.4" || fail "$p: the third generation is another"
  done
}

# names FILE: of a perf map's lines. addresses FILE: of one procedure's.
names() { cut -d' ' -f3- "$1"/perf-*.map | grep '^scm::' | sort -u; }
addresses() { grep ' scm::deep ' "$1"/perf-*.map | cut -d' ' -f1 | sort; }

procedures() {
  cat > "$work/named.scm" << 'END'
(define (deep x)
  (if (< x 1)
      0
      (+ 1
         (deep (- x 1)))))
(define anonymous (list (lambda (x) (deep x))))
(define (again k)
  (if (> k 0) (begin ((car anonymous) 9) ((eval '(car (list (lambda () 1))))) (again (- k 1)))))
END
}

# named_as_before SWITCHES..: a process that loads has code with the names that the one has which
# compiled the program itself, at other addresses. Pools of several sizes: where addresses are not
# random, one of them lies elsewhere.
named_as_before() {
  local pool run=0
  procedures
  mkdir -p "$work/direct"
  CODEHEAP_DEAD_NAMES=kept CODEHEAP_PERF_MAP_DIR=$work/direct run "$@" --sinks=unwind,perfmap "$work/named.scm" \
    -e '(again 50)'
  run "$@" --save="$image" "$work/named.scm"
  for pool in 0 33554432 268435456; do
    mkdir -p "$work/loaded$run"
    CODEHEAP_DEAD_NAMES=kept CODEHEAP_PERF_MAP_DIR=$work/loaded$run run "$@" --sinks=unwind,perfmap \
      --load="$image" --pool=$pool -e '(again 50)'
    names "$work/direct" | grep -vE '^scm::toplevel (named.scm|prelude):' > "$work/wanted"
    grep -q '^scm::deep named.scm:1$' "$work/wanted" || fail "direct: $(cat "$work/wanted")"
    names "$work/loaded$run" | diff "$work/wanted" - > "$work/diff" || fail "$(cat "$work/diff")"
    addresses "$work/direct" > "$work/here"
    addresses "$work/loaded$run" > "$work/there"
    [ -s "$work/there" ] || fail 'no address'
    comm -12 "$work/here" "$work/there" | grep -q . || return 0
    run=$((run + 1))
  done
  fail "at the same addresses, with pools of any size: $(cat "$work/there")"
}

image_name_code_elsewhere() { named_as_before --jit; }
image_name_trampolines_elsewhere() { named_as_before --interp --trampolines; }

image_unwind_in_gdb() {
  local mode
  cat > "$work/walk.scm" << 'END'
(define (leaf n) (gc) n)
(define (walk n) (if (= n 0) (leaf 42) (+ 1 (walk (- n 1)))))
(define (warm k) (if (= k 0) 'done (begin (walk 3) (warm (- k 1)))))
END
  run --save="$image" "$work/walk.scm"
  printf '%s\n' 'set pagination off' 'break collect' 'ignore 1 40' run backtrace > "$work/gdb"
  for mode in '--interp --trampolines' --jit; do
    # shellcheck disable=SC2086
    gdb -nx -batch -x "$work/gdb" --args "${scheme[@]}" $mode --sinks=unwind,gdb \
      --load="$image" -e '(begin (warm 60) 1)' > "$work/out" 2> "$work/err" < /dev/null
    skip_where_ptrace_is_refused "$work/err"
    [ "$(grep -oE 'scm::(leaf|walk|warm) walk.scm:[0-9]|\bmain \(argc' "$work/out" | uniq |
      tr '\n' ' ')" = 'scm::leaf walk.scm:1 scm::walk walk.scm:2 scm::warm walk.scm:3 main (argc ' ] ||
      fail "$mode: $(grep '^#' "$work/out")"
  done
}

# unsaved TEXT PROGRAM: no image, no rest of one, and the text says where the object is.
unsaved() {
  echo before > "$image"
  refused "$1" --save="$image" -e "$2"
  [ "$(cat "$image")" = before ] || fail "$2: the file was changed"
  [ "$(find "$work" -name '*.tmp')" = '' ] || fail "$2: a rest is left"
}

image_refuse_what_is_of_a_process() {
  unsaved 'a port cannot be saved: global p, cdr 3 times, car, element 1' \
    '(define p (list 1 2 3 (vector 1 (open-input-string "x"))))'
  unsaved 'a continuation cannot be saved: global k' '(define k (call/cc (lambda (k) k)))'
  unsaved 'a fiber cannot be saved: global f, variable 1 of procedure lambda' \
    '(define f (let ((f (make-fiber car))) (lambda () f)))'
  unsaved 'a fiber cannot be saved: global f, variable 1 of procedure lambda, its value' \
    '(define f (let ((f 1)) (set! f (make-fiber car)) (lambda () f)))'
  unsaved 'a thread cannot be saved: global r, field second' \
    '(begin (define-record-type two (make-two first second) two? (first one) (second other))
            (define r (make-two 1 (make-thread car))))'
  unsaved 'a locked mutex cannot be saved: global m' '(begin (define m (make-mutex)) (mutex-lock! m))'
  unsaved 'a port cannot be saved: global long, cdr 100000 times, car' \
    '(define long (let loop ((i 0) (l (list (open-output-string)))) (if (= i 100000) l (loop (+ i 1) (cons i l)))))'
  run -e '(define p (list (open-input-string "x")))' \
    -e "(guard (e (#t (write (error-kind e)) (newline) (display (error-object-message e))))
          (save-image \"$image\"))"
  grep -qx file "$work/out" || fail "$(cat "$work/out")"
  grep -q 'a port cannot be saved: global p, car' "$work/out" || fail "$(cat "$work/out")"
}

# A save that fails leaves what was there; a program that fails saves nothing.
image_leave_files_alone() {
  echo before > "$work/file"
  ln -s file "$work/link"
  mkfifo "$work/pipe"
  mkdir "$work/dir"
  refused 'no plain file' --save="$work/link" -e 1
  refused 'no plain file' --save="$work/pipe" -e 1
  refused 'no plain file' --save="$work/dir" -e 1
  refused 'no plain file' --save=/dev/full -e 1
  refused 'No such file' --save="$work/none/image" -e 1
  refused 'unbound' --save="$work/file" -e '(car unbound-name)'
  "${scheme[@]}" --save="$work/file" -e '(exit 3)' < /dev/null
  [ $? = 3 ] || fail 'the exit code of (exit 3)'
  (
    # Which bounds the code pool's file, too, where there is one.
    ulimit -f 8
    trap '' XFSZ
    refused 'File too large' --interp --save="$work/file" -e 1
  ) || exit 1
  [ "$(cat "$work/file")" = before ] || fail 'the file was changed'
  [ "$(find "$work" -name '*.tmp')" = '' ] || fail "a rest is left: $(ls "$work")"
  run --save="$work/file" -e '(begin (define x 5) (exit))'
  run --load="$work/file" -e x
  shown 5
  # Who could not read the file cannot read its successor.
  chmod 640 "$work/file"
  run --save="$work/file" -e 1
  [ "$(stat -c %a "$work/file")" = 640 ] || fail "the mode of the file became $(stat -c %a "$work/file")"
  (umask 027 && run --save="$work/new" -e 1) || exit 1
  [ "$(stat -c %a "$work/new")" = 640 ] || fail "a new file has the mode $(stat -c %a "$work/new")"
  refused 'No such file' --load="$work/none" -e 1
  refused 'no plain file' --load="$work/dir" -e 1
  refused 'no plain file' --load="$work/pipe" -e 1
  refused 'not an image' --load="$programs/fib.scm" -e 1
  : > "$work/empty"
  refused 'not an image' --load="$work/empty" -e 1
  if [ "$(id -u)" = 0 ]; then
    chown :12345 "$work/file"
    run --save="$work/file" -e 1
    [ "$(stat -c '%g %a' "$work/file")" = '12345 640' ] || fail "became $(stat -c '%g %a' "$work/file")"
    chown 12345 "$work/file"
    refused 'another user' --save="$work/file" -e 1
  fi
}

# Each byte of an image changed, and each of its beginnings, is told from an image.
image_refuse_each_wrong_byte() {
  run --save="$image" -e '(define x (list 1 "two" (vector 3.5 (lambda (y) (+ x y)))))'
  cat > "$work/p.scm" << END
(define count $(stat -c %s "$image"))
(define all
  (let* ((port (open-binary-input-file "$image")) (bytes (read-bytevector (+ count 1) port)))
    (close-port port)
    bytes))
END
  cat >> "$work/p.scm" << 'END'
(define accepted 0)
(define (judge bytes)
  (if (not (string? (image-problem bytes))) (set! accepted (+ accepted 1))))
(write (list (= (bytevector-length all) count) (image-problem all)))
(let loop ((i 0))
  (if (< i count)
      (let ((byte (bytevector-u8-ref all i)))
        (bytevector-u8-set! all i (modulo (+ byte 1 (modulo (* i 7) 255)) 256))
        (judge all)
        (bytevector-u8-set! all i byte)
        (loop (+ i 1)))))
(write accepted)
(let loop ((i 0))
  (if (< i count)
      (begin (judge (bytevector-copy all 0 i)) (loop (+ i 1)))))
(write accepted)
(write (image-problem all))
END
  run "$work/p.scm"
  shown '(#t #f)00#f'
  printf x >> "$image"
  refused 'a part of a word at its end' --load="$image" -e 1
}

# What somebody has changed and sealed again is either refused by its structure or loaded: no crash,
# no memory without end. Words of all kinds are changed: heads, numbers of objects, instructions.
image_survive_sealed_damage() {
  run --save="$image" "$programs/records.scm" -e '(define built-ins (list car read (current-output-port)))
    (define (count f l) (if (null? l) 0 (+ (length (apply f l)) (count f (cdr l)))))
    (define (counter n) (lambda (m) (set! n (+ n m)) n))'
  cat > "$work/damage.py" << 'END'
import random, re, struct, subprocess, sys
image, target, tries, command = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
data = open(image, "rb").read()
words = list(struct.unpack(f"<{len(data) // 8}Q", data))
MASK = 2 ** 64 - 1

def seal(words):
    sum = 14695981039346656037
    for i, word in enumerate(words):
        if i != 7:
            sum ^= word
            sum = ((sum << 29 | sum >> 35) & MASK) * 0x100000001b3 & MASK
    words[7] = sum

# What an object is, by its words: kinds and their lengths as hosts/scheme/image.h has them.
PAIR, CLOSURE, VECTOR, STRING, RECORD, PRIM, RTD, CELL, CODE, PORT, KINDS = 1, 5, 6, 8, 10, 11, 12, 13, 15, 17, 18
FIXED = {1: 2, 2: 1, 3: 1, 5: 1, 10: 1, 12: 3, 13: 3, 14: 5, 15: 5, 17: 1}

def objects():
    at = 8
    for number in range(1, words[3] + 1):
        kind, length = words[at] & 0xff, words[at] >> 8
        size = FIXED.get(kind, 0) + (
            length + (words[at + 2] >> 32) + (length + 1) // 2 if kind == CODE else
            length if kind in (5, 6, 7, 10) else (length + 1) // 2 if kind in (8, 9) else
            (length + 7) // 8 if kind in (4, 11) else 0)
        yield number, kind, length, at + 1
        at += 1 + size
    assert at == len(words)

def run(changed):
    seal(changed)
    open(target, "wb").write(struct.pack(f"<{len(changed)}Q", *changed))
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)

def must_refuse(what, at, word, text=b"is malformed", of=words):
    changed = list(of)
    assert changed[at] != word, what
    changed[at] = word
    done = run(changed)
    if done.returncode != 1 or text not in done.stderr:
        sys.exit(f"{what}: exit {done.returncode}: {done.stdout!r} {done.stderr[:300]!r}")

def each_rule():
    first = {}
    for number, kind, length, at in objects():
        if length or kind in (PAIR, RTD, CELL, CLOSURE, PORT):
            first.setdefault(kind, (number, length, at))
    reference = lambda kind: first[kind][0] << 2
    beyond = words[3] + 1 << 2
    _, length, code = first[CODE]
    must_refuse("one object less", 3, words[3] - 1, b"behind its last object")
    must_refuse("one object more", 3, words[3] + 1, b"has no room")
    must_refuse("kind", first[PAIR][2] - 1, KINDS, b"no such kind")
    must_refuse("port", first[PORT][2], 3)
    must_refuse("one field less", first[RTD][2] + 2, words[first[RTD][2] + 2] - 1)
    must_refuse("one field more", first[RTD][2] + 2, words[first[RTD][2] + 2] + 1)
    must_refuse("format", 1, 3, b"of format 3")
    must_refuse("instruction set", 4, 5, b"other instructions")
    must_refuse("events", 6, beyond, b"trace events")
    must_refuse("car", first[PAIR][2], beyond)
    must_refuse("code as a value", first[PAIR][2], reference(CODE))
    must_refuse("mark of a tail call", first[PAIR][2], 0x62)
    must_refuse("element", first[VECTOR][2] + 1, 0x1000002)
    must_refuse("name of a cell", first[CELL][2], reference(PAIR))
    must_refuse("content of a cell", first[CELL][2] + 1, reference(CELL))
    must_refuse("code of a closure", first[CLOSURE][2], reference(PAIR))
    must_refuse("type of a record", first[RECORD][2], reference(PAIR))
    must_refuse("length of a record", first[RECORD][2] - 1, words[first[RECORD][2] - 1] + 0x100, b"")
    must_refuse("a long string", first[STRING][2] - 1, STRING | 1 << 55, b"no room")
    must_refuse("built-in", first[PRIM][2], words[first[PRIM][2]] ^ 0xff, b"needs the built-in")
    must_refuse("slots", code + 1, words[code + 1] & MASK << 32)
    must_refuse("free variables", code + 2, words[code + 2] + 1)
    # A procedure with a rest list has slots for what any tail call passes.
    rest = next(at for _, kind, _, at in objects() if kind == CODE and words[at] >> 32)
    must_refuse("slots of a procedure with a rest list", rest + 1, words[rest + 1] & MASK << 32 | 15)
    must_refuse("arguments with a rest list", rest, words[rest + 1] & 0xffffffff | 1 << 32)
    must_refuse("name of code", code + 3, beyond)
    must_refuse("file of code", code + 4, beyond)
    names = next(at for number, _, _, at in objects() if number == words[first[RTD][2] + 1] >> 2)
    must_refuse("one name less", names + 1, 0x22)
    for i in range(length):
        must_refuse("operation", code + 5 + i, words[code + 5 + i] | 0xffff)
    must_refuse("end of code", code + 5 + length - 1, 0)
    end = code + 5 + length + (words[code + 1] >> 32)
    longer = words[:end] + [0] + words[end:]
    longer[2] += 1
    longer[code + 1] += 1 << 32
    must_refuse("a constant that no instruction names", end, beyond + 0x4000000, of=longer)

# The first slot, constant and target that an instruction cannot have; each operation once.
def each_bound():
    with open("hosts/scheme/bytecode.h", encoding="utf-8") as file:
        operations = re.findall(r"\bX\(([A-Z]+), ([A-Z]+)\)", file.read())
    slots_of = {"GREF": "a", "GSET": "a", "GDEF": "a", "CLOSURE": "a", "FREE": "a", "CAPTURE": "ac", "CALL": "a",
                "CALLG": "", "TAILCALL": "a", "TAILCALLG": "", "APPLY": "a", "TAILAPPLY": "a", "ABC": "abc", "AB": "ab",
                "ABI": "ab", "ABJ": "ab", "J": "", "N": "", "X": ""}
    seen = set()
    for _, kind, length, code in objects():
        if kind != CODE:
            continue
        slots, constants, frees = words[code + 1] & 0xffffffff, words[code + 1] >> 32, words[code + 2] & 0xffffffff
        for i in range(length):
            at, word = code + 5 + i, words[code + 5 + i]
            name, form = operations[word & 0xffff]
            c = word >> 48
            if name in seen or name == "EXT":
                continue
            seen.add(name)
            def refuse(field, value, at=at):
                shift, bits = {"a": (16, 16), "b": (32, 16), "c": (48, 16), "bc": (32, 32)}[field]
                mask = (1 << bits) - 1
                must_refuse(f"{name}, {field} {value}", at, words[at] & ~(mask << shift) | (value & mask) << shift)
            for field in slots_of.get(name, slots_of.get(form, "a")):
                refuse(field, slots)
            if name == "FREE":
                refuse("b", frees)
            if name in ("CALL", "CALLG", "TAILCALL", "TAILCALLG"):
                refuse("b", slots - 2 - c)
            if name in ("TAILCALL", "TAILCALLG"):
                wide = list(words)
                wide[code + 1] |= 0x1000
                must_refuse(f"{name}, 17 arguments", at, word & MASK >> 16 | 17 << 48, of=wide)
            if name in ("APPLY", "TAILAPPLY"):
                refuse("b", slots - 3)
            if form == "AK":
                refuse("bc", length - 1 - i)
                # An instruction that looks like a fixnum.
                refuse("bc", max([j for j in range(length) if words[code + 5 + j] & 1], default=0) - i)
                refuse("bc", length + constants - i)
            if form in ("J", "AJ", "ABJ", "AIJ", "ATJ"):
                refuse("bc" if form in ("J", "AJ") else "c", length - i)
                refuse("bc" if form in ("J", "AJ") else "c", -1 - i)
            if name in ("CALLG", "TAILCALLG"):
                refuse("a", slots, at + 1)
                refuse("bc", length + constants - i - 1, at + 1)
    missing = {"GREF", "CLOSURE", "FREE", "CAPTURE", "CALL", "CALLG", "TAILCALLG", "APPLY", "RECREF"} - seen
    assert not missing, missing

seal(words)
assert struct.pack(f"<{len(words)}Q", *words) == data, "another checksum"
each_rule()
each_bound()
random.seed(6)
loaded = refused = 0
for i in range(tries):
    changed = list(words)
    for _ in range(random.choice((1, 1, 1, 4))):
        at = random.choice((random.randrange(8), random.randrange(8, len(words)), random.randrange(8, len(words))))
        kind = random.randrange(6)
        if kind == 0: changed[at] ^= 1 << random.randrange(64)
        elif kind == 1: changed[at] = random.getrandbits(64)
        elif kind == 2: changed[at] = random.choice((0, 1, MASK, 1 << 63, 0xff << 56, len(words)))
        elif kind == 3: changed[at] = words[random.randrange(8, len(words))]
        elif kind == 4: changed[at] = (changed[at] & 0xff) | random.choice((1 << 40, 1 << 63, 1 << 32)) & MASK
        else: changed[at] = random.randrange(1, words[3] + 2) << 2
    if random.random() < 0.05:
        del changed[random.randrange(8, len(changed)):]
        changed[2] = len(changed)
    done = run(changed)
    if done.returncode == 0 and done.stdout == b"1\n":
        loaded += 1
    elif done.returncode == 1 and done.stderr.startswith(b"scheme: --load: "):
        refused += 1
    else:
        sys.exit(f"try {i}: exit {done.returncode}: {done.stdout!r} {done.stderr[:300]!r}")
print(f"{loaded} loaded, {refused} refused")
# Both happen, or one of the two is not tested.
sys.exit(not (loaded >= tries // 50 and refused >= tries // 4))
END
  local tries=100
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || tries=300
  [ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || tries=60
  # An emulator needs room of its own.
  [ -n "${CODEHEAP_TEST_EMULATOR:-}" ] || ulimit -v 2000000
  python3 "$work/damage.py" "$image" "$work/changed" $tries "${scheme[@]}" --load="$work/changed" -e 1 ||
    fail 'a damaged image was not survived'
}

# Neither a long list nor a deep one needs the C stack.
image_are_flat_for_deep_data() {
  cat > "$work/a.scm" << 'END'
(define long (let loop ((i 0) (l '())) (if (= i 200000) l (loop (+ i 1) (cons i l)))))
(define deep (let loop ((i 0) (l '())) (if (= i 100000) l (loop (+ i 1) (vector (list l) i)))))
(define chain (let loop ((i 0) (f (lambda () 0))) (if (= i 100000) f (loop (+ i 1) (lambda () f)))))
END
  run --save="$image" "$work/a.scm"
  (
    [ -n "${CODEHEAP_TEST_EMULATOR:-}" ] || ulimit -s 512
    run --load="$image" --save="$image.1" -e '#t'
  ) || exit 1
  cmp "$image" "$image.1" || fail 'another image'
  run --load="$image.1" -e '(let loop ((d deep) (n 0)) (if (pair? d) (loop (car d) n)
    (if (vector? d) (loop (vector-ref d 0) (+ n 1)) (list n (apply + long) (procedure? (chain))))))'
  shown '(100000 19999900000 #t)'
}

image_wait_for_no_thread() {
  unsaved 'other threads run: 2' \
    '(begin (define (f) (thread-sleep! 30)) (spawn f) (spawn f) (define x 1))'
  refused 'only the first thread' -e "(thread-join (spawn (lambda () (save-image \"$image\"))))"
  # Who has joined them finds none.
  cat > "$work/p.scm" << 'END'
(define (work k) (if (> k 0) (begin (map + '(1 2 3) '(4 5 6)) (work (- k 1)))))
(define (round i)
  (if (> i 0)
      (begin (for-each thread-join (map (lambda (k) (spawn (lambda () (work k)))) '(1 200 20 3)))
             (save-image image)
             (round (- i 1)))))
END
  run "$work/p.scm" -e "(begin (define image \"$image\") (round 50))"
  run --load="$image" "$work/p.scm" -e '(round 5)'
  run --load="$image" -e '(begin (work 10) 7)'
  shown 7
}

# Instances that begin with the image come and go while the first one runs, and share its heap.
image_begin_vms_beside() {
  local k
  procedures
  run --save="$image" "$work/named.scm"
  echo '(again 20) (write (deep 100))' > "$work/p.scm"
  run --load="$image" --beside="$work/p.scm" "$programs/threads.scm"
  cmp "$work/out" "$programs/threads.out" || fail 'another output'
  grep -q 'runs, 0 failures' "$work/err" || fail "$(cat "$work/err")"
  # Nor do they change what the first one saves.
  cat > "$work/q.scm" << 'END'
(define (save k) (if (> k 0) (begin (again 3) (save-image (string-append image (number->string k))) (save (- k 1)))))
END
  run --load="$image" --beside="$work/p.scm" "$work/q.scm" -e "(begin (define image \"$image-\") (save 20))"
  grep -q 'runs, 0 failures' "$work/err" || fail "$(cat "$work/err")"
  for k in 1 7 20; do cmp "$image-$k" "$image-2" || fail "image $k of one heap differs"; done
}

image_show_traces() {
  cat > "$work/p.scm" << 'END'
(define (f x) (+ x 1))
(f 1)
(trace! f)
(f 10)
END
  run --jit --save="$image" "$work/p.scm"
  run --jit --load="$image" -e '(begin (f 20) (trace-events))'
  shown '((f . 11) (f . 21))'
}

[ $# != 0 ] || { list_cases $cases; exit; }
"$1"
