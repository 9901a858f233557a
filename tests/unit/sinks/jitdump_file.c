/* SPDX-License-Identifier: MIT
 * jitdump_file.c: the jitdump file in a process. The file survives forks, other heaps and full
 * disks, and is off with a reason where it cannot be made. tests/api/sink_files.c tests foreign
 * files at the same name. */
#define _GNU_SOURCE
#include "sinks/tools.h"
#include "tests/support/own_mounts.h"
#include "tests/unit/sinks/jitdump.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* --- failures --- */
static void check_switched_off(struct bed *bed, int error)
{
	CHECK_EQ(ch__sinks_on(bed->sinks), 0);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_JITDUMP), error);
	CHECK_STR(ch__sinks_path(bed->sinks, CH_SINK_JITDUMP), "");
	add(bed, 64, 64, 1); /* no sink is told, no harm */
	discard(bed, 64, 64, 1);
	flush(bed);
}

TEST_DUMP(dump_is_switched_off_when_the_file_may_not_grow)
{
	struct rlimit limit = {32768, 32768};
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	size_t told = 0;
	while (told < 1024 && ch__sinks_on(bed->sinks)) {
		add(bed, told * 64, 64, told);
		told++;
	}
	CHECK(told > 10 && told < 1024);
	check_switched_off(bed, EFBIG);
	/* The records written before are still good: a reader ends at the cut record. */
	struct dump *dump = read_own();
	dump_check_owner(dump, bed->pool + 64, now_ns(), "fn_1");
	dump_free(dump);
}

/* Returns the page of the file by which perf finds the file. */
static void *find_marker(void)
{
	char line[512], path[128];
	FILE *maps = fopen("/proc/self/maps", "r");
	path_of(getpid(), path);
	CHECK(maps);
	while (fgets(line, sizeof line, maps))
		if (strstr(line, path)) {
			fclose(maps);
			return (void *)(uintptr_t)strtoull(line, NULL, 16);
		}
	FAIL("%s is not mapped", path);
}

/* The first failure took the dump's page. The second finds somebody else's page there. */
TEST_DUMP(dump_that_fails_twice_takes_back_only_its_own_page)
{
	struct rlimit limit = {4096, 4096};
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char is_in;
	void *marker = find_marker();
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	for (size_t i = 0; ch__sinks_on(bed->sinks); i++)
		add(bed, i * 64, 64, i);
	check_switched_off(bed, EFBIG);
	CHECK(mmap(marker, bytes, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == marker);
	CHECK_EQ(setenv("JITDUMPDIR", "/nowhere/at/all", 1), 0);
	CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_JITDUMP), ENOENT);
	CHECK_EQ(mincore(marker, bytes, &is_in), 0); /* ENOMEM where nothing is mapped */
}

/* The header fits, and the first code does not. */
TEST(dump_without_room_for_its_first_code_is_off_from_the_start)
{
	struct bed bed;
	struct rlimit limit = {4096, 4096};
	use_own_folder();
	CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
	bed_open(&bed, CH_SINK_JITDUMP);
	check_switched_off(&bed, EFBIG);
	end(&bed);
}

/* Fails each system or metadata call, one after another, from creation to end. */
TEST(dump_is_right_or_off_when_any_call_fails)
{
	char path[128];
	use_own_folder();
	path_of(getpid(), path);
	uint64_t nth = 1;
	for (;; nth++) {
		struct bed bed;
		bed_map(&bed);
		ch__os_fail_at(nth, false);
		int error = ch__sinks_create(&bed.config, CH_SINK_JITDUMP, &bed.sinks);
		bool has_failed = ch__os_failable_calls() >= nth;
		CHECK(!error || has_failed);
		if (!error) {
			pages_live(&bed);
			add(&bed, 64, 64, 1);
			discard(&bed, 64, 64, 1);
			add(&bed, 64, 32, 2);
			flush(&bed);
			bool is_on = ch__sinks_on(bed.sinks) != 0;
			has_failed = ch__os_failable_calls() >= nth;
			ch__os_fail_at(0, false);
			CHECK_EQ(is_on, ch__sinks_status(bed.sinks, CH_SINK_JITDUMP) == 0);
			CHECK(is_on || has_failed);
			if (is_on) {
				check_now(bed.pool + 64, "fn_2");
				check_now(bed.pool + 96, "[freed]");
			}
		}
		ch__os_fail_at(0, false);
		bed_close(&bed); /* destroying NULL does nothing */
		if (!has_failed)
			break;
	}
	CHECK(nth > 8);
	remove_own_folder();
}

static void check_refused(int error)
{
	struct bed bed;
	bed_open(&bed, CH_SINK_JITDUMP); /* the heap is made nevertheless */
	CHECK_EQ(ch__sinks_on(bed.sinks), 0);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_JITDUMP), error);
	add(&bed, 64, 64, 1);
	flush(&bed);
	bed_close(&bed);
}

TEST(dump_is_off_where_its_folder_is_not)
{
	use_own_folder();
	CHECK_EQ(setenv("JITDUMPDIR", "/nowhere/at/all", 1), 0);
	check_refused(ENOENT);
	char far[600];
	memset(far, 'x', sizeof far);
	far[sizeof far - 1] = 0;
	CHECK_EQ(setenv("JITDUMPDIR", far, 1), 0);
	check_refused(ENAMETOOLONG);
	remove_own_folder();
}

static int remove_one(const char *at, const struct stat *st, int type, struct FTW *where)
{
	(void)st, (void)type, (void)where;
	return remove(at);
}

/* The file's name has room behind that of its folder. */
TEST(dump_is_off_where_its_folder_has_too_long_a_name)
{
	enum { ROOM = 64, MOST = sizeof ch__sink_jitdump.tool->path - ROOM, PART = 200 };
	char far[MOST + 1];
	struct bed bed;
	use_own_folder();
	for (size_t length = MOST; length >= MOST - 1; length--) {
		size_t used = strlen(strcpy(far, folder));
		for (size_t part; used < length; used += part) {
			part = length - used > PART + 2 ? PART : length - used;
			memset(far + used, 'x', part);
			far[used] = '/';
			far[used + part] = 0;
			CHECK(mkdir(far, 0700) == 0 || errno == EEXIST);
		}
		CHECK_EQ(setenv("JITDUMPDIR", far, 1), 0);
		if (length == MOST) {
			check_refused(ENAMETOOLONG);
			continue;
		}
		start(&bed);
		bed_close(&bed);
	}
	CHECK_EQ(nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* fork's handlers, by which a child begins a file of its own, do not run. */
TEST(dump_is_not_written_by_a_child_of_a_raw_clone)
{
	struct bed bed;
	struct stat before, after;
	char path[128];
	use_own_folder();
	path_of(getpid(), path);
	start(&bed);
	add(&bed, 64, 64, 1);
	CHECK_EQ(stat(path, &before), 0);
	pid_t child = _Fork();
	if (child == 0) {
		flush(&bed);
		add(&bed, 128, 64, 2);
		CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_JITDUMP), EFAULT);
		ch__sinks_destroy(bed.sinks);
		_exit(0);
	}
	expect_exit(child, 0);
	CHECK_EQ(stat(path, &after), 0);
	CHECK_EQ(after.st_size, before.st_size);
	add(&bed, 192, 64, 3);
	check_now(bed.pool + 192, "fn_3");
	end(&bed);
}

/* A daemon goes to /, after its start. */
TEST(dump_in_a_folder_named_from_here_goes_on_when_the_process_goes_elsewhere)
{
	struct bed bed;
	char path[128];
	use_own_folder();
	path_of(getpid(), path);
	CHECK_EQ(chdir(folder), 0);
	CHECK_EQ(setenv("JITDUMPDIR", ".", 1), 0);
	start(&bed);
	CHECK_EQ(chdir("/"), 0);
	CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_JITDUMP), path);
	add(&bed, 64, 64, 1);
	flush(&bed);
	CHECK_EQ(ch__sinks_status(bed.sinks, CH_SINK_JITDUMP), 0);
	check_now(bed.pool + 64, "fn_1");
	end(&bed);
}

/* perf finds the file by an executable mapping of a page of the file. */
TEST(dump_is_off_where_nothing_may_be_mapped_executable)
{
	use_own_folder();
	if (!own_mounts() || mount("none", folder, "tmpfs", MS_NOEXEC, NULL) != 0) {
		rmdir(folder);
		skip("no file system can be mounted here: %s", strerror(errno));
	}
	check_refused(EPERM);
	/* The file was not left there. */
	struct dirent **names;
	int count = scandir(folder, &names, NULL, NULL);
	CHECK_EQ(count, 2);
	while (count > 0)
		free(names[--count]);
	free(names);
	CHECK_EQ(umount2(folder, MNT_DETACH), 0);
	remove_own_folder();
}

TEST(dump_lies_where_the_configuration_says)
{
	struct bed bed;
	use_own_folder();
	CHECK_EQ(setenv("JITDUMPDIR", "/nowhere/at/all", 1), 0);
	bed_map(&bed);
	bed.config.jitdump_dir = folder;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_JITDUMP, &bed.sinks), 0);
	pages_live(&bed);
	add(&bed, 64, 64, 1);
	check_now(bed.pool + 64, "fn_1");
	end(&bed);
}

TEST(dump_of_an_earlier_process_of_the_same_number_is_replaced)
{
	char path[128];
	struct bed bed;
	use_own_folder();
	path_of(getpid(), path);
	FILE *old = fopen(path, "w");
	CHECK(old != NULL);
	fputs("stale", old);
	fclose(old);
	const struct timespec long_ago[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	CHECK_EQ(utimensat(AT_FDCWD, path, long_ago, 0), 0);
	start(&bed);
	add(&bed, 64, 64, 1);
	check_now(bed.pool + 64, "fn_1");
	end(&bed);
}

/* --- several heaps, late start, fork, exit --- */
TEST(dump_is_shared_by_heaps)
{
	struct bed a, b;
	use_own_folder();
	start(&a);
	start(&b);
	add(&a, 64, 64, 1);
	add(&b, 64, 64, 2);
	check_now(a.pool + 64, "fn_1");
	check_now(b.pool + 64, "fn_2");
	ch__sinks_destroy(b.sinks);
	check_now(b.runtime, "[freed]");
	check_now(a.pool + 64, "fn_1");
	ch__sinks_destroy(a.sinks);
	/* The file goes on for a later heap: no record is lost. */
	CHECK_EQ(ch__sinks_create(&a.config, CH_SINK_JITDUMP, &a.sinks), 0);
	pages_live(&a);
	add(&a, 80, 64, 4);
	check_now(a.pool + 64, "fn_1");
	check_now(a.pool + 80, "fn_4");
	b.sinks = NULL;
	bed_close(&b);
	end(&a);
}

static void visit_two(void *context, void (*visit)(void *, const struct ch__sink_range *),
		      void *arg)
{
	struct bed *bed = context;
	struct ch__sink_range one = range_at(bed, 64, 64, 1), two = range_at(bed, 128, 64, 2);
	visit(arg, &one);
	visit(arg, &two);
}

TEST(dump_turned_on_late_names_live_ranges_and_turned_off_none)
{
	struct bed bed;
	use_own_folder();
	bed_map(&bed);
	bed.config.each = visit_two;
	bed.config.context = &bed;
	CHECK_EQ(ch__sinks_create(&bed.config, 0, &bed.sinks), 0);
	CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_JITDUMP), "");
	for (int round = 0; round < 2; round++) { /* off and on again */
		CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_JITDUMP), 0);
		check_now(bed.pool + 64, "fn_1");
		check_now(bed.pool + 128, "fn_2");
		CHECK_EQ(ch__sinks_set(bed.sinks, 0), 0);
		CHECK_STR(ch__sinks_path(bed.sinks, CH_SINK_JITDUMP), "");
		check_now(bed.pool + 64, "[freed]");
		check_now(bed.pool + 191, "[freed]");
		check_now(bed.runtime, "[freed]");
	}
	CHECK_EQ(ch__sinks_set(bed.sinks, CH_SINK_JITDUMP), 0);
	bed_close(&bed); /* the heap's end frees all code, too */
	check_now(bed.pool + 64, "[freed]");
	remove_own_folder();
}

/* The child's file has all live code, told again when the heap has its code back, and nothing of
 * the parent's file. */
static void child_works(struct bed *bed, const char *parents)
{
	char path[128];
	path_of(getpid(), path);
	ch__sinks_fork_files_done(true);
	discard(bed, 512, 64, 5); /* before the handler of the heap has run */
	ch__sinks_fork_child(bed->sinks, true);
	CHECK_STR(ch__sinks_path(bed->sinks, CH_SINK_JITDUMP), path);
	check_now(bed->pool + 64, "fn_1");
	check_now(bed->pool + 128, "fn_2");
	check_now(bed->pool + 512, "[freed]");
	check_now(bed->runtime, "codeheap_runtime");
	add(bed, 256, 64, 3);
	struct dump *dump = read_own();
	CHECK_EQ(dump->pid, getpid());
	dump_check_owner(dump, bed->pool + 256, now_ns(), "fn_3");
	dump_free(dump);
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[600];
	bool has_own = false;
	CHECK(maps != NULL);
	while (fgets(line, sizeof line, maps)) {
		CHECK(!strstr(line, parents)); /* perf would take the parent's for the child's */
		has_own |= strstr(line, path) && strstr(line, "r-xp");
	}
	CHECK(has_own);
	fclose(maps);
	unlink(path);
	_exit(0);
}

static void child_without_code(struct bed *bed)
{
	char path[128];
	path_of(getpid(), path);
	ch__sinks_fork_files_done(true);
	ch__sinks_fork_child(bed->sinks, false);
	CHECK_EQ(ch__sinks_status(bed->sinks, CH_SINK_JITDUMP), EFAULT);
	check_switched_off(bed, EFAULT);
	unlink(path);
	_exit(0);
}

static void child_without_folder(struct bed *bed)
{
	ch__sinks_fork_files_done(true);
	ch__sinks_fork_child(bed->sinks, true);
	check_switched_off(bed, EEXIST);
	_exit(0);
}

static void fork_in(struct bed *bed, int which)
{
	char path[128], planted[128];
	int go[2];
	path_of(getpid(), path);
	CHECK_EQ(pipe(go), 0);
	ch__sinks_lock(bed->sinks);
	ch__sinks_fork_files_prepare();
	pid_t pid = fork();
	if (pid == 0) {
		char byte;
		CHECK_EQ(read(go[0], &byte, 1), 1);
		if (which == 0)
			child_works(bed, path);
		if (which == 1)
			child_without_code(bed);
		child_without_folder(bed);
	}
	path_of(pid, planted);
	if (which == 2)
		CHECK_EQ(mkfifo(planted, 0600), 0);
	CHECK_EQ(write(go[1], "", 1), 1);
	ch__sinks_fork_files_done(false);
	ch__sinks_unlock(bed->sinks);
	expect_exit(pid, 0);
	unlink(planted);
	close(go[0]);
	close(go[1]);
}

TEST(dump_of_a_child_is_its_own)
{
	struct bed bed;
	use_own_folder();
	bed_map(&bed);
	bed.config.each = visit_two;
	bed.config.context = &bed;
	CHECK_EQ(ch__sinks_create(&bed.config, CH_SINK_JITDUMP, &bed.sinks), 0);
	pages_live(&bed);
	add(&bed, 64, 64, 1);
	add(&bed, 128, 64, 2);
	add(&bed, 512, 64, 5);
	for (int which = 0; which < 3; which++)
		fork_in(&bed, which);
	check_now(bed.pool + 512, "fn_5");
	check_now(bed.pool + 256, "nobody");
	add(&bed, 256, 64, 6);
	check_now(bed.pool + 256, "fn_6");
	end(&bed);
}

/* As fork does with a heap. The parent unlocks the sinks. */
static pid_t fork_told(struct bed *bed)
{
	ch__sinks_lock(bed->sinks);
	ch__sinks_fork_files_prepare();
	pid_t pid = fork();
	ch__sinks_fork_files_done(pid == 0);
	if (pid == 0)
		ch__sinks_fork_child(bed->sinks, true);
	return pid;
}

/* What the parent has yet to write of its dead is nothing that the child's file ever had. */
TEST_DUMP(dump_of_a_child_has_nobody_who_died_before)
{
	char path[128];
	add(bed, 64, 64, 1);
	discard(bed, 64, 64, 1);
	pid_t pid = fork_told(bed);
	if (pid == 0) {
		add(bed, 256, 64, 3);
		check_now(bed->pool + 256, "fn_3");
		check_now(bed->pool + 64, "nobody");
		path_of(getpid(), path);
		unlink(path);
		_exit(0);
	}
	ch__sinks_unlock(bed->sinks);
	expect_exit(pid, 0);
	flush(bed);
	check_now(bed->pool + 64, "[freed]");
}

TEST_DUMP(child_of_a_process_that_turned_its_dump_off_has_none)
{
	char path[128];
	CHECK_EQ(ch__sinks_set(bed->sinks, 0), 0);
	pid_t pid = fork_told(bed);
	if (pid == 0) {
		path_of(getpid(), path);
		CHECK_EQ(access(path, F_OK), -1);
		CHECK_EQ(ch__sinks_set(bed->sinks, CH_SINK_JITDUMP), 0);
		check_now(bed->runtime, "codeheap_runtime");
		unlink(path);
		_exit(0);
	}
	ch__sinks_unlock(bed->sinks);
	expect_exit(pid, 0);
}
