/* SPDX-License-Identifier: MIT
 * cases_told.cc: names of AsmJit's code in backtraces and in the perf map, and exceptions through
 * the frames of the code. */
#include <codeheap/look.h>

#include "cases.h"

#include <string>

static ch_heap *traced;
static std::string by_tables, by_frames;

static std::string trace(enum ch_backtrace how)
{
	const void *pcs[64];
	char text[256];
	std::string all;
	size_t count = ch_backtrace(traced, how, nullptr, pcs, 64);
	for (size_t i = 0; i < count; i++) {
		ch_address_name(traced, pcs[i], true, text, sizeof text);
		all += text;
		all += '\n';
	}
	return all;
}

extern "C" int64_t look_around(int64_t n)
{
	by_tables = trace(CH_BACKTRACE_TABLES);
	by_frames = trace(CH_BACKTRACE_FRAMES);
	return n;
}

/* Exported, to have a name in backtraces. */
extern "C" __attribute__((noinline, visibility("default"))) int64_t call_from_c(caller *fn,
										int64_t n)
{
	int64_t result = fn(n);
	return result + 1;
}

/* Whether the text has the names one behind the other, innermost first. */
static bool in_order(const std::string &text, std::initializer_list<const char *> names)
{
	size_t at = 0;
	for (const char *name : names) {
		at = text.find(name, at);
		if (at == std::string::npos) {
			fprintf(stderr, "no %s in\n%s", name, text.c_str());
			return false;
		}
	}
	return true;
}

CASE(backtrace_names_functions_and_reaches_main)
{
	traced = new_heap();
	{
		ch_asmjit_runtime runtime(traced);
		caller *inner = add_caller(&runtime, address_of(look_around), "inner of asmjit");
		caller *outer = add_caller(&runtime, address_of(inner), "outer of asmjit");
		CHECK(call_from_c(outer, 5) == 8);
		CHECK(in_order(by_tables, {"look_around", "inner of asmjit", "outer of asmjit",
					   "call_from_c", "main"}));
		CHECK(in_order(by_frames, {"inner of asmjit", "outer of asmjit", "call_from_c"}));
	}
	end_heap(traced);
}

/* --- exceptions --- */

extern "C" int64_t throw_it(int64_t n)
{
	if (n > 0)
		throw n;
	return n;
}

CASE(exception_passes_code_with_a_frame_pointer)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		caller *inner = add_caller(&runtime, address_of(throw_it), "inner");
		caller *outer = add_caller(&runtime, address_of(inner), "outer");
		for (int i = 1; i < 200; i++) {
			CHECK(caught_from<int64_t>(outer, i) == -i);
			CHECK(caught_from<int64_t>(outer, 1 - i) == 3 - i);
		}
	}
	end_heap(heap);
}

/* A function that keeps values in all registers over a call, which may throw: 15 n, and more. */
static caller *add_busy_caller(ch_asmjit_runtime *runtime, const void *callee, const char *name)
{
	draft d(*runtime, FuncSignatureT<int64_t, int64_t>());
	x86::Compiler &cc = d.cc;
	x86::Gp n = cc.newInt64(), sum = cc.newInt64(), values[7];
	InvokeNode *call;
	d.func->setArg(0, n);
	for (int i = 0; i < 7; i++) {
		values[i] = cc.newInt64();
		cc.mov(values[i], n);
		cc.add(values[i], i);
	}
	OK(cc.invoke(&call, imm(reinterpret_cast<uintptr_t>(callee)),
		     FuncSignatureT<int64_t, int64_t>()));
	call->setArg(0, n);
	call->setRet(0, sum);
	for (x86::Gp &value : values)
		cc.add(sum, value);
	cc.ret(sum);
	caller *fn;
	OK(runtime->add(&fn, d.done(), name));
	return fn;
}

CASE(exception_passes_code_that_saves_registers)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_options options;
		options.passes_exceptions = true;
		ch_asmjit_runtime runtime(heap, options);
		OK(runtime.status());
		caller *inner = add_busy_caller(&runtime, address_of(throw_it), "inner");
		caller *outer = add_busy_caller(&runtime, address_of(inner), "outer");
		for (int i = 1; i < 200; i++) {
			CHECK(caught_from<int64_t>(outer, i) == -i);
			CHECK(caught_from<int64_t>(outer, 1 - i) == 15 * (1 - i) + 42);
		}
	}
	end_heap(heap);
}

/* --- names --- */

static void require(bool are_there, std::initializer_list<const char *> names)
{
	for (const char *name : names)
		if (file_has(perf_map(), name) != are_there)
			case_failed(__FILE__, __LINE__, name);
}

/* A separate function: stale words of its frame would hold code while names are looked for. */
__attribute__((noinline)) static void name_and_release(ch_asmjit_runtime *runtime)
{
	/* Names by argument, by a label at the beginning, by the first label with a name. */
	int (*given)(int) = add_adder(runtime, 1, "given by argument");
	int (*labelled[2])();
	for (int i = 0; i < 2; i++) {
		CodeHolder code;
		OK(code.init(runtime->environment()));
		x86::Assembler a(&code);
		if (i)
			a.nop();
		a.bind(a.newNamedLabel(i ? "label_behind" : "label_in_front"));
		a.mov(x86::eax, 5);
		a.bind(a.newNamedLabel("label_at_the_end"));
		a.ret();
		OK(runtime->add(&labelled[i], &code));
		CHECK(labelled[i]() == 5);
	}
	OK(ch_sink_flush(runtime->heap()));
	require(true, {"given by argument", "label_behind", "label_in_front"});
	require(false, {"label_at_the_end"});
	OK(runtime->release(given));
	OK(runtime->release(labelled[1]));
}

CASE(names_are_in_the_perf_map_until_code_is_collected)
{
	ch_heap *heap = new_heap(0, CH_SINK_UNWIND | CH_SINK_PERF_MAP);
	{
		ch_asmjit_runtime runtime(heap);
		name_and_release(&runtime);
		collect(heap);
		OK(ch_sink_flush(heap));
		require(false, {"given by argument", "label_behind"});
		require(true, {"label_in_front"});
	}
	end_heap(heap);
	unlink(perf_map());
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv);
}
