// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors
//
// pmalloc-run: starts a program with its heap on persistent memory.
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <unistd.h>

#include "base/options.h"
#include "common/cli.h"
#include "common/cli_pages.h"
#include "common/preloads.h"
#include "common/recipe.h"
#include "common/root_names.h"
#include "common/root_path.h"
#include "common/rooted.h"
#include "common/target.h"
#include "common/wrapper.h"
#include "doctor/doctor.h"
#include "media/backing/volume.h"
#include "notify/notify.h"
#include "roots/loaded_object.h"
#include "roots/spec.h"
#include "types/type_check.h"

enum { KEY_MAN_ENV = 256, KEY_RECIPE, KEY_RECIPES, KEY_TYPES, KEY_DOCTOR, KEY_NOTIFY, KEY_HEALTHY };
enum { OWN_FAILURE = 125 };

extern char **environ;

static const char *const synopsis[] = {
    "[-g] [-H DIR] [-r ROOTS] [-s NAME=VALUE]... [--types HOW] [--] PROGRAM [ARGUMENT]...",
    "--doctor [-H DIR] [-r ROOTS] [-s NAME=VALUE]... [--] PROGRAM [ARGUMENT]...",
    "--roots PROGRAM",
    "--recipe [--recipes DIR] [-H DIR] [-s NAME=VALUE]... [--] PROGRAM [ARGUMENT]...",
    "--recipe",
    NULL};

static const char *const description[] = {
    "Starts PROGRAM under libpmalloc_preload.so, with its heap in directory DIR. Address "
    "randomisation is off (unless PMALLOC_RANDOMIZE is 1), so that pointers from the heap into the "
    "program's code and globals are valid in the next run too. pmalloc-run replaces itself by "
    "PROGRAM, so the exit status is PROGRAM's.",
    "Settings are checked before the program starts. They go to it as environment variables. A "
    "variable that is set already is kept unless an option replaces it.",
    "Some programs cannot be given a heap. They are refused with one line that says why: programs "
    "that are statically linked, linked with musl, or built for another processor; programs with "
    "set-user-ID, set-group-ID or file capabilities; programs with a malloc of their own, for "
    "example because they are built with a sanitizer; and files that are no programs.",
    "If PROGRAM only starts another program, the heap is that one's: PMALLOC_PROGRAM is set to its "
    "name, and a note says so. This is done for timeout, env, nice, nohup, setsid, stdbuf, "
    "taskset, numactl, strace, ltrace, gdb, chrt, ionice and time. With other wrappers give -s "
    "PROGRAM=NAME. Write sudo before pmalloc-run.",
    "With --recipe the roots come from a file, which also says what else PROGRAM needs to go on "
    "with its data: settings, unless they are given here, and arguments, which come before yours. "
    "A recipe is found by the name of the program and its build id. A note says what is kept and "
    "what is not.",
    "If PROGRAM is a script, its interpreter gets the heap, and a note says so. What the "
    "interpreter starts runs on volatile memory, unless PMALLOC_PROGRAM says otherwise. If the "
    "interpreter is env(1), PMALLOC_PROGRAM is set to the program that env starts.",
    NULL,
};

static const struct cli_option options[] = {
    {'H', "heap", "HEAP",
     "The heap (PMALLOC_HEAP): a directory, which is made if it is missing, or a file or device of "
     "pmalloc-recover --make."},
    {'r', "roots", "ROOTS",
     "The roots, which keep data alive (PMALLOC_ROOTS): SPEC[,SPEC...] or @FILE. A SPEC may also "
     "be a member of a variable, as server.db or table[3].head, where PROGRAM has debug "
     "information (-g, or a file of a -dbgsym package). If nothing else is given, a program: its "
     "variables that can be named are printed, with their sizes and, if it is built with -g, "
     "their types; those that probably lead to its data come first. Of a stripped program these "
     "are ranges."},
    {'g', "gc", NULL,
     "Stand in for the Boehm collector (libgc.so.1 and libgccpp.so.1) too: PROGRAM's collected "
     "objects lie in the heap, and are collected there."},
    {KEY_RECIPE, "recipe", NULL,
     "Take the roots and what else PROGRAM needs from its recipe. If nothing else is given, the "
     "recipes that there are are printed."},
    {KEY_RECIPES, "recipes", "DIR", "Look for recipes in this directory first."},
    {'s', "set", "NAME=VALUE",
     "Any setting, with or without PMALLOC_ before NAME. It may be repeated."},
    {KEY_TYPES, "types", "check|ignore|off",
     "What is done about the types of the data, if PROGRAM was built with -g. check, which is the "
     "default: they are put on record; another build with other types is refused. ignore: what "
     "differs is said, and PROGRAM is started. off: no types are read or put on record."},
    {KEY_DOCTOR, "doctor", NULL,
     "Do not run PROGRAM, but say whether it can have a heap, which roots it seems to have, where "
     "the heap would lie and what would survive there, what to expect of the program's manners, "
     "and the line that starts it."},
    {KEY_NOTIFY, "notify", NULL,
     "For PROGRAM, which does not do it itself, tell the service manager that NOTIFY_SOCKET names "
     "how far it is: sd_notify(3). READY=1 when the heap is recovered and all roots are restored; "
     "WATCHDOG=1 while PROGRAM runs and is not stopped. A unit has Type=notify and "
     "NotifyAccess=all. Without NOTIFY_SOCKET nothing is told."},
    {KEY_HEALTHY, "healthy", "COMMAND",
     "With --notify: this command for /bin/sh must succeed before READY=1, and before each "
     "WATCHDOG=1."},
    {KEY_MAN_ENV, "man-env", NULL, "Print the manual page libpmalloc(7), in roff, and exit."},
    {0},
};

static const struct cli_status statuses[] = {
    {1, "--doctor: PROGRAM cannot be started with this heap or these roots."},
    {125, "pmalloc-run itself failed, or the library refused to start the program."},
    {126, "PROGRAM was found, but cannot be run, or cannot be given a heap."},
    {127, "PROGRAM was not found."},
    {0},
};

static const struct cli_example examples[] = {
    {"pmalloc-run -H /dev/shm/store -r store kvshell",
     "The program's global variable store, and all that it reaches, outlive the program."},
    {"pmalloc-run --recipe -H /dev/shm/redis redis-server",
     "redis goes on with its data, although it sets itself up in main."},
    {"pmalloc-run --notify --healthy 'redis-cli ping' --recipe -H /srv/redis redis-server",
     "The same as a service: systemd is told when redis answers with its data."},
    {"pmalloc-run --doctor -H /mnt/pmem/store app", "Can app be given a heap there, and how?"},
    {"pmalloc-run -H /mnt/pmem/h -r @roots.txt -s LIMIT=8G app",
     "The roots are the lines of roots.txt. The heap is at most 8 GiB."},
    {0},
};

static const struct cli_tool tool = {
    .name = "pmalloc-run",
    .summary = "Run a program with its heap on persistent memory.",
    .synopsis = synopsis,
    .description = description,
    .options = options,
    .statuses = statuses,
    .examples = examples,
    .see_also = "libpmalloc(7), pmalloc-recover(1), pmalloc-info(1), env(1)",
    .usage_status = OWN_FAILURE,
    .lists_settings = true,
    .stops_at_operand = true,
};

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pm_say("%s", text);
    exit(OWN_FAILURE);
}

// ---- settings -----------------------------------------------------------------------------------

// Returns an absolute path, with `before` in front of it. The program, or one that it starts, may
// have changed its directory when it reads the setting.
static const char *absolute(const char *path, const char *before) {
    char here[PATH_MAX];
    char *out;
    if (*path == '/')
        here[0] = '\0';
    else if (!getcwd(here, sizeof here))
        fail("the current directory has no name: %s", strerror(errno));
    if (asprintf(&out, "%s%s%s%s", before, here, *here ? "/" : "", path) < 0)
        fail("out of memory");
    return out;
}

static void set(const char *name, const char *value) {
    struct pm_error err;
    if (pm_option_set(name, value, &err) != PM_OK)
        fail("%s", err.text);
    if (strcmp(name, "PMALLOC_ROOTS") == 0) {
        if (root_paths_check(value, &err) != PM_OK)
            fail("PMALLOC_ROOTS: %s", err.text);
        value = *value == '@' ? absolute(value + 1, "@") : value;
    } else if (strcmp(name, "PMALLOC_HEAP") == 0) {
        if (pm_volume_check(value, &err) != PM_OK)
            fail("PMALLOC_HEAP=%s", err.text);
        value = absolute(value, "");
    }
    if (setenv(name, value, 1) != 0)
        fail("%s: %s", name, strerror(errno));
}

static void set_pair(const char *pair) {
    static const char prefix[] = "PMALLOC_";
    char name[128];
    size_t length = strcspn(pair, "=");
    bool full = strncmp(pair, prefix, sizeof prefix - 1) == 0;
    if (!pair[length] || length == 0)
        cli_wrong(&tool, "-s %.100s: write NAME=VALUE", pair);
    snprintf(name, sizeof name, "%s%.*s", full ? "" : prefix, (int)(length < 100 ? length : 100),
             pair);
    set(name, pair + length + 1);
}

static bool with_gc, with_recipe, with_doctor, with_notify, types_off, types_ignored;
static const char *roots, *recipes, *healthy;

static void take(int key, const char *value, void *arg) {
    (void)arg;
    switch (key) {
    case 'H':
        set("PMALLOC_HEAP", value);
        break;
    case 'r':
        roots = value;
        break;
    case 'g':
        with_gc = true;
        break;
    case 's':
        set_pair(value);
        break;
    case KEY_RECIPE:
        with_recipe = true;
        break;
    case KEY_RECIPES:
        recipes = value;
        break;
    case KEY_DOCTOR:
        with_doctor = true;
        break;
    case KEY_NOTIFY:
        with_notify = true;
        break;
    case KEY_HEALTHY:
        healthy = value;
        break;
    case KEY_TYPES:
        types_off = strcmp(value, "off") == 0;
        types_ignored = strcmp(value, "ignore") == 0;
        if (!types_off && !types_ignored && strcmp(value, "check") != 0)
            cli_wrong(&tool, "--types %s: use check, ignore or off", value);
        break;
    default:
        cli_man_settings();
        exit(cli_flush(0, OWN_FAILURE));
    }
}

// ---- the library --------------------------------------------------------------------------------

// Switches address randomisation off; the program inherits that. A container may forbid it. Then
// the heap's data is still good, but its pointers into code are not. The library finds and reports
// that itself.
static void fix_addresses(void) {
    if (pm_options.randomize.number)
        return;
    int now = personality(0xffffffff);
    if (now < 0 || personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
        pm_say("note: address randomisation cannot be switched off here (%s); so each start "
               "changes the words of the heap that lead into the program",
               strerror(errno));
}

// Prints the note for a script. If its interpreter is env, env itself must not get the heap,
// because it does not have the program's roots.
static void note_script(const struct target *target) {
    bool env = *target->env_program != '\0';
    if (env && setenv("PMALLOC_PROGRAM", target->env_program, 1) != 0)
        fail("PMALLOC_PROGRAM: %s", strerror(errno));
    pm_say("note: %.200s is a script: the heap is that of its interpreter, %s%s", target->path,
           env ? target->env_program : target->interpreter,
           env ? " (PMALLOC_PROGRAM), which env starts" : "");
}

// The program that a wrapper starts. Ends the tool if there is none.
static void find_inner(const char *wrapper, const char *program, struct target *inner) {
    char why[512];
    int status = target_find(program, inner, why, sizeof why);
    if (status == 0)
        return;
    pm_say("%.100s starts %s", wrapper, why);
    exit(status);
}

// The program of a command line like `timeout 5 app`: app gets the heap, timeout does not. Returns
// its path; NULL: there is none.
static const char *look_behind_wrapper(char **argv) {
    static struct target inner;
    char real[PATH_MAX];
    const char *program, *wrapper = pm_base_name(argv[0]);
    enum wrapper_kind kind = wrapper_find(argv, &program);
    if (kind == WRAPPER_NONE || *pm_options.program.text)
        return NULL;
    if (kind == WRAPPER_CLEARS)
        fail("%.100s clears the environment, and with it the settings of the heap; write "
             "`%.100s ... pmalloc-run ... %.200s`",
             wrapper, wrapper, program);
    find_inner(wrapper, program, &inner);
    const char *path = *inner.interpreter ? inner.interpreter : inner.path;
    const char *name =
        *inner.env_program ? inner.env_program : pm_base_name(realpath(path, real) ? real : path);
    if (setenv("PMALLOC_PROGRAM", name, 1) != 0)
        fail("PMALLOC_PROGRAM: %s", strerror(errno));
    pm_say("note: %.100s starts %.200s: the heap is that one's (PMALLOC_PROGRAM=%.200s)", wrapper,
           program, name);
    return *inner.env_program ? NULL : path == inner.path ? inner.path : inner.interpreter;
}

// ---- roots --------------------------------------------------------------------------------------

// The program whose variables the roots are. `inner`: what a wrapper starts. NULL: it is not known,
// because PMALLOC_PROGRAM names another one than is started here.
static const char *roots_program(const struct target *target, const char *inner, char **argv) {
    static struct target found;
    char why[512];
    const char *own = pm_options.program.text, *program = *target->env_program ? target->env_program
                                                          : *target->interpreter
                                                              ? target->interpreter
                                                              : target->path;
    if (inner)
        return inner;
    if (*own && fnmatch(own, pm_base_name(program), 0) != 0 &&
        (wrapper_find(argv, &program) == WRAPPER_NONE ||
         fnmatch(own, pm_base_name(program), 0) != 0))
        return NULL;
    if (strchr(program, '/'))
        return program;
    return target_find(program, &found, why, sizeof why) == 0 ? found.path : NULL;
}

// The library knows no types, so member paths become offsets here.
static void resolve_roots(const struct target *target, const char *inner, char **argv) {
    static struct pm_spec specs[PM_ROOT_MAX];
    const char *value = pm_options.roots.text, *program = roots_program(target, inner, argv);
    struct pm_error err;
    char *resolved = NULL;
    size_t count;
    if (!*value)
        return;
    int status = program ? root_paths_read(value, program, &resolved, &err) : PM_OK;
    if (status == PM_OK)
        status = pm_spec_parse(resolved ? resolved : value, specs, PM_ROOT_MAX, &count, &err);
    if (status != PM_OK && !program && root_paths_check(value, &err) == PM_OK)
        fail("PMALLOC_ROOTS: the program that PMALLOC_PROGRAM=%.100s means is not known here, and "
             "so its members are not; write SYMBOL+OFFSET/LENGTH",
             pm_options.program.text);
    if (status != PM_OK)
        fail("PMALLOC_ROOTS: %s", err.text);
    if (resolved)
        set("PMALLOC_ROOTS", resolved);
}

// ---- what can be named --------------------------------------------------------------------------

static int list_roots(const char *program) {
    struct target target;
    struct root_names names;
    struct pm_error err;
    char why[512];
    int status = target_find(program, &target, why, sizeof why);
    const char *path = *target.interpreter ? target.interpreter : target.path;
    if (status == 0 && root_names_find(path, &names, &err) != PM_OK) {
        snprintf(why, sizeof why, "%s", err.text);
        status = TARGET_CANNOT_RUN;
    }
    if (status != 0) {
        pm_say("%s", why);
        return status;
    }
    root_names_print(&names, pm_base_name(path));
    return cli_flush(0, OWN_FAILURE);
}

// Whether all roots that are named are whole objects.
static bool only_scanned(const char *text) {
    static struct pm_spec specs[PM_ROOT_MAX];
    struct pm_error ignored;
    size_t count = 0;
    if (pm_spec_parse(text, specs, PM_ROOT_MAX, &count, &ignored) != PM_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (specs[i].kind != PM_ROOT_OBJECT)
            return false;
    return count != 0;
}

// A heap that the user has named, and that nothing will reach, or nothing that is restored. A
// program that calls pmalloc.h sets its roots itself.
static void warn_rootless(const char *path) {
    struct root_names names;
    struct pm_error ignored;
    char likely[300];
    const struct pm_options *o = &pm_options;
    const char *heap = *o->heap.text ? o->heap.text : o->commit_dir.text;
    bool scanned = only_scanned(o->roots.text);
    if (!*heap || (*o->roots.text && !scanned) || with_gc || o->open.number == PM_OPEN_PRIVATE ||
        o->backing.number == PM_BACKING_VOLATILE || o->rootless.number == PM_ROOTLESS_QUIET ||
        !rooted_is_not(heap) || root_names_find(path, &names, &ignored) != PM_OK ||
        names.cooperates)
        return;
    root_names_likely(&names, likely, sizeof likely);
    if (scanned) {
        pm_say("note: the root * keeps alive what variables lead to, but restores no variable, so "
               "the next run will find nothing of it; name the variables too%s%s (`pmalloc-run "
               "--roots %.200s` lists what can be named)",
               *likely ? ", such as one of " : "", likely, path);
        return;
    }
    pm_say("no root is named, and %.200s has none: the next run will find nothing of it; give -r "
           "NAME%s%s%s (`pmalloc-run --roots %.200s` lists what can be named)",
           heap, *likely ? ", such as one of " : "", likely, *likely ? "" : "", path);
}

// Another build of the program must have the types that the heap's data are of.
static void check_types(const struct target *target, const char *inner, char **argv) {
    struct pm_error err;
    const char *program = types_off ? NULL : roots_program(target, inner, argv);
    if (program && type_check(program, types_ignored, &err) != PM_OK)
        fail("%s", err.text);
}

// ---- recipes ------------------------------------------------------------------------------------

// The user's directory, then those of the installation and of a build tree.
static const struct recipe_places *recipe_places(void) {
    static char installed[PATH_MAX + 32], built[PATH_MAX + 32];
    static struct recipe_places places;
    struct pm_error err;
    char self[PATH_MAX];
    if (preloads_folder(self, &err) != PM_OK)
        fail("%s", err.text);
    snprintf(installed, sizeof installed, "%s../share/pmalloc/recipes", self);
    snprintf(built, sizeof built, "%s../tools/recipes", self);
    places.dir[0] = recipes;
    places.dir[1] = access(installed, F_OK) == 0 ? installed : NULL;
    places.dir[2] = access(built, F_OK) == 0 ? built : NULL;
    return &places;
}

static int list_recipes(void) {
    struct pm_error err;
    if (recipe_list(recipe_places(), &err) != PM_OK)
        fail("%s", err.text);
    return cli_flush(0, OWN_FAILURE);
}

// Finds the recipe of the program, which a wrapper may start. Returns its word of the command line.
static size_t find_recipe(const struct target *target, char **argv, struct recipe *recipe) {
    struct target inner;
    struct pm_error err;
    const char *program = argv[0];
    size_t at = 0;
    if (wrapper_find(argv, &program) != WRAPPER_NONE) {
        find_inner(pm_base_name(argv[0]), program, &inner);
        target = &inner;
        while (argv[at] != program)
            at++;
    }
    if (recipe_find(recipe_places(), pm_base_name(program), target->path, recipe, &err) != PM_OK)
        fail("%s", err.text);
    return at;
}

// Settings that the user has given stay. Returns the command line, with the recipe's arguments.
static char **follow_recipe(const struct target *target, char **argv) {
    static struct recipe recipe;
    struct pm_error err;
    size_t count = 0;
    char name[128];
    if (getenv("PMALLOC_ROOTS"))
        fail("--recipe names the roots: leave out -r and PMALLOC_ROOTS");
    size_t before = find_recipe(target, argv, &recipe) + 1; // words before the recipe's arguments
    set("PMALLOC_ROOTS", recipe.roots);
    if (*recipe.library && preloads_add(recipe.library, &err) != PM_OK) // our own comes before it
        fail("%s", err.text);
    for (size_t i = 0; i < recipe.settings; i++) {
        snprintf(name, sizeof name, "PMALLOC_%.*s", (int)strcspn(recipe.setting[i], "="),
                 recipe.setting[i]);
        if (!getenv(name))
            set_pair(recipe.setting[i]);
    }
    while (argv[count])
        count++;
    char **all = calloc(count + recipe.arguments + 1, sizeof *all);
    if (!all)
        fail("out of memory");
    memcpy(all, argv, before * sizeof *all);
    memcpy(all + before, recipe.argument, recipe.arguments * sizeof *all);
    memcpy(all + before + recipe.arguments, argv + before, (count - before) * sizeof *all);
    pm_say("note: recipe for %.200s, %.200s: keeps %.400s%s%.400s", recipe.program, recipe.build,
           recipe.keeps, *recipe.loses ? "; does not keep " : "", recipe.loses);
    return all;
}

static int look_only(char **command) {
    struct pm_error err;
    if (pm_options_load(environ, &err) != PM_OK)
        fail("%s", err.text);
    return cli_flush(doctor(command, recipe_places()), OWN_FAILURE);
}

int main(int argc, char **argv) {
    struct target target;
    struct pm_error err;
    char why[512];
    pm_message_prefix = tool.name;
    pm_options_default();
    int operand = cli_parse(&tool, argc, argv, take, NULL);
    if (operand == argc && roots)
        return list_roots(roots);
    if (operand == argc && with_recipe)
        return list_recipes();
    if (roots)
        set("PMALLOC_ROOTS", roots);
    if (operand == argc)
        cli_wrong(&tool, "name the program to run");
    if (healthy && !with_notify)
        cli_wrong(&tool, "--healthy goes with --notify");
    if (with_doctor)
        return look_only(argv + operand);
    int status = target_find(argv[operand], &target, why, sizeof why);
    if (status != 0) {
        pm_say("%s", why);
        return status;
    }
    char **command = argv + operand;
    if (with_recipe)
        command = follow_recipe(&target, command);
    if (pm_options_load(environ, &err) != PM_OK)
        fail("%s", err.text);
    if (*target.interpreter && !*pm_options.program.text)
        note_script(&target);
    const char *inner = *target.interpreter ? NULL : look_behind_wrapper(command);
    resolve_roots(&target, inner, command);
    if (!*target.env_program && (inner || !*pm_options.program.text))
        warn_rootless(inner ? inner : *target.interpreter ? target.interpreter : target.path);
    check_types(&target, inner, command);
    const char *library = preloads_find(with_gc, &err);
    if (!library || (with_gc && preloads_stand_in(library, &err) != PM_OK) ||
        preloads_add(library, &err) != PM_OK)
        fail("%s", err.text);
    fix_addresses();
    if (with_notify && notify_begin(getenv("PMALLOC_PROGRAM"), healthy, &err) != PM_OK)
        fail("%s", err.text);
    execvp(target.path, command);
    status = errno;
    pm_say("%s: %s", target.path, strerror(status));
    return status == ENOENT ? TARGET_NOT_FOUND : TARGET_CANNOT_RUN;
}
