/* SPDX-License-Identifier: MIT
 * check_life.h: the cases for all memory managers: a module lives, is thrown through, is dropped,
 * also in the depth of its own frames, and leaves no room behind. A program of checks gives its
 * World (`heap` and a compiler for the heap; made with the bytes of the pool) and its Module, one
 * copy of the file, made with (world, file, name), which has
 *   w                    the world
 *   function<F>(name)    a function; must be there
 *   data(name)           the address of a variable or a constant
 *   links()              false when the heap lacks room for the module
 *   drop()               may be called once; the destructor drops the rest
 *   constants            the access rights of the constants */
#pragma once

#include <codeheap/look.h>

#include "check.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace check
{

using callback = int (*)(void *);
using through_function = int(callback, void *, int);
using thrown_function = int(int);
using data_function = long(int);

[[gnu::noinline]] inline void throw_through(through_function *through, int depth)
{
	int ended = 0;
	auto throws = [](void *) -> int { throw std::runtime_error("native"); };
	try {
		through(throws, &ended, depth);
		CHECK(!"it returned");
	} catch (const std::runtime_error &e) {
		CHECK(std::strcmp(e.what(), "native") == 0);
	}
	CHECK(ended == depth + 1);
}

template <typename Module> [[gnu::noinline]] void call_all(Module &m)
{
	int ended = 0;
	auto returns = [](void *) { return 7; };
	CHECK(m.template function<through_function>("through")(returns, &ended, 5) == 12 &&
	      ended == 6);
	CHECK(m.template function<thrown_function>("thrown_inside")(9) == 10);
	auto *use_data = m.template function<data_function>("use_data");
	long before = use_data(3);
	CHECK(before >= 45 && use_data(2) == 2 * before + 30);
	CHECK(m.links());
}

template <typename World, typename Module> struct life {
	static void exceptions_pass_code(const char *file)
	{
		World w;
		Module m(w, file, "passed");
		call_all(m);
		auto *through = m.template function<through_function>("through");
		throw_through(through, 30);
		// Later modules come and go; m is unwound as before.
		for (int i = 0; i < 20; i++) {
			Module other(w, file, "other " + std::to_string(i));
			call_all(other);
			throw_through(through, i);
			other.drop();
			throw_through(through, i);
			collect(w.heap);
			throw_through(through, i);
		}
		check_heap(w.heap);
	}

	// Dropped and collected in the depth of its own frames.
	struct dropped {
		int ended; // first: the module counts here
		Module *m;
		const void *code;
	};

	static int drop_and_throw(void *arg)
	{
		auto *d = static_cast<dropped *>(arg);
		struct ch_spot spot = {};
		spot.size = sizeof spot;
		d->m->drop();
		for (int i = 0; i < 3; i++)
			CHECK(ch_heap_collect(d->m->w.heap) == CH_OK);
		CHECK(ch_code_at(d->m->w.heap, d->code, false, &spot));
		throw std::runtime_error("dropped");
	}

	template <typename F>
	static void in_the_depth(const char *file, const char *function, F call)
	{
		World w;
		Module other(w, file, "other");
		call_all(other);
		freed freed_since(w.heap);
		Module m(w, file, "dropped");
		call_all(m);
		dropped d{0, &m, nullptr};
		auto *at = m.template function<through_function>(function);
		d.code = reinterpret_cast<const void *>(at);
		call(at, &d);
		CHECK(d.ended == 11);
		d.code = nullptr;
		at = nullptr;
		collect(w.heap);
		CHECK(freed_since.now() >= 3);
		call_all(other);
		check_heap(w.heap);
	}

	static void dropped_on_the_stack_is_unwound_through(const char *file)
	{
		in_the_depth(file, "through", [](through_function *at, dropped *d) {
			try {
				at(drop_and_throw, d, 10);
				CHECK(!"it returned");
			} catch (const std::runtime_error &e) {
				CHECK(std::strcmp(e.what(), "dropped") == 0);
			}
		});
	}

	static void dropped_on_the_stack_catches(const char *file)
	{
		in_the_depth(file, "caught_inside", [](through_function *at, dropped *d) {
			CHECK(at(drop_and_throw, d, 10) == 1007);
		});
	}

	[[gnu::noinline]] static void load_and_drop(World &w, const char *file, int i)
	{
		Module m(w, file, "module " + std::to_string(i));
		call_all(m);
	}

	static void many_modules_take_no_room(const char *file)
	{
		World w;
		std::uint64_t most = 0;
		const int n = times(200, 60);
		for (int i = 0; i < n; i++) {
			load_and_drop(w, file, i);
			CHECK(ch_heap_collect(w.heap) == CH_OK);
			auto now = stats_of(w.heap);
			if (i < 20)
				most = std::max(most, now.pages_now);
			else
				CHECK(now.pages_now <= most);
		}
		collect(w.heap);
		auto end = stats_of(w.heap);
		/* A stale word on the stack may hold one module. */
		CHECK(end.blocks_freed >= 3 * (unsigned)(n - 1) && end.owners_now <= 3);
		std::printf("%d modules: at most %lu pages, %lu blocks freed, %lu left\n", n,
			    (unsigned long)end.pages_peak, (unsigned long)end.blocks_freed,
			    (unsigned long)end.blocks_now);
		check_heap(w.heap);
	}

	static void access_is_never_write_and_execute(const char *file)
	{
		World w;
		Module m(w, file, "rights");
		call_all(m);
		const void *code = reinterpret_cast<const void *>(
			m.template function<data_function>("use_data"));
		CHECK(rights_at(code).substr(0, 3) == "r-x");
		CHECK(rights_at(m.data("table")).substr(0, 3) == Module::constants);
		CHECK(rights_at(m.data("variable")).substr(0, 3) == "rw-");
		CHECK(rights_at(m.data("zeros")).substr(0, 3) == "rw-");
		char name[200];
		ch_address_name(w.heap, code, false, name, sizeof name);
		CHECK(std::strstr(name, "rights"));
	}

	static void full_pool_is_an_error(const char *file)
	{
		World w(2 << 20);
		for (int round = 0; round < times(3, 2); round++) {
			std::vector<std::unique_ptr<Module>> modules;
			bool is_full = false;
			while (!is_full && modules.size() < 1000) {
				auto name = std::to_string(round) + " " +
					    std::to_string(modules.size());
				modules.push_back(std::make_unique<Module>(w, file, name));
				is_full = !modules.back()->links();
			}
			CHECK(is_full && modules.size() > 3);
			check_heap(w.heap);
			for (std::size_t i = 0; i + 1 < modules.size(); i++)
				call_all(*modules[i]);
			modules.clear();
			collect(w.heap);
			CHECK(stats_of(w.heap).blocks_open_now == 0);
		}
		load_and_drop(w, file, 0);
	}

	/* For code without a poll: an open collects where the pool is full. */
	static void goes_on_by_cycles(World &w, const char *file)
	{
		const unsigned cycles = static_cast<unsigned>(times(4, 2));
		for (int i = 0; i < 400 && stats_of(w.heap).cycles < cycles; i++)
			load_and_drop(w, file, i);
		CHECK(stats_of(w.heap).cycles >= cycles);
	}
};

} // namespace check

/* For the table of each program. */
/* clang-format off */
#define LIFE_CASES \
	{"exceptions_pass_code", life::exceptions_pass_code}, \
	{"dropped_on_the_stack_is_unwound_through", \
	 life::dropped_on_the_stack_is_unwound_through}, \
	{"dropped_on_the_stack_catches", life::dropped_on_the_stack_catches}, \
	{"many_modules_take_no_room", life::many_modules_take_no_room}, \
	{"access_is_never_write_and_execute", life::access_is_never_write_and_execute}, \
	{"full_pool_is_an_error", life::full_pool_is_an_error}
/* clang-format on */
