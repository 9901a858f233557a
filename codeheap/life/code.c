/* SPDX-License-Identifier: MIT
 * code.c: code that one call opens, fills and commits: code of finished bytes, and trampolines. A
 * trampoline is a block in a slot, with unwind data of its own (docs/design.md, section 5). Lock:
 * heap, as an open and a commit take it. */
#include "codeheap/life/life.h"

static enum ch_status commit_or_abort(struct ch_code *code)
{
	enum ch_status status = ch_block_commit(code, 1);
	int error = errno;
	/* A block whose commit is stale was aborted by the commit. */
	if (status != CH_OK && status != CH_E_STALE)
		(void)!ch_block_abort(code);
	/* CH_E_OS: of the commit. What the abort gives back may be refused, too. */
	errno = error;
	return status;
}

enum ch_status ch_code_add(struct ch_heap *heap, const void *bytes, size_t n, const char *name,
			   void *to)
{
	struct ch_code code;
	struct ch_open open = {
		.size = sizeof open, .heap = heap, .hot_bytes = (uint32_t)n, .name = name};
	if (!to)
		return ch__because(CH_E_ARG, "to is NULL");
	memset(to, 0, sizeof code.exec);
	if (!heap || !bytes)
		return ch__because(CH_E_ARG, "%s is NULL", heap ? "bytes" : "heap");
	if (!n || n > UINT32_MAX)
		return ch__because(CH_E_ARG, "n is %zu: not 1 to %u", n, UINT32_MAX);
	enum ch_status status = ch_block_open(&open, &code);
	if (status != CH_OK)
		return status;
	memcpy(code.write, bytes, n);
	code.used_to = (uint32_t)n;
	status = commit_or_abort(&code);
	if (status == CH_OK)
		memcpy(to, &code.exec, sizeof code.exec);
	return status;
}

enum ch_status ch_trampoline_make(struct ch_owner owner, enum ch_trampoline kind,
				  const void *target, uint64_t payload, const char *name,
				  void *user, struct ch_block *block)
{
	*block = (struct ch_block){0};
	if (ch__is_marking())
		return ch__because_marking();
	struct ch_heap *heap = ch__handle_heap(owner.bits);
	if (!heap || !ch__owner_is_live(heap, owner))
		return ch__because_stale("owner", owner.bits);
	if (!target)
		return ch__because(CH_E_ARG, "target is NULL");
	if ((unsigned)kind >= CH__TEMPLATES)
		return ch__because(CH_E_ARG, "kind is %d: not 0 to %d", (int)kind,
				   CH__TEMPLATES - 1);
	struct ch__thread *self = ch__thread_self(heap);
	enum ch_status status = ch__thread_need(heap, &self);
	if (status != CH_OK)
		return status;
	struct ch_open open = {.size = sizeof open, .owner = owner, .name = name, .user = user,
			       .hot_bytes = CH__SLOT_BYTES - CH__HEAD_BYTES,
			       .frame = (uint8_t)(CH__FRAME_SLOTS + kind)};
	struct ch_code code;
	ch__code_clear(&code);
	status = ch__block_open(heap, self, &open, &code);
	if (status != CH_OK)
		return status;
	(void)ch__arch_template_write(kind, code.write, (uintptr_t)target, payload);
	/* The block keeps the slot, to give it back whole. Behind the template are traps. */
	code.used_to = code.hot_bytes;
	status = commit_or_abort(&code);
	if (status == CH_OK)
		*block = code.block;
	return status;
}
