// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// kvshell's `set KEY VALUE` and `get KEY` with another store, for scripts/output-bench: LMDB
// (-DWITH_LMDB), or transactions of libpmemobj. Each set is a transaction of its own, and durable
// before "ok" is said.
//
//     shell STORE <COMMANDS
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fail(const char *what, const char *why) {
    fprintf(stderr, "shell: %s: %s\n", what, why);
    exit(1);
}

#ifdef WITH_LMDB
#include <lmdb.h>

static MDB_env *env;
static MDB_dbi table;

static void must(int status, const char *what) {
    if (status != 0)
        fail(what, mdb_strerror(status));
}

static void open_store(const char *path) {
    MDB_txn *txn;
    must(mdb_env_create(&env), "env");
    must(mdb_env_set_mapsize(env, 256u << 20), "mapsize");
    must(mdb_env_open(env, path, MDB_NOSUBDIR, 0600), path);
    must(mdb_txn_begin(env, NULL, 0, &txn), "begin");
    must(mdb_dbi_open(txn, NULL, 0, &table), "open");
    must(mdb_txn_commit(txn), "commit");
}

static MDB_val bytes_of(char *text) { return (MDB_val){strlen(text) + 1, text}; }

static void set(char *key, char *value) {
    MDB_txn *txn;
    MDB_val k = bytes_of(key), v = bytes_of(value);
    must(mdb_txn_begin(env, NULL, 0, &txn), "begin");
    must(mdb_put(txn, table, &k, &v, 0), "put");
    must(mdb_txn_commit(txn), "commit");
}

static void get(char *key) {
    MDB_txn *txn;
    MDB_val k = bytes_of(key), v;
    must(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    puts(mdb_get(txn, table, &k, &v) == 0 ? (char *)v.mv_data : "none");
    mdb_txn_abort(txn);
}

static void close_store(void) { mdb_env_close(env); }

#else
#include <libpmemobj.h>

enum { BUCKETS = 4096, POOL = 64 << 20, ENTRY = 1, VALUE };

// As kvshell's: an entry has the key, and points at the value, which a set replaces.
struct entry {
    PMEMoid next, value;
    char key[];
};

struct root {
    PMEMoid bucket[BUCKETS];
};

static PMEMobjpool *pool;
static struct root *root;

static void open_store(const char *path) {
    pool = access(path, F_OK) == 0 ? pmemobj_open(path, "shell")
                                   : pmemobj_create(path, "shell", POOL, 0600);
    if (!pool)
        fail(path, pmemobj_errormsg());
    root = pmemobj_direct(pmemobj_root(pool, sizeof *root));
}

static PMEMoid *find(const char *key) {
    uint32_t hash = 2166136261u;
    for (const char *c = key; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    PMEMoid *link = &root->bucket[hash % BUCKETS];
    for (struct entry *e; (e = pmemobj_direct(*link)) && strcmp(e->key, key) != 0;)
        link = &e->next;
    return link;
}

static void set_in_transaction(PMEMoid *link, const char *key, const char *value) {
    if (OID_IS_NULL(*link)) {
        PMEMoid made = pmemobj_tx_zalloc(sizeof(struct entry) + strlen(key) + 1, ENTRY);
        strcpy(((struct entry *)pmemobj_direct(made))->key, key);
        pmemobj_tx_add_range_direct(link, sizeof *link);
        *link = made;
    }
    struct entry *entry = pmemobj_direct(*link);
    PMEMoid fresh = pmemobj_tx_alloc(strlen(value) + 1, VALUE), old = entry->value;
    strcpy(pmemobj_direct(fresh), value);
    pmemobj_tx_add_range_direct(&entry->value, sizeof entry->value);
    entry->value = fresh;
    if (!OID_IS_NULL(old))
        pmemobj_tx_free(old);
}

static void set(char *key, char *value) {
    PMEMoid *link = find(key);
    TX_BEGIN(pool) { set_in_transaction(link, key, value); }
    TX_ONABORT { fail("transaction", pmemobj_errormsg()); }
    TX_END
}

static void get(char *key) {
    struct entry *entry = pmemobj_direct(*find(key));
    puts(entry ? (char *)pmemobj_direct(entry->value) : "none");
}

static void close_store(void) { pmemobj_close(pool); }
#endif

int main(int argc, char **argv) {
    char *line = NULL;
    size_t room = 0;
    if (argc != 2)
        return 2;
    open_store(argv[1]);
    while (getline(&line, &room, stdin) > 0) {
        char *word = strtok(line, " \n"), *key = strtok(NULL, " \n"), *value = strtok(NULL, "\n");
        if (!word || !key || (strcmp(word, "set") == 0 && !value))
            fail("bad command", word ? word : "");
        if (strcmp(word, "set") == 0) {
            set(key, value);
            puts("ok");
        } else {
            get(key);
        }
        fflush(stdout);
    }
    free(line);
    close_store();
    return 0;
}
