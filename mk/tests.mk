# SPDX-License-Identifier: MIT
# The tests: which programs there are, how they are linked and run.

# What runs a program that is not for this machine, or under a checker: words put before it. -cpu max: with pointer
# signatures and landing pads. tests/cannot_run.list has what it cannot run, by the first word's name.
# VALGRIND=1: memcheck as it is by default; where the Boehm driver is, without the reports that are libgc's own.
memcheck := valgrind -q --error-exitcode=97 $(if $(filter 1,$(BDW)),--suppressions=tools/libgc.supp)
EMULATOR ?= $(if $(filter 1,$(VALGRIND)),$(memcheck),)$(if $(CROSS),$(if $(filter $(ARCH),$(shell uname -m)),,qemu-$(ARCH)-static $(if $(sysroot),-cpu max -L $(sysroot))))
emulator_name := $(patsubst %-static,%,$(notdir $(firstword $(EMULATOR))))
count_link := $(if $(filter 1,$(COVERAGE)),--coverage)
# Which blocks of code each case reaches is marked in a file (tests/support/reached.c); the linker says where each object lies.
reached_o = $(if $(filter 1,$(COVERAGE)),$(TOBJ)/tests/support/reached.o)
# A process that does not return from main writes its counts where it ends (tests/support/coverage.c).
count_ends = $(if $(filter 1,$(COVERAGE)),-Wl$(comma)-Map=$@.map $(addprefix -Wl$(comma)--wrap=,_exit abort sigaction syscall))

# ---- programs ---------------------------------------------------------------------------------------------------------
# The program of a source: tests/unit/pages/pool.c is that of build/tests/unit_pages_pool; so is a script's name made.
name_of = $(subst /,_,$(patsubst tests/%,%,$(basename $(1))))
program_of = $(addprefix $(BUILD)/tests/,$(call name_of,$(1)))
unit_c := $(wildcard tests/unit/*.c tests/unit/*/*.c)
test_sources := $(unit_c) $(wildcard tests/api/*.c tests/adversary/*.c tests/tool/*.c tests/bdw/*.c)

# The Scheme JIT's emitter, where it has one.
emitter_o := $(patsubst %.c,$(TOBJ)/%.o,$(if $(wildcard hosts/scheme/jit_emit_$(ARCH).c),hosts/scheme/jit_emit.c \
               hosts/scheme/jit_emit_$(ARCH).c))
# A static program cannot stand between the library and libgcc, as that test does.
core_c := $(filter-out $(for_others) $(if $(emitter_o),,$(wildcard tests/unit/scheme/*.c)) $(if $(static),tests/adversary/teardown.c),$(unit_c) $(wildcard tests/api/*.c tests/adversary/*.c) \
            $(if $(filter 1,$(BDW)),$(wildcard tests/bdw/*.c)))
libunwind_h := $(wildcard $(if $(CROSS),$(if $(sysroot),$(sysroot)/usr/include/*/libunwind.h),\
                              /usr/include/libunwind.h /usr/include/*/libunwind.h))
tool_c := $(filter-out $(if $(libunwind_h),,tests/tool/libunwind.c) $(for_others),$(wildcard tests/tool/*.c))
core_cc := $(filter-out $(for_others),$(wildcard tests/unit/*/*.cc tests/api/*.cc tests/adversary/*.cc))
# What one test links beside the library. libgcc's unwinder comes first: it stays the process's.
# A program exports the functions that the dynamic linker is to name.
libs_api_backtrace := -rdynamic -Wl,--wrap=_Unwind_Backtrace
libs_unit_os_gate := $(addprefix -Wl$(comma)--wrap=,fallocate madvise munmap close lstat)
libs_unit_os_remains := -Wl,--wrap=lstat
libs_unit_observe_images := -Wl,--wrap=dl_iterate_phdr
libs_unit_observe_native := -Wl,--wrap=dladdr
libs_unit_observe_system := -Wl,--wrap=pthread_create -Wl,--wrap=pthread_join
libs_unit_observe_stats_file := -Wl,--wrap=ch__os_file_create_locked
libs_adversary_ports := -Wl,--wrap=ch__views_sync
libs_unit_pages_pool := $(addprefix -Wl$(comma)--wrap=,mmap madvise)
libs_unit_pages_runs := $(addprefix -Wl$(comma)--wrap=,ch__os_hold_mappings ch__os_let_mappings_go ch__os_protect ch__os_protect_none)
libs_unit_codeheap_order := $(addprefix -Wl$(comma)--wrap=,ch__sinks_add ch__sinks_remove ch__sinks_own_destroy ch__page_set_start \
                              ch__blocks_kill)
libs_unit_codeheap_stopped := -Wl,--wrap=ch__scan_stacks
libs_unit_codeheap_waits := $(addprefix -Wl$(comma)--wrap=,ch__os_atfork ch__heap_is_listed ch__os_symbol)
libs_unit_unwind_nongnu := -Wl,--wrap=ch__os_private_near
libs_tool_libunwind := -Wl,--no-as-needed -lgcc_s -lunwind -Wl,--as-needed
support_c := $(filter-out $(for_others) tests/support/harness.c tests/support/os_failing.c tests/support/lock_self.c tests/support/coverage.c tests/support/reached.c tests/support/stand_in.c,$(wildcard tests/support/*.c))
support_o := $(support_c:%.c=$(TOBJ)/%.o)
lock_self_o := $(TOBJ)/tests/support/lock_self.o
# Goes with the objects of os/ that tests link. The functions of the gate that it stands before are named there.
failing_o := $(TOBJ)/tests/support/os_failing.o
failing_wraps := $(addprefix -Wl$(comma)--wrap=,$(shell sed -nE 's/^(BETWEEN|REFUSES|INSTEAD).([a-z_]+),.*/\2/p' tests/support/*_failing.c))
core_tests := $(call program_of,$(core_c) $(core_cc))
tool_tests := $(call program_of,$(tool_c))
# The shell tests need the products and tools of a plain build: a sanitizer cannot be preloaded into python or gdb.
# Tools of this machine look at programs of this machine; the hosts' programs run behind an emulator, too.
# Without the Boehm driver there is no Scheme either, and no stress.
# Hosts that others wrote are this machine's.
script_tests := $(if $(SAN),,$(if $(CROSS),tests/host/scheme.sh tests/host/scheme_answers.sh tests/host/scheme_profile.sh tests/host/image.sh tests/host/demo.sh,$(wildcard tests/tool/*.sh tests/host/*.sh)))
ifneq ($(BDW),1)
script_tests := $(filter-out tests/host/%.sh tests/tool/boehm_modes.sh tests/tool/stress.sh,$(script_tests))
endif
TIER ?= all
$(if $(filter all core,$(TIER)),,$(error TIER must be all or core))
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
with_t := $(shell CODEHEAP_BUILD=$(BUILD) tests/runner/programs_of.sh '$(T)' $(core_c) $(core_cc) $(tool_c) $(script_tests))
tests := $(filter $(call program_of,$(with_t)),$(core_tests) $(tool_tests))
scripts := $(filter $(with_t),$(script_tests))
endif
# Programs that a script runs again, with another unwinder or with something taken away.
script_tests_need := $(if $(filter tests/tool/llvm_unwind.sh,$(scripts)),$(addprefix $(BUILD)/tests/,\
                       api_exceptions adversary_unwind unit_unwind_libgcc api_trampolines)) \
                     $(if $(filter tests/tool/hostile.sh,$(scripts)),$(addprefix $(BUILD)/tests/,\
                       hostile $(shell sed -nE 's/^[a-z]+-[a-z]+ ([a-z_]+) [a-z0-9_]+$$/\1/p' tests/tool/hostile.sh))) \
                     $(if $(filter tests/tool/gdb_commands.sh,$(scripts)),$(BUILD)/gdb/debuggee) \
                     $(if $(filter tests/tool/flame.sh,$(scripts)),$(BUILD)/flame/draw) \
                     $(if $(filter tests/tool/stress.sh,$(scripts)),$(if $(stress_c),$(BUILD)/stress/stress-tested)) \
                     $(if $(filter tests/tool/boehm_modes.sh,$(scripts)),\
                       $(filter $(BUILD)/tests/adversary_%,$(core_tests)))
installed_tests := tests/tool/install.sh tests/tool/embedding.sh tests/tool/profile.sh
test_needs := $(tests) $(BUILD)/tests/runner $(script_tests_need) \
              $(if $(scripts),$(scheme) $(demos) $(if $(CROSS),,$(libs) $(bdw_libs) $(examples) $(user_tools) $(stress) $(bench) \
                $(BUILD)/fuzz/replay)) \
              $(if $(CROSS),,$(if $(filter $(installed_tests),$(scripts)),$(installed)) \
                $(foreach host,$(outside_hosts),$(if $(filter tests/host/$(host)%.sh,$(scripts)),host-$(host))))

# ---- targets ----------------------------------------------------------------------------------------------------------
# 1: a case that fails is not tried again, and one that skips itself must be in tests/cannot_run.list.
STRICT ?=
# 1: cases that try many things try as many as they know (make ci).
LONG ?=
# 1: the cases whose verdict hangs on time or load, and no others (make check-timed).
TIMED ?=
SECONDS ?= 60
SEED ?= 1
wants_numbers = @for word in $(foreach v,$1,'$v=$($v)'); do [[ $$word =~ =[0-9]*$$ ]] || { echo "$$word is not a number" >&2; exit 2; }; done
check:
	$(call wants_numbers,JOBS SLOWEST STORM_MS)
	@tools/setup.sh $(if $(CROSS)$(filter core,$(TIER)),core,check)
	+@$(sub) run-check $(werror_of_tests)
check-timed:
	$(call wants_numbers,SLOWEST STORM_MS)
	@tools/setup.sh $(if $(CROSS)$(filter core,$(TIER)),core,check)
	+@$(sub) run-check TIMED=1 $(werror_of_tests)
RUNS ?= 5
LOAD ?= 4
steady:
	$(call wants_numbers,RUNS LOAD)
	@tools/setup.sh $(if $(filter core,$(TIER)),core,check)
	$(if $(filter 0,$(RUNS)),,+@$(sub) test-needs $(werror_of_tests))
	+@RUNS='$(RUNS)' LOAD='$(LOAD)' CODEHEAP_BUILD=$(call quoted,$(BUILD)) tools/steady.sh
# Nothing that make runs has the library's own switches: users may have set them for programs of theirs.
unexport CODEHEAP_DEAD_NAMES CODEHEAP_DEBUG CODEHEAP_SINKS CODEHEAP_STATS CODEHEAP_WX JITDUMPDIR
# What the cases of this build find in their environment: one language, since what tools say is read, and a folder for their files
# without a blank, since gdb, LD_PRELOAD and the flags of pkg-config take a path with one for two. AddressSanitizer
# guesses where thread-local data of libraries loaded late (libdw) lie, guesses wrong by their address, and LeakSanitizer
# dies of it: it finds such data as memory of the dynamic linker. What is beyond all memory is NULL under sanitizers, too.
# glibc's malloc takes 64 MiB of addresses when two threads meet in it, and cases count what is mapped: one arena.
slow := $(if $(EMULATOR),10,$(if $(SAN)$(filter 1,$(COVERAGE)),4))
test_environment = LC_ALL=C.UTF-8 $(if $(word 2,$(TMPDIR)),TMPDIR=/tmp) CODEHEAP_BUILD=$(BUILD) CODEHEAP_ARCH=$(ARCH) CODEHEAP_TEST_STORM_MS=$(STORM_MS) CODEHEAP_TEST_SEED=$${CODEHEAP_TEST_SEED:-$(SEED)} \
	 $(if $(filter 1,$(LONG)),CODEHEAP_TEST_LONG=1) \
	 $(if $(PAGE)$(SYSTEM_PAGE),CODEHEAP_TEST_PAGE=$(or $(PAGE),$(SYSTEM_PAGE))) \
	 $(if $(SYSTEM_PAGE),CODEHEAP_TEST_SYSTEM_PAGE=$(SYSTEM_PAGE)) $(if $(BACKEND),CODEHEAP_WX=$(BACKEND)) \
	 $(if $(slow),CODEHEAP_TEST_SLOW=$(slow)) CODEHEAP_TEST_EMULATOR='$(EMULATOR)' CODEHEAP_TEST_SAN=$(SAN) CODEHEAP_TEST_GC=$(GC) CODEHEAP_TEST_ALLOC=$(ALLOC) \
	 ASAN_OPTIONS=detect_stack_use_after_return=0:allow_user_segv_handler=1:intercept_tls_get_addr=0:allocator_may_return_null=1:$$ASAN_OPTIONS \
	 TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1:$$TSAN_OPTIONS $(if $(filter malloc,$(ALLOC)),MALLOC_ARENA_MAX=1)
# What a failed case printed, when it passed at a second try.
unsteady := $(BUILD)/unsteady
test-needs: $(test_needs)
run-check: $(test_needs)
	@rm -rf $(unsteady) && mkdir -p $(unsteady)
	@$(test_environment) $(BUILD)/tests/runner -l tests/cannot_run.list -j $(or $(JOBS),3) $(if $(V),-v) $(if $(T),-t '$(T)') \
	 $(if $(filter 1,$(STRICT)),-S) $(if $(filter 1,$(TIMED)),-c -a $(unsteady),$(if $(filter 1,$(STRICT)),,-a $(unsteady))) \
	 $(if $(SLOWEST),-L $(SLOWEST)) \
	 $(if $(EMULATOR),-e '$(EMULATOR)' -n $(emulator_name),$(if $(SAN),-n $(firstword $(subst $(comma), ,$(SAN))))) \
	 $(if $(strip $(variant))$(filter-out x86_64,$(ARCH)),,-x) $(tests) $(scripts)

# The core tier once more under each restriction of tests/runner/hostile.c; WITH=name runs under one, T=name runs one test.
hostile:
	$(call wants_numbers,JOBS STORM_MS)
	@tools/setup.sh core
	+@$(sub) run-hostile TIER=core
run-hostile: $(tests) $(BUILD)/tests/runner $(BUILD)/tests/hostile
	@$(test_environment) JOBS='$(or $(JOBS),2)' T='$(T)' WITH='$(WITH)' FEW='$(FEW)' tests/runner/hostile.sh $(tests)

# ---- objects ----------------------------------------------------------------------------------------------------------
$(foreach d,$(lib_dirs),$(eval $(call lib_rules,$(d),$(TOBJ),-DCH_TESTING=1 $(count_flags))))
# Tests have instructions between their functions, which an optimizer at link time does not see. They are most of the code
# that is compiled: with fewer passes and lines only, in half the time. Builds of other machines and sanitizers keep all passes,
# and with them small frames and all warnings.
base_of_tests = $(if $(CROSS)$(SAN),$(BASE),$(patsubst -g,-g1,$(patsubst -O2,-O1,$(BASE))))
$(TOBJ)/%.o: %.c $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "cc $@"
	$(Q)$(CC) $(CSTD) $(base_of_tests) $(PROGRAM_FLAGS) -DCH_TESTING=1 -fno-lto $(compiled)
$(TOBJ)/%.cc.o: %.cc $(OBJ)/flags
	@mkdir -p $(@D)
	@echo "c++ $@"
	$(Q)$(CXX) -std=c++17 $(base_of_tests) $(PROGRAM_FLAGS) -DCH_TESTING=1 -fno-lto $(compiled)

# ---- linking ----------------------------------------------------------------------------------------------------------
# Bytes as programs over the public interface: `make fuzz` makes them up, replay runs files of them.
fuzz_o := $(patsubst %.c,$(TOBJ)/%.o,$(filter-out $(for_others),$(wildcard fuzz/*.c)))
$(BUILD)/fuzz/replay: $(fuzz_o) $(test_lib_o) $(lock_self_o) $(reached_o) $(jemalloc_o)
	$(call link_c,$(count_link) -lm)
$(BUILD)/fuzz/fuzz: $(filter-out %/replay.o,$(fuzz_o)) $(test_lib_o) $(lock_self_o)
	@mkdir -p $(@D); echo "link $@"; $(CC) $(LINK) -fsanitize=fuzzer -o $(new) $^ -lm $(whole)
# The same program on the objects that tests link: `make mutants` breaks one of them, and so does tests/tool/stress.sh.
$(BUILD)/stress/stress-tested: $(stress_c:%.c=$(TOBJ)/%.o) $(filter-out $(OBJ)/hosts/scheme/main.o,$(scheme_o)) \
                               $(test_lib_o) $(lock_self_o) $(test_bdw_o) $(reached_o) $(jemalloc_o)
	$(call link_c,$(count_link) $(GC_LIBS) -lm)
# By gcc, whatever the library was built with: what a compiler leaves in registers and frames is scanned, too, and holds
# the block that is to die.
$(BUILD)/gdb/debuggee: tests/gdb/debuggee.c $(BUILD)/libcodeheap.a
	@mkdir -p $(@D); echo "link $@"; gcc -std=gnu11 -g -O1 -fno-omit-frame-pointer -I. -o $(new) $^ -lm -pthread $(whole)
$(BUILD)/flame/draw: tests/flame/draw.c $(wildcard flame/*)
	@mkdir -p $(@D); echo "link $@"; $(CC) -std=gnu11 -D_GNU_SOURCE -O1 -I. -o $(new) $(filter %.c,$^) $(whole)

# Tests see the hidden symbols: they link plain objects, a folder per archive. A unit test of a lower room is linked
# without the rooms above it, which proves that nothing in it calls upwards; tests/support/stand_in.c has what they leave to
# codeheap/.
define room_archive
$(TOBJ)/$(1).a: $(filter $(TOBJ)/$(1)/%,$(test_lib_o))
	@mkdir -p $$(@D); rm -f $$(new); $(AR) rcs $$(new) $$^ $$(whole)
endef
$(foreach d,$(lib_dirs),$(eval $(call room_archive,$(d))))
$(TOBJ)/tests/support.a: $(support_o)
	@mkdir -p $(@D); rm -f $(new); $(AR) rcs $(new) $^ $(whole)
$(TOBJ)/tests/stand_in.a: $(TOBJ)/tests/support/stand_in.o
	@rm -f $(new); $(AR) rcs $(new) $^ $(whole)
coverage_o := $(if $(filter 1,$(COVERAGE)),$(TOBJ)/tests/support/coverage.o $(reached_o))
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
# test_rule PROGRAM,ROOMS,COMPILER,OBJECT
define test_rule
$(BUILD)/tests/$(1): $(TOBJ)/$(4) $(TOBJ)/tests/support/harness.o $(lock_self_o) $(coverage_o) $(addprefix $(TOBJ)/,$(addsuffix .a,$(2))) \
  $(if $(filter codeheap,$(2)),$(test_bdw_o) $(TOBJ)/tests/support.a,$(TOBJ)/tests/stand_in.a) \
  $(if $(filter os,$(2)),$(failing_o) $(jemalloc_o))
	@mkdir -p $$(@D); echo "link $$@"
	$(Q)$(3) $(LINK_PROGRAM) $(count_link) $$(count_ends) -o $$(new) -Wl,--start-group $$(filter %.o %.a,$$^) -Wl,--end-group \
	  $(if $(filter codeheap,$(2)),$(GC_LIBS)) $(if $(filter os,$(2)),$(failing_wraps)) $(libs_$(1)) -lm -ldl $$(whole)
endef
test_rooms = $(call rooms_of,$(if $(filter unit_%,$(1)),$(call unit_room,$(1)),all))
# What throws is linked as C++: sanitizers of C++ have functions of their own.
linked_as_cxx := adversary_leaving unit_observe_native
compiler_of = $(if $(filter $(1),$(linked_as_cxx)),$(CXX),$(CC))
$(foreach c,$(core_c) $(tool_c),$(foreach t,$(call name_of,$(c)),$(eval $(call test_rule,$(t),$(call test_rooms,$(t)),$(call compiler_of,$(t)),$(c:.c=.o)))))
$(foreach c,$(core_cc),$(foreach t,$(call name_of,$(c)),$(eval $(call test_rule,$(t),$(call test_rooms,$(t)),$(CXX),$(c).o))))
$(BUILD)/tests/adversary_leaving: $(TOBJ)/tests/support/throwing.cc.o
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
	$(if $(filter other,$*),$(Q)$(OBJCOPY) --redefine-sym other_step=other_step@V1 $(new))
	$(Q)mv -f $(new) $@
$(BUILD)/tests/unit_scheme_emitter $(BUILD)/tests/unit_scheme_sites: $(emitter_o)
$(BUILD)/tests/hostile: tests/runner/hostile.c tests/support/own_mounts.h
$(BUILD)/tests/runner: $(wildcard tests/runner/runner*.c) tests/runner/runner.h
$(BUILD)/tests/runner $(BUILD)/tests/hostile:
	@mkdir -p $(@D)
	gcc $(CSTD) -O2 -g -I. $(WARN) -o $(new) $(filter %.c,$^) $(whole)
