/* SPDX-License-Identifier: MIT
 * fork.pml: fork() with two mutators, as a spin model (I16, P9). M1 forks, M2 opens, commits, links
 * and lets die meanwhile, so that the fork finds it anywhere: in a region that it is about to give
 * up, between two regions under the heap lock, with a half-built block. Child is the one thread that
 * the other process has. It has no marking by roots (collection.pml) and no lookup (lookup.pml).
 *
 * Everything but code is private memory: fork copies it as it is at that moment, side 1 is the
 * child's. Code is shared memory: object 0 is the parent's, object 1 the copy; view[side] says which
 * one a process has mapped. Slot 0 holds block D, slot 1 is free. A link is a record and bytes: they
 * change one after the other. */

#ifndef STEPS
#define STEPS 3
#endif

#define FREE 0
#define OPEN 1
#define LIVE 2
#define DEAD 3
#define TRAPS 0
#define HALF 1
#define WHOLE 2
#define NOTHING 2 /* of view[]: no access, a thread that looks there faults */

/* private, by side */
byte st[4] = {LIVE, FREE, FREE, FREE}; /* [2 * side + slot] */
bool queued[4];                      /* DEAD: on the quarantine, which goes on with it */
bool linked[2];                      /* record of D's branch */
bool freeze[2], heap_lock[2];
bool inside[4], parked[4];           /* [2 * side + thread]; thread 0 forks */
bool attached[4] = {1, 1, 1, 1};
/* shared */
byte code[4] = {WHOLE, TRAPS, TRAPS, TRAPS}; /* [2 * object + slot] */
bool jump[2];      /* bytes of D's branch, by object */
byte view[2];      /* object that the process has mapped */
bool has_copy, forked;

#define AT(side, slot) (2 * (side) + (slot))

/* ch__lock_parking, ch__lock_release: waiting is a park (ch__lock_wait_parked) */
#define LOCK(side, t) atomic { parked[AT(side, t)] = 1; !heap_lock[side] -> heap_lock[side] = 1; parked[AT(side, t)] = 0 }
#define UNLOCK(side) heap_lock[side] = 0

/* ch__region_enter, ch__region_wait: between the store and the look at freeze the region is half
 * open, and a fork may come. */
inline enter(side, t) {
	do
	:: inside[AT(side, t)] = 1;
	   if
	   :: !freeze[side] -> break
	   :: else -> inside[AT(side, t)] = 0; parked[AT(side, t)] = 1; !freeze[side]; parked[AT(side, t)] = 0
	   fi
	od
}
#define LEAVE(side, t) inside[AT(side, t)] = 0 /* ch__region_leave */

/* ch__block_open, the VM's emitter, ch_block_commit */
inline open_and_emit(side, t) {
	enter(side, t);
	if
	:: atomic { st[AT(side, 1)] == FREE -> st[AT(side, 1)] = OPEN }; LEAVE(side, t);
	   code[AT(view[side], 1)] = HALF;
	   code[AT(view[side], 1)] = WHOLE;
	   enter(side, t); st[AT(side, 1)] = LIVE; LEAVE(side, t)
	:: else -> LEAVE(side, t)
	fi
}
/* link_locked, unlink_branch */
inline link_or_unlink(side, t) {
	LOCK(side, t);
	enter(side, t);
	if
	:: linked[side] -> linked[side] = 0; jump[view[side]] = 0
	:: !linked[side] && st[AT(side, 1)] == LIVE -> linked[side] = 1; jump[view[side]] = 1
	:: else
	fi;
	LEAVE(side, t);
	UNLOCK(side)
}
/* kill in a region; ch__pool_poison, quarantine and ch__quarantine_advance after it, under heap */
inline let_die(side, t) {
	LOCK(side, t);
	enter(side, t);
	if
	:: st[AT(side, 1)] == LIVE ->
		if :: linked[side] -> linked[side] = 0; jump[view[side]] = 0 :: else fi;
		st[AT(side, 1)] = DEAD;
		LEAVE(side, t);
		code[AT(view[side], 1)] = TRAPS;
		queued[AT(side, 1)] = 1
	:: else -> LEAVE(side, t)
	fi;
	UNLOCK(side)
}
/* ch__quarantine_advance, free_places, ch__block_recycle */
inline reuse(side, t) {
	LOCK(side, t);
	if
	:: queued[AT(side, 1)] -> atomic { queued[AT(side, 1)] = 0; st[AT(side, 1)] = FREE }
	:: else
	fi;
	UNLOCK(side)
}
/* A thread runs D, which perhaps jumps to the other block. Bytes that the process did not write
 * itself are what this must not find. */
inline run_code(side) {
	atomic {
		if
		:: view[side] == NOTHING -> skip /* it faults */
		:: else ->
			assert(code[AT(view[side], 0)] == WHOLE);
			if
			:: jump[view[side]] -> assert(code[AT(view[side], 1)] == WHOLE)
			:: else
			fi
		fi
	}
}
/* collect_builtin: ch__freeze waits for every region, ch__world_stop for every attached thread. */
inline collect(side, t) {
	LOCK(side, t);
	freeze[side] = 1;
	(!inside[AT(side, 0)] && !inside[AT(side, 1)]);
	(t == 1 || !attached[AT(side, 1)] || parked[AT(side, 1)]);
	(t == 0 || !attached[AT(side, 0)] || parked[AT(side, 0)]);
	/* ch_heap_check: records and bytes agree; what is LIVE is whole. */
	assert(view[side] == NOTHING || linked[side] == jump[view[side]]);
	assert(view[side] == NOTHING || st[AT(side, 1)] != LIVE || code[AT(view[side], 1)] == WHOLE);
	assert(!linked[side] || st[AT(side, 1)] == LIVE);
	freeze[side] = 0;
	UNLOCK(side)
}

/* --- the handlers of fork --- */

/* copy_pool, copy_bytes: page by page */
inline copy_code() {
	code[AT(1, 0)] = code[AT(0, 0)];
	code[AT(1, 1)] = code[AT(0, 1)];
	jump[1] = jump[0];
	has_copy = 1
}
/* prepare in fork.c, ch__pool_fork_prepare */
inline prepare() {
#ifndef NO_LOCKS
	LOCK(0, 0);
#endif
#ifndef NO_FREEZE
	freeze[0] = 1;
	(!inside[AT(0, 0)] && !inside[AT(0, 1)]);
#endif
#ifndef COPY_IN_CHILD
	if
	:: copy_code()
	:: skip /* no memory for it */
	fi
#endif
}
/* The system: private memory is copied, and the one thread that called goes on in both. */
inline copy_private() {
	d_step {
		st[2] = st[0]; st[3] = st[1]; queued[2] = queued[0]; queued[3] = queued[1];
		linked[1] = linked[0]; freeze[1] = freeze[0]; heap_lock[1] = heap_lock[0];
		inside[2] = inside[0]; inside[3] = inside[1]; parked[2] = parked[0]; parked[3] = parked[1];
		attached[2] = attached[0]; attached[3] = attached[1];
		/* MADV_DONTFORK: ch__views_exclude */
#ifdef VIEWS_INHERITED
		view[1] = 0;
#else
		view[1] = NOTHING;
#endif
		forked = 1
	}
}
/* parent, unlock_all */
inline parent() {
	freeze[0] = 0;
	UNLOCK(0)
}
/* wake_heap, ch__pool_fork_child, lose_code, drop_other_threads */
inline child() {
#ifdef COPY_IN_CHILD
	copy_code();
#endif
	if
	:: has_copy -> view[1] = 1
	:: else
	fi;
#ifndef FREEZE_KEPT
	freeze[1] = 0;
#endif
#ifndef CODE_KEPT
	/* ch__blocks_kill: the places of a child without code stay in use. */
	if
	:: view[1] == NOTHING ->
		enter(1, 0);
		linked[1] = 0;
		st[AT(1, 0)] = DEAD;
		if :: st[AT(1, 1)] == OPEN || st[AT(1, 1)] == LIVE -> st[AT(1, 1)] = DEAD :: else fi;
		LEAVE(1, 0)
	:: else
	fi;
#endif
#ifndef INSIDE_KEPT
	inside[AT(1, 1)] = 0;
#endif
#ifndef THREADS_KEPT
	attached[AT(1, 1)] = 0;
#endif
#ifndef OPEN_KEPT
	if
	:: st[AT(1, 1)] == OPEN && view[1] != NOTHING ->
		atomic { st[AT(1, 1)] = DEAD; code[AT(view[1], 1)] = TRAPS; queued[AT(1, 1)] = 1 }
	:: else
	fi;
#endif
#ifndef LOCK_KEPT
	UNLOCK(1);
#endif
	/* Nobody in this process is there to go on with it. */
	assert(st[AT(1, 1)] != OPEN);
	assert(view[1] == NOTHING || st[AT(1, 1)] != DEAD || queued[AT(1, 1)]);
	/* No cell or branch leads to code that is not there. */
	assert(view[1] != NOTHING || (st[AT(1, 0)] != LIVE && st[AT(1, 1)] != LIVE && !linked[1]))
}

active proctype M1()
{
	run_code(0);
	prepare();
	copy_private();
	run Child();
	parent();
	collect(0, 0);
	run_code(0);
	parked[AT(0, 0)] = 1
}

active proctype M2()
{
	byte n;
	do
	:: n < STEPS -> n++; open_and_emit(0, 1)
	:: n < STEPS -> n++; link_or_unlink(0, 1)
	:: n < STEPS -> n++; let_die(0, 1)
	:: n < STEPS -> n++; reuse(0, 1)
	:: n >= STEPS -> break
	od;
	run_code(0);
	parked[AT(0, 1)] = 1
}

/* The child's thread is a copy of M1. */
proctype Child()
{
	byte n;
	child();
	/* A process without code goes on, and faults where it looks for some. */
	if
	:: view[1] == NOTHING -> goto last
	:: else
	fi;
	do
	:: n < STEPS -> n++; open_and_emit(1, 0)
	:: n < STEPS -> n++; link_or_unlink(1, 0)
	:: n < STEPS -> n++; let_die(1, 0)
	:: n < STEPS -> n++; reuse(1, 0)
	:: n >= STEPS -> break
	od;
	run_code(1);
last:	collect(1, 0);
	run_code(1)
}
