/* ref_attention.c - attention a query at a time, and the rotation of its heads.
 *
 *   s_ij = scale q_i k_j        p_ij = exp(s_ij - lse_i) over the keys that i sees,  lse_i = log sum_j exp(s_ij)
 *   o_i  = sum_j w_ij p_ij v_j  with w_ij what dropout multiplies by, 1 without
 *
 *   ds_ij = p_ij (w_ij (do_i v_j) - do_i o_i)
 *   dq_i = scale sum_j ds_ij k_j      dk_j = scale sum_i ds_ij q_i      dv_j = sum_i w_ij p_ij do_i
 *
 * where a key's sums run over all query heads of its group. Sources: Vaswani et al. 2017; Ainslie et al. 2023 (groups);
 * Su et al. 2021 (rotation).
 */
#include "ref_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void clv_ref_rope(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign)
{
    const int64_t half = clv_last(table) / 2, width = clv_last(u);
    const int32_t *position = pos.data;
    for (int64_t i = 0; i < clv_rows(u); i++)
        for (int64_t head = 0; head < at.count; head++) {
            const float *cosine = clv_ref_f32(table) + position[i] * 2 * half, *sine = cosine + half;
            float *x = clv_ref_f32(u) + i * width + at.off + head * at.dim;
            for (int64_t k = 0; k < half; k++) {
                const double a = (double)x[k], b = (double)x[k + half];
                const double c = (double)cosine[k], s = sign * (double)sine[k];
                x[k] = (float)(a * c - b * s);
                x[k + half] = (float)(b * c + a * s);
            }
        }
}

/* One query head of one sequence of the batch, and the KV head that serves it. */
typedef struct head {
    const clv_attn *a;
    clv_tensor q, kv;
    int64_t batch, index;
} head;

/* The vector of head `index` in the section `at` of row i. */
static float *vector(clv_tensor t, clv_heads at, int64_t i, int64_t batch, int64_t index)
{
    return clv_ref_f32(t) + (i * t.dim[1] + batch) * clv_last(t) + at.off + index * at.dim;
}

static int64_t kv_index(const head *h)
{
    return h->index / (h->a->q.count / h->a->k.count);
}

static const float *key(const head *h, int64_t j)
{
    return vector(h->kv, h->a->k, j, h->batch, kv_index(h));
}

static const float *value(const head *h, int64_t j)
{
    return vector(h->kv, h->a->v, j, h->batch, kv_index(h));
}

static double dot(const float *x, const float *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t k = 0; k < n; k++)
        sum += (double)x[k] * (double)y[k];
    return sum;
}

static bool sees(const head *h, int64_t i, int64_t j)
{
    const int64_t sq = h->q.dim[0], batches = h->q.dim[1], sk = h->kv.dim[0];
    const int32_t *range = (const int32_t *)h->a->range.data + (i * batches + h->batch) * 2;
    const uint8_t *mask = h->a->mask.data;
    return range[0] <= j && j < range[1] && (h->a->mask.ndim == 0 || mask[(h->batch * sq + i) * sk + j] != 0);
}

static double score(const head *h, int64_t i, int64_t j)
{
    return (double)h->a->scale * dot(vector(h->q, h->a->q, i, h->batch, h->index), key(h, j), h->a->q.dim);
}

static double keep(const head *h, int64_t i, int64_t j)
{
    const int64_t sq = h->q.dim[0], sk = h->kv.dim[0];
    return clv_ref_keep(&h->a->drop, h->batch, ((h->a->drop.first + h->index) * sq + i) * sk + j);
}

/* o_i, and lse_i as the result. A query that sees nothing: 0 and -inf. */
static double attend(const head *h, int64_t i, float *o, double *sums)
{
    const int64_t sk = h->kv.dim[0], d = h->a->v.dim;
    double max = -INFINITY, total = 0.0;
    for (int64_t j = 0; j < sk; j++)
        if (sees(h, i, j))
            max = fmax(max, score(h, i, j));
    memset(sums, 0, (size_t)d * sizeof(double));
    for (int64_t j = 0; j < sk; j++) {
        if (!sees(h, i, j))
            continue;
        const double e = exp(score(h, i, j) - max), w = keep(h, i, j);
        total += e;
        for (int64_t k = 0; k < d; k++)
            sums[k] += w * e * (double)value(h, j)[k];
    }
    for (int64_t k = 0; k < d; k++)
        o[k] = (float)(total == 0.0 ? 0.0 : sums[k] / total);
    return total == 0.0 ? -INFINITY : max + log(total);
}

static clv_heads heads_of_output(const clv_attn *a)
{
    return (clv_heads){0, a->q.count, a->q.dim};
}

void clv_ref_attention_forward(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv,
                               const clv_attn *a)
{
    (void)cx;
    const int64_t sq = q.dim[0], batches = q.dim[1], n = a->q.count;
    double *sums = clv_alloc((size_t)a->v.dim, sizeof(double));
    for (int64_t b = 0; b < batches; b++)
        for (int64_t index = 0; index < n; index++)
            for (int64_t i = 0; i < sq; i++) {
                const head h = {a, q, kv, b, index};
                float *out = vector(o, heads_of_output(a), i, b, index);
                clv_ref_f32(lse)[(b * n + index) * sq + i] = (float)attend(&h, i, out, sums);
            }
    free(sums);
}

/* What the backward knows of pair (i, j): 0 and 0 where i does not see j. */
typedef struct pair {
    double ds, wp; /* ds_ij, w_ij p_ij */
} pair;

static pair pair_gradient(const head *h, clv_tensor dout, const clv_attn_saved *saved, int64_t i, int64_t j)
{
    const int64_t d = h->a->v.dim, n = h->a->q.count;
    const double lse = (double)clv_ref_f32(saved->lse)[(h->batch * n + h->index) * h->q.dim[0] + i];
    if (!sees(h, i, j))
        return (pair){0.0, 0.0};
    const float *o = vector(saved->o, heads_of_output(h->a), i, h->batch, h->index);
    const float *grad = vector(dout, heads_of_output(h->a), i, h->batch, h->index);
    const double p = exp(score(h, i, j) - lse), w = keep(h, i, j);
    return (pair){p * (w * dot(grad, value(h, j), d) - dot(grad, o, d)), w * p};
}

static void query_gradient(const head *h, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved, double *dq)
{
    const int64_t s = h->q.dim[0], d = h->a->q.dim;
    for (int64_t i = 0; i < s; i++) {
        memset(dq, 0, (size_t)d * sizeof(double));
        for (int64_t j = 0; j < s; j++) {
            const double ds = pair_gradient(h, dout, saved, i, j).ds;
            for (int64_t k = 0; k < d; k++)
                dq[k] += (double)h->a->scale * ds * (double)key(h, j)[k];
        }
        for (int64_t k = 0; k < d; k++)
            vector(dqkv, h->a->q, i, h->batch, h->index)[k] = (float)dq[k];
    }
}

/* What query head h gives to dk_j and dv_j. */
static void add_key_gradient(const head *h, clv_tensor dout, const clv_attn_saved *saved, int64_t j, double *dkv)
{
    const int64_t s = h->q.dim[0], d = h->a->k.dim;
    for (int64_t i = 0; i < s; i++) {
        const pair at = pair_gradient(h, dout, saved, i, j);
        const float *q = vector(h->q, h->a->q, i, h->batch, h->index);
        const float *grad = vector(dout, heads_of_output(h->a), i, h->batch, h->index);
        for (int64_t k = 0; k < d; k++) {
            dkv[k] += (double)h->a->scale * at.ds * (double)q[k];
            dkv[d + k] += at.wp * (double)grad[k];
        }
    }
}

/* dk and dv of the KV head that serves `group` query heads from h on. */
static void key_gradient(head h, int64_t group, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                         double *dkv)
{
    const int64_t s = h.q.dim[0], d = h.a->k.dim, kv = kv_index(&h), first = h.index;
    for (int64_t j = 0; j < s; j++) {
        memset(dkv, 0, 2 * (size_t)d * sizeof(double));
        for (h.index = first; h.index < first + group; h.index++)
            add_key_gradient(&h, dout, saved, j, dkv);
        for (int64_t k = 0; k < d; k++) {
            vector(dqkv, h.a->k, j, h.batch, kv)[k] = (float)dkv[k];
            vector(dqkv, h.a->v, j, h.batch, kv)[k] = (float)dkv[d + k];
        }
    }
}

void clv_ref_attention_backward(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                                const clv_attn *a)
{
    (void)cx;
    const int64_t batches = saved->qkv.dim[1], group = a->q.count / a->k.count;
    double *sums = clv_alloc(2 * (size_t)a->q.dim, sizeof(double));
    for (int64_t b = 0; b < batches; b++) {
        for (int64_t index = 0; index < a->q.count; index++) {
            const head h = {a, saved->qkv, saved->qkv, b, index};
            query_gradient(&h, dqkv, dout, saved, sums);
        }
        for (int64_t index = 0; index < a->q.count; index += group) {
            const head h = {a, saved->qkv, saved->qkv, b, index};
            key_gradient(h, group, dqkv, dout, saved, sums);
        }
    }
    free(sums);
}

/* First position after i that belongs to another document. */
static int32_t document_end(const int32_t *doc, int64_t i, int64_t b, int64_t s, int64_t batches)
{
    int64_t end = i + 1;
    while (end < s && doc[end * batches + b] == doc[i * batches + b])
        end++;
    return (int32_t)end;
}

void clv_ref_attention_range(clv_tensor range, clv_tensor doc, bool causal, int64_t window)
{
    const int64_t s = range.dim[0], batches = range.dim[1];
    const int32_t *start = doc.data;
    int32_t *out = range.data;
    for (int64_t i = 0; i < s; i++)
        for (int64_t b = 0; b < batches; b++) {
            const bool packed = doc.ndim > 0;
            const int32_t end = packed && !causal ? document_end(start, i, b, s, batches) : (int32_t)s;
            const int32_t hi = causal ? (int32_t)i + 1 : end;
            int32_t lo = packed ? start[i * batches + b] : 0;
            if (window > 0)
                lo = (int32_t)CLV_MAX(lo, hi - window);
            out[(i * batches + b) * 2] = lo;
            out[(i * batches + b) * 2 + 1] = hi;
        }
}
