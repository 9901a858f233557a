/* SPDX-License-Identifier: MIT
 * cases_code.cc: the code that AsmJit makes runs: loops, constants with an alignment, sections,
 * calls near and far, under PR_SET_MDWE too. */
#include <codeheap/look.h>

#include "cases.h"

/* --- kinds of code --- */

static void run_loop(ch_asmjit_runtime *runtime)
{
	draft d(*runtime, FuncSignatureT<int64_t, const int *, int64_t>());
	x86::Compiler &cc = d.cc;
	x86::Gp p = cc.newIntPtr(), n = cc.newInt64(), sum = cc.newInt64(), word = cc.newInt64();
	Label loop = cc.newLabel(), out = cc.newLabel();
	d.func->setArg(0, p);
	d.func->setArg(1, n);
	cc.xor_(sum, sum);
	cc.test(n, n);
	cc.jz(out);
	cc.bind(loop);
	cc.movsxd(word, x86::dword_ptr(p));
	cc.add(sum, word);
	cc.add(p, 4);
	cc.dec(n);
	cc.jnz(loop);
	cc.bind(out);
	cc.ret(sum);
	int64_t (*fn)(const int *, int64_t);
	OK(runtime->add(&fn, d.done(), "sum"));
	std::vector<int> words;
	int64_t wanted = 0;
	for (int i = 0; i < 1000; wanted += 3 * i - 700, i++)
		words.push_back(3 * i - 700);
	CHECK(fn(words.data(), 1000) == wanted && fn(nullptr, 0) == 0);
	OK(runtime->release(fn));
}

/* movaps and an aligned AVX load fault unless constants are aligned as the compiler assumed. */
static void run_constants(ch_asmjit_runtime *runtime)
{
	draft d(*runtime, FuncSignatureT<void, float *>());
	x86::Compiler &cc = d.cc;
	static const float ones[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	x86::Gp to = cc.newIntPtr();
	d.func->setArg(0, to);
	x86::Xmm xmm = cc.newXmm();
	cc.movaps(xmm, cc.newConst(ConstPoolScope::kGlobal, ones, 16));
	cc.movups(x86::ptr(to), xmm);
	if (CpuInfo::host().hasFeature(CpuFeatures::X86::kAVX)) {
		x86::Ymm ymm = cc.newYmm();
		d.func->frame().setAvxEnabled();
		cc.vmovaps(ymm, cc.newConst(ConstPoolScope::kGlobal, ones, sizeof ones));
		cc.vmovups(x86::ptr(to), ymm);
		cc.vzeroupper();
	}
	void (*fn)(float *);
	OK(runtime->add(&fn, d.done(), "constants"));
	float said[8] = {};
	fn(said);
	CHECK(!memcmp(said, ones, 4 * sizeof(float)));
	OK(runtime->release(fn));
}

static void run_libc(ch_asmjit_runtime *runtime)
{
	caller *fn = add_caller(runtime, address_of(strlen), "calls strlen");
	CHECK(fn(reinterpret_cast<int64_t>("eleven char")) == 12);
	OK(runtime->release(fn));
}

/* A section of its own behind the code, with an alignment and zeroed bytes at its end. */
static void run_sections(ch_asmjit_runtime *runtime)
{
	CodeHolder code;
	OK(code.init(runtime->environment()));
	Section *data;
	OK(code.newSection(&data, ".data", SIZE_MAX, SectionFlags::kReadOnly, 64));
	x86::Assembler a(&code);
	Label table = a.newNamedLabel("table"), start = a.newNamedLabel("reads_table");
	a.bind(start);
	a.lea(x86::rax, x86::ptr(table));
	a.ret();
	OK(a.section(data));
	a.bind(table);
	a.embedUInt64(0x1122334455667788);
	data->setVirtualSize(32);
	const uint64_t *(*fn)();
	OK(runtime->add(&fn, &code));
	const uint64_t *words = fn();
	CHECK(reinterpret_cast<uintptr_t>(words) % 64 == 0 && is_code(runtime->heap(), words));
	CHECK(words[0] == 0x1122334455667788 && !words[1] && !words[2] && !words[3]);
	char name[80];
	ch_address_name(runtime->heap(), address_of(fn), false, name, sizeof name);
	CHECK(strstr(name, "reads_table"));
	OK(runtime->release(fn));
}

/* More than a page of code, in a run of whole pages. */
static void run_large(ch_asmjit_runtime *runtime)
{
	draft d(*runtime, FuncSignatureT<int, int>());
	x86::Gp n = d.cc.newInt32();
	d.func->setArg(0, n);
	for (int i = 0; i < 20000; i++)
		d.cc.add(n, 1000 + i % 2);
	d.cc.ret(n);
	int (*fn)(int);
	OK(runtime->add(&fn, d.done(), "large"));
	CHECK(fn(1) == 20010001);
	OK(runtime->release(fn));
}

static void run_kinds(ch_asmjit_runtime *runtime)
{
	run_loop(runtime);
	run_constants(runtime);
	run_libc(runtime);
	run_sections(runtime);
	run_large(runtime);
}

CASE(code_of_all_kinds_runs)
{
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		OK(runtime.status());
		for (int i = 0; i < 20; i++)
			run_kinds(&runtime);
	}
	{
		ch_asmjit_options options;
		options.release = CH_RELEASE_NOT_RUNNING;
		options.is_unwound = false;
		ch_asmjit_runtime runtime(heap, options);
		OK(runtime.status());
		run_kinds(&runtime);
		CHECK(stats_of(heap).cycles < 100);
	}
	end_heap(heap);
}

/* --- far targets --- */

/* The called function lies in the pool of another heap, more than 4 GiB away. */
static void run_far(ch_asmjit_runtime *runtime, caller *far)
{
	uint64_t there = reinterpret_cast<uintptr_t>(far);
	caller *by_call = add_caller(runtime, address_of(far), "far call");
	int64_t distance = static_cast<int64_t>(there - reinterpret_cast<uintptr_t>(by_call));
	CHECK(distance > INT64_C(1) << 32 || distance < -(INT64_C(1) << 32));
	CHECK(by_call(41) == 41 + 1000 + 1);
	for (int jump = 0; jump < 2; jump++) {
		CodeHolder code;
		OK(code.init(runtime->environment()));
		x86::Assembler a(&code);
		a.test(x86::rdi, x86::rdi);
		if (jump) {
			a.jmp(imm(there));
		} else {
			a.jnz(imm(there));
			a.mov(x86::eax, -5);
			a.ret();
		}
		caller *fn;
		OK(runtime->add(&fn, &code, jump ? "far jump" : "far branch"));
		CHECK(fn(7) == 1007);
		CHECK(jump || static_cast<int>(fn(0)) == -5);
		OK(runtime->release(fn));
	}
	OK(runtime->release(by_call));
}

CASE(far_targets_are_reached)
{
	ch_heap *heap = new_heap();
	ch_heap *away = new_heap(MIB, CH_SINK_DEFAULT, reinterpret_cast<void *>(0x200000000000));
	{
		ch_asmjit_runtime runtime(heap), runtime_away(away);
		draft d(runtime_away, FuncSignatureT<int64_t, int64_t>());
		x86::Gp n = d.cc.newInt64();
		d.func->setArg(0, n);
		d.cc.add(n, 1000);
		d.cc.ret(n);
		caller *far;
		OK(runtime_away.add(&far, d.done(), "far"));
		run_far(&runtime, far);
		/* Data out of reach has no way round: the error is AsmJit's own. */
		CodeHolder code;
		OK(code.init(runtime.environment()));
		x86::Assembler a(&code);
		a.mov(x86::eax, x86::dword_ptr_rel(reinterpret_cast<uintptr_t>(far)));
		a.ret();
		int (*fn)();
		CHECK(runtime.add(&fn, &code) == kErrorRelocOffsetOutOfRange && !fn);
		CHECK(stats_of(heap).blocks_open_now == 0);
	}
	end_heap(heap);
	end_heap(away);
}

/* --- no mapping is writable and executable --- */

CASE(code_runs_where_no_page_may_become_executable)
{
	deny_new_code();
	/* AsmJit's own runtime gets no memory here. */
	ch_heap *heap = new_heap();
	{
		ch_asmjit_runtime runtime(heap);
		for (int i = 0; i < 20; i++)
			run_kinds(&runtime);
		no_mapping_is_writable_and_executable();
	}
	end_heap(heap);
}
