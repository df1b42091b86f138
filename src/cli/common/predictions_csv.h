/* cli/common/predictions_csv.h: the file of --csv: one line per image with its predicted class and all probabilities.
 *
 *   file,predicted_label,predicted_class,probability,score,rejected,label,class,p:NAME,p:NAME,...
 *
 * `score` and `rejected` (1 or 0) are there with predict --reject. `label` and `class` are the true ones; cresnet
 * predict, which does not know them, leaves these two columns out. An
 * image that cannot be read has a line with its file and empty fields.
 *
 * Invariant: a file gets its name when it is complete. Its folder is checked before the images are read. Lines are
 * written in pieces, because 50,000 images of 1,000 classes give half a gigabyte. */
#ifndef CR_PREDICTIONS_CSV_H
#define CR_PREDICTIONS_CSV_H

#include "cli/common/command.h"
#include "core/temporary.h"

struct cr_predictions_csv {
    const struct cr_cmd_names *names; /* borrowed; without a name, a class is "class N" */
    int                        classes;
    bool                       labels;  /* has the columns label and class */
    bool                       rejects; /* has the columns score and rejected: of the image that is added next */
    double                     score;
    bool                       rejected;
    const double              *threshold; /* data.multi_label: [classes], borrowed; NULL: one label per image */
    const char                *name;      /* of the file, borrowed */
    bool                       to_stdout;
    struct cr_output_file      file;
    struct cr_temporary        temporary; /* of a regular file */
    int                        fd;        /* of a device or pipe; -1 otherwise */
    struct cr_text             text;      /* lines that are not written yet */
};

/* Opens the file that the option --csv names. The caller ends with cr_predictions_csv_close, also after a failure. With
 * open->name NULL nothing was opened. CR_ERR_CONFIG, CR_ERR_IO. */
CR_MUST cr_status cr_predictions_csv_open(const struct cr_args *args, struct cr_predictions_csv *open);
/* Sets the classes and writes the first line. `names` must outlive `csv`. */
CR_MUST cr_status cr_predictions_csv_start(struct cr_predictions_csv *csv, int classes, bool labels,
                                           const struct cr_cmd_names *names);
/* Adds the line of an image: probabilities [classes], or NULL when the image could not be read; the predicted class is
 * the first of the most probable ones. `labels` is the true class (NULL: unknown), and counts only with the columns of
 * labels. With thresholds, the predicted labels are those above their thresholds, and these and the true labels
 * (graph/loss.h) are lists separated by semicolons; `probability` is the largest one. */
CR_MUST cr_status cr_predictions_csv_add(struct cr_predictions_csv *csv, const char *path, const int32_t *labels,
                                         const float *probabilities);
/* Writes what is left and gives the file its name. CR_ERR_IO. */
CR_MUST cr_status cr_predictions_csv_finish(struct cr_predictions_csv *csv);
/* Frees everything. A file that was not finished is removed. */
void cr_predictions_csv_close(struct cr_predictions_csv *csv);

#endif
