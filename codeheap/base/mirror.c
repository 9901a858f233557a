/* SPDX-License-Identifier: MIT
 * mirror.c: checks that the public header and a lower room agree where both declare a value or a
 * layout, since no room below may include the header. A cast passes such values on. Also checks
 * that structs which grow have no padding at their end (sized.h). */
#include "codeheap/base/heap.h"
#include "codeheap/base/sized.h"
#include "codeheap/look.h"
#include "codeheap/profile.h"
#include "unwind/steps.h"

#define SAME(ours, theirs) \
	_Static_assert((unsigned)(ours) == (unsigned)(theirs), "one value under two names")

SAME(CH_JMP, CH__SITE_JMP);
SAME(CH_JCC, CH__SITE_JCC);
SAME(CH_CALL, CH__SITE_CALL);
SAME(CH_LEA, CH__SITE_LEA);
SAME(CH_LITERAL, CH__SITE_LITERAL);

SAME(CH_BACKEND_AUTO, CH__BACKEND_AUTO);
SAME(CH_BACKEND_DUAL, CH__BACKEND_DUAL);
SAME(CH_BACKEND_MEMFD, CH__BACKEND_MEMFD);
SAME(CH_BACKEND_PROCMEM, CH__BACKEND_PROCMEM);

SAME(CH_SINK_UNWIND, CH__SINK_UNWIND);
SAME(CH_SINK_PERF_MAP, CH__SINK_PERF_MAP);
SAME(CH_SINK_JITDUMP, CH__SINK_JITDUMP);
SAME(CH_SINK_GDB, CH__SINK_GDB);
SAME(CH_SINK_LIBUNWIND, CH__SINK_LIBUNWIND);

SAME(CH_FRAME_POINTER, CH__FRAME_POINTER);
SAME(CH_FRAME_KEEPS_ALL, CH__FRAME_KEEPS_ALL);
SAME(CH_FRAME_LEAF, CH__FRAME_LEAF);
SAME(CH_FRAME_STEPS, CH__FRAME_STEPS);
SAME(sizeof(struct ch_frame), sizeof(struct ch__frame));
SAME(offsetof(struct ch_frame, saves), offsetof(struct ch__frame, saves));
SAME(offsetof(struct ch_frame, steps_n), offsetof(struct ch__frame, steps_n));
SAME(offsetof(struct ch_frame, saves_n), offsetof(struct ch__frame, saves_n));
SAME(sizeof(struct ch_frame_step), sizeof(struct ch__step));
SAME(offsetof(struct ch_frame_step, cfa), offsetof(struct ch__step, cfa));
SAME(sizeof(struct ch_frame_save), sizeof(struct ch__save));
SAME(offsetof(struct ch_frame_save, below), offsetof(struct ch__save, below));
SAME(offsetof(struct ch_frame_save, at), offsetof(struct ch__save, at));

SAME(CH_TRAMPOLINE_FRAMED, CH__TEMPLATE_FRAMED);
SAME(CH_TRAMPOLINE_TAIL, CH__TEMPLATE_TAIL);

SAME(sizeof(struct ch_regs), sizeof(struct ch__arch_regs));
SAME(offsetof(struct ch_regs, gpr), offsetof(struct ch__arch_regs, gpr));
SAME(offsetof(struct ch_regs, pc), offsetof(struct ch__arch_regs, pc));
SAME(offsetof(struct ch_regs, sp), offsetof(struct ch__arch_regs, sp));
SAME(offsetof(struct ch_regs, extended), offsetof(struct ch__arch_regs, extended));

#define ENDS_WITH(type, field) \
	_Static_assert(CH__UP_TO(type, field) == sizeof(type), "padding that a field would take")

ENDS_WITH(struct ch_config, panic);
ENDS_WITH(struct ch_ops, resume_world);
ENDS_WITH(struct ch_open, align);
ENDS_WITH(struct ch_info, kind);
ENDS_WITH(struct ch_owner_facts, metadata_bytes_now);
ENDS_WITH(struct ch_spot, site_user);
ENDS_WITH(struct ch_stats, freezes);
ENDS_WITH(struct ch_profile_options, user);
ENDS_WITH(struct ch_profile_counts, refused);
ENDS_WITH(struct ch_profile_view, interpreter);
ENDS_WITH(struct ch_code, spare);
ENDS_WITH(struct ch_branch_site, spare);
