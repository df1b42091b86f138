/* cli/common/reject_choice.h: cresnet eval --reject: chooses the score, and the value below which images are rejected,
 * from the images of an evaluation and, with data.outliers, from images of no class.
 *
 * Without outliers the score is CR_REJECT_DEFAULT. With them it is the one with the largest area under the ROC curve;
 * of equal ones the default. */
#ifndef CR_REJECT_CHOICE_H
#define CR_REJECT_CHOICE_H

#include "cli/common/command.h"
#include "formats/json_write.h"
#include "session/scores/reject.h"
#include "session/session.h"

/* docs/experiments/accuracy.md has the comparison. */
#define CR_REJECT_DEFAULT CR_REJECT_DISTANCE

struct cr_reject_scores {
    double *at[CR_REJECT_SCORES]; /* [count]; sorted at the end */
    int64_t count;
    double  rejected; /* fraction of the images */
};
struct cr_reject_choice {
    bool                     wanted;  /* --reject was given */
    bool                     by_rate; /* false: by outliers alone */
    double                   rate;
    struct cr_reject         reject; /* what was chosen; while images are scored, the means */
    struct cr_reject_scores  images, outliers;
    struct cr_reject_scores *now; /* to which images are added; NULL: to the means */
    double                   auroc[CR_REJECT_SCORES];
    struct cr_arena          arena;             /* of the scores and the names of outliers */
    char                     path[CR_PATH_MAX]; /* of the file that has the choice */
};

/* Reads the option. The caller ends with cr_reject_choice_close. CR_ERR_USAGE; CR_ERR_CONFIG: several labels per image.
 */
CR_MUST cr_status cr_reject_choice_open(const struct cr_args *args, const struct cr_config *config,
                                        struct cr_reject_choice *out);
/* Before the evaluation of `images` images, in a session with keep_features: computes the means of the classes from
 * training images. */
CR_MUST cr_status cr_reject_choice_prepare(struct cr_reject_choice *choice, const struct cr_config *config,
                                           struct cr_session *session, int64_t images);
/* Adds an image of the evaluation. */
void cr_reject_choice_add(struct cr_reject_choice *choice, int label, const float *logits, const float *features);
/* After the evaluation: scores the outliers, chooses, and stores the choice next to the weights. */
CR_MUST cr_status cr_reject_choice_finish(struct cr_reject_choice *choice, const struct cr_config *config,
                                          struct cr_session *session);
void              cr_reject_choice_print(const struct cr_reject_choice *choice, struct cr_text *out);
void              cr_reject_choice_json(const struct cr_reject_choice *choice, struct cr_json_writer *w);
void              cr_reject_choice_close(struct cr_reject_choice *choice);

#endif
