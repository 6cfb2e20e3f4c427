/* comm.c - our collectives beside MPI's in one run: time, share of what the memory could do, error.
 *
 *   mpirun -n 2 bench_comm [--json] [--rounds N] [--most BYTES]
 *
 * Ours and MPI's take turns on the same buffers, so that both meet the same machine; the time of a call is that of its
 * slowest rank, and medians over the rounds are compared. S bytes is the whole vector, 1 KiB to 64 MiB or --most.
 *
 * A rank of t must take in at least (t-1)/t S bytes in a reduce-scatter or an all-gather and twice as many in an
 * all-reduce. The share is these bytes a second over those of a copy of S bytes by each rank at the same time: what
 * ranks of one host could reach if moving were all, caches included. The error is the largest difference from the sum
 * in double precision over the largest value.
 */
#include "comm/comm.h"
#include "common/peer.h"

#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    clv_comm *world;
    int rank, size;
    float *in, *out;
    size_t count; /* of the whole vector */
    int64_t rounds, most;
    bool json;
    char mpi[64];
} bench;

/* ---- what is compared ------------------------------------------------------------------------------------------ */

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
    clv_reduce_scatter(b->world, b->out, b->in, b->count / (size_t)b->size, CLV_F32);
}

static void mpi_reduce_scatter(const bench *b)
{
    MPI_Reduce_scatter_block(b->in, b->out, (int)b->count / b->size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void our_all_gather(const bench *b)
{
    clv_all_gather(b->world, b->out, b->in, b->count / (size_t)b->size, CLV_F32);
}

static void mpi_all_gather(const bench *b)
{
    const int part = (int)b->count / b->size;
    MPI_Allgather(b->in, part, MPI_FLOAT, b->out, part, MPI_FLOAT, MPI_COMM_WORLD);
}

static void copy(const bench *b)
{
    memcpy(b->out, b->in, b->count * sizeof *b->out);
}

/* ---- what must come out ------------------------------------------------------------------------------------------ */

static float input(int rank, size_t i)
{
    const uint32_t bits = ((uint32_t)i + 1u) * 2654435761u + (uint32_t)rank * 40503u;
    const float x = (float)((bits * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
    return x * (1.0f + 0.3f * (float)(i % 7)); /* so that sums have to round */
}

static double sum_at(const bench *b, size_t i)
{
    double sum = 0.0;
    for (int r = 0; r < b->size; r++)
        sum += (double)input(r, i);
    return sum;
}

static double sum_shard_at(const bench *b, size_t i)
{
    return sum_at(b, i + b->count / (size_t)b->size * (size_t)b->rank);
}

static double gathered_at(const bench *b, size_t i)
{
    const size_t part = b->count / (size_t)b->size;
    return (double)input((int)(i / part), i % part);
}

typedef struct collective {
    const char *name;
    void (*ours)(const bench *b);
    void (*mpis)(const bench *b);
    double (*expected)(const bench *b, size_t i);
    bool whole;  /* every rank gets the whole vector */
    double hops; /* times (t-1)/t S bytes come in */
} collective;

static const collective collectives[] = {
    {"all-reduce", our_all_reduce, mpi_all_reduce, sum_at, true, 2.0},
    {"reduce-scatter", our_reduce_scatter, mpi_reduce_scatter, sum_shard_at, false, 1.0},
    {"all-gather", our_all_gather, mpi_all_gather, gathered_at, true, 1.0},
};

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static double largest(const bench *b, double mine)
{
    clv_all_reduce(b->world, &mine, &mine, 1, CLV_F64, CLV_MAX);
    return mine;
}

static double seconds(void (*call)(const bench *), const bench *b)
{
    const int repeats = b->count < 1 << 16 ? 100 : 1;
    clv_barrier(b->world);
    const double start = clv_seconds();
    for (int i = 0; i < repeats; i++)
        call(b);
    return largest(b, (clv_seconds() - start) / repeats);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double error(const bench *b, const collective *c)
{
    double most = 0.0, size = 0.0;
    c->ours(b);
    for (size_t i = 0; i < (c->whole ? b->count : b->count / (size_t)b->size); i++) {
        const double expected = c->expected(b, i);
        most = fmax(most, fabs((double)b->out[i] - expected));
        size = fmax(size, fabs(expected));
    }
    return largest(b, most) / largest(b, size);
}

static void print(const bench *b, const collective *c, const double *time, double wrong)
{
    const double bytes = (double)b->count * sizeof *b->in, share_of_ranks = (b->size - 1.0) / b->size;
    const double share = c->hops * share_of_ranks * time[2] / time[0], ratio = time[1] / time[0];
    if (b->rank != 0)
        return;
    if (b->json)
        printf(
            "{\"collective\": \"%s\", \"ranks\": %d, \"bytes\": %.0f, \"seconds\": %.6g, \"share\": %.4f, \"error\": "
            "%.3g, \"peer\": \"%s\", \"peer_seconds\": %.6g, \"ratio\": %.4f}\n",
            c->name, b->size, bytes, time[0], share, wrong, b->mpi, time[1], ratio);
    else
        printf("%-15s %9.0f KiB %10.3f ms %5.0f %%   %7.1e   %s %.3f ms, ratio %.2f\n", c->name, bytes / 1024,
               1e3 * time[0], 100.0 * share, wrong, b->mpi, 1e3 * time[1], ratio);
    fflush(stdout);
}

/* Medians of ours, MPI's and the copy, by turns. Whoever follows the copy is up to 8 % slower, so the two change
 * places. */
static void compare(const bench *b, const collective *c)
{
    void (*const calls[3])(const bench *) = {c->ours, c->mpis, copy};
    const double wrong = error(b, c);
    double *times = clv_alloc(3 * (size_t)b->rounds, sizeof *times), middle[3];
    for (int64_t i = -2; i < b->rounds; i++) /* two rounds warm up */
        for (int turn = 0; turn < 3; turn++) {
            const int k = turn < 2 && i % 2 != 0 ? 1 - turn : turn;
            const double time = seconds(calls[k], b);
            if (i >= 0)
                times[k * b->rounds + i] = time;
        }
    for (int k = 0; k < 3; k++) {
        qsort(times + k * b->rounds, (size_t)b->rounds, sizeof *times, by_value);
        middle[k] = times[k * b->rounds + b->rounds / 2];
    }
    print(b, c, middle, wrong);
    free(times);
}

static void compare_all(bench *b)
{
    for (int64_t bytes = 1 << 10; bytes <= b->most; bytes *= 4) {
        const size_t parts = (size_t)b->size;
        b->count = CLV_CEIL_DIV((size_t)bytes / sizeof *b->in, parts) * parts;
        b->in = clv_alloc(b->count, sizeof *b->in);
        b->out = clv_alloc(b->count, sizeof *b->out);
        for (size_t i = 0; i < b->count; i++)
            b->in[i] = input(b->rank, i);
        for (size_t k = 0; k < CLV_COUNT(collectives); k++)
            compare(b, &collectives[k]);
        free(b->in);
        free(b->out);
    }
}

static void name_mpi(char *name, size_t size)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n\"")] = '\0';
    snprintf(name, size, "%.*s", (int)size - 1, text);
}

int main(int argc, char **argv)
{
    bench b = {.rounds = 21, .most = 64 << 20};
    const bench_option options[] = {
        {.name = "--json", .flag = &b.json},
        {.name = "--rounds", .number = &b.rounds},
        {.name = "--most", .number = &b.most},
    };
    const clv_status st = clv_comm_world_open(&b.world, &argc, &argv);
    if (st.code != CLV_OK || clv_comm_size(b.world) < 2 ||
        !bench_options_read(options, CLV_COUNT(options), argc, argv)) {
        fprintf(stderr, "%s\n",
                st.code != CLV_OK ? st.text : "usage: mpirun -n 2 bench_comm [--json] [--rounds N] [--most BYTES]");
        return CLV_BAD_USAGE;
    }
    b.rank = clv_comm_rank(b.world);
    b.size = clv_comm_size(b.world);
    name_mpi(b.mpi, sizeof b.mpi);
    compare_all(&b);
    clv_comm_world_close(b.world);
    return CLV_OK;
}
