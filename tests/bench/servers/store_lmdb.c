// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// LMDB, with its default: each transaction is synced.
#include <lmdb.h>
#include <string.h>

#include "store.h"

static MDB_env *environment;
static MDB_dbi db;
static MDB_txn *transaction; // the open one that writes

static void check(int status) {
    if (status)
        store_fails("LMDB", mdb_strerror(status));
}

void store_open(const char *folder) {
    check(mdb_env_create(&environment));
    check(mdb_env_set_mapsize(environment, (size_t)1 << 30));
    check(mdb_env_open(environment, folder, 0, 0600));
    check(mdb_txn_begin(environment, NULL, 0, &transaction));
    check(mdb_dbi_open(transaction, NULL, 0, &db));
    store_commit();
}

void store_set(const char *key, const char *value, size_t len) {
    MDB_val k = {strlen(key), (void *)key}, v = {len, (void *)value};
    if (!transaction)
        check(mdb_txn_begin(environment, NULL, 0, &transaction));
    check(mdb_put(transaction, db, &k, &v, 0));
}

size_t store_get(const char *key, char *to) {
    MDB_val k = {strlen(key), (void *)key}, v = {0, NULL};
    MDB_txn *reader = transaction;
    if (!reader)
        check(mdb_txn_begin(environment, NULL, MDB_RDONLY, &reader));
    int status = mdb_get(reader, db, &k, &v);
    if (status != MDB_NOTFOUND)
        check(status);
    if (status == 0)
        memcpy(to, v.mv_data, v.mv_size);
    if (!transaction)
        mdb_txn_abort(reader);
    return status == 0 ? v.mv_size : 0;
}

void store_commit(void) {
    if (transaction)
        check(mdb_txn_commit(transaction));
    transaction = NULL;
}
