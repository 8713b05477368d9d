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
	$(WARN) $(CFLAGS) $(CPPFLAGS)
# Users' programs: no project directory on the include path.
APP_CFLAGS = -std=gnu11 $(WARN) $(CFLAGS) $(CPPFLAGS)
# The sanitizer build also asserts the order of locks (core/base/lock.h).
ASAN_FLAGS = -O1 -g1 -DPM_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-omit-frame-pointer

# Off by default: the hot path is inline in core's headers. With clang it needs Debian's llvm.
ifeq ($(LTO),1)
LTO_FLAGS = -flto=auto
LIB_CFLAGS += $(LTO_FLAGS)
AR = $(if $(findstring clang,$(CC)),llvm-ar,gcc-ar)
endif
LINK = $(CC) $(CFLAGS) $(LTO_FLAGS)

# Debian's wrapper for musl sees no headers but musl's, so the kernel's are linked in. The tools are
# not built with musl: they need libpmem, which is built for glibc, and they open heaps of both.
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
INNER_CALLS = read write pwrite kill nanosleep syscall mmap munmap madvise mprotect mremap \
	sigaction
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
ADAPTERS := $(if $(PMEMOBJ),$(BUILD)/bench/adapters/pmemobj.so)

CRASH_CORE_OBJS := $(call core_objects,$(BUILD)/crash)
CRASH_CHECKER := checker verify file_id
CRASH_OBJS := $(patsubst %.c,$(BUILD)/crash/obj/%.o,$(filter-out \
	tests/crash/checker.c tests/crash/verify.c,$(wildcard tests/crash/*.c)))
CRASH_CHECKER_OBJS := $(CRASH_CHECKER:%=$(BUILD)/crash/obj/tests/crash/%.o)

ARCHIVE := $(if $(CORE_OBJS),$(BUILD)/libpmalloc_core.a)
ASAN_ARCHIVE := $(if $(ASAN_OBJS),$(BUILD)/asan/libpmalloc_core.a)
BOEHM_OBJS := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard preload/boehm/*.c))
LIBS := $(if $(PRELOAD_OBJS),$(BUILD)/libpmalloc_preload.so $(BUILD)/libpmalloc.so)
# glibc only: programs that are linked with musl have another libgc. Not installed yet.
# In a folder that no linker searches by itself, because it has libgc's name.
GC_DIR = pmalloc-libgc
GC_LIB := $(if $(MUSL_KERNEL),,$(BUILD)/$(GC_DIR)/libpmalloc_gc.so)
MAN1 := $(patsubst $(BUILD)/%,$(BUILD)/man/%.1,$(TOOLS))
MAN7 := $(if $(filter %/pmalloc-run,$(TOOLS)),$(BUILD)/man/libpmalloc.7)
PC := $(BUILD)/libpmalloc.pc
FORMATTED := $(wildcard core/*/*.[ch] core/*/*/*.[ch] threads/*.[ch] gc/*/*.[ch] preload/*.h \
	preload/*/*.[ch] tools/*.[ch] tools/*/*.[ch] tests/*/*.[ch] tests/bench/adapters/*.c \
	tests/bench/durable/*.c docs/examples/*.c)

.PHONY: all help check test test-fast compiles unit unit-fast sanitize integration demo bench \
	install uninstall clean installed-files dist deb \
	fuzz fuzz-backup fuzz-medium fuzz-corpus fuzz-coverage format format-check lint \
	check-layers check-style check-abi tests-built \
	pmem-packages soak faults vm distro print-inner-calls integration-built FORCE
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
	@awk '/^#/ { next } /^\[/ { into = substr($$1, 2, length($$1) - 2); next } \
		into == ".data1" { m = split(".data./.data.rel./.data.rel.local.", from, "/"); \
			for (i = 1; i <= NF; i++) { \
				print "--rename-section .bss." $$i "=.data1,alloc,load,data,contents"; \
				for (j = 1; j <= m; j++) print "--rename-section " from[j] $$i "=.data1" } next } \
		{ n = split("/.constprop.0/.part.0/.isra.0", end, "/"); \
			for (i = 1; i <= NF; i++) for (j = 1; j <= n; j++) \
				print "--rename-section .text." $$i end[j] "=" into "." $$i end[j] }' $< > $@

$(BUILD)/obj/%.o: %.c $(BUILD)/.flags $(BUILD)/first.options | $(MUSL_KERNEL)
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) $(DEPS) -c -o $@ $<
	$(if $(filter 0,$(LTO)),$(OBJCOPY) @$(BUILD)/first.options $@)

$(BUILD)/asan/obj/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(filter-out $(LTO_FLAGS),$(LIB_CFLAGS)) $(ASAN_FLAGS) $(DEPS) -c -o $@ $<

$(ARCHIVE): $(CORE_OBJS)
$(ASAN_ARCHIVE): $(ASAN_OBJS)
%/libpmalloc_core.a:
	@rm -f $@
	$(AR) rcs $@ $^

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

PMEM_LIBS = $(shell $(PKG_CONFIG) --libs libpmem)
pmem-packages:
	@$(PKG_CONFIG) --exists libpmem || { \
		echo 'make: pkg-config finds no libpmem; run scripts/bootstrap' >&2; exit 1; }

$(TOOLS): $(BUILD)/%: $(BUILD)/obj/tools/%.o $(TOOL_COMMON_OBJS) $(ARCHIVE) | pmem-packages
	$(LINK) $(LDFLAGS) -Wl,--gc-sections -Wl,--as-needed -o $@ $^ $(PMEM_LIBS) -lpthread

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

$(BUILD)/bench/adapters/%.so: tests/bench/adapters/%.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(APP_CFLAGS) $(shell $(PKG_CONFIG) --cflags lib$*) -fPIC -shared $(LDFLAGS) $(DEPS) \
		-o $@ $< $(shell $(PKG_CONFIG) --libs lib$*)

# These tests pretend to have a kernel and file systems that this machine lacks.
DAX_UNITS = unit/test_sync unit/test_units
$(DAX_UNITS:%=$(BUILD)/%) $(DAX_UNITS:%=$(BUILD)/asan/%): WRAP = mmap fstatfs fstatvfs fallocate

# Each change of a file is seen, and the power may fail before it.
$(BUILD)/unit/test_commit_crash $(BUILD)/asan/unit/test_commit_crash: \
	WRAP = pwrite syscall fdatasync fsync ftruncate fallocate unlinkat

# Signals, short writes and full media at will.
$(BUILD)/unit/test_os_file $(BUILD)/asan/unit/test_os_file: WRAP = pwrite

$(UNITS) $(FLUSHES): $(BUILD)/%: $(BUILD)/obj/tests/%.o $(ARCHIVE)
	@mkdir -p $(@D)
	$(LINK) $(LDFLAGS) -o $@ $^ $(WRAP:%=-Wl,--wrap=%) -lpthread -lm

$(ASAN_UNITS): $(BUILD)/asan/%: $(BUILD)/asan/obj/tests/%.o $(ASAN_ARCHIVE)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $(ASAN_FLAGS) -o $@ $^ $(WRAP:%=-Wl,--wrap=%) -lpthread -lm

# The power-failure simulator: the compiler puts a call before every store of core and gc, and a
# recorder takes the place of ThreadSanitizer's runtime. The checker is built as users get it.
# Addresses are fixed, so that call sites can be named. memset stays a call, because the compiler
# does not announce the stores it would expand to.
CRASH_TSAN = -fsanitize=thread -fno-builtin-memset -fno-builtin-memcpy -fno-builtin-memmove \
	$(if $(findstring clang,$(CC)),-mllvm -simplifycfg-sink-common=false \
	-mllvm -enable-tail-merge=0,-fno-crossjumping -fno-tree-tail-merge)
CRASH_WRAP = pm_os_file_id pm_persist_init pm_os_now_ms getrandom fallocate ftruncate pread pwrite \
	write openat renameat unlinkat mmap munmap syscall memcpy memmove memset
CRASH_CFLAGS = $(filter-out $(LTO_FLAGS),$(LIB_CFLAGS)) -iquote tests/crash -fno-pic -fno-pie

$(CRASH_CORE_OBJS): $(BUILD)/crash/obj/%.o: %.c $(BUILD)/.flags Makefile
	@mkdir -p $(@D)
	$(CC) $(CRASH_CFLAGS) $(CRASH_TSAN) $(DEPS) -c -o $@ $<

CONTENTION_OBJS := $(addprefix $(BUILD)/crash/obj/tests/bench/,contention.o lines.o)
$(sort $(CRASH_OBJS) $(CRASH_CHECKER_OBJS)) $(CONTENTION_OBJS): \
		$(BUILD)/crash/obj/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(CRASH_CFLAGS) $(DEPS) -c -o $@ $<

$(BUILD)/crash/crash: $(CRASH_OBJS) $(CRASH_CORE_OBJS)
	$(CC) $(CFLAGS) $(LDFLAGS) -no-pie -o $@ $^ $(CRASH_WRAP:%=-Wl,--wrap=%) -lpthread

$(BUILD)/crash/crash-check: $(CRASH_CHECKER_OBJS) $(ARCHIVE)
	$(CC) $(CFLAGS) $(LDFLAGS) -no-pie -o $@ $^ -Wl,--wrap=pm_os_file_id -lpthread

# Cache lines that move between threads, counted by the same calls. The hot path is inline, so the
# program is compiled as core is.
$(BUILD)/crash/obj/tests/bench/contention.o: CRASH_CFLAGS += $(CRASH_TSAN)
CONTENTION_WRAP = pm_os_cores pm_os_now_ms memcpy memmove memset

$(BUILD)/bench/contention: $(CONTENTION_OBJS) $(CRASH_CORE_OBJS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -no-pie -o $@ $^ $(CONTENTION_WRAP:%=-Wl,--wrap=%) -lpthread

$(BUILD)/bench/contention-plain: tests/bench/contention.c $(ARCHIVE)
	@mkdir -p $(@D)
	$(CC) $(LIB_CFLAGS) -DPM_PLAIN $(LDFLAGS) -o $@ $^ \
		-Wl,--wrap=pm_os_cores -Wl,--wrap=pm_os_now_ms -lpthread

# --- fuzzer ------------------------------------------------------------------------------------

# libFuzzer needs clang, whatever CC is. One process opens thousands of heaps: the library's
# variables lie in sections of their own, and its tables come and go through wrapped calls.
FUZZ_FLAGS = -O1 -g1 -DPM_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-omit-frame-pointer -DPM_MARK_STACK=48u
FUZZ_COVERAGE = -fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp
FUZZ_CFLAGS = $(filter-out $(LTO_FLAGS) $(CFLAGS) -ffunction-sections -fdata-sections,\
	$(LIB_CFLAGS)) $(FUZZ_FLAGS)
FUZZ_LIB := $(patsubst %.c,$(BUILD)/fuzz/lib/%.o,\
	$(CORE_SOURCES) \
	$(addprefix tools/common/,census.c commit_print.c figures.c files.c info_json.c info_text.c \
		json.c text.c))
FUZZ_OBJS := $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,\
	$(filter-out tests/fuzz/fuzz_backup.c,$(wildcard tests/fuzz/*.c)))
FUZZER := $(BUILD)/fuzz/fuzz_heap
MEDIUM_FUZZER := $(BUILD)/fuzz/fuzz_medium
FUZZ_OPTIONS = ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
FUZZ_BOUNDS = -timeout=20 -rss_limit_mb=2048
CORPUS = tests/fuzz/corpus
MEDIUM_CORPUS = tests/fuzz/corpus-medium
# Backups need no heap, so nothing is wrapped.
FUZZ_BACKUP_OBJS := $(patsubst %.c,$(BUILD)/fuzz/lib/%.o,\
	$(wildcard core/base/*.c core/media/*.c core/media/*/*.c threads/*.c) \
	$(addprefix tools/backup/,backup_kept.c backup_target.c backup_verify.c) tools/common/figures.c) \
	$(BUILD)/fuzz/obj/tests/fuzz/fuzz_backup.o
BACKUP_FUZZER := $(BUILD)/fuzz/fuzz_backup
BACKUP_CORPUS = tests/fuzz/corpus-backup
SECONDS ?= 60

$(BUILD)/fuzz/lib/%.o: %.c tests/fuzz/sections.h $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CLANG) $(FUZZ_CFLAGS) $(FUZZ_COVERAGE) -include tests/fuzz/sections.h $(DEPS) -c -o $@ $<

$(BUILD)/fuzz/obj/%.o: %.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CLANG) $(FUZZ_CFLAGS) $(DEPS) -c -o $@ $<

$(FUZZER): $(FUZZ_LIB) $(FUZZ_OBJS)
	$(CLANG) -fsanitize=fuzzer,address,undefined $(FUZZ_LINK) -Wl,--wrap=pm_os_reserve \
		-Wl,--wrap=pm_os_reserve_unused -Wl,--wrap=munmap -o $@ $^ -lpthread

# The same program, which goes by its name.
$(MEDIUM_FUZZER): $(FUZZER)
	@ln -f $< $@

$(BACKUP_FUZZER): $(FUZZ_BACKUP_OBJS)
	$(CLANG) -fsanitize=fuzzer,address,undefined -o $@ $^ -lpthread

# $(call once,PROGRAM,CORPORA) and $(call look_for,PROGRAM,NAME-,LENGTH,CORPORA)
define once
@$(FUZZ_OPTIONS) $1 $(FUZZ_BOUNDS) -runs=0 $2 > $1.log 2>&1 || { tail -n 40 $1.log; exit 1; }
@echo "ok   $1: $$(find $2 -type f | wc -l) inputs"
endef
define look_for
@mkdir -p $(BUILD)/fuzz/$2found
$(FUZZ_OPTIONS) $1 $(FUZZ_BOUNDS) -max_total_time=$(SECONDS) -max_len=$3 -len_control=0 \
	-print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz/$2 $(BUILD)/fuzz/$2found $4
endef

fuzz-built: $(FUZZER) $(MEDIUM_FUZZER) $(BACKUP_FUZZER)

fuzz-corpus: fuzz-built ## run each fuzzer once on its corpus
	$(call once,$(FUZZER),$(CORPUS))
	$(call once,$(MEDIUM_FUZZER),$(CORPUS) $(MEDIUM_CORPUS))
	$(call once,$(BACKUP_FUZZER),$(BACKUP_CORPUS))

fuzz: $(FUZZER) ## look for new inputs, for SECONDS=60; findings stay in build/fuzz
	$(call look_for,$(FUZZER),,256,$(CORPUS))

fuzz-medium: $(MEDIUM_FUZZER) ## the same for heaps on a fixed medium
	$(call look_for,$(MEDIUM_FUZZER),medium-,256,$(MEDIUM_CORPUS) $(CORPUS))

fuzz-backup: $(BACKUP_FUZZER) ## the same for forged backups
	$(call look_for,$(BACKUP_FUZZER),backup-,96,$(BACKUP_CORPUS))

COVERED = $(addprefix core/media/open/,heap_open.c heap_dir.c close_record.c) \
	$(addprefix core/media/log/,log.c log_chunks.c log_compact.c) \
	core/pages/extent_adopt.c gc/roots/root_table.c \
	$(addprefix core/blocks/,slab.c population.c bitmaps.c verify.c) \
	$(addprefix gc/recovery/,recover.c mark.c offline.c close.c)
fuzz-coverage: $(COVERED) ## show which lines of opening and recovery the corpus reaches
	@$(MAKE) -s BUILD=$(BUILD)/coverage FUZZ_LINK=-fprofile-instr-generate \
		FUZZ_COVERAGE='$(FUZZ_COVERAGE) -fprofile-instr-generate -fcoverage-mapping' \
		$(BUILD)/coverage/fuzz/fuzz_heap
	@LLVM_PROFILE_FILE=$(BUILD)/coverage/raw $(MAKE) -s BUILD=$(BUILD)/coverage fuzz-corpus
	@llvm-profdata merge -o $(BUILD)/coverage/profile $(BUILD)/coverage/raw
	@llvm-cov report $(BUILD)/coverage/fuzz/fuzz_heap -instr-profile=$(BUILD)/coverage/profile \
		-show-functions $(abspath $(COVERED))

# --- tests -------------------------------------------------------------------------------------

# How many tests, or files of them, run at a time: one more than processors, for many tests wait.
WORKERS ?= $(shell expr $$(nproc) + 1)
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

tests-built: all $(UNITS) $(SEEN)

unit: $(UNITS) ## run the unit tests
	$(call run_each,$(UNITS))

unit-fast: $(filter-out $(LONG_UNITS:%=\%/%),$(UNITS)) ## run the unit tests of seconds
	$(call run_each,$^)

sanitize: $(ASAN_UNITS) ## run the unit tests under ASan and UBSan
	$(call run_each,$(ASAN_UNITS))

crash-built: $(BUILD)/crash/crash $(BUILD)/crash/crash-check

CRASH_RUN = BUILD=$(abspath $(BUILD)) PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/crash/run \
	--jobs $(WORKERS)
crash: crash-built ## simulate power failures: 60,000 images at least, about five minutes
	$(CRASH_RUN) --images 60000 --quota 8

COMMIT_CRASH = $(BUILD)/unit/test_commit_crash $(BUILD)/unit/test_journal_crash
crash-long: crash-built $(COMMIT_CRASH) ## simulate power failures: 1,000,000 images, mutants
	$(CRASH_RUN) --images 1000000 --quota 40
	$(BUILD)/unit/test_commit_crash 200000
	$(CRASH_RUN) --mutate

crash-mutants: crash-built $(COMMIT_CRASH) ## leave out each flush, fence, rename, sync in turn
	$(CRASH_RUN) --mutate

integration-built: all $(SEEN) $(CONTENTION)

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
# is the last one.
TARGETS = check-layers check-abi unit sanitize fuzz-corpus crash vm distro
test: ## run all tests with both compilers; CI runs this
	@$(MAKE) format-check
	@$(MAKE) check-style
	@$(MAKE) CC=$(CLANG) CFLAGS=-O2 BUILD=$(BUILD)-clang compiles
	@$(MAKE) tests-built integration-built crash-built fuzz-built $(ASAN_UNITS)
	@$(RUN_TESTS) $(TARGETS:%=--beside %)

check: integration-built $(UNITS) ## check the style, run unit tests and chosen others: two minutes
	@$(MAKE) check-style format-check
	@$(RUN_TESTS) --marked check --beside check-layers --beside unit

test-fast: integration-built $(UNITS) ## run what takes eight minutes, by measured times
	@$(MAKE) check-style
	@$(RUN_TESTS) --seconds 450 --beside check-layers --beside check-abi --beside unit

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
