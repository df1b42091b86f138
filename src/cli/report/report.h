/* cli/report/report.h: what the parts of `cresnet report` share: the numbers of log.jsonl, and HTML and SVG text.
 *
 * Laws
 *   - The page is one file that asks for nothing else: no script, no network (its Content-Security-Policy says so).
 *   - Every name and message goes through cr_page_escape.
 *   - Colours come from the classes of the style sheet, which has a light and a dark set; nothing is told by colour
 * alone.
 *   - Out of memory is sticky in the text. */
#ifndef CR_CMD_REPORT_H
#define CR_CMD_REPORT_H

#include "cli/command.h"
#include "session/confusion.h"
#include "session/session.h"

/* ---- log.jsonl (cli/report/log.c) ---- */

struct cr_series { /* the values of one member of one kind of event: "train/loss", "eval/top1" */
    char    name[64];
    int     count, capacity;
    double *step, *value;
};
struct cr_run_log {
    struct cr_series *series;
    int               count, capacity;
    int64_t           lines, bad_lines; /* bad: no JSON, as a crash may leave */
    int64_t           total_steps, resumes;
    char              version[32];
};
/* Reads the file. Where a run was resumed, what was logged beyond the checkpoint is dropped. CR_ERR_IO, CR_ERR_MEMORY.
 */
CR_MUST cr_status       cr_run_log_read(const char *path, struct cr_run_log *out);
void                    cr_run_log_free(struct cr_run_log *log);
const struct cr_series *cr_run_log_find(const struct cr_run_log *log, const char *name); /* NULL: none */

/* ---- HTML (cli/report/page.c) ---- */

void cr_page_begin(struct cr_text *out, const char *title);
void cr_page_end(struct cr_text *out);
/* Text between tags or in quotes: what has a meaning there is escaped, what is no UTF-8 replaced. */
void cr_page_escape(struct cr_text *out, const char *s);
void cr_page_section(struct cr_text *out, const char *id,
                     const char *heading);                                    /* ends with </section>, by the caller */
void cr_page_note(struct cr_text *out, const char *fmt, ...) CR_PRINTF(2, 3); /* a paragraph; escaped */
/* "img src": pixels [height][width][3] as PNG within the page. */
CR_MUST cr_status cr_page_image(struct cr_text *out, const uint8_t *rgb, int width, int height, const char *alt);
/* A bar a row: name, a share of 0 to 1 that is drawn, and what is written behind it. */
struct cr_bar {
    const char *name, *text, *title; /* title: shown when pointed at; may be NULL */
    double      fraction;
};
void cr_page_bars(struct cr_text *out, const char *label, const struct cr_bar *bars, int count);

/* ---- SVG charts (cli/report/chart_svg.c) ---- */

enum { CR_CHART_LINES = 4 };
struct cr_chart {
    const char *title, *unit;
    const char *format; /* of a value, for one double */
    bool        from_zero;
    double      least_top; /* the scale reaches at least this; 0: whatever there is */
    double      steps;     /* the scale reaches at least this step */
    bool        cut;       /* a few values far above all others do not flatten the rest: they are drawn at the edge */
    struct {
        const char             *name;
        const struct cr_series *series; /* NULL or empty: not drawn */
        double                  scale;  /* what is drawn is value * scale */
        bool                    dots;   /* few values: each is marked */
    } line[CR_CHART_LINES];
};
/* A figure; nothing where no line has values. */
void cr_page_chart(struct cr_text *out, const struct cr_chart *chart);
/* 1, 2 or 5 times a power of ten: at most `ticks` of them in `range` > 0. */
double cr_chart_step(double range, int ticks);

/* ---- parts of the page ---- */

/* cli/report/plan.c */
void cr_report_plan(struct cr_text *out, const struct cr_program *program, const struct cr_param_store *store);
CR_MUST cr_status cr_report_profile(struct cr_text *out, const char *path);
CR_MUST cr_status cr_report_sparsity(struct cr_text *out, struct cr_session *session);
/* cli/report/evaluation.c */
CR_MUST cr_status cr_report_eval(struct cr_text *out, struct cr_session *session, const struct cr_dataset *dataset,
                                 struct cr_scores *scores);

#endif
