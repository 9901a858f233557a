/* SPDX-License-Identifier: MIT
 * late_names.h: names of a storm of commits (late_names.c). */
#ifndef CH_OBSERVE_LATE_NAMES_H
#define CH_OBSERVE_LATE_NAMES_H

/* From here on waiting names are written within some ms. A constructor in late_names.c calls it. */
void ch__late_names_come(void);

#endif
