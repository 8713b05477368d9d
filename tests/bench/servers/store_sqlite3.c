// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// sqlite3 with a write-ahead log that is synced by each transaction.
#include <sqlite3.h>
#include <string.h>

#include "store.h"

static sqlite3 *db;
static sqlite3_stmt *begin, *commit, *set, *get;
static int is_open;

static void check(int status) {
    if (status != SQLITE_OK && status != SQLITE_DONE && status != SQLITE_ROW)
        store_fails("sqlite3", sqlite3_errmsg(db));
}

static sqlite3_stmt *prepared(const char *text) {
    sqlite3_stmt *statement;
    check(sqlite3_prepare_v2(db, text, -1, &statement, NULL));
    return statement;
}

void store_open(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/db", folder);
    check(sqlite3_open(path, &db));
    check(sqlite3_exec(db,
                       "pragma journal_mode=wal; pragma synchronous=full;"
                       "create table if not exists kv(k text primary key, v blob) without rowid;",
                       NULL, NULL, NULL));
    begin = prepared("begin");
    commit = prepared("commit");
    set = prepared("insert into kv values(?,?) on conflict(k) do update set v=excluded.v");
    get = prepared("select v from kv where k=?");
}

static void run(sqlite3_stmt *statement) {
    check(sqlite3_step(statement));
    check(sqlite3_reset(statement));
}

void store_set(const char *key, const char *value, size_t len) {
    if (!is_open)
        run(begin);
    is_open = 1;
    check(sqlite3_bind_text(set, 1, key, -1, SQLITE_STATIC));
    check(sqlite3_bind_blob(set, 2, value, (int)len, SQLITE_STATIC));
    run(set);
}

size_t store_get(const char *key, char *to) {
    size_t len = 0;
    check(sqlite3_bind_text(get, 1, key, -1, SQLITE_STATIC));
    if (sqlite3_step(get) == SQLITE_ROW) {
        len = (size_t)sqlite3_column_bytes(get, 0);
        memcpy(to, sqlite3_column_blob(get, 0), len);
    }
    check(sqlite3_reset(get));
    return len;
}

void store_commit(void) {
    if (is_open)
        run(commit);
    is_open = 0;
}
