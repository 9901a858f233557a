#!/bin/bash
# SPDX-License-Identifier: MIT
# What tools/callgrind reads: programs of a known shape are compiled and profiled, and the call graph that is read must be
# the one that tests/callgrind/graph.py reads, and have that shape; each rule of the reader, broken in a copy, is noticed by a
# profile. The profile that callgrind-names writes is the same to callgrind_annotate. Without arguments it lists its
# cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
cases="reader_shapes:300 reader_shapes_in_every_form:600 reader_parts_are_added_up:300 reader_thread_local_variables:120
reader_made_up_profiles:120 reader_cachegrind:120 reader_events_of_several_profiles:120 reader_profile_that_begins_in_blocks:120
reader_survives_any_input:600 reader_without_memory:300"
with_gc="reader_scheme_program:300"

if [ $# = 0 ]; then
  [ "${CODEHEAP_TEST_GC:-bdw}" = none ] || cases="$cases $with_gc" # the Scheme needs libgc
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=reader_broken_rules_are_noticed:400
  list_cases $cases
  exit 0
fi
. tests/callgrind/profiles.sh

build_shapes() { compile shapes -I. "$here/shapes.c" "$here/shapes_b.c" -lpthread; }

# ---- shapes ------------------------------------------------------------------------------------------------------------

# What is so of the shapes however they are profiled.
shapes_in_any_form() {
  cat <<'END'
own /shapes
calls main chain_a 1
callers chain_a main
calls chain_a chain_b 2
calls chain_b chain_c 2
calls chain_a chain_c 0
callees chain_a chain_b
callees chain_c
calls diamond_top diamond_left 1
calls diamond_left diamond_bottom 1
calls diamond_right diamond_bottom 2
callers diamond_bottom diamond_left diamond_right
calls diamond_top diamond_bottom 0
callees tail_a tail_b
callees tail_b tail_c
callers tail_c tail_b
calls main tail_a 6
calls tail_a tail_b 6
calls tail_b tail_c 6
callees looping
callers looping main thread_work
calls cycles_of_things make_thing 20
calls cycles_of_things work_on_thing 20
calls cycles_of_things drop_thing 20
callees make_thing
callees drop_thing
callees work_on_thing
callers work_on_thing cycles_of_things
calls make_thing malloc 20
calls drop_thing free 20
calls work_on_thing free 0
calls jump_scene jump_outer 2
calls jump_outer jump_middle 2
calls jump_middle jump_out 2
callees jump_out
calls jump_scene after_jumps 1
callers after_jumps jump_scene
nodes same_name 2
calls statics_of_a same_name@shapes.c 2
calls statics_of_a same_name@shapes_b.c 0
calls statics_of_b same_name@shapes_b.c 3
calls statics_of_b same_name@shapes.c 0
callees same_name@shapes.c
callees same_name@shapes_b.c
file inlines shapes.c
file header_leaf shapes.h
callees inlines chain_c header_leaf
calls inlines chain_c 2
calls inlines header_leaf 1
callees behind_inlines chain_c
callers chain_c behind_inlines chain_b inlines
END
}
with_recursion_in_two() {
  cat <<'END'
calls main fibonacci 1
calls fibonacci fibonacci'2 2
calls fibonacci'2 fibonacci'2 174
callers fibonacci main
callers fibonacci'2 fibonacci fibonacci'2
loops fibonacci'2
calls main mutual_even 1
calls mutual_even mutual_odd 1
calls mutual_odd mutual_even'2 1
calls mutual_even'2 mutual_odd'2 4
calls mutual_odd'2 mutual_even'2 3
callees mutual_even mutual_odd
END
}

reader_shapes() {
  build_printer . "$work/print_graph"
  build_shapes
  profile shapes.out shapes
  graph shapes.out < <(shapes_in_any_form; with_recursion_in_two)
  same_named shapes.out
}

reader_shapes_in_every_form() {
  build_printer . "$work/print_graph"
  build_shapes
  # Callers are behind the names there.
  profile callers shapes --separate-callers=2 --separate-recs=3
  graph callers <<'END'
nodes chain_c 0
calls chain_b'chain_a'main chain_c'chain_b'chain_a 2
calls "inlines'main'(below main)" chain_c'inlines'main 2
calls "fibonacci'main'(below main)" "fibonacci'2'main'(below main)" 2
calls "fibonacci'2'main'(below main)" "fibonacci'3'main'(below main)" 4
calls "fibonacci'3'main'(below main)" "fibonacci'3'main'(below main)" 170
own /shapes
loops "fibonacci'3'main'(below main)"
END
  same_named callers
  profile one_level shapes --separate-recs=1
  graph one_level < <(shapes_in_any_form; echo 'calls fibonacci fibonacci 176'; echo 'callers fibonacci fibonacci main'
    echo 'loops fibonacci'; echo 'calls mutual_even mutual_odd 5'; echo 'calls mutual_odd mutual_even 4')
  same_named one_level
  profile instructions shapes --dump-instr=yes --collect-jumps=yes
  [ "$(grep -c '^jcnd=' "$work/instructions")" -gt 100 ] || fail 'there are no jumps'
  graph instructions < <(shapes_in_any_form; with_recursion_in_two)
  same_named instructions
  grep -q '^jcnd=' "$work/named" && grep -q '^positions: instr line' "$work/named" || fail 'jumps or instructions are lost'
  profile no_lines shapes --dump-instr=yes --dump-line=no --dump-bb=yes
  graph no_lines < <(shapes_in_any_form; with_recursion_in_two)
  same_named no_lines
  profile plain shapes --compress-strings=no --compress-pos=no
  ! grep -q '^fn=(1)' "$work/plain" || fail 'names are compressed'
  graph plain < <(shapes_in_any_form; with_recursion_in_two)
  same_named plain
  profile events shapes --cache-sim=yes --branch-sim=yes
  graph events < <(shapes_in_any_form; with_recursion_in_two; printf 'event %s\n' Ir Dr DLmw Bc Bim)
  same_named events
  sed 's/^cfi=/cfl=/' "$work/instructions" >"$work/cfl"
  graph cfl < <(shapes_in_any_form; with_recursion_in_two)
}

reader_parts_are_added_up() {
  build_printer . "$work/print_graph"
  build_shapes
  local -a forms=(--dump-instr=yes)
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || forms+=(--dump-instr=no)
  for form in "${forms[@]}"; do
    profile parts shapes "$form" --combine-dumps=yes --dump-before='chain_a' --dump-before='after_jumps'
    [ "$(grep -c '^part:' "$work/parts")" = 3 ] || fail "there are $(grep -c '^part:' "$work/parts") parts"
    graph parts < <(shapes_in_any_form; with_recursion_in_two)
    same_named parts
    rm -f "$work"/files*
    profile files shapes "$form" --dump-before='chain_a' --dump-before='after_jumps'
    graph files files.1 files.2 < <(shapes_in_any_form; with_recursion_in_two)
    graph files.2 files files.1 < <(shapes_in_any_form; with_recursion_in_two)
    must "$names" --perf-map=/dev/null --output="$work/together" "$work"/files.1 "$work"/files.2 "$work"/files
    graph together < <(shapes_in_any_form; with_recursion_in_two)
  done
  rm -f "$work"/files*
  profile files shapes --separate-threads=yes
  [ -s "$work/files-02" ] || fail 'threads have no files of their own'
  graph files-01 < <(echo 'own /shapes'; echo 'callers looping main'; echo 'nodes thread_work 0')
  graph files-02 < <(echo 'own /shapes'; echo 'callers looping thread_work'; echo 'nodes main 0')
  graph files-01 files-02 < <(shapes_in_any_form; with_recursion_in_two)
}

reader_thread_local_variables() {
  build_printer . "$work/print_graph"
  must "$cc" -O1 -g -fPIC -shared -o "$work/libtls_library.so" "$here/tls_library.c"
  compile tls "$here/tls.c" -L"$work" -ltls_library -Wl,-rpath,"$work" -lpthread
  profile tls.out tls
  graph tls.out <<'END'
own /tls /libtls_library.so
calls tls_work tls_outer 40
calls tls_outer tls_bump 80
callers tls_bump tls_outer
callees tls_outer tls_bump
callees tls_bump
calls tls_bump __tls_get_addr 80
callers __tls_get_addr tls_bump
loops
END
  same_named tls.out
}

reader_cachegrind() {
  build_printer . "$work/print_graph"
  build_shapes
  must valgrind -q --tool=cachegrind --cache-sim=yes --cachegrind-out-file="$work/cachegrind.out" "$work/shapes"
  grep -q '^summary:' "$work/cachegrind.out" || fail 'cachegrind has another format'
  # A function has a node for each file that its lines are from.
  graph cachegrind.out <<'END'
nodes fibonacci 1
nodes chain_c 1
nodes same_name 3
nodes same_name@shapes_b.c 1
nodes inlines@shapes.h 1
calls main fibonacci 0
loops
event Ir
event Dw
END
  must "$names" --output="$work/named" "$work/cachegrind.out"
  cmp "$work/cachegrind.out" "$work/named" || fail 'a profile by cachegrind changes'
  # Its sum is the one that cachegrind says.
  diff <("$work/print_graph" "$work/cachegrind.out" | sed -n 's/^totals\t//p' | tr '\t' ' ') \
    <(sed -n 's/^summary: //p' "$work/cachegrind.out" | sed 's/ *$//') || fail 'the sums are others'
}

reader_events_of_several_profiles() {
  build_printer . "$work/print_graph"
  build_shapes
  profile branches shapes --branch-sim=yes
  profile cache shapes --cache-sim=yes
  graph branches cache < <(echo 'calls main fibonacci 2'; printf 'event %s\n' Ir Bc Dr)
  graph cache branches < <(echo 'calls main fibonacci 2'; printf 'event %s\n' Ir Bc Dr)
}

# What callgrind does not write, or not always, and others may.
made_up_profiles() {
  local h='positions: line\nevents: Ir\n'
  printf "${h}fl=a.c\nfn=f\n1 1\nfi=b.h\n2 1\ncfn=inner\ncalls=1 1\n2 5\nfn=g\n3 1\ncfn=h\ncalls=2 1\n3 4\n" >"$work/inlined_last"
  printf "${h}ob=x\nfl=a.c\nfn=f\ncob=y\ncfi=b.c\ncfn=gone\nfn=g\ncfn=h\ncalls=2 1\n3 4\ncob=z\n4 1\ncfn=i\ncalls=1 1\n3 4\ncob=w\nfi=c.h\ncfn=j\ncalls=1 1\n3 4\n" \
    >"$work/callee_without_calls"
  printf "${h}fn=f\n1 1\ncfn=f\nrcalls=3 1\n# a comment\n\n1 7\ncfn=f\ncalls=2 1\n1 7\n" >"$work/old_recursion"
  printf "${h}fl=(1) a\nfn=(1) f\n1 1\nfn=(2) g\n1 1\n${h}fl=(1) b\nfn=(1)\n1 4\nfn=(2) h\n2 2\nfn=(1) g\n1 1\nfn=(2)\n5 1\n" >"$work/ids_anew"
  printf "positions: line\nevents: Ir Ir Dr\nfn=f\n1 1 2 3\nfn=f\n* 4\n" >"$work/one_event_twice"
  printf "${h}fn=f\n1 18446744073709551615\n${h}fn=g\n1 1\n" >"$work/too_much"
}
reader_made_up_profiles() {
  build_printer . "$work/print_graph"
  made_up_profiles
  graph inlined_last <<<$'file g a.c\nfile h a.c\nfile inner b.h\ncalls f inner 1\ncalls g h 2\nnodes h 1'
  graph callee_without_calls <<<$'nodes gone 0\nnodes f 0\ncalls g h@x 2\ncalls g i@x 1\ncalls g j@x 1\nfile h a.c'
  graph old_recursion <<<$'calls f f 5\nloops f'
  graph ids_anew <<<$'nodes f@a 1\nnodes f@b 1\nnodes g@a 1\nnodes h@b 1\nnodes g@b 1'
  "$work/print_graph" "$work/one_event_twice" | grep -qx $'totals\t7\t3' || fail 'an event that is there twice'
  "$work/print_graph" "$work/too_much" 2>"$work/said" && fail 'a sum of 65 bits'
  grep -q 'too_much:8: .*64 bits' "$work/said" || fail "says $(cat "$work/said")"
}

# ---- code made at run time ---------------------------------------------------------------------------------------------

reader_profile_that_begins_in_blocks() {
  [ "$(uname -m)" = x86_64 ] || exit 77
  build_printer . "$work/print_graph"
  mkdir "$work/include"
  ln -s "$PWD/codeheap" "$work/include/codeheap"
  compile deep_start -I"$work/include" "$here/deep_start.c" "$build/libcodeheap.a" -lpthread -lm
  export CODEHEAP_SINKS=perfmap
  # callgrind finds the frames in which it begins; so main, which it never saw call, calls outer.
  profile deep deep_start --instr-atstart=no
  named_graph deep <<'END'
own /deep_start ???
callers middle outer
calls outer middle 3
callers leaf middle
calls middle leaf 6
callees leaf work
calls leaf work 6
callers work leaf
callees work
callees begin_profile
callers outer main
loops
file main deep_start.c
nodes compile 0
END
  rm -f "$map"
  must valgrind -q --tool=callgrind --callgrind-out-file="$work/whole" "$work/deep_start" whole
  named_graph whole <<'END'
calls main outer 1
calls outer middle 3
calls middle begin_profile 3
calls middle leaf 6
calls leaf work 6
callers work leaf
callees leaf work
callees outer middle
END
  judge whole
}

reader_scheme_program() {
  build_printer . "$work/print_graph"
  cat >"$work/work.scm" <<'END'
(define (fib n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2)))))
(define (is-even? n) (if (= n 0) #t (not (is-odd? (- n 1)))))
(define (is-odd? n) (if (= n 0) #f (not (is-even? (- n 1)))))
(define (leaf x) (+ x 1))
(define (left x) (+ 1 (leaf x)))
(define (right x) (+ 2 (leaf x)))
(define (top n) (if (= n 0) 0 (+ (left n) (right n) (top (- n 1)))))
(display (fib 15)) (newline)
(display (is-even? 50)) (newline)
(display (top 100)) (newline)
END
  export CODEHEAP_SINKS=perfmap
  must valgrind -q --tool=callgrind --separate-recs=1 --callgrind-out-file="$work/scheme.out" "$build/scheme" --jit "$work/work.scm"
  # A block's cold bytes are a range of their own, with its name. The first call of a procedure that is not compiled yet
  # is the runtime's.
  named_graph scheme.out --by-name <<END
own ???
callers "scm::leaf work.scm:4" "scm::left work.scm:5" "scm::right work.scm:6"
callees "scm::leaf work.scm:4"
calls "scm::left work.scm:5" "scm::leaf work.scm:4" 99
calls "scm::right work.scm:6" "scm::leaf work.scm:4" 99
calls "scm::left work.scm:5" "scm::left work.scm:5" 0
calls "scm::left work.scm:5" "scm::right work.scm:6" 0
calls "scm::top work.scm:7" "scm::leaf work.scm:4" 0
calls "scm::leaf work.scm:4" "scm::left work.scm:5" 0
calls "scm::fib work.scm:1" "scm::top work.scm:7" 0
callees "scm::fib work.scm:1" "scm::fib work.scm:1" codeheap_runtime
callers "scm::left work.scm:5" "scm::top work.scm:7"
callers "scm::right work.scm:6" "scm::top work.scm:7"
nodes "scm::fib work.scm:1" 1
END
  judge scheme.out by-name
  named_graph scheme.out </dev/null
  judge scheme.out
}

# ---- what must be noticed ------------------------------------------------------------------------------------------------

# is_right PROFILE..: with the printer as it is.
is_right() { (graph "$@" </dev/null) >/dev/null 2>&1; }

# rule PROFILES FILE PATTERN TEXT: in a copy of the reader the lines with the pattern get another text; the graph of the
# profiles is another then, or none.
rule() {
  local profiles=$1 file=$2 pattern=$3 text=$4
  rm -rf "$work/broken"
  mkdir -p "$work/broken/tools"
  cp -r tools/callgrind "$work/broken/tools"
  sed -i "s@$pattern@$text@" "$work/broken/tools/callgrind/$file"
  ! cmp -s "tools/callgrind/$file" "$work/broken/tools/callgrind/$file" || fail "there is no '$pattern' in $file to break"
  build_printer "$work/broken" "$work/print_graph"
  ! is_right $profiles || fail "nobody notices in $profiles when '$pattern' is '$text'"
  count=$((count + 1))
}

reader_broken_rules_are_noticed() {
  local count=0
  build_printer . "$work/print_graph"
  build_shapes
  profile shapes.out shapes
  profile instructions shapes --dump-instr=yes --collect-jumps=yes
  sed 's/^cfi=/cfl=/' "$work/shapes.out" >"$work/cfl"
  profile callers shapes --separate-callers=2
  profile branches shapes --branch-sim=yes
  profile cache shapes --cache-sim=yes
  profile parts shapes --combine-dumps=yes --dump-before=chain_a --dump-before=after_jumps
  profile files shapes --dump-before=chain_a --dump-before=after_jumps
  must valgrind -q --tool=cachegrind --cachegrind-out-file="$work/cachegrind.out" "$work/shapes"
  for profiles in shapes.out callers instructions cfl parts 'files files.1 files.2' 'branches cache' cachegrind.out; do
    is_right $profiles || fail "$profiles: the rules themselves"
  done
  made_up_profiles
  rule inlined_last reader.c 'reader->line_file = reader->now.file' 'if (line->key.at[1] == 108) reader->line_file = reader->now.file'
  rule callee_without_calls reader.c 'if (specs\[i\].role == CG_OF_FUNCTION ||' 'if ('
  rule callee_without_calls reader.c '|| specs\[i\].role == CG_OF_LINES)' ')'
  rule old_recursion reader.c '"rcalls"' '"scalls"'
  rule ids_anew reader.c 'line->definition->text = line->name = text;' 'if (!line->definition->text.at) line->definition->text = text; line->name = text;'
  # Names.
  rule shapes.out reader.c '"cob", CG_OBJECT' '"cob", CG_FILE'
  rule shapes.out reader.c '"cfi", CG_FILE' '"cfi", CG_OBJECT'
  rule shapes.out reader.c '"cfn", CG_FUNCTION' '"cfn", CG_FILE'
  rule shapes.out reader.c '"fi", CG_FILE' '"fi", CG_FUNCTION'
  rule instructions reader.c '"jfi", CG_FILE' '"jfi", CG_OBJECT'
  rule cfl reader.c '"cfl", CG_FILE' '"cfx", CG_FILE'
  rule shapes.out reader.c 'reader->ids\[line->space\]' 'reader->ids[0]'
  # Inlined code.
  rule shapes.out reader.c '"fe", CG_FILE, offsetof(struct cg_reader, line_file), CG_OF_LINES' '"fe", CG_FILE, 0, CG_OF_JUMP'
  rule shapes.out reader.c '"fi", CG_FILE, offsetof(struct cg_reader, line_file), CG_OF_LINES' '"fi", CG_FILE, 0, CG_OF_JUMP'
  rule shapes.out reader.c '"fi", CG_FILE, offsetof(struct cg_reader, line_file)' '"fi", CG_FILE, offsetof(struct cg_reader, now.file)'
  rule shapes.out reader.c 'reader->called.file = reader->line_file' 'reader->called.file = reader->now.file'
  rule shapes.out reader.c 'reader->line_file = reader->now.file' ''
  # Callees.
  rule shapes.out reader.c '\treader->called = (struct cg_place){0};' '\t;'
  rule shapes.out reader.c 'reader->called.object = reader->now.object' 'reader->called.object.at = ""'
  rule shapes.out graph.c 'cg_graph_node(graph, \&part->reader.called, \&callee)' 'cg_graph_node(graph, \&part->reader.now, \&callee)'
  rule shapes.out graph.c 'cg_graph_edge(graph, part->node, callee' 'cg_graph_edge(graph, callee, part->node'
  rule shapes.out graph.c 'cg_graph_add(graph, \&graph->edges\[part->edge\].calls, line->times)' '(graph->edges[part->edge].calls = line->times)'
  rule instructions reader.c 'line->kind = is_call ? CG_CALLS : CG_JUMP' 'line->kind = CG_CALLS'
  rule shapes.out reader.c 'reader->awaited = is_call ? CG_CALL_COST : CG_JUMP_FROM' 'reader->awaited = CG_SKIPPED'
  # Nodes.
  rule shapes.out graph.c 'keep_text(graph, place->object' 'keep_text(graph, cg_text("", 0)'
  rule shapes.out graph.c 'keep_text(graph, place->file' 'keep_text(graph, cg_text("", 0)'
  rule shapes.out graph.c 'keep_text(graph, place->function' \
    'keep_text(graph, cg_text(place->function.at, memchr(place->function.at, 39, place->function.length) ? (size_t)((char *)memchr(place->function.at, 39, place->function.length) - place->function.at) : place->function.length)'
  rule shapes.out graph.c 'entry->flag = true' ''
  rule callers graph.c 'is_address ||' ''
  # Positions, costs, events.
  rule instructions reader.c 'for (reader->position_count = 0;' 'for (reader->position_count = 1;'
  rule instructions reader.c 'base = 16,' 'base = 10,'
  rule cachegrind.out reader.c 'i == reader->event_count' 'i == 1'
  rule 'branches cache' graph.c '\&part->event_of\[i\]))' '(part->event_of[i] = i, \&(unsigned){0})))'
  rule 'branches cache' graph.c 'is_good = widen(\&graph->nodes' 'is_good = i >= 0 || widen(\&graph->nodes'
  # Parts.
  rule parts graph.c 'part->node = UINT32_MAX' ';'
  rule parts graph.c 'part->graph->part_count++' ''
  rule parts graph.c 'if (!entry->flag) {' 'if (!entry->flag || graph->part_count == 2) {'
  rule 'files files.1 files.2' graph.c 'if (!entry->flag) {' 'if (!entry->flag || graph->part_count == 2) {'
  echo "$count broken rules"
}

# ---- any input -----------------------------------------------------------------------------------------------------------

# Pieces of profiles with bytes, lines and words changed at random, under the address and undefined behaviour sanitizers:
# read, or refused with a line and a reason: 900 of them, 40,000 with LONG=1. CODEHEAP_TEST_SEED says from where.
reader_survives_any_input() {
  local inputs=900
  [ "${CODEHEAP_TEST_LONG:-}" != 1 ] || inputs=40000
  must "$cc" -std=gnu11 -w -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -I. -o "$work/read_many" \
    "$here/read_many.c" tools/callgrind/{graph,names,output,perf_map,reader,table}.c flame/flame_text.c
  build_shapes
  profile instructions shapes --dump-instr=yes --collect-jumps=yes
  profile parts shapes --combine-dumps=yes --dump-before=chain_a --cache-sim=yes
  must valgrind -q --tool=cachegrind --cachegrind-out-file="$work/cachegrind.out" "$work/shapes"
  printf '1000 100 one\n2000 100 two\n3000 100 one\n' >"$work/map"
  python3 "$here/mutate.py" "$work/read_many" "$work/map" $inputs "${CODEHEAP_TEST_SEED:-1}" \
    "$work/instructions" "$work/parts" "$work/cachegrind.out" || exit 1
}

# Each allocation fails in turn: that is told, nothing is lost to the leak checker, and in the end nothing fails.
reader_without_memory() {
  must "$cc" -std=gnu11 -w -O0 -g -fsanitize=address,undefined -fno-sanitize-recover=all -I. -o "$work/read_many" \
    -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc "$here/read_many.c" "$here/failing_memory.c" \
    tools/callgrind/{graph,names,output,perf_map,reader,table}.c flame/flame_text.c
  printf '1000 100 one\n2000 100 two\n3000 100 one\n' >"$work/map"
  python3 - >"$work/input" <<'END'
import struct, sys
text = b"events: Ir\nfl=a\nfn=(1) f\n1 1\ncfn=(2) 0x1000\ncalls=1 1\n1 5\nfn=(3) 0x3000'2\n1 1\nevents: Dr\nfn=(2)\n1 1\n"
sys.stdout.buffer.write(struct.pack("=I", len(text)) + text)
END
  local at=0 said= refused=0
  while [ $((at += 1)) -lt 2000 ]; do
    said=$(CODEHEAP_TEST_FAIL_AT=$at "$work/read_many" "$work/map" <"$work/input" 2>"$work/said")
    case $said in
      read*) break ;;
      refused*memory*) refused=$((refused + 1)) ;;
      # The first is of the program that reads.
      *) [ ! -s "$work/said" ] && [ $at = 1 ] || fail "allocation $at: '$said' $(head -30 "$work/said")" ;;
    esac
    [ ! -s "$work/said" ] || fail "allocation $at: $(head -30 "$work/said")"
  done
  [ "$refused" -gt 40 ] && [ "$said" = 'read 4 1' ] || fail "after $refused failures: $said"
  echo "$refused failures"
}

run_listed "$1" $cases $with_gc reader_broken_rules_are_noticed
