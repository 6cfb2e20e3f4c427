/* cpu_tile.c - products of matrices that lie in the cache: the arithmetic of tiled attention.
 *
 * A block of CPU_MR rows x NV vectors of C stays in registers while k runs; an element of A is spread over a register
 * and meets one or two registers of B. A may be read along either of its dims, so a transposed A costs nothing.
 */
#include "cpu_internal.h"

/* One block of C; nv (1 or 2 vectors) and add are constants where this is inlined. */
static inline __attribute__((always_inline)) void block(cpu_view c, cpu_view a, cpu_view b, int64_t k, int nv, bool add)
{
    cpu_vec sum[CPU_MR][2] = {0};
    for (int i = 0; i < CPU_MR; i++) /* C of a large product lies far away: it comes while k runs */
        for (int v = 0; v < nv; v++)
            __builtin_prefetch(c.at + i * c.row + v * CPU_VEC, 1);
    for (int64_t p = 0; p < k; p++) {
        const float *bp = b.at + p * b.row;
        const float *ap = a.at + p * a.step;
        cpu_vec bv[2] = {0};
        for (int v = 0; v < nv; v++)
            bv[v] = *(const cpu_vec *)(bp + v * CPU_VEC);
        for (int i = 0; i < CPU_MR; i++)
            for (int v = 0; v < nv; v++)
                sum[i][v] += ap[i * a.row] * bv[v];
    }
    CPU_DO_(GCC unroll 8) /* else the sums would leave their registers to be counted over */
    for (int i = 0; i < CPU_MR; i++)
        for (int v = 0; v < nv; v++) {
            cpu_vec *to = (cpu_vec *)(c.at + i * c.row + v * CPU_VEC);
            if (add)
                sum[i][v] += *to;
            *to = sum[i][v];
        }
}

static void block_pair(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    if (add)
        block(c, a, b, k, 2, true);
    else
        block(c, a, b, k, 2, false);
}

static void block_one(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    block(c, a, b, k, 1, add);
}

void CPU(tile_product)(cpu_view c, cpu_view a, cpu_view b, cpu_size size, bool add)
{
    int64_t j = 0;
    for (; j + 2 * CPU_VEC <= size.n; j += 2 * CPU_VEC)
        for (int64_t i = 0; i < size.m; i += CPU_MR)
            block_pair((cpu_view){c.at + i * c.row + j, c.row, 1}, (cpu_view){a.at + i * a.row, a.row, a.step},
                       (cpu_view){b.at + j, b.row, 1}, size.k, add);
    for (; j < size.n; j += CPU_VEC)
        for (int64_t i = 0; i < size.m; i += CPU_MR)
            block_one((cpu_view){c.at + i * c.row + j, c.row, 1}, (cpu_view){a.at + i * a.row, a.row, a.step},
                      (cpu_view){b.at + j, b.row, 1}, size.k, add);
}
