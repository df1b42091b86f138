/* tools/spdnn/run_cuda.h: the state of a run of a sparse deep network, which tools/spdnn/run_cuda.c and
 * tools/spdnn/run_cuda_memory.c share. */
#ifndef CR_SPDNN_RUN_H
#define CR_SPDNN_RUN_H

#include "cuda/core/cuda_device.h"
#include "tools/spdnn/kernels.h"
#include "tools/spdnn/spdnn.h"

enum { SPDNN_BUFFERS = 2 };

struct cr_cuda_spdnn_stage { /* layers whose weights are copied together */
    int    first, end;
    size_t at; /* byte offset in host memory */
    size_t bytes;
};

struct cr_cuda_spdnn_run {
    struct cuda_device            *d;
    const struct cr_spdnn_net     *net;
    const struct cr_spdnn_inputs  *inputs;
    const struct cr_spdnn_options *options;
    /* inputs per run; stride of a neuron's row of activations, in inputs */
    int64_t                     part, stride;
    size_t                     *offset; /* [layers]: byte offset of a layer within its stage */
    struct cr_cuda_spdnn_stage *stage;
    int                         stages;
    /* device memory: all weights, or SPDNN_BUFFERS buffers of the size of the largest stage */
    uint8_t                   *weights;
    uint8_t                   *host; /* page-locked memory with all weights, when they are streamed */
    size_t                     weight_bytes, buffer_bytes;
    bool                       streamed;
    bool                       deep;     /* several layers per launch, with deep_state */
    int                        launches; /* number of launches; launch n reads x[n % 2] and writes the other */
    struct ck_spdnn_deep_state deep_state;
    float                     *x[2];
    uint32_t                  *bit;
    int32_t                   *category;
    uint8_t                   *scratch; /* device memory of `state` */
    uint8_t                   *handoff; /* with `deep`: the tiles passed between thread blocks, and their flags */
    struct ck_spdnn_state      state;
    struct ck_spdnn_chip       chip;
    cudaEvent_t                begin, end, started;
    cudaEvent_t                copied[SPDNN_BUFFERS], used[SPDNN_BUFFERS];
    cudaGraphExec_t            graph_exec;
    size_t                     device_bytes;
};

/* Divides the layers into stages and assigns offsets to their weights. Fails with CR_ERR_MEMORY. */
CR_MUST cr_status cr_cuda_spdnn_place_layers(struct cr_cuda_spdnn_run *r);
/* Chooses how many inputs a run has and whether the weights are streamed. Fails with CR_ERR_MEMORY when the device has
 * too little free memory. */
CR_MUST cr_status cr_cuda_spdnn_choose_sizes(struct cr_cuda_spdnn_run *r);
/* Allocates the device memory, page-locked memory and events of a run. After an error the caller still calls
 * cr_cuda_spdnn_close. */
CR_MUST cr_status cr_cuda_spdnn_open_memory(struct cr_cuda_spdnn_run *r);
/* Copies the weights to the device, or to page-locked memory when they are streamed. */
CR_MUST cr_status cr_cuda_spdnn_upload_weights(struct cr_cuda_spdnn_run *r);
/* Waits for the device and frees everything that the run owns. */
void cr_cuda_spdnn_close(struct cr_cuda_spdnn_run *r);

#endif
