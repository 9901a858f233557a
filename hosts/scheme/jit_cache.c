/* SPDX-License-Identifier: MIT
 * jit_cache.c: the versions of each procedure. Entries, unlinked branches and hot exits come here
 * to find the wanted version, or to compile it, or to learn where the interpreter goes on. A
 * version holds a handle; a stale or not entrant version is compiled anew in its place.
 */
#define GC_THREADS
#include <gc/gc.h>
#include <stdlib.h>

#include "jit.h"

enum { SPACE_TRIES = 64 };

static const void *const unowned_entry = jit_fallback_thunk;
const void *const jit_unowned_cell = (const void *)&unowned_entry;

/* ---- methods ---- */

/* Copies only characters that the tables of other programs are sure to take. */
static void copy_plain(const struct string *from, int64_t start, char *to, size_t bytes)
{
	size_t n = 0;

	for (int64_t i = start; i < from->length && n + 1 < bytes; i++) {
		uint32_t c = from->chars[i];
		to[n++] = (char)(c > 32 && c < 127 ? c : '?');
	}
	to[n] = 0;
}

/* scm::procedure file:line, of the lambda. Text without a file came from the prelude, text without
 * a line from `eval`. */
void jit_name_of(const struct code *code, char *text, size_t bytes)
{
	static const char prefix[] = "scm::";
	enum { PART = 64 };
	char file[PART] = "prelude", *at = text + sizeof prefix - 1;

	memcpy(text, prefix, sizeof prefix);
	if (is_symbol(code->name))
		copy_plain(AS(symbol, code->name)->name, 0, at, PART);
	else
		strcpy(at, "lambda");
	at += strlen(at);
	if (!code->line) {
		strcpy(at, " eval");
		return;
	}
	if (is_type(code->file, T_STRING)) {
		const struct string *path = AS(string, code->file);
		int64_t base = path->length;
		while (base > 0 && path->chars[base - 1] != '/')
			base--;
		copy_plain(path, base, file, sizeof file);
	}
	snprintf(at, bytes - (size_t)(at - text), " %s:%d", file, code->line);
}

/* Returns NULL when the code is not from a file. */
static const char *source_of(const struct code *code)
{
	char *path = NULL, *copy = NULL, *text = NULL;

	/* No error may be raised here: the heap may be the caller, for a branch hit. */
	if (is_type(code->file, T_STRING) && code->line)
		text = GC_MALLOC_ATOMIC(string_utf8_room(AS(string, code->file)));
	if (text) {
		string_write_utf8(AS(string, code->file), text);
		path = realpath(text, NULL);
	}
	if (path && (copy = GC_MALLOC_ATOMIC(strlen(path) + 1)))
		strcpy(copy, path);
	free(path);
	return copy;
}

/* Returns 0 without memory. */
static int give_heads(struct method *method, size_t count)
{
	method->versions = method->first;
	method->capacity = FIRST_VERSIONS;
	method->heads = method->first_heads;
	if (count <= FIRST_HEADS)
		return 1;
	method->heads = GC_MALLOC_ATOMIC(count * sizeof *method->heads);
	if (method->heads)
		memset(method->heads, 0, count * sizeof *method->heads);
	return method->heads != NULL;
}

/* Returns NULL without memory. Call without a lock: this allocates in the collector's heap. */
struct method *method_of(struct context *ctx, struct code *code)
{
	struct jit_vm *jit = jit_of(ctx);
	struct method *method = __atomic_load_n((struct method **)&code->jit, __ATOMIC_ACQUIRE);
	struct method *expected = NULL;
	char name[160];
	const void *cell;

	if (method)
		return method;
	method = GC_MALLOC(sizeof *method);
	if (!method)
		return NULL;
	if (!give_heads(method, (size_t)code->insn_count))
		return NULL;
	if (jit->is_arena) {
		method->arena_cell = jit_fallback_thunk;
		cell = &method->arena_cell;
	} else {
		jit_name_of(code, name, sizeof name);
		if (jit->listings)
			method->source = jit_listing_write(ctx, jit->listings, code, name);
		method->has_listing = method->source != NULL;
		if (jit_shows_lines() && !method->source)
			method->source = source_of(code);
		if (ch_bdw_owner_create(jit->ch, name, jit_fallback_thunk, NULL, &method->owner,
					&method->anchor) != CH_OK)
			return NULL;
		cell = ch_owner_cell(method->owner);
	}
	if (!__atomic_compare_exchange_n((struct method **)&code->jit, &expected, method, 0,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return expected;
	__atomic_store_n(&code->entry_cell, (void *)(uintptr_t)cell, __ATOMIC_RELEASE);
	return method;
}

/* ---- versions [jit lock] ---- */

static struct version *find_version(struct method *method, uint32_t pc, enum version_kind kind,
				    const struct slot_types *types, int *count)
{
	*count = 0;
	for (uint32_t i = method->heads[pc]; i; i = method->versions[i - 1].next) {
		struct version *version = &method->versions[i - 1];
		if (version->kind != kind)
			continue;
		if (version->types.words[0] == types->words[0] &&
		    version->types.words[1] == types->words[1])
			return version;
		++*count;
	}
	return NULL;
}

static struct version *add_version(struct method *method, uint32_t pc, enum version_kind kind,
				   const struct slot_types *types)
{
	if (method->count == method->capacity) {
		uint32_t capacity = method->capacity * 2 + 4;
		if (capacity > UINT16_MAX)
			return NULL;
		struct version *grown = GC_MALLOC_ATOMIC(capacity * sizeof *grown);
		if (!grown)
			return NULL;
		if (method->count)
			memcpy(grown, method->versions, method->count * sizeof *grown);
		method->versions = grown;
		method->capacity = capacity;
	}
	struct version *version = &method->versions[method->count++];
	memset(version, 0, sizeof *version);
	version->pc = pc;
	version->kind = (uint16_t)kind;
	version->types = *types;
	version->next = method->heads[pc];
	method->heads[pc] = (uint16_t)method->count;
	return version;
}

static enum place compile_version(struct context *ctx, struct code *code, value *fp,
				  struct version *version, struct method *method)
{
	struct jit_vm *jit = jit_of(ctx);
	struct compilation c;
	enum place place;
	int tries = 0;

	do {
		memset(&c, 0, offsetof(struct compilation, records));
		c.assumed_count = c.exit_count = c.is_done = 0;
		c.start = version->pc;
		c.jit = jit;
		c.ctx = ctx;
		c.e = jit->emitter;
		c.code = code;
		c.fp = version->kind == K_ENTRY ? NULL : fp;
		c.kind = (enum version_kind)version->kind;
		c.types = version->types;
		emit_start(c.e, jit->is_arena);
		compile_code(&c, version->pc);
		emit_end(c.e);
		place = c.e->overflowed ? PLACE_FAILED : block_place(&c, method, version);
	} while (place == PLACE_RETRY && ++tries < 8);
	if (place == PLACED)
		jit->compiled++;
	return place;
}

/* Copies the wanted version to out. */
static enum place obtain(struct context *ctx, struct code *code, uint32_t pc,
			 enum version_kind kind, struct slot_types types, value *fp,
			 struct version *out)
{
	struct jit_vm *jit = jit_of(ctx);
	struct method *method = method_of(ctx, code);
	enum place place = PLACED;
	int count;

	if (!method)
		return PLACE_FAILED;
	jit_lock(jit);
	struct version *version = find_version(method, pc, kind, &types, &count);
	if (!version && count >= VERSIONS_PER_POINT) {
		memset(&types, 0, sizeof types);
		if (kind == K_POINT)
			kind = K_GENERIC;
		version = find_version(method, pc, kind, &types, &count);
	}
	if (!version)
		version = add_version(method, pc, kind, &types);
	if (!version)
		place = PLACE_FAILED;
	else if (!version_address(jit, version))
		place = compile_version(ctx, code, fp, version, method);
	if (version)
		*out = *version;
	jit_unlock(jit);
	return place;
}

/* With a full pool: one collection, then the interpreter, and another try now and then. Only the
 * arena raises an error, as no callback of the heap leads here in arena mode. */
static enum place obtain_or_collect(struct context *ctx, struct code *code, uint32_t pc,
				    enum version_kind kind, const struct slot_types *types,
				    value *fp, struct version *out)
{
	struct jit_vm *jit = jit_of(ctx);
	enum place place;

	/* Compiling pays for sweeping: a program that always makes new code frees as much. */
	if (!jit->is_arena)
		ch_thread_poll();
	if (jit->is_full && ++jit->full_tries % SPACE_TRIES)
		return PLACE_FULL;
	place = obtain(ctx, code, pc, kind, *types, fp, out);
	if (place == PLACE_FULL && jit->is_arena)
		raise_error(ctx, "memory", "the arena is full, and frees no code", 0);
	if (place == PLACE_FULL && !jit->is_full) {
		jit_collect(ctx);
		place = obtain(ctx, code, pc, kind, *types, fp, out);
	}
	jit->is_full = place == PLACE_FULL;
	return place;
}

void jit_invalidate(struct jit_vm *jit, struct code *code)
{
	struct method *method = code->jit;

	if (!method)
		return;
	jit_lock(jit);
	for (uint32_t i = 0; i < method->count; i++)
		if (method->versions[i].block.bits &&
		    ch_blocks_invalidate(&method->versions[i].block, 1, NULL) != CH_OK)
			abort(); /* a version has no block before its commit */
	jit_unlock(jit);
}

/* ---- entering ---- */

static const struct slot_types no_types;

/* The fallback of every owner calls this. Returns the entry, or NULL to interpret. */
const void *jit_entry_target(struct context *ctx, value *fp)
{
	struct code *code = AS(closure, fp[-1])->code;
	struct jit_vm *jit = jit_of(ctx);
	struct version version;

	if (jit->is_full && code->jit == NULL && (jit->full_tries + 1) % SPACE_TRIES) {
		jit->full_tries++;
		return NULL;
	}
	if (obtain_or_collect(ctx, code, 0, K_ENTRY, &no_types, fp, &version) != PLACED)
		return NULL;
	struct method *method = code->jit;
	if (jit->is_arena) {
		__atomic_store_n(&method->arena_cell, version.arena_at, __ATOMIC_RELEASE);
		return version.arena_at;
	}
	if (ch_owner_set_entry(method->owner, version.block) != CH_OK)
		return NULL;
	const void *entry =
		__atomic_load_n((const void *const *)code->entry_cell, __ATOMIC_ACQUIRE);
	return entry == jit_fallback_thunk ? NULL : entry;
}

value jit_interpret(struct context *ctx, value *fp, int64_t argc)
{
	ctx->pc = (const struct insn *)fp[-2];
	check_c_stack(ctx);
	frame_prepare(ctx, fp, argc);
	ctx->interpreted_calls++;
	return interp_activate(ctx, fp, AS(closure, fp[-1])->code->insns);
}

/* The interpreter calls this at a loop's head; ctx->jit_words[0] is the pc of the head. */
struct jit_target jit_loop_target(struct context *ctx, value *fp)
{
	const struct insn *pc = (const struct insn *)ctx->jit_words[0];
	struct code *code = AS(closure, fp[-1])->code;
	struct version version;
	struct jit_target target = {NULL, TARGET_POINT};

	if (obtain_or_collect(ctx, code, pc_index(code, pc), K_POINT, &no_types, fp, &version) ==
	    PLACED)
		target.at = version_address(jit_of(ctx), &version);
	if (!target.at) {
		target.at = pc + 1;
		target.arg2 = TARGET_INTERPRETER;
	}
	return target;
}

/* The interpreter, called by machine code, has returned V_TAIL. */
struct jit_target jit_tail_target(struct context *ctx)
{
	struct jit_target target = {NULL, TARGET_ENTRY};

	if (ctx->tail_entry == jit_loop_entry)
		return jit_loop_target(ctx, ctx->tail_fp);
	struct code *code = AS(closure, ctx->tail_fp[-1])->code;
	target.at = __atomic_load_n((const void *const *)code->entry_cell, __ATOMIC_ACQUIRE);
	return target;
}

/* ---- branches taken without a link ---- */

static enum place wanted(struct jit_record *record, struct context *ctx, value *fp,
			 struct version *out)
{
	if (jit_of(ctx)->vm->options.gc_every_stub)
		GC_gcollect();
	return obtain_or_collect(ctx, record->code, record->pc,
				 (enum version_kind)record->version_kind, &record->types, fp, out);
}

struct ch_block jit_branch_hit(void *vm_user, struct ch_branch branch, void *user,
			       struct ch_regs *regs)
{
	struct jit_record *record = user;
	struct context *ctx = emit_site_context(regs);
	value *fp = emit_site_frame(regs);
	struct version version;
	struct ch_block none = {0};

	(void)vm_user;
	(void)branch;
	int is_placed = wanted(record, ctx, fp, &version) == PLACED;
	/* Even when a block was placed: code discarded soon after compilation may never be entered,
	 * and no block expects a value in the register set here. */
	if (record->record_kind != REC_BODY)
		emit_site_go_on(regs, jit_exit_thunk, (uint64_t)(record->code->insns + record->pc));
	else if (record->code->has_rest)
		regs->pc = (uint64_t)jit_interpret_thunk; /* argc is in ARG2 */
	else
		emit_site_go_on(regs, jit_interpret_thunk, (uint64_t)record->code->exact_args);
	return is_placed ? version.block : none;
}

static value call_redefined(struct context *ctx, value *fp, int64_t argc)
{
	value v;

	ctx->pc = (const struct insn *)fp[-2];
	v = call_other(ctx, fp[-1], fp, argc);
	ctx->now.arg_top = NULL;
	return v;
}

struct jit_target jit_arena_hit(struct jit_record *record, struct context *ctx, value *fp,
				uint64_t argc)
{
	struct version version;
	struct jit_target next = {NULL, argc};

	if (record->assumed && record->hits && record->record_kind == REC_GOTO) {
		next.arg2 = (uint64_t)(record->code->insns + record->call);
		next.at = jit_exit_thunk;
		return next;
	}
	if (record->assumed && record->hits) {
		/* The global was redefined: the callee's frame holds the old closure. The new
		 * content may be no closure, and then has no slots. */
		ctx->now.arg_top = fp + record->argc;
		atomic_signal_fence(memory_order_seq_cst);
		fp[-1] = record->assumed->content;
		next.arg2 = (uint64_t)record->argc;
		next.at = (const void *)call_redefined;
		if (is_type(fp[-1], T_CLOSURE)) {
			ctx->now.arg_top = NULL;
			next.at = *(const void *const *)AS(closure, fp[-1])->code->entry_cell;
		}
		return next;
	}
	if (wanted(record, ctx, fp, &version) == PLACED) {
		record_link(jit_of(ctx), record, &version);
		next.at = version.arena_at;
	} else if (record->record_kind == REC_BODY) {
		if (!record->code->has_rest)
			next.arg2 = (uint64_t)record->code->exact_args;
		next.at = jit_interpret_thunk;
	} else {
		next.arg2 = (uint64_t)(record->code->insns + record->pc);
		next.at = jit_exit_thunk;
	}
	return next;
}

/* ---- guards ---- */

static int are_fixnums(value *fp, const struct insn *pc)
{
	switch (op_formats[pc->op]) {
	case F_ABC:
		return (int)(fp[pc->b] & fp[pc->c] & 1);
	case F_ABI:
		return is_fixnum(fp[pc->b]);
	case F_ABJ:
		return (int)(fp[pc->a] & fp[pc->b] & 1);
	default:
		return is_fixnum(fp[pc->a]);
	}
}

/* Called by cold code of the record's block; the return address keeps the block. Returns the
 * address to go on at, or NULL to go on in the interpreter at ctx->pc. */
const void *jit_guard_exit(struct context *ctx, value *fp, struct jit_record *record)
{
	const struct insn *pc = record->code->insns + record->pc;
	struct version version;
	const void *at = NULL;

	jit_of(ctx)->side_exits++;
	if (__atomic_add_fetch(&record->hits, 1, __ATOMIC_RELAXED) >= HOT_EXITS) {
		/* The next version of a chain, specialised by the live values behind new guards.
		 * For fixnums the cause was an overflow or a division: no types help. */
		enum version_kind kind =
			are_fixnums(fp, pc) ? K_GENERIC : (enum version_kind)record->version_kind;
		if (obtain_or_collect(ctx, record->code, record->pc, kind, &record->types, fp,
				      &version) == PLACED) {
			at = version_address(jit_of(ctx), &version);
			if (at)
				record_link(jit_of(ctx), record, &version);
		}
	}
	ctx->pc = pc;
	return at;
}
