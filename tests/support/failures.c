/* SPDX-License-Identifier: MIT
 * failures.c: the walk over failing calls, and the checks after each failure (P8, I15):
 *   - the status is a refusal that the header lists for the function, and has a text; with
 *     CH_E_OS, errno is the system's;
 *   - the heap check is clean, and a call that failed changed nothing: fingerprints are equal;
 *   - where nothing failed, ch_why still has the sentence from before;
 *   - repeated failures keep nothing: no descriptor, no address space, no side memory;
 *   - a sink is on, or says the errno that switched the sink off;
 *   - the same call succeeds when nothing fails any more, and code is made, run and freed. */
#include "tests/support/failures.h"

#include "os/os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS_MOST = 600, REPEATS = 4, STATUSES = CH_E_BROKEN + 1 };

/* --- the headers, as they were compiled --- */

#define EMBED(name, path)                         \
	__asm__(".section .rodata\n"              \
		".global " #name "\n" #name ":\n" \
		".incbin \"" path "\"\n"          \
		".byte 0\n"                       \
		".previous\n");                   \
	extern const char name[]
EMBED(failures_header, "codeheap/codeheap.h");
EMBED(failures_header_collector, "codeheap/collector.h");
EMBED(failures_header_look, "codeheap/look.h");
EMBED(failures_header_profile, "codeheap/profile.h");
EMBED(failures_header_bdw, "codeheap/codeheap_bdw.h");
static const char *const headers[] = {failures_header, failures_header_collector,
				      failures_header_look, failures_header_profile,
				      failures_header_bdw};

/* The name before the next opening parenthesis at or after `at`. */
static void read_name(const char *at, char *name, size_t bytes)
{
	const char *end = strchr(at, '('), *start = end;
	CHECK(end);
	while (start > at && (start[-1] == '_' || (start[-1] >= 'a' && start[-1] <= 'z')))
		start--;
	CHECK((size_t)(end - start) < bytes);
	memcpy(name, start, (size_t)(end - start));
	name[end - start] = 0;
}

void failures_each_function(void (*visit)(const char *, void *), void *arg)
{
	char name[100];
	for (unsigned i = 0; i < sizeof headers / sizeof *headers; i++) {
		for (const char *at = headers[i]; (at = strstr(at, "\nCH_API ")) != NULL; at++) {
			read_name(at, name, sizeof name);
			visit(name, arg);
		}
	}
}

/* The lines from `ret` to the next key of the comment "/" "* NAME: ...". */
static unsigned statuses_at(const char *comment)
{
	static const char *const names[] = {
#define X(status, text) #status,
		CH_STATUS_LIST(X)
#undef X
	};
	const char *end = strstr(comment, "*/"), *ret = strstr(comment, "\n * ret ");
	unsigned set = 0;
	if (!ret || ret > end)
		return 1u << CH_OK; /* nothing to return */
	for (const char *at = ret + 8; at < end; at++) {
		if (!strncmp(at, "\n * ", 4) && at[4] != ' ')
			break;
		for (unsigned i = 0; i < STATUSES; i++) {
			size_t n = strlen(names[i]);
			char after = at[n];
			if (!strncmp(at, names[i], n) && after != '_' &&
			    !(after >= 'A' && after <= 'Z'))
				set |= 1u << i;
		}
	}
	return set ? set : 1u << CH_OK;
}

unsigned failures_documented(const char *function)
{
	char head[120];
	snprintf(head, sizeof head, "/* %s: ", function);
	for (unsigned i = 0; i < sizeof headers / sizeof *headers; i++) {
		const char *comment = strstr(headers[i], head);
		if (comment)
			return statuses_at(comment);
	}
	return 0;
}

/* --- what a process holds --- */

struct holdings {
	uint64_t descriptors, mapped_bytes, side_bytes;
};

static struct holdings holdings_of(const struct scene *s)
{
	struct holdings h = {.descriptors = open_files(), .mapped_bytes = mapped_bytes()};
	struct ch_stats stats = {.size = sizeof stats};
	if (s->heap && !s->marker) {
		CHECK_EQ(ch_heap_stats(s->heap, &stats), CH_OK);
		h.side_bytes = stats.metadata_bytes_now;
	}
	return h;
}

/* --- the walk --- */

struct walk {
	const struct failures_row *row;
	const struct failures_setting *setting;
	unsigned allowed; /* statuses */
	int error;        /* the error of a failing call */
	bool every_later_one;
	bool is_first;    /* the way with ENOMEM, of the ways with different errno */
	bool has_refused; /* a step ended in CH_E_OS: another errno is another result */
	uint64_t n;
};

#define STEP_FAIL(w, ...)                                                                     \
	do {                                                                                  \
		char step_text[400];                                                          \
		snprintf(step_text, sizeof step_text, __VA_ARGS__);                           \
		FAIL("%s, %s heap, call %llu%s fails with %s: %s", (w)->row->name,            \
		     (w)->setting->name, (unsigned long long)(w)->n,                          \
		     (w)->every_later_one ? " and each later one" : "", strerror((w)->error), \
		     step_text);                                                              \
	} while (0)

static enum ch_status call_failing(const struct walk *w, struct scene *s, uint64_t *calls)
{
	char said[400];
	snprintf(said, sizeof said, "%s", ch_why());
	s->is_failing = true;
	ch__os_fail_as(w->n, w->every_later_one, w->error);
	enum ch_status status = w->row->call(s);
	int error = errno;
	*calls = ch__os_failable_calls();
	ch__os_fail_at(0, false);
	s->is_failing = false;
	if (status == CH_OK && *calls < w->n && strcmp(said, ch_why()) != 0)
		STEP_FAIL(w, "it succeeded, and says: %s", ch_why());
	if (status == CH_OK)
		return status;
	if (*calls < w->n)
		STEP_FAIL(w, "%s, though nothing failed", ch_status_text(status));
	if (!(w->allowed & 1u << status))
		STEP_FAIL(w, "%s, which the header does not list", ch_status_text(status));
	if (status != CH_E_MEMORY && status != CH_E_OS && status != CH_E_FULL &&
	    status != CH_E_BUSY)
		STEP_FAIL(w, "%s is no refusal", ch_status_text(status));
	if (!*ch_status_text(status))
		STEP_FAIL(w, "status %d has no text", status);
	if (status == CH_E_OS && error != w->error && error != ENOMEM)
		STEP_FAIL(w, "errno is %s", strerror(error));
	return status;
}

static void check_sinks(const struct walk *w, const struct scene *s)
{
	for (unsigned sink = 1; s->heap && sink <= CH_SINK_LIBUNWIND; sink <<= 1) {
		int failed = 0;
		if (!(w->setting->sinks & sink) || ch_sink_status(s->heap, sink, NULL, &failed))
			continue;
		if (!failed)
			STEP_FAIL(w, "sink %u is off and says nothing", sink);
	}
}

static bool has_grown(uint64_t now, uint64_t before)
{
	return now > before;
}

/* Repeated failures must not keep more each time; room that was made once may stay. Returns true
 * when the call succeeded meanwhile, thanks to such room. */
static bool check_leaks(const struct walk *w, struct scene *s)
{
	struct holdings before = holdings_of(s);
	int descriptors = 0, mapped = 0, bytes = 0;
	uint64_t calls;
	for (int i = 0; i < REPEATS; i++) {
		if (w->row->repair)
			w->row->repair(s);
		if (call_failing(w, s, &calls) == CH_OK)
			return true;
		struct holdings now = holdings_of(s);
		descriptors += has_grown(now.descriptors, before.descriptors);
		mapped += has_grown(now.mapped_bytes, before.mapped_bytes);
		bytes += has_grown(now.side_bytes, before.side_bytes);
		before = now;
	}
	if (descriptors == REPEATS)
		STEP_FAIL(w, "descriptors stay open");
	/* ThreadSanitizer maps pages for each file that libdw maps and unmaps, and keeps the pages;
	 * an emulator maps pages of its own. */
	const char *emulator = getenv("CODEHEAP_TEST_EMULATOR");
	if (mapped == REPEATS && !CH_TSAN && (!emulator || !*emulator))
		STEP_FAIL(w, "pages stay mapped");
	if (bytes == REPEATS)
		STEP_FAIL(w, "side memory stays");
	return false;
}

/* Runs a step. Returns false when nothing failed any more. */
static bool step(struct walk *w)
{
	static struct scene s; /* the Boehm collector finds anchors here */
	uint64_t calls;
	scene_start(&s, w->setting);
	if (w->row->prepare)
		w->row->prepare(&s);
	/* The calls of the thread that writes names count, too: the flush leaves no work for it. */
	if ((w->row->flags & ROW_MAKES_NO_CALL) && s.heap)
		CHECK(s.marker || ch_sink_flush(s.heap) == CH_OK);
	uint64_t before = scene_fingerprint(&s);
	enum ch_status status = call_failing(w, &s, &calls);
	if ((w->row->flags & ROW_MAKES_NO_CALL) && calls)
		STEP_FAIL(w, "it made %llu calls", (unsigned long long)calls);
	scene_check(&s);
	if (status != CH_OK) {
		if (!(w->row->flags & ROW_COLLECTS) && scene_fingerprint(&s) != before)
			STEP_FAIL(w, "%s, but something changed", ch_status_text(status));
		w->has_refused |= status == CH_E_OS;
		bool is_done = w->is_first && check_leaks(w, &s);
		scene_check(&s);
		if (!is_done && w->row->repair)
			w->row->repair(&s);
		status = is_done ? CH_OK : w->row->call(&s);
		if (status != CH_OK)
			STEP_FAIL(w, "repeated, it is refused: %s", ch_status_text(status));
		scene_check(&s);
	}
	if (!(w->row->flags & ROW_SWITCHES_SINKS))
		check_sinks(w, &s);
	scene_still_works(&s);
	scene_end(&s);
	return calls >= w->n;
}

bool failures_walk(const struct failures_row *row, const struct failures_setting *setting)
{
	static const struct {
		int error;
		bool every_later_one;
	} ways[] = {{ENOMEM, false}, {ENOMEM, true}, {EPERM, false}, {ENOSPC, false}};
	struct walk w = {.row = row, .setting = setting};
	bool has_failed = false;
	w.allowed = row->function ? failures_documented(row->function) : 1u << CH_OK;
	if (!w.allowed)
		FAIL("%s: no comment of a header is about %s", row->name, row->function);
	for (unsigned i = 0; i < sizeof ways / sizeof *ways; i++) {
		w.is_first = ways[i].error == ENOMEM;
		if (!w.is_first && !w.has_refused)
			break;
		w.error = ways[i].error;
		w.every_later_one = ways[i].every_later_one;
		for (w.n = 1; step(&w); w.n++)
			if (w.n > STEPS_MOST)
				STEP_FAIL(&w, "it does not end");
		has_failed |= w.n > 1;
	}
	return has_failed;
}
