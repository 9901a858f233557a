// SPDX-License-Identifier: MIT
/* Callgrind calls code of no object file by its address: of the block's entry that was called. A
 * line that names such a function is written with the block's name and an id of our own; every
 * other line is written as it was read.
 *
 * Readers take functions with one object, file and name as one. So several entries of a block
 * become one function, and two blocks of one name get their addresses behind it, unless that is
 * not wanted. What callgrind puts behind a name (depth of recursion, with --separate-callers the
 * callers) stays behind it. */
#define _GNU_SOURCE /* strerrordesc_np */
#include "tools/callgrind/names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool failed(struct cg_naming *naming, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(naming->error, sizeof naming->error, format, arguments);
	va_end(arguments);
	return false;
}

static bool out_of_memory(struct cg_naming *naming)
{
	return failed(naming, "out of memory");
}

/* ---- the perf map of the part's process ------------------------------------------------------ */

/* Leaves the process in *found; what `pid:` says is part of a path, so only digits will do. A map
 * that was asked for must be there; another only when something needs it. */
static bool open_map(struct cg_naming *naming, struct cg_text pid, size_t *found)
{
	char path[64], number[24] = "";
	if (!naming->map_path) {
		while (pid.length && *pid.at == ' ')
			pid.at++, pid.length--;
		if (!pid.length || pid.length >= sizeof number ||
		    strspn(pid.at, "0123456789") < pid.length)
			return failed(naming, "pid: is no number");
		memcpy(number, pid.at, pid.length);
		snprintf(path, sizeof path, "/tmp/perf-%s.map", number);
	}
	for (*found = 0; *found < naming->process_count; ++*found) {
		if (!strcmp(naming->processes[*found].pid, number))
			return true;
	}
	struct cg_process *larger = realloc(naming->processes, (*found + 1) * sizeof *larger);
	if (!larger)
		return out_of_memory(naming);
	naming->processes = larger;
	struct cg_process *process = &larger[*found];
	memcpy(process->pid, number, sizeof number);
	const char *name = naming->map_path ? naming->map_path : path;
	process->why = cg_perf_map_read(&process->map, name, naming->map_path) ? 0 : errno;
	if (process->why && (naming->map_path || process->why == ENOMEM))
		return failed(naming, "%s: %s", name, strerrordesc_np(process->why));
	naming->process_count++;
	return true;
}

/* ---- names ----------------------------------------------------------------------------------- */

struct part {
	struct cg_naming *naming;
	struct cg_reader reader;
	size_t process; /* SIZE_MAX: no part has said which */
};

/* The range of a name that is an address and nothing else. */
static struct cg_range *range_of(const struct part *part, struct cg_text name)
{
	uint64_t address;
	if (part->process == SIZE_MAX || name.length < 3 || name.at[0] != '0' || name.at[1] != 'x')
		return NULL;
	if (!cg_take_number(&name, &address) || name.length)
		return NULL;
	return cg_perf_map_find(&part->naming->processes[part->process].map, address);
}

/* The next piece of a name, up to the ' behind which callgrind tells more; the ' is the first byte
 * of the rest. */
static struct cg_text next_piece(struct cg_text *name)
{
	const char *mark = memchr(name->at, '\'', name->length);
	struct cg_text piece = cg_text(name->at, mark ? (size_t)(mark - name->at) : name->length);
	name->at += piece.length;
	name->length -= piece.length;
	return piece;
}

/* Is what this line names in no object file? Callgrind calls that object ???. */
static bool is_anonymous(const struct part *part, const struct cg_line *line)
{
	struct cg_text object =
		line->key.at[0] == 'c' ? part->reader.called.object : part->reader.now.object;
	return !object.at || cg_text_is(object, "???");
}

/* Calls `each` for the pieces of the line's name in turn, with the range of those that have one;
 * the callers in a name may be anonymous whatever the function itself is. */
static bool for_pieces(struct part *part, const struct cg_line *line,
		       bool (*each)(struct part *part, struct cg_text piece,
				    struct cg_range *range))
{
	struct cg_text rest = line->name;
	bool is_ours = is_anonymous(part, line);
	while (rest.length) {
		struct cg_text piece = next_piece(&rest);
		if (!each(part, piece, is_ours ? range_of(part, piece) : NULL))
			return false;
		if (rest.length) {
			if (!each(part, cg_text(rest.at, 1), NULL))
				return false;
			rest.at++, rest.length--;
		}
		is_ours = true;
	}
	return true;
}

/* ---- first reading: which blocks there are --------------------------------------------------- */

static bool note_piece(struct part *part, struct cg_text piece, struct cg_range *range)
{
	struct cg_naming *naming = part->naming;
	if (!range)
		return true;
	struct cg_entry *entry = cg_table_make(&naming->shared, range->name.at, range->name.length);
	if (!entry)
		return out_of_memory(naming);
	if (entry->owner && entry->owner != range)
		entry->flag = true;
	entry->owner = range;
	(void)piece;
	return true;
}

/* Something that only a map can name was met. */
static bool need_map(struct part *part)
{
	struct cg_naming *naming = part->naming;
	if (naming->may_lack_map)
		return true;
	if (part->process == SIZE_MAX)
		return failed(naming,
			      "an address, and there is no pid: line: give --perf-map=FILE");
	const struct cg_process *process = &naming->processes[part->process];
	if (process->why)
		return failed(naming,
			      "an address, and /tmp/perf-%s.map: %s; --perf-map=FILE says another",
			      process->pid, strerrordesc_np(process->why));
	return true;
}

static bool note_name(struct part *part, const struct cg_line *line)
{
	struct cg_naming *naming = part->naming;
	struct cg_text rest = line->name, first = next_piece(&rest);
	bool is_ours = is_anonymous(part, line), is_named = is_ours && range_of(part, first);
	bool is_address = is_ours && first.length > 2 && first.at[0] == '0' && first.at[1] == 'x';
	if (is_address && !need_map(part))
		return false;
	if (line->definition && line->definition->number >= naming->next_id)
		naming->next_id = line->definition->number + 1;
	if (naming->next_id == 0)
		return failed(naming, "no id is left");
	/* A reference is to a name that was seen; but perhaps under another object. */
	struct cg_entry *entry = cg_table_make(&naming->literals, line->name.at, line->name.length);
	if (!entry)
		return out_of_memory(naming);
	if (!is_named)
		entry->flag = true;
	uint64_t seen = is_named ? 1 : is_address ? 2 : 0;
	if (seen & ~entry->number) {
		naming->named += seen == 1;
		naming->unnamed += seen == 2;
		entry->number |= seen;
	}
	return for_pieces(part, line, note_piece);
}

/* The block's own label, which stays NULL when memory runs out: its name, with its address where
 * another block, or a function that keeps its name, has that. */
static void make_label(struct cg_naming *naming, struct cg_range *range)
{
	const struct cg_entry *shared =
		cg_table_find(&naming->shared, range->name.at, range->name.length);
	size_t room = range->name.length + 48;
	char *name = malloc(room);
	bool is_shared = shared->flag && !naming->is_by_name;
	for (int attempt = is_shared; name && attempt < 3 && !range->label; attempt++) {
		int n = snprintf(name, room, attempt ? "%.*s @0x%" PRIx64 : "%.*s",
				 (int)range->name.length, range->name.at, range->start);
		if (attempt == 2)
			n += snprintf(name + n, room - (size_t)n, "+%" PRIu64, range->size);
		const struct cg_entry *literal = cg_table_find(&naming->literals, name, (size_t)n);
		if (literal && literal->flag)
			continue;
		struct cg_entry *label = cg_table_make(&naming->labels, name, (size_t)n);
		if (!label)
			break;
		if (label->owner && label->owner != range && (attempt || !naming->is_by_name))
			continue;
		label->owner = range;
		range->label = label;
	}
	free(name);
}

/* ---- second reading: writing ----------------------------------------------------------------- */

static bool write_text(struct cg_naming *naming, struct cg_text text)
{
	return cg_output_text(&naming->out, text) || out_of_memory(naming);
}

static bool write_piece(struct part *part, struct cg_text piece, struct cg_range *range)
{
	if (!range)
		return write_text(part->naming, piece);
	if (!range->label)
		make_label(part->naming, range);
	return range->label ? write_text(part->naming, range->label->key)
			    : out_of_memory(part->naming);
}

/* key=(id), with the name when the file has not said it yet. */
static bool write_name(struct cg_naming *naming, struct cg_text key, uint64_t id, bool defines,
		       struct cg_text name)
{
	cg_output_text(&naming->out, key);
	cg_output_print(&naming->out, "=(%" PRIu64 ")%s", id, defines ? " " : "");
	return write_text(naming, defines ? name : cg_text("", 0));
}

static bool write_function(struct part *part, const struct cg_line *line)
{
	struct cg_naming *naming = part->naming;
	/* The name is made where the line's end is, and taken away again: it may be what was
	 * there. */
	size_t start = naming->out.length;
	if (!for_pieces(part, line, write_piece))
		return false;
	struct cg_text made = cg_text(naming->out.at + start, naming->out.length - start);
	naming->out.length = start;
	if (made.length == line->name.length &&
	    (!made.length || !memcmp(made.at, line->name.at, made.length))) {
		struct cg_entry *definition = line->definition;
		if (!definition || line->defines || definition->flag) {
			if (definition)
				definition->flag = true;
			return write_text(naming, line->whole);
		}
		/* The line that defined this id was written with another. */
		definition->flag = true;
		return write_name(naming, line->key, definition->number, true, line->name);
	}
	struct cg_entry *entry = cg_table_make(&naming->written, made.at, made.length);
	if (!entry)
		return out_of_memory(naming);
	if (!entry->number) {
		entry->number = naming->next_id++;
		if (!naming->next_id)
			return failed(naming, "no id is left");
	}
	/* Each part says its names, as callgrind's do: kcachegrind forgets those of the last. */
	bool is_new = entry->part != naming->part;
	entry->part = naming->part;
	return write_name(naming, line->key, entry->number, is_new, entry->key);
}

/* Positions that readers would count from different places are written as they are. */
static bool write_place(struct part *part, const struct cg_line *line)
{
	struct cg_naming *naming = part->naming;
	const char *end = line->whole.at + line->whole.length,
		   *behind = line->place.at + line->place.length;
	cg_output_put(&naming->out, line->whole.at, (size_t)(line->place.at - line->whole.at));
	for (unsigned i = 0; i < part->reader.position_count; i++)
		cg_output_print(&naming->out,
				part->reader.is_address[i] ? "0x%" PRIx64 " " : "%" PRIu64 " ",
				line->positions[i]);
	return write_text(naming, cg_text(behind, (size_t)(end - behind)));
}

static void check_totals(struct part *part, const struct cg_line *line)
{
	struct cg_naming *naming = part->naming;
	struct cg_text rest = line->value;
	for (unsigned i = 0; i < part->reader.event_count; i++) {
		uint64_t total;
		while (rest.length && *rest.at == ' ')
			rest.at++, rest.length--;
		if (!rest.length)
			break;
		if (!cg_take_number(&rest, &total) || total != part->reader.sums[i])
			naming->wrong_totals = part->reader.line_number,
			naming->wrong_input = naming->input;
	}
}

/* ---- both ------------------------------------------------------------------------------------ */

static bool read_line(struct part *part, const struct cg_line *line, bool is_writing)
{
	struct cg_naming *naming = part->naming;
	bool is_header = line->kind == CG_HEADER;
	if (is_header && cg_text_is(line->key, "events"))
		naming->part++;
	if (is_header && cg_text_is(line->key, "pid") && !naming->map_path &&
	    !open_map(naming, line->value, &part->process))
		return false;
	if (is_header && cg_text_is(line->key, "totals"))
		check_totals(part, line);
	if (line->kind == CG_NAME && line->space == CG_FUNCTION) {
		if (!(is_writing ? write_function(part, line) : note_name(part, line)))
			return false;
	} else if (is_writing && !(line->is_ambiguous ? write_place(part, line)
						      : write_text(naming, line->whole))) {
		return false;
	}
	return !is_writing || part->reader.next[-1] != '\n' ||
	       write_text(naming, cg_text("\n", 1));
}

static bool read_profile(struct cg_naming *naming, const struct cg_input *input, bool is_writing)
{
	struct part part = {.naming = naming, .process = SIZE_MAX};
	struct cg_line line = {.kind = CG_SKIPPED};
	bool is_good = true;
	naming->input = input;
	cg_reader_begin(&part.reader, input->text, input->length);
	if (naming->map_path)
		is_good = open_map(naming, cg_text("", 0), &part.process);
	while (is_good && cg_reader_next(&part.reader, &line))
		is_good = read_line(&part, &line, is_writing);
	if (!is_good)
		naming->line_number = part.reader.line_number;
	if (part.reader.error[0]) {
		is_good = failed(naming, "%s", part.reader.error);
		naming->line_number = part.reader.line_number ? part.reader.line_number : 1;
	}
	cg_reader_end(&part.reader);
	return is_good;
}

bool cg_naming_run(struct cg_naming *naming, const struct cg_input *inputs, size_t count)
{
	naming->next_id = 1;
	for (size_t i = 0; i < 2 * count; i++) {
		static const char positions[] = "positions: line\n";
		bool is_writing = i >= count, is_next = i > count;
		if (is_next && naming->out.at[naming->out.length - 1] != '\n')
			cg_output_put(&naming->out, "\n", 1);
		/* Those of a profile that does not say it, whatever the one in front of it has. */
		if (is_next && !write_text(naming, cg_text(positions, sizeof positions - 1)))
			return false;
		if (!read_profile(naming, &inputs[i % count], is_writing))
			return false;
	}
	return true;
}

void cg_naming_end(struct cg_naming *naming)
{
	for (size_t i = 0; i < naming->process_count; i++)
		cg_perf_map_end(&naming->processes[i].map);
	free(naming->processes);
	cg_table_end(&naming->literals);
	cg_table_end(&naming->shared);
	cg_table_end(&naming->labels);
	cg_table_end(&naming->written);
	cg_output_end(&naming->out);
	*naming = (struct cg_naming){0};
}
