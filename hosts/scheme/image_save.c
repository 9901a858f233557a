/* SPDX-License-Identifier: MIT
 * image_save.c: writes the heap of a VM (image.h). Objects are numbered in the order of a
 * breadth-first search from the bound cells, sorted by name. The list of found objects is the
 * queue, so no structure is too deep, and the way back to a global is the shortest way. If an
 * object cannot be saved, the error names this way.
 */
#include <stdlib.h>

#include "image.h"

enum { STEP_BYTES = 96, STEPS_SHOWN = 12, LEAST_TABLE = 4096 };

struct found {
	value object;
	uint64_t parent; /* number of the object that led here; 0: none did */
	uint64_t place;  /* index of the value in the parent */
};

struct saver {
	struct context *ctx;
	struct found *found; /* by number; [0] is no object */
	size_t count, capacity;
	uint64_t *numbers; /* by address: number, or 0; open addressing */
	size_t table_size;
	uint64_t *words;
	size_t word_count, word_capacity;
	uint64_t parent, place; /* of the next value */
	char *why;
	int has_failed;
};

/* Keeps the first reason. */
static void give_up(struct saver *s, const char *text)
{
	if (!s->has_failed)
		image_fail(s->why, "%s", text);
	s->has_failed = 1;
}

/* ---- the way to an object ---- */

static void name_text(value name, char *text, size_t bytes)
{
	const struct string *s = is_symbol(name) ? AS(symbol, name)->name : NULL;
	size_t count = 0;

	for (int64_t i = 0; s && i < s->length && count + 1 < bytes; i++)
		text[count++] = (char)(s->chars[i] > 31 && s->chars[i] < 127 ? s->chars[i] : '?');
	text[count] = 0;
}

static value field_name(const struct record *record, uint64_t place)
{
	value at = record->type->fields;

	for (; place > 1 && is_pair(at); place--)
		at = CDR(at);
	return is_pair(at) ? CAR(at) : V_FALSE;
}

/* step_text: names the value through which an object leads on. */
static void step_text(const struct saver *s, const struct found *found, char *text, size_t bytes)
{
	char name[48];
	unsigned long long place = found->place;

	if (!found->parent || !s->found) {
		snprintf(text, bytes, "trace events");
		return;
	}
	value parent = s->found[found->parent].object;
	switch (*(uint64_t *)parent) {
	case T_PAIR:
		snprintf(text, bytes, "%s", place ? "cdr" : "car");
		break;
	case T_CELL:
		name_text((value)AS(cell, parent)->name, name, sizeof name);
		snprintf(text, bytes, "global %s", name);
		break;
	case T_CLOSURE:
		name_text(AS(closure, parent)->code->name, name, sizeof name);
		snprintf(text, bytes, place ? "variable %2$llu of procedure %1$s" : "its code",
			 *name ? name : "lambda", place);
		break;
	case T_BOX:
		snprintf(text, bytes, "its value");
		break;
	case T_RECORD:
		name_text(field_name(AS(record, parent), place), name, sizeof name);
		snprintf(text, bytes, "field %s", name);
		break;
	case T_CODE:
		snprintf(text, bytes, "constant %llu", place > 2 ? place - 2 : 0);
		break;
	case T_CONDITION:
		snprintf(text, bytes, "irritants");
		break;
	default:
		snprintf(text, bytes, "element %llu", place);
	}
}

/* From the global on; equal steps in a row count as one step. */
static void describe_way(const struct saver *s, const struct found *last, char *text, size_t bytes)
{
	char step[STEP_BYTES], next[STEP_BYTES] = "";
	const struct found **way;
	size_t length = 0, used = 0, shown = 0, same = 0;

	for (const struct found *at = last; at; at = at->parent ? &s->found[at->parent] : NULL)
		length++;
	*text = 0;
	way = malloc(length * sizeof *way);
	if (!way)
		return;
	for (const struct found *at = last; length; at = &s->found[at->parent])
		way[--length] = at, same++;
	length = same;
	/* The first element is the global's cell itself. */
	for (size_t i = length > 1; i < length && shown < STEPS_SHOWN; i += same, shown++) {
		step_text(s, way[i], step, sizeof step);
		for (same = 1; i + same < length; same++) {
			step_text(s, way[i + same], next, sizeof next);
			if (strcmp(step, next) != 0)
				break;
		}
		if (used >= bytes)
			break;
		used += (size_t)snprintf(text + used, bytes - used,
					 same > 1 ? "%s%s %zu times" : "%s%s", shown ? ", " : "",
					 step, same);
	}
	if (shown == STEPS_SHOWN && used < bytes)
		snprintf(text + used, bytes - used, ", ..");
	free(way);
}

static void refuse(struct saver *s, const char *what, value object)
{
	char way[IMAGE_WHY_BYTES - 64];
	struct found last = {object, s->parent, s->place};

	if (s->has_failed)
		return;
	describe_way(s, &last, way, sizeof way);
	image_fail(s->why, "%s cannot be saved: %s", what, way);
	s->has_failed = 1;
}

/* ---- numbers of objects ---- */

static size_t slot_of(const struct saver *s, value object)
{
	size_t at = (size_t)((object >> 4) * 0x9e3779b97f4a7c15u) & (s->table_size - 1);

	while (s->numbers[at] && s->found[s->numbers[at]].object != object)
		at = (at + 1) & (s->table_size - 1);
	return at;
}

static int grow_table(struct saver *s)
{
	size_t size = s->table_size ? s->table_size * 2 : LEAST_TABLE;
	uint64_t *numbers = calloc(size, sizeof *numbers);

	if (!numbers)
		return 0;
	free(s->numbers);
	s->numbers = numbers;
	s->table_size = size;
	for (size_t number = 1; number < s->count; number++)
		numbers[slot_of(s, s->found[number].object)] = number;
	return 1;
}

static int grow_found(struct saver *s)
{
	size_t capacity = s->capacity ? s->capacity * 2 : LEAST_TABLE;
	struct found *found = realloc(s->found, capacity * sizeof *found);

	if (!found)
		return 0;
	s->found = found;
	s->capacity = capacity;
	return 1;
}

static int standard_port(const struct vm *vm, value object)
{
	for (int i = 0; i < 3; i++)
		if ((value)vm->standard[i] == object)
			return i;
	return -1;
}

/* Refuses objects of the process, which are not of its heap. NULL: the object can be saved. */
static const char *refusal(struct saver *s, value object)
{
	switch (*(uint64_t *)object) {
	case T_ESCAPE:
		return "a continuation";
	case T_FIBER:
		return "a fiber";
	case T_THREAD:
		return "a thread";
	case T_MUTEX:
		return mutex_is_free(object) ? NULL : "a locked mutex";
	case T_PORT:
		return standard_port(s->ctx->vm, object) < 0 ? "a port" : NULL;
	default:
		return NULL;
	}
}

/* number_of: the object's number, a new number at the first call. 0: it cannot be saved. */
static uint64_t number_of(struct saver *s, value object)
{
	if (s->count * 2 > s->table_size && !grow_table(s)) {
		give_up(s, "no memory");
		return 0;
	}
	size_t slot = slot_of(s, object);
	if (s->numbers[slot])
		return s->numbers[slot];
	const char *what = refusal(s, object);
	if (what) {
		refuse(s, what, object);
		return 0;
	}
	if (s->count == s->capacity && !grow_found(s)) {
		give_up(s, "no memory");
		return 0;
	}
	s->found[s->count] = (struct found){object, s->parent, s->place};
	s->numbers[slot] = s->count;
	return s->count++;
}

/* ---- words ---- */

static void put(struct saver *s, uint64_t word)
{
	if (s->word_count == s->word_capacity) {
		size_t capacity = s->word_capacity * 2 + LEAST_TABLE;
		uint64_t *words = realloc(s->words, capacity * sizeof *words);
		if (!words) {
			give_up(s, "no memory");
			return;
		}
		s->words = words;
		s->word_capacity = capacity;
	}
	s->words[s->word_count++] = word;
}

static uint64_t word_of(struct saver *s, value v)
{
	return is_pointer(v) ? number_of(s, v) << 2 : v;
}

static void put_value(struct saver *s, value v)
{
	put(s, word_of(s, v));
	s->place++;
}

static void put_values(struct saver *s, const value *values, int64_t count)
{
	for (int64_t i = 0; i < count && !s->has_failed; i++)
		put_value(s, values[i]);
}

static void put_head(struct saver *s, enum image_kind kind, uint64_t length)
{
	put(s, (uint64_t)kind | length << 8);
}

/* The last word is filled up with zeros. */
static void put_bytes(struct saver *s, const void *bytes, size_t count)
{
	for (size_t done = 0; done < count; done += 8) {
		uint64_t word = 0;
		memcpy(&word, (const char *)bytes + done, count - done < 8 ? count - done : 8);
		put(s, word);
	}
}

static void put_string(struct saver *s, enum image_kind kind, const struct string *string)
{
	put_head(s, kind, (uint64_t)string->length);
	put_bytes(s, string->chars, (size_t)string->length * 4);
}

static void put_code(struct saver *s, struct code *code)
{
	put_head(s, IMAGE_CODE, (uint64_t)code->insn_count);
	put(s, (uint64_t)code->required_args | (uint64_t)code->has_rest << 32);
	put(s, (uint64_t)code->frame_slots | (uint64_t)code->const_count << 32);
	put(s, (uint64_t)code->free_count | (uint64_t)(uint32_t)code->line << 32);
	put_value(s, code->name);
	put_value(s, code->file);
	put_bytes(s, code->insns, (size_t)code->insn_count * sizeof *code->insns);
	put_values(s, code_consts(code), code->const_count);
	put_bytes(s, code->lines, (size_t)code->insn_count * sizeof *code->lines);
}

static void put_prim(struct saver *s, const struct prim *prim)
{
	size_t length = strlen(prim->name);

	put_head(s, IMAGE_PRIM, length);
	put_bytes(s, prim->name, length);
}

static void put_cell(struct saver *s, const struct cell *cell)
{
	put_head(s, IMAGE_CELL, 0);
	put_value(s, (value)cell->name);
	put_value(s, cell->content);
	put(s, cell->is_builtin != 0);
}

static void put_parts(struct saver *s, enum image_kind kind, uint64_t length, value first,
		      const value *rest, int64_t count)
{
	put_head(s, kind, length);
	put_value(s, first);
	put_values(s, rest, count);
}

/* Saves objects without references. Returns 0 for other objects. */
static int put_data(struct saver *s, value v)
{
	switch (*(uint64_t *)v) {
	case T_FLONUM:
		put_head(s, IMAGE_FLONUM, 0);
		put_bytes(s, &FLO(v), sizeof(double));
		return 1;
	case T_STRING:
		put_string(s, IMAGE_STRING, AS(string, v));
		return 1;
	case T_SYMBOL:
		put_string(s, IMAGE_SYMBOL, AS(symbol, v)->name);
		return 1;
	case T_BYTES:
		put_head(s, IMAGE_BYTES, (uint64_t)AS(bytes, v)->length);
		put_bytes(s, AS(bytes, v)->data, (size_t)AS(bytes, v)->length);
		return 1;
	case T_PRIM:
		put_prim(s, AS(prim, v));
		return 1;
	case T_MUTEX:
		put_head(s, IMAGE_MUTEX, 0);
		return 1;
	case T_PORT:
		put_head(s, IMAGE_PORT, 0);
		put(s, (uint64_t)standard_port(s->ctx->vm, v));
		return 1;
	default:
		return 0;
	}
}

static void put_row(struct saver *s, enum image_kind kind, const struct vector *row)
{
	put_head(s, kind, (uint64_t)row->length);
	put_values(s, row->items, row->length);
}

static void put_object(struct saver *s, value v)
{
	const struct condition *condition = AS(condition, v);
	int64_t count;

	switch (*(uint64_t *)v) {
	case T_PAIR:
		put_parts(s, IMAGE_PAIR, 0, CAR(v), &CDR(v), 1);
		break;
	case T_BOX:
		put_parts(s, IMAGE_BOX, 0, AS(box, v)->content, NULL, 0);
		break;
	case T_VECTOR:
		put_row(s, IMAGE_VECTOR, AS(vector, v));
		break;
	case T_VALUES:
		put_row(s, IMAGE_VALUES, AS(vector, v));
		break;
	case T_CLOSURE:
		count = AS(closure, v)->code->free_count;
		put_parts(s, IMAGE_CLOSURE, (uint64_t)count, (value)AS(closure, v)->code,
			  AS(closure, v)->frees, count);
		break;
	case T_RECORD:
		count = AS(record, v)->type->count;
		put_parts(s, IMAGE_RECORD, (uint64_t)count, (value)AS(record, v)->type,
			  AS(record, v)->fields, count);
		break;
	case T_RTD:
		put_parts(s, IMAGE_RTD, 0, AS(rtd, v)->name, &AS(rtd, v)->fields, 1);
		put(s, (uint64_t)AS(rtd, v)->count);
		break;
	case T_CONDITION:
		put_parts(s, IMAGE_CONDITION, 0, condition->message, &condition->irritants, 3);
		put(s, (uint64_t)condition->line);
		break;
	case T_CELL:
		put_cell(s, AS(cell, v));
		break;
	case T_CODE:
		put_code(s, AS(code, v));
		break;
	default:
		if (!put_data(s, v))
			refuse(s, "an object of an unknown kind", v);
	}
}

/* ---- roots ---- */

/* Returns true for a cell that every VM has from the start. */
static int is_as_born(const struct cell *cell)
{
	const struct string *name = cell->name->name;
	const char *prim = is_type(cell->content, T_PRIM) ? AS(prim, cell->content)->name : NULL;
	int64_t hidden = name->length > 0 && name->chars[0] == ' ';

	if (!prim || !cell->is_builtin || (int64_t)strlen(prim) != name->length - hidden)
		return 0;
	for (int64_t i = hidden; i < name->length; i++)
		if ((unsigned char)prim[i - hidden] != name->chars[i])
			return 0;
	return 1;
}

static int compare_cells(const void *a, const void *b)
{
	const struct string *x = (*(struct cell *const *)a)->name->name;
	const struct string *y = (*(struct cell *const *)b)->name->name;

	for (int64_t i = 0; i < x->length && i < y->length; i++)
		if (x->chars[i] != y->chars[i])
			return x->chars[i] < y->chars[i] ? -1 : 1;
	return (x->length > y->length) - (x->length < y->length);
}

static void find_roots(struct saver *s)
{
	struct vm *vm = s->ctx->vm;
	struct cell **cells = malloc((size_t)vm->cell_count * sizeof *cells + 1);
	size_t count = 0;

	if (!cells) {
		give_up(s, "no memory");
		return;
	}
	for (int64_t i = 0; i < vm->cell_capacity; i++)
		for (struct cell *cell = vm->cells[i]; cell; cell = cell->next)
			if (cell->content != V_UNDEF && !is_as_born(cell))
				cells[count++] = cell;
	qsort(cells, count, sizeof(struct cell *), compare_cells);
	for (size_t i = 0; i < count && !s->has_failed; i++)
		number_of(s, (value)cells[i]);
	free(cells);
}

static void collect_words(struct saver *s)
{
	s->count = 1;
	for (int i = 0; i < IMAGE_HEADER; i++)
		put(s, 0);
	if (s->has_failed || !grow_found(s) || !grow_table(s)) {
		give_up(s, "no memory");
		return;
	}
	find_roots(s);
	struct vm *vm = s->ctx->vm;
	value events = vm->traced_returns ? vm->traced_returns : V_NIL;
	uint64_t events_word = word_of(s, events);
	for (s->parent = 1; s->parent < s->count && !s->has_failed; s->parent++) {
		s->place = 0;
		put_object(s, s->found[s->parent].object);
	}
	if (s->has_failed)
		return;
	s->words[IMAGE_MAGIC] = IMAGE_MAGIC_WORD;
	s->words[IMAGE_VERSION] = IMAGE_FORMAT;
	s->words[IMAGE_WORDS] = s->word_count;
	s->words[IMAGE_OBJECTS] = s->count - 1;
	s->words[IMAGE_BYTECODE] = image_bytecode();
	s->words[IMAGE_GENSYMS] = (uint64_t)vm->gensyms;
	s->words[IMAGE_EVENTS] = events_word;
	s->words[IMAGE_CHECKSUM] = image_checksum(s->words, s->word_count);
}

/* No file is replaced by an image that could not be loaded. */
static void check_words(struct saver *s)
{
	struct image image;

	if (s->has_failed)
		return;
	s->has_failed = !image_check(&image, s->words, s->word_count, s->why);
	if (!s->has_failed)
		free(image.at);
}

int image_save(struct context *ctx, const char *path, char *why)
{
	struct saver s = {.ctx = ctx, .why = why};

	if (ctx->thread != V_FALSE)
		return image_fail(why, "only the first thread can save an image");
	if (ctx->vm->threads_running != 0)
		return image_fail(why, "other threads run: %lld",
				  (long long)ctx->vm->threads_running);
	collect_words(&s);
	check_words(&s);
	if (!s.has_failed)
		s.has_failed = !image_replace_file(path, s.words, s.word_count, why);
	free(s.found);
	free(s.numbers);
	free(s.words);
	return !s.has_failed;
}
