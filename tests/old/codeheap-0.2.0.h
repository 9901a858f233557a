/* SPDX-License-Identifier: MIT
 * codeheap.h: the public interface of libcodeheap, one text to be read from top to bottom, and so
 * one file. Beside this header are codeheap.hpp, for C++; collector.h, for a collector of the VM's
 * own; codeheap_bdw.h, for Boehm's; look.h, for tools of the VM's own; profile.h, the profiler.
 *
 * libcodeheap is the code memory of a JIT. The library allocates machine code in pages that are
 * never writable and executable at once, tells unwinders and profilers about the code, invalidates
 * code while threads run it, and frees code: at once, or by a collection when no owner, block or
 * stack leads there. Freed code leaves every table, becomes traps, and serves again.
 *
 * Words
 *   heap          the pages of code and the records of the code in them
 *   code          machine code that is called by its address, until ch_code_free
 *   free          NOT_RUNNING: at once; COLLECT: by a collection, when no stack leads there
 *   pool          the reserved address range of a heap
 *   page          a power-of-two piece of a pool: a "code page", not a page of the system
 *   block         one unit of code, in one page or a run of pages: hot bytes, then cold bytes
 *   vm            one VM instance: callbacks and a set of owners; several share a heap
 *   owner         what the VM compiles (a method, a trace), and calls through its one entry cell
 *   entry cell    a word that always holds the owner's entry, or its fallback (an interpreter)
 *   branch        one patch site, one target, one stub
 *   stub          some cold bytes that have the VM compile the branch's target
 *   ref           a VM heap pointer embedded in code
 *   patch point   a place after a call; invalidation turns the place into a jump to an exit
 *   assumption    a fact that blocks were compiled to rely on; breaking it invalidates the blocks
 *   exec, write   the address where a byte runs, and where it is written while its block is open
 *   world         the attached threads; fiber: a stack that may be suspended
 *   cycle         one collection: marks what is reached; later the sweep frees the rest, in steps
 *   NOTENTRANT    invalidated: no thread enters; threads inside leave at a branch or patch point
 *
 * The calls to start with, from examples/smallest.c. Code of an owner begins with examples/min.c.
 *
 *     struct ch_heap *heap;
 *     int (*f)(void); // mov eax, 42; ret
 *     if (ch_heap_create(NULL, &heap) || ch_code_add(heap, "\xb8\x2a\0\0\0\xc3", 6, "f", &f))
 *     	return fprintf(stderr, "%s\n", ch_why()), 1;
 *     printf("%d\n", f());
 *     return ch_code_free(heap, (void *)(uintptr_t)f, CH_RELEASE_NOT_RUNNING);
 *
 * Every function says: in, out, ret, lock, safe, cost, note. "lock: heap" means that the function
 * takes the heap's lock; a function without a lock line takes none. A function without a cost line
 * is O(1), but for the number of heaps, a name's length, a list that doubles, and waits. No
 * callback runs under a lock, save `ref`, `roots` and `visit`, which no longjmp may leave. A handle
 * or pointer that a call gives is none or NULL when it fails; `bytes` or `max` behind an argument
 * is the room there. A handle that is stale or another heap's gives CH_E_STALE; a heap that is NULL
 * or destroyed, or a vm that is NULL, CH_E_ARG. No other argument is NULL unless the call says so.
 *
 * Signals. A signal handler may call a function whose contract says so. A handler may call every
 * function when the signal interrupted code of the heap, or code of the heap raised the signal
 * (ch_code_at of the saved pc): no lock, allocator or call of the library was interrupted then.
 *
 * Threads. The call that opens a block attaches its thread; the end of a thread detaches it. A
 * thread that is not attached gets CH_E_THREAD from a function for "an attached thread" or for "the
 * thread that opened" a block, and ends the process with a panic when it takes a stub. The thread
 * that opened a block may hand the OPEN block to another attached thread. Between ch_mark_begin and
 * ch_mark_end, and in `ref`, `roots` and `visit`, a function that may lock gives CH_E_STATE.
 *
 * Structures with a `size` grow at their end. The caller sets `size` to sizeof. A smaller size, of
 * an older header, is taken: missing fields are 0. Any other size is CH_E_ARG. Structures with
 * `spare` words grow there: a spare word that is not 0 (a newer header's field) is CH_E_ARG.
 *
 * Limits, and the status beyond. Of a heap: 16,777,214 blocks, owners, branches, assumptions and
 * names each (CH_E_MEMORY). Of a block: 512 branches, 524,272 cold bytes with stubs, with PATCH 16
 * fewer (aarch64, riscv64: 24; CH_E_ARG); 65,535 other attachments, of which a patch point is two
 * or three (CH_E_MEMORY). Names have any length. At the limit freed branch_rooms are not joined. */
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
	X(CH_E_FULL, "no room: in the pool until code is collected, or in a full table")         \
	X(CH_E_STATE, "not legal in the object's state")                                         \
	X(CH_E_SITE, "a patch site's bytes, alignment or neighbours break the rules")           \
	X(CH_E_REACH, "the target is too far for the instruction")                               \
	X(CH_E_MEMORY, "no memory for the heap's own records")                                   \
	X(CH_E_OS, "the operating system refused; errno says why")                               \
	X(CH_E_BUSY, "a thread did not stop or is on no attached stack, or the heap is used")   \
	X(CH_E_THREAD, "the calling thread is not attached, attached already, or cannot be")     \
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

/* ch_why: why the last call failed: the status, and the argument with its value and range; or each
 * backend and the call that the system refused; or the thread that did not stop.
 * ret   at most 239 bytes, the thread's own, which a later call may change or leave; at first ""
 * safe  any thread; signal handlers: an interrupted call may have written half of the sentence, and
 *       a call that fails in the handler changes it
 * note  CODEHEAP_DEBUG=1 writes each sentence to stderr, too */
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
	/* In: the fallback of the owner whose code has the branch. Out: where the thread goes on
	 * when no block is returned, or when no returned block is LIVE any more. */
	uint64_t pc;
	uint64_t sp; /* at the site; x86-64's CH_CALL has pushed its return address; read only */
	/* x86-64: vector state, as xsave or fxsave leave it. aarch64: q0..q31, fpsr, fpcr; riscv64:
	 * f0..f31, fcsr; wider registers (SVE, SME, V) hold nothing at a site, as at a call. */
	void *extended;
};

/* The only moves:
 *   OPEN -> LIVE                ch_block_commit, by the thread that opened it
 *   OPEN -> FREE                ch_block_abort; a commit that gives CH_E_STALE; in a child of fork
 *   LIVE -> NOTENTRANT          ch_blocks_invalidate, ch_assumption_break, ch_vm_discard, _detach
 *   LIVE | NOTENTRANT -> DEAD   the sweep, of blocks that a cycle did not reach; NOT_RUNNING, by
 *                               ch_owner_release or ch_code_free; in a child of fork without code
 *   DEAD -> FREE                the sweep: names withdrawn, traps written, cores synchronized */
enum ch_block_state {
	CH_BLOCK_FREE,
	CH_BLOCK_OPEN,
	CH_BLOCK_LIVE,
	CH_BLOCK_NOTENTRANT,
	CH_BLOCK_DEAD
};

/* How other code may enter a block. NONE: by branches and the cell. PATCH: by an instruction that
 * becomes a jump. GUARD: the VM's code tests a data word. A CH_LEA needs PATCH or GUARD. */
enum ch_entry { CH_ENTRY_NONE, CH_ENTRY_PATCH, CH_ENTRY_GUARD };

/* Kinds of branch sites. x86-64: E9, 0F 8x, E8, lea reg,[rip+disp32]; the displacement lies in
 * one aligned 8 bytes. aarch64: B; B.cond, CBZ or TBZ over the next B; BL; LDR x, +8, then B +12
 * and the aligned 8 bytes to load. riscv64: jal x0; a branch over the next jal x0; jal ra; auipc
 * rd, 0, ld rd, 12(rd), jal x0, 12 and the literal to load, an aligned 8 bytes; all 4-aligned, none
 * compressed. Beyond the reach of B (128 MiB) or jal (1 MiB) the stub leads on, by x16 and x17, or
 * t1 and t3, as veneers and closed entries do: code keeps nothing there at sites and entries.
 * LITERAL: an aligned 8-byte word, the absolute address: code jumps, calls or loads through it. */
enum ch_branch_kind { CH_JMP, CH_JCC, CH_CALL, CH_LEA, CH_LITERAL };

/* Code is written by a second mapping (DUAL, MEMFD), or by a system call (PROCMEM: x86-64). */
enum ch_backend { CH_BACKEND_AUTO, CH_BACKEND_DUAL, CH_BACKEND_MEMFD, CH_BACKEND_PROCMEM };
enum ch_fork { CH_FORK_COPY, CH_FORK_NONE, CH_FORK_COW };
enum ch_driver { CH_DRIVER_BUILTIN, CH_DRIVER_HOST };
enum ch_release { CH_RELEASE_COLLECT, CH_RELEASE_NOT_RUNNING };

/* Kinds of blocks. RODATA and DATA never run; code reaches them by distance. All hot_bytes of data
 * are the VM's. From commit on DATA is writable at exec, RODATA is not. Invalidation passes data
 * over; no sink hears of data. Data may have edges; other attachments and entries: CH_E_STATE.
 *   small   hot_bytes + align + 8 are at most a fourth of a page: shares pages with data of its
 *           kind, and costs its bytes and 8. Small RODATA is written at write, apart from exec
 *   large   larger, or with CH_OPEN_IN_PLACE: has whole pages; write is exec, a multiple of 64
 *   chunks  of the pool (1 MiB; COW: 2 MiB) with data, or with code of OWN_FRAMES, have no other
 *           code: a pool of one chunk has code or data
 *   life    with ch_open.heap, KEPT, IMMORTAL: as such code. Else while an edge of a live block or
 *           a word on a stack leads there. Unused data dies in the third cycle; used data dies with
 *           its last user: in a cycle, or by NOT_RUNNING at once, even if a stack leads there */
enum ch_kind { CH_KIND_CODE, CH_KIND_RODATA, CH_KIND_DATA };

/* Sinks: tables of the outside world. CH_SINK_DEFAULT in a configuration: the unwinder's. */
enum ch_sink {
	CH_SINK_DEFAULT = 0,
	CH_SINK_UNWIND = 1,     /* libgcc's unwinder, and LLVM's where there is one */
	CH_SINK_PERF_MAP = 2,   /* /tmp/perf-PID.map */
	CH_SINK_JITDUMP = 4,    /* jit-PID.dump: right also where an address was reused */
	CH_SINK_GDB = 8,        /* GDB's JIT interface: made when a debugger listens */
	CH_SINK_LIBUNWIND = 16, /* nongnu libunwind 1.6 or later; ENOSYS without it */
	CH_SINK_STATS_FILE = 32, /* ch_sink_status only: of ch_config.stats_file */
	CH_SINK_NONE = 1 << 30 /* alone; beside others it says nothing */
};

/* Names of freed code in the perf map. REPLACED: a name leaves when the address is used again, when
 * such names are many, or at ch_sink_flush. KEPT: names stay while the sink is on, and addresses of
 * freed code are not used again, until an open finds no other room: then all such names leave. */
enum ch_dead_names { CH_DEAD_NAMES_REPLACED, CH_DEAD_NAMES_KEPT };

enum ch_open_flags {
	/* The open may collect, as a poll does (ch_code_free): the caller holds no lock that a
	 * callback takes or a thread awaits unparked. In a full pool each open collects, up to four
	 * times, while it helps. What comes free is kept for it, unless a vm has or had stop_world.
	 * CH_E_FULL: live code, new code and a page a thread fill the pool. HOST: no effect. */
	CH_OPEN_MAY_COLLECT = 1,
	CH_OPEN_IMMORTAL = 2, /* thunks: a root until the heap ends or NOT_RUNNING ends its owner */
	CH_OPEN_OWN_FRAMES = 4, /* unwinders know the block by ch_code.eh_frame only; frame is 0.
				 * Whole pages, in chunks as data (enum ch_kind) */
	/* write is exec, for emitters that know one address. Whole pages, exec a multiple of 64,
	 * cold_bytes, branch_room 0, no PATCH (CH_E_ARG); no refs, patch points (CH_E_STATE). */
	CH_OPEN_IN_PLACE = 8,
	/* With an owner: a root, also invalidated, until ch_code_free or the owner's end; after
	 * COLLECT, until no stack and no block holds it. A ref that marks the owner keeps both. */
	CH_OPEN_KEPT = 16,
};

/* --- callbacks of a VM --- */

/* Each callback may be NULL, but branch_hit where a branch without an exit of its own is attached.
 * A callback runs in the thread whose call or branch it comes from, attached or not, and may call
 * any function of this header, unless its field says otherwise. No longjmp and no exception leaves
 * a callback but branch_hit. A fiber may return from branch_hit, block_freed and space_free in
 * another thread: in one that is not attached ch_block_open gives CH_E_THREAD, a stub panics. */
struct ch_ops {
	size_t size; /* sizeof(struct ch_ops) */
	/* A thread took an unlinked branch. Returns the block to link the branch to and to go on
	 * in; or none: go on at regs->pc. May change regs, take the VM's locks, compile, collect,
	 * invalidate. May be left by longjmp, or, where the block's frame shape holds at the site,
	 * by an exception or a cancellation, but not out of OWN_FRAMES: no lock is held, and the
	 * branch stays as it was. Links after the return, over a ch_branch_link made meanwhile.
	 * When the block died or was invalidated meanwhile, comes again, 8 times in all: so set
	 * regs->pc beside a block, too, unless the fallback takes the registers of the site. */
	struct ch_block (*branch_hit)(void *vm_user, struct ch_branch branch, void *branch_user,
				      struct ch_regs *regs);
	/* A marked block's ref, in the stopped world: mark the object; return its (new) word. */
	uintptr_t (*ref)(void *vm_user, uintptr_t word);
	/* The stopped world: ch_mark_stack for VM stacks outside the C stacks; or ch_code_at. */
	void (*roots)(void *vm_user, struct ch_marker *marker);
	/* A block, data too, is gone from every table: once; in polls and calls that collect. */
	void (*block_freed)(void *vm_user, void *block_user);
	/* ch_vm_detach calls block_freed for each block that the vm has then, under no lock. */
	bool tells_detached;
	/* A collection pays. Comes in polls, and in calls that open, invalidate, collect or end
	 * code (not COLLECT). Sets a flag, calls nothing of the library. NULL: see ch_code_free. */
	void (*collect_wanted)(void *vm_user);
	/* Space came free after an open failed with CH_E_FULL or for want of records or maps: once
	 * for all that failed before; in polls and calls that collect, maybe before it returned. */
	void (*space_free)(void *vm_user);
	/* BUILTIN (HOST: CH_E_ARG): the VM's own way to stop its threads, before polls, parks and
	 * the signal are used. Comes in the collecting thread, attached or not. Each thread that
	 * the VM stops has parked, outside of the library. False: CH_E_BUSY. */
	bool (*stop_world)(void *vm_user);
	void (*resume_world)(void *vm_user); /* once for each stop_world that returned true */
};

/* --- configuration --- */

/* Zero is the default of every field. Fill it with ch_config_init. */
struct ch_config {
	size_t size;       /* sizeof(struct ch_config) */
	/* The most that the pool may grow to: a power of two, one page to 1 GiB. 0 = 256 MiB; 64
	 * MiB, which a BL reaches, on aarch64 and under a limit of address space. Halved, to 1 MiB
	 * at least, until the pool fits in the address space left; ch_stats has the size taken. */
	size_t pool_bytes;
	size_t page_bytes; /* power of two, 4096 to 65536; 0 = 16384; the system's if larger */
	const void *near_address; /* the pool lies in its reach, given room; NULL: the library's */
	/* BUILTIN: owners are roots until released; HOST: the VM's own collector marks them. */
	enum ch_driver driver;
	enum ch_backend backend; /* AUTO = first whose self-test passes; CODEHEAP_WX overrides */
	/* COPY: a child gets its own copy of the code. NONE, or no memory for the copy: the child
	 * has no code; blocks are stale, cells lead to fallbacks, opens fail: CH_E_OS (EACCES).
	 * COW, for servers that fork often: AUTO is PROCMEM, and parent and child share pages until
	 * either writes; x86-64 only; not with DUAL and MEMFD: CH_E_ARG. */
	enum ch_fork fork;
	/* HOST (else CH_E_ARG): ch_mark_begin stops the attached threads as a BUILTIN cycle does,
	 * and ch_mark_end lets them go on; false: the VM does both. */
	bool stops_world;
	/* BUILTIN, stops_world: stops running threads; not SIGSEGV and its like. Waits get EINTR */
	int stop_signal; /* 0 = none */
	unsigned stop_wait_ms; /* how long a cycle waits in all for threads and locks; 0 = 1000 */
	unsigned sinks;        /* set of enum ch_sink (off if it fails); CODEHEAP_SINKS overrides */
	enum ch_dead_names dead_names; /* CODEHEAP_DEAD_NAMES overrides: replaced, kept */
	/* Copied; NULL = environment's JITDUMPDIR, else /tmp. One file: the first heap's. */
	const char *jitdump_dir;
	/* Copied; NULL = none. For codeheap-top; %p is the process's number, the second heap adds
	 * ".2"; a child of fork has a file only with %p. CODEHEAP_STATS overrides, may fail.
	 * Needs libcodeheap-profile in the process (ch_stats_file_enable): else CH_E_OS, ENOSYS. */
	const char *stats_file;
	unsigned step_blocks;    /* freed by one step of the sweep at most; 0 = 64, at most 64 */
	/* Freed blocks that traps can name: a power of two, 64 to 1,048,576; 0 = 65,536. 32 bytes
	 * each, some 80 more with a name of its own, taken as blocks die: 2 to 7 MB for 65,536. */
	unsigned remembered_dead;
	/* Called on a broken invariant, before the reason and the last 64 events (cycles,
	 * invalidations, threads, forks) go to stderr, and abort(). The last one given is used. */
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
 * lock  of the set of heaps
 * safe  any thread; attach threads and vms afterwards
 * cost  25 to 60 system calls; memory is committed as it is used, 64 KiB first */
CH_API CH_CHECKED enum ch_status ch_heap_create(const struct ch_config *config,
						struct ch_heap **heap);

/* ch_heap_destroy: end a heap; all its code and side memory go at once.
 * in    heap  no vm, fiber or other thread is attached; no thread is in its code, or in a call
 * ret   CH_OK | CH_E_BUSY a vm, a fiber or another thread is attached, by a call or not
 * lock  registry, heap; then of the set of heaps
 * safe  any thread; every handle of the heap is stale afterwards, and its pointer leads to nothing
 * cost  O(memory of the heap, and samples of its profile); forks and creations wait meanwhile
 * note  sinks' files stay. Memory that a handler reads for over 1 s goes as a heap comes or goes */
CH_API CH_CHECKED enum ch_status ch_heap_destroy(struct ch_heap *heap);

/* Names in the plural count events, and only grow; names in _now and _peak are gauges.
 *   free_bytes_now       of no block; largest_free_bytes_now: the most in a row
 *   committed_bytes_now  memory taken from the system, with all that an OPEN block may write
 *   branches_now         all branch_room, with a branch or not; bytes_opened: the room asked for
 *   owners_now           an owner counts until the place of its last block is free
 *   cycles_abandoned     not cycles that got no lock or memory. code_bytes_peak: within 64 KiB */
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
	const char *version; /* of the loaded library; constant, as the next */
	const char *backend; /* "dual", "memfd", "procmem" */
	unsigned sinks_on;   /* set of enum ch_sink; a failure shows in ch_sink_status first */
#define X(name) uint64_t name;
	CH_STATS_LIST(X)
#undef X
};

/* ch_heap_stats: a snapshot of counters and gauges.
 * out   stats  stats->size is set by the caller
 * ret   CH_OK | CH_E_ARG size
 * lock  heap, shortly; free bytes are counted without it
 * safe  any thread
 * cost  O(pages of the pool, and threads, fibers and vms of the heap) */
CH_API CH_CHECKED enum ch_status ch_heap_stats(struct ch_heap *heap, struct ch_stats *stats);

/* ch_heap_check: walk every invariant; decode the bytes at every attached site.
 * out   report  what is broken, "" when nothing is; may be NULL with bytes 0
 * ret   CH_OK | CH_E_BROKEN | CH_E_BUSY a thread was held inside a call, by a debugger or scheduler
 * lock  registry, heap, pages; freezes: waits until no thread is inside a call
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

/* ch_vm_detach: remove a VM instance: release its owners, discard its blocks. No callback comes
 * afterwards, except a callback that another thread was about to make inside the library. With
 * `tells_detached` the call waits for commits, and makes block_freed for each block that is left.
 * in    vm  no thread runs code of the vm, or will
 * ret   CH_OK | CH_E_STATE detached before | CH_E_BUSY a thread is held in a commit: call again
 * lock  heap, until commits are through, for stop_wait_ms; none while block_freed runs
 * safe  any thread
 * cost  O(owners and blocks of the heap)
 * note  later cycles free the blocks; assumptions end by ch_assumption_break only, later too. Keep
 *       user valid until polls, collections and opens of other threads have returned */
CH_API CH_CHECKED enum ch_status ch_vm_detach(struct ch_vm *vm);

/* ch_vm_discard: invalidate all code of one vm, or of all; free at once the blocks that no stack
 * and no edge holds, and leave the rest to later cycles. CH_OPEN_KEPT: a block is invalidated, and
 * stays (enum ch_open_flags). Immortal blocks and OPEN blocks stay as they are.
 * in    vm     NULL = every vm of the heap; code without an owner belongs to no vm
 * out   freed  how many of the invalidated blocks, old ones included, were freed; may be NULL (host
 *              and Boehm driver: 0, the VM's next cycle frees them)
 *       kept   how many were not; may be NULL
 * ret   CH_OK | CH_E_ARG vm | CH_E_BUSY, CH_E_MEMORY no cycle ended: all is invalid, nothing freed
 * lock  registry, heap: waits for the heap's lock without a bound, invalidates, waits for threads
 *       for stop_wait_ms; the caller holds no lock that a thread could wait for without parking
 * safe  any thread, also while others run JIT code
 * cost  O(blocks) */
CH_API CH_CHECKED enum ch_status ch_vm_discard(struct ch_heap *heap, struct ch_vm *vm,
					       size_t *freed, size_t *kept);

/* --- thread --- */

/* ch_thread_attach: the calling thread may run and make code of the heap from here to its end. A
 * thread that only runs code calls this; a call that makes code attaches its thread.
 * in    low, high  bounds of the stack that the caller runs on; both NULL = ask the system
 * ret   CH_OK also where a call that makes code attached the thread | CH_E_THREAD called twice |
 *       CH_E_STATE parked | CH_E_ARG not around sp | CH_E_MEMORY | CH_E_OS no bounds or pthread key
 * lock  registry
 * safe  any thread, once for each heap
 * cost  O(threads of the heap); some system calls
 * note  the thread's end takes the locks of ch_thread_detach: do not join the thread in `ref`,
 *       `roots`, `visit` or before ch_mark_end. A thread of a bare clone() calls nothing here */
CH_API CH_CHECKED enum ch_status ch_thread_attach(struct ch_heap *heap, const void *low,
						  const void *high);

/* ch_thread_detach: the calling thread has left the heap's code for good, before its end.
 * ret   CH_OK | CH_E_THREAD not attached
 * lock  registry, heap
 * safe  an attached thread, parked or not, without a suspended fiber; its OPEN blocks stay OPEN */
CH_API CH_CHECKED enum ch_status ch_thread_detach(struct ch_heap *heap);

/* ch_thread_park: up to ch_thread_unpark the caller runs no code of a heap, and counts as stopped.
 * safe  any thread (without effect in a thread that is not attached); nests
 * note  park around each blocking lock, wait and system call: a thread that blocks unparked stalls
 *       every cycle. Threads may stay parked if they run code only under one lock of the VM and the
 *       caller of each cycle holds that lock: then `roots` reports their stacks */
CH_API void ch_thread_park(void);

/* ch_thread_unpark: undo one ch_thread_park; waits while the world is stopped.
 * safe  the thread that parked
 * note  no other thread may wait unparked for a lock that the caller holds here: both may hang */
CH_API void ch_thread_unpark(void);

/* ch_thread_poll: a safepoint: stop for a cycle, sweep a step, make callbacks, write perf's map.
 * lock  heap and the perf map's, shortly, when there is work; may collect: see ch_code_free
 * safe  an attached thread that holds no lock; callbacks run here; no effect in another thread
 * cost  a load and a branch for each heap of the thread when there is nothing to do */
CH_API void ch_thread_poll(void);

/* ch_thread_poll_word: the word for machine code to test: not 0 while ch_thread_poll has work.
 * ret   the heap's word, at one address for all threads while the heap lives | NULL no such heap
 * safe  any thread; code loads 4 bytes, in no order
 * note  polls of the heap's threads set the word back. The word stays set while a stop or a sweep
 *       lasts, an open waits for space, or names for perf's map. With two heaps test two words */
CH_API const volatile uint32_t *ch_thread_poll_word(struct ch_heap *heap);

/* --- fiber --- */

/* ch_fiber_attach: a stack that threads of the heap switch to; a suspended stack holds code.
 * in    low, high  bounds of the stack
 * out   fiber      not suspended yet
 * ret   CH_OK | CH_E_ARG low >= high | CH_E_MEMORY
 * lock  registry
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_fiber_attach(struct ch_heap *heap, const void *low,
						 const void *high, struct ch_fiber **fiber);

/* ch_fiber_suspend: the caller is about to leave the stack of the fiber; before the switch.
 * in    fiber      the caller runs on its stack; a thread's own stack is attached as a fiber, too
 *       lowest_sp  below every frame that is kept; scanned from 256 bytes below on. Outside of the
 *                  stack: the whole stack is scanned
 * safe  the thread that runs on it
 * note  the stack left and the stack entered are scanned up to ch_fiber_resume. Detached: ch_why */
CH_API void ch_fiber_suspend(struct ch_fiber *fiber, const void *lowest_sp);

/* ch_fiber_resume: the caller runs on the fiber's stack again; after the switch.
 * safe  any attached thread: a fiber may go on in another thread */
CH_API void ch_fiber_resume(struct ch_fiber *fiber);

/* ch_fiber_detach: the stack is gone; no frame on it will be returned to.
 * ret   CH_OK: the stack may be unmapped at once | CH_E_STATE not attached
 * lock  registry, heap
 * safe  any thread
 * cost  O(threads of the heap) */
CH_API CH_CHECKED enum ch_status ch_fiber_detach(struct ch_fiber *fiber);

/* --- owner --- */

/* ch_owner_create: something that the VM compiles. The cell holds the fallback: no entry yet.
 * in    vm        a vm of a BUILTIN or HOST heap (Boehm: ch_bdw_owner_create)
 *       name      copied; tables and traps say the name, before a block's own; NULL = none
 *       fallback  the VM's entry without code, same calling convention. NULL, where nobody calls
 *                 through the cell: a trap that says so
 * ret   CH_OK | CH_E_ARG | CH_E_MEMORY | CH_E_STATE the vm was detached
 * lock  heap
 * safe  any thread */
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
 * ret   NULL: the handle is none, or stale (released, and the last block is free): ch_why
 * safe  any thread
 * note  code that calls through another owner's cell attaches an edge to that owner */
CH_API const void *const *ch_owner_cell(struct ch_owner owner);

/* ch_owner_release: the VM has no more use for the owner.
 * in    how  COLLECT: by a cycle (see ch_code_free), when no stack and no block holds the code.
 *            NOT_RUNNING: at once, and the caller vouches that no thread is inside the code or
 *            will be; cycles free each block that another block attached an edge to
 * ret   CH_OK | CH_E_ARG how | CH_E_STALE (also when released already)
 * lock  COLLECT: none; NOT_RUNNING: heap
 * safe  any thread; COLLECT also from finalizers and collectors' callbacks, in no stopped world
 * cost  COLLECT: O(1); NOT_RUNNING: O(its blocks, and what is attached to or leads to them) */
CH_API CH_CHECKED enum ch_status ch_owner_release(struct ch_owner owner, enum ch_release how);

/* --- block --- */

/* A request to open. Leave unused fields 0. */
struct ch_open {
	size_t size;           /* sizeof(struct ch_open) */
	struct ch_heap *heap;  /* for code that lives until ch_code_free; or */
	struct ch_owner owner; /* for code that lives by an owner: set heap or owner, not both */
	uint32_t hot_bytes;    /* the most to be emitted; unused room goes back */
	uint32_t cold_bytes;   /* the same for side exits, without stubs, whose room stays */
	uint32_t branch_room;  /* branches, 8 cold bytes each; procmem 24, aarch64 28, riscv64 24 */
	enum ch_entry entry;     /* NONE without an owner */
	uint8_t frame;           /* enum ch_frame_shape, or ch_frame_register's */
	unsigned flags;          /* set of enum ch_open_flags */
	enum ch_kind kind;       /* data: entry, frame, cold_bytes, branch_room 0, no OWN_FRAMES */
	const void *not_entrant; /* PATCH: where its shut entry leads; NULL = owner's fallback */
	const char *name;        /* copied; NULL = the owner's name only */
	void *user;              /* comes back in block_freed, ch_block_info and ch_code_at */
	size_t align; /* of exec: a power of two, at most 4096; 0 = 8, in whole pages of data 64 */
};

/* A block under construction: emit at write, relative to exec, and set each field marked "in". Read
 * and run nothing at exec before the commit. After commit or abort a store through a copy of write
 * is lost, or damages another block: ch_code_write. A struct ch_code on a stack, or a thread-local
 * one, holds its block by its addresses, as words on a stack do: clear it after the commit. */
struct ch_code {
	struct ch_block block;
	uint8_t *write, *exec;           /* hot bytes */
	uint8_t *cold_write, *cold_exec; /* cold bytes; the stubs lie before */
	uint32_t hot_bytes, cold_bytes;  /* room */
	uint32_t entry_bytes;            /* PATCH: the library's bytes at exec, before the VM's */
	uint32_t used_from, used_to; /* in: hot bytes in use; from: a multiple of 8; PATCH: 0 */
	uint32_t cold_used;    /* in; of data used_from, used_to and cold_used are not read */
	uint32_t entry_offset; /* in: from exec; PATCH: 0 */
	const uint32_t *guard; /* GUARD: 0 while entrant, else the VM's entry jumps to a fallback */
	/* in: OWN_FRAMES: an .eh_frame section of at most 1 MiB, 4-aligned, ended by a length of 0:
	 * CIEs with CFA and personality, FDEs with final exec addresses (absolute or pc-relative,
	 * 2, 4 or 8 bytes) of used bytes, LSDAs. NULL: unwinding ends at the block. In RODATA that
	 * the block has an edge to, or kept until commit failed, block_freed came, commit and
	 * ch_vm_detach returned, or ch_code_free as NOT_RUNNING did (no edge to the block). */
	const void *eh_frame;
	const struct ch_frame *frame; /* in: CH_FRAME_STEPS */
	uint64_t spare[4];            /* ch_block_open sets them to 0 */
};

/* ch_block_open: make room for a block.
 * in    open  set heap or owner, not both; the owner is alive; hot_bytes > 0
 * out   code  all zero on failure
 * ret   CH_OK | CH_E_ARG also if larger than the pool | CH_E_STALE the owner is dead | CH_E_FULL |
 *       CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the thread is parked | CH_E_OS errno kept |
 *       CH_E_REACH PATCH, 1 MiB or more on riscv64, 128 MiB on aarch64
 * lock  none on the fast path without a name or entry; else pages, heap; see CH_OPEN_MAY_COLLECT
 * safe  an attached thread, or any on its own stack, which the call attaches (Boehm: if its
 *       collector knows the thread; else CH_E_THREAD). Any attached thread may go on with the block
 * cost  some 50 ns; a page now and then; large: system calls, on procmem O(bytes); full: O(pages)
 * note  with `heap` or MAY_COLLECT, may collect (ch_code_free); else: collect_wanted, space_free */
CH_API CH_CHECKED enum ch_status ch_block_open(const struct ch_open *open, struct ch_code *code);

/* ch_block_veneer: an address in the block's reach (riscv64: auipc's) that jumps to a far function.
 * in    target  e.g. a C function
 * out   at      exec address of the jump; immortal, shared by all callers of the target
 * ret   CH_OK | CH_E_STATE | CH_E_FULL for good | CH_E_REACH of BL: pools of over 64 MiB
 * lock  heap
 * safe  the thread that opened it
 * cost  O(veneers of the heap). All lie in one page, in 16 bytes each (aarch64, riscv64: 24) */
CH_API CH_CHECKED enum ch_status ch_block_veneer(const struct ch_code *code, const void *target,
						 const void **at);

/* ch_block_commit: publish OPEN blocks: from then on the blocks may run.
 * in    codes  "in" fields set; after CH_OK and CH_E_STALE write and cold_write of each are NULL
 *       count  how many blocks: all become LIVE, one by one with no cycle in between, or none
 * ret   CH_OK | CH_E_STATE a block is not open, or of another heap, or an edge names an OPEN block
 *       that is not among codes: nothing was done | CH_E_ARG a block comes twice; a field is out of
 *       range (of data, all room is used); an eh_frame is malformed, covers other code, or was not
 *       announced at open | CH_E_SITE a site lies outside of the used bytes, was written over, or
 *       has the entry inside; an exit of the block leads to unused bytes | CH_E_MEMORY | CH_E_STALE
 *       the owner is dead, an assumption broke, or a block that an edge names was aborted: all the
 *       blocks were aborted | CH_E_OS errno kept: large code does not get its memory, or code in
 *       place its access; all are OPEN, in place not to be written: commit again, or abort |
 *       CH_E_BROKEN the emitter of a block, or of the block before, damaged bytes beyond its room
 * lock  heap with assumptions, entry_offset, HOST refs, sinks beyond the unwinder; eh_frame: sinks
 * safe  the thread that opened the blocks
 * cost  some 30 ns a block, O(attachments); large (2 MiB on): a copy of the used bytes, 1 to 2 ms
 *       a MiB; system calls: sinks, in place, large, procmem, riscv64
 * note  an owner's block that no entry, branch or edge leads to dies in the third cycle: then its
 *       handle gets CH_E_STALE, and the VM compiles again */
CH_API CH_CHECKED enum ch_status ch_block_commit(struct ch_code *codes, size_t count);

/* ch_block_abort: forget an open block. Its write addresses become NULL, unused room traps again.
 * ret   CH_OK | CH_E_STATE not open
 * lock  heap
 * safe  the thread that opened it
 * cost  O(attachments of the block) */
CH_API CH_CHECKED enum ch_status ch_block_abort(struct ch_code *code);

/* ch_code_add: make code of bytes that are ready and do not depend on where they lie.
 * in    bytes, n  the code. Code that an exception passes keeps the frame pointer (else unwinders
 *                 crash) and changes no other register that a callee keeps (x86-64: rbx, r12 to
 *                 r15; else the catcher finds wrong values). Other code: ch_open.frame
 *       name      copied; perf, gdb and traps say it
 * out   to        the address of a pointer to a function of any type: the code's; NULL on failure
 * ret   CH_OK | CH_E_ARG | CH_E_FULL | CH_E_MEMORY | CH_E_OS errno kept | CH_E_THREAD and
 *       CH_E_STATE as ch_block_open | CH_E_BROKEN as ch_block_commit
 * lock  heap; the caller holds none of its own where ch_code_free says that it may collect
 * safe  any thread, as ch_block_open
 * cost  some 100 ns, and a copy of the bytes */
CH_API CH_CHECKED enum ch_status ch_code_add(struct ch_heap *heap, const void *bytes, size_t n,
					     const char *name, void *to);

/* ch_code_free: the end of code without an owner, or of CH_OPEN_KEPT, by its address.
 * in    heap  NULL = whichever has the address: O(heaps)
 *       at    what ch_code_add gave; ch_info.exec (ch_code.exec if used_from is 0), or the entry
 *       how   COLLECT: by a cycle, when no word on a stack, not even a stale pointer, and no edge
 *             or branch leads to it. NOT_RUNNING: now; by a cycle, where a block has an edge to it
 * ret   CH_OK | CH_E_ARG how; in no pool, or inside code | CH_E_STATE an owner's, or immortal |
 *       CH_E_STALE nothing is there, or OPEN code. Other code made there since is freed instead
 * lock  COLLECT by an attached thread: none; else heap
 * safe  any thread; COLLECT also from finalizers, but from no other callback of a collector
 * cost  COLLECT: O(1); NOT_RUNNING: O(attachments of the code, and branches to the code)
 * note  BUILTIN, while no vm has collect_wanted or stop_world: polls, ch_code_add, ch_block_open
 *       with `heap` or MAY_COLLECT collect what this, ch_owner_release and invalidations leave to
 *       cycles. Each waits stop_wait_ms / 50 for threads; in vain, the next comes much later */
CH_API CH_CHECKED enum ch_status ch_code_free(struct ch_heap *heap, const void *at,
					      enum ch_release how);

/* NOT_RUNNING: any bytes; the caller vouches that no thread runs or loads the bytes meanwhile. WORD
 * and INSTRUCTION: other threads may, and each gets the old bytes or the new. WORD: 1, 2, 4 or 8
 * bytes that code loads, aligned to their number. INSTRUCTION: bytes of one instruction, within an
 * aligned 8, and its length stays; aarch64: all of a B, BL, NOP or BRK, to become another of these;
 * riscv64: all of an aligned instruction of 4 bytes. */
enum ch_write { CH_WRITE_NOT_RUNNING, CH_WRITE_WORD, CH_WRITE_INSTRUCTION };

/* ch_code_write: write into committed code, where a store at ch_code.write is lost.
 * in    heap   NULL = whichever has the address: O(heaps)
 *       at, n  exec address; the bytes lie in the hot bytes of one block, or in its cold bytes
 * ret   CH_OK a thread that comes to the bytes from here on runs the new bytes | CH_E_ARG the bytes
 *       lie elsewhere, or the block is OPEN | CH_E_STATE data, or a trampoline | CH_E_SITE a byte
 *       belongs to an attached site or ref, a stub, a patchable entry or a block's steps; or the
 *       bytes are no WORD or INSTRUCTION | CH_E_OS errno kept; nothing changed: aarch64 without
 *       membarrier's core synchronization; procmem, WORD or INSTRUCTION of more than one byte: each
 *       such page is a mapping, and the process can have no more
 * lock  heap
 * safe  any thread
 * cost  O(n + attachments), and a core synchronization, 1 us; procmem, 5 to 20 us */
CH_API CH_CHECKED enum ch_status ch_code_write(struct ch_heap *heap, const void *at,
					       const void *bytes, size_t n, enum ch_write how);

struct ch_info {
	size_t size; /* in: sizeof(struct ch_info) */
	struct ch_block block;
	struct ch_owner owner; /* none without one */
	struct ch_vm *vm;      /* NULL without an owner */
	void *user;
	const char *name; /* the block's, else the owner's, else ""; valid while the block lives */
	enum ch_block_state state;
	const uint8_t *exec;      /* hot bytes */
	const uint8_t *cold_exec; /* cold bytes, stubs included */
	const uint8_t *entry;     /* NULL unless LIVE */
	uint32_t hot_bytes, cold_bytes;
	uint32_t branches_now; /* attached */
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
	const void *exit; /* leads here while unlinked; the VM holds its block; NULL = a stub */
	uint64_t spare[2]; /* 0 */
};

/* ch_branch_attach: declare a patch site; the site's bytes are written to lead to the stub.
 * in    block   OPEN; or LIVE, when branch_room is left: the site must not be reachable yet
 *       site    the instruction's bytes are already there
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_FULL branch_room is used up | CH_E_SITE another
 *       instruction, or its displacement is not in one aligned 8; the site shares a byte with
 *       another site, a ref, a patchable entry or a stub; an exit of the block or an entry leads
 *       between its bytes; its exit leads into a site, to data, or before a block's first byte |
 *       CH_E_REACH its stub or exit is too far | CH_E_ARG outside the block; no exit, no branch_hit
 * lock  OPEN: none, or heap where the exit is another block's; LIVE: heap
 * safe  an attached thread
 * cost  O(branches of the block); of a LIVE block, or of two blocks in turn: O(attachments) */
CH_API CH_CHECKED enum ch_status ch_branch_attach(struct ch_block block,
						  const struct ch_branch_site *site,
						  struct ch_branch *branch);

/* ch_branch_link: let the branch lead to a block.
 * in    target  LIVE, same heap; none = back to the stub
 * ret   CH_OK | CH_E_STALE either end is dead | CH_E_STATE either end is NOTENTRANT or OPEN, the
 *       target is data, or a CH_LEA to ENTRY_NONE
 * lock  heap
 * safe  any thread, while others run both
 * cost  one store into the code, on procmem into data */
CH_API CH_CHECKED enum ch_status ch_branch_link(struct ch_branch branch, struct ch_block target);

/* The calls from here to ch_block_lines want an OPEN block (CH_E_STATE). A call that makes the
 * block's list longer takes the heap's lock. Attaching to two blocks in turn: O(attachments). */

/* ch_edge_attach: the block needs another block (an address in a table, an exit in another block).
 * in    to  not dead; an OPEN one is committed before the block, or together with the block
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_MEMORY
 * safe  the thread that opened the block */
CH_API CH_CHECKED enum ch_status ch_edge_attach(struct ch_block block, struct ch_block to);

/* ch_edge_attach_owner: the block calls through the owner's cell.
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_MEMORY
 * safe  the thread that opened the block */
CH_API CH_CHECKED enum ch_status ch_edge_attach_owner(struct ch_block block, struct ch_owner to);

/* ch_ref_attach: eight bytes of the block are a pointer into the VM's heap.
 * in    at  exec address of the word; any alignment on x86-64 and aarch64
 * ret   CH_OK | CH_E_STALE | CH_E_STATE also: no owner, so no vm with a `ref` (but for Boehm) |
 *       CH_E_ARG outside the block | CH_E_MEMORY | CH_E_SITE a byte of a site, stub or entry
 * safe  the thread that opened the block
 * note  store the word and attach the ref with no cycle in between, which would miss the object. If
 *       other threads may collect, attach first, with a word of 0 */
CH_API CH_CHECKED enum ch_status ch_ref_attach(struct ch_block block, const void *at);

/* ch_patch_point_attach: a place that invalidation diverts to an exit.
 * in    at    exec address of `test eax, imm32`: an A9, then four bytes that the library writes;
 *             aarch64: of a NOP; riscv64: of an aligned `lui x0, 0`, whose immediate it writes
 *       exit  exec address in the block, or in a committed block, which is held then; at the exit
 *             everything but the flags is as at the point
 *       user  any word, for ch_block_sites and ch_code_at
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_ARG | CH_E_SITE | CH_E_REACH | CH_E_MEMORY
 * lock  heap, when the exit is another block's, too
 * safe  the thread that opened the block
 * cost  O(1); O(attachments of the other block) when the exit lies there
 * note  needed behind each call that may invalidate, and on each back edge inside a block */
CH_API CH_CHECKED enum ch_status ch_patch_point_attach(struct ch_block block, const void *at,
						       const void *exit, void *user);

/* Code from `at` to the next `at`, or the end of its hot or cold part, has the line; 0 = none. */
struct ch_line {
	const void *at; /* exec address */
	uint32_t line;
};

/* ch_block_lines: where the block's code comes from, for debuggers and profilers.
 * in    file   copied; e.g. an absolute path of a source, or of a listing that the VM wrote
 *       lines  rising by address, in the block, at least one; copied
 * ret   CH_OK | CH_E_STALE | CH_E_STATE not OPEN, or has lines already | CH_E_ARG | CH_E_MEMORY
 * lock  heap
 * safe  the thread that opened the block
 * cost  8 bytes a line: a VM gives them when a sink that shows lines is on */
CH_API CH_CHECKED enum ch_status ch_block_lines(struct ch_block block, const char *file,
						const struct ch_line *lines, size_t n);

/* How unwinders, exceptions and samplers pass code, from its prologue's end to its epilogue.
 * POINTER: the code begins with push rbp; mov rbp, rsp (aarch64: stp x29, x30, [sp, #-16]!; mov
 * x29, sp; riscv64: ra and s0 stored below the sp of the call; s0 is that sp). Only pc, sp and rbp
 * (x29, s0) come back: where code saves and changes another register that a callee keeps, and an
 * exception passes, the catcher finds a wrong value. KEEPS_ALL: below rbp and the return address
 * the code stores all callees' registers, downwards: rbx, r12 to r15 by push; aarch64: x19 to x28,
 * then d8 to d15, by stp of two, [sp, #-16]!; riscv64: s1 to s11, fs0 to fs11. LEAF: no frame, sp
 * as at the call (aarch64, riscv64: so x30, ra), callees' registers kept, calls nothing. */
enum ch_frame_shape { CH_FRAME_POINTER, CH_FRAME_KEEPS_ALL, CH_FRAME_LEAF, CH_FRAME_STEPS };

/* STEPS (x86-64): ch_code.frame says where the caller's frame is at each instruction, for calls and
 * signals; the commit copies it behind the code. Code of at most 65,000 bytes, ENTRY_NONE or GUARD,
 * no cold_bytes, branch_room or IN_PLACE (else CH_E_ARG). Before the first step the frame is as at
 * the call: cfa 8. No step lies where a call returns to. A child of fork without copy sees LEAF. */
struct ch_frame_step {
	uint16_t at;  /* exec offset; rising */
	uint16_t cfa; /* from `at` on, bytes from sp up to the caller's sp: a multiple of 8 */
};
struct ch_frame_save {
	uint8_t reg;   /* DWARF's number: 3 (rbx), 6 (rbp), 12 to 15; once */
	uint8_t below; /* from `at` on saved so many words under the caller's sp: 2 or more */
	uint16_t at;
};
struct ch_frame {
	const struct ch_frame_step *steps;
	const struct ch_frame_save *saves;
	uint8_t steps_n, saves_n; /* at most 12 each */
};

/* ch_frame_register: a frame shape of the VM's own; examples/frames.c has one.
 * in    cfi, bytes  1 to 64 bytes of DWARF call-frame instructions that hold at each instruction of
 *                   every block of the shape: the whole rule, from the CFA on; not checked
 * out   frame   for ch_open.frame
 * ret   CH_OK | CH_E_ARG | CH_E_FULL 12 shapes are registered
 * lock  sinks
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_frame_register(struct ch_heap *heap, const void *cfi,
						   size_t bytes, uint8_t *frame);

/* --- trampoline --- */

/* Both kinds pass on all argument registers and the return value, and the payload in a register of
 * no argument (x86-64: r10; aarch64: x15, x16 is lost; riscv64: t2, t1 is lost). FRAMED: calls the
 * target from a frame of its own, and unwinders and samplers see the block's name; arguments on the
 * stack do not pass. TAIL: jumps to the target. */
enum ch_trampoline { CH_TRAMPOLINE_FRAMED, CH_TRAMPOLINE_TAIL };

/* ch_trampoline_make: a block stamped from a template, entered like any other, and collected.
 * in    owner    the block lives by this owner; alive
 *       target   at any distance; code of the heap only if something else holds the code
 *       payload  not traced
 *       name, user  as in ch_open
 * out   block    LIVE, its code at ch_info.entry
 * ret   CH_OK | CH_E_ARG | CH_E_STALE the owner is dead | CH_E_FULL also where other code, or a
 *       thread that opened code, has a page in every chunk of the pool: trampolines lie apart |
 *       CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the thread is parked | CH_E_BROKEN as a commit |
 *       CH_E_OS also no unwind table for the template (errno: linked without, or unknown form)
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

/* ch_block_assume: the block relies on the assumption.
 * ret   CH_OK | CH_E_STALE the assumption broke already | CH_E_STATE not OPEN | CH_E_MEMORY
 * lock  heap
 * safe  the thread that opened the block
 * note  assume first, read the fact then: a break between the two is seen at commit */
CH_API CH_CHECKED enum ch_status ch_block_assume(struct ch_block block,
						 struct ch_assumption assumption);

/* ch_assumption_break: the fact is no more: invalidate its blocks in one batch, end the assumption.
 * in    invalidated  number of blocks, may be NULL
 * ret   CH_OK | CH_E_STALE the assumption broke already
 * lock  heap
 * safe  any thread
 * cost  O(its blocks, their attachments, and branches to these blocks)
 * note  change the fact first, break then. A VM that drops the fact breaks the assumption, too */
CH_API CH_CHECKED enum ch_status ch_assumption_break(struct ch_assumption assumption,
						     size_t *invalidated);

/* --- invalidate --- */

/* ch_blocks_invalidate: nothing enters the blocks any more, but by an address that the VM keeps
 * (code without an owner); a thread inside leaves at its next branch or patch point.
 * in    blocks  any; dead and NOTENTRANT blocks, and data, are passed over
 * out   count   blocks that became NOTENTRANT, may be NULL
 * ret   CH_OK | CH_E_ARG of two heaps, CH_E_STATE a block is OPEN: nothing was changed
 * lock  heap
 * safe  any thread, also one that runs inside a block
 * cost  some 30 ns a block, branch in or out, point; no memory; system calls on procmem, riscv64 */
CH_API CH_CHECKED enum ch_status ch_blocks_invalidate(const struct ch_block *blocks, size_t n,
						      size_t *count);

/* --- collect --- */

/* ch_heap_collect: one full cycle and its sweep (built-in: here; Boehm: by its collector).
 * ret   CH_OK | CH_E_BUSY nothing was freed: a thread did not stop, or is on no attached stack |
 *       CH_E_STATE a HOST heap | CH_E_MEMORY | CH_E_THREAD Boehm: a thread not registered there
 * lock  registry, heap; delivers block_freed
 * safe  an attached thread that holds no lock; or a foreign one
 * cost  O(blocks and owners of the heap, and words of the stacks) */
CH_API CH_CHECKED enum ch_status ch_heap_collect(struct ch_heap *heap);

/* --- look --- */

struct ch_spot {
	size_t size; /* in: sizeof(struct ch_spot); offsetof(struct ch_spot, owner): block alone */
	struct ch_block block;
	struct ch_owner owner; /* none without one */
	void *user;            /* ch_open.user */
	const uint8_t *exec;   /* ch_info.exec, or ch_info.cold_exec (not ch_code's) */
	uint32_t offset;       /* of pc, from exec */
	bool is_cold;
	/* A return address: behind a call that is a branch, else at a patch point; its user. */
	bool has_site;
	enum ch_block_state state; /* LIVE or NOTENTRANT */
	void *site_user;
};

/* ch_code_at: the code or data at an address, and the VM's own words there: the start for stack
 * maps, exception tables, deoptimization and line tables.
 * in    heap       in use; NULL = whichever has the address: O(heaps), and a store to a shared word
 *       is_return  pc is a return address: look at the call before pc
 * out   spot       as at one moment; the caller sets spot->size; the rest is 0 when false
 * ret   true when pc lies in a LIVE or NOTENTRANT block; false, and spot unchanged: a wrong size
 * safe  any thread, signal handlers, callbacks, while others allocate, free and collect
 * cost  some 17 ns, block alone some 13; is_return: O(what is attached to the block) */
CH_API bool ch_code_at(const struct ch_heap *heap, const void *pc, bool is_return,
		       struct ch_spot *spot);

/* ch_block_each: visit every OPEN, LIVE or NOTENTRANT block, or each of a name.
 * in    name   NULL = all; a block's own, or its owner's where it has none
 *       visit  returns false to end
 * ret   CH_OK
 * lock  heap
 * safe  any thread
 * cost  O(blocks) */
CH_API CH_CHECKED enum ch_status ch_block_each(struct ch_heap *heap, const char *name,
					       bool (*visit)(void *arg, const struct ch_info *info),
					       void *arg);

/* ch_trap_describe: explain a fatal signal in code of the heap: "block `NAME` (#INDEX.GEN, owner
 * `NAME`), freed in collection N because ..., invalidated by ...; executed at +0x40 (...)".
 * in    siginfo, ucontext  the signal's siginfo_t and ucontext_t
 *       bytes  room at text; 1,024 are enough but for long paths
 * out   text      one line, 0-terminated unless bytes is 0; cut at a character
 * ret   the length without the 0; >= bytes when the text was cut; 0 = pass the signal on: it is not
 *       of the heap's code or data, nor of its code's call of NULL; or was sent; or a tool's trap
 * safe  signal handlers, in any thread, while others allocate and free
 * cost  O(blocks of the heap, and freed blocks that are remembered)
 * note  knows the last ch_config.remembered_dead freed blocks; names are cut to 63 bytes */
CH_API size_t ch_trap_describe(const struct ch_heap *heap, const void *siginfo,
			       const void *ucontext, char *text, size_t bytes);

/* ch_trap_install: a handler for SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE and SIGABRT. The handler
 * writes the line of ch_trap_describe to stderr, shows all live code to debuggers when CH_SINK_GDB
 * is on, so that a core names the code, and goes on to the action that was there before: the
 * default action ends the process with the registers of the signal in its core.
 * in    heap  the handler knows the code of this heap, too
 * ret   CH_OK also when installed before | CH_E_OS errno kept; try again for the missing signals
 * lock  of the set of heaps; the handler tries the locks of sinks, for a tenth of a second
 * safe  any thread. The handler needs 8 KiB of the thread's signal stack, if any; in the archive 12
 * note  the process has one handler, also when the heap is gone. A VM that goes on after faults of
 *       its own installs its handler later, and chains every other fault to the action before */
CH_API CH_CHECKED enum ch_status ch_trap_install(struct ch_heap *heap);

/* --- sinks --- */

/* ch_sink_set: choose the sinks that are on. A sink that comes on is told of all live code.
 * ret   CH_OK | CH_E_ARG | CH_E_BUSY a thread was held inside a call | CH_E_OS errno kept: a file
 *       could not be made, or the process has no libunwind; the sink is off
 * lock  heap, sinks
 * safe  any thread. While the unwinder's sink goes off no thread unwinds through OWN_FRAMES blocks
 * cost  O(blocks of the heap) for each sink that comes on */
CH_API CH_CHECKED enum ch_status ch_sink_set(struct ch_heap *heap, unsigned sinks);

/* ch_sink_flush: write what is buffered; show all code to GDB, whether GDB listens or not.
 * ret   CH_OK | CH_E_OS a sink failed and is off
 * lock  heap, sinks
 * safe  any thread
 * cost  O(what waits); with GDB O(blocks of the heap) */
CH_API CH_CHECKED enum ch_status ch_sink_flush(struct ch_heap *heap);

/* ch_sink_status: whether a sink is on, and which error switched the sink off.
 * out   path    of the sink's file, while the sink is on; "" without a file; or NULL, as the next
 *       failed  errno that switched the sink off; EINVAL: no such heap, or not one sink; else 0
 * ret   true while the sink is on
 * lock  sinks
 * safe  any thread */
CH_API bool ch_sink_status(struct ch_heap *heap, enum ch_sink sink, const char **path, int *failed);

#ifdef __cplusplus
}
#endif
#endif
