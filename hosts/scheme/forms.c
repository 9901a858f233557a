/* SPDX-License-Identifier: MIT
 * forms.c: derived forms, rewritten into core forms as data. Names inserted by a rewrite start with
 * a blank. No program can write such names, so local variables never shadow them.
 */
#include <stdarg.h>

#include "ast.h"
#include "profile.h"

/* Programs may be malformed anywhere: each step into a form is checked. */
#undef CAR
#undef CDR
#define CAR(v) (form_pair(e, v)->car)
#define CDR(v) (form_pair(e, v)->cdr)

static const char *const form_names[FORM_COUNT] = {
	NULL,
#define X(name, text) text,
#include "forms.def"
#undef X
};

void init_forms(void)
{
	/* Symbols without references die. */
	static struct symbol *kept[2 * FORM_COUNT];
	char text[64];

	for (size_t i = 1; i < FORM_COUNT; i++) {
		snprintf(text, sizeof text, " %s", form_names[i]);
		kept[2 * i] = AS(symbol, intern(form_names[i]));
		kept[2 * i + 1] = AS(symbol, intern(text));
		kept[2 * i]->form = kept[2 * i + 1]->form = i;
	}
}

value hygienic(const char *name)
{
	char text[64];

	snprintf(text, sizeof text, " %s", name);
	return intern(text);
}

static value fresh(struct expander *e, const char *name)
{
	char text[64];
	long long number = (long long)e->ctx->vm->gensyms++;

	snprintf(text, sizeof text, " %s %lld", name, number);
	return intern(text);
}

static value list(struct expander *e, int count, ...)
{
	value items[12];
	va_list rest;

	va_start(rest, count);
	for (int i = 0; i < count; i++)
		items[i] = va_arg(rest, value);
	va_end(rest);
	return make_list(e->ctx, count, items);
}

#define H hygienic
#define CONS(a, d) cons(e->ctx, a, d)
#define SECOND(form) CAR(CDR(form))
#define THIRD(form) CAR(CDR(CDR(form)))
#define BODY(form) CDR(CDR(form))

/* Gives the new form the line of its source form. */
static value at_line(struct expander *e, value from, value to)
{
	int64_t line = position_of(e->positions, from);

	if (line && is_pair(to))
		note_position(e->ctx, e->positions, to, line);
	return to;
}

static int is_word(value v, const char *word)
{
	return v == intern(word);
}

static value cond_clause(struct expander *e, value clause, value rest)
{
	form_length(e, clause, 1, -1);
	if (is_word(CAR(clause), "else"))
		return CONS(H("begin"), CDR(clause));
	if (CDR(clause) == V_NIL)
		return rest == V_NIL ? list(e, 2, H("or"), CAR(clause))
				     : list(e, 3, H("or"), CAR(clause), rest);
	value test = CAR(clause), then;
	if (is_word(SECOND(clause), "=>") && list_length(clause) == 3) {
		value name = fresh(e, "t");
		then = list(e, 2, THIRD(clause), name);
		value choice = rest == V_NIL ? list(e, 3, H("if"), name, then)
					     : list(e, 4, H("if"), name, then, rest);
		return list(e, 3, H("let"), list(e, 1, list(e, 2, name, test)), choice);
	}
	then = CONS(H("begin"), CDR(clause));
	return rest == V_NIL ? list(e, 3, H("if"), test, then)
			     : list(e, 4, H("if"), test, then, rest);
}

/* Goes from the last clause to the first: a long cond needs no C stack here. */
static value rewrite_cond_clauses(struct expander *e, value clauses, value otherwise)
{
	int64_t count = list_length(clauses);
	value result = otherwise;

	if (count < 0)
		raise_syntax(e, clauses, "bad clauses");
	struct vector *items = AS(vector, make_vector(e->ctx, count, V_NIL));
	for (int64_t i = 0; i < count; i++, clauses = CDR(clauses))
		items->items[i] = CAR(clauses);
	for (int64_t i = count; i-- > 0;)
		result = at_line(e, items->items[i], cond_clause(e, items->items[i], result));
	return result == V_NIL ? list(e, 1, H("begin")) : result;
}

static value reverse(struct expander *e, value items)
{
	value result = V_NIL;

	for (; items != V_NIL; items = CDR(items))
		result = CONS(CAR(items), result);
	return result;
}

static value case_test(struct expander *e, value key, value data)
{
	int64_t count = form_length(e, data, 0, -1);

	if (count > 12)
		return list(e, 3, H("memv"), key, list(e, 2, H("quote"), data));
	value tests = V_NIL;
	for (; is_pair(data); data = CDR(data))
		tests = CONS(list(e, 3, H("eqv?"), key, list(e, 2, H("quote"), CAR(data))), tests);
	return CONS(H("or"), tests);
}

static value rewrite_case(struct expander *e, value form)
{
	value key = fresh(e, "key"), clauses = V_NIL;

	form_length(e, form, 2, -1);
	for (value at = BODY(form); is_pair(at); at = CDR(at)) {
		value clause = CAR(at);
		form_length(e, clause, 2, -1);
		value body = CDR(clause);
		if (is_word(CAR(body), "=>") && list_length(body) == 2)
			body = list(e, 1, list(e, 2, SECOND(body), key));
		value test = is_word(CAR(clause), "else") ? CAR(clause)
							  : case_test(e, key, CAR(clause));
		clauses = CONS(at_line(e, clause, CONS(test, body)), clauses);
	}
	return list(e, 3, H("let"), list(e, 1, list(e, 2, key, SECOND(form))),
		    CONS(H("cond"), reverse(e, clauses)));
}

static value rewrite_do(struct expander *e, value form)
{
	value loop = fresh(e, "do"), bindings = V_NIL, steps = V_NIL;

	form_length(e, form, 3, -1);
	form_length(e, SECOND(form), 0, -1);
	form_length(e, THIRD(form), 1, -1);
	for (value at = SECOND(form); is_pair(at); at = CDR(at)) {
		value spec = CAR(at);
		int length = form_length(e, spec, 2, 3);
		bindings = CONS(list(e, 2, CAR(spec), SECOND(spec)), bindings);
		steps = CONS(length == 3 ? THIRD(spec) : CAR(spec), steps);
	}
	value again = CONS(loop, reverse(e, steps));
	value body = again, commands = CDR(BODY(form));
	if (commands != V_NIL)
		body = list(e, 3, H("begin"), CONS(H("begin"), commands), again);
	value result = CDR(THIRD(form)) == V_NIL ? list(e, 1, H("begin"))
						 : CONS(H("begin"), CDR(THIRD(form)));
	return list(e, 4, H("let"), loop, reverse(e, bindings),
		    list(e, 4, H("if"), CAR(THIRD(form)), result, body));
}

static value rewrite_let_star(struct expander *e, value form)
{
	form_length(e, form, 3, -1);
	value bindings = reverse(e, SECOND(form));
	value result = CONS(H("let"), CONS(V_NIL, BODY(form)));
	for (; is_pair(bindings); bindings = CDR(bindings))
		result = list(e, 3, H("let"), list(e, 1, CAR(bindings)), result);
	return result;
}

/* ---- quasiquotation ---- */

static value quasi(struct expander *e, value datum, int depth);

static value quasi_tagged(struct expander *e, const char *name, value datum, int depth)
{
	return list(e, 3, H("list"), list(e, 2, H("quote"), intern(name)),
		    quasi(e, SECOND(datum), depth));
}

static int is_tagged(value datum, const char *name)
{
	return is_pair(datum) && is_word(AS(pair, datum)->car, name) && list_length(datum) == 2;
}

static value quasi_pair(struct expander *e, value datum, int depth)
{
	value head = CAR(datum);

	if (is_tagged(head, "unquote-splicing") && depth == 1) {
		value tail = quasi(e, CDR(datum), depth);
		return list(e, 3, H("append"), SECOND(head), tail);
	}
	if (is_tagged(head, "unquote-splicing"))
		head = quasi_tagged(e, "unquote-splicing", head, depth - 1);
	else
		head = quasi(e, head, depth);
	return list(e, 3, H("cons"), head, quasi(e, CDR(datum), depth));
}

static value quasi(struct expander *e, value datum, int depth)
{
	check_c_stack(e->ctx);
	if (is_type(datum, T_VECTOR)) {
		struct vector *vector = AS(vector, datum);
		value items = make_list(e->ctx, vector->length, vector->items);
		return list(e, 2, H("list->vector"), quasi(e, items, depth));
	}
	if (!is_pair(datum))
		return list(e, 2, H("quote"), datum);
	if (is_tagged(datum, "unquote"))
		return depth == 1 ? SECOND(datum) : quasi_tagged(e, "unquote", datum, depth - 1);
	if (is_tagged(datum, "quasiquote"))
		return quasi_tagged(e, "quasiquote", datum, depth + 1);
	return quasi_pair(e, datum, depth);
}

/* ---- several values ---- */

static value lambda(struct expander *e, value params, value body)
{
	return CONS(H("lambda"), CONS(params, body));
}

static value receive(struct expander *e, value params, value expression, value body)
{
	if (is_pair(params) && CDR(params) == V_NIL)
		return CONS(H("let"), CONS(list(e, 1, list(e, 2, CAR(params), expression)), body));
	return list(e, 3, H("call-with-values"), lambda(e, V_NIL, list(e, 1, expression)),
		    lambda(e, params, body));
}

/* Returns the parameters with temporary names, and adds a (name temporary) for each to *pairs. */
static value renamed(struct expander *e, value params, value *pairs)
{
	check_c_stack(e->ctx);
	if (params == V_NIL)
		return params;
	value name = is_pair(params) ? CAR(params) : params, temporary = fresh(e, "v");
	*pairs = CONS(list(e, 2, name, temporary), *pairs);
	return is_pair(params) ? CONS(temporary, renamed(e, CDR(params), pairs)) : temporary;
}

/* No expression of let-values is in the scope of a name. */
static value rewrite_let_values(struct expander *e, value form, int is_sequence)
{
	form_length(e, form, 3, -1);
	value bindings = V_NIL, pairs = V_NIL, at = SECOND(form);
	for (is_sequence |= form_length(e, at, 0, -1) < 2; is_pair(at); at = CDR(at)) {
		form_length(e, CAR(at), 2, 2);
		value params = CAR(CAR(at));
		if (!is_sequence)
			params = renamed(e, params, &pairs);
		bindings = CONS(CONS(params, CDR(CAR(at))), bindings);
	}
	value result = CONS(H("let"), CONS(pairs, BODY(form)));
	for (; is_pair(bindings); bindings = CDR(bindings))
		result = receive(e, CAR(CAR(bindings)), SECOND(CAR(bindings)), list(e, 1, result));
	return result;
}

static value rewrite_define_values(struct expander *e, value form)
{
	form_length(e, form, 3, 3);
	value pairs = V_NIL, sets = V_NIL, params = renamed(e, SECOND(form), &pairs), all = V_NIL;
	for (value at = pairs; is_pair(at); at = CDR(at))
		sets = CONS(CONS(H("set!"), CAR(at)), sets);
	value assign = list(e, 3, H("call-with-values"), lambda(e, V_NIL, list(e, 1, THIRD(form))),
			    lambda(e, params, sets));
	all = list(e, 1, list(e, 3, H("define"), fresh(e, "unused"), assign));
	for (; is_pair(pairs); pairs = CDR(pairs))
		all = CONS(list(e, 3, H("define"), CAR(CAR(pairs)), V_FALSE), all);
	return CONS(H("begin"), all);
}

/* ---- records ---- */

static value field_definitions(struct expander *e, value type, value spec, int64_t index)
{
	value result = V_NIL, object = fresh(e, "record"), content = fresh(e, "content");
	value number = make_fixnum(index);

	if (!is_pair(spec) || CDR(spec) == V_NIL)
		return result;
	value get = list(e, 4, H("%record-ref"), object, type, number);
	result = CONS(list(e, 3, H("define"), CONS(SECOND(spec), list(e, 1, object)), get), result);
	if (list_length(spec) == 3) {
		value set = list(e, 5, H("%record-set!"), object, type, number, content);
		result = CONS(list(e, 3, H("define"),
				   CONS(THIRD(spec), list(e, 2, object, content)), set), result);
	}
	return result;
}

static value constructor(struct expander *e, value type, value spec, value fields)
{
	value args = V_NIL, name = is_pair(spec) ? CAR(spec) : spec;

	for (value at = reverse(e, fields); is_pair(at); at = CDR(at)) {
		value field = is_pair(CAR(at)) ? CAR(CAR(at)) : CAR(at), arg = V_FALSE;
		for (value p = is_pair(spec) ? CDR(spec) : V_NIL; is_pair(p); p = CDR(p))
			if (CAR(p) == field)
				arg = field;
		args = CONS(is_pair(spec) ? arg : field, args);
	}
	value params = is_pair(spec) ? CDR(spec) : args;
	return list(e, 3, H("define"), CONS(name, params), CONS(H("%record"), CONS(type, args)));
}

static value rewrite_define_record(struct expander *e, value form)
{
	form_length(e, form, 4, -1);
	value name = is_pair(SECOND(form)) ? CAR(SECOND(form)) : SECOND(form);
	value make = THIRD(form), rest = CDR(BODY(form)), predicate = CAR(rest);
	value fields = CDR(rest), names = V_NIL, result = V_NIL, object = fresh(e, "record");
	int64_t index = 0;

	for (value at = fields; is_pair(at); at = CDR(at), index++) {
		value spec = CAR(at);
		names = CONS(is_pair(spec) ? CAR(spec) : spec, names);
		for (value d = field_definitions(e, name, spec, index); is_pair(d); d = CDR(d))
			result = CONS(CAR(d), result);
	}
	if (is_true(predicate))
		result = CONS(list(e, 3, H("define"), list(e, 2, predicate, object),
				   list(e, 3, H("%record?"), object, name)), result);
	if (is_true(make))
		result = CONS(constructor(e, name, make, fields), result);
	value type = list(e, 3, H("%make-rtd"), list(e, 2, H("quote"), name),
			  list(e, 2, H("quote"), reverse(e, names)));
	result = CONS(list(e, 3, H("define"), name, type), result);
	return CONS(H("begin"), result);
}

/* ---- control ---- */

static value rewrite_guard(struct expander *e, value form)
{
	form_length(e, form, 3, -1);
	value name = CAR(SECOND(form)), clauses = CDR(SECOND(form)), escape = fresh(e, "k");
	value again = list(e, 2, H("raise-continuable"), name);
	value choice = rewrite_cond_clauses(e, clauses, again);
	value handler =
		lambda(e, list(e, 1, name),
		       list(e, 1, list(e, 2, escape, lambda(e, V_NIL, list(e, 1, choice)))));
	/* The body's values leave as a thunk too, so that the escape and the body end alike. */
	value result = fresh(e, "result");
	value body = list(e, 3, H("let"),
			  list(e, 1, list(e, 2, result, CONS(H("let"), CONS(V_NIL, BODY(form))))),
			  lambda(e, V_NIL, list(e, 1, result)));
	value inner = list(e, 3, H("with-exception-handler"), handler,
			   lambda(e, V_NIL, list(e, 1, body)));
	return list(e, 1,
		    list(e, 2, H("call/ec"), lambda(e, list(e, 1, escape), list(e, 1, inner))));
}

static value rewrite_case_lambda(struct expander *e, value form)
{
	value args = fresh(e, "args"), count = fresh(e, "count"), clauses = V_NIL;

	for (value at = CDR(form); is_pair(at); at = CDR(at)) {
		value params = CAR(CAR(at)), test;
		int64_t required = 0;
		for (; is_pair(params); params = CDR(params))
			required++;
		test = list(e, 3, params == V_NIL ? H("=") : H(">="), count, make_fixnum(required));
		clauses = CONS(list(e, 2, test, list(e, 3, H("apply"),
						     lambda(e, CAR(CAR(at)), CDR(CAR(at))), args)),
			       clauses);
	}
	value wrong = list(e, 2, H("error"), string_from(e->ctx, "no case-lambda clause fits"));
	clauses = CONS(list(e, 2, intern("else"), wrong), clauses);
	value choose = CONS(H("cond"), reverse(e, clauses));
	return lambda(
		e, args,
		list(e, 1,
		     list(e, 3, H("let"),
			  list(e, 1, list(e, 2, count, list(e, 2, H("length"), args))), choose)));
}

static value rewrite_parameterize(struct expander *e, value form)
{
	form_length(e, form, 3, -1);
	value pairs = V_NIL;
	for (value at = SECOND(form); is_pair(at); at = CDR(at)) {
		form_length(e, CAR(at), 2, 2);
		pairs = CONS(list(e, 3, H("cons"), CAR(CAR(at)), SECOND(CAR(at))), pairs);
	}
	return list(e, 3, H("%parameterize"), CONS(H("list"), reverse(e, pairs)),
		    lambda(e, V_NIL, BODY(form)));
}

static value rewrite_fluid_let(struct expander *e, value form)
{
	form_length(e, form, 3, -1);
	value bindings = V_NIL, in = V_NIL, out = V_NIL;
	for (value at = SECOND(form); is_pair(at); at = CDR(at)) {
		form_length(e, CAR(at), 2, 2);
		value name = CAR(CAR(at)), inner = fresh(e, "in"), outer = fresh(e, "out");
		bindings = CONS(list(e, 2, inner, SECOND(CAR(at))),
				CONS(list(e, 2, outer, V_FALSE), bindings));
		in = CONS(list(e, 3, H("set!"), outer, name),
			  CONS(list(e, 3, H("set!"), name, inner), in));
		out = CONS(list(e, 3, H("set!"), inner, name),
			   CONS(list(e, 3, H("set!"), name, outer), out));
	}
	return list(e, 3, H("let"), bindings,
		    list(e, 4, H("dynamic-wind"), lambda(e, V_NIL, in),
			 lambda(e, V_NIL, BODY(form)), lambda(e, V_NIL, out)));
}

/* (with-flame-profile (FILE :WORD VALUE ...) BODY ...): the words are no variables here. */
static value rewrite_with_flame_profile(struct expander *e, value form)
{
	form_length(e, form, 3, -1);
	form_length(e, SECOND(form), 1, -1);
	value request = SECOND(form), out = CONS(CAR(request), V_NIL);
	for (value at = CDR(request); is_pair(at); at = CDR(CDR(at))) {
		form_length(e, at, 2, -1);
		if (!profile_is_word(CAR(at)))
			raise_syntax(e, CAR(at), "with-flame-profile does not know this word");
		out = CONS(SECOND(at), CONS(list(e, 2, H("quote"), CAR(at)), out));
	}
	return CONS(H("%with-flame-profile"),
		    CONS(lambda(e, V_NIL, BODY(form)), reverse(e, out)));
}

/* All libraries exist: their procedures are always bound. */
static int is_feature(struct expander *e, value requirement)
{
	check_c_stack(e->ctx);
	if (!is_pair(requirement))
		return is_word(requirement, "else") || is_word(requirement, "r7rs");
	value head = CAR(requirement);
	int count = form_length(e, requirement, 1, -1), holds = 0;
	for (value at = CDR(requirement); is_pair(at) && !is_word(head, "library"); at = CDR(at))
		holds += is_feature(e, CAR(at));
	if (is_word(head, "and"))
		return holds == count - 1;
	if (is_word(head, "not"))
		return !holds;
	return holds > 0 || is_word(head, "library");
}

static value rewrite_cond_expand(struct expander *e, value form)
{
	for (value at = CDR(form); is_pair(at); at = CDR(at)) {
		form_length(e, CAR(at), 1, -1);
		if (is_feature(e, CAR(CAR(at))))
			return CONS(H("begin"), CDR(CAR(at)));
	}
	return list(e, 1, H("begin"));
}

value rewrite_form(struct expander *e, enum form form, value datum)
{
	value thunk;

	form_length(e, datum, 2, -1);
	switch (form) {
	case FORM_LET_STAR:
		return rewrite_let_star(e, datum);
	case FORM_COND:
		return rewrite_cond_clauses(e, CDR(datum), V_NIL);
	case FORM_CASE:
		return rewrite_case(e, datum);
	case FORM_DO:
		return rewrite_do(e, datum);
	case FORM_WHEN:
		return list(e, 3, H("if"), SECOND(datum), CONS(H("begin"), BODY(datum)));
	case FORM_UNLESS:
		return list(e, 4, H("if"), SECOND(datum), list(e, 1, H("begin")),
			    CONS(H("begin"), BODY(datum)));
	case FORM_QUASIQUOTE:
		return quasi(e, SECOND(datum), 1);
	case FORM_DELAY:
	case FORM_MAKE_LAZY:
		thunk = lambda(e, V_NIL, CDR(datum));
		return list(e, 2, form == FORM_DELAY ? H("%make-promise") : H("%make-lazy"), thunk);
	case FORM_CONS_STREAM:
		thunk = lambda(e, V_NIL, BODY(datum));
		return list(e, 3, H("cons"), SECOND(datum), list(e, 2, H("%make-promise"), thunk));
	case FORM_PARAMETERIZE:
		return rewrite_parameterize(e, datum);
	case FORM_CASE_LAMBDA:
		return rewrite_case_lambda(e, datum);
	case FORM_LET_VALUES:
	case FORM_LET_STAR_VALUES:
		return rewrite_let_values(e, datum, form == FORM_LET_STAR_VALUES);
	case FORM_RECEIVE:
		form_length(e, datum, 4, -1);
		return receive(e, SECOND(datum), THIRD(datum), CDR(BODY(datum)));
	case FORM_DEFINE_VALUES:
		return rewrite_define_values(e, datum);
	case FORM_DEFINE_RECORD:
		return rewrite_define_record(e, datum);
	case FORM_GUARD:
		return rewrite_guard(e, datum);
	case FORM_ASSERT:
		return list(e, 4, H("if"), SECOND(datum), list(e, 1, H("begin")),
			    list(e, 3, H("error"), string_from(e->ctx, "assertion failed"),
				 list(e, 2, H("quote"), SECOND(datum))));
	case FORM_FLUID_LET:
		return rewrite_fluid_let(e, datum);
	case FORM_COND_EXPAND:
		return rewrite_cond_expand(e, datum);
	case FORM_WITH_FLAME_PROFILE:
		return rewrite_with_flame_profile(e, datum);
	default:
		raise_syntax(e, datum, "this form is not supported");
	}
}
