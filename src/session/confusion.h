/* session/confusion.h: the confusion matrix of an evaluation, and the images with the highest losses. */
#ifndef CR_CONFUSION_H
#define CR_CONFUSION_H

#include "session/session.h"

enum { CR_WORST_MAX = 24 };

struct cr_sample_loss {
    int64_t sample;
    int32_t label, predicted;
    double  loss;              /* -log(label_probability) */
    double  label_probability; /* of the label */
    double  probability;       /* of the predicted class */
};

struct cr_confusion {
    int                   classes;
    int64_t              *count;               /* [label][predicted class] */
    struct cr_sample_loss worst[CR_WORST_MAX]; /* by decreasing loss, equal losses by sample */
    int                   worst_count;
};

struct cr_class_score {
    int64_t images;    /* with this label */
    int64_t correct;   /* of these, predicted as this class */
    int64_t predicted; /* images of any label that are predicted as this class */
    int confused_with; /* most frequent incorrect prediction for this label, the lower class when equal; or CR_NONE */
    int64_t confused;  /* number of these predictions */
};

/* Allocates an empty matrix; the caller frees it with cr_confusion_close. */
CR_MUST cr_status cr_confusion_open(int classes, struct cr_confusion *out);
void              cr_confusion_close(struct cr_confusion *confusion);
/* Returns a callback for cr_session_evaluate_each that counts into `confusion`. */
struct cr_sample_callback cr_confusion_callback(struct cr_confusion *confusion);
/* Summarises one row and column of the matrix. */
struct cr_class_score cr_confusion_class(const struct cr_confusion *confusion, int label);

#endif
