/* SPDX-License-Identifier: MIT
 * lookup.pml: publication, withdrawal and lookup without a lock, as a spin model: the orders of
 * I3 and the reader of I4. It has no marking (collection.pml). Two records, two places in the
 * pool: Mutator makes blocks in any free record at any free place, Sweep withdraws them and gives
 * records and places back, Reader looks addresses up step by step, resolves handles, and runs in
 * blocks. Stores become visible in program order, as release and acquire give it.
 *
 * Each block has a number of its own, which is what its fields say; `who` notes, for a record and
 * a generation, which block that was. A mix is an answer whose generation and fields do not
 * belong to one block. */

#ifndef BLOCKS
#define BLOCKS 3
#endif
#define NONE 0
#define OPEN 1
#define LIVE 2
#define DEAD 3
#define NO_INDEX 2 /* what traps read as: no record has this index */
#define OUT 2

byte gen[2], number[2], place[2], state[2]; /* records: generation, two fields, state */
bool start[2];           /* by place: bit of block starts */
byte word[2] = NO_INDEX; /* by place: the index in the head */
bool trap[2] = 1;        /* by place: the bytes are traps */
byte tombstone[2];       /* by place: number of the block last freed there */
bool taken[2];           /* by place: granules in use */
byte who[32];            /* specification: number of the block that is record r in generation g, [16 * r + g] */
byte in = OUT;           /* place of the block that Reader runs in: on its stack, so that no cycle finds it dead */
bool committed[BLOCKS + 1]; /* specification, by number */
bool used[2];            /* specification: a block was made here */
byte lies[BLOCKS + 1];   /* specification, by number: the place that a commit leaves */
bool doomed[2];          /* specification: Sweep has chosen the record */
byte made;

/* --- Mutator --- */

inline next_generation() {
	d_step {
#ifndef SAME_GENERATION
		gen[r] = gen[r] + 1;
#else
		if :: gen[r] == 0 -> gen[r] = 1 :: else fi;
#endif
		who[16 * r + gen[r]] = made
	}
}

active proctype Mutator()
{
	byte r, p, q;
	do
	:: made < BLOCKS ->
		if
		:: atomic { state[0] == NONE -> r = 0 }
		:: atomic { state[1] == NONE -> r = 1 }
		fi;
		if
		:: atomic { !taken[0] -> taken[0] = 1; p = 0 }
		:: atomic { !taken[1] -> taken[1] = 1; p = 1 }
		fi;
		/* A large block has both places till its commit, whose used bytes begin in the second. */
		q = p;
		if
		:: atomic { !taken[1 - p] -> taken[1 - p] = 1; q = 1 - p }
		:: skip
		fi;
		made++;
		lies[made] = p;
		/* write_record, ch__head_write: fields and head, then the generation */
#ifdef GENERATION_BEFORE_FIELDS
		next_generation();
#endif
		number[r] = made;
		place[r] = q;
		state[r] = OPEN;
		d_step { word[q] = r; trap[q] = 0; if :: q == p -> used[p] = 1 :: else fi };
#ifndef GENERATION_BEFORE_FIELDS
		next_generation();
#endif
#ifdef START_AT_OPEN
		start[p] = 1;
#endif
		/* shrink: the place of an open block moves */
		if
		:: q != p ->
			d_step { word[p] = r; trap[p] = 0; used[p] = 1 };
			place[r] = p;
			d_step { word[q] = NO_INDEX; trap[q] = 1 };
			taken[q] = 0
		:: else
		fi;
		/* go_live: LIVE, then the start bit (ch__page_set_start) */
#ifdef START_BEFORE_LIVE
		start[p] = 1;
		atomic { state[r] = LIVE; committed[made] = 1 }
#else
		atomic { state[r] = LIVE; committed[made] = 1 };
		start[p] = 1
#endif
	:: else -> break
	od
}

/* --- Sweep: kill (ch__tombstone_write, generation, ch__page_set_start, DEAD), fill_with_traps, ch__block_recycle --- */

active proctype Sweep()
{
	byte r, p;
end:	do
	:: atomic { state[0] == LIVE && start[place[0]] && in != place[0] -> doomed[0] = 1; r = 0; p = place[0] };
		goto withdraw
	:: atomic { state[1] == LIVE && start[place[1]] && in != place[1] -> doomed[1] = 1; r = 1; p = place[1] };
withdraw:
#ifndef TOMBSTONE_LATE
		tombstone[p] = number[r];
#endif
#ifndef SAME_GENERATION
		gen[r] = gen[r] + 1;
#endif
#ifndef START_KEPT
		start[p] = 0;
#endif
		state[r] = DEAD;
		d_step { trap[p] = 1; word[p] = NO_INDEX };
#ifdef TOMBSTONE_LATE
		tombstone[p] = number[r];
#endif
		/* after a core sync */
		atomic { state[r] = NONE; doomed[r] = 0 };
		taken[p] = 0
	od
}

/* --- Reader --- */

/* ch__find; found is the record or NO_INDEX, with its generation. */
inline find(pc) {
	found = NO_INDEX;
	if
	:: !start[pc] -> skip
	:: else ->
		index = word[pc];
		if
		:: index == NO_INDEX -> skip
		:: else ->
			before = gen[index];
			if
			:: before % 2 == 0 -> skip
			:: else ->
				fits = true;
#ifndef STATE_LAST
#ifndef NO_STATE_TEST
				fits = state[index] != OPEN;
#endif
#endif
				seen_place = place[index];
				seen_number = number[index];
#ifndef NO_RANGE_TEST
				fits = fits && seen_place == pc;
#endif
#ifdef STATE_LAST
				fits = fits && state[index] != OPEN;
#endif
#ifndef ONE_LOOK
				fits = fits && gen[index] == before;
#endif
				if :: fits -> found = index :: else fi
			fi
		fi
	fi
}

active proctype Reader()
{
	byte n, pc, index, before, seen_place, seen_number, found = NO_INDEX, h_index = NO_INDEX, h_gen, h_number;
	bool was_trap, fits;
	do
	:: n < 2 ->
		n++;
		if :: pc = 0 :: pc = 1 fi;
		find(pc);
		atomic {
			if
			:: found != NO_INDEX ->
				/* no mix: the fields are those of this generation, and the address is in it */
				assert(who[16 * found + before] == seen_number && seen_place == pc);
				assert(committed[seen_number] && lies[seen_number] == pc);
				h_index = found; h_gen = before; h_number = seen_number
			:: else
			fi
		}
	/* What a start bit leads to has been committed. */
	:: n < 2 ->
		n++;
		if :: pc = 0 :: pc = 1 fi;
		atomic {
			if
			:: start[pc] && word[pc] != NO_INDEX -> assert(committed[number[word[pc]]])
			:: else
			fi
		}
	/* The handle of a lookup, later (ch__block_resolve): alive, or stale for ever. */
	:: n < 2 && h_index != NO_INDEX ->
		n++;
		atomic {
			if
#ifdef STALE_HANDLE
			:: gen[h_index] % 2 == 1 ->
#else
			:: gen[h_index] == h_gen ->
#endif
				assert(number[h_index] == h_number)
			:: else
			fi
		}
	/* A block on the caller's own stack is always found, and is LIVE. */
	:: n < 2 ->
		n++;
		if
		:: atomic { start[0] && !trap[0] && word[0] != NO_INDEX && state[word[0]] == LIVE && !doomed[word[0]] -> in = 0 }
		:: atomic { start[1] && !trap[1] && word[1] != NO_INDEX && state[word[1]] == LIVE && !doomed[word[1]] -> in = 1 }
		:: true
		fi;
		if
		:: in != OUT ->
			find(in);
			assert(found != NO_INDEX);
			in = OUT
		:: else
		fi
	/* The trap decoder (ch_trap_describe): traps at an address, no block there, then there is a tombstone, or nothing
	 * ever was there. */
	:: n < 2 ->
		n++;
		if :: pc = 0 :: pc = 1 fi;
		atomic { was_trap = trap[pc] && used[pc] };
		assert(!was_trap || tombstone[pc] != 0)
	:: else -> break
	od
}
