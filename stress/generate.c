/* SPDX-License-Identifier: MIT
 * generate.c: random programs from a handful of shapes: deep recursion, redefined at the bottom;
 * loops over procedures that change; fibers, suspended across changes and collections; escapes out
 * of changed frames; call/cc in tail position; threads that change procedures of other threads;
 * arguments in every number and way. Every shape prints results. */
#include "generate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { HELPERS = 6, DEPTH_MAX = 60 };

static uint64_t next(struct program *p)
{
	p->random ^= p->random >> 12;
	p->random ^= p->random << 25;
	p->random ^= p->random >> 27;
	return p->random * UINT64_C(2685821657736338717);
}

static int below(struct program *p, int bound)
{
	return (int)((next(p) >> 33) % (uint64_t)bound);
}

__attribute__((format(printf, 2, 3))) static void put(struct program *p, const char *format, ...)
{
	for (;;) {
		va_list arguments;
		va_start(arguments, format);
		size_t room = p->capacity - p->length;
		int n = vsnprintf(p->text ? p->text + p->length : NULL, room, format, arguments);
		va_end(arguments);
		if (n >= 0 && (size_t)n < room) {
			p->length += (size_t)n;
			return;
		}
		p->capacity = p->capacity ? p->capacity * 2 : 16384;
		p->text = realloc(p->text, p->capacity);
		if (!p->text)
			abort();
	}
}

/* --- expressions over the variables a and b, and helpers below a number, so that calls end --- */

static void expression(struct program *p, int depth, int helpers);

static void two(struct program *p, int depth, int helpers)
{
	expression(p, depth - 1, helpers);
	put(p, " ");
	expression(p, depth - 1, helpers);
}

static void expression(struct program *p, int depth, int helpers)
{
	static const char *const leaves[] = {"a", "b", "1", "2", "7", "-3", "1.5", "100"};
	static const char *const heads[] = {
		"(+ ",      "(- ",         "(+ ",     "(- ",
		"(min ",    "(car (cons ", "(if (< ", "(vector-ref (vector ",
		"(let ((a "};
	if (depth == 0 || below(p, 5) == 0) {
		put(p, "%s", leaves[below(p, 8)]);
		return;
	}
	int shape = below(p, helpers ? 12 : 9);
	if (shape >= 9) {
		put(p, "(h%d ", below(p, helpers));
		two(p, depth, helpers);
		put(p, ")");
		return;
	}
	put(p, "%s", heads[shape]);
	if (shape == 8) {
		expression(p, depth - 1, helpers);
		put(p, ")) ");
		expression(p, depth - 1, helpers);
	} else {
		two(p, depth, helpers);
	}
	if (shape == 5)
		put(p, ")");
	if (shape == 7)
		put(p, ") %d", below(p, 2));
	if (shape == 6) {
		put(p, ") ");
		two(p, depth, helpers);
	}
	put(p, ")");
}

static void helper(struct program *p, int i)
{
	put(p, "(define (h%d a b) ", i);
	expression(p, 3, i);
	put(p, ")\n");
}

/* --- events in the middle of a computation; no event changes the meaning --- */

/* A procedure of the same meaning takes a name's place: callers are invalidated wherever they
 * stand. The running procedure's replacement calls the old procedure. */
static void event(struct program *p, const char *running, const char *arguments)
{
	p->operations++;
	switch (below(p, 10)) {
	case 0:
		put(p, "(code-collect!)");
		break;
	case 1:
		put(p, "(code-discard!)");
		break;
	case 2:
		put(p, "(begin (code-discard!) (code-collect!))");
		break;
	case 3:
	case 4:
	case 5:
		put(p, "(set! step (let ((old step)) (lambda (a b) (+ a b 1))))");
		break;
	default:
		put(p, "(set! %s (let ((old %s)) (lambda (%s) (old %s))))", running, running,
		    arguments, arguments);
		break;
	}
}

static void deep(struct program *p)
{
	int depth = 5 + below(p, DEPTH_MAX);
	put(p, "(define (step a b) (+ a b 1))\n");
	put(p, "(define (deep n a b) (if (= n 0) (begin ");
	event(p, "deep", "n a b");
	put(p, " b) (+ (step n a) (deep (- n 1) ");
	expression(p, 2, HELPERS);
	put(p, " b) (step 1 n))))\n");
	put(p, "(show (deep %d 2 3))(show (deep %d 1 2))\n", depth, depth / 2);
}

static void redefined(struct program *p)
{
	p->operations++;
	put(p, "(define (self n a b) (if (= n %d) (set! self (lambda (n a b) (+ n ", below(p, 20));
	expression(p, 2, HELPERS);
	put(p, ")))) (if (= n 0) a (+ 1 (self (- n 1) b a))))\n");
	put(p, "(show (self %d 1 2))(show (self 5 2 1))\n", 20 + below(p, 20));
}

static void loop(struct program *p)
{
	put(p, "(define (step a b) (+ a b 1))\n");
	put(p,
	    "(define (round n) (let loop ((i 0) (a 0)) (if (= i n) a (begin (if (= (modulo i %d) "
	    "0) ",
	    7 + below(p, 40));
	event(p, "round", "n");
	put(p, ") (loop (+ i 1) (let ((b i)) (modulo (round-off (+ (step a i) ");
	expression(p, 2, HELPERS);
	put(p, ")) 10007)))))))\n(show (round %d))\n", 50 + below(p, 200));
}

static void fibers(struct program *p)
{
	int count = 2 + below(p, 4);
	put(p, "(define (step a b) (+ a b 1))\n");
	put(p, "(define (walk n a b) (if (> n 0) (begin (fiber-yield (+ n (step a b))) (+ 1 (walk "
	       "(- n 1) b ");
	expression(p, 2, HELPERS);
	put(p, "))) 0))\n");
	put(p, "(define fs (map (lambda (k) (make-fiber (lambda () (walk (+ k 3) k 2)))) (list");
	for (int i = 0; i < count; i++)
		put(p, " %d", 1 + below(p, 9));
	put(p, ")))\n(define (turn) (map (lambda (f) (if (fiber-done? f) 'done (fiber-resume f "
	       "0))) fs))\n");
	for (int i = 0; i < 4; i++) {
		put(p, "(show (turn))");
		event(p, "walk", "n a b");
		put(p, "\n");
	}
	put(p, "(let loop ((i 0)) (if (< i 12) (begin (show (turn)) (loop (+ i 1)))))\n");
}

static void escape(struct program *p)
{
	put(p, "(define (step a b) (+ a b 1))\n");
	put(p, "(define (dive n k a b) (if (= n 0) (begin ");
	event(p, "dive", "n k a b");
	put(p, " (k ");
	expression(p, 2, HELPERS);
	put(p, ")) (+ 1 (step (dive (- n 1) k b a) n))))\n");
	put(p,
	    "(show (let loop ((i 0) (s 0)) (if (= i %d) s (loop (+ i 1) (+ s (round-off "
	    "(call/cc (lambda (k) (dive %d k i 2)))))))))\n",
	    3 + below(p, 10), 3 + below(p, 40));
}

/* Receivers of call/cc that call call/cc again: in tail position, by apply, inside of a waiting
 * expression. The last receiver may leave by any earlier escape. */
static void hops(struct program *p)
{
	static const char *const ways[][2] = {
		{"(call/cc ", ")"},
		{"(apply call/cc (list ", "))"},
		{"((if (odd? n) call/cc call/ec) ", ")"},
		{"(+ 1 (call/cc ", "))"},
		{"(dynamic-wind list (lambda () (call/cc ", ")) list)"},
	};
	int way = below(p, 5), other = below(p, 5), turn = 1 + below(p, 4);
	put(p, "(define (hop n k a b) (if (= n 0) (begin ");
	event(p, "hop", "n k a b");
	put(p, below(p, 2) ? " (k a)) " : " a) ");
	put(p, "(let ((receiver (lambda (j) (hop (- n 1) (if (= (modulo n %d) 0) j k) b ", turn);
	expression(p, 1, HELPERS);
	put(p, ")))) (if (= (modulo n %d) 0) %sreceiver%s %sreceiver%s))))\n", 1 + below(p, 4),
	    ways[way][0], ways[way][1], ways[other][0], ways[other][1]);
	put(p, "(show (let loop ((i 0) (s 0)) (if (= i %d) s (loop (+ i 1) (+ s (round-off "
	       "(call/cc (lambda (k) (hop %d k i 2)))))))))\n",
	    3 + below(p, 10), 3 + below(p, 40));
}

/* A call of `gather` with fresh objects, by name or by apply, sometimes with more objects than a
 * frame has slots. */
static void gather_call(struct program *p)
{
	int spelled = 3 + below(p, below(p, 4) ? 8 : 40);
	int listed = below(p, 3) ? 0 : 1 + below(p, 40);
	put(p, listed ? "(apply gather" : "(gather");
	for (int i = 0; i < spelled; i++) {
		put(p, " (list %d ", i);
		expression(p, 1, HELPERS);
		put(p, ")");
	}
	if (listed)
		put(p, " (map (lambda (k) (cons k a)) (iota %d))", listed);
	put(p, ")");
}

/* Callees with and without a rest list; tail calls and plain calls; known code and new code. */
static void passing(struct program *p)
{
	static const char *const callees[] = {
		"(define (gather . x) x)", "(define (gather a . x) (cons a x))",
		"(define (gather a b c . x) (let* ((y (cons b c)) (z (list a y))) (cons z x)))",
		"(define gather list)",
		"(define (gather a . x) (if (null? x) a (apply gather x)))"};
	static const char *const around[][2] = {
		{"", ""}, {"(let ((v ", ")) v)"}, {"((lambda () ", "))"}, {"(cons a ", ")"}};
	put(p, "%s\n(define (step a b) (+ a b 1))\n(define (pass n a b) (if (= n 0) (begin ",
	    callees[below(p, 5)]);
	event(p, "pass", "n a b");
	put(p, " 0) ");
	int way = below(p, 4);
	put(p, "%s", around[way][0]);
	gather_call(p);
	put(p, "%s))\n", around[way][1]);
	put(p, "(show (pass 1 2 3))(show (pass 0 2 3))\n");
	put(p, "(show (map (lambda (n) (pass n n 1)) (iota %d)))\n", 2 + below(p, 6));
	for (int i = 1 + below(p, 4); i > 0; i--) {
		way = below(p, 4);
		put(p, "(show (eval '((lambda (a b) %s", around[way][0]);
		gather_call(p);
		put(p, "%s) %d 2)))\n", around[way][1], i);
	}
}

static void threads(struct program *p)
{
	int count = 2 + below(p, 2);
	put(p, "(define (step a b) (+ a b 1))\n");
	put(p, "(define (work n a b) (if (= n 0) (begin ");
	event(p, "work", "n a b");
	put(p, " 0) (+ (step n 1) (work (- n 1) b a))))\n");
	put(p, "(define (repeat m n) (let loop ((i 0) (s 0)) (if (= i m) s (loop (+ i 1) (+ s "
	       "(work n 1 2))))))\n");
	put(p, "(show (map thread-join (map (lambda (n) (spawn (lambda () (repeat n n)))) (list");
	for (int i = 0; i < count; i++)
		put(p, " %d", 5 + below(p, 25));
	put(p, "))))\n");
}

void program_generate(struct program *p)
{
	static void (*const shapes[])(struct program *) = {deep,   deep,   redefined, loop,
							   fibers, escape, hops,      passing};
	const int shape_count = sizeof shapes / sizeof *shapes;
	p->length = 0;
	put(p, "(define (show x) (write x) (newline))\n");
	put(p, "(define (round-off x) (if (exact? x) x (if (and (< x 1e15) (> x -1e15)) "
	       "(inexact->exact (truncate x)) 1)))\n");
	for (int i = 0; i < HELPERS; i++)
		helper(p, i);
	int parts = 2 + below(p, 3);
	for (int i = 0; i < parts; i++)
		shapes[below(p, shape_count)](p);
	if (below(p, 6) == 0)
		threads(p);
	put(p, "(show (h%d 3 4))\n", HELPERS - 1);
}
