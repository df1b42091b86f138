/* cuda/train/init_kernels.c: weight initialisation: creates the initial values of a parameter store on the GPU. The
 * host only makes the table of parameters. No parameter, gradient or optimizer value is ever in host memory. The kernel
 * is in cuda/train/init.cu. */
#include "core/rng.h"
#include "cuda/common/launchers.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"

#include <math.h>

/* Distribution of a parameter, as in graph/param_store.c: He et al. 2015 for convolutions; torchvision's rule for the
 * classifier. */
static struct ck_init_param rule_of(const struct cr_param *q, const struct cr_config *config) {
    const double fan = (double)(config->model.init == CR_INIT_HE_FAN_IN ? q->fan_in : q->fan_out);
    switch (q->role) {
    case CR_ROLE_CONV:
        if (config->model.init_shape == CR_INIT_UNIFORM)
            return (struct ck_init_param){.draw = CK_DISTRIBUTION_UNIFORM, .scale = (float)sqrt(6.0 / fan)};
        return (struct ck_init_param){.draw = CK_DISTRIBUTION_NORMAL, .scale = (float)sqrt(2.0 / fan)};
    case CR_ROLE_CHANNEL_CONV:
    case CR_ROLE_DENSE_WEIGHT:
    case CR_ROLE_DENSE_BIAS:
        return (struct ck_init_param){.draw = CK_DISTRIBUTION_UNIFORM, .scale = (float)(1.0 / sqrt((double)q->fan_in))};
    case CR_ROLE_GAMMA: return (struct ck_init_param){.draw = CK_DISTRIBUTION_CONSTANT, .scale = q->zero ? 0.0f : 1.0f};
    case CR_ROLE_SCALE:
    case CR_ROLE_VAR: return (struct ck_init_param){.draw = CK_DISTRIBUTION_CONSTANT, .scale = 1.0f};
    case CR_ROLE_BETA:
    case CR_ROLE_MEAN: break;
    }
    return (struct ck_init_param){.draw = CK_DISTRIBUTION_CONSTANT, .scale = 0.0f};
}

/* Fills the table. Returns the number of tiles of all parameters. */
static int64_t fill_table(const struct cr_param_store *store, const struct cr_config *config,
                          struct ck_init_param *table, int *params) {
    int64_t tiles = 0;
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (q->elems == 0) continue;
        const enum cr_param_buffer buffer = cr_param_is_running(q->role) ? CR_BUFFER_RUNNING : CR_BUFFER_VALUE;
        struct ck_init_param      *entry  = &table[(*params)++];
        *entry                            = rule_of(q, config);
        entry->at         = (int64_t)(cr_param_store_buffer_offset(store, buffer) / sizeof(float)) + q->offset;
        entry->elems      = q->elems;
        entry->first_tile = tiles;
        entry->RS         = (uint32_t)(q->dim[1] * q->dim[2]);
        entry->C          = (uint32_t)q->dim[3];
        entry->number     = (uint32_t)i;
        tiles += ck_init_tiles(q->elems);
    }
    return tiles;
}

/* Initialises all buffers that do not start with zeros, in one launch. The table is placed at the start of the gradient
 * buffer during the launch, because nothing has written gradients yet; so no memory is allocated. Afterwards that part
 * of the gradient buffer is set to zero again. Does not wait. */
cr_status cr_cuda_init_params(struct cr_device *device, const struct cr_param_store *store,
                              const struct cr_config *config, void *region) {
    const cudaStream_t    stream = cuda_of(device)->stream[CR_STREAM_COMPUTE];
    char                 *base   = region;
    double               *state  = (void *)(base + cr_param_store_buffer_offset(store, CR_BUFFER_STATE));
    void                 *there  = base + cr_param_store_buffer_offset(store, CR_BUFFER_GRAD);
    struct ck_init_param *table;
    int                   params = 0;
    cr_status             status = CR_OK;
    CR_ASSERT(store->real == CR_F32);
    CR_ALLOC(table, (size_t)store->params);
    const int64_t tiles = fill_table(store, config, table, &params);
    const size_t  bytes = (size_t)params * sizeof *table;
    /* 256 bytes for each parameter; BN has two in addition to its statistics */
    CR_ASSERT(bytes <= cr_param_store_buffer_bytes(store, CR_BUFFER_GRAD));
    CR_TRY_OUT(device->backend->put(device, there, table, bytes));
    cudaError_t error = ck_init(there, params, tiles, region, (uint64_t)config->train.seed, CR_RNG_INIT, state, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(there, 0, bytes, stream);
    if (error != cudaSuccess) status = cr_cuda_fail(error, "initial values", __FILE__, __LINE__);
out:
    cr_free(table);
    return status;
}
