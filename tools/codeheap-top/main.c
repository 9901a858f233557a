/* SPDX-License-Identifier: MIT
 * codeheap-top: shows the statistics file of a running program's code heap. It attaches to nothing
 * and reads nothing but the file. */
#define _GNU_SOURCE /* ppoll, strerrordesc_np */
#include "tools/codeheap-top/view.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static const char usage[] =
	"codeheap-top [SWITCH ...] [FILE]\n"
	"\n"
	"Shows the code heap of a program that runs with CODEHEAP_STATS=FILE. Without FILE it is "
	"that of this\n"
	"program's environment. In a terminal the view refreshes; q ends it. Elsewhere it is "
	"printed once.\n"
	"\n"
	"  -d SECONDS  between two looks; default 1\n"
	"  -n COUNT    looks, then it ends; default: no end, and 1 with --json, --svg or no "
	"terminal\n"
	"  --once      the same as -n 1, without clearing the window\n"
	"  --json      one line of JSON\n"
	"  --svg       a picture of the heap's pages\n"
	"\n"
	"Exit status: 0; 1 when the file cannot be read or the output not be written; 2 for "
	"another "
	"command line\n"
	"than this.\n";

enum form { FORM_VIEW, FORM_JSON = 1, FORM_SVG = 2 };

struct options {
	const char *path;
	enum form form;
	double seconds;
	long looks; /* 0: without end */
	bool is_once;
};

static volatile sig_atomic_t is_over, is_stopped;

static void note_end(int signal)
{
	(void)signal;
	is_over = 1;
}

static void note_stop(int signal)
{
	(void)signal;
	is_stopped = 1;
}

static void note_size(int signal)
{
	(void)signal;
}

_Noreturn static void wrong_usage(const char *word, const char *why)
{
	fprintf(stderr, "codeheap-top: %s: %s; --help tells\n", word, why);
	exit(2);
}

static double number_of(const char *word, const char *text, double least, double most)
{
	char *end, why[64];
	errno = 0;
	double value = text ? strtod(text, &end) : 0;
	/* Also false for what is no number. */
	if (text && end != text && !*end && !errno && value >= least && value <= most)
		return value;
	snprintf(why, sizeof why, "needs a number from %.12g to %.12g", least, most);
	wrong_usage(word, why);
}

static long looks_of(const char *word, const char *text)
{
	double looks = number_of(word, text, 1, 1000000000);
	if (looks != (double)(long)looks)
		wrong_usage(word, "needs a whole number");
	return (long)looks;
}

static struct options read_options(int argc, char **argv)
{
	enum { SECONDS_MOST = 86400 };
	const double least_s = 0.05;
	struct options options = {.seconds = 1};
	bool has_looks = false;
	for (int i = 1; i < argc; i++) {
		const char *word = argv[i], *next = argv[i + 1];
		if (!strcmp(word, "--help")) {
			fputs(usage, stdout);
			exit(fflush(stdout) ? 1 : 0);
		}
		if (!strcmp(word, "-d"))
			options.seconds = number_of(word, next, least_s, SECONDS_MOST), i++;
		else if (!strcmp(word, "-n"))
			options.looks = looks_of(word, next), has_looks = true, i++;
		else if (!strcmp(word, "--once"))
			options.is_once = true;
		else if (!strcmp(word, "--json"))
			options.form |= FORM_JSON;
		else if (!strcmp(word, "--svg"))
			options.form |= FORM_SVG;
		else if (*word == '-')
			wrong_usage(word, "no such option");
		else if (options.path)
			wrong_usage(word, "a second file");
		else
			options.path = word;
		if (options.form == (FORM_JSON | FORM_SVG))
			wrong_usage(word, "--json or --svg?");
	}
	if (options.is_once || (!has_looks && (options.form != FORM_VIEW || !isatty(1))))
		options.looks = 1;
	if (!options.path)
		options.path = getenv("CODEHEAP_STATS");
	if (!options.path || !*options.path)
		wrong_usage("FILE", "missing, in CODEHEAP_STATS, too");
	return options;
}

/* --- the terminal --- */

static struct termios before;
static sigset_t signals_before;
static bool has_input, has_keys, has_window;

/* Keys come one by one and are not shown; the screen that was there comes back at the end. */
static void open_window(void)
{
	has_keys = has_input = isatty(0) && tcgetattr(0, &before) == 0;
	if (has_input) {
		struct termios raw = before;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		raw.c_cc[VMIN] = 0;
		raw.c_cc[VTIME] = 0;
		tcsetattr(0, TCSANOW, &raw);
	}
	fputs("\033[?1049h\033[?25l", stdout);
	has_window = true;
}

static void close_window(void)
{
	if (!has_window)
		return;
	fputs("\033[?25h\033[?1049l", stdout);
	/* What is printed from here on is for the screen that comes back. */
	fflush(stdout);
	if (has_input)
		tcsetattr(0, TCSANOW, &before);
}

/* The signals come while it waits: one that came just before would not end the wait. */
static void hold_signals(void)
{
	static const struct {
		int signal;
		void (*note)(int);
	} ours[] = {{SIGINT, note_end}, {SIGQUIT, note_end}, {SIGTERM, note_end},
		    {SIGHUP, note_end}, {SIGTSTP, note_stop}, {SIGWINCH, note_size}};
	sigset_t held;
	sigemptyset(&held);
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		sigaddset(&held, ours[i].signal);
	sigprocmask(SIG_BLOCK, &held, &signals_before);
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		sigaction(ours[i].signal, &(struct sigaction){.sa_handler = ours[i].note}, NULL);
}

/* The shell gets its terminal as it was. Where no shell could continue the process (ssh -t), the
 * signal's own action does nothing; SIGSTOP would stop the process there, too. */
static void stop(void)
{
	struct sigaction ours;
	sigset_t only;
	is_stopped = 0;
	close_window();
	sigaction(SIGTSTP, &(struct sigaction){.sa_handler = SIG_DFL}, &ours);
	raise(SIGTSTP);
	sigemptyset(&only);
	sigaddset(&only, SIGTSTP);
	sigprocmask(SIG_UNBLOCK, &only, NULL);
	sigprocmask(SIG_BLOCK, &only, NULL);
	sigaction(SIGTSTP, &ours, NULL);
	open_window();
}

static struct view window_size(void)
{
	enum { COLUMNS_ELSEWHERE = 100 };
	struct winsize size;
	struct view view = {COLUMNS_ELSEWHERE, 0, has_window};
	if (isatty(1) && ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
		view.columns = size.ws_col;
		/* The last line stays empty: one more would move the others up. */
		view.rows = has_window && size.ws_row > 1 ? size.ws_row - 1 : 0;
	}
	return view;
}

/* Until the time is over, a key ends it or the window has another size. */
static void wait_for_key(double seconds)
{
	struct pollfd input = {.fd = has_keys ? 0 : -1, .events = POLLIN};
	struct timespec most = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
	char key;
	if (ppoll(&input, 1, &most, has_window ? &signals_before : NULL) <= 0)
		return;
	ssize_t got = read(0, &key, 1);
	if (got <= 0)
		has_keys = false; /* nobody types any more */
	if (got == 1 && (key == 'q' || key == 'Q'))
		is_over = 1;
}

/* --- looks --- */

static bool show(const struct options *options, const struct top_stats *stats)
{
	struct view view = window_size();
	if (has_window)
		fputs("\033[H", stdout);
	if (options->form == FORM_JSON)
		view_print_json(stdout, stats);
	else if (options->form == FORM_VIEW)
		view_print(stdout, stats, &view);
	else if (!view_draw(stdout, stats))
		return false;
	if (has_window)
		fputs("\033[J", stdout);
	return fflush(stdout) == 0 && !ferror(stdout);
}

/* The window stays: a program that begins anew replaces its file. */
static bool show_error(const char *error)
{
	struct view view = window_size();
	printf("\033[H%.*s\033[J", view.columns, error);
	return fflush(stdout) == 0 && !ferror(stdout);
}

int main(int argc, char **argv)
{
	struct options options = read_options(argc, argv);
	const char *error = NULL;
	bool is_shown = true;
	if (options.form == FORM_VIEW && isatty(1) && !options.is_once) {
		hold_signals();
		open_window();
	}
	for (long look = 0; !is_over && (!options.looks || look < options.looks); look++) {
		if (look)
			wait_for_key(options.seconds);
		if (is_stopped)
			stop();
		if (is_over)
			break;
		struct top_stats *stats = top_read(options.path, &error);
		if (stats) {
			error = NULL;
			is_shown = show(&options, stats);
			top_free(stats);
		} else if (has_window && look) {
			is_shown = show_error(error);
		} else {
			break;
		}
		if (!is_shown)
			break;
	}
	close_window();
	if (error)
		fprintf(stderr, "codeheap-top: %s: %s\n", options.path, error);
	else if (fflush(stdout) != 0 || !is_shown)
		fprintf(stderr, "codeheap-top: standard output: %s\n", strerrordesc_np(errno));
	else
		return 0;
	return 1;
}
