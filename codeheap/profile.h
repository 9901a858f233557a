/* SPDX-License-Identifier: MIT
 * profile.h: the profile of a heap: stacks of its threads, sampled, as a flame graph or as lines
 * for other tools to draw. Code that was freed before the end keeps its name. All else of a heap is
 * in codeheap.h. Link with libcodeheap-profile, and then with the library of the heap: libcodeheap,
 * libcodeheap-dl or libcodeheap-bdw, of the same release.
 *
 *     ok(ch_profile_start(heap, 250, NULL));
 *     run();
 *     ok(ch_profile_stop(heap, NULL));
 *     ok(ch_profile_write(heap, "run.svg", NULL)); */
#ifndef CODEHEAP_PROFILE_H
#define CODEHEAP_PROFILE_H

#include <codeheap/codeheap.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ch_profile_options {
	size_t size;        /* sizeof(struct ch_profile_options) */
	bool by_wall_clock; /* samples waiting threads, too; false = by CPU time */
	size_t memory_bytes; /* for samples and stacks; 0 = 64 MiB, least about 40 KiB */
	/* NULL, or the VM's walk of the thread's stack [sp, end), in a signal handler. Returns how
	 * many return addresses there are, innermost first; only those in the heap count. 0: walk
	 * by frame pointers. max: the sample counts as cut. */
	size_t (*frames)(void *user, const void *pc, const void *sp, const void *end,
			 const void **return_addresses, size_t max);
	void *user;
};

/* ch_profile_start: sample the stacks of attached threads, later ones included. Code of other heaps
 * of such a thread has its names, too.
 * in    rate     samples a second and thread, 1 to 20,000; by CPU time at most the kernel's ticks
 *       options  NULL = by CPU time, 64 MiB, frame pointers
 * ret   CH_OK | CH_E_ARG | CH_E_STATE a profile runs | CH_E_MEMORY | CH_E_OS errno kept; ELIBBAD:
 *       libcodeheap is of another release
 * lock  heaps, registry, heap
 * safe  any thread
 * cost  a thread of the library's and a timer for each sampled thread, until the stop
 * note  the library's handler of SIGPROF stays from here on, and passes on other SIGPROFs; a start
 *       installs the handler anew where the program took it away. A handler of the program's that
 *       comes later passes on the library's SIGPROFs: if not, there are no samples. The samples of
 *       the last profile are gone */
CH_API CH_CHECKED enum ch_status ch_profile_start(struct ch_heap *heap, unsigned rate,
						  const struct ch_profile_options *options);

struct ch_profile_counts {
	size_t size; /* in: sizeof(struct ch_profile_counts) */
	uint64_t samples;
	uint64_t dropped; /* samples that had no room */
	uint64_t cut;     /* samples of more than 512 frames: the innermost 512 are kept */
	uint64_t threads;
	uint64_t refused; /* threads that came later, and had no timer or no memory */
};

/* ch_profile_stop: end sampling; the samples stay until the next start.
 * out   counts  counts->size is set by the caller; may be NULL
 * ret   CH_OK | CH_E_STATE no profile runs | CH_E_ARG | CH_E_OS (ENOENT) the profile ended, but
 *       SIGPROF has no handler any more: samples are missing
 * lock  heaps, registry, heap
 * safe  any thread
 * cost  O(owners of the heap, and samples) */
CH_API CH_CHECKED enum ch_status ch_profile_stop(struct ch_heap *heap,
						 struct ch_profile_counts *counts);

/* FOLDED: lines `outer;inner COUNT`, else an SVG. ICICLE: the picture grows down. REVERSED: stacks
 * begin with the innermost function. */
enum ch_profile_flags { CH_PROFILE_FOLDED = 1, CH_PROFILE_ICICLE = 2, CH_PROFILE_REVERSED = 4 };

struct ch_profile_view {
	size_t size;       /* sizeof(struct ch_profile_view) */
	unsigned flags;    /* set of enum ch_profile_flags */
	const char *title; /* NULL = none */
	/* Native functions that interpret, beside owners' fallbacks; a NULL ends them. Or NULL. */
	const char *const *interpreter;
};

/* ch_profile_write: write the samples so far, also while a profile runs.
 * in    path  a regular file keeps its bytes until the new file is whole; others are written to
 *       view  NULL = an SVG without a title
 * ret   CH_OK | CH_E_STATE no profile (also in a child of fork) | CH_E_ARG | CH_E_MEMORY | CH_E_OS
 * lock  heaps, heap; the dynamic linker's
 * safe  any thread with 64 KiB of stack; parked while the file is written
 * cost  O(samples, and symbols of the objects) */
CH_API CH_CHECKED enum ch_status ch_profile_write(struct ch_heap *heap, const char *path,
						  const struct ch_profile_view *view);

/* ch_stats_file_enable: heaps made from here on write the statistics file of ch_config.stats_file
 * or CODEHEAP_STATS. Loading the library does the same: the call is for linkers that leave out a
 * library when the program names none of its functions.
 * ret   CH_OK also when enabled before | CH_E_OS libcodeheap is of another release (ELIBBAD)
 * safe  any thread */
CH_API CH_CHECKED enum ch_status ch_stats_file_enable(void);

#ifdef __cplusplus
}
#endif
#endif
