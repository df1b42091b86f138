/* cuda/sparse/two_four/two_four.cu: plans, packing and gathering for cuda/sparse/two_four/two_four.h. The kernel is in
 * cuda/sparse/two_four/two_four_sm90a.cu. */
#include "cuda/sparse/two_four/two_four.cuh"

#include <math.h>
#include <string.h>

namespace two_four {
namespace {

__global__ void gather(const uint16_t *dense, const uint32_t *from, uint16_t *values, int64_t count) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x)
        values[i] = from[i] == UINT32_MAX ? (uint16_t)0 : dense[from[i]];
}

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
int floor_div(int a, int b) {
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

enum { SHARED_LIMIT = 227 * 1024, MIN_RING = 6, MIN_STAGES = 3, MAX_LEAD = 5 };
const int COLUMNS[]    = {104, 112, 128, 208, 216, 224, 232, 256};
const int COLUMN_COUNT = (int)(sizeof COLUMNS / sizeof *COLUMNS);

bool set_units(const ck_conv &c, ck_two_four_plan *p) {
    if ((int64_t)c.R * c.S > CK_TWO_FOUR_TAPS) return false;
    p->taps   = c.R * c.S;
    p->chunks = (int)ceil_div(c.C, CK_TWO_FOUR_CHUNK);
    p->blocks = ceil_div(c.K, CK_TWO_FOUR_ROWS);
    for (int i = 0; i < p->taps; i++) p->tap[i] = (uint8_t)i;
    return true;
}

/* Sets the phases of the stride. The taps of a phase are consecutive. Also sets the first position of each tap's
 * operand. */
bool set_phases(const ck_conv &c, ck_two_four_plan *p) {
    int taps = 0;
    for (int fr = 0; fr < c.stride && fr < c.H; fr++)
        for (int fs = 0; fs < c.stride && fs < c.W; fs++) {
            const int before = taps;
            for (int i = 0; i < c.R * c.S; i++) {
                const int r = i / c.S - c.pad, s = i % c.S - c.pad, h = floor_div(r, c.stride),
                          w = floor_div(s, c.stride);
                if (r - h * c.stride != fr || s - w * c.stride != fs) continue;
                p->tap[taps] = (uint8_t)i;
                p->at[taps]  = ((h - p->low_r) * p->pitch + w - p->low_s) * p->images;
                taps++;
            }
            if (taps == before) continue;
            if (p->phases == CK_TWO_FOUR_PHASES) return false;
            p->first |= 1ull << before;
            p->last |= 1ull << (taps - 1);
            p->phase_r[p->phases]   = fr;
            p->phase_s[p->phases++] = fs;
        }
    return taps == p->taps; /* otherwise an image is smaller than the stride */
}

/* Sets the tile: `rows` rows of `images` images. With stride 1 a column of padding is both the end of a row and the
 * start of the next row. After the last row there is a piece of zeros. */
bool set_tile(const ck_conv &c, int images, int rows, const int *columns, int count, ck_two_four_plan *p) {
    p->low_r                     = floor_div(-c.pad, c.stride);
    p->low_s                     = floor_div(-c.pad, c.stride);
    const int high               = floor_div(c.R - 1 - c.pad, c.stride) - p->low_r,
              wide               = floor_div(c.S - 1 - c.pad, c.stride) - p->low_s;
    const int     shared_columns = c.stride > 1 ? 0 : c.pad < wide ? c.pad : wide;
    const int64_t pitch = c.Q + wide - shared_columns, used = (pitch * (rows - 1) + c.Q) * images;
    p->images  = images;
    p->TP      = rows;
    p->strips  = (int)ceil_div(c.P, rows);
    p->rows    = rows + high;
    p->columns = 0;
    for (int i = 0; i < count; i++)
        if (!p->columns && used <= columns[i]) p->columns = columns[i];
    if (!p->columns || pitch > 256 || p->rows > 256) return false;
    p->pitch = (int)pitch;
    p->tiles = ceil_div(c.N, images) * p->strips;
    if (!set_phases(c, p)) return false;
    int staged = (p->rows * p->pitch + shared_columns) * images;
    for (int i = 0; i < p->taps; i++)
        if (p->at[i] + p->columns > staged) staged = p->at[i] + p->columns;
    p->stage_bytes = (staged * POSITION + 1023) / 1024 * 1024;
    return true;
}

} // namespace

bool fit_tile(const ck_conv &c, int images, int rows, const int *columns, int count, ck_two_four_plan *p) {
    return set_units(c, p) && set_tile(c, images, rows, columns, count, p);
}

namespace {

/* Units that the first worker can release before the second worker has released any. The last two units of the first
 * worker stay in flight until it has a third one, except at the end of a tile. */
int lead_of(const ck_two_four_plan &p) {
    const int all   = p.taps * p.chunks;
    int       units = 0, phase = 0;
    for (; units < all && phase < p.stages; units++) phase += (int)(p.last >> units % p.taps & 1);
    if (units < all) units -= 2;
    return units < MAX_LEAD ? units : MAX_LEAD;
}

/* Sets the number of stages and ring slots, as many as fit. A worker that waits for a stage may hold its last two
 * units, and so their stages. */
bool set_rings(ck_two_four_plan *p) {
    const int fixed = (int)layout(*p).end; /* stages and ring are still 0 */
    for (int stages = MAX_STAGES; stages >= MIN_STAGES && !p->stages; stages--) {
        const int room = (SHARED_LIMIT - fixed - stages * p->stage_bytes) / (p->workers * UNIT_BYTES);
        if (room < MIN_RING) continue;
        p->stages = stages;
        p->ring   = room < MAX_RING ? room : MAX_RING;
    }
    p->shared_bytes = (int)layout(*p).end;
    return p->stages > 0;
}

/* Estimates the cycles from the accesses to shared memory, which is the limiter. */
bool set_cycles(int multiprocessors, ck_two_four_plan *p) {
    const double units  = (double)p->taps * p->chunks,
                 inputs = (double)p->rows * p->pitch * p->images * POSITION * p->phases * p->chunks;
    const double filter = p->workers * units * UNIT_BYTES,
                 tile   = p->workers * units * p->columns + (2 * filter + inputs) / 128;
    const double  alone = units * (p->columns + 160.0); /* the instructions of one warpgroup alone */
    const double  fetch = (inputs + filter) / 26;       /* 26: bytes per cycle from L2 */
    const int64_t items = ceil_div(p->blocks, p->workers) * p->tiles, rounds = ceil_div(items, multiprocessors);
    p->lead   = p->workers == 2 && rounds > 1 ? lead_of(*p) : 0;
    p->cycles = (double)rounds * (fmax(fmax(tile, fetch), alone) + p->columns * (p->lead ? 3.0 : 12.0) + 200) + 5000;
    return items < (int64_t)1 << 30;
}

/* The tile configs: workers, and the range of columns of a tile. */
struct tile_config {
    int workers, min_columns, max_columns;
};
const tile_config TILE_CONFIGS[] = {{2, 200, 256}, {2, 100, 128}, {1, 200, 256}, {1, 100, 128}};
const int         CONFIG_COUNT   = (int)(sizeof TILE_CONFIGS / sizeof *TILE_CONFIGS);

/* Finds the tile of this config with the fewest cycles. */
bool plan_config(const ck_conv &c, const tile_config &config, int multiprocessors, ck_two_four_plan *best) {
    bool found = false;
    for (int images = 1; images <= 16; images *= 2)
        for (int rows = 1; rows <= c.P && rows <= 256; rows++) {
            ck_two_four_plan p = {};
            p.workers          = config.workers;
            if (!fit_tile(c, images, rows, COLUMNS, COLUMN_COUNT, &p) || p.columns < config.min_columns ||
                p.columns > config.max_columns)
                continue;
            if (set_rings(&p) && set_cycles(multiprocessors, &p) && (!found || p.cycles < best->cycles))
                *best = p, found = true;
        }
    return found;
}

} // namespace
} // namespace two_four

int ck_two_four_configs(void) {
    return two_four::CONFIG_COUNT;
}

void ck_two_four_tile(int config, int tile[2]) {
    const two_four::tile_config none = {}, &c = config >= 1 && config <= two_four::CONFIG_COUNT
                                                    ? two_four::TILE_CONFIGS[config - 1]
                                                    : none;
    tile[0] = c.workers, tile[1] = c.max_columns;
}

bool ck_two_four_make_plan(const struct ck_conv *conv, int config, int capability, int multiprocessors,
                           struct ck_two_four_plan *plan) {
    const int64_t side = 1 << 20;
    if (config < 1 || config > ck_two_four_configs() || conv->type == CK_F32 || capability != 90 || conv->C % 8 ||
        conv->K % 8)
        return false;
    if (conv->H > side || conv->W > side || conv->N * conv->H * conv->W >= (int64_t)1 << 31 ||
        conv->N * conv->P * conv->Q >= (int64_t)1 << 31)
        return false;
    return conv->K * conv->R * conv->S * conv->C < UINT32_MAX &&
           two_four::plan_config(*conv, two_four::TILE_CONFIGS[config - 1], multiprocessors, plan);
}

int64_t ck_two_four_units(const struct ck_two_four_plan *plan) {
    return plan->blocks * plan->taps * plan->chunks;
}

/* Position of value `i` of group `four` of 4 channels in row `row` of a unit: 8x8 matrices, row by row. */
static int value_position(int row, int four, int i) {
    const int half = four / 8, column = four % 8 * 2 + i;
    return ((half * 2 + column / 8) * CK_TWO_FOUR_ROWS + row) * 8 + column % 8;
}

/* Packs a row of a unit: output channel k, from input channel c0 of the tap on. */
static void pack_row(const struct ck_conv *conv, const uint16_t *places, int64_t k, int tap, int64_t c0, int row,
                     uint32_t *words, uint32_t *from) {
    const int64_t c16 = (conv->C + 15) / 16 * 16, columns = (int64_t)conv->R * conv->S * c16;
    for (int four = 0; four < CK_TWO_FOUR_CHUNK / 4; four++) {
        const int64_t  c = c0 + four * 4, column = tap * c16 + c;
        const bool     exists = k < conv->K && c < conv->C;
        const unsigned two =
            /* otherwise positions 0 and 1 */
            exists ? (unsigned)places[(k * columns + column) / 16] >> column % 16 & 15u : 4u;
        if (words)
            words[row / 16 * CK_WARP + row % 8 * 4 + four / 8 * 2 + four % 8 / 4] |=
                two << (four % 4 * 4 + row % 16 / 8 * 16);
        for (int i = 0; i < 2 && from; i++) {
            const int64_t channel = c + (two >> 2 * i & 3u);
            const bool    inside  = exists && channel < conv->C;
            from[value_position(row, four, i)] =
                inside ? (uint32_t)((k * conv->R * conv->S + tap) * conv->C + channel) : UINT32_MAX;
        }
    }
}

void ck_two_four_pack(const struct ck_conv *conv, const struct ck_two_four_plan *plan, const uint16_t *places,
                      uint32_t *words, uint32_t *from) {
    const int64_t each = (int64_t)plan->taps * plan->chunks;
    if (words) memset(words, 0, (size_t)ck_two_four_units(plan) * CK_TWO_FOUR_WORDS * sizeof *words);
    for (int64_t i = 0; i < ck_two_four_units(plan); i++)
        for (int row = 0; row < CK_TWO_FOUR_ROWS; row++)
            pack_row(conv, places, i / each * CK_TWO_FOUR_ROWS + row, plan->tap[i % each % plan->taps],
                     i % each / plan->taps * CK_TWO_FOUR_CHUNK, row, words ? words + i * CK_TWO_FOUR_WORDS : nullptr,
                     from ? from + i * CK_TWO_FOUR_UNIT : nullptr);
}

cudaError_t ck_two_four_gather(const void *dense, const uint32_t *from, int64_t count, void *values,
                               cudaStream_t stream) {
    two_four::gather<<<ck_blocks(count, 1024, 65535), 256, 0, stream>>>(static_cast<const uint16_t *>(dense), from,
                                                                        static_cast<uint16_t *>(values), count);
    return cudaGetLastError();
}

cudaError_t ck_two_four_conv(const struct ck_two_four_args *args, const struct ck_two_four_plan *plan,
                             int multiprocessors, cudaStream_t stream) {
    return two_four::conv(*args, *plan, multiprocessors, stream);
}
