/* SPDX-License-Identifier: MIT
 * sinks.c: the table of sinks of a heap: the sinks that are on, and what each sink is told. For a
 * sink that is turned on late the table remembers the live pages, the live tables of blocks and the
 * frame shapes. The table knows no format and no file.
 *
 * A sink that fails is switched off and keeps its errno for status. Callers hear nothing of the
 * failure, except that a page is refused when no unwind data can be made.
 * Lock: the sinks lock, right of pages, guards page states, shapes and the unwinder's
 * registrations. Ranges are told under each sink's own lock only: writing a file must not stop
 * threads that take pages. `on` and the states of sinks are read without a lock; a state stays
 * allocated until destroy. */
#include "sinks/sinks.h"
#include "sinks/tools.h"
#include "unwind/steps.h"
#include "unwind/unwinders.h"

#include <errno.h>
#include <stdio.h>

/* In the order in which a new range is told: of tools, a sink with times before sinks without. */
static const struct ch__sink_ops *const table[] = {
	&ch__sink_libgcc,
	&ch__sink_libunwind,
	&ch__sink_jitdump,
	&ch__sink_perfmap,
	&ch__sink_gdb,
};
enum { SINKS = sizeof table / sizeof table[0] };

struct ch__sinks {
	struct ch__sinks_config config;
	struct ch__lock lock;
	/* Bits; relaxed: the caller of set orders a change before the threads that must hear. */
	_Atomic(unsigned) on;
	_Atomic(void *) state[SINKS]; /* release when open made it, pairs with acquire in tell */
	CH_BY_SINKS int open_error[SINKS];
	uint32_t page_count;          /* [const] */
	CH_BY_SINKS uint32_t page_end; /* no page from here on ever had frames */
	CH_BY_SINKS uint8_t shape_count;
	CH_BY_SINKS struct ch__frame_shape shapes[CH__FRAMES];
	_Atomic(struct ch__steps *) steps; /* NULL at first; release, pairs with ch__sinks_steps */
	CH_BY_SINKS struct ch__own *own; /* all live tables */
	CH_BY_SINKS bool is_codeless;    /* a child of fork without code */
	CH_BY_SINKS bool keeps_tables;   /* an unwinder has tables that it cannot give up */
	_Atomic(uint8_t) frames[]; /* as the configuration says; stored under the lock, release */
};

CH__LOCK_FUNCTIONS(ch__sinks_lock, ch__sinks_unlock, struct ch__sinks *s, ch__lock_take, s->lock,
		   CH__RANK_SINKS)

static void lock_tool(unsigned i) CH_ACQUIRES(ch__role_file)
	CH_EXCLUDES(CH__RIGHT_OF_FILE) CH_UNANALYSED("an unwinder needs none")
{
	if (table[i]->tool)
		ch__tool_lock(table[i]->tool);
}
static void unlock_tool(unsigned i)
	CH_RELEASES(ch__role_file) CH_UNANALYSED("an unwinder needs none")
{
	if (table[i]->tool)
		ch__tool_unlock(table[i]->tool);
}

static size_t sinks_bytes(uint32_t page_count)
{
	return sizeof(struct ch__sinks) + page_count * sizeof(_Atomic(uint8_t));
}

static void switch_off(struct ch__sinks *s, unsigned i)
{
	atomic_fetch_and_explicit(&s->on, ~(unsigned)table[i]->bit, memory_order_relaxed);
}

static void set_frames(struct ch__sinks *s, uint32_t page, uint32_t pages, uint8_t frame)
{
	CH_ASSERT(CH_CHECK < 2 || ch__lock_is_mine(&s->lock),
		  "sinks: pages change without the lock");
	CH_ASSERT(page < s->page_count && pages <= s->page_count - page,
		  "sinks: pages outside the pool");
	for (uint32_t end = page + pages; page < end; page++)
		atomic_store_explicit(&s->frames[page], frame, memory_order_release);
}

static unsigned slot_of(enum ch__sink sink)
{
	unsigned i = 0;
	while (i < SINKS && table[i]->bit != sink)
		i++;
	return i;
}

static void *state_of(const struct ch__sinks *s, unsigned i)
{
	return atomic_load_explicit(&s->state[i], memory_order_acquire);
}

struct ch__steps *ch__sinks_steps(const struct ch__sinks *s)
{
	return atomic_load_explicit(&s->steps, memory_order_acquire);
}

/* The state of the sink in slot i, or NULL when the sink is off. Inline, though the file is built
 * to be small: each block that comes or goes asks this of every sink. */
static inline __attribute__((always_inline)) void *state_if_on(const struct ch__sinks *s,
							       unsigned i)
{
	unsigned on = CH_LOAD_RELAXED(&s->on);
	return on & (unsigned)table[i]->bit ? state_of(s, i) : NULL;
}

/* Visits each sink that is on and has the entry. */
#define EACH(s, i, state, entry)       \
	for (unsigned i = 0; i < SINKS; i++) \
		for (void *state = table[i]->entry ? state_if_on(s, i) : NULL; state; state = NULL)

/* Appends instructions to the shape's program. */
static void write_shape(struct ch__frame_shape *shape, const uint8_t *cfi, size_t bytes)
{
	memcpy(shape->cfi + shape->bytes, cfi, bytes);
	shape->bytes = (uint8_t)(shape->bytes + bytes);
	shape->return_register = CH_ARCH_DWARF_RETURN;
	shape->code_align = CH_ARCH_DWARF_CODE_ALIGN;
	shape->data_align = CH_ARCH_DWARF_DATA_ALIGN;
}

_Static_assert(sizeof ch__arch_cfi_frame_pointer + sizeof ch__arch_cfi_saves <= CH__FRAME_CFI_BYTES,
	       "a shape has room for the longest program of its own");
static void write_fixed_shapes(struct ch__frame_shape *shapes)
{
	static const uint8_t *const record = ch__arch_cfi_frame_pointer;
	write_shape(&shapes[CH__FRAME_POINTER], record, sizeof ch__arch_cfi_frame_pointer);
	write_shape(&shapes[CH__FRAME_KEEPS_ALL], record, sizeof ch__arch_cfi_frame_pointer);
	write_shape(&shapes[CH__FRAME_KEEPS_ALL], ch__arch_cfi_saves, sizeof ch__arch_cfi_saves);
	write_shape(&shapes[CH__FRAME_LEAF], ch__arch_cfi_leaf, sizeof ch__arch_cfi_leaf);
	write_shape(&shapes[CH__FRAME_STEPS], ch__arch_cfi_leaf, sizeof ch__arch_cfi_leaf);
}

/* The error of a tool's sink; the tool's lock is held. */
static int error_of(unsigned i, const void *state)
{
	return table[i]->tool && state ? ((const struct ch__tool_user *)state)->error : 0;
}

/* Takes the lock of the sink's tool. Returns false when the sink is off and must hear nothing. */
static bool enter(unsigned i, const struct ch__tool_user *state) CH_ACQUIRES(ch__role_file)
{
	lock_tool(i);
	return !table[i]->tool || state->is_on;
}

/* A sink that failed may have been turned off and on since then, and then has no error. */
static void switch_off_failed(struct ch__sinks *s, unsigned i, const void *state)
{
	ch__sinks_lock(s);
	lock_tool(i);
	if (error_of(i, state) != 0)
		switch_off(s, i);
	unlock_tool(i);
	ch__sinks_unlock(s);
}

const void *ch__sinks_state(const struct ch__sinks *s, enum ch__sink sink)
{
	return ch__sinks_on(s) & (unsigned)sink ? state_of(s, slot_of(sink)) : NULL;
}

static void nobody_else_knows(const struct ch__sinks *s)
	CH_VOUCHES(ch__role_sinks) CH_UNANALYSED("before its heap is known, or after")
{
	(void)s;
}

int ch__sinks_create(const struct ch__sinks_config *config, unsigned wanted, struct ch__sinks **out)
{
	*out = NULL;
	uint32_t page_count = (uint32_t)(config->pool_bytes / config->page_bytes);
	struct ch__sinks *s = ch__meta_alloc(config->meta, sinks_bytes(page_count));
	if (!s)
		return ENOMEM;
	s->config = *config;
	if (config->chunk_bytes > config->pool_bytes)
		s->config.chunk_bytes = config->pool_bytes;
	s->config.frames = s->frames;
	s->config.shapes = s->shapes;
	s->config.each = NULL; /* nothing is published yet */
	s->page_count = page_count;
	nobody_else_knows(s);
	write_fixed_shapes(s->shapes);
	s->shape_count = CH__FRAMES_FIXED;
	/* Without unwind data no page can be taken, so a failure of the unwinder fails the
	 * creation. A failure of a file does not. */
	int error = ch__sinks_set(s, wanted);
	if (error && (wanted & CH__SINK_UNWIND) && ch__sinks_status(s, CH__SINK_UNWIND)) {
		(void)ch__sinks_destroy(s);
		return error;
	}
	s->config.each = config->each;
	*out = s;
	return 0;
}

bool ch__sinks_parse(const char *list, unsigned *wanted)
{
	*wanted = 0;
	if (!strcmp(list, "none"))
		return true;
	for (const char *at = list;; at++) {
		size_t length = strcspn(at, ",");
		unsigned i = 0;
		while (i < SINKS &&
		       (strncmp(table[i]->name, at, length) != 0 || table[i]->name[length]))
			i++;
		if (i == SINKS)
			return false;
		*wanted |= table[i]->bit;
		at += length;
		if (!*at)
			return true;
	}
}

void ch__sinks_print(unsigned on, char *list, size_t bytes)
{
	size_t used = 0;
	for (unsigned i = 0; i < SINKS; i++)
		if (on & (unsigned)table[i]->bit)
			used += (size_t)snprintf(list + used, bytes - used, "%s%s", used ? "," : "",
						 table[i]->name);
	if (!used)
		snprintf(list, bytes, "none");
}

unsigned ch__sinks_on(const struct ch__sinks *s)
{
	return CH_LOAD_RELAXED(&s->on);
}

/* Tells one sink of the ranges of published blocks. */
struct late {
	struct ch__sinks *sinks;
	unsigned slot;
	bool is_removed;
};

static void tell_late(void *arg, const struct ch__sink_range *range)
{
	const struct late *late = arg;
	const struct ch__sinks_config *config = &late->sinks->config;
	const struct ch__sink_ops *ops = table[late->slot];
	void *state = state_if_on(late->sinks, late->slot);
	if (!state)
		return;
	if (ops->slot_live) {
		size_t page = ch__sink_page(config, range->exec);
		uint8_t frame = (uint8_t)(ch__sink_frame(config, page) - 1);
		if (ch__frame_has_slots(frame))
			ops->slot_live(state, range->exec - config->head_bytes, frame);
	}
	if (!ops->add)
		return;
	if (!enter(late->slot, state) || !(late->is_removed ? ops->remove(state, range, 1)
							    : ops->add(state, range, 1, true)))
		switch_off(late->sinks, late->slot);
	unlock_tool(late->slot);
}

static void tell_all(struct ch__sinks *s, unsigned i, bool is_removed)
{
	struct late late = {s, i, is_removed};
	if (s->config.each && (table[i]->add || table[i]->slot_live))
		s->config.each(s->config.context, tell_late, &late);
}

static bool tell_live_pages(struct ch__sinks *s, const struct ch__sink_ops *ops, void *state)
	CH_REQUIRES(ch__role_sinks)
{
	bool ok = true;
	for (uint32_t page = 0; ok && ops->page_live && page < s->page_end; page++) {
		uint8_t frame = ch__sink_frame(&s->config, page);
		ok = !frame || ops->page_live(state, page, 1, (uint8_t)(frame - 1));
	}
	return ok;
}

static void tell_own(struct ch__sinks *s, void (*tell)(void *, struct ch__own *), void *state)
	CH_REQUIRES(ch__role_sinks)
{
	for (struct ch__own *own = s->own; tell && own; own = own->next)
		tell(state, own);
}

static int turn_on(struct ch__sinks *s, unsigned i)
{
	const struct ch__sink_ops *ops = table[i];
	ch__sinks_lock(s);
	void *state = state_of(s, i);
	lock_tool(i);
	int error = s->is_codeless && ops->knows_time ? EFAULT : ops->open(&s->config, &state);
	unlock_tool(i);
	atomic_store_explicit(&s->state[i], state, memory_order_release);
	if (!error && !tell_live_pages(s, ops, state)) {
		ops->close(state);
		error = ENOMEM;
	}
	s->open_error[i] = error;
	if (!error) {
		tell_own(s, ops->own_live, state);
		atomic_fetch_or_explicit(&s->on, ops->bit, memory_order_relaxed);
	}
	ch__sinks_unlock(s);
	if (error || !s->config.each)
		return error;
	tell_all(s, i, false);
	if (!ops->flush)
		return 0;
	if (!enter(i, state) || !ops->flush(state, CH__FLUSH_BUFFERED))
		switch_off(s, i);
	error = error_of(i, state);
	unlock_tool(i);
	return error;
}

static void turn_off(struct ch__sinks *s, unsigned i)
{
	if (table[i]->knows_time)
		tell_all(s, i, true);
	ch__sinks_lock(s);
	void *state = state_of(s, i);
	switch_off(s, i);
	tell_own(s, table[i]->own_dead, state);
	if (enter(i, state))
		table[i]->close(state);
	unlock_tool(i);
	ch__sinks_unlock(s);
}

/* Nobody wants the sink. An error of the last write, when the sink goes off, comes later. */
static void forget_error(struct ch__sinks *s, unsigned i)
{
	ch__sinks_lock(s);
	struct ch__tool_user *user = table[i]->tool ? state_of(s, i) : NULL;
	s->open_error[i] = 0;
	lock_tool(i);
	if (user)
		user->error = 0;
	unlock_tool(i);
	ch__sinks_unlock(s);
}

int ch__sinks_set(struct ch__sinks *s, unsigned wanted)
{
	int first_error = 0;
	for (unsigned i = 0; i < SINKS; i++) {
		bool is_on = (ch__sinks_on(s) & (unsigned)table[i]->bit) != 0;
		bool is_wanted = (wanted & (unsigned)table[i]->bit) != 0;
		/* A sink whose tool failed for another heap stays on until a range is told. */
		if (is_on && is_wanted && ch__sinks_status(s, table[i]->bit) != 0) {
			switch_off(s, i);
			is_on = false;
		}
		if (!is_wanted)
			forget_error(s, i);
		if (is_on && !is_wanted)
			turn_off(s, i);
		int error = !is_on && is_wanted ? turn_on(s, i) : 0;
		if (!first_error)
			first_error = error;
	}
	return first_error;
}

int ch__sinks_status(struct ch__sinks *s, enum ch__sink sink)
{
	unsigned i = slot_of(sink);
	if (i == SINKS)
		return EINVAL;
	ch__sinks_lock(s);
	lock_tool(i);
	int error = s->open_error[i] ? s->open_error[i] : error_of(i, state_of(s, i));
	unlock_tool(i);
	ch__sinks_unlock(s);
	return error;
}

const char *ch__sinks_path(const struct ch__sinks *s, enum ch__sink sink)
{
	unsigned i = slot_of(sink);
	const struct ch__tool_user *user = i < SINKS && table[i]->tool ? state_of(s, i) : NULL;
	if (!user)
		return "";
	const char *path = enter(i, user) ? table[i]->tool->path : "";
	unlock_tool(i);
	return path;
}

bool ch__sinks_destroy(struct ch__sinks *s)
{
	if (!s)
		return true;
	nobody_else_knows(s);
	while (s->own)
		ch__sinks_own_destroy(s, s->own);
	for (unsigned i = 0; i < SINKS; i++) {
		if (state_if_on(s, i))
			turn_off(s, i);
		void *state = state_of(s, i);
		if (state && table[i]->tool)
			ch__meta_free(s->config.meta, state,
				      ((struct ch__tool_user *)state)->bytes);
		else if (state)
			table[i]->destroy(state);
	}
	struct ch__steps *steps = ch__sinks_steps(s);
	if (steps) {
		ch__steps_end(steps);
		ch__meta_free(s->config.meta, steps, sizeof *steps);
	}
	bool is_all = !s->keeps_tables;
	ch__meta_free(s->config.meta, s, sinks_bytes(s->page_count));
	return is_all;
}

static bool is_shape(const struct ch__sinks *s, uint8_t frame) CH_REQUIRES(ch__role_sinks)
{
	return ch__frame_has_slots(frame) ? s->shapes[frame].slot_bytes != 0
					  : frame < s->shape_count;
}

static void kill_pages(struct ch__sinks *s, uint32_t page, uint32_t pages)
{
	set_frames(s, page, pages, 0);
	EACH(s, i, state, page_dead)
		table[i]->page_dead(state, page, pages);
}

bool ch__sinks_page_live(struct ch__sinks *s, uint32_t page, uint32_t pages, uint8_t frame)
{
	bool ok = true;
	ch__sinks_lock(s);
	CH_ASSERT(page < s->page_count && pages <= s->page_count - page && is_shape(s, frame),
		  "sinks: a live page outside the pool, or of no frame shape");
	for (uint32_t i = page; i < page + pages; i++)
		if (ch__sink_frame(&s->config, i) && ch__sink_frame(&s->config, i) != frame + 1)
			kill_pages(s, i, 1);
	EACH(s, i, state, page_live)
		ok = ok && table[i]->page_live(state, page, pages, frame);
	if (ok) {
		set_frames(s, page, pages, (uint8_t)(frame + 1));
		s->page_end = page + pages > s->page_end ? page + pages : s->page_end;
	}
	ch__sinks_unlock(s);
	return ok;
}

bool ch__sinks_page_is_live(const struct ch__sinks *s, uint32_t page, uint8_t frame)
{
	return ch__sink_frame(&s->config, page) == frame + 1;
}

void ch__sinks_page_dead(struct ch__sinks *s, uint32_t page, uint32_t pages)
{
	ch__sinks_lock(s);
	kill_pages(s, page, pages);
	ch__sinks_unlock(s);
}

/* Sinks that are off are told, too, since they may hold registrations of an earlier time. */
void ch__sinks_chunk_gone(struct ch__sinks *s, uint32_t chunk)
{
	uint32_t pages = (uint32_t)(s->config.chunk_bytes / s->config.page_bytes);
	ch__sinks_lock(s);
	set_frames(s, chunk * pages, pages, 0);
	for (unsigned i = 0; i < SINKS; i++) {
		if (state_of(s, i) && table[i]->chunk_gone)
			table[i]->chunk_gone(state_of(s, i), chunk);
	}
	ch__sinks_unlock(s);
}

static void tell_shape(struct ch__sinks *s, uint8_t frame)
{
	for (unsigned i = 0; i < SINKS; i++)
		if (state_of(s, i) && table[i]->shape_added)
			table[i]->shape_added(state_of(s, i), frame);
}

uint8_t ch__sinks_frame_register(struct ch__sinks *s, const uint8_t *cfi, size_t bytes)
{
	uint8_t frame = 0;
	ch__sinks_lock(s);
	if (s->shape_count < CH__FRAME_SHAPES) {
		frame = s->shape_count++;
		write_shape(&s->shapes[frame], cfi, bytes);
		tell_shape(s, frame);
	}
	ch__sinks_unlock(s);
	return frame;
}

bool ch__sinks_steps_begin(struct ch__sinks *s)
{
	if (CH_LIKELY(ch__sinks_steps(s) != NULL))
		return true;
	ch__sinks_lock(s);
	struct ch__steps *steps = ch__sinks_steps(s);
	if (!steps) {
		steps = ch__meta_alloc(s->config.meta, sizeof *steps);
		if (steps && !ch__steps_begin(steps, s->config.pool_exec, s->config.pool_bytes)) {
			ch__meta_free(s->config.meta, steps, sizeof *steps);
			steps = NULL;
		}
		if (steps) {
			s->shapes[CH__FRAME_STEPS].steps = steps;
			tell_shape(s, CH__FRAME_STEPS);
			atomic_store_explicit(&s->steps, steps, memory_order_release);
		}
	}
	ch__sinks_unlock(s);
	return steps != NULL;
}

int ch__sinks_slots_register(struct ch__sinks *s, enum ch__template kind, uint16_t slot_bytes)
{
	struct ch__arch_template template = ch__arch_templates[kind];
	uint8_t frame = (uint8_t)(CH__FRAME_SLOTS + kind);
	int error = 0;
	CH_ASSERT(s->config.head_bytes + template.bytes <= slot_bytes,
		  "sinks: a template longer than a slot");
	ch__sinks_lock(s);
	if (!is_shape(s, frame)) {
		struct ch__frame_shape shape;
		error = ch__template_cfi(&template, &shape);
		if (!error) {
			shape.slot_bytes = slot_bytes;
			s->shapes[frame] = shape;
			tell_shape(s, frame);
		}
	}
	ch__sinks_unlock(s);
	return error;
}

void ch__sinks_slot_live(struct ch__sinks *s, uintptr_t exec, uint8_t frame)
{
	EACH(s, i, state, slot_live)
		table[i]->slot_live(state, exec, frame);
}

/* Under the lock, since the section of an empty page may go meanwhile. */
bool ch__sinks_slot_is_live(struct ch__sinks *s, uintptr_t exec)
{
	bool is_live = false;
	ch__sinks_lock(s);
	EACH(s, i, state, slot_is_live)
		is_live |= table[i]->slot_is_live(state, exec);
	ch__sinks_unlock(s);
	return is_live;
}

void ch__sinks_slot_dead(struct ch__sinks *s, uintptr_t exec)
{
	EACH(s, i, state, slot_dead)
		table[i]->slot_dead(state, exec);
}

struct ch__own *ch__sinks_own_create(struct ch__sinks *s)
{
	return ch__meta_alloc(s->config.meta, sizeof(struct ch__own));
}

void ch__sinks_own_live(struct ch__sinks *s, struct ch__own *own, const void *section,
			uintptr_t exec)
{
	ch__sinks_lock(s);
	CH_ASSERT(!own->section, "sinks: a block's table is live already");
	own->section = section;
	own->exec = exec;
	own->prev = NULL;
	own->next = s->own;
	if (s->own)
		s->own->prev = own;
	s->own = own;
	EACH(s, i, state, own_live)
		table[i]->own_live(state, own);
	ch__sinks_unlock(s);
}

bool ch__sinks_own_dead(struct ch__sinks *s, struct ch__own *own)
{
	ch__sinks_lock(s);
	/* In memory that a child of fork lacks libgcc would read the end of a section, and cannot
	 * be told that the section is gone. */
	uintptr_t at = (uintptr_t)own->section - s->config.pool_exec;
	bool is_kept = s->is_codeless && at < s->config.pool_bytes, was_live = own->section != NULL;
	s->keeps_tables |= is_kept;
	if (is_kept)
		own->section = NULL;
	if (was_live) {
		EACH(s, i, state, own_dead)
			table[i]->own_dead(state, own);
		*(own->prev ? &own->prev->next : &s->own) = own->next;
		if (own->next)
			own->next->prev = own->prev;
	}
	own->section = NULL;
	ch__sinks_unlock(s);
	return !is_kept;
}

void ch__sinks_own_destroy(struct ch__sinks *s, struct ch__own *own)
{
	if (own && ch__sinks_own_dead(s, own))
		ch__meta_free(s->config.meta, own, sizeof *own);
}

#define TELL(s, entry, ...)                                                            \
	EACH(s, i, state, entry) {                                                     \
		bool ok = enter(i, state) && table[i]->entry(state, __VA_ARGS__);      \
		unlock_tool(i);                                                        \
		if (!ok)                                                               \
			switch_off_failed(s, i, state);                                \
	}

void ch__sinks_add(struct ch__sinks *s, const struct ch__sink_range *ranges, size_t n)
{
	TELL(s, add, ranges, n, false)
}

void ch__sinks_remove(struct ch__sinks *s, const struct ch__sink_range *ranges, size_t n)
{
	TELL(s, remove, ranges, n)
}

void ch__sinks_flush(struct ch__sinks *s, enum ch__flush how)
{
	TELL(s, flush, how)
}

/* A sink takes its own lock; the table is only read. */
void ch__sinks_fatal(struct ch__sinks *s)
{
	EACH(s, i, state, fatal)
		table[i]->fatal(state);
}

/* In a child without code a file has nothing to name, so the sink is closed. */
static void tell_child(struct ch__sinks *s, unsigned i, bool has_code) CH_REQUIRES(ch__role_sinks)
{
	void *state = state_if_on(s, i);
	if (!state || !table[i]->knows_time)
		return;
	if (has_code) {
		tell_all(s, i, false);
		return;
	}
	switch_off(s, i);
	if (enter(i, state))
		table[i]->close(state);
	unlock_tool(i);
	s->open_error[i] = EFAULT;
}

void ch__sinks_fork_child(struct ch__sinks *s, bool has_code)
{
	s->is_codeless = !has_code;
	/* Notes lie in the code, which the child does not have. */
	if (!has_code && ch__sinks_steps(s))
		ch__steps_dead(ch__sinks_steps(s), s->config.pool_exec,
			       s->page_end * s->config.page_bytes);
	for (unsigned i = 0; i < SINKS; i++)
		tell_child(s, i, has_code);
	ch__sinks_unlock(s);
}

void ch__sinks_fork_files_prepare(void) CH_UNANALYSED("the file role is one for several locks")
{
	for (unsigned i = 0; i < SINKS; i++) {
		lock_tool(i);
		if (table[i]->fork_prepare)
			table[i]->fork_prepare();
	}
}

void ch__sinks_fork_files_done(bool is_child)
	CH_UNANALYSED("the file role is one for several locks")
{
	for (unsigned i = 0; i < SINKS; i++) {
		void (*call)(void) = is_child ? table[i]->fork_child : table[i]->fork_parent;
		if (call)
			call();
		unlock_tool(i);
	}
}
