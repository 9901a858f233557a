/* SPDX-License-Identifier: MIT
 * codeheap_llvm.h: code of LLVM 14 on a code heap: an MCJIT memory manager for LLVM's C API.
 *
 *     struct codeheap_llvm *llvm;
 *     codeheap_llvm_create(heap, 0, &llvm);
 *     ...
 *     struct codeheap_llvm_module *module;
 *     codeheap_llvm_module_create(llvm, "query 17", &module, &options.MCJMM);
 *     LLVMCreateMCJITCompilerForModule(&engine, m, &options, sizeof options, &text);
 *     uint64_t f = LLVMGetFunctionAddress(engine, "f");
 *     if (codeheap_llvm_module_error(module)) ... // f must not be called
 *     ...
 *     LLVMDisposeExecutionEngine(engine); // the code goes when no stack holds it
 *
 * All calls that compile or dispose of an engine, and all code, run in threads that are attached to
 * the heap; one thread compiles all of an engine. Names in sinks are the module's. Where malloc
 * fails, or an engine is left, ch_why has no sentence: ch_status_text. */
#ifndef CODEHEAP_LLVM_H
#define CODEHEAP_LLVM_H

#include <codeheap/codeheap.h>
#include <llvm-c/ExecutionEngine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* LLVM's part of a heap: a vm. */
struct codeheap_llvm;
/* The part of a heap for a memory manager, and so for an engine. */
struct codeheap_llvm_module;

enum codeheap_llvm_flags {
	/* The compiling threads hold no lock that an attached thread may wait for unparked, save
	 * LLVM's of the engine: a full pool is collected before a module is refused. */
	CODEHEAP_LLVM_MAY_COLLECT = 1,
};

/* codeheap_llvm_create: let a heap hold LLVM's code.
 * in    flags  set of enum codeheap_llvm_flags
 * out   llvm   NULL on failure
 * ret   CH_OK | CH_E_MEMORY | a status of ch_vm_attach */
CH_CHECKED enum ch_status codeheap_llvm_create(struct ch_heap *heap, unsigned flags,
					       struct codeheap_llvm **llvm);

/* codeheap_llvm_destroy: every engine is disposed of, and no thread runs its code, or will.
 * ret   CH_OK | CH_E_BUSY an engine is left: nothing was done */
CH_CHECKED enum ch_status codeheap_llvm_destroy(struct codeheap_llvm *llvm);

/* codeheap_llvm_module_create: a memory manager, for one engine.
 * in    name     copied; what sinks and traps say
 * out   module   valid until the engine is disposed of; NULL on failure
 *       manager  for LLVMMCJITCompilerOptions.MCJMM; the engine takes the manager, and disposes of
 *                it also where LLVMCreateMCJITCompilerForModule fails
 * ret   CH_OK | CH_E_MEMORY */
CH_CHECKED enum ch_status codeheap_llvm_module_create(struct codeheap_llvm *llvm, const char *name,
						      struct codeheap_llvm_module **module,
						      LLVMMCJITMemoryManagerRef *manager);

/* codeheap_llvm_module_error: whether the compiled code may run. LLVM 14's MCJIT ignores the errors
 * of a memory manager and returns addresses all the same: ask after the first call that compiles,
 * and after each LLVMAddModule and the call that compiles the added module.
 * ret   NULL = the code may run; else a sentence, valid while the module is */
const char *codeheap_llvm_module_error(const struct codeheap_llvm_module *module);

#ifdef __cplusplus
}
#endif
#endif
