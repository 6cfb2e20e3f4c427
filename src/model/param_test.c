/* nsize: 1 2 4 8 */
/* param_test.c - records: the same weights on every layout, bit for bit, with the spread that was asked for; which part
 * of a whole each rank holds; and over which ranks each gradient is still a partial sum.
 */
#include "model/model_test.h"

/* 2 layers, 8 heads of 8; every kind of record. */
static rig_spec spec_make(int64_t kv_heads, bool gated, bool sequence_parallel)
{
    rig_spec s = {.name = "records", .config = gated ? rig_llama(kv_heads) : rig_gpt()};
    s.config.hidden = s.config.ffn = 64;
    s.config.heads = 8;
    s.config.kv_heads = kv_heads;
    s.config.head_dim = 8;
    s.config.vocab = 96;
    s.config.init_std = 0.02;
    s.config.bias_qkv = s.config.bias_proj = s.config.bias_fc1 = s.config.bias_fc2 = true;
    s.config.qk_norm = gated;
    s.options = rig_options(&s.config, sequence_parallel);
    return s;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static int box_expect(clv_comm *world, const rig *r, const clv_param *p, const clv_param *q)
{
    int failed = 0, rows = 0;
    const clv_box box = clv_param_box(r->mesh, p);
    const int64_t pc = p->ndim > 1 ? p->w.dim[1] : 1, qc = q->ndim > 1 ? q->w.dim[1] : 1;
    const float *part = p->w.data, *whole = q->w.data;
    for (int64_t i = 0; i < box.count[0]; i++)
        rows += memcmp(part + i * pc, whole + (box.first[0] + i) * qc + box.first[1],
                       (size_t)box.count[1] * sizeof *part) != 0;
    EXPECT(rows == 0, "%s differs from one rank's in %d rows", p->name, rows);
    return failed;
}

static int same_on_every_layout(clv_comm *world)
{
    int failed = 0;
    clv_comm *self = clv_comm_self_open();
    for (int64_t kv = 2; kv <= 8; kv *= 4) {
        const rig_spec s = spec_make(kv, true, false);
        rig *r = rig_open(world, &s), *alone = rig_open(self, &s);
        clv_gpt_init(&r->cx, &r->model, 77);
        clv_gpt_init(&alone->cx, &alone->model, 77);
        for (size_t i = 0; i < r->model.param_count; i++)
            failed += box_expect(world, r, &r->model.params[i], &alone->model.params[i]);
        rig_close(r);
        rig_close(alone);
    }
    clv_comm_world_close(self);
    return failed;
}

static double rms(const clv_param *p)
{
    double sum = 0;
    for (int64_t i = 0; i < clv_numel(p->w); i++)
        sum += (double)((float *)p->w.data)[i] * (double)((float *)p->w.data)[i];
    return sqrt(sum / (double)clv_numel(p->w));
}

static int spread_and_differences(clv_comm *world)
{
    int failed = 0;
    clv_comm *self = clv_comm_self_open();
    const rig_spec s = spec_make(8, true, false);
    rig *r = rig_open(self, &s);
    clv_gpt_init(&r->cx, &r->model, 77);
    for (size_t i = 0; i < r->model.param_count; i++) {
        const clv_param *p = &r->model.params[i];
        const bool output = strstr(p->name, "proj.weight") != NULL || strstr(p->name, "fc2.weight") != NULL;
        const double std = 0.02 / (output ? 2.0 : 1.0); /* sqrt(2 l) with two layers */
        if (p->init != CLV_INIT_NORMAL)
            continue;
        EXPECT(clv_numel(p->w) < 4096 || fabs(rms(p) / std - 1.0) < 0.03, "%s: spread %.5f, not %.5f", p->name, rms(p),
               std);
        for (size_t j = 0; j < i; j++)
            EXPECT(r->model.params[j].init != CLV_INIT_NORMAL ||
                       memcmp(p->w.data, r->model.params[j].w.data, 32 * sizeof(float)) != 0,
                   "%s and %s are equal", p->name, r->model.params[j].name);
        const char *row = p->w.data;
        const size_t half = clv_bytes(p->w) / 2;
        for (size_t part = half; part >= half / 4; part /= 2)
            EXPECT(memcmp(row, row + part, 32 * sizeof(float)) != 0, "%s: two shards are equal", p->name);
    }
    rig_close(r);
    clv_comm_world_close(self);
    return failed;
}

/* ---- what each rank holds ---------------------------------------------------------------------------------------- */

/* Gate and up lie below each other and are the same slice of the width. */
static int gate_and_up(clv_comm *world)
{
    int failed = 0;
    const rig_spec s = spec_make(8, true, false);
    rig *r = rig_open(world, &s);
    const clv_param *gate = rig_param(r, "layers.1.mlp.linear_gate.weight"), *up = gate + 1;
    const int64_t rows = 64 / clv_comm_size(world), first = rows * clv_comm_rank(world);
    EXPECT(strcmp(up->name, "decoder.layers.1.mlp.linear_up.weight") == 0, "%s", up->name);
    EXPECT((char *)gate->w.data + clv_bytes(gate->w) == up->w.data, "up does not follow gate");
    EXPECT(r->model.blocks[1].mlp.a.w.data == gate->w.data, "the product does not begin with gate");
    for (const clv_param *p = gate; p <= up; p++) {
        const clv_box box = clv_param_box(r->mesh, p);
        EXPECT(box.first[0] == first && box.count[0] == rows && box.first[1] == 0 && box.count[1] == 64,
               "%s: rows %lld + %lld", p->name, (long long)box.first[0], (long long)box.count[0]);
    }
    rig_close(r);
    return failed;
}

/* With fewer key/value heads than ranks, neighbours share one: rank r of t has head r / (t / g). */
static int shared_heads(clv_comm *world)
{
    int failed = 0;
    const int t = clv_comm_size(world), rank = clv_comm_rank(world);
    const rig_spec s = spec_make(2, true, false);
    rig *r = rig_open(world, &s);
    const clv_box q = clv_param_box(r->mesh, rig_param(r, "layers.0.self_attention.linear_q.weight"));
    const clv_box v = clv_param_box(r->mesh, rig_param(r, "layers.0.self_attention.linear_v.weight"));
    const int64_t head = t <= 2 ? 2 / t * rank : rank / (t / 2);
    EXPECT(q.first[0] == 64 / t * rank && q.count[0] == 64 / t, "queries from row %lld", (long long)q.first[0]);
    EXPECT(v.first[0] == 8 * head && v.count[0] == 8 * CLV_MAX(2 / t, 1), "values from row %lld",
           (long long)v.first[0]);
    rig_close(r);
    return failed;
}

/* ---- what a gradient is still a partial sum over: the table of the design ---------------------------------------- */

static unsigned axes_expected(const char *name, bool shards)
{
    static const char *const heads[] = {"linear_k.", "linear_v."};
    static const char *const edge[] = {"layernorm.", "linear_proj.bias", "linear_fc2.bias", "position_embeddings"};
    if (strstr(name, "q_layernorm") != NULL || strstr(name, "k_layernorm") != NULL)
        return CLV_TP;
    for (size_t i = 0; i < CLV_COUNT(heads); i++)
        if (strstr(name, heads[i]) != NULL)
            return CLV_TPR;
    for (size_t i = 0; i < CLV_COUNT(edge); i++)
        if (strstr(name, edge[i]) != NULL)
            return shards ? CLV_TP : 0;
    return 0;
}

static int sums_of_the_table(clv_comm *world)
{
    int failed = 0;
    for (int variant = 0; variant < 4; variant++) {
        const bool shards = variant & 1;
        const rig_spec s = spec_make(8, variant & 2, shards);
        rig *r = rig_open(world, &s);
        for (size_t i = 0; i < r->model.param_count; i++) {
            const clv_param *p = &r->model.params[i];
            EXPECT(p->sum_axes == axes_expected(p->name, shards), "%s: %#x", p->name, p->sum_axes);
            EXPECT(p->decay == (p->ndim == 2), "%s: weight decay", p->name);
        }
        rig_close(r);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"the same weights on every layout", same_on_every_layout},
                                     {"spread, and nothing drawn twice", spread_and_differences},
                                     {"gate and up", gate_and_up},
                                     {"shared key/value heads", shared_heads},
                                     {"what gradients sum over", sums_of_the_table},
                                     {0}});
}
