/* tests/unit/training/test_best.c: train.best chooses the checkpoint `best` by its metric, and train.patience ends the
 * run. The truth is computed from the evaluations in log.jsonl of a run without early stopping. */
#include "tests/harness/train_support.h"

enum { EPOCHS = 9, PER_EPOCH = 6 };

struct evaluations {
    int    count;
    double value[2 * EPOCHS]; /* the better one of the weights and their averages */
    double average[2 * EPOCHS];
    int    step[2 * EPOCHS];
};

static struct evaluations read_log(const struct run *r, const char *name, const char *metric) {
    struct evaluations e = {0};
    char              *text, *save = NULL;
    const char *const  ema = formatted("ema_%s", metric);
    if (cr_file_read(formatted("%s/%s/log.jsonl", r->dir, name), 1 << 20, &text, NULL) != CR_OK) return e;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (!strstr(line, "\"event\":\"eval\"")) continue;
        const double raw = json_number(line, metric), average = json_number(line, ema);
        const bool   less  = strcmp(metric, "loss") == 0;
        e.step[e.count]    = (int)json_number(line, "step");
        e.average[e.count] = isnan(average) ? raw : average;
        e.value[e.count++] = isnan(average) ? raw : less ? fmin(raw, average) : fmax(raw, average);
    }
    cr_free(text);
    return e;
}

/* Index of the first best evaluation among the first n. Of equal ones, the averages decide. */
static int best_of(const struct evaluations *e, int n, bool less) {
    const double sign = less ? -1 : 1;
    int          best = 0;
    for (int i = 1; i < n; i++) {
        const double gain = sign * (e->value[i] - e->value[best]);
        if (gain > 0 || (gain == 0 && sign * (e->average[i] - e->average[best]) > 0)) best = i;
    }
    return best;
}

static int linked_step(const struct run *r, const char *name) {
    char          target[64];
    const ssize_t n       = readlink(formatted("%s/%s/best", r->dir, name), target, sizeof target - 1);
    target[n < 0 ? 0 : n] = 0;
    return n > 5 ? atoi(target + 5) : -1;
}

static double best_json(const struct run *r, const char *name, const char *key) {
    char  *text;
    double value;
    if (cr_file_read(formatted("%s/%s/best.json", r->dir, name), 4096, &text, NULL) != CR_OK) return NAN;
    value = json_number(text, key);
    cr_free(text);
    return value;
}

/* A run whose metrics go up and down. */
static struct run prepare_noisy(void) {
    struct run r = prepare();
    give(&r, "train.epochs=9", "data.val_images=40", "optim.lr=0.4", "train.seed=3", "data.mixup=0.5");
    return r;
}

TEST(best_is_chosen_by_the_metric) {
    static const char *const metrics[] = {"top1", "top5", "loss"};
    for (int with_ema = 0; with_ema < 2; with_ema++) {
        struct run r = prepare_noisy();
        int        steps[3];
        if (with_ema) give(&r, "ema.decay=0.9");
        for (int k = 0; k < 3; k++) {
            REQUIRE_OK(TRAIN(&r, metrics[k], formatted("train.best=%s", metrics[k])));
            const struct evaluations e    = read_log(&r, metrics[k], metrics[k]);
            const int                best = best_of(&e, e.count, k == 2);
            CHECK_INT(e.count, EPOCHS);
            steps[k] = e.step[best];
            CHECK_INT(linked_step(&r, metrics[k]), steps[k]);
            CHECK_NEAR(best_json(&r, metrics[k], "step"), steps[k], 0);
            CHECK_NEAR(best_json(&r, metrics[k], metrics[k]), e.value[best], 1e-6);
            if (with_ema && k == 0) CHECK_NEAR(best_json(&r, "top1", "ema_top1"), e.average[best], 1e-6);
            CHECK(best_json(&r, metrics[k], "top1") >= 0); /* other commands show it */
        }
        check_same(&r, "top1", "loss");
        CHECK(steps[1] != steps[2]); /* the metrics disagree, so the comparison can fail */
    }
}

/* Where a run with this patience must stop. */
static int stop_of(const struct evaluations *e, int patience, bool less) {
    for (int n = 1; n <= e->count; n++)
        if (n - 1 - best_of(e, n, less) >= patience) return e->step[n - 1];
    return e->step[e->count - 1];
}

static int last_step(const struct run *r, const char *name) {
    struct cr_position at;
    return cr_state_position(formatted("%s/%s/last", r->dir, name), &at) == CR_OK ? (int)at.step : -1;
}

/* The run stops where the log of the whole run says, also after it was cut at an epoch, or within one, and resumed. */
TEST(patience_stops) {
    static const int cuts[] = {6, 10, 12, 18, 20, 24};
    struct run       r      = prepare_noisy();
    give(&r, "train.best=loss");
    REQUIRE_OK(TRAIN(&r, "whole", "train.patience=0"));
    const struct evaluations e    = read_log(&r, "whole", "loss");
    const int                stop = stop_of(&e, 2, true);
    CHECK(stop < EPOCHS * PER_EPOCH);
    CHECK_INT(last_step(&r, "whole"), EPOCHS * PER_EPOCH);
    REQUIRE_OK(TRAIN(&r, "patient", "train.patience=1000"));
    check_same(&r, "whole", "patient");
    REQUIRE_OK(TRAIN(&r, "early", "train.patience=2"));
    CHECK_INT(last_step(&r, "early"), stop);
    CHECK_INT(linked_step(&r, "early"), (int)e.step[best_of(&e, stop / PER_EPOCH, true)]);
    for (size_t i = 0; i < CR_COUNT(cuts); i++) {
        const char *const name = formatted("cut%d", cuts[i]);
        if (cuts[i] > stop) continue;
        REQUIRE_OK(TRAIN(&r, name, "train.patience=2", formatted("train.steps=%d", cuts[i])));
        REQUIRE_OK(RESUME(&r, name, "train.patience=2", "train.steps=0"));
        CHECK_INT(last_step(&r, name), stop);
        check_same(&r, "early", name);
    }
    REQUIRE_OK(RESUME(&r, "early", "train.patience=2")); /* it has ended */
    CHECK_INT(last_step(&r, "early"), stop);
    REQUIRE_OK(RESUME(&r, "early", "train.patience=0"));
    check_same(&r, "whole", "early");
}

/* The log of a run that was killed during an evaluation has no line of it. */
TEST(lost_evaluations_are_repeated) {
    static const char *const written[] = {"log.jsonl", "best.json", "best"};
    struct run               r         = prepare_noisy();
    REQUIRE_OK(TRAIN(&r, "whole", "train.best=loss"));
    const int         best = linked_step(&r, "whole");
    const char *const cut = formatted("train.steps=%d", best), *const rest[] = {cut, "train.steps=0"};
    CHECK(best < EPOCHS * PER_EPOCH);
    REQUIRE_OK(TRAIN(&r, "cut", "train.best=loss", cut));
    for (int i = 0; i < 2; i++) { /* the run has ended, or continues */
        for (size_t k = 0; k < CR_COUNT(written); k++) CHECK_INT(unlink(formatted("%s/cut/%s", r.dir, written[k])), 0);
        REQUIRE_OK(RESUME(&r, "cut", rest[i]));
        CHECK_INT(read_log(&r, "cut", "loss").count, i ? 1 + EPOCHS - best / PER_EPOCH : 1);
        CHECK_INT(linked_step(&r, "cut"), best);
    }
    check_same(&r, "whole", "cut");
}

/* The log ends before the evaluation of train.final_tta, or is whole. */
TEST(a_lost_evaluation_of_views_is_repeated) {
    struct run r = prepare_noisy();
    REQUIRE_OK(TRAIN(&r, "views", "train.final_tta=flip"));
    for (int i = 0; i < 3; i++) {
        const char *const log = formatted("%s/views/log.jsonl", r.dir), event[] = "{\"event\":\"final_tta\"";
        char             *text = NULL;
        if (i) REQUIRE_OK(RESUME(&r, "views", "train.final_tta=flip"));
        REQUIRE_OK(cr_file_read(log, 1 << 20, &text, NULL));
        const char *found = strstr(text, event);
        REQUIRE(found && !strstr(found + 1, event));
        if (!i) CHECK_INT(truncate(log, found - text), 0);
        cr_free(text);
    }
}

/* Small validation sets have equal evaluations. Of these the averages decide, which predict uses. A third of the images
 * has no exact value in best.json, and a resumed run must still find that the next third is not better. */
TEST(equal_evaluations) {
    struct run r = prepare_noisy();
    give(&r, "data.val_images=33", "ema.decay=0.9");
    REQUIRE_OK(TRAIN(&r, "whole", "train.steps=0"));
    const struct evaluations e    = read_log(&r, "whole", "top1");
    int                      ties = 0, thirds = 0;
    for (int n = 1; n < EPOCHS; n++) {
        const int best = best_of(&e, n + 1, false);
        for (int i = 0; i < best; i++) ties += e.value[i] == e.value[best];
        thirds += best == 0 && fabs(e.value[1] - 1 / 3.0) < 1e-6;
        const char *const name = formatted("cut%d", n);
        REQUIRE_OK(TRAIN(&r, name, formatted("train.steps=%d", n * PER_EPOCH)));
        REQUIRE_OK(RESUME(&r, name, formatted("train.steps=%d", (n + 1) * PER_EPOCH)));
        CHECK_INT(linked_step(&r, name), e.step[best]);
    }
    CHECK_INT(linked_step(&r, "whole"), e.step[best_of(&e, EPOCHS, false)]);
    CHECK(ties > 0 && thirds > 0); /* otherwise nothing was tested */
}

/* A run that is resumed with another metric begins to compare anew. */
TEST(the_metric_may_change) {
    struct run r = prepare_noisy();
    REQUIRE_OK(TRAIN(&r, "a", "train.steps=24"));
    REQUIRE_OK(RESUME(&r, "a", "train.steps=0", "train.best=loss"));
    const struct evaluations e     = read_log(&r, "a", "loss");
    struct evaluations       later = {0};
    for (int i = 0; i < e.count; i++) {
        if (e.step[i] <= 24) continue;
        later.step[later.count]    = e.step[i];
        later.value[later.count++] = e.value[i];
    }
    CHECK_INT(linked_step(&r, "a"), later.step[best_of(&later, later.count, true)]);
}
