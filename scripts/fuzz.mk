# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Part of the Makefile: the fuzzers (tests/fuzz).

# libFuzzer needs clang, whatever CC is. One process opens thousands of heaps: the library's
# variables lie in sections of their own, and its tables come and go through wrapped calls. A corpus
# runs in seconds, and -O1 would take longer to compile than it saves: that is for searches.
FUZZ_O = -O0
FUZZ_FLAGS = $(FUZZ_O) -g1 -DPM_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=all \
	-fno-omit-frame-pointer -DPM_MARK_STACK=48u
FUZZ_COVERAGE = -fsanitize=fuzzer-no-link -fno-sanitize-coverage=trace-cmp
FUZZ_CFLAGS = $(filter-out $(LTO_FLAGS) $(CFLAGS) -ffunction-sections -fdata-sections,\
	$(LIB_CFLAGS)) $(FUZZ_FLAGS)
# Nothing below preload/ calls it (scripts/check-layers), so it stays out.
FUZZ_LIB := $(patsubst %.c,$(BUILD)/fuzz/lib/%.o,\
	$(filter-out preload/%,$(CORE_SOURCES)) \
	$(addprefix tools/common/,census.c commit_print.c figures.c files.c heap_figures.c info_json.c \
		info_text.c instants_print.c json.c lock_place.c objects_print.c pauses_print.c \
		program_maps.c rebased_print.c recovered_print.c text.c))
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

# $(call once,PROGRAM,CORPORA) and $(call look_for,PROGRAM,NAME-,LENGTH,CORPORA). What searches is
# built in build/search, to run fast; its findings are left beside the program that replays them.
define once
@$(FUZZ_OPTIONS) $1 $(FUZZ_BOUNDS) -runs=0 $2 > $1.log 2>&1 || { tail -n 40 $1.log; exit 1; }
@echo "ok   $1: $$(find $2 -type f | wc -l) inputs"
endef
define look_for
@mkdir -p $(BUILD)/fuzz/$2found
@$(MAKE) -s BUILD=$(BUILD)/search FUZZ_O=-O1 $(1:$(BUILD)/%=$(BUILD)/search/%)
$(FUZZ_OPTIONS) $(1:$(BUILD)/%=$(BUILD)/search/%) $(FUZZ_BOUNDS) -max_total_time=$(SECONDS) \
	-max_len=$3 -len_control=0 -print_final_stats=1 \
	-artifact_prefix=$(BUILD)/fuzz/$2 $(BUILD)/fuzz/$2found $4
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
