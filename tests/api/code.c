/* SPDX-License-Identifier: MIT
 * code.c: code without an owner: made of bytes, called, freed by its address. Until then the code
 * is a root: its targets live, and no discard and no end of a vm frees the code. */
#include "tests/support/heap_rig.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint32_t (*function)(void);

/* Writes code that returns the value, and that may run at any address. */
static uint32_t write_value(uint32_t value, uint8_t *bytes, uint32_t room)
{
	struct emitter e = {.code = {.write = bytes, .exec = bytes, .hot_bytes = room}};
	emit_landing(&e);
	emit_answer(&e, value);
	return e.at;
}

static function add_value(struct ch_heap *heap, const char *name, uint32_t value)
{
	uint8_t bytes[32];
	function f;
	CHECK_EQ(ch_code_add(heap, bytes, write_value(value, bytes, sizeof bytes), name, &f),
		 CH_OK);
	return f;
}

static const void *address(function f)
{
	return (const void *)(uintptr_t)f;
}

static struct ch_block block_of(struct ch_heap *heap, function f)
{
	struct ch_block block;
	CHECK(block_at(heap, address(f), &block));
	return block;
}

/* The notes of a test. The address is inverted, so no stack scan takes the word for an address. */
struct made {
	uintptr_t inverted;
	struct ch_block block, target;
	struct ch_branch branch;
};

static function made_function(const struct made *m)
{
	return (function)~m->inverted;
}

static void make(const struct rig *rig, void *arg)
{
	struct made *m = arg;
	function f = add_value(rig->heap, "made", 7);
	m->block = block_of(rig->heap, f);
	m->inverted = ~(uintptr_t)f;
}

static void call(const struct rig *rig, void *arg)
{
	(void)rig;
	CHECK_EQ(made_function(arg)(), 7);
}

static void release(const struct rig *rig, void *arg)
{
	CHECK_EQ(ch_code_free(rig->heap, address(made_function(arg)), CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_code_free(rig->heap, address(made_function(arg)), CH_RELEASE_COLLECT),
		 CH_E_STALE);
}

TEST_RIG(code_of_another_heap_is_called_so)
{
	struct ch_heap *other;
	char name[64], wanted[64];
	CHECK_EQ(ch_heap_create(NULL, &other), CH_OK);
	const uint8_t *at = address(add_value(other, "f", 42));
	ch_address_name(rig.heap, at, false, name, sizeof name); /* no call is before the code */
	CHECK_STR(name, "[code of another heap]+0x0");
	ch_address_name(rig.heap, at + 1, false, name, sizeof name);
	CHECK_STR(name, "[code of another heap]+0x1");
	ch_address_name(rig.heap, at + 1, true, name, sizeof name);
	CHECK_STR(name, "[code of another heap]+0x1");
	ch_address_name(other, at + 1, false, name, sizeof name);
	CHECK_STR(name, "f+0x1");
	CHECK_EQ(ch_heap_destroy(other), CH_OK);
	ch_address_name(rig.heap, at, false, name, sizeof name);
	snprintf(wanted, sizeof wanted, "+0x%lx", (unsigned long)(uintptr_t)at);
	CHECK_STR(name, wanted);
}

struct named {
	struct ch_heap *heap;
	function f;
	char name[64];
};

static bool name_in_visit(void *arg, const struct ch_info *info)
{
	struct named *named = arg;
	(void)info;
	ch_address_name(named->heap, address(named->f), false, named->name, sizeof named->name);
	return true;
}

/* In a visit of another heap the names would be behind a lock that the visitor may not wait for. */
TEST_RIG(code_has_its_name_in_a_visit)
{
	struct named named = {rig.heap, add_value(rig.heap, "f", 42), ""};
	CHECK_EQ(ch_block_each(rig.heap, NULL, name_in_visit, &named), CH_OK);
	CHECK_STR(named.name, "f+0x0");
	CHECK_EQ(ch_heap_create(NULL, &named.heap), CH_OK);
	add_value(named.heap, "g", 43);
	CHECK_EQ(ch_block_each(named.heap, NULL, name_in_visit, &named), CH_OK);
	CHECK_STR(named.name, "[code of another heap]+0x0");
	named.f = add_value(named.heap, "h", 44);
	CHECK_EQ(ch_block_each(rig.heap, NULL, name_in_visit, &named), CH_OK);
	CHECK_EQ(strncmp(named.name, "code memory+0x", 14), 0);
	CHECK_EQ(ch_heap_destroy(named.heap), CH_OK);
}

TEST_RIG(code_is_made_of_bytes_called_and_freed_by_its_address)
{
	function f = add_value(rig.heap, "f", 42);
	CHECK_EQ(f(), 42);
	struct ch_info info = block_info(block_of(rig.heap, f));
	CHECK_EQ(strcmp(info.name, "f"), 0);
	CHECK_EQ(info.owner.bits, 0);
	CHECK_EQ(info.vm, NULL);
	CHECK_EQ((uintptr_t)info.exec, (uintptr_t)f);
	char name[64];
	ch_address_name(rig.heap, address(f), false, name, sizeof name);
	CHECK_EQ(strncmp(name, "f+", 2), 0);
	rig_check(&rig);
	CHECK_EQ(ch_code_free(rig.heap, address(f), CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(info.block));
	CHECK_EQ(ch_code_free(rig.heap, address(f), CH_RELEASE_NOT_RUNNING), CH_E_STALE);
}

TEST_RIG(bytes_that_are_none_or_too_many_are_refused)
{
	uint8_t bytes[32] = {0};
	function f = made_function(&(struct made){0});
	CHECK_EQ(ch_code_add(rig.heap, bytes, 0, "f", &f), CH_E_ARG);
	CHECK(!f);
	CHECK_EQ(ch_code_add(rig.heap, bytes, (size_t)UINT32_MAX + 2, "f", &f), CH_E_ARG);
	CHECK_EQ(ch_code_add(rig.heap, bytes, 2 << 20, "f", &f), CH_E_ARG);
	struct ch_open both = {.size = sizeof both,
			       .heap = rig.heap,
			       .owner = rig_owner(&rig, "owner"),
			       .hot_bytes = 16};
	struct ch_open entered = {
		.size = sizeof entered, .heap = rig.heap, .hot_bytes = 16, .entry = CH_ENTRY_GUARD};
	struct ch_code code;
	CHECK_EQ(ch_block_open(&both, &code), CH_E_ARG);
	CHECK_EQ(ch_block_open(&entered, &code), CH_E_ARG);
}

/* In front of data in pages of its own is a head of 64 bytes, which has an address of no entry. */
TEST_RIG(data_is_freed_by_the_address_of_its_first_byte)
{
	struct ch_code data;
	struct ch_open open = {
		.size = sizeof open, .heap = rig.heap, .hot_bytes = 40000, .kind = CH_KIND_DATA};
	CHECK_EQ(ch_block_open(&open, &data), CH_OK);
	CHECK_EQ(ch_block_commit(&data, 1), CH_OK);
	for (uint32_t before = 8; before <= 64; before += 8)
		CHECK_EQ(ch_code_free(rig.heap, data.exec - before, CH_RELEASE_NOT_RUNNING),
			 CH_E_ARG);
	CHECK(rig_is_there(data.block));
	CHECK_EQ(ch_code_free(rig.heap, data.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_RIG(what_is_freed_begins_at_the_address_and_has_no_owner)
{
	function f = add_value(rig.heap, "f", 42);
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct ch_block owned = rig_block(owner, 1);
	CHECK_EQ(ch_owner_set_entry(owner, owned), CH_OK);
	struct emitter e;
	struct ch_open immortal = {
		.heap = rig.heap, .hot_bytes = 16, .flags = CH_OPEN_IMMORTAL};
	CHECK_EQ(emit_open_as(&e, &immortal), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	for (int how = CH_RELEASE_COLLECT; how <= CH_RELEASE_NOT_RUNNING; how++) {
		enum ch_release end = (enum ch_release)how;
		const char *middle = (const char *)address(f) + 2;
		CHECK_EQ(ch_code_free(rig.heap, middle, end), CH_E_ARG);
		CHECK(strstr(ch_why(), "begins at 0x"));
		CHECK_EQ(ch_code_free(rig.heap, &rig, end), CH_E_ARG);
		CHECK_EQ(ch_code_free(NULL, &rig, end), CH_E_ARG);
		CHECK_EQ(ch_code_free(rig.heap, block_info(owned).exec, end), CH_E_STATE);
		CHECK_EQ(ch_code_free(rig.heap, e.code.exec, end), CH_E_STATE);
	}
	CHECK_EQ(f(), 42);
	CHECK_EQ(code_call_owner(owner), 1);
	rig_collect(&rig, 3);
	CHECK(rig_is_there(e.code.block));
	CHECK_EQ(ch_code_free(NULL, address(f), CH_RELEASE_NOT_RUNNING), CH_OK);
}

TEST_RIG(code_without_an_owner_lives_until_it_is_freed_and_no_cycle_longer)
{
	struct made m;
	rig_apart(&rig, make, &m);
	rig_collect(&rig, 5);
	rig_apart(&rig, call, &m);
	rig_apart(&rig, release, &m);
	CHECK(rig_is_there(m.block));
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(m.block));
}

TEST_RIG(freed_code_that_a_stack_is_in_lives_until_it_is_left)
{
	struct made m;
	uintptr_t stack[64] = {0};
	struct ch_fiber *fiber;
	rig_apart(&rig, make, &m);
	CHECK_EQ(ch_fiber_attach(rig.heap, stack, stack + 64, &fiber), CH_OK);
	stack[32] = ~m.inverted + 1;
	ch_fiber_suspend(fiber, stack + 24);
	rig_apart(&rig, release, &m);
	rig_collect(&rig, 4);
	CHECK(rig_is_there(m.block));
	CHECK_EQ(ch_fiber_detach(fiber), CH_OK);
	stack[32] = 0;
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(m.block));
}

/* --- targets of code without an owner --- */

/* A root with an edge to a block and a branch to a block. Nothing else leads to the two blocks. */
static void make_leading(const struct rig *rig, void *arg)
{
	struct made *m = arg;
	struct ch_owner owner = rig_owner(rig, "targets");
	m->target = rig_block(owner, 1);
	struct ch_block edge_to = rig_block(owner, 2);
	m[1].target = edge_to;
	struct emitter e;
	struct ch_open open = {.heap = rig->heap, .hot_bytes = 64, .branch_room = 1};
	const void *exit;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &exit), CH_OK);
	struct ch_branch_site site = {.at = emit_site_jmp(&e), .kind = CH_JMP};
	/* Code without an owner has no vm to ask, so a branch needs an exit. */
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &m->branch), CH_E_ARG);
	site.exit = exit;
	CHECK_EQ(ch_branch_attach(e.code.block, &site, &m->branch), CH_OK);
	CHECK_EQ(ch_ref_attach(e.code.block, emit_ref_word(&e, 1)), CH_E_STATE);
	CHECK_EQ(ch_edge_attach(e.code.block, edge_to), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_branch_link(m->branch, m->target), CH_OK);
	m->block = e.code.block;
	m->inverted = ~(uintptr_t)e.code.exec;
}

TEST_RIG(what_code_without_an_owner_leads_to_lives_as_long_as_it_does)
{
	struct made m[2];
	rig_apart(&rig, make_leading, m);
	rig_collect(&rig, 5);
	CHECK(rig_is_there(m[0].block) && rig_is_there(m[0].target) && rig_is_there(m[1].target));
	CHECK_EQ(code_call((const void *)~m[0].inverted), 1);
	rig_apart(&rig, release, m);
	wipe_stack();
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(m[0].block) && !rig_is_there(m[0].target));
	CHECK(!rig_is_there(m[1].target));
}

static void make_wide(const struct rig *rig, void *arg)
{
	struct ch_block *targets = arg;
	struct ch_owner owner = rig_owner(rig, "targets");
	enum { WIDTH = 5000 };
	for (int i = 0; i < WIDTH; i++) {
		struct emitter e;
		struct ch_open open = {.heap = rig->heap, .hot_bytes = 16};
		targets[i] = rig_block(owner, 1);
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		CHECK_EQ(ch_edge_attach(e.code.block, targets[i]), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
	}
}

TEST(more_roots_with_edges_than_the_queue_holds_keep_all_of_theirs)
{
	enum { WIDTH = 5000 };
	struct rig rig = rig_start(4 << 20);
	struct ch_block *targets = calloc(WIDTH, sizeof *targets);
	rig_apart(&rig, make_wide, targets);
	rig_collect(&rig, 4);
	for (int i = 0; i < WIDTH; i++)
		CHECK(rig_is_there(targets[i]));
	rig_end(&rig);
	free(targets);
}

TEST_RIG(block_that_leads_to_itself_and_its_owner_goes_with_its_release)
{
	struct ch_owner owner = rig_owner(&rig, "owner");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, e.code.block), CH_OK);
	CHECK_EQ(ch_edge_attach_owner(e.code.block, owner), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(e.code.block));
	/* Elsewhere the place waits for a core synchronization. */
	CHECK(!CH_ARCH_FETCH_FOLLOWS || !rig_stats(&rig).owners_now);
}

/* The later edge, of the owner's own block, does not hide the earlier. */
TEST_RIG(owner_that_another_block_calls_stays_though_its_own_block_calls_it_too)
{
	struct ch_owner called = rig_owner(&rig, "called"), caller = rig_owner(&rig, "caller");
	for (int own = 0; own < 2; own++) {
		struct emitter e;
		emit_open(&e, own ? called : caller, 16, 0);
		CHECK_EQ(ch_edge_attach_owner(e.code.block, called), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_owner_set_entry(own ? called : caller, e.code.block), CH_OK);
	}
	CHECK_EQ(ch_owner_release(called, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_settle(&rig);
	CHECK_EQ(rig_stats(&rig).owners_now, 2);
}

TEST_RIG(code_that_another_block_has_an_edge_to_goes_with_that_one)
{
	struct made m;
	rig_apart(&rig, make, &m);
	struct ch_owner owner = rig_owner(&rig, "holder");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, m.block), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	CHECK_EQ(ch_code_free(NULL, (const void *)~m.inverted, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_collect(&rig, 3);
	CHECK(rig_is_there(m.block));
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
	memset(&e, 0, sizeof e);
	wipe_stack();
	rig_collect(&rig, 3);
	CHECK(!rig_is_there(m.block));
}

static void make_holder(const struct rig *rig, void *arg)
{
	struct made *m = arg;
	struct ch_owner owner = rig_owner(rig, "holder");
	struct emitter e;
	emit_open(&e, owner, 16, 0);
	CHECK_EQ(ch_edge_attach(e.code.block, m->block), CH_OK);
	emit_ret(&e);
	CHECK_EQ(emit_commit(&e), CH_OK);
}

TEST_RIG(code_that_an_edge_leads_to_stays_its_own_root)
{
	struct made m;
	rig_apart(&rig, make, &m);
	rig_apart(&rig, make_holder, &m);
	/* The holder is marked while newborn, and then dies. */
	rig_collect(&rig, 5);
	CHECK_EQ(rig_stats(&rig).blocks_now, 1);
	rig_apart(&rig, call, &m);
	rig_apart(&rig, release, &m);
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(m.block));
}

/* --- kept with an owner --- */

static uint32_t freed_users;

static void note_freed(void *vm_user, void *block_user)
{
	(void)vm_user;
	freed_users += (uint32_t)(uintptr_t)block_user;
}

enum { GROUP = 3 };
struct group {
	struct ch_owner owner;
	struct ch_block kept[GROUP], other;
	uintptr_t inverted[GROUP];
};

static void make_group(const struct rig *rig, void *arg)
{
	struct group *g = arg;
	g->owner = rig_owner(rig, "group");
	g->other = rig_block(g->owner, 9);
	for (uintptr_t i = 0; i < GROUP; i++) {
		struct emitter e;
		struct ch_open open = {.owner = g->owner,
				       .hot_bytes = 16,
				       .flags = CH_OPEN_KEPT,
				       .user = (void *)((uintptr_t)1 << 8 * i)};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_answer(&e, (uint32_t)i);
		CHECK_EQ(emit_commit(&e), CH_OK);
		g->kept[i] = e.code.block;
		g->inverted[i] = ~(uintptr_t)e.code.exec;
	}
}

static struct rig start_group(struct group *g)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = note_freed};
	struct rig rig = rig_create(&config, &ops, NULL);
	freed_users = 0;
	rig_apart(&rig, make_group, g);
	rig_collect(&rig, 4);
	for (int i = 0; i < GROUP; i++)
		CHECK(rig_is_there(g->kept[i]));
	CHECK(!rig_is_there(g->other));
	return rig;
}

static void make_and_end_without_an_owner(const struct rig *rig, void *unused)
{
	(void)unused;
	for (int how = CH_RELEASE_COLLECT; how <= CH_RELEASE_NOT_RUNNING; how++) {
		struct emitter e;
		struct ch_open open = {.heap = rig->heap, .hot_bytes = 16, .user = (void *)1};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		CHECK_EQ(ch_code_free(rig->heap, e.code.exec, (enum ch_release)how), CH_OK);
	}
}

TEST(no_callback_tells_of_the_end_of_code_without_an_owner)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {
		.size = sizeof ops, .block_freed = note_freed, .tells_detached = true};
	struct rig rig = rig_create(&config, &ops, NULL);
	freed_users = 0;
	rig_apart(&rig, make_and_end_without_an_owner, NULL);
	rig_collect(&rig, 4);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	rig_end(&rig);
	CHECK_EQ(freed_users, 0);
}

TEST(kept_code_lives_without_an_entry_until_it_is_freed)
{
	struct group g;
	struct rig rig = start_group(&g);
	CHECK_EQ(ch_code_free(NULL, (const void *)~g.inverted[0], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(g.kept[0]));
	CHECK_EQ(ch_code_free(NULL, (const void *)~g.inverted[1], CH_RELEASE_COLLECT), CH_OK);
	CHECK_EQ(ch_code_free(NULL, (const void *)~g.inverted[1], CH_RELEASE_COLLECT), CH_E_STALE);
	wipe_stack();
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(g.kept[1]) && rig_is_there(g.kept[2]));
	CHECK_EQ(freed_users, 0x101);
	CHECK_EQ(ch_owner_release(g.owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(g.kept[2]));
	rig_end(&rig);
}

TEST(kept_code_that_the_cell_leads_to_is_freed_when_the_cell_leads_elsewhere)
{
	struct group g;
	struct rig rig = start_group(&g);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(ch_owner_set_entry(g.owner, g.kept[i]), CH_OK);
	CHECK_EQ(ch_code_free(NULL, (const void *)~g.inverted[1], CH_RELEASE_COLLECT), CH_OK);
	wipe_stack();
	rig_collect(&rig, 3);
	CHECK(rig_is_there(g.kept[1]));
	CHECK_EQ(ch_owner_set_entry(g.owner, g.kept[0]), CH_OK);
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(g.kept[1]));
	CHECK_EQ(ch_code_free(NULL, (const void *)~g.inverted[0], CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK(!rig_is_there(g.kept[0]) &&
	      *ch_owner_cell(g.owner) == (const void *)(uintptr_t)rig_fallback);
	rig_end(&rig);
}

TEST(kept_code_goes_with_its_owner)
{
	struct group g;
	struct rig rig = start_group(&g);
	CHECK_EQ(ch_owner_release(g.owner, CH_RELEASE_COLLECT), CH_OK);
	rig_collect(&rig, 1);
	for (int i = 0; i < GROUP; i++)
		CHECK(!rig_is_there(g.kept[i]));
	CHECK_EQ(freed_users, 0x10101);
	rig_end(&rig);
}

enum { SWEEPERS = 4, SWEPT = 512 };
struct swept {
	const struct rig *rig;
	uintptr_t inverted[SWEPT];
	_Atomic int at;
};

static void make_swept(const struct rig *rig, void *arg)
{
	struct swept *s = arg;
	struct ch_owner owner = rig_owner(rig, "swept");
	s->rig = rig;
	for (int i = 0; i < SWEPT; i++) {
		struct emitter e;
		struct ch_open open = {.owner = owner,
				       .hot_bytes = 16,
				       .flags = CH_OPEN_KEPT,
				       .user = (void *)1};
		CHECK_EQ(emit_open_as(&e, &open), CH_OK);
		emit_ret(&e);
		CHECK_EQ(emit_commit(&e), CH_OK);
		s->inverted[i] = ~(uintptr_t)e.code.exec;
	}
}

static void *sweep(void *arg)
{
	struct swept *s = arg;
	CHECK_EQ(ch_thread_attach(s->rig->heap, NULL, NULL), CH_OK);
	for (int i; (i = atomic_fetch_add(&s->at, 1)) < SWEPT;)
		CHECK_EQ(ch_code_free(s->rig->heap, (const void *)~s->inverted[i],
				      (enum ch_release)(i % 2)),
			 CH_OK);
	return NULL;
}

/* A parallel collector: the thread that leads it is parked until all have swept. */
TEST(several_threads_sweep_kept_code_at_once_and_each_block_is_told_once)
{
	struct ch_config config = rig_config(1 << 20);
	struct ch_ops ops = {.size = sizeof ops, .block_freed = note_freed};
	struct rig rig = rig_create(&config, &ops, NULL);
	struct swept s = {.at = 0};
	pthread_t sweepers[SWEEPERS];
	freed_users = 0;
	rig_apart(&rig, make_swept, &s);
	ch_thread_park();
	for (int i = 0; i < SWEEPERS; i++)
		CHECK_EQ(pthread_create(&sweepers[i], NULL, sweep, &s), 0);
	for (int i = 0; i < SWEEPERS; i++)
		CHECK_EQ(pthread_join(sweepers[i], NULL), 0);
	ch_thread_unpark();
	rig_collect(&rig, 1);
	CHECK_EQ(freed_users, SWEPT);
	CHECK_EQ(rig_stats(&rig).blocks_now, 0);
	rig_end(&rig);
}

/* Marks on another thread, since the calling thread's stack has addresses of the code. */
static void collect_host(const struct rig *rig, struct ch_owner *owner)
{
	rig_alone(rig, rig_mark, owner);
	for (int i = 0; i < 8; i++)
		ch_thread_poll();
}

TEST_RIG_BY(kept_code_goes_with_an_owner_that_a_host_does_not_mark, rig_start_host(1 << 20))
{
	struct group g;
	rig_apart(&rig, make_group, &g);
	for (int i = 0; i < 4; i++)
		collect_host(&rig, &g.owner);
	CHECK(rig_is_there(g.kept[0]) && !rig_is_there(g.other));
	collect_host(&rig, NULL);
	collect_host(&rig, NULL);
	for (int i = 0; i < GROUP; i++)
		CHECK(!rig_is_there(g.kept[i]));
}

/* --- discard, detached vms, threads and forks --- */

TEST(no_discard_and_no_end_of_a_vm_takes_code_without_an_owner)
{
	struct rig rig = rig_start(1 << 20);
	struct made m;
	rig_apart(&rig, make, &m);
	size_t freed, kept;
	CHECK_EQ(ch_vm_discard(rig.heap, NULL, &freed, &kept), CH_OK);
	CHECK_EQ(freed + kept, 0);
	CHECK_EQ(ch_vm_detach(rig.vm), CH_OK);
	rig_collect(&rig, 3);
	CHECK_EQ(block_info(m.block).state, CH_BLOCK_LIVE);
	rig_apart(&rig, call, &m);
	CHECK_EQ(ch_code_free(rig.heap, (const void *)~m.inverted, CH_RELEASE_NOT_RUNNING), CH_OK);
	rig_check(&rig);
	CHECK_EQ(ch_heap_destroy(rig.heap), CH_OK);
}

static void free_here(const struct rig *rig, void *arg)
{
	struct made *m = arg;
	CHECK_EQ(ch_code_free(rig->heap, (const void *)~m[0].inverted, CH_RELEASE_NOT_RUNNING),
		 CH_OK);
	CHECK_EQ(ch_code_free(rig->heap, (const void *)~m[1].inverted, CH_RELEASE_COLLECT), CH_OK);
}

TEST_RIG(thread_that_is_not_attached_frees_code)
{
	struct made m[2];
	rig_apart(&rig, make, &m[0]);
	rig_apart(&rig, make, &m[1]);
	rig_alone(&rig, free_here, m);
	CHECK(!rig_is_there(m[0].block) && rig_is_there(m[1].block));
	rig_collect(&rig, 1);
	CHECK(!rig_is_there(m[1].block));
}

/* A child with a copy of the code calls the code; a child without a copy finds no code. */
static void run_child(enum ch_fork fork_as)
{
	struct ch_config config = rig_config(1 << 20);
	config.fork = fork_as;
	struct rig rig = rig_create(&config, NULL, NULL);
	function f = add_value(rig.heap, "f", 42);
	struct ch_block block = block_of(rig.heap, f);
	pid_t child = fork_child();
	if (!child) {
		bool has_code = fork_as != CH_FORK_NONE;
		if (rig_is_there(block) != has_code || (has_code && f() != 42))
			_exit(1);
		enum ch_status status = ch_code_free(NULL, address(f), CH_RELEASE_NOT_RUNNING);
		_exit(status == (has_code ? CH_OK : CH_E_STALE) ? 0 : 2);
	}
	int how;
	CHECK_EQ(waitpid(child, &how, 0), child);
	CHECK_EQ(how, 0);
	CHECK_EQ(f(), 42);
	rig_end(&rig);
}

TEST(child_of_a_fork_has_code_without_an_owner_as_any_other)
{
	run_child(CH_FORK_COPY);
	run_child(CH_FORK_NONE);
}

TEST(child_that_shares_code_until_a_write_has_code_without_an_owner)
{
	skip_without_procmem();
	unsetenv("CODEHEAP_WX");
	run_child(CH_FORK_COW);
}

TEST_RIG(cell_without_a_fallback_leads_to_a_trap_and_to_no_veneer)
{
	struct ch_owner owner;
	struct emitter e;
	const void *veneer;
	CHECK_EQ(ch_owner_create(rig.vm, "no fallback", NULL, NULL, &owner), CH_OK);
	emit_open(&e, owner, 64, 0);
	CHECK_EQ(ch_block_veneer(&e.code, (const void *)(uintptr_t)rig_fallback, &veneer), CH_OK);
	const uint8_t *trap = *ch_owner_cell(owner);
	CHECK(trap != veneer && ch__arch_are_traps(trap, CH_ARCH_TRAP_UNIT_BYTES));
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
}
