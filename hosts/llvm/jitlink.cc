// SPDX-License-Identifier: MIT
// jitlink.cc: segments of a JITLink graph are blocks, one for each kind of access.
//
//   graph = an owner; the segments are committed together and live together, in a ring of edges
//           with the owner's entry
//   r-x     an ordinary block: JITLink writes at one address for another one
//   r--     a block of read-only data   rw-   a block of data; both are written in place
//   segments for the finalization only have no in-edge: the stack of the finalizing thread holds
//   them until the end
//
// ORC calls deallocate when a ResourceTracker goes; then the owner is released.
#include "codeheap_jitlink.h"

#include <llvm/ExecutionEngine/JITLink/JITLink.h>

#include <vector>

#include "frames.h"
#include "tables.h"

using namespace llvm;
using namespace llvm::jitlink;

namespace codeheap
{

namespace
{

// 6 kinds of access, each to last or for the finalization only. Where a holder comes no code lasts.
constexpr size_t HolderBytes = 8, TableMostBytes = 1 << 20, SegmentsMost = 12;

void noEntry()
{
}

Error failure(const Twine &What, ch_status Status)
{
	return make_error<StringError>("codeheap: " + What + ": " + ch_status_text(Status),
				       inconvertibleErrorCode());
}

struct Segment {
	ch_code Code = {};
	ch_kind Kind = CH_KIND_CODE;
	table *Table = nullptr;
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
	Error openBlock(Segment &S, unsigned Flags);
	Error makeTables();
	Error attachEdges();
	Error commit();
	Error run(Module &M);
	void forget();

	codeheap::JITLinkMemoryManager &Manager;
	LinkGraph &G;
	ch_owner Owner = {};
	std::vector<Segment> Segments;
	bool IsOpen = false;
};

Error JITLinkMemoryManager::InFlight::openBlock(Segment &S, unsigned Flags)
{
	ch_open Open = {};
	Open.size = sizeof Open;
	Open.owner = Owner;
	Open.kind = S.Kind;
	Open.flags = Flags;
	if (S.Bytes > UINT32_MAX)
		return failure("a segment is too large", CH_E_FULL);
	Open.hot_bytes = static_cast<uint32_t>(S.Bytes);
	if (S.Kind == CH_KIND_CODE) {
		S.Table = table_new();
		if (!S.Table)
			return failure("a segment", CH_E_MEMORY);
		Open.user = S.Table;
	}
	ch_status Status = ch_block_open(&Open, &S.Code);
	if (Status != CH_OK) {
		table_free(S.Table);
		return failure("no block for a segment", Status);
	}
	Segments.push_back(S);
	return Error::success();
}

Error JITLinkMemoryManager::InFlight::openSegment(AllocGroup Group, BasicLayout::Segment &Wanted)
{
	MemProt Prot = Group.getMemProt();
	bool IsCode = (Prot & MemProt::Exec) != MemProt::None;
	bool IsWritten = (Prot & MemProt::Write) != MemProt::None;
	if (IsCode && IsWritten)
		return make_error<StringError>("codeheap: a segment wants to be written and run",
					       inconvertibleErrorCode());
	size_t Alignment = Wanted.Alignment.value();
	Segment S;
	S.Kind = IsCode ? CH_KIND_CODE : IsWritten ? CH_KIND_DATA : CH_KIND_RODATA;
	S.IsForFinalize = Group.getMemDeallocPolicy() == MemDeallocPolicy::Finalize;
	S.Bytes = Wanted.ContentSize + Wanted.ZeroFillSize + Alignment;
	if (Error E = openBlock(S, IsCode ? CH_OPEN_OWN_FRAMES : CH_OPEN_IN_PLACE))
		return E;
	Segment &Opened = Segments.back();
	Opened.Start = alignTo(reinterpret_cast<uintptr_t>(Opened.Code.exec), Alignment) -
		       reinterpret_cast<uintptr_t>(Opened.Code.exec);
	Opened.Bytes = Wanted.ContentSize + Wanted.ZeroFillSize;
	Wanted.WorkingMem = reinterpret_cast<char *>(Opened.Code.write + Opened.Start);
	Wanted.Addr = orc::ExecutorAddr::fromPtr(Opened.Code.exec + Opened.Start);
	memset(Wanted.WorkingMem + Wanted.ContentSize, 0, Wanted.ZeroFillSize);
	return Error::success();
}

Error JITLinkMemoryManager::InFlight::open()
{
	BasicLayout Layout(G);
	ch_status Status =
		ch_owner_create(Manager.Vm, G.getName().c_str(),
				reinterpret_cast<const void *>(noEntry), nullptr, &Owner);
	if (Status != CH_OK)
		return failure("no owner for a graph", Status);
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
	bool IsLarge = false;
	for (size_t I = 0; I < Segments.size() && Status == FRAMES_OK; I++) {
		IsLarge |= Ranges[I].bytes + 4 > TableMostBytes;
		if (!Segments[I].Table)
			continue;
		Segments[I].Table->bytes = Ranges[I].table;
		Segments[I].Code.eh_frame = Ranges[I].table;
		Ranges[I].table = nullptr;
	}
	frames_free(Ranges.data(), Ranges.size());
	if (IsLarge)
		return failure("an unwind table is over 1 MiB", CH_E_FULL);
	if (Status != FRAMES_OK)
		return failure("unwind tables",
			       Status == FRAMES_NO_MEMORY ? CH_E_MEMORY : CH_E_ARG);
	return Error::success();
}

// The first segment is code that lasts: the owner's entry. Segments for the finalization have
// edges into the ring, and no edge leads back.
Error JITLinkMemoryManager::InFlight::attachEdges()
{
	ch_status Status = CH_OK;
	size_t Ring = 0;
	while (Ring < Segments.size() && !Segments[Ring].IsForFinalize)
		Ring++;
	for (size_t I = 0; I < Segments.size() && Status == CH_OK; I++) {
		size_t To = I + 1 < Ring ? I + 1 : 0;
		if (I != To)
			Status = ch_edge_attach(Segments[I].Code.block, Segments[To].Code.block);
	}
	return Status == CH_OK ? Error::success() : failure("an edge", Status);
}

Error JITLinkMemoryManager::InFlight::commit()
{
	auto IsHolder = [](const Segment &S) { return S.Kind == CH_KIND_CODE && !S.IsForFinalize; };
	if (none_of(Segments, IsHolder)) {
		Segment S;
		S.Bytes = HolderBytes;
		if (Error E = openBlock(S, 0))
			return E;
	}
	auto Rank = [&](const Segment &S) { return IsHolder(S) ? 0 : S.IsForFinalize ? 2 : 1; };
	std::stable_sort(Segments.begin(), Segments.end(),
			 [&](const Segment &A, const Segment &B) { return Rank(A) < Rank(B); });
	if (Error E = makeTables())
		return E;
	if (Error E = attachEdges())
		return E;
	std::vector<ch_code> Codes;
	for (Segment &S : Segments) {
		S.Code.used_to = static_cast<uint32_t>(S.Start + S.Bytes);
		Codes.push_back(S.Code);
	}
	ch_status Status = ch_block_commit(Codes.data(), Codes.size());
	if (Status != CH_OK)
		return failure("a graph's blocks could not be committed", Status);
	// From here on each block owns a table; OnBlockFreed frees the table.
	ch_block Entry = Segments.front().Code.block;
	for (Segment &S : Segments)
		S.Code.block = {};
	Status = ch_owner_set_entry(Owner, Entry);
	return Status == CH_OK ? Error::success() : failure("an owner's entry", Status);
}

Error JITLinkMemoryManager::InFlight::run(Module &M)
{
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
	Error E = commit();
	if (!E)
		E = run(*M);
	if (E) {
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
	// A thread that is not attached cannot abort what another thread opened.
	bool IsGuest = ch_thread_attach(Manager.Heap, nullptr, nullptr) == CH_OK;
	for (Segment &S : Segments) {
		if (!S.Code.block.bits)
			continue;
		ch_status Status = ch_block_abort(&S.Code);
		// CH_E_STATE: a commit that found a block stale has aborted all.
		if (Status == CH_OK || Status == CH_E_STATE)
			table_free(S.Table);
	}
	Segments.clear();
	if (ch_owner_release(Owner, CH_RELEASE_COLLECT) != CH_OK)
		report_fatal_error("codeheap: a graph's owner was released already");
	if (IsGuest && ch_thread_detach(Manager.Heap) != CH_OK)
		report_fatal_error("codeheap: a thread could not be detached");
}

// --- the manager ---

void JITLinkMemoryManager::OnBlockFreed(void *, void *Table)
{
	table_free(static_cast<struct table *>(Table));
}

Expected<std::unique_ptr<JITLinkMemoryManager>> JITLinkMemoryManager::Create(ch_heap *Heap)
{
	std::unique_ptr<JITLinkMemoryManager> M(new JITLinkMemoryManager(Heap));
	ch_ops Ops = {};
	Ops.size = sizeof Ops;
	Ops.block_freed = OnBlockFreed;
	Ops.tells_detached = true;
	ch_status Status = ch_vm_attach(Heap, &Ops, M.get(), &M->Vm);
	if (Status != CH_OK)
		return failure("a memory manager", Status);
	return M;
}

JITLinkMemoryManager::~JITLinkMemoryManager()
{
	ch_status Status = Vm ? ch_vm_detach(Vm) : CH_OK;
	while (Status == CH_E_BUSY)
		Status = ch_vm_detach(Vm);
	if (Status != CH_OK)
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
		ch_status Status = ch_owner_release(M->Owner, CH_RELEASE_COLLECT);
		if (Status != CH_OK)
			All = joinErrors(std::move(All), failure("a release", Status));
	}
	OnDeallocated(std::move(All));
}

} // namespace codeheap
