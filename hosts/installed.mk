# SPDX-License-Identifier: MIT
# What the Makefile of a host knows of the installed library, by pkg-config: PKG_CONFIG_PATH says where that is. OUT is the folder
# to build in; packages, where a host needs another flavour.
CFLAGS ?= -O2 -g
CXXFLAGS ?= -O2 -g
packages ?= codeheap
ifneq ($(shell pkg-config --exists $(packages) && echo found),found)
$(error pkg-config does not find $(packages): install it, or set PKG_CONFIG_PATH)
endif
empty :=
# A folder may have a space in its name.
escaped = $(subst $(empty) ,\ ,$(1))
warnings := -Wall -Wextra -Wshadow -Wundef -Werror
codeheap_flags := $(shell pkg-config --cflags $(packages))
codeheap_libdir := $(shell pkg-config --variable=libdir $(lastword $(packages)))
codeheap_libs := $(shell pkg-config --libs $(packages)) -Wl,-rpath,"$(codeheap_libdir)" -pthread
codeheap_header := $(call escaped,$(shell pkg-config --variable=includedir $(lastword $(packages))))/codeheap/codeheap.h
