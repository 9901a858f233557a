/* SPDX-License-Identifier: MIT
 * check.h: shared by the checks of the memory managers: cases by name, and how a failure is said.
 * A case that returns has passed. */
#pragma once

#include "../cases.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace check
{

/* CODEHEAP_TEST_LONG=1: all known; else some. */
inline int times(int all, int some)
{
	const char *asked = std::getenv("CODEHEAP_TEST_LONG");
	return asked && std::strcmp(asked, "1") == 0 ? all : some;
}

/* The access rights of an address, as "r-xp"; "" = not mapped. No mapping may have w and x. */
inline std::string rights_at(const void *address)
{
	std::FILE *maps = std::fopen("/proc/self/maps", "r");
	std::string found;
	char line[512];
	CHECK(maps);
	auto at = reinterpret_cast<std::uintptr_t>(address);
	while (std::fgets(line, sizeof line, maps)) {
		unsigned long low, high;
		char rights[8];
		if (std::sscanf(line, "%lx-%lx %7s", &low, &high, rights) != 3)
			continue;
		CHECK(!(std::strchr(rights, 'w') && std::strchr(rights, 'x')));
		if (at >= low && at < high)
			found = rights;
	}
	std::fclose(maps);
	return found;
}

/* Counts freed blocks. Leaves no word of a block on a stack; not called from code of the heap. */
struct freed {
	ch_heap *heap;
	std::uint64_t before;
	explicit freed(ch_heap *h) : heap(h), before(stats_of(h).blocks_freed)
	{
	}
	std::uint64_t now() const
	{
		return stats_of(heap).blocks_freed - before;
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
		if (std::getenv("CHECK_MDWE")) /* before there is a heap */
			deny_new_code();
		c.run(argv[2]);
		return 0;
	}
	std::fprintf(stderr, "usage: %s [case file.bc]\n", argv[0]);
	return 2;
}

} // namespace check
