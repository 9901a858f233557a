/* SPDX-License-Identifier: MIT
 * fuzz.h: bytes as a program over the public interface, and the model with the right answer of each
 * call. One thread of mutation. The blocks' machine code calls back into the program, so that every
 * call also happens while blocks are on the stack. The program has no data, no blocks that are KEPT
 * or IN_PLACE, no stops by the VM, no roots or polled words of its own, and no sampler.
 *
 *   target.c      bytes -> one heap's life; libFuzzer's entry
 *   operations.c  one byte -> a call with operands, and the right answer
 *   code.c        emits blocks, runs them; the model of a run
 *   model.c       which block holds which; the blocks that a cycle may free, and must free
 *   replay.c      main of a program that runs files, without libFuzzer */
#pragma once

#include "codeheap/look.h"
#include "tests/support/code.h"

enum {
	FUZZ_VMS = 2,
	FUZZ_OWNERS = 6,
	FUZZ_BLOCKS = 24,
	FUZZ_FACTS = 3,
	FUZZ_FIBERS = 2,
	FUZZ_GONE = 16,
	FUZZ_SITES = 4,
	FUZZ_FIBER_WORDS = 32,
	FUZZ_LIVES = 2000, /* blocks opened by one program */
	FUZZ_ROOMY = 200,
	FUZZ_FRAMES = 48, /* of one run */
	FUZZ_EVENTS = 60, /* callbacks of one run; then all branches are unlinked */
	FUZZ_NESTED = 3,  /* runs inside runs */
	FUZZ_NONE = -1,
	FUZZ_FALLBACK = 0x0fa11bac,
	FUZZ_EXIT = 0x00ee0000, /*  life: left by a patch point */
	FUZZ_AFTER = 7,         /* added by a block to the callee's result */
};

/* The end of a block: SHAPE_RETURN returns the number, all others take a branch. */
enum fuzz_shape {
	SHAPE_RETURN,
	SHAPE_JMP,
	SHAPE_JCC,
	SHAPE_LITERAL,
	SHAPE_LEA,
	SHAPE_CALL,
	SHAPES
};

struct fuzz_site {
	const uint8_t *at;
	size_t n; /* 0: none */
};

struct fuzz_block {
	enum ch_block_state state; /* CH_BLOCK_FREE: the slot is empty, or the block is gone */
	int life;                  /* the number among all blocks, and the block's result */
	int number;                /* the same for trampolines, whose result is the fallback's */
	struct ch_block handle;
	struct ch_code code; /* while OPEN */
	const uint8_t *entry;
	int owner;
	enum fuzz_shape shape;
	enum ch_entry entry_kind;
	bool is_immortal, has_call, has_point, has_ref;
	bool is_held, is_edged; /* had an in-edge or an entry; is named by an edge */
	bool is_doomed;         /* OPEN, but an edge's target or a fact is gone: commit fails */
	int age;                /* cycles since commit */
	int link, edge, edge_life, owner_edge, fact;
	struct ch_branch branch;
	struct fuzz_site sites[FUZZ_SITES]; /* the library's bytes: branch, ref, points */
	bool is_reached;
};

enum fuzz_owner_state { OWNER_NONE, OWNER_ALIVE, OWNER_RELEASED };
struct fuzz_owner {
	enum fuzz_owner_state state;
	struct ch_owner handle;
	const struct ch_vm *vm;
	uintptr_t vm_number;
	int entry;
	bool is_reached;
};

struct fuzz_fact {
	bool is_there;
	struct ch_assumption handle;
};

struct fuzz_fiber {
	struct ch_fiber *fiber;
	uintptr_t stack[FUZZ_FIBER_WORDS];
	bool is_suspended;
	int blocks[2], lives[2]; /* the blocks that the words name */
};

/* A frame of running code, as the model sees the frame. */
enum fuzz_place { AT_ENTRY, AT_CALL, AT_BRANCH, AT_RETURN };
struct fuzz_frame {
	int block, life;
	enum fuzz_place place;
};
struct fuzz_run {
	struct fuzz_frame frames[FUZZ_FRAMES];
	int depth, events;
	uint32_t result;
};

struct fuzz {
	const uint8_t *bytes;
	size_t left;
	struct ch_heap *heap;
	bool is_roomy; /* the first FUZZ_ROOMY blocks all have room */
	struct ch_vm *vms[FUZZ_VMS];
	uintptr_t vm_numbers[FUZZ_VMS], vms_made; /* what callbacks get; no number comes twice */
	struct fuzz_owner owners[FUZZ_OWNERS];
	struct fuzz_block blocks[FUZZ_BLOCKS];
	struct fuzz_fact facts[FUZZ_FACTS];
	struct fuzz_fiber fibers[FUZZ_FIBERS];
	struct ch_block gone[FUZZ_GONE]; /* handles of freed blocks */
	int lives, gone_count;
	struct fuzz_run runs[FUZZ_NESTED];
	int nested; /* runs under way */
	unsigned calls;
	bool is_told[FUZZ_LIVES], is_gone[FUZZ_LIVES];
	uintptr_t tells[FUZZ_LIVES]; /* the VM that is told of the end, and no other; 0 = none */
	bool ref_seen[FUZZ_LIVES];
	bool is_loud; /* FUZZ_LOUD in the environment: each call is printed */
};

extern struct fuzz fuzz;

/* The next byte of the program, 0 behind the end; the next byte below a bound. */
uint8_t fuzz_byte(void);
int fuzz_below(int bound);
void fuzz_attach_vm(int at);

/* --- model.c --- */

bool fuzz_is_there(int block);
/* Marks the roots and all blocks that the roots reach. */
void fuzz_mark(void);
/* To call after a cycle. is_exact: only stacks of suspended fibers were scanned. Compares the model
 * with the heap, and buries freed blocks. */
void fuzz_cycle_done(bool is_exact);
void fuzz_bury(int block);
/* To call when a poll or a collection has told of all blocks that are gone. */
void fuzz_check_told(void);
void fuzz_invalidated(int block);
/* Checks counts, states and cells against the model, and the rights of all mappings. */
void fuzz_compare(void);
/* Checks that every free byte is a trap, and more: slow, so not after each call. */
void fuzz_check_heap(void);

/* --- code.c --- */

/* Emits the code of an OPEN block by its shape. */
void fuzz_emit(int block);
/* Calls through the owner's cell and follows the run in the model. */
void fuzz_run_owner(int owner);
/* Calls a PATCH entry by address. */
void fuzz_run_entry(int block);
struct ch_block fuzz_branch_hit(void *vm_user, struct ch_branch branch, void *user,
				struct ch_regs *regs);
bool fuzz_is_running(int block);

/* --- operations.c --- */

void fuzz_operation(void);
const void *fuzz_fallback(void);
