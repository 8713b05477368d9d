// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Volumes: the directories of one heap, PMALLOC_HEAP=DIR[:DIR...], one for each device. The first,
// volume 0, is the heap's directory. Another one has the files of some shards, and a file `volume`
// that says whose it is. In the first directory a symbolic link leads to it:
//
//   /mnt/a/heap:  superblock roots heap.0 slabs.0 ...   volume.1 -> /mnt/b/heap
//   /mnt/b/heap:  volume                                heap.1 slabs.1 ...
//
// So the name of a shard's file, seen from the first directory, is heap.1 or volume.1/heap.1. Tools
// need the first directory only. If a device is mounted elsewhere, its user changes the link.
//
// The superblock says in which volume each shard lies (pm_shard_state.volume).
#ifndef PM_VOLUME_H
#define PM_VOLUME_H

#include "media/heap.h"

#define PM_VOLUMES 8u // at most, with the first

// The length of the first DIR in DIR[:DIR...]. If something exists under the whole text, that is
// the first DIR: a directory, or a fixed medium (fixed.h).
size_t pm_volume_first(const char *text);
// Whether each further name is one of a directory: with a slash. PM_USAGE: not, and `err` says why.
int pm_volume_check(const char *text, struct pm_error *err);
// How many directories a text names.
unsigned pm_volume_count(const char *text);

// Checks the volumes of the heap, whose superblock is mapped, sets pm_heap.volumes, and the names
// of the files of all shards. `more` names the other directories, DIR[:DIR...] or "": each must be
// the volume of its place. With PM_OPEN_CREATE volumes that the heap does not have are made.
int pm_volumes_open(const char *more, enum pm_open_mode mode, struct pm_error *err);
// For a tool: makes `path` the next volume of the heap, if it is none yet, and tells its number.
// Another process may have the heap open. It takes the volume when it finds no room
// (pm_volumes_arrived()), or its next start does. Of tools at the same time one waits for the
// other, by a lock of the file roots, which nobody else takes.
int pm_volume_add(const char *path, unsigned *number, struct pm_error *err);
// How many volumes the heap, which this process has open, has with one that has come since. One
// that cannot be used is said once. No lock is held: what is said may start a command
// (event_hook.h).
unsigned pm_volumes_arrived(void);

// Sets the names of a shard's files for a volume.
void pm_shard_set_volume(unsigned shard, unsigned volume);
// The volume for a new shard of a node: on the node's device where that is known, else by turns.
// With one node: the volume whose shards have the fewest addresses left, for the others need none.
unsigned pm_volume_choose(unsigned shard, unsigned node);
// How far the frontiers of the volume's shards may still move, all together.
uint64_t pm_volume_addresses(unsigned volume);
// Notes a new shard's volume. The note lies in the cache line of the word that counts the shard,
// and before it: so it needs no flush of its own.
void pm_volume_note(unsigned shard, unsigned volume);
// The node of the volume's device, if the heap has several volumes; -1: not known.
int pm_volume_node(unsigned volume);
// For a tool that has copied the files of a shard, durably and with their names, while nobody
// stores to them: those in the other volume are the heap's from now on. Nothing of this process
// uses the shard after that.
void pm_shard_moved(unsigned shard, unsigned volume);
// Unlinks what a tool that was killed has left: files of a shard in a volume that is not its own.
// False, with errno: one is still there.
bool pm_volumes_tidy(void);
// A file's name in a volume, as seen from the heap's directory.
void pm_volume_file_name(const struct pm_heap_file *f, unsigned volume, char out[PM_FILE_NAME]);

// ---- for a heap that need not be open; `dir_fd` is its directory --------------------------------

// Finds a file of the table in its volume, and puts its name as seen from the heap's directory into
// `name`. Where the superblock does not tell yet, that is whichever volume has it. False, with
// errno: ENOENT, there is none, and `name` is the plain one; or it cannot be told.
bool pm_volume_find(int dir_fd, const struct pm_heap_file *f, char name[PM_FILE_NAME]);
// Unlinks a shard's file wherever it lies. Returns false when one is still there.
bool pm_volumes_unlink(int dir_fd, const struct pm_heap_file *f);
// Removes the volumes with their directories. All that is left of them is files of others.
bool pm_volumes_remove(int dir_fd);
// Whether the name belongs to what this file makes.
bool pm_volume_name(const char *name);

#endif
