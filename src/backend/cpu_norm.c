/* cpu_norm.c - LayerNorm and RMSNorm over rows, RMSNorm over heads.
 *
 * With xhat = (x - mean) r and e = dy g:  dx = r (e - mean(e) - xhat mean(e xhat)),  dg = sum dy xhat,  db = sum dy.
 * RMSNorm is the same with mean = 0 and without mean(e). Sums over rows: the rows are cut into as many parts as there
 * are threads, each part keeps its own sums, and these are added in order.
 */
#include "cpu_internal.h"

static void normalize(float *y, const float *x, const clv_norm *norm, const float *stat, int64_t h)
{
    const float *g = norm->g.data, *b = norm->kind == CLV_LAYERNORM && norm->b.ndim > 0 ? norm->b.data : NULL;
    const float mean = stat[0], r = stat[1];
    if (b != NULL) {
        CPU_SIMD
        for (int64_t i = 0; i < h; i++)
            y[i] = (x[i] - mean) * r * g[i] + b[i];
    } else {
        CPU_SIMD
        for (int64_t i = 0; i < h; i++)
            y[i] = (x[i] - mean) * r * g[i];
    }
}

static void statistics(float *stat, const float *x, const clv_norm *norm, int64_t h)
{
    float mean = 0.0f, square = 0.0f;
    if (norm->kind == CLV_LAYERNORM) {
        CPU_SIMD_SUM(mean)
        for (int64_t i = 0; i < h; i++)
            mean += x[i];
        mean /= (float)h;
    }
    CPU_SIMD_SUM(square)
    for (int64_t i = 0; i < h; i++)
        square += (x[i] - mean) * (x[i] - mean);
    stat[0] = mean;
    stat[1] = 1.0f / sqrtf(square / (float)h + norm->eps);
}

void CPU(norm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm)
{
    const int64_t rows = clv_rows(x), h = clv_last(x);
    CPU_PARALLEL(rows * h)
    for (int64_t r = 0; r < rows; r++) {
        statistics(cpu_row(stat, r), cpu_row(x, r), norm, h);
        normalize(cpu_row(y, r), cpu_row(x, r), norm, cpu_row(stat, r), h);
    }
}

typedef struct norm_row {
    const float *dy, *x;
    float mean, r;
} norm_row;

/* dx (+)= gradient; sums[0 .. h-1] += dy xhat, sums[h .. 2h-1] += dy if there is a shift. dx may be dy. */
static void row_backward(float *dx, norm_row row, const clv_norm *norm, float *sums, bool add)
{
    const int64_t h = clv_numel(norm->g);
    const float *g = norm->g.data, *dy = row.dy, *x = row.x;
    const float mean = row.mean, r = row.r, old = add ? 1.0f : 0.0f;
    float *dg = sums, *db = sums + h;
    float e1 = 0.0f, e2 = 0.0f;
    CPU_SIMD_SUM(e1, e2)
    for (int64_t i = 0; i < h; i++) {
        const float e = dy[i] * g[i];
        e1 += e;
        e2 += e * ((x[i] - mean) * r);
    }
    e1 = norm->kind == CLV_LAYERNORM ? e1 / (float)h : 0.0f;
    e2 /= (float)h;
    CPU_SIMD
    for (int64_t i = 0; i < h; i++) {
        const float xhat = (x[i] - mean) * r, d = dy[i];
        dg[i] += d * xhat;
        db[i] += d;
        dx[i] = old * dx[i] + r * (d * g[i] - e1 - xhat * e2);
    }
}

/* dg, db += the parts' sums, in order. */
static void sums_add(const clv_norm *norm, const float *sums, int64_t parts)
{
    const int64_t h = clv_numel(norm->g);
    float *dg = norm->dg.data, *db = norm->kind == CLV_LAYERNORM && norm->db.ndim > 0 ? norm->db.data : NULL;
    for (int64_t p = 0; p < parts; p++) {
        const float *part = sums + p * 2 * h;
        CPU_SIMD
        for (int64_t i = 0; i < h; i++)
            dg[i] += part[i];
        for (int64_t i = 0; db != NULL && i < h; i++)
            db[i] += part[h + i];
    }
}

void CPU(norm_backward)(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat, const clv_norm *norm)
{
    const int64_t rows = clv_rows(x), h = clv_last(x), parts = clv_backend_threads();
    const size_t mark = clv_arena_mark(cx->temp);
    float *sums = clv_arena_push(cx->temp, clv_scratch_norm(h));
    memset(sums, 0, clv_scratch_norm(h));
    CPU_PARALLEL(rows * h)
    for (int64_t p = 0; p < parts; p++)
        for (int64_t r = cpu_part(rows, p, parts); r < cpu_part(rows, p + 1, parts); r++) {
            const float *at = cpu_row(stat, r);
            const norm_row row = {cpu_row(dy, r), cpu_row(x, r), at[0], at[1]};
            row_backward(cpu_row(dx, r), row, norm, sums + p * 2 * h, true);
        }
    sums_add(norm, sums, parts);
    clv_arena_release(cx->temp, mark);
}

/* ---- heads: always RMSNorm
 * --------------------------------------------------------------------------------------------------- */

void CPU(headnorm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm)
{
    const int64_t rows = clv_rows(x);
    const clv_norm rms = {.kind = CLV_RMSNORM, .eps = norm->eps, .g = norm->g, .dg = norm->dg};
    CPU_PARALLEL(rows * at.count * at.dim)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t head = 0; head < at.count; head++) {
            const int64_t off = at.off + head * at.dim;
            float both[2];
            statistics(both, cpu_row(x, r) + off, &rms, at.dim);
            normalize(cpu_row(y, r) + off, cpu_row(x, r) + off, &rms, both, at.dim);
            cpu_row(stat, r)[head] = both[1];
        }
}

void CPU(headnorm_backward)(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                            const clv_norm *norm)
{
    const int64_t rows = clv_rows(x), parts = clv_backend_threads();
    const clv_norm rms = {.kind = CLV_RMSNORM, .eps = norm->eps, .g = norm->g, .dg = norm->dg};
    const size_t mark = clv_arena_mark(cx->temp);
    float *sums = clv_arena_push(cx->temp, clv_scratch_norm(at.dim));
    memset(sums, 0, clv_scratch_norm(at.dim));
    CPU_PARALLEL(rows * at.count * at.dim)
    for (int64_t p = 0; p < parts; p++)
        for (int64_t r = cpu_part(rows, p, parts); r < cpu_part(rows, p + 1, parts); r++)
            for (int64_t head = 0; head < at.count; head++) {
                float *d = cpu_row(du, r) + at.off + head * at.dim;
                const norm_row row = {d, cpu_row(x, r) + at.off + head * at.dim, 0.0f, cpu_row(stat, r)[head]};
                row_backward(d, row, &rms, sums + p * 2 * at.dim, false);
            }
    sums_add(&rms, sums, parts);
    clv_arena_release(cx->temp, mark);
}
