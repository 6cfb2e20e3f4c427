/* ref_norm.c - LayerNorm and RMSNorm, over a row or over each head of a row.
 *
 * With xhat = (x - mean) r, r = 1/sqrt(mean((x - mean)^2) + eps), and mean = 0 for RMSNorm:
 *
 *   y = g xhat + b          dg = sum of dy xhat,  db = sum of dy
 *   dx = r (g dy - mean(g dy) - xhat mean(g dy xhat))        without the middle term for RMSNorm
 *
 * Sources: Ba et al. 2016; Zhang and Sennrich 2019.
 */
#include "ref_internal.h"

#include <math.h>

/* One normalized group of n values. */
typedef struct group {
    const float *x, *g;
    int64_t n;
    bool centred; /* LayerNorm */
    double mean, r;
} group;

static double xhat(const group *at, int64_t k)
{
    return ((double)at->x[k] - at->mean) * at->r;
}

static void measure(group *at, double eps)
{
    const double n = (double)at->n;
    double sum = 0.0, squares = 0.0;
    for (int64_t k = 0; k < at->n; k++)
        sum += (double)at->x[k];
    at->mean = at->centred ? sum / n : 0.0;
    for (int64_t k = 0; k < at->n; k++)
        squares += ((double)at->x[k] - at->mean) * ((double)at->x[k] - at->mean);
    at->r = 1.0 / sqrt(squares / n + eps);
}

/* dx_k for k = 0 .. n - 1, added to dx, or written over dy itself. */
static void input_gradient(const group *at, const float *dy, float *dx, bool add)
{
    const double n = (double)at->n;
    double sum = 0.0, along = 0.0;
    for (int64_t k = 0; k < at->n; k++) {
        const double d = (double)at->g[k] * (double)dy[k];
        sum += d;
        along += d * xhat(at, k);
    }
    const double mean = at->centred ? sum / n : 0.0;
    for (int64_t k = 0; k < at->n; k++) {
        const double d = at->r * ((double)at->g[k] * (double)dy[k] - mean - xhat(at, k) * along / n);
        dx[k] = (float)(add ? (double)dx[k] + d : d);
    }
}

void clv_ref_norm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm)
{
    const int64_t n = clv_last(x);
    const float *b = norm->kind == CLV_LAYERNORM ? clv_ref_f32(norm->b) : NULL;
    float *Y = clv_ref_f32(y), *S = clv_ref_f32(stat);
    for (int64_t i = 0; i < clv_rows(x); i++) {
        group at = {clv_ref_f32(x) + i * n, clv_ref_f32(norm->g), n, norm->kind == CLV_LAYERNORM, 0, 0};
        measure(&at, (double)norm->eps);
        for (int64_t k = 0; k < n; k++)
            Y[i * n + k] = (float)((double)at.g[k] * xhat(&at, k) + (b != NULL ? (double)b[k] : 0.0));
        S[2 * i] = (float)at.mean;
        S[2 * i + 1] = (float)at.r;
    }
}

void clv_ref_norm_backward(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat,
                           const clv_norm *norm)
{
    (void)cx;
    const int64_t rows = clv_rows(x), n = clv_last(x);
    const bool centred = norm->kind == CLV_LAYERNORM;
    const float *X = clv_ref_f32(x), *DY = clv_ref_f32(dy), *S = clv_ref_f32(stat);
    float *DX = clv_ref_f32(dx), *dg = clv_ref_f32(norm->dg);
    for (int64_t k = 0; k < n; k++) {
        double sum = (double)dg[k];
        for (int64_t i = 0; i < rows; i++)
            sum += (double)DY[i * n + k] * ((double)X[i * n + k] - (double)S[2 * i]) * (double)S[2 * i + 1];
        dg[k] = (float)sum;
    }
    if (centred)
        clv_ref_column_sums(norm->db, dy);
    for (int64_t i = 0; i < rows; i++) {
        const group at = {X + i * n, clv_ref_f32(norm->g), n, centred, (double)S[2 * i], (double)S[2 * i + 1]};
        input_gradient(&at, DY + i * n, DX + i * n, true);
    }
}

void clv_ref_headnorm_forward(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm)
{
    const int64_t width = clv_last(x);
    float *S = clv_ref_f32(stat);
    for (int64_t i = 0; i < clv_rows(x); i++)
        for (int64_t head = 0; head < at.count; head++) {
            const int64_t from = i * width + at.off + head * at.dim;
            float *Y = clv_ref_f32(y) + from;
            group one = {clv_ref_f32(x) + from, clv_ref_f32(norm->g), at.dim, false, 0, 0};
            measure(&one, (double)norm->eps);
            for (int64_t k = 0; k < at.dim; k++)
                Y[k] = (float)((double)one.g[k] * xhat(&one, k));
            S[i * at.count + head] = (float)one.r;
        }
}

/* dg_k of all heads together, read before du is overwritten. */
static void head_weight_gradient(float *dg, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at)
{
    const int64_t width = clv_last(x);
    const float *X = clv_ref_f32(x), *DU = clv_ref_f32(du), *S = clv_ref_f32(stat);
    for (int64_t k = 0; k < at.dim; k++) {
        double sum = (double)dg[k];
        for (int64_t i = 0; i < clv_rows(x) * at.count; i++) {
            const int64_t e = i / at.count * width + at.off + i % at.count * at.dim + k;
            sum += (double)DU[e] * (double)X[e] * (double)S[i];
        }
        dg[k] = (float)sum;
    }
}

void clv_ref_headnorm_backward(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                               const clv_norm *norm)
{
    (void)cx;
    const int64_t width = clv_last(x);
    const float *S = clv_ref_f32(stat);
    head_weight_gradient(clv_ref_f32(norm->dg), du, x, stat, at);
    for (int64_t i = 0; i < clv_rows(x) * at.count; i++) {
        const int64_t from = i / at.count * width + at.off + i % at.count * at.dim;
        const group one = {clv_ref_f32(x) + from, clv_ref_f32(norm->g), at.dim, false, 0.0, (double)S[i]};
        float *d = clv_ref_f32(du) + from;
        input_gradient(&one, d, d, false);
    }
}
