/* SPDX-License-Identifier: MIT
 * sink_libgcc.c: makes code known to the unwinder of the process, so that exceptions and backtraces
 * pass through code. sections.c has the tables of pages. docs/unwinders.md, section 2, says what
 * LLVM's libunwind needs besides. */
#include "unwind/unwinders.h"

extern void __register_frame_info(const void *begin, void *object);
extern void *__deregister_frame_info(const void *begin);
/* LLVM libunwind */
extern void __unw_add_dynamic_fde(uintptr_t fde) __attribute__((weak));
extern void __unw_remove_dynamic_fde(uintptr_t fde) __attribute__((weak));

/* LLVM's libunwind has a call for sections, too, but version 14 does not end at a section's end. */
static void each_fde(const uint8_t *section, void (*tell)(uintptr_t fde))
{
	struct ch__eh_frame_fde fde;
	for (size_t at = 0; tell && ch__eh_frame_next(section, &at, &fde);)
		if (fde.bytes)
			tell((uintptr_t)fde.record);
}

/* A table is an object of its own; that of a block is in chunks that have no other. */
static bool register_own(void *state, struct ch__own *own)
{
	(void)state;
	__register_frame_info(own->section, own->object);
	each_fde(own->section, __unw_add_dynamic_fde);
	return true;
}

static void deregister_own(void *state, struct ch__own *own)
{
	(void)state;
	if (!own->section)
		return;
	each_fde(own->section, __unw_remove_dynamic_fde);
	__deregister_frame_info(own->section);
}

static int open_libgcc(const struct ch__sinks_config *config, void **state)
{
	return ch__sections_open(config, &ch__sink_libgcc, state);
}

const struct ch__sink_ops ch__sink_libgcc = {
	.name = "unwind",
	.bit = CH_SINK_UNWIND,
	.open = open_libgcc,
	.close = ch__sections_close,
	.destroy = ch__sections_destroy,
	.page_live = ch__sections_live,
	.page_dead = ch__sections_dead,
	.chunk_gone = ch__sections_chunk_gone,
	.own_live = register_own,
	.own_dead = deregister_own,
	.fde_live = __unw_add_dynamic_fde,
	.fde_dead = __unw_remove_dynamic_fde,
};
