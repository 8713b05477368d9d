// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// Barnes-Hut N-body: the gravity of a Plummer sphere by leapfrog integration. Each step builds and
// frees an octree of nodes on the heap. The result does not depend on the number of threads. A task
// is a subtree or a range of bodies, every thread does the same arithmetic for it, and the results
// of tasks are summed in a fixed order.
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOP = 64, CHUNK = 64, DEEPEST = 60, MAX_THREADS = 64 };

static const double theta = 0.6, softening = 0.025, time_step = 0.0125, drift_limit = 0.02;

struct body {
    double mass, position[3], velocity[3], force[3];
    double potential;
};

struct node {
    double mass, center[3]; // the center of mass
    double width;           // 0 in a leaf
};

struct leaf {
    struct node node;
    struct body *body;
    struct leaf *same; // another body, so close that halving the cube does not separate the two
};

struct cell {
    struct node node;
    struct node *child[8];
};

struct cube {
    double corner[3], width;
};

static struct {
    struct body *bodies;
    uint32_t count, steps, threads;
    struct cube space;
    // top[]: the grandchildren of the root. Building or freeing one is a task.
    struct node *root, *top[TOP];
    uint32_t *order, first[TOP + 1]; // bodies of top[i]: order[first[i]] .. order[first[i + 1] - 1]
    uint32_t next_task;              // atomic
    pthread_barrier_t barrier;
} sim;

static void *must(void *p) {
    if (!p) {
        fprintf(stderr, "barnes: out of memory\n");
        exit(1);
    }
    return p;
}

static double uniform(void) {
    static uint64_t state = 20261120;
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

static void random_direction(double length, double v[3]) {
    double z = 2 * uniform() - 1, angle = 2 * M_PI * uniform(), r = sqrt(1 - z * z);
    v[0] = length * r * cos(angle);
    v[1] = length * r * sin(angle);
    v[2] = length * z;
}

// Makes a Plummer sphere in standard units (total mass 1, energy -1/4) without its outermost part.
// Speeds are drawn from q^2 (1 - q^2)^(7/2) by rejection.
static void make_bodies(void) {
    const double scale = 3 * M_PI / 16;
    sim.bodies = must(calloc(sim.count, sizeof *sim.bodies));
    double drift[3] = {0};
    for (uint32_t i = 0; i < sim.count; i++) {
        struct body *b = &sim.bodies[i];
        b->mass = 1.0 / sim.count;
        double r = 1 / sqrt(pow(0.01 + 0.98 * uniform(), -2.0 / 3) - 1), q, y;
        do {
            q = uniform();
            y = 0.1 * uniform();
        } while (y > q * q * pow(1 - q * q, 3.5));
        random_direction(r * scale, b->position);
        random_direction(q * sqrt(2) / pow(1 + r * r, 0.25) / sqrt(scale), b->velocity);
        for (int d = 0; d < 3; d++)
            drift[d] += b->velocity[d] / sim.count;
    }
    for (uint32_t i = 0; i < sim.count; i++)
        for (int d = 0; d < 3; d++)
            sim.bodies[i].velocity[d] -= drift[d];
}

// ---- The tree.

static unsigned octant(struct cube *c, const double position[3]) {
    unsigned which = 0;
    c->width /= 2;
    for (int d = 0; d < 3; d++)
        if (position[d] >= c->corner[d] + c->width) {
            c->corner[d] += c->width;
            which |= 1u << d;
        }
    return which;
}

static struct node *new_leaf(struct body *b) {
    struct leaf *l = must(malloc(sizeof *l));
    *l = (struct leaf){.node = {.mass = b->mass}, .body = b};
    memcpy(l->node.center, b->position, sizeof b->position);
    return &l->node;
}

static struct cell *new_cell(double width) {
    struct cell *c = must(calloc(1, sizeof *c));
    c->node.width = width;
    return c;
}

static void insert(struct node **place, struct body *b, struct cube c, unsigned depth) {
    for (;; depth++) {
        struct node *n = *place;
        if (!n) {
            *place = new_leaf(b);
            return;
        }
        if (n->width == 0 && depth >= DEEPEST) {
            struct leaf *l = (struct leaf *)n, *more = (struct leaf *)new_leaf(b);
            more->same = l->same;
            l->same = more;
            return;
        }
        // a cell takes the place of the leaf, and the leaf moves one level down
        if (n->width == 0) {
            struct cell *cell = new_cell(c.width);
            struct cube inner = c;
            cell->child[octant(&inner, ((struct leaf *)n)->body->position)] = n;
            *place = n = &cell->node;
        }
        place = &((struct cell *)n)->child[octant(&c, b->position)];
    }
}

static void gather(struct node *n, const struct node *part) {
    for (int d = 0; d < 3; d++)
        n->center[d] += part->mass * part->center[d];
    n->mass += part->mass;
}

static void divide_by_mass(struct node *n) {
    for (int d = 0; d < 3; d++)
        n->center[d] /= n->mass;
}

static void sum_masses(struct node *n) {
    if (n->width == 0) {
        struct leaf *l = (struct leaf *)n;
        if (!l->same)
            return;
        memset(n->center, 0, sizeof n->center);
        n->mass = 0;
        for (struct leaf *i = l; i; i = i->same)
            gather(n, &(struct node){.mass = i->body->mass,
                                     .center = {i->body->position[0], i->body->position[1],
                                                i->body->position[2]}});
    } else {
        struct cell *c = (struct cell *)n;
        for (int i = 0; i < 8; i++)
            if (c->child[i]) {
                sum_masses(c->child[i]);
                gather(n, c->child[i]);
            }
    }
    divide_by_mass(n);
}

static void free_tree(struct node *n) {
    if (!n)
        return;
    if (n->width == 0) {
        for (struct leaf *l = (struct leaf *)n, *same; l; l = same) {
            same = l->same;
            free(l);
        }
        return;
    }
    for (int i = 0; i < 8; i++)
        free_tree(((struct cell *)n)->child[i]);
    free(n);
}

static unsigned top_of(const double position[3], struct cube *c) {
    *c = sim.space;
    unsigned outer = octant(c, position);
    return outer * 8 + octant(c, position);
}

// Finds the cube of all bodies and sorts the bodies by the top subtree that contains them. The sort
// is stable, so each subtree gets its bodies in index order.
static void partition(void) {
    double low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < sim.count; i++)
        for (int d = 0; d < 3; d++) {
            low = fmin(low, sim.bodies[i].position[d]);
            high = fmax(high, sim.bodies[i].position[d]);
        }
    sim.space = (struct cube){{low, low, low}, (high - low) * 1.0001 + 1e-9};
    struct cube c;
    uint32_t at[TOP + 1] = {0};
    for (uint32_t i = 0; i < sim.count; i++)
        at[top_of(sim.bodies[i].position, &c) + 1]++;
    for (int i = 0; i < TOP; i++)
        at[i + 1] += at[i];
    memcpy(sim.first, at, sizeof at);
    for (uint32_t i = 0; i < sim.count; i++)
        sim.order[at[top_of(sim.bodies[i].position, &c)]++] = i;
}

static void build_top(uint32_t task) {
    struct node *n = NULL;
    for (uint32_t i = sim.first[task]; i < sim.first[task + 1]; i++) {
        struct body *b = &sim.bodies[sim.order[i]];
        struct cube c;
        top_of(b->position, &c);
        insert(&n, b, c, 2);
    }
    if (n)
        sum_masses(n);
    sim.top[task] = n;
}

static void join_tops(void) {
    struct cell *root = new_cell(sim.space.width);
    for (int i = 0; i < 8; i++) {
        struct cell *c = new_cell(sim.space.width / 2);
        for (int j = 0; j < 8; j++)
            if ((c->child[j] = sim.top[i * 8 + j]))
                gather(&c->node, c->child[j]);
        if (c->node.mass > 0) {
            divide_by_mass(&c->node);
            gather(&root->node, root->child[i] = &c->node);
        } else {
            free(c);
        }
    }
    divide_by_mass(&root->node);
    sim.root = &root->node;
}

static void free_top(uint32_t task) { free_tree(sim.top[task]); }

static void free_joints(void) {
    struct cell *root = (struct cell *)sim.root;
    for (int i = 0; i < 8; i++)
        free(root->child[i]);
    free(root);
    sim.root = NULL;
}

// ---- Forces.

static void attract(struct body *b, double mass, const double to[3]) {
    double x = to[0] - b->position[0], y = to[1] - b->position[1], z = to[2] - b->position[2];
    double inverse = 1 / sqrt(x * x + y * y + z * z + softening * softening);
    double pull = mass * inverse * inverse * inverse;
    b->force[0] += pull * x;
    b->force[1] += pull * y;
    b->force[2] += pull * z;
    b->potential -= mass * inverse;
}

static void force_of(struct body *b, const struct node *n) {
    if (n->width == 0) {
        for (const struct leaf *l = (const struct leaf *)n; l; l = l->same)
            if (l->body != b)
                attract(b, l->body->mass, l->body->position);
        return;
    }
    double x = n->center[0] - b->position[0], y = n->center[1] - b->position[1],
           z = n->center[2] - b->position[2];
    if (n->width * n->width < theta * theta * (x * x + y * y + z * z)) {
        attract(b, n->mass, n->center);
        return;
    }
    for (int i = 0; i < 8; i++)
        if (((const struct cell *)n)->child[i])
            force_of(b, ((const struct cell *)n)->child[i]);
}

static void force_chunk(uint32_t task) {
    for (uint32_t i = task * CHUNK; i < (task + 1) * CHUNK && i < sim.count; i++) {
        struct body *b = &sim.bodies[sim.order[i]];
        memset(b->force, 0, sizeof b->force);
        b->potential = 0;
        force_of(b, sim.root);
    }
}

// ---- Steps.

// The first thread alone moves the bodies. That is a thousandth of the work.
static void kick(double dt) {
    for (uint32_t i = 0; i < sim.count; i++)
        for (int d = 0; d < 3; d++)
            sim.bodies[i].velocity[d] += dt * sim.bodies[i].force[d];
}

static void drift(double dt) {
    for (uint32_t i = 0; i < sim.count; i++)
        for (int d = 0; d < 3; d++)
            sim.bodies[i].position[d] += dt * sim.bodies[i].velocity[d];
}

// All threads take tasks until none is left. Then the first thread runs `after` while the others
// wait.
static void phase(void (*task)(uint32_t), uint32_t tasks, bool first, void (*after)(void)) {
    for (;;) {
        uint32_t i = __atomic_fetch_add(&sim.next_task, 1, __ATOMIC_RELAXED);
        if (i >= tasks)
            break;
        task(i);
    }
    pthread_barrier_wait(&sim.barrier);
    if (first) {
        sim.next_task = 0;
        if (after)
            after();
    }
    pthread_barrier_wait(&sim.barrier);
}

static double energy(void) {
    double sum = 0;
    for (uint32_t i = 0; i < sim.count; i++) {
        const struct body *b = &sim.bodies[i];
        double v2 = b->velocity[0] * b->velocity[0] + b->velocity[1] * b->velocity[1] +
                    b->velocity[2] * b->velocity[2];
        sum += 0.5 * b->mass * (v2 + b->potential);
    }
    return sum;
}

static double energies[2];

static void before_steps(void) {
    free_joints();
    energies[0] = energy();
}

static void start_step(void) {
    kick(time_step / 2);
    drift(time_step);
    partition();
}

static void end_step(void) {
    free_joints();
    kick(time_step / 2);
}

static void no_task(uint32_t task) { (void)task; }

static void *simulate(void *argument) {
    bool first = argument != NULL;
    uint32_t chunks = (sim.count + CHUNK - 1) / CHUNK;
    for (uint32_t step = 0; step <= sim.steps; step++) {
        phase(no_task, 0, first, step ? start_step : partition);
        phase(build_top, TOP, first, join_tops);
        phase(force_chunk, chunks, first, NULL);
        phase(free_top, TOP, first, step ? end_step : before_steps);
    }
    return NULL;
}

static uint64_t checksum(void) {
    uint64_t h = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < sim.count; i++)
        for (int d = 0; d < 3; d++) {
            uint64_t bits;
            memcpy(&bits, &sim.bodies[i].position[d], sizeof bits);
            h = (h ^ bits) * 0x100000001b3u;
            h ^= h >> 29;
        }
    return h;
}

static bool option(const char *text, uint32_t low, uint32_t high, uint32_t *value) {
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    *value = (uint32_t)v;
    return *text >= '0' && *text <= '9' && !*end && !errno && v >= low && v <= high;
}

int main(int argc, char **argv) {
    sim.count = 16384;
    sim.steps = 40;
    sim.threads = 1;
    bool good = argc % 2 == 1;
    for (int i = 1; good && i + 1 < argc; i += 2)
        good = !strcmp(argv[i], "-n") ? option(argv[i + 1], 2, 100000000, &sim.count)
               : !strcmp(argv[i], "-s")
                   ? option(argv[i + 1], 0, 1000000, &sim.steps)
                   : !strcmp(argv[i], "-t") && option(argv[i + 1], 1, MAX_THREADS, &sim.threads);
    if (!good) {
        fprintf(stderr, "usage: barnes [-n BODIES] [-s STEPS] [-t THREADS]\n");
        return 2;
    }
    make_bodies();
    sim.order = must(malloc(sim.count * sizeof *sim.order));
    pthread_barrier_init(&sim.barrier, NULL, sim.threads);
    pthread_t id[MAX_THREADS];
    for (uint32_t i = 1; i < sim.threads; i++)
        if (pthread_create(&id[i], NULL, simulate, NULL)) {
            fprintf(stderr, "barnes: cannot start a thread\n");
            return 1;
        }
    simulate(&sim);
    for (uint32_t i = 1; i < sim.threads; i++)
        pthread_join(id[i], NULL);
    energies[1] = energy();
    double change = fabs((energies[1] - energies[0]) / energies[0]);
    printf("energy before %.9f after %.9f drift %.2e\n", energies[0], energies[1], change);
    printf("checksum %016llx\n", (unsigned long long)checksum());
    free(sim.order);
    free(sim.bodies);
    pthread_barrier_destroy(&sim.barrier);
    if (!(change <= drift_limit)) {
        printf("the energy drifts by more than %g\n", drift_limit);
        return 1;
    }
    return 0;
}
