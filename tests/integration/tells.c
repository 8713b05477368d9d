// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// Other ways than a write to a pipe in which a program tells others something or makes a file
// durable, and ways which look like it (PMALLOC_COMMIT=output). The root `value` gets a number, and
// the program does one thing. Then it says "done" by a system call of its own, which is no output
// to PMAlloc, and spins.
//
//   tells NAME N    does this
//   tells names     prints the names: what tells others something, "-", what does not
//   tells check     prints the value
//
// Status 77: the kernel does not allow it.
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

uint64_t value;

static int to, from;     // a pipe
static int ours, theirs; // two connected sockets
static pid_t other;      // a process that waits for signals
static char text[] = "text";
static struct iovec vector = {text, sizeof text};
static char *no_environment[] = {NULL}, *true_argv[] = {"true", NULL};

static long bare(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static void finish(const char *what) {
    bare(SYS_write, STDOUT_FILENO, (long)what, (long)strlen(what));
    for (volatile int go = 1; go;) {
    }
}

static void need(int good) {
    if (!good)
        bare(SYS_exit_group, 77, 0, 0);
}

static int plain_file(void) { return memfd_create("plain", 0); }

static int durable_file(int how) {
    char path[] = "/tmp/tells.XXXXXX";
    close(mkstemp(path));
    int fd = open(path, O_WRONLY | how);
    need(fd >= 0 && unlink(path) == 0);
    return fd;
}

// ---- what makes a file durable ------------------------------------------------------------------

static void tell_fsync(void) { need(fsync(plain_file()) == 0); }
static void tell_fdatasync(void) { need(fdatasync(plain_file()) == 0); }
static void tell_syncfs(void) { need(syncfs(plain_file()) == 0); }
static void tell_sync(void) { sync(); }
static char *mapping(void) {
    int fd = plain_file();
    need(ftruncate(fd, 4096) == 0);
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}
static void tell_msync(void) { need(msync(mapping(), 4096, MS_SYNC) == 0); }
static void tell_sync_file_range(void) {
    need(sync_file_range(plain_file(), 0, 0, SYNC_FILE_RANGE_WRITE_AND_WAIT) == 0);
}
static void tell_aio_fsync(void) {
    static struct aiocb request;
    request = (struct aiocb){.aio_fildes = plain_file()};
    need(aio_fsync(O_SYNC, &request) == 0);
}
static void tell_write_sync(void) { need(write(durable_file(O_SYNC), text, 4) == 4); }
static void tell_write_dsync(void) { need(write(durable_file(O_DSYNC), text, 4) == 4); }
static void tell_write_rwf_sync(void) { need(pwritev2(plain_file(), &vector, 1, 0, RWF_SYNC) > 0); }
static void tell_write_rwf_dsync(void) {
    need(syscall(SYS_pwritev2, plain_file(), &vector, 1, 0, 0, RWF_DSYNC) > 0);
}
static void tell_write_by_stream(void) {
    FILE *stream = fdopen(durable_file(O_DSYNC), "w");
    need(fputs(text, stream) >= 0 && fflush(stream) == 0);
}
static void tell_copy_file_range(void) {
    loff_t at = 0;
    copy_file_range(plain_file(), &at, durable_file(O_DSYNC), NULL, 1, 0);
}
static void tell_fsync_of_a_pipe(void) { need(fsync(to) == -1); } // asked for, and refused
static void tell_raw_fsync(void) { need(syscall(SYS_fsync, plain_file()) == 0); }
static void tell_raw_fdatasync(void) { need(syscall(SYS_fdatasync, plain_file()) == 0); }
static void tell_raw_syncfs(void) { need(syscall(SYS_syncfs, plain_file()) == 0); }
static void tell_raw_sync(void) { need(syscall(SYS_sync) == 0); }
static void tell_raw_msync(void) { need(syscall(SYS_msync, mapping(), 4096, MS_SYNC) == 0); }
static void tell_raw_sync_file_range(void) {
    need(syscall(SYS_sync_file_range, plain_file(), 0, 0, SYNC_FILE_RANGE_WAIT_AFTER) == 0);
}
static void tell_raw_copy_file_range(void) {
    loff_t at = 0;
    syscall(SYS_copy_file_range, plain_file(), &at, durable_file(O_DSYNC), NULL, 1, 0L);
}
static void silent_syncs(void) {
    need(msync(mapping(), 4096, MS_ASYNC) == 0);
    need(syscall(SYS_msync, mapping(), 4096, MS_ASYNC) == 0);
    need(sync_file_range(plain_file(), 0, 0, SYNC_FILE_RANGE_WRITE) == 0);
    need(syscall(SYS_sync_file_range, plain_file(), 0, 0, SYNC_FILE_RANGE_WRITE) == 0);
    need(pwritev2(plain_file(), &vector, 1, 0, 0) > 0);
}

// ---- by descriptors -----------------------------------------------------------------------------

static void tell_pwritev2(void) { need(pwritev2(to, &vector, 1, -1, 0) > 0); }
static void tell_pwritev64v2(void) { need(pwritev64v2(to, &vector, 1, -1, 0) > 0); }
static void tell_pwrite(void) { pwrite(to, text, 1, 0); } // a pipe refuses it, but a device may not
static void tell_pwritev(void) { pwritev(to, &vector, 1, 0); }
static void tell_eventfd_write(void) { need(eventfd_write(eventfd(0, 0), 1) == 0); }
static void tell_write_eventfd(void) {
    uint64_t one = 1;
    need(write(eventfd(0, 0), &one, sizeof one) == sizeof one);
}
static void tell_shutdown(void) { need(shutdown(ours, SHUT_WR) == 0); }
static void tell_connect(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    need(bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0);
    need(getsockname(listener, (void *)&at, &len) == 0);
    need(connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&at, len) == 0);
}
static void tell_aio_write(void) {
    static struct aiocb request;
    request = (struct aiocb){.aio_fildes = to, .aio_buf = text, .aio_nbytes = 1};
    need(aio_write(&request) == 0);
}
static void tell_lio_listio(void) {
    static struct aiocb request;
    struct aiocb *list[] = {&request};
    request = (struct aiocb){
        .aio_fildes = to, .aio_buf = text, .aio_nbytes = 1, .aio_lio_opcode = LIO_WRITE};
    lio_listio(LIO_NOWAIT, list, 1, NULL);
}
static void tell_syslog(void) { syslog(LOG_DEBUG, "%s", text); }
static void log_with(const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsyslog(LOG_DEBUG, format, args);
    va_end(args);
}
static void tell_vsyslog(void) { log_with("%s", text); }

// ---- requests to the kernel ---------------------------------------------------------------------

#define RING_BYTES 4096 // more than liburing's struct has
static long long ring[RING_BYTES / sizeof(long long)];

static void *function(const char *library, const char *name) {
    void *found = dlsym(dlopen(library, RTLD_LAZY), name);
    need(found != NULL);
    return dlsym(RTLD_DEFAULT, name); // PMAlloc's comes first
}
static void tell_io_uring_submit(void) {
    int (*init)(unsigned, void *, unsigned);
    int (*submit)(void *);
    *(void **)&init = dlsym(dlopen("liburing.so.2", RTLD_LAZY), "io_uring_queue_init");
    need(init && init(4, ring, 0) == 0);
    *(void **)&submit = function("liburing.so.2", "io_uring_submit");
    need(submit(ring) >= 0);
}
static void tell_io_submit(void) {
    int (*setup)(int, void **), (*submit)(void *, long, void **);
    void *context = NULL, *list[1] = {NULL};
    *(void **)&setup = dlsym(dlopen("libaio.so.1", RTLD_LAZY), "io_setup");
    need(setup && setup(4, &context) == 0);
    *(void **)&submit = function("libaio.so.1", "io_submit");
    submit(context, 1, list);
}
static void tell_raw_io_submit(void) { syscall(SYS_io_submit, 0, 1, NULL); }
static void tell_raw_io_uring_enter(void) {
    struct io_uring_params p = {0};
    int fd = (int)syscall(SYS_io_uring_setup, 1, &p);
    need(fd >= 0);
    syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0L);
}

// ---- messages and signals -----------------------------------------------------------------------

static struct {
    long type;
    char text[8];
} message = {1, "text"};
static int queue(void) {
    int id = msgget(IPC_PRIVATE, 0600);
    need(id >= 0);
    return id;
}
static void tell_msgsnd(void) {
    int id = queue();
    need(msgsnd(id, &message, sizeof message.text, 0) == 0);
    msgctl(id, IPC_RMID, NULL);
}
static void tell_raw_msgsnd(void) {
    int id = queue();
    need(syscall(SYS_msgsnd, id, &message, sizeof message.text, 0) == 0);
    msgctl(id, IPC_RMID, NULL);
}
static mqd_t posix_queue(void) {
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};
    char name[40];
    snprintf(name, sizeof name, "/tells.%d", (int)getpid());
    mqd_t q = mq_open(name, O_CREAT | O_RDWR, 0600, &attributes);
    mq_unlink(name);
    need(q >= 0);
    return q;
}
static const struct timespec long_ago;
static void tell_mq_send(void) { need(mq_send(posix_queue(), text, 1, 0) == 0); }
static void tell_mq_timedsend(void) {
    need(mq_timedsend(posix_queue(), text, 1, 0, &long_ago) == 0);
}
static void tell_raw_mq_timedsend(void) {
    need(syscall(SYS_mq_timedsend, posix_queue(), text, 1, 0, NULL) == 0);
}
static struct sembuf up = {0, 1, 0};
static int semaphores(void) {
    int id = semget(IPC_PRIVATE, 1, 0600);
    need(id >= 0);
    return id;
}
static void tell_semop(void) {
    int id = semaphores();
    need(semop(id, &up, 1) == 0);
    semctl(id, 0, IPC_RMID);
}
static void tell_semtimedop(void) {
    int id = semaphores();
    need(semtimedop(id, &up, 1, NULL) == 0);
    semctl(id, 0, IPC_RMID);
}
static void tell_raw_semop(void) {
    int id = semaphores();
    need(syscall(SYS_semop, id, &up, 1) == 0);
    semctl(id, 0, IPC_RMID);
}
static void tell_kill(void) { need(kill(other, SIGCONT) == 0); }
static void tell_killpg(void) { need(killpg(getpgrp(), SIGCONT) == 0); }
static void tell_sigqueue(void) { need(sigqueue(other, SIGCONT, (union sigval){0}) == 0); }
static void tell_tgkill(void) { need(tgkill(other, other, SIGCONT) == 0); }
static void tell_pidfd_send_signal(void) {
    int (*send)(int, int, siginfo_t *, unsigned);
    *(void **)&send = dlsym(RTLD_DEFAULT, "pidfd_send_signal");
    int fd = (int)syscall(SYS_pidfd_open, other, 0);
    need(send && fd >= 0 && send(fd, SIGCONT, NULL, 0) == 0);
}
static void tell_raw_pidfd_send_signal(void) {
    syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, other, 0), SIGCONT, NULL, 0);
}
static void tell_raw_kill(void) { syscall(SYS_kill, other, SIGCONT); }
static void tell_raw_tkill(void) { syscall(SYS_tkill, other, SIGCONT); }
static void tell_raw_tgkill(void) { syscall(SYS_tgkill, other, other, SIGCONT); }
static void raw_queue(long number) {
    siginfo_t info = {.si_code = SI_QUEUE};
    if (number == SYS_rt_sigqueueinfo)
        syscall(number, other, SIGCONT, &info);
    else
        syscall(number, other, other, SIGCONT, &info);
}
static void tell_raw_sigqueueinfo(void) { raw_queue(SYS_rt_sigqueueinfo); }
static void tell_raw_tgsigqueueinfo(void) { raw_queue(SYS_rt_tgsigqueueinfo); }

// ---- the numbers of calls that triggers.c has by name -------------------------------------------

#define RAW(name, ...)                                                                             \
    static void tell_raw_##name(void) { syscall(SYS_##name, __VA_ARGS__); }
static struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
static struct mmsghdr headers = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
RAW(write, to, text, 1)
RAW(writev, to, &vector, 1)
RAW(pwrite64, to, text, 1, 0)
RAW(pwritev, to, &vector, 1, 0, 0)
RAW(pwritev2, to, &vector, 1, -1, -1, 0)
RAW(sendto, ours, text, 1, 0, NULL, 0)
RAW(sendmsg, ours, &header, 0)
RAW(sendmmsg, ours, &headers, 1, 0)
RAW(sendfile, to, STDIN_FILENO, NULL, 1)
RAW(splice, STDIN_FILENO, NULL, to, NULL, 1, SPLICE_F_NONBLOCK)
RAW(tee, from, to, 1, SPLICE_F_NONBLOCK)
RAW(vmsplice, to, &vector, 1, 0)
RAW(connect, ours, NULL, 0)
RAW(shutdown, ours, SHUT_WR)
RAW(semtimedop, -1, &up, 1, NULL)

// ---- other programs, and the status -------------------------------------------------------------

static void tell_fork(void) {
    if (fork() == 0)
        finish("done\n");
    finish("");
}
static void tell_raw_fork(void) {
    if (syscall(SYS_fork) == 0)
        bare(SYS_exit_group, 0, 0, 0);
}
static void tell_raw_clone(void) {
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
        bare(SYS_exit_group, 0, 0, 0);
}
static void tell_raw_clone3(void) {
    uint64_t arguments[8] = {[4] = SIGCHLD};
    if (syscall(SYS_clone3, arguments, sizeof arguments) == 0)
        bare(SYS_exit_group, 0, 0, 0);
}
static char child_stack[65536] __attribute__((aligned(16)));
static int child_main(void *arg) {
    (void)arg;
    bare(SYS_exit_group, 0, 0, 0);
    return 0;
}
static void tell_clone(void) {
    need(clone(child_main, child_stack + sizeof child_stack, CLONE_VM | SIGCHLD, NULL) > 0);
}
static void tell_vfork(void) {
    pid_t pid = vfork();
    if (pid == 0)
        _exit(3);
    int status;
    need(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
}
static void tell_posix_spawn(void) {
    need(posix_spawn(&other, "/bin/true", NULL, NULL, true_argv, no_environment) == 0);
}
static void tell_posix_spawnp(void) {
    need(posix_spawnp(&other, "true", NULL, NULL, true_argv, no_environment) == 0);
}
// glibc has them from 2.39 on, and PMAlloc anyhow.
static void spawn_with_fd(const char *name, const char *file) {
    int (*spawn)(int *, const char *, const void *, const void *, char **, char **), fd = -1;
    *(void **)&spawn = dlsym(RTLD_DEFAULT, name);
    need(spawn && spawn(&fd, file, NULL, NULL, true_argv, no_environment) == 0 && fd >= 0);
    siginfo_t info;
    need(waitid(P_PIDFD, (id_t)fd, &info, WEXITED) == 0 && info.si_status == 0);
}
static void tell_pidfd_spawn(void) { spawn_with_fd("pidfd_spawn", "/bin/true"); }
static void tell_pidfd_spawnp(void) { spawn_with_fd("pidfd_spawnp", "true"); }
static void tell_system(void) { need(system("true") == 0); }
static void tell_popen(void) { need(popen("true", "w") != NULL); }
#define ECHO "/bin/echo", "echo", "done"
static char *echo_argv[] = {"echo", "done", NULL};
static void tell_execve(void) { execve("/bin/echo", echo_argv, no_environment); }
static void tell_execv(void) { clearenv(), execv("/bin/echo", echo_argv); }
static void tell_execvp(void) { clearenv(), execvp("echo", echo_argv); }
static void tell_execvpe(void) { execvpe("echo", echo_argv, no_environment); }
static void tell_fexecve(void) { fexecve(open("/bin/echo", O_RDONLY), echo_argv, no_environment); }
static void tell_execveat(void) { execveat(-1, "/bin/echo", echo_argv, no_environment, 0); }
static void tell_execl(void) { clearenv(), execl(ECHO, (char *)NULL); }
static void tell_execlp(void) { clearenv(), execlp("echo", "echo", "done", (char *)NULL); }
static void tell_execle(void) { execle(ECHO, (char *)NULL, no_environment); }
static void tell_raw_execve(void) { syscall(SYS_execve, "/bin/echo", echo_argv, no_environment); }
static void tell_raw_execveat(void) {
    syscall(SYS_execveat, -1, "/bin/echo", echo_argv, no_environment, 0);
}
static void tell__exit(void) { _exit(0); }
static void tell__Exit(void) { _Exit(0); }
static void tell_raw_exit_group(void) { syscall(SYS_exit_group, 0); }

// ---- what does not ------------------------------------------------------------------------------

// Files and their names are the program's own affair.
static void silent_files(void) {
    char folder[] = "/tmp/tells.XXXXXX", path[64], second[64];
    need(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/a", folder);
    snprintf(second, sizeof second, "%s/b", folder);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    need(pwrite(fd, text, 4, 0) == 4 && pwritev2(fd, &vector, 1, 0, 0) > 0);
    need(write(fd, text, 4) == 4 && syscall(SYS_write, fd, text, 4) == 4);
    need(sendfile(plain_file(), fd, NULL, 0) == 0 && ftruncate(fd, 1) == 0);
    loff_t at = 0;
    copy_file_range(fd, &at, plain_file(), NULL, 1, 0);
    need(link(path, second) == 0 && unlink(second) == 0 && symlink(path, second) == 0);
    need(rename(second, path) == 0 && truncate("/dev/null", 0) <= 0 && unlink(path) == 0);
    need(mkdir(path, 0700) == 0 && rmdir(path) == 0 && rmdir(folder) == 0);
}
static void silent_reads(void) {
    char bytes[8];
    uint64_t count;
    struct iovec v = {bytes, sizeof bytes};
    need(preadv2(STDIN_FILENO, &v, 1, -1, RWF_NOWAIT) <= 0);
    need(eventfd_read(eventfd(1, 0), &count) == 0 && count == 1);
    syscall(SYS_preadv2, STDIN_FILENO, &v, 1, -1, -1, RWF_NOWAIT);
}
static void silent_memory(void) {
    sem_t *semaphore = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int id = shmget(IPC_PRIVATE, 4096, 0600);
    void *shared = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    need(sem_init(semaphore, 1, 0) == 0 && sem_post(semaphore) == 0 && shmdt(shared) == 0);
}
static void ignore(int number) { (void)number; }
static void silent_own_signals(void) {
    signal(SIGUSR1, ignore);
    need(raise(SIGUSR1) == 0 && kill(getpid(), SIGUSR1) == 0 && kill(other, 0) == 0);
    need(syscall(SYS_kill, getpid(), SIGUSR1) == 0);
    need(sigqueue(getpid(), SIGUSR1, (union sigval){0}) == 0);
}
static void silent_close(void) { need(close(ours) == 0 && close(to) == 0); }
static void silent_null(void) {
    int null = open("/dev/null", O_WRONLY);
    need(write(null, text, 1) == 1 && pwrite(null, text, 1, 0) == 1);
}
static void silent_questions(void) { need(system(NULL) != 0); }

// ---- modes --------------------------------------------------------------------------------------

// clang-format off
#define TELLS(X)                                                                                   \
    X(pwritev2) X(pwritev64v2) X(pwrite) X(pwritev) X(eventfd_write) X(write_eventfd)              \
    X(shutdown) X(connect) X(aio_write) X(lio_listio) X(syslog) X(vsyslog) X(io_uring_submit)      \
    X(io_submit) X(raw_io_submit) X(raw_io_uring_enter) X(msgsnd) X(raw_msgsnd) X(mq_send)         \
    X(mq_timedsend) X(raw_mq_timedsend) X(semop) X(semtimedop) X(raw_semop) X(kill) X(killpg)      \
    X(sigqueue) X(tgkill) X(pidfd_send_signal) X(raw_pidfd_send_signal) X(raw_kill)                \
    X(raw_tkill) X(raw_tgkill) X(raw_sigqueueinfo) X(raw_tgsigqueueinfo) X(fork) X(raw_fork)       \
    X(raw_clone) X(raw_clone3) X(clone) X(vfork) X(posix_spawn) X(posix_spawnp) X(pidfd_spawn)     \
    X(pidfd_spawnp) X(system) X(popen) X(execve) X(execv) X(execvp) X(execvpe) X(fexecve)          \
    X(execveat) X(execl) X(execlp) X(execle) X(raw_execve) X(raw_execveat) X(_exit) X(_Exit)       \
    X(raw_exit_group) X(raw_write)                                                                 \
    X(raw_writev) X(raw_pwrite64) X(raw_pwritev) X(raw_pwritev2) X(raw_sendto) X(raw_sendmsg)      \
    X(raw_sendmmsg) X(raw_sendfile) X(raw_splice) X(raw_tee) X(raw_vmsplice) X(raw_connect)        \
    X(raw_shutdown) X(raw_semtimedop)                                                              \
    X(fsync) X(fdatasync) X(syncfs) X(sync) X(msync) X(sync_file_range) X(aio_fsync) X(write_sync) \
    X(write_dsync) X(write_rwf_sync) X(write_rwf_dsync) X(write_by_stream) X(copy_file_range)      \
    X(fsync_of_a_pipe) X(raw_fsync) X(raw_fdatasync) X(raw_syncfs) X(raw_sync) X(raw_msync)        \
    X(raw_sync_file_range) X(raw_copy_file_range)
#define SILENT(X)                                                                                  \
    X(files) X(syncs) X(reads) X(memory) X(own_signals) X(close) X(null) X(questions)
// clang-format on
#define TELL_ROW(name) {#name, tell_##name},
#define SILENT_ROW(name) {#name, silent_##name},
static const struct way {
    const char *name;
    void (*go)(void);
} ways[] = {TELLS(TELL_ROW){"-", NULL}, SILENT(SILENT_ROW){NULL, NULL}};

static void prepare(void) {
    int ends[2];
    if (pipe(ends) != 0 || (other = fork()) < 0)
        exit(1);
    from = ends[0], to = ends[1];
    while (other == 0 && getppid() != 1) // it ends with its parent
        usleep(10000);
    if (other == 0)
        _exit(0);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        exit(1);
    ours = ends[0], theirs = ends[1];
}

int main(int argc, char **argv) {
    const struct way *way = ways;
    if (argc == 2 && strcmp(argv[1], "check") == 0)
        return printf("%llu\n", (unsigned long long)value) < 0;
    for (; argc == 2 && way->name; way++)
        puts(way->name);
    while (argc == 3 && way->name && strcmp(way->name, argv[1]) != 0)
        way++;
    if (argc != 3 || !way->go)
        return argc == 3;
    prepare();
    value = strtoull(argv[2], NULL, 10);
    way->go();
    finish("done\n");
}
