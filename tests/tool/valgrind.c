/* SPDX-License-Identifier: MIT
 * valgrind.c: code in a heap under Valgrind with its default flags: reused code runs rightly;
 * memcheck reports a read of freed code and names the block, and reports nothing of a clean
 * program: scans of stacks, fibers, walks, forks, code alive at the end. A case starts itself again
 * under Valgrind; the products and the Scheme are in valgrind.sh. */
#define _GNU_SOURCE
#include "tests/support/heap_rig.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPORTED = 99, LIMIT_S = 180, MIB = 1 << 20 };

static char said[32768];

static bool is_under_valgrind(void)
{
	return getenv("CODEHEAP_TEST_UNDER_VALGRIND") != NULL;
}

static void exec_valgrind(const char *name)
{
	char exit_code[32], self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	CHECK(n > 0);
	self[n] = 0;
	snprintf(exit_code, sizeof exit_code, "--error-exitcode=%d", REPORTED);
	setenv("CODEHEAP_TEST_UNDER_VALGRIND", "1", 1);
	setenv("CODEHEAP_WX", "", 1); /* the self-test chooses */
	execlp("valgrind", "valgrind", "-q", "--leak-check=full", exit_code, self, name,
	       (char *)NULL);
	FAIL("valgrind cannot be started");
}

static void drain(int fd)
{
	size_t used = 0;
	char rest[512];
	for (;;) {
		bool is_full = used == sizeof said - 1;
		ssize_t n = read(fd, is_full ? rest : said + used,
				 is_full ? sizeof rest : sizeof said - 1 - used);
		if (n <= 0)
			break;
		used += is_full ? 0 : (size_t)n;
	}
	said[used] = 0;
}

/* Runs the case under Valgrind, with the output in said[]; returns the exit status. */
static int run_case(const char *name)
{
	int ends[2], status;
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	if (sanitizer && *sanitizer)
		skip("a sanitizer's program does not run under Valgrind");
	CHECK_EQ(pipe(ends), 0);
	pid_t pid = fork_child();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		exec_valgrind(name);
	}
	close(ends[1]);
	drain(ends[0]);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		FAIL("valgrind: %s: died of %s\n%.800s", name, strsignal(WTERMSIG(status)), said);
	return WEXITSTATUS(status);
}

static void expect_clean(const char *name)
{
	int status = run_case(name);
	if (status == REPORTED)
		FAIL("valgrind: memcheck reports in a clean program:\n%.800s", said);
	if (status)
		FAIL("valgrind: %s exited with %d: %.3000s", name, status, said);
}

static void expect_said(const char *name, const char *wanted)
{
	if (!strstr(said, wanted))
		FAIL("valgrind: %s: memcheck does not say \"%s\":\n%.800s", name, wanted, said);
}

/* --- bodies: run under Valgrind --- */

static void run_reused_code(void)
{
	struct rig rig = rig_start(MIB);
	const uint8_t *first = NULL;
	for (uint32_t i = 1; i <= 40; i++) {
		struct ch_owner owner = rig_owner(&rig, "reused");
		struct ch_block block = rig_block(owner, i);
		const uint8_t *at = block_info(block).entry;
		first = first ? first : at;
		CHECK_EQ(at, first);
		CHECK_EQ(code_call(at), i);
		CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	}
	rig_end(&rig);
}

/* Code that has run leads elsewhere after a single store into the code. */
static void run_linked_code(void)
{
	struct rig rig = rig_start(MIB);
	struct ch_owner owner = rig_owner(&rig, "linked");
	struct ch_branch branch;
	struct ch_block one = rig_block(owner, 1), two = rig_block(owner, 2),
			from = rig_jumper(owner, NULL, &branch);
	for (uint32_t i = 0; i < 10; i++) {
		CHECK_EQ(ch_branch_link(branch, i % 2 ? one : two), CH_OK);
		CHECK_EQ(code_call(block_info(from).entry), i % 2 ? 1 : 2);
	}
	rig_end(&rig);
}

static void drop_and_collect(struct rig *rig, struct ch_owner owner)
{
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(rig, 3);
}

static void read_freed_code(void)
{
	struct rig rig = rig_start(MIB);
	struct ch_owner owner = rig_owner(&rig, "freed"), kept = rig_owner(&rig, "kept");
	struct ch_block block = rig_block(owner, 7), neighbour = rig_block(kept, 8);
	const volatile uint8_t *at = block_info(block).exec;
	CHECK_EQ(*at, *(const volatile uint8_t *)block_info(neighbour).exec);
	CHECK_EQ(ch_owner_set_entry(kept, neighbour), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	drop_and_collect(&rig, owner);
	CHECK(!rig_is_there(block));
	printf("%u\n", *at); /* reported */
	rig_end(&rig);
}

/* Each part, also of a block that an abort ends. */
static void read_open_code(void)
{
	struct rig rig = rig_start(MIB);
	struct emitter e;
	for (int i = 0; i < 3; i++) {
		struct ch_open open = {
			.owner = rig_owner(&rig, "open"), .hot_bytes = 64, .cold_bytes = 16};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_answer(&e, 5);
		e.code.cold_used = 16;
		const volatile uint8_t *exec = e.code.exec, *cold = e.code.cold_exec;
		if (i == 0)
			printf("%u\n", *exec); /* reported */
		if (i == 1)
			printf("%u\n", cold[15]); /* reported */
		if (i == 2) {
			CHECK_EQ(ch_block_abort(&e.code), CH_OK);
			break;
		}
		CHECK_EQ(emit_commit(&e), CH_OK);
		printf("%u\n", exec[0] + cold[15]);
		CHECK_EQ(code_call((const uint8_t *)exec), 5);
	}
	rig_end(&rig);
}

static void write_given_back_code(void)
{
	struct rig rig = rig_start(MIB);
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "short"), 512, 0);
	emit_answer(&e, 1);
	volatile uint8_t *write = e.code.write;
	CHECK_EQ(emit_commit(&e), CH_OK);
	/* After the commit the rest of the room does not belong to the block. */
	write[256] = write[264];
}

static void call_c(const void *owner)
{
	char hole[600];
	__asm__ volatile("" ::"r"(hole) : "memory"); /* words of this frame have no value */
	CHECK_EQ(ch_heap_collect(*(struct ch_heap *const *)owner), CH_OK);
}

static void use_graph(struct rig *rig)
{
	struct ch_owner owner = rig_owner(rig, "graph");
	struct ch_branch branch;
	struct ch_block leaf = rig_block(owner, 5), from = rig_jumper(owner, NULL, &branch);
	CHECK_EQ(ch_branch_link(branch, leaf), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, from), CH_OK);
	CHECK_EQ(code_call_owner(owner), 5);
	for (int i = 0; i < 3; i++)
		call_c(&rig->heap);
	CHECK_EQ(code_call_owner(owner), 5);
	struct emitter e;
	emit_open(&e, owner, 300, 2);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_blocks_invalidate(&leaf, 1, NULL), CH_OK);
	rig_check(rig);
	drop_and_collect(rig, owner);
	rig_check(rig);
}

/* With and without a cold part; with CODEHEAP_TEST_LONG=1 each again where others were. */
static void use_spans(struct rig *rig)
{
	const char *asked = getenv("CODEHEAP_TEST_LONG");
	const int n = asked && strcmp(asked, "1") == 0 ? 6 : 2;
	for (int i = 0; i < n; i++) {
		struct ch_owner owner = rig_owner(rig, "span");
		struct emitter e;
		emit_open(&e, owner, (uint32_t)(3 * rig_page_bytes()), (uint32_t)(i % 2));
		emit_answer(&e, 3);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(code_call(block_info(e.code.block).entry), 3);
		drop_and_collect(rig, owner);
	}
}

static void use_fiber(struct rig *rig)
{
	enum { WORDS = 512 };
	uintptr_t *stack = malloc(WORDS * sizeof *stack); /* words without values */
	struct ch_fiber *fiber;
	CHECK(stack);
	CHECK_EQ(ch_fiber_attach(rig->heap, stack, stack + WORDS, &fiber), CH_OK);
	ch_fiber_suspend(fiber, stack + WORDS / 2);
	CHECK_EQ(ch_heap_collect(rig->heap), CH_OK);
	ch_fiber_resume(fiber);
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	free(stack);
}

static struct ch_heap *walked;
static size_t walked_frames;

static void walk_here(void)
{
	const void *pcs[32];
	for (int how = CH_BACKTRACE_FRAMES; how <= CH_BACKTRACE_TABLES; how++) {
		size_t n = ch_backtrace(walked, (enum ch_backtrace)how, NULL, pcs, 32);
		for (size_t i = 0; i < n; i++)
			walked_frames += pcs[i] != NULL; /* reported when without a value */
	}
}

/* Calls fn with fp in the frame pointer's register, as code without frame pointers may. */
void call_with_fp(void (*fn)(void), uintptr_t fp);
__asm__("	.text\n"
	"call_with_fp: .cfi_startproc\n"
	"	pushq %rbp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	.cfi_offset %rbp, -16\n"
	"	movq %rsi, %rbp\n"
	"	callq *%rdi\n"
	"	popq %rbp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	ret\n"
	"	.cfi_endproc\n");

static void use_backtraces(struct rig *rig)
{
	uintptr_t *volatile words = malloc(8 * sizeof *words); /* without values */
	CHECK(words);
	walked = rig->heap;
	call_with_fp(walk_here, words[3]);
	CHECK(walked_frames > 0);
	free(words);
}

/* More than two chunks, given back to the system and taken again. */
static void use_chunks(struct rig *rig)
{
	for (int round = 0; round < 2; round++) {
		struct ch_owner owner = rig_owner(rig, "chunks");
		for (int i = 0; i < 300; i++) {
			struct emitter e;
			emit_open(&e, owner, 8000, 0);
			memset(e.code.write, 0xc3, 8000);
			e.at = 8000;
			CHECK_EQ(emit_commit(&e), CH_OK);
		}
		drop_and_collect(rig, owner);
		rig_check(rig);
	}
}

/* The dump has the bytes of code that is being committed. */
static void use_jitdump(void)
{
	char folder[] = "/tmp/ch-valgrind-XXXXXX";
	struct ch_config config = rig_config(MIB);
	const char *path;
	int failed;
	CHECK(mkdtemp(folder));
	config.sinks = CH_SINK_JITDUMP;
	config.jitdump_dir = folder;
	struct rig rig = rig_create(&config, NULL, NULL);
	CHECK(ch_sink_status(rig.heap, CH_SINK_JITDUMP, &path, &failed));
	struct ch_owner owner = rig_owner(&rig, "dumped");
	struct ch_branch branch;
	CHECK_EQ(code_call(block_info(rig_block(owner, 3)).entry), 3);
	(void)rig_jumper(owner, NULL, &branch);
	drop_and_collect(&rig, owner);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(rmdir(folder), 0);
	rig_end(&rig);
}

static void use_cleanly(void)
{
	use_jitdump();
	struct rig rig = rig_start(8 * MIB);
	use_graph(&rig);
	use_fiber(&rig);
	use_spans(&rig);
	use_chunks(&rig);
	use_backtraces(&rig);
	struct ch_owner owner = rig_owner(&rig, "live at the end");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 9)), CH_OK);
	CHECK_EQ(code_call_owner(owner), 9);
	/* The heap stays: live code is no leak. */
	CHECK_EQ(ch_thread_detach(rig.heap), CH_OK);
}

static const uint8_t *freed_entry;

static void jump_into_freed(void *arg)
{
	(void)arg;
	code_call(freed_entry);
}

static void jump_and_be_told(void *arg)
{
	const struct rig *rig = arg;
	CHECK_EQ(ch_trap_install(rig->heap), CH_OK);
	code_call(freed_entry);
}

static void be_told_of_a_trap(struct rig *rig)
{
	char text[2000];
	expect_signal_text(jump_and_be_told, rig, SIGTRAP, text, sizeof text);
	if (!strstr(text, "libcodeheap: block `freed` (#") ||
	    !strstr(text, ", owner `freed`), freed after collection 0 because its owner was "
			  "released (NOT_RUNNING); executed at +0x0 (0x") ||
	    !strstr(text, "); return address (a guess) 0x") || !strstr(text, "tool_valgrind +0x"))
		FAIL("valgrind: the trap said: %s", text);
}

static void live_in_child(void *arg)
{
	struct rig *rig = arg;
	use_graph(rig);
	struct ch_owner owner = rig_owner(rig, "child");
	CHECK_EQ(code_call(block_info(rig_block(owner, 11)).entry), 11);
	rig_check(rig);
	_exit(0);
}

static void fork_children(void)
{
	struct rig rig = rig_start(2 * MIB);
	struct ch_owner owner = rig_owner(&rig, "freed");
	freed_entry = block_info(rig_block(owner, 4)).entry;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	expect_signal(live_in_child, &rig, 0);
	expect_signal(jump_into_freed, NULL, SIGTRAP);
	be_told_of_a_trap(&rig);
	rig_end(&rig);
	struct ch_config config = rig_config(MIB);
	config.fork = CH_FORK_NONE;
	rig = rig_create(&config, NULL, NULL);
	freed_entry = block_info(rig_block(rig_owner(&rig, "mine"), 4)).entry;
	expect_signal(jump_into_freed, NULL, SIGSEGV);
	CHECK_EQ(code_call(freed_entry), 4);
	rig_end(&rig);
}

/* Code freed in the parent is freed in the child, too, although the child has other memory. */
static void read_in_child(void *arg)
{
	(void)arg;
	volatile uint8_t byte = *(const volatile uint8_t *)freed_entry;
	(void)byte;
	_exit(0);
}

static void read_freed_code_in_child(void)
{
	struct rig rig = rig_start(2 * MIB);
	struct ch_owner owner = rig_owner(&rig, "freed");
	freed_entry = block_info(rig_block(owner, 4)).entry;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	pid_t pid = fork_child();
	if (pid == 0)
		read_in_child(NULL);
	int status;
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	rig_end(&rig);
}

static void jump_in_child(void)
{
	struct rig rig = rig_start(MIB);
	struct ch_owner owner = rig_owner(&rig, "freed");
	freed_entry = block_info(rig_block(owner, 4)).entry;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	expect_signal(jump_into_freed, NULL, SIGTRAP);
	rig_end(&rig);
}

/* --- cases --- */

#define CLEAN_CASE(name, body)               \
	TEST_LIMIT(name, LIMIT_S)            \
	{                                    \
		if (is_under_valgrind())     \
			body();              \
		else                         \
			expect_clean(#name); \
	}

CLEAN_CASE(valgrind_runs_reused_code_rightly, run_reused_code)
CLEAN_CASE(valgrind_runs_linked_code_rightly, run_linked_code)
CLEAN_CASE(memcheck_reports_nothing_of_a_clean_program, use_cleanly)

/* Children inherit --error-exitcode, but die of signals here: their reports are in the text. */
TEST_LIMIT(valgrind_follows_children_of_fork, LIMIT_S)
{
	if (is_under_valgrind()) {
		fork_children();
		return;
	}
	expect_clean("valgrind_follows_children_of_fork");
	if (strstr(said, "Invalid") || strstr(said, "INTERNAL ERROR"))
		FAIL("valgrind: reports of a child: %.800s", said);
}

TEST_LIMIT(memcheck_reports_a_read_of_freed_code, LIMIT_S)
{
	static const char name[] = "memcheck_reports_a_read_of_freed_code";
	if (is_under_valgrind()) {
		read_freed_code();
		return;
	}
	int status = run_case(name);
	expect_said(name, "Invalid read of size 1");
	expect_said(name, "inside a block of size");
	expect_said(name, "free'd");
	expect_said(name, "rig_collect_here"); /* the caller that freed the block */
	expect_said(name, "emit_commit");      /* and the caller that made the block */
	CHECK_EQ(status, REPORTED);
}

TEST_LIMIT(memcheck_reports_a_read_of_freed_code_in_a_child, LIMIT_S)
{
	static const char name[] = "memcheck_reports_a_read_of_freed_code_in_a_child";
	if (is_under_valgrind()) {
		read_freed_code_in_child();
		return;
	}
	CHECK_EQ(run_case(name), 0); /* of the parent */
	expect_said(name, "Invalid read of size 1");
}

TEST_LIMIT(memcheck_reports_a_jump_into_freed_code, LIMIT_S)
{
	static const char name[] = "memcheck_reports_a_jump_into_freed_code";
	if (is_under_valgrind()) {
		jump_in_child();
		return;
	}
	CHECK_EQ(run_case(name), 0); /* of the parent */
	expect_said(name, "Jump to the invalid address");
	expect_said(name, "is 8 bytes inside a block of size"); /* behind the head */
	expect_said(name, "free'd");
	expect_said(name, "emit_commit");
}

TEST_LIMIT(memcheck_reports_a_write_behind_the_end_of_code, LIMIT_S)
{
	static const char name[] = "memcheck_reports_a_write_behind_the_end_of_code";
	if (is_under_valgrind()) {
		write_given_back_code();
		return;
	}
	int status = run_case(name);
	expect_said(name, "Invalid write of size 1");
	expect_said(name, "Invalid read of size 1");
	CHECK_EQ(status, REPORTED);
}

TEST_LIMIT(memcheck_reports_a_read_of_code_before_its_commit, LIMIT_S)
{
	static const char name[] = "memcheck_reports_a_read_of_code_before_its_commit";
	static const char report[] = "Invalid read of size 1";
	if (is_under_valgrind()) {
		read_open_code();
		return;
	}
	int status = run_case(name), reports = 0;
	for (const char *at = said; (at = strstr(at, report)); at += sizeof report)
		reports++;
	CHECK_EQ(reports, 2);
	CHECK_EQ(status, REPORTED);
}
