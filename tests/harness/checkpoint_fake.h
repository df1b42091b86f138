/* tests/harness/checkpoint_fake.h: a fake parameter store for the checkpoint tests, whose content is a function of the
 * step, a folder for each case, and a check that a checkpoint holds exactly the content of its step. */
#ifndef CHECKPOINT_FAKE_H
#define CHECKPOINT_FAKE_H

#include "tests/harness/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>

/* ---- redirection of stderr ---- */

static int saved_stderr = -1;

static inline void stderr_to(const char *path) {
    fflush(stderr);
    saved_stderr = dup(2);
    int fd       = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, 2);
    close(fd);
}
static inline void stderr_back(void) {
    fflush(stderr);
    dup2(saved_stderr, 2);
    close(saved_stderr);
}

/* ---- the parameter store: one blob per address; element i of a file has the value base(step) + i ---- */

enum { CONV, FC, BIAS, COUNT, MOMENTUM, SCALE, MASK, BLOBS, MODEL = 4 };

static const struct cr_ckpt_tensor fake_tensors[BLOBS] = {
    {"conv1.weight", CR_F32, 4, {4, 3, 2, 5}, true, {0, CONV}},
    {"fc.weight", CR_F32, 2, {10, 6}, false, {0, FC}},
    {"fc.bias", CR_F32, 1, {10}, false, {0, BIAS}},
    {"bn1.num_batches_tracked", CR_I64, 0, {0}, false, {0, COUNT}},
    {"momentum.conv1.weight", CR_F32, 4, {4, 3, 2, 5}, true, {0, MOMENTUM}},
    {"loss_scale", CR_F32, 0, {0}, false, {0, SCALE}},
    {"mask", CR_U8, 1, {7}, false, {0, MASK}},
};

struct fake {
    unsigned char blob[BLOBS][600];
    int           calls, fail_at; /* the fail_at-th get or put fails; 0: no call fails */
};

static inline int64_t elems_of(const struct cr_ckpt_tensor *t) {
    int64_t elems = 1;
    for (int i = 0; i < t->dims; i++) elems *= t->dim[i];
    return elems;
}

/* Index in the parameter store of element i of the file. */
static inline int64_t place_of(const struct cr_ckpt_tensor *t, int64_t i) {
    if (!t->permute_krsc) return i;
    int64_t C = t->dim[1], R = t->dim[2], S = t->dim[3];
    int64_t s = i % S, r = i / S % R, c = i / S / R % C, k = i / S / R / C;
    return ((k * R + r) * S + s) * C + c;
}

static inline double value_of(int blob, int64_t step, int64_t i) {
    return (double)((step * 8 + blob) * 100 % 65536 + i);
}

static inline void put_value(void *to, enum cr_dtype dtype, int64_t at, double value) {
    if (dtype == CR_F32)
        ((float *)to)[at] = (float)value;
    else if (dtype == CR_F64)
        ((double *)to)[at] = value;
    else if (dtype == CR_F16)
        ((uint16_t *)to)[at] = cr_f32_to_f16((float)value);
    else if (dtype == CR_BF16)
        ((uint16_t *)to)[at] = cr_f32_to_bf16((float)value);
    else if (dtype == CR_I64)
        ((int64_t *)to)[at] = (int64_t)value;
    else
        ((uint8_t *)to)[at] = (uint8_t)(int64_t)value;
}

static inline void fake_fill(struct fake *fake, int64_t step) {
    memset(fake, 0, sizeof *fake);
    for (int b = 0; b < BLOBS; b++)
        for (int64_t i = 0; i < elems_of(&fake_tensors[b]); i++)
            put_value(fake->blob[b], fake_tensors[b].dtype, place_of(&fake_tensors[b], i), value_of(b, step, i));
}

static inline cr_status fake_get(void *self, struct cr_ckpt_address address, uint64_t offset, void *host,
                                 size_t bytes) {
    struct fake *fake = self;
    if (++fake->calls == fake->fail_at) return CR_FAIL(CR_ERR_DEVICE, "the device is gone");
    CR_ASSERT(address.value < BLOBS && offset + bytes <= sizeof fake->blob[0]);
    memcpy(host, fake->blob[address.value] + offset, bytes);
    return CR_OK;
}
static inline cr_status fake_put(void *self, struct cr_ckpt_address address, uint64_t offset, const void *host,
                                 size_t bytes) {
    struct fake *fake = self;
    if (++fake->calls == fake->fail_at) return CR_FAIL(CR_ERR_DEVICE, "the device is gone");
    CR_ASSERT(address.value < BLOBS && offset + bytes <= sizeof fake->blob[0]);
    memcpy(fake->blob[address.value] + offset, host, bytes);
    return CR_OK;
}

static inline cr_status fake_save_from(struct fake *fake, const char *run_dir, int64_t step, bool best, int keep) {
    static const char *const classes[] = {"cat", "dog, small", "\u00fc"};
    const struct cr_st_meta  meta[]    = {{"epoch", "3"}, {"step", formatted("%" PRId64, step)}, CR_ST_SUMS};
    struct cr_ckpt_io        io        = {.self = fake, .get = fake_get, .put = fake_put};
    const char *const        config    = formatted("[train]\nsteps = %" PRId64 "\n", step);
    struct cr_ckpt_save      save      = {.run_dir           = run_dir,
                                          .step              = step,
                                          .model             = fake_tensors,
                                          .model_count       = MODEL,
                                          .state             = fake_tensors + MODEL,
                                          .state_count       = BLOBS - MODEL,
                                          .state_meta        = meta,
                                          .state_meta_count  = 3,
                                          .config_text       = config,
                                          .kernel_times_text = "cresnet costs 1\tdevice\n",
                                          .class_names       = classes,
                                          .classes           = 3,
                                          .best              = best,
                                          .keep              = keep};
    return cr_ckpt_write(&save, &io);
}

static inline cr_status fake_save(const char *run_dir, int64_t step, bool best, int keep) {
    struct fake fake;
    fake_fill(&fake, step);
    return fake_save_from(&fake, run_dir, step, best, keep);
}

static inline cr_status fake_read(struct fake *fake, const char *path, const struct cr_ckpt_tensor *tensors,
                                  int count) {
    OWNED(weights)    file = NULL;
    struct cr_ckpt_io io   = {.self = fake, .get = fake_get, .put = fake_put};
    CR_TRY(cr_st_open(path, &file));
    return cr_ckpt_read(file, path, tensors, count, NULL, &io);
}

/* The step of a checkpoint that holds exactly the content of that step in all four files; -1 for any other folder. */
static inline int64_t intact_step(const char *path) {
    struct fake got, want;
    char        real[1100];
    char       *config = NULL, *classes = NULL;
    memset(&got, 0, sizeof got);
    if (!realpath(path, real) || !strrchr(real, '/')) return -1;
    int64_t step = -1;
    if (sscanf(strrchr(real, '/'), "/step-%" SCNd64, &step) != 1) return -1;
    fake_fill(&want, step);
    const char *const text  = formatted("[train]\nsteps = %" PRId64 "\n", step);
    const char       *file  = formatted("%s/model.safetensors", path);
    bool              sound = fake_read(&got, file, fake_tensors, MODEL) == CR_OK;
    file                    = formatted("%s/state.safetensors", path);
    sound                   = sound && fake_read(&got, file, fake_tensors + MODEL, BLOBS - MODEL) == CR_OK;
    sound                   = sound && !memcmp(got.blob, want.blob, sizeof want.blob);
    file                    = formatted("%s/config.ini", path);
    sound                   = sound && cr_file_read(file, 1000, &config, NULL) == CR_OK && !strcmp(config, text);
    file                    = formatted("%s/classes.txt", path);
    sound = sound && cr_file_read(file, 1000, &classes, NULL) == CR_OK && !strcmp(classes, "cat\ndog, small\n\u00fc\n");
    cr_free(config);
    cr_free(classes);
    return sound ? step : -1;
}

/* Number of names in the folder that start with a dot. */
static inline int leftovers(const char *path) {
    DIR *dir   = opendir(path);
    int  count = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] == '.' && strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) count++;
    if (dir) closedir(dir);
    return count;
}

#endif
