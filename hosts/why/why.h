/* SPDX-License-Identifier: MIT
 * why.h: the ways to have code memory that README compares. Each makes the same functions, and
 * frees them; the runs in why.cc know no other difference between them. */
#ifndef CODEHEAP_WHY_H
#define CODEHEAP_WHY_H

#include <cstddef>
#include <cstdint>

/* What a function does beside returning its number. */
enum class kind { RETURNS, CALLS_FIRST };
using callback = void();

struct peer {
	const char *title;
	/* Before the first function of a process. False: this way refuses. */
	bool (*start)();
	/* ret  the function's address, nullptr where there is no memory for it */
	void *(*make)(kind kind, int number, const char *name);
	/* in   is_running  the caller was called by the function that goes */
	void (*release)(void *code, bool is_running);
};

extern const peer plain_mmap, own_cache, asmjit_runtime, llvm_orc, code_heap;

/* x86-64 code that runs at any address and keeps the frame pointer. */
enum { MOST_BYTES = 16 };
std::size_t emit(kind kind, int number, std::uint8_t *bytes);

#endif
