/* cuda/elementwise/pool.cuh: types and loads that pooling and its gradients share.
 *
 * A thread processes 16 bytes of channels of one pixel where C allows, else one channel. grid.y runs over images, so
 * that indices within an image have 32 bits. Data that neighbouring windows share comes from L1 and L2. */
#ifndef CK_POOL_CUH
#define CK_POOL_CUH

#include "cuda/common/common.cuh"

namespace {

enum { THREADS = 256, IMAGES_MOST = 65535 };

/* Sizes of an image; all indices within an image have 32 bits. */
struct window {
    int64_t  N;
    int      H, W, C, P, Q, size, stride, pad;
    unsigned groups; /* vectors of channels in a pixel */
};

/* The unit that a thread loads: 16 bytes, or one element. It is unpacked where it is used, so that loads in flight
 * occupy few registers. */
template <typename T, int LANES> struct word_of {
    using word = uint4;
    static __device__ __forceinline__ word load(const T *at) { return ck_load(at, 0); }
    static __device__ __forceinline__ void open(const word &w, float (&out)[LANES]) { ck_unpack<T>(w, out); }
    static __device__ __forceinline__ word close(const float (&in)[LANES]) { return ck_pack<T>(in); }
    static __device__ __forceinline__ void store(T *at, const float (&in)[LANES]) {
        ck_store_whole(at, ck_pack<T>(in));
    }
};
template <typename T> struct word_of<T, 1> {
    using word = T;
    static __device__ __forceinline__ word load(const T *at) { return at[0]; }
    static __device__ __forceinline__ void open(const word &w, float (&out)[1]) { out[0] = ck_float(w); }
    static __device__ __forceinline__ word close(const float (&in)[1]) { return ck_round<T>(in[0]); }
    static __device__ __forceinline__ void store(T *at, const float (&in)[1]) { at[0] = ck_round<T>(in[0]); }
};

/* One byte for each channel. */
template <int LANES> struct bytes_of;
template <> struct bytes_of<1> {
    using word = uint8_t;
    static __device__ __forceinline__ unsigned at(word w, int) { return w; }
};
template <> struct bytes_of<4> {
    using word = unsigned;
    static __device__ __forceinline__ unsigned at(word w, int i) { return w >> 8 * i & 255u; }
};
template <> struct bytes_of<8> {
    using word = uint2;
    static __device__ __forceinline__ unsigned at(word w, int i) { return (i < 4 ? w.x : w.y) >> 8 * (i % 4) & 255u; }
};
template <int LANES> using byte_word = typename bytes_of<LANES>::word;
template <int LANES> __device__ __forceinline__ byte_word<LANES> load_bytes(const uint8_t *at) {
    return *reinterpret_cast<const byte_word<LANES> *>(at);
}

/* ---- host side ---- */

inline window window_of(const struct ck_window *w, int lanes) {
    window g;
    g.N      = w->N;
    g.H      = (int)w->H;
    g.W      = (int)w->W;
    g.C      = (int)w->C;
    g.P      = (int)w->P;
    g.Q      = (int)w->Q;
    g.size   = w->window;
    g.stride = w->stride;
    g.pad    = w->pad;
    g.groups = (unsigned)(w->C / lanes);
    return g;
}
inline dim3 grid_of(int64_t work, int64_t images) {
    return dim3(ck_blocks(work, THREADS, INT32_MAX), ck_blocks(images, 1, IMAGES_MOST));
}

} // namespace

/* Processes 16 bytes of channels at a time where they divide C, else one channel. */
#define BY_LANES(type, C, run, ...)                                                                                    \
    CK_BY_TYPE(type, return (C) % ck_vector_elems<T>() == 0 ? run<T, ck_vector_elems<T>()>(__VA_ARGS__)                \
                                                            : run<T, 1>(__VA_ARGS__))

#endif
