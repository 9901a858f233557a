/* SPDX-License-Identifier: MIT
 * loops.c: finds the loops among letrec-bound lambdas, and the variables to put into boxes.
 *
 * A lambda needs no closure if its name is called once from outside and otherwise only from tail
 * positions of the body. The outer call becomes the entry, all inner calls jumps to the head.
 */
#include "ast.h"

struct loop_scan {
	struct context *ctx;
	struct var *var;
	struct node *site;
	int outside, inside, is_bad;
};

static void scan(struct loop_scan *s, struct node *node, int is_tail, int is_inside);

static void scan_call(struct loop_scan *s, struct node *node, int is_tail, int is_inside)
{
	struct node *callee = node->kids[0];

	for (int i = 1; i < node->kid_count; i++)
		scan(s, node->kids[i], 0, is_inside);
	if (callee->kind != N_LOCAL) {
		scan(s, callee, 0, is_inside);
	} else if (callee->var == s->var) {
		if (node->kid_count - 1 != s->var->lambda->var_count || (is_inside && !is_tail))
			s->is_bad = 1;
		if (is_inside) {
			s->inside++;
		} else {
			s->outside++;
			s->site = node;
		}
	} else if (callee->var->loop_site == node) {
		scan(s, callee->var->lambda->kids[0], is_tail, is_inside);
	}
}

static void scan(struct loop_scan *s, struct node *node, int is_tail, int is_inside)
{
	int last = node->kid_count - 1;

	check_c_stack(s->ctx);
	switch (node->kind) {
	case N_LOCAL:
		if (node->var == s->var)
			s->is_bad = 1;
		break;
	case N_LAMBDA:
		/* References inside the lambda are not counted, so the loop is refused. */
		break;
	case N_IF:
		scan(s, node->kids[0], 0, is_inside);
		scan(s, node->kids[1], is_tail, is_inside);
		scan(s, node->kids[2], is_tail, is_inside);
		break;
	case N_SEQ:
	case N_AND:
	case N_OR:
	case N_LET:
	case N_LETREC:
		for (int i = 0; i <= last; i++)
			scan(s, node->kids[i], is_tail && i == last, is_inside);
		break;
	case N_CALL:
		scan_call(s, node, is_tail, is_inside);
		break;
	default:
		for (int i = 0; i <= last; i++)
			scan(s, node->kids[i], 0, is_inside);
	}
}

static int decide_loop(struct context *ctx, struct node *letrec, struct var *var)
{
	struct loop_scan s = {.ctx = ctx, .var = var};

	if (!var->lambda || var->lambda->has_rest || var->is_assigned || var->forward_from_other)
		return 0;
	for (int i = 0; i < letrec->kid_count; i++)
		scan(&s, letrec->kids[i], 0, 0);
	scan(&s, var->lambda->kids[0], 1, 1);
	if (s.is_bad || s.outside != 1 || s.outside + s.inside != var->refs)
		return 0;
	var->loop_site = s.site;
	var->loop_jumps = s.inside;
	return 1;
}

void decide_loops(struct context *ctx, struct node *letrec)
{
	int changed;

	do {
		changed = 0;
		for (int i = 0; i < letrec->var_count; i++)
			if (letrec->vars[i] && !letrec->vars[i]->loop_site)
				changed |= decide_loop(ctx, letrec, letrec->vars[i]);
	} while (changed);
}

static void bind(struct var *var, void *home)
{
	if (var)
		var->home = home;
}

void find_captures(struct context *ctx, struct node *node, void *home)
{
	check_c_stack(ctx);
	if (node->kind == N_LOCAL || node->kind == N_SET)
		node->var->is_captured |= node->var->home != home && !node->var->loop_site;
	if (node->kind == N_LET || node->kind == N_LETREC)
		for (int i = 0; i < node->var_count; i++)
			bind(node->vars[i], home);
	if (node->kind == N_LAMBDA) {
		home = node;
		for (int i = 0; i < node->var_count; i++)
			bind(node->vars[i], home);
	}
	struct var *called = node->kind == N_CALL && node->kids[0]->kind == N_LOCAL
				     ? node->kids[0]->var : NULL;
	if (called && called->loop_site == node) {
		for (int i = 0; i < called->lambda->var_count; i++)
			bind(called->lambda->vars[i], home);
		find_captures(ctx, called->lambda->kids[0], home);
	}
	for (int i = 0; i < node->kid_count; i++) {
		/* The body of a loop is visited at the entry of the loop. */
		int is_loop = node->kind == N_LETREC && i < node->var_count && node->vars[i] &&
			      node->vars[i]->loop_site;
		if (!is_loop)
			find_captures(ctx, node->kids[i], home);
	}
	/* All reads of a variable lie below the binder, so the variable's flags are final here. */
	for (int i = 0; i < node->var_count; i++) {
		struct var *var = node->vars[i];
		if (!var)
			continue;
		var->is_boxed = var->is_assigned && var->is_captured;
		if (node->kind == N_LETREC && !var->loop_site)
			var->is_boxed |= var->forward_from_other ||
					 (var->is_assigned && var->lambda) ||
					 (!var->lambda && var->forward_from_procedure);
	}
	if (called && called->loop_site == node)
		for (int i = 0; i < called->lambda->var_count; i++)
			called->lambda->vars[i]->is_boxed = called->lambda->vars[i]->is_assigned &&
							    called->lambda->vars[i]->is_captured;
}
