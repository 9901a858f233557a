/* SPDX-License-Identifier: MIT
 * views.c: the two views of the code memory, RX and RW, and their backends DUAL and MEMFD (I2, P3;
 * docs/design.md, section 4). PROCMEM has private memory (views_private.c). No pages are known
 * here, and no lock is taken. */
#include "os/text.h"
#include "arch/stubs.h"
#include "pages/inner.h"

/* The test's function does not begin the page: clang's -fsanitize=function reads in front of each
 * function that is called by an address. */
enum { SELF_TEST_FIRST = 0x5eed1, SELF_TEST_SECOND = 0x5eed2, SELF_TEST_AT = 64 };

/* Private memory has its copy within reach of a lead, at a random place too. With large pages
 * both views have the same distance from a multiple of such a page. */
static bool reserve(struct ch__views *v, const struct ch__pool_config *config)
{
	size_t whole = v->bytes + 2 * v->guard_bytes, before = v->guard_bytes + v->runtime_bytes;
	uintptr_t hint = config->near_address ? config->near_address : (uintptr_t)ch__views_create;
	/* Chunks, and large pages of the system, begin at their multiples. For a large pool,
	 * multiples of its size would leave few places near an address. */
	const size_t most = 64 << 20;
	size_t pool_align = config->pool_bytes < most ? config->pool_bytes : most;
	uint8_t *at = ch__os_reserve(whole, pool_align, before, hint);
	if (!at)
		return false;
	v->exec = at + v->guard_bytes;
	v->has_exec = true;
	/* The system's choice of a place may go to another mapping in a child of fork, before the
	 * views are back. ThreadSanitizer allows memory in some ranges only. */
	bool is_private = ch__views_are_private(v);
	uintptr_t alias = is_private ? (uintptr_t)v->exec : CH_TSAN ? hint : 0;
	size_t align = v->has_large_pages ? CH__LARGE_CHUNK_BYTES : v->guard_bytes;
	if (!(at = ch__os_reserve(whole, align, before, alias)))
		return false;
	v->write = at + v->guard_bytes;
	v->has_write = true;
	if (!is_private || ch__arch_lead_reaches(v->write - v->exec))
		return true;
	errno = ENOMEM;
	return false;
}

static bool map_shared(struct ch__views *v)
{
	if (v->backend == CH_BACKEND_MEMFD)
		return ch__os_memfd(v->bytes, &v->file) &&
		       ch__os_map_fd(&v->file, 0, v->write, v->bytes, CH__OS_RW);
	return ch__os_map_shared_rx(v->exec, v->bytes) &&
	       ch__os_duplicate_rw(v->exec, v->bytes, v->write);
}

static bool map_views(struct ch__views *v)
{
	if (ch__views_are_private(v)) {
		ch__os_announce_code(v->exec, v->bytes);
		return ch__private_map(v) && ch__views_commit(v, 0, v->runtime_bytes);
	}
	if (!map_shared(v) || !ch__views_populate(v, 0, v->runtime_bytes, v->write))
		return false;
	if (v->backend == CH_BACKEND_MEMFD) {
		ch__os_suggest(v->exec, v->bytes, CH__OS_DONT_DUMP);
		return ch__os_map_fd(&v->file, 0, v->exec, v->runtime_bytes, CH__OS_RX);
	}
	return ch__os_protect_none(v->exec + v->runtime_bytes, v->bytes - v->runtime_bytes);
}

static bool returns(struct ch__views *v, uint32_t value)
{
	const uint8_t *exec = v->exec + SELF_TEST_AT;
	size_t bytes = ch__arch_constant_function_write(v->write + SELF_TEST_AT, value);
	return ch__views_sync(v, exec, bytes) && ((uint32_t(*)(void))(uintptr_t)exec)() == value;
}

/* Whether stores through the RW view reach execution, at first and again: emulators translate code
 * once and may miss the second store. */
static bool follows(struct ch__views *v)
{
	return returns(v, SELF_TEST_FIRST) && returns(v, SELF_TEST_SECOND);
}

/* Only a file can be mapped again at the same offset. Two views that follow each other do so for
 * the process's next heaps, too, so they are not asked again: the first run of a page costs a
 * fault. */
static bool self_test(struct ch__views *v)
{
	static _Atomic(unsigned) passed; /* relaxed: a thread that misses a bit asks again */
	unsigned bit = 1u << v->backend;
	if (CH_LOAD_RELAXED(&passed) & bit)
		return true;
	if (follows(v)) {
		atomic_fetch_or_explicit(&passed, bit, memory_order_relaxed);
		return true;
	}
	if (v->backend == CH_BACKEND_MEMFD) {
		v->sync_steps |= CH__SYNC_REMAP;
		if (follows(v))
			return true;
	}
	errno = ENOTSUP;
	return false;
}

bool ch__views_exclude(struct ch__views *v)
{
	size_t whole = v->bytes + 2 * v->guard_bytes;
	ch__os_suggest(v->write, v->bytes, CH__OS_DONT_DUMP);
	/* Private memory is a child's own from its first write on. Under Valgrind a child without a
	 * handler shares the code. */
	if (ch__views_are_private(v) || (v->sync_steps & CH__SYNC_VALGRIND))
		return true;
	v->is_part_inherited = !ch__os_advise(v->exec - v->guard_bytes, whole, CH__OS_DONT_FORK) ||
			       !ch__os_advise(v->write - v->guard_bytes, whole, CH__OS_DONT_FORK);
	return !v->is_part_inherited;
}

const char *const ch__backend_names[] = {[CH_BACKEND_DUAL] = "dual",
					 [CH_BACKEND_MEMFD] = "memfd",
					 [CH_BACKEND_PROCMEM] = "procmem"};

static void note_refusal(const struct ch__pool_config *config, enum ch_backend backend, int error)
{
	ch__text_format(config->tried, "%s%s: ", config->tried->length ? "; " : "",
			ch__backend_names[backend]);
	ch__os_put_error(config->tried, error);
}

static int create_as(struct ch__views *v, const struct ch__pool_config *config,
		     enum ch_backend backend)
{
	if (backend == CH_BACKEND_PROCMEM && !CH_ARCH_LEAD_BYTES) {
		note_refusal(config, backend, ENOTSUP);
		return ENOTSUP;
	}
	size_t os_page = ch__os_page_bytes();
	*v = (struct ch__views){.backend = backend,
				.file.fd = -1,
				.guard_bytes = os_page,
				.runtime_bytes = config->page_bytes,
				.bytes = config->page_bytes + config->pool_bytes};
	v->has_large_pages = config->is_for_forks && ch__views_are_private(v);
	v->sync_steps = (uint8_t)((ch__valgrind_runs() ? CH__SYNC_VALGRIND : 0) |
				  (ch__views_are_private(v) ? CH__SYNC_COPY : 0));
	if (reserve(v, config) && map_views(v) && self_test(v) && ch__views_exclude(v)) {
		ch__arch_fill_traps(v->write, v->runtime_bytes);
		if ((v->has_code = ch__views_sync(v, v->exec, v->runtime_bytes)))
			return 0;
	}
	int error = errno ? errno : ENOMEM;
	note_refusal(config, backend, error);
	ch__views_destroy(v);
	return error;
}

bool ch__backend_of_name(const char *name, enum ch_backend *backend)
{
	for (unsigned i = CH_BACKEND_DUAL; i <= CH_BACKEND_PROCMEM; i++)
		if (strcmp(name, ch__backend_names[i]) == 0) {
			*backend = (enum ch_backend)i;
			return true;
		}
	return false;
}

int ch__views_create(struct ch__views *v, const struct ch__pool_config *config)
{
	ch__os_look_at_personality();
	if (config->backend != CH_BACKEND_AUTO)
		return create_as(v, config, config->backend);
	int error = create_as(v, config, CH_BACKEND_DUAL);
	if (error)
		error = create_as(v, config, CH_BACKEND_MEMFD);
	return error && create_as(v, config, CH_BACKEND_PROCMEM) != 0 ? error : 0;
}

static void leave(struct ch__views *v)
{
	size_t whole = v->bytes + 2 * v->guard_bytes;
	if (v->has_exec)
		ch__os_unreserve(v->exec - v->guard_bytes, whole);
	if (v->has_write)
		ch__os_unreserve(v->write - v->guard_bytes, whole);
	v->has_exec = v->has_write = false;
	ch__os_let_go(&v->file);
}

void ch__views_destroy(struct ch__views *v)
{
	leave(v);
	if (v->is_own)
		ch__os_unmap((void *)v->is_own, ch__os_page_bytes());
}

bool ch__views_populate(const struct ch__views *v, size_t offset, size_t bytes, uint8_t *to)
{
	if (v->backend == CH_BACKEND_MEMFD)
		return ch__os_fd_commit(&v->file, offset, bytes);
	return ch__os_populate(to, bytes);
}

bool ch__views_commit(struct ch__views *v, size_t offset, size_t bytes)
{
	/* Populating fails between pages, and the pages before it have memory. */
	bool has_memory = ch__views_populate(v, offset, bytes, v->write + offset);
	/* Traps before access: fresh memory reads as zero, and zeros execute. Caches last: on arm64
	 * their maintenance by address is a load, and faults without access. */
	if (has_memory)
		ch__arch_fill_traps(v->write + offset, bytes);
	if (has_memory && ch__views_take_back(v, offset, bytes) &&
	    (ch__views_are_private(v) || ch__views_sync(v, v->exec + offset, bytes)))
		return true;
	int error = errno;
	/* A range that lingered is still executable: access goes first. */
	ch__views_decommit(v, offset, bytes);
	errno = error;
	return false;
}

bool ch__views_deny(struct ch__views *v, size_t offset, size_t bytes)
{
	return ch__views_are_private(v)
		       ? ch__os_map_private(v->exec + offset, bytes, CH__OS_NONE)
		       : ch__os_protect_none(v->exec + offset, bytes);
}

bool ch__views_decommit(struct ch__views *v, size_t offset, size_t bytes)
{
	return ch__views_deny(v, offset, bytes) &&
	       ch__os_advise(v->write + offset, bytes,
			     ch__views_are_private(v) ? CH__OS_DROP : CH__OS_DISCARD);
}

/* Maps the range RW at `to`. */
static bool share(const struct ch__views *v, size_t offset, size_t bytes, uint8_t *to)
{
	bool is_file = v->backend == CH_BACKEND_MEMFD;
	return (is_file ? ch__os_map_fd(&v->file, offset, to, bytes, CH__OS_RW) &&
				  ch__os_advise(to, bytes, CH__OS_DONT_FORK)
			: ch__os_duplicate_rw(v->exec + offset, bytes, to)) &&
	       ch__os_advise(to, bytes, CH__OS_DONT_DUMP);
}

/* First one mapping takes the place of the room's many copies: the system does that even at the
 * limit of mappings, where it would not move one over many. Refused, share tries all the same. */
bool ch__views_leave_room(struct ch__views *v, size_t offset, size_t bytes)
{
	uint8_t *write = v->write + offset;
	(void)ch__os_map_private(write, bytes, CH__OS_R);
	bool is_left = share(v, offset, bytes, write);
	v->is_part_inherited |= !is_left;
	return is_left;
}

/* The traps are written at a place of their own. At the limit of mappings this place is the one
 * mapping that can go without a gap in the view, and the next call then has one. */
bool ch__views_room(struct ch__views *v, size_t offset, size_t bytes, size_t chunk_bytes)
{
	struct ch__os_held traps;
	uint8_t *write = v->write + offset;
	uint8_t *spare = ch__os_reserve(chunk_bytes, v->guard_bytes, 0, ch__os_anywhere);
	if (!spare)
		return false;
	bool is_made = ch__os_memfd(chunk_bytes, &traps) &&
		       ch__os_fd_commit(&traps, 0, chunk_bytes) &&
		       ch__os_map_fd(&traps, 0, spare, chunk_bytes, CH__OS_RW);
	if (is_made)
		ch__arch_fill_traps(spare, chunk_bytes);
	for (size_t at = 0; is_made && at < bytes; at += chunk_bytes)
		is_made = ch__os_map_fd(&traps, 0, write + at, chunk_bytes, CH__OS_COPY);
	ch__os_let_go(&traps);
	ch__os_unreserve(spare, chunk_bytes);
	return is_made && ch__os_advise(write, bytes, CH__OS_DONT_FORK) &&
	       ch__os_advise(write, bytes, CH__OS_DONT_DUMP);
}

static bool map_back(const struct ch__views *v, size_t offset, size_t bytes)
{
	return v->backend == CH_BACKEND_MEMFD
		       ? ch__os_map_fd(&v->file, offset, v->exec + offset, bytes, CH__OS_RX)
		       : ch__os_revive_from(v->exec, v->exec + offset, bytes);
}

/* A mapping over the reservation loses the DONTFORK of the reservation; a duplicate inherits it. */
static bool keep_from_children(struct ch__views *v, size_t offset, size_t bytes)
{
	if (v->backend != CH_BACKEND_MEMFD || (v->sync_steps & CH__SYNC_VALGRIND) ||
	    ch__os_advise(v->exec + offset, bytes, CH__OS_DONT_FORK))
		return true;
	v->is_part_inherited = true;
	return false;
}

bool ch__views_land_room(struct ch__views *v, size_t offset, size_t bytes, bool *runs)
{
	*runs = false;
	uint8_t *born = ch__os_reserve(bytes, v->guard_bytes, 0, ch__os_anywhere);
	if (!born)
		return false;
	if (share(v, offset, bytes, born) && ch__views_populate(v, offset, bytes, born)) {
		memcpy(born, v->write + offset, bytes);
		if (ch__os_move_over(born, bytes, v->write + offset)) {
			*runs = map_back(v, offset, bytes);
			return *runs && keep_from_children(v, offset, bytes) &&
			       ch__views_sync(v, v->exec + offset, bytes);
		}
	}
	ch__os_unreserve(born, bytes);
	return false;
}

bool ch__views_take_back(struct ch__views *v, size_t offset, size_t bytes)
{
	if (ch__views_are_private(v))
		return ch__private_take_back(v, offset, bytes);
	return map_back(v, offset, bytes) && keep_from_children(v, offset, bytes);
}

bool ch__views_copy(const struct ch__views *v, struct ch__views *copy)
{
	*copy = (struct ch__views){.backend = v->backend, .file.fd = -1, .bytes = v->bytes};
	copy->write = ch__os_reserve(v->bytes, v->guard_bytes, 0, ch__os_anywhere);
	copy->has_write = copy->write != NULL;
	if (copy->has_write && v->backend == CH_BACKEND_DUAL) {
		copy->exec = ch__os_reserve(v->bytes, v->guard_bytes, 0, ch__os_anywhere);
		copy->has_exec = copy->exec != NULL;
	}
	return copy->has_write && (copy->has_exec || v->backend == CH_BACKEND_MEMFD) &&
	       map_shared(copy);
}

bool ch__views_reserve_again(struct ch__views *v)
{
	size_t whole = v->bytes + 2 * v->guard_bytes;
	/* Some children have the views all the same, and give them up first. Valgrind would not
	 * notice that the views are gone: it would believe its table of mappings, and die at a look
	 * at code. Emulators that need pages mapped again do not pass DONTFORK on. */
	if ((v->sync_steps & (CH__SYNC_VALGRIND | CH__SYNC_REMAP)) || v->is_part_inherited)
		leave(v);
	v->has_exec = ch__os_reserve_at(v->exec - v->guard_bytes, whole);
	v->has_write = ch__os_reserve_at(v->write - v->guard_bytes, whole);
	return v->has_exec && v->has_write;
}

bool ch__views_adopt(struct ch__views *v, struct ch__views *copy)
{
	if (v->backend == CH_BACKEND_MEMFD) {
		if (!ch__os_map_fd(&copy->file, 0, v->exec, v->bytes, CH__OS_RX))
			return false;
		ch__os_let_go(&v->file); /* the parent's memory */
		v->file = copy->file;
		copy->file.fd = -1;
	} else {
		ch__os_announce_code(v->exec, v->bytes); /* its names are in a file of its own */
		if (!ch__os_move_over(copy->exec, v->bytes, v->exec))
			return false;
		copy->has_exec = false;
	}
	copy->has_write = !ch__os_move_over(copy->write, v->bytes, v->write);
	return !copy->has_write;
}

void ch__views_forget(struct ch__views *v)
{
	/* A fresh reservation leaves no part of the range accessible, as a failed call could. */
	leave(v);
	v->has_code = false;
	ch__views_reserve_again(v);
	/* A reservation without memory is not kept from children. */
	v->is_part_inherited = true;
}
