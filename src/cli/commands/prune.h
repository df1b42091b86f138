/* cli/commands/prune.h: the parts of `cresnet prune`: prune.c; prune_target.c, the sparsities that --target-ms chooses
 * and their predicted times; prune_channels.c, --pattern channels.
 *
 * Invariants
 *   - Times are sums over the ops of the evaluation program that run for each batch. The cost model of the device gives
 *     the time of each op: measured on a GPU; elsewhere roofline estimates, with the device's own rule for which
 *     convolutions skip pruned weights.
 *   - Times are computed for exactly the nonzeros that remain after pruning. */
#ifndef CR_CMD_PRUNE_H
#define CR_CMD_PRUNE_H

#include "cli/common/command.h"
#include "formats/json_write.h"
#include "pruning/pruning.h"
#include "session/session.h"
#include "session/state.h"

struct cr_prune_guide {
    double  target_s;             /* requested time per batch; 0 without --target-ms */
    double  dense_s, predicted_s; /* time of the program with nothing pruned, and with the chosen sparsities */
    double  fixed_s;              /* part of dense_s that pruning does not change */
    int64_t batch;
    bool    measured;           /* times were measured */
    double  sparse_density_max; /* without measured times: the density up to which sparse kernels are used */
    char    device[256];
    struct cr_prune_guided {
        double dense_s, seconds, lost; /* lost: fraction of the squared L2 norm that pruning removes */
        bool   timed;                  /* a convolution that may be pruned */
        bool   sparse;                 /* runs on a sparse kernel */
    } * layer;                         /* [prune->layers] */
};
/* Chooses layer[].sparsity of `prune` for weights and masks. guide->target_s is set by the caller; the function sets
 * the other members. CR_ERR_CONFIG when the time cannot be reached, or is reached without pruning. */
CR_MUST cr_status cr_prune_guide(const struct cr_config *config, int classes, struct cr_prune *prune,
                                 const struct cr_state_buffers *buffers, struct cr_prune_guide *guide);
void              cr_prune_guide_free(struct cr_prune_guide *guide);
/* After the masks are chosen: adds the table, or further members of the JSON line (", ..."). */
void cr_prune_guide_print(const struct cr_prune_guide *guide, const struct cr_prune *prune, struct cr_text *out);
void cr_prune_guide_json(const struct cr_prune_guide *guide, const struct cr_prune *prune, struct cr_json_writer *w);

/* prune_channels.c: removes channels until the network has `factor` times fewer multiply-adds, writes the checkpoint of
 * the smaller network, and adds a table or a JSON line to *out. recalibrate: as in cr_prune_recalibrate. CR_ERR_CONFIG
 * when the factor cannot be reached. */
CR_MUST cr_status cr_prune_channels(const struct cr_config *config, double factor, int64_t recalibrate, bool json,
                                    struct cr_text *out);

/* prune.c: changes the copy `local` of the configuration so that a session runs on the CPU in fp32. With importance =
 * taylor or recalibrate > 0, opens the training set, and the session can run cr_session_gradients and
 * cr_session_bn_statistics; else *train is NULL. The caller closes *train. CR_ERR_CONFIG: the dataset has not
 * `classes` classes; the errors of cr_dataset_open. */
CR_MUST cr_status cr_prune_open_data(struct cr_config *local, int64_t recalibrate, int classes,
                                     struct cr_dataset **train);
/* Computes BN statistics from at most `batches` training batches, when it is above 0. *used: number of batches. */
CR_MUST cr_status cr_prune_recalibrate(struct cr_session *session, const struct cr_dataset *train, int64_t batches,
                                       int64_t *used);
/* Adds the line that says so. `local`: as changed by cr_prune_open_data. */
void cr_prune_recalibrated_text(int64_t batches, const struct cr_config *local, struct cr_text *out);

/* prune.c: class names stored with the weights; numbered names when there are none. The caller frees names->arena. */
CR_MUST cr_status cr_prune_name_classes(const char *weights, int classes, struct cr_cmd_names *names);
/* Writes the session's checkpoint and the configuration, without pruning, to config->train.output. */
CR_MUST cr_status cr_prune_save(struct cr_session *session, const struct cr_config *config,
                                const struct cr_cmd_names *names);

#endif
