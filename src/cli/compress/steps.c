/* cli/compress/steps.c: one try: prune, recalibrate BN, fine-tune, quantise; each result is evaluated and timed. */
#include "cli/compress/compress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- paths ---- */

static const char *path_of(struct cr_compress *c, const char *folder, const char *name) {
    return cr_arena_printf(&c->arena, "%s/%s", folder, name);
}

/* Bytes of the best or newest checkpoint's weights; 0 when unknown. */
static double bytes_of(const char *folder) {
    static const char *const names[] = {"best/model.safetensors", "last/model.safetensors", "model.safetensors"};
    char                     path[CR_PATH_MAX];
    struct stat              st;
    for (size_t i = 0; i < CR_COUNT(names); i++)
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) < (int)sizeof path && stat(path, &st) == 0)
            return (double)st.st_size;
    return 0;
}

/* ---- accuracy and time of a network ---- */

static cr_status evaluate(struct cr_compress *c, const char *network, const char *file, double *accuracy) {
    const char *const arguments[] = {"eval", network, "--json", "-q", NULL};
    if (!cr_fs_is_file(file)) CR_TRY(cr_compress_process(c, arguments, true, file));
    const double map = cr_compress_number_or(file, "map", NAN);
    if (!isnan(map)) {
        *accuracy = map;
        return CR_OK;
    }
    return cr_compress_number(file, "top1", accuracy);
}

/* On the CPU other programs may use the same cores, so the least time counts there. `eval`: results of the evaluation,
 * by which about two seconds are timed. */
static cr_status time_network(struct cr_compress *c, const char *network, const char *eval, const char *file,
                              double *ms) {
    char              batch[48], steps[32];
    const char *const arguments[] = {"bench", "infer", network, "--json", "-q", steps, batch, NULL};
    const double      per_s       = cr_compress_number_or(eval, "images_per_s", 0) / (double)c->batch;
    snprintf(batch, sizeof batch, "train.eval_batch=%lld", (long long)c->batch);
    snprintf(steps, sizeof steps, "--steps=%.0f", CR_MIN(CR_MAX(round(2 * per_s), 20), 500));
    if (!cr_fs_is_file(file)) CR_TRY(cr_compress_process(c, arguments, true, file));
    const bool gpu = cr_compress_number_or(file, "device_mib", 0) > 0;
    return cr_compress_number(file, gpu ? "ms" : "ms_min", ms);
}

static cr_status add_point(struct cr_compress *c, const char *name, const char *folder, const char *base,
                           enum cr_compress_step step, double predicted_ms, double *accuracy) {
    struct cr_compress_point p    = {.name = name, .folder = folder, .step = step, .predicted_ms = predicted_ms};
    const char              *eval = cr_arena_printf(&c->arena, "%s.eval.json", base);
    const char              *time = cr_arena_printf(&c->arena, "%s.time.json", base);
    if (!eval || !time) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_TRY(evaluate(c, folder, eval, &p.accuracy));
    CR_TRY(time_network(c, folder, eval, time, &p.ms));
    p.bytes = bytes_of(folder);
    if (accuracy) *accuracy = p.accuracy;
    CR_ASSERT(c->points < CR_COMPRESS_POINTS);
    c->point[c->points++] = p;
    return CR_OK;
}

/* Quantises the network into `to`, from which an earlier, stopped attempt is removed. */
static cr_status quantize(struct cr_compress *c, const char *from, const char *to, const char *file) {
    const char *const arguments[] = {"quantize", from, "-o", to, "--json", "-q", NULL};
    if (cr_fs_is_file(file)) return CR_OK;
    if (cr_fs_is_dir(to)) (void)cr_fs_remove_tree(to);
    return cr_compress_process(c, arguments, true, file);
}

cr_status cr_compress_dense(struct cr_compress *c) {
    const char *base = path_of(c, c->root, "dense"), *int8 = path_of(c, c->root, "dense-int8");
    const char *file = path_of(c, c->root, "dense-int8.json");
    if (!base || !int8 || !file) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_TRY(add_point(c, "dense", c->run, base, CR_COMPRESS_DENSE, 0, NULL));
    if (!c->int8) return CR_OK;
    CR_TRY(quantize(c, c->run, int8, file));
    return add_point(c, "dense", int8, int8, CR_COMPRESS_INT8, 0, NULL);
}

/* ---- pruning ---- */

static cr_status run_budget(struct cr_compress *c, struct cr_compress_try *t, const char *folder, const char *file) {
    struct cr_budget_request request = c->set[t->set];
    const struct cr_config  *config;
    struct cr_text           text        = {0};
    bool                     unreachable = false;
    cr_status                status;
    request.speedup     = t->speedup;
    request.unreachable = &unreachable;
    CR_TRY(cr_config_derive(&config, c->config, 0, (const char *const[]){"quant.type=int8"}, c->int8));
    if (cr_fs_is_dir(folder)) (void)cr_fs_remove_tree(folder);
    status = cr_config_set(&config, "train.output", folder);
    if (status == CR_OK) status = cr_prune_to_budget(config, &request, true, &text);
    cr_config_close(config);
    if (status != CR_OK && unreachable) {
        struct cr_json_writer w = cr_json_open_line(&text);
        cr_error_copy(t->why, sizeof t->why);
        cr_error_clear();
        cr_json_put_string(&w, "why", t->why);
        cr_json_put_int(&w, "unreachable", 1);
        cr_json_close_line(&w);
        status = CR_OK;
    }
    if (status == CR_OK)
        status = text.failed ? CR_NO_MEMORY(text.length) : cr_file_write_atomic(file, text.data, text.length);
    cr_text_free(&text);
    return status;
}

cr_status cr_compress_prune(struct cr_compress *c, struct cr_compress_try *t) {
    const char *pruned = path_of(c, t->folder, "pruned"), *bn = path_of(c, t->folder, "bn");
    const char *file = path_of(c, t->folder, "pruned.json"), *done = path_of(c, t->folder, "bn.json");
    if (!pruned || !bn || !file || !done) return CR_NO_MEMORY(CR_PATH_MAX);
    CR_TRY(cr_fs_mkdirs(t->folder));
    if (!cr_fs_is_file(file)) {
        cr_log(CR_LOG_INFO, "pruning %s", t->name);
        CR_TRY(run_budget(c, t, pruned, file));
    }
    t->unreachable = cr_compress_number_or(file, "unreachable", 0) > 0;
    if (t->unreachable) {
        cr_compress_string(file, "why", t->why, sizeof t->why);
        cr_log(CR_LOG_INFO, "%s: %s", t->name, t->why);
        return CR_OK;
    }
    if (!cr_fs_is_file(done)) {
        if (cr_fs_is_dir(bn)) (void)cr_fs_remove_tree(bn);
        CR_TRY(cr_compress_recalibrate(c, pruned, bn));
        CR_TRY(cr_file_write_atomic(done, "{}\n", 3));
    }
    return add_point(c, t->name, bn, bn, CR_COMPRESS_BN, cr_compress_number_or(file, "predicted_ms", 0),
                     &t->bn_accuracy);
}

/* ---- fine-tuning ---- */

/* The value of a key in a configuration that prune has written. */
static cr_status channels_of(struct cr_compress *c, const char *network, const char **out) {
    char                    ini[CR_PATH_MAX];
    const struct cr_config *config;
    CR_TRY(cr_path_join(ini, network, "last/config.ini"));
    CR_TRY(cr_config_open_stored(&config, ini, NULL, 0));
    *out = cr_arena_printf(&c->arena, "model.channels=%s", config->model.channels);
    cr_config_close(config);
    return *out ? CR_OK : CR_NO_MEMORY(CR_PATH_MAX);
}

static cr_status train(struct cr_compress *c, const char *bn, const char *tuned, const char *file) {
    const char *channels;
    if (cr_fs_is_file(file)) return CR_OK;
    CR_TRY(channels_of(c, bn, &channels));
    const char       *weights     = cr_arena_printf(&c->arena, "model.weights=%s", bn);
    const char       *output      = cr_arena_printf(&c->arena, "train.output=%s", tuned);
    const char *const arguments[] = {"train", c->ini, channels, weights, output, "--resume=auto", "-q", NULL};
    if (!weights || !output) return CR_NO_MEMORY(CR_PATH_MAX);
    return cr_compress_process(c, arguments, false, file);
}

cr_status cr_compress_tune(struct cr_compress *c, struct cr_compress_try *t) {
    const char *bn = path_of(c, t->folder, "bn"), *tuned = path_of(c, t->folder, "tuned");
    const char *int8 = path_of(c, t->folder, "int8"), *file = path_of(c, t->folder, "tuned.json");
    const char *int8_file = path_of(c, t->folder, "int8.json"), *pruned = path_of(c, t->folder, "pruned.json");
    if (!bn || !tuned || !int8 || !file || !int8_file || !pruned) return CR_NO_MEMORY(CR_PATH_MAX);
    const double predicted = cr_compress_number_or(pruned, "predicted_ms", 0);
    cr_log(CR_LOG_INFO, "fine-tuning %s", t->name);
    CR_TRY(train(c, bn, tuned, file));
    CR_TRY(add_point(c, t->name, tuned, tuned, CR_COMPRESS_TUNED, c->int8 ? 0 : predicted, &t->accuracy));
    if (!c->int8) return CR_OK;
    CR_TRY(quantize(c, tuned, int8, int8_file));
    return add_point(c, t->name, int8, int8, CR_COMPRESS_INT8, predicted, &t->accuracy);
}

/* ---- points ---- */

const struct cr_compress_point *cr_compress_reference(const struct cr_compress *c) {
    const struct cr_compress_point *found = NULL;
    for (int i = 0; i < c->points; i++)
        if (strcmp(c->point[i].name, "dense") == 0) found = &c->point[i]; /* with --int8 the second one */
    return found;
}

double cr_compress_drop(const struct cr_compress *c, double accuracy) {
    const double drop = 100 * (c->point[0].accuracy - accuracy);
    return fabs(drop) < 5e-4 ? 0 : drop;
}
