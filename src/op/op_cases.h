/* op_cases.h - the one table of operations, shared by the tests and by whoever measures speed.
 *
 * Only the programs that include this file know it; everything in it is static.
 */
#ifndef CLV_OP_CASES_H
#define CLV_OP_CASES_H

#include "op/op_case.h"

#include <math.h>

/* ---- linear: {s, b, in, out}; kind = split ------------------------------------------------------------------------
 */

static void op_linear_make(op_run *r, const op_case *c, const int64_t *size)
{
    const int64_t s = size[0], b = size[1], in = size[2], out = size[3];
    const bool column = c->kind == 0;
    op_in(r, OP_RANDOM(r, column ? CLV_R : CLV_SL, s, b, in), column ? CLV_P : CLV_SL, false);
    op_in(r, OP_RANDOM(r, CLV_R, out, in), CLV_R, true);
    r->linear = (clv_linear){.w = r->in[1], .dw = r->din[1], .split = c->kind};
    if (column) {
        op_in(r, OP_RANDOM(r, CLV_R, out), CLV_R, true);
        r->linear.b = r->in[2];
        r->linear.db = r->din[2];
    }
    op_out(r, column ? CLV_SL : CLV_P, column ? CLV_SL : CLV_R, 3, (int64_t[]){s, b, out});
    r->flops = 6.0 * (double)(s * b * in * out);
}

static void op_linear_forward(op_run *r)
{
    clv_linear_forward(&r->cx, r->out[0], r->in[0], &r->linear);
}

static void op_linear_backward(op_run *r)
{
    clv_linear_dgrad(&r->cx, r->din[0], r->dout[0], &r->linear);
    clv_linear_wgrad(&r->cx, &r->linear, r->dout[0], r->in[0]);
}

/* ---- norm: {s, b, h}; kind -----------------------------------------------------------------------------------------
 */

static void op_norm_make(op_run *r, const op_case *c, const int64_t *size)
{
    const int64_t s = size[0], b = size[1], h = size[2];
    op_in(r, OP_RANDOM(r, CLV_S0, s, b, h), CLV_S0, true);
    op_in(r, OP_RANDOM(r, CLV_R, h), CLV_R, true);
    r->norm = (clv_norm){.kind = (clv_norm_kind)c->kind, .eps = 1e-5f, .g = r->in[1], .dg = r->din[1]};
    if (r->norm.kind == CLV_LAYERNORM) {
        op_in(r, OP_RANDOM(r, CLV_R, h), CLV_R, true);
        r->norm.b = r->in[2];
        r->norm.db = r->din[2];
    }
    op_out(r, CLV_S0, CLV_S0, 3, r->in[0].dim);
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F32, s * b, 2);
}

static void op_norm_forward(op_run *r)
{
    clv_norm_forward(&r->cx, r->out[0], r->aux[0], r->in[0], &r->norm);
}

static void op_norm_backward(op_run *r)
{
    clv_norm_backward(&r->cx, r->din[0], r->dout[0], r->in[0], r->aux[0], &r->norm);
}

/* ---- heads of a fused activation: {s, b, count, dim}, one head's width free on both sides ---------------------------
 */

static void op_heads_make(op_run *r, const int64_t *size)
{
    r->at = (clv_heads){.off = size[3], .count = size[2], .dim = size[3]};
    op_in(r, OP_RANDOM(r, CLV_SL, size[0], size[1], (size[2] + 2) * size[3]), CLV_SL, false);
    op_out(r, CLV_SL, CLV_SL, 3, r->in[0].dim);
}

static void op_headnorm_make(op_run *r, const op_case *c, const int64_t *size)
{
    (void)c;
    op_heads_make(r, size);
    op_in(r, OP_RANDOM(r, CLV_R, size[3]), CLV_R, true);
    r->norm = (clv_norm){.kind = CLV_RMSNORM, .eps = 1e-6f, .g = r->in[1], .dg = r->din[1]};
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F32, size[0] * size[1], size[2]);
}

static void op_headnorm_forward(op_run *r)
{
    clv_copy(&r->cx, r->out[0], r->in[0]);
    clv_headnorm_forward(&r->cx, r->out[0], r->aux[0], r->in[0], r->at, &r->norm);
}

static void op_headnorm_backward(op_run *r)
{
    clv_copy(&r->cx, r->din[0], r->dout[0]);
    clv_headnorm_backward(&r->cx, r->din[0], r->in[0], r->aux[0], r->at, &r->norm);
}

/* Three quarters of a head turn (kind 1), or all of it. The table is any table: an angle an entry. */
static void op_rope_make(op_run *r, const op_case *c, const int64_t *size)
{
    const int64_t half = c->kind == 1 ? size[3] * 3 / 8 : size[3] / 2, positions = size[0] + 5;
    op_heads_make(r, size);
    r->table = clv_new_as(&r->values, CLV_F32, positions, 2 * half);
    for (int64_t i = 0; r->table.data != NULL && i < positions * half; i++) {
        float *row = (float *)r->table.data + i / half * 2 * half + i % half;
        row[0] = (float)cos((double)i * 0.7);
        row[half] = (float)sin((double)i * 0.7);
    }
    r->ids = op_integers(r, size[0] * size[1], 0, positions);
}

static void op_rope_forward(op_run *r)
{
    clv_copy(&r->cx, r->out[0], r->in[0]);
    clv_rope(&r->cx, r->out[0], r->at, r->table, r->ids, 1);
}

static void op_rope_backward(op_run *r)
{
    clv_copy(&r->cx, r->din[0], r->dout[0]);
    clv_rope(&r->cx, r->din[0], r->at, r->table, r->ids, -1);
}

/* ---- attention: {s, b, n, g, d}; kind = what limits the view
 * --------------------------------------------------------- */

enum { OP_FULL = 0, OP_CAUSAL = 1, OP_WINDOW = 2, OP_DOCUMENTS = 4, OP_MASK = 8 };

/* Documents start at 0, at a third, and at two thirds, a position later in each column. */
static clv_tensor op_documents(op_run *r, int64_t s, int64_t b)
{
    clv_tensor doc = clv_new_as(&r->values, CLV_I32, s, b);
    for (int64_t e = 0; doc.data != NULL && e < s * b; e++) {
        const int64_t i = e / b, third = s / 3 + e % b, later = 2 * s / 3 + e % b;
        ((int32_t *)doc.data)[e] = (int32_t)(i >= later ? later : i >= third ? third : 0);
    }
    return doc;
}

/* About two thirds of the pairs; query 1 sees nothing. */
static clv_tensor op_mask(op_run *r, int64_t b, int64_t sq, int64_t sk)
{
    clv_tensor mask = clv_new_as(&r->values, CLV_U8, b, sq, sk);
    r->seed++;
    for (int64_t e = 0; mask.data != NULL && e < b * sq * sk; e++)
        ((uint8_t *)mask.data)[e] = e / sk % sq != 1 && clv_uniform_at(r->seed, (uint64_t)e) < 0.67f;
    return mask;
}

static void op_attention_make(op_run *r, const op_case *c, const int64_t *size)
{
    const int64_t s = size[0], b = size[1], n = size[2], g = size[3], d = size[4];
    op_in(r, OP_RANDOM(r, CLV_SL, s, b, (n + 2 * g) * d), CLV_SL, false);
    op_out(r, CLV_SL, CLV_SL, 3, (int64_t[]){s, b, n * d});
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F32, b, n, s);
    r->attn = (clv_attn){.q = {0, n, d}, .k = {n * d, g, d}, .v = {(n + g) * d, g, d}};
    r->attn.scale = 1.0f / sqrtf((float)d);
    r->attn.range = clv_new_as(&r->values, CLV_I32, s, b, 2);
    if (c->kind & OP_MASK)
        r->attn.mask = op_mask(r, b, s, s);
    r->attn.drop = op_dropout(r, c->p, b);
    const clv_tensor doc = c->kind & OP_DOCUMENTS ? op_documents(r, s, b) : (clv_tensor){0};
    clv_attention_range(&r->cx, r->attn.range, doc, c->kind & OP_CAUSAL, c->kind & OP_WINDOW ? s / 4 + 1 : 0);
    r->flops = 14.0 * (double)(s * s * b * n * d); /* 2 products forward, 5 backward, masked pairs too */
}

static void op_attention_forward(op_run *r)
{
    clv_attention_forward(&r->cx, r->out[0], r->aux[0], r->in[0], r->in[0], &r->attn);
}

static void op_attention_backward(op_run *r)
{
    const clv_attn_saved saved = {r->in[0], r->out[0], r->aux[0]};
    clv_attention_backward(&r->cx, r->din[0], r->dout[0], &saved, &r->attn);
}

/* Queries behind a cache of earlier keys: {sk, b, n, g, d}, the last third of the positions asks. */
static void op_cache_make(op_run *r, const op_case *c, const int64_t *size)
{
    (void)c;
    const int64_t sk = size[0], sq = sk / 3 + 1, b = size[1], n = size[2], g = size[3], d = size[4];
    op_in(r, OP_RANDOM(r, CLV_SL, sq, b, n * d), CLV_SL, false);
    op_in(r, OP_RANDOM(r, CLV_SL, sk, b, 2 * g * d), CLV_SL, false);
    op_out(r, CLV_SL, CLV_SL, 3, (int64_t[]){sq, b, n * d});
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F32, b, n, sq);
    r->attn = (clv_attn){.q = {0, n, d}, .k = {0, g, d}, .v = {g * d, g, d}, .scale = 0.3f};
    r->attn.range = clv_new_as(&r->values, CLV_I32, sq, b, 2);
    for (int64_t e = 0; r->attn.range.data != NULL && e < sq * b; e++) {
        ((int32_t *)r->attn.range.data)[2 * e] = 0;
        ((int32_t *)r->attn.range.data)[2 * e + 1] = (int32_t)(sk - sq + e / b + 1);
    }
}

static void op_cache_forward(op_run *r)
{
    clv_attention_forward(&r->cx, r->out[0], r->aux[0], r->in[0], r->in[1], &r->attn);
}

/* ---- activations, dropout, residual: {s, b, width} ------------------------------------------------------------------
 */

static void op_act_make(op_run *r, const op_case *c, const int64_t *size)
{
    r->act = (clv_act)c->kind;
    op_in(r, OP_RANDOM(r, CLV_SL, size[0], size[1], size[2] * (r->act == CLV_SWIGLU ? 2 : 1)), CLV_SL, false);
    float *x = r->type == CLV_F32 ? r->in[0].data : NULL;
    for (int64_t i = 0; r->act == CLV_RELU && x != NULL && i < clv_numel(r->in[0]); i++)
        x[i] += x[i] < 0 ? -0.2f : 0.2f; /* away from the kink, where differences mean nothing */
    op_out(r, CLV_SL, CLV_SL, 3, size);
}

static void op_act_forward(op_run *r)
{
    clv_act_forward(&r->cx, r->out[0], r->in[0], r->act);
}

static void op_act_backward(op_run *r)
{
    clv_act_backward(&r->cx, r->din[0], r->dout[0], r->in[0], r->act);
}

static void op_dropout_make(op_run *r, const op_case *c, const int64_t *size)
{
    op_in(r, op_random(r, CLV_S0, 3, size), CLV_S0, false);
    op_out(r, CLV_S0, CLV_S0, 3, size);
    r->drop = op_dropout(r, c->p, size[1]);
}

static void op_dropout_forward(op_run *r)
{
    clv_dropout_apply(&r->cx, r->out[0], r->in[0], &r->drop);
}

static void op_dropout_backward(op_run *r)
{
    clv_dropout_apply(&r->cx, r->din[0], r->dout[0], &r->drop);
}

/* kind 1: with a bias. */
static void op_residual_make(op_run *r, const op_case *c, const int64_t *size)
{
    op_in(r, op_random(r, CLV_R, 3, size), CLV_R, false);
    op_in(r, op_random(r, CLV_R, 3, size), CLV_R, false);
    if (c->kind == 1)
        op_in(r, OP_RANDOM(r, CLV_R, size[2]), CLV_R, true);
    op_out(r, CLV_R, CLV_R, 3, size);
    r->drop = op_dropout(r, c->p, size[1]);
}

static void op_residual_forward(op_run *r)
{
    clv_residual_forward(&r->cx, r->out[0], r->in[0], r->in[1], r->in[2], &r->drop);
}

static void op_residual_backward(op_run *r)
{
    clv_copy(&r->cx, r->din[0], r->dout[0]);
    clv_residual_backward(&r->cx, r->din[1], r->din[2], r->dout[0], &r->drop);
}

/* ---- lookup: {s, b, h, rows}; a third of the ids belong to other ranks ----------------------------------------------
 */

static void op_embed_make(op_run *r, const op_case *c, const int64_t *size)
{
    (void)c;
    op_in(r, OP_RANDOM(r, CLV_R, size[3], size[2]), CLV_R, true);
    op_out(r, CLV_P, CLV_R, 3, size);
    r->ids = op_integers(r, size[0] * size[1], 50 - size[3] / 4, 50 + size[3] + size[3] / 4);
    if (r->ids.data != NULL) {
        ((int32_t *)r->ids.data)[0] = 49; /* the rows just outside */
        ((int32_t *)r->ids.data)[1] = (int32_t)(50 + size[3]);
    }
}

static void op_embed_forward(op_run *r)
{
    clv_embed_forward(&r->cx, r->out[0], r->ids, r->in[0], 50);
}

static void op_embed_backward(op_run *r)
{
    clv_embed_backward(&r->cx, r->din[0], r->dout[0], r->ids, 50);
}

static void op_embed_add_make(op_run *r, const op_case *c, const int64_t *size)
{
    (void)c;
    op_in(r, OP_RANDOM(r, CLV_R, size[3], size[2]), CLV_R, true);
    op_in(r, op_random(r, CLV_S0, 3, size), CLV_S0, false);
    op_out(r, CLV_S0, CLV_S0, 3, size);
    r->ids = op_integers(r, size[0] * size[1], 0, size[3]);
}

static void op_embed_add_forward(op_run *r)
{
    clv_copy(&r->cx, r->out[0], r->in[1]);
    clv_embed_add(&r->cx, r->out[0], r->ids, r->in[0]);
}

static void op_embed_add_backward(op_run *r)
{
    clv_copy(&r->cx, r->din[1], r->dout[0]);
    clv_embed_backward(&r->cx, r->din[0], r->dout[0], r->ids, 0);
}

/* ---- cross entropy: {s, b, columns, real}; p = smoothing ------------------------------------------------------------
 */

static void op_ce_make(op_run *r, const op_case *c, const int64_t *size)
{
    const int64_t rows = size[0] * size[1];
    r->type = CLV_F32; /* logits and losses are never halves */
    op_in(r, op_random(r, CLV_SL, 3, size), CLV_SL, false);
    op_out(r, CLV_R, CLV_R, 1, &rows);
    r->aux[0] = clv_new_as(&r->values, CLV_F32, rows);    /* nll */
    r->aux[1] = clv_new_as(&r->values, CLV_F32, rows);    /* max */
    r->aux[2] = clv_new_as(&r->values, CLV_F32, 2, rows); /* sums */
    r->aux[3] = clv_new_as(&r->values, CLV_F32, rows);    /* target's logit */
    r->auxs = 4;
    r->ce = (clv_ce){op_integers(r, rows, 10, 10 + size[3]), 10, size[3], size[3], c->p};
}

static void op_ce_forward(op_run *r)
{
    clv_ce_max(&r->cx, r->aux[1], r->in[0], &r->ce);
    clv_ce_sums(&r->cx, r->aux[3], r->aux[2], r->in[0], r->aux[1], &r->ce);
    clv_ce_loss(&r->cx, r->out[0], r->aux[0], r->aux[3], r->aux[2], &r->ce);
}

static void op_ce_backward(op_run *r)
{
    clv_copy(&r->cx, r->din[0], r->in[0]);
    clv_ce_backward(&r->cx, r->din[0], r->aux[1], r->aux[2], r->dout[0], &r->ce);
}

/* ---- whole tensors and the update: {n}, no backward
 * ------------------------------------------------------------------ */

static void op_whole_make(op_run *r, const op_case *c, const int64_t *size)
{
    (void)c;
    r->type = CLV_F32;
    for (int i = 0; i < OP_SLOTS; i++)
        op_in(r, op_random(r, CLV_R, 1, size), CLV_R, false);
    for (int i = 0; i < 3; i++)
        op_out(r, CLV_R, CLV_R, 1, size);
    for (int64_t i = 0; r->in[2].data != NULL && i < size[0]; i++) /* a second moment */
        ((float *)r->in[2].data)[i] = fabsf(((float *)r->in[2].data)[i]);
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F64, 1);
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F64, 1);
    r->ids = clv_new_as(&r->values, CLV_BF16, size[0]);
    r->table = clv_new_as(&r->values, CLV_F16, size[0]);
}

static void op_arithmetic_forward(op_run *r)
{
    clv_copy(&r->cx, r->ids, r->in[0]);
    clv_copy(&r->cx, r->out[0], r->ids);
    clv_copy(&r->cx, r->table, r->in[1]);
    clv_copy(&r->cx, r->out[1], r->table);
    clv_copy(&r->cx, r->out[2], r->in[2]);
    clv_add(&r->cx, r->out[2], r->in[3]);
    clv_scale(&r->cx, r->out[2], 0.3f);
    clv_zero(&r->cx, r->aux[0]);
    clv_sum_squares(&r->cx, r->aux[0], r->in[0]);
    clv_zero(&r->cx, r->aux[1]);
    clv_dot(&r->cx, r->aux[1], r->in[0], r->in[1]);
}

static void op_sums_make(op_run *r, const op_case *c, const int64_t *size)
{
    (void)c;
    for (int i = 0; i < 2; i++)
        op_in(r, op_random(r, CLV_R, 1, size), CLV_R, false);
    op_out(r, CLV_R, CLV_R, 1, size);
    op_out(r, CLV_R, CLV_R, 1, size);
    r->aux[r->auxs++] = clv_new_as(&r->values, CLV_F64, 1);
}

static void op_sums_forward(op_run *r)
{
    clv_copy(&r->cx, r->out[0], r->in[0]);
    clv_add(&r->cx, r->out[0], r->in[1]);
    clv_copy(&r->cx, r->out[1], r->in[1]);
    clv_scale(&r->cx, r->out[1], 0.3f);
    clv_zero(&r->cx, r->aux[0]);
    clv_sum_squares(&r->cx, r->aux[0], r->in[0]);
}

static void op_adamw_forward(op_run *r)
{
    const clv_adamw a = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 3};
    for (int i = 0; i < 3; i++)
        clv_copy(&r->cx, r->out[i], r->in[i]);
    for (int i = 0; i < 2; i++)
        clv_zero(&r->cx, r->aux[i]);
    clv_adamw_step(&r->cx, &(clv_moving){.w = r->out[0], .m = r->out[1], .v = r->out[2]}, r->in[3], &a);
}

/* ---- the table
 * -------------------------------------------------------------------------------------------------------- */

static const int64_t OP_LINEAR[][OP_SIZE] = {{3, 2, 5, 4}, {7, 1, 33, 65}, {65, 2, 64, 48}, {33, 1, 130, 7}, {0}};
static const int64_t OP_ROWS[][OP_SIZE] = {{3, 2, 5}, {7, 1, 33}, {33, 2, 65}, {65, 2, 128}, {1, 1, 1}, {0}};
static const int64_t OP_HEADS[][OP_SIZE] = {{3, 2, 2, 8}, {7, 1, 3, 16}, {33, 2, 4, 48}, {65, 1, 2, 128}, {0}};
static const int64_t OP_ATTENTION[][OP_SIZE] = {{6, 2, 4, 2, 4},
                                                {7, 2, 4, 2, 8},
                                                {33, 1, 4, 1, 16},
                                                {65, 2, 2, 2, 48},
                                                {130, 1, 4, 2, 64},
                                                {70, 1, 2, 1, 128},
                                                {0}};
static const int64_t OP_EMBED[][OP_SIZE] = {{5, 2, 3, 4}, {7, 1, 33, 9}, {65, 2, 48, 130}, {0}};
static const int64_t OP_CE[][OP_SIZE] = {{3, 2, 7, 5}, {7, 1, 33, 33}, {65, 2, 130, 100}, {33, 1, 1000, 999}, {0}};
static const int64_t OP_WHOLE[][OP_SIZE] = {{7}, {1}, {33}, {1000}, {70001}, {0}};

#define OP(what) op_##what##_make, op_##what##_forward, op_##what##_backward

static const op_case OP_CASES[] = {
    {"linear column", OP(linear), OP_LINEAR, 1e-6, 0, 0},
    {"linear row", OP(linear), OP_LINEAR, 1e-6, 1, 0},
    {"layernorm", OP(norm), OP_ROWS, 2e-6, CLV_LAYERNORM, 0},
    {"rmsnorm", OP(norm), OP_ROWS, 2e-6, CLV_RMSNORM, 0},
    {"headnorm", OP(headnorm), OP_HEADS, 2e-6, 0, 0},
    {"rope", OP(rope), OP_HEADS, 1e-6, 0, 0},
    {"rope of a part", OP(rope), OP_HEADS, 1e-6, 1, 0},
    {"attention", OP(attention), OP_ATTENTION, 3e-6, OP_FULL, 0},
    {"attention causal", OP(attention), OP_ATTENTION, 3e-6, OP_CAUSAL, 0},
    {"attention window", OP(attention), OP_ATTENTION, 3e-6, OP_CAUSAL | OP_WINDOW, 0},
    {"attention documents", OP(attention), OP_ATTENTION, 3e-6, OP_CAUSAL | OP_DOCUMENTS, 0},
    {"attention documents, both ways", OP(attention), OP_ATTENTION, 3e-6, OP_DOCUMENTS, 0},
    {"attention mask, a blind query", OP(attention), OP_ATTENTION, 3e-6, OP_CAUSAL | OP_MASK, 0},
    {"attention dropout", OP(attention), OP_ATTENTION, 3e-6, OP_CAUSAL, 0.3f},
    {"attention behind a cache", op_cache_make, op_cache_forward, NULL, OP_ATTENTION, 3e-6, 0, 0},
    {"gelu", OP(act), OP_ROWS, 1e-6, CLV_GELU, 0},
    {"gelu tanh", OP(act), OP_ROWS, 1e-6, CLV_GELU_TANH, 0},
    {"relu", OP(act), OP_ROWS, 0, CLV_RELU, 0},
    {"swiglu", OP(act), OP_ROWS, 1e-6, CLV_SWIGLU, 0},
    {"dropout", OP(dropout), OP_ROWS, 3e-7, 0, 0.4f},
    {"residual", OP(residual), OP_ROWS, 1e-6, 0, 0},
    {"residual bias", OP(residual), OP_ROWS, 1e-6, 1, 0},
    {"residual bias dropout", OP(residual), OP_ROWS, 1e-6, 1, 0.4f},
    {"embed", OP(embed), OP_EMBED, 1e-6, 0, 0},
    {"embed add", OP(embed_add), OP_EMBED, 1e-6, 0, 0},
    {"cross entropy", OP(ce), OP_CE, 2e-6, 0, 0},
    {"cross entropy smoothed", OP(ce), OP_CE, 2e-6, 0, 0.1f},
    {"copy, add, scale, sums", op_whole_make, op_arithmetic_forward, NULL, OP_WHOLE, 3e-7, 0, 0},
    {"add, scale, squares in place", op_sums_make, op_sums_forward, NULL, OP_WHOLE, 3e-7, 0, 0},
    {"adamw", op_whole_make, op_adamw_forward, NULL, OP_WHOLE, 1e-6, 0, 0},
};

#undef OP

#endif
