/* SPDX-License-Identifier: MIT
 * write.c: code is written again while threads run the code: a word that code loads, a jump of the
 * VM's own; on each backend. The oracle: each call answers with the old or the new value, never
 * with a mixture. */
#include "tests/support/heap_rig.h"
#include "tests/support/stage_code.h"

#include <pthread.h>
#include <stdatomic.h>

enum { RUNNERS = 2, MS = 1000, ENDS = 2 };

struct play {
	struct rig rig;
	const void *code;
	const uint8_t *at;             /* the written place */
	uint64_t words[ENDS];          /* the two contents */
	uint64_t answers[ENDS];        /* the code's answer to each */
	enum ch_write how;
	size_t bytes;
	_Atomic(uint64_t) seen[ENDS];
	_Atomic(bool) is_over;
};

static uint64_t call(const void *code)
{
	return ((uint64_t(*)(void))(uintptr_t)code)();
}

static void *run(void *arg)
{
	struct play *p = arg;
	CHECK_EQ(ch_thread_attach(p->rig.heap, NULL, NULL), CH_OK);
	while (!atomic_load_explicit(&p->is_over, memory_order_relaxed)) {
		uint64_t got = call(p->code);
		int which = got == p->answers[1];
		if (got != p->answers[which])
			FAIL("the code answers 0x%llx", (unsigned long long)got);
		atomic_fetch_add_explicit(&p->seen[which], 1, memory_order_relaxed);
		ch_thread_poll();
	}
	CHECK_EQ(ch_thread_detach(p->rig.heap), CH_OK);
	return NULL;
}

static bool has_happened(struct play *p)
{
	return atomic_load(&p->seen[0]) > 1000 && atomic_load(&p->seen[1]) > 1000;
}

static void storm(struct play *p)
{
	pthread_t threads[RUNNERS];
	for (int i = 0; i < RUNNERS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, run, p), 0);
	uint64_t writes = 0, end = now_ns() + storm_ms_of(MS) * UINT64_C(1000000);
	TEST_UNTIL (now_ns() > end && has_happened(p)) {
		CHECK_EQ(ch_code_write(NULL, p->at, &p->words[++writes % ENDS], p->bytes, p->how),
			 CH_OK);
		/* The writing thread runs the new code, even if other threads do not yet. */
		CHECK_EQ(call(p->code), p->answers[writes % ENDS]);
	}
	atomic_store(&p->is_over, true);
	for (int i = 0; i < RUNNERS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
	printf("%llu writes, %llu and %llu calls\n", (unsigned long long)writes,
	       (unsigned long long)p->seen[0], (unsigned long long)p->seen[1]);
	rig_end(&p->rig);
}

static void begin(struct play *p, enum ch_backend backend, struct emitter *e)
{
	struct ch_config config = rig_config(1 << 20);
	if (backend != CH_BACKEND_AUTO) {
		unsetenv("CODEHEAP_WX");
		config.backend = backend;
	}
	p->rig = rig_create(&config, NULL, NULL);
	emit_open(e, rig_owner(&p->rig, "owner"), 1000, 0);
	p->code = e->code.exec;
}

/* A function returns an aligned word of its own. Each byte of the word changes. */
static void storm_of_words(enum ch_backend backend)
{
	struct play p = {.bytes = 8, .how = CH_WRITE_WORD};
	struct emitter e, next;
	memset(&p.words[0], 0x11, 8);
	memset(&p.words[1], 0xee, 8);
	begin(&p, backend, &e);
	emit_landing(&e);
	for (next = e; (uintptr_t)(p.at = emit_ref_word(&next, p.words[0])) % 8; next = e)
		emit_nops(&e, 1);
	e = next;
	emit_ref_as_result(&e);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	p.answers[0] = p.words[0];
	p.answers[1] = p.words[1];
	storm(&p);
}

/* A jump to one of two places. The two distances differ in two bytes. */
static void storm_of_jumps(enum ch_backend backend)
{
	struct play p = {.bytes = 4, .how = CH_WRITE_INSTRUCTION};
	struct emitter e;
	const uint8_t *ends[ENDS];
	begin(&p, backend, &e);
	emit_landing(&e);
	const uint8_t *jump = emit_site_jmp(&e);
	size_t whole = ch__arch_site_bytes(CH_JMP);
	for (uint32_t i = 0; i < ENDS; i++) {
		ends[i] = emit_here(&e);
		emit_answer(&e, (uint32_t)(p.answers[i] = i + 1));
		emit_nops(&e, 600 / CODE_NOP_BYTES * !i);
	}
	for (int i = ENDS - 1; i >= 0; i--) {
		uint8_t *write = e.code.write + (jump - e.code.exec);
		ch__arch_site_write(CH_JMP, write, (uintptr_t)jump, (uintptr_t)ends[i]);
		memcpy(&p.words[i], write + whole - p.bytes, p.bytes);
	}
	p.at = jump + whole - p.bytes;
	CHECK_EQ(emit_commit(&e), CH_OK);
	storm(&p);
}

TEST(word_that_others_load_is_never_torn)
{
	storm_of_words(CH_BACKEND_AUTO);
}
TEST(word_that_others_load_is_never_torn_memfd)
{
	storm_of_words(CH_BACKEND_MEMFD);
}
TEST(word_that_others_load_is_never_torn_procmem)
{
	skip_without_procmem();
	storm_of_words(CH_BACKEND_PROCMEM);
}
TEST(jump_that_others_take_leads_to_its_old_end_or_its_new)
{
	storm_of_jumps(CH_BACKEND_AUTO);
}
TEST(jump_that_others_take_leads_to_its_old_end_or_its_new_memfd)
{
	storm_of_jumps(CH_BACKEND_MEMFD);
}
TEST(jump_that_others_take_leads_to_its_old_end_or_its_new_procmem)
{
	skip_without_procmem();
	storm_of_jumps(CH_BACKEND_PROCMEM);
}
