/* SPDX-License-Identifier: MIT
 * resident.c: what a heap costs of the machine's memory, as /proc/self/smaps has it: its first
 * block, by every backend and size of page. */
#include "tests/support/heap_rig.h"

#include <stdio.h>

enum {
	KIB = 1024,
	NOTES_KIB = CH_CHECK >= 2 ? 64 : 0, /* checked builds copy what they publish */
	FIRST_BLOCK_KIB = 256 + NOTES_KIB,
};

/* Files' pages are the system's to keep or drop; what shared memory has for a name is none. */
static bool is_of_a_file(const char *mapping)
{
	const char *path = strchr(mapping, '/');
	return path && strncmp(path, "/dev/zero", 9) != 0 && strncmp(path, "/memfd:", 7) != 0;
}

/* KiB that the process has in memory; of shared memory once for each of its mappings. */
static unsigned long resident(void)
{
	char line[512];
	unsigned long sum = 0, low, high, kib;
	bool counts = false;
	FILE *smaps = fopen("/proc/self/smaps", "r");
	CHECK(smaps);
	setvbuf(smaps, NULL, _IONBF, 0);
	while (fgets(line, sizeof line, smaps))
		if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
			counts = !is_of_a_file(line);
		else if (counts && sscanf(line, "Rss: %lu kB", &kib) == 1)
			sum += kib;
	fclose(smaps);
	return sum;
}

static void make_first_block(void *of)
{
	struct ch_config config = *(const struct ch_config *)of;
	struct rig rig = rig_create(&config, NULL, NULL);
	unsigned long before = resident();
	struct ch_owner owner = rig_owner(&rig, "first");
	struct ch_block block = rig_block(owner, 5);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	CHECK_EQ(code_call_owner(owner), 5);
	unsigned long after = resident();
	if (!TEST_SANITIZED && after > before + FIRST_BLOCK_KIB)
		FAIL("backend %d, pages of %zu: the first block costs %lu KiB", (int)config.backend,
		     config.page_bytes, after - before);
}

/* A child each, which has had no heap. */
static void by_each_size_of_page(enum ch_backend backend)
{
	unsetenv("CODEHEAP_WX");
	for (size_t page = 4 * KIB; page <= 64 * KIB; page *= 2) {
		struct ch_config config = rig_config(64 << 20);
		config.page_bytes = page;
		config.backend = backend;
		expect_signal(make_first_block, &config, 0);
	}
}

TEST(first_block_costs_at_most_256_kib_dual)
{
	by_each_size_of_page(CH_BACKEND_DUAL);
}

TEST(first_block_costs_at_most_256_kib_memfd)
{
	by_each_size_of_page(CH_BACKEND_MEMFD);
}

TEST(first_block_costs_at_most_256_kib_procmem)
{
	skip_without_procmem();
	by_each_size_of_page(CH_BACKEND_PROCMEM);
}
