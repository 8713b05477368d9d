// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// How many shards the heap has, and the making of another one.
#ifndef PM_SHARD_MAKE_H
#define PM_SHARD_MAKE_H

#include "media/heap.h"

// Reads from the superblock how many shards there are, into pm_heap.shards.
int pm_shards_read(struct pm_error *err);
// Says on media which node shard 0 belongs to, in a heap that this process has made.
void pm_shard_node_begins(unsigned node);
// All shards belong to this node from now on: a tool takes the heap there. It is on media with
// pm_heap_dirty().
void pm_shards_go(unsigned node);
// Says on media which nodes the shards belong to, where media do not decide it: on fixed media the
// nodes of their devices, and what pm_shards_go() has said. pm_heap_dirty() makes that durable.
void pm_shards_note_nodes(void);
// The node that media name for a shard; -1: none.
int pm_shard_recorded_node(unsigned shard);
// How many shards a superblock file tells of; 0: its word is damaged.
unsigned pm_super_shards(const struct pm_super_file *file);
// How many shards this process has addresses for.
unsigned pm_shards_most(void);
// The longest that a new shard may become.
uint64_t pm_shard_room(void);
// Sets the limits of all shards and of the heap from the options.
void pm_shards_limit(void);
// After a crash: removes the files of a shard that was being made.
void pm_shards_tidy(void);
// Children that skip the fork handlers find nothing at the heap's addresses (fork/fork.h), nor
// at those of a shard that is made now. Changed with all locks held.
extern bool pm_shards_kept_from_children;
// Makes another shard of a NUMA node, without extents. The extent lock of shard 0 is held. False:
// there are as many as there can be, or the file system or the kernel refuses; the heap is as
// before.
bool pm_shard_make(unsigned node);

#endif
