/* ref_table.c - the table of the reference backend, and its operations on 16-bit tensors.
 *
 * The kernels know f32 alone. Operands stored in bf16 or f16 are widened, the kernel runs on the copies, and what it
 * left is rounded back, once; what it only read comes back as it was, since widening and rounding again changes no bit.
 */
#include "ref_internal.h"

#include <stdlib.h>

typedef struct widened {
    clv_tensor half[8], wide[8];
    int count;
} widened;

/* t as f32: itself, or a copy; two operands that are one tensor share it. */
static clv_tensor wide(widened *w, clv_tensor t)
{
    if (t.ndim == 0 || (t.dtype != CLV_BF16 && t.dtype != CLV_F16))
        return t;
    clv_tensor copy = t;
    copy.dtype = CLV_F32;
    for (int i = 0; i < w->count; i++)
        if (w->half[i].data == t.data) {
            copy.data = w->wide[i].data;
            return copy;
        }
    CLV_CHECK(w->count < (int)CLV_COUNT(w->half), "more than %d operands", w->count);
    copy.data = clv_alloc((size_t)clv_numel(t), sizeof(float));
    clv_ref_copy(copy, t);
    w->half[w->count] = t;
    w->wide[w->count++] = copy;
    return copy;
}

static clv_norm wide_norm(widened *w, const clv_norm *norm)
{
    clv_norm n = *norm;
    n.g = wide(w, norm->g);
    n.b = wide(w, norm->b);
    return n;
}

static void narrow(widened *w)
{
    for (int i = 0; i < w->count; i++) {
        clv_ref_copy(w->half[i], w->wide[i]);
        free(w->wide[i].data);
    }
    w->count = 0;
}

static void gemm(clv_ctx *cx, const clv_gemm *g)
{
    (void)cx;
    widened w = {.count = 0};
    const clv_gemm f = {g->kind, wide(&w, g->c), wide(&w, g->a), wide(&w, g->b), wide(&w, g->bias), g->accumulate};
    clv_ref_gemm(&f);
    narrow(&w);
}

static void column_sums(clv_tensor sum, clv_tensor x)
{
    widened w = {.count = 0};
    clv_ref_column_sums(sum, wide(&w, x));
    narrow(&w);
}

/* ---- norms: in 16 bits an RMSNorm rounds the normalized value before the weight multiplies it ------------------- */

static clv_tensor ones(int64_t n)
{
    clv_tensor t = {.data = clv_alloc((size_t)n, sizeof(float)), .dim = {n}, .ndim = 1, .dtype = CLV_F32};
    for (int64_t i = 0; i < n; i++)
        ((float *)t.data)[i] = 1.0f;
    return t;
}

/* The section of y times g. */
static void weigh(clv_tensor y, clv_heads at, clv_tensor g)
{
    widened w = {.count = 0};
    float *Y = clv_ref_f32(wide(&w, y));
    const float *G = clv_ref_f32(wide(&w, g));
    for (int64_t i = 0; i < clv_rows(y) * at.count; i++)
        for (int64_t k = 0; k < at.dim; k++)
            Y[i / at.count * clv_last(y) + at.off + i % at.count * at.dim + k] *= G[k];
    narrow(&w);
}

static void norm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm)
{
    widened w = {.count = 0};
    clv_norm n = wide_norm(&w, norm);
    const bool apart = norm->kind == CLV_RMSNORM && x.dtype != CLV_F32;
    if (apart)
        n.g = ones(clv_last(x));
    clv_ref_norm_forward(wide(&w, y), stat, wide(&w, x), &n);
    narrow(&w);
    if (apart) {
        free(n.g.data);
        weigh(y, (clv_heads){0, 1, clv_last(x)}, norm->g);
    }
}

static void norm_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat,
                          const clv_norm *norm)
{
    widened w = {.count = 0};
    const clv_norm n = wide_norm(&w, norm);
    clv_ref_norm_backward(cx, wide(&w, dx), wide(&w, dy), wide(&w, x), stat, &n);
    narrow(&w);
}

static void headnorm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm)
{
    widened w = {.count = 0};
    clv_norm n = wide_norm(&w, norm);
    const bool apart = x.dtype != CLV_F32;
    if (apart)
        n.g = ones(at.dim);
    clv_ref_headnorm_forward(wide(&w, y), stat, wide(&w, x), at, &n);
    narrow(&w);
    if (apart) {
        free(n.g.data);
        weigh(y, at, norm->g);
    }
}

static void headnorm_backward(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                              const clv_norm *norm)
{
    widened w = {.count = 0};
    const clv_norm n = wide_norm(&w, norm);
    clv_ref_headnorm_backward(cx, wide(&w, du), wide(&w, x), stat, at, &n);
    narrow(&w);
}

/* ---- what stands between the products -------------------------------------------------------------------------- */

static void rope(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign)
{
    widened w = {.count = 0};
    clv_ref_rope(wide(&w, u), at, table, pos, sign);
    narrow(&w);
}

static void dropout(clv_tensor y, clv_tensor x, const clv_dropout *drop)
{
    widened w = {.count = 0};
    clv_ref_dropout(wide(&w, y), wide(&w, x), drop);
    narrow(&w);
}

static void attention_forward(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a)
{
    widened w = {.count = 0};
    clv_ref_attention_forward(cx, wide(&w, o), lse, wide(&w, q), wide(&w, kv), a);
    narrow(&w);
}

static void attention_backward(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                               const clv_attn *a)
{
    widened w = {.count = 0};
    const clv_attn_saved s = {wide(&w, saved->qkv), wide(&w, saved->o), saved->lse};
    clv_ref_attention_backward(cx, wide(&w, dqkv), wide(&w, dout), &s, a);
    narrow(&w);
}

static void act_forward(clv_tensor v, clv_tensor u, clv_act act)
{
    widened w = {.count = 0};
    clv_ref_act_forward(wide(&w, v), wide(&w, u), act);
    narrow(&w);
}

static void act_backward(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act)
{
    widened w = {.count = 0};
    clv_ref_act_backward(wide(&w, du), wide(&w, dv), wide(&w, u), act);
    narrow(&w);
}

static void embed_forward(clv_tensor y, clv_tensor ids, clv_tensor table, int64_t first)
{
    widened w = {.count = 0};
    clv_ref_embed_forward(wide(&w, y), ids, wide(&w, table), first);
    narrow(&w);
}

static void embed_backward(clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first)
{
    widened w = {.count = 0};
    clv_ref_embed_backward(dw, wide(&w, dy), ids, first);
    narrow(&w);
}

static void embed_add(clv_tensor y, clv_tensor ids, clv_tensor table)
{
    widened w = {.count = 0};
    clv_ref_embed_add(wide(&w, y), ids, wide(&w, table));
    narrow(&w);
}

static void residual_forward(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop)
{
    widened w = {.count = 0};
    clv_ref_residual_forward(wide(&w, y), wide(&w, x), wide(&w, z), wide(&w, bias), drop);
    narrow(&w);
}

/* The bias' gradient is the sum of dz as it is stored. */
static void residual_backward(clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop)
{
    dropout(dz, dy, drop);
    if (dbias.ndim > 0)
        column_sums(dbias, dz);
}

/* ---- whole tensors ----------------------------------------------------------------------------------------------- */

static void add(clv_tensor y, clv_tensor x)
{
    widened w = {.count = 0};
    clv_ref_add(wide(&w, y), wide(&w, x));
    narrow(&w);
}

static void scale(clv_tensor y, float a)
{
    widened w = {.count = 0};
    clv_ref_scale(wide(&w, y), a);
    narrow(&w);
}

static void sum_squares(clv_tensor sum, clv_tensor x)
{
    widened w = {.count = 0};
    clv_ref_sum_squares(sum, wide(&w, x));
    narrow(&w);
}

const clv_backend *clv_backend_ref(void)
{
    static const clv_backend table = {
        .name = "ref",
        .gemm = gemm,
        .column_sums = column_sums,
        .norm_forward = norm_forward,
        .norm_backward = norm_backward,
        .headnorm_forward = headnorm_forward,
        .headnorm_backward = headnorm_backward,
        .rope = rope,
        .dropout = dropout,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .attention_range = clv_ref_attention_range,
        .act_forward = act_forward,
        .act_backward = act_backward,
        .embed_forward = embed_forward,
        .embed_backward = embed_backward,
        .embed_add = embed_add,
        .residual_forward = residual_forward,
        .residual_backward = residual_backward,
        .ce_max = clv_ref_ce_max,
        .ce_sums = clv_ref_ce_sums,
        .ce_loss = clv_ref_ce_loss,
        .ce_backward = clv_ref_ce_backward,
        .zero = clv_ref_zero,
        .copy = clv_ref_copy,
        .add = add,
        .scale = scale,
        .sum_squares = sum_squares,
        .dot = clv_ref_dot,
        .to_host = clv_ref_to_host,
        .from_host = clv_ref_from_host,
        .adamw = clv_ref_adamw,
    };
    return &table;
}
