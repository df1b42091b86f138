/* training/training.h: runs a training. */
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
/* Runs `cresnet train`. *signal_taken is the signal that ended the run, 0 when none did. */
CR_MUST cr_status cr_train(const struct cr_config *config, const struct cr_train_options *options, int *signal_taken);

#endif
