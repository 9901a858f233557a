/* SPDX-License-Identifier: MIT
 * nongnu.c: finds nongnu libunwind in the process, by weak references and by the dynamic linker,
 * and proves that it reads objects as nongnu.h lays them out. It registers nothing that stays.
 * Objects are the process's: those that no heap has wait here. Lock: objects.lock, inside the sinks
 * lock; held over a fork.
 *
 * The functions for walks in the own process carry the architecture's name and an L, the flush
 * carries the name alone; the calls that register have neither. */
#define _GNU_SOURCE
#include "unwind/nongnu.h"

#include "unwind/unwinders.h"

#include <errno.h>
#include <string.h>
#include <ucontext.h>

#define LOCAL(name) "_UL" CH_ARCH_NONGNU_NAME "_" name
#define GENERAL(name) "_U" CH_ARCH_NONGNU_NAME "_" name
#define WEAK __attribute__((weak))

extern void weak_add(struct ch__nongnu_object *) __asm__("_U_dyn_register") WEAK;
extern void weak_cancel(struct ch__nongnu_object *) __asm__("_U_dyn_cancel") WEAK;
extern void weak_flush(void *, uintptr_t, uintptr_t) __asm__(GENERAL("flush_cache")) WEAK;
extern int weak_procedure(void *, uintptr_t, struct ch__nongnu_procedure *,
			  void *) __asm__(LOCAL("get_proc_info_by_ip")) WEAK;
extern int weak_start(struct ch__nongnu_cursor *, void *, int) __asm__(LOCAL("init_local2")) WEAK;
extern int weak_step(struct ch__nongnu_cursor *) __asm__(LOCAL("step")) WEAK;
extern int weak_get(struct ch__nongnu_cursor *, int, uintptr_t *) __asm__(LOCAL("get_reg")) WEAK;
extern void *weak_space __asm__(LOCAL("local_addr_space")) WEAK;
extern void *weak_general_space __asm__(GENERAL("local_addr_space")) WEAK;

static const char library[] = "libunwind.so.8";

/* --- finding it --- */

static void find_weak(struct ch__nongnu *n)
{
	*n = (struct ch__nongnu){.add = weak_add,
				 .cancel = weak_cancel,
				 .flush = weak_flush,
				 .procedure = weak_procedure,
				 .start = weak_start,
				 .step = weak_step,
				 .get = weak_get,
				 .space = &weak_space,
				 .general_space = &weak_general_space};
}

static bool is_whole(const struct ch__nongnu *n)
{
	return n->add && n->cancel && n->flush && n->procedure && n->start && n->step && n->get &&
	       n->space;
}

/* A function's address is a pointer's for the dynamic linker. */
#define FIND(member, symbol)                                    \
	do {                                                    \
		void *found = ch__os_symbol(library, (symbol)); \
		memcpy(&n->member, &found, sizeof found);       \
	} while (0)

static void find_loaded(struct ch__nongnu *n)
{
	memset(n, 0, sizeof *n);
	FIND(add, "_U_dyn_register");
	if (!n->add)
		return;
	FIND(cancel, "_U_dyn_cancel");
	FIND(flush, GENERAL("flush_cache"));
	FIND(procedure, LOCAL("get_proc_info_by_ip"));
	FIND(start, LOCAL("init_local2"));
	FIND(step, LOCAL("step"));
	FIND(get, LOCAL("get_reg"));
	FIND(space, LOCAL("local_addr_space"));
	FIND(general_space, GENERAL("local_addr_space"));
}

bool ch__nongnu_find(struct ch__nongnu *n)
{
	find_weak(n);
	/* Some of it only: a program that links the archive has the members that it uses. */
	if (!is_whole(n))
		find_loaded(n);
	return is_whole(n);
}

/* --- objects --- */
static struct {
	struct ch__lock lock;
	CH_BY_FILE struct ch__nongnu_object *free; /* by next */
} objects;

void ch__nongnu_lock(void)
{
	ch__file_lock(&objects.lock, CH__RANK_UNWINDER);
}

void ch__nongnu_unlock(void)
{
	ch__file_unlock(&objects.lock, CH__RANK_UNWINDER);
}

bool ch__nongnu_take(struct ch__nongnu_object **out, uint32_t count)
{
	size_t page = ch__os_page_bytes(), a_page = page / sizeof **out;
	uint32_t taken = 0;
	ch__nongnu_lock();
	while (taken < count) {
		struct ch__nongnu_object *fresh = objects.free ? NULL : ch__os_private(page);
		for (size_t i = 0; fresh && i < a_page; i++) {
			fresh[i].next = objects.free;
			objects.free = &fresh[i];
		}
		if (!objects.free)
			break;
		out[taken] = objects.free;
		objects.free = out[taken]->next;
		out[taken]->next = NULL;
		taken++;
	}
	ch__nongnu_unlock();
	return taken == count;
}

void ch__nongnu_give(struct ch__nongnu_object **given, uint32_t count)
{
	ch__nongnu_lock();
	for (uint32_t i = 0; i < count; i++) {
		if (!given[i])
			continue;
		given[i]->next = objects.free;
		objects.free = given[i];
	}
	ch__nongnu_unlock();
}

/* Walks read start and then end, and the object may be filled between the two: then no pc lies
 * behind the start that was read. */
void ch__nongnu_empty(struct ch__nongnu_object *object)
{
	__atomic_store_n(&object->end, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&object->start, UINTPTR_MAX, __ATOMIC_RELEASE);
}

void ch__nongnu_fill(struct ch__nongnu_object *object, uintptr_t start, uintptr_t end,
		     uintptr_t segment, const struct ch__nongnu_entry *table, size_t entries)
{
	/* Release: who reads it sees that the object was emptied, not an end that it had before. */
	__atomic_store_n(&object->start, start, __ATOMIC_RELEASE);
	object->global_pointer = 0;
	object->format = CH__NONGNU_REMOTE_TABLE;
	object->load_offset = 0;
	object->name = 0;
	object->segment = segment;
	object->table_words = entries * sizeof *table / sizeof(uintptr_t);
	object->table = (uintptr_t)table;
	/* Walks have no fence: the range is the last thing that becomes true of an object, and the
	 * code in it is reached after that. */
	__atomic_store_n(&object->end, end, __ATOMIC_RELEASE);
}

/* A flush also unmaps what libunwind loaded of files' .debug_frame, without a lock of its own: two
 * heaps must not do it at once. */
void ch__nongnu_flush(const struct ch__nongnu *n)
{
	ch__nongnu_lock();
	n->flush(*n->space, 0, 0);
	if (n->general_space && *n->general_space)
		n->flush(*n->general_space, 0, 0);
	ch__nongnu_unlock();
}

/* --- the proof --- */

/* Its spaces are set up by the first cursor. */
static void wake(const struct ch__nongnu *n)
{
	ucontext_t context;
	struct ch__nongnu_cursor cursor;
	if (getcontext(&context) == 0)
		n->start(&cursor, &context, 0);
}

/* libunwind before 1.6 has the same name and no load_offset: it takes the segment for the length of
 * the table. So the proof is an object whose segment is 0: a length of 0 finds nothing and does no
 * harm, while the right layout finds the range. Offsets from 0 have 32 bits, so table, section and
 * the range, where no code is, lie in a page of the lowest 2 GiB. */
bool ch__nongnu_understands(const struct ch__nongnu *n, struct ch__nongnu_object *object)
{
	enum { PLACE = 1 << 30, RANGE = 16 };
	static const struct ch__frame_shape shapes[CH__FRAMES];
	struct ch__eh_place place = {.page_bytes = RANGE, .pages = 1};
	size_t bytes = ch__eh_frame_bytes(&place) + sizeof(struct ch__nongnu_entry);
	size_t page = ch__os_page_bytes();
	bytes = (bytes + page - 1) & ~(page - 1);
	uint8_t *low = ch__os_private_near(bytes, PLACE);
	if (!low)
		return false;
	uintptr_t at = (uintptr_t)low;
	bool is_understood = false;
	if (at <= INT32_MAX - bytes) {
		struct ch__nongnu_procedure found = {0, 0, {0}};
		struct ch__nongnu_entry *table = (void *)low;
		uint8_t *section = low + sizeof *table;
		place.exec = at;
		ch__eh_frame_write(section, &place, shapes);
		ch__eh_frame_live(section, 0, RANGE, 0);
		*table = (struct ch__nongnu_entry){
			(int32_t)at, (int32_t)(uintptr_t)ch__eh_frame_fde(section, 0)};
		ch__nongnu_fill(object, at, at + RANGE, 0, table, 1);
		wake(n);
		n->add(object);
		is_understood = n->procedure(*n->space, at, &found, NULL) == 0 &&
				found.start == at && found.end == at + RANGE;
		n->cancel(object);
		ch__nongnu_empty(object);
	}
	ch__os_unmap(low, bytes);
	errno = ENOTSUP;
	return is_understood;
}
