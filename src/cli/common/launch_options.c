/* cli/common/launch_options.c: --gpus and --ranks: the number of processes (GPUs) that a command starts. */
#include "cli/common/command.h"

#include "core/process/process.h"
#include "device/device.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct gpu_count {
    int  count;
    char why[200]; /* when count is 0: the reason */
};

/* Counts GPUs in a child process: a process that has opened the CUDA driver must not fork ranks. */
static cr_status count_gpus(struct gpu_count *out) {
    int      ends[2];
    sigset_t mask;
    pid_t    pid;
    if (pipe(ends) != 0) return CR_FAIL(CR_ERR_IO, "--gpus all: cannot make a pipe");
    (void)sigprocmask(SIG_SETMASK, NULL, &mask);
    fflush(NULL);
    const bool started = cr_process_fork(getpgrp(), &mask, &pid) == 0;
    if (started && pid == 0) {
        struct gpu_count answer = {.count = cr_device_count(CR_DEVICE_CUDA)};
        if (!answer.count && cr_device_check(CR_DEVICE_CUDA) != CR_OK) cr_error_copy(answer.why, sizeof answer.why);
        _exit(write(ends[1], &answer, sizeof answer) == sizeof answer ? 0 : 1);
    }
    close(ends[1]);
    struct gpu_count answer   = {0};
    const bool       complete = started && read(ends[0], &answer, sizeof answer) == sizeof answer;
    close(ends[0]);
    if (started) (void)cr_process_finish(pid);
    if (!complete) return CR_FAIL(CR_ERR_DEVICE, "--gpus all: cannot count the GPUs (try nvidia-smi)");
    *out = answer;
    return CR_OK;
}

static cr_status read_gpus(const struct cr_args *args, const struct cr_config **config,
                           struct cr_ranks_request *request) {
    int64_t number;
    if ((*config)->train.device == CR_DEVICE_CPU)
        return cr_args_fail(args, "--gpus cannot be used with device cpu: --ranks N starts N processes on the CPU");
    if (strcmp(args->value[CR_OPT_GPUS], "all") == 0) {
        struct gpu_count gpus;
        CR_TRY(count_gpus(&gpus));
        if (!gpus.count) return CR_FAIL(CR_ERR_DEVICE, "--gpus all: no GPU found. %s", gpus.why);
        number = gpus.count - (*config)->train.gpu;
        if (number < 1)
            return CR_FAIL(CR_ERR_CONFIG, "--gpus all: train.gpu = %d, but this machine has %d GPUs, numbered from 0",
                           (int)(*config)->train.gpu, gpus.count);
    } else
        CR_TRY(cr_args_int(args, CR_OPT_GPUS, 1, CR_COMM_RANKS_MAX, 1, &number));
    request->fork = (int)number;
    request->gpus = true;
    return cr_config_change(config, CR_CHANGES("train.device=cuda"));
}

cr_status cr_cmd_ranks_open(const struct cr_args *args, const struct cr_config **config, struct cr_ranks *out) {
    struct cr_ranks_request request = {0};
    int64_t                 ranks;
    *out = (struct cr_ranks){0};
    if (cr_args_has(args, CR_OPT_GPUS) && cr_args_has(args, CR_OPT_RANKS))
        return cr_args_fail(args, "--gpus and --ranks exclude each other: give one of them");
    CR_TRY(cr_args_int(args, CR_OPT_RANKS, 1, CR_COMM_RANKS_MAX, 0, &ranks));
    request.fork = (int)ranks;
    if (cr_args_has(args, CR_OPT_GPUS)) CR_TRY(read_gpus(args, config, &request));
    return cr_ranks_open(&request, *config, out);
}
