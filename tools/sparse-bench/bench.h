/* tools/sparse-bench/bench.h: data of cresnet-sparse-bench, shared by main.c (timing) and report.c (output). */
#ifndef CR_SPARSE_BENCH_H
#define CR_SPARSE_BENCH_H

#include "device/kernel.h"
#include "session/session.h"
#include "tools/common/tool.h"

enum { CR_SPARSE_BENCH_LIST_MAX = 16, CR_SPARSE_BENCH_LAYERS_MAX = 512, CR_SPARSE_BENCH_BASELINES_MAX = 4 };
/* Arithmetic of convolutions. */
enum cr_sparse_bench_math { CR_SPARSE_BENCH_F32, CR_SPARSE_BENCH_TF32, CR_SPARSE_BENCH_F16, CR_SPARSE_BENCH_MATHS };
/* "fp32", "tf32", "fp16": values of train.precision. */
extern const char *const cr_sparse_bench_math_name[CR_SPARSE_BENCH_MATHS];

/* A device that was opened for one arithmetic, and the forward program of the current network, not compiled. */
struct cr_sparse_bench_setup {
    const struct cr_config  *config;
    struct cr_session        session; /* device, kernel times and model only */
    struct cr_program        program;
    bool                     has_program, has_model;
    struct cr_measure_memory scratch;
};

/* A convolution, or several with the same shape and number of nonzeros. Times are in seconds, 0 when unknown. */
struct cr_sparse_bench_layer {
    const char *name;
    int         number;   /* index among the convolutions of the network */
    int         count;    /* number of equal convolutions */
    double      pruned;   /* fraction of the weights */
    double      memory_s; /* memory traffic alone, at the bandwidth of the device */
    double      sparse_s; /* fastest sparse kernel */
    double      dense_s[CR_SPARSE_BENCH_MATHS];
    double      baseline_s[CR_SPARSE_BENCH_BASELINES_MAX];
    int         format;          /* number of the weight format of the fastest sparse kernel */
    char        format_name[32]; /* "" when the format has no name */
    char        shape[96];
};

struct cr_sparse_bench {
    const struct cr_tool_args   *args;
    char                         net[CR_SPARSE_BENCH_LIST_MAX][32];
    double                       batch[CR_SPARSE_BENCH_LIST_MAX], sparsity[CR_SPARSE_BENCH_LIST_MAX];
    int                          nets, batches, sparsities;
    bool                         type[CR_SPARSE_BENCH_MATHS]; /* arithmetics of the sparse kernels to time */
    bool                         csv;
    struct cr_sparse_bench_setup setup[CR_SPARSE_BENCH_MATHS];
    uint8_t                     *mask; /* of the current sparsity */
    struct cr_sparse_bench_layer layer[CR_SPARSE_BENCH_LAYERS_MAX];
    int                          layers;
    const char                  *baseline[CR_SPARSE_BENCH_BASELINES_MAX]; /* kernel names */
    int                          baselines;
    struct cr_text               out;
};

/* tools/sparse-bench/baselines_cuda.c: the kernels that sparse kernels are compared with, which no program uses. The
 * list ends with NULL. In builds with CUDA. */
extern const struct cr_kernel *const cr_sparse_bench_baselines[];

/* One network at one batch size, type and sparsity. */
struct cr_sparse_bench_case {
    const char               *net;
    int64_t                   batch;
    enum cr_sparse_bench_math type;
    double                    sparsity;
};

/* Adds what comes before all cases: the CSV header, or the device. */
void cr_sparse_bench_print_start(struct cr_sparse_bench *bench);
/* Adds the table header of a case; nothing with --csv. */
void cr_sparse_bench_print_head(struct cr_sparse_bench *bench, const struct cr_sparse_bench_case *c);
/* Adds one line for a layer. */
void cr_sparse_bench_print_layer(struct cr_sparse_bench *bench, const struct cr_sparse_bench_case *c,
                                 const struct cr_sparse_bench_layer *layer);
/* Adds the totals of a case; nothing with --csv. */
void cr_sparse_bench_print_summaries(struct cr_sparse_bench *bench);

#endif
