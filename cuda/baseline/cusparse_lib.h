/* cuda/baseline/cusparse_lib.h: cuSPARSE, for comparisons only: opened at first use, as cuda/core/libraries.h does with
 * what is always needed. A build whose toolkit has no cuSPARSE headers, or a machine without the library, has no such
 * comparison. */
#ifndef CR_CUSPARSE_LIB_H
#define CR_CUSPARSE_LIB_H

#if defined(__has_include)
#if __has_include(<cusparse.h>)
#define CR_HAS_CUSPARSE 1
#endif
#endif

#ifdef CR_HAS_CUSPARSE
#include <cusparse.h>

/* The functions that are called, under their own names. */
#define CUSPARSE_FUNCTIONS(X)                                                                                          \
    X(cusparseCreate)                                                                                                  \
    X(cusparseDestroy) X(cusparseSetStream) X(cusparseGetErrorString) X(cusparseCreateCsr) X(cusparseDestroySpMat)     \
        X(cusparseCsrSetPointers) X(cusparseCreateDnMat) X(cusparseDestroyDnMat) X(cusparseDnMatSetValues)             \
            X(cusparseSpMM) X(cusparseSpMM_bufferSize) X(cusparseSpMM_preprocess)
struct cr_cusparse {
#define X(name) __typeof__(name) *name;
    CUSPARSE_FUNCTIONS(X)
#undef X
};
/* NULL: not there. */
const struct cr_cusparse *cr_cusparse(void);
#endif

#endif
