/* cuda/sparse/wgmma_sp/wgmma_sp.cuh: what the plan and the kernel of cuda/sparse/wgmma_sp/wgmma_sp.h share: a unit's
 * bytes, where things lie in shared memory. */
#ifndef CK_WGMMA_SP_CUH
#define CK_WGMMA_SP_CUH

#include "cuda/sparse/two_four/two_four.cuh"
#include "cuda/sparse/wgmma_sp/wgmma_sp.h"

namespace wgmma_sp {

/* A unit in shared memory: values' high parts, low parts, then its words: places, head. The head's first word: where
 * operand B begins behind the stage's begin, in 16 bytes, and from HEAD_PLAIN on whether the unit is plain, its stage's
 * first, last. Its second: how many units of this kind are summed together from this one on. Values come from where
 * weights lie, words, which a kernel follows, from what was packed. */
enum {
    POSITION     = CK_WGMMA_SP_CHUNK * 4,
    UNIT_PART    = CK_WGMMA_SP_VALUES * 2,
    UNIT_PLACES  = 2 * UNIT_PART,
    UNIT_HEAD    = UNIT_PLACES + (CK_WGMMA_SP_WORDS - 4) * 4,
    UNIT_VALUES  = 2 * UNIT_PART,         /* bytes */
    UNIT_WORDS   = CK_WGMMA_SP_WORDS * 4, /* bytes */
    UNIT_BYTES   = UNIT_VALUES + UNIT_WORDS,
    UNIT_SLOT    = 4480, /* in shared memory */
    HEAD_PLAIN   = 1 << 29,
    HEAD_FIRST   = 1 << 30,
    HEAD_LAST    = (int)(1u << 31),
    MAX_STAGES   = 8,
    MAX_RING     = 16,
    MAX_COLUMNS  = 256,
    SHARED_LIMIT = 227 * 1024,
    SHARED_HALF  = 113 * 1024 /* of blocks that share a multiprocessor */
};
static_assert(UNIT_BYTES <= UNIT_SLOT && UNIT_SLOT % 128 == 0 && UNIT_VALUES % 16 == 0 && UNIT_WORDS % 16 == 0,
              "units are copied whole");

/* Where things lie in shared memory. */
struct layout {
    uint32_t scales, ceilings, most, pixels, corners, stages, ring, end;
    __host__ __device__ explicit layout(const ck_two_four_plan &p) {
        scales   = 768; /* behind the barriers */
        ceilings = scales + MAX_STAGES * 4;
        most     = ceilings + MAX_STAGES * 4;
        pixels   = 1024;
        corners  = pixels + MAX_COLUMNS * 4;
        stages   = corners + MAX_COLUMNS * 4;
        ring     = stages + (uint32_t)(p.stages * p.stage_bytes);
        end      = ring + (uint32_t)(p.workers * p.ring * UNIT_SLOT);
    }
};

/* First chunk of a part; of what would be behind the last: their number. */
__host__ __device__ inline int chunk_from(const ck_two_four_plan &p, int parts, int part) {
    return p.chunks * part / parts;
}

cudaError_t conv(const ck_wgmma_sp_args &args, const ck_wgmma_sp_plan &plan, int multiprocessors, cudaStream_t stream);

} // namespace wgmma_sp

#endif
