/* cpu_tile.c - products of matrices that lie in the cache: the arithmetic of tiled attention.
 *
 * A block of CPU_MR rows x NV vectors of C stays in registers while k runs; an element of A is spread over a register
 * and meets one or two registers of B. A may be read along either of its dims, so a transposed A costs nothing.
 */
#include "cpu_internal.h"

typedef struct cpu_tile_shape {
    int64_t k;
    int mr, nv; /* at most CPU_MR rows, 2 vectors */
} cpu_tile_shape;

/* One block of C: mr rows, nv vectors; the shape is constant where this is inlined. */
static inline __attribute__((always_inline)) void block(cpu_view c, cpu_view a, cpu_view b, cpu_tile_shape shape,
                                                        cpu_start start)
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

/* All of one, and of two vectors; and what is left where CPU_MR does not divide the rows. */
static void block_one(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    block(c, a, b, (cpu_tile_shape){k, CPU_MR, 1}, (cpu_start){.add = add});
}

static void block_rest(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    block(c, a, b, (cpu_tile_shape){k, CPU_REST, 1}, (cpu_start){.add = add});
}

void CPU(tile)(cpu_view c, cpu_view a, cpu_view b, int64_t k, cpu_start start)
{
    block(c, a, b, (cpu_tile_shape){k, CPU_MR, 2}, start);
}

static cpu_view moved(cpu_view v, int64_t i, int64_t j)
{
    return (cpu_view){v.at + i * v.row + j * v.step, v.row, v.step};
}

void CPU(tile_product)(cpu_view c, cpu_view a, cpu_view b, cpu_size size, bool add)
{
    const int64_t rest = size.m % CPU_MR, whole = size.m - rest;
    int64_t j = 0;
    for (; j + 2 * CPU_VEC <= size.n; j += 2 * CPU_VEC)
        for (int64_t i = 0; i < whole; i += CPU_MR)
            CPU(tile)(moved(c, i, j), moved(a, i, 0), moved(b, 0, j), size.k, (cpu_start){.add = add});
    for (; j < size.n; j += CPU_VEC)
        for (int64_t i = 0; i < whole; i += CPU_MR)
            block_one(moved(c, i, j), moved(a, i, 0), moved(b, 0, j), size.k, add);
    for (j = 0; j < size.n && rest > 0; j += CPU_VEC)
        for (int64_t i = whole; i < size.m; i += CPU_REST)
            block_rest(moved(c, i, j), moved(a, i, 0), moved(b, 0, j), size.k, add);
}
