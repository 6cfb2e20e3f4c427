/* backend.h - the seam between operations and kernels: a table of functions, one table a device.
 *
 * ref   plain loops with double accumulation; the oracle, frozen           (backend/ref*.c)
 * null  computes nothing: the same code then only counts memory and traffic (backend/null.c)
 * cpu   vectorized, threaded                                                (backend/cpu*.c)
 *
 * Activations and weights may be stored in bf16 or f16: then kernels still calculate in f32 and round once, to the
 * nearest even, where they store. A product may round an f32 operand to bf16 when the other is bf16. Statistics,
 * losses, partial sums and gradients of weights are f32.
 *
 * Shapes were checked in op.c; kernels check nothing. Equations stand in op.h at the operation of the same name.
 */
#ifndef CLV_BACKEND_H
#define CLV_BACKEND_H

#include "op/op.h"

typedef enum clv_gemm_kind {
    CLV_NT, /* C[m,n] = A[m,k] B[n,k]^T   forward             */
    CLV_NN, /* C[m,n] = A[m,k] B[k,n]     gradient of input   */
    CLV_TN  /* C[m,n] = A[k,m]^T B[k,n]   gradient of weights */
} clv_gemm_kind;

/* C = op(A) op(B) (+ C if accumulate) (+ bias over rows, if bias.ndim). A, B, C are used as rows x last dim, each of
 * any float type. */
typedef struct clv_gemm {
    clv_gemm_kind kind;
    clv_tensor c, a, b, bias;
    bool accumulate;
} clv_gemm;

typedef struct clv_backend {
    const char *name;
    bool apart; /* tensors lie in a memory of its own, which the host does not reach */
    void (*gemm)(clv_ctx *cx, const clv_gemm *g);
    void (*column_sums)(clv_tensor sum, clv_tensor x); /* sum += 1^T x */
    void (*norm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm);
    void (*norm_backward)(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat,
                          const clv_norm *norm);
    void (*headnorm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm);
    void (*headnorm_backward)(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                              const clv_norm *norm);
    void (*rope)(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign);
    void (*dropout)(clv_tensor y, clv_tensor x, const clv_dropout *drop);
    void (*attention_forward)(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv,
                              const clv_attn *a);
    void (*attention_backward)(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                               const clv_attn *a);
    void (*attention_range)(clv_tensor range, clv_tensor doc, bool causal, int64_t window);
    void (*act_forward)(clv_tensor v, clv_tensor u, clv_act act);
    void (*act_backward)(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act);
    void (*embed_forward)(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first);
    void (*embed_backward)(clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first);
    void (*embed_add)(clv_tensor y, clv_tensor ids, clv_tensor w);
    void (*residual_forward)(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop);
    void (*residual_backward)(clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop);
    void (*ce_max)(clv_tensor max, clv_tensor logits, const clv_ce *ce);
    void (*ce_sums)(clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max, const clv_ce *ce);
    void (*ce_loss)(clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums, const clv_ce *ce);
    void (*ce_backward)(clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight, const clv_ce *ce);
    void (*zero)(clv_tensor t);
    void (*copy)(clv_tensor y, clv_tensor x);
    void (*add)(clv_tensor y, clv_tensor x);
    void (*scale)(clv_tensor y, float a);
    void (*sum_squares)(clv_tensor sum, clv_tensor x);
    void (*dot)(clv_tensor sum, clv_tensor w, clv_tensor x);
    void (*to_host)(void *out, clv_tensor t);
    void (*from_host)(clv_tensor t, const void *in);
    void (*adamw)(const clv_moving *to, clv_tensor g, const clv_adamw *a);
} clv_backend;

const clv_backend *clv_backend_ref(void);
const clv_backend *clv_backend_null(void);
const clv_backend *clv_backend_cpu(void);
const clv_backend *clv_backend_find(const char *name); /* NULL when unknown */
/* Threads of this process's kernels and products; what BLAS that is, for the start-up lines. */
void clv_backend_threads_set(int threads);
int clv_backend_threads(void);
const char *clv_backend_blas(void);
/* Register-only multiply-adds, as products of this type are made of, on all threads: the peak that shares are taken of,
 * in FLOP/s. Takes ~50 ms. */
double clv_backend_peak(clv_dtype dtype);

void clv_copy_past(void *to, const void *from, size_t bytes); /* past the caches, by the calling thread */
/* to[j][i] = from[i][j] for i < n[0], j < n[1], on the host, by the calling thread; *_row: elements from row to row. */
void clv_transpose(float *to, int64_t to_row, const float *from, int64_t from_row, const int64_t n[2]);

/* Bytes that the cpu kernels take from cx->temp while they run; null takes the same, so that a planning run counts
 * them. */
size_t clv_scratch_gemm(const clv_gemm *g);
size_t clv_scratch_norm(int64_t columns);
size_t clv_scratch_attention(clv_tensor q, const clv_attn *a);
size_t clv_scratch_attention_backward(clv_tensor qkv, const clv_attn *a);

#endif
