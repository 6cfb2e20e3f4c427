/* nsize: 1 2 4 */
/* head_test.c - vocabularies that do not divide: the padded sizes, a loss of ln V with an output matrix of zeros
 * however many columns are padding, gradients of padding that are exactly zero, and tokens that do not count.
 */
#include "model/model_test.h"

static rig_spec spec_make(int64_t vocab, int64_t divisor, bool tied)
{
    rig_spec s = {.name = "vocabulary", .config = rig_gpt()};
    s.config.vocab = vocab;
    s.config.tied = tied;
    s.options = rig_options(&s.config, false);
    s.options.vocab_divisor = divisor;
    return s;
}

static int padding_expect(clv_comm *world, const rig *r, const clv_param *p, int64_t vocab)
{
    int failed = 0;
    const int64_t v = p->w.dim[0], h = p->w.dim[1], first = v * clv_comm_rank(world);
    int64_t moved = 0;
    for (int64_t i = 0; i < v * h; i++) {
        const float dw = ((const float *)p->dw.data)[i];
        EXPECT(first + i / h < vocab || dw == 0.0f, "%s: gradient of padded row %lld is %.9g", p->name,
               (long long)(first + i / h), (double)dw);
        moved += dw != 0.0f;
    }
    clv_all_reduce(clv_mesh_comm(r->mesh, CLV_TP), &moved, &moved, 1, CLV_I64, CLV_SUM);
    EXPECT(moved > 0, "%s has no gradient at all", p->name);
    return failed;
}

static int zero_head(clv_comm *world)
{
    int failed = 0;
    const int t = clv_comm_size(world);
    for (int tied = 0; tied < 2; tied++) {
        const rig_spec s = spec_make(10, 8, tied);
        rig *r = rig_open(world, &s);
        const clv_param *out = rig_param(r, tied ? "word_embeddings.weight" : "output_layer.weight");
        EXPECT(out->w.dim[0] * t == (t == 4 ? 32 : 16), "%lld rows a rank", (long long)out->w.dim[0]);
        EXPECT(out->whole[0] == 10, "%lld real rows", (long long)out->whole[0]);
        clv_zero(&r->cx, out->w);
        double tokens = 0;
        for (int i = 0; i < RIG_S * RIG_B; i++)
            tokens += (double)((float *)r->batch.weight.data)[i];
        const double loss = rig_gradients(r) / tokens;
        EXPECT(fabs(loss - log(10.0)) < 1e-6, "loss %.8f, not ln 10", loss);
        failed += padding_expect(world, r, out, 10);
        rig_close(r);
    }
    return failed;
}

static int padded_sizes(clv_comm *world)
{
    static const int64_t expected[] = {50304, 50432, 50688, 51200};
    int failed = 0;
    for (int i = 0; i < 4; i++) {
        const int t = 1 << i;
        clv_comm *fake = clv_comm_fake_open(t - 1, t);
        clv_mesh *mesh;
        rig_must(clv_mesh_create(&mesh, fake, &(clv_layout){.tp = t}));
        clv_config config = rig_gpt();
        config.vocab = 50257;
        clv_arena weights = clv_arena_counting("weights"), grads = clv_arena_counting("grads");
        clv_builder b = {.config = &config, .mesh = mesh, .vocab_divisor = 128, .weights = &weights, .grads = &grads};
        const clv_vocab v = clv_vocab_create(&b, "word");
        EXPECT(v.l.w.dim[0] * t == expected[i], "%lld rows over %d ranks", (long long)(v.l.w.dim[0] * t), t);
        EXPECT(v.first + v.real == 50257 && v.classes == 50257, "the last rank: %lld from %lld", (long long)v.real,
               (long long)v.first);
        free(b.params);
        clv_mesh_destroy(mesh);
        clv_comm_world_close(fake);
    }
    return failed;
}

/* Without a token in the loss everything is zero, and nothing is NaN. */
static int nothing_counts(clv_comm *world)
{
    int failed = 0;
    const rig_spec s = spec_make(10, 8, true);
    rig *r = rig_open(world, &s);
    clv_zero(&r->cx, r->batch.weight);
    const double loss = rig_gradients(r);
    EXPECT(loss == 0.0, "loss %g", loss);
    const double square = clv_gradient_square(&r->cx, r->model.params, r->model.param_count);
    EXPECT(square == 0.0, "square of the gradients %g", square);
    rig_close(r);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"output matrix of zeros", zero_head},
                                     {"padded sizes", padded_sizes},
                                     {"no token counts", nothing_counts},
                                     {0}});
}
