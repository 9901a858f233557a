/* SPDX-License-Identifier: MIT
 * late_names.h: names of a storm of commits (late_names.c). */
#ifndef CH_OBSERVE_LATE_NAMES_H
#define CH_OBSERVE_LATE_NAMES_H

/* From here on they are written some ms later at most. Comes by itself where the file is linked. */
void ch__late_names_come(void);

#endif
