/* cpu_internal.h - what the files of the cpu backend share.
 *
 * Every cpu_*.c but cpu.c is compiled once for each instruction set (cmake/kernels.cmake); CPU(name) gives its external
 * names the set's ending, so that the copies lie side by side in one program and cpu.c chooses one at run time.
 *
 * Kernels are plain loops that the compiler vectorizes; nothing in them calls libm. The functions below are therefore
 * written without branches: arithmetic, comparisons that become selects, and bits.
 */
#ifndef CLV_CPU_INTERNAL_H
#define CLV_CPU_INTERNAL_H

#include "op/backend.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#define CPU_PASTE_(a, b)  a##_##b
#define CPU_PASTE(a, b)   CPU_PASTE_(a, b)
#define CPU(name)         CPU_PASTE(clv_cpu_##name, CLV_CPU_ISA)
#define CPU_DO_(text)     _Pragma(#text)
#define CPU_SIMD          CPU_DO_(omp simd)
#define CPU_SIMD_SUM(...) CPU_DO_(omp simd reduction(+ : __VA_ARGS__))
/* A loop over rows, on all threads when `work` elements are worth waking them. */
#define CPU_PARALLEL(work) CPU_DO_(omp parallel for schedule(static) if ((work) > CPU_SERIAL))

/* Register width, and the rows of C, of two registers each, that a product holds; then those of what is left over. */
#if defined(__AVX512F__)
enum { CPU_VEC = 16, CPU_MR = 8, CPU_REST = 4 };
#elif defined(__AVX__)
enum { CPU_VEC = 8, CPU_MR = 6, CPU_REST = 2 };
#else
enum { CPU_VEC = 4, CPU_MR = 4, CPU_REST = 4 };
#endif

enum {
    CPU_SERIAL = 1 << 14, /* elements below which one thread is faster than a team */
    CPU_LINE = 16,        /* floats of a cache line, the unit in which columns are dealt to threads */
    CPU_TILE = 64,        /* queries, and keys, of a tile of attention */
    CPU_FEW = 4,          /* queries up to which a tile would be nearly empty */
    CPU_FEW_HEADS = 16    /* that a thread then takes together, at most */
};

/* sum += the terms of i in [0, n): so many sums side by side that none waits for its last addition, folded in halves.
 */
#define CPU_SUM(sum, n, i, term)                                                                                       \
    do {                                                                                                               \
        enum { LANES_ = 4 * CPU_VEC };                                                                                 \
        __typeof__(sum) lane_[LANES_] = {0};                                                                           \
        const int64_t n_ = (n);                                                                                        \
        int64_t at_ = 0;                                                                                               \
        for (; at_ + LANES_ <= n_; at_ += LANES_)                                                                      \
            CPU_SUM_LANES_(LANES_, lane_, at_ + l_, i, term);                                                          \
        CPU_SUM_LANES_(n_ - at_, lane_, at_ + l_, i, term);                                                            \
        CPU_SUM_LANES_(LANES_ / 2, lane_, l_ + LANES_ / 2, i, lane_[i]);                                               \
        CPU_SUM_LANES_(LANES_ / 4, lane_, l_ + LANES_ / 4, i, lane_[i]);                                               \
        for (int half_ = CPU_VEC / 2; half_ >= 4; half_ /= 2)                                                          \
            CPU_SUM_LANES_(half_, lane_, l_ + half_, i, lane_[i]);                                                     \
        sum += (lane_[0] + lane_[2]) + (lane_[1] + lane_[3]);                                                          \
    } while (0)
#define CPU_SUM_LANES_(count, lane, at, i, term)                                                                       \
    do {                                                                                                               \
        CPU_SIMD                                                                                                       \
        for (int64_t l_ = 0; l_ < (count); l_++) {                                                                     \
            const int64_t i = (at);                                                                                    \
            (lane)[l_] += (term);                                                                                      \
        }                                                                                                              \
    } while (0)

typedef float cpu_vec __attribute__((vector_size(sizeof(float) * CPU_VEC), aligned(4), may_alias));

/* 4 x 4 elements, transposed: rows of `to` become columns of `from`. */
typedef float cpu_four __attribute__((vector_size(16), aligned(4), may_alias));

static inline void cpu_load_transposed4(cpu_four to[4], const float *from, int64_t from_row)
{
    cpu_four r[4];
    for (int i = 0; i < 4; i++)
        r[i] = *(const cpu_four *)(from + i * from_row);
    const cpu_four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5),
                   b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const cpu_four c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7),
                   d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    to[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    to[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    to[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    to[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

static inline void cpu_transpose4(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    cpu_four r[4];
    cpu_load_transposed4(r, from, from_row);
    for (int i = 0; i < 4; i++)
        *(cpu_four *)(to + i * to_row) = r[i];
}

/* ---- elementary functions ------------------------------------------------------------------------------------ */

static inline float cpu_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t cpu_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Defined in cpu.c, so that no kernel's compiler knows the values: it would calculate what lies beyond a limit apart,
 * and need a comparison and a mask where a maximum will do. */
typedef struct cpu_limits {
    float exp_low, exp_high; /* -88, 89 */
    float zero;
} cpu_limits;
extern const cpu_limits clv_cpu_limits;

/* The larger, or x if either is NaN. */
static inline float cpu_max(float low, float x)
{
    return low > x ? low : x;
}

static inline float cpu_min(float high, float x)
{
    return high < x ? high : x;
}

/* e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2; e^r by a polynomial fitted to relative error 1e-8, so that only
 * rounding is left (2 ulp). Below the normal numbers 0, above 88.37 infinity: there n + 127, which is the exponent's
 * bits, is 0 and 255. */
static inline float cpu_exp(float x)
{
    const float magic = 0x1.8p23f + 127.0f; /* adding it rounds to an integer, whose n + 127 stands in the low bits */
    const float at = cpu_min(clv_cpu_limits.exp_high, cpu_max(clv_cpu_limits.exp_low, x));
    const float shifted = at * 0x1.715476p+0f + magic;
    const float n = shifted - magic;
    const float r = (at - n * 0x1.62e4p-1f) + n * -0x1.7f7d1cp-20f;
    const float square = r * r, cube = 0.5f + 1.666657703e-1f * r;
    const float rest = 4.166655466e-2f + 8.363173075e-3f * r + 1.392617612e-3f * square;
    const float p = 1.0f + (r + square * (cube + square * rest));
    return p * cpu_from_bits(cpu_to_bits(shifted) << 23);
}

static inline float cpu_sigmoid(float x)
{
    return 1.0f / (1.0f + cpu_exp(-x));
}

/* ---- storage: f32, bf16 or f16 in memory, f32 in registers ----------------------------------------------------
 *
 * Halves are rounded to the nearest, ties to even. The body of a kernel takes the type as its last argument;
 * CPU_TYPED calls it with a constant there, so that the loop of each type is compiled by itself. */

#define CPU_BODY static inline __attribute__((always_inline))
#define CPU_TYPED(type, body, ...)                                                                                     \
    do {                                                                                                               \
        if ((type) == CLV_F32)                                                                                         \
            body(__VA_ARGS__, CLV_F32);                                                                                \
        else if ((type) == CLV_BF16)                                                                                   \
            body(__VA_ARGS__, CLV_BF16);                                                                               \
        else                                                                                                           \
            body(__VA_ARGS__, CLV_F16);                                                                                \
    } while (0)

static inline float cpu_from_bf16(uint16_t half)
{
    return cpu_from_bits((uint32_t)half << 16);
}

static inline uint16_t cpu_to_bf16(float x)
{
    const uint32_t bits = cpu_to_bits(x);
    const uint32_t rounded = bits + 0x7FFFu + (bits >> 16 & 1u);
    return (uint16_t)((isnan(x) ? bits | 0x400000u : rounded) >> 16);
}

/* The exponent moves from bias 15 to 127 by a product, which also makes subnormal numbers normal. */
static inline float cpu_from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = (uint32_t)(half & 0x7FFF) << 13;
    const float small = (float)(half & 0x3FF) * 0x1p-24f;
    const uint32_t size = rest + ((half & 0x7C00) == 0x7C00 ? (255u - 31u) << 23 : (127u - 15u) << 23);
    return cpu_from_bits(((half & 0x7C00) == 0 ? cpu_to_bits(small) : size) | sign);
}

/* Below 2^-14, adding 1/2 leaves multiples of 2^-24 in the low bits, rounded by the addition itself. */
static inline uint16_t cpu_to_f16(float x)
{
    const uint32_t sign = cpu_to_bits(x) >> 16 & 0x8000u, size = cpu_to_bits(x) & 0x7FFFFFFFu;
    const uint32_t small = cpu_to_bits(cpu_from_bits(size) + 0.5f) - 0x3F000000u;
    const uint32_t normal = (size - ((127u - 15u) << 23) + 0xFFFu + (size >> 13 & 1u)) >> 13;
    const uint32_t big = size > 0x7F800000u ? 0x7E00u : 0x7C00u;
    const uint32_t bits = size >= 0x477FF000u ? big : size < 0x38800000u ? small : normal;
    return (uint16_t)(sign | bits);
}

CPU_BODY float cpu_get(const void *x, int64_t i, clv_dtype type)
{
    if (type == CLV_F32)
        return ((const float *)x)[i];
    const uint16_t half = ((const uint16_t *)x)[i];
    return type == CLV_BF16 ? cpu_from_bf16(half) : cpu_from_f16(half);
}

CPU_BODY void cpu_put(void *y, int64_t i, float x, clv_dtype type)
{
    if (type == CLV_F32)
        ((float *)y)[i] = x;
    else
        ((uint16_t *)y)[i] = type == CLV_BF16 ? cpu_to_bf16(x) : cpu_to_f16(x);
}

/* x as the type holds it. */
CPU_BODY float cpu_rounded(float x, clv_dtype type)
{
    if (type == CLV_F32)
        return x;
    return type == CLV_BF16 ? cpu_from_bf16(cpu_to_bf16(x)) : cpu_from_f16(cpu_to_f16(x));
}

/* sum += x */
CPU_BODY void cpu_add_to(float *sum, const void *x, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t j = 0; j < n; j++)
        sum[j] += cpu_get(x, j, type);
}

/* cpu_vector.c: n values of one type become another's. */
void CPU(convert)(void *y, clv_dtype y_type, const void *x, clv_dtype x_type, int64_t n);

/* ---- tensors ------------------------------------------------------------------------------------------------- */

/* The last dim, where a call would cost as much as a short row. */
static inline int64_t cpu_last(clv_tensor t)
{
    return t.dim[t.ndim - 1];
}

/* Element `i` of any type, and a row of f32. */
static inline void *cpu_at(clv_tensor t, int64_t i)
{
    return (char *)t.data + i * (t.dtype == CLV_F32 ? 4 : 2);
}

static inline void *cpu_row_at(clv_tensor t, int64_t row)
{
    return cpu_at(t, row * cpu_last(t));
}

static inline float *cpu_row(clv_tensor t, int64_t row)
{
    return (float *)t.data + row * cpu_last(t);
}

/* Part `i` of `parts` of n things: 0 <= i <= parts gives its first; the same for any number of threads. */
static inline int64_t cpu_part(int64_t n, int64_t i, int64_t parts)
{
    return n * i / parts;
}

static inline bool cpu_drops(const clv_dropout *drop)
{
    return drop != NULL && drop->p > 0.0f;
}

static inline int64_t cpu_sample(const clv_dropout *drop, int64_t column)
{
    return ((const int64_t *)drop->sample.data)[column];
}

/* cpu_random.c: factor[i] = 1/(1-p) where element first + i is kept, else 0. */
void CPU(keep)(float *factor, int64_t n, const clv_dropout *drop, int64_t column, uint64_t first);

/* ---- scratch, whose sizes depend on no instruction set (cpu.c) --------------------------------------------------- */

/* Floats of a head's row in scratch, in whole cache lines. */
static inline int64_t cpu_head_width(int64_t dim)
{
    return CLV_CEIL_DIV(dim, CPU_LINE) * CPU_LINE;
}

/* How the backward of attention is cut: units (KV heads x sequences), parts of a unit, buffers for dk and dv. */
typedef struct clv_attn_plan {
    int64_t units, parts, buffers;
    size_t buffer; /* bytes of one */
} clv_attn_plan;

typedef struct cpu_size {
    int64_t m, n, k;
} cpu_size;

enum { CPU_K_BLOCK = 768, CPU_N_BLOCK = 512, CPU_M_BLOCK = 128 }; /* of a packed product, at most */

/* Blocks of a packed product, and each thread's floats: a packed block of B, then a copied one of A, if it is. */
typedef struct clv_product_plan {
    cpu_size block;
    int64_t packed, floats;
} clv_product_plan;

clv_product_plan clv_product_plan_of(cpu_size size, bool copies);

/* How a product is cut so that 16-bit operands can be widened block by block. All in f32: one block, no scratch. */
typedef struct clv_gemm_plan {
    cpu_size size, block;
    int64_t a, b, c; /* floats of scratch for a block of each */
    int64_t packed;  /* and for the product itself */
    bool few;        /* so few rows that B is read as it lies, whatever its type */
} clv_gemm_plan;

clv_gemm_plan clv_gemm_plan_of(const clv_gemm *g);

static inline size_t clv_gemm_plan_bytes(const clv_gemm_plan *plan)
{
    return (size_t)(plan->a + plan->b + plan->c + plan->packed) * sizeof(float);
}

/* Floats between the rows of a block of n columns: not a power of two, so that rows do not share sets of the cache. */
static inline int64_t clv_gemm_width(int64_t n)
{
    return n + CPU_LINE;
}

/* How a product of bf16 in pairs is cut: rows of A that are packed at once, and k; one k where C must be rounded. */
typedef struct clv_pairs_plan {
    cpu_size size;
    int64_t rows, k;
    size_t bytes; /* of packed A */
} clv_pairs_plan;

bool clv_gemm_in_pairs(const clv_gemm *g); /* whether a processor that can multiplies it so */
clv_pairs_plan clv_pairs_plan_of(const clv_gemm *g);

clv_attn_plan clv_attention_plan(clv_tensor qkv, const clv_attn *a);
size_t clv_attention_tiles(int64_t dim); /* bytes of a thread's tiles */

/* ---- cpu_tile.c: products of small matrices in the cache ------------------------------------------------------- */

typedef struct cpu_view {
    float *at;
    int64_t row, step; /* element (i, j) lies at i row + j step */
} cpu_view;

static inline cpu_view cpu_moved(cpu_view v, int64_t i, int64_t j)
{
    return (cpu_view){v.at + i * v.row + j * v.step, v.row, v.step};
}

/* What the elements of C are before a product: themselves, or a row of biases, or 0. */
typedef struct cpu_start {
    bool add;
    const float *bias; /* or NULL; read unless add */
} cpu_start;

typedef struct cpu_block_shape {
    int64_t k;
    int mr, nv; /* at most CPU_MR rows, 2 vectors */
} cpu_block_shape;

/* C = start + A B, for mr rows x nv vectors that stay in registers while k runs: an element of A is spread over a
 * register and meets one or two registers of B. Steps of B and C are 1; mr and nv are constants where this is inlined.
 */
CPU_BODY void cpu_block(cpu_view c, cpu_view a, cpu_view b, cpu_block_shape shape, cpu_start start)
{
    cpu_vec sum[CPU_MR][2] = {0};
    for (int i = 0; i < shape.mr; i++) /* C of a large product lies far away: it comes while k runs */
        for (int v = 0; v < shape.nv; v++)
            __builtin_prefetch(c.at + i * c.row + v * CPU_VEC, 1);
    for (int64_t p = 0; p < shape.k; p++) {
        const float *bp = b.at + p * b.row;
        const float *ap = a.at + p * a.step;
        cpu_vec bv[2] = {0};
        for (int v = 0; v < shape.nv; v++)
            bv[v] = *(const cpu_vec *)(bp + v * CPU_VEC);
        for (int i = 0; i < shape.mr; i++)
            for (int v = 0; v < shape.nv; v++)
                sum[i][v] += ap[i * a.row] * bv[v];
    }
    CPU_DO_(GCC unroll 8) /* else the sums would leave their registers to be counted over */
    for (int i = 0; i < shape.mr; i++)
        for (int v = 0; v < shape.nv; v++) {
            cpu_vec *to = (cpu_vec *)(c.at + i * c.row + v * CPU_VEC);
            if (start.add)
                sum[i][v] += *to;
            else if (start.bias != NULL)
                sum[i][v] += *(const cpu_vec *)(start.bias + v * CPU_VEC);
            *to = sum[i][v];
        }
}

/* C[m,n] (+)= A[m,k] B[k,n]; steps of B and C are 1, n a multiple of CPU_VEC, m of 4 (and so its rest by CPU_MR
 * of CPU_REST). */
void CPU(tile_product)(cpu_view c, cpu_view a, cpu_view b, cpu_size size, bool add);

typedef struct cpu_product { /* C[m,n] = start + A[m,k] B[k,n], any sizes */
    cpu_view c, a, b;        /* steps of C are 1, of A and B 1 in either dim */
    cpu_size size;
    cpu_start start;
    float *scratch; /* for all threads, as planned */
} cpu_product;

/* cpu_product.c */
void CPU(product)(const cpu_product *x);

/* ---- cpu_pairs.c: products of bf16 in pairs along k ----------------------------------------------------------------
 */

enum {
    CPU_CHUNK = 32,       /* k of a chunk: 16 pairs, a cache line */
    CPU_PAIR_N = 32,      /* columns of a tile */
    CPU_PAIR_M = 96,      /* a multiple of the rows of every kernel's tile */
    CPU_PAIR_ROWS = 1056, /* the most rows of A that are packed at once */
};

/* tile[rows][CPU_PAIR_N] (+)= A B over chunks; a[chunk][row][16] and b[chunk][16][CPU_PAIR_N] hold pairs (k, k + 1). */
typedef struct cpu_pair_kernel {
    int64_t rows; /* a multiple of 4 that divides CPU_PAIR_M */
    void (*multiply)(float *tile, const uint32_t *a, const uint32_t *b, int64_t chunks, bool add);
    void (*begin)(void), (*end)(void);    /* before a thread's first call and after its last; or NULL */
    double (*peak_burst)(int64_t rounds); /* as that of cpu_table.c */
} cpu_pair_kernel;

void CPU(pair_product)(clv_ctx *cx, const clv_gemm *g, const cpu_pair_kernel *kernel);

/* cpu_pairs_kernel.c, cpu_pairs_amx.c: those of this instruction set and processor, NULL where it has none. */
const cpu_pair_kernel *CPU(pair_kernel_dot)(void);
const cpu_pair_kernel *CPU(pair_kernel_amx)(void);
const cpu_pair_kernel *CPU(pair_kernel)(void); /* the fastest */

/* ---- the operations, in the order of op/backend.h -------------------------------------------------------------- */

void CPU(gemm)(clv_ctx *cx, const clv_gemm *g);
void CPU(column_sums)(clv_tensor sum, clv_tensor x);
void CPU(norm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, const clv_norm *norm);
void CPU(norm_backward)(clv_ctx *cx, clv_tensor dx, clv_tensor dy, clv_tensor x, clv_tensor stat, const clv_norm *norm);
void CPU(headnorm_forward)(clv_tensor y, clv_tensor stat, clv_tensor x, clv_heads at, const clv_norm *norm);
void CPU(headnorm_backward)(clv_ctx *cx, clv_tensor du, clv_tensor x, clv_tensor stat, clv_heads at,
                            const clv_norm *norm);
void CPU(rope)(clv_tensor u, clv_heads at, clv_tensor table, clv_tensor pos, int sign);
void CPU(dropout)(clv_tensor y, clv_tensor x, const clv_dropout *drop);
void CPU(attention_forward)(clv_ctx *cx, clv_tensor o, clv_tensor lse, clv_tensor q, clv_tensor kv, const clv_attn *a);
void CPU(attention_backward)(clv_ctx *cx, clv_tensor dqkv, clv_tensor dout, const clv_attn_saved *saved,
                             const clv_attn *a);
void CPU(attention_range)(clv_tensor range, clv_tensor doc, bool causal, int64_t window);
void CPU(act_forward)(clv_tensor v, clv_tensor u, clv_act act);
void CPU(act_backward)(clv_tensor du, clv_tensor dv, clv_tensor u, clv_act act);
void CPU(embed_forward)(clv_tensor y, clv_tensor ids, clv_tensor w, int64_t first);
void CPU(embed_backward)(clv_tensor dw, clv_tensor dy, clv_tensor ids, int64_t first);
void CPU(embed_add)(clv_tensor y, clv_tensor ids, clv_tensor w);
void CPU(residual_forward)(clv_tensor y, clv_tensor x, clv_tensor z, clv_tensor bias, const clv_dropout *drop);
void CPU(residual_backward)(clv_tensor dz, clv_tensor dbias, clv_tensor dy, const clv_dropout *drop);
void CPU(ce_max)(clv_tensor max, clv_tensor logits, const clv_ce *ce);
void CPU(ce_sums)(clv_tensor target_logit, clv_tensor sums, clv_tensor logits, clv_tensor max, const clv_ce *ce);
void CPU(ce_loss)(clv_tensor loss, clv_tensor nll, clv_tensor target_logit, clv_tensor sums, const clv_ce *ce);
void CPU(ce_backward)(clv_tensor logits, clv_tensor max, clv_tensor sums, clv_tensor weight, const clv_ce *ce);
void CPU(zero)(clv_tensor t);
void CPU(copy)(clv_tensor y, clv_tensor x);
void CPU(add)(clv_tensor y, clv_tensor x);
void CPU(scale)(clv_tensor y, float a);
void CPU(sum_squares)(clv_tensor sum, clv_tensor x);
void CPU(dot)(clv_tensor sum, clv_tensor w, clv_tensor x);
void CPU(to_host)(void *out, clv_tensor t);
void CPU(from_host)(clv_tensor t, const void *in);
void CPU(adamw)(const clv_moving *to, clv_tensor g, const clv_adamw *a);

/* cpu_table.c: the table of this instruction set, and its share of clv_backend_peak: FLOP of one call on one thread. */
extern const clv_backend CPU(backend);
double CPU(peak_burst)(int64_t rounds);

#endif
