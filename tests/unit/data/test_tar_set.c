/* tests/unit/data/test_tar_set.c: opening tar archives of every kind survives allocations that fail, and leaks
 * nothing. */
#include "data/source.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"

enum { STORED = 1200, WAIT_US = 3200000 };

static char all[SUPPORT_PATH];

static void write_text(const char *folder, const char *name, const char *text) {
    write_bytes(formatted("%s/%s/%s", all, folder, name), text, strlen(text));
}

/* Packs all/FOLDER/parts into all/FOLDER/NAME.tar and removes it. */
static void pack(const char *folder, const char *name) {
    CHECK(system(formatted("cd %s/%s/parts && tar -cf ../%s.tar * && rm -r ../parts", all, folder, name)) == 0);
}

/* `samples` samples, of which every third has the label `first` and the others `second`, in .cls or .json. */
static void make_archive(const char *folder, const char *name, int samples, const char *ending, const char *first,
                         const char *second) {
    for (int i = 0; i < samples; i++) {
        write_text(folder, formatted("parts/%s-%05d.jpg", name, i), "x");
        write_text(folder, formatted("parts/%s-%05d.%s", name, i, ending), i % 3 ? second : first);
    }
    pack(folder, name);
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
    make_archive("imagenet/parts", "n00000001", 3, "txt", "", "");
    make_archive("imagenet/parts", "n00000002", 3, "txt", "", "");
    pack("imagenet", "ILSVRC2012_img_train");
    write_text("imagenet", "parts/ILSVRC2012_val_00000002.JPEG", "x");
    write_text("imagenet", "parts/ILSVRC2012_val_00000001.JPEG", "x");
    pack("imagenet", "ILSVRC2012_img_val");
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
    CHECK_STR(set->class_names[2], "ape (2)"); /* the second class of this name */
    cr_dataset_close(set);
    usleep(WAIT_US); /* the list of `stored` is then stored, and read when validation is opened */
    for (size_t i = 0; i < CR_COUNT(folders); i++)
        for (int split = 0; split < 2; split++) for_each_failing_alloc(f, .least = 20, .dense = 100, .stride = 30) {
                const cr_status status =
                    failing_alloc_run(&f, open_set(folders[i], (enum cr_split)split, i == 2, &set));
                if (status == CR_OK) cr_dataset_close(set);
            }
}
