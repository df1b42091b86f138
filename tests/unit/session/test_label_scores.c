/* tests/unit/session/test_label_scores.c: average precision, F1 and thresholds of several labels per image: against
 * scikit-learn (tests/golden/labels/make.py); the file of thresholds. */
#define GOLDEN_FILE "labels/scores.safetensors"
#include "session/labels/label_scores.h"
#include "session/saved_model.h"

#include "tests/harness/data_support.h"
#include "tests/harness/golden_tensors.h"

static void read_part(const char *part, struct cr_label_scores *out) {
    int64_t n, d[4], w[4];
    golden_shape(part, "logits", d);
    golden_shape(part, "labels", w);
    OWNED(doubles) logits = golden_read(part, "logits", &n), labels = golden_read(part, "labels", &n);
    *out = (struct cr_label_scores){.classes = (int)d[3], .words = (int)w[3]};
    REQUIRE(logits && labels);
    for (int64_t i = 0; i < d[0]; i++) {
        float   one[64];
        int32_t row[4];
        for (int k = 0; k < out->classes; k++) one[k] = (float)logits[i * d[3] + k];
        for (int k = 0; k < out->words; k++) row[k] = (int32_t)labels[i * w[3] + k];
        REQUIRE_OK(cr_label_scores_add(out, row, one));
    }
}

static void check_part(const char *part) {
    struct cr_label_scores s;
    struct cr_label_score  score[64];
    int64_t                n;
    double *ap = golden_read(part, "ap", &n), *f1 = golden_read(part, "f1", &n), *map = golden_read(part, "map", &n),
           *range = golden_read(part, "range", &n);
    REQUIRE(ap && f1 && map && range);
    read_part(part, &s);
    REQUIRE_OK(cr_label_scores_classes(&s, score));
    for (int k = 0; k < s.classes; k++) {
        if (ap[k] < 0)
            CHECK(isnan(score[k].ap));
        else
            CHECK_NEAR(score[k].ap, ap[k], 1e-12);
        CHECK_NEAR(score[k].f1, f1[k], 1e-12);
        CHECK(score[k].threshold >= range[2 * k] - 1e-12 && score[k].threshold <= range[2 * k + 1] + 1e-12);
        const struct cr_label_counts c = cr_label_scores_count(&s, k, score[k].threshold);
        CHECK_INT(c.images, score[k].images);
        if (score[k].images) CHECK_NEAR(cr_label_f1(&c), f1[k], 1e-12); /* the threshold gives this F1 */
    }
    CHECK_NEAR(cr_label_scores_map(score, s.classes), map[0], 1e-12);
    cr_label_scores_free(&s);
    cr_free(ap);
    cr_free(f1);
    cr_free(map);
    cr_free(range);
}

TEST(equal_to_scikit_learn) {
    check_part("few");
    check_part("wide");
    check_part("rare");
}

TEST(thresholds_file) {
    char         dir[SUPPORT_PATH];
    double       out[3];
    const double given[3] = {0.25, 0.123456789, 1};
    make_folder(dir);
    const char *path = formatted("%s/model.safetensors", dir);
    REQUIRE_OK(cr_file_write_atomic(path, "", 0));
    REQUIRE_OK(cr_saved_model_thresholds(path, 3, out));
    CHECK(out[0] == 0.5 && out[2] == 0.5); /* without the file */
    REQUIRE_OK(cr_saved_model_put_thresholds(dir, 3, given));
    REQUIRE_OK(cr_saved_model_thresholds(path, 3, out));
    CHECK(memcmp(out, given, sizeof out) == 0);
    CHECK_STATUS(cr_saved_model_thresholds(path, 2, out), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "has 3 thresholds, but the network has 2 classes");
    path = formatted("%s/thresholds.txt", dir);
    REQUIRE_OK(cr_file_write_atomic(path, "0.5\n2\n0.5\n", 10));
    CHECK_STATUS(cr_saved_model_thresholds(dir, 3, out), CR_ERR_FORMAT);
    CHECK_HAS(cr_error_message(), "thresholds.txt:2: is no number from 0 to 1");
}
