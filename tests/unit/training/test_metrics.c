/* tests/unit/training/test_metrics.c: what the log of a run prints when standard error is no terminal: a line every
 * log_every steps, earlier lines when the last one is old, and only results when the program is quiet. */
#include "formats/json.h"
#include "tests/harness/folder.h"
#include "training/metrics.h"

enum { STEPS = 40, LOG_EVERY = 20 };

/* Runs STEPS steps of 2 ms and returns the lines on standard error; the caller frees them. */
static char *log_of(double progress_s, bool quiet, int *logged) {
    char                          *text = NULL, *lines = NULL;
    struct cr_report              *report;
    const struct cr_step_result    result  = {.loss_sum = 2, .valid = 4, .correct1 = 1, .lr = 0.1};
    const struct cr_report_options options = {.run_dir         = tmp_path,
                                              .total_steps     = STEPS,
                                              .steps_per_epoch = 10,
                                              .epochs          = 4,
                                              .log_every       = LOG_EVERY,
                                              .images_per_step = 4,
                                              .progress_s      = progress_s};
    folder_open();
    fflush(stderr);
    const int terminal = dup(STDERR_FILENO);
    CHECK(freopen(in_folder("stderr"), "w", stderr) != NULL);
    cr_log_quiet(quiet);
    CHECK_STATUS(cr_report_open(&options, &report), CR_OK);
    cr_report_resume_clock(report, 0);
    for (int step = 1; step <= STEPS; step++) {
        usleep(2000);
        cr_report_step(report, step, &result);
    }
    for (int i = 0; i < 2; i++) {
        struct cr_json_writer w = cr_report_begin(report, i ? CR_EVENT_EVAL : CR_EVENT_SAVE);
        cr_json_put_int(&w, "step", STEPS);
        cr_report_end(report, &w, i ? "evaluated" : "saved");
    }
    cr_report_close(report);
    cr_log_quiet(true);
    fflush(stderr);
    dup2(terminal, STDERR_FILENO);
    close(terminal);
    CHECK_STATUS(cr_file_read(in_folder("stderr"), 1 << 20, &text, NULL), CR_OK);
    CHECK_STATUS(cr_file_read(in_folder("log.jsonl"), 1 << 20, &lines, NULL), CR_OK);
    *logged = 0;
    for (const char *at = lines; at && (at = strstr(at, "\"event\":\"train\"")); at++) ++*logged;
    cr_free(lines);
    return text;
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (; (text = strstr(text, part)); text++) count++;
    return count;
}

TEST(steps_are_logged_and_time_adds_lines) {
    int   logged;
    char *text = log_of(1000, false, &logged);
    CHECK_INT(count_of(text, "step "), STEPS / LOG_EVERY);
    CHECK_INT(logged, STEPS / LOG_EVERY);
    CHECK(strstr(text, "saved\n") && strstr(text, "evaluated\n"));
    cr_free(text);
    text = log_of(0.01, false, &logged); /* 80 ms at least: a line every 10 ms */
    CHECK(count_of(text, "step ") >= 6 && count_of(text, "step ") < STEPS);
    CHECK(strstr(text, "loss 0.5000  top-1 25.00 %"));
    CHECK_INT(logged, STEPS / LOG_EVERY); /* log.jsonl does not depend on time */
    cr_free(text);
    text = log_of(0, false, &logged);
    CHECK_INT(count_of(text, "step "), STEPS);
    cr_free(text);
}

TEST(quiet_leaves_results) {
    int           logged;
    OWNED(string) text = log_of(0, true, &logged);
    CHECK_STR(text, "evaluated\n");
    CHECK_INT(logged, STEPS / LOG_EVERY);
}

/* Every line of log.jsonl is JSON, also when the loss is not a number or a run ends without one. */
TEST(lines_are_json) {
    OWNED(string)                  text = NULL;
    struct cr_report              *report;
    const struct cr_report_options options = {
        .run_dir = tmp_path, .total_steps = 3, .steps_per_epoch = 3, .epochs = 1, .log_every = 1, .images_per_step = 4};
    const struct cr_step_result steps[] = {
        {.loss_sum = 2, .valid = 4, .correct1 = 1, .lr = 0.1, .grad_norm = 0.25},
        {.loss_sum = NAN, .valid = 4, .lr = 0.1, .grad_norm = NAN, .loss_scale = 1024, .skipped = 1},
        {.loss_sum = INFINITY, .valid = 4, .lr = 0.1, .grad_norm = INFINITY}};
    folder_open();
    REQUIRE_OK(cr_report_open(&options, &report));
    cr_report_resume_clock(report, 0);
    for (int i = 0; i < 3; i++) cr_report_step(report, i + 1, &steps[i]);
    cr_report_close(report);
    REQUIRE_OK(cr_file_read(in_folder("log.jsonl"), 1 << 20, &text, NULL));
    CHECK_HAS(text, "{\"event\":\"train\",\"step\":1,\"epoch\":1,\"loss\":0.5,\"top1\":0.250000,\"top5\":0.000000,"
                    "\"lr\":0.1,\"grad_norm\":0.25,\"images_per_s\":");
    CHECK_HAS(text, "\"step\":2,\"epoch\":1,\"loss\":null,\"top1\":0.000000,\"top5\":0.000000,\"lr\":0.1,"
                    "\"grad_norm\":null,\"images_per_s\":");
    CHECK_HAS(text, "\"loss_scale\":1024,\"skipped\":1}\n");
    CHECK_HAS(text, "\"step\":3,\"epoch\":1,\"loss\":null,");
    int lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        struct cr_json json;
        cr_json_start(&json, line, strlen(line));
        CHECK(cr_json_skip(&json) && cr_json_end(&json));
    }
    CHECK_INT(lines, 3);
}

/* A device computes each step in 20 ms. From step WAITS_FROM on, the host waits 98 ms for the images of each next step,
 * and 20 of these the device computes. Returns data_wait of the last log line. */
enum { WAITS_FROM = 9, WAITING_STEPS = 10 };
static double wait_of(bool overlapped, struct cr_report_span *span) {
    OWNED(string)                  text = NULL;
    struct cr_report              *report;
    struct cr_step_result          result  = {.loss_sum = 2, .valid = 4, .lr = 0.1};
    const struct cr_report_options options = {.run_dir         = tmp_path,
                                              .total_steps     = WAITS_FROM + WAITING_STEPS,
                                              .steps_per_epoch = 10,
                                              .epochs          = 2,
                                              .log_every       = WAITS_FROM,
                                              .images_per_step = 4,
                                              .progress_s      = 1000,
                                              .overlapped      = overlapped};
    folder_open();
    CHECK_STATUS(cr_report_open(&options, &report), CR_OK);
    cr_report_resume_clock(report, 0);
    for (int step = 1; step <= WAITS_FROM + WAITING_STEPS; step++) {
        usleep(step == 1 ? 60000 : step < WAITS_FROM ? 20000 : 100000); /* the first one prepares */
        cr_report_step(report, step, &result);
        if (step >= WAITS_FROM) result.wait_ns += 98000000; /* in the time until this report */
        if (step == WAITS_FROM) *span = cr_report_take_span(report, 0);
    }
    *span = cr_report_take_span(report, 0);
    cr_report_close(report);
    CHECK_STATUS(cr_file_read(in_folder("log.jsonl"), 1 << 20, &text, NULL), CR_OK);
    double      wait = 0;
    const char *at   = text;
    while ((at = strstr(at, "\"data_wait\":"))) wait = strtod(at += strlen("\"data_wait\":"), NULL);
    return wait;
}

TEST(a_wait_of_the_host_is_no_wait_of_a_device_that_computes) {
    struct cr_report_span span;
    double                wait = wait_of(false, &span);
    CHECK(wait > 0.85 && wait <= 1);
    wait = wait_of(true, &span);
    CHECK(wait > 0.6 && wait < 0.85); /* 0.8; sleeps take longer on a machine with other work */
    CHECK_INT(span.steps, WAITING_STEPS);
    const double fraction = (double)span.wait_ns / (double)span.ns;
    CHECK(fraction > 0.6 && fraction < 0.85);
}
