// SPDX-License-Identifier: MIT
// check_mcjit.cc: the MCJIT memory manager from outside: how the drop of a module affects running
// code, exceptions that pass the code, and the heap; and a pool without room.
#include "check_life.h"

#include <llvm-c/BitReader.h>
#include <llvm-c/Core.h>
#include <llvm-c/Target.h>
#include <signal.h>
#include <thread>
#include <vector>

#include "codeheap_llvm.h"

namespace
{

using check::data_function;
using check::through_function;
using check::thrown_function;

struct world {
	ch_heap *heap = nullptr;
	codeheap_llvm *llvm = nullptr;

	explicit world(std::size_t pool_bytes = 0, unsigned flags = 0)
	{
		ch_config config;
		LLVMLinkInMCJIT();
		CHECK(!LLVMInitializeNativeTarget() && !LLVMInitializeNativeAsmPrinter());
		ch_config_init(&config);
		config.pool_bytes = pool_bytes;
		config.stop_signal = SIGRTMIN + 4;
		config.stop_wait_ms = 20000; // a loaded machine is no stopped thread's fault
		CHECK(ch_heap_create(&config, &heap) == CH_OK);
		CHECK(ch_thread_attach(heap, nullptr, nullptr) == CH_OK);
		CHECK(codeheap_llvm_create(heap, flags, &llvm) == CH_OK);
	}
	~world()
	{
		CHECK(codeheap_llvm_destroy(llvm) == CH_OK);
		CHECK(ch_thread_detach(heap) == CH_OK);
		CHECK(ch_heap_destroy(heap) == CH_OK);
	}
};

// One engine with one module of the file.
struct engine {
	world &w;
	LLVMContextRef context = nullptr;
	LLVMExecutionEngineRef jit = nullptr;
	codeheap_llvm_module *module = nullptr;
	static constexpr const char *constants = "r--";

	engine(world &in, const char *file, const std::string &name) : w(in)
	{
		LLVMMCJITCompilerOptions options;
		char *text = nullptr;
		context = LLVMContextCreate();
		LLVMInitializeMCJITCompilerOptions(&options, sizeof options);
		CHECK(codeheap_llvm_module_create(w.llvm, name.c_str(), &module, &options.MCJMM) ==
		      CH_OK);
		CHECK(!LLVMCreateMCJITCompilerForModule(&jit, read(file), &options, sizeof options,
							&text));
	}
	engine(const engine &) = delete;
	~engine()
	{
		drop();
	}
	LLVMModuleRef read(const char *file)
	{
		LLVMMemoryBufferRef bytes;
		LLVMModuleRef m;
		char *text = nullptr;
		CHECK(!LLVMCreateMemoryBufferWithContentsOfFile(file, &bytes, &text));
		CHECK(!LLVMParseBitcodeInContext2(context, bytes, &m));
		LLVMDisposeMemoryBuffer(bytes);
		return m;
	}
	void drop()
	{
		if (!jit)
			return;
		LLVMDisposeExecutionEngine(jit);
		LLVMContextDispose(context);
		jit = nullptr;
	}
	template <typename F> F *function(const char *name)
	{
		auto at = LLVMGetFunctionAddress(jit, name);
		CHECK(at != 0);
		return reinterpret_cast<F *>(static_cast<std::uintptr_t>(at));
	}
	const void *data(const char *name)
	{
		return reinterpret_cast<const void *>(LLVMGetGlobalValueAddress(jit, name));
	}
	bool links()
	{
		function<thrown_function>("thrown_inside");
		const char *error = codeheap_llvm_module_error(module);
		CHECK(!error || std::strstr(error, "no room"));
		return !error;
	}
};

using life = check::life<world, engine>;

void full_pool_is_collected_where_allowed(const char *file)
{
	world w(2 << 20, CODEHEAP_LLVM_MAY_COLLECT);
	life::goes_on_by_cycles(w, file);
}

// twice(n) = use_data(n) + use_data(n); use_data is in another module.
LLVMModuleRef second_module(LLVMContextRef context)
{
	LLVMModuleRef m = LLVMModuleCreateWithNameInContext("second", context);
	LLVMTypeRef word = LLVMInt64TypeInContext(context);
	LLVMTypeRef number = LLVMInt32TypeInContext(context);
	LLVMTypeRef type = LLVMFunctionType(word, &number, 1, 0);
	LLVMValueRef callee = LLVMAddFunction(m, "use_data", type);
	LLVMValueRef caller = LLVMAddFunction(m, "twice", type);
	LLVMBuilderRef b = LLVMCreateBuilderInContext(context);
	LLVMPositionBuilderAtEnd(b, LLVMAppendBasicBlockInContext(context, caller, "entry"));
	LLVMValueRef arg = LLVMGetParam(caller, 0);
	LLVMValueRef one = LLVMBuildCall2(b, type, callee, &arg, 1, "");
	LLVMValueRef two = LLVMBuildCall2(b, type, callee, &arg, 1, "");
	LLVMBuildRet(b, LLVMBuildAdd(b, one, two, ""));
	LLVMDisposeBuilder(b);
	return m;
}

[[gnu::noinline]] void run_in_two_batches(world &w, const char *file)
{
	engine e(w, file, "first");
	check::call_all(e);
	check::freed freed(w.heap);
	LLVMAddModule(e.jit, second_module(e.context));
	CHECK(LLVMGetFunctionAddress(e.jit, "twice") != 0);
	CHECK(!codeheap_llvm_module_error(e.module));
	collect(w.heap);
	CHECK(freed.now() == 0);
	long before = e.function<data_function>("use_data")(0);
	CHECK(e.function<data_function>("twice")(0) == 2 * before + 30);
	check::throw_through(e.function<through_function>("through"), 3);
}

void modules_of_one_engine_live_together(const char *file)
{
	world w;
	run_in_two_batches(w, file);
	auto committed = stats_of(w.heap).blocks_committed;
	CHECK(committed >= 4);
	collect(w.heap);
	CHECK(stats_of(w.heap).blocks_freed == committed);
	check_heap(w.heap);
}

void threads_throw_while_others_drop(const char *file)
{
	world w;
	engine e(w, file, "shared");
	check::call_all(e);
	auto *through = e.function<through_function>("through");
	std::vector<std::thread> threads;
	for (int t = 0; t < 2; t++)
		threads.emplace_back([&w, through] {
			CHECK(ch_thread_attach(w.heap, nullptr, nullptr) == CH_OK);
			for (int i = 0; i < 3000; i++)
				check::throw_through(through, i % 20);
			CHECK(ch_thread_detach(w.heap) == CH_OK);
		});
	for (int i = 0; i < 30; i++) {
		life::load_and_drop(w, file, i);
		CHECK(ch_heap_collect(w.heap) == CH_OK);
	}
	ch_thread_park();
	for (auto &t : threads)
		t.join();
	ch_thread_unpark();
	check_heap(w.heap);
}

void engine_that_never_ran_leaves_nothing(const char *file)
{
	world w;
	{
		engine unused(w, file, "unused");
	}
	codeheap_llvm_module *module;
	LLVMMCJITMemoryManagerRef manager;
	CHECK(codeheap_llvm_module_create(w.llvm, "no engine", &module, &manager) == CH_OK);
	CHECK(codeheap_llvm_destroy(w.llvm) == CH_E_BUSY);
	LLVMDisposeMCJITMemoryManager(manager);
	auto stats = stats_of(w.heap);
	CHECK(stats.blocks_now == 0 && stats.blocks_open_now == 0);
}

const check::named_case cases[] = {
	LIFE_CASES,
	{"full_pool_is_collected_where_allowed", full_pool_is_collected_where_allowed},
	{"modules_of_one_engine_live_together", modules_of_one_engine_live_together},
	{"threads_throw_while_others_drop", threads_throw_while_others_drop},
	{"engine_that_never_ran_leaves_nothing", engine_that_never_ran_leaves_nothing},
};

} // namespace

int main(int argc, char **argv)
{
	return check::run(cases, argc, argv);
}
