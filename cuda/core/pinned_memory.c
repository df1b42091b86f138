/* cuda/core/pinned_memory.c: page-locked (pinned) host memory. Small blocks come from the CUDA runtime. A large block,
 * for offloaded tensors, is mapped with huge pages, touched by several threads and then registered. cudaHostAlloc takes
 * half a second per GiB, 4 KiB page by 4 KiB page, and copies then translate as many addresses. When the registration
 * fails, the block comes from cudaHostAlloc. */
#include "core/cpu.h"
#include "cuda/core/cuda_device.h"
#include "cuda/core/device_parts.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LARGE_BYTES = 64 << 20, HUGE_PAGE = 2 << 20, THREADS_MAX = 16 };

struct cuda_host_block {
    struct cuda_host_block *next;
    void                   *mapped, *at; /* at: the first whole huge page */
    size_t                  mapped_bytes, bytes;
};

/* ---- first touch ---- */

struct piece {
    unsigned char *from;
    size_t         bytes, page;
};

static void *touch(void *self) {
    const struct piece *p = self;
    for (size_t i = 0; i < p->bytes; i += p->page) ((volatile unsigned char *)p->from)[i] = 0;
    return NULL;
}

/* The operating system allocates pages, zeroed, when they are first written to. */
static void touch_all(unsigned char *at, size_t bytes) {
    const long   page  = sysconf(_SC_PAGESIZE);
    const size_t pages = bytes / HUGE_PAGE, threads = (size_t)CR_MIN(cr_cpu_cores(), (int)THREADS_MAX);
    struct piece piece[THREADS_MAX];
    pthread_t    thread[THREADS_MAX];
    bool         runs[THREADS_MAX] = {false};
    for (size_t i = 0; i < threads; i++) {
        const size_t from = pages * i / threads, to = pages * (i + 1) / threads;
        piece[i] = (struct piece){
            .from = at + from * HUGE_PAGE, .bytes = (to - from) * HUGE_PAGE, .page = page > 0 ? (size_t)page : 4096};
        runs[i] = i + 1 < threads && pthread_create(&thread[i], NULL, touch, &piece[i]) == 0;
        if (!runs[i]) touch(&piece[i]);
    }
    for (size_t i = 0; i < threads; i++)
        if (runs[i]) (void)pthread_join(thread[i], NULL);
}

/* ---- large blocks ---- */

static struct cuda_host_block *map_block(size_t bytes) {
    struct cuda_host_block *b = cr_alloc(1, sizeof *b);
    if (!b) return NULL;
    b->bytes        = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    b->mapped_bytes = b->bytes + HUGE_PAGE;
    b->mapped = mmap(NULL, b->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->mapped == MAP_FAILED) {
        cr_free(b);
        return NULL;
    }
    b->at = (unsigned char *)b->mapped + (HUGE_PAGE - (uintptr_t)b->mapped % HUGE_PAGE) % HUGE_PAGE;
    (void)madvise(b->at, b->bytes, MADV_HUGEPAGE); /* without huge pages the block has small ones */
    return b;
}

static void unmap_block(struct cuda_host_block *b) {
    (void)munmap(b->mapped, b->mapped_bytes);
    cr_free(b);
}

/* Checks that memory is available: touching pages that do not exist would end the process, while the runtime returns an
 * error. */
static bool is_free(size_t bytes) {
    return cr_cpu_memory_free() > bytes + HUGE_PAGE;
}

static bool reserve_large(struct cuda_device *d, size_t bytes, void **out) {
    struct cuda_host_block *b = is_free(bytes) ? map_block(bytes) : NULL;
    if (!b) return false;
    touch_all(b->at, b->bytes);
    if (cudaHostRegister(b->at, b->bytes, cudaHostRegisterDefault) != cudaSuccess) {
        (void)cudaGetLastError();
        unmap_block(b);
        return false;
    }
    b->next        = d->host_blocks;
    d->host_blocks = b;
    *out           = b->at;
    return true;
}

static bool release_large(struct cuda_device *d, const void *host) {
    for (struct cuda_host_block **at = &d->host_blocks; *at; at = &(*at)->next) {
        struct cuda_host_block *b = *at;
        if (b->at != host) continue;
        *at = b->next;
        (void)cudaHostUnregister(b->at);
        unmap_block(b);
        return true;
    }
    return false;
}

/* ---- interface of the backend ---- */

cr_status cr_cuda_host_reserve(struct cr_device *device, size_t bytes, void **out) {
    void *host = NULL;
    if (bytes >= LARGE_BYTES && reserve_large(cuda_of(device), bytes, out)) return CR_OK;
    CUDA_TRY(cudaHostAlloc(&host, CR_MAX(bytes, (size_t)1), cudaHostAllocDefault));
    memset(host, 0, bytes);
    *out = host;
    return CR_OK;
}

void cr_cuda_host_release(struct cr_device *device, void *host) {
    if (!host || release_large(cuda_of(device), host)) return;
    (void)cudaFreeHost(host);
}
