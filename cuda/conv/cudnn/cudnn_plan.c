/* cuda/conv/cudnn/cudnn_plan.c: finds (heuristics of cuDNN) and runs the plans of a graph. */
#include "cuda/conv/cudnn/cudnn_descriptor.h"

#include "cuda/core/cuda_device.h"

/* ---- plans ---- */

static cudnnBackendDescriptor_t close_graph(struct cudnn_graph *g) {
    cudnnBackendDescriptor_t d = cudnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(g, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->ops, g->op);
    if (g->gpu.handle) cudnn_set(g, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->gpu.handle);
    cudnn_finalize(g, d);
    return d;
}

static bool is_refused(const struct cudnn_rules *rules, int64_t engine) {
    for (int i = 0; i < CR_CUDNN_REFUSED; i++)
        if (rules->refused_engine[i] == engine) return true;
    return false;
}

/* Bits of an engine's notes of one sort; all bits when cuDNN does not report them. */
static unsigned notes_of(struct cudnn_graph *g, cudnnBackendDescriptor_t engine, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type) {
    int      note[32];
    int64_t  count = 0;
    unsigned bits  = 0;
    if (!cudnn_get(g, engine, name, type, CR_COUNT(note), &count, note)) return ~0u;
    for (int64_t i = 0; i < CR_MIN(count, (int64_t)CR_COUNT(note)); i++)
        if (note[i] >= 0 && note[i] < 32) bits |= 1u << note[i];
    return bits;
}

static bool engine_keeps_rules(struct cudnn_graph *g, cudnnBackendDescriptor_t engine, const struct cudnn_rules *rules,
                               struct cudnn_plan *p) {
    const unsigned compiles = 1u << CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    int64_t        count    = 0;
    if (!cudnn_get(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &p->engine)) return false;
    p->notes = notes_of(g, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE);
    return !is_refused(rules, p->engine) && !(p->notes & rules->refused_notes) &&
           !(notes_of(g, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE) & compiles);
}

static bool keeps_rules(struct cudnn_graph *g, cudnnBackendDescriptor_t config, const struct cudnn_rules *rules,
                        struct cudnn_plan *p) {
    cudnnBackendDescriptor_t engine = NULL;
    int64_t                  count  = 0;
    const bool               ok =
        cudnn_succeeded(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) &&
        cudnn_get(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine) &&
        engine_keeps_rules(g, engine, rules, p);
    cudnn_destroy(engine);
    return ok;
}

/* Builds a plan of the configuration. Returns false when cuDNN rejects it or it needs too much memory. */
static bool build(struct cudnn_graph *g, cudnnBackendDescriptor_t config, const struct cudnn_rules *rules,
                  struct cudnn_plan *p) {
    int64_t count = 0, bytes = 0;
    if (!cudnn_succeeded(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &p->plan)))
        return false;
    const bool placed =
        g->gpu.handle ? cudnn_put(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &g->gpu.handle)
                      : cudnn_put_descriptor(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, g->gpu.offline);
    if (placed && cudnn_put_descriptor(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config) &&
        cudnn_succeeded(g, cudnnBackendFinalize(p->plan)) &&
        cudnn_get(g, p->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes) &&
        bytes >= 0 && (size_t)bytes <= rules->workspace_bytes) {
        p->workspace_bytes = (size_t)bytes;
        return true;
    }
    cr_cudnn_plan_close(p);
    return false;
}

/* ---- availability ---- */

static bool engine_does(struct cudnn_graph *g, cudnnBackendDescriptor_t closed, int64_t index,
                        const struct cudnn_rules *rules) {
    cudnnBackendDescriptor_t engine = NULL, config = NULL;
    struct cudnn_plan        p = {0};
    const bool               ok =
        cudnn_succeeded(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine)) &&
        cudnn_put_descriptor(g, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, closed) &&
        cudnn_put(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &index) &&
        (!g->gpu.offline || cudnn_put_descriptor(g, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, g->gpu.offline)) &&
        cudnn_succeeded(g, cudnnBackendFinalize(engine)) && engine_keeps_rules(g, engine, rules, &p) &&
        cudnn_succeeded(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config)) &&
        cudnn_put_descriptor(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine) &&
        cudnn_succeeded(g, cudnnBackendFinalize(config)) && build(g, config, rules, &p);
    cr_cudnn_plan_close(&p);
    cudnn_destroy(config);
    cudnn_destroy(engine);
    return ok;
}

cr_status cr_cudnn_graph_has(struct cudnn_graph *g, const struct cudnn_rules *rules, bool *out) {
    cudnnBackendDescriptor_t closed  = close_graph(g);
    int64_t                  engines = 0, count = 0;
    *out = false;
    if (g->refused == CUDNN_STATUS_SUCCESS)
        (void)cudnn_get(g, closed, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, 1, &count,
                        &engines);
    for (int64_t e = 0; e < engines && !*out; e++) *out = engine_does(g, closed, e, rules);
    if (!*out) CUDNN_TRY(g->broken);
    return CR_OK;
}

/* ---- search ---- */

/* The heuristic's list, best first. The search owns the configurations. */
static void run_heuristic(struct cudnn_search *s, cudnnBackendHeurMode_t mode) {
    struct cudnn_graph      *g     = s->graph;
    cudnnBackendDescriptor_t d     = NULL;
    int64_t                  count = 0;
    bool ok = cudnn_succeeded(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &d)) &&
              cudnn_put_descriptor(g, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, s->closed) &&
              cudnn_put(g, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode) &&
              (!g->gpu.offline || cudnn_put_descriptor(g, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->gpu.offline)) &&
              cudnn_succeeded(g, cudnnBackendFinalize(d));
    int made = 0;
    while (ok && made < CR_CUDNN_OFFERS &&
           cudnn_succeeded(g, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &s->config[made])))
        made++;
    ok = ok && cudnn_get(g, d, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made, &count, s->config);
    s->offers = ok ? (int)CR_MIN(count, (int64_t)made) : 0;
    s->next   = 0;
    while (made > s->offers) cudnn_destroy(s->config[--made]);
    cudnn_destroy(d);
}

static bool was_given(const struct cudnn_search *s, int64_t engine) {
    return engine >= 0 && engine < 64 * (int64_t)CR_COUNT(s->engines) && (s->engines[engine / 64] >> (engine % 64) & 1);
}

static void note_given(struct cudnn_search *s, int64_t engine) {
    if (engine >= 0 && engine < 64 * (int64_t)CR_COUNT(s->engines))
        s->engines[engine / 64] |= (uint64_t)1 << (engine % 64);
}

void cr_cudnn_search_open(struct cudnn_graph *g, const struct cudnn_rules *rules, struct cudnn_search *s) {
    *s        = (struct cudnn_search){.graph = g, .rules = *rules};
    s->closed = close_graph(g);
}

/* The heuristic's list has an engine several times, with different tile configs. An engine of the fallback list is
 * tried once, if the heuristic's list did not have it. Mode B is not used: it takes longer and mostly returns the same
 * as mode A. */
cr_status cr_cudnn_search_next(struct cudnn_search *s, struct cudnn_plan *plan, bool *found) {
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK};
    *found                                      = false;
    while (s->graph->refused == CUDNN_STATUS_SUCCESS && !*found) {
        if (s->next == s->offers) {
            if (s->mode == (int)CR_COUNT(modes)) break;
            run_heuristic(s, modes[s->mode++]);
            continue;
        }
        struct cudnn_plan        p      = {0};
        cudnnBackendDescriptor_t config = s->config[s->next++];
        *found = keeps_rules(s->graph, config, &s->rules, &p) && !(s->mode > 1 && was_given(s, p.engine)) &&
                 build(s->graph, config, &s->rules, &p);
        cudnn_destroy(config);
        if (*found) *plan = p;
    }
    if (*found) {
        note_given(s, plan->engine);
        s->given = true;
    } else if (!s->given)
        CUDNN_TRY(s->graph->broken);
    return CR_OK;
}

void cr_cudnn_search_close(struct cudnn_search *s) {
    while (s->next < s->offers) cudnn_destroy(s->config[s->next++]);
    *s = (struct cudnn_search){0};
}

void cr_cudnn_plan_close(struct cudnn_plan *p) {
    cudnn_destroy(p->plan);
    p->plan = NULL;
}

/* ---- running ---- */

cr_status cr_cudnn_pack_open(const struct cudnn_graph *g, void *const *pointers, void *workspace,
                             cudnnBackendDescriptor_t *out) {
    cudnnBackendDescriptor_t d = NULL;
    int64_t                  id[CR_CUDNN_TENSORS];
    void                    *there[CR_CUDNN_TENSORS];
    int                      count = 0;
    for (int i = 0; i < g->tensors; i++)
        if (pointers[i]) {
            id[count]      = i + 1;
            there[count++] = pointers[i];
        }
    CUDNN_TRY(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d));
    cudnnStatus_t status = cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, id);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, there);
    if (status == CUDNN_STATUS_SUCCESS)
        status = cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnBackendFinalize(d);
    if (status != CUDNN_STATUS_SUCCESS) cudnn_destroy(d);
    CUDNN_TRY(status);
    *out = d;
    return CR_OK;
}

void cr_cudnn_pack_close(cudnnBackendDescriptor_t pack) {
    cudnn_destroy(pack);
}
