/* cuda/conv/cudnn/refused_engines.c: the table of refused engines. All were found by checkops on an H200.
 *
 * Plain convolutions and convolutions with a bias number their engines separately. The numbers belong to a major
 * version of cuDNN. With a new one, run checkops and add entries for what it finds; end the range of an engine that a
 * version has repaired. */
#include "cuda/conv/cudnn/refused_engines.h"

/* All versions of cuDNN 9. */
#define CUDNN_9 .from = 90000, .to = 99999

/* The forward engine for few channels. A kernel must write -inf, else an overflow is hidden. Behind a ReLU, 0 is
 * correct. Fused sums, prologues and gradients have kernels that write -inf. */
#define LOSES_MINUS_INFINITY "writes 0 where a sum is below -65504"

const struct cudnn_refused_engine cr_cudnn_refused_table[] = {
    {.kind     = CR_CUDNN_FORWARD,
     .type     = CUDNN_DATA_HALF,
     .examined = -1,
     .uses     = 0,
     .engine   = 47,
     CUDNN_9,
     .reason = LOSES_MINUS_INFINITY},
    {.kind     = CR_CUDNN_FORWARD,
     .type     = CUDNN_DATA_HALF,
     .examined = CR_CUDNN_BIAS | CR_CUDNN_RELU,
     .uses     = CR_CUDNN_BIAS,
     .engine   = 32,
     CUDNN_9,
     .reason = LOSES_MINUS_INFINITY},
    {.kind   = CR_CUDNN_WGRAD,
     .type   = CUDNN_DATA_FLOAT,
     .engine = 17,
     CUDNN_9,
     .reason = "relative error of 1e-5 of the sum and more, like Winograd"},
    {.kind   = CR_CUDNN_WGRAD,
     .type   = CUDNN_DATA_BFLOAT16,
     .engine = 47,
     CUDNN_9,
     .reason = "adds parts that it has rounded to bf16"},
    {.kind   = CR_CUDNN_WGRAD,
     .type   = CUDNN_DATA_BFLOAT16,
     .engine = 62,
     CUDNN_9,
     .reason = "adds parts that it has rounded to bf16"},
};
const int cr_cudnn_refused_count = (int)CR_COUNT(cr_cudnn_refused_table);

bool cr_cudnn_refuses(const struct cudnn_refused_engine *entry, const struct cudnn_conv_key *key, size_t version) {
    return key->kind == (int64_t)entry->kind && key->type == (int64_t)entry->type &&
           (key->uses & entry->examined) == entry->uses && version >= entry->from && version <= entry->to;
}

void cr_cudnn_refused_engines(const struct cudnn_conv_key *key, size_t version, int64_t refused[CR_CUDNN_REFUSED]) {
    int count = 0;
    for (int i = 0; i < cr_cudnn_refused_count; i++) {
        if (!cr_cudnn_refuses(&cr_cudnn_refused_table[i], key, version)) continue;
        CR_ASSERT(count < CR_CUDNN_REFUSED);
        refused[count++] = cr_cudnn_refused_table[i].engine;
    }
    while (count < CR_CUDNN_REFUSED) refused[count++] = -1;
}
