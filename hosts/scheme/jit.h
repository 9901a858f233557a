/* SPDX-License-Identifier: MIT
 * jit.h: the types shared by the files of the JIT: records of blocks, versions of program points,
 * and the state of one VM's JIT.
 *
 * Each basic block of bytecode becomes one block of the code heap for each set of operand types
 * found at its start. Slots of the frame hold all values between blocks, so every exit is a pc.
 */
#pragma once

#include <codeheap/codeheap.h>
#include <codeheap/codeheap_bdw.h>

#include "frame.h"
#include "jit_emit.h"

/* ---- types of slots: four bits for each of the first slots of a frame ---- */

enum slot_type {
	TY_ANY,
	TY_FIXNUM,
	TY_FLONUM,
	TY_PAIR,
	TY_VECTOR,
	TY_STRING,
	TY_CLOSURE,
	TY_SYMBOL,
	TY_BOX,
	TY_RECORD,
	TY_NIL,
	TY_FALSE,
	TY_TRUE,
	TY_CHAR,
};
enum {
	TYPED_SLOTS = 32,
	VERSIONS_PER_POINT = 4,
	CASES_PER_CALL = 4,
	HOT_EXITS = 2,
	REDEFINITIONS = 3
};

struct slot_types {
	uint64_t words[2];
};

static inline enum slot_type types_get(const struct slot_types *types, int slot)
{
	if (slot >= TYPED_SLOTS)
		return TY_ANY;
	return (enum slot_type)(types->words[slot >> 4] >> ((slot & 15) * 4) & 15);
}
static inline void types_set(struct slot_types *types, int slot, enum slot_type type)
{
	if (slot >= TYPED_SLOTS)
		return;
	uint64_t *word = &types->words[slot >> 4];
	*word = (*word & ~((uint64_t)15 << ((slot & 15) * 4))) | (uint64_t)type
									 << ((slot & 15) * 4);
}

/* ---- records ---- */

/* The role of a block at its pc. K_POINT: specialised by types. K_GENERIC: arithmetic for any
 * types, no exits of its own but errors. K_ENTRY: checks argc and goes on to the body. K_BODY:
 * behind the argc check. K_BARE: K_POINT before the frame is up, behind only the tests at the start
 * of a body. K_CASE + n: case n of the inline cache at a call, or specialisation n behind a guard;
 * the last of a chain serves every callee or every type. */
enum version_kind { K_POINT, K_GENERIC, K_ENTRY, K_BODY, K_BARE, K_CASE };

struct version {
	uint32_t pc;
	uint16_t kind;
	uint16_t next; /* version of the same pc, index + 1 */
	struct slot_types types;
	struct ch_block block;
	const void *arena_at; /* --arena: address of the code */
};

enum { FIRST_VERSIONS = 2, FIRST_HEADS = 16 };

/* struct method: the JIT's part of a struct code; both live and die together in the Boehm heap. */
struct method {
	void *anchor;
	struct ch_owner owner;
	const void *arena_cell; /* --arena: stands for the owner's entry cell */
	const char *source;     /* absolute path, for lines of blocks; NULL: no lines */
	int has_listing;        /* source is the listing of the bytecode */
	uint16_t *heads;        /* by pc: index + 1 of the first version */
	struct version *versions;
	uint32_t count, capacity;
	struct version first[FIRST_VERSIONS]; /* room for most procedures in the record itself */
	uint16_t first_heads[FIRST_HEADS];
};

/* The request of a branch, guard or call without a link. The code object is alive while the block
 * is on a stack: the frame holds the closure. */
/* REC_LEAF: a jump in the arena, removed when the global is redefined (jit_calls.c). */
enum record_kind { REC_GOTO, REC_BODY, REC_GUARD, REC_LEAF };
struct jit_record {
	uint8_t record_kind;
	uint8_t version_kind;
	int16_t argc;
	uint32_t pc;
	uint32_t hits;
	uint32_t call; /* --arena, a loop by a tail call: index of the call instruction */
	struct code *code;
	struct slot_types types;
	struct ch_branch branch;
	uint8_t *arena_at, *arena_stub; /* of the displacement */
	struct cell *assumed;           /* --arena: the global that a call relies on */
};

/* struct jit_block: the user word of a block; freed by block_freed. The arena's stay. */
struct jit_block {
	int count;
	struct jit_record records[];
};

enum { MAX_RECORDS = MAX_SITES + 8, MAX_ASSUMED = 4, MAX_EXITS = 48 };

struct jit_vm {
	struct vm *vm;
	struct ch_vm *ch;
	int is_arena;
	const char *listings; /* folder; NULL: no listings */
	pthread_mutex_t lock; /* held while compiling; waited for parked */
	pthread_mutex_t list_lock;
	struct context **contexts; /* [list_lock] */
	int context_count, context_capacity;
	_Atomic int collect_wanted;
	_Atomic int is_full;
	_Atomic uint32_t full_tries;
	_Atomic int trampolines_full;
	_Atomic uint32_t trampoline_tries;
	int64_t calls; /* for --discard-every */
	_Atomic int64_t side_exits, compiled, collections;
	_Atomic int64_t returns_into_invalidated;
	int keeps_interrupt;
	struct jit_record **assumed; /* --arena [lock] */
	int assumed_count, assumed_capacity;
	value *kept; /* --arena [lock] */
	int kept_count, kept_capacity;
	struct emitter *emitter;     /* [lock] */
};

/* struct compilation: one block in the making. */
struct compilation {
	struct jit_vm *jit;
	struct context *ctx;
	struct emitter *e;
	struct code *code;
	value *fp; /* live values of the frame that wants the code */
	enum version_kind kind;
	struct slot_types types;
	uint64_t written; /* typed slots whose live value differs from the value at run time */
	enum { LIKELY_UNKNOWN, LIKELY_YES, LIKELY_NO } likely; /* of a test, by the live values */
	uint64_t from_calls;                                   /* slots with results of calls */
	int r0_slot,
		r0_fresh; /* slot whose value R0 holds after, and before, an instruction; or -1 */
	int is_bare;      /* no frame, no stack check yet: nothing was written, no calls made */
	const struct insn *pc;
	const struct insn *go_on; /* continuation in this block; NULL: the next instruction */
	int record_count;
	struct jit_record records[MAX_RECORDS];
	int assumed_count;
	struct cell *assumed[MAX_ASSUMED];
	value assumed_value[MAX_ASSUMED];
	int exit_count;
	struct {
		int label;
		const struct insn *pc;
	} exits[MAX_EXITS];
	uint32_t start;
	int is_done;
};

static inline struct jit_vm *jit_of(struct context *ctx)
{
	return ctx->vm->jit;
}
/* Returns false for an arena, and for an interpreter without trampolines. */
static inline int jit_has_heap(struct context *ctx)
{
	return jit_of(ctx) && !jit_of(ctx)->is_arena;
}
static inline uint32_t pc_index(const struct code *code, const struct insn *pc)
{
	return (uint32_t)(pc - code->insns);
}

/* ---- jit.c ---- */
/* Returns NULL, or a message why the VM cannot have machine code. */
const char *jit_start(struct vm *vm);
void jit_stop(struct vm *vm);
struct ch_heap *jit_heap(void);
const char *jit_listing_folder(const char *name);
const char *jit_listing_write(struct context *ctx, const char *folder, const struct code *code,
			      const char *title);
/* The line of an instruction in its listing or source, or of the procedure if pc is NULL. */
static inline uint32_t jit_line(const struct code *code, const struct insn *pc)
{
	const struct method *method = code->jit;

	if (method->has_listing)
		return pc ? 2 + pc_index(code, pc) : 1;
	return pc ? code->lines[pc_index(code, pc)] : (uint32_t)code->line;
}
int jit_shows_lines(void); /* blocks need source lines */
uint64_t jit_returns_into_invalidated(struct vm *vm);
void jit_count_left(struct context *ctx); /* called by jit_left_thunk */
void jit_lock(struct jit_vm *jit);
void jit_unlock(struct jit_vm *jit);
void jit_interrupt_all(struct jit_vm *jit);
void jit_collect(struct context *ctx);
int arena_assume(struct jit_vm *jit, struct jit_record *record);

/* ---- jit_ops.c: bytecode to emitter calls ---- */
enum slot_type type_of_value(value v);
void compile_code(struct compilation *c, uint32_t pc);
int add_record(struct compilation *c, enum record_kind kind, struct code *code,
	       enum version_kind version, uint32_t pc);
int exit_label(struct compilation *c, const struct insn *pc);
void end_with_goto(struct compilation *c, uint32_t pc);
int guard_label(struct compilation *c, const struct insn *pc);
enum slot_type observe(struct compilation *c, int slot); /* known type, or type of the live value */
void note_write(struct compilation *c, int slot, enum slot_type type);
void finish_slot(struct compilation *c, int slot, enum slot_type type); /* R0 holds the value */
void load_slot(struct compilation *c, enum emit_reg to,
	       int slot); /* from R0 if R0 holds the slot */
void store_pc(struct compilation *c, const struct insn *pc);
/* Goes to label unless reg holds an object with this header. */
void test_object(struct compilation *c, enum emit_reg reg, uint64_t header, int label);
void emit_poll(struct compilation *c, const struct insn *pc, const struct insn *exit);
void call_c(struct compilation *c, const struct insn *pc,
	    const void *function); /* ARG1.. are set */

/* ---- jit_numbers.c ---- */
enum emit_cond fixnum_condition(const struct insn *pc); /* when pc jumps */
void compile_arithmetic(struct compilation *c, const struct insn *pc);
void compile_compare(struct compilation *c, const struct insn *pc,
		     void (*two_way)(struct compilation *c, enum emit_cond cond,
				     const struct insn *yes, const struct insn *no));

/* ---- jit_calls.c ---- */
void compile_entry(struct compilation *c);
void compile_body(struct compilation *c);
void set_up_frame(struct compilation *c);
int is_bare_call(const struct compilation *c, const struct insn *pc);
void compile_call(struct compilation *c, const struct insn *pc);
void compile_apply(struct compilation *c, const struct insn *pc);

/* ---- jit_block.c: the place of a block, in the heap or in the arena ---- */
enum place { PLACED, PLACE_FULL, PLACE_RETRY, PLACE_FAILED };
enum place block_place(struct compilation *c, struct method *method, struct version *version);
const void *version_address(struct jit_vm *jit, const struct version *version);
void record_link(struct jit_vm *jit, struct jit_record *record, const struct version *version);
int arena_start(void);
uint64_t arena_bytes(void);

/* ---- trampolines.c: names for interpreted procedures ---- */
machine_entry trampoline_entry; /* entry of closures without machine code */
value trampoline_run(struct context *ctx, value *fp, const struct insn *pc);

/* ---- jit_cache.c: versions, and the targets of unlinked branches ---- */
void jit_name_of(const struct code *code, char *text, size_t bytes); /* bytes >= 160 */
struct method *method_of(struct context *ctx, struct code *code);
machine_entry jit_enter, jit_loop_entry; /* fixed code, which calls the functions below */
value jit_interpret(struct context *ctx, value *fp, int64_t argc);
const void *jit_entry_target(struct context *ctx, value *fp);
const void *jit_guard_exit(struct context *ctx, value *fp, struct jit_record *record);
/* The address at which to go on. The caller decides the meaning of arg2. */
enum { TARGET_ENTRY, TARGET_POINT, TARGET_INTERPRETER };
struct jit_target {
	const void *at;
	uint64_t arg2;
};
struct jit_target jit_tail_target(struct context *ctx);
struct jit_target jit_loop_target(struct context *ctx, value *fp);
struct jit_target jit_arena_hit(struct jit_record *record, struct context *ctx, value *fp,
				uint64_t argc);
struct ch_block jit_branch_hit(void *vm_user, struct ch_branch branch, void *user,
			       struct ch_regs *regs);
void jit_invalidate(struct jit_vm *jit, struct code *code);
extern const void *const jit_unowned_cell;

/* ---- jit_primitives.c, jit_disassemble.c ---- */
value jit_disassemble(struct context *ctx, value *args, int64_t argc);
