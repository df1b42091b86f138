/* cli/budget/clock.c: times (latency) of ops and networks, by which a budget is met. See cli/budget/budget.h. */
#include "cli/budget/budget.h"

/* ---- open, close ---- */

cr_status cr_budget_clock_open(const struct cr_config *config, int classes, struct cr_budget_clock *clock) {
    const struct cr_session_options options = {0};
    struct cr_session              *s       = &clock->session;
    struct cr_prepare               prepare;
    enum cr_dtype                   real;
    CR_TRY(cr_config_derive(&clock->config, config, 0, CR_CHANGES("memory.limit=")));
    clock->batch = config->train.eval_batch ? config->train.eval_batch : config->train.batch;
    if (!clock->batch)
        return cr_config_fail(config, "train.eval_batch", "a target time needs a batch size: give --batch N");
    s->config = clock->config;
    CR_TRY(cr_prepare_from_config(config, CR_SPLIT_VAL, &prepare));
    CR_TRY(cr_session_device(clock->config, NULL, &s->device, &real));
    CR_TRY(cr_model_open(clock->config, classes, prepare.size, prepare.size, &s->model));
    cr_model_set_real(&s->model, real);
    CR_TRY(cr_session_open_cost_table(s, &options));
    clock->model = cr_session_cost_model(s);
    if (!s->device->backend->async && config->train.measure) CR_TRY(cr_host_times_open(s->device, &clock->host));
    clock->measured = clock->host || clock->model.cost;
    return cr_session_compile(s, CR_PROGRAM_EVAL, clock->batch, "fuse", &clock->program);
}

void cr_budget_clock_close(struct cr_budget_clock *clock) {
    cr_program_free(&clock->program);
    if (clock->session.cost_table) cr_cost_table_flush(clock->session.cost_table);
    cr_host_times_close(clock->host);
    cr_session_close(&clock->session);
    cr_config_close(clock->config);
}

/* ---- ops ---- */

cr_status cr_budget_op_cost(struct cr_budget_clock *clock, const struct cr_program *p, const struct cr_op *op,
                            double *cost, bool *known) {
    *known = true;
    *cost  = cr_op_seconds(&clock->model, p, op);
    if (clock->model.cost) {
        *known = cr_accepts(&clock->model, p, op);
        return *known ? clock->model.cost(clock->model.self, p, op, cost) : CR_OK;
    }
    double seconds = 0;
    if (clock->host) CR_TRY(cr_host_times_of(clock->host, p, op, &seconds));
    if (seconds > 0) *cost = seconds;
    *known = !clock->host || seconds > 0;
    return CR_OK;
}

static cr_status sum_costs(struct cr_budget_clock *clock, const struct cr_program *p, double *sum) {
    double cost;
    bool   known;
    *sum = 0;
    for (int i = p->hoisted; i < p->ops; i++) {
        CR_TRY(cr_budget_op_cost(clock, p, &p->op[i], &cost, &known));
        *sum += cost;
    }
    return CR_OK;
}

cr_status cr_budget_network_cost(struct cr_budget_clock *clock, const struct cr_config *config, struct cr_model *model,
                                 const uint8_t *mask, double *cost) {
    struct cr_session other = {
        .config = config, .device = clock->session.device, .cost_table = clock->session.cost_table, .model = *model};
    struct cr_program program;
    other.model.store.pattern = mask;
    CR_TRY(cr_session_compile(&other, CR_PROGRAM_EVAL, clock->batch, "fuse", &program));
    const cr_status status = sum_costs(clock, &program, cost);
    cr_program_free(&program);
    return status;
}
