/* SPDX-License-Identifier: MIT
 * code_bytes.h: a block under construction, for the emitters of each architecture
 * (code_<arch>.h): what is emitted goes to the end of the hot part. */
#pragma once

#include "codeheap/codeheap.h"
#include "tests/support/harness.h"

#include <string.h>

struct emitter {
	struct ch_code code;
	uint32_t at; /* hot bytes emitted, from code.exec */
};

static inline void emit_bytes(struct emitter *e, const void *bytes, uint32_t count)
{
	if (e->at + count > e->code.hot_bytes)
		FAIL("emitted %u bytes into room for %u", e->at + count, e->code.hot_bytes);
	memcpy(e->code.write + e->at, bytes, count);
	e->at += count;
}
/* Units of code: the architecture's header defines CODE_UNIT as the type of one. */
#define EMIT(e, ...)                                      \
	emit_bytes((e), (const CODE_UNIT[]){__VA_ARGS__}, \
		   (uint32_t)sizeof((const CODE_UNIT[]){__VA_ARGS__}))

static inline void emit_u32(struct emitter *e, uint32_t word)
{
	emit_bytes(e, &word, sizeof word);
}
static inline void emit_u64(struct emitter *e, uint64_t word)
{
	emit_bytes(e, &word, sizeof word);
}
/* Exec address of the next emitted byte. */
static inline const uint8_t *emit_here(const struct emitter *e)
{
	return e->code.exec + e->at;
}
/* Commits all emitted bytes and sets the sizes; the entry stays where the caller set the entry. */
static inline enum ch_status emit_commit(struct emitter *e)
{
	e->code.used_to = e->at;
	return ch_block_commit(&e->code, 1);
}
