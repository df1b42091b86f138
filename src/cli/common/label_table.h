/* cli/common/label_table.h: the scores of an evaluation with several labels per image (data.multi_label), by class. */
#ifndef CR_LABEL_TABLE_H
#define CR_LABEL_TABLE_H

#include "cli/common/command.h"
#include "formats/json_write.h"
#include "session/labels/label_scores.h"
#include "session/session.h"

struct cr_label_table {
    int                     classes;
    double                 *threshold; /* [classes]: of thresholds.txt, or 0.5 */
    struct cr_label_score  *score;     /* [classes] */
    struct cr_label_counts *counts;    /* [classes]: with these thresholds */
    double                  macro_f1;  /* mean over the classes with images; NAN without */
    struct cr_arena         arena;
};

/* Summarises the last evaluation of the session, whose weights are `weights`. The caller frees
 * out->arena, also on failure. */
CR_MUST cr_status cr_label_table_open(const struct cr_session *session, const char *weights,
                                      struct cr_label_table *out);
/* One line for each class. */
void cr_label_table_print(const struct cr_label_table *table, const struct cr_cmd_names *names, struct cr_text *out);
/* The array per_class. */
void cr_label_table_json(const struct cr_label_table *table, const struct cr_cmd_names *names,
                         struct cr_json_writer *writer);
/* Precision and recall; NAN where undefined. */
double cr_label_precision(const struct cr_label_counts *counts);
double cr_label_recall(const struct cr_label_counts *counts);

#endif
