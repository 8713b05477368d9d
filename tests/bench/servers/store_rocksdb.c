// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// RocksDB, with one synced batch of writes.
#include <rocksdb/c.h>
#include <string.h>

#include "store.h"

static rocksdb_t *db;
static rocksdb_writebatch_t *batch;
static rocksdb_writeoptions_t *synced;
static rocksdb_readoptions_t *reads;

static void check(const char *error) {
    if (error)
        store_fails("RocksDB", error);
}

void store_open(const char *folder) {
    char *error = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    db = rocksdb_open(options, folder, &error);
    check(error);
    batch = rocksdb_writebatch_create();
    synced = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(synced, 1);
    reads = rocksdb_readoptions_create();
}

void store_set(const char *key, const char *value, size_t len) {
    rocksdb_writebatch_put(batch, key, strlen(key), value, len);
}

size_t store_get(const char *key, char *to) {
    char *error = NULL;
    size_t len = 0;
    store_commit();
    char *value = rocksdb_get(db, reads, key, strlen(key), &len, &error);
    check(error);
    if (value)
        memcpy(to, value, len);
    len = value ? len : 0;
    rocksdb_free(value);
    return len;
}

void store_commit(void) {
    char *error = NULL;
    if (rocksdb_writebatch_count(batch)) {
        rocksdb_write(db, synced, batch, &error);
        check(error);
        rocksdb_writebatch_clear(batch);
    }
}
