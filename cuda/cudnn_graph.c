/* cudnn_graph.c: see cudnn_graph.h. */
#include "cudnn_graph.h"

#include "cuda.h"

#include <stdio.h>
#include <string.h>

#if CUDNN_VERSION < 90800
#error "cresnet needs cuDNN 9.8 or later: before it, plans cannot be asked for without a GPU"
#endif

enum { CONFIGS_MAX = 64, ALIGNMENT = 16 };

/* ---- descriptors: the first refusal is kept, what follows it does nothing ---- */

/* cuDNN also says "bad parameter" to what an engine or a heuristic does not know. */
static bool worked(struct cudnn_graph *g, cudnnStatus_t status) {
    const int category = CUDNN_STATUS_CATEGORY((int)status);
    if (status != CUDNN_STATUS_SUCCESS && category != CUDNN_STATUS_BAD_PARAM && category != CUDNN_STATUS_NOT_SUPPORTED)
        g->broken = status;
    return status == CUDNN_STATUS_SUCCESS;
}

/* For what may be refused without harm to the graph. */
static bool put(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    return worked(g, cudnnBackendSetAttribute(d, name, type, count, values));
}

static bool put_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
    return put(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* *count gets how many there are. */
static bool get(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t room, int64_t *count, void *values) {
    return worked(g, cudnnBackendGetAttribute(d, name, type, room, count, values));
}

static bool keep(struct cudnn_graph *g, cudnnStatus_t status) {
    if (g->refused == CUDNN_STATUS_SUCCESS) g->refused = status;
    return worked(g, status);
}

static cudnnBackendDescriptor_t make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (g->refused != CUDNN_STATUS_SUCCESS || !keep(g, cudnnBackendCreateDescriptor(type, &d))) return NULL;
    CR_ASSERT(g->mades < CR_CUDNN_DESCRIPTORS);
    return g->made[g->mades++] = d;
}

static void set(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    if (g->refused == CUDNN_STATUS_SUCCESS) keep(g, cudnnBackendSetAttribute(d, name, type, count, values));
}

static void set_ints(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, int64_t count,
                     const int64_t *values) {
    set(g, d, name, CUDNN_TYPE_INT64, count, values);
}

static void set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(struct cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                     cudnnDataType_t type) {
    set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void finalize(struct cudnn_graph *g, cudnnBackendDescriptor_t d) {
    if (g->refused == CUDNN_STATUS_SUCCESS) keep(g, cudnnBackendFinalize(d));
}

static void destroy(cudnnBackendDescriptor_t d) {
    if (d) (void)cudnnBackendDestroyDescriptor(d);
}

/* ---- places ---- */

/* What cuDNN reads of a device, as it writes it itself. `smem`: most that a block can have. */
struct device_facts {
    int         cc, multiprocessors, clock_khz, memory_khz;
    long        smem, l2_bytes, memory_bytes;
    const char *name;
};
static const struct device_facts known[] = {
    {80, 108, 1410000, 1593000, 166912, 40L << 20, 80L << 30, "NVIDIA A100-SXM4-80GB"},
    {90, 132, 1980000, 3201000, 232448, 50L << 20, 140L << 30, "NVIDIA H200"},
};

static int describe(const struct device_facts *f, char *json, size_t size) {
    return snprintf(
        json, size,
        "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
        "\"multiProcessorCount\":%d,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
        "\"maxSharedMemoryPerBlockOptin\":%ld,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
        "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,"
        "\"isTccDriver\":0,\"supportCoopLaunch\":1,\"totalGlobalMem\":%ld,\"smClockRateKHz\":%d,"
        "\"memClockRateKHz\":%d,\"l2CacheSize\":%ld,\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,"
        "\"deviceName\":\"%s\"}",
        f->multiprocessors, f->smem, f->memory_bytes, f->clock_khz, f->memory_khz, f->l2_bytes, f->cc * 10, f->name);
}

cr_status cr_cudnn_place_described(int cc, struct cudnn_place *out) {
    const struct device_facts *facts = NULL;
    char                       json[1200];
    for (size_t i = 0; i < CR_COUNT(known); i++)
        if (known[i].cc == cc) facts = &known[i];
    CR_ASSERT(facts);
    const int                length = describe(facts, json, sizeof json);
    cudnnBackendDescriptor_t d      = NULL;
    CR_ASSERT(length > 0 && (size_t)length < sizeof json);
    CUDNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d));
    cudnnStatus_t status =
        cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, length + 1, json);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(d);
    if (status != CUDNN_STATUS_SUCCESS) destroy(d);
    CUDNN_TRY(status);
    *out = (struct cudnn_place){.described = d};
    return CR_OK;
}

void cr_cudnn_place_close(struct cudnn_place *place) {
    destroy(place->described);
    *place = (struct cudnn_place){0};
}

/* ---- building ---- */

void cr_cudnn_graph_init(struct cudnn_graph *g, struct cudnn_place place) {
    *g = (struct cudnn_graph){.place = place, .refused = CUDNN_STATUS_SUCCESS, .broken = CUDNN_STATUS_SUCCESS};
}

void cr_cudnn_graph_close(struct cudnn_graph *g) {
    while (g->mades) destroy(g->made[--g->mades]); /* last made first: what refers goes before what is referred to */
    *g = (struct cudnn_graph){0};
}

int cr_cudnn_tensor(struct cudnn_graph *g, cudnnDataType_t type, const int64_t dim[4], bool is_virtual) {
    /* cuDNN counts dimensions N,C,H,W whatever the layout; the layout is in the strides. */
    const int64_t N = dim[0], H = dim[1], W = dim[2], C = dim[3];
    const int64_t dims[4] = {N, C, H, W}, strides[4] = {H * W * C, 1, W * C, C}, alignment = ALIGNMENT,
                  id           = g->tensors + 1;
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_ints(g, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &id);
    set_type(g, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set_ints(g, d, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dims);
    set_ints(g, d, CUDNN_ATTR_TENSOR_STRIDES, 4, strides);
    set_ints(g, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment);
    set(g, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    finalize(g, d);
    CR_ASSERT(g->tensors < CR_CUDNN_TENSORS);
    g->tensor[g->tensors] = d;
    return g->tensors++;
}

static void add_op(struct cudnn_graph *g, cudnnBackendDescriptor_t d) {
    CR_ASSERT(g->ops < CR_CUDNN_OPS);
    finalize(g, d);
    g->op[g->ops++] = d;
}

static cudnnBackendDescriptor_t describe_window(struct cudnn_graph *g, const struct cudnn_window *w) {
    const int64_t axes = 2, pad[2] = {w->pad, w->pad}, stride[2] = {w->stride, w->stride}, dilation[2] = {1, 1};
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    cudnnBackendDescriptor_t     d    = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &axes);
    set_type(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, pad);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, pad);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, stride);
    set_ints(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, dilation);
    finalize(g, d);
    return d;
}

void cr_cudnn_conv(struct cudnn_graph *g, enum cudnn_conv_kind kind, const struct cudnn_window *window, int x, int w,
                   int y, bool accumulate) {
    static const struct {
        cudnnBackendDescriptorType_t type;
        cudnnBackendAttributeName_t  window, x, w, y, alpha, beta;
    } names[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    const float              alpha = 1, beta = accumulate ? 1 : 0;
    cudnnBackendDescriptor_t d = make(g, names[kind].type);
    set_descriptor(g, d, names[kind].window, describe_window(g, window));
    set_descriptor(g, d, names[kind].x, g->tensor[x]);
    set_descriptor(g, d, names[kind].w, g->tensor[w]);
    set_descriptor(g, d, names[kind].y, g->tensor[y]);
    set(g, d, names[kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(g, d, names[kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    add_op(g, d);
}

/* ---- plans ---- */

static cudnnBackendDescriptor_t close_graph(struct cudnn_graph *g) {
    cudnnBackendDescriptor_t d = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->ops, g->op);
    if (g->place.handle) set(g, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->place.handle);
    finalize(g, d);
    return d;
}

/* Bits of an engine's notes of one sort; all of them when cuDNN does not say. */
static unsigned notes_of(struct cudnn_graph *g, cudnnBackendDescriptor_t engine, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type) {
    int      note[32];
    int64_t  count = 0;
    unsigned bits  = 0;
    if (!get(g, engine, name, type, CR_COUNT(note), &count, note)) return ~0u;
    for (int64_t i = 0; i < CR_MIN(count, (int64_t)CR_COUNT(note)); i++)
        if (note[i] >= 0 && note[i] < 32) bits |= 1u << note[i];
    return bits;
}

static bool keeps_rules(struct cudnn_graph *g, cudnnBackendDescriptor_t config, const struct cudnn_rules *rules,
                        struct cudnn_plan *p) {
    const unsigned           compiles = 1u << CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    cudnnBackendDescriptor_t engine   = NULL;
    int64_t                  count    = 0;
    if (!worked(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine))) return false;
    bool ok = get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) &&
              get(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &p->engine);
    if (ok) {
        p->notes = notes_of(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
        ok       = p->engine != rules->refused_engine && !(p->notes & rules->refused_notes) &&
             !(notes_of(g, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE) & compiles);
    }
    destroy(engine);
    return ok;
}

/* A plan of the configuration; false: cuDNN cannot, or it needs too much memory. */
static bool build(struct cudnn_graph *g, cudnnBackendDescriptor_t config, const struct cudnn_rules *rules,
                  struct cudnn_plan *p) {
    int64_t count = 0, bytes = 0;
    if (!worked(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan))) return false;
    const bool placed = g->place.handle
                            ? put(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->place.handle)
                            : put_descriptor(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, g->place.described);
    if (placed && put_descriptor(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config) &&
        worked(g, cudnnBackendFinalize(p->plan)) &&
        get(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes) && bytes >= 0 &&
        (size_t)bytes <= rules->workspace_bytes) {
        p->workspace_bytes = (size_t)bytes;
        return true;
    }
    cr_cudnn_plan_close(p);
    return false;
}

/* What the heuristic offers, best first; the configurations belong to the caller. */
static int ask(struct cudnn_graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
               cudnnBackendDescriptor_t *config, int max) {
    cudnnBackendDescriptor_t d     = NULL;
    int64_t                  count = 0;
    int                      made  = 0;
    bool                     ok    = worked(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &d)) &&
              put_descriptor(g, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph) &&
              put(g, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) &&
              (!g->place.described || put_descriptor(g, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->place.described)) &&
              worked(g, cudnnBackendFinalize(d));
    while (ok && made < max &&
           worked(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[made])))
        made++;
    ok = ok && get(g, d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &count, config);
    const int offered = ok ? (int)CR_MIN(count, (int64_t)made) : 0;
    while (made > offered) destroy(config[--made]);
    destroy(d);
    return offered;
}

/* Mode B is not asked: since cuDNN 9 it answers as mode A does. */
cr_status cr_cudnn_graph_plans(struct cudnn_graph *g, const struct cudnn_rules *rules, struct cudnn_plan *plans,
                               int max, int *count) {
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    cudnnBackendDescriptor_t            config[CONFIGS_MAX], graph = close_graph(g);
    *count = 0;
    for (size_t m = 0; m < CR_COUNT(modes) && g->refused == CUDNN_STATUS_SUCCESS && *count == 0; m++) {
        const int offered = ask(g, graph, modes[m], config, CONFIGS_MAX);
        for (int i = 0; i < offered; i++) {
            struct cudnn_plan p = {0};
            if (*count < max && keeps_rules(g, config[i], rules, &p) && build(g, config[i], rules, &p))
                plans[(*count)++] = p;
            destroy(config[i]);
        }
    }
    if (*count == 0) CUDNN_TRY(g->broken);
    return CR_OK;
}

void cr_cudnn_plan_close(struct cudnn_plan *p) {
    destroy(p->plan);
    p->plan = NULL;
}

/* ---- running ---- */

cr_status cr_cudnn_pack_open(const struct cudnn_graph *g, void *const *pointers, void *workspace,
                             cudnnBackendDescriptor_t *out) {
    cudnnBackendDescriptor_t d = NULL;
    int64_t                  id[CR_CUDNN_TENSORS];
    for (int i = 0; i < g->tensors; i++) id[i] = i + 1;
    CUDNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d));
    cudnnStatus_t status =
        cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, g->tensors, id);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, g->tensors,
                                          pointers);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(d);
    if (status != CUDNN_STATUS_SUCCESS) destroy(d);
    CUDNN_TRY(status);
    *out = d;
    return CR_OK;
}

void cr_cudnn_pack_close(cudnnBackendDescriptor_t pack) {
    destroy(pack);
}
