/* SPDX-License-Identifier: MIT
 * cases.c: what closures in the heap promise. */
#define _GNU_SOURCE
#include <codeheap/look.h>

#include "cases.h"

#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { MIB = 1 << 20 };

/* --- support --- */

ffi_cif cif_int_int;
static ffi_cif cif_compare;
static ffi_type *one_int[] = {&ffi_type_sint};
static ffi_type *two_pointers[] = {&ffi_type_pointer, &ffi_type_pointer};

struct place place_open(size_t pool_bytes, unsigned sinks, void (*freed)(void *user))
{
	struct place place;
	struct ch_ffi_options options = {.freed = freed};
	place.heap = heap_of(pool_bytes, sinks, NULL);
	OK(ch_thread_attach(place.heap, NULL, NULL));
	OK(ch_ffi_open(place.heap, &options, &place.ffi));
	OK(ffi_prep_cif(&cif_int_int, FFI_DEFAULT_ABI, 1, &ffi_type_sint, one_int));
	OK(ffi_prep_cif(&cif_compare, FFI_DEFAULT_ABI, 2, &ffi_type_sint, two_pointers));
	return place;
}

void place_close(struct place *place)
{
	check_heap(place->heap);
	ch_ffi_close(place->ffi);
	OK(ch_heap_destroy(place->heap));
}

struct ch_ffi_closure closure_of(const struct place *place, ffi_cif *cif, closure_function *fun,
				 void *user, const char *name)
{
	struct ch_ffi_closure closure;
	OK(ch_ffi_closure_create(place->ffi, cif, fun, user, name, &closure));
	return closure;
}

static void give_int(void *result, int value)
{
	/* libffi widens a result narrower than a register. */
	*(ffi_arg *)result = (ffi_arg)value;
}

void add_user(ffi_cif *cif, void *result, void **arguments, void *user)
{
	(void)cif;
	give_int(result, *(int *)arguments[0] + *(int *)user);
}

/* The closure's code as a function. */
static int_int *as_int_int(struct ch_ffi_closure closure)
{
	return (int_int *)(uintptr_t)closure.code;
}

/* --- qsort --- */

typedef int comparison(const void *, const void *);

struct sorting {
	int sign;
	long calls;
	const struct place *place; /* set: the first call releases the closure */
	struct ch_ffi_closure closure;
};

static void compare(ffi_cif *cif, void *result, void **arguments, void *user)
{
	struct sorting *s = (struct sorting *)user;
	int a = **(int **)arguments[0], b = **(int **)arguments[1];
	(void)cif;
	if (s->calls++ == 0 && s->place) {
		OK(ch_ffi_closure_release(s->closure, CH_RELEASE_COLLECT));
		CHECK(ch_ffi_closure_release(s->closure, CH_RELEASE_COLLECT) == CH_E_STALE);
		s->closure.code = NULL;
	}
	if (s->place && s->calls % 64 == 1)
		collect(s->place->heap);
	give_int(result, s->sign * ((a > b) - (a < b)));
}

enum { WORDS = 1000 };

__attribute__((noinline)) static void sort_words(struct sorting *s)
{
	static int words[WORDS];
	comparison *by = (comparison *)(uintptr_t)s->closure.code;
	for (int i = 0; i < WORDS; i++)
		words[i] = i * 7919 % WORDS;
	qsort(words, WORDS, sizeof *words, by);
	for (int i = 0; i < WORDS; i++)
		CHECK(words[i] == (s->sign > 0 ? i : WORDS - 1 - i));
}

CASE(qsort_compares_by_a_closure)
{
	struct place place = place_open(0, 0, NULL);
	struct sorting up = {.sign = 1}, down = {.sign = -1};
	up.closure = closure_of(&place, &cif_compare, compare, &up, "up");
	down.closure = closure_of(&place, &cif_compare, compare, &down, "down");
	sort_words(&up);
	sort_words(&down);
	CHECK(up.calls > WORDS && down.calls > WORDS);
	OK(ch_ffi_closure_release(up.closure, CH_RELEASE_NOT_RUNNING));
	OK(ch_ffi_closure_release(down.closure, CH_RELEASE_COLLECT));
	place_close(&place);
}

/* A function apart: the words of its frame, which would hold code, are gone before the count. */
__attribute__((noinline)) static void sort_and_release(const struct place *place)
{
	struct sorting s = {.sign = 1, .place = place};
	s.closure = closure_of(place, &cif_compare, compare, &s, "releases itself");
	sort_words(&s);
	CHECK(s.calls > WORDS && !s.closure.code);
}

/* The comparison releases its closure at the first call; qsort calls the address hundreds of times
 * more, with collections between the calls. */
CASE(closure_that_releases_itself_serves_qsort_to_its_end)
{
	struct place place = place_open(0, 0, NULL);
	sort_and_release(&place);
	collect(place.heap);
	CHECK(stats_of(place.heap).blocks_now == 0);
	place_close(&place);
}

/* --- arguments of all kinds --- */

struct pair {
	double x;
	int n;
};
struct large {
	long words[6];
};

static double sum_of(int a, double b, struct pair p, struct large l, float f, long long n1, long n2,
		     long n3, long n4, long n5, signed char last)
{
	double sum = a + b + p.x + p.n + f + (double)n1;
	for (int i = 0; i < 6; i++)
		sum += (double)l.words[i];
	return sum + (double)(n2 + n3 + n4 + n5) * 0.5 + last;
}

static void sum_in_closure(ffi_cif *cif, void *result, void **v, void *user)
{
	CHECK(cif->nargs == 11);
	double sum =
		sum_of(*(int *)v[0], *(double *)v[1], *(struct pair *)v[2], *(struct large *)v[3],
		       *(float *)v[4], *(long long *)v[5], *(long *)v[6], *(long *)v[7],
		       *(long *)v[8], *(long *)v[9], *(signed char *)v[10]);
	*(double *)result = sum + *(double *)user;
}

static void give_large(ffi_cif *cif, void *result, void **arguments, void *user)
{
	struct large *large = (struct large *)result;
	(void)cif;
	for (int i = 0; i < 6; i++)
		large->words[i] = *(long *)arguments[0] * i + *(long *)user;
}

CASE(closures_take_and_give_values_of_all_kinds)
{
	struct place place = place_open(0, 0, NULL);
	ffi_type *pair_parts[] = {&ffi_type_double, &ffi_type_sint, NULL};
	ffi_type *large_parts[] = {&ffi_type_slong,
				   &ffi_type_slong,
				   &ffi_type_slong,
				   &ffi_type_slong,
				   &ffi_type_slong,
				   &ffi_type_slong,
				   NULL};
	ffi_type pair = {.type = FFI_TYPE_STRUCT, .elements = pair_parts};
	ffi_type large = {.type = FFI_TYPE_STRUCT, .elements = large_parts};
	ffi_type *types[] = {&ffi_type_sint,  &ffi_type_double, &pair,           &large,
			     &ffi_type_float, &ffi_type_sint64, &ffi_type_slong, &ffi_type_slong,
			     &ffi_type_slong, &ffi_type_slong,  &ffi_type_schar};
	ffi_cif sums, gives;
	double more = 0.25;
	long seven = 7;
	OK(ffi_prep_cif(&sums, FFI_DEFAULT_ABI, 11, &ffi_type_double, types));
	OK(ffi_prep_cif(&gives, FFI_DEFAULT_ABI, 1, &large, &types[6]));
	struct ch_ffi_closure sum = closure_of(&place, &sums, sum_in_closure, &more, "sum");
	struct ch_ffi_closure give = closure_of(&place, &gives, give_large, &seven, "give");
	double (*summed)(int, double, struct pair, struct large, float, long long, long, long, long,
			 long, signed char);
	struct large (*given)(long);
	memcpy(&summed, &sum.code, sizeof summed);
	memcpy(&given, &give.code, sizeof given);
	for (int i = -50; i < 50; i++) {
		struct pair p = {i * 0.5, i};
		struct large l = given(i);
		for (int k = 0; k < 6; k++)
			CHECK(l.words[k] == (long)i * k + 7);
		CHECK(summed(i, i * 0.125, p, l, 1.5f, i, 2, i, 4, 5, (signed char)i) ==
		      sum_of(i, i * 0.125, p, l, 1.5f, i, 2, i, 4, 5, (signed char)i) + more);
	}
	place_close(&place);
}

/* --- life --- */

static long freed_count;
static int three = 3;
static struct place of_churn;
static enum ch_release how_of_churn;

static void count_freed(void *user)
{
	CHECK(*(int *)user == 3);
	freed_count++;
}

static void *make_number(int number)
{
	(void)number;
	return closure_of(&of_churn, &cif_int_int, add_user, &three, "comes and goes").code;
}

static void call_and_release(void *code, int number)
{
	struct ch_ffi_closure closure = {code};
	CHECK(as_int_int(closure)(number) == number + 3);
	OK(ch_ffi_closure_release(closure, how_of_churn));
}

static void make_100000(enum ch_release how)
{
	of_churn = place_open(0, 0, count_freed);
	how_of_churn = how;
	freed_count = 0;
	churn(of_churn.heap, make_number, call_and_release);
	CHECK(freed_count >= 100000 - 8 && freed_count <= 100000);
	make_number(0); /* its user goes with the place */
	place_close(&of_churn);
	CHECK(freed_count == 100001);
}

CASE(hundred_thousand_closures_in_flat_memory_collected)
{
	make_100000(CH_RELEASE_COLLECT);
}

CASE(hundred_thousand_closures_in_flat_memory_released_at_once)
{
	make_100000(CH_RELEASE_NOT_RUNNING);
}

/* A closure's user goes with the closure, and not while the closure's function runs, although no
 * code of the C compiler has an address of the closure then. */
struct inside {
	const struct place *place;
	struct ch_ffi_closure closure;
	volatile int is_alive;
};

static void end_inside(void *user)
{
	((struct inside *)user)->is_alive = 0;
}

/* A function apart: its frame, which had the address, is gone after the return. */
__attribute__((noinline)) static void release_it(struct inside *in)
{
	OK(ch_ffi_closure_release(in->closure, CH_RELEASE_COLLECT));
	in->closure.code = NULL;
}

static void release_inside(ffi_cif *cif, void *result, void **arguments, void *user)
{
	struct inside *in = (struct inside *)user;
	(void)cif;
	release_it(in);
	for (int i = 0; i < 2; i++)
		collect(in->place->heap);
	CHECK(in->is_alive);
	give_int(result, *(int *)arguments[0] * 2);
}

/* The call overwrites the register that brings the address. */
__attribute__((noinline)) static int call_hidden(struct inside *in, int n)
{
	int result;
	void *code = in->closure.code;
	/* Past the red zone, and aligned. */
	__asm__ volatile("mov %%rsp, %%rbx\n\tsub $128, %%rsp\n\tand $-16, %%rsp\n\t"
			 "call *%%rax\n\tmov %%rbx, %%rsp"
			 : "+a"(code), "+D"(n)
			 :
			 : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc",
			   "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
	result = (int)(intptr_t)code;
	return result;
}

__attribute__((noinline)) static void create_it(struct inside *in)
{
	in->closure = closure_of(in->place, &cif_int_int, release_inside, in, "inside");
}

CASE(user_lives_until_the_function_returned)
{
	struct place place = place_open(0, 0, end_inside);
	for (int i = 0; i < 50; i++) {
		static struct inside in;
		in = (struct inside){.place = &place, .is_alive = 1};
		create_it(&in);
		scrub_stack();
		CHECK(call_hidden(&in, 21) == 42);
		collect(place.heap);
		CHECK(!in.is_alive && stats_of(place.heap).blocks_now == 0);
	}
	place_close(&place);
}

/* --- threads --- */

static _Atomic(bool) calls_begin, calls_end;
static struct ch_ffi_closure shared;

static void *call_shared(void *arg)
{
	const struct place *place = (const struct place *)arg;
	OK(ch_thread_attach(place->heap, NULL, NULL));
	for (int i = 0; !atomic_load(&calls_end); i++) {
		CHECK(as_int_int(shared)(i) == i + 3);
		atomic_store(&calls_begin, true);
	}
	OK(ch_thread_detach(place->heap));
	return NULL;
}

CASE(two_threads_call_while_closures_come_and_go)
{
	struct place place = place_open(0, 0, NULL);
	pthread_t thread;
	shared = closure_of(&place, &cif_int_int, add_user, &three, "shared");
	OK(pthread_create(&thread, NULL, call_shared, &place));
	while (!atomic_load(&calls_begin))
		ch_thread_poll();
	for (int i = 0; i < 20000; i++) {
		struct ch_ffi_closure other =
			closure_of(&place, &cif_int_int, add_user, &three, "other");
		CHECK(as_int_int(other)(i) == i + 3);
		OK(ch_ffi_closure_release(other, CH_RELEASE_COLLECT));
		if (i % 2000 == 0)
			OK(ch_heap_collect(place.heap));
	}
	atomic_store(&calls_end, true);
	OK(pthread_join(thread, NULL));
	CHECK(stats_of(place.heap).blocks_freed > 10000);
	place_close(&place);
}

/* --- the system --- */

CASE(closures_work_where_no_page_may_become_executable)
{
	deny_new_code();
	qsort_compares_by_a_closure();
	hundred_thousand_closures_in_flat_memory_collected();
	no_mapping_is_writable_and_executable();
}

CASE(child_of_fork_has_closures_of_its_own)
{
	struct place place = place_open(0, 0, NULL);
	int nine = 9, status;
	struct ch_ffi_closure closure =
		closure_of(&place, &cif_int_int, add_user, &three, "inherited");
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct ch_ffi_closure own =
			closure_of(&place, &cif_int_int, add_user, &nine, "of the child");
		CHECK(as_int_int(closure)(1) == 4 && as_int_int(own)(1) == 10);
		OK(ch_ffi_closure_release(closure, CH_RELEASE_NOT_RUNNING));
		collect(place.heap);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(as_int_int(closure)(1) == 4);
	place_close(&place);
}

CASE(full_pool_is_a_status_then_there_is_room)
{
	enum { MOST = 100000 };
	static struct ch_ffi_closure all[MOST];
	struct place place = place_open(MIB, 0, NULL);
	int n = 0;
	enum ch_status status;
	while ((status = ch_ffi_closure_create(place.ffi, &cif_int_int, add_user, &three, "fills",
					       &all[n])) == CH_OK)
		CHECK(++n < MOST);
	printf("%d closures in 1 MiB\n", n);
	CHECK(status == CH_E_FULL && !all[n].code && n > 5000);
	CHECK(stats_of(place.heap).blocks_now == (uint64_t)n);
	CHECK(!stats_of(place.heap).blocks_open_now);
	for (int i = 0; i < n; i += 2)
		OK(ch_ffi_closure_release(all[i], CH_RELEASE_COLLECT));
	all[n] = closure_of(&place, &cif_int_int, add_user, &three, "found room");
	for (int i = 1; i <= n; i += 2)
		CHECK(as_int_int(all[i])(i) == i + 3);
	ffi_cif bad = cif_int_int;
	bad.abi = FFI_LAST_ABI;
	CHECK(ch_ffi_closure_create(place.ffi, &bad, add_user, &three, "bad", &all[0]) == CH_E_ARG);
	CHECK(!strstr(ch_why(), "CH_E_ARG")); /* libffi's refusal has no sentence */
	CHECK(!all[0].code && !stats_of(place.heap).blocks_open_now);
	place_close(&place);
}

/* A plugin opens a place whenever it is loaded. */
CASE(places_come_and_go_without_end)
{
	struct place place = place_open(0, 0, NULL);
	struct ch_ffi *more[16];
	size_t used[2];
	for (int round = 0; round < 2; round++) {
		for (int n = 0; n < 16; n++)
			OK(ch_ffi_open(place.heap, NULL, &more[n]));
		for (int n = 0; n < 16; n++)
			ch_ffi_close(more[n]);
		used[round] = mallinfo2().uordblks;
	}
	CHECK(used[1] == used[0]);
	CHECK(as_int_int(closure_of(&place, &cif_int_int, add_user, &three, "first"))(1) == 4);
	place_close(&place);
}

CASE(place_that_may_not_collect_does_not)
{
	static const struct ch_ffi_options options = {.may_not_collect = true};
	struct place place = place_open(MIB, 0, NULL);
	ch_ffi_close(place.ffi);
	OK(ch_ffi_open(place.heap, &options, &place.ffi));
	struct ch_ffi_closure closure;
	enum ch_status status;
	while ((status = ch_ffi_closure_create(place.ffi, &cif_int_int, add_user, &three, "gone",
					       &closure)) == CH_OK)
		OK(ch_ffi_closure_release(closure, CH_RELEASE_COLLECT));
	CHECK(status == CH_E_FULL && !closure.code && stats_of(place.heap).cycles == 0);
	collect(place.heap);
	closure_of(&place, &cif_int_int, add_user, &three, "room");
	place_close(&place);
}

/* --- names --- */

__attribute__((noinline)) static void name_and_release(const struct place *place)
{
	char name[80];
	struct ch_ffi_closure a = closure_of(place, &cif_int_int, add_user, &three, "ffi goes");
	closure_of(place, &cif_int_int, add_user, &three, "ffi stays");
	ch_address_name(place->heap, a.code, false, name, sizeof name);
	CHECK(strstr(name, "ffi goes"));
	OK(ch_sink_flush(place->heap));
	CHECK(file_has(perf_map(), "ffi goes"));
	CHECK(file_has(perf_map(), "ffi stays"));
	OK(ch_ffi_closure_release(a, CH_RELEASE_COLLECT));
}

CASE(names_are_in_the_perf_map_until_the_closure_is_gone)
{
	struct place place = place_open(0, CH_SINK_UNWIND | CH_SINK_PERF_MAP, NULL);
	name_and_release(&place);
	collect(place.heap);
	OK(ch_sink_flush(place.heap));
	CHECK(!file_has(perf_map(), "ffi goes"));
	CHECK(file_has(perf_map(), "ffi stays"));
	place_close(&place);
	unlink(perf_map());
}

int main(int argc, char **argv)
{
	return run_cases(argc, argv);
}
