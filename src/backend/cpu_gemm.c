/* cpu_gemm.c - matrix products: by CBLAS, except where another way was measured to be faster.
 *
 * A product with few rows only streams B once through memory, which a BLAS built around packed panels does badly. For
 * AVX2 and AVX-512 our own product (cpu_product.c) is as fast as OpenBLAS or faster, depends on no other's idea of the
 * processor, and adds up in the same order everywhere.
 *
 * Both calculate in f32. Operands of 16 bits go through in blocks (clv_gemm_plan_of): a block is widened into scratch,
 * a block of C is summed there and rounded once; no operand ever exists twice. Where the processor multiplies bf16
 * itself, products of it go to cpu_pairs.c instead.
 */
#include "cpu_internal.h"

#include <cblas.h>

/* ---- few rows ---------------------------------------------------------------------------------------------------- */

static float before(const clv_gemm *g, int64_t i, int64_t j)
{
    const float old = g->accumulate ? cpu_get(cpu_row_at(g->c, i), j, g->c.dtype) : 0.0f;
    return g->bias.ndim > 0 ? old + cpu_get(g->bias.data, j, g->bias.dtype) : old;
}

/* Columns j .. j + 3 of row i of C: four rows of B at once. */
CPU_BODY void four_dots(const clv_gemm *g, int64_t i, int64_t j, int64_t k, clv_dtype type)
{
    const void *a = cpu_row_at(g->a, i), *b = cpu_row_at(g->b, j);
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    CPU_SIMD_SUM(s0, s1, s2, s3)
    for (int64_t p = 0; p < k; p++) {
        const float x = cpu_get(a, p, type);
        s0 += x * cpu_get(b, p, type);
        s1 += x * cpu_get(b, k + p, type);
        s2 += x * cpu_get(b, 2 * k + p, type);
        s3 += x * cpu_get(b, 3 * k + p, type);
    }
    const float sum[4] = {s0, s1, s2, s3};
    for (int64_t q = 0; q < 4; q++)
        cpu_put(cpu_row_at(g->c, i), j + q, before(g, i, j + q) + sum[q], g->c.dtype);
}

CPU_BODY void one_dot(const clv_gemm *g, int64_t i, int64_t j, int64_t k, clv_dtype type)
{
    const void *a = cpu_row_at(g->a, i), *b = cpu_row_at(g->b, j);
    float sum = 0.0f;
    CPU_SIMD_SUM(sum)
    for (int64_t p = 0; p < k; p++)
        sum += cpu_get(a, p, type) * cpu_get(b, p, type);
    cpu_put(cpu_row_at(g->c, i), j, before(g, i, j) + sum, g->c.dtype);
}

static void few_rows(const clv_gemm *g)
{
    const int64_t m = clv_rows(g->c), n = clv_last(g->c), k = clv_last(g->a);
    CPU_PARALLEL(n * k)
    for (int64_t j = 0; j < n; j += 4)
        for (int64_t i = 0; i < m; i++) {
            if (j + 4 <= n) {
                CPU_TYPED(g->b.dtype, four_dots, g, i, j, k);
                continue;
            }
            for (int64_t last = j; last < n; last++)
                CPU_TYPED(g->b.dtype, one_dot, g, i, last, k);
        }
}

/* ---- f32 -----------------------------------------------------------------------------------------------------------
 */

/* C = start + op(A) op(B); the views are of what is stored, steps 1. The BLAS knows no bias: C holds it already. */
static void product(clv_gemm_kind kind, cpu_product x)
{
    const cpu_view a = x.a, b = x.b;
    if (CPU_VEC >= 8) {
        x.a = kind == CLV_TN ? (cpu_view){a.at, 1, a.row} : a;
        x.b = kind == CLV_NT ? (cpu_view){b.at, 1, b.row} : b;
        CPU(product)(&x);
        return;
    }
    const CBLAS_TRANSPOSE ta = kind == CLV_TN ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE tb = kind == CLV_NT ? CblasTrans : CblasNoTrans;
    cblas_sgemm(CblasRowMajor, ta, tb, (int)x.size.m, (int)x.size.n, (int)x.size.k, 1.0f, a.at, (int)a.row, b.at,
                (int)b.row, x.start.add ? 1.0f : 0.0f, x.c.at, (int)x.c.row);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

typedef struct block { /* rows [i, i + m) and columns [j, j + n) of a matrix */
    int64_t i, j, m, n;
} block;

static cpu_view in_place(clv_tensor t, block at)
{
    return (cpu_view){(float *)t.data + at.i * clv_last(t) + at.j, clv_last(t), 1};
}

/* A block as f32: where it lies, or widened. */
static cpu_view widened(float *scratch, clv_tensor t, block at)
{
    const int64_t width = clv_gemm_width(at.n);
    if (t.dtype == CLV_F32)
        return in_place(t, at);
    CPU_PARALLEL(at.m * at.n)
    for (int64_t r = 0; r < at.m; r++)
        CPU(convert)(scratch + r * width, CLV_F32, cpu_at(t, (at.i + r) * clv_last(t) + at.j), t.dtype, at.n);
    return (cpu_view){scratch, width, 1};
}

static void rounded(clv_tensor t, block at, cpu_view from)
{
    CPU_PARALLEL(at.m * at.n)
    for (int64_t r = 0; r < at.m; r++)
        CPU(convert)(cpu_at(t, (at.i + r) * clv_last(t) + at.j), t.dtype, from.at + r * from.row, CLV_F32, at.n);
}

CPU_BODY void bias_row(float *to, const void *bias, int64_t n, bool add, clv_dtype type)
{
    CPU_SIMD
    for (int64_t j = 0; j < n; j++)
        to[j] = (add ? to[j] : 0.0f) + cpu_get(bias, j, type);
}

/* Whether the product itself begins with the bias. */
static bool starts_with_bias(const clv_gemm *g)
{
    return CPU_VEC >= 8 && g->bias.ndim > 0 && g->bias.dtype == CLV_F32 && !g->accumulate;
}

/* A block of C as it is before the product: its bias, and what it held if that is added to. */
static cpu_view opened(float *scratch, const clv_gemm *g, block at)
{
    const cpu_view c = g->c.dtype == CLV_F32 || g->accumulate ? widened(scratch, g->c, at)
                                                              : (cpu_view){scratch, clv_gemm_width(at.n), 1};
    if (g->bias.ndim == 0 || starts_with_bias(g))
        return c;
    CPU_PARALLEL(at.m * at.n)
    for (int64_t r = 0; r < at.m; r++)
        CPU_TYPED(g->bias.dtype, bias_row, c.at + r * c.row, cpu_at(g->bias, at.j), at.n, g->accumulate);
    return c;
}

static block stored(bool transposed, block at)
{
    return transposed ? (block){at.j, at.i, at.n, at.m} : at;
}

void CPU(gemm)(clv_ctx *cx, const clv_gemm *g)
{
    const clv_gemm_plan plan = clv_gemm_plan_of(g);
    const cpu_size size = plan.size, step = plan.block;
    if (size.m == 0 || size.n == 0)
        return;
    if (plan.few) {
        few_rows(g);
        return;
    }
    const cpu_pair_kernel *pairs = clv_gemm_in_pairs(g) ? CPU(pair_kernel)() : NULL;
    if (pairs != NULL) {
        CPU(pair_product)(cx, g, pairs);
        return;
    }
    const size_t mark = clv_arena_mark(cx->temp);
    float *of_a = clv_arena_push(cx->temp, clv_gemm_plan_bytes(&plan)), *of_b = of_a + plan.a, *of_c = of_b + plan.b,
          *packed = of_c + plan.c;
    for (int64_t i = 0; i < size.m; i += step.m)
        for (int64_t j = 0; j < size.n; j += step.n) {
            const block at = {i, j, CLV_MIN(step.m, size.m - i), CLV_MIN(step.n, size.n - j)};
            const cpu_view c = opened(of_c, g, at);
            const bool biased = starts_with_bias(g);
            cpu_start start = {.add = g->accumulate || (g->bias.ndim > 0 && !biased),
                               .bias = biased ? (const float *)g->bias.data + j : NULL};
            for (int64_t p = 0; p == 0 || p < size.k; p += step.k, start.add = true) {
                const int64_t k = CLV_MIN(step.k, size.k - p);
                const cpu_view a = widened(of_a, g->a, stored(g->kind == CLV_TN, (block){i, p, at.m, k}));
                const cpu_view b = widened(of_b, g->b, stored(g->kind == CLV_NT, (block){p, j, k, at.n}));
                product(g->kind, (cpu_product){c, a, b, {at.m, at.n, k}, start, packed});
            }
            if (g->c.dtype != CLV_F32)
                rounded(g->c, at, c);
        }
    clv_arena_release(cx->temp, mark);
}
