/* cli/common/command.h: the commands, and helpers that several of them use: opening the configuration that the first
 * operand names, printing results.
 *
 * Invariants
 *   - Standard output carries results only. Everything else goes to standard error.
 *   - A command is one function of its parsed arguments. It never exits the program. */
#ifndef CR_COMMAND_H
#define CR_COMMAND_H

#include "cli/common/arguments.h"
#include "comm/launch/launcher.h"
#include "config/config.h"
#include "core/files.h"
#include "core/output_file.h"
#include "runtime/executor.h"

struct cr_confusion; /* session/scores/confusion.h */
struct cr_dataset;
struct cr_session;

/* ---- commands (cli/commands/, cli/bench/bench.c, cli/report/report.c) ---- */

/* Results of a command besides its status; all zero before it runs. */
struct cr_result {
    struct cr_text text;   /* printed when the command succeeds */
    int            signal; /* that ended the command; 0: none did */
};
/* Runs a command. */
typedef cr_status cr_command_fn(const struct cr_args *args, struct cr_result *out);
#define COMMAND(id, function, ...) cr_command_fn cr_cmd_##function;
#include "cli/common/commands.def"
#undef COMMAND

/* Runs the function of args->command and prints its text (cli/command_table.c). For main only. */
CR_MUST cr_status cr_command_run(const struct cr_args *args, int *signal_taken);
/* cli/moved.c: CR_ERR_USAGE when the words after the command's name have one that is a program of its own now; the
 * message names the program. For main only. */
CR_MUST cr_status cr_command_moved(enum cr_command_id command, int argc, char **argv);
/* Adds the text of `cresnet --version` (cli/common/version.c). */
void cr_help_version(struct cr_text *out);

/* ---- plan ---- */

/* cresnet plan --target: opens an offline device, which can be queried for kernels and workspace sizes but runs
 * nothing. *real becomes the data type of activations. The caller closes the device. CR_ERR_USAGE when the GPU is
 * unknown. */
CR_MUST cr_status cr_plan_target_open(const struct cr_args *args, const struct cr_config *config,
                                      struct cr_device **device, enum cr_dtype *real);
/* cresnet plan --target: adds the memory, the predicted time and the kernels of the program on the offline device. */
CR_MUST cr_status cr_plan_target_print(struct cr_session *session, const struct cr_program *program,
                                       struct cr_text *out);

/* ---- bench: the operand that named the benchmark is removed from args ---- */

/* cresnet bench step, bench infer; one operand: CONFIG or RUN. */
cr_status cr_bench_run(const struct cr_args *args, bool infer, struct cr_text *out);
/* cresnet bench data; one operand: CONFIG. */
cr_status cr_bench_data(const struct cr_args *args, struct cr_text *out);
/* Median of `count` times in nanoseconds, as milliseconds. Sorts the array. */
double cr_cmd_median_ms(int64_t *times, int64_t count);

/* ---- data ---- */

/* cresnet data stat and show (cli/commands/data_show.c); the only operand is a configuration or a folder. */
cr_status cr_data_stat(const struct cr_args *args, struct cr_text *out);
cr_status cr_data_show(const struct cr_args *args);
/* cresnet data verify for a data set (operand 0) that is not packed: decodes every image. *good becomes true when all
 * images can be read. */
CR_MUST cr_status cr_data_verify_set(const struct cr_args *args, bool json, struct cr_text *out, bool *good);

/* ---- output ---- */

/* Writes the text to standard output and frees it. CR_ERR_IO when it cannot be written. CR_ERR_INTERRUPTED when the
 * reader has closed the pipe; main then ends without a message, as SIGPIPE would. */
CR_MUST cr_status cr_cmd_print(struct cr_text *text);
/* Writes the text to standard error and frees it. For commands that write a file to standard output. */
void cr_cmd_print_aside(struct cr_text *text);
/* Writes the bytes to standard output, with the same errors. */
CR_MUST cr_status cr_cmd_print_bytes(const void *bytes, size_t count);
/* cli/common/output.c: returns whether the name of an output file means standard output: "-" or /dev/stdout. */
bool cr_cmd_is_stdout(const char *file);
/* Returns a word for a shell: with quotes if it has other characters than letters, digits and %+,-./:=@_. For commands
 * that the program suggests. */
const char *cr_cmd_shell_word(struct cr_arena *arena, const char *word);
/* cli/common/output.c: an operand that names an image. `-` and /dev/stdin become the path of a regular file with the
 * bytes of standard input, of which a pipe is read to its end; other operands stay. CR_ERR_USAGE when standard input is
 * a terminal. */
CR_MUST cr_status cr_cmd_input_image(const struct cr_args *args, const char **path);
/* Checks before the work whether the file that an option names may be written (core/output_file.h): --force of the
 * command replaces any file. Standard output always may. */
CR_MUST cr_status cr_cmd_output_check(const struct cr_args *args, const char *file, enum cr_output_kind kind);
/* Writes the text to the file that an option names, or to standard output, and frees it; the errors of cr_cmd_print. */
CR_MUST cr_status cr_cmd_write_file(const struct cr_args *args, const char *file, enum cr_output_kind kind,
                                    struct cr_text *text);
/* The same for a file that `write` creates or replaces at the path that it is given. For standard output and devices
 * this path lies in a temporary folder, which is removed. CR_ERR_USAGE when standard output is a terminal. */
CR_MUST cr_status cr_cmd_write_with(const struct cr_args *args, const char *file, enum cr_output_kind kind,
                                    cr_status (*write)(const void *context, const char *path), const void *context);

/* cli/common/csv_fields.c: adds a field of a CSV file, quoted as RFC 4180 says, as valid UTF-8. Spreadsheet programs
 * take a field that begins with = + - @, a tab or a line break for a formula, also in quotes. Names of files and
 * classes come from datasets of others: such a text begins with an apostrophe, such a path with "./", and so still
 * names the file. */
void cr_csv_add_text(struct cr_text *out, const char *text);
void cr_csv_add_path(struct cr_text *out, const char *path);
/* Adds the confusion matrix as a table: a row for each label, a column for each predicted class. With thousands of
 * classes, a list with a line for each cell that is not 0, by label and predicted class; the result is then true.
 * names: [classes] */
bool cr_csv_add_confusion(struct cr_text *out, const struct cr_confusion *confusion, const char *const *names);

/* ---- the configuration ---- */

/* The operand CONFIG|RUN of most commands. */
struct cr_cmd_source {
    char config[CR_PATH_MAX];  /* the INI file; for a run or step folder, the one stored there */
    char folder[CR_PATH_MAX];  /* the step folder, or "" when the operand is an INI file; of a run folder, the
                                  checkpoint that cr_cmd_checkpoint_find chooses */
    char weights[CR_PATH_MAX]; /* the operand when it is a file of weights in a step folder, else "" */
    bool stored; /* the configuration is that of a run which --resume continues; the run loads the weights itself */
    /* Borrowed; NULL at first. A configuration of this source: cr_cmd_config_open then reads no file again. */
    const struct cr_config *read;
};
/* Resolves operand 0: an INI file, a run or step folder, or a file of weights in a step folder. Without an operand, the
 * run that --resume PATH names. CR_ERR_USAGE without both. */
CR_MUST cr_status cr_cmd_source_find(const struct cr_args *args, struct cr_cmd_source *out);
/* Reads the configuration of a source with the overrides of the command line. `first` (may be NULL) is an override that
 * is applied before them. The weights of a folder are loaded unless the command line names others. For commands that
 * use trained weights, cr_cmd_weights_choose resolves model.weights. */
CR_MUST cr_status cr_cmd_config_open(const struct cr_args *args, const struct cr_cmd_source *source, const char *first,
                                     const struct cr_config **out);
/* cr_cmd_source_find and cr_cmd_config_open in one call. */
CR_MUST cr_status cr_cmd_config(const struct cr_args *args, const struct cr_config **out);
/* The same for commands that use trained weights. CR_ERR_USAGE without weights. */
CR_MUST cr_status cr_cmd_config_of_weights(const struct cr_args *args, const struct cr_config **out);
/* The keys with which a command computes on the CPU in fp32, whatever device and precision training uses. */
#define CR_CMD_ON_CPU "train.device=cpu", "train.precision=fp32", "memory.limit="
/* The keys with which a training does not prune. */
#define CR_CMD_NO_PRUNING                                                                                              \
    "prune.sparsity=0", "prune.initial=0", "prune.budget=", "prune.column=", "prune.schedule=gradual"
/* The format of a folder of images: `packed` if it holds train.crpk; `csv` if it holds train.csv and no folder train/,
 * next to which train.csv may be something else; `tar` if it or its folder train holds *.tar and no folders; otherwise
 * `folder`. */
enum cr_data_kind cr_cmd_data_kind(const char *folder);
/* The arguments after the first operand, which names a subcommand, such as `stat` of `cresnet data stat`. */
static inline struct cr_args cr_cmd_behind(const struct cr_args *args) {
    struct cr_args rest = *args;
    rest.operand++;
    rest.operands--;
    return rest;
}
/* The configuration that operand 0 names; a folder that holds no run is a data set of the kind that cr_cmd_data_kind
 * finds. */
CR_MUST cr_status cr_cmd_data_config(const struct cr_args *args, const struct cr_config **config);
/* cli/common/run_weights.c: chooses a checkpoint of a run folder: by --last or --step, else the best one, or the newest
 * one when the run has no best. `out` becomes a step folder, or "" with CR_OK when the folder holds no checkpoint. */
CR_MUST cr_status cr_cmd_checkpoint_find(const struct cr_args *args, const char *run, char out[CR_PATH_MAX]);
/* cli/common/run_weights.c: chooses the weights that `given` stands for and logs one line that names them. Of a run
 * folder, the checkpoint of cr_cmd_checkpoint_find; of a checkpoint, the moving averages when it has them, unless
 * --no-ema is given. Writes the path of a file of weights, or of a step folder whose model.safetensors is meant. A path
 * that does not exist is returned unchanged. CR_ERR_USAGE when an option does not apply to `given`, CR_ERR_CONFIG when
 * --ema is given and there are no averages. */
CR_MUST cr_status cr_cmd_weights_choose(const struct cr_args *args, const char *given, char path[CR_PATH_MAX]);
/* Path of an installed configuration of this name (PREFIX/share/cresnet/configs, found relative to the program; a
 * leading configs/ is ignored). `out` is "" when there is none. */
CR_MUST cr_status cr_cmd_installed_config(const char *name, char out[CR_PATH_MAX]);
/* The folder of the installed configurations. CR_ERR_CONFIG when there is none, as for a program in a build folder. */
CR_MUST cr_status cr_cmd_installed_configs(char out[CR_PATH_MAX]);

/* cli/common/launch_options.c: starts the ranks that --gpus, --ranks or a launcher request; --gpus sets the device of
 * config to cuda. As in cr_ranks_open: a process with out->parent has nothing left to do, and out->signal says which
 * signal ended the ranks; every other process ends with cr_ranks_close. */
CR_MUST cr_status cr_cmd_ranks_open(const struct cr_args *args, const struct cr_config **config, struct cr_ranks *out);

/* ---- classes ---- */

/* CR_ERR_USAGE when the folder `out`, which a command would create, lies in the folder of images that `dataset` was
 * opened from, where it would be a class or a part of one. */
CR_MUST cr_status cr_cmd_check_no_class(const struct cr_args *args, const struct cr_config *config,
                                        const struct cr_dataset *dataset, const char *out);

/* Number of classes, for commands that use the network but no data. When the data set is missing, 1000 is assumed and a
 * line says so. */
CR_MUST cr_status cr_cmd_classes(const struct cr_config *config, int *classes);

struct cr_cmd_names { /* names of classes */
    const char    **at;
    int             count;
    struct cr_arena arena; /* owns the names; freed by the caller */
};
/* Reads classes.txt in the folder of the model file; the count stays 0 when there is no such file. */
CR_MUST cr_status cr_cmd_names_load(const char *weights, struct cr_cmd_names *out);
/* The names of the checkpoint of the weights, else of the data set of the configuration; a missing data set is a
 * warning, and the count stays 0. */
CR_MUST cr_status cr_cmd_names_find(const struct cr_config *config, struct cr_cmd_names *out);
/* The name of a class; without one, "class N" in `buffer`. */
const char *cr_cmd_class_name(const struct cr_cmd_names *names, int label, char *buffer, size_t bytes);
/* What follows when the classes of a dataset have other names than those of the network: ends the warning of
 * cr_saved_model_number_classes. */
#define CR_CMD_SCORES_BY_NUMBER "the scores compare labels by number"
#define CR_CMD_GRADIENTS_BY_NUMBER "the gradients compare labels by number"
/* Copies the class names of a data set. */
CR_MUST cr_status cr_cmd_names_of(const struct cr_dataset *dataset, struct cr_cmd_names *out);

/* ---- programs without data ---- */

/* Random images, labels and crop boxes, in the shapes of a program's inputs. */
struct cr_cmd_batch {
    uint8_t *images; /* as program->tensor[images], NHWC */
    int32_t *labels; /* [N] */
    int32_t *boxes;  /* [N][4]: dy, dx, flip, 0 */
};
/* Random weights, to measure times. Those of a quantised network are read from model.weights, if there is one: kernels
 * take more time for some weights than for others. */
CR_MUST cr_status cr_cmd_init_weights(struct cr_session *session);
/* The caller frees *out with cr_cmd_batch_free. */
CR_MUST cr_status cr_cmd_random_batch(const struct cr_program *program, int classes, uint64_t seed,
                                      struct cr_cmd_batch *out);
void              cr_cmd_batch_free(struct cr_cmd_batch *batch);
/* Copies a random batch to the inputs of an executor. */
CR_MUST cr_status cr_cmd_feed_random(struct cr_exec *exec, const struct cr_program *program, int classes,
                                     uint64_t seed);
/* Step block of a first step at the full learning rate. */
struct cr_step_block cr_cmd_step_block(const struct cr_config *config);

/* ---- generated documents, made from the tables of commands, options and keys ---- */

void cr_doc_man_overview(struct cr_text *out); /* cli/docs/man.c: man pages as roff */
void cr_doc_man_command(enum cr_command_id id, struct cr_text *out);
void cr_doc_man_keys(struct cr_text *out);
void cr_doc_markdown_keys(struct cr_text *out); /* cli/docs/config_markdown.c: docs/reference/config.md */
void cr_doc_bash(struct cr_text *out);          /* cli/docs/completion.c: shell completion */
void cr_doc_zsh(struct cr_text *out);

/* CR_ERR_CONFIG when the folder holds a run or other files. */
CR_MUST cr_status cr_cmd_check_new_run(const char *folder);
/* Makes the run folder and locks it while `write` writes a checkpoint with this configuration there. A folder that was
 * made for it is removed after a failure. */
CR_MUST cr_status cr_cmd_write_new_run(const char *folder, const struct cr_config                    *config,
                                       cr_status (*write)(void *self, const char *config_text), void *self);

#endif
