/* SPDX-License-Identifier: MIT
 * memory.c: the functions that a compiler calls at each access to memory with -fsanitize=thread, in
 * place of ThreadSanitizer's, and the threads that these functions switch between (memory.h).
 *
 * Each atomic has the stores of a run in their order. A thread has, for each atomic, the oldest
 * store that the thread may still read, and a vector clock: together the view of the thread. A
 * release store carries the view of the storing thread; an acquire load of the store takes the view
 * over. The store of a read-modify-write carries on the view that the read found. A seq_cst load
 * reads no store older than the last seq_cst store. A store that is not seq_cst may stay in the
 * core's buffer behind later loads, until another store, a read-modify-write or a membarrier. The
 * compiler may keep back a relaxed store until a fence of the compiler; no membarrier reaches such
 * a store. A store that reaches memory is the newest of its atomic; in this alone C11 allows more.
 *
 * length: threads, stores and the functions in place of the library's share all of their state. */
#define _GNU_SOURCE 1
#include "tests/orders/memory.h"

#include "os/meta.h"
#include "os/os.h"
#include "os/threads.h"

#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

/* The real functions behind the __wrap functions below: of the C library and of the gate. */
void *__real_memcpy(void *, const void *, size_t);
void *__real_memset(void *, int, size_t);
void *__real_ch__meta_alloc(struct ch__meta *, size_t);
void __real_ch__meta_free(struct ch__meta *, void *, size_t);
bool __real_ch__os_protect(void *, size_t, bool);
void __real_ch__os_futex_wait(_Atomic(uint32_t) *, uint32_t, uint64_t);
void __real_ch__os_futex_wake(_Atomic(uint32_t) *);
#define memcpy __real_memcpy
#define memset __real_memset

enum { THREADS = THREADS_MAX + 1 }; /* thread 0 makes and ends runs */
enum { PLACES = 4096, TABLE = 16384, STORES = 65536, VIEWS = 8192, CELLS = 1 << 15 };
enum { STACK_BYTES = 256 * 1024, STEPS_FAIR = 60000, STEPS_MOST = 400000 };
enum { LARGE_BYTES = 2048, SLEEP_STEPS = 800 };
enum order { RELAXED, CONSUME, ACQUIRE, RELEASE, ACQ_REL, SEQ_CST };

struct view {
	uint32_t clock[THREADS];
	uint16_t oldest[PLACES]; /* by place: the number of a store */
};
struct store {
	uint64_t value;
	struct view *carries; /* NULL: nothing */
	uint32_t next;        /* store of the place; 0: none */
};
struct place {
	uintptr_t address;
	uint32_t first, last, count; /* stores */
	uint16_t last_seq_cst;       /* the number of a store */
	uint8_t bytes;
};
/* Eight bytes: the last writer and the last readers of each byte, by plain and atomic accesses. */
struct cell {
	uintptr_t address;
	uint32_t run;
	uint8_t writer[8];
	uint32_t written[8];
	uint32_t read[8][THREADS];
	uint32_t atomic_write[8][THREADS], atomic_read[8][THREADS];
};
struct thread {
	ucontext_t context;
	struct view view;
	char *tls;
	void (*body)(void);
	bool is_done;
	bool has_kept; /* a store is not in memory yet: */
	bool is_in_core; /* in the core's buffer; else the compiler keeps the store back */
	enum order kept_order;
	uint32_t sleeps_until; /* step */
	bool is_behind;        /* reads the oldest stores allowed */
	uint32_t kept_place;
	uint64_t kept_value;
};

uint32_t order_serialized;
static struct thread threads[THREADS];
static struct place places[PLACES];
static uint32_t place_count, place_at[TABLE];
static struct store stores[STORES];
static uint32_t store_count;
static struct view views[VIEWS];
static uint32_t view_count;
static struct cell cells[CELLS];
static uint32_t cells_used;
/* Memory that was allocated in this run: the allocation counts as a write. */
static struct born {
	uintptr_t low;
	size_t bytes;
	uint32_t by, when;
} born[512];
static uint32_t born_count;
static uint32_t run, steps, self, thread_count, switch_in, stale_in;
static uint64_t random_state;
static bool is_simulating;
static const struct order_case *current;
static char *tls_low;
static size_t tls_bytes;
static char *stacks;

_Noreturn void order_failed(const char *format, ...)
{
	va_list arguments;
	is_simulating = false;
	printf("%s: run %u: ", current ? current->name : "-", run);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
	_exit(1);
}
/* A table is full, or a run does what this memory does not know: that proves nothing of orders. */
_Noreturn static void unable(const char *why)
{
	is_simulating = false;
	printf("%s: run %u: %s\n", current ? current->name : "-", run, why);
	fflush(stdout);
	_exit(3);
}

uint32_t order_chance(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 33) % n;
}

/* --- threads --- */

static void make_kept(struct thread *);

static void go_to(uint32_t next)
{
	uint32_t from = self;
	if (next == from)
		return;
	memcpy(threads[from].tls, tls_low, tls_bytes);
	memcpy(tls_low, threads[next].tls, tls_bytes);
	self = next;
	threads[next].is_behind = order_chance(4) == 0;
	swapcontext(&threads[from].context, &threads[next].context);
}

/* Chooses another thread at random: of the awake threads, or of all. Returns 0 for none. */
static uint32_t any_other(bool awake)
{
	uint32_t found = 0, seen = 0;
	for (uint32_t t = 1; t <= thread_count; t++)
		if (t != self && !threads[t].is_done &&
		    (!awake || threads[t].sleeps_until <= steps) && order_chance(++seen) == 0)
			found = t;
	return found;
}

/* Some threads come back soon, some when much has happened. */
static void leave(void)
{
	uint32_t next = any_other(true);
	if (!next)
		return;
	threads[self].sleeps_until = steps + (order_chance(4) ? 0 : order_chance(SLEEP_STEPS));
	go_to(next);
}

/* The threads that came to an address, in all runs. At an address of a single thread a change of
 * threads is rare. */
static uint8_t met[TABLE];

static void step(const volatile void *at)
{
	uint8_t *threads_here = &met[(uintptr_t)at * 0x9e3779b97f4a7c15u >> 40 & (TABLE - 1)];
	if (++steps > STEPS_MOST)
		order_failed("nobody comes on");
	*threads_here |= (uint8_t)(1u << self);
	if (!(*threads_here & (*threads_here - 1)) && order_chance(32))
		return;
	if (steps > STEPS_FAIR ? steps % 16 == 0 : order_chance(switch_in) == 0)
		leave();
}

void order_yield(void)
{
	if (!is_simulating)
		return;
	make_kept(&threads[self]);
	if (++steps > STEPS_MOST)
		order_failed("nobody comes on");
	uint32_t next = any_other(true);
	if (!next)
		next = any_other(false);
	if (next)
		go_to(next);
}

/* --- views --- */

static void join(struct view *to, const struct view *from, bool with_clock)
{
	for (uint32_t t = 0; t < THREADS && with_clock; t++)
		if (from->clock[t] > to->clock[t])
			to->clock[t] = from->clock[t];
	for (uint32_t p = 0; p < place_count; p++)
		if (from->oldest[p] > to->oldest[p])
			to->oldest[p] = from->oldest[p];
}

static struct view *copy_of(const struct view *view)
{
	if (view_count == VIEWS)
		unable("too many views: a shorter case is needed");
	struct view *copy = &views[view_count++];
	memcpy(copy->clock, view->clock, sizeof copy->clock);
	memcpy(copy->oldest, view->oldest, place_count * sizeof copy->oldest[0]);
	memset(copy->oldest + place_count, 0, (PLACES - place_count) * sizeof copy->oldest[0]);
	return copy;
}

/* --- places and stores --- */

static uint64_t memory_at(uintptr_t address, uint32_t bytes)
{
	uint64_t value = 0;
	memcpy(&value, (const void *)address, bytes);
	return value;
}

static uint32_t add_store(struct place *place, uint64_t value, struct view *carries)
{
	if (store_count == STORES)
		unable("too many stores: a shorter case is needed");
	uint32_t index = store_count++;
	stores[index] = (struct store){value, carries, 0};
	if (place->count)
		stores[place->last].next = index;
	else
		place->first = index;
	place->last = index;
	return place->count++;
}

static uint32_t place_of(const volatile void *pointer, uint32_t bytes)
{
	uintptr_t address = (uintptr_t)pointer;
	uint32_t at = (uint32_t)(address * 0x9e3779b97f4a7c15u >> 40) % TABLE;
	while (place_at[at] && places[place_at[at] - 1].address != address)
		at = (at + 1) % TABLE;
	if (!place_at[at]) {
		if (place_count == PLACES)
			unable("too many atomics: a shorter case is needed");
		places[place_count] = (struct place){.address = address, .bytes = (uint8_t)bytes};
		for (uint32_t t = 0; t < THREADS; t++)
			threads[t].view.oldest[place_count] = 0;
		add_store(&places[place_count], memory_at(address, bytes), NULL);
		place_at[at] = ++place_count;
	}
	struct place *place = &places[place_at[at] - 1];
	/* The bytes were written by something that is not simulated. */
	uint64_t now = memory_at(address, place->bytes);
	if (stores[place->last].value != now)
		threads[self].view.oldest[place_at[at] - 1] = (uint16_t)add_store(place, now, NULL);
	return place_at[at] - 1;
}

static uint64_t read_store(struct thread *t, uint32_t p, uint32_t number, enum order order)
{
	struct store *store = &stores[places[p].first];
	for (uint32_t i = 0; i < number; i++)
		store = &stores[store->next];
	if (number > t->view.oldest[p])
		t->view.oldest[p] = (uint16_t)number;
	if (store->carries && order != RELAXED && order != RELEASE)
		join(&t->view, store->carries, true);
	return store->value;
}

static void put_store(struct thread *t, uint32_t p, uint64_t value, enum order order,
		      const struct view *read)
{
	struct place *place = &places[p];
	struct view *carries = NULL;
	t->view.clock[t - threads]++;
	memcpy((void *)place->address, &value, place->bytes);
	t->view.oldest[p] = (uint16_t)place->count;
	if (order >= RELEASE)
		carries = copy_of(&t->view);
	else if (read)
		carries = copy_of(read);
	if (carries && read && order >= RELEASE)
		join(carries, read, true);
	uint32_t number = add_store(place, value, carries);
	if (carries && order < RELEASE)
		carries->oldest[p] = (uint16_t)number;
	if (order == SEQ_CST)
		place->last_seq_cst = (uint16_t)number;
}

static void make_kept(struct thread *t)
{
	if (!t->has_kept)
		return;
	t->has_kept = false;
	put_store(t, t->kept_place, t->kept_value, t->kept_order, NULL);
}

/* --- plain accesses --- */

/* The coroutines share a single errno, which in truth each thread has: so errno is not watched. */
static bool is_watched(uintptr_t address)
{
	return is_simulating && address - (uintptr_t)tls_low >= tls_bytes + 4096 &&
	       address - (uintptr_t)&errno >= sizeof errno &&
	       address - (uintptr_t)stacks >= (size_t)STACK_BYTES * THREADS;
}

static struct cell *cell_of(uintptr_t address)
{
	uintptr_t word = address & ~(uintptr_t)7;
	uint32_t at = (uint32_t)(word * 0x9e3779b97f4a7c15u >> 40) % CELLS;
	while (cells[at].run == run && cells[at].address != word)
		at = (at + 1) % CELLS;
	if (cells[at].run != run) {
		if (++cells_used > CELLS / 2)
			unable("too many bytes: a shorter case is needed");
		struct cell *cell = &cells[at];
		memset(cell, 0, sizeof *cell);
		cell->run = run;
		cell->address = word;
		for (uint32_t i = 0; i < born_count; i++)
			for (uint32_t b = 0; b < 8 && word - born[i].low < born[i].bytes; b++) {
				cell->writer[b] = (uint8_t)born[i].by;
				cell->written[b] = born[i].when;
			}
	}
	return &cells[at];
}

static void race(uintptr_t address, uint32_t other, const char *what, void *caller)
{
	order_failed("%s of %p by thread %u and thread %u, called at %p", what, (void *)address,
		     self, other, caller);
}

/* Notes bytes as written by this thread, whoever had the bytes before. */
static void note_born(uintptr_t low, size_t bytes)
{
	if (born_count == sizeof born / sizeof *born)
		unable("too much is allocated: a shorter case is needed");
	born[born_count++] = (struct born){low & ~(uintptr_t)7, bytes, self,
					   threads[self].view.clock[self] + 1};
}

static void look(uintptr_t address, size_t bytes, bool writes, bool is_atomic, void *caller)
{
	struct view *view = &threads[self].view;
	if (!is_watched(address))
		return;
	if (bytes >= LARGE_BYTES && writes)
		return note_born(address, bytes);
	for (size_t i = 0; i < bytes;) {
		struct cell *cell = cell_of(address + i);
		for (uint32_t b = (address + i) % 8; b < 8 && i < bytes; b++, i++) {
			uint32_t w = cell->writer[b];
			if (w != self && cell->written[b] > view->clock[w])
				race(address + i, w, "a plain write and an access", caller);
			for (uint32_t t = 0; t < THREADS; t++) {
				if (t == self)
					continue;
				if (writes && cell->read[b][t] > view->clock[t])
					race(address + i, t, "a plain read and a write", caller);
				if (!is_atomic && cell->atomic_write[b][t] > view->clock[t])
					race(address + i, t, "an atomic write and a plain access",
					     caller);
				if (!is_atomic && writes &&
				    cell->atomic_read[b][t] > view->clock[t])
					race(address + i, t, "an atomic read and a plain write",
					     caller);
			}
			uint32_t now = view->clock[self] + 1;
			if (is_atomic)
				(writes ? cell->atomic_write : cell->atomic_read)[b][self] = now;
			else if (writes)
				cell->writer[b] = (uint8_t)self, cell->written[b] = now;
			else
				cell->read[b][self] = now;
		}
	}
}
#define PLAIN(address, bytes, writes)                                                              \
	look((uintptr_t)(address), bytes, writes, false, __builtin_return_address(0))

/* --- atomic accesses --- */

static uint64_t load_atomic(const volatile void *at, uint32_t bytes, enum order order, void *caller)
{
	if (!is_watched((uintptr_t)at))
		return memory_at((uintptr_t)at, bytes);
	step(at);
	struct thread *t = &threads[self];
	uint32_t p = place_of(at, bytes);
	look((uintptr_t)at, bytes, false, true, caller);
	if (t->has_kept && t->kept_place == p)
		make_kept(t);
	uint32_t oldest = t->view.oldest[p], last = places[p].count - 1;
	if (order == SEQ_CST && places[p].last_seq_cst > oldest)
		oldest = places[p].last_seq_cst;
	if (order == SEQ_CST || order == RELAXED || order == ACQUIRE || order == CONSUME) {
		uint32_t number = last;
		if (last > oldest && steps <= STEPS_FAIR && t->is_behind)
			number = oldest;
		else if (last > oldest && steps <= STEPS_FAIR && order_chance(stale_in) == 0)
			number = oldest + order_chance(last - oldest + 1);
		uint64_t value = read_store(t, p, number, order);
		/* The load came before the kept store: another thread that runs here may notice. */
		if (t->has_kept && order_chance(2))
			leave();
		return value;
	}
	return read_store(t, p, last, order);
}

static void store_atomic(volatile void *at, uint32_t bytes, uint64_t value, enum order order,
			 void *caller)
{
	if (!is_watched((uintptr_t)at)) {
		memcpy((void *)(uintptr_t)at, &value, bytes);
		return;
	}
	step(at);
	struct thread *t = &threads[self];
	uint32_t p = place_of(at, bytes);
	look((uintptr_t)at, bytes, true, true, caller);
	make_kept(t);
	if (order != SEQ_CST && order_chance(order == RELAXED ? 4 : 8) == 0) {
		t->has_kept = true;
		t->is_in_core = order != RELAXED || order_chance(2);
		t->kept_order = order;
		t->kept_place = p;
		t->kept_value = value;
		return;
	}
	put_store(t, p, value, order, NULL);
}

enum change { EXCHANGE, ADD, SUB, AND, OR, XOR };

static uint64_t changed(uint64_t old, uint64_t by, enum change how)
{
	switch (how) {
	case ADD: return old + by;
	case SUB: return old - by;
	case AND: return old & by;
	case OR: return old | by;
	case XOR: return old ^ by;
	case EXCHANGE: break;
	}
	return by;
}

static uint64_t change_atomic(volatile void *at, uint32_t bytes, uint64_t by, enum change how,
			      enum order order, void *caller)
{
	uint64_t old;
	if (!is_watched((uintptr_t)at)) {
		old = memory_at((uintptr_t)at, bytes);
		by = changed(old, by, how);
		memcpy((void *)(uintptr_t)at, &by, bytes);
		return old;
	}
	step(at);
	struct thread *t = &threads[self];
	make_kept(t);
	uint32_t p = place_of(at, bytes);
	look((uintptr_t)at, bytes, true, true, caller);
	struct view *carried = stores[places[p].last].carries;
	old = read_store(t, p, places[p].count - 1, order);
	put_store(t, p, changed(old, by, how), order, carried);
	return old;
}

static bool replace_atomic(volatile void *at, uint32_t bytes, void *expected, uint64_t value,
			   enum order order, enum order failed, void *caller)
{
	uint64_t want = memory_at((uintptr_t)expected, bytes), old;
	if (!is_watched((uintptr_t)at)) {
		old = memory_at((uintptr_t)at, bytes);
		if (old == want)
			memcpy((void *)(uintptr_t)at, &value, bytes);
		else
			memcpy(expected, &old, bytes);
		return old == want;
	}
	step(at);
	struct thread *t = &threads[self];
	make_kept(t);
	uint32_t p = place_of(at, bytes);
	struct view *carried = stores[places[p].last].carries;
	bool is_equal = stores[places[p].last].value == want;
	look((uintptr_t)at, bytes, is_equal, true, caller);
	old = read_store(t, p, places[p].count - 1, is_equal ? order : failed);
	if (is_equal)
		put_store(t, p, value, order, carried);
	else
		memcpy(expected, &old, bytes);
	return is_equal;
}

/* Every thread passes a fence (membarrier). */
static void fence_all(void)
{
	static struct view all;
	if (!is_simulating)
		return;
	order_yield();
	memset(&all, 0, sizeof all);
	for (uint32_t t = 1; t <= thread_count; t++)
		if (threads[t].is_in_core)
			make_kept(&threads[t]);
	for (uint32_t t = 1; t <= thread_count; t++)
		join(&all, &threads[t].view, false);
	for (uint32_t t = 1; t <= thread_count; t++)
		join(&threads[t].view, &all, false);
	order_yield();
}

/* --- calls by the compiler --- */

void __tsan_init(void) {}
void __tsan_func_entry(void *pc) { (void)pc; }
void __tsan_func_exit(void) {}
#define PLAIN_ACCESS(n)                                                                            \
	void __tsan_read##n(void *at) { PLAIN(at, n, false); }                                     \
	void __tsan_write##n(void *at) { PLAIN(at, n, true); }                                     \
	void __tsan_unaligned_read##n(void *at) { PLAIN(at, n, false); }                           \
	void __tsan_unaligned_write##n(void *at) { PLAIN(at, n, true); }
PLAIN_ACCESS(1)
PLAIN_ACCESS(2)
PLAIN_ACCESS(4)
PLAIN_ACCESS(8)
PLAIN_ACCESS(16)
void __tsan_read_range(void *at, size_t bytes) { PLAIN(at, bytes, false); }
void __tsan_write_range(void *at, size_t bytes) { PLAIN(at, bytes, true); }
/* A fence of the compiler: the store that the compiler kept back is made. */
void __tsan_atomic_signal_fence(int order)
{
	(void)order;
	if (is_simulating && !threads[self].is_in_core)
		make_kept(&threads[self]);
}
void __tsan_atomic_thread_fence(int order)
{
	(void)order;
	unable("a fence: the library has none, and this memory does not know them");
}
#define HERE __builtin_return_address(0)
#define CHANGE(bits, name, how)                                                                    \
	uint##bits##_t __tsan_atomic##bits##_##name(volatile void *at, uint##bits##_t by, int o)   \
	{                                                                                          \
		return (uint##bits##_t)change_atomic(at, bits / 8, by, how, (enum order)o, HERE);  \
	}
#define REPLACE(bits, name)                                                                        \
	int __tsan_atomic##bits##_##name(volatile void *at, void *expected, uint##bits##_t value,  \
					 int o, int failed)                                        \
	{                                                                                          \
		return replace_atomic(at, bits / 8, expected, value, (enum order)o,                \
				      (enum order)failed, HERE);                                   \
	}
#define ATOMIC(bits)                                                                               \
	uint##bits##_t __tsan_atomic##bits##_load(const volatile void *at, int o)                  \
	{                                                                                          \
		return (uint##bits##_t)load_atomic(at, bits / 8, (enum order)o, HERE);             \
	}                                                                                          \
	void __tsan_atomic##bits##_store(volatile void *at, uint##bits##_t value, int o)           \
	{                                                                                          \
		store_atomic(at, bits / 8, value, (enum order)o, HERE);                            \
	}                                                                                          \
	CHANGE(bits, exchange, EXCHANGE)                                                           \
	CHANGE(bits, fetch_add, ADD)                                                               \
	CHANGE(bits, fetch_sub, SUB)                                                               \
	CHANGE(bits, fetch_and, AND)                                                               \
	CHANGE(bits, fetch_or, OR)                                                                 \
	CHANGE(bits, fetch_xor, XOR)                                                               \
	REPLACE(bits, compare_exchange_strong)                                                     \
	REPLACE(bits, compare_exchange_weak)
ATOMIC(8)
ATOMIC(16)
ATOMIC(32)
ATOMIC(64)

/* --- functions that the library's objects are linked with in place of the real functions --- */

static struct gone {
	struct ch__meta *meta;
	void *at;
	size_t bytes;
} gone[1024];
static uint32_t gone_count;

/* Calls of memcpy and memset that the compiler did not expand. */
void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
	PLAIN(from, bytes, false);
	PLAIN(to, bytes, true);
	return __real_memcpy(to, from, bytes);
}
void *__wrap_memset(void *to, int value, size_t bytes)
{
	PLAIN(to, bytes, true);
	return __real_memset(to, value, bytes);
}
/* Allocated bytes count as written. Freed bytes, too, and are not used again in the same run. */
void *__wrap_ch__meta_alloc(struct ch__meta *meta, size_t bytes)
{
	void *at = __real_ch__meta_alloc(meta, bytes);
	if (at && is_simulating)
		note_born((uintptr_t)at, bytes);
	return at;
}
bool __wrap_ch__os_protect(void *at, size_t bytes, bool is_writable)
{
	bool is_there = __real_ch__os_protect(at, bytes, is_writable);
	if (is_there && is_writable && is_simulating)
		note_born((uintptr_t)at, bytes);
	return is_there;
}
void __wrap_ch__meta_free(struct ch__meta *meta, void *at, size_t bytes)
{
	if (!is_simulating || !at) {
		__real_ch__meta_free(meta, at, bytes);
		return;
	}
	PLAIN(at, bytes, true);
	if (gone_count == sizeof gone / sizeof *gone)
		unable("too much is freed: a shorter case is needed");
	gone[gone_count++] = (struct gone){meta, at, bytes};
}
void __wrap_ch__os_futex_wait(_Atomic(uint32_t) *word, uint32_t value, uint64_t timeout_ns)
{
	if (is_simulating)
		order_yield();
	else
		__real_ch__os_futex_wait(word, value, timeout_ns);
}
void __wrap_ch__os_futex_wake(_Atomic(uint32_t) *word)
{
	if (is_simulating)
		make_kept(&threads[self]);
	else
		__real_ch__os_futex_wake(word);
}
/* No thread or timer of the system is started. */
bool __wrap_ch__os_thread_start(void *thread, void (*body)(void *), void *arg)
{
	(void)thread;
	(void)body;
	(void)arg;
	return true;
}
bool __wrap_ch__os_timer_start(void)
{
	return true;
}
void __wrap_ch__os_timer_stop(void)
{
}
/* Unmapped bytes count as written, like freed bytes. */
void __real_ch__os_unmap(void *, size_t);
void __wrap_ch__os_unmap(void *at, size_t bytes)
{
	if (is_simulating)
		PLAIN(at, bytes < LARGE_BYTES ? bytes : LARGE_BYTES - 1, true);
	else
		__real_ch__os_unmap(at, bytes);
}
/* A case itself calls the handlers of SIGPROF and SIGUSR1. */
void (*order_profile_handler)(int, void *, void *);
void *order_profile_tag;
void (*order_stop_handler)(int, void *, void *);
bool __real_ch__os_signal_install(int, void (*)(int, void *, void *), void *old, int manner);
bool __wrap_ch__os_signal_install(int signal, void (*handler)(int, void *, void *), void *old,
				  int manner)
{
	if (signal != SIGPROF && signal != SIGUSR1)
		return __real_ch__os_signal_install(signal, handler, old, manner);
	*(signal == SIGPROF ? &order_profile_handler : &order_stop_handler) = handler;
	return true;
}
enum ch__os_sender __wrap_ch__os_signal_sender(const void *info, const void *tag)
{
	(void)info;
	(void)tag;
	return CH__OS_SENDER_TAGGED;
}
bool __wrap_ch__os_thread_signal(int thread_id, int signal, const void *tag)
{
	(void)thread_id;
	(void)signal;
	(void)tag;
	return true;
}
bool __wrap_ch__os_timer_expired(const void *info, void **value, uint32_t *times)
{
	(void)info;
	*value = order_profile_tag;
	*times = 1;
	return true;
}
/* The coroutines share one thread pointer: locks take the address of the thread's record. */
uintptr_t __real_ch__lock_self(void);
uintptr_t __wrap_ch__lock_self(void)
{
	return is_simulating ? (uintptr_t)&threads[self] : __real_ch__lock_self();
}
void __wrap_ch__arch_serialize(void)
{
	order_serialized++;
}
bool __wrap_ch__os_membarrier_fence(void)
{
	fence_all();
	return true;
}
bool __wrap_ch__os_membarrier_core_sync(void)
{
	fence_all();
	return true;
}

/* --- runs --- */

uint32_t order_self(void)
{
	return self;
}

void order_stack(uint32_t thread, const void **low, const void **high)
{
	*low = stacks + (size_t)thread * STACK_BYTES;
	*high = stacks + (size_t)(thread + 1) * STACK_BYTES;
}

void order_as(uint32_t thread, void (*act)(void))
{
	memcpy(threads[0].tls, tls_low, tls_bytes);
	memcpy(tls_low, threads[thread].tls, tls_bytes);
	self = thread;
	act();
	self = 0;
	memcpy(threads[thread].tls, tls_low, tls_bytes);
	memcpy(tls_low, threads[0].tls, tls_bytes);
}

static void body_of_thread(void)
{
	threads[self].body();
	make_kept(&threads[self]);
	threads[self].is_done = true;
	go_to(any_other(false)); /* 0, the maker of the run, when all are done */
	abort();
}

static void begin_run(void)
{
	memset(place_at, 0, sizeof place_at);
	place_count = 0;
	store_count = view_count = cells_used = born_count = steps = 0;
	random_state = (uint64_t)run * 0x9e3779b97f4a7c15u + 88172645463325252u;
	for (int i = 0; i < 4; i++)
		(void)order_chance(2);
	switch_in = 1u << order_chance(6);
	stale_in = 1u << order_chance(4);
	for (uint32_t t = 1; t <= thread_count; t++) {
		struct thread *thread = &threads[t];
		memset(&thread->view, 0, sizeof thread->view);
		thread->is_done = thread->has_kept = false;
		thread->sleeps_until = 0;
		getcontext(&thread->context);
		thread->context.uc_stack.ss_sp = stacks + (size_t)t * STACK_BYTES;
		thread->context.uc_stack.ss_size = STACK_BYTES;
		thread->context.uc_link = NULL;
		makecontext(&thread->context, body_of_thread, 0);
	}
}

static int find_tls(struct dl_phdr_info *info, size_t size, void *context)
{
	(void)size;
	(void)context;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS && info->dlpi_tls_data) {
			tls_low = info->dlpi_tls_data;
			tls_bytes = info->dlpi_phdr[i].p_memsz;
		}
	return 1; /* the program itself comes first */
}

void order_run(const struct order_case *c)
{
	current = c;
	dl_iterate_phdr(find_tls, NULL);
	stacks = aligned_alloc(4096, (size_t)THREADS * STACK_BYTES);
	for (thread_count = 0; thread_count < THREADS_MAX && c->threads[thread_count];)
		thread_count++;
	for (uint32_t t = 0; t <= thread_count; t++) {
		threads[t].tls = malloc(tls_bytes);
		memcpy(threads[t].tls, tls_low, tls_bytes);
		threads[t].body = t ? c->threads[t - 1] : NULL;
	}
	if (c->make)
		c->make();
	for (run = 1; run <= c->runs; run++) {
		begin_run();
		if (c->begin)
			c->begin();
		is_simulating = true;
		go_to(1 + order_chance(thread_count));
		is_simulating = false;
		for (; gone_count; gone_count--) {
			const struct gone *g = &gone[gone_count - 1];
			__real_ch__meta_free(g->meta, g->at, g->bytes);
		}
		if (c->end)
			c->end();
	}
}
