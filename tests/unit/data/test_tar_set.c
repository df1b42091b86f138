/* tests/unit/data/test_tar_set.c: opening tar archives of every kind survives allocations that fail, and leaks nothing;
 * a sample that is read from a shortened archive is an error. */
#include "data/source.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"

enum { STORED = 1200, WAIT_US = 3200000 };

static char all[SUPPORT_PATH];

/* Appends a member to an archive. */
static void put(FILE *tar, const char *name, const void *data, size_t count) {
    unsigned char head[512] = {0}, zeros[512] = {0};
    unsigned      sum = 8 * ' ';
    snprintf((char *)head, 100, "%s", name);
    snprintf((char *)head + 124, 12, "%011zo", count);
    head[156] = '0';
    memcpy(head + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof head; i++) sum += head[i];
    snprintf((char *)head + 148, 8, "%06o", sum);
    head[155] = ' ';
    CHECK(fwrite(head, 1, sizeof head, tar) == sizeof head && fwrite(data, 1, count, tar) == count);
    CHECK(fwrite(zeros, 1, (512 - count % 512) % 512, tar) == (512 - count % 512) % 512);
}

static void add_text(FILE *tar, const char *name, const char *text) {
    put(tar, name, text, strlen(text));
}

static FILE *begin(const char *folder, const char *name) {
    mkdir(formatted("%s/%s", all, folder), 0777);
    FILE *tar = fopen(formatted("%s/%s/%s", all, folder, name), "wb");
    CHECK(tar != NULL);
    return tar;
}

static void end(FILE *tar) {
    const unsigned char zeros[1024] = {0};
    CHECK(fwrite(zeros, 1, sizeof zeros, tar) == sizeof zeros && fclose(tar) == 0);
}

static void write_text(const char *folder, const char *name, const char *text) {
    write_bytes(formatted("%s/%s/%s", all, folder, name), text, strlen(text));
}

/* `samples` samples, of which every third has the label `first` and the others `second`, in .cls or .json. */
static void make_archive(const char *folder, const char *name, int samples, const char *ending, const char *first,
                         const char *second) {
    char  file[64];
    FILE *tar = begin(folder, (snprintf(file, sizeof file, "%s.tar", name), file));
    for (int i = 0; i < samples; i++) {
        const char *member = formatted("%s-%05d.jpg", name, i);
        add_text(tar, member, "x");
        member = formatted("%s-%05d.%s", name, i, ending);
        add_text(tar, member, i % 3 ? second : first);
    }
    end(tar);
}

static cr_status open_set(const char *folder, enum cr_split split, bool several, struct cr_dataset **set) {
    OWNED(config)     config = NULL;
    const char *const keys[] = {"data.kind=tar", formatted("data.root=%s/%s", all, folder),
                                several ? "data.multi_label=yes" : "data.multi_label=no"};
    CR_TRY(cr_config_open(&config, NULL, keys, CR_COUNT(keys)));
    return cr_dataset_open(config, split, set);
}

static void make_archives(void) {
    make_folder(all);
    make_archive("names", "train", 6, "cls", "ape", "bee\r\n");
    make_archive("names", "val", 3, "cls", "ape", "bee");
    make_archive("numbers", "train", 6, "cls", "0", "2");
    make_archive("numbers", "val", 3, "cls", "2", "1");
    write_text("numbers", "classes.txt", "ape\nbee\nape\n");
    make_archive("several", "train", 6, "json", "{\"label\": [\"ape\", \"bee\"]}", "{\"x\": {}, \"label\": []}");
    make_archive("several", "val", 3, "json", "{\"label\": \"ape\"}", "{\"label\": [\"bee\"]}");
    make_archive("stored", "train", STORED, "cls", "ape", "bee");
    make_archive("stored", "val", 3, "cls", "ape", "bee");
}

/* ImageNet's own: an archive of archives, and images with a list. */
static void make_imagenet(void) {
    size_t      count;
    FILE       *outer   = begin("imagenet", "ILSVRC2012_img_train.tar");
    const char *names[] = {"n00000001", "n00000002"};
    for (int k = 0; k < 2; k++) {
        make_archive("imagenet", names[k], 3, "txt", "", "");
        const char *const path  = formatted("%s/imagenet/%s.tar", all, names[k]);
        uint8_t          *inner = read_bytes(path, &count);
        put(outer, strrchr(path, '/') + 1, inner, count);
        cr_free(inner);
        CHECK(unlink(path) == 0);
    }
    end(outer);
    FILE *val = begin("imagenet", "ILSVRC2012_img_val.tar");
    add_text(val, "ILSVRC2012_val_00000002.JPEG", "x");
    add_text(val, "ILSVRC2012_val_00000001.JPEG", "x");
    end(val);
    write_text("imagenet", "ILSVRC2012_validation_ground_truth.txt", "7\n9\n");
    write_text("imagenet", "map_clsloc.txt", "n00000001 9 a\nn00000002 7 b\n");
}

TEST(opening_survives_failing_allocations) {
    static const char *const folders[] = {"names", "numbers", "several", "imagenet", "stored"};
    struct cr_dataset       *set;
    make_archives();
    make_imagenet();
    setenv("CRESNET_CACHE", formatted("%s/cache", all), 1);
    CHECK_STATUS(open_set("numbers", CR_SPLIT_TRAIN, false, &set), CR_OK);
    CHECK_STR(cr_dataset_class_name(set, 2), "ape (2)"); /* the second class of this name */
    cr_dataset_close(set);
    usleep(WAIT_US); /* the list of `stored` is then stored, and read when validation is opened */
    for (size_t i = 0; i < CR_COUNT(folders); i++)
        for (int split = 0; split < 2; split++) for_each_failing_alloc(f, .least = 20, .dense = 100, .stride = 30) {
                const cr_status status =
                    failing_alloc_run(&f, open_set(folders[i], (enum cr_split)split, i == 2, &set));
                if (status == CR_OK) cr_dataset_close(set);
            }
}

TEST(a_shortened_archive_is_an_error) {
    OWNED(dataset)  set = NULL;
    struct cr_image image;
    int32_t         label;
    CHECK_STATUS(open_set("names", CR_SPLIT_TRAIN, false, &set), CR_OK);
    CHECK_STATUS(cr_dataset_get(set, 5, &image, &label), CR_ERR_FORMAT); /* "x" is no image */
    cr_error_clear();
    CHECK(truncate(formatted("%s/names/train.tar", all), 600) == 0);
    CHECK_STATUS(cr_dataset_get(set, 5, &image, &label), CR_ERR_IO);
    CHECK_HAS(cr_error_message(), "names/train.tar: was cut off");
    cr_error_clear();
}
