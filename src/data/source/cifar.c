/* data/source/cifar.c: reads CIFAR-10 and CIFAR-100 in their binary form (A. Krizhevsky, 2009) into memory as NHWC.
 * A record is a label byte (CIFAR-100: coarse label, then fine label), then 1024 red, 1024 green and 1024 blue
 * bytes. The size of every file and the range of every label are checked. */
#include "core/files.h"
#include "data/decode.h"
#include "data/scratch.h"
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIDE = 32, PLANE = SIDE * SIDE, RECORDS_PER_READ = 1000, NAME_BYTES = 64 };

static const char *const cifar10_names[] = {
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
};
static const char *const cifar100_names[] = {
    "apple",      "aquarium_fish", "baby",         "bear",       "beaver",      "bed",         "bee",
    "beetle",     "bicycle",       "bottle",       "bowl",       "boy",         "bridge",      "bus",
    "butterfly",  "camel",         "can",          "castle",     "caterpillar", "cattle",      "chair",
    "chimpanzee", "clock",         "cloud",        "cockroach",  "couch",       "crab",        "crocodile",
    "cup",        "dinosaur",      "dolphin",      "elephant",   "flatfish",    "forest",      "fox",
    "girl",       "hamster",       "house",        "kangaroo",   "keyboard",    "lamp",        "lawn_mower",
    "leopard",    "lion",          "lizard",       "lobster",    "man",         "maple_tree",  "motorcycle",
    "mountain",   "mouse",         "mushroom",     "oak_tree",   "orange",      "orchid",      "otter",
    "palm_tree",  "pear",          "pickup_truck", "pine_tree",  "plain",       "plate",       "poppy",
    "porcupine",  "possum",        "rabbit",       "raccoon",    "ray",         "road",        "rocket",
    "rose",       "sea",           "seal",         "shark",      "shrew",       "skunk",       "skyscraper",
    "snail",      "snake",         "spider",       "squirrel",   "streetcar",   "sunflower",   "sweet_pepper",
    "table",      "tank",          "telephone",    "television", "tiger",       "tractor",     "train",
    "trout",      "tulip",         "turtle",       "wardrobe",   "whale",       "willow_tree", "wolf",
    "woman",      "worm",
};
_Static_assert(CR_COUNT(cifar10_names) == 10 && CR_COUNT(cifar100_names) == 100, "one name for each class");

/* The differences between the two datasets, and their file names. */
struct cifar_form {
    int                label_bytes, classes, train_files;
    int64_t            records_per_file[2]; /* train, val */
    const char        *train_file, *val_file, *subfolder, *meta, *python, *script;
    const char *const *names;
};
static const struct cifar_form cifar10 = {
    .label_bytes      = 1,
    .classes          = 10,
    .train_files      = 5,
    .records_per_file = {10000, 10000},
    .train_file       = NULL, /* NULL: the files are numbered, data_batch_1.bin ... */
    .val_file         = "test_batch.bin",
    .subfolder        = "/cifar-10-batches-bin",
    .meta             = "batches.meta.txt",
    .python           = "data_batch_1",
    .script           = "datasets/fetch-cifar10.sh",
    .names            = cifar10_names,
};
static const struct cifar_form cifar100 = {
    .label_bytes      = 2,
    .classes          = 100,
    .train_files      = 1,
    .records_per_file = {50000, 10000},
    .train_file       = "train.bin",
    .val_file         = "test.bin",
    .subfolder        = "/cifar-100-binary",
    .meta             = "fine_label_names.txt",
    .python           = "train",
    .script           = "datasets/fetch-cifar100.sh",
    .names            = cifar100_names,
};

struct cifar {
    const struct cifar_form *form;
    enum cr_split            split;
    uint8_t                 *pixels; /* [count][32][32][3] */
    int32_t                 *labels; /* [count] */
};

cr_status cr_cifar_parse(const uint8_t *bytes, size_t count, int label_bytes, const char *name, int64_t first,
                         uint8_t *pixels, int32_t *labels) {
    size_t record = (size_t)label_bytes + CR_CIFAR_PIXEL_BYTES;
    int    limit  = label_bytes == 1 ? 10 : 100;
    if (count % record)
        return CR_FAIL(CR_ERR_FORMAT, "%s: cut off inside record %lld", name,
                       (long long)(first + (int64_t)(count / record)));
    for (size_t i = 0; i < count / record; i++) {
        const uint8_t *head = bytes + i * record, *red = head + label_bytes;
        int            label = head[label_bytes - 1];
        if (label >= limit || (label_bytes == 2 && head[0] >= 20))
            return CR_FAIL(CR_ERR_FORMAT,
                           "%s: record %lld has label %d, must be 0 to %d: this is not the %s binary form", name,
                           (long long)(first + (int64_t)i), label >= limit ? label : head[0],
                           label >= limit ? limit - 1 : 19, label_bytes == 1 ? "CIFAR-10" : "CIFAR-100");
        uint8_t *out = pixels + i * CR_CIFAR_PIXEL_BYTES;
        for (int p = 0; p < PLANE; p++) {
            out[3 * p]     = red[p];
            out[3 * p + 1] = red[PLANE + p];
            out[3 * p + 2] = red[2 * PLANE + p];
        }
        labels[i] = label;
    }
    return CR_OK;
}

static void cifar_file_name(const struct cifar_form *form, enum cr_split split, int index, char buf[NAME_BYTES]) {
    if (split == CR_SPLIT_VAL)
        snprintf(buf, NAME_BYTES, "%s", form->val_file);
    else if (form->train_file)
        snprintf(buf, NAME_BYTES, "%s", form->train_file);
    else
        snprintf(buf, NAME_BYTES, "data_batch_%d.bin", index + 1);
}

/* Opens a regular file; a pipe with this name is refused and not waited for. */
static cr_status open_file(const char *path, FILE **out) {
    int fd;
    CR_TRY(cr_fs_open_regular(path, O_RDONLY, &fd));
    *out = fdopen(fd, "rb");
    if (*out) return CR_OK;
    close(fd);
    return CR_FAIL(CR_ERR_MEMORY, "%s: out of memory while opening", path);
}

/* One of the files of a split. */
struct cifar_file {
    const struct cifar *cifar;
    char                path[PATH_MAX];
    int64_t             records, first;
    uint8_t            *buffer; /* has room for RECORDS_PER_READ records */
    cr_status           status;
};

static cr_status read_file(const struct cifar_file *f) {
    const struct cifar *cifar  = f->cifar;
    const char         *path   = f->path;
    const size_t        record = (size_t)cifar->form->label_bytes + CR_CIFAR_PIXEL_BYTES;
    FILE               *file;
    CR_TRY(open_file(path, &file));
    cr_status   status = CR_OK;
    struct stat info;
    if (fstat(fileno(file), &info) != 0) CR_FAIL_OUT(CR_ERR_IO, "%s: %s", path, strerror(errno));
    if (info.st_size != (off_t)((int64_t)record * f->records))
        CR_FAIL_OUT(CR_ERR_FORMAT,
                    "%s: %lld bytes, must be %lld (%lld records of %zu): cut off, or another format; download it "
                    "again with %s",
                    path, (long long)info.st_size, (long long)record * f->records, (long long)f->records, record,
                    cifar->form->script);
    for (int64_t at = 0; at < f->records; at += RECORDS_PER_READ) {
        size_t got = fread(f->buffer, 1, record * RECORDS_PER_READ, file);
        if (got != record * RECORDS_PER_READ) CR_FAIL_OUT(CR_ERR_IO, "%s: reading failed: %s", path, strerror(errno));
        CR_TRY_OUT(cr_cifar_parse(f->buffer, got, cifar->form->label_bytes, path, at,
                                  cifar->pixels + (size_t)(f->first + at) * CR_CIFAR_PIXEL_BYTES,
                                  cifar->labels + f->first + at));
    }
out:
    fclose(file);
    return status;
}

struct cifar_files {
    struct cifar_file *file;
    int                count;
    atomic_int         next; /* index of the next file to read */
};

static void *read_worker(void *argument) {
    struct cifar_files *files = argument;
    for (int f; (f = atomic_fetch_add(&files->next, 1)) < files->count;)
        files->file[f].status = read_file(&files->file[f]);
    return NULL;
}

/* Reads the files at the same time. Errors belong to a thread, so a file that failed is read again here. */
static cr_status cifar_read_files(struct cifar_file *file, int count) {
    struct cifar_files files = {.file = file, .count = count};
    cr_work_together(read_worker, &files, count);
    cr_error_clear();
    for (int f = 0; f < count; f++)
        if (file[f].status != CR_OK) CR_TRY(read_file(&file[f]));
    return CR_OK;
}

/* Finds the folder of the binary files: data.root itself, or the folder that the archive contains. */
static cr_status cifar_find_folder(const struct cr_config *config, const struct cifar_form *form, enum cr_split split,
                                   char folder[PATH_MAX]) {
    const char *root = config->data.root;
    char        file[NAME_BYTES], path[PATH_MAX];
    if (!root[0])
        return cr_config_fail(config, "data.root",
                              "is empty: set it to the folder of the binary files; %s downloads them", form->script);
    cifar_file_name(form, split, 0, file);
    const char *inside[] = {"", form->subfolder};
    for (int i = 0; i < 2; i++) {
        CR_TRY(cr_path_format(folder, "%s%s", root, inside[i]));
        CR_TRY(cr_path_format(path, "%s/%s", folder, file));
        if (access(path, F_OK) == 0) return CR_OK;
    }
    CR_TRY(cr_path_format(path, "%s/%s", root, form->python));
    if (access(path, F_OK) == 0)
        return cr_config_fail(config, "data.root",
                              "%s holds the Python version of the dataset; the binary version is needed: %s "
                              "downloads it",
                              root, form->script);
    return cr_config_fail(config, "data.root", "neither %s nor %s/%s is in %s; %s downloads the dataset", file,
                          form->subfolder + 1, file, root, form->script);
}

/* Reads the class names, one per line in label order; blank lines are skipped. Without the file the built-in names
 * are used. */
static cr_status cifar_read_names(struct cr_dataset *dataset, const struct cifar_form *form, const char *folder) {
    char path[PATH_MAX], line[256];
    int  found = 0;
    CR_TRY(cr_path_format(path, "%s/%s", folder, form->meta));
    if (access(path, F_OK) != 0) {
        memcpy(dataset->class_names, form->names, (size_t)form->classes * sizeof *form->names);
        return CR_OK;
    }
    FILE *file;
    CR_TRY(open_file(path, &file));
    cr_status status = CR_OK;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!line[0]) continue;
        if (found < form->classes) {
            dataset->class_names[found] = cr_arena_printf(&dataset->arena, "%s", line);
            if (!dataset->class_names[found]) CR_NO_MEMORY_OUT(strlen(line));
        }
        found++;
    }
    if (found != form->classes)
        CR_FAIL_OUT(CR_ERR_FORMAT, "%s: %d class names, must be %d", path, found, form->classes);
out:
    fclose(file);
    return status;
}

static cr_status cifar_fetch(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch,
                             struct cr_stored *out) {
    const struct cifar *cifar = dataset->state;
    (void)scratch;
    out->pixels = (struct cr_image){SIDE, SIDE, cifar->pixels + (size_t)sample * CR_CIFAR_PIXEL_BYTES, CR_RGB8};
    return CR_OK;
}

static void cifar_name(const struct cr_dataset *dataset, int64_t sample, char *buf, size_t size) {
    const struct cifar *cifar = dataset->state;
    int64_t             each  = cifar->form->records_per_file[cifar->split];
    char                file[NAME_BYTES];
    cifar_file_name(cifar->form, cifar->split, (int)(sample / each), file);
    snprintf(buf, size, "%s[%lld]", file, (long long)(sample % each));
}

static int32_t cifar_label(const struct cr_dataset *dataset, int64_t sample) {
    const struct cifar *cifar = dataset->state;
    return cifar->labels[sample];
}

static void cifar_close(struct cr_dataset *dataset) {
    struct cifar *cifar = dataset->state;
    if (!cifar) return;
    cr_free(cifar->pixels);
    cr_free(cifar->labels);
    cr_free(cifar);
}

static uint64_t cifar_digest(const struct cr_dataset *dataset, int64_t sample, uint8_t *head) {
    const struct cifar *cifar = dataset->state;
    (void)head;
    return cr_hash_sample(CR_CIFAR_PIXEL_BYTES, cifar->labels[sample],
                          cifar->pixels + (size_t)sample * CR_CIFAR_PIXEL_BYTES, CR_CIFAR_PIXEL_BYTES);
}

static const struct cr_dataset_ops cifar_ops = {cifar_fetch, cifar_name, cifar_label, cifar_close, cifar_digest, NULL};

cr_status cr_cifar_open(const struct cr_config *config, enum cr_split split, struct cr_dataset *dataset) {
    const struct cifar_form *form   = config->data.kind == CR_DATA_CIFAR10 ? &cifar10 : &cifar100;
    int                      files  = split == CR_SPLIT_TRAIN ? form->train_files : 1;
    int64_t                  each   = form->records_per_file[split];
    struct cifar_file       *file   = NULL;
    uint8_t                 *buffer = NULL;
    struct cifar            *cifar;
    char                     folder[PATH_MAX], name[NAME_BYTES];
    cr_status                status = CR_OK;
    CR_TRY(cifar_find_folder(config, form, split, folder));
    CR_ALLOC(cifar, 1);
    dataset->state   = cifar;
    dataset->ops     = &cifar_ops;
    dataset->count   = each * files;
    dataset->classes = form->classes;
    cifar->form      = form;
    cifar->split     = split;
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_names, (size_t)form->classes);
    CR_ARENA_ALLOC(&dataset->arena, dataset->class_counts, (size_t)form->classes);
    CR_TRY(cifar_read_names(dataset, form, folder));
    CR_ALLOC(cifar->pixels, (size_t)dataset->count * CR_CIFAR_PIXEL_BYTES);
    CR_ALLOC(cifar->labels, (size_t)dataset->count);
    const size_t bytes = ((size_t)form->label_bytes + CR_CIFAR_PIXEL_BYTES) * RECORDS_PER_READ;
    file               = cr_alloc((size_t)files, sizeof *file);
    buffer             = cr_alloc((size_t)files, bytes);
    if (!file || !buffer) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for %d files in %s", files, folder);
    for (int f = 0; f < files; f++) {
        file[f].cifar   = cifar;
        file[f].records = each;
        file[f].first   = f * each;
        file[f].buffer  = buffer + (size_t)f * bytes;
        cifar_file_name(form, split, f, name);
        CR_TRY_OUT(cr_path_format(file[f].path, "%s/%s", folder, name));
    }
    CR_TRY_OUT(cifar_read_files(file, files));
    for (int64_t i = 0; i < dataset->count; i++) dataset->class_counts[cifar->labels[i]]++;
    dataset->fingerprint = cr_hash_bytes(CR_HASH_START, cifar->labels, (size_t)dataset->count * sizeof *cifar->labels);
    /* The hash of the labels cannot distinguish two orders of images within one class, so the first and the last
     * image are hashed too. */
    dataset->fingerprint = cr_hash_bytes(dataset->fingerprint, cifar->pixels, CR_CIFAR_PIXEL_BYTES);
    dataset->fingerprint =
        cr_hash_bytes(dataset->fingerprint, cifar->pixels + (size_t)(dataset->count - 1) * CR_CIFAR_PIXEL_BYTES,
                      CR_CIFAR_PIXEL_BYTES);
out:
    cr_free(file);
    cr_free(buffer);
    return status;
}
