/* training/data_wait.c: logs the bottleneck of data loading when training waits for images. See training/run.h. */
#include "data/load_need.h"
#include "training/run.h"

#include <stdio.h>
#include <string.h>

/* FIRST_STEPS: steps before the first check, as an epoch may take hours. LEAST_NS: shorter times say nothing. */
enum { FIRST_STEPS = 100, LEAST_NS = 1000000000 };

/* The counts since the last check. A run that unfreezes parts opens a new loader. */
static struct cr_load_counts counts_since(struct cr_run *run) {
    struct cr_load_counts now, *before = &run->data_watch.before;
    cr_loader_counts(run->loader, &now);
    if (now.images < before->images) *before = (struct cr_load_counts){0};
    const struct cr_load_counts since = cr_load_counts_since(&now, before);
    *before                           = now;
    return since;
}

static void log_need(struct cr_report *report, const struct cr_run *run, double waited, const struct cr_load_need *need,
                     const struct cr_load_supply *supply, const char *hint, bool is_new) {
    char                  human[512];
    struct cr_json_writer w = cr_report_begin(report, CR_EVENT_DATA_WAIT);
    cr_json_put_int(&w, "step", run->at.step);
    cr_json_put_fixed(&w, "fraction", waited, 4);
    cr_json_put_fixed(&w, "needed_images_per_s", need->rate, 1);
    cr_json_put_fixed(&w, "read", need->read, 2);
    cr_json_put_fixed(&w, "decode", need->decode, 2);
    cr_json_put_fixed(&w, "resize", need->resize, 2);
    cr_json_put_fixed(&w, "copy", need->copy, 2);
    cr_json_put_int(&w, "cores", supply->cores);
    cr_json_put_int(&w, "workers", supply->workers);
    cr_json_put_string(&w, "hint", hint);
    snprintf(human, sizeof human, "data wait %.1f %%: %s", 100 * waited, hint);
    cr_report_end(report, &w, is_new ? human : NULL);
}

void cr_run_watch_data(struct cr_run *run, struct cr_report *report) {
    struct cr_data_watch *watch = &run->data_watch;
    if (!report || (++watch->steps != FIRST_STEPS && run->at.step % run->at.steps_per_epoch)) return;
    const struct cr_report_span span = cr_report_take_span(report, LEAST_NS);
    if (span.ns <= span.wait_ns) return;
    const struct cr_load_counts counts = counts_since(run);
    const double                waited = (double)span.wait_ns / (double)span.ns;
    if (waited <= CR_LOAD_WAIT_MAX && !watch->waited) return;
    const int processes =
        cr_comm_size(run->comm) > 1 ? cr_comm_rank_info(run->comm, cr_comm_rank(run->comm))->local_size : 1;
    const int64_t images           = span.steps * run->config->train.accumulate * cr_run_batch(run); /* of this rank */
    const struct cr_load_need need = cr_load_need(&counts, (double)images * 1e9 / (double)(span.ns - span.wait_ns));
    struct cr_load_supply     supply =
        cr_load_supply_of(&run->session.prepare_train, (int)run->config->data.workers, processes);
    supply.gpu = run->config->data.decode == CR_DECODE_CPU && strcmp(run->config->memory.limit, "auto") == 0 &&
                 !cr_session_jpeg_obstacle(&run->session);
    struct cr_text hint = {0};
    watch->waited       = waited > CR_LOAD_WAIT_MAX;
    if (watch->waited) cr_load_hint(&need, &supply, &hint);
    const char *said   = hint.length ? hint.data : "";
    const bool  is_new = *said && strncmp(watch->said, said, sizeof watch->said - 1) != 0; /* it names another stage */
    if (is_new) snprintf(watch->said, sizeof watch->said, "%.4s", said);
    if (!hint.failed) log_need(report, run, waited, &need, &supply, said, is_new);
    cr_text_free(&hint);
}
