# SPDX-License-Identifier: MIT
# What the Makefile of a host knows of the installed library, by pkg-config: PKG_CONFIG_PATH says where that is. OUT is the folder
# to build in.
CFLAGS ?= -O2 -g
CXXFLAGS ?= -O2 -g
ifneq ($(shell pkg-config --exists codeheap && echo found),found)
$(error pkg-config does not find codeheap: install it, or set PKG_CONFIG_PATH)
endif
empty :=
# A folder may have a space in its name.
escaped = $(subst $(empty) ,\ ,$(1))
warnings := -Wall -Wextra -Wshadow -Wundef -Werror
codeheap_flags := $(shell pkg-config --cflags codeheap)
codeheap_libs := $(shell pkg-config --libs codeheap) -Wl,-rpath,"$(shell pkg-config --variable=libdir codeheap)" -pthread
codeheap_header := $(call escaped,$(shell pkg-config --variable=includedir codeheap))/codeheap/codeheap.h
