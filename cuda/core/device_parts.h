/* cuda/core/device_parts.h: the parts of the GPU device that cuda/device.c puts together: memory, streams, initial
 * values, the other ranks, offline devices. */
#ifndef CR_CUDA_DEVICE_PARTS_H
#define CR_CUDA_DEVICE_PARTS_H

#include "cuda/core/cuda_device.h"

extern const struct cr_backend  cr_backend_cuda;
extern const struct cr_async    cr_cuda_async; /* cuda/core/streams.c */
extern const struct cr_jpeg_ops cr_cuda_jpeg;  /* cuda/jpeg/decoder.c */
/* cuda/core/pinned_memory.c: see cr_async.host_reserve and host_release. */
cr_status cr_cuda_host_reserve(struct cr_device *device, size_t bytes, void **out);
void      cr_cuda_host_release(struct cr_device *device, void *host);
/* cuda/offline_device.c: see cr_gpu_open_offline. open_offline_kernels opens the device with every version of cuDNN;
 * where cr_cudnn_offline_unsupported gives a reason, only kernels of this project may be queried. */
cr_status cr_cuda_open_offline(const struct cr_gpu *gpu, const struct cr_device_options *options,
                               struct cr_device **out);
cr_status cr_cuda_open_offline_kernels(const struct cr_gpu *gpu, const struct cr_device_options *options,
                                       struct cr_device **out);

/* cuda/core/capability.c: sets cc, the limits of shared memory and the families of
 * convolutions. The context of the GPU must exist. CR_ERR_CONFIG
 * when CRESNET_CAPABILITY has an unknown value, or this build has no code for it. */
cr_status cr_cuda_set_capability(struct cuda_device *device, const struct cudaDeviceProp *properties);
/* cuda/core/memset_nodes.c: replaces the memset nodes of a graph by kernel nodes that do the same in less time. */
cr_status cr_cuda_replace_memset_nodes(cudaGraph_t graph);
/* cuda/train/init_kernels.c */
cr_status cr_cuda_init_params(struct cr_device *device, const struct cr_param_store *store,
                              const struct cr_config *config, void *region);
/* cuda/collectives/nccl.c. comm_open joins the other ranks of the device's options. comm_wait waits for an event and
 * returns an error when a rank is lost. */
cr_status cr_cuda_comm_open(struct cuda_device *device);
void      cr_cuda_comm_close(struct cuda_device *device); /* after all captured graphs are destroyed */
cr_status cr_cuda_comm_wait(struct cuda_device *device, cudaEvent_t event);
/* cuda/collectives/peer_copy.c. peers_open finds out together with all ranks whether the GPUs can access each other's
 * memory. *out and device->peers stay NULL when they cannot or when NCCL is configured. */
cr_status cr_cuda_peers_open(struct cuda_device *device, struct cuda_peers **out);
/* From any thread; NULL is allowed. Afterwards no stream waits for other ranks. */
void cr_cuda_peers_abort(struct cuda_peers *peers);
void cr_cuda_peers_close(struct cuda_device *device, bool failed);
/* Size of memory to share, rounded up to whole pages of the driver: other allocations of the same page would be shared,
 * too. */
size_t cr_cuda_peers_bytes(size_t bytes);
/* See cr_backend.share and unshare. */
cr_status cr_cuda_peers_share(struct cr_device *device, void *region);
void      cr_cuda_peers_unshare(struct cr_device *device);
/* cuda/conv/cudnn/cudnn_conv.c */
void cr_cudnn_cache_close(struct cudnn_cache *cache);  /* NULL is allowed */
void cr_cuda_filter_close(struct cuda_filter *filter); /* cuda/sparse/sparse_filter_cache.c; NULL is allowed */

#endif
