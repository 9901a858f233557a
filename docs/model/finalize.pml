/* SPDX-License-Identifier: MIT
 * finalize.pml: owners in the heap of a collector with finalizers, with two mutators, as a spin
 * model: death is final (I5), the cell (I11), and the end of an owner's record. It has the order of
 * the Boehm driver: marks, GC_finalize, which revives what finalizers will see, then `completed`.
 * Code on stacks, branches and core syncs are collection.pml's.
 *
 * Method is an object of the VM, whose anchor names an owner; the owner's record, and one block,
 * are used again when they are free. A method that only its finalizer reaches is revived by
 * GC_finalize and lives until the finalizer has run; the finalizer may store it again, release it,
 * or invalidate its code. A table of the VM holds its handle, which is weak: who uses it holds
 * nothing. */

#ifndef STEPS
#define STEPS 2
#endif
#ifndef CYCLES
#define CYCLES 3
#endif

#define FREE 0
#define OPEN 1
#define LIVE 2
#define NOTENTRANT 3
#define DEAD 4

/* the VM */
bool global = 1;       /* a static word of the VM refers to the method */
bool has[2];         /* a mutator's stack does */
bool has_finalizer = 1, queued; /* registered; on the list of those that are to run */
#define reached (global || has[0] || has[1])
#define HANDLE 1       /* generation that the method's anchor and the weak table hold */
/* owner */
byte ogen = HANDLE, omark = 1;
bool release_over;     /* the release's last store */
bool released, has_entry = 1, cell = 1; /* the record says a block; the word leads to it */
byte blocks_now = 1;
/* block */
byte st = LIVE, bgen = 1, bmark = 1;
byte block_of = HANDLE; /* generation of the owner that it was opened for */
bool bytes = 1;        /* its code is there; 0 = traps */
byte notices_due;      /* specification: deaths without their block_freed */
byte in_block[2];      /* generation that a thread runs, 0 = none: the VM keeps it out of stacks' scan */
/* cycle */
byte cur = 1, completed = 1;
bool freeze, inside[2], heap_lock, busy, stopped, died; /* died, specification: the method's owner was found dead */

#define alive(m) (m >= completed)

#define LOCK atomic { !heap_lock -> heap_lock = 1 }
#define UNLOCK heap_lock = 0
#ifdef NO_BUSY
#define OWNER_LOCK skip
#else
#define OWNER_LOCK atomic { !busy -> busy = 1 }      /* ch__owner_lock */
#endif
#define OWNER_UNLOCK busy = 0
#define ENTER(t) atomic { !freeze -> inside[t] = 1 } /* ch__region_enter */
#define LEAVE(t) inside[t] = 0                       /* ch__region_leave */

/* ch__owner_look_up, and the test of I5 in the same region */
#ifdef STALE_HANDLE
#define SAME true
#else
#define SAME (ogen == HANDLE)
#endif
#ifdef NO_ALIVE_TEST
#define OWNER_ALIVE true
#else
#define OWNER_ALIVE alive(omark)
#endif

/* Who has the method has its owner, whatever ran in between. */
#define METHOD_IS_THERE assert(ogen == HANDLE && !died && alive(omark))

/* A call through the cell (ch_owner_cell): the value is in a register, then the thread is inside. */
inline enter_code(t) {
	atomic {
		METHOD_IS_THERE;
		if
		:: cell -> assert(bytes && (st == LIVE || released)); in_block[t] = bgen
		:: else
		fi
	};
	atomic {
		if
		:: in_block[t] != 0 -> assert(bytes && bgen == in_block[t]); in_block[t] = 0
		:: else
		fi
	}
}

/* ch_block_open (write_record, ch__owner_insert), ch_block_commit (publish, go_live), by a handle out
 * of the weak table: each call says CH_E_STALE or acts for the owner that the handle names. */
inline compile(t) {
	ENTER(t);
	if
	:: SAME && OWNER_ALIVE && !released && st == FREE ->
		assert(ogen == HANDLE && !died);
		st = OPEN; bgen = bgen + 1; bmark = cur; block_of = ogen; bytes = 1; blocks_now++;
		LEAVE(t);
		/* The VM emits. */
		ENTER(t);
		if
#ifdef COMMIT_DEAD_OWNER
		:: st == OPEN ->
#else
		:: st == OPEN && alive(omark) && !released ->
#endif
			assert(ogen == block_of && !died);
			st = LIVE; bmark = cur; LEAVE(t)
		:: else ->
			LEAVE(t); LOCK; ENTER(t); kill(); LEAVE(t); finish(); UNLOCK /* ch_block_abort */
		fi
	:: else -> LEAVE(t)
	fi
}
/* ch_owner_set_entry by an attached thread takes no heap lock; set_entry looks at the flag again
 * after the cell was stored. */
inline set_entry(t) {
	ENTER(t); OWNER_LOCK;
	if
	:: SAME && OWNER_ALIVE && !released && st == LIVE && alive(bmark) && block_of == ogen ->
		assert(ogen == HANDLE && !died);
		has_entry = 1;
		cell = 1;
#ifndef SET_ENTRY_LOOKS_ONCE
		if :: released -> cell = 0 :: else fi
#endif
	:: else
	fi;
	OWNER_UNLOCK; LEAVE(t)
}
/* ch_owner_release(COLLECT): no lock, no region; at any moment, also between the steps of others */
inline release() {
	if
	:: ogen == HANDLE -> released = 1; cell = 0; release_over = 1
	:: else
	fi
}
/* ch__invalidate_block */
inline invalidate(t) {
	LOCK; ENTER(t); OWNER_LOCK;
	if
	:: st == LIVE && alive(bmark) && block_of == HANDLE && ogen == HANDLE ->
		atomic { has_entry = 0; cell = 0; st = NOTENTRANT }
	:: else
	fi;
	OWNER_UNLOCK; LEAVE(t); UNLOCK
}

/* GC_invoke_finalizers, in any thread that allocates: it has the method on its stack meanwhile. */
inline run_finalizer(t) {
	atomic { if :: queued -> queued = 0; has[t] = 1; mine = 1 :: else -> mine = 0 fi };
	if
	:: mine ->
		METHOD_IS_THERE;
		if
		:: global = 1 /* stored again */
		:: release()
		:: invalidate(t)
		:: enter_code(t)
		fi;
		has[t] = 0
	:: else
	fi
}

/* kill, ch__owner_remove, ch__owner_reset_cell */
inline kill() {
	atomic {
		OWNER_LOCK; OWNER_UNLOCK;
		if :: has_entry && block_of == ogen -> has_entry = 0; cell = 0 :: else fi;
		assert(!cell || released == 0 || block_of != ogen);
		notices_due = notices_due + (st == OPEN -> 0 : 1);
		bgen = bgen + 1; st = DEAD
	}
}
/* fill_with_traps, drop_side, ch__quarantine_advance, ch__block_recycle, ch__owner_drop */
inline finish() {
	bytes = 0;
#ifndef OWNER_FREED_FIRST
	atomic {
		st = FREE;
		/* ch__vms_tell: once a block, and its owner is still there to ask for the vm */
		if :: notices_due > 0 -> assert(ogen == block_of); notices_due-- :: else fi;
		blocks_now--
	};
	try_free_owner()
#else
	try_free_owner();
	atomic {
		st = FREE;
		if :: notices_due > 0 -> assert(ogen == block_of); notices_due-- :: else fi;
		blocks_now--
	}
#endif
}
/* ch__owner_try_free; then ch__owner_make may give the record to another method. */
inline try_free_owner() {
	atomic {
		if
#ifdef OWNER_FREED_FIRST
		:: ogen == HANDLE && !alive(omark) ->
#else
		:: ogen == HANDLE && !alive(omark) && blocks_now == 0 ->
#endif
			cell = 0; has_entry = 0; ogen = ogen + 1;
			if
			:: ogen = ogen + 1; omark = cur; released = 0; release_over = 0
			:: skip
			fi
		:: else
		fi
	}
}

active proctype M1() provided (!stopped)
{
	byte n;
	bool mine;
	do
	/* It takes the method, or lets it go; whoever holds it calls it. */
	:: n < STEPS -> n++; atomic { if :: global -> has[0] = 1 :: else fi }
	:: n < STEPS -> n++; atomic { global = 0; if :: has[0] = 0 :: skip fi }
	:: n < STEPS && has[0] -> n++; enter_code(0)
	:: n < STEPS && has[0] -> n++; release()
	:: n < STEPS && queued -> n++; run_finalizer(0)
	:: n >= STEPS -> break
	od
}

active proctype M2() provided (!stopped)
{
	byte n;
	bool mine;
	do
	:: n < STEPS -> n++; compile(1)
	:: n < STEPS -> n++; set_entry(1)
	:: n < STEPS -> n++; invalidate(1)
	:: n < STEPS && queued -> n++; run_finalizer(1)
	:: n >= STEPS -> break
	od
}

/* mark_anchor: ch__mark_owner_index, ch__mark_block; what is not alive is never marked. */
inline mark_method() {
	if
#ifdef RESURRECT
	:: ogen == HANDLE ->
#else
	:: ogen == HANDLE && alive(omark) ->
#endif
		omark = cur;
		if
#ifdef FLAG_ENDS_ENTRY
		:: has_entry && !released && alive(bmark) -> bmark = cur
#else
		/* ch__owner_enters: of a release that was stopped half-way the cell still leads in */
		:: has_entry && !release_over && alive(bmark) -> bmark = cur
#endif
		:: else
		fi
	:: else
	fi
}

inline complete() {
	d_step {
		completed = cur;
		assert(!died || ogen != HANDLE || !alive(omark));
		if :: ogen == HANDLE && !alive(omark) -> died = 1 :: else fi;
		/* No region is open, so that nobody is in set_entry: what was released is left (I11). */
		assert(!(release_over && ogen == HANDLE && cell));
		/* Who has the method, or will have it in a finalizer, has its owner. */
		assert(!(reached || queued) || (ogen == HANDLE && alive(omark)));
		/* The cell of a live owner leads to no dead block. */
		assert(!(ogen == HANDLE && alive(omark) && cell) || alive(bmark))
	}
}

active proctype Collector()
{
	byte n;
	do
	:: n < CYCLES ->
		n++;
		freeze = 1;                                    /* PRE_STOP: ch__freeze */
		(!inside[0] && !inside[1]);
		stopped = 1;
		atomic {                                       /* ch__cycle_begin, mark_anchor */
			cur++;
			/* a dead anchor keeps its words, and a chance word on a stack may name it */
			if :: reached || queued -> mark_method() :: else -> if :: mark_method() :: skip fi fi;
			/* ch__mark_roots: OPEN, and LIVE without an in-edge or an entry */
			if :: (st == OPEN || (st == LIVE && !has_entry)) && alive(bmark) -> bmark = cur :: else fi;
			/* ch__scan_stacks */
			if :: in_block[0] == bgen || in_block[1] == bgen -> bmark = cur :: else fi
		};
#ifdef COMPLETED_BEFORE_FINALIZE
		complete();
#endif
		/* GC_finalize: what is revived is marked, and what it refers to. */
		atomic {
			if
			:: !reached && !queued && has_finalizer ->
				has_finalizer = 0; queued = 1;
#ifndef REVIVED_NOT_MARKED
				mark_method()
#endif
			:: else
			fi
		};
		stopped = 0;                                   /* POST_START: the regions stay shut */
#ifndef COMPLETED_BEFORE_FINALIZE
		complete();                                    /* RECLAIM_END: ch__cycle_complete */
#endif
		freeze = 0;                                    /* ch__unfreeze */
		/* ch__sweep_step, some time later or in the next cycle */
		if
		:: LOCK;
		   if
		   :: (st == LIVE || st == NOTENTRANT) && !alive(bmark) -> kill(); finish()
		   :: else -> try_free_owner()
		   fi;
		   UNLOCK
		:: skip
		fi
	:: else -> break
	od
}
