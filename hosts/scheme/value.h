/* SPDX-License-Identifier: MIT
 * value.h: the bits of a Scheme value and the types of heap objects. Knows no procedure of the VM.
 *
 *   fixnum     n << 1 | 1                63 bits, overflow goes to a flonum
 *   pointer    16-byte aligned           the first word of the object is exactly its type
 *   immediate  low bits 10               constants below, characters c << 8 | 0x0A
 *
 * A header holds the type and nothing else, so that a guard is one compare of one word.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef uint64_t value;

enum {
	V_FALSE = 0x02,
	V_TRUE = 0x12,
	V_NIL = 0x22,
	V_UNSPEC = 0x32,
	V_EOF = 0x42,
	V_UNDEF = 0x52, /* unbound cell or uninitialised letrec variable; no program holds this */
	V_TAIL = 0x62,  /* marker of frame.h: "jump to ctx->tail_entry at ctx->tail_fp" */
	V_NONE = 0x72,  /* no value: a hook declined, an absent argument */
	V_CHAR_TAG = 0x0A,
};

enum type {
	T_PAIR = 1,
	T_FLONUM,
	T_CLOSURE,
	T_PRIM,
	T_VECTOR,
	T_STRING,
	T_SYMBOL,
	T_BOX,
	T_CELL,
	T_CODE,
	T_RECORD,
	T_RTD,
	T_VALUES,
	T_ESCAPE,
	T_FIBER,
	T_THREAD,
	T_MUTEX,
	T_PORT,
	T_BYTES,
	T_TABLE,
	T_CONDITION,
};

struct context;
struct insn;
struct code;

struct pair {
	uint64_t header;
	value car, cdr;
};
struct flonum {
	uint64_t header;
	double number;
};
struct box {
	uint64_t header;
	value content;
};
struct vector { /* also T_VALUES */
	uint64_t header;
	int64_t length;
	value items[];
};
struct string { /* one code point per element: string-ref is O(1) for any text */
	uint64_t header;
	int64_t length;
	uint32_t chars[];
};
struct bytes {
	uint64_t header;
	int64_t length;
	uint8_t data[];
};
struct symbol {
	uint64_t header;
	struct string *name;
	uint64_t hash;
	uint64_t form; /* number of the special form of this name, or 0 (expand.c) */
};
struct closure {
	uint64_t header;
	struct code *code;
	value frees[];
};
struct prim {
	uint64_t header;
	value (*run)(struct context *ctx, value *args, int64_t argc);
	const char *name;
	int16_t min_args, max_args; /* max -1: any number */
	int32_t open_coding;        /* index + 1 into open_codings (ast.h), or 0 */
};
struct rtd {
	uint64_t header;
	value name;
	value fields; /* list of symbols */
	int64_t count;
};
struct condition { /* raised by `error` and by failing primitives */
	uint64_t header;
	value message; /* string */
	value irritants;
	value kind; /* symbol: error, type, range, stack, read, file */
	value file; /* string or #f */
	int64_t line;
};
struct record {
	uint64_t header;
	struct rtd *type;
	value fields[];
};

/* struct cell: one global variable of one VM. `assumption`, `version` and `jit` belong to the code
 * generator. cell_set (symbols.c) increments `version` when a bound cell gets another value. */
struct cell {
	uint64_t header;
	value content; /* V_UNDEF: unbound */
	struct symbol *name;
	uint64_t assumption;
	uint64_t version;
	void *jit;
	uint64_t is_builtin; /* content is a built-in that the compiler may open-code */
	struct cell *next;
};

_Static_assert(offsetof(struct pair, car) == 8 && offsetof(struct pair, cdr) == 16, "pair layout");
_Static_assert(offsetof(struct closure, code) == 8 && offsetof(struct closure, frees) == 16,
	       "closure layout");
_Static_assert(offsetof(struct vector, items) == 16, "vector layout");
_Static_assert(offsetof(struct cell, content) == 8, "cell layout");

#define FIXNUM_MAX (INT64_MAX >> 1)
#define FIXNUM_MIN (INT64_MIN >> 1)

static inline int is_fixnum(value v) { return (int)(v & 1); }
static inline int64_t fixnum_of(value v) { return (int64_t)v >> 1; }
static inline value make_fixnum(int64_t n) { return (uint64_t)n << 1 | 1; }
static inline int is_pointer(value v) { return (v & 3) == 0 && v != 0; }
static inline int is_type(value v, uint64_t type)
{
	return is_pointer(v) && *(uint64_t *)v == type;
}
static inline int is_char(value v) { return (v & 0xff) == V_CHAR_TAG; }
static inline uint32_t char_of(value v) { return (uint32_t)(v >> 8); }
static inline value make_char(uint32_t c) { return (value)c << 8 | V_CHAR_TAG; }
/* A surrogate is not a character: text contains no surrogate alone. */
static inline int is_surrogate(uint32_t c) { return c >= 0xd800 && c < 0xe000; }
static inline value make_bool(int b) { return b ? V_TRUE : V_FALSE; }
static inline int is_true(value v) { return v != V_FALSE; }
static inline int is_pair(value v) { return is_type(v, T_PAIR); }
static inline int is_symbol(value v) { return is_type(v, T_SYMBOL); }
static inline int is_flonum(value v) { return is_type(v, T_FLONUM); }

#define AS(kind, v) ((struct kind *)(v))
#define CAR(v) (AS(pair, v)->car)
#define CDR(v) (AS(pair, v)->cdr)
#define FLO(v) (AS(flonum, v)->number)

static inline int is_number(value v) { return is_fixnum(v) || is_flonum(v); }
static inline double double_of(value v) { return is_fixnum(v) ? (double)fixnum_of(v) : FLO(v); }
static inline int is_procedure(value v)
{
	return is_pointer(v) && (*(uint64_t *)v == T_CLOSURE || *(uint64_t *)v == T_PRIM ||
				 *(uint64_t *)v == T_ESCAPE);
}
