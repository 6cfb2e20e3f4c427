/* op.c - the checked front of every operation: shapes, types and placements here, arithmetic in the backend.
 *
 * A planning run passes through with NULL data, so nothing here reads an element. A violated condition is a bug of the
 * caller: the panic names the operation, the condition and the two tensors that disagree.
 */
#include "op/op.h"

#include "op/backend.h"

#define REQUIRE(condition, a, b)                                                                                       \
    do {                                                                                                               \
        char text_a_[96], text_b_[96];                                                                                 \
        CLV_CHECK(condition, "%s: %s does not hold for %s and %s", __func__, #condition, clv_describe(a, text_a_),     \
                  clv_describe(b, text_b_));                                                                           \
    } while (0)

/* Values that every tp rank has whole: replicated, or its own rows. */
static bool whole_rows(clv_tensor t)
{
    return t.place == CLV_R || t.place == CLV_S0;
}

static bool alike(clv_tensor a, clv_tensor b)
{
    return clv_same_shape(a, b) && a.place == b.place && a.dtype == b.dtype;
}

static bool is_float(clv_tensor t)
{
    return t.dtype == CLV_F32 || t.dtype == CLV_BF16 || t.dtype == CLV_F16;
}

static bool is_vector(clv_tensor t, int64_t n)
{
    return t.ndim == 1 && t.dim[0] == n;
}

static bool absent_or_vector(clv_tensor t, int64_t n)
{
    return t.ndim == 0 || is_vector(t, n);
}

static bool has_type(clv_tensor t, clv_dtype dtype, int64_t numel)
{
    return t.dtype == dtype && clv_numel(t) == numel;
}

static bool fits(clv_heads at, clv_tensor t)
{
    return at.off >= 0 && at.count > 0 && at.dim > 0 && at.off + at.count * at.dim <= clv_last(t);
}

/* ---- linear ------------------------------------------------------------------------------------------------------ */

void clv_linear_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_linear *l)
{
    const bool column = l->split == 0;
    REQUIRE(x.place == (column ? CLV_R : CLV_SL), x, l->w);
    REQUIRE(y.place == (column ? CLV_SL : CLV_P), y, l->w);
    REQUIRE(y.place != CLV_P || y.dtype == CLV_F32, y, x);
    REQUIRE(l->w.ndim == 2 && clv_last(x) == l->w.dim[1] && x.dtype == l->w.dtype, x, l->w);
    REQUIRE(clv_last(y) == l->w.dim[0], y, l->w);
    REQUIRE(clv_rows(y) == clv_rows(x) && is_float(y) && is_float(x), y, x);
    REQUIRE(absent_or_vector(l->b, l->w.dim[0]), l->b, l->w);
    const clv_tensor bias = column ? l->b : (clv_tensor){0};
    cx->be->gemm(cx, &(clv_gemm){.kind = CLV_NT, .c = y, .a = x, .b = l->w, .bias = bias});
}

void clv_linear_dgrad(clv_ctx *cx, clv_tensor dx, clv_tensor dy, const clv_linear *l)
{
    const bool column = l->split == 0;
    REQUIRE(dy.place == (column ? CLV_SL : CLV_R), dy, l->w);
    REQUIRE(dx.place == (column ? CLV_P : CLV_SL), dx, l->w);
    REQUIRE(dx.place != CLV_P || dx.dtype == CLV_F32, dx, dy);
    REQUIRE(l->w.ndim == 2 && clv_last(dy) == l->w.dim[0], dy, l->w);
    REQUIRE(clv_last(dx) == l->w.dim[1], dx, l->w);
    REQUIRE(clv_rows(dx) == clv_rows(dy) && is_float(dx) && is_float(dy), dx, dy);
    cx->be->gemm(cx, &(clv_gemm){.kind = CLV_NN, .c = dx, .a = dy, .b = l->w});
}

/* The rows are cut into panels while something is in flight: MPI moves data only inside its own calls. */
static void weight_product(clv_ctx *cx, clv_tensor dw, clv_tensor dy, clv_tensor x)
{
    enum { PANELS = 4, FEW_ROWS = 64 };
    const int64_t rows = clv_rows(x);
    const int64_t panels = cx->idle != NULL && rows > FEW_ROWS ? PANELS : 1;
    const int64_t height = CLV_CEIL_DIV(rows, panels);
    dy = clv_reshape2(dy, rows, clv_last(dy));
    x = clv_reshape2(x, rows, clv_last(x));
    for (int64_t first = 0; first < rows; first += height) {
        const int64_t n = CLV_MIN(height, rows - first);
        if (first > 0)
            cx->idle(cx->mesh);
        const clv_tensor a = clv_slice(dy, first, n), b = clv_slice(x, first, n);
        cx->be->gemm(cx, &(clv_gemm){.kind = CLV_TN, .c = dw, .a = a, .b = b, .accumulate = true});
    }
}

void clv_linear_wgrad(clv_ctx *cx, const clv_linear *l, clv_tensor dy, clv_tensor x)
{
    const bool column = l->split == 0;
    REQUIRE(x.place == (column ? CLV_R : CLV_SL), x, l->dw);
    REQUIRE(dy.place == (column ? CLV_SL : CLV_R), dy, l->dw);
    REQUIRE(l->dw.ndim == 2 && l->dw.dtype == CLV_F32 && clv_last(x) == l->dw.dim[1], x, l->dw);
    REQUIRE(clv_last(dy) == l->dw.dim[0], dy, l->dw);
    REQUIRE(clv_rows(dy) == clv_rows(x), dy, x);
    REQUIRE(absent_or_vector(l->db, l->dw.dim[0]), l->db, l->dw);
    weight_product(cx, l->dw, dy, x);
    if (column && l->db.ndim > 0)
        cx->be->column_sums(l->db, dy);
}

/* ---- norm -------------------------------------------------------------------------------------------------------- */

void clv_norm_forward(clv_ctx *cx, clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm)
{
    REQUIRE(whole_rows(x) && alike(y, x), y, x);
    REQUIRE(has_type(stat, CLV_F32, 2 * clv_rows(x)), stat, x);
    REQUIRE(is_vector(norm->g, clv_last(x)) && norm->g.dtype == x.dtype, norm->g, x);
    REQUIRE(norm->kind == CLV_RMSNORM ? norm->b.ndim == 0 : is_vector(norm->b, clv_last(x)), norm->b, x);
    cx->be->norm_forward(y, stat, x, norm);
}

void clv_norm_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat, const clv_norm *norm)
{
    REQUIRE(whole_rows(x) && alike(dx, x), dx, x);
    REQUIRE(alike(dy, x), dy, x);
    REQUIRE(has_type(stat, CLV_F32, 2 * clv_rows(x)), stat, x);
    REQUIRE(is_vector(norm->dg, clv_last(x)) && norm->dg.dtype == CLV_F32, norm->dg, x);
    REQUIRE(norm->kind == CLV_RMSNORM ? norm->db.ndim == 0 : is_vector(norm->db, clv_last(x)), norm->db, x);
    cx->be->norm_backward(cx, dx, dy, x, stat, norm);
}

void clv_headnorm_forward(clv_ctx *cx, clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm)
{
    REQUIRE(x.place == CLV_SL && alike(y, x), y, x);
    REQUIRE(fits(at, x) && has_type(stat, CLV_F32, clv_rows(x) * at.count), stat, x);
    REQUIRE(norm->kind == CLV_RMSNORM && is_vector(norm->g, at.dim) && norm->g.dtype == x.dtype, norm->g, x);
    cx->be->headnorm_forward(y, stat, x, at, norm);
}

void clv_headnorm_backward(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                           const clv_norm *norm)
{
    REQUIRE(x.place == CLV_SL && alike(du, x), du, x);
    REQUIRE(fits(at, x) && has_type(stat, CLV_F32, clv_rows(x) * at.count), stat, x);
    REQUIRE(norm->kind == CLV_RMSNORM && is_vector(norm->dg, at.dim) && norm->dg.dtype == CLV_F32, norm->dg, x);
    cx->be->headnorm_backward(cx, du, x, stat, at, norm);
}

/* ---- positions, dropout ------------------------------------------------------------------------------------------ */

void clv_rope(clv_ctx *cx, clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign)
{
    REQUIRE(u.place == CLV_SL && fits(at, u), u, table);
    REQUIRE(table.dtype == CLV_F32 && table.ndim == 2 && table.dim[1] % 2 == 0 && table.dim[1] <= at.dim, u, table);
    REQUIRE(has_type(pos, CLV_I32, clv_rows(u)), pos, u);
    CLV_CHECK(sign == 1 || sign == -1, "RoPE turns by sign 1 or -1, not %d", sign);
    cx->be->rope(u, at, table, pos, sign);
}

uint64_t clv_dropout_key(uint64_t key, int64_t sample)
{
    uint64_t z = key + 0x9E3779B97F4A7C15u * ((uint64_t)sample + 1); /* splitmix64: a Weyl step, then two mixes */
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* No dropout, or one key for each column of the batch. */
static bool drop_fits(const clv_dropout *drop, int64_t batch)
{
    return drop == NULL || drop->p == 0.0f ||
           (drop->p > 0.0f && drop->p < 1.0f && has_type(drop->sample, CLV_I64, batch));
}

void clv_dropout_apply(clv_ctx *cx, clv_tensor y, clv_tensor x, const clv_dropout *drop)
{
    REQUIRE(x.ndim == 3 && alike(y, x) && x.place != CLV_P, y, x);
    REQUIRE(drop_fits(drop, x.dim[1]), drop->sample, x);
    cx->be->dropout(y, x, drop);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void check_attention(clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a)
{
    const int64_t sq = q.dim[0], batch = q.dim[1], sk = kv.dim[0];
    REQUIRE(q.ndim == 3 && kv.ndim == 3 && o.ndim == 3 && batch == kv.dim[1], q, kv);
    REQUIRE(q.place == CLV_SL && kv.place == CLV_SL && o.place == CLV_SL, q, kv);
    REQUIRE(q.dtype == kv.dtype && o.dtype == q.dtype && is_float(q), q, kv);
    REQUIRE(fits(a->q, q) && fits(a->k, kv) && fits(a->v, kv), q, kv);
    CLV_CHECK(a->q.dim == a->k.dim && a->k.dim == a->v.dim && a->k.count == a->v.count && a->q.count % a->k.count == 0,
              "attention heads: q %lld x %lld, k %lld x %lld, v %lld x %lld", (long long)a->q.count,
              (long long)a->q.dim, (long long)a->k.count, (long long)a->k.dim, (long long)a->v.count,
              (long long)a->v.dim);
    REQUIRE(o.dim[0] == sq && o.dim[1] == batch && o.dim[2] == a->q.count * a->q.dim, o, q);
    REQUIRE(has_type(lse, CLV_F32, batch * a->q.count * sq), lse, q);
    REQUIRE(has_type(a->range, CLV_I32, 2 * sq * batch), a->range, q);
    REQUIRE(a->mask.ndim == 0 || has_type(a->mask, CLV_U8, batch * sq * sk), a->mask, q);
    REQUIRE(drop_fits(&a->drop, batch), a->drop.sample, q);
}

void clv_attention_forward(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a)
{
    check_attention(o, lse, q, kv, a);
    cx->be->attention_forward(cx, o, lse, q, kv, a);
}

void clv_attention_backward(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                            const clv_attn *a)
{
    check_attention(saved->o, saved->lse, saved->qkv, saved->qkv, a);
    REQUIRE(alike(dqkv, saved->qkv), dqkv, saved->qkv);
    REQUIRE(alike(dout, saved->o), dout, saved->o);
    cx->be->attention_backward(cx, dqkv, dout, saved, a);
}

void clv_attention_range(clv_ctx *cx, clv_tensor range, clv_tensor doc, bool causal, int64_t window)
{
    REQUIRE(range.dtype == CLV_I32 && range.ndim == 3 && range.dim[2] == 2, range, doc);
    REQUIRE(doc.ndim == 0 || has_type(doc, CLV_I32, clv_rows(range)), doc, range);
    CLV_CHECK(window == 0 || (window > 0 && causal), "a window of %lld keys looks back: attention must be causal",
              (long long)window);
    cx->be->attention_range(range, doc, causal, window);
}

/* ---- activations, lookup, residual ------------------------------------------------------------------------------- */

static int64_t branches(clv_act act)
{
    return act == CLV_SWIGLU ? 2 : 1;
}

void clv_act_forward(clv_ctx *cx, clv_tensor v, clv_tensor u, clv_act act)
{
    REQUIRE(u.place == CLV_SL && v.place == CLV_SL && v.dtype == u.dtype, v, u);
    REQUIRE(clv_rows(u) == clv_rows(v) && clv_last(u) == branches(act) * clv_last(v), v, u);
    cx->be->act_forward(v, u, act);
}

void clv_act_backward(clv_ctx *cx, clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act)
{
    REQUIRE(u.place == CLV_SL && dv.place == CLV_SL && dv.dtype == u.dtype && alike(du, u), du, u);
    REQUIRE(clv_rows(u) == clv_rows(dv) && clv_last(u) == branches(act) * clv_last(dv), dv, u);
    cx->be->act_backward(du, dv, u, act);
}

void clv_embed_forward(clv_ctx *cx, clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first)
{
    REQUIRE(y.place == CLV_R || (y.place == CLV_P && y.dtype == CLV_F32), y, w);
    REQUIRE(w.ndim == 2 && clv_last(y) == w.dim[1], y, w);
    REQUIRE(has_type(ids, CLV_I32, clv_rows(y)), ids, y);
    cx->be->embed_forward(y, ids, w, first);
}

void clv_embed_backward(clv_ctx *cx, clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first)
{
    REQUIRE(whole_rows(dy), dy, dw);
    REQUIRE(dw.ndim == 2 && dw.dtype == CLV_F32 && clv_last(dy) == dw.dim[1], dy, dw);
    REQUIRE(has_type(ids, CLV_I32, clv_rows(dy)), ids, dy);
    cx->be->embed_backward(dw, dy, ids, first);
}

void clv_embed_add(clv_ctx *cx, clv_tensor y, clv_tensor ids, clv_tensor w)
{
    REQUIRE(whole_rows(y) && y.dtype == w.dtype, y, w);
    REQUIRE(w.ndim == 2 && clv_last(y) == w.dim[1], y, w);
    REQUIRE(has_type(ids, CLV_I32, clv_rows(y)), ids, y);
    cx->be->embed_add(y, ids, w);
}

void clv_residual_forward(clv_ctx *cx, clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias,
                          const clv_dropout *drop)
{
    REQUIRE(x.ndim == 3 && whole_rows(x) && alike(y, x), y, x);
    REQUIRE(alike(z, x), z, x);
    REQUIRE(absent_or_vector(bias, clv_last(x)) && (bias.ndim == 0 || bias.dtype == x.dtype), bias, x);
    REQUIRE(drop_fits(drop, x.dim[1]), drop->sample, x);
    cx->be->residual_forward(y, x, z, bias, drop);
}

void clv_residual_backward(clv_ctx *cx, clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop)
{
    REQUIRE(dy.ndim == 3 && whole_rows(dy) && alike(dz, dy), dz, dy);
    REQUIRE(absent_or_vector(dbias, clv_last(dy)), dbias, dy);
    REQUIRE(drop_fits(drop, dy.dim[1]), drop->sample, dy);
    cx->be->residual_backward(dz, dbias, dy, drop);
}

/* ---- cross entropy ----------------------------------------------------------------------------------------------- */

static int64_t check_ce(clv_tensor logits, const clv_ce *ce)
{
    const int64_t rows = clv_rows(logits);
    REQUIRE(logits.place == CLV_SL && logits.dtype == CLV_F32, logits, ce->target);
    REQUIRE(has_type(ce->target, CLV_I32, rows), logits, ce->target);
    CLV_CHECK(ce->real >= 0 && ce->real <= clv_last(logits), "%lld real classes in %lld columns", (long long)ce->real,
              (long long)clv_last(logits));
    return rows;
}

void clv_ce_max(clv_ctx *cx, clv_tensor max, clv_tensor logits, const clv_ce *ce)
{
    const int64_t rows = check_ce(logits, ce);
    REQUIRE(has_type(max, CLV_F32, rows), max, logits);
    cx->be->ce_max(max, logits, ce);
}

void clv_ce_sums(clv_ctx *cx, clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max,
                 const clv_ce *ce)
{
    const int64_t rows = check_ce(logits, ce);
    REQUIRE(has_type(target_logit, CLV_F32, rows), target_logit, logits);
    REQUIRE(has_type(sums, CLV_F32, 2 * rows), sums, logits);
    REQUIRE(has_type(max, CLV_F32, rows), max, logits);
    cx->be->ce_sums(target_logit, sums, logits, max, ce);
}

void clv_ce_loss(clv_ctx *cx, clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums,
                 const clv_ce *ce)
{
    const int64_t rows = clv_numel(ce->target);
    REQUIRE(has_type(loss, CLV_F32, rows) && has_type(nll, CLV_F32, rows), loss, nll);
    REQUIRE(has_type(target_logit, CLV_F32, rows) && has_type(sums, CLV_F32, 2 * rows), target_logit, sums);
    CLV_CHECK(ce->smoothing == 0.0f || ce->classes > 1, "smoothing over %lld classes", (long long)ce->classes);
    cx->be->ce_loss(loss, nll, target_logit, sums, ce);
}

void clv_ce_backward(clv_ctx *cx, clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight,
                     const clv_ce *ce)
{
    const int64_t rows = check_ce(logits, ce);
    REQUIRE(has_type(max, CLV_F32, rows) && has_type(sums, CLV_F32, 2 * rows), max, sums);
    REQUIRE(has_type(weight, CLV_F32, rows), weight, logits);
    cx->be->ce_backward(logits, max, sums, weight, ce);
}

/* ---- whole tensors, AdamW ---------------------------------------------------------------------------------------- */

void clv_zero(clv_ctx *cx, clv_tensor t)
{
    cx->be->zero(t);
}

void clv_copy(clv_ctx *cx, clv_tensor y, clv_tensor x)
{
    REQUIRE(clv_numel(y) == clv_numel(x) && y.place == x.place, y, x);
    REQUIRE(y.dtype == x.dtype || (y.dtype <= CLV_F16 && x.dtype <= CLV_F16), y, x);
    cx->be->copy(y, x);
}

void clv_add(clv_ctx *cx, clv_tensor y, clv_tensor x)
{
    REQUIRE(clv_numel(y) == clv_numel(x) && y.place == x.place && y.dtype == x.dtype, y, x);
    cx->be->add(y, x);
}

void clv_scale(clv_ctx *cx, clv_tensor y, float a)
{
    cx->be->scale(y, a);
}

void clv_sum_squares(clv_ctx *cx, clv_tensor sum, clv_tensor x)
{
    REQUIRE(has_type(sum, CLV_F64, 1), sum, x);
    cx->be->sum_squares(sum, x);
}

void clv_dot(clv_ctx *cx, clv_tensor sum, clv_tensor w, clv_tensor x)
{
    REQUIRE(has_type(sum, CLV_F64, 1), sum, x);
    REQUIRE(has_type(w, CLV_F32, clv_numel(x)) && x.dtype == CLV_F32, w, x);
    cx->be->dot(sum, w, x);
}

void clv_to_host(clv_ctx *cx, void *out, clv_tensor t)
{
    cx->be->to_host(out, t);
}

void clv_from_host(clv_ctx *cx, clv_tensor t, const void *in)
{
    cx->be->from_host(t, in);
}

void *clv_host_memory(const clv_ctx *cx, clv_tensor t)
{
    return cx->be->apart ? NULL : t.data;
}

enum { PIECE = 4096 }; /* elements that are converted at once on their way to or from the host */

static void floats(clv_ctx *cx, clv_tensor t, float *out, const float *in)
{
    const int64_t n = clv_numel(t);
    const clv_tensor flat = n > 0 ? clv_reshape2(t, n, 1) : t;
    for (int64_t at = 0; at < n; at += PIECE) {
        const size_t mark = clv_arena_mark(cx->temp);
        const clv_tensor part = clv_slice(flat, at, CLV_MIN(PIECE, n - at));
        const clv_tensor wide = clv_placed(clv_new_as(cx->temp, CLV_F32, part.dim[0], 1), part.place);
        if (out != NULL) {
            clv_copy(cx, wide, part);
            clv_to_host(cx, out + at, wide);
        } else {
            clv_from_host(cx, wide, in + at);
            clv_copy(cx, part, wide);
        }
        clv_arena_release(cx->temp, mark);
    }
}

void clv_to_floats(clv_ctx *cx, float *out, clv_tensor t)
{
    if (t.dtype == CLV_F32)
        clv_to_host(cx, out, t);
    else
        floats(cx, t, out, NULL);
}

void clv_from_floats(clv_ctx *cx, clv_tensor t, const float *in)
{
    if (t.dtype == CLV_F32)
        clv_from_host(cx, t, in);
    else
        floats(cx, t, NULL, in);
}

void clv_adamw_step(clv_ctx *cx, const clv_moving *to, clv_tensor g, const clv_adamw *a)
{
    const int64_t n = clv_numel(to->w);
    const bool rounds = to->half.ndim > 0;
    REQUIRE(has_type(to->w, CLV_F32, n) && has_type(g, CLV_F32, n), to->w, g);
    REQUIRE(has_type(to->m, CLV_F32, n) && has_type(to->v, CLV_F32, n), to->m, to->v);
    REQUIRE(!rounds || has_type(to->half, to->half.dtype == CLV_F16 ? CLV_F16 : CLV_BF16, n), to->w, to->half);
    CLV_CHECK(a->step >= 1, "AdamW counts updates from 1, not %lld", (long long)a->step);
    cx->be->adamw(to, g, a);
}
