/* cpu_vector.c - whole tensors: fill, copy, convert, sums, and AdamW (Loshchilov and Hutter 2019).
 *
 * Sums are taken over a fixed number of pieces, whatever the number of threads, and the pieces added in order.
 */
#include "cpu_internal.h"

enum {
    PIECE = 1 << 15, /* elements a thread takes at once */
    SUMS = 256,      /* pieces of a sum */
    STRIP = 1024     /* columns summed at once */
};

/* A loop over pieces [from, to) of n elements. */
#define CPU_PIECES(n)                                                                                                  \
    CPU_PARALLEL(n)                                                                                                    \
    for (int64_t from = 0; from < (n); from += PIECE)

void CPU(zero)(clv_tensor t)
{
    const int64_t bytes = (int64_t)clv_bytes(t);
    CPU_PIECES(bytes)
    memset((char *)t.data + from, 0, (size_t)CLV_MIN(PIECE, bytes - from));
}

/* ---- conversion: to the nearest, ties to even ------------------------------------------------------------------- */

static inline float bf16_get(uint16_t half)
{
    return cpu_from_bits((uint32_t)half << 16);
}

static inline uint16_t bf16_put(float x)
{
    const uint32_t bits = cpu_to_bits(x);
    const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16 | 0x40u) : rounded);
}

/* The exponent moves from bias 15 to 127 by a product, which also makes subnormal numbers normal. */
static inline float f16_get(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7FFF) << 13;
    const float small = (float)(half & 0x3FF) * 0x1p-24f;
    const uint32_t size = rest + ((half & 0x7C00) == 0x7C00 ? (255u - 31u) << 23 : (127u - 15u) << 23);
    return cpu_from_bits(((half & 0x7C00) == 0 ? cpu_to_bits(small) : size) | sign);
}

/* Below 2^-14, adding 1/2 leaves multiples of 2^-24 in the low bits, rounded by the addition itself. */
static inline uint16_t f16_put(float x)
{
    const uint32_t sign = cpu_to_bits(x) >> 16 & 0x8000u, size = cpu_to_bits(x) & 0x7FFFFFFFu;
    const uint32_t small = cpu_to_bits(cpu_from_bits(size) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (size - ((127u - 15u) << 23) + 0xFFFu + (size >> 13 & 1u)) >> 13;
    const uint32_t big = size > 0x7F800000u ? 0x7E00u : 0x7C00u;
    const uint32_t bits = size >= 0x477FF000u ? big : size < 0x38800000u ? small : normal;
    return (uint16_t)(sign | bits);
}

typedef enum conversion { BF16_F32, F16_F32, F32_BF16, F32_F16, BF16_F16, F16_BF16 } conversion;

#define CPU_CONVERT(y_type, x_type, expression)                                                                        \
    do {                                                                                                               \
        y_type *to = (y_type *)y + from;                                                                               \
        const x_type *at = (const x_type *)x + from;                                                                   \
        CPU_SIMD                                                                                                       \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to[i] = expression(at[i]);                                                                                 \
    } while (0)

#define BF16_AS_F16(half) f16_put(bf16_get(half))
#define F16_AS_BF16(half) bf16_put(f16_get(half))

static void convert(void *y, const void *x, int64_t from, int64_t n, conversion kind)
{
    switch (kind) {
    case BF16_F32:
        CPU_CONVERT(float, uint16_t, bf16_get);
        break;
    case F16_F32:
        CPU_CONVERT(float, uint16_t, f16_get);
        break;
    case F32_BF16:
        CPU_CONVERT(uint16_t, float, bf16_put);
        break;
    case F32_F16:
        CPU_CONVERT(uint16_t, float, f16_put);
        break;
    case BF16_F16:
        CPU_CONVERT(uint16_t, uint16_t, BF16_AS_F16);
        break;
    case F16_BF16:
        CPU_CONVERT(uint16_t, uint16_t, F16_AS_BF16);
        break;
    }
}

void CPU(copy)(clv_tensor y, clv_tensor x)
{
    const int64_t n = clv_numel(y);
    if (y.dtype == x.dtype) {
        const int64_t bytes = (int64_t)clv_bytes(y);
        CPU_PIECES(bytes)
        memmove((char *)y.data + from, (const char *)x.data + from, (size_t)CLV_MIN(PIECE, bytes - from));
        return;
    }
    const bool brain = x.dtype == CLV_BF16 || y.dtype == CLV_BF16;
    conversion kind = x.dtype == CLV_BF16 ? BF16_F16 : F16_BF16;
    if (y.dtype == CLV_F32)
        kind = brain ? BF16_F32 : F16_F32;
    else if (x.dtype == CLV_F32)
        kind = brain ? F32_BF16 : F32_F16;
    CPU_PIECES(n)
    convert(y.data, x.data, from, CLV_MIN(PIECE, n - from), kind);
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

void CPU(add)(clv_tensor y, clv_tensor x)
{
    const int64_t n = clv_numel(y);
    float *to = y.data;
    const float *at = x.data;
    CPU_DO_(omp parallel for simd schedule(static) if (n > CPU_SERIAL))
    for (int64_t i = 0; i < n; i++)
        to[i] += at[i];
}

void CPU(scale)(clv_tensor y, float a)
{
    const int64_t n = clv_numel(y);
    float *to = y.data;
    CPU_DO_(omp parallel for simd schedule(static) if (n > CPU_SERIAL))
    for (int64_t i = 0; i < n; i++)
        to[i] *= a;
}

/* sum of w_i x_i */
static double product_sum(const float *w, const float *x, int64_t n)
{
    double part[SUMS], total = 0.0;
    CPU_PARALLEL(n)
    for (int64_t p = 0; p < SUMS; p++) {
        double sum = 0.0;
        const int64_t to = cpu_part(n, p + 1, SUMS);
        CPU_SIMD_SUM(sum)
        for (int64_t i = cpu_part(n, p, SUMS); i < to; i++)
            sum += (double)w[i] * (double)x[i];
        part[p] = sum;
    }
    for (int64_t p = 0; p < SUMS; p++)
        total += part[p];
    return total;
}

void CPU(sum_squares)(clv_tensor sum, clv_tensor x)
{
    *(double *)sum.data += product_sum(x.data, x.data, clv_numel(x));
}

void CPU(dot)(clv_tensor sum, clv_tensor w, clv_tensor x)
{
    *(double *)sum.data += product_sum(w.data, x.data, clv_numel(x));
}

/* Columns [from, from + width): of each block of rows a sum of its own, so that long columns lose little. */
static void strip_sums(float *total, clv_tensor x, int64_t from, int64_t width)
{
    enum { ROWS = 128 };
    const int64_t rows = clv_rows(x);
    for (int64_t first = 0; first < rows; first += ROWS) {
        float part[STRIP] = {0};
        for (int64_t r = first; r < CLV_MIN(rows, first + ROWS); r++) {
            const float *at = cpu_row(x, r) + from;
            CPU_SIMD
            for (int64_t j = 0; j < width; j++)
                part[j] += at[j];
        }
        CPU_SIMD
        for (int64_t j = 0; j < width; j++)
            total[from + j] += part[j];
    }
}

/* A thread owns whole cache lines of columns; the order of a column's sum does not depend on which. */
void CPU(column_sums)(clv_tensor sum, clv_tensor x)
{
    const int64_t n = clv_last(x), lines = CLV_CEIL_DIV(n, CPU_LINE), parts = CLV_MIN(clv_backend_threads(), lines);
    CPU_PARALLEL(clv_numel(x))
    for (int64_t p = 0; p < parts; p++) {
        const int64_t to = CLV_MIN(n, cpu_part(lines, p + 1, parts) * CPU_LINE);
        for (int64_t from = cpu_part(lines, p, parts) * CPU_LINE; from < to; from += STRIP)
            strip_sums(sum.data, x, from, CLV_MIN(STRIP, to - from));
    }
}

void CPU(to_host)(void *out, clv_tensor t)
{
    if (clv_bytes(t) > 0)
        memcpy(out, t.data, clv_bytes(t));
}

void CPU(from_host)(clv_tensor t, const void *in)
{
    if (clv_bytes(t) > 0)
        memcpy(t.data, in, clv_bytes(t));
}

/* What is left of an update's equations when everything that does not depend on the element is worked out:
 * lr mhat / (sqrt(vhat) + eps) = rate m / (sqrt(v) spread + eps) */
typedef struct adamw_terms {
    float b1, b2, rate, spread, eps, shrink, scale;
} adamw_terms;

static adamw_terms adamw_terms_of(const clv_adamw *a)
{
    const double b1 = (double)a->beta1, b2 = (double)a->beta2, step = (double)a->step;
    return (adamw_terms){.b1 = a->beta1,
                         .b2 = a->beta2,
                         .rate = (float)((double)a->lr / (1.0 - pow(b1, step))),
                         .spread = (float)(1.0 / sqrt(1.0 - pow(b2, step))),
                         .eps = a->eps,
                         .shrink = 1.0f - a->lr * a->decay,
                         .scale = a->grad_scale};
}

static void adamw_piece(const clv_moving *to, const float *G, int64_t from, int64_t n, adamw_terms t)
{
    float *W = (float *)to->w.data + from, *M = (float *)to->m.data + from, *V = (float *)to->v.data + from;
    const float c1 = 1.0f - t.b1, c2 = 1.0f - t.b2;
    CPU_SIMD
    for (int64_t i = 0; i < n; i++) {
        const float d = t.scale * G[from + i];
        M[i] = t.b1 * M[i] + c1 * d;
        V[i] = t.b2 * V[i] + c2 * d * d;
        W[i] = t.shrink * W[i] - t.rate * M[i] / (sqrtf(V[i]) * t.spread + t.eps);
    }
    if (to->half.ndim > 0)
        convert(to->half.data, to->w.data, from, n, to->half.dtype == CLV_BF16 ? F32_BF16 : F32_F16);
}

void CPU(adamw)(const clv_moving *to, clv_tensor g, const clv_adamw *a)
{
    const int64_t n = clv_numel(to->w);
    const adamw_terms t = adamw_terms_of(a);
    CPU_PIECES(n)
    adamw_piece(to, g.data, from, CLV_MIN(PIECE, n - from), t);
}
