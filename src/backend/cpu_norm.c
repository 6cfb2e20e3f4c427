/* cpu_norm.c - LayerNorm and RMSNorm over rows, RMSNorm over heads.
 *
 * With xhat = (x - mean) r and e = dy g:  dx = r (e - mean(e) - xhat mean(e xhat)),  dg = sum dy xhat,  db = sum dy.
 * RMSNorm is the same with mean = 0 and without mean(e). Sums over rows: the rows are cut into as many parts as there
 * are threads, each part keeps its own sums, and these are added in order.
 */
#include "cpu_internal.h"

/* What a shift does not follow is rounded before the weight multiplies it: so do the models that Hugging Face has. */
CPU_BODY void normalize(void *y, const void *x, const clv_norm *norm, const float *stat, int64_t h, clv_dtype type)
{
    const void *g = norm->g.data, *b = norm->kind == CLV_LAYERNORM && norm->b.ndim > 0 ? norm->b.data : NULL;
    const float mean = stat[0], r = stat[1];
    if (b != NULL) {
        CPU_SIMD
        for (int64_t i = 0; i < h; i++)
            cpu_put(y, i, (cpu_get(x, i, type) - mean) * r * cpu_get(g, i, type) + cpu_get(b, i, type), type);
    } else {
        CPU_SIMD
        for (int64_t i = 0; i < h; i++)
            cpu_put(y, i, cpu_rounded((cpu_get(x, i, type) - mean) * r, type) * cpu_get(g, i, type), type);
    }
}

CPU_BODY void statistics(float *stat, const void *x, const clv_norm *norm, int64_t h, clv_dtype type)
{
    float mean = 0.0f, square = 0.0f;
    if (norm->kind == CLV_LAYERNORM) {
        CPU_SUM(mean, h, i, cpu_get(x, i, type));
        mean /= (float)h;
    }
    CPU_SUM(square, h, i, (cpu_get(x, i, type) - mean) * (cpu_get(x, i, type) - mean));
    stat[0] = mean;
    stat[1] = 1.0f / sqrtf(square / (float)h + norm->eps);
}

void CPU(norm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm)
{
    const int64_t rows = clv_rows(x), h = clv_last(x);
    CPU_PARALLEL(rows * h)
    for (int64_t r = 0; r < rows; r++) {
        CPU_TYPED(x.dtype, statistics, cpu_row(stat, r), cpu_row_at(x, r), norm, h);
        CPU_TYPED(x.dtype, normalize, cpu_row_at(y, r), cpu_row_at(x, r), norm, cpu_row(stat, r), h);
    }
}

typedef struct norm_row {
    void *dx; /* may be dy */
    const void *dy, *x;
    float mean, r;
} norm_row;

/* dx (+)= gradient; sums[0 .. h-1] += dy xhat, sums[h .. 2h-1] += dy if there is a shift. */
CPU_BODY void row_backward(const norm_row *row, const clv_norm *norm, float *sums, bool add, clv_dtype type)
{
    const int64_t h = clv_numel(norm->g);
    void *dx = row->dx;
    const void *g = norm->g.data, *dy = row->dy, *x = row->x;
    const float mean = row->mean, r = row->r, old = add ? 1.0f : 0.0f;
    float *dg = sums, *db = sums + h;
    float e1 = 0.0f, e2 = 0.0f;
    if (norm->kind == CLV_LAYERNORM)
        CPU_SUM(e1, h, i, cpu_get(dy, i, type) * cpu_get(g, i, type));
    CPU_SUM(e2, h, i, cpu_get(dy, i, type) * cpu_get(g, i, type) * ((cpu_get(x, i, type) - mean) * r));
    e1 /= (float)h;
    e2 /= (float)h;
    CPU_SIMD
    for (int64_t i = 0; i < h; i++) {
        const float xhat = (cpu_get(x, i, type) - mean) * r, d = cpu_get(dy, i, type);
        dg[i] += d * xhat;
        db[i] += d;
        cpu_put(dx, i, old * cpu_get(dx, i, type) + r * (d * cpu_get(g, i, type) - e1 - xhat * e2), type);
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
            const norm_row row = {cpu_row_at(dx, r), cpu_row_at(dy, r), cpu_row_at(x, r), at[0], at[1]};
            CPU_TYPED(x.dtype, row_backward, &row, norm, sums + p * 2 * h, true);
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
            const int64_t from = r * clv_last(x) + at.off + head * at.dim;
            float both[2];
            CPU_TYPED(x.dtype, statistics, both, cpu_at(x, from), &rms, at.dim);
            CPU_TYPED(x.dtype, normalize, cpu_at(y, from), cpu_at(x, from), &rms, both, at.dim);
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
                const int64_t from = r * clv_last(x) + at.off + head * at.dim;
                const norm_row row = {cpu_at(du, from), cpu_at(du, from), cpu_at(x, from), 0.0f,
                                      cpu_row(stat, r)[head]};
                CPU_TYPED(x.dtype, row_backward, &row, &rms, sums + p * 2 * at.dim, false);
            }
    sums_add(&rms, sums, parts);
    clv_arena_release(cx->temp, mark);
}
