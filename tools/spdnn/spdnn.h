/* tools/spdnn/spdnn.h: the sparse deep networks of the Graph Challenge: generation, packing for kernels, inputs, runs.
 *
 * A layer computes Y <- clip(Y W + b, 0, 32) for all inputs. An input whose activations are all zero stays zero
 * (b <= 0), so a run may drop it.
 *
 * Invariants
 *   - A dot product adds the columns of its row in ascending order, in f32, one product at a time, and the bias last.
 *     If every weight is a power of two, products are exact: every device then gives bitwise identical results, however
 *     it distributes rows and inputs.
 *   - No code here or in a kernel depends on how the networks were generated. Packing groups rows with equal columns,
 *     which it finds by comparison; every edge keeps its own weight and its own multiplication.
 * Depends on core/base.h, core/rng.h and core/dtype.h only. */
#ifndef CR_SPDNN_H
#define CR_SPDNN_H

#include "core/base.h"

struct cr_device;

#define CR_SPDNN_CEILING 32.0f
enum { CR_SPDNN_NEURONS_MAX = 65536, CR_SPDNN_ROWS_MAX = 16 };

/* ---- networks ---- */

/* A layer as a sparse matrix in CSR format: row j has the inputs of neuron j, columns ascending. */
struct cr_spdnn_csr {
    int64_t   rows, columns; /* at most CR_SPDNN_NEURONS_MAX each */
    uint32_t *start;         /* [rows + 1] */
    uint32_t *column;        /* [start[rows]] */
    float    *weight;
};
void cr_spdnn_csr_free(struct cr_spdnn_csr *csr);

/* A layer in the format of the kernels: groups of `rows` rows with equal columns. An incomplete group repeats its first
 * row: the repeated rows write the same values. Arrays in `data`: start u32[groups + 1]; row u16[groups][rows]; column
 * u16[columns]; weight [columns][rows], f16 or f32. Each array is 16-byte aligned. */
struct cr_spdnn_layer {
    int64_t  edges;                               /* nonzeros of the matrix */
    int64_t  groups, columns;                     /* columns: sum over all groups */
    int      rows;                                /* 1, 2, 4, 8 or 16 */
    bool     half;                                /* weights are stored as f16, without rounding */
    bool     exact;                               /* each weight is zero or a power of two */
    size_t   row_at, column_at, weight_at, bytes; /* byte offsets in data, total size */
    uint8_t *data;
};
/* Packs a matrix into groups of at most `most_rows` rows; 1 gives one row per group. Groups that share columns are
 * placed near each other. The caller frees *out with cr_spdnn_layer_free. */
CR_MUST cr_status cr_spdnn_pack(const struct cr_spdnn_csr *csr, int most_rows, struct cr_spdnn_layer *out);
void              cr_spdnn_layer_free(struct cr_spdnn_layer *layer);

struct cr_spdnn_net {
    int64_t                neurons, edges;
    int                    layers;
    float                  bias;
    bool                   exact;
    struct cr_spdnn_layer *layer;
};
/* Published parameters of the challenge's networks with 1024, 4096, 16384 or 65536 neurons. NULL for another size. */
struct cr_spdnn_published {
    int64_t neurons;
    float   bias;
    int64_t nonzeros; /* number of ones in the challenge's 60,000 inputs */
};
const struct cr_spdnn_published *cr_spdnn_published(int64_t neurons);
/* Published rates of one GPU in TeraEdges/s. */
struct cr_spdnn_rates {
    int64_t neurons, layers;
    double  v100, a100, xy2021; /* HPEC'20, HPEC'20, Graphchallenge21 on an RTX A6000; 0 if not published */
};
const struct cr_spdnn_rates *cr_spdnn_rates(int64_t neurons, int64_t layers);

/* Generates layer `index` with the RadiX-Net rule: with M = neurons/16 and m = log2 M, input i is connected to neuron j
 * if (P[i] - j) mod M is 0 or 2^(index mod m). P is a random permutation per m layers, the identity for the first m.
 * neurons is a power of two, at least 32. The caller frees *out with cr_spdnn_csr_free. */
CR_MUST cr_status cr_spdnn_radix(int64_t neurons, int index, uint64_t seed, struct cr_spdnn_csr *out);
/* Generates and packs a network on `threads` threads. The caller calls cr_spdnn_net_close.
 * CR_ERR_USAGE: `neurons` or `bias` is invalid. CR_ERR_MEMORY. */
CR_MUST cr_status cr_spdnn_net_open(int64_t neurons, int layers, float bias, uint64_t seed, int most_rows, int threads,
                                    struct cr_spdnn_net *out);
void              cr_spdnn_net_close(struct cr_spdnn_net *net);

/* ---- inputs: one bit per neuron and input ---- */

struct cr_spdnn_inputs {
    int64_t   neurons, count, words; /* words per neuron: count / 32, rounded up */
    uint32_t *bit;                   /* [neurons][words]: input i is bit i%32 of word i/32 */
    int64_t   nonzeros;
    int       threshold; /* pixels above this value are 1 */
};
/* Images of 28 x 28 bytes: MNIST, or synthetic digits if there is no file. */
enum { CR_SPDNN_SIDE = 28 };
struct cr_spdnn_images {
    int64_t  count;
    uint8_t *pixel;
};
/* Read or generate images. The caller calls cr_spdnn_images_free. CR_ERR_MEMORY; a file that cannot be read is
 * CR_ERR_IO, an invalid file CR_ERR_FORMAT. */
CR_MUST cr_status cr_spdnn_images_read(const char *path, struct cr_spdnn_images *out); /* uncompressed idx file */
CR_MUST cr_status cr_spdnn_images_generate(int64_t count, uint64_t seed, struct cr_spdnn_images *out);
void              cr_spdnn_images_free(struct cr_spdnn_images *images);
/* Scales the first `count` images (starting over when there are fewer) bilinearly to sqrt(neurons) pixels per side; a
 * pixel above the threshold is 1. The threshold is chosen on a sample of the images so that the fraction of ones is as
 * close to `density` as possible. The caller calls cr_spdnn_inputs_close. CR_ERR_MEMORY. */
CR_MUST cr_status cr_spdnn_inputs_open(const struct cr_spdnn_images *images, int64_t neurons, int64_t count,
                                       double density, int threads, struct cr_spdnn_inputs *out);
/* Copies every step-th input, for a comparison with a reference. The caller calls cr_spdnn_inputs_close.
 * CR_ERR_MEMORY. */
CR_MUST cr_status cr_spdnn_inputs_pick(const struct cr_spdnn_inputs *all, int64_t step, struct cr_spdnn_inputs *out);
void              cr_spdnn_inputs_close(struct cr_spdnn_inputs *inputs);

/* ---- a run ---- */

struct cr_spdnn_options {
    bool keep_dead; /* compute all-zero inputs up to the last layer */
    bool stream;    /* copy the weights from host memory layer by layer, even if they fit in device memory */
    bool values;    /* return the activations of the last layer */
    int  repeats;   /* number of timed runs, at least 1; `seconds` is their median */
};
struct cr_spdnn_result {
    double   seconds;   /* time of all layers; inputs and, unless streamed, weights are in device memory before */
    int64_t *survivors; /* [layers + 1]: inputs that are not all zero before the first layer and after each layer; with
                           keep_dead only the last entry excludes all-zero inputs */
    int32_t *category;  /* indices of the inputs that are not all zero after the last layer, ascending */
    int64_t  categories;
    float   *values; /* [neurons][categories], or NULL */
    bool     streamed, captured;
    int launches; /* kernel launches for layers: one per layer, or fewer if a kernel computes several; 0 on the CPU */
    size_t device_bytes;
};
void cr_spdnn_result_free(struct cr_spdnn_result *result);
/* Allocates survivors and category for a run with `inputs` inputs. The caller calls cr_spdnn_result_free. */
CR_MUST cr_status cr_spdnn_result_open(const struct cr_spdnn_net *net, int64_t inputs, struct cr_spdnn_result *out);
/* Runs the network on an open device: tools/spdnn/run_cpu.c, whose result is the reference, and run_cuda.c. *out must
 * be empty; it is empty after an error, otherwise the caller calls cr_spdnn_result_free. */
CR_MUST cr_status cr_spdnn_run(struct cr_device *device, const struct cr_spdnn_net *net,
                               const struct cr_spdnn_inputs *inputs, const struct cr_spdnn_options *options,
                               struct cr_spdnn_result *out);
/* The same for a GPU; in builds with CUDA. */
CR_MUST cr_status cr_spdnn_run_cuda(struct cr_device *device, const struct cr_spdnn_net *net,
                                    const struct cr_spdnn_inputs *inputs, const struct cr_spdnn_options *options,
                                    struct cr_spdnn_result *out);
/* FNV-1a hash over the categories, for the comparison of long lists. */
uint64_t cr_spdnn_hash(const int32_t *category, int64_t count);

/* Runs work(context, i) for all i < count on `threads` threads. Returns the error with the lowest index. */
CR_MUST cr_status cr_spdnn_parallel(int64_t count, int threads, cr_status (*work)(void *context, int64_t i),
                                    void *context);

#endif
