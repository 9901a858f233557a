/* SPDX-License-Identifier: MIT
 * wishes.h: what the environment says (wishes.c). */
#ifndef CH_CODEHEAP_LIFE_WISHES_H
#define CH_CODEHEAP_LIFE_WISHES_H

#include "codeheap/codeheap.h"

/* What the environment says overrides the configuration; the set of sinks is resolved. CH_E_ARG: a
 * value is unknown, and if it is the environment's, stderr has a line of it. */
enum ch_status ch__wishes_read(struct ch_config *, unsigned *wanted);

#endif
