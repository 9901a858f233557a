/* SPDX-License-Identifier: MIT
 * vm.h: one VM instance, one context per thread, the hooks of a code generator, and the interfaces
 * between the files of this folder. The only process-wide mutable state is the symbol table
 * (symbols.c), the collector's list of contexts (stacks.c), the code heap (jit.c) and its profile
 * (profile.c).
 */
#pragma once

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>

#include "bytecode.h"
#include "value.h"

struct fiber;
struct port;

enum run_mode { MODE_JIT, MODE_INTERP, MODE_ARENA };

struct vm_options {
	enum run_mode mode;
	int64_t pool_bytes, page_bytes; /* 0: the library's defaults */
	int64_t discard_every;          /* 0: never */
	int64_t gc_every_calls;         /* collect at every Nth interpreted call; 0: never */
	int64_t stack_bytes;            /* value stack of each thread; 0: 64 MiB */
	int gc_every_stub;
	int lines; /* code has source lines, with or without a reader */
	int trampolines; /* interpreted procedures run through named trampolines */
	const char *sinks;
	const char *load;    /* an image to begin with; NULL: begin with the prelude */
	const char *dump_ir; /* folder for listings of bytecode; NULL: no listings */
	const char *beside;  /* a file that other VMs of the process run; NULL: no other VM */
};

/* struct vm_hooks: the callbacks of a code generator. Each may be null. */
struct vm_hooks {
	void (*code_created)(struct context *ctx, struct code *code);
	/* At each LOOP instruction. Returns NULL to go on, or machine code that runs the activation
	 * to its end and returns the value (argc is 0 and means nothing). */
	machine_entry *(*loop_head)(struct context *ctx, value *fp, const struct insn *pc);
	/* Replaces interp_run; interp_activate calls this hook. */
	value (*run)(struct context *ctx, value *fp, const struct insn *pc);
	/* A bound cell has got another value (called after the store). */
	void (*cell_changed)(struct context *ctx, struct cell *cell);
	/* Returns NULL, or why the thread cannot run; then thread_ended is not called. */
	const char *(*thread_started)(struct context *ctx);
	void (*thread_ended)(struct context *ctx);
	int (*fiber_created)(struct context *ctx, struct fiber *fiber); /* 0: no memory */
	void (*fiber_suspending)(struct context *ctx, struct fiber *fiber, void *lowest_sp);
	void (*fiber_resumed)(struct context *ctx, struct fiber *fiber);
	void (*fiber_ended)(struct context *ctx, struct fiber *fiber);
	/* Called at LOOP and at procedure entry when ctx->interrupt is set. */
	void (*poll)(struct context *ctx);
};

/* struct stack_state: the state exchanged by a switch between fibers. */
struct catcher;
struct escape;
struct stack_state {
	value *fp;          /* innermost frame */
	value *arg_top;     /* end of arguments beyond the innermost frame, or NULL */
	value *stack_limit; /* no frame may end above */
	value *stack_base, *stack_end;
	char *c_limit; /* lowest address that C frames of the VM may reach */
	struct catcher *catcher;
	struct escape *escape; /* innermost live escape (control.h) */
	value handlers;        /* list of procedures, innermost first */
	value winders;         /* list of (before . after), innermost first */
};

enum fiber_state { FIBER_NEW, FIBER_RUNNING, FIBER_WAITING, FIBER_SUSPENDED, FIBER_DONE };

/* struct fiber: a C stack and a value stack. The first fiber of a thread has no mapping and no
 * thunk. [own thread; the collector reads it in the stopped world] */
struct fiber {
	uint64_t header;
	enum fiber_state state;
	int failed; /* ended by an error; the resumer raises the error again */
	struct fiber *resumer;
	struct fiber *home; /* first of the maker's thread; no later thread has its address */
	value thunk, transfer;
	struct stack_state saved;
	void *saved_sp;      /* of the suspended C stack */
	char *c_low, *c_high; /* bounds of the C stack */
	char *mapping;
	size_t mapping_bytes;
	struct fiber *next, *previous; /* list of the fibers with stacks of their own */
	uint64_t jit_words[2];
};

enum { FREE_LISTS = 9, GRANULE_BYTES = 16 };

/* struct context: one thread in one VM. Machine code keeps the address of the context in a register
 * and uses the first fields. [own thread; the collector in the stopped world] */
struct context {
	struct stack_state now;
	const struct insn *pc; /* pc of the running call of a primitive or slow path */
	machine_entry *tail_entry; /* with tail_fp and tail_argc: the target of V_TAIL */
	value *tail_fp;
	int64_t tail_argc;
	void *free_lists[FREE_LISTS]; /* cleared objects of n granules, linked by the first word */
	int64_t interpreted_calls;
	atomic_int interrupt;
	/* Machine code's check at entry: now.c_limit; above every stack while interrupt is set. */
	_Atomic(char *) entry_limit;
	struct vm *vm;
	struct fiber *fiber;
	struct fiber *main_fiber;
	struct context *next_context;
	value last_error; /* of vm_eval_string and friends */
	int exit_code;    /* -1 until (exit) was called */
	int is_alive;
	value thread; /* T_THREAD or #f */
	void *jit;
	uint64_t jit_words[4];
	int64_t gc_countdown;
};
#define FP(ctx) ((ctx)->now.fp)

struct catcher {
	jmp_buf target;
	struct stack_state state;
	struct context *outer; /* thread_context before */
	value error;
};

struct port {
	uint64_t header;
	int fd; /* -1: string port */
	int is_output, is_open;
	int64_t position, length, capacity; /* of the buffer; reading: position <= length */
	char *bytes;
	int64_t line;
	value name;
	int lost; /* the error by which output was lost, or 0 */
	struct port *next_file;
};

struct vm {
	struct vm_options options;
	struct vm_hooks hooks;
	struct cell **cells; /* by symbol [lock] */
	int64_t cell_count, cell_capacity;
	pthread_mutex_t lock;
	pthread_mutex_t out_lock;
	struct context *main;
	struct port *input, *output, *error_output;
	struct port *standard[3]; /* the first input, output, error_output */
	struct port *files; /* output files that may be open [out_lock] */
	value load_file; /* file name for the code being compiled */
	_Atomic int64_t interpreted_calls_ended; /* sum over ended threads */
	_Atomic int64_t threads_running;
	_Atomic int64_t gensyms;
	void *jit;
	value traced_returns; /* newest first [lock] */
	value memory_error;   /* condition for an error without memory for a new condition */
};

/* The head of a built-in: its arguments are args[0] to args[argc - 1]. */
#define PRIM(name) \
	static value name(__attribute__((unused)) struct context *ctx, \
			  __attribute__((unused)) value *args, \
			  __attribute__((unused)) int64_t argc)

/* A built-in that tests its argument v. */
#define PREDICATE(name, test) \
	PRIM(name) \
	{ \
		value v = args[0]; \
		return make_bool(test); \
	}

struct prim_def {
	const char *name;
	value (*run)(struct context *ctx, value *args, int64_t argc);
	int16_t min_args, max_args;
};

/* ---- vm.c: for main, the tests and stress ---- */
struct vm *vm_create(const struct vm_options *options);
void vm_destroy(struct vm *vm);
/* Print errors as file:line: message to the error port. 0 done, 1 error, 2 (exit) called. */
int vm_run_file(struct context *ctx, const char *path);
int vm_run_text(struct context *ctx, const char *text, size_t bytes, const char *name);
/* Returns the value of the last form, or V_NONE with ctx->last_error set. Prints nothing. */
value vm_eval_string(struct context *ctx, const char *text, const char *name);
void vm_report_error(struct context *ctx, value error);
/* Prints a value and a newline, nothing if unspecified. 0: failed and reported. */
int vm_print(struct context *ctx, value v);
void vm_capture_output(struct vm *vm);
const char *vm_captured(struct vm *vm, size_t *bytes);
void vm_flush(struct vm *vm);
int64_t vm_interpreted_calls(struct vm *vm);
void vm_enable_hooks(struct vm *vm, const struct vm_hooks *hooks);
value load_port(struct context *ctx, struct port *port, int may_prescan);

/* ---- stacks.c ---- */
void stacks_init(void);
struct context *context_create(struct vm *vm);
void context_destroy(struct context *ctx);

/* ---- symbols.c ---- */
void symbols_start(void);
value intern(const char *name);
value intern_string(struct string *name);
struct cell *cell_of(struct context *ctx, value symbol);
void cell_set(struct context *ctx, struct cell *cell, value v);
void define_prims(struct context *ctx, const struct prim_def *defs, size_t count);
#define DEFINE_PRIMS(ctx, table) define_prims(ctx, table, sizeof(table) / sizeof((table)[0]))

/* ---- threads.c ---- */
value make_mutex(struct context *ctx);
int mutex_is_free(value mutex);

/* ---- alloc.c: raises an error without memory, so callers hold no lock of this folder ---- */
void *new_scanned(size_t bytes); /* cleared */
void *new_plain(size_t bytes);   /* not scanned, not cleared */
void *grow_scanned(void *block, size_t bytes);
int memory_begin_grace(void); /* returns 0 if already begun */
void memory_start(void);
void memory_limit(void);
void *alloc_slow(struct context *ctx, size_t granules);
void *alloc_bytes(struct context *ctx, uint64_t type, size_t bytes);  /* scanned */
void *alloc_atomic(struct context *ctx, uint64_t type, size_t bytes); /* not scanned */
value make_flonum(double number);
value make_vector(struct context *ctx, int64_t length, value fill);
value make_string(struct context *ctx, int64_t length, uint32_t fill);
value string_from(struct context *ctx, const char *utf8);
value string_from_bytes(struct context *ctx, const char *utf8, size_t bytes);
char *string_to_utf8(value string, size_t *bytes);
struct bytes *make_bytes(struct context *ctx, int64_t length); /* not cleared */
size_t encode_utf8(uint32_t c, char text[4]); /* returns the count of bytes */
/* decode_utf8: the code point that text begins with, and its bytes. A malformed byte stands for
 * itself. */
size_t decode_utf8(const unsigned char *at, size_t left, uint32_t *out);
size_t string_utf8_room(const struct string *s);
size_t string_write_utf8(const struct string *s, char *out); /* returns the length, without the 0 */
value make_values(struct context *ctx, int64_t count, const value *items);
value make_list(struct context *ctx, int64_t count, const value *items);

/* alloc_small: returns a cleared object of so many granules; the header is not yet written. */
static inline void *alloc_small(struct context *ctx, size_t granules)
{
	void *object = ctx->free_lists[granules];
	if (__builtin_expect(object == NULL, 0))
		return alloc_slow(ctx, granules);
	ctx->free_lists[granules] = *(void **)object;
	return object;
}

static inline value cons(struct context *ctx, value car, value cdr)
{
	struct pair *pair = alloc_small(ctx, 2);
	pair->header = T_PAIR;
	pair->car = car;
	pair->cdr = cdr;
	return (value)pair;
}

/* ---- errors.c ---- */
/* The context with the innermost catcher of this thread; NULL: there is no catcher. */
extern _Thread_local struct context *thread_context;
struct condition *condition_new(struct context *ctx, const char *kind, value message,
				value irritants); /* of no place */
_Noreturn void raise_here(struct context *ctx, struct condition *c); /* with this place */
_Noreturn void raise_error(struct context *ctx, const char *kind, const char *message,
			   int64_t irritant_count, ...);
_Noreturn void raise_type(struct context *ctx, const char *who, const char *wanted, value got);
_Noreturn void raise_range(struct context *ctx, const char *who, value index);
_Noreturn void raise_unbound(struct context *ctx, struct cell *cell);
_Noreturn void raise_value(struct context *ctx, value object);
_Noreturn void raise_stack(struct context *ctx);
_Noreturn void raise_memory(struct context *ctx);
_Noreturn void throw_to(struct context *ctx, struct catcher *catcher, value error);
void catcher_enter(struct context *ctx, struct catcher *catcher);
void catcher_leave(struct context *ctx, struct catcher *catcher);
void unwind_to(struct context *ctx, value winders);

static inline void check_c_stack(struct context *ctx)
{
	if ((char *)__builtin_frame_address(0) < ctx->now.c_limit)
		raise_stack(ctx);
}

/* ---- arguments.c ---- */
_Noreturn void raise_other_type(struct context *ctx, const char *who, enum type type, value got);
static inline value object_arg(struct context *ctx, const char *who, enum type type, value v)
{
	if (!is_type(v, type))
		raise_other_type(ctx, who, type, v);
	return v;
}
static inline struct string *string_arg(struct context *ctx, const char *who, value v)
{
	return AS(string, object_arg(ctx, who, T_STRING, v));
}
static inline struct bytes *bytes_arg(struct context *ctx, const char *who, value v)
{
	return AS(bytes, object_arg(ctx, who, T_BYTES, v));
}
/* For the system, in whose texts a zero byte is the end: a string without one. */
const char *text_arg(struct context *ctx, const char *who, const char *wanted, value v);
int64_t index_arg(struct context *ctx, const char *who, value v, int64_t most); /* from 0 on */
/* Optional start and end from args[at] on. */
void range_args(struct context *ctx, const char *who, value *args, int64_t argc, int64_t at,
		int64_t length, int64_t *start, int64_t *end);

/* ---- apply.c ---- */
value apply(struct context *ctx, value procedure, int64_t argc, const value *args);

/* ---- numbers.c ---- */
value number_add(struct context *ctx, value a, value b);
value number_add_constant(struct context *ctx, value a, value b);
value number_sub(struct context *ctx, value a, value b);
value number_mul(struct context *ctx, value a, value b);
value number_div(struct context *ctx, value a, value b);
value number_quotient(struct context *ctx, value a, value b);
value number_remainder(struct context *ctx, value a, value b);
value number_modulo(struct context *ctx, value a, value b);
int number_less(struct context *ctx, value a, value b);
int number_less_equal(struct context *ctx, value a, value b);
int number_equal(struct context *ctx, value a, value b);
value make_integer(double number); /* fixnum when it fits, flonum otherwise */
value parse_number(const char *text, int radix); /* V_FALSE: not a number */
void format_number(value number, int radix, char *out, size_t bytes);

/* ---- equality, lists ---- */
int is_eqv(value a, value b);
int is_equal(struct context *ctx, value a, value b);
int64_t list_length(value list); /* -1 when improper or circular */
/* The next item of a list of which the rest is at *at; an error when there is none. */
value next_of(struct context *ctx, const char *who, value list, value *at);

/* ---- ports.c, reader.c, printer.c ---- */
struct port *port_open_fd(int fd, int is_output);
struct port *port_open_string(const char *bytes, int64_t length);
struct port *port_open_buffer(void);
int port_read_byte(struct context *ctx, struct port *port);
int port_peek_byte(struct context *ctx, struct port *port);
int64_t port_read_char(struct context *ctx, struct port *port, int peek); /* -1 at the end */
void port_write_bytes(struct port *port, const char *bytes, size_t count);
void port_append(struct context *ctx, struct port *port, const char *bytes, size_t count);
void port_write_char(struct port *port, uint32_t c);
void port_flush(struct port *port);
/* port_shut: gives the descriptor back, unless it is a standard stream. */
void port_shut(struct port *port);
void port_puts(struct port *port, const char *text);
value read_datum(struct context *ctx, struct port *port, value positions);
void write_value(struct context *ctx, struct port *port, value v, int is_display);

/* ---- expand.c, codegen.c ---- */
value compile_toplevel(struct context *ctx, value form, value positions); /* a thunk */
int64_t position_of(value positions, value datum);
value make_positions(struct context *ctx);
void note_position(struct context *ctx, value positions, value datum, int64_t line);

/* ---- registration, one per file ---- */
void init_numbers(struct context *ctx);
void init_lists(struct context *ctx);
void init_strings(struct context *ctx);
void init_chars(struct context *ctx);
void init_vectors(struct context *ctx);
void init_records(struct context *ctx);
void init_rows(struct context *ctx);
void init_ports(struct context *ctx);
void init_control(struct context *ctx);
void init_fibers(struct context *ctx);
void init_threads(struct context *ctx);
void init_system(struct context *ctx);
void init_jit_primitives(struct context *ctx);
void init_profiles(struct context *ctx);
extern const char prelude_source[];

/* Writes the parts of an error object, for the printer. */
void write_condition(struct context *ctx, struct port *port, value condition);
