/* SPDX-License-Identifier: MIT
 * core.h: whose guests the observers are. Their library is linked apart from the core's, of which a
 * process has one of several flavours, perhaps of another release, or none. */
#ifndef CH_OBSERVE_CORE_H
#define CH_OBSERVE_CORE_H

#include <stdbool.h>

/* Whether the process has a core of the release that this file is of: nothing else of the core is
 * called before. One of another release is told of on stderr, once. */
bool ch__core_is_ours(void);

#endif
