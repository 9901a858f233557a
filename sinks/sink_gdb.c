/* SPDX-License-Identifier: MIT
 * sink_gdb.c: shows code to a debugger through GDB's JIT interface: a list of ELF images in memory,
 * and a function on which the debugger has a breakpoint. The sink decides which image shows which
 * ranges, and when (docs/unwinders.md, section 4); elf_image.c writes the images.
 *
 * Until a debugger looks, an add is an entry in the table of a page. When a range of an image was
 * removed, the next show or flush takes the image from the list, before the successor
 * is registered: GDB sets breakpoints anew only when code appears. A range is in one image at most:
 * sections of two files must not overlap.
 *
 * The names that GDB looks for are weak and protected: in a static link with another JIT the list
 * belongs to the other JIT, and each JIT adds entries under a lock of its own. Lock: the tool's, in
 * every function; a debugger stops the process under the lock. */
#include "sinks/elf_image.h"

#include "arch/registers.h"

/* GDB's interface ("JIT Compilation Interface" in its manual): layouts and values bind. */
enum { JIT_NOTHING, JIT_REGISTER, JIT_UNREGISTER, JIT_VERSION = 1 };

struct jit_entry {
	struct jit_entry *next, *previous;
	const void *file;
	uint64_t file_bytes;
};

struct jit_descriptor {
	uint32_t version;
	volatile uint32_t action;
	struct jit_entry *volatile relevant;
	struct jit_entry *volatile first;
};

#define JIT_SYMBOL __attribute__((weak, visibility("protected")))
JIT_SYMBOL struct jit_descriptor __jit_debug_descriptor = {.version = JIT_VERSION};
JIT_SYMBOL CH_OPAQUE void __jit_debug_register_code(void);
void __jit_debug_register_code(void)
{
	__asm__ volatile("" ::: "memory");
}

enum {
	MOST = 512,        /* images of a heap, beside one a chunk */
	TABLE_LEAST = 16,  /* ranges of a page's first table */
	PATIENCE_MS = 100, /* of a fatal signal, for the lock */
};

/* The `image` of ranges that no image shows. */
#define NEVER_SHOWN NULL
static const char was_shown; /* only the address is used */

struct image { /* the ELF image lies behind it */
	_Alignas(16) struct jit_entry entry;
	size_t bytes;       /* of the memory that begins here */
	bool shows_removed; /* a range of the image was removed or changed */
	struct image *next; /* of the chunk */
};

struct chunk {
	struct image *images;
	bool has_changed; /* a range is in no image, or an image shows a removed range */
	struct ch__elf_page pages[];
};

struct gdb { /* one heap; [gdb lock] where not const */
	struct ch__tool_user user;
	uint32_t pages_per_chunk, chunk_count; /* [const] */
	uint32_t further; /* images beside the first of each chunk */
	/* The first has the runtime page alone, whose image never changes. NULL: nothing was told
	 * of the chunk. */
	struct chunk *chunks[];
};

static struct ch__tool jit = {.rank = CH__RANK_GDB, .sink = CH_SINK_GDB, .file.fd = -1};

static size_t chunk_bytes(const struct gdb *g)
{
	return sizeof(struct chunk) + g->pages_per_chunk * sizeof(struct ch__elf_page);
}

static bool somebody_looks(void)
{
	return ch__arch_has_breakpoint((const void *)(uintptr_t)__jit_debug_register_code);
}

static void tell_debugger(struct jit_entry *entry, uint32_t action)
{
	__jit_debug_descriptor.relevant = entry;
	__jit_debug_descriptor.action = action;
	__jit_debug_register_code();
	__jit_debug_descriptor.action = JIT_NOTHING;
	__jit_debug_descriptor.relevant = NULL;
}

/* Sets `image` to `to` in the ranges of a chunk where `image` is `from`; both are images or reasons
 * to wait. Returns false if there are no such ranges. */
static bool hand_over(struct gdb *g, struct chunk *chunk, const void *from, const void *to)
{
	bool had_some = false;
	for (uint32_t i = 0; i < g->pages_per_chunk; i++)
		for (uint32_t k = 0; k < chunk->pages[i].count; k++)
			if (chunk->pages[i].ranges[k].image == from) {
				chunk->pages[i].ranges[k].image = to;
				had_some = true;
			}
	return had_some;
}

/* Makes an image of the ranges that wait for a reason. Returns false when there is no memory. */
static bool show_waiting(struct gdb *g, struct chunk *chunk, const void *why)
{
	struct ch__elf_input in = {
		.config = g->user.config,
		.pages = chunk->pages,
		.page_count = g->pages_per_chunk,
		.image = why,
		.base = g->user.config->runtime_exec,
	};
	if (!hand_over(g, chunk, why, why))
		return true;
	size_t bytes;
	struct image *image = (void *)ch__elf_image_make(&in, sizeof *image, &bytes);
	if (!image)
		return false;
	struct jit_entry *next = __jit_debug_descriptor.first;
	*image = (struct image){
		.entry = {.next = next, .file = image + 1, .file_bytes = bytes - sizeof *image},
		.bytes = bytes,
		.next = chunk->images,
	};
	if (next)
		next->previous = &image->entry;
	__jit_debug_descriptor.first = &image->entry;
	tell_debugger(&image->entry, JIT_REGISTER);
	hand_over(g, chunk, why, image);
	g->further += chunk->images != NULL;
	chunk->images = image;
	return true;
}

/* Takes images from the list: all, or only images with shows_removed. Their ranges wait. */
static void drop_images(struct gdb *g, struct chunk *chunk, bool all)
{
	for (struct image **at = &chunk->images; *at;) {
		struct image *image = *at;
		if (!all && !image->shows_removed) {
			at = &image->next;
			continue;
		}
		*at = image->next;
		g->further -= chunk->images != NULL;
		hand_over(g, chunk, image, &was_shown);
		struct jit_entry *entry = &image->entry;
		if (entry->previous)
			entry->previous->next = entry->next;
		else
			__jit_debug_descriptor.first = entry->next;
		if (entry->next)
			entry->next->previous = entry->previous;
		/* The debugger reads only the address of the entry, so the memory may go then. */
		tell_debugger(entry, JIT_UNREGISTER);
		ch__os_unmap(image, image->bytes);
	}
}

/* Returns false when there is no memory; then a chunk's has_changed stays set. */
static bool show_all(struct gdb *g, bool somebody_listens)
{
	bool as_one = !somebody_listens || g->further >= MOST;
	for (uint32_t i = 0; i < g->chunk_count; i++) {
		struct chunk *chunk = g->chunks[i];
		bool is_split = chunk && chunk->images && chunk->images->next;
		if (!chunk || (!chunk->has_changed && !(as_one && is_split)))
			continue;
		chunk->has_changed = true;
		drop_images(g, chunk, as_one);
		if (as_one)
			hand_over(g, chunk, NEVER_SHOWN, &was_shown);
		if (!show_waiting(g, chunk, &was_shown) || !show_waiting(g, chunk, NEVER_SHOWN))
			return false;
		chunk->has_changed = false;
	}
	return true;
}

/* Returns where the chunk of an address stands, and the page's index there. */
static struct chunk **chunk_of(struct gdb *g, uintptr_t exec, uint32_t *page)
{
	const struct ch__sinks_config *config = g->user.config;
	bool is_runtime = exec < config->pool_exec;
	size_t i = is_runtime ? 0 : (exec - config->pool_exec) / config->page_bytes;
	*page = (uint32_t)(i % g->pages_per_chunk);
	return &g->chunks[is_runtime ? 0 : i / g->pages_per_chunk + 1];
}

/* Whether the page has a range with the same start. *at: its index, or that of a new range. */
static bool has_range(const struct gdb *g, const struct ch__elf_page *page,
		      const struct ch__sink_range *range, uint32_t *at)
{
	uint32_t offset = (uint32_t)(range->exec - g->user.config->runtime_exec);
	uint32_t low = 0, high = page->count;
	/* Mostly a new range lies behind all ranges of the page. */
	if (high && page->ranges[high - 1].offset < offset)
		low = high;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (page->ranges[middle].offset < offset)
			low = middle + 1;
		else
			high = middle;
	}
	*at = low;
	return low < page->count && page->ranges[low].offset == offset;
}

/* Marks the image of the range, if any: the range changes or goes. */
static void outdate(const struct ch__elf_range *range)
{
	if (range->image != NEVER_SHOWN && range->image != &was_shown)
		((struct image *)(uintptr_t)range->image)->shows_removed = true;
}

static bool add_range(struct gdb *g, const struct ch__sink_range *range)
{
	const struct ch__sinks_config *config = g->user.config;
	uint32_t at, index;
	struct chunk **place = chunk_of(g, range->exec, &index), *chunk = *place;
	if (!chunk)
		chunk = *place = ch__meta_alloc(config->meta, chunk_bytes(g));
	if (!chunk)
		return false;
	struct ch__elf_page *page = &chunk->pages[index];
	if (has_range(g, page, range, &at)) {
		outdate(&page->ranges[at]);
	} else {
		if (page->count == page->capacity &&
		    !ch__meta_grow(config->meta, &page->ranges, &page->capacity, TABLE_LEAST,
				   sizeof *page->ranges))
			return false;
		memmove(page->ranges + at + 1, page->ranges + at,
			(page->count - at) * sizeof *page->ranges);
		page->count++;
	}
	page->ranges[at] = (struct ch__elf_range){
		.key = range->key,
		.offset = (uint32_t)(range->exec - config->runtime_exec),
		.bytes = (uint32_t)range->bytes & INT32_MAX,
		.is_cold = range->is_cold,
	};
	chunk->has_changed = true;
	return true;
}

static void free_chunk(struct gdb *g, uint32_t index)
{
	struct chunk *chunk = g->chunks[index];
	if (!chunk)
		return;
	drop_images(g, chunk, true);
	for (uint32_t i = 0; i < g->pages_per_chunk; i++)
		ch__meta_free(g->user.config->meta, chunk->pages[i].ranges,
			      chunk->pages[i].capacity * sizeof *chunk->pages[i].ranges);
	ch__meta_free(g->user.config->meta, chunk, chunk_bytes(g));
	g->chunks[index] = NULL;
}

static void close_gdb(void *state, int error) CH_HAS_FILE
{
	struct gdb *g = state;
	for (uint32_t i = 0; i < g->chunk_count; i++)
		free_chunk(g, i);
	ch__tool_leave(&jit, &g->user, error);
}

static int open_gdb(const struct ch__sinks_config *config, void **state) CH_HAS_FILE
{
	uint32_t chunks = (uint32_t)(config->pool_bytes / config->chunk_bytes) + 1;
	struct gdb *g = ch__tool_state(config, state, sizeof *g + chunks * sizeof g->chunks[0]);
	if (!g)
		return ENOMEM;
	g->pages_per_chunk = (uint32_t)(config->chunk_bytes / config->page_bytes);
	g->chunk_count = chunks;
	ch__tool_join(&jit, &g->user);
	return 0;
}

static void add_ranges(void *state, const struct ch__sink_range *ranges, size_t n, bool is_late)
	CH_HAS_FILE
{
	struct gdb *g = state;
	bool ok = true;
	for (size_t i = 0; ok && i < n; i++)
		ok = add_range(g, &ranges[i]);
	if (ok && !is_late && somebody_looks())
		ok = show_all(g, true);
	if (!ok)
		close_gdb(g, ENOMEM);
}

static void remove_ranges(void *state, const struct ch__sink_range *ranges, size_t n)
{
	struct gdb *g = state;
	for (size_t i = 0; i < n; i++) {
		uint32_t at, index;
		struct chunk *chunk = *chunk_of(g, ranges[i].exec, &index);
		struct ch__elf_page *page = chunk ? &chunk->pages[index] : NULL;
		if (!page || !has_range(g, page, &ranges[i], &at))
			continue;
		outdate(&page->ranges[at]);
		page->count--;
		memmove(page->ranges + at, page->ranges + at + 1,
			(page->count - at) * sizeof *page->ranges);
		chunk->has_changed = true;
	}
}

static void flush_gdb(void *state, enum ch__flush how) CH_HAS_FILE
{
	struct gdb *g = state;
	bool somebody_listens = somebody_looks();
	if ((how == CH__FLUSH_EXACT || somebody_listens) && !show_all(g, somebody_listens))
		close_gdb(g, ENOMEM);
	for (uint32_t i = 0; i < g->chunk_count; i++)
		if (g->chunks[i] && g->chunks[i]->has_changed)
			drop_images(g, g->chunks[i], false);
}

/* The wait ends: the dying thread may hold the lock, or the holder may wait for ever. */
static void show_at_death(void *state)
{
	static _Atomic(uint32_t) never;
	struct gdb *g = state;
	for (unsigned ms = 0; !ch__tool_try_lock(&jit); ms++) {
		if (ms == PATIENCE_MS)
			return;
		ch__os_futex_wait(&never, 0, 1000000);
	}
	show_all(g, true); /* nothing, if the sink is off */
	ch__tool_unlock(&jit);
}

/* The VM frees the section next: who makes an image of the block has the lock. */
static void await_image(void *state, struct ch__own *own)
{
	(void)state, (void)own;
	ch__tool_lock(&jit);
	ch__tool_unlock(&jit);
}

static void forget_chunk(void *state, uint32_t chunk)
{
	ch__tool_lock(&jit);
	free_chunk(state, chunk + 1);
	ch__tool_unlock(&jit);
}

const struct ch__sink_ops ch__sink_gdb = {
	.name = "gdb",
	.bit = CH_SINK_GDB,
	.tool = &jit,
	.open = open_gdb,
	.close = close_gdb,
	.add = add_ranges,
	.remove = remove_ranges,
	.flush = flush_gdb,
	.fatal = show_at_death,
	.own_dead = await_image,
	.chunk_gone = forget_chunk,
};
