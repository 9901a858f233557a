/* SPDX-License-Identifier: MIT
 * ast.h: the tree between the passes of the compiler. expand.c resolves names and derived forms,
 * loops.c finds loops and captures, codegen.c emits bytecode.
 */
#pragma once

#include "vm.h"

enum node_kind {
	N_CONST, /* datum */
	N_LOCAL, /* var */
	N_GLOBAL, /* cell */
	N_SET,    /* var, kids[0] */
	N_GSET,   /* cell, kids[0] */
	N_GDEF,   /* cell, kids[0] */
	N_IF,     /* kids: test, then, else */
	N_SEQ,    /* kids */
	N_AND,    /* kids */
	N_OR,     /* kids */
	N_LAMBDA, /* vars (params, then rest), has_rest, kids[0] */
	N_LET,    /* vars, kids: inits, then body */
	N_LETREC, /* vars (NULL for an expression), kids: inits in order, then body */
	N_CALL,   /* kids: procedure, arguments */
	N_OPEN,   /* coding, kids: arguments of an open-coded built-in */
	N_APPLY,  /* kids: procedure, list */
};

struct var {
	value name;
	int refs;             /* reads, calls included */
	int is_assigned;
	int is_captured;      /* read by another procedure than the binding one */
	int forward_from_procedure; /* read before its definition, inside a lambda of its letrec */
	int forward_from_other;
	int is_uninitialised; /* while the binding letrec is being expanded */
	int *in_procedure;    /* is the letrec init being expanded a lambda */
	int is_boxed;
	struct node *lambda;  /* lambda bound by a letrec, or NULL */
	struct node *loop_site; /* the one call that enters the loop; NULL: not a loop */
	int loop_jumps;       /* calls that are jumps back */
	void *home;           /* binding function */
	int slot;             /* codegen: slot in the home function */
	int closure_slot;     /* codegen: slot of the closure while a letrec is being built */
	/* codegen, while the loop is open */
	int loop_head, loop_param_base;
};

struct node {
	enum node_kind kind;
	int line;
	int kid_count, var_count, has_rest;
	const struct open_coding *coding;
	value datum; /* constant, or a lambda's name */
	struct var *var;
	struct cell *cell;
	struct var **vars;
	struct node **kids;
};

/* struct open_coding: a built-in for which the compiler may emit instructions. */
enum open_kind {
	OPEN_COMPARE, /* op in its jump-when-true form, two arguments */
	OPEN_SIGN,    /* likewise, compared with 0 */
	OPEN_EQ,
	OPEN_EQV,
	OPEN_NOT,
	OPEN_NULL,
	OPEN_TYPE,
	OPEN_BINARY,
	OPEN_FOLD, /* binary, more arguments nest to the left */
	OPEN_UNARY,
	OPEN_PATH, /* letters of c[ad]+r, last applied first */
	OPEN_STORE2,
	OPEN_STORE3,
	OPEN_RECREF,
	OPEN_RECSET,
};
struct open_coding {
	const char *name;
	enum open_kind kind;
	int op;
	const char *path;
};
extern const struct open_coding open_codings[];
int find_open_coding(const char *name); /* index + 1, or 0 */
const struct open_coding *open_coding_for(struct cell *cell, int argc);
extern const struct open_coding *const open_eq;

struct scope {
	struct scope *up;
	value name;
	struct var *var;
};

/* struct expander: one toplevel form during expansion. */
struct expander {
	struct context *ctx;
	value positions;
	int line; /* of the innermost form with a known line */
};

struct node *expand(struct expander *e, struct scope *scope, value form);
struct node *expand_body(struct expander *e, struct scope *scope, value forms);
struct node *expand_lambda(struct expander *e, struct scope *scope, value params, value body,
			   value name);
struct node *node_new(struct expander *e, enum node_kind kind, int kid_count);
struct scope *scope_bind(struct scope *scope, value name, struct var *var);
struct var *var_new(value name);
_Noreturn void raise_syntax(struct expander *e, value form, const char *message);
struct pair *form_pair(struct expander *e, value form);
int form_length(struct expander *e, value form, int at_least, int at_most);

/* forms.c: rewrites a derived form into core forms. */
enum form {
	FORM_NONE,
#define X(name, text) FORM_##name,
#include "forms.def"
#undef X
	FORM_COUNT,
};
value rewrite_form(struct expander *e, enum form form, value datum);
value hygienic(const char *name); /* symbol of the built-in, not shadowed by local names */
enum form form_of(struct expander *e, struct scope *scope, value head);
void init_forms(void);

/* Loops inside of loops may be nested deeper than the forms that they come from. */
void decide_loops(struct context *ctx, struct node *letrec);
void find_captures(struct context *ctx, struct node *node, void *home);
value generate_code(struct expander *e, struct node *lambda);
