/* SPDX-License-Identifier: MIT
 * codeheap_rtdyld.h: the memory manager of codeheap_llvm.h for ORC's layer for RuntimeDyld, C++14.
 *
 *     [llvm](ExecutionSession &session, const Triple &) {
 *         return std::make_unique<RTDyldObjectLinkingLayer>(session, [llvm] {
 *             struct codeheap_llvm_module *module;
 *             LLVMMCJITMemoryManagerRef manager;
 *             if (codeheap_llvm_module_create(llvm, "query 17", &module, &manager))
 *                 ... // the layer takes no NULL
 *             return std::make_unique<codeheap::RTDyldManager>(manager);
 *         });
 *     }
 *
 * When an object fails, the layer of LLVM 14 frees the memory of the object's unwind tables, and
 * leaves them with the unwinder: the next unwinding reads freed memory. This manager takes them
 * back. The error of a full pool is the error of the lookup. */
#ifndef CODEHEAP_RTDYLD_H
#define CODEHEAP_RTDYLD_H

#include "codeheap_llvm.h"

#include <llvm/ExecutionEngine/RTDyldMemoryManager.h>

#include <memory>

namespace codeheap
{

class RTDyldManager final : public llvm::RuntimeDyld::MemoryManager
{
      public:
	explicit RTDyldManager(LLVMMCJITMemoryManagerRef Made) : M(llvm::unwrap(Made))
	{
	}
	~RTDyldManager() override
	{
		M->deregisterEHFrames(); // a second time does nothing
	}
	uint8_t *allocateCodeSection(uintptr_t Size, unsigned Alignment, unsigned Id,
				     llvm::StringRef Name) override
	{
		return M->allocateCodeSection(Size, Alignment, Id, Name);
	}
	uint8_t *allocateDataSection(uintptr_t Size, unsigned Alignment, unsigned Id,
				     llvm::StringRef Name, bool IsReadOnly) override
	{
		return M->allocateDataSection(Size, Alignment, Id, Name, IsReadOnly);
	}
	void registerEHFrames(uint8_t *At, uint64_t Load, size_t Size) override
	{
		M->registerEHFrames(At, Load, Size);
	}
	void deregisterEHFrames() override
	{
		M->deregisterEHFrames();
	}
	bool finalizeMemory(std::string *Why) override
	{
		return M->finalizeMemory(Why);
	}

      private:
	std::unique_ptr<llvm::RTDyldMemoryManager> M;
};

} // namespace codeheap
#endif
