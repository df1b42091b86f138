/* tests/checkops/checkops_reach.c: whether a kernel that no case has reached on a GPU should have been reached. A
 * kernel may be for GPUs of other compute capabilities only. What it accepts there, and here, is asked of offline
 * devices (device/offline.h). */
#include "device/kernel.h"
#include "device/offline.h"
#include "tests/checkops/checkops.h"

#include <stdio.h>
#include <string.h>

static const int capabilities[] = {80, 86, 89, 90, 120};

bool checkops_reach_ok(const struct checkops_reach *reach) {
    return !reach->here && *reach->elsewhere;
}

/* "NVIDIA H200, 139 GiB, compute capability 9.0, ..."; with CRESNET_CAPABILITY "NVIDIA H200 as 8.0, ...". */
int checkops_capability(const char *text) {
    int         major, minor;
    const char *played = strstr(text, " as "), *own = strstr(text, "compute capability ");
    if (played && sscanf(played, " as %d.%d,", &major, &minor) == 2) return major * 10 + minor;
    return own && sscanf(own, "compute capability %d.%d", &major, &minor) == 2 ? major * 10 + minor : 0;
}

static const struct cr_kernel *find_kernel(const struct cr_device *device, const char *name) {
    for (const struct cr_kernel *const *k = device->kernels; *k; k++)
        if (strcmp((*k)->name, name) == 0) return *k;
    return NULL;
}

static cr_status ask_cases(struct cr_device *device, const struct checkops_list *list, int count,
                           const char *const name[], bool accepted[]) {
    for (int i = 0; i < list->count; i++) {
        struct checkops_unit unit = {0};
        for (int k = 0; k < count; k++) {
            const struct cr_kernel *kernel = find_kernel(device, name[k]);
            if (!kernel || kernel->op != list->item[i].kind || accepted[k]) continue;
            if (!unit.op) CR_TRY(checkops_unit_make(&list->item[i], &unit));
            accepted[k] = cr_kernel_accepts(device, kernel, &unit.program, unit.op);
        }
        if (unit.op) checkops_unit_free(&unit);
    }
    return CR_OK;
}

/* accepted[k]: a GPU of this capability accepts a case of kernel k, however test_checkops opens the GPU. */
static cr_status ask_capability(int cc, const struct checkops_list *list, int count, const char *const name[],
                                bool accepted[]) {
    struct cr_gpu gpu = *cr_gpu_find("h200");
    gpu.cc            = cc;
    memset(accepted, 0, (size_t)count * sizeof *accepted);
    for (int way = 0; way < 3; way++) {
        const struct cr_device_options options = {.deterministic = way<2, .tf32 = way> 0};
        struct cr_device              *device;
        CR_TRY(cr_gpu_open_offline(&gpu, &options, &device));
        cr_status status = ask_cases(device, list, count, name, accepted);
        cr_device_close(device);
        CR_TRY(status);
    }
    return CR_OK;
}

cr_status checkops_reach(int cc, int count, const char *const name[], struct checkops_reach reach[]) {
    struct checkops_list list = {0};
    cr_status            status;
    bool                 accepted[CHECKOPS_KERNELS_MAX];
    CR_ASSERT(count <= CHECKOPS_KERNELS_MAX);
    CR_TRY_OUT(checkops_list_make(CHECKOPS_HALF, &list));
    CR_TRY_OUT(ask_capability(cc, &list, count, name, accepted));
    for (int k = 0; k < count; k++) reach[k] = (struct checkops_reach){.here = accepted[k]};
    for (size_t i = 0; i < CR_COUNT(capabilities); i++) {
        if (capabilities[i] == cc) continue;
        CR_TRY_OUT(ask_capability(capabilities[i], &list, count, name, accepted));
        for (int k = 0; k < count; k++) {
            const size_t used = strlen(reach[k].elsewhere);
            if (accepted[k])
                snprintf(reach[k].elsewhere + used, sizeof reach[k].elsewhere - used, " %d.%d", capabilities[i] / 10,
                         capabilities[i] % 10);
        }
    }
out:
    checkops_list_free(&list);
    return status;
}
