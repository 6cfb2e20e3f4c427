/* nsize: 1 2 4 */
/* block_test.c - the row biases count once: with weights of 0 and biases of 1 each half of a layer adds exactly 1.0 on
 * any number of ranks, and the gradient of a bias is the sum over all tokens, once. And each dropout of a layer draws
 * from the stream of its place: scores from the rank's own, the rest from the common one.
 */
#include "model/model_test.h"

static void fill(clv_tensor t, float value)
{
    for (int64_t i = 0; i < clv_numel(t); i++)
        ((float *)t.data)[i] = value;
}

static int all_expect(clv_comm *world, clv_tensor t, float value, const char *what)
{
    int failed = 0;
    for (int64_t i = 0; i < clv_numel(t); i++)
        EXPECT(((const float *)t.data)[i] == value, "%s: element %lld is %.9g, not %.9g", what, (long long)i,
               (double)((const float *)t.data)[i], (double)value);
    return failed;
}

static int biases_once(clv_comm *world, clv_place edge)
{
    int failed = 0;
    rig_spec spec = {.name = "bias", .config = rig_gpt()};
    spec.options = rig_options(&spec.config, edge == CLV_S0);
    rig *r = rig_open(world, &spec);
    rig_forward(r, &r->saved); /* for the scene */
    const clv_param *proj = rig_param(r, "layers.0.self_attention.linear_proj.bias");
    const clv_param *fc2 = rig_param(r, "layers.0.mlp.linear_fc2.bias");
    for (size_t i = 0; i < r->model.param_count; i++) {
        const clv_param *p = &r->model.params[i];
        fill(p->w, p == proj || p == fc2 ? 1.0f : 0.0f);
        fill(p->dw, 0.0f);
    }
    const int64_t rows = edge == CLV_S0 ? RIG_S / clv_comm_size(world) : RIG_S;
    clv_tensor x = clv_new(&r->data, edge, rows, RIG_B, r->config.hidden);
    clv_tensor y = clv_new(&r->data, edge, rows, RIG_B, r->config.hidden);
    fill(x, 0.0f);
    clv_block_saved saved;
    clv_block_forward(&r->cx, y, x, &r->model.blocks[0], &r->saved.scene, &saved);
    failed += all_expect(world, saved.x1, 1.0f, "after attention");
    failed += all_expect(world, y, 2.0f, "after the mlp");

    fill(y, 1.0f);
    clv_block_backward(&r->cx, y, &r->model.blocks[0], &r->saved.scene, &saved);
    clv_gradient_sum(&r->cx, r->model.params, r->model.param_count);
    failed += all_expect(world, proj->dw, RIG_S * RIG_B, "gradient of the projection's bias");
    failed += all_expect(world, fc2->dw, RIG_S * RIG_B, "gradient of the mlp's bias");
    rig_close(r);
    return failed;
}

static int replicated_edge(clv_comm *world)
{
    return biases_once(world, CLV_R);
}

static int sequence_edge(clv_comm *world)
{
    return biases_once(world, CLV_S0);
}

/* ---- which stream each dropout draws from ------------------------------------------------------------------------ */

static bool equal_over_ranks(const rig *r, uint64_t key)
{
    const double top = 0x1p32, mine = (double)(key >> 32);
    double ends[2] = {mine, top - mine};
    clv_all_reduce(clv_mesh_comm(r->mesh, CLV_TP), ends, ends, 2, CLV_F64, CLV_MAX);
    return ends[0] == top - ends[1];
}

static int streams(clv_comm *world)
{
    int failed = 0;
    const int t = clv_comm_size(world);
    for (int edge = CLV_R; edge <= CLV_S0; edge++) {
        rig_spec spec = {.name = "dropout", .config = rig_gpt()};
        spec.config.hidden_dropout = spec.config.attention_dropout = 0.5;
        spec.options = rig_options(&spec.config, edge == CLV_S0);
        rig *r = rig_open(world, &spec);
        rig_forward(r, &r->saved);
        const clv_block_saved *a = &r->saved.blocks[0], *b = &r->saved.blocks[1];
        const int64_t first = edge == CLV_S0 ? RIG_S / t * clv_comm_rank(world) : 0;
        EXPECT(equal_over_ranks(r, a->attention.drop.key) == (t == 1), "scores");
        EXPECT(equal_over_ranks(r, a->drop1.key) && equal_over_ranks(r, a->drop2.key), "after g");
        EXPECT(a->drop1.first == first && a->drop2.first == first, "rows from %lld", (long long)a->drop1.first);
        EXPECT(a->drop1.key != a->drop2.key && a->drop1.key != b->drop1.key && a->drop2.key != b->drop2.key &&
                   a->attention.drop.key != b->attention.drop.key,
               "two places draw one mask");
        EXPECT(r->rng.depth == 0, "%d streams are still forked", r->rng.depth);
        rig_close(r);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"biases, replicated edge", replicated_edge},
                                     {"biases, sequence shards", sequence_edge},
                                     {"streams", streams},
                                     {0}});
}
