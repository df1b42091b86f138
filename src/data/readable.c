/* data/readable.c: checks before training: classes without any readable image; whether there are JPEG files. */
#include "data/decode.h"
#include "data/source.h"

#include <stdio.h>

/* Reads one image: the header of a JPEG, and all of another. */
static cr_status open_image(const struct cr_dataset *dataset, int64_t sample, struct cr_scratch *scratch) {
    char                 name[CR_SAMPLE_NAME_BYTES];
    struct cr_stored     stored;
    struct cr_lazy_image lazy;
    int32_t              label;
    cr_dataset_sample_name(dataset, sample, name, sizeof name);
    CR_TRY(cr_dataset_fetch(dataset, sample, scratch, &stored, &label));
    return cr_lazy_image_open(&stored, name, scratch, &lazy);
}

/* Tries the images of each class until one can be read. left[k]: images of class k that were not tried; 0 once one was
 * read. */
static cr_status check(const struct cr_dataset *dataset, int64_t *left, struct cr_scratch *scratch) {
    char why[1000];
    for (int64_t i = 0; i < dataset->count; i++) {
        const int32_t k = cr_dataset_label(dataset, i);
        if (!left[k]) continue;
        const cr_status status = open_image(dataset, i, scratch);
        if (status == CR_OK)
            left[k] = 0;
        else if (!cr_dataset_is_corrupt(dataset, status))
            return status;
        else if (!--left[k]) {
            cr_error_copy(why, sizeof why);
            return CR_FAIL(CR_ERR_FORMAT,
                           "the class %.100s has no image that can be read (%lld tried): %s; replace its images, or "
                           "remove the class",
                           dataset->class_names[k], (long long)dataset->class_counts[k], why);
        }
        cr_error_clear();
    }
    return CR_OK;
}

cr_status cr_dataset_check_readable(const struct cr_dataset *dataset) {
    struct cr_scratch scratch = {0};
    int64_t          *left;
    if (dataset->generated || dataset->label_rows || !dataset->class_counts || !dataset->class_names) return CR_OK;
    CR_ALLOC(left, (size_t)dataset->classes);
    for (int k = 0; k < dataset->classes; k++) left[k] = dataset->class_counts[k];
    const cr_status status = check(dataset, left, &scratch);
    cr_scratch_free(&scratch);
    cr_free(left);
    return status;
}

bool cr_dataset_has_jpegs(const struct cr_dataset *dataset) {
    enum { TRIES = 16 };
    struct cr_scratch scratch = {0};
    bool              found   = false;
    cr_error_hold();
    for (int64_t i = 0; i < TRIES && !found; i++) {
        struct cr_stored stored;
        int32_t          label;
        if (cr_dataset_fetch(dataset, i * dataset->count / TRIES, &scratch, &stored, &label) != CR_OK) continue;
        found = stored.bytes && stored.count > 2 && stored.bytes[0] == 0xff && stored.bytes[1] == 0xd8;
    }
    cr_error_release();
    cr_scratch_free(&scratch);
    return found;
}
