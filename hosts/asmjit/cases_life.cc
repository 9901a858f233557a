/* SPDX-License-Identifier: MIT
 * cases_life.cc: functions come and go: in flat memory, from inside themselves, in threads;
 * handles; a full pool; misuse; fork. */
#include <codeheap/look.h>

#include "cases.h"

#include <atomic>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

/* --- life --- */

static ch_asmjit_runtime *inside;

static void make_100000(ch_release release)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_options options;
		options.release = release;
		ch_asmjit_runtime runtime(heap, options);
		inside = &runtime;
		auto make = [](int number) {
			return reinterpret_cast<void *>(add_adder(inside, number, "adder"));
		};
		churn(heap, make, [](void *code, int number) {
			CHECK(reinterpret_cast<int (*)(int)>(code)(1) == number + 1);
			OK(inside->release(code));
		});
	}
	end_heap(heap);
}

CASE(hundred_thousand_functions_in_flat_memory_collected)
{
	make_100000(CH_RELEASE_COLLECT);
}

CASE(hundred_thousand_functions_in_flat_memory_released_at_once)
{
	make_100000(CH_RELEASE_NOT_RUNNING);
}

static const void *inside_fn;

extern "C" int64_t release_and_collect(int64_t n)
{
	CHECK(inside->release(inside_fn) == kErrorOk);
	CHECK(inside->release(inside_fn) == kErrorInvalidState);
	collect(inside->heap());
	collect(inside->heap());
	CHECK(is_code(inside->heap(), inside_fn));
	return n * 2;
}

__attribute__((noinline)) static uintptr_t release_from_inside()
{
	caller *fn = add_caller(inside, address_of(release_and_collect), "releases itself");
	inside_fn = address_of(fn);
	CHECK(fn(4) == 9);
	uintptr_t address = ~reinterpret_cast<uintptr_t>(fn);
	inside_fn = nullptr;
	return address;
}

CASE(function_releases_itself_and_returns)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		inside = &runtime;
		for (int i = 0; i < 50; i++) {
			uintptr_t hidden = release_from_inside();
			collect(heap);
			CHECK(!is_code(heap, reinterpret_cast<const void *>(~hidden)));
		}
	}
	end_heap(heap);
}

CASE(two_threads_add_run_and_release)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		OK(runtime.attach());
		auto work = [&runtime](int seed) {
			for (int i = 0; i < 3000; i++) {
				int (*fn)(int) = add_adder(&runtime, seed + i, "of a thread");
				CHECK(fn(5) == seed + i + 5);
				OK(runtime.release(fn));
				if (i % 500 == 0)
					OK(ch_heap_collect(runtime.heap()));
			}
		};
		std::thread one(work, 1000000), two(work, 2000000);
		one.join();
		two.join();
		/* Both threads were detached as they ended: only the calling thread is left. */
		CHECK(stats_of(heap).threads_now == 1);
		CHECK(stats_of(heap).cycles > 4 && stats_of(heap).cycles_abandoned == 0);
	}
	end_heap(heap);
}

/* --- handles --- */

static int interpret(int n)
{
	return -n;
}

CASE(handle_calls_what_is_there)
{
	ch_heap *heap = new_heap();
	ch_asmjit_function<int(int)> outlives;
	{
		ch_asmjit_runtime runtime(heap);
		ch_asmjit_function<int(int)> f, g;
		CHECK(!f);
		draft first(runtime, FuncSignatureT<int, int>());
		CHECK(runtime.replace(&f, draft_adder(&first, 1)) == kErrorInvalidArgument);
		OK(runtime.add(&f, &first.code, "adds", interpret));
		CHECK(f && f(1) == 2);
		for (int i = 2; i < 500; i++) {
			draft more(runtime, FuncSignatureT<int, int>());
			OK(runtime.replace(&f, draft_adder(&more, i)));
			CHECK(f(1) == 1 + i);
		}
		collect(heap);
		CHECK(f(1) == 500 && stats_of(heap).blocks_now <= 3);
		OK(ch_vm_discard(heap, runtime.vm(), nullptr, nullptr));
		CHECK(f(7) == -7);
		draft again(runtime, FuncSignatureT<int, int>());
		OK(runtime.replace(&f, draft_adder(&again, 3)));
		CHECK(f(7) == 10);
		g = std::move(f);
		CHECK(!f && g(7) == 10);
		draft other(runtime, FuncSignatureT<int, int>());
		OK(runtime.add(&g, draft_adder(&other, 20))); /* releases the old function of g */
		CHECK(g(1) == 21);
		collect(heap);
		CHECK(stats_of(heap).owners_now <= 3);
		draft last(runtime, FuncSignatureT<int, int>());
		OK(runtime.add(&f, draft_adder(&last, 30)));
		g = std::move(f); /* so does an assignment */
		CHECK(!f && g(1) == 31);
		outlives = std::move(g);
	}
	collect(heap);
	CHECK(stats_of(heap).blocks_now == 0);
	end_heap(heap);
}

CASE(call_without_code_and_fallback_traps)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		ch_asmjit_function<int(int)> f;
		draft d(runtime, FuncSignatureT<int, int>());
		OK(runtime.add(&f, draft_adder(&d, 1), "gone"));
		pid_t child = fork();
		if (child == 0) {
			OK(ch_trap_install(heap));
			CHECK(freopen("/dev/null", "w", stderr));
			OK(ch_vm_discard(heap, runtime.vm(), nullptr, nullptr));
			_exit(f(1));
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	}
	end_heap(heap);
}

CASE(handle_is_replaced_while_another_thread_calls)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		ch_asmjit_function<int(int)> f;
		std::atomic<bool> begins{false}, ends{false};
		draft first(runtime, FuncSignatureT<int, int>());
		OK(runtime.add(&f, draft_adder(&first, 0), "replaced", interpret));
		std::thread calls([&] {
			OK(runtime.attach());
			int last = 0;
			while (!ends) {
				int now = f(0);
				CHECK(now >= last);
				last = now;
				begins = true;
			}
		});
		while (!begins)
			ch_thread_poll();
		for (int i = 1; i < 3000; i++) {
			draft more(runtime, FuncSignatureT<int, int>());
			OK(runtime.replace(&f, draft_adder(&more, i)));
			if (i % 300 == 0)
				OK(ch_heap_collect(heap));
		}
		ends = true;
		calls.join();
		CHECK(stats_of(heap).blocks_freed > 1000 && f(1) == 3000);
	}
	end_heap(heap);
}

/* --- what fails --- */

CASE(full_pool_is_an_error_then_there_is_room)
{
	ch_heap *heap = new_heap(MIB);
	{
		ch_asmjit_runtime runtime(heap);
		std::vector<int (*)(int)> made;
		draft failing(runtime, FuncSignatureT<int, int>());
		draft_adder(&failing, -1);
		int (*fn)(int);
		for (;;) {
			draft d(runtime, FuncSignatureT<int, int>());
			Error error = runtime.add(&fn, draft_adder(&d, int(made.size())), "fills");
			if (error) {
				CHECK(error == kErrorOutOfMemory && !fn);
				break;
			}
			made.push_back(fn);
		}
		printf("%zu functions in 1 MiB\n", made.size());
		CHECK(made.size() > 1000);
		CHECK(runtime.add(&fn, &failing.code) == kErrorOutOfMemory && !fn);
		ch_stats stats = stats_of(heap);
		CHECK(stats.blocks_open_now == 0 && stats.blocks_now == made.size());
		for (size_t i = 0; i < made.size(); i++)
			CHECK(made[i](1) == int(i) + 1);
		for (size_t i = 0; i < made.size(); i += 2)
			OK(runtime.release(made[i]));
		/* The same CodeHolder again. add() collects by itself. */
		OK(runtime.add(&fn, &failing.code, "found room"));
		CHECK(fn(1) == 0);
		for (size_t i = 1; i < made.size(); i += 2)
			CHECK(made[i](1) == int(i) + 1);
	}
	end_heap(heap);
}

CASE(misuse_is_an_error)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_options crooked;
		crooked.alignment = 48;
		ch_asmjit_runtime refused(heap, crooked), runtime(heap), other(heap);
		CHECK(refused.status() == kErrorInvalidArgument);
		crooked.alignment = 16;
		crooked.passes_exceptions = true;
		crooked.is_unwound = false;
		CHECK(ch_asmjit_runtime(heap, crooked).status() == kErrorInvalidArgument);
		crooked.passes_exceptions = false;
		crooked.frame = 9;
		CHECK(ch_asmjit_runtime(heap, crooked).status() == kErrorInvalidArgument);
		crooked.is_unwound = true;
		ch_asmjit_runtime unknown(heap, crooked); /* no frame has this number */
		draft d(runtime, FuncSignatureT<int, int>());
		int (*fn)(int) = interpret;
		CHECK(unknown.add(&fn, draft_adder(&d, 1)) == kErrorInvalidArgument && !fn);
		fn = interpret;
		CHECK(refused.add(&fn, &d.code) == kErrorInvalidArgument && !fn);
		CodeHolder empty;
		OK(empty.init(runtime.environment()));
		fn = interpret;
		CHECK(runtime.add(&fn, &empty) == kErrorNoCodeGenerated && !fn);
		CHECK(stats_of(heap).blocks_now == 0);
		OK(runtime.add(&fn, &d.code, "misused"));
		CHECK(runtime.release(nullptr) == kErrorInvalidArgument);
		CHECK(runtime.release(interpret) == kErrorInvalidArgument);
		CHECK(other.release(fn) == kErrorInvalidArgument);
		const uint8_t *at = static_cast<const uint8_t *>(address_of(fn));
		CHECK(runtime.release(at + 1) == kErrorInvalidArgument);
		CHECK(fn(4) == 5);
		OK(runtime.release(fn));
		CHECK(runtime.release(fn) != kErrorOk);
		Section *bss;
		CodeHolder huge;
		OK(huge.init(runtime.environment()));
		x86::Assembler a(&huge);
		a.ret();
		OK(huge.newSection(&bss, ".bss", SIZE_MAX, SectionFlags::kNone, 8));
		for (uint64_t size : {UINT64_C(1) << 30, UINT64_C(1) << 32}) {
			bss->setVirtualSize(size);
			CHECK(runtime.add(&fn, &huge) == kErrorTooLarge && !fn);
		}
		for (int i = 0; i < 100; i++)
			add_adder(&runtime, i, "ends with reset");
		OK(runtime.reset());
		collect(heap);
		/* The stack may hold some of the old functions. */
		CHECK(stats_of(heap).blocks_now <= 3);
		CHECK(add_adder(&runtime, 2, "after reset")(2) == 4);
	}
	end_heap(heap);
}

CASE(runtime_that_may_not_collect_does_not)
{
	ch_heap *heap = new_heap(MIB);
	{
		ch_asmjit_options options;
		options.may_collect = false;
		ch_asmjit_runtime runtime(heap, options);
		Error error;
		do {
			draft d(runtime, FuncSignatureT<int, int>());
			int (*fn)(int);
			error = runtime.add(&fn, draft_adder(&d, 1), "gone");
			CHECK(error ? !fn : runtime.release(fn) == kErrorOk);
		} while (!error);
		CHECK(error == kErrorOutOfMemory && stats_of(heap).cycles == 0);
		collect(heap);
		CHECK(add_adder(&runtime, 1, "room")(1) == 2);
	}
	end_heap(heap);
}

CASE(address_of_a_function_that_is_gone_is_no_argument)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_options at_once;
		at_once.release = CH_RELEASE_NOT_RUNNING;
		ch_asmjit_runtime runtime(heap, at_once);
		int (*fn)(int) = add_adder(&runtime, 1, "at once");
		OK(runtime.release(fn));
		CHECK(runtime.release(fn) == kErrorInvalidArgument);
	}
	end_heap(heap);
}

CASE(label_that_is_nowhere_names_nothing)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		CodeHolder code;
		OK(code.init(runtime.environment()));
		x86::Assembler a(&code);
		CHECK(a.newNamedLabel("nowhere").isValid());
		a.ret();
		void (*fn)();
		OK(runtime.add(&fn, &code));
		char name[64];
		ch_address_name(heap, address_of(fn), false, name, sizeof name);
		CHECK(!strncmp(name, "asmjit", 6));
	}
	end_heap(heap);
}

CASE(add_that_succeeds_leaves_no_word_of_a_failure)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		CHECK(add_adder(&runtime, 1, "first")(1) == 2);
		CHECK(add_adder(&runtime, 2, "second")(1) == 3);
		CHECK(!*ch_why());
	}
	end_heap(heap);
}

/* --- fork --- */

CASE(child_of_fork_has_code_of_its_own)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		int (*fn)(int) = add_adder(&runtime, 3, "inherited");
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			CHECK(fn(1) == 4);
			CHECK(add_adder(&runtime, 9, "of the child")(1) == 10);
			OK(runtime.release(fn));
			fn = nullptr;
			collect(heap);
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) &&
		      WEXITSTATUS(status) == 0);
		CHECK(fn(1) == 4);
	}
	end_heap(heap);
}
