/* nsize: 1 2 4 8 */
/* distributed_test.c - the distributed optimizer against the plain one on the same layout: after every step the same
 * weights and moments, bit for bit, and equal over the data-parallel ranks; and its memory by the arenas, exactly.
 */
#include "comm/mpi_test.h"
#include "train/train.h"

#include <string.h>

enum { S = 48, B = 2, MICROS = 4, VOCAB = 67, STEPS = 4 }; /* S B: more rows than a weight gradient takes at once */

typedef struct row {
    int ranks, tp, pp, chunks;
    bool llama, sequence_parallel;
} row;

static const row rows[] = {
    {.ranks = 1, .tp = 1, .pp = 1}, {.ranks = 2, .tp = 1, .pp = 1, .llama = true},
    {.ranks = 4, .tp = 1, .pp = 1}, {.ranks = 4, .tp = 2, .pp = 1, .llama = true, .sequence_parallel = true},
    {.ranks = 4, .tp = 1, .pp = 2}, {.ranks = 4, .tp = 1, .pp = 2, .chunks = 2},
    {.ranks = 8, .tp = 1, .pp = 4}, {.ranks = 8, .tp = 2, .pp = 2, .llama = true, .sequence_parallel = true},
};

static clv_config config_make(bool llama)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = 24; /* no multiple of 64: shares cut through parameters */
    c.layers = 4;
    c.heads = 4;
    c.kv_heads = llama ? 2 : 4;
    c.head_dim = 6;
    c.ffn = 40;
    c.max_positions = S;
    c.init_std = 0.1;
    c.hidden_dropout = c.attention_dropout = 0.1;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    if (llama) {
        c.norm = CLV_RMSNORM;
        c.act = CLV_SWIGLU;
        c.position = CLV_POS_ROPE;
        c.tied = false;
        c.qk_norm = true;
    }
    return c;
}

typedef struct bench {
    clv_config config;
    clv_stages stages;
    clv_mesh *mesh;
} bench;

static void engine_open(clv_engine *e, const bench *w, const row *r, bool distributed, bool overlap)
{
    const clv_engine_spec spec = {.config = &w->config,
                                  .stages = &w->stages,
                                  .sequence_parallel = r->sequence_parallel,
                                  .vocab_divisor = 1,
                                  .micro_batch = B,
                                  .micros = MICROS,
                                  .seq_length = S,
                                  .per_token_loss = true,
                                  .training = true,
                                  .distributed_optimizer = distributed,
                                  .overlap_grad_reduce = overlap,
                                  .backend = "cpu",
                                  .seed = 3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .clip_grad = 0.5};
    const clv_status st = clv_engine_create(e, w->mesh, &spec);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine_init(e, 5);
}

static clv_step step(clv_engine *e, int64_t iteration)
{
    int32_t tokens[MICROS * B * (S + 1)];
    int64_t index[MICROS * B];
    const int64_t dp = clv_mesh_size(e->cx.mesh, CLV_DP), mine = clv_mesh_coord(e->cx.mesh, CLV_DP);
    for (int64_t b = 0; b < MICROS * B; b++) {
        index[b] = (iteration * dp + mine) * MICROS * B + b;
        for (int64_t i = 0; i <= S; i++)
            tokens[b * (S + 1) + i] = (int32_t)(clv_uniform_at(9, (uint64_t)(index[b] * 100 + i)) * VOCAB);
    }
    const clv_samples samples = {.count = MICROS * B, .tokens = tokens, .index = index};
    const clv_step s = clv_engine_gradients(e, &samples, iteration + 1);
    clv_engine_update(e, &s, 1e-2);
    return s;
}

static bool same(clv_tensor a, clv_tensor b)
{
    return clv_bytes(a) == clv_bytes(b) && (clv_bytes(a) == 0 || memcmp(a.data, b.data, clv_bytes(a)) == 0);
}

/* Weights whole, moments in what this rank owns. */
static int state_expect(clv_comm *world, const clv_engine *plain, const clv_engine *other)
{
    int failed = 0;
    for (size_t i = 0; i < plain->param_count; i++) {
        const clv_param *p = &other->params[i];
        if (!p->here)
            continue;
        const clv_extent own = clv_param_own(p);
        EXPECT(same(plain->params[i].w, p->w), "weight %s", p->name);
        EXPECT(same(clv_elements(plain->optimizer.m[i], own), other->optimizer.m[i]), "first moment of %s", p->name);
        EXPECT(same(clv_elements(plain->optimizer.v[i], own), other->optimizer.v[i]), "second moment of %s", p->name);
    }
    return failed;
}

/* 4 bytes of weight, 4 of gradient, 8 / dp of moments, over all that the buckets hold. */
static int bytes_expect(clv_comm *world, const clv_engine *e)
{
    int failed = 0;
    const size_t dp = (size_t)clv_mesh_size(e->cx.mesh, CLV_DP);
    size_t n = 0, filled = 0, buckets = 0, records = 0;
    for (int c = 0; c < e->chunks; c++) {
        buckets += e->chunk[c].model.bucket_count;
        records += e->chunk[c].model.param_count;
        for (size_t b = 0; b < e->chunk[c].model.bucket_count; b++)
            n += (size_t)clv_numel(e->chunk[c].model.buckets[b].w);
        for (size_t i = 0; i < e->chunk[c].model.param_count; i++)
            filled += (size_t)clv_numel(e->chunk[c].model.params[i].w);
    }
    EXPECT(n - filled < 64 * (records + dp * buckets), "%zu elements of which %zu are padding", n, n - filled);
    EXPECT(e->grads.used == 4 * n, "%zu bytes of gradients for %zu elements", e->grads.used, n);
    EXPECT(e->moments.used == 8 * n / dp, "%zu bytes of moments for %zu elements", e->moments.used, n);
    return failed;
}

static int row_expect(clv_comm *world, const row *r)
{
    int failed = 0;
    bench w = {.config = config_make(r->llama)};
    const int chunks = CLV_MAX(r->chunks, 1), parts = r->pp * chunks;
    const clv_layout layout = {
        .tp = r->tp, .dp = clv_comm_size(world) / r->tp / r->pp, .pp = r->pp, .kv_heads = (int)w.config.kv_heads};
    w.stages = (clv_stages){.layers = clv_alloc((size_t)parts, sizeof(int64_t)), .parts = parts, .stages = r->pp};
    for (int i = 0; i < parts; i++)
        w.stages.layers[i] = w.config.layers / parts;
    clv_status st = clv_mesh_create(&w.mesh, world, &layout);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine plain, other[3];
    engine_open(&plain, &w, r, false, false);
    for (int i = 0; i < 3; i++)
        engine_open(&other[i], &w, r, i != 0, i != 1); /* overlap, distributed, both */
    for (int64_t k = 0; k < STEPS; k++) {
        const clv_step a = step(&plain, k);
        for (int i = 0; i < 3; i++) {
            const clv_step b = step(&other[i], k);
            EXPECT(memcmp(&a.grad_norm, &b.grad_norm, sizeof a.grad_norm) == 0, "norms %.17g, %.17g", a.grad_norm,
                   b.grad_norm);
            failed += state_expect(world, &plain, &other[i]);
            st = clv_sentinel_check(&other[i].cx, other[i].params, other[i].param_count, &other[i].optimizer);
            EXPECT(st.code == CLV_OK, "step %lld: %s", (long long)k, st.text);
        }
    }
    failed += bytes_expect(world, &other[1]);
    clv_engine_destroy(&plain);
    for (int i = 0; i < 3; i++)
        clv_engine_destroy(&other[i]);
    clv_mesh_destroy(w.mesh);
    clv_stages_free(&w.stages);
    return failed;
}

static int equal_to_plain(clv_comm *world)
{
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(rows); i++)
        if (rows[i].ranks == clv_comm_size(world))
            failed += row_expect(world, &rows[i]);
    return failed;
}

/* 16-bit weights: 2 bytes of weight, 4 of gradient, 12 / dp of master and moments, whatever rank is asked. */
static int half_weights(clv_comm *world)
{
    int failed = 0;
    const clv_config config = config_make(false);
    const clv_model_options options = {.vocab_divisor = 1,
                                       .layers = config.layers,
                                       .has_embedding = true,
                                       .has_head = true,
                                       .distributed_optimizer = true};
    for (int dp = 1; dp <= 8; dp *= 2) {
        clv_comm *all = clv_comm_fake_open(dp - 1, dp);
        clv_mesh *mesh;
        clv_gpt model;
        clv_optimizer optimizer;
        clv_arena weights = clv_arena_counting("weights"), grads = weights, moments = weights;
        weights.dtype = CLV_BF16;
        const clv_status st = clv_mesh_create(&mesh, all, &(clv_layout){.dp = dp});
        CLV_CHECK(st.code == CLV_OK, "%s", st.text);
        clv_gpt_create(&model, &config, &options, mesh, &weights, &grads);
        clv_optimizer_create(&optimizer, model.params, model.param_count, &moments);
        const size_t n = grads.peak / 4;
        EXPECT(weights.peak == 2 * n, "%zu bytes of weights for %zu elements", weights.peak, n);
        EXPECT(moments.peak * (size_t)dp == 12 * n, "%zu bytes of state for %zu elements over %d ranks", moments.peak,
               n, dp);
        clv_optimizer_destroy(&optimizer);
        clv_gpt_destroy(&model);
        clv_mesh_destroy(mesh);
        clv_comm_world_close(all);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(
        &argc, &argv,
        (mpi_case[]){{"equal to the plain optimizer", equal_to_plain}, {"bytes of 16-bit weights", half_weights}, {0}});
}
