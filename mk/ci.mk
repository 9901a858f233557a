# SPDX-License-Identifier: MIT
# What goes beyond the tests: lint, analyzers, models, fuzz, coverage, breaks of each kind, and all of it in one command.

# The fuzzer's objects count what they run and are watched by AddressSanitizer: a build of their own. What it finds
# worth keeping goes to build/, so that the corpus in the tree stays small. The next run begins without it: to run again all
# that earlier runs kept takes most of a minute.
fuzz_build := $(BUILD_ROOT)/fuzzer
fuzz:
	@tools/setup.sh fuzz
	+@$(sub) run-fuzz CC=clang-14 CXX=clang++-14 GC=none ALLOC=malloc SAN=address EXTRA_CFLAGS=-fsanitize=fuzzer-no-link BUILD=$(fuzz_build)
run-fuzz: $(BUILD)/fuzz/fuzz
	@rm -rf $(BUILD)/corpus && mkdir -p $(BUILD)/corpus $(BUILD)/failures
	@timeout -s KILL $$(($(SECONDS) + 120)) $(BUILD)/fuzz/fuzz -max_total_time=$(SECONDS) -timeout=60 -max_len=4000 \
	  -len_control=0 -artifact_prefix=$(BUILD)/failures/ $(BUILD)/corpus fuzz/corpus >$(BUILD)/fuzz.log 2>&1 || \
	  { grep -aE '^(fuzz/|tests/|==|Test unit)' $(BUILD)/fuzz.log; \
	    echo 'fuzz: run it again: FUZZ_LOUD=1 $(BUILD)/fuzz/fuzz FILE' >&2; exit 1; }
	@tail -n 1 $(BUILD)/fuzz.log

# What the tests run of the library: core tier, tool tests, the fuzzer's programs, and cases in hostile processes, on
# objects that count. A script that tests the libraries runs objects that do not count, and is left out.
coverage:
	@tools/setup.sh coverage
	+@$(sub) run-coverage COVERAGE=1 TIER=core
coverage_scripts := tests/tool/hostile.sh tests/tool/llvm_unwind.sh
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

c_of_tests = $(filter-out $(for_others),$(test_sources) $(wildcard tests/support/*.c tests/runner/*.c))
lint:
	@tools/setup.sh lint
	+@$(sub) run-lint
run-lint: $(libs) $(bdw_libs) $(lib_o)
	@echo $(c_of_tests) | \
	 xargs -P 2 -n 16 clang-14 $(CSTD) -I. -pthread $(WARN) $(PROGRAM_FLAGS) -DCH_TESTING=1 -fsyntax-only 2>$(BUILD)/clang-of-tests; \
	 CODEHEAP_BUILD=$(BUILD) CODEHEAP_ARCH=$(ARCH) CODEHEAP_OBJECTS='$(lib_o) $(bdw_o)' CODEHEAP_GUEST_HEADERS='$(guest_headers)' \
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
	+@$(sub) run-tidy
run-tidy:
	@TIDY_FLAGS='$(CSTD) -I. -pthread $(WARN) $(PROGRAM_FLAGS)' TIDY_LIB='$(lib_c) $(if $(bdw_o),codeheap/gc_bdw.c)' \
	 TIDY_HOSTS='$(wildcard tools/callgrind/*.c tools/codeheap-top/*.c tools/draw/*.c) $(scheme_c) $(demo_c) $(examples:$(BUILD)/%=%.c)' TIDY_TESTS='$(c_of_tests)' \
	 TIDY_OUTSIDE='$(outside_c)' TIDY_OUTSIDE_FLAGS='$(outside_flags)' JOBS='$(or $(JOBS),2)' \
	 tools/tidy.sh $(PARTS)

model:
	@tools/setup.sh model
	@CODEHEAP_BUILD=$(BUILD) timeout -s KILL 900 docs/model/run.sh
# The library as it is compiled for ThreadSanitizer, in a memory of its own (tests/orders/); T names rows.
orders:
	@tools/setup.sh lib
	+@$(sub) CC=gcc SAN=thread GC=none ALLOC=malloc run-orders
run-orders: $(test_lib_o) $(lock_self_o)
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
