// SPDX-License-Identifier: MIT
// check_jitlink.cc: the JITLink memory manager under an LLJIT: code runs, is unwound through, is
// removed with its ResourceTracker, and collected when no stack holds it.
#include "check_life.h"

#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <llvm/Support/TargetSelect.h>

#include "codeheap_jitlink.h"

using namespace llvm;
using namespace llvm::orc;

namespace
{

ExitOnError must("check_jitlink: ");

struct world {
	ch_heap *heap = nullptr;
	std::unique_ptr<codeheap::JITLinkMemoryManager> manager;
	std::unique_ptr<LLJIT> jit;

	explicit world(std::size_t pool_bytes = 0)
	{
		ch_config config;
		InitializeNativeTarget();
		InitializeNativeTargetAsmPrinter();
		ch_config_init(&config);
		config.pool_bytes = pool_bytes;
		CHECK(ch_heap_create(&config, &heap) == CH_OK);
		CHECK(ch_thread_attach(heap, nullptr, nullptr) == CH_OK);
		manager = must(codeheap::JITLinkMemoryManager::Create(heap));
		auto machine = must(JITTargetMachineBuilder::detectHost());
		machine.setRelocationModel(Reloc::PIC_);
		machine.setCodeModel(CodeModel::Small);
		machine.setCodeGenOptLevel(CodeGenOpt::None); // compile time is not under test
		jit = must(LLJITBuilder()
				   .setJITTargetMachineBuilder(std::move(machine))
				   .setObjectLinkingLayerCreator([this](ExecutionSession &session,
									const Triple &) {
					   return std::make_unique<ObjectLinkingLayer>(session,
										       *manager);
				   })
				   .create());
		jit->getMainJITDylib().addGenerator(
			must(DynamicLibrarySearchGenerator::GetForCurrentProcess(
				jit->getDataLayout().getGlobalPrefix())));
		// A failed lookup is reported by its return value only.
		jit->getExecutionSession().setErrorReporter(
			[](Error e) { consumeError(std::move(e)); });
	}
	~world()
	{
		jit.reset();
		manager.reset();
		CHECK(ch_thread_detach(heap) == CH_OK);
		CHECK(ch_heap_destroy(heap) == CH_OK);
	}
};

// A module in a JITDylib of its own: many modules may have the same names.
struct loaded {
	world &w;
	JITDylib &dylib;
	ResourceTrackerSP tracker;
	// JITLink 14 asks for writable memory for an ELF object's constants, too.
	static constexpr const char *constants = "rw-";

	loaded(world &in, const char *file, const std::string &name)
	    : w(in), dylib(must(in.jit->createJITDylib(name))),
	      tracker(dylib.createResourceTracker())
	{
		auto context = std::make_unique<LLVMContext>();
		auto bytes = must(errorOrToExpected(MemoryBuffer::getFile(file)));
		auto m = must(parseBitcodeFile(*bytes, *context));
		m->setModuleIdentifier(name);
		dylib.addToLinkOrder(w.jit->getMainJITDylib());
		must(w.jit->addIRModule(tracker,
					ThreadSafeModule(std::move(m), std::move(context))));
	}
	~loaded()
	{
		drop();
	}
	void drop()
	{
		if (tracker)
			must(tracker->remove());
		tracker = nullptr;
	}
	template <typename F> F *function(const char *name)
	{
		auto symbol = must(w.jit->lookup(dylib, name));
		return reinterpret_cast<F *>(symbol.getAddress());
	}
	const void *data(const char *name)
	{
		return function<char>(name);
	}
	bool links()
	{
		auto found = w.jit->lookup(dylib, "thrown_inside");
		if (found)
			return true;
		consumeError(found.takeError());
		return false;
	}
};

using jitlink::AllocGroup;
using jitlink::SimpleSegmentAlloc;

Expected<SimpleSegmentAlloc> allocate(world &w,
				      std::initializer_list<std::pair<AllocGroup, int>> wanted)
{
	SimpleSegmentAlloc::SegmentMap segments;
	for (auto &[group, bytes] : wanted)
		segments[group] = {static_cast<std::size_t>(bytes), Align(256)};
	return SimpleSegmentAlloc::Create(*w.manager, nullptr, std::move(segments));
}

[[gnu::noinline]] jitlink::JITLinkMemoryManager::FinalizedAlloc
fill(world &w, AllocGroup data, AllocGroup once, std::uintptr_t *hidden)
{
	auto both = must(allocate(w, {{data, 5000}, {once, 300}}));
	auto info = both.getSegInfo(data);
	std::memset(info.WorkingMem.data(), 7, 5000);
	*hidden = ~static_cast<std::uintptr_t>(info.Addr.getValue());
	return must(both.finalize());
}

[[gnu::noinline]] void look(std::uintptr_t hidden)
{
	auto *at = reinterpret_cast<volatile char *>(~hidden);
	CHECK(at[4999] == 7 && ~hidden % 256 == 0);
	at[4999] = 8;
	CHECK(check::rights_at(const_cast<char *>(at)).substr(0, 3) == "rw-");
}

// A graph without code, with a segment for the finalization only.
void segments_of_all_kinds(const char *)
{
	using jitlink::MemProt;
	world w;
	AllocGroup data(MemProt::Read | MemProt::Write);
	AllocGroup once(MemProt::Read, jitlink::MemDeallocPolicy::Finalize);
	check::freed freed(w.heap);
	std::uintptr_t hidden; // a hidden address: no word on the stack holds the block
	auto finalized = fill(w, data, once, &hidden);
	check::collect(w.heap);
	look(hidden);
	CHECK(freed.now() == 1);
	must(w.manager->deallocate(std::move(finalized)));
	check::collect(w.heap);
	CHECK(freed.now() == 3);
	// The heap refuses memory that is both writable and executable.
	auto refused =
		allocate(w, {{AllocGroup(MemProt::Read | MemProt::Write | MemProt::Exec), 64}});
	CHECK(!refused);
	consumeError(refused.takeError());
	check::sound(w.heap);
}

using life = check::life<world, loaded>;

const check::named_case cases[] = {
	{"exceptions_pass_code", life::exceptions_pass_code},
	{"dropped_on_the_stack_is_unwound_through", life::dropped_on_the_stack_is_unwound_through},
	{"dropped_on_the_stack_catches", life::dropped_on_the_stack_catches},
	{"many_modules_take_no_room", life::many_modules_take_no_room},
	{"access_is_never_write_and_execute", life::access_is_never_write_and_execute},
	{"full_pool_is_an_error", life::full_pool_is_an_error},
	{"segments_of_all_kinds", segments_of_all_kinds},
};

} // namespace

int main(int argc, char **argv)
{
	return check::run(cases, argc, argv);
}
