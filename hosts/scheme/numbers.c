/* SPDX-License-Identifier: MIT
 * numbers.c: arithmetic on fixnums and flonums, and its procedures. Text forms are in numtext.c.
 */
#include <math.h>

#include "vm.h"

value make_integer(double number)
{
	if (number >= -4611686018427387904.0 && number < 4611686018427387904.0)
		return make_fixnum((int64_t)number);
	return make_flonum(number);
}

static double number_arg(struct context *ctx, const char *who, value v)
{
	if (!is_number(v))
		raise_type(ctx, who, "number", v);
	return double_of(v);
}

static value integer_arg(struct context *ctx, const char *who, value v)
{
	if (is_fixnum(v) || (is_flonum(v) && FLO(v) == floor(FLO(v)) && isfinite(FLO(v))))
		return v;
	raise_type(ctx, who, "integer", v);
}

static value box_integer(__int128 n)
{
	if (n >= FIXNUM_MIN && n <= FIXNUM_MAX)
		return make_fixnum((int64_t)n);
	return make_flonum((double)n);
}

value number_add(struct context *ctx, value a, value b)
{
	if (is_fixnum(a) && is_fixnum(b))
		return box_integer((__int128)fixnum_of(a) + fixnum_of(b));
	double x = number_arg(ctx, "+", a), y = number_arg(ctx, "+", b);
	return make_flonum(x + y);
}

/* ADDI: a subtraction is the addition of a negative constant. */
value number_add_constant(struct context *ctx, value a, value b)
{
	if (fixnum_of(b) < 0)
		number_arg(ctx, "-", a);
	return number_add(ctx, a, b);
}

value number_sub(struct context *ctx, value a, value b)
{
	if (is_fixnum(a) && is_fixnum(b))
		return box_integer((__int128)fixnum_of(a) - fixnum_of(b));
	double x = number_arg(ctx, "-", a), y = number_arg(ctx, "-", b);
	return make_flonum(x - y);
}

value number_mul(struct context *ctx, value a, value b)
{
	if (is_fixnum(a) && is_fixnum(b))
		return box_integer((__int128)fixnum_of(a) * fixnum_of(b));
	if (a == make_fixnum(0) || b == make_fixnum(0)) {
		number_arg(ctx, "*", a);
		number_arg(ctx, "*", b);
		return make_fixnum(0);
	}
	double x = number_arg(ctx, "*", a), y = number_arg(ctx, "*", b);
	return make_flonum(x * y);
}

value number_div(struct context *ctx, value a, value b)
{
	double x = number_arg(ctx, "/", a), y = number_arg(ctx, "/", b);

	if (b == make_fixnum(0))
		raise_error(ctx, "range", "division by zero in", 1, intern("/"));
	if (is_fixnum(a) && is_fixnum(b) && fixnum_of(a) % fixnum_of(b) == 0)
		return box_integer((__int128)fixnum_of(a) / fixnum_of(b));
	return make_flonum(x / y);
}

static void check_divisor(struct context *ctx, const char *who, value b)
{
	if (double_of(b) == 0)
		raise_error(ctx, "range", "division by zero in", 1, intern(who));
}

#define DIVIDE(name, text, exact, inexact) \
	value name(struct context *ctx, value a, value b) \
	{ \
		integer_arg(ctx, text, a); \
		integer_arg(ctx, text, b); \
		check_divisor(ctx, text, b); \
		if (is_fixnum(a) && is_fixnum(b)) { \
			int64_t x = fixnum_of(a), y = fixnum_of(b); \
			return box_integer(exact); \
		} \
		double x = double_of(a), y = double_of(b); \
		return make_flonum(inexact); \
	}

static int64_t floor_modulo(int64_t x, int64_t y)
{
	int64_t r = x % y;
	return r && (r < 0) != (y < 0) ? r + y : r;
}

/* The quotient x / y is rounded, and so may be another integer's; fmod is exact. */
static double floor_fmod(double x, double y)
{
	double r = fmod(x, y);
	return r + (r != 0 && (r < 0) != (y < 0) ? y : 0);
}

DIVIDE(number_quotient, "quotient", (__int128)x / y, (x - fmod(x, y)) / y)
DIVIDE(number_remainder, "remainder", (__int128)(x % y), fmod(x, y))
DIVIDE(number_modulo, "modulo", (__int128)floor_modulo(x, y), floor_fmod(x, y))
DIVIDE(floor_quotient, "floor-quotient", ((__int128)x - floor_modulo(x, y)) / y,
       (x - floor_fmod(x, y)) / y)

/* A double may equal two fixnums. So a fixnum and a flonum that are equal as doubles are compared
 * as integers: the double is an integer of 62 bits and a sign then. */
static int compare(struct context *ctx, const char *who, value a, value b)
{
	if (is_fixnum(a) && is_fixnum(b))
		return (int64_t)a < (int64_t)b ? -1 : a != b;
	double x = number_arg(ctx, who, a), y = number_arg(ctx, who, b);
	if (isnan(x) || isnan(y))
		return 2;
	if (x == y && (is_fixnum(a) || is_fixnum(b))) {
		int64_t n = is_fixnum(a) ? fixnum_of(a) : (int64_t)x;
		int64_t m = is_fixnum(b) ? fixnum_of(b) : (int64_t)y;
		return n < m ? -1 : n > m;
	}
	return x < y ? -1 : x > y;
}

int number_less(struct context *ctx, value a, value b) { return compare(ctx, "<", a, b) == -1; }
int number_less_equal(struct context *ctx, value a, value b)
{
	int order = compare(ctx, "<=", a, b);
	return order == -1 || order == 0;
}
int number_equal(struct context *ctx, value a, value b) { return compare(ctx, "=", a, b) == 0; }

#define FOLD(name, text, unit, step) \
	PRIM(name) \
	{ \
		value sum = argc ? args[0] : make_fixnum(unit); \
		number_arg(ctx, text, sum); \
		for (int64_t i = 1; i < argc; i++) \
			sum = step(ctx, sum, args[i]); \
		return sum; \
	}
FOLD(add, "+", 0, number_add)
FOLD(multiply, "*", 1, number_mul)

PRIM(subtract)
{
	if (argc == 1)
		return is_flonum(args[0]) ? make_flonum(-FLO(args[0]))
					  : number_sub(ctx, make_fixnum(0), args[0]);
	value v = args[0];
	for (int64_t i = 1; i < argc; i++)
		v = number_sub(ctx, v, args[i]);
	return v;
}

PRIM(divide)
{
	if (argc == 1)
		return number_div(ctx, make_fixnum(1), args[0]);
	value v = args[0];
	for (int64_t i = 1; i < argc; i++)
		v = number_div(ctx, v, args[i]);
	return v;
}

#define CHAIN(name, test) \
	PRIM(name) \
	{ \
		int holds = 1; \
		if (argc == 1) \
			number_arg(ctx, "comparison", args[0]); \
		for (int64_t i = 0; i + 1 < argc; i++) { \
			value a = args[i], b = args[i + 1]; \
			if (!(test)) \
				holds = 0; \
		} \
		return make_bool(holds); \
	}
CHAIN(num_equal, number_equal(ctx, a, b))
CHAIN(num_less, number_less(ctx, a, b))
CHAIN(num_greater, number_less(ctx, b, a))
CHAIN(num_less_equal, number_less_equal(ctx, a, b))
CHAIN(num_greater_equal, number_less_equal(ctx, b, a))

PRIM(quotient) { return number_quotient(ctx, args[0], args[1]); }
PRIM(remainder_of) { return number_remainder(ctx, args[0], args[1]); }
PRIM(modulo_of) { return number_modulo(ctx, args[0], args[1]); }
PRIM(floor_quotient_of) { return floor_quotient(ctx, args[0], args[1]); }

PRIM(floor_both)
{
	value both[2] = {floor_quotient(ctx, args[0], args[1]),
			 number_modulo(ctx, args[0], args[1])};
	return make_values(ctx, 2, both);
}

PRIM(truncate_both)
{
	value both[2] = {number_quotient(ctx, args[0], args[1]),
			 number_remainder(ctx, args[0], args[1])};
	return make_values(ctx, 2, both);
}

PREDICATE(number_p, is_number(v))
PREDICATE(integer_p, is_fixnum(v) || (is_flonum(v) && isfinite(FLO(v)) && FLO(v) == floor(FLO(v))))
PREDICATE(rational_p, is_fixnum(v) || (is_flonum(v) && isfinite(FLO(v))))
PREDICATE(exact_integer_p, is_fixnum(v))
PREDICATE(exact_p, (number_arg(ctx, "exact?", v), is_fixnum(v)))
PREDICATE(inexact_p, (number_arg(ctx, "inexact?", v), is_flonum(v)))
PREDICATE(zero_p, number_arg(ctx, "zero?", v) == 0)
PREDICATE(positive_p, number_arg(ctx, "positive?", v) > 0)
PREDICATE(negative_p, number_arg(ctx, "negative?", v) < 0)
PREDICATE(even_p, fmod(double_of(integer_arg(ctx, "even?", v)), 2) == 0 &&
			  (!is_fixnum(v) || !(fixnum_of(v) & 1)))
PREDICATE(odd_p, is_fixnum(integer_arg(ctx, "odd?", v)) ? (int)(fixnum_of(v) & 1)
						       : fmod(FLO(v), 2) != 0)
PREDICATE(nan_p, isnan(number_arg(ctx, "nan?", v)))
PREDICATE(infinite_p, isinf(number_arg(ctx, "infinite?", v)))
PREDICATE(finite_p, isfinite(number_arg(ctx, "finite?", v)))

/* exp, log and the like are exact at the one point where R7RS programs expect an exact result. */
#define FLOAT_EXACT(name, text, at, result, expression) \
	PRIM(name) \
	{ \
		double x = number_arg(ctx, text, args[0]); \
		if (args[0] == make_fixnum(at)) \
			return make_fixnum(result); \
		return make_flonum(expression); \
	}
FLOAT_EXACT(exp_of, "exp", 0, 1, exp(x))
FLOAT_EXACT(sin_of, "sin", 0, 0, sin(x))
FLOAT_EXACT(cos_of, "cos", 0, 1, cos(x))
FLOAT_EXACT(tan_of, "tan", 0, 0, tan(x))
FLOAT_EXACT(asin_of, "asin", 0, 0, asin(x))
FLOAT_EXACT(acos_of, "acos", 1, 0, acos(x))
PRIM(to_inexact) { return make_flonum(number_arg(ctx, "inexact", args[0])); }

#define ROUNDER(name, text, function) \
	PRIM(name) \
	{ \
		double x = number_arg(ctx, text, args[0]); \
		return is_fixnum(args[0]) ? args[0] : make_flonum(function(x)); \
	}
ROUNDER(floor_of, "floor", floor)
ROUNDER(ceiling_of, "ceiling", ceil)
ROUNDER(truncate_of, "truncate", trunc)
ROUNDER(round_of, "round", nearbyint)

PRIM(log_of)
{
	double x = number_arg(ctx, "log", args[0]);

	if (argc == 2)
		return make_flonum(log(x) / log(number_arg(ctx, "log", args[1])));
	return args[0] == make_fixnum(1) ? make_fixnum(0) : make_flonum(log(x));
}

PRIM(atan_of)
{
	double x = number_arg(ctx, "atan", args[0]);

	if (args[0] == make_fixnum(0) &&
	    (argc == 1 || (is_fixnum(args[1]) && fixnum_of(args[1]) > 0)))
		return make_fixnum(0);
	return make_flonum(argc == 1 ? atan(x) : atan2(x, number_arg(ctx, "atan", args[1])));
}

static int64_t integer_root(int64_t n)
{
	int64_t root = (int64_t)sqrt((double)n);

	while (root * root > n)
		root--;
	while ((root + 1) * (root + 1) <= n)
		root++;
	return root;
}

PRIM(sqrt_of)
{
	double x = number_arg(ctx, "sqrt", args[0]);

	if (is_fixnum(args[0]) && fixnum_of(args[0]) >= 0) {
		int64_t root = integer_root(fixnum_of(args[0]));
		if (root * root == fixnum_of(args[0]))
			return make_fixnum(root);
	}
	return make_flonum(sqrt(x));
}

PRIM(exact_integer_sqrt)
{
	if (!is_fixnum(args[0]) || fixnum_of(args[0]) < 0)
		raise_type(ctx, "exact-integer-sqrt", "natural number", args[0]);
	int64_t n = fixnum_of(args[0]), root = integer_root(n);
	value both[2] = {make_fixnum(root), make_fixnum(n - root * root)};
	return make_values(ctx, 2, both);
}

PRIM(expt_of)
{
	double x = number_arg(ctx, "expt", args[0]), y = number_arg(ctx, "expt", args[1]);

	int64_t exponent = is_fixnum(args[1]) ? fixnum_of(args[1]) : -1;
	/* Of 0, 1 and -1 each power to an integer is exact, or is an error. */
	if (exponent < 0 && is_fixnum(args[1]) && is_fixnum(args[0]) && x >= -1 && x <= 1)
		return number_div(ctx, make_fixnum(1),
				  exponent % 2 ? args[0] : number_mul(ctx, args[0], args[0]));
	if (exponent >= 0) {
		value power = args[0], result = make_fixnum(1);
		for (int64_t n = exponent; n > 0; n >>= 1) {
			if (n & 1)
				result = number_mul(ctx, result, power);
			if (n > 1)
				power = number_mul(ctx, power, power);
		}
		return result;
	}
	return make_flonum(pow(x, y));
}

PRIM(exp_mod)
{
	if (!is_fixnum(args[0]) || !is_fixnum(args[1]) || !is_fixnum(args[2]) ||
	    fixnum_of(args[1]) < 0 || fixnum_of(args[2]) < 1)
		raise_type(ctx, "modular-expt", "natural numbers", args[0]);
	__int128 m = fixnum_of(args[2]), power = floor_modulo(fixnum_of(args[0]), (int64_t)m);
	__int128 result = 1 % m;
	for (int64_t n = fixnum_of(args[1]); n > 0; n >>= 1) {
		if (n & 1)
			result = result * power % m;
		power = power * power % m;
	}
	return make_fixnum((int64_t)result);
}

PRIM(to_exact)
{
	double x = number_arg(ctx, "exact", args[0]);

	if (is_fixnum(args[0]))
		return args[0];
	value n = make_integer(x);
	if (is_flonum(n) || x != floor(x))
		raise_type(ctx, "exact", "number with an exact fixnum value", args[0]);
	return n;
}

static value extreme(struct context *ctx, const char *who, value *args, int64_t argc, int sign)
{
	value best = args[0];
	int inexact = is_flonum(best);

	number_arg(ctx, who, best);
	for (int64_t i = 1; i < argc; i++) {
		inexact |= is_flonum(args[i]);
		int order = compare(ctx, who, args[i], best);
		if (order == sign || (order == 2 && !isnan(double_of(best))))
			best = args[i];
	}
	return inexact && is_fixnum(best) ? make_flonum(double_of(best)) : best;
}

PRIM(max_of) { return extreme(ctx, "max", args, argc, 1); }
PRIM(min_of) { return extreme(ctx, "min", args, argc, -1); }

PRIM(absolute)
{
	double x = number_arg(ctx, "abs", args[0]);

	if (is_flonum(args[0]))
		return make_flonum(fabs(x));
	return fixnum_of(args[0]) < 0 ? number_sub(ctx, make_fixnum(0), args[0]) : args[0];
}

static value gcd2(struct context *ctx, value a, value b)
{
	while (double_of(b) != 0) {
		value r = number_remainder(ctx, a, b);
		a = b;
		b = r;
	}
	return absolute(ctx, &a, 1);
}

PRIM(gcd_of)
{
	value result = make_fixnum(0);

	for (int64_t i = 0; i < argc; i++)
		result = gcd2(ctx, integer_arg(ctx, "gcd", args[i]), result);
	return result;
}

PRIM(lcm_of)
{
	value result = make_fixnum(1);

	for (int64_t i = 0; i < argc; i++) {
		value n = integer_arg(ctx, "lcm", args[i]);
		if (double_of(n) == 0)
			return n;
		value part = number_quotient(ctx, result, gcd2(ctx, result, n));
		result = number_mul(ctx, part, n);
		result = absolute(ctx, &result, 1);
	}
	return result;
}

PRIM(square) { return number_mul(ctx, args[0], args[0]); }
PRIM(increment) { return number_add(ctx, args[0], make_fixnum(1)); }
PRIM(decrement) { return number_sub(ctx, args[0], make_fixnum(1)); }

static int64_t bits_arg(struct context *ctx, const char *who, value v)
{
	if (!is_fixnum(v))
		raise_type(ctx, who, "fixnum", v);
	return fixnum_of(v);
}

#define BITS(name, text, unit, operator) \
	PRIM(name) \
	{ \
		int64_t bits = unit; \
		for (int64_t i = 0; i < argc; i++) \
			bits = bits operator bits_arg(ctx, text, args[i]); \
		return make_fixnum(bits); \
	}
BITS(bits_and, "bitwise-and", -1, &)
BITS(bits_or, "bitwise-ior", 0, |)
BITS(bits_xor, "bitwise-xor", 0, ^)

PRIM(bits_not) { return make_fixnum(~bits_arg(ctx, "bitwise-not", args[0])); }

PRIM(bits_shift)
{
	int64_t n = bits_arg(ctx, "arithmetic-shift", args[0]);
	int64_t by = bits_arg(ctx, "arithmetic-shift", args[1]);

	if (n == 0 || by <= 0)
		return make_fixnum(n >> (by < -62 ? 62 : by < 0 ? -by : 0));
	if (by < 63)
		return box_integer((__int128)n * ((int64_t)1 << by));
	return make_flonum(ldexp((double)n, by > 4096 ? 4096 : (int)by));
}

/* length: the table of the file's procedures. */
void init_numbers(struct context *ctx)
{
	static const struct prim_def defs[] = {
		{"+", add, 0, -1},
		{"*", multiply, 0, -1},
		{"-", subtract, 1, -1},
		{"/", divide, 1, -1},
		{"=", num_equal, 1, -1},
		{"<", num_less, 1, -1},
		{">", num_greater, 1, -1},
		{"<=", num_less_equal, 1, -1},
		{">=", num_greater_equal, 1, -1},
		{"quotient", quotient, 2, 2},
		{"remainder", remainder_of, 2, 2},
		{"modulo", modulo_of, 2, 2},
		{"truncate-quotient", quotient, 2, 2},
		{"truncate-remainder", remainder_of, 2, 2},
		{"floor-quotient", floor_quotient_of, 2, 2},
		{"floor-remainder", modulo_of, 2, 2},
		{"floor/", floor_both, 2, 2},
		{"truncate/", truncate_both, 2, 2},
		{"number?", number_p, 1, 1},
		{"complex?", number_p, 1, 1},
		{"real?", number_p, 1, 1},
		{"rational?", rational_p, 1, 1},
		{"integer?", integer_p, 1, 1},
		{"exact-integer?", exact_integer_p, 1, 1},
		{"fixnum?", exact_integer_p, 1, 1},
		{"exact?", exact_p, 1, 1},
		{"inexact?", inexact_p, 1, 1},
		{"zero?", zero_p, 1, 1},
		{"positive?", positive_p, 1, 1},
		{"negative?", negative_p, 1, 1},
		{"even?", even_p, 1, 1},
		{"odd?", odd_p, 1, 1},
		{"nan?", nan_p, 1, 1},
		{"infinite?", infinite_p, 1, 1},
		{"finite?", finite_p, 1, 1},
		{"exp", exp_of, 1, 1},
		{"sin", sin_of, 1, 1},
		{"cos", cos_of, 1, 1},
		{"tan", tan_of, 1, 1},
		{"asin", asin_of, 1, 1},
		{"acos", acos_of, 1, 1},
		{"atan", atan_of, 1, 2},
		{"log", log_of, 1, 2},
		{"sqrt", sqrt_of, 1, 1},
		{"expt", expt_of, 2, 2},
		{"exact-integer-sqrt", exact_integer_sqrt, 1, 1},
		{"floor", floor_of, 1, 1},
		{"ceiling", ceiling_of, 1, 1},
		{"truncate", truncate_of, 1, 1},
		{"round", round_of, 1, 1},
		{"inexact", to_inexact, 1, 1},
		{"exact->inexact", to_inexact, 1, 1},
		{"exact", to_exact, 1, 1},
		{"inexact->exact", to_exact, 1, 1},
		{"max", max_of, 1, -1},
		{"min", min_of, 1, -1},
		{"abs", absolute, 1, 1},
		{"magnitude", absolute, 1, 1},
		{"gcd", gcd_of, 0, -1},
		{"lcm", lcm_of, 0, -1},
		{"square", square, 1, 1},
		{"1+", increment, 1, 1},
		{"1-", decrement, 1, 1},
		{"bitwise-and", bits_and, 0, -1},
		{"bitwise-ior", bits_or, 0, -1},
		{"bitwise-xor", bits_xor, 0, -1},
		{"bitwise-not", bits_not, 1, 1},
		{"arithmetic-shift", bits_shift, 2, 2},
		{"modular-expt", exp_mod, 3, 3},
	};

	DEFINE_PRIMS(ctx, defs);
}
