/* cpu_random.c - dropout: many Philox blocks at once, one in each lane; the same bits as clv_uniform_at. */
#include "cpu_internal.h"

enum { LANES = 16, WORDS = 4 * LANES };

/* uniform[0 .. 63]: elements 4 block .. 4 block + 63 of the stream. A word stands in the low half of a lane of 64 bits,
 * whose high half is not kept clean: a product of 32 bits by 32 does not read it. */
static void uniforms(float *uniform, uint64_t key, uint64_t block)
{
    uint64_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    for (int i = 0; i < LANES; i++) {
        c0[i] = block + (uint64_t)i;
        c1[i] = c0[i] >> 32;
        c2[i] = c3[i] = 0;
    }
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        CPU_SIMD
        for (int i = 0; i < LANES; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * (uint32_t)c0[i];
            const uint64_t p1 = (uint64_t)0xCD9E8D57u * (uint32_t)c2[i];
            c0[i] = (p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = p1;
            c2[i] = (p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < LANES; i++) {
        uniform[4 * i] = (float)(int32_t)((uint32_t)c0[i] >> 8) * 0x1p-24f;
        uniform[4 * i + 1] = (float)(int32_t)((uint32_t)c1[i] >> 8) * 0x1p-24f;
        uniform[4 * i + 2] = (float)(int32_t)((uint32_t)c2[i] >> 8) * 0x1p-24f;
        uniform[4 * i + 3] = (float)(int32_t)((uint32_t)c3[i] >> 8) * 0x1p-24f;
    }
}

void CPU(keep)(float *factor, int64_t n, const clv_dropout *drop, int64_t column, uint64_t first)
{
    const uint64_t key = clv_dropout_key(drop->key, cpu_sample(drop, column));
    const float p = drop->p, scale = 1.0f / (1.0f - drop->p);
    float uniform[WORDS];
    int64_t done = 0;
    while (done < n) {
        const uint64_t element = first + (uint64_t)done;
        const int64_t skip = (int64_t)(element & 3);
        const int64_t take = CLV_MIN(WORDS - skip, n - done);
        uniforms(uniform, key, element >> 2);
        CPU_SIMD
        for (int64_t i = 0; i < take; i++)
            factor[done + i] = uniform[skip + i] >= p ? scale : 0.0f;
        done += take;
    }
}

enum { PIECE = 256 }; /* elements whose factors are made at once, on the stack */

/* One row of y = x f, and of y = x + (z + bias) f; f = 1 without dropout. */
CPU_BODY void drop_row(void *y, const void *x, int64_t h, const clv_dropout *drop, int64_t row, clv_dtype type)
{
    const int64_t columns = clv_numel(drop->sample);
    const uint64_t first = (uint64_t)((drop->first + row / columns) * h);
    float factor[PIECE];
    for (int64_t j = 0; j < h; j += PIECE) {
        const int64_t n = CLV_MIN(PIECE, h - j);
        CPU(keep)(factor, n, drop, row % columns, first + (uint64_t)j);
        CPU_SIMD
        for (int64_t i = 0; i < n; i++)
            cpu_put(y, j + i, cpu_get(x, j + i, type) * factor[i], type);
    }
}

void CPU(dropout)(clv_tensor y, clv_tensor x, const clv_dropout *drop)
{
    if (!cpu_drops(drop)) {
        if (y.data != x.data)
            CPU(copy)(y, x);
        return;
    }
    const int64_t rows = clv_rows(x), h = clv_last(x);
    CPU_PARALLEL(rows * h)
    for (int64_t r = 0; r < rows; r++)
        CPU_TYPED(x.dtype, drop_row, cpu_row_at(y, r), cpu_row_at(x, r), h, drop, r);
}

/* y = x + (z + bias) factor; factor and bias may be missing. */
typedef struct joint {
    void *y;
    const void *x, *z, *bias;
    const float *factor;
} joint;

CPU_BODY void join(const joint *at, int64_t n, clv_dtype type)
{
    void *y = at->y;
    const void *x = at->x, *z = at->z, *bias = at->bias;
    const float *factor = at->factor;
    CPU_SIMD
    for (int64_t i = 0; i < n; i++) {
        const float sum = cpu_get(z, i, type) + (bias != NULL ? cpu_get(bias, i, type) : 0.0f);
        cpu_put(y, i, cpu_get(x, i, type) + (factor != NULL ? sum * factor[i] : sum), type);
    }
}

void CPU(residual_forward)(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop)
{
    const int64_t rows = clv_rows(x), h = clv_last(x);
    const int64_t columns = cpu_drops(drop) ? clv_numel(drop->sample) : 1;
    CPU_PARALLEL(rows * h)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < h; j += PIECE) {
            const int64_t n = CLV_MIN(PIECE, h - j);
            const int64_t at = r * h + j;
            float factor[PIECE], *kept = NULL;
            if (cpu_drops(drop)) {
                kept = factor;
                CPU(keep)(factor, n, drop, r % columns, (uint64_t)((drop->first + r / columns) * h + j));
            }
            const joint row = {cpu_at(y, at), cpu_at(x, at), cpu_at(z, at), bias.ndim > 0 ? cpu_at(bias, j) : NULL,
                               kept};
            CPU_TYPED(x.dtype, join, &row, n);
        }
}

void CPU(residual_backward)(clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop)
{
    CPU(dropout)(dz, dy, drop);
    if (dbias.ndim > 0)
        CPU(column_sums)(dbias, dz);
}
