/* cli/commands/prune.c: cresnet prune: prunes the weights of a trained network once and writes a checkpoint. */
#include "cli/commands/prune.h"
#include "cli/common/command.h"
#include "formats/json_write.h"
#include "session/saved_model.h"

#include <string.h>

#define DATA_BATCH "train.batch=32" /* with train.batch = auto */

/* ---- training data ---- */

cr_status cr_prune_open_data(const struct cr_config **local, int64_t recalibrate, int classes,
                             struct cr_dataset **train) {
    const bool  needed    = (*local)->prune.importance == CR_PRUNE_IMPORTANCE_TAYLOR || recalibrate > 0;
    const char *changes[] = {CR_CMD_ON_CPU, "train.accumulate=1", "distill.teacher=", NULL, NULL};
    int         count     = 5;
    *train                = NULL;
    if ((*local)->model.bn_momentum == 0)
        changes[count++] = "model.bn_momentum=0.1"; /* statistics need one; they do not depend on it */
    if (!needed || (*local)->train.batch == 0) changes[count++] = needed ? DATA_BATCH : "train.batch=1";
    CR_TRY(cr_config_change(local, changes, count));
    if (!needed) return CR_OK;
    CR_TRY(cr_dataset_open(*local, CR_SPLIT_TRAIN, train));
    if ((*train)->classes == classes)
        return cr_saved_model_number_classes(*local, *train, true, CR_CMD_GRADIENTS_BY_NUMBER);
    return cr_config_fail(*local, "data.kind",
                          "the dataset has %d classes, the network %d: --importance taylor and --recalibrate need the "
                          "data that the network was trained with",
                          (*train)->classes, classes);
}

cr_status cr_prune_recalibrate(struct cr_session *session, const struct cr_dataset *train, int64_t batches,
                               int64_t *used) {
    const struct cr_bn_options options = {.batches = batches};
    *used                              = 0;
    return batches ? cr_session_bn_statistics(session, train, &options, used) : CR_OK;
}

/* ---- pruning ---- */

struct taylor {
    const struct cr_param_store *store;
    const float                 *value;
    double                      *sum;
};

static cr_status add_taylor(void *self, const float *grad) {
    const struct taylor *t = self;
    cr_prune_add_taylor(t->store, t->value, grad, t->sum);
    return CR_OK;
}

/* The scores by which weights are pruned: *score is NULL for their magnitudes. The caller frees it. */
static cr_status score_weights(struct cr_session *session, const struct cr_dataset *train, const float *value,
                               float **score) {
    const struct cr_param_store *store = &session->model.store;
    const struct cr_config      *c     = session->config;
    struct taylor                t     = {.store = store, .value = value};
    cr_status                    status;
    *score = NULL;
    if (c->prune.importance != CR_PRUNE_IMPORTANCE_TAYLOR) return CR_OK;
    CR_ALLOC(t.sum, (size_t)store->value_elems);
    CR_TRY_OUT(cr_session_gradients(session, train, c->prune.batches, add_taylor, &t));
    CR_ALLOC_OUT(*score, (size_t)store->value_elems);
    cr_prune_taylor_scores(store, t.sum, c->prune.batches, *score);
out:
    cr_free(t.sum);
    return status;
}

struct job {
    const struct cr_config *config;
    struct cr_dataset      *train; /* NULL when not needed */
    int64_t                 recalibrate, recalibrated;
};

static cr_status prune_store(struct cr_session *session, struct job *job, struct cr_prune *prune) {
    const struct cr_param_store *store = &session->model.store;
    struct cr_state_buffers      buffers;
    float                       *score = NULL;
    cr_status                    status;
    CR_TRY(cr_state_buffers_get(session, &buffers));
    CR_TRY_OUT(score_weights(session, job->train, buffers.value, &score));
    CR_TRY_OUT(cr_prune_masks(prune, 1, score ? score : buffers.value, buffers.mask));
    cr_prune_zero(store, buffers.mask, buffers.value);
    CR_TRY_OUT(cr_state_buffers_put(session, &buffers));
    CR_TRY_OUT(cr_prune_recalibrate(session, job->train, job->recalibrate, &job->recalibrated));
out:
    cr_free(score);
    cr_state_buffers_free(&buffers);
    return status;
}

/* ---- the checkpoint ---- */

/* The names stored with the weights; numbered names when there are none. */
static cr_status name_classes(const char *weights, int classes, struct cr_cmd_names *names) {
    CR_TRY(cr_cmd_names_load(weights, names));
    if (names->count == classes) return CR_OK;
    CR_ARENA_ALLOC(&names->arena, names->at, (size_t)classes);
    for (names->count = 0; names->count < classes; names->count++) {
        names->at[names->count] = cr_arena_printf(&names->arena, "class %d", names->count);
        if (!names->at[names->count]) return CR_NO_MEMORY(64);
    }
    return CR_OK;
}

struct new_run {
    struct cr_session  *session;
    const char         *folder;
    struct cr_cmd_names names;
};

static cr_status write_run(void *self, const char *config_text) {
    const struct new_run    *run = self;
    const struct cr_position at  = {0};
    return cr_state_save(run->session, &at, run->folder, config_text, run->names.at, run->names.count);
}

cr_status cr_prune_save(struct cr_session *session, const struct cr_config *config, const char *weights) {
    struct new_run          run   = {.session = session, .folder = config->train.output};
    const struct cr_config *saved = NULL; /* without pruning: training from the checkpoint must not prune again */
    cr_status               status;
    CR_TRY_OUT(cr_state_ema_start(session));
    CR_TRY_OUT(name_classes(weights, session->model.classes, &run.names));
    CR_TRY_OUT(cr_config_derive(&saved, config, 0, CR_CHANGES(CR_CMD_NO_PRUNING, "prune.importance=l2")));
    CR_TRY_OUT(cr_cmd_write_new_run(run.folder, saved, write_run, &run));
out:
    cr_config_close(saved);
    cr_arena_free(&run.names.arena);
    return status;
}

/* ---- output ---- */

void cr_prune_recalibrated_text(int64_t batches, const struct cr_config *local, struct cr_text *out) {
    cr_text_add(out, "BN statistics are from %lld training batches of %lld images\n", (long long)batches,
                (long long)local->train.batch);
}

static double percent(int64_t part, int64_t whole) {
    return whole ? 100 * (double)part / (double)whole : 0;
}

static void print_table(const struct cr_prune *p, struct cr_text *out) {
    int64_t elems = 0, pruned = 0;
    cr_text_add(out, "%-28s %12s %12s %10s\n", "layer", "weights", "nonzeros", "sparsity");
    for (int l = 0; l < p->layers; l++) {
        const struct cr_prune_layer *layer = &p->layer[l];
        cr_text_add(out, "%-28s %12lld %12lld %8.2f %%", layer->name, (long long)layer->elems,
                    (long long)(layer->elems - layer->pruned), percent(layer->pruned, layer->elems));
        cr_text_add(out, layer->dense ? "  %s\n" : "\n", layer->dense);
        elems += layer->elems;
        pruned += layer->pruned;
    }
    cr_text_add(out, "%-28s %12lld %12lld %8.2f %%\n", "prunable layers", (long long)p->elems,
                (long long)(p->elems - p->pruned), percent(p->pruned, p->elems));
    cr_text_add(out, "%-28s %12lld %12lld %8.2f %%\n", "all layers", (long long)elems, (long long)(elems - pruned),
                percent(pruned, elems));
}

static void print_json(const struct cr_prune *p, const struct job *job, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "output", job->config->train.output);
    cr_json_put_int(&w, "weights", p->elems);
    cr_json_put_int(&w, "pruned", p->pruned);
    if (job->recalibrate) cr_json_put_int(&w, "recalibrated_batches", job->recalibrated);
    cr_json_open_array(&w, "layers");
    for (int l = 0; l < p->layers; l++) {
        cr_json_open_object(&w, NULL);
        cr_json_put_string(&w, "layer", p->layer[l].name);
        cr_json_put_int(&w, "weights", p->layer[l].elems);
        cr_json_put_int(&w, "pruned", p->layer[l].pruned);
        cr_json_close_object(&w);
    }
    cr_json_close_array(&w);
    cr_json_close_line(&w);
}

/* ---- the command ---- */

/* Warns when the weights were already pruned beyond the requested sparsity: pruned weights stay pruned. The tolerance
 * of one weight per layer covers rounding. */
static void warn_if_pruned_more(const struct cr_prune *p) {
    const struct cr_config *c = p->config;
    if (*c->prune.budget || c->prune.sparsity <= 0 ||
        (double)p->pruned <= (double)p->elems * c->prune.sparsity + p->layers)
        return;
    cr_log(CR_LOG_WARN,
           "%.2f %% were already pruned, more than sparsity = %g: they stay pruned; to prune less, start from unpruned "
           "weights",
           percent(p->pruned, p->elems), c->prune.sparsity);
}

/* Prunes and saves. Runs on the CPU in fp32, whatever device and precision training uses. */
static cr_status run(const struct cr_args *args, struct job *job, struct cr_text *out) {
    const struct cr_config   *config  = job->config;
    struct cr_session_options options = {.eval = true, .execute = true, .masks = true, .eval_batch = 1};
    const struct cr_config   *local   = NULL;
    struct cr_session         session = {0};
    struct cr_prune           prune   = {0};
    cr_status                 status;
    CR_TRY_OUT(cr_saved_model_classes(config, &options.classes));
    CR_TRY_OUT(cr_config_derive(&local, config, 0, NULL, 0));
    CR_TRY_OUT(cr_prune_open_data(&local, job->recalibrate, options.classes, &job->train));
    options.train      = job->train;
    options.train_data = job->train;
    CR_TRY_OUT(cr_session_open(local, &options, &session));
    CR_TRY_OUT(cr_model_needs_plain(&session.model, config, "pruned"));
    CR_TRY_OUT(cr_prune_open(&session.model.store, config, &prune));
    CR_TRY_OUT(cr_session_init(&session));
    CR_TRY_OUT(cr_session_load_weights(&session, config->model.weights, true));
    CR_TRY_OUT(prune_store(&session, job, &prune));
    warn_if_pruned_more(&prune);
    CR_TRY_OUT(cr_prune_save(&session, config, config->model.weights));
    if (cr_args_has(args, CR_OPT_JSON))
        print_json(&prune, job, out);
    else
        print_table(&prune, out);
    if (job->recalibrate && !cr_args_has(args, CR_OPT_JSON)) cr_prune_recalibrated_text(job->recalibrated, local, out);
out:
    cr_prune_close(&prune);
    cr_session_close(&session);
    cr_dataset_close(job->train);
    cr_config_close(local);
    return status;
}

/* Opens the configuration. For a RUN, the sparsity with which it was pruned is reset. A single --pattern is a key; it
 * comes first, so that a key on the command line has priority. */
static cr_status open_config(const struct cr_args *args, const struct cr_config **config) {
    static const char *const reset[] = {CR_CMD_NO_PRUNING};
    struct cr_cmd_source     source;
    struct cr_args           all = *args;
    char                     buffer[64];
    const char              *pattern = cr_prune_pattern_key(args, buffer, sizeof buffer);
    CR_TRY(cr_cmd_source_find(args, &source));
    CR_ALLOC(all.override, CR_COUNT(reset) + 1 + (size_t)args->overrides);
    all.overrides = 0;
    for (size_t i = 0; i < CR_COUNT(reset) && *source.folder; i++) all.override[all.overrides++] = reset[i];
    if (pattern) all.override[all.overrides++] = pattern;
    for (int i = 0; i < args->overrides; i++) all.override[all.overrides++] = args->override[i];
    const cr_status status = cr_cmd_config_open(&all, &source, NULL, config);
    cr_free(all.override);
    return status;
}

/* Channels alone, with a factor of multiply-adds. */
static bool only_channels(const struct cr_budget_request *r) {
    return r->channels && !r->several;
}

static cr_status check_pattern(const struct cr_args *args, const struct cr_budget_request *r, bool guided) {
    if (r->flops > 0 && !only_channels(r))
        return cr_args_fail(args,
                            "--flops needs --pattern channels, which makes the network smaller: for other patterns "
                            "give --speedup X or --target-ms MS instead, or --sparsity S");
    if (r->several && !guided)
        return cr_args_fail(args, "--pattern %s needs a target: --target-ms MS or --speedup X",
                            args->value[CR_OPT_PATTERN]);
    if (only_channels(r) && !guided)
        return cr_args_fail(args, "--pattern channels needs --flops X, the factor by which multiply-adds shrink, e.g. "
                                  "2, or --speedup X or --target-ms MS");
    return CR_OK;
}

static cr_status check(const struct cr_args *args, const struct cr_config *config, const struct cr_budget_request *r) {
    const bool time = cr_prune_by_time(r), guided = time || r->flops > 0;
    if (!*config->model.weights)
        return cr_args_fail(args, "no weights to prune: give --weights FILE, or a run folder instead of %s",
                            args->operand[0]);
    if (config->quant.type != CR_QUANT_NONE && !(time && cr_config_given(config, "quant.type")))
        return cr_config_fail(config, "quant.type",
                              "a quantised network cannot be pruned: prune the one in floating point, then quantise "
                              "it");
    CR_TRY(check_pattern(args, r, guided));
    if (guided && !only_channels(r) && cr_config_prunes(config))
        return cr_args_fail(args, "a target chooses the sparsities: leave --sparsity and --budget out (or give "
                                  "prune.sparsity=0 prune.budget=)");
    if (!guided && !cr_config_prunes(config))
        return cr_args_fail(
            args, "no sparsity given: give --sparsity S (0.9 prunes 90 %% of the weights), --budget FILE, a target "
                  "(--speedup X, --target-ms MS), or --pattern channels --flops X");
    if (config->prune.importance == CR_PRUNE_IMPORTANCE_BN && !r->channels)
        return cr_config_fail(config, "prune.importance",
                              "bn is only for --pattern channels: give --importance l2 or taylor");
    if (cr_args_has(args, CR_OPT_KEEP_SHAPE) && (time || !only_channels(r)))
        return cr_args_fail(args, "--keep-shape is only for --pattern channels --flops X");
    if (!time && cr_args_has(args, CR_OPT_PRUNE_BATCH))
        return cr_args_fail(args, "--batch needs --target-ms MS or --speedup X, whose batch size it is: leave it out");
    if (!args->value[CR_OPT_OUTPUT])
        return cr_args_fail(args, "no output given: give -o DIR, a folder that does not exist yet");
    return cr_cmd_check_new_run(config->train.output);
}

static cr_status prune(const struct cr_args *args, struct job *job, const struct cr_budget_request *r,
                       struct cr_text *out) {
    const bool json = cr_args_has(args, CR_OPT_JSON);
    if (r->flops > 0) return cr_prune_channels(job->config, r, cr_args_has(args, CR_OPT_KEEP_SHAPE), json, out);
    if (cr_prune_by_time(r)) return cr_prune_to_budget(job->config, r, json, out);
    return run(args, job, out);
}

cr_status cr_cmd_prune(const struct cr_args *args, struct cr_result *out) {
    const struct cr_config  *config;
    struct job               job     = {0};
    struct cr_budget_request request = {0};
    cr_status                status;
    int                      pattern;
    CR_TRY(cr_args_max_operands(args, 1));
    /* The configuration does not know `auto`, so that its message would not name all patterns. */
    if (cr_args_has(args, CR_OPT_PATTERN) && !strchr(args->value[CR_OPT_PATTERN], ','))
        CR_TRY(cr_args_word(args, CR_OPT_PATTERN, &pattern));
    CR_TRY(cr_prune_targets(args, &request));
    CR_TRY(cr_args_int(args, CR_OPT_RECALIBRATE, 1, 1000000, 0, &job.recalibrate));
    request.recalibrate = job.recalibrate;
    CR_TRY(open_config(args, &config));
    CR_TRY_OUT(cr_prune_patterns(args, config, &request));
    /* The pattern 2:4 implies a sparsity of 0.5. */
    if (config->prune.pattern == CR_PRUNE_PATTERN_2_4 && config->prune.sparsity <= 0 && !request.several &&
        request.flops + request.speedup + request.target_s <= 0)
        CR_TRY_OUT(cr_config_change(&config, CR_CHANGES("prune.sparsity=0.5")));
    job.config = config;
    CR_TRY_OUT(check(args, config, &request));
    CR_TRY_OUT(prune(args, &job, &request, &out->text));
    cr_log(CR_LOG_INFO, "saved in %s", config->train.output);
out:
    cr_config_close(config);
    return status;
}
