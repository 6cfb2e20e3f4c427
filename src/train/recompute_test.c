/* nsize: 1 2 4 */
/* recompute_test.c - activations that are computed again are the ones that were thrown away: losses, gradients and
 * weights bit-equal to keeping everything, dropout included, for every kind and every uneven group; and each kind saves
 * what it says, to the byte.
 */
#include "comm/mpi_test.h"
#include "train/train.h"

#include <string.h>

enum { S = 16, B = 2, MICROS = 4, VOCAB = 67, HEADS = 8, D = 8, H = 64, FFN = 128, STEPS = 2 };

typedef struct setting {
    int tp, pp;
    bool sequence_parallel;
    int64_t layers;
    clv_recompute recompute;
} setting;

static const clv_recompute kinds[] = {
    {.modules = CLV_RECOMPUTE_CORE_ATTN},
    {.modules = CLV_RECOMPUTE_LAYERNORM},
    {.modules = CLV_RECOMPUTE_MLP_ACT},
    {.modules = CLV_RECOMPUTE_MLP},
    {.modules = CLV_RECOMPUTE_CORE_ATTN | CLV_RECOMPUTE_LAYERNORM | CLV_RECOMPUTE_MLP_ACT | CLV_RECOMPUTE_MLP},
    {.method = CLV_RECOMPUTE_UNIFORM, .layers = 1},
    {.method = CLV_RECOMPUTE_UNIFORM, .layers = 2},
    {.method = CLV_RECOMPUTE_BLOCK, .layers = 1}};

static clv_config config_make(int64_t layers)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = H;
    c.layers = layers;
    c.heads = c.kv_heads = HEADS;
    c.head_dim = D;
    c.ffn = FFN;
    c.max_positions = S;
    c.hidden_dropout = c.attention_dropout = 0.1;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    return c;
}

static clv_engine_spec spec_of(const setting *k, const clv_config *config)
{
    return (clv_engine_spec){.config = config,
                             .recompute = k->recompute,
                             .sequence_parallel = k->sequence_parallel,
                             .vocab_divisor = 1,
                             .micro_batch = B,
                             .seq_length = S,
                             .micros = MICROS,
                             .per_token_loss = true,
                             .training = true,
                             .backend = "cpu",
                             .seed = 3,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .clip_grad = 1.0};
}

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

typedef struct outcome { /* of some steps on this rank; the caller frees */
    clv_step step[STEPS];
    float *values; /* gradients of the last step, then weights */
    int64_t count;
} outcome;

static void outcome_add(outcome *out, clv_tensor t)
{
    out->values = clv_resize(out->values, (size_t)(out->count + clv_numel(t)), sizeof *out->values);
    memcpy(out->values + out->count, t.data, clv_bytes(t));
    out->count += clv_numel(t);
}

static outcome outcome_of(clv_comm *world, const setting *k)
{
    outcome out = {.count = 0};
    clv_config config = config_make(k->layers);
    clv_stages stages = {.layers = clv_alloc((size_t)k->pp, sizeof(int64_t)), .parts = k->pp, .stages = k->pp};
    for (int i = 0; i < k->pp; i++)
        stages.layers[i] = k->layers / k->pp;
    clv_engine_spec spec = spec_of(k, &config);
    spec.stages = &stages;
    clv_mesh *mesh;
    clv_engine e;
    clv_status st = clv_mesh_create(&mesh, world, &(clv_layout){.tp = k->tp, .pp = k->pp, .kv_heads = HEADS});
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    st = clv_engine_create(&e, mesh, &spec);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine_init(&e, 5);
    for (int64_t n = 0; n < STEPS; n++) {
        int32_t tokens[MICROS * B * (S + 1)];
        int64_t index[MICROS * B];
        for (int i = 0; i < MICROS * B * (S + 1); i++)
            tokens[i] = (int32_t)(clv_uniform_at(9, (uint64_t)(n * 1000 + i)) * VOCAB);
        for (int i = 0; i < MICROS * B; i++)
            index[i] = n * MICROS * B + i;
        const clv_samples samples = {.count = MICROS * B, .tokens = tokens, .index = index};
        out.step[n] = clv_engine_gradients(&e, &samples, n + 1);
        clv_engine_update(&e, &out.step[n], 1e-3);
    }
    for (size_t i = 0; i < e.param_count; i++)
        if (e.params[i].here) {
            outcome_add(&out, e.params[i].dw);
            outcome_add(&out, e.params[i].w);
        }
    CLV_CHECK(e.rng.depth == 0 && e.temp.used == 0, "a stream or scratch is left over");
    CLV_CHECK(e.save.peak == e.planned.save && e.chunk[0].slot[0].save.peak == e.chunk[0].slot[0].save.size,
              "a slot of %zu bytes took %zu", e.chunk[0].slot[0].save.size, e.chunk[0].slot[0].save.peak);
    clv_engine_destroy(&e);
    clv_mesh_destroy(mesh);
    clv_stages_free(&stages);
    return out;
}

static bool same_steps(const outcome *a, const outcome *b)
{
    for (int i = 0; i < STEPS; i++) {
        const clv_step *x = &a->step[i], *y = &b->step[i];
        if (x->loss != y->loss || x->nll != y->nll || x->grad_norm != y->grad_norm || x->counted != y->counted)
            return false;
    }
    return true;
}

static int same_expect(clv_comm *world, const outcome *want, const setting *k)
{
    int failed = 0;
    outcome got = outcome_of(world, k);
    EXPECT(same_steps(want, &got) && want->count == got.count &&
               memcmp(want->values, got.values, (size_t)got.count * sizeof *got.values) == 0,
           "tp %d%s, pp %d, %d layers, modules %u, method %d of %d: loss %.9f, not %.9f", k->tp,
           k->sequence_parallel ? "sp" : "", k->pp, (int)k->layers, k->recompute.modules, (int)k->recompute.method,
           (int)k->recompute.layers, got.step[STEPS - 1].loss, want->step[STEPS - 1].loss);
    free(got.values);
    return failed;
}

static int every_kind_replays(clv_comm *world)
{
    int failed = 0;
    for (int pp = 1; pp <= clv_comm_size(world) && pp <= 2; pp++)
        for (int sequence_parallel = 0; sequence_parallel <= 1; sequence_parallel++) {
            setting k = {clv_comm_size(world) / pp, pp, sequence_parallel == 1, 4, {0}};
            outcome kept = outcome_of(world, &k);
            for (size_t i = 0; i < CLV_COUNT(kinds); i++) {
                k.recompute = kinds[i];
                failed += same_expect(world, &kept, &k);
            }
            free(kept.values);
        }
    return failed;
}

/* 24 layers in groups of 7, 7, 7, 3; of one, of all, of more than there are; five layers a stage in groups of two. */
static int uneven_groups(clv_comm *world)
{
    static const int64_t groups[] = {7, 1, 24, 30, 2};
    int failed = 0;
    const int pp = clv_comm_size(world) == 2 ? 2 : 1;
    for (int method = CLV_RECOMPUTE_UNIFORM; method <= CLV_RECOMPUTE_BLOCK && clv_comm_size(world) <= 2; method++) {
        setting k = {1, pp, false, pp == 1 ? 24 : 10, {0}};
        outcome kept = outcome_of(world, &k);
        for (size_t i = 0; i < CLV_COUNT(groups); i++) {
            k.recompute = (clv_recompute){.method = (clv_recompute_method)method, .layers = groups[i]};
            failed += same_expect(world, &kept, &k);
        }
        free(kept.values);
    }
    return failed;
}

/* ---- what is saved, by the plan ---------------------------------------------------------------------------------- */

static int64_t saved_by(const setting *k)
{
    const clv_config config = config_make(k->layers);
    const clv_engine_spec spec = spec_of(k, &config);
    const clv_layout layout = {.tp = k->tp, .kv_heads = HEADS};
    return (int64_t)clv_engine_plan(&spec, &layout, 0).save;
}

/* Bytes that one more layer saves; four are the smallest number that all groups here divide. */
static int64_t of_a_layer(setting k)
{
    k.layers = 4;
    const int64_t few = saved_by(&k);
    k.layers = 8;
    return (saved_by(&k) - few) / 4;
}

/* Elements that a mode does without, of a layer without recomputation. */
static int64_t dropped(const setting *k)
{
    const int64_t edge = S * B * H / (k->sequence_parallel ? k->tp : 1), wide = S * B * FFN / k->tp;
    switch (k->recompute.modules) {
    case CLV_RECOMPUTE_CORE_ATTN:
        return S * B * HEADS * (D + 1) / k->tp; /* the output and the log of the sum of each row */
    case CLV_RECOMPUTE_LAYERNORM:
        return 2 * edge;
    case CLV_RECOMPUTE_MLP_ACT:
        return wide;
    case CLV_RECOMPUTE_MLP:
        return 2 * wide;
    default:
        return S * B * HEADS * (D + 1) / k->tp + 2 * edge + 2 * wide;
    }
}

static int saved_expect(clv_comm *world, setting k)
{
    int failed = 0;
    const int64_t all = of_a_layer(k), edge = S * B * H / (k.sequence_parallel ? k.tp : 1);
    for (size_t i = 0; i < CLV_COUNT(kinds); i++) {
        k.recompute = kinds[i];
        const clv_recompute *r = &k.recompute;
        const int64_t got = of_a_layer(k);
        const int64_t want = r->method == CLV_RECOMPUTE_UNIFORM ? edge * 4 / r->layers
                             : r->method == CLV_RECOMPUTE_BLOCK ? all
                                                                : all - 4 * dropped(&k);
        EXPECT(got == want, "tp %d%s, kind %zu: a layer saves %lld bytes, not %lld; all are %lld", k.tp,
               k.sequence_parallel ? "sp" : "", i, (long long)got, (long long)want, (long long)all);
    }
    k.layers = 4; /* block: the first layers keep their input alone */
    k.recompute = (clv_recompute){0};
    const int64_t kept = saved_by(&k);
    k.recompute = (clv_recompute){.method = CLV_RECOMPUTE_BLOCK, .layers = 3};
    const int64_t less = kept - saved_by(&k);
    EXPECT(less == 3 * (all - 4 * edge), "three layers of four save %lld bytes, not %lld", (long long)less,
           (long long)(3 * (all - 4 * edge)));
    return failed;
}

static int what_is_saved(clv_comm *world)
{
    int failed = 0;
    for (int tp = 1; tp <= 8 && clv_comm_size(world) == 1; tp *= 2)
        for (int sequence_parallel = 0; sequence_parallel <= 1; sequence_parallel++)
            failed += saved_expect(world, (setting){tp, 1, sequence_parallel == 1, 4, {0}});
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"every kind replays", every_kind_replays},
                                     {"uneven groups", uneven_groups},
                                     {"what is saved", what_is_saved},
                                     {0}});
}
