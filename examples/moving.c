/* SPDX-License-Identifier: MIT
 * moving.c: a precise collector that moves objects, also objects that compiled code names. x86-64.
 *
 * The VM's heap has two generations, each copied by Cheney's algorithm: a nursery, where an object
 * survives one minor collection and is promoted by the next, and an old generation, which a major
 * collection copies whole. Code takes part in both:
 *
 *   minor   ch_refs_visit(CH_REFS_YOUNG) gives the refs of blocks that may name young objects; the
 *           refs are roots, and get the new addresses.
 *   major   ch_mark_begin to ch_mark_end. A copied method marks its owner (ch_mark_owner). A block
 *           reached for the first time hands its refs to `ref`, which returns the new address. An
 *           unreached method is not copied: owner and code are dead, cycles included.
 *
 * A precise VM must find every word that names an object. A shadow stack holds the words that
 * compiled code and C functions keep over a call that may allocate. A constant needs no slot there,
 * since code loads the constant anew, from bytes that the collector rewrites. So a frame of
 * compiled code is on the C stack while objects move, and the library holds the block for that
 * frame.
 *
 * The program checks every sum, the identity of objects, the visits of minor collections, and that
 * all code died in the end. Old copies are overwritten, so a word without the new address is
 * seen. */
#include <codeheap/codeheap.h>
#include <codeheap/collector.h>

#include <stdio.h>
#include <stdlib.h>

typedef uintptr_t word; /* 0, a number (n << 1 | 1), or the address of an object */

/* All objects have one size. PAIR: two words. METHOD: an owner's handle and a word. */
enum kind { PAIR, METHOD };
struct object {
	struct object *moved_to; /* NULL, or the copy of an object left behind */
	uint32_t kind, age;
	word first, rest;
};
struct space {
	struct object *objects;
	size_t used, scanned, capacity;
};

enum {
	NURSERY_OBJECTS = 2048,
	OLD_OBJECTS = 16384,
	METHODS = 64,   /* callable, each by the next method: the depth of the stack */
	CONSTANTS = 20, /* numbers in the list that a method's code names */
	GARBAGE = 100,  /* objects that each call makes and drops */
	ROUNDS = 400,
	REPLACED = 8, /* methods compiled anew in a round */
	SLACK = 16,   /* blocks that a chance word on the stack may hold at the end */
};

static struct space young, young_copy, old, old_copy;
static bool is_major;
static struct object *remembered[OLD_OBJECTS]; /* old objects that name young objects */
static size_t remembered_count;
static word shadow[256], *shadow_top = shadow;
static struct ch_heap *heap;
static struct ch_vm *vm;
static const void *const *cells[METHODS]; /* of the method in each place */
static word methods;                      /* the list of methods: the only root besides the stack */
static long sums[METHODS];                /* of their constants, as the C side knows them */
static struct {
	size_t minors, majors, moved, refs_in_minors, made, freed;
} counts;
static int depth_now; /* compiled frames on the stack */

static void die(const char *why)
{
	fprintf(stderr, "moving: %s\n", why);
	exit(1);
}

/* The same numbers in each run. */
static unsigned random_below(unsigned limit)
{
	static unsigned state = 1;
	state = state * 1664525u + 1013904223u;
	return (state >> 16) % limit;
}

static void ok(enum ch_status status)
{
	if (status != CH_OK)
		die(ch_why());
}

/* --- the collector --- */

static bool is_in(const struct space *space, word w)
{
	return !(w & 1) && w - (word)space->objects < space->capacity * sizeof(struct object);
}

static void space_create(struct space *space, size_t capacity)
{
	space->objects = calloc(capacity, sizeof(struct object));
	space->capacity = capacity;
	if (!space->objects)
		die("no memory");
}

/* The copy becomes the space; the old space becomes the room for the next copy. */
static void space_flip(struct space *space, struct space *copy)
{
	struct space from = *space;
	memset(from.objects, 0xdb, from.used * sizeof(struct object));
	from.used = 0;
	*space = *copy;
	*copy = from;
}

/* The object's address after this collection. Copies the object at the first visit. */
static word evacuate(word w)
{
	if (!is_in(&young, w) && !(is_major && is_in(&old, w)))
		return w;
	struct object *from = (struct object *)w;
	if (!from->moved_to) {
		struct space *to =
			is_major || from->age ? is_major ? &old_copy : &old : &young_copy;
		if (to->used == to->capacity)
			die("the heap is full");
		struct object *copy = &to->objects[to->used++];
		*copy = *from;
		copy->age = 1;
		from->moved_to = copy;
		counts.moved += depth_now > 0;
	}
	return (word)from->moved_to;
}

static void remember(struct object *object)
{
	if (remembered_count == OLD_OBJECTS)
		die("too many old objects name young ones");
	remembered[remembered_count++] = object;
}

static void scan(struct object *object, struct ch_marker *marker)
{
	if (object->kind == PAIR)
		object->first = evacuate(object->first);
	else if (marker) /* hands the refs of code newly reached to evacuate_ref */
		ch_mark_owner(marker, (struct ch_owner){object->first});
	object->rest = evacuate(object->rest);
	bool names_young = (object->kind == PAIR && is_in(&young_copy, object->first)) ||
			   is_in(&young_copy, object->rest);
	if (names_young && !is_in(&young_copy, (word)object))
		remember(object);
}

static void scan_copies(struct ch_marker *marker)
{
	struct space *promoted = is_major ? &old_copy : &old;
	while (promoted->scanned < promoted->used || young_copy.scanned < young_copy.used) {
		while (promoted->scanned < promoted->used)
			scan(&promoted->objects[promoted->scanned++], marker);
		while (young_copy.scanned < young_copy.used)
			scan(&young_copy.objects[young_copy.scanned++], marker);
	}
}

static void evacuate_roots(void)
{
	methods = evacuate(methods);
	for (word *slot = shadow; slot < shadow_top; slot++)
		*slot = evacuate(*slot);
}

/* All refs are roots here, of dead code too: a minor collection does not ask. */
static uintptr_t visit_ref(void *user, uintptr_t w, bool *is_young)
{
	(void)user;
	counts.refs_in_minors++;
	w = evacuate(w);
	*is_young = is_in(&young_copy, w);
	return w;
}

static void collect_minor(void)
{
	struct ch_marker *marker;
	ok(ch_mark_begin(heap, &marker));
	is_major = false;
	young_copy.scanned = 0;
	old.scanned = old.used; /* promoted objects come behind */
	size_t count = remembered_count;
	remembered_count = 0;
	evacuate_roots();
	for (size_t i = 0; i < count; i++) /* may remember it again, in a place already read */
		scan(remembered[i], NULL);
	ok(ch_refs_visit(marker, CH_REFS_YOUNG, visit_ref, NULL));
	scan_copies(NULL);
	ok(ch_mark_end(marker, false)); /* no code dies */
	space_flip(&young, &young_copy);
	counts.minors++;
}

/* ops.ref: for a block reached by this cycle. The library writes the new word into the code. */
static uintptr_t evacuate_ref(void *user, uintptr_t w)
{
	(void)user;
	return evacuate(w);
}

static void collect_major(void)
{
	struct ch_marker *marker;
	is_major = true;
	old_copy.scanned = 0;
	remembered_count = 0; /* no object stays young */
	ok(ch_mark_begin(heap, &marker));
	evacuate_roots();
	ch_mark_stacks(marker); /* code that a frame returns to is alive, its method or not */
	scan_copies(marker);
	ok(ch_mark_end(marker, true));
	space_flip(&young, &young_copy);
	space_flip(&old, &old_copy);
	counts.majors++;
}

/* Runs where the VM holds no lock and every word in use is in a slot. */
static void collect(bool wants_major)
{
	if (wants_major || old.capacity - old.used < young.used)
		collect_major();
	else
		collect_minor();
	ch_thread_poll(); /* a step of the sweep, and block_freed */
}

static void push(word w)
{
	*shadow_top++ = w;
}

static word pop(void)
{
	return *--shadow_top;
}

/* The words for a new object are in slots while room is made. */
static word make(enum kind kind, word first, word rest)
{
	push(rest);
	push(first);
	while (young.used == young.capacity)
		collect(false);
	first = pop();
	rest = pop();
	struct object *object = &young.objects[young.used++];
	*object = (struct object){.kind = kind, .first = first, .rest = rest};
	return (word)object;
}

/* For every store into an object that is not new. */
static void set_first(word w, word first)
{
	struct object *object = (struct object *)w;
	object->first = first;
	if (is_in(&old, w) && is_in(&young, first))
		remember(object);
}

/* --- what compiled code calls --- */

static void compile(int place);

/* Makes garbage, and goes on in the next method. The deepest call collects and drops a running
 * method: the method's frame is still there, and its constants are needed at the return. */
static long descend(long place)
{
	depth_now++;
	for (int i = 0; i < GARBAGE; i++)
		make(PAIR, (word)i << 1 | 1, 0);
	long sum = 0;
	if (place > 0) {
		sum = ((long (*)(long)) * cells[place - 1])(place - 1);
	} else {
		compile(METHODS / 2);
		collect(counts.made % 4 == 0);
	}
	depth_now--;
	return sum;
}

/* Joins the local from a slot, the constant from the code's bytes, and the sum from below. */
static long join(word local, word constant, long below)
{
	if (local != constant)
		die("a slot and a ref name the same object, and differ");
	long sum = 0;
	for (word w = local; w; w = ((struct object *)w)->rest) {
		word number = ((struct object *)w)->first;
		sum += number & 1 ? (long)number >> 1 : 0; /* one element is the method */
	}
	return sum + below;
}

/* --- the compiler --- */

static struct ch_code code; /* off the stack, where addresses would hold the block */
static uint32_t at;

static void emit(const char *bytes, size_t count)
{
	memcpy(code.write + at, bytes, count);
	at += (uint32_t)count;
}
#define EMIT(bytes) emit(bytes, sizeof(bytes) - 1)

static void emit_word(uint64_t value)
{
	memcpy(code.write + at, &value, sizeof value);
	at += sizeof value;
}

/* A word that the collector rewrites. Nothing may move between the store and the attachment. */
static void emit_ref(word w)
{
	emit_word(w);
	ok(ch_ref_attach(code.block, code.exec + at - sizeof w));
}

/* The fallback, never called: each method is compiled first. */
static long interpret(long place)
{
	(void)place;
	die("a method was called that is not compiled");
	return 0;
}

/* long method(long place): keeps the constant as a local, calls descend(place), joins the three. */
static void emit_method(word constants)
{
	at = code.entry_bytes;
	EMIT("\x55\x48\x89\xe5\x53\x50"); /* push rbp; mov rbp, rsp; push rbx; push rax */
	EMIT("\x48\xbb");                 /* mov rbx, &shadow_top */
	emit_word((uintptr_t)&shadow_top);
	EMIT("\x48\xb8"); /* mov rax, constants */
	emit_ref(constants);
	EMIT("\x48\x8b\x0b\x48\x89\x01\x48\x83\x03\x08"); /* *shadow_top++ = rax */
	EMIT("\x48\xb8");                                 /* mov rax, descend; call rax */
	emit_word((uintptr_t)descend);
	EMIT("\xff\xd0");
	EMIT("\x48\x89\xc2");                             /* mov rdx, rax */
	EMIT("\x48\x83\x2b\x08\x48\x8b\x0b\x48\x8b\x39"); /* rdi = *--shadow_top */
	EMIT("\x48\xbe");                                 /* mov rsi, constants */
	emit_ref(constants);
	EMIT("\x48\xb8"); /* mov rax, join; call rax */
	emit_word((uintptr_t)join);
	EMIT("\xff\xd0\x59\x5b\x5d\xc3"); /* pop rcx; pop rbx; pop rbp; ret */
}

/* Makes a new method in a place of the list. Methods in odd places are cycles: the constants name
 * the method, and so does the slot that keeps the constants during a call. For methods in even
 * places only the C stack tells that they run. */
static void compile(int place)
{
	struct ch_owner owner;
	char name[32];
	snprintf(name, sizeof name, "method %d", place);
	/* Before the owner: a collection ends an owner that nothing marks. */
	push(make(METHOD, 0, 0));
	ok(ch_owner_create(vm, name, (const void *)interpret, NULL, &owner));
	((struct object *)shadow_top[-1])->first = owner.bits;
	push(make(PAIR, place % 2 ? shadow_top[-1] : 1, 0));
	sums[place] = 0;
	for (int i = 0; i < CONSTANTS; i++) {
		long number = random_below(1000);
		sums[place] += number;
		push(make(PAIR, (word)number << 1 | 1, pop()));
	}
	struct ch_open open = {.size = sizeof open, .owner = owner, .hot_bytes = 128};
	ok(ch_block_open(&open, &code));
	emit_method(pop());
	code.used_to = at;
	ok(ch_block_commit(&code, 1));
	ok(ch_owner_set_entry(owner, code.block));
	word element = methods;
	for (int i = 0; i < place; i++)
		element = ((struct object *)element)->rest;
	set_first(element, pop());
	cells[place] = ch_owner_cell(owner);
	counts.made++;
}

static void block_freed(void *user, void *block_user)
{
	(void)user, (void)block_user;
	counts.freed++;
}

/* --- the program --- */

/* Calls the methods one below the other. Each returns its own sum and all sums below. */
static void run_round(void)
{
	for (int i = 0; i < REPLACED; i++)
		compile((int)random_below(METHODS));
	long wanted = 0;
	for (int i = 0; i < METHODS; i++)
		wanted += sums[i];
	long got = ((long (*)(long)) * cells[METHODS - 1])(METHODS - 1);
	if (got != wanted)
		die("a sum is wrong");
	if (shadow_top != shadow)
		die("the shadow stack is not even");
}

static void check_counts(void)
{
	/* A constant is young in two minor collections at most, and a block has two refs. */
	if (counts.refs_in_minors > counts.made * 4)
		die("minor collections visited refs that were not young");
	if (counts.moved < 10000 || counts.majors < 10 || counts.minors < 100)
		die("not enough happened");
	if (counts.freed + SLACK < counts.made)
		die("code stayed alive");
}

int main(void)
{
	struct ch_ops ops = {.size = sizeof ops, .ref = evacuate_ref, .block_freed = block_freed};
	struct ch_config config;
	ch_config_init(&config);
	config.driver = CH_DRIVER_HOST;
	ok(ch_heap_create(&config, &heap));
	ok(ch_vm_attach(heap, &ops, NULL, &vm));
	ok(ch_thread_attach(heap, NULL, NULL));
	space_create(&young, NURSERY_OBJECTS);
	space_create(&young_copy, NURSERY_OBJECTS);
	space_create(&old, OLD_OBJECTS);
	space_create(&old_copy, OLD_OBJECTS);
	for (int i = 0; i < METHODS; i++)
		methods = make(PAIR, 0, methods);
	for (int i = 0; i < METHODS; i++)
		compile(i);
	for (int i = 0; i < ROUNDS; i++)
		run_round();
	methods = 0;
	collect(true);
	for (int i = 0; i < METHODS; i++) /* each poll sweeps a step */
		ch_thread_poll();
	check_counts();
	printf("%zu rounds, each sum right: %zu minor and %zu major collections\n", (size_t)ROUNDS,
	       counts.minors, counts.majors);
	printf("%zu objects moved while code that names objects was on the stack\n", counts.moved);
	printf("%zu refs visited by minor collections; all would have been %zu\n",
	       counts.refs_in_minors, counts.minors * METHODS * 2);
	printf("%zu methods compiled, the code of %zu freed\n", counts.made, counts.freed);
	ok(ch_vm_detach(vm));
	ok(ch_thread_detach(heap));
	ok(ch_heap_destroy(heap));
	return 0;
}
