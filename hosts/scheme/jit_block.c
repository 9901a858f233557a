/* SPDX-License-Identifier: MIT
 * jit_block.c: places code, as a block of the code heap or in the arena: a plain mapping, writable
 * and executable, for comparison only. The arena has no collection and no invalidation.
 */
#define _GNU_SOURCE
#define GC_THREADS
#include <gc/gc.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "jit.h"

/* ---- lists, labels ---- */

static struct jit_block *new_records(struct compilation *c)
{
	struct jit_block *block =
		malloc(sizeof *block + (size_t)c->record_count * sizeof block->records[0]);

	if (!block)
		return NULL;
	block->count = c->record_count;
	memcpy(block->records, c->records, (size_t)c->record_count * sizeof block->records[0]);
	return block;
}

struct image {
	uint8_t *write[2];
	const uint8_t *exec[2];
	struct ch_code *code; /* NULL: arena */
};

static const uint8_t *label_address(const struct emitter *e, const struct image *image, int label)
{
	const struct emit_label *l = &e->labels[label];
	return image->exec[l->section] + l->at;
}

/* Returns 0 when a function is out of reach and no veneer could be made. */
static int settle(const struct emitter *e, const struct image *image, const struct jit_block *block)
{
	memcpy(image->write[HOT], e->bytes[HOT], e->used[HOT]);
	if (e->used[COLD]) /* otherwise there is no address */
		memcpy(image->write[COLD], e->bytes[COLD], e->used[COLD]);
	for (int i = 0; i < e->fix_count; i++) {
		const struct emit_fix *fix = &e->fixes[i];
		uint8_t *write = image->write[fix->section] + fix->at;
		const uint8_t *exec = image->exec[fix->section] + fix->at;
		const void *target;
		if (fix->kind == FIX_RECORD) {
			target = &block->records[fix->record];
			memcpy(write, &target, sizeof target);
			continue;
		}
		target = fix->kind == FIX_LABEL ? label_address(e, image, fix->label)
						: fix->function;
		if (!emit_reaches(exec, target) &&
		    (!image->code || ch_block_veneer(image->code, target, &target) != CH_OK))
			return 0;
		emit_fill_rel(write, exec, target);
	}
	return 1;
}

/* ---- the heap ---- */

/* Assumes first, then reads. PLACE_RETRY: the code was compiled from another value. */
static enum place assume(struct compilation *c, struct ch_block block)
{
	for (int i = 0; i < c->assumed_count; i++) {
		struct cell *cell = c->assumed[i];
		struct ch_assumption assumption = {
			__atomic_load_n(&cell->assumption, __ATOMIC_SEQ_CST)};
		if (!assumption.bits) {
			if (ch_assumption_create(c->jit->ch, &assumption) != CH_OK)
				return PLACE_FAILED;
			__atomic_exchange_n(&cell->assumption, assumption.bits, __ATOMIC_SEQ_CST);
		}
		if (ch_block_assume(block, assumption) != CH_OK)
			return PLACE_RETRY;
		if (__atomic_load_n(&cell->content, __ATOMIC_SEQ_CST) != c->assumed_value[i])
			return PLACE_RETRY;
	}
	return PLACED;
}

static enum place attach(struct compilation *c, const struct image *image, struct jit_block *block)
{
	static const enum ch_branch_kind kinds[] = {
		[SITE_JUMP] = CH_JMP, [SITE_JUMP_IF] = CH_JCC, [SITE_CALL] = CH_CALL};
	const struct emitter *e = c->e;
	struct ch_block handle = image->code->block;

	for (int i = 0; i < e->ref_count; i++)
		if (ch_ref_attach(handle, image->exec[e->refs[i].section] + e->refs[i].at) != CH_OK)
			return PLACE_FAILED;
	for (int i = 0; i < e->point_count; i++)
		if (ch_patch_point_attach(
			    handle, image->exec[e->points[i].section] + e->points[i].at,
			    label_address(e, image, e->points[i].label), NULL) != CH_OK)
			return PLACE_FAILED;
	for (int i = 0; i < e->site_count; i++) {
		const struct emit_branch *b = &e->sites[i];
		struct jit_record *record = &block->records[b->record];
		struct ch_branch_site site = {
			.at = image->exec[b->section] + b->at,
			.kind = kinds[b->kind],
			.user = record,
			.exit = b->exit < 0 ? NULL : label_address(e, image, b->exit),
		};
		if (ch_branch_attach(handle, &site, &record->branch) != CH_OK)
			return PLACE_FAILED;
	}
	return PLACED;
}

/* Omits marks without code behind them. */
static size_t copy_lines(const struct emitter *e, const struct image *image,
			 enum emit_section section, struct ch_line *out)
{
	size_t n = 0;

	for (int i = 0; i < e->line_count[section]; i++)
		if (e->lines[section][i].at < e->used[section])
			out[n++] = (struct ch_line){image->exec[section] + e->lines[section][i].at,
						    e->lines[section][i].line};
	return n;
}

static enum place give_lines(const struct emitter *e, const struct image *image, const char *source)
{
	struct ch_line lines[2 * MAX_LINES];
	enum emit_section low = image->exec[HOT] < image->exec[COLD] ? HOT : COLD;

	if (!source)
		return PLACED;
	size_t n = copy_lines(e, image, low, lines);
	n += copy_lines(e, image, low == HOT ? COLD : HOT, lines + n);
	if (n && ch_block_lines(image->code->block, source, lines, n) != CH_OK)
		return PLACE_FAILED;
	return PLACED;
}

static enum place commit(const struct emitter *e, struct ch_code *code, struct version *version)
{
	struct ch_block handle = code->block;

	code->used_from = 0;
	code->used_to = e->used[HOT];
	code->cold_used = e->used[COLD];
	enum ch_status status = ch_block_commit(code, 1);
	if (status != CH_OK)
		return status == CH_E_STALE ? PLACE_RETRY : PLACE_FAILED;
	version->block = handle;
	return PLACED;
}

static enum place place_in_heap(struct compilation *c, struct method *method,
				struct version *version)
{
	struct emitter *e = c->e;
	struct ch_code code;
	struct jit_block *block = new_records(c);
	struct ch_open open = {
		.size = sizeof open,
		.owner = method->owner,
		.align = 64, /* begun within a cache line, ack takes up to 1.5 times as long */
		.hot_bytes = e->used[HOT],
		.cold_bytes = e->used[COLD],
		.branch_room = (uint32_t)e->site_count,
		.user = block,
	};

	if (!block)
		return PLACE_FAILED;
	enum ch_status status = ch_block_open(&open, &code);
	if (status != CH_OK) {
		free(block);
		return status == CH_E_FULL ? PLACE_FULL : PLACE_FAILED;
	}
	struct image image = {{code.write, code.cold_write}, {code.exec, code.cold_exec}, &code};
	enum place place = settle(e, &image, block) ? assume(c, code.block) : PLACE_FAILED;
	if (place == PLACED)
		place = attach(c, &image, block);
	if (place == PLACED)
		place = give_lines(e, &image, method->source);
	if (place == PLACED)
		place = commit(e, &code, version);
	if (place != PLACED) {
		/* CH_E_STATE: a commit that found the code stale has aborted the block. */
		(void)!ch_block_abort(&code);
		free(block); /* the heap tells the end of committed blocks only */
	}
	explicit_bzero(&code, sizeof code); /* addresses on a stack would hold the block */
	explicit_bzero(&image, sizeof image);
	return place;
}

/* ---- the arena ---- */

enum { ARENA_BYTES = 64 << 20, ARENA_PIECE = 16 << 10 };

static struct {
	uint8_t *base, *end;
	uint8_t *hot, *cold; /* of the current piece */
	uint64_t bytes;      /* taken by code */
	pthread_mutex_t lock;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint8_t *next_piece(void)
{
	if (arena.base + ARENA_PIECE > arena.end)
		return NULL;
	arena.hot = arena.base;
	arena.base += ARENA_PIECE;
	arena.cold = arena.base;
	return arena.hot;
}

int arena_start(void)
{
	enum { STEP = 4 << 20 };
	uintptr_t here = (uintptr_t)&jit_enter & ~(uintptr_t)(STEP - 1);
	/* so that the program's text is in reach */
	uintptr_t reach = (uintptr_t)emit_arena_reach - (uintptr_t)4 * STEP;

	for (uintptr_t down = ARENA_BYTES + STEP; !arena.end && down < reach; down += STEP) {
		void *at = mmap((void *)(here - down), ARENA_BYTES,
				PROT_READ | PROT_WRITE | PROT_EXEC,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
				-1, 0);
		if (at == MAP_FAILED)
			continue;
		arena.base = at;
		arena.end = arena.base + ARENA_BYTES;
		next_piece();
	}
	return arena.end != NULL;
}

uint64_t arena_bytes(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&arena.lock);
	bytes = arena.bytes;
	pthread_mutex_unlock(&arena.lock);
	return bytes;
}

/* Head bytes as in a code heap, so that the emitter works the same for both. */
enum { HEAD_BYTES = 8 };

static int arena_take(struct image *image, uint32_t hot_bytes, uint32_t cold_bytes)
{
	uint32_t hot = (hot_bytes + HEAD_BYTES + 7) & ~7u,
		 cold = (cold_bytes + HEAD_BYTES + 7) & ~7u;

	if (arena.hot + hot + cold > arena.cold &&
	    (!next_piece() || arena.hot + hot + cold > arena.cold))
		return 0;
	image->exec[HOT] = image->write[HOT] = arena.hot + HEAD_BYTES;
	arena.hot += hot;
	arena.cold -= cold;
	arena.bytes += hot + cold;
	image->exec[COLD] = image->write[COLD] = arena.cold + HEAD_BYTES;
	return 1;
}

/* The collector does not see the arena: objects named by its code live as long as the VM. */
static int arena_keep(struct jit_vm *jit, const struct emitter *e)
{
	for (int i = 0; i < e->ref_count; i++) {
		value word;
		if (jit->kept_count == jit->kept_capacity) {
			int capacity = jit->kept_capacity * 2 + 256;
			value *grown = GC_MALLOC_UNCOLLECTABLE((size_t)capacity * sizeof *grown);
			if (!grown)
				return 0;
			if (jit->kept)
				memcpy(grown, jit->kept, (size_t)jit->kept_count * sizeof *grown);
			GC_FREE(jit->kept);
			jit->kept = grown;
			jit->kept_capacity = capacity;
		}
		memcpy(&word, e->bytes[e->refs[i].section] + e->refs[i].at, sizeof word);
		jit->kept[jit->kept_count++] = word;
	}
	return 1;
}

static enum place place_in_arena(struct compilation *c, struct version *version)
{
	struct emitter *e = c->e;
	struct image image = {{NULL}, {NULL}, NULL};
	uint32_t stubs = (e->used[COLD] + 7) & ~7u;
	struct jit_block *block = new_records(c);

	if (!block)
		return PLACE_FAILED;
	if (!arena_keep(c->jit, e)) {
		free(block);
		return PLACE_FAILED;
	}
	pthread_mutex_lock(&arena.lock);
	int is_taken = arena_take(&image, e->used[HOT],
				  stubs + (uint32_t)e->site_count * ARENA_STUB_BYTES);
	pthread_mutex_unlock(&arena.lock);
	if (!is_taken || !settle(e, &image, block)) {
		free(block);
		return is_taken ? PLACE_FAILED : PLACE_FULL;
	}
	for (int i = 0; i < e->site_count; i++) {
		const struct emit_branch *b = &e->sites[i];
		struct jit_record *record = &block->records[b->record];
		uint8_t *stub = image.write[COLD] + stubs + (size_t)i * ARENA_STUB_BYTES;
		record->arena_at = image.write[b->section] + b->at + emit_site_field(b->kind);
		emit_arena_stub(stub, stub, record);
		record->arena_stub = stub;
		emit_fill_rel(record->arena_at, record->arena_at,
			      b->exit < 0 ? stub : label_address(e, &image, b->exit));
	}
	emit_publish(image.exec[HOT], e->used[HOT]);
	emit_publish(image.exec[COLD], stubs + (uint32_t)e->site_count * ARENA_STUB_BYTES);
	for (int i = 0; i < block->count; i++)
		if (block->records[i].assumed && !arena_assume(c->jit, &block->records[i]))
			return PLACE_FAILED;
	/* The arena frees no code, so the records that its stubs have as operands stay. */
	/* NOLINTNEXTLINE(clang-analyzer-unix.Malloc) */
	version->arena_at = image.exec[HOT];
	return PLACED;
}

/* ---- both ---- */

enum place block_place(struct compilation *c, struct method *method, struct version *version)
{
	return c->jit->is_arena ? place_in_arena(c, version) : place_in_heap(c, method, version);
}

const void *version_address(struct jit_vm *jit, const struct version *version)
{
	struct ch_info info = {.size = sizeof info};

	if (jit->is_arena)
		return version->arena_at;
	if (!version->block.bits || ch_block_info(version->block, &info) != CH_OK ||
	    info.state != CH_BLOCK_LIVE)
		return NULL;
	return info.entry;
}

void record_link(struct jit_vm *jit, struct jit_record *record, const struct version *version)
{
	if (jit->is_arena)
		emit_patch_rel(record->arena_at, version->arena_at);
	else if (ch_branch_link(record->branch, version->block) != CH_OK)
		return; /* an end died meanwhile: the branch asks again */
}
