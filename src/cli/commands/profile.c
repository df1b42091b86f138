/* cli/commands/profile.c: cresnet profile: times every op of the training step, or of an evaluation, on the device. */
#include "cli/common/command.h"
#include "runtime/profiler.h"
#include "session/session.h"

enum { PASSES = 20, PASSES_MAX = 10000, WARMUP = 3 };

/* Profiles the evaluation program, or the training program that contains the update. With micro-batches its gradients
 * are added to those of earlier micro-batches, which takes the same time. */
static cr_status profile_session(struct cr_session *s, bool eval, int64_t passes, struct cr_profile *out) {
    const struct cr_program *program = eval ? &s->eval : &s->train[s->trains - 1];
    struct cr_exec          *exec    = eval ? s->eval_exec : s->train_exec[s->trains - 1];
    struct cr_step_block     step    = cr_cmd_step_block(s->config);
    CR_TRY(cr_cmd_init_weights(s));
    CR_TRY(cr_cmd_feed_random(exec, program, s->model.classes, (uint64_t)s->config->train.seed));
    char size[32];
    cr_prepare_size_text(eval ? &s->prepare_eval : &s->prepare_train, size);
    cr_log(CR_LOG_INFO, "%s; %s, program %s, batch %lld, %s px, %lld timed passes after %d for warm-up",
           s->device->caps.text, cr_word_arch(s->config->model.arch), program->name,
           (long long)(eval ? s->state.eval_batch : s->state.batch), size, (long long)passes, WARMUP);
    for (int i = 0; i < WARMUP; i++) {
        CR_TRY(cr_exec_run(exec, &step));
        step.step++;
    }
    return cr_profile_open(exec, program, s->device, &step, (int)passes, out);
}

cr_status cr_cmd_profile(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config   *config;
    struct cr_session         session = {0};
    struct cr_profile         profile = {0};
    struct cr_session_options options = {.execute = true, .draw_masks = true};
    int                       order, eval;
    int64_t                   passes;
    cr_status                 status;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_int(args, CR_OPT_BENCH_STEPS, 1, PASSES_MAX, PASSES, &passes));
    CR_TRY(cr_args_word(args, CR_OPT_ORDER, &order));
    CR_TRY(cr_args_word(args, CR_OPT_WHICH, &eval));
    options.train = !eval;
    options.eval  = eval;
    CR_TRY(cr_cmd_config(args, &config));
    CR_TRY_OUT(cr_cmd_classes(config, &options.classes));
    CR_TRY_OUT(cr_session_open(config, &options, &session));
    CR_TRY_OUT(profile_session(&session, eval, passes, &profile));
    if (order == 0) cr_profile_sort_slowest_first(&profile);
    (cr_args_has(args, CR_OPT_JSON) ? cr_profile_print_json : cr_profile_print)(&profile, &out->text);
out:
    cr_profile_close(&profile);
    cr_session_close(&session);
    cr_config_close(config);
    return status;
}
