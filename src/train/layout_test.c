/* nsize: 1 2 4 8 */
/* layout_test.c - a layout equals one rank: loss, gradients before and weights after updates, box by box, for every
 * kind of module, with and without sequence parallelism; and what must hold on any layout: bit-equal replicas, arenas
 * exactly as counted beforehand, the collectives that the equations show, masks that dropout replays.
 *
 * Each rank trains the same model alone beside the group and compares its own boxes, so nothing has to be gathered.
 */
#include "comm/mpi_test.h"
#include "train.h"

#include <math.h>
#include <string.h>

enum { S = 16, B = 2, MICROS = 2, VOCAB = 67 };

typedef struct variant {
    const char *name;
    clv_config config;
    double smoothing;
    int64_t divisor;
    bool documents;
} variant;

static clv_config base_config(void)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = 32;
    c.layers = 2;
    c.heads = 8;
    c.kv_heads = 8;
    c.head_dim = 8;
    c.ffn = 48;
    c.max_positions = 32;
    c.init_std = 0.1;
    return c;
}

static clv_config gpt_config(void)
{
    clv_config c = base_config();
    c.act = CLV_GELU_TANH;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    return c;
}

static clv_config llama_config(int64_t kv_heads)
{
    clv_config c = base_config();
    c.kv_heads = kv_heads;
    c.norm = CLV_RMSNORM;
    c.act = CLV_SWIGLU;
    c.position = CLV_POS_ROPE;
    c.tied = false;
    return c;
}

static size_t variants_make(variant *v)
{
    size_t n = 0;
    v[n++] = (variant){"gpt", gpt_config(), 0.0, 1, false};
    v[n++] = (variant){"gpt, padded 128", gpt_config(), 0.1, 128, true};
    v[n++] = (variant){"llama", llama_config(8), 0.1, 1, false};
    v[n++] = (variant){"llama, 2 key/value heads", llama_config(2), 0.0, 1, true};
    v[n++] = (variant){"llama, 1 key/value head", llama_config(1), 0.0, 128, false};
    v[n] = (variant){"q and k norms, window", llama_config(4), 0.0, 1, false};
    v[n].config.qk_norm = true;
    v[n].config.window = 5;
    v[n].config.window_first = 1;
    v[n++].config.bias_qkv = true;
    v[n] = (variant){"q and k norms beside LayerNorm", gpt_config(), 0.0, 1, false};
    v[n++].config.qk_norm = true;
    v[n] = (variant){"gpt, hidden dropout, relu", gpt_config(), 0.0, 1, false};
    v[n].config.act = CLV_RELU;
    v[n++].config.hidden_dropout = 0.2;
    v[n] = (variant){"no positions, erf gelu, gated off, odd head size", gpt_config(), 0.0, 1, false};
    v[n].config.act = CLV_GELU;
    v[n].config.position = CLV_POS_NONE;
    v[n].config.head_dim = 5;
    v[n++].config.tied = false;
    return n;
}

static clv_engine_spec spec_of(const variant *v, bool sequence_parallel)
{
    return (clv_engine_spec){.config = &v->config,
                             .sequence_parallel = sequence_parallel,
                             .vocab_divisor = v->divisor,
                             .micro_batch = B,
                             .seq_length = S,
                             .label_smoothing = v->smoothing,
                             .per_token_loss = true,
                             .training = true,
                             .documents = v->documents,
                             .backend = "cpu",
                             .seed = 7,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-3, /* large, so that Adam does not blow up the noise of tiny gradients */
                             .weight_decay = 0.1,
                             .clip_grad = 1.0};
}

typedef struct data {
    int32_t tokens[MICROS * B * (S + 1)], document[MICROS * B * S], position[MICROS * B * S];
    float mask[MICROS * B * S];
    int64_t index[MICROS * B];
} data;

static clv_samples samples_make(data *d, int64_t step)
{
    for (int i = 0; i < MICROS * B * (S + 1); i++)
        d->tokens[i] = (int32_t)(clv_uniform_at(11, (uint64_t)(step * 1000 + i)) * VOCAB);
    for (int i = 0; i < MICROS * B * S; i++) {
        const int at = i % S, start = at < 6 ? 0 : 6; /* two documents a sample */
        d->document[i] = start;
        d->position[i] = at - start;
        d->mask[i] = clv_uniform_at(13, (uint64_t)(step * 1000 + i)) < 0.8f ? 1.0f : 0.0f;
    }
    for (int i = 0; i < MICROS * B; i++)
        d->index[i] = step * MICROS * B + i;
    return (clv_samples){MICROS * B, d->tokens, d->mask, d->position, d->document, d->index};
}

/* Largest difference of this rank's box from the same box of the tensor that the lone rank holds, relative to its
 * largest element. */
static double box_error(const clv_mesh *mesh, const clv_param *p, clv_tensor part, clv_tensor whole)
{
    const clv_box box = clv_param_box(mesh, p);
    const int64_t lc = p->ndim > 1 ? part.dim[1] : 1, wc = p->ndim > 1 ? whole.dim[1] : 1;
    const float *x = part.data, *y = whole.data;
    double worst = 0, largest = 1e-30;
    for (int64_t i = 0; i < clv_numel(whole); i++)
        largest = fmax(largest, fabs((double)y[i]));
    for (int64_t i = 0; i < box.count[0]; i++)
        for (int64_t j = 0; j < box.count[1]; j++) {
            const double e = fabs((double)x[i * lc + j] - (double)y[(box.first[0] + i) * wc + box.first[1] + j]);
            worst = isnan(e) ? INFINITY : fmax(worst, e);
        }
    return worst / largest;
}

static int params_expect(clv_comm *world, const variant *v, clv_engine *e, clv_engine *alone, bool gradients)
{
    int failed = 0;
    for (size_t i = 0; i < e->param_count; i++) {
        const clv_param *p = &e->params[i], *q = &alone->params[i];
        const double error = box_error(e->cx.mesh, p, gradients ? p->dw : p->w, gradients ? q->dw : q->w);
        /* a k bias without q and k norms has a true gradient of zero: only noise is there to compare */
        const bool noise = !v->config.qk_norm && strstr(p->name, "linear_k.bias") != NULL;
        EXPECT(noise || error < (gradients ? 1e-5 : 2e-5), "%s: %s of %s off by %.2e", v->name,
               gradients ? "gradient" : "weight", p->name, error);
    }
    return failed;
}

static int steps_expect(clv_comm *world, const variant *v, clv_engine *e, clv_engine *alone)
{
    int failed = 0;
    data d;
    for (int64_t step = 0; step < 3; step++) {
        const clv_samples samples = samples_make(&d, step);
        const clv_step a = clv_engine_gradients(e, &samples, step + 1);
        const clv_step b = clv_engine_gradients(alone, &samples, step + 1);
        EXPECT(fabs(a.loss - b.loss) < 2e-6 * fabs(b.loss), "%s: loss %.8f, alone %.8f", v->name, a.loss, b.loss);
        EXPECT(fabs(a.nll - b.nll) < 2e-6 * fabs(b.nll), "%s: nll %.8f, alone %.8f", v->name, a.nll, b.nll);
        EXPECT(fabs(a.grad_norm - b.grad_norm) < 1e-5 * b.grad_norm, "%s: norm %.8f, alone %.8f", v->name, a.grad_norm,
               b.grad_norm);
        if (step == 0)
            failed += params_expect(world, v, e, alone, true);
        clv_engine_update(e, &a, 1e-3);
        clv_engine_update(alone, &b, 1e-3);
    }
    failed += params_expect(world, v, e, alone, false);
    const clv_status drift = clv_sentinel_check(&e->cx, e->params, e->param_count, &e->optimizer);
    EXPECT(drift.code == CLV_OK, "%s: %s", v->name, drift.text);
    return failed;
}

static int arenas_expect(clv_comm *world, const variant *v, const clv_engine *e)
{
    int failed = 0;
    EXPECT(e->weights.peak == e->planned.weights && e->grads.peak == e->planned.grads &&
               e->moments.peak == e->planned.moments && e->chunk[0].slot[0].save.peak == e->planned.save,
           "%s: arenas differ from the plan: activations %zu, planned %zu", v->name, e->chunk[0].slot[0].save.peak,
           e->planned.save);
    return failed;
}

static int variant_run(clv_comm *world, const variant *v, bool sequence_parallel)
{
    int failed = 0;
    const int tp = clv_comm_size(world);
    const clv_layout layout = {.tp = tp, .kv_heads = (int)v->config.kv_heads};
    clv_comm *self = clv_comm_self_open();
    clv_mesh *mesh, *alone_mesh;
    clv_engine engine, alone;
    const clv_engine_spec spec = spec_of(v, sequence_parallel), alone_spec = spec_of(v, false);
    clv_status st = clv_gpt_check(&v->config, &layout, sequence_parallel, S);
    EXPECT(st.code == CLV_OK, "%s: %s", v->name, st.text);
    clv_mesh_create(&mesh, world, &layout);
    clv_mesh_create(&alone_mesh, self, &(clv_layout){.kv_heads = (int)v->config.kv_heads});
    st = clv_engine_create(&engine, mesh, &spec);
    EXPECT(st.code == CLV_OK, "%s: %s", v->name, st.text);
    clv_engine_create(&alone, alone_mesh, &alone_spec);
    clv_engine_init(&engine, 5);
    clv_engine_init(&alone, 5);
    failed += params_expect(world, v, &engine, &alone, false); /* the same weights are drawn on every layout */
    failed += steps_expect(world, v, &engine, &alone);
    failed += arenas_expect(world, v, &engine);
    clv_engine_destroy(&engine);
    clv_engine_destroy(&alone);
    clv_mesh_destroy(mesh);
    clv_mesh_destroy(alone_mesh);
    clv_comm_world_close(self);
    return failed;
}

static int all_variants(clv_comm *world, bool sequence_parallel)
{
    int failed = 0;
    variant v[16];
    const size_t n = variants_make(v);
    for (size_t i = 0; i < n; i++)
        failed += variant_run(world, &v[i], sequence_parallel);
    return failed;
}

static int replicated_edges(clv_comm *world)
{
    return all_variants(world, false);
}

static int sequence_edges(clv_comm *world)
{
    return all_variants(world, true);
}

int main(int argc, char **argv)
{
    return mpi_test_run(
        &argc, &argv,
        (mpi_case[]){{"replicated edges", replicated_edges}, {"sequence-parallel edges", sequence_edges}, {0}});
}
