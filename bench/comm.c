/* comm.c - bench: our all-reduce and reduce-scatter against MPI's, in one run.
 *
 * The two take turns on the same buffers, so that both meet the same machine; the time of a call is that of its slowest
 * rank, and the median over the rounds is printed. Run with mpirun -n 2 (and 4).
 */
#include "comm/comm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 21 };

typedef struct bench {
    clv_comm *world;
    float *in, *out;
    size_t count; /* of the whole vector */
} bench;

static void our_all_reduce(const bench *b)
{
    clv_all_reduce(b->world, b->out, b->in, b->count, CLV_F32, CLV_SUM);
}

static void mpi_all_reduce(const bench *b)
{
    MPI_Allreduce(b->in, b->out, (int)b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void our_reduce_scatter(const bench *b)
{
    clv_reduce_scatter(b->world, b->out, b->in, b->count / (size_t)clv_comm_size(b->world), CLV_F32);
}

static void mpi_reduce_scatter(const bench *b)
{
    const int part = (int)(b->count / (size_t)clv_comm_size(b->world));
    MPI_Reduce_scatter_block(b->in, b->out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void our_all_gather(const bench *b)
{
    clv_all_gather(b->world, b->out, b->in, b->count / (size_t)clv_comm_size(b->world), CLV_F32);
}

static void mpi_all_gather(const bench *b)
{
    const int part = (int)(b->count / (size_t)clv_comm_size(b->world));
    MPI_Allgather(b->in, part, MPI_FLOAT, b->out, part, MPI_FLOAT, MPI_COMM_WORLD);
}

static double seconds(void (*call)(const bench *), const bench *b, int repeats)
{
    clv_barrier(b->world);
    const double start = clv_seconds();
    for (int i = 0; i < repeats; i++)
        call(b);
    double time = (clv_seconds() - start) / repeats;
    clv_all_reduce(b->world, &time, &time, 1, CLV_F64, CLV_MAX);
    return time;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(const char *name, const bench *b, void (*ours)(const bench *), void (*mpis)(const bench *))
{
    double a[ROUNDS], m[ROUNDS];
    const int repeats = b->count < 1 << 16 ? 100 : 1;
    for (int i = -2; i < ROUNDS; i++) { /* two rounds warm up */
        const double x = seconds(ours, b, repeats), y = seconds(mpis, b, repeats);
        if (i >= 0) {
            a[i] = x;
            m[i] = y;
        }
    }
    qsort(a, ROUNDS, sizeof *a, by_value);
    qsort(m, ROUNDS, sizeof *m, by_value);
    if (clv_comm_rank(b->world) == 0)
        printf("%-15s %10.1f KiB  %9.3f ms  MPI %9.3f ms  MPI/ours %5.2f\n", name, (double)b->count * 4 / 1024,
               1e3 * a[ROUNDS / 2], 1e3 * m[ROUNDS / 2], m[ROUNDS / 2] / a[ROUNDS / 2]);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {16, 1024, 4096, 16384, 1 << 16, 1 << 18, 1 << 22, 1 << 24}; /* floats */
    bench b;
    const clv_status st = clv_comm_world_open(&b.world, &argc, &argv);
    if (st.code != CLV_OK || clv_comm_size(b.world) < 2) {
        fprintf(stderr, "%s\n", st.code != CLV_OK ? st.text : "run with mpirun -n 2 or more");
        return 1;
    }
    for (size_t i = 0; i < CLV_COUNT(sizes); i++) {
        b.count = sizes[i];
        b.in = clv_alloc(b.count, sizeof *b.in);
        b.out = clv_alloc(b.count, sizeof *b.out);
        for (size_t k = 0; k < b.count; k++)
            b.in[k] = b.out[k] = (float)k;
        compare("all-reduce", &b, our_all_reduce, mpi_all_reduce);
        compare("reduce-scatter", &b, our_reduce_scatter, mpi_reduce_scatter);
        compare("all-gather", &b, our_all_gather, mpi_all_gather);
        free(b.in);
        free(b.out);
    }
    clv_comm_world_close(b.world);
    return 0;
}
