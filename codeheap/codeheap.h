/* SPDX-License-Identifier: MIT
 * codeheap.h: the public interface of libcodeheap, one text to be read from top to bottom, and so
 * one file. Beside this header are codeheap.hpp, for C++; collector.h, for a collector of the VM's
 * own; codeheap_bdw.h, for Boehm's; look.h, for tools of the VM's own; profile.h, the profiler.
 *
 * libcodeheap is the code memory of a JIT. The library allocates machine code in pages that are
 * never writable and executable at once, tells unwinders and profilers about the code, invalidates
 * code while threads run it, and frees code: at once, or by a collection when no owner, block or
 * stack leads there. Freed code leaves every table; its bytes become traps, then serve again.
 *
 * Words
 *   heap          the pages of code and the records of the code in them
 *   code          machine code; without an owner, called by its address until ch_code_free
 *   free          end code. NOT_RUNNING: at once, the caller vouches that no thread is inside.
 *                 COLLECT: by a collection, when no stack and no other code leads there
 *   pool          the reserved address range of a heap; chunk: 1 MiB of it (COW: 2 MiB)
 *   page          a power-of-two piece of a pool: a "code page", not a page of the system
 *   block         one unit of code, in one page or a run of pages: hot bytes, then cold bytes
 *   vm            one VM instance: callbacks and a set of owners; several share a heap
 *   owner         what the VM compiles (a method, a trace), and calls through its one entry cell
 *   entry cell    a word that always holds the owner's entry, or its fallback (an interpreter)
 *   driver        decides which owners live: BUILTIN, HOST (collector.h), Boehm's collector
 *   branch        a site: an instruction, or a word with an address. Linked, the site leads to its
 *                 target, a block; unlinked, to its stub
 *   stub          cold bytes of a block that call branch_hit, for the VM to compile the target
 *   exit          code of the VM by which a thread leaves a block, for an interpreter, say
 *   edge          a record in a block that keeps another block, or an owner and its cell
 *   ref           a VM heap pointer embedded in code
 *   patch point   a place that invalidation turns into a jump to an exit
 *   assumption    a fact that blocks were compiled to rely on; breaking it invalidates the blocks
 *   attachments   a block's branches, edges, refs, patch points, assumptions and lines
 *   sink          a table of an unwinder, debugger or profiler that the library tells of code
 *   exec, write   the address where a byte runs, and where it is written while its block is open
 *   world         the attached threads; stopped: none runs code. fiber: a stack to switch to
 *   poll, park    a thread stops in a poll if a collection needs that; parked it counts as stopped
 *   cycle         one collection: marks what is reached; later the sweep frees the rest, in steps
 *   NOTENTRANT    invalidated: no thread enters; threads inside leave at a branch or patch point
 *
 * The calls to start with, from examples/smallest.c. Code of an owner begins with examples/min.c.
 *
 *     struct ch_heap *heap;
 *     int (*f)(void); // x86-64: mov eax, 42; ret
 *     if (ch_heap_create(NULL, &heap) || ch_code_add(heap, "\xb8\x2a\0\0\0\xc3", 6, "f", &f))
 *     	return fprintf(stderr, "%s\n", ch_why()), 1;
 *     printf("%d\n", f());
 *     return ch_code_free(heap, (void *)(uintptr_t)f, CH_RELEASE_NOT_RUNNING);
 *
 * Above each function stand lines in, out, ret, lock, safe, cost, note. "lock  heap": the function
 * takes the heap's lock, maybe under it pages and sinks, two other locks of a heap, as registry is.
 * A function without a lock line takes none. A function without a cost line is O(1); the number of
 * heaps, the length of a name, a list that doubles, and waits come on top. Callbacks run under no
 * lock, save `ref`, `roots`, `visit`, `panic`; all but branch_hit end by a return only. A call that
 * fails gives no handle, no pointer (NULL). `bytes` or `max` is the room at the argument before.
 * Unless a call says otherwise, a handle that is stale or another heap's gives CH_E_STALE; a heap
 * that is NULL or destroyed, or a vm that is NULL, gives CH_E_ARG; no other argument is NULL.
 *
 * Signals. A signal handler may call a function whose safe line says so. If the signal interrupted
 * code of the heap (ch_code_at of the saved pc tells), or is a fault of such code, or of a function
 * of the VM's own that holds no lock, a handler may call every function: no call was interrupted.
 *
 * Threads. The call that opens a block attaches its thread; the end of a thread detaches it. A
 * thread that is not attached gets CH_E_THREAD from a function for "an attached thread" or for "the
 * thread that opened" a block, and ends the process with a panic when it takes a stub. An attached
 * thread that was handed an OPEN block counts as the one that opened it. Between ch_mark_begin and
 * ch_mark_end, and in `ref`, `roots`, `visit`, all that may lock gives CH_E_STATE; a fork panics.
 *
 * Structures with a `size` get new fields at their end. The caller sets `size` to sizeof. With a
 * smaller size, as of an older header, the missing fields are 0. A larger size, one of less than a
 * few fields, or no multiple of 8 is CH_E_ARG; so is a `spare` word, for new fields, that is not 0.
 *
 * Limits. A heap has at most 16,777,214 blocks, owners, branches, assumptions and names each; more
 * are CH_E_MEMORY. A block has at most 512 branches, and 524,272 cold bytes with its stubs, with
 * PATCH 16 fewer (aarch64, riscv64: 24); more are CH_E_ARG. A block has at most 65,535 other
 * attachments, more are CH_E_MEMORY; a patch point counts as two, or three if its exit lies in
 * another block. Names have any length; one of more than 63 bytes counts as two. */
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
#define CH_VERSION_BINARY 1 /* of libcodeheap.so.1; a program needs the one it was linked with */

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
 * ret   the calling thread's sentence, of at most 239 bytes; "" at first. A call that succeeds may
 *       leave an older sentence there, or change it: so look at the status first
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
 * stub's. What branch_hit writes to sp, or to riscv64's gp and tp, is ignored. */
struct ch_regs {
	uint64_t gpr[32];
	/* When branch_hit comes: the fallback of the owner whose code has the branch. When it
	 * returns: where the thread goes on, if branch_hit gave no block that is still LIVE. */
	uint64_t pc;
	uint64_t sp; /* at the site; x86-64's CH_CALL has pushed its return address; read only */
	/* x86-64: vector state, as xsave or fxsave leave it. aarch64: q0..q31, fpsr, fpcr; riscv64:
	 * f0..f31, fcsr. Code keeps nothing in wider registers (SVE, SME, V) at a site. */
	void *extended;
};

/* The only moves:
 *   OPEN -> LIVE                ch_block_commit, by the thread that opened it
 *   OPEN -> DEAD                ch_block_abort; a commit that gives CH_E_STALE; in a child of fork,
 *                               if it has no code, or lost the thread that opened the block
 *   LIVE -> NOTENTRANT          ch_blocks_invalidate, ch_assumption_break, ch_vm_discard, _detach
 *   LIVE | NOTENTRANT -> DEAD   the sweep, of blocks that a cycle did not reach; NOT_RUNNING, by
 *                               ch_owner_release or ch_code_free; in a child of fork without code
 *   DEAD -> FREE                names withdrawn, traps written, cores synchronized if need be */
enum ch_block_state {
	CH_BLOCK_FREE,
	CH_BLOCK_OPEN,
	CH_BLOCK_LIVE,
	CH_BLOCK_NOTENTRANT,
	CH_BLOCK_DEAD
};

/* How invalidation shuts the entry of a block. NONE: it need not, since only the cell and branches
 * lead there. PATCH: the first instruction becomes a jump. GUARD: the VM's code tests a data word
 * first. A block whose address a CH_LEA takes has PATCH or GUARD. */
enum ch_entry { CH_ENTRY_NONE, CH_ENTRY_PATCH, CH_ENTRY_GUARD };

/* The sites of CH_JMP; CH_JCC; CH_CALL; CH_LEA:
 *   x86-64   E9; 0F 8x; E8; lea reg,[rip+disp32]. The displacement lies in one aligned 8 bytes
 *   aarch64  B; B.cond, CB(N)Z or TB(N)Z over a B; BL; LDR x, +8, B +12, the 8 bytes to load
 *   riscv64  jal x0; a branch over a jal x0; jal ra; auipc rd, 0, ld rd, 12(rd), jal x0, 12, the 8
 *            bytes to load. All are 4-aligned, and none is compressed
 * The 8 bytes to load are aligned. A CH_LITERAL is an aligned 8-byte word with the address of the
 * target: code jumps, calls or loads through it. Beyond the reach of B (128 MiB) or jal (1 MiB) the
 * stub jumps on, by x16 and x17, or t1 and t3. So do veneers (ch_block_veneer) and shut entries:
 * code keeps nothing in these registers at sites and entries. */
enum ch_branch_kind { CH_JMP, CH_JCC, CH_CALL, CH_LEA, CH_LITERAL };

/* Code is written by a second mapping (DUAL, MEMFD), or by a system call (PROCMEM: x86-64). */
enum ch_backend { CH_BACKEND_AUTO, CH_BACKEND_DUAL, CH_BACKEND_MEMFD, CH_BACKEND_PROCMEM };
enum ch_fork { CH_FORK_COPY, CH_FORK_NONE, CH_FORK_COW };
enum ch_driver { CH_DRIVER_BUILTIN, CH_DRIVER_HOST };
enum ch_release { CH_RELEASE_COLLECT, CH_RELEASE_NOT_RUNNING };

/* Kinds of blocks. RODATA and DATA never run; code reaches them by distance. From commit on DATA is
 * writable at exec, RODATA is not. Invalidation passes data over, and no sink hears of data. Data
 * may have edges. Any other attachment to data is CH_E_STATE, and so is data as an entry.
 *   small   hot_bytes + align + 8 are at most a fourth of a page. Small data shares pages with data
 *           of its kind, and costs 8 bytes besides its own. Small RODATA: write is not exec
 *   large   larger, or with CH_OPEN_IN_PLACE: has whole pages; write is exec, a multiple of 64
 *   chunks  data, and code of OWN_FRAMES, have chunks of their own: a pool of one has code or data
 *   life    KEPT, IMMORTAL or with ch_open.heap: as code opened so. Other data lives until the
 *           third cycle, and while an edge of a live block, or a word on a stack, leads there.
 *           With the last block that has an edge to it, data of any age dies: in the same cycle,
 *           unless a stack leads there; by NOT_RUNNING at once, whatever a stack has */
enum ch_kind { CH_KIND_CODE, CH_KIND_RODATA, CH_KIND_DATA };

/* Sinks. CH_SINK_DEFAULT is CH_SINK_UNWIND, in a configuration and in ch_sink_set. */
enum ch_sink {
	CH_SINK_DEFAULT = 0,
	CH_SINK_UNWIND = 1,     /* libgcc's unwinder, and LLVM's where there is one */
	CH_SINK_PERF_MAP = 2,   /* /tmp/perf-PID.map */
	CH_SINK_JITDUMP = 4,    /* jit-PID.dump: right also where an address was reused */
	CH_SINK_GDB = 8,        /* GDB's JIT interface: made when a debugger listens */
	CH_SINK_LIBUNWIND = 16, /* nongnu libunwind 1.6 or later; ENOSYS without it */
	CH_SINK_STATS_FILE = 32, /* for ch_sink_status only: the file of ch_config.stats_file */
	CH_SINK_NONE = 1 << 30 /* no sink; without effect beside others */
};

/* Names of freed code in the perf map. REPLACED: a name leaves when the address is used again, when
 * such names are many, or at ch_sink_flush. KEPT: names stay while the sink is on, and addresses of
 * freed code are not used again, until an open finds no other room: then all such names leave. */
enum ch_dead_names { CH_DEAD_NAMES_REPLACED, CH_DEAD_NAMES_KEPT };

enum ch_open_flags {
	/* In a full pool the open collects, up to 4 times while that helps (HOST: not). The
	 * caller holds no lock that a callback takes, or that a thread waits for unparked. While
	 * one open collects, others with this flag wait, and so take nothing that comes free; where
	 * a vm has or had stop_world, none waits. CH_E_FULL: live code, new code, and a page for
	 * each thread and frame shape fill the pool, or a collection failed (ch_why). */
	CH_OPEN_MAY_COLLECT = 1,
	CH_OPEN_IMMORTAL = 2, /* thunks: a root until the heap ends or NOT_RUNNING ends its owner */
	CH_OPEN_OWN_FRAMES = 4, /* unwinders know the block by ch_code.eh_frame only; frame is 0.
				 * Whole pages, in chunks as data (enum ch_kind) */
	/* write is exec, for emitters that know one address. Whole pages; exec is a multiple of 64.
	 * cold_bytes, branch_room and PATCH are CH_E_ARG; refs and patch points are CH_E_STATE. */
	CH_OPEN_IN_PLACE = 8,
	/* A block of an owner is a root, also when invalidated, until ch_code_free or the end of
	 * the owner. After either by COLLECT it stays while a stack, a block or the cell leads
	 * there. If a ref of it leads to an object that marks the owner, both keep each other. */
	CH_OPEN_KEPT = 16,
};

/* --- callbacks of a VM --- */
/* Each callback may be NULL; without branch_hit each branch needs an exit (ch_branch_site). A
 * callback runs in the thread whose call or branch it comes from, attached or not, and may call any
 * function of this header, unless its field says otherwise. A callback but branch_hit ends by a
 * return only. A fiber may switch threads in branch_hit, block_freed and space_free. If
 * the new thread is not attached, a ch_block_open on the fiber gives CH_E_THREAD, a stub panics. */
struct ch_ops {
	size_t size; /* sizeof(struct ch_ops) */
	/* A thread took an unlinked branch. The callback returns the block that the library links
	 * the branch to, and the thread goes on in; or none, and the thread goes on at regs->pc. It
	 * may change regs, take the VM's locks, compile, collect, invalidate. It may be left by
	 * longjmp; also by an exception or a cancellation, if the block's frame shape holds at the
	 * site (not out of OWN_FRAMES). No lock is held then, and the branch stays as it was. The
	 * library links after the return, in place of a ch_branch_link made meanwhile. If the block
	 * died or was invalidated meanwhile, the callback comes again, 8 times in all; then the
	 * thread goes on at regs->pc. So set regs->pc also when returning a block, unless the
	 * fallback may be entered with the registers of the site. */
	struct ch_block (*branch_hit)(void *vm_user, struct ch_branch branch, void *branch_user,
				      struct ch_regs *regs);
	/* In the stopped world, for each ref of a marked block: mark the object, and return its
	 * word; if the object moved, its new word. */
	uintptr_t (*ref)(void *vm_user, uintptr_t word);
	/* In the stopped world: give VM stacks outside of the C stacks to ch_mark_stack. Nothing
	 * else may be called but ch_code_at. */
	void (*roots)(void *vm_user, struct ch_marker *marker);
	/* A committed block of an owner, data too, left all tables. Once; in polls, collections. */
	void (*block_freed)(void *vm_user, void *block_user);
	/* ch_vm_detach calls block_freed for each block that the vm has then, under no lock. */
	bool tells_detached;
	/* A cycle is due: set a flag, call nothing, take no lock that is held over calls. In polls,
	 * opens, aborts, invalidations, cycles, frees by NOT_RUNNING. NULL: see ch_code_free. */
	void (*collect_wanted)(void *vm_user);
	/* Space came free after opens failed, with CH_E_FULL, or for want of mappings or a page:
	 * once for all of them, in polls and collections; maybe before the last open returned. */
	void (*space_free)(void *vm_user);
	/* In a BUILTIN heap (HOST: CH_E_ARG), the VM's own way to stop its threads. Comes in the
	 * collecting thread, attached or not, before the library itself stops threads. Each thread
	 * that the VM stops has parked, outside of the library. False: CH_E_BUSY. */
	bool (*stop_world)(void *vm_user);
	void (*resume_world)(void *vm_user); /* once for each stop_world that returned true */
};

/* --- configuration --- */
/* Zero is the default of every field. Fill it with ch_config_init. */
struct ch_config {
	size_t size;       /* sizeof(struct ch_config) */
	/* The most that the pool may grow to: a power of two, one page to 1 GiB. 0 = 256 MiB; but
	 * 64 MiB on aarch64, where a BL reaches all of it, and under a limit of address space. If
	 * the address space is short, half the pool, and so on to 1 MiB: ch_stats.pool_bytes. */
	size_t pool_bytes;
	size_t page_bytes; /* power of two, 4096 to 65536; 0 = 16384; the system's if larger */
	const void *near_address; /* code reaches it, if there is room; NULL = the library */
	/* BUILTIN: owners are roots until released; HOST: the VM's own collector marks them. */
	enum ch_driver driver;
	enum ch_backend backend; /* AUTO = first whose self-test passes; CODEHEAP_WX overrides */
	/* COPY: a child gets its own copy of the code. NONE, or no memory for the copy: the child
	 * has no code. Its blocks are stale, its cells lead to fallbacks, its opens are CH_E_OS
	 * (EACCES). COW, for servers that fork often, on x86-64: parent and child share pages until
	 * either writes. AUTO is PROCMEM then; DUAL and MEMFD are CH_E_ARG. Where CODEHEAP_WX asks
	 * for one of the two, COW is COPY. */
	enum ch_fork fork;
	/* HOST (else CH_E_ARG): ch_mark_begin stops the attached threads as a BUILTIN cycle does,
	 * and ch_mark_end lets them go on; false: the VM does both. */
	bool stops_world;
	/* A BUILTIN heap, or one with stops_world, stops running threads by it: 1 to 64, but not
	 * SIGSEGV and its like. Some waits of the program end with EINTR. 0 = none: threads poll */
	int stop_signal;
	unsigned stop_wait_ms; /* how long a cycle waits in all for threads and locks; 0 = 1000 */
	unsigned sinks; /* set; one that fails is off (UNWIND: no heap); CODEHEAP_SINKS overrides */
	enum ch_dead_names dead_names; /* CODEHEAP_DEAD_NAMES overrides: replaced, kept */
	/* Copied; NULL = environment's JITDUMPDIR, else /tmp. All heaps share the first one's. */
	const char *jitdump_dir;
	/* Copied; NULL = none. For codeheap-top; %p is the process's number, the second heap adds
	 * ".2"; a child of fork has a file only with %p. CH_E_OS, ENOSYS: the process has no
	 * libcodeheap-profile (ch_stats_file_enable). CODEHEAP_STATS overrides, without CH_E_OS. */
	const char *stats_file;
	unsigned step_blocks;    /* the most that a step of the sweep frees: 1 to 64; 0 = 64 */
	/* Freed blocks that traps can name: a power of two, 64 to 1,048,576; 0 = 65,536. 32 bytes
	 * each, some 70 more with a name of its own, taken as blocks die: 2 to 7 MB for 65,536. */
	unsigned remembered_dead;
	/* On a broken invariant, before the line on stderr and abort(). The last given counts. */
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
 * ret   CH_OK | CH_E_ARG a field, or a variable of the environment (told on stderr) | CH_E_MEMORY |
 *       CH_E_OS errno kept; EMFILE: the process has 255 heaps, and can have no more
 * lock  of the set of heaps
 * safe  any thread; attach threads and vms afterwards */
CH_API CH_CHECKED enum ch_status ch_heap_create(const struct ch_config *config,
						struct ch_heap **heap);

/* ch_heap_destroy: end a heap; all its code and side memory go at once. Files of sinks stay.
 * in    heap  no vm, fiber or other thread is attached; no thread is in its code, or in a call
 * ret   CH_OK | CH_E_BUSY a vm, a fiber or another thread is attached (maybe by a call: ch_why)
 * lock  registry, heap; then of the set of heaps
 * safe  any thread; afterwards its handles are stale; its pointer gives CH_E_ARG, not ch_code_at
 * cost  O(memory of the heap, and samples of its profile); forks and creations wait meanwhile */
CH_API CH_CHECKED enum ch_status ch_heap_destroy(struct ch_heap *heap);

/* Names in the plural count events, and only grow; names in _now and _peak are gauges.
 *   free_bytes_now       bytes of the pool that no block has; largest_free_bytes_now: in a row
 *   committed_bytes_now  memory taken from the system, with all that an OPEN block may write
 *   branches_now         all branch_room, with a branch or not; bytes_opened: the room asked for
 *   owners_now           with those whose last block's place does not serve again yet
 *   cycles_abandoned     not cycles that got no lock or memory. code_bytes_peak: within 16 KiB
 *   pause_ns, mark_ns    of a cycle, with the wait for the threads; of its marking without it */
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
 * ret   CH_OK | CH_E_ARG size
 * lock  heap, shortly; free bytes are counted without it
 * safe  any thread
 * cost  O(pages of the pool, and threads, fibers and vms of the heap) */
CH_API CH_CHECKED enum ch_status ch_heap_stats(struct ch_heap *heap, struct ch_stats *stats);

/* ch_heap_check: walk every invariant; decode the bytes at every attached site.
 * out   report  what is broken, "" when nothing is; may be NULL with bytes 0
 * ret   CH_OK | CH_E_BROKEN | CH_E_BUSY a thread was held in a call, or collected, for stop_wait_ms
 * lock  registry, heap, pages; freezes: waits until no thread is inside a call
 * safe  any thread, attached or not
 * cost  O(heap) */
CH_API CH_CHECKED enum ch_status ch_heap_check(struct ch_heap *heap, char *report, size_t bytes);

/* --- vm --- */
/* ch_vm_attach: add a VM instance to a heap.
 * in    ops, user  copied; user is the first argument of the callbacks
 * ret   CH_OK | CH_E_ARG | CH_E_MEMORY
 * lock  heap
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_vm_attach(struct ch_heap *heap, const struct ch_ops *ops,
					      void *user, struct ch_vm **vm);

/* ch_vm_detach: remove a VM instance: release its owners, discard its blocks. No callback comes
 * afterwards, except a callback that another thread was about to make inside the library. With
 * `tells_detached` the call waits for commits, and makes block_freed for each block that is left.
 * in    vm  no thread runs code of the vm, or will
 * ret   CH_OK | CH_E_STATE detached | CH_E_BUSY (tells_detached) a commit is held: call again
 * lock  heap, until commits are through, stop_wait_ms at most; none while block_freed runs
 * safe  any thread
 * cost  O(owners and blocks of the heap)
 * note  later cycles free the blocks. Assumptions stay; ch_assumption_break may come later. Keep
 *       user valid until polls, collections and opens of other threads have returned */
CH_API CH_CHECKED enum ch_status ch_vm_detach(struct ch_vm *vm);

/* ch_vm_discard: invalidate all code of one vm, or of all; free at once the blocks that no stack
 * and no edge holds, and leave the rest to later cycles. Blocks of CH_OPEN_KEPT are invalidated,
 * and stay. Immortal blocks and OPEN blocks stay as they are.
 * in    vm     NULL = every vm of the heap; code without an owner belongs to no vm
 * out   freed  how many invalidated blocks were freed, with those that were invalidated before; may
 *              be NULL. HOST and Boehm: 0, the VM's next cycle frees them
 *       kept   how many invalidated blocks are left; may be NULL
 * ret   CH_OK | CH_E_ARG vm | CH_E_BUSY, CH_E_MEMORY no cycle ended: all is invalid, nothing freed
 * lock  registry, heap: waits for the heap's lock without a bound, invalidates, waits for threads
 *       for stop_wait_ms, delivers block_freed; the caller holds no lock
 * safe  any thread, also while others run JIT code
 * cost  O(blocks) */
CH_API CH_CHECKED enum ch_status ch_vm_discard(struct ch_heap *heap, struct ch_vm *vm,
					       size_t *freed, size_t *kept);

/* --- thread --- */
/* ch_thread_attach: the calling thread may run and make code of the heap from here to its end. A
 * thread that only runs code calls this; a call that makes code attaches its thread.
 * in    low, high  bounds of the stack that the caller runs on; both NULL = ask the system
 * ret   CH_OK also if a call that makes code attached the thread | CH_E_THREAD called twice |
 *       CH_E_STATE parked | CH_E_ARG sp not in low, high | CH_E_MEMORY | CH_E_OS bounds, a key
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
 * safe  an attached thread, parked or not; OPEN blocks stay OPEN, suspended fibers hold code */
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
 * safe  any thread; code loads the 4 bytes without a memory order
 * note  polls of the heap's threads set it back. It stays set while a stop or a sweep lasts, while
 *       names wait for perf's map, and while a vm waits for space without a collection wanted */
CH_API const volatile uint32_t *ch_thread_poll_word(struct ch_heap *heap);

/* --- fiber --- */
/* ch_fiber_attach: name a stack that threads switch to; suspended, it keeps the code it returns to.
 * in    low, high  bounds of the stack; the fiber is not suspended yet
 * ret   CH_OK | CH_E_ARG low >= high | CH_E_MEMORY
 * lock  registry
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_fiber_attach(struct ch_heap *heap, const void *low,
						 const void *high, struct ch_fiber **fiber);

/* ch_fiber_suspend: the caller is about to leave the stack of the fiber; before the switch.
 * in    fiber      the caller runs on its stack; for a thread's own stack attach a fiber, too
 *       lowest_sp  an address below every frame that is kept. Cycles scan the stack from 256 bytes
 *                  below it on, or all of the stack if the address is not on the stack
 * safe  the thread that runs on it
 * note  from here to ch_fiber_resume cycles scan both the stack left and the stack entered. With a
 *       fiber that was detached both calls do nothing, and ch_why says so */
CH_API void ch_fiber_suspend(struct ch_fiber *fiber, const void *lowest_sp);

/* ch_fiber_resume: the caller runs on the fiber's stack, first or again; after each switch there.
 * safe  any attached thread: a fiber may go on in another thread */
CH_API void ch_fiber_resume(struct ch_fiber *fiber);

/* ch_fiber_detach: the stack is gone; no frame on it will be returned to.
 * ret   CH_OK: the stack may be unmapped at once | CH_E_STATE not attached
 * lock  registry, heap
 * safe  any thread
 * cost  O(threads of the heap) */
CH_API CH_CHECKED enum ch_status ch_fiber_detach(struct ch_fiber *fiber);

/* --- owner --- */
/* ch_owner_create: make an owner. Its cell holds the fallback until ch_owner_set_entry.
 * in    vm        a vm of a BUILTIN or HOST heap (Boehm: ch_bdw_owner_create)
 *       name      copied; tables and traps say the name, before a block's own; NULL = none
 *       fallback  what the cell leads to without an entry; has the calling convention of the code.
 *                 NULL, if nobody calls through the cell: a trap that says so
 * ret   CH_OK | CH_E_ARG | CH_E_MEMORY | CH_E_STATE the vm was detached
 * lock  heap
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_owner_create(struct ch_vm *vm, const char *name,
						 const void *fallback, void *user,
						 struct ch_owner *owner);

/* ch_owner_set_entry: the cell leads to this block; linked branches lead where they led before.
 * in    block  a LIVE block of the owner; none = back to the fallback
 * ret   CH_OK | CH_E_STALE | CH_E_STATE not LIVE, or data | CH_E_ARG another owner's
 * lock  by an attached thread: none; else heap
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_owner_set_entry(struct ch_owner owner, struct ch_block block);

/* ch_owner_cell: the word to call through; constant for the owner's life.
 * ret   NULL: the handle is none, or stale. A released owner's is stale once its last block is free
 * safe  any thread
 * note  code that calls through another owner's cell attaches an edge to that owner */
CH_API const void *const *ch_owner_cell(struct ch_owner owner);

/* ch_owner_release: the VM has no more use for the owner.
 * in    how  COLLECT: a cycle (see ch_code_free) frees the code, when no stack and no block holds
 *            it. NOT_RUNNING: the call frees the code, and the caller vouches that no thread is
 *            inside it, or will be. Code that a block of any owner has an edge to is left to cycles
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
	uint32_t cold_bytes;   /* the same for side exits; stubs have room besides, and keep it */
	uint32_t branch_room;  /* branches, 8 cold bytes each (procmem, riscv64: 24; aarch64: 28) */
	enum ch_entry entry;     /* NONE without an owner */
	uint8_t frame;           /* enum ch_frame_shape, or ch_frame_register's */
	unsigned flags;          /* set of enum ch_open_flags */
	enum ch_kind kind;       /* data: no entry, frame, cold_bytes, branch_room, OWN_FRAMES */
	const void *not_entrant; /* PATCH: where its shut entry leads; NULL = owner's fallback */
	const char *name;        /* copied; NULL = none. Tables say the owner's name, then this */
	void *user;              /* for ch_block_info, ch_code_at; an owner's: for block_freed */
	size_t align; /* of exec: a power of two, at most 4096; 0 = 8; large data, IN_PLACE: 64 */
};

/* An OPEN block. Store at write the bytes that are to run at exec; set each field marked "in". Read
 * and run nothing at exec before the commit. After commit or abort a store through a copy of write
 * is lost, or damages another block: ch_code_write. A struct ch_code on a stack, or a thread-local
 * one, keeps its block by its addresses, as words on a stack do: clear it after the commit. */
struct ch_code {
	struct ch_block block;
	uint8_t *write, *exec;           /* hot bytes */
	uint8_t *cold_write, *cold_exec; /* cold bytes; the stubs lie before */
	uint32_t hot_bytes, cold_bytes;  /* room at exec and at cold_exec */
	uint32_t entry_bytes; /* PATCH: the library's, at exec; hot_bytes and used_to count them */
	uint32_t used_from, used_to; /* in: hot bytes in use; from: a multiple of 8; PATCH: 0 */
	uint32_t cold_used;    /* in; of data used_from, used_to and cold_used are not read */
	uint32_t entry_offset; /* in: of the entry from exec; PATCH: 0 */
	const uint32_t *guard; /* GUARD: while *guard is not 0, the VM's code jumps to a fallback */
	/* in, with OWN_FRAMES: an .eh_frame section of at most 1 MiB, 4-aligned, ended by a length
	 * of 0. Each CIE gives a CFA. FDEs name used bytes by exec addresses: absolute or
	 * pc-relative, of 2, 4 or 8 bytes. NULL: unwinding ends at the block. The library makes no
	 * copy: the section lies in RODATA that the block has an edge to; or the VM keeps it until
	 * the commit failed, or block_freed came, or commit and then ch_vm_detach returned, or
	 * ch_code_free as NOT_RUNNING returned, of a block that no block has an edge to. */
	const void *eh_frame;
	const struct ch_frame *frame; /* in, with CH_FRAME_STEPS */
	uint64_t spare[4];            /* ch_block_open sets them to 0 */
};

/* ch_block_open: make room for a block.
 * in    open  set heap or owner, not both; the owner is alive; hot_bytes > 0
 * out   code  all zero on failure
 * ret   CH_OK | CH_E_ARG also if larger than the pool | CH_E_STALE the owner is dead | CH_E_FULL |
 *       CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the thread is parked | CH_E_OS errno kept |
 *       CH_E_REACH a block with PATCH of 1 MiB or more on riscv64, 128 MiB or more on aarch64
 * lock  heap, registry, pages; mostly none without name, entry, branch_room in the thread's page
 * safe  an attached thread; or any other on its own stack, which the call attaches (Boehm: if its
 *       collector knows the thread; else CH_E_THREAD). Any attached thread may go on with the block
 * cost  some 50 ns; at times sweeps or trims; large: system calls, procmem O(bytes); full O(pages)
 * note  with `heap` or MAY_COLLECT the call may collect (ch_code_free). Otherwise collect_wanted
 *       asks the VM for a collection, and space_free tells of room */
CH_API CH_CHECKED enum ch_status ch_block_open(const struct ch_open *open, struct ch_code *code);

/* ch_block_veneer: an address in the block's reach (riscv64: auipc's) that jumps to a far function.
 * in    target  e.g. a C function
 * out   at      exec address of the jump; immortal, shared by all callers of the target
 * ret   CH_OK | CH_E_STATE | CH_E_FULL for good | CH_E_REACH of a BL, in a pool of over 64 MiB
 * lock  heap
 * safe  the thread that opened it
 * cost  O(veneers of the heap). All lie in one page: 16 bytes each (aarch64, riscv64: 24) */
CH_API CH_CHECKED enum ch_status ch_block_veneer(const struct ch_code *code, const void *target,
						 const void **at);

/* ch_block_commit: publish OPEN blocks: from then on the blocks may run.
 * in    codes  "in" fields set; after CH_OK and CH_E_STALE write and cold_write of each are NULL
 *       count  1 or more blocks: all become LIVE, one by one with no cycle in between, or none
 * ret   CH_OK | CH_E_STATE a block is not open, or of another heap, or an edge names an OPEN block
 *       that is not among codes: nothing was done | CH_E_ARG a block comes twice; a field is out of
 *       range (of data, all room is used); an eh_frame is malformed, covers other code, or was not
 *       announced at open | CH_E_SITE a site lies outside of the used bytes, was written over, or
 *       has the entry inside; an exit of the block leads to unused bytes | CH_E_MEMORY | CH_E_STALE
 *       the owner is dead, an assumption broke, or a block that an edge names was aborted: all the
 *       blocks were aborted | CH_E_OS errno kept: large code does not get its memory, or code in
 *       place its access; all stay OPEN, do not write in place now: commit again, or abort |
 *       CH_E_BROKEN the emitter of a block, or of the one in front, damaged bytes beyond its room
 * lock  heap to abort; with assumptions, entry_offset, HOST refs, eh_frame, large code, tool sinks
 * safe  the thread that opened the blocks
 * cost  some 30 ns a block, O(attachments, and bytes of unused room); from 2 MiB on a copy of
 *       the used bytes, 1 to 2 ms a MiB; system calls: for sinks, in place, large, procmem, riscv64
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
 * in    bytes, n  the code. If an exception passes it, it has the frame of CH_FRAME_POINTER, and
 *                 changes no other register that a callee keeps. Other code: ch_open.frame
 *       name      copied; perf, gdb and traps say it; NULL = none
 * out   to        points to a pointer to a function, of any type: set to the code, or NULL
 * ret   CH_OK | CH_E_ARG | CH_E_FULL | CH_E_MEMORY | CH_E_OS errno kept | CH_E_THREAD and
 *       CH_E_STATE as ch_block_open | CH_E_BROKEN as ch_block_commit
 * lock  heap; registry attaches. Where the call may collect (ch_code_free) the caller holds no lock
 * safe  any thread, as ch_block_open
 * cost  some 100 ns, and a copy of the bytes; system calls: procmem, riscv64 */
CH_API CH_CHECKED enum ch_status ch_code_add(struct ch_heap *heap, const void *bytes, size_t n,
					     const char *name, void *to);

/* ch_code_free: the end of code without an owner, or of CH_OPEN_KEPT, by its address.
 * in    heap  NULL = whichever has the address: O(heaps)
 *       at    what ch_code_add gave; ch_info.exec (ch_code.exec if used_from is 0); or the entry
 *       how   COLLECT: a cycle frees the code when no cell, edge, branch or word of a stack leads
 *             there. NOT_RUNNING: now, branches unlinked; a cycle, if an edge leads there
 * ret   CH_OK | CH_E_ARG how; `at` is in no pool, or inside code | CH_E_STATE the code is immortal,
 *       or an owner's without KEPT | CH_E_STALE nothing is there, or OPEN code. If the code was
 *       freed before, and other code lies there, the call frees the other code
 * lock  COLLECT by an attached thread: none; else heap
 * safe  any thread; COLLECT also from finalizers, but from no other callback of a collector
 * cost  COLLECT: O(1); NOT_RUNNING: O(attachments of the code, and branches to the code)
 * note  in a BUILTIN heap where no vm has collect_wanted or stop_world, the library collects what
 *       this call, ch_owner_release and invalidations leave to cycles: in polls, in ch_code_add, in
 *       ch_block_open with `heap` or MAY_COLLECT. It waits for threads for stop_wait_ms / 10; if
 *       one does not stop, nothing is freed, and the next try comes much later */
CH_API CH_CHECKED enum ch_status ch_code_free(struct ch_heap *heap, const void *at,
					      enum ch_release how);

/* NOT_RUNNING: any bytes; the caller vouches that no thread runs or loads the bytes meanwhile. WORD
 * and INSTRUCTION: other threads may, and each gets the old bytes or the new. WORD: 1, 2, 4 or 8
 * bytes that code loads, aligned to their number. INSTRUCTION: some or all bytes of one, within an
 * aligned 8, and its length stays; aarch64: all of a B, BL, NOP or BRK, to become another of these;
 * riscv64: all of an aligned instruction of 4 bytes. x86-64: only the place is checked. */
enum ch_write { CH_WRITE_NOT_RUNNING, CH_WRITE_WORD, CH_WRITE_INSTRUCTION };

/* ch_code_write: write into committed code, where a store at ch_code.write is lost.
 * in    heap   NULL = whichever has the address: O(heaps)
 *       at, n  exec address; all n bytes lie in the hot bytes, or in the cold bytes, of one block
 * ret   CH_OK a thread that comes to the bytes from here on runs the new bytes | CH_E_ARG n is 0;
 *       `how`; the bytes lie elsewhere; the block is OPEN | CH_E_STATE data, a trampoline |
 *       CH_E_SITE bytes of an attached site or ref, a stub, a patchable entry or a block's steps;
 *       or no WORD or INSTRUCTION | CH_E_OS errno kept; nothing changed: aarch64 without
 *       membarrier's core synchronization (WORD needs none); procmem, WORD or INSTRUCTION of more
 *       than one byte: each such page is a mapping, and the process can have no more
 * lock  heap
 * safe  any thread
 * cost  O(n + attachments), and 1 us for a core synchronization (not WORD); procmem: 5 to 20 us */
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
	const uint8_t *entry;     /* NULL unless LIVE code */
	uint32_t hot_bytes, cold_bytes;
	uint32_t branches_now; /* attached */
	enum ch_kind kind;
};

/* ch_block_info: what the heap knows of a block.
 * ret   CH_OK | CH_E_STALE | CH_E_ARG size
 * lock  heap, shortly
 * safe  any thread
 * cost  O(its branches) */
CH_API CH_CHECKED enum ch_status ch_block_info(struct ch_block block, struct ch_info *info);

/* --- graph --- */
struct ch_branch_site {
	const void *at; /* exec address of the instruction, or of the literal */
	enum ch_branch_kind kind;
	void *user;       /* for branch_hit and ch_code_at; used until block_freed of the block */
	const void *exit; /* where it leads unlinked; the VM keeps the exit's block; NULL = stub */
	uint64_t spare[2]; /* 0 */
};

/* ch_branch_attach: declare a patch site; the site's bytes are written to lead to the stub.
 * in    block   OPEN; or LIVE, if no thread can come to the site yet
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
 * safe  any thread, while others run either block
 * cost  one store into the code, on procmem into data; O(blocks) if the branch's block is OPEN */
CH_API CH_CHECKED enum ch_status ch_branch_link(struct ch_branch branch, struct ch_block target);

/* From here to ch_block_lines the block is OPEN (else CH_E_STATE). If the list of its attachments
 * has to grow, a call takes the heap's lock. Attaching to two blocks in turn: O(attachments). */

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
 * note  a cycle between the store of the word and this call would miss the object. If other threads
 *       may collect, attach first, with a word of 0, and store the object's address then */
CH_API CH_CHECKED enum ch_status ch_ref_attach(struct ch_block block, const void *at);

/* ch_patch_point_attach: a place that invalidation diverts to an exit.
 * in    at    exec address of `test eax, imm32`: an A9, then four bytes that the library writes;
 *             aarch64: of a NOP; riscv64: of an aligned `lui x0, 0`, whose immediate it writes
 *       exit  exec address in the block, or in a committed block, which the block keeps from here
 *             on. A thread comes there with all registers, but the flags, as at the point
 *       user  any word, for ch_block_sites and ch_code_at
 * ret   CH_OK | CH_E_STALE | CH_E_STATE | CH_E_ARG | CH_E_SITE | CH_E_REACH | CH_E_MEMORY
 * lock  heap, if the exit lies in another block, too
 * safe  the thread that opened the block
 * cost  O(1); if the exit lies in another block, O(attachments of that block)
 * note  needed on each back edge inside, and behind each call: a thread may invalidate meanwhile */
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
 *   POINTER    begins with push rbp; mov rbp, rsp, maybe behind an endbr64 (aarch64: stp x29, x30,
 *              [sp, #-16]!; mov x29, sp; riscv64: ra and s0 stored below the sp of the call; s0 is
 *              that sp). An unwinder restores pc, sp, rbp (x29, s0) only: a catcher finds a wrong
 *              value in rbx or r12 to r15 if the code changes it. Without the frame pointer
 *              unwinders crash. Of prologues see docs/unwinders.md, section 1
 *   KEEPS_ALL  the same, and below its record stores all other registers that a callee keeps,
 *              downwards: rbx, r12 to r15 by push; aarch64: x19 to x28, then d8 to d15, by stp of
 *              two, [sp, #-16]!; riscv64: s1 to s11, fs0 to fs11
 *   LEAF       calls nothing; sp, registers that a callee keeps, x30 and ra are as at the call */
enum ch_frame_shape { CH_FRAME_POINTER, CH_FRAME_KEEPS_ALL, CH_FRAME_LEAF, CH_FRAME_STEPS };

/* STEPS (x86-64): ch_code.frame says where the caller's frame is at each instruction, for calls and
 * signals; the commit copies it, besides hot_bytes. At most 65,000 bytes, ENTRY_NONE or GUARD,
 * no cold_bytes, branch_room or IN_PLACE (else CH_E_ARG). Before the first step the frame is as at
 * the call: cfa 8. No step lies where a call returns to. A child of fork without code sees LEAF. */
struct ch_frame_step {
	uint16_t at;  /* bytes from ch_code.exec; rises from step to step */
	uint16_t cfa; /* from `at` on, bytes from sp up to the caller's sp: 8 to 32,760, by 8 */
};
struct ch_frame_save {
	uint8_t reg;   /* DWARF's number: 3 (rbx), 6 (rbp), 12 to 15; once */
	uint8_t below; /* from `at` on it is saved so many words below the caller's sp: 2 or more */
	uint16_t at;
};
struct ch_frame {
	const struct ch_frame_step *steps;
	const struct ch_frame_save *saves;
	uint8_t steps_n, saves_n; /* at most 16 each */
};

/* ch_frame_register: a frame shape of the VM's own; examples/frames.c has one.
 * in    cfi, bytes  1 to 64 bytes of DWARF call-frame instructions that hold at each instruction of
 *                   every block of the shape, the CFA's rule first; data factor -8; not checked
 * out   frame   for ch_open.frame; equal bytes have one number. Blocks of two shapes share no page
 * ret   CH_OK | CH_E_ARG | CH_E_FULL 12 shapes are registered
 * lock  sinks
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_frame_register(struct ch_heap *heap, const void *cfi,
						   size_t bytes, uint8_t *frame);

/* --- trampoline --- */
/* Both kinds pass on all argument registers and the return value, and the payload in a register of
 * no argument (x86-64: r10; aarch64: x15, x16 is lost; riscv64: t2, t1 is lost). FRAMED: calls the
 * target from a frame of its own, so unwinders and samplers see the block's name; but arguments on
 * the stack do not pass. TAIL: jumps to the target. */
enum ch_trampoline { CH_TRAMPOLINE_FRAMED, CH_TRAMPOLINE_TAIL };

/* ch_trampoline_make: a block stamped from a template, entered like any other, and collected.
 * in    owner    the block lives by this owner; alive
 *       target   at any distance. The block does not keep a target that is code of the heap
 *       payload  not traced; name, user: as in ch_open
 * out   block    LIVE, its code at ch_info.entry
 * ret   CH_OK | CH_E_ARG | CH_E_STALE the owner is dead | CH_E_FULL also if other code, or a thread
 *       that opened code, has a page in every chunk: trampolines have chunks of their own |
 *       CH_E_MEMORY | CH_E_THREAD | CH_E_STATE the thread is parked | CH_E_BROKEN as a commit |
 *       CH_E_OS as an open or a commit
 * lock  heap; registry attaches
 * safe  as ch_block_open
 * cost  some 100 ns; a page now and then; system calls: procmem, riscv64 */
CH_API CH_CHECKED enum ch_status
ch_trampoline_make(struct ch_owner owner, enum ch_trampoline kind, const void *target,
		   uint64_t payload, const char *name, void *user, struct ch_block *block);

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
/* ch_blocks_invalidate: no cell or branch leads to the blocks any more, and entries of PATCH and
 * GUARD are shut. A thread inside leaves at its next branch, return or patch point.
 * in    blocks  any; dead and NOTENTRANT blocks, and data, are passed over
 * out   count   blocks that became NOTENTRANT, may be NULL
 * ret   CH_OK | CH_E_ARG of two heaps, CH_E_STATE a block is OPEN: nothing was changed
 * lock  heap
 * safe  any thread, also one that runs inside a block
 * cost  some 30 ns a block, branch in or out, point; no memory; system calls on procmem, riscv64 */
CH_API CH_CHECKED enum ch_status ch_blocks_invalidate(const struct ch_block *blocks, size_t n,
						      size_t *count);

/* --- collect --- */
/* ch_heap_collect: run one full cycle and its sweep; in a Boehm heap the collector runs the cycle.
 * ret   CH_OK | CH_E_BUSY nothing was freed: a thread did not stop, or is on no attached stack |
 *       CH_E_STATE a HOST heap | CH_E_MEMORY | CH_E_THREAD Boehm: a thread not registered there
 * lock  registry, heap; delivers block_freed
 * safe  an attached thread, parked or not, that holds no lock; or one that is not attached
 * cost  O(blocks and owners of the heap, and words of the stacks) */
CH_API CH_CHECKED enum ch_status ch_heap_collect(struct ch_heap *heap);

/* --- look --- */
struct ch_spot {
	size_t size; /* in: sizeof(struct ch_spot); offsetof(struct ch_spot, owner): block alone */
	struct ch_block block;
	struct ch_owner owner; /* none without one */
	void *user;            /* ch_open.user */
	const uint8_t *exec;   /* ch_info.exec, or ch_info.cold_exec (not ch_code's) */
	uint32_t offset;       /* pc - exec */
	bool is_cold;
	/* With is_return: pc is behind a CH_CALL, else at a patch point; site_user is its user. */
	bool has_site;
	enum ch_block_state state; /* LIVE or NOTENTRANT */
	void *site_user;
};

/* ch_code_at: the code or data at an address, and the VM's own words there: the start for stack
 * maps, exception tables, deoptimization and line tables.
 * in    heap       in use; NULL = whichever has the address: O(heaps), and a store to a shared word
 *       is_return  pc is a return address: look at the call before pc
 * out   spot       as at one moment; all but size is 0 when the call returns false
 * ret   true when pc lies in a LIVE or NOTENTRANT block. A wrong size: false, spot stays as it was
 * safe  any thread, signal handlers, callbacks, while others allocate, free and collect
 * cost  some 25 ns; is_return: O(what is attached to the block) */
CH_API bool ch_code_at(const struct ch_heap *heap, const void *pc, bool is_return,
		       struct ch_spot *spot);

/* ch_block_each: visit every OPEN, LIVE or NOTENTRANT block, or each of a name.
 * in    name   NULL = all; a block's own, or its owner's where it has none
 *       visit  returns false to end; comes for blocks left to the sweep, too: their handle is stale
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
 *       of the heap's code or data, nor of a call of NULL by code; or was sent, or is a tool's trap
 * safe  signal handlers, in any thread, while others allocate and free; takes 4 KiB of stack
 * cost  O(blocks of the heap, and freed blocks that are remembered: ch_config.remembered_dead) */
CH_API size_t ch_trap_describe(const struct ch_heap *heap, const void *siginfo,
			       const void *ucontext, char *text, size_t bytes);

/* ch_trap_install: a handler for SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE and SIGABRT. The handler
 * writes the line of ch_trap_describe to stderr, shows all live code to debuggers when CH_SINK_GDB
 * is on, so that a core names the code, and goes on to the action before: the default one leaves
 * the signal's registers in a core. A thread that blocks the signal ends the process with no line.
 * in    heap  the handler knows the code of this heap, too
 * ret   CH_OK also when installed before | CH_E_OS errno kept; a later call tries what is missing
 * lock  of the set of heaps; the handler tries the locks of sinks, for a tenth of a second
 * safe  any thread. The handler needs 8 KiB of the thread's signal stack, if any; libcodeheap.a: 12
 * note  the process has one handler, also when the heap is gone. A VM that goes on after faults of
 *       its own installs its handler later, and chains every other fault to the action before */
CH_API CH_CHECKED enum ch_status ch_trap_install(struct ch_heap *heap);

/* --- sinks --- */
/* ch_sink_set: choose the sinks that are on. A sink that comes on is told of all live code.
 * ret   CH_OK | CH_E_ARG | CH_E_BUSY as ch_heap_check | CH_E_OS errno kept: a file could not be
 *       made, or the process has no libunwind; the sink is off
 * lock  heap, sinks
 * safe  any thread; while UNWIND goes off, no thread may unwind through a block of OWN_FRAMES
 * cost  O(blocks of the heap) for each sink that comes on */
CH_API CH_CHECKED enum ch_status ch_sink_set(struct ch_heap *heap, unsigned sinks);

/* ch_sink_flush: write what is buffered; show all code to GDB, whether GDB listens or not.
 * ret   CH_OK | CH_E_OS a sink failed and is off; the same at each call, until ch_sink_set
 * lock  heap, sinks
 * safe  any thread
 * cost  O(what waits); with GDB O(blocks of the heap) */
CH_API CH_CHECKED enum ch_status ch_sink_flush(struct ch_heap *heap);

/* ch_sink_status: whether a sink is on, and which error switched the sink off.
 * out   path    of the sink's file, while the sink is on; "" without a file; may be NULL, as failed
 *       failed  errno that switched the sink off; EINVAL: no such heap, or not one sink; else 0
 * ret   true while the sink is on
 * lock  sinks
 * safe  any thread */
CH_API bool ch_sink_status(struct ch_heap *heap, enum ch_sink sink, const char **path, int *failed);

#ifdef __cplusplus
}
#endif
#endif
