/* SPDX-License-Identifier: MIT
 * lists.c: pairs and lists, equality, symbols. Procedures that call procedures are in the prelude.
 */
#include "ast.h"

/* Returns what lies behind the last pair; of a circular list, one of its pairs. */
static value list_end(value list, int64_t *count)
{
	value slow = list;

	for (*count = 0; is_pair(list);) {
		list = CDR(list);
		if (++*count % 2 == 0) {
			slow = is_pair(slow) ? CDR(slow) : list; /* another thread may cut */
			if (slow == list)
				break;
		}
	}
	return list;
}

int64_t list_length(value list)
{
	int64_t count;

	return list_end(list, &count) == V_NIL ? count : -1;
}

/* Another thread may have shortened a list since its length was taken. */
value next_of(struct context *ctx, const char *who, value list, value *at)
{
	if (!is_pair(*at))
		raise_type(ctx, who, "list", list);
	value item = CAR(*at);
	*at = CDR(*at);
	return item;
}

int is_eqv(value a, value b)
{
	if (a == b)
		return 1;
	if (is_flonum(a) && is_flonum(b))
		return !memcmp(&FLO(a), &FLO(b), sizeof(double));
	return 0;
}

static int is_equal_steps(struct context *ctx, value a, value b, int64_t *steps)
{
	check_c_stack(ctx);
	for (;;) {
		if (is_eqv(a, b))
			return 1;
		if (!is_pointer(a) || !is_pointer(b) || *(uint64_t *)a != *(uint64_t *)b)
			return 0;
		if (++*steps > 200000000)
			raise_error(ctx, "stack", "equal?: structure too deep or circular", 0);
		switch (*(uint64_t *)a) {
		case T_PAIR:
			if (!is_equal_steps(ctx, CAR(a), CAR(b), steps))
				return 0;
			a = CDR(a);
			b = CDR(b);
			continue;
		case T_STRING:
			return AS(string, a)->length == AS(string, b)->length &&
			       !memcmp(AS(string, a)->chars, AS(string, b)->chars,
				       (size_t)AS(string, a)->length * 4);
		case T_BYTES:
			return AS(bytes, a)->length == AS(bytes, b)->length &&
			       !memcmp(AS(bytes, a)->data, AS(bytes, b)->data,
				       (size_t)AS(bytes, a)->length);
		case T_VECTOR:
			if (AS(vector, a)->length != AS(vector, b)->length)
				return 0;
			for (int64_t i = 0; i < AS(vector, a)->length; i++)
				if (!is_equal_steps(ctx, AS(vector, a)->items[i],
						    AS(vector, b)->items[i], steps))
					return 0;
			return 1;
		default:
			return 0;
		}
	}
}

int is_equal(struct context *ctx, value a, value b)
{
	int64_t steps = 0;
	return is_equal_steps(ctx, a, b, &steps);
}

static value check_pair(struct context *ctx, const char *who, value v)
{
	if (!is_pair(v))
		raise_type(ctx, who, "pair", v);
	return v;
}

PRIM(cons_of) { return cons(ctx, args[0], args[1]); }
PRIM(car_of) { return CAR(check_pair(ctx, "car", args[0])); }
PRIM(cdr_of) { return CDR(check_pair(ctx, "cdr", args[0])); }

#define PATH(name, path) \
	PRIM(name) \
	{ \
		value v = args[0]; \
		for (const char *at = path; *at; at++) { \
			check_pair(ctx, #name, v); \
			v = *at == 'a' ? CAR(v) : CDR(v); \
		} \
		return v; \
	}
PATH(caar, "aa") PATH(cadr, "da") PATH(cdar, "ad") PATH(cddr, "dd") PATH(caddr, "dda")
PATH(cdddr, "ddd") PATH(cadddr, "ddda") PATH(caadr, "daa") PATH(cdadr, "dad") PATH(cddar, "add")
PATH(cadar, "ada") PATH(caaar, "aaa") PATH(cdaar, "aad") PATH(caddar, "adda") PATH(cddddr, "dddd")

PRIM(set_car)
{
	CAR(check_pair(ctx, "set-car!", args[0])) = args[1];
	return V_UNSPEC;
}
PRIM(set_cdr)
{
	CDR(check_pair(ctx, "set-cdr!", args[0])) = args[1];
	return V_UNSPEC;
}

PREDICATE(pair_p, is_pair(v))
PREDICATE(null_p, v == V_NIL)
PREDICATE(list_p, list_length(v) >= 0)
PREDICATE(symbol_p, is_symbol(v))
PREDICATE(boolean_p, v == V_TRUE || v == V_FALSE)
PREDICATE(not_of, v == V_FALSE)
PREDICATE(unspecified_p, v == V_UNSPEC)
PRIM(eq_p) { return make_bool(args[0] == args[1]); }
PRIM(eqv_p) { return make_bool(is_eqv(args[0], args[1])); }
PRIM(equal_p) { return make_bool(is_equal(ctx, args[0], args[1])); }
PRIM(list_of) { return make_list(ctx, argc, args); }

PRIM(cons_star)
{
	value result = args[argc - 1];
	for (int64_t i = argc - 1; i-- > 0;)
		result = cons(ctx, args[i], result);
	return result;
}

PRIM(make_list_of)
{
	value result = V_NIL;
	if (!is_fixnum(args[0]) || fixnum_of(args[0]) < 0)
		raise_type(ctx, "make-list", "count", args[0]);
	for (int64_t i = fixnum_of(args[0]); i > 0; i--)
		result = cons(ctx, argc > 1 ? args[1] : V_UNSPEC, result);
	return result;
}

PRIM(length_of)
{
	int64_t length = list_length(args[0]);
	if (length < 0)
		raise_type(ctx, "length", "list", args[0]);
	return make_fixnum(length);
}

/* Copies the pairs of front, in front of back. */
static value copy_pairs(struct context *ctx, value front, value back)
{
	value first = back, last = V_NIL;

	for (; is_pair(front); front = CDR(front)) {
		value pair = cons(ctx, CAR(front), back);
		if (last == V_NIL)
			first = pair;
		else
			CDR(last) = pair;
		last = pair;
	}
	return first;
}

PRIM(append_of)
{
	value result = argc ? args[argc - 1] : V_NIL;
	for (int64_t i = argc - 1; i-- > 0;) {
		if (list_length(args[i]) < 0)
			raise_type(ctx, "append", "list", args[i]);
		result = copy_pairs(ctx, args[i], result);
	}
	return result;
}

PRIM(append_in_place)
{
	value result = argc ? args[argc - 1] : V_NIL;
	for (int64_t i = argc - 1; i-- > 0;) {
		value at = args[i];
		if (list_length(at) < 0)
			raise_type(ctx, "append!", "list", at);
		if (at == V_NIL)
			continue;
		while (is_pair(CDR(at)))
			at = CDR(at);
		CDR(at) = result;
		result = args[i];
	}
	return result;
}

PRIM(reverse_of)
{
	value result = V_NIL, at = args[0];
	if (list_length(at) < 0)
		raise_type(ctx, "reverse", "list", at);
	for (; is_pair(at); at = CDR(at))
		result = cons(ctx, CAR(at), result);
	return result;
}

static value tail(struct context *ctx, const char *who, value list, value index)
{
	if (!is_fixnum(index) || fixnum_of(index) < 0)
		raise_type(ctx, who, "index", index);
	for (int64_t i = fixnum_of(index); i > 0; i--) {
		if (!is_pair(list))
			raise_range(ctx, who, index);
		list = CDR(list);
	}
	return list;
}

PRIM(list_tail) { return tail(ctx, "list-tail", args[0], args[1]); }
PRIM(list_ref)
{
	value at = tail(ctx, "list-ref", args[0], args[1]);
	if (!is_pair(at))
		raise_range(ctx, "list-ref", args[1]);
	return CAR(at);
}

PRIM(list_copy)
{
	int64_t count;
	value end = list_end(args[0], &count);
	if (is_pair(end))
		raise_type(ctx, "list-copy", "list", args[0]);
	return copy_pairs(ctx, args[0], end);
}

PRIM(last_pair)
{
	value at = check_pair(ctx, "last-pair", args[0]);
	int64_t count;
	if (is_pair(list_end(at, &count)))
		raise_type(ctx, "last-pair", "list", at);
	while (is_pair(CDR(at)))
		at = CDR(at);
	return at;
}

#define SEARCH(name, who, test, item, result) \
	PRIM(name) \
	{ \
		value key = args[0]; \
		int64_t left = (int64_t)1 << 40; \
		for (value at = args[1]; at != V_NIL; at = CDR(at)) { \
			if (!is_pair(at) || left-- == 0) \
				raise_type(ctx, who, "list", args[1]); \
			value found = item; \
			if (test) \
				return result; \
		} \
		return V_FALSE; \
	}
#define KEY CAR(check_pair(ctx, "assoc", CAR(at)))
SEARCH(memq, "memq", found == key, CAR(at), at)
SEARCH(memv, "memv", is_eqv(found, key), CAR(at), at)
SEARCH(member, "member", is_equal(ctx, key, found), CAR(at), at)
SEARCH(assq, "assq", found == key, KEY, CAR(at))
SEARCH(assv, "assv", is_eqv(found, key), KEY, CAR(at))
SEARCH(assoc, "assoc", is_equal(ctx, key, found), KEY, CAR(at))

PRIM(symbol_to_string)
{
	value symbol = object_arg(ctx, "symbol->string", T_SYMBOL, args[0]);
	const struct string *name = AS(symbol, symbol)->name;
	value copy = make_string(ctx, name->length, 0);
	memcpy(AS(string, copy)->chars, name->chars, (size_t)name->length * 4);
	return copy;
}

PRIM(string_to_symbol)
{
	return intern_string(string_arg(ctx, "string->symbol", args[0]));
}

PRIM(gensym)
{
	char text[48];
	snprintf(text, sizeof text, " g%lld", (long long)ctx->vm->gensyms++);
	return intern(text);
}

#define ALL_SAME(name, who, test) \
	PRIM(name) \
	{ \
		int same = 1; \
		for (int64_t i = 0; i < argc; i++) { \
			if (!(test)) \
				raise_type(ctx, who, who, args[i]); \
			same &= args[i] == args[0]; \
		} \
		return make_bool(same); \
	}
ALL_SAME(symbol_same, "symbol", is_symbol(args[i]))
ALL_SAME(boolean_same, "boolean", args[i] == V_TRUE || args[i] == V_FALSE)

/* length: the table of the file's procedures. */
void init_lists(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"cons", cons_of, 2, 2},
		{"car", car_of, 1, 1},
		{"cdr", cdr_of, 1, 1},
		{"caar", caar, 1, 1},
		{"cadr", cadr, 1, 1},
		{"cdar", cdar, 1, 1},
		{"cddr", cddr, 1, 1},
		{"caddr", caddr, 1, 1},
		{"cdddr", cdddr, 1, 1},
		{"cadddr", cadddr, 1, 1},
		{"caadr", caadr, 1, 1},
		{"cdadr", cdadr, 1, 1},
		{"cddar", cddar, 1, 1},
		{"cadar", cadar, 1, 1},
		{"caaar", caaar, 1, 1},
		{"cdaar", cdaar, 1, 1},
		{"caddar", caddar, 1, 1},
		{"cddddr", cddddr, 1, 1},
		{"set-car!", set_car, 2, 2},
		{"set-cdr!", set_cdr, 2, 2},
		{"pair?", pair_p, 1, 1},
		{"null?", null_p, 1, 1},
		{"list?", list_p, 1, 1},
		{"symbol?", symbol_p, 1, 1},
		{"boolean?", boolean_p, 1, 1},
		{"not", not_of, 1, 1},
		{"unspecified?", unspecified_p, 1, 1},
		{"eq?", eq_p, 2, 2},
		{"eqv?", eqv_p, 2, 2},
		{"equal?", equal_p, 2, 2},
		{"list", list_of, 0, -1},
		{"cons*", cons_star, 1, -1},
		{"make-list", make_list_of, 1, 2},
		{"length", length_of, 1, 1},
		{"append", append_of, 0, -1},
		{"append!", append_in_place, 0, -1},
		{"reverse", reverse_of, 1, 1},
		{"reverse!", reverse_of, 1, 1},
		{"list-tail", list_tail, 2, 2},
		{"list-ref", list_ref, 2, 2},
		{"list-copy", list_copy, 1, 1},
		{"last-pair", last_pair, 1, 1},
		{"memq", memq, 2, 2},
		{"memv", memv, 2, 2},
		{"%member", member, 2, 2},
		{"assq", assq, 2, 2},
		{"assv", assv, 2, 2},
		{"%assoc", assoc, 2, 2},
		{"symbol->string", symbol_to_string, 1, 1},
		{"string->symbol", string_to_symbol, 1, 1},
		{"intern", string_to_symbol, 1, 1},
		{"gensym", gensym, 0, 1},
		{"generate-uninterned-symbol", gensym, 0, 1},
		{"symbol=?", symbol_same, 1, -1},
		{"boolean=?", boolean_same, 1, -1},
	};

	DEFINE_PRIMS(ctx, defs);
}
