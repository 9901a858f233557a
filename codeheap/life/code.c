/* SPDX-License-Identifier: MIT
 * code.c: ch_code_add: makes code of finished bytes in one call. */
#include "codeheap/base/why.h"

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
	status = ch_block_commit(&code, 1);
	if (status == CH_OK)
		memcpy(to, &code.exec, sizeof code.exec);
	else
		(void)!ch_block_abort(&code);
	return status;
}
