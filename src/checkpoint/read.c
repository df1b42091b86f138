/* checkpoint/read.c: loads listed tensors from a checkpoint file after checking all names, shapes and types. */
#include "checkpoint/internal.h"

#include "formats/json.h"

#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { PROBLEMS_SHOWN = 5, NAME_SHOWN = 100, READERS_MAX = 8 };

/* The names in the file that differ from those of the network explain each other: each kind shows its first few. */
enum kind { KIND_SHAPE, KIND_MISSING, KIND_EXTRA, KINDS };
struct problems {
    struct cr_text text;
    int            count[KINDS];
};

/* Adds one problem: the name of a tensor and what is wrong with it. */
static void add_problem(struct problems *problems, enum kind kind, const char *name, const char *fmt, ...)
    CR_PRINTF(4, 5);

static void add_problem(struct problems *problems, enum kind kind, const char *name, const char *fmt, ...) {
    char    quoted[NAME_SHOWN], what[512];
    va_list args;
    if (problems->count[kind]++ >= PROBLEMS_SHOWN) return;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    cr_json_quote(quoted, sizeof quoted, name);
    cr_text_add(&problems->text, "%s%s %s", problems->text.length ? "; " : "", quoted, what);
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

static void compare_one(const struct cr_st_entry *entry, const struct cr_ckpt_tensor *tensor,
                        struct problems *problems) {
    char in_file[CR_ST_SHAPE_TEXT], in_model[CR_ST_SHAPE_TEXT];
    cr_st_shape_text(in_model, tensor->dims, tensor->dim);
    if (!entry) {
        add_problem(problems, KIND_MISSING, tensor->name, "%s is missing", in_model);
    } else if (!same_shape(entry, tensor)) {
        cr_st_shape_text(in_file, entry->dims, entry->dim);
        add_problem(problems, KIND_SHAPE, entry->name, "has shape %s in the file, %s here", in_file, in_model);
    } else if (!cr_ckpt_can_convert(entry->dtype, tensor->dtype)) {
        add_problem(problems, KIND_SHAPE, entry->name, "has elements of type %s in the file, %s here",
                    cr_dtype_safetensors_name(entry->dtype), cr_dtype_safetensors_name(tensor->dtype));
    }
}

static void add_extra(const struct cr_st_entry *entry, const char *where, struct problems *problems) {
    char shape[CR_ST_SHAPE_TEXT];
    cr_st_shape_text(shape, entry->dims, entry->dim);
    add_problem(problems, KIND_EXTRA, entry->name, "%s is in the file, but %s", shape, where);
}

static void end_kind(struct problems *problems, enum kind kind, const char *what) {
    if (problems->count[kind] > PROBLEMS_SHOWN)
        cr_text_add(&problems->text, "; and %d more %s", problems->count[kind] - PROBLEMS_SHOWN, what);
}

static cr_status fail_problems(struct cr_st_file *file, const char *path, const struct problems *problems) {
    char prefix[NAME_SHOWN], removed[NAME_SHOWN + 64] = "";
    if (problems->text.failed) return CR_NO_MEMORY(4096);
    cr_json_quote(prefix, sizeof prefix, cr_st_prefix(file));
    if (*cr_st_prefix(file)) snprintf(removed, sizeof removed, " after the prefix %s of its names is removed", prefix);
    return CR_FAIL(CR_ERR_FORMAT, "%s: does not fit%s: %s", path, removed, problems->text.data);
}

/* Fills found[i], NULL for a tensor that keeps its value in the parameter store, and sets listed[j] for each tensor j
 * that is found in the file; fails with a list of mismatches: of shapes and types, of names that the file lacks, and of
 * names that only the file has. */
static cr_status match(struct cr_st_file *file, const char *path, const struct cr_ckpt_tensor *tensors, int count,
                       const char *ignore, const struct cr_st_entry **found, bool *listed) {
    struct problems           problems = {0};
    const struct cr_st_entry *entry;
    cr_status                 status = CR_OK;
    for (int i = 0; i < count; i++) {
        found[i] = cr_st_find(file, tensors[i].name);
        if (found[i]) listed[found[i] - cr_st_at(file, 0)] = true;
        if (found[i]) compare_one(found[i], &tensors[i], &problems);
    }
    end_kind(&problems, KIND_SHAPE, "with other shapes or types");
    for (int i = 0; i < count; i++)
        if (!found[i] && !has_suffix(tensors[i].name, ignore)) compare_one(NULL, &tensors[i], &problems);
    end_kind(&problems, KIND_MISSING, "are missing");
    for (int i = 0; i < cr_st_count(file); i++)
        if (!listed[i] && !has_suffix(cr_st_at(file, i)->name, ignore))
            add_extra(cr_st_at(file, i), "not in the network", &problems);
    for (int i = 0; problems.text.length && (entry = cr_st_outside(file, i)); i++)
        if (!has_suffix(entry->name, ignore)) add_extra(entry, "without this prefix", &problems);
    end_kind(&problems, KIND_EXTRA, "in the file");
    if (problems.text.length || problems.text.failed) status = fail_problems(file, path, &problems);
    cr_text_free(&problems.text);
    return status;
}

/* ---- values ---- */

/* Reads tensors with `readers` threads, each with its own stage. */
static cr_status read_tensors(struct cr_st_file *file, const struct cr_ckpt_tensor *tensors, int count,
                              const struct cr_st_entry *const *found, const struct cr_ckpt_stage *stage, int readers,
                              const struct cr_ckpt_io *io) {
    struct cr_first_error error = {.status = CR_OK};
#ifdef _OPENMP
#pragma omp parallel num_threads(readers) if (readers > 1)
    {
        const struct cr_ckpt_stage *own = &stage[omp_get_thread_num()];
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < count; i++)
            if (found[i]) cr_first_error_note(&error, cr_ckpt_tensor_in(file, found[i], &tensors[i], own, io), i);
    }
#else
    (void)readers;
    for (int i = 0; i < count; i++)
        if (found[i]) cr_first_error_note(&error, cr_ckpt_tensor_in(file, found[i], &tensors[i], stage, io), i);
#endif
    return CR_FAIL_FIRST(&error);
}

/* Checks the sums of the tensors for which skip[i] is false; skip may be NULL. */
static cr_status verify(struct cr_st_file *file, const bool *skip, int readers) {
    struct cr_first_error error = {.status = CR_OK};
    const int             count = cr_st_has_sums(file) ? cr_st_count(file) : 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(readers) if (readers > 1)
    for (int i = 0; i < count; i++)
        if (!skip || !skip[i]) cr_first_error_note(&error, cr_st_verify(file, cr_st_at(file, i)), i);
    (void)readers;
    return CR_FAIL_FIRST(&error);
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
                       const char *ignore, const struct cr_ckpt_io *io) {
    struct cr_ckpt_stage       stage[READERS_MAX] = {0};
    const struct cr_st_entry **found              = NULL;
    bool                      *listed             = NULL;
    cr_status                  status             = CR_OK;
    const int                  readers            = count_readers(io->parallel_put);
    CR_ALLOC(found, (size_t)count);
    CR_ALLOC_OUT(listed, (size_t)cr_st_count(file));
    CR_TRY_OUT(match(file, path, tensors, count, ignore, found, listed));
    const size_t chunk = io->parallel_put ? CR_CKPT_CACHED_BYTES : CR_CKPT_CHUNK_BYTES;
    for (int i = 0; i < readers; i++) CR_TRY_OUT(cr_ckpt_stage_open(tensors, count, chunk, &stage[i]));
    CR_TRY_OUT(read_tensors(file, tensors, count, found, stage, readers, io));
    CR_TRY_OUT(verify(file, listed, readers));
out:
    for (int i = 0; i < readers; i++) cr_ckpt_stage_close(&stage[i]);
    cr_free(listed);
    cr_free(found);
    return status;
}
