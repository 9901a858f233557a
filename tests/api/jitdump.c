/* SPDX-License-Identifier: MIT
 * jitdump.c: the jitdump file of a heap, through the public header. Code is in the file, with its
 * bytes, before the code can be reached. Freed code is nobody's. The file of a forked child has the
 * child's code. */
#include "tests/support/heap_rig.h"
#include "tests/support/jitdump_reader.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

static char folder[] = "/tmp/ch-jitdump-XXXXXX";

static struct rig start(void)
{
	struct ch_config config = rig_config(1 << 20);
	CHECK(mkdtemp(folder) != NULL);
	config.sinks = CH_SINK_UNWIND | CH_SINK_JITDUMP;
	config.jitdump_dir = folder;
	return rig_create(&config, NULL, NULL);
}

static struct dump *read_of(pid_t pid)
{
	char path[128];
	snprintf(path, sizeof path, "%s/jit-%d.dump", folder, (int)pid);
	return dump_read(path);
}

static void unlink_of(pid_t pid)
{
	char path[128];
	snprintf(path, sizeof path, "%s/jit-%d.dump", folder, (int)pid);
	CHECK_EQ(unlink(path), 0);
}

static void end(struct rig *rig)
{
	rig_end(rig);
	unlink_of(getpid());
	CHECK_EQ(rmdir(folder), 0);
}

#define TEST_DUMP(name) TEST_WITH(name, struct rig, rig, start(), end(&rig))

TEST_DUMP(jitdump_says_where_it_is)
{
	const char *path;
	int failed;
	char wanted[128];
	snprintf(wanted, sizeof wanted, "%s/jit-%d.dump", folder, (int)getpid());
	CHECK(ch_sink_status(rig.heap, CH_SINK_JITDUMP, &path, &failed));
	CHECK_STR(path, wanted);
	CHECK_EQ(failed, 0);
}

/* The bytes behind the name of the folder are not the library's to read. */
TEST(jitdump_dir_is_read_to_its_end_only)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = sizeof "/tmp";
	char *low = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	CHECK(low != MAP_FAILED && mprotect(low + page, page, PROT_NONE) == 0);
	struct ch_config config = rig_config(1 << 20);
	config.jitdump_dir = memcpy(low + page - bytes, "/tmp", bytes);
	struct rig rig = rig_create(&config, NULL, NULL);
	rig_end(&rig);
	CHECK_EQ(munmap(low, 2 * page), 0);
}

/* The file is opened long after the heap was made. */
TEST(jitdump_dir_may_change_behind_the_heap_s_creation)
{
	char name[sizeof folder], wanted[128];
	struct ch_config config = rig_config(1 << 20);
	const char *path;
	CHECK(mkdtemp(folder) != NULL);
	config.jitdump_dir = strcpy(name, folder);
	struct rig rig = rig_create(&config, NULL, NULL);
	memset(name, '?', sizeof name - 1);
	CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_JITDUMP), CH_OK);
	snprintf(wanted, sizeof wanted, "%s/jit-%d.dump", folder, (int)getpid());
	CHECK(ch_sink_status(rig.heap, CH_SINK_JITDUMP, &path, NULL));
	CHECK_STR(path, wanted);
	end(&rig);
}

static size_t records_now(void)
{
	struct dump *dump = read_of(getpid());
	size_t count = dump->count;
	dump_free(dump);
	return count;
}

/* Nobody was told of the code. */
TEST_DUMP(jitdump_has_nothing_of_code_that_was_given_up)
{
	size_t before = records_now();
	struct emitter e;
	emit_open(&e, rig_owner(&rig, "given up"), 64, 0);
	emit_ret(&e);
	CHECK_EQ(ch_block_abort(&e.code), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK_EQ(records_now(), before);
}

TEST_DUMP(jitdump_has_nothing_of_data_that_ends)
{
	size_t before = records_now();
	struct ch_open open = {.heap = rig.heap, .hot_bytes = 64, .kind = CH_KIND_DATA};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	CHECK_EQ(ch_block_commit(&e.code, 1), CH_OK);
	CHECK_EQ(ch_code_free(rig.heap, e.code.exec, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	CHECK_EQ(records_now(), before);
}

TEST_DUMP(jitdump_has_the_code_that_runs)
{
	struct ch_owner owner = rig_owner(&rig, "answer");
	struct ch_open open = {.owner = owner,
			       .hot_bytes = 64,
			       .cold_bytes = 32,
			       .branch_room = 1,
			       .name = "of life"};
	struct emitter e;
	CHECK_EQ(emit_open_as(&e, &open), CH_OK);
	emit_answer(&e, 42);
	memset(e.code.cold_write, 0x90, 32);
	e.code.cold_used = 32;
	struct ch_line line = {e.code.exec, 17};
	CHECK_EQ(ch_block_lines(e.code.block, "/src/answer.scm", &line, 1), CH_OK);
	CHECK_EQ(emit_commit(&e), CH_OK);
	CHECK_EQ(ch_owner_set_entry(owner, e.code.block), CH_OK);
	struct dump *dump = read_of(getpid()); /* without a flush */
	dump_check_owner(dump, e.code.exec, now_ns(), "answer of life");
	dump_check_owner(dump, e.code.cold_exec, now_ns(), "answer of life");
	const struct dump_record *load = dump_owner(dump, (uintptr_t)e.code.exec, now_ns());
	CHECK_EQ(load->at, (uintptr_t)e.code.exec); /* a disassembler starts there */
	CHECK(memcmp(load->code, e.code.exec, load->code_bytes) == 0);
	CHECK(load->code_bytes >= 6 && load->lines && load->unwinding);
	dump_free(dump);
}

static void say_freed(const void *pc, uint64_t lived_at, const char *name)
{
	struct dump *dump = read_of(getpid());
	dump_check_owner(dump, pc, lived_at, name);
	dump_check_owner(dump, pc, now_ns(), "[freed]");
	dump_free(dump);
}

static void forget(const struct rig *rig, void *arg)
{
	const void **pc = arg;
	struct ch_owner owner = rig_owner(rig, "collected");
	struct ch_block block = rig_block(owner, 1);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	*pc = block_info(block).entry;
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_COLLECT), CH_OK);
}

TEST_DUMP(jitdump_says_that_collected_code_is_nobodys)
{
	static const void *pc;
	rig_apart(&rig, forget, &pc);
	uint64_t lived_at = now_ns();
	rig_collect(&rig, 2);
	say_freed(pc, lived_at, "collected");
	struct ch_owner owner = rig_owner(&rig, "released");
	struct ch_block block = rig_block(owner, 2);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	const void *entry = block_info(block).entry;
	lived_at = now_ns();
	CHECK_EQ(ch_owner_release(owner, CH_RELEASE_NOT_RUNNING), CH_OK);
	CHECK_EQ(ch_sink_flush(rig.heap), CH_OK);
	say_freed(entry, lived_at, "released");
}

/* --- trampolines --- */
enum { TRAMPOLINES = 20 };

static uint32_t forty_two(void)
{
	return 42;
}

TEST_DUMP(jitdump_has_each_trampoline_by_name)
{
	static struct ch_block blocks[TRAMPOLINES];
	static uint8_t code[64];
	struct ch_owner owner = rig_owner(&rig, "stamped");
	for (int i = 0; i < TRAMPOLINES; i++)
		CHECK_EQ(ch_trampoline_make(owner, CH_TRAMPOLINE_FRAMED,
					    (const void *)(uintptr_t)forty_two, 7, NULL, NULL,
					    &blocks[i]),
			 CH_OK);
	struct ch_info last = block_info(blocks[TRAMPOLINES - 1]);
	CHECK_EQ(code_call(last.entry), 42);
	struct dump *dump = read_of(getpid());
	dump_check_owner(dump, last.entry, now_ns(), "stamped");
	size_t loads = 0;
	for (size_t i = 0; i < dump->count; i++)
		loads += dump->records[i].kind == DUMP_LOAD;
	CHECK_EQ(loads, TRAMPOLINES + 1); /* and the runtime page */
	const struct dump_record *all = dump_owner(dump, (uintptr_t)last.entry, now_ns());
	size_t bytes = last.hot_bytes < sizeof code ? last.hot_bytes : sizeof code;
	memcpy(code, last.entry, bytes);
	CHECK(memcmp(all->code + ((uintptr_t)last.entry - all->at), code, bytes) == 0);
	CHECK_EQ(dump_count_fdes(all->unwinding), 1);
	CHECK_EQ((uintptr_t)(dump_fde_pc(all->unwinding, all, 0) + (int64_t)all->at),
		 (uintptr_t)last.entry);
	dump_free(dump);
}

/* --- told before reachable: a thread that finds a block looks at the clock --- */
enum { SEEN = 300 };
static struct rig watched;
static _Atomic(const void *) wanted;
static uint64_t seen_at[SEEN];

static void *watch(void *arg)
{
	(void)arg;
	for (int i = 0; i < SEEN; i++) {
		struct ch_block block;
		const void *pc;
		while (!(pc = atomic_load(&wanted)))
			sched_yield();
		while (!block_at(watched.heap, pc, &block))
			continue;
		seen_at[i] = now_ns();
		atomic_store(&wanted, NULL);
	}
	return NULL;
}

TEST(jitdump_times_come_before_the_code_can_be_reached)
{
	static const void *at[SEEN];
	pthread_t thread;
	watched = start();
	CHECK_EQ(pthread_create(&thread, NULL, watch, NULL), 0);
	for (int i = 0; i < SEEN; i++) {
		struct emitter e;
		emit_open(&e, rig_owner(&watched, "seen"), 16, 0);
		emit_answer(&e, (uint32_t)i);
		at[i] = e.code.exec;
		atomic_store(&wanted, at[i]);
		CHECK_EQ(emit_commit(&e), CH_OK);
		while (atomic_load(&wanted))
			sched_yield();
	}
	CHECK_EQ(pthread_join(thread, NULL), 0);
	struct dump *dump = read_of(getpid());
	for (int i = 0; i < SEEN; i++)
		dump_check_owner(dump, at[i], seen_at[i], "seen");
	dump_free(dump);
	end(&watched);
}

/* --- fork --- */
static void child_has_it(const struct rig *rig, const void *entry)
{
	uint64_t told_at = now_ns();
	struct dump *dump = read_of(getpid());
	dump_check_owner(dump, entry, told_at, "kept");
	const struct dump_record *load = dump_owner(dump, (uintptr_t)entry, told_at);
	CHECK(memcmp(load->code, entry, load->code_bytes) == 0);
	dump_free(dump);
	struct ch_owner owner = rig_owner(rig, "of the child");
	struct ch_block block = rig_block(owner, 5);
	dump = read_of(getpid());
	dump_check_owner(dump, block_info(block).entry, now_ns(), "of the child");
	dump_free(dump);
	unlink_of(getpid());
	_exit(0);
}

TEST_DUMP(jitdump_of_a_child_has_the_childs_code)
{
	struct ch_owner owner = rig_owner(&rig, "kept");
	struct ch_block block = rig_block(owner, 3);
	CHECK_EQ(ch_owner_set_entry(owner, block), CH_OK);
	const void *entry = block_info(block).entry;
	pid_t pid = fork();
	if (pid == 0)
		child_has_it(&rig, entry);
	expect_exit(pid, 0);
	struct dump *dump = read_of(getpid());
	for (size_t i = 0; i < dump->count; i++)
		CHECK(dump->records[i].kind != DUMP_LOAD ||
		      strcmp(dump->records[i].name, "of the child") != 0);
	dump_free(dump);
}

TEST(jitdump_of_a_child_without_code_is_off)
{
	struct ch_config config = rig_config(1 << 20);
	int failed;
	CHECK(mkdtemp(folder) != NULL);
	config.sinks = CH_SINK_JITDUMP;
	config.jitdump_dir = folder;
	config.fork = CH_FORK_NONE;
	struct rig rig = rig_create(&config, NULL, NULL);
	rig_block(rig_owner(&rig, "parents"), 1);
	pid_t pid = fork();
	if (pid == 0) {
		unlink_of(getpid());
		CHECK(!ch_sink_status(rig.heap, CH_SINK_JITDUMP, NULL, &failed));
		CHECK_EQ(failed, EFAULT);
		/* The dump stays off, however often the child asks: there are no bytes to dump. */
		for (int i = 0; i < 2; i++) {
			CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_JITDUMP), CH_E_OS);
			CHECK_EQ(errno, EFAULT);
			CHECK(!ch_sink_status(rig.heap, CH_SINK_JITDUMP, NULL, &failed));
			CHECK_EQ(failed, EFAULT);
			CHECK_EQ(ch_sink_set(rig.heap, CH_SINK_NONE), CH_OK);
		}
		_exit(0);
	}
	expect_exit(pid, 0);
	end(&rig);
}

TEST_RIG_BY(jitdump_of_a_child_that_has_no_folder_is_off, start())
{
	int status;
	struct ch_owner owner = rig_owner(&rig, "runs");
	CHECK_EQ(ch_owner_set_entry(owner, rig_block(owner, 4)), CH_OK);
	unlink_of(getpid());
	CHECK_EQ(rmdir(folder), 0);
	pid_t pid = fork();
	if (pid == 0) {
		CHECK(!ch_sink_status(rig.heap, CH_SINK_JITDUMP, NULL, &status));
		CHECK_EQ(status, ENOENT);
		CHECK_EQ(code_call_owner(owner), 4);
		_exit(0);
	}
	expect_exit(pid, 0);
}
