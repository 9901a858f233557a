/* SPDX-License-Identifier: MIT
 * scheme_level.h: the Scheme level of the stress: workers one after the other, each with different
 * habits of the VM, and the treatment of a failed program. */
#pragma once

#include "worker.h"

#include <stdbool.h>

struct scheme_level;

/* Keeps failures below folder. Returns NULL without memory to share with workers. */
struct scheme_level *scheme_level_start(const char *folder, uint64_t seed);
/* Looks after the worker, or starts a worker for at most left_ms. Returns false after a failure,
 * which is printed, minimised and kept by then. */
bool scheme_level_poll(struct scheme_level *level, uint64_t left_ms);
/* Waits for the last worker. */
bool scheme_level_end(struct scheme_level *level);
const struct counters *scheme_level_counts(const struct scheme_level *level);
bool scheme_level_has_enough(const struct scheme_level *level, uint64_t seconds);
/* Runs a kept program several times. Returns 0, 1 for a failure, 2 if it cannot be read. */
int scheme_level_replay(const char *path);
