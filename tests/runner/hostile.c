/* SPDX-License-Identifier: MIT
 * hostile.c: takes something away from a process, proves the loss, and runs a program.
 *
 *     hostile                        lists the restrictions
 *     hostile RESTRICTION            exit 0: this kernel can; 77: it cannot, and why
 *     hostile RESTRICTION program [argument...]
 *
 * tests/runner/runner.c starts each case through hostile (-w); `make hostile` does so for the whole
 * core tier. The count of maps lives in a process image: hostile leaves the count to
 * tests/support/harness.c by a word in the environment. hostile knows nothing of the library. */
#define _GNU_SOURCE
#include "tests/support/own_mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65 /* Linux 6.3, include/uapi/linux/prctl.h */
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif

enum { EXIT_REFUSED = 77, EXIT_WRONG = 125, PAGE = 4096 };
static const char maps_left[] = "250";
static const long maps_most = 200000; /* filling more takes seconds in each process */
/* The least address space for a heap of the default size and its copy at fork, and for a test. */
static const rlim_t address_space_bytes = UINT64_C(1) << 30;
static const rlim_t file_bytes = 6 << 20;

__attribute__((noreturn, format(printf, 2, 3))) static void leave(int status, const char *format,
								  ...)
{
	va_list args;
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(status);
}

static void must(bool holds, const char *what)
{
	if (!holds)
		leave(EXIT_WRONG, "hostile: not so: %s (%s)", what, strerror(errno));
}

/* --- seccomp --- */

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
/* Matches a call by its number; the next `n` statements are about the call. */
#define IF_CALL(number, n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, n)
#define DENY(error) BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
/* Denies the call when the argument has all of these bits. */
#define IF_CALL_HAS(number, argument, bits, error)                                           \
	IF_CALL(number, 5), LOAD(args[argument]), BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits), \
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, bits, 0, 1), DENY(error), ALLOW

static void install(struct sock_filter *filter, size_t n)
{
	struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
		leave(EXIT_REFUSED, "the kernel refuses a seccomp filter: %s", strerror(errno));
}

static void deny_call(unsigned number, unsigned error)
{
	struct sock_filter filter[] = {LOAD(nr), IF_CALL(number, 1), DENY(error), ALLOW};
	install(filter, sizeof filter / sizeof *filter);
}

/* --- the restrictions --- */

static void prove_no_execution_gained(int error)
{
	void *rw = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	must(rw != MAP_FAILED, "memory can be mapped");
	must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		  0) == MAP_FAILED &&
		     errno == error,
	     "a mapping that is writable and executable is refused");
	must(mprotect(rw, PAGE, PROT_READ | PROT_EXEC) != 0 && errno == error,
	     "mprotect to executable is refused");
	must(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
		     MAP_FAILED,
	     "a mapping that is born executable is granted");
}

static void set_mdwe(void)
{
	if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0)
		leave(EXIT_REFUSED, "the kernel knows no PR_SET_MDWE");
	prove_no_execution_gained(EACCES);
}

/* As systemd's MemoryDenyWriteExecute=yes: seccomp_memory_deny_write_execute. */
static void set_wx_filter(void)
{
	struct sock_filter filter[] = {
		LOAD(nr),
		IF_CALL_HAS(SYS_mmap, 2, PROT_WRITE | PROT_EXEC, EPERM),
		IF_CALL_HAS(SYS_mprotect, 2, PROT_EXEC, EPERM),
		IF_CALL_HAS(SYS_pkey_mprotect, 2, PROT_EXEC, EPERM),
		IF_CALL_HAS(SYS_shmat, 2, SHM_EXEC, EPERM),
		ALLOW,
	};
	install(filter, sizeof filter / sizeof *filter);
	prove_no_execution_gained(EPERM);
	int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
	if (id >= 0) {
		void *at = shmat(id, NULL, SHM_EXEC);
		int error = errno;
		shmctl(id, IPC_RMID, NULL);
		errno = error;
		must((intptr_t)at == -1 && error == EPERM, "shmat to executable is refused");
	}
}

static void set_memfd_eperm(void)
{
	deny_call(SYS_memfd_create, EPERM);
	must(memfd_create("x", 0) < 0 && errno == EPERM, "memfd_create is refused");
}

static void set_memfd_enosys(void)
{
	deny_call(SYS_memfd_create, ENOSYS);
	must(memfd_create("x", 0) < 0 && errno == ENOSYS, "memfd_create is unknown");
}

static void set_membarrier_eperm(void)
{
	deny_call(SYS_membarrier, EPERM);
	must(syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) != 0 && errno == EPERM,
	     "membarrier is refused");
}

static void set_membarrier_enosys(void)
{
	deny_call(SYS_membarrier, ENOSYS);
	must(syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) != 0 && errno == ENOSYS,
	     "membarrier is unknown");
}

/* The soft limit is in force; cases about limits set limits of their own. */
static void set_soft_limit(int resource, rlim_t value)
{
	struct rlimit limit;
	if (getrlimit((__rlimit_resource_t)resource, &limit) != 0)
		leave(EXIT_REFUSED, "a limit cannot be read: %s", strerror(errno));
	limit.rlim_cur = value;
	if (setrlimit((__rlimit_resource_t)resource, &limit) != 0)
		leave(EXIT_REFUSED, "a limit cannot be set: %s", strerror(errno));
}

static void set_address_space(void)
{
	set_soft_limit(RLIMIT_AS, address_space_bytes);
	must(mmap(NULL, address_space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
			     MAP_FAILED &&
		     errno == ENOMEM,
	     "more address space is refused");
}

static void set_file_size(void)
{
	set_soft_limit(RLIMIT_FSIZE, file_bytes);
	int fd = memfd_create("x", MFD_CLOEXEC);
	sigset_t growth;
	sigemptyset(&growth);
	sigaddset(&growth, SIGXFSZ);
	sigprocmask(SIG_BLOCK, &growth, NULL);
	must(fd >= 0 && ftruncate(fd, (off_t)file_bytes) == 0, "a file may reach the limit");
	must(pwrite(fd, "x", 1, (off_t)file_bytes) < 0 && errno == EFBIG,
	     "a file may not pass the limit");
	sigtimedwait(&growth, NULL, &(struct timespec){0, 0});
	sigprocmask(SIG_UNBLOCK, &growth, NULL);
	close(fd);
}

/* Maps do not outlive exec, so the harness fills the maps up before the case runs. */
static void set_maps(void)
{
	char text[40] = "";
	int fd = open("/proc/sys/vm/max_map_count", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || read(fd, text, sizeof text - 1) <= 0)
		leave(EXIT_REFUSED, "vm.max_map_count cannot be read");
	close(fd);
	long most = strtol(text, NULL, 10);
	if (most <= 0 || most > maps_most)
		leave(EXIT_REFUSED, "vm.max_map_count is %ld, too many to fill", most);
	setenv("CODEHEAP_TEST_MAPS_LEFT", maps_left, 1);
}

static bool fill(const char *path)
{
	static const char page[PAGE];
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	while (fd >= 0 && write(fd, page, sizeof page) > 0)
		;
	bool is_full = fd >= 0 && errno == ENOSPC;
	if (fd >= 0)
		close(fd);
	return is_full;
}

/* The program is found by the current folder, which the mounts do not cover. */
static void set_full_tmpfs(void)
{
	if (!own_mounts() || mount("none", "/tmp", "tmpfs", 0, "size=4096,mode=1777") != 0 ||
	    mount("none", "/dev/shm", "tmpfs", 0, "size=4096,mode=1777") != 0)
		leave(EXIT_REFUSED, "the kernel refuses a mount of our own: %s", strerror(errno));
	must(fill("/tmp/full") && fill("/dev/shm/full"), "the small file systems are full");
}

static const struct restriction {
	const char *name, *text;
	void (*set)(void);
	const char *backend; /* CODEHEAP_WX of the program; NULL = unchanged */
} restrictions[] = {
	{"mdwe", "PR_SET_MDWE", set_mdwe, NULL},
	{"wx-filter", "a filter as systemd's MemoryDenyWriteExecute", set_wx_filter, NULL},
	{"memfd-eperm", "memfd_create gives EPERM", set_memfd_eperm, NULL},
	{"memfd-enosys", "memfd_create gives ENOSYS, and the backend of files is asked for",
	 set_memfd_enosys, "memfd"},
	{"membarrier-eperm", "membarrier gives EPERM", set_membarrier_eperm, NULL},
	{"membarrier-enosys", "membarrier gives ENOSYS", set_membarrier_enosys, NULL},
	{"address-space", "RLIMIT_AS of 1 GiB", set_address_space, NULL},
	{"file-size", "RLIMIT_FSIZE of 6 MiB", set_file_size, NULL},
	{"maps", "vm.max_map_count is reached but for 250 maps (some programs)", set_maps, NULL},
	{"full-tmpfs", "/tmp and /dev/shm are full", set_full_tmpfs, NULL},
};
enum { RESTRICTIONS = sizeof restrictions / sizeof *restrictions };

int main(int argc, char **argv)
{
	if (argc < 2) {
		for (int i = 0; i < RESTRICTIONS; i++)
			printf("%s %s\n", restrictions[i].name, restrictions[i].text);
		return 0;
	}
	for (int i = 0; i < RESTRICTIONS; i++) {
		const struct restriction *r = &restrictions[i];
		if (strcmp(r->name, argv[1]) != 0)
			continue;
		if (r->backend)
			setenv("CODEHEAP_WX", r->backend, 1);
		r->set();
		if (argc == 2)
			return 0;
		execv(argv[2], argv + 2);
		leave(EXIT_WRONG, "%s: %s", argv[2], strerror(errno));
	}
	leave(EXIT_WRONG, "hostile: no restriction %s", argv[1]);
}
