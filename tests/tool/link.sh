#!/bin/bash
# SPDX-License-Identifier: MIT
# The products seen from outside: whose malloc runs, who can dlopen what, what a shared object needs and exports. Without
# arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
build=$(realpath -m "$build")
make_work

# A program that makes a heap and says from which object its malloc comes; "own" = the program's.
write_program() {
  cat >"$work/program.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "codeheap/codeheap.h"
static long own_calls;
#if OWN_MALLOC
static char arena[64 << 20] __attribute__((aligned(64)));
static size_t arena_used;
void *malloc(size_t n) {
  own_calls++;
  size_t at = __atomic_fetch_add(&arena_used, (n + 79) & ~(size_t)15, __ATOMIC_RELAXED);
  if (at + n + 80 > sizeof arena) abort();
  *(size_t *)(arena + at) = n;
  return arena + at + 16;
}
void free(void *p) { (void)p; }
void *calloc(size_t a, size_t b) { return memset(malloc(a * b), 0, a * b); }
void *realloc(void *p, size_t n) {
  void *q = malloc(n);
  size_t old = p ? ((size_t *)p)[-2] : 0;
  if (p) memcpy(q, p, old < n ? old : n);
  return q;
}
#endif
int main(void) {
  struct ch_config config;
  struct ch_heap *heap = NULL;
  Dl_info info;
  void *(*the_malloc)(size_t) = malloc;
  ch_config_init(&config);
  long before = own_calls;
  enum ch_status st = ch_heap_create(&config, &heap);
  if (st != CH_OK) return fprintf(stderr, "create: %s\n", ch_status_text(st)), 1;
  st = ch_heap_destroy(heap);
  if (st != CH_OK) return fprintf(stderr, "destroy: %s\n", ch_status_text(st)), 1;
  (void)before;
  void *p = the_malloc(100);
  if (!p || !dladdr(*(void **)&the_malloc, &info)) return 1;
  free(p);
  printf("%s%s\n", info.dli_fname, own_calls ? " own" : "");
  return 0;
}
C
}

link_and_run() { # link_and_run WANTED OWN library flags...
  local wanted=$1 own=$2
  shift 2
  write_program
  must "$cc" -std=gnu11 -O1 -fno-builtin -I. -DOWN_MALLOC="$own" -o "$work/program" "$work/program.c" "$@" -lm -pthread -ldl
  local said
  said=$(LD_LIBRARY_PATH=$build "$work/program") || fail "the program failed: $said"
  case "$said" in *$wanted*) ;; *) fail "malloc comes from: $said, wanted $wanted" ;; esac
  if ldd "$work/program" | grep -q libjemalloc; then fail "the program needs libjemalloc"; fi
}

case_archive_keeps_libc_malloc() { link_and_run libc.so 0 "$build/libcodeheap.a"; }
case_archive_keeps_program_malloc() { link_and_run "program own" 1 "$build/libcodeheap.a"; }
case_shared_keeps_libc_malloc() { link_and_run libc.so 0 -L"$build" -lcodeheap; }
case_shared_keeps_program_malloc() { link_and_run "program own" 1 -L"$build" -lcodeheap; }
case_dl_keeps_program_malloc() { link_and_run "program own" 1 -L"$build" -lcodeheap-dl; }
case_bdw_archive_keeps_libc_malloc() {
  link_and_run libc.so 0 -Wl,--whole-archive "$build/libcodeheap-bdw.a" -Wl,--no-whole-archive -lgc
}

# What the library adds to the roots that a Boehm collection reads: all that is written, and no thread's, but the tables
# of the allocator, which it leaves out wherever it was linked to.
section_of() { readelf -SW "$1" | sed 's/^ *\[ *[0-9]*\]//' | awk '$1 == "ch_alloc_tables" { print $3, $5; exit }'; }
case_bdw_static_roots_of_the_library_are_few() {
  local roots place said
  roots=$(readelf -SW "$build/libcodeheap-bdw.a" | sed 's/^ *\[ *[0-9]*\]//' |
    awk '$7 ~ /W/ && $7 !~ /T/ && $1 != "ch_alloc_tables" { print $5 }' | while read -r bytes; do echo $((0x$bytes)); done |
    awk '{ sum += $1 } END { print sum }')
  [ "$roots" -gt 1000 ] && [ "$roots" -lt 65536 ] || fail "$roots bytes of the library are roots"
  [ "${CODEHEAP_TEST_ALLOC:-jemalloc}" != malloc ] || return 0
  cat >"$work/program.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gc/gc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "codeheap/codeheap_bdw.h"
static void *of_the_program;
static __attribute__((noinline)) void hold(void **word, void **link) {
  void *object = GC_MALLOC_ATOMIC(64);
  *word = object;
  *link = (void *)~(uintptr_t)object;
  if (GC_general_register_disappearing_link(link, object) != GC_SUCCESS) abort();
}
static __attribute__((noinline)) void wipe(void) {
  volatile char frames[65536];
  for (size_t i = 0; i < sizeof frames; i++) frames[i] = 0;
}
static int is_held(void **word) {
  void **link = GC_MALLOC_ATOMIC(sizeof *link);
  void *before = *word;
  hold(word, link);
  for (int i = 0; i < 3; i++) wipe(), GC_gcollect();
  *word = before;
  return *link != NULL;
}
int main(int argc, char **argv) {
  struct ch_heap *heap;
  Dl_info info;
  if (argc < 3) return 1;
  GC_INIT();
  if (ch_bdw_heap_create(NULL, &heap) != CH_OK || !dladdr((void *)(uintptr_t)ch_bdw_heap_create, &info)) return 1;
  uintptr_t at = (uintptr_t)info.dli_fbase + strtoul(argv[1], NULL, 16), bytes = strtoul(argv[2], NULL, 16);
  /* The middle of a table by address: of no memory that a process has. */
  void **word = (void **)(at + bytes / 2 / 8 * 8);
  printf("%d %d %d\n", *word == NULL, is_held(&of_the_program), is_held(word));
  return 0;
}
C
  must "$cc" -std=gnu11 -O1 -I. -o "$work/archive" "$work/program.c" "$build/libcodeheap-bdw.a" -lgc -lm -pthread -ldl
  must "$cc" -std=gnu11 -O1 -I. -o "$work/shared" "$work/program.c" -L"$build" -lcodeheap-bdw -lgc -lm -pthread -ldl
  for place in archive shared; do
    said=$work/archive
    [ $place = archive ] || said=$build/libcodeheap-bdw.so
    # shellcheck disable=SC2046
    said=$(LD_LIBRARY_PATH=$build "$work/$place" $(section_of "$said")) || fail "$place: it failed"
    [ "$said" = "1 1 0" ] || fail "$place: free, held by the program's word, held by the table's: $said"
  done
}

# The first two have jemalloc inside, and nobody sees it; the third has none.
case_jemalloc_is_inside_and_hidden() {
  for n in libcodeheap.a libcodeheap.so; do
    nm "$build/$n" 2>/dev/null | grep -q ' t mallocx$' || fail "$n has no jemalloc inside"
  done
  nm "$build/libcodeheap-dl.so" | grep -i ' [tu] mallocx' && fail "libcodeheap-dl.so has jemalloc"
  for n in libcodeheap.so libcodeheap-dl.so; do
    nm -D --defined-only "$build/$n" | grep -E ' (malloc|free|calloc|realloc|mallocx|mallctl|je_.*)(@|$)' &&
      fail "$n exports an allocator"
  done
  nm -g --defined-only "$build/libcodeheap.a" | grep -E ' (malloc|free|calloc|realloc|mallocx|mallctl|je_.*)$' &&
    fail "libcodeheap.a defines an allocator"
  return 0
}

case_only_bdw_names_libgc() {
  for n in libcodeheap.so libcodeheap-dl.so; do
    readelf -dW "$build/$n" | grep -i 'needed.*libgc\.so' && fail "$n needs libgc"
    nm -D "$build/$n" | grep -E ' GC_' && fail "$n names libgc"
  done
  nm "$build/libcodeheap.a" 2>/dev/null | grep -E ' [TtUu] GC_' && fail "libcodeheap.a names libgc"
  [ "${CODEHEAP_TEST_GC:-bdw}" = none ] && return 0
  readelf -dW "$build/libcodeheap-bdw.so" | grep -q 'NEEDED.*libgc\.so' || fail "libcodeheap-bdw.so does not need libgc"
}

case_shared_objects_need_no_text_relocation_and_no_executable_stack() {
  for so in "$build"/libcodeheap*.so; do
    readelf -dW "$so" | grep TEXTREL && fail "$so has text relocations"
    readelf -lW "$so" | grep GNU_STACK | grep -q 'RWE' && fail "$so asks for an executable stack"
    readelf -lW "$so" | awk '$1 == "LOAD"' | grep -q 'RWE' && fail "$so has a segment that is writable and executable"
  done
  return 0
}

# A handler of the library may be the first to call a function, and the loader's look-up takes 2 to 4 KiB of a signal stack
# that may have 8. Guests start in a process without a core, too.
case_shared_objects_bind_when_they_are_loaded() {
  local lib
  for lib in libcodeheap.so libcodeheap-dl.so libcodeheap-bdw.so; do
    [ "$lib ${CODEHEAP_TEST_GC:-bdw}" = "libcodeheap-bdw.so none" ] && continue
    readelf -dW "$build/$lib" | grep -q 'FLAGS_1.*NOW' || fail "$lib binds its calls one by one"
  done
  return 0
}

case_dl_opens_in_empty_program() {
  cat >"$work/empty.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  void *h = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
  if (!h) return fprintf(stderr, "%s\n", dlerror()), 1;
  int (*create)(void *, void **) = (int (*)(void *, void **))dlsym(h, "ch_heap_create");
  int (*destroy)(void *) = (int (*)(void *))dlsym(h, "ch_heap_destroy");
  void *heap = 0;
  if (!create || !destroy) return fprintf(stderr, "%s\n", dlerror()), 1;
  int st = create(0, &heap);
  if (st || !heap) return fprintf(stderr, "create: status %d\n", st), 1;
  st = destroy(heap);
  return st ? fprintf(stderr, "destroy: status %d\n", st), 1 : 0;
}
C
  must "$cc" -o "$work/empty" "$work/empty.c"
  must "$work/empty" "$build/libcodeheap-dl.so"
}

# Each copy takes a part of the loader's room for thread-local memory.
case_four_plugins_with_the_archive_inside_open_in_one_program() {
  cat >"$work/four.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    void *h = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    int (*answer)(void) = h ? (int (*)(void))dlsym(h, "answer") : 0;
    if (!answer || answer() != 42) return printf("%s: %s\n", argv[i], answer ? "wrong" : dlerror()), 1;
  }
  return argc != 5;
}
C
  cat >"$work/plugin.c" <<'C'
#include <codeheap/codeheap.h>
int answer(void) {
  static struct ch_heap *heap;
  int (*f)(void);
  return ch_heap_create(NULL, &heap) || ch_code_add(heap, "\xb8\x2a\0\0\0\xc3", 6, "f", &f) ? 1 : f();
}
C
  must "$cc" -o "$work/four" "$work/four.c"
  must "$cc" -shared -fPIC -I. -o "$work/plugin1.so" "$work/plugin.c" "$build/libcodeheap-dl.a" -lm -Wl,--exclude-libs,ALL,-z,nodelete
  for i in 2 3 4; do cp "$work/plugin1.so" "$work/plugin$i.so"; done
  must "$work/four" "$work"/plugin[1-4].so
}

# What is linked is not loaded later: the loader says it in the words that the documents have.
case_linked_library_is_refused_in_an_empty_program_in_the_documents_words() {
  cat >"$work/loads.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  return dlopen(argv[argc - 1], RTLD_NOW) ? 0 : puts(dlerror()) < 0 ? 2 : 1;
}
C
  must "$cc" -o "$work/loads" "$work/loads.c"
  local said words
  said=$("$work/loads" "$build/libcodeheap.so") && return 0 # another loader, with more room
  words=${said#*: }
  [ -n "$words" ] && grep -qF "$words" docs/operating.md && grep -qF "$words" docs/building.md || fail "no document has these words: $words"
}

# Each copy stops a thread by the same signal, which the other's handler passes on.
case_two_copies_of_the_library_stop_threads_by_one_signal() {
  cat >"$work/copies.c" <<'C'
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include "codeheap/codeheap.h"
#define OK(call) do { int st_ = (int)(call); if (st_) { fprintf(stderr, "%s: %d\n", #call, st_); return (void *)1; } } while (0)
static void *copies[2];
static struct ch_heap *heaps[2];
static atomic_int step;
#define F(copy, name) ((__typeof__(&name))dlsym(copies[copy], #name))
static void *spin(void *arg) {
  for (int i = 0; i < 2; i++) OK(F(i, ch_thread_attach)(heaps[i], NULL, NULL));
  for (step = 1; step == 1;) continue;
  for (int i = 0; i < 2; i++) OK(F(i, ch_thread_detach)(heaps[i]));
  return arg;
}
static void *run(char **paths) {
  struct ch_config config;
  pthread_t thread;
  ch_config_init(&config);
  config.stop_signal = SIGUSR2;
  config.stop_wait_ms = 20000;
  for (int i = 0; i < 2; i++) {
    copies[i] = dlopen(paths[i], RTLD_NOW | RTLD_LOCAL);
    OK(!copies[i]);
    OK(F(i, ch_heap_create)(&config, &heaps[i]));
  }
  OK(heaps[0] == heaps[1]);
  OK(pthread_create(&thread, NULL, spin, NULL));
  while (step != 1) continue;
  for (int i = 0; i < 6; i++) OK(F(i & 1, ch_heap_collect)(heaps[i & 1]));
  step = 2;
  OK(pthread_join(thread, NULL));
  return NULL;
}
int main(int argc, char **argv) { return argc == 3 ? run(argv + 1) != NULL : 2; }
C
  must "$cc" -I. -o "$work/copies" "$work/copies.c" -pthread
  must cp "$build/libcodeheap-dl.so" "$work/copy.so"
  must "$work/copies" "$build/libcodeheap-dl.so" "$work/copy.so"
}

# A thread is in code when the library is closed: its return takes a stub, which leads into the library. The same objects
# linked without the flag that keeps them show that the program would notice.
case_s40_library_that_is_closed_stays_for_the_threads_inside() {
  cat >"$work/closed.c" <<'C'
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "codeheap/codeheap.h"
#define OK(call) do { int st_ = (int)(call); if (st_) { fprintf(stderr, "%s: %d\n", #call, st_); _exit(9); } } while (0)
static void *library;
#define F(name) ((__typeof__(&name))dlsym(library, #name))
static __typeof__(&ch_thread_park) park;
static __typeof__(&ch_thread_unpark) unpark;
static __typeof__(&ch_thread_detach) detach;
static struct ch_heap *heap;
static const void *const *cell;
static int ends[2][2], hits;
static long fallback(void) { return 77; }
static struct ch_block hit(void *user, struct ch_branch branch, void *branch_user, struct ch_regs *regs) {
  struct ch_block none = {0};
  (void)user, (void)branch, (void)branch_user, (void)regs;
  hits++;
  return none;
}
static long wait_inside(void) {
  char c;
  park();
  if (write(ends[0][1], "i", 1) != 1 || read(ends[1][0], &c, 1) != 1) _exit(8);
  unpark();
  return 0;
}
static void *run(void *arg) {
  (void)arg;
  OK(F(ch_thread_attach)(heap, NULL, NULL));
  long result = ((long (*)(void))*cell)();
  OK(detach(heap));
  return (void *)result;
}
int main(int argc, char **argv) {
  struct ch_vm *vm;
  struct ch_owner owner;
  struct ch_branch branch;
  struct ch_code code;
  struct ch_ops ops = {.size = sizeof ops, .branch_hit = hit};
  pthread_t thread;
  void *result;
  char c;
  if (!(library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL))) return fprintf(stderr, "%s\n", dlerror()), 1;
  park = F(ch_thread_park), unpark = F(ch_thread_unpark), detach = F(ch_thread_detach);
  OK(pipe(ends[0]) || pipe(ends[1]));
  OK(F(ch_heap_create)(NULL, &heap));
  OK(F(ch_vm_attach)(heap, &ops, NULL, &vm));
  OK(F(ch_thread_attach)(heap, NULL, NULL));
  OK(F(ch_owner_create)(vm, "waits", (const void *)fallback, NULL, &owner));
  struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 40, .branch_room = 1};
  OK(F(ch_block_open)(&open, &code));
  unsigned char *at = code.write + code.entry_bytes;
  void *callee = (void *)wait_inside;
  memcpy(at, "\x55\x48\x89\xe5\x48\xb8", 6); /* push rbp; mov rbp, rsp; mov rax, callee */
  memcpy(at + 6, &callee, 8);
  memcpy(at + 14, "\xff\xd0\x5d", 3); /* call rax; pop rbp */
  at += 17;
  while ((((unsigned long)at + 1) & 7) > 4) *at++ = 0x90;
  memcpy(at, "\xe9\0\0\0\0", 5); /* jmp to the stub */
  struct ch_branch_site site = {.at = code.exec + (at - code.write), .kind = CH_JMP};
  OK(F(ch_branch_attach)(code.block, &site, &branch));
  code.used_to = at + 5 - code.write;
  OK(F(ch_block_commit)(&code, 1));
  OK(F(ch_owner_set_entry)(owner, code.block));
  cell = F(ch_owner_cell)(owner);
  OK(pthread_create(&thread, NULL, run, NULL));
  OK(read(ends[0][0], &c, 1) != 1);
  OK(dlclose(library));
  OK(write(ends[1][1], "g", 1) != 1);
  OK(pthread_join(thread, &result));
  printf("%ld %d\n", (long)result, hits);
  return 0;
}
C
  must "$cc" -std=gnu11 -O1 -I. -o "$work/closed" "$work/closed.c" -pthread -ldl
  local said
  said=$("$work/closed" "$build/libcodeheap-dl.so") || fail "the closed library: $? $said"
  [ "$said" = "77 1" ] || fail "the closed library: said $said, wanted 77 1"
  must "$cc" -shared -o "$work/goes.so" "$build/obj/libcodeheap-dl.o" -pthread -lm
  "$work/closed" "$work/goes.so" >/dev/null 2>&1
  [ $? -ge 128 ] || fail "nothing shows that a library went"
  for so in "$build"/libcodeheap*.so; do
    readelf -dW "$so" | grep -q 'FLAGS_1.*NODELETE' || fail "$so may be unmapped by dlclose"
  done
}

case_dl_opens_in_python() {
  [ -x /usr/bin/python3.11 ] || { echo "skip: no /usr/bin/python3.11"; exit 77; }
  must /usr/bin/python3.11 -c '
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
heap = ctypes.c_void_p()
status = lib.ch_heap_create(None, ctypes.byref(heap))
assert status == 0 and heap.value, status
lib.ch_heap_destroy.argtypes = [ctypes.c_void_p]
assert lib.ch_heap_destroy(heap) == 0
maps = open("/proc/self/maps").read()
assert "jemalloc" not in maps
assert "libcodeheap-dl" in maps
' "$build/libcodeheap-dl.so"
}

# The demangler is the program's own, by a weak reference: in a C++ program it is there, in a C program nothing asks for
# it.
case_cxx_program_has_its_names_demangled() {
  command -v g++ >/dev/null || fail "no g++"
  cat >"$work/names.cc" <<'C'
#include "codeheap/look.h"
#include <iostream>
namespace shop {
template <typename T> struct till { __attribute__((noinline)) static int count(T, const char *); };
template <typename T> int till<T>::count(T, const char *) { return 5; }
template struct till<long>;
}
int main() {
  ch_heap *heap;
  char text[200];
  if (ch_heap_create(NULL, &heap) != CH_OK) return 1;
  const char *at = reinterpret_cast<const char *>(&shop::till<long>::count) + 2;
  size_t n = ch_address_name(heap, at, false, text, sizeof text);
  std::cout << text << std::endl; // the C++ runtime is in the process
  return n == 0 || ch_heap_destroy(heap) != CH_OK;
}
C
  local said flags
  for flags in "$build/libcodeheap.a" "-L$build -lcodeheap" "-L$build -lcodeheap-dl" "$build/libcodeheap.a -static-libstdc++"; do
    must g++ -std=c++17 -O1 -I. -rdynamic -o "$work/names" "$work/names.cc" $flags -lm -pthread -ldl
    said=$(LD_LIBRARY_PATH=$build "$work/names") || fail "the program failed: $said"
    [ "$said" = "shop::till<long>::count(long, char const*)+0x2" ] || fail "with $flags its name is $said"
  done
  for n in libcodeheap.a libcodeheap.so libcodeheap-dl.so; do
    nm $([[ $n == *.so ]] && echo -D) "$build/$n" 2>/dev/null | grep -q ' w __cxa_demangle' || fail "$n has no weak __cxa_demangle"
  done
  readelf -dW "$build/libcodeheap.so" | grep 'NEEDED.*stdc' && fail "libcodeheap.so needs libstdc++"
  return 0
}

# A program that makes a trampoline: its frame comes from the table of the object that has the template.
trampoline_says() { # trampoline_says WANTED library flags...
  local wanted=$1 said
  shift
  cat >"$work/trampoline.c" <<'C'
#include <stdio.h>
#include "codeheap/codeheap.h"
extern const void *_Unwind_Find_FDE(const void *, void *);
static int n;
static void count(void) { n++; }
#define OK(call) do { enum ch_status st_ = call; \
  if (st_) return fprintf(stderr, "%s: %s\n", #call, ch_status_text(st_)), 1; } while (0)
int main(void) {
  static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
  struct ch_heap *heap;
  struct ch_vm *vm;
  struct ch_owner owner;
  struct ch_block block;
  struct ch_code open_code;
  struct ch_info info = {.size = sizeof info};
  struct ch_ops ops = {.size = sizeof ops};
  char report[200];
  void *bases[3];
  OK(ch_heap_create(NULL, &heap));
  OK(ch_vm_attach(heap, &ops, NULL, &vm));
  OK(ch_thread_attach(heap, NULL, NULL));
  OK(ch_owner_create(vm, "owner", (const void *)count, NULL, &owner));
  for (int kind = 0; kind < 2; kind++) {
    OK(ch_trampoline_make(owner, (enum ch_trampoline)kind, (const void *)count, 0, NULL, NULL, &block));
    OK(ch_block_info(block, &info));
    ((void (*)(void))info.entry)();
    printf("made %d %s ", n, _Unwind_Find_FDE(info.entry + 8, bases) ? "known" : "unknown");
  }
  struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = sizeof code};
  OK(ch_block_open(&open, &open_code));
  memcpy(open_code.write, code, sizeof code);
  open_code.used_to = sizeof code;
  OK(ch_block_commit(&open_code, 1));
  printf(" %d\n", ((int (*)(void))open_code.exec)());
  OK(ch_heap_check(heap, report, sizeof report));
  OK(ch_vm_detach(vm));
  OK(ch_heap_destroy(heap));
  return 0;
}
C
  must "$cc" -std=gnu11 -O1 -I. -o "$work/trampoline" "$work/trampoline.c" "$@" -lm -pthread -ldl
  said=$(LD_LIBRARY_PATH=$build "$work/trampoline") || fail "the program failed: $said"
  [ "$said" = "$wanted" ] || fail "said: $said, wanted: $wanted"
}

case_trampoline_finds_its_frame_in_archive_and_shared_object() {
  trampoline_says 'made 1 known made 2 known  42' "$build/libcodeheap.a"
  trampoline_says 'made 1 known made 2 known  42' -L"$build" -lcodeheap
  trampoline_says 'made 1 known made 2 known  42' -s -L"$build" -lcodeheap-dl
}
# Debian 13 has gold in a package of its own.
case_each_linker_takes_the_archive() {
  local linker count=0
  for linker in bfd gold lld; do
    command -v "ld.$linker" >/dev/null || { echo "no ld.$linker"; continue; }
    trampoline_says 'made 1 known made 2 known  42' -fuse-ld=$linker "$build/libcodeheap.a"
    count=$((count + 1))
  done
  [ $count != 0 ] || fail 'there is no linker'
}
# The library is linked without tables.
case_trampoline_needs_no_table_of_the_library() {
  must ar x --output "$work" "$build/libcodeheap.a"
  must objcopy --remove-section .eh_frame --remove-section .rela.eh_frame "$work/libcodeheap.o" "$work/bare.o"
  trampoline_says 'made 1 known made 2 known  42' "$work/bare.o"
}

# Thrown in the target, caught in the caller; destructors between run, callee-saved registers are the caller's.
link_throw() { # link_throw library flags...
  cat >"$work/throw.cc" <<'C'
#include <cstdio>
#include "codeheap/codeheap.h"
static void target(int n) { if (n >= 0) throw n; }
struct guard { int *left; ~guard() { ++*left; } };
typedef void called(int);
static int passes(called *const *through, int n, int *left) {
  int a = n * 3, b = n * 5, c = n * 7;
  try {
    guard g = {left};
    (*through)(n);
  } catch (int caught) {
    return caught == n && a == n * 3 && b == n * 5 && c == n * 7;
  }
  return 0;
}
int main() {
  struct ch_heap *heap;
  struct ch_vm *vm;
  struct ch_ops ops = {};
  ops.size = sizeof ops;
  int left = 0;
  if (ch_heap_create(NULL, &heap) || ch_vm_attach(heap, &ops, NULL, &vm) || ch_thread_attach(heap, NULL, NULL))
    return 1;
  for (int i = 0; i < 1000; i++) {
    struct ch_owner owner;
    struct ch_block block;
    if (ch_owner_create(vm, "thrown through", (const void *)target, NULL, &owner) ||
        ch_trampoline_make(owner, (enum ch_trampoline)(i % 2), (const void *)target, 0, NULL, NULL, &block) ||
        ch_owner_set_entry(owner, block))
      return 2;
    if (!passes((called *const *)ch_owner_cell(owner), i, &left) || left != i + 1)
      return std::fprintf(stderr, "round %d\n", i), 3;
    if (i % 3 && ch_owner_release(owner, CH_RELEASE_NOT_RUNNING))
      return 4;
  }
  return ch_vm_detach(vm) || ch_heap_destroy(heap) ? 5 : 0;
}
C
  must "${CXX:-g++}" -std=c++17 -O2 -fomit-frame-pointer -I. -o "$work/throw" "$work/throw.cc" "$@" -lm -pthread
}
case_exception_passes_trampolines() {
  link_throw "$build/libcodeheap.a"
  must "$work/throw"
}
# docs/operating.md, section 10: the throw asks the unwinder of libstdc++, and the library told its own.
case_exception_passes_code_by_the_unwinder_that_the_library_told() {
  link_throw -static-libgcc -static-libstdc++ "$build/libcodeheap.a"
  must "$work/throw"
  link_throw -static-libgcc -static-libstdc++ -L"$build" -lcodeheap -Wl,-rpath,"$build"
  ( ulimit -c 0; "$work/throw" ) 2>"$work/said" && fail "an unwinder that was told of no code passed code"
  grep -q 'terminate called' "$work/said" || fail "$(cat "$work/said")"
}

# The tables of legal moves are the tests' and those of DEBUG=1: a release library has neither them nor their texts.
case_release_library_has_no_move_checks() {
  local lib test_object=$build/obj-test/codeheap/base/moves.o
  nm "$test_object" | grep -q ' [BbDd] ch__block_moves$' || fail "$test_object has no table: nothing is checked anywhere"
  for lib in "$build"/libcodeheap.a "$build"/libcodeheap.so "$build"/libcodeheap-dl.so; do
    must test -s "$lib"
    nm "$lib" | grep -E ' ch__move$| ch__[a-z]+_moves$' && fail "$lib has tables of moves"
    grep -q 'may not move from' "$lib" && fail "$lib has the text of a refused move"
  done
  return 0
}

# Debian's jemalloc lacks the property, and with it each library that contains jemalloc.
case_shadow_stack_is_said_to_be_kept_in_step() {
  local lib
  for lib in libcodeheap-dl libcodeheap-profile; do
    readelf -n "$build/obj/$lib.o" | grep -q SHSTK || fail "an object of $lib takes the shadow stack from a program"
  done
  return 0
}

# What a build does not contain is not listed: no Boehm driver with GC=none, no jemalloc with ALLOC=malloc, no release
# library with DEBUG=1, no shadow stack on other machines.
if [ $# = 0 ]; then
  left_out='^none$'
  [ "${CODEHEAP_TEST_GC:-bdw}" != none ] || left_out="$left_out|^bdw_"
  [ "${DEBUG:-}" != 1 ] || left_out="$left_out|^release_library_"
  [ "${CODEHEAP_TEST_ALLOC:-jemalloc}" != malloc ] || left_out="$left_out|^jemalloc_"
  [ "$(uname -m)" = x86_64 ] || left_out="$left_out|^shadow_stack_"
  list_functions 120 | grep -vE "$left_out"
  exit 0
fi
"case_$1"
