# SPDX-License-Identifier: MIT
# What is installed, taken away and packed.

# Where `make install` puts things; the folders have the names that packagers know.
PREFIX ?= $(or $(prefix),/usr/local)
DESTDIR ?=
bindir ?= $(PREFIX)/bin
libdir ?= $(PREFIX)/lib
includedir ?= $(PREFIX)/include
datadir ?= $(PREFIX)/share
mandir ?= $(datadir)/man
docdir ?= $(datadir)/doc/libcodeheap
quoted = '$(subst ','\'',$(1))'
install_environment = CODEHEAP_BUILD='$(BUILD)' CODEHEAP_GC='$(GC)' CODEHEAP_VERSION='$(version)' CODEHEAP_BINARY='$(so_version)' CODEHEAP_TOOLS='$(user_tools)' \
  $(foreach folder,DESTDIR PREFIX bindir libdir includedir datadir mandir docdir,$(folder)=$(call quoted,$($(folder))))
# A page for each function, from its contract in the header.
man_pages := $(BUILD)/man/stamp
$(man_pages): $(public_headers) codeheap/profile.h tools/man_pages.py tools/man_functions.py tools/rooms.py docs/man/codeheap.3
	@mkdir -p $(@D); if type python3 >/dev/null 2>&1; then tools/man_pages.py $(call quoted,$(@D)); \
	  else echo 'install: without python3 there is no manual page for each function' >&2; fi && touch $@
install: $(libs) $(bdw_libs) $(user_tools) $(man_pages)
	@$(install_environment) tools/install.sh install
uninstall:
	@$(install_environment) tools/install.sh uninstall
dist:
	@tools/dist.sh $(version) $(call quoted,$(BUILD)/libcodeheap-$(version).tar.gz)

# A copy that hosts of others and scripts are built against.
$(installed): $(libs) $(bdw_libs) $(user_tools) $(man_pages) codeheap/codeheap.hpp $(wildcard examples/*.c* tools/*.pc.in tools/gdb/*.py tools/gdb/codeheap_gdb/*.py docs/man/*.[1-9]) tools/libgc.supp tools/install.sh Makefile mk/install.mk
	@rm -rf $(@D)
	@$(MAKE) --no-print-directory -s install PREFIX=$(call quoted,$(build_path)/installed) DESTDIR= >/dev/null && touch $@
