/* SPDX-License-Identifier: MIT
 * vm.c: a VM instance from creation to its end, and programs run in it from C.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define GC_THREADS
#include <fcntl.h>
#include <gc/gc.h>
#include <stdlib.h>

#include "ast.h"
#include "image.h"
#include "jit.h"

enum { DEFAULT_STACK_BYTES = 64 << 20 };

/* The collector itself cannot go on. */
static void end_with_message(const char *message)
{
	if (message)
		fprintf(stderr, "scheme: the collector: %s\n", message);
	_exit(1);
}

static void ignore_warning(char *message, GC_word argument)
{
	(void)message;
	(void)argument;
}

/* The collector's variables hold addresses of parts of its heap. An object at the start of such a
 * part, and all objects reachable from there, would never die. */
static int has_roots(const char *library, void *low, size_t bytes)
{
	(void)low;
	(void)bytes;
	return strstr(library, "/libgc.so") == NULL;
}

static void start_collector(void)
{
	/* Heap objects are only referenced by their start; stacks are scanned for inner pointers
	 * all the same. Without interior pointers no extra byte doubles the size of a flonum. */
	GC_set_abort_func(end_with_message);
	GC_set_all_interior_pointers(0);
	GC_register_has_static_roots_callback(has_roots);
	GC_set_handle_fork(1); /* fork-process */
	GC_INIT();
	/* Collect when the heap is twice the live objects, not a third larger. */
	if (!getenv("GC_FREE_SPACE_DIVISOR"))
		GC_set_free_space_divisor(1);
	GC_set_warn_proc(ignore_warning);
	GC_allow_register_threads();
	memory_start();
	symbols_start();
	init_forms();
	stacks_init();
}

/* Binds the prelude's procedures to hidden names, too, for forms.c. */
static void hide_prelude(struct context *ctx)
{
	char hidden[96];
	struct vm *vm = ctx->vm;
	struct cell **found = new_scanned((size_t)vm->cell_count * sizeof *found);
	int64_t count = 0;

	for (int64_t i = 0; i < vm->cell_capacity; i++)
		for (struct cell *cell = vm->cells[i]; cell; cell = cell->next)
			if (is_type(cell->content, T_CLOSURE))
				found[count++] = cell;
	for (int64_t i = 0; i < count; i++) {
		char *name = string_to_utf8((value)found[i]->name->name, NULL);
		snprintf(hidden, sizeof hidden, " %s", name);
		cell_of(ctx, intern(hidden))->content = found[i]->content;
	}
}

static void load_prelude(struct context *ctx)
{
	load_port(ctx, port_open_string(prelude_source, (int64_t)strlen(prelude_source)), 0);
	hide_prelude(ctx);
}

static int load_image(struct context *ctx)
{
	char why[IMAGE_WHY_BYTES];
	const char *path = ctx->vm->options.load;

	if (image_load(ctx, path, why))
		return 1;
	fprintf(stderr, "scheme: --load: %s: %s\n", path, why);
	return 0;
}

/* Returns NULL, or the reason for a failure. */
static const char *fill(struct context *ctx)
{
	struct vm *vm = ctx->vm;
	int has_code = vm->options.mode != MODE_INTERP || vm->options.trampolines;
	const char *refusal = NULL;

	/* For errors without memory, when no condition can be made. */
	vm->memory_error = (value)condition_new(ctx, "memory", string_from(ctx, "out of memory"),
						V_NIL);
	vm->input = port_open_fd(0, 0);
	vm->output = port_open_fd(1, 1);
	vm->error_output = port_open_fd(2, 1);
	vm->standard[0] = vm->input;
	vm->standard[1] = vm->output;
	vm->standard[2] = vm->error_output;
	if (has_code && (refusal = jit_start(vm)) != NULL)
		return refusal;
	init_numbers(ctx);
	init_lists(ctx);
	init_strings(ctx);
	init_chars(ctx);
	init_vectors(ctx);
	init_records(ctx);
	init_rows(ctx);
	init_ports(ctx);
	init_control(ctx);
	init_fibers(ctx);
	init_threads(ctx);
	init_system(ctx);
	init_jit_primitives(ctx);
	init_profiles(ctx);
	init_images(ctx);
	memory_limit();
	if (!vm->options.load)
		load_prelude(ctx);
	return NULL;
}

static void destroy(struct vm *vm)
{
	jit_stop(vm);
	context_destroy(vm->main);
	GC_FREE(vm);
}

struct vm *vm_create(const struct vm_options *options)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct catcher catcher;
	const char *volatile refusal = NULL;

	pthread_once(&once, start_collector);
	struct vm *vm = GC_MALLOC_UNCOLLECTABLE(sizeof *vm);
	struct context *ctx = NULL;
	if (vm) {
		memset(vm, 0, sizeof *vm);
		if (options)
			vm->options = *options;
		if (!vm->options.stack_bytes)
			vm->options.stack_bytes = DEFAULT_STACK_BYTES;
		pthread_mutex_init(&vm->lock, NULL);
		pthread_mutex_init(&vm->out_lock, NULL);
		vm->load_file = V_FALSE;
		vm->memory_error = V_NONE;
		ctx = context_create(vm);
	}
	if (!ctx) {
		GC_FREE(vm);
		fputs("scheme: no memory for the stack of values\n", stderr);
		return NULL;
	}
	vm->main = ctx;
	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		refusal = fill(ctx);
	} else {
		refusal = "the prelude failed";
		if (catcher.error == V_NONE || catcher.error == vm->memory_error)
			refusal = "out of memory";
		else
			vm_report_error(ctx, catcher.error);
	}
	catcher_leave(ctx, &catcher);
	if (!refusal && (!vm->options.load || load_image(ctx)))
		return vm;
	if (refusal)
		fprintf(stderr, "scheme: %s\n", refusal);
	destroy(vm);
	return NULL;
}

/* The threads of the VM must have ended. */
void vm_destroy(struct vm *vm)
{
	vm_flush(vm);
	destroy(vm);
}

void vm_flush(struct vm *vm)
{
	pthread_mutex_lock(&vm->out_lock);
	port_flush(vm->output);
	port_flush(vm->error_output);
	for (struct port *file = vm->files; file; file = file->next_file)
		port_flush(file);
	pthread_mutex_unlock(&vm->out_lock);
}

void vm_capture_output(struct vm *vm)
{
	vm_flush(vm);
	vm->output = port_open_buffer();
	vm->error_output = vm->output;
}

const char *vm_captured(struct vm *vm, size_t *bytes)
{
	*bytes = (size_t)vm->output->length;
	return vm->output->bytes;
}

int64_t vm_interpreted_calls(struct vm *vm)
{
	return vm->main->interpreted_calls + vm->interpreted_calls_ended;
}

void vm_enable_hooks(struct vm *vm, const struct vm_hooks *hooks) { vm->hooks = *hooks; }

/* ---- running text ---- */

static void note_names(struct context *ctx, value names)
{
	for (; is_pair(names); names = CDR(names))
		note_names(ctx, CAR(names));
	if (is_symbol(names))
		cell_of(ctx, names)->is_builtin = 0;
}

/* The name of a record's type, constructor and predicate; the procedures of a field. */
static value names_of(value part, int is_field)
{
	if (is_pair(part))
		return is_field ? CDR(part) : CAR(part);
	return is_field ? V_NIL : part;
}

static void prescan_form(struct context *ctx, value form)
{
	value rest = is_pair(form) ? CDR(form) : V_NIL;

	check_c_stack(ctx);
	if (!is_pair(rest))
		return;
	value head = CAR(form), name = CAR(rest);
	if (head == intern("begin"))
		for (; is_pair(rest); rest = CDR(rest))
			prescan_form(ctx, CAR(rest));
	else if (head == intern("define-values"))
		note_names(ctx, name);
	else if (head == intern("define-record-type"))
		for (int i = 0; is_pair(rest); rest = CDR(rest), i++)
			note_names(ctx, names_of(CAR(rest), i >= 3));
	else if (head == intern("define") || head == intern("set!")) {
		while (is_pair(name))
			name = CAR(name);
		note_names(ctx, name);
	}
}

/* A built-in's name defined anywhere at a program's top level means the definition everywhere. What
 * cannot be read is an error later, behind the forms in front of it. The forms are read again then:
 * kept until they run, they and their positions take more memory than the code. */
static void prescan(struct context *ctx, const struct port *port)
{
	struct port *copy = port_open_string(port->bytes, port->length);
	value handlers = ctx->now.handlers;
	struct catcher catcher;

	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		ctx->now.handlers = V_NIL;
		for (;;) {
			value form = read_datum(ctx, copy, V_FALSE);
			if (form == V_EOF)
				break;
			prescan_form(ctx, form);
		}
	}
	catcher_leave(ctx, &catcher);
	ctx->now.handlers = handlers;
}

/* Shuts the port: the program may leave the text by an escape. */
static void read_whole(struct context *ctx, struct port *port)
{
	struct port *text = port_open_buffer();

	while (port_peek_byte(ctx, port) >= 0) {
		port_write_bytes(text, port->bytes + port->position,
				 (size_t)(port->length - port->position));
		port->position = port->length;
	}
	port_shut(port);
	prescan(ctx, text);
	port->bytes = text->bytes;
	port->position = 0;
	port->length = text->length;
}

static value run_form(struct context *ctx, value form, value positions)
{
	struct expander e = {ctx, positions, 0};
	value v = V_UNSPEC;

	if (is_pair(form) && form_of(&e, NULL, CAR(form)) == FORM_BEGIN && list_length(form) > 0) {
		for (form = CDR(form); is_pair(form); form = CDR(form))
			v = run_form(ctx, CAR(form), positions);
		return v;
	}
	return apply(ctx, compile_toplevel(ctx, form, positions), 0, NULL);
}

value load_port(struct context *ctx, struct port *port, int may_prescan)
{
	value v = V_UNSPEC;

	if (may_prescan)
		read_whole(ctx, port);
	for (;;) {
		value positions = make_positions(ctx);
		ctx->vm->load_file = port->name;
		value form = read_datum(ctx, port, positions);
		if (form == V_EOF)
			return v;
		v = run_form(ctx, form, positions);
	}
}

static void report_place(struct port *port, const struct condition *c)
{
	char line[32];

	if (!is_type(c->file, T_STRING))
		return;
	for (int64_t i = 0; i < AS(string, c->file)->length; i++)
		port_write_char(port, AS(string, c->file)->chars[i]);
	snprintf(line, sizeof line, ":%lld: ", (long long)c->line);
	port_puts(port, line);
}

static void report_whole(struct context *ctx, struct port *text, value error)
{
	if (is_type(error, T_CONDITION)) {
		report_place(text, AS(condition, error));
		write_condition(ctx, text, error);
	} else {
		port_puts(text, "uncaught object: ");
		write_value(ctx, text, error, 0);
	}
}

/* Prints the written part, or place and message. A port on a descriptor needs no memory. */
static void report_part(struct context *ctx, const struct port *text, value error)
{
	struct port *port = ctx->vm->error_output;
	value message = is_type(error, T_CONDITION) ? AS(condition, error)->message : V_FALSE;

	if (text && text->length) {
		port_write_bytes(port, text->bytes, (size_t)text->length);
	} else if (is_type(message, T_STRING)) {
		report_place(port, AS(condition, error));
		for (int64_t i = 0; i < AS(string, message)->length; i++)
			port_write_char(port, AS(string, message)->chars[i]);
	}
	port_puts(port, " ... (the rest of the error cannot be printed)\n");
}

void vm_report_error(struct context *ctx, value error)
{
	struct catcher catcher;
	struct port *volatile text = NULL;
	int volatile is_told = 0;

	vm_flush(ctx->vm);
	for (int volatile part = 0; part < 2 && !is_told; part++) {
		catcher_enter(ctx, &catcher);
		if (_setjmp(catcher.target) == 0) {
			if (part) {
				report_part(ctx, text, error);
			} else {
				text = port_open_buffer();
				report_whole(ctx, text, error);
				port_puts(text, "\n");
				port_append(ctx, ctx->vm->error_output, text->bytes,
					    (size_t)text->length);
			}
			is_told = 1;
		}
		catcher_leave(ctx, &catcher);
	}
	vm_flush(ctx->vm);
}

int vm_print(struct context *ctx, value v)
{
	struct catcher catcher;
	int volatile is_printed = 0;

	if (v == V_UNSPEC || v == V_NONE)
		return 1;
	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		struct port *text = port_open_buffer();
		write_value(ctx, text, v, 0);
		port_write_char(text, '\n');
		port_append(ctx, ctx->vm->output, text->bytes, (size_t)text->length);
		is_printed = 1;
	}
	catcher_leave(ctx, &catcher);
	vm_flush(ctx->vm);
	if (!is_printed)
		vm_report_error(ctx, catcher.error);
	return is_printed;
}

static value run_port(struct context *ctx, struct port *port, int may_prescan)
{
	struct catcher catcher;
	value volatile v = V_NONE;

	ctx->last_error = V_NONE;
	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0)
		v = load_port(ctx, port, may_prescan);
	else
		ctx->last_error = catcher.error;
	catcher_leave(ctx, &catcher);
	return v;
}

static int outcome(struct context *ctx)
{
	vm_flush(ctx->vm);
	if (ctx->exit_code >= 0)
		return 2;
	if (ctx->last_error == V_NONE)
		return 0;
	vm_report_error(ctx, ctx->last_error);
	return 1;
}

int vm_run_file(struct context *ctx, const char *path)
{
	int is_stdin = !strcmp(path, "-");
	int fd = is_stdin ? 0 : open(path, O_RDONLY);

	if (fd < 0) {
		fprintf(stderr, "%s: cannot open\n", path);
		return 1;
	}
	struct port *port = is_stdin ? ctx->vm->input : port_open_fd(fd, 0);
	port->name = string_from(ctx, is_stdin ? "stdin" : path);
	run_port(ctx, port, !is_stdin);
	return outcome(ctx);
}

int vm_run_text(struct context *ctx, const char *text, size_t bytes, const char *name)
{
	struct port *port = port_open_string(text, (int64_t)bytes);

	port->name = string_from(ctx, name);
	run_port(ctx, port, 1);
	return outcome(ctx);
}

value vm_eval_string(struct context *ctx, const char *text, const char *name)
{
	struct port *port = port_open_string(text, (int64_t)strlen(text));

	port->name = string_from(ctx, name);
	return run_port(ctx, port, 0);
}
