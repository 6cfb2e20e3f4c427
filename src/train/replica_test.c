/* nsize: 2 4 */
/* replica_test.c - what several ranks hold stays equal: every replicated parameter's gradient before the update, its
 * weight and moments after fifty, to the bit, over all parameters that are marked so; and the sentinel finds one bit.
 */
#include "comm/mpi_test.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

enum { S = 16, B = 2, VOCAB = 67, STEPS = 50 };

typedef struct run {
    clv_config config;
    bool sequence_parallel;
    clv_mesh *mesh;
    clv_engine engine;
} run;

/* Every kind of record that is replicated: norms, q and k norms, row biases, position table, shared heads. */
static clv_config config_make(bool gpt)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = 32;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = gpt ? 4 : 2;
    c.head_dim = 8;
    c.ffn = 48;
    c.max_positions = S;
    c.init_std = 0.1;
    c.hidden_dropout = 0.1;
    c.attention_dropout = 0.1;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = true;
    if (gpt)
        return c;
    c.norm = CLV_RMSNORM;
    c.act = CLV_SWIGLU;
    c.position = CLV_POS_ROPE;
    c.tied = false;
    c.qk_norm = true;
    return c;
}

static void run_open(run *r, clv_comm *world, int dp)
{
    const clv_layout layout = {.tp = clv_comm_size(world) / dp, .dp = dp, .kv_heads = (int)r->config.kv_heads};
    const clv_engine_spec spec = {.config = &r->config,
                                  .sequence_parallel = r->sequence_parallel,
                                  .vocab_divisor = 1,
                                  .micro_batch = B,
                                  .seq_length = S,
                                  .per_token_loss = true,
                                  .training = true,
                                  .backend = "cpu",
                                  .seed = 3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .weight_decay = 0.1,
                                  .clip_grad = 1.0};
    clv_status st = clv_mesh_create(&r->mesh, world, &layout);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    st = clv_engine_create(&r->engine, r->mesh, &spec);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine_init(&r->engine, 5);
}

static void run_close(run *r)
{
    clv_engine_destroy(&r->engine);
    clv_mesh_destroy(r->mesh);
}

static clv_step step_of(run *r, int64_t iteration)
{
    int32_t tokens[B * (S + 1)];
    int64_t index[B];
    const int64_t dp = clv_mesh_size(r->mesh, CLV_DP), mine = clv_mesh_coord(r->mesh, CLV_DP);
    for (int64_t b = 0; b < B; b++) {
        index[b] = (iteration * dp + mine) * B + b;
        for (int64_t i = 0; i <= S; i++)
            tokens[b * (S + 1) + i] = (int32_t)(clv_uniform_at(9, (uint64_t)(index[b] * 100 + i)) * VOCAB);
    }
    const clv_samples samples = {.count = B, .tokens = tokens, .index = index};
    return clv_engine_gradients(&r->engine, &samples, iteration + 1);
}

/* Are the gradients that several ranks hold bit-equal? */
static clv_status gradients_check(const run *r)
{
    const clv_engine *model = &r->engine;
    clv_param *params = clv_alloc(model->param_count, sizeof *params);
    memcpy(params, model->params, model->param_count * sizeof *params);
    for (size_t i = 0; i < model->param_count; i++)
        params[i].w = params[i].dw;
    clv_ctx cx = r->engine.cx;
    const clv_status st = clv_sentinel_check(&cx, params, model->param_count, NULL);
    free(params);
    return st;
}

static int stay_equal(clv_comm *world, bool gpt, int dp)
{
    int failed = 0;
    for (int edge = CLV_R; edge <= CLV_S0; edge++) {
        run r = {.config = config_make(gpt), .sequence_parallel = edge == CLV_S0};
        run_open(&r, world, dp);
        for (int64_t i = 0; i < STEPS; i++) {
            const clv_step step = step_of(&r, i);
            if (i == 0) {
                const clv_status st = gradients_check(&r);
                EXPECT(st.code == CLV_OK, "gradients: %s", st.text);
            }
            clv_engine_update(&r.engine, &step, 1e-3);
        }
        const clv_status st =
            clv_sentinel_check(&r.engine.cx, r.engine.params, r.engine.param_count, &r.engine.optimizer);
        EXPECT(st.code == CLV_OK, "after %d updates: %s", STEPS, st.text);
        run_close(&r);
    }
    return failed;
}

static int gpt_replicas(clv_comm *world)
{
    return stay_equal(world, true, 1);
}

static int llama_replicas(clv_comm *world)
{
    return stay_equal(world, false, 1);
}

static int data_parallel_replicas(clv_comm *world)
{
    return stay_equal(world, false, 2);
}

/* One bit of one number on the last rank: the lowest of what every element is made of. */
static void flip(clv_comm *world, clv_tensor t)
{
    if (clv_comm_rank(world) == clv_comm_size(world) - 1)
        ((uint32_t *)t.data)[clv_numel(t) - 1] ^= 1;
}

static int flip_expect(clv_comm *world, run *r, size_t i, clv_tensor t)
{
    int failed = 0;
    clv_engine *e = &r->engine;
    const char *name = e->params[i].name;
    flip(world, t);
    const clv_status st = clv_sentinel_check(&e->cx, e->params, e->param_count, &e->optimizer);
    EXPECT(st.code == CLV_CHECK_FAILED && strstr(st.text, name) != NULL, "a flipped bit of %s: %s", name, st.text);
    flip(world, t);
    return failed;
}

static int sentinel_finds_a_bit(clv_comm *world)
{
    int failed = 0, replicated = 0;
    run r = {.config = config_make(false)};
    run_open(&r, world, 1);
    clv_engine *e = &r.engine;
    for (size_t i = 0; i < e->param_count; i++) {
        const clv_param *p = &e->params[i];
        if (clv_mesh_size(r.mesh, CLV_TP & ~p->split_axes) == 1)
            continue;
        replicated++;
        failed += flip_expect(world, &r, i, p->w);
        failed += flip_expect(world, &r, i, e->optimizer.m[i]);
        failed += flip_expect(world, &r, i, e->optimizer.v[i]);
    }
    EXPECT(replicated >= 2 * (2 + 2 + 2) + 1, "only %d parameters are replicated", replicated);
    const clv_status st = clv_sentinel_check(&e->cx, e->params, e->param_count, &e->optimizer);
    EXPECT(st.code == CLV_OK, "with the bits back: %s", st.text);
    run_close(&r);
    return failed;
}

/* One ulp on the last rank is seen, and named; NaN equals NaN. */
static int sentinel_finds_a_decision(clv_comm *world)
{
    int failed = 0;
    const int last = clv_comm_size(world) - 1;
    clv_decision d[] = {{"norm", NAN}, {"count", -3.0}, {"rate", 1e-3}};
    clv_status st = clv_sentinel_decisions(world, d, CLV_COUNT(d));
    EXPECT(st.code == CLV_OK, "equal: %s", st.text);
    if (clv_comm_rank(world) == last)
        d[2].value = nextafter(1e-3, 1.0);
    st = clv_sentinel_decisions(world, d, CLV_COUNT(d));
    EXPECT(last == 0 || (st.code == CLV_CHECK_FAILED && strstr(st.text, "rate") != NULL), "one ulp: %s", st.text);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"gpt", gpt_replicas},
                                     {"llama with q and k norms", llama_replicas},
                                     {"two data-parallel ranks", data_parallel_replicas},
                                     {"the sentinel finds a bit", sentinel_finds_a_bit},
                                     {"the sentinel finds a decision", sentinel_finds_a_decision},
                                     {0}});
}
