/* cuda/conv/cudnn/cudnn_graph.h: operation graphs of cuDNN through its C backend API: describe tensors and operations
 * (cuda/conv/cudnn/cudnn_graph.c), search for plans, run a plan (cuda/conv/cudnn/cudnn_plan.c). The header has one
 * function for each operation that the kernels use.
 *
 *     struct cudnn_graph g;
 *     cr_cudnn_graph_init(&g, gpu);
 *     int x = cr_cudnn_tensor(&g, CUDNN_DATA_HALF, (int64_t[4]){N, H, W, C}, false);  ...
 *     cr_cudnn_conv(&g, CR_CUDNN_FORWARD, &window, x, w, y, false);
 *     cr_cudnn_search_open(&g, &rules, &search);
 *     CR_TRY(cr_cudnn_search_next(&search, &plan, &found));
 *
 * Invariants
 *   - Tensors are images N,H,W,C or filters K,R,S,C, fully packed, 16-byte aligned. A per-channel vector is an image
 *     1,1,1,C. A virtual tensor is an intermediate result that is never in memory. A tensor's number is its index in
 *     the array of pointers of a run; virtual tensors are numbered too, with NULL as pointer.
 *   - A graph that cuDNN rejects is no error: the rejection is stored while the graph is built, and the graph has no
 *     plans. A failure (a missing library, no memory) is an error.
 *   - A graph, a search and a plan each own their descriptors. A graph must outlive its searches and plans.
 *   - Plans come in the order of cuDNN's heuristics, best first by its estimate. A plan is built only when it is
 *     requested. Engines that compile their kernel when a plan is built (0.3 to 2 s each) are excluded.
 *   - A plan can be built without a GPU: cr_cudnn_device_open_offline describes an offline device, whose plans cannot
 *     run.
 *
 * This file does not depend on programs, ops and kernels. */
#ifndef CR_CUDNN_GRAPH_H
#define CR_CUDNN_GRAPH_H

#include "core/base.h"

#include <cudnn.h>

struct cr_gpu; /* device/offline.h */

enum { CR_CUDNN_TENSORS = 24, CR_CUDNN_OPS = 16, CR_CUDNN_DESCRIPTORS = 64 };

/* The device of the plans: the handle of an open device, or an offline device. */
struct cudnn_device {
    cudnnHandle_t            handle;
    cudnnBackendDescriptor_t offline;
};
/* Why this version of cuDNN cannot answer for an offline device, a text for the user; NULL when it can. The libraries
 * must have been opened. */
const char *cr_cudnn_offline_unsupported(void);
/* Describes a GPU to cuDNN. The caller calls cr_cudnn_device_close. CR_ERR_DEVICE when cuDNN fails or is too old. Hides
 * all GPUs from this process, so that the answers of cuDNN are the same on every machine: a process that plans for an
 * offline device must use no GPU, before or later. */
CR_MUST cr_status cr_cudnn_device_open_offline(const struct cr_gpu *gpu, struct cudnn_device *out);
void              cr_cudnn_device_close(struct cudnn_device *gpu); /* for offline devices */

struct cudnn_graph {
    struct cudnn_device      gpu;
    cudnnBackendDescriptor_t made[CR_CUDNN_DESCRIPTORS], tensor[CR_CUDNN_TENSORS], op[CR_CUDNN_OPS];
    int                      made_count, tensors, ops;
    cudnnStatus_t            refused; /* the first rejection during construction */
    cudnnStatus_t            broken;  /* the last failure that is not a rejection */
};
/* Starts an empty graph. cr_cudnn_graph_close destroys the descriptors of the graph. */
void cr_cudnn_graph_init(struct cudnn_graph *graph, struct cudnn_device gpu);
void cr_cudnn_graph_close(struct cudnn_graph *graph);

/* dim: N,H,W,C (filters K,R,S,C). Returns the tensor's number. */
int cr_cudnn_tensor(struct cudnn_graph *graph, cudnnDataType_t type, const int64_t dim[4], bool is_virtual);

enum cudnn_conv_kind { CR_CUDNN_FORWARD, CR_CUDNN_DGRAD, CR_CUDNN_WGRAD };
struct cudnn_window {
    int64_t stride, pad; /* the same in both directions; dilation is 1 */
};
/* x, w, y: numbers of the tensors or of their gradients. The kind gives the one that is computed or added to. Sums are
 * f32. */
void cr_cudnn_conv(struct cudnn_graph *graph, enum cudnn_conv_kind kind, const struct cudnn_window *window, int x,
                   int w, int y, bool accumulate);

/* y = a + b, a * b, max(a, 0) ...; b: CR_CUDNN_NO_TENSOR where the mode has one operand. RELU_BWD: y = b where a >
 * 0. */
enum { CR_CUDNN_NO_TENSOR = -1 };
void cr_cudnn_pointwise(struct cudnn_graph *graph, cudnnPointwiseMode_t mode, int a, int b, int y);
/* For each channel: sum = sum of x, squares = sum of x^2. */
void cr_cudnn_sums(struct cudnn_graph *graph, int x, int sum, int squares);

enum { CR_CUDNN_REFUSED = 2 };
struct cudnn_rules {
    unsigned refused_notes;   /* bits 1 << CUDNN_NUMERICAL_NOTE_*: engines with one of these notes are excluded */
    size_t   workspace_bytes; /* maximum */
    int64_t  refused_engine[CR_CUDNN_REFUSED]; /* -1: none */
};
struct cudnn_plan {
    cudnnBackendDescriptor_t plan;
    size_t                   workspace_bytes;
    int64_t                  engine; /* cuDNN's number of the engine, for messages */
    unsigned                 notes;  /* numerical notes of the engine, as bits */
};
void cr_cudnn_plan_close(struct cudnn_plan *plan);

/* Returns whether cuDNN has any engine for the graph that satisfies the rules, with default settings. Takes less than 1
 * ms. */
CR_MUST cr_status cr_cudnn_graph_has(struct cudnn_graph *graph, const struct cudnn_rules *rules, bool *out);

/* A search over cuDNN's plans for a graph: first the recommendations of its heuristic, then engines that only its
 * fallback list has. Either list takes well below 1 ms. The heuristic takes 10 to 15 ms where it also considers
 * kernels that must be compiled (graphs with sums). Both take 30 to 200 ms for a fused graph that no compiled kernel
 * supports. */
enum { CR_CUDNN_OFFERS = 64 };
struct cudnn_search {
    struct cudnn_graph      *graph;
    struct cudnn_rules       rules;
    cudnnBackendDescriptor_t closed; /* the graph, as one descriptor */
    cudnnBackendDescriptor_t config[CR_CUDNN_OFFERS];
    int                      offers, next; /* of the current mode */
    int                      mode;         /* the next mode */
    uint64_t                 engines[8];   /* bit e: a plan of engine e was returned */
    bool                     given;        /* whether any plan was returned */
};
/* Starts a search without a query of cuDNN. cr_cudnn_search_close destroys the descriptors of the search. */
void cr_cudnn_search_open(struct cudnn_graph *graph, const struct cudnn_rules *rules, struct cudnn_search *search);
/* Returns the next plan that satisfies the rules; the caller calls cr_cudnn_plan_close. *found is false when there are
 * no more plans. */
CR_MUST cr_status cr_cudnn_search_next(struct cudnn_search *search, struct cudnn_plan *plan, bool *found);
void              cr_cudnn_search_close(struct cudnn_search *search); /* plans that the search returned stay valid */

/* A variant pack: the plan's operands by tensor number (NULL: virtual), and its workspace. The caller calls
 * cr_cudnn_pack_close. The call allocates host memory only. */
CR_MUST cr_status cr_cudnn_pack_open(const struct cudnn_graph *graph, void *const *pointers, void *workspace,
                                     cudnnBackendDescriptor_t *out);
void              cr_cudnn_pack_close(cudnnBackendDescriptor_t pack); /* NULL is allowed */

#endif
