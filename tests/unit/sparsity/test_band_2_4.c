/* tests/unit/sparsity/test_band_2_4.c: sparse filters packed for the sparse tensor cores. The packed form is unpacked
 * as PTX describes the operands of mma.sp m16n8k32, weight by weight, and compared with the dense filter. */
#include "sparsity/band_2_4.h"
#include "tests/harness/failing_alloc.h"
#include "tests/harness/sparse_support.h"

struct shape {
    int64_t K, R, S, C, stride, chunk;
    int     nonzeros; /* of 100 */
};
static const struct shape shapes[] = {{1, 1, 1, 1, 1, 8, 100}, {70, 3, 3, 20, 1, 8, 10}, {64, 3, 3, 16, 2, 16, 40},
                                      {5, 3, 3, 7, 1, 8, 100}, {33, 1, 1, 70, 1, 32, 5}, {130, 5, 3, 9, 3, 16, 2},
                                      {16, 7, 7, 3, 2, 8, 30}, {64, 1, 1, 64, 1, 64, 0}};
OWNABLE(mma_sp, struct cr_mma_sp, cr_mma_sp_free(x))
OWNABLE(mma_sp_map, struct cr_mma_sp_map, cr_mma_sp_map_free(x))

enum { C_STEP = 16, R_STEP = 100000, S_PHASE = 10000, S_STEP = 1000 };

static uint32_t seed;
static uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static float *make(const struct shape *s) {
    const int64_t count = s->K * s->R * s->S * s->C;
    float        *w     = cr_alloc((size_t)count, sizeof *w);
    for (int64_t i = 0; w && i < count; i++) w[i] = (int)(draw() % 100) < s->nonzeros ? 1.0f : 0.0f;
    return w;
}

/* The element of the filter in stored slot `slot` (0..15) of `row`, and its column (0..31). */
static uint32_t stored(const struct cr_mma_sp *u, int64_t fragment, int row, int slot, int *column) {
    const uint32_t *word = u->places + fragment * 32;
    const int       pair = slot / 2, thread = row % 8 * 4 + pair % 4, reg = row / 8 + pair / 4 * 2;
    const uint32_t  places = word[row % 8 * 4 + pair / 4] >> (row / 8 * 16 + pair % 4 * 4) & 15u;
    CHECK((places & 3u) < places >> 2);
    CHECK_INT(word[row % 8 * 4 + pair / 4], word[row % 8 * 4 + pair / 4 + 2]);
    *column = pair * 4 + (int)(slot % 2 ? places >> 2 : places & 3u);
    return u->from[(fragment * 32 + thread) * 8 + reg * 2 + slot % 2];
}

/* Counts the weights of a fragment in back[K][R][S][C]; offsets are converted back to taps and channels, and must
 * agree. */
static void add_fragment(const struct shape *s, const struct cr_mma_sp *u, int64_t chunk, int64_t k0,
                         const uint32_t *offset, int64_t fragment, uint8_t *back) {
    for (int row = 0; row < 16; row++)
        for (int slot = 0; slot < 16; slot++) {
            int            column;
            const uint32_t from = stored(u, fragment, row, slot, &column);
            if (from == CR_SPARSE_FILL) continue;
            const int64_t o = offset[column / 8], r = o / R_STEP, phase = o % R_STEP / S_PHASE,
                          q = o % S_PHASE / S_STEP * s->stride + phase;
            const int64_t c = chunk * s->chunk + o % S_STEP / C_STEP * 8 + column % 8, k = k0 + row;
            CHECK_INT(((k * s->R + r) * s->S + q) * s->C + c, from);
            if (from < s->K * s->R * s->S * s->C) back[from]++;
        }
}

static void same_without_weights(const struct cr_mma_sp_map *map, const struct cr_mma_sp_layout *how,
                                 const struct cr_mma_sp *whole) {
    OWNED(mma_sp) u = {0};
    REQUIRE(cr_mma_sp_make(map, how, false, &u) == CR_OK);
    CHECK(!u.from && !u.places && u.steps == whole->steps && u.fragments == whole->fragments);
    CHECK(memcmp(u.run, whole->run, (size_t)(u.chunks * u.bands * 5 + 1) * 2 * sizeof *u.run) == 0);
    CHECK(memcmp(u.offset, whole->offset, (size_t)(u.steps + 1) * 4 * sizeof *u.offset) == 0);
}

static void one(const struct shape *s) {
    const int64_t                 count  = s->K * s->R * s->S * s->C;
    OWNED(floats)                 w      = make(s);
    OWNED(bytes)                  back   = cr_alloc((size_t)count, sizeof *back);
    OWNED(sparse)                 sparse = {0};
    OWNED(mma_sp_map)             map    = {0};
    OWNED(mma_sp)                 u      = {0};
    const struct cr_mma_sp_layout how    = {.stride  = s->stride,
                                            .chunk   = s->chunk,
                                            .c_step  = C_STEP,
                                            .r_step  = R_STEP,
                                            .s_phase = S_PHASE,
                                            .s_step  = S_STEP,
                                            .bands   = (s->K + 63) / 64 + 1};
    REQUIRE(w && back);
    REQUIRE(sparse_encode(w, NULL, s->K, s->R, s->S, s->C, &sparse) == CR_OK);
    REQUIRE(cr_mma_sp_map_make(&sparse, &map) == CR_OK);
    REQUIRE(cr_mma_sp_make(&map, &how, true, &u) == CR_OK);
    CHECK_INT(cr_mma_sp_count(&map, &how), u.fragments);
    same_without_weights(&map, &how, &u);
    for (int64_t band = 0; band < u.bands; band++)
        for (int64_t chunk = 0; chunk < u.chunks; chunk++)
            for (int list = 0; list < 5; list++) {
                const uint32_t *run = u.run + ((band * u.chunks + chunk) * 5 + list) * 2;
                int64_t         at  = run[1];
                for (uint32_t step = run[0]; step < run[2]; step++)
                    for (int g = list ? list - 1 : 0; g < (list ? list : 4); g++, at++)
                        add_fragment(s, &u, chunk, band * 64 + g * 16, u.offset + step * 4, at, back);
                CHECK_INT(at, run[3]);
            }
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) wrong += back[i] != (w[i] != 0.0f);
    CHECK_INT(wrong, 0);
}

TEST(weights_are_restored) {
    for (size_t i = 0; i < CR_COUNT(shapes); i++) one(&shapes[i]);
}

/* A filter with 10 % nonzeros needs little more than one pass, an empty one none, a full one two. */
TEST(work_follows_density) {
    static const int    nonzeros[] = {0, 10, 100};
    static const double least[] = {0, 1, 2}, most[] = {0, 1.25, 2};
    for (int i = 0; i < 3; i++) {
        const struct shape            s      = {64, 3, 3, 64, 1, 64, nonzeros[i]};
        const struct cr_mma_sp_layout how    = {.stride = 1, .chunk = 64, .c_step = 16, .bands = 1};
        OWNED(sparse)                 sparse = {0};
        OWNED(mma_sp_map)             map    = {0};
        OWNED(mma_sp)                 u      = {0};
        OWNED(floats)                 w      = make(&s);
        REQUIRE(w && sparse_encode(w, NULL, s.K, s.R, s.S, s.C, &sparse) == CR_OK);
        REQUIRE(cr_mma_sp_map_make(&sparse, &map) == CR_OK && cr_mma_sp_make(&map, &how, true, &u) == CR_OK);
        const double passes = (double)u.fragments / (4.0 * 9 * 64 / 32);
        CHECK(passes >= least[i] && passes <= most[i]);
    }
}

TEST(failing_allocations) {
    const struct cr_mma_sp_layout how    = {.stride = 1, .chunk = 8, .bands = 1};
    const float                   two[2] = {1, 0};
    OWNED(sparse)                 sparse = {0};
    struct cr_mma_sp_map          map;
    struct cr_mma_sp              u;
    REQUIRE(sparse_encode(two, NULL, 1, 1, 1, 2, &sparse) == CR_OK);
    for_each_failing_alloc(f, .least = 2) {
        const cr_status status = failing_alloc_run(&f, cr_mma_sp_map_make(&sparse, &map));
        if (status == CR_OK) cr_mma_sp_map_free(&map);
    }
    REQUIRE(cr_mma_sp_map_make(&sparse, &map) == CR_OK);
    for_each_failing_alloc(f, .least = 5) {
        const cr_status status = failing_alloc_run(&f, cr_mma_sp_make(&map, &how, true, &u));
        if (status == CR_OK) cr_mma_sp_free(&u);
    }
    cr_mma_sp_map_free(&map);
}
