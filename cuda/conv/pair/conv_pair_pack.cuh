/* cuda/conv/pair/conv_pair_pack.cuh: packs the 8-bit filters of a launch in its workspace where they are not packed. */
#ifndef CK_CONV_PAIR_PACK_CUH
#define CK_CONV_PAIR_PACK_CUH

#include "cuda/conv/pair/conv_pair.h"

namespace {

/* The filters in the order of the workspace. */
struct pair_filter {
    const void **w;
    int64_t      K, C;
    int          side;
    size_t       bytes() const { return ck_int8_packed_bytes(K, side, side, C); }
};
enum { PAIR_FILTERS = 3 };

void filters_of(struct ck_conv_pair *a, struct pair_filter (&to)[PAIR_FILTERS]) {
    to[0] = {&a->first_w, a->has_first ? a->C : 0, a->C, 3};
    to[1] = {&a->w, a->K, a->C, 1};
    to[2] = {&a->next_w, a->L, a->K, 1};
}

size_t workspace_of(const struct ck_conv_pair *args, const struct ck_gpu *) {
    struct ck_conv_pair a = *args;
    struct pair_filter  filters[PAIR_FILTERS];
    size_t              bytes = 0;
    if (a.type != CK_PAIR_U8 || a.has_packed) return 0;
    filters_of(&a, filters);
    for (const struct pair_filter &f : filters) bytes += f.bytes();
    return bytes;
}

/* The filters of *a become those in the workspace, which are complete for the launch behind: it reads them before its
 * wait. */
cudaError_t pack_filters(struct ck_conv_pair *a, void *workspace, cudaStream_t stream) {
    struct pair_filter filters[PAIR_FILTERS];
    int8_t            *to = static_cast<int8_t *>(workspace);
    if (a->type != CK_PAIR_U8 || a->has_packed) return cudaSuccess;
    filters_of(a, filters);
    for (const struct pair_filter &f : filters) {
        if (!f.K) continue;
        const cudaError_t error = ck_int8_pack(static_cast<const int8_t *>(*f.w), to, f.K, f.side, f.side, f.C, stream);
        if (error != cudaSuccess) return error;
        *f.w = to;
        to += f.bytes();
    }
    return ck_separate(stream);
}

} // namespace

#endif
