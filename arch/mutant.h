/* SPDX-License-Identifier: MIT
 * mutant.h: the switches that break the library on purpose, one place each (CH_MUTANT in
 * arch/base.h). They exist in test builds only, where tests/mutant.c sets the one that
 * CODEHEAP_MUTANT names; tests/mutants.sh names the test that each one makes fail. The RAW ones
 * are read by tests only: they break code that a test emits and patches without the library. */
#ifndef CH_ARCH_MUTANT_H
#define CH_ARCH_MUTANT_H

#define CH__MUTANT_LIST(X)                                                                 \
	/* stubs, requests, fork */                                                        \
	X(SPAWN_FORKS)                                                                     \
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
