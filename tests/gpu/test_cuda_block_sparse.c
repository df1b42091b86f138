/* tests/gpu/test_cuda_block_sparse.c: lists of convolutions with block-sparse filters never make the teams of a thread
 * block wait for each other. Needs no GPU; test_checkops compares the kernels with the reference. */
#include "cuda/sparse/block/block_sparse.h"
#include "sparsity/sparsity.h"
#include "tests/harness/conv_problem.h"

enum { MULTIPROCESSORS = 132, L2_BYTES = 50 << 20 };

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

static void nothing_leaks(void) {
    CHECK_INT(cr_alloc_live(), 0);
}

TESTS(CASE(no_list_deadlocks), CASE(nothing_leaks))
