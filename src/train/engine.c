/* engine.c - a stage of the model in its arenas, and one step of training.
 *
 * A step: how many tokens count (over dp), then the schedule's forwards and backwards (pipeline.c), then what is left
 * of the sums that the records and the replicas ask for, the norm, and the update. Without a pipeline there is one
 * stage with one chunk, and the schedule is forward, backward, forward, backward.
 */
#include "train/engine_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model's parts
 * ------------------------------------------------------------------------------------------------ */

/* Records of a part join the list of the whole model, which is the same on every rank. The last stage's copy of a tied
 * matrix is no record of its own: it is where that stage has the first one. */
static void records_add(clv_engine *e, const clv_gpt *model, int stage, bool here)
{
    for (size_t i = 0; i < model->param_count; i++) {
        clv_param p = model->params[i];
        if (p.copy) {
            if (here) {
                clv_param *tied = &e->params[0];
                CLV_CHECK(strcmp(tied->name, p.name) == 0, "the tied matrix is %s, not %s", p.name, tied->name);
                tied->w = p.w;
                tied->dw = p.dw;
                tied->bucket = p.bucket;
                tied->at = p.at;
                tied->here = tied->copy = true;
            }
            continue;
        }
        p.stage = stage;
        p.here = here;
        if (!here) {
            p.w.data = p.dw.data = NULL;
            p.bucket = NULL;
        }
        e->params = clv_resize(e->params, e->param_count + 1, sizeof *e->params);
        e->params[e->param_count++] = p;
    }
}

static clv_model_options part_options(const clv_engine *e, const clv_stages *stages, int part)
{
    clv_model_options o = {.sequence_parallel = e->spec.sequence_parallel,
                           .vocab_divisor = e->spec.vocab_divisor,
                           .label_smoothing = e->spec.label_smoothing,
                           .layers = stages->layers[part],
                           .has_embedding = part == 0,
                           .has_head = part == stages->parts - 1,
                           .recompute = e->spec.recompute,
                           .distributed_optimizer = e->spec.distributed_optimizer};
    for (int i = 0; i < part; i++)
        o.first_layer += stages->layers[i];
    return o;
}

enum { IN_FLIGHT = 16 }; /* sums of gradients at once, over all parts */

/* All parts are described on every rank; those of other stages in arenas that only count. */
void clv_engine_parts(clv_engine *e, const clv_mesh *mesh, const clv_stages *stages)
{
    const int stage = clv_mesh_coord(mesh, CLV_PP);
    e->parts = stages->parts;
    e->chunk = clv_alloc((size_t)(stages->parts / stages->stages), sizeof *e->chunk);
    for (int part = 0; part < stages->parts; part++) {
        const clv_model_options options = part_options(e, stages, part);
        if (part % stages->stages == stage) {
            clv_chunk *c = &e->chunk[e->chunks++];
            c->part = part;
            clv_gpt_create(&c->model, e->spec.config, &options, mesh, &e->weights, &e->grads);
            c->gradients = clv_gradients_create(c->model.params, c->model.buckets, c->model.bucket_count,
                                                (size_t)(IN_FLIGHT * stages->stages / stages->parts));
            records_add(e, &c->model, stage, true);
        } else {
            clv_gpt other;
            clv_arena weights = clv_arena_counting("elsewhere"), grads = weights;
            weights.dtype = e->spec.dtype;
            clv_gpt_create(&other, e->spec.config, &options, mesh, &weights, &grads);
            records_add(e, &other, part % stages->stages, false);
            clv_gpt_destroy(&other);
        }
    }
}

static void slots_create(clv_engine *e, const size_t *bytes)
{
    clv_schedule list = clv_pipeline_schedule(e, e->spec.micros, true);
    for (int i = 0; i < e->chunks; i++) {
        clv_chunk *c = &e->chunk[i];
        c->slots = e->spec.training ? CLV_MAX(clv_schedule_in_flight(&list, i), 1) : 1;
        c->slot = clv_alloc((size_t)c->slots, sizeof *c->slot);
        for (int k = 0; k < c->slots; k++) {
            c->slot[k].save = clv_arena_counting("activations");
            c->slot[k].save.dtype = e->spec.dtype;
            c->slot[k].saved = clv_gpt_saved_create(&c->model);
            if (bytes == NULL)
                continue;
            c->slot[k].save.size = bytes[i];
            c->slot[k].save.base = clv_arena_push(&e->save, bytes[i]);
        }
    }
    clv_schedule_destroy(&list);
}

static void wires_create(clv_engine *e)
{
    const int64_t parts = e->spec.sequence_parallel ? clv_mesh_size(e->cx.mesh, CLV_TP) : 1;
    const clv_place edge = e->spec.sequence_parallel ? CLV_S0 : CLV_R;
    for (int i = 0; i < 2 && e->parts > 1; i++) {
        e->wire_in[i] =
            clv_new(&e->weights, edge, e->spec.seq_length / parts, e->spec.micro_batch, e->spec.config->hidden);
        e->wire_out[i] =
            clv_new(&e->weights, edge, e->spec.seq_length / parts, e->spec.micro_batch, e->spec.config->hidden);
    }
}

void clv_engine_build(clv_engine *e, const clv_backend *backend, const clv_mesh *mesh, const size_t *slots)
{
    const clv_engine_spec *spec = &e->spec;
    /* Reductions hide behind weight gradients. Not asked: whether they overlap, so that the bits do not depend on it.
     */
    const bool wires = clv_mesh_size(mesh, CLV_TP | CLV_REPLICAS) > 1;
    e->cx = (clv_ctx){
        .be = backend, .mesh = mesh, .save = &e->save, .temp = &e->temp, .idle = wires ? clv_mesh_progress : NULL};
    e->weights.dtype = e->save.dtype = e->temp.dtype = spec->dtype;
    e->loss_scale = 1.0;
    clv_stages one = clv_stages_one(spec->config->layers);
    clv_engine_parts(e, mesh, spec->stages != NULL ? spec->stages : &one);
    clv_stages_free(&one);
    if (spec->training)
        clv_optimizer_create(&e->optimizer, e->params, e->param_count, &e->moments);
    e->optimizer.beta1 = spec->beta1;
    e->optimizer.beta2 = spec->beta2;
    e->optimizer.eps = spec->eps;
    e->optimizer.weight_decay = spec->weight_decay;
    e->losses.loss = clv_new_as(&e->weights, CLV_F64, 1);
    e->losses.nll = clv_new_as(&e->weights, CLV_F64, 1);
    clv_rng_init(&e->rng, spec->seed, mesh);
    wires_create(e);
    slots_create(e, slots);
}

void clv_engine_unbuild(clv_engine *e)
{
    for (int i = 0; i < e->chunks; i++) {
        for (int k = 0; k < e->chunk[i].slots; k++)
            clv_gpt_saved_destroy(&e->chunk[i].slot[k].saved);
        free(e->chunk[i].slot);
        clv_gradients_destroy(&e->chunk[i].gradients);
        clv_gpt_destroy(&e->chunk[i].model);
    }
    free(e->chunk);
    free(e->params);
    clv_optimizer_destroy(&e->optimizer);
    e->chunk = NULL;
    e->params = NULL;
    e->chunks = 0;
    e->param_count = 0;
}

/* ---- set-up
 * ------------------------------------------------------------------------------------------------------------- */

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
    size_t *slots;
    *engine = (clv_engine){.spec = *spec};
    engine->spec.micros = CLV_MAX(spec->micros, 1);
    const clv_backend *backend = clv_backend_find(spec->backend);
    if (backend == NULL)
        return clv_fail(CLV_BAD_USAGE, "no backend is called '%s'; there are cpu and ref", spec->backend);
    engine->planned = clv_engine_count(&engine->spec, &layout, clv_comm_rank(clv_mesh_world(mesh)), &slots);
    const clv_status st = clv_comm_agree(clv_mesh_world(mesh), arenas_create(engine));
    if (st.code == CLV_OK)
        clv_engine_build(engine, backend, mesh, slots);
    else
        clv_engine_destroy(engine);
    free(slots);
    return st;
}

void clv_engine_destroy(clv_engine *engine)
{
    clv_engine_unbuild(engine);
    clv_arena *const arenas[] = {&engine->weights, &engine->grads, &engine->moments, &engine->save, &engine->temp};
    for (size_t i = 0; i < CLV_COUNT(arenas); i++)
        clv_arena_destroy(arenas[i]);
}

void clv_engine_tables(clv_engine *engine)
{
    for (int i = 0; i < engine->chunks; i++)
        clv_gpt_rope_fill(&engine->cx, &engine->chunk[i].model);
}

void clv_engine_init(clv_engine *engine, uint64_t seed)
{
    for (size_t i = 0; i < engine->param_count; i++)
        if (engine->params[i].here)
            clv_param_init(&engine->cx, &engine->params[i], seed);
    clv_engine_tables(engine);
}

int64_t clv_engine_parameters(const clv_engine *engine, bool decayed_only)
{
    int64_t n = 0;
    for (size_t i = 0; i < engine->param_count; i++) {
        const clv_param *p = &engine->params[i];
        if (p->decay || !decayed_only)
            n += p->whole[0] * (p->ndim > 1 ? p->whole[1] : 1);
    }
    return n;
}

/* ---- a step
 * --------------------------------------------------------------------------------------------------------------- */

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

/* Only the last stage has added to it; over the others it is 0. */
static double loss_of(clv_engine *e, clv_tensor sum)
{
    double value = 0.0;
    clv_to_host(&e->cx, &value, sum);
    clv_all_reduce(clv_mesh_comm(e->cx.mesh, CLV_DP | CLV_PP), &value, &value, 1, CLV_F64, CLV_SUM);
    return clv_comm_decide(clv_mesh_world(e->cx.mesh), value);
}

/* What a token's loss weighs in each micro-batch, loss scale included; the caller frees the list. */
static double *scales_of(const clv_engine *e, const clv_samples *samples, int64_t counted)
{
    const int64_t b = e->spec.micro_batch, micros = samples->count / b;
    double *scale = clv_alloc((size_t)micros, sizeof *scale);
    for (int64_t i = 0; i < micros; i++) {
        scale[i] = 1.0 / (double)CLV_MAX(counted, 1);
        if (!e->spec.per_token_loss) { /* the mean of the micro-batches' means, over dp too */
            const double in_micro = (double)CLV_MAX(counted_in(e, samples, i * b, b), 1);
            scale[i] = 1.0 / (in_micro * (double)micros * clv_mesh_size(e->cx.mesh, CLV_DP));
        }
        scale[i] *= e->loss_scale;
    }
    return scale;
}

double clv_engine_finish(clv_engine *e)
{
    for (int i = 0; i < e->chunks; i++)
        clv_gradients_finish(&e->cx, &e->chunk[i].gradients);
    return sqrt(clv_gradient_square(&e->cx, e->params, e->param_count));
}

clv_step clv_engine_gradients(clv_engine *e, const clv_samples *samples, int64_t iteration)
{
    clv_step step = {.counted = counted_over_dp(e, samples), .scale = e->loss_scale};
    for (size_t i = 0; i < e->param_count; i++)
        if (e->params[i].here)
            clv_zero(&e->cx, e->params[i].dw);
    losses_zero(e);
    e->rng.iteration = iteration;
    clv_trace_log_iteration(e->trace, iteration);
    double *scale = scales_of(e, samples, step.counted);
    clv_pipeline_run(e, &(clv_pass){.samples = samples, .scale = scale, .training = true});
    free(scale);
    step.grad_norm = clv_engine_finish(e) / step.scale;
    step.loss = loss_of(e, e->losses.loss) / step.scale;
    step.nll = loss_of(e, e->losses.nll) / step.scale;
    step.finite = isfinite(step.loss) && isfinite(step.grad_norm);
    return step;
}

void clv_engine_update(clv_engine *e, const clv_step *step, double lr)
{
    const double scale = clv_clip_coefficient(step->grad_norm, e->spec.clip_grad) / step->scale;
    const double begin = clv_trace_log_now(e->trace);
    clv_optimizer_step(&e->cx, &e->optimizer, e->params, lr, scale);
    for (int i = 0; i < e->chunks; i++)
        clv_weights_gather(&e->cx, e->chunk[i].model.buckets, e->chunk[i].model.bucket_count);
    clv_trace_log_work(e->trace, CLV_WORK_UPDATE, 0, 0, begin);
}

void clv_engine_evaluate(clv_engine *e, const clv_samples *samples, double *nll, int64_t *counted)
{
    losses_zero(e);
    clv_pipeline_run(e, &(clv_pass){.samples = samples});
    *counted += counted_over_dp(e, samples);
    *nll += loss_of(e, e->losses.nll);
}

void clv_engine_logits(clv_engine *e, const clv_samples *samples, clv_logits_visit visit, void *user)
{
    clv_pipeline_run(e, &(clv_pass){.samples = samples, .visit = visit, .user = user});
}

double clv_model_flops(const clv_config *c, int64_t seq_length)
{
    const double h = (double)c->hidden, d = (double)c->head_dim, l = (double)c->layers;
    const double attention = h * d * (2.0 * (double)c->heads + 2.0 * (double)c->kv_heads);
    const double mlp = (clv_config_has_gate(c) ? 3.0 : 2.0) * h * (double)c->ffn;
    const double n = l * (attention + mlp) + (double)c->vocab * h;
    return 6.0 * n + 6.0 * l * (double)seq_length * (double)c->heads * d;
}
