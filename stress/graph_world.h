/* SPDX-License-Identifier: MIT
 * graph_world.h: shared by the parts of the graph level: the heaps and VMs of one program, with
 * threads, stacks, owners and blocks, as the harness knows them. The tables only grow while a
 * program runs, and no entry is used again: a block's entry outlives the block.
 *
 * Words that several threads change are atomic; no lock of the harness is held over a call of the
 * library. An address of code lies in these tables only, unseen by scans, and in no lasting frame
 * of the harness. */
#pragma once

#include "codeheap/codeheap.h"
#include "codeheap/collector.h"
#include "codeheap/look.h"

#include "graph.h"
#include "graph_program.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

enum {
	GRAPH_NODES = 12000,
	GRAPH_OWNERS = 6000,
	GRAPH_FACT_RECORDS = 4000,
	GRAPH_FRAMES = 40, /* deepest nesting of blocks on one stack */
	GRAPH_HAND = 4,    /* open blocks of one thread */
	GRAPH_CANDIDATES = 8,
	/* Behind the vms of the program: of code without an owner, and of guests. */
	GRAPH_NO_VM = GRAPH_VMS,
	GRAPH_GUEST_VM,
	GRAPH_ALL_VMS,
	GRAPH_EXIT_MARK = 1 << 30,
	GRAPH_FALLBACK = 0xfa11 << 8,
	GRAPH_WAIT_MS = 20000, /* longer is a hang */
};

struct graph_fact {
	struct ch_assumption handle;
	int heap, vm;
	_Atomic(bool) is_breaking, is_broken;
};

/* Code without an owner has a record, too: a handle that is none, a vm that is none, which is never
 * discarded, and a word of the harness for the cell. */
struct graph_owner {
	struct ch_owner handle;
	const void *const *cell;
	const void *address; /* the cell of code without an owner */
	uint32_t loose;      /* the number of that code; 0: there is an owner */
	int heap, vm;
	_Atomic(bool) is_born, by_release;
	_Atomic(bool) is_dropped;  /* no root of the VM leads to the owner any more */
	_Atomic(int) users;        /* uses of the cell under way, and the slot's use */
	_Atomic(bool) is_released; /* the entry is no root, whatever leads to the owner */
	struct ch_vm *guest;       /* a vm of this owner alone, which ends with it; or NULL */
};

enum node_state { NODE_UNBORN, NODE_OPEN, NODE_COMMITTED, NODE_LOST };

struct graph_arm {
	const uint8_t *at; /* the site; NULL: the block has no such arm */
	struct ch_branch branch;
	_Atomic(const void *) asker; /* the thread that was asked last where the branch leads */
	/* Numbers of blocks that the arm may lead to, since birth; more than fit: any block. */
	_Atomic(uint32_t) candidates, candidate[GRAPH_CANDIDATES];
};

struct graph_node {
	uint32_t number, owner;
	struct ch_block handle;
	struct ch_code code; /* while OPEN */
	const uint8_t *exec, *entry, *cold;
	const void *veneer; /* where arms of code without an owner lead unlinked; else NULL */
	uint32_t hot_bytes, cold_bytes;
	uint32_t branch_room;
	uint32_t written; /* offset of the word that graph_code_write writes; 0 = none */
	unsigned shape;
	bool is_exit, is_trampoline, is_leaf, is_data, is_constant;
	struct graph_arm arms[GRAPH_ARMS + 1];
	uint32_t edge, shared_exit, edge_owner, ref_owner, fact, data; /* 0 = none */
	_Atomic(int) state;
	_Atomic(uint64_t) committed_at; /* by graph_tick; cycles_at: the heap's cycles then */
	_Atomic(uint64_t) cycles_at;
	_Atomic(bool) is_written; /* the word holds what some thread wrote */
	_Atomic(bool) is_held; /* an entry or a branch led to the block once */
	_Atomic(bool) may_be_invalid, is_invalid;
	_Atomic(const void *) killer; /* thread whose invalidation of the block has returned */
	_Atomic(int) frames, notices;
	bool is_reached, is_perhaps, is_predicted_dead, is_there, is_counted; /* the model's */
	bool is_entrant; /* the model's: LIVE */
	bool is_named;   /* the model's: in the perf map */
};

struct graph_frame {
	uintptr_t at;
	struct graph_node *node;
	bool was_invalid; /* when the block went on, by this very thread */
};

/* How the next block that begins on a stack was entered. */
enum expectation { EXPECT_NOTHING, EXPECT_OWNER, EXPECT_ARM, EXPECT_NODE };
struct expect {
	enum expectation kind;
	uint32_t number, arm;
};

enum stack_state { STACK_EMPTY, STACK_RUNNING, STACK_SUSPENDED };
struct graph_stack {
	_Atomic(int) state;
	uint8_t *low, *high;
	uintptr_t sp;
	struct ch_fiber *fibers[GRAPH_HEAPS];
	struct graph_frame frames[GRAPH_FRAMES];
	int depth;
	int segment; /* frames below belong to waiting code that called back */
	int pinned;  /* frames certainly on the stack: see graph_run.c */
	struct expect expect;
	uint32_t entering;                    /* the owner held until its cell was used */
	const struct graph_operation *taking; /* the operation that took the newest branch */
	uint32_t leaver;                      /* the last block told to return */
	struct graph_stack *resumer;
	jmp_buf base;
	bool is_fiber;
	uint64_t cycles; /* at the suspension */
	const void *thread;
};

struct graph_thread {
	int index;
	pthread_t thread;
	const struct graph_operation **list;
	size_t next, end, limit; /* limit: operations inside a callback; end: of all */
	struct graph_stack home, *stack;
	struct graph_stack *left; /* a yielded fiber, until its registers are saved */
	_Alignas(16) uint8_t signal_stack[64 << 10];
	uint32_t hand[GRAPH_HAND];
	int handful;
	bool is_in_handler, is_over;
	/* A walk of the model: blocks follow this script instead of the list. */
	const int *script;
	int script_at, script_length;
};

struct graph_slot {
	_Atomic(uint32_t) owner, code, exit, recent; /* recent: the code before */
};

struct graph_heap {
	struct ch_heap *heap;
	struct ch_vm *vms[GRAPH_VMS];
	_Atomic(bool) is_wanted;
	_Atomic(uint32_t) discards[GRAPH_ALL_VMS];
	/* Tick at which the newest finished discard began. */
	_Atomic(uint64_t) discarded_at[GRAPH_ALL_VMS];
};

struct graph_world {
	const struct graph_program *program;
	const char *folder;
	bool is_child; /* of a fork in the middle */
	struct graph_heap heaps[GRAPH_HEAPS];
	struct graph_node *nodes;
	struct graph_owner *owners;
	struct graph_fact *facts;
	_Atomic(uint32_t) node_count, owner_count, fact_count;
	struct graph_slot slots[GRAPH_SLOTS];
	_Atomic(uint32_t) fact_slots[GRAPH_HEAPS * GRAPH_VMS][GRAPH_FACTS];
	struct graph_stack fibers[GRAPH_FIBERS];
	struct graph_thread threads[GRAPH_THREADS + 1]; /* the last is the model's */
	int thread_count;
	pthread_barrier_t start;
	_Atomic(uint64_t) tick;
};

extern struct graph_world graph_world;
extern struct graph_shared *graph_shared;

#define GRAPH_COUNT(name, n) atomic_fetch_add(&graph_shared->name, (uint64_t)(n))

/* Says what is wrong and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void graph_fail(const char *format, ...);
/* Fails when the status is not in the set of bits. Returns the status. */
enum ch_status graph_allow(enum ch_status status, unsigned allowed, const char *what);
#define GRAPH_BIT(status) (1u << (status))

/* The calling thread's record; ask again after everything that may switch stacks. */
struct graph_thread *graph_self(void);
void graph_set_self(struct graph_thread *);

static inline struct graph_node *graph_node(uint32_t number)
{
	return &graph_world.nodes[number];
}
static inline struct graph_owner *graph_owner(uint32_t number)
{
	return &graph_world.owners[number];
}
static inline uint64_t graph_tick(void)
{
	return atomic_fetch_add(&graph_world.tick, 1) + 1;
}
static inline struct graph_heap *graph_heap_of(const struct graph_node *node)
{
	return &graph_world.heaps[graph_owner(node->owner)->heap];
}
uint64_t graph_cycles(int heap);

/* --- graph_driver.c: heaps, threads and collections, by each driver --- */

void graph_driver_start(void); /* makes the heaps of the world */
void graph_driver_end(void);   /* the heaps must go without a complaint */
void graph_driver_enter_thread(struct graph_thread *);
void graph_driver_leave_thread(struct graph_thread *);
/* Makes an owner of this heap and vm. Returns 0 without room. */
uint32_t graph_driver_owner(int heap, int vm);
/* The same for a vm of its own, which no discard of one vm names. */
uint32_t graph_driver_guest(int heap);
/* The same for code without an owner, whose number is said when the code is committed. */
uint32_t graph_driver_loose(int heap);
void graph_driver_loosen(uint32_t owner, uint32_t number);
/* The word by which a ref in code names the owner; 0 when nothing leads to the owner any more. */
uintptr_t graph_driver_word(uint32_t owner);
/* Takes the slot's use away: with the last user the VM has no more use for the owner. */
void graph_driver_drop(uint32_t owner, bool by_release);
bool graph_driver_use(uint32_t owner);
void graph_driver_unuse(uint32_t owner);
/* Runs a full cycle beside other threads. Returns true when the cycle was complete. */
bool graph_driver_collect(int heap);
/* Runs a full cycle at a quiescent point, from a thread that is not attached. Must succeed. */
void graph_driver_collect_alone(int heap);
/* Stops here when the driver asks. */
void graph_driver_safepoint(void);
/* Around everything that blocks. */
void graph_driver_park(void);
void graph_driver_unpark(void);
void graph_driver_sleep(unsigned us);
void graph_driver_switch(const struct graph_stack *to);
void graph_driver_switched(void); /* the first call on a stack after a switch */
void graph_driver_forked(void);   /* in the child */
extern const struct ch_ops graph_ops;

/* --- graph_code.c: blocks of machine code --- */

/* Another slot whose owner is of the same heap as the slot. */
int graph_code_beside(int slot, int other);
/* Opens a block of the owner and emits the code, for a slot. Returns 0 on failure. */
uint32_t graph_code_open(uint32_t owner, int slot, unsigned shape, int x, int y);
uint32_t graph_code_open_exit(int slot);
enum graph_leaf { LEAF_PLAIN, LEAF_KEPT, LEAF_IN_PLACE, LEAF_WITH_LINES, LEAF_KINDS };
/* If the program has data, holds the other block's data, or makes data. */
uint32_t graph_code_open_leaf(uint32_t owner, uint32_t other, enum graph_leaf kind);
bool graph_code_commit(uint32_t number);
void graph_code_abort(uint32_t number);
/* Fails when a running block's data has changed; writes the data again. */
void graph_code_judge_data(const struct graph_node *node);
/* Writes into a block that is on the calling thread's stack. */
void graph_code_write(struct graph_node *node);
/* Fails when no thread of the process can have written the word whole. */
void graph_code_judge_written(const struct graph_node *node);
uint32_t graph_code_trampoline(int slot, int kind);
/* Makes the block the owner's entry and the slot's newest block. */
void graph_code_publish(int slot, uint32_t number, bool as_entry);
uint64_t graph_code_fallback(void);
/* Notes that the arm may lead to the block from here on. */
void graph_code_candidate(struct graph_node *node, int arm, uint32_t number);
bool graph_code_is_candidate(struct graph_node *node, int arm, uint32_t number);

/* --- graph_run.c: what runs in blocks, on stacks, in threads --- */

int64_t graph_run_step(uint32_t number, uint32_t is_again, uintptr_t frame);
struct ch_block graph_run_hit(void *vm_user, struct ch_branch branch, void *branch_user,
			      struct ch_regs *regs);
void graph_run_freed(void *vm_user, void *block_user);
/* Enters the owner's cell, and judges the returned value. */
void graph_run_owner(uint32_t owner);
void graph_run_node(struct graph_node *node, const int *script, int length);
void graph_run_entered(struct graph_stack *stack); /* the cell was used */
void graph_run_unwind(struct graph_stack *stack, uintptr_t below);
/* Whether the block was invalidated, its fact broken or its vm discarded, or is about to be. */
bool graph_run_may_be_invalid(const struct graph_node *node);
void graph_run_thread(void); /* runs the list to the end */

/* --- graph_stacks.c: fibers, signals --- */

void graph_stacks_start(void);
void graph_stacks_end(void);
void graph_stacks_attach_home(struct graph_thread *);
void graph_stacks_detach_home(struct graph_thread *);
void graph_fiber_go(int fiber);
void graph_fiber_yield(void);
void graph_fiber_forsake(int fiber);
void graph_signal_raise(void);
void graph_signal_shoot(int thread);

/* --- graph_operations.c --- */

enum { GRAPH_GO_LEAVE = 0 };
/* Runs operations of the calling thread up to one for the calling block. Returns the arm. */
int graph_operations_run(void);
void graph_invalidate(const uint32_t *numbers, int count);

/* --- graph_fork.c --- */

void graph_fork(int operations);
void graph_fork_end(void); /* ends the child */

/* --- graph_model.c: what must live, and what must die --- */

/* At a quiescent point: checks invariants, runs two cycles, compares the blocks. */
void graph_model_round(bool is_last);
/* Checks only that nothing is lost; in a child, attached. */
void graph_model_child(void);
