/* cuda/conv/cudnn/refused_engines.c: cuDNN engines that are refused (wrong results); checkops found them on an H200.
 *
 * Plain convolutions and convolutions with a bias number their engines separately. The numbers belong to version 9 of
 * cuDNN. With a new one, run checkops and add a table for what it finds. */
#include "cuda/conv/cudnn/cudnn_conv.h"

static const struct {
    enum cudnn_conv_kind kind;
    cudnnDataType_t      type;           /* of the images */
    int64_t              examined, uses; /* the key's `uses` restricted to the bits of `examined` must be `uses` */
    int64_t              engine;         /* cuDNN's number, which depends on kind and uses */
} refused_by_9[] = {
    /* Forward engines for few channels: they write 0 where a sum is below -65504. A kernel must write -inf, else an
     * overflow is hidden. Behind a ReLU, 0 is correct. Fused sums, prologues and gradients have kernels that write
     * -inf. */
    {CR_CUDNN_FORWARD, CUDNN_DATA_HALF, -1, 0, 47},
    {CR_CUDNN_FORWARD, CUDNN_DATA_HALF, CR_CUDNN_BIAS | CR_CUDNN_RELU, CR_CUDNN_BIAS, 32},
    /* Relative error of 1e-5 of the sum and more, like Winograd. */
    {CR_CUDNN_WGRAD, CUDNN_DATA_FLOAT, 0, 0, 17},
    /* They add parts that they have rounded to bf16. */
    {CR_CUDNN_WGRAD, CUDNN_DATA_BFLOAT16, 0, 0, 47},
    {CR_CUDNN_WGRAD, CUDNN_DATA_BFLOAT16, 0, 0, 62},
};

void cr_cudnn_refused_engines(const struct cudnn_conv_key *key, int64_t refused[CR_CUDNN_REFUSED]) {
    int count = 0;
    for (size_t i = 0; i < CR_COUNT(refused_by_9) && cudnnGetVersion() / 10000 == 9; i++) {
        if (key->kind != (int64_t)refused_by_9[i].kind || key->type != (int64_t)refused_by_9[i].type ||
            (key->uses & refused_by_9[i].examined) != refused_by_9[i].uses)
            continue;
        CR_ASSERT(count < CR_CUDNN_REFUSED);
        refused[count++] = refused_by_9[i].engine;
    }
    while (count < CR_CUDNN_REFUSED) refused[count++] = -1;
}
