/* SPDX-License-Identifier: MIT
 * why.h: the ways to have code memory that README compares. Each way makes the same functions, and
 * frees them; the runs in why.cc treat all ways alike. */
#pragma once

#include <cstddef>
#include <cstdint>

/* A function returns its number, and may call a callback first. */
enum class kind { RETURNS, CALLS_FIRST };
using callback = void();

struct peer {
	const char *title;
	/* Called before the first function of a process. False = the way refuses. */
	bool (*start)();
	/* ret  the function's address, nullptr without memory */
	void *(*make)(kind kind, int number, const char *name);
	/* in   is_running  the function to free has called the caller */
	void (*release)(void *code, bool is_running);
};

extern const peer plain_mmap, own_cache, asmjit_runtime, llvm_orc, code_heap;

/* x86-64 code that runs at any address and keeps the frame pointer. */
enum { MOST_BYTES = 16 };
std::size_t emit(kind kind, int number, std::uint8_t *bytes);
