/* SPDX-License-Identifier: MIT
 * tools.h: the sinks that are tools: debuggers and profilers find names by them. Private to
 * sinks/. */
#ifndef CH_SINKS_TOOLS_H
#define CH_SINKS_TOOLS_H

#include "unwind/sink.h"

/* Whether the range has a byte and lies in the pool. */
static inline bool ch__sink_is_in_pool(const struct ch__sinks_config *config,
				       const struct ch__sink_range *range)
{
	size_t offset = range->exec - config->pool_exec;
	return offset < config->pool_bytes && range->bytes &&
	       range->bytes <= config->pool_bytes - offset;
}

extern const struct ch__sink_ops ch__sink_gdb, ch__sink_perfmap, ch__sink_jitdump;

#endif
