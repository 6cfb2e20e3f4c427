/* cpu_product.c - matrix products in f32: packed panels, register tiles.
 *
 * Blocked after Goto and van de Geijn 2008: of B a block k x n is packed into panels as wide as the register tile, so
 * that every orientation of B runs the same inner loop. A is read where it lies, or, when its columns lie in memory as
 * rows, a block of it is copied. C is cut into one rectangle per thread, each with scratch of its own
 * (clv_product_plan_of). An element of C is the sum over k in an order that depends on k alone.
 */
#include "cpu_internal.h"

enum { PANEL = 2 * CPU_VEC, M_BLOCK = CPU_M_BLOCK / CPU_MR * CPU_MR, AHEAD = 8 };

/* to[panel][k][PANEL], the last panel filled up with zeros. */
static void pack_b(float *restrict to, cpu_view b, int64_t k, int64_t n)
{
    for (int64_t j = 0; j < n; j += PANEL, to += k * PANEL) {
        const int64_t width = CLV_MIN(PANEL, n - j);
        if (width < PANEL)
            memset(to, 0, (size_t)(k * PANEL) * sizeof(float));
        if (b.step == 1 && width == PANEL) { /* a constant width: no call */
            for (int64_t p = 0; p < k; p++)
                memcpy(to + p * PANEL, b.at + p * b.row + j, PANEL * sizeof(float));
            continue;
        }
        if (b.step == 1) {
            for (int64_t p = 0; p < k; p++)
                memcpy(to + p * PANEL, b.at + p * b.row + j, (size_t)width * sizeof(float));
            continue;
        }
        const int64_t whole_k = k / 4 * 4, whole_j = width / 4 * 4;
        for (int64_t p = 0; p < whole_k; p += 4)
            for (int64_t i = 0; i < whole_j; i += 4)
                cpu_transpose4(to + p * PANEL + i, PANEL, b.at + p + (j + i) * b.step, b.step);
        for (int64_t i = 0; i < width; i++)
            for (int64_t p = i < whole_j ? whole_k : 0; p < k; p++)
                to[p * PANEL + i] = b.at[p + (j + i) * b.step];
    }
}

/* Rows of A in groups of CPU_MR, `next` floats apart. */
typedef struct groups {
    cpu_view first;
    int64_t next;
} groups;

/* A block of A, m x k: where it lies if k runs along memory, else copied to [group][k][CPU_MR], filled up with zeros.
 * Two steps of k more per group keep the groups out of each other's cache sets. Rows of A lie far apart, where no
 * processor looks ahead by itself. */
static groups groups_of(float *copy, cpu_view a, int64_t m, int64_t k)
{
    const int64_t next = (k + 2) * CPU_MR;
    if (a.step == 1)
        return (groups){a, CPU_MR * a.row};
    for (int64_t p = 0; p < k; p++) {
        for (int64_t i = 0; i < m && p + AHEAD < k; i += CPU_LINE)
            __builtin_prefetch(a.at + i + (p + AHEAD) * a.step);
        for (int64_t i = 0; i < m; i += CPU_MR) {
            float *to = copy + i / CPU_MR * next + p * CPU_MR;
            const float *from = a.at + i + p * a.step;
            if (i + CPU_MR <= m)
                memcpy(to, from, CPU_MR * sizeof(float));
            else
                for (int64_t q = 0; q < CPU_MR; q++)
                    to[q] = i + q < m ? from[q] : 0.0f;
        }
    }
    return (groups){{copy, 1, CPU_MR}, next};
}

/* The last m < CPU_MR rows of an A that was not copied, filled up with zeros. */
static cpu_view last_rows(float *copy, cpu_view a, int64_t m, int64_t k)
{
    memset(copy, 0, CPU_MR * CPU_K_BLOCK * sizeof(float));
    for (int64_t i = 0; i < m; i++)
        memcpy(copy + i * CPU_K_BLOCK, a.at + i * a.row, (size_t)k * sizeof(float));
    return (cpu_view){copy, CPU_K_BLOCK, 1};
}

CPU_BODY void block(cpu_view c, cpu_view a, cpu_view b, int64_t k, cpu_start start)
{
    cpu_block(c, a, b, (cpu_block_shape){k, CPU_MR, 2}, start);
}

/* A register tile that C does not have whole. */
static void corner(cpu_view c, cpu_view a, cpu_view b, cpu_size size, cpu_start start)
{
    float tile[CPU_MR * PANEL];
    block((cpu_view){tile, PANEL, 1}, a, b, size.k, (cpu_start){0});
    for (int64_t i = 0; i < size.m; i++)
        for (int64_t j = 0; j < size.n; j++) {
            const float before = start.add ? c.at[i * c.row + j] : start.bias != NULL ? start.bias[j] : 0.0f;
            c.at[i * c.row + j] = before + tile[i * PANEL + j];
        }
}

/* C = start + A packed B, for one block. */
static void multiply(cpu_view c, groups rows, const float *packed, cpu_size size, cpu_start start)
{
    float copy[CPU_MR * CPU_K_BLOCK];
    const int64_t whole = size.m / CPU_MR * CPU_MR, left = size.m - whole;
    cpu_view last = {rows.first.at + whole / CPU_MR * rows.next, rows.first.row, rows.first.step};
    if (left > 0 && last.step == 1)
        last = last_rows(copy, last, left, size.k);
    for (int64_t j = 0; j < size.n; j += PANEL) {
        const cpu_view b = {(float *)packed + j * size.k, PANEL, 1};
        const cpu_start at = {start.add, start.bias != NULL ? start.bias + j : NULL};
        const int64_t n = CLV_MIN(PANEL, size.n - j);
        cpu_view a = rows.first;
        for (int64_t i = 0; i < whole; i += CPU_MR, a.at += rows.next)
            if (n == PANEL)
                block(cpu_moved(c, i, j), a, b, size.k, at);
            else
                corner(cpu_moved(c, i, j), a, b, (cpu_size){CPU_MR, n, size.k}, at);
        if (left > 0)
            corner(cpu_moved(c, whole, j), last, b, (cpu_size){left, n, size.k}, at);
    }
}

typedef struct span {
    int64_t from, to;
} span;

static void rectangle(const cpu_product *x, span m, span n, float *packed)
{
    const clv_product_plan plan = clv_product_plan_of(x->size, x->a.step != 1);
    const cpu_size step = plan.block;
    const float *bias = x->start.bias;
    float *copy = packed + plan.packed;
    for (int64_t j = n.from; j < n.to; j += step.n)
        for (int64_t p = 0; p == 0 || p < x->size.k; p += step.k) {
            const int64_t width = CLV_MIN(step.n, n.to - j), k = CLV_MIN(step.k, x->size.k - p);
            pack_b(packed, cpu_moved(x->b, p, j), k, width);
            for (int64_t i = m.from; i < m.to; i += M_BLOCK) {
                const int64_t height = CLV_MIN(M_BLOCK, m.to - i);
                const groups rows = groups_of(copy, cpu_moved(x->a, i, p), height, k);
                const cpu_start start = {x->start.add || p > 0, bias != NULL ? bias + j : NULL};
                multiply(cpu_moved(x->c, i, j), rows, packed, (cpu_size){height, width, k}, start);
            }
        }
}

/* Rows of rectangles: the divisor of threads that leaves the smallest largest rectangle, and on a tie the one with the
 * least to pack, since every row packs B anew and every column copies A anew, if it does. */
static int64_t rows_of_rectangles(cpu_size tiles, int64_t threads, bool copies)
{
    int64_t best = 1, least = INT64_MAX, least_packed = INT64_MAX;
    for (int64_t rows = 1; rows <= threads; rows++) {
        if (threads % rows != 0)
            continue;
        const int64_t m = CLV_CEIL_DIV(tiles.m, rows), n = CLV_CEIL_DIV(tiles.n, threads / rows);
        const int64_t packed = n * PANEL + (copies ? m * CPU_MR * CLV_CEIL_DIV(n * PANEL, CPU_N_BLOCK) : 0);
        if (m * n < least || (m * n == least && packed < least_packed)) {
            least = m * n;
            least_packed = packed;
            best = rows;
        }
    }
    return best;
}

void CPU(product)(const cpu_product *x)
{
    const cpu_size size = x->size, tiles = {CLV_CEIL_DIV(size.m, CPU_MR), CLV_CEIL_DIV(size.n, PANEL), size.k};
    const bool copies = x->a.step != 1;
    const int64_t threads = size.m * size.n * size.k > CPU_SERIAL * 8 ? clv_backend_threads() : 1;
    const int64_t rows = rows_of_rectangles(tiles, threads, copies), columns = threads / rows;
    const int64_t floats = clv_product_plan_of(size, copies).floats;
#pragma omp parallel for schedule(static) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        const int64_t r = t / columns, q = t % columns;
        const span m = {cpu_part(tiles.m, r, rows) * CPU_MR, CLV_MIN(size.m, cpu_part(tiles.m, r + 1, rows) * CPU_MR)};
        const span n = {cpu_part(tiles.n, q, columns) * PANEL,
                        CLV_MIN(size.n, cpu_part(tiles.n, q + 1, columns) * PANEL)};
        rectangle(x, m, n, x->scratch + t * floats);
    }
}
