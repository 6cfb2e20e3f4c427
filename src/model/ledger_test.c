/* nsize: 1 2 4 */
/* ledger_test.c - what each part of the model sends over tp, in calls and bytes, against the equations:
 *
 *                 replicated edge          sequence shards
 *   embedding     1 all-reduce             1 reduce-scatter; backward 1 all-gather
 *   layer         2 all-reduces            2 all-gathers, 2 reduce-scatters
 *     backward    2 all-reduces            2 all-gathers of dy, 2 of the inputs again, 2 reduce-scatters
 *   head          3 small all-reduces      the same, and 1 all-gather
 *     backward    1 all-reduce             1 reduce-scatter
 */
#include "model/model_test.h"

typedef struct calls { /* of the edge's size */
    int64_t all_reduce, reduce_scatter, all_gather;
    int64_t small, small_bytes; /* all-reduces of a few numbers a token */
} calls;

typedef struct part {
    const char *name;
    void (*run)(rig *r, clv_tensor x);
    calls edge[2]; /* R, S0 */
} part;

enum { LOSS_BYTES = 4 * RIG_S * RIG_B };

static void embedding_forward(rig *r, clv_tensor x)
{
    clv_embedding_forward(&r->cx, x, &r->model.embedding, &r->saved.scene);
}

static void embedding_backward(rig *r, clv_tensor x)
{
    clv_embedding_backward(&r->cx, x, &r->model.embedding, &r->saved.scene);
}

static void layer_forward(rig *r, clv_tensor x)
{
    clv_block_forward(&r->cx, x, r->saved.blocks[0].x, &r->model.blocks[0], &r->saved.scene, &r->saved.blocks[0]);
}

static void layer_backward(rig *r, clv_tensor x)
{
    clv_block_backward(&r->cx, x, &r->model.blocks[0], &r->saved.scene, &r->saved.blocks[0]);
}

static void head_forward(rig *r, clv_tensor x)
{
    clv_head_forward(&r->cx, x, &r->model.head, &r->saved.scene, r->losses, &r->saved.head);
}

static void head_backward(rig *r, clv_tensor x)
{
    clv_head_backward(&r->cx, x, &r->model.head, &r->saved.head);
}

static void smoothed_head(rig *r, clv_tensor x)
{
    r->model.head.smoothing = 0.1f;
    head_forward(r, x);
    r->model.head.smoothing = 0.0f;
}

/* Two layers, and both ends. */
static void whole(rig *r, clv_tensor x)
{
    (void)x;
    rig_forward(r, &r->saved);
    clv_gpt_backward(&r->cx, &r->model, (clv_tensor){0}, &r->saved, NULL);
}

static const part PARTS[] = {
    {"embedding", embedding_forward, {{.all_reduce = 1}, {.reduce_scatter = 1}}},
    {"layer", layer_forward, {{.all_reduce = 2}, {.all_gather = 2, .reduce_scatter = 2}}},
    {"head",
     head_forward,
     {{.small = 3, .small_bytes = 3 * LOSS_BYTES}, {.small = 3, .small_bytes = 3 * LOSS_BYTES, .all_gather = 1}}},
    {"head, smoothed",
     smoothed_head,
     {{.small = 3, .small_bytes = 4 * LOSS_BYTES}, {.small = 3, .small_bytes = 4 * LOSS_BYTES, .all_gather = 1}}},
    {"head's backward", head_backward, {{.all_reduce = 1}, {.reduce_scatter = 1}}},
    {"layer's backward", layer_backward, {{.all_reduce = 2}, {.all_gather = 4, .reduce_scatter = 2}}},
    {"embedding's backward", embedding_backward, {{0}, {.all_gather = 1}}},
    {"all of it",
     whole,
     {{.all_reduce = 1 + 2 * 4 + 1, .small = 3, .small_bytes = 3 * LOSS_BYTES},
      {.all_gather = 1 + 2 * 6 + 1, .reduce_scatter = 1 + 2 * 4 + 1, .small = 3, .small_bytes = 3 * LOSS_BYTES}}},
};

static int part_expect(clv_comm *world, rig *r, const part *p, clv_place edge)
{
    int failed = 0;
    const int64_t tp = clv_comm_size(world), live = tp > 1, rows = edge == CLV_S0 ? RIG_S / tp : RIG_S;
    clv_tensor x = clv_new(&r->data, edge, rows, RIG_B, r->config.hidden);
    clv_mesh_traffic_reset(r->mesh);
    p->run(r, x);
    const calls e = p->edge[edge];
    const int64_t whole_edge = RIG_S * RIG_B * r->config.hidden * 4;
    clv_traffic expected[CLV_TRAFFIC_KINDS] = {
        [CLV_ALL_REDUCE] = {e.all_reduce + e.small, e.all_reduce * whole_edge + e.small_bytes},
        [CLV_REDUCE_SCATTER] = {e.reduce_scatter, e.reduce_scatter * whole_edge},
        [CLV_ALL_GATHER] = {e.all_gather, e.all_gather * whole_edge}};
    for (int kind = 0; kind < CLV_TRAFFIC_KINDS; kind++) {
        const clv_traffic sent = clv_comm_traffic(clv_mesh_comm(r->mesh, CLV_TP), (clv_traffic_kind)kind);
        EXPECT(sent.calls == live * expected[kind].calls && sent.bytes == live * expected[kind].bytes,
               "%s, edge %s: %lld %s of %lld bytes, not %lld of %lld", p->name, clv_place_name(edge),
               (long long)sent.calls, clv_traffic_kind_name((clv_traffic_kind)kind), (long long)sent.bytes,
               (long long)expected[kind].calls, (long long)expected[kind].bytes);
    }
    return failed;
}

static int every_part(clv_comm *world)
{
    int failed = 0;
    for (int edge = CLV_R; edge <= CLV_S0; edge++) {
        rig_spec spec = {.name = "gpt", .config = rig_gpt()};
        spec.options = rig_options(&spec.config, edge == CLV_S0);
        rig *r = rig_open(world, &spec);
        rig_gradients(r);
        for (size_t i = 0; i < CLV_COUNT(PARTS); i++)
            failed += part_expect(world, r, &PARTS[i], (clv_place)edge);
        rig_close(r);
    }
    return failed;
}

/* After the backward: nothing is left to sum at a replicated edge; with sequence shards one message does for all. */
static int gradient_sums(clv_comm *world)
{
    int failed = 0;
    for (int edge = CLV_R; edge <= CLV_S0; edge++) {
        rig_spec spec = {.name = "gpt", .config = rig_gpt()};
        spec.options = rig_options(&spec.config, edge == CLV_S0);
        rig *r = rig_open(world, &spec);
        clv_mesh_traffic_reset(r->mesh);
        clv_gradient_sum(&r->cx, r->model.params, r->model.param_count);
        const clv_traffic sent = clv_comm_traffic(clv_mesh_comm(r->mesh, CLV_TP), CLV_ALL_REDUCE);
        const int64_t h = r->config.hidden,
                      numbers = RIG_S * h + 2 * (2 + 4) * h + 2 * h; /* table, layers, last norm */
        const bool live = edge == CLV_S0 && clv_comm_size(world) > 1;
        EXPECT(sent.calls == live && sent.bytes == live * numbers * 4, "edge %s: %lld messages, %lld bytes",
               clv_place_name((clv_place)edge), (long long)sent.calls, (long long)sent.bytes);
        rig_close(r);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"every part", every_part}, {"sums of gradients", gradient_sums}, {0}});
}
