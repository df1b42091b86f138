/* training/class_balance.c: class weights of a run's loss, and a warning about class imbalance (classes of very
 * different size). See training/run.h. */
#include "training/run.h"

#include <inttypes.h>

enum { WARN_FACTOR = 10 };

/* Logs the smallest and the largest weight with their classes. */
static void log_weights(const struct cr_run *run, const float *weights, int classes) {
    int low = 0, high = 0;
    for (int k = 1; k < classes; k++) {
        if (weights[k] < weights[low]) low = k;
        if (weights[k] > weights[high]) high = k;
    }
    cr_log(CR_LOG_INFO, "loss    class weights from %.4g (%s) to %.4g (%s)", (double)weights[low],
           run->train->class_names[low], (double)weights[high], run->train->class_names[high]);
}

/* Warns when a class has ten times as many training images as another one, unless the configuration
 * balances them. */
static void warn_unbalanced(const struct cr_run *run, int classes) {
    const int64_t *counts = run->train->class_counts;
    int            low = 0, high = 0;
    if (!counts || *run->config->loss.class_weights || run->config->data.sampling == CR_SAMPLING_BALANCED) return;
    for (int k = 1; k < classes; k++) {
        if (counts[k] < counts[low]) low = k;
        if (counts[k] > counts[high]) high = k;
    }
    if (counts[high] < WARN_FACTOR * CR_MAX(counts[low], 1)) return;
    cr_log(CR_LOG_WARN,
           "the class %s has %" PRId64 " training images and %s has %" PRId64
           ": the network will seldom predict rare classes; please try %s"
           "loss.class_weights=balanced",
           run->train->class_names[high], counts[high], run->train->class_names[low], counts[low],
           run->config->data.multi_label ? "" : "data.sampling=balanced or ");
}

cr_status cr_run_check_balance(struct cr_run *run) {
    const int classes = run->train->classes;
    float    *weights;
    CR_TRY(cr_dataset_class_weights(run->config, run->train, classes, &weights));
    cr_status status =
        weights ? cr_comm_same(run->comm, weights, (size_t)classes * sizeof *weights, "loss.class_weights") : CR_OK;
    if (status == CR_OK && cr_run_reports(run)) {
        if (weights) log_weights(run, weights, classes);
        warn_unbalanced(run, classes);
    }
    if (weights && run->config->data.sampling == CR_SAMPLING_BALANCED && cr_run_reports(run))
        cr_log(CR_LOG_WARN,
               "data.sampling=balanced and loss.class_weights both favour rare classes: one of them is enough");
    cr_free(weights);
    return status;
}
