/* SPDX-License-Identifier: MIT
 * host.h: shared by the files of the CPython extension. Each Python function runs through a
 * trampoline of its own: a block named after the function, entered through the cell of its owner.
 * One heap serves the process; each interpreter is a vm.
 *
 * Everything here is done by the thread that holds the interpreter lock (GIL), unless a comment
 * says otherwise: the lock guards all data of this extension, and stops the world. Only the holder
 * enters, leaves and looks for a trampoline. All other threads wait in C code, above evaluators
 * whose addresses CPython itself keeps (threads.c). */
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_BUILD_CORE
#include <Python.h>

#include <codeheap/codeheap.h>
#include <codeheap/profile.h>
#include <internal/pycore_frame.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#include <stdatomic.h>

#if PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030c0000
#error "this extension reads the frames of CPython 3.11, and of no other version"
#endif

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* How an interpreter runs its functions. FORWARD: through a hook that only forwards, the least cost
 * of any hook. KEPT: through trampolines that are never freed, as in CPython 3.12. */
enum mode { MODE_OFF, MODE_FORWARD, MODE_TRAMPOLINES, MODE_KEPT };

/* The record at a code object, in the interpreter's slot of the object's co_extra. */
struct method {
	const void *const *cell;
	struct ch_owner owner;
	struct ch_vm *vm;    /* the owner's; valid while the interpreter is there */
	bool is_kept;        /* never freed */
	struct method *next; /* the next waiting record */
	uint32_t hash;       /* of the name */
	uint32_t bytes;      /* of the name, without the 0 */
	char name[];
};

/* More die at once in a collection of Python's, whose threshold is 700 objects. */
enum { WAITING_LISTS = 256, WAITING_MOST = 2048 };

struct interpreter {
	PyInterpreterState *state;
	struct ch_vm *vm;
	Py_ssize_t slot; /* of co_extra */
	enum mode mode;
	bool is_over; /* the interpreter ends: nothing is made any more */
	bool reuses;  /* trampolines of dead functions wait for a function of the same name */
	uint32_t waiting_now;
	struct method *waiting[WAITING_LISTS]; /* by hash */
	struct interpreter *next;
};

/* --- process.c --- */

struct options {
	size_t pool_bytes;
	enum ch_backend backend;
	enum ch_fork fork;
	unsigned sinks;
	enum ch_dead_names dead_names;
	bool has_any; /* the caller named one: all must be those of the existing heap */
};

extern struct ch_heap *the_heap;
/* Owns the functions that all interpreters share: their code objects are part of the binary. */
extern struct ch_vm *the_shared_vm;

/* Returns true with a heap, else sets an exception. */
bool process_need_heap(const struct options *options);
struct ch_vm *process_vm_new(void *user);
/* Sets the exception of a status. Returns NULL. */
PyObject *process_raise(enum ch_status status, const char *what);

/* --- threads.c --- */

/* A new value makes each thread pass thread_serve before entering a trampoline. */
extern _Atomic(uint64_t) the_era;

struct thread {
	uint64_t era; /* the_era as it was when the thread was served last; 0 = never */
	bool is_attached;
	/* While a profile runs; a sample's handler reads both in the same thread. */
	const PyThreadState *inner; /* in which the thread runs; NULL: the thread's first state */
	const _PyCFrame *caller;    /* the evaluator that made the last call seen by the hook */
};
extern _Thread_local struct thread the_thread __attribute__((tls_model("initial-exec")));

static inline bool thread_is_served(void)
{
	return the_thread.era == atomic_load_explicit(&the_era, memory_order_relaxed);
}
/* Attaches the thread, and collects when asked. Returns false if the thread is not attached. */
bool thread_serve(void);
/* Around each call that makes or frees code. */
void thread_begin(void);
void thread_end(void);
/* One whole collection. */
enum ch_status thread_collect(void);
void threads_ask_collection(void);
/* The heap's callback: reports the return addresses of all threads. */
void threads_report(void *user, struct ch_marker *marker);
/* Learns how evaluators lie on a stack. Returns false with an exception. */
bool threads_learn(void);
/* From an evaluator's _PyCFrame up to its return address. */
extern size_t the_return_at;
/* Takes CPython's lock of the lists of interpreters and thread states. False = timeout. */
bool threads_lock_lists(void);
void threads_unlock_lists(void);

/* --- hook.c --- */

typedef PyObject *evaluator(PyThreadState *, struct _PyInterpreterFrame *, int);
evaluator hook_forward, hook_shared_slot, hook_own_slot;
/* The latter two while a profile runs. */
evaluator hook_sampled_shared_slot, hook_sampled_own_slot;
/* The slot that hook_shared_slot looks at; -1 until the first interpreter has one. */
extern Py_ssize_t the_shared_slot;
/* A collection is forced at every Nth call; 0 = never. */
extern uint64_t the_collect_every;
void hook_release(void *extra);
/* The record at a code object, made if missing. Returns NULL, with no exception set, on failure. */
const struct method *hook_method(struct interpreter *interpreter, PyCodeObject *code);

/* --- methods.c --- */

/* Makes an owner without code, between thread_begin and thread_end. NULL, no exception set. */
struct method *method_new(struct ch_vm *vm, const char *name, size_t bytes, const void *fallback);
/* Ends the record of a dead code object. The code is freed later: it may be on a stack. */
void method_end(struct method *method);
/* Takes a waiting record of the same name; NULL = none waits. */
struct method *method_wake(struct interpreter *interpreter, const char *name, size_t bytes);
bool method_wait(struct interpreter *interpreter, struct method *method);
void methods_end_waiting(struct interpreter *interpreter);
enum { METHOD_NAME_BYTES = 1024 };
/* "py::qualname:file", cut when too long; returns the length. */
size_t method_name(const PyCodeObject *code, char *name);

/* --- interpreters.c --- */

extern const char refused_other_hook[];
struct interpreter *interpreter_now(void);
struct interpreter *interpreter_of(const PyThreadState *thread);
bool interpreter_activate(enum mode mode, bool reuses);
/* Both store counts of blocks; a pointer may be NULL. Return false with an exception. */
bool interpreter_deactivate(size_t *freed, size_t *kept);
bool interpreter_discard(size_t *freed, size_t *kept);
void interpreter_end(void);
/* Gives each active interpreter the right hook after a change of the_profile_is_on. */
void interpreters_change_hooks(void);

/* --- profile.c --- */

extern bool the_profile_is_on;
/* Returns false with an exception. has_callers: functions that run already are shown, too. */
bool profile_start(unsigned rate, bool by_wall_clock, size_t memory_bytes, bool has_callers);
/* Returns true with an exception where samples are missing: what there is may be written. */
bool profile_stop(struct ch_profile_counts *counts);
bool profile_write(const char *path, unsigned flags, const char *title);
/* In a child of fork: the parent's profile does not go on. */
void profile_forget_of_parent(void);
/* Ends the profile that the interpreter started. */
void profile_end_of(const struct interpreter *interpreter);
