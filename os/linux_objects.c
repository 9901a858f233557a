/* SPDX-License-Identifier: MIT
 * linux_objects.c: which loaded object and exported function an address lies in, for a signal
 * handler: the C library's lookup without a lock, then the object's own table of symbols. No lock,
 * no allocation. Who may wait asks linux_symbols.c, which knows more. */
#define _GNU_SOURCE
#include "os/os.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <string.h>

#if __GLIBC_PREREQ(2, 35)
extern __typeof__(_dl_find_object) _dl_find_object __attribute__((weak));

struct symbols {
	const ElfW(Sym) * table;
	const char *texts;
	const uint32_t *hash; /* GNU's */
};

/* Most loaders put addresses in place of the offsets that the file has. */
static const void *address_of(const struct link_map *map, uintptr_t low, uintptr_t value)
{
	return (const void *)(value < low ? map->l_addr + value : value);
}

static struct symbols symbols_of(const struct link_map *map, uintptr_t low)
{
	struct symbols s = {0};
	for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++) {
		const void *at = address_of(map, low, d->d_un.d_ptr);
		if (d->d_tag == DT_SYMTAB)
			s.table = at;
		else if (d->d_tag == DT_STRTAB)
			s.texts = at;
		else if (d->d_tag == DT_GNU_HASH)
			s.hash = at;
	}
	return s;
}

/* The table has no count; the last chain of the hash ends with it. */
static uint32_t count_of(const uint32_t *hash)
{
	uint32_t buckets = hash[0], first = hash[1], bloom_words = hash[2], last = 0;
	const uint32_t *bucket = hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;
	for (uint32_t i = 0; i < buckets; i++)
		last = bucket[i] > last ? bucket[i] : last;
	if (last < first)
		return first;
	while (!(chain[last - first] & 1))
		last++;
	return last + 1;
}

static void find_symbol(const struct link_map *map, uintptr_t address, struct ch__os_object *object)
{
	struct symbols s = symbols_of(map, object->at);
	uint32_t count = s.table && s.texts && s.hash ? count_of(s.hash) : 0;
	for (uint32_t i = 0; i < count; i++) {
		const ElfW(Sym) *symbol = &s.table[i];
		uintptr_t at = map->l_addr + symbol->st_value;
		if (ELF64_ST_TYPE(symbol->st_info) != STT_FUNC || symbol->st_shndx == SHN_UNDEF ||
		    address - at >= symbol->st_size)
			continue;
		object->symbol = s.texts + symbol->st_name;
		object->symbol_at = at;
		return;
	}
}

bool ch__os_object_of(uintptr_t address, struct ch__os_object *object)
{
	struct dl_find_object found;
	*object = (struct ch__os_object){0};
	/* A return address lies behind its call. */
	if (!_dl_find_object || _dl_find_object((void *)(address - 1), &found) != 0)
		return false;
	const char *path = found.dlfo_link_map->l_name;
	object->path = path && *path ? path : program_invocation_name;
	object->at = (uintptr_t)found.dlfo_map_start;
	find_symbol(found.dlfo_link_map, address - 1, object);
	return true;
}

#else
bool ch__os_object_of(uintptr_t address, struct ch__os_object *object)
{
	(void)address;
	*object = (struct ch__os_object){0};
	return false;
}
#endif
