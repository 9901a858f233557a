/* SPDX-License-Identifier: MIT
 * peer_none.c: stands in for AsmJit where AsmJit is not installed: the columns stay empty. */
#include "bench/bench.h"

#if !CH_BENCH_ASMJIT

const char *peer_asmjit_name(bool fill)
{
	(void)fill;
	return "AsmJit is not installed";
}
struct peer_asmjit *peer_asmjit_open(bool fill)
{
	(void)fill;
	return NULL;
}
void peer_asmjit_close(struct peer_asmjit *peer)
{
	(void)peer;
}
bool peer_asmjit_alloc(struct peer_asmjit *peer, size_t bytes, void **exec, void **write)
{
	(void)peer;
	(void)bytes;
	(void)exec;
	(void)write;
	return false;
}
void peer_asmjit_release(struct peer_asmjit *peer, void *exec)
{
	(void)peer;
	(void)exec;
}
bool peer_asmjit_query(struct peer_asmjit *peer, void *pc)
{
	(void)peer;
	(void)pc;
	return false;
}
size_t peer_asmjit_reserved(struct peer_asmjit *peer)
{
	(void)peer;
	return 0;
}

#else
/* A translation unit is not empty in ISO C. */
extern int peer_none_is_empty;
#endif
