/* SPDX-License-Identifier: MIT
 * main.c: the command line and the REPL of build/scheme.
 */
#define GC_THREADS
#include <errno.h>
#include <gc/gc.h>
#include <locale.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "image.h"
#include "profile.h"

enum { STACK_BYTES = 112 << 20 };

static const char usage[] =
	"usage: scheme [switches] [-e EXPR] [FILE | -] ...\n"
	"  no file: a REPL; -: a script from standard input; -e: evaluate and print\n"
	"  --interp --jit --arena     how programs run (default --jit)\n"
	"  --pool=BYTES --page=BYTES  code pool and page sizes\n"
	"  --gc-every-stub            collect at every stub that is hit\n"
	"  --gc-every-call=N          collect at every Nth interpreted call\n"
	"  --discard-every=N          discard all code at every Nth call\n"
	"  --beside=FILE              run FILE in VM instances that come and go meanwhile\n"
	"  --stack=BYTES              value stack of each thread\n"
	"  --save=FILE                write an image of the heap when all has run without error\n"
	"  --load=FILE                begin with an image in place of the prelude\n"
	"  --sinks=LIST               who is told about code, as CODEHEAP_SINKS\n"
	"  --dump-ir=DIR              write listings of bytecode; lines of code lead to them\n"
	"  --trampolines              interpreted procedures have names and frames, too\n"
	"  --profile=FILE             write a flame graph of the program (.folded: lines)\n"
	"  --profile-rate=N           samples a second of processor time (100)\n"
	"  --lines                    code has source lines, also where no sink shows them\n"
	"exit codes: 0 done, 1 an error in the program, 2 wrong use, else (exit N)\n";

static const char *after(const char *text, const char *prefix)
{
	size_t length = strlen(prefix);
	return strncmp(text, prefix, length) ? NULL : text + length;
}

static int parse_count(const char *text, int64_t *out)
{
	char *end;
	long long n = strtoll(text, &end, 0);

	if (end == text || *end || n < 0)
		return 0;
	*out = n;
	return 1;
}

/* Returns like parse_switch. */
static int take_count(const char *text, const char *rest, int64_t *out)
{
	if (parse_count(rest, out))
		return 1;
	fprintf(stderr, "scheme: %s: a whole number is wanted, as in %.*s1048576\n", text,
		(int)(rest - text), text);
	return -1;
}

struct command {
	struct vm_options options;
	const char *save;
	struct profile_request profile; /* path NULL: none */
	pid_t profiled;                 /* 0: no process */
};

/* Returns 1 when taken, 0 when text is no switch, -1 when wrong. */
static int parse_switch(struct command *command, const char *text)
{
#define AT(member) offsetof(struct command, member)
	static const struct {
		const char *text;
		enum { COUNT, TEXT, FLAG } kind;
		size_t offset;
		int flag;
	} switches[] = {
		{"--interp", FLAG, AT(options.mode), MODE_INTERP},
		{"--jit", FLAG, AT(options.mode), MODE_JIT},
		{"--arena", FLAG, AT(options.mode), MODE_ARENA},
		{"--gc-every-stub", FLAG, AT(options.gc_every_stub), 1},
		{"--trampolines", FLAG, AT(options.trampolines), 1},
		{"--lines", FLAG, AT(options.lines), 1},
		{"--pool=", COUNT, AT(options.pool_bytes), 0},
		{"--page=", COUNT, AT(options.page_bytes), 0},
		{"--discard-every=", COUNT, AT(options.discard_every), 0},
		{"--gc-every-call=", COUNT, AT(options.gc_every_calls), 0},
		{"--stack=", COUNT, AT(options.stack_bytes), 0},
		{"--profile-rate=", COUNT, AT(profile.rate), 0},
		{"--profile=", TEXT, AT(profile.path), 0},
		{"--beside=", TEXT, AT(options.beside), 0},
		{"--save=", TEXT, AT(save), 0},
		{"--load=", TEXT, AT(options.load), 0},
		{"--dump-ir=", TEXT, AT(options.dump_ir), 0},
		{"--sinks=", TEXT, AT(options.sinks), 0},
	};
#undef AT

	if (strncmp(text, "--", 2) != 0)
		return 0;
	for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
		const char *rest = after(text, switches[i].text);
		void *to = (char *)command + switches[i].offset;
		if (!rest || (switches[i].kind == FLAG && *rest) ||
		    (switches[i].kind == TEXT && !*rest))
			continue;
		if (switches[i].kind == COUNT)
			return take_count(text, rest, to);
		if (switches[i].kind == TEXT)
			*(const char **)to = rest;
		else
			*(int *)to = switches[i].flag;
		return 1;
	}
	return fprintf(stderr, "scheme: %s: no such switch\n", text), -1;
}

/* Runs one form; returns 0 at the end of the input. */
static int repl_step(struct context *ctx, value name)
{
	struct catcher catcher;
	int volatile is_open = 1;

	catcher_enter(ctx, &catcher);
	if (_setjmp(catcher.target) == 0) {
		value positions = make_positions(ctx);
		ctx->vm->load_file = name;
		value form = read_datum(ctx, ctx->vm->input, positions);
		if (form == V_EOF)
			is_open = 0;
		else
			vm_print(ctx,
				 apply(ctx, compile_toplevel(ctx, form, positions), 0, NULL));
	} else if (ctx->exit_code >= 0) {
		is_open = 0;
	} else {
		vm_report_error(ctx, catcher.error);
	}
	catcher_leave(ctx, &catcher);
	return is_open;
}

static int run_repl(struct context *ctx)
{
	int prompts = isatty(0);
	value name = string_from(ctx, "stdin");

	ctx->vm->input->name = name;
	do {
		if (prompts)
			port_append(ctx, ctx->vm->output, "> ", 2);
		vm_flush(ctx->vm);
	} while (repl_step(ctx, name));
	vm_flush(ctx->vm);
	return ctx->exit_code >= 0 ? 2 : 0;
}

static int run_expression(struct context *ctx, const char *text)
{
	value v = vm_eval_string(ctx, text, "-e");

	if (ctx->exit_code >= 0)
		return 2;
	if (ctx->last_error != V_NONE) {
		vm_report_error(ctx, ctx->last_error);
		return 1;
	}
	return vm_print(ctx, v) ? 0 : 1;
}

/* Saves only after an end without error. */
static int save_image(struct context *ctx, const char *path, int result)
{
	char why[IMAGE_WHY_BYTES];

	if (result == 1 || (result == 2 && ctx->exit_code != 0) || image_save(ctx, path, why))
		return result;
	fprintf(stderr, "scheme: --save: %s\n", why);
	return 1;
}

/* Names of interpreted procedures come from trampolines. */
static void prepare_profile(struct command *command, int argc, char **argv)
{
	struct profile_request *request = &command->profile;

	request->is_folded = profile_is_folded(request->path);
	if (command->options.mode == MODE_INTERP)
		command->options.trampolines = 1;
	for (int i = 1; i < argc && argv[i] && !request->title; i++)
		if (strncmp(argv[i], "--", 2) != 0)
			request->title = !strcmp(argv[i], "-e") ? argv[i + 1] : argv[i];
}

static int begin_profile(struct context *ctx, struct command *command)
{
	char why[PROFILE_WHY_BYTES];

	command->profiled = getpid();
	if (profile_begin(ctx, &command->profile, why) > 0)
		return 1;
	fprintf(stderr, "scheme: --profile: %s: %s\n", command->profile.path, why);
	return 0;
}

/* Prints no line in a child of fork, which has no profile. */
static int end_profile(struct context *ctx, const struct command *command, int result)
{
	char text[128];

	if (!profile_finish(ctx))
		return result == 2 && ctx->exit_code != 0 ? 2 : 1;
	profile_describe(text, sizeof text);
	if (command->profiled == getpid())
		fprintf(stderr, "scheme: %s: %s\n", command->profile.path, text);
	return result;
}

/* ---- --beside=FILE ---- */

/* While the program runs, a thread makes another VM instance in the same process, runs FILE in it
 * and destroys it, over and over. Both VMs share the code heap. */
struct beside {
	struct vm_options options;
	atomic_int must_stop;
	int runs, failures;
	char *first; /* output of the first run */
	size_t first_bytes;
	pthread_t thread;
};

static void compare_output(struct beside *beside, struct vm *vm)
{
	size_t bytes;
	const char *text = vm_captured(vm, &bytes);

	if (!beside->first) {
		beside->first = malloc(bytes + 1);
		beside->first_bytes = bytes;
		if (beside->first)
			memcpy(beside->first, text, bytes);
	} else if (bytes != beside->first_bytes || memcmp(text, beside->first, bytes) != 0) {
		beside->failures++;
	}
}

static void *run_beside(void *argument)
{
	struct beside *beside = argument;

	do {
		struct vm *vm = vm_create(&beside->options);
		if (!vm) {
			beside->failures++;
			break;
		}
		vm_capture_output(vm);
		if (vm_run_file(vm->main, beside->options.beside) != 0)
			beside->failures++;
		compare_output(beside, vm);
		beside->runs++;
		vm_destroy(vm);
	} while (!atomic_load(&beside->must_stop));
	return NULL;
}

static struct beside *beside_start(const struct vm_options *options)
{
	struct beside *beside = calloc(1, sizeof *beside);

	if (!beside)
		return NULL;
	beside->options = *options;
	if (pthread_create(&beside->thread, NULL, run_beside, beside)) {
		free(beside);
		return NULL;
	}
	return beside;
}

/* Returns the number of failed runs. */
static int beside_stop(struct beside *beside)
{
	int failures;

	atomic_store(&beside->must_stop, 1);
	pthread_join(beside->thread, NULL);
	failures = beside->failures;
	fprintf(stderr, "beside: %d runs, %d failures\n", beside->runs, failures);
	free(beside->first);
	free(beside);
	return failures;
}

/* ---- start ---- */

/* Machine code calls on the C stack, the interpreter does not: the C stack gets room to recurse as
 * deep as the value stack. The system leaves at least 128 MiB below the stack. Under a limit of the
 * address space a full heap would keep the stack from growing, and the result is a signal, not an
 * error: so the stack gets its room first. Returns 0 without room. */
static int grow_stack(void)
{
	struct rlimit space, stack;
	size_t margin = 64 << 10;

	if (getrlimit(RLIMIT_AS, &space) || getrlimit(RLIMIT_STACK, &stack) ||
	    stack.rlim_cur == RLIM_INFINITY)
		return 1;
	if (space.rlim_cur == RLIM_INFINITY) {
		if (stack.rlim_cur < STACK_BYTES) {
			stack.rlim_cur = stack.rlim_max < STACK_BYTES ? stack.rlim_max
								      : STACK_BYTES;
			return setrlimit(RLIMIT_STACK, &stack) == 0 || errno == EPERM;
		}
		return 1;
	}
	if (stack.rlim_cur < 4 * margin)
		return 1;
	size_t bytes = stack.rlim_cur - 2 * margin;
	void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			  0);
	if (room == MAP_FAILED)
		return 0;
	munmap(room, bytes);
	*(volatile char *)((char *)__builtin_frame_address(0) - bytes) = 0;
	return 1;
}

int main(int argc, char **argv)
{
	struct command command = {.options.mode = MODE_JIT, .profile.rate = PROFILE_RATE};
	int result = 0, has_run = 0;
	struct beside *beside = NULL;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--help"))
			return fputs(usage, stdout) < 0 || fflush(stdout);
		int is_wrong = parse_switch(&command, argv[i]) < 0;
		if (is_wrong || (!strcmp(argv[i], "-e") && ++i == argc)) {
			fputs(usage, stderr);
			return 2;
		}
	}
	setlocale(LC_CTYPE, "C.UTF-8");
	if (!grow_stack()) {
		fputs("scheme: no memory for the stack\n", stderr);
		return 1;
	}
	if (command.profile.path)
		prepare_profile(&command, argc, argv);
	struct vm *vm = vm_create(&command.options);
	if (!vm)
		return 1;
	struct context *ctx = vm->main;
	if (command.profile.path && !begin_profile(ctx, &command))
		return 1;
	if (command.options.beside && !(beside = beside_start(&command.options))) {
		fputs("scheme: --beside: no memory for a thread\n", stderr);
		return 1;
	}
	for (int i = 1; i < argc && result == 0; i++) {
		if (!strncmp(argv[i], "--", 2))
			continue;
		has_run = 1;
		result = !strcmp(argv[i], "-e") ? run_expression(ctx, argv[++i])
						: vm_run_file(ctx, argv[i]);
	}
	if (!has_run)
		result = run_repl(ctx);
	vm_flush(vm);
	if (beside && beside_stop(beside) && result == 0)
		result = 1;
	result = end_profile(ctx, &command, result);
	if (command.save)
		result = save_image(ctx, command.save, result);
	if (vm->output->lost) {
		fprintf(stderr, "scheme: output was lost: %s\n", strerror(vm->output->lost));
		return 1;
	}
	return result == 2 ? ctx->exit_code : result;
}
