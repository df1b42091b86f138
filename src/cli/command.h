/* cli/command.h: what the commands share: opening the configuration that the first operand names, results on standard
 * output.
 *
 * Laws
 *   - Standard output carries results only; all else goes to standard error.
 *   - A command is one function of its parsed arguments; it never exits. */
#ifndef CR_CMD_H
#define CR_CMD_H

#include "cli/arguments.h"
#include "comm/launch/launcher.h"
#include "config/config.h"
#include "core/files.h"
#include "runtime/executor.h"

cr_status cr_cmd_train(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_eval(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_predict(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_report(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_plan(const struct cr_args *args, int *signal_taken);
/* cresnet plan --trace */
cr_status cr_plan_trace(const struct cr_args *args);
struct cr_session;
struct cr_dataset;
/* cresnet plan --target: a device that only answers questions, in place of the session's; *real: the type of
 * activations. */
CR_MUST cr_status cr_plan_target_open(const struct cr_args *args, const struct cr_config *config,
                                      struct cr_device **device, enum cr_dtype *real);
/* What a run of the program there would need. */
CR_MUST cr_status cr_plan_target_print(struct cr_session *session, const struct cr_program *program,
                                       struct cr_text *out);
/* cresnet plan --curve: memory against predicted time of a program that is selected, by swapping alone. */
CR_MUST cr_status cr_plan_offload_curve(const struct cr_program *selected, const struct cr_cost_model *target,
                                        bool zero_copy, struct cr_text *out);
/* cresnet plan --csv FILE: the operand is a file of lives. */
bool      cr_plan_wants_lifetimes(const struct cr_args *args);
cr_status cr_plan_lifetimes_file(const struct cr_args *args);
cr_status cr_cmd_check(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_profile(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_bench(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_data(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_prune(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_export(const struct cr_args *args, int *signal_taken);
cr_status cr_cmd_help(const struct cr_args *args, int *signal_taken);

/* cresnet bench step, bench infer. */
cr_status cr_bench_run(const struct cr_args *args, bool infer);
/* cresnet bench init; its operands are configurations. */
cr_status cr_bench_init(const struct cr_args *args);
/* cresnet bench data; its operand is a configuration. */
cr_status cr_bench_data(const struct cr_args *args);
/* cresnet bench spdnn; no operand. */
cr_status cr_bench_spdnn(const struct cr_args *args);
/* cresnet bench sparse; no operand. */
cr_status cr_bench_sparse(const struct cr_args *args);
/* cresnet bench pools; its operand is a configuration. */
cr_status cr_bench_pools(const struct cr_args *args);
/* The configuration that operand 0 names; a folder without a run in it is one of pictures. */
CR_MUST cr_status cr_cmd_data_config(const struct cr_args *args, struct cr_config *config);
/* cresnet data stat; its second operand is a configuration or a folder. */
cr_status cr_data_stat(const struct cr_args *args);
/* cresnet data verify of a data set (operand 0) that is not packed: every picture is read; *good: none is unreadable.
 */
CR_MUST cr_status cr_data_verify_set(const struct cr_args *args, bool json, struct cr_text *out, bool *good);
/* Of nanoseconds; sorts them. */
double cr_cmd_median_ms(int64_t *times, int64_t count);

/* Writes the text to standard output and frees it. CR_ERR_IO when it cannot be written; CR_ERR_INTERRUPTED when the
 * reader has closed its end (main ends quietly, as SIGPIPE would have). */
CR_MUST cr_status cr_cmd_print(struct cr_text *text);

/* What the operand CONFIG|RUN of most commands is. */
struct cr_cmd_source {
    char *config;  /* path of the INI; the stored one of a run or step folder */
    char *folder;  /* the step folder, or NULL when the operand is an INI */
    char *weights; /* the operand, when it is a file of weights in a step folder; else NULL */
};
/* Operand 0 as an INI file, a run or step folder, or weights in a step folder. CR_ERR_USAGE when there is none.
 * cr_cmd_source_free it. */
CR_MUST cr_status cr_cmd_source_find(const struct cr_args *args, struct cr_cmd_source *out);
void              cr_cmd_source_free(struct cr_cmd_source *source);
/* Reads the source's config with the command line's overrides; `first` (may be NULL) is an override that comes before
 * them. A folder's own weights (--ema: its averages) are loaded unless the command line names others. */
CR_MUST cr_status cr_cmd_config_open(const struct cr_args *args, const struct cr_cmd_source *source, const char *first,
                                     struct cr_config *out);
/* What --ema means: ema.safetensors in the source's folder, which must be there. */
CR_MUST cr_status cr_cmd_ema_path(const struct cr_args *args, const struct cr_cmd_source *source,
                                  char path[CR_PATH_MAX]);
/* Both at once, for commands that do not care where the config came from. */
CR_MUST cr_status cr_cmd_config(const struct cr_args *args, struct cr_config *out);

/* cli/launch_options.c: the ranks that --gpus, --ranks or a launcher ask for; --gpus makes config's device cuda. As
 * cr_ranks_open: in a process with `parent` the command has been done, and *out says by which signal; elsewhere its end
 * is cr_ranks_close. */
CR_MUST cr_status cr_cmd_ranks_open(const struct cr_args *args, struct cr_config *config, struct cr_ranks *out);

/* Number of classes for commands that look at the network only: a data set that is not there is no reason to stop, 1000
 * are assumed then and a line says so. */
CR_MUST cr_status cr_cmd_classes(const struct cr_config *config, int *classes);

struct cr_cmd_names {
    const char    **at;
    int             count;
    struct cr_arena arena;
};
/* classes.txt in the folder of the model file; no names when it is not there. The caller frees the arena. */
CR_MUST cr_status cr_cmd_names_beside(const char *weights, struct cr_cmd_names *out);

/* The data set's; the caller frees the arena. */
CR_MUST cr_status cr_cmd_names_of(const struct cr_dataset *dataset, struct cr_cmd_names *out);
/* Number of classes that the classifier of config's weights has, unless model.classes says it. */
CR_MUST cr_status cr_cmd_classes_of_weights(const struct cr_config *config, int *classes);

/* For commands that run programs on no data: random pictures, labels and boxes for a program, the same brought into it,
 * and the step block of a first step at the full learning rate. */
struct cr_cmd_batch {
    uint8_t *images;
    int32_t *labels, *boxes;
};
CR_MUST cr_status    cr_cmd_random_batch(const struct cr_program *program, int classes, uint64_t seed,
                                         struct cr_cmd_batch *out);
void                 cr_cmd_batch_free(struct cr_cmd_batch *batch);
CR_MUST cr_status    cr_cmd_feed_random(struct cr_exec *exec, const struct cr_program *program, int classes,
                                        uint64_t seed);
struct cr_step_block cr_cmd_step_block(const struct cr_config *config);

/* What the build writes to files, made from the tables of commands, options and keys: man pages as roff
 * (cli/docs/man.c), docs/reference/config.md (cli/docs/config_markdown.c), completion for shells (cli/docs/completion.c). */
void cr_doc_man_overview(struct cr_text *out);
void cr_doc_man_command(enum cr_command_id id, struct cr_text *out);
void cr_doc_man_keys(struct cr_text *out);
void cr_doc_markdown_keys(struct cr_text *out);
void cr_doc_bash(struct cr_text *out);
void cr_doc_zsh(struct cr_text *out);
void cr_doc_fish(struct cr_text *out);

/* Path of the configuration of that name which came with the program (PREFIX/share/cresnet/configs, seen from where the
 * program lies; a leading configs/ is ignored); *out is NULL when there is none. cr_free it. */
CR_MUST cr_status cr_cmd_installed_config(const char *name, char **out);
/* Help and version, for cli/main.c. */
void cr_help_overview(struct cr_text *out);
void cr_help_version(struct cr_text *out);

#endif
