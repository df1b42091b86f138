/* tests/unit/core/test_process.c: descriptors, signals and exit codes of child processes, also with SIGCHLD ignored. */
#include "core/process/process.h"
#include "tests/harness/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 20, PAUSE_NS = 1000000 };

static int start_shell(const char *command, bool stops_with_parent, int output, pid_t *process) {
    const char *const               argv[]  = {"sh", "-c", command, NULL};
    const struct cr_process_program program = {.path              = "/bin/sh",
                                               .argv              = argv,
                                               .input             = -1,
                                               .output            = output,
                                               .errors            = -1,
                                               .stops_with_parent = stops_with_parent};
    return cr_process_start(&program, process);
}

/* The code of the process; -1 when it has not ended in time. */
static int code_of(pid_t process) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    int                   how;
    for (int64_t start = cr_time_ns(); cr_time_ns() - start < SECONDS * INT64_C(1000000000); nanosleep(&pause, NULL))
        if (cr_process_ended(process, &how)) return cr_process_code(how);
    return -1;
}

static int code_of_shell(const char *command) {
    pid_t process;
    return start_shell(command, false, -1, &process) == 0 ? code_of(process) : -2;
}

TEST(codes) {
    CHECK_INT(code_of_shell("exit 0"), 0);
    CHECK_INT(code_of_shell("exit 7"), 7);
    CHECK_INT(code_of_shell("kill -s TERM $$"), 128 + SIGTERM);
    CHECK_INT(code_of_shell("read line"), 1);                                    /* /dev/null */
    CHECK_INT(code_of_shell("test \"$(cut -d' ' -f5 /proc/$$/stat)\" = $$"), 0); /* leads its process group */
}

/* Emulators and the thread sanitizer replace vfork by fork. Then a program that cannot start ends with the code 127. */
static bool vfork_shares_memory(void) {
    volatile bool shared = false;
    const pid_t   child  = vfork();
    if (child == 0) {
        shared = true;
        _exit(0);
    }
    return child > 0 && waitpid(child, NULL, 0) == child && shared;
}

TEST(a_program_that_is_not_there) {
    const char *const               argv[]  = {"none", NULL};
    const struct cr_process_program program = {"/nowhere/none", argv, -1, -1, -1, false};
    pid_t                           process = 1;
    int                             how;
    if (!vfork_shares_memory()) SKIP("vfork() is fork() here: an emulator, or the thread sanitizer");
    CHECK_INT(cr_process_start(&program, &process), ENOENT);
    CHECK_INT(process, 0);
    CHECK(waitpid(-1, &how, WNOHANG) < 0 && errno == ECHILD); /* no child remains */
}

TEST(signals_wait_and_are_passed_on) {
    struct cr_process_signals signals;
    pid_t                     process;
    sigset_t                  mask;
    int                       got = 0, how;
    cr_process_signals_begin(&signals, NULL, 0);
    REQUIRE(start_shell("exec sleep 100", false, -1, &process) == 0);
    CHECK(!cr_process_ended(process, &how));
    (void)kill(getpid(), SIGTERM);
    while (!got) got = cr_process_wait(&signals, CR_PROCESS_POLL_MS);
    CHECK_INT(got, SIGTERM);
    (void)kill(process, got);
    CHECK_INT(code_of(process), 128 + SIGTERM);
    while (cr_process_wait(&signals, CR_PROCESS_POLL_MS)) CHECK(false); /* SIGCHLD is pending no more */
    cr_process_signals_end(&signals);
    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    CHECK(!sigismember(&mask, SIGTERM) && !sigismember(&mask, SIGCHLD));
}

/* A parent that is killed: its process gets SIGTERM, closes the pipe and ends. */
TEST(stops_with_its_parent) {
    int   ends[2], how;
    pid_t process;
    char  byte;
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t parent = fork();
    if (parent == 0) {
        if (start_shell("trap 'echo t; exit' TERM; while :; do sleep 0.01; done", true, ends[1], &process) != 0)
            _exit(1);
        for (;;) (void)pause();
    }
    close(ends[1]);
    (void)usleep(200000);
    (void)kill(parent, SIGKILL);
    REQUIRE(waitpid(parent, &how, 0) == parent && WIFSIGNALED(how));
    (void)alarm(SECONDS);
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 't');
    while (read(ends[0], &byte, 1) > 0) continue;
    (void)alarm(0);
    close(ends[0]);
}

/* A fork: its group, the mask that it was given, its code, and SIGTERM when its parent is killed. */
TEST(a_copy_of_this_process) {
    sigset_t mask, now;
    pid_t    first, second;
    (void)sigemptyset(&mask);
    (void)sigaddset(&mask, SIGUSR2);
    REQUIRE(cr_process_fork(CR_PROCESS_NEW_GROUP, &mask, &first) == 0);
    if (first == 0) {
        (void)pause();
        _exit(1);
    }
    CHECK_INT(getpgid(first), first);
    REQUIRE(cr_process_fork(first, &mask, &second) == 0);
    if (second == 0) {
        (void)sigprocmask(SIG_SETMASK, NULL, &now);
        _exit(getpgrp() == first && sigismember(&now, SIGUSR2) && !sigismember(&now, SIGTERM) ? 7 : 1);
    }
    CHECK_INT(cr_process_code(cr_process_finish(second)), 7);
    (void)kill(first, SIGTERM);
    CHECK_INT(cr_process_code(cr_process_finish(first)), 128 + SIGTERM);
}

TEST(a_copy_stops_with_its_parent) {
    int      ends[2];
    pid_t    copy;
    char     byte;
    sigset_t none;
    (void)sigemptyset(&none);
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t parent = fork();
    if (parent == 0) {
        if (cr_process_fork(CR_PROCESS_NEW_GROUP, &none, &copy) != 0) _exit(1);
        if (copy == 0 && write(ends[1], "c", 1) != 1) _exit(1);
        for (;;) (void)pause();
    }
    close(ends[1]);
    (void)alarm(SECONDS);
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'c');
    (void)kill(parent, SIGKILL);
    CHECK_INT(cr_process_code(cr_process_finish(parent)), 128 + SIGKILL);
    CHECK_INT(read(ends[0], &byte, 1), 0); /* the copy ended: nobody holds the pipe */
    (void)alarm(0);
    close(ends[0]);
}
