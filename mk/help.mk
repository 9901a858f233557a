# SPDX-License-Identifier: MIT
# What `make help` and `make vars` print.

help:
	@sed -n 's/^#help //p' mk/help.mk
#help make                builds what is installed, in build/                                         10 s
#help make check          every test; T=name runs one test, TIER=core the core tier               11 min
#help                     SLOWEST=10 prints the slowest; STRICT=1: no second try, and no skip that no list has
#help make check-timed    the tests that depend on time or load, one at a time, the best of three  < 120 s
#help make steady         `make check` RUNS=5 times beside LOAD=4 endless loops, what failed and what was unsteady
#help make check TIER=core  unit, API and adversary cases                                            90 s
#help make hostile        the core tier in processes that have something taken away; WITH=mdwe     < 1000 s
#help make demo           each promise attacked; half a million procedures beside others; build/demo/index.html
#help make stress         random API programs against a model, Scheme against its interpreter; SECONDS=60 SEED=1
#help make fuzz           bytes as programs over the interface against a model, by libFuzzer; SECONDS=60
#help make bench          figures beside their peers, in build/bench.json; WRITE=1: docs/figures.md < 210 s
#help make bench-compare OLD=file   what got worse by more than 15 % since that bench.json           1 s
#help make instructions  of each hot path, by callgrind, beside bench/instructions.list; WRITE=1 writes it   60 s
#help make lint           include direction, exports, docs, words, lengths, symbol allowlists       40 s
#help make measure        the size of the library in tables; WRITE=1 puts them into docs/design.md, CHECK=1 compares  10 s
#help make tidy           contracts of locks and world by clang, clang-tidy, cppcheck, -fanalyzer; PARTS=some  < 180 s
#help make model          the protocol models in spin, with their mutants                        < 180 s
#help make orders         what is read and written without a lock, in a weak memory, with weaker orders; T=row  < 300 s
#help make mutants        breaks the code on purpose, one way at a time; each must be noticed; T=name  < 3000 s
#help make coverage       the lines and branches of the library that its tests run, by file; MISSING=1 names the others  < 600 s
#help make tests-of FILE=f  the test programs and cases that run lines of the file, and its planted mutants         1 s
#help make test-index     the index that it reads, from a run of each case on objects that count             < 600 s
#help make breaks         breaks that nobody planned, and whether a test notices; SECONDS=1200 SEED=1 ROOM=pages REST=1
#help make ci             all configurations, emulators, sanitizers, hostile, lint, model, mutants, ...; ONLY=name,name  < 5400 s
#help make install        headers, libraries, .pc files, tools, man pages, gdb commands; PREFIX=/usr/local (DESTDIR=)     2 s
#help make uninstall      takes away what `make install` put there, with the same settings           1 s
#help make dist           the sources as build/libcodeheap-VERSION.tar.gz, the same bytes each time   1 s
#help make python         a host that others wrote, on the installed library in build/installed; so asmjit and each
#help                     other folder of hosts/ that has a Makefile                                 10 s
#help make clean          removes build/, or what BUILD names                                        1 s
#help
#help Settings: CC=gcc|clang  GC=bdw|none  SAN=address,undefined|thread  ALLOC=jemalloc|malloc
#help           WITH=restriction  FEW=1 (make hostile: one of them, some programs)
#help           VALGRIND=1 (the test programs behind memcheck, with its default flags)
#help           CROSS=aarch64-linux-gnu-|riscv64-linux-gnu- (the latter with GC=none)  EMULATOR=words before each test program
#help           PAGE=4096..65536  SYSTEM_PAGE=65536 (pretended)  BACKEND=dual|memfd|procmem  T=name
#help           TIER=core  V=1  STORM_MS=ms  JOBS=3  SETUP=no  BUILD=folder  EXTRA_CFLAGS=flags EXTRA_LDFLAGS=flags  DEBUG=1 (asserts legal moves)
#help           WERROR=1 (warnings are errors: in CI and in the tests of a checkout)

vars:
	@printf '%s\n' 'CC=$(CC)' 'ARCH=$(ARCH)' 'GC=$(GC)' 'SAN=$(SAN)' 'ALLOC=$(ALLOC)' 'CROSS=$(CROSS)' \
	  'BUILD=$(BUILD)' 'CFLAGS=$(CSTD) $(BASE) $(LIB_FLAGS)' 'CODEHEAP_LIBS=$(GC_LIBS) -lm -pthread' \
	  'AR=$(AR)' 'EMULATOR=$(EMULATOR)' 'VERSION=$(version)' $(foreach folder,PREFIX bindir libdir includedir datadir mandir docdir,$(folder)=$(call quoted,$($(folder))))
