/* nsize: 1 2 4 */
/* gradient_test.c - what is summed over which ranks, in how many messages, and a norm that counts each logical element
 * once and does not overflow.
 */
#include "comm/mpi_test.h"
#include "op/backend.h"
#include "parallel/parallel.h"

#include <math.h>

enum { LARGE = (4 << 20) / 4 + 3, SMALL = 70 };

typedef struct bench {
    clv_mesh *mesh;
    clv_arena grads, temp;
    clv_ctx cx;
} bench;

static void bench_open(bench *w, clv_comm *world, clv_layout layout)
{
    *w = (bench){0};
    clv_mesh_create(&w->mesh, world, &layout);
    clv_arena_create(&w->grads, "grads", 16 << 20);
    clv_arena_create(&w->temp, "temp", 8 << 20);
    w->cx = (clv_ctx){.be = clv_backend_ref(), .mesh = w->mesh, .temp = &w->temp};
}

static void bench_close(bench *w)
{
    clv_mesh_destroy(w->mesh);
    clv_arena_destroy(&w->grads);
    clv_arena_destroy(&w->temp);
}

/* A 1-D parameter of `whole` elements whose gradient is `value` everywhere. */
static clv_param param_make(bench *w, int64_t whole, unsigned split, unsigned sum, float value)
{
    clv_param p = {.here = true,
                   .whole = {whole},
                   .ndim = 1,
                   .split_dim = split != 0 ? 0 : -1,
                   .split_axes = split,
                   .sum_axes = sum};
    p.w = p.dw = clv_new(&w->grads, CLV_R, whole / clv_mesh_size(w->mesh, split));
    for (int64_t i = 0; i < clv_numel(p.dw); i++)
        ((float *)p.dw.data)[i] = value;
    return p;
}

static float first_of(const clv_param *p)
{
    return ((const float *)p->dw.data)[0];
}

/* Sixteen ones over the ranks and nine on each: the norm is 5, not sqrt(16 + 9 t). */
static int norm_counts_once(clv_comm *world)
{
    int failed = 0;
    const int t = clv_comm_size(world);
    bench w;
    bench_open(&w, world, (clv_layout){.tp = t});
    const clv_param params[] = {param_make(&w, 16, CLV_TP, 0, 1.0f), param_make(&w, 9, 0, 0, 1.0f)};
    const double norm = sqrt(clv_gradient_square(&w.cx, params, 2));
    EXPECT(norm == 5.0, "norm %.9g", norm);
    bench_close(&w);
    if (t == 1)
        return failed;
    bench_open(&w, world, (clv_layout){.tp = t, .kv_heads = t / 2}); /* two ranks share each key/value head */
    const clv_param shared[] = {param_make(&w, 16, CLV_TPK, 0, 1.0f), param_make(&w, 9, 0, 0, 1.0f)};
    const double with_replicas = sqrt(clv_gradient_square(&w.cx, shared, 2));
    EXPECT(with_replicas == 5.0, "norm with key/value replicas %.9g", with_replicas);
    bench_close(&w);
    bench_open(&w, world, (clv_layout){.tp = t / 2, .dp = 2}); /* dp replicas hold the same gradient after the sum */
    const clv_param dp[] = {param_make(&w, 16, CLV_TP, 0, 1.0f), param_make(&w, 9, 0, 0, 1.0f)};
    const double with_dp = sqrt(clv_gradient_square(&w.cx, dp, 2));
    EXPECT(with_dp == 5.0, "norm with data-parallel replicas %.9g", with_dp);
    bench_close(&w);
    return failed;
}

/* The squares of finite numbers exceed fp32, not double. */
static int norm_does_not_overflow(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world, (clv_layout){.tp = clv_comm_size(world)});
    const clv_param huge = param_make(&w, 4, CLV_TP, 0, 3e19f), none = param_make(&w, 4, CLV_TP, 0, 0.0f);
    const double norm = sqrt(clv_gradient_square(&w.cx, &huge, 1));
    EXPECT(fabs(norm - 6e19) < 1e13, "norm %.9g", norm);
    EXPECT(clv_gradient_square(&w.cx, &none, 1) == 0.0, "the norm of zeros");
    const clv_param infinite = param_make(&w, 4, CLV_TP, 0, clv_comm_rank(world) == 0 ? INFINITY : 0.0f);
    EXPECT(isinf(clv_gradient_square(&w.cx, &infinite, 1)), "an infinite element must show on every rank");
    bench_close(&w);
    return failed;
}

/* Many small gradients share messages, a large one goes alone; all are sums, and what asks for none stays. */
static int packed_sums(clv_comm *world)
{
    int failed = 0;
    const int t = clv_comm_size(world), rank = clv_comm_rank(world);
    bench w;
    bench_open(&w, world, (clv_layout){.tp = t});
    clv_param params[SMALL + 2];
    for (int i = 0; i < SMALL; i++)
        params[i] = param_make(&w, 1 + i, 0, CLV_TP, (float)(100 * i + rank));
    params[SMALL] = param_make(&w, LARGE, 0, CLV_TP, (float)(1 + rank));
    params[SMALL + 1] = param_make(&w, 5, 0, 0, (float)rank);
    clv_mesh_traffic_reset(w.mesh);
    clv_gradient_sum(&w.cx, params, SMALL + 2);
    const clv_traffic sent = clv_comm_traffic(clv_mesh_comm(w.mesh, CLV_TP), CLV_ALL_REDUCE);
    EXPECT(sent.calls == (t > 1 ? 3 : 0), "%lld messages", (long long)sent.calls); /* 64, 6 and the large one */

    const int64_t ranks = (int64_t)t * (t - 1) / 2;
    for (int i = 0; i < SMALL; i++)
        for (int64_t j = 0; j <= i; j++)
            EXPECT(((float *)params[i].dw.data)[j] == (float)(100 * i * t + ranks), "gradient %d at %lld: %.9g", i,
                   (long long)j, (double)((float *)params[i].dw.data)[j]);
    for (int64_t j = 0; j < LARGE; j += LARGE - 1)
        EXPECT(((float *)params[SMALL].dw.data)[j] == (float)(t + ranks), "large gradient: %.9g",
               (double)((float *)params[SMALL].dw.data)[j]);
    EXPECT(first_of(&params[SMALL + 1]) == (float)rank, "a gradient that asks for no sum became %.9g",
           (double)first_of(&params[SMALL + 1]));
    bench_close(&w);
    return failed;
}

/* Each gradient over its own axes: two ranks share a key/value head. */
static int sums_over_subsets(clv_comm *world)
{
    int failed = 0;
    const int t = clv_comm_size(world), rank = clv_comm_rank(world);
    if (t == 1)
        return 0;
    bench w;
    bench_open(&w, world, (clv_layout){.tp = t, .kv_heads = t / 2});
    clv_param p[] = {param_make(&w, 8, CLV_TPK, CLV_TPR, (float)(1 << rank)),
                     param_make(&w, 8, 0, CLV_TP, (float)(1 << rank)),
                     param_make(&w, 8, CLV_TP, 0, (float)(1 << rank))};
    clv_gradient_sum(&w.cx, p, 3);
    EXPECT(first_of(&p[0]) == (float)(3 << (rank & ~1)), "over the two that share a head: %.9g",
           (double)first_of(&p[0]));
    EXPECT(first_of(&p[1]) == (float)((1 << t) - 1), "over tp: %.9g", (double)first_of(&p[1]));
    EXPECT(first_of(&p[2]) == (float)(1 << rank), "over nothing: %.9g", (double)first_of(&p[2]));
    bench_close(&w);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"the norm counts each element once", norm_counts_once},
                                     {"the norm does not overflow", norm_does_not_overflow},
                                     {"packed sums", packed_sums},
                                     {"sums over subsets of the axes", sums_over_subsets},
                                     {0}});
}
