/* SPDX-License-Identifier: MIT
 * stop.pml: the two handshakes that marking rests on, with store buffers and two mutators, as a spin
 * model: a region against the freeze (I1), and a thread that unparks against the stop of the world
 * (I9). It is the only model in which a store may be seen late: a store goes to the core's buffer,
 * and reaches memory when the core likes or a fence makes it.
 *
 * Each Mutator enters a region and unparks, again and again; Cycle freezes, looks at each `inside`,
 * stops, looks at each `parked`, and then reads what only regions and running threads write. */

#ifndef ROUNDS
#define ROUNDS 3
#endif

bool freeze, stopping;     /* memory; written by Cycle with locked instructions */
bool inside[2], parked[2] = {1, 1}; /* memory, as Cycle sees it */
bool inside_late[2], parked_late[2]; /* a store of the value waits in the core's buffer */
bool inside_value[2], parked_value[2];
bool marking;              /* specification: Cycle reads */
bool in_region[2], is_running[2]; /* specification: where Mutator is */

inline flush(t) {
	d_step {
		if :: inside_late[t] -> inside[t] = inside_value[t]; inside_late[t] = 0 :: else fi;
		if :: parked_late[t] -> parked[t] = parked_value[t]; parked_late[t] = 0 :: else fi
	}
}
/* Stores of one core stay in order: a second store to the buffer pushes the first one out. */
inline store_inside(t, v) { atomic { flush(t); inside_value[t] = v; inside_late[t] = 1 } }
inline store_parked(t, v) { atomic { flush(t); parked_value[t] = v; parked_late[t] = 1 } }

active [2] proctype Buffer()
{
end:	do
	:: inside_late[_pid] || parked_late[_pid] -> flush(_pid)
	od
}

/* ch_thread_unpark, run_parked: a seq_cst store, then the look at stopping */
inline unpark(t) {
	do
	:: store_parked(t, 0);
#ifndef UNPARK_WITHOUT_FENCE
	   flush(t);
#endif
	   if
	   :: atomic { !stopping -> is_running[t] = 1 }; break
	   :: else -> store_parked(t, 1); !stopping
	   fi
	od
}

/* ch__region_enter; ch__region_wait: a wait for the thaw is a park, since the cycle waits for this
 * thread. Mutator sees its own stores at once, so that it never reads these words back. */
inline enter(t) {
	do
	::
#ifdef LOAD_BEFORE_STORE
		if
		:: !freeze -> store_inside(t, 1); break
		:: else -> is_running[t] = 0; store_parked(t, 1); !freeze; unpark(t)
		fi
#else
		store_inside(t, 1);
#ifdef FENCE_IN_REGIONS
		flush(t);
#endif
		if
		:: atomic { !freeze -> in_region[t] = 1 }; break
		:: else ->
			store_inside(t, 0);
#ifdef WAIT_UNPARKED
			!freeze
#else
			is_running[t] = 0;
			store_parked(t, 1);
			!freeze;
			unpark(t)
#endif
		fi
#endif
	od
}

#define ME (_pid - 2)
active [2] proctype Mutator()
{
	byte n;
	do
	:: n < ROUNDS ->
		n++;
		unpark(ME);                /* ch_thread_unpark */
		assert(!marking);
		enter(ME);
		in_region[ME] = 1;
		assert(!marking); /* changes what marking reads */
		in_region[ME] = 0;
		store_inside(ME, 0);       /* ch__region_leave: release, not before the changes */
		assert(!marking); /* runs code */
		is_running[ME] = 0;
		store_parked(ME, 1)        /* park_with */
	:: else -> break
	od
}

active proctype Cycle()
{
	byte n;
	do
	:: n < ROUNDS ->
		n++;
		freeze = 1;                /* ch__freeze */
#ifndef NO_MEMBARRIER
		atomic { flush(0); flush(1) }; /* membarrier: every core passes a fence */
#endif
		!inside[0];
#ifndef ONE_THREAD_AWAITED
		!inside[1];
#endif
		assert(!in_region[0] && !in_region[1]);
		stopping = 1;              /* ch__world_stop, running */
		parked[0];
		parked[1];
		marking = 1;               /* collect_builtin: marks */
		assert(!in_region[0] && !in_region[1] && !is_running[0] && !is_running[1]);
		marking = 0;
		stopping = 0;              /* ch__world_resume */
		freeze = 0                 /* ch__unfreeze */
	:: else -> break
	od
}
