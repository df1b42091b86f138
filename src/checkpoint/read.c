/* checkpoint/read.c: reads listed tensors from a file after checking all names, shapes and types. */
#include "checkpoint/internal.h"

#include "formats/json.h"

#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* PARALLEL_CHUNK: two buffers of a thread stay in a second level cache. */
enum { PROBLEMS_SHOWN = 5, NAME_SHOWN = 100, READERS_MAX = 8, PARALLEL_CHUNK = 256 << 10 };

struct problems {
    struct cr_text text;
    int            count;
};

/* Adds one problem: the name of a tensor and what is wrong with it. */
static void add_problem(struct problems *problems, const char *name, const char *fmt, ...) CR_PRINTF(3, 4);

static void add_problem(struct problems *problems, const char *name, const char *fmt, ...) {
    char    quoted[NAME_SHOWN], what[512];
    va_list args;
    if (problems->count++ >= PROBLEMS_SHOWN) return;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    cr_json_quote(quoted, sizeof quoted, name);
    cr_text_add(&problems->text, "%s%s %s", problems->text.length ? "; " : "", quoted, what);
}

/* Prefixes of torch.nn.DataParallel, torch.compile, and of programs that store the network in a member. */
cr_status cr_ckpt_open_weights(const char *path, struct cr_st_file **out) {
    static const char *const prefixes[] = {"module.", "_orig_mod.", "model.", "backbone."};
    CR_TRY(cr_st_open_any(path, out));
    for (size_t i = 0; i < CR_COUNT(prefixes); i++)
        if (cr_st_strip(*out, prefixes[i])) i = (size_t)-1; /* start again, since prefixes may be nested */
    return CR_OK;
}

/* True when the name ends in one of the suffixes of "a,b,c". */
static bool has_suffix(const char *name, const char *list) {
    size_t length = strlen(name);
    while (list && *list) {
        size_t part = strcspn(list, ",");
        if (part && part <= length && !memcmp(name + length - part, list, part)) return true;
        list += part;
        if (*list == ',') list++;
    }
    return false;
}

static bool same_shape(const struct cr_st_entry *entry, const struct cr_ckpt_tensor *tensor) {
    if (entry->dims != tensor->dims) return false;
    for (int i = 0; i < entry->dims; i++)
        if (entry->dim[i] != tensor->dim[i]) return false;
    return true;
}

static const struct cr_st_entry *look_up(struct cr_st_file *file, const char *name,
                                         const char *(*alias)(const char *name)) {
    const struct cr_st_entry *entry  = cr_st_find(file, name);
    const char               *second = !entry && alias ? alias(name) : NULL;
    return second ? cr_st_find(file, second) : entry;
}

static void compare_one(const struct cr_st_entry *entry, const struct cr_ckpt_tensor *tensor,
                        struct problems *problems) {
    char in_file[CR_ST_SHAPE_TEXT], in_model[CR_ST_SHAPE_TEXT];
    cr_st_shape_text(in_model, tensor->dims, tensor->dim);
    if (!entry) {
        add_problem(problems, tensor->name, "%s is missing", in_model);
    } else if (!same_shape(entry, tensor)) {
        cr_st_shape_text(in_file, entry->dims, entry->dim);
        add_problem(problems, entry->name, "has shape %s in the file, %s here", in_file, in_model);
    } else if (!cr_ckpt_can_convert(entry->dtype, tensor->dtype)) {
        add_problem(problems, entry->name, "has elements of type %s in the file, %s here",
                    cr_dtype_safetensors_name(entry->dtype), cr_dtype_safetensors_name(tensor->dtype));
    }
}

/* Fills found[i], NULL for a tensor that keeps its value in the parameter store, and sets listed[j] for each tensor j
 * that is found in the file; fails with a list of all mismatches. */
static cr_status match(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors, int count,
                       const char *ignore, const char *(*alias)(const char *name), const struct cr_st_entry **found,
                       bool *listed) {
    struct problems problems = {0};
    cr_status       status   = CR_OK;
    for (int i = 0; i < count; i++) {
        found[i] = look_up(file, tensors[i].name, alias);
        if (found[i]) listed[found[i] - cr_st_at(file, 0)] = true;
        if (found[i] || !has_suffix(tensors[i].name, ignore)) compare_one(found[i], &tensors[i], &problems);
    }
    for (int i = 0; i < cr_st_count(file); i++) {
        const struct cr_st_entry *entry = cr_st_at(file, i);
        char                      shape[CR_ST_SHAPE_TEXT];
        if (listed[i] || has_suffix(entry->name, ignore)) continue;
        cr_st_shape_text(shape, entry->dims, entry->dim);
        add_problem(&problems, entry->name, "%s is in the file, but not in the network", shape);
    }
    if (problems.text.failed)
        status = CR_NO_MEMORY(4096);
    else if (problems.count > PROBLEMS_SHOWN)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: does not fit: %s; and %d more", path, problems.text.data,
                         problems.count - PROBLEMS_SHOWN);
    else if (problems.count)
        status = CR_FAIL(CR_ERR_FORMAT, "%s: does not fit: %s", path, problems.text.data);
    cr_text_free(&problems.text);
    return status;
}

/* ---- values ---- */

/* The error of the tensor that comes first in the list. Messages are per thread. */
struct first_error {
    cr_status status;
    int       index;
    char      text[1024];
};

static void note_error(struct first_error *first, cr_status status, int index) {
    if (status == CR_OK) return;
#ifdef _OPENMP
#pragma omp critical(cr_ckpt_first_error)
#endif
    if (first->status == CR_OK || index < first->index) {
        first->status = status;
        first->index  = index;
        snprintf(first->text, sizeof first->text, "%s", cr_error_message());
    }
    cr_error_clear();
}

/* Reads tensors with `readers` threads, each with its own stage. */
static cr_status read_tensors(struct cr_st_file *file, const struct cr_ckpt_tensor *tensors, int count,
                              const struct cr_st_entry *const *found, const struct cr_ckpt_stage *stage, int readers,
                              const struct cr_ckpt_io *io) {
    struct first_error error = {.status = CR_OK};
#ifdef _OPENMP
#pragma omp parallel num_threads(readers) if (readers > 1)
    {
        const struct cr_ckpt_stage *own = &stage[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < count; i++)
            if (found[i]) note_error(&error, cr_ckpt_tensor_in(file, found[i], &tensors[i], own, io), i);
    }
#else
    (void)readers;
    for (int i = 0; i < count; i++)
        if (found[i]) note_error(&error, cr_ckpt_tensor_in(file, found[i], &tensors[i], stage, io), i);
#endif
    return error.status == CR_OK ? CR_OK : CR_FAIL(error.status, "%s", error.text);
}

/* Checks the sums of the tensors for which skip[i] is false; skip may be NULL. */
static cr_status verify(struct cr_st_file *file, const bool *skip, int readers) {
    struct first_error error = {.status = CR_OK};
    const int          count = cr_st_has_sums(file) ? cr_st_count(file) : 0;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(readers) if (readers > 1)
#endif
    for (int i = 0; i < count; i++)
        if (!skip || !skip[i]) note_error(&error, cr_st_verify(file, cr_st_at(file, i)), i);
    (void)readers;
    return error.status == CR_OK ? CR_OK : CR_FAIL(error.status, "%s", error.text);
}

static int count_readers(bool parallel) {
#ifdef _OPENMP
    return parallel ? CR_MAX(1, CR_MIN(omp_get_max_threads(), (int)READERS_MAX)) : 1;
#else
    (void)parallel;
    return 1;
#endif
}

cr_status cr_ckpt_verify_tensors(struct cr_st_file *file) {
    return verify(file, NULL, count_readers(true));
}

cr_status cr_ckpt_read(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors, int count,
                       const char *ignore, const char *(*alias)(const char *name), const struct cr_ckpt_io *io) {
    struct cr_ckpt_stage       stage[READERS_MAX] = {0};
    const struct cr_st_entry **found              = NULL;
    bool                      *listed             = NULL;
    cr_status                  status             = CR_OK;
    const int                  readers            = count_readers(io->parallel_put);
    CR_ALLOC(found, (size_t)count);
    listed = cr_alloc((size_t)cr_st_count(file), sizeof *listed);
    if (!listed) {
        status = CR_NO_MEMORY((size_t)cr_st_count(file));
        goto out;
    }
    CR_TRY_OUT(match(file, path, tensors, count, ignore, alias, found, listed));
    const size_t chunk = io->parallel_put ? PARALLEL_CHUNK : CR_CKPT_CHUNK_BYTES;
    for (int i = 0; i < readers; i++) CR_TRY_OUT(cr_ckpt_stage_open(tensors, count, chunk, &stage[i]));
    CR_TRY_OUT(read_tensors(file, tensors, count, found, stage, readers, io));
    CR_TRY_OUT(verify(file, listed, readers));
out:
    for (int i = 0; i < readers; i++) cr_ckpt_stage_close(&stage[i]);
    cr_free(listed);
    cr_free(found);
    return status;
}
