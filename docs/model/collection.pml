/* SPDX-License-Identifier: MIT
 * collection.pml: marking, death, invalidation, sweep, quarantine and reuse, as a spin model. It
 * has regions and freeze (I1), death that is final (I5), stack roots (I7), the quarantine (I8)
 * and the order of invalidation (I13). It does not have lookup (lookup.pml), the bounded queue or
 * the kinds of sites. README.md says which code each piece stands for.
 *
 * Slot 0 holds block D at the start, slot 1 is free: a slot is a record and the bytes it
 * describes. Block A is the entry of a live owner, never dies, and has a branch to D. M1 opens
 * blocks B (edge or link to D, entry of an owner, runs them, gives them up) in any free slot, so
 * that D's record and bytes are used again. M2 runs A, D and B, and invalidates D. A core may act
 * on bytes that it decoded before they changed, until a core sync: `pre` is a decoded branch,
 * `ic` decoded code of a slot. The stop is one by signal: `provided` halts both threads at any
 * instruction. A step names the function of the code that it stands for. */

#ifndef CYCLES
#define CYCLES 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef STEPS
#define STEPS 2
#endif

#define FREE 0
#define OPEN 1
#define LIVE 2
#define NOTENTRANT 3
#define DEAD 4
#define OUT 2 /* value of at[] and own: no slot */
#define D_GEN 1

byte st[2], gen[2], mk[2];
byte code[2];     /* generation whose code the bytes of the slot are; 0 = traps */
byte stamp[2];    /* DEAD: core syncs at the time of the death */
bool died[2];     /* specification: a cycle has found it dead */
bool named[2];    /* names of the outside world lead here */
bool eA = 1, jA = 1; /* branch A -> D: its record, its bytes */
bool eB, jB;      /* the block in slot 1 -> D: the same */
bool edgeB;       /* plain edge of the block in slot 1 to D: not undone by invalidation */
byte own = OUT;   /* entry of B's owner */
bool newborn; byte age, b = OUT;
byte at[2] = OUT; /* slot that a thread is in, or whose address it has in a register */
bool pre[2];      /* a thread stands before a branch that it decoded as leading to D */
byte ic[4];       /* ic[2 * thread + slot]: generation whose code its core has decoded */
byte cur = 1, completed = 1, syncs;
bool freeze, inside[2], heap_lock;
bool stopped = 1; /* until init is done */

#define alive(s) (mk[s] >= completed)
#define in_use(s) (gen[s] % 2 == 1)

/* --- what the mutants change --- */
/* A region of one step needs no flag of its own: GATE is its test. */
#ifdef NO_REGION
#define GATE true
#define ENTER(t) skip
#define LEAVE(t) skip
#else
#define GATE !freeze
#define ENTER(t) atomic { !freeze -> inside[t] = 1 }
#define LEAVE(t) inside[t] = 0
#endif
#ifdef NO_ALIVE_TEST
#define ALIVE(s) true
#else
#define ALIVE(s) alive(s)
#endif
#ifdef STALE_HANDLE
#define SAME(s, g) true
#else
#define SAME(s, g) (gen[s] == g)
#endif
#ifdef RESURRECT
#define MARKABLE(s) true
#else
#define MARKABLE(s) alive(s)
#endif

#define LOCK atomic { !heap_lock -> heap_lock = 1 }
#define UNLOCK heap_lock = 0

/* ch__core_sync */
inline core_sync() {
	d_step {
		syncs++;
		if :: pre[0] -> pre[0] = (at[0] == OUT && jA) || (at[0] != OUT && (jB || edgeB)) :: else fi;
		if :: pre[1] -> pre[1] = (at[1] == OUT && jA) || (at[1] != OUT && (jB || edgeB)) :: else fi;
		ic[0] = 0; ic[1] = 0; ic[2] = 0; ic[3] = 0
	}
}

/* --- running --- */

/* A thread enters or stands in a slot and executes what its core believes to be there. With
 * COHERENT it sees each store to code that it is not executing at the moment, as x86-64 cores do.
 * */
#ifdef COHERENT
#define EXECUTE(t, s, g) assert(code[s] == g); assert(named[s])
#else
#define EXECUTE(t, s, g) \
	if :: ic[2 * (t) + (s)] == 0 -> ic[2 * (t) + (s)] = code[s] :: else fi; \
	assert(ic[2 * (t) + (s)] == g); assert(code[s] == g); assert(named[s])
#endif

/* The branch's bytes are decoded, then it is taken; unlinked it leads to the stub (stub.pml). */
inline run_D(t) {
	atomic { at[t] = 0; pre[t] = 0; EXECUTE(t, 0, D_GEN) }
}
inline leave_D(t) {
	atomic { EXECUTE(t, 0, D_GEN); at[t] = OUT }
}
inline run_A(t) {
	atomic { pre[t] = jA };
	if
	:: atomic { pre[t] -> run_D(t) };
	   if
	   :: invalidate_D(t) /* P7: from inside, too */
	   :: skip
	   fi;
	   leave_D(t)
	:: atomic { !pre[t] -> skip } /* to the stub */
	fi
}
/* ch_owner_cell: its value is in a register, then the thread is in B, then perhaps in D. The
 * frame of B is left by a tail jump: only the slot in at[] is on the stack. */
inline run_B(t) {
	atomic { at[t] = own; if :: own != OUT -> g_run[t] = gen[own] :: else fi };
	if
	:: at[t] == OUT -> skip
	:: atomic { at[t] != OUT -> EXECUTE(t, at[t], g_run[t]) };
	   if
	   :: atomic { at[t] == 1 && (jB || edgeB) && !pre[t] -> pre[t] = 1 };
	      if
	      :: atomic { pre[t] -> run_D(t) }; leave_D(t)
	      :: atomic { !pre[t] -> at[t] = OUT }
	      fi
	   :: at[t] = OUT
	   fi
	fi
}
byte g_run[2];

/* --- invalidation --- */

/* ch__invalidate_block; order: entry (shut_entry), incoming branches (ch__block_unlink,
 * unlink_branch), state. */
inline invalidate_D(t) {
	atomic {
		!heap_lock && GATE ->
		if
		:: SAME(0, D_GEN) && ALIVE(0) && st[0] == LIVE ->
			assert(gen[0] == D_GEN && !died[0]);
			eA = 0;
#ifndef KEEP_IN_EDGES
			jA = 0;
#endif
			if
			:: eB = 0; jB = 0; st[0] = NOTENTRANT
			:: skip /* only A's branch is unlinked */
			fi
		:: else
		fi
	}
}

/* --- quarantine: traps -> sync -> free, under the heap lock --- */

/* to_traps: fill_with_traps. advance: ch__quarantine_advance, free_places, ch__block_recycle. */

inline to_traps(s) {
	assert(at[0] != s && at[1] != s);
	assert(s != 0 || gen[0] > D_GEN + 1 || (!pre[0] && !pre[1]));
	assert(s != 0 || (!jA && !((jB || edgeB) && !died[1] && st[1] != DEAD)));
	code[s] = 0
}
inline advance_one(s) {
	if
#ifdef NO_QUARANTINE
	:: st[s] == DEAD -> st[s] = FREE; died[s] = 0
#else
	:: st[s] == DEAD && syncs > stamp[s] -> st[s] = FREE; died[s] = 0
#endif
	:: else
	fi
}
inline advance() { atomic { advance_one(0); advance_one(1) } }

/* kill, withdraw_names: names, generation even; to_traps follows, since a cycle's sync has proved the block
 * unlinked, or the VM vouches that nobody runs it. */
inline withdraw(s) {
	st[s] = DEAD;
	if :: s == 1 -> eB = 0; jB = 0; edgeB = 0 :: else fi;
	named[s] = 0; gen[s] = gen[s] + 1; stamp[s] = syncs
}

/* --- M1: compiles --- */

active proctype M1() provided (!stopped)
{
	byte round, g;
	bool ok;
	do
	:: round < ROUNDS ->
		round++;
		/* place_slowly: in need ch__quarantine_advance issues an extra sync. */
		if
		:: st[0] == FREE -> b = 0
		:: st[1] == FREE -> b = 1
		:: (st[0] == DEAD || st[1] == DEAD) && st[0] != FREE && st[1] != FREE ->
			LOCK;
			core_sync(); atomic { GATE -> advance() };
			core_sync(); atomic { GATE -> advance() };
			UNLOCK;
			if :: st[0] == FREE -> b = 0 :: st[1] == FREE -> b = 1 :: else -> b = OUT fi
		:: else -> b = OUT
		fi;
		if :: b == OUT -> break :: else fi;
		/* ch_block_open, write_record: bytes, mark, generation. */
		atomic { ENTER(0); newborn = 0; age = 0; code[b] = gen[b] + 1 };
#ifdef GENERATION_FIRST
		atomic { st[b] = OPEN; gen[b] = gen[b] + 1; named[b] = 1 };
		mk[b] = cur;
#else
		mk[b] = cur;
		atomic { st[b] = OPEN; gen[b] = gen[b] + 1; named[b] = 1 };
#endif
		atomic { g = gen[b]; LEAVE(0) };
		/* ch_edge_attach, ch__edge_add: to D from the open block: not dead. */
		if
		:: b == 1 ->
			atomic {
				GATE ->
				if
				:: SAME(0, D_GEN) && in_use(0) && ALIVE(0) ->
					assert(gen[0] == D_GEN && !died[0]); edgeB = 1
				:: else
				fi
			}
		:: skip
		fi;
		/* ch_block_commit: publish, go_live */
		atomic {
			GATE -> assert(gen[b] == g && st[b] == OPEN && !died[b]);
			mk[b] = cur; newborn = 1; st[b] = LIVE;
			ic[b] = 0 /* the writer's own core is synchronized by its cache flush */
		};
		/* ch_branch_link, link_locked: B -> D, both ends tested in the region in which the branch is written. */
		if
		:: b == 1 ->
			LOCK;
			atomic {
				ENTER(0);
				ok = SAME(0, D_GEN) && in_use(0) && ALIVE(0) && st[0] == LIVE && gen[1] == g && ALIVE(1)
			};
#ifdef TEST_OUTSIDE
			LEAVE(0); ENTER(0);
#endif
			if
			:: atomic { ok -> assert(gen[0] == D_GEN && !died[0] && !died[1]); jB = 1 }; eB = 1
			:: else
			fi;
			atomic { LEAVE(0); UNLOCK }
		:: skip
		fi;
		/* ch_owner_set_entry, set_entry: an attached thread takes no heap lock */
		atomic {
			GATE ->
			if
			:: gen[b] == g && ALIVE(b) && st[b] == LIVE -> assert(!died[b]); own = b; newborn = 0
			:: else
			fi
		};
		if :: own == b -> run_B(0) :: own == OUT fi;
		/* Give B up: ch__invalidate_block, ch__owner_reset_cell. */
		atomic {
			!heap_lock && GATE ->
			if
			:: gen[b] == g && ALIVE(b) && st[b] == LIVE ->
#ifndef NO_CELL_RESET
				own = OUT;
#endif
				st[b] = NOTENTRANT; eB = 0; jB = 0
			:: else
			fi
		};
		/* ch_owner_release as NOT_RUNNING, free_blocks, ch__blocks_kill: the VM vouches for
		 * M2. */
		if
		:: atomic {
			at[1] != b && !heap_lock && GATE ->
			if
			:: gen[b] == g && (st[b] == LIVE || st[b] == NOTENTRANT) ->
				withdraw(b);
				to_traps(b);
#ifdef RELEASE_AT_ONCE
				st[b] = FREE; died[b] = 0
#else
				died[b] = 1
#endif
			:: else
			fi
		   }
		:: skip
		fi
	:: else -> break
	od
}

/* --- M2: runs and invalidates --- */

active proctype M2() provided (!stopped)
{
	byte n;
	do
	:: n < STEPS -> n++; run_A(1)
	:: n < STEPS -> n++; run_B(1)
	:: n < STEPS -> n++; invalidate_D(1)
	:: n >= STEPS -> break
	od
}

/* --- the collector, and the sweep --- */

#ifdef EDGE_NOT_TRACED
#define LINKS eB
#else
#ifdef NOTENTRANT_NOT_TRACED
#define LINKS ((eB || edgeB) && st[1] != NOTENTRANT)
#else
#define LINKS (eB || edgeB)
#endif
#endif

/* ch__mark_block, mark_record, trace */
inline mark(s) {
	if
	:: in_use(s) && MARKABLE(s) ->
		mk[s] = cur;
		if :: s == 1 && LINKS && in_use(0) && MARKABLE(0) -> mk[0] = cur :: else fi
	:: else
	fi
}
/* scan_thread */
inline mark_thread(t) {
#ifdef SKIP_STACKS
	skip
#else
	if :: at[t] != OUT -> mark(at[t]) :: else fi
#endif
}
/* ch__cycle_begin, ch__mark_roots, mark_owners, ch__scan_stacks, ch__mark_drain */
inline mark_all() {
	atomic {
		cur++;
		if :: eA -> mark(0) :: else fi;
		if :: own != OUT -> mark(own) :: else fi;
#ifndef OPEN_NO_ROOT
		if :: st[0] == OPEN -> mark(0) :: else fi;
		if :: st[1] == OPEN -> mark(1) :: else fi;
#endif
#ifndef NO_NEWBORN
		if :: newborn && age < 2 && b != OUT && st[b] == LIVE -> mark(b) :: else fi;
#endif
		mark_thread(0); mark_thread(1);
		if :: mark(0) :: skip fi /* a chance word on a stack */
	}
}
/* ch__cycle_complete. Specification: what was not marked is dead, and nothing that can run is. */
inline complete() {
	atomic {
		completed = cur;
		if :: newborn && age < 2 -> age++ :: else fi;
		if :: in_use(0) && !alive(0) -> died[0] = 1; assert(at[0] != 0 && at[1] != 0 && !jA && own != 0) :: else fi;
		if :: in_use(1) && !alive(1) -> died[1] = 1; assert(at[0] != 1 && at[1] != 1 && own != 1) :: else fi;
		assert(!(died[0] && in_use(0)) || !((jB || edgeB) && in_use(1) && !died[1]))
	}
}
/* ch__sweep_step, take_dead */
inline sweep(s) {
#ifdef MARK_READ_FIRST
	m = mk[s]; g = gen[s];
#else
	g = gen[s]; m = mk[s];
#endif
	if
	:: g % 2 == 1 && m < completed ->
		LOCK;
		atomic {
#ifdef SWEEP_NO_RECHECK
			if :: true ->
#else
			if :: gen[s] == g && !alive(s) && st[s] != DEAD ->
#endif
				assert(died[s] && st[s] != OPEN);
				withdraw(s);
				to_traps(s)
			:: else
			fi
		};
		UNLOCK
	:: else
	fi
}

active proctype Collector()
{
	byte n, g, m;
	(!stopped);
	do
	:: n < CYCLES ->
		n++;
		freeze = 1; /* ch__freeze */
		(!inside[0] && !inside[1]);
#ifndef NO_CORE_SYNC
		core_sync();
#endif
#ifdef ABANDON
		/* A thread did not stop in time: the epoch has moved, `completed` stays. */
		if
		:: cur++;
#ifdef ABANDONED_COUNTS
		   complete();
#endif
		   freeze = 0; goto sweep_some /* ch__unfreeze, CH_E_BUSY */
		:: skip
		fi;
#endif
		stopped = 1; /* ch__world_stop, or the collector's stop */
		mark_all();
#ifdef EARLY_UNFREEZE
		freeze = 0;
#endif
		stopped = 0; /* a Boehm cycle runs finalizers here: code runs, regions stay shut */
		complete();
		freeze = 0;
sweep_some:
		if
		:: sweep(0); sweep(1)
		:: skip /* a later cycle's sweep takes it */
		fi;
		if :: atomic { !heap_lock -> advance() } :: skip fi
	:: else -> break
	od
}

init { d_step { st[0] = LIVE; gen[0] = D_GEN; mk[0] = 1; code[0] = D_GEN; named[0] = 1; stopped = 0 } }
