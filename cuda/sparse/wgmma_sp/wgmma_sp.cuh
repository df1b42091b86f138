/* cuda/sparse/wgmma_sp/wgmma_sp.cuh: the bytes of a unit and the layout of shared memory, which the plan and the kernel
 * of cuda/sparse/wgmma_sp/wgmma_sp.h share. */
#ifndef CK_WGMMA_SP_CUH
#define CK_WGMMA_SP_CUH

#include "cuda/sparse/two_four/two_four.cuh"
#include "cuda/sparse/wgmma_sp/wgmma_sp.h"

namespace wgmma_sp {

/* A unit in shared memory: the high parts of the values, the low parts, then its words: metadata and head. The first
 * word of the head has the first position of operand B, relative to the stage, in 16 bytes; HEAD_DENSE: the unit is
 * dense; HEAD_FIRST and HEAD_LAST: the unit is the first or last of its stage. The second word of the head is the
 * number of units of this kind, from this one on, that are summed together. The values come from the weights. The
 * words, which control the kernel, come from the packed filter. */
enum {
    POSITION     = CK_WGMMA_SP_CHUNK * 4,
    UNIT_PART    = CK_WGMMA_SP_VALUES * 2,
    UNIT_PLACES  = 2 * UNIT_PART,
    UNIT_HEAD    = UNIT_PLACES + (CK_WGMMA_SP_WORDS - 4) * 4,
    UNIT_VALUES  = 2 * UNIT_PART,         /* bytes */
    UNIT_WORDS   = CK_WGMMA_SP_WORDS * 4, /* bytes */
    UNIT_BYTES   = UNIT_VALUES + UNIT_WORDS,
    UNIT_SLOT    = 4480, /* bytes in shared memory */
    HEAD_DENSE   = 1 << 29,
    HEAD_FIRST   = 1 << 30,
    HEAD_LAST    = (int)(1u << 31),
    MAX_STAGES   = 8,
    MAX_RING     = 16,
    MAX_COLUMNS  = 256,
    SHARED_LIMIT = 227 * 1024,
    SHARED_HALF  = 113 * 1024 /* per thread block when two share a multiprocessor */
};
static_assert(UNIT_BYTES <= UNIT_SLOT && UNIT_SLOT % 128 == 0 && UNIT_VALUES % 16 == 0 && UNIT_WORDS % 16 == 0,
              "units are copied whole");

/* Byte offsets in shared memory. */
struct layout {
    uint32_t scales, ceilings, maxima, pixels, corners, stages, ring, end;
    __host__ __device__ explicit layout(const ck_two_four_plan &p) {
        scales   = 768; /* after the barriers */
        ceilings = scales + MAX_STAGES * 4;
        maxima   = ceilings + MAX_STAGES * 4;
        pixels   = 1024;
        corners  = pixels + MAX_COLUMNS * 4;
        stages   = corners + MAX_COLUMNS * 4;
        ring     = stages + (uint32_t)(p.stages * p.stage_bytes);
        end      = ring + (uint32_t)(p.workers * p.ring * UNIT_SLOT);
    }
};

/* First chunk of part `part`. For part `parts` the result is the number of chunks. */
__host__ __device__ inline int chunk_from(const ck_two_four_plan &p, int parts, int part) {
    return p.chunks * part / parts;
}

cudaError_t conv(const ck_wgmma_sp_args &args, const ck_wgmma_sp_plan &plan, int multiprocessors, cudaStream_t stream);

} // namespace wgmma_sp

#endif
