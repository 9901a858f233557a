/* SPDX-License-Identifier: MIT
 * tools.h: the sinks that are tools: debuggers and profilers find names by them. Private to
 * sinks/. */
#ifndef CH_SINKS_TOOLS_H
#define CH_SINKS_TOOLS_H

#include "unwind/sink.h"

extern const struct ch__sink_ops ch__sink_gdb, ch__sink_perfmap, ch__sink_jitdump;

#endif
