/* cuda/conv/cudnn/refused_engines.h: engines of cuDNN that give wrong results and do not say so. */
#ifndef CR_CUDNN_REFUSED_ENGINES_H
#define CR_CUDNN_REFUSED_ENGINES_H

#include "cuda/conv/cudnn/cudnn_conv.h"

/* An engine, and the keys and the versions of cuDNN for which it is refused. */
struct cudnn_refused_engine {
    enum cudnn_conv_kind kind;
    cudnnDataType_t      type;           /* of the images */
    int64_t              examined, uses; /* the key's `uses` restricted to the bits of `examined` must be `uses` */
    int64_t              engine;         /* cuDNN's number, which depends on kind and uses */
    size_t               from, to;       /* versions as cudnnGetVersion returns them; both are included */
    const char          *reason;
};
extern const struct cudnn_refused_engine cr_cudnn_refused_table[];
extern const int                         cr_cudnn_refused_count;

/* Returns whether an entry of the table refuses its engine for this key in this version of cuDNN. */
bool cr_cudnn_refuses(const struct cudnn_refused_engine *entry, const struct cudnn_conv_key *key, size_t version);
/* Writes the engines that are refused for this key in this version; -1 in the rest of `refused`. */
void cr_cudnn_refused_engines(const struct cudnn_conv_key *key, size_t version, int64_t refused[CR_CUDNN_REFUSED]);

#endif
