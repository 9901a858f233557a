/* SPDX-License-Identifier: MIT
 * mutant.h: the switches that break the library on purpose, one place each (CH_MUTANT in
 * arch/base.h). They exist in test builds only, where tests/mutant.c sets the one that
 * CODEHEAP_MUTANT names; tests/mutants.sh names the test that each one makes fail. The RAW ones
 * are read by tests only: they break code that a test emits and patches without the library. */
#ifndef CH_ARCH_MUTANT_H
#define CH_ARCH_MUTANT_H

#define CH__MUTANT_LIST(X)                                                                 \
	/* roots */                                                                        \
	X(SKIP_STACKS) X(SCAN_BELOW_SP) X(SKIP_REGISTERS) X(SKIP_FIBERS)                   \
	X(NO_FIBER_SLACK) X(NO_RED_ZONE) X(ALTERNATE_STACK_ONLY)                           \
	X(SIGNAL_STACK_SKIPPED) X(BOUNDS_ASKED_FIRST) X(VECTORS_SKIPPED)                   \
	X(BOUNDS_KEPT) X(UNKNOWN_STACK_COUNTS) X(GUARD_READ) X(GUARD_BELOW_READ)           \
	X(ENDED_THREAD_READ)                                                               \
	X(STUB_RETURN_NO_ROOT) X(RETURN_WITHOUT_MINUS_ONE)                                 \
	X(START_NO_ROOT) X(OPEN_NO_ROOT) X(NEWBORN_NO_ROOT) X(NEWBORN_FOREVER)             \
	X(IMMORTAL_NO_ROOT) X(ROOTS_NOT_ASKED) X(RELEASED_IS_ROOT)                         \
	/* edges */                                                                        \
	X(BRANCH_NOT_TRACED) X(EDGE_NOT_TRACED) X(OWNER_EDGE_NOT_TRACED)                   \
	X(EXIT_EDGE_NOT_TRACED) X(REF_NOT_REPORTED) X(OPEN_NOT_TRACED)                     \
	X(NOTENTRANT_NOT_TRACED) X(OVERFLOW_LOST) X(MARK_DIRTIES_CODE)                     \
	/* the end of a cycle */                                                           \
	X(NO_REGION) X(RESURRECT) X(NO_ALIVE_TEST) X(ABANDONED_COUNTS) X(EPOCH_EARLY)      \
	X(NO_SENTINEL)                                                                     \
	/* withdrawal */                                                                   \
	X(NO_POISON) X(NO_NAME_WITHDRAWAL) X(NO_UNWIND_WITHDRAWAL) X(NO_START_CLEAR)       \
	X(LATE_SINK_MISSES)                                                                \
	X(NO_TOMBSTONE) X(NO_QUARANTINE) X(DEAD_IN_EDGES_KEPT) X(ASSUMPTION_NOT_LEFT)      \
	X(STALE_HANDLE) X(NOTICE_TWICE) X(NOTICE_LOST)                                     \
	X(VM_NOT_USED_AGAIN) X(VM_USED_TOO_EARLY) X(NAMES_HASHED_OPENLY)                   \
	X(TOO_MANY_HEAPS_UNSAID) X(WORN_AT_ONCE) X(WORN_LOST) X(MARKS_GROW_OLD)            \
	X(TOMB_NUMBER_WRAPS) X(SYNCS_OF_32_BITS)                                           \
	X(KEPT_NAMES_DROPPED) X(KEPT_PLACE_REUSED) X(KEPT_NAMES_PAST_NEED)                 \
	X(OWN_TABLE_KEPT) X(ZONE_IGNORED)                                                  \
	X(SLOT_KEPT_LIVE)                                                                  \
	X(TOMB_REASON_WRONG) X(TOMB_TORN) X(TRAP_OFF_BY_ONE)                               \
	X(NAME_CUT_ANYWHERE) X(READ_NOT_PARKED) X(SENT_IS_DESCRIBED)                       \
	X(STACK_NOT_PROBED) X(CAUSE_LOST) X(OLDEST_TOMBSTONE_FIRST)                        \
	X(HEAP_GOES_UNDER_HANDLER) X(WRONG_ASSUMPTION_BLAMED) X(OPEN_NOT_TOLD)             \
	X(HEAP_GOES_AFTER_A_SECOND) X(LEFT_HEAP_STAYS)                                     \
	X(HEADER_NOT_TOLD) X(TOMB_KEEPS_LONG_NAMES) X(TEXT_CUT_ANYWHERE)                   \
	X(LOST_TOMBSTONE_NOT_TOLD) X(LAST_EPITAPH_LOST)                                    \
	X(FOREIGN_TRAP_CLAIMED)                                                            \
	/* trampolines */                                                                  \
	X(LITERAL_NOT_FILLED)                                                              \
	/* invalidation */                                                                 \
	X(NO_CELL_RESET)                                                                   \
	X(COMMIT_BROKEN_ASSUMPTION)                                                        \
	X(COMMIT_DEAD_OWNER) X(COMMIT_BEFORE_ITS_EDGE) X(ANY_SITE) X(SITE_WRITES_MORE)     \
	/* sites */                                                                        \
	X(POINT_ANY_BYTES) X(EXIT_TOO_FAR)                                                 \
	X(SITE_OVERLAPS) X(SITE_OVER_TARGET) X(EXIT_INTO_SITE) X(ENTRY_INTO_SITE)          \
	X(SITE_UNUSED) X(SITE_OVERWRITTEN) X(STUB_LEADS_ON)                                \
	/* membarrier refused */                                                           \
	X(NO_REGION_FENCE) X(LATE_REFUSAL_IGNORED) X(SYNC_ASSUMED) X(NO_SERIALIZE)         \
	/* stubs, requests, fork */                                                        \
	X(STUB_LOSER_ASKS) X(STUB_ASKS_ONCE) X(LOSE_REQUEST) X(SPACE_NOT_TOLD)             \
	X(SPACE_SEEN_LATEST) X(NEED_NOT_POLLED) X(FULL_ALWAYS_ASKS)                        \
	X(REQUEST_CLEARED_LATE) X(RETURN_NOT_COUNTED)                                      \
	X(SPACE_COUNTED_EARLY)                                                             \
	X(HOLES_PASSED_OVER) X(CODELESS_FORGETS_NOTHING)                                   \
	X(CHILD_KEEPS_INSIDE)                                                              \
	X(CHILD_MISCOUNTS) X(CHILD_LEAKS_PAGES) X(DEAD_SPAN_LOST) X(SPAWN_FORKS)           \
	X(NO_FORK_COPY) X(SPAN_ROUNDED_DOWN) X(ATTACH_TWICE)                               \
	/* refusals */                                                                     \
	X(MEMORY_NOT_CHECKED) X(LEAK_ON_FAILURE)                                           \
	X(NOT_HALVED) X(HALVED_AWAY) X(ROOM_NOT_LEFT)                                      \
	X(COLLECTS_ONCE)                                                                   \
	/* in place, data */                                                               \
	X(NOT_TAKEN_OVER) X(DATA_TOLD)                                                     \
	X(DATA_GOES_EARLY) X(ANY_KIND)                                                     \
	X(EACH_TRY_RETIRES)                                                                \
	/* Valgrind */                                                                     \
	X(VALGRIND_UNKNOWN) X(VALGRIND_NO_FREE)                                            \
	X(VALGRIND_SCAN_JUDGED)                                                            \
	/* teardown */                                                                     \
	X(DESTROY_WHILE_INSIDE) X(EXIT_FREES_CODE) X(POOL_FREED_FIRST)                     \
	/* the world */                                                                    \
	X(COLLECTS_UNPARKED) X(SCAN_UNMAPPED) X(FIBER_LEAVES_A_SCAN)                       \
	X(UNPARKED_ONE_BY_ONE) X(STOPPED_IN_AN_UNPARK) X(FORK_HEAP_BY_HEAP)                \
	X(VISIT_FREEZES) X(REGION_AWAITED_AWAKE) X(GIVEN_UP_STAYS_FROZEN)                  \
	X(VM_STOPS_UNDER_LOCKS) X(CALLS_WITHIN_A_CYCLE) X(CYCLE_AWAITED_FOR_EVER)          \
	X(STOP_UNTAGGED)                                                                   \
	X(DEAD_FIBER_SCANNED) X(WAITS_UNPARKED) X(WAITS_FOR_EVER) X(WAITS_NOT_AT_ALL)      \
	X(REFUSED_NOT_UNDONE) X(ABANDONED_STAYS_FROZEN)                                    \
	X(STRANGER_MISLED) X(STRANGER_TAKES_A_STUB) X(STUB_KEEPS_A_LOCK)                   \
	X(OLD_THREAD_POLLS) X(OLD_THREAD_LINKS) X(OLD_THREAD_OPENS) X(STRANGER_TOLD)       \
	X(EDGE_UNLOCKED) X(EDGED_GOES) X(PLACE_LEFT_LATE) X(HEAPS_UNLOCKED)                \
	X(SYNC_UNDER_WAY_COUNTS) X(SERVED_BY_ANOTHER)                                      \
	X(HOLDS_ANYBODY) X(RELEASES_ANYBODY) X(RELEASE_HOLDS_NOTHING) X(OPEN_OF_ANYBODY)   \
	X(CHILD_LEAVES_RELEASES) X(GENERATIONS_BEGIN_AGAIN)                                \
	X(UNLINKED_IS_FORGOTTEN) X(COMMIT_NOT_AWAITED)                                     \
	X(FREED_PAGE_KEPT)                                                                 \
	/* states */                                                                       \
	X(DEATH_SKIPPED)                                                                   \
	X(FLAG_ENDS_ENTRY) X(NESTING_UNSEEN)                                               \
	X(NAME_TAKES_RECORDS) X(NAME_FREED_IN_REGION)                                      \
	X(HOOK_UNTOLD) X(EVENT_LOST) X(YOUNG_FORGOTTEN) X(YOUNG_LOSS_UNSEEN)               \
	X(BROKEN_UNSAID)                                                                   \
	/* left out before code is reached, which the ledger sees */                       \
	X(NO_SYNC_COMMIT) X(NO_SYNC_SITE) X(NO_SYNC_STUB)                                  \
	X(NO_SYNC_TRAMPOLINE) X(NO_SYNC_VENEER)                                            \
	X(NO_SYNC_REF)                                                                     \
	/* other machines */                                                               \
	X(NO_STRIP) X(RETURN_REWRITTEN) X(SHADOW_ENTRY_KEPT)                               \
	X(SMALL_PAGE_KEPT)                                                                 \
	X(FLIP_FOR_THREADS)                                                                \
	X(WISH_REFUSED_SILENTLY) X(LARGER_POOL_FIRST) X(NO_MEMORY_IS_FULL)                 \
	X(TABLES_ARE_ROOTS)                                                                \
	X(CHILD_BY_NUMBER)                                                                 \
	X(TIME_OF_CYCLES_UNSEEN) X(DRIVER_NOT_WOKEN)                                       \
	/* threads of the library's own, the statistics file */                            \
	X(STATS_NEVER_ODD)                                                                 \
	X(CHILD_KEEPS_STATS_FILE) X(STATS_PAGE_HALF_MAPPED)                                \
	/* files of sinks and profiles */                                                  \
	X(PROFILE_FORGETS_MODE) X(NAME_OBEYED)                                             \
	/* the profile */                                                                  \
	X(SAMPLE_WITHOUT_GENERATION)                                                       \
	X(OVERRUNS_IGNORED) X(FOREIGN_PROF_SWALLOWED) X(DEAD_UNNAMED)                      \
	X(CHILD_KEEPS_PROFILE) X(PROFILE_IN_PLACE) X(LATE_THREAD_UNSEEN)                   \
	X(HANDLER_LOCKS)                                                                   \
	X(KNOWN_CODE_TRUSTED)                                                              \
	/* code of tests */                                                                \
	X(RAW_TWO_NOPS) X(RAW_BYTEWISE) X(RAW_STRADDLE)

enum ch__mutant {
#define X(name) CH__MUTANT_##name,
	CH__MUTANT_LIST(X)
#undef X
	CH__MUTANTS
};
_Static_assert(CH__MUTANTS <= 512, "one bit each in ch__mutants");

#endif
