/* cpu_vector.c - whole tensors: fill, copy, convert, sums, and AdamW (Loshchilov and Hutter 2019).
 *
 * Sums are taken over a fixed number of pieces, whatever the number of threads, and the pieces added in order.
 */
#include "cpu_internal.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

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

/* ---- conversion -------------------------------------------------------------------------------------------------- */

CPU_BODY void convert_to(void *y, clv_dtype y_type, const void *x, int64_t n, clv_dtype x_type)
{
    CPU_SIMD
    for (int64_t i = 0; i < n; i++)
        cpu_put(y, i, cpu_get(x, i, x_type), y_type);
}

/* Where the processor converts f16 itself, eight at a time; the number of values that were. */
#if defined(__F16C__)
static int64_t f16_widen(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
    return n / 8 * 8;
}

static int64_t f16_narrow(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return n / 8 * 8;
}
#else
static int64_t f16_widen(float *y, const uint16_t *x, int64_t n)
{
    (void)y, (void)x, (void)n;
    return 0;
}

static int64_t f16_narrow(uint16_t *y, const float *x, int64_t n)
{
    (void)y, (void)x, (void)n;
    return 0;
}
#endif

static void f16_convert(void *y, clv_dtype y_type, const void *x, int64_t n)
{
    if (y_type == CLV_F32) {
        const int64_t done = f16_widen(y, x, n);
        convert_to((float *)y + done, CLV_F32, (const uint16_t *)x + done, n - done, CLV_F16);
    } else {
        const int64_t done = f16_narrow(y, x, n);
        convert_to((uint16_t *)y + done, CLV_F16, (const float *)x + done, n - done, CLV_F32);
    }
}

void CPU(convert)(void *y, clv_dtype y_type, const void *x, clv_dtype x_type, int64_t n)
{
    if (y_type == x_type)
        memmove(y, x, (size_t)n * clv_dtype_size(y_type));
    else if ((y_type == CLV_F32 && x_type == CLV_F16) || (y_type == CLV_F16 && x_type == CLV_F32))
        f16_convert(y, y_type, x, n);
    else if (y_type == CLV_F32)
        CPU_TYPED(x_type, convert_to, y, CLV_F32, x, n);
    else if (y_type == CLV_BF16)
        CPU_TYPED(x_type, convert_to, y, CLV_BF16, x, n);
    else
        CPU_TYPED(x_type, convert_to, y, CLV_F16, x, n);
}

void CPU(copy)(clv_tensor y, clv_tensor x)
{
    const int64_t n = clv_numel(y), y_size = (int64_t)clv_dtype_size(y.dtype),
                  x_size = (int64_t)clv_dtype_size(x.dtype);
    CPU_PIECES(n)
    CPU(convert)
    ((char *)y.data + from * y_size, y.dtype, (const char *)x.data + from * x_size, x.dtype, CLV_MIN(PIECE, n - from));
}

/* ---- arithmetic -------------------------------------------------------------------------------------------------- */

CPU_BODY void add_piece(void *y, const void *x, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t i = 0; i < n; i++)
        cpu_put(y, i, cpu_get(y, i, type) + cpu_get(x, i, type), type);
}

void CPU(add)(clv_tensor y, clv_tensor x)
{
    const int64_t n = clv_numel(y);
    CPU_PIECES(n)
    CPU_TYPED(y.dtype, add_piece, cpu_at(y, from), cpu_at(x, from), CLV_MIN(PIECE, n - from));
}

CPU_BODY void scale_piece(void *y, float a, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t i = 0; i < n; i++)
        cpu_put(y, i, cpu_get(y, i, type) * a, type);
}

void CPU(scale)(clv_tensor y, float a)
{
    const int64_t n = clv_numel(y);
    CPU_PIECES(n)
    CPU_TYPED(y.dtype, scale_piece, cpu_at(y, from), a, CLV_MIN(PIECE, n - from));
}

static inline double square(double x)
{
    return x * x;
}

/* sum of w_i x_i, both of one type; of x_i^2 where they are the same, which is converted once */
CPU_BODY void piece_sum(double *sum, const void *w, const void *x, int64_t n, clv_dtype type)
{
    double total = 0.0;
    if (w == x)
        CPU_SUM(total, n, i, square((double)cpu_get(x, i, type)));
    else
        CPU_SUM(total, n, i, (double)cpu_get(w, i, type) * (double)cpu_get(x, i, type));
    *sum = total;
}

static double product_sum(clv_tensor w, clv_tensor x)
{
    const int64_t n = clv_numel(x);
    double part[SUMS], total = 0.0;
    CPU_PARALLEL(n)
    for (int64_t p = 0; p < SUMS; p++) {
        const int64_t from = cpu_part(n, p, SUMS);
        CPU_TYPED(x.dtype, piece_sum, &part[p], cpu_at(w, from), cpu_at(x, from), cpu_part(n, p + 1, SUMS) - from);
    }
    for (int64_t p = 0; p < SUMS; p++)
        total += part[p];
    return total;
}

void CPU(sum_squares)(clv_tensor sum, clv_tensor x)
{
    *(double *)sum.data += product_sum(x, x);
}

void CPU(dot)(clv_tensor sum, clv_tensor w, clv_tensor x)
{
    *(double *)sum.data += product_sum(w, x);
}

/* Columns [from, from + width): of each block of rows a sum of its own, so that long columns lose little. */
static void strip_sums(float *total, clv_tensor x, int64_t from, int64_t width)
{
    enum { ROWS = 128 };
    const int64_t rows = clv_rows(x);
    for (int64_t first = 0; first < rows; first += ROWS) {
        float part[STRIP] = {0};
        for (int64_t r = first; r < CLV_MIN(rows, first + ROWS); r++)
            CPU_TYPED(x.dtype, cpu_add_to, part, cpu_at(x, r * clv_last(x) + from), width);
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
        CPU(convert)(cpu_at(to->half, from), to->half.dtype, W, CLV_F32, n);
}

void CPU(adamw)(const clv_moving *to, clv_tensor g, const clv_adamw *a)
{
    const int64_t n = clv_numel(to->w);
    const adamw_terms t = adamw_terms_of(a);
    CPU_PIECES(n)
    adamw_piece(to, g.data, from, CLV_MIN(PIECE, n - from), t);
}
