/* SPDX-License-Identifier: MIT
 * code.h: the emitters of the architecture that the tests are built for, and helpers for every
 * architecture. Each code_<arch>.h has the same functions; mk/hosts.mk names the header. */
#pragma once

#include "arch/arch.h"
#include "arch/sites.h"

/* An instruction of emit_moments: the place, whether a frame record exists there, and, without a
 * record, how many words were pushed onto the return address. */
struct code_moment {
	uint8_t at, words;
	bool has_record;
};

#include CH_TEST_CODE

/* A function that returns the value, or the end of one. */
static inline void emit_answer(struct emitter *e, uint32_t value)
{
	emit_value(e, value);
	emit_ret(e);
}

/* Emits the mark that an indirect branch may land on, where the library guards its pages. */
static inline void emit_landing(struct emitter *e)
{
	uint8_t landing[8] = {0};
	if (!CODE_LANDING_BYTES)
		return;
	ch__arch_landing_write(landing);
	emit_bytes(e, landing, CODE_LANDING_BYTES);
}

/* Opens a block as *open says, and fills in open->size. */
static inline enum ch_status emit_open_as(struct emitter *e, struct ch_open *open)
{
	bool is_marked = open->entry == CH_ENTRY_PATCH; /* the library has written the mark */
	open->size = sizeof *open;
	/* Cases that fill pages count bytes, so a large block gets no more. */
	uint32_t more = open->hot_bytes < 1024 ? CODE_LANDING_BYTES : 0;
	open->hot_bytes += more;
	enum ch_status status = ch_block_open(open, &e->code);
	open->hot_bytes -= more;
	e->at = e->code.entry_bytes;
	if (status == CH_OK && !is_marked)
		emit_landing(e);
	return status;
}
/* An ordinary block with some branches and room for code that has `hot` bytes on x86-64; the open
 * must succeed. */
static inline void emit_open(struct emitter *e, struct ch_owner owner, uint32_t hot,
			     uint32_t branches)
{
	struct ch_open open = {
		.owner = owner, .hot_bytes = CODE_ROOM(hot), .branch_room = branches};
	CHECK_EQ(emit_open_as(e, &open), CH_OK);
}

/* An emitter of the block's cold bytes; emit_cold_end says how many bytes are used. */
static inline struct emitter emit_cold(const struct emitter *e)
{
	struct emitter cold = {.code = e->code};
	cold.code.write = e->code.cold_write;
	cold.code.exec = e->code.cold_exec;
	cold.code.hot_bytes = e->code.cold_bytes;
	return cold;
}
static inline void emit_cold_end(struct emitter *e, const struct emitter *cold)
{
	e->code.cold_used = cold->at;
}

/* Attaches a site; the call must succeed. */
static inline struct ch_branch emit_attach(struct emitter *e, const void *at,
					   enum ch_branch_kind kind, void *user)
{
	struct ch_branch_site site = {.at = at, .kind = kind, .user = user};
	struct ch_branch branch;
	CHECK_EQ(ch_branch_attach(e->code.block, &site, &branch), CH_OK);
	return branch;
}
/* A jump to a branch of its own, as the last instruction of a block. */
static inline struct ch_branch emit_jmp(struct emitter *e, void *user)
{
	return emit_attach(e, emit_site_jmp(e), CH_JMP, user);
}

/* --- running --- */

static inline uint32_t code_call(const void *entry)
{
	return ((uint32_t(*)(void))(uintptr_t)entry)();
}
/* Calls through the owner's cell, as a VM does. */
static inline uint32_t code_call_owner(struct ch_owner owner)
{
	const void *const *cell = ch_owner_cell(owner);
	CHECK(cell);
	return code_call(__atomic_load_n(cell, __ATOMIC_ACQUIRE));
}
