/* graph/param_store.h: the parameter store, the data that persists across steps (weights, gradients, momentum, running
 * statistics): one table of parameters, and flat buffers with the same offsets. Part of graph/graph.h. */
#ifndef CR_PARAM_STORE_H
#define CR_PARAM_STORE_H

#include "core/dtype.h"

struct cr_config; /* config/config.h */

/* The buffers of the parameter store lie in the STORE region, one after the other in this order. All buffers that are
 * indexed by parameter use the same element offset (cr_param.offset) for a parameter. RUNNING and EMA_RUNNING are
 * indexed by the running statistics in the same way.
 *
 *   VALUE        the parameters
 *   GRAD         the gradients of the parameters
 *   MOMENTUM     first moment of the update rule
 *   RUNNING      running mean and variance of the batch norms; scales of quantised networks
 *   STATE        CR_STATE_COUNT f64 scalars, indexed by enum cr_state
 *   HALF         VALUE rounded to 16 bits; exists only for 16-bit programs. The op `cast` refreshes this buffer at the
 *                start of each program
 *   MASK         pruning mask, u8, one bit for each element of VALUE: bit i%8 of byte i/8 is 1 when element i is not
 *                pruned. Padding and parameters that are never pruned have 1. Exists only for pruned networks. The
 *                update reads the mask; a bit mask adds 0.6 % to the bytes that the update moves, a byte mask would
 *                add 5 %
 *   SECOND       mean of squared gradients of AdamW, LAMB and Muon
 *   EMA          exponential moving average of VALUE, or with ema.swa_start the equal average
 *   EMA_RUNNING  exponential moving average of RUNNING
 *   TEACHER      constants of a teacher network (model/teacher.h), indexed by the teacher's own table of parameters;
 *                checkpoints do not contain them
 *   TEACHER_HALF TEACHER rounded to 16 bits; exists only for 16-bit programs */
enum cr_param_buffer {
    CR_BUFFER_VALUE,
    CR_BUFFER_GRAD,
    CR_BUFFER_MOMENTUM,
    CR_BUFFER_RUNNING,
    CR_BUFFER_STATE,
    CR_BUFFER_HALF,
    CR_BUFFER_MASK,
    CR_BUFFER_SECOND,
    CR_BUFFER_EMA,
    CR_BUFFER_EMA_RUNNING,
    CR_BUFFER_TEACHER,
    CR_BUFFER_TEACHER_HALF,
    CR_BUFFERS
};
const char *cr_param_buffer_name(enum cr_param_buffer buffer);

/* Scalars (f64) that only kernels write during training; state.safetensors contains them. */
enum cr_state {
    CR_STATE_LOSS_SCALE, /* factor of the loss and so of the gradients; 1 in fp32 */
    CR_STATE_GROWTH,     /* updates since the loss scale last changed */
    CR_STATE_UPDATES,    /* updates applied */
    CR_STATE_BATCHES,    /* training forward passes (PyTorch's num_batches_tracked) */
    CR_STATE_NONFINITE,  /* 1 when the last update was skipped because the loss or a gradient was not finite */
    CR_STATE_SKIPPED,    /* updates skipped so far */
    CR_STATE_COUNT = 8
};

enum cr_param_role {
    CR_ROLE_CONV,
    CR_ROLE_CHANNEL_CONV, /* a filter over channels, 1,1,1,L; in files 1,1,L */
    CR_ROLE_DENSE_WEIGHT,
    CR_ROLE_DENSE_BIAS,
    CR_ROLE_GAMMA,
    CR_ROLE_BETA,
    CR_ROLE_MEAN,
    CR_ROLE_VAR,
    CR_ROLE_SCALE /* of quantised values: one of an activation, one for each output channel of a filter */
};

struct cr_param {
    const char        *name; /* as in torchvision: "layer1.0.bn2.weight" */
    enum cr_param_role role;
    int64_t            dim[4]; /* K,R,S,C for filters, K,1,1,C for dense weights, 1,1,1,C for vectors */
    int64_t            elems;
    int64_t            offset;          /* elements from the start of each buffer; a multiple of 64 */
    bool               decay;           /* weight decay applies */
    double             lr_scale;        /* factor of the learning rate: by optim.head_lr, layer_decay, bn_bias_factor */
    bool               frozen;          /* has no gradient and is not updated */
    bool               classifier;      /* of the last layer, whose size is the number of classes */
    bool               zero;            /* a gamma with the initial value 0 (model.zero_init_last) */
    int64_t            fan_in, fan_out; /* of the layer that the parameter belongs to */
    int                layer;
};

/* The table of parameters and the layout of their buffers. The parameter store owns no buffer memory: the STORE region
 * does. */
struct cr_param_store {
    struct cr_param *param; /* parameters and running statistics, in torchvision's order of definition */
    int              params, capacity;
    int64_t          value_elems, running_elems; /* length of VALUE and RUNNING, with padding */
    enum cr_dtype    real; /* type of all buffers except STATE, HALF and MASK: f32; f64 in tests */
    enum cr_dtype    half; /* type of HALF: f16 or bf16; f32 when there is no HALF buffer */
    bool             has_momentum;
    bool             has_mask;
    const uint8_t *pattern; /* host copy of fixed masks that programs rely on, layout of MASK; NULL if none. Borrowed */
    bool           has_second;
    bool           has_ema;
    int64_t        teacher_elems; /* length of TEACHER, with padding; 0: no teacher */
    bool           failed;        /* out of memory while adding a parameter; stays set */
    struct cr_arena arena;        /* owns the names */
};
/* Adds a parameter and returns its index; the name is copied. Means, variances and scales go to the running buffer, all
 * other roles to the value buffer. Out of memory sets store->failed. */
int cr_param_store_add(struct cr_param_store *store, const char *name, enum cr_param_role role, const int64_t dim[4],
                       int layer);
/* Returns the index of the parameter with this name, or CR_NONE. */
int cr_param_store_find(const struct cr_param_store *store, const char *name);
/* Returns the index of the filters of the first convolution, or CR_NONE. */
int           cr_param_store_first_filter(const struct cr_param_store *store);
enum cr_dtype cr_param_store_buffer_dtype(const struct cr_param_store *store, enum cr_param_buffer buffer);
/* Offset of a buffer in the STORE region in bytes, a multiple of 256; that of a parameter in it (CR_NONE: of the buffer
 * itself); the buffer's size in bytes, 0 when the store has no such buffer; the size of the whole region in bytes. */
size_t cr_param_store_buffer_offset(const struct cr_param_store *store, enum cr_param_buffer buffer);
size_t cr_param_store_offset(const struct cr_param_store *store, enum cr_param_buffer buffer, int param);
size_t cr_param_store_buffer_bytes(const struct cr_param_store *store, enum cr_param_buffer buffer);
size_t cr_param_store_bytes(const struct cr_param_store *store);
bool   cr_param_is_running(enum cr_param_role role);
/* Number of trainable parameters (elements); running statistics do not count. */
int64_t cr_param_store_trainable(const struct cr_param_store *store);
/* Initial value of one element by the rule of [model] init. `oihw`: index of the element in the order of files
 * (filters: O,I,H,W). */
float cr_param_store_initial(const struct cr_param_store *store, int param, int64_t oihw,
                             const struct cr_config *config);
/* Writes the initial values of parameter `param` to one of two host buffers with the layout of VALUE and RUNNING. */
void cr_param_store_init_param(const struct cr_param_store *store, int param, const struct cr_config *config,
                               float *value, float *running);
/* The same for all parameters. */
void cr_param_store_init_host(const struct cr_param_store *store, const struct cr_config *config, float *value,
                              float *running);
void cr_param_store_free(struct cr_param_store *store);

#endif
