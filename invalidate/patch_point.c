/* SPDX-License-Identifier: MIT
 * patch_point.c: attaches patch points, where a thread that returns into an invalidated block
 * leaves the block at once. One store of the architecture makes a point jump to its exit. */
#include "codeheap/base/why.h"
#include "arch/sites.h"
#include "codeheap/graph/handles.h"
#include "invalidate/invalidate.h"

enum ch_status ch_patch_point_attach(struct ch_block block, const void *at, const void *exit,
				     void *user)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(block, true, &s);
	if (status != CH_OK)
		return status;
	uintptr_t point = (uintptr_t)at, leads_to = (uintptr_t)exit;
	if (!ch__block_has(s.heap, s.block, point, CH_ARCH_DIVERTER_BYTES))
		return ch__because_outside(&s, "the point", point);
	struct ch_block holder = {0};
	if (!ch__block_has(s.heap, s.block, leads_to, 1)) {
		uint32_t generation, other = ch__find(s.heap, leads_to, &generation);
		const struct ch__block *there = ch__block_at(s.heap, other);
		if (!other || ch__block_is_data(s.heap, there) ||
		    !ch__block_has(s.heap, there, leads_to, 1))
			return ch__because_outside(&s, "in no code: the exit", leads_to);
		holder.bits = ch__handle(s.heap->id, other, generation);
	}
	if (!ch__arch_diverter_reaches(point, leads_to))
		return ch__because(CH_E_REACH, "the exit %lx is out of the point's reach",
				   leads_to);
	bool is_there = ch__arch_diverter_is_there(ch__pool_read(s.heap->pool, point));
	if (!is_there || !ch__sites_allow(&s, point, CH_ARCH_DIVERTER_BYTES, leads_to, false))
		return ch__because(CH_E_SITE, "the point %lx %s", point,
				   is_there ? "shares bytes with what is attached, or the exit "
					      "leads inside"
					    : "has other bytes than a patch point");
	/* Room for edge, point and user word comes first: a failure changes nothing (I15). */
	if ((status = ch__side_need(&s, holder.bits ? 3 : 2)) != CH_OK)
		return status;
	if (holder.bits && (status = ch__edge_add(&s, holder)) != CH_OK)
		return status;
	struct ch__item item = {ch__offset(s.heap, point), ch__offset(s.heap, leads_to)};
	struct ch__item second = {(uint32_t)(uintptr_t)user, (uint32_t)((uintptr_t)user >> 32)};
	status = ch__side_add(&s, CH__ITEM_POINT, item, &second);
	if (status != CH_OK)
		return status;
	ch__arch_diverter_write(ch__pool_lend(s.heap->pool, point), point, leads_to);
	ch__sites_note(&s);
	return CH_OK;
}
