/* SPDX-License-Identifier: MIT
 * native.c: names of native functions for reports: functions of each kind, objects with and without
 * symbols, files that differ from the loaded object, and a process without libdw. The objects come
 * from tests/native/. */
#define _GNU_SOURCE
#include "os/os.h"
#include "tests/support/harness.h"
#include "observe/native_names.h"
#include "os/files.h"
#include "os/text.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* tests/native/overloaded.cc */
extern uintptr_t overloaded_at(int which);

static char folder[64];
static struct ch__meta *meta;
static struct ch__native_names *names;

CH_OPAQUE static int static_step(int n)
{
	return n * 7 + 3;
}

/* --- bed --- */

static void open_names(void)
{
	meta = ch__meta_create();
	CHECK(meta != NULL);
	names = ch__native_names_open(meta);
	CHECK(names != NULL);
}

static void close_names(void)
{
	ch__native_names_close(names);
	ch__meta_destroy(meta);
}

static void skip_without_libdw(void)
{
	if (!dlopen("libdw.so.1", RTLD_LAZY))
		skip("this machine has no libdw");
}

static void check_name(uintptr_t pc, uintptr_t start, const char *wanted)
{
	char text[200];
	uintptr_t found = 0;
	if (!ch__native_name(names, pc, text, sizeof text, &found))
		FAIL("no name of 0x%zx, which is %s", (size_t)pc, wanted);
	CHECK_STR(text, wanted);
	CHECK_EQ(found, start);
}

static void check_nameless(uintptr_t pc)
{
	char text[200];
	uintptr_t start = 0;
	if (ch__native_name(names, pc, text, sizeof text, &start))
		FAIL("0x%zx is called %s", (size_t)pc, text);
}

/* The path of an object that the Makefile built beside this program. */
static void path_of(char path[500], const char *name)
{
	char own[400];
	ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
	CHECK(length > 0);
	own[length] = 0;
	*strrchr(own, '/') = 0;
	snprintf(path, 500, "%s/native/%s", own, name);
}

static const char *in_folder(const char *name)
{
	static char path[128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static void use_folder(void)
{
	strcpy(folder, "/tmp/codeheap-native-XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
}

static void drop_folder(const char *const *files)
{
	for (; *files; files++)
		CHECK_EQ(remove(in_folder(*files)), 0);
	CHECK_EQ(rmdir(folder), 0);
}

static void copy_file(const char *from, const char *to)
{
	char bytes[4096];
	ssize_t n;
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0700);
	if (in < 0 || out < 0)
		FAIL("%s to %s: %s", from, to, strerror(errno));
	while ((n = read(in, bytes, sizeof bytes)) > 0)
		CHECK_EQ(write(out, bytes, (size_t)n), n);
	CHECK_EQ(n, 0);
	close(in);
	CHECK_EQ(close(out), 0);
}

static void *load(const char *path)
{
	void *handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
	if (!handle)
		FAIL("%s", dlerror());
	return handle;
}

/* What another thread unloads when the dynamic linker has answered about an address; or NULL. Text
 * of another file may come to the place of the answer. */
static void *unloads;
static bool text_comes;
static bool is_unsure;	   /* the first answer is another than those that follow */
static const char *no_text; /* where the name is, which nobody can read */

int __real_dladdr(const void *address, Dl_info *info);
int __wrap_dladdr(const void *address, Dl_info *info);
int __wrap_dladdr(const void *address, Dl_info *info)
{
	int found = __real_dladdr(address, info);
	void *handle = unloads, *page = (void *)((uintptr_t)info->dli_sname & ~(uintptr_t)4095);
	unloads = NULL;
	if (handle)
		CHECK_EQ(dlclose(handle), 0);
	if (handle && text_comes) {
		CHECK(mmap(page, 4096, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == page);
		memset(page, 'x', 4095);
	}
	if (is_unsure)
		info->dli_saddr = NULL;
	is_unsure = false;
	if (no_text)
		info->dli_sname = no_text;
	return found;
}

static void *load_built(const char *name)
{
	char path[500];
	path_of(path, name);
	return load(path);
}

static uintptr_t exported_of(void *handle, const char *name)
{
	void *at = dlsym(handle, name);
	if (!at)
		FAIL("%s", dlerror());
	return (uintptr_t)at;
}

static uintptr_t hidden_of(void *handle)
{
	uintptr_t (*at)(void);
	void *symbol = (void *)exported_of(handle, "native_hidden_at");
	memcpy(&at, &symbol, sizeof at);
	return at();
}

/* --- functions of each kind --- */

TEST(static_function_has_its_name)
{
	skip_without_libdw();
	open_names();
	CHECK_EQ(static_step(1), 10);
	check_name((uintptr_t)static_step, (uintptr_t)static_step, "static_step");
	check_name((uintptr_t)static_step + 4, (uintptr_t)static_step, "static_step");
	close_names();
}

TEST(functions_of_cxx_have_the_names_that_were_written)
{
	skip_without_libdw();
	open_names();
	check_name(overloaded_at(0), overloaded_at(0), "shapes::area(int)");
	check_name(overloaded_at(1), overloaded_at(1), "shapes::area(double, char const*)");
	char text[300];
	uintptr_t start;
	CHECK(ch__native_name(names, overloaded_at(2), text, sizeof text, &start));
	CHECK(strncmp(text, "shapes::(anonymous namespace)::only_here(", 41) == 0);
	close_names();
}

TEST(label_is_no_name_and_a_version_no_part_of_one)
{
	skip_without_libdw();
	void *other = load_built("other.so");
	uintptr_t hidden = hidden_of(other), unsized = exported_of(other, "native_unsized");
	open_names();
	check_name(hidden, hidden, "other_step");
	check_name(unsized, unsized, "native_unsized");
	check_nameless(unsized + 4);
	close_names();
}

TEST(name_is_cut_to_its_room)
{
	open_names();
	char text[8];
	uintptr_t start, at = (uintptr_t)dlsym(RTLD_DEFAULT, "qsort");
	CHECK(ch__native_name(names, at, text, 1, &start));
	CHECK_STR(text, "");
	CHECK(ch__native_name(names, at, text, 3, &start) && strlen(text) == 2);
	CHECK_EQ(start, at);
	close_names();
}

TEST(what_is_no_function_has_no_name)
{
	open_names();
	void *memory = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	check_nameless((uintptr_t)memory);
	check_nameless(0);
	check_nameless(1);
	check_nameless(UINTPTR_MAX);
	close_names();
}

/* The kernel's object has no file; each architecture names the functions in another way. */
static void check_vdso(void)
{
	void *vdso = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void *at = vdso ? dlsym(vdso, "__vdso_clock_gettime") : NULL;
	if (vdso && !at)
		at = dlsym(vdso, "__kernel_clock_gettime");
	if (!at)
		skip("the process has no vdso");
	open_names();
	char text[100];
	uintptr_t start;
	CHECK(ch__native_name(names, (uintptr_t)at + 1, text, sizeof text, &start));
	CHECK(strstr(text, "clock_gettime") != NULL);
	CHECK_EQ(start, (uintptr_t)at);
	close_names();
}

TEST(function_of_the_vdso_has_its_name)
{
	check_vdso();
}

/* Writes a file that begins as the vdso does, and has other names. */
static void write_other_vdso(int fd)
{
	const uint8_t *vdso = (const uint8_t *)getauxval(AT_SYSINFO_EHDR);
	const ElfW(Ehdr) *head = (const void *)vdso;
	size_t bytes = head->e_shoff + head->e_shnum * sizeof(ElfW(Shdr));
	const ElfW(Shdr) *sections = (const void *)(vdso + head->e_shoff);
	for (unsigned i = 0; i < head->e_shnum; i++) {
		if (sections[i].sh_type != SHT_DYNSYM)
			continue;
		ElfW(Shdr) strings = sections[sections[i].sh_link];
		char *others = malloc(strings.sh_size);
		CHECK(others);
		memcpy(others, vdso + strings.sh_offset, strings.sh_size);
		for (size_t c = 0; c < strings.sh_size; c++)
			others[c] = others[c] == 'k' ? 'K' : others[c];
		strings.sh_offset = bytes;
		CHECK_EQ(pwrite(fd, vdso, bytes, 0), (ssize_t)bytes);
		CHECK_EQ(pwrite(fd, others, strings.sh_size, (off_t)bytes),
			 (ssize_t)strings.sh_size);
		CHECK_EQ(pwrite(fd, &strings, sizeof strings,
				(off_t)(head->e_shoff + sections[i].sh_link * sizeof strings)),
			 (ssize_t)sizeof strings);
		free(others);
	}
}

/* Whoever may write there would choose what libdw reads. The dynamic linker has one name for the
 * vdso, and the kernel's list of mappings another. */
TEST(file_of_the_working_folder_is_not_the_vdso)
{
	char place[] = "/tmp/codeheap.XXXXXX";
	if (!getauxval(AT_SYSINFO_EHDR))
		skip("the process has no vdso");
	CHECK(mkdtemp(place) && chdir(place) == 0);
	int fd = open("linux-vdso.so.1", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	write_other_vdso(fd);
	close(fd);
	CHECK_EQ(link("linux-vdso.so.1", "[vdso]"), 0);
	check_vdso();
	CHECK_EQ(unlink("linux-vdso.so.1"), 0);
	CHECK_EQ(unlink("[vdso]"), 0);
	CHECK_EQ(rmdir(place), 0);
}

/* --- objects --- */

static uintptr_t bias_of(void *handle)
{
	struct link_map *map;
	CHECK_EQ(dlinfo(handle, RTLD_DI_LINKMAP, &map), 0);
	return map->l_addr;
}

/* Finds where a section of a file is loaded. Returns the section's size. */
static size_t section_of(const char *path, const char *wanted, uintptr_t *at)
{
	static char file[200000];
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, file, sizeof file);
	CHECK(n > 0 && (size_t)n < sizeof file);
	close(fd);
	const ElfW(Ehdr) *head = (const void *)file;
	const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);
	const char *texts = file + sections[head->e_shstrndx].sh_offset;
	for (unsigned i = 0; i < head->e_shnum; i++)
		if (strcmp(texts + sections[i].sh_name, wanted) == 0) {
			*at = sections[i].sh_addr;
			return sections[i].sh_size;
		}
	return 0;
}

TEST(linkage_table_has_no_name_of_its_neighbours)
{
	skip_without_libdw();
	char path[500];
	uintptr_t at;
	path_of(path, "whole.so");
	size_t bytes = section_of(path, ".plt", &at);
	CHECK(bytes != 0);
	void *handle = load(path);
	open_names();
	for (size_t i = 0; i < bytes; i += 4)
		check_nameless(bias_of(handle) + at + i);
	close_names();
}

TEST(stripped_object_is_named_by_its_debug_file)
{
	skip_without_libdw();
	void *handle = load_built("linked.so");
	open_names();
	check_name(hidden_of(handle), hidden_of(handle), "hidden_step");
	uintptr_t exported = exported_of(handle, "native_exported");
	check_name(exported + 1, exported, "native_exported");
	close_names();
}

/* The header asks for 64 KiB; a report's own frames take some of that. */
enum { STACK_BYTES = 1 << 20, STACK_MOST = 48 << 10, STACK_UNUSED = 0x5a };
static uint8_t stack[STACK_BYTES] __attribute__((aligned(4096)));

static void *name_by_a_debug_file(void *hidden)
{
	uint8_t *here = __builtin_frame_address(0);
	memset(stack, STACK_UNUSED, (size_t)(here - stack) - 4096);
	open_names();
	check_name((uintptr_t)hidden, (uintptr_t)hidden, "hidden_step");
	close_names();
	size_t at = 0;
	while (stack[at] == STACK_UNUSED)
		at++;
	CHECK(TEST_SANITIZED || (size_t)(here - stack) - at <= STACK_MOST);
	return NULL;
}

TEST(names_are_found_on_a_small_stack)
{
	skip_without_libdw();
	pthread_attr_t attributes;
	pthread_t thread;
	void *handle = load_built("linked.so");
	CHECK_EQ(pthread_attr_init(&attributes), 0);
	CHECK_EQ(pthread_attr_setstack(&attributes, stack, sizeof stack), 0);
	CHECK_EQ(pthread_create(&thread, &attributes, name_by_a_debug_file,
				(void *)hidden_of(handle)), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
}

TEST(object_without_symbols_is_named_by_what_it_exports)
{
	void *handle = load_built("bare.so");
	uintptr_t exported = exported_of(handle, "native_exported");
	open_names();
	check_nameless(hidden_of(handle));
	check_name(exported, exported, "native_exported");
	close_names();
}

/* The folder is left, and the loader's path leads to another file, or to none. */
TEST(object_of_a_path_without_a_root_has_its_names_in_another_folder)
{
	skip_without_libdw();
	char path[500];
	path_of(path, "whole.so");
	*strrchr(path, '/') = 0;
	CHECK_EQ(chdir(path), 0);
	void *handle = load("./whole.so");
	CHECK_EQ(chdir("/"), 0);
	open_names();
	check_name(hidden_of(handle), hidden_of(handle), "hidden_step");
	close_names();
}

TEST(objects_come_and_go)
{
	skip_without_libdw();
	open_names();
	for (int i = 0; i < 3; i++) {
		void *handle = load_built("whole.so");
		uintptr_t at = hidden_of(handle);
		check_name(at, at, "hidden_step");
		CHECK_EQ(dlclose(handle), 0);
		/* The session keeps the old names until closed; the next session has new names. */
		check_name(at, at, "hidden_step");
		close_names();
		open_names();
		check_nameless(at);
	}
	void *handle = load_built("other.so");
	check_name(hidden_of(handle), hidden_of(handle), "other_step");
	close_names();
}

/* The linker's answer lies in the object. Of an object that is gone nothing is read; when another
 * object went, the answer is asked for again. */
TEST(object_that_goes_while_the_linker_is_asked_has_no_name)
{
	void *handle = load_built("bare.so"), *other = load_built("other.so");
	uintptr_t exported = exported_of(handle, "native_exported");
	names = NULL;
	unloads = other;
	check_name(exported, exported, "native_exported");
	for (int i = 0; i < 2; i++) {
		unloads = handle;
		text_comes = i == 1;
		check_nameless(exported);
		CHECK(!unloads);
		handle = load_built("bare.so");
		exported = exported_of(handle, "native_exported");
	}
}

/* --- files that differ from the loaded object --- */

TEST(names_of_the_dynamic_linker_take_no_memory)
{
	enum { TIMES = 1000, FEW = 16000 };
	uintptr_t exported = exported_of(load_built("bare.so"), "native_exported");
	void *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t before = mallinfo2().uordblks;
	for (int i = 0; i < TIMES; i++) {
		struct ch__os_place place;
		char bytes[80];
		struct ch__text text = {bytes, sizeof bytes, 0};
		is_unsure = true;
		CHECK(ch__os_place_of(exported, &place));
		ch__os_place_end(&place);
		no_text = hole;
		CHECK(!ch__os_place_of(exported, &place));
		no_text = NULL;
		ch__os_put_symbol("_Z3fooi", &text);
	}
	CHECK(mallinfo2().uordblks < before + FEW);
}

TEST(file_that_was_replaced_names_nothing)
{
	skip_without_libdw();
	char whole[500], other[500], path[128];
	path_of(whole, "whole.so");
	path_of(other, "other.so");
	use_folder();
	strcpy(path, in_folder("it.so"));
	copy_file(whole, path);
	copy_file(other, in_folder("new.so"));
	void *handle = load(path);
	CHECK_EQ(rename(in_folder("new.so"), path), 0);
	open_names();
	check_nameless(hidden_of(handle));
	uintptr_t exported = exported_of(handle, "native_exported");
	check_name(exported, exported, "native_exported");
	close_names();
	CHECK_EQ(unlink(path), 0);
	open_names();
	check_nameless(hidden_of(handle));
	check_name(exported, exported, "native_exported");
	close_names();
	drop_folder((const char *const[]){NULL});
}

TEST(debug_file_of_another_object_is_passed_over)
{
	skip_without_libdw();
	char from[500];
	use_folder();
	CHECK_EQ(mkdir(in_folder(".debug"), 0700), 0);
	path_of(from, "linked.so");
	copy_file(from, in_folder("linked.so"));
	path_of(from, "other.so");
	copy_file(from, in_folder(".debug/linked.so.debug"));
	CHECK_EQ(mkfifo(in_folder("linked.so.debug"), 0600),
		 0); /* opening it might wait for ever */
	void *handle = load(in_folder("linked.so"));
	open_names();
	check_nameless(hidden_of(handle));
	close_names();
	drop_folder((const char *const[]){"linked.so", "linked.so.debug", ".debug/linked.so.debug",
					  ".debug", NULL});
}

/* The debug-file server named by the environment is not asked: the test would hear the request. */
TEST(no_server_is_asked)
{
	skip_without_libdw();
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t bytes = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0 || bind(listener, (void *)&at, sizeof at) != 0)
		FAIL("no socket: %s", strerror(errno));
	CHECK_EQ(listen(listener, 5), 0);
	CHECK_EQ(getsockname(listener, (void *)&at, &bytes), 0);
	char url[64];
	snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(at.sin_port));
	use_folder();
	if (!getenv("CODEHEAP_TEST_ASKED")) {
		/* libdw reads the variable when libdw is loaded. */
		close(listener);
		CHECK_EQ(rmdir(folder), 0);
		setenv("CODEHEAP_TEST_ASKED", "1", 1);
		setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1", 1);
		run_case_again("no_server_is_asked");
	}
	setenv("DEBUGINFOD_URLS", url, 1);
	setenv("DEBUGINFOD_TIMEOUT", "1", 1);
	setenv("DEBUGINFOD_CACHE_PATH", folder, 1);
	void *handle = load_built("bare.so");
	open_names();
	check_nameless(hidden_of(handle));
	close_names();
	struct pollfd heard = {.fd = listener, .events = POLLIN};
	CHECK_EQ(poll(&heard, 1, 0), 0);
	drop_folder((const char *const[]){NULL});
}

/* --- without libdw, and with failures --- */

static void check_fallback(void *handle)
{
	open_names();
	uintptr_t exported = exported_of(handle, "native_exported");
	check_nameless((uintptr_t)static_step);
	check_nameless(hidden_of(handle));
	check_name(exported + 1, exported, "native_exported");
	close_names();
}

/* First a libdw without any of the functions, then a file that is no library. */
TEST(wrong_libdw_is_no_libdw)
{
	char *path = getenv("LD_LIBRARY_PATH");
	const char *kind = getenv("CODEHEAP_TEST_WRONG_LIBDW");
	if (!kind) {
		char from[500];
		use_folder();
		path_of(from, "bare.so");
		copy_file(from, in_folder("libdw.so.1"));
		setenv("LD_LIBRARY_PATH", folder, 1);
		setenv("CODEHEAP_TEST_WRONG_LIBDW", "1", 1);
		run_case_again("wrong_libdw_is_no_libdw");
	}
	void *handle = load_built("whole.so");
	check_fallback(handle);
	snprintf(folder, sizeof folder, "%s", path);
	if (strcmp(kind, "1") == 0) {
		CHECK_EQ(truncate(in_folder("libdw.so.1"), 100), 0);
		setenv("CODEHEAP_TEST_WRONG_LIBDW", "2", 1);
		run_case_again("wrong_libdw_is_no_libdw");
	}
	drop_folder((const char *const[]){"libdw.so.1", NULL});
}

/* Fails the nth call of the gate, or also each later call. An exported function always has its
 * name, any other function its own name or none, and nothing is left. */
static uint64_t fail_nth(void *handle, uint64_t nth, bool every_later_one)
{
	char text[100];
	uintptr_t start, hidden = hidden_of(handle);
	uintptr_t exported = exported_of(handle, "native_exported");
	meta = ch__meta_create();
	unsigned files = open_files();
	ch__os_fail_at(nth, every_later_one);
	names = ch__native_names_open(meta);
	bool is_hidden_known = ch__native_name(names, hidden, text, sizeof text, &start);
	if (is_hidden_known)
		CHECK_STR(text, "hidden_step");
	CHECK(ch__native_name(names, exported, text, sizeof text, &start));
	CHECK_STR(text, "native_exported");
	uint64_t calls = ch__os_failable_calls();
	ch__native_names_close(names);
	ch__os_fail_at(0, false);
	ch__meta_destroy(meta);
	CHECK_EQ(open_files(), files);
	if (nth > calls)
		CHECK(is_hidden_known);
	return calls;
}

TEST(each_call_that_fails_leaves_the_dynamic_linkers_names)
{
	skip_without_libdw();
	void *handle = load_built("linked.so");
	for (int later = 0; later < 2; later++) {
		uint64_t nth = 1;
		while (nth <= fail_nth(handle, nth, later == 1))
			nth++;
		CHECK(nth > 10);
	}
}

TEST(names_of_no_session_are_the_dynamic_linkers)
{
	void *handle = load_built("whole.so");
	names = NULL;
	check_nameless(hidden_of(handle));
	uintptr_t exported = exported_of(handle, "native_exported");
	check_name(exported, exported, "native_exported");
	ch__native_names_close(NULL);
}
