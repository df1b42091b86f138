/* checkpoint/write.c: saves a checkpoint atomically: writes a temporary folder, renames it, and updates the links. */
#include "checkpoint/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- files ---- */

static cr_status write_tensors(const char *path, const struct cr_ckpt_tensor *tensors, int count,
                               const struct cr_st_meta *meta, int meta_count, const struct cr_ckpt_io *io) {
    struct cr_ckpt_stage stage   = {0};
    struct cr_st_entry  *entries = NULL;
    struct cr_st_writer *writer  = NULL;
    cr_status            status  = CR_OK;
    CR_ALLOC(entries, (size_t)count);
    for (int i = 0; i < count; i++) {
        entries[i] = (struct cr_st_entry){.name = tensors[i].name, .dtype = tensors[i].dtype, .dims = tensors[i].dims};
        memcpy(entries[i].dim, tensors[i].dim, sizeof tensors[i].dim);
    }
    CR_TRY_OUT(cr_ckpt_stage_open(tensors, count, io->host_get ? CR_CKPT_CACHED_BYTES : CR_CKPT_CHUNK_BYTES, &stage));
    CR_TRY_OUT(cr_st_create(path, entries, count, meta, meta_count, &writer));
    for (int i = 0; i < count; i++)
        CR_TRY_OUT(cr_ckpt_tensor_out(writer, &tensors[cr_st_writer_index(writer, i)], &stage, io));
    CR_TRY_OUT(cr_st_finish(&writer));
out:
    cr_st_abandon(writer);
    cr_ckpt_stage_close(&stage);
    cr_free(entries);
    return status;
}

static cr_status write_model(const char *folder, const struct cr_ckpt_save *save, const char *name,
                             const struct cr_ckpt_tensor *tensors, int tensor_count, const struct cr_ckpt_io *io) {
    char              path[CR_PATH_MAX];
    struct cr_st_meta meta[3] = {{"format", "pt"}}; /* expected by readers of PyTorch files */
    int               count   = 1;
    if (save->sparse) meta[count++] = (struct cr_st_meta){CR_CKPT_SPARSE_KEY, CR_CKPT_SPARSE_VERSION};
    meta[count++] = CR_ST_SUMS;
    CR_TRY(cr_path_join(path, folder, "%s", name));
    return write_tensors(path, tensors, tensor_count, meta, count, io);
}

static cr_status write_classes(const char *folder, const struct cr_ckpt_save *save) {
    char           path[CR_PATH_MAX];
    struct cr_text text = {0};
    CR_TRY(cr_path_join(path, folder, "classes.txt"));
    for (int i = 0; i < save->classes; i++) {
        if (strpbrk(save->class_names[i], "\n\r")) {
            cr_text_free(&text);
            return CR_FAIL(CR_ERR_FORMAT, "%s: the name of class %d contains a line break", path, i);
        }
        cr_text_add(&text, "%s\n", save->class_names[i]);
    }
    cr_status status = text.failed ? CR_NO_MEMORY(text.length) : cr_fs_write_new(path, text.data, text.length);
    cr_text_free(&text);
    return status;
}

static cr_status fill_folder(const char *folder, const struct cr_ckpt_save *save, const struct cr_ckpt_io *io) {
    char path[CR_PATH_MAX];
    CR_TRY(write_model(folder, save, "model.safetensors", save->model, save->model_count, io));
    if (save->ema_count) CR_TRY(write_model(folder, save, "ema.safetensors", save->ema, save->ema_count, io));
    CR_TRY(cr_path_join(path, folder, "state.safetensors"));
    CR_TRY(write_tensors(path, save->state, save->state_count, save->state_meta, save->state_meta_count, io));
    CR_TRY(cr_path_join(path, folder, "config.ini"));
    CR_TRY(cr_fs_write_new(path, save->config_text, strlen(save->config_text)));
    CR_TRY(write_classes(folder, save));
    if (save->kernel_times_text) {
        CR_TRY(cr_path_join(path, folder, "kernel_times.txt"));
        CR_TRY(cr_fs_write_new(path, save->kernel_times_text, strlen(save->kernel_times_text)));
    }
    CR_TRY(cr_ckpt_list_write(folder));
    if (cr_fs_sync_dir(folder) < 0) return cr_fs_refused(folder, "write to the disk", errno);
    return CR_OK;
}

/* ---- renaming ---- */

static void drop(const char *folder) {
    if (cr_fs_remove_tree(folder) < 0)
        cr_log(CR_LOG_WARN, "%s: a temporary folder that could not be removed: %s", folder, strerror(errno));
}

/* For file systems without atomic exchange. For a moment there is no step-N; cr_ckpt_sweep restores .swap- folders. */
static cr_status replace_in_two_moves(const char *folder, const char *place, const struct cr_ckpt_save *save) {
    char old[CR_PATH_MAX];
    CR_TRY(cr_path_join(old, save->run_dir, ".swap-step-%" PRId64 ".%ld", save->step, (long)getpid()));
    if (cr_fs_rename(place, old) < 0) return cr_fs_refused(place, "replace", errno);
    if (cr_fs_rename(folder, place) < 0) {
        cr_status status = cr_fs_refused(place, "replace", errno);
        cr_fs_rename(old, place);
        return status;
    }
    drop(old);
    return CR_OK;
}

static cr_status put_in_place(const char *folder, const char *place, const struct cr_ckpt_save *save) {
    if (cr_fs_rename(folder, place) == 0) return CR_OK;
    if (errno != ENOTEMPTY && errno != EEXIST) return cr_fs_refused(place, "rename a checkpoint to this name", errno);
    /* the same step was saved before, e.g. before a resume */
    if (cr_fs_exchange(folder, place) == 0) {
        drop(folder);
        return CR_OK;
    }
    if (errno != EINVAL && errno != ENOSYS) return cr_fs_refused(place, "replace", errno);
    return replace_in_two_moves(folder, place, save);
}

cr_status cr_ckpt_write(const struct cr_ckpt_save *save, const struct cr_ckpt_io *io) {
    char folder[CR_PATH_MAX], place[CR_PATH_MAX];
    CR_ASSERT(save->step >= 0);
    CR_TRY(cr_path_join(folder, save->run_dir, ".tmp-step-%" PRId64 ".%ld", save->step, (long)getpid()));
    CR_TRY(cr_path_join(place, save->run_dir, "step-%" PRId64, save->step));
    if (access(folder, F_OK) == 0) drop(folder); /* left behind by a killed process with the same pid */
    if (cr_fs_mkdir(folder) < 0) return cr_fs_refused(folder, "create this folder", errno);
    cr_status status = fill_folder(folder, save, io);
    if (status == CR_OK) status = put_in_place(folder, place, save);
    if (status != CR_OK) {
        if (access(folder, F_OK) == 0) drop(folder);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    if (cr_fs_sync_dir(save->run_dir) < 0) return cr_fs_refused(save->run_dir, "write to the disk", errno);
    CR_TRY(cr_ckpt_point(save->run_dir, "last", save->step));
    if (save->best) CR_TRY(cr_ckpt_point(save->run_dir, "best", save->step));
    cr_ckpt_prune(save->run_dir, save->keep);
    return CR_OK;
}
