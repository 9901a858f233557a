// SPDX-License-Identifier: MIT
/* What each line of a profile means. The rules that are easy to get wrong:
 * - cob=, cfi= and cfn= use the ids of ob=, fl= and fn=; an id may be given another name later;
 * - a relative position counts from the last line with the function's own costs. Callgrind lets
 *   nothing else move it, not the line behind calls= either, which is elsewhere only where the call
 *   instruction has no costs in this part; other readers let that line move it;
 * - fi= and fe= say whose lines follow, of code that was inlined: the function stays in the file of
 *   fl=, and the next fn= is in that file again;
 * - cob= and cfi= hold for one call; without them the callee is in the caller's object and in the
 *   file whose lines the call is in, which fi= or fe= may have named; what says where costs belong
 *   ends what was said of a callee;
 * - costs that are not written are 0; a part may begin anew behind the costs of another. */
#include "tools/callgrind/reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool refuse(struct cg_reader *reader, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(reader->error, sizeof reader->error, format, arguments);
	va_end(arguments);
	return false;
}

void cg_reader_begin(struct cg_reader *reader, const char *text, size_t length)
{
	*reader = (struct cg_reader){.next = text, .end = text + length, .position_count = 1};
}

void cg_reader_end(struct cg_reader *reader)
{
	for (int space = 0; space < CG_SPACES; space++)
		cg_table_end(&reader->ids[space]);
}

static void skip_space(struct cg_text *text)
{
	while (text->length && (*text->at == ' ' || *text->at == '\t'))
		text->at++, text->length--;
}

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
}

bool cg_take_number(struct cg_text *text, uint64_t *number)
{
	struct cg_text rest = *text;
	int base = 10;
	if (rest.length > 2 && rest.at[0] == '0' && (rest.at[1] == 'x' || rest.at[1] == 'X'))
		base = 16, rest.at += 2, rest.length -= 2;
	const char *first = rest.at;
	*number = 0;
	for (; rest.length && digit_of(*rest.at) < base; rest.at++, rest.length--) {
		uint64_t digit = (uint64_t)digit_of(*rest.at);
		if (*number > (UINT64_MAX - digit) / (uint64_t)base)
			return false;
		*number = *number * (uint64_t)base + digit;
	}
	if (rest.at == first)
		return false;
	*text = rest;
	return true;
}

/* Between two numbers of a line, and behind the last. */
static bool ends_here(const struct cg_text *text)
{
	return !text->length || *text->at == ' ' || *text->at == '\t';
}

/* One position, absolute or relative to the last line with costs. */
static bool take_position(struct cg_reader *reader, struct cg_text *text, unsigned which,
			  struct cg_line *line)
{
	uint64_t *position = &line->positions[which];
	uint64_t last = reader->positions[which], distance;
	char sign = '\0';
	if (text->length)
		sign = *text->at;
	line->is_relative |= sign == '*' || sign == '+' || sign == '-';
	if (sign == '*') {
		text->at++, text->length--;
		*position = last;
	} else if (sign == '+' || sign == '-') {
		text->at++, text->length--;
		if (!cg_take_number(text, &distance))
			return refuse(reader, "no number behind %c", sign);
		if (sign == '+' ? distance > UINT64_MAX - last : distance > last)
			return refuse(reader, "position %" PRIu64 " %c %" PRIu64 " is none", last,
				      sign, distance);
		*position = sign == '+' ? last + distance : last - distance;
	} else if (!cg_take_number(text, position)) {
		return refuse(reader, "a position is missing, or no number");
	}
	if (!ends_here(text))
		return refuse(reader, "a position is no number");
	skip_space(text);
	return true;
}

static bool take_positions(struct cg_reader *reader, struct cg_text *text, struct cg_line *line)
{
	line->place = *text;
	line->is_relative = false;
	for (unsigned i = 0; i < reader->position_count; i++) {
		if (!take_position(reader, text, i, line))
			return false;
	}
	line->place.length -= text->length;
	line->is_ambiguous = line->is_relative && memcmp(reader->positions, reader->others,
							 sizeof reader->positions) != 0;
	return true;
}

static bool read_costs(struct cg_reader *reader, struct cg_text text, struct cg_line *line)
{
	if (!reader->event_count)
		return refuse(reader, "costs in front of the events: line");
	if (!reader->now.function.at)
		return refuse(reader, "costs in front of the first fn= line");
	line->kind = reader->awaited == CG_SKIPPED ? CG_COST : reader->awaited;
	reader->awaited = CG_SKIPPED;
	if (!take_positions(reader, &text, line))
		return false;
	if (line->kind == CG_COST)
		memcpy(reader->positions, line->positions, sizeof reader->positions);
	memcpy(reader->others, line->positions, sizeof reader->others);
	memset(line->costs, 0, sizeof line->costs);
	for (unsigned i = 0; text.length; i++) {
		if (i == reader->event_count)
			return refuse(reader, "more than %u costs", reader->event_count);
		/* An old cachegrind writes a point where it did not count. */
		if (*text.at == '.')
			text.at++, text.length--;
		else if (!cg_take_number(&text, &line->costs[i]))
			return refuse(reader, "a cost is no number of 64 bits");
		if (!ends_here(&text))
			return refuse(reader, "a cost is no number");
		skip_space(&text);
		if (line->kind != CG_COST)
			continue;
		if (line->costs[i] > UINT64_MAX - reader->sums[i])
			return refuse(reader, "the costs do not fit into 64 bits");
		reader->sums[i] += line->costs[i];
	}
	reader->called = (struct cg_place){0};
	return true;
}

/* (id) name defines, (id) refers, anything else is a name as it is. */
static bool read_name(struct cg_reader *reader, struct cg_line *line)
{
	struct cg_text text = line->value;
	uint64_t id;
	skip_space(&text);
	line->name = text;
	line->definition = NULL;
	line->defines = false;
	if (text.length < 2 || text.at[0] != '(' || digit_of(text.at[1]) > 9)
		return true;
	text.at++, text.length--;
	if (!cg_take_number(&text, &id) || !text.length || *text.at != ')')
		return refuse(reader, "an id is no number in parentheses");
	text.at++, text.length--;
	skip_space(&text);
	struct cg_table *ids = &reader->ids[line->space];
	line->definition = cg_table_find(ids, &id, sizeof id);
	if (!text.length) {
		if (!line->definition)
			return refuse(reader, "id (%" PRIu64 ") has no name yet", id);
		line->name = line->definition->text;
		return true;
	}
	line->definition = cg_table_make(ids, &id, sizeof id);
	if (!line->definition)
		return refuse(reader, "out of memory");
	line->defines = true;
	line->definition->text = line->name = text;
	line->definition->number = id;
	line->definition->flag = false;
	return true;
}

/* What a name is of: the function whose costs follow, its lines, the callee of the next call, which
 * cfn= makes whole, or a jump's target. */
enum cg_role { CG_OF_FUNCTION, CG_OF_LINES, CG_OF_CALLEE, CG_IS_CALLEE, CG_OF_JUMP };

static bool read_spec(struct cg_reader *reader, struct cg_line *line)
{
	static const struct {
		const char *key;
		enum cg_space space;
		size_t place; /* offset in the reader */
		enum cg_role role;
	} specs[] = {
		{"ob", CG_OBJECT, offsetof(struct cg_reader, now.object), CG_OF_FUNCTION},
		{"fl", CG_FILE, offsetof(struct cg_reader, now.file), CG_OF_FUNCTION},
		{"fi", CG_FILE, offsetof(struct cg_reader, line_file), CG_OF_LINES},
		{"fe", CG_FILE, offsetof(struct cg_reader, line_file), CG_OF_LINES},
		{"fn", CG_FUNCTION, offsetof(struct cg_reader, now.function), CG_OF_FUNCTION},
		{"cob", CG_OBJECT, offsetof(struct cg_reader, called.object), CG_OF_CALLEE},
		{"cfi", CG_FILE, offsetof(struct cg_reader, called.file), CG_OF_CALLEE},
		{"cfl", CG_FILE, offsetof(struct cg_reader, called.file), CG_OF_CALLEE},
		{"cfn", CG_FUNCTION, offsetof(struct cg_reader, called.function), CG_IS_CALLEE},
		{"jfi", CG_FILE, 0, CG_OF_JUMP},
		{"jfn", CG_FUNCTION, 0, CG_OF_JUMP},
	};
	for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
		if (!cg_text_is(line->key, specs[i].key))
			continue;
		line->kind = CG_NAME;
		line->space = specs[i].space;
		if (!read_name(reader, line))
			return false;
		if (specs[i].role != CG_OF_JUMP)
			memcpy((char *)reader + specs[i].place, &line->name, sizeof line->name);
		if (specs[i].role == CG_OF_FUNCTION)
			reader->line_file = reader->now.file;
		if (specs[i].role == CG_OF_FUNCTION || specs[i].role == CG_OF_LINES)
			reader->called = (struct cg_place){0};
		if (specs[i].role == CG_IS_CALLEE && !reader->called.object.at)
			reader->called.object = reader->now.object;
		if (specs[i].role == CG_IS_CALLEE && !reader->called.file.at)
			reader->called.file = reader->line_file;
		return true;
	}
	return refuse(reader, "%.*s= is no line of this format", (int)line->key.length,
		      line->key.at);
}

static bool take_count(struct cg_reader *reader, struct cg_text *text, uint64_t *count)
{
	if (!cg_take_number(text, count))
		return refuse(reader, "a number of calls or jumps is missing");
	return true;
}

/* calls=N target, jump=N target, jcnd=TAKEN/SEEN target or, as the specification has it, jcnd=SEEN
 * TAKEN target. */
static bool read_association(struct cg_reader *reader, struct cg_line *line)
{
	struct cg_text text = line->value;
	bool is_call = !cg_text_is(line->key, "jump") && !cg_text_is(line->key, "jcnd"),
	     is_conditional = cg_text_is(line->key, "jcnd");
	if (is_call && !reader->called.function.at)
		return refuse(reader, "calls= without a cfn= line");
	skip_space(&text);
	if (!take_count(reader, &text, &line->times))
		return false;
	line->times_of = line->times;
	if (is_conditional) {
		bool is_fraction = text.length && *text.at == '/';
		if (is_fraction)
			text.at++, text.length--;
		skip_space(&text);
		if (!take_count(reader, &text, is_fraction ? &line->times_of : &line->times))
			return false;
	}
	if (!ends_here(&text))
		return refuse(reader, "a number of calls or jumps is none");
	skip_space(&text);
	if (!take_positions(reader, &text, line))
		return false;
	if (text.length)
		return refuse(reader, "more than %u positions", reader->position_count);
	line->kind = is_call ? CG_CALLS : CG_JUMP;
	reader->awaited = is_call ? CG_CALL_COST : CG_JUMP_FROM;
	return true;
}

bool cg_next_word(struct cg_text *text, struct cg_text *word)
{
	skip_space(text);
	word->at = text->at;
	while (!ends_here(text))
		text->at++, text->length--;
	word->length = (size_t)(text->at - word->at);
	return word->length != 0;
}

static bool read_header(struct cg_reader *reader, struct cg_line *line)
{
	struct cg_text rest = line->value, word;
	line->kind = CG_HEADER;
	if (cg_text_is(line->key, "version")) {
		uint64_t version;
		skip_space(&rest);
		if (!cg_take_number(&rest, &version) || version > 1)
			return refuse(reader, "a version that is neither 0 nor 1");
	} else if (cg_text_is(line->key, "positions")) {
		for (reader->position_count = 0; cg_next_word(&rest, &word);
		     reader->position_count++) {
			if (!cg_text_is(word, "instr") && !cg_text_is(word, "bb") &&
			    !cg_text_is(word, "line"))
				return refuse(reader,
					      "a position that is neither instr, bb nor line");
			if (reader->position_count == CG_POSITIONS_MAX)
				return refuse(reader, "more than %d positions", CG_POSITIONS_MAX);
			reader->is_address[reader->position_count] = !cg_text_is(word, "line");
		}
		if (!reader->position_count)
			return refuse(reader, "no positions");
	} else if (cg_text_is(line->key, "events")) {
		/* A part begins: its lines count from nothing; ids go on. */
		reader->now = reader->called = (struct cg_place){0};
		reader->line_file = (struct cg_text){0};
		memset(reader->positions, 0, sizeof reader->positions);
		memset(reader->others, 0, sizeof reader->others);
		memset(reader->sums, 0, sizeof reader->sums);
		for (reader->event_count = 0; cg_next_word(&rest, &word); reader->event_count++) {
			if (reader->event_count == CG_EVENTS_MAX)
				return refuse(reader, "more than %d events", CG_EVENTS_MAX);
		}
		if (!reader->event_count)
			return refuse(reader, "no events");
	}
	return true;
}

static bool is_letter(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool read_line(struct cg_reader *reader, struct cg_line *line)
{
	struct cg_text text = line->whole;
	line->kind = CG_SKIPPED;
	line->is_ambiguous = false;
	skip_space(&text);
	if (!text.length || *text.at == '#')
		return true;
	if (digit_of(*text.at) < 10 || strchr("+-*", *text.at))
		return read_costs(reader, text, line);
	if (reader->awaited != CG_SKIPPED)
		return refuse(reader, "no costs behind %s",
			      reader->awaited == CG_CALL_COST ? "calls=" : "a jump");
	size_t n = 0;
	while (n < text.length && is_letter(text.at[n]))
		n++;
	if (!n || n == text.length || (text.at[n] != '=' && text.at[n] != ':'))
		return refuse(reader, "neither costs nor a name nor a header");
	line->key = cg_text(text.at, n);
	line->value = cg_text(text.at + n + 1, text.length - n - 1);
	if (text.at[n] == ':')
		return read_header(reader, line);
	/* An old callgrind wrote calls in a recursion as rcalls=. */
	if (cg_text_is(line->key, "calls") || cg_text_is(line->key, "rcalls") ||
	    cg_text_is(line->key, "jump") || cg_text_is(line->key, "jcnd"))
		return read_association(reader, line);
	return read_spec(reader, line);
}

bool cg_reader_next(struct cg_reader *reader, struct cg_line *line)
{
	if (reader->next == reader->end) {
		if (reader->awaited != CG_SKIPPED)
			return refuse(reader, "the file ends behind calls= or a jump");
		return reader->event_count ? false : refuse(reader, "the file has no events: line");
	}
	size_t left = (size_t)(reader->end - reader->next);
	const char *newline = memchr(reader->next, '\n', left);
	line->whole = cg_text(reader->next, newline ? (size_t)(newline - reader->next) : left);
	reader->next = newline ? newline + 1 : reader->end;
	reader->line_number++;
	return read_line(reader, line);
}
