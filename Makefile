# SPDX-License-Identifier: MIT
# Builds libcodeheap; programs on it, tests, installation and checks are in mk/. `make help` lists the targets, `make vars` the
# settings of one build.
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
# The folder of the checkout may have a space in its name; so only what is quoted says it. The folder of the build may not.
build_path := $(if $(word 2,$(BUILD)),$(error BUILD must be a name without a blank (it is `$(BUILD)`)))$(if $(filter /%,$(BUILD)),,$(CURDIR)/)$(BUILD)
OBJ := $(BUILD)/obj
TOBJ := $(BUILD)/obj-test

WARN := -Wall -Wextra -Wundef -Wshadow
# 1: warnings are errors, in CI and in the tests of a checkout. A packager's compiler knows others than ours.
WERROR ?=
werror_of_tests := WERROR=$(or $(WERROR),$(if $(wildcard .git),1))
san_flags := $(if $(SAN),-fsanitize=$(SAN) $(if $(findstring undefined,$(SAN)),-fno-sanitize-recover=all))
# libunwind's own unwind.h comes behind the compiler's. On x86-64 each object says that it keeps a shadow stack in step.
# gcc writes unwind tables for C on some machines only, unless asked; exceptions and samplers pass through the library.
BASE := -O2 -g -fno-omit-frame-pointer -fasynchronous-unwind-tables -I. -MMD -MP -pthread $(WARN) $(if $(filter 1,$(WERROR)),-Werror) $(san_flags) \
        $(if $(sysroot),-isystem $(sysroot)/usr/include -idirafter $(sysroot)/usr/include/$(ARCH)-linux-gnu) \
        $(if $(filter 1,$(DEBUG)),-DCH_CHECK=2) $(if $(filter x86_64,$(ARCH)),-fcf-protection=return) $(EXTRA_CFLAGS)
CSTD := -std=gnu11
# Each library is one object of machine code, for programs of any compiler, and lint judges it function by function: with
# -flto in EXTRA_CFLAGS the programs are optimized when they are linked, and the libraries are not.
# Each is the same wherever it is built (clang's assembler knows another switch for that than its compiler). gcc does not cut
# rare code out of functions (it costs jumps and unwind entries), pad, or copy code to spare loads (pre): 3 in 100 of the text.
LIB_FLAGS := -fdebug-prefix-map="$(CURDIR)"=. $(if $(findstring clang,$(cc_name)),-fdebug-compilation-dir=.,-fno-reorder-blocks-and-partition -fno-tree-pre -falign-functions=1 -falign-jumps=1 -falign-loops=1) -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-lto
BDW := $(if $(filter none,$(GC)),0,1)
GC_LIBS := $(if $(filter 1,$(BDW)),-lgc)
sysroot_lib := $(sysroot)/usr/lib/$(ARCH)-linux-gnu
LINK := -pthread $(filter -flto%,$(EXTRA_CFLAGS)) $(san_flags) -Wl,-z,noexecstack \
        $(if $(sysroot),-L$(sysroot_lib) -Wl$(comma)-rpath-link$(comma)$(sysroot_lib):$(sysroot)/lib/$(ARCH)-linux-gnu) $(EXTRA_LDFLAGS)
LINK_PROGRAM := $(LINK) $(static)

# Without optimization, which would merge what is counted.
count_flags := $(if $(filter 1,$(COVERAGE)),-O0 --coverage -fprofile-update=atomic -fsanitize-coverage=trace-pc)
asmjit := $(if $(wildcard /usr/include/asmjit/asmjit.h),1,0)

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
lib_c := $(wildcard arch/$(ARCH).c os/*.c os/locks/*.c pages/*.c unwind/*.c sinks/*.c invalidate/*.c flame/*.c observe/*.c) \
         $(filter-out codeheap/gc_bdw.c,$(wildcard codeheap/*.c codeheap/*/*.c))
lib_s := $(wildcard arch/$(ARCH).S)
lib_o := $(lib_c:%.c=$(OBJ)/%.o) $(lib_s:%.S=$(OBJ)/%.S.o)
# Guests of a heap have copies of what keeps nothing (the linker finds of what), and call all else in the core (CH_GUEST).
guest_o := $(filter $(OBJ)/flame/% $(OBJ)/observe/%,$(lib_o))
core_o := $(filter-out $(guest_o),$(lib_o))
copied_o := $(filter-out %/meta.o %/checks.o,$(filter $(OBJ)/arch/% $(OBJ)/os/% $(OBJ)/unwind/walk.o,$(core_o)))
dl_o := $(patsubst $(OBJ)/os/meta.o,$(OBJ)/os/meta_malloc.o,$(core_o))
bdw_o := $(if $(filter 1,$(BDW)),$(patsubst %.c,$(OBJ)/%.o,$(wildcard codeheap/gc_bdw.c)))
# Tests link objects of their own, with the switches by which a test breaks the code or fails its OS calls.
test_lib_o := $(lib_o:$(OBJ)/%=$(TOBJ)/%)
test_bdw_o := $(bdw_o:$(OBJ)/%=$(TOBJ)/%)
jemalloc_o := $(if $(filter jemalloc,$(ALLOC)),$(OBJ)/jemalloc.o)
public_headers := $(wildcard codeheap/codeheap.h codeheap/collector.h codeheap/look.h codeheap/codeheap_bdw.h)
guest_headers := codeheap/guest_look.h codeheap/listener.h codeheap/base/why.h arch/base.h os/meta.h os/locks/ranks.h
libs := $(foreach name,codeheap codeheap-dl codeheap-profile,$(BUILD)/lib$(name).a $(BUILD)/lib$(name).so)
bdw_libs := $(if $(bdw_o),$(BUILD)/libcodeheap-bdw.a $(BUILD)/libcodeheap-bdw.so)

# ---- objects -------------------------------------------------------------------------------------------------------
# A change of flags rebuilds: the stamp is rewritten only when its text differs.
flags := $(CC) $(CXX) $(CSTD) $(filter-out -Werror,$(BASE)) $(LIB_FLAGS) $(count_flags) $(EXTRA_LDFLAGS) BDW=$(BDW) ALLOC=$(ALLOC) ASMJIT=$(asmjit)
$(OBJ)/flags: FORCE
	@mkdir -p $(@D); echo '$(flags)' | cmp -s - $@ || echo '$(flags)' > $@
.PHONY: FORCE
FORCE:

# What runs once in a heap's life, at a fork or a stop, in a check, before the process dies, or beside a system call, as sinks
# do, is built to be small: a quarter of such a file is loops unrolled and calls made inline.
seldom_c := $(wildcard os/linux*.c observe/linux*.c codeheap/look/trap*.c sinks/*.c) os/text.c \
            $(addprefix pages/,chunks.c pool.c pool_check.c pool_fork.c spans.c valgrind.c views.c views_private.c) \
            $(filter-out unwind/walk.c,$(wildcard unwind/*.c)) $(addprefix invalidate/,assumption.c discard.c sites.c) \
            $(wildcard codeheap/events/*.c) $(addprefix codeheap/base/,heaps.c park.c why.c) \
            $(addprefix codeheap/collect/,cycle.c world.c) codeheap/graph/stats.c codeheap/places/place.c \
            $(addprefix codeheap/life/,fork.c heap.c thread.c veneer.c write.c) \
            $(addprefix codeheap/look/,address_name.c backtrace.c check.c look.c look_code.c)
$(foreach c,$(seldom_c),$(if $(wildcard $(c)),,$(error seldom_c: there is no $(c))))
seldom_o := $(seldom_c:%.c=$(OBJ)/%.o) $(seldom_c:%.c=$(TOBJ)/%.o)
$(seldom_o): BASE := $(patsubst -O2,-Os,$(BASE))

alloc_flag = -DCH_ALLOC_MALLOC=$(if $(filter malloc,$(ALLOC)),1,0)
# lib_rules ROOM,OBJECT_FOLDER,FLAGS
define lib_rules
$(2)/$(1)/%.o: $(1)/%.c $(OBJ)/flags
	@mkdir -p $$(@D); echo "cc $$@"
	$(Q)$(CC) $(CSTD) $$(BASE) $(LIB_FLAGS) $(alloc_flag) $(3) $$(compiled)
$(2)/$(1)/%.S.o: $(1)/%.S $(OBJ)/flags
	@mkdir -p $$(@D); echo "cc $$@"
	$(Q)$(CC) $(BASE) $(LIB_FLAGS) $(3) $$(compiled)
endef
$(foreach d,$(lib_dirs),$(eval $(call lib_rules,$(d),$(OBJ))))
# What the assembler embeds, the compiler does not list.
$(OBJ)/flame/flame_template.o $(TOBJ)/flame/flame_template.o: flame/template.svg
$(OBJ)/os/meta_malloc.o: os/meta.c $(OBJ)/flags
	@mkdir -p $(@D); echo "cc $@"
	$(Q)$(CC) $(CSTD) $(BASE) $(LIB_FLAGS) -DCH_ALLOC_MALLOC=1 $(compiled)

# jemalloc without its C++ operators, and with only the calls of its extended interface visible: linked whole it would
# take malloc and free away from the program. Its tables of 2 MiB lie in a section of their own, which the linker gives
# names for beginning and end: they are no roots of a collector (gc_bdw.c).
jemalloc_names := malloc_conf_2_conf_harder mallctl mallctlbymib mallctlnametomib mallocx rallocx xallocx sallocx dallocx sdallocx nallocx
$(OBJ)/jemalloc.o: $(OBJ)/flags
	@lib="$(if $(sysroot),$(CURDIR)/$(sysroot_lib)/libjemalloc_pic.a,$$($(CC) -print-file-name=libjemalloc_pic.a))"; \
	 [ -f "$$lib" ] || { echo "libjemalloc_pic.a is missing: install libjemalloc-dev" >&2; exit 2; }; \
	 rm -rf $(OBJ)/jemalloc && mkdir -p $(OBJ)/jemalloc && cd $(OBJ)/jemalloc && $(AR) x "$$lib" && \
	 rm -f jemalloc_cpp*.o
	@$(LD_R) -o $(new) $(OBJ)/jemalloc/*.o
	@$(OBJCOPY) --rename-section .bss=ch_alloc_tables $(addprefix --keep-global-symbol=,$(jemalloc_names)) $(new) && \
	 rm -rf $(OBJ)/jemalloc $(whole)

# ---- libraries -----------------------------------------------------------------------------------------------------
# Each library is one object whose only global symbols are the public names, and those that a debugger looks for, which
# are hidden in an archive (tools/hidden.s); archive and shared object hold the same one.
debugger_names := __jit_debug_descriptor __jit_debug_register_code
$(OBJ)/public.names: tools/public_names.sh $(public_headers) $(guest_headers)
	@mkdir -p $(@D); { tools/public_names.sh $(public_headers); tools/public_names.sh --guests $(guest_headers); printf '%s\n' $(debugger_names); } > $(new) $(whole)
$(OBJ)/profile.names: tools/public_names.sh codeheap/profile.h
	@mkdir -p $(@D); $^ > $(new) $(whole)
$(OBJ)/libcodeheap.o: $(core_o) $(jemalloc_o) $(OBJ)/public.names
$(OBJ)/libcodeheap-dl.o: $(dl_o) $(OBJ)/public.names
$(OBJ)/libcodeheap-bdw.o: $(core_o) $(bdw_o) $(jemalloc_o) $(OBJ)/public.names
$(OBJ)/libcodeheap-profile.o: $(guest_o) $(OBJ)/copied.a $(OBJ)/profile.names
$(addprefix $(OBJ)/libcodeheap,.o -dl.o -bdw.o -profile.o):
	@$(LD_R) -o $(new) $(filter %.o %.a,$^)
	@$(OBJCOPY) --keep-global-symbols=$(filter %.names,$^) $(new) $(whole)
$(OBJ)/copied.a: $(copied_o); @rm -f $(new); $(AR) rcs $(new) $^ $(whole)
$(BUILD)/%.a: $(OBJ)/%.o tools/hidden.s
	@rm -f $(new); mkdir -p $(OBJ)/archive && $(CC) -c -o $(OBJ)/archive/$*.hidden.o tools/hidden.s && \
	 $(LD_R) -o $(OBJ)/archive/$*.o $< $(if $(findstring -profile,$@),,$(OBJ)/archive/$*.hidden.o) && $(AR) rcs $(new) $(OBJ)/archive/$*.o $(whole)
# Guests take the core's functions from whichever library of it the process has.
so_checks = $(if $(SAN)$(findstring -profile,$@),,-Wl,-z,defs)
# A program is linked with libX.so, asks the loader for libX.so.BINARY, and gets libX.so.VERSION.
so_version := $(shell sed -n 's/^.define CH_VERSION_BINARY \([0-9]*\).*/\1/p' codeheap/codeheap.h)
# Code calls stubs, the kernel handlers, glibc fork handlers of the library: dlclose must not unmap it. No handler binds late.
so_stays = -Wl,-z,nodelete$(if $(findstring -profile,$@),,$(comma)-z$(comma)now)
$(BUILD)/%.so: $(OBJ)/%.o tools/codeheap.map
	@echo "link $@"
	$(Q)$(CC) -shared $(LINK) $(so_checks) $(so_stays) -Wl,-soname,$(@F).$(so_version) -Wl,--version-script=tools/codeheap.map \
	  -o $(new) $< $(if $(findstring -bdw,$@),$(GC_LIBS)) -lm && mv -f $(new) $@.$(version)
	@ln -sfn $(@F).$(version) $@.$(so_version) && ln -sfn $(@F).$(so_version) $@

# Which tools and libraries a target needs depends on the build: without the Boehm driver no libgc is asked for.
export GC SAN ALLOC CROSS CC SETUP DEBUG
include mk/hosts.mk mk/install.mk mk/tests.mk mk/ci.mk mk/help.mk

# ---- targets -------------------------------------------------------------------------------------------------------
.PHONY: all libs check check-timed steady test-needs run-check hostile run-hostile demo demo-needs stress run-stress bench run-bench bench-compare instructions run-instructions lint run-lint measure \
        coverage run-coverage test-index run-test-index tests-of breaks run-breaks \
        fuzz run-fuzz tidy run-tidy model orders run-orders mutants run-mutants install uninstall dist clean help vars ci programs
sub = $(MAKE) --no-print-directory

# Each of these is a make of its own, or takes files away: beside another one in the same folder both would write the
# same files. Those of one command come one after the other; within each of them jobs are as many as ever.
makes_of_their_own := all check check-timed steady hostile demo stress bench instructions lint coverage test-index tests-of breaks mutants install uninstall clean $(outside_hosts)
ifneq ($(word 2,$(MAKECMDGOALS)),)
ifneq ($(filter $(makes_of_their_own),$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif
endif

all:
	@tools/setup.sh lib
	+@$(sub) libs $(user_tools)
libs: $(libs) $(bdw_libs)

clean:
	rm -rf $(call quoted,$(BUILD))

-include $(shell find $(OBJ) $(TOBJ) -name '*.d' 2>/dev/null)
