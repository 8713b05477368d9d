# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Part of the Makefile: what is installed, and where.

# The SONAME, then the release: ldconfig takes the newest release for a SONAME.
SO_REAL = libpmalloc.so.$(SOVERSION).$(VERSION)
GC_FILES = $(if $(GC_LIB),$(notdir $(GC_LIB)) $(GC_NAMES))
DOCDIR = $(DATADIR)/doc/pmalloc
DOCS = $(wildcard docs/*.md)
RECIPES = $(wildcard tools/recipes/*.recipe)
MONITORING = $(addprefix tools/monitoring/,pmalloc-exporter alerts.yml dashboard.json)
SERVICES = $(addprefix tools/services/,pmalloc@.service Containerfile statefulset.yaml)
COMPLETIONS = $(DATADIR)/bash-completion/completions
INSTALLED = $(addprefix $(BINDIR)/,$(notdir $(TOOLS))) \
	$(addprefix $(LIBDIR)/,libpmalloc_preload.so $(SO_REAL) libpmalloc.so.$(SOVERSION) \
		libpmalloc.so pkgconfig/libpmalloc.pc $(GC_FILES:%=$(GC_DIR)/%)) \
	$(INCLUDEDIR)/pmalloc.h $(INCLUDEDIR)/pmalloc.hpp \
	$(addprefix $(MANDIR)/man1/,$(notdir $(MAN1))) $(addprefix $(MANDIR)/man7/,$(notdir $(MAN7))) \
	$(addprefix $(COMPLETIONS)/,$(notdir $(TOOLS))) $(DATADIR)/pmalloc/persistent-heap.conf \
	$(addprefix $(DATADIR)/pmalloc/recipes/,$(notdir $(RECIPES))) \
	$(addprefix $(DATADIR)/pmalloc/monitoring/,$(notdir $(MONITORING))) \
	$(addprefix $(DATADIR)/pmalloc/services/,$(notdir $(SERVICES))) \
	$(addprefix $(DOCDIR)/,README.md LICENSE $(DOCS))

installed-files: $(LIBS) $(GC_LIB) $(TOOLS) $(MAN1) $(MAN7) $(PC)

install: installed-files ## install to $(DESTDIR)$(PREFIX)
	install -d $(addprefix $(DESTDIR),$(BINDIR) $(LIBDIR)/pkgconfig $(INCLUDEDIR) \
		$(MANDIR)/man1 $(MANDIR)/man7 $(COMPLETIONS) \
		$(DATADIR)/pmalloc/recipes $(DATADIR)/pmalloc/monitoring \
		$(DATADIR)/pmalloc/services $(DOCDIR)/docs)
	install -m 755 $(TOOLS) $(DESTDIR)$(BINDIR)
	install -m 644 $(BUILD)/libpmalloc_preload.so $(DESTDIR)$(LIBDIR)
	install -m 644 $(BUILD)/libpmalloc.so $(DESTDIR)$(LIBDIR)/$(SO_REAL)
	ln -sf $(SO_REAL) $(DESTDIR)$(LIBDIR)/libpmalloc.so.$(SOVERSION)
	ln -sf libpmalloc.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libpmalloc.so
ifneq ($(GC_LIB),)
	install -d $(DESTDIR)$(LIBDIR)/$(GC_DIR)
	install -m 644 $(GC_LIB) $(DESTDIR)$(LIBDIR)/$(GC_DIR)
	for name in $(GC_NAMES); do \
		ln -sf $(notdir $(GC_LIB)) $(DESTDIR)$(LIBDIR)/$(GC_DIR)/$$name || exit 1; done
endif
	install -m 644 preload/pmalloc.h preload/pmalloc.hpp $(DESTDIR)$(INCLUDEDIR)
	install -m 644 $(PC) $(DESTDIR)$(LIBDIR)/pkgconfig
	install -m 644 $(MAN1) $(DESTDIR)$(MANDIR)/man1
	install -m 644 $(MAN7) $(DESTDIR)$(MANDIR)/man7
	for tool in $(notdir $(TOOLS)); do \
		install -m 644 tools/completion.bash $(DESTDIR)$(COMPLETIONS)/$$tool || exit 1; done
	install -m 644 tools/persistent-heap.conf $(DESTDIR)$(DATADIR)/pmalloc
	install -m 644 $(RECIPES) $(DESTDIR)$(DATADIR)/pmalloc/recipes
	install -m 644 $(MONITORING) $(DESTDIR)$(DATADIR)/pmalloc/monitoring
	chmod 755 $(DESTDIR)$(DATADIR)/pmalloc/monitoring/pmalloc-exporter
	install -m 644 $(SERVICES) $(DESTDIR)$(DATADIR)/pmalloc/services
	install -m 644 README.md LICENSE $(DESTDIR)$(DOCDIR)
	install -m 644 $(DOCS) $(DESTDIR)$(DOCDIR)/docs

uninstall: ## remove what install put there
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))
	for folder in $(addprefix $(DESTDIR),$(LIBDIR)/$(GC_DIR) $(DATADIR)/pmalloc/recipes \
		$(DATADIR)/pmalloc/monitoring $(DATADIR)/pmalloc/services $(DATADIR)/pmalloc \
		$(DOCDIR)/docs $(DOCDIR)); do \
		[ ! -d $$folder ] || rmdir $$folder || exit 1; done
