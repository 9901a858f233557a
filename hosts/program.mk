# SPDX-License-Identifier: MIT
# The program of a host in C++: all .cc files of its folder. The Makefile that includes this says its name, and the flags and
# libraries of what it is a host of: program, own_flags, own_libs.
include ../installed.mk
objects := $(patsubst %.cc,$(OUT)/%.o,$(wildcard *.cc))

all: $(OUT)/$(program)
$(OUT)/$(program): $(objects)
	@echo link $@
	@$(CXX) $(LDFLAGS) -rdynamic -o $@ $^ $(codeheap_libs) $(own_libs)
$(OUT)/%.o: %.cc $(wildcard *.h ../cases.h) Makefile ../program.mk ../installed.mk $(codeheap_header)
	@mkdir -p $(OUT)
	@echo c++ $@
	@$(CXX) -std=c++17 -fno-omit-frame-pointer $(CXXFLAGS) $(warnings) $(own_flags) $(codeheap_flags) -c -o $@ $<
clean:
	rm -f $(OUT)/$(program) $(objects)
.PHONY: all clean
