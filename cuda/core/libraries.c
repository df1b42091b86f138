/* cuda/core/libraries.c: opens cuDNN and cuBLAS with dlopen; implements cuda/core/libraries.h. Each function of cuDNN
 * and cuBLAS that cresnet calls is defined here under its own name. It forwards the call to the function that dlsym
 * found. The list is complete: a call of any other function does not link. */
#include "cuda/core/libraries.h"

#include "cuda/core/cuda_device.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>

/* result, name, parameters, arguments */
#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnStatus_t, cudnnCreate, (cudnnHandle_t * handle), (handle))                                                  \
    X(cudnnStatus_t, cudnnDestroy, (cudnnHandle_t handle), (handle))                                                   \
    X(cudnnStatus_t, cudnnSetStream, (cudnnHandle_t handle, cudaStream_t stream), (handle, stream))                    \
    X(size_t, cudnnGetVersion, (void), ())                                                                             \
    X(const char *, cudnnGetErrorString, (cudnnStatus_t status), (status))                                             \
    X(void, cudnnGetLastErrorString, (char *message, size_t max_size), (message, max_size))                            \
    X(cudnnStatus_t, cudnnBackendCreateDescriptor,                                                                     \
      (cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t * out), (type, out))                                \
    X(cudnnStatus_t, cudnnBackendDestroyDescriptor, (cudnnBackendDescriptor_t descriptor), (descriptor))               \
    X(cudnnStatus_t, cudnnBackendFinalize, (cudnnBackendDescriptor_t descriptor), (descriptor))                        \
    X(cudnnStatus_t, cudnnBackendSetAttribute,                                                                         \
      (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,        \
       int64_t count, const void *values),                                                                             \
      (descriptor, name, type, count, values))                                                                         \
    X(cudnnStatus_t, cudnnBackendGetAttribute,                                                                         \
      (cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,        \
       int64_t wanted, int64_t * count, void *values),                                                                 \
      (descriptor, name, type, wanted, count, values))                                                                 \
    X(cudnnStatus_t, cudnnBackendExecute,                                                                              \
      (cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack), (handle, plan, pack))

#define CUBLAS_FUNCTIONS(X)                                                                                            \
    X(cublasStatus_t, cublasCreate_v2, (cublasHandle_t * handle), (handle))                                            \
    X(cublasStatus_t, cublasDestroy_v2, (cublasHandle_t handle), (handle))                                             \
    X(cublasStatus_t, cublasSetStream_v2, (cublasHandle_t handle, cudaStream_t stream), (handle, stream))              \
    X(cublasStatus_t, cublasSetWorkspace_v2, (cublasHandle_t handle, void *workspace, size_t bytes),                   \
      (handle, workspace, bytes))                                                                                      \
    X(cublasStatus_t, cublasSetMathMode, (cublasHandle_t handle, cublasMath_t mode), (handle, mode))                   \
    X(const char *, cublasGetStatusString, (cublasStatus_t status), (status))                                          \
    X(cublasStatus_t, cublasGemmEx,                                                                                    \
      (cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,                 \
       const void *alpha, const void *A, cudaDataType type_a, int lda, const void *B, cudaDataType type_b, int ldb,    \
       const void *beta, void *C, cudaDataType type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t algo),   \
      (handle, transa, transb, m, n, k, alpha, A, type_a, lda, B, type_b, ldb, beta, C, type_c, ldc, compute, algo))   \
    X(cublasStatus_t, cublasGemmStridedBatchedEx,                                                                      \
      (cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,                 \
       const void *alpha, const void *A, cudaDataType type_a, int lda, long long step_a, const void *B,                \
       cudaDataType type_b, int ldb, long long step_b, const void *beta, void *C, cudaDataType type_c, int ldc,        \
       long long step_c, int count, cublasComputeType_t compute, cublasGemmAlgo_t algo),                               \
      (handle, transa, transb, m, n, k, alpha, A, type_a, lda, step_a, B, type_b, ldb, step_b, beta, C, type_c, ldc,   \
       step_c, count, compute, algo))

/* State of the process: the libraries are loaded once for the process. */
static struct {
#define X(result, name, params, args) result(*name) params;
    CUDNN_FUNCTIONS(X)
    CUBLAS_FUNCTIONS(X)
#undef X
    char why[300]; /* empty when all functions were found */
} libs;
static pthread_once_t libs_once = PTHREAD_ONCE_INIT;

/* Searches the program's run path and the system's library folders. */
static void *open_library(const char *name) {
    return dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}

static void *find(void *library, const char *library_name, const char *name) {
    void *function = library ? dlsym(library, name) : NULL;
    if (!function && !*libs.why)
        snprintf(libs.why, sizeof libs.why, "%s %s: install it or name its folder in LD_LIBRARY_PATH", library_name,
                 library ? "is too old for this build" : "was not found");
    return function;
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define CUDNN_SO "libcudnn.so." TEXT(CUDNN_MAJOR)
#define CUBLAS_SO "libcublas.so." TEXT(CUBLAS_VER_MAJOR)
#define NVRTC_SO "libnvrtc.so." TEXT(CUBLAS_VER_MAJOR) /* cuBLAS has the major version of the toolkit */

static void load(void) {
    void *cudnn = open_library(CUDNN_SO), *cublas = open_library(CUBLAS_SO);
#define X(result, name, params, args) *(void **)(void *)&libs.name = find(cudnn, CUDNN_SO, #name);
    CUDNN_FUNCTIONS(X)
#undef X
#define X(result, name, params, args) *(void **)(void *)&libs.name = find(cublas, CUBLAS_SO, #name);
    CUBLAS_FUNCTIONS(X)
#undef X
}

static pthread_once_t nvrtc_once = PTHREAD_ONCE_INIT;
static void           load_nvrtc(void) {
              (void)open_library(NVRTC_SO);
}
void cr_cuda_keep_nvrtc(void) {
    pthread_once(&nvrtc_once, load_nvrtc);
}

/* ---- opening ---- */

static pthread_once_t begin_once = PTHREAD_ONCE_INIT;
static pthread_t      loader;
static bool           loader_runs;

/* cuDNN would open these parts one by one when it plans the first convolution. */
static void open_parts(void) {
    static const char *const parts[] = {"graph", "engines_precompiled", "heuristic", "engines_runtime_compiled"};
    char                     name[64];
    for (size_t i = 0; i < CR_COUNT(parts); i++) {
        snprintf(name, sizeof name, "libcudnn_%s.so." TEXT(CUDNN_MAJOR), parts[i]);
        (void)open_library(name);
    }
    cr_cuda_keep_nvrtc();
}

static void *load_all(void *unused) {
    (void)unused;
    load();
    open_parts();
    return NULL;
}

/* Signals of the process are for its own threads. */
static void begin(void) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    loader_runs = pthread_create(&loader, NULL, load_all, NULL) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void begin_nothing(void) {}

static void end(void) {
    (void)pthread_once(&begin_once, begin_nothing); /* begin has been called, or will not start a thread any more */
    if (loader_runs)
        (void)pthread_join(loader, NULL);
    else
        load();
}

void cr_cuda_libs_begin(void) {
    (void)pthread_once(&begin_once, begin);
}

const char *cr_cuda_libs_missing(void) {
    (void)pthread_once(&libs_once, end);
    return *libs.why ? libs.why : NULL;
}

void cr_cuda_libs_list(struct cr_text *out) {
    static const char *const names[] = {CUDNN_SO, CUBLAS_SO, NVRTC_SO, "libnccl.so.2"};
    for (size_t i = 0; i < CR_COUNT(names); i++) {
        struct link_map *map     = NULL;
        void            *library = open_library(names[i]);
        const bool       known   = library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map;
        cr_text_add(out, "%-14s %s\n", names[i], known ? map->l_name : "not found");
    }
}

/* The headers declare some of these functions as imported or deprecated; here they are defined on purpose. */
#define X(result, name, params, args)                                                                                  \
    result name params {                                                                                               \
        return libs.name args;                                                                                         \
    }
CUDNN_FUNCTIONS(X)
CUBLAS_FUNCTIONS(X)
#undef X
