/* ref_linear.c - matrix products by their definition, C_ij = sum over k of A_ik B_kj. */
#include "ref_internal.h"

void clv_ref_gemm(const clv_gemm *g)
{
    const clv_gemm_kind kind = g->kind;
    const clv_tensor a = g->a, b = g->b, c = g->c, bias = g->bias;
    const int64_t m = clv_rows(c), n = clv_last(c);
    const int64_t inner = kind == CLV_TN ? clv_rows(a) : clv_last(a);
    const int64_t a_row = kind == CLV_TN ? 1 : inner, a_step = kind == CLV_TN ? m : 1;
    const int64_t b_column = kind == CLV_NT ? inner : 1, b_step = kind == CLV_NT ? 1 : n;
    const float *A = clv_ref_f32(a), *B = clv_ref_f32(b), *add = clv_ref_f32(bias);
    float *C = clv_ref_f32(c);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = g->accumulate ? (double)C[i * n + j] : 0.0;
            for (int64_t k = 0; k < inner; k++)
                sum += (double)A[i * a_row + k * a_step] * (double)B[k * b_step + j * b_column];
            C[i * n + j] = (float)(bias.ndim > 0 ? sum + (double)add[j] : sum);
        }
}

void clv_ref_column_sums(clv_tensor sum, clv_tensor x)
{
    const int64_t rows = clv_rows(x), n = clv_last(x);
    const float *X = clv_ref_f32(x);
    float *S = clv_ref_f32(sum);
    for (int64_t j = 0; j < n; j++) {
        double total = (double)S[j];
        for (int64_t i = 0; i < rows; i++)
            total += (double)X[i * n + j];
        S[j] = (float)total;
    }
}
