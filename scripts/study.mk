# SPDX-License-Identifier: MIT
# Copyright (c) 2026 The PMAlloc authors
#
# Part of the Makefile: builds of the library for measurements alone. Each has another constant and
# tests/bench/study/inside.c. Their heaps are theirs: no other build opens all of them.

STUDIES = stripes-1 stripes-2 stripes-4 stripes-8 freed-first log-in-order log-grows \
	no-log
STUDY_stripes-1 = -DPM_PINNED_STRIPES=1
STUDY_stripes-2 = -DPM_PINNED_STRIPES=2
STUDY_stripes-4 = -DPM_PINNED_STRIPES=4
STUDY_stripes-8 = -DPM_PINNED_STRIPES=8
STUDY_freed-first = -DPM_CACHES_IN_TURN=0
STUDY_log-in-order = -DPM_LOG_IN_ORDER
STUDY_log-grows = -DPM_LOG_SHARE=1
STUDY_no-log = -DPM_NO_LOG

STUDY_LIB = $(BUILD)/study/libpmalloc_study.so
$(STUDY_LIB): $(PRELOAD_OBJS) $(CORE_OBJS) $(BUILD)/obj/tests/bench/study/inside.o \
		preload/preload.map
	@mkdir -p $(@D)
	$(LINK) $(SO_LDFLAGS) -Wl,-soname,$(@F) -o $@ $(filter %.o,$^) -lpthread

WATCH = $(BUILD)/study/watch.so
$(WATCH): tests/bench/study/watch.c $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(APP_CFLAGS) -fPIC -shared $(LDFLAGS) $(DEPS) -o $@ $<

LOADS = $(BUILD)/study/loads
$(LOADS): tests/bench/study/loads.c tests/bench/marks.h $(BUILD)/.flags
	@mkdir -p $(@D)
	$(CC) $(APP_CFLAGS) $(LDFLAGS) $(DEPS) -o $@ $<

$(STUDIES:%=$(BUILD)/study/%): $(BUILD)/study/%: FORCE
	$(MAKE) BUILD=$@ CPPFLAGS="$(CPPFLAGS) $(STUDY_$*)" $@/study/libpmalloc_study.so

study-built: $(STUDY_LIB) $(WATCH) $(LOADS) $(CONTENTION)

study: study-built $(STUDIES:%=$(BUILD)/study/%) ## build libraries with other constants, to measure
