#!/bin/bash
# SPDX-License-Identifier: MIT
# tools/gdb/codeheap.py in gdb -batch, on tests/gdb/debuggee.c and on Scheme programs, live and on a core: what the
# commands say is compared with what the program prints itself, and breakpoints must leave its results right. Without
# arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
make_work
export -n CODEHEAP_SINKS

fail() { # fail MESSAGE: with what gdb and the program said
  skip_without_tracing
  skip_where_gdb_writes_no_registers "$work/said"
  echo "$*" >&2
  tail -n 60 "$work/said" "$work/facts" >&2 2>/dev/null
  exit 1
}

# A kernel or sandbox that refuses ptrace, or debug registers, leaves nothing to test; a case that passes has had them.
# Some virtual machines take a debug register and never stop at it.
needs_registers=
skip_without_tracing() {
  command -v gdb >/dev/null || return
  gdb -nx -batch -ex 'run' /bin/true >"$work/probe" 2>&1 </dev/null
  grep -q 'exited normally' "$work/probe" || { echo "skip: gdb cannot trace a process here"; exit 77; }
  [ -n "$needs_registers" ] || return
  gdb -nx -batch -ex 'break main' -ex 'run' -ex 'hbreak code_is_ready' -ex 'continue' \
    "$work/debuggee" >"$work/probe" 2>&1 </dev/null
  grep -q '^Breakpoint 2, code_is_ready' "$work/probe" || { echo "skip: no hardware breakpoints here"; exit 77; }
}

# The facts of the running program become $variables of gdb; attempt() shows a failure as a sentence.
write_helpers() {
  cat >"$work/helpers.py" <<EOF
import gdb
class Facts(gdb.Command):
    def __init__(self):
        super().__init__("facts", gdb.COMMAND_USER)
    def invoke(self, argument, from_tty):
        for line in open("$work/facts"):
            if line.startswith("fact "):
                gdb.set_convenience_variable(line.split()[1], int(line.split()[2], 16))
Facts()
def attempt(text):
    try:
        gdb.execute("codeheap " + text)
        print("taken:", text)
    except gdb.error as error:
        print("sentence:", error)
EOF
}

start() { # start [REGISTERS]: with the words that gdb's commands and the program share
  needs_registers=${1:-}
  write_helpers
  cp "$build/gdb/debuggee" "$work/debuggee" || fail "there is no debuggee"
}

# gdb_says PROGRAM-AND-ARGUMENTS <commands: leaves what gdb said in $work/said. A traceback is never right.
gdb_says() {
  {
    printf '%s\n' 'set pagination off' 'set confirm off' 'set width 0' 'source tools/gdb/codeheap.py'
    [ ! -f "$work/helpers.py" ] || echo "source $work/helpers.py"
    cat
  } >"$work/commands"
  gdb -nx -batch -iex 'set debuginfod enabled off' -x "$work/commands" --args "$@" \
    >"$work/said" 2>&1 </dev/null
  if grep -E 'Traceback|Python Exception|Error while executing Python|Error occurred in Python' "$work/said"; then
    fail "a Python error instead of a sentence"
  fi
}
# The same, on the debuggee where it is about to call the code, with its facts as variables.
gdb_at_code() {
  gdb_says "$work/debuggee" < <(printf '%s\n' 'break code_is_ready' "run 1 >$work/facts" facts; cat)
}
# Runs $work/steps.py there.
gdb_steps() {
  gdb_at_code <<EOF
source $work/steps.py
kill
EOF
}
said() { grep -qE -- "$1" "$work/said" || fail "gdb did not say: $1"; }
said_times() { # said_times N PATTERN
  local n
  n=$(grep -cE -- "$2" "$work/said")
  [ "$n" = "$1" ] || fail "gdb said $n times, not $1 times: $2"
}
fact() { sed -n "s/^fact $1 //p" "$work/facts"; }
before_fact() { printf '%#x' $(($(fact "$1") - $2)); }
# The program ran to its end, and its own checks held.
result_right() { grep -q '^result right$' "$work/facts" || fail "the program did not end with the right result"; }
# The same, in a program that gdb has left.
goes_on_rightly() {
  local end=$((SECONDS + 100))
  until grep -q '^result right$' "$work/facts"; do
    [ $SECONDS -lt $end ] || fail "the program did not go on rightly without gdb"
    sleep 0.1
  done
}
to_the_end='while $_isvoid($_exitcode)
continue
end'

case_gdb_blocks_and_at_agree_with_the_program() {
  start
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
facts
codeheap blocks
codeheap blocks live ^sq
codeheap stats
up
codeheap at \$pc
codeheap at \$veneer
codeheap at \$sum_return
codeheap at \$freed_entry
codeheap at \$sum_entry + 0x2000
codeheap at (\$sum_entry & ~0xfff) - 0x4000
codeheap at \$sum_entry + 0x8000
codeheap at (long)\$sum_entry + ch__heaps[1]->pool->delta
codeheap at (long)\$veneer + ch__heaps[1]->pool->delta
codeheap at \$sum_stubs_end - 20
codeheap at checkpoint
set input-radix 16
codeheap at code_is_ready
EOF
  said "^ +[0-9]+ +$(fact sum_entry) .* LIVE +1/2 sum$"
  said "^ +[0-9]+ +$(fact square_entry) .* LIVE +- square by C$"
  said '^1 blocks$'
  said ', 5 LIVE \('
  said '^  pages     3 used, 3 at most, of 256; [0-9]+ have memory$'
  said '^  owners    8; assumptions 0$'
  said '^  cycles    1, 0 abandoned; freed 1 blocks$'
  said '^  branches  1 times linked, 0 times unlinked$'
  said '^  blocks invalidated so far: 1$'
  said "^$(fact square_return): block [0-9]+ of square by C, LIVE, at \+0x9$"
  said "^$(fact veneer): runtime page of heap 1: a veneer, jumps to 0x[0-9a-f]+ <checkpoint>$"
  said "^$(fact sum_return): block [0-9]+ of sum, LIVE, at \+0x[0-9a-f]+, $work/debuggee:14$"
  said "^$(fact freed_entry): freed code: block [0-9]+ of dead, freed at collection 1 \(invalidated\), at \+0x0$"
  said ': unused bytes of page 0 of heap 1'
  said ": runtime page of heap 1: the stubs' trampoline"
  said ': free page 2 of heap 1'
  said " is the write view of $(fact sum_entry): block [0-9]+ of sum"
  said " is the write view of $(fact veneer): runtime page of heap 1: a veneer"
  said ': block [0-9]+ of sum, LIVE, at cold -0x4$'
  said '<checkpoint> is not in any code heap\.$'
  said '<code_is_ready> is not in any code heap\.$'
  gdb_says "$work/debuggee" <<EOF
break debuggee.c:commit
run 1 >$work/facts
codeheap blocks open
codeheap at code->exec
codeheap disassemble code->exec
python attempt("break -int3 dead")
python attempt("break -int3 *(long*)&code->exec")
EOF
  said_times 1 ' OPEN +- dead$'
  said ': block [0-9]+ of dead, OPEN, at \+0x0$'
  said '^block [0-9]+ of dead, OPEN: '
  said '^sentence: dead has no code at this moment\.$'
  said '^sentence: block [0-9]+ of dead is OPEN: nothing runs it\.$'
}

case_gdb_blocks_with_pages_of_their_own_are_shown_whole() {
  start
  export DEBUGGEE_APART=1
  gdb_at_code <<EOF
codeheap blocks live ^apart
codeheap blocks live ^many$
codeheap at \$large + 0x90000
codeheap at \$large_cold - 7
codeheap at \$data + 8
codeheap at \$small + 8
codeheap at \$dead + 0x90000
codeheap at \$dead_cold - 7
codeheap break -int3 large
codeheap delete
codeheap break -int3 apart
python
for text in ("break many", "break -int3 small", "break -int3 \$data", "break -int3 \$small + 8", "disassemble \$data"):
    attempt(text)
end
EOF
  said "^ +[0-9]+ +$(fact large) +[0-9]{6} +$(before_fact large_cold 8) +8 LIVE +- apart large$"
  said "^ +[0-9]+ +$(fact data) +[0-9]+ +- +- LIVE data +- apart data$"
  said "^ +[0-9]+ +$(fact small) +104 +- +- LIVE data +- apart small$"
  said '^3000 blocks$'
  said ': block [0-9]+ of apart large, LIVE, at \+0x90000$'
  said '^sentence: many has 3000 places to enter: '
  said_times 2 '^sentence: block [0-9]+ of apart data is data\.$'
  said_times 2 '^sentence: block [0-9]+ of apart small is data\.$'
  said_times 2 '^Codeheap breakpoint [0-9]+ \(INT3\) '
  said_times 2 '^Codeheap breakpoint [12] \(INT3\) .* of apart large \+0x10$'
  said ': block [0-9]+ of apart large, LIVE, at cold \+0x1$'
  said ': block [0-9]+ of apart data, LIVE data, at \+0x8$'
  said ': block [0-9]+ of apart small, LIVE data, at \+0x8$'
  said ': freed code: block [0-9]+ of apart dead, .*, at \+0x90000$'
  said ': freed code: block [0-9]+ of apart dead, .*, at \+0x1$'
}

# What a terminal would obey is a question mark, and in a frame what the locale cannot write: gdb prints an error there.
case_gdb_texts_have_no_control_characters() {
  start
  printf '\tred\033[31m;\tx\n' >"$work/source"
  LC_ALL=C gdb_says "$work/debuggee" $'red\033[31m\n\302\2332J \303\251' "$(printf %0100000d 0)" <<EOF
break main
run
python from codeheap_gdb import memory
python print(ascii(memory.read_text(int(gdb.parse_and_eval("argv[1]")))))
python print("of no end", len(memory.read_text(int(gdb.parse_and_eval("argv[2]")))) < 100000)
python from codeheap_gdb import disassemble, frames
python print(ascii(disassemble.source_text("$work/source", 1)))
python print(frames.CodeFrame(None, "caf\351", ("", 0)).function())
EOF
  said "^'red\\?\\[31m\\?\\?2J .xe9'$"
  said '^of no end True$'
  said "^'  red\\?\\[31m; +x'$"
  said '^caf\?$'
}

case_gdb_frames_show_owner_state_and_line() {
  start
  frames_are_shown none
  frames_are_shown unwind,gdb
}
frames_are_shown() { # frames_are_shown SINKS
  export CODEHEAP_SINKS=$1
  gdb_says "$work/debuggee" <<EOF
break branch_hit
break checkpoint
run 1 >$work/facts
bt
echo at the second stop\n
continue
bt
EOF
  sed -n '1,/^at the second stop/p' "$work/said" | grep -qE "^#[23] .* in sum \\[LIVE\\] \\(\\) at $work/debuggee:13$" ||
    fail "the stub that was taken has not the line of its branch"
  sed -i '1,/^at the second stop/d' "$work/said"
  said "^#1 +$(printf '0x%016x' "$(fact square_return)") in square by C \[LIVE\]"
  said "^#2 +$(printf '0x%016x' "$(fact sum_return)") in sum \[LIVE\] \(\) at $work/debuggee:13$"
  said '^#3 .* in outer \[LIVE\]'
  said '^#4 .* in call \('
  said '^#5 .* call_outer \('
  said '^#6 .* in framed \[LIVE\]'
  said '^#[7-9] .* run_sums \('
  said '^#[0-9]+ .*main \('
}

# From the call of the code through stub, trampoline, linking and both blocks, until it has returned.
case_gdb_backtrace_reaches_main_at_every_instruction() {
  start
  export CODEHEAP_SINKS=none
  local every=7
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || every=1
  { echo "every = $every"; cat <<'EOF'; } >"$work/steps.py"
import gdb
from codeheap_gdb import heaps
heap = heaps.all_heaps()[0]
inside = runtime = lost = 0
for step in range(4000):
    gdb.execute("stepi", to_string=True)
    frame, names, codes = gdb.newest_frame(), [], 0
    pc = frame.pc()
    # Without LONG=1 some instructions of the C that code calls.
    if step % every and not heap.has(pc) and not heap.has_runtime(pc):
        continue
    while frame:
        is_code = heap.has(frame.pc()) or heap.has_runtime(frame.pc())
        names.append("code" if is_code else frame.name())
        codes += is_code
        frame = frame.older()
    if inside and not codes:
        break
    inside += heap.has(pc)
    runtime += heap.has_runtime(pc)
    if codes and (names[-1] != "main" or "call" not in names or None in names):
        lost += 1
        print("lost at", hex(pc), names)
print("steps", step, "inside", inside, "runtime", runtime, "lost", lost)
EOF
  gdb_steps
  said '^steps [0-9]+ inside [6-9][0-9] runtime [1-9] lost 0$'
}

# A frame that a call of gdb's, or a signal, interrupted at the first byte of a block is in that block; the runtime page has a name.
case_gdb_frames_that_gdb_interrupted_are_named() {
  start registers
  gdb_at_code <<EOF
codeheap break -hw \$sum_entry
continue
break checkpoint
python
try:
    gdb.execute("call checkpoint(3)")
except gdb.error: # it has stopped there
    gdb.execute("bt")
end
hbreak *\$veneer
continue
continue
bt 2
EOF
  said "^#2 .* in sum \[LIVE\] \(\) at $work/debuggee:11$"
  said '^#0 .* in \[runtime page of heap 1: a veneer, jumps to 0x[0-9a-f]+ <checkpoint>\]'
  said '^#1 .* in square by C \[LIVE\]'
}

# At each instruction of code of the other shapes: callers down to main, and registers of call_shapes as at the call.
case_gdb_other_shapes_give_the_caller_and_its_registers() {
  start
  export CODEHEAP_SINKS=none DEBUGGEE_SHAPES=1
  cat >"$work/steps.py" <<'EOF'
import gdb
from codeheap_gdb import heaps
heap = heaps.all_heaps()[0]
kept = ("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15")
wanted, inside, wrong = None, 0, 0
for step in range(4000):
    gdb.execute("stepi", to_string=True)
    frame, names = gdb.newest_frame(), []
    is_code, values = heap.has(frame.pc()), None
    while frame:
        names.append(frame.name())
        if frame.name() == "call_shapes":
            values = [int(frame.read_register(name)) for name in kept]
        frame = frame.older()
    if not is_code:
        if inside and "checkpoint" not in names:
            wanted = None
        if "run_threads" in names:
            break
        continue
    inside += 1
    wanted = wanted or values
    if not values or values != wanted or names[-1] != "main":
        wrong += 1
        print("wrong at", hex(gdb.newest_frame().pc()), names, values, wanted)
print("inside", inside, "wrong", wrong)
EOF
  gdb_steps
  said '^inside (7[0-9]|8[0-9]) wrong 0$'
}

case_gdb_disassembly_shows_what_is_attached() {
  start
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
facts
codeheap disassemble \$sum_return
up
codeheap disassemble
codeheap disassemble square by C
codeheap disassemble \$sum_entry
codeheap disassemble \$outer_entry
codeheap disassemble \$tail_entry
codeheap disassemble \$framed_entry
EOF
  said "^   $(fact sum_call): +call +$(fact square_entry)( <.*>)? +; branch [0-9]+: linked to block [0-9]+ of square by C \(LIVE\)$"
  said "^=> $(fact sum_return): +add "
  said "^=> $(fact sum_entry): +push "
  said "^   $(fact sum_never): +je .*; branch [0-9]+: not linked, to its stub 0x"
  said "^   $(fact sum_point): +test .*; patch point, exit $(fact sum_exit)$"
  said 'movabs \$0x1234,%rcx +; ref 0x1234$'
  said_times 8 "^$work/debuggee:1[1-4]"
  said_times 4 '; stub of branch [0-9]+$'
  said_times 2 "^=> $(fact square_return): +pop "
  said '^   needs owner sum$'
  said '; patchable entry$'
  said 'jmp +0x[0-9a-f]+ <not_compiled> +; veneer$'
  said "\.quad $(fact framed_entry) +; trampoline to $(fact framed_entry)"
  said '\.quad 0x[0-9a-f]+ +; trampoline to 0x[0-9a-f]+ <call_outer>$'
  said_times 2 '\.quad 0x1234 +; payload$'
  said_times 0 '\(bad\)'
  gdb_at_code <<EOF
call (int)ch_blocks_invalidate(&sum_code.block, 1, 0)
call (int)ch_blocks_invalidate(&outer_code.block, 1, 0)
codeheap disassemble \$sum_entry
codeheap disassemble \$outer_entry
codeheap disassemble square by C
EOF
  said "^=> $(fact square_entry): " # pc is elsewhere
  said '^block [0-9]+ of sum, NOTENTRANT: '
  said "^   $(fact sum_point): +jmp +$(fact sum_exit) +; patch point, exit $(fact sum_exit), diverted to it$"
  said "^=> $(fact outer_entry): +jmp .*; patchable entry, not entrant$"
}

case_gdb_core_tells_the_same() {
  start
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
python open("/proc/%d/coredump_filter" % gdb.selected_inferior().pid, "w").write("0x3b")
generate-core-file $work/core
EOF
  [ -s "$work/core" ] || fail "gdb wrote no core"
  gdb_says "$work/debuggee" <<EOF
core-file $work/core
facts
codeheap blocks
codeheap at \$freed_entry
codeheap disassemble \$sum_entry
bt
python attempt("break square")
EOF
  said "^ +[0-9]+ +$(fact sum_entry) .* LIVE +1/2 sum$"
  said 'freed code: block [0-9]+ of dead, freed at collection 1 \(invalidated\)'
  said "^   $(fact sum_call): +call +$(fact square_entry) "
  said '^#2 .* in sum \[LIVE\] \(\) at '
  said 'main \('
  said '^sentence: A core does not run'
}

# The caller's frame pointer is no part of the dead block's frame: only the call has happened.
case_gdb_backtrace_from_freed_code_finds_the_caller() {
  start
  gdb_at_code <<EOF
python
try:
    gdb.execute("call ((int(*)(void))\$freed_entry)()")
except gdb.error:
    pass
end
bt
kill
EOF
  said '^#0 .* in \[freed code: block [0-9]+ of dead, .*, at \+0x1\]'
  said '^#1 .*<function called from gdb>'
  said '^#2 .*code_is_ready \('
  said '^#3 .* in main \('
}

# A core that leaves out the pages of code: names, states and lines come from the records alone.
case_gdb_core_without_code_bytes_still_names_it() {
  start
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
python open("/proc/%d/coredump_filter" % gdb.selected_inferior().pid, "w").write("0x31")
generate-core-file $work/core
EOF
  [ -s "$work/core" ] || fail "gdb wrote no core"
  without_code_bytes ''
  # gdb 18 refuses pages of a file that the core leaves out by another error.
  without_code_bytes 'python
real = gdb.selected_inferior
class Later:
  def __getattr__(self, name):
    return getattr(real(), name)
  def read_memory(self, address, size):
    try:
      return real().read_memory(address, size)
    except gdb.MemoryError as error:
      raise gdb.error(str(error))
gdb.selected_inferior = Later
end'
}
without_code_bytes() { # commands before
  gdb_says "$work/debuggee" <<EOF
core-file $work/core
$1
facts
bt
codeheap at \$sum_return
python attempt("disassemble \$sum_return")
EOF
  said '^#2 .* in sum \[LIVE\] \(\) at '
  said 'main \('
  said "^$(fact sum_return): block [0-9]+ of sum, LIVE, .*:14$"
  said '^sentence: The code of block [0-9]+ cannot be read'
}

# Two calls of sum, five calls of square each.
case_gdb_int3_stops_at_each_call() {
  start registers
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
run 2 >$work/facts
codeheap break -int3 square
continue
echo set where a thread stands\n
codeheap delete 1
codeheap break -int3 square
$to_the_end
EOF
  said_times 1 '^Codeheap breakpoint 1, .* in block [0-9]+ of square by C \+0x0, hit once$'
  said_times 9 '^Codeheap breakpoint 2, .* in block [0-9]+ of square by C \+0x0, hit'
  said ', hit 9 times$'
  result_right
}

case_gdb_int3_counts_three_threads() {
  start registers
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
run 8 3 >$work/facts
codeheap break -int3 square
$to_the_end
EOF
  said_times 120 '^Codeheap breakpoint 1, '
  said ', hit 120 times$'
  result_right
}

# From one INT3 to the next by continue and stepi, both armed all the while.
case_gdb_int3_is_stepped_off() {
  start registers
  gdb_at_code <<EOF
codeheap break -int3 square
codeheap break -int3 sum
continue
stepi
printf "after %#lx\n", \$pc
continue
bt
stepi
stepi
printf "after %#lx\n", \$pc
codeheap break
codeheap delete 1
codeheap break
$to_the_end
EOF
  said "^after $(before_fact sum_entry -1)$"
  said "^after $(before_fact square_entry -4)$"
  said '^#1 .* in sum \[LIVE\]'
  said '^codeheap 1 +INT3 .* hit 1 times$'
  said '^1 breakpoints in code of heaps$'
  said_times 1 '^Codeheap breakpoint 1, '
  said_times 1 '^Codeheap breakpoint 2, '
  result_right
}

# Beyond three debug registers the kind is INT3, and the last register is a thread's to get past it.
case_gdb_kinds_mix_when_registers_run_out() {
  start registers
  gdb_at_code <<EOF
codeheap break sum
codeheap break \$sum_loop
codeheap break \$sum_return
codeheap break \$square_return
codeheap break square
info breakpoints
$to_the_end
EOF
  said_times 3 '^[0-9]+ +hw breakpoint'
  said_times 2 '^Codeheap breakpoint [12] \(INT3\) at '
  said_times 5 '^Codeheap breakpoint 1, '
  said_times 5 '^Codeheap breakpoint 2, '
  said_times 11 'Breakpoint [234], '
  result_right
}

# A stop for another reason, at an instruction whose INT3 is in: gdb has looked for the caller before the INT3 is out.
case_gdb_backtrace_is_right_where_both_kinds_stop() {
  start registers
  gdb_at_code <<EOF
codeheap break -hw square
codeheap break -int3 square
continue
bt
delete
codeheap delete
$to_the_end
EOF
  said '^#0 .* in square by C \[LIVE\]'
  said '^#1 .* in sum \[LIVE\]'
  result_right
}

case_gdb_hardware_breakpoint_has_conditions() {
  start registers
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
run 3 >$work/facts
codeheap break square if \$rdi == 4
codeheap break square if \$rdi > 100
codeheap break square if \$nothing->field
codeheap break
python attempt("break -int3 square if 1")
continue
codeheap break
$to_the_end
EOF
  said '^sentence: A condition needs a hardware breakpoint'
  said_times 3 'Breakpoint [23], '
  said_times 15 '^Breakpoint 4: the condition .*nothing->field. fails: '
  said_times 12 '^Breakpoint 4, '
  said_times 2 '^gdb 4 +hardware .* hit [01] times$'
  said '^gdb 4 .* hit 1 times$'
  said_times 2 '^3 breakpoints in code of heaps$'
  result_right
}

# break and disassemble take the same names: of an owner, of a block, of code without an owner.
case_gdb_blocks_are_named_alike_in_all_commands() {
  start registers
  export DEBUGGEE_SHAPES=1
  gdb_at_code <<EOF
codeheap disassemble sum
codeheap disassemble by C
codeheap disassemble square by C
codeheap disassemble loose-if
codeheap at nameless
python
for text in ("break -int3 by C", "break -int3 loose-if code", "disassemble dead", "disassemble fresh", "disassemble nosuch"):
    attempt(text)
end
codeheap break
$to_the_end
EOF
  said '^block [0-9]+ of sum, LIVE: '
  said_times 2 '^block [0-9]+ of square by C, LIVE: '
  said '^block [0-9]+ of loose-if code, LIVE: '
  said ' of code without a name, LIVE, at \+0x0$'
  said '^codeheap 1 +INT3 .* of square by C \+0x0, hit 0 times$'
  said '^codeheap 2 +INT3 .* of loose-if code \+0x0, hit 0 times$'
  said_times 5 '^Codeheap breakpoint 1, '
  said_times 1 '^Codeheap breakpoint 2, .* of loose-if code '
  said '^sentence: fresh has no code at this moment\.$'
  said '^sentence: .*"nosuch" in .* And no owner and no block has that name; .codeheap blocks. lists names\.$'
  result_right
}

case_gdb_backtrace_begins_among_many_nops() {
  start registers
  export DEBUGGEE_SHAPES=1
  gdb_at_code <<EOF
codeheap break -int3 loose-if code
continue
continue
bt
EOF
  said '^#0 .* in loose-if code \[LIVE\]'
}

# Of a user's own script, which has set what Python calls __file__.
case_gdb_commands_are_loaded_by_another_script_and_by_a_link() {
  echo "gdb.execute('source $PWD/tools/gdb/codeheap.py')" >"$work/outer.py"
  gdb -nx -batch -x "$work/outer.py" -ex 'codeheap stats' >"$work/said" 2>&1 </dev/null
  said 'There is no process and no core to look at'
  ln -s "$PWD/tools/gdb/codeheap.py" "$work/link.py"
  gdb -nx -batch -x "$work/link.py" -ex 'codeheap stats' >"$work/said" 2>&1 </dev/null
  said 'There is no process and no core to look at'
}

case_gdb_detach_leaves_no_breakpoint() {
  start registers
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
run 50 >$work/facts
codeheap break -int3 square
codeheap break -int3 sum
continue
continue
detach
EOF
  said_times 2 '^Codeheap breakpoint [12] \(INT3\) at '
  said_times 2 'Codeheap breakpoint [12], '
  goes_on_rightly
}

# gdb goes with the child, and leaves the parent, which runs on with what is in its code.
case_gdb_int3_is_taken_out_of_a_parent_that_is_left_at_a_fork() {
  start
  export DEBUGGEE_FORKS=1
  gdb_says "$work/debuggee" <<EOF
set follow-fork-mode child
break code_is_ready
run 1 >$work/facts
codeheap break -int3 square
continue
EOF
  said_times 1 '^Codeheap breakpoint 1 \(INT3\) at '
  goes_on_rightly
}

# A child that gdb keeps has no code when it begins, and ends before its parent runs on.
case_gdb_int3_is_of_the_process_that_it_was_set_in() {
  start registers
  export DEBUGGEE_FORKS=1
  gdb_says "$work/debuggee" <<EOF
set detach-on-fork off
break code_is_ready
run 1 >$work/facts
codeheap break -int3 square
catch fork
continue
next
inferior 2
continue
inferior 1
set \$_exitcode = \$_none
codeheap break
$to_the_end
EOF
  said '^.Inferior 2 .*exited normally'
  said '^codeheap 1 +INT3 .* hit 0 times$'
  said_times 5 '^Codeheap breakpoint 1, '
  result_right
}

# gdb stops with the second process; of the first, which goes on without gdb, it would have taken no INT3 out. Before the
# second process runs there is one.
case_gdb_int3_stays_out_where_gdb_resumes_two_processes() {
  start
  export DEBUGGEE_TWO_HEAPS=1
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
run 2000000000 >$work/facts
facts
add-inferior -exec $work/debuggee
set schedule-multiple on
codeheap break -int3 other
set schedule-multiple off
inferior 2
run 1 >$work/others
break checkpoint thread 2.1
inferior 1
set schedule-multiple on
python attempt("break -int3 sum")
continue
inferior 1
x/xb \$other_entry
kill inferiors 1 2
EOF
  said '^sentence: gdb resumes several processes at once \(schedule-multiple\): use -hw\.$'
  said '^Thread 2\.1 .* hit Breakpoint 2(\.2)?, checkpoint '
  said '^0x[0-9a-f]+( <.*>)?:[[:space:]]+0xb8$'
}

# Attached to a process that is busy in code, named at once, and left while it runs: no INT3 stays behind.
case_gdb_leaving_a_running_process_takes_int3_out() {
  start
  export DEBUGGEE_TWO_HEAPS=1
  "$work/debuggee" 2000000000 >"$work/facts" &
  pid=$!
  trap 'kill -KILL $pid; rm -rf "$work"' EXIT
  # The last fact that it tells before it runs the code.
  until grep -q '^fact tail_entry' "$work/facts"; do
    kill -0 $pid || fail "the debuggee does not start"
    sleep 0.1
  done
  cat >"$work/byte.py" <<EOF
with open("/proc/$pid/mem", "rb") as memory:
    memory.seek($(fact other_entry))
    print("byte", memory.read(1).hex())
EOF
  {
    printf '%s\n' "attach $pid" 'codeheap blocks' 'codeheap break -int3 other' 'continue &' "shell python3 $work/byte.py"
  } | gdb_says "$work/debuggee"
  skip_where_ptrace_is_refused "$work/said"
  said ' outer$'
  said '^byte cc$'
  python3 "$work/byte.py" | grep -q '^byte b8$' || fail "an INT3 stays in the code"
  kill -0 "$pid" || fail "the process has ended"
}

# The next process has its code elsewhere, and there are four registers.
case_gdb_hardware_break_ends_with_its_process() {
  start registers
  gdb_at_code <<EOF
codeheap break -hw square
codeheap break -hw sum
kill
run 1 >$work/facts
codeheap break
codeheap break -hw square
run 1 >$work/facts
info breakpoints
codeheap break -hw square
delete 1
$to_the_end
info breakpoints
EOF
  said_times 1 '^0 breakpoints in code of heaps$'
  ! grep -E '^[0-9]+ +hw breakpoint' "$work/said" || fail "a breakpoint has outlived its process"
  said '^Breakpoint 5, '
  result_right
}

# The block of a breakpoint dies, and another one takes its place. The stop between lets the INT3 be in the code, not
# under a thread that has just hit it.
break_and_reuse() { # break_and_reuse KIND
  start registers
  export DEBUGGEE_REUSE=1
  gdb_at_code <<EOF
continue
codeheap break $1 gone
break code_was_reused
continue
continue
continue
facts
codeheap at \$victim
x/2xb \$victim
$to_the_end
codeheap break
EOF
  grep -q '^reused 1$' "$work/facts" || fail "the place was not used again, so nothing was tried"
  said "^$(fact victim): block [0-9]+ of fresh, LIVE, at \+0x0$"
  said '^0x[0-9a-f]+( <.*>)?:[[:space:]]+0x6a[[:space:]]+0x09$'
  result_right
}
case_gdb_int3_leaves_reused_code_alone() {
  break_and_reuse -int3
  said_times 1 '^Codeheap breakpoint 1, '
  said '^Codeheap breakpoint 1 is deleted: block [0-9]+ of gone \+0x0 was freed'
}
case_gdb_hardware_break_ends_with_its_block() {
  break_and_reuse -hw
  said_times 1 'Breakpoint 2, '
  said '^Breakpoint 2 is deleted: block [0-9]+ of gone \+0x0 was freed'
}

# Between death and reuse the place holds traps, which are no INT3 of ours.
case_gdb_int3_leaves_freed_code_alone() {
  start registers
  export DEBUGGEE_REUSE=1
  gdb_at_code <<EOF
continue
codeheap break -int3 gone
break wipe_stack
continue
continue
facts
python
for cycle in range(100): # a word that an earlier call left on the stack may hold it for some cycles
    gdb.execute("continue")
    if "freed code" in gdb.execute("codeheap at \$victim", to_string=True):
        break
end
codeheap at \$victim
x/2xb \$victim
delete
$to_the_end
EOF
  said "^$(fact victim): freed code: block [0-9]+ of gone, freed at collection "
  said '^0x[0-9a-f]+( <.*>)?:[[:space:]]+0xcc[[:space:]]+0xcc$'
  said '^Codeheap breakpoint 1 is deleted'
  result_right
}

case_gdb_two_heaps_are_told_apart() {
  start
  export DEBUGGEE_TWO_HEAPS=1
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
facts
codeheap blocks
codeheap at \$other_entry
python attempt("disassemble 1")
EOF
  said "^ +2\.[0-9]+ +$(fact other_entry) .* LIVE +- other$"
  said '^ +1\.[0-9]+ .* LIVE +1/2 sum$'
  said "^$(fact other_entry): block 2\.[0-9]+ of other, LIVE, at \+0x0$"
  said '^sentence: There are 2 heaps: write HEAP\.1'
}

# There a lead stands before each stub, and gdb writes a breakpoint to the code itself: the write view is a copy.
case_gdb_code_that_the_system_writes_is_known() {
  start registers
  export CODEHEAP_WX=procmem
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
run 2 >$work/facts
codeheap stats
codeheap break -int3 square
break branch_hit
continue
bt
codeheap disassemble sum
$to_the_end
EOF
  said ' \(procmem\), pages of '
  said "^#[0-9] .* in sum \[LIVE\] \(\) at $work/debuggee:13$"
  said_times 2 'jmp +\*-?0x[0-9a-f]+\(%rip\).*; stub of branch [0-9]+$'
  said_times 2 'call +0x[0-9a-f]+ +; stub of branch [0-9]+$'
  said_times 0 '\(bad\)'
  said_times 10 '^Codeheap breakpoint 1, '
  result_right
}

# A second flavour is mapped beside the copy that all is bound to: its list is empty, and gdb takes the first for it.
case_gdb_unused_copy_of_the_library_has_no_heaps() {
  start
  cp "$build/libcodeheap-dl.so" "$work" || fail "there is no second flavour" # LD_PRELOAD takes no folder with a blank
  gdb_says "$work/debuggee" <<EOF
break checkpoint
set exec-wrapper env LD_PRELOAD=$work/libcodeheap-dl.so
run 1 >$work/facts
info sharedlibrary
codeheap blocks
codeheap stats
EOF
  said '/libcodeheap-dl\.so$'
  said '^ +[0-9]+ .* LIVE +1/2 sum$'
  said_times 1 ' sum$'
  said_times 1 '^heap 1 at 0x'
  said '^  code      0x[0-9a-f]+ \.\. 0x[0-9a-f]+, written at 0x[0-9a-f]+ \(dual\)'
}

# A sink that failed is off for the library at once, and leaves the copy that commits read with the next ch_sink_flush.
case_gdb_stats_name_no_sink_that_failed() {
  start
  gdb_says "$work/debuggee" <<EOF
set environment CODEHEAP_SINKS unwind,gdb
break checkpoint
run 1 >$work/facts
codeheap stats
set var *(unsigned *)&ch__heaps[1]->sinks->on = CH_SINK_UNWIND
codeheap stats
EOF
  said '^  sinks     unwind,gdb$'
  said '^  sinks     unwind$'
}

make_plug() { # a library that makes a heap when it is loaded
  cat >"$work/plug.c" <<'EOF'
#include <codeheap/codeheap.h>
#include <stdlib.h>
__attribute__((constructor)) static void begin(void)
{
	struct ch_heap *heap;
	int (*code)(void);
	if (ch_heap_create(NULL, &heap) || ch_code_add(heap, "\x31\xc0\xc3", 3, "in_plug", &code))
		abort();
}
EOF
  gcc -std=gnu11 -g -fPIC -shared -I. -o "$work/plug.so" "$work/plug.c" "$build/libcodeheap-dl.a" -Wl,--exclude-libs,ALL \
    -lm -pthread || fail "the plug-in cannot be made"
}

# Each of two copies has a heap 1, and a block of the same number. The second run lies elsewhere than the first.
case_gdb_heaps_of_two_copies_are_told_apart() {
  start
  make_plug
  gdb_says "$work/debuggee" <<EOF
break checkpoint
set exec-wrapper env LD_PRELOAD=$work/plug.so
set disable-randomization off
run 1 >$work/facts
codeheap at 0
run 1 >$work/facts
facts
codeheap blocks
python
from codeheap_gdb import heaps
found = {heap.library.object: heap for heap in heaps.all_heaps()}
plug = next(found["plug.so"].each_block()).index
attempt("disassemble 1.%d" % plug)
attempt("disassemble 1.%d@plug.so" % plug)
attempt("disassemble 1.%d@nosuch.so" % plug)
attempt("disassemble %d" % plug)
end
codeheap blocks heap 1@debuggee
codeheap stats
codeheap at \$sum_entry
EOF
  said '^ *1\.[0-9]+@plug\.so +0x[0-9a-f]+ .* in_plug$'
  said_times 2 '^ *1\.[0-9]+@debuggee +0x[0-9a-f]+ .* LIVE +1/2 sum$'
  said_times 1 ' in_plug$'
  said '^sentence: There are 2 heaps 1, one in each copy of the library: write 1\.[0-9]+@(plug\.so or 1.*@debuggee|debuggee or 1.*@plug\.so)\.$'
  said '^block 1\.[0-9]+@plug\.so of in_plug, LIVE'
  said '^sentence: There is no heap 1@nosuch\.so\.$'
  said '^sentence: There are 2 heaps: write HEAP\.[0-9]+, e\.g\. 1\.'
  said '^heap 1@plug\.so at 0x'
  said "^$(fact sum_entry): block 1\.[0-9]+@debuggee of sum, LIVE"
}

# The name of an object file goes into a command of gdb, where a quote ends a word and a line break the command.
case_gdb_obeys_no_name_of_an_object_file() {
  local folder
  start
  make_plug
  printf '#!/bin/sh\nLD_PRELOAD=$PLUG exec "$@"\n' >"$work/load" && chmod +x "$work/load"
  while read -r folder; do
    folder=$work/$(printf "$folder")
    mkdir "$folder" && cp "$work/plug.so" "$folder" || fail "no folder of that name"
    export PLUG=$folder/plug.so
    gdb_says "$work/debuggee" <<EOF
break checkpoint
set exec-wrapper $work/load
run 1 >$work/facts
info sharedlibrary
codeheap blocks ^in_plug
EOF
    said 'plug\.so$'
    said_times 0 '^obeyed$'
    case $folder in
      *quoted*) said_times 1 '^ *1\.[0-9]+@plug\.so .* in_plug$' ;;
    esac
  done <<'EOF'
quoted"\\x
two"\nshell\techo\tobeyed\nlines
EOF
}

# As packages have it. gdb lists the file of the debug information as an object beside the one that it is of.
case_gdb_debug_information_in_a_file_of_its_own_is_no_other_copy() {
  start
  objcopy --only-keep-debug "$work/debuggee" "$work/apart" && strip "$work/debuggee" &&
    objcopy --add-gnu-debuglink="$work/apart" "$work/debuggee" || fail "the debug information cannot be taken out"
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
bt
codeheap blocks
python
from codeheap_gdb import memory
first, second = memory.libraries(), memory.libraries()
print("libraries", [library.object for library in first], "kept" if first == second else "read again")
end
EOF
  said "^#1 .* in square by C \[LIVE\]"
  said '^ +[0-9]+ .* LIVE +1/2 sum$'
  said "^libraries \['debuggee'\] kept$"
}

# As gdb sees code of a machine that has no module: no command reads a stub there, none writes an INT3, and frames are gdb's.
case_gdb_other_machine_is_refused() {
  start
  gdb_at_code <<EOF
python
from codeheap_gdb import machine
machine.name = lambda: "aarch64"
for text in ('blocks', 'at \$pc', 'stats', 'disassemble \$sum_entry', 'break -int3 sum', 'break sum', 'break'):
    attempt(text)
end
bt
continue
EOF
  said_times 7 '^sentence: The codeheap commands know code for x86-64, and this is aarch64\.$'
  said 'exited normally'
  result_right
}

case_gdb_bad_arguments_are_sentences() {
  start
  gdb_at_code <<EOF
python
for text in ('at', 'at nosuch', 'at 1 +', 'at "abc"', 'at 0', 'at -1', 'blocks [', 'blocks heap 7', 'blocks no_such_name',
             'disassemble 99999', 'disassemble 7.1', 'disassemble main', 'disassemble', 'break nosuch', 'break -soft sum',
             'break -int3', 'break if 1', 'break main', 'break 99999', 'delete x', 'delete 5', 'stats all',
             'break -int3 square', 'delete \u00b2', 'disassemble ' + 5000 * '9', 'blocks a{99999999999}',
             'blocks ' + 3000 * '(', 'blocks heap ' + 5000 * '9'):
    print("asked:", text)
    attempt(text)
end
EOF
  said '^sentence: codeheap at needs an address'
  said '^sentence: .nosuch. is no address: No symbol "nosuch"'
  said_times 3 '^sentence: .* is no state and no regular expression'
  said '^sentence: .9+. is no address: Numeric constant too large'
  said_times 2 '^sentence: There is no heap 7\.$'
  said '^0 blocks$'
  said '^sentence: Heap 1 has no block 99999\.$'
  said '^sentence: 0x[0-9a-f]+ <main> is not in any code heap\. And no owner'
  said '^sentence: codeheap break knows -hw and -int3, not -soft\.$'
  said_times 2 '^sentence: codeheap break needs an address, a block or an owner\.$'
  said_times 3 '^sentence: .*no owner and no block has that name'
  said_times 3 '^sentence: There is no codeheap breakpoint (x|5|²)\.$'
  said '^sentence: codeheap stats takes no argument\.$'
}

# The program may stand where a death has taken the record and has not said yet who died.
case_gdb_tombstone_that_is_being_written_is_passed_over() {
  start
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
facts
codeheap at \$freed_entry
python
from codeheap_gdb import heaps
slot, stone = heaps.all_heaps()[0].tombstone(int(gdb.parse_and_eval("(long)\$freed_entry")))
gdb.selected_inferior().write_memory(stone.address_of("dead"), bytes(8))
end
codeheap at \$freed_entry
EOF
  said_times 1 'freed code: block '
  said_times 1 "^$(fact freed_entry): unused bytes of page 0 of heap 1 .*: no block, and none freed there on record$"
}

# Fields of records as a wild store leaves them: each command is a sentence, and gdb's own backtrace goes on.
case_gdb_damaged_records_are_sentences() {
  start registers
  gdb_says "$work/debuggee" <<EOF
break code_is_ready
break checkpoint
run 1 >$work/facts
facts
continue
codeheap break -int3 square
codeheap break -hw sum
python
def ask(field, value):
    at = "ch__heaps[1]" + field.replace(".", "->", 1)
    before = int(gdb.parse_and_eval(at))
    gdb.execute("set var %s = %dUL" % (at, value))
    for text in ("blocks", "at \$sum_return", "at \$freed_entry", "stats", "disassemble sum", "break"):
        try:
            gdb.execute("codeheap " + text, to_string=True)
        except gdb.error as error:
            print("sentence:", error)
    gdb.execute("bt 3")
    gdb.execute("set var %s = %dUL" % (at, before))
for field, value in ((".pool->page_log2", 3), (".pool->page_log2", 255), (".pool->page_log2", 45), (".pool->pages", 8),
                     (".pool->starts", 2**64 - 8), (".pool", 2**64 - 8), ("", 8), (".blocks.record_bytes", 1), (".blocks.base", 8), (".names.record_bytes", 0)):
    ask(field, value)
end
codeheap at \$sum_return
set var ch__heaps[1]->blocks.record_bytes = 1
continue
EOF
  said_times 10 '^#0 .*checkpoint'
  said_times 10 '^#2 '
  [ "$(grep -c "^sentence: The heap's records cannot be followed: " "$work/said")" -gt 9 ] || fail "hardly a sentence"
  said "^$(fact sum_return): block [0-9]+ of sum, LIVE"
  said_times 1 '^Codeheap breakpoint 1 is deleted: .* or its record is damaged\.$'
}

# Neither has registers, and gdb knows no frame of it.
thread_is_asked() { # thread_is_asked WHY <commands that leave such a thread selected
  {
    cat
    cat <<'EOF'
python
for text in ("disassemble square", "at $pc", "disassemble", "break -int3 square", "break"):
    attempt(text)
end
EOF
  } | gdb_says "$work/debuggee"
  said '^block [0-9]+ of square by C, LIVE: '
  said_times 2 "^sentence: .\\\$pc. is no address: $1"
  said '^sentence: The selected thread runs or has ended'
  said '^0 breakpoints in code of heaps$'
}
case_gdb_threads_that_run_or_have_ended_are_sentences() {
  start
  thread_is_asked 'The current thread has terminated' <<EOF
break checkpoint
run 1 2 >$work/facts
thread 2
set scheduler-locking on
delete
continue
EOF
  thread_is_asked 'Selected thread is running' <<EOF
break code_is_ready
run 2000000000 >$work/facts
continue &
EOF
}

# Not the start of an instruction, a patch point, code that nothing runs, a place that has one.
case_gdb_break_refuses_what_cannot_work() {
  start
  gdb_says "$work/debuggee" <<EOF
break checkpoint
run 1 >$work/facts
facts
python
for text in ("\$sum_entry + 2", "\$sum_point", "outer", "\$freed_entry", "sum", "sum"):
    attempt("break -int3 " + text)
for text in ("outer if \$rax == 1", "outer if \$rax == 1", "outer", "outer if"):
    attempt("break -hw " + text)
end
codeheap break
python attempt("break -int3 (long)\$square_entry + ch__heaps[1]->pool->delta")
handle SIGTRAP nostop noprint pass
python attempt("break -int3 tail")
EOF
  said '^sentence: 0x[0-9a-f]+ is within an instruction or a literal of block'
  said "^sentence: $(fact outer_entry) is rewritten by the library .* use -hw there\.$"
  said "^sentence: $(fact sum_point) is rewritten by the library .* use -hw there\.$"
  said '^sentence: .*freed code: block [0-9]+ of dead'
  said '^taken: break -int3 sum$'
  said '^taken: break -hw outer if .rax == 1$'
  said_times 2 '^sentence: There is a codeheap breakpoint at'
  said '^sentence: `if` needs a condition behind it'
  said '^taken: break -hw outer$'
  said "hardware  $(fact outer_entry) .* if .rax == 1, hit 0 times$"
  said "^Codeheap breakpoint 2 \(INT3\) at $(fact square_entry): block [0-9]+ of square by C \+0x0$"
  said '^sentence: gdb does not stop at SIGTRAP'
  gdb_says "$work/debuggee" <<EOF
set non-stop on
break checkpoint
run 1 >$work/facts
python attempt("break -int3 square")
EOF
  said '^sentence: In non-stop mode only hardware breakpoints work: use -hw\.$'
}

case_gdb_says_what_is_missing() {
  start
  gdb_says "$work/debuggee" <<<'codeheap blocks'
  said '^There is no process and no core'
  gdb_says /bin/true <<<$'starti\nbt\ncodeheap stats'
  said '^#0 '
  said '^The program does not use libcodeheap'
  strip -g -o "$work/stripped" "$work/debuggee"
  gdb_says "$work/stripped" <<<"$(printf '%s\n' 'break code_is_ready' "run 1 >$work/facts" bt 'codeheap blocks')"
  said '^#0 .*code_is_ready'
  said 'debug information is missing'
}

# A VM with many branches: every block is decoded, and bt names each Scheme procedure down to main.
case_gdb_scheme_frames_reach_main() {
  cat >"$work/program.scm" <<'EOF'
(define (square x) (* x x))
(define (sum n acc) (if (= n 0) (begin (code-collect!) acc) (sum (- n 1) (+ acc (square n)))))
(define (go k) (if (= k 0) 0 (+ (sum 10 0) (go (- k 1)))))
(display (go 3))
(newline)
EOF
  export CODEHEAP_SINKS=none
  gdb_says "$build/scheme" "$work/program.scm" <<'EOF'
break code_collect
run
continue
bt
codeheap blocks live scm::
python
import gdb
from codeheap_gdb import heaps
heap = heaps.all_heaps()[0]
blocks = [block for block in heap.each_block() if block.is_published]
linked = wrong = 0
for block in blocks:
    linked += gdb.execute(f"codeheap disassemble {block.number}", to_string=True).count(": linked to block")
    found = heap.find(block.entry)
    wrong += found is None or found.index != block.index
print("linked", linked, "of", heap.record["branches_linked"] - heap.record["branches_unlinked"])
print("wrong", wrong, "of", len(blocks))
end
delete
continue
EOF
  said '^#1 .* in scm::sum program.scm:2 \[LIVE\]'
  said '^#2 .* in scm::go program.scm:3 \[LIVE\]'
  said '^#3 .* in scm::go program.scm:3 \[LIVE\]'
  said '^#4 .* in scm::toplevel program.scm:4 \[LIVE\]'
  said '^#[0-9]+ .* main \('
  said '^linked ([1-9][0-9]*) of \1$'
  said '^wrong 0 of [1-9]'
  said '^1155$'
}

# (fib 6) makes 25 calls of fib, each by a branch to the block that it begins with: the sum is there so that no test in
# front of a call does without it.
case_gdb_scheme_breakpoints_count_calls() {
  start registers
  cat >"$work/program.scm" <<'EOF'
(define (fib n) (if (< n 2) (+ n 0) (+ (fib (- n 1)) (fib (- n 2)))))
(define (run n) (fib n))
(display (run 5))
(newline)
(code-stats)
(display (run 6))
(newline)
EOF
  gdb_says "$build/scheme" "$work/program.scm" <<EOF
break code_stats
run
delete
codeheap break -int3 scm::fib
$to_the_end
EOF
  said '^8$'
  said_times 25 '^Codeheap breakpoint 1, .* of scm::fib program.scm:1 '
}

if [ $# = 0 ]; then
  left_out='^none$'
  [ "${CODEHEAP_TEST_GC:-bdw}" != none ] || left_out='^gdb_scheme_'
  list_functions 240 | grep -vE "$left_out"
  exit 0
fi
"case_$1"
