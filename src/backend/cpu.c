/* cpu.c - the vectorized, threaded backend: which instruction set, how many threads, which BLAS, what peak.
 *
 * Where cmake/kernels.cmake built the kernels for more than one instruction set, the widest that the processor has is
 * taken when the table is asked for.
 */
#include "cpu_internal.h"

#include <cblas.h>
#include <stdio.h>
#include <time.h>

typedef struct variant {
    const clv_backend *table;
    bool packs; /* products are our own */
    double (*peak_burst)(int64_t rounds);
    const cpu_pair_kernel *pairs; /* with which products of bf16 go through cpu_pairs.c, or NULL */
} variant;

const cpu_limits clv_cpu_limits = {.exp_low = -88.0f, .exp_high = 89.0f, .zero = 0.0f};

extern const clv_backend clv_cpu_backend_base;
double clv_cpu_peak_burst_base(int64_t rounds);

#if defined(CLV_CPU_X86)
extern const clv_backend clv_cpu_backend_avx2, clv_cpu_backend_avx512;
const cpu_pair_kernel *clv_cpu_pair_kernel_avx512(void);
double clv_cpu_peak_burst_avx2(int64_t rounds);
double clv_cpu_peak_burst_avx512(int64_t rounds);

static variant choose(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        return (variant){&clv_cpu_backend_avx512, true, clv_cpu_peak_burst_avx512, clv_cpu_pair_kernel_avx512()};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return (variant){&clv_cpu_backend_avx2, true, clv_cpu_peak_burst_avx2, NULL};
    return (variant){&clv_cpu_backend_base, false, clv_cpu_peak_burst_base, NULL};
}

/* Numbers below 2^-126 become 0: they carry nothing here and cost a hundred times the others. */
static void flush_subnormals(void)
{
    __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
}
#else
static variant choose(void)
{
    return (variant){&clv_cpu_backend_base, false, clv_cpu_peak_burst_base, NULL};
}

static void flush_subnormals(void)
{
}
#endif

const clv_backend *clv_backend_cpu(void)
{
    return choose().table;
}

void clv_backend_threads_set(int threads)
{
    CLV_CHECK(threads >= 1, "%d threads", threads);
    omp_set_num_threads(threads);
    openblas_set_num_threads(threads);
#pragma omp parallel
    flush_subnormals();
}

int clv_backend_threads(void)
{
    return omp_get_max_threads();
}

const char *clv_backend_blas(void)
{
    static _Thread_local char text[96];
    static const char *const flavours[] = {"serial", "pthread", "openmp"};
    const char *config = openblas_get_config();
    const int parallel = openblas_get_parallel();
    const char *flavour = parallel >= 0 && parallel <= 2 ? flavours[parallel] : "unknown";
    const char *version_end = strchr(config, ' ') != NULL ? strchr(strchr(config, ' ') + 1, ' ') : NULL;
    const int n = version_end != NULL ? (int)(version_end - config) : (int)strlen(config);
    snprintf(text, sizeof text, "%.*s (%s, %s)", n, config, flavour, openblas_get_corename());
    return text;
}

/* Time that the calling thread ran: other work on the machine does not count. */
static double thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double clv_backend_peak(clv_dtype dtype)
{
    enum { TRIES = 5, ROUNDS = 1000000 };
    const variant v = choose();
    double (*burst)(int64_t) = dtype == CLV_BF16 && v.pairs != NULL ? v.pairs->peak_burst : v.peak_burst;
    double best = 0.0;
    for (int i = 0; i < TRIES; i++) {
        double rate = 0.0; /* of all threads side by side */
#pragma omp parallel reduction(+ : rate)
        {
            const double start = thread_seconds();
            const double flops = burst(ROUNDS);
            rate += flops / (thread_seconds() - start);
        }
        best = CLV_MAX(best, rate);
    }
    return best;
}

/* ---- scratch ----------------------------------------------------------------------------------------------------- */

size_t clv_scratch_norm(int64_t columns)
{
    return (size_t)clv_backend_threads() * 2 * (size_t)columns * sizeof(float);
}

/* Sides of about a block's size that differ by little. */
static int64_t side_of(int64_t n)
{
    enum { BLOCK = 1024, STEP = 64 };
    if (n <= BLOCK)
        return CLV_MAX(n, 1);
    const int64_t even = CLV_CEIL_DIV(n, CLV_CEIL_DIV(n, BLOCK));
    return CLV_CEIL_DIV(even, STEP) * STEP;
}

/* Blocks of about the same k; steps of 16 keep the panels of every register width in whole cache lines. */
clv_product_plan clv_product_plan_of(cpu_size size, bool copies)
{
    enum { ROWS = 8, COLUMNS = 32 }; /* of the largest register tile */
    const int64_t k = CLV_MAX(size.k, 1), even = CLV_CEIL_DIV(k, CLV_CEIL_DIV(k, CPU_K_BLOCK));
    clv_product_plan plan = {.block = {.k = CLV_CEIL_DIV(even, CPU_LINE) * CPU_LINE}};
    plan.block.m = CLV_MIN(CPU_M_BLOCK, size.m + ROWS);
    plan.block.n = CLV_MIN(CPU_N_BLOCK, CLV_CEIL_DIV(size.n, COLUMNS) * COLUMNS);
    const int64_t deepest =
        CLV_MIN(CPU_K_BLOCK, CLV_CEIL_DIV(k, CPU_LINE) * CPU_LINE); /* grows with k, as k/parts not */
    plan.packed = plan.block.n * deepest;
    plan.floats = plan.packed + (copies ? plan.block.m * (deepest + 2) : 0);
    return plan;
}

clv_gemm_plan clv_gemm_plan_of(const clv_gemm *g)
{
    enum { FEW_ROWS = 4 }; /* of A and C: up to here the weights are read row by row */
    const int64_t m = clv_rows(g->c), n = clv_last(g->c), k = g->kind == CLV_TN ? clv_rows(g->a) : clv_last(g->a);
    const bool a = g->a.dtype != CLV_F32, b = g->b.dtype != CLV_F32, c = g->c.dtype != CLV_F32;
    clv_gemm_plan plan = {.size = {m, n, k}, .few = g->kind == CLV_NT && m <= FEW_ROWS && g->a.dtype == g->b.dtype};
    if (plan.few)
        return plan;
    plan.block = (cpu_size){a || c ? side_of(m) : m, b || c ? side_of(n) : n, a || b ? side_of(k) : CLV_MAX(k, 1)};
    const cpu_size one = plan.block;
    plan.a = !a ? 0 : g->kind == CLV_TN ? one.k * clv_gemm_width(one.m) : one.m * clv_gemm_width(one.k);
    plan.b = !b ? 0 : g->kind == CLV_NT ? one.n * clv_gemm_width(one.k) : one.k * clv_gemm_width(one.n);
    plan.c = !c ? 0 : one.m * clv_gemm_width(one.n);
    if (choose().packs)
        plan.packed = clv_backend_threads() * clv_product_plan_of(one, g->kind == CLV_TN).floats;
    return plan;
}

/* The smallest equal parts of n, multiples of `unit`, that are at most `most`. */
static int64_t even_part(int64_t n, int64_t most, int64_t unit)
{
    return CLV_CEIL_DIV(CLV_CEIL_DIV(n, CLV_CEIL_DIV(n, most)), unit) * unit;
}

/* One of the operands may be f32, as the gradient of logits is: it is rounded while it is packed. */
bool clv_gemm_in_pairs(const clv_gemm *g)
{
    const clv_gemm_plan plan = clv_gemm_plan_of(g);
    const clv_dtype a = g->a.dtype, b = g->b.dtype;
    return !plan.few && plan.size.m * plan.size.n * plan.size.k > 0 && (a == CLV_BF16 || b == CLV_BF16) &&
           (a == CLV_BF16 || a == CLV_F32) && (b == CLV_BF16 || b == CLV_F32);
}

clv_pairs_plan clv_pairs_plan_of(const clv_gemm *g)
{
    enum { K = 4096, ELEMENTS = 1 << 21 };
    clv_pairs_plan plan = {.size = clv_gemm_plan_of(g).size};
    plan.k = even_part(plan.size.k, g->c.dtype == CLV_F32 ? K : plan.size.k, CPU_CHUNK);
    const int64_t most = CLV_MAX(ELEMENTS / plan.k / CPU_PAIR_M, 1) * CPU_PAIR_M;
    plan.rows = even_part(plan.size.m, CLV_MIN(most, CPU_PAIR_ROWS), CPU_PAIR_M);
    plan.bytes = (size_t)(plan.rows * plan.k) * sizeof(uint16_t);
    return plan;
}

size_t clv_scratch_gemm(const clv_gemm *g)
{
    if (choose().pairs != NULL && clv_gemm_in_pairs(g))
        return clv_pairs_plan_of(g).bytes;
    const clv_gemm_plan plan = clv_gemm_plan_of(g);
    return clv_gemm_plan_bytes(&plan);
}

size_t clv_attention_tiles(int64_t dim)
{
    return (size_t)(7 * CPU_TILE * cpu_head_width(dim) + 3 * CPU_TILE * CPU_TILE) * sizeof(float);
}

size_t clv_scratch_attention(clv_tensor q, const clv_attn *a)
{
    const size_t few = (size_t)(CPU_FEW_HEADS * cpu_head_width(a->q.dim)) * sizeof(float);
    return (size_t)clv_backend_threads() * (q.dim[0] > CPU_FEW ? clv_attention_tiles(a->q.dim) : few);
}

/* With at least as many units as threads a buffer serves a thread, else the units are cut until all threads work. */
clv_attn_plan clv_attention_plan(clv_tensor qkv, const clv_attn *a)
{
    const int64_t threads = clv_backend_threads(), tiles = CLV_CEIL_DIV(qkv.dim[0], CPU_TILE);
    clv_attn_plan plan = {.units = qkv.dim[1] * a->k.count, .parts = 1, .buffers = threads};
    if (plan.units < threads || (plan.units < 4 * threads && plan.units % threads != 0))
        plan.parts = CLV_MIN(tiles, 2 * CLV_CEIL_DIV(threads, plan.units));
    if (plan.parts > 1)
        plan.buffers = plan.units * plan.parts;
    plan.buffer = 2 * (size_t)(tiles * CPU_TILE * cpu_head_width(a->k.dim)) * sizeof(float);
    return plan;
}

size_t clv_scratch_attention_backward(clv_tensor qkv, const clv_attn *a)
{
    const clv_attn_plan plan = clv_attention_plan(qkv, a);
    return (size_t)clv_backend_threads() * clv_attention_tiles(a->q.dim) + plan.buffer * (size_t)plan.buffers;
}
