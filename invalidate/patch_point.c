/* SPDX-License-Identifier: MIT
 * patch_point.c: patch points: where a thread that returns into an invalidated block leaves it at
 * once. One store of the architecture decides between falling through and jumping. */
#include "codeheap/graph/block_parts.h"
#include "codeheap/graph/find.h"
#include "codeheap/graph/handles.h"
#include "invalidate/patch_point.h"
#include "invalidate/sites.h"

static bool point_is_sound(struct ch__subject *s, uintptr_t point, uintptr_t exit)
{
	if (!ch__arch_diverter_is_there(ch__pool_read(s->heap->pool, point)))
		return false;
	if (exit > point && exit < point + CH_ARCH_DIVERTER_BYTES)
		return false;
	return ch__sites_have_room(s->heap, s->self, s->block, point, CH_ARCH_DIVERTER_BYTES,
				   false) &&
	       ch__sites_may_lead_to(s->heap, s->self, s->block, exit);
}

enum ch_status ch_patch_point_attach(struct ch_block block, const void *at, const void *exit,
				     void *user)
{
	struct ch__subject s;
	enum ch_status status = ch__subject_open_code(block, true, &s);
	if (status != CH_OK)
		return status;
	uintptr_t point = (uintptr_t)at, leads_to = (uintptr_t)exit;
	if (!ch__block_has(s.heap, s.block, point, CH_ARCH_DIVERTER_BYTES))
		return CH_E_ARG;
	if (!ch__pool_has(s.heap->pool, leads_to) || !ch__arch_diverter_reaches(point, leads_to))
		return CH_E_REACH;
	struct ch_block holder = {0};
	if (!ch__block_has(s.heap, s.block, leads_to, 1)) {
		uint32_t generation, other = ch__find(s.heap, leads_to, &generation);
		if (!other || ch__block_is_data(s.heap, ch__block_at(s.heap, other)))
			return CH_E_ARG;
		holder.bits = ch__handle(s.heap->id, other, generation);
	}
	if (!point_is_sound(&s, point, leads_to))
		return CH_E_SITE;
	/* An edge and a point with its user: room for all before the first is written. */
	if ((status = ch__side_need(s.heap, s.self, s.block, 3)) != CH_OK)
		return status;
	if (holder.bits && (status = ch__edge_add(&s, holder)) != CH_OK)
		return status;
	struct ch__item item = {ch__offset(s.heap, point), ch__offset(s.heap, leads_to)};
	struct ch__item second = {(uint32_t)(uintptr_t)user, (uint32_t)((uintptr_t)user >> 32)};
	status = ch__side_add(s.heap, s.self, s.block, CH__ITEM_POINT, item, &second);
	if (status != CH_OK)
		return status;
	ch__arch_diverter_write(ch__pool_lend(s.heap->pool, point), point, leads_to);
	ch__sites_note(s.heap, s.self, s.block, point, CH_ARCH_DIVERTER_BYTES, leads_to);
	return CH_OK;
}

void ch__exits_divert(struct ch_heap *heap, uint32_t index)
{
	const struct ch__side_list *list = ch__block_at(heap, index)->side_list;
	for (uint32_t i = 0; list && i < list->count; i++) {
		if (list->kinds[i] != CH__ITEM_POINT)
			continue;
		uintptr_t exec = ch__exec(heap, ch__side_items(list)[i].at);
		CH_MOVE(ch__gate_moves, ch__side_items(list)[i].at, 0,
			ch__arch_diverter_is_armed(ch__pool_read(heap->pool, exec)), CH__GATE_SHUT,
			ch__held(heap), __func__);
		ch__arch_diverter_arm(ch__pool_write(heap->pool, exec), exec,
				      ch__exec(heap, ch__side_items(list)[i].value));
		ch__pool_sync(heap->pool, exec, CH_ARCH_DIVERTER_BYTES);
		CH_PUBLISHED(heap->pool, exec, CH_ARCH_DIVERTER_BYTES, "patch point");
		heap->patch_points_armed++;
	}
}
