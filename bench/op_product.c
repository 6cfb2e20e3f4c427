/* op_product.c - bench_op: matrix products of a layer and of the head, C = op(A) op(B).
 *
 * Their peer is the BLAS that is linked, called on the same operands; where ours adds a bias, the BLAS has not to. The
 * peer of a product of bf16 is our own of fp32.
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

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

static clv_tensor rounded(work *w, clv_tensor t)
{
    const clv_tensor half = clv_tensor_typed(&w->data, CLV_BF16, t.ndim, t.dim);
    w->be->copy(half, t);
    return half;
}

/* The fp32 product becomes the peer; gradients of weights stay fp32. */
static void round_product(work *w)
{
    w->wide = w->gemm;
    w->gemm.a = rounded(w, w->gemm.a);
    w->gemm.b = rounded(w, w->gemm.b);
    if (!w->gemm.accumulate)
        w->out[0] = w->gemm.c = rounded(w, w->gemm.c);
    else
        w->wide.c = random_tensor(w, clv_rows(w->gemm.c), clv_last(w->gemm.c));
}

static void run_wide(work *w)
{
    w->be->gemm(&w->cx, &w->wide);
}

static void make_fc2_half(work *w)
{
    make_fc2(w);
    round_product(w);
}

static void make_fc1_dx_half(work *w)
{
    make_fc1_dx(w);
    round_product(w);
}

static void make_fc1_dw_half(work *w)
{
    make_fc1_dw(w);
    round_product(w);
}

static const kernel half_kernels[] = {
    {"bf16 fc2  x W^T", make_fc2_half, run_product},
    {"bf16 fc1  dy W", make_fc1_dx_half, run_product},
    {"bf16 fc1  += dy^T x", make_fc1_dw_half, run_product},
};

const group halves = {.kernels = half_kernels, .count = CLV_COUNT(half_kernels), .peer = "fp32", .run_peer = run_wide};
