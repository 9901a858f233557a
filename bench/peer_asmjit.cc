// SPDX-License-Identifier: MIT
// peer_asmjit.cc: AsmJit's JitAllocator as a peer, behind the C interface of bench.h. The only file
// that includes AsmJit; peer_none.c stands in for it where AsmJit is not installed.
#include "bench/bench.h"

#include <asmjit/asmjit.h>

struct peer_asmjit {
	asmjit::JitAllocator *allocator;
};

extern "C" {

const char *peer_asmjit_name(bool fill)
{
	return fill ? "AsmJit kUseDualMapping|kFillUnusedMemory" : "AsmJit kUseDualMapping";
}

struct peer_asmjit *peer_asmjit_open(bool fill)
{
	asmjit::JitAllocator::CreateParams params;
	params.reset();
	params.options = asmjit::JitAllocatorOptions::kUseDualMapping;
	if (fill)
		params.options |= asmjit::JitAllocatorOptions::kFillUnusedMemory;
	return new peer_asmjit{new asmjit::JitAllocator(&params)};
}

void peer_asmjit_close(struct peer_asmjit *peer)
{
	delete peer->allocator;
	delete peer;
}

bool peer_asmjit_alloc(struct peer_asmjit *peer, size_t bytes, void **exec, void **write)
{
	return peer->allocator->alloc(exec, write, bytes) == asmjit::kErrorOk;
}

void peer_asmjit_release(struct peer_asmjit *peer, void *exec)
{
	peer->allocator->release(exec);
}

bool peer_asmjit_query(struct peer_asmjit *peer, void *pc)
{
	void *exec, *write;
	size_t bytes;
	return peer->allocator->query(pc, &exec, &write, &bytes) == asmjit::kErrorOk;
}

size_t peer_asmjit_reserved(struct peer_asmjit *peer)
{
	return peer->allocator->statistics().reservedSize();
}

} // extern "C"
