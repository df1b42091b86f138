/* tools/spdnn/spdnn.c: generates the challenge's networks; published results; worker threads. See
 * tools/spdnn/spdnn.h. */
#include "tools/spdnn/spdnn.h"

#include "core/rng.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { KRONECKER = 16, THREADS_MAX = 256 };
static const float link_weight = 0.0625f;

/* ---- published values ---- */

const struct cr_spdnn_published *cr_spdnn_published(int64_t neurons) {
    static const struct cr_spdnn_published list[] = {
        {1024, -0.30f, 6374505}, {4096, -0.35f, 25019051}, {16384, -0.40f, 98858913}, {65536, -0.45f, 392191985}};
    for (size_t i = 0; i < CR_COUNT(list); i++)
        if (list[i].neurons == neurons) return &list[i];
    return NULL;
}

const struct cr_spdnn_rates *cr_spdnn_rates(int64_t neurons, int64_t layers) {
    static const struct cr_spdnn_rates list[] = {
        {1024, 120, 10.51, 16.74, 15.8}, {1024, 480, 12.87, 20.99, 23.1}, {1024, 1920, 14.30, 20.68, 26.4},
        {4096, 120, 9.45, 14.27, 24.2},  {4096, 480, 11.74, 18.63, 40.2}, {4096, 1920, 13.88, 19.86, 48.3},
        {16384, 120, 6.15, 11.60, 26.4}, {16384, 480, 7.45, 14.31, 45.4}, {16384, 1920, 7.84, 15.27, 55.2},
        {65536, 120, 3.47, 8.15, 27.0},  {65536, 480, 3.83, 9.08, 45.9},  {65536, 1920, 3.93, 9.33, 55.6},
    };
    for (size_t i = 0; i < CR_COUNT(list); i++)
        if (list[i].neurons == neurons && list[i].layers == layers) return &list[i];
    return NULL;
}

/* ---- threads ---- */

struct worker_pool {
    cr_status (*work)(void *context, int64_t i);
    void           *context;
    int64_t         count;
    atomic_llong    next;
    pthread_mutex_t mutex; /* protects the members below */
    int64_t         failed;
    cr_status       status;
    char            error[512];
};

static void *worker_main(void *argument) {
    struct worker_pool *t = argument;
    for (int64_t i; (i = atomic_fetch_add(&t->next, 1)) < t->count;) {
        const cr_status status = t->work(t->context, i);
        if (status == CR_OK) continue;
        pthread_mutex_lock(&t->mutex);
        if (i < t->failed) {
            t->failed = i;
            t->status = status;
            snprintf(t->error, sizeof t->error, "%s", cr_error_message());
        }
        pthread_mutex_unlock(&t->mutex);
        atomic_store(&t->next, t->count);
    }
    return NULL;
}

cr_status cr_spdnn_parallel(int64_t count, int threads, cr_status (*work)(void *context, int64_t i), void *context) {
    struct worker_pool t = {
        .work = work, .context = context, .count = count, .mutex = PTHREAD_MUTEX_INITIALIZER, .failed = count};
    pthread_t thread[THREADS_MAX];
    int       started = 0;
    const int others  = CR_MIN(CR_MIN(threads - 1, (int)THREADS_MAX), (int)CR_MIN(count, (int64_t)THREADS_MAX) - 1);
    while (started < others && pthread_create(&thread[started], NULL, worker_main, &t) == 0) started++;
    (void)worker_main(&t);
    for (int i = 0; i < started; i++) (void)pthread_join(thread[i], NULL);
    return t.status == CR_OK ? CR_OK : CR_FAIL(t.status, "%s", t.error);
}

/* ---- the RadiX-Net rule ---- */

void cr_spdnn_csr_free(struct cr_spdnn_csr *csr) {
    cr_free(csr->start);
    cr_free(csr->column);
    cr_free(csr->weight);
    *csr = (struct cr_spdnn_csr){0};
}

static cr_status csr_open(int64_t rows, int64_t columns, int64_t edges, struct cr_spdnn_csr *out) {
    *out        = (struct cr_spdnn_csr){.rows = rows, .columns = columns};
    out->start  = cr_alloc((size_t)rows + 1, sizeof *out->start);
    out->column = cr_alloc((size_t)edges, sizeof *out->column);
    out->weight = cr_alloc((size_t)edges, sizeof *out->weight);
    if (out->start && out->column && out->weight) return CR_OK;
    cr_spdnn_csr_free(out);
    return CR_NO_MEMORY((size_t)edges * 8);
}

/* inputs[c][16]: the inputs that the permutation maps to residue c, ascending. */
static cr_status residues(int64_t neurons, int block, uint64_t seed, uint32_t *inputs) {
    const int64_t M = neurons / KRONECKER;
    uint32_t     *to, *fill;
    struct cr_rng rng = cr_rng_make(seed, CR_RNG_SHAPES, (uint64_t)neurons, (uint32_t)block);
    CR_ALLOC(to, (size_t)(neurons + M));
    fill = to + neurons;
    for (int64_t i = 0; i < neurons; i++) to[i] = (uint32_t)i;
    for (int64_t i = neurons - 1; block > 0 && i > 0; i--) {
        const int64_t  j        = (int64_t)cr_rng_below(&rng, (uint64_t)i + 1);
        const uint32_t previous = to[i];
        to[i]                   = to[j];
        to[j]                   = previous;
    }
    for (int64_t i = 0; i < neurons; i++) {
        const int64_t c                   = to[i] % M;
        inputs[c * KRONECKER + fill[c]++] = (uint32_t)i;
    }
    cr_free(to);
    return CR_OK;
}

static void merge(const uint32_t *a, const uint32_t *b, uint32_t *out) {
    for (int i = 0, j = 0; i + j < 2 * KRONECKER;)
        if (j == KRONECKER || (i < KRONECKER && a[i] < b[j]))
            out[i + j] = a[i], i++;
        else
            out[i + j] = b[j], j++;
}

cr_status cr_spdnn_radix(int64_t neurons, int index, uint64_t seed, struct cr_spdnn_csr *out) {
    const int64_t M = neurons / KRONECKER;
    uint32_t     *inputs;
    int           bits   = 0;
    cr_status     status = CR_OK;
    while ((int64_t)2 << bits <= M) bits++;
    if (neurons > CR_SPDNN_NEURONS_MAX || bits < 1 || (int64_t)1 << bits != M || M * KRONECKER != neurons)
        return CR_FAIL(CR_ERR_USAGE, "%lld neurons: must be a power of two from 32 to %d", (long long)neurons,
                       (int)CR_SPDNN_NEURONS_MAX);
    CR_ALLOC(inputs, (size_t)neurons);
    CR_TRY_OUT(residues(neurons, index / bits, seed, inputs));
    CR_TRY_OUT(csr_open(neurons, neurons, neurons * 2 * KRONECKER, out));
    for (int64_t j = 0; j < neurons; j++) {
        const int64_t c = j % M, shifted = (j + ((int64_t)1 << index % bits)) % M;
        out->start[j + 1] = (uint32_t)((j + 1) * 2 * KRONECKER);
        merge(inputs + c * KRONECKER, inputs + shifted * KRONECKER, out->column + j * 2 * KRONECKER);
    }
    for (int64_t e = 0; e < neurons * 2 * KRONECKER; e++) out->weight[e] = link_weight;
out:
    cr_free(inputs);
    return status;
}

/* ---- networks ---- */

struct net_job {
    struct cr_spdnn_net *net;
    uint64_t             seed;
    int                  most_rows;
};

static cr_status make_layer(void *context, int64_t i) {
    const struct net_job *m   = context;
    struct cr_spdnn_csr   csr = {0};
    CR_TRY(cr_spdnn_radix(m->net->neurons, (int)i, m->seed, &csr));
    const cr_status status = cr_spdnn_pack(&csr, m->most_rows, &m->net->layer[i]);
    cr_spdnn_csr_free(&csr);
    return status;
}

cr_status cr_spdnn_net_open(int64_t neurons, int layers, float bias, uint64_t seed, int most_rows, int threads,
                            struct cr_spdnn_net *out) {
    struct net_job m = {.net = out, .seed = seed, .most_rows = most_rows};
    if (!(bias <= 0))
        return CR_FAIL(CR_ERR_USAGE, "the bias must not exceed 0: dropped inputs would become nonzero again");
    *out = (struct cr_spdnn_net){.neurons = neurons, .layers = layers, .bias = bias, .exact = true};
    CR_ALLOC(out->layer, (size_t)CR_MAX(layers, 1));
    const cr_status status = cr_spdnn_parallel(layers, threads, make_layer, &m);
    if (status != CR_OK) {
        cr_spdnn_net_close(out);
        return cr_error_forward(status, __FILE__, __LINE__);
    }
    for (int l = 0; l < layers; l++) {
        out->edges += out->layer[l].edges;
        out->exact = out->exact && out->layer[l].exact;
    }
    return CR_OK;
}

void cr_spdnn_net_close(struct cr_spdnn_net *net) {
    for (int l = 0; net->layer && l < net->layers; l++) cr_spdnn_layer_free(&net->layer[l]);
    cr_free(net->layer);
    *net = (struct cr_spdnn_net){0};
}

/* ---- results ---- */

cr_status cr_spdnn_result_open(const struct cr_spdnn_net *net, int64_t inputs, struct cr_spdnn_result *out) {
    *out           = (struct cr_spdnn_result){0};
    out->survivors = cr_alloc((size_t)net->layers + 1, sizeof *out->survivors);
    out->category  = cr_alloc((size_t)CR_MAX(inputs, (int64_t)1), sizeof *out->category);
    if (out->survivors && out->category) return CR_OK;
    cr_spdnn_result_free(out);
    return CR_NO_MEMORY((size_t)inputs * sizeof *out->category);
}

void cr_spdnn_result_free(struct cr_spdnn_result *result) {
    cr_free(result->survivors);
    cr_free(result->category);
    cr_free(result->values);
    *result = (struct cr_spdnn_result){0};
}

uint64_t cr_spdnn_hash(const int32_t *category, int64_t count) {
    uint64_t hash = 14695981039346656037u;
    for (int64_t i = 0; i < count; i++)
        for (int byte = 0; byte < 4; byte++) hash = (hash ^ ((uint32_t)category[i] >> 8 * byte & 255)) * 1099511628211u;
    return hash;
}
