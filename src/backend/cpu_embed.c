/* cpu_embed.c - lookup and its gradient, and the rotation of heads. */
#include "cpu_internal.h"

static void *table_row(clv_tensor table, clv_tensor ids, int64_t i, int64_t first)
{
    const int64_t row = ((const int32_t *)ids.data)[i] - first;
    return row >= 0 && row < table.dim[0] ? cpu_row_at(table, row) : NULL;
}

void CPU(embed_forward)(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first)
{
    const int64_t rows = clv_rows(y), h = clv_last(y);
    CPU_PARALLEL(rows * h)
    for (int64_t i = 0; i < rows; i++) {
        const void *from = table_row(w, ids, i, first);
        if (from != NULL)
            CPU(convert)(cpu_row_at(y, i), y.dtype, from, w.dtype, h);
        else
            memset(cpu_row_at(y, i), 0, (size_t)h * clv_dtype_size(y.dtype));
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
            if (sum != NULL)
                CPU_TYPED(dy.dtype, cpu_add_to, sum + from, cpu_at(dy, i * h + from), to - from);
        }
    }
}

CPU_BODY void add_to_row(void *to, const void *x, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t j = 0; j < n; j++)
        cpu_put(to, j, cpu_get(to, j, type) + cpu_get(x, j, type), type);
}

void CPU(embed_add)(clv_tensor y, clv_tensor ids, clv_tensor w)
{
    const int64_t rows = clv_rows(y), h = clv_last(y);
    CPU_PARALLEL(rows * h)
    for (int64_t i = 0; i < rows; i++) {
        const void *from = table_row(w, ids, i, 0);
        if (from != NULL)
            CPU_TYPED(y.dtype, add_to_row, cpu_row_at(y, i), from, h);
    }
}

/* One head: x_i and x_{i+half}. */
CPU_BODY void turn(void *x, const float *cosine, float sign, int64_t half, clv_dtype type)
{
    const float *sine = cosine + half;
    CPU_SIMD
    for (int64_t i = 0; i < half; i++) {
        const float a = cpu_get(x, i, type), b = cpu_get(x, half + i, type), s = sign * sine[i];
        cpu_put(x, i, a * cosine[i] - b * s, type);
        cpu_put(x, half + i, b * cosine[i] + a * s, type);
    }
}

void CPU(rope)(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign)
{
    const int64_t rows = clv_rows(u), half = clv_last(table) / 2, width = clv_last(u);
    const int32_t *position = pos.data;
    CPU_PARALLEL(rows * at.count * at.dim)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t head = 0; head < at.count; head++)
            CPU_TYPED(u.dtype, turn, cpu_at(u, r * width + at.off + head * at.dim), cpu_row(table, position[r]),
                      (float)sign, half);
}
