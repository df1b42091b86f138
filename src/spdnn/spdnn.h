/* spdnn/spdnn.h: the sparse deep networks of the Graph Challenge: made by their rule, packed for kernels, their inputs,
 * and what a device is asked when it runs one. A layer is Y <- clip(Y W + b, 0, 32) over all inputs; an input whose row
 * has become zero stays zero (b <= 0) and may be dropped.
 *
 * Laws
 *   - A sum is taken over its row's columns in ascending order, in f32, each product added at once, bias last. Where
 * each weight is a power of two, products are exact: then every device gives the same bits whatever it does with rows
 * and inputs.
 *   - Nothing here or in a kernel knows how the networks were made. Packing puts rows with the same columns together,
 * which is found by comparing them; every edge keeps its own weight and its own multiplication. Sees core/base.h,
 * core/rng.h and core/dtype.h; devices see it as they see device/device.h. */
#ifndef CR_SPDNN_H
#define CR_SPDNN_H

#include "core/base.h"

struct cr_device;

#define CR_SPDNN_CEILING 32.0f
enum { CR_SPDNN_NEURONS_MAX = 65536, CR_SPDNN_ROWS_MAX = 16 };

/* ---- networks ---- */

/* A layer as a sparse matrix: row j has the inputs of neuron j, columns ascending. */
struct cr_spdnn_csr {
    int64_t   rows, columns; /* at most CR_SPDNN_NEURONS_MAX each */
    uint32_t *start;         /* [rows + 1] */
    uint32_t *column;        /* [start[rows]] */
    float    *weight;
};
void cr_spdnn_csr_free(struct cr_spdnn_csr *csr);

/* A layer as kernels read it: groups of `rows` rows which have the same columns. A group that is not full has its first
 * row several times: they write the same. Arrays in `data`: start u32[groups + 1]; row u16[groups][rows]; column
 * u16[columns]; weight [columns][rows], f16 or f32. Each begins at a multiple of 16 bytes. */
struct cr_spdnn_layer {
    int64_t  edges;           /* of the matrix */
    int64_t  groups, columns; /* columns: of all groups */
    int      rows;            /* 1, 2, 4, 8 or 16 */
    bool     half;            /* weights are f16, all of them exact */
    bool     exact;           /* each weight is zero or a power of two */
    size_t   row_at, column_at, weight_at, bytes;
    uint8_t *data;
};
/* `most_rows`: of a group; 1 packs rows alone. Groups that share columns come near each other. */
CR_MUST cr_status cr_spdnn_pack(const struct cr_spdnn_csr *csr, int most_rows, struct cr_spdnn_layer *out);
void              cr_spdnn_layer_free(struct cr_spdnn_layer *layer);

struct cr_spdnn_net {
    int64_t                neurons, edges;
    int                    layers;
    float                  bias;
    bool                   exact;
    struct cr_spdnn_layer *layer;
};
/* 1024, 4096, 16384 or 65536 neurons: what the challenge publishes of them. NULL: not one of these. */
struct cr_spdnn_published {
    int64_t neurons;
    float   bias;
    int64_t nonzeros; /* of its 60,000 inputs */
};
const struct cr_spdnn_published *cr_spdnn_published(int64_t neurons);
/* TeraEdges/s of one GPU. 0: not published. */
struct cr_spdnn_rates {
    int64_t neurons, layers;
    double  v100, a100, xy2021; /* HPEC'20, HPEC'20, Graphchallenge21 on an RTX A6000 */
};
const struct cr_spdnn_rates *cr_spdnn_rates(int64_t neurons, int64_t layers);

/* Layer `index` by the RadiX-Net rule: with M = neurons/16 and m = log2 M, input i feeds neuron j when (P[i] - j) mod M
 * is 0 or 2^(index mod m); P is a permutation drawn for each m layers, the identity for the first. neurons: a power of
 * two from 32 on. */
CR_MUST cr_status cr_spdnn_radix(int64_t neurons, int index, uint64_t seed, struct cr_spdnn_csr *out);
CR_MUST cr_status cr_spdnn_net_open(int64_t neurons, int layers, float bias, uint64_t seed, int most_rows, int threads,
                                    struct cr_spdnn_net *out);
void              cr_spdnn_net_close(struct cr_spdnn_net *net);
size_t            cr_spdnn_net_bytes(const struct cr_spdnn_net *net);

/* ---- inputs: zeros and ones, a bit each ---- */

struct cr_spdnn_inputs {
    int64_t   neurons, count, words; /* words: count / 32, rounded up */
    uint32_t *bit;                   /* [neurons][words]: input i is bit i%32 of word i/32 */
    int64_t   nonzeros;
    int       threshold; /* a pixel above it is 1 */
};
/* MNIST's pictures, 28 x 28 bytes each, or figures that are drawn where there is no file. */
enum { CR_SPDNN_SIDE = 28 };
struct cr_spdnn_images {
    int64_t  count;
    uint8_t *pixel;
};
CR_MUST cr_status cr_spdnn_images_read(const char *path, struct cr_spdnn_images *out); /* idx, not compressed */
CR_MUST cr_status cr_spdnn_images_generate(int64_t count, uint64_t seed, struct cr_spdnn_images *out);
void              cr_spdnn_images_free(struct cr_spdnn_images *pictures);
/* The first `count` pictures (from the start again when there are fewer) enlarged bilinearly to sqrt(neurons) a side; a
 * pixel above the threshold is 1. The threshold is the one by which a sample of all pictures comes nearest to `share`
 * of ones. */
CR_MUST cr_status cr_spdnn_inputs_open(const struct cr_spdnn_images *pictures, int64_t neurons, int64_t count,
                                       double share, int threads, struct cr_spdnn_inputs *out);
/* Every step-th input, for a check of some. */
CR_MUST cr_status cr_spdnn_inputs_pick(const struct cr_spdnn_inputs *all, int64_t step, struct cr_spdnn_inputs *out);
void              cr_spdnn_inputs_close(struct cr_spdnn_inputs *inputs);

/* ---- a run ---- */

struct cr_spdnn_options {
    bool keep_dead; /* inputs that have become zero are computed to the end */
    bool stream;    /* weights come from host memory layer by layer, even where they would fit */
    bool values;    /* give back what the last layer makes */
    int  repeats;   /* at least 1: timed runs; seconds is their median */
};
struct cr_spdnn_result {
    double   seconds;   /* of all layers; inputs and, unless streamed, weights are there already */
    int64_t *survivors; /* [layers + 1]: before the first layer, after each; with keep_dead only the last one counts the
                           living */
    int32_t *category;  /* inputs that are not zero at the end, ascending */
    int64_t  categories;
    float   *values; /* [neurons][categories], or NULL */
    bool     streamed, captured;
    int launches; /* of kernels that take inputs through layers: as many as layers, or fewer where some share one; 0 on
                     the CPU */
    size_t device_bytes;
};
void cr_spdnn_result_free(struct cr_spdnn_result *result);
/* Reserves survivors and category for a run of so many inputs. */
CR_MUST cr_status cr_spdnn_result_open(const struct cr_spdnn_net *net, int64_t inputs, struct cr_spdnn_result *out);
/* FNV-1a over the categories, for comparing long lists. */
uint64_t cr_spdnn_hash(const int32_t *category, int64_t count);

/* Runs work(context, i) for i < count on some threads; the first error by index is the caller's. */
CR_MUST cr_status cr_spdnn_parallel(int64_t count, int threads, cr_status (*work)(void *context, int64_t i),
                                    void *context);

#endif
