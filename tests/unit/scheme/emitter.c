/* SPDX-License-Identifier: MIT
 * emitter.c: the emitter of the Scheme JIT, for every architecture. Each operation runs and is
 * compared with C, over values, immediates and offsets on both sides of an instruction's limits.
 * sites.c tests control flow and patching by the heap. */
#include "tests/support/emitter_rig.h"

/* ---- moves ---- */

TEST(emitter_makes_every_word)
{
	start();
	for (size_t i = 0; i < COUNT(words); i++) {
		begin();
		emit_imm(e, R0, words[i]);
		emit_store(e, CTX, OUT(0), R0);
		emit_ref(e, R1, words[i]);
		emit_store(e, CTX, OUT(1), R1);
		emit_ref(e, R2, words[i]);
		emit_store(e, CTX, OUT(2), R2);
		emit_ref(e, R3, words[i] ^ 1);
		emit_move(e, R0, R3);
		emit_store(e, CTX, OUT(3), R0);
		run();
		CHECK_EQ(state.out[0], words[i]);
		CHECK_EQ(state.out[1], words[i]);
		CHECK_EQ(state.out[2], words[i]);
		CHECK_EQ(state.out[3], words[i] ^ 1);
	}
}

TEST(emitter_reaches_every_offset)
{
	start();
	for (size_t i = 0; i < COUNT(offsets); i++) {
		const int32_t off = offsets[i];
		uint8_t *at = from_middle(off);
		uint64_t word = 0x8123456789abcdefu + i, got;
		memset(at - 8, 0xee, 24);
		memcpy(at, &word, sizeof word);
		begin();
		emit_imm(e, R1, (uint64_t)&state.middle);
		emit_load(e, R0, R1, off);
		emit_store(e, CTX, OUT(0), R0);
		emit_address(e, R2, R1, off);
		emit_store(e, CTX, OUT(2), R2);
		emit_load(e, FPTR, CTX, IN(0));
		emit_op_load(e, DO_ADD, FPTR, R1, off);
		emit_store(e, CTX, OUT(3), FPTR);
		emit_fload(e, 1, R1, off);
		emit_fstore(e, CTX, OUT(4), 1);
		emit_load(e, R3, CTX, IN(1));
		emit_store(e, R1, off, R3);
		state.in[0] = 17;
		state.in[1] = ~word;
		run();
		CHECK_EQ(state.out[0], word);
		CHECK_EQ(state.out[2], (uintptr_t)at);
		CHECK_EQ(state.out[3], word + 17);
		CHECK_EQ(state.out[4], word);
		memcpy(&got, at, sizeof got);
		CHECK_EQ(got, ~word);
		CHECK(at[-1] == 0xee && at[8] == 0xee);
		begin();
		emit_imm(e, R1, (uint64_t)&state.middle);
		emit_fload(e, 0, CTX, IN(0));
		emit_fstore(e, R1, off, 0);
		run();
		memcpy(&got, at, sizeof got);
		CHECK_EQ(got, 17);
		CHECK(at[-1] == 0xee && at[8] == 0xee);
	}
}

TEST(emitter_stores_every_immediate)
{
	start();
	for (size_t i = 0; i < COUNT(immediates); i++)
		for (size_t k = 0; k < COUNT(offsets); k++) {
			uint8_t *at = from_middle(offsets[k]);
			uint64_t got;
			memset(at - 8, 0xee, 24);
			begin();
			emit_imm(e, R1, (uint64_t)&state.middle);
			emit_store_imm(e, R1, offsets[k], immediates[i]);
			run();
			memcpy(&got, at, sizeof got);
			CHECK_EQ(got, (int64_t)immediates[i]);
			CHECK(at[-1] == 0xee && at[8] == 0xee);
		}
}

TEST(emitter_indexes_words_and_characters)
{
	start();
	for (int i = 0; i < SLOTS; i++)
		state.in[i] = 0xf000000000000000u + (uint64_t)i * 0x0000000100000003u;
	for (size_t k = 0; k < COUNT(offsets); k++)
		for (int index = -3; index < SLOTS; index += 11) {
			uint8_t *at = from_middle(offsets[k]);
			uint64_t word = 0x1111111111111111u * (unsigned)(index & 15) + 5, got;
			memcpy(at + index * 8, &word, sizeof word);
			begin();
			emit_imm(e, R1, (uint64_t)&state.middle);
			emit_imm(e, R2, (uint64_t)(int64_t)index);
			emit_load_index(e, R0, R1, R2, 8, offsets[k]);
			emit_store(e, CTX, OUT(0), R0);
			emit_imm(e, R2, (uint64_t)(int64_t)index * 2 + 1);
			emit_load_index(e, R0, R1, R2, 4, offsets[k]);
			emit_store(e, CTX, OUT(1), R0);
			emit_imm(e, R2, (uint64_t)(int64_t)index);
			emit_imm(e, R0, ~word);
			emit_store_index(e, R1, R2, 8, offsets[k], R0);
			run();
			CHECK_EQ(state.out[0], word);
			CHECK_EQ(state.out[1], word >> 32);
			memcpy(&got, at + index * 8, sizeof got);
			CHECK_EQ(got, ~word);
		}
}

/* ---- arithmetic, conditions ---- */

static void check_conditions(int from, uint64_t x, uint64_t y)
{
	const int64_t a = (int64_t)x, b = (int64_t)y;
	const int wanted[] = {a == b, a != b, a<b, a <= b, a> b, a >= b, x<y, x >= y, x> y};

	for (size_t i = 0; i < COUNT(wanted); i++)
		if (state.out[from + (int)i] != (uint64_t)wanted[i])
			FAIL("condition %u of %#llx and %#llx: %llu", (unsigned)all_conditions[i],
			     (unsigned long long)x, (unsigned long long)y,
			     (unsigned long long)state.out[from + (int)i]);
}

TEST(emitter_compares_words)
{
	start();
	begin();
	emit_load(e, R0, CTX, IN(0));
	emit_load(e, R1, CTX, IN(1));
	emit_op(e, DO_CMP, R0, R1);
	store_conditions(0);
	emit_op_load(e, DO_CMP, R0, CTX, IN(1));
	store_conditions(10);
	emit_op(e, DO_TEST, R0, R0);
	store_condition(IF_EQ, 20);
	store_condition(IF_NE, 21);
	store_condition(IF_GE, 22);
	emit_op(e, DO_TEST, R0, R1);
	store_condition(IF_EQ, 23);
	end();
	place();
	for (size_t i = 0; i < COUNT(words); i++)
		for (size_t k = 0; k < COUNT(words); k++) {
			state.in[0] = words[i];
			state.in[1] = words[k];
			call();
			check_conditions(0, words[i], words[k]);
			check_conditions(10, words[i], words[k]);
			CHECK_EQ(state.out[20], words[i] == 0);
			CHECK_EQ(state.out[21], words[i] != 0);
			CHECK_EQ(state.out[22], (int64_t)words[i] >= 0);
			CHECK_EQ(state.out[23], (words[i] & words[k]) == 0);
		}
}

TEST(emitter_compares_with_immediates)
{
	start();
	for (size_t i = 0; i < COUNT(immediates); i++) {
		const int32_t n = immediates[i];
		begin();
		emit_load(e, R0, CTX, IN(0));
		emit_op_imm(e, DO_CMP, R0, n);
		store_conditions(0);
		emit_cmp_imm(e, CTX, IN(0), n);
		store_conditions(10);
		emit_cmp_imm32(e, CTX, IN(0), n);
		store_condition(IF_EQ, 20);
		store_condition(IF_LT, 21);
		store_condition(IF_BELOW, 22);
		end();
		place();
		for (size_t k = 0; k <= COUNT(words) + 2; k++) {
			uint64_t word = k < COUNT(words)
						? words[k]
						: (uint64_t)(int64_t)n + k - COUNT(words) - 1;
			state.in[0] = word;
			call();
			check_conditions(0, word, (uint64_t)(int64_t)n);
			check_conditions(10, word, (uint64_t)(int64_t)n);
			CHECK_EQ(state.out[20], (uint32_t)word == (uint32_t)n);
			CHECK_EQ(state.out[21], (int32_t)word < n);
			CHECK_EQ(state.out[22], (uint32_t)word < (uint32_t)n);
		}
	}
}

/* Results at even, overflow at odd slots. */
static void check_overflow(int slot, int op, uint64_t x, uint64_t y)
{
	int64_t wanted;
	int overflows = op == DO_ADD ? __builtin_add_overflow((int64_t)x, (int64_t)y, &wanted)
				     : __builtin_sub_overflow((int64_t)x, (int64_t)y, &wanted);

	CHECK_EQ(state.out[slot], wanted);
	CHECK_EQ(state.out[slot + 1], overflows);
}

TEST(emitter_adds_and_subtracts)
{
	static const enum emit_op ops[] = {DO_ADD, DO_SUB};

	start();
	for (size_t o = 0; o < COUNT(ops); o++) {
		begin();
		emit_load(e, R0, CTX, IN(0));
		emit_load(e, R1, CTX, IN(1));
		emit_op(e, ops[o], R0, R1);
		emit_store(e, CTX, OUT(0), R0);
		store_condition(IF_OVERFLOW, 1);
		end();
		place();
		for (size_t i = 0; i < COUNT(words); i++)
			for (size_t k = 0; k < COUNT(words); k++) {
				state.in[0] = words[i];
				state.in[1] = words[k];
				call();
				check_overflow(0, (int)ops[o], words[i], words[k]);
			}
		for (size_t i = 0; i < COUNT(immediates); i++) {
			begin();
			emit_load(e, R0, CTX, IN(0));
			emit_op_imm(e, ops[o], R0, immediates[i]);
			emit_store(e, CTX, OUT(0), R0);
			store_condition(IF_OVERFLOW, 1);
			end();
			place();
			for (size_t k = 0; k < COUNT(words); k++) {
				state.in[0] = words[k];
				call();
				check_overflow(0, (int)ops[o], words[k],
					       (uint64_t)(int64_t)immediates[i]);
			}
		}
	}
}

TEST(emitter_masks_bits)
{
	static const int tested[] = {1, 3, 7, 2, 4, 5, 0x7f};

	start();
	for (size_t i = 0; i < COUNT(immediates); i++) {
		const uint64_t n = (uint64_t)(int64_t)immediates[i];
		begin();
		for (int slot = 0; slot < 4; slot++) {
			emit_load(e, R0, CTX, IN(0));
			emit_load(e, R2, CTX, IN(1));
			if (slot < 2)
				emit_op_imm(e, slot ? DO_OR : DO_AND, R0, immediates[i]);
			else
				emit_op(e, slot == 3 ? DO_OR : DO_AND, R0, R2);
			emit_store(e, CTX, OUT(slot), R0);
		}
		for (size_t k = 0; k < COUNT(tested); k++) {
			emit_load(e, R1, CTX, IN(0));
			emit_test_bits(e, R1, tested[k]);
			store_condition(IF_EQ, 8 + (int)k);
			store_condition(IF_NE, 20 + (int)k);
		}
		end();
		place();
		for (size_t k = 0; k < COUNT(words); k++) {
			state.in[0] = words[k];
			state.in[1] = words[COUNT(words) - 1 - k];
			call();
			CHECK_EQ(state.out[0], words[k] & n);
			CHECK_EQ(state.out[1], words[k] | n);
			CHECK_EQ(state.out[2], words[k] & state.in[1]);
			CHECK_EQ(state.out[3], words[k] | state.in[1]);
			for (size_t t = 0; t < COUNT(tested); t++) {
				int is_zero = (words[k] & (uint64_t)tested[t]) == 0;
				CHECK_EQ(state.out[8 + t], is_zero);
				CHECK_EQ(state.out[20 + t], !is_zero);
			}
		}
	}
}

TEST(emitter_multiplies_and_divides)
{
	start();
	begin();
	int over = emit_label(e), done = emit_label(e);
	emit_load(e, R0, CTX, IN(0));
	emit_load(e, R1, CTX, IN(1));
	emit_imm(e, R3, 0);
	emit_multiply(e, R0, R1, over);
	emit_goto(e, done);
	emit_in(e, COLD);
	emit_bind(e, over);
	emit_imm(e, R3, 1);
	emit_goto(e, done);
	emit_in(e, HOT);
	emit_bind(e, done);
	emit_store(e, CTX, OUT(0), R0);
	emit_store(e, CTX, OUT(1), R3);
	emit_load(e, R0, CTX, IN(0));
	emit_load(e, R1, CTX, IN(2));
	emit_divide(e);
	emit_store(e, CTX, OUT(2), R0);
	emit_store(e, CTX, OUT(3), R2);
	end();
	place();
	for (size_t i = 0; i < COUNT(words); i++)
		for (size_t k = 0; k < COUNT(words); k++) {
			int64_t x = (int64_t)words[i], y = (int64_t)words[k], product;
			int64_t divisor = y > 0 ? y : 3;
			state.in[0] = words[i];
			state.in[1] = words[k];
			state.in[2] = (uint64_t)divisor;
			call();
			int overflows = __builtin_mul_overflow(x, y, &product);
			CHECK_EQ(state.out[1], overflows);
			CHECK(overflows || state.out[0] == (uint64_t)product);
			CHECK_EQ(state.out[2], x / divisor);
			CHECK_EQ(state.out[3], x % divisor);
		}
}

TEST(emitter_shifts_words)
{
	start();
	for (int bits = 1; bits < 64; bits++) {
		begin();
		emit_load(e, R0, CTX, IN(0));
		emit_move(e, R1, R0);
		emit_shift_right(e, R0, bits);
		emit_shift_left(e, R1, bits);
		emit_store(e, CTX, OUT(0), R0);
		emit_store(e, CTX, OUT(1), R1);
		end();
		place();
		for (size_t k = 0; k < COUNT(words); k++) {
			state.in[0] = words[k];
			call();
			CHECK_EQ(state.out[0], (int64_t)words[k] >> bits);
			CHECK_EQ(state.out[1], words[k] << bits);
		}
	}
}

/* ---- floating point ---- */

static const double numbers[] = {0.0, -0.0, 1.0, -1.0, 1.5, -2.25, 1e300, -1e-300, 3.0, 0.1};

TEST(emitter_computes_with_doubles)
{
	const size_t count = COUNT(numbers) + 3;
	double all[COUNT(numbers) + 3];

	memcpy(all, numbers, sizeof numbers);
	all[count - 3] = (double)INFINITY;
	all[count - 2] = -(double)INFINITY;
	all[count - 1] = (double)NAN;
	start();
	begin();
	const int32_t in = offsetof(struct state, number_in);
	const int32_t out = offsetof(struct state, number_out);
	for (int op = FDO_ADD; op <= FDO_DIV; op++) {
		emit_fload(e, 0, CTX, in);
		emit_fload(e, 1, CTX, in + 8);
		emit_fop(e, (enum emit_fop)op, op & 1, !(op & 1));
		emit_fstore(e, CTX, out + 8 * op, op & 1);
	}
	for (int cmp = FCMP_EQ; cmp <= FCMP_LE; cmp++)
		for (int swaps = 0; swaps < 2; swaps++) {
			emit_fload(e, 0, CTX, in);
			emit_fload(e, 1, CTX, in + 8);
			emit_fcompare(e, (enum emit_fcmp)cmp, swaps, !swaps);
			store_condition(IF_NE, 2 * (2 * cmp + swaps));
			store_condition(IF_EQ, 2 * (2 * cmp + swaps) + 1);
		}
	end();
	place();
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < count; k++) {
			double x = all[i], y = all[k];
			/* An odd operation has its operands the other way round. */
			double wanted[] = {x + y, y - x, x * y, y / x};
			int holds[] = {x == y, y == x, x < y, y < x, x <= y, y <= x};
			state.number_in[0] = x;
			state.number_in[1] = y;
			call();
			for (int op = 0; op < 4; op++)
				CHECK(isnan(wanted[op]) ? isnan(state.number_out[op])
							: memcmp(&wanted[op], &state.number_out[op],
								 sizeof wanted[op]) == 0);
			for (size_t c = 0; c < COUNT(holds); c++) {
				CHECK_EQ(state.out[2 * c], holds[c]);
				CHECK_EQ(state.out[2 * c + 1], !holds[c]);
			}
		}
}

TEST(emitter_converts_integers_to_doubles)
{
	start();
	begin();
	emit_load(e, R0, CTX, IN(0));
	emit_ffrom(e, 1, R0);
	emit_fstore(e, CTX, offsetof(struct state, number_out), 1);
	end();
	place();
	for (size_t k = 0; k < COUNT(words); k++) {
		state.in[0] = words[k];
		call();
		CHECK(state.number_out[0] == (double)(int64_t)words[k]);
	}
}
