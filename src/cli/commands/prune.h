/* cli/commands/prune.h: the parts of `cresnet prune`: prune.c, masks of a given sparsity; prune_request.c, patterns and
 * targets of the command line; cli/budget/, targets of time and of multiply-adds. */
#ifndef CR_CMD_PRUNE_H
#define CR_CMD_PRUNE_H

#include "cli/common/command.h"
#include "formats/json_write.h"
#include "pruning/pruning.h"
#include "session/checkpoint_tensors.h"
#include "session/session.h"

/* What the command line demands: a budget of time or multiply-adds, and patterns that may be used for it. */
struct cr_budget_request {
    double  target_s, speedup, flops; /* at most one is above 0; none: masks of a given sparsity */
    bool    channels, two_four, block, unstructured;
    bool    automatic;   /* --pattern auto: patterns that do not suit the network are left out */
    bool    several;     /* patterns are `auto`, or more than one */
    int64_t recalibrate; /* training batches for new BN statistics; 0: they stay */
    bool   *unreachable; /* becomes true when the budget cannot be met; may be NULL */
};
/* There is a target of time. */
bool cr_prune_by_time(const struct cr_budget_request *request);
/* prune_request.c: reads --target-ms, --speedup and --flops. CR_ERR_USAGE. */
CR_MUST cr_status cr_prune_targets(const struct cr_args *args, struct cr_budget_request *request);
/* Reads the patterns from --pattern, or from prune.pattern when the user has given it; with neither, a target of
 * time may use all patterns. */
CR_MUST cr_status cr_prune_patterns(const struct cr_args *args, const struct cr_config *config,
                                    struct cr_budget_request *request);
/* The override "prune.pattern=P" of a single pattern; NULL with a list, `auto` or no --pattern. The text lives as
 * long as the buffer. */
const char *cr_prune_pattern_key(const struct cr_args *args, char *buffer, size_t size);

/* cli/budget/: prunes until a budget is met, writes the checkpoint, and adds a table or a JSON line to *out.
 * CR_ERR_CONFIG when the budget cannot be met; nothing is written then. */
CR_MUST cr_status cr_prune_to_budget(const struct cr_config *config, const struct cr_budget_request *request, bool json,
                                     struct cr_text *out);

/* cli/budget/flops.c: removes channels until the network has request->flops times fewer multiply-adds, writes the
 * checkpoint of the smaller network, and adds a table or a JSON line to *out. keep_shape: writes the network of the
 * given shape, in which these channels are 0. CR_ERR_CONFIG when the factor cannot be reached. */
CR_MUST cr_status cr_prune_channels(const struct cr_config *config, const struct cr_budget_request *request,
                                    bool keep_shape, bool json, struct cr_text *out);

/* prune.c: changes the copy `local` of the configuration so that a session runs on the CPU in fp32. With importance =
 * taylor or recalibrate > 0, opens the training set, and the session can run cr_session_gradients and
 * cr_session_bn_statistics; else *train is NULL. The caller closes *train. CR_ERR_CONFIG: the dataset has not
 * `classes` classes; the errors of cr_dataset_open. */
CR_MUST cr_status cr_prune_open_data(const struct cr_config **local, int64_t recalibrate, int classes,
                                     struct cr_dataset **train);
/* Computes BN statistics from at most `batches` training batches, when it is above 0. *used: number of batches. */
CR_MUST cr_status cr_prune_recalibrate(struct cr_session *session, const struct cr_dataset *train, int64_t batches,
                                       int64_t *used);
/* Adds the line that says so. `local`: as changed by cr_prune_open_data. */
void cr_prune_recalibrated_text(int64_t batches, const struct cr_config *local, struct cr_text *out);

/* prune.c: writes the session's checkpoint and the configuration, without pruning, to config->train.output. The moving
 * averages start from the weights. The classes have the names stored with `weights`, or numbers. */
CR_MUST cr_status cr_prune_save(struct cr_session *session, const struct cr_config *config, const char *weights);

#endif
