# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Part of the Makefile: the power-failure simulator (tests/crash), and the program of tests/bench
# that counts by the same calls of the compiler.

CRASH_CORE_OBJS := $(call core_objects,$(BUILD)/crash)
CRASH_CHECKER := checker verify file_id
CRASH_OBJS := $(patsubst %.c,$(BUILD)/crash/obj/%.o,$(filter-out \
	tests/crash/checker.c tests/crash/verify.c,$(wildcard tests/crash/*.c)))
CRASH_CHECKER_OBJS := $(CRASH_CHECKER:%=$(BUILD)/crash/obj/tests/crash/%.o)

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

crash-built: $(BUILD)/crash/crash $(BUILD)/crash/crash-check

CRASH_RUN = BUILD=$(abspath $(BUILD)) PYTHONDONTWRITEBYTECODE=1 $(PYTHON) tests/crash/run \
	--jobs $(WORKERS)
crash: crash-built ## simulate power failures: 32,000 images, about two minutes
	$(CRASH_RUN) --images 20000 --quota 2 --combinations 3

COMMIT_CRASH = $(BUILD)/unit/test_commit_crash $(BUILD)/unit/test_journal_crash
crash-long: crash-built $(COMMIT_CRASH) ## simulate power failures: 1,000,000 images, mutants
	$(CRASH_RUN) --images 1000000 --quota 40
	$(BUILD)/unit/test_commit_crash 200000
	$(CRASH_RUN) --mutate

crash-mutants: crash-built $(COMMIT_CRASH) ## leave out each flush, fence, rename, sync in turn
	$(CRASH_RUN) --mutate

integration-built: all $(SEEN) $(SOON) study-built
