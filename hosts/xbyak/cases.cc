// SPDX-License-Identifier: MIT
// cases.cc: code made by xbyak runs from a code heap, and goes with its generator.
#include "../cases.h"
#include "codeheap_xbyak.h"

#include <execinfo.h>

#include <memory>
#include <new>

/* f(what, loops) = what * times * loops, in a loop with labels backward and forward. */
struct adder : Xbyak::CodeGenerator {
	adder(codeheap_xbyak *memory, int times, size_t bytes, void *how = nullptr)
	    : Xbyak::CodeGenerator(bytes, how, memory)
	{
		Xbyak::Label loop, out;
		xor_(eax, eax);
		L(loop);
		test(esi, esi);
		jz(out, T_NEAR);
		for (int i = 0; i < times; i++)
			add(eax, edi);
		dec(esi);
		jmp(loop, T_NEAR);
		L(out);
		ret();
	}
	int operator()(int what, int loops) { return getCode<int (*)(int, int)>()(what, loops); }
};

static ch_heap *heap;

static uint64_t blocks()
{
	return stats_of(heap).blocks_now;
}

CASE(code_runs_once_it_is_committed)
{
	codeheap_xbyak memory(heap, "adder");
	{
		adder one(&memory, 1, 4096), two(&memory, 2, 4096);
		OK(memory.commit(one));
		OK(memory.commit(two));
		CHECK(one(3, 5) == 15 && two(3, 5) == 30);
		CHECK(memory.commit(one) == CH_E_STATE);
		CHECK(blocks() == 2);
	}
	CHECK(blocks() == 0);
}

CASE(code_that_grows_finds_its_labels)
{
	codeheap_xbyak memory(heap, "grown");
	adder large(&memory, 9000, 256, Xbyak::AutoGrow);
	OK(memory.commit(large));
	CHECK(large.getSize() > 16384 && large(2, 3) == 54000);
	CHECK(blocks() == 1);
}

CASE(what_was_never_committed_is_gone)
{
	codeheap_xbyak memory(heap, "draft");
	for (int i = 0; i < 1000; i++)
		adder(&memory, 1, 4096);
	CHECK(blocks() == 0);
}

CASE(refused_code_goes_with_its_generator)
{
	codeheap_xbyak memory(heap, "empty");
	struct nothing : Xbyak::CodeGenerator {
		explicit nothing(codeheap_xbyak *its) : Xbyak::CodeGenerator(4096, nullptr, its) {}
	};
	{
		nothing empty(&memory);
		CHECK(memory.commit(empty) == CH_E_ARG && memory.commit(empty) == CH_E_ARG);
	}
	CHECK(blocks() == 0);
}

CASE(code_has_a_name_that_is_gone)
{
	char text[] = "made";
	codeheap_xbyak memory(heap, text), nameless(heap, nullptr);
	memset(text, '?', sizeof text - 1);
	adder one(&memory, 1, 4096), other(&nameless, 1, 4096);
	OK(memory.commit(one));
	OK(nameless.commit(other));
	ch_spot spot;
	spot.size = sizeof spot;
	ch_info info;
	info.size = sizeof info;
	CHECK(ch_code_at(heap, one.getCode(), false, &spot));
	OK(ch_block_info(spot.block, &info));
	CHECK(!strcmp(info.name, "made"));
}

static void end_well(int)
{
	_exit(0);
}
CASE(freed_code_is_named_by_its_trap)
{
	codeheap_xbyak memory(heap, "gone");
	auto code = std::make_unique<adder>(&memory, 1, 4096);
	OK(memory.commit(*code));
	auto fn = code->getCode<int (*)(int, int)>();
	code.reset();
	signal(SIGTRAP, end_well); // the handler of the heap passes the trap on
	OK(ch_trap_install(heap));
	freopen("trap.txt", "w", stderr);
	fn(1, 1);
	CHECK(!"freed code runs");
}

CASE(no_code_is_made_where_there_is_no_room)
{
	codeheap_xbyak memory(heap, "large");
	try {
		adder too_large(&memory, 1, (size_t(1) << 32) + 4096);
		CHECK(!"xbyak has room");
	} catch (const Xbyak::Error &error) {
		CHECK(int(error) == Xbyak::ERR_CANT_ALLOC);
	}
	CHECK(blocks() == 0);
}

static bool new_fails;
void *operator new(size_t bytes)
{
	void *at = new_fails ? nullptr : malloc(bytes);
	if (!at)
		throw std::bad_alloc();
	return at;
}
void operator delete(void *at) noexcept
{
	free(at);
}
void operator delete(void *at, size_t) noexcept
{
	free(at);
}
CASE(short_memory_leaves_no_block)
{
	codeheap_xbyak memory(heap, "short");
	bool has_thrown = false;
	new_fails = true;
	try {
		memory.alloc(4096);
	} catch (const std::bad_alloc &) {
		has_thrown = true;
	}
	new_fails = false;
	CHECK(has_thrown && blocks() == 0);
}

static void look_around()
{
	void *frames[64];
	CHECK(backtrace(frames, 64) == 2); // this function, and the code
}
CASE(unwinding_ends_at_code_that_uses_rbp)
{
	struct user : Xbyak::CodeGenerator {
		explicit user(codeheap_xbyak *memory) : Xbyak::CodeGenerator(4096, nullptr, memory)
		{
			push(rbp);
			mov(ebp, 8);
			mov(rax, reinterpret_cast<size_t>(look_around));
			call(rax);
			pop(rbp);
			ret();
		}
	};
	static const uint8_t ends[] = {0x0c, 7, 8, 0x07, 16};
	uint8_t frame;
	OK(ch_frame_register(heap, ends, sizeof ends, &frame));
	codeheap_xbyak memory(heap, "user", frame);
	user code(&memory);
	OK(memory.commit(code));
	code.getCode<void (*)()>()();
}

int main(int count, char **words)
{
	OK(ch_heap_create(nullptr, &heap));
	return run_cases(count, words);
}
