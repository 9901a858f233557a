/* SPDX-License-Identifier: MIT
 * profiler_report.c: a profile as a flame graph: a copy of the tree, then names for native code.
 * Finding native names is slow, and takes no lock of the library.
 *
 * Heap code has the name taken before the death. Native code has a name from the file that was
 * mapped there all the time, or no name if several files were. Where one native function lies
 * inside another, the name may be that of either. */
#include "flame/flame.h"
#include "observe/native_names.h"
#include "observe/profiler_inner.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The name of a native address; sorted by address. */
struct native {
	uintptr_t pc, start; /* start of its function; 0: not known */
	char *name;          /* NULL: no memory */
};

struct ch__profiler_copy {
	struct ch__meta *meta;
	struct ch__profiler_config config;
	struct ch_profile_counts counts;
	struct ch__node *nodes;
	uint32_t node_count;
	struct ch__tree names; /* names only; texts are copies */
	struct ch__seen_list seen;
	struct native *natives;
	uint32_t native_count;
};

/* --- the copy --- */

static bool copy_nodes(struct ch__profiler *p, struct ch__profiler_copy *c)
	CH_REQUIRES(ch__role_guest)
{
	c->nodes = ch__meta_alloc(c->meta, p->tree.count * sizeof *c->nodes);
	if (!c->nodes)
		return false;
	c->node_count = p->tree.count;
	for (uint32_t i = 0; i < c->node_count; i++)
		c->nodes[i] = *ch__tree_node(&p->tree, i);
	return true;
}

static bool copy_names(const struct ch__profiler *p, struct ch__profiler_copy *c)
	CH_REQUIRES(ch__role_guest)
{
	const struct ch__tree *from = &p->tree;
	size_t count = (size_t)from->names_mask + 1;
	c->names.names = ch__meta_alloc(c->meta, count * sizeof *from->names);
	if (!c->names.names)
		return false;
	c->names.names_mask = from->names_mask;
	for (size_t i = 0; i < count; i++) {
		struct ch__code_name *name = &c->names.names[i];
		*name = from->names[i];
		if (name->text && !(name->text = ch__text_copy(c->meta, name->text)))
			return false;
	}
	return true;
}

struct ch__profiler_copy *ch__profiler_copy(struct ch__profiler *p)
{
	struct ch__meta *meta = ch__meta_create();
	struct ch__profiler_copy *c = meta ? ch__meta_alloc(meta, sizeof *c) : NULL;
	if (!c) {
		if (meta)
			ch__meta_destroy(meta);
		return NULL;
	}
	c->meta = meta;
	c->config = p->config;
	ch__profile_lock(p);
	ch__profiler_merge(p, &c->counts);
	bool is_copied = copy_nodes(p, c) && ch__seen_copy(meta, &p->seen, &c->seen);
	ch__profile_unlock(p);
	if (is_copied)
		return c;
	ch__profiler_copy_free(c);
	return NULL;
}

bool ch__profiler_copy_names(struct ch__profiler *p, struct ch__profiler_copy *c)
{
	ch__profile_lock(p);
	bool is_copied = copy_names(p, c);
	ch__profile_unlock(p);
	return is_copied;
}

/* The copy's side memory has everything. */
void ch__profiler_copy_free(struct ch__profiler_copy *c)
{
	if (c)
		ch__meta_destroy(c->meta);
}

/* --- native code --- */

static int by_address(const void *a, const void *b)
{
	uintptr_t x = ((const struct native *)a)->pc, y = ((const struct native *)b)->pc;
	return (x > y) - (x < y);
}

/* Each native address of the tree once. */
static bool gather(struct ch__profiler_copy *c)
{
	uint32_t n = 0, kept = 0;
	c->natives = ch__meta_alloc(c->meta, c->node_count * sizeof *c->natives);
	if (!c->natives)
		return false;
	for (uint32_t i = 1; i < c->node_count; i++)
		if (ch__frame_is_native(c->nodes[i].word))
			c->natives[n++].pc = (uintptr_t)c->nodes[i].word;
	qsort(c->natives, n, sizeof *c->natives, by_address);
	for (uint32_t i = 0; i < n; i++)
		if (!kept || c->natives[i].pc != c->natives[kept - 1].pc)
			c->natives[kept++].pc = c->natives[i].pc;
	c->native_count = kept;
	return true;
}

/* Mappings seen by the profile, and mappings at the report. */
struct then_and_now {
	const struct ch__seen_list *then;
	struct ch__seen_list now;
	struct ch__native_names *symbols;
};

static void write_name(const struct then_and_now *maps, struct native *native, char *text,
		       size_t bytes)
{
	bool is_several;
	const struct ch__seen *then = ch__seen_find(maps->then, native->pc, &is_several);
	if (!then) {
		snprintf(text, bytes, is_several ? "[code that was replaced]" : "[unknown]");
		return;
	}
	const struct ch__seen *now = ch__seen_find(&maps->now, native->pc, &is_several);
	bool is_there = now && ch__seen_is_same(then, now);
	if (is_there && ch__native_name(maps->symbols, native->pc, text, bytes, &native->start))
		return;
	if (!then->inode) {
		snprintf(text, bytes, *then->path ? "%s" : "[anonymous code]", then->path);
		return;
	}
	const char *slash = strrchr(then->path, '/');
	snprintf(text, bytes, "%s+0x%" PRIxPTR, slash ? slash + 1 : then->path,
		 native->pc - then->base);
}

static int name_natives(struct ch__profiler_copy *c, struct ch__native_names *symbols)
{
	char text[CH__PROFILE_NAME_BYTES];
	struct then_and_now maps = {.then = &c->seen, .symbols = symbols};
	if (!gather(c))
		return ENOMEM;
	int error = ch__seen_now(c->meta, &maps.now) ? 0 : errno;
	for (uint32_t i = 0; i < c->native_count && !error; i++) {
		write_name(&maps, &c->natives[i], text, sizeof text);
		c->natives[i].name = ch__text_copy(c->meta, text);
		if (!c->natives[i].name)
			error = ENOMEM;
	}
	return error;
}

/* --- frames --- */

struct report {
	struct ch__profiler_copy *copy;
	const struct ch__profiler_view *view;
	uintptr_t *starts; /* of the functions around fallbacks */
	struct ch__flame *flame;
	struct ch__native_names *symbols;
};

static bool interprets(const struct report *r, const struct native *native)
{
	const char *const *names = r->view->interpreter;
	for (size_t i = 0; names && names[i]; i++)
		if (strcmp(names[i], native->name) == 0)
			return true;
	for (size_t i = 0; native->start && i < r->view->fallback_count; i++)
		if (r->starts[i] == native->start)
			return true;
	return false;
}

/* A fallback without a symbol keeps the start 0: samples there have no symbol either. */
static int find_fallbacks(struct report *r)
{
	size_t count = r->view->fallback_count;
	char text[CH__PROFILE_NAME_BYTES];
	if (!count)
		return 0;
	r->starts = ch__meta_alloc(r->copy->meta, count * sizeof *r->starts);
	if (!r->starts)
		return ENOMEM;
	for (size_t i = 0; i < count; i++)
		(void)ch__native_name(r->symbols, r->view->fallbacks[i], text, sizeof text,
				      &r->starts[i]);
	return 0;
}

static uint32_t add_code(struct report *r, uint32_t parent, uint64_t word)
{
	static const char suffix[] = " (cold)";
	char text[CH__PROFILE_NAME_BYTES + sizeof suffix];
	bool is_cold = (word & CH__LOOK_COLD) != 0;
	const struct ch__code_name *name = ch__tree_name(&r->copy->names, word);
	enum ch__flame_kind kind = is_cold                 ? CH__FLAME_COLD
				   : name && name->is_slot ? CH__FLAME_TRAMPOLINE
							   : CH__FLAME_CODE;
	if (!name || !name->text)
		return ch__flame_child(r->flame, parent, "[freed code]", kind);
	snprintf(text, sizeof text, "%s%s", name->text, is_cold ? suffix : "");
	return ch__flame_child(r->flame, parent, text, kind);
}

static uint32_t add_frame(struct report *r, uint32_t parent, uint64_t word)
{
	static const char *const own[CH__FRAME_WORDS] = {
		[CH__FRAME_WORD_UNKNOWN] = "[unknown]",
		[CH__FRAME_WORD_RUNTIME] = "[runtime page of the code heap]",
		[CH__FRAME_WORD_NO_BLOCK] = "[code memory without a block]",
		[CH__FRAME_WORD_CUT] = "[cut]",
	};
	if (word < CH__FRAME_WORDS)
		return ch__flame_child(r->flame, parent, own[word], CH__FLAME_OTHER);
	if (ch__frame_is_code(word))
		return add_code(r, parent, word);
	struct native key = {.pc = (uintptr_t)word};
	const struct native *native =
		bsearch(&key, r->copy->natives, r->copy->native_count, sizeof key, by_address);
	if (!native)
		return ch__flame_child(r->flame, parent, own[CH__FRAME_WORD_UNKNOWN],
				       CH__FLAME_OTHER);
	enum ch__flame_kind kind = interprets(r, native) ? CH__FLAME_INTERPRETER : CH__FLAME_NATIVE;
	return ch__flame_child(r->flame, parent, native->name, kind);
}

static int add_frames(struct report *r)
{
	struct ch__profiler_copy *c = r->copy;
	uint32_t *frames = ch__meta_alloc(c->meta, c->node_count * sizeof *frames);
	int error = frames ? 0 : ENOMEM;
	for (uint32_t i = 1; i < c->node_count && !error; i++) {
		const struct ch__node *node = &c->nodes[i];
		frames[i] = add_frame(r, frames[node->parent], node->word);
		if (!frames[i])
			error = ENOMEM;
		else if (node->weight)
			ch__flame_weigh(r->flame, frames[i], node->weight);
	}
	if (error || !c->counts.dropped)
		return error;
	uint32_t dropped = ch__flame_child(r->flame, 0, "[dropped]", CH__FLAME_OTHER);
	if (dropped)
		ch__flame_weigh(r->flame, dropped, c->counts.dropped);
	return dropped ? 0 : ENOMEM;
}

/* --- writing --- */

static bool write_all(const struct report *r, ch__flame_write *write, void *arg)
{
	const struct ch_profile_counts *counts = &r->copy->counts;
	char subtitle[256], refused[64] = "";
	if (r->view->is_folded)
		return ch__flame_write_folded(r->flame, r->view->is_reversed, write, arg);
	if (counts->refused)
		snprintf(refused, sizeof refused, " (%" PRIu64 " more were refused)",
			 counts->refused);
	snprintf(subtitle, sizeof subtitle,
		 "%u Hz of %s; %" PRIu64 " samples of %" PRIu64 " thread%s%s, %" PRIu64
		 " dropped, %" PRIu64 " cut at %d frames",
		 r->copy->config.rate,
		 r->copy->config.asked.by_wall_clock ? "wall-clock time" : "CPU time",
		 counts->samples, counts->threads, counts->threads == 1 ? "" : "s", refused,
		 counts->dropped, counts->cut, CH__PROFILE_FRAMES_MAX);
	struct ch__flame_view view = {.title = r->view->title,
				      .subtitle = subtitle,
				      .unit = "samples",
				      .is_icicle = r->view->is_icicle,
				      .is_reversed = r->view->is_reversed};
	return ch__flame_write_svg(r->flame, &view, write, arg);
}

int ch__profiler_report(struct ch__profiler_copy *c, const struct ch__profiler_view *view,
			bool (*write)(void *arg, const char *text, size_t n), void *arg)
{
	struct report r = {.copy = c,
			   .view = view,
			   .flame = ch__flame_create(c->meta),
			   .symbols = ch__native_names_open(c->meta)};
	int error = r.flame && r.symbols ? name_natives(c, r.symbols) : ENOMEM;
	if (!error)
		error = find_fallbacks(&r);
	if (!error)
		error = add_frames(&r);
	if (!error && !write_all(&r, write, arg))
		error = ENOMEM;
	ch__native_names_close(r.symbols);
	return error;
}
