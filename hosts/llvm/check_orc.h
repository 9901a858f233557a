/* SPDX-License-Identifier: MIT
 * check_orc.h: an LLJIT on a heap, for the checks of the object layers of ORC. */
#pragma once

#include "check_life.h"

#include <llvm/Bitcode/BitcodeReader.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/TargetSelect.h>

namespace check
{

inline llvm::ExitOnError must("check: ");

struct orc_world {
	ch_heap *heap = nullptr;
	std::unique_ptr<llvm::orc::LLJIT> jit;

	explicit orc_world(std::size_t pool_bytes)
	{
		ch_config config;
		llvm::InitializeNativeTarget();
		llvm::InitializeNativeTargetAsmPrinter();
		ch_config_init(&config);
		config.pool_bytes = pool_bytes;
		CHECK(ch_heap_create(&config, &heap) == CH_OK);
		CHECK(ch_thread_attach(heap, nullptr, nullptr) == CH_OK);
	}
	void create(llvm::orc::JITTargetMachineBuilder machine, unsigned compile_threads,
		    llvm::orc::LLJITBuilderState::ObjectLinkingLayerCreator creator)
	{
		machine.setCodeGenOptLevel(
			llvm::CodeGenOpt::None); // compile time is not under test
		jit = must(llvm::orc::LLJITBuilder()
				   .setJITTargetMachineBuilder(std::move(machine))
				   .setNumCompileThreads(compile_threads)
				   .setObjectLinkingLayerCreator(std::move(creator))
				   .create());
		jit->getMainJITDylib().addGenerator(
			must(llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess(
				jit->getDataLayout().getGlobalPrefix())));
		// A failed lookup is reported by its return value only.
		jit->getExecutionSession().setErrorReporter(
			[](llvm::Error e) { consumeError(std::move(e)); });
	}
	~orc_world()
	{
		CHECK(ch_thread_detach(heap) == CH_OK);
		CHECK(ch_heap_destroy(heap) == CH_OK);
	}
};

// A module in a JITDylib of its own: many modules may have the same names.
template <typename World> struct orc_module {
	World &w;
	llvm::orc::JITDylib &dylib;
	llvm::orc::ResourceTrackerSP tracker;
	static constexpr const char *constants = World::constants;

	orc_module(World &in, const char *file, const std::string &name)
	    : w(in), dylib(must(in.jit->createJITDylib(name))),
	      tracker(dylib.createResourceTracker())
	{
		auto context = std::make_unique<llvm::LLVMContext>();
		auto bytes = must(errorOrToExpected(llvm::MemoryBuffer::getFile(file)));
		auto m = must(parseBitcodeFile(*bytes, *context));
		m->setModuleIdentifier(name);
		dylib.addToLinkOrder(w.jit->getMainJITDylib());
		must(w.jit->addIRModule(
			tracker, llvm::orc::ThreadSafeModule(std::move(m), std::move(context))));
	}
	~orc_module()
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

} // namespace check
