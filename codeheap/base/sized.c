/* SPDX-License-Identifier: MIT
 * sized.c: checks that structs which grow have no padding at their end (sized.h). */
#include "codeheap/base/sized.h"
#include "codeheap/codeheap.h"
#include "codeheap/look.h"
#include "codeheap/profile.h"

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
