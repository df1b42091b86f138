/* cuda/core/memset_nodes.c: replaces the memset nodes of a captured graph by kernel nodes.
 *
 * cuDNN zeroes workspaces and outputs by cudaMemsetAsync. In a graph, the kernel behind a memset node begins 4 us after
 * it (10 us where the graph has several branches, measured on an H200), the kernel behind a kernel node within 1 us. */
#include "cuda/common/driver.h"
#include "cuda/common/launchers.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"

#include <cuda.h>

#if CUDART_VERSION < 13000 /* there the functions of these names do not know the data of edges */
#define cudaGraphNodeGetDependencies cudaGraphNodeGetDependencies_v2
#define cudaGraphNodeGetDependentNodes cudaGraphNodeGetDependentNodes_v2
#define cudaGraphAddDependencies cudaGraphAddDependencies_v2
#endif

enum { NEIGHBOURS = 64 }; /* a node with more stays as it is */

static cr_status replace(cudaGraph_t graph, cudaGraphNode_t node) {
    struct cudaMemsetParams memset;
    cudaGraphNode_t         before[NEIGHBOURS], behind[NEIGHBOURS], fill[NEIGHBOURS];
    size_t                  befores, behinds;
    CUDA_TRY(cudaGraphMemsetNodeGetParams(node, &memset));
    CUDA_TRY(cudaGraphNodeGetDependencies(node, NULL, NULL, &befores));
    CUDA_TRY(cudaGraphNodeGetDependentNodes(node, NULL, NULL, &behinds));
    if (memset.width == 1 /* separates launches that are timed: autotune/measure.c */ || befores > NEIGHBOURS ||
        behinds > NEIGHBOURS)
        return CR_OK;
    if (befores) CUDA_TRY(cudaGraphNodeGetDependencies(node, before, NULL, &befores));
    if (behinds) CUDA_TRY(cudaGraphNodeGetDependentNodes(node, behind, NULL, &behinds));
    CUDA_TRY(ck_add_fill_node(graph, before, befores, &memset, &fill[0]));
    if (!fill[0]) return CR_OK;
    for (size_t i = 1; i < behinds; i++) fill[i] = fill[0];
    if (behinds) CUDA_TRY(cudaGraphAddDependencies(graph, fill, behind, NULL, behinds));
    return CUDA_STATUS(cudaGraphDestroyNode(node));
}

/* The runtime's cudaGraphNodeGetType has no name for the nodes of cuStreamBatchMemOp (peer_copy.c), and fails. */
typedef CUresult (*node_type)(CUgraphNode node, CUgraphNodeType *type);

cr_status cr_cuda_replace_memset_nodes(cudaGraph_t graph) {
    cr_status        status = CR_OK;
    cudaGraphNode_t *node;
    size_t           nodes;
    node_type        type_of   = NULL;
    *(void **)(void *)&type_of = ck_driver_function("cuGraphNodeGetType");
    if (!type_of) return CR_OK;
    CUDA_TRY(cudaGraphGetNodes(graph, NULL, &nodes));
    CR_ALLOC(node, nodes + 1);
    cudaError_t error = nodes ? cudaGraphGetNodes(graph, node, &nodes) : cudaSuccess;
    for (size_t i = 0; i < nodes && error == cudaSuccess && status == CR_OK; i++) {
        CUgraphNodeType type;
        if (type_of(node[i], &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMSET)
            status = replace(graph, node[i]);
    }
    cr_free(node);
    CUDA_TRY(error);
    return status;
}
