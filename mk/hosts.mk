# SPDX-License-Identifier: MIT
# Programs on the library: what a user runs beside it, examples, hosts, stress and bench.

# Installed in bindir, each with a page of its name in docs/man.
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
# The heap's picture, for codeheap-top and the Scheme.
draw_o := $(OBJ)/tools/draw/draw_heap.o
scheme_o += $(if $(scheme_c),$(draw_o))
scheme := $(if $(scheme_c),$(BUILD)/scheme)
demos := $(demo_c:hosts/demo/%.c=$(BUILD)/demo/%)
stress_o := $(stress_c:%.c=$(OBJ)/%.o)
stress := $(if $(stress_c),$(BUILD)/stress/stress)
bench_cc := $(if $(bench_c),$(filter-out $(if $(filter 0,$(asmjit)),%/peer_asmjit.cc),$(wildcard bench/*.cc)))
bench_o := $(bench_c:%.c=$(OBJ)/%.o) $(bench_cc:%.cc=$(OBJ)/%.cc.o)
bench := $(if $(bench_c),$(BUILD)/bench/bench)

# What is built against the installed library: hosts that others wrote, each with a Makefile of its own, and what scripts
# build themselves.
installed := $(BUILD)/installed/stamp
outside_hosts := $(patsubst hosts/%/Makefile,%,$(wildcard hosts/*/Makefile))

# ---- targets ----------------------------------------------------------------------------------------------------------
programs: $(examples) $(user_tools) $(scheme) $(demos) $(stress) $(bench)
demo:
	@tools/setup.sh demo
	+@tools/counted.sh building $(sub) demo-needs
	@CODEHEAP_BUILD=$(BUILD) hosts/demo/demo.py
demo-needs: $(scheme) $(demos)

stress:
	@tools/setup.sh stress
	+@$(sub) run-stress
run-stress: $(stress) $(scheme)
	@$(if $(stress),CODEHEAP_BUILD=$(BUILD) $(if $(EMULATOR),CODEHEAP_TEST_SLOW=$(slow)) \
	  timeout -s KILL $$(($(SECONDS) * 2 + 200)) $(EMULATOR) $(stress) --seconds=$(SECONDS) --seed=$(SEED),echo 'stress: stress/ is empty' >&2; exit 2)

bench:
	@tools/setup.sh bench
	+@$(sub) run-bench
run-bench: $(bench) $(scheme) $(libs) $(if $(CROSS),,$(filter host-python,$(outside_hosts:%=host-%)))
	@$(if $(bench),CODEHEAP_BUILD=$(BUILD) timeout -s KILL 1200 $(bench) --json=$(BUILD)/bench.json,\
	  echo 'bench: bench/ is empty' >&2; exit 2)
	@$(if $(filter 1,$(WRITE)),tools/figures.py $(BUILD)/bench.json bench/causes.list docs/figures.md)
bench-compare:
	@$(if $(OLD),,echo 'bench-compare: give OLD=file' >&2; exit 2;) tools/bench_compare.py $(OLD) $(BUILD)/bench.json

instructions:
	@tools/setup.sh bench
	+@$(sub) run-instructions
run-instructions: $(bench)
	@timeout -s KILL 900 tools/instructions.py $(bench) bench/instructions.list $(if $(filter 1,$(WRITE)),--write)

# Hosts that others wrote know the installed library by pkg-config, and nothing of this tree.
.PHONY: $(outside_hosts) $(outside_hosts:%=host-%) asked-hosts
# Those that are asked for at once are one make's work: two would link the same library at one time.
$(outside_hosts): asked-hosts ;
asked-hosts:
	@tools/setup.sh hosts
	+@$(sub) $(patsubst %,host-%,$(filter $(outside_hosts),$(MAKECMDGOALS)))
$(outside_hosts:%=host-%): host-%: $(installed)
	+@PKG_CONFIG_PATH=$(call quoted,$(build_path)/installed/lib/pkgconfig) $(MAKE) --no-print-directory -C hosts/$* OUT=$(if $(filter /%,$(BUILD)),,../../)$(BUILD)/$*

# ---- objects ----------------------------------------------------------------------------------------------------------
# Everything outside the library: one rule, and the facts of the build as macros that are always 0 or 1.
PROGRAM_FLAGS := -DCH_TEST_BDW=$(BDW) -DCH_BENCH_ASMJIT=$(asmjit) -DCH_TEST_CODE='"tests/support/code_$(ARCH).h"' \
                 -DCH_TEST_PROBE='"tests/support/template_probe_$(ARCH).h"' \
                 -DCH_TEST_FRAMES='"tests/support/frames_code_$(ARCH).h"' \
                 -DCH_TEST_STAGE_CODE='"tests/support/stage_code_$(ARCH).h"' \
                 -DCH_TEST_CATCH='"tests/support/catch_code_$(ARCH).h"'
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

# ---- linking ----------------------------------------------------------------------------------------------------------
link_c = @mkdir -p $(@D); echo "link $@"; $(CC) $(LINK_PROGRAM) -o $(new) $(filter %.o %.a,$^) $(1) $(whole)
$(filter %/profile,$(examples)): $(BUILD)/libcodeheap-profile.a
$(filter-out %_boehm,$(examples)): $(BUILD)/%: $(OBJ)/%.o $(BUILD)/libcodeheap.a
	$(call link_c,-lm)
$(filter %_boehm,$(examples)): $(BUILD)/%: $(OBJ)/%.o $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(GC_LIBS) -lm)
callgrind_o := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tools/callgrind/*.c))
# What is installed names no folder of whoever built it.
$(callgrind_o): BASE += -fdebug-prefix-map="$(CURDIR)"=.
# What it draws and the files that it makes are the library's work; which of its objects are linked, the linker finds.
$(OBJ)/rooms.a: $(dl_o) $(guest_o)
	@rm -f $(new); $(AR) rcs $(new) $^ $(whole)
$(callgrind_names): $(callgrind_o) $(OBJ)/rooms.a
	$(call link_c,-lm -ldl)
codeheap_top_o := $(patsubst %.c,$(OBJ)/%.o,$(wildcard tools/codeheap-top/*.c)) $(draw_o)
$(codeheap_top_o): BASE += -fdebug-prefix-map="$(CURDIR)"=.
$(codeheap_top): $(codeheap_top_o) $(OBJ)/flame/flame_text.o
	$(call link_c)
# It exports its functions, so that its profiles name them where there is no libdw.
$(BUILD)/scheme: $(scheme_o) $(BUILD)/libcodeheap-profile.a $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(if $(static),,-rdynamic) $(GC_LIBS) -lm)
$(demos): $(BUILD)/demo/%: $(OBJ)/hosts/demo/%.o $(OBJ)/hosts/demo/bytes_$(ARCH).o $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(GC_LIBS) -lm)
$(BUILD)/stress/stress: $(stress_o) $(filter-out $(OBJ)/hosts/scheme/main.o,$(scheme_o)) $(BUILD)/libcodeheap-profile.a $(BUILD)/libcodeheap-bdw.a
	$(call link_c,$(GC_LIBS) -lm)
$(BUILD)/bench/bench: $(bench_o) $(BUILD)/libcodeheap-profile.a $(BUILD)/libcodeheap-bdw.a
	@mkdir -p $(@D); echo "link $@"; $(if $(bench_cc),$(CXX),$(CC)) $(LINK_PROGRAM) -o $(new) $(filter %.o %.a,$^) \
	  $(if $(filter 1,$(asmjit)),-lasmjit) $(GC_LIBS) -lm -ldl $(whole)
