/* nsize: 1 2 3 4 */
/* comm_test.c - every collective against values in closed form, with pieces small enough that counts are cut. */
#include "comm/comm_internal.h"
#include "comm/mpi_test.h"

#include <string.h>

enum { PIECE = 4000 }; /* bytes: 2,500 floats take three messages */
/* Also both sides of where an algorithm or the cut of a message changes: 4,000 bytes and 16 KiB. */
static const size_t counts[] = {0, 1, 2, 3, 7, 1000, 1001, 2500, 4096, 4097, 8192, 8193, 20011, 700001};

/* Element i of rank r: small whole numbers, so that sums are exact in every type. */
static int64_t value(int r, size_t i)
{
    return (int64_t)(i % 97) * (r + 1) + r;
}

static int64_t value_sum(int n, size_t i)
{
    return (int64_t)(i % 97) * n * (n + 1) / 2 + n * (n - 1) / 2;
}

static void store(void *data, clv_dtype dtype, size_t i, int64_t v)
{
    switch (dtype) {
    case CLV_F32:
        ((float *)data)[i] = (float)v;
        break;
    case CLV_F64:
        ((double *)data)[i] = (double)v;
        break;
    case CLV_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    default:
        ((int64_t *)data)[i] = v;
    }
}

static int64_t load(const void *data, clv_dtype dtype, size_t i)
{
    switch (dtype) {
    case CLV_F32:
        return (int64_t)((const float *)data)[i];
    case CLV_F64:
        return (int64_t)((const double *)data)[i];
    case CLV_I32:
        return ((const int32_t *)data)[i];
    default:
        return ((const int64_t *)data)[i];
    }
}

/* Elements 0 .. n-1 as rank r has them, from `first` on. */
static void *filled(int r, size_t first, size_t n, clv_dtype dtype)
{
    void *data = clv_alloc(n, 8);
    for (size_t i = 0; i < n; i++)
        store(data, dtype, i, value(r, first + i));
    return data;
}

static int all_reduce_one(clv_comm *world, size_t count, clv_dtype dtype, bool in_place)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    void *in = filled(r, 0, count, dtype), *out = in_place ? in : clv_alloc(count, 8);
    clv_all_reduce(world, out, in, count, dtype, CLV_SUM);
    size_t bad = 0;
    for (size_t i = 0; i < count; i++)
        bad += load(out, dtype, i) != value_sum(n, i);
    EXPECT(bad == 0, "sum of %zu %s: %zu wrong", count, clv_dtype_name(dtype), bad);
    if (!in_place) {
        clv_all_reduce(world, out, in, count, dtype, CLV_MAX);
        bad = 0;
        for (size_t i = 0; i < count; i++)
            bad += load(out, dtype, i) != value(n - 1, i) || load(in, dtype, i) != value(r, i);
        EXPECT(bad == 0, "max of %zu %s: %zu wrong", count, clv_dtype_name(dtype), bad);
        free(out);
    }
    free(in);
    return failed;
}

static int all_reduce_case(clv_comm *world)
{
    static const clv_dtype types[] = {CLV_F32, CLV_F64, CLV_I32, CLV_I64};
    int failed = 0;
    for (size_t c = 0; c < CLV_COUNT(counts); c++)
        for (size_t t = 0; t < CLV_COUNT(types); t++)
            failed +=
                all_reduce_one(world, counts[c], types[t], false) + all_reduce_one(world, counts[c], types[t], true);
    return failed;
}

static int reduce_scatter_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    for (size_t c = 0; c < CLV_COUNT(counts); c++) {
        const size_t count = counts[c];
        float *in = filled(r, 0, (size_t)n * count, CLV_F32), *out = clv_alloc(count, 4);
        clv_reduce_scatter(world, out, in, count, CLV_F32);
        size_t bad = 0;
        for (size_t i = 0; i < count; i++)
            bad += load(out, CLV_F32, i) != value_sum(n, (size_t)r * count + i);
        EXPECT(bad == 0, "part of %zu: %zu wrong", count, bad);
        free(in);
        free(out);
    }
    return failed;
}

static int all_gather_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    for (size_t c = 0; c < 2 * CLV_COUNT(counts); c++) {
        const size_t count = counts[c / 2];
        int64_t *in = filled(r, 0, count, CLV_I64), *out = clv_alloc((size_t)n * count, 8);
        const bool in_place = c % 2 == 1;
        if (in_place)
            memcpy(out + (size_t)r * count, in, count * sizeof *in);
        clv_all_gather(world, out, in_place ? out + (size_t)r * count : in, count, CLV_I64);
        size_t bad = 0;
        for (int p = 0; p < n; p++)
            for (size_t i = 0; i < count; i++)
                bad += out[(size_t)p * count + i] != value(p, i);
        EXPECT(bad == 0, "parts of %zu: %zu wrong", count, bad);
        free(in);
        free(out);
    }
    return failed;
}

/* Rank r gives rank p (r + 2 p) * scale elements, each of which names both. */
static int all_to_all_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    for (size_t scale = 0; scale <= 2500; scale = scale * 50 + 1) {
        size_t give[8], take[8], gives = 0, takes = 0;
        for (int p = 0; p < n; p++) {
            gives += give[p] = (size_t)(r + 2 * p) * scale;
            takes += take[p] = (size_t)(p + 2 * r) * scale;
        }
        int32_t *in = clv_alloc(gives, 4), *out = clv_alloc(takes, 4), *at = in;
        for (int p = 0; p < n; p++)
            for (size_t i = 0; i < give[p]; i++)
                *at++ = (int32_t)i * 100 + r * 10 + p;
        clv_all_to_all_v(world, out, take, in, give, CLV_I32);
        size_t bad = 0;
        at = out;
        for (int p = 0; p < n; p++)
            for (size_t i = 0; i < take[p]; i++)
                bad += *at++ != (int32_t)i * 100 + p * 10 + r;
        EXPECT(bad == 0, "scale %zu: %zu wrong", scale, bad);
        free(in);
        free(out);
    }
    return failed;
}

static int broadcast_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    for (size_t c = 0; c < CLV_COUNT(counts); c++) {
        const int root = (int)c % n;
        double *data = filled(r, 0, counts[c], CLV_F64);
        clv_broadcast(world, data, counts[c], CLV_F64, root);
        size_t bad = 0;
        for (size_t i = 0; i < counts[c]; i++)
            bad += load(data, CLV_F64, i) != value(root, i);
        EXPECT(bad == 0, "%zu from %d: %zu wrong", counts[c], root, bad);
        free(data);
    }
    return failed;
}

/* Two messages with different tags round the ring, received in the other order. */
static int message_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    if (n == 1)
        return 0;
    const int next = (r + 1) % n, last = (r + n - 1) % n;
    const size_t count = 2500;
    float *a = filled(r, 0, count, CLV_F32), *b = filled(r, 50, count, CLV_F32);
    float *ra = clv_alloc(count, 4), *rb = clv_alloc(count, 4);
    clv_pending sent[] = {clv_send_begin(world, a, count * 4, next, 1), clv_send_begin(world, b, count * 4, next, 2)};
    clv_recv(world, rb, count * 4, last, 2);
    clv_recv(world, ra, count * 4, last, 1);
    clv_pending_end(&sent[0]);
    clv_pending_end(&sent[1]);
    size_t bad = 0;
    for (size_t i = 0; i < count; i++)
        bad += load(ra, CLV_F32, i) != value(last, i) || load(rb, CLV_F32, i) != value(last, 50 + i);
    EXPECT(bad == 0, "%zu wrong", bad);
    if (r == 0)
        clv_send(world, a, 4 * count, 1, 7);
    if (r == 1)
        clv_recv(world, ra, 4 * count, 0, 7);
    EXPECT(r != 1 || ra[9] == (float)value(0, 9), "got %g", (double)ra[9]);
    free(a);
    free(b);
    free(ra);
    free(rb);
    return failed;
}

/* Summands of very different size: only the order 0, 1, 2, ... gives exactly these bits. */
static float rough(int r, size_t i)
{
    return clv_uniform_at((uint64_t)r, i) * (float)(1 << (7 * ((r + (int)(i % 3)) % 3)));
}

static int order_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    for (size_t c = 0; c < CLV_COUNT(counts); c++) {
        const size_t count = counts[c], all = count * (size_t)n;
        float *in = clv_alloc(all, 4), *want = clv_alloc(all, 4), *out = clv_alloc(all, 4), *part = clv_alloc(count, 4);
        for (size_t i = 0; i < all; i++) {
            in[i] = rough(r, i);
            want[i] = rough(0, i);
            for (int p = 1; p < n; p++)
                want[i] += rough(p, i);
        }
        clv_all_reduce(world, out, in, all, CLV_F32, CLV_SUM);
        EXPECT(all == 0 || memcmp(out, want, all * 4) == 0, "all-reduce of %zu: other bits", all);
        clv_reduce_scatter(world, part, in, count, CLV_F32);
        EXPECT(count == 0 || memcmp(part, want + (size_t)r * count, count * 4) == 0, "scatter of %zu: other bits",
               count);
        free(in);
        free(want);
        free(out);
        free(part);
    }
    return failed;
}

static int nan_case(clv_comm *world)
{
    int failed = 0;
    for (int p = 0; p < clv_comm_size(world); p++) {
        float x = p == clv_comm_rank(world) ? 0.0f / (float)(p - p) : 1.0f;
        clv_all_reduce(world, &x, &x, 1, CLV_F32, CLV_MAX);
        EXPECT(x != x, "a NaN of rank %d became %g", p, (double)x);
    }
    return failed;
}

enum { FLIGHTS = 6 };

/* All begin in the same order; ranks wait in opposite orders, and one blocking call goes between. */
static int flight_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    const size_t count = 70001, all = count * (size_t)n;
    float *in = filled(r, 0, all, CLV_F32), *out[FLIGHTS];
    clv_pending flight[FLIGHTS];
    for (int k = 0; k < FLIGHTS; k++) {
        out[k] = clv_alloc(all, 4);
        if (k % 3 == 0)
            flight[k] = clv_all_reduce_begin(world, out[k], in, count, CLV_F32);
        else if (k % 3 == 1)
            flight[k] = clv_reduce_scatter_begin(world, out[k], in, count, CLV_F32);
        else
            flight[k] = clv_all_gather_begin(world, out[k], in, count, CLV_F32);
        clv_comm_progress(world);
    }
    failed += all_reduce_one(world, 2500, CLV_I32, false);
    for (int k = 0; k < FLIGHTS; k++) {
        clv_pending *p = &flight[r % 2 == 0 ? k : FLIGHTS - 1 - k];
        clv_pending_end(p);
        clv_pending_end(p);
        EXPECT(p->comm == NULL, "flight %d is still pending", k);
    }
    for (int k = 0; k < FLIGHTS; k++) {
        size_t bad = 0;
        for (size_t i = 0; i < (k % 3 == 2 ? all : count); i++) {
            const int64_t got = load(out[k], CLV_F32, i);
            if (k % 3 == 2)
                bad += got != value((int)(i / count), i % count);
            else
                bad += got != value_sum(n, i + (k % 3 == 1 ? (size_t)r * count : 0));
        }
        EXPECT(bad == 0, "flight %d: %zu wrong", k, bad);
        free(out[k]);
    }
    free(in);
    return failed;
}

static int agree_case(clv_comm *world)
{
    int failed = 0;
    const int n = clv_comm_size(world), r = clv_comm_rank(world);
    clv_status st = clv_comm_agree(world, clv_ok());
    EXPECT(st.code == CLV_OK && st.text[0] == 0, "agreed on %d: %s", (int)st.code, st.text);
    for (int first = 0; first < n; first++) {
        char want[64];
        snprintf(want, sizeof want, "rank %d: no such file", first);
        st = clv_comm_agree(world, r < first ? clv_ok() : clv_fail(CLV_BAD_USAGE, "rank %d: no such file", r));
        EXPECT(st.code == CLV_BAD_USAGE && strcmp(st.text, want) == 0, "agreed on %d: %s", (int)st.code, st.text);
    }
    const double decided = clv_comm_decide(world, 0.1 + r);
    EXPECT(decided == 0.1, "decided on %g", decided);
    clv_barrier(world);
    return failed;
}

/* Traffic of `kind` since `before`. */
static int since(clv_comm *world, clv_traffic_kind kind, clv_traffic before, int64_t calls, size_t bytes)
{
    int failed = 0;
    const clv_traffic now = clv_comm_traffic(world, kind);
    const int64_t c = now.calls - before.calls, b = now.bytes - before.bytes;
    const bool alone = clv_comm_size(world) == 1; /* nothing crosses a wire */
    EXPECT(c == (alone ? 0 : calls) && b == (alone ? 0 : (int64_t)bytes), "%s: %lld calls, %lld bytes",
           clv_traffic_kind_name(kind), (long long)c, (long long)b);
    return failed;
}

static int ledger_case(clv_comm *world)
{
    const size_t n = (size_t)clv_comm_size(world);
    float in[80] = {0}, out[80];
    size_t each[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    clv_traffic before[CLV_TRAFFIC_KINDS];
    for (int k = 0; k < CLV_TRAFFIC_KINDS; k++)
        before[k] = clv_comm_traffic(world, (clv_traffic_kind)k);
    clv_all_reduce(world, out, in, 10, CLV_F32, CLV_SUM);
    clv_pending p = clv_all_reduce_begin(world, out, in, 3, CLV_F32);
    clv_pending_end(&p);
    clv_reduce_scatter(world, out, in, 10, CLV_F32);
    clv_all_gather(world, out, in, 10, CLV_F32);
    clv_all_to_all_v(world, out, each, in, each, CLV_F32);
    clv_broadcast(world, in, 5, CLV_F32, 0);
    clv_barrier(world);
    return since(world, CLV_ALL_REDUCE, before[CLV_ALL_REDUCE], 2, 52) +
           since(world, CLV_REDUCE_SCATTER, before[CLV_REDUCE_SCATTER], 1, 40 * n) +
           since(world, CLV_ALL_GATHER, before[CLV_ALL_GATHER], 1, 40 * n) +
           since(world, CLV_ALL_TO_ALL, before[CLV_ALL_TO_ALL], 1, 4 * n) +
           since(world, CLV_BROADCAST, before[CLV_BROADCAST], 1, 20) + since(world, CLV_SEND, before[CLV_SEND], 0, 0) +
           since(world, CLV_RECV, before[CLV_RECV], 0, 0);
}

/* Each group sums the ranks that it should hold: those which differ from this one on its axes only. */
static int groups(clv_comm *world, clv_layout layout)
{
    int failed = 0;
    clv_mesh *mesh;
    const clv_status st = clv_mesh_create(&mesh, world, &layout);
    EXPECT(st.code == CLV_OK, "%s", st.text);
    for (unsigned axes = 0; axes <= CLV_WORLD; axes++) {
        clv_comm *group = clv_mesh_comm(mesh, axes);
        const int n = clv_mesh_size(mesh, axes);
        EXPECT(clv_comm_size(group) == n && clv_comm_rank(group) == clv_mesh_coord(mesh, axes), "axes %#x", axes);
        int64_t mask = (int64_t)1 << clv_comm_rank(world), want = 0;
        clv_all_reduce(group, &mask, &mask, 1, CLV_I64, CLV_SUM);
        int stride[CLV_AXIS_COUNT], s = 1;
        for (int i = 0; i < CLV_AXIS_COUNT; i++) {
            stride[i] = s;
            s *= clv_mesh_size(mesh, 1u << i);
        }
        for (int other = 0; other < clv_comm_size(world); other++) {
            bool same = true;
            for (int i = 0; i < CLV_AXIS_COUNT; i++)
                same &= (axes >> i & 1) != 0 ||
                        other / stride[i] % clv_mesh_size(mesh, 1u << i) == clv_mesh_coord(mesh, 1u << i);
            want |= same ? (int64_t)1 << other : 0;
        }
        EXPECT(mask == want, "axes %#x: ranks %#llx, not %#llx", axes, (unsigned long long)mask,
               (unsigned long long)want);
    }
    clv_mesh_progress(mesh);
    clv_mesh_destroy(mesh);
    return failed;
}

/* A pipeline over all ranks, of any number: the end stages share a group, the others stand apart. */
static int ends_case(clv_comm *world)
{
    int failed = 0;
    const int rank = clv_comm_rank(world), size = clv_comm_size(world);
    clv_mesh *mesh;
    const clv_status st = clv_mesh_create(&mesh, world, &(clv_layout){.pp = size});
    EXPECT(st.code == CLV_OK, "%s", st.text);
    clv_comm *ends = clv_mesh_ends(mesh);
    const bool end = size > 1 && (rank == 0 || rank == size - 1);
    EXPECT((ends != NULL) == end, "stage %d of %d: an end %d", rank, size, ends != NULL);
    if (ends != NULL) {
        int64_t sum = rank;
        clv_all_reduce(ends, &sum, &sum, 1, CLV_I64, CLV_SUM);
        EXPECT(sum == size - 1, "the ends' numbers add to %lld", (long long)sum);
    }
    clv_mesh_destroy(mesh);
    return failed;
}

static int mesh_case(clv_comm *world)
{
    const int n = clv_comm_size(world);
    int failed = groups(world, (clv_layout){.tp = n}) + groups(world, (clv_layout){.dp = n}) +
                 groups(world, (clv_layout){.tp = n, .kv_heads = 1});
    if (n == 4)
        failed += groups(world, (clv_layout){.tp = 2, .dp = 2}) + groups(world, (clv_layout){.tp = 2, .pp = 2}) +
                  groups(world, (clv_layout){.cp = 2, .pp = 2}) + groups(world, (clv_layout){.tp = 4, .kv_heads = 2});
    return failed;
}

/* Waiting on one group moves what is in flight on the others: rank pairs wait for each other in a circle. */
static int circle_case(clv_comm *world)
{
    int failed = 0;
    if (clv_comm_size(world) != 4)
        return 0;
    clv_mesh *mesh;
    clv_mesh_create(&mesh, world, &(clv_layout){.tp = 2, .dp = 2});
    clv_comm *tp = clv_mesh_comm(mesh, CLV_TP), *dp = clv_mesh_comm(mesh, CLV_DP);
    const size_t count = 700001;
    const int r = clv_comm_rank(world);
    float *in = filled(r, 0, count, CLV_F32), *a = clv_alloc(count, 4), *b = clv_alloc(count, 4);
    clv_pending over_tp = clv_all_reduce_begin(tp, a, in, count, CLV_F32);
    clv_pending over_dp = clv_all_reduce_begin(dp, b, in, count, CLV_F32);
    clv_pending_end(r == 0 || r == 3 ? &over_tp : &over_dp);
    clv_barrier(world);
    clv_pending_end(&over_tp);
    clv_pending_end(&over_dp);
    size_t bad = 0;
    for (size_t i = 0; i < count; i++)
        bad += load(a, CLV_F32, i) != value(r, i) + value(r ^ 1, i) ||
               load(b, CLV_F32, i) != value(r, i) + value(r ^ 2, i);
    EXPECT(bad == 0, "%zu wrong", bad);
    free(in);
    free(a);
    free(b);
    clv_mesh_destroy(mesh);
    return failed;
}

static int small_pieces_case(clv_comm *world)
{
    const size_t before = world->piece;
    world->piece = PIECE;
    const int failed = all_reduce_case(world) + reduce_scatter_case(world) + all_gather_case(world) +
                       all_to_all_case(world) + broadcast_case(world) + message_case(world) + flight_case(world);
    world->piece = before;
    return failed;
}

static int synchronous_case(clv_comm *world)
{
    const bool before = world->synchronous;
    world->synchronous = true;
    const int failed = all_reduce_case(world) + reduce_scatter_case(world) + all_gather_case(world) +
                       all_to_all_case(world) + broadcast_case(world) + message_case(world) + order_case(world) +
                       flight_case(world);
    world->synchronous = before;
    return failed;
}

int main(int argc, char **argv)
{
    static const mpi_case cases[] = {
        {"all-reduce", all_reduce_case},
        {"reduce-scatter", reduce_scatter_case},
        {"all-gather", all_gather_case},
        {"all-to-all", all_to_all_case},
        {"broadcast", broadcast_case},
        {"messages", message_case},
        {"order of sums", order_case},
        {"NaN in a maximum", nan_case},
        {"several in flight", flight_case},
        {"agree and decide", agree_case},
        {"ledger", ledger_case},
        {"mesh", mesh_case},
        {"ends of a pipeline", ends_case},
        {"waiting in a circle", circle_case},
        {"small pieces", small_pieces_case},
        {"synchronous sends", synchronous_case},
        {0},
    };
    return mpi_test_run(&argc, &argv, cases);
}
