/* op.h - one rank's mathematics: every operation with its equation. An operation knows no ranks; it checks shapes and
 * placements, then calls the backend. Destination first; gradients of weights are added to (+=), as micro-batches sum.
 *
 * Letters as in docs/notation.md: s sequence, b batch, h hidden, n query heads, g KV heads, d head size, f MLP width,
 * v vocabulary rows of this rank. "rows" are all dims but the last.
 */
#ifndef CLV_OP_H
#define CLV_OP_H

#include "tensor/tensor.h"

/* ---- linear.  y = x W^T + b
 * ------------------------------------------------------------------------------------------ Column parallel (split =
 * 0, rows of W are shards):   x R  -> y SL;   dy SL -> dx P Row parallel    (split = 1, columns of W):           x SL
 * -> y P;    dy R  -> dx SL;  its bias is added after g, by the
 * residual, which therefore owns its gradient too. */
typedef struct clv_linear {
    clv_tensor w, dw; /* [out, in] */
    clv_tensor b, db; /* [out]; ndim 0 when there is none */
    int split;
} clv_linear;

void clv_linear_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_linear *l);
void clv_linear_dgrad(clv_ctx *cx, clv_tensor dx, clv_tensor dy, const clv_linear *l); /* dx = dy W               */
void clv_linear_wgrad(clv_ctx *cx, const clv_linear *l, clv_tensor dy, clv_tensor x);  /* dW += dy^T x, db += 1^T dy */

/* ---- norm.  LayerNorm: y = (x - mean)/sqrt(var + eps) g + b;  RMSNorm: y = x/sqrt(mean(x^2) + eps) g
 * ------------------ */
typedef struct clv_norm {
    clv_norm_kind kind;
    float eps;
    clv_tensor g, dg, b, db; /* [h]; b only for LayerNorm */
} clv_norm;

/* stat f32 [rows, 2]: mean and 1/sqrt(...), kept for the backward. */
void clv_norm_forward(clv_ctx *cx, clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm);
/* dx += the gradient: it joins the residual branch that dx already holds. */
void clv_norm_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat, const clv_norm *norm);

/* ---- heads inside a fused activation [s, b, width]: `count` heads of `dim` values from column `off`
 * --------------------- */
typedef struct clv_heads {
    int64_t off, count, dim;
} clv_heads;

/* RMSNorm over each head (q and k norm): the section of y from that of x; stat f32 [rows, count]. */
void clv_headnorm_forward(clv_ctx *cx, clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm);
/* The section of du, holding dy, becomes dx. */
void clv_headnorm_backward(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                           const clv_norm *norm);

/* Rotate-half RoPE in place: (x_i, x_{i+r/2}) turned by angle_i(pos), the first r values of a head; sign -1 turns back,
 * which is the backward. table f32 [positions, r]: r/2 cosines, then r/2 sines. pos i32 [s, b]. */
void clv_rope(clv_ctx *cx, clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign);

/* ---- dropout: the mask is a pure function of (key, sample of the global batch, element), never stored
 * ------------------- */
typedef struct clv_dropout {
    float p;           /* 0: none */
    uint64_t key;      /* stream, iteration, layer, site */
    clv_tensor sample; /* i64 [b]: index of each column's sample in the whole run */
    int64_t first;     /* number of the first row of dim 0 in the whole sequence */
} clv_dropout;

/* Kept when clv_uniform_at(column key, element) >= p; then times 1/(1-p). element = (first + row) h + column for
 * activations [s, b, h]. The same call is its own backward. y may be x. No drop (NULL) or p = 0 keeps everything. */
uint64_t clv_dropout_key(uint64_t key, int64_t sample); /* the column key */
void clv_dropout_apply(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_dropout *drop);

/* ---- attention.  o = dropout(softmax(scale q k^T + mask)) v, tiled: no s x s matrix is ever held
 * ------------------------- */
typedef struct clv_attn {
    clv_heads q, k, v; /* sections: q of the query tensor, k and v of the key tensor; q.count % k.count == 0 */
    float scale;
    clv_tensor
        range; /* i32 [sq, b, 2]: query sees keys lo <= j < hi (causal, window, documents, cache are all ranges) */
    clv_tensor mask;  /* u8 [b, sq, sk], 1 = may see; ndim 0 when there is none */
    clv_dropout drop; /* element = ((drop.first + head of this rank) sq + query) sk + key */
} clv_attn;

/* q [sq, b, wq], kv [sk, b, wkv] (the same tensor in training) -> o [sq, b, n d], lse f32 [b, n, sq].
 * A query that sees nothing gives o = 0 and passes no gradient. */
void clv_attention_forward(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a);
/* qkv fused, sq = sk. dqkv: its three sections are written; scratch comes from cx->temp. */
typedef struct clv_attn_saved {
    clv_tensor qkv, o, lse;
} clv_attn_saved;
void clv_attention_backward(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                            const clv_attn *a);
/* range from positions: hi = i + 1 if causal else sk; lo = max(document start, hi - window) where those apply.
 * doc i32 [s, b]: first position of the query's document, or ndim 0. With documents and no causality, hi is the
 * document's end. */
void clv_attention_range(clv_ctx *cx, clv_tensor range, clv_tensor doc, bool causal, int64_t window);

/* ---- activations.  v = act(u);  SwiGLU: u = [gate, up], v = silu(gate) up
 * ------------------------------------------------- */
void clv_act_forward(clv_ctx *cx, clv_tensor v, clv_tensor u, clv_act act);
void clv_act_backward(clv_ctx *cx, clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act);

/* ---- lookup.  y_i = W[ids_i - first], zero where another rank owns the row
 * ------------------------------------------------- */
void clv_embed_forward(clv_ctx *cx, clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first);
void clv_embed_backward(clv_ctx *cx, clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first); /* dW[id] += dy */
void clv_embed_add(clv_ctx *cx, clv_tensor y, clv_tensor ids, clv_tensor w);                       /* y += W[ids]   */

/* ---- residual.  y = x + dropout(z + bias);  dz = dropout'(dy), dbias += sum of dz over rows
 * --------------------------------- */
void clv_residual_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias,
                          const clv_dropout *drop);
/* dz may be dy itself when there is no dropout. */
void clv_residual_backward(clv_ctx *cx, clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop);

/* ---- cross entropy over a vocabulary shard.  logits f32 [rows, v]; this rank's classes are first .. first + v - 1
 * ------------ */
typedef struct clv_ce {
    clv_tensor target; /* i32 [rows], global class */
    int64_t first;     /* global class of column 0 */
    int64_t real;      /* columns that are real classes; the rest is padding and takes part in nothing */
    int64_t classes;   /* V over all ranks */
    float smoothing;   /* alpha; a' = alpha V/(V-1), loss = (1-a') nll - a' mean log p */
} clv_ce;

void clv_ce_max(clv_ctx *cx, clv_tensor max, clv_tensor logits,
                const clv_ce *ce); /* [rows]; -inf when nothing is real */
/* After max is global: target's logit - max (0 when not here) [rows];  sum of exp(x - max), sum of (x - max) [2, rows].
 */
void clv_ce_sums(clv_ctx *cx, clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max,
                 const clv_ce *ce);
/* After those are global: loss [rows] and plain nll [rows]. */
void clv_ce_loss(clv_ctx *cx, clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums,
                 const clv_ce *ce);
/* logits become their gradient, weight_i (softmax - smoothed onehot); padding columns get exactly 0. weight f32 [rows].
 */
void clv_ce_backward(clv_ctx *cx, clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight,
                     const clv_ce *ce);

/* ---- whole tensors
 * -------------------------------------------------------------------------------------------------------------- */
void clv_zero(clv_ctx *cx, clv_tensor t);
void clv_copy(clv_ctx *cx, clv_tensor y, clv_tensor x); /* converts between f32, bf16, f16 */
void clv_add(clv_ctx *cx, clv_tensor y, clv_tensor x);  /* y += x */
void clv_scale(clv_ctx *cx, clv_tensor y, float a);     /* y *= a */
/* sum f64 [1]: += sum of (a x_i)^2, in double and in a fixed order; infinite or NaN elements show in it. */
void clv_sum_squares(clv_ctx *cx, clv_tensor sum, clv_tensor x);
/* sum f64 [1]: += sum of w_i x_i, f32 [rows] each. */
void clv_dot(clv_ctx *cx, clv_tensor sum, clv_tensor w, clv_tensor x);
void clv_to_host(clv_ctx *cx, void *out, clv_tensor t);
void clv_from_host(clv_ctx *cx, clv_tensor t, const void *in);
void *clv_host_memory(const clv_ctx *cx, clv_tensor t); /* the elements themselves; NULL when a device has them */
/* The same for fp32 on the host, converted in pieces that go through cx->temp. */
void clv_to_floats(clv_ctx *cx, float *out, clv_tensor t);
void clv_from_floats(clv_ctx *cx, clv_tensor t, const float *in);

/* ---- AdamW, one pass: m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  w -= lr (mhat/(sqrt(vhat) + eps) + decay w)
 * ------------------ */
typedef struct clv_adamw {
    float lr, beta1, beta2, eps, decay;
    float grad_scale; /* clip factor and loss scale; g is multiplied by it */
    int64_t step;     /* 1 for the first update: bias corrections 1 - beta^step */
} clv_adamw;
typedef struct clv_moving { /* what an update changes, flat */
    clv_tensor w, m, v;     /* f32 */
    clv_tensor half;        /* 16-bit: w rounded, written in the same pass; ndim 0: none */
} clv_moving;
void clv_adamw_step(clv_ctx *cx, const clv_moving *to, clv_tensor g, const clv_adamw *a);

#endif
