/* SPDX-License-Identifier: MIT
 * handle_steps_x86_64.c: during a call that has an owner's handle, the owner goes and another owner
 * takes the record; or code goes, and other code takes its record. A thread makes the call with the
 * trap flag set, and stands still at a step (an instruction) until the main thread has done the
 * rest. Each scene stops at a later step, or some steps later in a long call, until the call has no
 * more steps.
 * length: all scenes share the thread that is stepped. */
#define _GNU_SOURCE
#include "tests/support/heap_rig.h"
#include "pages/granules.h"
#include "tests/support/trap_flag_x86_64.h"

#include "codeheap/graph/block.h"
#include "codeheap/graph/side_list.h"
#include "codeheap/guest_look.h"
#include "codeheap/look.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STRANGERS_MOST = 64, PATIENCE_NS = 20000000, NS_PER_S = 1000000000 };

struct play;

/* A call: the preparation before its steps, the steps, and the judgement of the result. */
struct act {
	bool is_attached; /* the calling thread */
	unsigned stride;  /* steps from one scene to the next */
	bool (*is_here)(const struct play *); /* may stand still here; NULL: always */
	void (*prepare)(struct play *);
	void (*call)(struct play *);
	void (*meanwhile)(struct play *);
	void (*judge)(struct play *);
	bool meets; /* a stranger has the record while the call stands still */
};

struct play {
	struct rig rig;
	const struct act *act;
	struct ch_owner owner;  /* the call has this owner's handle */
	struct ch_owner stranger; /* in the same record, or none */
	struct ch_owner strangers[STRANGERS_MOST];
	unsigned strangers_count;
	struct ch_code code;
	struct ch_block block;
	struct ch_spot spot;
	uint64_t word; /* of a look-up */
	enum ch_status status, meanwhile_status;
	unsigned wanted, step; /* `wanted`: the step to stand still at */
	_Atomic(int) is_there;
	bool is_in_time; /* the rest was done while the call stood still */
	sem_t there, over; /* the call stands still or has ended; the rest is done */
};

static struct play *stepped;
static void release_by_the_way(struct play *);

static bool is_owner_held(const struct play *p)
{
	return atomic_load(&ch__owner_at(p->rig.heap, ch__handle_index(p->owner.bits))->busy);
}

/* Whether the calling thread holds a lock that the main thread is about to wait for. */
static bool holds_anything(const struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	/* A release to be collected takes no lock. Or the main thread shall wait for the owner. */
	if (p->act->meanwhile == release_by_the_way || p->act->is_here == is_owner_held)
		return false;
	if (is_owner_held(p) || atomic_load(&ch__owner_at(heap, 0)->busy) ||
	    atomic_load(&heap->lock.word) || atomic_load(&heap->records.word))
		return true;
	for (uint32_t i = 0; i < heap->pool->page_count; i++)
		if (atomic_load(&heap->pool->pages[i].busy))
			return true;
	return false;
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
	int error = errno;
	struct play *p = stepped;
	ucontext_t *at = context;
	(void)signal, (void)info;
	if (++p->step >= p->wanted && !atomic_load(&p->is_there) && !holds_anything(p) &&
	    (!p->act->is_here || p->act->is_here(p))) {
		p->wanted = p->step;
		atomic_store(&p->is_there, 1);
		sem_post(&p->there);
		/* The thread may hold a lock unknown here: the main thread goes on later then. */
		struct timespec until;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += PATIENCE_NS;
		until.tv_sec += until.tv_nsec / NS_PER_S;
		until.tv_nsec %= NS_PER_S;
		p->is_in_time = sem_timedwait(&p->over, &until) == 0;
		if (p->is_in_time)
			sem_post(&p->over);
		at->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
	}
	errno = error;
}

static void *play_call(void *arg)
{
	struct play *p = arg;
	if (p->act->is_attached)
		CHECK_EQ(ch_thread_attach(p->rig.heap, NULL, NULL), CH_OK);
	if (p->act->prepare)
		p->act->prepare(p);
	p->step = 0;
	trap_flag_set();
	p->act->call(p);
	trap_flag_clear();
	if (!atomic_load(&p->is_there))
		sem_post(&p->there);
	if (p->act->is_attached) {
		while (sem_wait(&p->over) != 0)
			CHECK_EQ(errno, EINTR);
		p->act->judge(p);
		CHECK_EQ(ch_thread_detach(p->rig.heap), CH_OK);
	}
	return NULL;
}

/* Plays a scene. Returns false when the call ended before the step came. */
static bool play_scene(struct play *p)
{
	pthread_t thread;
	atomic_store(&p->is_there, 0);
	CHECK_EQ(sem_init(&p->there, 0, 0), 0);
	CHECK_EQ(sem_init(&p->over, 0, 0), 0);
	p->is_in_time = false;
	p->stranger.bits = 0;
	p->strangers_count = 0;
	CHECK_EQ(pthread_create(&thread, NULL, play_call, p), 0);
	while (sem_wait(&p->there) != 0)
		CHECK_EQ(errno, EINTR);
	bool was_there = atomic_load(&p->is_there);
	p->act->meanwhile(p);
	sem_post(&p->over);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	if (!p->act->is_attached)
		p->act->judge(p);
	for (unsigned i = 0; i < p->strangers_count; i++)
		(void)!ch_owner_release(p->strangers[i], CH_RELEASE_NOT_RUNNING);
	return was_there;
}

static void play_all_by(enum ch_driver driver, const struct act *act, void (*set)(struct play *),
			unsigned least)
{
	struct ch_config config = rig_config(1 << 20);
	struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
	static struct play play;
	struct play *p = &play;
	unsigned scenes = 0, met = 0;
	stepped = p;
	p->act = act;
	config.driver = driver;
	p->rig = rig_create(&config, NULL, NULL);
	p->wanted = 1;
	CHECK_EQ(sigaction(SIGTRAP, &action, NULL), 0);
	/* Once more where no stranger was in time, on a busy machine. */
	for (bool more = true; more || (act->meets && !met); scenes++) {
		p->owner = rig_owner(&p->rig, "owner");
		if (set)
			set(p);
		more = play_scene(p);
		p->wanted = more ? p->wanted + act->stride : 1;
		met += p->is_in_time && p->stranger.bits;
	}
	if (scenes < least)
		FAIL("%u scenes: the call has more instructions", scenes);
	rig_end(&p->rig);
}

static void play_all(const struct act *act, void (*set)(struct play *), unsigned least)
{
	play_all_by(CH_DRIVER_BUILTIN, act, set, least);
}

/* --- the other thread --- */

/* Creates owners until an owner has the record, or until no record is free. */
static void create_strangers(struct play *p)
{
	const struct ch__table *owners = &p->rig.heap->owners;
	while (!p->stranger.bits && owners->free_head) {
		CHECK(p->strangers_count < STRANGERS_MOST);
		struct ch_owner *stranger = &p->strangers[p->strangers_count++];
		*stranger = rig_owner(&p->rig, "stranger");
		if (ch__handle_index(stranger->bits) == ch__handle_index(p->owner.bits))
			p->stranger = *stranger;
	}
}

static void release_at_once(struct play *p)
{
	/* CH_E_STALE where the call itself is the release. */
	(void)!ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING);
	create_strangers(p);
}

static struct ch_owner_facts facts_of(struct ch_owner owner)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(owner, &facts), CH_OK);
	return facts;
}

/* --- an edge --- */

static void open_holder(struct play *p)
{
	struct ch_owner holder = rig_owner(&p->rig, "holder");
	struct ch_open open = {.size = sizeof open, .owner = holder, .hot_bytes = 16};
	CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
	/* Makes room in the block's list before the call. */
	CHECK_EQ(ch_edge_attach_owner(p->code.block, holder), CH_OK);
	CHECK_EQ(ch_owner_release(holder, CH_RELEASE_COLLECT), CH_OK);
}

static void attach_edge(struct play *p)
{
	p->status = ch_edge_attach_owner(p->code.block, p->owner);
}

static void judge_edge(struct play *p)
{
	const struct ch__owner *record =
		ch__owner_at(p->rig.heap, ch__handle_index(p->owner.bits));
	if (p->stranger.bits && p->status == CH_OK)
		FAIL("step %u: an edge to an owner that was gone is the stranger's", p->wanted);
	if (p->stranger.bits && record->has_edges)
		FAIL("step %u: a stranger has the edge of another", p->wanted);
	if (p->status != CH_OK)
		CHECK_EQ(p->status, CH_E_STALE);
	CHECK_EQ(ch_block_abort(&p->code), CH_OK);
}

TEST(edge_of_an_owner_that_goes_is_never_a_strangers)
{
	static const struct act act = {true, 1, NULL, open_holder, attach_edge,
				       release_at_once, judge_edge, true};
	play_all(&act, NULL, 50);
}

/* The release comes when the call has found the owner alive, and waits for the edge. */
TEST(release_at_once_waits_for_an_edge_under_way)
{
	static const struct act act = {true, 1, is_owner_held, open_holder, attach_edge,
				       release_at_once, judge_edge, false};
	play_all(&act, NULL, 10);
}

/* --- a block --- */

/* The thread has a page, and a record, before the call. */
static void warm_up(struct play *p)
{
	struct ch_owner warm = rig_owner(&p->rig, "warm");
	struct ch_open open = {.size = sizeof open, .owner = warm, .hot_bytes = 16};
	CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
	CHECK_EQ(ch_block_abort(&p->code), CH_OK);
	CHECK_EQ(ch_owner_release(warm, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void open_block(struct play *p)
{
	struct ch_open open = {.size = sizeof open, .owner = p->owner, .hot_bytes = 16};
	p->status = ch_block_open(&open, &p->code);
}

static void judge_owner_of(struct play *p, struct ch_block block)
{
	struct ch_info info = {.size = sizeof info};
	if (p->status == CH_OK && ch_block_info(block, &info) == CH_OK &&
	    info.owner.bits != p->owner.bits)
		FAIL("step %u: a block of an owner that was gone is a stranger's", p->wanted);
	if (p->stranger.bits && facts_of(p->stranger).blocks_now)
		FAIL("step %u: a stranger has a block that it did not open", p->wanted);
	if (p->status != CH_OK)
		CHECK_EQ(p->status, CH_E_STALE);
}

static void judge_block(struct play *p)
{
	judge_owner_of(p, p->code.block);
	if (p->status == CH_OK)
		CHECK_EQ(ch_block_abort(&p->code), CH_OK);
}

TEST(block_of_an_owner_that_goes_is_never_a_strangers)
{
	static const struct act act = {true, 5, NULL, warm_up, open_block,
				       release_at_once, judge_block, true};
	play_all(&act, NULL, 100);
}

/* --- a trampoline --- */

static void warm_up_slots(struct play *p)
{
	struct ch_owner warm = rig_owner(&p->rig, "warm");
	CHECK_EQ(ch_trampoline_make(warm, CH_TRAMPOLINE_TAIL,
				    (const void *)(uintptr_t)rig_fallback, 0, NULL, NULL,
				    &p->block),
		 CH_OK);
	CHECK_EQ(ch_owner_release(warm, CH_RELEASE_NOT_RUNNING), CH_OK);
}

static void make_trampoline(struct play *p)
{
	p->status = ch_trampoline_make(p->owner, CH_TRAMPOLINE_TAIL,
				       (const void *)(uintptr_t)rig_fallback, 7, NULL, NULL,
				       &p->block);
}

static void judge_trampoline(struct play *p)
{
	judge_owner_of(p, p->block);
}

TEST(trampoline_of_an_owner_that_goes_is_never_a_strangers)
{
	static const struct act act = {true, 31, NULL, warm_up_slots, make_trampoline,
				       release_at_once, judge_trampoline, true};
	play_all(&act, NULL, 40);
}

/* --- a patch point --- */

enum { USER = 0x1234, USER_BEFORE = 0x4321 };

static enum ch_status attach_point_to(struct play *p, uintptr_t user)
{
	return ch_patch_point_attach(p->code.block, p->code.exec, p->code.exec + 8, (void *)user);
}

/* The list that the call takes had another block's point. */
static void open_for_a_point(struct play *p)
{
	static const uint8_t point[] = {CODE_POINT_BYTES};
	struct ch_open open = {.size = sizeof open, .owner = p->owner, .hot_bytes = 16};
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
		memcpy(p->code.write, point, sizeof point);
		if (i)
			continue;
		CHECK_EQ(attach_point_to(p, USER_BEFORE), CH_OK);
		CHECK_EQ(ch_block_abort(&p->code), CH_OK);
	}
}

static void attach_point(struct play *p)
{
	p->status = attach_point_to(p, USER);
}

static bool is_point_last(const struct play *p)
{
	const struct ch__block *block =
		ch__block_at(p->rig.heap, ch__handle_index(p->code.block.bits));
	const struct ch__side_list *list = block->side_list;
	return list && list->count && list->kinds[list->count - 1] == CH__ITEM_POINT;
}

static bool note_user(void *arg, const struct ch_site *site)
{
	struct play *p = arg;
	if (site->kind == CH_SITE_PATCH_POINT)
		p->word = (uintptr_t)site->user;
	return true;
}

static void visit_point(struct play *p)
{
	p->word = 0;
	CHECK_EQ(ch_block_sites(p->code.block, note_user, p), CH_OK);
}

static void judge_user(struct play *p)
{
	CHECK_EQ(p->status, CH_OK);
	CHECK_EQ(p->word, USER);
	CHECK_EQ(ch_block_abort(&p->code), CH_OK);
}

TEST(point_has_its_user_when_others_visit_it)
{
	static const struct act act = {true, 1, is_point_last, open_for_a_point, attach_point,
				       visit_point, judge_user, false};
	play_all(&act, NULL, 3);
}

/* --- a site --- */

enum { SITE_AT = 3 }; /* the displacement lies within an aligned 8 */

/* Writes a jump into a run of pages with room for the jump's branch. */
static void write_jump(struct play *p, struct ch_owner owner, struct ch_code *code)
{
	static const uint8_t jump[] = {0x90, 0x90, 0x90, 0xe9, 0, 0, 0, 0};
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = 2 * (uint32_t)rig_page_bytes(),
			       .branch_room = 1};
	(void)p;
	CHECK_EQ(ch_block_open(&open, code), CH_OK);
	memcpy(code->write, jump, sizeof jump);
	code->used_to = sizeof jump;
}

static void make_late_site(struct play *p)
{
	write_jump(p, p->owner, &p->code);
	CHECK_EQ(ch_block_commit(&p->code, 1), CH_OK);
}

static void attach_late(struct play *p)
{
	struct ch_branch_site site = {.at = p->code.exec + SITE_AT, .kind = CH_JMP};
	struct ch_branch branch;
	p->status = ch_branch_attach(p->code.block, &site, &branch);
}

/* The main thread has a block OPEN in the same place and the same record. */
static void open_in_its_place(struct play *p)
{
	struct ch_code code;
	CHECK_EQ(ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	create_strangers(p);
	if (!p->stranger.bits)
		return;
	write_jump(p, p->stranger, &code);
	p->block = code.block;
}

static void judge_site(struct play *p)
{
	if (!p->stranger.bits)
		return;
	if (block_info(p->block).branches_now)
		FAIL("step %u: a site was attached to a block that another thread has open",
		     p->wanted);
	struct ch_code code = {.block = p->block};
	CHECK_EQ(ch_block_abort(&code), CH_OK);
}

TEST(site_of_a_block_that_goes_is_never_a_strangers)
{
	static const struct act act = {true, 1, NULL, NULL, attach_late,
				       open_in_its_place, judge_site, true};
	play_all(&act, make_late_site, 50);
}

/* --- a look-up --- */

static void look_up(struct play *p)
{
	p->word = ch__look_code(p->rig.heap, (uintptr_t)p->code.exec + SITE_AT, 0);
}

static void judge_look_up(struct play *p)
{
	if (p->word && p->word != ch__look_key(p->code.block.bits))
		FAIL("step %u: a look-up has found a block that is OPEN", p->wanted);
	struct ch_code code = {.block = p->block};
	CHECK_EQ(ch_block_abort(&code), CH_OK);
}

TEST(look_up_passes_over_a_record_that_is_open_again)
{
	static const struct act act = {false, 1, NULL, NULL, look_up,
				       open_in_its_place, judge_look_up, true};
	play_all(&act, make_late_site, 20);
}

/* A block with a call, and the user words of old and new block: each word tells its block. */
enum { RETURNS_AT = SITE_AT + 5 };
static char old_words[2], new_words[2];

static void make_call_of(struct ch_owner owner, char *words, struct ch_code *code)
{
	static const uint8_t call[] = {0x90, 0x90, 0x90, 0xe8, 0, 0, 0, 0};
	struct ch_open open = {.size = sizeof open,
			       .owner = owner,
			       .hot_bytes = 2 * (uint32_t)rig_page_bytes(),
			       .branch_room = 1,
			       .user = &words[0]};
	CHECK_EQ(ch_block_open(&open, code), CH_OK);
	memcpy(code->write, call, sizeof call);
	struct ch_branch_site site = {
		.at = code->exec + SITE_AT, .kind = CH_CALL, .user = &words[1]};
	struct ch_branch branch;
	CHECK_EQ(ch_branch_attach(code->block, &site, &branch), CH_OK);
	code->used_to = sizeof call;
	CHECK_EQ(ch_block_commit(code, 1), CH_OK);
}

static void make_call(struct play *p)
{
	make_call_of(p->owner, old_words, &p->code);
}

static void look_at_call(struct play *p)
{
	p->spot.size = sizeof p->spot;
	(void)!ch_code_at(p->rig.heap, p->code.exec + RETURNS_AT, true, &p->spot);
}

static void look_at_instruction(struct play *p)
{
	p->spot.size = sizeof p->spot;
	(void)!ch_code_at(p->rig.heap, p->code.exec + SITE_AT, false, &p->spot);
}

/* The main thread has another such block LIVE in the same place and the same records. */
static void replace_call(struct play *p)
{
	struct ch_code code;
	CHECK_EQ(ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	create_strangers(p);
	p->block.bits = 0;
	if (!p->stranger.bits)
		return;
	make_call_of(p->stranger, new_words, &code);
	CHECK(code.exec == p->code.exec);
	CHECK_EQ(rig_record(code.block), rig_record(p->code.block));
	p->block = code.block;
}

static void judge_call(struct play *p)
{
	const struct ch_spot *spot = &p->spot;
	bool is_old = spot->block.bits == p->code.block.bits;
	const char *words = is_old ? old_words : new_words;
	if (!spot->block.bits)
		return;
	if (!is_old && spot->block.bits != p->block.bits)
		FAIL("step %u: a look-up has found a block that never was", p->wanted);
	bool is_return = p->act->call == look_at_call;
	if (spot->owner.bits != (is_old ? p->owner : p->stranger).bits || spot->user != &words[0] ||
	    spot->has_site != is_return || spot->site_user != (is_return ? &words[1] : NULL))
		FAIL("step %u: a look-up says of one block what another one has", p->wanted);
}

TEST(look_up_never_says_of_a_block_what_the_next_one_has)
{
	static const struct act act = {false, 1, NULL, NULL, look_at_call, replace_call,
				       judge_call, true};
	play_all(&act, make_call, 60);
}

TEST(look_up_of_an_instruction_is_of_one_block)
{
	static const struct act act = {false, 1, NULL, NULL, look_at_instruction, replace_call,
				       judge_call, true};
	play_all(&act, make_call, 40);
}

/* --- refs --- */

enum { REFS = 10 };

static void open_with_refs(struct play *p)
{
	struct ch_open open = {
		.size = sizeof open, .owner = p->owner, .hot_bytes = 8 * REFS, .name = "refs"};
	CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
	memset(p->code.write, 0, 8 * REFS);
	for (unsigned i = 0; i < REFS; i++)
		CHECK_EQ(ch_ref_attach(p->code.block, p->code.exec + 8 * i), CH_OK);
	p->code.used_to = 8 * REFS;
}

static void commit_refs(struct play *p)
{
	p->status = ch_block_commit(&p->code, 1);
}

static uintptr_t same_word(void *arg, uintptr_t word, bool *is_young)
{
	++*(unsigned *)arg;
	*is_young = true;
	return word;
}

static void judge_refs(struct play *p)
{
	unsigned visits = 0;
	struct ch_info info = {.size = sizeof info};
	if (p->status != CH_OK)
		CHECK_EQ(p->status, CH_E_STALE);
	bool is_there = ch_block_info(p->code.block, &info) == CH_OK;
	rig_visit_refs(&p->rig, CH_REFS_YOUNG, same_word, &visits);
	if (is_there || visits)
		FAIL("step %u: a block of an owner that was released at once is there, %u refs",
		     p->wanted, visits);
	(void)!ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING);
}

/* Beside a commit the owner is released at once. The release frees the block, or the commit aborts
 * it. The commit reads the block's refs when other threads know the block already. */
TEST(commit_beside_a_release_is_stale_or_freed)
{
	static const struct act act = {true, 61, NULL, open_with_refs, commit_refs,
				       release_at_once, judge_refs, false};
	play_all_by(CH_DRIVER_HOST, &act, NULL, 20);
}

static bool is_live_without_start(const struct play *p)
{
	struct ch_heap *heap = p->rig.heap;
	const struct ch__block *block = ch__block_at(heap, ch__handle_index(p->code.block.bits));
	return ch__block_state(block) == CH_BLOCK_LIVE &&
	       !ch__page_has_start(heap->pool, block->hot_offset);
}

/* The commit sets no start for a block that the release has freed. */
TEST(commit_has_its_start_before_a_release_ends_it)
{
	static const struct act act = {true, 1, is_live_without_start, open_with_refs, commit_refs,
				       release_at_once, judge_refs, false};
	play_all_by(CH_DRIVER_HOST, &act, NULL, 2);
}

/* --- a release --- */

static void release_once_more(struct play *p)
{
	p->status = ch_owner_release(p->owner, CH_RELEASE_COLLECT);
}

static void judge_release(struct play *p)
{
	if (p->stranger.bits && facts_of(p->stranger).is_released)
		FAIL("step %u: the second release of an owner was a stranger's", p->wanted);
	if (p->status != CH_OK)
		CHECK_EQ(p->status, CH_E_STALE);
}

TEST(second_release_of_an_owner_is_never_a_strangers)
{
	static const struct act act = {false, 1, NULL, NULL, release_once_more, release_at_once,
				       judge_release, true};
	play_all(&act, NULL, 20);
}

/* --- code without an owner --- */

/* Makes a run of pages. Smaller code in the same record lies elsewhere. What earlier scenes left to
 * cycles goes first: the library's own collections give up when a thread is slow to stop. */
static void make_code(struct play *p)
{
	CHECK_EQ(ch_heap_collect(p->rig.heap), CH_OK);
	struct ch_open open = {.size = sizeof open, .heap = p->rig.heap, .hot_bytes = 64};
	/* From here on the thread has a page of its own, for the smaller code. */
	CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
	CHECK_EQ(ch_block_abort(&p->code), CH_OK);
	open.hot_bytes = 2 * (uint32_t)rig_page_bytes();
	CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
	p->code.used_to = open.hot_bytes;
	CHECK_EQ(ch_block_commit(&p->code, 1), CH_OK);
}

static void free_code_to_cycles(struct play *p)
{
	p->status = ch_code_free(p->rig.heap, p->code.exec, CH_RELEASE_COLLECT);
}

/* The main thread frees the code, too, and makes other code in the same record. */
static void free_code_and_make_other(struct play *p)
{
	struct ch_open open = {.size = sizeof open, .heap = p->rig.heap, .hot_bytes = 64};
	struct ch_code code;
	p->meanwhile_status =
		ch_code_free(p->rig.heap, p->code.exec, CH_RELEASE_NOT_RUNNING);
	p->block.bits = 0;
	if (p->meanwhile_status != CH_OK)
		return;
	CHECK_EQ(ch_block_open(&open, &code), CH_OK);
	CHECK_EQ(rig_record(code.block), rig_record(p->code.block));
	CHECK(code.exec != p->code.exec);
	code.used_to = open.hot_bytes;
	CHECK_EQ(ch_block_commit(&code, 1), CH_OK);
	p->block = code.block;
}

static void judge_free(struct play *p)
{
	if ((p->status == CH_OK) == (p->meanwhile_status == CH_OK))
		FAIL("step %u: of two frees of the code, each or none is said to have freed it",
		     p->wanted);
	CHECK_EQ(p->status == CH_OK ? p->meanwhile_status : p->status, CH_E_STALE);
	if (p->block.bits && ch_code_free(p->rig.heap, block_info(p->block).exec,
					  CH_RELEASE_NOT_RUNNING) != CH_OK)
		FAIL("step %u: a free of code that was gone is of the code in its record",
		     p->wanted);
}

TEST(free_of_code_that_goes_is_never_of_the_code_in_its_record)
{
	static const struct act act = {true, 1, NULL, NULL, free_code_to_cycles,
				       free_code_and_make_other, judge_free, false};
	play_all(&act, make_code, 50);
}

/* --- an owner's cell --- */

/* Makes a run of pages. The next run of the same size lies in the same place. */
static struct ch_block make_span(struct ch_owner owner)
{
	struct emitter e;
	emit_open(&e, owner, 2 * (uint32_t)rig_page_bytes(), 0);
	emit_answer(&e, 1);
	CHECK_EQ(emit_commit(&e), CH_OK);
	return e.code.block;
}

static void enter_block(const struct rig *rig, void *arg)
{
	struct play *p = arg;
	(void)rig;
	p->block = make_span(p->owner);
	CHECK_EQ(ch_owner_set_entry(p->owner, p->block), CH_OK);
}

static void set_entry(struct play *p)
{
	rig_apart(&p->rig, enter_block, p);
}

static void enter_stranger(const struct rig *rig, void *arg)
{
	struct play *p = arg;
	(void)rig;
	struct ch_block block = make_span(p->stranger);
	CHECK_EQ(ch_owner_set_entry(p->stranger, block), CH_OK);
}

/* The owner dies of a release that is not through. A stranger gets the record and the place, and so
 * the same word in the same cell. */
static void collect_and_replace(struct play *p)
{
	CHECK_EQ(ch_blocks_invalidate(&p->block, 1, NULL), CH_OK);
	rig_collect(&p->rig, 3);
	create_strangers(p);
	if (p->stranger.bits)
		rig_apart(&p->rig, enter_stranger, p);
}

static void judge_cell(struct play *p)
{
	CHECK_EQ(p->status, CH_OK);
	if (p->stranger.bits) {
		struct ch_info info = block_info(facts_of(p->stranger).entry);
		if (*ch_owner_cell(p->stranger) != info.entry)
			FAIL("step %u: a release has reset the cell of a stranger", p->wanted);
	}
	/* Only a release that is not through holds the record. */
	rig_collect(&p->rig, 2);
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(ch_owner_info(p->owner, &facts), CH_E_STALE);
}

TEST(cell_that_a_release_resets_is_never_a_strangers)
{
	static const struct act act = {false, 1, NULL, NULL, release_once_more, collect_and_replace,
				       judge_cell, true};
	play_all(&act, set_entry, 20);
}

/* --- a release of many --- */

enum { MANY = 66 };

/* The release believes that a thread waits for the heap's lock, and lets it go first. */
static void make_many(struct play *p)
{
	for (unsigned i = 0; i < MANY; i++) {
		struct ch_open open = {.size = sizeof open, .owner = p->owner, .hot_bytes = 16};
		CHECK_EQ(ch_block_open(&open, &p->code), CH_OK);
		p->code.used_to = 16;
		CHECK_EQ(ch_block_commit(&p->code, 1), CH_OK);
	}
	atomic_store(&p->rig.heap->lock_waits, 1);
}

static void release_many(struct play *p)
{
	p->status = ch_owner_release(p->owner, CH_RELEASE_NOT_RUNNING);
}

static bool is_between_batches(const struct play *p)
{
	const struct ch__owner *owner =
		ch__owner_at(p->rig.heap, ch__handle_index(p->owner.bits));
	return atomic_load(&owner->generation) ==
	       (ch__handle_generation(p->owner.bits) | CH__LIFE_RELEASED);
}

static void collect_and_enter(struct play *p)
{
	rig_collect(&p->rig, 4);
	create_strangers(p);
	if (!p->stranger.bits)
		return;
	rig_apart(&p->rig, enter_stranger, p);
	/* The list of free records may have left any number there. */
	ch__owner_at(p->rig.heap, ch__handle_index(p->stranger.bits))->release_at =
		rig_record(facts_of(p->stranger).entry);
}

static void judge_many(struct play *p)
{
	struct ch_owner_facts facts = {.size = sizeof facts};
	CHECK_EQ(p->status, CH_OK);
	CHECK_EQ(ch_owner_info(p->owner, &facts), CH_E_STALE);
	if (atomic_load(&p->is_there))
		CHECK(p->stranger.bits);
	if (!p->stranger.bits)
		return;
	struct ch_block entry = facts_of(p->stranger).entry;
	if (!entry.bits)
		FAIL("step %u: a release has gone on in a stranger's blocks", p->wanted);
	if (ch_owner_set_entry(p->stranger, entry) != CH_OK)
		FAIL("step %u: a release has ended a stranger", p->wanted);
}

/* Between two batches of a release cycles free the other blocks and the owner. */
TEST(release_that_lets_others_go_first_does_not_go_on_in_a_stranger)
{
	static const struct act act = {false, 23, is_between_batches, NULL, release_many,
				       collect_and_enter, judge_many, false};
	play_all(&act, make_many, 2);
}

/* The VM's collector reaches nothing: no root holds an owner whose release is not through. */
static void reach_nothing(const struct rig *rig, void *arg)
{
	(void)arg;
	rig_mark(rig, NULL);
	ch_thread_poll();
}

static void die_and_be_replaced(struct play *p)
{
	for (int cycle = 0; cycle < 3; cycle++)
		rig_apart(&p->rig, reach_nothing, NULL);
	create_strangers(p);
}

static void judge_stranger(struct play *p)
{
	/* Stale: the owner died before its release began. */
	if (p->status != CH_OK)
		CHECK_EQ(p->status, CH_E_STALE);
	for (unsigned i = 0; i < p->strangers_count; i++)
		if (facts_of(p->strangers[i]).is_released)
			FAIL("step %u: a release has ended on a stranger", p->wanted);
}

TEST(release_that_is_not_through_holds_the_record_of_what_died)
{
	static const struct act act = {false, 1, NULL, NULL, release_once_more, die_and_be_replaced,
				       judge_stranger, true};
	play_all_by(CH_DRIVER_HOST, &act, NULL, 20);
}

/* --- an entry --- */

static void make_entry(struct play *p)
{
	p->block = rig_block(p->owner, 3);
}

static void set_entry_beside(struct play *p)
{
	p->status = ch_owner_set_entry(p->owner, p->block);
}

static void release_by_the_way(struct play *p)
{
	CHECK_EQ(ch_owner_release(p->owner, CH_RELEASE_COLLECT), CH_OK);
}

/* The release came before the call, or found the call's entry in the cell. */
static void judge_entry(struct play *p)
{
	const void *const *cell = ch_owner_cell(p->owner);
	if (p->status != CH_OK)
		CHECK_EQ(p->status, CH_E_STALE);
	CHECK(cell);
	if (*cell != (const void *)(uintptr_t)rig_fallback)
		FAIL("step %u: the cell of a released owner leads to its code", p->wanted);
}

TEST(cell_of_an_owner_that_is_released_meanwhile_leads_to_its_fallback)
{
	static const struct act act = {false, 5, NULL, NULL, set_entry_beside, release_by_the_way,
				       judge_entry, false};
	static const struct act attached = {true, 5, NULL, NULL, set_entry_beside,
					    release_by_the_way, judge_entry, false};
	play_all(&act, make_entry, 20);
	play_all(&attached, make_entry, 20);
}

/* --- the end of a host's cycle --- */

static struct ch_marker *marker;

static void begin_cycle(struct play *p)
{
	CHECK_EQ(ch_mark_begin(p->rig.heap, &marker), CH_OK);
}

static void end_without_stacks(struct play *p)
{
	p->status = ch_mark_end(marker, true);
}

static void mark_again(struct play *p)
{
	rig_mark(&p->rig, NULL);
}

static void judge_end(struct play *p)
{
	if (p->status != CH_E_STATE)
		FAIL("step %u: the end of a cycle without stacks speaks of the next cycle's",
		     p->wanted);
}

/* The heap has one marker. The next cycle may have it as soon as the call gives the lock back. */
TEST(end_of_a_cycle_says_nothing_of_the_next_one)
{
	static const struct act act = {true, 3, NULL, begin_cycle, end_without_stacks, mark_again,
				       judge_end, false};
	play_all_by(CH_DRIVER_HOST, &act, NULL, 10);
}
