/* SPDX-License-Identifier: MIT
 * codeheap.h: the public interface of libcodeheap, one text that is read from top to bottom, and so
 * one file. Beside it are collector.h, for a collector of the VM's own; codeheap_bdw.h, for
 * Boehm's; look.h, for tools of the VM's own; and profile.h, the profiler.
 *
 * libcodeheap is the code memory of a JIT: it allocates machine code in a pool of pages that are
 * never writable and executable at once, tells unwinders and profilers about it, invalidates it
 * safely while it runs, and collects it: a block of code dies when no live owner, no live block
 * and no stack can reach it; then it is withdrawn from every table, filled with traps and reused.
 *
 * Words
 *   pool          the reserved address range of a heap; page: a power-of-two piece of it (a "code
 *                 page", not an OS page)
 *   block         one unit of code, in one page or a run of them; hot bytes, cold ones at its end
 *   vm            one VM instance: callbacks and a set of owners; several share a heap
 *   owner         what the VM compiles (a method, a trace), and calls through its one entry cell
 *   entry cell    a word that always holds the owner's entry, or its fallback (an interpreter)
 *   branch        one patch site, one target, one stub
 *   stub          some cold bytes that have the VM compile the branch's target
 *   ref           a VM heap pointer embedded in code
 *   patch point   a place after a call which invalidation turns into a jump to an exit
 *   assumption    what blocks were compiled to rely on; breaking it invalidates them
 *   exec, write   the address where a byte runs, and where it is written while its block is open
 *   world         the attached threads; cycle: one collection; fiber: a stack that may be suspended
 *   NOTENTRANT    invalidated: nothing enters it any more, threads inside leave at the next
 *                 branch or patch point
 *
 * The calls to start with, from examples/min.c:
 *
 *     ok(ch_owner_create(vm, "answer", (const void *)interpret, NULL, &owner));
 *     struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = sizeof code_42};
 *     ok(ch_block_open(&open, &code));
 *     memcpy(code.write, code_42, sizeof code_42); // emit at write, relative to exec
 *     code.used_to = sizeof code_42;
 *     ok(ch_block_commit(&code, 1));
 *     ok(ch_owner_set_entry(owner, code.block));
 *     int (*const *cell)(void) = (int (*const *)(void))ch_owner_cell(owner);
 *     printf("compiled: %d\n", (*cell)());
 *     ok(ch_blocks_invalidate(&code.block, 1, NULL)); // the cell leads to interpret() again
 *     printf("invalidated: %d\n", (*cell)());
 *     ok(ch_heap_collect(heap)); // nothing runs it: withdrawn and filled with traps
 *
 * Every function says: in, out, ret, lock, safe, cost, note. "lock: heap" means it takes the heap's
 * lock inside, no such line that it takes none; no "cost" line that it is O(1) but for the length
 * of a name, a list that doubles, and what waits for the lock; no callback of the VM runs under a
 * lock of the library, save `ref`, `roots` and `visit`. A heap, vm or block that a call is about
 * has no line of its own. A handle or pointer that a call gives is none or NULL when it fails;
 * `bytes` or `max` behind an argument is the room there. Where nothing is said about signals, a
 * function may not be called from a signal handler; one whose signal interrupted or was raised by
 * code of the heap (ch_code_at of its pc), and so no lock, allocator or call of the library, is a
 * caller like any other. A thread that is not attached is attached by the call that opens a block,
 * and detached by its end; it gets CH_E_THREAD from each that is for "an attached thread" or "the
 * thread that opened" one, which may hand an OPEN block to another attached one; a stub that it
 * takes is a panic. A stale handle gives CH_E_STALE. From ch_mark_begin to ch_mark_end a thread
 * gets CH_E_STATE where a lock is; in `ref`, `roots` and `visit`, too.
 *
 * Structures with a `size` grow at their end. The caller sets it to sizeof: a smaller one, of an
 * older header, is taken, and what it lacks is 0; a larger one is CH_E_ARG. Structures with `spare`
 * words grow into them: where a word is not 0, a field of a newer header, it is CH_E_ARG. */
#ifndef CODEHEAP_CODEHEAP_H
#define CODEHEAP_CODEHEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CH_VERSION_MAJOR 0
#define CH_VERSION_MINOR 2
#define CH_VERSION_PATCH 0
#define CH_VERSION_TEXT "0.2.0"
#define CH_VERSION_BINARY 1 /* of libX.so.1: programs that were linked with another need theirs */

#define CH_API __attribute__((visibility("default")))
#define CH_CHECKED __attribute__((warn_unused_result))

/* --- status --- */

#define CH_STATUS_LIST(X)                                                                        \
	X(CH_OK, "success")                                                                      \
	X(CH_E_ARG, "an argument is out of its range")                                           \
	X(CH_E_STALE, "the handle's object, or one it relies on, is dead")                       \
	X(CH_E_FULL, "the pool has no room until code is collected")                             \
	X(CH_E_STATE, "not legal in the object's state")                                         \
	X(CH_E_SITE, "a patch site's bytes, alignment or neighbours break the rules")           \
	X(CH_E_REACH, "the target is too far for the instruction")                               \
	X(CH_E_MEMORY, "no memory for the heap's own records")                                   \
	X(CH_E_OS, "the operating system refused; errno says why")                               \
	X(CH_E_BUSY, "a thread did not stop or is on no attached stack, or the heap is used")   \
	X(CH_E_THREAD, "the calling thread is not attached, or attached already")                \
	X(CH_E_BROKEN, "an invariant of the heap does not hold")

enum ch_status {
#define X(name, text) name,
	CH_STATUS_LIST(X)
#undef X
};

/* ch_status_text: a sentence for a status.
 * ret   a constant string, for every value
 * safe  any thread; signal handlers */
CH_API const char *ch_status_text(enum ch_status status);

/* ch_why: what the call of the calling thread that just failed found wrong, behind the status's
 * name: the argument, its value and its range; each backend that was tried, and the call of the
 * system that was refused; the number of the thread that did not stop.
 * ret   a sentence of at most 239 bytes, in the thread's own memory, until its next call: one that
 *       succeeds may leave what it passed over on its way. "" before the first
 * safe  any thread; signal handlers, where a call that was interrupted may have half written it,
 *       and finds it changed when the handler made a call that failed
 * note  CODEHEAP_DEBUG=1 writes each one to stderr, too */
CH_API const char *ch_why(void);

/* --- types --- */

struct ch_heap;
struct ch_vm;
struct ch_fiber;
struct ch_marker;

/* clang-format off */ /* Handles: index, heap and generation; all bits 0 = none. */
struct ch_block { uint64_t bits; };
struct ch_owner { uint64_t bits; };
struct ch_branch { uint64_t bits; };
struct ch_assumption { uint64_t bits; };
/* clang-format on */

/* Registers at a branch site. x86-64: gpr in encoding order (rax rcx rdx rbx rsp rbp rsi rdi
 * r8..r15). aarch64: x0..x30, sp; x16 and x17 are the stub's. riscv64: x0..x31; t1 and t3 are the
 * stub's, changes of sp, gp and tp are not taken. */
struct ch_regs {
	uint64_t gpr[32];
	/* In: the fallback of the owner whose code has the branch. Out: where to go on when no
	 * block is returned, or when each one that was returned had died before it could be
	 * entered. */
	uint64_t pc;
	uint64_t sp; /* sp at the site; read only */
	/* x86-64: vector state, as xsave or fxsave leave it. aarch64: q0..q31, fpsr, fpcr; riscv64:
	 * f0..f31, fcsr; wider ones (SVE, SME, V) hold nothing at a site, as at a call. */
	void *extended;
};

/* The only moves:
 *   OPEN -> LIVE                ch_block_commit, by the thread that opened it
 *   OPEN -> FREE                ch_block_abort
 *   LIVE -> NOTENTRANT          ch_blocks_invalidate, ch_assumption_break, ch_vm_discard
 *   LIVE | NOTENTRANT -> DEAD   the sweep, of what a cycle did not reach;
 *                               ch_owner_release and ch_code_free (NOT_RUNNING)
 *   DEAD -> FREE                the sweep, after withdrawal, trap fill and a core sync */
enum ch_block_state {
	CH_BLOCK_FREE,
	CH_BLOCK_OPEN,
	CH_BLOCK_LIVE,
	CH_BLOCK_NOTENTRANT,
	CH_BLOCK_DEAD
};

/* How others may enter a block. NONE: by branches and the cell. PATCH: one instruction that
 * becomes a jump. GUARD: the VM's code tests a data word. A CH_LEA needs one of both. */
enum ch_entry { CH_ENTRY_NONE, CH_ENTRY_PATCH, CH_ENTRY_GUARD };

/* Kinds of branch sites. x86-64: E9, 0F 8x, E8, lea reg,[rip+disp32]; the displacement lies in
 * one aligned 8 bytes. aarch64: B; B.cond, CBZ or TBZ over the B behind it; BL; LDR x, +8, then
 * B +12 and the aligned 8 bytes that it loads. riscv64: jal x0; a branch over the jal x0 behind it;
 * jal ra; auipc rd, 0, ld rd, 12(rd), jal x0, 12 and the literal that they load, an aligned 8
 * bytes; all 4-aligned, none compressed. Where a jal does not reach (1 MiB) its stub leads on: like
 * veneers and closed entries that takes t1 and t3, which hold nothing at sites and entries.
 * LITERAL: an aligned 8-byte word that holds the absolute address. */
enum ch_branch_kind { CH_JMP, CH_JCC, CH_CALL, CH_LEA, CH_LITERAL };

enum ch_backend { CH_BACKEND_AUTO, CH_BACKEND_DUAL, CH_BACKEND_MEMFD, CH_BACKEND_PROCMEM };
enum ch_fork { CH_FORK_COPY, CH_FORK_NONE, CH_FORK_COW };
enum ch_driver { CH_DRIVER_BUILTIN, CH_DRIVER_HOST };
enum ch_release { CH_RELEASE_COLLECT, CH_RELEASE_NOT_RUNNING };

/* What a block holds. RODATA and DATA are for code that reaches them by distance, and never run.
 * All hot_bytes are theirs. RODATA is readable at exec from commit on, DATA writable too. What fits
 * in a fourth of a page shares pages with others of its kind and costs its bytes and 8, which are
 * the heap's and lie between: who writes behind a variable damages the next one. Of such RODATA
 * write is not exec. Larger data, and data with CH_OPEN_IN_PLACE, has whole pages; there write is
 * exec, a multiple of 64. Each kind has chunks of the pool (1 MiB) of its own, so a pool of one
 * chunk has code or data. With ch_open.heap or CH_OPEN_KEPT data lives as such code does; else an
 * edge from a block that is held keeps it, a word on a stack, or IMMORTAL, or it dies in two
 * cycles, or in that of its last user. Where that one is released or freed NOT_RUNNING it dies
 * with it at once, whatever is on a stack. It may have edges itself; nothing else is attached or
 * entered (CH_E_STATE), invalidation passes it over, and no sink hears of it. */
enum ch_kind { CH_KIND_CODE, CH_KIND_RODATA, CH_KIND_DATA };

/* Sinks: tables of the outside world. CH_SINK_DEFAULT in a configuration: the unwinder's. */
enum ch_sink {
	CH_SINK_DEFAULT = 0,
	CH_SINK_UNWIND = 1,     /* libgcc's, and LLVM's where it is there */
	CH_SINK_PERF_MAP = 2,   /* /tmp/perf-PID.map */
	CH_SINK_JITDUMP = 4,    /* jit-PID.dump, which alone is right for a reused address */
	CH_SINK_GDB = 8,        /* GDB's JIT interface: made when a debugger listens */
	CH_SINK_LIBUNWIND = 16, /* nongnu libunwind 1.6 or later; ENOSYS where there is none */
	CH_SINK_STATS_FILE = 32, /* ch_sink_status only: of ch_config.stats_file */
	CH_SINK_NONE = 1 << 30
};

/* Names of freed code in the perf map, which knows no time. REPLACED: gone when the address is used
 * again, when they are many, or at ch_sink_flush, so that an address has its last owner's name.
 * KEPT: they stay as long as the sink is on, and the addresses of freed code are not used again,
 * so that old samples have the right name; when a block could not be opened otherwise, all names
 * of freed code leave the file at once, and then their addresses are free. */
enum ch_dead_names { CH_DEAD_NAMES_REPLACED, CH_DEAD_NAMES_KEPT };

enum ch_open_flags {
	CH_OPEN_MAY_COLLECT =
		1, /* the caller holds no lock. A full pool is collected until that frees nothing,
		    * at most four times; and what a cycle freed is kept for the open that asked for
		    * it, beside opens with this flag. CH_E_FULL then means that what lives, with
		    * what others make meanwhile and a page a thread, leaves no such room.
		    * Where a vm has stop_world, and in a HOST heap, nothing is kept */
	CH_OPEN_IMMORTAL = 2, /* a root for the heap's life: shared exits, entry thunks */
	CH_OPEN_OWN_FRAMES = 4, /* unwinders know the block by ch_code.eh_frame only; frame is 0.
				 * It gets whole pages, apart from other code by 1 MiB */
	/* write is exec: emitters that know one address write there until commit, and it runs only
	 * from then on. Whole pages, exec a multiple of 64, cold_bytes and branch_room 0, no PATCH
	 * (CH_E_ARG); no refs, no patch points (CH_E_STATE). */
	CH_OPEN_IN_PLACE = 8,
	/* With an owner: lives until ch_code_free, or the end of its owner, entry or not: the owner
	 * is a group, that ch_owner_release ends as a whole; its vm hears block_freed. */
	CH_OPEN_KEPT = 16,
};

/* --- callbacks of a VM --- */

/* All may be NULL, except branch_hit where a branch without an exit of its own is attached.
 * Unless a field says otherwise they run in an attached thread, under no lock, and may call any
 * function here. branch_hit, block_freed and space_free may return in another thread, by a fiber
 * that goes on there; what they were called from ends early where that one is not attached
 * (CH_E_THREAD of ch_block_open; of a stub, a panic). */
struct ch_ops {
	size_t size; /* sizeof(struct ch_ops) */
	/* An unlinked branch was taken. Returns the block to link it to and go on in, or
	 * none: go on at regs->pc. It may change regs, take the VM's locks, compile, collect,
	 * invalidate. It may also not return: by longjmp, or, where the block's frame shape holds
	 * at the site, by an exception or a cancellation; the library holds nothing for it, and the
	 * branch is as it was, for others who are in its stub too. Asked again when the block died
	 * before it could be linked, 8 times at most: so it sets regs->pc also beside a block,
	 * unless the fallback may be entered with the registers of the site. */
	struct ch_block (*branch_hit)(void *vm_user, struct ch_branch branch, void *branch_user,
				      struct ch_regs *regs);
	/* A marked block's ref, in the stopped world: mark it; return its (new) word. */
	uintptr_t (*ref)(void *vm_user, uintptr_t word);
	/* The stopped world: ch_mark_stack for VM stacks outside the C stacks. No other call. */
	void (*roots)(void *vm_user, struct ch_marker *marker);
	/* A block is gone from every table: once, in ch_thread_poll or ch_heap_collect. */
	void (*block_freed)(void *vm_user, void *block_user);
	/* ch_vm_detach calls block_freed for each block that the vm has then, under no lock. */
	bool tells_detached;
	/* A collection would be worth its while; called by any call that opens, releases or
	 * invalidates. Set a flag, or collect from a safe place; may not call back. */
	void (*collect_wanted)(void *vm_user);
	/* A ch_block_open failed with CH_E_FULL, and space came free since: once, however many
	 * failed; another open that fails asks anew. From ch_thread_poll or ch_heap_collect of a
	 * thread of this heap, which may be another one, before that open returned. */
	void (*space_free)(void *vm_user);
	/* BUILTIN (HOST: CH_E_ARG): the VM's own way to have its threads stand still, beside polls,
	 * parks and the signal: before all of them, in the thread that collects, be it attached or
	 * not. Each thread that it stops has parked, outside of the library. False: CH_E_BUSY. */
	bool (*stop_world)(void *vm_user);
	void (*resume_world)(void *vm_user); /* once for each stop_world that returned true */
};

/* --- configuration --- */

/* Zero is the default of every field. Fill it with ch_config_init. */
struct ch_config {
	size_t size;       /* sizeof(struct ch_config) */
	/* How far the pool may grow: a power of two, one page to 1 GiB (aarch64: 64 MiB). 0 = 256
	 * MiB; 64 MiB on aarch64 and under a limit of address space. Halved, to 1 MiB at least,
	 * until it fits in the address space that is left; ch_stats has what it got. */
	size_t pool_bytes;
	size_t page_bytes; /* power of two, 4096 to 65536; 0 = 16384; the system's if larger */
	const void *near_address; /* the pool within reach of it where room is; NULL: the library */
	/* BUILTIN: owners are roots until released; HOST: the VM's own collector marks them. */
	enum ch_driver driver;
	enum ch_backend backend; /* AUTO = first whose self-test passes; CODEHEAP_WX overrides */
	/* COPY: a child gets its own copy of the code. NONE, or no memory for the copy: it has
	 * none; its blocks are stale, cells lead to fallbacks, opens fail: CH_E_OS (EACCES). COW:
	 * for servers that fork often: AUTO is PROCMEM, whose pages a child shares until one of
	 * both writes; x86-64 only; not with DUAL and MEMFD: CH_E_ARG. */
	enum ch_fork fork;
	/* HOST (else CH_E_ARG): ch_mark_begin stops the attached threads as a BUILTIN cycle does,
	 * and ch_mark_end lets them go on; false: the VM does both. */
	bool stops_world;
	/* BUILTIN, stops_world: stop running threads by it, too, by no fault's; 0 = polls, parks */
	int stop_signal;
	unsigned stop_wait_ms; /* what a cycle waits in all for threads and their locks; 0 = 1000 */
	unsigned sinks;        /* set of enum ch_sink; CODEHEAP_SINKS overrides */
	enum ch_dead_names dead_names; /* CODEHEAP_DEAD_NAMES overrides: replaced, kept */
	/* Copied; NULL = environment's JITDUMPDIR, else /tmp. One file: the first heap's. */
	const char *jitdump_dir;
	/* Copied; NULL = none. For codeheap-top; %p is the process's number, its second heap adds
	 * ".2"; a child of fork has one if there is a %p. CODEHEAP_STATS overrides, may fail.
	 * libcodeheap-profile writes it: without that library CH_E_OS, ENOSYS. */
	const char *stats_file;
	unsigned step_blocks;    /* freed by one step of the sweep at most; 0 = 64, at most 64 */
	/* Freed blocks that traps can name: a power of two, 64 to 1,048,576; 0 = 65,536. 32 bytes
	 * and a name each, taken as blocks die. */
	unsigned remembered_dead;
	/* Called on a broken invariant, before the reason and the last 64 events (cycles,
	 * invalidations, threads, forks) go to stderr, and abort(). Process-wide: the last one. */
	void (*panic)(const char *reason);
};

/* ch_config_init: fill a configuration with the defaults. */
static inline void ch_config_init(struct ch_config *config)
{
	memset(config, 0, sizeof *config);
	config->size = sizeof *config;
}

/* --- heap --- */

/* ch_heap_create: reserve a pool and start a heap.
 * in    config  NULL = all defaults
 * ret   CH_OK | CH_E_ARG a field, or a variable (told on stderr) | CH_E_MEMORY
 *       | CH_E_OS errno kept; EMFILE: the process has 255 heaps, and can have no more
 * safe  any thread; attach threads and vms afterwards
 * cost  some 25 system calls; memory is committed as it is used, 64 KiB first */
CH_API CH_CHECKED enum ch_status ch_heap_create(const struct ch_config *config,
						struct ch_heap **heap);

/* ch_heap_destroy: end a heap; all its code and side memory go at once.
 * in    heap  no vm, fiber or other thread is attached; no thread runs its code
 * ret   CH_OK | CH_E_BUSY a vm, a fiber or another thread is attached, by a call or not
 * lock  registry, heap
 * safe  any thread; every handle of the heap is stale afterwards
 * cost  O(memory of the heap)
 * note  files of sinks stay; what a handler read for a second stays until a heap comes or goes */
CH_API CH_CHECKED enum ch_status ch_heap_destroy(struct ch_heap *heap);

/* Counters are plural and only grow; gauges end in _now or _peak. Bytes. free_bytes_now: that no
 * block has, headers of pages left out; largest_free_bytes_now: the most of them in a row. */
/* clang-format off */
#define CH_STATS_LIST(X)                                                                          \
	X(pool_bytes) X(page_bytes) X(pages_now) X(free_bytes_now) X(largest_free_bytes_now)      \
	X(pages_peak) X(committed_bytes_now) X(code_bytes_now) X(hot_bytes_now) X(cold_bytes_now) \
	X(stub_bytes_now) X(notentrant_bytes_now) X(quarantine_bytes_now) X(code_bytes_peak)      \
	X(metadata_bytes_now) X(blocks_now) X(blocks_open_now) X(blocks_notentrant_now)           \
	X(branches_now) X(owners_now) X(assumptions_now) X(threads_now) X(fibers_now) X(vms_now)  \
	X(blocks_opened) X(blocks_committed) X(blocks_aborted) X(blocks_freed)                    \
	X(blocks_invalidated) X(bytes_opened) X(bytes_freed) X(branches_linked)                   \
	X(branches_unlinked) X(branch_hits) X(branch_hits_stale) X(patch_points_armed)            \
	X(opens_full) X(cycles) X(cycles_abandoned) X(core_syncs) X(marked_blocks_last)           \
	X(stack_roots_last) X(mark_ns_last) X(mark_ns_total) X(pause_ns_last) X(pause_ns_max)     \
	X(sweep_ns_total) X(freezes)
/* clang-format on */

struct ch_stats {
	size_t size;         /* in: sizeof(struct ch_stats) */
	const char *version; /* of the library that is loaded; constant, as the next */
	const char *backend; /* "dual", "memfd", "procmem" */
	unsigned sinks_on;   /* set of enum ch_sink */
#define X(name) uint64_t name;
	CH_STATS_LIST(X)
#undef X
};

/* ch_heap_stats: a snapshot of counters and gauges.
 * out   stats  stats->size is set by the caller
 * ret   CH_OK | CH_E_ARG size
 * lock  heap, shortly; free bytes are counted without it
 * safe  any thread
 * cost  O(pages of the pool) */
CH_API CH_CHECKED enum ch_status ch_heap_stats(struct ch_heap *heap, struct ch_stats *stats);

/* ch_heap_check: walk every invariant; decode the bytes at every attached site.
 * out   report  what is broken, "" when nothing is; may be NULL with bytes 0
 * ret   CH_OK | CH_E_BROKEN | CH_E_BUSY a thread was held inside a call
 * lock  registry, heap, pages; freezes
 * safe  any attached or foreign thread
 * cost  O(heap) */
CH_API CH_CHECKED enum ch_status ch_heap_check(struct ch_heap *heap, char *report, size_t bytes);

/* --- vm --- */

/* ch_vm_attach: add a VM instance to a heap.
 * in    ops   copied; ops->size is sizeof(struct ch_ops)
 *       user  the first argument of the callbacks
 * ret   CH_OK | CH_E_ARG | CH_E_MEMORY
 * lock  heap
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_vm_attach(struct ch_heap *heap, const struct ch_ops *ops,
					      void *user, struct ch_vm **vm);

/* ch_vm_detach: remove a VM instance; releases its owners and discards its blocks; no callback
 * comes afterwards, save one that another thread, inside the library meanwhile, was about to make;
 * with `tells_detached` block_freed comes before, here, for each block that is left.
 * in    vm  no thread runs its code, or will
 * ret   CH_OK | CH_E_STATE it was detached before
 * lock  heap; none while block_freed runs
 * safe  any thread
 * cost  O(owners and blocks of the heap)
 * note  blocks that are still on a stack are freed by later cycles; user stays valid until the
 *       calls of other threads that poll, collect or open have returned */
CH_API CH_CHECKED enum ch_status ch_vm_detach(struct ch_vm *vm);

/* ch_vm_discard: invalidate all code of one vm, or of all, free at once what no stack holds,
 * leave the rest to later cycles. Immortal blocks stay, and those that are open.
 * in    vm     NULL = every vm of the heap; code without an owner is no vm's
 * out   freed  of the blocks it found, invalidated before or by it: those that are freed (host and
 *              Boehm driver: the VM's next cycle will, so 0); may be NULL
 *       kept   the others; may be NULL
 * ret   CH_OK | CH_E_ARG vm | CH_E_BUSY a thread did not stop: all is invalid, nothing was freed
 * lock  registry, heap: it waits for the latter without a bound before it invalidates, and then
 *       stop_wait_ms; the caller holds no lock that a thread could wait for without parking
 * safe  any thread, also while others run JIT code
 * cost  O(blocks) */
CH_API CH_CHECKED enum ch_status ch_vm_discard(struct ch_heap *heap, struct ch_vm *vm,
					       size_t *freed, size_t *kept);

/* --- thread --- */

/* ch_thread_attach: the calling thread may run and make code of the heap from here to its end. A
 * thread that makes code is attached by that call; one that only runs it, by this one.
 * in    low, high  bounds of its stack, NULL = ask the system
 * ret   CH_OK also where a call attached it | CH_E_THREAD this function did | CH_E_MEMORY |
 *       CH_E_OS no stack bounds, or no pthread key
 * lock  registry
 * safe  any thread, once a heap
 * cost  O(threads of the heap); some system calls
 * note  its end takes the locks that ch_thread_detach takes: do not join it from `ref`, `roots`,
 *       `visit` or between ch_mark_begin and ch_mark_end. One that a system call of its own made,
 *       not pthread_create, detaches itself */
CH_API CH_CHECKED enum ch_status ch_thread_attach(struct ch_heap *heap, const void *low,
						  const void *high);

/* ch_thread_detach: the calling thread has left the heap's code for good, before its end.
 * ret   CH_OK | CH_E_THREAD not attached
 * lock  registry, heap
 * safe  an attached thread, parked or not, without a suspended fiber; its OPEN blocks stay OPEN */
CH_API CH_CHECKED enum ch_status ch_thread_detach(struct ch_heap *heap);

/* ch_thread_park: up to ch_thread_unpark the caller runs no code of a heap, and counts as stopped.
 * safe  any thread (no effect in one that is not attached); nests
 * note  put it around each blocking lock, wait and system call: one thread that blocks unparked
 *       stalls every cycle. Threads that run code only under one lock of the VM, which the caller
 *       of each cycle holds, may stay parked: then `roots` reports their stacks */
CH_API void ch_thread_park(void);

/* ch_thread_unpark: undo one ch_thread_park; waits while the world is stopped.
 * safe  the thread that parked
 * note  release a lock taken while parked only after it, never wait for one between */
CH_API void ch_thread_unpark(void);

/* ch_thread_poll: a safepoint: stops while a cycle wants it, delivers notices, sweeps a step,
 * writes names that wait for the perf map.
 * lock  heap and the perf map's, shortly, when there is work
 * safe  an attached thread that holds no lock; its callbacks run here
 * cost  a load and a branch when there is nothing to do */
CH_API void ch_thread_poll(void);

/* ch_thread_poll_word: the word that machine code tests in the place of a call: not 0, where
 * ch_thread_poll has something to do.
 * ret   the heap's word, at one address for all threads while the heap lives
 * safe  any thread; code loads 4 bytes, in no order
 * note  polls of the heap's threads set it back. It stays set while a stop or a sweep lasts, or an
 *       open waits for space. A thread that is attached to two heaps tests both */
CH_API const volatile uint32_t *ch_thread_poll_word(struct ch_heap *heap);

/* --- fiber --- */

/* ch_fiber_attach: a stack that threads of the heap switch to; suspended, what returns holds code.
 * in    low, high  bounds of the stack
 * out   fiber      not suspended yet
 * ret   CH_OK | CH_E_ARG low >= high | CH_E_MEMORY
 * lock  registry
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_fiber_attach(struct ch_heap *heap, const void *low,
						 const void *high, struct ch_fiber **fiber);

/* ch_fiber_suspend: the stack of fiber is about to be left; before the switch.
 * in    fiber      the fiber whose stack the caller runs on; a thread's own stack is attached as
 *                  a fiber for this, too
 *       lowest_sp  below every frame that is kept; 256 bytes more are scanned; elsewhere: all is
 * safe  the thread that runs on it
 * note  from here to ch_fiber_resume both stacks are scanned */
CH_API void ch_fiber_suspend(struct ch_fiber *fiber, const void *lowest_sp);

/* ch_fiber_resume: the caller runs on the fiber's stack again; after the switch.
 * safe  any attached thread: a fiber may go on in another one */
CH_API void ch_fiber_resume(struct ch_fiber *fiber);

/* ch_fiber_detach: the stack is gone; no frame on it will be returned to.
 * ret   CH_OK | CH_E_STATE not attached; the stack may be unmapped at once: no cycle scans it
 * lock  registry, heap
 * safe  any thread
 * cost  O(threads of the heap) */
CH_API CH_CHECKED enum ch_status ch_fiber_detach(struct ch_fiber *fiber);

/* --- owner --- */

/* ch_owner_create: something the VM compiles; with no entry yet, its cell holds the fallback.
 * in    vm        a vm of a BUILTIN or HOST heap (Boehm: ch_bdw_owner_create)
 *       name      copied; what tables and traps say, before a block's own; NULL = none
 *       fallback  the VM's entry without code, same calling convention; NULL where nobody calls
 *                 through the cell: it leads to a trap then that says so
 * ret   CH_OK | CH_E_ARG | CH_E_MEMORY | CH_E_STATE the vm was detached
 * lock  heap
 * safe  any thread
 * note  BUILTIN: a root until released. HOST: alive while the VM's collector marks it */
CH_API CH_CHECKED enum ch_status ch_owner_create(struct ch_vm *vm, const char *name,
						 const void *fallback, void *user,
						 struct ch_owner *owner);

/* ch_owner_set_entry: the owner is entered at this block from here on.
 * in    block  a LIVE block of the owner; none = back to the fallback
 * ret   CH_OK | CH_E_STALE | CH_E_STATE not LIVE, or data | CH_E_ARG another owner's
 * lock  by an attached thread: none; else heap
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_owner_set_entry(struct ch_owner owner, struct ch_block block);

/* ch_owner_cell: the word to call through; constant for the owner's life.
 * ret   NULL on a stale owner
 * safe  any thread
 * note  code that calls through another owner's cell attaches an edge to that owner */
CH_API const void *const *ch_owner_cell(struct ch_owner owner);

/* ch_owner_release: the VM has no more use for the owner.
 * in    how  COLLECT: its code goes when no stack or block holds it; NOT_RUNNING: at once, the
 *       caller vouching that no thread is inside it or will be; a block that another one attached
 *       an edge to is left to the cycles
 * ret   CH_OK | CH_E_ARG how | CH_E_STALE (also when released already)
 * lock  COLLECT: none; NOT_RUNNING: heap
 * safe  any thread; COLLECT also from finalizers and collectors' callbacks, in no stopped world
 * cost  COLLECT: O(1); NOT_RUNNING: O(its blocks, and what is attached to or leads to them) */
CH_API CH_CHECKED enum ch_status ch_owner_release(struct ch_owner owner, enum ch_release how);

/* --- block --- */

/* What to open. Zero what you do not need. */
struct ch_open {
	size_t size;           /* sizeof(struct ch_open) */
	struct ch_heap *heap;  /* of code that lives until ch_code_free; or */
	struct ch_owner owner; /* whose life governs it; one of both */
	uint32_t hot_bytes;    /* most that will be emitted; what is unused is given back */
	uint32_t cold_bytes;   /* the same for side exits; stubs are not counted */
	uint32_t branch_room;  /* to come; 8 cold bytes each (procmem 32, aarch64 16, riscv64 24) */
	enum ch_entry entry;     /* NONE without an owner */
	uint8_t frame;           /* enum ch_frame_shape, or ch_frame_register's */
	unsigned flags;          /* set of enum ch_open_flags */
	enum ch_kind kind;       /* data: entry, frame, cold_bytes, branch_room 0, no OWN_FRAMES */
	const void *not_entrant; /* where an invalidated entry leads; NULL = the owner's fallback */
	const char *name;        /* copied; NULL = the owner's name only */
	void *user;              /* comes back in block_freed, ch_block_info and ch_code_at */
	size_t align; /* of exec: a power of two, at most 4096; 0 = 8, in whole pages of data 64 */
};

/* A block under construction: emit at write, relative to exec; set what is marked "in". Write leads
 * to the code until the block is committed or aborted; what a copy of it stores then may be lost,
 * or another block's: ch_code_write. At exec nothing is to be read or run before the commit. */
struct ch_code {
	struct ch_block block;
	uint8_t *write, *exec;           /* hot bytes */
	uint8_t *cold_write, *cold_exec; /* cold bytes */
	uint32_t hot_bytes, cold_bytes;  /* room */
	uint32_t entry_bytes;            /* PATCH: the library's bytes at exec, before the VM's */
	uint32_t used_from, used_to; /* in: hot bytes in use; from: 0, a multiple of 8; PATCH: 0 */
	uint32_t cold_used;    /* in */
	uint32_t entry_offset; /* in: from exec; PATCH: 0 */
	const uint32_t *guard; /* GUARD: 0 while entrant; the VM's entry tests it */
	/* in: OWN_FRAMES: an .eh_frame section of at most 1 MiB, 4-aligned, ended by a length of 0:
	 * CIEs with personality, FDEs with final exec addresses (absolute or pc-relative, 2, 4 or 8
	 * bytes) in the block, and LSDAs. All of it stays as it is until block_freed comes for the
	 * block, ch_vm_detach returns, or commit fails; or it lies in RODATA that the block has an
	 * edge to. NULL: unwinding ends at the block. */
	const void *eh_frame;
	const struct ch_frame *frame; /* in: CH_FRAME_STEPS */
	uint64_t spare[4];            /* ch_block_open sets them to 0 */
};

/* ch_block_open: make room for a block.
 * in    open  one of heap and owner, who is alive; hot_bytes > 0
 * out   code  all zero on failure
 * ret   CH_OK | CH_E_ARG also if larger than the pool | CH_E_STALE the owner is dead | CH_E_FULL |
 *       CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the thread is parked | CH_E_OS errno kept |
 *       CH_E_REACH riscv64: PATCH, 1 MiB or more
 * lock  none on the fast path; pages and heap when a page is needed; see CH_OPEN_MAY_COLLECT
 * safe  any thread, on its own stack and known to Boehm's collector, else CH_E_THREAD; attaches
 *       it; only it may go on with the block
 * cost  some 50 ns; a page now and then
 * note  never collects by itself: where that may help CH_E_FULL, and `collect_wanted` */
CH_API CH_CHECKED enum ch_status ch_block_open(const struct ch_open *open, struct ch_code *code);

/* ch_block_veneer: an address in the block's reach (riscv64: auipc's) that jumps to a far function.
 * in    target  e.g. a C function
 * out   at      exec address; immortal, shared by all callers of the target
 * ret   CH_OK | CH_E_STATE | CH_E_FULL the veneers' page is full
 * lock  heap
 * safe  the thread that opened it
 * cost  O(veneers of the heap) */
CH_API CH_CHECKED enum ch_status ch_block_veneer(const struct ch_code *code, const void *target,
						 const void **at);

/* ch_block_commit: publish blocks that were opened; from then on they may run.
 * in    codes  their "in" fields are set; after CH_OK write and cold_write of each are NULL
 *       count  blocks that become reachable together; all or none
 * ret   CH_OK | CH_E_STATE not open, or an edge names an OPEN block that is not among them:
 *       nothing was done | CH_E_ARG one comes twice, used more than there is (of data nothing is
 *       looked at: all its room is used), or an eh_frame that
 *       is malformed, speaks of other code or was not announced at open | CH_E_SITE a site lies
 *       outside of what is used, was written over, or has the entry inside; or an exit of the
 *       block leads to bytes that are not used | CH_E_MEMORY | CH_E_STALE
 *       the owner is dead, an assumption broke, or a block that an edge names was aborted: all the
 *       blocks were aborted | CH_E_OS errno kept: what was written in place does not get its
 *       access; all are OPEN, and not to be written any more: commit again, or abort | CH_E_BROKEN
 *       the bytes around the room of one are not what the heap has there: its emitter, or that
 *       of the block before it, wrote on, and what lies there is damaged; all are OPEN
 * lock  none without assumptions, names and sinks beyond the unwinder; else heap; eh_frame: sinks
 * safe  the thread that opened them
 * cost  some 30 ns a block; no system call
 * note  a committed block that gets no entry and no branch for two cycles dies: where others
 *       collect without end, be ready for CH_E_STALE and compile again */
CH_API CH_CHECKED enum ch_status ch_block_commit(struct ch_code *codes, size_t count);

/* ch_block_abort: forget an open block.
 * ret   CH_OK | CH_E_STATE not open
 * lock  heap
 * safe  the thread that opened it
 * cost  O(what is attached to it) */
CH_API CH_CHECKED enum ch_status ch_block_abort(struct ch_code *code);

/* ch_code_add: make code of bytes that are ready and do not depend on where they lie.
 * in    bytes, n  the code; it keeps the frame pointer, or calls nothing that unwinds
 *       name      copied; what perf, gdb and traps say
 * out   to        the address of a pointer to a function of any type: the code's; NULL on failure
 * ret   CH_OK | CH_E_ARG | CH_E_FULL | CH_E_MEMORY | CH_E_OS errno kept | CH_E_THREAD | CH_E_STATE
 *       the thread is parked
 * lock  heap
 * safe  any thread, as ch_block_open
 * cost  some 100 ns, and a copy of the bytes */
CH_API CH_CHECKED enum ch_status ch_code_add(struct ch_heap *heap, const void *bytes, size_t n,
					     const char *name, void *to);

/* ch_code_free: the end of code without an owner, or of CH_OPEN_KEPT, by its address.
 * in    heap  NULL = whichever has the address: O(heaps)
 *       at    what ch_code_add gave, ch_code.exec or its entry
 *       how   COLLECT: when no stack is in it and nothing has an edge or branch to it. NOT_RUNNING:
 *             now; where another block attached an edge to it, when a cycle finds none
 * ret   CH_OK | CH_E_ARG how, or no code begins there | CH_E_STATE an owner's, or immortal |
 *       CH_E_STALE nothing is there, or not any more, and nothing else yet
 * lock  COLLECT by an attached thread: none; else heap
 * safe  any thread; COLLECT also from finalizers and collectors' callbacks, in no stopped world
 * cost  COLLECT: O(1); NOT_RUNNING: O(what is attached to it or leads there) */
CH_API CH_CHECKED enum ch_status ch_code_free(struct ch_heap *heap, const void *at,
					      enum ch_release how);

/* NOT_RUNNING: any bytes; the caller vouches that no thread runs or loads them meanwhile. WORD,
 * INSTRUCTION: while others do, each of whom gets the old ones or the new. WORD: 1, 2, 4 or 8 bytes
 * that code loads, aligned to so many. INSTRUCTION: some bytes of one, within an aligned 8, whose
 * length stays; aarch64: the whole of B, BL, NOP or BRK, which becomes another of them; riscv64: of
 * an aligned one of 4 bytes. */
enum ch_write { CH_WRITE_NOT_RUNNING, CH_WRITE_WORD, CH_WRITE_INSTRUCTION };

/* ch_code_write: write into code that was committed, where ch_code.write does not lead any more.
 * in    heap   NULL = whichever has the address: O(heaps)
 *       at, n  exec address; the bytes lie in the hot ones of one block, or in its cold ones
 * ret   CH_OK whoever comes to the bytes from here on runs the new ones | CH_E_ARG they do not lie
 *       so, or the block is OPEN | CH_E_STATE data, or a trampoline | CH_E_SITE they share one with
 *       an attached site or ref, a stub, a patchable entry or a block's steps; or while others run
 *       them they may not change so | CH_E_OS errno kept; nothing changed: aarch64 without
 *       membarrier's core synchronization; procmem, more than one byte, while others run them: each
 *       such page is a mapping, of which a process has so many
 * lock  heap
 * safe  any thread
 * cost  O(n + what is attached), and a core synchronization, 1 us; procmem, 5 to 20 us */
CH_API CH_CHECKED enum ch_status ch_code_write(struct ch_heap *heap, const void *at,
					       const void *bytes, size_t n, enum ch_write how);

struct ch_info {
	size_t size; /* in: sizeof(struct ch_info) */
	struct ch_block block;
	struct ch_owner owner; /* none without one */
	struct ch_vm *vm;      /* NULL without an owner */
	void *user;
	const char *name; /* the block's, else the owner's; valid while the block is alive */
	enum ch_block_state state;
	const uint8_t *exec;      /* hot bytes */
	const uint8_t *cold_exec; /* cold bytes, stubs included */
	const uint8_t *entry;     /* NULL unless LIVE */
	uint32_t hot_bytes, cold_bytes;
	uint32_t branches_now;
	enum ch_kind kind;
};

/* ch_block_info: what the heap knows of a block.
 * out   info  info->size is set by the caller
 * ret   CH_OK | CH_E_STALE | CH_E_ARG size
 * lock  heap, shortly
 * safe  any thread
 * cost  O(its branches) */
CH_API CH_CHECKED enum ch_status ch_block_info(struct ch_block block, struct ch_info *info);

/* --- graph --- */

struct ch_branch_site {
	const void *at; /* exec address of the instruction, or of the literal */
	enum ch_branch_kind kind;
	void *user;       /* comes back in branch_hit, until block_freed of the block; ch_code_at */
	const void *exit; /* where it leads while unlinked; NULL = a stub of its own */
	uint64_t spare[2]; /* 0 */
};

/* ch_branch_attach: declare a patch site; its bytes are written to lead to its stub.
 * in    block   OPEN; or LIVE, when branch_room is left: the site must not be reachable yet
 *       site    the instruction's bytes are already there
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_FULL branch_room is used up | CH_E_SITE another
 *       instruction, or its displacement is not in one aligned 8; it shares a byte with another
 *       site, a ref, a patchable entry or a stub; an exit or an entry leads between its bytes, or
 *       its own exit between those of another | CH_E_REACH the exit is too far from the site or
 *       from its stub | CH_E_ARG outside the block, or neither an exit nor a branch_hit
 * lock  OPEN: none, or heap where the exit is another block's; LIVE: heap
 * safe  an attached thread
 * cost  O(branches of the block) */
CH_API CH_CHECKED enum ch_status ch_branch_attach(struct ch_block block,
						  const struct ch_branch_site *site,
						  struct ch_branch *branch);

/* ch_branch_link: let the branch lead to a block.
 * in    target  LIVE, same heap; none = back to the stub
 * ret   CH_OK | CH_E_STALE either end is dead | CH_E_STATE either end is NOTENTRANT or OPEN, the
 *       target is data, or a CH_LEA to ENTRY_NONE | CH_E_REACH
 * lock  heap
 * safe  any thread, while others run both
 * cost  one store into the code, on procmem into data */
CH_API CH_CHECKED enum ch_status ch_branch_link(struct ch_branch branch, struct ch_block target);

/* The calls from here to ch_block_lines want an OPEN block (CH_E_STATE), which keeps a list of what
 * is attached: where the list grows they take the heap's lock. */

/* ch_edge_attach: the block needs another one (an address in a table, an exit in another block).
 * in    to  not dead; when OPEN, it is committed before the block, or with it
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_MEMORY
 * safe  the thread that opened it */
CH_API CH_CHECKED enum ch_status ch_edge_attach(struct ch_block block, struct ch_block to);

/* ch_edge_attach_owner: the block calls through the owner's cell.
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_MEMORY
 * safe  the thread that opened it */
CH_API CH_CHECKED enum ch_status ch_edge_attach_owner(struct ch_block block, struct ch_owner to);

/* ch_ref_attach: eight bytes of the block are a pointer into the VM's heap.
 * in    at  exec address of the word; any alignment on x86-64 and aarch64
 * ret   CH_OK | CH_E_STALE | CH_E_STATE also without an owner, whose vm is asked (Boehm: not) |
 *       CH_E_ARG outside the block | CH_E_SITE shares a byte with a site, a stub or a patchable
 *       entry | CH_E_MEMORY
 * safe  the thread that opened it
 * note  attach it as the word is written: a cycle between the two does not know it. Where other
 *       threads may collect, before: while the word is 0 */
CH_API CH_CHECKED enum ch_status ch_ref_attach(struct ch_block block, const void *at);

/* ch_patch_point_attach: a place that invalidation diverts to an exit.
 * in    at    exec address of `test eax, imm32` (A9 and four bytes, which the library writes);
 *             aarch64: of a NOP; riscv64: of an aligned `lui x0, 0`, whose immediate it writes
 *       exit  exec address in the block, or in another one (which it then holds); everything is
 *             as at the point, save flags
 *       user  any word, for ch_block_sites and ch_code_at
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_ARG | CH_E_SITE | CH_E_REACH | CH_E_MEMORY
 * lock  heap, when the exit is another block's, too
 * safe  the thread that opened it
 * cost  O(1); O(what is attached there) when the exit is another block's
 * note  needed behind every call that may invalidate, and on each back edge inside a block */
CH_API CH_CHECKED enum ch_status ch_patch_point_attach(struct ch_block block, const void *at,
						       const void *exit, void *user);

/* From `at` up to the next line's `at`, code comes from this line of the file; 0 = from none. */
struct ch_line {
	const void *at; /* exec address */
	uint32_t line;
};

/* ch_block_lines: where the block's code comes from, for debuggers and profilers.
 * in    file   copied; e.g. an absolute path of a source, or of a listing that the VM wrote
 *       lines  rising by address, in the block, at least one; copied
 * ret   CH_OK | CH_E_STALE | CH_E_STATE not OPEN, or it has lines | CH_E_ARG | CH_E_MEMORY
 * lock  heap
 * safe  the thread that opened it
 * cost  8 bytes a line: a VM gives them when a sink that shows lines is on */
CH_API CH_CHECKED enum ch_status ch_block_lines(struct ch_block block, const char *file,
						const struct ch_line *lines, size_t n);

/* How unwinders, exceptions and samplers pass code, from its prologue's end to its epilogue.
 * POINTER: the code begins with push rbp; mov rbp, rsp (aarch64: stp x29, x30, [sp, #-16]!; mov
 * x29, sp; riscv64: ra and s0 stored below sp as at the call, which is s0 then). Exactly pc, sp and
 * rbp (x29, s0) come back: another register that a callee keeps, and the code saves and changes, is
 * wrong in whoever catches an exception that passes. KEEPS_ALL: next to that pair the code stores
 * all others, downwards: rbx, r12 to r15 by push; aarch64: x19 to x28, then d8 to d15, by stp of
 * two, [sp, #-16]!; riscv64: s1 to s11, fs0 to fs11. LEAF: no frame, sp as at the call (x86-64;
 * else: and the return address in x30, ra), all callees' registers untouched, calls nothing. */
enum ch_frame_shape { CH_FRAME_POINTER, CH_FRAME_KEEPS_ALL, CH_FRAME_LEAF, CH_FRAME_STEPS };

/* STEPS: a frame of a fixed size, and what unwinders know of it at each instruction, for calls and
 * for signals: ch_code.frame, copied behind the code, of which it is the end then. x86-64. At most
 * 65,000 bytes, ENTRY_NONE or GUARD, no cold_bytes, branch_room or IN_PLACE (else CH_E_ARG). Before
 * the first step the frame is as at the call: cfa 8. No step lies where a call returns to. A child
 * of fork without a copy takes such code for LEAF. */
struct ch_frame_step {
	uint16_t at;  /* exec offset; rising */
	uint16_t cfa; /* from at on the caller's sp is so many bytes above sp: a multiple of 8 */
};
struct ch_frame_save {
	uint8_t reg;   /* DWARF's number: 3 (rbx), 6 (rbp), 12 to 15; once */
	uint8_t below; /* from at on it is saved so many words under the caller's sp: 2 or more */
	uint16_t at;
};
struct ch_frame {
	const struct ch_frame_step *steps;
	const struct ch_frame_save *saves;
	uint8_t steps_n, saves_n; /* at most 12 each */
};

/* ch_frame_register: a frame shape of the VM's own; examples/frames.c has one.
 * in    cfi     DWARF call-frame instructions that hold at each instruction of every block of the
 *               shape: the whole rule, from the CFA on, since nothing comes before them
 *       bytes   1 to 64
 * out   frame   for ch_open.frame
 * ret   CH_OK | CH_E_ARG | CH_E_FULL 12 shapes are registered
 * lock  sinks
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_frame_register(struct ch_heap *heap, const void *cfi,
						   size_t bytes, uint8_t *frame);

/* --- trampoline --- */

/* Both pass all argument registers and the return value on, and the payload in a register that no
 * argument is in (x86-64: r10; aarch64: x15, x16 is lost; riscv64: t2, t1 is lost). FRAMED: calls
 * the target from a frame of its own, which unwinders and samplers see under the block's name;
 * arguments on the stack do not pass. TAIL: jumps there. */
enum ch_trampoline { CH_TRAMPOLINE_FRAMED, CH_TRAMPOLINE_TAIL };

/* ch_trampoline_make: a block stamped from a template, entered like any other, and collected.
 * in    owner    whose life governs it; alive
 *       target   at any distance; code of the heap only if something else holds it
 *       payload  not traced
 *       name, user  as in ch_open
 * out   block    LIVE, its code at ch_info.entry
 * ret   CH_OK | CH_E_ARG | CH_E_STALE the owner is dead | CH_E_FULL (also where other code, or a
 *       thread that opened some, has a page in every 1 MiB of the pool: trampolines lie apart) |
 *       CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the thread is parked | CH_E_OS the process has no
 *       unwind table for the template (errno: linked without, or one of an unknown form)
 * lock  heap
 * safe  as ch_block_open
 * cost  some 100 ns; a page now and then */
CH_API CH_CHECKED enum ch_status ch_trampoline_make(struct ch_owner owner, enum ch_trampoline kind,
						    const void *target, uint64_t payload,
						    const char *name, void *user,
						    struct ch_block *block);

/* --- assumption --- */

/* ch_assumption_create: a fact that code may rely on.
 * ret   CH_OK | CH_E_MEMORY | CH_E_STATE the vm was detached
 * lock  heap
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_assumption_create(struct ch_vm *vm,
						      struct ch_assumption *assumption);

/* ch_block_assume: the block relies on it.
 * ret   CH_OK | CH_E_STALE it broke already | CH_E_STATE not OPEN | CH_E_MEMORY
 * lock  heap
 * safe  the thread that opened it
 * note  assume first, read the fact then: a break between the two is seen at commit */
CH_API CH_CHECKED enum ch_status ch_block_assume(struct ch_block block,
						 struct ch_assumption assumption);

/* ch_assumption_break: the fact holds no more: invalidates its blocks in one batch and ends the
 * assumption.
 * in    invalidated  number of blocks, may be NULL
 * ret   CH_OK | CH_E_STALE it broke already
 * lock  heap
 * safe  any thread
 * cost  O(its blocks, and what is attached to or leads to them)
 * note  change the fact first, break then. A VM that drops the fact breaks it, too */
CH_API CH_CHECKED enum ch_status ch_assumption_break(struct ch_assumption assumption,
						     size_t *invalidated);

/* --- invalidate --- */

/* ch_blocks_invalidate: nothing enters the blocks any more; a thread inside leaves at its next
 * branch or patch point.
 * in    blocks  any; those that are dead or NOTENTRANT already are passed over
 * out   count   blocks that became NOTENTRANT, may be NULL
 * ret   CH_OK | CH_E_ARG of two heaps, CH_E_STATE one is OPEN: nothing was changed
 * lock  heap
 * safe  any thread, also one that runs inside a block
 * cost  some 30 ns a block and an incoming branch; needs no memory; no system call */
CH_API CH_CHECKED enum ch_status ch_blocks_invalidate(const struct ch_block *blocks, size_t n,
						      size_t *count);

/* --- collect --- */

/* ch_heap_collect: one full cycle and its sweep (built-in: here; Boehm: by its collector).
 * ret   CH_OK | CH_E_BUSY nothing was freed: a thread did not stop, or is on no attached stack |
 *       CH_E_STATE a HOST heap | CH_E_MEMORY | CH_E_THREAD Boehm: the collector does not know it
 * lock  registry, heap; delivers block_freed
 * safe  an attached thread that holds no lock; or a foreign one
 * cost  O(blocks and owners of the heap, and words of the stacks) */
CH_API CH_CHECKED enum ch_status ch_heap_collect(struct ch_heap *heap);

/* --- look --- */

struct ch_spot {
	size_t size; /* in: sizeof(struct ch_spot) */
	struct ch_block block;
	struct ch_owner owner; /* none without one */
	void *user;            /* ch_open.user */
	const uint8_t *exec;   /* of the part, hot or cold (stubs included), that pc is in */
	uint32_t offset;       /* of pc, from there */
	bool is_cold;
	/* A return address: behind a call that is a branch, else at a patch point; its user. */
	bool has_site;
	enum ch_block_state state; /* LIVE or NOTENTRANT */
	void *site_user;
};

/* ch_code_at: the code, or data, that an address lies in, and the VM's own words there: what stack
 * maps, exception tables, deoptimization and line tables begin with.
 * in    heap       NULL = whichever has the address: O(heaps), and a word that all threads write
 *       is_return  pc is a return address: the call before it is meant
 * out   spot       as it was at one moment; spot->size is set by the caller; else 0 when false
 * ret   true when it lies in a LIVE or NOTENTRANT block; false also for a size out of range
 * safe  any thread, signal handlers, callbacks, while others allocate, free and collect
 * cost  some 10 ns; is_return: O(what is attached to the block) */
CH_API bool ch_code_at(const struct ch_heap *heap, const void *pc, bool is_return,
		       struct ch_spot *spot);

/* ch_block_each: visit every block that is not free, or those of a name: from a name to its code.
 * in    name   NULL = all; a block's own, or its owner's where it has none
 *       visit  returns false to end
 * ret   CH_OK
 * lock  heap
 * safe  any thread
 * cost  O(blocks) */
CH_API CH_CHECKED enum ch_status ch_block_each(struct ch_heap *heap, const char *name,
					       bool (*visit)(void *arg, const struct ch_info *info),
					       void *arg);

/* ch_trap_describe: say what a fatal signal in code of the heap means: "block `NAME` (#INDEX.GEN,
 * owner `NAME`), freed in collection N because ..., invalidated by ...; executed at +0x40 (...)".
 * in    siginfo   siginfo_t of the signal
 *       ucontext  its ucontext_t
 *       bytes     room at text; 600 are enough but for long paths
 * out   text      one line, 0-terminated unless bytes is 0; cut at a character
 * ret   the length without the 0; >= bytes when it was cut; 0 = neither the pc nor the address
 *       that faulted is in the heap's pages, or somebody sent the signal: chain to the next handler
 * safe  signal handlers, in any thread, while others allocate and free
 * cost  O(freed blocks that are remembered)
 * note  what it names is among the ch_config.remembered_dead; names are cut to 63 bytes */
CH_API size_t ch_trap_describe(const struct ch_heap *heap, const void *siginfo,
			       const void *ucontext, char *text, size_t bytes);

/* ch_trap_install: a handler for SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE and SIGABRT. It writes
 * the line of ch_trap_describe to stderr, shows all live code to debuggers when CH_SINK_GDB is on,
 * so that a core names it, and goes on to the action that was there before: the default one ends
 * the process with the registers of the signal in its core.
 * in    heap  whose code it knows; several may ask
 * ret   CH_OK also when it was there | CH_E_OS errno kept; try again for what is missing
 * lock  none; the handler tries those of sinks, for a tenth of a second
 * safe  any thread. The handler needs 8 KiB of the thread's signal stack, if it has one
 * note  the process's, and stays when the heap goes. A VM that goes on after faults of its own
 *       installs its handler later, and calls the one that sigaction gave it for all others */
CH_API CH_CHECKED enum ch_status ch_trap_install(struct ch_heap *heap);

/* --- sinks --- */

/* ch_sink_set: choose the tables that are told; one that is switched on is told of all live code.
 * ret   CH_OK | CH_E_ARG | CH_E_BUSY a thread was held inside a call | CH_E_OS errno kept: a file
 *       could not be made, or the process has no libunwind; that sink is off
 * lock  heap, sinks
 * safe  any thread; the unwinder's off: while none unwinds through a block with OWN_FRAMES
 * cost  O(blocks of the heap) for each that is switched on */
CH_API CH_CHECKED enum ch_status ch_sink_set(struct ch_heap *heap, unsigned sinks);

/* ch_sink_flush: write what is buffered; show to GDB what there is, whether it listens or not.
 * ret   CH_OK | CH_E_OS a sink failed and is off
 * lock  sinks
 * safe  any thread
 * cost  O(what waits); with GDB O(blocks of the heap) */
CH_API CH_CHECKED enum ch_status ch_sink_flush(struct ch_heap *heap);

/* ch_sink_status: whether a sink is on, and what switched it off.
 * out   path    of its file, "" without one; may be NULL
 *       failed  errno that switched it off, else 0; may be NULL
 * ret   true while it is on; false for what is not one sink, failed is EINVAL then
 * lock  sinks
 * safe  any thread */
CH_API bool ch_sink_status(struct ch_heap *heap, enum ch_sink sink, const char **path, int *failed);

#ifdef __cplusplus
}
#endif
#endif
