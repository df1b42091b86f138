/* tests/gpu/fatbin_limits_runtime.c: the functions of the CUDA runtime that launchers call, as the linker's --wrap
 * redirects them: each launch is noted, copies and allocations do nothing. See tests/gpu/fatbin_limits.h. */
#include "tests/gpu/fatbin_limits.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FATBINS_MAX = 512, FUNCTIONS_MAX = 8192, BOX_MAX = 256, TENSOR_RANK_MAX = 5 };

struct function {
    const void *host; /* address that launches name */
    int         fatbin;
    const char *name;
    int64_t     allowed_bytes;
    uint64_t    allowed_in; /* fatbin_start number of that permission */
};

static struct fatbin   fatbins[FATBINS_MAX];
static struct function functions[FUNCTIONS_MAX];
static int             fatbin_count, function_count;
static int             capability;
static uint64_t        starts;
struct fatbin_record   fatbin_record;

/* ---- registration: called by constructors before main ---- */

void **__wrap___cudaRegisterFatBinary(void *image);
void   __wrap___cudaRegisterFatBinaryEnd(void **handle);
void   __wrap___cudaUnregisterFatBinary(void **handle);
void   __wrap___cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                                     void *thread, void *block, void *block_size, void *grid_size, int *warp);
void   __wrap___cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes,
                                int constant, int global);
cudaError_t __wrap___cudaGetKernel(cudaKernel_t *kernel, const void *host);

void **__wrap___cudaRegisterFatBinary(void *image) {
    if (fatbin_count == FATBINS_MAX) abort();
    fatbins[fatbin_count].image = image;
    return (void **)(void *)&fatbins[fatbin_count++];
}
void __wrap___cudaRegisterFatBinaryEnd(void **handle) {}
void __wrap___cudaUnregisterFatBinary(void **handle) {}
void __wrap___cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t bytes,
                              int constant, int global) {}
void __wrap___cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit,
                                   void *thread, void *block, void *block_size, void *grid_size, int *warp) {
    if (function_count == FUNCTIONS_MAX) abort();
    functions[function_count++] = (struct function){
        .host = host, .fatbin = (int)((const struct fatbin *)(const void *)handle - fatbins), .name = name};
}
cudaError_t __wrap___cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    *kernel = (cudaKernel_t)(uintptr_t)host;
    return cudaSuccess;
}

static int by_host(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const struct function *)a)->host,
                    y = (uintptr_t)((const struct function *)b)->host;
    return x < y ? -1 : x > y;
}

cr_status fatbin_open_program(struct fatbin_totals *totals) {
    *totals = (struct fatbin_totals){.kernels = function_count};
    qsort(functions, (size_t)function_count, sizeof *functions, by_host);
    for (int i = 0; i < fatbin_count; i++) {
        CR_TRY(fatbin_read(&fatbins[i]));
        totals->files += fatbins[i].count > 0;
        totals->packed += fatbins[i].packed;
        for (int k = 0; k < fatbins[i].count; k++)
            if (!totals->oldest || fatbins[i].code[k].arch < totals->oldest) totals->oldest = fatbins[i].code[k].arch;
    }
    return CR_OK;
}

void fatbin_close_program(void) {
    for (int i = 0; i < fatbin_count; i++) fatbin_free(&fatbins[i]);
}

static struct function *function_of(const void *host) {
    const struct function key = {.host = host};
    return bsearch(&key, functions, (size_t)function_count, sizeof *functions, by_host);
}

void fatbin_start(int cc) {
    capability    = cc;
    fatbin_record = (struct fatbin_record){0};
    starts++;
}

/* ---- launches ---- */

cudaError_t __wrap_cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t bytes,
                                    cudaStream_t stream);
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t bytes,
                                      cudaStream_t stream);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args);
unsigned    __wrap___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t bytes, void *stream);
cudaError_t __wrap___cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *bytes, void *stream);

static cudaError_t record(const void *host, dim3 grid, dim3 block, size_t bytes, bool overlaps, unsigned cluster) {
    struct function *f = function_of(host);
    if (!f || fatbin_record.count == FATBIN_LAUNCHES_MAX) return cudaErrorInvalidDeviceFunction;
    fatbin_record.launch[fatbin_record.count++] =
        (struct fatbin_launch){.fatbin        = &fatbins[f->fatbin],
                               .name          = f->name,
                               .grid          = {grid.x, grid.y, grid.z},
                               .block         = {block.x, block.y, block.z},
                               .dynamic_bytes = (int64_t)bytes,
                               .allowed_bytes = f->allowed_in == starts ? f->allowed_bytes : 0,
                               .overlaps      = overlaps,
                               .cluster       = cluster};
    return cudaSuccess;
}

cudaError_t __wrap_cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **args, size_t bytes,
                                    cudaStream_t stream) {
    return record(host, grid, block, bytes, false, 1);
}
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t bytes,
                                      cudaStream_t stream) {
    return record((const void *)kernel, grid, block, bytes, false, 1);
}
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *host, void **args) {
    bool     overlaps = false;
    unsigned cluster  = 1;
    for (unsigned i = 0; i < c->numAttrs; i++) {
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            overlaps = c->attrs[i].val.programmaticStreamSerializationAllowed != 0;
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = c->attrs[i].val.clusterDim.x * c->attrs[i].val.clusterDim.y * c->attrs[i].val.clusterDim.z;
    }
    return record(host, c->gridDim, c->blockDim, c->dynamicSmemBytes, overlaps, cluster);
}

/* nvcc compiles a launch with <<<...>>> to two calls: the first stores the sizes of the launch, and the host function
 * of the kernel reads them. */
static struct {
    dim3   grid, block;
    size_t bytes;
} pushed;
unsigned __wrap___cudaPushCallConfiguration(dim3 grid, dim3 block, size_t bytes, void *stream) {
    pushed.grid = grid, pushed.block = block, pushed.bytes = bytes;
    return 0;
}
cudaError_t __wrap___cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *bytes, void *stream) {
    *grid = pushed.grid, *block = pushed.block, *bytes = pushed.bytes;
    *(void **)stream = NULL;
    return cudaSuccess;
}

/* ---- attributes ---- */

cudaError_t __wrap_cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value);
cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t __wrap_cudaGetLastError(void);

cudaError_t __wrap_cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
    struct function *f = function_of(host);
    if (!f) return cudaErrorInvalidDeviceFunction;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) f->allowed_bytes = value, f->allowed_in = starts;
    return cudaSuccess;
}
cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
    const struct function *f = function_of(host);
    bool                   foreign;
    memset(out, 0, sizeof *out);
    const struct fatbin_code *code = f ? fatbin_find(&fatbins[f->fatbin], f->name, capability, &foreign) : NULL;
    if (!code) return cudaErrorInvalidDeviceFunction;
    out->sharedSizeBytes    = (size_t)code->shared_bytes;
    out->numRegs            = code->registers;
    out->maxThreadsPerBlock = code->threads;
    out->ptxVersion = out->binaryVersion = code->arch;
    return cudaSuccess;
}
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    *value = 0;
    return cudaErrorNotSupported; /* launchers do without */
}
cudaError_t __wrap_cudaGetLastError(void) {
    return cudaSuccess;
}

/* ---- memory: nothing is copied, and addresses are not those of memory ---- */

cudaError_t __wrap_cudaMalloc(void **out, size_t bytes);
cudaError_t __wrap_cudaFree(void *memory);
cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream);
cudaError_t __wrap_cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t __wrap_cudaMalloc(void **out, size_t bytes) {
    *out = (void *)((uintptr_t)1 << 44);
    return cudaSuccess;
}
cudaError_t __wrap_cudaFree(void *memory) {
    return cudaSuccess;
}
cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    return cudaSuccess;
}
cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream) {
    return cudaSuccess;
}
cudaError_t __wrap_cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    return cudaSuccess;
}

/* ---- tensor maps of TMA: made by the driver, through its entry point ---- */

cudaError_t __wrap_cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *found);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                    unsigned long long                    flags,
                                                    enum cudaDriverEntryPointQueryResult *found);

/* Both kinds of maps begin with these arguments. */
static CUresult make_map(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data) {
    fatbin_record.tensor_maps = true;
    return rank >= 1 && rank <= TENSOR_RANK_MAX && (uintptr_t)data % 16 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult make_boxes(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                           const cuuint64_t *dim, const cuuint64_t *pitch, const cuuint32_t *box,
                           const cuuint32_t *every, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    for (cuuint32_t i = 0; i < rank && rank <= TENSOR_RANK_MAX; i++)
        if (box[i] < 1 || box[i] > BOX_MAX || (i + 1 < rank && pitch[i] % 16)) return CUDA_ERROR_INVALID_VALUE;
    return make_map(map, type, rank, data);
}
static CUresult make_pixels(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                            const cuuint64_t *dim, const cuuint64_t *pitch, const int *lower, const int *upper,
                            cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *every,
                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                            CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if (channels > BOX_MAX || pixels > 1024) return CUDA_ERROR_INVALID_VALUE;
    return make_map(map, type, rank, data);
}

cudaError_t __wrap_cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *found) {
    *out   = strcmp(name, "cuTensorMapEncodeTiled") == 0    ? (void *)(uintptr_t)&make_boxes
             : strcmp(name, "cuTensorMapEncodeIm2col") == 0 ? (void *)(uintptr_t)&make_pixels
                                                            : NULL;
    *found = *out ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                                    unsigned long long                    flags,
                                                    enum cudaDriverEntryPointQueryResult *found) {
    return __wrap_cudaGetDriverEntryPoint(name, out, flags, found);
}
