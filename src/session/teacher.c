/* session/teacher.c: loads the teacher network of knowledge distillation, from which a run learns. Its weights are read
 * as every command reads weights: by a session of their own, on the CPU. */
#include "data/class_match.h"
#include "data/source.h"
#include "session/checkpoint_tensors.h"
#include "session/saved_model.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- what can be distilled ---- */

/* A key that was set by the user has no effect without a teacher. A dumped configuration has all keys. */
static cr_status check_none(const struct cr_config *c) {
    if (c->distill.weight == 0.5 || !cr_config_given(c, "distill.weight")) return CR_OK;
    return cr_config_fail(c, "distill.weight", "needs teacher: the run folder of a trained network");
}

static cr_status check_student(const struct cr_config *c) {
    if (cr_config_is_binary(c))
        return cr_config_fail(c, "distill.teacher",
                              "learns from the softmax of a teacher: loss.kind = bce and data.multi_label = yes have "
                              "no softmax. Remove distill.teacher or set loss.kind = softmax");
    if (access(c->distill.teacher, F_OK) == 0 || cr_st_key(c->distill.teacher)) return CR_OK;
    return cr_config_fail(c, "distill.teacher",
                          "no such file or folder: name the run folder of a trained network, one of its checkpoint "
                          "folders, or weights next to their config.ini");
}

/* Names the key in an error of the files that it names. */
static cr_status name_key(const struct cr_config *c, cr_status status) {
    char why[1024];
    if (status == CR_OK || status == CR_ERR_MEMORY) return status;
    cr_error_copy(why, sizeof why);
    cr_error_clear();
    (void)!cr_config_fail(c, "distill.teacher", "%s", why);
    return status;
}

static cr_status check_teacher(const struct cr_config *c, const struct cr_config *teacher, int classes) {
    struct cr_prepare student, train, eval;
    int               count;
    CR_TRY(name_key(c, cr_saved_model_classes(teacher, &count)));
    if (count != classes)
        return cr_config_fail(c, "distill.teacher",
                              "the teacher has %d classes, the dataset has %d: both must have the same", count,
                              classes);
    if (teacher->data.multi_label)
        return cr_config_fail(c, "distill.teacher",
                              "the teacher gives an image several labels (data.multi_label = yes): distillation needs "
                              "a teacher with one label per image");
    if (teacher->quant.type != CR_QUANT_NONE)
        return cr_config_fail(c, "distill.teacher",
                              "the teacher is quantised (quant.type = int8): name the network in floating point");
    if (teacher->data.channels != c->data.channels || teacher->data.bits != c->data.bits)
        return cr_config_fail(c, "distill.teacher",
                              "the teacher sees images of %d channels and %d bits: set data.channels and data.bits to "
                              "these",
                              (int)teacher->data.channels, (int)teacher->data.bits);
    CR_TRY(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &student));
    CR_TRY(cr_prepare_from_config(teacher, CR_SPLIT_TRAIN, &train));
    CR_TRY(cr_prepare_from_config(teacher, CR_SPLIT_VAL, &eval));
    if ((student.size != train.size && student.size != eval.size) || c->data.image_width != teacher->data.image_width)
        return cr_config_fail(c, "distill.teacher",
                              "the teacher's images are %" PRId64 " pixels high (%" PRId64
                              " in evaluation), those of this training %" PRId64
                              ": set data.image_size to the teacher's",
                              (int64_t)train.size, (int64_t)eval.size, (int64_t)student.size);
    return CR_OK;
}

/* ---- reading ---- */

static cr_status read_config(const struct cr_config *c, const char *weights, const char *path,
                             const struct cr_config **teacher) {
    struct cr_arena arena   = {0};
    const char     *named   = cr_arena_printf(&arena, "model.weights=%s", weights);
    const char     *threads = cr_arena_printf(&arena, "train.threads=%" PRId64, c->train.threads);
    const char     *given[] = {named,           threads,           "train.device=cpu",  "train.precision=fp32",
                               "model.freeze=", "model.unfreeze=", "memory.limit=none", "memory.card="};
    cr_status       status  = named && threads ? CR_OK : CR_NO_MEMORY(strlen(weights));
    if (status == CR_OK) status = cr_config_open_stored(teacher, path, given, CR_COUNT(given));
    cr_arena_free(&arena);
    return status;
}

static uint64_t hash_of(const struct cr_config *teacher, const struct cr_param_store *store, const float *value,
                        const float *running) {
    const size_t channels = (size_t)teacher->data.mean.count;
    uint64_t     hash     = cr_hash_bytes(CR_HASH_START, value, (size_t)store->value_elems * sizeof *value);
    hash                  = cr_hash_bytes(hash, running, (size_t)store->running_elems * sizeof *running);
    hash                  = cr_hash_bytes(hash, teacher->data.mean.at, channels * sizeof *teacher->data.mean.at);
    hash                  = cr_hash_bytes(hash, teacher->data.std.at, channels * sizeof *teacher->data.std.at);
    return CR_MAX(cr_hash_mix(cr_hash_bytes(hash, &teacher->model.bn_eps, sizeof teacher->model.bn_eps)), (uint64_t)1);
}

/* ---- classes ---- */

/* Moves the row of each class of the classifier, in weights and bias, to the index to[class]. */
static cr_status move_rows(const struct cr_param_store *store, const int *to, float *value) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (!q->classifier || (q->role != CR_ROLE_DENSE_WEIGHT && q->role != CR_ROLE_DENSE_BIAS)) continue;
        const int64_t classes = q->role == CR_ROLE_DENSE_WEIGHT ? q->dim[0] : q->dim[3], row = q->elems / classes;
        float        *at = value + q->offset, *old;
        CR_ALLOC(old, (size_t)q->elems);
        memcpy(old, at, (size_t)q->elems * sizeof *old);
        for (int64_t k = 0; k < classes; k++) memcpy(at + to[k] * row, old + k * row, (size_t)row * sizeof *old);
        cr_free(old);
    }
    return CR_OK;
}

/* The caller names the key. */
static cr_status fail_classes(const struct cr_dataset *data, const char *const *names, int k) {
    return CR_FAIL(
        CR_ERR_CONFIG,
        "the classes of the dataset are not those of the teacher: label %d is %s in the dataset and %s in the "
        "teacher. Both must have the same names, in any order: rename the classes of the dataset, or remove "
        "classes.txt and checksums.txt from the teacher's checkpoint to pair classes by number",
        k, data->class_names[k], names[k]);
}

/* Gives the teacher's outputs the labels that their classes have in the dataset. */
static cr_status match_classes(const struct cr_config *c, const struct cr_dataset *data, const char *weights,
                               const struct cr_param_store *store, float *value) {
    struct cr_arena       arena = {0};
    struct cr_class_match match = {0};
    const char          **names;
    int                   count;
    cr_status             status;
    if (!data || c->data.kind == CR_DATA_SYNTHETIC) return CR_OK;
    CR_TRY_OUT(cr_saved_model_names_for(data, weights, &arena, &names, &count));
    if (count != data->classes) {
        cr_log(CR_LOG_INFO,
               "%s: the teacher has no classes.txt, or one with ImageNet's names: label k of the dataset "
               "is taken as its class k",
               c->distill.teacher);
        goto out;
    }
    CR_TRY_OUT(cr_class_match(names, count, data->class_names, count, true, &match));
    if (match.relation == CR_CLASSES_OTHER) CR_TRY_OUT(fail_classes(data, names, match.shown));
    cr_class_match_log(&match, names, data->class_names, "the teacher", "the dataset");
    if (match.relation == CR_CLASSES_PERMUTED) CR_TRY_OUT(move_rows(store, match.to, value));
out:
    cr_class_match_free(&match);
    cr_arena_free(&arena);
    return status;
}

/* Reads the weights and makes the teacher of them, which takes *config over. */
static cr_status read_weights(const struct cr_config *c, const struct cr_dataset *data, const struct cr_config **config,
                              int classes, int64_t size, struct cr_teacher **out) {
    const struct cr_session_options options = {
        .eval = true, .execute = true, .ref_only = true, .batch = 1, .eval_batch = 1, .classes = classes};
    struct cr_session session = {0};
    float            *value = NULL, *running = NULL;
    uint64_t          hash = 0;
    cr_status         status;
    CR_TRY_OUT(cr_session_open(*config, &options, &session));
    CR_TRY_OUT(cr_session_load_weights(&session, (*config)->model.weights, true));
    CR_TRY_OUT(cr_state_buffer_copy(&session, CR_BUFFER_VALUE, &value));
    CR_TRY_OUT(cr_state_buffer_copy(&session, CR_BUFFER_RUNNING, &running));
    hash = hash_of(*config, &session.model.store, value, running);
    CR_TRY_OUT(match_classes(c, data, (*config)->model.weights, &session.model.store, value));
    cr_session_close(&session);
    CR_TRY_OUT(cr_teacher_open(config, classes, size, value, running, out));
    (*out)->hash = hash;
out:
    cr_session_close(&session);
    cr_free(value);
    cr_free(running);
    return status;
}

static void log_teacher(const struct cr_config *c, const struct cr_teacher *teacher) {
    cr_log(CR_LOG_INFO, "teacher %s: %s, %.2f million parameters; weight %g, temperature %g", c->distill.teacher,
           cr_word_arch(teacher->config->model.arch), (double)cr_param_store_trainable(&teacher->model.store) * 1e-6,
           c->distill.weight, c->distill.temperature);
}

cr_status cr_session_open_teacher(const struct cr_config *c, const struct cr_dataset *data, int classes,
                                  struct cr_teacher **out) {
    struct cr_saved_model   files;
    const struct cr_config *teacher = NULL;
    struct cr_prepare       prepare;
    cr_status               status;
    *out = NULL;
    if (!*c->distill.teacher) return check_none(c);
    CR_TRY_OUT(check_student(c));
    CR_TRY_OUT(name_key(c, cr_saved_model_find(c->distill.teacher, NULL, &files)));
    CR_TRY_OUT(name_key(c, read_config(c, files.weights, files.config, &teacher)));
    CR_TRY_OUT(check_teacher(c, teacher, classes));
    CR_TRY_OUT(cr_prepare_from_config(c, CR_SPLIT_TRAIN, &prepare));
    CR_TRY_OUT(name_key(c, read_weights(c, data, &teacher, classes, prepare.size, out)));
    log_teacher(c, *out);
out:
    cr_config_close(teacher);
    return status;
}

/* ---- in a session ---- */

/* The buffers of a teacher are part of the parameter store, so it is known before any program is built. */
cr_status cr_session_attach_teacher(struct cr_session *s, struct cr_teacher *teacher, int classes, enum cr_dtype real) {
    if (!teacher) CR_TRY(cr_session_open_teacher(s->config, NULL, classes, &s->own_teacher));
    s->model.teacher = teacher ? teacher : s->own_teacher;
    if (!s->model.teacher) return CR_OK;
    cr_model_set_real(&s->model.teacher->model, real);
    s->model.store.teacher_elems = s->model.teacher->model.store.value_elems;
    return CR_OK;
}

cr_status cr_session_put_teacher(struct cr_session *s) {
    const struct cr_teacher     *teacher = s->model.teacher;
    const struct cr_param_store *store   = &s->model.store;
    const int64_t                elems   = store->teacher_elems;
    const size_t                 bytes   = cr_param_store_buffer_bytes(store, CR_BUFFER_TEACHER_HALF);
    if (!teacher) return CR_OK;
    CR_TRY(cr_state_buffer_put(s, CR_BUFFER_TEACHER, teacher->value));
    if (!bytes) return CR_OK;
    void *half = cr_alloc(bytes, 1);
    if (!half) return CR_NO_MEMORY(bytes);
    for (int64_t i = 0; i < elems; i++) cr_number_store(store->half, half, i, (double)teacher->value[i]);
    const cr_status status = cr_state_buffer_put(s, CR_BUFFER_TEACHER_HALF, half);
    cr_free(half);
    return status;
}
