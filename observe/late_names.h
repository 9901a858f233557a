/* SPDX-License-Identifier: MIT
 * late_names.h: names of a storm of commits (late_names.c). */
#pragma once

/* From here on waiting names are written within some ms. A constructor in late_names.c calls it. */
void ch__late_names_come(void);
