/* cuda/conv/cudnn/cudnn_descriptor.h: sets and reads descriptors of cuDNN's C backend API; private to
 * cuda/conv/cudnn/cudnn_graph.c and cuda/conv/cudnn/cudnn_plan.c.
 *
 * While a graph is built, the first rejected call is stored and later calls do nothing, so the caller need not check
 * each call. A query of a finished graph may fail without any effect on the graph. */
#ifndef CR_CUDNN_DESCRIPTOR_H
#define CR_CUDNN_DESCRIPTOR_H

#include "cuda/conv/cudnn/cudnn_graph.h"

/* ---- for a finished graph ---- */

/* cuDNN also returns "bad parameter" for attributes that an engine or a heuristic does not know. */
static inline bool cudnn_succeeded(struct cudnn_graph *g, cudnnStatus_t status) {
    const int category = CUDNN_STATUS_CATEGORY((int)status);
    if (status != CUDNN_STATUS_SUCCESS && category != CUDNN_STATUS_BAD_PARAM && category != CUDNN_STATUS_NOT_SUPPORTED)
        g->broken = status;
    return status == CUDNN_STATUS_SUCCESS;
}

static inline bool cudnn_put(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    return cudnn_succeeded(g, cudnnBackendSetAttribute(d, name, type, count, values));
}

static inline bool cudnn_put_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
                                        cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
    return cudnn_put(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* *count gets the number of elements. */
static inline bool cudnn_get(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    return cudnn_succeeded(g, cudnnBackendGetAttribute(d, name, type, room, count, values));
}

static inline void cudnn_destroy(cudnnBackendDescriptor_t d) {
    if (d) (void)cudnnBackendDestroyDescriptor(d);
}

/* ---- while a graph is built ---- */

static inline bool cudnn_build_step(struct cudnn_graph *g, cudnnStatus_t status) {
    if (g->refused == CUDNN_STATUS_SUCCESS) g->refused = status;
    return cudnn_succeeded(g, status);
}

static inline cudnnBackendDescriptor_t cudnn_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (g->refused != CUDNN_STATUS_SUCCESS || !cudnn_build_step(g, cudnnBackendCreateDescriptor(type, &d))) return NULL;
    CR_ASSERT(g->made_count < CR_CUDNN_DESCRIPTORS);
    return g->made[g->made_count++] = d;
}

static inline void cudnn_set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (g->refused == CUDNN_STATUS_SUCCESS) cudnn_build_step(g, cudnnBackendSetAttribute(d, name, type, count, values));
}

static inline void cudnn_set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
                                        cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value) {
    cudnn_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static inline void cudnn_finalize(struct cudnn_graph *g, cudnnBackendDescriptor_t d) {
    if (g->refused == CUDNN_STATUS_SUCCESS) cudnn_build_step(g, cudnnBackendFinalize(d));
}

#endif
