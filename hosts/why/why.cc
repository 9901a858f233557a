/* SPDX-License-Identifier: MIT
 * why.cc: README's table. Each cell is a run in a child process: the same attack on code memory of
 * another kind, and the outcome in a few words. Without arguments the program prints the table;
 * with the numbers of a row and a column it prints that cell. */
#include "why.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using text = std::string;

static int call(void *code, callback *first = nullptr)
{
	return reinterpret_cast<int (*)(callback *)>(code)(first);
}

/* --- a run: the output of a child, and how the child ended --- */

struct outcome {
	text said; /* stdout and stderr */
	int signal = 0, status = 0;
};

/* A run reports its cell as a line that begins with "cell: ". */
static void tell(const text &cell)
{
	std::printf("cell: %s\n", cell.c_str());
	std::fflush(stdout);
}
static text told(const outcome &end)
{
	std::size_t at = end.said.rfind("cell: ");
	return at == text::npos ? text()
				: end.said.substr(at + 6, end.said.find('\n', at) - at - 6);
}

template <class Run> static outcome run_in_child(Run run)
{
	int ends[2];
	outcome end;
	std::fflush(stdout);
	if (pipe(ends))
		std::abort();
	pid_t child = fork();
	if (child == 0) {
		rlimit none = {0, 0};
		setrlimit(RLIMIT_CORE, &none);
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
		run();
		std::fflush(stdout);
		_exit(0);
	}
	close(ends[1]);
	char some[4096];
	for (ssize_t n; (n = read(ends[0], some, sizeof some)) != 0;)
		if (n > 0)
			end.said.append(some, static_cast<std::size_t>(n));
	close(ends[0]);
	int status = 0;
	while (waitpid(child, &status, 0) < 0)
		continue;
	end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	end.status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
	return end;
}
static text died(const outcome &end)
{
	return text("SIG") + sigabbrev_np(end.signal);
}

/* --- a jump into freed code --- */

static text jump_into_freed(const peer &p)
{
	outcome end = run_in_child([&p] {
		void *code = p.start() ? p.make(kind::RETURNS, 42, "freed") : nullptr;
		if (!code || call(code) != 42)
			return tell("no code");
		p.release(code, false);
		tell(call(code) == 42 ? "the old code runs" : "other code runs");
	});
	if (!end.signal)
		return told(end);
	bool is_named = end.said.find("block `freed`") != text::npos &&
			end.said.find("because") != text::npos;
	return is_named ? died(end) + ", and a line that names the code and says why it was freed"
			: died(end);
}

/* --- the same, when another function has got the memory --- */

/* Returns where a function `alive` lies in place of the freed `dead`; or tells why none does. */
static void *use_again(const peer &p)
{
	void *dead = p.start() ? p.make(kind::RETURNS, 42, "dead") : nullptr;
	if (!dead) {
		tell("no code");
		return nullptr;
	}
	p.release(dead, false);
	for (int i = 0; i < 1000; i++)
		if (p.make(kind::RETURNS, 7, "alive") == dead)
			return dead;
	tell("not used again");
	return nullptr;
}

static text jump_into_used_again(const peer &p)
{
	outcome end = run_in_child([&p] {
		if (void *place = use_again(p))
			tell(call(place) == 7 ? "the other function runs" : "wrong");
	});
	return end.signal ? died(end) : told(end);
}

/* --- fork while another thread compiles --- */

enum { FORKS = 5000 }; /* one of some 160 meets AsmJit's lock held */

/* A child of fork has one thread. If the thread waits for a lock, nobody gives the lock back. */
static bool waits_for_ever(pid_t child)
{
	char path[64], line[64] = "";
	std::snprintf(path, sizeof path, "/proc/%d/syscall", static_cast<int>(child));
	std::FILE *file = std::fopen(path, "r");
	if (file) {
		if (!std::fgets(line, sizeof line, file))
			line[0] = 0;
		std::fclose(file);
	}
	return std::strtol(line, nullptr, 10) == SYS_futex && line[0] != 'r';
}

static text child_that_compiles(const peer &p)
{
	pid_t child = fork();
	if (child == 0) {
		void *code = p.make(kind::RETURNS, 7, "of the child");
		_exit(code && call(code) == 7 ? 0 : 1);
	}
	for (int status;;) {
		if (waitpid(child, &status, WNOHANG) == child)
			return WIFSIGNALED(status)   ? "a child crashes"
			       : WEXITSTATUS(status) ? "a child has no code"
						     : "";
		if (waits_for_ever(child)) {
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return "a child hangs";
		}
		usleep(200);
	}
}

static text fork_beside_a_compiler(const peer &p)
{
	return told(run_in_child([&p] {
		if (!p.start() || !p.make(kind::RETURNS, 1, "first"))
			return tell("no code");
		std::thread([&p] {
			for (;;)
				if (void *code = p.make(kind::RETURNS, 42, "of the thread"))
					p.release(code, false);
		}).detach();
		text wrong;
		for (int i = 0; i < FORKS && wrong.empty(); i++)
			wrong = child_that_compiles(p);
		tell(wrong.empty() ? "each child compiles" : wrong);
		_exit(0);
	}));
}

/* --- a denied mprotect --- */

/* The rule of systemd's MemoryDenyWriteExecute= for a service: no memory is writable and
 * executable, and none becomes executable. */
static bool deny_new_code()
{
	enum { ACCESS = offsetof(seccomp_data, args[2]) };
	sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pkey_mprotect, 3, 6),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ACCESS), /* mmap */
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, PROT_WRITE | PROT_EXEC),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROT_WRITE | PROT_EXEC, 2, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ACCESS), /* mprotect */
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	sock_fprog program = {sizeof filter / sizeof filter[0], filter};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static text without_new_code(const peer &p)
{
	outcome end = run_in_child([&p] {
		if (!deny_new_code())
			return tell("no filter");
		void *code = p.start() ? p.make(kind::RETURNS, 42, "denied") : nullptr;
		tell(!code ? "no code" : call(code) == 42 ? "works" : "wrong");
	});
	return end.signal ? died(end) : told(end);
}

/* --- names in perf after reuse --- */

/* Names for the address, in the order of a perf map's lines. perf takes the last name. */
static text names_in_map(pid_t process, void *code)
{
	char path[64], line[300], name[200];
	std::snprintf(path, sizeof path, "/tmp/perf-%d.map", static_cast<int>(process));
	std::FILE *file = std::fopen(path, "r");
	text names;
	auto pc = reinterpret_cast<unsigned long>(code);
	for (unsigned long start, bytes; file && std::fgets(line, sizeof line, file);)
		if (std::sscanf(line, "%lx %lx %199[^\n]", &start, &bytes, name) == 3 &&
		    start <= pc && pc < start + bytes)
			names += text(names.empty() ? "" : " and ") + name;
	if (file)
		std::fclose(file);
	unlink(path);
	return names;
}

/* Whether a jitdump below the folder has both names. */
static bool is_in_jitdump(const text &folder)
{
	text found;
	text command = "cat $(find '" + folder + "' -name 'jit-*.dump') </dev/null 2>/dev/null";
	if (std::FILE *file = popen(command.c_str(), "r")) {
		for (int c; (c = std::fgetc(file)) != EOF;)
			found += static_cast<char>(c);
		pclose(file);
	}
	return found.find("dead") != text::npos && found.find("alive") != text::npos;
}

static text names_after_reuse(const peer &p)
{
	char folder[] = "/tmp/why-XXXXXX";
	if (!mkdtemp(folder))
		return "no folder";
	outcome end = run_in_child([&p, &folder] {
		setenv("CODEHEAP_SINKS", "unwind,perfmap", 1);
		setenv("JITDUMPDIR", folder, 1);
		void *place = use_again(p);
		if (!place)
			return;
		text names = names_in_map(getpid(), place);
		tell(names == "alive"            ? "its own"
		     : names == "dead and alive" ? "two for one address"
						 : names);
	});
	text said = told(end);
	if (said.empty())
		said = is_in_jitdump(folder) ? "by a jitdump" : "none";
	text command = text("rm -rf ") + folder;
	return std::system(command.c_str()) == 0 ? said : "a folder that stays";
}

/* --- an exception through the frame --- */

static text exception_through(const peer &p)
{
	outcome end = run_in_child([&p] {
		void *code = p.start() ? p.make(kind::CALLS_FIRST, 42, "thrown through") : nullptr;
		if (!code)
			return tell("no code");
		try {
			call(code, [] { throw 1; });
			tell("lost");
		} catch (int) {
			tell("caught");
		}
	});
	return end.signal == SIGABRT ? "`std::terminate`" : end.signal ? died(end) : told(end);
}

/* --- code that is freed while it runs --- */

static const peer *of_run;
static void *running;

/* Makes functions in the place of the freed caller. */
static void free_the_caller()
{
	of_run->release(running, true);
	for (int i = 0; i < 100; i++)
		if (of_run->make(kind::CALLS_FIRST, 7, "in its place") == running)
			return;
}
static text freed_while_it_runs(const peer &p)
{
	outcome end = run_in_child([&p] {
		of_run = &p;
		running = p.start() ? p.make(kind::CALLS_FIRST, 42, "freed") : nullptr;
		if (!running)
			return tell("no code");
		tell(call(running, free_the_caller) == 42 ? "runs to its end"
							  : "goes on in other code");
	});
	return end.signal ? died(end) : told(end);
}

/* --- the table --- */

static const struct {
	const char *title;
	text (*run)(const peer &);
} rows[] = {
	{"a jump into freed code", jump_into_freed},
	{"the same, when another function has got the memory", jump_into_used_again},
	{"code that is freed while it runs", freed_while_it_runs},
	{"`fork` while another thread compiles", fork_beside_a_compiler},
	{"`mprotect` denied (systemd's `MemoryDenyWriteExecute=`)", without_new_code},
	{"the name of a function in perf when its memory is used again", names_after_reuse},
	{"a C++ exception through its frame", exception_through},
};
static const peer *const columns[] = {&plain_mmap, &own_cache, &asmjit_runtime, &llvm_orc,
				      &code_heap};

int main(int argc, char **argv)
{
	if (argc == 3) {
		unsigned long row = std::strtoul(argv[1], nullptr, 10);
		unsigned long column = std::strtoul(argv[2], nullptr, 10);
		if (row >= sizeof rows / sizeof rows[0] ||
		    column >= sizeof columns / sizeof columns[0])
			return 2;
		return std::printf("%s\n", rows[row].run(*columns[column]).c_str()) < 0;
	}
	text line = "|", rule = "|---|";
	for (const peer *p : columns) {
		line += text(" | ") + p->title;
		rule += "---|";
	}
	std::printf("%s |\n%s\n", line.c_str(), rule.c_str());
	for (const auto &row : rows) {
		line = text("| ") + row.title;
		for (const peer *p : columns)
			line += " | " + row.run(*p);
		std::printf("%s |\n", line.c_str());
	}
	return 0;
}
