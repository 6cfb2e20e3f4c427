/* op.c - speed of each main kernel at the shapes of GPT-2 124M, one sequence of 1024 tokens, beside its error.
 *
 *   bench_op [--json] [--threads N]
 *
 * Kernels that calculate are given as GFLOP/s and as a share of the measured peak of fused multiply-adds; attention
 * counts the scores that a causal mask leaves. Kernels that move memory are given as GB/s, each operand counted once
 * for each time it is read or written, and as a share of the measured triad a = b + c x; shares above 100 % come from
 * operands that stay in the cache. Times are the fastest of several runs, as the two
 * peaks are. The error is the largest difference from the reference backend
 * over the largest value, on as many tokens as the reference can do in a moment.
 */
#include "op/backend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { H = 768, N = 12, D = 64, F = 3072, V = 50304, TOKENS = 1024, RUNS = 15 };

typedef struct work {
    clv_arena data, temp;
    clv_ctx cx;
    const clv_backend *be;
    int64_t s;
    clv_tensor in[4], out[3]; /* out: what is compared */
    clv_tensor ids, table;
    clv_norm norm;
    clv_attn attn;
    clv_dropout drop;
    clv_ce ce;
    double flops, bytes; /* one of them */
} work;

typedef struct kernel {
    const char *name;
    void (*make)(work *w); /* operands for w->s tokens */
    void (*run)(work *w);
} kernel;

/* ---- operands ------------------------------------------------------------------------------------------------ */

static clv_tensor random_tensor(work *w, int64_t rows, int64_t columns)
{
    const clv_tensor t = clv_new_as(&w->data, CLV_F32, rows, 1, columns);
    float *x = t.data;
    uint32_t bits = (uint32_t)(rows + columns) | 1u;
    for (int64_t i = 0; i < rows * columns; i++) {
        bits = bits * 1664525u + 1013904223u;
        x[i] = ((float)(bits >> 8) * 0x1p-24f - 0.5f) * 2.0f;
    }
    return t;
}

static clv_tensor integers(work *w, int64_t n, int64_t below)
{
    const clv_tensor t = clv_new_as(&w->data, CLV_I32, n);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)t.data)[i] = (int32_t)(i * 7919 % below);
    return t;
}

static void make_dropout(work *w)
{
    w->drop = (clv_dropout){.p = 0.1f, .key = 1, .sample = clv_new_as(&w->data, CLV_I64, 1)};
    *(int64_t *)w->drop.sample.data = 5;
}

static const clv_tensor none;

/* ---- products: C = op(A) op(B), sizes in terms of the tokens ------------------------------------------------------
 */

static void make_product(work *w, int64_t m, int64_t n, int64_t k, clv_gemm_kind kind)
{
    w->in[0] = kind == CLV_TN ? random_tensor(w, k, m) : random_tensor(w, m, k);
    w->in[1] = kind == CLV_NT ? random_tensor(w, n, k) : random_tensor(w, k, n);
    w->in[2] = random_tensor(w, 1, n);
    w->out[0] = random_tensor(w, m, n);
    w->flops = 2.0 * (double)m * (double)n * (double)k;
}

#define PRODUCT(name, m, n, k, kind, bias, add)                                                                        \
    static void make_##name(work *w)                                                                                   \
    {                                                                                                                  \
        make_product(w, m, n, k, kind);                                                                                \
    }                                                                                                                  \
    static void run_##name(work *w)                                                                                    \
    {                                                                                                                  \
        const clv_gemm g = {kind, w->out[0], w->in[0], w->in[1], (bias) ? w->in[2] : none, add};                       \
        w->be->gemm(&w->cx, &g);                                                                                       \
    }
PRODUCT(qkv, w->s, 3 * H, H, CLV_NT, true, false)
PRODUCT(proj, w->s, H, H, CLV_NT, false, false)
PRODUCT(fc1, w->s, F, H, CLV_NT, true, false)
PRODUCT(fc2, w->s, H, F, CLV_NT, false, false)
PRODUCT(head, w->s, V, H, CLV_NT, false, false)
PRODUCT(fc1_dx, w->s, H, F, CLV_NN, false, false)
PRODUCT(fc1_dw, F, H, w->s, CLV_TN, false, true)
PRODUCT(proj_dw, H, H, w->s, CLV_TN, false, true)
PRODUCT(fc1_64, CLV_MIN(w->s, 64), F, H, CLV_NT, false, false)
PRODUCT(fc1_8, CLV_MIN(w->s, 8), F, H, CLV_NT, false, false)

static void make_fc1_1(work *w)
{
    make_product(w, 1, F, H, CLV_NT);
    w->flops = 0.0;
    w->bytes = 4.0 * F * H;
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

static void make_attention(work *w)
{
    const float scale = 0.125f;
    w->attn = (clv_attn){.q = {0, N, D}, .k = {N * D, N, D}, .v = {2 * N * D, N, D}, .scale = scale};
    w->attn.range = clv_new_as(&w->data, CLV_I32, w->s, 1, 2);
    clv_backend_ref()->attention_range(w->attn.range, none, true, 0);
    w->in[0] = random_tensor(w, w->s, 3 * N * D);
    w->in[1] = random_tensor(w, w->s, N * D);
    w->in[2] = random_tensor(w, w->s, N * D);
    w->in[3] = clv_new_as(&w->data, CLV_F32, 1, N, w->s);
    w->flops = 4.0 * N * D * (double)w->s * (double)(w->s + 1) / 2.0;
    w->out[0] = w->in[1];
    w->out[1] = w->in[3];
}

static void run_attention(work *w)
{
    w->be->attention_forward(&w->cx, w->in[1], w->in[3], w->in[0], w->in[0], &w->attn);
}

static void make_attention_dropout(work *w)
{
    make_attention(w);
    make_dropout(w);
    w->attn.drop = w->drop;
}

static void make_attention_back(work *w)
{
    make_attention(w);
    run_attention(w);
    w->out[0] = random_tensor(w, w->s, 3 * N * D);
    w->out[1] = none;
    w->flops *= 2.5;
}

static void run_attention_back(work *w)
{
    const clv_attn_saved saved = {w->in[0], w->in[1], w->in[3]};
    w->be->attention_backward(&w->cx, w->out[0], w->in[2], &saved, &w->attn);
}

/* One query over the keys of all tokens. */
static void make_decode(work *w)
{
    make_attention(w);
    w->attn.range = clv_slice(w->attn.range, w->s - 1, 1);
    w->in[2] = random_tensor(w, 1, 3 * N * D);
    w->out[0] = w->in[1] = random_tensor(w, 1, N * D);
    w->out[1] = w->in[3] = clv_new_as(&w->data, CLV_F32, 1, N, 1);
    w->flops = 0.0;
    w->bytes = 8.0 * N * D * (double)w->s;
}

static void run_decode(work *w)
{
    w->be->attention_forward(&w->cx, w->in[1], w->in[3], w->in[2], w->in[0], &w->attn);
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void make_norm(work *w)
{
    w->norm = (clv_norm){.kind = CLV_LAYERNORM, .eps = 1e-5f};
    w->norm.g = random_tensor(w, 1, H);
    w->norm.b = random_tensor(w, 1, H);
    w->norm.dg = w->out[1] = random_tensor(w, 1, H);
    w->norm.db = w->out[2] = random_tensor(w, 1, H);
    w->in[0] = random_tensor(w, w->s, H);
    w->in[1] = random_tensor(w, w->s, H);
    w->in[2] = clv_new_as(&w->data, CLV_F32, w->s, 2);
    w->out[0] = random_tensor(w, w->s, H);
    w->bytes = 8.0 * H * (double)w->s;
    clv_backend_ref()->norm_forward(w->out[0], w->in[2], w->in[0], &w->norm);
}

static void run_norm(work *w)
{
    w->be->norm_forward(w->out[0], w->in[2], w->in[0], &w->norm);
}

static void make_norm_back(work *w)
{
    make_norm(w);
    w->bytes *= 2.0;
}

static void run_norm_back(work *w)
{
    w->be->norm_backward(&w->cx, w->out[0], w->in[1], w->in[0], w->in[2], &w->norm);
}

static void make_act(work *w)
{
    w->in[0] = random_tensor(w, w->s, F);
    w->in[1] = random_tensor(w, w->s, F);
    w->out[0] = random_tensor(w, w->s, F);
    w->bytes = 8.0 * F * (double)w->s;
}

static void make_act_back(work *w)
{
    make_act(w);
    w->bytes *= 1.5;
}

static void run_gelu(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_GELU);
}

static void run_gelu_tanh(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_GELU_TANH);
}

static void run_gelu_back(work *w)
{
    w->be->act_backward(w->out[0], w->in[1], w->in[0], CLV_GELU);
}

static void run_gelu_tanh_back(work *w)
{
    w->be->act_backward(w->out[0], w->in[1], w->in[0], CLV_GELU_TANH);
}

static void make_swiglu(work *w)
{
    w->in[0] = random_tensor(w, w->s, 2 * F);
    w->out[0] = random_tensor(w, w->s, F);
    w->bytes = 12.0 * F * (double)w->s;
}

static void run_swiglu(work *w)
{
    w->be->act_forward(w->out[0], w->in[0], CLV_SWIGLU);
}

static void make_residual(work *w)
{
    w->in[0] = random_tensor(w, w->s, H);
    w->in[1] = random_tensor(w, w->s, H);
    w->in[2] = random_tensor(w, 1, H);
    w->out[0] = random_tensor(w, w->s, H);
    w->bytes = 12.0 * H * (double)w->s;
    w->drop = (clv_dropout){.p = 0.0f};
}

static void make_residual_dropout(work *w)
{
    make_residual(w);
    make_dropout(w);
}

static void run_residual(work *w)
{
    w->be->residual_forward(w->out[0], w->in[0], w->in[1], w->in[2], &w->drop);
}

static void make_rope(work *w)
{
    w->table = clv_reshape2(random_tensor(w, w->s, D), w->s, D);
    w->ids = integers(w, w->s, w->s);
    w->out[0] = random_tensor(w, w->s, 3 * H);
    w->bytes = 8.0 * H * (double)w->s;
}

static void run_rope(work *w)
{
    w->be->rope(w->out[0], (clv_heads){0, N, D}, w->table, w->ids, 1);
}

static void make_column_sums(work *w)
{
    w->in[0] = random_tensor(w, w->s, F);
    w->out[0] = random_tensor(w, 1, F);
    w->bytes = 4.0 * F * (double)w->s;
}

static void run_column_sums(work *w)
{
    w->be->column_sums(w->out[0], w->in[0]);
}

/* ---- lookup and loss ------------------------------------------------------------------------------------------- */

static void make_embed(work *w)
{
    w->table = clv_reshape2(random_tensor(w, V, H), V, H);
    w->ids = integers(w, w->s, V);
    w->out[0] = random_tensor(w, w->s, H);
    w->bytes = 8.0 * H * (double)w->s;
}

static void run_embed(work *w)
{
    w->be->embed_forward(w->out[0], w->ids, w->table, 0);
}

static void make_embed_back(work *w)
{
    make_embed(w);
    w->in[0] = w->out[0];
    w->out[0] = w->table;
    w->bytes *= 1.5;
}

static void run_embed_back(work *w)
{
    w->be->embed_backward(w->out[0], w->in[0], w->ids, 0);
}

static void make_loss(work *w)
{
    w->ce = (clv_ce){.target = integers(w, w->s, V), .real = V - 47, .classes = V - 47};
    w->out[0] = random_tensor(w, w->s, V);
    w->in[0] = clv_new_as(&w->data, CLV_F32, w->s);
    w->in[1] = clv_new_as(&w->data, CLV_F32, w->s);
    w->in[2] = clv_new_as(&w->data, CLV_F32, 2, w->s);
    w->in[3] = clv_new_as(&w->data, CLV_F32, w->s);
    for (int64_t i = 0; i < w->s; i++)
        ((float *)w->in[3].data)[i] = 1.0f;
    w->bytes = 16.0 * V * (double)w->s;
}

static void run_loss(work *w)
{
    w->be->ce_max(w->in[0], w->out[0], &w->ce);
    w->be->ce_sums(w->in[1], w->in[2], w->out[0], w->in[0], &w->ce);
    w->be->ce_backward(w->out[0], w->in[0], w->in[2], w->in[3], &w->ce);
}

/* ---- parameters: w->s rows of the embedding --------------------------------------------------------------------- */

static void make_adamw(work *w)
{
    for (int i = 0; i < 3; i++)
        w->out[i] = random_tensor(w, 32 * w->s, H);
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->be->zero(w->out[1]);
    w->be->zero(w->out[2]);
    w->bytes = 28.0 * 32.0 * H * (double)w->s;
}

static void run_adamw(work *w)
{
    const clv_adamw a = {
        .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .grad_scale = 1.0f, .step = 3};
    w->be->adamw(&(clv_moving){.w = w->out[0], .m = w->out[1], .v = w->out[2]}, w->in[0], &a);
}

static void make_sum(work *w)
{
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->in[1] = clv_new_as(&w->data, CLV_F64, 1);
    w->be->zero(w->in[1]);
    w->out[0] = none;
    w->bytes = 4.0 * 32.0 * H * (double)w->s;
}

static void run_sum(work *w)
{
    w->be->sum_squares(w->in[1], w->in[0]);
}

static void make_add(work *w)
{
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->out[0] = random_tensor(w, 32 * w->s, H);
    w->bytes = 12.0 * 32.0 * H * (double)w->s;
}

static void run_add(work *w)
{
    w->be->add(w->out[0], w->in[0]);
}

static void make_bf16(work *w)
{
    w->in[0] = random_tensor(w, 32 * w->s, H);
    w->in[1] = clv_new_as(&w->data, CLV_BF16, 32 * w->s, 1, H);
    w->bytes = 6.0 * 32.0 * H * (double)w->s;
}

static void run_bf16(work *w)
{
    w->be->copy(w->in[1], w->in[0]);
}

static const kernel kernels[] = {
    {"qkv  x W^T + b", make_qkv, run_qkv},
    {"proj x W^T", make_proj, run_proj},
    {"fc1  x W^T + b", make_fc1, run_fc1},
    {"fc2  x W^T", make_fc2, run_fc2},
    {"head x W^T", make_head, run_head},
    {"fc1  dy W", make_fc1_dx, run_fc1_dx},
    {"fc1  += dy^T x", make_fc1_dw, run_fc1_dw},
    {"proj += dy^T x", make_proj_dw, run_proj_dw},
    {"fc1, 64 tokens", make_fc1_64, run_fc1_64},
    {"fc1, 8 tokens", make_fc1_8, run_fc1_8},
    {"fc1, 1 token", make_fc1_1, run_fc1_8},
    {"attention", make_attention, run_attention},
    {"attention, dropout", make_attention_dropout, run_attention},
    {"attention backward", make_attention_back, run_attention_back},
    {"attention, 1 query", make_decode, run_decode},
    {"layernorm", make_norm, run_norm},
    {"layernorm backward", make_norm_back, run_norm_back},
    {"gelu", make_act, run_gelu},
    {"gelu backward", make_act_back, run_gelu_back},
    {"gelu tanh", make_act, run_gelu_tanh},
    {"gelu tanh backward", make_act_back, run_gelu_tanh_back},
    {"swiglu", make_swiglu, run_swiglu},
    {"residual + bias", make_residual, run_residual},
    {"residual, dropout", make_residual_dropout, run_residual},
    {"rope", make_rope, run_rope},
    {"column sums", make_column_sums, run_column_sums},
    {"embed", make_embed, run_embed},
    {"embed backward", make_embed_back, run_embed_back},
    {"cross entropy", make_loss, run_loss},
    {"adamw", make_adamw, run_adamw},
    {"sum of squares", make_sum, run_sum},
    {"add", make_add, run_add},
    {"to bf16", make_bf16, run_bf16},
};

/* ---- measuring -------------------------------------------------------------------------------------------------- */

static void prepare(work *w, const kernel *k, int64_t s, const clv_backend *be)
{
    clv_arena_release(&w->data, 0);
    *w = (work){.data = w->data, .temp = w->temp, .be = be, .s = s};
    w->cx = (clv_ctx){.be = be, .save = &w->data, .temp = &w->temp};
    k->make(w);
}

/* Seconds of the fastest run, after one that warms the caches. */
static double seconds(work *w, const kernel *k)
{
    double best = INFINITY;
    prepare(w, k, TOKENS, clv_backend_cpu());
    k->run(w);
    for (int i = 0; i < RUNS; i++) {
        const double start = clv_seconds();
        k->run(w);
        best = fmin(best, clv_seconds() - start);
    }
    return best;
}

static double difference(const float *x, const float *y, int64_t n)
{
    double most = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)x[i] - (double)y[i]));
        size = fmax(size, fabs((double)y[i]));
    }
    return size > 0.0 ? most / size : most;
}

/* Largest error of any output, with few enough tokens for the reference. Equal inputs: both runs make them anew. */
static double error(work *w, const kernel *k)
{
    const double affordable = 2e8;
    int64_t s = TOKENS;
    for (prepare(w, k, s, clv_backend_ref()); s > 4 && fmax(w->flops, w->bytes) > affordable; s /= 2)
        prepare(w, k, s / 2, clv_backend_ref());
    k->run(w);
    float *kept[3] = {NULL};
    for (int i = 0; i < 3; i++)
        if (w->out[i].ndim > 0)
            kept[i] = memcpy(clv_alloc(clv_bytes(w->out[i]), 1), w->out[i].data, clv_bytes(w->out[i]));
    prepare(w, k, s, clv_backend_cpu());
    k->run(w);
    double most = 0.0;
    for (int i = 0; i < 3; i++) {
        if (kept[i] != NULL)
            most = fmax(most, difference(w->out[i].data, kept[i], clv_numel(w->out[i])));
        free(kept[i]);
    }
    return most;
}

/* Bytes/s of a = b + c x on arrays that no cache holds. */
static double triad(clv_arena *arena)
{
    const int64_t n = (int64_t)1 << 24;
    clv_arena_release(arena, 0);
    float *a = clv_new_as(arena, CLV_F32, n).data, *b = clv_new_as(arena, CLV_F32, n).data;
    float *c = clv_new_as(arena, CLV_F32, n).data;
    double best = 0.0;
    for (int run = 0; run < RUNS; run++) {
        const double start = clv_seconds();
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < n; i++)
            a[i] = b[i] + 0.5f * c[i];
        best = fmax(best, 12.0 * (double)n / (clv_seconds() - start));
    }
    return best;
}

static void report(work *w, const kernel *k, bool json, double peak, double stream)
{
    const double wrong = error(w, k), time = seconds(w, k);
    const bool calculates = w->flops > 0.0;
    const double rate = (calculates ? w->flops : w->bytes) / time, share = rate / (calculates ? peak : stream);
    if (json)
        printf("{\"kernel\": \"%s\", \"seconds\": %.6g, \"%s\": %.6g, \"share\": %.4f, \"error\": %.3g}\n", k->name,
               time, calculates ? "flops" : "bytes_per_second", rate, share, wrong);
    else
        printf("%-20s %9.3f ms %8.1f %s %5.0f %%   %8.1e\n", k->name, time * 1e3, rate * 1e-9,
               calculates ? "GFLOP/s" : "GB/s   ", share * 100.0, wrong);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    bool json = false;
    int64_t threads = clv_backend_threads();
    for (int i = 1; i < argc; i++) {
        const bool last = i + 1 == argc;
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--threads") != 0 || last || !clv_parse_i64(argv[++i], &threads) || threads < 1) {
            fprintf(stderr, "usage: bench_op [--json] [--threads N]\n");
            return CLV_BAD_USAGE;
        }
    }
    work w = {.s = TOKENS};
    const clv_status made = clv_arena_create(&w.data, "operands", (size_t)3 << 30);
    const clv_status temp = clv_arena_create(&w.temp, "scratch", (size_t)1 << 30);
    if (made.code != CLV_OK || temp.code != CLV_OK) {
        fprintf(stderr, "%s%s\n", made.text, temp.text);
        return CLV_BAD_INPUT;
    }
    clv_backend_threads_set((int)threads);
    const double peak = clv_backend_peak(), stream = triad(&w.data);
    if (json)
        printf("{\"threads\": %d, \"blas\": \"%s\", \"peak_flops\": %.6g, \"triad_bytes_per_second\": %.6g}\n",
               clv_backend_threads(), clv_backend_blas(), peak, stream);
    else
        printf("%d threads, %s: peak %.1f GFLOP/s, triad %.1f GB/s\n", clv_backend_threads(), clv_backend_blas(),
               peak * 1e-9, stream * 1e-9);
    for (size_t i = 0; i < CLV_COUNT(kernels); i++)
        report(&w, &kernels[i], json, peak, stream);
    return CLV_OK;
}
