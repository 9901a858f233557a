# SPDX-License-Identifier: MIT
# Builds, tests and installs libcodeheap; `make help` lists the targets, `make vars` the settings of one build.
# Every combination of CC, GC, SAN, ALLOC and CROSS has its own folder below build/; plain gcc uses build/ itself.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

# Two jobs unless the caller chose; a submake inherits the jobserver and must not ask again.
ifeq ($(MAKELEVEL),0)
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j2
endif
endif

# ---- what is built -------------------------------------------------------------------------------------------------
# make gives CC a default value, so `?=` would never take effect.
ifeq ($(origin CC),default)
CC := $(CROSS)gcc
endif
ifeq ($(origin CXX),default)
# C++ is compiled by CC's sister: sanitizers of two compilers do not mix.
CXX := $(if $(findstring clang,$(notdir $(firstword $(CC)))),$(subst clang,clang++,$(CC)),$(CROSS)g++)
endif
ifeq ($(origin AR),default)
AR := $(CROSS)ar
endif
LD_R := $(CROSS)ld -r
OBJCOPY := $(CROSS)objcopy
GC ?= bdw
SAN ?=
# 1: the libraries assert the legal moves of states too (CH_CHECK in arch/base.h); what tests link always does.
DEBUG ?=
# 1: the objects that tests link count what they run (make coverage).
COVERAGE ?=
CROSS ?=
# Where `make install` puts things; the folders have the names that packagers know.
PREFIX ?= $(or $(prefix),/usr/local)
DESTDIR ?=
bindir ?= $(PREFIX)/bin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
datadir ?= $(PREFIX)/share
mandir ?= $(datadir)/man
version := $(shell sed -n 's/^.define CH_VERSION_TEXT "\(.*\)"/\1/p' codeheap/codeheap.h)
$(if $(version),,$(error codeheap/codeheap.h has no CH_VERSION_TEXT))

# The set-up may have yet to fetch the cross compiler, which so cannot be asked.
machine := $(if $(CROSS),$(notdir $(CROSS)),$(shell $(CC) -dumpmachine 2>/dev/null || uname -m))
ARCH := $(firstword $(subst -, ,$(machine)))
# The machines that there is a port to, by their files.
other_arch := $(filter-out $(ARCH),$(patsubst arch/%.S,%,$(wildcard arch/*.S)))
# Libraries of a foreign architecture lie in a folder of their own (tools/sysroot.sh), where Debian has them: tools/machines
# says so. Elsewhere the programs are static, and GC=none is the caller's to say.
sysroot := $(if $(CROSS),$(addprefix build/sysroot-,$(shell sed -n 's/^debian //p' tools/machines/$(ARCH).list)))
static := $(if $(CROSS),$(if $(sysroot),,-static))

# Debian's jemalloc is not instrumented, and not everywhere: builds without it use malloc.
ALLOC_DEFAULT := $(if $(SAN)$(static),malloc,jemalloc)
ALLOC ?= $(ALLOC_DEFAULT)
ifeq ($(filter bdw none,$(GC)),)
$(error GC must be bdw or none)
endif
ifeq ($(filter jemalloc malloc,$(ALLOC)),)
$(error ALLOC must be jemalloc or malloc)
endif

empty :=
space := $(empty) $(empty)
comma := ,
cc_name := $(notdir $(firstword $(CC)))
variant := $(if $(filter $(CROSS)gcc,$(cc_name)),,$(patsubst clang-%,clang,$(cc_name)))
variant += $(if $(CROSS),cross-$(patsubst %-,%,$(notdir $(CROSS))))
variant += $(if $(filter none,$(GC)),gc-none)
variant += $(if $(filter 1,$(DEBUG)),debug)
variant += $(if $(filter 1,$(COVERAGE)),coverage)
variant += $(if $(SAN),san-$(subst $(comma),-,$(SAN)))
variant += $(if $(filter $(ALLOC_DEFAULT),$(ALLOC)),,alloc-$(ALLOC))
# Where all builds of `make ci` lie.
BUILD_ROOT ?= build
BUILD ?= $(BUILD_ROOT)$(if $(strip $(variant)),/$(subst $(space),-,$(strip $(variant))))
# The folder of the checkout may have a space in its name; so only what is quoted says it.
build_path := $(if $(filter /%,$(BUILD)),,$(CURDIR)/)$(BUILD)
OBJ := $(BUILD)/obj
TOBJ := $(BUILD)/obj-test

WARN := -Wall -Wextra -Wundef -Wshadow
# 1: warnings are errors, in CI and in the tests of a checkout. A packager's compiler knows others than ours.
WERROR ?=
werror_of_tests := WERROR=$(or $(WERROR),$(if $(wildcard .git),1))
san_flags := $(if $(SAN),-fsanitize=$(SAN) $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=all))
# libunwind's own unwind.h comes behind the compiler's.
# gcc writes unwind tables for C on some machines only, unless asked; exceptions and samplers pass through the library.
BASE := -O2 -g -fno-omit-frame-pointer -fasynchronous-unwind-tables -I. -MMD -MP -pthread $(WARN) $(if $(filter 1,$(WERROR)),-Werror) $(san_flags) \
        $(if $(sysroot),-isystem $(sysroot)/usr/include -idirafter $(sysroot)/usr/include/$(ARCH)-linux-gnu) \
        $(if $(filter 1,$(DEBUG)),-DCH_CHECK=2) $(EXTRA_CFLAGS)
CSTD := -std=gnu11
# Each library is one object of machine code, for programs of any compiler, and lint judges it function by function: with
# -flto in EXTRA_CFLAGS the programs are optimized when they are linked, and the libraries are not.
# The libraries do not say in which folder they were built. clang's assembler knows another switch than its compiler.
LIB_FLAGS := -fdebug-prefix-map="$(CURDIR)"=.$(if $(findstring clang,$(cc_name)), -fdebug-compilation-dir=.) -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-lto
BDW := $(if $(filter none,$(GC)),0,1)
GC_LIBS := $(if $(filter 1,$(BDW)),-lgc)
sysroot_lib := $(sysroot)/usr/lib/$(ARCH)-linux-gnu
LINK := -pthread $(filter -flto%,$(EXTRA_CFLAGS)) $(san_flags) -Wl,-z,noexecstack \
        $(if $(sysroot),-L$(sysroot_lib) -Wl$(comma)-rpath-link$(comma)$(sysroot_lib):$(sysroot)/lib/$(ARCH)-linux-gnu)
LINK_PROGRAM := $(LINK) $(static)

# What runs a program that is not for this machine, or under a checker: words put before it. -cpu max: with pointer
# signatures and landing pads. tests/cannot_run.list has what it cannot run, by the first word's name.
# VALGRIND=1: memcheck as it is by default; where the Boehm driver is, without the reports that are libgc's own.
memcheck := valgrind -q --error-exitcode=97 $(if $(filter 1,$(BDW)),--suppressions=tools/libgc.supp)
EMULATOR ?= $(if $(filter 1,$(VALGRIND)),$(memcheck),)$(if $(CROSS),$(if $(filter $(ARCH),$(shell uname -m)),,qemu-$(ARCH)-static $(if $(sysroot),-cpu max -L $(sysroot))))
emulator_name := $(patsubst %-static,%,$(notdir $(firstword $(EMULATOR))))
# Without optimization, which would merge what is counted.
count_flags := $(if $(filter 1,$(COVERAGE)),-O0 --coverage -fprofile-update=atomic -fsanitize-coverage=trace-pc)
count_link := $(if $(filter 1,$(COVERAGE)),--coverage)
# Which blocks of code each case reaches is marked in a file (tests/reached.c); the linker says where each object lies.
reached_o = $(if $(filter 1,$(COVERAGE)),$(TOBJ)/tests/reached.o)
# A process that does not return from main writes its counts where it ends (tests/coverage.c).
count_ends = $(if $(filter 1,$(COVERAGE)),-Wl$(comma)-Map=$@.map $(addprefix -Wl$(comma)--wrap=,_exit abort sigaction syscall))

# A source whose name ends in an architecture's is built for that one only.
for_others := $(foreach a,$(other_arch),%_$(a).c %_$(a).cc)
lib_dirs := arch os pages unwind sinks codeheap invalidate flame observe

Q := $(if $(filter 1,$(V)),,@)
# A build may be killed at any point, and the next one goes on with what is there: a file is written under this name, and
# gets its own when it is whole.
new = $@.new
whole = && mv -f $(new) $@
compiled = -MT $@ -MF $(@:.o=.d) -c -o $(new) $< $(whole)

# ---- sources -------------------------------------------------------------------------------------------------------
lib_c := $(wildcard arch/$(ARCH).c os/*.c pages/*.c unwind/*.c sinks/*.c invalidate/*.c flame/*.c observe/*.c) \
         $(filter-out codeheap/gc_bdw.c,$(wildcard codeheap/*.c codeheap/*/*.c))
lib_s := $(wildcard arch/$(ARCH).S)
lib_o := $(lib_c:%.c=$(OBJ)/%.o) $(lib_s:%.S=$(OBJ)/%.S.o)
dl_o := $(patsubst $(OBJ)/os/meta.o,$(OBJ)/os/meta_malloc.o,$(lib_o))
bdw_o := $(if $(filter 1,$(BDW)),$(patsubst %.c,$(OBJ)/%.o,$(wildcard codeheap/gc_bdw.c)))
# Tests link objects of their own, with the switches by which a test breaks the code or fails its OS calls.
test_lib_o := $(lib_o:$(OBJ)/%=$(TOBJ)/%)
test_bdw_o := $(bdw_o:$(OBJ)/%=$(TOBJ)/%)
jemalloc_o := $(if $(filter jemalloc,$(ALLOC)),$(OBJ)/jemalloc.o)
public_headers := $(wildcard codeheap/codeheap.h codeheap/codeheap_bdw.h)

libs := $(BUILD)/libcodeheap.a $(BUILD)/libcodeheap.so $(BUILD)/libcodeheap-dl.a $(BUILD)/libcodeheap-dl.so
bdw_libs := $(if $(bdw_o),$(BUILD)/libcodeheap-bdw.a $(BUILD)/libcodeheap-bdw.so)
# What a user runs beside the library: installed in bindir, each with a page of its name in docs/man.
callgrind_names := $(BUILD)/callgrind-names
codeheap_top := $(BUILD)/codeheap-top
user_tools := $(callgrind_names) $(codeheap_top)

examples := $(patsubst %.c,$(BUILD)/%,$(filter-out $(if $(filter 1,$(BDW)),,%_boehm.c),$(wildcard examples/*.c)))

ifeq ($(BDW),1)
scheme_c := $(filter-out $(for_others),$(wildcard hosts/scheme/*.c))
demo_c := $(filter-out hosts/demo/bytes_%,$(wildcard hosts/demo/*.c))
stress_c := $(filter-out $(for_others),$(wildcard stress/*.c))
bench_c := $(filter-out $(for_others),$(wildcard bench/*.c))
endif
scheme_o := $(scheme_c:%.c=$(OBJ)/%.o) \
            $(patsubst %.S,$(OBJ)/%.S.o,$(if $(scheme_c),$(wildcard hosts/scheme/*_$(ARCH).S)))
# The heap's picture is drawn by what draws it for codeheap-top.
scheme_o += $(if $(scheme_c),$(OBJ)/tools/codeheap-top/draw_heap.o)
scheme := $(if $(scheme_c),$(BUILD)/scheme)
demos := $(demo_c:hosts/demo/%.c=$(BUILD)/demo/%)
stress_o := $(stress_c:%.c=$(OBJ)/%.o)
stress := $(if $(stress_c),$(BUILD)/stress/stress)
asmjit := $(if $(wildcard /usr/include/asmjit/asmjit.h),1,0)
bench_cc := $(if $(bench_c),$(filter-out $(if $(filter 0,$(asmjit)),%/peer_asmjit.cc),$(wildcard bench/*.cc)))
bench_o := $(bench_c:%.c=$(OBJ)/%.o) $(bench_cc:%.cc=$(OBJ)/%.cc.o)
bench := $(if $(bench_c),$(BUILD)/bench/bench)

# ---- tests ---------------------------------------------------------------------------------------------------------
# The Scheme JIT's emitter, where it has one.
emitter_o := $(patsubst %.c,$(TOBJ)/%.o,$(if $(wildcard hosts/scheme/jit_emit_$(ARCH).c),hosts/scheme/jit_emit.c \
               hosts/scheme/jit_emit_$(ARCH).c))
# A static program cannot stand between the library and libgcc, as that test does.
core_c := $(filter-out $(for_others) $(if $(emitter_o),,$(wildcard tests/unit_scheme_*.c)) $(if $(static),tests/adversary_teardown.c),$(wildcard tests/unit_*.c tests/api_*.c tests/adversary_*.c) \
            $(if $(filter 1,$(BDW)),$(wildcard tests/bdw_*.c)))
libunwind_h := $(wildcard $(if $(CROSS),$(if $(sysroot),$(sysroot)/usr/include/*/libunwind.h),\
                              /usr/include/libunwind.h /usr/include/*/libunwind.h))
tool_c := $(filter-out $(if $(libunwind_h),,tests/tool_libunwind.c) $(for_others),$(wildcard tests/tool_*.c))
core_cc := $(filter-out $(for_others),$(wildcard tests/unit_*.cc tests/api_*.cc tests/adversary_*.cc))
# What one test links beside the library. libgcc's unwinder comes first: it stays the process's.
# A program exports the functions that the dynamic linker is to name.
libs_api_backtrace := -rdynamic -Wl,--wrap=_Unwind_Backtrace
libs_unit_os_gate := $(addprefix -Wl$(comma)--wrap=,fallocate madvise munmap close)
libs_unit_os_images := -Wl,--wrap=dl_iterate_phdr
libs_unit_pages_pool := -Wl,--wrap=mmap
libs_unit_codeheap_order := $(addprefix -Wl$(comma)--wrap=,ch__sinks_add ch__sinks_remove ch__sinks_own_destroy ch__page_set_start \
                              ch__block_kill_now)
libs_tool_libunwind := -Wl,--no-as-needed -lgcc_s -lunwind -Wl,--as-needed
all_test_c := $(wildcard tests/unit_*.c tests/api_*.c tests/adversary_*.c tests/tool_*.c tests/bdw_*.c)
support_c := $(filter-out $(all_test_c) $(for_others) tests/harness.c tests/pretend.c tests/coverage.c tests/reached.c $(wildcard tests/runner*.c) tests/hostile.c tests/stand_in.c,$(wildcard tests/*.c))
support_o := $(support_c:%.c=$(TOBJ)/%.o)
core_tests := $(core_c:tests/%.c=$(BUILD)/tests/%) $(core_cc:tests/%.cc=$(BUILD)/tests/%)
tool_tests := $(tool_c:tests/%.c=$(BUILD)/tests/%)
# The shell tests need the products and tools of a plain build: a sanitizer cannot be preloaded into python or gdb.
# Tools of this machine look at programs of this machine; the hosts' programs run behind an emulator, too.
# Without the Boehm driver there is no Scheme either, and no stress.
# Hosts that others wrote are this machine's.
script_tests := $(if $(SAN),,$(if $(CROSS),tests/host_scheme.sh tests/host_scheme_answers.sh tests/host_scheme_profile.sh tests/host_image.sh tests/host_demo.sh,$(wildcard tests/tool_*.sh tests/host_*.sh)))
ifneq ($(BDW),1)
script_tests := $(filter-out tests/host_%.sh tests/tool_boehm_modes.sh tests/tool_stress.sh,$(script_tests))
endif
TIER ?= all
ifeq ($(TIER),core)
tests := $(core_tests)
# The code of a foreign machine's JIT is run in no other tier.
scripts := $(if $(CROSS),$(script_tests))
else
tests := $(core_tests) $(tool_tests)
scripts := $(script_tests)
endif
STORM_MS ?= $(if $(EMULATOR),300,400)
# T names a case or a test program; only programs that speak of it are built.
ifneq ($(T),)
with_t := $(shell CODEHEAP_BUILD=$(BUILD) tests/programs_of.sh '$(T)' $(core_c) $(core_cc) $(tool_c) $(script_tests))
tests := $(filter $(patsubst tests/%,$(BUILD)/tests/%,$(basename $(with_t))),$(core_tests) $(tool_tests))
scripts := $(filter $(with_t),$(script_tests))
endif
# Programs that a script runs again, with another unwinder or with something taken away.
script_tests_need := $(if $(filter tests/tool_llvm_unwind.sh,$(scripts)),$(addprefix $(BUILD)/tests/,\
                       api_exceptions adversary_unwind unit_unwind_libgcc api_trampolines)) \
                     $(if $(filter tests/tool_hostile.sh,$(scripts)),$(addprefix $(BUILD)/tests/,\
                       hostile unit_pages_pool unit_codeheap_sweep adversary_memory adversary_full \
                       api_trampolines adversary_running adversary_threads)) \
                     $(if $(filter tests/tool_gdb_commands.sh,$(scripts)),$(BUILD)/gdb/debuggee) \
                     $(if $(filter tests/tool_flame.sh,$(scripts)),$(BUILD)/flame/draw) \
                     $(if $(filter tests/tool_stress.sh,$(scripts)),$(if $(stress_c),$(BUILD)/stress/stress-tested)) \
                     $(if $(filter tests/tool_boehm_modes.sh,$(scripts)),\
                       $(filter $(BUILD)/tests/adversary_%,$(core_tests)))
# What is built against the installed library: hosts that others wrote, each with a Makefile of its own, and what scripts
# build themselves.
installed := $(BUILD)/installed/stamp
outside_hosts := $(patsubst hosts/%/Makefile,%,$(wildcard hosts/*/Makefile))
installed_tests := tests/tool_install.sh tests/tool_embedding.sh
test_needs := $(tests) $(BUILD)/tests/runner $(script_tests_need) \
              $(if $(scripts),$(scheme) $(demos) $(if $(CROSS),,$(libs) $(bdw_libs) $(examples) $(user_tools) $(stress) $(bench) \
                $(BUILD)/fuzz/replay)) \
              $(if $(CROSS),,$(if $(filter $(installed_tests),$(scripts)),$(installed)) \
                $(foreach host,$(outside_hosts),$(if $(filter tests/host_$(host)%.sh,$(scripts)),host-$(host))))

# ---- targets -------------------------------------------------------------------------------------------------------
.PHONY: all libs check check-timed steady test-needs run-check hostile run-hostile demo run-demo stress run-stress bench run-bench bench-compare lint run-lint measure \
        coverage run-coverage test-index run-test-index tests-of breaks run-breaks \
        fuzz run-fuzz tidy model orders run-orders mutants run-mutants install uninstall dist clean help vars ci programs
sub = $(MAKE) --no-print-directory

# Each of these is a make of its own, or takes files away: beside another one in the same folder both would write the
# same files. Those of one command come one after the other; within each of them jobs are as many as ever.
makes_of_their_own := all check check-timed steady hostile demo stress bench lint coverage test-index tests-of breaks mutants install uninstall clean $(outside_hosts)
ifneq ($(word 2,$(MAKECMDGOALS)),)
ifneq ($(filter $(makes_of_their_own),$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif
endif

all:
	@tools/setup.sh lib
	+@$(sub) libs $(user_tools)
libs: $(libs) $(bdw_libs)
programs: $(examples) $(user_tools) $(scheme) $(demos) $(stress) $(bench)

help:
	@sed -n 's/^#help //p' Makefile
#help make                builds what is installed, in build/                                         10 s
#help make check          every test; T=name runs one test, TIER=core the core tier              < 300 s
#help                     SLOWEST=10 prints the slowest; STRICT=1: no second try, and no skip that no list has
#help make check-timed    the tests that hang on time or load, one at a time, the best of three    < 120 s
#help make steady         `make check` RUNS=5 times beside LOAD=4 endless loops, what failed and what was unsteady
#help make check TIER=core  unit, API and adversary cases                                            60 s
#help make hostile        the core tier in processes that have something taken away; WITH=mdwe     < 1000 s
#help make demo           the report: programs, churn, invalidation, adversary, trap, heap.svg   < 120 s
#help make stress         random API programs against a model, Scheme against its interpreter; SECONDS=60 SEED=1
#help make fuzz           bytes as programs over the interface against a model, by libFuzzer; SECONDS=60
#help make bench          figures beside their peers, written to build/bench.json                 < 210 s
#help make bench-compare OLD=file   what got worse by more than 15 % since that bench.json           1 s
#help make lint           include direction, exports, docs, words, lengths, symbol allowlists       10 s
#help make measure        the size of the library in tables; WRITE=1 puts them into docs/design.md, CHECK=1 compares  10 s
#help make tidy           contracts of locks and world by clang, clang-tidy, cppcheck, -fanalyzer; PARTS=some  < 180 s
#help make model          the protocol models in spin, with their mutants                        < 180 s
#help make orders         what is read and written without a lock, in a weak memory, with weaker orders; T=row  < 300 s
#help make mutants        breaks the code on purpose, one way at a time; each must be noticed; T=name  < 2400 s
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
#help           TIER=core  V=1  STORM_MS=ms  JOBS=3  SETUP=no  BUILD=folder  EXTRA_CFLAGS=flags  DEBUG=1 (asserts legal moves)
#help           WERROR=1 (warnings are errors: in CI and in the tests of a checkout)

vars:
	@printf '%s\n' 'CC=$(CC)' 'ARCH=$(ARCH)' 'GC=$(GC)' 'SAN=$(SAN)' 'ALLOC=$(ALLOC)' 'CROSS=$(CROSS)' \
	  'BUILD=$(BUILD)' 'CFLAGS=$(CSTD) $(BASE) $(LIB_FLAGS)' 'CODEHEAP_LIBS=$(GC_LIBS) -lm -pthread' \
	  'AR=$(AR)' 'EMULATOR=$(EMULATOR)' 'VERSION=$(version)' 'PREFIX=$(PREFIX)' $(foreach folder,bindir libdir includedir datadir mandir,'$(folder)=$($(folder))')

# Which tools and libraries a target needs depends on the build: without the Boehm driver no libgc is asked for.
export GC SAN ALLOC CROSS CC SETUP DEBUG
# 1: a case that fails is not tried again, and one that skips itself must be in tests/cannot_run.list.
STRICT ?=
# 1: cases that try many things try as many as they know (make ci).
LONG ?=
# 1: the cases whose verdict hangs on time or load, and no others (make check-timed).
TIMED ?=
SECONDS ?= 60
SEED ?= 1
check:
	@tools/setup.sh $(if $(CROSS)$(filter core,$(TIER)),core,check)
	+@$(sub) run-check $(werror_of_tests)
check-timed:
	@tools/setup.sh $(if $(CROSS)$(filter core,$(TIER)),core,check)
	+@$(sub) run-check TIMED=1 $(werror_of_tests)
RUNS ?= 5
LOAD ?= 4
steady:
	@tools/setup.sh $(if $(filter core,$(TIER)),core,check)
	$(if $(filter 0,$(RUNS)),,+@$(sub) test-needs $(werror_of_tests))
	+@RUNS='$(RUNS)' LOAD='$(LOAD)' CODEHEAP_BUILD=$(call quoted,$(BUILD)) tools/steady.sh
# What the cases of this build find in their environment: one language, since what tools say is read. AddressSanitizer
# guesses where thread-local data of libraries loaded late (libdw) lie, guesses wrong by their address, and LeakSanitizer
# dies of it: it finds such data as memory of the dynamic linker.
slow := $(if $(EMULATOR),10,$(if $(SAN)$(filter 1,$(COVERAGE)),4))
test_environment = LC_ALL=C.UTF-8 CODEHEAP_BUILD=$(BUILD) CODEHEAP_ARCH=$(ARCH) CODEHEAP_TEST_STORM_MS=$(STORM_MS) CODEHEAP_TEST_SEED=$${CODEHEAP_TEST_SEED:-$(SEED)} \
	 $(if $(filter 1,$(LONG)),CODEHEAP_TEST_LONG=1) \
	 $(if $(PAGE)$(SYSTEM_PAGE),CODEHEAP_TEST_PAGE=$(or $(PAGE),$(SYSTEM_PAGE))) \
	 $(if $(SYSTEM_PAGE),CODEHEAP_TEST_SYSTEM_PAGE=$(SYSTEM_PAGE)) $(if $(BACKEND),CODEHEAP_WX=$(BACKEND)) \
	 $(if $(slow),CODEHEAP_TEST_SLOW=$(slow)) CODEHEAP_TEST_EMULATOR='$(EMULATOR)' CODEHEAP_TEST_SAN=$(SAN) CODEHEAP_TEST_GC=$(GC) CODEHEAP_TEST_ALLOC=$(ALLOC) \
	 ASAN_OPTIONS=detect_stack_use_after_return=0:allow_user_segv_handler=1:intercept_tls_get_addr=0:$$ASAN_OPTIONS \
	 TSAN_OPTIONS=halt_on_error=1:$$TSAN_OPTIONS
# What a failed case printed, when it passed at a second try.
unsteady := $(BUILD)/unsteady
test-needs: $(test_needs)
run-check: $(test_needs)
	@rm -rf $(unsteady) && mkdir -p $(unsteady)
	@$(test_environment) $(BUILD)/tests/runner -l tests/cannot_run.list -j $(or $(JOBS),3) $(if $(V),-v) $(if $(T),-t '$(T)') \
	 $(if $(filter 1,$(STRICT)),-S) $(if $(filter 1,$(TIMED)),-c -a $(unsteady),$(if $(filter 1,$(STRICT)),,-a $(unsteady))) \
	 $(if $(SLOWEST),-L $(SLOWEST)) \
	 $(if $(EMULATOR),-e '$(EMULATOR)' -n $(emulator_name),$(if $(filter thread,$(SAN)),-n thread)) \
	 $(if $(strip $(variant))$(filter-out x86_64,$(ARCH)),,-x) $(tests) $(scripts)

# The core tier once more under each restriction of tests/hostile.c; WITH=name runs under one, T=name runs one test.
hostile:
	@tools/setup.sh core
	+@$(sub) run-hostile TIER=core
run-hostile: $(tests) $(BUILD)/tests/runner $(BUILD)/tests/hostile
	@$(test_environment) JOBS='$(or $(JOBS),2)' T='$(T)' WITH='$(WITH)' FEW='$(FEW)' tests/hostile.sh $(tests)

demo:
	@tools/setup.sh demo
	+@$(sub) run-demo
demo_script := $(firstword $(wildcard hosts/demo/demo.sh tools/demo.sh examples/demo.sh))
run-demo: $(libs) $(bdw_libs) $(examples) $(scheme) $(demos)
	@$(if $(demo_script),mkdir -p $(BUILD)/demo && CODEHEAP_BUILD=$(BUILD) $(demo_script),\
	  echo 'demo: no demo.sh in hosts/demo, tools or examples' >&2; exit 2)

stress:
	@tools/setup.sh stress
	+@$(sub) run-stress
run-stress: $(stress) $(scheme)
	@$(if $(stress),CODEHEAP_BUILD=$(BUILD) $(if $(EMULATOR),CODEHEAP_TEST_SLOW=$(slow)) \
	  timeout -s KILL $$(($(SECONDS) * 2 + 200)) $(EMULATOR) $(stress) --seconds=$(SECONDS) --seed=$(SEED),echo 'stress: stress/ is empty' >&2; exit 2)

# The fuzzer's objects count what they run and are watched by AddressSanitizer: a build of their own. What it finds
# worth keeping goes to build/, so that the corpus in the tree stays small.
fuzz_build := $(BUILD_ROOT)/fuzzer
fuzz:
	@tools/setup.sh fuzz
	+@$(sub) run-fuzz CC=clang-14 CXX=clang++-14 GC=none ALLOC=malloc SAN=address EXTRA_CFLAGS=-fsanitize=fuzzer-no-link BUILD=$(fuzz_build)
run-fuzz: $(BUILD)/fuzz/fuzz
	@mkdir -p $(BUILD)/corpus $(BUILD)/failures
	@timeout -s KILL $$(($(SECONDS) + 120)) $(BUILD)/fuzz/fuzz -max_total_time=$(SECONDS) -timeout=60 -max_len=600 \
	  -len_control=0 -artifact_prefix=$(BUILD)/failures/ $(BUILD)/corpus fuzz/corpus >$(BUILD)/fuzz.log 2>&1 || \
	  { grep -aE '^(fuzz/|tests/|==|Test unit)' $(BUILD)/fuzz.log; \
	    echo 'fuzz: run it again: make build/fuzz/replay && FUZZ_LOUD=1 build/fuzz/replay FILE' >&2; exit 1; }
	@tail -n 1 $(BUILD)/fuzz.log

bench:
	@tools/setup.sh bench
	+@$(sub) run-bench
run-bench: $(bench) $(scheme) $(libs) $(if $(CROSS),,$(filter host-python,$(outside_hosts:%=host-%)))
	@$(if $(bench),CODEHEAP_BUILD=$(BUILD) timeout -s KILL 1200 $(bench) --json=$(BUILD)/bench.json,\
	  echo 'bench: bench/ is empty' >&2; exit 2)
bench-compare:
	@$(if $(OLD),,echo 'bench-compare: give OLD=file' >&2; exit 2;) tools/bench_compare.py $(OLD) $(BUILD)/bench.json

# What the tests run of the library: core tier, tool tests, the fuzzer's programs, and cases in hostile processes, on
# objects that count. A script that tests the libraries runs objects that do not count, and is left out.
coverage:
	@tools/setup.sh coverage
	+@$(sub) run-coverage COVERAGE=1 TIER=core
coverage_scripts := tests/tool_hostile.sh tests/tool_llvm_unwind.sh
run-coverage: $(core_tests) $(tool_tests) $(BUILD)/tests/runner $(BUILD)/tests/hostile $(BUILD)/fuzz/replay
	@find $(TOBJ) -name '*.gcda' -delete
	@$(test_environment) $(BUILD)/tests/runner -l tests/cannot_run.list -S -j $(or $(JOBS),2) $(core_tests) $(tool_tests) \
	  $(coverage_scripts); status=$$?; \
	 timeout -s KILL 600 $(BUILD)/fuzz/replay fuzz/corpus/* 2>$(BUILD)/fuzz/replay.log || { status=1; tail -n 2 $(BUILD)/fuzz/replay.log >&2; }; \
	 tools/coverage.py $(if $(MISSING),-v) $(TOBJ) && exit $$status

# Which case reaches which line: each runs by itself, on the objects that count.
index := $(BUILD)/coverage/reached.json
make_index = [ -f $(index) ] || { echo 'there is no index of the tests yet: it is made, which takes minutes'; $(sub) test-index; }
test-index:
	@tools/setup.sh coverage
	+@$(sub) run-test-index COVERAGE=1 BUILD=$(BUILD)/coverage
run-test-index: $(core_tests) $(tool_tests)
	+@$(test_environment) tests/breaks/reached.py make $(BUILD) $(core_tests) $(tool_tests)
tests-of:
	@$(if $(FILE),,echo 'tests-of: give FILE=codeheap/life/open.c' >&2; exit 2)
	+@$(make_index)
	@tests/breaks/reached.py of $(index) '$(FILE)'
# SEED chooses the breaks; the tests run as in `make check`. REST=1: a break that survives the cases that reach it is
# shown to the rest of the core tier. AGAIN=file: what survived a run, whose output it is, is shown to all that reach it.
breaks_seconds := $(if $(filter file,$(origin SECONDS)),1200,$(SECONDS))
breaks:
	@tools/setup.sh check
	+@$(make_index)
	+@$(sub) run-breaks
run-breaks: $(core_tests) $(tool_tests)
	+@export CODEHEAP_TEST_SEED=1; $(test_environment) tests/breaks/unplanned.py run --build=$(BUILD) --index=$(index) \
	  --seconds=$(breaks_seconds) --seed=$(SEED) $(if $(ROOM),--room='$(ROOM)') $(if $(filter 1,$(REST)),--rest) $(if $(AGAIN),--again='$(AGAIN)') $^

lint:
	@tools/setup.sh lint
	+@$(sub) run-lint
run-lint: $(libs) $(bdw_libs) $(lib_o)
	@CODEHEAP_BUILD=$(BUILD) CODEHEAP_ARCH=$(ARCH) CODEHEAP_OBJECTS='$(lib_o) $(bdw_o)' \
	 tools/lint.sh

measure: $(lib_o) $(bdw_o)
	@tools/measure.py $(if $(filter 1,$(WRITE)),--write) $(if $(filter 1,$(CHECK)),--check) $(lib_o) $(bdw_o)

# PARTS names some of them: contracts clang-tidy cppcheck analyzer. Headers of others that the outside hosts include are
# system headers there, as in their own Makefiles.
outside_c := $(if $(filter 1,$(BDW)),$(filter-out $(for_others),$(foreach host,$(outside_hosts),$(wildcard hosts/$(host)/*.c))))
outside_flags = -D_GNU_SOURCE $(shell pkg-config --cflags libffi) -isystem $(shell /usr/lib/llvm-14/bin/llvm-config --includedir) \
                -isystem $(shell /usr/bin/python3.11 -c 'import sysconfig; print(sysconfig.get_path("include"))')
tidy:
	@tools/setup.sh tidy
	@TIDY_FLAGS='$(CSTD) -I. -pthread $(WARN) $(PROGRAM_FLAGS)' TIDY_LIB='$(lib_c) $(if $(bdw_o),codeheap/gc_bdw.c)' \
	 TIDY_HOSTS='$(wildcard tools/callgrind/*.c tools/codeheap-top/*.c) $(scheme_c) $(demo_c) $(examples:$(BUILD)/%=%.c)' TIDY_TESTS='$(filter-out $(for_others),$(wildcard tests/*.c))' \
	 TIDY_OUTSIDE='$(outside_c)' TIDY_OUTSIDE_FLAGS='$(outside_flags)' JOBS='$(or $(JOBS),2)' \
	 tools/tidy.sh $(PARTS)

model:
	@tools/setup.sh model
	@timeout -s KILL 900 docs/model/run.sh
# The library as it is compiled for ThreadSanitizer, in a memory of its own (tests/orders/); T names rows.
orders:
	@tools/setup.sh lib
	+@$(sub) CC=gcc SAN=thread GC=none ALLOC=malloc run-orders
run-orders: $(test_lib_o) $(if $(wildcard tests/mutant.c),$(TOBJ)/tests/mutant.o)
	@CODEHEAP_BUILD=$(BUILD) timeout -s KILL 900 tests/orders/run.py $(T)
mutants:
	@tools/setup.sh check
	+@$(sub) run-mutants
# T names a mutant, a program or a case, and only programs that its rows need are built.
mutants_need := $(core_tests) $(tool_tests) $(BUILD)/fuzz/replay $(if $(stress_c),$(BUILD)/stress/stress-tested)
ifneq ($(filter run-mutants,$(MAKECMDGOALS)),)
mutants_need := $(BUILD)/tests/runner $(if $(T),$(filter $(shell CODEHEAP_BUILD=$(BUILD) tests/breaks/planted.py --programs '$(T)'),\
                  $(core_tests) $(tool_tests) $(BUILD)/fuzz/replay $(BUILD)/stress/stress-tested),programs $(mutants_need))
endif
run-mutants: $(mutants_need)
	@CODEHEAP_BUILD=$(BUILD) timeout -s KILL 3000 tests/breaks/planted.py $(if $(T),'$(T)')
ONLY ?=
export ONLY
ci:
	@BUILD_ROOT=$(call quoted,$(BUILD)) tools/ci.sh
clean:
	rm -rf $(call quoted,$(BUILD))

# ---- objects -------------------------------------------------------------------------------------------------------
# A change of flags rebuilds: the stamp is rewritten only when its text differs.
flags := $(CC) $(CXX) $(CSTD) $(filter-out -Werror,$(BASE)) $(LIB_FLAGS) $(count_flags) BDW=$(BDW) ALLOC=$(ALLOC) ASMJIT=$(asmjit)
$(OBJ)/flags: FORCE
	@mkdir -p $(@D); echo '$(flags)' | cmp -s - $@ || echo '$(flags)' > $@
.PHONY: FORCE
FORCE:

alloc_flag = -DCH_ALLOC_MALLOC=$(if $(filter malloc,$(ALLOC)),1,0)
# lib_rules ROOM,OBJECT_FOLDER,FLAGS
define lib_rules
$(2)/$(1)/%.o: $(1)/%.c $(OBJ)/flags
	@mkdir -p $$(@D)
	@echo "cc $$@"
	$(Q)$(CC) $(CSTD) $(BASE) $(LIB_FLAGS) $(alloc_flag) $(3) $$(compiled)
$(2)/$(1)/%.S.o: $(1)/%.S $(OBJ)/flags
	@mkdir -p $$(@D)
	@echo "cc $$@"
	$(Q)$(CC) $(BASE) $(LIB_FLAGS) $(3) $$(compiled)
endef
$(foreach d,$(lib_dirs),$(eval $(call lib_rules,$(d),$(OBJ))))
$(foreach d,$(lib_dirs),$(eval $(call lib_rules,$(d),$(TOBJ),-DCH_TESTING=1 $(count_flags))))
$(OBJ)/os/meta_malloc.o: os/meta.c $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "cc $@"
	$(Q)$(CC) $(CSTD) $(BASE) $(LIB_FLAGS) -DCH_ALLOC_MALLOC=1 $(compiled)

# Tests have instructions between their functions, which an optimizer at link time does not see.
# Everything outside the library: one rule, and the facts of the build as macros that are always 0 or 1.
$(TOBJ)/%.o: %.c $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "cc $@"
	$(Q)$(CC) $(CSTD) $(BASE) $(PROGRAM_FLAGS) -DCH_TESTING=1 -fno-lto $(compiled)
PROGRAM_FLAGS := -DCH_TEST_BDW=$(BDW) -DCH_BENCH_ASMJIT=$(asmjit) -DCH_TEST_CODE='"tests/code_$(ARCH).h"' \
                 -DCH_TEST_PROBE='"tests/template_probe_$(ARCH).h"' \
                 -DCH_TEST_FRAMES='"tests/frames_code_$(ARCH).h"' \
                 -DCH_TEST_STAGE_CODE='"tests/stage_code_$(ARCH).h"' \
                 -DCH_TEST_CATCH='"tests/catch_code_$(ARCH).h"'
$(TOBJ)/%.cc.o: %.cc $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "c++ $@"
	$(Q)$(CXX) -std=c++17 $(BASE) $(PROGRAM_FLAGS) -DCH_TESTING=1 -fno-lto $(compiled)
$(OBJ)/%.o: %.c $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "cc $@"
	$(Q)$(CC) $(CSTD) $(BASE) $(PROGRAM_FLAGS) $(compiled)
$(OBJ)/%.S.o: %.S $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "cc $@"
	$(Q)$(CC) $(BASE) $(compiled)
$(OBJ)/%.cc.o: %.cc $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "c++ $@"
	$(Q)$(CXX) -std=c++17 $(BASE) $(PROGRAM_FLAGS) $(compiled)

# jemalloc without its C++ operators, and with only the calls of its extended interface visible: linked whole it would
# take malloc and free away from the program. Its tables of 2 MiB lie in a section of their own, which the linker gives
# names for beginning and end: they are no roots of a collector (gc_bdw.c).
jemalloc_names := mallctl mallctlbymib mallctlnametomib mallocx rallocx xallocx sallocx dallocx sdallocx nallocx
$(OBJ)/jemalloc.o: $(OBJ)/flags
	@lib="$(if $(sysroot),$(CURDIR)/$(sysroot_lib)/libjemalloc_pic.a,$$($(CC) -print-file-name=libjemalloc_pic.a))"; \
	 [ -f "$$lib" ] || { echo "libjemalloc_pic.a is missing: install libjemalloc-dev" >&2; exit 2; }; \
	 rm -rf $(OBJ)/jemalloc && mkdir -p $(OBJ)/jemalloc && cd $(OBJ)/jemalloc && $(AR) x "$$lib" && \
	 rm -f jemalloc_cpp*.o
	@$(LD_R) -o $(new) $(OBJ)/jemalloc/*.o
	@$(OBJCOPY) --rename-section .bss=ch_alloc_tables $(addprefix --keep-global-symbol=,$(jemalloc_names)) $(new) && \
	 rm -rf $(OBJ)/jemalloc $(whole)

# ---- libraries -----------------------------------------------------------------------------------------------------
# Each library is one object whose only global symbols are the public names, and those that a debugger looks for;
# archive and shared object hold the same one.
debugger_names := __jit_debug_descriptor __jit_debug_register_code
$(OBJ)/public.names: tools/public_names.sh $(public_headers)
	@mkdir -p $(@D)
	@{ tools/public_names.sh $(public_headers); printf '%s\n' $(debugger_names); } > $(new) $(whole)
define one_object
@$(LD_R) -o $(new) $(filter %.o,$^)
@$(OBJCOPY) --keep-global-symbols=$(OBJ)/public.names $(new) $(whole)
endef
$(OBJ)/libcodeheap.o: $(lib_o) $(jemalloc_o) $(OBJ)/public.names
	$(one_object)
$(OBJ)/libcodeheap-dl.o: $(dl_o) $(OBJ)/public.names
	$(one_object)
$(OBJ)/libcodeheap-bdw.o: $(lib_o) $(bdw_o) $(jemalloc_o) $(OBJ)/public.names
	$(one_object)
$(BUILD)/%.a: $(OBJ)/%.o
	@rm -f $(new); $(AR) rcs $(new) $< $(whole)
so_checks := $(if $(SAN),,-Wl,-z,defs)
# A program is linked with libX.so, asks the loader for libX.so.MAJOR, and gets libX.so.VERSION.
so_version := $(firstword $(subst ., ,$(version)))
# Code calls stubs, the kernel signal handlers and glibc fork handlers of the library: dlclose must not unmap it.
so_stays := -Wl,-z,nodelete
$(BUILD)/%.so: $(OBJ)/%.o tools/codeheap.map
	@echo "link $@"
	$(Q)$(CC) -shared $(LINK) $(so_checks) $(so_stays) -Wl,-soname,$(@F).$(so_version) -Wl,--version-script=tools/codeheap.map \
	  -o $(new) $< $(if $(findstring -bdw,$@),$(GC_LIBS)) -lm && mv -f $(new) $@.$(version)
	@ln -sfn $(@F).$(version) $@.$(so_version) && ln -sfn $(@F).$(so_version) $@

# ---- programs ------------------------------------------------------------------------------------------------------
link_c = @mkdir -p $(@D); echo "link $@"; $(CC) $(LINK_PROGRAM) -o $(new) $(filter %.o %.a,$^) $(1) $(whole)
$(filter-out %_boehm,$(examples)): $(BUILD)/%: $(OBJ)/%.o $(BUILD)/libcodeheap.a
	$(call link_c,-lm)
$(filter %_boehm,$(examples)): $(BUILD)/%: $(OBJ)/%.o $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(GC_LIBS) -lm)
callgrind_o := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tools/callgrind/*.c))
# What is installed names no folder of whoever built it.
$(callgrind_o): BASE += -fdebug-prefix-map="$(CURDIR)"=.
# What it draws and the files that it makes are the library's work; which of its objects are linked, the linker finds.
$(OBJ)/rooms.a: $(dl_o)
	@rm -f $(new); $(AR) rcs $(new) $^ $(whole)
$(callgrind_names): $(callgrind_o) $(OBJ)/rooms.a
	$(call link_c,-lm -ldl)
codeheap_top_o := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tools/codeheap-top/*.c))
$(codeheap_top_o): BASE += -fdebug-prefix-map="$(CURDIR)"=.
$(codeheap_top): $(codeheap_top_o)
	$(call link_c)
# It exports its functions, so that its profiles name them where there is no libdw.
$(BUILD)/scheme: $(scheme_o) $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(if $(static),,-rdynamic) $(GC_LIBS) -lm $(SCHEME_LIBS))
$(demos): $(BUILD)/demo/%: $(OBJ)/hosts/demo/%.o $(OBJ)/hosts/demo/bytes_$(ARCH).o $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(GC_LIBS) -lm)
$(BUILD)/stress/stress: $(stress_o) $(filter-out $(OBJ)/hosts/scheme/main.o,$(scheme_o)) $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(GC_LIBS) -lm $(SCHEME_LIBS))
# Bytes as programs over the public interface: `make fuzz` makes them up, replay runs files of them.
fuzz_o := $(patsubst %.c,$(TOBJ)/%.o,$(filter-out $(for_others),$(wildcard fuzz/*.c)))
$(BUILD)/fuzz/replay: $(fuzz_o) $(test_lib_o) $(reached_o) $(jemalloc_o)
	$(call link_c,$(count_link) -lm)
$(BUILD)/fuzz/fuzz: $(filter-out %/replay.o,$(fuzz_o)) $(test_lib_o)
	@mkdir -p $(@D); echo "link $@"; $(CC) $(LINK) -fsanitize=fuzzer -o $(new) $^ -lm $(whole)
# The same program on the objects that tests link: `make mutants` breaks one of them, and so does tests/tool_stress.sh.
$(BUILD)/stress/stress-tested: $(stress_c:%.c=$(TOBJ)/%.o) $(filter-out $(OBJ)/hosts/scheme/main.o,$(scheme_o)) \
                               $(test_lib_o) $(test_bdw_o) $(reached_o) $(jemalloc_o)
	$(call link_c,$(count_link) $(GC_LIBS) -lm $(SCHEME_LIBS))
# By gcc, whatever the library was built with: what a compiler leaves in registers and frames is scanned, too, and holds
# the block that is to die.
$(BUILD)/gdb/debuggee: tests/gdb/debuggee.c $(BUILD)/libcodeheap.a
	@mkdir -p $(@D); echo "link $@"; gcc -std=gnu11 -g -O1 -fno-omit-frame-pointer -I. -o $(new) $^ -lm -pthread $(whole)
$(BUILD)/flame/draw: tests/flame/draw.c $(wildcard flame/*.[ch])
	@mkdir -p $(@D); echo "link $@"; $(CC) -std=gnu11 -D_GNU_SOURCE -O1 -I. -o $(new) $(filter %.c,$^) $(whole)
$(BUILD)/bench/bench: $(bench_o) $(BUILD)/libcodeheap-bdw.a
	@mkdir -p $(@D); echo "link $@"; $(if $(bench_cc),$(CXX),$(CC)) $(LINK_PROGRAM) -o $(new) $(filter %.o %.a,$^) \
	  $(if $(filter 1,$(asmjit)),-lasmjit) $(GC_LIBS) -lm -ldl $(whole)

# Tests see the hidden symbols: they link plain objects, a folder per archive. A unit test of a lower room is linked
# without the rooms above it, which proves that nothing in it calls upwards; tests/stand_in.c has what they leave to
# codeheap/.
define room_archive
$(TOBJ)/$(1).a: $(filter $(TOBJ)/$(1)/%,$(test_lib_o))
	@mkdir -p $$(@D); rm -f $$(new); $(AR) rcs $$(new) $$^ $$(whole)
endef
$(foreach d,$(lib_dirs),$(eval $(call room_archive,$(d))))
$(TOBJ)/tests/support.a: $(support_o)
	@mkdir -p $(@D); rm -f $(new); $(AR) rcs $(new) $^ $(whole)
$(TOBJ)/tests/stand_in.a: $(TOBJ)/tests/stand_in.o
	@rm -f $(new); $(AR) rcs $(new) $^ $(whole)
coverage_o := $(if $(filter 1,$(COVERAGE)),$(TOBJ)/tests/coverage.o $(reached_o))
rooms_arch := arch
rooms_os := arch os
rooms_pages := arch os pages
# Tests of unwinders tell them by the table of sinks.
rooms_unwind := arch os unwind sinks
rooms_sinks := arch os unwind sinks
rooms_flame := arch os flame
rooms_harness :=
rooms_of = $(if $(filter undefined,$(origin rooms_$(1))),$(lib_dirs),$(rooms_$(1)))
unit_room = $(word 2,$(subst _, ,$(1)))
# test_rule PROGRAM,ROOMS,COMPILER,OBJECT_SUFFIX
define test_rule
$(BUILD)/tests/$(1): $(TOBJ)/tests/$(1)$(4) $(TOBJ)/tests/harness.o $(TOBJ)/tests/pretend.o $(coverage_o) $(addprefix $(TOBJ)/,$(addsuffix .a,$(2))) \
  $(if $(filter codeheap,$(2)),$(test_bdw_o) $(TOBJ)/tests/support.a,$(TOBJ)/tests/stand_in.a) \
  $(if $(filter os,$(2)),$(jemalloc_o))
	@mkdir -p $$(@D); echo "link $$@"
	$(Q)$(3) $(LINK_PROGRAM) $(count_link) $$(count_ends) -o $$(new) -Wl,--start-group $$(filter %.o %.a,$$^) -Wl,--end-group \
	  $(if $(filter codeheap,$(2)),$(GC_LIBS)) $(libs_$(1)) -lm -ldl $$(whole)
endef
test_rooms = $(call rooms_of,$(if $(filter unit_%,$(1)),$(call unit_room,$(1)),all))
test_names := $(patsubst tests/%.c,%,$(core_c) $(tool_c))
test_names_cc := $(patsubst tests/%.cc,%,$(core_cc))
# What throws is linked as C++: sanitizers of C++ have functions of their own.
linked_as_cxx := adversary_leaving unit_observe_native
$(foreach t,$(test_names),$(eval $(call test_rule,$(t),$(call test_rooms,$(t)),$(if $(filter $(t),$(linked_as_cxx)),$(CXX),$(CC)),.o)))
$(foreach t,$(test_names_cc),$(eval $(call test_rule,$(t),$(call test_rooms,$(t)),$(CXX),.cc.o)))
$(BUILD)/tests/adversary_leaving: $(TOBJ)/tests/throwing.cc.o
# Shared objects that the test of native names loads: with all symbols, under other names, with its symbols in a file of
# its own, and with none. They need no library.
native := $(BUILD)/tests/native
native_so := $(if $(static),,$(native)/whole.so $(native)/other.so $(native)/linked.so $(native)/bare.so)
$(BUILD)/tests/unit_observe_native: $(TOBJ)/tests/native/overloaded.cc.o | $(native_so)
$(native)/%.so: tests/native/object.c $(OBJ)/flags
	@mkdir -p $(@D)/.debug; echo "link $@"
	$(Q)$(CC) $(CSTD) -O2 -g $(WARN) -I. -fPIC -shared -nostdlib -Wl,--build-id=sha1 \
	  $(if $(filter other,$*),-DNATIVE_HIDDEN=other_step) -o $(new) $<
	$(if $(filter linked,$*),$(Q)$(OBJCOPY) --only-keep-debug $(new) $(@D)/.debug/$(@F).debug && \
	  $(OBJCOPY) --strip-all --add-gnu-debuglink=$(@D)/.debug/$(@F).debug $(new))
	$(if $(filter bare,$*),$(Q)$(OBJCOPY) --strip-all $(new))
	$(Q)mv -f $(new) $@
$(BUILD)/tests/unit_scheme_emitter $(BUILD)/tests/unit_scheme_sites: $(emitter_o)
$(BUILD)/tests/hostile: tests/hostile.c tests/own_mounts.h
$(BUILD)/tests/runner: $(wildcard tests/runner*.c) tests/runner.h
$(BUILD)/tests/runner $(BUILD)/tests/hostile:
	@mkdir -p $(@D)
	gcc $(CSTD) -O2 -g -I. $(WARN) -o $(new) $(filter %.c,$^) $(whole)

# ---- install -------------------------------------------------------------------------------------------------------
quoted = '$(subst ','\'',$(1))'
install_environment = CODEHEAP_BUILD='$(BUILD)' CODEHEAP_GC='$(GC)' CODEHEAP_VERSION='$(version)' CODEHEAP_TOOLS='$(user_tools)' \
  $(foreach folder,DESTDIR PREFIX bindir libdir includedir datadir mandir,$(folder)=$(call quoted,$($(folder))))
install: $(libs) $(bdw_libs) $(user_tools)
	@$(install_environment) tools/install.sh install
uninstall:
	@$(install_environment) tools/install.sh uninstall
dist:
	@tools/dist.sh $(version) $(call quoted,$(BUILD)/libcodeheap-$(version).tar.gz)

# ---- hosts that others wrote: they know the installed library by pkg-config, and nothing of this tree ----------------
$(installed): $(libs) $(bdw_libs) $(user_tools) $(public_headers) $(wildcard tools/*.pc.in tools/gdb/*.py tools/gdb/codeheap_gdb/*.py docs/man/*.[1-9]) tools/install.sh Makefile
	@rm -rf $(@D)
	@$(MAKE) --no-print-directory -s install PREFIX=$(call quoted,$(build_path)/installed) DESTDIR= >/dev/null && touch $@
.PHONY: $(outside_hosts) $(outside_hosts:%=host-%) asked-hosts
# Those that are asked for at once are one make's work: two would link the same library at one time.
$(outside_hosts): asked-hosts ;
asked-hosts:
	@tools/setup.sh hosts
	+@$(sub) $(patsubst %,host-%,$(filter $(outside_hosts),$(MAKECMDGOALS)))
$(outside_hosts:%=host-%): host-%: $(installed)
	+@PKG_CONFIG_PATH=$(call quoted,$(build_path)/installed/lib/pkgconfig) $(MAKE) --no-print-directory -C hosts/$* OUT=$(if $(filter /%,$(BUILD)),,../../)$(BUILD)/$*

-include $(shell find $(OBJ) $(TOBJ) -name '*.d' 2>/dev/null)
