/* SPDX-License-Identifier: MIT
 * cases_pages.c: the locks of pages/, whose names are those of other locks elsewhere. */
#include "os/lock.h"
#include "tests/orders/memory.h"

static struct ch__lock lock;
static uint32_t shared;

static void adds_under_lock(void)
{
	for (int i = 0; i < 3; i++) {
		ch__lock_take(&lock);
		shared++;
		ch__lock_release(&lock);
		if (ch__lock_try(&lock)) {
			shared++;
			ch__lock_release(&lock);
		}
	}
}

extern const struct order_case cases_pages[];
const struct order_case cases_pages[] = {
	{"lock_of_pages", 1000, NULL, NULL, NULL, {adds_under_lock, adds_under_lock}},
	{NULL},
};
