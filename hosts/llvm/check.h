/* SPDX-License-Identifier: MIT
 * check.h: shared by the checks of both memory managers: cases by name, and how a failure is said.
 * A case that returns has passed. */
#pragma once

#include <codeheap/codeheap.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>

#define CHECK(condition)                                             \
	do {                                                         \
		if (!(condition))                                    \
			check::fail(__FILE__, __LINE__, #condition); \
	} while (0)

namespace check
{

[[noreturn]] inline void fail(const char *file, int line, const char *what)
{
	std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
	std::_Exit(1);
}

enum { SKIPPED = 77, MDWE_OF_PRCTL = 65, MDWE_REFUSES_GAIN = 1 };

/* With CHECK_MDWE=1 the process denies itself new executable rights before there is a heap. */
inline void deny_if_asked()
{
	const char *asked = std::getenv("CHECK_MDWE");
	if (!asked || std::strcmp(asked, "1") != 0)
		return;
	if (prctl(MDWE_OF_PRCTL, MDWE_REFUSES_GAIN, 0L, 0L, 0L) != 0) {
		std::printf("skip: this kernel has no PR_SET_MDWE: %s\n", std::strerror(errno));
		std::exit(SKIPPED);
	}
}

/* CODEHEAP_TEST_LONG=1: all known; else some. */
inline int times(int all, int some)
{
	const char *asked = std::getenv("CODEHEAP_TEST_LONG");
	return asked && std::strcmp(asked, "1") == 0 ? all : some;
}

inline ch_stats statistics(ch_heap *heap)
{
	ch_stats stats;
	stats.size = sizeof stats;
	CHECK(ch_heap_stats(heap, &stats) == CH_OK);
	return stats;
}

inline void sound(ch_heap *heap)
{
	char report[512];
	if (ch_heap_check(heap, report, sizeof report) != CH_OK)
		fail(__FILE__, __LINE__, report);
}

/* Stale words of earlier calls on the stack would hold blocks. */
[[gnu::noinline]] inline void clear_stack()
{
	volatile char room[32768];
	for (std::size_t i = 0; i < sizeof room; i++)
		room[i] = 0;
}

inline void collect(ch_heap *heap)
{
	clear_stack();
	for (int i = 0; i < 3; i++)
		CHECK(ch_heap_collect(heap) == CH_OK);
}

/* The access rights of an address, as "r-xp"; "" = not mapped. No mapping may have w and x. */
inline std::string rights_at(const void *address)
{
	std::ifstream maps("/proc/self/maps");
	std::string found;
	auto at = reinterpret_cast<std::uintptr_t>(address);
	for (std::string line; std::getline(maps, line);) {
		unsigned long low, high;
		char rights[8];
		if (std::sscanf(line.c_str(), "%lx-%lx %7s", &low, &high, rights) != 3)
			continue;
		CHECK(!(std::strchr(rights, 'w') && std::strchr(rights, 'x')));
		if (at >= low && at < high)
			found = rights;
	}
	return found;
}

/* Counts freed blocks. Leaves no word of a block on a stack; not called from code of the heap. */
struct freed {
	ch_heap *heap;
	std::uint64_t before;
	explicit freed(ch_heap *h) : heap(h), before(statistics(h).blocks_freed)
	{
	}
	std::uint64_t now() const
	{
		return statistics(heap).blocks_freed - before;
	}
};

struct named_case {
	const char *name;
	void (*run)(const char *file);
};

/* PROGRAM NAME FILE.bc runs a case, PROGRAM alone lists them. */
template <std::size_t N> int run(const named_case (&cases)[N], int argc, char **argv)
{
	if (argc == 1) {
		for (const named_case &c : cases)
			std::puts(c.name);
		return 0;
	}
	for (const named_case &c : cases) {
		if (argc != 3 || std::strcmp(argv[1], c.name) != 0)
			continue;
		deny_if_asked();
		c.run(argv[2]);
		return 0;
	}
	std::fprintf(stderr, "usage: %s [case file.bc]\n", argv[0]);
	return 2;
}

} // namespace check
