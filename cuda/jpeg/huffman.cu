/* cuda/jpeg/huffman.cu: decodes the Huffman codes of baseline JPEG images in parallel. One thread block decodes one
 * image: its data are cut into as many pieces as the block has threads, and each thread decodes one piece.
 *
 * A code does not say where it begins, and a thread does not know which block of the MCU and which coefficient its
 * piece begins with. It begins with a guess. Wrong guesses correct themselves: a Huffman decoder that starts anywhere
 * soon reads the same codes as one that started at the beginning (self-synchronisation; Klein and Wiseman 2003, for
 * JPEG Weissenberger and Schmidt 2018). So
 *   1. each thread passes over its piece from a guess and publishes the state in which it leaves the piece;
 *   2. each thread passes over its piece again from the state that its predecessor published, until no state changes
 *      (the state of the first thread is correct, so this ends) or too many bits were passed over in turn;
 *   3. a prefix sum over the blocks that the threads complete says which block each piece begins in;
 *   4. each thread decodes its piece and stores the coefficients of the MCUs around the crop, and the differences of
 *      all DC values;
 *   5. prefix sums over these differences are the DC values.
 * Steps 1 and 2 need only where codes end: one lookup passes over several short codes.
 *
 * Whatever is damaged or does not synchronise in time sets `failed`: the CPU decodes that image and reports errors.
 * Limiter: instructions; the codes of a piece are read one after the other. */
#include "cuda/common/common.cuh"
#include "cuda/jpeg/jpeg_launchers.h"

enum {
    THREADS     = 512,
    LOOKUP_BITS = 10,
    LOOKUPS     = 1 << LOOKUP_BITS,
    CODES       = 2 * CR_JPEG_TABLES, /* DC, then AC */
    ROUND_BITS  = 1 << 22,            /* of step 2: most bits that threads pass over one after the other */
    PIECE_MIN   = 512,                /* bits; a code with its extra bits has at most 31 */
    BLOCK       = CR_JPEG_BLOCK,
};

static __constant__ uint8_t zigzag[BLOCK] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                             12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                             35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                             58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* What the threads of a block share. An entry of `one` is a code with its extra bits: their length (5 bits), the number
 * of extra bits (4) and by how many coefficients the code advances (7; BLOCK: to the end of the block); 0: a longer or
 * invalid code. An entry of `several` are AC codes with their extra bits that lie within a lookup: their length (4),
 * by how many coefficients they advance (6), and whether the last is an end of block (1); 0: none. */
struct shared_state {
    uint16_t one[CODES][LOOKUPS];
    uint16_t several[CR_JPEG_TABLES][LOOKUPS];
    int32_t  first[CODES][18]; /* the first code of each length, */
    int32_t  index[CODES][18]; /* and the index of its symbol; [17]: the number of symbols */
    uint8_t  symbol[CODES][256];
    uint8_t  zigzag[BLOCK];
    uint64_t exit[THREADS];        /* see pack_state */
    int      luma, per_mcu;        /* blocks of the first component, and of all, in an MCU */
    uint32_t dc_tables, ac_tables; /* bit b: the code of block b of an MCU */
    int      total;                /* blocks of the image */
};

/* Where a thread is in the data. */
struct walk {
    uint32_t at;    /* bit */
    int      block; /* of the MCU */
    int      k;     /* index of the next coefficient in zigzag order */
};
__device__ __forceinline__ uint64_t pack_state(const walk &w) {
    return (uint64_t)w.at << 32 | (uint32_t)(w.block << 8 | w.k);
}
__device__ __forceinline__ walk unpack_state(uint64_t s) {
    return {(uint32_t)(s >> 32), (int)((uint32_t)s >> 8), (int)(s & 255)};
}

/* ---- tables ---- */

/* The entry of a code of `length` bits for this symbol. */
__device__ __forceinline__ int make_entry(bool dc, int length, int symbol) {
    const int size = symbol & 15, run = dc ? 0 : symbol >> 4, advance = !dc && size == 0 && run != 15 ? BLOCK : run + 1;
    return (length + size) | size << 5 | advance << 9;
}
/* The entry of the code at the top of `bits`, of a length from `length` to `longest`; 0: none. */
__device__ __forceinline__ int find_code(const shared_state &s, int t, uint32_t bits, int length, int longest) {
    for (; length <= longest; length++) {
        const int n = (int)(bits >> (32 - length)) - s.first[t][length];
        if (n >= 0 && n < s.index[t][length + 1] - s.index[t][length])
            return make_entry(t < CR_JPEG_TABLES, length, s.symbol[t][s.index[t][length] + n]);
    }
    return 0;
}
__device__ __noinline__ int long_code(const shared_state &s, int t, uint32_t bits) {
    return find_code(s, t, bits, LOOKUP_BITS + 1, 16);
}

__device__ int make_several(const shared_state &s, int t, int bits) {
    int length = 0, advance = 0, end = 0;
    while (!end) {
        const int entry = s.one[CR_JPEG_TABLES + t][bits << length & (LOOKUPS - 1)], more = entry & 31;
        if (!entry || length + more > LOOKUP_BITS || (entry >> 9 != BLOCK && advance + (entry >> 9) >= BLOCK)) break;
        length += more;
        end = entry >> 9 == BLOCK;
        advance += end ? 0 : entry >> 9;
    }
    return length | advance << 4 | end << 10;
}

__device__ void make_tables(const cr_jpeg_scan &scan, shared_state &s) {
    for (int i = threadIdx.x; i < CODES * 256; i += THREADS) {
        const cr_jpeg_code &code   = i / 256 < CR_JPEG_TABLES ? scan.dc[i / 256] : scan.ac[i / 256 - CR_JPEG_TABLES];
        s.symbol[i / 256][i % 256] = code.symbol[i % 256];
    }
    if (threadIdx.x < BLOCK) s.zigzag[threadIdx.x] = zigzag[threadIdx.x];
    if (threadIdx.x < CODES) {
        const int           t    = threadIdx.x;
        const cr_jpeg_code &code = t < CR_JPEG_TABLES ? scan.dc[t] : scan.ac[t - CR_JPEG_TABLES];
        int                 next = 0, index = 0;
        for (int length = 1; length <= 16; length++, next <<= 1) {
            s.first[t][length] = next;
            s.index[t][length] = index;
            next += code.count[length - 1];
            index += code.count[length - 1];
        }
        s.index[t][17] = index;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < CODES * LOOKUPS; i += THREADS)
        s.one[i / LOOKUPS][i % LOOKUPS] =
            (uint16_t)find_code(s, i / LOOKUPS, (uint32_t)(i % LOOKUPS) << (32 - LOOKUP_BITS), 1, LOOKUP_BITS);
    __syncthreads();
    for (int i = threadIdx.x; i < CR_JPEG_TABLES * LOOKUPS; i += THREADS)
        s.several[i / LOOKUPS][i % LOOKUPS] = (uint16_t)make_several(s, i / LOOKUPS, i % LOOKUPS);
    __syncthreads();
}

/* ---- one piece ---- */

__device__ __forceinline__ uint32_t word_at(const uint32_t *data, uint32_t i) {
    return __byte_perm(__ldg(data + i), 0, 0x0123);
}

/* The data from bit `at` on. */
struct reader {
    const uint32_t            *data;
    uint32_t                   high, low; /* the word with the bit, and the next one */
    __device__ __forceinline__ reader(const uint32_t *words, uint32_t at)
        : data(words), high(word_at(words, at >> 5)), low(word_at(words, (at >> 5) + 1)) {}
    __device__ __forceinline__ uint32_t bits(uint32_t at) const { return __funnelshift_l(low, high, at & 31); }
    /* Up to 32 bits were read: the reader moves from bit `before` to bit `at`. */
    __device__ __forceinline__ void move(uint32_t before, uint32_t at) {
        if ((before ^ at) < 32) return;
        high = low;
        low  = word_at(data, (at >> 5) + 1);
    }
};

/* The end of a block, if `k` has reached it: without a branch, because in most steps some threads of a warp get there.
 */
__device__ __forceinline__ int end_block(int per_mcu, walk *w) {
    const int end  = w->k >= BLOCK;
    const int next = w->block + 1 == per_mcu ? 0 : w->block + 1;
    w->block       = end ? next : w->block;
    w->k           = end ? 0 : w->k;
    return end;
}

/* Passes over the codes from *w to bit `end` or a few bits further; returns the number of blocks that end there.
 * Invalid codes, which wrong guesses meet, count as one bit. */
__device__ __forceinline__ int pass_over(const shared_state &s, const uint32_t *data, uint32_t bits_all, walk *walk_at,
                                         uint32_t end) {
    walk           w = *walk_at;
    reader         r(data, w.at);
    const int      per_mcu = s.per_mcu;
    const uint32_t dc = s.dc_tables, ac = s.ac_tables;
    int            blocks = 0;
    while (w.at < end) {
        const uint32_t bits = r.bits(w.at), top = bits >> (32 - LOOKUP_BITS), before = w.at;
        const int      ac_of = ac >> w.block & 1, t = w.k ? CR_JPEG_TABLES + ac_of : dc >> w.block & 1;
        const int      many = s.several[ac_of][top], advance = many >> 4 & 63;
        int            one  = s.one[t][top];
        const bool     fits = many && w.k && w.k + advance < BLOCK && w.at + LOOKUP_BITS <= bits_all;
        if (!one && !fits) {
            one = long_code(s, t, bits);
            if (!one) one = 1 | 1 << 9;
        }
        w.at += fits ? many & 15 : one & 31;
        w.k += fits ? (many >> 10 ? BLOCK : advance) : one >> 9;
        r.move(before, w.at);
        if (w.at > bits_all) break; /* the last code is incomplete */
        blocks += end_block(per_mcu, &w);
    }
    *walk_at = w;
    return blocks;
}

/* Decodes from w to bit `end`, and stores coefficients and differences of DC values; `n` is the number of the block at
 * w. Stops after the last block: what follows is padding. Returns whether all codes are valid. */
__device__ __forceinline__ bool store_piece(const ck_jpeg_image &im, const shared_state &s, const uint32_t *data,
                                            uint8_t *work, walk w, uint32_t end, int n) {
    reader         r(data, w.at);
    int16_t       *differences = (int16_t *)(work + im.differences), *to = (int16_t *)(work + im.coefficients);
    const int      per_mcu = s.per_mcu, total = s.total, stored = im.blocks;
    const uint32_t dc = s.dc_tables, ac = s.ac_tables;
    bool           valid = true;
    int            place = n - im.first_block; /* of the block among those that are stored */
    while (w.at < end && n < total) {
        const uint32_t bits = r.bits(w.at), before = w.at;
        const int      t   = w.k ? CR_JPEG_TABLES + (ac >> w.block & 1) : dc >> w.block & 1;
        int            one = s.one[t][bits >> (32 - LOOKUP_BITS)];
        if (!one) one = long_code(s, t, bits);
        if (!one) return false;
        const int all = one & 31, size = one >> 5 & 15, advance = one >> 9, last = w.k + advance - 1;
        /* extra bits: the lower half of their range stands for negative values */
        const int extra = (int)(bits << (all - size) >> 1 >> (31 - size)), half = 1 << size >> 1;
        const int value = extra - (extra < half ? (1 << size) - 1 : 0);
        if (w.k == 0) differences[n] = (int16_t)value;
        valid &= last < BLOCK || advance == BLOCK;
        if (size && w.k && last < BLOCK && (unsigned)place < (unsigned)stored)
            to[place * BLOCK + s.zigzag[last]] = (int16_t)value;
        w.at += (uint32_t)all;
        w.k += advance;
        r.move(before, w.at);
        const int block_end = end_block(per_mcu, &w);
        n += block_end;
        place += block_end;
    }
    return valid;
}

/* ---- an image ---- */

/* The sum of `mine` over the threads before this one; *all: over all threads. */
__device__ int sum_before(int mine, int *all) {
    __shared__ int warp_sum[THREADS / CK_WARP];
    const int      lane = threadIdx.x % CK_WARP, warp = threadIdx.x / CK_WARP;
    int            sum = mine;
    for (int step = 1; step < CK_WARP; step *= 2) {
        const int other = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += other;
    }
    __syncthreads();
    if (lane == CK_WARP - 1) warp_sum[warp] = sum;
    __syncthreads();
    int before = 0;
    *all       = 0;
    for (int i = 0; i < THREADS / CK_WARP; i++) {
        before += i < warp ? warp_sum[i] : 0;
        *all += warp_sum[i];
    }
    return before + sum - mine;
}

__device__ void clear_coefficients(const ck_jpeg_image &im, uint8_t *work) {
    uint4 *to = (uint4 *)(work + im.coefficients);
    for (int i = threadIdx.x; i < im.blocks * (BLOCK / 8); i += THREADS) to[i] = make_uint4(0, 0, 0, 0);
}

/* Adds differences[first, last) to dc[component]; with STORE also stores the values and returns whether all fit 16
 * bits. `first` is the first block of an MCU. */
template <bool STORE>
__device__ __forceinline__ bool add_differences(const ck_jpeg_image &im, const shared_state &s, uint8_t *work,
                                                int first, int last, int dc[CR_JPEG_COMPONENTS]) {
    const int16_t *differences = (const int16_t *)(work + im.differences);
    int16_t       *to          = (int16_t *)(work + im.coefficients);
    bool           fits        = true;
    for (int n = first, b = 0; n < last; n++, b = b + 1 == s.per_mcu ? 0 : b + 1) {
        const int c = b < s.luma ? 0 : b - s.luma + 1, value = differences[n];
        dc[0] += c == 0 ? value : 0;
        dc[1] += c == 1 ? value : 0;
        dc[2] += c == 2 ? value : 0;
        if (!STORE) continue;
        const int sum = c == 0 ? dc[0] : c == 1 ? dc[1] : dc[2], place = n - im.first_block;
        fits &= sum == (int16_t)sum;
        if ((unsigned)place < (unsigned)im.blocks) to[place * BLOCK] = (int16_t)sum;
    }
    return fits;
}

/* Step 5. Each thread adds up the differences of consecutive MCUs. Returns whether all values fit 16 bits. */
__device__ bool store_dc(const ck_jpeg_image &im, const shared_state &s, uint8_t *work) {
    const int mcus = s.total / s.per_mcu, each = (mcus + THREADS - 1) / THREADS;
    const int first = min((int)threadIdx.x * each, mcus) * s.per_mcu, last = min(first + each * s.per_mcu, s.total);
    int       dc[CR_JPEG_COMPONENTS] = {0, 0, 0}, all;
    (void)add_differences<false>(im, s, work, first, last, dc);
    for (int c = 0; c < CR_JPEG_COMPONENTS; c++) dc[c] = sum_before(dc[c], &all);
    return add_differences<true>(im, s, work, first, last, dc);
}

__device__ void set_layout(const cr_jpeg_scan &scan, int mcus, shared_state &s) {
    s.luma      = scan.h * scan.v;
    s.per_mcu   = scan.components == 1 ? 1 : s.luma + 2;
    s.total     = mcus * s.per_mcu;
    s.dc_tables = s.ac_tables = 0;
    for (int b = 0; b < s.per_mcu; b++) {
        const int c = b < s.luma ? 0 : b - s.luma + 1;
        s.dc_tables |= (uint32_t)scan.dc_of[c] << b;
        s.ac_tables |= (uint32_t)scan.ac_of[c] << b;
    }
}

__global__ void __launch_bounds__(THREADS, 3) coefficients_kernel(const ck_jpeg_batch batch) {
    __shared__ shared_state s;
    const ck_jpeg_image    &im    = batch.image[blockIdx.x];
    const uint32_t         *data  = (const uint32_t *)(batch.data + im.scan.at);
    const int               mcu_w = 8 * im.scan.h, mcu_h = 8 * im.scan.v, self = threadIdx.x;
    const int               mcus_across = (im.scan.width + mcu_w - 1) / mcu_w;
    if (self == 0) set_layout(im.scan, mcus_across * ((im.scan.height + mcu_h - 1) / mcu_h), s);
    make_tables(im.scan, s);
    clear_coefficients(im, batch.work);
    const uint32_t bits  = im.scan.bytes * 8;
    const uint32_t piece = max(((bits + THREADS - 1) / THREADS + 31) / 32 * 32, (uint32_t)PIECE_MIN);
    const uint32_t begin = self * piece, end = min(begin + piece, bits);
    const bool     active = begin < bits;

    uint64_t start  = (uint64_t)begin << 32;
    walk     w      = unpack_state(start);
    int      blocks = active ? pass_over(s, data, bits, &w, end) : 0;
    s.exit[self]    = pack_state(w);
    __syncthreads();
    uint32_t passed = 0;
    for (; passed < ROUND_BITS; passed += piece) {
        const uint64_t before  = self ? s.exit[self - 1] : 0;
        const bool     changed = active && before != start;
        if (!__syncthreads_or(changed)) break;
        if (changed) {
            start        = before;
            w            = unpack_state(start);
            blocks       = pass_over(s, data, bits, &w, end);
            s.exit[self] = pack_state(w);
        }
        __syncthreads();
    }
    int       all;
    const int n     = sum_before(blocks, &all);
    bool      valid = passed < ROUND_BITS && all >= s.total; /* the same for all threads */
    if (valid) {
        bool stored = true;
        if (active && n < s.total) stored = store_piece(im, s, data, batch.work, unpack_state(start), w.at, n);
        __syncthreads();
        valid = store_dc(im, s, batch.work) && stored;
    }
    if (!valid) batch.failed[im.place] = 1;
}

cudaError_t ck_jpeg_coefficients(const struct ck_jpeg_batch *batch, cudaStream_t stream) {
    coefficients_kernel<<<batch->images, THREADS, 0, stream>>>(*batch);
    return cudaGetLastError();
}
