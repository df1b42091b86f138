/* session/confusion.h: what became of each class in an evaluation: which it was taken for, and the pictures that went
 * most wrong.
 *
 * Knows nothing of how it is shown. */
#ifndef CR_CONFUSION_H
#define CR_CONFUSION_H

#include "session/session.h"

enum { CR_WORST_MAX = 24 };

struct cr_miss { /* a picture whose label is not the first class */
    int64_t sample;
    int32_t label, predicted;
    double  loss;        /* -log of the label's probability */
    double  probability; /* of the class that it was taken for */
};

struct cr_confusion {
    int            classes;
    int64_t       *count;               /* [classes: the label][classes: the first class] */
    struct cr_miss worst[CR_WORST_MAX]; /* the largest losses first, equal ones by sample */
    int            worst_count;
};

struct cr_class_score {
    int64_t images, correct, predicted; /* of this label; of these, taken for it; of all labels, taken for it */
    int     confused_with; /* the wrong class that it is taken for most often, the lower of equal ones; CR_NONE: none */
    int64_t confused;      /* how often */
};

CR_MUST cr_status cr_confusion_open(int classes, struct cr_confusion *out);
void              cr_confusion_close(struct cr_confusion *confusion);
/* For cr_session_evaluate_each: counts into `confusion`. */
struct cr_sample_callback cr_confusion_callback(struct cr_confusion *confusion);
struct cr_class_score     cr_confusion_class(const struct cr_confusion *confusion, int label);

#endif
