/* SPDX-License-Identifier: MIT
 * symbols.c: the process-wide symbol table, and the global variables of one VM. All VM instances
 * share the table; its lock is a leaf, and nothing is allocated under the lock.
 *
 * The table does not keep symbols alive: an entry hides the address of its symbol from the
 * collector. At the end of each marking, with the world stopped, entries of dead symbols are
 * cleared. A cleared entry goes when its chain is walked or the table grows. A stop must miss no
 * entry: chains are whole after each store, and the table grows under the collector's lock.
 */
#define GC_THREADS
#include <gc/gc.h>
#include <gc/gc_mark.h>

#include "ast.h"

struct entry {
	struct entry *next;
	uint64_t hash;
	GC_hidden_pointer symbol; /* 0: the symbol has died */
};

enum { FIRST_BUCKETS = 1024 };

static struct {
	pthread_mutex_t lock;
	struct entry **buckets;
	uint64_t count, capacity; /* capacity 0: there are no buckets yet */
	uint64_t limit;           /* the count at which to look for more buckets */
} table = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The name in a search, of bytes or of code points. */
struct sought {
	const char *bytes; /* NULL: in chars */
	const uint32_t *chars;
	int64_t length;
};

static uint32_t char_at(const struct sought *name, int64_t i)
{
	return name->bytes ? (unsigned char)name->bytes[i] : name->chars[i];
}

static uint64_t hash_name(const struct sought *name)
{
	uint64_t hash = 1469598103934665603u;

	for (int64_t i = 0; i < name->length; i++)
		hash = (hash ^ char_at(name, i)) * 1099511628211u;
	return hash ^ hash >> 29;
}

static int is_named(const struct string *has, const struct sought *name)
{
	if (has->length != name->length)
		return 0;
	for (int64_t i = 0; i < has->length; i++)
		if (has->chars[i] != char_at(name, i))
			return 0;
	return 1;
}

static GC_on_collection_event_proc previous_event;

static void forget_dead(GC_EventType event)
{
	if (previous_event)
		previous_event(event);
	if (event != GC_EVENT_MARK_END)
		return;
	for (uint64_t i = 0; i < table.capacity; i++)
		for (struct entry *entry = table.buckets[i]; entry; entry = entry->next)
			if (entry->symbol && !GC_is_marked(GC_REVEAL_POINTER(entry->symbol)))
				entry->symbol = 0;
}

void symbols_start(void)
{
	previous_event = GC_get_on_collection_event();
	GC_set_on_collection_event(forget_dead);
}

/* Afterwards the caller's stack keeps the symbol. */
static void *reveal(void *entry)
{
	GC_hidden_pointer hidden = ((struct entry *)entry)->symbol;

	return hidden ? GC_REVEAL_POINTER(hidden) : NULL;
}

/* [table.lock] Removes entries of dead symbols from the chain. */
static struct symbol *find(const struct sought *name, uint64_t hash)
{
	struct entry **at = table.capacity ? &table.buckets[hash % table.capacity] : NULL;

	while (at && *at) {
		struct entry *entry = *at;
		if (__atomic_load_n(&entry->symbol, __ATOMIC_RELAXED) == 0) {
			*at = entry->next;
			table.count--;
			continue;
		}
		if (entry->hash == hash) {
			struct symbol *symbol = GC_call_with_alloc_lock(reveal, entry);
			if (symbol && is_named(symbol->name, name))
				return symbol;
		}
		at = &entry->next;
	}
	return NULL;
}

/* [table.lock] */
static void insert(struct entry *entry)
{
	struct entry **bucket = &table.buckets[entry->hash % table.capacity];

	entry->next = *bucket;
	*bucket = entry;
	table.count++;
}

struct room {
	struct entry **buckets;
	uint64_t capacity;
};

/* [table.lock, the collector's] Moves live entries to the new buckets. */
static void *rehash(void *argument)
{
	const struct room *room = argument;
	struct entry **old = table.buckets, *next;
	uint64_t old_capacity = table.capacity;

	table.buckets = room->buckets;
	table.capacity = room->capacity;
	table.count = 0;
	for (uint64_t i = 0; i < old_capacity; i++)
		for (struct entry *entry = old[i]; entry; entry = next) {
			next = entry->next;
			if (entry->symbol)
				insert(entry);
		}
	return NULL;
}

static struct symbol *look_up(const struct sought *name, uint64_t hash)
{
	pthread_mutex_lock(&table.lock);
	struct symbol *symbol = find(name, hash);
	pthread_mutex_unlock(&table.lock);
	return symbol;
}

/* [table.lock] */
static void drop_dead(void)
{
	for (uint64_t i = 0; i < table.capacity; i++)
		for (struct entry **at = &table.buckets[i]; *at;) {
			if ((*at)->symbol) {
				at = &(*at)->next;
			} else {
				*at = (*at)->next;
				table.count--;
			}
		}
}

/* Drops dead entries; doubles a table still half full. Without memory chains grow longer. */
static void make_room(void)
{
	struct room room = {NULL, FIRST_BUCKETS};

	pthread_mutex_lock(&table.lock);
	int is_full = table.count >= table.limit;
	if (is_full)
		drop_dead();
	is_full = is_full && table.count >= table.capacity / 2;
	if (table.capacity)
		room.capacity = table.capacity * 2;
	pthread_mutex_unlock(&table.lock);
	if (!is_full)
		return;
	size_t bytes = room.capacity * sizeof *room.buckets;
	room.buckets = room.capacity == FIRST_BUCKETS ? new_scanned(bytes) : GC_MALLOC(bytes);
	pthread_mutex_lock(&table.lock);
	if (room.buckets && table.capacity < room.capacity)
		GC_call_with_alloc_lock(rehash, &room);
	table.limit = table.count + table.capacity / 2;
	pthread_mutex_unlock(&table.lock);
}

static struct symbol *new_symbol(const struct sought *name, uint64_t hash)
{
	/* A copy: the caller's string may be written to later. */
	struct string *own = new_plain(sizeof *own + (size_t)name->length * 4);
	struct symbol *symbol = new_scanned(sizeof *symbol);

	own->header = T_STRING;
	own->length = name->length;
	for (int64_t i = 0; i < name->length; i++)
		own->chars[i] = char_at(name, i);
	symbol->header = T_SYMBOL;
	symbol->name = own;
	symbol->hash = hash;
	return symbol;
}

static value intern_name(const struct sought *name)
{
	uint64_t hash = hash_name(name);
	struct symbol *symbol = look_up(name, hash);

	if (symbol)
		return (value)symbol;
	make_room();
	struct symbol *own = new_symbol(name, hash);
	struct entry *entry = new_scanned(sizeof *entry);
	entry->hash = hash;
	entry->symbol = GC_HIDE_POINTER(own);
	pthread_mutex_lock(&table.lock);
	symbol = find(name, hash); /* another thread may have been faster */
	if (!symbol)
		insert(entry);
	pthread_mutex_unlock(&table.lock);
	/* So far only this thread's stack has kept the symbol. */
	GC_reachable_here(own);
	return (value)(symbol ? symbol : own);
}

value intern_string(struct string *name)
{
	struct sought sought = {NULL, name->chars, name->length};

	return intern_name(&sought);
}

value intern(const char *name)
{
	struct sought sought = {name, NULL, (int64_t)strlen(name)};

	return intern_name(&sought);
}

/* ---- global variables ---- */

/* Called with vm->lock held. */
static void grow_cells(struct vm *vm, struct cell **cells, int64_t capacity)
{
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

/* Called with vm->lock held. Returns NULL without a cell of this name. */
static struct cell *find_cell(struct vm *vm, const struct symbol *name)
{
	struct cell *cell = NULL;

	if (vm->cell_capacity)
		cell = vm->cells[name->hash % (uint64_t)vm->cell_capacity];
	while (cell && cell->name != name)
		cell = cell->next;
	return cell;
}

/* Makes room for one more cell. Called without the lock. */
static void make_cell_room(struct vm *vm)
{
	pthread_mutex_lock(&vm->lock);
	int64_t capacity = vm->cell_capacity, wanted = capacity ? capacity * 2 : 1024;
	int is_full = vm->cell_count >= capacity;
	pthread_mutex_unlock(&vm->lock);
	if (!is_full)
		return;
	struct cell **cells = new_scanned((size_t)wanted * sizeof *cells);
	pthread_mutex_lock(&vm->lock);
	if (vm->cell_capacity == capacity)
		grow_cells(vm, cells, wanted);
	pthread_mutex_unlock(&vm->lock);
}

struct cell *cell_of(struct context *ctx, value symbol)
{
	struct vm *vm = ctx->vm;
	struct symbol *name = AS(symbol, symbol);

	pthread_mutex_lock(&vm->lock);
	struct cell *cell = find_cell(vm, name);
	pthread_mutex_unlock(&vm->lock);
	if (cell)
		return cell;
	make_cell_room(vm);
	struct cell *made = new_scanned(sizeof *made);
	made->header = T_CELL;
	made->content = V_UNDEF;
	made->name = name;
	pthread_mutex_lock(&vm->lock);
	cell = find_cell(vm, name);
	if (!cell) {
		struct cell **bucket = &vm->cells[name->hash % (uint64_t)vm->cell_capacity];
		cell = made;
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

/* Each built-in is bound twice: to its name and to the hidden name for forms.c. */
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
