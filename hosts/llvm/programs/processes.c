/* SPDX-License-Identifier: MIT
 * processes.c: children of fork change data of their own, run code, have children themselves, and
 * end in several ways; a child that execs; the parent's data stays as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int counter = 100;
static char text[5000] = "the parent's";
static int zeros[3000];

static void at_end(void)
{
	printf("%s ends with %d\n", text, counter);
	fflush(stdout);
}

static int (*volatile step)(int);
static int add(int n)
{
	return counter += n;
}
static int subtract(int n)
{
	return counter -= n;
}

static int work(int depth)
{
	zeros[depth] += depth;
	return depth == 0 ? step(1) : work(depth - 1) + zeros[depth];
}

static int child(int which)
{
	snprintf(text, sizeof text, "child %d", which);
	step = which % 2 ? add : subtract;
	for (int i = 0; i < 10; i++)
		work(20);
	if (which == 2) {
		pid_t pid = fork();
		int status = 0;
		if (pid == 0) {
			strcpy(text, "grandchild");
			counter = 7;
			exit(9);
		}
		waitpid(pid, &status, 0);
		printf("its child: %d\n", WEXITSTATUS(status));
	}
	if (which == 3) {
		fflush(stdout);
		execl("/bin/sh", "sh", "-c", "echo executed; exit 33", (char *)NULL);
	}
	if (which == 4)
		abort();
	return which;
}

int main(void)
{
	setvbuf(stdout, NULL, _IOFBF, 4096);
	atexit(at_end);
	step = add;
	for (int i = 1; i <= 4; i++) {
		int status = 0;
		fflush(stdout);
		pid_t pid = fork();
		if (pid < 0)
			return 1;
		if (pid == 0)
			exit(child(i) + 10);
		waitpid(pid, &status, 0);
		printf("%d %d %s %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, work(10),
		       text, zeros[10]);
	}
	return counter & 127;
}
