/* tests/unit/data/test_folder_cache.c: stored lists of folders. The names of the images
 * are the same with a stored list, without a list and with a damaged list, and are up to date after each change of the
 * folders. The test compares them with the names of the files that it has created. */
#include "data/source.h"
#include "data/source/folder_list.h"
#include "tests/harness/data_support.h"
#include "tests/harness/failing_alloc.h"

#include <dirent.h>
#include <sys/wait.h>

enum { EACH = 10000, IMAGES = 2 * EACH + 1, HALF = EACH + 1 /* for training */, WAIT_US = 3200000 };

static char all[SUPPORT_PATH], cache[SUPPORT_PATH];

/* Class a: a/i.jpg. Class b: b/i.jpg of even i, b/deep/i.jpg of odd i, and a file of another format. One file more: the
 * class a has EACH + 1. */
static void make_images(const char *root) {
    const char *const first = formatted("%s/a/first.jpg", root);
    CHECK(mkdir(root, 0777) == 0);
    CHECK(mkdir(formatted("%s/a", root), 0777) == 0);
    CHECK(mkdir(formatted("%s/b", root), 0777) == 0);
    CHECK(mkdir(formatted("%s/b/deep", root), 0777) == 0);
    write_bytes(formatted("%s/b/x.gif", root), "x", 1);
    write_bytes(first, "x", 1);
    for (int i = 0; i < 2 * EACH; i++)
        if (link(first, formatted("%s/%s/%d.jpg", root, i < EACH ? "a" : i % 2 ? "b/deep" : "b", i)) != 0)
            TEST_FAIL_("%s: %d: %s", root, i, strerror(errno));
}

static cr_status open_set(const char *root, double fraction, enum cr_split split, struct cr_dataset **set) {
    char              of_fraction[64];
    OWNED(config)     config = NULL;
    const char *const keys[] = {"data.kind=folder", formatted("data.root=%s", root), of_fraction};
    snprintf(of_fraction, sizeof of_fraction, "data.val_fraction=%g", fraction);
    CR_TRY(cr_config_open(&config, NULL, keys, CR_COUNT(keys)));
    return cr_dataset_open(config, split, set);
}

/* Number of images, or -1; *fingerprint: of their names. */
static int64_t count_of(const char *root, double fraction, enum cr_split split, uint64_t *fingerprint) {
    OWNED(dataset) set   = NULL;
    int64_t        count = -1;
    if (open_set(root, fraction, split, &set) != CR_OK) {
        printf("    %s\n", cr_error_message());
        cr_error_clear();
        return -1;
    }
    count = set->count;
    if (fingerprint) *fingerprint = set->fingerprint;
    return count;
}

/* Whether a list of this root with the classes a and b is stored and valid; writes its path. */
static bool is_stored(const char *root, char path[CR_PATH_MAX]) {
    static const char *const          classes[] = {"a", "b"};
    static struct cr_list_cache       c;
    static struct cr_folder_traversal t;
    t = (struct cr_folder_traversal){0};
    if (cr_folder_resolve(&t, root) != CR_OK || cr_list_cache_open(&c, &t, classes, 2) != CR_OK) return false;
    const bool stored = c.stored != NULL;
    if (stored) CHECK_STR(t.foreign_name, "x.gif");
    if (stored) CHECK_INT(t.foreign, 1);
    if (path) snprintf(path, CR_PATH_MAX, "%s", c.path);
    cr_list_cache_close(&c);
    return stored;
}

/* ---- what is stored ---- */

static const char *const roots[] = {"same", "other", "removed", "renamed", "deep", "class", "replaced", "linked"};

TEST(recent_folders_are_not_stored) {
    make_folder(all);
    make_folder(cache);
    setenv("CRESNET_CACHE", cache, 1);
    for (size_t i = 0; i < CR_COUNT(roots); i++) make_images(formatted("%s/%s", all, roots[i]));
    CHECK(symlink(formatted("%s/same/a/first.jpg", all), formatted("%s/linked/a/link.jpg", all)) == 0);
    const char *path = formatted("%s/same/b/new", all);
    write_bytes(path, "x", 1);
    CHECK(unlink(path) == 0);
    path = formatted("%s/same", all);
    CHECK_INT(count_of(path, 0.5, CR_SPLIT_TRAIN, NULL), HALF);
    CHECK(!is_stored(path, NULL));
    usleep(WAIT_US);
    for (size_t i = 0; i < CR_COUNT(roots); i++) {
        path              = formatted("%s/%s", all, roots[i]);
        const bool linked = strcmp(roots[i], "linked") == 0;
        CHECK_INT(count_of(path, 0.5, CR_SPLIT_TRAIN, NULL) + count_of(path, 0.5, CR_SPLIT_VAL, NULL), IMAGES + linked);
        CHECK_INT(is_stored(path, NULL), !linked); /* what a link leads to cannot be checked */
    }
}

/* With a stored list, without a cache, and when the cache folder cannot be written. */
TEST(stored_list_gives_the_same_images) {
    static const double fractions[] = {0.5, 0.1};
    const char *const   path        = formatted("%s/same", all);
    for (size_t i = 0; i < 2 * CR_COUNT(fractions); i++) {
        const double        fraction = fractions[i / 2];
        const enum cr_split split    = i % 2 ? CR_SPLIT_VAL : CR_SPLIT_TRAIN;
        uint64_t            with, without, unwritable;
        CHECK(is_stored(path, NULL));
        const int64_t count = count_of(path, fraction, split, &with);
        setenv("CRESNET_CACHE", "off", 1);
        CHECK(!is_stored(path, NULL));
        CHECK_INT(count_of(path, fraction, split, &without), count);
        setenv("CRESNET_CACHE", "/dev/null/no", 1);
        CHECK_INT(count_of(path, fraction, split, &unwritable), count);
        setenv("CRESNET_CACHE", cache, 1);
        CHECK(with == without && with == unwritable);
    }
}

TEST(names_are_those_of_the_folder) {
    char               name[SUPPORT_PATH];
    struct cr_dataset *set;
    bool              *seen;
    const char *const  path = formatted("%s/same", all);
    CHECK(is_stored(path, NULL));
    seen = cr_alloc(2 * EACH, sizeof *seen);
    for (int split = 0; split < 2; split++) {
        REQUIRE_OK(open_set(path, 0.5, split ? CR_SPLIT_VAL : CR_SPLIT_TRAIN, &set));
        for (int64_t i = 0; i < set->count; i++) {
            set->ops->name(set, i, name, sizeof name);
            const int number = atoi(strrchr(name, '/') + 1);
            if (!strcmp(strrchr(name, '/'), "/first.jpg")) continue;
            CHECK_STR(name, formatted("%s/%s/%d.jpg", path, number < EACH ? "a" : number % 2 ? "b/deep" : "b", number));
            CHECK_INT(set->ops->label(set, i), number >= EACH);
            CHECK(!seen[number]);
            seen[number] = true;
        }
        cr_dataset_close(set);
    }
    for (int i = 0; i < 2 * EACH; i++) CHECK(seen[i]);
    cr_free(seen);
}

/* ---- changes, damage ---- */

static void change(const char *root) {
    const char *const path = formatted("%s/%s", all, root), *from = formatted("%s/a/7.jpg", path);
    if (!strcmp(root, "removed")) CHECK(unlink(from) == 0);
    if (!strcmp(root, "renamed")) CHECK(rename(from, formatted("%s/a/other.jpg", path)) == 0);
    if (!strcmp(root, "deep")) CHECK(link(from, formatted("%s/b/deep/more.jpg", path)) == 0);
    if (!strcmp(root, "class")) {
        CHECK(mkdir(formatted("%s/c", path), 0777) == 0);
        CHECK(link(from, formatted("%s/c/1.jpg", path)) == 0);
    }
    if (!strcmp(root, "replaced")) { /* the folder of another dataset, with its old times */
        from = formatted("%s/b/deep", path);
        CHECK(rename(from, formatted("%s/gone", all)) == 0);
        CHECK(rename(formatted("%s/other/b/deep", all), from) == 0);
    }
}

TEST(changed_folders_are_listed_again) {
    static const struct {
        const char *root;
        int         more;
    } cases[] = {{"replaced", 0}, {"removed", -1}, {"renamed", 0}, {"deep", 1}, {"class", 1}};
    uint64_t before, after;
    for (size_t i = 0; i < CR_COUNT(cases); i++) {
        const char *const path = formatted("%s/%s", all, cases[i].root);
        CHECK(is_stored(path, NULL));
        count_of(path, 0.5, CR_SPLIT_VAL, &before);
        change(cases[i].root);
        CHECK(!is_stored(path, NULL) || !strcmp(cases[i].root, "class")); /* asked with the old classes */
        CHECK_INT(count_of(path, 0.5, CR_SPLIT_TRAIN, NULL) + count_of(path, 0.5, CR_SPLIT_VAL, &after),
                  IMAGES + cases[i].more);
    }
}

TEST(damaged_lists_are_replaced) {
    char              file[CR_PATH_MAX];
    size_t            length, again;
    uint64_t          want, got;
    const char *const path = formatted("%s/same", all);
    CHECK(is_stored(path, file));
    OWNED(bytes) good = read_bytes(file, &length);
    count_of(path, 0.5, CR_SPLIT_TRAIN, &want);
    for (size_t i = 0; i < 24; i++) {
        const size_t at   = i < 12 ? i * 3 : length / 24 * i;
        uint8_t     *copy = cr_alloc(length, 1);
        memcpy(copy, good, length);
        copy[at] ^= 1;
        write_bytes(file, copy, i % 3 ? length : at); /* a third of them is cut */
        CHECK(!is_stored(path, NULL));
        CHECK_INT(count_of(path, 0.5, CR_SPLIT_TRAIN, &got), HALF);
        CHECK(got == want);
        cr_free(copy);
        copy = read_bytes(file, &again);
        CHECK(again == length && memcmp(copy, good, length) == 0);
        cr_free(copy);
    }
}

TEST(processes_may_store_at_the_same_time) {
    char              file[CR_PATH_MAX];
    pid_t             child[4];
    int               status, files = 0;
    const char *const path = formatted("%s/same", all);
    CHECK(is_stored(path, file));
    CHECK(unlink(file) == 0);
    fflush(stdout);
    for (size_t i = 0; i < CR_COUNT(child); i++) {
        child[i] = fork();
        if (child[i] == 0) _exit(count_of(path, 0.5, CR_SPLIT_TRAIN, NULL) != HALF);
    }
    for (size_t i = 0; i < CR_COUNT(child); i++) {
        CHECK(waitpid(child[i], &status, 0) == child[i]);
        CHECK_INT(status, 0);
    }
    CHECK(is_stored(path, NULL));
    DIR *dir = opendir(cache);
    for (const struct dirent *e; dir && (e = readdir(dir));) files += e->d_name[0] != '.';
    closedir(dir);
    CHECK_INT(files, (int)CR_COUNT(roots) - 1); /* no temporary file is left */
}

TEST(opening_survives_failing_allocations) {
    struct cr_dataset *set;
    const char *const  path = formatted("%s/same", all);
    for (int stored = 1; stored >= 0; stored--) {
        char file[CR_PATH_MAX];
        CHECK(is_stored(path, file));
        for_each_failing_alloc(f, .least = 10) {
            if (!stored) unlink(file);
            const cr_status status = failing_alloc_run(&f, open_set(path, 0.5, CR_SPLIT_VAL, &set));
            if (status == CR_OK) cr_dataset_close(set);
        }
    }
}
