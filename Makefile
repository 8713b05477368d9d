# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Plain GNU make. `make help` lists the targets. Sources are found by wildcard, so a new file in
# core/, threads/, gc/, preload/, tools/ or tests/ needs no edit here. Variables worth setting:
#   CC=clang BUILD=build-clang   CC=musl-gcc BUILD=build-musl
#   CFLAGS=-O3   LTO=1   WERROR=   PREFIX= LIBDIR= DATADIR= DESTDIR=

VERSION := $(shell sed -n 's/^\#define PM_VERSION "\(.*\)"/\1/p' preload/version.h)
# Counts the interfaces that did not stay compatible (docs/compatibility.md). It is not the release.
SOVERSION = 0
$(if $(VERSION),,$(error preload/version.h names no PM_VERSION))

BUILD ?= build
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
DATADIR ?= $(PREFIX)/share

ifeq ($(origin CC),default)
CC = gcc
endif
CFLAGS ?= -O2 -g
OBJCOPY ?= objcopy
READELF ?= readelf
WERROR ?= -Werror
LTO ?= 0
CLANG ?= clang
# The house format is that of one version; others set some lines otherwise.
FORMAT_VERSION = 14
CLANG_FORMAT ?= $(or $(shell command -v clang-format-$(FORMAT_VERSION)),clang-format)
PKG_CONFIG ?= pkg-config
# Debian's own interpreter, which sees Debian's pytest; a python3 earlier on PATH may not.
PYTHON ?= /usr/bin/python3

WARN = -Wall -Wextra -Wundef -Wshadow $(WERROR)
DEPS = -MMD -MP

# No builtins: the compiler must not turn the allocator's code into calls of the functions that this
# code implements. initial-exec: thread-local variables must never need a block allocated lazily.
LIB_CFLAGS = -std=gnu11 -D_GNU_SOURCE= -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-plt \
	-fno-math-errno -ffunction-sections -fdata-sections \
	-fno-builtin-malloc -fno-builtin-calloc -fno-builtin-realloc -fno-builtin-free \
	-iquote . -iquote core -iquote gc -iquote preload -include core/base/oldest_libc.h \
	$(WARN) $(CFLAGS) $(CPPFLAGS) $(LTO_FLAGS)
# Users' programs: no project directory on the include path.
APP_CFLAGS = -std=gnu11 $(WARN) $(CFLAGS) $(CPPFLAGS)
# The sanitizer build also asserts the order of locks (core/base/lock.h).
ASAN_FLAGS = -O1 -g1 -DPM_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-omit-frame-pointer

# Off by default: the hot path is inline in core's headers. With clang it needs Debian's llvm.
ifeq ($(LTO),1)
LTO_FLAGS = -flto=auto
AR = $(if $(findstring clang,$(CC)),llvm-ar,gcc-ar)
endif
LINK = $(CC) $(CFLAGS) $(LTO_FLAGS)

# Debian's wrapper for musl sees no headers but musl's, so the kernel's are linked in. The tools are
# not built with musl: they need libpmem, libdw and libnuma, which are built for glibc, and they
# open heaps of both.
ifneq ($(findstring musl-gcc,$(CC)),)
MUSL_KERNEL := $(addprefix $(BUILD)/kernel/,linux asm-generic asm)
CPPFLAGS += -idirafter $(BUILD)/kernel
endif

# initfirst: our constructor runs before all others. If another library registered a fork handler
# earlier, that handler would run in the child while the heap is still the parent's.
# sort-section, noseparate-code: a start touches fewer pages and makes two mappings, not four.
# nostartfiles: see preload/names/dso.c.
SO_LDFLAGS = -shared -nostartfiles -Wl,-z,now -Wl,-z,relro -Wl,-z,nodelete -Wl,-z,initfirst \
	-Wl,-z,noseparate-code \
	-Wl,--gc-sections \
	-Wl,--sort-section=alignment -Wl,--no-undefined -Wl,--version-script=preload/preload.map \
	$(INNER_CALLS:%=-Wl,--wrap=%) $(LDFLAGS)
# Names of preload/names/ that the library also calls itself (preload/names/inner.c).
INNER_CALLS = read write close pwrite fsync fdatasync syncfs msync kill nanosleep syscall mmap \
	munmap madvise mprotect mremap sigaction getrandom
.DEFAULT_GOAL := all
print-inner-calls:
	@echo $(INNER_CALLS)

# --- what there is -----------------------------------------------------------------------------

# All that a process or a tool is made of, without the names that take libc's and libgc's place.
CORE_SOURCES := $(wildcard core/*/*.c core/*/*/*.c threads/*.c gc/*/*.c) \
	$(filter-out preload/names/%,$(filter-out preload/boehm/%,$(wildcard preload/*/*.c)))
core_objects = $(patsubst %.c,$(1)/obj/%.o,$(CORE_SOURCES))
programs = $(patsubst %.c,$(1),$(notdir $(wildcard $(2))))

CORE_OBJS := $(call core_objects,$(BUILD))
ASAN_OBJS := $(call core_objects,$(BUILD)/asan)
PRELOAD_OBJS := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard preload/names/*.c))
TOOL_COMMON_OBJS := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tools/*/*.c))
TOOLS := $(if $(MUSL_KERNEL),,$(patsubst tools/%.c,$(BUILD)/%,$(wildcard tools/pmalloc-*.c)))
APPS := $(patsubst tests/%.c,$(BUILD)/%,$(wildcard tests/apps/*.c tests/vm/*.c))
UNITS := $(patsubst tests/%.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c))
ASAN_UNITS := $(patsubst tests/%.c,$(BUILD)/asan/%,$(wildcard tests/unit/test_*.c))
# The benchmark programs. Some count what the allocator does, and are linked with it: not these.
BENCHES := $(patsubst tests/%.c,$(BUILD)/%,\
	$(filter-out %/flushes.c %/contention.c %/lines.c,$(wildcard tests/bench/*.c)))
FLUSHES := $(BUILD)/bench/flushes
CONTENTION := $(BUILD)/bench/contention $(BUILD)/bench/contention-plain
# libpmemobj for the benchmark programs, where it is installed (scripts/bootstrap --bench).
PMEMOBJ := $(if $(MUSL_KERNEL),,$(shell $(PKG_CONFIG) --exists libpmemobj 2>/dev/null && echo yes))
ADAPTERS := $(patsubst %,$(BUILD)/bench/adapters/%.so,pinned ralloc makalu nvm_malloc) \
	$(if $(PMEMOBJ),$(BUILD)/bench/adapters/pmemobj.so)


ARCHIVE := $(if $(CORE_OBJS),$(BUILD)/libpmalloc_core.a)
ASAN_ARCHIVE := $(if $(ASAN_OBJS),$(BUILD)/asan/libpmalloc_core.a)
BOEHM_OBJS := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard preload/boehm/*.c))
LIBS := $(if $(PRELOAD_OBJS),$(BUILD)/libpmalloc_preload.so $(BUILD)/libpmalloc.so)
# glibc only: programs that are linked with musl have another libgc.
# In a folder that no linker searches by itself, because it has libgc's name.
GC_DIR = pmalloc-libgc
GC_LIB := $(if $(MUSL_KERNEL),,$(BUILD)/$(GC_DIR)/libpmalloc_gc.so)
MAN1 := $(patsubst $(BUILD)/%,$(BUILD)/man/%.1,$(TOOLS))
MAN7 := $(if $(filter %/pmalloc-run,$(TOOLS)),$(BUILD)/man/libpmalloc.7)
PC := $(BUILD)/libpmalloc.pc
FORMATTED := $(wildcard core/*/*.[ch] core/*/*/*.[ch] threads/*.[ch] gc/*/*.[ch] preload/*.h \
	preload/*/*.[ch] tools/*.[ch] tools/*/*.[ch] tests/*/*.[ch] tests/bench/adapters/*.[ch] \
	tests/bench/durable/*.c tests/bench/servers/*.c tests/bench/study/*.c docs/examples/*.c \
	docs/examples/*.cc)

.PHONY: all help check test test-fast compiles unit unit-fast sanitize integration demo bench \
	install uninstall clean installed-files dist deb \
	fuzz fuzz-backup fuzz-medium fuzz-corpus fuzz-coverage format format-check lint \
	check-layers check-style check-abi tests-built \
	tool-packages soak faults vm distro study study-built print-inner-calls integration-built FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all: ## build libraries, tools, test programs, man pages
all: $(ARCHIVE) $(LIBS) $(GC_LIB) $(TOOLS) $(APPS) $(BENCHES) $(FLUSHES) $(ADAPTERS)
all: $(MAN1) $(MAN7) $(PC)

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' \
		$(filter-out %.d,$(MAKEFILE_LIST))

# --- objects and libraries ---------------------------------------------------------------------

# Holds the flags of the last build: other flags rebuild everything.
$(BUILD)/.flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CC) $(LIB_CFLAGS) $(SO_LDFLAGS)' | cmp -s - $@ || \
		echo '$(CC) $(LIB_CFLAGS) $(SO_LDFLAGS)' > $@

$(BUILD)/kernel/%:
	@mkdir -p $(@D)
	@for d in /usr/include /usr/include/$$(gcc -print-multiarch); do \
		[ ! -d $$d/$* ] || ln -sfn $$d/$* $@; done

# What a start touches lies together (scripts/make-order): the linker puts these sections of code in
# front, and the variables where the loader writes anyhow. A compiler's copy of a function has its
# name and an ending.
$(BUILD)/first.options: preload/first
	@mkdir -p $(@D)
	@$(READELF) --version > /dev/null
	@awk '/^#/ { next } /^\[/ { into = substr($$1, 2, length($$1) - 2); next } \
		into == ".data1" { m = split(".data./.data.rel./.data.rel.local.", from, "/"); \
			for (i = 1; i <= NF; i++) { \
				print "--rename-section .bss." $$i "=.data1,alloc,load,data,contents"; \
				for (j = 1; j <= m; j++) print "--rename-section " from[j] $$i "=.data1" } next } \
		{ n = split("/.constprop.0/.part.0/.isra.0", end, "/"); \
			for (i = 1; i <= NF; i++) for (j = 1; j <= n; j++) \
				print "--rename-section .text." $$i end[j] "=" into "." $$i end[j] }' $< > $@

# objcopy compares each option with all others, so it is given those of the object's own sections.
# A tool's or a test's own code is in no start.
put_first = $(OBJCOPY) $$($(READELF) -SW $(1) | \
	sed -n 's/.* \(\.\(text\|data\|bss\)\.[^ ]*\) .*/ \1=/p' | grep -Ff - $(BUILD)/first.options) $(1)

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags $(BUILD)/first.options | $(MUSL_KERNEL)
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) $(DEPS) -c -o $@ $<
	$(if $(filter -flto%,$(LTO_FLAGS))$(filter tools/% tests/%,$<),,$(call put_first,$@))

$(BUILD)/asan/obj/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(filter-out $(LTO_FLAGS),$(LIB_CFLAGS)) $(ASAN_FLAGS) $(DEPS) -c -o $@ $<

TOOL_ARCHIVE := $(BUILD)/libpmalloc_tools.a
$(ARCHIVE): $(CORE_OBJS)
$(ASAN_ARCHIVE): $(ASAN_OBJS)
$(TOOL_ARCHIVE): $(TOOL_COMMON_OBJS)
$(ARCHIVE) $(ASAN_ARCHIVE) $(TOOL_ARCHIVE):
	@rm -f $@
	$(AR) rcs $@ $^

# What defines libc's names stays out of LTO, which binds calls of these names to the definitions:
# --wrap leads only undefined calls to preload/names/inner.c. CFLAGS may ask for LTO, too.
$(PRELOAD_OBJS): private LTO_FLAGS = -fno-lto

# Both libraries are the whole allocator, so the objects are named one by one: an archive would
# leave out what nothing refers to.
$(LIBS): $(PRELOAD_OBJS) $(CORE_OBJS) preload/preload.map
$(BUILD)/libpmalloc_preload.so:
	$(LINK) $(SO_LDFLAGS) -Wl,-soname,$(@F) -o $@ $(filter %.o,$^) -lpthread

# Some calls of its own go through names that a layer below a program defines: lost_writes.c,
# bad_range.c in tests/integration.
comma := ,
SEEN_CALLS = syscall pwrite madvise mmap
SEEN = $(BUILD)/seen/libpmalloc_preload.so $(BUILD)/seen/libpmalloc.so.$(SOVERSION)
$(SEEN): $(PRELOAD_OBJS) $(CORE_OBJS) preload/preload.map
	@mkdir -p $(@D)
	$(LINK) $(filter-out $(SEEN_CALLS:%=-Wl$(comma)--wrap=%),$(SO_LDFLAGS)) \
		-Wl,-soname,$(@F) -o $@ $(filter %.o,$^) -lpthread

# And a look at leaks whose tool was killed ends after a third of a second, not half a minute.
SOON = $(BUILD)/soon/libpmalloc_preload.so
SOON_OWN = $(BUILD)/obj/soon/preload/process/leaks_marker.o
$(SOON_OWN): $(BUILD)/obj/soon/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) -DNAPS_MOST=300u $(DEPS) -c -o $@ $<
$(SOON): $(PRELOAD_OBJS) $(CORE_OBJS) $(SOON_OWN) preload/preload.map
	@mkdir -p $(@D)
	$(LINK) $(SO_LDFLAGS) -Wl,-soname,$(@F) -o $@ \
		$(filter-out $(SOON_OWN:$(BUILD)/obj/soon/%=$(BUILD)/obj/%),$(filter %.o,$^)) -lpthread

$(BUILD)/libpmalloc.so:
	$(LINK) $(SO_LDFLAGS) -Wl,-soname,$(@F).$(SOVERSION) -o $@ $(filter %.o,$^) -lpthread
	ln -sf $(@F) $@.$(SOVERSION)

# Programs look for it by libgc's name, and C++ programs by libgccpp's, too.
GC_NAMES = libgc.so.1 libgccpp.so.1
$(GC_LIB): $(BOEHM_OBJS) $(PRELOAD_OBJS) $(CORE_OBJS) preload/preload.map
	@mkdir -p $(@D)
	$(LINK) $(SO_LDFLAGS) -Wl,-soname,libgc.so.1 -o $@ $(filter %.o,$^) -lpthread
	for name in $(GC_NAMES); do ln -sf $(@F) $(@D)/$$name || exit 1; done

# --- tools, manual pages, programs of the tests ------------------------------------------------

TOOL_LIBS = $(shell $(PKG_CONFIG) --libs libpmem libdw numa)
tool-packages:
	@$(PKG_CONFIG) --exists libpmem libdw numa || { \
		echo 'make: pkg-config finds no libpmem, libdw or libnuma; run scripts/bootstrap' >&2; exit 1; }

# An archive: a tool that flushes no media is linked without libpmem, whose constructors look at all
# devices of the machine.
$(TOOLS): $(BUILD)/%: $(BUILD)/obj/tools/%.o $(TOOL_ARCHIVE) $(ARCHIVE) | tool-packages
	$(LINK) $(LDFLAGS) -Wl,--gc-sections -Wl,--as-needed -o $@ $^ $(TOOL_LIBS) -lpthread

# The pages come from the same tables as --help and the parser of the settings.
$(MAN1): $(BUILD)/man/%.1: $(BUILD)/%
	@mkdir -p $(@D)
	$< --man > $@

$(MAN7): $(BUILD)/pmalloc-run
	@mkdir -p $(@D)
	$< --man-env > $@

$(PC): preload/libpmalloc.pc.in FORCE
	@mkdir -p $(@D)
	@sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
		-e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' $< > $@.$$$$ && \
	if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

$(APPS) $(BENCHES): $(BUILD)/%: tests/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(APP_CFLAGS) $(LDFLAGS) $(DEPS) -o $@ $< -lpthread -lm

# The two loops of which one is subtracted from the other: gcc unrolls short ones from 13 on.
$(BUILD)/bench/pair: private APP_CFLAGS += -fno-unroll-loops

# What an adapter needs besides; the others load what they need.
of_package = $(if $(filter pmemobj,$*),$(shell $(PKG_CONFIG) --$(1) lib$*))
$(BUILD)/bench/adapters/%.so: tests/bench/adapters/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(APP_CFLAGS) $(call of_package,cflags) -fPIC -shared $(LDFLAGS) $(DEPS) \
		-o $@ $< $(call of_package,libs)

# These tests pretend to have a kernel and file systems that this machine lacks.
DAX_UNITS = unit/test_sync unit/test_units
$(DAX_UNITS:%=$(BUILD)/%) $(DAX_UNITS:%=$(BUILD)/asan/%): WRAP = mmap fstatfs fstatvfs fallocate

# Each change of a file is seen, and the power may fail before it.
$(BUILD)/unit/test_commit_crash $(BUILD)/asan/unit/test_commit_crash: \
	WRAP = pwrite syscall fdatasync fsync ftruncate fallocate unlinkat pm_os_fs_type \
	clock_gettime getrandom

# What a tool does to another process.
HALTING = $(addprefix tools/,watch/standstill.o watch/tracee.o watch/patience.o \
	watch/trace_rights.o watch/halt.o common/program_status.o)
$(BUILD)/unit/test_standstill: $(HALTING:%=$(BUILD)/obj/%)
$(BUILD)/asan/unit/test_standstill: $(HALTING:%=$(BUILD)/asan/obj/%)

# Signals, short writes and full media at will.
$(BUILD)/unit/test_os_file $(BUILD)/asan/unit/test_os_file: WRAP = pwrite

# gold links a unit test in a half of ld's time, and a sanitized one, of more debug information, in
# a third. Not with LTO, and where binutils has no gold there is ld.
GOLD := $(if $(filter -flto%,$(LTO_FLAGS) $(CFLAGS))$(MUSL_KERNEL),,\
	$(if $(shell command -v ld.gold),-fuse-ld=gold))

# With LTO all of the library is compiled at each link, which takes seven seconds: once for all unit
# tests, then, but for those that are a source of it themselves.
HAVE_SOURCE = $(addprefix $(BUILD)/unit/,test_live_mark test_trace)
UNIT_CORE = $(if $(filter -flto%,$(LTO_FLAGS)),$(BUILD)/obj/core.o,$(ARCHIVE))
$(BUILD)/obj/core.o: $(CORE_OBJS)
	$(LINK) -r $(if $(findstring clang,$(CC)),,-flinker-output=nolto-rel) -o $@ $^

$(filter-out $(HAVE_SOURCE),$(UNITS)): $(UNIT_CORE)
$(HAVE_SOURCE) $(FLUSHES): $(ARCHIVE)
# It looks for its own file in its symbols; gcc's LTO leaves no names of files there.
$(BUILD)/obj/tests/unit/test_places.o: private LTO_FLAGS = -fno-lto

# They run about as fast as with -O2, for the time goes to the library. gcc's warnings that need
# optimisation are those of ASAN_UNITS, which the same sources make.
$(UNITS:$(BUILD)/%=$(BUILD)/obj/tests/%.o): private CFLAGS += -O0 -g1

$(UNITS) $(FLUSHES): $(BUILD)/%: $(BUILD)/obj/tests/%.o
	@mkdir -p $(@D)
	$(LINK) $(GOLD) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(WRAP:%=-Wl,--wrap=%) \
		-lpthread -lm

$(ASAN_UNITS): $(BUILD)/asan/%: $(BUILD)/asan/obj/tests/%.o $(ASAN_ARCHIVE)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(GOLD) $(LDFLAGS) $(ASAN_FLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^) \
		$(WRAP:%=-Wl,--wrap=%) -lpthread -lm

include scripts/crash.mk
include scripts/fuzz.mk
include scripts/study.mk

# --- tests -------------------------------------------------------------------------------------

# How many tests, or files of them, run at a time: two more than processors, for many tests wait.
WORKERS ?= $(shell expr $$(nproc) + 2)
# Begun first, so that no worker is left with one of them in the end.
LONG_UNITS = test_commit_crash test_journal_crash test_take_back test_log_crash test_commit
# Runs every program of a list, shows the output of those that fail, fails if any did.
define run_each
@printf '%s\n' $(filter $(LONG_UNITS:%=\%/%),$(1)) $(filter-out $(LONG_UNITS:%=\%/%),$(1)) | \
	xargs -P $(WORKERS) -I @ sh -c 'timeout 600 @ > @.log 2>&1; status=$$?; \
	if [ $$status = 0 ]; then echo "ok   @"; \
	else printf "FAIL %s (status %s)\n%s\n" @ $$status "$$(cat @.log)"; exit 1; fi'
endef

RUN_TESTS = BUILD=$(abspath $(BUILD)) $(PYTHON) scripts/run-tests --workers $(WORKERS)

tests-built: all $(UNITS) $(SEEN) $(SOON)

unit: $(UNITS) ## run the unit tests
	$(call run_each,$(UNITS))

unit-fast: $(filter-out $(LONG_UNITS:%=\%/%),$(UNITS)) ## run the unit tests of seconds
	$(call run_each,$^)

sanitize: $(ASAN_UNITS) ## run the unit tests under ASan and UBSan
	$(call run_each,$(ASAN_UNITS))

# WORKERS files of tests at a time, where there is the right to mount.
integration: integration-built ## run whole processes under pytest
	@$(RUN_TESTS)

vm: all ## cut the power of a guest with NVDIMMs; skipped if qemu is missing
	BUILD=$(abspath $(BUILD)) $(PYTHON) scripts/vm-test --quick

# Only where its chroot was made before (scripts/distro-test says how), or DISTRO= names one.
distro: ## build and try a part of the tests in another release of Debian, where its chroot is
	@$(PYTHON) scripts/distro-test --part $(if $(DISTRO),$(DISTRO),--if-made trixie)

# What a second compiler has to say: libraries are built, and of all else, which runs as the first
# compiler made it, there is no code but all warnings.
LOOKED_AT = $(sort $(TOOLS:$(BUILD)/%=tools/%.c) $(TOOL_COMMON_OBJS:$(BUILD)/obj/%.o=%.c) \
	$(UNITS:$(BUILD)/%=tests/%.c) $(FLUSHES:$(BUILD)/%=tests/%.c))
LOOK = xargs -n 16 -P $(WORKERS) $(CC) -fsyntax-only
compiles: $(LIBS) $(GC_LIB) ## build the libraries and look for warnings in all else; CC=clang
	@printf '%s\n' $(LOOKED_AT) | $(LOOK) $(LIB_CFLAGS)
	@printf '%s\n' $(patsubst $(BUILD)/%,tests/%.c,$(APPS) $(BENCHES)) | $(LOOK) $(APP_CFLAGS)

# All that the tests need is built first, by all processors. Then scripts/run-tests runs all tests
# as one list of jobs: no processor waits for the last job of a target. A closing line as pytest's
# is the last one. test_check_layers and test_abi do what check-layers and check-abi do.
TARGETS = unit sanitize fuzz-corpus crash vm distro
test: ## run all tests with both compilers; CI runs this
	@$(MAKE) format-check
	@$(MAKE) check-style
	@$(MAKE) CC=$(CLANG) CFLAGS=-O0 BUILD=$(BUILD)-clang compiles
	@$(MAKE) tests-built integration-built crash-built fuzz-built $(ASAN_UNITS)
	@$(RUN_TESTS) $(TARGETS:%=--beside %)

check: integration-built $(UNITS) ## check the style, run unit tests and chosen others: two minutes
	@$(MAKE) check-style format-check
	@$(RUN_TESTS) --marked check --seconds 100 --beside unit

test-fast: integration-built $(UNITS) ## run what takes eight minutes, by measured times
	@$(MAKE) check-style
	@$(RUN_TESTS) --seconds 300 --beside check-layers --beside check-abi --beside unit

MINUTES ?= 10
soak: all ## run random programs, settings and kills for MINUTES=10
	BUILD=$(abspath $(BUILD)) $(PYTHON) tests/soak/soak --minutes $(MINUTES)

faults: all ## let every system call fail in turn; make test takes a sample
	FAULTS=all $(RUN_TESTS) tests/integration/test_faults.py

demo: all ## show real programs and real kills, line by line
	@BUILD=$(abspath $(BUILD)) ./scripts/run-demo

BENCH = BUILD=$(abspath $(BUILD)) $(PYTHON) scripts
bench: all $(CONTENTION) ## compare time and memory with other allocators; a few minutes
	$(BENCH)/bench --runs 3
	$(BENCH)/counters
	$(BENCH)/startup-bench
	$(BENCH)/recovery-bench --leak-every 8

# --- habits ------------------------------------------------------------------------------------

HAS_FORMATTER = $(CLANG_FORMAT) --version 2>/dev/null | grep -q 'version $(FORMAT_VERSION)\.'
NO_FORMATTER = no clang-format $(FORMAT_VERSION), whose format the sources have; \
	`pip install clang-format==$(FORMAT_VERSION).0.6` gives one, CLANG_FORMAT=PATH names it

format: ## rewrite the C sources in the house format
	@$(HAS_FORMATTER) || { echo 'format: $(NO_FORMATTER)' >&2; exit 1; }
	@$(CLANG_FORMAT) -i $(FORMATTED)

format-check: ## fail if `make format` would change a file; skipped with another clang-format
	@if $(HAS_FORMATTER); then $(CLANG_FORMAT) --dry-run -Werror $(FORMATTED); \
		else echo 'format-check: skipped: $(NO_FORMATTER)'; fi

check-layers: all ## fail if an include or a call runs upward, or files form a circle
	$(PYTHON) scripts/check-layers --objects $(BUILD)/obj

check-abi: all ## fail if programs built with an earlier release might not run, or not compile
	$(PYTHON) scripts/check-abi --libraries $(BUILD)

check-style: ## fail if a line, a function or a file is too long, or lacks its SPDX lines
	$(PYTHON) scripts/check-style

hooks: ## have git look at format and style before each commit
	@hook=$$(git rev-parse --git-path hooks)/pre-commit; \
	if [ -e "$$hook" ] && ! cmp -s scripts/pre-commit "$$hook"; then \
		echo "hooks: $$hook is there and is not ours;" \
			"let it run \`make format-check check-style\`, too" >&2; exit 1; fi; \
	mkdir -p "$$(dirname "$$hook")" && install -m 755 scripts/pre-commit "$$hook"

# For editors. It has the commands that make would run, and is not part of the sources.
COMMANDS = compile_commands.json
compile_commands.json: FORCE ## write how each source is compiled, for clangd and its like
	@$(MAKE) -Bn --no-print-directory tests-built crash-built fuzz-built 2>/dev/null | \
		awk -v 'directory=$(CURDIR)' 'BEGIN { printf "[" } \
		/^(gcc|clang|$(notdir $(CC))) / { file = ""; \
			for (i = 2; i <= NF && !file; i++) if ($$i ~ /\.c$$/) file = $$i; \
			if (!file || seen[file]++) next; gsub(/[\\"]/, "\\\\&"); \
			printf "%s\n{\"directory\": \"%s\", \"file\": \"%s\", \"command\": \"%s\"}", comma, \
				directory, file, $$0; comma = "," } END { print "\n]" }' > $(COMMANDS)

lint: format-check check-style check-layers check-abi ## run the checks and clang's static analyser
	@for f in $(CORE_SOURCES) \
		$(wildcard preload/names/*.c preload/boehm/*.c tools/*.c tools/*/*.c); do \
		$(CLANG) $(LIB_CFLAGS) --analyze --analyzer-output text -Xclang -analyzer-werror \
			$$f || exit 1; \
	done

# --- install and packages ----------------------------------------------------------------------

include scripts/install.mk

dist: ## make build/pmalloc-VERSION.tar.gz
	scripts/package --output $(BUILD) tarball

deb: ## make Debian's packages, in build/
	scripts/package --output $(BUILD) deb

clean: ## remove build/, build-clang/ and build-musl/
	rm -rf $(BUILD) $(BUILD)-clang $(BUILD)-musl

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
