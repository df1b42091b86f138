/* tools/init-bench/main.c: cresnet-init-bench compares weight initialisation on the device with initialisation on the
 * host and a copy: time, memory, and differences of the values. */
#include "core/cpu.h"
#include "formats/json_write.h"
#include "tools/common/tool.h"
#include "tools/init-bench/methods.h"

#include <stdio.h>

enum { REPEATS = 3, DIRECT_FACTOR = 3 /* the fast method has this many times the repeats */ };
static const int64_t many_values = 500000000; /* networks with more values run the slow methods once */

/* ---- one network ---- */

/* Computes the medians of a method. */
static void compute_medians(struct cr_init_method *method) {
    for (int p = 0; p < CR_INIT_PARTS; p++)
        method->ms[p] = method->runs ? cr_cmd_median_ms(method->ns[p], method->runs) : 0;
}

static cr_status measure_copies(struct cr_init_bench *b, const struct cr_init_net *s, int64_t repeats,
                                struct cr_init_result *r) {
    float    *values = NULL;
    cr_status status = CR_OK;
    for (int64_t i = 0; i < repeats; i++) {
        if (values) b->device->backend->async->host_release(b->device, values);
        values = NULL;
        CR_TRY_OUT(cr_init_cores(b, s, &r->cores, &values));
    }
    CR_TRY_OUT(cr_init_compare(b, s, values, values + s->value_elems, r));
    for (int64_t i = 0; i < repeats; i++) CR_TRY_OUT(cr_init_thread(b, s, &r->thread));
    r->thread.host_bytes = r->cores.host_bytes = s->value_bytes;
    CR_TRY_OUT(cr_init_device_time(b, s, &r->device_ms));
out:
    if (values) b->device->backend->async->host_release(b->device, values);
    return status;
}

static cr_status measure_in_place(struct cr_init_bench *b, const struct cr_init_net *s, int64_t repeats,
                                  struct cr_init_result *r) {
    void     *region = NULL;
    cr_status status = CR_OK;
    for (int64_t i = 0; i < repeats; i++) {
        if (region) b->device->backend->release(b->device, region);
        region = NULL;
        CR_TRY_OUT(cr_init_cores_in_place(b, s, &r->cores, &region));
    }
    CR_TRY_OUT(cr_init_compare(b, s, (void *)cr_init_buffer(s, region, CR_BUFFER_VALUE),
                               (void *)cr_init_buffer(s, region, CR_BUFFER_RUNNING), r));
out:
    if (region) b->device->backend->release(b->device, region);
    return status;
}

static cr_status measure(struct cr_init_bench *b, const struct cr_init_net *s, struct cr_init_result *r) {
    const bool            copies  = b->device->backend->async != NULL;
    const int64_t         repeats = s->value_elems > many_values ? 1 : b->repeats;
    struct cr_init_method first   = {0};
    cr_log(CR_LOG_INFO, "%s: %.1f million values ...", s->name, (double)s->value_elems * 1e-6);
    CR_TRY(cr_init_direct(b, s, &first));
    compute_medians(&first);
    r->first_ms = first.ms[CR_INIT_ALL];
    for (int64_t i = 0; i < (copies ? b->repeats * DIRECT_FACTOR : repeats); i++)
        CR_TRY(cr_init_direct(b, s, &r->direct));
    if (copies)
        CR_TRY(measure_copies(b, s, repeats, r));
    else
        CR_TRY(measure_in_place(b, s, repeats, r));
    compute_medians(&r->direct);
    compute_medians(&r->thread);
    compute_medians(&r->cores);
    return CR_OK;
}

/* ---- the report ---- */

static double mb(size_t bytes) {
    return (double)bytes * 1e-6;
}

static void print_method(struct cr_init_bench *b, const struct cr_init_net *s, const char *name,
                         const struct cr_init_method *method) {
    if (!method->runs) return;
    cr_text_add(&b->out, "  %-34s %10.3f %10.3f %10.3f %10.3f %9.1f %9.1f\n", name, method->ms[CR_INIT_ALL],
                method->ms[CR_INIT_MEMORY], method->ms[CR_INIT_VALUES], method->ms[CR_INIT_COPY],
                mb(method->host_bytes), mb(method->host_bytes + s->value_bytes));
}

static void print_copies(struct cr_init_bench *b, const struct cr_init_net *s, const struct cr_init_result *r) {
    const double direct = r->direct.ms[CR_INIT_ALL], cores = r->cores.ms[CR_INIT_ALL];
    char         name[64];
    print_method(b, s, "one thread, a copy per tensor", &r->thread);
    snprintf(name, sizeof name, "%d threads, pinned, a copy per buffer", b->threads);
    print_method(b, s, name, &r->cores);
    cr_text_add(&b->out, "  device time of direct: %.3f ms, %.0f GB/s of values; its first run took %.3f ms\n",
                r->device_ms, mb(s->value_bytes) / r->device_ms, r->first_ms);
    cr_text_add(&b->out,
                "  direct is %.0f times as fast as one thread, %.1f times as fast as %d threads (%.1f without the "
                "time for allocation)\n",
                r->thread.ms[CR_INIT_ALL] / direct, cores / direct, b->threads,
                (cores - r->cores.ms[CR_INIT_MEMORY]) / direct);
    cr_text_add(&b->out, "  direct needs %.1f %% less host and device memory for values\n",
                100.0 * (double)s->value_bytes / (double)(2 * s->value_bytes));
}

static void print_text(struct cr_init_bench *b, const struct cr_init_net *s, const struct cr_init_result *r) {
    cr_text_add(&b->out, "%s: %lld parameters; values %.1f MB; device memory %.1f MB with every method\n", s->name,
                (long long)cr_param_store_trainable(&s->model.store), mb(s->value_bytes), mb(s->store_bytes));
    cr_text_add(&b->out, "  %-34s %10s %10s %10s %10s %9s %9s\n", "", "ms", "alloc ms", "init ms", "copy ms", "host MB",
                "sum MB");
    if (b->device->backend->async) {
        print_method(b, s, "direct, on the device", &r->direct);
        print_copies(b, s, r);
    } else {
        char name[64];
        print_method(b, s, "one thread, in place", &r->direct);
        snprintf(name, sizeof name, "%d threads, in place", b->threads);
        print_method(b, s, name, &r->cores);
        cr_text_add(&b->out, "  this device uses host memory: there is nothing to copy\n");
    }
    cr_text_add(&b->out, "  values: largest difference %lld ulp; %lld of %lld are not bitwise identical\n",
                (long long)r->worst_ulp, (long long)r->differing, (long long)(s->value_elems + s->running_elems));
}

static void json_method(struct cr_json_writer *w, const char *name, const struct cr_init_method *method) {
    if (!method->runs) return;
    cr_json_open_object(w, name);
    cr_json_put_fixed(w, "ms", method->ms[CR_INIT_ALL], 4);
    cr_json_put_fixed(w, "alloc_ms", method->ms[CR_INIT_MEMORY], 4);
    cr_json_put_fixed(w, "init_ms", method->ms[CR_INIT_VALUES], 4);
    cr_json_put_fixed(w, "copy_ms", method->ms[CR_INIT_COPY], 4);
    cr_json_put_uint(w, "host_bytes", method->host_bytes);
    cr_json_put_int(w, "runs", method->runs);
    cr_json_close_object(w);
}

static void print_json(struct cr_init_bench *b, const struct cr_init_net *s, const struct cr_init_result *r) {
    struct cr_json_writer w = cr_json_writer(&b->out, CR_JSON_SPACED);
    cr_json_open_object(&w, NULL);
    cr_json_put_string(&w, "network", s->name);
    cr_json_put_int(&w, "parameters", cr_param_store_trainable(&s->model.store));
    cr_json_put_uint(&w, "value_bytes", s->value_bytes);
    cr_json_put_uint(&w, "store_bytes", s->store_bytes);
    cr_json_put_int(&w, "threads", b->threads);
    json_method(&w, "direct", &r->direct);
    json_method(&w, "one_thread", &r->thread);
    json_method(&w, "all_cores", &r->cores);
    if (b->device->backend->async) cr_json_put_fixed(&w, "device_ms", r->device_ms, 4);
    cr_json_put_fixed(&w, "first_ms", r->first_ms, 4);
    cr_json_put_int(&w, "worst_ulp", r->worst_ulp);
    cr_json_put_int(&w, "differing", r->differing);
    cr_json_put_string(&w, "device", b->device->caps.text);
    cr_json_close_object(&w);
    cr_json_end_line(&w);
}

/* ---- the networks ---- */

static void net_close(struct cr_init_net *s) {
    if (s->has_model) cr_model_close(&s->model);
    cr_config_close(s->config);
}

static int count_cores(const struct cr_config *c) {
    return CR_MIN(c->train.threads ? (int)c->train.threads : cr_cpu_cores(), (int)CR_INIT_THREADS_MAX);
}

/* Measures one network with the buffers that training has: with 16-bit precision the parameter store also has a buffer
 * of 16-bit weights. The configuration of the first network opens the device. */
static cr_status run_net(struct cr_init_bench *b, struct cr_init_net *s) {
    struct cr_init_result r = {0};
    struct cr_prepare     train, eval;
    int                   classes;
    CR_TRY(cr_cmd_classes(s->config, &classes));
    CR_TRY(cr_prepare_from_config(s->config, CR_SPLIT_TRAIN, &train));
    CR_TRY(cr_prepare_from_config(s->config, CR_SPLIT_VAL, &eval));
    if (!b->device) CR_TRY(cr_session_device(s->config, NULL, &b->device, &b->real));
    CR_TRY(cr_model_open(s->config, classes, train.size, eval.size, &s->model));
    s->has_model = true;
    cr_model_set_real(&s->model, b->real);
    s->value_elems   = s->model.store.value_elems;
    s->running_elems = s->model.store.running_elems;
    s->value_bytes   = (size_t)(s->value_elems + s->running_elems) * sizeof(float);
    s->store_bytes   = cr_param_store_bytes(&s->model.store);
    b->threads       = count_cores(s->config);
    CR_TRY(measure(b, s, &r));
    if (b->json)
        print_json(b, s, &r);
    else
        print_text(b, s, &r);
    return CR_OK;
}

/* The last network is a ResNet-50 of seven times the width: 1.16e9 parameters. */
static const struct builtin {
    const char *name, *overrides[4];
} builtins[] = {
    {"resnet18", {"model.arch=resnet18"}},
    {"resnet50", {"model.arch=resnet50"}},
    {"resnet152", {"model.arch=resnet152"}},
    {"resnet50, 7 times as wide",
     {"model.arch=custom", "model.block=bottleneck", "model.depths=3,4,6,3", "model.widths=448,896,1792,3584"}},
};

static cr_status run_builtin(struct cr_init_bench *b, const struct cr_args *args, const struct builtin *net) {
    struct cr_init_net s = {.name = net->name};
    const char       **list;
    int                count  = 0;
    cr_status          status = CR_OK;
    CR_ALLOC(list, (size_t)args->overrides + CR_COUNT(net->overrides) + 2);
    for (size_t i = 0; i < CR_COUNT(net->overrides) && net->overrides[i]; i++) list[count++] = net->overrides[i];
    list[count++] = "model.classes=1000";
    list[count++] = "data.image_size=224";
    for (int i = 0; i < args->overrides; i++) list[count++] = args->override[i];
    CR_TRY_OUT(cr_config_open(&s.config, NULL, list, count));
    CR_TRY_OUT(run_net(b, &s));
out:
    cr_free(list);
    net_close(&s);
    return status;
}

static cr_status run_builtins(struct cr_init_bench *b, const struct cr_args *args) {
    for (size_t i = 0; i < CR_COUNT(builtins); i++) {
        if (i + 1 == CR_COUNT(builtins) && !b->device->backend->async) {
            cr_log(CR_LOG_INFO, "note: skipping the network of 1.16e9 parameters: this device needs no copies");
            break;
        }
        CR_TRY(run_builtin(b, args, &builtins[i]));
    }
    return CR_OK;
}

static cr_status run_config(struct cr_init_bench *b, const struct cr_args *args, int operand) {
    struct cr_init_net s   = {0};
    struct cr_args     one = *args;
    cr_status          status;
    one.operand += operand;
    one.operands = 1;
    CR_TRY_OUT(cr_cmd_config(&one, &s.config));
    /* The file's name would be wrong after an override of the architecture. */
    s.name = s.config->model.arch == CR_ARCH_CUSTOM ? s.config->name : cr_word_arch(s.config->model.arch);
    CR_TRY_OUT(run_net(b, &s));
out:
    net_close(&s);
    return status;
}

static cr_status run(const struct cr_tool_args *args) {
    struct cr_init_bench b = {.json = cr_tool_value(args, "json") != NULL};
    cr_status            status;
    CR_TRY(cr_tool_int(args, "steps", 1, CR_INIT_REPEATS_MAX, REPEATS, &b.repeats));
    if (args->cli.operands) {
        for (int i = 0; i < args->cli.operands; i++) CR_TRY_OUT(run_config(&b, &args->cli, i));
    } else
        CR_TRY_OUT(run_builtins(&b, &args->cli));
    CR_TRY_OUT(cr_cmd_print(&b.out));
out:
    cr_text_free(&b.out);
    cr_device_close(b.device);
    return status;
}

static const struct cr_tool_option options[] = {
    {"steps", "N", NULL, "runs of each method (default: 3)"},
    {"json", NULL, NULL, "print one line of JSON for each network"},
    {"device", "NAME", "train.device", "cpu or cuda (default: a GPU if there is one)"},
    {"threads", "N", "train.threads", "threads of the CPU"},
    {NULL, NULL, NULL, NULL},
};

int main(int argc, char **argv) {
    static const struct cr_tool tool = {
        .name     = "cresnet-init-bench",
        .operands = "[CONFIG|RUN ...] [options] [section.key=value ...]",
        .about    = "Compares weight initialisation on the device with initialisation on the host and a copy.\n",
        .option   = options,
        .run      = run,
    };
    return cr_tool_main(&tool, argc, argv);
}
