/* SPDX-License-Identifier: MIT
 * jit_primitives.c: procedures on the code heap: collect, discard, statistics, a picture, and
 * tracing of a procedure's returns. The procedures exist in every mode and do nothing without
 * machine code.
 */
#include <stdlib.h>

#include "jit.h"
#include "tools/draw/draw_heap.h"

PRIM(code_collect)
{
	if (jit_has_heap(ctx))
		jit_collect(ctx);
	return V_UNSPEC;
}

PRIM(code_discard)
{
	size_t freed = 0, kept = 0;

	if (jit_has_heap(ctx) && ch_vm_discard(jit_heap(), jit_of(ctx)->ch, &freed, &kept) != CH_OK)
		raise_error(ctx, "error", "code-discard!: a thread did not stop", 0);
	return cons(ctx, make_fixnum((int64_t)freed), make_fixnum((int64_t)kept));
}

/* ---- statistics ---- */

static value add_count(struct context *ctx, value list, const char *name, uint64_t count)
{
	char text[64];

	snprintf(text, sizeof text, "%s", name);
	for (char *at = text; *at; at++)
		if (*at == '_')
			*at = '-';
	return cons(ctx, cons(ctx, intern(text), make_fixnum((int64_t)count)), list);
}

PRIM(code_stats)
{
	struct jit_vm *jit = jit_of(ctx);
	struct ch_stats stats = {.size = sizeof stats};
	value list = V_NIL;

	if (jit_has_heap(ctx) && ch_heap_stats(jit_heap(), &stats) == CH_OK) {
#define X(name) list = add_count(ctx, list, #name, stats.name);
		CH_STATS_LIST(X)
#undef X
	}
	if (jit && jit->is_arena)
		list = add_count(ctx, list, "arena_bytes", arena_bytes());
	if (jit) {
		list = add_count(ctx, list, "collections_asked", (uint64_t)jit->collections);
		list = add_count(ctx, list, "side_exits", (uint64_t)jit->side_exits);
		list = add_count(ctx, list, "returns_into_invalidated",
				 jit_returns_into_invalidated(ctx->vm));
		list = add_count(ctx, list, "blocks_compiled", (uint64_t)jit->compiled);
	}
	return add_count(ctx, list, "interpreted_calls", (uint64_t)vm_interpreted_calls(ctx->vm));
}

PRIM(code_check)
{
	char report[512];

	if (!jit_has_heap(ctx) || ch_heap_check(jit_heap(), report, sizeof report) == CH_OK)
		return V_TRUE;
	raise_error(ctx, "error", report, 0);
}

/* ---- a picture: blocks by ch_block_each, numbers by ch_heap_stats; tools/draw/ draws ---- */

enum { HEAD_BYTES = 8, PANELS = 2 };

struct heap_map_panel {
	char title[80];
	struct ch_stats stats;
	struct drawn_part *parts;
	size_t count, capacity, blocks;
	bool has_failed;
};

/* Adds a part with its head, which lies before exec. */
static bool add_part(struct heap_map_panel *panel, const uint8_t *exec, uint32_t bytes,
		     enum drawn_kind kind)
{
	if (panel->count == panel->capacity) {
		size_t capacity = panel->capacity ? panel->capacity * 2 : 1024;
		struct drawn_part *grown = realloc(panel->parts, capacity * sizeof *grown);
		if (!grown) {
			panel->has_failed = true;
			return false;
		}
		panel->parts = grown;
		panel->capacity = capacity;
	}
	panel->parts[panel->count++] = (struct drawn_part){(uintptr_t)exec - HEAD_BYTES,
							   bytes + HEAD_BYTES, kind};
	return true;
}

static bool add_block(void *arg, const struct ch_info *info)
{
	struct heap_map_panel *panel = arg;
	if (info->state != CH_BLOCK_LIVE && info->state != CH_BLOCK_NOTENTRANT)
		return true;
	bool is_live = info->state == CH_BLOCK_LIVE;
	panel->blocks++;
	return add_part(panel, info->exec, info->hot_bytes,
			is_live ? DRAWN_HOT : DRAWN_NOTENTRANT) &&
	       (!info->cold_exec ||
		add_part(panel, info->cold_exec, info->cold_bytes,
			 is_live ? DRAWN_COLD : DRAWN_NOTENTRANT));
}

static void heap_map_free(struct heap_map_panel *panel)
{
	if (panel)
		free(panel->parts);
	free(panel);
}

static struct heap_map_panel *heap_map_take(struct ch_heap *heap, const char *title)
{
	struct heap_map_panel *panel = calloc(1, sizeof *panel);
	if (!panel)
		return NULL;
	snprintf(panel->title, sizeof panel->title, "%s", title);
	panel->stats.size = sizeof panel->stats;
	if (ch_block_each(heap, NULL, add_block, panel) != CH_OK || panel->has_failed ||
	    ch_heap_stats(heap, &panel->stats) != CH_OK) {
		heap_map_free(panel);
		return NULL;
	}
	return panel;
}

static bool heap_map_write(FILE *file, struct heap_map_panel *const *panels)
{
	enum {
#define X(name) AT_##name,
		CH_STATS_LIST(X)
#undef X
			NUMBERS
	};
	struct drawn_number numbers[PANELS][NUMBERS];
	struct drawn_heap heaps[PANELS];
	for (int i = 0; i < PANELS; i++) {
		const struct ch_stats *stats = &panels[i]->stats;
#define X(name) numbers[i][AT_##name] = (struct drawn_number){#name, stats->name};
		CH_STATS_LIST(X)
#undef X
		heaps[i] = (struct drawn_heap){
			.title = panels[i]->title,
			.numbers = numbers[i],
			.number_count = NUMBERS,
			.parts = panels[i]->parts,
			.part_count = panels[i]->count,
			.block_count = panels[i]->blocks,
		};
	}
	return draw_heaps(file, heaps, PANELS);
}

/* (code-map FILE): the heap before and after a collection, as SVG. */
PRIM(code_map)
{
	struct heap_map_panel *panels[PANELS] = {NULL, NULL};
	const char *path = text_arg(ctx, "code-map", "file name", args[0]);
	int is_written = 0;

	if (!jit_has_heap(ctx))
		return V_FALSE;
	panels[0] = heap_map_take(jit_heap(), "before a collection");
	jit_collect(ctx);
	panels[1] = heap_map_take(jit_heap(), "after it");
	FILE *file = panels[0] && panels[1] ? fopen(path, "w") : NULL;
	if (file) {
		is_written = heap_map_write(file, panels);
		is_written &= fclose(file) == 0;
	}
	heap_map_free(panels[0]);
	heap_map_free(panels[1]);
	return make_bool(is_written);
}

/* ---- tracing ---- */

/* The last instruction of an activation, in its traced form. */
static uint16_t traced_op(uint16_t op)
{
	switch (op) {
	case OP_RETURN:
		return OP_TRETURN;
	case OP_TAILCALL:
		return OP_TTAILCALL;
	case OP_TAILCALLG:
		return OP_TTAILCALLG;
	case OP_TAILAPPLY:
		return OP_TTAILAPPLY;
	default:
		return op;
	}
}

static void invalidate_callers(struct context *ctx)
{
	for (value *fp = FP(ctx); fp && fp > ctx->now.stack_base && fp <= ctx->now.stack_end;
	     fp = (value *)fp[-3])
		if (is_type(fp[-1], T_CLOSURE))
			jit_invalidate(jit_of(ctx), AS(closure, fp[-1])->code);
}

/* Changes the bytecode first, then invalidates machine code made from it: activations go on in the
 * interpreter, with the new bytecode. */
PRIM(trace)
{
	struct code *code = AS(closure, object_arg(ctx, "trace!", T_CLOSURE, args[0]))->code;
	for (int32_t i = 0; i < code->insn_count; i++)
		__atomic_store_n(&code->insns[i].op, traced_op(code->insns[i].op),
				 __ATOMIC_RELEASE);
	if (jit_has_heap(ctx)) {
		jit_invalidate(jit_of(ctx), code);
		invalidate_callers(ctx);
	}
	return V_UNSPEC;
}

/* Called by the interpreter, before the frame at fp is given up. */
void note_traced_return(struct context *ctx, value *fp, value result)
{
	struct vm *vm = ctx->vm;
	value name = AS(closure, fp[-1])->code->name;
	value event = cons(ctx, name, result), list = cons(ctx, event, V_NIL);

	pthread_mutex_lock(&vm->lock);
	CDR(list) = vm->traced_returns ? vm->traced_returns : V_NIL;
	vm->traced_returns = list;
	pthread_mutex_unlock(&vm->lock);
}

PRIM(trace_events)
{
	pthread_mutex_lock(&ctx->vm->lock);
	value list = ctx->vm->traced_returns ? ctx->vm->traced_returns : V_NIL;
	ctx->vm->traced_returns = V_NIL;
	pthread_mutex_unlock(&ctx->vm->lock);
	value out = V_NIL;
	for (; is_pair(list); list = CDR(list))
		out = cons(ctx, CAR(list), out);
	return out;
}

void init_jit_primitives(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"code-collect!", code_collect, 0, 0},
		{"code-discard!", code_discard, 0, 0},
		{"code-stats", code_stats, 0, 0},
		{"code-map", code_map, 1, 1},
		{"code-check", code_check, 0, 0},
		{"code-disassemble", jit_disassemble, 1, 1},
		{"trace!", trace, 1, 1},
		{"trace-events", trace_events, 0, 0},
	};

	DEFINE_PRIMS(ctx, defs);
}
