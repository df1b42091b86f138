/* training/training.h: runs a training (cresnet train), and compares it with the run folder that it resumes. */
#ifndef CR_TRAINING_H
#define CR_TRAINING_H

#include "comm/comm.h"
#include "config/config.h"

struct cr_train_options {
    const char        *resume;    /* NULL, "auto", a run folder or a step folder */
    bool               force;     /* accept changes to model or data order on resume */
    bool               brief;     /* print only results, warnings, and the progress line on a terminal */
    const char *const *overrides; /* "section.key=value" of the command line, applied to the stored config as well */
    int                override_count;
    struct cr_comm    *comm; /* ranks that train together; NULL with one rank. Borrowed */
    /* What continues a run that stopped, for its messages; NULL: "--resume auto". Static. */
    const char *continued_by;
};
/* What has changed since the newest checkpoint of a run folder was saved. */
struct cr_training_changes {
    bool                         begun; /* there is a checkpoint; without one, nothing has changed */
    bool                         ended; /* the run has trained all its steps, or train.patience has ended it */
    struct cr_config_differences keys; /* values of `config` that are not those of the checkpoint and may take effect */
    bool                         refused; /* one of them decides the network, or which images training sees */
    struct cr_text               data;    /* a line "\n  ..." for each difference of the training images */
    bool                         classes; /* the names or the number of the classes differ */
};
/* Compares the configuration and its training images with the run. The caller calls cr_training_changes_free, also
 * after a failure. */
CR_MUST cr_status cr_training_compare(const struct cr_config *config, const char *run_dir,
                                      struct cr_training_changes *out);
void              cr_training_changes_free(struct cr_training_changes *changes);

/* Runs `cresnet train`. *signal_taken is the signal that ended the run, 0 when none did. */
CR_MUST cr_status cr_train(const struct cr_config *config, const struct cr_train_options *options, int *signal_taken);

#endif
