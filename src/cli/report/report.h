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
#include "session/confusion.h"
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
    char              version[32]; /* of the program that wrote the log */
};
/* Reads the file. Entries after the step from which a run was resumed are dropped. CR_ERR_IO, CR_ERR_MEMORY. */
CR_MUST cr_status       cr_run_log_read(const char *path, struct cr_run_log *out);
void                    cr_run_log_free(struct cr_run_log *log);
const struct cr_series *cr_run_log_find(const struct cr_run_log *log, const char *name); /* NULL when there is none */

/* ---- HTML (cli/report/page.c) ---- */

void cr_page_begin(struct cr_text *out, const char *title);
void cr_page_end(struct cr_text *out);
/* Adds text between tags or in quotes: escapes special characters and replaces invalid UTF-8. */
void cr_page_escape(struct cr_text *out, const char *s);
/* Starts a section; the caller adds </section>. */
void cr_page_section(struct cr_text *out, const char *id, const char *heading);
/* Adds an escaped paragraph. */
void cr_page_note(struct cr_text *out, const char *fmt, ...) CR_PRINTF(2, 3);
/* Adds an image element with the pixels [height][width][3] embedded as PNG. */
CR_MUST cr_status cr_page_image(struct cr_text *out, const uint8_t *rgb, int width, int height, const char *alt);
/* One line of a bar chart. */
struct cr_bar {
    const char *name, *text; /* text: to the right of the bar */
    const char *title;       /* tooltip; NULL for `text` */
    double      fraction;    /* length of the bar, 0 to 1 */
};
void cr_page_bars(struct cr_text *out, const char *label, const struct cr_bar *bars, int count);

/* ---- SVG charts (cli/report/chart_svg.c) ---- */

enum { CR_CHART_LINES = 4 };
struct cr_chart {
    const char *title, *unit;
    const char *format;    /* printf format of a value, for one double */
    bool        from_zero; /* the y axis includes 0 */
    double      min_top;   /* the y axis reaches at least this value */
    double      steps;     /* the x axis reaches at least this step */
    bool        clip;      /* rare values far above the others are drawn at the top edge and do not set the scale */
    struct {
        const char             *name;
        const struct cr_series *series; /* NULL or empty: not drawn */
        double                  scale;  /* the chart shows value * scale */
        bool                    dots;   /* mark each value (for few values) */
    } line[CR_CHART_LINES];
};
/* Adds a figure; nothing when no line has values. */
void cr_page_chart(struct cr_text *out, const struct cr_chart *chart);
/* Distance of axis ticks: 1, 2 or 5 times a power of ten, such that `range` > 0 has at most `ticks` of them. */
double cr_chart_step(double range, int ticks);

/* ---- sections of the page ---- */

struct cr_report_run {
    char             *dir;  /* run folder, with log.jsonl */
    char             *step; /* step folder (or the link `best`) whose weights and configuration are shown */
    char              step_name[64];
    struct cr_config  config;
    int               classes;
    struct cr_run_log log;
};

/* cli/report/curves.c: from log.jsonl. The model may be NULL. */
void cr_report_header(const struct cr_report_run *run, struct cr_text *out);
void cr_report_facts(const struct cr_report_run *run, const struct cr_model *model, struct cr_text *out);
void cr_report_curves(const struct cr_report_run *run, struct cr_text *out);
void cr_report_speed(const struct cr_report_run *run, struct cr_text *out);
/* cli/report/plan.c: the memory plan of a compiled program; the profile in a file of `cresnet profile --json`
 * (CR_ERR_FORMAT when it is something else); the sparsity of each layer of a session with loaded weights. */
void cr_report_plan(struct cr_text *out, const struct cr_program *program, const struct cr_param_store *store);
CR_MUST cr_status cr_report_profile(struct cr_text *out, const char *path);
CR_MUST cr_status cr_report_sparsity(struct cr_text *out, struct cr_session *session);
/* cli/report/evaluation.c: evaluates the data set; *scores becomes the totals. */
CR_MUST cr_status cr_report_eval(struct cr_text *out, struct cr_session *session, const struct cr_dataset *dataset,
                                 struct cr_scores *scores);

#endif
