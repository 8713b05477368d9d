// SPDX-License-Identifier: MIT
// Copyright (c) 2026 The PMAlloc authors

// A program that starts others in every way, under PMALLOC_FORK=follow. It prints what fails.
//
//   follow_exec            starts them
//   follow_exec check      prints the text that the root `kept` points to
//   follow_exec daemon     its child has the heap, and both start others
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char *kept;

static char *shell[] = {"sh", "-c", "echo deep | cat | sh -c 'cat > /dev/null; exit 3'", NULL};

static void expect(const char *what, int status, int wanted) {
    if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted)
        printf("%s: %x\n", what, status);
    fflush(stdout);
}

static int status_of(pid_t pid) {
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

// Several at a time: they meet at the heap.
static void fork_and_execute(void) {
    pid_t pid[4];
    for (int i = 0; i < 4; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            execvp(shell[0], shell);
            _exit(9);
        }
    }
    for (int i = 0; i < 4; i++)
        expect("fork and exec", status_of(pid[i]), 3);
}

static void start_others(void) {
    extern char **environ;
    char line[64] = "";
    pid_t pid;
    fork_and_execute();
    expect("system", system("echo a | cat > /dev/null; exit 4"), 4);
    FILE *from = popen("echo text | cat", "r");
    if (!from || !fgets(line, sizeof line, from) || strcmp(line, "text\n") != 0)
        printf("popen: %s\n", line);
    expect("pclose", from ? pclose(from) : -1, 0);
    if (posix_spawnp(&pid, shell[0], NULL, NULL, shell, environ) == 0)
        expect("posix_spawn", status_of(pid), 3);
    pid = vfork();
    if (pid == 0) {
        execvp(shell[0], shell);
        _exit(9);
    }
    expect("vfork", status_of(pid), 3);
    pid = fork(); // the child of a child
    if (pid == 0) {
        expect("system in a child", system("sh -c 'exit 5'"), 5);
        fork_and_execute();
        _exit(0);
    }
    expect("child", status_of(pid), 0);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "check") == 0)
        return puts(kept ? kept : "nothing") < 0;
    kept = strdup("kept");
    if (argc > 1) {
        pid_t pid = fork();
        strcpy(kept, pid ? "parent" : "child");
        start_others();
        if (pid == 0)
            _exit(0);
        expect("daemon", status_of(pid), 0);
    } else {
        start_others();
    }
    return 0;
}
