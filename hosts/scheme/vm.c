/* SPDX-License-Identifier: MIT
 * vm.c: a VM instance from creation to its end, and programs run in it from C.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define GC_THREADS
#include <fcntl.h>
#include <gc/gc.h>
#include <unistd.h>

#include "ast.h"
#include "image.h"
#include "jit.h"

enum { DEFAULT_STACK_BYTES = 64 << 20 };

static void ignore_warning(char *message, GC_word argument)
{
	(void)message;
	(void)argument;
}

static void start_collector(void)
{
	/* Heap objects are only pointed to by their start; stacks are scanned for inner pointers
	 * all the same. It saves the extra byte that would double a flonum. */
	GC_set_all_interior_pointers(0);
	GC_set_handle_fork(1); /* fork-process */
	GC_INIT();
	GC_set_warn_proc(ignore_warning);
	GC_allow_register_threads();
	init_forms();
	stacks_init();
}

/* The prelude's procedures get the names that forms.c uses too. */
static void hide_prelude(struct context *ctx)
{
	char hidden[96];
	struct vm *vm = ctx->vm;
	struct cell **found = GC_MALLOC((size_t)vm->cell_count * sizeof *found);
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

static int load_prelude(struct context *ctx)
{
	struct catcher catcher;
	struct port *port = port_open_string(prelude_source, (int64_t)strlen(prelude_source), NULL);

	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0)
		load_port(ctx, port, 0);
	catcher_leave(ctx, &catcher);
	if (catcher.error != V_NONE) {
		vm_report_error(ctx, catcher.error);
		return 0;
	}
	hide_prelude(ctx);
	return 1;
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

struct vm *vm_create(const struct vm_options *options)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, start_collector);
	struct vm *vm = GC_MALLOC_UNCOLLECTABLE(sizeof *vm);
	memset(vm, 0, sizeof *vm);
	if (options)
		vm->options = *options;
	if (!vm->options.stack_bytes)
		vm->options.stack_bytes = DEFAULT_STACK_BYTES;
	pthread_mutex_init(&vm->lock, NULL);
	pthread_mutex_init(&vm->out_lock, NULL);
	vm->load_file = V_FALSE;
	struct context *ctx = context_create(vm);
	if (!ctx) {
		GC_FREE(vm);
		return NULL;
	}
	vm->main = ctx;
	int has_code = vm->options.mode != MODE_INTERP || vm->options.trampolines;
	const char *refusal = has_code ? jit_start(vm) : NULL;
	if (refusal) {
		fprintf(stderr, "scheme: %s\n", refusal);
		context_destroy(ctx);
		GC_FREE(vm);
		return NULL;
	}
	vm->input = port_open_fd(0, 0, "stdin");
	vm->output = port_open_fd(1, 1, "stdout");
	vm->error_output = port_open_fd(2, 1, "stderr");
	vm->standard[0] = vm->input;
	vm->standard[1] = vm->output;
	vm->standard[2] = vm->error_output;
	init_numbers(ctx);
	init_lists(ctx);
	init_strings(ctx);
	init_chars(ctx);
	init_vectors(ctx);
	init_records(ctx);
	init_ports(ctx);
	init_control(ctx);
	init_fibers(ctx);
	init_threads(ctx);
	init_system(ctx);
	init_jit_primitives(ctx);
	init_profiles(ctx);
	init_images(ctx);
	if (!(vm->options.load ? load_image(ctx) : load_prelude(ctx))) {
		vm_destroy(vm);
		return NULL;
	}
	return vm;
}

/* The threads of the VM must have ended. */
void vm_destroy(struct vm *vm)
{
	vm_flush(vm);
	jit_stop(vm);
	context_destroy(vm->main);
	GC_FREE(vm);
}

void vm_flush(struct vm *vm)
{
	pthread_mutex_lock(&vm->out_lock);
	port_flush(vm->output);
	port_flush(vm->error_output);
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

/* A program that defines a built-in's name anywhere at its top level means its own everywhere. */
static void prescan(struct context *ctx, struct port *port)
{
	static const char word[] = "\n(define ";
	const char *at = port->bytes, *end = port->bytes + port->length;

	while (at && (at = memmem(at, (size_t)(end - at), word, sizeof word - 1)) != NULL) {
		char name[80];
		size_t count = 0;
		at += sizeof word - 1;
		while (at < end && (*at == '(' || *at == ' '))
			at++;
		while (at < end && !strchr(" ()\n\t\r", *at) && count + 1 < sizeof name)
			name[count++] = *at++;
		name[count] = 0;
		cell_of(ctx, intern(name))->is_builtin = 0;
	}
}

static void read_whole(struct context *ctx, struct port *port)
{
	struct port *text = port_open_buffer();

	port_write_bytes(text, "\n", 1);
	while (port_peek_byte(ctx, port) >= 0) {
		port_write_bytes(text, port->bytes + port->position,
				 (size_t)(port->length - port->position));
		port->position = port->length;
	}
	prescan(ctx, text);
	port->bytes = text->bytes;
	port->position = 1;
	port->length = text->length;
	port->fd = -1;
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

void vm_report_error(struct context *ctx, value error)
{
	struct port *text = port_open_buffer();
	struct catcher catcher;
	char line[32];

	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		if (is_type(error, T_CONDITION)) {
			struct condition *c = AS(condition, error);
			if (is_type(c->file, T_STRING)) {
				write_value(ctx, text, c->file, 1);
				snprintf(line, sizeof line, ":%lld: ", (long long)c->line);
				port_puts(text, line);
			}
			write_condition(ctx, text, error);
		} else {
			port_puts(text, "uncaught object: ");
			write_value(ctx, text, error, 0);
		}
	} else {
		port_puts(text, "... (the rest of the error cannot be printed)");
	}
	catcher_leave(ctx, &catcher);
	port_puts(text, "\n");
	vm_flush(ctx->vm);
	port_write_bytes(ctx->vm->error_output, text->bytes, (size_t)text->length);
	vm_flush(ctx->vm);
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
	struct port *port = is_stdin ? ctx->vm->input : port_open_fd(fd, 0, path);
	port->name = string_from(ctx, is_stdin ? "stdin" : path);
	run_port(ctx, port, !is_stdin);
	if (!is_stdin)
		close(fd);
	return outcome(ctx);
}

int vm_run_text(struct context *ctx, const char *text, size_t bytes, const char *name)
{
	struct port *port = port_open_string(text, (int64_t)bytes, name);

	port->name = string_from(ctx, name);
	run_port(ctx, port, 1);
	return outcome(ctx);
}

value vm_eval_string(struct context *ctx, const char *text, const char *name)
{
	struct port *port = port_open_string(text, (int64_t)strlen(text), name);

	port->name = string_from(ctx, name);
	return run_port(ctx, port, 0);
}
