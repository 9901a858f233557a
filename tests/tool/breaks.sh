#!/bin/bash
# SPDX-License-Identifier: MIT
# What `make breaks` would break: code and nothing else, in each of the usual ways; and its list of equivalent breaks is true
# to the sources. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
tools=$PWD/tests/breaks
make_work

cat >"$work/f.c" <<'C'
/* a < b */
#define LESS(a, b) ((a) < (b))
static const int limits[] = {1, 2};
static int count_of(struct list *list, int most) CH_REQUIRES(list)
{
	int count = 0, *at = &limits[0]; // a > b
	CH_ASSERT(most < 7, "few");
	ch__list_lock(list);
	for (struct item *item = list->first; item && count <= most; item = item->next)
		count++;
	atomic_store_explicit(&list->count, count, memory_order_release);
	list->seen = atomic_load(&list->count);
	note(list, (size_t)-1);
	ch__list_unlock(list);
	if (count == most)
		return 8;
	return count;
}
C

# made OPERATOR: the broken lines that it makes of f.c, without white space at their ends.
made() {
  (cd "$work" && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$tools" python3 - "$1" <<'P'
import sys
import operators
with open("f.c", encoding="utf-8") as f:
    text = f.read()
source, found = operators.breaks_of(text)
for one in found:
    if one.operator == sys.argv[1]:
        lines = zip(text.split("\n"), one.apply(text).split("\n"), strict=True)
        print(" | ".join(new.strip() for old, new in lines if old != new))
P
  ) || fail "operators.py failed"
}
makes() { # makes OPERATOR LINES: those and no others
  local said
  said=$(made "$1")
  [ "$said" = "$2" ] || fail "$1: it makes
$said
and not
$2"
}

case_breaks_are_made_of_code_in_each_way() {
  makes comparison 'for (struct item *item = list->first; item && count < most; item = item->next)
if (count != most)'
  makes and-or 'for (struct item *item = list->first; item || count <= most; item = item->next)'
  makes plus-minus 'count--;'
  makes negation 'if (!(count == most))'
  makes store-dropped ';
;
;'
  makes call-dropped ';
;
;'
  makes return-dropped ';'
  makes swapped 'list->seen = atomic_load(&list->count); | atomic_store_explicit(&list->count, count, memory_order_release);
note(list, (size_t)-1); | list->seen = atomic_load(&list->count);
ch__list_unlock(list); | note(list, (size_t)-1);'
  makes lock-left-out '; | ;'
  makes order 'atomic_store_explicit(&list->count, count, memory_order_relaxed);
list->seen = atomic_load_explicit(&list->count, memory_order_acquire);
list->seen = atomic_load_explicit(&list->count, memory_order_relaxed);'
  makes constant 'int count = 1, *at = &limits[0]; // a > b
int count = 0, *at = &limits[1]; // a > b
note(list, (size_t)-0);
note(list, (size_t)-2);
return 7;
return 9;'
  made early-return | grep '^{ return 0; } atomic_store_explicit' >/dev/null || fail "no early return"
}

# judged ENTRY...: what lint says of a list with this entry, for a tree whose one file is pages/f.c.
judged() {
  mkdir -p "$work/pages" "$work/tests/breaks"
  cp "$work/f.c" "$work/pages/f.c"
  printf '%s\n' "$@" >"$work/tests/breaks/equivalent.list"
  (cd "$work" && PYTHONDONTWRITEBYTECODE=1 python3 "$tools/unplanned.py" lint)
}

case_breaks_judged_equivalent_stand_in_their_files() {
  local said
  said=$(judged '# a comment' '' 'pages/f.c count_of: nobody asks' '-	return 8;' '+	return 9;')
  [ -z "$said" ] || fail "it finds: $said"
  judged 'pages/f.c count_of: nobody asks' '-	return 12;' '+	return 9;' | grep -q 'no line is: return 12;' || fail "a line that is gone"
  judged 'pages/f.c sum_of: nobody asks' '-	return 8;' '+	return 9;' | grep -q 'no function sum_of' || fail "a function that is gone"
  judged 'pages/g.c count_of: nobody asks' '-	return 8;' '+	return 9;' | grep -q 'no pages/g.c' || fail "a file that is gone"
  judged 'pages/f.c count_of:' '-	return 8;' '+	return 9;' | grep -q 'not an entry' || fail "an entry without a reason"
}

case_header_is_compiled_with_all_that_use_the_function() {
  mkdir -p "$work/pages"
  printf '%s\n' 'static inline int first(void)' '{' '	return 1;' '}' '#define SECOND(n) \' '	((n) + first())' \
    'static inline int third(void)' '{' '	return SECOND(2);' '}' >"$work/pages/h.h"
  echo 'int a = first();' >"$work/pages/a.c"
  echo 'int b = third();' >"$work/pages/b.c"
  echo 'int c = firstly();' >"$work/pages/c.c"
  local said
  said=$(cd "$work" && PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$tools:$tools/../../tools" python3 - <<'P'
from users import Users
class Build:
    includers = {"pages/h.h": ["a.o", "b.o", "c.o"], "pages/a.c": ["a.o"]}
    def files_of(self, made):
        return ["pages/" + made[0] + ".c", "pages/h.h"]
users = Users(Build())
for file, function in ("pages/h.h", "first"), ("pages/h.h", "third"), ("pages/a.c", "any"):
    print(function, *sorted(users.of(file, function)))
P
  ) || fail "users.py failed"
  [ "$said" = 'first a.o b.o
third b.o
any a.o' ] || fail "it says: $said"
}

[ $# != 0 ] || { list_functions 120; exit; }
"case_$1"
