/* SPDX-License-Identifier: MIT
 * flame_folded.c: folded stacks, the form that flamegraph.pl, inferno and speedscope read. Kinds
 * are not written, so a name is the same for every reader. */
#include "flame/flame_tree.h"

#include <inttypes.h>
#include <stdio.h>

static void put_frame(struct ch__flame_text *out, const char *name)
{
	while (*name)
		ch__flame_put_character(out, ch__flame_folded_character(name, &name));
}

static void put_stack(struct ch__flame_text *out, const char *const *names, uint32_t depth,
		      uint64_t weight)
{
	for (uint32_t i = 0; i <= depth; i++) {
		if (i)
			ch__flame_put(out, ";", 1);
		put_frame(out, names[i]);
	}
	char end[32];
	snprintf(end, sizeof end, " %" PRIu64 "\n", weight);
	ch__flame_put_text(out, end);
}

bool ch__flame_write_folded(struct ch__flame *flame, bool is_reversed, ch__flame_write *write,
			    void *arg)
{
	struct ch__flame_text out = {.write = write, .arg = arg};
	struct ch__flame_walk walk;
	struct ch__flame_box box;
	const char **names = NULL; /* of the box and the frames around it, by depth */
	size_t room = 0;
	enum ch__flame_step step = CH__FLAME_NO_MEMORY;
	bool goes_on = ch__flame_walk_begin(&walk, flame, is_reversed, true);
	while (goes_on && !out.has_failed) {
		step = ch__flame_walk_next(&walk, &box);
		goes_on = step == CH__FLAME_BOX &&
			  ch__flame_reserve(flame->meta, &names, &room, (size_t)box.depth + 1,
					    sizeof *names);
		if (!goes_on)
			break;
		names[box.depth] = box.name;
		if (box.self)
			put_stack(&out, names, box.depth, box.self);
	}
	ch__meta_free(flame->meta, names, room * sizeof *names);
	ch__flame_walk_end(&walk);
	return ch__flame_text_end(&out) && step == CH__FLAME_DONE;
}
