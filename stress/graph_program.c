/* SPDX-License-Identifier: MIT
 * graph_program.c: random programs of the graph level, and their text. By their weights, making,
 * entering, killing and collecting code are about as frequent. Nesting is followed roughly: an
 * operation out of place does nothing. */
#include "graph_program.h"

#include "codeheap/codeheap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *name;
	int operands;
} kinds[] = {
#define X(name, operands) {#name, operands},
	GRAPH_OPERATIONS(X)
#undef X
};

struct dice {
	struct graph_program *program;
	uint64_t random;
	int slots, thread, depth[GRAPH_THREADS];
	int forks, immortals;
};

static int below(struct dice *d, int bound)
{
	d->random ^= d->random >> 12;
	d->random ^= d->random << 25;
	d->random ^= d->random >> 27;
	return (int)(((d->random * UINT64_C(2685821657736338717)) >> 33) % (uint64_t)bound);
}

static bool chance(struct dice *d, int percent)
{
	return below(d, 100) < percent;
}

static void append(struct graph_program *p, struct graph_operation operation)
{
	if (p->count == p->room) {
		p->room = p->room ? p->room * 2 : 1024;
		p->operations = realloc(p->operations, p->room * sizeof *p->operations);
		if (!p->operations)
			abort();
	}
	p->operations[p->count++] = operation;
}

static void put(struct dice *d, enum graph_kind kind, int a, int b, int c, int e)
{
	append(d->program,
	       (struct graph_operation){(uint8_t)kind,
					(uint8_t)d->thread,
					{(int16_t)a, (int16_t)b, (int16_t)c, (int16_t)e}});
}

static int slot(struct dice *d)
{
	return below(d, d->slots);
}

/* --- the shape of a block --- */

static int shape(struct dice *d)
{
	static const int arms[] = {GRAPH_CALL, GRAPH_JMP,     GRAPH_JCC,
				   GRAPH_LEA,  GRAPH_LITERAL, GRAPH_CELL};
	int result = 0;
	for (int i = 0; i < GRAPH_ARMS; i++)
		if (chance(d, i < 2 ? 60 : 25))
			result |= arms[i];
	if (chance(d, 25))
		result |= GRAPH_EDGE;
	if (chance(d, 20))
		result |= GRAPH_REF;
	if (chance(d, 20))
		result |= GRAPH_FACT;
	if (chance(d, 20))
		result |= GRAPH_SHARED_EXIT;
	if (chance(d, 40))
		result |= (1 + below(d, 2)) << GRAPH_ENTRY_SHIFT;
	if (chance(d, 12))
		result |= (1 + below(d, chance(d, 20) ? 3 : 2)) << GRAPH_SIZE_SHIFT;
	if (d->immortals && chance(d, 1)) {
		d->immortals--;
		result |= GRAPH_IMMORTAL;
	}
	return result;
}

static void put_code(struct dice *d, enum graph_kind kind, int at)
{
	put(d, kind, at, shape(d), slot(d), slot(d));
}

/* --- operations --- */

static void put_change(struct dice *d)
{
	switch (below(d, 12)) {
	case 0: {
		int at = slot(d);
		put(d, GRAPH_drop, at, below(d, 2), 0, 0);
		put_code(d, GRAPH_loose, at);
		break;
	}
	case 1:
	case 2: {
		int at = slot(d);
		put(d, GRAPH_drop, at, below(d, 2), 0, 0);
		put(d, GRAPH_owner, at, 0, 0, 0);
		put_code(d, GRAPH_code, at);
		break;
	}
	case 3:
		put(d, GRAPH_exit, slot(d), 0, 0, 0);
		break;
	case 4:
		put_code(d, GRAPH_open, slot(d));
		break;
	case 5:
		put(d, chance(d, 75) ? GRAPH_commit : GRAPH_abort, 0, 0, 0, 0);
		break;
	case 6:
		put(d, GRAPH_entry, slot(d), below(d, 2), 0, 0);
		break;
	case 7:
	case 8:
		put(d, GRAPH_link, slot(d), 1 + below(d, 5), chance(d, 25) ? -1 : slot(d), 0);
		break;
	default:
		put_code(d, GRAPH_code, slot(d));
	}
}

static void put_end(struct dice *d)
{
	bool is_inside = d->depth[d->thread] > 0;
	switch (below(d, 12)) {
	case 0:
	case 1:
	case 2:
		put(d, GRAPH_kill, slot(d), slot(d), slot(d), 0);
		break;
	case 3:
	case 4:
		put(d, is_inside ? GRAPH_suicide : GRAPH_doubt, below(d, GRAPH_FACTS), 0, 0, 0);
		break;
	case 5:
		put(d, is_inside ? GRAPH_slaughter : GRAPH_kill, slot(d), slot(d), slot(d), 0);
		break;
	case 6:
		put(d, GRAPH_doubt, below(d, GRAPH_FACTS), 0, 0, 0);
		break;
	case 7:
		if (chance(d, 15))
			put(d, GRAPH_discard, below(d, GRAPH_HEAPS), below(d, GRAPH_VMS + 1) - 1, 0,
			    0);
		break;
	default:
		put(d, GRAPH_collect, below(d, GRAPH_HEAPS), 0, 0, 0);
	}
}

static void put_rare(struct dice *d)
{
	switch (below(d, 17)) {
	case 0:
	case 1:
		put(d, GRAPH_raise, 0, 0, 0, 0);
		put_change(d);
		put_end(d);
		put(d, GRAPH_leave, 0, 0, 0, 0);
		break;
	case 2:
	case 3:
		put(d, GRAPH_shoot, below(d, GRAPH_THREADS), 0, 0, 0);
		break;
	case 4:
		if (d->forks && chance(d, 40)) {
			d->forks--;
			put(d, GRAPH_fork, below(d, 30), 0, 0, 0);
		}
		break;
	case 5:
		put(d, GRAPH_poll, 0, 0, 0, 0);
		break;
	case 6:
	case 7:
		put(d, GRAPH_park, below(d, 200), 0, 0, 0);
		break;
	case 8:
		put(d, GRAPH_jump, 0, 0, 0, 0);
		d->depth[d->thread] = 0;
		break;
	case 9:
		put(d, GRAPH_young, slot(d), 1 + below(d, 4), chance(d, 20), 0);
		break;
	case 10:
		put(d, GRAPH_tramp, slot(d), below(d, 2), 0, 0);
		break;
	case 11:
		if (d->program->sinks && chance(d, 10))
			put(d, GRAPH_sinks, below(d, GRAPH_HEAPS), below(d, 4), 0, 0);
		break;
	case 12:
		put(d, GRAPH_check, below(d, GRAPH_HEAPS), 0, 0, 0);
		break;
	case 13:
	case 14:
	case 15:
		put(d, GRAPH_write, 0, 0, 0, 0);
		break;
	default:
		put(d, GRAPH_look, slot(d), below(d, 8), 0, 0);
	}
}

static void put_flow(struct dice *d)
{
	int *depth = &d->depth[d->thread];
	int choice = below(d, 20);
	if (choice < 3) {
		put(d, GRAPH_fiber, below(d, GRAPH_FIBERS), 0, 0, 0);
	} else if (choice < 5) {
		put(d, GRAPH_yield, 0, 0, 0, 0);
	} else if (choice == 5 && chance(d, 30)) {
		put(d, GRAPH_forsake, below(d, GRAPH_FIBERS), 0, 0, 0);
	} else if (*depth == 0 || choice < 9) {
		put(d, GRAPH_enter, slot(d), 0, 0, 0);
		*depth += 1;
	} else if (choice < 16) {
		int answer = below(d, 10);
		put(d, GRAPH_take, 1 + below(d, GRAPH_ARMS),
		    answer < 4   ? GRAPH_OLD
		    : answer < 7 ? GRAPH_NEW
		    : answer < 9 ? GRAPH_DEAD
				 : GRAPH_NONE,
		    slot(d), chance(d, 30) ? below(d, 5) : 0);
		*depth += 1;
	} else {
		put(d, GRAPH_leave, 0, 0, 0, 0);
		*depth -= 1;
	}
}

static void put_one(struct dice *d)
{
	int choice = below(d, 100);
	if (choice < 52)
		put_flow(d);
	else if (choice < 76)
		put_change(d);
	else if (choice < 91)
		put_end(d);
	else
		put_rare(d);
}

/* --- a program --- */

static void choose_settings(struct dice *d)
{
	static const int drivers[] = {GRAPH_POLLS, GRAPH_SIGNALS, GRAPH_HOST, GRAPH_BOEHM,
				      GRAPH_POLLS, GRAPH_SIGNALS, GRAPH_HOST, GRAPH_PARKS};
	static const int pages[] = {4, 16, 16, 64}, pools[] = {0, 128, 512, 4096, 8192};
	struct graph_program *p = d->program;
	p->driver = drivers[below(d, 8)];
	p->heaps = p->driver != GRAPH_BOEHM && chance(d, 30) ? 2 : 1;
	p->vms = 1 + below(d, GRAPH_VMS);
	p->threads = 1 + below(d, GRAPH_THREADS);
	p->page_kb = pages[below(d, 4)];
	p->pool_kb = pools[below(d, 5)];
	if (p->pool_kb < p->page_kb * 2)
		p->pool_kb = p->page_kb << below(d, 4);
	p->memfd = chance(d, 25);
	int sinks = below(d, 8);
	p->sinks = sinks == 0   ? CH_SINK_UNWIND | CH_SINK_PERF_MAP | CH_SINK_JITDUMP | CH_SINK_GDB
		   : sinks == 1 ? CH_SINK_UNWIND | CH_SINK_PERF_MAP
		   : sinks == 2 ? CH_SINK_NONE
				: CH_SINK_DEFAULT;
	p->eager = chance(d, 50);
	p->parallel = 1 + below(d, 3);
	p->incremental = chance(d, 20);
	p->stops = p->driver == GRAPH_HOST ? below(d, 3) : 0;
	/* In a pool of one chunk of 1 MiB, data takes the chunk, and leaves none for code. */
	p->data = p->pool_kb >= 4096 && chance(d, 60);
}

void graph_program_generate(struct graph_program *p, uint64_t seed)
{
	struct dice dice = {.program = p,
			    .random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1,
			    .forks = 3,
			    .immortals = 3};
	struct dice *d = &dice;
	memset(p, 0, sizeof *p);
	p->seed = seed;
	for (int i = 0; i < 8; i++)
		below(d, 2);
	choose_settings(d);
	d->slots = 6 + below(d, GRAPH_SLOTS - 6);
	int rounds = 2 + below(d, 5), length = 60 + below(d, 240);
	for (int i = 0; i < d->slots; i++) {
		d->thread = i % p->threads;
		put(d, GRAPH_owner, i, 0, 0, 0);
		put_code(d, GRAPH_code, i);
	}
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < length * p->threads; i++) {
			d->thread = below(d, p->threads);
			put_one(d);
		}
		d->thread = 0;
		put(d, GRAPH_round, 0, 0, 0, 0);
		memset(d->depth, 0, sizeof d->depth);
	}
}

void graph_program_free(struct graph_program *p)
{
	free(p->operations);
	memset(p, 0, sizeof *p);
}

/* --- text --- */

char *graph_program_print(const struct graph_program *p, const bool *keep, size_t *length)
{
	char *text = NULL;
	FILE *file = open_memstream(&text, length);
	if (!file)
		return NULL;
	fprintf(file, "graph program\nseed %llu\n", (unsigned long long)p->seed);
#define X(name) fprintf(file, "set %s %d\n", #name, p->name);
	GRAPH_SETTINGS(X)
#undef X
	for (size_t i = 0; i < p->count; i++) {
		const struct graph_operation *o = &p->operations[i];
		if (keep && !keep[i])
			continue;
		fprintf(file, "%d %s", o->thread, kinds[o->kind].name);
		for (int n = 0; n < kinds[o->kind].operands; n++)
			fprintf(file, " %d", o->operand[n]);
		fprintf(file, "\n");
	}
	fclose(file);
	return text;
}

static bool read_setting(struct graph_program *p, const char *name, int value)
{
#define X(setting)                     \
	if (!strcmp(name, #setting)) { \
		p->setting = value;    \
		return true;           \
	}
	GRAPH_SETTINGS(X)
#undef X
	return false;
}

/* Whether operands for slots and fibers are below the number of slots and fibers. */
static bool is_in_range(const struct graph_operation *o)
{
	static const uint8_t slots[GRAPH_KINDS][GRAPH_OPERANDS] = {
		[GRAPH_owner] = {1}, [GRAPH_drop] = {1},          [GRAPH_code] = {1, 0, 1, 1},
		[GRAPH_loose] = {1, 0, 1, 1},
		[GRAPH_exit] = {1},  [GRAPH_open] = {1, 0, 1, 1}, [GRAPH_young] = {1},
		[GRAPH_tramp] = {1}, [GRAPH_entry] = {1},         [GRAPH_link] = {1, 0, 1},
		[GRAPH_enter] = {1}, [GRAPH_take] = {0, 0, 1},    [GRAPH_kill] = {1, 1, 1},
		[GRAPH_look] = {1},  [GRAPH_fiber] = {2},         [GRAPH_forsake] = {2}};
	for (int n = 0; n < GRAPH_OPERANDS; n++) {
		int least = o->kind == GRAPH_link || o->kind == GRAPH_discard ? -1 : 0;
		int most = slots[o->kind][n] == 1   ? GRAPH_SLOTS - 1
			   : slots[o->kind][n] == 2 ? GRAPH_FIBERS - 1
						    : INT16_MAX;
		if (o->operand[n] < least || o->operand[n] > most)
			return false;
	}
	if (o->kind == GRAPH_take && o->operand[0] > GRAPH_ARMS)
		return false;
	return o->operand[0] >= 0;
}

static bool read_operation(struct graph_program *p, const char *line)
{
	char name[16];
	int thread, v[GRAPH_OPERANDS] = {0};
	int got = sscanf(line, "%d %15s %d %d %d %d", &thread, name, &v[0], &v[1], &v[2], &v[3]);
	if (got < 2 || thread < 0 || thread >= GRAPH_THREADS)
		return false;
	for (int kind = 0; kind < GRAPH_KINDS; kind++) {
		if (strcmp(name, kinds[kind].name))
			continue;
		struct graph_operation o = {(uint8_t)kind, (uint8_t)thread, {0}};
		for (int n = 0; n < GRAPH_OPERANDS; n++)
			o.operand[n] = (int16_t)v[n];
		append(p, o);
		return got - 2 >= kinds[kind].operands && is_in_range(&o);
	}
	return false;
}

static bool is_runnable(const struct graph_program *p)
{
	return p->heaps >= 1 && p->heaps <= GRAPH_HEAPS && p->vms >= 1 && p->vms <= GRAPH_VMS &&
	       p->threads >= 1 && p->threads <= GRAPH_THREADS && p->driver >= 0 &&
	       p->driver <= GRAPH_BOEHM && p->page_kb > 0 && p->pool_kb >= p->page_kb;
}

bool graph_program_read(struct graph_program *p, const char *text)
{
	memset(p, 0, sizeof *p);
	for (int number = 1; *text; number++) {
		char line[128], name[32];
		unsigned long long seed;
		int value;
		size_t length = strcspn(text, "\n");
		snprintf(line, sizeof line, "%.*s", (int)length, text);
		text += length + (text[length] == '\n');
		if (number == 1 && !strcmp(line, "graph program"))
			continue;
		if (sscanf(line, "seed %llu", &seed) == 1)
			p->seed = seed;
		else if (sscanf(line, "set %31s %d", name, &value) == 2 &&
			 read_setting(p, name, value))
			continue;
		else if (line[0] && line[0] != '#' && !read_operation(p, line)) {
			fprintf(stderr, "line %d is no operation: %s\n", number, line);
			return false;
		}
	}
	if (!is_runnable(p))
		fprintf(stderr, "a setting is out of its range\n");
	return is_runnable(p);
}
