/* session/quantization/quantized.h: quantised networks: their scales are found from a network in floating point, and
 * their checkpoints hold 8-bit weights.
 *
 * model.safetensors of a quantised network has "PATH.weight" as I8 for each quantised layer, "PATH.weight_scale" (F32,
 * one for each output channel) and "PATH.scale" (F32, one number) for each quantised activation. The parameter store
 * holds the weights in floating point, as integer times scale. */
#ifndef CR_QUANTIZED_H
#define CR_QUANTIZED_H

#include "quantization/quantization.h"
#include "session/checkpoint_tensors.h"

/* Scales by the names of their parameters. A zeroed struct is empty; cr_calibration_free frees it. */
struct cr_calibration {
    struct cr_calibrated {
        const char *name;  /* "layer1.0.relu1.scale", "conv1.weight_scale" */
        int64_t     elems; /* 1, or the number of output channels */
        float      *scale; /* [elems] */
    } * at;
    int             count;
    int64_t         images; /* seen */
    struct cr_arena arena;
};
/* Runs the network of config (model.weights, in floating point) on quant.images images of the training set, prepared as
 * in evaluation, and finds a scale for every tensor that a network with [quant] type = int8 quantises, by quant.method.
 * Runs on the device of config in fp32, whatever its precision. */
CR_MUST cr_status cr_calibrate(const struct cr_config *config, const struct cr_dataset *train,
                               struct cr_calibration *out);
void              cr_calibration_free(struct cr_calibration *calibration);

/* Opens a session of the quantised network for config (with quant.type = int8), with the weights of model.weights in
 * floating point and the scales of the calibration. The caller closes it, also after a failure. */
CR_MUST cr_status cr_quantized_open(const struct cr_config *config, const struct cr_calibration *calibration,
                                    int classes, struct cr_session *out);
/* The change of the logits when one layer alone is quantised. */
struct cr_layer_cost {
    const char *layer; /* "layer1.0.conv1" */
    double      error; /* mean squared difference of the logits from those in floating point */
};
/* Measures all quantised layers on training images. The calibration owns *costs. */
CR_MUST cr_status cr_quantized_measure(const struct cr_config *config, struct cr_calibration *calibration,
                                       const struct cr_dataset *train, struct cr_layer_cost **costs, int *count);
/* Writes the checkpoint step-0 of a quantised session to run_dir. */
CR_MUST cr_status cr_quantized_save(struct cr_session *session, const char *run_dir, const char *config_text,
                                    const char *const *class_names, int classes);

#endif
