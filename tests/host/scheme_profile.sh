#!/bin/bash
# SPDX-License-Identifier: MIT
# Profiles of Scheme programs: with-flame-profile and --profile. Each way out of a body, of a thread and of the process
# leaves a report; its names and shares are those of the program. Without arguments it lists its cases, with a name it
# runs one.
. tests/support/script.sh
. tests/support/scheme_breaks.sh
# Behind the words of an emulator, where the programs are another machine's.
read -ra scheme <<< "${CODEHEAP_TEST_EMULATOR:-} ${SCHEME:-$build/scheme}"
make_work

exits="normal escape error_caught error_uncaught stack_exhausted exit_in_body exit_in_thread exit_in_fiber thread_ends
thread_fails thread_outlived fiber_left_suspended"
cases="body_that_is_left:300 values_stay:90 picture_is_whole:90 colours:120 who_calls_whom:90 interpreter_between:120
stacks_are_whole:120:timed two_callers:300 three_to_one:120:timed threads:300 fibers:90 forms_of_reports:90 bad_requests:120
nested:90 report_that_fails:120 forked:300 again_and_again:300 command_line:300 signals:300 signals_that_are_ignored:300 image:120"

# (busy) is some 100 ms of work, in its own loop. Timers of processor time wait for a tick that finds the thread running, which
# a busy machine may put off for longer: where a profile need only have the loop, it is by the wall clock.
prelude='
(define (busy)
  (let loop ((i 0)) (if (< i BUSY) (loop (+ i 1)) i)))
(define (show x) (write x) (newline))
'
busy=30000000 interpreted=20000000
[ -z "${CODEHEAP_TEST_EMULATOR:-}" ] || busy=3000000 interpreted=2000000
# scheme_of NAME: the program on standard input, with what all have, as a file; OUT in it is the folder of reports.
scheme_of() { { printf '%s' "$prelude"; cat; } | sed "s|BUSY|$busy|; s|OUT|$work|g" > "$work/$1.scm"; }
# run NAME STATUS SWITCH...: it ends with STATUS.
run() {
  local name=$1 wanted=$2
  shift 2
  "${scheme[@]}" "$@" "$work/$name.scm" > "$work/said" 2> "$work/err" < /dev/null
  local status=$?
  [ $status = "$wanted" ] || fail "$name: exit $status, not $wanted: $(head -c 400 "$work/err")"
}
said() { [ "$(cat "$work/said")" = "$1" ] || fail "wanted: $1"$'\n'"got: $(cat "$work/said")"; }
# total FILE [PATTERN]: the samples of the lines that match.
total() { awk -v pattern="${2-}" '$0 ~ pattern { n += $NF } END { print n + 0 }' "$1"; }
# has FILE PATTERN: it is whole lines, and some samples match.
has() {
  [ -s "$1" ] || fail "there is no $1"
  grep -qvE '^[^;]+(;[^;]+)* [1-9][0-9]*$' "$1" && fail "$1: not a folded stack: $(grep -vE '^[^;]+(;[^;]+)* [1-9][0-9]*$' "$1" | head -1)"
  [ "$(total "$1" "$2")" -gt 0 ] || fail "$1: no $2 in $(head -c 1500 "$1")"
}
# until_found FILE PATTERN COMMAND...: the command, as often as it takes until the profile that it makes has the pattern. By
# processor time what a tick finds is luck where few of them find the thread running.
until_found() {
  local file=$1 pattern=$2
  shift 2
  for _ in {1..30}; do
    rm -f "$file"
    "$@"
    ! grep -qE "$pattern" "$file" || break
  done
}
# picture FILE WORD...: well-formed XML that has the words.
picture() {
  python3 - "$@" << 'END' || fail "$1 is no whole picture"
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
assert root.tag == "{http://www.w3.org/2000/svg}svg", root.tag
text = "\n".join(t for e in root.iter() for t in [e.text or "", *e.attrib.values()])
for word in sys.argv[2:]:
    assert word in text, word + " is not in it"
END
}

exit_normal() { scheme_of p <<< '(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy))'; run p 0; }
exit_escape() {
  scheme_of p <<< '(show (call/cc (lambda (k) (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (k 5) 6))))'
  run p 0
  said 5
}
exit_error_caught() {
  scheme_of p << 'END'
(show (guard (e (#t (error-object-message e))) (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (car 5))))
(show (with-flame-profile ("OUT/again.folded") 6))
END
  run p 0
  said $'"car: not a pair:"\n6'
}
exit_error_uncaught() {
  scheme_of p <<< '(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (car 5))'
  run p 1
  grep -q 'p.scm:5: car: not a pair: 5' "$work/err" || fail "$(cat "$work/err")"
}
# A handler that itself needs too much: the error passes over what is to be run on its way out.
exit_stack_exhausted() {
  scheme_of p << 'END'
(define (down n) (+ 1 (down n)))
(define (deeper) (with-exception-handler (lambda (e) (down 0)) (lambda () (down 0))))
(thread-join! (spawn (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (deeper)))))
END
  run p 1
  grep -q 'recursion too deep' "$work/err" || fail "$(cat "$work/err")"
  sed 's/^(thread-join!.*//' "$work/p.scm" > "$work/q.scm"
  cat >> "$work/q.scm" << END
(define t (spawn (lambda () (with-flame-profile ("$work/s.folded" :rate 250 :wall #t) (busy) (deeper)))))
(guard (e (#t 0)) (thread-join! t))
(show (with-flame-profile ("$work/again.folded") 7))
END
  run q 0
  said 7
}
exit_exit_in_body() { scheme_of p <<< '(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (exit 7))'; run p 7; }
exit_exit_in_thread() {
  scheme_of p <<< '(thread-join! (spawn (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (exit 8)))))'
  run p 8
}
exit_exit_in_fiber() {
  scheme_of p <<< '(fiber-resume (make-fiber (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (exit 9)))))'
  run p 9
}
exit_thread_ends() {
  scheme_of p <<< '(show (thread-join! (spawn (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) 4)))))'
  run p 0
  said 4
}
exit_thread_fails() {
  scheme_of p << 'END'
(define t (spawn (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (raise 'gone)))))
(show (guard (e (#t e)) (thread-join! t)))
END
  run p 0
  said gone
}
# The process ends with the main thread, wherever the others are.
exit_thread_outlived() {
  scheme_of p << 'END'
(define runs #f)
(define (for-ever) (busy) (set! runs #t) (for-ever))
(spawn (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (for-ever))))
(define (wait) (if (not runs) (begin (thread-sleep! 0.01) (wait))))
(wait)
END
  run p 0
}
exit_fiber_left_suspended() {
  scheme_of p << 'END'
(define f (make-fiber (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy) (fiber-yield 3) 4))))
(show (fiber-resume f))
END
  run p 0
  said 3
}
case_body_that_is_left() {
  local how
  for how in ${1:-$exits}; do
    rm -f "$work"/*.folded
    "exit_$how"
    has "$work/r.folded" 'scm::busy p.scm:2'
    [ -z "$(find "$work" -name 'r.folded?*')" ] || fail "$how: a file beside it stays"
  done
}

case_values_stay() {
  scheme_of p << 'END'
(show (with-flame-profile ("OUT/a.svg") 1 2 (+ 1 2)))
(show (call-with-values (lambda () (with-flame-profile ("OUT/a.svg") (values 1 2))) list))
(define rate 50)
(show (let ((lambda 3) (file "OUT/a.svg")) (with-flame-profile (file :rate (* 2 rate) :title #f) (define x lambda) x)))
(show (call/cc (lambda (out) (dynamic-wind void (lambda () (with-flame-profile ("OUT/a.svg") (out 4))) void))))
(define k #f)
(with-flame-profile ("OUT/a.svg") (call/cc (lambda (c) (set! k c))))
(show (guard (e (#t (error-object-message e))) (k 1)))
END
  run p 0
  said $'3\n(1 2)\n3\n4\n"continuation re-entered after it was left"'
}

case_picture_is_whole() {
  scheme_of p <<< '(with-flame-profile ("OUT/r.svg" :rate 250 :wall #t :title "work & <more>") (busy))'
  run p 0
  picture "$work/r.svg" 'scm::busy p.scm:2' 'work & <more>' 250
}

# kind_of FILE NAME KIND: the widest box of that name is of that kind.
kind_of() {
  python3 - "$@" << 'END' || fail "$2 in $1"
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
boxes = [(int(e.get("data-count")), e.get("class").split()[1]) for e in tree.parse(sys.argv[1]).getroot().iter(svg + "svg")
         if (e.get("class") or "").startswith("frame ") and e.find(svg + "title").text.startswith(sys.argv[2])]
assert boxes and max(boxes)[1] == sys.argv[3], boxes
END
}
case_colours() {
  local compiled=$busy
  busy=$interpreted
  scheme_of p <<< '(with-flame-profile ("OUT/r.svg" :rate 250 :wall #t) (busy))'
  run p 0 --interp --trampolines
  kind_of "$work/r.svg" 'scm::busy p.scm:2' trampoline
  kind_of "$work/r.svg" interp_run interpreter
  kind_of "$work/r.svg" apply interpreter
  kind_of "$work/r.svg" main native
  busy=$compiled
  scheme_of p <<< '(with-flame-profile ("OUT/r.svg" :rate 250 :wall #t) (busy))'
  run p 0
  kind_of "$work/r.svg" 'scm::busy p.scm:2' hot
}

# The lines of the sources say which procedure is meant; `main` is whole at the other end, over primitives that call back.
case_who_calls_whom() {
  scheme_of p << 'END'
(define (inner) (busy) 1)
(define (outer) (+ 1 (inner)))
(define (through) (+ 1 (eval '(+ 0 (outer)))))
(define (start) (+ 1 (through)))
(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (start) 0)
END
  run p 0 "$@"
  has "$work/r.folded" \
    '(^|;)main;.*;scm::start p.scm:8;.*scm::through p.scm:7;.*scm::outer p.scm:6;.*scm::inner p.scm:5;.*scm::busy p.scm:2'
}
most_are_whole() {
  local all whole
  all=$(total "$work/r.folded" ';scm::busy')
  whole=$(total "$work/r.folded" '(^|;)main;.*;scm::start .*;scm::through .*;scm::outer .*;scm::inner .*;scm::busy')
  [ $((whole * 10)) -ge $((all * 9)) ] || fail "$whole of $all stacks are whole: $(cat "$work/r.folded")"
}
# Not those that were taken where a frame is made or left: a long wait for a processor at such a place has many samples.
case_stacks_are_whole() {
  case_who_calls_whom
  most_are_whole
  busy=$interpreted
  case_who_calls_whom --interp --trampolines
  most_are_whole
}
# Each activation in the interpreter, and machine code between two of them: a traced procedure is interpreted.
case_interpreter_between() {
  local compiled=$busy
  busy=$interpreted
  case_who_calls_whom --interp --trampolines
  has "$work/r.folded" 'scm::inner p.scm:5;.*interp_entry;scm::busy p.scm:2;interp_run'
  busy=$compiled
  scheme_of p << 'END'
(define (inner) (busy) 1)
(define (middle) (+ 0 (inner)))
(trace! middle)
(define (outer) (+ 1 (middle)))
(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (outer) 0)
END
  run p 0 --trampolines
  has "$work/r.folded" 'scm::outer p.scm:8;.*scm::middle p.scm:6;.*scm::inner p.scm:5;.*scm::busy p.scm:2'
}

# two_callers ROUNDS: what slow and quick have of the samples is in these variables.
two_callers() {
  scheme_of p << END
(define (spin n) (let loop ((i 0)) (if (< i n) (loop (+ i 1)) i)))
(define (slow) (+ 0 (spin 3000)))
(define (quick) (+ 0 (spin 1000)))
(define (work k) (if (> k 0) (begin (slow) (quick) (work (- k 1)))))
(with-flame-profile ("OUT/r.folded" :rate 250) (work $1) 0)
END
  run p 0
  slow=$(total "$work/r.folded" 'scm::slow p.scm:6;scm::spin p.scm:5 ')
  quick=$(total "$work/r.folded" 'scm::quick p.scm:7;scm::spin p.scm:5 ')
}
# One loop has the name of the caller of each activation above it.
case_two_callers() {
  local slow=0 quick=0
  for _ in {1..30}; do
    [ $slow = 0 ] || [ $quick = 0 ] || return 0
    two_callers 160000
  done
  fail "of slow and quick there are $slow and $quick samples: $(cat "$work/r.folded")"
}
# Both run one loop: two of the same text are not of one speed, which depends on where they lie. A thousand samples, so
# that five points are four times the deviation that chance has. By processor time: on a busy machine a clock on the
# wall weighs the places where the thread had to wait for a processor.
case_three_to_one() {
  local slow quick
  two_callers 1600000
  [ $((slow + quick)) -ge 600 ] || fail "only $slow and $quick samples"
  local parts=$((1000 * slow / (slow + quick)))
  [ $parts -ge 700 ] && [ $parts -le 800 ] || fail "slow has $parts of 1000 parts, not 750"
}

# Those that run already, those that come, and one that waits: of processor time it takes nothing.
case_threads() {
  scheme_of p << 'END'
(define stop #f)
(define (early) (busy) (if stop 0 (early)))
(define (late) (busy) (busy) 0)
(define (waits) (thread-sleep! 0.5) 0)
(define t (spawn early))
(define (start) (thread-join! (spawn late)) (waits) 0)
(with-flame-profile ("OUT/r.folded" :rate 250) (start) (set! stop #t) 0)
(thread-join! t)
(with-flame-profile ("OUT/wall.folded" :rate 250 :wall #t) (start) 0)
END
  for _ in {1..30}; do
    run p 0
    [ "$(total "$work/r.folded" scm::early)" = 0 ] || [ "$(total "$work/r.folded" scm::late)" = 0 ] || break
  done
  has "$work/r.folded" 'scm::early p.scm:6;.*scm::busy'
  has "$work/r.folded" 'scm::late p.scm:7;.*scm::busy'
  has "$work/wall.folded" 'scm::waits p.scm:8'
  [ "$(total "$work/r.folded" scm::waits)" -lt 20 ] || fail "a thread that waits: $(cat "$work/r.folded")"
  [ "$(total "$work/wall.folded" scm::waits)" -gt 60 ] || fail "by wall clock: $(cat "$work/wall.folded")"
}

# Each has a stack of its own, on which its frames end; a body may be left and entered again.
case_fibers() {
  scheme_of p << 'END'
(define (one) (busy) (fiber-yield 1) (busy) 2)
(define (other) (busy) 3)
(define f (make-fiber (lambda () (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (one)))))
(show (fiber-resume f))
(show (fiber-resume (make-fiber (lambda () (+ 0 (other))))))
(show (fiber-resume f))
(show (with-flame-profile ("OUT/again.folded") 4))
END
  run p 0
  said $'1\n3\n2\n4'
  has "$work/r.folded" 'scm::one p.scm:5;.*scm::busy'
  has "$work/r.folded" 'scm::other p.scm:6;.*scm::busy'
  grep -q 'scm::one.*scm::other\|scm::other.*scm::one' "$work/r.folded" && fail 'a frame of one fiber under one of another'
  return 0
}

case_forms_of_reports() {
  scheme_of p << 'END'
(define (outer) (+ 0 (busy)))
(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t :reversed #t) (outer) 0)
(with-flame-profile ("OUT/text" :rate 250 :wall #t :folded #t) (outer) 0)
(with-flame-profile ("OUT/p.folded" :rate 250 :wall #t :folded #f) (outer) 0)
(with-flame-profile ("OUT/plain.svg" :rate 250 :wall #t :icicle #f) (outer) 0)
(with-flame-profile ("OUT/icicle.svg" :rate 250 :wall #t :icicle #t) (outer) 0)
END
  run p 0
  has "$work/r.folded" '^scm::busy p.scm:2;scm::outer p.scm:5;'
  has "$work/text" 'scm::outer p.scm:5;scm::busy p.scm:2'
  picture "$work/p.folded" 'scm::busy p.scm:2'
  # Who is called is below the caller in an icicle, above it in a flame.
  python3 - "$work/plain.svg" "$work/icicle.svg" << 'END' || fail 'which way the flame and the icicle stand'
import sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
def place(path, name):
    for box in tree.parse(path).getroot().iter(svg + "svg"):
        title = box.find(svg + "title")
        if (box.get("class") or "").startswith("frame ") and title.text.startswith(name):
            return float(box.get("y"))
    raise SystemExit(f"{path}: no {name}")
flame, icicle = ((place(p, "scm::busy"), place(p, "scm::outer")) for p in sys.argv[1:])
assert flame[0] < flame[1], flame
assert icicle[0] > icicle[1], icicle
END
}

case_bad_requests() {
  scheme_of p << 'END'
(define (says thunk)
  (show (guard (e (#t (list (error-object-message e) (error-object-irritants e) (file-error? e)))) (thunk))))
(define (never) (display "the body ran") 0)
(says (lambda () (with-flame-profile ("/nowhere/at/all.svg") (never))))
(says (lambda () (with-flame-profile ("/tmp") (never))))
(says (lambda () (with-flame-profile ((string-append "OUT/" (make-string 256 #\x))) (never))))
(says (lambda () (with-flame-profile (5) (never))))
(says (lambda () (with-flame-profile ("") (never))))
(says (lambda () (with-flame-profile ("OUT/x.svg" :rate 0) (never))))
(says (lambda () (with-flame-profile ("OUT/x.svg" :rate 20001) (never))))
(says (lambda () (with-flame-profile ("OUT/x.svg" :rate 1.5) (never))))
(says (lambda () (with-flame-profile ("OUT/x.svg" :title 5) (never))))
(says (lambda () (eval '(with-flame-profile ("OUT/x.svg" :rat 5) (never)))))
(says (lambda () (eval '(with-flame-profile ("OUT/x.svg" :rate) (never)))))
(says (lambda () (eval '(with-flame-profile "OUT/x.svg" (never)))))
END
  run p 0
  cat > "$work/wanted" << 'END'
("with-flame-profile: cannot be written (No such file or directory):" ("/nowhere/at/all.svg") #t)
("with-flame-profile: cannot be written (Is a directory):" ("/tmp") #t)
("with-flame-profile: cannot be written (File name too long):" ("OUT/LONG") #t)
("with-flame-profile: not a file name:" (5) #f)
("with-flame-profile: not a file name:" ("") #f)
("with-flame-profile: the rate is not 1 to 20000:" ("OUT/x.svg") #f)
("with-flame-profile: the rate is not 1 to 20000:" ("OUT/x.svg") #f)
("with-flame-profile: not a whole number for :rate:" (1.5) #f)
("with-flame-profile: not a string for :title:" (5) #f)
("with-flame-profile does not know this word" (:rat) #f)
("bad syntax" ((:rate)) #f)
("bad syntax" ("OUT/x.svg") #f)
END
  said "$(sed "s|OUT|$work|; s|LONG|$(printf 'x%.0s' {1..256})|" "$work/wanted")"
  [ ! -e "$work/x.svg" ] || fail 'a request that was refused left a file'
  # The longest name has room: the library's own name beside it is shorter.
  scheme_of p <<< '(with-flame-profile ((string-append "OUT/" (make-string 255 #\x)) :wall #t) (busy))'
  run p 0
  [ -s "$work/$(printf 'x%.0s' {1..255})" ] || fail 'no file of the longest name'
  # A link is written through: it stays, and one that leads nowhere is refused like its target.
  mkdir "$work/to"
  ln -s to/linked.folded "$work/link.folded"
  ln -s nowhere/x.svg "$work/lost.svg"
  scheme_of p << 'END'
(with-flame-profile ("OUT/link.folded" :rate 250 :wall #t) (if (file-exists? "OUT/to/linked.folded") (car 5)) (busy))
(with-flame-profile ("OUT/link.folded" :rate 250 :wall #t) (busy))
(with-flame-profile ("OUT/lost.svg") (display "the body ran"))
END
  run p 1
  [ ! -s "$work/said" ] || fail "$(cat "$work/said")"
  grep -q 'cannot be written (No such file or directory).*lost.svg' "$work/err" || fail "$(cat "$work/err")"
  [ -L "$work/link.folded" ] || fail 'the link is gone'
  has "$work/to/linked.folded" 'scm::busy p.scm:2'
  scheme_of p <<< '(with-flame-profile ("OUT/x.svg") 1)'
  local mode
  for mode in --interp --arena; do
    run p 1 $mode
    grep -q 'only programs run by --jit or with --trampolines have profiles' "$work/err" || fail "$mode: $(cat "$work/err")"
  done
}

# The inner one is refused, whoever asks; the outer one goes on.
case_nested() {
  scheme_of p << 'END'
(define (refused thunk) (guard (e (#t (error-object-message e))) (thunk)))
(define (inner) (with-flame-profile ("OUT/inner.svg") 1))
(define (elsewhere) (thread-join! (spawn inner)))
(show (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t)
  (let ((first (refused inner))) (busy) (list first (refused elsewhere)))))
(show (inner))
END
  run p 0
  local text="\"with-flame-profile: a profile ($work/r.folded) is running already:\""
  said "($text $text)"$'\n1'
  has "$work/r.folded" scm::busy
  run p 1 --profile="$work/whole.folded"
  grep -qF "a profile ($work/whole.folded) is running already" "$work/err" || fail "$(cat "$work/err" "$work/said")"
}

# What can only fail at the end is told, and the value stays.
case_report_that_fails() {
  scheme_of p <<< '(show (with-flame-profile ("/dev/full" :folded #t :rate 250 :wall #t) (busy) 6))'
  run p 0
  said 6
  grep -q '/dev/full cannot be written: No space left on device' "$work/err" || fail "$(cat "$work/err")"
  scheme_of p <<< '(show (busy))'
  run p 1 --profile=/dev/full
  grep -q '/dev/full cannot be written: No space left on device' "$work/err" || fail "$(cat "$work/err")"
  scheme_of p <<< '(exit 0)'
  run p 1 --profile=/dev/full
  scheme_of p <<< '(exit 5)'
  run p 5 --profile=/dev/full
}

# A child has no profile, and its parent's file is none of its own; it may make another one.
case_forked() {
  scheme_of p << 'END'
(define (child) (busy) (with-flame-profile ("OUT/child.folded" :rate 250 :wall #t) (busy)) (exit 3))
(define (there) (file-exists? "OUT/r.folded"))
(define r
  (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t)
    (let ((first (fork-process)))
      (if (= first 0) (child))
      (let* ((code (wait-process first)) (then (there)) (second (fork-process)))
        (if (= second 0) 'left
          (begin (wait-process second) (busy) (list code then (there))))))))
(if (eq? r 'left) (begin (write (there)) (exit 0)))
(show r)
END
  run p 0
  said '#f(3 #f #f)'
  has "$work/child.folded" 'scm::child p.scm:5.*;scm::busy'
  has "$work/r.folded" scm::busy
  grep -q scm::child "$work/r.folded" && fail 'work of the child in the profile of its parent'
  rm -f "$work/whole.folded"
  scheme_of p << 'END'
(define child (fork-process))
(busy) (busy) (busy) (busy) (busy)
(if (= child 0) (exit (if (file-exists? "OUT/whole.folded") 1 0)))
(show (wait-process child))
(wait-process -5)
END
  until_found "$work/whole.folded" scm::busy run p 1 --profile="$work/whole.folded" --profile-rate=250
  said 0
  grep -q 'wait-process: not a process: -5' "$work/err" || fail "$(cat "$work/err")"
  [ "$(grep -c 'whole.folded: .* samples' "$work/err")" = 1 ] || fail "who had no profile tells of one: $(cat "$work/err")"
  has "$work/whole.folded" scm::busy
}

case_again_and_again() {
  busy=3000000
  scheme_of p << 'END'
(define (times n)
  (if (> n 0) (begin (with-flame-profile ("OUT/r.folded" :rate 1000) n) (times (- n 1)))))
(times 100)
(define (one) (guard (e (#t 'refused)) (with-flame-profile ("OUT/t.folded") (busy) 'done)))
(define (threads n) (if (= n 0) '() (let ((t (spawn one))) (cons t (threads (- n 1))))))
(define (round n)
  (define results (map thread-join! (threads 4)))
  (if (not (memq 'done results)) (begin (display "nobody had a profile") (exit 1)))
  (if (> n 0) (round (- n 1))))
(round 10)
(define (long n) (if (> n 0) (begin (busy) (long (- n 1)))))
(with-flame-profile ("OUT/last.folded" :rate 250 :wall #t) (long 30) (show (one)))
END
  run p 0
  said refused
  has "$work/last.folded" scm::busy
  # The end comes upon threads that begin and end profiles: their files are whole, and nothing is beside them.
  scheme_of q << 'END'
(define (again) (with-flame-profile ("OUT/q.folded" :rate 1000) 1) (again))
(spawn again)
(busy)
END
  for _ in {1..20}; do run q 0; done
  [ -z "$(find "$work" -name 'q.folded?*')" ] || fail "left at the end: $(ls "$work")"
}

repl() { "${scheme[@]}" "$@" < "$work/forms" > "$work/said" 2>&1 || fail "the REPL: $(cat "$work/said")"; }
case_command_line() {
  busy=$((busy * 5))
  scheme_of p <<< '(busy) (car 5)'
  until_found "$work/a.folded" scm::busy run p 1 --profile="$work/a.folded" --profile-rate=250
  has "$work/a.folded" 'scm::busy p.scm:2'
  grep -qE 'a.folded: [1-9][0-9]* samples, 0 dropped, 0 cut' "$work/err" || fail "$(cat "$work/err")"
  scheme_of p <<< '(busy) (exit 7)'
  until_found "$work/b.svg" scm::busy run p 7 --profile="$work/b.svg" --profile-rate=250
  picture "$work/b.svg" 'scm::busy p.scm:2' p.scm
  scheme_of p <<< '(thread-join! (spawn (lambda () (busy) (exit 8))))'
  until_found "$work/c.folded" scm::busy run p 8 --profile="$work/c.folded" --profile-rate=250
  has "$work/c.folded" 'scm::busy p.scm:2'
  { sed "s/BUSY/$busy/" <<< "$prelude"; echo '(busy) (busy)'; } > "$work/forms"
  until_found "$work/e.folded" scm::busy repl --profile="$work/e.folded" --profile-rate=250
  has "$work/e.folded" 'scm::busy stdin:2'
  busy=$((interpreted * 3))
  scheme_of p <<< '(show (busy))'
  until_found "$work/d.folded" 'scm::busy.*interp_run' run p 0 --interp --profile="$work/d.folded" --profile-rate=250
  has "$work/d.folded" 'scm::busy p.scm:2;interp_run'
  scheme_of p <<< '(show 1)'
  run p 1 --profile=/nowhere/x.svg
  grep -q -- '--profile: /nowhere/x.svg: cannot be written (No such file or directory)' "$work/err" || fail "$(cat "$work/err")"
  [ ! -s "$work/said" ] || fail 'the program ran'
  run p 1 --profile="$work/x.svg" --arena
  local wrong
  for wrong in --profile= --profile-rate=x --profile-rate=; do run p 2 "$wrong"; done
  run p 1 --profile="$work/x.svg" --profile-rate=0
  grep -q 'the rate is not 1 to 20000' "$work/err" || fail "$(cat "$work/err")"
}

# with_signal NUMBER COMMAND...: starts it with the signal's default action, or ignoring it, sends it once there is a
# file `ready`, makes a file `sent`, and prints how it ended. Background jobs of a shell ignore SIGINT, so a shell cannot do
# this.
with_signal() {
  rm -f "$work/ready" "$work/sent"
  IGNORED=${IGNORED:-} python3 - "$work/ready" "$@" << 'END'
import os, signal, subprocess, sys, time
ready, number = sys.argv[1], int(sys.argv[2])
action = signal.SIG_IGN if os.environ["IGNORED"] else signal.SIG_DFL
child = subprocess.Popen(sys.argv[3:], preexec_fn=lambda: signal.signal(number, action))
while not os.path.exists(ready) and child.poll() is None:
    time.sleep(0.05)
child.send_signal(number)
open(os.path.join(os.path.dirname(ready), "sent"), "w").close()
try:
    print(child.wait(60))
except subprocess.TimeoutExpired:
    child.kill()
    print("it runs on")
END
}
signalled() { ended=$(with_signal "$1" "${scheme[@]}" "${switch[@]}" "$work/p.scm" 2> "$work/err"); }
case_signals() {
  local number how ended
  busy=$((busy / 3))
  scheme_of p << 'END'
(define (for-ever n) (busy) (if (= n 10) (ready)) (for-ever (+ n 1)))
(define (ready) (call-with-output-file "OUT/ready" (lambda (p) (write 1 p))))
(if (file-exists? "OUT/inside") (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (for-ever 1)) (for-ever 1))
END
  for number in 1 2 15; do
    for how in inside outside; do
      rm -f "$work/inside"
      local switch=(--profile="$work/r.folded" --profile-rate=250)
      [ $how = outside ] || { touch "$work/inside"; switch=(); }
      until_found "$work/r.folded" 'scm::for-ever p.scm:5;.*scm::busy' signalled $number
      [ "$ended" = -$number ] || fail "signal $number, $how: it ended with $ended"
      has "$work/r.folded" 'scm::for-ever p.scm:5;.*scm::busy'
    done
  done
}
# Who ignores a signal goes on; where no profile runs any more, a signal is what it was.
case_signals_that_are_ignored() {
  local ended
  scheme_of p << 'END'
(call-with-output-file "OUT/ready" (lambda (p) (write 1 p)))
(define (spend) (busy) (if (not (file-exists? "OUT/sent")) (spend)))
(spend)
(spend)
END
  local switch=(--profile="$work/r.folded" --profile-rate=250)
  IGNORED=1 until_found "$work/r.folded" scm::spend signalled 15
  [ "$ended" = 0 ] || fail "it did not go on: $ended"
  has "$work/r.folded" scm::spend
  scheme_of p << 'END'
(with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy))
(call-with-output-file "OUT/ready" (lambda (p) (write 1 p)))
(define (for-ever) (busy) (for-ever))
(for-ever)
END
  ended=$(with_signal 15 "${scheme[@]}" "$work/p.scm" 2> "$work/err")
  [ "$ended" = -15 ] || fail "after a profile it ended with $ended"
}

# The form is compiled like any other: an image with one needs neither source nor prelude.
case_image() {
  scheme_of p <<< '(define (profiled) (+ 0 (with-flame-profile ("OUT/r.folded" :rate 250 :wall #t) (busy))))'
  run p 0 --save="$work/image"
  "${scheme[@]}" --load="$work/image" -e '(profiled)' > "$work/said" 2>&1 || fail "$(cat "$work/said")"
  has "$work/r.folded" 'scm::profiled p.scm:5;.*scm::busy p.scm:2'
}

case_mutants() {
  breaks prelude 's/(lambda () (%profile-end profile))/(lambda () #f)/' scheme_profile_values_stay
  breaks prelude 's/(lambda () (%profile-body thunk))/thunk/' scheme_profile_body_that_is_left stack_exhausted
  breaks system 's/^\t\tprofile_finish(ctx);//' scheme_profile_body_that_is_left exit_in_thread
  breaks main 's/result = end_profile(.*/;/' scheme_profile_body_that_is_left thread_outlived
  breaks profile 's/else if (!may_write(request->path, why))/else if (0)/' scheme_profile_bad_requests
  breaks profile 's/^\tif (is_link)$/\tif (0)/' scheme_profile_bad_requests
  breaks main 's/command->profiled == getpid()/command->profiled/' scheme_profile_forked
  breaks profile 's/pthread_atfork(before_fork, unlock_profile, in_child)/0/' scheme_profile_forked
  breaks profile 's/^\t\tif (watch.is_mine\[i\])$/\t\tif (0)/' scheme_profile_signals
  breaks profile 's/watch.before\[i\].sa_handler == SIG_DFL/1/' scheme_profile_signals_that_are_ignored
  breaks profile 's/\.interpreter = interpreter/.interpreter = NULL/' scheme_profile_colours
  breaks profile 's/request->is_reversed ?/0 ?/' scheme_profile_forms_of_reports
  breaks profile 's/\.by_wall_clock = .*}/.by_wall_clock = 0}/' scheme_profile_threads
}

if [ $# = 0 ]; then
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=mutants:300
  for c in $cases; do
    # What an emulator spends where is its own matter.
    case ${CODEHEAP_TEST_EMULATOR:+emulated}/$c in emulated/three_to_one* | emulated/two_callers*) continue ;; esac
    IFS=: read -r name limit mode <<< "$c"
    echo "scheme_profile_$name $limit 0 ${mode:--}"
  done
  exit 0
fi
name=${1#scheme_profile_}
shift
"case_$name" "$@"
