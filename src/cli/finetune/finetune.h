/* cli/finetune/finetune.h: cresnet finetune: chooses a configuration for a folder of images, writes it as an INI file
 * and trains. Used by this folder only.
 *
 * The choices are made in this order, each from those before: dataset, device, weights and network, image size,
 * schedule. Keys that the user gives replace choices. The INI file is what is trained: `cresnet train` reads it too. */
#ifndef CR_FINETUNE_H
#define CR_FINETUNE_H

#include "cli/common/command.h"
#include "config/config.h"

enum { CR_FINETUNE_CHOICES = 128 };

/* A line of the INI file. The arena of struct cr_finetune owns the value. */
struct cr_finetune_choice {
    const char *key, *value; /* "optim.lr" */
    const char *why;         /* comment; NULL: none */
};

struct cr_finetune {
    const struct cr_args     *args;
    struct cr_arena           arena;
    const struct cr_config   *given;      /* the dataset and the keys that the user gives; other keys have defaults */
    const char               *root;       /* folder of images */
    const char               *start;      /* the run that is named before the folder; NULL: none */
    const char               *first;      /* run folder of the first training: the one that is named */
    int                       number;     /* of the training at hand, from 1 on */
    const char               *run;        /* run folder: `first`, or first-2, first-3 ... */
    const char               *ini;        /* RUN.ini */
    const char               *before;     /* the run whose weights this one starts from; NULL: another start */
    enum cr_head              head;       /* what becomes of the classifier of the weights: KEEP, MATCH or NEW */
    double                    minutes;    /* --minutes; 0: not given */
    int64_t                   train, val; /* number of images */
    int                       classes;
    int                       source_size; /* pixels of the shorter side of an image, median of a few; 0: unknown */
    bool                      has_val;     /* the folder has a validation set of its own */
    bool                      gpu;
    const char               *weights;      /* model.weights; "": from scratch */
    const char               *network;      /* for people: "resnet18" */
    int                       trained_size; /* image size in pixels that the weights were trained with */
    int                       stages;       /* of the network */
    int                       size, eval_size, trained_stages; /* the first ones keep their weights */
    int64_t                   batch, epochs, frozen_epochs, eval_every;
    bool                      averages;     /* moving averages of the weights */
    double                    images_per_s; /* of training, measured with the next two; 0: unknown */
    int                       measured_size, measured_stages;
    double                    seconds; /* estimated duration; 0: unknown */
    struct cr_finetune_choice choice[CR_FINETUNE_CHOICES];
    int                       choices;
    bool                      failed; /* a choice was lost for lack of memory */
};

/* ---- choices (ini.c) ---- */

/* Sets a key; the last call for a key wins. The value is copied; why may be NULL. Without memory sets f->failed, which
 * the next functions report. */
void cr_finetune_set(struct cr_finetune *f, const char *key, const char *why, const char *format, ...) CR_PRINTF(4, 5);
/* Opens a config with the choices, the keys of the command line, and `more` (NULL-terminated "section.key=value"). */
CR_MUST cr_status cr_finetune_config(const struct cr_finetune *f, const char *const *more,
                                     const struct cr_config **out);
/* Writes the INI file: choices with their reasons, then the keys of the command line. */
CR_MUST cr_status cr_finetune_write(struct cr_finetune *f);
/* Returns whether the file begins like one that cr_finetune_write wrote. */
bool cr_finetune_is_own(const char *ini);

/* ---- network.c ---- */

/* Chooses weights and network by --weights and --model, or by device and number of images, and downloads published
 * weights. */
CR_MUST cr_status cr_finetune_network(struct cr_finetune *f);

/* Returns whether the weights that a user gives are those that a run has started from, model.weights. */
bool cr_finetune_same_weights(const char *given, const char *stored);

/* ---- speed.c ---- */

/* Measures images per second of training with the choices so far, size and trained stages, without the loader. Sets
 * images_per_s, measured_size and measured_stages. */
CR_MUST cr_status cr_finetune_measure(struct cr_finetune *f);
/* Estimated seconds from the start of the training to its end, by the measured speed. */
double cr_finetune_seconds(const struct cr_finetune *f);

/* ---- schedule.c ---- */

/* Were the weights trained with images of at most 64 pixels? */
bool cr_finetune_is_tiny(const struct cr_finetune *f);
/* Writes the value of model.freeze for the stem and the first `stages` stages. */
enum { CR_FINETUNE_FROZEN = 96 };
void cr_finetune_frozen(int stages, char out[CR_FINETUNE_FROZEN]);

/* Chooses image size, batch size, epochs, learning rates; with --minutes, and on the CPU, by a measured speed. */
CR_MUST cr_status cr_finetune_schedule(struct cr_finetune *f);

#endif
