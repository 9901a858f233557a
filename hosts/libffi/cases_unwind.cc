/* SPDX-License-Identifier: MIT
 * cases_unwind.cc: frames of closures: exceptions pass closures, and at each instruction of a
 * closure's code the unwinder finds the caller. */
#include <codeheap/look.h>

#include "cases.h"

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>

#include <ucontext.h>
#include <unwind.h>

/* --- exceptions --- */

static void throws(ffi_cif *, void *result, void **arguments, void *user)
{
	int n;
	std::memcpy(&n, arguments[0], sizeof n);
	if (n > 0)
		throw n;
	ffi_arg said = static_cast<ffi_arg>(*static_cast<int *>(user));
	std::memcpy(result, &said, sizeof said);
}

CASE(exception_passes_a_closure)
{
	place p = place_open(0, 0, nullptr);
	int seven = 7;
	ch_ffi_closure closure = closure_of(&p, &cif_int_int, throws, &seven, "throws");
	int_int *fn = reinterpret_cast<int_int *>(closure.code);
	for (int i = 1; i < 200; i++) {
		CHECK(caught_from(fn, i) == -i);
		CHECK(caught_from(fn, -i) == 7);
	}
	OK(ch_ffi_closure_release(closure, CH_RELEASE_NOT_RUNNING));
	place_close(&p);
}

/* --- step by step --- */

static ch_heap *stepped;
static std::set<uintptr_t> seen;
static volatile sig_atomic_t wrong;
enum { TRAP_FLAG = 0x100 };

extern "C" __attribute__((noinline)) int steps_into(int_int *fn, int n)
{
	int result;
	/* Each instruction from here on raises SIGTRAP, until the handler ends the stepping. */
	__asm__ volatile("pushfq\n\torq $0x100, (%%rsp)\n\tpopfq" ::: "cc", "memory");
	result = fn(n);
	return result + 1;
}

struct walk {
	uintptr_t pcs[32];
	int count;
};

static _Unwind_Reason_Code note(_Unwind_Context *context, void *arg)
{
	walk *w = static_cast<walk *>(arg);
	int is_before;
	uintptr_t pc = _Unwind_GetIPInfo(context, &is_before);
	if (w->count < 32)
		w->pcs[w->count++] = is_before ? pc : pc - 1;
	return _URC_NO_REASON;
}

/* Whether the frame behind the frame at pc is that of steps_into. */
static bool is_called_by_steps_into(uintptr_t pc)
{
	walk w = {};
	_Unwind_Backtrace(note, &w);
	for (int i = 0; i + 1 < w.count; i++)
		if (w.pcs[i] == pc || w.pcs[i] + 1 == pc)
			return _Unwind_FindEnclosingFunction(reinterpret_cast<void *>(
				       w.pcs[i + 1])) == reinterpret_cast<void *>(steps_into);
	return false;
}

static void on_step(int, siginfo_t *, void *ucontext)
{
	ucontext_t *context = static_cast<ucontext_t *>(ucontext);
	uintptr_t pc = static_cast<uintptr_t>(context->uc_mcontext.gregs[REG_RIP]);
	ch_spot spot = {};
	spot.size = sizeof spot;
	if (ch_code_at(stepped, reinterpret_cast<void *>(pc), false, &spot)) {
		char name[64];
		const void *pcs[1];
		if (seen.insert(pc).second &&
		    (!is_called_by_steps_into(pc) ||
		     ch_backtrace(stepped, CH_BACKTRACE_FRAMES, ucontext, pcs, 1) != 1 ||
		     !ch_address_name(stepped, pcs[0], false, name, sizeof name) ||
		     std::strncmp(name, "stepped", 7)))
			wrong = wrong + 1;
	} else if (!seen.empty()) {
		context->uc_mcontext.gregs[REG_EFL] &= ~TRAP_FLAG;
	}
}

CASE(each_instruction_is_unwound)
{
	place p = place_open(0, 0, nullptr);
	int two = 2;
	struct sigaction action = {};
	action.sa_sigaction = on_step;
	action.sa_flags = SA_SIGINFO;
	OK(sigaction(SIGTRAP, &action, nullptr));
	stepped = p.heap;
	ch_ffi_closure closure = closure_of(&p, &cif_int_int, add_user, &two, "stepped");
	/* By address: so the compiler calls no copy of steps_into. */
	int (*volatile by_address)(int_int *, int) = steps_into;
	CHECK(by_address(reinterpret_cast<int_int *>(closure.code), 5) == 8);
	std::printf("%zu instructions, %d not unwound\n", seen.size(), static_cast<int>(wrong));
	CHECK(seen.size() >= 2 && !wrong);
	OK(ch_ffi_closure_release(closure, CH_RELEASE_COLLECT));
	place_close(&p);
}
