/* cpu_tile.c - products of matrices that lie in the cache: the arithmetic of tiled attention.
 *
 * A may be read along either of its dims, so a transposed A costs nothing.
 */
#include "cpu_internal.h"

/* Two vectors, one, and the rows that are left where CPU_MR does not divide them. */
static void block_one(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    cpu_block(c, a, b, (cpu_block_shape){k, CPU_MR, 1}, (cpu_start){.add = add});
}

static void block_rest(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    cpu_block(c, a, b, (cpu_block_shape){k, CPU_REST, 1}, (cpu_start){.add = add});
}

static void block_pair(cpu_view c, cpu_view a, cpu_view b, int64_t k, bool add)
{
    cpu_block(c, a, b, (cpu_block_shape){k, CPU_MR, 2}, (cpu_start){.add = add});
}

void CPU(tile_product)(cpu_view c, cpu_view a, cpu_view b, cpu_size size, bool add)
{
    const int64_t rest = size.m % CPU_MR, whole = size.m - rest;
    int64_t j = 0;
    for (; j + 2 * CPU_VEC <= size.n; j += 2 * CPU_VEC)
        for (int64_t i = 0; i < whole; i += CPU_MR)
            block_pair(cpu_moved(c, i, j), cpu_moved(a, i, 0), cpu_moved(b, 0, j), size.k, add);
    for (; j < size.n; j += CPU_VEC)
        for (int64_t i = 0; i < whole; i += CPU_MR)
            block_one(cpu_moved(c, i, j), cpu_moved(a, i, 0), cpu_moved(b, 0, j), size.k, add);
    for (j = 0; j < size.n && rest > 0; j += CPU_VEC)
        for (int64_t i = whole; i < size.m; i += CPU_REST)
            block_rest(cpu_moved(c, i, j), cpu_moved(a, i, 0), cpu_moved(b, 0, j), size.k, add);
}
