/* SPDX-License-Identifier: MIT
 * symbols.c: the process-wide symbol table, and the global variables of one VM. The table is the
 * only state that VM instances share; its lock is a leaf.
 */
#define GC_THREADS
#include <gc/gc.h>

#include "ast.h"

enum { SYMBOL_BUCKETS = 4096 };
static struct symbol *buckets[SYMBOL_BUCKETS];
static pthread_mutex_t symbol_lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t hash_string(const struct string *name)
{
	uint64_t hash = 1469598103934665603u;

	for (int64_t i = 0; i < name->length; i++)
		hash = (hash ^ name->chars[i]) * 1099511628211u;
	return hash ^ hash >> 29;
}

static int is_same(const struct string *a, const struct string *b)
{
	return a->length == b->length && !memcmp(a->chars, b->chars, (size_t)a->length * 4);
}

value intern_string(struct string *name)
{
	uint64_t hash = hash_string(name);
	struct symbol **bucket = &buckets[hash % SYMBOL_BUCKETS], *symbol;

	pthread_mutex_lock(&symbol_lock);
	for (symbol = *bucket; symbol; symbol = symbol->next)
		if (symbol->hash == hash && is_same(symbol->name, name))
			break;
	if (!symbol) {
		/* A copy: the caller's string may be written to later. */
		size_t bytes = sizeof *name + (size_t)name->length * 4;
		struct string *own = GC_MALLOC_ATOMIC(bytes);
		memcpy(own, name, bytes);
		symbol = GC_MALLOC(sizeof *symbol);
		symbol->header = T_SYMBOL;
		symbol->name = own;
		symbol->hash = hash;
		symbol->next = *bucket;
		*bucket = symbol;
	}
	pthread_mutex_unlock(&symbol_lock);
	return (value)symbol;
}

value intern(const char *name)
{
	size_t bytes = strlen(name);
	struct string *string = GC_MALLOC_ATOMIC(sizeof *string + bytes * 4);

	string->header = T_STRING;
	string->length = (int64_t)bytes;
	for (size_t i = 0; i < bytes; i++)
		string->chars[i] = (unsigned char)name[i];
	return intern_string(string);
}

/* Called with vm->lock held. */
static void grow_cells(struct vm *vm)
{
	int64_t capacity = vm->cell_capacity ? vm->cell_capacity * 2 : 1024;
	struct cell **cells = GC_MALLOC((size_t)capacity * sizeof *cells);

	for (int64_t i = 0; i < vm->cell_capacity; i++) {
		struct cell *cell = vm->cells[i], *next;
		for (; cell; cell = next) {
			next = cell->next;
			struct cell **bucket = &cells[cell->name->hash % (uint64_t)capacity];
			cell->next = *bucket;
			*bucket = cell;
		}
	}
	vm->cells = cells;
	vm->cell_capacity = capacity;
}

struct cell *cell_of(struct context *ctx, value symbol)
{
	struct vm *vm = ctx->vm;
	struct symbol *name = AS(symbol, symbol);
	struct cell *cell;

	pthread_mutex_lock(&vm->lock);
	if (vm->cell_count >= vm->cell_capacity)
		grow_cells(vm);
	struct cell **bucket = &vm->cells[name->hash % (uint64_t)vm->cell_capacity];
	for (cell = *bucket; cell && cell->name != name; cell = cell->next)
		;
	if (!cell) {
		cell = GC_MALLOC(sizeof *cell);
		cell->header = T_CELL;
		cell->content = V_UNDEF;
		cell->name = name;
		cell->next = *bucket;
		*bucket = cell;
		vm->cell_count++;
	}
	pthread_mutex_unlock(&vm->lock);
	return cell;
}

void cell_set(struct context *ctx, struct cell *cell, value v)
{
	value before = cell->content;

	cell->content = v;
	if (before == V_UNDEF || before == v)
		return;
	__atomic_fetch_add(&cell->version, 1, __ATOMIC_RELEASE);
	if (ctx->vm->hooks.cell_changed)
		ctx->vm->hooks.cell_changed(ctx, cell);
}

/* Each built-in is bound twice: to its name and to the one that forms.c uses. */
void define_prims(struct context *ctx, const struct prim_def *defs, size_t count)
{
	char hidden[96];

	for (size_t i = 0; i < count; i++) {
		struct prim *prim = alloc_bytes(ctx, T_PRIM, sizeof *prim);
		prim->run = defs[i].run;
		prim->name = defs[i].name;
		prim->min_args = defs[i].min_args;
		prim->max_args = defs[i].max_args;
		prim->open_coding = find_open_coding(defs[i].name);
		snprintf(hidden, sizeof hidden, " %s", defs[i].name);
		struct cell *cells[2] = {cell_of(ctx, intern(defs[i].name)),
					 cell_of(ctx, intern(hidden))};
		for (int k = 0; k < 2; k++) {
			cells[k]->content = (value)prim;
			cells[k]->is_builtin = 1;
		}
	}
}
