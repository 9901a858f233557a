/* SPDX-License-Identifier: MIT
 * jitdump.c: the records of a jitdump file as perf inject reads them: the owner of an address at a
 * time, with code bytes, lines and unwind rules. jitdump_file.c tests the path and the fate of the
 * file. */
#include "tests/unit/sinks/jitdump.h"

#include <errno.h>
#include <pthread.h>
#include <sys/resource.h>

/* --- records --- */
TEST(dump_has_names_bytes_and_times)
{
	static const uint8_t code[] = {0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3, 0x90};
	struct bed bed;
	char path[128];
	use_own_folder();
	uint64_t before = now_ns();
	start(&bed);
	path_of(getpid(), path);
	CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_JITDUMP), path);
	bed_code(&bed, 64, code, sizeof code);
	uint64_t told_at = now_ns();
	struct ch__sink_range two[] = {range_at(&bed, 64, 7, 1), range_at(&bed, 4096, 32, 2)};
	ch__sinks_add(bed.sinks, two, 2);
	uint64_t reachable_at = now_ns();
	struct dump *dump = read_own(); /* without a flush: a crash loses nothing */
	CHECK_EQ(dump->pid, getpid());
	CHECK(!dump->is_cut);
	dump_check_owner(dump, bed.pool + 64, reachable_at, "fn_1");
	dump_check_owner(dump, bed.pool + 70, reachable_at, "fn_1");
	dump_check_owner(dump, bed.pool + 71, reachable_at, "nobody");
	dump_check_owner(dump, bed.pool + 4096, reachable_at, "fn_2");
	dump_check_owner(dump, bed.pool + 64, told_at - 1, "nobody");
	dump_check_owner(dump, bed.runtime, told_at, "codeheap_runtime");
	const struct dump_record *one = dump_owner(dump, two[0].exec, reachable_at);
	CHECK(one->time >= told_at && one->time <= reachable_at);
	CHECK(memcmp(one->code, code, sizeof code) == 0);
	CHECK(dump_u64(dump->bytes + 24) >= before);
	dump_free(dump);
	end(&bed);
}

TEST(runtime_of_a_later_heap_is_told_at_its_time)
{
	struct bed first, later;
	use_own_folder();
	start(&first);
	uint64_t between = now_ns();
	start(&later);
	struct dump *dump = read_own();
	dump_check_owner(dump, later.runtime, now_ns(), "codeheap_runtime");
	CHECK(dump_owner(dump, (uintptr_t)later.runtime, now_ns())->time >= between);
	CHECK(dump_owner(dump, (uintptr_t)first.runtime, now_ns())->time < between);
	dump_free(dump);
	bed_close(&later);
	end(&first);
}

TEST_DUMP(dump_says_that_freed_code_is_nobodys)
{
	add(bed, 64, 64, 1);
	add(bed, 128, 64, 2);
	uint64_t lived_at = now_ns();
	discard(bed, 64, 64, 1);
	flush(bed);
	uint64_t free_at = now_ns();
	add(bed, 80, 32, 3);
	uint64_t reused_at = now_ns();
	struct dump *dump = read_own();
	dump_check_owner(dump, bed->pool + 64, lived_at, "fn_1");
	dump_check_owner(dump, bed->pool + 64, free_at, "[freed]");
	dump_check_owner(dump, bed->pool + 127, free_at, "[freed]");
	dump_check_owner(dump, bed->pool + 128, free_at, "fn_2");
	dump_check_owner(dump, bed->pool + 80, lived_at, "fn_1");
	dump_check_owner(dump, bed->pool + 80, reused_at, "fn_3");
	dump_check_owner(dump, bed->pool + 79, reused_at, "[freed]");
	dump_free(dump);
}

TEST_DUMP(dump_has_code_larger_than_its_buffer)
{
	enum { LARGE = 3 * BED_CHUNK_BYTES / 2 };
	for (size_t at = 0; at < LARGE; at += BED_PAGE_BYTES)
		bed_code(bed, at, (const uint8_t *)&at, sizeof at);
	add(bed, 0, LARGE, 1);
	add(bed, LARGE, 64, 2);
	struct dump *dump = read_own();
	const struct dump_record *large = dump_owner(dump, (uintptr_t)bed->pool, now_ns());
	CHECK(large && large->code_bytes == LARGE);
	CHECK(memcmp(large->code, bed->pool, LARGE) == 0);
	dump_check_owner(dump, bed->pool + LARGE, now_ns(), "fn_2");
	dump_free(dump);
	discard(bed, 0, LARGE, 1);
	flush(bed);
	check_now(bed->pool + LARGE - 1, "[freed]");
}

/* --- lines and unwinding --- */
enum { LINES = 3 };

/* Lines of each block: line 10 from the start, no line from 16 on, line 30 from 24 on. The bytes
 * from 24 on may lie in another part of the block. */
static const struct ch__sink_line *some_lines(void *context, uint64_t key, const char **source,
					      size_t *n)
{
	static struct ch__sink_line lines[LINES];
	uint32_t at = (uint32_t)key;
	(void)context;
	*source = "/src/some.scm";
	*n = key == 7 ? 0 : LINES;
	lines[0] = (struct ch__sink_line){at, 10};
	lines[1] = (struct ch__sink_line){at + 16, 0};
	lines[2] = (struct ch__sink_line){at + 24, 30};
	return lines;
}

static void check_line(const struct dump_record *lines, unsigned i, uintptr_t at, uint32_t number)
{
	enum { ENTRY = 16 + sizeof "/src/some.scm" };
	const uint8_t *entry = lines->body + 16 + i * ENTRY;
	CHECK_EQ(dump_u64(entry), at);
	CHECK_EQ(dump_u32(entry + 8), number);
	CHECK_STR((const char *)entry + 16, "/src/some.scm");
}

typedef const struct ch__sink_line *lines_of_key(void *context, uint64_t key, const char **source,
						 size_t *n);

static void begin_with_lines(struct bed *bed, lines_of_key *lines)
{
	use_own_folder();
	bed_map(bed);
	bed->config.context = bed;
	bed->config.lines = lines;
	CHECK_EQ(ch__sinks_create(&bed->config, CH_SINK_JITDUMP, &bed->sinks), 0);
}

TEST(dump_has_lines_of_the_part_it_speaks_of)
{
	struct bed bed;
	begin_with_lines(&bed, some_lines);
	pages_live(&bed);
	uintptr_t pool = (uintptr_t)bed.pool;
	add(&bed, 1024, 32, 1024); /* all lines of the block */
	add(&bed, 2048, 24, 2048); /* two parts of a block */
	add(&bed, 2072, 8, 2048);
	add(&bed, 512, 32, 7); /* without lines */
	add(&bed, 3072 + 8, 24, 3072); /* its first bytes are not used */
	add(&bed, 5120 + 28, 4, 5120); /* nor those with the beginnings of all lines */
	struct ch__sink_range cold = range_at(&bed, 4096 + 18, 14, 4096);
	cold.is_cold = true;
	ch__sinks_add(bed.sinks, &cold, 1);
	struct dump *dump = read_own();
	const struct dump_record *lines = dump_owner(dump, pool + 1024, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == 4);
	check_line(lines, 0, pool + 1024, 10);
	check_line(lines, 1, pool + 1040, 0);
	check_line(lines, 2, pool + 1048, 30);
	check_line(lines, 3, pool + 1056, 30);
	lines = dump_owner(dump, pool + 2048, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == 3);
	check_line(lines, 0, pool + 2048, 10);
	check_line(lines, 1, pool + 2064, 0);
	lines = dump_owner(dump, pool + 2072, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == 2);
	check_line(lines, 0, pool + 2072, 30);
	CHECK(!dump_owner(dump, pool + 512, now_ns())->lines);
	lines = dump_owner(dump, pool + 3080, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == 4);
	check_line(lines, 0, pool + 3080, 10);
	check_line(lines, 1, pool + 3088, 0);
	lines = dump_owner(dump, pool + 5148, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == 2);
	check_line(lines, 0, pool + 5148, 30);
	/* The lines before it are of the hot part. */
	lines = dump_owner(dump, cold.exec, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == 2);
	check_line(lines, 0, pool + 4096 + 24, 30);
	dump_free(dump);
	end(&bed);
}

enum { A_LINE_A_BYTE = 10000 };

static const struct ch__sink_line *many_lines(void *context, uint64_t key, const char **source,
					      size_t *n)
{
	static struct ch__sink_line lines[A_LINE_A_BYTE];
	(void)context;
	*source = "/src/some.scm";
	*n = A_LINE_A_BYTE;
	for (uint32_t i = 0; i < A_LINE_A_BYTE; i++)
		lines[i] = (struct ch__sink_line){(uint32_t)key + i, i + 1};
	return lines;
}

/* As many lines as make a record of over 4 GiB, by the name of their file alone. */
enum { LONG_NAME_BYTES = 1 << 20, LINES_TOO_MANY = 4200 };

static const struct ch__sink_line *lines_of_a_long_name(void *context, uint64_t key,
							const char **source, size_t *n)
{
	static char name[LONG_NAME_BYTES];
	memset(name, 'f', sizeof name - 1);
	const struct ch__sink_line *lines = many_lines(context, key, source, n);
	*source = name;
	*n = LINES_TOO_MANY;
	return lines;
}

/* A record's length has 32 bits. Without the lines the file keeps the code and what comes later. */
TEST(dump_leaves_out_lines_that_are_too_long_for_a_record)
{
	struct bed bed;
	struct rlimit limit = {1 << 20, 1 << 20};
	begin_with_lines(&bed, lines_of_a_long_name);
	pages_live(&bed);
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	add(&bed, 64, LINES_TOO_MANY, 64);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_JITDUMP), 0);
	struct dump *dump = read_own();
	dump_check_owner(dump, bed.pool + 64, now_ns(), "fn_64");
	CHECK(!dump_owner(dump, (uintptr_t)bed.pool + 64, now_ns())->lines);
	dump_free(dump);
	end(&bed);
}

TEST(dump_has_all_lines_of_a_block_with_many)
{
	struct bed bed;
	begin_with_lines(&bed, many_lines);
	pages_live(&bed);
	uintptr_t pool = (uintptr_t)bed.pool;
	add(&bed, 64, A_LINE_A_BYTE, 64);
	struct dump *dump = read_own();
	const struct dump_record *lines = dump_owner(dump, pool + 64, now_ns())->lines;
	CHECK(lines && dump_u64(lines->body + 8) == A_LINE_A_BYTE + 1);
	check_line(lines, A_LINE_A_BYTE - 1, pool + 64 + A_LINE_A_BYTE - 1, A_LINE_A_BYTE);
	check_line(lines, A_LINE_A_BYTE, pool + 64 + A_LINE_A_BYTE, A_LINE_A_BYTE);
	dump_free(dump);
	end(&bed);
}

/* The instructions of a record's CIE: `cfi`, then no-ops. */
static void check_cfi(const struct dump_record *load, const uint8_t *cfi, size_t bytes)
{
	CHECK(load && load->unwinding);
	const uint8_t *cie = load->unwinding->body + 24, *end = cie + 4 + dump_u32(cie);
	CHECK(memcmp(cie + 17, cfi, bytes) == 0);
	for (const uint8_t *at = cie + 17 + bytes; at < end; at++)
		CHECK_EQ(*at, 0);
	CHECK_EQ(cie[12], CH_ARCH_DWARF_CODE_ALIGN);
	CHECK_EQ(cie[13], CH_ARCH_DWARF_DATA_ALIGN & 0x7f);
	CHECK_EQ(cie[14], CH_ARCH_DWARF_RETURN);
	CHECK(cie[15] == 1 && cie[16] == 0x1b);
}

TEST(dump_has_unwind_rules_of_the_pages_shape)
{
	static const uint8_t no_frame[] = {0x0c, 7, 8, 0x90, 1};
	struct bed bed;
	use_own_folder();
	bed_open(&bed, CH_SINK_JITDUMP);
	uint8_t frame = ch__sinks_frame_register(bed.sinks, no_frame, sizeof no_frame);
	CHECK(frame != 0);
	CHECK(ch__sinks_page_live(bed.sinks, 0, 2, 0));
	CHECK(ch__sinks_page_live(bed.sinks, 2, 1, frame));
	add(&bed, 64, 13, 1);
	add(&bed, 2 * BED_PAGE_BYTES, 64, 2);
	ch__sinks_page_dead(bed.sinks, 2, 1);
	CHECK(ch__sinks_page_live(bed.sinks, 2, 1, 0));
	add(&bed, 2 * BED_PAGE_BYTES + 128, 64, 3);
	add(&bed, 5 * BED_PAGE_BYTES, 64, 4); /* page not live: the block has its own table */
	struct dump *dump = read_own();
	uintptr_t pool = (uintptr_t)bed.pool;
	check_cfi(dump_owner(dump, pool + 64, now_ns()), ch__arch_cfi_frame_pointer,
		  sizeof ch__arch_cfi_frame_pointer);
	const struct dump_record *own = dump_owner(dump, pool + 5 * BED_PAGE_BYTES, now_ns());
	CHECK(own && own->unwinding && dump_count_fdes(own->unwinding) == 0);
	check_cfi(dump_owner(dump, pool + 2 * BED_PAGE_BYTES, now_ns()), no_frame, sizeof no_frame);
	check_cfi(dump_owner(dump, pool + 2 * BED_PAGE_BYTES + 128, now_ns()),
		  ch__arch_cfi_frame_pointer, sizeof ch__arch_cfi_frame_pointer);
	dump_free(dump);
	end(&bed);
}

TEST(dump_has_no_rules_of_code_with_steps)
{
	if (!CH_ARCH_HAS_STEPS)
		skip("no steps on this machine");
	struct bed bed;
	use_own_folder();
	bed_open(&bed, CH_SINK_JITDUMP);
	add_steps(&bed);
	struct dump *dump = read_own();
	const struct dump_record *load = dump_owner(dump, (uintptr_t)bed.pool + 64, now_ns());
	CHECK(load && load->unwinding && dump_count_fdes(load->unwinding) == 0);
	dump_free(dump);
	end(&bed);
}

/* --- trampolines --- */
enum { SLOT_BYTES = 80 };

/* Each slot is a record with its own name, code and FDE, like a block of any other shape. */
TEST(dump_has_a_record_of_each_trampoline)
{
	struct bed bed;
	use_own_folder();
	bed_open(&bed, CH_SINK_JITDUMP);
	uint8_t frame = CH__FRAME_SLOTS + CH_TRAMPOLINE_FRAMED;
	CHECK(ch__sinks_page_live(bed.sinks, 1, 1, frame));
	CHECK(ch__sinks_page_live(bed.sinks, 0, 1, 0));
	static const uint8_t code[] = {1, 2, 3, 4, 5, 6, 7, 8};
	const uint8_t *slots = bed_code(&bed, BED_PAGE_BYTES, code, sizeof code);
	for (size_t i = 0; i < 10; i++)
		add(&bed, BED_PAGE_BYTES + i * SLOT_BYTES + 4, SLOT_BYTES - 4, i);
	flush(&bed);
	struct dump *dump = read_own();
	for (size_t i = 0; i < 10; i++) {
		char name[16];
		snprintf(name, sizeof name, "fn_%zu", i);
		CHECK_EQ(count_loads(dump, name), 1);
		uintptr_t at = (uintptr_t)slots + i * SLOT_BYTES + 4;
		const struct dump_record *one = dump_owner(dump, at, now_ns());
		CHECK_STR(one->name, name);
		CHECK_EQ(one->at, at);
		CHECK_EQ(one->code_bytes, SLOT_BYTES - 4);
		CHECK_EQ(dump_count_fdes(one->unwinding), 1);
		CHECK_EQ(dump_fde_pc(one->unwinding, one, 0), 0);
		CHECK(i > 0 || memcmp(one->code, code + 4, sizeof code - 4) == 0);
	}
	dump_free(dump);
	/* The fourth slot dies, and a new block takes its place; then the whole page dies. */
	discard(&bed, BED_PAGE_BYTES + 3 * SLOT_BYTES, SLOT_BYTES, 3);
	flush(&bed);
	check_now(slots + 2 * SLOT_BYTES + 4, "fn_2");
	check_now(slots + 3 * SLOT_BYTES + 4, "[freed]");
	check_now(slots + 4 * SLOT_BYTES + 4, "fn_4");
	add(&bed, BED_PAGE_BYTES + 3 * SLOT_BYTES, SLOT_BYTES, 33);
	check_now(slots + 3 * SLOT_BYTES + 4, "fn_33");
	for (size_t i = 0; i < 10; i++)
		discard(&bed, BED_PAGE_BYTES + i * SLOT_BYTES, SLOT_BYTES,
			i == 3 ? 33 : i);
	ch__sinks_page_dead(bed.sinks, 1, 1);
	flush(&bed);
	check_now(slots + 9 * SLOT_BYTES + 4, "[freed]");
	CHECK(ch__sinks_page_live(bed.sinks, 1, 1, 0));
	add(&bed, BED_PAGE_BYTES + 128, 64, 77);
	check_now(slots + 128, "fn_77");
	end(&bed);
}

/* --- a storm against a model --- */
enum { STORM_GRANULES = 4096, SNAPSHOTS = 2000, SEEN = 16 };

struct snapshot {
	uint64_t time;
	uint32_t granule[SEEN], owner[SEEN];
};

struct model {
	struct bed bed;
	struct test_random random;
	uint32_t owner[STORM_GRANULES]; /* key of the live range; 0: freed, ~0: never used */
	uint32_t first[1 << 14], length[1 << 14];
	uint32_t keys, shots;
	struct snapshot shot[SNAPSHOTS];
};

static void model_add(struct model *m)
{
	uint32_t length = 1 + (uint32_t)test_random_below(&m->random, 40);
	uint32_t at = (uint32_t)test_random_below(&m->random, STORM_GRANULES - length);
	for (uint32_t i = 0; i < length; i++)
		if (m->owner[at + i] != 0 && m->owner[at + i] != UINT32_MAX)
			return;
	uint32_t key = m->keys++;
	for (uint32_t i = 0; i < length; i++)
		m->owner[at + i] = key;
	m->first[key] = at;
	m->length[key] = length;
	add(&m->bed, at * 8u, length * 8u, key);
}

static void model_remove(struct model *m, uint32_t key)
{
	if (key == 0 || key == UINT32_MAX)
		return;
	memset(m->owner + m->first[key], 0, m->length[key] * sizeof m->owner[0]);
	discard(&m->bed, m->first[key] * 8u, m->length[key] * 8u, key);
}

static void model_look(struct model *m)
{
	flush(&m->bed);
	struct snapshot *shot = &m->shot[m->shots++];
	shot->time = now_ns();
	for (int i = 0; i < SEEN; i++) {
		shot->granule[i] = (uint32_t)test_random_below(&m->random, STORM_GRANULES);
		shot->owner[i] = m->owner[shot->granule[i]];
	}
}

static void check_snapshots(const struct model *m)
{
	struct dump *dump = read_own();
	CHECK(!dump->is_cut);
	for (uint32_t i = 0; i < m->shots; i++) {
		for (int n = 0; n < SEEN; n++) {
			uint32_t key = m->shot[i].owner[n];
			char name[40] = "[freed]";
			if (key == UINT32_MAX)
				snprintf(name, sizeof name, "nobody");
			else if (key)
				bed_name(NULL, key, name, sizeof name);
			dump_check_owner(dump, m->bed.pool + m->shot[i].granule[n] * 8u,
					 m->shot[i].time, name);
		}
	}
	dump_free(dump);
}

TEST(dump_storm_has_every_owner_at_every_time)
{
	struct model *m = calloc(1, sizeof *m);
	CHECK(m != NULL);
	use_own_folder();
	start(&m->bed);
	m->random = test_random_new();
	m->keys = 1;
	memset(m->owner, 0xff, sizeof m->owner);
	uint64_t end = now_ns() + storm_ms() * UINT64_C(500000);
	while ((m->shots < 2 || now_ns() < end) && m->keys < (1 << 14) - 200 && m->shots < 200) {
		for (uint64_t n = test_random_below(&m->random, 60); n > 0; n--)
			model_add(m);
		for (uint64_t n = test_random_below(&m->random, 40); n > 0; n--)
			model_remove(m, m->owner[test_random_below(&m->random, STORM_GRANULES)]);
		model_look(m);
	}
	CHECK_EQ(ch__sinks_status(m->bed.sinks, CH_SINK_JITDUMP), 0);
	check_snapshots(m);
	bed_close(&m->bed);
	free(m);
	remove_own_folder();
}

/* --- threads --- */
enum { THREADS = 2, AREA_BYTES = 1 << 16, THREAD_RANGES = AREA_BYTES / 64 };

struct area {
	struct bed *bed;
	size_t first;
	uint64_t end_ns;
	bool live[THREAD_RANGES];
};

static void *churn(void *arg)
{
	struct area *area = arg;
	struct test_random random = test_random_new();
	for (int told = 0; now_ns() < area->end_ns && told < 10000; told++) {
		size_t i = test_random_below(&random, THREAD_RANGES);
		size_t offset = area->first + i * 64;
		(area->live[i] ? discard : add)(area->bed, offset, 64, offset);
		area->live[i] = !area->live[i];
	}
	return NULL;
}

static void *add_and_say_who(void *bed)
{
	add(bed, 64, 40, 1);
	return (void *)(uintptr_t)ch__os_thread_id();
}

TEST_DUMP(dump_says_which_thread_made_the_code)
{
	pthread_t thread;
	void *id;
	CHECK_EQ(pthread_create(&thread, NULL, add_and_say_who, bed), 0);
	pthread_join(thread, &id);
	struct dump *dump = read_own();
	const struct dump_record *load = dump_owner(dump, (uintptr_t)bed->pool + 64, now_ns());
	CHECK(load && dump_u32(load->body + 4) == (uintptr_t)id);
	dump_free(dump);
}

TEST_DUMP(dump_told_by_threads_is_whole)
{
	static struct area areas[THREADS];
	pthread_t threads[THREADS];
	uint64_t until_ns = now_ns() + storm_ms() * UINT64_C(200000);
	for (size_t i = 0; i < THREADS; i++) {
		areas[i] = (struct area){.bed = bed, .first = i * AREA_BYTES, .end_ns = until_ns};
		CHECK_EQ(pthread_create(&threads[i], NULL, churn, &areas[i]), 0);
	}
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	flush(bed);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_JITDUMP), 0);
	struct dump *dump = read_own();
	for (size_t i = 0; i < THREADS * THREAD_RANGES; i++) {
		char name[40];
		bed_name(NULL, i * 64, name, sizeof name);
		if (areas[i / THREAD_RANGES].live[i % THREAD_RANGES])
			dump_check_owner(dump, bed->pool + i * 64, now_ns(), name);
	}
	dump_free(dump);
}

/* --- names --- */
static size_t odd_name(void *context, uint64_t key, char *out, size_t out_bytes)
{
	(void)context;
	if (key == 1)
		return 0;
	if (key == 2)
		return (size_t)snprintf(out, out_bytes, "a procedure of two words");
	memset(out, 'x', out_bytes - 1);
	return out_bytes - 1;
}

TEST(dump_records_stay_whole_with_odd_names)
{
	struct bed bed;
	char nameless[40];
	use_own_folder();
	bed_open_named(&bed, CH_SINK_JITDUMP, odd_name);
	pages_live(&bed);
	for (size_t i = 1; i <= 300; i++)
		add(&bed, i * 64, 64, i);
	snprintf(nameless, sizeof nameless, "jit_%lx", (unsigned long)(bed.pool + 64));
	check_now(bed.pool + 64, nameless);
	check_now(bed.pool + 128, "a procedure of two words");
	struct dump *dump = read_own();
	CHECK(!dump->is_cut);
	dump_free(dump);
	end(&bed);
}
