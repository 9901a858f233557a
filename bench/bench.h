/* SPDX-License-Identifier: MIT
 * bench.h: shared by the measuring programs of bench/: the row, the clocks, a heap to measure in,
 * and the peers behind C interfaces. Rows see the public headers only. */
#pragma once

#include <codeheap/codeheap.h>
#include <codeheap/collector.h>
#include <codeheap/look.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BENCH_RUNS_MAX = 15 };

/* --- rows --- */

enum bench_met { BENCH_NO_GOAL, BENCH_MET, BENCH_MISSED, BENCH_ABSENT };

/* Crosses a pipe: no pointers. NAN = not measured. */
struct bench_row {
	char name[40], unit[16], peer_name[96], note[160];
	double ours, peer, limit, ratio, goal, spread;
	char goal_sign; /* '<' or '>', 0 = no goal */
	bool goal_is_of_ratio;
	int runs;
	enum bench_met met;
};

/* The runs of one row: ours, the peer and the limit are measured in turn, so that a change of the
 * machine's speed meets all three. */
struct bench_runs {
	double ours[BENCH_RUNS_MAX], peer[BENCH_RUNS_MAX], limit[BENCH_RUNS_MAX];
	int count, peer_count, limit_count;
	/* The row depends on the machine's disk, or on two clocks: the best run is shown and
	 * judged, beside the best of the peer and of the limit. The spread is over all runs. */
	bool is_of_best;
};

struct bench_goal {
	char sign; /* '<', '>' or 0 */
	double value;
	enum { BENCH_OF_OURS, BENCH_OF_PEER, BENCH_OF_LIMIT } of; /* the figure to compare */
};

void bench_emit(const char *name, const char *unit, const struct bench_runs *,
		const char *peer_name, struct bench_goal, const char *note);
void bench_absent(const char *name, const char *unit, struct bench_goal, const char *why);
/* Middle value; sorts. */
double bench_median(double *values, int count);

/* --- time --- */

double bench_cpu_ns(void); /* of the calling thread */
double bench_wall_ns(void);
/* Processor seconds of a command of the shell and all that it waits for; NAN = it failed. */
double bench_command_s(const char *command);
/* A row begins on processor 1. -1 = all */
void bench_pin(int cpu);

/* --- a heap --- */

struct bench_heap {
	struct ch_heap *heap;
	struct ch_vm *vm;
};

void bench_ok(enum ch_status, const char *what); /* exits the row's process on failure */
void bench_die(const char *what);
void bench_have_threads(void); /* from here on the process has not always had one thread */
/* snprintf, but a text that does not fit ends the row. */
void bench_format(char *text, size_t bytes, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
struct bench_heap *bench_heap_open(const struct ch_config *); /* NULL = defaults; attaches */
void bench_heap_close(struct bench_heap *);
struct ch_stats bench_stats(const struct bench_heap *);
struct ch_owner bench_owner(struct bench_heap *, const char *name);
/* One committed block of `bytes` bytes of code that returns at once. */
struct ch_block bench_block(struct ch_owner, uint32_t bytes);
enum { BENCH_JUMP_BYTES = 8 }; /* of a block for each of its jumps */
/* The same, with a jump in each of the first BENCH_JUMP_BYTES. *exec may be NULL. */
struct ch_block bench_jumps(struct ch_owner, uint32_t bytes, struct ch_branch *jumps,
			    uint32_t count, const uint8_t **exec);
const void *bench_fallback(void);

uint32_t bench_random(uint64_t *state);

/* --- rows' functions, each in a process of its own --- */

void bench_alloc_young(void);
void bench_code(void);
void bench_alloc_lifo(void);
void bench_alloc_aged(void);
void bench_metadata(void);
void bench_pressure(void);
void bench_fork(void);
void bench_create(void);
void bench_lookup(void);
void bench_mark(void);
void bench_sweep(void);
void bench_stack_scan(void);
void bench_patch(void);
void bench_trampoline_make(void);
void bench_trampoline_call(void);
void bench_frame_walk(void);
void bench_profile(void);
void bench_publish(void);
void bench_throw(void);
void bench_withdraw(void);
void bench_headline(void);
void bench_stats_file(void);
void bench_scheme(void);
void bench_python(void);

/* counted.c: for callgrind */
void bench_counted(void);

/* --- peers --- */

/* AsmJit's JitAllocator, dual-mapped. NULL where AsmJit is not installed. */
struct peer_asmjit;
const char *peer_asmjit_name(bool fill);
struct peer_asmjit *peer_asmjit_open(bool fill);
void peer_asmjit_close(struct peer_asmjit *);
bool peer_asmjit_alloc(struct peer_asmjit *, size_t bytes, void **exec, void **write);
void peer_asmjit_release(struct peer_asmjit *, void *exec);
bool peer_asmjit_query(struct peer_asmjit *, void *pc);
size_t peer_asmjit_reserved(struct peer_asmjit *);

/* Boehm, one object per block: the time of a full collection, by one marker. */
void peer_boehm_build(const uint32_t *edges, uint32_t blocks, uint32_t edges_a_block);
double peer_boehm_collect_ns(void);

/* ns a block, for blocks of `bytes` bytes, one behind the other from `code` on. */
double peer_frames_ns(const uint8_t *code, uint32_t bytes, int blocks);
double peer_symfiles_ns(const uint8_t *code, uint32_t bytes, int blocks);

/* throw.cc: ns a C++ throw through a native frame. */
double bench_throw_ns(int throws);

#ifdef __cplusplus
}
#endif
/* --- descent.c: x86-64 --- */
void bench_descent_make(struct bench_heap *);
/* Calls bottom with so many frames of code below, and as many of C. */
void bench_descend(int frames, void (*bottom)(void));
