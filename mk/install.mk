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
quoted = '$(subst ','\'',$(1))'
install_environment = CODEHEAP_BUILD='$(BUILD)' CODEHEAP_GC='$(GC)' CODEHEAP_VERSION='$(version)' CODEHEAP_TOOLS='$(user_tools)' \
  $(foreach folder,DESTDIR PREFIX bindir libdir includedir datadir mandir,$(folder)=$(call quoted,$($(folder))))
install: $(libs) $(bdw_libs) $(user_tools)
	@$(install_environment) tools/install.sh install
uninstall:
	@$(install_environment) tools/install.sh uninstall
dist:
	@tools/dist.sh $(version) $(call quoted,$(BUILD)/libcodeheap-$(version).tar.gz)

# A copy that hosts of others and scripts are built against.
$(installed): $(libs) $(bdw_libs) $(user_tools) $(public_headers) codeheap/profile.h $(wildcard tools/*.pc.in tools/gdb/*.py tools/gdb/codeheap_gdb/*.py docs/man/*.[1-9]) tools/install.sh Makefile mk/install.mk
	@rm -rf $(@D)
	@$(MAKE) --no-print-directory -s install PREFIX=$(call quoted,$(build_path)/installed) DESTDIR= >/dev/null && touch $@
