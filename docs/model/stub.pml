/* SPDX-License-Identifier: MIT
 * stub.pml: what happens when two mutators take the stub of one branch, as a spin model: the return
 * address that holds the source, the callback that may collect and invalidate whatever it likes,
 * link, and the way back (I5, I7, I14). Core syncs and the quarantine's two waits are
 * collection.pml's: what dies here has its bytes trapped and its place used again at once after the
 * sweep, which is the hardest for who goes on.
 *
 * Source has a branch to Target. The record of Target and its place are used again for the next
 * Target. A thread that is in a block, has its address in the frame of the trampoline, or will
 * return into its stub, holds it by a word on its stack. */

#ifndef STEPS
#define STEPS 2
#endif
#ifndef CYCLES
#define CYCLES 2
#endif
#define ASKED_AT_MOST 2 /* 8 in stub.c: one more than once is what counts */

#define FREE 0
#define LIVE 2
#define NOTENTRANT 3

/* Source */
byte s_st = LIVE, s_mk = 1;
bool s_bytes = 1, s_entry = 1; /* it is an owner's entry */
bool s_swept;
/* Target */
byte st = LIVE, gen = 1, mk = 1, code = 1; /* code: generation whose bytes are there; 0 = traps */
bool newborn = 1;
/* the branch */
bool linked, jump; /* record, bytes */
/* threads: words on their stacks */
bool in_source[2]; /* pc, or return address into the stub */
byte pc[2];        /* generation of the Target that a thread is in or will jump to; 0 = none */
byte answer[2];    /* the handle that branch_hit returned: no root */
/* cycle */
byte cur = 1, completed = 1;
bool freeze, inside[2], heap_lock, stopped;

#define alive(m) (m >= completed)
#define LOCK atomic { !heap_lock -> heap_lock = 1 }
#define UNLOCK heap_lock = 0
#define ENTER(t) atomic { !freeze -> inside[t] = 1 } /* ch__region_enter */
#define LEAVE(t) inside[t] = 0                       /* ch__region_leave */

#ifdef NO_ALIVE_TEST
#define ENTERABLE (st == LIVE)
#else
#define ENTERABLE (st == LIVE && alive(mk))
#endif

/* The thread executes Target, and returns from it. */
inline run_target(t) {
	atomic { assert(code == pc[t]) };
	atomic { assert(code == pc[t]); pc[t] = 0 }
}

/* ch__invalidate_block: what leads to it is unlinked first */
inline invalidate_target(t) {
	LOCK; ENTER(t);
	if
	:: st == LIVE && alive(mk) -> atomic { jump = 0; linked = 0; st = NOTENTRANT; newborn = 0 }
	:: else
	fi;
	LEAVE(t); UNLOCK
}
inline invalidate_source(t) {
	LOCK; ENTER(t);
	if
	:: s_st == LIVE && alive(s_mk) -> atomic { s_entry = 0; jump = 0; linked = 0; s_st = NOTENTRANT }
	:: else
	fi;
	LEAVE(t); UNLOCK
}
/* ch_block_open, ch_block_commit */
inline compile_target(t) {
	ENTER(t);
	if
	:: atomic { st == FREE -> gen = gen + 1; mk = cur; code = gen; newborn = 1; st = LIVE }
	:: else
	fi;
	LEAVE(t)
}

/* ops.branch_hit: under no lock, for any time; the handle may be old when it returns. */
inline branch_hit(t) {
	if
	:: answer[t] = gen
	:: compile_target(t); answer[t] = gen
	:: answer[t] = gen; invalidate_target(t)
	:: answer[t] = gen; invalidate_source(t)
	fi
}
/* ch_branch_link, link_locked: both ends are tested in the region in which the branch is written. */
inline branch_link(t) {
	LOCK; ENTER(t);
	if
#ifdef LINK_STALE
	:: s_st == LIVE && alive(s_mk) && st == LIVE ->
#else
	:: s_st == LIVE && alive(s_mk) && gen == answer[t] && st == LIVE && alive(mk) ->
#endif
		assert(s_bytes);
		atomic { linked = 1; jump = 1; newborn = 0 }
	:: else
	fi;
	LEAVE(t); UNLOCK
}
/* entry_of: in its region the address comes into the trampoline's frame, where a stop finds it. */
inline entry_of(t) {
#ifdef ENTRY_LATE
	bool_entry = (gen == answer[t] && ENTERABLE);
	if :: bool_entry -> pc[t] = answer[t] :: else fi
#else
	ENTER(t);
	if
	:: gen == answer[t] && ENTERABLE -> pc[t] = answer[t]
	:: else
	fi;
	LEAVE(t)
#endif
}

/* stub_hit: the return address on the stack is the root that holds Source. */
inline stub_hit(t) {
	asked = 0;
	ENTER(t);                                /* find_source; the stub's bytes were read before */
	assert(s_bytes);
	if
#ifdef LOSER_TRUSTS
	:: linked -> pc[t] = gen                 /* the loser of a race */
#else
	:: linked && ENTERABLE -> pc[t] = gen
#endif
	:: else
	fi;
	LEAVE(t);
	do
	:: pc[t] == 0 && asked < ASKED_AT_MOST ->
		asked++;
		branch_hit(t);
		branch_link(t);
		entry_of(t)
	:: else -> break                         /* none: regs->pc is the fallback, or what it was set to */
	od;
	answer[t] = 0;
	/* ch__arch_stub_entry returns through its own slot: Source's bytes are still looked at. */
	atomic { assert(s_bytes); in_source[t] = 0 };
	if
	:: pc[t] != 0 -> run_target(t)
	:: else
	fi
}

/* Source is entered through the cell, and takes its branch. */
inline run_source(t) {
	atomic { if :: s_entry -> in_source[t] = 1 :: else fi };
	if
	:: in_source[t] ->
		atomic {
			assert(s_bytes);
			if :: jump -> pc[t] = gen; in_source[t] = 0 :: else fi
		};
		if
		:: pc[t] != 0 -> run_target(t)
		:: else -> stub_hit(t)
		fi
	:: else
	fi
}

active proctype M1() provided (!stopped)
{
	byte n, asked;
	bool bool_entry;
	do
	:: n < STEPS -> n++; run_source(0)
	:: n < STEPS -> n++; compile_target(0)
	:: n >= STEPS -> break
	od
}

active proctype M2() provided (!stopped)
{
	byte n, asked;
	bool bool_entry;
	do
	:: n < STEPS -> n++; run_source(1)
	:: n < STEPS -> n++; invalidate_target(1)
	:: n < STEPS -> n++; invalidate_source(1)
	:: n >= STEPS -> break
	od
}

inline mark_all() {
	atomic {                                 /* ch__mark_roots, mark_owners, ch__scan_stacks, trace */
		cur++;
#ifndef STUB_RETURN_NO_ROOT
		if :: (in_source[0] || in_source[1]) && alive(s_mk) -> s_mk = cur :: else fi;
#endif
		if :: s_entry && alive(s_mk) -> s_mk = cur :: else fi;
		if :: newborn && st == LIVE && alive(mk) -> mk = cur :: else fi;
		if :: linked && s_mk == cur && alive(mk) -> mk = cur :: else fi;
#ifndef FRAME_NOT_SCANNED
		if :: (pc[0] == gen || pc[1] == gen) && alive(mk) -> mk = cur :: else fi
#endif
	}
}

/* ch__sweep_step: kill, fill_with_traps, and the place at once */
inline sweep() {
	LOCK;
	atomic {
		if
		:: (st == LIVE || st == NOTENTRANT) && !alive(mk) ->
			linked = 0; jump = 0; gen = gen + 1; code = 0; st = FREE
		:: else
		fi;
		if
		:: !s_swept && !alive(s_mk) -> s_swept = 1; linked = 0; jump = 0; s_bytes = 0; s_st = FREE
		:: else
		fi
	};
	UNLOCK
}

active proctype Collector()
{
	byte n;
	do
	:: n < CYCLES ->
		n++;
		freeze = 1;                      /* ch__freeze */
		(!inside[0] && !inside[1]);
		stopped = 1;                     /* ch__world_stop, by a signal */
		mark_all();
		atomic { completed = cur; newborn = 0 }; /* ch__cycle_complete; infancy ends early */
		stopped = 0;                     /* ch__world_resume */
		freeze = 0;                      /* ch__unfreeze */
		if
		:: sweep()
		:: skip
		fi
	:: else -> break
	od
}
