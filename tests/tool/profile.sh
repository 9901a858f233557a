#!/bin/bash
# SPDX-License-Identifier: MIT
# libcodeheap-profile as its users get it: installed, found by pkg-config, linked beside each flavour of libcodeheap, shared
# and static; what happens beside a core of another release, beside none, and where a program has a core alone. Without
# arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
tree=$PWD
gc=${CODEHEAP_TEST_GC:-bdw}
root=$tree/$build/installed
make_work

# Calls a function by a trampoline, profiles until a sample found it there, and writes the folded stacks to argv[1].
write_program() { # write_program FLAVOUR
  echo "#define WITH_BDW $([ "$1" = codeheap-bdw ] && echo 1 || echo 0)" >"$work/program.c"
  cat >>"$work/program.c" <<'C'
#include <codeheap/profile.h>
#include <errno.h>
#include <stdio.h>
#ifndef FRAMES
#define FRAMES ";compiled;work "
#endif
#if WITH_BDW
#include <codeheap/codeheap_bdw.h>
static void *anchor;
#define HEAP_CREATE ch_bdw_heap_create
#define OWNER_CREATE(vm, fallback, owner) ch_bdw_owner_create(vm, "compiled", fallback, NULL, owner, &anchor)
#else
#define HEAP_CREATE ch_heap_create
#define OWNER_CREATE(vm, fallback, owner) ch_owner_create(vm, "compiled", fallback, NULL, owner)
#endif
#define OK(call)                                                                      \
	do {                                                                          \
		enum ch_status status = call;                                         \
		if (status != CH_OK)                                                  \
			return printf("%s: %s, errno %d\n", #call, ch_status_text(status), errno), 1; \
	} while (0)

static volatile int turns;
/* It calls, and so has a frame on each machine. */
static __attribute__((noinline)) void rest(void)
{
	__asm__ volatile("");
}
static int work(int n)
{
	for (int i = 0; i < 1000; i++) {
		for (int j = 0; j < 1000; j++)
			turns += n;
		rest();
	}
	return n;
}
static int interpret(int n)
{
	return -n;
}
static int is_found(const char *path)
{
	char line[4096];
	FILE *file = fopen(path, "r");
	int found = 0;
	while (file && fgets(line, sizeof line, file))
		found |= strstr(line, FRAMES) != NULL;
	return file && fclose(file) == 0 && found;
}

int run(int argc, char **argv)
{
	struct ch_ops ops = {.size = sizeof ops};
	struct ch_heap *heap;
	struct ch_vm *vm;
	struct ch_owner owner;
	struct ch_block block;
	struct ch_profile_options options = {.size = sizeof options, .by_wall_clock = true};
	struct ch_profile_view view = {.size = sizeof view, .flags = CH_PROFILE_FOLDED};
	OK(HEAP_CREATE(NULL, &heap));
	OK(ch_vm_attach(heap, &ops, NULL, &vm));
	OK(ch_thread_attach(heap, NULL, NULL));
	OK(OWNER_CREATE(vm, (const void *)interpret, &owner));
	OK(ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED, (const void *)work, 0, NULL, NULL, &block));
	OK(ch_owner_set_entry(owner, block));
	int (*const *cell)(int) = (int (*const *)(int))ch_owner_cell(owner);
	OK(ch_profile_start(heap, 2000, &options));
	do {
		(*cell)(1);
		OK(ch_profile_write(heap, argv[argc - 1], &view));
	} while (!is_found(argv[argc - 1]));
	OK(ch_profile_stop(heap, NULL));
	OK(ch_vm_detach(vm));
	OK(ch_heap_destroy(heap));
	return printf("found\n") < 0;
}
int main(int argc, char **argv)
{
	return run(argc, argv);
}
C
}
build_program() { # build_program shared|static PACKAGE..., in this order
  local kind=$1 static=()
  shift
  [ "$kind" = shared ] || static=(--static)
  flags_of "${static[@]}" "$@"
  gcc -std=c11 -O1 -Wall -Wextra -Werror -fno-omit-frame-pointer -rdynamic ${static[0]:+-static} -o "$work/program" \
    "$work/program.c" "${flags[@]}" 2>"$work/log" || fail "$(cat "$work/log")"
}
# A static program's own functions have no names: only those of code are there.
profiles() { # profiles shared|static FLAVOUR PACKAGE...
  local said
  write_program "$2"
  local frames=';compiled;work '
  [ "$1" = shared ] || frames=';compiled;'
  sed -i "1i #define FRAMES \"$frames\"" "$work/program.c"
  build_program "$1" "${@:3}"
  said=$("$work/program" "$work/folded") || fail "$*: $said"
  [ "$said" = found ] && grep -q "$frames" "$work/folded" || fail "$*: $said $(cat "$work/folded")"
  [ "$1" = static ] || ldd "$work/program" | grep -qF "$root/lib/libcodeheap-profile.so" || fail "not the installed library"
}
case_profile_beside_codeheap() {
  profiles shared codeheap codeheap-profile codeheap
  profiles static codeheap codeheap-profile codeheap
}
case_profile_beside_codeheap_dl() {
  profiles shared codeheap-dl codeheap-dl codeheap-profile
  profiles static codeheap-dl codeheap-dl codeheap-profile
}
case_profile_beside_codeheap_bdw() {
  profiles shared codeheap-bdw codeheap-profile codeheap-bdw
  profiles static codeheap-bdw codeheap-profile codeheap-bdw
}

# The two find each other where nothing of them is seen from outside.
case_profile_of_what_is_dlopened() {
  local said
  write_program codeheap-dl
  flags_of codeheap-profile codeheap-dl
  must gcc -std=c11 -O1 -fno-omit-frame-pointer -shared -fPIC -o "$work/extension.so" "$work/program.c" "${flags[@]}" \
    -Wl,-rpath,"$root/lib"
  cat >"$work/loader.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	void *object = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	if (!object)
		return fprintf(stderr, "%s\n", dlerror()), 1;
	int (*run)(int, char **) = (int (*)(int, char **))dlsym(object, "run");
	return !run || run(argc, argv);
}
C
  must gcc -o "$work/loader" "$work/loader.c"
  said=$(env -u LD_LIBRARY_PATH "$work/loader" "$work/extension.so" "$work/folded") || fail "$said"
  grep -q ';compiled;work [1-9]' "$work/folded" || fail "$(cat "$work/folded")"
}

# Its own functions in it are another release's: none but the first is called.
case_profile_refuses_a_core_of_another_release() {
  local said line
  write_program codeheap
  build_program shared codeheap-profile codeheap
  echo 'const char *ch__listener_release(void) { return "9.9.9"; }' >"$work/other.c"
  must gcc -shared -fPIC -o "$work/other.so" "$work/other.c"
  said=$(CODEHEAP_STATS=$work/stats LD_PRELOAD=$work/other.so "$work/program" "$work/folded" 2>"$work/err") && fail "it ran: $said"
  # ELIBBAD is 80 on each machine that there is a port to.
  [ "${said#ch_profile_start*: }" = "$(LD_PRELOAD='' status_text CH_E_OS), errno 80" ] || fail "it said: $said"
  line=$(grep -c 'libcodeheap-profile is of release .*, libcodeheap of 9\.9\.9$' "$work/err")
  [ "$line" = 1 ] || fail "on stderr: $(cat "$work/err")"
  [ ! -e "$work/stats" ] || fail "it wrote statistics"
}
status_text() { sed -n "s/.*X($1, \"\\(.*\\)\").*/\\1/p" "$tree/codeheap/codeheap.h"; }

# The library is preloaded into whatever runs: a program without a core does not notice.
case_profile_serves_a_statistics_file_where_it_is_preloaded() {
  write_bare_program
  must env LD_PRELOAD="$root/lib/libcodeheap-profile.so" CODEHEAP_STATS="$work/none" /bin/true
  LD_PRELOAD=$root/lib/libcodeheap-profile.so CODEHEAP_STATS=$work/stats "$work/bare" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
  [ "$(head -c 7 "$work/stats")" = CHSTATS ] || fail "no statistics: $(cat "$work/said")"
}

# --- a core alone ---

write_bare_program() {
  cat >"$work/bare.c" <<'C'
#include <codeheap/codeheap.h>
#include <errno.h>
#include <stdio.h>
int main(int argc, char **argv)
{
	struct ch_config config;
	struct ch_heap *heap;
	int failed = 0;
	ch_config_init(&config);
	config.stats_file = argc > 1 ? argv[1] : NULL;
	for (int i = 0; i < 2; i++) {
		enum ch_status status = ch_heap_create(&config, &heap);
		if (status != CH_OK)
			return printf("%s, errno %d\n", ch_status_text(status), errno), 1;
		ch_sink_status(heap, CH_SINK_STATS_FILE, NULL, &failed);
		printf("%d\n", failed);
		if (ch_heap_destroy(heap) != CH_OK)
			return 2;
	}
	return 0;
}
C
  flags_of codeheap
  must gcc -std=c11 -o "$work/bare" "$work/bare.c" "${flags[@]}"
}
# ENOSYS is 38 on each machine that there is a port to.
case_profile_is_missed_by_who_asks_for_a_statistics_file() {
  local said
  write_bare_program
  said=$("$work/bare" 2>&1) && [ "$said" = $'0\n0' ] || fail "nobody asked: $said"
  said=$("$work/bare" "$work/stats" 2>&1) && fail "the program's wish is forgotten: $said"
  [ "$said" = "$(status_text CH_E_OS), errno 38" ] || fail "it said: $said"
  said=$(CODEHEAP_STATS=$work/stats "$work/bare" 2>"$work/err") || fail "the environment's wish ends the program: $said"
  [ "$said" = $'38\n38' ] || fail "it said: $said"
  [ "$(cat "$work/err")" = 'codeheap: CODEHEAP_STATS needs libcodeheap-profile, which this process has not' ] || fail "on stderr: $(cat "$work/err")"
  said=$(CODEHEAP_STATS='' "$work/bare" "$work/stats" 2>&1) && [ "$said" = $'0\n0' ] || fail "no file is wanted: $said"
  [ ! -e "$work/stats" ] || fail "it wrote statistics"
}

# A core has nothing of what the other library is for, nor a timer.
case_profile_is_not_in_a_core() {
  local library name
  for library in libcodeheap libcodeheap-dl $([ "$gc" = none ] || echo libcodeheap-bdw); do
    for name in "$library.a" "$library.so"; do
      nm "$build/$name" >"$work/names" 2>/dev/null || fail "nm $name"
      grep -E ' (ch_profile_|ch_stats_file_|ch__profile|ch__flame|ch__stats_walk|timer_create)' "$work/names" &&
        fail "$name has names of the profile"
      grep -q ' ch__look_code' "$work/names" || fail "$name is empty"
    done
  done
  return 0
}

if [ $# = 0 ]; then
  left_out='^none$'
  [ "$gc" != none ] || left_out='_bdw'
  list_functions 120 | grep -vE "$left_out"
  exit 0
fi
unset CODEHEAP_STATS
export PKG_CONFIG_PATH=$root/lib/pkgconfig LD_LIBRARY_PATH=$root/lib
"case_$1"
