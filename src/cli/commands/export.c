/* cli/commands/export.c: cresnet export: writes a trained network as one file for other programs: weights as
 * safetensors, or graph and weights as ONNX. */
#include "checkpoint/checkpoint.h"
#include "cli/common/command.h"
#include "formats/json_write.h"
#include "model/onnx.h"
#include "quantization/quantization.h"
#include "session/checkpoint_tensors.h"
#include "session/saved_model.h"
#include "session/scores/reject.h"
#include "session/session.h"

#include <string.h>

/* ---- weights ---- */

static cr_status export_weights(const void *context, const char *file) {
    const struct cr_args *args  = context;
    struct cr_cmd_names   names = {0};
    struct cr_text        list  = {0};
    struct cr_json_writer w     = cr_json_writer(&list, CR_JSON_SPACED);
    char                  path[CR_PATH_MAX], chosen[CR_PATH_MAX];
    cr_status             status;
    if (args->overrides)
        return cr_args_fail(args, "%s: configuration keys can only be set for an ONNX file", args->override[0]);
    CR_TRY(cr_cmd_weights_choose(args, args->operand[0], chosen));
    CR_TRY_OUT(cr_ckpt_model_path(chosen, path));
    CR_TRY_OUT(cr_cmd_names_load(path, &names));
    if (names.count) cr_json_put_strings(&w, names.at, names.count);
    if (list.failed) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory: class names");
    CR_TRY_OUT(cr_ckpt_export_dense(path, file, list.data));
out:
    cr_text_free(&list);
    cr_arena_free(&names.arena);
    return status;
}

/* ---- ONNX ---- */

/* The sum of two products of u8 and 8-bit weights can exceed the 16 bits in which x86 processors without 8-bit dot
 * products add them. */
static void log_range(int integer_max) {
    if (integer_max > CR_QUANT_LEVELS_I7)
        cr_log(CR_LOG_INFO,
               "int8 weights of 8 bits: for GPUs, ARM, and x86 processors with VNNI; on other x86 processors "
               "set session.x64quantprecision=1 in onnxruntime, or export what `cresnet quantize "
               "--reduce-range` makes");
    else if (integer_max)
        cr_log(CR_LOG_INFO, "int8 weights of 7 bits: for all processors");
}

static cr_status write_onnx(const struct cr_args *args, struct cr_session *session, const struct cr_cmd_names *names,
                            const char *file) {
    struct cr_onnx_network network = {.prepare     = &session->prepare_eval,
                                      .fold        = cr_args_has(args, CR_OPT_FOLD),
                                      .preprocess  = cr_args_has(args, CR_OPT_PREPARE),
                                      .dynamic     = cr_args_has(args, CR_OPT_DYNAMIC),
                                      .classes     = session->model.classes,
                                      .class_names = names->count == session->model.classes ? names->at : NULL};
    struct cr_program      eval    = {0};
    float                 *value = NULL, *running = NULL;
    double                *thresholds = NULL;
    struct cr_reject       reject     = {0};
    int                    integer_max;
    cr_status              status;
    CR_TRY(cr_model_program(&session->model, session->config, CR_PROGRAM_EVAL, 1, &eval));
    CR_TRY_OUT(cr_state_buffer_copy(session, CR_BUFFER_VALUE, &value));
    CR_TRY_OUT(cr_state_buffer_copy(session, CR_BUFFER_RUNNING, &running));
    if (session->config->data.multi_label) {
        CR_ALLOC_OUT(thresholds, (size_t)network.classes);
        CR_TRY_OUT(cr_saved_model_thresholds(session->config->model.weights, network.classes, thresholds));
        network.thresholds = thresholds;
    }
    CR_TRY_OUT(cr_reject_load(session->config->model.weights, network.classes, &reject));
    if (reject.means) {
        network.reject_score     = cr_reject_score_name(reject.score);
        network.reject_threshold = reject.threshold;
        network.reject_means     = reject.score == CR_REJECT_DISTANCE ? reject.means : NULL;
        network.features         = reject.features;
    }
    network.eval    = &eval;
    network.value   = value;
    network.running = running;
    CR_TRY_OUT(cr_onnx_write(&network, file, &integer_max));
    log_range(integer_max);
out:
    cr_program_free(&eval);
    cr_free(value);
    cr_free(running);
    cr_free(thresholds);
    cr_reject_free(&reject);
    return status;
}

/* Loads the weights on the CPU in fp32, whatever device and precision training uses. */
static cr_status export_onnx(const void *context, const char *file) {
    const struct cr_args     *args = context;
    const struct cr_config   *config;
    struct cr_session         session = {0};
    struct cr_cmd_names       names   = {0};
    struct cr_session_options options = {.eval = true, .execute = true, .eval_batch = 1};
    cr_status                 status;
    CR_TRY(cr_cmd_config_of_weights(args, &config));
    CR_TRY_OUT(cr_config_change(&config, CR_CHANGES(CR_CMD_ON_CPU, "train.batch=1")));
    CR_TRY_OUT(cr_saved_model_classes(config, &options.classes));
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    CR_TRY_OUT(cr_cmd_names_load(config->model.weights, &names));
    CR_TRY_OUT(write_onnx(args, &session, &names, file));
out:
    cr_session_close(&session);
    cr_arena_free(&names.arena);
    cr_config_close(config);
    return status;
}

/* ---- the command ---- */

enum format { SAFETENSORS, ONNX, PYTORCH };

/* The format that the ending of a file name means; SAFETENSORS for all other endings. */
static enum format format_of(const char *file) {
    static const char *const pytorch[] = {".pth", ".pt", ".bin", ".ckpt", ".tar"};
    for (size_t i = 0; i < CR_COUNT(pytorch); i++)
        if (cr_ends_with(file, pytorch[i])) return PYTORCH;
    return cr_ends_with(file, ".onnx") ? ONNX : SAFETENSORS;
}

/* Checks the options, and sets *file and *onnx to the file to write and its format. */
static cr_status choose_output(const struct cr_args *args, const char **file, bool *onnx) {
    const char *weights = args->value[CR_OPT_EXPORT_FILE], *network = args->value[CR_OPT_ONNX];
    if (!weights && !network) return cr_args_fail(args, "no output given: give -o FILE or --onnx FILE");
    if (weights && network) return cr_args_fail(args, "-o and --onnx exclude each other: give one of them");
    *file = network ? network : weights;
    *onnx = network || format_of(weights) == ONNX;
    if (format_of(*file) == PYTORCH)
        return cr_args_fail(args,
                            "%s: this name is that of a PyTorch file, which cresnet does not write: give "
                            "-o FILE.safetensors, which safetensors.torch.load_file of Python reads "
                            "(`cresnet export FILE.pth -o FILE.safetensors` converts in the other direction)",
                            *file);
    if (network && strstr(network, ".safetensors"))
        return cr_args_fail(args, "--onnx %s: this name is that of a safetensors file: give -o %s, or --onnx FILE.onnx",
                            network, network);
    if (cr_args_has(args, CR_OPT_FOLD) && !*onnx)
        return cr_args_fail(args, "--fold needs --onnx: exported weights keep their batch normalisation");
    if ((cr_args_has(args, CR_OPT_PREPARE) || cr_args_has(args, CR_OPT_DYNAMIC)) && !*onnx)
        return cr_args_fail(args, "--preprocess and --dynamic need --onnx: a file of weights has no graph");
    return CR_OK;
}

cr_status cr_cmd_export(const struct cr_args *args, struct cr_result *out) {
    const char *file = NULL;
    bool        onnx = false;
    (void)out; /* writes files */
    if (!args->operands) return cr_args_fail(args, "no weights given: give a run folder or a file of weights");
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(choose_output(args, &file, &onnx));
    const enum cr_output_kind kind = onnx ? CR_OUTPUT_ONNX : CR_OUTPUT_SAFETENSORS;
    CR_TRY(cr_cmd_output_check(args, file, kind));
    CR_TRY(cr_cmd_write_with(args, file, kind, onnx ? export_onnx : export_weights, args));
    if (!cr_cmd_is_stdout(file)) cr_log(CR_LOG_INFO, "exported to %s", file);
    return CR_OK;
}
