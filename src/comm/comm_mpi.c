/* comm_mpi.c - MPI's world: transfers as small state machines over nonblocking messages.
 *
 * Every transfer is a job: a list of requests in flight, and a step that runs when all of them are complete and posts
 * the next ones. A blocking call is a job that is waited for. Whoever waits moves every job of the process, so that no
 * order of waiting on different groups can lock up.
 *
 * Reductions use direct exchange. A vector is cut into n parts; a rank gets the n - 1 other copies of its part, adds
 * all in rank order (reduce.c), and an all-reduce hands the sums round:
 *
 *   exchange   rank r receives part r of every peer        2 (n-1)/n of the vector per rank for both together,
 *   gather     rank r sends its sum of part r to all       the lower bound (Patarasuk and Yuan 2009)
 *
 * It goes in blocks that fit a cache, the gather of one block beside the exchange of the next. Short vectors skip the
 * gather: all ranks exchange the whole and each adds it, which costs one latency. The order of the sum is the same
 * either way. Counts beyond MPI's int are cut where messages are posted, and only there.
 */
#include "comm/comm_internal.h"

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    JOBS = 64,
    TAGS = 1 << 14,         /* messages use tags below, collectives from here on; MPI grants 2^15 - 1 */
    BLOCK_BYTES = 1 << 20,  /* of a reduced vector that is in flight at once, per rank */
    WHOLE_BYTES = 16 << 10, /* a vector up to this size over n - 1 is exchanged whole */
    SHORT_BYTES = 16 << 10, /* on one host up to here several eager messages are faster than one that asks first, */
    EAGER_BYTES = 4000      /* as Open MPI's do between ranks of a host beyond 4096 bytes with their header */
};

typedef struct job {
    clv_comm *comm; /* NULL: free */
    clv_transfer t;
    int tag;
    bool done;
    size_t step;
    size_t blocks, block; /* reductions: how many, and elements of each (reduce-scatter: of each part) */
    bool whole;           /* all ranks exchange everything */
    MPI_Request *requests;
    int used, capacity;
    char *scratch; /* the peers' copies; kept with the slot, grows when needed */
    size_t scratch_bytes;
    const void **summands;
    int summand_capacity;
} job;

typedef struct engine {
    job jobs[JOBS];
    int in_flight;
    MPI_Status *ignored; /* MPI_STATUSES_IGNORE, which gcc takes for an array too small when it sees MPICH's constant */
    bool one_host;
    bool yields; /* more ranks than cores: a waiting rank makes room; beside Open MPI's own a fifth more latency */
} engine;

typedef struct mpi_comm {
    clv_comm base; /* first: a clv_comm of this world is one of these */
    MPI_Comm handle;
    engine *engine;
    int sequence; /* of collectives, the same on all ranks */
} mpi_comm;

static mpi_comm *mpi_of(clv_comm *comm)
{
    return (mpi_comm *)(void *)comm;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static MPI_Request *next_request(job *j)
{
    if (j->used == j->capacity) {
        j->capacity = 2 * j->capacity + 16;
        j->requests = clv_resize(j->requests, (size_t)j->capacity, sizeof *j->requests);
    }
    return &j->requests[j->used++];
}

/* Bytes of each message, on both sides, of `bytes` to be moved. */
static size_t piece_of(const job *j, size_t bytes)
{
    const bool eager = bytes <= SHORT_BYTES && mpi_of(j->comm)->engine->one_host;
    return CLV_MIN(eager ? EAGER_BYTES : bytes, j->comm->piece);
}

static void post_send(job *j, const void *data, size_t bytes, int peer)
{
    const char *at = data;
    for (size_t n, piece = piece_of(j, bytes); bytes > 0; at += n, bytes -= n) {
        n = CLV_MIN(bytes, piece);
        (j->comm->synchronous ? MPI_Issend : MPI_Isend)(at, (int)n, MPI_BYTE, peer, j->tag, mpi_of(j->comm)->handle,
                                                        next_request(j));
    }
}

static void post_recv(job *j, void *data, size_t bytes, int peer)
{
    char *at = data;
    for (size_t n, piece = piece_of(j, bytes); bytes > 0; at += n, bytes -= n) {
        n = CLV_MIN(bytes, piece);
        MPI_Irecv(at, (int)n, MPI_BYTE, peer, j->tag, mpi_of(j->comm)->handle, next_request(j));
    }
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

typedef struct span { /* elements of the vector */
    size_t at, n;
} span;

/* What rank r adds up of block b. */
static span part_of(const job *j, size_t b, int r)
{
    const size_t n = (size_t)j->comm->size, first = b * j->block;
    const size_t length = CLV_MIN(j->block, j->t.count - first);
    if (j->whole)
        return (span){first, length};
    if (j->t.kind == CLV_REDUCE_SCATTER)
        return (span){(size_t)r * j->t.count + first, length};
    const size_t from = length * (size_t)r / n, to = length * ((size_t)r + 1) / n;
    return (span){first + from, to - from};
}

static void reduce_prepare(job *j)
{
    const size_t n = (size_t)j->comm->size, size = clv_dtype_size(j->t.dtype);
    const bool scatters = j->t.kind == CLV_REDUCE_SCATTER;
    j->whole = !scatters && j->t.count * size * (n - 1) <= WHOLE_BYTES;
    const size_t most = CLV_MAX(BLOCK_BYTES / size / (scatters ? n : 1), 1);
    j->block = CLV_MIN(most, j->t.count);
    j->blocks = j->t.count == 0 ? 0 : CLV_CEIL_DIV(j->t.count, j->block);

    const size_t part = j->whole || scatters ? j->block : CLV_CEIL_DIV(j->block, n);
    const size_t bytes = part * size * (n - 1);
    if (bytes > j->scratch_bytes) {
        free(j->scratch);
        j->scratch = clv_alloc(bytes, 1);
        j->scratch_bytes = bytes;
    }
    if (j->comm->size > j->summand_capacity) {
        j->summand_capacity = j->comm->size;
        j->summands = clv_resize(j->summands, n, sizeof *j->summands);
    }
}

/* Peers in the order me+1, me+2, ...: no rank is everybody's first. */
static int peer_of(const clv_comm *comm, int i)
{
    return (comm->rank + i) % comm->size;
}

static void post_exchange(job *j, size_t b)
{
    const clv_comm *comm = j->comm;
    const size_t size = clv_dtype_size(j->t.dtype);
    const span mine = part_of(j, b, comm->rank);
    for (int i = 1; i < comm->size; i++) {
        const int from = peer_of(comm, comm->size - i);
        char *to = j->scratch + (size_t)(i - 1) * mine.n * size;
        j->summands[from] = to;
        post_recv(j, to, mine.n * size, from);
    }
    for (int i = 1; i < comm->size; i++) {
        const int peer = peer_of(comm, i);
        const span theirs = part_of(j, b, peer);
        post_send(j, (const char *)j->t.in + theirs.at * size, theirs.n * size, peer);
    }
    j->summands[comm->rank] = (const char *)j->t.in + mine.at * size;
}

static void add_up(job *j, size_t b)
{
    const size_t size = clv_dtype_size(j->t.dtype);
    const span mine = part_of(j, b, j->comm->rank);
    const size_t at = j->t.kind == CLV_REDUCE_SCATTER ? b * j->block : mine.at;
    clv_reduce_in_order((char *)j->t.out + at * size, j->summands, j->comm->size, mine.n, j->t.dtype, j->t.how);
}

static void post_gather(job *j, size_t b)
{
    const clv_comm *comm = j->comm;
    const size_t size = clv_dtype_size(j->t.dtype);
    const span mine = part_of(j, b, comm->rank);
    char *out = j->t.out;
    for (int i = 1; i < comm->size; i++) {
        const int from = peer_of(comm, comm->size - i);
        const span theirs = part_of(j, b, from);
        post_recv(j, out + theirs.at * size, theirs.n * size, from);
    }
    for (int i = 1; i < comm->size; i++)
        post_send(j, out + mine.at * size, mine.n * size, peer_of(comm, i));
}

/* A step posts the next requests, if any, and says whether it must be called again when they are complete. */
static bool reduce_step(job *j)
{
    const bool gathers = j->t.kind == CLV_ALL_REDUCE && !j->whole;
    const size_t b = j->step++;
    if (b == 0)
        reduce_prepare(j);
    if (b > 0 && b <= j->blocks) {
        add_up(j, b - 1);
        if (gathers)
            post_gather(j, b - 1);
    }
    if (b < j->blocks)
        post_exchange(j, b);
    return b < j->blocks + (gathers ? 1 : 0);
}

/* ---- the other kinds --------------------------------------------------------------------------------------------- */

static bool all_gather_step(job *j)
{
    const clv_comm *comm = j->comm;
    const size_t bytes = j->t.count * clv_dtype_size(j->t.dtype);
    char *out = j->t.out, *own = out + (size_t)comm->rank * bytes;
    if (j->step++ > 0)
        return false;
    for (int i = 1; i < comm->size; i++) {
        const int from = peer_of(comm, comm->size - i);
        post_recv(j, out + (size_t)from * bytes, bytes, from);
    }
    for (int i = 1; i < comm->size; i++)
        post_send(j, j->t.in, bytes, peer_of(comm, i));
    if (own != j->t.in && bytes > 0)
        memcpy(own, j->t.in, bytes);
    return true;
}

static bool all_to_all_step(job *j)
{
    const clv_comm *comm = j->comm;
    const size_t size = clv_dtype_size(j->t.dtype);
    const char *in = j->t.in;
    char *out = j->t.out;
    if (j->step++ > 0)
        return false;
    for (int r = 0; r < comm->size; r++) {
        const size_t out_bytes = j->t.out_counts[r] * size, in_bytes = j->t.in_counts[r] * size;
        if (r != comm->rank) {
            post_recv(j, out, out_bytes, r);
            post_send(j, in, in_bytes, r);
        } else {
            CLV_CHECK(in_bytes == out_bytes, "rank %d gives itself %zu bytes, takes %zu", r, in_bytes, out_bytes);
            memmove(out, in, in_bytes);
        }
        out += out_bytes;
        in += in_bytes;
    }
    return true;
}

/* A binomial tree: number v of the ranks, counted from the root, receives from v without its lowest bit, then sends to
 * v + every power of two below that bit. */
static bool broadcast_step(job *j)
{
    const clv_comm *comm = j->comm;
    const size_t bytes = j->t.count * clv_dtype_size(j->t.dtype);
    const int n = comm->size, v = (comm->rank - j->t.peer + n) % n;
    const size_t step = j->step++;
    if (step == 0 && v != 0)
        post_recv(j, j->t.out, bytes, (j->t.peer + (v & (v - 1))) % n);
    if (step == 1) {
        int bit = 1;
        while (bit < n && (v & bit) == 0)
            bit <<= 1;
        for (bit >>= 1; bit > 0; bit >>= 1)
            if (v + bit < n)
                post_send(j, j->t.out, bytes, (j->t.peer + v + bit) % n);
    }
    return step < 2;
}

static bool message_step(job *j)
{
    if (j->step++ > 0)
        return false;
    if (j->t.kind == CLV_SEND)
        post_send(j, j->t.in, j->t.count, j->t.peer);
    else
        post_recv(j, j->t.out, j->t.count, j->t.peer);
    return true;
}

static bool barrier_step(job *j)
{
    if (j->step++ > 0)
        return false;
    MPI_Ibarrier(mpi_of(j->comm)->handle, next_request(j));
    return true;
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

static void job_progress(job *j)
{
    static bool (*const steps[])(job *) = {
        [CLV_ALL_REDUCE] = reduce_step,     [CLV_REDUCE_SCATTER] = reduce_step, [CLV_ALL_GATHER] = all_gather_step,
        [CLV_ALL_TO_ALL] = all_to_all_step, [CLV_BROADCAST] = broadcast_step,   [CLV_SEND] = message_step,
        [CLV_RECV] = message_step,          [CLV_BARRIER] = barrier_step,
    };
    while (!j->done) {
        int complete = 1;
        if (j->used > 0)
            MPI_Testall(j->used, j->requests, &complete, mpi_of(j->comm)->engine->ignored);
        if (!complete)
            return;
        j->used = 0;
        j->done = !steps[j->t.kind](j);
    }
}

static void engine_progress(engine *e)
{
    int left = e->in_flight;
    for (job *j = e->jobs; left > 0; j++) {
        if (j->comm == NULL)
            continue;
        left--;
        job_progress(j);
    }
}

static int mpi_begin(clv_comm *comm, const clv_transfer *t)
{
    mpi_comm *c = mpi_of(comm);
    int slot = 0;
    while (slot < JOBS && c->engine->jobs[slot].comm != NULL)
        slot++;
    CLV_CHECK(slot < JOBS, "more than %d transfers in flight", JOBS);

    job *j = &c->engine->jobs[slot];
    j->comm = comm;
    j->t = *t;
    j->done = false;
    j->step = 0;
    j->used = 0;
    if (t->kind == CLV_SEND || t->kind == CLV_RECV) {
        CLV_CHECK(t->tag >= 0 && t->tag < TAGS, "tag %d of a message is not below %d", t->tag, TAGS);
        j->tag = t->tag;
    } else {
        j->tag = TAGS + c->sequence;
        c->sequence = (c->sequence + 1) % (TAGS - 1);
    }
    c->engine->in_flight++;
    job_progress(j);
    return slot;
}

static void mpi_end(clv_comm *comm, int slot)
{
    engine *e = mpi_of(comm)->engine;
    job *j = &e->jobs[slot];
    CLV_CHECK(j->comm == comm, "slot %d holds no transfer of %s", slot, comm->name);
    while (!j->done) {
        engine_progress(e);
        if (!j->done && e->yields)
            sched_yield();
    }
    j->comm = NULL;
    e->in_flight--;
}

static void mpi_progress(clv_comm *comm)
{
    engine_progress(mpi_of(comm)->engine);
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

static const clv_comm_ops mpi_ops;

static clv_comm *mpi_split(clv_comm *parent, int color, int key, int rank, int size)
{
    mpi_comm *p = mpi_of(parent), *c = clv_alloc(1, sizeof *c); /* collective also for a group of one */
    clv_comm_init(&c->base, &mpi_ops, rank, size);
    c->base.piece = parent->piece;
    c->base.synchronous = parent->synchronous;
    c->engine = p->engine;
    MPI_Comm_split(p->handle, color, key, &c->handle);
    int real_rank, real_size;
    MPI_Comm_rank(c->handle, &real_rank);
    MPI_Comm_size(c->handle, &real_size);
    CLV_CHECK(real_rank == rank && real_size == size, "a group of color %d has this as rank %d of %d, not %d of %d",
              color, real_rank, real_size, rank, size);
    return &c->base;
}

static void mpi_close(clv_comm *comm)
{
    mpi_comm *c = mpi_of(comm);
    if (c->handle != MPI_COMM_WORLD) {
        MPI_Comm_free(&c->handle);
        free(c);
        return;
    }
    engine *e = c->engine;
    CLV_CHECK(e->in_flight == 0, "the world closes with %d transfers in flight", e->in_flight);
    for (job *j = e->jobs; j < e->jobs + JOBS; j++) {
        free(j->requests);
        free(j->scratch);
        free(j->summands);
    }
    free(e);
    free(c);
    clv_panic_hook_set(NULL);
    MPI_Finalize();
}

static void mpi_abort(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
}

static const clv_comm_ops mpi_ops = {.begin = mpi_begin,
                                     .end = mpi_end,
                                     .progress = mpi_progress,
                                     .split = mpi_split,
                                     .close = mpi_close,
                                     .abort = mpi_abort};

/* ---- launch ------------------------------------------------------------------------------------------------------ */

static void on_mpi_error(MPI_Comm *handle, int *code, ...)
{
    (void)handle;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(*code, text, &length);
    CLV_PANIC("MPI: %.*s", length, text);
}

/* Ranks of this host, number of hosts, and whether the host's ranks have a core each. A bound rank sees only its own
 * cores, so it is the union over the ranks that counts. */
static void look_around(mpi_comm *world)
{
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->base.rank, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &world->base.local_rank);
    MPI_Comm_size(host, &world->base.local_size);
    cpu_set_t cores;
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    MPI_Allreduce(MPI_IN_PLACE, &cores, (int)sizeof cores, MPI_BYTE, MPI_BOR, host);
    world->engine->yields = world->base.local_size > CPU_COUNT(&cores) && !clv_launch_yields();
    MPI_Comm_free(&host);
    const int first = world->base.local_rank == 0;
    MPI_Allreduce(&first, &world->base.hosts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    world->engine->one_host = world->base.hosts == 1;
}

static void set_error_handler(void)
{
    MPI_Errhandler handler;
    MPI_Comm_create_errhandler(on_mpi_error, &handler);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler); /* groups split from it inherit */
    MPI_Errhandler_free(&handler);
}

clv_status clv_comm_world_open(clv_comm **out, int *argc, char ***argv)
{
    const char *launcher;
    const int launched = clv_launched_size(&launcher);
    if (launched == 0) { /* starting MPI for one process would only cost time */
        *out = clv_comm_self_open();
        clv_log_setup(CLV_LOG_INFO, 0, 1);
        return clv_ok();
    }
    clv_launch_yield();
    int provided, rank, size;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    clv_log_setup(CLV_LOG_INFO, rank, size);
    *out = NULL;
    if (launched > 1 && size == 1) {
        MPI_Finalize();
        return clv_fail(CLV_BAD_INPUT,
                        "%s started %d processes, but each is alone in its MPI world: use the mpirun of the MPI that "
                        "this program was built with (under Slurm: srun --mpi=pmix, or pmi2)",
                        launcher, launched);
    }
    clv_panic_hook_set(mpi_abort);
    set_error_handler();
    CLV_CHECK(provided >= MPI_THREAD_FUNNELED, "MPI grants thread level %d, FUNNELED is %d", provided,
              MPI_THREAD_FUNNELED);
    mpi_comm *world = clv_alloc(1, sizeof *world);
    clv_comm_init(&world->base, &mpi_ops, rank, size);
    world->base.synchronous = clv_launch_synchronous();
    world->handle = MPI_COMM_WORLD;
    world->engine = clv_alloc(1, sizeof *world->engine);
    world->engine->ignored = MPI_STATUSES_IGNORE;
    look_around(world);
    *out = &world->base;
    return clv_ok();
}
