/* session/checkpoint_tensors.c: saves and loads checkpoints of a session, and loads weights. See
 * session/checkpoint_tensors.h. */
#include "session/checkpoint_tensors.h"

#include "pretrained/pretrained.h"
#include "session/saved_model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- save ---- */

cr_status cr_state_save(struct cr_session *s, const struct cr_position *at, const char *run_dir,
                        const char *config_text, const char *const *class_names, int classes) {
    struct cr_arena        arena = {0};
    struct cr_state_list   model, optim, ema;
    struct cr_state_sparse sparse = {0};
    struct cr_ckpt_io      io     = cr_state_io(s);
    cr_status              status = CR_OK;
    char                  *costs  = NULL;
    struct cr_state_meta   state_meta;
    cr_state_meta_of(at, s->config->train.seed, &state_meta);
    CR_TRY_OUT(cr_state_model_list(&s->model.store, &arena, &model));
    CR_TRY_OUT(cr_state_optim_list(&s->model.store, &arena, &optim));
    cr_state_running_list(s, &optim);
    CR_TRY_OUT(cr_state_ema_list(&s->model.store, &arena, &ema));
    CR_TRY_OUT(cr_state_sparse_save(s, &model, &optim, &ema, &io, &sparse));
    if (s->cost_table) CR_TRY_OUT(cr_cost_table_text(s->cost_table, &costs));
    const struct cr_ckpt_save save = {.run_dir           = run_dir,
                                      .step              = at->step,
                                      .model             = model.tensor,
                                      .model_count       = model.count,
                                      .state             = optim.tensor,
                                      .state_count       = optim.count,
                                      .ema               = ema.tensor,
                                      .ema_count         = ema.count,
                                      .sparse            = s->model.store.has_mask,
                                      .state_meta        = state_meta.entry,
                                      .state_meta_count  = state_meta.count,
                                      .config_text       = config_text,
                                      .kernel_times_text = costs,
                                      .class_names       = class_names,
                                      .classes           = classes,
                                      .keep              = (int)CR_MIN(s->config->train.keep, 1000000)};
    CR_TRY_OUT(cr_ckpt_write(&save, &io));
out:
    cr_state_sparse_close(&sparse);
    cr_free(costs);
    cr_arena_free(&arena);
    return status;
}

/* ---- load ---- */

cr_status cr_state_load(struct cr_session *s, const char *path, struct cr_position *position) {
    struct cr_arena         arena = {0};
    struct cr_state_list    model, optim;
    struct cr_state_sparse  sparse  = {0};
    struct cr_st_file      *weights = NULL, *state = NULL;
    cr_status               status       = CR_OK;
    const struct cr_ckpt_io io           = cr_state_io(s);
    const char             *weights_path = cr_arena_printf(&arena, "%s/model.safetensors", path);
    const char             *state_path   = cr_arena_printf(&arena, "%s/state.safetensors", path);
    if (!weights_path || !state_path) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory while loading %s", path);
    CR_TRY_OUT(cr_state_model_list(&s->model.store, &arena, &model));
    CR_TRY_OUT(cr_state_optim_list(&s->model.store, &arena, &optim));
    CR_TRY_OUT(cr_st_open(weights_path, &weights));
    CR_TRY_OUT(cr_st_open(state_path, &state));
    CR_TRY_OUT(cr_state_position_of(state, state_path, position));
    CR_TRY_OUT(cr_state_sparse_open(&s->model.store, weights, weights_path, false, &sparse));
    CR_TRY_OUT(cr_state_sparse_read(&sparse, weights, weights_path, &model, "", &io));
    CR_TRY_OUT(cr_state_sparse_read(&sparse, state, state_path, &optim, CR_STATE_OF_RANKS, &io));
    CR_TRY_OUT(cr_state_sparse_put_mask(&sparse, s));
    CR_TRY_OUT(cr_state_ema_load(s, path));
out:
    cr_state_sparse_close(&sparse);
    cr_st_close(weights);
    cr_st_close(state);
    cr_arena_free(&arena);
    return status;
}

/* ---- weights ---- */

/* A network whose channels were pruned needs its own model.channels. Other mismatches are found in the tensors. */
static cr_status check_channels(const struct cr_config *config, const char *folder) {
    struct cr_saved_model   saved;
    const struct cr_config *stored;
    cr_status               status = CR_OK;
    if (cr_saved_model_find(folder, NULL, &saved) != CR_OK) return CR_OK; /* weights without a configuration */
    if (cr_config_open_stored(&stored, saved.config, NULL, 0) == CR_OK) {
        if (strcmp(stored->model.channels, config->model.channels) != 0)
            status = cr_config_fail(config, "model.weights",
                                    "the layers of this network have other numbers of channels (model.channels): start "
                                    "from its configuration, %s",
                                    saved.config);
        cr_config_close(stored);
    }
    return status;
}

/* Writes a hint for weights that do not exist. If `given` is a file name such as resnet18.safetensors, and resnet18 is
 * the name of published weights, the hint is to use that name. If `given` is no file name, the hint lists the names of
 * published weights. Otherwise it is empty. */
static void describe_published(const char *given, char *out, size_t bytes) {
    struct cr_pretrained entry;
    char                 name[64];
    const char          *base = cr_path_name(given), *ending = strrchr(base, '.');
    const bool is_file = base > given || (ending && (!strcmp(ending, ".safetensors") || !strncmp(ending, ".pt", 3)));
    snprintf(name, sizeof name, "%.*s", ending ? (int)(ending - base) : (int)strlen(base), base);
    if (is_file && cr_pretrained_is_name(name))
        snprintf(out, bytes, "; model.weights=%s downloads the published weights", name);
    else if (is_file)
        *out = 0;
    else {
        (void)!cr_pretrained_find(given, &entry); /* says which names there are */
        snprintf(out, bytes, "; %s", cr_error_message());
    }
}

/* Published weights are downloaded here, before anything else takes time. */
cr_status cr_state_weights_there(const struct cr_config *config) {
    const char *given = config->model.weights;
    char        path[CR_PATH_MAX];
    if (*given && cr_fs_is_dir(given)) return check_channels(config, given);
    if (!*given || access(given, F_OK) == 0 || errno != ENOENT || cr_st_key(given))
        return CR_OK; /* other errors are reported when the file is read */
    if (!cr_pretrained_is_name(given)) {
        char published[600];
        describe_published(given, published, sizeof published);
        return cr_config_fail(config, "model.weights",
                              "no such file or folder: set model.weights=FILE (safetensors or PyTorch weights of this "
                              "network, a checkpoint or a run), or model.weights= to train from scratch%s",
                              published);
    }
    return cr_pretrained_file(given, path);
}

/* Replaces the classifier of the network in the list by that of the file, which may have other layers or none: its
 * tensors are read and discarded. */
static cr_status discard_head(const struct cr_param_store *store, struct cr_st_file *file, struct cr_arena *arena,
                              struct cr_state_list *list) {
    const size_t           most  = (size_t)list->count + (size_t)cr_st_count(file);
    struct cr_ckpt_tensor *all   = cr_arena_alloc(arena, most * sizeof *all);
    int                    count = 0;
    if (!all) return CR_NO_MEMORY(most * sizeof *all);
    for (int i = 0; i < list->count; i++) {
        const int param = cr_param_store_find(store, list->tensor[i].name);
        if (param == CR_NONE || !store->param[param].classifier) all[count++] = list->tensor[i];
    }
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *e = cr_st_at(file, i);
        struct cr_ckpt_tensor     t = {.name = e->name, .dtype = e->dtype, .dims = e->dims};
        if (!cr_ckpt_is_head(e->name) || e->dims > (int)CR_COUNT(t.dim)) continue;
        t.address = (struct cr_ckpt_address){CR_STATE_NOWHERE, 0};
        memcpy(t.dim, e->dim, sizeof t.dim);
        all[count++] = t;
    }
    *list = (struct cr_state_list){.tensor = all, .count = count};
    return CR_OK;
}

/* Removes the counters from the list, since a file need not have them. Removes the scales of quantised values when the
 * caller sets them later, and in training (not `exact`) when the file has none. */
static void fit_list(const struct cr_session *s, struct cr_st_file *file, bool exact, struct cr_state_list *list) {
    const struct cr_param_store *store = &s->model.store;
    int                          count = 0;
    for (int i = 0; i < list->count; i++) {
        struct cr_ckpt_tensor t = list->tensor[i];
        if (t.address.kind == CR_STATE_IN_COUNTER) continue;
        const int  param = cr_param_store_find(store, t.name);
        const bool scale = param != CR_NONE && store->param[param].role == CR_ROLE_SCALE;
        if (scale && (s->without_scales || (!exact && !cr_st_find(file, t.name)))) continue;
        list->tensor[count++] = t;
    }
    list->count = count;
}

/* The number of classes of the file's classifier; 0 when it has none. The weight of a pruned classifier is a sparse
 * tensor, which is not in the file under its name; then the bias has the number. */
static int64_t count_classes(const struct cr_param_store *store, struct cr_st_file *file) {
    const enum cr_param_role roles[] = {CR_ROLE_DENSE_WEIGHT, CR_ROLE_DENSE_BIAS};
    for (size_t r = 0; r < CR_COUNT(roles); r++)
        for (int i = 0; i < store->params; i++) {
            const struct cr_param *q = &store->param[i];
            if (!q->classifier || q->role != roles[r]) continue;
            const struct cr_st_entry *e = cr_st_find(file, q->name);
            if (e) return e->dims >= 1 ? e->dim[0] : 0;
        }
    return 0;
}

static bool has_head(const struct cr_st_file *file) {
    for (int i = 0; i < cr_st_count(file); i++)
        if (cr_ckpt_is_head(cr_st_at(file, i)->name)) return true;
    return false;
}

static cr_status choose_head(const struct cr_session *s, struct cr_st_file *file, const char *path, bool exact,
                             bool *fresh_head) {
    int64_t      have = count_classes(&s->model.store, file);
    enum cr_head head = exact ? CR_HEAD_KEEP : s->config->model.head;
    *fresh_head = head == CR_HEAD_NEW || head == CR_HEAD_MATCH || (head == CR_HEAD_AUTO && have != s->model.classes);
    if (!*fresh_head && have && have != s->model.classes)
        return CR_FAIL(CR_ERR_FORMAT, "%s: its classifier has %lld classes, %s %d%s", path, (long long)have,
                       s->config->model.classes ? "but model.classes is" : "the dataset has", s->model.classes,
                       exact ? "" : " (model.head = auto or new initialises a new one)");
    if (*fresh_head && have)
        cr_log(CR_LOG_INFO, "weights: %s, classifier of %lld classes replaced by a new one of %d", path,
               (long long)have, s->model.classes);
    else if (*fresh_head)
        cr_log(CR_LOG_INFO, "weights: %s, %s: new classifier of %d classes", path,
               has_head(file) ? "whose classifier is no single linear layer" : "which has no classifier",
               s->model.classes);
    else if (!exact) /* commands that evaluate have named their weights */
        cr_log(CR_LOG_INFO, "weights: %s", path);
    return CR_OK;
}

/* Passes values on to the parameter store and remembers the first tensor (by address) with NaN or infinite values. */
struct finite_io {
    struct cr_ckpt_io      below;
    struct cr_ckpt_address address; /* of that tensor */
    bool                   found;
};

static bool all_finite(const void *values, size_t count) {
    const uint32_t  exponent = 0x7f800000; /* of binary32; all bits are set in NaN and infinite values */
    const uint32_t *bits     = values;
    uint32_t        found    = 0; /* as wide as the values: the loop is vectorised without conversions */
    for (size_t i = 0; i < count; i++) found |= (bits[i] & exponent) == exponent ? UINT32_MAX : 0;
    return found == 0;
}

static cr_status finite_put(void *self, struct cr_ckpt_address to, uint64_t offset, const void *host, size_t bytes) {
    struct finite_io *io = self;
    if (to.kind != CR_STATE_NOWHERE && !all_finite(host, bytes / sizeof(float))) {
#pragma omp critical(cr_finite_put)
        {
            if (!io->found || to.value < io->address.value) io->address = to;
            io->found = true;
        }
    }
    return io->below.put(io->below.self, to, offset, host, bytes);
}

static cr_status fail_not_finite(const struct cr_session *s, const char *path, struct cr_ckpt_address address) {
    struct cr_arena      arena = {0};
    struct cr_state_list list  = {0};
    const char          *name  = "a tensor";
    cr_status            status;
    CR_TRY_OUT(cr_state_model_list(&s->model.store, &arena, &list));
    for (int i = 0; i < list.count; i++) {
        const struct cr_ckpt_address a = list.tensor[i].address;
        if (a.kind == address.kind && a.value == address.value) name = list.tensor[i].name;
    }
    CR_FAIL_OUT(CR_ERR_NUMERIC, "%s: %s has NaN or infinite values; please choose another checkpoint", path, name);
out:
    cr_arena_free(&arena);
    return status;
}

/* Suffixes of counters in state dicts: of batch norms, and of torch.optim.swa_utils.AveragedModel. */
#define COUNTERS ".num_batches_tracked,n_averaged"

cr_status cr_session_load_weights(struct cr_session *s, const char *given, bool exact) {
    struct cr_arena        arena = {0};
    struct cr_state_list   list;
    struct cr_state_sparse sparse     = {0};
    struct cr_st_file     *file       = NULL;
    bool                   fresh_head = false;
    char                   path[CR_PATH_MAX];
    cr_status              status = CR_OK;
    struct finite_io       finite = {.below = cr_state_io(s)};
    struct cr_ckpt_io      io     = {.self = &finite, .put = finite_put, .parallel_put = finite.below.parallel_put};
    struct cr_stem_filter  stem   = {.param = CR_NONE};
    CR_TRY_OUT(cr_ckpt_model_path(given, path));
    CR_TRY_OUT(cr_state_model_list(&s->model.store, &arena, &list));
    CR_TRY_OUT(cr_ckpt_open_weights(path, list.tensor, list.count, &file));
    CR_TRY_OUT(choose_head(s, file, path, exact, &fresh_head));
    CR_TRY_OUT(cr_quantized_check(s, file, path));
    fit_list(s, file, exact, &list);
    if (fresh_head) CR_TRY_OUT(discard_head(&s->model.store, file, &arena, &list));
    CR_TRY_OUT(cr_stem_filter_take(s, file, path, &list, &io, &stem));
    CR_TRY_OUT(cr_state_sparse_open(&s->model.store, file, path, fresh_head, &sparse));
    CR_TRY_OUT(cr_state_sparse_read(&sparse, file, path, &list, COUNTERS, &io));
    CR_TRY_OUT(cr_stem_filter_put(s, &stem));
    CR_TRY_OUT(cr_state_sparse_put_mask(&sparse, s));
    if (finite.found) CR_TRY_OUT(fail_not_finite(s, path, finite.address));
    CR_TRY_OUT(cr_quantized_scale_weights(s, file));
out:
    cr_stem_filter_free(&stem);
    cr_state_sparse_close(&sparse);
    cr_st_close(file);
    cr_arena_free(&arena);
    return status;
}
