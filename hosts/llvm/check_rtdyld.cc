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

// In code without a poll: each open collects where the pool is full.
void full_pool_is_collected_where_allowed(const char *file)
{
	world w(2 << 20, CODEHEAP_LLVM_MAY_COLLECT);
	const unsigned cycles = static_cast<unsigned>(check::times(4, 2));
	for (int i = 0; i < 400 && stats_of(w.heap).cycles < cycles; i++)
		life::load_and_drop(w, file, i);
	CHECK(stats_of(w.heap).cycles >= cycles);
}

const check::named_case cases[] = {
	{"exceptions_pass_code", life::exceptions_pass_code},
	{"dropped_on_the_stack_is_unwound_through", life::dropped_on_the_stack_is_unwound_through},
	{"dropped_on_the_stack_catches", life::dropped_on_the_stack_catches},
	{"many_modules_take_no_room", life::many_modules_take_no_room},
	{"access_is_never_write_and_execute", life::access_is_never_write_and_execute},
	{"full_pool_is_an_error", life::full_pool_is_an_error},
	{"full_pool_is_collected_where_allowed", full_pool_is_collected_where_allowed},
};

} // namespace

int main(int argc, char **argv)
{
	return check::run(cases, argc, argv);
}
