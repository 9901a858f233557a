/* SPDX-License-Identifier: MIT
 * jit_listing.c: --dump-ir=DIR: the bytecode of each compiled procedure as a text file, one line an
 * instruction, so that profilers and debuggers with source lines show bytecode. A listing shows the
 * bytecode at the first compilation; trace! does not change a listing. Files of earlier runs are
 * replaced.
 */
#define GC_THREADS
#include <errno.h>
#include <fcntl.h>
#include <gc/gc.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jit.h"

enum { SHOWN_CHARS = 40, PATH_ROOM = PATH_MAX + 120 };

/* Makes the folder if necessary. Returns NULL when there is no folder to write in. */
const char *jit_listing_folder(const char *name)
{
	char *path;

	if (mkdir(name, 0777) != 0 && errno != EEXIST)
		return NULL;
	path = realpath(name, NULL);
	if (path && access(path, W_OK | X_OK) == 0)
		return path;
	free(path);
	return NULL;
}

/* ---- operands ---- */

static void print_text(FILE *out, const struct string *s)
{
	for (int64_t i = 0; i < s->length && i < SHOWN_CHARS; i++)
		fputc(s->chars[i] >= 32 && s->chars[i] < 127 ? (int)s->chars[i] : '?', out);
	if (s->length > SHOWN_CHARS)
		fputs("..", out);
}

static void print_constant(FILE *out, value v)
{
	if (is_fixnum(v))
		fprintf(out, "%lld", (long long)fixnum_of(v));
	else if (is_flonum(v))
		fprintf(out, "%.17g", FLO(v));
	else if (is_char(v))
		fprintf(out, "char %u", char_of(v));
	else if (is_symbol(v))
		print_text(out, AS(symbol, v)->name);
	else if (is_type(v, T_CELL))
		print_text(out, AS(cell, v)->name->name);
	else if (is_type(v, T_STRING))
		fputc('"', out), print_text(out, AS(string, v)), fputc('"', out);
	else if (is_type(v, T_CODE) && is_symbol(AS(code, v)->name))
		print_text(out, AS(symbol, AS(code, v)->name)->name);
	else if (is_type(v, T_CODE))
		fprintf(out, "lambda of line %d", AS(code, v)->line);
	else
		fputs(v == V_FALSE ? "#f" : v == V_TRUE ? "#t" : v == V_NIL ? "()" : "datum", out);
}

static int has_cell(uint16_t op)
{
	return op == OP_CALLG || op == OP_TAILCALLG || op == OP_TTAILCALLG;
}

static void print_operands(FILE *out, const struct code *code, const struct insn *at)
{
	switch (op_formats[at->op]) {
	case F_N:
	case F_J:
		break;
	case F_A:
	case F_AJ:
		fprintf(out, "r%u", at->a);
		break;
	case F_AB:
	case F_ABJ:
		fprintf(out, "r%u, r%u", at->a, at->b);
		break;
	case F_ABC:
		fprintf(out, "r%u, r%u, r%u", at->a, at->b, at->c);
		break;
	case F_ABI:
		fprintf(out, "r%u, r%u, %d", at->a, at->b, (int16_t)at->c);
		break;
	case F_AK:
		fprintf(out, "r%u, ", at->a);
		print_constant(out, insn_const(at));
		break;
	case F_AF:
		fprintf(out, "r%u, %d", at->a, at->bc);
		break;
	case F_X:
		fprintf(out, "%u", at->a);
		if (at > code->insns && has_cell(at[-1].op)) {
			fputs(", ", out);
			print_constant(out, insn_const(at));
		}
		break;
	case F_AIJ:
		fprintf(out, "r%u, %d", at->a, (int16_t)at->b);
		break;
	case F_ATJ:
		fprintf(out, "r%u, type %u", at->a, at->b);
		break;
	}
	if (insn_jump(at))
		fprintf(out, " -> %d", (int)(insn_jump(at) - code->insns));
}

/* The first line is the procedure's; then comes one line an instruction: jit_line. */
static void print_code(FILE *out, const struct code *code, const char *title)
{
	fprintf(out, "%s: %d arguments%s, %d slots\n", title, code->required_args,
		code->has_rest ? " and a rest list" : "", code->frame_slots);
	for (int32_t i = 0; i < code->insn_count; i++) {
		fprintf(out, "%5d  %-10s ", i, op_names[code->insns[i].op]);
		print_operands(out, code, &code->insns[i]);
		if (code->line && (i == 0 || code->lines[i] != code->lines[i - 1]))
			fprintf(out, "   ; line %u", code->lines[i]);
		fputc('\n', out);
	}
}

/* ---- files ---- */

static int create_file(const char *path)
{
	unlink(path);
	return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
}

static int write_listing(const char *path, const struct code *code, const char *title)
{
	int fd = create_file(path);
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
	int failed;

	if (!out) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	print_code(out, code, title);
	failed = ferror(out);
	failed |= fclose(out) != 0;
	if (failed)
		unlink(path);
	return !failed;
}

static const char *write_named(const char *folder, const struct code *code, const char *title)
{
	static _Atomic unsigned last;
	char path[PATH_ROOM], name[64] = "lambda", *copy;

	if (is_symbol(code->name))
		snprintf(name, sizeof name, "%s",
			 string_to_utf8((value)AS(symbol, code->name)->name, NULL));
	for (char *c = name; *c; c++)
		if (*c == '/' || (unsigned char)*c <= 32 || (unsigned char)*c >= 127)
			*c = '_';
	snprintf(path, sizeof path, "%s/%u-%s.bytecode", folder, ++last, name);
	if (!write_listing(path, code, title) || !(copy = GC_MALLOC_ATOMIC(strlen(path) + 1)))
		return NULL;
	return strcpy(copy, path);
}

/* Returns the path, or NULL when writing failed. Raises no error: the heap may have called. */
const char *jit_listing_write(struct context *ctx, const char *folder, const struct code *code,
			      const char *title)
{
	struct catcher catcher;
	value handlers = ctx->now.handlers;
	const char *volatile path = NULL;

	catcher_enter(ctx, &catcher);
	ctx->now.handlers = V_NIL;
	if (_setjmp(catcher.target) == 0)
		path = write_named(folder, code, title);
	catcher_leave(ctx, &catcher);
	ctx->now.handlers = handlers;
	return path;
}
