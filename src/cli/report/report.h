/* cli/report/report.h: the parts of `cresnet report`: the run, the numbers of log.jsonl, HTML text and SVG charts.
 *
 * Invariants
 *   - The page is one file and loads nothing: no script, no network (its Content-Security-Policy says so).
 *   - Every name and message goes through cr_page_escape.
 *   - Colours come from the classes of the style sheet, which has a light and a dark set. No information is shown by
 *     colour alone.
 *   - Out of memory sets cr_text.failed, which is checked at the end. */
#ifndef CR_CMD_REPORT_H
#define CR_CMD_REPORT_H

#include "cli/common/command.h"
#include "cli/svg/svg.h"
#include "session/scores/confusion.h"
#include "session/session.h"

/* ---- log.jsonl (cli/report/log.c) ---- */

struct cr_series {    /* values of one member of one kind of event over steps */
    char    name[64]; /* "train/loss", "eval/top1" */
    int     count, capacity;
    double *step, *value; /* [count] */
};
struct cr_run_log {
    struct cr_series *series;
    int               count, capacity;
    int64_t           lines, bad_lines; /* bad_lines: not valid JSON, as after a crash */
    int64_t           total_steps, resumes;
    double            steps_per_epoch;    /* 0: unknown */
    int64_t           began;              /* seconds since 1970; 0: unknown, in logs of older versions */
    int64_t           seconds, last_time; /* time that the processes of the run took, and the last time in the log */
    char              version[32];        /* of the program that wrote the log */
    char              hint[256]; /* of the last event data_wait: the slow stage; empty if training does not wait */
};
/* Reads the file. Entries after the step from which a run was resumed are dropped. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status cr_run_log_read(const char *path, struct cr_run_log *out);
void              cr_run_log_free(struct cr_run_log *log);
struct cr_series *cr_run_log_find(const struct cr_run_log *log, const char *name); /* NULL when there is none */

/* ---- HTML (cli/report/page.c) ---- */

extern const char cr_page_style[]; /* the style sheet, cli/report/style.c */
void              cr_page_begin(struct cr_text *out, const char *title);
void              cr_page_end(struct cr_text *out);
/* One entry of a list of facts: a name, which is HTML, and a text of at most 255 bytes, which is escaped. */
void cr_page_fact(struct cr_text *out, const char *name, const char *fmt, ...) CR_PRINTF(3, 4);
/* Starts a section; the caller adds </section>. */
void cr_page_section(struct cr_text *out, const char *id, const char *heading);
/* Starts a section whose contents are hidden until the reader opens them; the caller adds CR_PAGE_CLOSED_END. */
#define CR_PAGE_CLOSED_END "</details>\n</section>\n"
void cr_page_closed_section(struct cr_text *out, const char *id, const char *heading, const char *what);
/* Adds an escaped paragraph. */
void cr_page_note(struct cr_text *out, const char *fmt, ...) CR_PRINTF(2, 3);
void cr_page_cell(struct cr_text *out, const char *text); /* a cell of a table, with an escaped text */
void cr_page_number(struct cr_text *out, const char *format, double value); /* a cell of a table; "-" for NaN */
/* Adds an image element with the pixels [height][width][3] embedded as PNG, or as JPEG above 64 pixels. */
CR_MUST cr_status cr_page_image(struct cr_text *out, const struct cr_image *image, const char *alt);
/* One line of a bar chart. */
struct cr_bar {
    const char *name, *text; /* text: to the right of the bar */
    const char *title;       /* tooltip; NULL for `text` */
    double      fraction;    /* length of the bar, 0 to 1 */
};
void cr_page_bars(struct cr_text *out, const char *label, const struct cr_bar *bars, int count);

/* ---- SVG charts (cli/report/chart_svg.c) ---- */

enum { CR_CHART_LINES = 8 };
struct cr_chart {
    const char *title, *unit;
    const char *format;    /* printf format of a value, for one double */
    bool        from_zero; /* the y axis includes 0 */
    double      min_top;   /* the y axis reaches at least this value */
    double      steps;     /* the x axis reaches at least this step */
    double      epoch;     /* steps of an epoch, the unit of the x axis; 0: the unit is one step */
    bool        relative;  /* lines of several runs, with epochs of different lengths: no steps in tooltips */
    double      best;      /* step that a vertical line marks; 0: none */
    bool        clip;      /* rare values far above the others are drawn at the top edge and do not set the scale */
    struct {
        const char             *name;
        const struct cr_series *series; /* NULL or empty: not drawn */
        double                  epoch;  /* steps of an epoch of this line's run, if they differ; 0: as the chart */
        double                  scale;  /* the chart shows value * scale */
        bool                    dots;   /* mark each value (for few values) */
    } line[CR_CHART_LINES];
};
/* Adds a figure; nothing when no line has values. */
void cr_page_chart(struct cr_text *out, const struct cr_chart *chart);

/* ---- sections of the page ---- */

/* The best evaluation of a run: the same numbers in the card, in the legends and at the markers. */
struct cr_best {
    const struct cr_series *top1; /* eval/top1 or, when the averages are better, eval/ema_top1; NULL: no evaluation */
    double                  step, value;
    bool                    averages;
};
struct cr_report_run {
    char dir[CR_PATH_MAX];  /* run folder, with log.jsonl */
    char step[CR_PATH_MAX]; /* step folder (or the link `best`) whose weights and configuration are shown */
    char step_name[64];
    const struct cr_config *config;
    int                     classes;
    struct cr_run_log       log;
};

/* cli/report/report.c: reads the run that operand `index` names; the caller closes it with cr_report_run_close, also
 * after a failure. */
CR_MUST cr_status cr_report_run_open(const struct cr_args *args, int index, struct cr_report_run *run);
void              cr_report_run_close(struct cr_report_run *run);

/* cli/report/title.c */
struct cr_best cr_report_best(const struct cr_report_run *run);
/* Steps of an epoch: from the log, or from its length and the configuration; 0: unknown. */
double cr_report_epoch_steps(const struct cr_report_run *run);
/* "ResNet-20 on CIFAR-10" */
void cr_report_subject(const struct cr_report_run *run, char *text, size_t size);
/* "2026-11-22, 1 h 12 min"; empty when the log has no times. */
enum { CR_WHEN_MAX = 96 };
void cr_report_when(const struct cr_report_run *run, char text[CR_WHEN_MAX]);
/* Name of the run folder: the last part of its path. */
void cr_report_name(const struct cr_report_run *run, char *name, size_t size);
/* A series of the log; NULL when it has no values. */
const struct cr_series *cr_report_series(const struct cr_report_run *run, const char *name);
/* The accuracy of the evaluations, or of their moving averages: top-1, or mAP when images have several labels. */
const struct cr_series *cr_report_accuracy(const struct cr_report_run *run, bool averages);
const char             *cr_report_metric(const struct cr_report_run *run); /* "top-1" or "mAP" */
double                  cr_series_median(const struct cr_series *series);
double                  cr_series_last(const struct cr_series *series); /* NAN for NULL */
/* The last value up to a step; NAN when there is none. */
double cr_series_at(const struct cr_series *series, double step);

/* cli/report/compare.c: cresnet report --compare RUN ...: several runs on one page. */
CR_MUST cr_status cr_report_compare(const struct cr_args *args);
/* cli/report/curves.c: from log.jsonl. The model may be NULL. */
void cr_report_header(const struct cr_report_run *run, struct cr_text *out);
void cr_report_facts(const struct cr_report_run *run, const struct cr_model *model, struct cr_text *out);
void cr_report_curves(const struct cr_report_run *run, struct cr_text *out);
void cr_report_speed(const struct cr_report_run *run, struct cr_text *out);
/* cli/report/plan.c: the memory plan of a compiled program; the sparsity of each layer of a session with loaded
 * weights. */
void cr_report_plan(struct cr_text *out, const struct cr_program *program, const struct cr_param_store *store);
CR_MUST cr_status cr_report_sparsity(struct cr_text *out, struct cr_session *session);
/* cli/report/evaluation.c: evaluates the data set; *scores becomes the totals. */
CR_MUST cr_status cr_report_eval(struct cr_text *out, struct cr_session *session, const struct cr_dataset *dataset,
                                 struct cr_scores *scores);
/* Ends the list of scores, and says how many images could not be read. */
void cr_report_skipped(struct cr_text *out, const struct cr_scores *scores);
/* cli/report/labels.c: the same when images have several labels. `weights`: of the session. */
CR_MUST cr_status cr_report_labels(struct cr_text *out, struct cr_session *session, const char *weights,
                                   const struct cr_dataset *dataset, struct cr_scores *scores);

#endif
