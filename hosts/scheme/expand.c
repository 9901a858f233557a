/* SPDX-License-Identifier: MIT
 * expand.c: from data to the tree of ast.h: scopes, bodies with internal definitions, core forms.
 * Derived forms are rewritten by forms.c first. Emits nothing.
 */
#include "ast.h"

/* Programs may be malformed anywhere: each step into a form is checked. */
#undef CAR
#undef CDR
#define CAR(v) (form_pair(e, v)->car)
#define CDR(v) (form_pair(e, v)->cdr)

struct node *node_new(struct expander *e, enum node_kind kind, int kid_count)
{
	struct node *node = new_scanned(sizeof *node);

	node->kind = kind;
	node->line = e->line;
	node->kid_count = kid_count;
	node->kids = new_scanned((size_t)(kid_count ? kid_count : 1) * sizeof *node->kids);
	return node;
}

struct var *var_new(value name)
{
	struct var *var = new_scanned(sizeof *var);

	var->name = name;
	return var;
}

struct scope *scope_bind(struct scope *scope, value name, struct var *var)
{
	struct scope *inner = new_scanned(sizeof *inner);

	inner->up = scope;
	inner->name = name;
	inner->var = var;
	return inner;
}

_Noreturn void raise_syntax(struct expander *e, value form, const char *message)
{
	struct condition *c = condition_new(e->ctx, "syntax", string_from(e->ctx, message),
					    cons(e->ctx, form, V_NIL));
	int64_t line = position_of(e->positions, form);

	c->file = e->ctx->vm->load_file;
	c->line = line ? line : e->line;
	raise_value(e->ctx, (value)c);
}

struct pair *form_pair(struct expander *e, value form)
{
	if (!is_pair(form))
		raise_syntax(e, form, "bad syntax");
	return AS(pair, form);
}

int form_length(struct expander *e, value form, int at_least, int at_most)
{
	int64_t length = list_length(form);

	if (length < at_least || (at_most >= 0 && length > at_most))
		raise_syntax(e, form, "bad syntax");
	return (int)length;
}

static struct var *lookup(struct scope *scope, value name)
{
	for (; scope; scope = scope->up)
		if (scope->name == name)
			return scope->var;
	return NULL;
}

enum form form_of(struct expander *e, struct scope *scope, value head)
{
	if (!is_symbol(head) || !AS(symbol, head)->form || lookup(scope, head))
		return FORM_NONE;
	/* A program may use the name of a form for a global procedure of its own. */
	if (cell_of(e->ctx, head)->content != V_UNDEF)
		return FORM_NONE;
	return (enum form)AS(symbol, head)->form;
}

static struct node *expand_const(struct expander *e, value datum)
{
	struct node *node = node_new(e, N_CONST, 0);

	node->datum = datum;
	return node;
}

static struct node *expand_symbol(struct expander *e, struct scope *scope, value name)
{
	struct var *var = lookup(scope, name);
	struct node *node;

	if (!var) {
		if (form_of(e, scope, name) != FORM_NONE)
			raise_syntax(e, name, "keyword used as a variable");
		node = node_new(e, N_GLOBAL, 0);
		node->cell = cell_of(e->ctx, name);
		return node;
	}
	node = node_new(e, N_LOCAL, 0);
	node->var = var;
	var->refs++;
	if (var->is_uninitialised) {
		if (*var->in_procedure)
			var->forward_from_procedure = 1;
		else
			var->forward_from_other = 1;
	}
	return node;
}

static struct node *expand_set(struct expander *e, struct scope *scope, value form)
{
	form_length(e, form, 3, 3);
	value name = CAR(CDR(form));
	if (!is_symbol(name))
		raise_syntax(e, form, "bad set!");
	struct var *var = lookup(scope, name);
	struct node *node = node_new(e, var ? N_SET : N_GSET, 1);
	if (var) {
		var->is_assigned = 1;
		if (var->is_uninitialised)
			var->forward_from_other = 1;
	} else {
		node->cell = cell_of(e->ctx, name);
		node->cell->is_builtin = 0;
	}
	node->var = var;
	node->kids[0] = expand(e, scope, CAR(CDR(CDR(form))));
	return node;
}

static struct node *expand_sequence(struct expander *e, struct scope *scope, value forms,
				    enum node_kind kind)
{
	int count = form_length(e, forms, 0, -1);

	if (count == 0)
		return expand_const(e, kind == N_AND ? V_TRUE : kind == N_OR ? V_FALSE : V_UNSPEC);
	if (count == 1)
		return expand(e, scope, CAR(forms));
	struct node *node = node_new(e, kind, count);
	for (int i = 0; i < count; i++, forms = CDR(forms))
		node->kids[i] = expand(e, scope, CAR(forms));
	return node;
}

struct node *expand_lambda(struct expander *e, struct scope *scope, value params, value body,
			   value name)
{
	struct node *node = node_new(e, N_LAMBDA, 1);
	value at;
	int count = 0;

	for (at = params; is_pair(at); at = CDR(at))
		count++;
	node->has_rest = at != V_NIL;
	node->vars = new_scanned((size_t)(count + 1) * sizeof *node->vars);
	for (at = params; at != V_NIL; at = is_pair(at) ? CDR(at) : V_NIL) {
		value param = is_pair(at) ? CAR(at) : at;
		if (!is_symbol(param))
			raise_syntax(e, params, "bad parameter list");
		for (int i = 0; i < node->var_count; i++)
			if (node->vars[i]->name == param)
				raise_syntax(e, params, "parameter named twice");
		node->vars[node->var_count++] = var_new(param);
		scope = scope_bind(scope, param, node->vars[node->var_count - 1]);
	}
	node->datum = name;
	node->kids[0] = expand_body(e, scope, body);
	return node;
}

/* ---- bodies ---- */

struct definition {
	value name; /* V_FALSE: an expression between definitions */
	value form;
	value params, body; /* of a procedure; body V_NONE: form is any expression */
};
struct definitions {
	struct definition *items;
	int count, capacity, defined;
};

static void add_definition(struct definitions *list, struct definition item)
{
	if (list->count == list->capacity) {
		list->capacity = list->capacity * 2 + 8;
		list->items = grow_scanned(list->items, (size_t)list->capacity * sizeof item);
	}
	list->items[list->count++] = item;
	if (item.name != V_FALSE)
		list->defined = list->count;
}

/* Curried definitions become lambdas that return lambdas. */
static void add_define(struct expander *e, struct scope *scope, struct definitions *list,
		       value form)
{
	if (form_length(e, form, 2, -1) == 2 && is_pair(CAR(CDR(form))))
		raise_syntax(e, form, "bad define");
	value target = CAR(CDR(form)), rest = CDR(CDR(form));
	while (is_pair(target) && is_pair(CAR(target))) {
		rest = cons(e->ctx, cons(e->ctx, hygienic("lambda"),
					 cons(e->ctx, CDR(target), rest)), V_NIL);
		target = CAR(target);
	}
	struct definition item = {target, V_UNSPEC, V_NIL, V_NONE};
	if (is_pair(target)) {
		item.name = CAR(target);
		item.params = CDR(target);
		item.body = rest;
	} else if (rest != V_NIL) {
		item.form = CAR(rest);
		if (is_pair(item.form) && form_of(e, scope, CAR(item.form)) == FORM_LAMBDA &&
		    list_length(item.form) >= 3) {
			item.params = CAR(CDR(item.form));
			item.body = CDR(CDR(item.form));
		}
	}
	if (!is_symbol(item.name))
		raise_syntax(e, form, "bad define");
	add_definition(list, item);
}

static void collect_body(struct expander *e, struct scope *scope, value forms,
			 struct definitions *list)
{
	for (; is_pair(forms); forms = CDR(forms)) {
		value form = CAR(forms);
		enum form kind = is_pair(form) ? form_of(e, scope, CAR(form)) : FORM_NONE;
		if (kind == FORM_DEFINE_RECORD || kind == FORM_DEFINE_VALUES ||
		    kind == FORM_COND_EXPAND) {
			form = rewrite_form(e, kind, form);
			kind = FORM_BEGIN;
		}
		if (kind == FORM_BEGIN && list_length(form) > 0)
			collect_body(e, scope, CDR(form), list);
		else if (kind == FORM_DEFINE)
			add_define(e, scope, list, form);
		else
			add_definition(list, (struct definition){V_FALSE, form, V_NIL, V_NONE});
	}
	if (forms != V_NIL)
		raise_syntax(e, forms, "bad body");
}

static struct node *expand_init(struct expander *e, struct scope *scope, struct definition *item,
				int *in_procedure)
{
	int line = e->line;
	struct node *node;

	if (item->body != V_NONE) {
		if (position_of(e->positions, item->body))
			e->line = (int)position_of(e->positions, item->body);
		*in_procedure = 1;
		node = expand_lambda(e, scope, item->params, item->body, item->name);
	} else {
		*in_procedure = 0;
		node = expand(e, scope, item->form);
	}
	e->line = line;
	return node;
}

static struct node *expand_letrec(struct expander *e, struct scope *scope,
				  struct definitions *list, int count, value body)
{
	struct node *node = node_new(e, N_LETREC, count + 1);

	int in_procedure = 0;
	node->var_count = count;
	node->vars = new_scanned((size_t)(count + 1) * sizeof *node->vars);
	for (int i = 0; i < count; i++) {
		if (list->items[i].name == V_FALSE)
			continue;
		node->vars[i] = var_new(list->items[i].name);
		node->vars[i]->is_uninitialised = 1;
		node->vars[i]->in_procedure = &in_procedure;
		scope = scope_bind(scope, list->items[i].name, node->vars[i]);
	}
	for (int i = 0; i < count; i++) {
		struct var *var = node->vars[i];
		if (var && lookup(scope, var->name) != var)
			raise_syntax(e, var->name, "defined twice in one body");
		node->kids[i] = expand_init(e, scope, &list->items[i], &in_procedure);
		if (var && node->kids[i]->kind == N_LAMBDA)
			var->lambda = node->kids[i];
		if (var)
			var->is_uninitialised = 0;
	}
	if (body != V_NONE) {
		node->kids[count] = expand_body(e, scope, body);
	} else {
		int left = list->count - count;
		struct node *rest = node_new(e, N_SEQ, left);
		for (int i = 0; i < left; i++)
			rest->kids[i] = expand(e, scope, list->items[count + i].form);
		node->kids[count] = left == 1 ? rest->kids[0] : rest;
	}
	decide_loops(e->ctx, node);
	return node;
}

struct node *expand_body(struct expander *e, struct scope *scope, value forms)
{
	struct definitions list = {NULL, 0, 0, 0};

	collect_body(e, scope, forms, &list);
	if (list.count == list.defined)
		add_definition(&list, (struct definition){V_FALSE, V_UNSPEC, V_NIL, V_NONE});
	if (list.defined)
		return expand_letrec(e, scope, &list, list.defined, V_NONE);
	return expand_sequence(e, scope, forms, N_SEQ);
}

/* ---- binding forms ---- */

static struct node *expand_let(struct expander *e, struct scope *scope, value bindings, value body)
{
	int count = form_length(e, bindings, 0, -1);
	struct node *node = node_new(e, N_LET, count + 1);
	struct scope *inner = scope;

	node->vars = new_scanned((size_t)(count + 1) * sizeof *node->vars);
	node->var_count = count;
	for (int i = 0; i < count; i++, bindings = CDR(bindings)) {
		value binding = CAR(bindings);
		if (is_symbol(binding))
			binding = cons(e->ctx, binding, V_NIL);
		int length = form_length(e, binding, 1, 2);
		if (!is_symbol(CAR(binding)))
			raise_syntax(e, binding, "bad binding");
		for (int before = 0; before < i; before++)
			if (node->vars[before]->name == CAR(binding))
				raise_syntax(e, binding, "variable bound twice");
		value init = length == 2 ? CAR(CDR(binding)) : V_UNSPEC;
		node->kids[i] = expand(e, scope, init);
		if (node->kids[i]->kind == N_LAMBDA && node->kids[i]->datum == V_FALSE)
			node->kids[i]->datum = CAR(binding);
		node->vars[i] = var_new(CAR(binding));
		inner = scope_bind(inner, CAR(binding), node->vars[i]);
	}
	node->kids[count] = expand_body(e, inner, body);
	return node;
}

static struct node *expand_letrec_form(struct expander *e, struct scope *scope, value form)
{
	struct definitions list = {NULL, 0, 0, 0};

	form_length(e, form, 3, -1);
	form_length(e, CAR(CDR(form)), 0, -1);
	for (value at = CAR(CDR(form)); is_pair(at); at = CDR(at)) {
		form_length(e, CAR(at), 2, 2);
		add_define(e, scope, &list, cons(e->ctx, V_FALSE, CAR(at)));
	}
	if (!list.count)
		return expand_body(e, scope, CDR(CDR(form)));
	return expand_letrec(e, scope, &list, list.count, CDR(CDR(form)));
}

static struct node *expand_named_let(struct expander *e, struct scope *scope, value form)
{
	struct definitions list = {NULL, 0, 0, 0};
	value name = CAR(CDR(form)), params = V_NIL, args = V_NIL;
	value bindings = CAR(CDR(CDR(form)));
	int count = form_length(e, bindings, 0, -1);

	form_length(e, form, 4, -1);
	struct vector *pairs = AS(vector, make_vector(e->ctx, count, V_NIL));
	for (int i = 0; i < count; i++, bindings = CDR(bindings)) {
		form_length(e, CAR(bindings), 2, 2);
		pairs->items[i] = CAR(bindings);
	}
	for (int i = count; i-- > 0;) {
		params = cons(e->ctx, CAR(pairs->items[i]), params);
		args = cons(e->ctx, CAR(CDR(pairs->items[i])), args);
	}
	/* The arguments are expanded outside the scope of the loop's name. */
	struct node *call = node_new(e, N_CALL, count + 1);
	for (int i = 0; i < count; i++, args = CDR(args))
		call->kids[i + 1] = expand(e, scope, CAR(args));
	add_definition(&list, (struct definition){name, V_UNSPEC, params, CDR(CDR(CDR(form)))});
	struct node *node = node_new(e, N_LETREC, 2);
	struct var *var = var_new(name);
	node->vars = new_scanned(sizeof *node->vars);
	node->vars[0] = var;
	node->var_count = 1;
	struct scope *inner = scope_bind(scope, name, var);
	int in_procedure = 0;
	var->is_uninitialised = 1;
	var->in_procedure = &in_procedure;
	node->kids[0] = expand_init(e, inner, &list.items[0], &in_procedure);
	var->lambda = node->kids[0];
	var->is_uninitialised = 0;
	call->kids[0] = expand_symbol(e, inner, name);
	node->kids[1] = call;
	decide_loops(e->ctx, node);
	return node;
}

/* ---- calls ---- */

static struct node *expand_fold(struct expander *e, struct node *call,
				const struct open_coding *coding)
{
	struct node *left = call->kids[1];

	for (int i = 2; i < call->kid_count; i++) {
		struct node *node = node_new(e, N_OPEN, 2);
		node->coding = coding;
		node->kids[0] = left;
		node->kids[1] = call->kids[i];
		left = node;
	}
	return left;
}

/* eqv? on such a constant is eq?. */
static int is_eq_constant(struct node *node)
{
	return node->kind == N_CONST && !is_flonum(node->datum);
}

static struct node *expand_call(struct expander *e, struct scope *scope, value form)
{
	int count = form_length(e, form, 1, -1);
	value head = CAR(form), args = CDR(form);

	if (is_pair(head) && form_of(e, scope, CAR(head)) == FORM_LAMBDA &&
	    list_length(head) >= 3 && list_length(CAR(CDR(head))) == count - 1) {
		value bindings = V_NIL, params = CAR(CDR(head));
		struct vector *pairs = AS(vector, make_vector(e->ctx, count - 1, V_NIL));
		for (int i = 0; i < count - 1; i++, params = CDR(params), args = CDR(args))
			pairs->items[i] = cons(e->ctx, CAR(params), cons(e->ctx, CAR(args), V_NIL));
		for (int i = count - 1; i-- > 0;)
			bindings = cons(e->ctx, pairs->items[i], bindings);
		return expand_let(e, scope, bindings, CDR(CDR(head)));
	}
	struct node *node = node_new(e, N_CALL, count);
	for (int i = 0; i < count; i++, form = CDR(form))
		node->kids[i] = expand(e, scope, CAR(form));
	if (node->kids[0]->kind != N_GLOBAL)
		return node;
	const struct open_coding *coding = open_coding_for(node->kids[0]->cell, count - 1);
	if (!coding)
		return node;
	if (coding->kind == OPEN_FOLD)
		return expand_fold(e, node, coding);
	if (coding->kind == OPEN_EQV) {
		if (!is_eq_constant(node->kids[1]) && !is_eq_constant(node->kids[2]))
			return node;
		coding = open_eq;
	}
	node->kind = N_OPEN;
	node->coding = coding;
	node->kid_count--;
	memmove(node->kids, node->kids + 1, (size_t)node->kid_count * sizeof *node->kids);
	return node;
}

static struct node *expand_define(struct expander *e, struct scope *scope, value form)
{
	struct definitions list = {NULL, 0, 0, 0};
	struct node *node = node_new(e, N_GDEF, 1);

	if (scope)
		raise_syntax(e, form, "definition where an expression is needed");
	add_define(e, scope, &list, form);
	node->cell = cell_of(e->ctx, list.items[0].name);
	node->cell->is_builtin = 0;
	int in_procedure;
	node->kids[0] = expand_init(e, scope, &list.items[0], &in_procedure);
	if (node->kids[0]->kind == N_LAMBDA && node->kids[0]->datum == V_FALSE)
		node->kids[0]->datum = list.items[0].name;
	return node;
}

static struct node *expand_if(struct expander *e, struct scope *scope, value form)
{
	int length = form_length(e, form, 3, 4);
	struct node *node = node_new(e, N_IF, 3);

	node->kids[0] = expand(e, scope, CAR(CDR(form)));
	node->kids[1] = expand(e, scope, CAR(CDR(CDR(form))));
	node->kids[2] = length == 4 ? expand(e, scope, CAR(CDR(CDR(CDR(form)))))
				    : expand_const(e, V_UNSPEC);
	return node;
}

static struct node *expand_form(struct expander *e, struct scope *scope, enum form kind, value form)
{
	switch (kind) {
	case FORM_QUOTE:
		form_length(e, form, 2, 2);
		return expand_const(e, CAR(CDR(form)));
	case FORM_IF:
		return expand_if(e, scope, form);
	case FORM_DEFINE:
		return expand_define(e, scope, form);
	case FORM_SET:
		return expand_set(e, scope, form);
	case FORM_LAMBDA:
		form_length(e, form, 3, -1);
		return expand_lambda(e, scope, CAR(CDR(form)), CDR(CDR(form)), V_FALSE);
	case FORM_NAMED_LAMBDA:
		if (form_length(e, form, 3, -1) && !is_pair(CAR(CDR(form))))
			raise_syntax(e, form, "bad syntax");
		return expand_lambda(e, scope, CDR(CAR(CDR(form))), CDR(CDR(form)),
				     CAR(CAR(CDR(form))));
	case FORM_BEGIN:
		return expand_sequence(e, scope, CDR(form), N_SEQ);
	case FORM_AND:
		return expand_sequence(e, scope, CDR(form), N_AND);
	case FORM_OR:
		return expand_sequence(e, scope, CDR(form), N_OR);
	case FORM_LET:
		form_length(e, form, 3, -1);
		if (is_symbol(CAR(CDR(form))))
			return expand_named_let(e, scope, form);
		return expand_let(e, scope, CAR(CDR(form)), CDR(CDR(form)));
	case FORM_LETREC:
	case FORM_LETREC_STAR:
		return expand_letrec_form(e, scope, form);
	case FORM_APPLY: {
		struct node *node = node_new(e, N_APPLY, 2);
		form_length(e, form, 3, 3);
		node->kids[0] = expand(e, scope, CAR(CDR(form)));
		node->kids[1] = expand(e, scope, CAR(CDR(CDR(form))));
		return node;
	}
	case FORM_IMPORT:
		return expand_const(e, V_UNSPEC);
	default:
		return expand(e, scope, rewrite_form(e, kind, form));
	}
}

struct node *expand(struct expander *e, struct scope *scope, value form)
{
	check_c_stack(e->ctx);
	if (is_symbol(form))
		return expand_symbol(e, scope, form);
	if (form == V_NIL)
		raise_syntax(e, form, "empty combination");
	if (!is_pair(form))
		return expand_const(e, form);
	int line = e->line;
	int64_t own = position_of(e->positions, form);
	if (own)
		e->line = (int)own;
	enum form kind = form_of(e, scope, CAR(form));
	struct node *node = kind == FORM_NONE ? expand_call(e, scope, form)
					      : expand_form(e, scope, kind, form);
	e->line = line;
	return node;
}

value compile_toplevel(struct context *ctx, value form, value positions)
{
	struct expander e = {ctx, positions, (int)position_of(positions, form)};
	struct node *lambda = node_new(&e, N_LAMBDA, 1);
	struct closure *thunk;

	lambda->datum = intern("toplevel");
	lambda->kids[0] = expand(&e, NULL, form);
	find_captures(ctx, lambda, lambda);
	thunk = alloc_bytes(ctx, T_CLOSURE, 16);
	thunk->code = AS(code, generate_code(&e, lambda));
	return (value)thunk;
}
