/* SPDX-License-Identifier: MIT
 * llvm.cc: the functions as IR, compiled and held by LLVM 14's LLJIT with its usual memory manager.
 * LLVM's listener for perf is attached, as in LLVM's own tool lli. */
#include "why.h"

#include <llvm-c/Core.h>
#include <llvm-c/ExecutionEngine.h>
#include <llvm-c/IRReader.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/OrcEE.h>
#include <llvm-c/Target.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

static LLVMOrcLLJITRef jit;
static std::map<void *, LLVMOrcResourceTrackerRef> trackers;
static std::mutex trackers_lock;
static std::atomic<unsigned> modules;

static LLVMOrcObjectLayerRef layer_with_listener(void *, LLVMOrcExecutionSessionRef session,
						 const char *)
{
	LLVMOrcObjectLayerRef layer =
		LLVMOrcCreateRTDyldObjectLinkingLayerWithSectionMemoryManager(session);
	if (LLVMJITEventListenerRef listener = LLVMCreatePerfJITEventListener())
		LLVMOrcRTDyldObjectLinkingLayerRegisterJITEventListener(layer, listener);
	return layer;
}

static bool failed(LLVMErrorRef error)
{
	if (error)
		LLVMConsumeError(error);
	return error != nullptr;
}

static bool llvm_start()
{
	LLVMInitializeNativeTarget();
	LLVMInitializeNativeAsmPrinter();
	LLVMOrcLLJITBuilderRef builder = LLVMOrcCreateLLJITBuilder();
	LLVMOrcLLJITBuilderSetObjectLinkingLayerCreator(builder, layer_with_listener, nullptr);
	return !failed(LLVMOrcCreateLLJIT(&jit, builder));
}

static LLVMOrcThreadSafeModuleRef module_of(const char *text)
{
	LLVMOrcThreadSafeContextRef shared = LLVMOrcCreateNewThreadSafeContext();
	LLVMModuleRef module = nullptr;
	char *message = nullptr;
	LLVMMemoryBufferRef buffer =
		LLVMCreateMemoryBufferWithMemoryRangeCopy(text, std::strlen(text), "why");
	if (LLVMParseIRInContext(LLVMOrcThreadSafeContextGetContext(shared), buffer, &module,
				 &message))
		std::fprintf(stderr, "why: %s\n", message);
	LLVMOrcThreadSafeModuleRef made = LLVMOrcCreateNewThreadSafeModule(module, shared);
	LLVMOrcDisposeThreadSafeContext(shared);
	return made;
}

static void *llvm_make(kind kind, int number, const char *name)
{
	char text[400], unique[100];
	std::snprintf(unique, sizeof unique, "%s.%u", name, modules++);
	std::snprintf(
		text, sizeof text,
		"define i32 @\"%s\"(void ()* %%first) uwtable \"frame-pointer\"=\"all\" {\n%s\n"
		"ret i32 %d\n}\n",
		unique, kind == kind::CALLS_FIRST ? "call void %first()" : "", number);
	LLVMOrcResourceTrackerRef tracker =
		LLVMOrcJITDylibCreateResourceTracker(LLVMOrcLLJITGetMainJITDylib(jit));
	LLVMOrcExecutorAddress address = 0;
	if (failed(LLVMOrcLLJITAddLLVMIRModuleWithRT(jit, tracker, module_of(text))) ||
	    failed(LLVMOrcLLJITLookup(jit, &address, unique)))
		return nullptr;
	void *made = reinterpret_cast<void *>(address);
	std::lock_guard<std::mutex> lock(trackers_lock);
	trackers[made] = tracker;
	return made;
}

static void llvm_release(void *code, bool)
{
	LLVMOrcResourceTrackerRef tracker;
	{
		std::lock_guard<std::mutex> lock(trackers_lock);
		tracker = trackers[code];
		trackers.erase(code);
	}
	if (failed(LLVMOrcResourceTrackerRemove(tracker)))
		std::fputs("why: not removed\n", stderr);
	LLVMOrcReleaseResourceTracker(tracker);
}
const peer llvm_orc = {"LLVM", llvm_start, llvm_make, llvm_release};
