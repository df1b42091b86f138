/* tests/unit/sparsity/test_block.c: lists of nonzero filter blocks. Each list is executed as a kernel would, in
 * integers, and the result equals that of a plain loop over filter and image. */
#include "sparsity/sparsity.h"
#include "tests/harness/failing_alloc.h"

enum {
    SIDE      = 4,
    H         = 5,
    W         = 6,
    K_MAX     = 7 * SIDE,
    C_MAX     = 3 * SIDE,
    TAPS_MAX  = 9,
    PITCH     = W + 1,
    POSITIONS = (H + 2) * PITCH + 2
};

static int      w[K_MAX * TAPS_MAX * C_MAX], x[H][W][C_MAX], y[K_MAX][H][W], want[K_MAX][H][W];
static uint8_t  bits[sizeof w / sizeof *w / 8 + 16];
static uint32_t seed = 7;

struct filter {
    int64_t K, R, S, C, first;
    int     keep; /* of ten blocks */
};
static const struct filter filters[] = {
    {SIDE, 1, 1, SIDE, 0, 10},        {3 * SIDE, 3, 3, 2 * SIDE, 64, 3}, {7 * SIDE, 3, 3, 3 * SIDE, 0, 5},
    {4 * SIDE, 1, 1, 3 * SIDE, 8, 2}, {5 * SIDE, 3, 3, SIDE, 0, 1},      {7 * SIDE, 1, 1, 3 * SIDE, 0, 0},
};

static uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}
static int64_t element(const struct filter *f, int64_t k, int64_t tap, int64_t c) {
    return (k * f->R * f->S + tap) * f->C + c;
}

/* In a nonzero block one weight in three is nonzero. Returns the number of nonzero blocks. */
static int64_t make(const struct filter *f) {
    int64_t blocks = 0;
    memset(bits, 0, sizeof bits);
    memset(w, 0, sizeof w);
    for (int64_t k = 0; k < f->K; k += SIDE)
        for (int64_t tap = 0; tap < f->R * f->S; tap++)
            for (int64_t c = 0; c < f->C; c += SIDE) {
                bool any = false;
                if ((int)(draw() % 10) >= f->keep) continue;
                for (int64_t i = 0; i < SIDE * SIDE; i++) {
                    const int64_t at = element(f, k + i / SIDE, tap, c + i % SIDE);
                    if (draw() % 3) continue;
                    w[at] = 1 + (int)(draw() % 9);
                    bits[(f->first + at) / 8] |= (uint8_t)(1u << ((f->first + at) % 8));
                    any = true;
                }
                blocks += any;
            }
    for (int i = 0; i < H * W * C_MAX; i++) x[i / C_MAX / W][i / C_MAX % W][i % C_MAX] = (int)(draw() % 19) - 9;
    return blocks;
}

static int x_at(int64_t h, int64_t q, int64_t c) {
    return h < 0 || q < 0 || h >= H || q >= W ? 0 : x[h][q][c];
}

static void convolve(const struct filter *f) {
    memset(want, 0, sizeof want);
    for (int64_t k = 0; k < f->K; k++)
        for (int64_t i = 0; i < H * W; i++)
            for (int64_t tap = 0; tap < f->R * f->S; tap++)
                for (int64_t c = 0; c < f->C; c++)
                    want[k][i / W][i % W] += w[element(f, k, tap, c)] *
                                             x_at(i / W + tap / f->S - f->R / 2, i % W + tap % f->S - f->S / 2, c);
}

/* Input of a step: positions of SIDE channels. Patch: the image with zeros above, left and below; otherwise as the tap
 * reads it. */
static void load(const struct filter *f, const struct cr_block_layout *how, uint32_t step, int stage[POSITIONS][SIDE]) {
    const int64_t c = (int64_t)(step & 0xffff) * SIDE, r = step >> 16 & 0xff, s = step >> 24;
    memset(stage, 0, sizeof(int[POSITIONS][SIDE]));
    for (int64_t i = 0; i < (how->patch ? (H + 2) * PITCH : H * W); i++)
        for (int64_t j = 0; j < SIDE; j++)
            stage[i][j] = how->patch ? x_at(i / PITCH - 1, i % PITCH - 1, c + j)
                                     : x_at(i / W + r - f->R / 2, i % W + s - f->S / 2, c + j);
}

static void multiply(const struct filter *f, const struct cr_block_layout *how, const int stage[POSITIONS][SIDE],
                     uint32_t shift, uint32_t from, uint32_t block) {
    for (int64_t i = 0; i < H * W && from != CR_SPARSE_FILL; i++)
        for (int64_t k = 0; k < SIDE; k++)
            for (int64_t c = 0; c < SIDE; c++) {
                const int64_t position = how->patch ? i / W * PITCH + i % W : i;
                y[block * SIDE + k][i / W][i % W] +=
                    w[from + (uint32_t)(k * f->R * f->S * f->C + c)] * stage[position + shift][c];
            }
}

/* One team of one group, as the warps of a kernel: its products in order, each with the next filter block of its
 * list. */
static void run_team(const struct filter *f, const struct cr_block_layout *how, const struct cr_block_sparse *b,
                     int64_t group, int64_t team) {
    static int      stage[POSITIONS][SIDE];
    const uint32_t *t = b->table, *of = t + b->entries + group * how->teams + team,
                   block = t[b->block + group * how->teams + team];
    uint32_t step = t[b->steps + group], item = t[b->items + group];
    if (block == UINT32_MAX)
        CHECK_INT(of[1], of[0]);
    else
        CHECK(of[1] > of[0]);
    for (uint32_t i = of[0]; i < of[1]; i++, item++) {
        const uint32_t entry = t[b->entry + i];
        if (i == of[0]) CHECK(entry >> 16 > 0);
        step += entry >> 16;
        REQUIRE(step <= t[b->steps + group + 1]);
        if (entry >> 16) load(f, how, t[b->step + step - 1], stage);
        while (item < t[b->items + group + 1] && t[b->item + item] != team) item++;
        REQUIRE(item < t[b->items + group + 1]);
        multiply(f, how, (const int(*)[SIDE])stage, entry & 0xffff, t[b->from + item], block);
    }
}

static void carries_out(const struct filter *f, int64_t nonzeros, const struct cr_block_layout *how) {
    struct cr_block_sparse b;
    REQUIRE(cr_block_sparse_encode(bits, f->first, f->K, f->R, f->S, f->C, how, &b) == CR_OK);
    int64_t stored;
    CHECK_INT(cr_block_sparse_count(bits, f->first, f->K, f->R, f->S, f->C, SIDE, &stored), nonzeros);
    CHECK_INT(b.blocks, stored);
    CHECK(b.blocks >= nonzeros && b.blocks <= nonzeros + f->K / SIDE);
    CHECK_INT(b.table[b.items + b.groups], b.blocks);
    memset(y, 0, sizeof y);
    for (int64_t group = 0; group < b.groups; group++)
        for (int64_t team = 0; team < how->teams; team++) run_team(f, how, &b, group, team);
    CHECK(memcmp(y, want, sizeof y) == 0);
    cr_block_sparse_free(&b);
}

TEST(block_lists_compute_the_convolution) {
    for (size_t i = 0; i < CR_COUNT(filters); i++) {
        const struct filter *f        = &filters[i];
        const int64_t        nonzeros = make(f);
        convolve(f);
        for (int64_t teams = 1; teams <= 4; teams++) {
            carries_out(f, nonzeros, &(struct cr_block_layout){.side = SIDE, .teams = teams});
            if (f->R == 3)
                carries_out(f, nonzeros,
                            &(struct cr_block_layout){.side = SIDE, .teams = teams, .patch = true, .pitch = PITCH});
        }
    }
}

TEST(longest_blocks_come_first) {
    const struct filter   *f = &filters[2];
    struct cr_block_sparse b;
    uint32_t               before = UINT32_MAX;
    make(f);
    REQUIRE(cr_block_sparse_encode(bits, f->first, f->K, f->R, f->S, f->C,
                                   &(struct cr_block_layout){.side = SIDE, .teams = 2}, &b) == CR_OK);
    for (int64_t of = 0; of < b.groups * 2; of++) {
        const uint32_t count = b.table[b.entries + of + 1] - b.table[b.entries + of];
        CHECK(count <= before);
        before = count;
    }
    cr_block_sparse_free(&b);
}

TEST(failing_allocations) {
    const struct filter         *f      = &filters[1];
    const struct cr_block_layout layout = {.side = SIDE, .teams = 2};
    make(f);
    for_each_failing_alloc(at, .least = 4) {
        struct cr_block_sparse b;
        failing_alloc_begin(&at);
        const cr_status status = cr_block_sparse_encode(bits, f->first, f->K, f->R, f->S, f->C, &layout, &b);
        failing_alloc_end(&at, status);
        if (status == CR_OK) cr_block_sparse_free(&b);
    }
}
