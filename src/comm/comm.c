/* comm.c - the collectives as callers see them: check, count, then hand over to the world's table.
 *
 * A group of one rank moves nothing over any wire: the data is copied where out and in differ, and nothing is counted.
 */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void clv_comm_init(clv_comm *comm, const clv_comm_ops *ops, int rank, int size)
{
    CLV_CHECK(size >= 1 && rank >= 0 && rank < size, "rank %d of %d", rank, size);
    *comm = (clv_comm){.ops = ops, .rank = rank, .size = size, .piece = (size_t)1 << 30};
    comm->local_size = comm->hosts = 1;
    snprintf(comm->name, sizeof comm->name, "world");
}

void clv_comm_world_close(clv_comm *world)
{
    if (world != NULL)
        world->ops->close(world);
}

void clv_comm_abort(clv_comm *world, int code)
{
    fflush(NULL);
    world->ops->abort(code);
    abort();
}

void clv_comm_synchronize(clv_comm *world, bool on)
{
    world->synchronous = on;
}

int clv_comm_rank(const clv_comm *comm)
{
    return comm->rank;
}

int clv_comm_size(const clv_comm *comm)
{
    return comm->size;
}

const char *clv_comm_name(const clv_comm *comm)
{
    return comm->name;
}

int clv_comm_local_rank(const clv_comm *world)
{
    return world->local_rank;
}

int clv_comm_local_size(const clv_comm *world)
{
    return world->local_size;
}

int clv_comm_hosts(const clv_comm *world)
{
    return world->hosts;
}

/* ---- one transfer ------------------------------------------------------------------------------------------------ */

/* Elements that the ledger counts: what this rank hands in; for a gather, what it gets. */
static size_t payload(const clv_comm *comm, const clv_transfer *t)
{
    const size_t n = (size_t)comm->size;
    if (t->kind == CLV_REDUCE_SCATTER || t->kind == CLV_ALL_GATHER)
        return n * t->count;
    if (t->kind != CLV_ALL_TO_ALL)
        return t->count;
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += t->in_counts[i];
    return sum;
}

static void alone(const clv_comm *comm, const clv_transfer *t)
{
    const bool copies = t->kind != CLV_BARRIER && t->kind != CLV_BROADCAST;
    const size_t count = t->kind == CLV_ALL_TO_ALL ? t->in_counts[0] : t->count;
    if (copies && !comm->dry && t->out != t->in && count > 0)
        memcpy(t->out, t->in, count * clv_dtype_size(t->dtype));
}

static void check(const clv_comm *comm, const clv_transfer *t)
{
    const bool reduces = t->kind == CLV_ALL_REDUCE || t->kind == CLV_REDUCE_SCATTER;
    const bool adds = t->dtype == CLV_F32 || t->dtype == CLV_F64 || t->dtype == CLV_I32 || t->dtype == CLV_I64;
    CLV_CHECK(!reduces || adds, "%s of %s", clv_traffic_kind_name((clv_traffic_kind)t->kind), clv_dtype_name(t->dtype));
    CLV_CHECK(t->peer >= 0 && t->peer < comm->size, "peer %d in a group (%s) of %d", t->peer, comm->name, comm->size);
    const bool message = t->kind == CLV_SEND || t->kind == CLV_RECV;
    CLV_CHECK(!message || t->peer != comm->rank, "rank %d of %s sends to itself", comm->rank, comm->name);
}

static clv_pending begin(clv_comm *comm, const clv_transfer *t)
{
    check(comm, t);
    if (comm->size == 1) {
        alone(comm, t);
        return (clv_pending){0};
    }
    if (t->kind != CLV_BARRIER) {
        comm->traffic[t->kind].calls++;
        comm->traffic[t->kind].bytes += (int64_t)(payload(comm, t) * clv_dtype_size(t->dtype));
    }
    const int slot = comm->ops->begin(comm, t);
    return slot < 0 ? (clv_pending){0} : (clv_pending){.comm = comm, .slot = slot, .kind = t->kind};
}

static void run(clv_comm *comm, const clv_transfer *t)
{
    clv_pending pending = begin(comm, t);
    clv_pending_end(&pending);
}

void clv_pending_end(clv_pending *pending)
{
    const clv_pending p = *pending;
    *pending = (clv_pending){0};
    if (p.comm == NULL)
        return;
    const clv_watch *watch = p.kind == CLV_BARRIER ? NULL : p.comm->watch;
    const double begin = watch != NULL ? clv_seconds() : 0.0;
    p.comm->ops->end(p.comm, p.slot);
    if (watch != NULL)
        watch->seen(watch->user, p.comm, (clv_traffic_kind)p.kind, begin);
}

void clv_comm_progress(clv_comm *comm)
{
    if (comm->size > 1)
        comm->ops->progress(comm);
}

/* ---- the collectives --------------------------------------------------------------------------------------------- */

void clv_all_reduce(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype, clv_reduction how)
{
    run(comm,
        &(clv_transfer){.kind = CLV_ALL_REDUCE, .out = out, .in = in, .count = count, .dtype = dtype, .how = how});
}

clv_pending clv_all_reduce_begin(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype)
{
    return begin(comm, &(clv_transfer){.kind = CLV_ALL_REDUCE, .out = out, .in = in, .count = count, .dtype = dtype});
}

void clv_reduce_scatter(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype)
{
    clv_pending pending = clv_reduce_scatter_begin(comm, out, in, count, dtype);
    clv_pending_end(&pending);
}

clv_pending clv_reduce_scatter_begin(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype)
{
    return begin(comm,
                 &(clv_transfer){.kind = CLV_REDUCE_SCATTER, .out = out, .in = in, .count = count, .dtype = dtype});
}

void clv_all_gather(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype)
{
    clv_pending pending = clv_all_gather_begin(comm, out, in, count, dtype);
    clv_pending_end(&pending);
}

clv_pending clv_all_gather_begin(clv_comm *comm, void *out, const void *in, size_t count, clv_dtype dtype)
{
    return begin(comm, &(clv_transfer){.kind = CLV_ALL_GATHER, .out = out, .in = in, .count = count, .dtype = dtype});
}

void clv_all_to_all_v(clv_comm *comm, void *out, const size_t *out_counts, const void *in, const size_t *in_counts,
                      clv_dtype dtype)
{
    run(comm, &(clv_transfer){.kind = CLV_ALL_TO_ALL,
                              .out = out,
                              .in = in,
                              .out_counts = out_counts,
                              .in_counts = in_counts,
                              .dtype = dtype});
}

void clv_broadcast(clv_comm *comm, void *data, size_t count, clv_dtype dtype, int root)
{
    run(comm,
        &(clv_transfer){.kind = CLV_BROADCAST, .out = data, .in = data, .count = count, .dtype = dtype, .peer = root});
}

clv_pending clv_send_begin(clv_comm *comm, const void *data, size_t bytes, int to, int tag)
{
    return begin(
        comm, &(clv_transfer){.kind = CLV_SEND, .in = data, .count = bytes, .dtype = CLV_U8, .peer = to, .tag = tag});
}

clv_pending clv_recv_begin(clv_comm *comm, void *data, size_t bytes, int from, int tag)
{
    return begin(comm, &(clv_transfer){
                           .kind = CLV_RECV, .out = data, .count = bytes, .dtype = CLV_U8, .peer = from, .tag = tag});
}

void clv_send(clv_comm *comm, const void *data, size_t bytes, int to, int tag)
{
    clv_pending pending = clv_send_begin(comm, data, bytes, to, tag);
    clv_pending_end(&pending);
}

void clv_recv(clv_comm *comm, void *data, size_t bytes, int from, int tag)
{
    clv_pending pending = clv_recv_begin(comm, data, bytes, from, tag);
    clv_pending_end(&pending);
}

void clv_barrier(clv_comm *comm)
{
    run(comm, &(clv_transfer){.kind = CLV_BARRIER});
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

clv_status clv_comm_agree(clv_comm *comm, clv_status mine)
{
    int32_t votes = mine.code == CLV_OK ? 0 : comm->size - comm->rank; /* the lowest failing rank votes highest */
    clv_all_reduce(comm, &votes, &votes, 1, CLV_I32, CLV_MAX);
    if (votes > 0)
        clv_broadcast(comm, &mine, sizeof mine, CLV_U8, comm->size - votes);
    return mine;
}

double clv_comm_decide(clv_comm *comm, double mine)
{
    clv_broadcast(comm, &mine, 1, CLV_F64, 0);
    return mine;
}

/* ---- the ledger -------------------------------------------------------------------------------------------------- */

clv_traffic clv_comm_traffic(const clv_comm *comm, clv_traffic_kind kind)
{
    CLV_CHECK(kind >= 0 && kind < CLV_TRAFFIC_KINDS, "no such kind of traffic: %d", (int)kind);
    return comm->traffic[kind];
}

const char *clv_traffic_kind_name(clv_traffic_kind kind)
{
    static const char *const names[CLV_TRAFFIC_KINDS] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all",
                                                         "broadcast",  "send",           "recv"};
    CLV_CHECK(kind >= 0 && kind < CLV_TRAFFIC_KINDS, "no such kind of traffic: %d", (int)kind);
    return names[kind];
}
