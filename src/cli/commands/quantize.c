/* cli/commands/quantize.c: cresnet quantize: quantises the weights and activations of a trained network to 8-bit
 * integers and writes a checkpoint. */
#include "cli/common/command.h"
#include "formats/json_write.h"
#include "session/quantization/quantized.h"
#include "session/saved_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW_IMAGES   = 32, /* fewer calibration images cause a warning */
    TIMED_MAX    = 20,
    TIMED_MAX_NS = 1000000000
};

struct quantization {
    const struct cr_args   *args;
    const struct cr_config *config; /* of the network in floating point */
    const struct cr_config *int8;   /* the same, quantised; quant.keep is keep.data; NULL until it is known */
    struct cr_dataset      *train, *val;
    struct cr_calibration   calibration;
    struct cr_layer_cost   *order;            /* NULL: not measured. Sorted, the most expensive layer first */
    int                     layers, in_float; /* in_float: the first layers of `order` that stay in floating point */
    double                  max_drop;         /* in points; infinite when not given */
    struct cr_text          keep;
    struct cr_scores        scores_float, scores_int8;
    double                  ms_float, ms_int8; /* of a batch on this device */
    struct cr_session       session;           /* of the quantised network */
};

/* Or the mean average precision, when images have several labels. */
static double top1(const struct cr_scores *s) {
    return 100 * cr_scores_accuracy(s);
}

static double drop(const struct quantization *q) {
    return top1(&q->scores_float) - top1(&q->scores_int8);
}

/* ---- the work ---- */

/* The least time of an evaluation batch of random images, because other programs may use the same cores. The session
 * has run before. */
static cr_status time_batch(struct cr_session *s, double *ms) {
    const struct cr_step_block step  = {0};
    int64_t                    least = INT64_MAX, start = cr_time_ns(), end = start;
    CR_TRY(cr_cmd_feed_random(s->eval_exec, &s->eval, s->model.classes, (uint64_t)s->config->train.seed));
    for (int i = 0; i < TIMED_MAX && end - start < TIMED_MAX_NS; i++) {
        const int64_t begin = cr_time_ns();
        CR_TRY(cr_exec_run(s->eval_exec, &step));
        CR_TRY(s->device->backend->sync(s->device));
        end   = cr_time_ns();
        least = CR_MIN(least, end - begin);
    }
    *ms = (double)least * 1e-6;
    return CR_OK;
}

static cr_status evaluate_float(struct quantization *q) {
    struct cr_session         session = {0};
    struct cr_session_options options = {.eval = true, .execute = true, .classes = q->val->classes};
    cr_status                 status  = cr_session_open(q->config, &options, &session);
    if (status == CR_OK) {
        cr_log(CR_LOG_INFO, "device: %s", session.device->caps.text);
        status = cr_session_load_weights(&session, q->config->model.weights, true);
    }
    if (status == CR_OK) status = cr_session_evaluate(&session, q->val, NULL, &q->scores_float);
    if (status == CR_OK) status = time_batch(&session, &q->ms_float);
    cr_session_close(&session);
    return status;
}

/* Opens the quantised network with the layers of q->keep in floating point and evaluates it. */
static cr_status evaluate_int8(struct quantization *q) {
    cr_session_close(&q->session);
    cr_config_close(q->int8);
    CR_TRY(cr_config_derive(&q->int8, q->config, 0, CR_CHANGES("quant.type=int8")));
    CR_TRY(cr_config_set(&q->int8, "quant.keep", q->keep.data ? q->keep.data : ""));
    CR_TRY(cr_quantized_open(q->int8, &q->calibration, q->val->classes, &q->session));
    return cr_session_evaluate(&q->session, q->val, NULL, &q->scores_int8);
}

static int compare_layers(const void *a, const void *b) {
    const struct cr_layer_cost *x = a, *y = b;
    return x->error < y->error ? 1 : x->error > y->error ? -1 : strcmp(x->layer, y->layer);
}

static cr_status measure_layers(struct quantization *q) {
    cr_log(CR_LOG_INFO, "accuracy drop %.2f points: measuring how much each layer contributes", drop(q));
    CR_TRY(cr_quantized_measure(q->int8, &q->calibration, q->train, &q->order, &q->layers));
    qsort(q->order, (size_t)q->layers, sizeof *q->order, compare_layers);
    return CR_OK;
}

/* Moves the next `more` layers to floating point. */
static cr_status keep_more(struct quantization *q, int more) {
    for (; more > 0 && q->in_float < q->layers; more--) {
        cr_text_add(&q->keep, "%s%s", q->keep.length ? "," : "", q->order[q->in_float].layer);
        q->in_float++;
    }
    return q->keep.failed ? CR_NO_MEMORY(q->keep.length) : CR_OK;
}

/* Keeps 1, 2, 4 ... of the layers that cost most in floating point, until the accuracy drops by at most max_drop. */
static cr_status reduce_drop(struct quantization *q) {
    if (drop(q) <= q->max_drop) return CR_OK;
    CR_TRY(measure_layers(q));
    while (drop(q) > q->max_drop && q->in_float < q->layers) {
        CR_TRY(keep_more(q, CR_MAX(q->in_float, 1)));
        CR_TRY(evaluate_int8(q));
        cr_log(CR_LOG_INFO, "%d layers in floating point: accuracy drop %.2f points", q->in_float, drop(q));
    }
    return CR_OK;
}

static cr_status calibrate(struct quantization *q) {
    const int64_t images = CR_MIN((int64_t)q->config->quant.images, q->train->count);
    cr_log(CR_LOG_INFO, "calibrating with %lld training images", (long long)images);
    if (images < FEW_IMAGES)
        cr_log(CR_LOG_WARN,
               "the scales come from few images (%lld): larger values of other images are clipped; calibrate with at "
               "least "
               "%d (--images; 512 by default)",
               (long long)images, FEW_IMAGES);
    return cr_calibrate(q->config, q->train, &q->calibration);
}

/* ---- the checkpoint ---- */

static cr_status write_run(void *self, const char *config_text) {
    struct quantization *q     = self;
    struct cr_cmd_names  names = {0};
    char                 last[CR_PATH_MAX];
    cr_status            status;
    CR_TRY_OUT(cr_cmd_names_of(q->val, &names));
    CR_TRY_OUT(cr_quantized_save(&q->session, q->config->train.output, config_text, names.at, names.count));
    CR_TRY_OUT(cr_path_join(last, q->config->train.output, "last"));
    if (q->scores_int8.several) CR_TRY_OUT(cr_session_save_thresholds(&q->session, last));
out:
    cr_arena_free(&names.arena);
    return status;
}

static cr_status save(struct quantization *q) {
    const struct cr_config *saved;
    CR_TRY(cr_config_derive(&saved, q->int8, 0, CR_CHANGES("model.weights=")));
    const cr_status status = cr_cmd_write_new_run(q->config->train.output, saved, write_run, q);
    cr_config_close(saved);
    return status;
}

/* ---- output ---- */

static void print_scores(struct cr_text *out, const char *name, const struct cr_scores *s) {
    if (s->several) {
        cr_text_add(out, "%-15s %lld images, mAP %.2f %%, loss %.4f", name, (long long)s->images, top1(s),
                    cr_scores_loss(s));
        return;
    }
    cr_text_add(out, "%-15s %lld of %lld correct, top-1 %.2f %%, loss %.4f", name, (long long)s->correct1,
                (long long)s->images, top1(s), cr_scores_loss(s));
}

static void print_layers(const struct quantization *q, struct cr_text *out) {
    const struct cr_param_store *store  = &q->session.model.store; /* of the network in the output folder */
    int                          layers = 0, int8 = 0;
    for (int i = 0; i < store->params; i++) {
        layers += store->param[i].role == CR_ROLE_CONV || store->param[i].role == CR_ROLE_DENSE_WEIGHT;
        int8 += strstr(store->param[i].name, ".weight_scale") != NULL;
    }
    if (q->order) cr_text_add(out, "%-28s %14s  %s\n", "layer", "logit error", "type");
    for (int i = 0; i < q->layers; i++)
        cr_text_add(out, "%-28s %14.3e  %s\n", q->order[i].layer, q->order[i].error,
                    i < q->in_float ? "floating point: its quantisation costs most" : "int8");
    cr_text_add(out, "calibrated with %lld images by %s; %d of %d layers in int8\n", (long long)q->calibration.images,
                cr_word_quant_method(q->config->quant.method), int8, layers);
}

static void print_text(const struct quantization *q, struct cr_text *out) {
    print_layers(q, out);
    print_scores(out, "floating point:", &q->scores_float);
    cr_text_add(out, "\n");
    print_scores(out, "int8:", &q->scores_int8);
    cr_text_add(out, " (drop %.2f points)\n", drop(q));
    cr_text_add(out,
                "on this device: %.3f ms for a batch of %lld images in floating point, %.3f ms in int8: int8 is %s\n",
                q->ms_float, (long long)q->session.state.eval_batch, q->ms_int8,
                q->ms_int8 < q->ms_float ? "faster" : "not faster, so run the network in floating point here");
    cr_text_add(out, "saved in %s\n", q->config->train.output);
}

static void put_scores(struct cr_json_writer *w, const char *name, const struct cr_scores *s, double ms) {
    cr_json_open_object(w, name);
    cr_json_put_int(w, "images", s->images);
    if (!s->several) cr_json_put_int(w, "correct", s->correct1);
    cr_json_put_fixed(w, s->several ? "map" : "top1", cr_scores_accuracy(s), 6);
    cr_json_put_fixed(w, "loss", cr_scores_loss(s), 6);
    cr_json_put_fixed(w, "batch_ms", ms, 4);
    cr_json_close_object(w);
}

/* All layers that stay in floating point, those of the configuration included. */
static void put_keep(struct cr_json_writer *w, const char *list) {
    char name[256];
    cr_json_open_array(w, "keep");
    for (const char *at = list + strspn(list, ", \t"); *at; at += strspn(at, ", \t")) {
        const size_t length = strcspn(at, ", \t");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        cr_json_put_string(w, NULL, name);
        at += length;
    }
    cr_json_close_array(w);
}

static void print_json(const struct quantization *q, struct cr_text *out) {
    struct cr_json_writer w = cr_json_open_line(out);
    cr_json_put_string(&w, "output", q->config->train.output);
    put_scores(&w, "int8", &q->scores_int8, q->ms_int8);
    cr_json_put_string(&w, "method", cr_word_quant_method(q->config->quant.method));
    cr_json_put_int(&w, "calibration_images", q->calibration.images);
    cr_json_put_int(&w, "batch", q->session.state.eval_batch);
    put_scores(&w, "float", &q->scores_float, q->ms_float);
    cr_json_put_fixed(&w, "drop", drop(q), 4);
    put_keep(&w, q->keep.data ? q->keep.data : "");
    cr_json_close_line(&w);
}

/* ---- the command ---- */

static cr_status check(const struct cr_args *args, const struct cr_config *config) {
    if (config->quant.type != CR_QUANT_NONE)
        return cr_config_fail(config, "quant.type",
                              "this network is quantised already: give the one in floating point");
    if (!args->value[CR_OPT_OUTPUT])
        return cr_args_fail(args, "no output given: give -o DIR, a folder that does not exist yet");
    return cr_cmd_check_new_run(config->train.output);
}

static cr_status run(struct quantization *q, struct cr_text *out) {
    CR_TRY(cr_dataset_open(q->config, CR_SPLIT_VAL, &q->val));
    CR_TRY(cr_saved_model_number_classes(q->config, q->val, true, CR_CMD_SCORES_BY_NUMBER));
    CR_TRY(cr_dataset_open(q->config, CR_SPLIT_TRAIN, &q->train)); /* its labels are not used */
    CR_TRY(evaluate_float(q));
    CR_TRY(calibrate(q));
    if (*q->config->quant.keep) cr_text_add(&q->keep, "%s", q->config->quant.keep);
    CR_TRY(evaluate_int8(q));
    CR_TRY(reduce_drop(q));
    CR_TRY(time_batch(&q->session, &q->ms_int8));
    CR_TRY(save(q));
    (cr_args_has(q->args, CR_OPT_JSON) ? print_json : print_text)(q, out);
    CR_TRY(cr_cmd_print(out)); /* also where the drop is too large: the table shows what was tried */
    if (drop(q) > q->max_drop)
        return CR_FAIL(CR_ERR_NUMERIC, "the accuracy drops by %.2f points, more than --max-drop %g", drop(q),
                       q->max_drop);
    return CR_OK;
}

cr_status cr_cmd_quantize(const struct cr_args *args, struct cr_result *out) {
    struct quantization q = {.args = args, .max_drop = INFINITY};
    cr_status           status;
    CR_TRY(cr_args_max_operands(args, 1));
    CR_TRY(cr_args_real(args, CR_OPT_MAX_DROP, 0, 100, "points of accuracy from 0 to 100, e.g. 0.3", &q.max_drop));
    CR_TRY(cr_cmd_config_of_weights(args, &q.config));
    CR_TRY_OUT(check(args, q.config));
    CR_TRY_OUT(run(&q, &out->text));
out:
    cr_session_close(&q.session);
    cr_calibration_free(&q.calibration);
    cr_text_free(&q.keep);
    cr_dataset_close(q.train);
    cr_dataset_close(q.val);
    cr_config_close(q.int8);
    cr_config_close(q.config);
    return status;
}
