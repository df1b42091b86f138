/* tools/sparse-bench/cusparse_cuda.h: the cuSPARSE functions that the benchmark baselines call.
 *
 * The library is opened at the first use, as cuda/core/libraries.h opens cuBLAS and cuDNN. Without the cuSPARSE headers
 * at build time or without the library at run time, the cuSPARSE baseline does not exist. */
#ifndef CR_CUSPARSE_LIB_H
#define CR_CUSPARSE_LIB_H

#if defined(__has_include)
#if __has_include(<cusparse.h>)
#define CR_HAS_CUSPARSE 1
#endif
#endif

#ifdef CR_HAS_CUSPARSE
#include <cusparse.h>

/* The functions that are called. The struct below has one member per function, with the function's own name. */
// clang-format off
#define CUSPARSE_FUNCTIONS(X) \
    X(cusparseCreate) \
    X(cusparseDestroy) \
    X(cusparseSetStream) \
    X(cusparseGetErrorString) \
    X(cusparseCreateCsr) \
    X(cusparseDestroySpMat) \
    X(cusparseCsrSetPointers) \
    X(cusparseCreateDnMat) \
    X(cusparseDestroyDnMat) \
    X(cusparseDnMatSetValues) \
    X(cusparseSpMM) \
    X(cusparseSpMM_bufferSize) \
    X(cusparseSpMM_preprocess)
// clang-format on
struct cr_cusparse {
#define X(name) __typeof__(name) *name;
    CUSPARSE_FUNCTIONS(X)
#undef X
};
/* Returns the functions, or NULL when the library or one of its functions is missing. The table is static: the caller
 * does not free it. Thread-safe. */
const struct cr_cusparse *cr_cusparse(void);
#endif

#endif
