/* nsize: 1 2 4 */
/* region_test.c - gather and reduce are adjoint, with both edges: <gather(x), y> = <x, reduce(y)>, exactly, in whole
 * numbers. What is replicated is one vector however many ranks hold it; shards and summands are vectors of their own.
 */
#include "comm/mpi_test.h"
#include "op/backend.h"
#include "parallel/parallel.h"

enum { S = 8, B = 2, H = 3 };

typedef struct bench {
    clv_mesh *mesh;
    clv_arena temp;
    clv_ctx cx;
    int tp;
} bench;

static void bench_open(bench *w, clv_comm *world)
{
    *w = (bench){.tp = clv_comm_size(world)};
    clv_mesh_create(&w->mesh, world, &(clv_layout){.tp = w->tp});
    clv_arena_create(&w->temp, "temp", 1 << 20);
    w->cx = (clv_ctx){.be = clv_backend_ref(), .mesh = w->mesh};
}

static void bench_close(bench *w)
{
    clv_mesh_destroy(w->mesh);
    clv_arena_destroy(&w->temp);
}

/* Whole numbers between -8 and 8, drawn from a key. */
static void numbers_fill(clv_tensor t, uint64_t key)
{
    for (int64_t i = 0; i < clv_numel(t); i++)
        ((float *)t.data)[i] = (float)(int)(clv_uniform_at(key, (uint64_t)i) * 17.0f) - 8.0f;
}

static double inner(clv_tensor a, clv_tensor b)
{
    double sum = 0;
    for (int64_t i = 0; i < clv_numel(a); i++)
        sum += (double)((const float *)a.data)[i] * (double)((const float *)b.data)[i];
    return sum;
}

static double over_ranks(clv_comm *world, double mine)
{
    clv_all_reduce(world, &mine, &mine, 1, CLV_F64, CLV_SUM);
    return mine;
}

static clv_tensor edge_new(bench *w, clv_place edge)
{
    return clv_new(&w->temp, edge, edge == CLV_S0 ? S / w->tp : S, B, H);
}

static int adjoint(clv_comm *world, clv_place edge)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const uint64_t rank = (uint64_t)clv_comm_rank(world);
    clv_tensor x = edge_new(&w, edge), z = edge_new(&w, edge);
    clv_tensor y = clv_new(&w.temp, CLV_P, S, B, H);
    numbers_fill(x, edge == CLV_S0 ? 100 + rank : 100);
    numbers_fill(y, 200 + rank);

    const clv_tensor full = clv_tp_gather(&w.cx, &w.temp, x);
    EXPECT(full.place == CLV_R && full.dim[0] == S && full.dim[1] == B && full.dim[2] == H, "%s edge gathers to %s",
           clv_place_name(edge), clv_place_name(full.place));
    const double left = over_ranks(world, inner(full, y));
    clv_tp_reduce(&w.cx, z, y);
    const bool speaks = edge == CLV_S0 || rank == 0;
    const double right = over_ranks(world, speaks ? inner(x, z) : 0.0);
    EXPECT(left == right && left != 0.0, "%s edge: <gather(x), y> = %.17g, <x, reduce(y)> = %.17g",
           clv_place_name(edge), left, right);
    bench_close(&w);
    return failed;
}

static int replicated_adjoint(clv_comm *world)
{
    return adjoint(world, CLV_R);
}

static int sharded_adjoint(clv_comm *world)
{
    return adjoint(world, CLV_S0);
}

/* Row i of a gathered tensor is row i of the sequence, and a rank's rows are the ones that it gave. */
static int rows_in_order(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    clv_tensor all = clv_new(&w.temp, CLV_R, S, B, H);
    numbers_fill(all, 7);
    EXPECT(clv_tp_rows(&w.cx, all, CLV_R).data == all.data, "a replicated edge takes all rows");
    const clv_tensor mine = clv_tp_rows(&w.cx, all, CLV_S0);
    EXPECT(mine.place == CLV_S0 && mine.dim[0] == S / w.tp, "%s [%lld]", clv_place_name(mine.place),
           (long long)mine.dim[0]);
    const clv_tensor back = clv_tp_gather(&w.cx, &w.temp, mine);
    for (int i = 0; i < S * B * H; i++)
        EXPECT(((float *)back.data)[i] == ((float *)all.data)[i], "element %d", i);
    bench_close(&w);
    return failed;
}

/* An edge in 16 bits: the sum is fp32 on the wire and rounded once. 1 + 2^-8 is a tie that bf16 would round to 1; less
 * 1 from the next rank, 2^-8 must be left. */
static int rounded_once(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    const int rank = clv_comm_rank(world);
    const float summand = rank == 0 ? 1.0f + 0x1p-8f : rank == 1 ? -1.0f : 0.0f, sum = w.tp > 1 ? 0x1p-8f : 1.0f;
    for (int edge = CLV_R; edge <= CLV_S0; edge++) {
        clv_tensor p = clv_new(&w.temp, CLV_P, S, B, H), expected = clv_new(&w.temp, CLV_R, 1);
        clv_tensor once = clv_tensor_typed(&w.temp, CLV_BF16, 1, (int64_t[]){1});
        for (int i = 0; i < S * B * H; i++)
            ((float *)p.data)[i] = summand;
        *(float *)expected.data = sum;
        clv_copy(&w.cx, once, expected);
        clv_tensor y = clv_tensor_typed(&w.temp, CLV_BF16, 3, edge_new(&w, (clv_place)edge).dim);
        y.place = (clv_place)edge;
        clv_tp_reduce(&w.cx, y, p);
        for (int64_t i = 0; i < clv_numel(y); i++)
            EXPECT(((uint16_t *)y.data)[i] == *(uint16_t *)once.data, "element %lld is %#x, not %#x", (long long)i,
                   ((uint16_t *)y.data)[i], *(uint16_t *)once.data);
    }
    bench_close(&w);
    return failed;
}

static int traffic_expect(clv_comm *world, const bench *w, clv_traffic_kind kind, int64_t calls)
{
    int failed = 0;
    const clv_comm *tp = clv_mesh_comm(w->mesh, CLV_TP);
    for (int k = 0; k < CLV_TRAFFIC_KINDS; k++) {
        const clv_traffic t = clv_comm_traffic(tp, (clv_traffic_kind)k);
        const int64_t expected = (int)kind == k && w->tp > 1 ? calls : 0;
        EXPECT(t.calls == expected && t.bytes == expected * S * B * H * 4, "%s: %lld calls, %lld bytes",
               clv_traffic_kind_name((clv_traffic_kind)k), (long long)t.calls, (long long)t.bytes);
    }
    clv_mesh_traffic_reset(w->mesh);
    return failed;
}

/* What the ledger counts of each: one call of the whole sequence, and nothing where nothing has to move. */
static int ledger(clv_comm *world)
{
    int failed = 0;
    bench w;
    bench_open(&w, world);
    clv_tensor p = clv_new(&w.temp, CLV_P, S, B, H), r = edge_new(&w, CLV_R), s0 = edge_new(&w, CLV_S0);
    numbers_fill(p, 1);
    clv_mesh_traffic_reset(w.mesh);
    clv_tp_gather(&w.cx, &w.temp, r);
    failed += traffic_expect(world, &w, CLV_ALL_GATHER, 0);
    clv_tp_gather(&w.cx, &w.temp, s0);
    failed += traffic_expect(world, &w, CLV_ALL_GATHER, 1);
    clv_tp_reduce(&w.cx, r, p);
    failed += traffic_expect(world, &w, CLV_ALL_REDUCE, 1);
    clv_tp_pending pending = clv_tp_reduce_begin(&w.cx, s0, p);
    clv_tp_reduce_end(&w.cx, &pending);
    failed += traffic_expect(world, &w, CLV_REDUCE_SCATTER, 1);
    bench_close(&w);
    return failed;
}

int main(int argc, char **argv)
{
    return mpi_test_run(&argc, &argv,
                        (mpi_case[]){{"adjoint, replicated edge", replicated_adjoint},
                                     {"adjoint, sequence shards", sharded_adjoint},
                                     {"rows in order", rows_in_order},
                                     {"rounded once", rounded_once},
                                     {"ledger", ledger},
                                     {0}});
}
