/* SPDX-License-Identifier: MIT
 * codeheap_jitlink.h: code of LLVM 14's ORC on a code heap: a memory manager for JITLink.
 *
 *     auto manager = codeheap::JITLinkMemoryManager::Create(heap);
 *     auto jit = LLJITBuilder()
 *         .setObjectLinkingLayerCreator([&](ExecutionSession &session, const Triple &) {
 *             return std::make_unique<ObjectLinkingLayer>(session, **manager);
 *         }).create();
 *
 * Add no EHFrameRegistrationPlugin to the layer: the heap tells unwinders, for as long as the code
 * is there. The code outlives its ResourceTracker where a stack holds the code.
 *
 * All threads that run code are attached to the heap. Any thread may link and remove: one that is
 * not attached is for as long as it opens or commits blocks. */
#ifndef CODEHEAP_JITLINK_H
#define CODEHEAP_JITLINK_H

#include <codeheap/codeheap.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>

#include <memory>

namespace codeheap
{

class JITLinkMemoryManager final : public llvm::jitlink::JITLinkMemoryManager
{
      public:
	/* Returns the status of a failed ch_vm_attach as an error. */
	static llvm::Expected<std::unique_ptr<JITLinkMemoryManager>> Create(ch_heap *heap);
	/* After the ExecutionSession has ended; no thread runs code of the manager, or will. */
	~JITLinkMemoryManager() override;
	JITLinkMemoryManager(const JITLinkMemoryManager &) = delete;

	using llvm::jitlink::JITLinkMemoryManager::allocate;
	using llvm::jitlink::JITLinkMemoryManager::deallocate;
	void allocate(const llvm::jitlink::JITLinkDylib *, llvm::jitlink::LinkGraph &,
		      OnAllocatedFunction) override;
	void deallocate(std::vector<FinalizedAlloc>, OnDeallocatedFunction) override;

      private:
	class InFlight;
	struct Module;
	explicit JITLinkMemoryManager(ch_heap *H) : Heap(H)
	{
	}

	ch_heap *Heap;
	ch_vm *Vm = nullptr;
};

} // namespace codeheap
#endif
