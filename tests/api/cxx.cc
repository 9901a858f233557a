/* SPDX-License-Identifier: MIT
 * cxx.cc: codeheap.hpp: what is made is given back once, whichever object has it in the end, and
 * what fails leaves its object as it was. */
#include "codeheap/codeheap.h"
/* The classes set an entry by a call that collects first, as other threads may at that moment. */
static ch_status set_entry_late(ch_owner owner, ch_block block);
/* An abort gives memory back, which the system may refuse. */
static ch_status abort_with_an_errno(ch_code *code);
#define ch_owner_set_entry set_entry_late
#define ch_block_abort abort_with_an_errno
#include "codeheap/codeheap.hpp"
#undef ch_owner_set_entry
#undef ch_block_abort

#include "codeheap/collector.h"
#include "codeheap/look.h"
#include "tests/support/frames_rig.h"

#include <string>
#include <type_traits>

using signature = int(frames::callee *, int);
using codeheap::function;

static ch_heap *collected_late;

static ch_status set_entry_late(ch_owner owner, ch_block block)
{
	for (int i = 0; i < 4 && collected_late; i++)
		CHECK_EQ(ch_heap_collect(collected_late), CH_OK);
	return ch_owner_set_entry(owner, block);
}

static ch_status abort_with_an_errno(ch_code *code)
{
	ch_status status = ch_block_abort(code);
	errno = EINTR;
	return status;
}

static int interpret(frames::callee *fn, int number)
{
	return -fn(number);
}
static int plus_one(int number)
{
	return number + 1;
}

template <class T>
constexpr bool moves =
	std::is_nothrow_move_constructible<T>::value &&std::is_nothrow_move_assignable<T>::value &&
	!std::is_copy_constructible<T>::value;
static_assert(moves<codeheap::code<signature>> && moves<codeheap::heap> && moves<codeheap::vm> &&
		      moves<codeheap::open_block> && moves<function<signature>>,
	      "objects move, and are not copied");

struct scene {
	codeheap::heap heap;
	codeheap::vm vm;
	codeheap::attached here;
	scene() : heap(made()), here(heap)
	{
		CHECK_EQ(vm.attach(heap), CH_OK);
		CHECK_EQ(here.status(), CH_OK);
	}
	static codeheap::heap made()
	{
		codeheap::heap heap;
		CHECK_EQ(heap.create(), CH_OK);
		return heap;
	}
	ch_stats stats() const
	{
		ch_stats stats;
		CHECK_EQ(heap.stats(stats), CH_OK);
		return stats;
	}
	function<signature> compiled(const char *name) const
	{
		function<signature> made;
		frames::bytes code = frames::plain_code(frames::FRAMED);
		CHECK_EQ(made.create(vm, name, interpret), CH_OK);
		CHECK_EQ(made.compile(code.at.data(), code.size()), CH_OK);
		return made;
	}
};

/* A function of its own: no word of its frame holds the code afterwards. */
__attribute__((noinline)) static void run_two(const scene &s)
{
	frames::bytes bytes = frames::plain_code(frames::FRAMED);
	codeheap::code<signature> f, g;
	CHECK(!f);
	CHECK_EQ(f.add(s.heap, bytes.at.data(), bytes.size(), "f"), CH_OK);
	CHECK_EQ(f.add(s.heap, bytes.at.data(), bytes.size(), "f"), CH_E_STATE);
	CHECK_EQ(g.add(s.heap, bytes.at.data(), bytes.size(), "g"), CH_OK);
	CHECK_EQ(f(plus_one, 6), 7);
	g = std::move(f);
	CHECK(!f && g(plus_one, 7) == 8);
	CHECK_EQ(g.free(CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!g);
	CHECK_EQ(f.add(s.heap, bytes.at.data(), bytes.size(), "f"), CH_OK);
}

TEST(code_runs_until_its_object_ends)
{
	scene s;
	run_two(s);
	for (int i = 0; i < 3; i++) {
		wipe_stack();
		CHECK_EQ(s.heap.collect(), CH_OK);
	}
	CHECK_EQ(s.stats().blocks_now, 0);
}

TEST(code_that_was_emitted_where_it_lies_is_called_by_its_type)
{
	scene s;
	frames::bytes bytes = frames::plain_code(frames::FRAMED);
	uint32_t count = static_cast<uint32_t>(bytes.size());
	codeheap::code<signature> f;
	codeheap::open_block block;
	CHECK_EQ(f.commit(block), CH_E_STATE);
	ch_open request = s.heap.opens(count + 8, "f");
	request.align = 256;
	CHECK_EQ(block.open(request), CH_OK);
	ch_code &at = block.code();
	CHECK_EQ(reinterpret_cast<uintptr_t>(at.exec) % 256, 0);
	std::memset(at.write, 0, 8);
	std::memcpy(at.write + 8, bytes.at.data(), count);
	const uint8_t *entry = at.exec + 8;
	at.used_to = count + 8, at.entry_offset = 4096;
	CHECK_EQ(f.commit(block), CH_E_ARG);
	CHECK(!f && block);
	at.entry_offset = 8;
	CHECK_EQ(f.commit(block), CH_OK);
	CHECK(!block && reinterpret_cast<const uint8_t *>(f.get()) == entry);
	char text[40];
	ch_address_name(s.heap.get(), entry, false, text, sizeof text);
	CHECK_STR(text, "f+0x8");
	CHECK_EQ(f(plus_one, 6), 7);
	CHECK_EQ(block.open(request), CH_OK);
	CHECK(block.append(bytes.at.data(), count));
	CHECK_EQ(f.commit(block), CH_E_STATE);
	CHECK_EQ(f.free(CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(f.free(), CH_E_STALE);
	codeheap::open_block moved(std::move(block)), other;
	other = std::move(moved);
	CHECK_EQ(f.commit(other), CH_OK);
	CHECK_EQ(f(plus_one, 7), 8);
	function<signature> owner = s.compiled("owner");
	codeheap::code<signature> g;
	CHECK_EQ(block.open(owner.opens(count)), CH_OK);
	CHECK(block.append(bytes.at.data(), count));
	CHECK_EQ(g.commit(block), CH_E_STATE);
	CHECK_EQ(block.abort(), CH_OK);
	request = owner.opens(count);
	request.flags = CH_OPEN_KEPT;
	CHECK_EQ(block.open(request), CH_OK);
	CHECK(block.append(bytes.at.data(), count));
	CHECK_EQ(g.commit(block), CH_OK);
	CHECK_EQ(g(plus_one, 8), 9);
	CHECK_EQ(g.free(CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST(code_and_function_that_outlive_their_heap_free_nothing)
{
	frames::bytes bytes = frames::plain_code(frames::FRAMED);
	codeheap::code<signature> f, g, h;
	function<signature> older;
	codeheap::heap heap;
	CHECK_EQ(heap.create(), CH_OK);
	CHECK_EQ(f.add(heap, bytes.at.data(), bytes.size(), "f"), CH_OK);
	CHECK_EQ(g.add(heap, bytes.at.data(), bytes.size(), "g"), CH_OK);
	{
		codeheap::vm vm;
		CHECK_EQ(vm.attach(heap), CH_OK);
		CHECK_EQ(older.create(vm, "older", interpret), CH_OK);
	}
	CHECK_EQ(heap.destroy(), CH_OK);
	CHECK_EQ(f.free(), CH_E_STALE);
	/* The next heap mostly has the place, and its first code the address. */
	CHECK_EQ(heap.create(), CH_OK);
	CHECK_EQ(f.add(heap, bytes.at.data(), bytes.size(), "f"), CH_OK);
	CHECK_EQ(h.add(heap, bytes.at.data(), bytes.size(), "h"), CH_OK);
	g = codeheap::code<signature>();
	CHECK_EQ(older.release(), CH_E_STALE);
	CHECK_EQ(f(plus_one, 1), 2);
	CHECK_EQ(h.free(), CH_OK);
	CHECK_EQ(f.free(CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(f.add(heap, bytes.at.data(), bytes.size(), "f"), CH_OK);
	/* It ends after its heap, as all that was declared before it does. */
}

TEST(function_calls_its_fallback_its_code_and_its_fallback_again)
{
	scene s;
	function<signature> f;
	CHECK(!f);
	CHECK_EQ(f.create(s.vm, "f", interpret), CH_OK);
	CHECK_EQ(f(plus_one, 6), -7);
	frames::bytes code = frames::plain_code(frames::FRAMED);
	CHECK_EQ(f.compile(code.at.data(), code.size()), CH_OK);
	CHECK_EQ(f(plus_one, 6), 7);
	CHECK_EQ(f.set_entry(ch_block()), CH_OK);
	CHECK_EQ(f(plus_one, 6), -7);
}

TEST(function_is_compiled_however_many_collections_come_before_its_entry)
{
	scene s;
	collected_late = s.heap.get();
	function<signature> f = s.compiled("f");
	collected_late = nullptr;
	CHECK_EQ(f(plus_one, 6), 7);
}

TEST(function_that_was_moved_is_the_same_and_what_it_replaced_is_released)
{
	scene s;
	function<signature> f = s.compiled("f"), g = s.compiled("g");
	ch_owner of_f = f.get(), of_g = g.get();
	ch_owner_facts facts = {};
	facts.size = sizeof facts;
	g = std::move(f);
	CHECK(!f && g && g.get().bits == of_f.bits);
	CHECK_EQ(g(plus_one, 1), 2);
	CHECK(ch_owner_cell(of_g) == nullptr ||
	      (ch_owner_info(of_g, &facts) == CH_OK && facts.is_released));
	function<signature> h(std::move(g));
	CHECK(!g && h(plus_one, 1) == 2);
}

TEST(destructors_leave_nothing_behind)
{
	scene s;
	{
		codeheap::vm other;
		CHECK_EQ(other.attach(s.heap), CH_OK);
		function<signature> f = s.compiled("f"), g = s.compiled("g");
		CHECK_EQ(s.stats().vms_now, 2);
		CHECK_EQ(s.stats().owners_now, 2);
		CHECK_EQ(g.release(CH_RELEASE_NOT_RUNNING), CH_OK);
	}
	for (int i = 0; i < 3; i++) {
		wipe_stack();
		CHECK_EQ(s.heap.collect(), CH_OK);
	}
	CHECK_EQ(s.stats().vms_now, 1);
	CHECK_EQ(s.stats().owners_now, 0);
	CHECK_EQ(s.stats().blocks_now, 0);
	CHECK_EQ(s.heap.destroy(), CH_E_BUSY); /* by the vm of the scene */
	CHECK(s.heap);
}

TEST(heap_and_vm_that_were_given_up_can_be_made_again)
{
	codeheap::heap heap;
	CHECK_EQ(heap.create(), CH_OK);
	codeheap::vm vm, other;
	CHECK_EQ(vm.attach(heap), CH_OK);
	other = std::move(vm);
	CHECK(!vm && other);
	CHECK_EQ(other.detach(), CH_OK);
	CHECK_EQ(vm.attach(heap), CH_OK);
	vm = codeheap::vm();
	CHECK_EQ(heap.destroy(), CH_OK);
	CHECK(!heap);
	CHECK_EQ(heap.create(), CH_OK);
	codeheap::heap moved(std::move(heap));
	CHECK(!heap && moved);
}

TEST(block_that_is_not_committed_is_aborted)
{
	scene s;
	function<signature> f = s.compiled("f");
	{
		codeheap::open_block block, other;
		CHECK_EQ(block.open(f.opens(64)), CH_OK);
		CHECK_EQ(block.open(f.opens(64)), CH_E_STATE);
		other = std::move(block);
		CHECK(!block && other);
		CHECK_EQ(s.stats().blocks_open_now, 1);
		static const uint8_t much[4096] = {};
		CHECK(!other.append(much, sizeof much) && other.append(much, 1));
	}
	CHECK_EQ(s.stats().blocks_open_now, 0);
	CHECK_EQ(s.stats().blocks_aborted, 1);
}

TEST(block_that_was_committed_leaves_no_address_behind)
{
	scene s;
	function<signature> f = s.compiled("f");
	frames::bytes code = frames::plain_code(frames::FRAMED);
	codeheap::open_block block;
	ch_block made;
	CHECK_EQ(block.open(f.opens(static_cast<uint32_t>(code.size()))), CH_OK);
	CHECK(block.append(code.at.data(), 1) && block.append(code.at.data() + 1, code.size() - 1));
	CHECK_EQ(block.commit(made), CH_OK);
	CHECK(!block && !block.code().exec && made.bits);
	CHECK_EQ(f.set_entry(made), CH_OK);
	CHECK_EQ(f(plus_one, 3), 4);
}

static std::string sentence(ch_status status)
{
	return codeheap::error(status).what();
}

TEST(what_fails_says_so_and_changes_nothing)
{
	scene s;
	function<signature> f = s.compiled("f");
	CHECK_EQ(f.create(s.vm, "again", interpret), CH_E_STATE);
	CHECK_EQ(s.vm.attach(s.heap), CH_E_STATE);
	CHECK_EQ(s.heap.create(), CH_E_STATE);
	CHECK_EQ(f.compile("", 0), CH_E_ARG);
	CHECK_EQ(f.compile("", 1, 1u << 31), CH_E_ARG);
	CHECK_EQ(f.compile(nullptr, 4), CH_E_ARG);
	CHECK(sentence(CH_E_ARG) == "an argument is out of its range: bytes is NULL");
	CHECK_EQ(f(plus_one, 1), 2);
	codeheap::heap other;
	ch_config config;
	ch_config_init(&config);
	config.page_bytes = 5;
	try {
		codeheap::check(other.create(&config));
		FAIL("nothing was thrown");
	} catch (const codeheap::error &error) {
		CHECK_EQ(error.status(), CH_E_ARG);
		std::string said = error.what(), text = ch_status_text(CH_E_ARG);
		CHECK(said.compare(0, text.size(), text) == 0);
		CHECK(said.find("page_bytes") != std::string::npos);
	}
	try {
		codeheap::check(codeheap::vm().detach());
		FAIL("nothing was thrown");
	} catch (const codeheap::error &error) {
		CHECK(std::string(error.what()).find("NULL") != std::string::npos);
	}
	try {
		codeheap::check(s.heap.create());
		FAIL("nothing was thrown");
	} catch (const codeheap::error &error) {
		CHECK_STR(error.what(),
			  "not legal in the object's state: the object has a heap already");
	}
	codeheap::error no_call(CH_E_FULL);
	CHECK_STR(no_call.what(), ch_status_text(CH_E_FULL));
}

TEST(error_tells_of_the_refused_call_and_of_no_call_before)
{
	scene s;
	function<signature> f = s.compiled("f");
	codeheap::open_block block;
	{
		codeheap::parked parked;
		CHECK_EQ(block.open(f.opens(64)), CH_E_STATE);
	}
	/* The sentence of the library has the same status. */
	CHECK_EQ(s.vm.attach(s.heap), CH_E_STATE);
	CHECK(sentence(CH_E_STATE) ==
	      "not legal in the object's state: the object has a vm already");
	CHECK(sentence(CH_E_STATE).find("parked") != std::string::npos);
	/* Nobody asks about a refusal; the next failure has another sentence, another status, or
	 * the sentence of the failure before the refusal. */
	CHECK_EQ(s.heap.destroy(), CH_E_BUSY);
	CHECK_EQ(f.create(s.vm, "again", interpret), CH_E_STATE);
	{
		codeheap::parked parked;
		CHECK_EQ(block.open(f.opens(64)), CH_E_STATE);
	}
	CHECK(sentence(CH_E_STATE).find("parked") != std::string::npos);
	CHECK_EQ(f.create(s.vm, "again", interpret), CH_E_STATE);
	CHECK_EQ(s.heap.destroy(), CH_E_BUSY);
	CHECK(sentence(CH_E_BUSY).find("vms") != std::string::npos);
	CHECK_EQ(f.create(s.vm, "again", interpret), CH_E_STATE);
	CHECK_EQ(s.heap.destroy(), CH_E_BUSY);
	CHECK(sentence(CH_E_BUSY).find("vms") != std::string::npos);
}

TEST(empty_objects_answer_with_a_status)
{
	scene s;
	ch_stats stats;
	ch_block made;
	codeheap::heap heap, from = scene::made(), to(std::move(from));
	CHECK_EQ(heap.destroy(), CH_E_ARG);
	CHECK_EQ(from.destroy(), CH_E_ARG);
	CHECK_EQ(heap.collect(), CH_E_ARG);
	CHECK_EQ(heap.stats(stats), CH_E_ARG);
	CHECK_EQ(codeheap::attached(heap).status(), CH_E_ARG);
	codeheap::vm vm;
	CHECK_EQ(vm.attach(heap), CH_E_ARG);
	CHECK_EQ(vm.detach(), CH_E_ARG);
	codeheap::open_block block;
	CHECK_EQ(block.open(heap.opens(8)), CH_E_ARG);
	CHECK(!block.append("", 1));
	CHECK_EQ(block.commit(made), CH_E_STATE);
	CHECK_EQ(block.abort(), CH_E_STATE);
	codeheap::code<signature> code;
	CHECK_EQ(code.add(heap, "", 1, "f"), CH_E_ARG);
	block.code().entry_offset = 8;
	CHECK_EQ(code.commit(block), CH_E_STATE);
	CHECK_EQ(code.free(), CH_E_STALE);
	function<signature> f;
	CHECK_EQ(f.create(vm, "f", interpret), CH_E_ARG);
	CHECK_EQ(f.compile("", 1), CH_E_ARG);
	CHECK_EQ(f.set_entry(made), CH_E_STALE);
	CHECK_EQ(f.release(), CH_E_STALE);
}

/* Between ch_mark_begin and ch_mark_end calls with a lock are refused. */
TEST(what_was_refused_is_still_there)
{
	frames::bytes bytes = frames::plain_code(frames::FRAMED);
	uint32_t count = static_cast<uint32_t>(bytes.size());
	ch_config config;
	ch_config_init(&config);
	config.driver = CH_DRIVER_HOST;
	codeheap::heap heap;
	CHECK_EQ(heap.create(&config), CH_OK);
	codeheap::vm vm;
	CHECK_EQ(vm.attach(heap), CH_OK);
	function<signature> f;
	CHECK_EQ(f.create(vm, "f", interpret), CH_OK);
	codeheap::code<signature> c;
	CHECK_EQ(c.add(heap, bytes.at.data(), count, "c"), CH_OK);
	codeheap::open_block block;
	CHECK_EQ(block.open(f.opens(count)), CH_OK);
	ch_marker *marker;
	CHECK_EQ(ch_mark_begin(heap.get(), &marker), CH_OK);
	CHECK_EQ(vm.detach(), CH_E_STATE);
	CHECK_EQ(f.release(CH_RELEASE_NOT_RUNNING), CH_E_STATE);
	CHECK_EQ(c.free(), CH_E_STATE);
	CHECK_EQ(block.abort(), CH_E_STATE);
	CHECK(vm && f && c && block);
	CHECK_EQ(ch_mark_end(marker, false), CH_OK);
	CHECK_EQ(block.abort(), CH_OK);
	CHECK_EQ(c.free(CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(f.release(CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(vm.detach(), CH_OK);
	CHECK(!vm && !f && !c && !block);
	CHECK_EQ(heap.destroy(), CH_OK);
}

TEST(what_was_given_back_by_another_name_is_gone)
{
	scene s;
	frames::bytes bytes = frames::plain_code(frames::FRAMED);
	function<signature> f = s.compiled("f");
	codeheap::code<signature> c, d;
	codeheap::open_block block;
	CHECK_EQ(c.add(s.heap, bytes.at.data(), bytes.size(), "c"), CH_OK);
	CHECK_EQ(d.add(s.heap, bytes.at.data(), bytes.size(), "d"), CH_OK);
	CHECK_EQ(block.open(f.opens(8)), CH_OK);
	CHECK_EQ(ch_block_abort(&block.code()), CH_OK);
	CHECK(sentence(block.abort()) ==
	      "not legal in the object's state: CH_E_STATE: ch_code.block is not OPEN");
	CHECK_EQ(block.open(f.opens(8)), CH_OK);
	CHECK(block.append(bytes.at.data(), 8));
	CHECK_EQ(ch_block_commit(&block.code(), 1), CH_OK);
	CHECK_EQ(block.abort(), CH_E_STATE);
	CHECK(!block);
	CHECK_EQ(block.open(f.opens(8)), CH_OK);
	CHECK(block.append(bytes.at.data(), 8));
	CHECK_EQ(ch_owner_release(f.get(), CH_RELEASE_COLLECT), CH_OK);
	ch_block late;
	CHECK_EQ(block.commit(late), CH_E_STALE);
	CHECK(!block && !late.bits && !block.code().exec);
	CHECK_EQ(f.release(), CH_E_STALE);
	for (codeheap::code<signature> *code : {&c, &d}) {
		const void *at = reinterpret_cast<const void *>(code->get());
		ch_release how = code == &c ? CH_RELEASE_COLLECT : CH_RELEASE_NOT_RUNNING;
		CHECK_EQ(ch_code_free(s.heap.get(), at, how), CH_OK);
		CHECK_EQ(code->free(), CH_E_STALE);
	}
	CHECK(!block && !f && !c && !d);
}

/* The block goes on being another thread's, and ends there. */
TEST(block_that_is_gone_is_given_up_by_a_thread_that_is_not_attached)
{
	codeheap::heap heap = scene::made();
	codeheap::open_block block;
	CHECK_EQ(block.open(heap.opens(8)), CH_OK);
	CHECK_EQ(ch_thread_detach(heap.get()), CH_OK);
	CHECK_EQ(block.abort(), CH_E_THREAD);
	CHECK(block);
	ch_code of_other = block.code();
	{
		codeheap::attached here(heap);
		CHECK_EQ(ch_block_abort(&of_other), CH_OK);
	}
	CHECK_EQ(block.abort(), CH_E_THREAD);
	CHECK(!block);
	CHECK_EQ(block.open(heap.opens(8)), CH_OK);
	CHECK_EQ(block.abort(), CH_OK);
}

TEST(block_that_goes_with_its_object_leaves_errno_alone)
{
	scene s;
	{
		codeheap::open_block block;
		CHECK_EQ(block.open(s.heap.opens(8)), CH_OK);
		errno = EXDEV;
	}
	CHECK_EQ(errno, EXDEV);
}

/* An emitter that counts on where it has no room any more sets used_to above hot_bytes. */
TEST(bytes_behind_a_count_beyond_the_room_are_refused)
{
	scene s;
	codeheap::open_block block;
	CHECK_EQ(block.open(s.heap.opens(8)), CH_OK);
	uint32_t room = block.code().hot_bytes;
	for (uint32_t beyond : {1u, 8u, 4096u}) {
		block.code().used_to = room + beyond;
		CHECK(!block.append("", 0) && !block.append("a", 1));
		CHECK_EQ(block.code().used_to, room + beyond);
	}
	block.code().used_to = room - 1;
	CHECK(!block.append("ab", 2) && block.append("a", 1) && block.append("", 0));
	CHECK_EQ(block.code().used_to, room);
	CHECK_EQ(block.abort(), CH_OK);
}

TEST(attached_detaches_no_thread_that_was_attached)
{
	codeheap::heap heap = scene::made();
	{
		codeheap::attached here(heap);
		CHECK_EQ(here.status(), CH_OK);
		CHECK_EQ(codeheap::attached(heap).status(), CH_OK);
		CHECK_EQ(ch_thread_attach(heap.get(), nullptr, nullptr), CH_E_THREAD);
	}
	CHECK_EQ(ch_thread_detach(heap.get()), CH_E_THREAD);
	frames::bytes bytes = frames::plain_code(frames::FRAMED);
	codeheap::code<signature> f;
	/* The call attaches the thread, and collections see its stack until its end. */
	CHECK_EQ(f.add(heap, bytes.at.data(), bytes.size(), "f"), CH_OK);
	CHECK_EQ(codeheap::attached(heap).status(), CH_OK);
	CHECK_EQ(ch_thread_attach(heap.get(), nullptr, nullptr), CH_OK);
	CHECK_EQ(ch_thread_detach(heap.get()), CH_OK);
	CHECK_EQ(codeheap::attached(heap).status(), CH_OK);
	CHECK_EQ(ch_thread_detach(heap.get()), CH_E_THREAD);
}
