/* cpu_gemm.c - matrix products: by CBLAS, except where another way was measured to be faster.
 *
 * A product with few rows only streams B once through memory, which a BLAS built around packed panels does badly. And a
 * BLAS that does not know a new processor, or was told to be another, computes in registers of half the width: then
 * our own product (cpu_product.c) is up to twice as fast.
 */
#include "cpu_internal.h"

#include <cblas.h>
#include <strings.h>

enum { FEW_ROWS = 4 }; /* of A and C: up to here the weights are read row by row */

/* C rows = bias (+ C), so that the product can add to them. */
static void bias_rows(clv_tensor c, clv_tensor bias, bool accumulate)
{
    const int64_t rows = clv_rows(c), n = clv_last(c);
    const float *b = bias.data;
    CPU_PARALLEL(rows * n)
    for (int64_t r = 0; r < rows; r++) {
        float *to = cpu_row(c, r);
        if (!accumulate) {
            memcpy(to, b, (size_t)n * sizeof(float));
            continue;
        }
        CPU_SIMD
        for (int64_t j = 0; j < n; j++)
            to[j] += b[j];
    }
}

/* One row of C from four rows of B at once. */
static void dots(float *c, const float *a, const float *b, int64_t k, bool add)
{
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
    CPU_SIMD_SUM(s0, s1, s2, s3)
    for (int64_t p = 0; p < k; p++) {
        s0 += a[p] * b[p];
        s1 += a[p] * b[k + p];
        s2 += a[p] * b[2 * k + p];
        s3 += a[p] * b[3 * k + p];
    }
    c[0] = (add ? c[0] : 0.0f) + s0;
    c[1] = (add ? c[1] : 0.0f) + s1;
    c[2] = (add ? c[2] : 0.0f) + s2;
    c[3] = (add ? c[3] : 0.0f) + s3;
}

static void few_rows(clv_tensor c, clv_tensor a, clv_tensor b, bool add)
{
    const int64_t m = clv_rows(c), n = clv_last(c), k = clv_last(a);
    CPU_PARALLEL(n * k)
    for (int64_t j = 0; j < n; j += 4)
        for (int64_t i = 0; i < m; i++) {
            if (j + 4 <= n) {
                dots(cpu_row(c, i) + j, cpu_row(a, i), cpu_row(b, j), k, add);
                continue;
            }
            for (int64_t last = j; last < n; last++) {
                const float *x = cpu_row(a, i), *w = cpu_row(b, last);
                float sum = 0.0f, *to = cpu_row(c, i) + last;
                CPU_SIMD_SUM(sum)
                for (int64_t p = 0; p < k; p++)
                    sum += x[p] * w[p];
                *to = (add ? *to : 0.0f) + sum;
            }
        }
}

/* Whether the kernels here are wider than those that OpenBLAS chose. */
static bool wider_than_blas(void)
{
    static const char *const wide[] = {"SkylakeX", "Cooperlake", "SapphireRapids"};
    const char *core = openblas_get_corename();
    bool found = CPU_VEC < 16;
    for (size_t i = 0; i < CLV_COUNT(wide); i++)
        found = found || strcasecmp(core, wide[i]) == 0;
    return !found;
}

static void own_product(clv_gemm_kind kind, clv_tensor c, clv_tensor a, clv_tensor b, bool add)
{
    const int64_t m = clv_rows(c), n = clv_last(c), k = kind == CLV_TN ? clv_rows(a) : clv_last(a);
    const int64_t lda = clv_last(a), ldb = clv_last(b);
    const cpu_view of_a = kind == CLV_TN ? (cpu_view){a.data, 1, lda} : (cpu_view){a.data, lda, 1};
    const cpu_view of_b = kind == CLV_NT ? (cpu_view){b.data, 1, ldb} : (cpu_view){b.data, ldb, 1};
    CPU(product)((cpu_view){c.data, n, 1}, of_a, of_b, (cpu_size){m, n, k}, add);
}

void CPU(gemm)(clv_gemm_kind kind, clv_tensor c, clv_tensor a, clv_tensor b, clv_tensor bias, bool accumulate)
{
    const int64_t m = clv_rows(c), n = clv_last(c), k = kind == CLV_TN ? clv_rows(a) : clv_last(a);
    const bool add = accumulate || bias.ndim > 0;
    if (m == 0 || n == 0)
        return;
    if (bias.ndim > 0)
        bias_rows(c, bias, accumulate);
    if (kind == CLV_NT && m <= FEW_ROWS) {
        few_rows(c, a, b, add);
        return;
    }
    if (k > 0 && wider_than_blas()) {
        own_product(kind, c, a, b, add);
        return;
    }
    const CBLAS_TRANSPOSE ta = kind == CLV_TN ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE tb = kind == CLV_NT ? CblasTrans : CblasNoTrans;
    const int lda = (int)clv_last(a), ldb = (int)clv_last(b);
    cblas_sgemm(CblasRowMajor, ta, tb, (int)m, (int)n, (int)k, 1.0f, a.data, lda, b.data, ldb, add ? 1.0f : 0.0f,
                c.data, (int)n);
}
