/* SPDX-License-Identifier: MIT
 * frames_rig.h: shared by the C++ tests of unwinding: a heap with a vm, code with frames of several
 * shapes that calls a C function, blocks that catch exceptions themselves, and the unwind sections
 * of these blocks, written byte by byte. */
#pragma once

#include "codeheap/codeheap.h"
#include "tests/support/calls.h"
#include "tests/support/harness.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <unwind.h>
#include <vector>

extern "C" const void *_Unwind_Find_FDE(void *pc, void *bases);
extern "C" void *__cxa_begin_catch(void *) noexcept;
extern "C" void __cxa_end_catch();
extern "C" int __gxx_personality_v0(...);

namespace frames
{

struct bytes {
	std::vector<uint8_t> at;
	bytes &operator()(std::initializer_list<int> more)
	{
		for (int byte : more)
			at.push_back(static_cast<uint8_t>(byte));
		return *this;
	}
	template <typename T> bytes &word(T value)
	{
		uint8_t raw[sizeof value];
		std::memcpy(raw, &value, sizeof value);
		at.insert(at.end(), raw, raw + sizeof value);
		return *this;
	}
	uint32_t size() const
	{
		return static_cast<uint32_t>(at.size());
	}
};

inline bytes instructions(std::initializer_list<uint32_t> words)
{
	bytes b;
	for (uint32_t word : words)
		b.word(word);
	return b;
}
inline void append(bytes &b, const bytes &more)
{
	b.at.insert(b.at.end(), more.at.begin(), more.at.end());
}

/* MISTAKEN: the code of SAVING, under the shape of FRAMED. */
enum shape { FRAMED, FRAMELESS, OWN, SAVING, MISTAKEN };
enum { CAUGHT = 1000 }; /* code that catches adds this to the number */

} // namespace frames

/* plain_code: FRAMED, FRAMELESS or SAVING code that calls fn(argument); before the call, SAVING
 * code changes all registers that a callee keeps. catching_code: code that returns the callee's
 * result, or, when the callee throws a number, the number and CAUGHT more: the call and the landing
 * pad are at CALL_AT and LANDING_AT. FRAMES_CHANGE_REGISTERS: callees change all registers that
 * callers may rely on, so that the unwinder must find the old values. */
#include CH_TEST_CATCH

namespace frames
{

inline bool is_known(const void *pc)
{
	void *bases[3];
	return _Unwind_Find_FDE(const_cast<void *>(pc), bases) != nullptr;
}

/* --- heap --- */

struct rig {
	ch_heap *heap;
	ch_vm *vm;
	uint8_t frameless; /* the shape of code without frame pointer */
};

/* The action of a notice of a block's end. */
inline ch_stats stats_of(const rig &r)
{
	ch_stats stats;
	stats.size = sizeof stats;
	CHECK_EQ(ch_heap_stats(r.heap, &stats), CH_OK);
	return stats;
}

struct mourner {
	void (*freed)(void *arg);
	void *arg;
};

inline void deliver(void *, void *block_user)
{
	auto *mourner = static_cast<frames::mourner *>(block_user);
	if (mourner)
		mourner->freed(mourner->arg);
}

inline ch_config config_of(size_t pool_bytes)
{
	ch_config config;
	ch_config_init(&config);
	config.pool_bytes = pool_bytes;
	config.page_bytes = test_page_bytes();
	return config;
}

inline rig start_with(const ch_config &config)
{
	rig r = {};
	ch_ops ops = {};
	ops.size = sizeof ops;
	ops.block_freed = deliver;
	CHECK_EQ(ch_heap_create(&config, &r.heap), CH_OK);
	CHECK_EQ(ch_vm_attach(r.heap, &ops, nullptr, &r.vm), CH_OK);
	CHECK_EQ(ch_thread_attach(r.heap, nullptr, nullptr), CH_OK);
	CHECK_EQ(ch_frame_register(r.heap, frameless_cfi, sizeof frameless_cfi, &r.frameless),
		 CH_OK);
	return r;
}

inline rig start(size_t pool_bytes)
{
	return start_with(config_of(pool_bytes));
}

inline void check(const rig &r)
{
	char report[300];
	if (ch_heap_check(r.heap, report, sizeof report) != CH_OK)
		FAIL("heap check: %s", report);
}

inline void end(rig &r)
{
	check(r);
	CHECK_EQ(ch_vm_detach(r.vm), CH_OK);
	CHECK_EQ(ch_heap_destroy(r.heap), CH_OK);
}

/* A case with a heap `r`, whose pool has 8 MiB. */
#define TEST_FRAMES(name) TEST_WITH(name, rig, r, start(8 << 20), end(r))

inline ch_owner new_owner(const rig &r, const char *name)
{
	ch_owner owner;
	CHECK_EQ(ch_owner_create(r.vm, name, reinterpret_cast<const void *>(&is_known), nullptr,
				 &owner),
		 CH_OK);
	return owner;
}

/* --- code: `int code(int (*fn)(int), int argument)` calls fn(argument) --- */

using callee = int(int);
using entry = int(callee *, int);

struct block {
	ch_owner owner;
	ch_block handle;
	const uint8_t *exec;
	uint32_t size; /* bytes of code */
	entry *run() const
	{
		return reinterpret_cast<entry *>(const_cast<uint8_t *>(exec));
	}
};

inline ch_status open_block(const rig &r, shape kind, uint32_t size, ch_owner owner, void *user,
			    ch_code *code)
{
	ch_open open = {};
	open.size = sizeof open;
	open.owner = owner;
	open.hot_bytes = size;
	open.frame = kind == FRAMELESS ? r.frameless : kind == SAVING ? CH_FRAME_KEEPS_ALL : 0;
	open.flags = kind == OWN ? CH_OPEN_OWN_FRAMES : 0;
	open.user = user;
	return ch_block_open(&open, code);
}

inline block commit_block(ch_code &code, const bytes &b, ch_owner owner)
{
	CHECK(b.size() <= code.hot_bytes);
	std::memcpy(code.write, b.at.data(), b.size());
	code.used_to = b.size();
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, code.block), CH_OK);
	return {owner, code.block, code.exec, b.size()};
}

/* Code of a page: not OWN. */
inline block new_block(const rig &r, shape kind, const char *name)
{
	bytes b = plain_code(kind == MISTAKEN ? SAVING : kind);
	ch_owner owner = new_owner(r, name);
	ch_code code;
	CHECK_EQ(open_block(r, kind, b.size(), owner, nullptr, &code), CH_OK);
	return commit_block(code, b, owner);
}

__attribute__((noinline)) inline int call_on(callee *fn, int number)
{
	int result = fn(number);
	asm volatile("" ::: "memory"); /* not a tail call */
	return result;
}

/* A trampoline to code that does the same. Without an entry a trampoline lives for two cycles, and
 * other threads may run a third meanwhile: then a new trampoline is made. */
inline block new_stamped(const rig &r, const char *name)
{
	ch_owner owner = new_owner(r, name);
	ch_block handle;
	ch_info info = {};
	info.size = sizeof info;
	ch_status status;
	do {
		CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED,
					    reinterpret_cast<const void *>(&call_on), 0, nullptr,
					    nullptr, &handle),
			 CH_OK);
		status = ch_owner_set_entry(owner, handle);
	} while (status == CH_E_STALE);
	CHECK_EQ(status, CH_OK);
	CHECK_EQ(ch_block_info(handle, &info), CH_OK);
	return {owner, handle, info.entry, 4};
}

/* --- code that catches --- */

enum encoding { ABSOLUTE = 0x00, PC_RELATIVE = 0x1b };

/* An LSDA with a single call site, whose landing pad takes everything. */
inline bytes catch_all_lsda()
{
	bytes b;
	b({0xff});                    /* landing pads are relative to the function */
	b({0x00, 1 + 1 + 4 + 2 + 8}); /* types are absolute; their end from here */
	b({0x01, 4, CALL_AT, CALL_BYTES, LANDING_AT, 1});
	b({1, 0});                  /* action 1: type 1, no next action */
	return b.word(uint64_t(0)); /* type 1: any */
}

inline void finish_record(bytes &b, size_t start)
{
	while (b.size() % 8)
		b({0}); /* DW_CFA_nop */
	uint32_t length = b.size() - static_cast<uint32_t>(start) - 4;
	std::memcpy(b.at.data() + start, &length, sizeof length);
}

/* The section of a block of catching_code, for the address `place`, with the LSDA behind. */
inline bytes catching_section(const uint8_t *place, const uint8_t *exec, uint32_t code_bytes,
			      encoding pcs)
{
	bytes b;
	b.word(uint32_t(0)).word(uint32_t(0));      /* length, id of a CIE */
	b({1, 'z', 'P', 'L', 'R', 0, 1, 0x78, RETURN_COLUMN}); /* alignments 1 and -8 */
	b({1 + 8 + 1 + 1, ABSOLUTE}).word(reinterpret_cast<uintptr_t>(&__gxx_personality_v0));
	b({ABSOLUTE, pcs});            /* of the LSDA's address, and of pcs */
	initial_rules(b);
	finish_record(b, 0);
	size_t fde = b.size();
	b.word(uint32_t(0)).word(uint32_t(fde + 4)); /* length, distance to the CIE */
	if (pcs == ABSOLUTE)
		b.word(reinterpret_cast<uintptr_t>(exec)).word(uint64_t(code_bytes));
	else
		b.word(int32_t(exec - (place + b.size()))).word(code_bytes);
	b({8});
	size_t lsda_at = b.size();
	b.word(uint64_t(0));
	catching_rules(b);
	finish_record(b, fde);
	b.word(uint32_t(0)).word(uint32_t(0)); /* the end */
	uintptr_t lsda = reinterpret_cast<uintptr_t>(place) + b.size();
	std::memcpy(b.at.data() + lsda_at, &lsda, sizeof lsda);
	bytes tail = catch_all_lsda();
	b.at.insert(b.at.end(), tail.at.begin(), tail.at.end());
	return b;
}

enum { TABLE_BYTES = 256 };

/* A block that catches. memory: TABLE_BYTES of the caller's, 8-aligned. */
inline block new_catcher(const rig &r, const char *name, uint8_t *memory, void *user,
			 encoding pcs = ABSOLUTE)
{
	bytes b = catching_code();
	ch_owner owner = new_owner(r, name);
	ch_code code;
	CHECK_EQ(open_block(r, OWN, b.size(), owner, user, &code), CH_OK);
	bytes section = catching_section(memory, code.exec, b.size(), pcs);
	CHECK(section.size() <= TABLE_BYTES);
	std::memcpy(memory, section.at.data(), section.size());
	code.eh_frame = memory;
	return commit_block(code, b, owner);
}

/* The section of a block of plain_code(FRAMELESS), without personality. */
inline bytes plain_section(const uint8_t *exec, uint32_t code_bytes)
{
	bytes b;
	b.word(uint32_t(0)).word(uint32_t(0));
	b({1, 0, 1, 0x78, RETURN_COLUMN}); /* no augmentation; alignments 1 and -8 */
	frameless_rules(b);
	finish_record(b, 0);
	size_t fde = b.size();
	b.word(uint32_t(0)).word(uint32_t(fde + 4));
	b.word(reinterpret_cast<uintptr_t>(exec)).word(uint64_t(code_bytes));
	finish_record(b, fde);
	return b.word(uint32_t(0));
}

/* A block with a table that catches nothing. memory: TABLE_BYTES of the caller's, 8-aligned. */
inline block new_plain_own(const rig &r, const char *name, uint8_t *memory, void *user)
{
	bytes b = plain_code(FRAMELESS);
	ch_owner owner = new_owner(r, name);
	ch_code code;
	CHECK_EQ(open_block(r, OWN, b.size(), owner, user, &code), CH_OK);
	bytes section = plain_section(code.exec, b.size());
	std::memcpy(memory, section.at.data(), section.size());
	code.eh_frame = memory;
	return commit_block(code, b, owner);
}

/* Asks at the first, a middle and the last byte. */
inline bool is_block_known(const block &b)
{
	bool first = is_known(b.exec);
	CHECK_EQ(is_known(b.exec + b.size / 2), first);
	CHECK_EQ(is_known(b.exec + b.size - 1), first);
	return first;
}

inline void release(const block &b)
{
	CHECK_EQ(ch_owner_release(b.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
}

/* --- callees --- */

__attribute__((noinline)) inline int throw_it(int number)
{
	FRAMES_CHANGE_REGISTERS();
	throw number;
}

__attribute__((noinline)) inline int return_it(int number)
{
	FRAMES_CHANGE_REGISTERS();
	return number;
}

struct run {
	const block *b;
	callee *fn;
	int number;
};

/* A number that the code throws comes back negative. */
__attribute__((noinline)) inline int run_and_catch(const run *r)
{
	try {
		return r->b->run()(r->fn, r->number);
	} catch (int caught) {
		return -caught;
	}
}

/* In asm below: calls fn(arg) with patterns in the callee-saved registers. Returns true when the
 * registers still have the patterns. */
extern "C" bool frames_keeps_registers(int (*fn)(const run *), const run *arg, int *result);

inline int catch_from(const block &b, callee *fn, int number)
{
	run r = {&b, fn, number};
	int result = 0;
	if (!frames_keeps_registers(run_and_catch, &r, &result))
		FAIL("a callee-saved register is another one behind the catch");
	return result;
}

} // namespace frames
