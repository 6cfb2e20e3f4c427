/* nsize: 1 2 4 */
/* gpt_test.c - the backward of the whole model by differences of its forward, on every layout, with every kind of
 * module: a backward that has lost a sum over ranks is caught without any other model to compare with.
 *
 * For each parameter the whole tensor is moved along a random direction u, drawn by global element index: whoever holds
 * an element moves it, replicas together. Then (L(w + h u) - L(w - h u)) / 2h must be <dL/dw, u>, each logical element
 * once. The formula is that of fourth order, on two steps.
 */
#include "model/model_test.h"

static int64_t numel_whole(const clv_param *p)
{
    return p->whole[0] * (p->ndim > 1 ? p->whole[1] : 1);
}

/* A direction of length about 1. */
static double direction_at(const clv_param *p, int64_t row, int64_t column)
{
    const int64_t columns = p->ndim > 1 ? p->whole[1] : 1;
    return clv_normal_at(clv_hash_name(1, p->name), (uint64_t)(row * columns + column)) / sqrt((double)numel_whole(p));
}

static void move(const rig *r, const clv_param *p, const float *from, double step)
{
    const clv_box box = clv_param_box(r->mesh, p);
    const int64_t columns = p->ndim > 1 ? p->w.dim[1] : 1;
    for (int64_t i = 0; i < box.count[0]; i++)
        for (int64_t j = 0; j < box.count[1]; j++)
            ((float *)p->w.data)[i * columns + j] =
                from[i * columns + j] + (float)(step * direction_at(p, box.first[0] + i, box.first[1] + j));
}

/* <dw, u> and <dw, dw> over the whole tensor. */
static void slope(const rig *r, const clv_param *p, double out[2])
{
    const clv_box box = clv_param_box(r->mesh, p);
    const int64_t columns = p->ndim > 1 ? p->w.dim[1] : 1;
    out[0] = out[1] = 0;
    for (int64_t i = 0; clv_param_is_first(r->mesh, p, CLV_TP) && i < box.count[0]; i++)
        for (int64_t j = 0; j < box.count[1]; j++) {
            const double dw = ((const float *)p->dw.data)[i * columns + j];
            out[0] += dw * direction_at(p, box.first[0] + i, box.first[1] + j);
            out[1] += dw * dw;
        }
    clv_all_reduce(clv_mesh_comm(r->mesh, CLV_TP), out, out, 2, CLV_F64, CLV_SUM);
}

static double difference(rig *r, const clv_param *p, const float *from)
{
    const double h = 0x1p-7, steps[4] = {h, -h, 2 * h, -2 * h};
    double loss[4];
    for (int i = 0; i < 4; i++) {
        move(r, p, from, steps[i]);
        loss[i] = rig_forward(r, NULL);
    }
    move(r, p, from, 0.0);
    return (8.0 * (loss[0] - loss[1]) - (loss[2] - loss[3])) / (12.0 * h);
}

static int param_expect(clv_comm *world, rig *r, const rig_spec *spec, const clv_param *p)
{
    int failed = 0;
    float *from = clv_alloc((size_t)clv_numel(p->w), sizeof *from);
    clv_to_host(&r->cx, from, p->w);
    double found[2];
    slope(r, p, found);
    const double expected = difference(r, p, from), bound = 5e-4 * (1.0 + sqrt(found[1]));
    EXPECT(fabs(found[0] - expected) <= bound, "%s%s: %s: gradient %.7g, by differences %.7g", spec->name,
           spec->options.sequence_parallel ? ", sequence shards" : "", p->name, found[0], expected);
    free(from);
    return failed;
}

static int spec_expect(clv_comm *world, const rig_spec *spec)
{
    int failed = 0;
    rig *r = rig_open(world, spec);
    rig_gradients(r);
    for (size_t i = 0; i < r->model.param_count; i++)
        failed += param_expect(world, r, spec, &r->model.params[i]);
    rig_close(r);
    return failed;
}

static size_t specs_make(rig_spec *s)
{
    size_t n = 0;
    s[n++] = (rig_spec){.name = "gpt", .config = rig_gpt()};
    s[n] = (rig_spec){.name = "gpt, both dropouts", .config = rig_gpt()};
    s[n].config.hidden_dropout = 0.2;
    s[n++].config.attention_dropout = 0.3;
    s[n] = (rig_spec){.name = "tanh gelu, untied, padded", .config = rig_gpt(), .options.vocab_divisor = 8};
    s[n].config.act = CLV_GELU_TANH;
    s[n].options.label_smoothing = 0.1;
    s[n++].config.tied = false;
    s[n++] = (rig_spec){.name = "documents", .config = rig_gpt(), .documents = true};
    s[n++] = (rig_spec){.name = "mask, both directions", .config = rig_gpt(), .mask = true, .bidirectional = true};
    s[n++] = (rig_spec){.name = "llama", .config = rig_llama(4)};
    s[n] = (rig_spec){.name = "llama, 2 key/value heads, partial rope", .config = rig_llama(2), .documents = true};
    s[n++].config.rotary_percent = 0.5;
    s[n++] = (rig_spec){.name = "llama, 1 key/value head", .config = rig_llama(1)};
    s[n] = (rig_spec){.name = "q and k norms, window, dropout", .config = rig_llama(2)};
    s[n].config.attention_dropout = 0.2;
    s[n].config.qk_norm = s[n].config.bias_qkv = true;
    s[n].config.window = 3;
    s[n++].config.window_first = 1;
    return n;
}

static int every_spec(clv_comm *world, bool sequence_parallel)
{
    int failed = 0;
    rig_spec specs[16];
    const size_t n = specs_make(specs);
    for (size_t i = 0; i < n; i++) {
        const clv_model_options asked = specs[i].options;
        specs[i].options = rig_options(&specs[i].config, sequence_parallel);
        specs[i].options.vocab_divisor = CLV_MAX(asked.vocab_divisor, 1);
        specs[i].options.label_smoothing = asked.label_smoothing;
        failed += spec_expect(world, &specs[i]);
    }
    return failed;
}

static int replicated_edges(clv_comm *world)
{
    return every_spec(world, false);
}

static int sequence_edges(clv_comm *world)
{
    return every_spec(world, true);
}

int main(int argc, char **argv)
{
    return mpi_test_run(
        &argc, &argv,
        (mpi_case[]){{"replicated edges", replicated_edges}, {"sequence-parallel edges", sequence_edges}, {0}});
}
