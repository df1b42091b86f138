/* data/loader/load_need.c: the threads that loading needs at a given rate, and the hint when data loading is the
 * bottleneck. See data/load_need.h. */
#include "data/load_need.h"
#include "core/cpu.h"

#include <math.h>

/* Files above this size are worth a --jpeg: a photo with the short side 256 has about 25 KB. */
static const double large_bytes = 60e3;

struct cr_load_need cr_load_need(const struct cr_load_counts *c, double rate) {
    if (c->images < 1) return (struct cr_load_need){0};
    const double each         = rate * 1e-9 / (double)c->images,
                 computing    = (double)(c->decode_ns + c->resize_ns + c->other_ns);
    const double        share = computing > 0 ? fmin(1, (double)c->cpu_ns / computing) : 1;
    struct cr_load_need n     = {.rate            = rate,
                                 .read            = each * (double)c->fetch_ns,
                                 .decode          = each * share * (double)c->decode_ns,
                                 .resize          = each * share * (double)c->resize_ns,
                                 .copy            = each * share * (double)c->other_ns,
                                 .cores           = each * (double)c->cpu_ns,
                                 .bytes_per_image = (double)c->file_bytes / (double)c->images,
                                 .jpegs           = (double)c->jpegs / (double)c->images};
    n.threads                 = n.read + n.decode + n.resize + n.copy;
    return n;
}

struct cr_load_supply cr_load_supply_of(const struct cr_prepare *prepare, int workers, int processes) {
    return (struct cr_load_supply){.cores     = CR_MAX(cr_cpu_cores() / processes, 1),
                                   .workers   = workers,
                                   .pack_size = CR_MAX(prepare->eval_resize, prepare->size)};
}

/* Appends "A", or " and A" after another action. */
static void add_action(struct cr_text *out, bool *any, const char *text, int value) {
    cr_text_add(out, *any ? " and " : ": ");
    cr_text_add(out, "%s%d", text, value);
    *any = true;
}

void cr_load_hint(const struct cr_load_need *n, const struct cr_load_supply *s, struct cr_text *out) {
    const struct {
        const char *name;
        double      threads;
    } stages[] = {{"reading", n->read}, {"decoding", n->decode}, {"resizing", n->resize}, {"copying", n->copy}};
    const bool lacks_cores = n->cores > s->cores, lacks_workers = n->threads > s->workers;
    size_t     most = lacks_cores && n->decode > 0; /* reading needs few cores, but many files at a time */
    for (size_t i = most + 1; i < CR_COUNT(stages); i++)
        if (stages[i].threads > stages[most].threads) most = i;
    const bool reads = most == 0 && !lacks_cores;
    const int  have  = lacks_cores ? s->cores : s->workers,
              wanted = (int)fmin(ceil(n->threads), (reads ? 4 : 1) * s->cores);
    bool any         = false;
    cr_text_add(out, "%s needs %.1f of %.1f %s at %.0f images/s", stages[most].name, stages[most].threads,
                lacks_cores ? n->cores : n->threads, lacks_cores ? "cores" : "workers", n->rate);
    if (reads) cr_text_add(out, " (%.0f MB/s)", n->rate * n->bytes_per_image * 1e-6);
    cr_text_add(out, ", there %s %d", have == 1 ? "is" : "are", have);
    if (lacks_workers && wanted > s->workers) add_action(out, &any, "data.workers=", wanted);
    if (s->gpu && lacks_cores && n->decode > 0 && n->jpegs > 0.5) {
        cr_text_add(out, any ? " and data.decode=auto" : ": data.decode=auto");
        return;
    }
    if (n->bytes_per_image > large_bytes && ((lacks_cores && n->decode > 0) || reads))
        add_action(out, &any, "data pack --jpeg=", s->pack_size);
    else if (n->decode > 0 && lacks_cores)
        add_action(out, &any, "data pack --raw=", s->pack_size);
    if (any) return;
    cr_text_add(out, lacks_cores || lacks_workers ? ": more cores help"
                                                  : ": other programs use the cores, or a larger data.prefetch helps");
}
