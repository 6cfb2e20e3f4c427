/* cpu_embed.c - lookup and its gradient, and the rotation of heads. */
#include "cpu_internal.h"

static float *table_row(clv_tensor table, clv_tensor ids, int64_t i, int64_t first)
{
    const int64_t row = ((const int32_t *)ids.data)[i] - first;
    return row >= 0 && row < table.dim[0] ? cpu_row(table, row) : NULL;
}

void CPU(embed_forward)(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first)
{
    const int64_t rows = clv_rows(y), h = clv_last(y);
    CPU_PARALLEL(rows * h)
    for (int64_t i = 0; i < rows; i++) {
        const float *from = table_row(w, ids, i, first);
        if (from != NULL)
            memcpy(cpu_row(y, i), from, (size_t)h * sizeof(float));
        else
            memset(cpu_row(y, i), 0, (size_t)h * sizeof(float));
    }
}

/* Tokens repeat, so threads divide the columns: every row of dW is summed in the order of the tokens. */
void CPU(embed_backward)(clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first)
{
    const int64_t rows = clv_rows(dy), h = clv_last(dy), lines = CLV_CEIL_DIV(h, CPU_LINE);
    const int64_t parts = CLV_MIN(clv_backend_threads(), lines);
    CPU_PARALLEL(rows * h)
    for (int64_t p = 0; p < parts; p++) {
        const int64_t from = cpu_part(lines, p, parts) * CPU_LINE;
        const int64_t to = CLV_MIN(h, cpu_part(lines, p + 1, parts) * CPU_LINE);
        for (int64_t i = 0; i < rows; i++) {
            float *sum = table_row(dw, ids, i, first);
            const float *d = cpu_row(dy, i);
            CPU_SIMD
            for (int64_t j = from; j < (sum != NULL ? to : from); j++)
                sum[j] += d[j];
        }
    }
}

void CPU(embed_add)(clv_tensor y, clv_tensor ids, clv_tensor w)
{
    const int64_t rows = clv_rows(y), h = clv_last(y);
    CPU_PARALLEL(rows * h)
    for (int64_t i = 0; i < rows; i++) {
        const float *from = table_row(w, ids, i, 0);
        float *to = cpu_row(y, i);
        CPU_SIMD
        for (int64_t j = 0; j < (from != NULL ? h : 0); j++)
            to[j] += from[j];
    }
}

void CPU(rope)(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign)
{
    const int64_t rows = clv_rows(u), half = clv_last(table) / 2;
    const int32_t *position = pos.data;
    const float turn = (float)sign;
    CPU_PARALLEL(rows * at.count * at.dim)
    for (int64_t r = 0; r < rows; r++) {
        const float *cosine = cpu_row(table, position[r]), *sine = cosine + half;
        for (int64_t head = 0; head < at.count; head++) {
            float *x = cpu_row(u, r) + at.off + head * at.dim, *y = x + half;
            CPU_SIMD
            for (int64_t i = 0; i < half; i++) {
                const float a = x[i], b = y[i], s = turn * sine[i];
                x[i] = a * cosine[i] - b * s;
                y[i] = b * cosine[i] + a * s;
            }
        }
    }
}
