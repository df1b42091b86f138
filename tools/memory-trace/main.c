/* tools/memory-trace/main.c: cresnet-memory-trace: selects the command that the first operand names. */
#include "tools/memory-trace/commands.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    cr_status (*run)(const struct cr_tool_args *args);
    const char *options; /* that it reads, each between blanks */
} commands[] = {
    {"log", cr_trace_command_log, " device threads batch "},
    {"plan", cr_trace_command_plan, " alignment csv json "},
    {"offsets", cr_trace_command_offsets, " capacity time-limit "},
    {"offloading", cr_trace_command_offloading, " device threads batch target "},
    {"allocators", cr_trace_command_allocators, " device threads batch steps json "},
};

static cr_status check_options(const struct cr_tool_args *args, size_t command) {
    for (int i = 0; args->tool->option[i].name; i++) {
        char word[40];
        snprintf(word, sizeof word, " %s ", args->tool->option[i].name);
        if (args->value[i] && !strstr(commands[command].options, word))
            return cr_tool_fail(args, "--%s is not an option of %s: leave it out", args->tool->option[i].name,
                                commands[command].name);
    }
    return CR_OK;
}

static cr_status run(const struct cr_tool_args *args) {
    CR_TRY(cr_tool_operands(args, 1, 2));
    for (size_t i = 0; i < CR_COUNT(commands); i++) {
        if (strcmp(args->cli.operand[0], commands[i].name) != 0) continue;
        CR_TRY(cr_tool_operands(args, 2, 2));
        CR_TRY(check_options(args, i));
        return commands[i].run(args);
    }
    return cr_tool_fail(args, "unknown command %s: give log, plan, offsets, offloading or allocators",
                        args->cli.operand[0]);
}

static const struct cr_tool_option options[] = {
    {"alignment", "BYTES", NULL, "plan: alignment of blocks (default: 64)"},
    {"csv", NULL, NULL, "plan: print the planned lifetimes as CSV"},
    {"json", NULL, NULL, "plan, allocators: print one line of JSON"},
    {"capacity", "N", NULL, "offsets: size that the plan must not exceed (default: as small as possible)"},
    {"time-limit", "S", NULL, "offsets: seconds to search; 0 for the greedy plan only (default: 60)"},
    {"steps", "N", NULL, "allocators: number of timed steps (default: 20)"},
    {"target", "GPU", NULL, "offloading: predict for a GPU that this machine does not have"},
    {"device", "NAME", "train.device", "cpu or cuda (default: a GPU if there is one)"},
    {"threads", "N", "train.threads", "threads of the CPU"},
    {"batch", "N", "train.batch", "images of a training step"},
    {NULL, NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    static const struct cr_tool tool = {
        .name = "cresnet-memory-trace",
        .operands =
            "log|offloading|allocators CONFIG|RUN | plan LOG | offsets FILE.csv [options] [section.key=value ...]",
        .about  = "log CONFIG|RUN         writes the memory log of three training steps (CSV: time,event,id,size)\n"
                  "plan LOG               finds the iteration in the memory log of any program, and plans its memory\n"
                  "offsets FILE.csv       plans offsets for the lifetimes of any program (CSV: id,lower,upper,size)\n"
                  "offloading CONFIG|RUN  predicted time against memory for each rule that selects tensors to offload\n"
                  "allocators CONFIG|RUN  the memory plan of a training step and online allocators\n",
        .option = options,
        .run    = run,
    };
    return cr_tool_main(&tool, argc, argv);
}
