/* nsize: 1 2 4 */
/* plan_test.c - the plan is exact: after a step, an update and an evaluation each arena has been used to the byte that
 * was counted beforehand, and every rank's plan can be had on any other.
 */
#include "comm/mpi_test.h"
#include "train/train.h"

#include <string.h>

enum { S = 32, B = 2, MICROS = 2, VOCAB = 67 };

typedef struct variant {
    const char *name;
    bool llama, sequence_parallel, documents, inference, distributed;
    double dropout;
    int64_t kv_heads, divisor;
    int dp;
    clv_dtype dtype;
} variant;

static const variant VARIANTS[] = {
    {"gpt", .kv_heads = 8, .divisor = 1, .dp = 1},
    {"gpt, sequence shards", .sequence_parallel = true, .kv_heads = 8, .divisor = 128, .dp = 1},
    {"gpt, dropout", .dropout = 0.1, .kv_heads = 8, .divisor = 1, .dp = 1},
    {"gpt, dropout, sequence shards", .sequence_parallel = true, .dropout = 0.1, .kv_heads = 8, .divisor = 1, .dp = 1},
    {"llama", .llama = true, .kv_heads = 8, .divisor = 1, .dp = 1},
    {"llama, 2 heads, documents", .llama = true, .documents = true, .kv_heads = 2, .divisor = 1, .dp = 1},
    {"llama, 1 head, sequence shards", .llama = true, .sequence_parallel = true, .kv_heads = 1, .divisor = 8, .dp = 1},
    {"llama, evaluation", .llama = true, .inference = true, .kv_heads = 8, .divisor = 1, .dp = 1},
    {"llama, data-parallel", .llama = true, .dropout = 0.1, .kv_heads = 8, .divisor = 1, .dp = 2},
    {"llama, bf16", .llama = true, .kv_heads = 2, .divisor = 1, .dp = 1, .dtype = CLV_BF16},
    {"gpt, f16, sequence shards", .sequence_parallel = true, .dropout = 0.1, .kv_heads = 8, .divisor = 1, .dp = 1,
     .dtype = CLV_F16},
    {"gpt, bf16, distributed optimizer", .distributed = true, .kv_heads = 8, .divisor = 1, .dp = 2, .dtype = CLV_BF16},
    {"gpt, distributed optimizer", .distributed = true, .sequence_parallel = true, .kv_heads = 8, .divisor = 1,
     .dp = 2},
};

static clv_config config_make(const variant *v)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = 64;
    c.layers = 2;
    c.heads = 8;
    c.kv_heads = v->kv_heads;
    c.head_dim = 16;
    c.ffn = 96;
    c.max_positions = S;
    c.hidden_dropout = c.attention_dropout = v->dropout;
    c.bias_qkv = c.bias_proj = c.bias_fc1 = c.bias_fc2 = !v->llama;
    if (v->llama) {
        c.norm = CLV_RMSNORM;
        c.act = CLV_SWIGLU;
        c.position = CLV_POS_ROPE;
        c.qk_norm = v->kv_heads == 2;
        c.window = v->kv_heads == 1 ? 5 : 0;
        c.tied = false;
    }
    return c;
}

static void use(clv_engine *e, bool training)
{
    static const int64_t index[MICROS * B] = {0, 1, 2, 3};
    int32_t tokens[MICROS * B * (S + 1)], document[MICROS * B * S];
    for (int i = 0; i < MICROS * B * (S + 1); i++)
        tokens[i] = (int32_t)(clv_uniform_at(4, (uint64_t)i) * VOCAB);
    for (int i = 0; i < MICROS * B * S; i++)
        document[i] = i % S < 9 ? 0 : 9;
    const clv_samples samples = {.count = MICROS * B, .tokens = tokens, .document = document, .index = index};
    double nll = 0;
    int64_t counted = 0;
    e->temp.peak = 0; /* drawing the weights passed through it */
    if (training) {
        const clv_step step = clv_engine_gradients(e, &samples, 1);
        clv_engine_update(e, &step, 1e-3);
    }
    clv_engine_evaluate(e, &samples, &nll, &counted);
}

static int variant_expect(clv_comm *world, const variant *v)
{
    int failed = 0;
    const clv_config config = config_make(v);
    const int dp = clv_comm_size(world) % v->dp == 0 ? v->dp : 1, tp = clv_comm_size(world) / dp;
    const clv_layout layout = {.tp = tp, .dp = dp, .kv_heads = (int)config.kv_heads};
    const clv_engine_spec spec = {.config = &config,
                                  .sequence_parallel = v->sequence_parallel,
                                  .vocab_divisor = v->divisor,
                                  .micro_batch = B,
                                  .seq_length = S,
                                  .per_token_loss = true,
                                  .training = !v->inference,
                                  .documents = v->documents,
                                  .dtype = v->dtype,
                                  .distributed_optimizer = v->distributed,
                                  .overlap_grad_reduce = v->distributed,
                                  .backend = "cpu",
                                  .clip_grad = 1.0};
    clv_mesh *mesh;
    clv_engine e;
    clv_status st = clv_mesh_create(&mesh, world, &layout);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    st = clv_engine_create(&e, mesh, &spec);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine_init(&e, 5);
    use(&e, !v->inference);

    const clv_engine_bytes plan = clv_engine_plan(&spec, &layout, clv_comm_rank(world));
    EXPECT(memcmp(&plan, &e.planned, sizeof plan) == 0, "%s: two plans of one thing differ", v->name);
    const clv_arena *const arenas[] = {&e.weights, &e.grads, &e.moments, &e.save, &e.temp};
    const size_t planned[] = {plan.weights, plan.grads, plan.moments, plan.save, plan.temp};
    for (size_t i = 0; i < CLV_COUNT(arenas); i++)
        EXPECT(arenas[i]->peak == planned[i], "%s: %s took %zu bytes, planned %zu", v->name, arenas[i]->name,
               arenas[i]->peak, planned[i]);
    const clv_arena *slot = &e.chunk[0].slot[0].save; /* cut out of the activations; the step must fill it exactly */
    EXPECT(slot->peak == slot->size && e.temp.used == 0,
           "%s: a slot of %zu bytes took %zu; %zu bytes of scratch are in use", v->name, slot->size, slot->peak,
           e.temp.used);
    clv_engine_destroy(&e);
    clv_mesh_destroy(mesh);
    return failed;
}

static int every_variant(clv_comm *world)
{
    int failed = 0;
    for (size_t i = 0; i < CLV_COUNT(VARIANTS); i++)
        failed += variant_expect(world, &VARIANTS[i]);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv, (mpi_case[]){{"every arena to the byte", every_variant}, {0}});
}
