/* SPDX-License-Identifier: MIT
 * lli.c: codeheap-lli [options] file.bc [arguments...]: runs a program of bitcode, as LLVM's own
 * lli does, with the code on a code heap. The exit status is the program's; 2 = there was no
 * program to run, 77 = this kernel has no MDWE. */
#include <errno.h>
#include <getopt.h>
#include <llvm-c/BitReader.h>
#include <llvm-c/Core.h>
#include <llvm-c/Target.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "codeheap_llvm.h"
#include "program.h"

enum {
	NO_PROGRAM = 2,
	SKIPPED = 77,
	EXTRAS_MOST = 16,
	MDWE_OF_PRCTL = 65, /* PR_SET_MDWE; headers of older kernels lack the name */
	MDWE_REFUSES_GAIN = 1,
};

static struct {
	bool drops, shows_statistics, denies_itself;
	unsigned long times;
	unsigned level;
	size_t pool_bytes;
	const char *extras[EXTRAS_MOST];
	size_t extras_used;
	const char *file;
	int argc;
	char **argv;
} options = {.times = 1, .level = 2};

extern char **environ;

/* One load of the program, with a context of its own, so that LLVM keeps nothing of the load. */
struct load {
	LLVMContextRef context;
	LLVMExecutionEngineRef engine;
	struct codeheap_llvm_module *module;
};

static void usage(FILE *out)
{
	fprintf(out, "usage: codeheap-lli [options] file.bc [arguments...]\n"
		     "  --extra=FILE.bc      a further module, linked with the program's (may be "
		     "repeated)\n"
		     "  --times=N            load and run the program N times\n"
		     "  --drop               drop each load when it has run, and collect its code\n"
		     "  --opt=0..3           how much LLVM optimizes; 2\n"
		     "  --pool=MIB           the heap's pool; by default the library's\n"
		     "  --mdwe               first deny this process new executable rights "
		     "(PR_SET_MDWE)\n"
		     "  --stats              the heap's statistics as JSON on stderr at the end\n"
		     "  --help               this text\n");
}

static _Noreturn void no_program(const char *what, const char *why)
{
	fprintf(stderr, "codeheap-lli: %s: %s\n", what, why);
	exit(NO_PROGRAM);
}

static void must(enum ch_status status, const char *what)
{
	if (status != CH_OK)
		no_program(what, status == CH_E_MEMORY ? ch_status_text(status) : ch_why());
}

static unsigned long number(const char *text, unsigned long least, unsigned long most)
{
	char *end;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || end == text || *end || value < least || value > most)
		no_program(text, "not a number in the option's range");
	return value;
}

static void read_options(int argc, char **argv)
{
	enum { TIMES = 256, DROP, EXTRA, OPT, POOL, MDWE, STATS, HELP };
	static const struct option known[] = {
		{"times", required_argument, NULL, TIMES},
		{"drop", no_argument, NULL, DROP},
		{"extra", required_argument, NULL, EXTRA},
		{"opt", required_argument, NULL, OPT},
		{"pool", required_argument, NULL, POOL},
		{"mdwe", no_argument, NULL, MDWE},
		{"stats", no_argument, NULL, STATS},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0},
	};
	/* "+": the words behind the file are the program's. */
	for (int c; (c = getopt_long(argc, argv, "+", known, NULL)) != -1;) {
		switch (c) {
		case TIMES:
			options.times = number(optarg, 1, 1000000);
			break;
		case DROP:
			options.drops = true;
			break;
		case EXTRA:
			if (options.extras_used == EXTRAS_MOST)
				no_program(optarg, "too many modules");
			options.extras[options.extras_used++] = optarg;
			break;
		case OPT:
			options.level = (unsigned)number(optarg, 0, 3);
			break;
		case POOL:
			options.pool_bytes = number(optarg, 1, 1024) << 20;
			break;
		case MDWE:
			options.denies_itself = true;
			break;
		case STATS:
			options.shows_statistics = true;
			break;
		case HELP:
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(NO_PROGRAM);
		}
	}
	if (optind == argc) {
		usage(stderr);
		exit(NO_PROGRAM);
	}
	options.file = argv[optind];
	options.argc = argc - optind;
	options.argv = argv + optind;
}

/* --- loading --- */

static LLVMModuleRef read_module(LLVMContextRef context, const char *file)
{
	LLVMMemoryBufferRef bytes;
	LLVMModuleRef module;
	char *text = NULL;
	if (LLVMCreateMemoryBufferWithContentsOfFile(file, &bytes, &text))
		no_program(file, text);
	LLVMBool has_failed = LLVMParseBitcodeInContext2(context, bytes, &module);
	LLVMDisposeMemoryBuffer(bytes);
	if (has_failed)
		no_program(file, "not LLVM bitcode that this LLVM reads");
	return module;
}

static void on_fatal_error(const char *reason)
{
	no_program("LLVM", reason);
}

/* Without this handler LLVM ends the process with a status of its own. */
static void on_diagnostic(LLVMDiagnosticInfoRef diagnostic, void *unused)
{
	(void)unused;
	if (LLVMGetDiagInfoSeverity(diagnostic) != LLVMDSError)
		return;
	char *text = LLVMGetDiagInfoDescription(diagnostic);
	fprintf(stderr, "codeheap-lli: %s\n", text);
	LLVMDisposeMessage(text);
}

static void load_program(struct codeheap_llvm *llvm, struct load *load)
{
	struct LLVMMCJITCompilerOptions compiler;
	char *text = NULL;
	load->context = LLVMContextCreate();
	LLVMContextSetDiagnosticHandler(load->context, on_diagnostic, NULL);
	LLVMModuleRef module = read_module(load->context, options.file);
	LLVMInitializeMCJITCompilerOptions(&compiler, sizeof compiler);
	compiler.OptLevel = options.level;
	/* A sampler can walk frames with frame pointers without tables. */
	compiler.NoFramePointerElim = 1;
	const char *slash = strrchr(options.file, '/');
	must(codeheap_llvm_module_create(llvm, slash ? slash + 1 : options.file, &load->module,
					 &compiler.MCJMM),
	     "a module");
	if (LLVMCreateMCJITCompilerForModule(&load->engine, module, &compiler, sizeof compiler,
					     &text))
		no_program(options.file, text);
	program_map(load->engine, module);
	for (size_t i = 0; i < options.extras_used; i++) {
		LLVMModuleRef extra = read_module(load->context, options.extras[i]);
		LLVMAddModule(load->engine, extra);
		program_map(load->engine, extra);
	}
}

/* MCJIT gives an address also when a symbol or memory was missing. */
static void must_run(const struct load *load)
{
	char *text = NULL;
	if (LLVMExecutionEngineGetErrMsg(load->engine, &text))
		no_program(options.file, text);
	if (codeheap_llvm_module_error(load->module))
		no_program(options.file, codeheap_llvm_module_error(load->module));
}

static int run_main(void *arg)
{
	struct load *load = arg;
	uint64_t at = LLVMGetFunctionAddress(load->engine, "main");
	if (!at)
		no_program(options.file, "no function main");
	must_run(load);
	LLVMRunStaticConstructors(load->engine);
	must_run(load);
	int (*start)(int, char **, char **) = (int (*)(int, char **, char **))(uintptr_t)at;
	return start(options.argc, options.argv, environ);
}

static int end_program(void *arg)
{
	struct load *load = arg;
	LLVMRunStaticDestructors(load->engine);
	return 0;
}

static void drop(const struct load *load)
{
	LLVMDisposeExecutionEngine(load->engine);
	LLVMContextDispose(load->context);
}

/* A thread of the program's that blocks all signals cannot be stopped. Then nothing is freed here;
 * a later collection frees the rest. */
static void collect(struct ch_heap *heap)
{
	enum ch_status status = ch_heap_collect(heap);
	if (status != CH_E_BUSY)
		must(status, "a collection");
}

static int run_program(struct codeheap_llvm *llvm, struct ch_heap *heap)
{
	struct load *loads = calloc(options.drops ? 1 : options.times, sizeof *loads);
	int status = 0;
	if (!loads)
		no_program(options.file, "no memory");
	for (unsigned long i = 0; i < options.times; i++) {
		struct load *load = &loads[options.drops ? 0 : i];
		load_program(llvm, load);
		status = program_run(run_main, load);
		(void)program_run(end_program, load);
		if (!options.drops)
			continue;
		drop(load);
		collect(heap);
	}
	for (unsigned long i = 0; !options.drops && i < options.times; i++)
		drop(&loads[i]);
	free(loads);
	return status;
}

static void show_statistics(struct ch_heap *heap)
{
	struct ch_stats stats = {.size = sizeof stats};
	must(ch_heap_stats(heap, &stats), "the statistics");
	fprintf(stderr, "{\"version\":\"%s\",\"backend\":\"%s\",\"sinks_on\":%u", stats.version,
		stats.backend, stats.sinks_on);
#define X(name) fprintf(stderr, ",\"" #name "\":%llu", (unsigned long long)stats.name);
	CH_STATS_LIST(X)
#undef X
	fputs("}\n", stderr);
}

int main(int argc, char **argv)
{
	struct ch_config config;
	struct ch_heap *heap;
	struct codeheap_llvm *llvm;
	read_options(argc, argv);
	if (options.denies_itself && prctl(MDWE_OF_PRCTL, MDWE_REFUSES_GAIN, 0L, 0L, 0L) != 0) {
		fprintf(stderr, "codeheap-lli: this kernel has no PR_SET_MDWE: %s\n",
			strerror(errno));
		return SKIPPED;
	}
	LLVMInstallFatalErrorHandler(on_fatal_error);
	LLVMLinkInMCJIT();
	if (LLVMInitializeNativeTarget() || LLVMInitializeNativeAsmPrinter())
		no_program("LLVM", "it has no target for this machine");
	ch_config_init(&config);
	config.pool_bytes = options.pool_bytes;
	/* The threads of a program never poll. */
	config.stop_signal = SIGRTMIN + 4;
	must(ch_heap_create(&config, &heap), "a heap");
	must(ch_trap_install(heap), "a handler of traps");
	must(ch_thread_attach(heap, NULL, NULL), "the thread");
	must(codeheap_llvm_create(heap, CODEHEAP_LLVM_MAY_COLLECT, &llvm), "LLVM's part");
	program_start(heap);
	int status = run_program(llvm, heap);
	if (options.shows_statistics)
		show_statistics(heap);
	/* Threads left running by the program end with the process, as native threads do. */
	return status;
}
