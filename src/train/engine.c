/* engine.c - a model in its arenas, and one step of training.
 *
 * The arenas are counted first: the very code of a step runs once over null kernels and a world without peers, and the
 * peaks it leaves are what is allocated. So a plan cannot differ from the run.
 *
 * A step: how many tokens count (over dp), then for each micro-batch forward and backward, then the sums that the
 * records ask for, the norm, and the update.
 */
#include "train.h"

#include <math.h>
#include <stdlib.h>

/* ---- a micro-batch in the arena of what is saved ------------------------------------------------------------------
 */

/* Samples lie [count][width] on the host; the model wants [s, b]. Columns first .. first + s - 1 of b samples. */
static clv_tensor transposed_i32(clv_ctx *cx, const int32_t *from, int64_t width, int64_t s, int64_t b)
{
    clv_tensor t = clv_new_as(cx->save, CLV_I32, s, b);
    if (from == NULL)
        return t;
    int32_t *host = clv_alloc((size_t)(s * b), sizeof *host);
    for (int64_t j = 0; j < b; j++)
        for (int64_t i = 0; i < s; i++)
            host[i * b + j] = from[j * width + i];
    clv_from_host(cx, t, host);
    free(host);
    return t;
}

static clv_tensor weights_of(clv_ctx *cx, const clv_samples *samples, int64_t at, int64_t s, int64_t b, double scale)
{
    clv_tensor t = clv_new_as(cx->save, CLV_F32, s, b);
    float *host = clv_alloc((size_t)(s * b), sizeof *host);
    for (int64_t j = 0; j < b; j++)
        for (int64_t i = 0; i < s; i++)
            host[i * b + j] = (float)(scale * (samples->mask == NULL ? 1.0 : samples->mask[(at + j) * s + i]));
    clv_from_host(cx, t, host);
    free(host);
    return t;
}

static clv_tensor positions_of(clv_ctx *cx, const clv_samples *samples, int64_t at, int64_t s, int64_t b)
{
    if (samples->position != NULL)
        return transposed_i32(cx, samples->position + at * s, s, s, b);
    int32_t *plain = clv_alloc((size_t)(s * b), sizeof *plain);
    for (int64_t i = 0; i < s * b; i++)
        plain[i] = (int32_t)(i % s);
    clv_tensor t = transposed_i32(cx, plain, s, s, b);
    free(plain);
    return t;
}

/* samples with count 0 make a batch of the right shapes without content: the counting run. */
static clv_batch batch_create(clv_engine *e, const clv_samples *samples, int64_t at, double scale)
{
    clv_ctx *cx = &e->cx;
    const int64_t s = e->spec.seq_length, b = e->spec.micro_batch;
    const int32_t *tokens = samples->tokens == NULL ? NULL : samples->tokens + at * (s + 1);
    clv_batch batch = {.tokens = transposed_i32(cx, tokens, s + 1, s, b),
                       .target = transposed_i32(cx, tokens == NULL ? NULL : tokens + 1, s + 1, s, b),
                       .pos = positions_of(cx, samples, at, s, b),
                       .weight = weights_of(cx, samples, at, s, b, scale)};
    if (e->spec.documents)
        batch.doc = transposed_i32(cx, samples->document == NULL ? NULL : samples->document + at * s, s, s, b);
    e->rng.sample = clv_new_as(cx->save, CLV_I64, b);
    if (samples->index != NULL)
        clv_from_host(cx, e->rng.sample, samples->index + at);
    return batch;
}

/* ---- set-up --------------------------------------------------------------------------------------------------------
 */

static void model_create(clv_engine *e, const clv_mesh *mesh)
{
    const clv_engine_spec *spec = &e->spec;
    const clv_model_options options = {.sequence_parallel = spec->sequence_parallel,
                                       .vocab_divisor = spec->vocab_divisor,
                                       .label_smoothing = spec->label_smoothing,
                                       .layers = spec->config->layers,
                                       .has_embedding = true,
                                       .has_head = true};
    clv_gpt_create(&e->model, spec->config, &options, mesh, &e->weights, &e->grads);
    e->saved = clv_gpt_saved_create(&e->model);
    if (spec->training)
        clv_optimizer_create(&e->optimizer, e->model.params, e->model.param_count, &e->moments);
    e->optimizer.beta1 = spec->beta1;
    e->optimizer.beta2 = spec->beta2;
    e->optimizer.eps = spec->eps;
    e->optimizer.weight_decay = spec->weight_decay;
    e->losses.loss = clv_new_as(&e->weights, CLV_F64, 1);
    e->losses.nll = clv_new_as(&e->weights, CLV_F64, 1);
    clv_rng_init(&e->rng, spec->seed, mesh);
}

static void ctx_create(clv_engine *e, const clv_backend *backend, const clv_mesh *mesh)
{
    const bool wires = clv_mesh_size(mesh, CLV_TP) > 1; /* then reductions hide behind weight gradients */
    e->cx = (clv_ctx){
        .be = backend, .mesh = mesh, .save = &e->save, .temp = &e->temp, .idle = wires ? clv_mesh_progress : NULL};
}

static void micro_step(clv_engine *e, const clv_samples *samples, int64_t at, double scale)
{
    const size_t save = clv_arena_mark(&e->save), temp = clv_arena_mark(&e->temp);
    const clv_batch batch = batch_create(e, samples, at, scale);
    e->cx.rng = &e->rng;
    clv_gpt_forward(&e->cx, &e->model, &batch, (clv_tensor){0}, e->losses, &e->saved);
    clv_gpt_backward(&e->cx, &e->model, (clv_tensor){0}, &e->saved);
    e->cx.rng = NULL;
    clv_arena_release(&e->temp, temp);
    clv_arena_release(&e->save, save);
}

static void micro_evaluate(clv_engine *e, const clv_samples *samples, int64_t at)
{
    const size_t save = clv_arena_mark(&e->save), temp = clv_arena_mark(&e->temp);
    const clv_batch batch = batch_create(e, samples, at, 1.0);
    clv_gpt_forward(&e->cx, &e->model, &batch, (clv_tensor){0}, e->losses, NULL);
    clv_arena_release(&e->temp, temp);
    clv_arena_release(&e->save, save);
}

static void engine_free(clv_engine *e)
{
    clv_optimizer_destroy(&e->optimizer);
    clv_gpt_saved_destroy(&e->saved);
    clv_gpt_destroy(&e->model);
}

clv_engine_bytes clv_engine_plan(const clv_engine_spec *spec, const clv_layout *layout, int rank)
{
    const int size = CLV_MAX(layout->tp, 1) * CLV_MAX(layout->cp, 1) * CLV_MAX(layout->dp, 1) * CLV_MAX(layout->pp, 1);
    clv_comm *world = clv_comm_fake_open(rank, size);
    clv_mesh *mesh = NULL;
    const clv_status st = clv_mesh_create(&mesh, world, layout);
    CLV_CHECK(st.code == CLV_OK, "planning: %s", st.text);
    clv_engine e = {.spec = *spec,
                    .weights = clv_arena_counting("weights"),
                    .grads = clv_arena_counting("gradients"),
                    .moments = clv_arena_counting("optimizer"),
                    .save = clv_arena_counting("activations"),
                    .temp = clv_arena_counting("scratch")};
    ctx_create(&e, clv_backend_null(), mesh);
    model_create(&e, mesh);
    const clv_samples none = {0};
    if (spec->training) {
        micro_step(&e, &none, 0, 1.0);
        clv_gradient_sum(&e.cx, e.model.params, e.model.param_count, CLV_DP | CLV_CP);
        clv_gradient_square(&e.cx, e.model.params, e.model.param_count);
    }
    micro_evaluate(&e, &none, 0);
    const clv_engine_bytes bytes = {e.weights.peak, e.grads.peak, e.moments.peak, e.save.peak, e.temp.peak};
    engine_free(&e);
    clv_mesh_destroy(mesh);
    clv_comm_world_close(world);
    return bytes;
}

size_t clv_engine_total(const clv_engine_bytes *bytes)
{
    return bytes->weights + bytes->grads + bytes->moments + bytes->save + bytes->temp;
}

static clv_status arenas_create(clv_engine *e)
{
    CLV_TRY(clv_arena_create(&e->weights, "weights", e->planned.weights));
    CLV_TRY(clv_arena_create(&e->grads, "gradients", e->planned.grads));
    CLV_TRY(clv_arena_create(&e->moments, "optimizer", e->planned.moments));
    CLV_TRY(clv_arena_create(&e->save, "activations", e->planned.save));
    return clv_arena_create(&e->temp, "scratch", e->planned.temp);
}

clv_status clv_engine_create(clv_engine *engine, const clv_mesh *mesh, const clv_engine_spec *spec)
{
    const clv_layout layout = {.tp = clv_mesh_size(mesh, CLV_TP),
                               .cp = clv_mesh_size(mesh, CLV_CP),
                               .dp = clv_mesh_size(mesh, CLV_DP),
                               .pp = clv_mesh_size(mesh, CLV_PP),
                               .kv_heads = (int)spec->config->kv_heads};
    *engine = (clv_engine){.spec = *spec};
    engine->planned = clv_engine_plan(spec, &layout, clv_comm_rank(clv_mesh_world(mesh)));
    const clv_backend *backend = clv_backend_find(spec->backend);
    if (backend == NULL)
        return clv_fail(CLV_BAD_USAGE, "no backend is called '%s'; there are cpu and ref", spec->backend);
    CLV_TRY(clv_comm_agree(clv_mesh_world(mesh), arenas_create(engine)));
    ctx_create(engine, backend, mesh);
    model_create(engine, mesh);
    return clv_ok();
}

void clv_engine_destroy(clv_engine *engine)
{
    engine_free(engine);
    clv_arena *const arenas[] = {&engine->weights, &engine->grads, &engine->moments, &engine->save, &engine->temp};
    for (size_t i = 0; i < CLV_COUNT(arenas); i++)
        clv_arena_destroy(arenas[i]);
}

/* ---- a step
 * ------------------------------------------------------------------------------------------------------------ */

static int64_t counted_in(const clv_engine *e, const clv_samples *samples, int64_t first, int64_t count)
{
    const int64_t s = e->spec.seq_length;
    if (samples->mask == NULL)
        return count * s;
    int64_t n = 0;
    for (int64_t i = first * s; i < (first + count) * s; i++)
        n += samples->mask[i] != 0.0f;
    return n;
}

static int64_t counted_over_dp(clv_engine *e, const clv_samples *samples)
{
    int64_t n = counted_in(e, samples, 0, samples->count);
    clv_all_reduce(clv_mesh_comm(e->cx.mesh, CLV_DP), &n, &n, 1, CLV_I64, CLV_SUM);
    return n;
}

static void losses_zero(clv_engine *e)
{
    clv_zero(&e->cx, e->losses.loss);
    clv_zero(&e->cx, e->losses.nll);
}

static double sum_over_dp(clv_engine *e, clv_tensor sum)
{
    double value = 0.0;
    clv_to_host(&e->cx, &value, sum);
    clv_all_reduce(clv_mesh_comm(e->cx.mesh, CLV_DP), &value, &value, 1, CLV_F64, CLV_SUM);
    return clv_comm_decide(clv_mesh_world(e->cx.mesh), value);
}

clv_step clv_engine_gradients(clv_engine *e, const clv_samples *samples, int64_t iteration)
{
    const int64_t b = e->spec.micro_batch, micros = samples->count / b;
    const int64_t counted = counted_over_dp(e, samples);
    for (size_t i = 0; i < e->model.param_count; i++)
        clv_zero(&e->cx, e->model.params[i].dw);
    losses_zero(e);
    e->rng.iteration = iteration;
    for (int64_t i = 0; i < micros; i++) {
        double scale = 1.0 / (double)CLV_MAX(counted, 1);
        if (!e->spec.per_token_loss) { /* the mean of the micro-batches' means, over dp too */
            const int64_t in_micro = counted_in(e, samples, i * b, b);
            scale = 1.0 / ((double)CLV_MAX(in_micro, 1) * (double)micros * clv_mesh_size(e->cx.mesh, CLV_DP));
        }
        micro_step(e, samples, i * b, scale);
    }
    clv_gradient_sum(&e->cx, e->model.params, e->model.param_count, CLV_DP | CLV_CP);
    clv_step step = {.counted = counted};
    step.loss = sum_over_dp(e, e->losses.loss);
    step.nll = sum_over_dp(e, e->losses.nll);
    step.grad_norm = sqrt(clv_gradient_square(&e->cx, e->model.params, e->model.param_count));
    step.finite = isfinite(step.loss) && isfinite(step.grad_norm);
    return step;
}

void clv_engine_update(clv_engine *e, const clv_step *step, double lr)
{
    const double scale = clv_clip_coefficient(step->grad_norm, e->spec.clip_grad);
    clv_optimizer_step(&e->cx, &e->optimizer, e->model.params, lr, scale);
}

void clv_engine_evaluate(clv_engine *e, const clv_samples *samples, double *nll, int64_t *counted)
{
    losses_zero(e);
    for (int64_t at = 0; at < samples->count; at += e->spec.micro_batch)
        micro_evaluate(e, samples, at);
    *counted += counted_over_dp(e, samples);
    *nll += sum_over_dp(e, e->losses.nll);
}

double clv_model_flops(const clv_config *c, int64_t seq_length)
{
    const double h = (double)c->hidden, d = (double)c->head_dim, l = (double)c->layers;
    const double attention = h * d * (2.0 * (double)c->heads + 2.0 * (double)c->kv_heads);
    const double mlp = (clv_config_has_gate(c) ? 3.0 : 2.0) * h * (double)c->ffn;
    const double n = l * (attention + mlp) + (double)c->vocab * h;
    return 6.0 * n + 6.0 * l * (double)seq_length * (double)c->heads * d;
}
