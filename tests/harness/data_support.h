/* tests/harness/data_support.h: helpers of the data tests: checksums, synthetic images, configs, folders. */
#ifndef CR_DATA_SUPPORT_H
#define CR_DATA_SUPPORT_H

#include "tests/harness/folder.h"

#include <errno.h>

#define GOLDEN CR_SOURCE_DIR "/tests/golden/data/"

/* Path of a file of tests/golden/data. */
static inline const char *in_golden(const char *name) {
    return formatted(GOLDEN "%s", name);
}

/* FNV-1a, as in tests/golden/data/make.py */
static inline uint64_t sum_bytes(const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    uint64_t       h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < count; i++) h = (h ^ b[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* The synthetic image of make.py. */
static inline struct cr_image make_image(int w, int h) {
    struct cr_image image = {w, h, cr_alloc((size_t)w * h, 3), CR_RGB8};
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < 3; c++) {
                int64_t smooth = x * (3 + c) + y * (5 - c) + (x * y) / 7;
                int64_t noisy  = ((int64_t)x * 7919 + (int64_t)y * 104729 + (int64_t)c * 1299709) / 13;
                image.rgb[((size_t)y * w + x) * 3 + c] = (uint8_t)(((x / 5 + y / 3) % 4 == 0 ? noisy : smooth) % 256);
            }
    return image;
}

/* A training image as the network input: written from graph/ops.def, independent of the normalize kernels. */
static inline void apply_box(const uint8_t *rgb, int size, const int32_t box[4], uint8_t *out) {
    for (int y = 0; y < size; y++)
        for (int x = 0; x < size; x++)
            for (int c = 0; c < 3; c++) {
                int  from_y = y + box[0], from_x = box[1] + (box[2] ? size - 1 - x : x);
                bool inside                 = from_y >= 0 && from_y < size && from_x >= 0 && from_x < size;
                out[(y * size + x) * 3 + c] = inside ? rgb[(from_y * size + from_x) * 3 + c] : 0;
            }
}

/* Reads a whole small file; the caller frees it with cr_free. */
static inline uint8_t *read_bytes(const char *path, size_t *count) {
    OWNED(file) file = fopen(path, "rb");
    *count           = 0;
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *bytes = cr_alloc((size_t)size, 1);
    *count         = fread(bytes, 1, (size_t)size, file);
    return bytes;
}

/* mkdir -p of the folder part of path */
static inline void make_parents(const char *path) {
    char part[SUPPORT_PATH];
    snprintf(part, sizeof part, "%s", path);
    for (char *at = part + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            mkdir(part, 0777);
            *at = '/';
        }
}

/* Creates folders as needed. */
static inline void write_bytes(const char *path, const void *bytes, size_t count) {
    make_parents(path);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, count, file) != count) printf("    cannot write %s\n", path);
    if (file) fclose(file);
}

/* Writes a PNG of one colour to root/name, and creates its folders. */
static inline void put_image(const char *root, const char *name, int width, int height, int colour) {
    OWNED(bytes) rgb = cr_alloc((size_t)width * height, 3);
    memset(rgb, colour, (size_t)width * height * 3);
    const char *const path = formatted("%s/%s", root, name);
    make_parents(path);
    if (cr_image_write_png(path, rgb, width, height) != CR_OK) printf("    %s\n", cr_error_message());
}

/* Copies a file of tests/golden/data. */
static inline void put_golden(const char *path, const char *name) {
    size_t       count;
    OWNED(bytes) bytes = read_bytes(in_golden(name), &count);
    write_bytes(path, bytes, count);
}

static inline void put_text(const char *root, const char *name, const char *text) {
    write_bytes(formatted("%s/%s", root, name), text, strlen(text));
}

/* Defaults with the given overrides: make_config(&config, "data.kind=folder", ..., NULL). */
#define make_config(config, ...) make_config_((config), (const char *const[]){__VA_ARGS__, NULL})
static inline cr_status make_config_(const struct cr_config **config, const char *const *overrides) {
    int n = 0;
    while (overrides[n]) n++;
    return cr_config_open(config, NULL, overrides, n);
}

/* "data.root=" followed by the folder; four of them can be in use at once. */
static inline const char *root_is(const char *path) {
    return formatted("data.root=%s", path);
}

/* Opens the dataset of such overrides. */
static inline cr_status open_split(enum cr_split split, struct cr_dataset **set, const char *const *overrides) {
    OWNED(config) config = NULL;
    CR_TRY(make_config_(&config, overrides));
    return cr_dataset_open(config, split, set);
}
#define OPEN(split, set, ...) open_split((split), (set), (const char *const[]){__VA_ARGS__, NULL})
#define OPEN_SET(set, ...) OPEN(CR_SPLIT_TRAIN, set, __VA_ARGS__)
/* The overrides of an image folder in tmp_path. */
#define FOLDER_SET "data.kind=folder", root_is(tmp_path)

#endif
