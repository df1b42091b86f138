/* cli/commands/check.c: cresnet check: verifies the kernels: compares every op of a configuration's programs with an
 * FP64 reference. */
#include "cli/common/command.h"
#include "core/cpu.h"
#include "formats/json_write.h"
#include "session/checkpoint_tensors.h"
#include "session/session.h"
#include "verification/verify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 2 };
/* Loss scale of fp16 checks. The initial loss scale of training may make the gradients of a random network infinite.
 * Infinite on both sides, they would compare as equal without testing anything. */
static const double check_loss_scale = 1024;

struct totals {
    int    ops;
    double worst;
};

static const char *precision_of(const struct cr_session *s) {
    return s->device->options.tf32 ? "tf32" : s->device->options.bf16 ? "bf16" : cr_dtype_name(s->model.real);
}

static cr_status check_one(struct cr_session *s, struct cr_device *cpu, struct cr_exec *exec,
                           const struct cr_program *program, struct totals *sum) {
    const struct cr_config *c     = s->config;
    struct cr_step_block    step  = cr_cmd_step_block(c);
    int                     ops   = 0;
    double                  worst = 0;
    step.step                     = 1;
    CR_TRY(cr_cmd_feed_random(exec, program, s->model.classes, (uint64_t)c->train.seed));
    cr_log(CR_LOG_INFO, "%s: program %s in %s, %d ops, batch %lld", s->device->caps.text, program->name,
           precision_of(s), program->ops, (long long)program->tensor[program->images].dim[0]);
    CR_TRY(cr_verify_program(cpu, s->device, exec, program, &step, &ops, &worst));
    sum->ops += ops;
    sum->worst = CR_MAX(sum->worst, worst);
    return CR_OK;
}

static cr_status set_loss_scale(struct cr_session *s) {
    const int state = s->trains ? cr_tensor_store_find(&s->train[0], CR_BUFFER_STATE, CR_NONE) : CR_NONE;
    double    value[CR_STATE_COUNT];
    if (s->model.real != CR_F16 || state < 0) return CR_OK;
    CR_TRY(cr_exec_get(s->train_exec[0], state, value));
    value[CR_STATE_LOSS_SCALE] = check_loss_scale;
    return cr_exec_put(s->train_exec[0], state, value);
}

/* Checks training programs first: they change the running statistics from their initial values, which makes the check
 * of the evaluation program stronger. */
static cr_status check_session(struct cr_session *s, struct totals *sum) {
    struct cr_device_options options = {.deterministic = true, .ref_only = true};
    struct cr_device        *cpu     = NULL;
    cr_status                status;
    CR_TRY_OUT(cr_device_open(CR_DEVICE_CPU, &options, &cpu));
    CR_TRY_OUT(cr_session_init(s));
    CR_TRY_OUT(set_loss_scale(s));
    if (*s->config->model.weights) CR_TRY_OUT(cr_session_load_weights(s, s->config->model.weights, false));
    for (int i = 0; i < s->trains; i++) CR_TRY_OUT(check_one(s, cpu, s->train_exec[i], &s->train[i], sum));
    CR_TRY_OUT(check_one(s, cpu, s->eval_exec, &s->eval, sum));
out:
    cr_device_close(cpu);
    return status;
}

/* The bound of an op that only rounds is half of the last digit, which results come very close to: 0.9999 of the bound
 * must not be printed as all of it. */
static double rounded_down(double value, double steps) {
    return floor(value * steps) / steps;
}

static void print_json(const char *device, const char *precision, const struct totals *sum, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "device", device);
    cr_json_put_string(&w, "precision", precision);
    cr_json_put_int(&w, "ops", sum->ops);
    cr_json_put_fixed(&w, "worst", rounded_down(sum->worst, 1e6), 6);
    cr_json_put_bool(&w, "ok", true);
    cr_json_close_line(&w);
}

/* The first call opens `first` and reads the files; later calls take them from there. */
static cr_status check_device(const struct cr_args *args, struct cr_cmd_source *source, const struct cr_config **first,
                              const char *device, int64_t batch, struct cr_text *out) {
    const struct cr_config *opened, *config;
    struct cr_session       session = {0};
    struct totals           sum     = {0};
    const bool              is_cpu = strcmp(device, "cpu") == 0, is_first = !source->read;
    char                    override[64];
    snprintf(override, sizeof override, "train.device=%s", device);
    CR_TRY(cr_cmd_config_open(args, source, override, &opened));
    if (is_first) source->read = *first = opened;
    const enum cr_precision precision = opened->train.precision;
    const bool              narrow    = is_cpu && precision != CR_PRECISION_AUTO && precision != CR_PRECISION_FP32 &&
                        (precision != CR_PRECISION_BF16 || !cr_cpu_has(CR_CPU_AMX_BF16));
    if (narrow)
        cr_log(CR_LOG_INFO, "cpu: checking in fp32, because this CPU has no kernels for train.precision = %s",
               cr_word_precision(precision));
    cr_status status = cr_config_derive(&config, opened, 0, (const char *const[]){"train.precision=fp32"}, narrow);
    if (!is_first) cr_config_close(opened);
    CR_TRY(status);
    /* as a run that starts from these weights */
    struct cr_session_options options = {.train      = true,
                                         .eval       = true,
                                         .execute    = true,
                                         .batch      = batch,
                                         .eval_batch = batch,
                                         .masks_from = config->model.weights};
    status                            = cr_state_weights_there(config);
    if (status == CR_OK) status = cr_cmd_classes(config, &options.classes);
    if (status == CR_OK) status = cr_session_open(config, &options, &session);
    if (status == CR_OK) status = check_session(&session, &sum);
    if (status == CR_OK && cr_args_has(args, CR_OPT_JSON))
        print_json(device, precision_of(&session), &sum, out);
    else if (status == CR_OK)
        cr_text_add(out,
                    "%s, %s: %d ops compared, all within their error bounds; the largest error is %.4f of its bound\n",
                    device, precision_of(&session), sum.ops, rounded_down(sum.worst, 1e4));
    cr_session_close(&session);
    cr_config_close(config);
    return status;
}

/* Copies the first name of a list "cpu,cuda" to `name`; returns the remaining list. */
static const char *next_name(const char *list, char *name, size_t size) {
    const size_t length = strcspn(list, ",");
    snprintf(name, size, "%.*s", (int)CR_MIN(length, size - 1), list);
    return list + length + (list[length] == ',');
}

/* Checks that all devices of the list exist. Runs before the first check, which may take long. */
static cr_status find_devices(const struct cr_args *args, const char *list) {
    char name[32];
    do {
        list = next_name(list, name, sizeof name);
        if (cr_word_index(cr_option_words(CR_CMD_CHECK, CR_OPT_DEVICES), name, strlen(name)) < 0)
            return cr_args_fail(args, "--devices %s: unknown device %s (cpu, cuda)", args->value[CR_OPT_DEVICES], name);
        CR_TRY(cr_device_check(strcmp(name, "cuda") == 0 ? CR_DEVICE_CUDA : CR_DEVICE_CPU));
    } while (*list);
    return CR_OK;
}

/* Checks the devices in `list` ("cpu,cuda"), or all available devices when it is NULL. */
static cr_status check_devices(const struct cr_args *args, struct cr_cmd_source *source, const struct cr_config **first,
                               const char *list, int64_t batch, struct cr_text *out) {
    for (const struct cr_backend *const *b = cr_backends(); *b && !list; b++) {
        const char *why = NULL;
        if ((*b)->available(&why))
            CR_TRY(check_device(args, source, first, (*b)->name, batch, out));
        else
            cr_log(CR_LOG_INFO, "%s is skipped: %s", (*b)->name, why ? why : "not available");
    }
    if (list) CR_TRY(find_devices(args, list));
    while (list && *list) {
        char device[32];
        list = next_name(list, device, sizeof device);
        CR_TRY(check_device(args, source, first, device, batch, out));
    }
    return CR_OK;
}

cr_status cr_cmd_check(const struct cr_args *args, struct cr_result *out) {
    struct cr_cmd_source    source;
    const struct cr_config *first = NULL;
    int64_t                 batch;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_int(args, CR_OPT_BATCH, 1, 1000000, BATCH, &batch));
    CR_TRY(cr_cmd_source_find(args, &source));
    cr_status status = check_devices(args, &source, &first, args->value[CR_OPT_DEVICES], batch, &out->text);
    cr_config_close(first);
    return status;
}
