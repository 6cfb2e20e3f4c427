/* verify_layouts.c - hold layouts against one rank, without a reference from elsewhere.
 *
 * Every rank trains the same samples alone beside the group and compares its own boxes of each gradient and weight, so
 * nothing is gathered. This finds what a layout does to the numbers; that the one rank is right is shown elsewhere
 * (PyTorch's values, central differences).
 */
#include "train/verify_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, LONGEST = 128 };

typedef struct clv_trial { /* one layout */
    char name[32];
    int tp;
    bool sequence_parallel;
} clv_trial;

typedef struct clv_trial_data {
    const clv_options *options;
    clv_config config;
    int64_t seq_length, batch; /* samples a step */
    int32_t *tokens;           /* [batch, s + 1] */
    int64_t *index;
} clv_trial_data;

/* "tp2", "tp4sp" */
static clv_status trial_parse(const char *word, int world, clv_trial *out)
{
    char rest[8] = "";
    *out = (clv_trial){0};
    snprintf(out->name, sizeof out->name, "%s", word);
    const int got = sscanf(word, "tp%d%7s", &out->tp, rest);
    out->sequence_parallel = strcmp(rest, "sp") == 0;
    if (got < 1 || out->tp < 1 || (rest[0] != 0 && !out->sequence_parallel))
        return clv_fail(CLV_BAD_USAGE, "layout '%s' is not understood; write tp2, or tp2sp with sequence parallelism",
                        word);
    if (world % out->tp != 0)
        return clv_fail(CLV_BAD_INPUT, "layout %s: %d ranks are not a multiple of %d", word, world, out->tp);
    return clv_ok();
}

static clv_status engine_open(clv_engine *e, const clv_mesh *mesh, const clv_trial_data *d, bool sequence_parallel)
{
    const clv_engine_spec spec = {
        .config = &d->config,
        .sequence_parallel = sequence_parallel,
        .vocab_divisor = d->options->is_set.make_vocab_size_divisible_by ? d->options->make_vocab_size_divisible_by : 1,
        .micro_batch = d->options->micro_batch_size,
        .seq_length = d->seq_length,
        .per_token_loss = true,
        .training = true,
        .backend = d->options->backend,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-5,
        .weight_decay = 0.1,
        .clip_grad = 1.0};
    CLV_TRY(clv_engine_create(e, mesh, &spec));
    const clv_checkpoint weights = {
        .cx = &e->cx, .config = &d->config, .params = e->params, .param_count = e->param_count};
    CLV_TRY(clv_checkpoint_load(&weights, d->options->reference));
    clv_engine_tables(e);
    return clv_ok();
}

static void step_samples(const clv_trial_data *d, int64_t step)
{
    for (int64_t i = 0; i < d->batch * (d->seq_length + 1); i++)
        d->tokens[i] = (int32_t)((double)clv_uniform_at(clv_hash_name((uint64_t)step, "verify"), (uint64_t)i) *
                                 (double)d->config.vocab);
    for (int64_t i = 0; i < d->batch; i++)
        d->index[i] = step * d->batch + i;
}

static float *host_copy(clv_ctx *cx, clv_tensor t)
{
    float *out = clv_alloc((size_t)clv_numel(t), sizeof *out);
    clv_to_host(cx, out, t);
    return out;
}

/* Largest difference of this rank's box from the lone rank's tensor, and that tensor's largest element. */
static void box_compare(clv_engine *e, clv_engine *alone, size_t i, bool gradient, double out[2])
{
    const clv_param *p = &e->params[i], *q = &alone->params[i];
    const clv_tensor part = gradient ? p->dw : p->w, whole = gradient ? q->dw : q->w;
    const int64_t pc = p->ndim > 1 ? part.dim[1] : 1, wc = p->ndim > 1 ? whole.dim[1] : 1;
    const clv_box box = clv_param_box(e->cx.mesh, p);
    float *x = host_copy(&e->cx, part), *y = host_copy(&alone->cx, whole);
    out[0] = out[1] = 0;
    for (int64_t k = 0; k < clv_numel(whole); k++)
        out[1] = fmax(out[1], fabs((double)y[k]));
    for (int64_t r = 0; r < box.count[0]; r++)
        for (int64_t c = 0; c < box.count[1]; c++) {
            const double error = fabs((double)x[r * pc + c] - (double)y[(box.first[0] + r) * wc + box.first[1] + c]);
            out[0] = isnan(error) ? INFINITY : fmax(out[0], error);
        }
    free(x);
    free(y);
}

static void params_compare(const clv_trial *t, clv_engine *e, clv_engine *alone, bool gradient, clv_verdict *v)
{
    double floor = 0.0; /* a gradient far below the largest of all is noise (a key bias cancels in the softmax) */
    for (size_t i = 0; gradient && i < e->param_count; i++) {
        double both[2];
        box_compare(e, alone, i, true, both);
        floor = fmax(floor, 1e-4 * both[1]);
    }
    for (size_t i = 0; i < e->param_count; i++) {
        double both[2];
        char what[160];
        box_compare(e, alone, i, gradient, both);
        double error = gradient ? both[0] / fmax(both[1], fmax(floor, 1e-30)) : both[0];
        clv_all_reduce(clv_mesh_world(e->cx.mesh), &error, &error, 1, CLV_F64, CLV_MAX);
        snprintf(what, sizeof what, "%s: %s %s", t->name, gradient ? "gradient" : "weight", e->params[i].name);
        clv_judge(v, what, error, gradient ? clv_verify_limits().gradient : clv_verify_limits().weight);
    }
}

static void steps_compare(const clv_trial *t, const clv_trial_data *d, clv_engine *e, clv_engine *alone, clv_verdict *v)
{
    const int64_t dp = clv_mesh_size(e->cx.mesh, CLV_DP), mine = d->batch / dp;
    const int64_t first = mine * clv_mesh_coord(e->cx.mesh, CLV_DP);
    char what[64];
    for (int64_t step = 0; step < STEPS; step++) {
        step_samples(d, step);
        const clv_samples all = {.count = d->batch, .tokens = d->tokens, .index = d->index};
        const clv_samples part = {
            .count = mine, .tokens = d->tokens + first * (d->seq_length + 1), .index = d->index + first};
        const clv_step a = clv_engine_gradients(e, &part, step + 1), b = clv_engine_gradients(alone, &all, step + 1);
        snprintf(what, sizeof what, "%s: step %lld: loss", t->name, (long long)step + 1);
        clv_judge(v, what, clv_comm_decide(clv_mesh_world(e->cx.mesh), fabs(a.loss - b.loss)),
                  clv_verify_limits().loss);
        snprintf(what, sizeof what, "%s: step %lld: gradient norm", t->name, (long long)step + 1);
        clv_judge(v, what, clv_comm_decide(clv_mesh_world(e->cx.mesh), fabs(a.grad_norm / b.grad_norm - 1.0)),
                  clv_verify_limits().norm);
        if (step == 0)
            params_compare(t, e, alone, true, v);
        clv_engine_update(e, &a, 1e-3);
        clv_engine_update(alone, &b, 1e-3);
    }
    params_compare(t, e, alone, false, v);
}

static clv_status trial_run(clv_comm *world, const clv_trial *t, const clv_trial_data *d, clv_verdict *v)
{
    const clv_layout layout = {.tp = t->tp, .dp = clv_comm_size(world) / t->tp, .kv_heads = (int)d->config.kv_heads};
    CLV_TRY(clv_within(clv_gpt_check(&d->config, &layout, t->sequence_parallel, d->seq_length), "layout %s", t->name));
    clv_comm *self = clv_comm_self_open();
    clv_mesh *mesh = NULL, *one = NULL;
    clv_engine e = {0}, alone = {0};
    clv_status st = clv_mesh_create(&mesh, world, &layout);
    if (st.code == CLV_OK)
        st = clv_mesh_create(&one, self, &(clv_layout){.kv_heads = (int)d->config.kv_heads});
    if (st.code == CLV_OK)
        st = engine_open(&e, mesh, d, t->sequence_parallel);
    if (st.code == CLV_OK)
        st = clv_comm_agree(world, engine_open(&alone, one, d, false));
    if (st.code == CLV_OK) {
        steps_compare(t, d, &e, &alone, v);
        st = clv_sentinel_check(&e.cx, e.params, e.param_count, &e.optimizer);
    }
    clv_engine_destroy(&e);
    clv_engine_destroy(&alone);
    if (mesh != NULL)
        clv_mesh_destroy(mesh);
    if (one != NULL)
        clv_mesh_destroy(one);
    clv_comm_world_close(self);
    return st;
}

clv_status clv_verify_layouts(clv_comm *world, const clv_options *options, clv_verdict *v)
{
    clv_trial_data d = {.options = options, .batch = clv_comm_size(world) * options->micro_batch_size};
    CLV_TRY(clv_comm_agree(world, clv_hf_config_read(&d.config, options->reference)));
    d.config.hidden_dropout = d.config.attention_dropout = 0.0; /* masks inside the region differ by design */
    d.seq_length = CLV_MIN(d.config.max_positions, LONGEST);
    d.tokens = clv_alloc((size_t)(d.batch * (d.seq_length + 1)), sizeof *d.tokens);
    d.index = clv_alloc((size_t)d.batch, sizeof *d.index);
    char *list = clv_strdup(options->layouts), *rest = NULL;
    clv_status st = clv_ok();
    for (char *word = strtok_r(list, ",", &rest); word != NULL && st.code == CLV_OK;
         word = strtok_r(NULL, ",", &rest)) {
        clv_trial trial;
        st = trial_parse(word, clv_comm_size(world), &trial);
        if (st.code == CLV_OK)
            st = trial_run(world, &trial, &d, v);
    }
    free(list);
    free(d.tokens);
    free(d.index);
    return st;
}
