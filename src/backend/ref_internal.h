/* ref_internal.h - the kernels of the reference backend, named as in backend.h, and what they share.
 *
 * Every kernel is its equation as plain loops: f32 storage, double arithmetic, one fixed order of summation.
 */
#ifndef CLV_REF_INTERNAL_H
#define CLV_REF_INTERNAL_H

#include "op/backend.h"

/* ref_table.c widens what is stored in 16 bits beforehand. */
static inline float *clv_ref_f32(clv_tensor t)
{
    CLV_CHECK(t.ndim == 0 || t.dtype == CLV_F32, "the reference backend computes in f32, not %s",
              clv_dtype_name(t.dtype));
    return t.data;
}

/* What dropout multiplies an element by: 0, or 1/(1-p). */
double clv_ref_keep(const clv_dropout *drop, int64_t column, int64_t element);

/* ref.c */
void clv_ref_zero(clv_tensor t);
void clv_ref_copy(clv_tensor y, clv_tensor x); /* of any float types */
void clv_ref_add(clv_tensor y, clv_tensor x);
void clv_ref_scale(clv_tensor y, float a);
void clv_ref_sum_squares(clv_tensor sum, clv_tensor x);
void clv_ref_dot(clv_tensor sum, clv_tensor w, clv_tensor x);
void clv_ref_to_host(void *out, clv_tensor t);
void clv_ref_from_host(clv_tensor t, const void *in);
void clv_ref_adamw(const clv_moving *to, clv_tensor g, const clv_adamw *a);

/* ref_linear.c */
void clv_ref_gemm(const clv_gemm *g);
void clv_ref_column_sums(clv_tensor sum, clv_tensor x);

/* ref_norm.c */
void clv_ref_norm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm);
void clv_ref_norm_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat,
                           const clv_norm *norm);
void clv_ref_headnorm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm);
void clv_ref_headnorm_backward(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                               const clv_norm *norm);

/* ref_attention.c */
void clv_ref_rope(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign);
void clv_ref_attention_forward(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv,
                               const clv_attn *a);
void clv_ref_attention_backward(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                                const clv_attn *a);
void clv_ref_attention_range(clv_tensor range, clv_tensor doc, bool causal, int64_t window);

/* ref_layer.c */
void clv_ref_dropout(clv_tensor y, clv_tensor x, const clv_dropout *drop);
void clv_ref_act_forward(clv_tensor v, clv_tensor u, clv_act act);
void clv_ref_act_backward(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act);
void clv_ref_embed_forward(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first);
void clv_ref_embed_backward(clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first);
void clv_ref_embed_add(clv_tensor y, clv_tensor ids, clv_tensor w);
void clv_ref_residual_forward(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop);

/* ref_loss.c */
void clv_ref_ce_max(clv_tensor max, clv_tensor logits, const clv_ce *ce);
void clv_ref_ce_sums(clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max, const clv_ce *ce);
void clv_ref_ce_loss(clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums, const clv_ce *ce);
void clv_ref_ce_backward(clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight, const clv_ce *ce);

#endif
