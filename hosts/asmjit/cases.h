/* SPDX-License-Identifier: MIT
 * cases.h: shared by the cases of the AsmJit runtime: checks, heaps, small functions made with
 * AsmJit's compiler. */
#pragma once

#include "codeheap_asmjit.h"

#include <asmjit/x86.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <csignal>
#include <cstdlib>

using namespace asmjit;

#define CHECK(what) ((what) ? (void)0 : failed(__FILE__, __LINE__, #what))
#define OK(call) CHECK((call) == 0)

[[noreturn]] inline void failed(const char *file, int line, const char *what)
{
	std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
	std::_Exit(1);
}

/* A case registers itself. Each case runs in a process of its own (cases.cc). */
struct test_case {
	const char *name;
	void (*run)();
	test_case *next;
	static inline test_case *first = nullptr;
	test_case(const char *its_name, void (*its_run)())
	    : name(its_name), run(its_run), next(first)
	{
		first = this;
	}
};
#define CASE(name)                                       \
	static void name();                              \
	static test_case registered_##name(#name, name); \
	static void name()

/* The machine lacks what a case needs. */
[[noreturn]] inline void skip(const char *reason)
{
	std::printf("skip: %s\n", reason);
	std::exit(77);
}

enum { MIB = 1 << 20 };

inline ch_heap *new_heap(size_t pool_bytes = 0, unsigned sinks = CH_SINK_DEFAULT,
			 const void *near_address = nullptr)
{
	ch_config config;
	ch_config_init(&config);
	config.pool_bytes = pool_bytes;
	config.sinks = sinks;
	config.near_address = near_address;
	config.stop_signal = SIGUSR2;
	config.stop_wait_ms = 20000; /* a loaded machine is no stopped thread's fault */
	ch_heap *heap;
	OK(ch_heap_create(&config, &heap));
	return heap;
}

inline ch_stats stats_of(ch_heap *heap)
{
	ch_stats stats;
	stats.size = sizeof stats;
	OK(ch_heap_stats(heap, &stats));
	return stats;
}

inline void check(ch_heap *heap)
{
	char report[512];
	if (ch_heap_check(heap, report, sizeof report) != CH_OK)
		failed(__FILE__, __LINE__, report);
}

inline void end(ch_heap *heap)
{
	check(heap);
	OK(ch_heap_destroy(heap));
}

/* Three cycles: a new block without an entry is held through the second one. */
inline void collect(ch_heap *heap)
{
	for (int i = 0; i < 3; i++)
		OK(ch_heap_collect(heap));
}

/* Clears the dead frames below sp: stale words of earlier calls would hold code. */
__attribute__((noinline)) inline void scrub_stack()
{
	volatile char bytes[16384];
	for (volatile char &byte : bytes)
		byte = 0;
}

inline bool is_code(ch_heap *heap, const void *address)
{
	ch_spot spot = {};
	spot.size = sizeof spot;
	return ch_code_at(heap, address, false, &spot);
}

/* --- code made with AsmJit's compiler --- */

struct complaints : ErrorHandler {
	void handleError(Error, const char *message, BaseEmitter *) override
	{
		failed(__FILE__, __LINE__, message);
	}
};
inline complaints complain;

/* A function under construction: the holder and its compiler. */
struct draft {
	CodeHolder code;
	x86::Compiler cc;
	FuncNode *func = nullptr;
	draft(const ch_asmjit_runtime &runtime, const FuncSignature &signature)
	{
		OK(code.init(runtime.environment()));
		code.setErrorHandler(&complain);
		OK(code.attach(&cc));
		func = cc.addFunc(signature);
		runtime.prepare(func);
	}
	CodeHolder *done()
	{
		OK(cc.endFunc());
		OK(cc.finalize());
		return &code;
	}
};

/* n + more */
inline CodeHolder *draft_adder(draft *d, int more)
{
	x86::Gp n = d->cc.newInt32("n");
	d->func->setArg(0, n);
	d->cc.add(n, more);
	d->cc.ret(n);
	return d->done();
}

inline int (*add_adder(ch_asmjit_runtime *runtime, int more, const char *name))(int)
{
	draft d(*runtime, FuncSignatureT<int, int>());
	int (*fn)(int);
	OK(runtime->add(&fn, draft_adder(&d, more), name));
	return fn;
}

/* Calls the callee with the first argument, and adds one. */
inline CodeHolder *draft_caller(draft *d, uint64_t callee)
{
	InvokeNode *call;
	x86::Gp n = d->cc.newInt64("n"), result = d->cc.newInt64("result");
	d->func->setArg(0, n);
	OK(d->cc.invoke(&call, imm(callee), FuncSignatureT<int64_t, int64_t>()));
	call->setArg(0, n);
	call->setRet(0, result);
	d->cc.add(result, 1);
	d->cc.ret(result);
	return d->done();
}

typedef int64_t caller(int64_t);

inline caller *add_caller(ch_asmjit_runtime *runtime, const void *callee, const char *name)
{
	draft d(*runtime, FuncSignatureT<int64_t, int64_t>());
	caller *fn;
	OK(runtime->add(&fn, draft_caller(&d, reinterpret_cast<uintptr_t>(callee)), name));
	return fn;
}

template <class Function> inline const void *address_of(Function *function)
{
	return reinterpret_cast<const void *>(function);
}
