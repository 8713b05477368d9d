// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// One run of a scenario with a seed: the processes of the scenario one after the other, and a
// checker beside them. Prints what it did as lines of "key value", which tests/crash/run reads.
// Exit status: 0 good, 1 an image failed, 2 could not run.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image.h"
#include "media.h"
#include "program.h"
#include "record.h"
#include "scenarios.h"

static int world_fd = -1;
static pid_t checker;

static void die(const char *what) {
    fprintf(stderr, "crash: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void make_world(const char *root) {
    world_fd = memfd_create("world", 0);
    if (world_fd < 0 || ftruncate(world_fd, sizeof *world) != 0)
        die("memory");
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, world_fd, 0);
    if (world == MAP_FAILED)
        die("memory");
    media_init();
    char path[192];
    snprintf(world->root, sizeof world->root, "%s", root);
    mkdir(world->root, 0700);
    snprintf(path, sizeof path, "%s/heap", world->root);
    if (mkdir(path, 0700) != 0)
        die(path);
    snprintf(path, sizeof path, "%s/image", world->root);
    mkdir(path, 0700);
    world->medium_shadow = MEDIUM_HEAD;
    snprintf(path, sizeof path, "%s/dry", world->root);
    mkdir(path, 0700);
}

static void start_checker(const char *program) {
    int ends[2];
    char world_text[16], end_text[16];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        die("socketpair");
    checker = fork();
    if (checker == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        snprintf(world_text, sizeof world_text, "%d", world_fd);
        snprintf(end_text, sizeof end_text, "%d", ends[1]);
        execl(program, program, world_text, end_text, (char *)NULL);
        die(program);
    }
    close(ends[1]);
    image_connect(ends[0]);
}

static int wait_for(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void run_phase(const struct scenario *s, unsigned phase) {
    program_random = mix64(world->seed * 31 + phase);
    s->run(phase);
    _exit(record_complete() ? 0 : 5);
}

// Chooses where the phase ends. Runs it once on a copy of the world to see which places it visits,
// and picks a place and a visit.
static void choose_failure(const struct scenario *s, unsigned phase) {
    uint64_t *hits =
        mmap(NULL, SITES * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char command[512];
    snprintf(command, sizeof command,
             "rm -rf '%s/dry/heap' && cp -r --sparse=always '%s/heap' '%s/dry/heap'", world->root,
             world->root, world->root);
    if (hits == MAP_FAILED || system(command) != 0)
        die("a copy of the heap");
    uint64_t before[SITES];
    for (unsigned i = 0; i < SITES; i++)
        before[i] = s->kill ? world->site[i].dirty : world->site[i].hits;
    pid_t pid = fork();
    if (pid == 0) {
        if (mmap(world, sizeof *world, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, world_fd,
                 0) == MAP_FAILED)
            die("memory");
        strcat(world->root, "/dry");
        world->taking = false;
        program_random = mix64(world->seed * 31 + phase);
        s->run(phase);
        uint64_t begin = s->late && phase == 0 ? world->points / 4 : 0;
        for (unsigned i = 0; i < SITES; i++)
            if (!begin || (world->site[i].first >= begin && world->site[i].hits <= 4))
                hits[i] = (s->kill ? world->site[i].dirty : world->site[i].hits) - before[i];
        _exit(0);
    }
    if (wait_for(pid) != 0)
        fprintf(stderr, "crash: the trial run of phase %u failed\n", phase), exit(2);
    uint64_t random = mix64(world->seed ^ 0xfa11 ^ phase), places = 0, visits = 0;
    for (unsigned i = 0; i < SITES; i++)
        places += hits[i] != 0, visits += hits[i];
    if (!places)
        return; // the phase visits no place at which it may end, so it runs to its end
    // Each place is as likely as any other. For kills, three times in four each visit is.
    bool by_visit = s->kill && draw(&random, 4);
    uint64_t pick = draw(&random, by_visit ? visits : places);
    for (unsigned i = 0; i < SITES; i++) {
        uint64_t weight = by_visit ? hits[i] : hits[i] != 0;
        if (weight > pick) {
            world->fail_site = i;
            world->fail_hit = by_visit ? pick + 1 : 1 + draw(&random, hits[i]);
            break;
        }
        pick -= weight;
    }
    world->fail_power = !s->kill && draw(&random, 4) != 0;
    world->fail_dirty = s->kill;
    munmap(hits, SITES * 8);
}

// False when the run must end here.
static bool phase_of(const struct scenario *s, unsigned phase) {
    world->fail_hit = 0;
    world->taking = true;
    if (phase < s->failures)
        choose_failure(s, phase);
    fflush(NULL);
    pid_t pid = fork();
    program_later = s->later;
    if (pid == 0)
        run_phase(s, phase);
    int status = wait_for(pid);
    if (status == PHASE_FAILED)
        printf("ended %u %s %lx at %lu\n", phase, world->fail_power ? "power" : "killed",
               world->site[world->fail_site].pc, world->points);
    if (status == 0 || status == PHASE_FAILED)
        return true;
    if (world->failures < FAILURES) {
        struct failure *f = &world->failure[world->failures];
        f->point = world->points;
        snprintf(f->text, sizeof f->text, "process %u of the program ended with status %d", phase,
                 status);
    }
    world->failures++;
    return false;
}

static void report(void) {
    static const char *const kinds[] = {"flush", "drain", "file", "data", "store"};
    printf("images %lu\ndistinct %lu\npoints %lu\nfences %lu\nstores %lu\nmutated %lu\n",
           world->images, world->distinct, world->points, world->fences, world->stores,
           world->mutated);
    printf("operations %lu\nreopened %lu\nlooked %lu\nmax_dirty %lu\nmax_line %lu\n",
           world->operations, world->reopened, world->looked, world->max_dirty,
           world->max_line_stores);
    for (unsigned i = 0; i < world->site_count; i++)
        printf("site %s %lx %lu %lu\n", kinds[world->site[i].kind], world->site[i].pc,
               world->site[i].hits, world->site[i].images);
    for (unsigned i = 0; i < world->failures && i < FAILURES; i++)
        printf("failure %lu:%lu %s\n", world->failure[i].point, world->failure[i].index,
               world->failure[i].text);
}

static void set_mutation(const char *text) {
    static const char *const names[] = {"none", "drop-flush", "drop-drain", "late-flush",
                                        "drop-rename"};
    size_t len = strcspn(text, ":");
    for (unsigned i = 1; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == len && strncmp(text, names[i], len) == 0)
            world->mutation = (enum mutation)i;
    for (text += len; *text && world->mutant_count < MUTANT_PCS;) {
        char *end;
        world->mutant_pc[world->mutant_count++] = strtoull(text + 1, &end, 16);
        text = end;
    }
}

static const struct scenario *find(const char *name) {
    for (unsigned i = 0; i < scenario_count; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

static int usage(void) {
    fprintf(stderr,
            "usage: crash CHECKER DIR SCENARIO SEED [quota=N] [limit=N] [images=N] [eadr] [plain] "
            "[two] [fixed] [replay=POINT:INDEX] [mutate=OP:PC,PC...] [second]\n");
    return 2;
}

static bool option(const char *text) {
    unsigned long a, b;
    if (sscanf(text, "quota=%lu", &a) == 1)
        world->quota = a;
    else if (sscanf(text, "limit=%lu", &a) == 1)
        world->limit = a;
    else if (sscanf(text, "images=%lu", &a) == 1)
        world->max_images = a;
    else if (sscanf(text, "replay=%lu:%lu", &a, &b) == 2)
        world->replay_point = a, world->replay_index = b;
    else if (strncmp(text, "mutate=", 7) == 0)
        set_mutation(text + 7);
    else if (strcmp(text, "second") == 0)
        world->mutant_second = true;
    else if (strcmp(text, "eadr") == 0)
        world->eadr = true;
    else if (strcmp(text, "plain") == 0)
        world->plain = true;
    else if (strcmp(text, "two") == 0)
        world->two = true;
    else if (strcmp(text, "fixed") == 0)
        world->fixed = true;
    else
        return false;
    return true;
}

int main(int argc, char **argv) {
    static const char *const places[] = {"anywhere", "directory", "medium", "media"};
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (unsigned i = 0; i < scenario_count; i++)
            printf("%s\t%s\t%s\n", scenarios[i].name, scenarios[i].what,
                   places[scenarios[i].place]);
        return 0;
    }
    const struct scenario *s = argc >= 5 ? find(argv[3]) : NULL;
    if (!s)
        return usage();
    make_world(argv[2]);
    world->seed = strtoull(argv[4], NULL, 10);
    world->quota = 8;
    world->limit = 64;
    world->max_images = UINT64_MAX;
    world->replay_point = UINT64_MAX;
    for (int i = 5; i < argc; i++)
        if (!option(argv[i]))
            return usage();
    world->fixed = s->place >= MEDIUM || (world->fixed && s->place == ANYWHERE);
    world->two |= s->place == PAIR;
    start_checker(argv[1]);
    for (unsigned phase = 0;
         phase < s->phases && world->failures < (world->mutation ? 1 : FAILURES); phase++)
        if (!phase_of(s, phase))
            break;
    image_disconnect();
    wait_for(checker);
    report();
    return world->failures != 0;
}
