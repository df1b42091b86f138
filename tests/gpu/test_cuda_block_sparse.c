/* tests/gpu/test_cuda_block_sparse.c: convolutions with block-sparse filters. Without a GPU: the tiles of every plan
 * cover y once, and each tap of each pixel finds its input in the staged patch. With a GPU: many tiles per
 * multiprocessor, every tile config, against the plain kernel of cuda/conv/generic/conv.cu. */
#include "cuda/sparse/block/block_sparse.h"
#include "sparsity/sparsity.h"
#include "tests/harness/conv_problem.h"
#include "tests/harness/test_gpu.h"

enum { MULTIPROCESSORS = 132, L2_BYTES = 50 << 20 };

static const struct {
    int64_t N, H, W, C, K;
    int     side, stride;
} shapes[] = {
    {1, 5, 7, 64, 64, 1, 1},     {3, 7, 7, 128, 128, 3, 1},   {9, 7, 7, 64, 320, 3, 1},    {2, 14, 14, 128, 64, 3, 1},
    {40, 28, 28, 64, 128, 3, 1}, {3, 56, 56, 64, 64, 3, 1},   {2, 9, 130, 64, 64, 3, 1},   {5, 4, 250, 64, 64, 3, 1},
    {50, 28, 28, 64, 256, 1, 1}, {12, 28, 28, 128, 64, 1, 2}, {30, 28, 28, 64, 192, 3, 2}, {1, 1, 1, 64, 64, 3, 1},
    {2, 300, 3, 64, 64, 3, 1},   {70, 3, 3, 64, 64, 3, 1},    {300, 7, 7, 64, 256, 3, 1},  {40, 7, 7, 512, 256, 3, 1},
};

static struct ck_conv conv_of(size_t i, enum ck_type type) {
    return conv_sized((struct ck_conv){.type   = type,
                                       .R      = shapes[i].side,
                                       .S      = shapes[i].side,
                                       .stride = shapes[i].stride,
                                       .pad    = shapes[i].side / 2,
                                       .N      = shapes[i].N,
                                       .H      = shapes[i].H,
                                       .W      = shapes[i].W,
                                       .C      = shapes[i].C,
                                       .K      = shapes[i].K});
}

/* ---- plans, on the host ---- */

/* The input at position `at` of a part's patch: pixel number, -1 for a zero, -2 for an element that is not written.
 * The layout is that of the plan's header. */
static int64_t staged(const struct ck_conv *c, const struct ck_block_sparse_plan *p, int64_t run, int64_t at) {
    const int64_t image = at / (p->box * p->pitch), rest = at % (p->box * p->pitch),
                  n = run / p->strips * p->images + image;
    const int64_t h = run % p->strips * p->rows + rest / p->pitch - 1, w = rest % p->pitch - 1;
    if (image >= p->images) return (at + 1) * 128 <= p->x_bytes ? -1 : -2;
    return h < 0 || w < 0 || h >= c->H || n >= c->N ? -1 : (n * c->H + h) * c->W + w;
}

/* The pixel of y that column q of a run computes, or -1. */
static int64_t made(const struct ck_conv *c, const struct ck_block_sparse_plan *p, int64_t run, int64_t q) {
    if (!p->patch) return run * p->columns + q < c->N * c->P * c->Q ? run * p->columns + q : -1;
    const int64_t image = q / (p->box * p->pitch), row = q % (p->box * p->pitch) / p->pitch, column = q % p->pitch;
    const int64_t n = run / p->strips * p->images + image, h = run % p->strips * p->rows + row;
    return image < p->images && row < p->rows && column < c->Q && n < c->N && h < c->P ? (n * c->P + h) * c->Q + column
                                                                                       : -1;
}

static void follow(const struct ck_conv *c, const struct ck_block_sparse_plan *p) {
    uint8_t *seen  = cr_alloc((size_t)(c->N * c->P * c->Q), 1);
    int64_t  wrong = 0;
    REQUIRE(seen);
    for (int64_t run = 0; run < p->runs; run++)
        for (int64_t q = 0; q < p->columns; q++) {
            const int64_t pixel = made(c, p, run, q), h = pixel / c->Q % c->P, w = pixel % c->Q;
            if (pixel < 0) continue;
            seen[pixel]++;
            for (int64_t tap = 0; tap < 9 && p->patch; tap++) {
                const int64_t row = h + tap / 3 - 1, column = w + tap % 3 - 1;
                const bool    inside = row >= 0 && column >= 0 && row < c->H && column < c->W;
                wrong += staged(c, p, run, q + tap / 3 * p->pitch + tap % 3) !=
                         (inside ? (pixel / c->Q / c->P * c->H + row) * c->W + column : -1);
            }
        }
    for (int64_t i = 0; i < c->N * c->P * c->Q; i++) wrong += seen[i] != 1;
    CHECK_INT(wrong, 0);
    cr_free(seen);
}

static void plans_find_every_input(void) {
    int patches = 0, widths = 0;
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (int config = 0; config < ck_block_sparse_conv_configs(); config++) {
            const struct ck_conv        c = conv_of(i, CK_F16);
            struct ck_block_sparse_plan plan;
            if (!ck_block_sparse_conv_plan(&c, config, MULTIPROCESSORS, L2_BYTES, &plan)) continue;
            patches += plan.patch;
            widths |= plan.columns;
            CHECK(plan.bytes <= 227 * 1024 && plan.stages >= 2 && plan.ring >= 2);
            CHECK(!plan.interleave || plan.grid % plan.groups == 0);
            follow(&c, &plan);
        }
    CHECK(patches > 20 && widths == (64 | 120 | 128 | 208 | 216 | 232 | 256));
}

static void unsupported_shapes_are_refused(void) {
    struct ck_block_sparse_plan plan;
    struct ck_conv              good  = conv_of(3, CK_F16), bad;
    int                         taken = 0;
    for (int config = 0; config < ck_block_sparse_conv_configs(); config++) {
        if (!ck_block_sparse_conv_plan(&good, config, MULTIPROCESSORS, L2_BYTES, &plan)) continue;
        CHECK(plan.teams * CK_BLOCK_SPARSE_SIDE <= good.K);
        taken++;
    }
    /* K is one block: tile configs of two teams and of four */
    CHECK(taken > 0 && taken < ck_block_sparse_conv_configs());
    CHECK(!ck_block_sparse_conv_plan(&good, -1, MULTIPROCESSORS, L2_BYTES, &plan) &&
          !ck_block_sparse_conv_plan(&good, ck_block_sparse_conv_configs(), MULTIPROCESSORS, L2_BYTES, &plan));
    for (int config = 0; config < ck_block_sparse_conv_configs(); config++) {
        bad = conv_of(3, CK_F32);
        CHECK(!ck_block_sparse_conv_plan(&bad, config, MULTIPROCESSORS, L2_BYTES, &plan));
        bad = good, bad.C = 96;
        CHECK(!ck_block_sparse_conv_plan(&bad, config, MULTIPROCESSORS, L2_BYTES, &plan));
        bad = good, bad.K = 100;
        CHECK(!ck_block_sparse_conv_plan(&bad, config, MULTIPROCESSORS, L2_BYTES, &plan));
    }
}

/* ---- synchronisation, on the host ---- */

enum { TILES = 2, TEAMS_MOST = 4 };
enum action { WAIT_X, GIVE_X, WAIT_W, GIVE_W };

/* The actions of a team in TILES tiles of a group, as in cuda/sparse/block/block_sparse_work.cuh: pairs of an action
 * and the number of the stage or block, counted from the beginning. `early`: a team releases its stages before a gap
 * that is longer than the number of stages. */
struct deeds {
    int count, room, at;
    int (*deed)[2];
};

static void add_deed(struct deeds *d, enum action action, int number) {
    if (d->count == d->room) return;
    d->deed[d->count][0]   = action;
    d->deed[d->count++][1] = number;
}

static void tile_of_team(struct deeds *d, const uint32_t *entry, int count, int steps, int stages, bool early, int *x,
                         int *w) {
    const int end  = *x + steps;
    int       now  = -1;
    bool      held = false;
    for (int i = 0; i < count; i++) {
        const int on = (int)(entry[i] >> 16), before = now;
        if (on > 0 && held && early && on >= stages)
            add_deed(d, GIVE_W, *w - 1), add_deed(d, GIVE_X, before), held = false;
        for (int k = 1; k < on; k++) add_deed(d, WAIT_X, *x), add_deed(d, GIVE_X, (*x)++);
        if (on > 0) add_deed(d, WAIT_X, now = (*x)++);
        add_deed(d, WAIT_W, (*w)++);
        if (held) add_deed(d, GIVE_W, *w - 2);
        if (held && on > 0) add_deed(d, GIVE_X, before);
        held = true;
    }
    if (count) add_deed(d, GIVE_W, *w - 1), add_deed(d, GIVE_X, now);
    while (*x < end) add_deed(d, WAIT_X, *x), add_deed(d, GIVE_X, (*x)++);
}

struct rings { /* number of loads so far, and of releases by each team */
    int x, w[TEAMS_MOST], w_back[TEAMS_MOST], item;
};

static bool act(const struct deeds *d, int team, struct rings *r) {
    const int action = d->deed[d->at][0], number = d->deed[d->at][1];
    r->w_back[team] += action == GIVE_W;
    return action == WAIT_X ? number < r->x : action == WAIT_W ? number < r->w[team] : true;
}

/* Whether every team has released the stage that the next input overwrites. */
static bool stage_is_free(const struct deeds *teams, int count, const struct rings *r, int stages) {
    for (int t = 0; t < count; t++)
        for (int i = teams[t].at; i < teams[t].count; i++)
            if (teams[t].deed[i][0] == GIVE_X && teams[t].deed[i][1] == r->x - stages) return false;
    return true;
}

static bool list_terminates(const struct ck_block_sparse_plan *p, const struct cr_block_sparse *b, int group,
                            bool early) {
    const uint32_t *table = b->table, steps = table[b->steps + (uint32_t)group + 1] - table[b->steps + (uint32_t)group];
    const uint32_t  first = table[b->items + (uint32_t)group], items = table[b->items + (uint32_t)group + 1] - first;
    struct deeds    teams[TEAMS_MOST] = {0};
    struct rings    r                 = {0};
    bool            ended             = true;
    for (int t = 0; t < p->teams; t++) {
        const uint32_t *entries = table + b->entries + (uint32_t)(group * p->teams + t);
        int             x = 0, w = 0;
        teams[t].room = TILES * (int)(2 * steps + 2 * (entries[1] - entries[0]) + 8);
        teams[t].deed = cr_alloc((size_t)teams[t].room, sizeof *teams[t].deed);
        for (int i = 0; teams[t].deed && i < TILES; i++)
            tile_of_team(&teams[t], table + b->entry + entries[0], (int)(entries[1] - entries[0]), (int)steps,
                         p->stages, early, &x, &w);
        CHECK(teams[t].deed && teams[t].count < teams[t].room);
    }
    for (bool moved = true; moved;) {
        moved = false;
        while (r.x < TILES * (int)steps && stage_is_free(teams, p->teams, &r, p->stages)) r.x++, moved = true;
        while (r.item < TILES * (int)items) {
            const int team = (int)table[b->item + first + (uint32_t)r.item % items];
            if (r.w[team] - r.w_back[team] >= p->ring) break;
            r.w[team]++, r.item++, moved = true;
        }
        for (int t = 0; t < p->teams; t++)
            while (teams[t].at < teams[t].count && act(&teams[t], t, &r)) teams[t].at++, moved = true;
    }
    for (int t = 0; t < p->teams; t++) {
        ended = ended && teams[t].at == teams[t].count;
        cr_free(teams[t].deed);
    }
    return ended;
}

/* Of every twenty blocks `nonzeros` are kept; the last output block is empty if there are several. */
static uint8_t *draw_blocks(const struct ck_conv *c, unsigned nonzeros) {
    const int64_t taps = (int64_t)c->R * c->S;
    uint8_t      *bits = cr_alloc((size_t)(c->K * taps * c->C / 8), 1);
    for (int64_t k = 0; bits && k < c->K - (c->K > CK_BLOCK_SPARSE_SIDE ? CK_BLOCK_SPARSE_SIDE : 0);
         k += CK_BLOCK_SPARSE_SIDE)
        for (int64_t i = 0; i < taps * c->C; i += CK_BLOCK_SPARSE_SIDE)
            for (int64_t j = 0, in_pattern = draw_bits() % 20 < nonzeros; in_pattern && j < CK_BLOCK_SPARSE_SIDE; j++)
                memset(bits + ((k + j) * taps * c->C + i) / 8, 0xff, CK_BLOCK_SPARSE_SIDE / 8);
    return bits;
}

static void no_list_deadlocks(void) {
    static const struct {
        int64_t H, C, K;
        int     side;
    } layers[]                       = {{56, 64, 64, 3},    {28, 128, 128, 3}, {14, 256, 256, 3}, {7, 512, 512, 3},
                                        {14, 1024, 256, 1}, {28, 512, 256, 1}, {7, 2048, 512, 1}};
    static const unsigned nonzeros[] = {1, 2, 4, 6, 10, 20};
    int                   groups = 0, stuck = 0;
    for (size_t l = 0; l < CR_COUNT(layers); l++)
        for (size_t s = 0; s < CR_COUNT(nonzeros); s++) {
            const struct ck_conv c    = conv_sized((struct ck_conv){.type   = CK_F16,
                                                                    .R      = layers[l].side,
                                                                    .S      = layers[l].side,
                                                                    .stride = 1,
                                                                    .pad    = layers[l].side / 2,
                                                                    .N      = 32,
                                                                    .H      = layers[l].H,
                                                                    .W      = layers[l].H,
                                                                    .C      = layers[l].C,
                                                                    .K      = layers[l].K});
            uint8_t             *bits = draw_blocks(&c, nonzeros[s]);
            REQUIRE(bits);
            for (int config = 0; config < ck_block_sparse_conv_configs(); config++) {
                struct ck_block_sparse_plan plan;
                struct cr_block_sparse      list;
                if (!ck_block_sparse_conv_plan(&c, config, MULTIPROCESSORS, L2_BYTES, &plan)) continue;
                const struct cr_block_layout how = {
                    .side = CK_BLOCK_SPARSE_SIDE, .teams = plan.teams, .patch = plan.patch, .pitch = plan.pitch};
                REQUIRE(cr_block_sparse_encode(bits, 0, c.K, c.R, c.S, c.C, &how, &list) == CR_OK);
                for (int g = 0; g < plan.groups; g++) {
                    CHECK(list_terminates(&plan, &list, g, true));
                    stuck += !list_terminates(&plan, &list, g, false);
                    groups++;
                }
                cr_block_sparse_free(&list);
            }
            cr_free(bits);
        }
    CHECK(groups > 1000);
    CHECK(stuck > 0); /* holding stages over a long gap causes a deadlock: the rule is needed */
}

/* ---- the kernel ---- */

static bool is_set(const uint8_t *bits, int64_t i) {
    return bits[i / 8] >> (i % 8) & 1;
}

static void *up_drawn(int64_t count, enum cr_dtype type, const uint8_t *bits, double scale) {
    void *room = cr_alloc((size_t)count, cr_dtype_bytes(type)), *device = NULL;
    for (int64_t i = 0; room && i < count; i++)
        cr_number_store(type, room, i, bits && !is_set(bits, i) ? 0 : scale * draw());
    if (room) device = up(room, count * (int64_t)cr_dtype_bytes(type));
    cr_free(room);
    return device;
}

struct blocks {
    struct ck_conv conv;
    enum cr_dtype  type;
    int64_t        outputs;
    uint8_t       *bits;
    void          *x, *w, *bias, *add, *plain, *y;
    float         *host_bias;
    uint16_t      *host_plain, *host_add, *host_y;
};

static void compare(const struct blocks *p, int config, bool fused) {
    const double step  = p->type == CR_F16 ? 0x1p-11 : 0x1p-8;
    int64_t      wrong = 0;
    for (int64_t o = 0; o < p->outputs; o++) {
        const double product = cr_number_load(p->type, p->host_plain, o);
        const double more = fused ? (double)p->host_bias[o % p->conv.K] + cr_number_load(p->type, p->host_add, o) : 0;
        const double want = fused && product + more < 0 ? 0 : product + more;
        wrong += !(fabs(cr_number_load(p->type, p->host_y, GUARD + o) - want) <=
                   1.01 * step * (fabs(want) + fabs(product)) + 1e-3);
    }
    const int64_t guards = guards_broken(p->host_y, p->outputs, p->type);
    if (wrong || guards)
        TEST_FAIL_("config %d, %s, %lldx%lld C %lld K %lld: %lld wrong, %lld bytes outside y", config,
                   cr_dtype_name(p->type), (long long)p->conv.H, (long long)p->conv.W, (long long)p->conv.C,
                   (long long)p->conv.K, (long long)wrong, (long long)guards);
}

static void run_config(const struct blocks *p, int config, bool fused) {
    const struct ck_conv       *c     = &p->conv;
    const size_t                bytes = (size_t)guarded_bytes(p->outputs, p->type);
    struct cudaDeviceProp       device;
    struct ck_block_sparse_plan plan;
    struct cr_block_sparse      list;
    void                       *table, *packed;
    OK(cudaGetDeviceProperties(&device, 0));
    if (!ck_block_sparse_conv_plan(c, config, device.multiProcessorCount, device.l2CacheSize, &plan)) return;
    const struct cr_block_layout how = {
        .side = CK_BLOCK_SPARSE_SIDE, .teams = plan.teams, .patch = plan.patch, .pitch = plan.pitch};
    REQUIRE(cr_block_sparse_encode(p->bits, 0, c->K, c->R, c->S, c->C, &how, &list) == CR_OK);
    OK(cudaMalloc(&table, (size_t)list.words * 4));
    OK(cudaMalloc(&packed, (size_t)list.blocks * CK_BLOCK_SPARSE_BYTES));
    OK(cudaMemcpy(table, list.table, (size_t)list.words * 4, cudaMemcpyHostToDevice));
    OK(cudaMemset(p->y, GUARD_BYTE, bytes));
    OK(ck_block_sparse_pack(c, p->w, (const uint32_t *)table + list.from, list.blocks, packed, NULL));
    const struct ck_block_sparse_args args = {
        .conv   = *c,
        .x      = p->x,
        .blocks = packed,
        .table  = table,
        .list   = {list.steps, list.step, list.items, list.item, list.entries, list.entry, list.block},
        .bias   = fused ? p->bias : NULL,
        .add    = fused ? p->add : NULL,
        .relu   = fused,
        .y      = behind_guard(p->y, p->type)};
    OK(ck_block_sparse_conv(&args, &plan, NULL));
    OK(cudaMemcpy(p->host_y, p->y, bytes, cudaMemcpyDeviceToHost));
    compare(p, config, fused);
    cudaFree(table);
    cudaFree(packed);
    cr_block_sparse_free(&list);
}

static void run_shape(size_t i, enum ck_type type, unsigned nonzeros) {
    struct blocks         p       = {.conv = conv_of(i, type), .type = dtypes[type]};
    const struct ck_conv *c       = &p.conv;
    const int64_t         weights = c->K * c->R * c->S * c->C;
    p.outputs                     = c->N * c->P * c->Q * c->K;
    p.bits                        = draw_blocks(c, nonzeros);
    p.host_bias                   = cr_alloc((size_t)c->K, sizeof *p.host_bias);
    p.host_plain                  = cr_alloc((size_t)p.outputs, 2);
    p.host_add                    = cr_alloc((size_t)p.outputs, 2);
    p.host_y                      = cr_alloc((size_t)guarded_bytes(p.outputs, p.type), 1);
    REQUIRE(p.bits && p.host_bias && p.host_plain && p.host_add && p.host_y);
    p.x    = up_drawn(c->N * c->H * c->W * c->C, p.type, NULL, 1);
    p.w    = up_drawn(weights, p.type, p.bits, 0.1);
    p.bias = up_drawn(c->K, CR_F32, NULL, 1);
    p.add  = up_drawn(p.outputs, p.type, NULL, 1);
    OK(cudaMalloc(&p.plain, (size_t)p.outputs * 2));
    OK(cudaMalloc(&p.y, (size_t)guarded_bytes(p.outputs, p.type)));
    OK(ck_conv_forward(c, p.x, p.w, p.plain, NULL));
    OK(cudaMemcpy(p.host_plain, p.plain, (size_t)p.outputs * 2, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(p.host_add, p.add, (size_t)p.outputs * 2, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(p.host_bias, p.bias, (size_t)c->K * sizeof(float), cudaMemcpyDeviceToHost));
    for (int config = 0; config < ck_block_sparse_conv_configs(); config++)
        for (int fused = 0; fused < 2; fused++) run_config(&p, config, fused);
    void *const device[] = {p.x, p.w, p.bias, p.add, p.plain, p.y}, *const host[] = {p.bits, p.host_bias, p.host_plain,
                                                                                     p.host_add, p.host_y};
    for (size_t k = 0; k < CR_COUNT(device); k++) cudaFree(device[k]);
    for (size_t k = 0; k < CR_COUNT(host); k++) cr_free(host[k]);
}

static void kernel_equals_the_plain_kernel(void) {
    struct cudaDeviceProp device;
    NEED_GPU();
    OK(cudaGetDeviceProperties(&device, 0));
    if (device.major != 9 || device.minor != 0 || getenv("CRESNET_CAPABILITY"))
        SKIP("the GPU is none of compute capability 9.0");
    for (size_t i = 0; i < CR_COUNT(shapes); i++)
        for (unsigned nonzeros = 1; nonzeros <= 8; nonzeros += 7) run_shape(i, i % 2 ? CK_BF16 : CK_F16, nonzeros);
}

static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(plans_find_every_input), CASE(unsupported_shapes_are_refused), CASE(no_list_deadlocks),
      CASE(kernel_equals_the_plain_kernel), CASE(nothing_leaks))
