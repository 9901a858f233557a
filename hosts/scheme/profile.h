/* SPDX-License-Identifier: MIT
 * profile.h: profiles of programs, as flame graphs: --profile and with-flame-profile.
 */
#pragma once

#include "vm.h"

enum { PROFILE_RATE = 100, PROFILE_RATE_MOST = 20000, PROFILE_WHY_BYTES = 320 };

struct profile_request {
	const char *path;  /* of the report */
	const char *title; /* NULL: none */
	int64_t rate;      /* samples a second and thread */
	int by_wall_clock; /* also sample waiting threads */
	int is_folded;     /* lines instead of an SVG */
	int is_icicle, is_reversed;
};

/* profile_is_word: is this a WORD of (with-flame-profile (FILE WORD VALUE ...) ...)? */
int profile_is_word(value symbol);

/* profile_is_folded: the form of the report by the file's name. */
int profile_is_folded(const char *path);

/* profile_begin: sample all threads of the process. Returns the number of the profile, above 0, or
 * a constant below with the reason in `why`: then no profile runs and no file was touched. */
enum { PROFILE_REFUSED = 0, PROFILE_NO_FILE = -1 };
int64_t profile_begin(struct context *ctx, const struct profile_request *request, char *why);

/* profile_finish: stop and write a running profile, at the end of the process. Returns 0 when the
 * report could not be written; the reason is on standard error. */
int profile_finish(struct context *ctx);

/* profile_describe: a line about the last ended profile: counts of taken and lost samples. */
void profile_describe(char *text, size_t bytes);
