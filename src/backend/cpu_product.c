/* cpu_product.c - a matrix product of our own, for registers wider than those that the BLAS at hand uses.
 *
 * Blocked after Goto and van de Geijn 2008: of B a block K_BLOCK x N_BLOCK is packed into panels as wide as the
 * register tile, so that every orientation of B runs the same inner loop; A is read where it lies, or, when its columns
 * lie in memory as rows, a block of it is copied. C is cut into one rectangle per thread; the packed blocks lie on the
 * threads' stacks (0.7 MiB).
 */
#include "cpu_internal.h"

enum { PANEL = 2 * CPU_VEC, K_BLOCK = 256, N_BLOCK = 12 * PANEL, M_BLOCK = 24 * CPU_MR };

typedef struct product {
    cpu_view c, a, b;
    int64_t k;
    bool add;
} product;

static cpu_view view_at(cpu_view v, int64_t i, int64_t j)
{
    return (cpu_view){v.at + i * v.row + j * v.step, v.row, v.step};
}

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
 * Two steps of k more per group keep the groups out of each other's cache sets. */
static groups groups_of(float *copy, cpu_view a, int64_t m, int64_t k)
{
    const int64_t next = (K_BLOCK + 2) * CPU_MR;
    if (a.step == 1)
        return (groups){a, CPU_MR * a.row};
    for (int64_t p = 0; p < k; p++)
        for (int64_t i = 0; i < m; i += CPU_MR) {
            float *to = copy + i / CPU_MR * next + p * CPU_MR;
            const float *from = a.at + i + p * a.step;
            if (i + CPU_MR <= m)
                memcpy(to, from, CPU_MR * sizeof(float));
            else
                for (int64_t q = 0; q < CPU_MR; q++)
                    to[q] = i + q < m ? from[q] : 0.0f;
        }
    return (groups){{copy, 1, CPU_MR}, next};
}

/* The last m < CPU_MR rows of an A that was not copied, filled up with zeros. */
static cpu_view last_rows(float *copy, cpu_view a, int64_t m, int64_t k)
{
    memset(copy, 0, CPU_MR * K_BLOCK * sizeof(float));
    for (int64_t i = 0; i < m; i++)
        memcpy(copy + i * K_BLOCK, a.at + i * a.row, (size_t)k * sizeof(float));
    return (cpu_view){copy, K_BLOCK, 1};
}

/* A register tile that C does not have whole. */
static void corner(cpu_view c, cpu_view a, cpu_view b, cpu_size size, bool add)
{
    float tile[CPU_MR * PANEL];
    CPU(tile_product)((cpu_view){tile, PANEL, 1}, a, b, (cpu_size){CPU_MR, PANEL, size.k}, false);
    for (int64_t i = 0; i < size.m; i++)
        for (int64_t j = 0; j < size.n; j++)
            c.at[i * c.row + j] = (add ? c.at[i * c.row + j] : 0.0f) + tile[i * PANEL + j];
}

/* C (+)= A packed B, for one block. */
static void multiply(cpu_view c, groups rows, const float *packed, cpu_size size, bool add)
{
    float copy[CPU_MR * K_BLOCK];
    const int64_t whole = size.m / CPU_MR * CPU_MR, left = size.m - whole;
    cpu_view last = {rows.first.at + whole / CPU_MR * rows.next, rows.first.row, rows.first.step};
    if (left > 0 && last.step == 1)
        last = last_rows(copy, last, left, size.k);
    for (int64_t j = 0; j < size.n; j += PANEL) {
        const cpu_view b = {(float *)packed + j * size.k, PANEL, 1};
        const int64_t n = CLV_MIN(PANEL, size.n - j);
        cpu_view a = rows.first;
        for (int64_t i = 0; i < whole; i += CPU_MR, a.at += rows.next)
            if (n == PANEL)
                CPU(tile_product)(view_at(c, i, j), a, b, (cpu_size){CPU_MR, PANEL, size.k}, add);
            else
                corner(view_at(c, i, j), a, b, (cpu_size){CPU_MR, n, size.k}, add);
        if (left > 0)
            corner(view_at(c, whole, j), last, b, (cpu_size){left, n, size.k}, add);
    }
}

/* Rows [m0, m1) x columns [n0, n1) of C. */
static void rectangle(const product *x, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
{
    _Alignas(64) float packed[K_BLOCK * N_BLOCK];
    _Alignas(64) float copy[(K_BLOCK + 2) * M_BLOCK];
    for (int64_t j = n0; j < n1; j += N_BLOCK)
        for (int64_t p = 0; p < x->k; p += K_BLOCK) {
            const int64_t n = CLV_MIN(N_BLOCK, n1 - j), k = CLV_MIN(K_BLOCK, x->k - p);
            pack_b(packed, view_at(x->b, p, j), k, n);
            for (int64_t i = m0; i < m1; i += M_BLOCK) {
                const int64_t m = CLV_MIN(M_BLOCK, m1 - i);
                const groups rows = groups_of(copy, view_at(x->a, i, p), m, k);
                multiply(view_at(x->c, i, j), rows, packed, (cpu_size){m, n, k}, x->add || p > 0);
            }
        }
}

/* Rows of rectangles: the divisor of threads that leaves the smallest largest rectangle; fewer rows on a tie, since
 * B is packed by every row anew. */
static int64_t rows_of_rectangles(int64_t m, int64_t n, int64_t threads)
{
    int64_t best = 1, least = INT64_MAX;
    for (int64_t rows = 1; rows <= threads; rows++) {
        if (threads % rows != 0)
            continue;
        const int64_t area = CLV_CEIL_DIV(m, rows) * CLV_CEIL_DIV(n, threads / rows);
        if (area < least) {
            least = area;
            best = rows;
        }
    }
    return best;
}

void CPU(product)(cpu_view c, cpu_view a, cpu_view b, cpu_size size, bool add)
{
    const product x = {c, a, b, size.k, add};
    const int64_t m_tiles = CLV_CEIL_DIV(size.m, CPU_MR), n_tiles = CLV_CEIL_DIV(size.n, PANEL);
    const int64_t threads = size.m * size.n * size.k > CPU_SERIAL * 8 ? clv_backend_threads() : 1;
    const int64_t rows = rows_of_rectangles(m_tiles, n_tiles, threads), columns = threads / rows;
#pragma omp parallel for schedule(static) if (threads > 1)
    for (int64_t t = 0; t < threads; t++) {
        const int64_t r = t / columns, q = t % columns;
        rectangle(&x, cpu_part(m_tiles, r, rows) * CPU_MR, CLV_MIN(size.m, cpu_part(m_tiles, r + 1, rows) * CPU_MR),
                  cpu_part(n_tiles, q, columns) * PANEL, CLV_MIN(size.n, cpu_part(n_tiles, q + 1, columns) * PANEL));
    }
}
