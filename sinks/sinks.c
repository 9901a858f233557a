/* SPDX-License-Identifier: MIT
 * sinks.c: the sinks that are on, and the ranges of code that sinks are told of. The table of sinks
 * knows no format and no file.
 *
 * A sink that fails is off, and its errno stays for status. Callers hear nothing of the failure,
 * except that a page is refused when no unwind data can be made. */
#include "sinks/table.h"
#include "unwind/nongnu.h"

static void lock_tool(unsigned i) CH_ACQUIRES(ch__role_file)
	CH_EXCLUDES(CH__RIGHT_OF_FILE) CH_UNANALYSED("an unwinder needs none")
{
	if (ch__sinks_table[i]->tool)
		ch__tool_lock(ch__sinks_table[i]->tool);
}
static void unlock_tool(unsigned i)
	CH_RELEASES(ch__role_file) CH_UNANALYSED("an unwinder needs none")
{
	if (ch__sinks_table[i]->tool)
		ch__tool_unlock(ch__sinks_table[i]->tool);
}

static size_t sinks_bytes(uint32_t page_count)
{
	return sizeof(struct ch__sinks) + page_count * sizeof(_Atomic(uint8_t));
}

static unsigned slot_of(enum ch_sink sink)
{
	unsigned i = 0;
	while (i < CH__SINKS_COUNT && ch__sinks_table[i]->bit != sink)
		i++;
	return i;
}

static _Atomic(int) *error_of(const struct ch__sinks *s, unsigned i)
{
	return ch__sink_error(&s->config, ch__sinks_table[i]->bit);
}

/* Takes the lock of the sink's tool. Returns false when the sink is off and must hear nothing. */
static bool enter(const struct ch__sinks *s, unsigned i) CH_ACQUIRES(ch__role_file)
{
	lock_tool(i);
	return ch__sink_is_on(&s->config, ch__sinks_table[i]->bit);
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
	s->config.frames = s->frames;
	s->config.shapes = s->shapes;
	s->config.on = &s->on;
	s->config.errors = s->errors;
	s->page_count = page_count;
	nobody_else_knows(s);
	ch__sinks_fixed_shapes(s->shapes, config->slot_bytes);
	s->shape_count = CH__FRAMES_FIXED;
	/* Without unwind data no page can be taken, so a failure of the unwinder fails the
	 * creation. A failure of a file does not. */
	(void)ch__sinks_set(s, wanted);
	int error = ch__sinks_status(s, CH_SINK_UNWIND);
	if (error) {
		(void)ch__sinks_destroy(s);
		return error;
	}
	*out = s;
	return 0;
}

/* Tells one sink of the runtime page, and of the ranges of published blocks. */
struct late {
	struct ch__sinks *sinks;
	unsigned slot;
	bool is_removed;
	size_t count;
	struct ch__sink_range ranges[64];
};

static void tell_late(struct late *late)
{
	const struct ch__sink_ops *ops = ch__sinks_table[late->slot];
	void *state = ch__sinks_state_of(late->sinks, late->slot);
	bool is_on = enter(late->sinks, late->slot);
	if (is_on && late->is_removed)
		ops->remove(state, late->ranges, late->count);
	else if (is_on)
		ops->add(state, late->ranges, late->count, true);
	unlock_tool(late->slot);
	late->count = 0;
}

static void gather(void *arg, const struct ch__sink_range *range)
{
	struct late *late = arg;
	late->ranges[late->count++] = *range;
	if (late->count == sizeof late->ranges / sizeof *range)
		tell_late(late);
}

static void tell_all(struct ch__sinks *s, unsigned i, bool is_removed)
{
	struct late late = {.sinks = s, .slot = i, .is_removed = is_removed};
	struct ch__sink_range runtime = {.exec = s->config.runtime_exec,
					 .bytes = s->config.runtime_bytes};
	if (!ch__sinks_table[i]->add)
		return;
	gather(&late, &runtime);
	s->config.each(s->config.context, gather, &late);
	tell_late(&late);
}

static int turn_on(struct ch__sinks *s, unsigned i)
{
	const struct ch__sink_ops *ops = ch__sinks_table[i];
	ch__sinks_lock(s);
	void *state = ch__sinks_state_of(s, i);
	atomic_store(error_of(s, i), 0);
	lock_tool(i);
	int error = s->is_codeless && ops->knows_time ? EFAULT : ops->open(&s->config, &state);
	unlock_tool(i);
	atomic_store_explicit(&s->state[i], state, memory_order_release);
	for (uint32_t page = 0; !error && ops->page_live && page < s->page_end; page++) {
		uint8_t frame = ch__sink_frame(&s->config, page);
		if (frame && !ops->page_live(state, page, 1, (uint8_t)(frame - 1))) {
			error = ENOMEM;
			ops->close(state, error);
		}
	}
	if (error)
		atomic_store(error_of(s, i), error);
	for (struct ch__own *own = s->own; !error && ops->own_live && own; own = own->next)
		ops->own_live(state, own);
	if (!error && !ops->tool)
		atomic_fetch_or(&s->on, (unsigned)ops->bit);
	ch__sinks_unlock(s);
	if (error)
		return error;
	tell_all(s, i, false);
	if (enter(s, i) && ops->flush)
		ops->flush(state, CH__FLUSH_BUFFERED);
	unlock_tool(i);
	return atomic_load(error_of(s, i));
}

static void turn_off(struct ch__sinks *s, unsigned i)
{
	const struct ch__sink_ops *ops = ch__sinks_table[i];
	if (ops->knows_time)
		tell_all(s, i, true);
	ch__sinks_lock(s);
	void *state = ch__sinks_state_of(s, i);
	for (struct ch__own *own = s->own; ops->own_dead && own; own = own->next)
		ops->own_dead(state, own);
	if (enter(s, i))
		ops->close(state, 0);
	unlock_tool(i);
	atomic_fetch_and(&s->on, ~(unsigned)ops->bit);
	ch__sinks_unlock(s);
}

int ch__sinks_set(struct ch__sinks *s, unsigned wanted)
{
	int first_error = 0;
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++) {
		bool is_on = (ch__sinks_on(s) & (unsigned)ch__sinks_table[i]->bit) != 0;
		bool is_wanted = (wanted & (unsigned)ch__sinks_table[i]->bit) != 0;
		/* An error of the last write, when the sink goes off, comes later. */
		if (!is_wanted)
			atomic_store(error_of(s, i), 0);
		if (is_on && !is_wanted)
			turn_off(s, i);
		int error = !is_on && is_wanted ? turn_on(s, i) : 0;
		if (!first_error)
			first_error = error;
	}
	return first_error;
}

int ch__sinks_status(struct ch__sinks *s, enum ch_sink sink)
{
	unsigned i = slot_of(sink);
	return i == CH__SINKS_COUNT ? EINVAL : atomic_load(error_of(s, i));
}

const char *ch__sinks_path(const struct ch__sinks *s, enum ch_sink sink)
{
	unsigned i = slot_of(sink);
	if (i == CH__SINKS_COUNT || !ch__sinks_table[i]->tool)
		return "";
	const char *path = enter(s, i) ? ch__sinks_table[i]->tool->path : "";
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
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++) {
		if (ch__sinks_state_if_on(s, i))
			turn_off(s, i);
		void *state = ch__sinks_state_of(s, i);
		if (state && ch__sinks_table[i]->tool)
			ch__meta_free(s->config.meta, state,
				      ((struct ch__tool_user *)state)->bytes);
		else if (state)
			ch__sinks_table[i]->destroy(state);
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

#define TELL(s, entry, ...)                                             \
	CH__SINKS_EACH(s, i, state, entry) {                            \
		if (enter(s, i))                                        \
			ch__sinks_table[i]->entry(state, __VA_ARGS__);  \
		unlock_tool(i);                                         \
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
	CH__SINKS_EACH(s, i, state, fatal)
		ch__sinks_table[i]->fatal(state);
}

void ch__sinks_fork_child(struct ch__sinks *s, bool has_code)
{
	s->is_codeless = !has_code;
	/* Notes lie in the code, which the child does not have. */
	if (!has_code && ch__sinks_steps(s))
		ch__steps_dead(ch__sinks_steps(s), s->config.pool_exec,
			       s->page_end * s->config.page_bytes);
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++) {
		void *state = ch__sinks_state_if_on(s, i);
		if (!state || !ch__sinks_table[i]->knows_time)
			continue;
		if (has_code) {
			tell_all(s, i, false);
			continue;
		}
		/* A file has nothing to name, so the sink is closed. */
		if (enter(s, i))
			ch__sinks_table[i]->close(state, EFAULT);
		unlock_tool(i);
	}
	ch__sinks_unlock(s);
}

void ch__sinks_fork_files_prepare(void) CH_UNANALYSED("the file role is one for several locks")
{
	ch__nongnu_lock();
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++)
		lock_tool(i);
}

void ch__sinks_fork_files_done(bool is_child)
	CH_UNANALYSED("the file role is one for several locks")
{
	for (unsigned i = 0; i < CH__SINKS_COUNT; i++) {
		if (is_child && ch__sinks_table[i]->fork_child)
			ch__sinks_table[i]->fork_child();
		unlock_tool(i);
	}
	ch__nongnu_unlock();
}
