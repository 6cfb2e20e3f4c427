/* nsize: 1 2 4 */
/* bucket_test.c - shares hold each element once, whatever the parameters' borders; sums over the replicas give the same
 * bits scattered or not, begun early or late; weights come back whole.
 */
#include "comm/mpi_test.h"
#include "op/backend.h"
#include "parallel/parallel.h"

#include <string.h>

enum { RECORDS = 5, BUCKETS = 3 };

/* Five parameters of odd sizes, in three buckets; fp32 weights and gradients with known values. */
typedef struct bench {
    clv_mesh *mesh;
    clv_arena memory, temp;
    clv_ctx cx;
    clv_param param[RECORDS];
    clv_bucket bucket[BUCKETS];
    clv_gradients gradients;
} bench;

static float value_at(int rank, int64_t i)
{
    return (float)(clv_uniform_at(7, (uint64_t)(rank * 100000 + i)) - 0.5f);
}

static void bucket_make(bench *w, int number, size_t first, const int64_t *sizes, size_t count, bool shared)
{
    const int ranks = clv_mesh_size(w->mesh, CLV_REPLICAS), rank = clv_mesh_coord(w->mesh, CLV_REPLICAS);
    clv_bucket *b = &w->bucket[number];
    int64_t n = 0;
    for (size_t i = 0; i < count; i++)
        n += sizes[i];
    n = CLV_CEIL_DIV(n, 64 * ranks) * 64 * ranks;
    *b = (clv_bucket){.w = clv_new(&w->memory, CLV_R, n), .dw = clv_new(&w->memory, CLV_R, n), .first = first};
    b->count = count;
    b->own = shared ? clv_share(n, ranks, rank) : (clv_extent){0, n};
    int64_t at = 0;
    for (size_t i = 0; i < count; at += sizes[i++]) {
        clv_param *p = &w->param[first + i];
        *p = (clv_param){.here = true, .ndim = 1, .split_dim = -1, .whole = {sizes[i]}, .bucket = b, .at = at};
        p->w = clv_slice(b->w, at, sizes[i]);
        p->dw = clv_slice(b->dw, at, sizes[i]);
    }
    for (int64_t i = 0; i < n; i++)
        ((float *)b->dw.data)[i] = i < at ? value_at(rank, 1000 * number + i) : 0.0f;
}

static void bench_open(bench *w, clv_comm *world, bool shared, size_t limit)
{
    *w = (bench){0};
    const clv_layout layout = {.dp = clv_comm_size(world)};
    clv_mesh_create(&w->mesh, world, &layout);
    clv_arena_create(&w->memory, "memory", 1 << 20);
    clv_arena_create(&w->temp, "temp", 1 << 20);
    w->cx = (clv_ctx){.be = clv_backend_ref(), .mesh = w->mesh, .temp = &w->temp};
    bucket_make(w, 0, 0, (int64_t[]){333, 1, 70}, 3, shared);
    bucket_make(w, 1, 3, (int64_t[]){64}, 1, shared);
    bucket_make(w, 2, 4, (int64_t[]){901}, 1, shared);
    w->gradients = clv_gradients_create(w->param, w->bucket, BUCKETS, limit);
}

static void bench_close(bench *w)
{
    clv_gradients_destroy(&w->gradients);
    clv_mesh_destroy(w->mesh);
    clv_arena_destroy(&w->memory);
    clv_arena_destroy(&w->temp);
}

/* Every element is one rank's own, in order and without a gap. */
static int shares_cover(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world, true, 1);
    for (int i = 0; i < RECORDS; i++) {
        int64_t next = 0;
        for (int r = 0; r < clv_comm_size(world); r++) {
            const clv_param *p = &w.param[i];
            const clv_extent part = clv_param_within(p, clv_share(clv_numel(p->bucket->w), clv_comm_size(world), r));
            EXPECT(part.count == 0 || part.first == next, "parameter %d: rank %d owns from %lld on, not %lld", i, r,
                   (long long)part.first, (long long)next);
            next += part.count;
        }
        EXPECT(next == clv_numel(w.param[i].w), "parameter %d: %lld of %lld elements are owned", i, (long long)next,
               (long long)clv_numel(w.param[i].w));
    }
    bench_close(&w);
    return failed;
}

/* ((x_0 + x_1) + x_2) + ... */
static float sum_at(int ranks, int64_t i)
{
    float sum = value_at(0, i);
    for (int r = 1; r < ranks; r++)
        sum += value_at(r, i);
    return sum;
}

static int sums_expect(clv_comm *world, bool shared, bool early, size_t limit)
{
    int failed = 0;
    bench w;
    bench_open(&w, world, shared, limit);
    for (int step = BUCKETS; early && step-- > 0;)
        clv_gradients_ready(&w.cx, &w.gradients, (size_t)step);
    clv_gradients_finish(&w.cx, &w.gradients);
    for (int i = 0; i < RECORDS; i++) {
        const clv_param *p = &w.param[i];
        const clv_extent own = clv_param_own(p);
        for (int64_t k = own.first; k < own.first + own.count; k++) {
            const float got = ((const float *)p->dw.data)[k];
            const float want = sum_at(clv_comm_size(world), 1000 * (p->bucket - w.bucket) + p->at + k);
            EXPECT(memcmp(&got, &want, sizeof got) == 0, "parameter %d at %lld: %.9g, not %.9g", i, (long long)k,
                   (double)got, (double)want);
        }
    }
    bench_close(&w);
    return failed;
}

static int sums_over_replicas(clv_comm *world)
{
    int failed = 0;
    for (int how = 0; how < 8; how++)
        failed += sums_expect(world, (how & 1) != 0, (how & 2) != 0, (how & 4) != 0 ? 1 : 8);
    return failed;
}

/* Each rank writes its own elements; afterwards all have all of them. */
static int weights_gathered(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world, true, 1);
    for (int b = 0; b < BUCKETS; b++)
        for (int64_t i = 0; i < w.bucket[b].own.count; i++)
            ((float *)w.bucket[b].w.data)[w.bucket[b].own.first + i] = (float)(w.bucket[b].own.first + i);
    clv_weights_gather(&w.cx, w.bucket, BUCKETS);
    for (int b = 0; b < BUCKETS; b++)
        for (int64_t i = 0; i < clv_numel(w.bucket[b].w); i++)
            EXPECT(((float *)w.bucket[b].w.data)[i] == (float)i, "bucket %d at %lld: %g", b, (long long)i,
                   (double)((float *)w.bucket[b].w.data)[i]);
    bench_close(&w);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"shares hold each element once", shares_cover},
                                     {"sums over the replicas", sums_over_replicas},
                                     {"weights are gathered", weights_gathered},
                                     {0}});
}
