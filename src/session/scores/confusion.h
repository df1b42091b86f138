/* session/scores/confusion.h: the confusion matrix of an evaluation, means over classes, the calibration of the
 * probabilities, and the images with the highest losses. */
#ifndef CR_CONFUSION_H
#define CR_CONFUSION_H

#include "session/session.h"

enum { CR_WORST_MAX = 24, CR_CALIBRATION_BINS = 15 };

struct cr_sample_loss {
    int64_t sample;
    int32_t label, predicted;
    double  loss;              /* -log(label_probability) */
    double  label_probability; /* of the label */
    double  probability;       /* of the predicted class */
};

/* Images whose predicted class has a probability in one of the equally wide bins of 0 to 1. */
struct cr_calibration_bin {
    int64_t images, correct;
    double  probabilities; /* sum */
};

struct cr_class_score {
    int64_t images;    /* with this label */
    int64_t correct;   /* of these, predicted as this class */
    int64_t predicted; /* images of any label that are predicted as this class */
    int confused_with; /* most frequent incorrect prediction for this label, the lower class when equal; or CR_NONE */
    int64_t confused;  /* number of these predictions */
};

/* A cell of the matrix off its diagonal. */
struct cr_confusion_cell {
    int32_t label, predicted;
    int64_t count;
};

/* Takes memory in proportion to the classes and to the different incorrect predictions, not to classes^2. */
struct cr_confusion {
    int                       classes;
    struct cr_class_score    *score;               /* [classes] */
    struct cr_confusion_cell *cell;                /* the cells that are not 0, sorted by label and predicted class */
    int64_t                   cells, capacity;     /* while images are counted: a hash table of `capacity` places */
    cr_status                 status;              /* CR_ERR_MEMORY: cells are missing */
    struct cr_sample_loss     worst[CR_WORST_MAX]; /* by decreasing loss, equal losses by sample */
    int                       worst_count;
    struct cr_calibration_bin bin[CR_CALIBRATION_BINS];
};

/* Means over the classes that have images: each class counts once. NAN without images. */
struct cr_class_means {
    int    classes;
    double precision, recall, f1; /* the mean recall is called balanced accuracy */
};

/* Allocates an empty matrix; the caller frees it with cr_confusion_close. */
CR_MUST cr_status cr_confusion_open(int classes, struct cr_confusion *out);
void              cr_confusion_close(struct cr_confusion *confusion);
/* Returns a callback for cr_session_evaluate_each that counts into `confusion`. */
struct cr_sample_callback cr_confusion_callback(struct cr_confusion *confusion);
/* After the last image: sorts the cells and completes the scores. CR_ERR_MEMORY: images could not be counted. */
CR_MUST cr_status cr_confusion_finish(struct cr_confusion *confusion);
/* One cell of the finished matrix. */
int64_t cr_confusion_count(const struct cr_confusion *confusion, int label, int predicted);
/* The harmonic mean of precision and recall; 0 where either is undefined. */
double                cr_class_f1(const struct cr_class_score *score);
struct cr_class_means cr_confusion_means(const struct cr_confusion *confusion);
/* The expected calibration error (Guo et al. 2017): the mean distance, over images, between the fraction of correct
 * predictions in a bin and their mean probability. NAN without images. */
double cr_calibration_error(const struct cr_calibration_bin *bins);
/* Counts an image whose predicted class has this probability. bins: [CR_CALIBRATION_BINS] */
void cr_calibration_count(struct cr_calibration_bin *bins, double probability, bool correct);

#endif
