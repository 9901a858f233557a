#!/bin/bash
# SPDX-License-Identifier: MIT
# Flame graphs in a real browser: Debian's chromium, without a screen, driven by tests/flame/browser.py. Boxes lie where the
# stacks say, a click zooms, search marks; and each rule, broken in a copy of the sources, is noticed.
#
#     flame.sh         lists the cases: name limit signal alone|-
#     flame.sh NAME    runs one: 0 passed, 77 skipped, else failed
. tests/support/script.sh
cases="flame_browser_draws_what_the_stacks_say:600 flame_icicle_and_reversed_in_a_browser:600
flame_needs_neither_script_nor_another_file:600 flame_click_zooms_and_reset_restores:600
flame_search_marks_matches_and_says_their_share:600 flame_keyboard_is_enough:600 flame_names_run_nothing_in_a_browser:600"

if [ $# = 0 ]; then
  # What breaks copies of the sources belongs to `make mutants`.
  [ -z "${CODEHEAP_TEST_BROKEN:-}" ] || cases=flame_broken_rules_are_noticed:600
  list_cases $cases
  exit 0
fi
for tool in chromedriver chromium; do
  command -v $tool >/dev/null || { echo "skip: there is no $tool"; exit 77; }
done
mkdir -p "$build" || exit 1
make_work
fail() { echo "flame: $*" >&2; exit 1; }

# Makes graphs, with the sources of the tree.
draw=$build/flame/draw
# make_draw BROKEN: another one, with one source that is broken, $work/BROKEN.
make_draw() {
  local file objects=()
  draw=$work/draw
  # What embeds the template looks for it from where it is built.
  [ "$1" != template.svg ] || sed "s,flame/template.svg,$work/template.svg," flame/flame_template.c >"$work/flame_template.c" || fail sed
  for file in flame/*.c; do
    file=${file#flame/}
    if [ "$file" = "${1/#template.svg/flame_template.c}" ]; then
      "$cc" -std=gnu11 -O1 -I. -c -o "$work/broken.o" "$work/$file" || fail "$1, broken, does not build"
      objects+=("$work/broken.o")
    else
      [ -f "$work/$file.o" ] || "$cc" -std=gnu11 -O1 -I. -c -o "$work/$file.o" "flame/$file" || fail "$file does not build"
      objects+=("$work/$file.o")
    fi
  done
  "$cc" -std=gnu11 -D_GNU_SOURCE -O1 -I. -o "$work/draw" tests/flame/draw.c "${objects[@]}" || fail 'draw.c does not build'
}

# Recursion, every kind, a name that is longer than its box, one in two places, a frame with weight of its own.
plain_stacks() {
  printf '%b' '100\tnmain\tirun\tjfib\n' '300\tnmain\tirun\tjfib\tjfib\n' '7\tnmain\tirun\tjfib\tjfib\tcfib [cold]\n' \
    '90\tnmain\tirun\tjfib\tnvm::push(vm*, unsigned long, int*)\n' '80\tnmain\tirun\tttrampoline:car\n' \
    '33\tnmain\tirun\tttrampoline:car\tnmalloc\n' '12\tnmain\tirun\n' '210\tnstart\tiworker\tjmakeFib\n' \
    '50\tnstart\tiworker\tjmakeFib\tnmalloc\n' '3\tnstart\tiworker\tcstub 17\n' '9\to[dropped]\n'
}
# Sums that no double holds.
huge_stacks() {
  plain_stacks | awk -F'\t' -v OFS='\t' '{ $1 = $1 "9876543210987654"; print }'
}
hostile_stacks() {
  printf '%b' '30\tn<script>window.wasRun = 1</script>\n' '30\tn]]></script><script>window.wasRun = 1</script>\tja&b;&lt;"\n' \
    '30\tn"><rect onload="window.wasRun = 1"/>\tj${7*7}\n' "30\tn' onclick='window.wasRun = 1\tj--><!--\n" \
    '30\tnλ → 関数 🔥\tj&#60;b&#62;\n'
}

# Longer than the picture is wide: the title is cut.
words=$(printf 'what a program of many threads does while they wait %.0s' 1 2 3 4)
# draw STACKS TO [SWITCH..]: a graph of them.
draw() {
  local stacks=$1 to=$2
  shift 2
  "${stacks}_stacks" >"$work/$stacks"
  "$draw" --title="A <test> & more: $words" --subtitle='997 Hz by CPU time, 894 samples, 9 dropped' "$@" <"$work/$stacks" >"$to" ||
    fail 'draw fails'
}
# Nothing outlives the case: the driver ends its browser, and gives up by itself.
drive() { python3 tests/flame/browser.py "$@"; }
# to_see SCENARIO STACKS [SWITCH..]: is to be seen so; see_all starts one browser for all of them.
scenarios=()
to_see() {
  local graph=$work/${#scenarios[@]}.svg
  draw "$2" "$graph" "${@:3}"
  scenarios+=("$1" "$work/$2" "$graph")
}
see_all() { drive "${scenarios[@]}" || fail 'it is not seen as it must'; }
must_see() {
  to_see "$@"
  see_all
}

flame_browser_draws_what_the_stacks_say() { must_see draws plain; }
flame_icicle_and_reversed_in_a_browser() {
  to_see icicle plain --icicle
  to_see reverses plain --icicle --reversed
  see_all
}
flame_needs_neither_script_nor_another_file() { must_see needs_no_script plain; }
flame_click_zooms_and_reset_restores() {
  to_see zooms plain
  to_see zooms huge
  see_all
}
flame_search_marks_matches_and_says_their_share() { must_see searches plain; }
flame_keyboard_is_enough() { must_see obeys_keys plain; }
flame_names_run_nothing_in_a_browser() { must_see shows_any_name hostile; }

# breaks SCENARIO STACKS FILE FROM TO [SWITCH..]: a graph by a writer with the text FROM of the file replaced, on the list.
breaks() {
  local scenario=$1 stacks=$2 file=$3
  FROM=$4 TO=$5 python3 - "flame/$file" "$work/$file" <<'END' || fail "$file has no such place: $4"
import os, sys
text = open(sys.argv[1]).read()
assert text.count(os.environ["FROM"]) == 1
open(sys.argv[2], "w").write(text.replace(os.environ["FROM"], os.environ["TO"]))
END
  make_draw "$file"
  broken=$((broken + 1))
  draw "$stacks" "$work/$broken.svg" "${@:6}"
  printf '%s\t%s\t%s\t%s\n' "$scenario" "$work/$stacks" "$work/$broken.svg" "$4 becomes $5" >>"$work/list"
}

flame_broken_rules_are_noticed() {
  broken=0
  breaks shows_any_name hostile flame_svg.c "character == '<' || " ''
  breaks shows_any_name hostile flame_svg.c "character == '&' || " ''
  breaks draws plain flame_svg.c 'picture->depth - box->depth' 'box->depth'
  breaks draws plain flame_svg.c 'box->start + box->weight) - left' 'box->start + box->weight) - left + PARTS'
  breaks draws plain flame_svg.c 'for (uint64_t used = 1; *text;)' 'for (uint64_t used = 0; *text; columns++)'
  breaks draws plain flame_svg.c 'kinds[box->kind].class' 'kinds[0].class'
  breaks draws plain flame_walk.c 'level->start += box->weight' 'level->start += box->self'
  breaks reverses plain flame_walk.c 'entry.node = nodes[entry.node].parent' 'entry.node = 0' --icicle --reversed
  breaks draws plain template.svg '.cold rect { fill: #56b4e9 }' '.cold rect { fill: #36a08a }'
  breaks draws plain flame_svg.c 'view->title, TITLE)' 'view->title, LINE)'
  breaks zooms huge template.svg 'inner.start < outer.start + outer.count' 'inner.start + inner.count <= outer.start + outer.count'
  breaks zooms plain template.svg 'frame.count / to.count * full' 'frame.count / total * full'
  breaks zooms plain template.svg '(frame.start - to.start) / to.count * full' 'frame.start / to.count * full'
  breaks zooms plain template.svg 'frame.depth < to.depth && within(to, frame)' 'false'
  breaks zooms plain template.svg "frame.isShown ? '' : 'none'" "''"
  breaks zooms plain template.svg "to === all ? frame.width : width" "width / 2"
  breaks zooms plain template.svg 'if (used > columns)' 'if (false)'
  breaks searches plain template.svg 'isMatch && frame.start >= end' 'isMatch'
  breaks searches plain template.svg "frame !== all && matches" 'matches'
  breaks searches plain template.svg 'plain.includes(wanted) || ' ''
  breaks searches plain template.svg ' || pattern !== null && pattern.test(name)' ''
  breaks searches plain template.svg "wanted === wanted.toLowerCase() ? 'i' : ''" "'i'"
  breaks obeys_keys plain template.svg 'frame.count > best.count' 'frame.count < best.count'
  breaks obeys_keys plain template.svg "key === (isIcicle ? 'ArrowUp' : 'ArrowDown')" "key === 'ArrowUp'"
  breaks needs_no_script plain flame_svg.c 'if (columns >= LEAST_NAME)' 'if (columns > FULL)'
  drive each_fails "$work/list" "$work/none" || fail 'something goes unnoticed'
}

run_listed "$1" $cases flame_broken_rules_are_noticed
