/* SPDX-License-Identifier: MIT
 * stage.h: shared by the adversary tests: a small VM on any of the drivers, methods, fibers with
 * their own stacks. A method's code is `uint64_t code(void *arg)`, entered through the owner's cell
 * only, so that no frame of a test holds the code's address.
 *
 * A case that counts deaths builds code by stage_apart: the addresses that building left on a stack
 * are gone with the building thread. */
#pragma once

#include "codeheap/graph/block.h"
#include "tests/support/calls.h"
#include "tests/support/harness.h"
#include "tests/support/stage_code.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

enum stage_driver { STAGE_POLLS, STAGE_SIGNALS, STAGE_HOST, STAGE_BOEHM };
enum { STAGE_STOP_SIGNAL = SIGUSR2, STAGE_FALLBACK = 0xfa11, STAGE_OWNERS = 1 << 14 };

struct method;
struct stage {
	struct ch_heap *heap;
	struct ch_vm *vm; /* NULL: the case detached it */
	enum stage_driver driver;
	struct ch_config config;
	/* Called by the VM's callbacks; NULL: branch_hit fails the test, the others do nothing. */
	struct ch_block (*hit)(struct stage *, struct ch_branch, void *user, struct ch_regs *);
	uintptr_t (*ref)(struct stage *, uintptr_t word);
	void (*roots)(struct stage *, struct ch_marker *);
	void (*gone)(struct stage *, struct method *);
	bool counts_only; /* methods may be gone when the notice of their block comes */
	bool has_world;   /* a HOST's threads run beside a collection, and stop at stage_poll */
	void *user, *play;
	_Atomic(unsigned) hits, freed, wanted, space;
	/* Reached by the collector of the VM (HOST, BOEHM); a place is free when 0. */
	struct ch_owner owners[STAGE_OWNERS];
	pthread_mutex_t lock;
};

/* For hit: the branch stays unlinked, and the fallback answers. */
struct ch_block stage_no_target(struct stage *, struct ch_branch, void *user, struct ch_regs *);

/* Fills config with the run's page size; a case may change config before stage_start. */
struct stage *stage_new(enum stage_driver);
struct stage *stage_new_host(int stop_signal); /* ch_mark_begin stops the threads; 0: no signal */
void stage_start(struct stage *); /* attaches the calling thread */
/* Zeroed memory for a case, which is the stage's user and goes with the stage. stage_play is for a
 * struct that begins with its stage, and starts the stage. */
void *stage_memory(struct stage *, size_t bytes);
void *stage_play(struct stage *, size_t bytes);
void stage_check(struct stage *);
struct ch_stats stage_stats(struct stage *);
void stage_end(struct stage *); /* checks the heap first */

/* One full cycle and its whole sweep; notices are delivered. */
void stage_collect_now(struct stage *);
enum ch_status stage_try_collect_now(struct stage *);
/* Marks as a host does in a cycle: the reached owners, then stacks. */
void stage_mark(struct stage *, struct ch_marker *);
/* Overwrites words that earlier calls left below the caller's frame. The case itself must call: a
 * frame between would lie over such words. */
void stage_scrub(void);
/* Whether the processor checks the returns of the calling thread. */
bool stage_thread_has_shadow_stack(void);
#define stage_collect(s) (stage_scrub(), stage_collect_now(s))
#define stage_try_collect(s) (stage_scrub(), stage_try_collect_now(s))
/* Where a core may go on with fetched instructions, released memory is free only after a cycle. */
#define stage_settle(s) (CH_ARCH_FETCH_FOLLOWS ? (void)0 : stage_collect(s))

/* A filter of system calls, for every thread and for ever: refuses membarrier (EPERM, ENOSYS), or
 * only membarrier's core synchronization, while all other commands work. */
enum stage_refusal { STAGE_REFUSE_EPERM, STAGE_REFUSE_ENOSYS, STAGE_REFUSE_CORE_SYNC };
void stage_refuse_membarrier(enum stage_refusal);

/* ThreadSanitizer holds the stop signal back from a thread that waits for a thread that it stopped:
 * there a cycle may be given up, and soon. */
static inline bool stage_cycle_came(const struct stage *s, enum ch_status status)
{
	if (CH_TSAN && s->driver == STAGE_SIGNALS && status == CH_E_BUSY)
		return false;
	CHECK_EQ(status, CH_OK);
	return true;
}

/* Begins and ends a thread of the test's own making; the collector knows the thread, too. */
void stage_attach(struct stage *);
void stage_detach(struct stage *);
void stage_leave_collector(const struct stage *); /* the part of stage_detach for the collector */
/* The thread's alternate stack of signals: libgc, which scans from sp up, has to know the stack. */
void stage_signal_stack(struct stage *, void *at, size_t bytes);
/* With CODEHEAP_WX=procmem forks copy on write. */
enum ch_fork stage_fork_kind(void);
/* Runs fn on an attached thread of its own and joins the thread, parked. */
void stage_apart(struct stage *, void (*fn)(struct stage *, void *), void *arg);
struct stage_thread {
	struct stage *stage;
	void (*fn)(struct stage *, void *);
	void *arg;
	pthread_t thread;
};
void stage_spawn(struct stage *, struct stage_thread *, void (*fn)(struct stage *, void *),
		 void *arg);
void stage_join(struct stage_thread *);
/* Sleeps parked until the word has the value. */
void stage_wait(_Atomic(int) *word, int value);
void stage_sleep(unsigned ms);
void stage_pause(void);                /* some microseconds in which other threads run */
void stage_poll(const struct stage *); /* ch_thread_poll, and where a host's threads stop */

/* --- methods --- */

struct method {
	struct ch_owner owner;
	struct ch_block block;
	struct ch_branch branch[4];
	const void *const *cell;
	unsigned freed; /* notices for the method's block */
};

void method_new(struct stage *, struct method *, const char *name); /* without code */
void method_drop(struct stage *, struct method *); /* the VM has no more use for the method */
/* Room for 200 bytes and four branches; the method is the user word. */
void method_open(struct emitter *, struct method *);
void method_commit(struct emitter *, struct method *); /* and sets the entry */
void method_commit_only(struct emitter *, struct method *);
struct ch_branch method_jmp(struct emitter *, struct method *, unsigned n);
/* The code of the method returns a number; jumps through branch 0; calls through branch 0 and adds
 * 1; calls fn(arg) and returns the result, with a frame on the stack meanwhile. */
void method_constant(struct stage *, struct method *, const char *name, uint32_t value);
void method_jumper(struct stage *, struct method *, const char *name);
void method_callee(struct stage *, struct method *, const char *name);
void method_native(struct stage *, struct method *, const char *name, void *fn);
void method_link(struct method *, unsigned branch, const struct method *target);

/* Enters the cell's code: only the return address behind the call stays on the stack. */
uint64_t stage_enter(const void *const *cell, void *arg);
static inline uint64_t method_call(const struct method *m, void *arg)
{
	return stage_enter(m->cell, arg);
}
bool block_is_known(struct ch_block);
enum ch_block_state block_state(struct ch_block);
static inline bool method_is_known(const struct method *m)
{
	return block_is_known(m->block);
}
void method_invalidate(const struct method *);
/* Fills the pool to the last granule with newborn blocks. Returns how many there are. */
unsigned stage_fill(struct ch_owner);
bool method_has_fallback(const struct method *); /* the cell leads to stage_fallback */
extern const void *const stage_fallback;

/* --- fibers --- */

struct fiber {
	struct stage *stage;
	struct ch_fiber *handle;
	uint8_t *stack;
	uintptr_t sp, back;    /* saved sp of the fiber, and of the resumer */
	uintptr_t bottom_back; /* the end of the resumer's stack */
	void (*fn)(struct fiber *, void *);
	void *arg, *tsan, *tsan_back;
	bool is_done;
};

void fiber_start(struct stage *, struct fiber *, void (*fn)(struct fiber *, void *), void *arg);
void fiber_resume(struct fiber *); /* runs the fiber until a yield or the end */
void fiber_yield(struct fiber *);
/* The same; while away, the word at `held` lies below the sp that the library was told. */
void fiber_yield_holding(struct fiber *, const uintptr_t *held);
void fiber_end(struct fiber *);

/* stage_switch goes to the stack with sp `to` and stores its own sp at *from for a switch back.
 * stage_switch_holding keeps the word in a register that the switch saves below sp. stage_new_stack
 * returns the sp of a stack that runs fn(arg) at the first switch; fn never returns. */
void stage_switch(uintptr_t *from, uintptr_t to);
void stage_switch_holding(uintptr_t *from, uintptr_t to, const uintptr_t *word);
uintptr_t stage_new_stack(void *end, void (*fn)(void *), void *arg);
/* Loads the code that the cell leads to, calls fn(arg) and jumps to the code. Meanwhile only a
 * register that calls keep has the address: of floating point where calls keep such a register. */
uint64_t stage_call_holding(const void *const *cell, void (*fn)(void *), void *arg);

/* --- one case for several drivers --- */

/* Runs the body, and ends the stage behind it, unless the body did or said that it keeps the stage,
 * whose heap then lasts as long as the process. */
void stage_run(struct stage *, void (*body)(struct stage *));
void stage_keep(void);

#define STAGE_CASE(name, suffix, driver_, body)      \
	TEST(name##suffix)                           \
	{                                            \
		stage_run(stage_new(driver_), body); \
	}
/* A host whose ch_mark_begin stops the threads. */
#define STAGE_HOST_THAT_STOPS_CASE(name, signal_, body)   \
	TEST(name##_host_that_stops)                      \
	{                                                 \
		stage_run(stage_new_host(signal_), body); \
	}
#if CH_TEST_BDW
#define STAGE_BOEHM_CASE(name, body) STAGE_CASE(name, _boehm, STAGE_BOEHM, body)
#else
#define STAGE_BOEHM_CASE(name, body)
#endif
/* The library's own drivers: libgc does not collect in a thread whose sp is on a stack that libgc
 * does not know. */
#define OWN_DRIVER(name)                                       \
	static void body_##name(struct stage *);               \
	STAGE_CASE(name, _polls, STAGE_POLLS, body_##name)     \
	STAGE_CASE(name, _signals, STAGE_SIGNALS, body_##name) \
	STAGE_CASE(name, _host, STAGE_HOST, body_##name)       \
	static void body_##name(struct stage *stage)
/* Every driver. */
#define EVERY_DRIVER(name)                                     \
	static void body_##name(struct stage *);               \
	STAGE_BOEHM_CASE(name, body_##name)                    \
	OWN_DRIVER(name)
/* Drivers that stop running threads without the threads' help. ThreadSanitizer holds signals back
 * until the thread calls something, and cannot run these cases. */
#if CH_TSAN
#define STOPPING_DRIVER(name) __attribute__((unused)) static void body_##name(struct stage *stage)
#else
#define STOPPING_DRIVER(name)                                             \
	static void body_##name(struct stage *);                          \
	STAGE_CASE(name, _signals, STAGE_SIGNALS, body_##name)            \
	STAGE_HOST_THAT_STOPS_CASE(name, STAGE_STOP_SIGNAL, body_##name) \
	STAGE_BOEHM_CASE(name, body_##name)                               \
	static void body_##name(struct stage *stage)
#endif
/* Any thread may collect while other threads run, stage_poll and park; on a host as well. */
#define SHARED_DRIVER(name)                                    \
	static void body_##name(struct stage *);               \
	STAGE_CASE(name, _polls, STAGE_POLLS, body_##name)     \
	STAGE_CASE(name, _signals, STAGE_SIGNALS, body_##name) \
	TEST(name##_host)                                      \
	{                                                      \
		struct stage *stage_ = stage_new(STAGE_HOST);  \
		stage_->has_world = true;                      \
		stage_run(stage_, body_##name);                \
	}                                                      \
	STAGE_HOST_THAT_STOPS_CASE(name, 0, body_##name)       \
	STAGE_BOEHM_CASE(name, body_##name)                    \
	static void body_##name(struct stage *stage)
/* The same without a host, for cases in which a host has no part. */
#define THREADED_DRIVER(name)                                  \
	static void body_##name(struct stage *);               \
	STAGE_CASE(name, _polls, STAGE_POLLS, body_##name)     \
	STAGE_CASE(name, _signals, STAGE_SIGNALS, body_##name) \
	STAGE_BOEHM_CASE(name, body_##name)                    \
	static void body_##name(struct stage *stage)
