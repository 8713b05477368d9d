// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// The kernel stores to heap memory on its own, across commits: by direct reads that are under way
// (io_submit), or through pages that an io_uring has registered. The contents alternate, so a page
// that a commit gave back at the wrong time is seen. The root is `buffer`. Raw system calls.
//
//   commit_io HOW FILE     reads FILE, which is made, again and again; the last one is committed;
//                          then it is killed. Status 77: the kernel does not allow it
//   commit_io check        the last contents are there
//
// HOW: aio, uring, vectors (an io_uring opens FILE and writes many buffers at once); and of a
// thread's ring: unshare (in a descriptor table of its own, while the first thread makes the
// commits), zombie (the first thread has ended), closed (the ring is registered with itself, and
// its descriptor closed).
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

int pmalloc_commit(void) __attribute__((weak));

#define BYTES ((size_t)1 << 20)
#define ROUNDS 40
#define VECTORS 1024 // as many as the kernel takes

char *buffer;

static unsigned char byte_of(unsigned round, size_t i) {
    return (unsigned char)(round * 7 + i / 512);
}

static void fill(char *to, unsigned round) {
    for (size_t i = 0; i < BYTES; i++)
        to[i] = (char)byte_of(round, i);
}

static int is_right(unsigned round) {
    for (size_t i = 0; i < BYTES; i++)
        if ((unsigned char)buffer[i] != byte_of(round, i)) {
            printf("round %u: byte %zu is wrong\n", round, i);
            return 0;
        }
    return 1;
}

static void must(int good, const char *what) {
    if (!good) {
        perror(what);
        exit(77);
    }
}

// Writes the contents of a round to the file, past the page cache's memory of it.
static void write_file(const char *path, unsigned round) {
    char *bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    fill(bytes, round);
    must(fd >= 0 && pwrite(fd, bytes, BYTES, 0) == (ssize_t)BYTES && fsync(fd) == 0, path);
    close(fd);
    munmap(bytes, BYTES);
}

static const char *how;
static sem_t asked, done; // with `unshare`: the first thread makes the commits

static int is(const char *name) { return strcmp(how, name) == 0; }

static void commit_twice(void) {
    if (is("unshare") && getpid() != (pid_t)syscall(SYS_gettid)) {
        sem_post(&asked);
        sem_wait(&done);
        return;
    }
    if (pmalloc_commit() != 0 || pmalloc_commit() != 0)
        exit(1);
}

static void run_aio(const char *path) {
    aio_context_t context = 0;
    write_file(path, 0);
    int fd = open(path, O_RDONLY | O_DIRECT);
    must(fd >= 0 && syscall(SYS_io_setup, 1, &context) == 0, "O_DIRECT and io_setup");
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct iocb request = {.aio_lio_opcode = IOCB_CMD_PREAD,
                               .aio_fildes = (uint32_t)fd,
                               .aio_buf = (uintptr_t)buffer,
                               .aio_nbytes = BYTES};
        struct iocb *list[] = {&request};
        struct io_event event;
        write_file(path, round);
        commit_twice();
        must(syscall(SYS_io_submit, context, 1, list) == 1, "io_submit");
        commit_twice();
        must(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1, "io_getevents");
        if (event.res != (int64_t)BYTES || !is_right(round))
            exit(1);
    }
}

#define REGISTER_RING_FDS 20
#define ENTER_REGISTERED (1u << 4)

static struct ring {
    int fd;
    unsigned registered;
    unsigned *head, *tail, *array;
    struct io_uring_sqe *sqe;
    unsigned *done_head, *done_tail;
    struct io_uring_cqe *cqe;
} ring;

static void *map_ring(size_t len, uint64_t offset) {
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, (off_t)offset);
    must(at != MAP_FAILED, "io_uring: mmap");
    return at;
}

static void make_ring(void) {
    struct io_uring_params p = {0};
    ring.fd = (int)syscall(SYS_io_uring_setup, 1, &p);
    must(ring.fd >= 0, "io_uring_setup");
    char *sq = map_ring(p.sq_off.array + 64, IORING_OFF_SQ_RING);
    char *cq = map_ring(p.cq_off.cqes + p.cq_entries * sizeof *ring.cqe, IORING_OFF_CQ_RING);
    ring.sqe = map_ring(sizeof *ring.sqe, IORING_OFF_SQES);
    ring.head = (unsigned *)(void *)(sq + p.sq_off.head);
    ring.tail = (unsigned *)(void *)(sq + p.sq_off.tail);
    ring.array = (unsigned *)(void *)(sq + p.sq_off.array);
    ring.done_head = (unsigned *)(void *)(cq + p.cq_off.head);
    ring.done_tail = (unsigned *)(void *)(cq + p.cq_off.tail);
    ring.cqe = (struct io_uring_cqe *)(void *)(cq + p.cq_off.cqes);
}

// Its result.
static int submit(struct io_uring_sqe request) {
    *ring.sqe = request;
    ring.array[0] = 0;
    __atomic_store_n(ring.tail, *ring.tail + 1, __ATOMIC_RELEASE);
    unsigned flags = IORING_ENTER_GETEVENTS | ring.registered;
    while (syscall(SYS_io_uring_enter, ring.fd, 1, 1, flags, NULL, 0L) < 0)
        must(errno == EINTR, "io_uring_enter");
    unsigned head = *ring.done_head;
    must(head != __atomic_load_n(ring.done_tail, __ATOMIC_ACQUIRE), "io_uring: no answer");
    int result = ring.cqe[head & 1].res;
    __atomic_store_n(ring.done_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

static void read_fixed(int fd) {
    if (submit((struct io_uring_sqe){
            .opcode = IORING_OP_READ_FIXED, .fd = fd, .addr = (uintptr_t)buffer, .len = BYTES}) !=
        (int)BYTES)
        exit(1);
}

// Name, buffers and their list lie on the heap. The other way round: what the kernel reads there.
static void write_vectors(const char *path, struct iovec *vectors) {
    static char back[BYTES];
    int fd = submit((struct io_uring_sqe){.opcode = IORING_OP_OPENAT,
                                          .fd = AT_FDCWD,
                                          .addr = (uintptr_t)path,
                                          .open_flags = O_RDWR | O_CREAT | O_TRUNC,
                                          .len = 0600});
    int put = submit((struct io_uring_sqe){
        .opcode = IORING_OP_WRITEV, .fd = fd, .addr = (uintptr_t)vectors, .len = VECTORS});
    if (fd < 0 || put != (int)BYTES || pread(fd, back, BYTES, 0) != (ssize_t)BYTES ||
        memcmp(back, buffer, BYTES) != 0) {
        printf("opened %d, wrote %d\n", fd, put);
        exit(1);
    }
    close(fd);
}

static void run_vectors(const char *path) {
    struct iovec *vectors = malloc(VECTORS * sizeof *vectors);
    char *name = strdup(path);
    for (size_t i = 0; i < VECTORS; i++)
        vectors[i] = (struct iovec){buffer + i * (BYTES / VECTORS), BYTES / VECTORS};
    make_ring();
    for (unsigned round = 0; round < ROUNDS; round++) {
        fill(buffer, round);
        write_vectors(name, vectors);
        commit_twice();
    }
}

static void close_ring(void) {
    struct {
        uint32_t offset, zero;
        uint64_t data;
    } own = {-1u, 0, (uint64_t)ring.fd};
    must(syscall(SYS_io_uring_register, ring.fd, REGISTER_RING_FDS, &own, 1) == 1, "register ring");
    close(ring.fd);
    ring.fd = (int)own.offset;
    ring.registered = ENTER_REGISTERED;
}

static void run_uring(const char *path) {
    struct iovec all = {buffer, BYTES};
    write_file(path, 0);
    int fd = open(path, O_RDONLY);
    make_ring();
    must(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &all, 1) == 0,
         "io_uring_register");
    if (is("closed"))
        close_ring();
    for (unsigned round = 0; round < ROUNDS; round++) {
        write_file(path, round);
        commit_twice(); // the buffer does not change between the two
        read_fixed(fd);
        if (!is_right(round))
            exit(1);
    }
}

static void end(void) {
    commit_twice();
    raise(SIGKILL);
}

static void *run_thread(void *path) {
    if (is("unshare"))
        must(unshare(CLONE_FILES) == 0, "unshare");
    if (is("zombie")) { // the first thread is to be gone
        char name[64], state[256] = "";
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", getpid());
        while (!strstr(state, ") Z")) {
            int fd = open(name, O_RDONLY);
            must(fd >= 0 && read(fd, state, sizeof state - 1) > 0, name);
            close(fd);
            sched_yield();
        }
    }
    run_uring(path);
    end();
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    how = argv[1];
    if (argc == 2)
        return buffer && is_right(ROUNDS - 1) ? 0 : 1;
    buffer = aligned_alloc(4096, BYTES);
    fill(buffer, 99);
    commit_twice();
    if (is("aio") || is("uring") || is("vectors")) {
        (is("aio") ? run_aio : is("uring") ? run_uring : run_vectors)(argv[2]);
        end();
    }
    sem_init(&asked, 0, 0);
    sem_init(&done, 0, 0);
    must(pthread_create(&thread, NULL, run_thread, argv[2]) == 0, "pthread_create");
    if (is("zombie"))
        pthread_exit(NULL);
    for (;;) {
        sem_wait(&asked);
        commit_twice();
        sem_post(&done);
    }
}
