/* SPDX-License-Identifier: MIT
 * trampolines.c: names for interpreted procedures (--trampolines). Each activation of interp_run is
 * entered through a trampoline of its first procedure: a frame with the procedure's name, which
 * profilers, debuggers and unwinders see between two frames of the interpreter.
 *
 * Every non-tail call makes such a frame. Procedures have an entry other than interp_entry, so the
 * interpreter's loop leaves each call to this entry and never goes on in a callee. A tail call adds
 * no frame: the activation returns V_TAIL through its trampoline, and interp_finish, or the thunk
 * of machine code, enters the next procedure through the trampoline of that procedure.
 *
 * A procedure has one owner for its trampoline, beside the owner of the JIT, because entering
 * machine code has another convention. The owner's cell leads to the trampoline, or to interp_run
 * itself while there is no room for a trampoline; a discarded trampoline is made again. Owner and
 * trampoline die with the procedure's code.
 */
#define GC_THREADS
#include <gc/gc.h>

#include "jit.h"

typedef value run_activation(struct context *ctx, value *fp, const struct insn *pc);

enum { SPACE_TRIES = 64 };

struct named {
	void *anchor;
	struct ch_owner owner;
	const void *const *cell;
};

value trampoline_entry(struct context *ctx, value *fp, int64_t argc)
{
	return interp_entry(ctx, fp, argc);
}

/* Returns NULL without memory. */
static struct named *named_of(struct context *ctx, struct code *code)
{
	struct named *named = __atomic_load_n((struct named **)&code->trampoline, __ATOMIC_ACQUIRE);
	struct named *expected = NULL;
	char name[160];

	if (named)
		return named;
	named = GC_MALLOC(sizeof *named);
	if (!named)
		return NULL;
	jit_name_of(code, name, sizeof name);
	if (ch_bdw_owner_create(jit_of(ctx)->ch, name, (const void *)interp_run, NULL,
				&named->owner, &named->anchor) != CH_OK)
		return NULL;
	named->cell = ch_owner_cell(named->owner);
	if (!__atomic_compare_exchange_n((struct named **)&code->trampoline, &expected, named, 0,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return expected;
	return named;
}

/* Without room only the name is lost; another try follows now and then. */
static void make_trampoline(struct jit_vm *jit, const struct named *named)
{
	struct ch_block block;

	if (jit->trampolines_full && ++jit->trampoline_tries % SPACE_TRIES)
		return;
	enum ch_status status = ch_trampoline_make(named->owner, CH_TRAMPOLINE_FRAMED,
						   (const void *)interp_run, 0, NULL, NULL, &block);
	jit->trampolines_full = status != CH_OK;
	/* A block freed by another collection before it is the entry is made again later. */
	if (status == CH_OK && ch_owner_set_entry(named->owner, block) != CH_OK)
		return;
}

value trampoline_run(struct context *ctx, value *fp, const struct insn *pc)
{
	struct named *named = named_of(ctx, AS(closure, fp[-1])->code);

	if (!named)
		return interp_run(ctx, fp, pc);
	const void *entry = __atomic_load_n(named->cell, __ATOMIC_ACQUIRE);
	if (entry == (const void *)interp_run) {
		make_trampoline(jit_of(ctx), named);
		entry = __atomic_load_n(named->cell, __ATOMIC_ACQUIRE);
	}
	return ((run_activation *)entry)(ctx, fp, pc);
}
