/* cuda/common/divisor.cuh: fast integer division by a number that a launch knows, as one multiplication. */
#ifndef CK_DIVISOR_CUH
#define CK_DIVISOR_CUH

#include <stdint.h>

/* Division of numbers below 2^32 / divisor; the divisor is at least 2. */
struct ck_divisor {
    uint32_t            by, inverse;
    __device__ uint32_t divide(uint32_t n) const { return __umulhi(n, inverse); }
};
inline ck_divisor ck_divisor_of(int64_t by) {
    return {(uint32_t)by, (uint32_t)(((1ull << 32) + (uint64_t)by - 1) / (uint64_t)by)};
}

#endif
