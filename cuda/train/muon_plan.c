/* cuda/train/muon_plan.c: groups the filters that the optimizer Muon multiplies together. */
#include "cuda/train/muon_plan.h"
#include "cuda/train/update_tables.h"

enum { ALIGN = 256, GROUP_ELEMS = 1 << 26, TOGETHER_ROWS = 512 };

/* ---- groups of filters, and their branches ---- */

static bool is_of_group(const struct muon_group *g, const struct cr_param *q) {
    return q->dim[0] == g->rows && cr_muon_columns(q) == g->columns && (g->count + 1) * q->elems <= GROUP_ELEMS;
}

/* Fills group[] and param[]. Each pass takes the first filter without a group, and all others of its shape that fit. */
static void make_groups(const struct cr_param_store *store, struct muon_plan *plan, bool *taken) {
    for (int i = 0; i < store->params; i++) {
        const struct cr_param *q = &store->param[i];
        if (taken[i] || !cr_muon_has_direction(q)) continue;
        struct muon_group *g = &plan->group[plan->groups++];
        *g = (struct muon_group){.rows = q->dim[0], .columns = cr_muon_columns(q), .first = plan->filters};
        for (int k = i; k < store->params; k++) {
            if (taken[k] || !cr_muon_has_direction(&store->param[k])) continue;
            if (k > i && !is_of_group(g, &store->param[k])) continue;
            taken[k]                     = true;
            plan->param[plan->filters++] = k;
            g->count++;
        }
    }
}

/* Assigns each group to the branch with the least work so far, in reverse order: the last groups have the largest
 * filters, and the small groups that follow balance the branches. */
static void assign_branches(const struct muon_plan *plan) {
    const double launches            = 1.5e10; /* operations that take as long as the launches of a group */
    double       load[MUON_BRANCHES] = {0};
    for (int i = plan->groups - 1; i >= 0; i--) {
        struct muon_group *g = &plan->group[i];
        const double       m = (double)muon_smaller(g), matrix = (double)g->rows * (double)g->columns;
        for (int b = 1; b < MUON_BRANCHES; b++)
            if (load[b] < load[g->branch]) g->branch = b;
        load[g->branch] += launches + CR_MUON_ITERATIONS * g->count * (4 * m * matrix + 2 * m * m * m);
    }
}

void cr_muon_plan_close(void *prepared) {
    struct muon_plan *plan = prepared;
    if (!plan) return;
    for (int b = 0; b < MUON_BRANCHES; b++) {
        if (plan->stream[b]) (void)cudaStreamDestroy(plan->stream[b]);
        if (plan->done[b]) (void)cudaEventDestroy(plan->done[b]);
    }
    if (plan->ready) (void)cudaEventDestroy(plan->ready);
    (void)cudaFree(plan->tile);
    (void)cudaFree(plan->first_tile);
    (void)cudaFree(plan->offset);
    cr_free(plan->group);
    cr_free(plan->param);
    cr_free(plan);
}

static void fill_tables(const struct cr_param_store *store, const struct muon_plan *plan, struct ck_norm_tile *tile,
                        int32_t *first_tile, int64_t *offset) {
    int t = 0;
    for (int f = 0; f < plan->filters; f++) {
        const struct cr_param *q = &store->param[plan->param[f]];
        first_tile[f]            = t;
        offset[f]                = q->offset;
        t += cr_cuda_put_tiles(q, tile + t);
    }
    first_tile[plan->filters] = t;
}

static cr_status make_branches(struct muon_plan *plan) {
    CUDA_TRY(cudaEventCreateWithFlags(&plan->ready, cudaEventDisableTiming));
    for (int b = 1; b < MUON_BRANCHES; b++) {
        CUDA_TRY(cudaStreamCreateWithFlags(&plan->stream[b], cudaStreamNonBlocking));
        CUDA_TRY(cudaEventCreateWithFlags(&plan->done[b], cudaEventDisableTiming));
    }
    return CR_OK;
}

static cr_status make_tables(struct cr_device *device, const struct cr_param_store *store, struct muon_plan *plan) {
    const size_t         filters = (size_t)plan->filters, tiles = (size_t)plan->tiles;
    struct ck_norm_tile *tile   = cr_alloc(tiles + 1, sizeof *tile);
    int32_t             *first  = cr_alloc(filters + 1, sizeof *first);
    int64_t             *offset = cr_alloc(filters + 1, sizeof *offset);
    cr_status            status = CR_OK;
    if (!tile || !first || !offset) CR_FAIL_OUT(CR_ERR_MEMORY, "out of memory for the table of filters");
    fill_tables(store, plan, tile, first, offset);
    CR_TRY_OUT(cr_cuda_table(device, tile, tiles * sizeof *tile, (void **)&plan->tile));
    CR_TRY_OUT(cr_cuda_table(device, first, (filters + 1) * sizeof *first, (void **)&plan->first_tile));
    CR_TRY_OUT(cr_cuda_table(device, offset, filters * sizeof *offset, (void **)&plan->offset));
    CR_TRY_OUT(make_branches(plan));
out:
    cr_free(tile);
    cr_free(first);
    cr_free(offset);
    return status;
}

/* ---- the workspace ---- */

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

struct muon_layout cr_muon_layout(const struct muon_group *g, size_t elem) {
    const size_t       X     = aligned((size_t)(g->count * g->rows * g->columns) * elem);
    const size_t       elems = (size_t)(g->count * muon_smaller(g) * muon_smaller(g)), A = aligned(elems * elem);
    struct muon_layout l = {.x = CR_CUDA_BLAS_BYTES};
    l.next               = l.x + X;
    l.a                  = l.next + X;
    l.p                  = g->joins ? l.a + A : l.a; /* P replaces A where no other product needs A */
    l.q                  = g->joins ? l.p + A : l.p;
    l.t                  = g->joins ? l.q + A : l.q;
    l.square             = l.t + A;
    l.end                = l.square + aligned(elems * sizeof(float));
    return l;
}

size_t cr_muon_part_start(const struct muon_plan *plan) {
    return aligned((size_t)plan->filters * sizeof(double));
}

/* Where a branch starts; for MUON_BRANCHES the end of the workspace. */
size_t cr_muon_branch_start(const struct muon_plan *plan, int branch, size_t elem) {
    size_t start = cr_muon_part_start(plan) + aligned(ck_muon_input_workspace(plan->tiles));
    for (int b = 0; b < branch; b++) {
        size_t most = 0;
        for (int g = 0; g < plan->groups; g++)
            if (plan->group[g].branch == b) most = CR_MAX(most, cr_muon_layout(&plan->group[g], elem).end);
        start += aligned(most);
    }
    return start;
}

static cr_status make_plan(const struct cr_param_store *store, struct muon_plan *plan) {
    bool *taken = cr_alloc((size_t)CR_MAX(store->params, 1), sizeof *taken);
    plan->group = cr_alloc((size_t)CR_MAX(store->params, 1), sizeof *plan->group);
    plan->param = cr_alloc((size_t)CR_MAX(store->params, 1), sizeof *plan->param);
    if (!taken || !plan->group || !plan->param) {
        cr_free(taken);
        return CR_NO_MEMORY((size_t)store->params * sizeof *plan->group);
    }
    make_groups(store, plan, taken);
    for (int g = 0; g < plan->groups; g++) plan->group[g].joins = muon_smaller(&plan->group[g]) >= TOGETHER_ROWS;
    assign_branches(plan);
    for (int f = 0; f < plan->filters; f++) plan->tiles += cr_cuda_put_tiles(&store->param[plan->param[f]], NULL);
    cr_free(taken);
    return CR_OK;
}

cr_status cr_muon_plan_open(struct cr_device *device, const struct cr_param_store *store, struct muon_plan **out) {
    cr_status         status = CR_OK;
    struct muon_plan *plan;
    CR_ALLOC(plan, 1);
    CR_TRY_OUT(make_plan(store, plan));
    if (!cuda_of(device)->offline) CR_TRY_OUT(make_tables(device, store, plan));
    *out = plan;
out:
    if (status != CR_OK) cr_muon_plan_close(plan);
    return status;
}
