/* device/cpu/device.c: the CPU backend: memory regions are on the heap, and a launch runs immediately on the caller's
 * thread and its OpenMP team. */
#include "core/cpu.h"
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef CR_WITH_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

enum { REGION_ALIGN = 256, PAGE_BYTES = 4096, ADVISE_MIN = 64 << 10 };

/* Typical values of a server core. The roofline only orders alternatives and does not predict times. The same values on
 * every machine make plans the same everywhere. */
static const double thread_bytes_per_s = 10e9, thread_flops_per_s = 50e9;

static bool cpu_available(const char **why) {
    *why = NULL;
    return true;
}

#ifdef _OPENMP
/* OpenMP may start fewer threads than a parallel region requests: OMP_THREAD_LIMIT, OMP_DYNAMIC and
 * OMP_MAX_ACTIVE_LEVELS limit them. oneDNN's kernels wait for ever for every requested thread. This function
 * returns the number of threads that really run. */
static int threads_granted(int wanted) {
    int granted = 1;
    omp_set_dynamic(0);
    if (omp_get_max_active_levels() < 1) omp_set_max_active_levels(1);
#pragma omp parallel num_threads(wanted)
    {
#pragma omp single
        granted = omp_get_num_threads();
    }
    if (granted < wanted)
        cr_log(CR_LOG_WARN, "%d thread%s instead of %d: OpenMP grants no more (OMP_THREAD_LIMIT)", granted,
               granted == 1 ? "" : "s", wanted);
    omp_set_num_threads(granted); /* oneDNN takes the number of threads from OpenMP */
    return granted;
}
#else
static int threads_granted(int wanted) {
    return wanted;
}
#endif

static void describe(struct cpu_device *device) {
    struct cr_device_caps *caps = &device->base.caps;
    caps->alignment             = CR_CPU_ALIGN;
    caps->bytes_per_s           = thread_bytes_per_s * device->threads;
    caps->flops_per_s           = thread_flops_per_s * device->threads;
    caps->typical_rates         = true;
    caps->f32_fraction = caps->tf32_fraction = 1;
    caps->duplex_speedup                     = 1;
    caps->sparse_density_max = 0.2; /* 3x3 layers of ResNet-50 are 1.6 to 2.2 times as fast as dense on 2 threads */
    /* Offloading copies within the same memory, whose bandwidth both directions share. Only tests use it. */
    caps->to_host_bytes_per_s = caps->to_device_bytes_per_s = caps->bytes_per_s / 2;
    caps->host_memory                                       = true;
    caps->bf16_products                                     = cr_cpu_has(CR_CPU_AMX_BF16);
    int used = snprintf(caps->text, sizeof caps->text, "CPU, %d thread%s, %s", device->threads,
                        device->threads == 1 ? "" : "s", cr_cpu_text());
    if (device->base.options.ref_only) {
        snprintf(caps->text + used, sizeof caps->text - (size_t)used, ", reference kernels only");
        return;
    }
#ifdef CR_WITH_ONEDNN
    const dnnl_version_t *v = dnnl_version();
    snprintf(caps->text + used, sizeof caps->text - (size_t)used, ", oneDNN %d.%d.%d", v->major, v->minor, v->patch);
#endif
}

static cr_status cpu_open(const struct cr_device_options *options, struct cr_device **out) {
    struct cpu_device *device;
    CR_ALLOC(device, 1);
    device->base.options = *options;
    device->threads      = threads_granted(cr_device_host_threads(options));
#ifdef CR_WITH_ONEDNN
    cr_cpu_dnnl_lower();
#endif
    cr_cpu_collect_kernels(device);
    device->base.backend = &cr_backend_cpu;
    device->base.kernels = device->kernels.kernel;
    describe(device);
    *out = &device->base;
    return CR_OK;
}

static void cpu_close(struct cr_device *base) {
    struct cpu_device *device = cpu_of(base);
    if (device->dnnl) device->dnnl_close(device->dnnl);
    cr_free(device);
}

/* cr_alloc aligns to 64 bytes and a region needs 256, so the address of the block is stored before the region. */
static cr_status cpu_reserve(struct cr_device *device, size_t bytes, void **out) {
    (void)device;
    const size_t extra = REGION_ALIGN + sizeof(void *);
    if (bytes > SIZE_MAX - extra) return CR_NO_MEMORY(bytes);
    char *block = cr_alloc(bytes + extra, 1);
    if (!block) return CR_NO_MEMORY(bytes);
    char  *first = block + sizeof(void *);
    size_t skip  = (REGION_ALIGN - (uintptr_t)first % REGION_ALIGN) % REGION_ALIGN;
    memcpy(first + skip - sizeof(void *), &block, sizeof block);
    *out = first + skip;
    return CR_OK;
}

static void cpu_release(struct cr_device *device, void *region) {
    (void)device;
    if (!region) return;
    void *block;
    memcpy(&block, (char *)region - sizeof(void *), sizeof block);
    cr_free(block);
}

static cr_status cpu_copy(struct cr_device *device, void *dst, const void *src, size_t bytes) {
    (void)device;
    if (bytes) memcpy(dst, src, bytes);
    return CR_OK;
}

static void advise_pages(void *begin, size_t bytes, int advice) {
    const uintptr_t page = PAGE_BYTES, first = ((uintptr_t)begin + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)begin + bytes) / page * page;
    if (bytes >= ADVISE_MIN) (void)madvise((void *)first, end - first, advice);
}

/* A region begins without memory, and the first write to each of its pages interrupts the thread: 25,000 times for the
 * weights of a ResNet-50. One call for all pages of a copy costs less. (Huge pages cost still less on the average, but
 * sometimes several times as much: see docs/experiments/.) */
void cr_cpu_populate_pages(void *begin, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
    advise_pages(begin, bytes, MADV_POPULATE_WRITE);
#else
    (void)begin, (void)bytes;
#endif
}

void cr_cpu_drop_pages(void *begin, size_t bytes) {
    advise_pages(begin, bytes, MADV_DONTNEED);
}

static cr_status cpu_put(struct cr_device *device, void *dst, const void *src, size_t bytes) {
    cr_cpu_populate_pages(dst, bytes);
    return cpu_copy(device, dst, src, bytes);
}

static cr_status cpu_sync(struct cr_device *device) {
    (void)device; /* a launch is complete when it returns */
    return CR_OK;
}

static size_t cpu_memory_free(struct cr_device *device) {
    const size_t card = device->options.card_bytes, left = cr_cpu_memory_free();
    return card && left ? CR_MIN(card, left) : CR_MAX(card, left);
}

/* An f64 store (tests) is initialised with the same f32 values. */
static cr_status init_widened(const struct cr_param_store *store, const struct cr_config *config, double *value,
                              double *running) {
    float *narrow;
    CR_ALLOC(narrow, (size_t)(store->value_elems + store->running_elems));
    cr_param_store_init_host(store, config, narrow, narrow + store->value_elems);
    for (int64_t i = 0; i < store->value_elems; i++) value[i] = (double)narrow[i];
    for (int64_t i = 0; i < store->running_elems; i++) running[i] = (double)narrow[store->value_elems + i];
    cr_free(narrow);
    return CR_OK;
}

/* oneDNN divides the work of a primitive among as many threads as omp_get_max_threads returns where it is created. */
static void cpu_for_each(struct cr_device *device, int count, void (*job)(void *context, int i), void *context) {
    const int threads = cr_cpu_threads(device);
    (void)threads;
#pragma omp parallel num_threads(threads)
    {
#ifdef _OPENMP
        omp_set_num_threads(threads);
#pragma omp for schedule(dynamic)
#endif
        for (int i = 0; i < count; i++) job(context, i);
    }
}

struct initial {
    const struct cr_param_store *store;
    const struct cr_config      *config;
    float                       *value, *running;
};

static void init_one(void *context, int param) {
    const struct initial *all = context;
    cr_param_store_init_param(all->store, param, all->config, all->value, all->running);
}

static cr_status cpu_init_store(struct cr_device *device, const struct cr_param_store *store,
                                const struct cr_config *config, void *region) {
    char   *base               = region;
    void   *value              = base + cr_param_store_buffer_offset(store, CR_BUFFER_VALUE);
    void   *running            = base + cr_param_store_buffer_offset(store, CR_BUFFER_RUNNING);
    double *state              = (double *)(void *)(base + cr_param_store_buffer_offset(store, CR_BUFFER_STATE));
    state[CR_STATE_LOSS_SCALE] = 1.0; /* 16-bit training increases it */
    CR_ASSERT(store->real == CR_F32 || store->real == CR_F64);
    if (store->real == CR_F64) return init_widened(store, config, value, running);
    const struct initial all = {store, config, value, running};
    cpu_for_each(device, store->params, init_one, (void *)(uintptr_t)&all);
    return CR_OK;
}

const struct cr_backend cr_backend_cpu = {
    .name         = "cpu",
    .available    = cpu_available,
    .open         = cpu_open,
    .close        = cpu_close,
    .reserve      = cpu_reserve,
    .release      = cpu_release,
    .put          = cpu_put,
    .get          = cpu_copy,
    .sync         = cpu_sync,
    .memory_free  = cpu_memory_free,
    .init_store   = cpu_init_store,
    .for_each     = cpu_for_each,
    .packed_elems = cr_cpu_packed_elems,
};
