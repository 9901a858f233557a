/* SPDX-License-Identifier: MIT
 * system.c: time, exit, eval, load and the collector as procedures.
 */
#include <errno.h>
#include <fcntl.h>
#define GC_THREADS
#include <gc/gc.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "profile.h"

PRIM(current_jiffy)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return make_fixnum((int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000);
}

PRIM(jiffies_per_second) { return make_fixnum(1000000); }

PRIM(current_second)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return make_flonum((double)now.tv_sec + (double)now.tv_nsec / 1e9);
}

/* Leaves through the outermost catcher, so that main and embedding programs see the code. */
PRIM(exit_of)
{
	int code = argc == 0 || args[0] == V_TRUE ? 0 : 1;
	struct catcher *outermost = ctx->now.catcher;

	if (argc > 0 && is_fixnum(args[0])) /* no failure ends as success */
		code = (uint64_t)fixnum_of(args[0]) > 255 ? 255 : (int)fixnum_of(args[0]);
	ctx->exit_code = code;
	ctx->now.handlers = V_NIL;
	if (ctx->thread != V_FALSE || ctx->fiber != ctx->main_fiber) {
		profile_finish(ctx);
		vm_flush(ctx->vm);
		_exit(code);
	}
	while (outermost->state.catcher)
		outermost = outermost->state.catcher;
	throw_to(ctx, outermost, V_FALSE);
}

/* Runs no thunk of dynamic-wind on the way. */
PRIM(emergency_exit)
{
	ctx->now.winders = V_NIL;
	return exit_of(ctx, args, argc);
}

PRIM(eval)
{
	value thunk = compile_toplevel(ctx, args[0], V_FALSE);
	return apply(ctx, thunk, 0, NULL);
}

PRIM(load)
{
	value file = ctx->vm->load_file;
	int fd = open(text_arg(ctx, "load", "file name", args[0]), O_RDONLY);
	if (fd < 0)
		raise_error(ctx, "file", "cannot open", 1, args[0]);
	struct port *port = port_open_fd(fd, 0);
	port->name = args[0];
	load_port(ctx, port, 1);
	ctx->vm->load_file = file;
	return V_UNSPEC;
}

PRIM(collect)
{
	GC_gcollect();
	return V_UNSPEC;
}

PRIM(heap_bytes) { return make_fixnum((int64_t)GC_get_heap_size()); }
PRIM(interpreted_calls) { return make_fixnum(vm_interpreted_calls(ctx->vm)); }
PRIM(environment) { return V_UNSPEC; }
PRIM(features) { return cons(ctx, intern("r7rs"), V_NIL); }
PRIM(command_line) { return cons(ctx, string_from(ctx, "scheme"), V_NIL); }

PRIM(getenv_of)
{
	const char *text = getenv(text_arg(ctx, "get-environment-variable", "name", args[0]));
	return text ? string_from(ctx, text) : V_FALSE;
}

PRIM(file_exists)
{
	return make_bool(access(text_arg(ctx, "file-exists?", "file name", args[0]), F_OK) == 0);
}

PRIM(delete_file)
{
	if (unlink(text_arg(ctx, "delete-file", "file name", args[0])))
		raise_error(ctx, "file", "cannot delete", 1, args[0]);
	return V_UNSPEC;
}

/* Returns 0 in the child. Refused beside other threads and VMs: their locks would stay locked. */
PRIM(fork_process)
{
	if (ctx->thread != V_FALSE || ctx->vm->threads_running != 0 || ctx->vm->options.beside)
		raise_error(ctx, "error", "fork-process: other threads are running", 0);
	vm_flush(ctx->vm);
	pid_t child = fork();
	if (child < 0)
		raise_error(ctx, "memory", "fork-process: no other process can be made", 0);
	return make_fixnum(child);
}

/* Returns the exit code of a child, or 128 and the signal that ended the child. */
PRIM(wait_process)
{
	int status;
	if (!is_fixnum(args[0]) || fixnum_of(args[0]) <= 0 || fixnum_of(args[0]) > INT32_MAX)
		raise_type(ctx, "wait-process", "process", args[0]);
	while (waitpid((pid_t)fixnum_of(args[0]), &status, 0) < 0)
		if (errno != EINTR)
			raise_error(ctx, "error", "wait-process: no child:", 1, args[0]);
	return make_fixnum(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

PRIM(void_of) { return V_UNSPEC; }

void init_system(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"current-jiffy", current_jiffy, 0, 0},
		{"jiffies-per-second", jiffies_per_second, 0, 0},
		{"current-second", current_second, 0, 0},
		{"exit", exit_of, 0, 1},
		{"emergency-exit", emergency_exit, 0, 1},
		{"eval", eval, 1, 2},
		{"load", load, 1, 2},
		{"gc", collect, 0, 0},
		{"heap-bytes", heap_bytes, 0, 0},
		{"interpreted-calls", interpreted_calls, 0, 0},
		{"interaction-environment", environment, 0, 0},
		{"system-global-environment", environment, 0, 0},
		{"environment", environment, 0, -1},
		{"scheme-report-environment", environment, 0, 1},
		{"features", features, 0, 0},
		{"command-line", command_line, 0, 0},
		{"get-environment-variable", getenv_of, 1, 1},
		{"file-exists?", file_exists, 1, 1},
		{"delete-file", delete_file, 1, 1},
		{"fork-process", fork_process, 0, 0},
		{"wait-process", wait_process, 1, 1},
		{"void", void_of, 0, -1},
	};

	DEFINE_PRIMS(ctx, defs);
}
