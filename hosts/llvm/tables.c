/* SPDX-License-Identifier: MIT
 * tables.c: a list of unwind tables, so that those whose block_freed never comes, because their vm
 * was detached before, are freed, too. */
#include "tables.h"

#include <stdlib.h>

int tables_start(struct tables *tables)
{
	tables->first = NULL;
	return pthread_mutex_init(&tables->lock, NULL);
}

void tables_end(struct tables *tables)
{
	for (struct table *table = tables->first, *next; table; table = next) {
		next = table->next;
		free(table->bytes);
		free(table);
	}
	tables->first = NULL;
	pthread_mutex_destroy(&tables->lock);
}

struct table *table_new(struct tables *tables)
{
	struct table *table = calloc(1, sizeof *table);
	if (!table)
		return NULL;
	pthread_mutex_lock(&tables->lock);
	table->next = tables->first;
	table->link = &tables->first;
	if (table->next)
		table->next->link = &table->next;
	tables->first = table;
	pthread_mutex_unlock(&tables->lock);
	return table;
}

void table_free(struct tables *tables, struct table *table)
{
	if (!table)
		return;
	pthread_mutex_lock(&tables->lock);
	*table->link = table->next;
	if (table->next)
		table->next->link = table->link;
	pthread_mutex_unlock(&tables->lock);
	free(table->bytes);
	free(table);
}
