/* SPDX-License-Identifier: MIT
 * nongnu.c: finds nongnu libunwind in the process, by weak references and by the dynamic linker,
 * and proves that objects are read as nongnu.h lays them out. Objects are the process's; an object
 * that no heap has waits here. Lock: process.lock, inside the sinks lock; held over a fork. */
#define _GNU_SOURCE
#include "unwind/nongnu.h"

#include "os/files.h"
#include "unwind/unwinders.h"

static struct {
	struct ch__lock lock;
	CH_BY_FILE struct ch__nongnu_object *free; /* by next_free */
} process;
struct ch__nongnu ch__nongnu; /* written once, under the lock */

CH__LOCK_FUNCTIONS(ch__nongnu_lock, ch__nongnu_unlock, void, ch__lock_take, process.lock,
		   CH__RANK_UNWINDER)

/* The functions for walks in the own process have the architecture's name and an L, flush and
 * general space have the name alone, the call that registers has neither. */
#define LOCAL(name) "_UL" CH_ARCH_NONGNU_NAME "_" name
#define GENERAL(name) "_U" CH_ARCH_NONGNU_NAME "_" name
#define SYMBOLS(X)                                 \
	X(add, "_U_dyn_register")                  \
	X(flush, GENERAL("flush_cache"))           \
	X(procedure, LOCAL("get_proc_info_by_ip")) \
	X(start, LOCAL("init_local2"))             \
	X(step, LOCAL("step"))                     \
	X(get, LOCAL("get_reg"))                   \
	X(space, LOCAL("local_addr_space"))        \
	X(general_space, GENERAL("local_addr_space"))

/* The members of struct ch__nongnu have the types. */
#define X(member, symbol) extern char weak_##member[] __asm__(symbol) __attribute__((weak));
SYMBOLS(X)
#undef X

static const struct {
	size_t member_at;
	const char *name;
	void *weak;
} symbols[] = {
#define X(member, symbol) {offsetof(struct ch__nongnu, member), symbol, weak_##member},
	SYMBOLS(X)
#undef X
};

/* Returns false when a symbol other than general_space is missing. */
static bool find(struct ch__nongnu *n, bool is_loaded)
{
	for (unsigned i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *found = is_loaded ? ch__os_symbol("libunwind.so.8", symbols[i].name)
					: symbols[i].weak;
		memcpy((char *)n + symbols[i].member_at, &found, sizeof found);
		if (!found && symbols[i].member_at != offsetof(struct ch__nongnu, general_space))
			return false;
	}
	return true;
}

/* The first libunwind that is found serves all heaps: it has their objects. A program that links
 * the archive has only the members in use: then some of the weak references are missing. */
void ch__nongnu_find(void)
{
	struct ch__nongnu n;
	if (!find(&n, false) && !find(&n, true))
		return;
	ch__nongnu_lock();
	if (!ch__nongnu.add)
		ch__nongnu = n;
	ch__nongnu_unlock();
}

struct ch__nongnu_object *ch__nongnu_take(void)
{
	size_t page = ch__os_page_bytes();
	ch__nongnu_lock();
	struct ch__nongnu_object *fresh = process.free ? NULL : ch__os_private(page);
	for (size_t i = 0; fresh && i < page / sizeof *fresh; i++) {
		fresh[i].next_free = process.free;
		process.free = &fresh[i];
	}
	struct ch__nongnu_object *object = process.free;
	if (object)
		process.free = object->next_free;
	ch__nongnu_unlock();
	return object;
}

/* Walks read start, then end, without a lock, so the object is emptied from its end. A fill may
 * come between a walk's two reads. If the walk read the empty start, no pc is behind it. If it read
 * the old start, it may take a pc for the object's new place, finds no entry, and ends there. */
void ch__nongnu_give(struct ch__nongnu_object *object)
{
	__atomic_store_n(&object->end, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&object->start, UINTPTR_MAX, __ATOMIC_RELEASE);
	ch__nongnu_lock();
	object->next_free = process.free;
	process.free = object;
	ch__nongnu_unlock();
}

void ch__nongnu_fill(struct ch__nongnu_object *object, uintptr_t start, uintptr_t end,
		     uintptr_t segment, const struct ch__nongnu_entry *table, size_t entries)
{
	__atomic_store_n(&object->start, start, __ATOMIC_RELEASE);
	object->format = CH__NONGNU_REMOTE_TABLE;
	object->segment = segment;
	object->table_words = entries * sizeof *table / sizeof(uintptr_t);
	object->table = (uintptr_t)table;
	/* Walks have no fence: the range becomes true last, and its code is reached later. */
	__atomic_store_n(&object->end, end, __ATOMIC_RELEASE);
	if (!object->is_added)
		ch__nongnu.add(object);
	object->is_added = true;
}

/* Under the lock: a flush takes none, and unmaps what libunwind loaded of .debug_frame. */
void ch__nongnu_flush(void)
{
	ch__nongnu_lock();
	ch__nongnu.flush(*ch__nongnu.space, 0, 0);
	if (ch__nongnu.general_space && *ch__nongnu.general_space)
		ch__nongnu.flush(*ch__nongnu.general_space, 0, 0);
	ch__nongnu_unlock();
}

/* libunwind before 1.6 has the same name and no load_offset: it takes the segment for the length of
 * the table. So the proof is an object with segment 0. For the old layout a length of 0 finds
 * nothing and does no harm; with the right layout the range is found. Offsets from 0 have 32 bits:
 * so table, section and the range, where no code is, lie in a page of the lowest 2 GiB. */
int ch__nongnu_prove(const struct ch__frame_shape *shapes)
{
	enum { PLACE = 1 << 30, RANGE = 16 };
	struct ch__eh_place place = {.page_bytes = RANGE, .pages = 1};
	size_t bytes = ch__os_page_bytes();
	CH_ASSERT(sizeof(struct ch__nongnu_entry) + ch__eh_frame_bytes(&place) <= bytes,
		  "libunwind's proof is longer than a page");
	ch__nongnu_lock();
	bool is_there = ch__nongnu.add != NULL;
	ch__nongnu_unlock();
	if (!is_there)
		return ENOSYS;
	uint8_t *low = ch__os_private_near(bytes, PLACE);
	uintptr_t at = (uintptr_t)low;
	struct ch__nongnu_object *object = low ? ch__nongnu_take() : NULL;
	int error = ENOMEM;
	if (object && at <= INT32_MAX - bytes) {
		struct ch__nongnu_procedure found = {0, 0, {0}};
		struct ch__nongnu_cursor cursor;
		ucontext_t context;
		struct ch__nongnu_entry *table = (void *)low;
		uint8_t *section = low + sizeof *table;
		place.exec = at;
		ch__eh_frame_write(section, &place, shapes);
		ch__eh_frame_live(section, 0, RANGE, shapes, 0);
		*table = (struct ch__nongnu_entry){
			(int32_t)at, (int32_t)(uintptr_t)ch__eh_frame_fde(section, 0)};
		ch__nongnu_fill(object, at, at + RANGE, 0, table, 1);
		/* The first cursor sets up libunwind's spaces. */
		if (getcontext && getcontext(&context) == 0)
			ch__nongnu.start(&cursor, &context, 0);
		bool is_found = ch__nongnu.procedure(*ch__nongnu.space, at, &found, NULL) == 0;
		bool is_right = is_found && found.start == at && found.end == at + RANGE;
		error = is_right ? 0 : ENOTSUP;
	}
	if (object)
		ch__nongnu_give(object);
	if (low)
		ch__os_unmap(low, bytes);
	return error;
}
