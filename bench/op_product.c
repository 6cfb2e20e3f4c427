/* op_product.c - bench_op: matrix products of a layer and of the head, C = op(A) op(B).
 *
 * Their peer is the BLAS that is linked, called on the same operands; where ours adds a bias, the BLAS has not to.
 */
#include "op_internal.h"

#include <cblas.h>

static void make_product(work *w, int64_t m, int64_t n, int64_t k, clv_gemm_kind kind)
{
    const clv_tensor a = kind == CLV_TN ? random_tensor(w, k, m) : random_tensor(w, m, k);
    const clv_tensor b = kind == CLV_NT ? random_tensor(w, n, k) : random_tensor(w, k, n);
    w->out[0] = random_tensor(w, m, n);
    w->gemm = (clv_gemm){.kind = kind, .c = w->out[0], .a = a, .b = b, .accumulate = kind == CLV_TN};
    w->flops = 2.0 * (double)m * (double)n * (double)k;
}

static void add_bias(work *w)
{
    w->gemm.bias = random_tensor(w, 1, clv_last(w->gemm.c));
}

static void run_product(work *w)
{
    w->be->gemm(&w->cx, &w->gemm);
}

static void run_blas(work *w)
{
    const clv_gemm *g = &w->gemm;
    const int m = (int)clv_rows(g->c), n = (int)clv_last(g->c);
    const int k = (int)(g->kind == CLV_TN ? clv_rows(g->a) : clv_last(g->a));
    cblas_sgemm(CblasRowMajor, g->kind == CLV_TN ? CblasTrans : CblasNoTrans,
                g->kind == CLV_NT ? CblasTrans : CblasNoTrans, m, n, k, 1.0f, g->a.data, (int)clv_last(g->a), g->b.data,
                (int)clv_last(g->b), g->accumulate ? 1.0f : 0.0f, g->c.data, n);
}

static void make_qkv(work *w)
{
    make_product(w, w->s, 3 * H, H, CLV_NT);
    add_bias(w);
}

static void make_proj(work *w)
{
    make_product(w, w->s, H, H, CLV_NT);
}

static void make_fc1(work *w)
{
    make_product(w, w->s, F, H, CLV_NT);
    add_bias(w);
}

static void make_fc2(work *w)
{
    make_product(w, w->s, H, F, CLV_NT);
}

static void make_head(work *w)
{
    make_product(w, w->s, V, H, CLV_NT);
}

static void make_fc1_dx(work *w)
{
    make_product(w, w->s, H, F, CLV_NN);
}

static void make_fc1_dw(work *w)
{
    make_product(w, F, H, w->s, CLV_TN);
}

static void make_proj_dw(work *w)
{
    make_product(w, H, H, w->s, CLV_TN);
}

static void make_fc1_64(work *w)
{
    make_product(w, CLV_MIN(w->s, 64), F, H, CLV_NT);
}

static void make_fc1_8(work *w)
{
    make_product(w, CLV_MIN(w->s, 8), F, H, CLV_NT);
}

static void make_fc1_1(work *w)
{
    make_product(w, 1, F, H, CLV_NT);
    w->flops = 0.0;
    w->bytes = 4.0 * F * H;
}

static const kernel kernels[] = {
    {"qkv  x W^T + b", make_qkv, run_product},    {"proj x W^T", make_proj, run_product},
    {"fc1  x W^T + b", make_fc1, run_product},    {"fc2  x W^T", make_fc2, run_product},
    {"head x W^T", make_head, run_product},       {"fc1  dy W", make_fc1_dx, run_product},
    {"fc1  += dy^T x", make_fc1_dw, run_product}, {"proj += dy^T x", make_proj_dw, run_product},
    {"fc1, 64 tokens", make_fc1_64, run_product}, {"fc1, 8 tokens", make_fc1_8, run_product},
    {"fc1, 1 token", make_fc1_1, run_product},
};

const group products = {.kernels = kernels, .count = CLV_COUNT(kernels), .peer = "CBLAS", .run_peer = run_blas};
