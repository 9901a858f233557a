/* SPDX-License-Identifier: MIT
 * libunwind.c: code pages in nongnu libunwind, seen by libunwind's own calls: known while live and
 * at no other time, passed by walks, forgotten by caches; and the library's backtraces by
 * libunwind. Linked with libunwind behind libgcc's unwinder. */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunwind.h>

#include "tests/support/heap_rig.h"
#include "tests/support/unwind_rig.h"
#include "unwind/nongnu.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- layouts --- */
#define SAME(ours, our_field, theirs, their_field)                                          \
	_Static_assert(offsetof(struct ours, our_field) == offsetof(theirs, their_field) && \
			       sizeof(((struct ours *)0)->our_field) ==                     \
				       sizeof(((theirs *)0)->their_field),                  \
		       #our_field)
SAME(ch__nongnu_object, next, unw_dyn_info_t, next);
SAME(ch__nongnu_object, prev, unw_dyn_info_t, prev);
SAME(ch__nongnu_object, start, unw_dyn_info_t, start_ip);
SAME(ch__nongnu_object, end, unw_dyn_info_t, end_ip);
SAME(ch__nongnu_object, global_pointer, unw_dyn_info_t, gp);
SAME(ch__nongnu_object, format, unw_dyn_info_t, format);
SAME(ch__nongnu_object, load_offset, unw_dyn_info_t, load_offset);
SAME(ch__nongnu_object, name, unw_dyn_info_t, u.rti.name_ptr);
SAME(ch__nongnu_object, segment, unw_dyn_info_t, u.rti.segbase);
SAME(ch__nongnu_object, table_words, unw_dyn_info_t, u.rti.table_len);
SAME(ch__nongnu_object, table, unw_dyn_info_t, u.rti.table_data);
SAME(ch__nongnu_procedure, start, unw_proc_info_t, start_ip);
SAME(ch__nongnu_procedure, end, unw_proc_info_t, end_ip);
_Static_assert(offsetof(struct ch__nongnu_object, next_free) == sizeof(unw_dyn_info_t), "object");
_Static_assert(sizeof(struct ch__nongnu_procedure) >= sizeof(unw_proc_info_t), "procedure");
_Static_assert(sizeof(struct ch__nongnu_cursor) >= sizeof(unw_cursor_t), "cursor");
_Static_assert(sizeof(unw_context_t) == sizeof(ucontext_t), "a context is a ucontext");
_Static_assert((int)CH__NONGNU_REMOTE_TABLE == (int)UNW_INFO_FORMAT_REMOTE_TABLE, "format");
_Static_assert((int)CH__NONGNU_SIGNAL_FRAME == (int)UNW_INIT_SIGNAL_FRAME, "flag");
_Static_assert((int)CH_ARCH_NONGNU_PC == (int)UNW_REG_IP, "pc");
_Static_assert((int)CH_ARCH_DWARF_SP == (int)UNW_REG_SP, "sp");
_Static_assert((int)CH_ARCH_DWARF_FP == (int)UNW_TDEP_BP, "fp");

/* --- the knowledge of libunwind --- */
/* The registered object that covers an address. */
static const unw_dyn_info_t *object_of(uintptr_t pc)
{
	extern unw_word_t _U_dyn_info_list_addr(void);
	const unw_dyn_info_list_t *list = (const void *)(uintptr_t)_U_dyn_info_list_addr();
	for (const unw_dyn_info_t *at = list->first; at; at = at->next)
		if (pc >= at->start_ip && pc < at->end_ip)
			return at;
	return NULL;
}

static bool is_known(const uint8_t *pc)
{
	unw_proc_info_t info;
	int result = unw_get_proc_info_by_ip(unw_local_addr_space, (uintptr_t)pc, &info, NULL);
	if (result != 0 && result != -UNW_ENOINFO)
		FAIL("libunwind: get_proc_info of %p says %d", (const void *)pc, result);
	return result == 0;
}

/* The answer must be the same for the whole page. */
static bool is_page_known(const struct bed *bed, uint32_t page)
{
	const uint8_t *at = bed->pool + (size_t)page * BED_PAGE_BYTES;
	bool first = is_known(at);
	if (is_known(at + BED_PAGE_BYTES / 2) != first ||
	    is_known(at + BED_PAGE_BYTES - 1) != first)
		FAIL("libunwind: it knows some of page %u", page);
	return first;
}

static void check_only_live(const struct bed *bed, uint32_t first, uint32_t pages)
{
	for (uint32_t page = 0; page < BED_CHUNKS * BED_PAGES_PER_CHUNK; page++) {
		bool is_live = page >= first && page < first + pages;
		if (is_page_known(bed, page) != is_live)
			FAIL("libunwind: page %u is %s", page,
			     is_live ? "live, and unknown" : "withdrawn, and known");
	}
}

static void check_unregistered(const struct bed *bed)
{
	for (uint32_t chunk = 0; chunk < BED_CHUNKS; chunk++)
		if (object_of((uintptr_t)bed->pool + (size_t)chunk * BED_CHUNK_BYTES))
			FAIL("libunwind: chunk %u is still registered", chunk);
	if (object_of((uintptr_t)bed->runtime))
		FAIL("libunwind: the runtime page is still registered");
}

/* As the calls do that turn the sink on. */
static __attribute__((constructor)) void find_libunwind(void)
{
	ch__nongnu_find();
}

TEST_BED(page_is_known_to_libunwind_only_while_live, CH_SINK_LIBUNWIND)
{
	static const uint32_t pages[] = {0, 1, 63, 64, 100, 191};
	CHECK_EQ(ch__sinks_on(bed->sinks), CH_SINK_LIBUNWIND);
	check_only_live(bed, 0, 0);
	for (unsigned i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		CHECK(ch__sinks_page_live(bed->sinks, pages[i], 1, 0));
		check_only_live(bed, pages[i], 1);
		ch__sinks_page_dead(bed->sinks, pages[i], 1);
		check_only_live(bed, 0, 0);
	}
	CHECK(!is_known(bed->pool + BED_POOL_BYTES));
	CHECK(is_known(bed->runtime));
}

TEST_BED(span_over_chunks_is_known_to_libunwind, CH_SINK_LIBUNWIND | CH_SINK_UNWIND)
{
	CHECK(ch__sinks_page_live(bed->sinks, 50, 100, 0));
	check_only_live(bed, 50, 100);
	ch__sinks_page_dead(bed->sinks, 63, 1);
	CHECK(!is_page_known(bed, 63));
	CHECK(is_page_known(bed, 62) && is_page_known(bed, 64));
	ch__sinks_page_dead(bed->sinks, 50, 13);
	ch__sinks_page_dead(bed->sinks, 64, 86);
	check_only_live(bed, 0, 0);
	CHECK(ch__sinks_page_live(bed->sinks, 70, 1, 0));
	ch__sinks_chunk_gone(bed->sinks, 1);
	check_only_live(bed, 0, 0);
	CHECK(ch__sinks_page_live(bed->sinks, 70, 1, 0));
	check_only_live(bed, 70, 1);
}

TEST_BED(libunwind_turned_on_late_knows_live_pages, 0)
{
	CHECK(ch__sinks_page_live(bed->sinks, 10, 60, 0));
	ch__sinks_page_dead(bed->sinks, 10, 5);
	check_only_live(bed, 0, 0);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_LIBUNWIND), 0);
	check_only_live(bed, 15, 55);
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	check_only_live(bed, 0, 0);
	ch__sinks_page_dead(bed->sinks, 15, 54);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_LIBUNWIND), 0);
	check_only_live(bed, 69, 1);
}

TEST(pool_leaves_libunwind_with_its_heap)
{
	struct bed bed;
	uintptr_t pool = 0;
	size_t most = SIZE_MAX;
	for (int round = 0; round < 3; round++) {
		bed_open(&bed, CH_SINK_LIBUNWIND);
		pool = (uintptr_t)bed.pool;
		CHECK(ch__sinks_page_live(bed.sinks, 0, 192, 0));
		CHECK(object_of(pool) && object_of(pool + BED_POOL_BYTES - 1));
		/* Not bed_close, which unmaps the memory to be checked. */
		ch__sinks_destroy(bed.sinks);
		check_unregistered(&bed);
		check_only_live(&bed, 0, 0);
		CHECK_EQ(ch__meta_bytes(bed.config.meta), 0);
		ch__meta_destroy(bed.config.meta);
		munmap(bed.runtime, BED_PAGE_BYTES + BED_POOL_BYTES);
		CHECK(mapped_bytes() <= most);
		/* The view of the bed that is written stays. */
		most = round ? mapped_bytes() + BED_PAGE_BYTES + BED_POOL_BYTES : most;
	}
}

TEST(each_failure_refuses_libunwind_and_leaves_nothing)
{
	int failures = 0;
	for (bool is_past = false; !is_past;) {
		struct bed bed;
		bed_open(&bed, 0);
		CHECK(ch__sinks_page_live(bed.sinks, 10, 60, 0));
		ch__os_fail_at((uint64_t)failures + 1, false);
		int error = ch__sinks_set(bed.sinks, CH_SINK_LIBUNWIND);
		is_past = ch__os_failable_calls() < (uint64_t)failures + 1;
		ch__os_fail_at(0, false);
		/* A place in the address space that one call did not give, another one gives. */
		CHECK_EQ(error, is_past ? 0 : ENOMEM);
		CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_LIBUNWIND), error);
		CHECK_EQ(ch__sinks_on(bed.sinks), is_past ? CH_SINK_LIBUNWIND : 0);
		check_only_live(&bed, 10, is_past ? 60 : 0);
		failures += !is_past;
		ch__sinks_destroy(bed.sinks);
		bed.sinks = NULL;
		check_unregistered(&bed);
		bed_close(&bed);
	}
	CHECK(failures >= 4);
}

/* --- walks; the code is x86-64's --- */
/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const uint8_t framed[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
/* push rbp; xor ebp, ebp; sub rsp, 32; call rdi; add rsp, 32; pop rbp; ret: nothing to guess a
 * caller by */
static const uint8_t frameless[] = {0x55, 0x31, 0xed, 0x48, 0x83, 0xec, 0x20, 0xff,
				    0xd7, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3};
/* CFA = rsp + 48, return address at CFA - 8, rbp at CFA - 16 */
static const uint8_t frameless_cfi[] = {0x0c, 7, 48, 0x80 | 16, 1, 0x80 | 6, 2};
/* The same with 64 bytes more, for another shape */
static const uint8_t wide[] = {0x55, 0x31, 0xed, 0x48, 0x83, 0xec, 0x60, 0xff,
			       0xd7, 0x48, 0x83, 0xc4, 0x60, 0x5d, 0xc3};
static const uint8_t wide_cfi[] = {0x0c, 7, 112, 0x80 | 16, 1, 0x80 | 6, 2};
enum { FRAMED_RETURN = 6, FRAMELESS_RETURN = 9 };

static struct walk {
	uintptr_t code_return, caller;
	bool has_code, has_caller;
	int frames_beyond;
} seen;

static void walk_here(void)
{
	unw_context_t context;
	unw_cursor_t cursor;
	unw_getcontext(&context);
	CHECK_EQ(unw_init_local(&cursor, &context), 0);
	do {
		unw_word_t pc;
		CHECK_EQ(unw_get_reg(&cursor, UNW_REG_IP, &pc), 0);
		if (seen.has_code) {
			seen.frames_beyond++;
			if (pc > seen.caller && pc < seen.caller + 256)
				seen.has_caller = true;
		}
		if (pc == seen.code_return)
			seen.has_code = true;
	} while (unw_step(&cursor) > 0);
}

/* The address of the function must be the address of its only body. */
#if defined(__clang__)
#define ONE_BODY __attribute__((noinline))
#else
#define ONE_BODY __attribute__((noinline, noclone))
#endif

/* Returns how many frames a walk from inside the code finds beyond the code. Fails when the first
 * frame is not this function's. */
ONE_BODY static int passes(const void *code, size_t return_offset)
{
	seen = (struct walk){.code_return = (uintptr_t)code + return_offset};
	seen.caller = (uintptr_t)passes;
	((void (*)(void (*)(void)))(uintptr_t)code)(walk_here);
	if (!seen.has_code)
		FAIL("libunwind: the walk does not reach the code");
	if (seen.frames_beyond && !seen.has_caller)
		FAIL("libunwind: the walk passes the code and misses its caller");
	return seen.frames_beyond;
}

TEST_BED(walk_of_libunwind_ends_at_a_withdrawn_page, CH_SINK_LIBUNWIND)
{
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, frameless, sizeof frameless);
	CHECK_EQ(passes(code, FRAMELESS_RETURN), 0);
	/* The chunk is registered before the shape. */
	CHECK(ch__sinks_page_live(bed->sinks, 6, 1, 0));
	uint8_t shape = ch__sinks_frame_register(bed->sinks, frameless_cfi, sizeof frameless_cfi);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, shape));
	/* To main and beyond. */
	for (int i = 0; i < 3; i++)
		CHECK(passes(code, FRAMELESS_RETURN) >= 4);
	ch__sinks_page_dead(bed->sinks, 5, 1);
	CHECK_EQ(object_of((uintptr_t)code) != NULL, true);
	if (is_known(code))
		FAIL("libunwind: the withdrawn page is known");
	if (passes(code, FRAMELESS_RETURN) != 0)
		FAIL("libunwind: a walk passes a withdrawn page: its cache was not flushed");
}

/* A return address in a slot lies behind the call of the template with a frame. */
TEST(walk_of_libunwind_passes_a_page_of_slots_by_frame_pointers)
{
	enum { CODE_AT = 8 };
	struct bed bed;
	bed_open(&bed, CH_SINK_LIBUNWIND);
	void *code = bed_code(&bed, 5 * BED_PAGE_BYTES + CODE_AT, framed, sizeof framed);
	CHECK(ch__sinks_page_live(bed.sinks, 5, 1, CH__FRAME_SLOTS + CH_TRAMPOLINE_TAIL));
	CHECK(passes(code, FRAMED_RETURN) >= 4);
	bed_close(&bed);
}

/* --- flushes --- */

static _Atomic(int) flushing, flushes, general_flushes;
static void *general_space = &general_space; /* as if the general interface were loaded */

static void flush_slowly(void *space, uintptr_t low, uintptr_t high)
{
	(void)low, (void)high;
	if (atomic_fetch_add(&flushing, 1))
		FAIL("two threads flush at once, and libunwind has no lock of its own");
	usleep(1000);
	atomic_fetch_sub(&flushing, 1);
	atomic_fetch_add(space == general_space ? &general_flushes : &flushes, 1);
}

static void *flush_often(void *arg)
{
	(void)arg;
	for (int i = 0; i < 20; i++)
		ch__nongnu_flush();
	return NULL;
}

TEST(flushes_of_libunwind_come_one_by_one)
{
	pthread_t thread;
	void (*whole)(void *, uintptr_t, uintptr_t) = ch__nongnu.flush;
	void **general = ch__nongnu.general_space;
	ch__nongnu.flush = flush_slowly;
	ch__nongnu.general_space = &general_space;
	CHECK_EQ(pthread_create(&thread, NULL, flush_often, NULL), 0);
	(void)flush_often(NULL);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	ch__nongnu.flush = whole;
	ch__nongnu.general_space = general;
	CHECK_EQ(atomic_load(&flushes), 40);
	CHECK_EQ(atomic_load(&general_flushes), 40);
}

TEST_BED(walk_of_libunwind_is_right_in_a_reused_page, CH_SINK_LIBUNWIND)
{
	uint8_t narrow = ch__sinks_frame_register(bed->sinks, frameless_cfi, sizeof frameless_cfi);
	uint8_t broad = ch__sinks_frame_register(bed->sinks, wide_cfi, sizeof wide_cfi);
	for (int round = 0; round < 4; round++) {
		bool is_wide = round % 2 != 0;
		void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, is_wide ? wide : frameless,
				      sizeof frameless);
		CHECK(ch__sinks_page_live(bed->sinks, 5, 1, is_wide ? broad : narrow));
		CHECK(passes(code, FRAMELESS_RETURN) >= 4);
		ch__sinks_page_dead(bed->sinks, 5, 1);
	}
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, framed, sizeof framed);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, 0));
	CHECK(passes(code, FRAMED_RETURN) >= 4);
}

/* Pushes the registers of CH_FRAME_KEEPS_ALL and sets them to 0; push rax; call rdi; pops all. */
static const uint8_t saving[] = {0x55, 0x48, 0x89, 0xe5, 0x53, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56,
				 0x41, 0x57, 0x31, 0xdb, 0x45, 0x31, 0xe4, 0x45, 0x31, 0xed, 0x45,
				 0x31, 0xf6, 0x45, 0x31, 0xff, 0x50, 0xff, 0xd7, 0x59, 0x41, 0x5f,
				 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5b, 0x5d, 0xc3};
/* Calls code(callee) with the registers that a callee keeps set to 0x1111 and on. */
void with_known(const void *code, void (*callee)(void));
__asm__(".text\n.type with_known, @function\nwith_known: .cfi_startproc\n"
	".irp r, rbx, r12, r13, r14, r15\n push %\\r\n"
	".cfi_adjust_cfa_offset 8\n .cfi_rel_offset %\\r, 0\n .endr\n"
	"mov $0x1111, %ebx\n mov $0x1112, %r12d\n mov $0x1113, %r13d\n"
	"mov $0x1114, %r14d\n mov $0x1115, %r15d\n"
	"mov %rdi, %rax\n mov %rsi, %rdi\n call *%rax\n"
	".irp r, r15, r14, r13, r12, rbx\n pop %\\r\n"
	".cfi_adjust_cfa_offset -8\n .cfi_restore %\\r\n .endr\n"
	"ret\n.cfi_endproc\n.size with_known, . - with_known\n");
static unsigned known_found;

static void find_known(void)
{
	static const unw_regnum_t kept[] = {UNW_X86_64_RBX, UNW_X86_64_R12, UNW_X86_64_R13,
					    UNW_X86_64_R14, UNW_X86_64_R15};
	unw_context_t context;
	unw_cursor_t cursor;
	unw_word_t pc, word;
	unw_getcontext(&context);
	CHECK_EQ(unw_init_local(&cursor, &context), 0);
	while (unw_step(&cursor) > 0) {
		CHECK_EQ(unw_get_reg(&cursor, UNW_REG_IP, &pc), 0);
		if (pc - (uintptr_t)with_known > 128)
			continue;
		for (unsigned i = 0; i < 5; i++) {
			CHECK_EQ(unw_get_reg(&cursor, kept[i], &word), 0);
			CHECK_EQ(word, 0x1111 + i);
			known_found++;
		}
	}
}

TEST_BED(walk_of_libunwind_finds_the_registers_that_code_saved, CH_SINK_LIBUNWIND)
{
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, saving, sizeof saving);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, CH_FRAME_KEEPS_ALL));
	with_known(code, find_known);
	CHECK_EQ(known_found, 5);
}

/* --- a block with a table of its own --- */
/* CIE "zR", absolute pcs, the frameless frame; FDEs: the highest first, the lowest next, then one
 * in between and one of nothing, over the lowest; the end. */
struct own_section {
	uint8_t cie[32];
	struct {
		uint32_t length, distance;
		uint64_t first, bytes;
		uint32_t augmentation; /* of length 0, then DW_CFA_nop */
	} __attribute__((packed)) fdes[4];
	uint32_t end;
} __attribute__((packed));

static void write_own(struct own_section *s, const uint8_t *code)
{
	static const uint8_t cie[] = {28, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0};
	memset(s, 0, sizeof *s);
	memcpy(s->cie, cie, sizeof cie);
	memcpy(s->cie + sizeof cie, frameless_cfi, sizeof frameless_cfi);
	static const unsigned rows[4][2] = {{256, 16}, {0, sizeof frameless}, {128, 16}, {2, 0}};
	for (unsigned i = 0; i < 4; i++) {
		s->fdes[i].length = sizeof s->fdes[i] - 4;
		s->fdes[i].distance = (uint32_t)((uint8_t *)&s->fdes[i].distance - s->cie);
		s->fdes[i].first = (uintptr_t)code + rows[i][0];
		s->fdes[i].bytes = rows[i][1];
	}
}

static void check_own(const uint8_t *code, bool is_live)
{
	if (is_known(code) != is_live || is_known(code + sizeof frameless - 1) != is_live ||
	    is_known(code + 256) != is_live || is_known(code + 128) != is_live)
		FAIL("libunwind: a block's own table is %s",
		     is_live ? "live, and unknown" : "withdrawn, and known");
	CHECK(!is_known(code - 1) && !is_known(code + sizeof frameless));
	CHECK(!is_known(code + 255) && !is_known(code + 256 + 16));
}

static struct own_section *map_own_sections(const struct bed *bed)
{
	struct own_section *sections =
		mmap(bed->pool + BED_POOL_BYTES, BED_PAGE_BYTES, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(sections != MAP_FAILED);
	return sections;
}

/* Of two free objects the one that comes first in libunwind's list is taken first then. */
static void free_two(struct bed *bed, struct ch__own *own, const struct own_section *section)
{
	struct ch__own *other = ch__sinks_own_create(bed->sinks);
	ch__sinks_own_live(bed->sinks, own, section);
	ch__sinks_own_live(bed->sinks, other, section);
	ch__sinks_own_dead(bed->sinks, own);
	ch__sinks_own_destroy(bed->sinks, other);
}

/* The table gets the object of a heap that went, which is behind the runtime page's object. */
TEST(table_in_the_first_page_is_known_to_libunwind)
{
	struct bed first, bed;
	bed_open(&first, CH_SINK_LIBUNWIND);
	bed_open(&bed, CH_SINK_LIBUNWIND);
	bed_close(&first);
	uint8_t *code = bed_code(&bed, 64, frameless, sizeof frameless);
	struct own_section *section = map_own_sections(&bed);
	write_own(section, code);
	struct ch__own *own = ch__sinks_own_create(bed.sinks);
	ch__sinks_own_live(bed.sinks, own, section);
	check_own(code, true);
	ch__sinks_own_destroy(bed.sinks, own);
	bed_close(&bed);
}

TEST_BED(table_of_a_block_is_known_to_libunwind_while_it_lives, CH_SINK_LIBUNWIND)
{
	enum { PAGE = BED_PAGES_PER_CHUNK + 5 };
	uint8_t *code = bed_code(bed, PAGE * BED_PAGE_BYTES + 64, frameless, sizeof frameless);
	struct own_section *section = map_own_sections(bed);
	write_own(section, code);
	size_t at;
	CHECK(!ch__eh_frame_fault(section, (uintptr_t)code, (uintptr_t)code + 512, &at));
	struct ch__own *own = ch__sinks_own_create(bed->sinks);
	CHECK(own);
	for (int round = 0; round < 3; round++) {
		check_own(code, false);
		ch__sinks_own_live(bed->sinks, own, section);
		check_own(code, true);
		CHECK(passes(code, FRAMELESS_RETURN) >= 4);
		/* Off and on again, while the block lives. */
		CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
		check_own(code, false);
		CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_LIBUNWIND), 0);
		check_own(code, true);
		/* Into libunwind's cache, which knows the block until it is flushed. */
		CHECK(passes(code, FRAMELESS_RETURN) >= 4);
		ch__sinks_own_dead(bed->sinks, own);
		check_own(code, false);
		CHECK_EQ(passes(code, FRAMELESS_RETURN), 0);
	}
	/* A failing allocation leaves only the new table unknown to libunwind. */
	for (uint64_t nth = 1, calls = 1; nth <= calls; nth++) {
		struct ch__own *other = ch__sinks_own_create(bed->sinks);
		CHECK(other);
		ch__sinks_own_live(bed->sinks, own, section);
		ch__os_fail_at(nth, false);
		ch__sinks_own_live(bed->sinks, other, section);
		calls = ch__os_failable_calls();
		ch__os_fail_at(0, false);
		ch__sinks_own_destroy(bed->sinks, other);
		check_own(code, true);
		ch__sinks_own_dead(bed->sinks, own);
	}
	check_own(code, false);
	free_two(bed, own, section);
	/* The chunk serves ordinary pages between two lives of the table. */
	for (int round = 0; round < 3; round++) {
		CHECK(ch__sinks_page_live(bed->sinks, PAGE, 1, 0));
		CHECK(is_known(code));
		ch__sinks_page_dead(bed->sinks, PAGE, 1);
		CHECK_EQ(ch__sinks_set(bed->sinks, round == 2 ? 0 : CH_SINK_LIBUNWIND), 0);
		ch__sinks_chunk_gone(bed->sinks, 1);
		CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_LIBUNWIND), 0);
		ch__sinks_own_live(bed->sinks, own, section);
		check_own(code, true);
		ch__sinks_own_dead(bed->sinks, own);
		check_own(code, false);
	}
	ch__sinks_own_destroy(bed->sinks, own);
	munmap(section, BED_PAGE_BYTES);
}

enum { OWNS = 3, MOST = 1 << 14 };
/* The objects that the process has and no heap uses, while they are taken. */
static struct ch__nongnu_object *objects[MOST];

static uint32_t take_objects(void)
{
	uint32_t count = 0;
	ch__os_fail_at(1, true);
	while (count < MOST && (objects[count] = ch__nongnu_take()))
		count++;
	ch__os_fail_at(0, false);
	return count;
}

static void give_objects(uint32_t count)
{
	while (count)
		ch__nongnu_give(objects[--count]);
}

static void live_with_tables(void)
{
	struct bed bed;
	struct ch__own *owns[OWNS];
	const uint8_t *codes[OWNS];
	bed_open(&bed, CH_SINK_LIBUNWIND);
	struct own_section *sections = map_own_sections(&bed);
	for (int i = 0; i < OWNS; i++) {
		codes[i] = bed_code(&bed, (size_t)(5 + i) * BED_PAGE_BYTES + 64, frameless,
				    sizeof frameless);
		write_own(&sections[i], codes[i]);
		CHECK((owns[i] = ch__sinks_own_create(bed.sinks)) != NULL);
	}
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < OWNS; i++)
			ch__sinks_own_live(bed.sinks, owns[i], &sections[i]);
		for (int i = 0; i < OWNS; i++)
			check_own(codes[i], true);
		for (int i = 0; i < OWNS; i++)
			ch__sinks_own_dead(bed.sinks, owns[i]);
	}
	for (int i = 0; i < OWNS; i++)
		ch__sinks_own_destroy(bed.sinks, owns[i]);
	munmap(sections, BED_PAGE_BYTES);
	bed_close(&bed);
}

/* Blocks that come and go share objects, and all objects outlive the heap as free objects. */
TEST(objects_of_tables_are_free_when_their_heap_went)
{
	live_with_tables();
	uint32_t before = take_objects();
	give_objects(before);
	live_with_tables();
	CHECK_EQ(take_objects(), before);
	give_objects(before);
}

TEST_BED(table_without_memory_for_its_object_is_not_told, CH_SINK_LIBUNWIND)
{
	struct own_section *section = map_own_sections(bed);
	uint8_t *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, frameless, sizeof frameless);
	write_own(section, code);
	struct ch__own *own = ch__sinks_own_create(bed->sinks);
	size_t before = ch__meta_bytes(bed->config.meta);
	take_objects();
	ch__os_fail_at(2, false); /* the first is the table's */
	ch__sinks_own_live(bed->sinks, own, section);
	ch__os_fail_at(0, false);
	CHECK_EQ(ch__meta_bytes(bed->config.meta), before);
	check_own(code, false);
}

TEST_BED(table_of_a_block_that_is_too_far_is_not_told, CH_SINK_LIBUNWIND)
{
	uint8_t *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, frameless, sizeof frameless);
	uintptr_t far = (uintptr_t)code - (UINT64_C(1) << 36);
	struct own_section *section =
		mmap((void *)(far & ~(uintptr_t)(BED_PAGE_BYTES - 1)), BED_PAGE_BYTES,
		     PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(section != MAP_FAILED);
	CHECK((uintptr_t)code - (uintptr_t)section > (UINT64_C(1) << 31));
	write_own(section, code);
	struct ch__own *own = ch__sinks_own_create(bed->sinks);
	CHECK(own);
	ch__sinks_own_live(bed->sinks, own, section);
	check_own(code, false);
	CHECK_EQ(passes(code, FRAMELESS_RETURN), 0);
	ch__sinks_own_destroy(bed->sinks, own);
	munmap(section, BED_PAGE_BYTES);
}

TEST_BED(walks_of_libunwind_pass_while_other_pages_flip, CH_SINK_LIBUNWIND)
{
	uint8_t shape = ch__sinks_frame_register(bed->sinks, frameless_cfi, sizeof frameless_cfi);
	void *code = bed_code(bed, 5 * BED_PAGE_BYTES + 64, frameless, sizeof frameless);
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, shape));
	struct flipper flipper = {.bed = bed, .pages = 192};
	pthread_t thread;
	CHECK_EQ(pthread_create(&thread, NULL, flip_other_pages, &flipper), 0);
	uint64_t end = now_ns() + storm_ms() * UINT64_C(1000000), passed = 0;
	for (; now_ns() < end || !passed || !flipper.flips; passed++)
		CHECK(passes(code, FRAMELESS_RETURN) >= 4);
	atomic_store(&flipper.is_over, true);
	pthread_join(thread, NULL);
}

/* --- through the public header --- */
static struct rig rig;
static const void *pcs[64];
static size_t pc_count;

static void trace_here(void)
{
	const void *few[3] = {NULL};
	pc_count = ch_backtrace(rig.heap, CH_BACKTRACE_TABLES, NULL, pcs, 64);
	CHECK_EQ(ch_backtrace(rig.heap, CH_BACKTRACE_TABLES, NULL, few, 2), 2);
	CHECK(!few[2]); /* no more than there is room */
}

static size_t index_of(uintptr_t low, uintptr_t high)
{
	for (size_t i = 0; i < pc_count; i++)
		if ((uintptr_t)pcs[i] > low && (uintptr_t)pcs[i] <= high)
			return i;
	return SIZE_MAX;
}

struct made {
	struct ch_owner owner;
	struct ch_block block;
	const void *code;
};

/* On a thread that ends, so that the thread's open pages go back. */
static void make_frameless(const struct rig *unused, void *arg)
{
	struct made *made = arg;
	uint8_t frame;
	(void)unused;
	made->owner = rig_owner(&rig, "frameless");
	CHECK_EQ(ch_frame_register(rig.heap, frameless_cfi, sizeof frameless_cfi, &frame), CH_OK);
	struct emitter e;
	struct ch_open open = {.owner = made->owner, .hot_bytes = 32, .frame = frame};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_bytes(&e, frameless, sizeof frameless);
	CHECK_EQ(emit_commit(&e), CH_OK);
	made->block = e.code.block;
	made->code = e.code.exec + e.code.entry_bytes;
}

ONE_BODY static void call_with(const void *code, void (*fn)(void))
{
	((void (*)(void (*)(void)))(uintptr_t)code)(fn);
	__asm__ volatile("" ::: "memory");
}

TEST(heap_tells_libunwind_and_backtraces_by_it)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_LIBUNWIND; /* libgcc knows nothing */
	rig = rig_create(&config, NULL, NULL);
	CHECK(ch_sink_status(rig.heap, CH_SINK_LIBUNWIND, NULL, NULL));
	struct made made;
	rig_apart(&rig, make_frameless, &made);
	uintptr_t at = (uintptr_t)made.code;
	CHECK(is_known(made.code));
	call_with(made.code, trace_here);
	size_t in_code = index_of(at, at + sizeof frameless);
	CHECK(in_code != SIZE_MAX);
	CHECK_EQ(index_of((uintptr_t)call_with, (uintptr_t)call_with + 256), in_code + 1);
	CHECK(pc_count > in_code + 3);
	char name[64];
	CHECK(ch_address_name(rig.heap, pcs[in_code], true, name, sizeof name) > 0);
	CHECK(!strncmp(name, "frameless+0x", 12));
	CHECK_EQ(ch_owner_release(made.owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 5); /* through the quarantine */
	CHECK(!rig_is_there(made.block));
	if (is_known(made.code))
		FAIL("libunwind: the page of a freed block is known");
	rig_end(&rig);
	if (object_of(at))
		FAIL("libunwind: the chunk of a destroyed heap is registered");
}

TEST(walk_of_libunwind_passes_code_with_steps)
{
	/* push rbx; sub rsp, 16; xor ebx, ebx; call rdi; add rsp, 16; pop rbx; ret */
	static const uint8_t stepped[] = {0x53, 0x48, 0x83, 0xec, 16, 0x31, 0xdb, 0xff,
					  0xd7, 0x48, 0x83, 0xc4, 16, 0x5b, 0xc3};
	static const struct ch_frame_step steps[] = {{1, 16}, {5, 32}, {13, 16}, {14, 8}};
	static const struct ch_frame_save saves[] = {{3, 2, 1}};
	static const struct ch_frame frame = {steps, saves, 4, 1};
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_LIBUNWIND;
	rig = rig_create(&config, NULL, NULL);
	struct emitter e;
	struct ch_open open = {
		.owner = rig_owner(&rig, "stepped"), .hot_bytes = 32, .frame = CH_FRAME_STEPS};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_bytes(&e, stepped, sizeof stepped);
	e.code.frame = &frame;
	CHECK_EQ(emit_commit(&e), CH_OK);
	with_known(e.code.exec, find_known);
	CHECK_EQ(known_found, 5);
	rig_end(&rig);
}

static void trace_from_signal(int signal, siginfo_t *info, void *ucontext)
{
	(void)signal, (void)info;
	pc_count = ch_backtrace(rig.heap, CH_BACKTRACE_TABLES, ucontext, pcs, 64);
}

TEST(backtrace_by_libunwind_starts_at_a_signals_context)
{
	struct ch_config config = rig_config(1 << 20);
	config.sinks = CH_SINK_LIBUNWIND;
	rig = rig_create(&config, NULL, NULL);
	uint8_t frame;
	CHECK_EQ(ch_frame_register(rig.heap, frameless_cfi, sizeof frameless_cfi, &frame), CH_OK);
	struct sigaction action = {.sa_sigaction = trace_from_signal, .sa_flags = SA_SIGINFO};
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	/* The code traps in place of the call: int3; nop. */
	struct emitter e;
	struct ch_open open = {.owner = rig_owner(&rig, "trap"), .hot_bytes = 32, .frame = frame};
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_bytes(&e, frameless, sizeof frameless);
	uint8_t *code = e.code.write + e.code.entry_bytes;
	code[7] = 0xcc;
	code[8] = 0x90;
	uintptr_t at = (uintptr_t)e.code.exec + e.code.entry_bytes;
	CHECK_EQ(emit_commit(&e), CH_OK);
	call_with((const void *)at, trace_here);
	CHECK_EQ((uintptr_t)pcs[0], at + 8);
	CHECK_EQ(index_of((uintptr_t)call_with, (uintptr_t)call_with + 256), 1);
	rig_end(&rig);
}

TEST_BED(child_of_a_fork_has_its_own_libunwind, CH_SINK_LIBUNWIND)
{
	CHECK(ch__sinks_page_live(bed->sinks, 5, 1, 0));
	ch__sinks_lock(bed->sinks);
	ch__sinks_fork_files_prepare();
	pid_t child = fork_child();
	if (!child) {
		ch__sinks_fork_files_done(true);
		ch__sinks_fork_child(bed->sinks, true);
		ch__sinks_page_dead(bed->sinks, 5, 1);
		CHECK(ch__sinks_page_live(bed->sinks, 70, 1, 0));
		check_only_live(bed, 70, 1);
		struct bed other;
		bed_open(&other, CH_SINK_LIBUNWIND);
		bed_close(&other);
		_exit(0);
	}
	ch__sinks_fork_files_done(false);
	ch__sinks_unlock(bed->sinks);
	int status;
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	check_only_live(bed, 5, 1);
}
