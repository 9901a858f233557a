#!/bin/bash
# SPDX-License-Identifier: MIT
# What docs/operating.md says of containers: no /proc, a read-only /tmp, another mount and pid namespace; of a limit of address
# space; of the calls of the system; and of the program's environment. Without arguments it lists its cases, with a name it runs one.
. tests/support/script.sh
# A case says itself which backend and which sinks it is about.
unset CODEHEAP_WX CODEHEAP_SINKS CODEHEAP_PERF_MAP_DIR JITDUMPDIR
build=$(realpath -m "$build")

# A program with one block, `named`, that it calls. It says which files of sinks are on, and
# why not. Words: `bounds` gives the bounds of the stack, `thread` does all in a new thread, `wait` ends when stdin does.
write_program() {
  cat >"$work/program.c" <<'C'
#define _GNU_SOURCE
#include <codeheap/codeheap.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static long interpret(void) { return -1; }
static void must(const char *what, enum ch_status status) {
  if (status == CH_OK) return;
  printf("%s: %s (errno %d)\n", what, ch_status_text(status), errno);
  exit(3);
}
__attribute__((noinline)) void say_ready(void) { puts("ready"); }
static void say_sink(struct ch_heap *heap, const char *name, enum ch_sink sink) {
  const char *path;
  int why;
  bool on = ch_sink_status(heap, sink, &path, &why);
  printf("%s %s %d %s\n", name, on ? "on" : "off", why, path);
}
static int run(int argc, char **argv) {
  static const unsigned char bytes[] = {0xb8, 42, 0, 0, 0, 0xc3};
  static struct ch_code code;
  struct ch_heap *heap;
  struct ch_vm *vm;
  struct ch_owner owner;
  struct ch_ops ops = {.size = sizeof ops};
  char *here = __builtin_frame_address(0);
  bool bounds = argc > 1 && argv[1][0] == 'b';
  must("heap", ch_heap_create(NULL, &heap));
  must("vm", ch_vm_attach(heap, &ops, NULL, &vm));
  must("thread", ch_thread_attach(heap, bounds ? here - 65536 : NULL, bounds ? here + 1024 : NULL));
  must("owner", ch_owner_create(vm, "named", (const void *)interpret, NULL, &owner));
  struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = sizeof bytes};
  must("open", ch_block_open(&open, &code));
  memcpy(code.write, bytes, sizeof bytes);
  code.used_to = sizeof bytes;
  must("commit", ch_block_commit(&code, 1));
  must("entry", ch_owner_set_entry(owner, code.block));
  say_ready();
  printf("%ld\n", ((long (*)(void))*ch_owner_cell(owner))());
  must("collect", ch_heap_collect(heap));
  (void)!ch_sink_flush(heap);
  say_sink(heap, "perfmap", CH_SINK_PERF_MAP);
  say_sink(heap, "jitdump", CH_SINK_JITDUMP);
  if (argc > 1 && argv[1][0] == 'w') {
    fflush(stdout);
    (void)!getchar();
  }
  return 0;
}
static void *run_apart(void *argv) { return (void *)(long)run(1, argv); }
int main(int argc, char **argv) {
  pthread_t thread;
  if (argc < 2 || argv[1][0] != 't') return run(argc, argv);
  return pthread_create(&thread, NULL, run_apart, argv) || pthread_join(thread, NULL);
}
C
  "$cc" -std=gnu11 -O1 -w -I. -o "$work/program" "$work/program.c" "$build/libcodeheap.a" -lm -pthread || fail "no program"
}
apart() { # apart SETUP COMMAND...: in namespaces of its own, after SETUP
  local setup=$1
  shift
  unshare -m -p -f --mount-proc mount -t tmpfs none /tmp 2>/dev/null || { echo "skip: the kernel refuses namespaces"; exit 77; }
  unshare -m -p -f --mount-proc timeout -s KILL 60 sh -c "$setup && exec \"\$@\"" sh "$@" >"$work/said" 2>&1
}
says() { grep -qE "$1" "$work/said" || fail "wanted $1, it said: $(cat "$work/said")"; }

case_main_thread_without_proc_gives_its_bounds() {
  apart 'mount -t tmpfs none /proc' "$work/program"
  says '^thread: .*errno 2\)'
  apart 'mount -t tmpfs none /proc' "$work/program" bounds || fail "$(cat "$work/said")"
  says '^42$'
  apart 'mount -t tmpfs none /proc' "$work/program" thread || fail "$(cat "$work/said")"
  says '^42$'
}
case_procmem_needs_proc() {
  CODEHEAP_WX=procmem apart 'mount -t tmpfs none /proc' "$work/program" bounds
  says '^heap: .*errno 2\)'
}
case_read_only_tmp_costs_names_only() {
  mkdir "$work/dump"
  CODEHEAP_SINKS=unwind,perfmap,jitdump JITDUMPDIR=$work/dump apart "mkdir $work/ro && mount --bind $work $work && mount --bind $work/ro /tmp && mount -o remount,bind,ro /tmp" \
    "$work/program" || fail "$(cat "$work/said")"
  says '^42$'
  says '^perfmap off 30 '
  says "^jitdump on 0 $work/dump/jit-"
}
case_perf_map_lies_in_the_container_under_its_pid() {
  mkfifo "$work/go"
  sleep 300 >"$work/go" &
  local holder=$! inside=
  export CODEHEAP_SINKS=unwind,perfmap
  apart 'mount -t tmpfs none /tmp' true
  unshare -m -p -f --mount-proc sh -c "cp $work/program /dev/shm/program.$$; mount -t tmpfs none /tmp; exec /dev/shm/program.$$ wait" <"$work/go" >"$work/said" 2>&1 &
  local shell=$!
  # The last line that it says before it waits.
  until grep -q '^jitdump' "$work/said" || ! kill -0 $shell 2>/dev/null; do sleep 0.05; done
  inside=$(pgrep -P "$shell" || echo "$shell")
  says '^perfmap on 0 /tmp/perf-1.map$'
  grep -q ' named$' "/proc/$inside/root/tmp/perf-1.map" || fail "no name in /proc/$inside/root/tmp/perf-1.map"
  # An older one is of another process that had the number.
  [ "/tmp/perf-$inside.map" -nt "$work/go" ] && fail "there is a map under the outer pid, too"
  kill "$holder"
  wait "$shell"
  rm -f "/dev/shm/program.$$"
}
# On procmem gdb's own breakpoints are hit in code.
case_gdb_breaks_in_code_on_procmem() {
  [ "$(uname -m)" = x86_64 ] || { echo "skip: the backend procmem is x86-64's"; exit 77; }
  export CODEHEAP_SINKS=unwind,gdb
  CODEHEAP_WX=procmem gdb -q -batch -iex 'set auto-load no' -ex 'set debuginfod enabled off' \
    -ex 'break say_ready' -ex run -ex 'break named' -ex continue -ex 'info breakpoints' "$work/program" >"$work/said" 2>&1 </dev/null
  skip_where_ptrace_is_refused "$work/said"
  says 'Breakpoint 2, .* in named '
}
# The call that tries the sizes succeeds.
case_each_size_that_the_system_refuses_has_a_line() {
  (ulimit -v 200000 && CODEHEAP_DEBUG=1 "$work/program") >"$work/said" 2>&1 || fail "$(cat "$work/said")"
  says '^42$'
  says 'CH_E_MEMORY: no pool of [0-9]+ bytes'
}
# The first stack grows while a limit that came before the heap is in force, and not under one that came later.
case_limit_of_address_space_comes_before_the_heap() {
  cat >"$work/late.c" <<'C'
#include <codeheap/codeheap.h>
#include <sys/resource.h>
static void limit(void) { setrlimit(RLIMIT_AS, &(struct rlimit){1 << 30, 1 << 30}); }
__attribute__((noinline)) static void grow(void) { volatile char deep[2 << 20]; deep[0] = 1; }
int main(int argc, char **argv) {
  struct ch_heap *heap;
  if (argc > 1) limit();
  if (ch_heap_create(NULL, &heap)) return 3;
  if (argc == 1) limit();
  grow();
  return 0;
}
C
  "$cc" -std=gnu11 -O1 -w -I. -o "$work/late" "$work/late.c" "$build/libcodeheap.a" -lm -pthread || fail "no program"
  "$work/late" early || fail "ended with $? under a limit that came first"
  (ulimit -c 0; exec "$work/late") 2>/dev/null
  [ $? = 139 ] || fail "the stack grew: operating.md says that it cannot"
}
# The limit counts all address space, and a user without rights has one.
case_memory_is_locked_before_the_heap_where_a_limit_holds() {
  cat >"$work/locked.c" <<'C'
#define _GNU_SOURCE
#include <codeheap/codeheap.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
static struct ch_heap *heap;
static int locks(int flags) { return mlockall(flags) ? errno : 0; }
int main(int argc, char **argv) {
  int (*f)(void);
  struct ch_stats stats = {.size = sizeof stats};
  if (setrlimit(RLIMIT_MEMLOCK, &(struct rlimit){8 << 20, 8 << 20}) || (!getuid() && setresuid(65534, 65534, 65534))) return 77;
  if (argc > 1 && locks(MCL_CURRENT | MCL_FUTURE)) return 3;
  if (ch_heap_create(NULL, &heap) || ch_code_add(heap, "\xb8\x2a\0\0\0\xc3", 6, "f", &f) || f() != 42) return 4;
  if (argc > 1) return ch_heap_stats(heap, &stats) || stats.pool_bytes > 4 << 20;
  return locks(MCL_CURRENT) != ENOMEM;
}
C
  "$cc" -std=gnu11 -O1 -w -I. -o "$work/locked" "$work/locked.c" "$build/libcodeheap-dl.a" -lm -pthread || fail "no program"
  "$work/locked" before || fail "ended with $? where memory was locked first"
  "$work/locked" || fail "ended with $? where memory was locked later"
}
# What systemd's set lacks on x86-64 (systemd-analyze syscall-filter, version 252), and a filter kills for.
case_calls_are_those_of_a_system_service() {
  local lacks='mincore ptrace syslog uselib ustat sysfs vhangup modify_ldt pivot_root adjtimex chroot acct settimeofday mount umount2
    swapon swapoff reboot sethostname setdomainname iopl ioperm init_module delete_module quotactl lookup_dcookie clock_settime
    kexec_load perf_event_open fanotify_init fanotify_mark open_by_handle_at clock_adjtime finit_module seccomp kexec_file_load bpf
    pkey_mprotect pkey_alloc pkey_free open_tree move_mount fsopen fsconfig fsmount fspick pidfd_getfd mount_setattr quotactl_fd
    landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease'
  lacks=$(echo $lacks | tr ' ' '|')
  grep -rnE "SYS_($lacks)\b|\b($lacks)\(" --include='*.[chS]' $(cd tools && python3 -c 'import rooms; print(*rooms.ROOMS)') && exit 1
  return 0
}
case_jemalloc_inside_reads_malloc_conf() {
  MALLOC_CONF=stats_print:true "$work/program" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
  says 'jemalloc statistics'
}
# After one thread made code, another throws, and the process forks. A report has a WARNING.
case_thread_sanitizer_is_silent_with_the_suppressions() {
  cat >"$work/throws.cc" <<'C'
#include <codeheap/codeheap.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
int main() {
  struct ch_heap *heap;
  void (*code)(void);
  if (ch_heap_create(NULL, &heap) || ch_code_add(heap, "\xc3", 1, "f", &code)) return 3;
  std::thread([] { try { throw 1; } catch (int) { } }).join();
  int status, child = fork();
  if (!child) _exit(0);
  return waitpid(child, &status, 0) != child || status;
}
C
  "${CXX:-g++}" -fsanitize=thread -O1 -I. -o "$work/throws" "$work/throws.cc" -L"$build" -lcodeheap "-Wl,-rpath,$build" || fail "no program"
  sed -n '/^- ThreadSanitizer/,$p' docs/operating.md | grep -oE '`(called_from_lib|race|mutex):[a-zA-Z_.]+`' | tr -d '`' >"$work/suppressions"
  TSAN_OPTIONS="suppressions=$work/suppressions" timeout -s KILL 100 "$work/throws" >"$work/said" 2>&1 && ! grep WARNING "$work/said" && return
  grep -q 'unexpected memory mapping' "$work/said" && { echo "skip: ThreadSanitizer finds no room for its shadow"; exit 77; }
  fail "$(cat "$work/said")"
}

if [ $# = 0 ]; then
  declare -F | sed -n 's/^declare -f case_\(.*\)/operating_\1 240 0 -/p' |
    if [ "${CODEHEAP_TEST_ALLOC:-jemalloc}" = jemalloc ]; then cat; else grep -v jemalloc; fi
  exit 0
fi
work=$(mktemp -d /var/tmp/operating.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
write_program
"case_${1#operating_}"
