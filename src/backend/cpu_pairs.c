/* cpu_pairs.c - products of bf16 matrices by instructions that add two products at once, s += a0 b0 + a1 b1.
 *
 * Both operands are packed in pairs along k, in chunks of 32 k (blocking and packing after Goto and van de Geijn 2008):
 * of A a block of rows once for all threads, of B a strip of columns by the thread that multiplies it,
 *
 *   A  [group of rows][chunk][row][16 pairs]
 *   B  [panel of columns][chunk][16 pairs][CPU_PAIR_N]
 *
 * with zeros where k ends. What multiplies a group by a panel into a tile of f32 is one small function
 * (cpu_pair_kernel); all else stands here: orientation, edges, bias, what C held, rounding. An element of C is summed
 * in an order that k alone decides, so it has the same bits on any number of threads.
 */
#include "cpu_internal.h"

enum { PAIRS = CPU_CHUNK / 2, STRIP = 2 * CPU_PAIR_N, STEP = 8 /* chunks of B that are packed at once */ };

/* op(A) or op(B) as lines along k: step p of line i lies i line + p step elements behind `at`; line or step is 1. */
typedef struct lines {
    const void *at;
    int64_t line, step;
    clv_dtype type;
} lines;

typedef uint16_t half __attribute__((may_alias)); /* one of a pair */

/* ---- packing ----------------------------------------------------------------------------------------------------- */

static lines lines_of(clv_tensor t, bool along)
{
    const int64_t width = clv_last(t);
    return (lines){t.data, along ? width : 1, along ? 1 : width, t.dtype};
}

static lines lines_at(lines x, int64_t i, int64_t p)
{
    x.at = (const char *)x.at + (i * x.line + p * x.step) * (x.type == CLV_F32 ? 4 : 2);
    return x;
}

#define CPU_HALVES(type, body, ...) (type) == CLV_F32 ? body(__VA_ARGS__, CLV_F32) : body(__VA_ARGS__, CLV_BF16)

CPU_BODY uint16_t half_at(const void *x, int64_t i, clv_dtype type)
{
    return type == CLV_F32 ? cpu_to_bf16(((const float *)x)[i]) : ((const uint16_t *)x)[i];
}

CPU_BODY void copy(half *restrict to, const void *from, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t i = 0; i < n; i++)
        to[i] = half_at(from, i, type);
}

CPU_BODY void join(uint32_t *restrict to, const void *low, const void *high, int64_t n, clv_dtype type)
{
    CPU_SIMD
    for (int64_t i = 0; i < n; i++)
        to[i] = half_at(low, i, type) | (uint32_t)half_at(high, i, type) << 16;
}

/* The usual length as a constant: then no loop is left to be counted. */
CPU_BODY void copy_steps(half *to, const void *from, int64_t n, clv_dtype type)
{
    if (n == CPU_CHUNK)
        copy(to, from, CPU_CHUNK, type);
    else
        copy(to, from, n, type);
}

CPU_BODY void join_lines(uint32_t *to, const void *low, const void *high, int64_t n, clv_dtype type)
{
    if (n == CPU_PAIR_N)
        join(to, low, high, CPU_PAIR_N, type);
    else
        join(to, low, high, n, type);
}

/* A chunk of `count` lines that lie along memory: to[width][32 steps]. */
static void pack_along(uint32_t *to, lines x, int64_t width, int64_t count, int64_t k)
{
    for (int64_t i = 0; i < width; i++, to += PAIRS) {
        const int64_t n = i < count ? CLV_MIN(k, CPU_CHUNK) : 0;
        const void *from = lines_at(x, i, 0).at;
        if (n < CPU_CHUNK)
            memset(to, 0, PAIRS * sizeof *to);
        CPU_HALVES(x.type, copy_steps, (half *)to, from, n);
    }
}

/* A chunk of `count` lines that lie across memory, a step's side by side: to[16][width]. */
static void pack_across(uint32_t *to, lines x, int64_t width, int64_t count, int64_t k)
{
    static const float none[CPU_PAIR_M]; /* zeros of either type */
    if (count < width || k < CPU_CHUNK)
        memset(to, 0, (size_t)(PAIRS * width) * sizeof *to);
    for (int64_t p = 0; p < CLV_MIN(k, CPU_CHUNK); p += 2, to += width) {
        const void *low = lines_at(x, 0, p).at, *high = p + 1 < k ? lines_at(x, 0, p + 1).at : none;
        CPU_HALVES(x.type, join_lines, to, low, high, CLV_MIN(count, width));
    }
}

/* A chunk of up to CPU_PAIR_M rows of A, groups of `rows` lying `next` apart. */
static void pack_rows(uint32_t *to, int64_t next, int64_t rows, lines x, cpu_size size)
{
    uint32_t across[PAIRS * CPU_PAIR_M];
    if (x.step == 1) {
        for (int64_t i = 0; i < size.m; i += rows)
            pack_along(to + i / rows * next, lines_at(x, i, 0), rows, size.m - i, size.k);
        return;
    }
    pack_across(across, x, CPU_PAIR_M, size.m, size.k);
    for (int64_t i = 0; i < CLV_CEIL_DIV(size.m, rows) * rows; i += 4)
        for (int64_t q = 0; q < PAIRS; q += 4)
            cpu_transpose4((float *)(to + i / rows * next + i % rows * PAIRS + q), PAIRS,
                           (const float *)(across + q * CPU_PAIR_M + i), CPU_PAIR_M);
}

/* A chunk of up to CPU_PAIR_N columns of B. */
static void pack_columns(uint32_t *to, lines x, int64_t n, int64_t k)
{
    uint32_t along[CPU_PAIR_N * PAIRS];
    if (x.step != 1) {
        pack_across(to, x, CPU_PAIR_N, n, k);
        return;
    }
    pack_along(along, x, CPU_PAIR_N, n, k);
    for (int64_t q = 0; q < PAIRS; q += 4)
        for (int64_t j = 0; j < CPU_PAIR_N; j += 4)
            cpu_transpose4((float *)(to + q * CPU_PAIR_N + j), CPU_PAIR_N, (const float *)(along + j * PAIRS + q),
                           PAIRS);
}

/* ---- a block: some rows of C, and k or a part of it ---------------------------------------------------------------
 */

typedef struct block {
    const clv_gemm *g;
    const cpu_pair_kernel *kernel;
    uint32_t *packed;
    lines a, b;
    int64_t first; /* row of C */
    cpu_size size;
    int64_t chunks, groups;
    bool add; /* to what C holds, which already has the bias if part of k is in it */
    bool biased;
} block;

static void pack_block(const block *x)
{
    const int64_t rows = x->kernel->rows, spans = CLV_CEIL_DIV(x->size.m, CPU_PAIR_M);
#pragma omp parallel for collapse(2) schedule(static) if (x->size.m * x->size.k > CPU_SERIAL)
    for (int64_t span = 0; span < spans; span++)
        for (int64_t c = 0; c < x->chunks; c++) {
            const int64_t i = span * CPU_PAIR_M, p = c * CPU_CHUNK;
            const cpu_size size = {CLV_MIN(CPU_PAIR_M, x->size.m - i), 0, x->size.k - p};
            pack_rows(x->packed + (i * x->chunks + c * rows) * PAIRS, x->chunks * rows * PAIRS, rows,
                      lines_at(x->a, i, p), size);
        }
}

/* A tile's row of n sums becomes C's. */
CPU_BODY void finish_row(void *c, const float *sum, const float *bias, int64_t n, bool add, clv_dtype type)
{
    CPU_SIMD
    for (int64_t j = 0; j < n; j++)
        cpu_put(c, j, (add ? cpu_get(c, j, type) : 0.0f) + bias[j] + sum[j], type);
}

static void finish(const block *x, const float *tile, const float *bias, int64_t i, int64_t j)
{
    const clv_tensor c = x->g->c;
    const int64_t rows = CLV_MIN(x->kernel->rows, x->size.m - i), n = CLV_MIN(CPU_PAIR_N, x->size.n - j);
    for (int64_t r = 0; r < rows; r++, tile += CPU_PAIR_N) {
        void *to = cpu_at(c, (x->first + i + r) * x->size.n + j);
        if (n == CPU_PAIR_N)
            CPU_TYPED(c.dtype, finish_row, to, tile, bias, CPU_PAIR_N, x->add);
        else
            CPU_TYPED(c.dtype, finish_row, to, tile, bias, n, x->add);
    }
}

/* Columns j .. of C in some groups of rows: tile by tile, B packed in steps along k. */
static void multiply_strip(const block *x, int64_t j, int64_t from, int64_t to)
{
    _Alignas(64) uint32_t b[STEP * PAIRS * STRIP];
    _Alignas(64) float sums[CPU_PAIR_ROWS * STRIP], bias[STRIP] = {0}; /* of one tile, if B is packed at one go */
    const int64_t rows = x->kernel->rows, n = CLV_MIN(STRIP, x->size.n - j);
    if (x->biased)
        CPU(convert)(bias, CLV_F32, cpu_at(x->g->bias, j), x->g->bias.dtype, n);
    for (int64_t c = 0; c < x->chunks; c += STEP) {
        const int64_t chunks = CLV_MIN(STEP, x->chunks - c);
        const bool last = c + chunks == x->chunks, whole = chunks == x->chunks;
        for (int64_t q = 0; q < n; q += CPU_PAIR_N)
            for (int64_t at = 0; at < chunks; at++)
                pack_columns(b + (q * chunks + at * CPU_PAIR_N) * PAIRS, lines_at(x->b, j + q, (c + at) * CPU_CHUNK),
                             CLV_MIN(CPU_PAIR_N, n - q), x->size.k - (c + at) * CPU_CHUNK);
        for (int64_t q = 0; q < n; q += CPU_PAIR_N)
            for (int64_t group = from; group < to; group++) {
                float *tile = whole ? sums : sums + ((group - from) * STRIP + q) * rows;
                x->kernel->multiply(tile, x->packed + (group * x->chunks + c) * rows * PAIRS, b + q * chunks * PAIRS,
                                    chunks, c > 0);
                if (last)
                    finish(x, tile, bias + q, group * rows, j + q);
            }
    }
}

/* Parts into which the rows are cut, so that no thread has much more to do than another; few, since each packs B. */
static int64_t parts_of(int64_t strips, int64_t groups, int64_t threads)
{
    int64_t best = 1;
    double least = INFINITY;
    for (int64_t parts = 1; parts <= CLV_MIN(groups, threads); parts++) {
        const double time = (double)CLV_CEIL_DIV(strips * parts, threads) / (double)parts;
        if (time < 0.95 * least) {
            least = time;
            best = parts;
        }
    }
    return best;
}

static void multiply_block(const block *x)
{
    const int64_t threads = x->size.m * x->size.n * x->size.k > CPU_SERIAL * 8 ? clv_backend_threads() : 1;
    const int64_t strips = CLV_CEIL_DIV(x->size.n, STRIP), parts = parts_of(strips, x->groups, threads);
#pragma omp parallel for schedule(dynamic) if (threads > 1)
    for (int64_t job = 0; job < strips * parts; job++) {
        if (x->kernel->begin != NULL)
            x->kernel->begin();
        multiply_strip(x, job / parts * STRIP, cpu_part(x->groups, job % parts, parts),
                       cpu_part(x->groups, job % parts + 1, parts));
        if (x->kernel->end != NULL)
            x->kernel->end();
    }
}

void CPU(pair_product)(clv_ctx *cx, const clv_gemm *g, const cpu_pair_kernel *kernel)
{
    const clv_pairs_plan plan = clv_pairs_plan_of(g);
    const size_t mark = clv_arena_mark(cx->temp);
    const lines a = lines_of(g->a, g->kind != CLV_TN), b = lines_of(g->b, g->kind == CLV_NT);
    block x = {.g = g, .kernel = kernel, .packed = clv_arena_push(cx->temp, plan.bytes)};
    for (int64_t i = 0; i < plan.size.m; i += plan.rows)
        for (int64_t p = 0; p < plan.size.k; p += plan.k) {
            x.a = lines_at(a, i, p);
            x.b = lines_at(b, 0, p);
            x.first = i;
            x.size = (cpu_size){CLV_MIN(plan.rows, plan.size.m - i), plan.size.n, CLV_MIN(plan.k, plan.size.k - p)};
            x.chunks = CLV_CEIL_DIV(x.size.k, CPU_CHUNK);
            x.groups = CLV_CEIL_DIV(x.size.m, kernel->rows);
            x.add = g->accumulate || p > 0;
            x.biased = g->bias.ndim > 0 && p == 0;
            pack_block(&x);
            multiply_block(&x);
        }
    clv_arena_release(cx->temp, mark);
}
