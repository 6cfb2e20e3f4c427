/* null.c - the backend that computes nothing and touches no pointer: the same code then only counts.
 *
 * A planning run goes through every module with this table, counting arenas and counted communication. What the cpu
 * kernels take from cx->temp is taken here too, so that it is counted.
 */
#include "op/backend.h"

static void take(clv_ctx *cx, size_t bytes)
{
    const size_t mark = clv_arena_mark(cx->temp);
    clv_arena_push(cx->temp, bytes);
    clv_arena_release(cx->temp, mark);
}

static void gemm(clv_ctx *cx, const clv_gemm *g)
{
    take(cx, clv_scratch_gemm(g));
}

static void norm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm)
{
    (void)y, (void)stat, (void)x, (void)norm;
}

static void norm_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat,
                          const clv_norm *norm)
{
    (void)dx, (void)dy, (void)stat, (void)norm;
    take(cx, clv_scratch_norm(clv_last(x)));
}

static void headnorm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm)
{
    (void)y, (void)stat, (void)x, (void)at, (void)norm;
}

static void headnorm_backward(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                              const clv_norm *norm)
{
    (void)du, (void)x, (void)stat, (void)norm;
    take(cx, clv_scratch_norm(at.dim));
}

static void rope(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign)
{
    (void)u, (void)at, (void)table, (void)pos, (void)sign;
}

static void dropout(clv_tensor y, clv_tensor x, const clv_dropout *drop)
{
    (void)y, (void)x, (void)drop;
}

static void attention_forward(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a)
{
    (void)o, (void)lse, (void)kv;
    take(cx, clv_scratch_attention(q, a));
}

static void attention_backward(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                               const clv_attn *a)
{
    (void)dqkv, (void)dout;
    take(cx, clv_scratch_attention_backward(saved->qkv, a));
}

static void attention_range(clv_tensor range, clv_tensor doc, bool causal, int64_t window)
{
    (void)range, (void)doc, (void)causal, (void)window;
}

static void act_forward(clv_tensor v, clv_tensor u, clv_act act)
{
    (void)v, (void)u, (void)act;
}

static void act_backward(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act)
{
    (void)du, (void)dv, (void)u, (void)act;
}

static void lookup(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first)
{
    (void)y, (void)ids, (void)w, (void)first;
}

static void residual_forward(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop)
{
    (void)y, (void)x, (void)z, (void)bias, (void)drop;
}

static void residual_backward(clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop)
{
    (void)dz, (void)dbias, (void)dy, (void)drop;
}

static void ce_max(clv_tensor max, clv_tensor logits, const clv_ce *ce)
{
    (void)max, (void)logits, (void)ce;
}

static void cross_entropy(clv_tensor a, clv_tensor b, clv_tensor c, clv_tensor d, const clv_ce *ce)
{
    (void)a, (void)b, (void)c, (void)d, (void)ce;
}

static void one(clv_tensor t)
{
    (void)t;
}

static void two(clv_tensor y, clv_tensor x)
{
    (void)y, (void)x;
}

static void three(clv_tensor z, clv_tensor y, clv_tensor x)
{
    (void)z, (void)y, (void)x;
}

static void scale(clv_tensor y, float a)
{
    (void)y, (void)a;
}

static void to_host(void *out, clv_tensor t)
{
    (void)out, (void)t;
}

static void from_host(clv_tensor t, const void *in)
{
    (void)t, (void)in;
}

static void adamw(const clv_moving *to, clv_tensor g, const clv_adamw *a)
{
    (void)to, (void)g, (void)a;
}

const clv_backend *clv_backend_null(void)
{
    static const clv_backend table = {
        .name = "null",
        .gemm = gemm,
        .column_sums = two,
        .norm_forward = norm_forward,
        .norm_backward = norm_backward,
        .headnorm_forward = headnorm_forward,
        .headnorm_backward = headnorm_backward,
        .rope = rope,
        .dropout = dropout,
        .attention_forward = attention_forward,
        .attention_backward = attention_backward,
        .attention_range = attention_range,
        .act_forward = act_forward,
        .act_backward = act_backward,
        .embed_forward = lookup,
        .embed_backward = lookup,
        .embed_add = three,
        .residual_forward = residual_forward,
        .residual_backward = residual_backward,
        .ce_max = ce_max,
        .ce_sums = cross_entropy,
        .ce_loss = cross_entropy,
        .ce_backward = cross_entropy,
        .zero = one,
        .copy = two,
        .add = two,
        .scale = scale,
        .sum_squares = two,
        .dot = three,
        .to_host = to_host,
        .from_host = from_host,
        .adamw = adamw,
    };
    return &table;
}
