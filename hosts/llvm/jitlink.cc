// SPDX-License-Identifier: MIT
// jitlink.cc: segments of a JITLink graph are blocks, one for each kind of access.
//
//   graph = an owner; the segments are committed together, kept until the owner is released, and
//           from then on live together, in a ring of edges
//   r-x     an ordinary block: JITLink writes at one address for another one
//   r--     a block of read-only data   rw-   a block of data; both are written in place
//   segments for the finalization only are not kept and have no in-edge: the stack of the
//   finalizing thread holds them until the end
//
// ORC calls deallocate when a ResourceTracker goes; then the owner is released.
#include "codeheap_jitlink.h"

#include <codeheap/codeheap.hpp>
#include <llvm/ExecutionEngine/JITLink/JITLink.h>

#include <vector>

#include "frames.h"

using namespace llvm;
using namespace llvm::jitlink;

namespace codeheap
{

namespace
{

constexpr size_t SegmentsMost = 12; // 6 kinds of access, each to last or for the finalization only

Error failure(const Twine &What, const Twine &Why)
{
	return make_error<StringError>("codeheap: " + What + ": " + Why, inconvertibleErrorCode());
}

// ORC's threads come and go between calls: one that is not attached is so for a call, and no
// collection waits for it.
using Guest = attached;

struct Segment {
	ch_code Code = {};
	ch_kind Kind = CH_KIND_CODE;
	size_t Start = 0, Bytes = 0; // in the block
	bool IsForFinalize = false;
};

} // namespace

// A finalized allocation.
struct JITLinkMemoryManager::Module {
	ch_owner Owner;
	std::vector<orc::shared::WrapperFunctionCall> DeallocActions;
};

class JITLinkMemoryManager::InFlight final
    : public llvm::jitlink::JITLinkMemoryManager::InFlightAlloc
{
      public:
	InFlight(codeheap::JITLinkMemoryManager &M, LinkGraph &Graph) : Manager(M), G(Graph)
	{
	}
	~InFlight() override
	{
		forget();
	}

	Error open();
	void abandon(OnAbandonedFunction OnAbandoned) override
	{
		forget();
		OnAbandoned(Error::success());
	}
	void finalize(OnFinalizedFunction OnFinalized) override;

      private:
	Error openSegment(AllocGroup Group, BasicLayout::Segment &Wanted);
	Error makeTables();
	Error commit();
	Error publish(Module &M);
	void forget();

	codeheap::JITLinkMemoryManager &Manager;
	LinkGraph &G;
	ch_owner Owner = {};
	std::vector<Segment> Segments;
	bool IsOpen = false;
};

Error JITLinkMemoryManager::InFlight::openSegment(AllocGroup Group, BasicLayout::Segment &Wanted)
{
	MemProt Prot = Group.getMemProt();
	bool IsCode = (Prot & MemProt::Exec) != MemProt::None;
	bool IsWritten = (Prot & MemProt::Write) != MemProt::None;
	if (IsCode && IsWritten)
		return make_error<StringError>("codeheap: a segment wants to be written and run",
					       inconvertibleErrorCode());
	size_t Alignment = Wanted.Alignment.value();
	Segment &S = Segments.emplace_back(); // on the stack its addresses would hold the block
	S.Kind = IsCode ? CH_KIND_CODE : IsWritten ? CH_KIND_DATA : CH_KIND_RODATA;
	S.IsForFinalize = Group.getMemDeallocPolicy() == MemDeallocPolicy::Finalize;
	S.Bytes = Wanted.ContentSize + Wanted.ZeroFillSize;
	ch_open Open = {};
	Open.size = sizeof Open;
	Open.owner = Owner;
	Open.kind = S.Kind;
	Open.flags = (IsCode ? CH_OPEN_OWN_FRAMES : CH_OPEN_IN_PLACE) |
		     (S.IsForFinalize ? 0 : CH_OPEN_KEPT);
	Open.hot_bytes = static_cast<uint32_t>(std::min<size_t>(S.Bytes + Alignment, UINT32_MAX));
	if (ch_block_open(&Open, &S.Code) != CH_OK)
		return failure("no block for a segment", ch_why());
	S.Start = alignTo(reinterpret_cast<uintptr_t>(S.Code.exec), Alignment) -
		  reinterpret_cast<uintptr_t>(S.Code.exec);
	Wanted.WorkingMem = reinterpret_cast<char *>(S.Code.write + S.Start);
	Wanted.Addr = orc::ExecutorAddr::fromPtr(S.Code.exec + S.Start);
	memset(Wanted.WorkingMem + Wanted.ContentSize, 0, Wanted.ZeroFillSize);
	return Error::success();
}

Error JITLinkMemoryManager::InFlight::open()
{
	Guest Here(Manager.Heap);
	BasicLayout Layout(G);
	if (ch_owner_create(Manager.Vm, G.getName().c_str(), nullptr, nullptr, &Owner) != CH_OK)
		return failure("no owner for a graph", ch_why());
	IsOpen = true;
	for (auto &KV : Layout.segments())
		if (Error E = openSegment(KV.first, KV.second))
			return E;
	return Layout.apply();
}

// Tables are made from the section that JITLink fixed up: data, written where it will be read.
Error JITLinkMemoryManager::InFlight::makeTables()
{
	std::vector<frames_range> Ranges(Segments.size());
	for (size_t I = 0; I < Segments.size(); I++) {
		uintptr_t Exec = reinterpret_cast<uintptr_t>(Segments[I].Code.exec);
		Ranges[I].low = Exec;
		Ranges[I].high = Exec + Segments[I].Start + Segments[I].Bytes;
	}
	frames_status Status = FRAMES_OK;
	if (Section *Frames = G.findSectionByName(".eh_frame")) {
		SectionRange Range(*Frames);
		auto At = static_cast<uintptr_t>(Range.getStart().getValue());
		Status = frames_add(reinterpret_cast<const uint8_t *>(At), Range.getSize(), At,
				    Ranges.data(), Ranges.size());
	}
	const char *Why = Status == FRAMES_NO_MEMORY ? "no memory" : "LLVM's are malformed";
	for (size_t I = 0; I < Segments.size() && Status == FRAMES_OK; I++)
		if (Segments[I].Kind == CH_KIND_CODE &&
		    frames_give(&Ranges[I], Owner, 0, &Segments[I].Code) != CH_OK) {
			Status = FRAMES_NO_MEMORY;
			Why = ch_why();
		}
	frames_free(Ranges.data(), Ranges.size());
	return Status == FRAMES_OK ? Error::success() : failure("unwind tables", Why);
}

// The segments that last come first, in a ring. Those for the finalization have edges into the
// ring, and no edge leads back.
Error JITLinkMemoryManager::InFlight::commit()
{
	auto Ring = std::stable_partition(Segments.begin(), Segments.end(),
					  [](const Segment &S) { return !S.IsForFinalize; });
	if (Error E = makeTables())
		return E;
	std::vector<ch_code> Codes;
	for (auto S = Segments.begin(); S != Segments.end(); ++S) {
		auto To = S + 1 < Ring ? S + 1 : Segments.begin();
		if (S != To && ch_edge_attach(S->Code.block, To->Code.block) != CH_OK)
			return failure("an edge", ch_why());
		S->Code.used_to = static_cast<uint32_t>(S->Start + S->Bytes);
		Codes.push_back(S->Code);
	}
	if (!Codes.empty() && ch_block_commit(Codes.data(), Codes.size()) != CH_OK)
		return failure("a graph's blocks could not be committed", ch_why());
	return Error::success();
}

Error JITLinkMemoryManager::InFlight::publish(Module &M)
{
	Guest Here(Manager.Heap);
	if (Error E = commit())
		return E;
	const void *Held[SegmentsMost];
	for (size_t I = 0; I < SegmentsMost; I++)
		Held[I] = I < Segments.size() ? Segments[I].Code.exec : nullptr;
	auto *Kept = Held;
	asm volatile("" : : "r"(Kept) : "memory"); // written, and there while the actions run
	auto Actions = orc::shared::runFinalizeActions(G.allocActions());
	asm volatile("" : : "r"(Kept) : "memory");
	for (size_t I = 0; I < SegmentsMost; I++)
		Held[I] = nullptr;
	if (!Actions)
		return Actions.takeError();
	M.DeallocActions = std::move(*Actions);
	return Error::success();
}

void JITLinkMemoryManager::InFlight::finalize(OnFinalizedFunction OnFinalized)
{
	auto M = std::make_unique<Module>();
	if (Error E = publish(*M)) {
		forget();
		OnFinalized(std::move(E));
		return;
	}
	M->Owner = Owner;
	IsOpen = false;
	OnFinalized(FinalizedAlloc(orc::ExecutorAddr::fromPtr(M.release())));
}

void JITLinkMemoryManager::InFlight::forget()
{
	if (!IsOpen)
		return;
	IsOpen = false;
	Guest Here(Manager.Heap);
	for (Segment &S : Segments)
		(void)!ch_block_abort(&S.Code); // CH_E_STATE of what was committed
	Segments.clear();
	if (ch_owner_release(Owner, CH_RELEASE_COLLECT) != CH_OK)
		report_fatal_error("codeheap: a graph's owner was released already");
}

// --- the manager ---

Expected<std::unique_ptr<JITLinkMemoryManager>> JITLinkMemoryManager::Create(ch_heap *Heap)
{
	std::unique_ptr<JITLinkMemoryManager> M(new JITLinkMemoryManager(Heap));
	ch_ops Ops = {};
	Ops.size = sizeof Ops;
	if (ch_vm_attach(Heap, &Ops, nullptr, &M->Vm) != CH_OK)
		return failure("a memory manager", ch_why());
	return M;
}

JITLinkMemoryManager::~JITLinkMemoryManager()
{
	if (Vm && ch_vm_detach(Vm) != CH_OK)
		report_fatal_error("codeheap: a memory manager could not be detached");
}

void JITLinkMemoryManager::allocate(const JITLinkDylib *, LinkGraph &G,
				    OnAllocatedFunction OnAllocated)
{
	auto Allocation = std::make_unique<InFlight>(*this, G);
	if (Error E = Allocation->open())
		OnAllocated(std::move(E));
	else
		OnAllocated(std::move(Allocation));
}

void JITLinkMemoryManager::deallocate(std::vector<FinalizedAlloc> Allocations,
				      OnDeallocatedFunction OnDeallocated)
{
	Error All = Error::success();
	while (!Allocations.empty()) {
		std::unique_ptr<Module> M(Allocations.back().release().toPtr<Module *>());
		Allocations.pop_back();
		All = joinErrors(std::move(All), orc::shared::runDeallocActions(M->DeallocActions));
		if (ch_owner_release(M->Owner, CH_RELEASE_COLLECT) != CH_OK)
			All = joinErrors(std::move(All), failure("a release", ch_why()));
	}
	OnDeallocated(std::move(All));
}

} // namespace codeheap
