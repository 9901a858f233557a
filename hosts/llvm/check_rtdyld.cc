// SPDX-License-Identifier: MIT
// check_rtdyld.cc: the MCJIT memory manager under ORC's layer for RuntimeDyld, which makes a memory
// manager for each object.
#include "check_orc.h"

#include <llvm/ExecutionEngine/Orc/RTDyldObjectLinkingLayer.h>

#include "codeheap_rtdyld.h"

using namespace llvm::orc;

namespace
{

using check::must;

struct world : check::orc_world {
	codeheap_llvm *llvm = nullptr;
	static constexpr const char *constants = "r--";

	explicit world(std::size_t pool_bytes = 0, unsigned flags = 0)
	    : check::orc_world(pool_bytes)
	{
		CHECK(codeheap_llvm_create(heap, flags, &llvm) == CH_OK);
		create(must(JITTargetMachineBuilder::detectHost()), 0,
		       [this](ExecutionSession &session, const llvm::Triple &) {
			       return std::make_unique<RTDyldObjectLinkingLayer>(
				       session, [this] { return manager(); });
		       });
	}
	~world()
	{
		jit.reset();
		CHECK(codeheap_llvm_destroy(llvm) == CH_OK);
	}
	std::unique_ptr<codeheap::RTDyldManager> manager()
	{
		codeheap_llvm_module *module;
		LLVMMCJITMemoryManagerRef made;
		CHECK(codeheap_llvm_module_create(llvm, "object with rights", &module, &made) ==
		      CH_OK);
		return std::make_unique<codeheap::RTDyldManager>(made);
	}
};

using life = check::life<world, check::orc_module<world>>;

void full_pool_is_collected_where_allowed(const char *file)
{
	world w(2 << 20, CODEHEAP_LLVM_MAY_COLLECT);
	life::goes_on_by_cycles(w, file);
}

const check::named_case cases[] = {
	LIFE_CASES,
	{"full_pool_is_collected_where_allowed", full_pool_is_collected_where_allowed},
};

} // namespace

int main(int argc, char **argv)
{
	return check::run(cases, argc, argv);
}
