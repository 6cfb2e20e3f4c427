/* trace_log.c - what a rank does, and when: forwards, backwards, updates, and each wait for a transfer.
 *
 * Records go into a ring in memory; the newest 65,536 stay, and no file is touched before the end. Then rank 0 writes
 * one file: a process a rank, a thread for work and one for the wire. Clocks of ranks meet in a barrier.
 *
 * A wait that is recorded is the time in which the rank could do nothing else; what went over the wire meanwhile,
 * beside a product, leaves no trace, since it took no time.
 */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>

enum { RING = 1 << 16, TAG = 13, WORK = 0, WIRE = 1 };

typedef struct record {
    double begin, end;
    const clv_comm *comm; /* NULL: work */
    int what;             /* clv_work, or clv_traffic_kind */
    int part, micro;
    int64_t iteration;
} record;

struct clv_trace_log {
    clv_mesh *mesh;
    clv_watch watch;
    double zero;
    int64_t iteration;
    record *ring;
    int64_t count; /* of all records */
};

static record *next(clv_trace_log *log, double begin)
{
    record *r = &log->ring[log->count++ % RING];
    *r = (record){.begin = begin - log->zero, .end = clv_seconds() - log->zero, .iteration = log->iteration};
    return r;
}

static void seen(void *user, const clv_comm *comm, clv_traffic_kind kind, double begin)
{
    record *r = next(user, begin);
    r->comm = comm;
    r->what = (int)kind;
}

clv_trace_log *clv_trace_log_open(clv_mesh *mesh)
{
    clv_trace_log *log = clv_alloc(1, sizeof *log);
    *log = (clv_trace_log){.mesh = mesh, .watch = {seen, log}, .ring = clv_alloc(RING, sizeof *log->ring)};
    clv_barrier(clv_mesh_world(mesh));
    log->zero = clv_seconds();
    clv_mesh_watch(mesh, &log->watch);
    return log;
}

void clv_trace_log_close(clv_trace_log *log)
{
    if (log == NULL)
        return;
    clv_mesh_watch(log->mesh, NULL);
    free(log->ring);
    free(log);
}

double clv_trace_log_now(const clv_trace_log *log)
{
    return log == NULL ? 0.0 : clv_seconds();
}

void clv_trace_log_iteration(clv_trace_log *log, int64_t iteration)
{
    if (log != NULL)
        log->iteration = iteration;
}

void clv_trace_log_work(clv_trace_log *log, clv_work work, int part, int micro, double begin)
{
    if (log == NULL)
        return;
    record *r = next(log, begin);
    r->what = (int)work;
    r->part = part;
    r->micro = micro;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static void add_record(clv_text *out, int rank, const record *r)
{
    static const char *const works[] = {"forward", "backward", "update"};
    clv_trace_event s = {
        .process = rank, .begin = r->begin, .end = r->end, .key = {"iteration"}, .value = {r->iteration}};
    char name[64];
    s.name = name;
    if (r->comm != NULL) {
        s.thread = WIRE;
        s.category = "comm";
        snprintf(name, sizeof name, "%s %s", clv_traffic_kind_name((clv_traffic_kind)r->what), clv_comm_name(r->comm));
    } else {
        s.thread = WORK;
        s.category = "compute";
        snprintf(name, sizeof name, "%s", works[r->what]);
    }
    if (r->comm == NULL && r->what != CLV_WORK_UPDATE) {
        s.key[1] = "part";
        s.key[2] = "micro";
        s.value[1] = r->part;
        s.value[2] = r->micro;
    }
    clv_trace_slice(out, &s);
}

/* This rank's events, without head and tail. */
static void add_rank(clv_text *out, const clv_trace_log *log)
{
    const clv_mesh *mesh = log->mesh;
    const int rank = clv_comm_rank(clv_mesh_world(mesh));
    char name[96];
    snprintf(name, sizeof name, "rank %d: tp %d, pp %d, dp %d", rank, clv_mesh_coord(mesh, CLV_TP),
             clv_mesh_coord(mesh, CLV_PP), clv_mesh_coord(mesh, CLV_DP));
    clv_trace_process(out, rank, name);
    clv_trace_thread(out, rank, WORK, "work");
    clv_trace_thread(out, rank, WIRE, "waits for the wire");
    for (int64_t i = CLV_MAX(log->count - RING, 0); i < log->count; i++)
        add_record(out, rank, &log->ring[i % RING]);
}

static void add_peer(clv_text *out, clv_comm *world, int from)
{
    int64_t n = 0;
    clv_recv(world, &n, sizeof n, from, TAG);
    char *text = clv_alloc((size_t)n, 1);
    clv_recv(world, text, (size_t)n, from, TAG);
    clv_text_add(out, text, (size_t)n);
    free(text);
}

clv_status clv_trace_log_write(clv_trace_log *log, const char *path)
{
    clv_comm *world = clv_mesh_world(log->mesh);
    clv_text out = {0};
    clv_status st = clv_ok();
    clv_mesh_watch(log->mesh, NULL); /* the ring stays as it is */
    if (clv_comm_rank(world) == 0)
        clv_trace_head(&out);
    add_rank(&out, log);
    if (clv_comm_rank(world) > 0) {
        const int64_t n = (int64_t)out.length;
        clv_send(world, &n, sizeof n, 0, TAG);
        clv_send(world, out.data, out.length, 0, TAG);
    } else {
        for (int from = 1; from < clv_comm_size(world); from++)
            add_peer(&out, world, from);
        clv_trace_tail(&out);
        st = clv_make_parent(path);
        if (st.code == CLV_OK)
            st = clv_file_write_atomic(path, out.data, out.length);
        clv_log(CLV_LOG_INFO, "trace in %s%s", path, log->count > RING ? "; of the last 65,536 events a rank" : "");
    }
    clv_text_free(&out);
    return clv_comm_agree(world, st);
}
