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

enum { WAYS = 3, DEVICES = (CR_COUNT(capabilities) + 1) * WAYS };
/* An offline device, opened in one of the ways of test_checkops, and what it knows of the kernels. */
struct asked {
    struct cr_gpu           gpu; /* of the device, which keeps its address */
    struct cr_device       *device;
    const struct cr_kernel *kernel[CHECKOPS_KERNELS_MAX]; /* NULL: the device has none of this name */
    bool                    accepts[CHECKOPS_KERNELS_MAX];
};

static cr_status open_offline(int cc, int way, int count, const char *const name[], struct asked *at) {
    const struct cr_device_options options = {.deterministic = way<2, .tf32 = way> 0};
    at->gpu                                = *cr_gpu_find("h200");
    at->gpu.cc                             = cc;
    CR_TRY(cr_gpu_open_offline(&at->gpu, &options, &at->device));
    for (int k = 0; k < count; k++) at->kernel[k] = find_kernel(at->device, name[k]);
    return CR_OK;
}

static cr_status ask_case(const struct checkops_case *c, int count, struct asked *at) {
    struct checkops_unit unit = {0};
    for (int i = 0; i < DEVICES * count; i++) {
        struct asked *of = &at[i / count];
        const int     k  = i % count;
        if (!of->kernel[k] || of->kernel[k]->op != c->kind || of->accepts[k]) continue;
        if (!unit.op) CR_TRY(checkops_unit_make(c, &unit));
        of->accepts[k] = cr_kernel_accepts(of->device, of->kernel[k], &unit.program, unit.op);
    }
    if (unit.op) checkops_unit_free(&unit);
    return CR_OK;
}

cr_status checkops_reach(int cc, int count, const char *const name[], struct checkops_reach reach[]) {
    static struct asked  asked[DEVICES]; /* the last WAYS are of capability cc */
    struct checkops_list list = {0};
    cr_status            status;
    CR_ASSERT(count <= CHECKOPS_KERNELS_MAX);
    memset(asked, 0, sizeof asked);
    for (int i = 0; i < DEVICES; i++)
        CR_TRY_OUT(open_offline(i < DEVICES - WAYS ? capabilities[i / WAYS] : cc, i % WAYS, count, name, &asked[i]));
    CR_TRY_OUT(checkops_list_make(CHECKOPS_HALF, &list));
    for (int i = 0; i < list.count; i++) CR_TRY_OUT(ask_case(&list.item[i], count, asked));
    memset(reach, 0, (size_t)count * sizeof *reach);
    for (int k = 0; k < count; k++)
        for (struct asked *at = asked; at < asked + DEVICES; at += WAYS) {
            const bool accepts = at[0].accepts[k] || at[1].accepts[k] || at[2].accepts[k];
            const int  of      = at < asked + DEVICES - WAYS ? capabilities[(at - asked) / WAYS] : 0;
            char      *text    = reach[k].elsewhere + strlen(reach[k].elsewhere);
            if (!of)
                reach[k].here = accepts;
            else if (accepts && of != cc)
                sprintf(text, " %d.%d", of / 10, of % 10);
        }
out:
    for (int i = 0; i < DEVICES; i++) cr_device_close(asked[i].device);
    checkops_list_free(&list);
    return status;
}
