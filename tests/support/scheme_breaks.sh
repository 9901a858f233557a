# SPDX-License-Identifier: MIT
# Schemes of which one source is broken: a script takes the program from $SCHEME where that is set.

# build_changed FILE SED: $work/broken is a Scheme with the source so changed.
build_changed() {
  local file=$1 change=$2
  sed "$change" "hosts/scheme/$file.c" > "$work/changed.c"
  # shellcheck disable=SC2046
  "${CC:-gcc}" -std=gnu11 -O2 -g -w -fno-omit-frame-pointer -I. -Ihosts/scheme -pthread -o "$work/broken" "$work/changed.c" \
    $(find "$build/obj/hosts/scheme" -name '*.o' ! -name "$file.o") "$build/obj/tools/draw/draw_heap.o" "$build/libcodeheap-profile.a" "$build/libcodeheap-bdw.a" -lgc -lm ||
    fail "$change: it does not build"
}
# breaks FILE SED CASE...: with the source so changed the case fails.
tried=
breaks() {
  local file=$1 change=$2 status
  shift 2
  [[ "$tried|" == *"|$*|"* ]] || bash "$0" "$@" > "$work/noticed" 2>&1 || fail "$* itself: $(cat "$work/noticed")"
  tried+="|$*"
  build_changed "$file" "$change"
  cmp -s "hosts/scheme/$file.c" "$work/changed.c" && fail "nothing was changed by $change"
  SCHEME=$work/broken bash "$0" "$@" > "$work/noticed" 2>&1
  status=$?
  [ $status != 0 ] && [ $status != 77 ] || fail "$file: $change: $* does not notice"
}
