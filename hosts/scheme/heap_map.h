/* SPDX-License-Identifier: MIT
 * heap_map.h: a picture of a code heap: its pages, and in each the hot, cold, not-entrant and
 * free bytes. */
#pragma once

#include "codeheap/codeheap.h"

#include <stdbool.h>
#include <stdio.h>

struct heap_map_panel;

/* Returns a snapshot of the heap under a title; NULL without memory. */
struct heap_map_panel *heap_map_take(struct ch_heap *heap, const char *title);
void heap_map_free(struct heap_map_panel *panel);
/* Writes the panels side by side as one SVG; returns false when a write failed. */
bool heap_map_write(FILE *file, struct heap_map_panel *const *panels, int count);
