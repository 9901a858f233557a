# SPDX-License-Identifier: MIT
# Schemes of which one source is broken: a script takes the program from $SCHEME where that is set.

# fails_with FILE SED CASE...: the case fails in a Scheme with the source so changed, or, without a change, as it is.
fails_with() {
  local file=$1 change=$2
  sed "$change" "hosts/scheme/$file.c" > "$work/changed.c"
  [ -z "$change" ] || ! cmp -s "hosts/scheme/$file.c" "$work/changed.c" || fail "nothing was changed by $change"
  # shellcheck disable=SC2046
  "${CC:-gcc}" -std=gnu11 -O2 -g -w -fno-omit-frame-pointer -I. -Ihosts/scheme -pthread -o "$work/broken" "$work/changed.c" \
    $(find "$build/obj/hosts/scheme" -name '*.o' ! -name "$file.o") "$build/obj/tools/draw/draw_heap.o" "$build/libcodeheap-profile.a" "$build/libcodeheap-bdw.a" -lgc -lm ||
    fail "$change: it does not build"
  SCHEME=$work/broken bash "$0" "${@:3}" > "$work/noticed" 2>&1
  case $? in 0 | 77) return 1 ;; esac
}
# breaks FILE SED CASE...: with the source so changed the case fails, and with the source as it is the case passes.
breaks() {
  ! is_new "${@:3}" || ! fails_with "$1" '' "${@:3}" || fail "unchanged: ${*:3}: $(cat "$work/noticed")"
  fails_with "$@" || fail "$1: $2: ${*:3} does not notice"
}
