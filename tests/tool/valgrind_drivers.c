/* SPDX-License-Identifier: MIT
 * valgrind_drivers.c: every driver's collections free code, and new code takes the place, under
 * Valgrind with its default flags. Valgrind keeps translations of old code until told. A case
 * starts itself again there, without a tool; valgrind.c checks memcheck's reports. */
#define _GNU_SOURCE
#include "tests/support/stage.h"

#include <sys/wait.h>
#include <unistd.h>

static void exec_valgrind(const char *name)
{
	char self[512];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	CHECK(n > 0);
	self[n] = 0;
	CHECK_EQ(setenv("CODEHEAP_TEST_UNDER_VALGRIND", "1", 1), 0);
	unsetenv("CODEHEAP_WX"); /* the self-test chooses */
	execlp("valgrind", "valgrind", "-q", "--tool=none", self, name, (char *)NULL);
	FAIL("valgrind cannot be started");
}

static void run_there(struct stage *stage, const char *name, void (*body)(struct stage *))
{
	int status;
	const char *sanitizer = getenv("CODEHEAP_TEST_SAN");
	if (getenv("CODEHEAP_TEST_UNDER_VALGRIND")) {
		body(stage);
		return;
	}
	if (sanitizer && *sanitizer)
		skip("a sanitizer's program does not run under Valgrind");
	pid_t pid = fork_child();
	if (pid == 0)
		exec_valgrind(name);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		FAIL("valgrind: %s: died of %s", name, strsignal(WTERMSIG(status)));
	CHECK_EQ(WEXITSTATUS(status), 0);
}

enum { VALGRIND_LIMIT_S = 60 };
#define VALGRIND_CASE(name, suffix, driver)                               \
	TEST_LIMIT(name##suffix, VALGRIND_LIMIT_S)                        \
	{                                                                 \
		run_there(stage_new(driver), #name #suffix, body_##name); \
	}
#if CH_TEST_BDW
#define VALGRIND_BOEHM_CASE(name) VALGRIND_CASE(name, _boehm, STAGE_BOEHM)
#else
#define VALGRIND_BOEHM_CASE(name)
#endif
#define UNDER_VALGRIND(name)                         \
	static void body_##name(struct stage *);     \
	VALGRIND_CASE(name, _polls, STAGE_POLLS)     \
	VALGRIND_CASE(name, _signals, STAGE_SIGNALS) \
	VALGRIND_CASE(name, _host, STAGE_HOST)       \
	VALGRIND_BOEHM_CASE(name)                    \
	static void body_##name(struct stage *stage)

struct play {
	struct stage *stage;
	struct method m;
	uintptr_t place; /* the complement of an address */
	uint32_t value;
};

static void build_and_run(struct stage *stage, void *arg)
{
	struct play *p = arg;
	struct ch_info info = {.size = sizeof info};
	method_constant(stage, &p->m, "collected", p->value);
	if (method_call(&p->m, NULL) != p->value)
		FAIL("valgrind: code that was collected ran once more");
	CHECK_EQ(ch_block_info(p->m.block, &info), CH_OK);
	p->place = ~(uintptr_t)info.exec;
}

/* A pool of one page, so that each block gets the place of the block before. */
UNDER_VALGRIND(s53_collected_place_runs_its_new_code_under_valgrind)
{
	struct play *p = calloc(1, sizeof *p);
	unsigned reused = 0;
	uintptr_t place = 0;
	CHECK(p);
	stage->config.pool_bytes = test_page_bytes() ? test_page_bytes() : 16384;
	stage_start(stage);
	for (p->value = 1; p->value <= 10; p->value++) {
		stage_apart(stage, build_and_run, p);
		reused += p->place == place;
		place = p->place;
		method_drop(stage, &p->m);
		stage_collect_now(stage);
		stage_collect_now(stage);
		CHECK(!method_is_known(&p->m));
	}
	CHECK(reused >= 5);
	stage_end(stage);
	free(p);
}

/* Valgrind is an emulator: one way to make views is refused, and the self-test takes another. */
UNDER_VALGRIND(s51_valgrind_gets_views_that_execution_follows)
{
	struct method from, one, two;
	stage_start(stage);
	CHECK_EQ(stage->heap->pool->backend, CH_BACKEND_MEMFD);
	method_jumper(stage, &from, "from");
	method_constant(stage, &one, "one", 1);
	method_constant(stage, &two, "two", 2);
	for (uint32_t i = 0; i < 50; i++) {
		method_link(&from, 0, i % 2 ? &two : &one);
		if (method_call(&from, NULL) != 1 + i % 2)
			FAIL("valgrind: execution does not follow a store");
	}
	stage_end(stage);
}
