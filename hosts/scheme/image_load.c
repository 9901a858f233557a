/* SPDX-License-Identifier: MIT
 * image_load.c: makes the heap of a VM from an image, and images as procedures. image_check.c
 * checks the words first; then objects are made in two passes, first empty and then filled, so
 * cycles need no care and no structure is too deep. No object is larger than its words. Code begins
 * as if just compiled.
 */
#define GC_THREADS
#include <gc/gc.h>
#include <stdlib.h>

#include "ast.h"
#include "frame.h"
#include "image.h"

struct loader {
	struct context *ctx;
	const struct image *image;
	value *objects; /* by number; scanned by the collector */
	char *why;
};

/* ---- empty objects ---- */

static value text_of(const struct loader *l, uint64_t number)
{
	uint64_t length = image_length(l->image, number);
	value text = make_string(l->ctx, (int64_t)length, 0);

	memcpy(AS(string, text)->chars, image_body(l->image, number), (size_t)length * 4);
	return text;
}

static value symbol_from(const struct loader *l, uint64_t number)
{
	return intern_string(AS(string, text_of(l, number)));
}

/* V_NONE: no such built-in. Nothing is loaded yet, so a hidden name still holds its built-in. */
static value prim_of(struct context *ctx, const uint64_t *body, size_t length)
{
	char name[IMAGE_NAME_BYTES + 1];

	name[0] = ' ';
	memcpy(name + 1, body, length);
	name[length + 1] = 0;
	value prim = cell_of(ctx, intern(name))->content;
	return is_type(prim, T_PRIM) && !strcmp(AS(prim, prim)->name, name + 1) ? prim : V_NONE;
}

static value find_prim(const struct loader *l, uint64_t number)
{
	const uint64_t *body = image_body(l->image, number);
	size_t length = (size_t)image_length(l->image, number);
	value prim = prim_of(l->ctx, body, length);

	if (prim == V_NONE)
		snprintf(l->why, IMAGE_WHY_BYTES, "needs the built-in %.*s, which is not here",
			 (int)length, (const char *)body);
	return prim;
}

static value make_code(struct context *ctx, const uint64_t *body, uint64_t insn_count)
{
	uint64_t const_count = body[1] >> 32;
	size_t words = (size_t)(insn_count + const_count);
	struct code *code = alloc_bytes(ctx, T_CODE, sizeof *code + words * 8);

	code->required_args = (int32_t)body[0];
	code->has_rest = (int32_t)(body[0] >> 32);
	code->exact_args = code->has_rest ? -1 : code->required_args;
	code->frame_slots = (int32_t)body[1];
	code->insn_count = (int32_t)insn_count;
	code->const_count = (int32_t)const_count;
	code->free_count = (int32_t)body[2];
	code->line = (int32_t)(body[2] >> 32);
	code->name = code->file = V_FALSE;
	code->entry = interp_entry;
	return (value)code;
}

static value make_object(const struct loader *l, uint64_t number)
{
	struct context *ctx = l->ctx;
	const uint64_t *body = image_body(l->image, number);
	uint64_t length = image_length(l->image, number);
	struct bytes *bytes;
	double real;

	switch (image_kind(l->image, number)) {
	case IMAGE_PAIR:
		return cons(ctx, V_NIL, V_NIL);
	case IMAGE_BOX:
		return (value)alloc_bytes(ctx, T_BOX, sizeof(struct box));
	case IMAGE_FLONUM:
		memcpy(&real, body, sizeof real);
		return make_flonum(real);
	case IMAGE_BYTES:
		bytes = make_bytes(ctx, (int64_t)length);
		memcpy(bytes->data, body, (size_t)length);
		return (value)bytes;
	case IMAGE_STRING:
		return text_of(l, number);
	case IMAGE_CLOSURE:
		return (value)alloc_bytes(ctx, T_CLOSURE, 16 + (size_t)length * 8);
	case IMAGE_RECORD:
		return (value)alloc_bytes(ctx, T_RECORD, 16 + (size_t)length * 8);
	case IMAGE_VECTOR:
		return make_vector(ctx, (int64_t)length, V_NIL);
	case IMAGE_VALUES:
		return make_values(ctx, (int64_t)length, body);
	case IMAGE_SYMBOL:
		return symbol_from(l, number);
	case IMAGE_PRIM:
		return find_prim(l, number);
	case IMAGE_RTD:
		return (value)alloc_bytes(ctx, T_RTD, sizeof(struct rtd));
	case IMAGE_CELL:
		return (value)cell_of(ctx, symbol_from(l, body[0] >> 2));
	case IMAGE_CONDITION:
		return (value)alloc_bytes(ctx, T_CONDITION, sizeof(struct condition));
	case IMAGE_CODE:
		return make_code(ctx, body, length);
	case IMAGE_MUTEX:
		return make_mutex(ctx);
	case IMAGE_PORT:
		return (value)ctx->vm->standard[body[0]];
	default:
		return V_NONE;
	}
}

/* ---- contents ---- */

static value value_of(const struct loader *l, uint64_t word)
{
	return is_image_object(word) ? l->objects[word >> 2] : word;
}

static void fill_values(const struct loader *l, value *to, const uint64_t *words, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		to[i] = value_of(l, words[i]);
}

static void fill_code(const struct loader *l, struct code *code, const uint64_t *body)
{
	const uint64_t *insns = body + IMAGE_CODE_WORDS, *consts = insns + code->insn_count;
	size_t insn_count = (size_t)code->insn_count;

	code->name = value_of(l, body[3]);
	code->file = value_of(l, body[4]);
	memcpy(code->insns, insns, insn_count * 8);
	fill_values(l, code_consts(code), consts, (uint64_t)code->const_count);
	code->lines = new_plain(insn_count * sizeof *code->lines);
	memcpy(code->lines, consts + code->const_count, insn_count * sizeof *code->lines);
	if (l->ctx->vm->hooks.code_created)
		l->ctx->vm->hooks.code_created(l->ctx, code);
}

static void fill_cell(const struct loader *l, struct cell *cell, const uint64_t *body)
{
	cell->content = value_of(l, body[1]);
	cell->is_builtin = body[2];
}

static void fill_object(const struct loader *l, uint64_t number)
{
	const uint64_t *body = image_body(l->image, number);
	uint64_t length = image_length(l->image, number);
	value v = l->objects[number];

	switch (image_kind(l->image, number)) {
	case IMAGE_PAIR:
		fill_values(l, &CAR(v), body, 2);
		break;
	case IMAGE_BOX:
		AS(box, v)->content = value_of(l, body[0]);
		break;
	case IMAGE_VECTOR:
	case IMAGE_VALUES:
		fill_values(l, AS(vector, v)->items, body, length);
		break;
	case IMAGE_CLOSURE:
		AS(closure, v)->code = AS(code, value_of(l, body[0]));
		fill_values(l, AS(closure, v)->frees, body + 1, length);
		break;
	case IMAGE_RECORD:
		AS(record, v)->type = AS(rtd, value_of(l, body[0]));
		fill_values(l, AS(record, v)->fields, body + 1, length);
		break;
	case IMAGE_RTD:
		AS(rtd, v)->name = value_of(l, body[0]);
		AS(rtd, v)->fields = value_of(l, body[1]);
		AS(rtd, v)->count = (int64_t)body[2];
		break;
	case IMAGE_CELL:
		fill_cell(l, AS(cell, v), body);
		break;
	case IMAGE_CONDITION:
		fill_values(l, &AS(condition, v)->message, body, 4);
		AS(condition, v)->line = (int64_t)body[4];
		break;
	case IMAGE_CODE:
		fill_code(l, AS(code, v), body);
		break;
	default:
		break;
	}
}
_Static_assert(offsetof(struct pair, cdr) == offsetof(struct pair, car) + 8 &&
		       offsetof(struct condition, file) == offsetof(struct condition, message) + 24,
	       "values of an object lie in the order of its words");

static int make_objects(const struct loader *l)
{
	for (uint64_t number = 1; number <= l->image->object_count; number++) {
		l->objects[number] = make_object(l, number);
		if (l->objects[number] == V_NONE)
			return 0;
	}
	for (uint64_t number = 1; number <= l->image->object_count; number++)
		fill_object(l, number);
	struct vm *vm = l->ctx->vm;
	vm->gensyms = (int64_t)l->image->words[IMAGE_GENSYMS];
	vm->traced_returns = value_of(l, l->image->words[IMAGE_EVENTS]);
	return 1;
}

static int load_objects(struct context *ctx, const struct image *image, char *why)
{
	struct loader l = {.ctx = ctx, .image = image, .why = why};
	struct catcher catcher;
	int volatile is_loaded = 0;

	/* The only reference to objects not yet in place. */
	l.objects = GC_MALLOC_UNCOLLECTABLE((size_t)(image->object_count + 1) * sizeof *l.objects);
	if (!l.objects)
		return image_fail(why, "no memory");
	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0)
		is_loaded = make_objects(&l);
	else
		image_fail(why, "no memory for its objects");
	catcher_leave(ctx, &catcher);
	GC_FREE(l.objects);
	return is_loaded;
}

int image_load(struct context *ctx, const char *path, char *why)
{
	struct image image;
	size_t count;
	uint64_t *words = image_read_file(path, &count, why);

	if (!words)
		return 0;
	int is_loaded = image_check(&image, words, count, why);
	if (is_loaded) {
		is_loaded = load_objects(ctx, &image, why);
		free(image.at);
	}
	free(words);
	return is_loaded;
}

/* ---- procedures ---- */

PRIM(save_image)
{
	char why[IMAGE_WHY_BYTES];

	if (!image_save(ctx, text_arg(ctx, "save-image", "file name", args[0]), why))
		raise_error(ctx, "file", why, 0);
	return V_UNSPEC;
}

/* (image-problem BYTEVECTOR): why the bytes are no image, or #f. */
PRIM(image_problem)
{
	char why[IMAGE_WHY_BYTES];
	struct image image;

	const struct bytes *bytes = bytes_arg(ctx, "image-problem", args[0]);
	if (!image_check(&image, (const uint64_t *)bytes->data, (size_t)bytes->length / 8, why))
		return string_from(ctx, why);
	free(image.at);
	if (bytes->length % 8)
		return string_from(ctx, "has a part of a word at its end");
	return V_FALSE;
}

void init_images(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"save-image", save_image, 1, 1},
		{"image-problem", image_problem, 1, 1},
	};

	DEFINE_PRIMS(ctx, defs);
}
