// SPDX-License-Identifier: MIT
// check_jitlink.cc: the JITLink memory manager under an LLJIT: code runs, is unwound through, is
// removed with its ResourceTracker, and collected when no stack holds it.
#include "check_orc.h"

#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h>
#include <thread>

#include "codeheap_jitlink.h"

using namespace llvm;
using namespace llvm::orc;

namespace
{

using check::must;

struct world : check::orc_world {
	std::unique_ptr<codeheap::JITLinkMemoryManager> manager;
	// JITLink 14 asks for writable memory for an ELF object's constants, too.
	static constexpr const char *constants = "rw-";

	explicit world(std::size_t pool_bytes = 0, unsigned compile_threads = 0)
	    : check::orc_world(pool_bytes)
	{
		manager = must(codeheap::JITLinkMemoryManager::Create(heap));
		auto machine = must(JITTargetMachineBuilder::detectHost());
		machine.setRelocationModel(Reloc::PIC_);
		machine.setCodeModel(CodeModel::Small);
		create(std::move(machine), compile_threads,
		       [this](ExecutionSession &session, const Triple &) {
			       return std::make_unique<ObjectLinkingLayer>(session, *manager);
		       });
	}
	~world()
	{
		jit.reset();
		manager.reset();
	}
};

using jitlink::AllocGroup;
using jitlink::SimpleSegmentAlloc;

Expected<SimpleSegmentAlloc> allocate(world &w,
				      std::initializer_list<std::pair<AllocGroup, int>> wanted)
{
	SimpleSegmentAlloc::SegmentMap segments;
	for (auto &[group, bytes] : wanted)
		segments[group] = {static_cast<std::size_t>(bytes), Align(1 << 16)};
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
	CHECK(at[4999] == 7 && ~hidden % (1 << 16) == 0);
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
	collect(w.heap);
	look(hidden);
	CHECK(freed.now() == 1);
	must(w.manager->deallocate(std::move(finalized)));
	collect(w.heap);
	CHECK(freed.now() == 2);
	// An object without content.
	must(w.manager->deallocate(must(must(allocate(w, {})).finalize())));
	// The heap refuses memory that is both writable and executable.
	auto refused =
		allocate(w, {{AllocGroup(MemProt::Read | MemProt::Write | MemProt::Exec), 64}});
	CHECK(!refused);
	consumeError(refused.takeError());
	check_heap(w.heap);
}

// What the actions of a graph see.
struct {
	world *w;
	bool fails;
	int finalized, undone;
	std::uint64_t freed_inside;
} acted;

using action = shared::WrapperFunction<shared::SPSError()>;

Error collect_inside()
{
	check::freed freed(acted.w->heap);
	collect(acted.w->heap);
	acted.freed_inside += freed.now();
	return ++acted.finalized == 2 && acted.fails
		       ? errorCodeToError(make_error_code(std::errc::io_error))
		       : Error::success();
}

Error count_undone()
{
	acted.undone++;
	return Error::success();
}

shared::CWrapperFunctionResult on_finalize(const char *data, std::size_t bytes)
{
	return action::handle(data, bytes, collect_inside).release();
}

shared::CWrapperFunctionResult on_deallocate(const char *data, std::size_t bytes)
{
	return action::handle(data, bytes, count_undone).release();
}

// A graph with a segment for each kind of access, to last and for the finalization; two actions.
[[gnu::noinline]] Expected<jitlink::JITLinkMemoryManager::FinalizedAlloc>
finalize_all_kinds(world &w)
{
	using jitlink::MemProt;
	jitlink::LinkGraph g("all kinds", Triple("x86_64-unknown-linux-gnu"), 8, support::little,
			     jitlink::getGenericEdgeKindName);
	static const char *const names[] = {"a", "b", "c", "d", "e", "f",
					    "g", "h", "i", "j", "k", "l"};
	static const char content[16] = "content";
	for (int i = 0; i < 12; i++) {
		static const MemProt kinds[] = {MemProt::None,  MemProt::Read,
						MemProt::Write, MemProt::Read | MemProt::Write,
						MemProt::Exec,  MemProt::Read | MemProt::Exec};
		auto &section = g.createSection(names[i], kinds[i / 2]);
		section.setMemDeallocPolicy(i % 2 ? jitlink::MemDeallocPolicy::Standard
						  : jitlink::MemDeallocPolicy::Finalize);
		g.createContentBlock(section, content, ExecutorAddr(), 16, 0);
	}
	for (int i = 0; i < 2; i++)
		g.allocActions().push_back(
			{shared::WrapperFunctionCall(ExecutorAddr::fromPtr(on_finalize), {}),
			 shared::WrapperFunctionCall(ExecutorAddr::fromPtr(on_deallocate), {})});
	return must(w.manager->allocate(nullptr, g))->finalize();
}

void actions_run_while_all_segments_stay(const char *)
{
	world w;
	acted = {&w, false, 0, 0, 0};
	check::freed freed(w.heap);
	auto finalized = must(finalize_all_kinds(w));
	CHECK(acted.finalized == 2 && !acted.freed_inside && !acted.undone);
	collect(w.heap);
	CHECK(freed.now() == 6);
	must(w.manager->deallocate(std::move(finalized)));
	CHECK(acted.undone == 2);
	collect(w.heap);
	CHECK(freed.now() == 12);
	acted = {&w, true, 0, 0, 0};
	auto failed = finalize_all_kinds(w);
	CHECK(!failed && toString(failed.takeError()) == "Input/output error");
	CHECK(acted.finalized == 2 && acted.undone == 1);
	collect(w.heap);
	CHECK(freed.now() == 24 && stats_of(w.heap).owners_now == 0);
}

using loaded = check::orc_module<world>;
using life = check::life<world, loaded>;

// As LLJIT with compile threads does.
void a_graph_is_linked_by_passing_threads(const char *)
{
	using jitlink::MemProt;
	world w;
	std::unique_ptr<SimpleSegmentAlloc> graph;
	jitlink::JITLinkMemoryManager::FinalizedAlloc finalized;
	auto in_a_thread = [&](auto run) {
		ch_thread_park();
		std::thread([&] {
			run();
			// No collection waits for it.
			CHECK(ch_thread_detach(w.heap) == CH_E_THREAD);
		}).join();
		ch_thread_unpark();
	};
	for (int round = 0; round < 2; round++) {
		in_a_thread([&] {
			graph = std::make_unique<SimpleSegmentAlloc>(
				must(allocate(w, {{MemProt::Read | MemProt::Write, 5000},
						  {MemProt::Read | MemProt::Exec, 300}})));
		});
		collect(w.heap);
		CHECK(stats_of(w.heap).blocks_open_now == 2);
		if (round == 0) {
			in_a_thread([&] { finalized = must(graph->finalize()); });
			collect(w.heap);
			CHECK(stats_of(w.heap).blocks_now == 2);
			must(w.manager->deallocate(std::move(finalized)));
		}
		in_a_thread([&] { graph.reset(); }); // the second one is forgotten
	}
	collect(w.heap);
	auto stats = stats_of(w.heap);
	CHECK(stats.blocks_open_now == 0 && stats.blocks_now == 0 && stats.owners_now == 0);
	check_heap(w.heap);
}

void a_thread_that_a_call_attached_stays_attached(const char *)
{
	using jitlink::MemProt;
	world w;
	ch_thread_park();
	std::thread([&] {
		int (*f)();
		CHECK(ch_code_add(w.heap, "\xc3", 1, "f", &f) == CH_OK);
		for (int round = 0; round < 2; round++) {
			auto graph = must(allocate(w, {{MemProt::Read | MemProt::Write, 100}}));
			if (round) // else forgotten
				must(w.manager->deallocate(must(graph.finalize())));
		}
		CHECK(ch_thread_detach(w.heap) == CH_OK);
	}).join();
	ch_thread_unpark();
}

void who_waits_for_a_lookup_parks_and_who_links_does_not(const char *file)
{
	for (unsigned compile_threads : {0u, 2u}) {
		world w(0, compile_threads);
		loaded m(w, file, "looked up");
		ch_thread_park();
		bool links = m.links();
		ch_thread_unpark();
		CHECK(links == (compile_threads > 0));
	}
}

void compile_threads_make_code(const char *file)
{
	world w(0, 2);
	for (int i = 0; i < 5; i++) {
		life::load_and_drop(w, file, i);
		collect(w.heap);
		CHECK(stats_of(w.heap).threads_now == 1);
	}
	check_heap(w.heap);
}

// No open of the manager collects: dead code fills the pool until a thread polls.
void polls_collect_what_was_removed(const char *file)
{
	world w(2 << 20);
	for (int i = 0; i < check::times(200, 60); i++) {
		life::load_and_drop(w, file, i);
		ch_thread_poll();
	}
	CHECK(stats_of(w.heap).cycles > 0);
	bool is_full = false;
	for (int i = 0; i < 1000 && !is_full; i++)
		is_full = !loaded(w, file, "unpolled " + std::to_string(i)).links();
	CHECK(is_full);
	auto cycles = stats_of(w.heap).cycles;
	ch_thread_poll();
	CHECK(stats_of(w.heap).cycles > cycles);
	life::load_and_drop(w, file, 1000);
	check_heap(w.heap);
}

const check::named_case cases[] = {
	LIFE_CASES,
	{"segments_of_all_kinds", segments_of_all_kinds},
	{"actions_run_while_all_segments_stay", actions_run_while_all_segments_stay},
	{"a_graph_is_linked_by_passing_threads", a_graph_is_linked_by_passing_threads},
	{"a_thread_that_a_call_attached_stays_attached",
	 a_thread_that_a_call_attached_stays_attached},
	{"who_waits_for_a_lookup_parks_and_who_links_does_not",
	 who_waits_for_a_lookup_parks_and_who_links_does_not},
	{"compile_threads_make_code", compile_threads_make_code},
	{"polls_collect_what_was_removed", polls_collect_what_was_removed},
};

} // namespace

int main(int argc, char **argv)
{
	return check::run(cases, argc, argv);
}
