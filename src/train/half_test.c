/* nsize: 1 2 */
/* half_test.c - training in bf16 and fp16: as good as fp32 on every layout, in half the memory, with sums that stay
 * fp32; the loss scale leaves no trace, and an overflow anywhere is seen everywhere.
 */
#include "comm/mpi_test.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

enum { S = 16, N = 8, VOCAB = 41, STEPS = 50 };

typedef struct run {
    clv_config config;
    clv_mesh *mesh;
    clv_stages stages;
    clv_engine engine;
} run;

typedef struct run_spec {
    clv_dtype dtype;
    clv_layout layout;
    bool sequence_parallel;
    const char *backend;
} run_spec;

static clv_config config_make(void)
{
    clv_config c = clv_config_default();
    c.vocab = VOCAB;
    c.hidden = 64;
    c.layers = 4;
    c.heads = c.kv_heads = 4;
    c.head_dim = 16;
    c.ffn = 128;
    c.max_positions = S;
    c.init_std = 0.1;
    c.norm = CLV_RMSNORM;
    c.act = CLV_SWIGLU;
    c.position = CLV_POS_ROPE;
    c.qk_norm = true;
    c.tied = true;
    c.hidden_dropout = c.attention_dropout = 0.0;
    return c;
}

static clv_engine_spec spec_make(const clv_config *c, const run_spec *asked)
{
    return (clv_engine_spec){.config = c,
                             .dtype = asked->dtype,
                             .sequence_parallel = asked->sequence_parallel,
                             .vocab_divisor = 1,
                             .micro_batch = 2,
                             .micros = N / 2,
                             .seq_length = S,
                             .per_token_loss = true,
                             .training = true,
                             .backend = asked->backend != NULL ? asked->backend : "cpu",
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .clip_grad = 1.0};
}

static void run_open(run *r, clv_comm *world, run_spec asked)
{
    const int64_t layers[2] = {2, 2};
    r->config = config_make();
    clv_engine_spec spec = spec_make(&r->config, &asked);
    clv_status st = clv_mesh_create(&r->mesh, world, &asked.layout);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    r->stages = (clv_stages){.layers = clv_alloc(2, sizeof(int64_t)), .parts = 2, .stages = 2};
    memcpy(r->stages.layers, layers, sizeof layers);
    if (asked.layout.pp == 2)
        spec.stages = &r->stages;
    st = clv_engine_create(&r->engine, r->mesh, &spec);
    CLV_CHECK(st.code == CLV_OK, "%s", st.text);
    clv_engine_init(&r->engine, 5);
}

static void run_close(run *r)
{
    clv_engine_destroy(&r->engine);
    clv_mesh_destroy(r->mesh);
    clv_stages_free(&r->stages);
}

typedef struct data {
    int32_t tokens[N * (S + 1)];
    int64_t index[N];
} data;

/* A text that can be learned: each token follows from the one before, now and then with a surprise. */
static clv_samples data_make(data *d, int step)
{
    for (int i = 0; i < N; i++) {
        int32_t at = (int32_t)(clv_uniform_at(8, (uint64_t)(step * N + i)) * VOCAB);
        for (int k = 0; k <= S; k++) {
            const uint64_t draw = (uint64_t)((step * N + i) * (S + 1) + k);
            d->tokens[i * (S + 1) + k] = at;
            at = clv_uniform_at(9, draw) < 0.1f ? (int32_t)(clv_uniform_at(10, draw) * VOCAB) : (at * 7 + 3) % VOCAB;
        }
        d->index[i] = step * N + i;
    }
    return (clv_samples){.count = N, .tokens = d->tokens, .index = d->index};
}

/* Mean loss of the updates; of fp16 those count that did not overflow. */
static double train(run *r, double scale, int *skipped)
{
    double sum = 0.0;
    int made = 0;
    data d;
    r->engine.loss_scale = scale;
    *skipped = 0;
    for (int i = 0; made < STEPS && i < 2 * STEPS; i++) {
        const clv_samples samples = data_make(&d, i);
        const clv_step step = clv_engine_gradients(&r->engine, &samples, i + 1);
        *skipped += !step.finite;
        if (!step.finite)
            continue;
        clv_engine_update(&r->engine, &step, 3e-3);
        sum += step.loss;
        made++;
    }
    return sum / made;
}

static int trains_like_f32(clv_comm *world)
{
    int failed = 0, skipped;
    const int n = clv_comm_size(world);
    const run_spec layouts[] = {{.layout = {.tp = n, .kv_heads = 4}, .sequence_parallel = n > 1},
                                {.layout = {.tp = n, .kv_heads = 4}},
                                {.layout = {.pp = n, .kv_heads = 4}}};
    for (size_t i = 0; i < CLV_COUNT(layouts); i++) {
        double loss[3];
        for (clv_dtype type = CLV_F32; type <= CLV_F16; type++) {
            run r;
            run_spec asked = layouts[i];
            asked.dtype = type;
            run_open(&r, world, asked);
            loss[type] = train(&r, type == CLV_F16 ? 65536.0 : 1.0, &skipped);
            const clv_status st =
                clv_sentinel_check(&r.engine.cx, r.engine.params, r.engine.param_count, &r.engine.optimizer);
            EXPECT(st.code == CLV_OK, "%s", st.text);
            EXPECT(skipped < STEPS / 2, "layout %zu, %s: %d skipped", i, clv_dtype_name(type), skipped);
            EXPECT(fabs(loss[type] - loss[0]) < 0.02 * loss[0], "layout %zu: %s %.6f, f32 %.6f", i,
                   clv_dtype_name(type), loss[type], loss[0]);
            run_close(&r);
        }
        EXPECT(loss[0] < 0.9 * log(VOCAB), "nothing was learned: %.4f", loss[0]);
    }
    return failed;
}

/* cpu and ref make the same step of it, to the rounding of the storage. */
static int backends_agree(clv_comm *world)
{
    int failed = 0;
    for (clv_dtype type = CLV_BF16; type <= CLV_F16; type++) {
        clv_step step[2];
        data d;
        const clv_samples samples = data_make(&d, 0);
        for (int i = 0; i < 2; i++) {
            run r;
            const clv_layout layout = {.tp = clv_comm_size(world), .kv_heads = 4};
            run_open(&r, world, (run_spec){.dtype = type, .layout = layout, .backend = i == 0 ? "cpu" : "ref"});
            step[i] = clv_engine_gradients(&r.engine, &samples, 1);
            run_close(&r);
        }
        const double far = type == CLV_BF16 ? 2e-2 : 3e-3;
        EXPECT(fabs(step[0].loss - step[1].loss) < 0.1 * far * step[1].loss, "%s: %.7g, ref %.7g", clv_dtype_name(type),
               step[0].loss, step[1].loss);
        EXPECT(fabs(step[0].grad_norm - step[1].grad_norm) < far * step[1].grad_norm, "%s: %.7g, ref %.7g",
               clv_dtype_name(type), step[0].grad_norm, step[1].grad_norm);
    }
    return failed;
}

/* A power of two passes through fp32 without a trace: loss, norm, and weights after clipping are the same bits. */
static int scale_leaves_no_trace(clv_comm *world)
{
    int failed = 0;
    data d;
    const clv_samples samples = data_make(&d, 0);
    clv_step step[2];
    float *weight[2];
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        run r;
        run_open(&r, world, (run_spec){.layout = {.tp = clv_comm_size(world), .kv_heads = 4}});
        r.engine.loss_scale = i == 0 ? 1.0 : 65536.0;
        step[i] = clv_engine_gradients(&r.engine, &samples, 1);
        clv_engine_update(&r.engine, &step[i], 1e-2);
        bytes = clv_bytes(r.engine.params[1].w);
        weight[i] = clv_alloc(bytes, 1);
        clv_to_host(&r.engine.cx, weight[i], r.engine.params[1].w);
        run_close(&r);
    }
    EXPECT(step[0].loss == step[1].loss && step[0].nll == step[1].nll, "%.17g, %.17g", step[0].loss, step[1].loss);
    EXPECT(step[0].grad_norm == step[1].grad_norm, "%.17g, %.17g", step[0].grad_norm, step[1].grad_norm);
    EXPECT(step[0].grad_norm > 1.0, "clipping has nothing to do: %g", step[0].grad_norm);
    EXPECT(memcmp(weight[0], weight[1], bytes) == 0, "weights differ after the update");
    free(weight[0]);
    free(weight[1]);
    return failed;
}

/* An infinite gradient that only the last rank has: no rank thinks that the step was good. */
static int overflow_is_global(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world);
    for (int pipelined = 0; pipelined < 2; pipelined++) {
        run r;
        const clv_layout layout = {.tp = pipelined ? 1 : n, .pp = pipelined ? n : 1, .kv_heads = 4};
        run_open(&r, world, (run_spec){.dtype = CLV_F16, .layout = layout});
        clv_engine *e = &r.engine;
        data d;
        const clv_samples samples = data_make(&d, 0);
        clv_engine_gradients(e, &samples, 1);
        for (size_t i = e->param_count; clv_comm_rank(world) == n - 1 && i-- > 0;)
            if (e->params[i].here && !e->params[i].copy && (pipelined || e->params[i].split_dim >= 0)) {
                const float infinite = INFINITY;
                clv_tensor one = clv_reshape2(e->params[i].dw, clv_numel(e->params[i].dw), 1);
                clv_from_host(&e->cx, clv_slice(one, 0, 1), &infinite);
                break;
            }
        const double square = clv_gradient_square(&e->cx, e->params, e->param_count);
        EXPECT(!isfinite(square), "this rank's norm is %g", sqrt(square));
        run_close(&r);
    }
    return failed;
}

static int half_the_memory(clv_comm *world)
{
    int failed = 0;
    const clv_config c = config_make();
    const clv_layout layout = {.tp = clv_comm_size(world), .kv_heads = 4};
    clv_engine_spec spec = spec_make(&c, &(run_spec){.dtype = CLV_F32});
    spec.seq_length = 512;
    const clv_engine_bytes full = clv_engine_plan(&spec, &layout, 0);
    spec.dtype = CLV_BF16;
    const clv_engine_bytes half = clv_engine_plan(&spec, &layout, 0);
    const size_t table = (size_t)(c.max_positions * c.head_dim) * sizeof(float), slack = 4096; /* of angles; losses */
    EXPECT(2 * (half.weights - table) <= full.weights - table + slack, "weights %zu, fp32 %zu", half.weights,
           full.weights);
    EXPECT((double)half.save < 0.6 * (double)full.save, "activations %zu, fp32 %zu", half.save, full.save);
    EXPECT(half.grads == full.grads, "gradients %zu, fp32 %zu", half.grads, full.grads);
    EXPECT(half.moments <= full.moments * 3 / 2 + slack, "optimizer %zu, fp32 %zu", half.moments, full.moments);
    return failed;
}

/* 8,193 equal gradients: a 16-bit sum would stand still at 256 times one of them. */
static int many_micro_batches(clv_comm *world)
{
    int failed = 0;
    enum { MICROS = 8193, IN = 3, OUT = 5 };
    for (clv_dtype type = CLV_BF16; type <= CLV_F16; type++) {
        clv_arena arena, temp;
        CLV_CHECK(clv_arena_create(&arena, "values", 1 << 16).code == CLV_OK, "no memory");
        CLV_CHECK(clv_arena_create(&temp, "temp", 1 << 16).code == CLV_OK, "no memory");
        clv_ctx cx = {.be = clv_backend_cpu(), .save = &arena, .temp = &temp};
        clv_tensor x = clv_new_as(&arena, type, 1, IN), dy = clv_new_as(&arena, type, 1, OUT);
        const clv_linear l = {.dw = clv_new_as(&arena, CLV_F32, OUT, IN), .split = 0};
        dy.place = CLV_SL;
        clv_from_floats(&cx, x, (float[]){0.25f, 0.5f, 1.0f});
        clv_from_floats(&cx, dy, (float[]){0.125f, 0.25f, 0.5f, 1.0f, 2.0f});
        clv_zero(&cx, l.dw);
        for (int i = 0; i < MICROS; i++)
            clv_linear_wgrad(&cx, &l, dy, x);
        float first;
        memcpy(&first, l.dw.data, sizeof first);
        EXPECT(fabs((double)first - MICROS / 32.0) < 0.01 * MICROS / 32.0, "%s: %g", clv_dtype_name(type),
               (double)first);
        clv_arena_destroy(&arena);
        clv_arena_destroy(&temp);
    }
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"trains like fp32", trains_like_f32},
                                     {"backends agree", backends_agree},
                                     {"the scale leaves no trace", scale_leaves_no_trace},
                                     {"an overflow is global", overflow_is_global},
                                     {"half the memory", half_the_memory},
                                     {"many micro-batches", many_micro_batches},
                                     {0}});
}
